"""What is installed and what is shipped: floors that are true, an sdist whose tests run."""

import importlib.util
import os
import re
import shutil
import sys
import tarfile
import tomllib
from importlib.metadata import requires, version

import pytest
import yaml

from tests.conftest import LONGEST
from tests.processes import finished

SHIPPED = ("tests", "recipes", "model_cards", "docs", ".ci", ".github")
BESIDE = (
    "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "PAPER.md",
    "README.md", "pyproject.toml",
)  # fmt: skip


@pytest.fixture
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_lowest_installs_the_floors_of_the_project(root, project):
    """A requirement without a floor is one that nobody has tried."""
    spec = importlib.util.spec_from_file_location("floors", root / ".ci" / "floors.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pinned = module.floors((root / "pyproject.toml").read_text(encoding="utf-8"))
    extras = [one for extra in module.EXTRAS for one in project["optional-dependencies"][extra]]
    stated = [re.sub(r",<.*", "", one) for one in (*project["dependencies"], *extras)]
    assert [one.replace("==", ">=") for one in pinned] == stated
    with pytest.raises(ValueError, match="must have a floor, .* got 'numpy'"):
        module.floors('[project]\ndependencies = ["numpy"]')


def test_floors_are_not_above_what_is_tested_here(project):
    """A typing mistake in a floor is an install that fails for everybody."""
    for requirement in project["dependencies"]:
        name, floor = re.fullmatch(r"([\w.-]+)>=([\w.]+)(?:,<\w+)?", requirement).groups()
        got = [int(part) for part in re.findall(r"\d+", version(name))[:3]]
        assert got >= [int(part) for part in floor.split(".")], name


def test_datasets_and_transformers_take_the_hub_that_is_asked_for(project):
    """One of them wanted an older one: pip found no set of versions at the floors."""
    (ours,) = [one for one in project["dependencies"] if one.startswith("huggingface-hub")]
    major = int(re.search(r">=(\d+)", ours)[1])
    for name in ("datasets", "transformers"):
        (theirs,) = [one for one in requires(name) if re.match(r"huggingface[-_]hub", one)][:1]
        assert int(re.search(r"<(\d+)", theirs)[1]) > major


def test_workflow_runs_ci_on_the_lowest_and_the_highest_python_we_claim(root, project):
    """A version that is claimed and never tried is a promise that nobody keeps."""
    workflow = yaml.safe_load((root / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    (job,) = workflow["jobs"].values()
    prefix = "Programming Language :: Python :: "
    claimed = [one.removeprefix(prefix) for one in project["classifiers"] if prefix in one]
    claimed.sort(key=lambda version: [int(part) for part in version.split(".")])
    assert len(claimed) > 1
    assert job["strategy"]["matrix"]["python-version"] == [claimed[0], claimed[-1]]
    assert project["requires-python"] == f">={claimed[0]}"
    assert job["steps"][-1]["run"] == ".ci/run"
    assert os.access(root / job["steps"][-1]["run"], os.X_OK)


def test_files_that_are_begun_first_are_there(root):
    """One that was moved would be begun in its place in the alphabet, and nobody would see why CI is slower."""
    assert [name for name in LONGEST if not (root / name).is_file()] == []
    assert len({*LONGEST}) == len(LONGEST)


@pytest.mark.parametrize("target", ["test", "test-all", "test-full", "lint", "types"])
def test_contributing_says_what_each_target_runs(target, root):
    """A target in no table is one that nobody runs."""
    assert f"\n{target}:" in (root / "Makefile").read_text("utf-8")
    assert f"`make {target}`" in (root / "CONTRIBUTING.md").read_text("utf-8")


@pytest.mark.slow
def test_sdist_has_all_that_its_tests_need(root, tmp_path):
    """Without conftest.py and the recipes, whoever packages it cannot test it."""
    copy = tmp_path / "copy"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".git", "out", "build", ".*_cache", ".hypothesis")  # fmt: skip
    shutil.copytree(root, copy, ignore=ignored)
    build = "import setuptools.build_meta as b; b.build_sdist('dist')"
    (copy / "dist").mkdir()
    finished([sys.executable, "-c", build], cwd=copy)
    (archive,) = (copy / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "sdist", filter="data")
    (unpacked,) = (tmp_path / "sdist").iterdir()
    wanted = [copy / name for name in BESIDE]
    for folder in ("hf_maxmig", *SHIPPED):
        wanted += [path for path in (copy / folder).rglob("*") if path.is_file()]
    missing = [
        str(path.relative_to(copy))
        for path in wanted
        if not (unpacked / path.relative_to(copy)).is_file()
    ]
    assert not missing
    assert len(wanted) > 150
    env = {**os.environ, "PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/test_floors.py",
    ]
    finished(command, cwd=unpacked, env=env)
