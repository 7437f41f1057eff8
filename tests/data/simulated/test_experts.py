"""Tests of `hf_maxmig.data.simulated.experts` against a second transcription of the paper's Appendix B."""

import pytest
import torch
from torch import Tensor

from hf_maxmig.data.simulated.experts import EXPERTS, Experts, experts, uniform_mistakes

# A second transcription of Appendix B, by name. Two classes: P(right) in the paper's own order of
# the names.
BINARY = {
    ("dogs_vs_cats", "high"): (
        ("dog", "cat"),
        [(0.6, 0.8), (0.6, 0.6), (0.9, 0.6), (0.7, 0.7), (0.6, 0.7)],
    ),
    ("dogs_vs_cats", "low"): (("dog", "cat"), [(0.55, 0.55)] * 10),
    ("luna16", "high"): (
        ("benign", "malignant"),
        [(0.6, 0.9), (0.7, 0.7), (0.9, 0.6), (0.6, 0.7), (0.7, 0.6)],
    ),
    ("luna16", "low"): (("benign", "malignant"), [(0.6, 0.6)] * 10),
}
PARTNER = {
    "cat": "dog", "dog": "cat", "deer": "horse", "horse": "deer", "frog": "ship", "ship": "frog",
    "airplane": "bird", "bird": "airplane", "automobile": "truck", "truck": "automobile",
}  # fmt: skip
FIRST_NAMED = {"cat", "deer", "airplane", "automobile", "frog"}
MAMMALS = {"cat", "dog", "deer", "horse"}


def right_on_cifar10(senior: str, truth: str) -> float:
    """P(right) of a senior of CIFAR-10 (H), sentence by sentence from the appendix."""
    same_class = 1.0 if truth in FIRST_NAMED else 0.0
    if senior == "A":
        return same_class
    if senior == "B":
        return 0.5
    if senior == "C":
        return 1.0 if truth in MAMMALS else 0.5
    if senior == "D":
        return same_class if truth in MAMMALS else 1.0
    return 0.6


def three_classes(**changes: object) -> Experts:
    """Return two seniors on three classes, with one or more fields changed."""
    fields: dict[str, object] = {
        "name": "birds",
        "classes": ("crow", "raven", "rook"),
        "seniors": torch.tensor(
            [
                [[0.7, 0.2, 0.1], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]],
                [[0.5, 0.5, 0.0], [0.1, 0.8, 0.1], [0.0, 0.4, 0.6]],
            ]
        ),
    }
    return Experts(**(fields | changes))  # type: ignore[arg-type]


def changed(seniors: Tensor, where: tuple[int, int, int], value: float) -> Tensor:
    """Return a copy of `seniors` with one entry replaced."""
    copy = seniors.clone()
    copy[where] = value
    return copy


@pytest.mark.parametrize("key", BINARY, ids="-".join)
def test_experts_binary_confusions_are_the_papers(key: tuple[str, str]) -> None:
    """The paper writes dogs/cats, but class 0 is cat. Swapped numbers would look just as plausible."""
    names, expected = BINARY[key]
    crowd = experts(*key)
    assert sorted(crowd.classes) == sorted(names)
    assert crowd.seniors.shape == (len(expected), 2, 2)
    for confusion, both_right in zip(crowd.seniors, expected, strict=True):
        for name, right in zip(names, both_right, strict=True):
            truth = crowd.classes.index(name)
            assert confusion[truth, truth].item() == pytest.approx(right, abs=1e-12)
            assert confusion[truth, 1 - truth].item() == pytest.approx(1 - right, abs=1e-12)


def test_experts_cifar10_high_mistakes_stay_in_hard_pairs() -> None:
    """With a pair, a direction or an expert mixed up, the problem would be another one of equal difficulty."""
    crowd = experts("cifar10", "high")
    assert crowd.seniors.shape == (5, 10, 10)
    for senior, confusion in zip("ABCDE", crowd.seniors, strict=True):
        for truth in crowd.classes:
            right = right_on_cifar10(senior, truth)
            for said in crowd.classes:
                expected = right if said == truth else 1 - right if said == PARTNER[truth] else 0.0
                actual = confusion[crowd.classes.index(truth), crowd.classes.index(said)].item()
                assert actual == pytest.approx(expected, abs=1e-12), (senior, truth, said)


def test_experts_cifar10_low_mistakes_are_uniform() -> None:
    """With 0.8 / 10 in place of 0.8 / 9 the experts would be right too often."""
    seniors = experts("cifar10", "low").seniors
    assert seniors.shape == (10, 10, 10)
    expected = [[[0.2 if c == r else 0.8 / 9 for r in range(10)] for c in range(10)]] * 10
    torch.testing.assert_close(seniors, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("dataset", "classes", "naive"),
    [
        ("dogs_vs_cats", ("cat", "dog"), "cat"),
        (
            "cifar10",
            (
                "airplane", "automobile", "bird", "cat", "deer",
                "dog", "frog", "horse", "ship", "truck",
            ),
            "airplane",
        ),
        ("luna16", ("benign", "malignant"), "benign"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("expertise", "num_naive", "copied"), [("high", 5, "AACCC"), ("low", 15, "AC")]
)
def test_experts_juniors_are_the_papers(
    dataset: str,
    classes: tuple[str, ...],
    naive: str,
    expertise: str,
    num_naive: int,
    copied: str,
) -> None:
    """The authors' code has other juniors in two places, and the class order must fit the data sets."""
    crowd = experts(dataset, expertise)
    assert crowd.classes == classes
    assert crowd.classes[crowd.naive_class] == naive
    assert crowd.num_naive == num_naive
    assert "".join("ABCDEFGHIJ"[senior] for senior in crowd.copied) == copied


def test_experts_table_holds_six_different_crowds() -> None:
    """A key that returns its neighbour's row would pass every test of a single row."""
    expected = {(d, e) for d in ("dogs_vs_cats", "cifar10", "luna16") for e in ("high", "low")}
    assert set(EXPERTS) == expected
    assert len({crowd.name for crowd in EXPERTS.values()}) == 6
    for crowd in EXPERTS.values():
        assert crowd.seniors.dtype == torch.float64


def test_experts_custom_crowd_has_no_juniors_by_default() -> None:
    """A user who only passes confusion matrices must get float64 with unchanged values."""
    crowd = three_classes()
    assert (crowd.num_naive, crowd.naive_class, crowd.copied) == (0, 0, ())
    assert crowd.seniors.dtype == torch.float64
    assert crowd.seniors.shape == (2, 3, 3)
    assert crowd.seniors[0, 0].tolist() == pytest.approx([0.7, 0.2, 0.1], abs=1e-7)


def test_experts_compare_by_identity() -> None:
    """Equality by fields would need the truth value of a tensor, and raise."""
    crowd = three_classes()
    assert crowd == crowd
    assert crowd != three_classes()


def test_experts_reject_a_transposed_matrix() -> None:
    """Some libraries have the truth in columns, and their matrices must not be taken for ours."""
    seniors = three_classes().seniors
    with pytest.raises(ValueError, match=r"sum to 1, got 1\.5 at senior 0, true class 1: rows are"):
        three_classes(seniors=seniors.mT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ("crow",)}, r"`classes` must be at least 2 distinct names, got \('crow',\)"),
        (
            {"classes": ("crow", "rook", "crow")},
            r"`classes` must be at least 2 distinct names, got \('crow', 'rook', 'crow'\)",
        ),
        (
            {"classes": ("crow", "raven", "rook", "jay")},
            r"`seniors` must be \(M_s, C, C\) = \(M_s, 4, 4\), .* got \(2, 3, 3\)",
        ),
        ({"seniors": torch.ones(3, 3)}, r"\(M_s, 3, 3\), M_s at least 1, got \(3, 3\)"),
        ({"seniors": torch.ones(0, 3, 3)}, r"M_s at least 1, got \(0, 3, 3\)"),
        ({"num_naive": -1}, r"`num_naive` must be at least 0, got -1"),
        ({"naive_class": 3}, r"`naive_class` must lie in 0\.\.C-1 = 0\.\.2, got 3"),
        ({"naive_class": -1}, r"`naive_class` must lie in 0\.\.C-1 = 0\.\.2, got -1"),
        ({"copied": (0, 2)}, r"`copied` must lie in 0\.\.M_s-1 = 0\.\.1, got 2 at junior 1"),
        ({"copied": (-1,)}, r"`copied` must lie in 0\.\.M_s-1 = 0\.\.1, got -1 at junior 0"),
    ],
)
def test_experts_reject_fields_that_do_not_fit(changes: dict[str, object], message: str) -> None:
    """Negative or too large indices would otherwise select another class or senior, or nobody."""
    with pytest.raises(ValueError, match=message):
        three_classes(**changes)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, r"must lie in 0\.\.1, got 1\.5 at senior 1, true class 2, reported class 0"),
        (-0.25, r"must lie in 0\.\.1, got -0\.25 at senior 1, true class 2, reported class 0"),
        (float("nan"), r"must lie in 0\.\.1, got nan at senior 1, true class 2, reported class 0"),
        (0.25, r"must have rows that sum to 1, got 1\.25 at senior 1, true class 2"),
    ],
)
def test_experts_reject_rows_that_are_no_distribution(value: float, message: str) -> None:
    """Sampling would silently normalise such rows and draw another crowd."""
    seniors = three_classes().seniors
    with pytest.raises(ValueError, match=message):
        three_classes(seniors=changed(seniors, (1, 2, 0), value))


@pytest.mark.parametrize(
    ("seniors", "actual"),
    [(torch.eye(3, dtype=torch.int64).unsqueeze(0), "torch.int64"), ([[[1.0]]], "list")],
)
def test_experts_reject_seniors_that_are_not_floating(seniors: object, actual: str) -> None:
    """A matrix of counts is not a confusion matrix of probabilities."""
    with pytest.raises(TypeError, match=f"floating-point tensor, got {actual}"):
        three_classes(seniors=seniors)


def test_experts_reject_unknown_names() -> None:
    """After a typing error, the message should list the options."""
    message = "`dataset` must be one of dogs_vs_cats, cifar10, luna16, got 'cifar100'"
    with pytest.raises(ValueError, match=message):
        experts("cifar100", "high")
    with pytest.raises(ValueError, match="`expertise` must be one of high, low, got 'H'"):
        experts("cifar10", "H")


def test_uniform_mistakes_spreads_each_row_alone() -> None:
    """The given probability is that of the true class: a row, not a column."""
    expected = [[0.4, 0.3, 0.3], [0.0, 1.0, 0.0], [0.45, 0.45, 0.1]]
    torch.testing.assert_close(
        uniform_mistakes(0.4, 1.0, 0.1), torch.tensor(expected, dtype=torch.float64)
    )


def test_uniform_mistakes_rejects_what_is_no_probability() -> None:
    """Percentages and a lone number are the likely mistakes."""
    with pytest.raises(ValueError, match=r"`right` must lie in 0\.\.1, got 60 at class 1"):
        uniform_mistakes(0.5, 60)
    with pytest.raises(ValueError, match="`right` must be at least 2 probabilities.* got 1"):
        uniform_mistakes(0.5)
