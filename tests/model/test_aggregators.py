"""Tests of `hf_maxmig.model.aggregators`: the parameters that model the annotators, and how they are initialised."""

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hf_maxmig.model import aggregators as module_under_test
from hf_maxmig.model.aggregators import (
    AGGREGATORS,
    EMBEDDING_SCALE,
    MOST_NUMBERS,
    PRIORS,
    ClassPrior,
    FactoredAggregator,
    InteractionAggregator,
    WeightedAverageAggregator,
    check_aggregator,
    check_prior,
)
from hf_maxmig.model.functional import aggregate, label_pairs, vote_share
from tests import reference

# Five items with at most three labels each; annotator 2 has no valid label.
M, C = 4, 3
ANNOTATORS = torch.tensor([[1, -1, 3], [-1, 0, 2], [3, 0, 1], [2, -1, -1], [0, 1, -1]])
ANNOTATIONS = torch.tensor([[2, 1, 0], [0, 2, -1], [1, 1, 0], [-1, 0, -1], [1, 1, 0]])
LOG_P = torch.tensor([0.5, 0.3, 0.2]).log()

every_size = pytest.mark.parametrize(("M", "C"), [(4, 3), (3, 7)])


every_aggregator = pytest.mark.parametrize("kind", AGGREGATORS)


def some_aggregator(
    M: int = M, C: int = C, kind: str = "weighted_average"
) -> WeightedAverageAggregator:
    """Return an aggregator in evaluation mode, with weights that bfloat16 cannot hold."""
    aggregator = AGGREGATORS[kind](M, C).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in aggregator.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return aggregator


def some_interaction(M: int = M, C: int = C) -> InteractionAggregator:
    """Return an interaction aggregator in evaluation mode, whose pairs weigh as much as its W."""
    aggregator = some_aggregator(M, C, "interaction")
    assert isinstance(aggregator, InteractionAggregator)
    return aggregator


def some_factored(M: int = M, C: int = C) -> FactoredAggregator:
    """Return a factored aggregator in evaluation mode, with no two parameters alike."""
    aggregator = some_aggregator(M, C, "factored")
    assert isinstance(aggregator, FactoredAggregator)
    return aggregator


# --- the aggregator
# ---------------------------------------------------------------------------------------------------


@every_size
def test_weight_is_a_view_of_the_table(M: int, C: int) -> None:
    """A copy would accept whatever a user writes into `weight`, and the aggregator would ignore it."""
    aggregator = some_aggregator(M, C)
    assert aggregator.weight.shape == (M, C, C)
    assert aggregator.weight.data_ptr() == aggregator.table.data_ptr()
    with torch.no_grad():
        aggregator.weight[1, 0, 2] = 42.0
    assert aggregator.table[1, 2, 0] == 42
    assert aggregator.table[1, 0, 2] != 42


def test_weight_holds_scored_class_then_reported_class() -> None:
    """Model cards and plots rely on this axis order. Transposed, they would blame the wrong confusion."""
    aggregator = WeightedAverageAggregator(M, C)
    with torch.no_grad():
        aggregator.weight[1, 0, 2] = 5.0  # when annotator 1 reports 2, class 0 scores
    log_g = aggregator(LOG_P, ANNOTATORS[:1], ANNOTATIONS[:1])
    expected = (LOG_P + torch.tensor([5.0, 0.0, 0.0])).log_softmax(-1)
    torch.testing.assert_close(log_g[0], expected)


def test_aggregator_is_one_parameter() -> None:
    """Checkpoints on the Hub hold this state dict. A renamed table would load as a freshly initialised one."""
    aggregator = some_aggregator()
    assert [name for name, _ in aggregator.named_parameters()] == ["table"]
    assert list(aggregator.state_dict()) == ["table"]
    assert aggregator.table.requires_grad
    fresh = WeightedAverageAggregator(M, C)
    assert not torch.equal(fresh.table, aggregator.table)
    fresh.load_state_dict(aggregator.state_dict())
    assert torch.equal(fresh.weight, aggregator.weight)


def test_aggregator_equals_the_function() -> None:
    """The class owns the state and the function the formula. The two must not drift apart."""
    aggregator = some_aggregator()
    log_g = aggregator(LOG_P, ANNOTATORS, ANNOTATIONS)
    assert torch.equal(log_g, aggregate(aggregator.weight, LOG_P, ANNOTATORS, ANNOTATIONS))
    expected = reference.aggregate(aggregator.weight.detach(), LOG_P.exp(), ANNOTATORS, ANNOTATIONS)
    torch.testing.assert_close(log_g.exp().double(), expected, rtol=1e-5, atol=1e-6)


def test_aggregator_starts_ignorant() -> None:
    """Before it has seen any votes, every annotator must count for nothing: g is the prior."""
    log_g = WeightedAverageAggregator(M, C)(LOG_P, ANNOTATORS, ANNOTATIONS)
    torch.testing.assert_close(log_g, LOG_P.expand(5, C))


def test_aggregator_trains_its_table_and_the_prior() -> None:
    """A view that cuts the graph would train nothing, while the loss still falls through h alone."""
    aggregator, log_p = some_aggregator(), LOG_P.clone().requires_grad_()
    aggregator(log_p, ANNOTATORS, ANNOTATIONS)[:, 0].sum().backward()
    assert (aggregator.table.grad[[0, 1, 3]] != 0).any(dim=(1, 2)).all()
    assert (aggregator.table.grad[2] == 0).all()
    assert (log_p.grad != 0).all()


# --- any aggregator
# ---------------------------------------------------------------------------------------------------


@every_aggregator
def test_labels_in_another_order_change_nothing(kind: str) -> None:
    """The order in which a file lists an item's labels is arbitrary."""
    aggregator = some_aggregator(kind=kind)
    log_g = aggregator(LOG_P, ANNOTATORS, ANNOTATIONS)
    order = torch.tensor([2, 0, 1])
    turned = aggregator(LOG_P, ANNOTATORS[:, order], ANNOTATIONS[:, order])
    torch.testing.assert_close(turned, log_g)


@every_aggregator
def test_missing_labels_say_nothing(kind: str) -> None:
    """If padding were read as a label, g would depend on the other items in the batch."""
    aggregator = some_aggregator(kind=kind)
    log_g = aggregator(LOG_P, ANNOTATORS, ANNOTATIONS)
    more = torch.tensor([[0, -1, -1]] * 5)
    nothing = torch.tensor([[-1, 2, -1]] * 5)
    padded = aggregator(
        LOG_P, torch.cat([ANNOTATORS, more], 1), torch.cat([ANNOTATIONS, nothing], 1)
    )
    torch.testing.assert_close(padded, log_g)
    nobody = aggregator(LOG_P, torch.full((2, 3), -1), torch.full((2, 3), -1))
    torch.testing.assert_close(nobody, LOG_P.expand(2, C))


@every_aggregator
def test_permuted_annotators_with_their_parameters_change_nothing(kind: str) -> None:
    """Anything stored by position and not with its annotator would end up with somebody else."""
    aggregator, renumbered = some_aggregator(kind=kind), some_aggregator(kind=kind)
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        for parameter in renumbered.parameters():
            if len(parameter) == M:
                parameter.copy_(parameter[order].clone())
    who = torch.where(ANNOTATORS >= 0, torch.argsort(order)[ANNOTATORS], -1)
    log_g = aggregator(LOG_P, ANNOTATORS, ANNOTATIONS)
    torch.testing.assert_close(renumbered(LOG_P, who, ANNOTATIONS), log_g)
    assert (renumbered(LOG_P, ANNOTATORS, ANNOTATIONS) - log_g).abs().max() > 0.1


@every_aggregator
def test_reordered_classes_are_scored_in_another_order(kind: str) -> None:
    """A part of the score left in the old order would mix up the classes.

    Reported classes keep their meaning.
    """
    aggregator = some_aggregator(kind=kind)
    before = aggregator(LOG_P, ANNOTATORS, ANNOTATIONS)
    order = torch.tensor([2, 0, 1])
    aggregator.reorder_classes(order)
    after = aggregator(LOG_P[order], ANNOTATORS, ANNOTATIONS)
    torch.testing.assert_close(after, before[:, order])


@every_aggregator
def test_every_parameter_of_an_aggregator_is_trained_in_training_mode(kind: str) -> None:
    """DDP fails at the second step if a parameter has no gradient."""
    aggregator = some_aggregator(kind=kind).train()
    aggregator(LOG_P, ANNOTATORS, ANNOTATIONS)[:, 0].sum().backward()
    assert all(bool((parameter.grad != 0).any()) for parameter in aggregator.parameters())


def test_unknown_aggregator_is_refused() -> None:
    """A misspelt name must not fall back to another aggregator."""
    message = (
        "`aggregator` must be one of weighted_average, interaction, factored, got 'attention'."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_aggregator("attention")


def test_only_pairs_of_labels_are_on_trial() -> None:
    """Only the interaction is dropped if it gains nothing.

    If the factored one were, the search would build the 40 GB W after all.
    """
    assert [name for name, kind in AGGREGATORS.items() if kind.on_trial] == ["interaction"]


@every_aggregator
@pytest.mark.parametrize(
    "batches",
    [
        [],
        [(torch.full((2, 3), -1), torch.full((2, 3), -1))],
        [(torch.full((2, 3), -1), torch.zeros(2, 3, dtype=torch.int64))],
        [(torch.zeros(2, 3, dtype=torch.int64), torch.full((2, 3), -1))],
    ],
    ids=["nothing", "padding", "nobody", "no label"],
)
def test_initialize_without_labels_is_refused(
    batches: list[tuple[Tensor, Tensor]], kind: str
) -> None:
    """A misnamed column would give an aggregator that ignores every vote, and a gain of zero for ever."""
    message = (
        "the training set must have at least one label by a known annotator, got none: "
        "check the columns `annotators` and `annotations`."
    )
    aggregator = some_aggregator(kind=kind)
    before = [parameter.detach().clone() for parameter in aggregator.parameters()]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        aggregator.initialize(batches, smoothing=0.01)
    for parameter, kept in zip(aggregator.parameters(), before, strict=True):
        assert torch.equal(parameter, kept)


# --- the factored aggregator
# ---------------------------------------------------------------------------------------------------

# Labels missing on either side or on both, two by one annotator, the same one twice, or none at all.
WHO = torch.tensor([[0, 2, 1], [1, 1, 0], [-1, 2, 0], [2, 2, -1], [-1, -1, -1]])
SAID = torch.tensor([[1, 2, 0], [2, 0, 1], [1, 0, -1], [1, 1, 2], [-1, 0, -1]])


@every_size
@pytest.mark.parametrize("exchanged", [False, True])
def test_factored_is_the_weighted_average_of_the_w_that_it_stands_for(
    M: int, C: int, exchanged: bool
) -> None:
    """Compare values and gradients with the dense W.

    A factor gathered for another annotator's label would still train.
    """
    aggregator = some_factored(M, C)
    if exchanged:
        aggregator.reorder_classes(torch.arange(C).roll(1))
    log_p = torch.arange(1.0, C + 1).div(C * (C + 1) / 2).log().requires_grad_()
    leaves = [log_p, *aggregator.parameters()]
    log_gs, gradients = [], []
    weight = torch.empty(M, C, C)
    for m in range(M):
        for c in range(C):
            for r in range(C):
                weight[m, c, r] = (
                    aggregator.scale[m] * aggregator.table[r, c] + aggregator.shift[m, c]
                )
                if aggregator.speaks_for[r] == c:
                    weight[m, c, r] += aggregator.diagonal[m, r]
    torch.testing.assert_close(aggregator.weight, weight)
    mask = torch.randn(len(WHO), C, generator=torch.Generator().manual_seed(1))
    for log_g in (aggregator(log_p, WHO, SAID), aggregate(weight, log_p, WHO, SAID)):
        log_gs.append(log_g)
        gradients.append(torch.autograd.grad((log_g * mask).sum(), leaves))
    torch.testing.assert_close(*log_gs)
    expected = reference.aggregate(weight.detach(), log_p.detach().exp(), WHO, SAID)
    torch.testing.assert_close(log_gs[0].exp().double(), expected, rtol=1e-5, atol=1e-5)
    for own, dense in zip(*gradients, strict=True):
        assert dense.abs().max() > 0
        torch.testing.assert_close(own, dense, rtol=1e-4, atol=1e-5)


def test_factored_starts_ignorant() -> None:
    """Before it has seen any votes, every annotator must count for nothing: g is the prior."""
    log_g = FactoredAggregator(M, C)(LOG_P, ANNOTATORS, ANNOTATIONS)
    torch.testing.assert_close(log_g, LOG_P.expand(5, C))


def factored_start(who: Tensor, said: Tensor, M: int, C: int, smoothing: float) -> Tensor:
    """Return W by loops.

    How often an annotator is right comes from their own equation 2, how they err from the whole
    crowd's.
    """
    pooled = reference.initial_weight(torch.where(who >= 0, 0, -1), said, 1, C, smoothing)[0].exp()
    own = reference.initial_weight(who, said, M, C, smoothing).exp()
    weight = torch.zeros(M, C, C, dtype=torch.float64)
    for m in range(M):
        labels = bool(((who == m) & (said >= 0)).any())
        for c in range(C):
            right = own[m, c, c] if labels else pooled[c, c]
            for r in range(C):
                share = pooled[c, r] / (1 - pooled[c, c])
                weight[m, c, r] = right if r == c else (1 - right) * share
    torch.testing.assert_close(weight.sum(dim=2), torch.ones(M, C, dtype=torch.float64))
    return weight.log()


@pytest.mark.parametrize("strength", [1.0, 0.25])
@every_size
def test_factored_starts_from_equation_2_of_all_and_each_ones_own_share_of_right_labels(
    M: int, C: int, strength: float
) -> None:
    """A wrong start shows only as swapped class names, much later."""
    who, said = WHO.clamp(max=M - 2), (SAID * 2).clamp(min=-1, max=C - 1)
    aggregator = some_factored(M, C)
    shares = aggregator.initialize([(who, said)], smoothing=0.01, scale=strength)
    expected = factored_start(who, said, M, C, 0.01)
    assert (expected[0] - expected[1]).abs().max() > 0.1
    torch.testing.assert_close(
        aggregator.weight.double(), strength * expected, rtol=1e-4, atol=1e-4
    )
    given = torch.where(who >= 0, said, -1)
    torch.testing.assert_close(shares, vote_share(given, C).sum(0))
    assert (aggregator.scale == 1).all()


def test_factored_lets_who_has_no_labels_start_as_everybody() -> None:
    """Most of ten thousand annotators have few labels. A row of 1/C would treat each of them as random."""
    aggregator = some_factored()
    aggregator.initialize([(ANNOTATORS, ANNOTATIONS)], smoothing=0.01)
    everyone = torch.where(ANNOTATORS >= 0, 0, -1)
    pooled = reference.initial_weight(everyone, ANNOTATIONS, 1, C, smoothing=0.01)[0]
    torch.testing.assert_close(aggregator.weight[2].double(), pooled, rtol=1e-5, atol=1e-5)
    assert (aggregator.shift[2] == 0).all()
    assert (aggregator.diagonal[2] == 0).all()


def test_factored_start_of_two_classes_is_the_papers() -> None:
    """With two classes there is only one way to be wrong, so nothing is shared: it must equal the dense start."""
    said = ANNOTATIONS.clamp(max=1)
    paper, factored = WeightedAverageAggregator(M, 2), FactoredAggregator(M, 2)
    for aggregator in (paper, factored):
        aggregator.initialize([(ANNOTATORS, said)], smoothing=0.01, scale=0.5)
    seen = [0, 1, 3]
    torch.testing.assert_close(factored.weight[seen], paper.weight[seen], rtol=1e-5, atol=1e-5)


def test_factored_starts_in_one_pass_over_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream can be read only once, and 65,536 vote shares over 1,000 classes take a quarter of a gigabyte."""
    whole, chunked = some_factored(), some_factored()
    shares = whole.initialize([(ANNOTATORS, ANNOTATIONS)], smoothing=0.01)
    monkeypatch.setattr(module_under_test, "_AT_A_TIME", 2 * C)
    counted = []
    monkeypatch.setattr(
        module_under_test,
        "vote_share",
        lambda said, C, *q: counted.append(len(said)) or vote_share(said, C, *q),
    )
    batches = ((ANNOTATORS[part], ANNOTATIONS[part]) for part in (slice(0, 3), slice(3, 5)))
    torch.testing.assert_close(chunked.initialize(batches, smoothing=0.01), shares)
    assert counted == [2, 1, 2]
    for first, second in zip(whole.parameters(), chunked.parameters(), strict=True):
        torch.testing.assert_close(first, second)


def test_factored_start_forgets_what_was_before() -> None:
    """Called twice, or after classes were reordered, it must give the same start."""
    fresh, used = FactoredAggregator(M, C), some_factored()
    used.reorder_classes(torch.tensor([2, 0, 1]))
    for aggregator in (fresh, used):
        aggregator.initialize([(ANNOTATORS, ANNOTATIONS)], smoothing=0.01)
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, used.state_dict()[name])
    assert all(parameter.requires_grad for parameter in used.parameters())
    assert all(parameter.grad_fn is None for parameter in used.parameters())


@pytest.mark.parametrize("smoothing", [0.0, -1.0, math.nan])
def test_factored_start_without_smoothing_is_refused(smoothing: float) -> None:
    """Without smoothing, log 0 in P makes the first gradient NaN."""
    with pytest.raises(ValueError, match=f"`smoothing` must be positive, got {smoothing}"):
        some_factored().initialize([(ANNOTATORS, ANNOTATIONS)], smoothing=smoothing)


def test_factored_asks_how_often_each_is_right_and_wrong() -> None:
    """The smoothing sees counts of right and wrong only.

    Given counts of all C labels, it would need M C^2 numbers.
    """
    asked = []

    def everyone_alike(counts: Tensor, smoothing: float | Tensor) -> Tensor:
        asked.append((counts, smoothing))
        return torch.tensor([0.7, 0.3]).log().expand_as(counts)

    posterior = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    who, said = torch.tensor([[0, 1], [1, -1]]), torch.tensor([[0, 2], [2, -1]])
    aggregator = some_factored(M, C)
    aggregator.start_from([(posterior, who, said)], 0.1, 1.0, everyone_alike)
    ((counts, smoothing),) = asked
    torch.testing.assert_close(smoothing, torch.tensor([0.1, 0.2]))
    right, wrong = [[0.5, 0, 0], [0, 0, 1.0]], [[0, 0.3, 0.2], [0.6, 0.4, 0]]
    torch.testing.assert_close(
        counts[:2], torch.stack([torch.tensor(right), torch.tensor(wrong)], 2)
    )
    diagonal = aggregator.weight.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(diagonal[:2], torch.full((2, C), 0.7).log())


def test_factored_does_not_feel_autocast_nor_a_cast() -> None:
    """In bfloat16 an update of 1e-3 to a score of 4 is lost, and so is the class (of 300) that a report stands for."""
    aggregator = some_factored()
    log_g = aggregator(LOG_P, ANNOTATORS, ANNOTATIONS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.eye(2) @ torch.eye(2)).dtype == torch.bfloat16
        assert torch.equal(aggregator(LOG_P, ANNOTATORS, ANNOTATIONS), log_g)
    aggregator.half()
    assert {parameter.dtype for parameter in aggregator.parameters()} == {torch.float32}
    assert aggregator.speaks_for.dtype == torch.float32
    assert torch.equal(aggregator(LOG_P, ANNOTATORS, ANNOTATIONS), log_g)
    exact = aggregator.double()(LOG_P.double(), ANNOTATORS, ANNOTATIONS)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact.float(), log_g)


class Largest(TorchDispatchMode):
    """Record the number of elements of the largest tensor that any operation creates."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return made


@pytest.mark.slow
def test_factored_of_ten_thousand_annotators_and_a_thousand_classes_fits() -> None:
    """An M C^2 table would take 40 GB.

    Neither the start nor a training step nor the reordering of classes may build one.
    """
    M, C = 10_000, 1_000
    generator = torch.Generator().manual_seed(0)
    who, said = (torch.randint(high, (64, 5), generator=generator) for high in (M, C))
    with Largest() as largest:
        aggregator = FactoredAggregator(M, C)
        aggregator.initialize([(who, said)], smoothing=0.01, scale=0.5)
        log_g = aggregator(torch.full((C,), -math.log(C)), who, said)
        log_g[:, 0].sum().backward()
        aggregator.reorder_classes(torch.arange(C).roll(1))
    assert 0 < largest.numbers <= 2 * M * C
    kept = sum(2 * parameter.nbytes for parameter in aggregator.parameters())  # and gradients
    assert kept < 200e6
    assert log_g.isfinite().all()
    assert log_g.exp().gather(1, said).sum(dim=1).mean() > 0.5  # it has used the votes
    message = f"`weight` must have M C^2 <= {MOST_NUMBERS:,} numbers to be written out, got M = 10,000, C = 1,000"
    with pytest.raises(ValueError, match=re.escape(message)):
        assert aggregator.weight is None
    assert aggregator.weight_of(torch.tensor([7, 3])).shape == (2, C, C)


def test_factored_w_of_some_is_that_of_all() -> None:
    """W read for a few annotators must hold their rows, not the first ones."""
    aggregator = some_factored()
    some = torch.tensor([3, 1])
    assert torch.equal(aggregator.weight_of(some), aggregator.weight[some])
    assert not torch.equal(aggregator.weight[some], aggregator.weight[:2])


# --- the interaction aggregator
# ---------------------------------------------------------------------------------------------------


@every_size
def test_interaction_adds_a_score_of_each_pair_of_labels(M: int, C: int) -> None:
    """The shortcut over sums must equal the loop over pairs, with missing labels and two labels by one annotator."""
    aggregator = some_interaction(M, C)
    who = torch.tensor([[0, 2, 1], [1, 1, 0], [-1, 2, 0], [2, -1, -1]])
    said = torch.tensor([[1, 2, 0], [2, 2, 1], [1, 0, -1], [1, 1, 2]])
    embedding, mix = aggregator.embedding.detach().double(), aggregator.mix.detach().double()
    expected = aggregate(aggregator.weight, LOG_P.new_zeros(C), who, said).detach().double()
    for i in range(len(who)):
        given = [
            (int(m), int(r)) for m, r in zip(who[i], said[i], strict=True) if m >= 0 and r >= 0
        ]
        for a in range(len(given)):
            for b in range(a):
                for k in range(len(mix)):
                    expected[i] += embedding[given[a]][k] * embedding[given[b]][k] * mix[k]
    log_g = aggregator(LOG_P.new_zeros(C), who, said)
    torch.testing.assert_close(log_g.double(), expected.log_softmax(-1), rtol=1e-4, atol=1e-4)
    assert (log_g - aggregate(aggregator.weight, LOG_P.new_zeros(C), who, said)).abs().max() > 0.5


def test_pairs_are_computed_wide_under_autocast() -> None:
    """A square less a sum of squares cancels almost completely: in bfloat16 nothing is left of the result."""
    aggregator = some_interaction()
    exact = label_pairs(aggregator.embedding, ANNOTATORS, ANNOTATIONS)
    log_g = aggregator(LOG_P, ANNOTATORS, ANNOTATIONS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(label_pairs(aggregator.embedding, ANNOTATORS, ANNOTATIONS), exact)
        assert torch.equal(aggregator(LOG_P, ANNOTATORS, ANNOTATIONS), log_g)
    aggregator.bfloat16()
    assert {parameter.dtype for parameter in aggregator.parameters()} == {torch.float32}


def test_interaction_starts_near_equation_2_but_not_at_it() -> None:
    """Far from equation 2 the start from the votes is lost. Exactly at it the pairs never get a gradient."""
    torch.manual_seed(0)
    aggregator = InteractionAggregator(M, C).eval()
    paper = WeightedAverageAggregator(M, C)
    for module in (aggregator, paper):
        shares = module.initialize([(ANNOTATORS, ANNOTATIONS)], smoothing=0.01)
        assert shares.sum() == pytest.approx(4)
    assert torch.equal(aggregator.table, paper.table)
    log_g, start = (module(LOG_P, ANNOTATORS, ANNOTATIONS) for module in (aggregator, paper))
    assert 0 < (log_g.exp() - start.exp()).abs().max() < 0.15
    log_g[:, 0].sum().backward()
    assert aggregator.embedding.grad.abs().max() > 1e-3
    assert aggregator.mix.grad.abs().max() > 1e-3


def test_initialize_draws_the_pairs_anew() -> None:
    """Pairs left over from an earlier training would not be a start from these votes."""
    aggregator = some_interaction()
    assert aggregator.embedding.std() > 4 * EMBEDDING_SCALE
    aggregator.initialize([(ANNOTATORS, ANNOTATIONS)], smoothing=0.01)
    assert float(aggregator.embedding.detach().std()) == pytest.approx(EMBEDDING_SCALE, rel=0.2)
    assert aggregator.embedding.requires_grad


def test_pairs_are_dropped_in_training_only() -> None:
    """If pairs were dropped in evaluation too, g would differ from call to call."""
    aggregator = some_interaction()
    runs = [aggregator(LOG_P, ANNOTATORS, ANNOTATIONS) for _ in range(2)]
    assert torch.equal(*runs)
    aggregator.train()
    runs = [aggregator(LOG_P, ANNOTATORS, ANNOTATIONS) for _ in range(2)]
    assert not torch.equal(*runs)


def test_pairs_cost_as_much_as_there_are_labels() -> None:
    """A table over pairs of annotators would take a hundred gigabytes for a hundred thousand of them."""
    sizes = {
        number: sum(
            parameter.numel() for parameter in InteractionAggregator(number, C).parameters()
        )
        for number in (100, 200)
    }
    assert sizes[200] < 2 * sizes[100]


# --- casting
# ---------------------------------------------------------------------------------------------------


casts = pytest.mark.parametrize(
    "cast",
    [
        lambda module: module.to(torch.bfloat16),
        lambda module: module.bfloat16(),
        lambda module: module.half(),
        lambda module: module.to("cpu", torch.float16),
    ],
    ids=["to(bfloat16)", "bfloat16", "half", "to(cpu, float16)"],
)


@casts
def test_casting_the_model_down_leaves_the_crowd_in_float32(
    cast: Callable[[nn.Module], nn.Module],
) -> None:
    """In bfloat16 an update of 1e-3 to a weight of 4 is lost, and a round trip has already lost the digits."""
    aggregator, prior = some_aggregator(), ClassPrior(C, [0.7, 0.2, 0.1])
    table, logits = aggregator.table.detach().clone(), prior.logits.detach().clone()
    assert not torch.equal(table.bfloat16().float(), table)
    assert not torch.equal(logits.half().float(), logits)
    model = nn.ModuleList([nn.Linear(3, 2), aggregator, prior])
    cast(model)
    assert torch.finfo(model[0].weight.dtype).bits == 16
    assert aggregator.table.dtype == prior.logits.dtype == torch.float32
    assert torch.equal(aggregator.table, table)
    assert torch.equal(prior.logits, logits)
    assert isinstance(aggregator.table, nn.Parameter)
    assert aggregator.table.requires_grad
    assert not prior.logits.requires_grad
    log_g = aggregator(prior(), ANNOTATORS, ANNOTATIONS)
    assert log_g.dtype == torch.float32


def test_casting_up_is_followed() -> None:
    """A user who asks for double wants the aggregator in double too, and `float()` must bring it back."""
    aggregator, prior = some_aggregator(), ClassPrior(C)
    table = aggregator.table.detach().clone()
    model = nn.ModuleList([aggregator, prior]).double()
    assert aggregator.table.dtype == prior.logits.dtype == torch.float64
    assert aggregator(prior(), ANNOTATORS, ANNOTATIONS).dtype == torch.float64
    model.half()
    assert aggregator.table.dtype == torch.float64
    model.float()
    assert aggregator.table.dtype == torch.float32
    assert torch.equal(aggregator.table, table)


def test_casting_down_keeps_the_gradient_wide() -> None:
    """`_apply` also converts gradients.

    The optimizer refuses a half-precision gradient of a float32 parameter.
    """
    aggregator = some_aggregator()
    aggregator(LOG_P, ANNOTATORS, ANNOTATIONS)[:, 0].sum().backward()
    grad = aggregator.table.grad.clone()
    aggregator.bfloat16()
    assert aggregator.table.grad.dtype == torch.float32
    assert torch.equal(aggregator.table.grad, grad)


@pytest.mark.parametrize("strength", [1.0, 0.25])
def test_initialize_is_equation_2_times_strength(strength: float) -> None:
    """A start that is wrong or transposed shows only as swapped class names, much later."""
    aggregator = some_aggregator()
    shares = aggregator.initialize([(ANNOTATORS, ANNOTATIONS)], smoothing=0.01, scale=strength)
    expected = strength * reference.initial_weight(ANNOTATORS, ANNOTATIONS, M, C, smoothing=0.01)
    assert (expected - expected.mT).abs().max() > 0.1
    torch.testing.assert_close(aggregator.weight.double(), expected, rtol=1e-5, atol=1e-5)
    assert (aggregator.weight[2] == 0).all()
    assert shares.shape == (C,)
    given = torch.where(ANNOTATORS >= 0, ANNOTATIONS, -1)
    torch.testing.assert_close(shares, vote_share(given, C).sum(0))
    assert shares.sum() == pytest.approx(4)  # items with a label


def test_initialize_takes_the_papers_strength_unless_asked() -> None:
    """The paper's start is the log confusion itself."""
    default, paper = some_aggregator(), some_aggregator()
    default.initialize([(ANNOTATORS, ANNOTATIONS)], smoothing=0.01)
    paper.initialize([(ANNOTATORS, ANNOTATIONS)], smoothing=0.01, scale=1.0)
    assert torch.equal(default.table, paper.table)


def test_initialize_with_more_classes_than_annotators() -> None:
    """With C > M, a table with exchanged axes does not fit."""
    annotators, annotations = (
        torch.tensor([[0, 1], [1, -1], [0, 1]]),
        torch.tensor([[6, 2], [5, -1], [6, 6]]),
    )
    aggregator = WeightedAverageAggregator(2, 7)
    aggregator.initialize([(annotators, annotations)], smoothing=0.5)
    expected = reference.initial_weight(annotators, annotations, 2, 7, smoothing=0.5)
    torch.testing.assert_close(aggregator.weight.double(), expected, rtol=1e-5, atol=1e-5)


def test_initialize_in_chunks_equals_one_pass() -> None:
    """An item's vote share must depend neither on its chunk nor on the padding of that chunk."""
    whole, chunked = some_aggregator(), some_aggregator()
    shares = whole.initialize([(ANNOTATORS, ANNOTATIONS)], smoothing=0.01)
    chunks = (
        pair
        for pair in (
            (ANNOTATORS[:2], ANNOTATIONS[:2]),
            (ANNOTATORS[2:3], ANNOTATIONS[2:3]),
            (ANNOTATORS[3:, :2], ANNOTATIONS[3:, :2]),
        )
    )
    assert (ANNOTATORS[3:, 2] == -1).all()
    chunked_shares = chunked.initialize(chunks, smoothing=0.01)
    torch.testing.assert_close(chunked.table, whole.table)
    torch.testing.assert_close(chunked_shares, shares)


def test_initialize_forgets_the_table_before() -> None:
    """Called twice, it must give the same start, not the sum of both."""
    fresh, used = WeightedAverageAggregator(M, C), some_aggregator()
    for aggregator in (fresh, used):
        aggregator.initialize([(ANNOTATORS, ANNOTATIONS)], smoothing=0.01)
    assert torch.equal(fresh.table, used.table)
    assert used.table.requires_grad
    assert used.table.grad_fn is None


# --- the prior
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", PRIORS)
def test_prior_is_uniform_until_the_crowd_is_seen(prior: str) -> None:
    """A prior that starts elsewhere would favour classes without any evidence."""
    torch.testing.assert_close(ClassPrior(C, prior)().exp(), torch.full((C,), 1 / C))


def test_prior_is_uniform_unless_asked() -> None:
    """The paper uses a uniform prior for its largest data sets."""
    assert ClassPrior(C).prior == "uniform"


def test_prior_list_is_normalised() -> None:
    """Users may pass counts. Without normalisation the gain would be off by a constant factor in K."""
    prior = ClassPrior(3, [14, 4, 2])
    torch.testing.assert_close(prior().exp(), torch.tensor([0.7, 0.2, 0.1]))
    assert prior.prior == pytest.approx([0.7, 0.2, 0.1])
    assert check_prior([14, 4, 2], num_classes=3) == pytest.approx([0.7, 0.2, 0.1])


def test_prior_stays_on_the_simplex_when_trained() -> None:
    """If p no longer summed to one as its logits drift, the gain would grow without bound."""
    prior = ClassPrior(C, "learned")
    with torch.no_grad():
        prior.logits.add_(torch.tensor([3.0, 1.0, -2.0]))
    assert float(prior().detach().exp().sum()) == pytest.approx(1)
    assert prior().exp().argmax() == 0


@pytest.mark.parametrize("prior", ["uniform", "vote_share", [0.7, 0.2, 0.1], "learned"])
def test_prior_trains_only_if_learned(prior: str | list[float]) -> None:
    """A prior that the user fixed must not be moved by the optimizer."""
    module, learned = ClassPrior(C, prior), prior == "learned"
    assert module.logits.requires_grad == learned
    assert module().requires_grad == learned
    assert bool(list(module.parameters())) == learned
    assert list(module.state_dict()) == ["logits"]  # a checkpoint holds it in both cases


@pytest.mark.parametrize("prior", ["uniform", "vote_share", [0.7, 0.2, 0.1], "learned"])
def test_prior_follows_the_crowd_only_if_asked(prior: str | list[float]) -> None:
    """Only imbalanced classes show a `vote_share` prior that stays uniform, or a fixed prior that moves."""
    module = ClassPrior(C, prior)
    before = module().detach().clone()
    shares = torch.tensor([6.0, 0.0, 3.0])
    crowd = (shares + 1 / 3) / 10
    assert (before.exp() - crowd).abs().max() > 0.05
    module.initialize(shares)
    follows = prior in ("vote_share", "learned")
    torch.testing.assert_close(module().detach().exp(), crowd if follows else before.exp())
    assert module.logits.requires_grad == (prior == "learned")
    assert module.logits.is_leaf


def test_prior_does_not_feel_autocast() -> None:
    """A prior in bfloat16 sums to 0.99, and the gain would count the rest as agreement."""
    prior = ClassPrior(C, [0.7, 0.2, 0.1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.eye(2) @ torch.eye(2)).dtype == torch.bfloat16
        inside = prior()
    assert inside.dtype == torch.float32
    assert torch.equal(inside, prior())


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (
            "majority",
            "`prior` must be one of uniform, vote_share, learned or a list of C = 3 numbers, got 'majority'.",
        ),
        ([0.5, 0.5], "`prior` must have C = 3 numbers, one per class, got 2: [0.5, 0.5]."),
        (
            [0.2, 0.3, 0.4, 0.1],
            "`prior` must have C = 3 numbers, one per class, got 4: [0.2, 0.3, 0.4, 0.1].",
        ),
        ([0.5, 0.5, 0.0], "[0.5, 0.5, 0.0]: a class of probability zero has no log; leave it out."),
        ([0.5, 0.7, -0.2], "`prior` must be positive and finite, got [0.5, 0.7, -0.2]"),
        ([0.5, math.nan, 0.5], "`prior` must be positive and finite, got [0.5, nan, 0.5]"),
        ([0.5, math.inf, 0.5], "`prior` must be positive and finite, got [0.5, inf, 0.5]"),
    ],
    ids=["name", "short", "long", "zero", "negative", "nan", "infinite"],
)
def test_prior_that_is_no_distribution_is_refused(prior: str | list[float], message: str) -> None:
    """The log of zero or less would be NaN in the first batch, far from the config line that caused it."""
    for make in (check_prior, lambda prior, num_classes: ClassPrior(num_classes, prior)):
        with pytest.raises(ValueError, match=re.escape(message)):
            make(prior, num_classes=C)
