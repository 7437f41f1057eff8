"""The house: imports run downwards, and what the Hub carries stays flat."""

import ast
import sys

import pytest

# From the ground up; a module imports only from what stands before it.
FLOORS = [
    "version",
    "whole_files",
    "loading",
    "finite",
    "divergences",
    "functional",
    "mixup",
    "rows",
    "aggregator",
    "class_names",
    "classifiers",
    "structures",
    "timm_models",
    "config_checks",
    "wrapping",
    "configuration_maxmig",
    "modeling_maxmig",
    "opening",
    "items",
    "pipelines",
    "distributed",
    "discretion",
    "naming",
    "metrics",
    "guards",
    "peers.cross_entropy",
    "peers.output_layer",
    "peers.soft_vote",
    "peers.majority_vote",
    "peers.true_labels",
    "peers.aggregated",
    "peers.crowd_layer",
    "peers.doctor_net",
    "peers.aggnet",
    "peers.mbem",
    "peers.raykar",
    "staging",
    "data.sealed",
    "data.archives",
    "data.cells",
    "data.tables",
    "data.columns",
    "class_order",
    "data.inputs",
    "data.collator",
    "data.numbered",
    "data.features",
    "data.experts",
    "data.simulation",
    "data.sources",
    "data.describe",
    "data.exports",
    "data.files",
    "data.readers",
    "data.pictures",
    "gold",
    "masking",
    "refusals",
    "training_args",
    "training",
    "strength",
    "information",
    "watch",
    "copies",
    "crossfit",
    "left_out",
    "tempering",
    "start",
    "cross_fitted",
    "raced",
    "search",
    "relabel",
    "annotators",
    "hub",
    "exporting",
    "checkpoints",
    "sharing",
    "precision",
    "stopping",
    "tuning",
    "plots",
    "report",
    "trainer",
    "crowd_metrics.crowd_metrics",  # a Space by itself: it imports nothing of ours
    "crowd_metrics.app",
]
CARRIED_BY_THE_HUB = FLOORS[: FLOORS.index("pipelines") + 1]
OPTIONAL = {"opening": {"PIL"}}  # imported where it is there
FORBIDDEN = {"utils", "common", "helpers", "base", "misc"}


def imports(path, package):
    """Pairs of imported module and line of a source file, ours by their name inside the package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                inside = package[: len(package) - node.level + 1]
                yield (
                    ".".join(["hf_maxmig", *inside, *([node.module] if node.module else [])]),
                    node,
                )
            else:
                yield node.module, node


def source(root, module):
    return root / "hf_maxmig" / (module.replace(".", "/") + ".py")


def test_every_module_has_a_floor(root):
    """A file that is on no floor could import anything."""
    found = {
        ".".join(p.relative_to(root / "hf_maxmig").with_suffix("").parts)
        for p in (root / "hf_maxmig").rglob("*.py")
        if p.name != "__init__.py"
    }
    assert found == set(FLOORS)
    assert not {name.rsplit(".", 1)[-1] for name in found} & FORBIDDEN


@pytest.mark.parametrize("module", FLOORS)
def test_module_imports_only_from_lower_floors(module, root):
    """One upward import and the house is a ball."""
    below = {f"hf_maxmig.{name}" for name in FLOORS[: FLOORS.index(module)]}
    package = module.split(".")[:-1]
    ours = {
        name
        for name, _ in imports(source(root, module), package)
        if name.split(".")[0] == "hf_maxmig"
    }
    assert ours <= below, ours - below


@pytest.mark.parametrize("module", CARRIED_BY_THE_HUB)
def test_what_the_hub_carries_is_flat_and_needs_only_torch_and_transformers(module, root):
    """Remote code in folders, or with an import that is not installed, does not load."""
    allowed = {"torch", "transformers", "hf_maxmig", *sys.stdlib_module_names}
    allowed |= OPTIONAL.get(module, set())
    for name, node in imports(source(root, module), []):
        assert name.split(".")[0] in allowed, name
        if name.startswith("hf_maxmig"):
            assert isinstance(node, ast.ImportFrom)
            assert node.level == 1
            assert node.module in CARRIED_BY_THE_HUB


def test_public_names_import_and_say_what_they_are(root):
    """A name in `__all__` that does not import breaks `import *` only for users."""
    import hf_maxmig

    assert len(set(hf_maxmig.__all__)) == len(hf_maxmig.__all__)
    assert 20 < len(hf_maxmig.__all__) < 45
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
