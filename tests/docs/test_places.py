"""Every place that a page names exists: each link, file, folder and function."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "PAPER.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "model_cards" / "README.md",
    ROOT / "recipes" / "benchmarks" / "results" / "benchmark" / "README.md",
]
FOLDERS = ("hf_maxmig", "recipes", "tests", "docs", "model_cards")
# From the project's root, anywhere: in a sentence, a command or a message.
ROOTED = re.compile(rf"(?<![\w./*-])((?:{'|'.join(FOLDERS)}|\.ci)/[\w./*-]*[\w*/])")
FILE = re.compile(r"[\w./*-]*\w\.(?:py|md|html|json|toml|csv|parquet)")
FOLDER = re.compile(r"(?:[\w-]+/)+")
# Named because users have or create them: they are not part of the project.
OF_USERS = {
    "all_results.json",
    "config.json",
    "corrections.csv",
    "first_vote.py",
    "flowers.csv",
    "preprocessor_config.json",
    "results.json",
    "sentences.csv",
    "test-flowers.csv",
    "test.csv",
    "trainer_state.json",
    "votes.csv",
}


def text_of(page):
    return page.read_text(encoding="utf-8")


def quoted(text):
    """Return what stands in backticks, without blocks of code."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))


def of_the_project():
    """Return all files and folders, relative to the root and with a leading slash."""
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return [f"/{path.relative_to(ROOT).as_posix()}" for path in [*inside, *ROOT.iterdir()]]


def slug(heading):
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.fixture(scope="module")
def project():
    return of_the_project()


@pytest.fixture(params=PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def page(request):
    return request.param


def test_links_of_pages_lead_somewhere(page):
    """A file may have been renamed, or a heading reworded."""
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", text_of(there), re.M)
            assert anchor in map(slug, headings), target


def test_files_and_folders_that_pages_name_are_there(page, project):
    """Contributors look where CONTRIBUTING sends them, and readers type what a page says to reproduce a table."""
    text = text_of(page)
    for path in ROOTED.findall(text):
        assert [*ROOT.glob(path.rstrip("/"))], path
    for words in quoted(text):
        for word in words.split():
            if not (FILE.fullmatch(word) or FOLDER.fullmatch(word)):
                continue
            if word in OF_USERS or word.startswith("_report/") or "*" in word:
                continue
            assert any(path.endswith(f"/{word.rstrip('/')}") for path in project), word


def test_places_of_the_paper_are_there(project):
    """Readers check the code by this table, which says in which file and function an equation is implemented."""
    table = text_of(ROOT / "PAPER.md").split("## Where each thing is")[1].split("\n## ")[0]
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("hf_maxmig", "recipes")
        for path in (ROOT / folder).rglob("*.py")
    )
    files, dotted, names = 0, 0, 0
    for word in quoted(table):
        if FILE.fullmatch(word):
            places = [ROOT / folder / word for folder in (".", "hf_maxmig")]
            assert any(place.is_file() for place in places), word
            files += 1
        elif chain := re.fullmatch(r"((?:\w+\.)+)(\w+)(?:\(.*\))?", word):
            module = import_module(f"hf_maxmig.{chain[1].rstrip('.')}")
            assert hasattr(module, chain[2]), word
            dotted += 1
        elif re.fullmatch(r"\w+", word):
            assert re.search(rf"^(?:def |class )?{word}\b", sources, re.M), word
            names += 1
    assert min(files, dotted, names) >= 5


@pytest.mark.parametrize("folder", ["hf_maxmig", "recipes"])
def test_places_that_sources_name_are_there(folder, project):
    """Docstrings and messages say what to type and where to look, and a moved file does not update them."""
    sources = [p for suffix in ("py", "md", "html") for p in (ROOT / folder).rglob(f"*.{suffix}")]
    assert len(sources) > 30
    for path in sorted(sources):
        text = text_of(path)
        for place in ROOTED.findall(text):
            assert [*ROOT.glob(place.rstrip("/"))], (path.name, place)
        for word in re.findall(r"`([\w./-]+\.(?:py|md|html))`", text):
            assert any(there.endswith(f"/{word}") for there in project), (path.name, word)


def test_design_has_a_line_for_every_room():
    """Nobody finds a package that its page does not name."""
    house = text_of(ROOT / "docs" / "design.md").split("| room |")[1].split("\n## ")[0]
    package = ROOT / "hf_maxmig"
    rooms = [path.name + "/" for path in package.iterdir() if [*path.glob("*.py")]]
    files = [path.name for path in package.glob("*.py") if path.name != "__init__.py"]
    assert len(rooms) >= 7
    for name in (*rooms, *files):
        assert f"`hf_maxmig/{name}`" in house, name
