"""Tests of `hf_maxmig.data.describe`: its counts, compared with loops, and the page that it prints."""

import itertools
import json
import math
import sys
import time
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from hf_maxmig.data import describe as module
from hf_maxmig.data.columns import add_annotations, crowd_features
from hf_maxmig.data.describe import Description, describe

SEEDS = range(3)
SIZES = [(5, 4, 3), (7, 3, 6), (300, 11, 4)]

# N = 6 items, M = 5 annotators, C = 3 classes, 10 votes; "eve" never voted, nobody voted for "owl".
NAMES = ["ann", "bob", "cid", "dan", "eve"]
CLASSES = ["cat", "dog", "owl"]
WHO = [[0, 1], [2], [], [0, 0, 3], [1, 2, 0], [2]]
WHAT = [[0, 1], [1], [], [0, 0, 1], [0, 0, 0], [0]]


def dataset(
    who: list[list[int]] = WHO,
    what: list[list[int]] = WHAT,
    names: list[str] = NAMES,
    classes: list[str] = CLASSES,
) -> Dataset:
    columns = {"annotators": who, "annotations": what}
    return Dataset.from_dict(columns, features=crowd_features(names, classes))


def draw(N: int, M: int, C: int, seed: int, repeats: bool = True) -> tuple[list, list]:
    """Draw a crowd that agrees more often than chance; some items have one vote or none."""
    rng = np.random.default_rng(seed)
    who, what = [], []
    for size in [0, M, M, *rng.integers(0, M + 1, size=N - 3).tolist()]:
        who.append(rng.choice(M, size=size, replace=repeats).tolist())
        truth = rng.integers(C)
        said = np.where(rng.random(size) < 0.6, truth, rng.integers(C, size=size))
        what.append(said.tolist())
    return who, what


def draw_dataset(N: int, M: int, C: int, seed: int, repeats: bool = True) -> Dataset:
    who, what = draw(N, M, C, seed, repeats)
    return dataset(who, what, [f"m{m}" for m in range(M)], [f"c{c}" for c in range(C)])


def without_crowd_kit(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("crowdkit", "crowdkit.aggregation", "crowdkit.metrics.data"):
        monkeypatch.setitem(sys.modules, name, None)


# From the definitions, by loops


def naive_alpha(what: list[list[int]]) -> float:
    """Compute Krippendorff's alpha for nominal data, 1 - observed / expected disagreement, pair by pair."""
    units = [said for said in what if len(said) >= 2]
    values = [c for said in units for c in said]
    observed = 0.0
    for said in units:
        for i, a in enumerate(said):
            for j, b in enumerate(said):
                if i != j and a != b:
                    observed += 1 / (len(said) - 1)
    observed /= len(values)
    expected = sum(a != b for a, b in itertools.permutations(values, 2))
    expected /= len(values) * (len(values) - 1)
    return 1 - observed / expected


def naive_entropy(what: list[list[int]]) -> float:
    total, items = 0.0, 0
    for said in what:
        if len(said) >= 2:
            items += 1
            for c in set(said):
                p = said.count(c) / len(said)
                total -= p * math.log(p)
    return total / items


def naive_agreement(what: list[list[int]]) -> float:
    pairs = [a == b for said in what for a, b in combinations(said, 2)]
    return sum(pairs) / len(pairs)


def naive_ties(what: list[list[int]]) -> list[int]:
    tied = []
    for i, said in enumerate(what):
        counts = sorted((said.count(c) for c in set(said)), reverse=True)
        if len(counts) > 1 and counts[0] == counts[1]:
            tied.append(i)
    return tied


# Counts


def test_everything_that_is_counted_by_hand() -> None:
    """Users take each number on the page as given, and nothing later would reveal a wrong one."""
    found = describe(dataset(), min_votes=3)
    expected = {
        "items": 6,
        "items_without_votes": 1,
        "items_with_two_votes": 3,
        "annotators": 5,
        "annotators_with_votes": 4,
        "classes": 3,
        "votes": 10,
        "votes_of_unknown_annotators": 0,
        "votes_per_item": {
            "min": 1, "median": 2.0, "mean": 2.0, "max": 3, "histogram": {"1": 2, "2": 1, "3": 2}
        },
        "votes_per_annotator": {
            "min": 1, "median": 2.5, "mean": 2.5, "max": 4,
            "histogram": {"1": 1, "2": 1, "3": 1, "4": 1},
        },
        "class_share": {"cat": 0.7, "dog": 0.3, "owl": 0.0},
        "classes_without_votes": ["owl"],
        "few_votes": {"below": 3, "annotators": 2, "names": ["dan", "bob"]},
        "ties": {"items": 1, "positions": [0]},
        "duplicates": {"votes": 1, "items": 1, "positions": [3]},
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert found["pairwise_agreement"] == pytest.approx(4 / 7)
    entropy = (math.log(2) + math.log(3) - 2 / 3 * math.log(2)) / 3
    assert found["vote_entropy"] == pytest.approx(entropy)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("N", "M", "C"), SIZES)
def test_what_is_vectorised_equals_loops(N: int, M: int, C: int, seed: int) -> None:
    """If items, classes or annotators were mixed up in the flat keys, the numbers would still look plausible."""
    who, what = draw(N, M, C, seed)
    found = describe(draw_dataset(N, M, C, seed))
    assert found["vote_entropy"] == pytest.approx(naive_entropy(what), abs=1e-12)
    assert found["pairwise_agreement"] == pytest.approx(naive_agreement(what), abs=1e-12)
    tied = naive_ties(what)
    assert found["ties"] == {"items": len(tied), "positions": tied[:5]}
    twice = [i for i, row in enumerate(who) if len(set(row)) < len(row)]
    extra = sum(len(row) - len(set(row)) for row in who)
    assert found["duplicates"] == {"votes": extra, "items": len(twice), "positions": twice[:5]}
    of_annotator = [sum(row.count(m) for row in who) for m in range(M)]
    few = sorted((n, m) for m, n in enumerate(of_annotator) if 0 < n < 10)
    assert found["few_votes"]["names"] == [f"m{m}" for _, m in few][:5]
    assert found["few_votes"]["annotators"] == len(few)
    voted = [n for n in of_annotator if n]
    amounts = found["votes_per_annotator"]
    assert amounts["median"] == np.median(voted)
    assert (amounts["min"], amounts["max"], sum(amounts["histogram"].values())) == (
        min(voted), max(voted), len(voted)
    )  # fmt: skip
    flat = [c for row in what for c in row]
    assert found["class_share"] == {f"c{c}": flat.count(c) / len(flat) for c in range(C)}


def test_chunks_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions must refer to the data set, not to the chunk in which they were found."""
    data = draw_dataset(300, 11, 4, seed=0)
    at_once = describe(data)
    assert at_once["ties"]["items"] > 5
    assert at_once["duplicates"]["items"] > 5
    batches = module.crowd_batches
    sizes: list[int] = []

    def in_small_chunks(*arguments: Any) -> Any:
        for pair in batches(*arguments, batch_size=3):
            sizes.append(len(pair[0]))
            yield pair

    monkeypatch.setattr(module, "crowd_batches", in_small_chunks)
    by_chunk = describe(data)
    assert len(sizes) >= 100
    assert by_chunk == {**at_once, "vote_entropy": pytest.approx(at_once["vote_entropy"])}


def test_histogram_puts_each_number_in_the_bin_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A number on the edge, put into the bin below, would shift the whole histogram."""
    without_crowd_kit(monkeypatch)
    sizes = [1, 2, 4, 5, 9, 10, 19, 20, 49, 50, 100]
    data = dataset([[0] * n for n in sizes], [[1] * n for n in sizes])
    assert describe(data)["votes_per_item"]["histogram"] == {
        "1": 1, "2": 1, "4": 1, "5-9": 2, "10-19": 2, "20-49": 2, "50-99": 1, "100-999": 1
    }  # fmt: skip
    assert describe(data)["votes_per_annotator"]["histogram"] == {"100-999": 1}


def test_dense_annotations_are_the_same_crowd() -> None:
    """A position without a label is not a vote for the last class."""
    data = draw_dataset(7, 3, 6, seed=1, repeats=False)
    rows = [[-1] * 3 for _ in range(7)]
    for row, example in zip(rows, data, strict=True):
        for m, c in zip(example["annotators"], example["annotations"], strict=True):
            row[m] = c
    names = [f"c{c}" for c in range(6)]
    features = Features(annotations=List(ClassLabel(names=names), length=3))
    found = describe(Dataset.from_dict({"annotations": rows}, features=features))
    ragged = describe(data)
    found["few_votes"]["names"] = [f"m{m}" for m in found["few_votes"]["names"]]
    assert found == ragged


def test_votes_of_unknown_annotators_are_told_and_count_nowhere() -> None:
    """After `align_annotators` they are -1. If counted, their votes would be the last annotator's."""
    data = dataset([[0, -1], [1, 1]], [[0, 2], [1, -1]])
    found = describe(data)
    assert (found["votes"], found["votes_of_unknown_annotators"]) == (2, 1)
    assert found["class_share"]["owl"] == 0
    assert found["annotators_with_votes"] == 2
    assert found["items_with_two_votes"] == 0
    assert "unknown annotators" in str(found)
    assert "unknown annotators" not in str(describe(dataset()))


def test_only_the_crowd_columns_are_read() -> None:
    """Otherwise pictures would be decoded for nothing, and a transform may need all columns."""

    def refuse(batch: Any) -> Any:
        raise AssertionError("the transform was called")

    data = dataset().add_column("x", [0.5] * 6)
    with pytest.raises(AssertionError):
        data.with_transform(refuse)[0]
    assert describe(data.with_transform(refuse)) == describe(data) == describe(dataset())


# Agreement


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("N", "M", "C"), SIZES)
def test_alpha_is_krippendorffs(N: int, M: int, C: int, seed: int) -> None:
    """With items and annotators exchanged it would also be a number between -1 and 1."""
    pytest.importorskip("crowdkit")
    _, what = draw(N, M, C, seed)
    found = describe(draw_dataset(N, M, C, seed))
    assert found["alpha_items"] == sum(len(said) >= 2 for said in what)
    assert found["alpha"] == pytest.approx(naive_alpha(what), abs=1e-12)


@pytest.mark.filterwarnings("ignore")  # a warning of crowd-kit about pandas' plans
@pytest.mark.parametrize(("N", "M", "C"), SIZES)
def test_consistency_and_entropy_are_crowd_kits(N: int, M: int, C: int) -> None:
    """Skills are computed by our own code on the whole crowd and must equal those that crowd-kit fits."""
    metrics = pytest.importorskip("crowdkit.metrics.data")
    pd = pytest.importorskip("pandas")
    who, what = draw(N, M, C, seed=0, repeats=False)
    # Items with one vote count only for skills; at a tie crowd-kit takes the class it saw first.
    several = [i for i, row in enumerate(who) if len(row) >= 2 and i not in naive_ties(what)]
    assert len(several) >= 2
    who, what = [[], *(who[i] for i in several)], [[], *(what[i] for i in several)]
    found = describe(dataset(who, what, [f"m{m}" for m in range(M)], [str(c) for c in range(C)]))
    rows = [
        (i, m, c)
        for i, (row, said) in enumerate(zip(who, what, strict=True))
        for m, c in zip(row, said, strict=True)
    ]
    answers = pd.DataFrame(rows, columns=["task", "worker", "label"])
    assert found["consistency_items"] == len(several)
    assert found["consistency"] == pytest.approx(metrics.consistency(answers))
    assert found["vote_entropy"] == pytest.approx(metrics.uncertainty(answers), abs=1e-9)


def test_large_crowds_are_sampled_alike_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page must not change from call to call, and must say that it uses a sample."""
    pytest.importorskip("crowdkit")
    data = draw_dataset(300, 11, 4, seed=0)
    whole = describe(data)
    assert "drawn at random" not in str(whole)
    monkeypatch.setattr(module, "ALPHA_VOTES", 700)
    monkeypatch.setattr(module, "CONSISTENCY_CELLS", 1500)
    state = np.random.get_state()[1].copy()
    some = describe(data)
    assert (np.random.get_state()[1] == state).all()
    assert 2 < some["consistency_items"] < some["alpha_items"] < whole["alpha_items"]
    assert 0 < abs(some["alpha"] - whole["alpha"]) < 0.1
    assert 0 < abs(some["consistency"] - whole["consistency"]) < 0.1
    assert describe(data) == some
    assert str(some).count("items drawn at random") == 2
    same = set(whole) - {"alpha", "alpha_items", "consistency", "consistency_items"}
    assert all(some[key] == whole[key] for key in same)


def test_without_crowd_kit_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing optional package must cost two lines, not the page."""
    without_crowd_kit(monkeypatch)
    found = describe(dataset())
    for key in ("alpha", "alpha_items", "consistency", "consistency_items"):
        assert found[key] is None
    assert str(found).count("install hf_maxmig[peers]") == 2
    assert found["votes"] == 10


@pytest.mark.parametrize(
    ("who", "what", "alpha"),
    [
        ([[0, 0]], [[0, 1]], None),  # crowd-kit raises on one annotator and one item
        ([[0, 1], [2]], [[0, 1], [2]], 0.0),
        ([[0, 1], [2, 3]], [[1, 1], [1, 1]], 1.0),
    ],
)
def test_agreement_of_hardly_any_votes(who: list, what: list, alpha: float | None) -> None:
    """A collection that has just begun must be described too."""
    pytest.importorskip("crowdkit")
    found = describe(dataset(who, what))
    assert found["alpha"] == alpha
    assert ("not defined here" in str(found)) is (alpha is None)
    json.dumps(found, allow_nan=False)


def test_agreement_of_single_votes_is_not_to_be_seen() -> None:
    """Nobody can disagree where no item is labelled twice, so 100 % would be taken for good news."""
    found = describe(dataset([[0], [1], []], [[0], [1], []]))
    for key in ("alpha", "consistency", "pairwise_agreement", "vote_entropy"):
        assert found[key] is None
    assert "no item has two votes" in str(found)


# Real votes


def test_labelme_is_described(shared_data: Any) -> None:
    """The published numbers of a real crowd: 2,547 votes of 59 workers, one to three per item."""
    pd = pytest.importorskip("pandas")
    votes = pd.read_csv(shared_data / "labelme" / "votes.csv")
    votes.columns = ["item", "annotator", "annotation"]
    items = Dataset.from_dict({"item": sorted(set(votes["item"]))})
    data = add_annotations(items, votes, "item")
    found = describe(data)
    assert (found["items"], found["annotators"], found["classes"]) == (1000, 59, 8)
    assert (found["votes"], found["annotators_with_votes"]) == (2547, 59)
    assert found["votes_per_item"]["histogram"] == {"1": 42, "2": 369, "3": 589}
    assert found["votes_per_item"]["mean"] == pytest.approx(2.547)
    what = data["annotations"][:]
    assert found["pairwise_agreement"] == pytest.approx(naive_agreement(what))
    assert found["vote_entropy"] == pytest.approx(naive_entropy(what))
    assert found["ties"]["items"] == len(naive_ties(what))
    if found["alpha_items"] is not None:
        assert found["alpha"] == pytest.approx(naive_alpha(what))


# The page


def test_page_is_what_a_data_owner_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is the product: a number under another's name would be believed."""
    without_crowd_kit(monkeypatch)
    assert str(describe(dataset(), min_votes=3)).splitlines() == [
        "6 items, 5 annotators, 3 classes",
        "  votes                 10; 1 item without any, 1 annotator without any",
        "  votes per item        1 to 3, median 2, mean 2.00 (2 with 1, 1 with 2, 2 with 3)",
        "  votes per annotator   1 to 4, median 2.5, mean 2.50 (1 with 1, 1 with 2, 1 with 3, 1 with 4)",
        "  classes               cat 70.0%, dog 30.0%; nobody said: owl",
        "  pairs that agree      57.1% of pairs of votes on one item",
        "  vote entropy          0.443 nats, mean over 3 items with two votes or more",
        "  Krippendorff's alpha  install hf_maxmig[peers]",
        "  consistency           install hf_maxmig[peers]",
        "  below 3 votes         2 annotators: dan, bob",
        "  ties for most votes   1 item: 0",
        "  same annotator twice  1 further vote on 1 item: 3",
    ]


def test_page_stays_short_with_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand classes or rare annotators would push the rest off the screen."""
    without_crowd_kit(monkeypatch)
    names = [f"name {k}" for k in range(200)]
    data = dataset([[k] * 2 for k in range(150)], [[k, k + 1] for k in range(150)], names, names)
    page = str(describe(data))
    assert len(page) < 1200
    assert "143 more" in page
    assert "nobody said: name 151, name 152, name 153, name 154, name 155, ..." in page
    assert "150 annotators: name 0, name 1, name 2, name 3, name 4, ..." in page


def test_description_survives_json() -> None:
    """Numpy scalars look like numbers until somebody saves them."""
    found = describe(dataset())
    again = Description(json.loads(json.dumps(found, allow_nan=False)))
    assert again == found
    assert str(again) == str(found)
    assert isinstance(found, dict)


@pytest.mark.parametrize("items", [0, 3])
def test_no_votes_at_all_is_said(items: int) -> None:
    """Before anybody has voted, there is nothing to divide by."""
    found = describe(dataset([[]] * items, [[]] * items))
    assert (found["items"], found["items_without_votes"], found["votes"]) == (items, items, 0)
    assert found["votes_per_item"] is None
    assert found["votes_per_annotator"] is None
    assert found["classes_without_votes"] == CLASSES
    assert found["ties"] == {"items": 0, "positions": []}
    count = "no item" if not items else "3 items"
    assert str(found) == f"{count}, 5 annotators, 3 classes: no votes"
    json.dumps(found, allow_nan=False)


# Errors


def test_columns_that_are_absent_are_named() -> None:
    """A data set without votes must first be joined with them, and the error must say so."""
    with pytest.raises(KeyError, match="annotators and annotations, got x: see `add_annotations`"):
        describe(Dataset.from_dict({"x": [1]}))
    with pytest.raises(TypeError, match="got DatasetDict: pass one of its splits, train"):
        describe(DatasetDict(train=dataset()))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got no column `annotators` and List"):
        describe(dataset().remove_columns("annotators"))


def test_columns_without_names_are_refused() -> None:
    """With raw ids in place of numbers, the table would be as long as the largest id."""
    features = Features(annotators=List(Value("int64")), annotations=List(Value("int64")))
    columns = {"annotators": [[10**12]], "annotations": [[0]]}
    with pytest.raises(ValueError, match="name annotators and classes in its features"):
        describe(Dataset.from_dict(columns, features=features))


def test_wrong_values_are_refused() -> None:
    """A list that is too short would shift every later vote to another annotator."""
    with pytest.raises(ValueError, match="same length, got 2 and 1 at item 1"):
        describe(dataset([[0], [0, 1]], [[0], [0]]))
    with pytest.raises(ValueError, match="`min_votes` must be at least 1, got 0"):
        describe(dataset(), min_votes=0)


@pytest.mark.slow
def test_many_votes_take_no_time_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """One Python object per vote would take minutes for ten million."""
    without_crowd_kit(monkeypatch)
    rng = np.random.default_rng(0)
    who, what = rng.integers(5000, size=(20_000, 10)), rng.integers(7, size=(20_000, 10))
    names = [str(m) for m in range(5000)]
    data = dataset(list(who), list(what), names, [str(c) for c in range(7)])
    start = time.process_time()
    assert describe(data)["votes"] == 200_000
    assert time.process_time() - start < 1
