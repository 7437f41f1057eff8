"""Hostile tables of votes in every container: an error of ours, or every untouched vote.

One place of a small table is twisted: dropped, doubled, nested, or replaced by something strange. The
result has as many votes as the table has rows, and only the vote of the touched row may differ.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetInfo, Features, List

from hf_maxmig.data.columns import (
    add_annotations,
    align_annotators,
    crowd_features,
    crowd_names,
    hash_annotators,
)
from hf_maxmig.data.describe import describe
from hf_maxmig.data.readers.read_annotations import read_annotations
from tests.attacks.mutations import SEED, check_is_said, twisted

ROLES = ["item", "annotator", "annotation"]
ITEMS = ["a", "b", "c"]
VOTES = [("a", "ann", "cat"), ("a", "bob", "dog"), ("b", "ann", "cat"), ("b", "bob", "cat"), ("c", "ann", "dog"), ("c", "bob", "dog")]  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """Keep thousands of log lines off the screen."""
    logger = logging.getLogger("hf_maxmig")
    before, logger.disabled = logger.disabled, True
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
    logger.disabled = before


def columns(records: Any) -> dict[str, list[Any]]:
    """Turn records into columns; leave anything else as it is."""
    if not all(isinstance(record, dict) for record in records):
        raise TypeError
    names = list(dict.fromkeys(key for record in records for key in record))
    return {name: [record.get(name) for record in records] for name in names}


CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "records": lambda records: records,
    "columns": columns,
    "arrays": lambda records: {name: np.array(values) for name, values in columns(records).items()},
    "frame": pd.DataFrame,
    "objects": lambda records: pd.DataFrame(records).astype(object),
    "categories": lambda records: pd.DataFrame(records).astype("category"),
    "arrow": lambda records: pa.table(columns(records)),
    "dataset": lambda records: Dataset(pa.table(columns(records))),
}


def contained(kind: str, records: Any) -> Any:
    """Put records into a container; return None where it does not accept them."""
    try:
        return CONTAINERS[kind](records)
    except Exception:
        return None


def by_reader(votes: Any) -> list[tuple[str, ...]]:
    table = read_annotations(
        votes, "long", item="item", annotator="annotator", annotation="annotation"
    ).with_format(None)[:]
    rows = zip(*(table[role] for role in ROLES), strict=True)
    return [tuple(map(str, row)) for row in rows]


def by_join(votes: Any) -> list[tuple[str, ...]]:
    joined = add_annotations(
        Dataset.from_dict({"name": ITEMS}), votes, "name", max_unknown_share=0.5
    )
    names, classes = crowd_names(joined)
    assert names is not None
    assert classes is not None
    return [
        (row["name"], names[m], classes[c])
        for row in joined
        for m, c in zip(row["annotators"], row["annotations"], strict=True)
    ]


@pytest.mark.parametrize(("door", "number"), [(by_reader, 160), (by_join, 60)])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_hostile_votes_are_refused_or_the_others_stay(
    door: Callable[[Any], list[tuple[str, ...]]], number: int, kind: str
) -> None:
    """One strange cell may cost an error or its own vote, but no other vote."""
    whole = [dict(zip(ROLES, vote, strict=True)) for vote in VOTES]
    assert Counter(door(contained(kind, whole))) == Counter(VOTES)
    rng = random.Random(f"{SEED} {kind} {door.__name__}")
    tried = read = 0
    while tried < number:
        records = twisted(whole, rng)
        votes = contained(kind, records)
        if votes is None:
            records = twisted([whole[0]], rng) + whole[1:]
            votes = contained(kind, records)
        tried += 1
        if votes is None:
            continue
        try:
            said = Counter(door(votes))
        except Exception as error:
            check_is_said(error, f"{kind}: {records!a:.600}")
            continue
        read += 1
        other = [r for r in records if door is by_join and r.get("item") not in ITEMS]
        if door is by_reader:  # which counts blank rows in its log line
            other = [r for r in records if not isinstance(r, dict) or not r.keys() & set(ROLES)]
        # Compared outside the assert: pytest takes minutes to diff texts of 100,000 letters.
        fine = said.total() == len(records) - len(other)
        fine = fine and (Counter(VOTES) - said).total() <= 1
        fine = fine and (said - Counter(VOTES)).total() <= 1
        assert fine, f"{kind}: {records!a:.600} was read as {said!a:.600}"
    assert read > 0


STRANGE: list[Any] = [
    None, True, -1, 10**30, 0.5, float("nan"), float("inf"), "", " ", "\ud800", b"x", 1j, object(),
    [], {}, (), [[]], [None], ["a", "a"], ["a", 1], [""], {"a": 1}, np.array([1, 2]), np.array(3),
    pd.NaT, pd.NA, pd.Timestamp("2026-01-01"), "a" * 100_000, range(3), iter("ab"), Dataset, int,
]  # fmt: skip


def crowd(**columns: Any) -> Dataset:
    return Dataset.from_dict(
        {"annotators": [[0], [1]], "annotations": [[0], [1]]} | columns,
        features=crowd_features(["m", "n"], ["x", "y"]),
    )


DOORS: dict[str, Callable[[Any], Any]] = {
    "read_annotations": read_annotations,
    "format": lambda one: read_annotations({"item": ["a"], "annotator": ["m"], "annotation": ["x"]}, one),
    "item": lambda one: read_annotations({"item": ["a"], "annotator": ["m"], "annotation": ["x"]}, item=one),
    "annotator": lambda one: read_annotations({"item": ["a"], "annotator": ["m"], "annotation": ["x"]}, annotator=one),
    "missing": lambda one: read_annotations({"item": ["a"], "annotator": ["m"], "annotation": ["x"]}, missing=one),
    "classes": lambda one: read_annotations({"item": ["a"], "annotator": ["m"], "annotation": ["x"]}, classes=one),
    "votes": lambda one: add_annotations(Dataset.from_dict({"name": ITEMS}), one, "name"),
    "dataset": lambda one: add_annotations(one, {}, "name"),
    "item_column": lambda one: add_annotations(Dataset.from_dict({"name": ITEMS}), {"item": ["a"], "annotator": ["m"], "annotation": ["x"]}, one),
    "join classes": lambda one: add_annotations(Dataset.from_dict({"name": ITEMS}), {"item": ["a"], "annotator": ["m"], "annotation": ["x"]}, "name", classes=one),
    "max_unknown_share": lambda one: add_annotations(Dataset.from_dict({"name": ITEMS}), {"item": ["a"], "annotator": ["m"], "annotation": ["x"]}, "name", max_unknown_share=one),
    "crowd_features": lambda one: crowd_features(one, one),
    "align": lambda one: align_annotators(crowd(), one),
    "align data": lambda one: align_annotators(one, ["m"]),
    "salt": lambda one: hash_annotators(crowd(), one),
    "hash data": lambda one: hash_annotators(one, "not this one, please"),
    "describe": describe,
    "min_votes": lambda one: describe(crowd(), min_votes=one),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_doors_raise_their_own_errors(door: str) -> None:
    """A TypeError from inside names neither the argument nor the remedy."""
    for one in STRANGE:
        try:
            DOORS[door](one)
        except Exception as error:
            check_is_said(error, f"{door}: {one!a:.80}")


COLUMNS: list[Any] = [
    pa.array([[0], [1]]), pa.array([[0], None]), pa.array([[0], [None]]), pa.array([[0], [9]]),
    pa.array([[0], [-2]]), pa.array([[0.5], [1.0]]), pa.array([["m"], ["n"]]), pa.array([0, 1]),
    pa.array(["m", "n"]), pa.array([[[0]], [[1]]]), pa.array([[0, 1], [1]]), pa.array([None, None]),
    pa.array([[True], [False]]), pa.array([{"a": 0}, {"a": 1}]), pa.array([b"m", b"n"]), pa.array([[], []]),
]  # fmt: skip


@pytest.mark.parametrize("door", ["describe", "align data", "hash data"])
def test_hostile_crowd_columns_are_refused_in_our_words(door: str) -> None:
    """Columns that another program wrote under our names seldom hold what ours do."""
    names = [List(ClassLabel(names=["m", "n"])), None]
    good = pa.array([[0], [1]])
    for who in COLUMNS:
        for what in COLUMNS:
            for feature in names:
                table = pa.table({"annotators": who, "annotations": what})
                features = feature and Features(annotators=feature, annotations=feature)
                try:
                    dataset = Dataset(table, DatasetInfo(features=features))
                except (ValueError, TypeError):  # no such data set can be made
                    continue
                try:
                    DOORS[door](dataset)
                except Exception as error:
                    check_is_said(error, f"{door}: {who.type}, {what.type}")
                else:
                    assert door != "describe" or len(who) == len(good)
