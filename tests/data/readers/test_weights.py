"""Weights of votes, from a table to the batch."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, IterableDataset, List, Value

from hf_maxmig import (
    CrowdCollator,
    add_annotations,
    align_annotators,
    describe,
    hash_annotators,
    read_annotations,
    soft_votes,
)
from hf_maxmig.data.collator import arrow_rows, crowd_batches, padded
from hf_maxmig.model.annotator_names import hashed_names

ITEMS = Dataset.from_dict({"name": ["a", "b", "c"], "x": [[0.0], [1.0], [2.0]]})
ROWS = [
    {"item": "a", "annotator": "ann", "annotation": "cat", "confidence": 0.75},
    {"item": "a", "annotator": "bob", "annotation": "dog", "confidence": None},
    {"item": "b", "annotator": "ann", "annotation": "dog", "confidence": 0.0},
    {"item": "c", "annotator": "bob", "annotation": "dog", "confidence": 1},
]
COLLATE = CrowdCollator(num_annotators=3, num_classes=2)


def crowd_of(who, said, weights):
    features = Features(
        annotators=List(ClassLabel(names=["ann", "bob", "cyd"])),
        annotations=List(ClassLabel(names=["cat", "dog"])),
        annotation_weights=List(Value("float32")),
    )
    columns = {"annotators": who, "annotations": said, "annotation_weights": weights}
    return Dataset.from_dict(columns, features=features)


# From a table of votes to columns


def test_column_of_confidence_is_read_and_joined() -> None:
    votes = read_annotations(ROWS)
    assert votes.column_names == ["item", "annotator", "annotation", "weight"]
    assert votes["weight"][:] == [0.75, 1.0, 0.0, 1.0]
    crowd = add_annotations(ITEMS, votes, "name")
    assert crowd["annotation_weights"][:] == [[0.75, 1.0], [], [1.0]]
    assert crowd["annotators"][:] == [[0, 1], [], [1]]
    assert crowd.features["annotation_weights"] == List(Value("float32"))


@pytest.mark.parametrize("make", [pd.DataFrame, list, lambda rows: Dataset.from_list(rows)])
def test_weights_come_from_any_table(make, tmp_path) -> None:
    assert read_annotations(make(ROWS))["weight"][:] == [0.75, 1.0, 0.0, 1.0]
    pd.DataFrame(ROWS).to_csv(tmp_path / "votes.csv", index=False)
    assert read_annotations(tmp_path / "votes.csv")["weight"][:] == [0.75, 1.0, 0.0, 1.0]


def test_weight_is_named_or_turned_off() -> None:
    rows = [{**row, "sure": 0.5} for row in ROWS]
    named = read_annotations(rows, weight="sure")
    assert named["weight"][:] == [0.5] * 4
    assert "confidence" in named.column_names
    without = read_annotations(ROWS, weight=False)
    assert "weight" not in without.column_names
    assert "confidence" in without.column_names
    assert "annotation_weights" not in add_annotations(ITEMS, without, "name").column_names
    with pytest.raises(ValueError, match="`weight` must be one of"):
        read_annotations(ROWS, weight="nothing")
    wide = [{"item": "a", "ann": "cat", "bob": "cat"}]
    with pytest.raises(ValueError, match="`weight` must be left out for wide"):
        read_annotations(wide, format="wide", weight="sure")


@pytest.mark.parametrize("value", [80, -0.1, "sure", True, float("inf")])
def test_column_that_only_looks_like_weights_is_left_alone(value, caplog) -> None:
    """A column of percentages or free text under that name was ignored before, and must not become an error."""
    rows = [*ROWS[:3], {**ROWS[3], "confidence": value}]
    with caplog.at_level(logging.WARNING):
        votes = read_annotations(pd.DataFrame(rows).astype({"confidence": object}))
    assert "weight" not in votes.column_names
    assert "confidence" in votes.column_names
    assert "'confidence' is not read as weights: it must lie in 0..1" in caplog.text
    with pytest.raises(ValueError, match=r"row 3: `confidence` must lie in 0\.\.1, got"):
        read_annotations(rows, weight="confidence")


def test_percentages_get_the_remedy() -> None:
    votes = [{**row, "weight": row.pop("confidence") and 75} for row in map(dict, ROWS)]
    with pytest.raises(
        ValueError, match=r"column 'weight' of `votes`, row 0: .* divide percentages by 100"
    ):
        add_annotations(ITEMS, votes, "name")


def test_weights_of_one_make_no_column() -> None:
    """If all votes count in full, the data set must equal one without weights."""
    votes = [{**row, "confidence": 1.0} for row in ROWS]
    crowd = add_annotations(ITEMS, read_annotations(votes), "name")
    assert "annotation_weights" not in crowd.column_names


def test_soft_votes_are_a_table_of_votes() -> None:
    table = soft_votes(["a", "c"], "llm", [[0.25, 0.75], [0.0, 0.4]], ["cat", "dog"])
    crowd = add_annotations(ITEMS, table, "name", classes=["cat", "dog"])
    assert crowd["annotations"][:] == [[0, 1], [], [1]]
    np.testing.assert_allclose(crowd["annotation_weights"][0], [0.25, 0.75])
    np.testing.assert_allclose(crowd["annotation_weights"][2], [0.4])
    with pytest.raises(ValueError, match=r"shape \(N, C\) = \(2, 2\), got \(2, 1\)"):
        soft_votes(["a", "c"], "llm", [[1.0], [1.0]], ["cat", "dog"])
    for bad in ([0.7, 0.7], [-0.1, 0.5], [float("nan"), 1.0]):
        with pytest.raises(ValueError, match="summing to one or less, got .* for item 'c'"):
            soft_votes(["a", "c"], "llm", [[0.5, 0.5], bad], ["cat", "dog"])


def test_hashing_keeps_weights_with_their_votes() -> None:
    """All items have lists of equal length here, so only the column's name ties weights to votes."""
    crowd = crowd_of([[0, 1], [1, 2]], [[0, 1], [1, 0]], [[0.25, 0.5], [0.75, 1.0]])
    hashed = hash_annotators(crowd, "a secret that is long")
    names = hashed.features["annotators"].feature.names
    own = crowd.features["annotators"].feature.names
    back = dict(zip(hashed_names(own, "a secret that is long"), own, strict=True))
    for before, after in zip(crowd, hashed, strict=True):
        expected = dict(
            zip([own[m] for m in before["annotators"]], before["annotation_weights"], strict=True)
        )
        found = dict(
            zip(
                [back[names[m]] for m in after["annotators"]],
                after["annotation_weights"],
                strict=True,
            )
        )
        assert found == expected


def test_other_annotators_keep_their_weights_when_aligned() -> None:
    crowd = crowd_of([[0, 1], [2]], [[0, 1], [1]], [[0.25, 0.5], [0.75]])
    aligned = align_annotators(crowd, ["cyd", "bob"])
    assert aligned["annotators"][:] == [[-1, 1], [0]]
    assert aligned["annotation_weights"][:] == [[0.25, 0.5], [0.75]]


# From columns to a batch


def test_collator_pads_weights_and_drops_votes_of_weight_zero() -> None:
    batch = COLLATE(
        [
            {"annotators": [2, 0, 1], "annotations": [1, 0, 1], "annotation_weights": [0.5, 0, 1]},
            {"annotators": [1], "annotations": [1], "annotation_weights": np.array([0.25])},
            {"annotators": [], "annotations": [], "annotation_weights": []},
        ]
    )
    assert batch["annotators"].tolist() == [[2, 1], [1, -1], [-1, -1]]
    assert batch["annotations"].tolist() == [[1, 1], [1, -1], [-1, -1]]
    assert batch["annotation_weights"].tolist() == [[0.5, 1.0], [0.25, 0.0], [0.0, 0.0]]
    assert batch["annotation_weights"].dtype == torch.float32
    dense = COLLATE([{"annotations": [1, -1, 0], "annotation_weights": [0.5, 0.7, 0.25]}])
    assert dense["annotators"].tolist() == [[0, 2]]
    assert dense["annotation_weights"].tolist() == [[0.5, 0.25]]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.5, 1.5], r"must lie in 0\.\.1, got 1.5 at item 1: a vote counts from 0"),
        ([0.5, -0.5], r"must lie in 0\.\.1, got -0.5 at item 1"),
        ([0.5, float("nan")], r"must lie in 0\.\.1, got nan at item 1"),
        ([0.5], r"`annotations` and `annotation_weights` must have the same length, got 2 and 1 at item 1"),
        (None, "must be a list, got None at item 1"),
        ([0.5, None], r"must be a flat list of numbers, got .* at item 1|must hold numbers, got None at item 1"),
        (["a", "b"], "must be a flat list of numbers, got .* at item 1"),
    ],
)  # fmt: skip
def test_bad_weights_are_refused_with_their_item(weights, message) -> None:
    rows = [
        {"annotators": [0], "annotations": [1], "annotation_weights": [1.0]},
        {"annotators": [0, 1], "annotations": [1, 0], "annotation_weights": weights},
    ]
    with pytest.raises(ValueError, match=message):
        COLLATE(rows)
    if weights is not None and all(isinstance(w, float) for w in weights):
        crowd = crowd_of(*([row[name] for row in rows] for name in rows[0]))
        with pytest.raises(ValueError, match=message):
            list(crowd_batches(crowd, COLLATE))


def test_weights_reach_the_batch_by_every_way_of_reading() -> None:
    columns = ([[0, 1], [2], []], [[0, 1], [1], []], [[0.25, 0.5], [0.75], []])
    crowd = crowd_of(*columns).add_column("features", [[0.0], [1.0], [2.0]])
    ways = {
        "rows": COLLATE([crowd[i] for i in range(3)]),
        "arrow": COLLATE(arrow_rows(crowd, COLLATE).__getitems__([0, 1, 2])),
        "torch": COLLATE([crowd.with_format("torch")[i] for i in range(3)]),
        "crowd": padded(crowd_batches(crowd, COLLATE, batch_size=2)).as_batch(),
        "stream": padded(crowd_batches(crowd.to_iterable_dataset(), COLLATE)).as_batch(),
        "generated": padded(
            crowd_batches(IterableDataset.from_generator(lambda: iter(crowd)), COLLATE)
        ).as_batch(),
    }
    for name, batch in ways.items():
        assert batch["annotation_weights"].tolist() == [[0.25, 0.5], [0.75, 0], [0, 0]], name
        assert batch["annotators"].tolist() == [[0, 1], [2, -1], [-1, -1]], name


# What is reported about them


def test_describe_counts_votes_by_their_weights() -> None:
    who = [[0, 0, 1], [0, 1], [2]]
    crowd = crowd_of(who, [[0, 1, 0], [1, 0], [1]], [[0.75, 0.25, 1.0], [0.5, 1.0], [1.0]])
    found = describe(crowd)
    assert found["votes"] == 5  # the first has two parts
    assert found["votes_per_item"]["max"] == 2
    assert found["weights"] == {"votes": 2, "mean": pytest.approx(0.75), "soft": 1}
    assert found["class_share"]["cat"] == pytest.approx((0.75 + 1 + 1) / 4.5)
    # Item 0: two votes agree with probability 0.75. Item 1: they never agree, and the pair has
    # weight one half.
    assert found["pairwise_agreement"] == pytest.approx(0.75 / 1.5)
    assert found["duplicates"]["votes"] == 0
    assert found["ties"]["items"] == 0
    assert "weighted votes" in str(found)
    assert "`annotation_weights`" in found.card_section()
    plain = describe(crowd.remove_columns("annotation_weights"))
    assert "weights" not in plain
    assert plain["votes"] == 6
    assert "weight" not in str(plain) + plain.card_section()


def test_weights_of_one_describe_as_none() -> None:
    who, said = [[0, 1], [0, 0, 1, 2], [2]], [[0, 1], [1, 1, 0, 1], [1]]
    crowd = crowd_of(who, said, [[1.0] * len(row) for row in who])
    ones = describe(crowd)
    assert ones.pop("weights") == {"votes": 0, "mean": None, "soft": 0}
    assert ones == describe(crowd.remove_columns("annotation_weights"))
