"""Tests of `hf_maxmig.data.simulated.beyond`: frequencies in the drawn crowds, counted one vote at a time."""

import numpy as np
import pytest
import torch

from hf_maxmig.data.simulated.beyond import (
    MORE_CASES,
    NUM_SPARSE,
    look_alikes,
    simulate_case,
    simulate_hard_items,
    simulate_sparse_crowd,
    simulate_tiring_crowd,
)
from hf_maxmig.data.simulated.experts import Experts, experts
from hf_maxmig.data.simulated.simulation import CASES, simulate_crowd

# Two seniors on three classes, no two rows alike.
TWO = Experts(
    name="two",
    classes=("a", "b", "c"),
    seniors=torch.tensor(
        [
            [[0.7, 0.2, 0.1], [0.0, 0.9, 0.1], [0.3, 0.3, 0.4]],
            [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.1, 0.8, 0.1]],
        ]
    ),
    num_naive=1,
    copied=(1,),
)
NEVER_WRONG = Experts("never wrong", ("a", "b", "c"), torch.eye(3).repeat(4, 1, 1))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def counted(true, said, num_classes=3):
    """Count how often each class was reported, by true class."""
    counts = np.zeros((num_classes, num_classes))
    for c, r in zip(np.asarray(true), np.asarray(said), strict=True):
        counts[c, r] += 1
    return counts / counts.sum(axis=1, keepdims=True)


def points(num_items, seed=0):
    """Return items of three classes on a line, around 0, 2 and 5, with their classes."""
    rng = np.random.default_rng(seed)
    true = np.arange(num_items) % 3
    return rng.normal(np.array([0.0, 2.0, 5.0])[true], 1.0)[:, None], true


# --- sparse


@pytest.mark.parametrize(("case", "per_item"), [("sparse_one", 1), ("sparse_two", 2)])
def test_sparse_crowd_has_few_votes_of_many_annotators(case, per_item):
    """A crowd in which every annotator labels almost every item would not be sparse."""
    true = np.arange(6_000) % 3
    crowd = simulate_case(true, TWO, case, generator=seeded(0))
    assert crowd.names == [f"worker_{m}" for m in range(1, NUM_SPARSE + 1)]
    assert len(crowd.names) == 300
    assert crowd.annotators.shape == crowd.annotations.shape == (6_000, per_item)
    assert crowd.annotators.dtype == crowd.annotations.dtype == torch.int64
    if per_item == 2:
        assert (crowd.annotators[:, 0] < crowd.annotators[:, 1]).all()  # nobody votes twice
    votes = np.bincount(crowd.annotators.flatten(), minlength=300)
    mean = 6_000 * per_item / 300
    assert abs(votes - mean).max() < 6 * mean**0.5  # Poisson: all are equally likely


def test_sparse_annotators_err_as_their_senior_does():
    """If matrices were given to the wrong annotators, or mixed, their mean would still be right."""
    true = np.arange(60_000) % 3
    crowd = simulate_sparse_crowd(
        true, TWO, labels_per_item=2, num_annotators=5, generator=seeded(1)
    )
    for m in range(5):
        item, place = (crowd.annotators == m).nonzero(as_tuple=True)
        assert len(item) > 20_000
        found = counted(true[item], crowd.annotations[item, place])
        expected = TWO.seniors[m % 2].numpy()
        assert abs(found - expected).max() < 6 * 0.5 / (len(item) / 3) ** 0.5
        assert (found[expected == 0] == 0).all()


def test_sparse_votes_of_an_item_are_independent():
    """If both annotators of an item shared one draw, they would be one annotator under two names."""
    crowd = simulate_sparse_crowd(
        np.zeros(30_000, dtype=int), TWO, labels_per_item=2, num_annotators=2, generator=seeded(2)
    )
    first, second = (crowd.annotations[:, k].double() for k in range(2))
    assert (second == 2).all()  # for class 0 the second senior always says class 2
    same = simulate_sparse_crowd(
        np.zeros(30_000, dtype=int), Experts("same", TWO.classes, TWO.seniors[:1]),
        labels_per_item=2, num_annotators=2, generator=seeded(2),
    ).annotations.double()  # fmt: skip
    assert first.std() > 0
    assert abs(torch.corrcoef(same.T)[0, 1]) < 6 / 30_000**0.5


@pytest.mark.parametrize("wrong", [0, 8])
def test_sparse_crowd_rejects_labels_per_item_out_of_range(wrong):
    """More votes than annotators would have to come from nobody."""
    with pytest.raises(ValueError, match=rf"must lie in 1\.\.M = 1\.\.7, got {wrong}"):
        simulate_sparse_crowd([0, 1], TWO, labels_per_item=wrong, num_annotators=7)


# --- hard items


def shares_by_loops(features, true):
    """Compute other class and share item by item, as in the docstring."""
    means = {c: features[true == c].mean(axis=0) for c in set(true.tolist())}
    classes, difficulty = [], []
    for x, c in zip(features, true, strict=True):
        others = {k: np.linalg.norm(x - mean) for k, mean in means.items() if k != c}
        classes.append(min(others, key=others.get))
        difficulty.append(np.linalg.norm(x - means[c]) - others[classes[-1]])
    shares = []
    for i, c in enumerate(true):
        easier = sum(d < difficulty[i] for d, k in zip(difficulty, true, strict=True) if k == c)
        shares.append(((easier + 0.5) / (true == c).sum()) ** 4)
    return np.array(classes), np.array(shares)


@pytest.mark.parametrize("present", [(0, 1, 2), (0, 2)])
def test_look_alikes_agree_with_loops(present):
    """Ranked over all classes, the class in the middle would be hard as a whole; absent classes have no mean."""
    features, true = points(90, seed=3)
    features = np.concatenate([features, np.random.default_rng(4).normal(size=(90, 1))], axis=1)
    kept = np.isin(true, present)
    features, true = features[kept], true[kept]
    found = look_alikes(features, torch.tensor(true))
    classes, shares = shares_by_loops(features, true)
    assert found.classes.tolist() == classes.tolist()
    assert set(found.classes.tolist()) <= set(present)
    assert found.shares.numpy() == pytest.approx(shares)
    for c in present:
        assert found.shares[true == c].mean() == pytest.approx(0.2, abs=0.01)


def test_hard_items_have_the_rates_that_the_formula_says():
    """Each annotator must use their own row, and the item's own other class."""
    features, true = points(60_000)
    votes = simulate_hard_items(true, TWO, features, generator=seeded(5)).annotations
    other, share = (each.numpy() for each in look_alikes(features, torch.tensor(true)))
    hard = share > np.median(share)
    assert set(other[true == 1].tolist()) == {0, 2}
    for m in range(2):
        matrix = TWO.seniors[m].numpy()
        for part in (hard, ~hard):
            for c in range(3):
                items = np.flatnonzero((true == c) & part)
                expected = np.mean(
                    [(1 - share[i]) * matrix[c] + share[i] * matrix[other[i]] for i in items], axis=0
                )  # fmt: skip
                found = np.bincount(votes[items, m], minlength=3) / len(items)
                assert abs(found - expected).max() < 6 * 0.5 / len(items) ** 0.5


def test_all_annotators_err_on_the_same_items():
    """Mistakes spread over all items would be the independent case with other rates."""
    features, true = points(6_000)
    wrong = simulate_hard_items(true, NEVER_WRONG, features, generator=seeded(6)).annotations
    wrong = (wrong != torch.tensor(true)[:, None]).double()
    assert wrong.mean().item() == pytest.approx(0.2, abs=0.02)
    correlation = torch.corrcoef(wrong.T)[~torch.eye(4, dtype=torch.bool)]
    assert correlation.min() > 0.3
    both = (wrong[:, 0] * wrong[:, 1]).mean().item()
    assert both == pytest.approx(1 / 9, abs=0.02)  # the mean of u^8; 0.2^2 if independent


def test_hard_items_need_features_of_each_item_and_two_classes():
    """With other items' features, the items that the classifier finds hard would not be the hard ones."""
    with pytest.raises(ValueError, match=r"`features` must be \(N, D\) = \(2, D\) .*got \(3, 1\)"):
        simulate_hard_items([0, 1], TWO, np.zeros((3, 1)))
    with pytest.raises(ValueError, match="with NaN or infinity"):
        simulate_hard_items([0, 1], TWO, [[0.0], [np.nan]])
    with pytest.raises(ValueError, match="items of at least 2 classes, got 1"):
        simulate_hard_items([1, 1], TWO, np.zeros((2, 1)))
    with pytest.raises(
        ValueError, match=r"`features` must be \(N, D\) in case 'hard_items', got None"
    ):
        simulate_case([0, 1], TWO, "hard_items")


# --- tiring


def test_tiring_annotators_have_the_mean_of_their_matrix_and_guessing():
    """Being tired from the first item on, or never, would give votes of the same shape."""
    true = np.arange(60_000) % 3
    crowd = simulate_tiring_crowd(true, TWO, generator=seeded(7))
    assert crowd.names == ["senior_A", "senior_B"]
    for m in range(2):
        found = counted(true, crowd.annotations[:, m])
        assert abs(found - (TWO.seniors[m].numpy() + 1 / 3) / 2).max() < 6 * 0.5 / 20_000**0.5


def test_accuracy_falls_with_the_number_of_items_labelled(monkeypatch):
    """The order is the annotator's own; sorted by it, the fall in accuracy is visible."""
    monkeypatch.setattr(torch, "randperm", lambda number, generator: torch.arange(number))
    true = np.arange(30_000) % 3
    right = simulate_tiring_crowd(true, NEVER_WRONG, generator=seeded(8)).annotations
    right = (right == torch.tensor(true)[:, None]).double().mean(dim=1)
    for part, rate in zip(right.chunk(10), (np.arange(10) + 0.5) / 10, strict=True):
        assert part.mean().item() == pytest.approx(1 - rate * 2 / 3, abs=0.03)


def test_annotators_tire_each_in_an_order_of_their_own():
    """With one order for all, the last items would be hard for everybody, as in the crowd of hard items."""
    true = np.zeros(30_000, dtype=int)
    right = (
        simulate_tiring_crowd(true, NEVER_WRONG, generator=seeded(9)).annotations == 0
    ).double()
    correlation = torch.corrcoef(right.T)[~torch.eye(4, dtype=torch.bool)]
    assert correlation.abs().max() < 6 / 30_000**0.5
    assert simulate_tiring_crowd([1], NEVER_WRONG).annotations.tolist() == [[1, 1, 1, 1]]


# --- all


@pytest.mark.parametrize("case", MORE_CASES)
def test_a_case_is_a_function_of_the_seed_and_leaves_the_global_generator_alone(case):
    """Otherwise results could not be repeated, and the network initialised afterwards would differ."""
    features, true = points(53)
    before = torch.get_rng_state()
    same, again, other = (
        simulate_case(true, TWO, case, features=features, generator=seeded(seed))
        for seed in (3, 3, 4)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(same.annotators, again.annotators)
    assert torch.equal(same.annotations, again.annotations)
    assert not torch.equal(same.annotations, other.annotations)


@pytest.mark.parametrize("case", MORE_CASES)
@pytest.mark.parametrize("labels", [[0, 3, 1], [], [0.5, 1.0, 2.0]])
def test_a_case_rejects_labels_that_are_no_classes(case, labels):
    """A label of another numbering would select another class's row."""
    with pytest.raises((ValueError, TypeError), match="`labels` must"):
        simulate_case(labels, TWO, case, features=np.zeros((3, 1)))


@pytest.mark.parametrize("case", CASES)
def test_the_papers_cases_are_those_of_simulate_crowd(case):
    """A common entry point for all cases must not change the crowds of published results."""
    true = np.arange(17) % 10
    paper = experts("cifar10", "low")
    found = simulate_case(true, paper, case, generator=seeded(1))
    expected = simulate_crowd(true, paper, case, generator=seeded(1))
    assert found.names == expected.names
    assert torch.equal(found.annotations, expected.annotations)


def test_an_unknown_case_names_all_of_them():
    """A misspelt case drawn as another one would be reported under a wrong name."""
    with pytest.raises(ValueError, match=r"independent, .*, sparse_one, .*, tiring, got 'tired'"):
        simulate_case([0, 1], TWO, "tired")
