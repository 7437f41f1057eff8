"""Thinned votes: as many as requested, all from the original votes, chosen without gold labels."""

import itertools

import numpy as np
import pytest
from datasets import Dataset, Features, List, Value

from hf_maxmig import crowd_features, thin_votes

NAMES = ["ann", "bob", "cyd", "dan", "eve"]


def crowd(num_items=200, seed=0, **more):
    """Return votes of five annotators, none to five per item. Votes encode annotator and item; `dan` never votes."""
    rng = np.random.default_rng(seed)
    who = [
        rng.permutation([m for m in (0, 1, 2, 4) if rng.random() < 0.55]).tolist()
        for _ in range(num_items)
    ]
    said = [[(m + i) % 7 for m in row] for i, row in enumerate(who)]
    columns = {
        "annotators": who,
        "annotations": said,
        "at": [[float(m) for m in row] for row in who],
    }
    columns |= {"label": rng.integers(7, size=num_items).tolist(), **more}
    features = Features(crowd_features(NAMES, [f"c{c}" for c in range(7)]))
    features |= Features(at=List(Value("float64")), label=Value("int64"))
    return Dataset.from_dict(columns, features=features)


def votes(dataset):
    """Return the votes of each item, by the annotators' names."""
    names = dataset.features["annotators"].feature.names
    return [
        [(names[m], r) for m, r in zip(who, said, strict=True)]
        for who, said in zip(dataset["annotators"], dataset["annotations"], strict=True)
    ]


@pytest.mark.parametrize("most", [1, 2, 3, 9])
def test_an_item_keeps_its_own_votes_and_no_more_than_asked_for(most):
    """Votes of another item, or pairs that never occurred, would be noise of the right shape."""
    before = crowd()
    after = thin_votes(before, votes_per_item=most, seed=3)
    assert min(map(len, before["annotators"])) == 0
    for old, new in zip(votes(before), votes(after), strict=True):
        assert len(new) == min(most, len(old))
        places = [old.index(vote) for vote in new]
        assert places == sorted(places)
    assert after.column_names == before.column_names
    assert after.features == before.features
    for who, at in zip(after["annotators"], after["at"], strict=True):
        assert at == who
    assert after["label"][:] == before["label"][:]


def test_annotators_who_are_drawn_keep_all_their_votes_and_the_others_no_name():
    """With the names of the others, a model would have rows that nothing trains."""
    before = crowd()
    after = thin_votes(before, annotators=2, seed=1)
    names = after.features["annotators"].feature.names
    assert len(names) == 2
    assert "dan" not in names  # who has no votes to keep
    assert names == sorted(names)
    for old, new in zip(votes(before), votes(after), strict=True):
        assert new == [vote for vote in old if vote[0] in names]
    assert [] in votes(after)
    assert thin_votes(before, annotators=4).features["annotators"].feature.names == [
        name for name in NAMES if name != "dan"
    ]
    drawn = {
        tuple(thin_votes(before, annotators=2, seed=s).features["annotators"].feature.names)
        for s in range(40)
    }
    assert len(drawn) == 6  # any two of the four


def test_of_few_annotators_each_item_keeps_the_votes_that_are_there():
    """If items were thinned before annotators are drawn, votes of left-out annotators would use up places."""
    before = crowd()
    after = thin_votes(before, annotators=3, votes_per_item=1, seed=2)
    names = after.features["annotators"].feature.names
    there = [[vote for vote in row if vote[0] in names] for row in votes(before)]
    assert [len(row) for row in votes(after)] == [min(1, len(row)) for row in there]
    assert all(set(new) <= set(old) for new, old in zip(votes(after), there, strict=True))


def test_fewer_votes_are_a_part_of_more():
    """If votes were drawn anew at each step, a curve would jump up and down."""
    before = crowd()
    steps = [votes(thin_votes(before, votes_per_item=k, seed=5)) for k in (1, 2, 3)]
    for fewer, more in itertools.pairwise(steps):
        assert all(set(a) <= set(b) for a, b in zip(fewer, more, strict=True))
    crowds = [
        set(thin_votes(before, annotators=k, seed=5).features["annotators"].feature.names)
        for k in (1, 2, 3)
    ]
    assert crowds[0] < crowds[1] < crowds[2]


def test_the_draw_is_a_function_of_the_seed_and_favours_nobody():
    """Always keeping the first vote of an item would favour early annotators, and give another crowd."""
    before = crowd(4_000)
    first, again, other = (votes(thin_votes(before, votes_per_item=1, seed=s)) for s in (0, 0, 1))
    assert first == again
    assert first != other
    full = [len(row) == 4 for row in votes(before)]
    assert sum(full) > 300
    place = [
        old.index(new[0])
        for old, new, whole in zip(votes(before), first, full, strict=True)
        if whole
    ]
    assert abs(np.bincount(place) / sum(full) - 0.25).max() < 6 * (0.25 * 0.75 / sum(full)) ** 0.5


def test_gold_labels_are_not_looked_at():
    """If gold labels changed the draw, they would choose the votes that a model learns from."""
    before = crowd()
    other = before.remove_columns("label").add_column("label", [0] * len(before))
    for options in ({"votes_per_item": 1}, {"annotators": 2}):
        assert votes(thin_votes(before, **options)) == votes(thin_votes(other, **options))
        assert votes(thin_votes(before.remove_columns("label"), **options)) == votes(
            thin_votes(before, **options)
        )


def test_parts_of_a_soft_vote_and_repeated_votes_stay_together():
    """Half a soft vote is a vote for another class, and weights belong to their votes."""
    columns = {
        "annotators": [[0, 0, 1], [1, 1, 0], [-1, 0, 1]], "annotations": [[0, 1, 1], [1, 1, 0], [-1, 2, 0]],
        "annotation_weights": [[0.75, 0.25, 1.0], [1.0, 0.5, 1.0], [0.0, 0.5, 1.0]],
    }  # fmt: skip
    features = Features(crowd_features(["ann", "bob"], ["a", "b", "c"]))
    features["annotation_weights"] = List(Value("float32"))
    before = Dataset.from_dict(columns, features=features)
    seen = set()
    for seed in range(30):
        after = thin_votes(before, votes_per_item=1, seed=seed)
        said = [
            tuple(zip(*row, strict=True))
            for row in zip(*(after[name] for name in columns), strict=True)
        ]
        assert said[0] in (((0, 0, 0.75), (0, 1, 0.25)), ((1, 1, 1.0),))
        assert said[1] in (((1, 1, 1.0), (1, 1, 0.5)), ((0, 0, 1.0),))
        assert said[2] in (((0, 2, 0.5),), ((1, 0, 1.0),))  # padding is nobody's vote
        seen.add(tuple(said))
    assert len(seen) > 4


def test_format_of_the_data_set_stays():
    """With a lost format, training on torch tensors would suddenly get lists."""
    after = thin_votes(crowd().with_format("numpy"), votes_per_item=1)
    assert after.format["type"] == "numpy"


def test_what_cannot_be_thinned_is_refused():
    """Otherwise all votes would be kept in place of none, or everybody in place of too many."""
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"`votes_per_item` must be at least 1, got {wrong}"):
            thin_votes(crowd(), votes_per_item=wrong)
    for wrong in (0, 5):
        with pytest.raises(
            ValueError, match=rf"`annotators` must lie in 1\.\.M = 1\.\.4, .*got {wrong}"
        ):
            thin_votes(crowd(), annotators=wrong)
    with pytest.raises(TypeError, match="pass one of its splits, train"):
        thin_votes({"train": crowd()}, annotators=1)
    with pytest.raises(
        ValueError, match="must have a column `annotators` whose features name them"
    ):
        thin_votes(Dataset.from_dict({"annotations": [[0, 1]]}), votes_per_item=1)


def test_a_data_set_without_a_vote_stays_as_it_is():
    """The last items of a stream may have no votes."""
    features = crowd_features(["ann"], ["a", "b"])
    empty = Dataset.from_dict({"annotators": [[]], "annotations": [[]]}, features=features)
    assert votes(thin_votes(empty, votes_per_item=1)) == [[]]
