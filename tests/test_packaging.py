"""What is installed and what is shipped: dependency floors that work, and an sdist whose tests run."""

import importlib.util
import os
import re
import shutil
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import requires, version

import pytest
import yaml

from tests.conftest import LONGEST
from tests.processes import finished
from tests.written_data import write_pictures, write_votes

SHIPPED = ("tests", "recipes", "model_cards", "docs", ".ci", ".github")
BESIDE = (
    "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "PAPER.md",
    "README.md", "maxmig.py", "pyproject.toml",
)  # fmt: skip


@pytest.fixture
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_lowest_installs_the_floors_of_the_project(root, project):
    """Nobody has tested a requirement without a floor."""
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
    """A typing error in a floor would break the installation for everybody."""
    for requirement in project["dependencies"]:
        name, floor = re.fullmatch(r"([\w.-]+)>=([\w.]+)(?:,<\w+)?", requirement).groups()
        got = [int(part) for part in re.findall(r"\d+", version(name))[:3]]
        assert got >= [int(part) for part in floor.split(".")], name


def test_datasets_and_transformers_take_the_hub_that_is_asked_for(project):
    """One of them once required an older version, so pip found no solution at the floors."""
    (ours,) = [one for one in project["dependencies"] if one.startswith("huggingface-hub")]
    major = int(re.search(r">=(\d+)", ours)[1])
    for name in ("datasets", "transformers"):
        (theirs,) = [one for one in requires(name) if re.match(r"huggingface[-_]hub", one)][:1]
        assert int(re.search(r"<(\d+)", theirs)[1]) > major


def test_workflow_runs_ci_on_the_lowest_and_the_highest_python_we_claim(root, project):
    """A supported version that is never tested is an empty promise."""
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
    """A renamed file would run in alphabetical order, and nobody would see why CI is slower."""
    assert [name for name in LONGEST if not (root / name).is_file()] == []
    assert len({*LONGEST}) == len(LONGEST)


@pytest.mark.parametrize("target", ["test", "test-all", "test-full", "lint", "types", "docs"])
def test_contributing_says_what_each_target_runs(target, root):
    """Nobody runs a target that is listed in no table."""
    assert f"\n{target}:" in (root / "Makefile").read_text("utf-8")
    assert f"`make {target}`" in (root / "CONTRIBUTING.md").read_text("utf-8")


@pytest.fixture
def copy(root, tmp_path):
    """Return a copy of the checkout without generated files."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".git", "out", "build", "_build", ".*_cache", ".hypothesis")  # fmt: skip
    return shutil.copytree(root, tmp_path / "copy", ignore=ignored)


def built(copy, what):
    """Build a distribution and return its file."""
    (copy / "dist").mkdir()
    build = f"import setuptools.build_meta as b; b.build_{what}('dist')"
    finished([sys.executable, "-c", build], cwd=copy)
    (file,) = (copy / "dist").iterdir()
    return file


@pytest.mark.slow
def test_wheel_does_the_main_job_outside_the_checkout(copy, tmp_path):
    """`pip install hf_maxmig` must be enough: without recipes, tests or other files of the checkout."""
    wheel, target, place = built(copy, "wheel"), tmp_path / "installed", tmp_path / "elsewhere"
    shutil.rmtree(copy / "hf_maxmig")  # the checkout's code must not be what runs
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (about,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        assert "\nProject-URL: " in archive.read(about).decode()
    for name in ("demo/page.css", "demo/page.html", "judging/item.html", "judging/report.html", "sharing/model_card.md", "crowd_metrics/crowd_metrics.py",
                 "crowd_metrics/README.md", "crowd_metrics/requirements.txt", "py.typed"):  # fmt: skip
        assert f"hf_maxmig/{name}" in names
    assert not [name for name in names if name.startswith(("tests/", "recipes/"))]
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target")
    finished([sys.executable, *install, target, wheel])

    place.mkdir()
    rows = write_pictures(place / "photos", number=60)
    write_pictures(place / "test", number=30, by_class=True)
    write_votes(place / "votes.csv", rows)
    env = {**os.environ, "PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1"}
    command = target / "bin" / "maxmig"
    (version,) = re.findall(r"-(\d[\w.]*?)-", wheel.name)
    assert finished([command, "--version"], cwd=place, env=env)[0] == f"maxmig {version}\n"
    flags = "--train_dir photos --test_dir test --votes votes.csv --votes_annotator who --output_dir out --use_cpu"
    model = "--model_name_or_path maxmig_four_layer_cnn --image_size 16 --num_train_epochs 2 --report_to none"
    # Two commands in one process, which imports the libraries once and reports afterwards which package it used.
    script = (
        "import sys, maxmig\n"
        "sys.argv[1:], more = ['describe', 'votes.csv', '--votes_annotator', 'who'], sys.argv[1:]\n"
        "maxmig.main()\n"
        "sys.argv[1:] = more\n"
        "maxmig.main()\n"
        "import hf_maxmig; print(maxmig.__file__, hf_maxmig.__file__)"
    )
    commands = [sys.executable, "-c", script, "train", *flags.split(), *model.split()]
    printed, _ = finished(commands, cwd=place, env=env)
    assert printed.startswith("60 items, 4 annotators, 3 classes")
    assert "classifier h" in printed
    places = printed.splitlines()[-1].split()
    assert places == [str(target / "maxmig.py"), str(target / "hf_maxmig" / "__init__.py")]
    made = {path.relative_to(place / "out").as_posix() for path in (place / "out").rglob("*.*")}
    assert {"model.safetensors", "README.md", "all_results.json", "_report/relabelled.csv"} <= made
    assert {"_report/report.html", "_report/annotators.csv"} <= made


@pytest.fixture
def unpacked(copy, tmp_path):
    """What the sdist holds."""
    with tarfile.open(built(copy, "sdist")) as tar:
        tar.extractall(tmp_path / "sdist", filter="data")
    (folder,) = (tmp_path / "sdist").iterdir()
    return folder


@pytest.mark.slow
def test_sdist_has_all_that_its_tests_need(copy, unpacked):
    """Without conftest.py and the recipes, packagers cannot test it."""
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


@pytest.mark.slow
@pytest.mark.full
def test_tests_of_the_sdist_run(unpacked):
    """A test that reads a file of the checkout alone fails at the packager's."""
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
