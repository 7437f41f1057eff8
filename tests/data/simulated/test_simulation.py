"""Tests of `hf_maxmig.data.simulated.simulation`: the drawn crowds compared with their experts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hf_maxmig.data.simulated.experts import EXPERTS, Experts, experts
from hf_maxmig.data.simulated.simulation import CASES, simulate_crowd, simulate_latent_seniors

# Four seniors on three classes: no two rows of a senior are equal, and some answers are impossible.
CUSTOM = Experts(
    name="custom",
    classes=("a", "b", "c"),
    seniors=torch.tensor(
        [
            [[0.7, 0.2, 0.1], [0.0, 0.9, 0.1], [0.3, 0.3, 0.4]],
            [[0.5, 0.5, 0.0], [0.1, 0.8, 0.1], [0.0, 0.4, 0.6]],
            [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
            [[0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.25, 0.5, 0.25]],
        ]
    ),
    num_naive=2,
    naive_class=1,
    copied=(3, 0, 3),
)


def seeded(seed: int) -> torch.Generator:
    """Return a separate generator for each draw."""
    return torch.Generator().manual_seed(seed)


def balanced(num_items: int, num_classes: int) -> Tensor:
    """Return labels 0, 1, ..., C-1, 0, 1, ..."""
    return torch.arange(num_items) % num_classes


def empirical_confusion(true: Tensor, said: Tensor, num_classes: int) -> Tensor:
    """Return how often each class was reported, by true class, counted one at a time in numpy."""
    counts = np.zeros((num_classes, num_classes))
    np.add.at(counts, (true.numpy(), said.numpy()), 1)
    return torch.from_numpy(counts / counts.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("crowd", [CUSTOM, *EXPERTS.values()], ids=lambda crowd: crowd.name)
def test_simulate_crowd_seniors_follow_their_confusion(crowd: Experts) -> None:
    """With truth in columns, or one senior's matrix used for another, there would still be labels."""
    num_classes = len(crowd.classes)
    true = balanced(30_000, num_classes)
    annotations = simulate_crowd(true, crowd, generator=seeded(0)).annotations
    assert annotations.shape == (30_000, len(crowd.seniors))
    # Six standard deviations of the worst entry, P = 1/2 with N/C items.
    tolerance = 6 * 0.5 / (30_000 / num_classes) ** 0.5
    assert tolerance < 0.06
    for m, confusion in enumerate(crowd.seniors):
        drawn = empirical_confusion(true, annotations[:, m], num_classes)
        assert (drawn - confusion).abs().max() < tolerance
        assert (drawn[confusion == 0] == 0).all()
        assert (drawn[confusion == 1] == 1).all()


def test_simulate_crowd_seniors_err_independently() -> None:
    """Seniors who share random numbers have the right confusion, but err together."""
    true = torch.zeros(30_000, dtype=torch.int64)
    annotations = simulate_crowd(true, experts("luna16", "low"), generator=seeded(1)).annotations
    correlation = torch.corrcoef(annotations.T.double())
    assert correlation.shape == (10, 10)
    off_diagonal = correlation[~torch.eye(10, dtype=torch.bool)]
    assert off_diagonal.abs().max() < 6 / 30_000**0.5


@pytest.mark.parametrize("crowd", [CUSTOM, *EXPERTS.values()], ids=lambda crowd: crowd.name)
def test_simulate_crowd_has_the_same_seniors_in_all_cases(crowd: Experts) -> None:
    """The paper compares the cases at equal information, so all must have the same seniors."""
    true = balanced(97, len(crowd.classes))
    num_seniors = len(crowd.seniors)
    drawn = [simulate_crowd(true, crowd, case, generator=seeded(2)).annotations for case in CASES]
    assert drawn[0].shape[1] == num_seniors
    for annotations in drawn[1:]:
        assert annotations.shape[1] > num_seniors
        assert torch.equal(annotations[:, :num_seniors], drawn[0])


def test_simulate_crowd_naive_juniors_say_one_class() -> None:
    """The paper's data sets would not show juniors who say class 0 whatever `naive_class` is."""
    crowd = simulate_crowd(balanced(11, 3), CUSTOM, "naive_majority", generator=seeded(3))
    assert crowd.annotations.shape == (11, 6)
    assert (crowd.annotations[:, 4:] == 1).all()
    assert not (crowd.annotations[:, :4] == 1).all()


def test_simulate_crowd_copies_are_exact() -> None:
    """A junior drawn anew from the senior's matrix would be a fifth senior, not a copy."""
    annotations = simulate_crowd(
        balanced(53, 3), CUSTOM, "correlated", generator=seeded(4)
    ).annotations
    assert annotations.shape == (53, 7)
    for first, second in [(0, 1), (0, 3), (1, 3)]:  # or a copy of the wrong senior would pass
        assert not torch.equal(annotations[:, first], annotations[:, second])
    for junior, senior in [(4, 3), (5, 0), (6, 3)]:
        assert torch.equal(annotations[:, junior], annotations[:, senior])


@pytest.mark.parametrize(
    ("case", "juniors"),
    [
        ("independent", []),
        ("naive_majority", ["junior_1", "junior_2"]),
        ("correlated", ["junior_1", "junior_2", "junior_3"]),
    ],
)
def test_simulate_crowd_names_every_annotator(case: str, juniors: list[str]) -> None:
    """With one name too few, every report would attribute results to the wrong annotators."""
    crowd = simulate_crowd(balanced(5, 3), CUSTOM, case, generator=seeded(5))
    assert crowd.names == ["senior_A", "senior_B", "senior_C", "senior_D", *juniors]
    assert len(crowd.names) == crowd.annotations.shape[1]


def test_simulate_crowd_names_more_seniors_than_letters() -> None:
    """In the code table, brackets follow after Z."""
    many = Experts("many", ("a", "b"), torch.eye(2).repeat(54, 1, 1))
    names = simulate_crowd([0, 1, 1], many, generator=seeded(6)).names
    assert names[24:29] == ["senior_Y", "senior_Z", "senior_AA", "senior_AB", "senior_AC"]
    assert names[51:] == ["senior_AZ", "senior_BA", "senior_BB"]
    assert len(set(names)) == 54


def test_simulate_crowd_keeps_all_labels_in_order_by_default() -> None:
    """Column k is annotator k only if nobody is left out."""
    crowd = simulate_crowd(balanced(5, 3), CUSTOM, generator=seeded(7))
    assert crowd.annotators.tolist() == [[0, 1, 2, 3]] * 5
    assert crowd.annotators.dtype == crowd.annotations.dtype == torch.int64


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("labels_per_item", [1, 3])
def test_simulate_crowd_labels_per_item_keeps_true_pairs(case: str, labels_per_item: int) -> None:
    """If annotators and annotations were permuted separately, they would be noise of the right shape."""
    true = balanced(41, 3)
    full = simulate_crowd(true, CUSTOM, case, generator=seeded(8))
    some = simulate_crowd(true, CUSTOM, case, labels_per_item=labels_per_item, generator=seeded(8))
    assert some.names == full.names
    assert some.annotators.shape == some.annotations.shape == (41, labels_per_item)
    assert (some.annotators.diff(dim=1) > 0).all()  # ascending, so nobody twice
    assert len({tuple(row) for row in some.annotators.tolist()}) > 1
    for item in range(41):
        for annotator, annotation in zip(
            some.annotators[item].tolist(), some.annotations[item].tolist(), strict=True
        ):
            assert annotation == full.annotations[item, annotator]


def test_simulate_crowd_labels_per_item_favours_nobody() -> None:
    """A draw that keeps the first annotators more often would make them look prolific."""
    crowd = simulate_crowd(
        balanced(10_000, 3), CUSTOM, "correlated", labels_per_item=2, generator=seeded(9)
    )
    share = crowd.annotators.flatten().bincount(minlength=7) / 10_000
    assert (share - 2 / 7).abs().max() < 6 * (2 / 7 * 5 / 7 / 10_000) ** 0.5
    pairs = {tuple(row) for row in crowd.annotators.tolist()}
    assert len(pairs) == 21  # every pair of 7 occurs


def test_simulate_crowd_labels_per_item_of_all_is_everything() -> None:
    """M is a valid number of labels, and must equal None."""
    full = simulate_crowd(balanced(13, 3), CUSTOM, generator=seeded(10))
    same = simulate_crowd(balanced(13, 3), CUSTOM, labels_per_item=4, generator=seeded(10))
    assert torch.equal(same.annotators, full.annotators)
    assert torch.equal(same.annotations, full.annotations)


def test_simulate_crowd_is_a_function_of_the_seed() -> None:
    """Otherwise results could not be repeated, or five seeds would be one experiment five times."""
    true = balanced(61, 3)
    draws = [
        simulate_crowd(true, CUSTOM, labels_per_item=3, generator=seeded(seed))
        for seed in (11, 11, 12)
    ]
    assert torch.equal(draws[0].annotators, draws[1].annotators)
    assert torch.equal(draws[0].annotations, draws[1].annotations)
    assert not torch.equal(draws[0].annotators, draws[2].annotators)
    full = [simulate_crowd(true, CUSTOM, generator=seeded(seed)).annotations for seed in (11, 12)]
    assert not torch.equal(full[0], full[1])


def test_simulate_crowd_leaves_the_global_generator_alone() -> None:
    """A crowd that advances the global state would change the network's initialisation."""
    before = torch.get_rng_state()
    simulate_crowd(balanced(7, 3), CUSTOM, labels_per_item=2, generator=seeded(13))
    assert torch.equal(torch.get_rng_state(), before)


def test_simulate_crowd_without_generator_uses_the_default_one() -> None:
    """None must follow the user's own `torch.manual_seed`, not a hidden constant."""
    true = balanced(61, 3)
    expected = simulate_crowd(true, CUSTOM, generator=seeded(14)).annotations
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(14)
        first = simulate_crowd(true, CUSTOM).annotations
        second = simulate_crowd(true, CUSTOM).annotations
    assert torch.equal(first, expected)
    assert not torch.equal(second, expected)


@pytest.mark.parametrize(
    "convert",
    [
        lambda labels: labels.to(torch.uint8),
        lambda labels: labels.to(torch.int32),
        lambda labels: labels.numpy(),
        lambda labels: labels.tolist(),
    ],
    ids=["uint8", "int32", "numpy", "list"],
)
def test_simulate_crowd_takes_integers_of_any_kind(
    convert: Callable[[Tensor], Any],
) -> None:
    """Torch treats an index of uint8, the usual type of image labels, as a mask."""
    true = balanced(17, 3)
    expected = simulate_crowd(true, CUSTOM, generator=seeded(15)).annotations
    actual = simulate_crowd(convert(true), CUSTOM, generator=seeded(15)).annotations
    assert torch.equal(actual, expected)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 2, 3, 1], r"`labels` must lie in 0\.\.C-1 = 0\.\.2, got 3 at item 2"),
        ([0, -1], r"`labels` must lie in 0\.\.C-1 = 0\.\.2, got -1 at item 1"),
        ([[0, 1]], r"`labels` must be \(N,\) with N at least 1, got \(1, 2\)"),
        (1, r"`labels` must be \(N,\) with N at least 1, got \(\)"),
        ([], r"`labels` must be \(N,\) with N at least 1, got \(0,\)"),
    ],
)
def test_simulate_crowd_rejects_labels_that_are_no_classes(labels: object, message: str) -> None:
    """A label of -1 would index the last class."""
    with pytest.raises(ValueError, match=message):
        simulate_crowd(labels, CUSTOM)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "dtype"), [([0.0, 1.0], "float32"), ([True, False], "bool"), ([1j], "complex64")]
)
def test_simulate_crowd_rejects_labels_that_are_no_integers(labels: object, dtype: str) -> None:
    """Probabilities truncated to integers are all class 0, and an index of bool is a mask."""
    with pytest.raises(TypeError, match=f"`labels` must be integers, got torch.{dtype}"):
        simulate_crowd(labels, CUSTOM)  # type: ignore[arg-type]


def test_simulate_crowd_rejects_an_unknown_case() -> None:
    """The message must list the options."""
    message = "`case` must be one of independent, naive_majority, correlated, got 'naive'"
    with pytest.raises(ValueError, match=message):
        simulate_crowd([0, 1], CUSTOM, "naive")


@pytest.mark.parametrize(
    ("case", "field"), [("naive_majority", "num_naive = 0"), ("correlated", r"copied = \(\)")]
)
def test_simulate_crowd_rejects_a_case_without_its_juniors(case: str, field: str) -> None:
    """Without juniors, cases 4.2 and 4.3 would be the independent one under another name."""
    alone = Experts("alone", CUSTOM.classes, CUSTOM.seniors)
    assert simulate_crowd([0, 1], alone).annotations.shape == (2, 4)
    with pytest.raises(ValueError, match=f"without juniors, got '{case}' with {field}"):
        simulate_crowd([0, 1], alone, case)


@pytest.mark.parametrize(("case", "num_annotators"), [("independent", 4), ("naive_majority", 6)])
@pytest.mark.parametrize("excess", [None, 1])
def test_simulate_crowd_rejects_labels_per_item_out_of_range(
    case: str, num_annotators: int, excess: int | None
) -> None:
    """Slicing would give M labels if more are requested, and none for 0."""
    wrong = 0 if excess is None else num_annotators + excess
    message = rf"`labels_per_item` must lie in 1\.\.M = 1\.\.{num_annotators}, got {wrong}"
    with pytest.raises(ValueError, match=message):
        simulate_crowd([0, 1], CUSTOM, case, labels_per_item=wrong)


# --- latent seniors
# ---------------------------------------------------------------------------------------------------


def test_latent_seniors_answer_as_seniors_in_sight() -> None:
    """The comparison is about hiding the seniors, so they must be the same."""
    true = balanced(97, 3)
    seen = simulate_crowd(true, CUSTOM, generator=seeded(2)).annotations
    hidden = simulate_latent_seniors(true, CUSTOM, generator=seeded(2))
    first, second = hidden.annotations[:, 0::2], hidden.annotations[:, 1::2]
    assert torch.equal((second - first) % 3, seen)
    assert hidden.annotations.min() == 0
    assert hidden.annotations.max() == 2


def test_latent_seniors_names_say_which_juniors_belong_together() -> None:
    """With consecutive numbers, readers of a report could not see the pairs.

    CUSTOM's own juniors are not used.
    """
    crowd = simulate_latent_seniors(balanced(5, 3), CUSTOM, generator=seeded(5))
    assert crowd.names[:3] == ["junior_A1", "junior_A2", "junior_B1"]
    assert len(set(crowd.names)) == 8
    assert crowd.annotators.tolist() == [list(range(8))] * 5


def test_latent_seniors_leave_each_junior_and_each_two_of_two_seniors_uniform() -> None:
    """With one coin for all pairs, juniors of two seniors could carry information together."""
    true = torch.ones(30_000, dtype=torch.int64)
    annotations = simulate_latent_seniors(true, CUSTOM, generator=seeded(1)).annotations
    for first, second in [(0, 2), (0, 3), (1, 3), (1, 2), (5, 6)]:
        joint = torch.bincount(3 * annotations[:, first] + annotations[:, second], minlength=9)
        assert (joint / 30_000 - 1 / 9).abs().max() < 6 * 0.32 / 30_000**0.5
    pair = torch.bincount(3 * annotations[:, 0] + annotations[:, 1], minlength=9) / 30_000
    assert (pair - 1 / 9).abs().max() > 0.1


def test_latent_seniors_are_a_function_of_the_seed() -> None:
    """A draw from the global generator could not be repeated, and would change everything after it."""
    before = torch.get_rng_state()
    same, again, other = (
        simulate_latent_seniors(balanced(53, 3), CUSTOM, generator=seeded(seed)).annotations
        for seed in (3, 3, 4)
    )
    assert torch.equal(same, again)
    assert not torch.equal(same, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_latent_seniors_reject_labels_that_are_no_classes() -> None:
    """The modulo would wrap an index that is out of range."""
    with pytest.raises(ValueError, match=r"`labels` must lie in 0..C-1 = 0..2, got 3 at item 1."):
        simulate_latent_seniors([0, 3], CUSTOM)
