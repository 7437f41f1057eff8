"""The layout of the package: each room has its rule, imports run downwards, and the Hub carries a single room."""

import ast
import graphlib
import sys

import pytest

# From the ground up; a room imports only from those before it.
ROOMS = ["model", "metrics", "data", "judging", "demo", "sharing", "training", "peers", "command"]
FACE = "cli"  # above all rooms; it is read before the package, and does not import it by itself
ALONE = "crowd_metrics"  # a Space by itself: it imports nothing of ours, and nothing imports it
OPTIONAL = {"opening": {"PIL", "scipy"}}  # imported only if installed
FORBIDDEN = {"utils", "common", "helpers", "base", "misc"}
MOST_LINES = 700
MOST_FILES = 8  # in the package's root


def imports(path, package):
    """Return imported module and line for each import in a source file, ours relative to the package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                inside = package[: len(package) - node.level + 1]
                named = [node.module] if node.module else [alias.name for alias in node.names]
                yield from ((".".join(["hf_maxmig", *inside, name]), node) for name in named)
            else:
                yield node.module, node


def modules(root):
    """Return each module of the package by its dotted name, without the packages' own files."""
    package = root / "hf_maxmig"
    return {
        ".".join(path.relative_to(package).with_suffix("").parts): path
        for path in package.rglob("*.py")
        if path.name != "__init__.py"
    }


def ours(root, name):
    """Return the modules of ours that a module imports, by their dotted names in the package."""
    found = imports(modules(root)[name], name.split(".")[:-1])
    return {
        module.removeprefix("hf_maxmig.")
        for module, _ in found
        if module.split(".")[0] == "hf_maxmig"
    }


def room(name):
    return name.split(".")[0]


def test_every_module_is_in_a_room(root):
    """A file outside all rooms could import anything."""
    found = modules(root)
    assert {room(name) for name in found} == {*ROOMS, ALONE, FACE}
    assert not {name.rsplit(".", 1)[-1] for name in found} & FORBIDDEN
    assert len([p for p in (root / "hf_maxmig").iterdir() if p.is_file()]) <= MOST_FILES


@pytest.mark.parametrize("name", ROOMS)
def test_room_imports_only_from_rooms_below(name, root):
    """One upward import is enough to make the rooms depend on each other in a circle."""
    below = {*ROOMS[: ROOMS.index(name) + 1]}
    for module in modules(root):
        if room(module) == name:
            assert {room(other) for other in ours(root, module)} <= below, module


def test_nothing_rests_on_a_rival(root):
    """The package's defaults must work the same whatever happens to a rival."""
    package, rival = root / "hf_maxmig", "hf_maxmig.peers"
    importing = set()
    for path in package.rglob("*.py"):
        *inside, _ = path.relative_to(package).parts
        if any(f"{name}.".startswith(f"{rival}.") for name, _ in imports(path, inside)):
            importing.add(".".join([*inside, path.stem]))
    assert {name for name in importing if room(name) == "peers"}
    # The package's own file registers the rivals and names `peer`.
    assert {name for name in importing if room(name) != "peers"} == {"__init__"}


def test_imports_go_in_no_circle(root):
    """Two modules that need each other cannot be understood one at a time."""
    found = modules(root)
    needs = {name: ours(root, name) & set(found) for name in found}
    assert len([*graphlib.TopologicalSorter(needs).static_order()]) == len(found)


def test_what_stands_alone_imports_nothing_of_ours(root):
    """A Space has only its own folder, and the command's help must not wait for an import of the package."""
    for module in modules(root):
        if room(module) in (ALONE, FACE):
            assert not ours(root, module)


def test_model_needs_only_itself_torch_and_transformers(root):
    """Remote code that lies in folders, imports other rooms, or needs a missing package does not load."""
    folder = root / "hf_maxmig" / "model"
    assert not [path for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"]
    beside = {path.stem for path in folder.glob("*.py")}
    allowed = {"torch", "transformers", *sys.stdlib_module_names}
    for path in folder.glob("*.py"):
        for name, node in imports(path, ["model"]):
            if name.split(".")[0] == "hf_maxmig":
                assert isinstance(node, ast.ImportFrom)
                assert node.level == 1
                assert node.module in beside, (path, name)
            else:
                assert name.split(".")[0] in allowed | OPTIONAL.get(path.stem, set()), (path, name)


def test_no_file_is_longer_than_one_reads(root):
    """Nobody mends a file that they cannot keep in mind."""
    for name, path in modules(root).items():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES, name


def test_public_names_import_and_say_what_they_are(root):
    """If a name in `__all__` cannot be imported, `import *` breaks only for users."""
    import hf_maxmig

    assert len(set(hf_maxmig.__all__)) == len(hf_maxmig.__all__)
    assert 20 < len(hf_maxmig.__all__) < 60
    for name in hf_maxmig.__all__:
        assert getattr(hf_maxmig, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hf_maxmig.nothing  # noqa: B018


def test_only_labels_has_label_in_its_name(root):
    """`Trainer` takes every forward argument with "label" in its name for gold labels."""
    for path in (root / "hf_maxmig").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "forward":
                names = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
                assert [name for name in names if "label" in name] in ([], ["labels"]), path


def test_tests_import_from_no_file_of_tests(root):
    """A copied helper soon exists in two versions, and importing a test file also imports its tests."""
    files = [*(root / "tests").rglob("*.py")]
    assert len(files) > 100
    for path in files:
        for name, node in imports(path, []):
            froms = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            assert not any(part.startswith("test_") for part in (*name.split("."), *froms)), path
    assert not {path.stem for path in files} & FORBIDDEN
