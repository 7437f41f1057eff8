"""Tests of `hf_maxmig.data.columns`: the schema, and joining votes and annotators to items."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    LargeList,
    List,
    Value,
    concatenate_datasets,
    load_from_disk,
)
from hypothesis import given, settings
from hypothesis.strategies import data, integers, lists, permutations

from hf_maxmig import MaxMIGTrainer
from hf_maxmig.data.collator import CrowdCollator, crowd_batches
from hf_maxmig.data.columns import (
    CROWD_COLUMNS,
    add_annotations,
    align_annotators,
    check_range,
    crowd_features,
    crowd_names,
    flat_lists,
    hash_annotators,
)
from hf_maxmig.model import annotator_names
from hf_maxmig.model.annotator_names import hashed_names
from tests.worlds import make_crowd

# N = 5 items, M = 4 annotators, C = 3 classes; item "e" has no votes, "a" has two by one annotator.
ITEMS = ["c", "a", "e", "b", "d"]
VOTES = [
    ("a", "dan", "dog"),
    ("b", "ann", "cat"),
    ("a", "bob", "owl"),
    ("d", "cid", "cat"),
    ("c", "bob", "dog"),
    ("a", "dan", "cat"),
    ("b", "dan", "owl"),
]
ANNOTATORS, CLASSES = ["ann", "bob", "cid", "dan"], ["cat", "dog", "owl"]


def table(votes: list[tuple[Any, Any, Any]] = VOTES) -> dict[str, list[Any]]:
    """Return the votes as a dict of lists."""
    item, annotator, annotation = (list(column) for column in zip(*votes, strict=True))
    return {"item": item, "annotator": annotator, "annotation": annotation}


def images(items: list[Any] = ITEMS) -> Dataset:
    """Return a data set of items with a feature x = 0, 10, 20, ..."""
    return Dataset.from_dict({"name": items, "x": [10.0 * i for i in range(len(items))]})


def pairs(dataset: Dataset, name: str = "name") -> dict[Any, list[tuple[str, str]]]:
    """Read a joined data set item by item and return its votes by name."""
    annotators, classes = crowd_names(dataset)
    assert annotators is not None
    assert classes is not None
    said = {}
    for row in dataset.with_format(None):
        assert len(row["annotators"]) == len(row["annotations"])
        who = [annotators[m] if m >= 0 else "?" for m in row["annotators"]]
        said[row[name]] = list(zip(who, [classes[c] for c in row["annotations"]], strict=True))
    return said


def by_item(items: list[Any], votes: list[tuple[Any, Any, Any]]) -> dict[Any, list[Any]]:
    """Group votes by item in a naive loop."""
    return {item: [(m, c) for i, m, c in votes if i == item] for item in items}


# The schema


def test_crowd_names_reads_what_crowd_features_wrote() -> None:
    """If one column's names were used for the other, annotators would be numbered as classes."""
    features = crowd_features(ANNOTATORS, CLASSES)
    dataset = Dataset.from_dict({"annotators": [[3]], "annotations": [[2]]}, features=features)
    assert crowd_names(dataset) == (ANNOTATORS, CLASSES)
    assert crowd_names(dataset.to_iterable_dataset()) == (ANNOTATORS, CLASSES)


def test_crowd_names_are_none_where_features_do_not_carry_them() -> None:
    """With invented names, a model and a data set that disagree would seem to match."""
    plain = Dataset.from_dict({"annotators": [[3]], "annotations": [[2]]})
    assert crowd_names(plain) == (None, None)
    assert crowd_names(images()) == (None, None)
    assert crowd_names([{"annotators": [3]}]) == (None, None)
    assert crowd_names(None) == (None, None)


def test_crowd_names_number_the_places_of_a_dense_column() -> None:
    """A dense matrix has no annotator names, and a fixed-length ragged pair is not a dense matrix."""
    dense = List(ClassLabel(names=CLASSES), length=4)
    dataset = Dataset.from_dict(
        {"annotations": [[0, -1, 2, 1]]}, features=Features(annotations=dense)
    )
    assert crowd_names(dataset) == (["0", "1", "2", "3"], CLASSES)
    both = Features(annotators=List(Value("int64"), length=4), annotations=dense)
    dataset = Dataset.from_dict(
        {"annotators": [[0, 1, 2, 3]], "annotations": [[0, 1, 2, 1]]}, features=both
    )
    assert crowd_names(dataset) == (None, CLASSES)


def test_crowd_names_reads_large_lists() -> None:
    """Data sets with more than two billion votes have another list type."""
    features = Features(annotators=LargeList(ClassLabel(names=ANNOTATORS)))
    assert crowd_names(Dataset.from_dict({"annotators": [[1]]}, features=features))[0] == ANNOTATORS


@pytest.mark.parametrize("way", ["disk", "parquet"])
def test_crowd_features_survive_a_round_trip(way: str, tmp_path: Path) -> None:
    """A column that comes back without names, or as floats, would train with other numbers."""
    joined = add_annotations(images(), table(), "name")
    if way == "disk":
        joined.save_to_disk(str(tmp_path / "set"))
        back = load_from_disk(str(tmp_path / "set"))
    else:
        joined.to_parquet(str(tmp_path / "set.parquet"))
        back = Dataset.from_parquet(str(tmp_path / "set.parquet"), cache_dir=str(tmp_path))
    assert back.features == joined.features
    assert back.data.schema.field("annotators").type == pa.list_(pa.int64())
    assert pairs(back) == by_item(ITEMS, VOTES)


# add_annotations


def test_add_annotations_joins_each_vote_to_its_item() -> None:
    """Votes given to a neighbouring item would still train."""
    joined = add_annotations(images(), table(), "name")
    assert joined.column_names == ["name", "x", "annotators", "annotations"]
    assert joined["x"][:] == images()["x"][:]
    assert joined.features["annotators"] == List(ClassLabel(names=ANNOTATORS))
    assert joined.features["annotations"] == List(ClassLabel(names=CLASSES))
    assert joined["annotators"][:] == [[1], [3, 1, 3], [], [0, 3], [2]]
    assert joined["annotations"][:] == [[1], [1, 2, 0], [], [0, 2], [0]]


def test_add_annotations_equals_a_naive_loop_on_many_votes() -> None:
    """An unstable sort, or lengths off by one, show only with many items."""
    rng = np.random.default_rng(0)
    items = [f"{i:03d}.jpg" for i in rng.permutation(211)]
    names = [f"w{m}" for m in range(37)]
    votes = [
        (items[rng.integers(190)], names[rng.integers(37)], CLASSES[rng.integers(3)])
        for _ in range(1009)
    ]
    joined = add_annotations(images(items), table(votes), "name")
    expected = by_item(items, votes)
    assert max(map(len, expected.values())) > 9
    assert any(not row for row in expected.values())
    assert pairs(joined) == expected


def in_chunks(votes: dict[str, list[Any]]) -> pa.Table:
    """Return an Arrow table of three chunks, one of them a slice."""
    whole = pa.table(votes)
    return pa.concat_tables([whole.slice(0, 2), whole.slice(2, 1), whole.slice(3)])


VIEWS = {
    "dict": lambda votes: votes,
    "arrays": lambda votes: {name: np.array(values) for name, values in votes.items()},
    "arrow": pa.table,
    "arrow_chunks": in_chunks,
    "pandas": pd.DataFrame,
    "pandas_rows_left_out": lambda votes: pd.DataFrame(
        {name: [values[0], *values] for name, values in votes.items()}
    ).iloc[1:],
    "pandas_categories": lambda votes: pd.DataFrame(votes).astype("category"),
    "pandas_other_columns": lambda votes: pd.DataFrame(votes).assign(seconds=1.5)[
        ["annotation", "seconds", "item", "annotator"]
    ],
    "dataset": Dataset.from_dict,
    "dataset_selected": lambda votes: Dataset.from_dict(
        {name: values[::-1] for name, values in votes.items()}
    ).select(range(len(votes["item"]) - 1, -1, -1)),
    "dataset_in_torch_format": lambda votes: Dataset.from_dict(votes).with_format("torch"),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ["text", "numbers"])
def test_add_annotations_takes_every_kind_of_table(view: str, kind: str) -> None:
    """A table read by its index, or by its category codes, would give labels of other items."""
    if kind == "text":
        items, votes = ITEMS, VOTES
    else:
        items = [ord(item) for item in ITEMS]
        votes = [(ord(i), ANNOTATORS.index(m) + 7, CLASSES.index(c) + 9) for i, m, c in VOTES]
    joined = add_annotations(images(items), VIEWS[view](table(votes)), "name")
    said = [(i, str(m), str(c)) for i, m, c in votes]
    assert pairs(joined) == by_item(items, said)
    if kind == "numbers":
        assert crowd_names(joined) == (["7", "8", "9", "10"], ["9", "10", "11"])


@pytest.mark.parametrize(
    ("given", "names", "codes"),
    [
        ([10, 2, -1, 33], ["-1", "2", "10", "33"], [2, 1, 0, 3]),
        (["10", "2", "-1", "33"], ["-1", "2", "10", "33"], [2, 1, 0, 3]),
        ([10.0, 2.0, 1.0, 33.0], ["1", "2", "10", "33"], [2, 1, 0, 3]),
        ([10.5, 2.0, 0.5, 33.0], ["0.5", "2", "10.5", "33"], [2, 1, 0, 3]),
        (["10", "2", "b", "B"], ["10", "2", "B", "b"], [0, 1, 3, 2]),
        (["10", "2", "nan", "33"], ["10", "2", "33", "nan"], [0, 1, 3, 2]),
        (["2", "02", "10", "1"], ["1", "02", "2", "10"], [2, 1, 3, 0]),
        ([True, False, True, True], ["false", "true"], [1, 0, 1, 1]),
    ],
)
def test_add_annotations_sorts_numbers_as_numbers(
    given: list[Any], names: list[str], codes: list[int]
) -> None:
    """Sorted as text, 10 comes before 2, which would shuffle a scale of ten grades."""
    votes = {"item": ITEMS[:4], "annotator": given, "annotation": given}
    joined = add_annotations(images(), votes, "name", missing=())  # here "nan" and -1 are names
    assert crowd_names(joined) == (names, names)
    assert joined["annotators"][:4] == joined["annotations"][:4] == [[code] for code in codes]


def test_add_annotations_keeps_long_annotator_names() -> None:
    """Ids that are shortened, or taken for numbers, would merge people."""
    ids = [
        "0e984725-c51c-4bf4-9960-e1c80e27aba0",
        "0e984725-c51c-4bf4-9960-e1c80e27aba1",
        "12345678901234567890",
        "12345678901234567891",
    ]
    joined = add_annotations(images(), table([("a", m, "cat") for m in ids]), "name")
    assert [m for m, _ in pairs(joined)["a"]] == ids
    digits = add_annotations(images(), table([("a", m, "cat") for m in ids[:1:-1]]), "name")
    assert crowd_names(digits)[0] == ids[2:]


@pytest.mark.parametrize(
    ("items", "voted"),
    [
        ([11, 2, 30], ["2", "30", "2"]),
        (["11", "2", "30"], [2, 30, 2]),
        (["11", "2", "30"], [2.0, 30.0, 2.0]),
        ([11, 2, 30], [2.0, 30.0, 2.0]),
    ],
)
def test_add_annotations_matches_numbers_with_text(items: list[Any], voted: list[Any]) -> None:
    """A CSV holds text where the data set has numbers: no vote would be joined, or a wrong one."""
    votes = {"item": voted, "annotator": ["u", "v", "w"], "annotation": ["cat", "owl", "dog"]}
    joined = add_annotations(images(items), votes, "name")
    assert list(pairs(joined).values()) == [[], [("u", "cat"), ("w", "dog")], [("v", "owl")]]


def test_add_annotations_refuses_text_that_is_no_number() -> None:
    """Without a clear message the user sees only that some cast failed."""
    with pytest.raises(ValueError, match=r"must name items as column 'name' does, by int64, got"):
        add_annotations(images([1, 2]), table(), "name")


def test_add_annotations_decodes_class_labels() -> None:
    """If a ClassLabel's number were taken for a name, names, order and absent classes would be lost."""
    classes = ["owl", "cat", "fox", "dog"]
    features = Features(
        item=Value("string"),
        annotator=ClassLabel(names=["dan", "cid", "eve", "bob", "ann"]),
        annotation=ClassLabel(names=classes),
    )
    votes = Dataset.from_dict(table(), features=features)
    assert votes["annotation"][0] == 3  # a number, not a name
    joined = add_annotations(images(), votes, "name")
    assert crowd_names(joined) == (ANNOTATORS, classes)
    assert pairs(joined) == by_item(ITEMS, VOTES)
    ordered = add_annotations(images(), votes, "name", classes=["dog", "cat", "owl"])
    assert crowd_names(ordered)[1] == ["dog", "cat", "owl"]
    assert pairs(ordered) == by_item(ITEMS, VOTES)


def test_add_annotations_does_not_take_annotators_for_classes() -> None:
    """The names in a ClassLabel of annotators are not those of the classes."""
    features = Features(
        item=Value("string"), annotator=ClassLabel(names=ANNOTATORS), annotation=Value("string")
    )
    joined = add_annotations(images(), Dataset.from_dict(table(), features=features), "name")
    assert crowd_names(joined) == (ANNOTATORS, CLASSES)
    assert pairs(joined) == by_item(ITEMS, VOTES)


def test_add_annotations_numbers_classes_as_asked() -> None:
    """If they were sorted instead, class 0 of the votes could be class 2 of the model."""
    joined = add_annotations(images(), table(), "name", classes=["owl", "fox", "dog", "cat"])
    assert joined["annotations"][:] == [[2], [2, 0, 3], [], [3, 0], [3]]
    numbers = {"item": ["a"], "annotator": ["ann"], "annotation": [1]}
    assert crowd_names(add_annotations(images(), numbers, "name", classes=[0, 1]))[1] == ["0", "1"]


def test_add_annotations_names_the_row_of_an_unknown_class() -> None:
    """Otherwise a misspelt class would become a new class."""
    votes = table([*VOTES, ("a", "bob", "dgo")])
    with pytest.raises(
        ValueError,
        match=r"row 7: annotation 'dgo' is not one of the 3 classes \(did you mean 'dog'",
    ):
        add_annotations(images(), votes, "name", classes=CLASSES)


def test_add_annotations_takes_a_selected_data_set() -> None:
    """Votes joined by row of the underlying table, not of the selection, would shift to other items."""
    chosen = images().select([4, 1, 3])
    votes = [vote for vote in VOTES if vote[0] in "dab"]
    joined = add_annotations(chosen, table(votes), "name")
    assert joined["x"][:] == [40.0, 10.0, 30.0]
    assert list(pairs(joined)) == ["d", "a", "b"]
    assert pairs(joined) == by_item(["d", "a", "b"], votes)


def test_add_annotations_takes_zero_rows() -> None:
    """Joining no votes must still add the columns, or the schemas of two splits would disagree."""
    none = images().select([])
    with pytest.raises(ValueError, match="7 of 7 votes refer to 4 items"):
        add_annotations(none, table(), "name")
    joined = add_annotations(none, table(), "name", max_unknown_share=1.0)
    assert len(joined) == 0
    assert joined.column_names == ["name", "x", "annotators", "annotations"]
    assert crowd_names(joined) == (ANNOTATORS, CLASSES)
    assert align_annotators(joined, ["bob"]).column_names == joined.column_names


def test_add_annotations_keeps_the_torch_format() -> None:
    """A lost format returns lists, and a format for the old columns hides the new ones."""
    joined = add_annotations(images().with_format("torch", dtype=torch.float64), table(), "name")
    row = joined[1]
    assert set(row) == {"name", "x", "annotators", "annotations"}
    assert row["x"].dtype == torch.float64
    assert torch.equal(row["annotators"], torch.tensor([3, 1, 3]))
    # Columns that are added later are shown too, as before.
    assert "y" in joined.map(lambda _: {"y": 1})[0]


def test_add_annotations_shows_its_columns_beside_chosen_ones() -> None:
    """A data set that shows only some columns must also show the new ones, and no others."""
    joined = add_annotations(images().with_format("numpy", columns=["x"]), table(), "name")
    assert set(joined[1]) == {"x", "annotators", "annotations"}
    rest = images().with_format("numpy", columns=["x"], output_all_columns=True)
    assert set(add_annotations(rest, table(), "name")[1]) == {
        "name",
        "x",
        "annotators",
        "annotations",
    }


def picky(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Transform a batch as recipes do: return only new columns, and fail on unknown ones."""
    assert set(batch) <= {"name", "x"}
    return {"double": [2 * x for x in batch["x"]]}


@pytest.mark.parametrize("columns", [None, ["x"], ["name", "x"]])
def test_add_annotations_keeps_a_transform(columns: list[str] | None) -> None:
    """A transform returns only what it makes, so columns of votes passed to it would silently be lost."""
    transformed = images().with_format("custom", columns=columns, transform=picky)
    joined = add_annotations(transformed, table(), "name")
    row = joined[1]
    assert row["double"] == 20.0
    assert row["annotators"] == [3, 1, 3]
    assert row["annotations"] == [1, 2, 0]
    chosen = add_annotations(transformed.select([3, 1]), table(VOTES[:3]), "name")
    assert [chosen[i]["double"] for i in range(2)] == [60.0, 20.0]
    assert [chosen[i]["annotators"] for i in range(2)] == [[0], [2, 1]]
    batch = joined.__getitems__([1, 2])
    assert [example["annotators"] for example in batch] == [[3, 1, 3], []]
    renumbered = align_annotators(joined, ["dan", "bob"])
    assert renumbered[1]["double"] == 20.0
    assert renumbered[1]["annotators"] == [0, 1, 0]


def test_add_annotations_leaves_out_unknown_items_only_if_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If a wrong column leaves out most votes, the result would look like a small crowd."""
    votes = table([*VOTES, ("z", "zoe", "dog"), ("y", "ann", "fox"), ("z", "ann", "cat")])
    text = r"3 of 10 votes refer to 2 items that column 'name' does not have, such as 'z', 'y'"
    with pytest.raises(ValueError, match=text):
        add_annotations(images(), votes, "name")
    with pytest.raises(ValueError, match=r"max_unknown_share` = 0\.29"):
        add_annotations(images(), votes, "name", max_unknown_share=0.29)
    with caplog.at_level(logging.WARNING):
        joined = add_annotations(images(), votes, "name", max_unknown_share=0.3)
    assert "3 of 10 votes" in caplog.text
    assert pairs(joined) == by_item(ITEMS, VOTES)
    # The names are those of the whole table, so that splits joined to it agree.
    assert crowd_names(joined) == ([*ANNOTATORS, "zoe"], ["cat", "dog", "fox", "owl"])


@pytest.mark.parametrize("name", ["item", "annotator", "annotation"])
@pytest.mark.parametrize("missing", [None, float("nan")])
def test_add_annotations_refuses_missing_values(name: str, missing: float | None) -> None:
    """None would become an annotator of that name, NaN a class."""
    votes: dict[str, Any] = {"item": [7, 8, 9], "annotator": [1, 2, 3], "annotation": [0, 1, 0]}
    votes[name][2] = missing
    assert len(add_annotations(images([7, 8, 9]), table([(7, 1, 0)]), "name")) == 3
    for view in (pa.table, pd.DataFrame, Dataset.from_dict, VIEWS["arrays"]):
        if view is VIEWS["arrays"] and missing is None:
            continue
        with pytest.raises(
            ValueError, match=rf"must not have missing values, got \w+ for '{name}' at row 2"
        ):
            add_annotations(images([7, 8, 9]), view(votes), "name")


@pytest.mark.parametrize("values", [["u", None], [1.0, float("nan")]], ids=["none", "nan"])
def test_add_annotations_refuses_a_missing_category(values: list[Any]) -> None:
    """An Arrow dictionary may hold None or NaN among its values without containing a null."""
    votes = table() | {"annotator": pa.DictionaryArray.from_arrays([0, 1, 0, 0, 0, 0, 0], values)}
    assert votes["annotator"].null_count == 0
    with pytest.raises(ValueError, match=r"got (None|nan) for 'annotator' at row 1"):
        add_annotations(images(), pa.table(votes), "name")


def test_add_annotations_refuses_minus_one_of_a_class_label() -> None:
    """ClassLabel accepts -1, which counts from the end: the last class."""
    features = Features(
        item=Value("string"), annotator=Value("string"), annotation=ClassLabel(names=CLASSES)
    )
    votes = Dataset.from_dict(
        {"item": ["a", "b"], "annotator": ["u", "v"], "annotation": [1, -1]}, features=features
    )
    with pytest.raises(ValueError, match="missing values, got None for 'annotation' at row 1"):
        add_annotations(images(), votes, "name")


@pytest.mark.parametrize("missing", ["item", "annotator", "annotation"])
def test_add_annotations_names_an_absent_column(missing: str) -> None:
    """The user must learn which of their columns to rename."""
    votes = table()
    votes[f"my_{missing}"] = votes.pop(missing)
    with pytest.raises(KeyError, match=f"'{missing}' is missing; rename yours"):
        add_annotations(images(), votes, "name")


def test_add_annotations_checks_the_data_set() -> None:
    """A wrong item column, or a second join, must not give half a data set."""
    with pytest.raises(KeyError, match="one of name, x, got 'file'"):
        add_annotations(images(), table(), "file")
    with pytest.raises(ValueError, match="'name' must identify the items, got 'b' more than once"):
        add_annotations(images(["a", "b", "c", "d", "b"]), table(), "name")
    joined = add_annotations(images(), table(), "name")
    with pytest.raises(ValueError, match="must not have a column 'annotators' yet"):
        add_annotations(joined, table(), "name")
    with pytest.raises(TypeError, match="got DatasetDict: pass one of its splits, train, test"):
        add_annotations(DatasetDict(train=images(), test=images()), table(), "name")
    with pytest.raises(TypeError, match="got IterableDataset: pass one"):
        add_annotations(images().to_iterable_dataset(), table(), "name")
    with pytest.raises(ValueError, match="must hold at least one vote, got none"):
        add_annotations(images(), {"item": [], "annotator": [], "annotation": []}, "name")


@pytest.mark.parametrize("wrong", ["data set", "votes"])
def test_add_annotations_refuses_items_that_are_no_names(wrong: str) -> None:
    """Lists and structures have no name; an image column is the most likely mistake."""
    votes, dataset = table(), Dataset.from_dict({"name": [["a"], ["b"]]})
    if wrong == "votes":
        votes, dataset = votes | {"item": [[item] for item in votes["item"]]}, images()
    with pytest.raises(
        TypeError, match=r"column '(name|item)'.* must hold text or numbers, got (list|\[)"
    ):
        add_annotations(dataset, votes, "name")


def test_add_annotations_needs_sixteen_bytes_a_vote() -> None:
    """Wider columns would double the memory of a large crowd: two int64, and an offset per item."""
    votes = {
        "item": [ITEMS[i % 5] for i in range(1000)],
        "annotator": list(range(1000)),
        "annotation": [i % 7 for i in range(1000)],
    }
    data = add_annotations(images(), votes, "name").data.table.select(["annotators", "annotations"])
    assert 16_000 <= data.nbytes <= 16_000 + 2 * 4 * (5 + 1)


# align_annotators


def crowd_of(rows: list[list[int]]) -> Dataset:
    """Return a data set whose annotators are `rows`, with x = row and class = annotator mod 3."""
    columns = {
        "x": list(range(len(rows))),
        "annotators": rows,
        "annotations": [[max(m, 0) % 3 for m in row] for row in rows],
        "y": [f"{i}" for i in range(len(rows))],
    }
    features = Features(x=Value("int64"), **crowd_features(ANNOTATORS, CLASSES), y=Value("string"))
    return Dataset.from_dict(columns, features=features)


ROWS = [[3, 0], [], [1], [2, -1, 1], [0, 0, 3, 2], []]
MODEL = ["eve", "dan", "ann", "fay", "bob"]  # does not know cid
EXPECTED = [[1, 2], [], [4], [-1, -1, 4], [2, 2, 1, -1], []]


def test_align_annotators_numbers_as_the_model_does() -> None:
    """Annotator 1 of the data set, taken for annotator 1 of the model, gets another one's matrix."""
    dataset = crowd_of(ROWS)
    aligned = align_annotators(dataset, MODEL)
    assert aligned["annotators"][:] == EXPECTED
    assert crowd_names(aligned) == (MODEL, CLASSES)
    assert aligned.column_names == dataset.column_names
    assert aligned.features["annotations"] == dataset.features["annotations"]
    for name in ("x", "annotations", "y"):
        assert aligned[name][:] == dataset[name][:]
    assert dataset["annotators"][:] == ROWS  # unchanged
    assert align_annotators(dataset, ANNOTATORS)["annotators"][:] == ROWS


CUTS = {
    "select": (lambda d: d.select([4, 0, 3]), [4, 0, 3]),
    "slice": (lambda d: d.select(range(2, 5)), [2, 3, 4]),
    "filter": (lambda d: d.filter(lambda row: row["x"] % 3 == 0), [0, 3]),
    "skip": (lambda d: d.skip(3), [3, 4, 5]),
    "empty_rows": (lambda d: d.select([1, 5]), [1, 5]),
    "none": (lambda d: d.select([]), []),
    "chunks": (lambda d: concatenate_datasets([d.skip(3), d.take(1), d]), [3, 4, 5, 0, *range(6)]),
    "chunks_selected": (
        lambda d: concatenate_datasets([d.skip(2), d.take(3)]).select([6, 1, 4, 3]),
        [2, 3, 0, 5],
    ),
}  # fmt: skip


@pytest.mark.parametrize("cut", CUTS)
def test_align_annotators_takes_parts_of_a_data_set(cut: str) -> None:
    """The lists of a slice start in the middle of a buffer. Read from its start, all rows shift."""
    take, kept = CUTS[cut]
    aligned = align_annotators(take(crowd_of(ROWS)), MODEL)
    assert aligned["x"][:] == kept
    assert aligned["annotators"][:] == [EXPECTED[i] for i in kept]
    assert aligned["annotations"][:] == [crowd_of(ROWS)["annotations"][i] for i in kept]
    assert crowd_names(aligned) == (MODEL, CLASSES)


def test_align_annotators_keeps_the_format() -> None:
    """A lost format, or hidden columns of votes, would only show in training."""
    torch_rows = align_annotators(crowd_of(ROWS).with_format("torch"), MODEL)
    assert torch.equal(torch_rows[4]["annotators"], torch.tensor(EXPECTED[4]))
    some = align_annotators(crowd_of(ROWS).with_format("numpy", columns=["x", "annotators"]), MODEL)
    assert set(some[0]) == {"x", "annotators"}


def test_align_annotators_gives_a_transform_what_it_had() -> None:
    """A transform that uses columns of votes must see them renumbered."""

    def transform(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        assert set(batch) == {"x", "annotators", "annotations", "y"}
        return {"first": [row[:1] for row in batch["annotators"]]}

    aligned = align_annotators(crowd_of(ROWS).with_transform(transform), MODEL)
    assert [aligned[i] for i in (0, 1)] == [{"first": [1]}, {"first": []}]


def test_align_annotators_needs_names() -> None:
    """Numbers without names cannot be matched, and a dense matrix has no names."""
    plain = Dataset.from_dict({"annotators": [[3]], "annotations": [[2]]})
    with pytest.raises(ValueError, match=r"whose features name them, got List\(Value\('int64'\)\)"):
        align_annotators(plain, MODEL)
    with pytest.raises(ValueError, match="got no such column"):
        align_annotators(plain.remove_columns("annotators"), MODEL)
    with pytest.raises(TypeError, match="got DatasetDict"):
        align_annotators(DatasetDict(train=plain), MODEL)


@pytest.mark.parametrize("wrong", [4, -2])
def test_align_annotators_refuses_numbers_out_of_range(wrong: int) -> None:
    """A negative index would silently select some other annotator."""
    rows = crowd_of([[0], [1, 2], [3]]).with_format("arrow")[:]
    lists = pa.array([[0], [1, wrong], [3]], pa.list_(pa.int64()))
    dataset = Dataset(rows.set_column(rows.column_names.index("annotators"), "annotators", lists))
    dataset = dataset.cast(crowd_of([[0]]).features)
    with pytest.raises(
        ValueError,
        match=rf"`annotators` must lie in 0..3 or be -1 for padding, got {wrong} at item 1.",
    ):
        align_annotators(dataset, MODEL)


def test_align_annotators_logs_whom_the_model_does_not_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A crowd whose annotators all became unknown would look like one without labels."""
    with caplog.at_level(logging.WARNING):
        align_annotators(crowd_of(ROWS), ANNOTATORS)
        assert not caplog.text
        align_annotators(crowd_of(ROWS), MODEL)
    assert "1 of 4 annotators are not among the model's 5, such as 'cid'" in caplog.text


# Arrow lists


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int16()), pa.large_list(pa.int64()), pa.list_(pa.uint8(), 2)], ids=str
)
def test_flat_lists_takes_slices_and_chunks(kind: pa.DataType) -> None:
    """Values of rows before a slice would be included."""
    rows = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]
    whole = pa.array(rows, kind)
    column = pa.chunked_array([whole.slice(3), whole.slice(1, 2), whole.slice(0, 0)])
    values, lengths = flat_lists("annotations", column)
    assert values.tolist() == [7, 8, 9, 10, 3, 4, 5, 6]
    assert values.dtype == np.int64
    assert lengths.tolist() == [2, 2, 2, 2]


def test_flat_lists_takes_empty_ones() -> None:
    """A column without a single label has no type."""
    for kind in (pa.null(), pa.int64()):
        values, lengths = flat_lists(
            "annotations", pa.chunked_array([[[], [], []]], pa.list_(kind))
        )
        assert (values.tolist(), lengths.tolist()) == ([], [0, 0, 0])
    values, lengths = flat_lists("annotations", pa.chunked_array([], pa.list_(pa.int64())))
    assert (values.tolist(), lengths.tolist()) == ([], [])


def test_flat_lists_names_the_item_of_a_none() -> None:
    """Arrow stores no value for None, so all later rows would shift by one."""
    rows = [[1], [], [2, None, 3], [4]]
    column = pa.chunked_array([pa.array([[0], *rows], pa.list_(pa.int64())).slice(1)])
    with pytest.raises(ValueError, match="`annotators` must hold integers, got None at item 12"):
        flat_lists("annotators", column, items=range(10, 1000))
    with pytest.raises(ValueError, match="`annotators` must be a list, got None at item 11"):
        flat_lists("annotators", pa.chunked_array([[[1], None, [2]]]), items=range(10, 1000))


@pytest.mark.parametrize(
    "rows", [[[0.0, 1.0]], [["cat"]], [[True]], [[[0, 1]]], [3], ["cat"]], ids=str
)
def test_flat_lists_refuses_what_are_no_integers(rows: list[Any]) -> None:
    """Floats, booleans and names would silently be cast."""
    with pytest.raises(
        ValueError, match="`annotations` must be lists of integers, got a column of"
    ):
        flat_lists("annotations", pa.chunked_array([rows]))


@pytest.mark.parametrize(("wrong", "number", "ok"), [(8, 8, 7), (-2, 8, -1)])
def test_check_range_names_the_item(wrong: int, number: int, ok: int) -> None:
    """The item's number must count empty lists, and lists before the chunk, correctly."""
    lengths = np.array([2, 0, 1, 0, 3])
    values = np.array([0, 7, 1, -1, ok, 2])
    check_range("annotations", values, lengths, number)
    values[4] = wrong
    with pytest.raises(
        ValueError,
        match=rf"^`annotations` must lie in 0..7 or be -1 for padding, got {wrong} at item 104\.$",
    ):
        check_range("annotations", values, lengths, number, items=range(100, 1000))


# Gold labels in the table of votes


def gold_table(gold: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the votes with the gold label of each item beside them."""
    votes = table()
    return {**votes, "gold": [gold.get(item) for item in votes["item"]]}


def test_add_annotations_takes_gold_labels_to_their_items() -> None:
    """A gold label at the wrong item would make every accuracy wrong."""
    votes = gold_table({"a": "owl", "b": "cat"})
    joined = add_annotations(Dataset.from_dict({"name": ITEMS}), votes, item_column="name")
    assert joined.features["label"] == ClassLabel(names=CLASSES)
    assert joined["label"][:] == [None, 2, None, 0, None]
    assert (
        joined.remove_columns("label")[:]
        == add_annotations(Dataset.from_dict({"name": ITEMS}), table(), item_column="name")[:]
    )


def test_add_annotations_takes_gold_labels_of_items_nobody_labelled() -> None:
    """Such a row is no vote and adds no annotator, but its class counts as a class."""
    votes = gold_table({})
    for name, value in {"item": "e", "annotator": None, "annotation": None, "gold": "yak"}.items():
        votes[name].append(value)
    joined = add_annotations(Dataset.from_dict({"name": ITEMS}), votes, item_column="name")
    assert joined["label"][2] == 3
    assert joined["annotators"][2] == joined["annotations"][2] == []
    assert crowd_names(joined) == (ANNOTATORS, [*CLASSES, "yak"])


@pytest.mark.parametrize("kind", ["dict", "pandas", "dataset", "class_label"])
def test_add_annotations_takes_gold_from_every_kind_of_table(kind: str) -> None:
    """None arrives as NaN from pandas and as -1 from a ClassLabel."""
    votes: Any = gold_table({"a": "owl", "b": "cat"})
    if kind == "pandas":
        votes = pd.DataFrame(votes)
    elif kind == "dataset":
        votes = Dataset.from_dict(votes)
    elif kind == "class_label":
        codes = {name: c for c, name in enumerate(CLASSES)}
        votes["gold"] = [codes.get(name, -1) for name in votes["gold"]]
        features = Features(
            item=Value("string"), annotator=Value("string"), annotation=Value("string"),
            gold=ClassLabel(names=CLASSES),
        )  # fmt: skip
        votes = Dataset.from_dict(votes, features=features)
    joined = add_annotations(Dataset.from_dict({"name": ITEMS}), votes, item_column="name")
    assert joined["label"][:] == [None, 2, None, 0, None]


def test_add_annotations_takes_numbers_for_gold() -> None:
    """Numbers beside NaN are floats, so 2.0 means class 2."""
    votes = {"item": ["a", "b"], "annotator": [1, 1], "annotation": [2, 10], "gold": [2.0, np.nan]}
    joined = add_annotations(Dataset.from_dict({"name": ["a", "b"]}), votes, item_column="name")
    assert joined.features["label"].names == ["2", "10"]
    assert joined["label"][:] == [0, None]


@pytest.mark.parametrize("column", ["label", "labels"])
def test_add_annotations_leaves_gold_labels_that_are_there(column: str) -> None:
    """The user's own gold labels must neither be overwritten nor duplicated."""
    items = Dataset.from_dict({"name": ITEMS, column: [0, 1, 2, 0, 1]})
    joined = add_annotations(items, gold_table({"a": "owl"}), item_column="name")
    assert joined[column][:] == [0, 1, 2, 0, 1]
    assert joined.column_names == ["name", column, "annotators", "annotations"]


def test_add_annotations_refuses_two_gold_labels_of_an_item() -> None:
    """Otherwise the later one would silently win."""
    votes = gold_table({"a": "owl"})
    votes["gold"][2] = "cat"
    with pytest.raises(
        ValueError,
        match=r"one gold label per item, got '\w+' at row \d and '\w+' elsewhere for item 'a'",
    ):
        add_annotations(Dataset.from_dict({"name": ITEMS}), votes, item_column="name")


def test_add_annotations_names_the_row_of_an_unknown_gold_label() -> None:
    """Otherwise an item with a misspelt gold label would be left without one."""
    with pytest.raises(ValueError, match=r"row 0: gold label 'dgo' is not .* mean 'dog'"):
        add_annotations(
            Dataset.from_dict({"name": ITEMS}),
            gold_table({"a": "dgo"}),
            item_column="name",
            classes=CLASSES,
        )


@pytest.mark.parametrize("name", ["annotator", "annotation", "item"])
def test_add_annotations_refuses_half_a_vote_beside_gold(name: str) -> None:
    """Only a row without both annotator and annotation is a gold label alone; half a vote is a mistake."""
    votes = gold_table({"b": "cat"})
    votes[name][1] = None
    with pytest.raises(ValueError, match=f"got None for {name!r} at row 1"):
        add_annotations(Dataset.from_dict({"name": ITEMS}), votes, item_column="name")


def test_add_annotations_refuses_gold_without_any_vote() -> None:
    """Without a vote there is no crowd to learn from."""
    votes = {"item": ["a"], "annotator": [None], "annotation": [None], "gold": ["cat"]}
    with pytest.raises(ValueError, match="at least one vote, got none in 1 rows"):
        add_annotations(Dataset.from_dict({"name": ITEMS}), votes, item_column="name")


SALT = "a salt for the tests of names"


def by_name(dataset):
    """Return the votes on each item by name, whatever the numbers of the annotators."""
    (names, classes) = crowd_names(dataset)
    return [
        sorted(
            (names[m] if m >= 0 else "", classes[r] if r >= 0 else "")
            for m, r in zip(*pair, strict=True)
        )
        for pair in zip(dataset["annotators"][:], dataset["annotations"][:], strict=True)
    ]


def test_hashed_names_say_nothing_and_votes_stay():
    """Someone who finds the data on the Hub must not learn who labelled badly."""
    dataset = make_crowd()
    shared = hash_annotators(dataset, SALT)
    own, names = crowd_names(dataset)[0], crowd_names(shared)[0]
    assert len(set(names)) == len(own)
    assert not set(names) & set(own)
    hidden = dict(zip(own, hashed_names(own, SALT), strict=True))
    assert by_name(shared) == [
        sorted((hidden.get(who, ""), said) for who, said in item) for item in by_name(dataset)
    ]
    assert crowd_names(hash_annotators(dataset, SALT[::-1]))[0] != names
    rest = [name for name in dataset.column_names if name not in CROWD_COLUMNS]
    assert shared.select_columns(rest)[:] == dataset.select_columns(rest)[:]


@settings(max_examples=30, deadline=None)
@given(data())
def test_hashed_data_do_not_depend_on_the_order_of_the_names(data):
    """Names are mostly sorted, so the position of a hash or a vote would reveal whose it is."""
    crowd = data.draw(
        lists(lists(integers(-1, 6), max_size=5, unique=True), min_size=1, max_size=5)
    )
    said = [data.draw(lists(integers(-1, 2), min_size=len(k), max_size=len(k))) for k in crowd]
    names = [f"worker {m}" for m in range(7)]
    columns = {"annotators": crowd, "annotations": said}
    dataset = Dataset.from_dict(columns, features=crowd_features(names, ["a", "b", "c"]))
    turned = align_annotators(dataset, data.draw(permutations(names)))
    order = [data.draw(permutations(range(len(k)))) for k in crowd]
    turned = Dataset.from_dict(
        {
            name: [[values[i] for i in places] for values, places in zip(rows, order, strict=True)]
            for name, rows in turned.select_columns(list(CROWD_COLUMNS))[:].items()
        },
        features=turned.features,
    )
    shared, other = hash_annotators(dataset, SALT), hash_annotators(turned, SALT)
    assert shared.features == other.features
    assert crowd_names(shared)[0] == sorted(hashed_names(names, SALT))
    known = {m for item in crowd for m in item if m >= 0}
    assert {m for item in shared["annotators"][:] for m in item if m >= 0} == {
        crowd_names(shared)[0].index(hashed_names([names[m]], SALT)[0]) for m in known
    }
    for item in shared["annotators"][:]:
        assert item == sorted(item, key=lambda m: m if m >= 0 else len(names))
    assert by_name(shared) == by_name(other)


def test_file_of_hashed_data_holds_no_name(tmp_path):
    """A table that was joined from files may still contain a column that it no longer shows."""
    names = [f"worker-{m}-of-nine" for m in range(9)]
    columns = {"annotators": [[3, 4], [8]], "annotations": [[0, 1], [1]], "name": ["a", "b"]}
    features = Features({**crowd_features(names, ["cat", "dog"]), "name": Value("string")})
    Dataset.from_dict(columns, features=features).save_to_disk(tmp_path / "plain")
    shared = hash_annotators(load_from_disk(tmp_path / "plain").select([1, 0]), SALT)
    assert shared["name"][:] == ["b", "a"]
    shared.save_to_disk(tmp_path / "shared" / "disk")
    shared.to_parquet(tmp_path / "shared" / "a.parquet")
    shared.to_json(tmp_path / "shared" / "a.json")
    files = [path for path in (tmp_path / "shared").rglob("*") if path.is_file()]
    assert len(files) > 4
    assert not [path for path in files if b"-of-nine" in path.read_bytes()]
    assert [path for path in (tmp_path / "plain").iterdir() if b"-of-nine" in path.read_bytes()]


def test_what_is_told_of_each_vote_goes_with_it(caplog):
    """Seconds left in the old order would belong to other votes, and reveal that order."""
    columns = {
        "annotators": [[0, 1, 2], [2, 1]], "annotations": [[0, 1, 0], [1, 1]],
        "seconds": [[0.5, 1.5, 2.5], [2.5, 1.5]], "by": ["ann", "nobody"],
    }  # fmt: skip
    features = Features(
        {
            **crowd_features(["ann", "bob", "cyd"], ["cat", "dog"]),
            "seconds": List(Value("float64")),
            "by": Value("string"),
        }
    )
    with caplog.at_level("WARNING"):
        shared = hash_annotators(Dataset.from_dict(columns, features=features), SALT)
    assert "column `by` also holds names of annotators" in caplog.text
    order = np.argsort(hashed_names(["ann", "bob", "cyd"], SALT)).tolist()
    for voters, seconds in zip(shared["annotators"][:], shared["seconds"][:], strict=True):
        assert [order[m] + 0.5 for m in voters] == seconds


def test_names_that_no_hash_tells_apart_are_refused(monkeypatch):
    """Two annotators would become one."""
    monkeypatch.setattr(annotator_names, "_HASH", 1)
    names = [f"worker {m}" for m in range(17)]
    columns = {"annotators": [[0]], "annotations": [[0]]}
    dataset = Dataset.from_dict(columns, features=crowd_features(names, ["cat", "dog"]))
    with pytest.raises(ValueError, match="must be unique names, and so must be their hashes, got"):
        hash_annotators(dataset, SALT)


def test_name_that_looks_like_a_hash_is_hashed_as_any_other():
    """If it were taken for a hash, it would be uploaded in plain text."""
    (looks,) = hashed_names(["ann"], SALT)
    columns = {"annotators": [[0, 1]], "annotations": [[0, 1]]}
    dataset = Dataset.from_dict(columns, features=crowd_features(["ann", looks], ["cat", "dog"]))
    shared = hash_annotators(dataset, SALT)
    assert crowd_names(shared)[0] == sorted(hashed_names(["ann", looks], SALT))
    assert by_name(shared)[0] == sorted(
        zip(hashed_names(["ann", looks], SALT), ["cat", "dog"], strict=True)
    )


def test_model_and_data_with_hashed_names_go_together(make_model, make_args):
    """If only one of them were hashed, neither would recognise the other's annotators."""
    dataset, model = make_crowd(), make_model()
    shared = hash_annotators(dataset, SALT)
    with pytest.raises(ValueError, match="annotators must be those of the model"):
        MaxMIGTrainer(model=model, args=make_args(), train_dataset=shared)
    before = model.aggregator.table.clone()
    model.aggregator.table.data.copy_(torch.randn_like(before))
    names = model.config.annotators
    log_g = said_of(model, dataset)
    model.hash_annotators(SALT)
    MaxMIGTrainer(model=model, args=make_args(), train_dataset=shared)
    torch.testing.assert_close(said_of(model, shared), log_g)
    assert model.config.annotators == sorted(hashed_names(names, SALT))


def said_of(model, dataset):
    checker = CrowdCollator(model.config.num_annotators, model.config.num_labels)
    with torch.no_grad():
        return [
            model.aggregator(model.prior(), *votes) for votes in crowd_batches(dataset, checker)
        ]


def test_salt_that_can_be_guessed_is_refused(make_model):
    """With a salt of four characters, a dictionary of names recovers all of them within a second."""
    for hide in (
        lambda: hash_annotators(make_crowd(), "salt"),
        lambda: make_model().hash_annotators(""),
    ):
        with pytest.raises(ValueError, match="`salt` must have at least 16 characters, got"):
            hide()
