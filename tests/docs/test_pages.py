"""The pages of docs/ are complete: each is linked, each public name is described, and Sphinx builds them."""

import importlib.util
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import hf_maxmig
from hf_maxmig import MaxMIGTrainingArguments
from tests.processes import finished

DOCS = Path(__file__).parents[2] / "docs"
MOST_COLUMNS = 120
QUOTED = (  # phrases that were once written and are not English
    "ten it is unless",
    "wrong as everybody is",
    "but a permission",
    "left out of account",
    "which is often too sure",
)


def text_of(name):
    return (DOCS / name).read_text(encoding="utf-8")


def test_index_names_every_page():
    """Nobody finds a page that is in no list."""
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    index = text_of("index.md")
    listed = re.findall(r"```{toctree}\n(.*?)```", index, re.S)
    lines = [line for part in listed for line in part.splitlines() if not line.startswith(":")]
    entries = [re.sub(r".*<(\w+)>", r"\1", line) for line in lines]
    assert sorted(entries) == sorted(pages)
    assert pages == set(re.findall(r"\]\((\w+)\.md\)", index))


def test_reference_describes_every_public_name_once():
    """Nobody uses a public name without a description."""
    described = re.findall(r"^\.\. auto(?:class|function):: (\w+)$", text_of("api.md"), re.M)
    assert sorted(described) == sorted(hf_maxmig.__all__)


def test_arguments_on_their_page_are_those_of_the_fields(root):
    """A help text that was rewritten must change on the page too."""
    spec = importlib.util.spec_from_file_location(
        "argument_rows", root / "recipes" / "benchmarks" / "argument_rows.py"
    )
    rows = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root / "recipes" / "benchmarks"))
        spec.loader.exec_module(rows)
    written = rows.lines()
    assert f"<!-- arguments -->\n{written}\n<!-- end arguments -->" in text_of(
        "training_arguments.md"
    )
    own = {*MaxMIGTrainingArguments.__annotations__}
    assert len(own) > 20
    listed = re.findall(r"^- \*\*(\w+)\*\*", written, re.M)
    assert set(listed) == own & {one.name for one in fields(MaxMIGTrainingArguments)}


@pytest.mark.parametrize(
    "page",
    [
        *sorted(DOCS.glob("*.md")),
        *(DOCS.parent / name for name in ("README.md", "PAPER.md", "CONTRIBUTING.md")),
    ],
    ids=lambda page: page.name,
)
def test_prose_wraps(page):
    """Overlong lines are unreadable in editors and diffs."""
    kept = re.sub(r"```.*?```|<!-- \w[\w ]* -->.*?<!-- end \w[\w ]* -->", "", page.read_text("utf-8"), flags=re.S)  # fmt: skip
    lines = [line for line in kept.splitlines() if not line.startswith(("|", "    "))]
    assert [line for line in lines if len(line) > MOST_COLUMNS] == []


def test_sentences_that_were_put_right_stay_so(root):
    """These sentences were copied from place to place, so each is searched for everywhere."""
    places = [*root.glob("*.md"), *DOCS.glob("*.md")]
    for folder in ("hf_maxmig", "recipes", "model_cards"):
        places += [
            path for kind in ("py", "md", "html") for path in (root / folder).rglob(f"*.{kind}")
        ]
    assert len(places) > 100
    for path in places:
        text = " ".join(path.read_text(encoding="utf-8").split())
        assert [words for words in QUOTED if words in text] == [], path


@pytest.mark.slow
@pytest.mark.full  # CI builds them by `make docs`
def test_sphinx_builds_the_pages_without_a_warning(root, tmp_path):
    """Broken links, malformed tables and truncated docstrings are warnings, and here they are errors."""
    pytest.importorskip("furo", reason="the extra `docs` is not installed")
    pytest.importorskip("myst_parser", reason="the extra `docs` is not installed")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d"]
    finished([*command, str(tmp_path / "trees"), str(DOCS), str(tmp_path / "html")], cwd=root)
    reference = (tmp_path / "html" / "api.html").read_text(encoding="utf-8")
    assert 'id="hf_maxmig.MaxMIGTrainer.report"' in reference
