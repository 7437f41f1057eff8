"""The house: a place says a rule, imports run downwards, and what the Hub carries lies in one room."""

import ast
import graphlib
import sys

import pytest

# From the ground up; a room imports only from those before it.
ROOMS = ["model", "metrics", "data", "judging", "sharing", "training", "peers", "command"]
FACE = "cli"  # above all rooms; it is read before the package, and imports nothing of it by itself
ALONE = "crowd_metrics"  # a Space by itself: it imports nothing of ours, and nothing imports it
OPTIONAL = {"opening": {"PIL", "scipy"}}  # imported where it is there
FORBIDDEN = {"utils", "common", "helpers", "base", "misc"}
MOST_LINES = 700
MOST_FILES = 8  # in the package's root


def imports(path, package):
    """Pairs of imported module and line of a source file, ours by their name inside the package."""
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
    """Each module of the package by its dotted name, the packages' own files left out."""
    package = root / "hf_maxmig"
    return {
        ".".join(path.relative_to(package).with_suffix("").parts): path
        for path in package.rglob("*.py")
        if path.name != "__init__.py"
    }


def ours(root, name):
    """Modules of ours that a module imports, by their dotted names in the package."""
    found = imports(modules(root)[name], name.split(".")[:-1])
    return {
        module.removeprefix("hf_maxmig.")
        for module, _ in found
        if module.split(".")[0] == "hf_maxmig"
    }


def room(name):
    return name.split(".")[0]


def test_every_module_is_in_a_room(root):
    """A file that is in no room could import anything."""
    found = modules(root)
    assert {room(name) for name in found} == {*ROOMS, ALONE, FACE}
    assert not {name.rsplit(".", 1)[-1] for name in found} & FORBIDDEN
    assert len([p for p in (root / "hf_maxmig").iterdir() if p.is_file()]) <= MOST_FILES


@pytest.mark.parametrize("name", ROOMS)
def test_room_imports_only_from_rooms_below(name, root):
    """One upward import and the house is a ball."""
    below = {*ROOMS[: ROOMS.index(name) + 1]}
    for module in modules(root):
        if room(module) == name:
            assert {room(other) for other in ours(root, module)} <= below, module


def test_nothing_rests_on_a_rival(root):
    """What the package does by default must be the same, whatever becomes of a rival."""
    package, rival = root / "hf_maxmig", "hf_maxmig.peers"
    importing = set()
    for path in package.rglob("*.py"):
        *inside, _ = path.relative_to(package).parts
        if any(f"{name}.".startswith(f"{rival}.") for name, _ in imports(path, inside)):
            importing.add(".".join([*inside, path.stem]))
    assert {name for name in importing if room(name) == "peers"}
    # The package's own file registers the rivals, and gives `peer` a name.
    assert {name for name in importing if room(name) != "peers"} == {"__init__"}


def test_imports_go_in_no_circle(root):
    """Of two modules that need each other neither can be read first."""
    found = modules(root)
    needs = {name: ours(root, name) & set(found) for name in found}
    assert len([*graphlib.TopologicalSorter(needs).static_order()]) == len(found)


def test_what_stands_alone_imports_nothing_of_ours(root):
    """A Space has its own folder, and nothing else; the command's help waits for no import of the package."""
    for module in modules(root):
        if room(module) in (ALONE, FACE):
            assert not ours(root, module)


def test_model_needs_only_itself_torch_and_transformers(root):
    """Remote code in folders, from other rooms, or with an import that is not installed, does not load."""
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
    """What nobody holds in the head nobody mends."""
    for name, path in modules(root).items():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES, name


def test_public_names_import_and_say_what_they_are(root):
    """A name in `__all__` that does not import breaks `import *` only for users."""
    import hf_maxmig

    assert len(set(hf_maxmig.__all__)) == len(hf_maxmig.__all__)
    assert 20 < len(hf_maxmig.__all__) < 60
    for name in hf_maxmig.__all__:
        assert getattr(hf_maxmig, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hf_maxmig.nothing  # noqa: B018


def test_only_labels_has_label_in_its_name(root):
    """Trainer takes every forward argument with "label" in its name for gold."""
    for path in (root / "hf_maxmig").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "forward":
                names = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
                assert [name for name in names if "label" in name] in ([], ["labels"]), path


def test_tests_import_from_no_file_of_tests(root):
    """A helper in two files is soon two helpers, and with a file of tests its tests are imported."""
    files = [*(root / "tests").rglob("*.py")]
    assert len(files) > 100
    for path in files:
        for name, node in imports(path, []):
            froms = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            assert not any(part.startswith("test_") for part in (*name.split("."), *froms)), path
    assert not {path.stem for path in files} & FORBIDDEN
