"""Tests of `hf_maxmig.model.functional`: the paper's formulas against naive loops in float64."""

import math
import re
from itertools import combinations, permutations

import pytest
import torch
from torch import Tensor

from hf_maxmig.model import divergences
from hf_maxmig.model.divergences import DIVERGENCES
from hf_maxmig.model.functional import (
    aggregate,
    aggregate_factored,
    confusion,
    confusion_counts,
    confusion_sums,
    forecast,
    initial_weight,
    mutual_information_gain,
    normalize_counts,
    reward_and_penalty,
    vote_share,
    vote_share_prior,
    widen,
)
from tests import reference
from tests.gains import log_tables, value_and_gradients

every_row = pytest.mark.parametrize("name", DIVERGENCES)
every_size = pytest.mark.parametrize(("N", "C"), [(5, 3), (3, 7), (2, 4)])

# Five items, four annotators, three classes. Padding occurs at any place and in either tensor;
# annotator 1 said 2 about item 0 twice; item 3 has no labels; annotator 2 has no valid label.
M, C = 4, 3
ANNOTATORS = torch.tensor(
    [[1, -1, 1, 3], [-1, 0, 2, 3], [3, 0, 1, -1], [2, -1, -1, 0], [0, -1, -1, -1]]
)
ANNOTATIONS = torch.tensor(
    [[2, 1, 2, 0], [0, 2, -1, 1], [1, 1, 0, -1], [-1, 0, -1, -1], [1, 2, -1, 0]]
)


def reference_gain(tables: list[Tensor], name: str, annotated: Tensor | None = None) -> Tensor:
    """Return the gain by loops: from the printed table, or from f alone for a row that the paper does not have."""
    row = reference.TABLE_1.get(name) or reference.slope_and_conjugate(DIVERGENCES[name].f)
    h, g, p = (table.double().exp() for table in tables)
    return reference.gain(h, g, p, row, annotated)


def one_hot_logits(size: float, *classes: int, C: int = 3) -> Tensor:
    """Return (N, C) float32 logits: `size` for the named class, zero elsewhere."""
    return torch.eye(C)[list(classes)] * size


# --- the gain
# ---------------------------------------------------------------------------------------------------------


@every_row
@every_size
@pytest.mark.parametrize("through", [False, True], ids=["log-probabilities", "logits"])
def test_gain_equals_the_double_loop(name: str, N: int, C: int, through: bool) -> None:
    """Equation 1 is implemented in closed form.

    An error there would train something that only resembles the paper.
    """
    leaves = log_tables(N, C)
    value, grads = value_and_gradients(
        lambda t: mutual_information_gain(*t, divergence=name), leaves, through
    )
    expected, expected_grads = value_and_gradients(
        lambda t: reference_gain(t, name), leaves, through
    )
    assert abs(float(expected)) > 0.01
    assert all(grad.abs().max() > 1e-3 for grad in expected_grads)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(grads, expected_grads, rtol=1e-10, atol=1e-10)


@every_row
@pytest.mark.parametrize("through", [False, True], ids=["log-probabilities", "logits"])
def test_gain_of_annotated_items_equals_the_double_loop(name: str, through: bool) -> None:
    """A batch in which some items have no labels must count neither those items nor their pairs."""
    leaves, annotated = log_tables(7, 3), torch.tensor([1, 0, 1, 1, 0, 1, 1]).bool()
    value, grads = value_and_gradients(
        lambda t: mutual_information_gain(*t, divergence=name, annotated=annotated), leaves, through
    )
    expected, expected_grads = value_and_gradients(
        lambda t: reference_gain(t, name, annotated), leaves, through
    )
    all_items = mutual_information_gain(*leaves, divergence=name)
    assert abs(float(expected - all_items)) > 1e-3
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(grads, expected_grads, rtol=1e-10, atol=1e-10)
    only = [leaf[annotated] for leaf in leaves[:2]]
    alone = mutual_information_gain(*only, leaves[2], divergence=name)
    torch.testing.assert_close(value, alone, rtol=1e-12, atol=1e-12)


@every_row
def test_gain_with_everything_annotated_is_the_gain_without_the_mask(name: str) -> None:
    """A mask that excludes nothing must change nothing."""
    tables = log_tables(5, 3)
    with_mask = mutual_information_gain(*tables, divergence=name, annotated=torch.ones(5).bool())
    torch.testing.assert_close(with_mask, mutual_information_gain(*tables, divergence=name))


@every_row
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "value",
    [-1e4, 0.0, 5.0, 1e4],
)
def test_gain_does_not_see_items_without_annotations(
    name: str, dtype: torch.dtype, value: float
) -> None:
    """What the network makes of an unlabelled item must not reach the loss, not even as inf * 0."""
    annotated = torch.tensor([1, 0, 1, 1, 0]).bool()
    tables = [table.to(dtype) for table in log_tables(5, 3)]
    expected = mutual_information_gain(*tables, divergence=name, annotated=annotated)
    leaves = [table.clone() for table in tables]
    for leaf in leaves[:2]:
        leaf[1], leaf[4] = value, torch.tensor([value, 2 * value, -abs(value)])
    gain, grads = value_and_gradients(
        lambda t: mutual_information_gain(*t, divergence=name, annotated=annotated), leaves
    )
    torch.testing.assert_close(gain, expected, rtol=0, atol=1e-6)
    for grad in grads[:2]:
        assert (grad[~annotated] == 0).all()
        assert (grad[annotated] != 0).any()
    assert all(grad.isfinite().all() for grad in grads)


def sure_tables(size: float) -> list[Tensor]:
    """Return confident logits of a classifier and an aggregator that agree on one item of four."""
    h, g = one_hot_logits(size, 0, 1, 2, 0), one_hot_logits(size, 1, 2, 0, 0)
    return [h, g, torch.tensor([0.2, -0.3, 0.1])]


@every_row
def test_gain_at_log_probabilities_of_minus_200_is_exact_in_float32(name: str) -> None:
    """exp(-200) underflows in float32.

    Outside log space it becomes log(0), or needs an epsilon that moves the maximum.
    """
    leaves = [table.log_softmax(-1) for table in sure_tables(200.0)]
    assert leaves[0].dtype == torch.float32
    assert leaves[0].min() <= -200
    assert float(leaves[0].min().exp()) == 0
    value, grads = value_and_gradients(
        lambda t: mutual_information_gain(*t, divergence=name), leaves
    )
    expected, expected_grads = value_and_gradients(lambda t: reference_gain(t, name), leaves)
    assert all(grad.isfinite().all() for grad in (expected, *expected_grads))
    torch.testing.assert_close(value, expected, check_dtype=False, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grads, expected_grads, check_dtype=False, rtol=1e-5, atol=1e-5)


@every_row
def test_gain_of_one_hot_disagreement_is_finite(name: str) -> None:
    """Logits of 1e4 are probabilities of exactly zero and one. The gradient must still point somewhere."""
    leaves = sure_tables(1e4)
    for logits in leaves[:2]:
        probabilities = logits.softmax(-1)
        assert ((probabilities == 0) | (probabilities == 1)).all()
    assert (leaves[0].argmax(1) != leaves[1].argmax(1)).sum() == 3
    value, grads = value_and_gradients(
        lambda t: mutual_information_gain(*t, divergence=name), leaves, through=True
    )
    assert value.isfinite()
    assert all(grad.isfinite().all() for grad in grads)
    if name == "kl":
        # log K_ii = -1e4 + log(1 / p_a + 1 / p_b) on the three items that disagree.
        assert float(value) == pytest.approx(-7500, rel=1e-2)
        assert grads[0].abs().max() > 0.1


@every_row
def test_gain_of_half_precision_is_float32(name: str) -> None:
    """A mean over N^2 pairs in bfloat16 has two digits.

    The result must be that of the inputs widened to float32.
    """
    tables = [table.bfloat16() for table in log_tables(5, 3)]
    leaves = [table.clone().requires_grad_() for table in tables]
    gain = mutual_information_gain(*leaves, divergence=name)
    assert gain.dtype == torch.float32
    wide = mutual_information_gain(*(table.float() for table in tables), divergence=name)
    assert gain.detach() == wide
    gain.backward()
    assert all(leaf.grad.dtype == torch.bfloat16 for leaf in leaves)
    reward, penalty = reward_and_penalty(*tables, divergence=name)
    assert reward.dtype == penalty.dtype == torch.float32


@every_row
def test_gain_of_float64_stays_float64(name: str) -> None:
    """Otherwise these tests, and every gradient check, would compare rounding errors."""
    tables = log_tables(5, 3)
    assert mutual_information_gain(*tables, divergence=name).dtype == torch.float64
    assert widen(tables[0]) is tables[0]
    assert widen(tables[0].half()).dtype == torch.float32


@every_row
@pytest.mark.parametrize("elements", [20, 1 << 22])
def test_gain_does_not_feel_autocast(
    name: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `bf16=True`, autocast would silently run the closed forms' matrix products in bfloat16."""
    monkeypatch.setattr(divergences, "BLOCK_ELEMENTS", elements)
    leaves = [table.requires_grad_() for table in log_tables(9, 3, dtype=torch.float32)]
    h, g = (leaf.detach().exp() for leaf in leaves[:2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch.equal((h.T @ g).float(), h.T.double().mm(g.double()).float())
        inside = mutual_information_gain(*leaves, divergence=name)
    outside = mutual_information_gain(*leaves, divergence=name)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)
    grads = torch.autograd.grad(inside, leaves), torch.autograd.grad(outside, leaves)
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_aggregate_and_forecast_do_not_feel_autocast() -> None:
    """Evidence summed in bfloat16 would lose the labels that came first."""
    tables, weight = log_tables(5, C, dtype=torch.float32), some_weight(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (weight[0] @ weight[1]).dtype == torch.bfloat16
        inside = (
            aggregate(weight, tables[2], ANNOTATORS, ANNOTATIONS),
            forecast(*tables),
        )
    outside = aggregate(weight, tables[2], ANNOTATORS, ANNOTATIONS), forecast(*tables)
    for a, b in zip(inside, outside, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


@every_row
def test_gain_is_unbiased_over_batches(name: str) -> None:
    """Micro-batches and devices average their gains.

    Only a U-statistic has the same mean at every batch size.
    """
    log_h, log_g, log_p = log_tables(6, 3)
    parts = [
        mutual_information_gain(log_h[list(part)], log_g[list(part)], log_p, name)
        for part in combinations(range(6), 3)
    ]
    assert len(parts) == 20
    assert float(torch.stack(parts).std()) > 0.05
    whole = mutual_information_gain(log_h, log_g, log_p, name)
    torch.testing.assert_close(torch.stack(parts).mean(), whole, rtol=1e-12, atol=1e-12)


@every_row
def test_gain_does_not_depend_on_names_or_order(name: str) -> None:
    """The gain cannot tell which class has which name (`class_names.py` does), and a batch has no order."""
    log_h, log_g, log_p = log_tables(5, 3)
    gain = mutual_information_gain(log_h, log_g, log_p, name)
    classes, items = torch.tensor([2, 0, 1]), torch.tensor([3, 0, 4, 1, 2])
    renamed = mutual_information_gain(log_h[:, classes], log_g[:, classes], log_p[classes], name)
    shuffled = mutual_information_gain(log_h[items], log_g[items], log_p, name)
    torch.testing.assert_close(renamed, gain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(shuffled, gain, rtol=1e-12, atol=1e-12)
    alone = mutual_information_gain(log_h[items], log_g, log_p, name)
    assert abs(float(alone - gain)) > 1e-2  # but h and g must belong to the same item
    assert abs(float(mutual_information_gain(log_h[:, classes], log_g, log_p, name) - gain)) > 1e-2


@every_row
def test_gain_is_reward_less_penalty(name: str) -> None:
    """The training step calls the half without checks. Both must follow the same formula."""
    tables = log_tables(5, 3)
    reward, penalty = reward_and_penalty(*tables, divergence=name)
    assert reward.shape == penalty.shape == ()
    assert reward - penalty == mutual_information_gain(*tables, divergence=name)
    log_k = torch.stack([sum_of(*tables, i, i).log() for i in range(5)])
    mean = DIVERGENCES[name].reward(log_k).mean()
    torch.testing.assert_close(reward, mean, rtol=1e-12, atol=1e-12)


def sum_of(log_h: Tensor, log_g: Tensor, log_p: Tensor, i: int, j: int) -> Tensor:
    """Return K_ij."""
    return (log_h[i].exp() * log_g[j].exp() / log_p.exp()).sum()


def test_gain_is_kl_unless_asked() -> None:
    """The paper's results use KL. Another default would reproduce other numbers."""
    tables = log_tables(5, 3)
    gains = {name: float(mutual_information_gain(*tables, divergence=name)) for name in DIVERGENCES}
    assert len(set(gains.values())) == len(DIVERGENCES)
    assert float(mutual_information_gain(*tables)) == gains["kl"]
    assert reward_and_penalty(*tables) == reward_and_penalty(*tables, divergence="kl")


@every_row
@pytest.mark.parametrize("annotated", [0, 1])
def test_gain_of_fewer_than_two_annotated_items_is_refused(name: str, annotated: int) -> None:
    """A mean over no pairs is 0 / 0. The loss would be NaN or, worse, finite and meaningless."""
    mask = torch.arange(5) < annotated
    assert int(mask.sum()) == annotated
    message = (
        f"the gain needs at least 2 items with annotations in a batch, got {annotated}: "
        "it compares each item with the others."
    )
    for tables, taken in (
        (log_tables(5, 3), mask),
        (log_tables(annotated, 3), None),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            mutual_information_gain(*tables, divergence=name, annotated=taken)


@every_row
@pytest.mark.parametrize("annotated", [0, 1])
def test_reward_and_penalty_of_fewer_than_two_annotated_items_are_finite(
    name: str, annotated: int
) -> None:
    """The training step cancels such a batch by a factor of zero, and 0 * nan is nan."""
    for tables, mask in (
        (log_tables(5, 3), torch.arange(5) < annotated),
        (log_tables(annotated, 3), None),
    ):
        leaves = [table.requires_grad_() for table in tables]
        reward, penalty = reward_and_penalty(*leaves, divergence=name, annotated=mask)
        assert reward.isfinite()
        assert penalty.isfinite()
        grads = torch.autograd.grad(reward - penalty, leaves)
        assert all(grad.isfinite().all() for grad in grads)
        assert bool((grads[0] != 0).any()) == bool(annotated)


def test_gain_of_tables_that_do_not_fit_is_refused() -> None:
    """An h of a single item would silently broadcast over all rows of g."""
    log_h, log_g, log_p = log_tables(5, 3)
    for h, g in ((log_h[:1], log_g), (log_h[:, :2], log_g), (log_h[0], log_g[0])):
        message = (
            f"`log_h` and `log_g` must have the same shape (N, C), got {tuple(h.shape)} and "
            f"{tuple(g.shape)}: row i of both belongs to item i."
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            mutual_information_gain(h, g, log_p)
    for p in (log_p[:1], log_p[None], log_p.sum()):
        message = f"`log_p` must have shape (C,) = (3,), got {tuple(p.shape)}."
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            mutual_information_gain(log_h, log_g, p)
    with pytest.raises(ValueError, match="`divergence` must be one of"):
        mutual_information_gain(log_h, log_g, log_p, "KL")


@every_row
@pytest.mark.parametrize("mask", [None, [1, 0, 1, 1, 0]])
def test_gain_passes_gradcheck(name: str, mask: list[int] | None) -> None:
    """The reference's gradient also comes from autograd. Finite differences are independent of it."""
    annotated = None if mask is None else torch.tensor(mask).bool()
    leaves = [table.requires_grad_() for table in log_tables(5, 3)]
    assert torch.autograd.gradcheck(
        lambda *t: mutual_information_gain(*t, divergence=name, annotated=annotated), leaves
    )


# --- the aggregator
# ---------------------------------------------------------------------------------------------------


def some_weight(dtype: torch.dtype = torch.float64) -> Tensor:
    """Return W of four annotators and three classes, with no two entries alike."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(M, C, C, generator=generator, dtype=torch.float64).to(dtype)


LOG_P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()


def given_pairs() -> set[tuple[int, int]]:
    """Return (annotator, annotation) of every label in the batch that is not padding."""
    pairs = zip(ANNOTATORS.flatten().tolist(), ANNOTATIONS.flatten().tolist(), strict=True)
    return {(m, r) for m, r in pairs if m >= 0 and r >= 0}


def test_batch_has_the_hard_cases() -> None:
    """The tests below need these cases: padding in either tensor and in the middle, repeated labels, an empty item."""
    padded_who, padded_what = ANNOTATORS < 0, ANNOTATIONS < 0
    assert (padded_who & ~padded_what).any()
    assert (padded_what & ~padded_who).any()
    assert (padded_who[0, 1], padded_who[0, 2]) == (True, False)
    assert (ANNOTATORS[0, 0], ANNOTATIONS[0, 0]) == (ANNOTATORS[0, 2], ANNOTATIONS[0, 2])
    empty = (padded_who | padded_what).all(dim=1)
    assert empty.tolist() == [False, False, False, True, False]
    assert 2 not in {m for m, _ in given_pairs()}


def test_aggregate_equals_the_loops() -> None:
    """A transposed W would score the reported class by the true one, and would still train."""
    log_g = aggregate(some_weight(), LOG_P, ANNOTATORS, ANNOTATIONS)
    expected = reference.aggregate(some_weight(), LOG_P.exp(), ANNOTATORS, ANNOTATIONS)
    swapped = reference.aggregate(some_weight().mT, LOG_P.exp(), ANNOTATORS, ANNOTATIONS)
    assert (expected - swapped).abs().max() > 0.1
    assert log_g.dtype == torch.float64
    torch.testing.assert_close(log_g.exp(), expected, rtol=1e-12, atol=1e-12)


def test_aggregate_with_more_classes_than_annotators() -> None:
    """With C > M, an index with exchanged axes leaves the table."""
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(2, 7, 7, generator=generator, dtype=torch.float64)
    log_p = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(-1)
    annotators = torch.tensor([[0, 1], [1, -1], [-1, -1]])
    annotations = torch.tensor([[6, 2], [5, -1], [-1, -1]])
    log_g = aggregate(weight, log_p, annotators, annotations)
    expected = reference.aggregate(weight, log_p.exp(), annotators, annotations)
    torch.testing.assert_close(log_g.exp(), expected, rtol=1e-12, atol=1e-12)


def test_aggregate_without_annotations_is_the_prior() -> None:
    """Padding points at the first column of the first annotator.

    An item that nobody labelled must not read it.
    """
    weight = some_weight().add(5)
    log_g = aggregate(weight, LOG_P, ANNOTATORS, ANNOTATIONS)
    torch.testing.assert_close(log_g[3], LOG_P, rtol=1e-12, atol=1e-12)
    assert (log_g[[0, 1, 2, 4]] - LOG_P).abs().amax(dim=1).min() > 0.1


@pytest.mark.parametrize("place", [0, 2, 4])
def test_aggregate_padding_adds_nothing(place: int) -> None:
    """The longest item sets K. How far an item's row is padded must not change its posterior."""
    expected = aggregate(some_weight(), LOG_P, ANNOTATORS, ANNOTATIONS)

    def padded(table: Tensor, value: int) -> Tensor:
        column = torch.full((len(table), 1), value)
        return torch.cat([table[:, :place], column, table[:, place:]], dim=1)

    for who, what in ((-1, -1), (-1, 2), (1, -1)):
        log_g = aggregate(some_weight(), LOG_P, padded(ANNOTATORS, who), padded(ANNOTATIONS, what))
        torch.testing.assert_close(log_g, expected, rtol=1e-13, atol=1e-13)


def test_aggregate_order_of_labels_does_not_matter() -> None:
    """An item's labels are a set of pairs: their place in the row has no meaning."""
    order = torch.tensor([2, 0, 3, 1])
    log_g = aggregate(some_weight(), LOG_P, ANNOTATORS[:, order], ANNOTATIONS[:, order])
    expected = aggregate(some_weight(), LOG_P, ANNOTATORS, ANNOTATIONS)
    torch.testing.assert_close(log_g, expected, rtol=1e-13, atol=1e-13)


def test_aggregate_counts_a_doubled_label_twice() -> None:
    """An annotator may label an item twice. A set, or a scatter that overwrites, would count it once."""
    pair, label = torch.tensor([[1, 1]]), torch.tensor([[2, 2]])
    weight = some_weight()
    twice = aggregate(weight, LOG_P, pair, label)[0]
    by_hand = (2 * weight[1, :, 2] + LOG_P).log_softmax(-1)
    torch.testing.assert_close(twice, by_hand, rtol=1e-13, atol=1e-13)
    assert (twice - aggregate(weight, LOG_P, pair[:, :1], label[:, :1])[0]).abs().max() > 0.1


def test_aggregate_annotator_of_weight_zero_adds_nothing() -> None:
    """The theorem gives juniors weight zero, so they must be as good as absent."""
    weight = some_weight()
    weight[3] = 0
    without = torch.where(ANNOTATORS == 3, -1, ANNOTATORS)
    assert (without != ANNOTATORS).any()
    log_g = aggregate(weight, LOG_P, ANNOTATORS, ANNOTATIONS)
    expected = aggregate(weight, LOG_P, without, ANNOTATIONS)
    torch.testing.assert_close(log_g, expected, rtol=1e-13, atol=1e-13)


def test_aggregate_permuted_annotators_with_their_weights_change_nothing() -> None:
    """The number of an annotator is only a name."""
    order = torch.tensor([2, 0, 3, 1])  # the new number of each
    weight = torch.empty_like(some_weight())
    weight[order] = some_weight()
    annotators = torch.where(ANNOTATORS >= 0, order[ANNOTATORS], -1)
    log_g = aggregate(weight, LOG_P, annotators, ANNOTATIONS)
    expected = aggregate(some_weight(), LOG_P, ANNOTATORS, ANNOTATIONS)
    torch.testing.assert_close(log_g, expected, rtol=1e-13, atol=1e-13)


def test_aggregate_of_one_label_an_item() -> None:
    """With K = 1 an axis, or a batch of one, is easily squeezed away."""
    log_g = aggregate(some_weight(), LOG_P, ANNOTATORS[:1, :1], ANNOTATIONS[:1, :1])
    assert log_g.shape == (1, C)
    by_hand = (some_weight()[1, :, 2] + LOG_P).log_softmax(-1)
    torch.testing.assert_close(log_g[0], by_hand, rtol=1e-13, atol=1e-13)


def test_aggregate_gradient_reaches_only_the_labels_given() -> None:
    """Padding points at annotator 0, class 0. A gradient there would teach from labels that nobody gave."""
    weight = some_weight().requires_grad_()
    log_g = aggregate(weight, LOG_P, ANNOTATORS, ANNOTATIONS)
    grad = torch.autograd.grad(log_g[:, 0].sum(), weight)[0]
    used = torch.zeros(M, C, dtype=torch.bool)
    for m, r in given_pairs():
        used[m, r] = True
    assert not used[0, 0]
    assert (grad.mT[~used] == 0).all()
    assert (grad.mT[used] != 0).all()


def test_aggregate_passes_gradcheck() -> None:
    """W, and the prior if it is learned, are trained through this function alone."""
    leaves = (some_weight().requires_grad_(), LOG_P.clone().requires_grad_())
    assert torch.autograd.gradcheck(lambda w, p: aggregate(w, p, ANNOTATORS, ANNOTATIONS), leaves)


def test_aggregate_takes_a_weight_in_any_memory_order() -> None:
    """The module passes a transposed view. Reading memory in order would transpose every matrix."""
    view = some_weight().mT.contiguous().mT
    assert not view.is_contiguous()
    log_g = aggregate(view, LOG_P, ANNOTATORS, ANNOTATIONS)
    assert torch.equal(log_g, aggregate(some_weight(), LOG_P, ANNOTATORS, ANNOTATIONS))


def test_aggregate_of_a_hundred_thousand_annotators() -> None:
    """The cost must depend on the number of labels.

    One-hot rows of all annotators would take (B, M, C) memory.
    """
    table = torch.zeros(100_000, C, C)
    table[-1, 1, 2] = 3.0
    annotators = torch.tensor([[99_999, 5], [99_998, -1]])
    log_g = aggregate(table, LOG_P.float(), annotators, torch.tensor([[2, 0], [2, -1]]))
    assert log_g.shape == (2, C)
    assert log_g.isfinite().all()
    assert log_g[0].argmax() == 1
    torch.testing.assert_close(log_g[1], LOG_P.float())


# --- the forecaster
# ---------------------------------------------------------------------------------------------------


@every_size
def test_forecast_equals_the_loops(N: int, C: int) -> None:
    """Without the division by p the prior counts twice, which only imbalanced classes show."""
    log_h, log_g, log_p = log_tables(N, C)
    expected = reference.forecast(log_h.exp(), log_g.exp(), log_p.exp())
    doubled = (log_h + log_g).softmax(-1)
    assert (doubled - expected).abs().max() > 0.05
    found = forecast(log_h, log_g, log_p)
    torch.testing.assert_close(found.exp(), expected, rtol=1e-12, atol=1e-12)


def test_forecast_of_two_witnesses_is_surer_than_each() -> None:
    """Two independent witnesses who are each right 80 % of the time give 64 : 4, not 80 %."""
    half, says = torch.tensor([0.5, 0.5]).log(), torch.tensor([[0.8, 0.2]]).log()
    found = forecast(says, says, half).exp()
    torch.testing.assert_close(found, torch.tensor([[64.0, 4.0]]) / 68)


def test_forecast_of_an_ignorant_half_is_the_other_half() -> None:
    """Where the crowd is silent, g is the prior, and the forecast must be the classifier's."""
    log_h, _, log_p = log_tables(5, 3)
    torch.testing.assert_close(forecast(log_h, log_p.expand(5, 3), log_p), log_h)
    torch.testing.assert_close(forecast(log_p.expand(5, 3), log_h, log_p), log_h)


def test_forecast_is_finite_and_wide_for_half_precision_and_sure_inputs() -> None:
    """Two confident witnesses who disagree must give a distribution, not NaN."""
    log_h, log_g, log_p = (table.log_softmax(-1) for table in sure_tables(1e4))
    found = forecast(log_h, log_g, log_p)
    assert found.isfinite().all()
    torch.testing.assert_close(found.exp().sum(1), torch.ones(4))
    narrow = [table.bfloat16() for table in log_tables(5, 3)]
    found = forecast(*narrow)
    assert found.dtype == torch.float32
    assert torch.equal(found, forecast(*(table.float() for table in narrow)))


# --- votes and confusion
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [3, 7])
def test_vote_share_equals_the_loops(num_classes: int) -> None:
    """Divided by K and not by the number of labels, shares would be too low for every item with missing labels."""
    shares = vote_share(ANNOTATIONS, num_classes)
    assert shares.dtype == torch.float32
    assert (ANNOTATIONS < 0).any()
    expected = reference.vote_share(ANNOTATIONS, num_classes)
    torch.testing.assert_close(shares.double(), expected, rtol=1e-6, atol=1e-7)
    assert (shares.sum(1) > 0).all()


def test_vote_share_without_annotations_is_zero() -> None:
    """Padding points at class 0.

    Counted as votes, unlabelled items would tilt the prior and every confusion matrix.
    """
    shares = vote_share(torch.tensor([[-1, -1], [1, -1]]), num_classes=3)
    assert shares.tolist() == [[0, 0, 0], [0, 1, 0]]


# --- shared factors
# ---------------------------------------------------------------------------------------------------


def some_factors(C: int = C) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return P, a, s and d of four annotators, with no two numbers alike."""
    generator = torch.Generator().manual_seed(4)
    shapes = ((C, C), (M,), (M, C), (M, C))
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)  # type: ignore[return-value]


def written_out(factors: tuple[Tensor, Tensor, Tensor, Tensor], speaks_for: Tensor) -> Tensor:
    """Return the W that the factors stand for, computed one number at a time."""
    pooled, scale, shift, diagonal = factors
    C = len(pooled)
    weight = torch.zeros(M, C, C, dtype=torch.float64)
    for m in range(M):
        for c in range(C):
            for r in range(C):
                weight[m, c, r] = scale[m] * pooled[c, r] + shift[m, c]
                if speaks_for[r] == c:
                    weight[m, c, r] += diagonal[m, r]
    return weight


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]], ids=["itself", "another"])
def test_aggregate_factored_equals_the_loops(order: list[int]) -> None:
    """Covers padding, repeated labels and an empty item. Scored and reported classes must not be exchanged."""
    speaks_for, factors = torch.tensor(order), some_factors()
    log_g = aggregate_factored(*factors, LOG_P, ANNOTATORS, ANNOTATIONS, speaks_for)
    weight = written_out(factors, speaks_for)
    expected = reference.aggregate(weight, LOG_P.exp(), ANNOTATORS, ANNOTATIONS)
    swapped = reference.aggregate(weight.mT, LOG_P.exp(), ANNOTATORS, ANNOTATIONS)
    assert (swapped - expected).abs().max() > 0.05
    torch.testing.assert_close(log_g.exp(), expected, rtol=1e-10, atol=1e-12)
    if order == sorted(order):
        plain = aggregate_factored(*factors, LOG_P, ANNOTATORS, ANNOTATIONS)
        assert torch.equal(plain, log_g)


def test_aggregate_factored_with_more_classes_than_annotators() -> None:
    """With C > M, an index with exchanged axes leaves the table."""
    factors, log_p = some_factors(7), torch.full((7,), 1 / 7, dtype=torch.float64).log()
    log_g = aggregate_factored(*factors, log_p, ANNOTATORS, ANNOTATIONS * 3)
    weight = written_out(factors, torch.arange(7))
    expected = reference.aggregate(weight, log_p.exp(), ANNOTATORS, ANNOTATIONS * 3)
    torch.testing.assert_close(log_g.exp(), expected, rtol=1e-10, atol=1e-12)


def test_aggregate_factored_passes_gradcheck() -> None:
    """All four factors, and the prior if it is learned, are trained through this function alone."""
    leaves = [*some_factors(), LOG_P.clone()]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    assert torch.autograd.gradcheck(
        lambda *leaves: aggregate_factored(*leaves, ANNOTATORS, ANNOTATIONS), leaves
    )


def test_aggregate_factored_does_not_feel_autocast() -> None:
    """Evidence is summed over labels, and bfloat16 has only two digits."""
    factors = tuple(factor.float() for factor in some_factors())
    outside = aggregate_factored(*factors, LOG_P.float(), ANNOTATORS, ANNOTATIONS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = aggregate_factored(*factors, LOG_P.float(), ANNOTATORS, ANNOTATIONS)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)


def test_confusion_sums_are_those_of_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are built in parts, with labels missing.

    A label counted for the wrong annotator would shift both of them.
    """
    monkeypatch.setattr("hf_maxmig.model.functional._CELLS", 2 * C)
    posterior = posterior_table()
    counts = confusion_counts(posterior, ANNOTATORS, ANNOTATIONS, M)
    parts = ((posterior[p], ANNOTATORS[p], ANNOTATIONS[p]) for p in (slice(0, 2), slice(2, 5)))
    sums = confusion_sums(parts, M, C)
    right = counts.diagonal(dim1=1, dim2=2)
    assert (counts.sum(0) - counts.sum(0).mT).abs().max() > 0.1
    torch.testing.assert_close(sums.pooled, counts.sum(dim=0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(sums.right.double(), right, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(sums.wrong.double(), counts.sum(dim=2) - right, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(sums.said.double(), counts.sum(dim=1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(sums.mass.double(), posterior.sum(dim=0), rtol=1e-6, atol=1e-6)


def test_confusion_sums_leave_out_items_of_which_nothing_is_thought() -> None:
    """A row of zeros is an item without a posterior: its labels must count for no annotator."""
    posterior = posterior_table()
    posterior[1:] = 0
    sums = confusion_sums([(posterior, ANNOTATORS, ANNOTATIONS)], M, C)
    alone = confusion_sums([(posterior[:1], ANNOTATORS[:1], ANNOTATIONS[:1])], M, C)
    for found, expected in zip(sums, alone, strict=True):
        torch.testing.assert_close(found, expected)
    assert sums.said.sum() > 0


def posterior_table() -> Tensor:
    """Return (5, C) posteriors of the items of the batch, all different and none the vote share."""
    return log_tables(5, C, seed=9)[0].exp()


def test_confusion_counts_equal_the_loops() -> None:
    """Truth is in rows and reports in columns. Transposed counts would still have the same sum."""
    counts = confusion_counts(posterior_table(), ANNOTATORS, ANNOTATIONS, M)
    expected = reference.confusion_counts(posterior_table(), ANNOTATORS, ANNOTATIONS, M)
    assert counts.shape == (M, C, C)
    assert counts.dtype == torch.float64
    assert (expected - expected.mT).abs().max() > 0.1
    torch.testing.assert_close(counts, expected, rtol=1e-12, atol=1e-12)
    assert (counts[2] == 0).all()


def test_confusion_counts_with_more_classes_than_annotators() -> None:
    """With C > M, an index with exchanged axes leaves the table."""
    posterior = log_tables(5, 7)[0].exp()
    counts = confusion_counts(posterior, ANNOTATORS, ANNOTATIONS * 2, M)
    expected = reference.confusion_counts(posterior, ANNOTATORS, ANNOTATIONS * 2, M)
    torch.testing.assert_close(counts, expected, rtol=1e-12, atol=1e-12)


def test_confusion_counts_of_parts_add_up() -> None:
    """A crowd larger than memory is counted in chunks."""
    whole = confusion_counts(posterior_table(), ANNOTATORS, ANNOTATIONS, M)
    parts = [
        confusion_counts(posterior_table()[part], ANNOTATORS[part], ANNOTATIONS[part], M)
        for part in (slice(0, 2), slice(2, 5))
    ]
    assert all(part.sum() > 0 for part in parts)
    torch.testing.assert_close(sum(parts), whole, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_confusion_equals_the_loops(smoothing: float) -> None:
    """Rows are conditional on the truth. Normalised over the truth they would be a posterior."""
    found = confusion(posterior_table(), ANNOTATORS, ANNOTATIONS, M, smoothing)
    counts = reference.confusion_counts(posterior_table(), ANNOTATORS, ANNOTATIONS, M)
    expected = reference.confusion(counts, smoothing)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.sum(-1), torch.ones(M, C).double())
    torch.testing.assert_close(found[2], torch.full((C, C), 1 / C).double())


def test_confusion_of_a_class_never_possible_is_uniform() -> None:
    """Nothing is known about a class that never occurs. A row of zeros or NaN would be taken for a result."""
    posterior = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    found = confusion(posterior, torch.tensor([[0], [0]]), torch.tensor([[1], [1]]), 1)
    assert found.tolist() == [[[0, 1], [0.5, 0.5]]]


def test_normalize_counts_smooths_every_cell() -> None:
    """Pseudo-labels must be added before the division, and to the total of all C cells."""
    counts = torch.tensor([[[3.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 2.0, 0.0]]])
    found = normalize_counts(counts, smoothing=1.0)
    sevenths, thirds, fifths = [4 / 7, 2 / 7, 1 / 7], [1 / 3, 1 / 3, 1 / 3], [1 / 5, 3 / 5, 1 / 5]
    torch.testing.assert_close(found, torch.tensor([[sevenths, thirds, fifths]]))
    assert normalize_counts(counts).tolist() == [
        [[0.75, 0.25, 0.0], pytest.approx([1 / 3] * 3), [0.0, 1.0, 0.0]]
    ]


def test_normalize_counts_takes_pseudo_labels_by_column() -> None:
    """When two reports are merged, the merged one has the pseudo-labels of both."""
    counts = torch.tensor([[[3.0, 1.0, 2.0], [0.0, 0.0, 1.0]]])
    apart = normalize_counts(counts, smoothing=0.5)
    together = torch.stack([counts[..., 0], counts[..., 1:].sum(-1)], dim=-1)
    found = normalize_counts(together, torch.tensor([0.5, 1.0]))
    torch.testing.assert_close(found[..., 0], apart[..., 0])
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 2))


def counts_of_the_crowd() -> Tensor:
    """Return the confusion counts of the batch against its own vote shares."""
    shares = vote_share(torch.where(ANNOTATORS >= 0, ANNOTATIONS, -1), C)
    return confusion_counts(shares, ANNOTATORS, ANNOTATIONS, M)


@pytest.mark.parametrize("smoothing", [1e-4, 0.01, 1.0])
def test_initial_weight_is_equation_2(smoothing: float) -> None:
    """The start decides which of the C! namings of the classes training finds.

    A wrong one shows as chance accuracy much later.
    """
    weight = initial_weight(counts_of_the_crowd(), smoothing)
    expected = reference.initial_weight(ANNOTATORS, ANNOTATIONS, M, C, smoothing)
    assert expected.min() < math.log(0.5)
    torch.testing.assert_close(weight.double(), expected, rtol=1e-5, atol=1e-5)


def test_initial_weight_of_an_annotator_without_labels_is_zero() -> None:
    """The log of a uniform confusion is -log C everywhere: harmless alone, but not the zero that the theorem needs."""
    weight = initial_weight(counts_of_the_crowd(), 0.01)
    assert (weight[2] == 0).all()
    assert (weight[[0, 1, 3]] != 0).any(dim=(1, 2)).all()


@pytest.mark.parametrize("smoothing", [0.0, -1.0, math.nan])
def test_initial_weight_without_smoothing_is_refused(smoothing: float) -> None:
    """Without smoothing, log 0 in W makes the first gradient NaN."""
    message = (
        f"`smoothing` must be positive, got {smoothing}: without it a label never given has log 0."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        initial_weight(counts_of_the_crowd(), smoothing)


def test_vote_share_prior_adds_one_item_spread_over_the_classes() -> None:
    """A class without any vote must keep a finite log."""
    found = vote_share_prior(torch.tensor([6.0, 0.0, 3.0, 1.0], dtype=torch.float64))
    expected = torch.tensor([6.25, 0.25, 3.25, 1.25], dtype=torch.float64) / 11
    torch.testing.assert_close(found.exp(), expected, rtol=1e-12, atol=1e-12)
    assert found.isfinite().all()


def test_class_names_pass_through_every_count() -> None:
    """Swapping two classes in the labels must swap them in every table and do nothing else."""
    for order in permutations(range(C)):
        index = torch.tensor(order)
        renamed = torch.where(ANNOTATIONS >= 0, index[ANNOTATIONS], -1)
        shares, counts = (
            vote_share(renamed, C),
            confusion_counts(vote_share(renamed, C), ANNOTATORS, renamed, M),
        )
        assert torch.equal(shares[:, index], vote_share(ANNOTATIONS, C))
        plain = confusion_counts(vote_share(ANNOTATIONS, C), ANNOTATORS, ANNOTATIONS, M)
        torch.testing.assert_close(counts[:, index][:, :, index], plain)


def test_gain_refuses_a_mask_of_another_shape() -> None:
    """A mask of shape (N, 1) would broadcast to N x N and give a matrix of gains, or a wrong number."""
    tables = log_tables(5, 3)
    with pytest.raises(
        ValueError, match=r"`annotated` must have shape \(N,\) = \(5,\), got \(5, 1\)"
    ):
        mutual_information_gain(*tables, annotated=torch.ones(5, 1, dtype=torch.bool))


def test_aggregate_takes_items_without_any_place_for_labels() -> None:
    """A batch of unlabelled items may come with K = 0."""
    log_p = torch.tensor([0.5, 0.3, 0.2]).log()
    nothing = torch.zeros(5, 0, dtype=torch.long)
    log_g = aggregate(torch.randn(4, 3, 3), log_p, nothing, nothing)
    torch.testing.assert_close(log_g, log_p.expand(5, 3))


def test_aggregate_takes_the_log_of_a_confusion_with_zeros() -> None:
    """An annotator who never errs has -inf in W. If padding read it as -inf * 0, everything would be NaN."""
    weight = torch.eye(3).expand(4, 3, 3).log().clone().requires_grad_()
    log_p = torch.tensor([0.5, 0.3, 0.2]).log()
    log_g = aggregate(
        weight, log_p, torch.tensor([[1, -1], [-1, -1]]), torch.tensor([[2, -1], [-1, -1]])
    )
    torch.testing.assert_close(log_g.exp(), torch.tensor([[0.0, 0.0, 1.0], [0.5, 0.3, 0.2]]))
    log_g[0, 2].backward()
    assert weight.grad.isfinite().all()
