"""The file of corrections: nothing is lost, and whatever the names are, it reads as votes."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from datasets import Dataset, concatenate_datasets
from filelock import FileLock

from hf_maxmig import add_annotations, read_annotations
from hf_maxmig.demo.corrections import COLUMNS, Corrections, checked_reviewer
from tests.judging.pages import HOSTILE

CLASSES = ["cat", "dog", "NA"]


@pytest.fixture
def corrections(tmp_path):
    return Corrections(tmp_path / "new" / "corrections.csv", CLASSES)


def read(corrections, **how):
    """Read the file as a user does who trains with it."""
    rows = read_annotations(corrections.path, **how).with_format(None)
    return [tuple(row.get(name) for name in COLUMNS) for row in rows]


def test_file_reads_as_votes_and_gold_labels(corrections):
    """A correction that `read_annotations` does not read is lost."""
    assert corrections.rows() == []
    assert corrections.vote("a", "zoe", "cat") == 1
    assert corrections.gold("b", "dog") == 2
    assert corrections.vote("b", "yan", "cat") == 3
    assert corrections.gold("c", "cat") == 4
    # The gold label stands beside the votes on the item, or in a row of its own.
    assert read(corrections) == [
        ("a", "zoe", "cat", None), ("b", "yan", "cat", "dog"), ("c", None, None, "cat"),
    ]  # fmt: skip
    assert corrections.of("b") == [("", "dog"), ("yan", "cat")]
    assert [path.name for path in corrections.path.parent.iterdir() if path.name[0] != "."] == ["corrections.csv"]  # fmt: skip


def test_corrections_join_the_items_beside_the_votes(corrections, tmp_path):
    """The way that `docs/demo.md` shows: an earlier file of votes has no gold labels."""
    (tmp_path / "votes.csv").write_text(
        "item,annotator,annotation\na,ann,cat\nb,ann,cat\nc,ann,dog\n"
    )
    corrections.vote("a", "zoe", "dog")
    corrections.gold("b", "dog")
    votes = [read_annotations(path) for path in (tmp_path / "votes.csv", corrections.path)]
    items = Dataset.from_dict({"id": ["a", "b", "c"]})
    joined = add_annotations(items, concatenate_datasets(votes), "id")
    assert joined["annotators"][:] == [[0, 1], [0], [0]]
    assert joined["annotations"][:] == [[0, 1], [0], [1]]
    assert joined["label"][:] == [None, 1, None]


def test_who_changes_their_mind_has_one_vote(corrections):
    """Two votes of one reviewer would count twice, and two gold labels of an item are refused by the reader."""
    for said in ("cat", "dog"):
        corrections.vote("a", "zoe", said)
        corrections.vote("a", "yan", said)
        assert corrections.gold("a", said) == 3
    assert sorted(corrections.of("a")) == [("", "dog"), ("yan", "dog"), ("zoe", "dog")]
    corrections.vote("b", "zoe", "cat")
    assert len(read(corrections)) == 3  # of three votes two are on the item with the gold label


def test_any_name_comes_back_as_it_was(corrections):
    """A comma, a quote or a line break in a name must not move a cell."""
    names = [
        *(name.encode("utf-8", "replace").decode().replace("\0", "") for name in HOSTILE),
        "=1+1", "a,b", 'c"d', "e\nf", " g ", "עברית", "é" * 300,
    ]  # fmt: skip
    for name in names:
        corrections.vote(name, "zoe", "cat")
    assert [row[0] for row in corrections.rows()] == names
    assert [item for item, *_ in read(corrections)] == names


def test_class_that_looks_like_a_marker_is_read_with_the_class_names(corrections):
    """`NA` is a class here; without the names of the classes a reader must take it for no answer."""
    corrections.vote("a", "zoe", "NA")
    corrections.vote("b", "zoe", "dog")
    votes = read_annotations(corrections.path, classes=CLASSES)
    items = Dataset.from_dict({"id": ["a", "b"]})
    joined = add_annotations(items, votes, "id", classes=CLASSES)
    assert joined["annotations"][:] == [[2], [1]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("  ", "a reviewer must have a name, got none: type yours."),
        ("NA", "got 'NA', which stands for no name"),
        ("x" * 101, "must have at most 100 letters, got 101."),
        ("a\u202eb", "must be one line of visible letters"),
        ("a\nb", "must be one line of visible letters"),
    ],
)
def test_reviewer_has_a_name(name, message, corrections):
    """The reader refuses a vote of nobody, and with it the whole file."""
    with pytest.raises(ValueError, match=re.escape(message)):
        corrections.vote("a", name, "cat")
    assert not corrections.path.exists()
    assert checked_reviewer(" <b>zoë</b> ") == "<b>zoë</b>"


def test_only_classes_of_the_model_are_saved(corrections):
    """Another class would be refused when the file is joined, long after the review."""
    with pytest.raises(ValueError, match="must name one of the classes, got 'emu'"):
        corrections.gold("a", "emu")


@pytest.mark.parametrize("content", ["picture,who\na,b\n", "", "item,annotator,annotation,gold\na,b\n", "\xff"])  # fmt: skip
def test_another_table_is_not_written_over(content, tmp_path):
    """Somebody may name the file of votes itself."""
    path = tmp_path / "votes.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=r"votes\.csv must "):
        Corrections(path, CLASSES)
    assert path.read_bytes() == content.encode("latin-1")


def test_people_who_write_at_once_lose_nothing(corrections):
    """Each change rewrites the file: without a lock, the slower of two would write over the other."""

    def write(rank):
        for number in range(20):
            own = Corrections(corrections.path, CLASSES)  # as in a process of its own
            own.vote(f"item {number}", f"reviewer {rank}", CLASSES[number % 2])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    rows = corrections.rows()
    assert len({row[:2] for row in rows}) == len(rows) == 80


def test_change_waits_for_that_of_another_process(corrections, monkeypatch):
    """A lock between threads alone would not help two who have opened the same file in two pages."""
    corrections.vote("a", "zoe", "cat")
    (lock,) = corrections.path.parent.glob(".*.lock")
    monkeypatch.setattr("hf_maxmig.demo.corrections._SECONDS", 0.1)
    with FileLock(lock), pytest.raises(OSError, match="got a lock that another process holds"):
        corrections.vote("a", "zoe", "dog")
    assert corrections.of("a") == [("zoe", "cat")]
    corrections.vote("a", "zoe", "dog")
    assert corrections.of("a") == [("zoe", "dog")]
