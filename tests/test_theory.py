"""The paper's theory on finite worlds, without sampling: every expectation is a sum over all (x, y).

A world is a prior, P(x | c) and a crowd; given c, x and the crowd are independent (Assumption 3.1).
U is the joint of x and the crowd's labels, V the product of its marginals.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor

from hf_maxmig.data.simulated.experts import Experts, uniform_mistakes
from hf_maxmig.data.simulated.simulation import simulate_latent_seniors
from hf_maxmig.model.aggregators import FactoredAggregator, InteractionAggregator
from hf_maxmig.model.divergences import DIVERGENCES
from hf_maxmig.model.functional import (
    aggregate,
    confusion_counts,
    forecast,
    initial_weight,
    mutual_information_gain,
    vote_share,
)
from tests import reference

MISSING = -1
Labels = tuple[int, ...]  # one place an annotator
Crowd = dict[Labels, Tensor]  # (C,) P(labels | c) of each possible set of labels

every_row = pytest.mark.parametrize("name", DIVERGENCES)


def plain_f(name: str) -> Callable[[float], float]:
    """Return f of a Python number: as printed or, for a row that the paper does not have, as in the library."""
    row = DIVERGENCES[name]
    return reference.F.get(name) or (lambda t: float(row.f(torch.tensor(t, dtype=torch.float64))))


@dataclass(frozen=True)
class World:
    """A finite world: (C,) prior, (C, X) P(x | c), and the crowd."""

    prior: Tensor
    x_given_c: Tensor
    crowd: Crowd

    @property
    def annotations(self) -> Tensor:
        """(Y, M): every set of labels that the crowd can give."""
        return torch.tensor(list(self.crowd))

    @property
    def annotators(self) -> Tensor:
        """(Y, M): who gave them."""
        Y, M = self.annotations.shape
        return torch.arange(M).expand(Y, M)

    @property
    def y_given_c(self) -> Tensor:
        """(C, Y)."""
        return torch.stack(list(self.crowd.values()), dim=1)

    @property
    def joint(self) -> Tensor:
        """U: (X, Y)."""
        return torch.einsum("c,cx,cy->xy", self.prior, self.x_given_c, self.y_given_c)

    def bayes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (X, C) h*, (Y, C) g* and (X, Y, C) zeta*, as probabilities."""
        return reference.posteriors(self.prior, self.x_given_c, self.y_given_c)

    def information(self, name: str) -> float:
        """Return the f-mutual information between x and the crowd, sum V f(U / V)."""
        return reference.mutual_information(self.joint, plain_f(name))

    def aggregate(self, weight: Tensor) -> Tensor:
        """Return (Y, C) log g of weights (M, C, C), under the true prior."""
        return aggregate(weight, self.prior.log(), self.annotators, self.annotations)


def fractions(generator: torch.Generator, *shape: int) -> Tensor:
    """Return rows of fractions that sum to one: squares of small whole numbers, none zero and no two rows alike."""
    counts = torch.randint(1, 10, shape, generator=generator).double() ** 2
    return counts / counts.sum(dim=-1, keepdim=True)


def confusions(generator: torch.Generator, M: int, C: int) -> Tensor:
    """Return (M, C, C) confusion matrices, each leaning towards the truth, all different."""
    return (fractions(generator, M, C, C) + torch.eye(C)) / 2


def independent_crowd(confusion: Tensor) -> Crowd:
    """Return the crowd whose annotators err independently of each other."""
    M, C, _ = confusion.shape
    return {
        labels: torch.stack([confusion[m, :, r] for m, r in enumerate(labels)]).prod(dim=0)
        for labels in product(range(C), repeat=M)
    }


def with_junior(crowd: Crowd, senior: int, channel: Tensor) -> Crowd:
    """Add an annotator who hears a senior's answer and says r with probability channel[heard, r]."""
    return {
        (*labels, r): probability * channel[labels[senior], r]
        for labels, probability in crowd.items()
        for r in range(len(channel))
        if channel[labels[senior], r] > 0
    }


def with_missing(crowd: Crowd, kept: list[float]) -> Crowd:
    """Drop each annotator's label with a probability of their own, independent of label and class."""
    lossy: Crowd = {}
    for labels, probability in crowd.items():
        for keep in product((True, False), repeat=len(kept)):
            seen = tuple(r if k else MISSING for r, k in zip(labels, keep, strict=True))
            chance = math.prod(q if k else 1 - q for q, k in zip(kept, keep, strict=True))
            lossy[seen] = lossy.get(seen, torch.zeros_like(probability)) + probability * chance
    return lossy


def small_world(seed: int = 0, C: int = 3, X: int = 5, M: int = 2) -> tuple[World, Tensor]:
    """Return a world of independent annotators, and their confusion matrices."""
    generator = torch.Generator().manual_seed(seed)
    confusion = confusions(generator, M, C)
    prior = torch.arange(1, C + 1).double()
    prior = prior / prior.sum()
    world = World(prior, fractions(generator, C, X), independent_crowd(confusion))
    assert world.joint.sum() == pytest.approx(1)
    return world, confusion


every_world = pytest.mark.parametrize(
    ("C", "X", "M"), [(3, 5, 4), (3, 4, 2), (2, 3, 4)], ids=["M > C", "C > M", "two classes"]
)


def expected_gain(joint: Tensor, log_h: Tensor, log_g: Tensor, log_p: Tensor, name: str) -> Tensor:
    """Return the expectation of equation 1: E_U df(K) - E_V f*(df(K)), of (X, C), (Y, C) and (C,) logs."""
    row = DIVERGENCES[name]
    log_k = (log_h[:, None] + log_g[None] - log_p).logsumexp(dim=-1)
    product = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    return (joint * row.reward(log_k)).sum() - (product * row.penalty(log_k)).sum()


def random_logs(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Return random float64 logits."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


# --- the expectation is the library's
# ---------------------------------------------------------------------------------


@every_row
def test_expected_gain_is_the_mean_of_the_librarys_gain(name: str) -> None:
    """Everything below uses `expected_gain`, so it must be the mean of the gains of training batches."""
    world, _ = small_world(C=2, X=3, M=2)
    U, (X, Y) = world.joint, world.joint.shape
    log_h, log_g, log_p = (
        logits.log_softmax(-1) for logits in random_logs(1, (X, 2), (Y, 2), (2,))
    )
    mean = 0.0
    for x, y in product(range(X), range(Y)):
        for a, b in product(range(X), range(Y)):
            batch = mutual_information_gain(log_h[[x, a]], log_g[[y, b]], log_p, name)
            mean += float(U[x, y] * U[a, b] * batch)
    expected = float(expected_gain(U, log_h, log_g, log_p, name))
    assert abs(expected) > 1e-3
    assert mean == pytest.approx(expected, rel=1e-12)


# --- Theorem 3.4: the maximum, and where it is
# ------------------------------------------------------------------------


@every_row
@every_world
def test_gain_at_the_bayes_posteriors_is_the_mutual_information(
    name: str, C: int, X: int, M: int
) -> None:
    """The method rests on this claim.

    The maximum is sum V f(U / V), not the reverse: f* is the conjugate of f, so by Fenchel's inequality
    U df(K) - V f*(df(K)) <= V f(U / V) at each (x, y), with equality at K = U / V, which is K at the Bayes
    posteriors. Appendix C prints D_f(U, V) = sum U f(V / U): for KL and Pearson that is another number, and
    not the maximum.
    """
    world, _ = small_world(C=C, X=X, M=M)
    h, g, _ = world.bayes()
    gain = expected_gain(world.joint, h.log(), g.log(), world.prior.log(), name)
    information = world.information(name)
    assert information > 1e-2
    assert float(gain) == pytest.approx(information, rel=1e-10)
    U, V = world.joint, reference.product_of_marginals(world.joint)
    as_printed = reference.f_divergence(V, U, plain_f(name))
    if name == "jensen_shannon":
        assert as_printed == pytest.approx(information, rel=1e-10)
    if name in ("kl", "pearson"):
        assert as_printed != pytest.approx(information, rel=1e-2)


def test_ratio_at_the_bayes_posteriors_is_u_over_v() -> None:
    """K is implemented only once.

    With a wrong sum over classes, or without p, it would not be the likelihood ratio.
    """
    world, _ = small_world()
    h, g, _ = world.bayes()
    K = (h.log()[:, None] + g.log()[None] - world.prior.log()).logsumexp(-1).exp()
    ratio = world.joint / reference.product_of_marginals(world.joint)
    assert (ratio - 1).abs().max() > 0.1
    torch.testing.assert_close(K, ratio, rtol=1e-12, atol=1e-12)


@every_row
@every_world
def test_no_other_tables_gain_more(name: str, C: int, X: int, M: int) -> None:
    """If any h, g and p had a higher gain, training would leave the truth for them."""
    world, _ = small_world(C=C, X=X, M=M)
    h, g, _ = world.bayes()
    best = [h.log(), g.log(), world.prior.log()]
    information = world.information(name)
    for seed in range(60):
        noise = random_logs(seed, *(table.shape for table in best))
        for size in (0.03, 0.3, 3.0):
            near = [
                (table + size * n).log_softmax(-1) for table, n in zip(best, noise, strict=True)
            ]
            assert float(expected_gain(world.joint, *near, name)) < information - 1e-7
        for i in range(3):  # one of the three alone
            near = [
                (table + 0.3 * noise[j]).log_softmax(-1) if i == j else table
                for j, table in enumerate(best)
            ]
            assert float(expected_gain(world.joint, *near, name)) < information - 1e-7


@every_row
@every_world
def test_gradient_at_the_bayes_posteriors_is_zero(name: str, C: int, X: int, M: int) -> None:
    """Training must stop at the truth: for h, for g, and for a learned p on the simplex."""
    world, _ = small_world(C=C, X=X, M=M)
    h, g, _ = world.bayes()
    best = [h.log(), g.log(), world.prior.log()]

    def gradients(tables: list[Tensor]) -> tuple[Tensor, ...]:
        leaves = [table.clone().requires_grad_() for table in tables]
        logs = [leaf.log_softmax(-1) for leaf in leaves]
        return torch.autograd.grad(expected_gain(world.joint, *logs, name), leaves)

    noise = random_logs(0, *(table.shape for table in best))
    elsewhere = gradients([table + 0.3 * n for table, n in zip(best, noise, strict=True)])
    assert all(grad.abs().max() > 1e-4 for grad in elsewhere)
    assert all(grad.abs().max() < 1e-13 for grad in gradients(best))


@every_row
def test_gain_as_a_function_of_the_prior_has_its_maximum_at_the_true_one(name: str) -> None:
    """Once h and g have found the truth, a learned prior must have no reason to leave it."""
    world, _ = small_world()
    h, g, _ = world.bayes()

    def gain(logits: Tensor) -> Tensor:
        return expected_gain(world.joint, h.log(), g.log(), logits.log_softmax(-1), name)

    true = world.prior.log().requires_grad_()
    assert torch.autograd.grad(gain(true), true)[0].abs().max() < 1e-13
    curvature = torch.autograd.functional.hessian(gain, true.detach())
    values = torch.linalg.eigvalsh(curvature)
    assert values[:-1].max() < -1e-4  # strictly, in every direction on the simplex
    assert abs(float(values[-1])) < 1e-12  # and flat along the constant that softmax does not see
    uniform = torch.zeros(3, dtype=torch.float64)
    assert float(gain(uniform)) < world.information(name) - 1e-4


@every_row
def test_gain_of_a_classifier_that_knows_nothing_is_zero(name: str) -> None:
    """However confident the crowd is, agreement by chance must earn nothing."""
    world, _ = small_world()
    X, Y = world.joint.shape
    (log_g,) = random_logs(2, (Y, 3))
    log_p = world.prior.log()
    gain = expected_gain(world.joint, log_p.expand(X, 3), log_g.log_softmax(-1), log_p, name)
    assert float(gain) == pytest.approx(0, abs=1e-12)


# --- Proposition D.3 and the general case: the weighted average is rich enough
# ----------------------------------------


@every_world
def test_log_confusion_of_independent_annotators_is_the_posterior(C: int, X: int, M: int) -> None:
    """Proposition D.3: otherwise the weights could not be read as an annotator's expertise."""
    world, confusion = small_world(C=C, X=X, M=M)
    _, g, _ = world.bayes()
    log_g = world.aggregate(confusion.log())
    assert (world.aggregate(confusion.mT.log()).exp() - g).abs().max() > 0.01
    torch.testing.assert_close(log_g.exp(), g, rtol=1e-12, atol=1e-12)


def factors_of(right: Tensor, mistakes: Tensor) -> FactoredAggregator:
    """Return the factored aggregator of annotators with (M, C) accuracies and a shared (C, C) matrix of mistakes."""
    M, C = right.shape
    aggregator, itself = FactoredAggregator(M, C).double(), torch.eye(C, dtype=torch.bool)
    usual = torch.full((C, 1), 0.6, dtype=torch.float64)  # arbitrary: each one departs from it
    pooled = torch.where(itself, usual, (1 - usual) * mistakes).log()
    shift = (1 - right).log() - (1 - usual[:, 0]).log()
    with torch.no_grad():
        aggregator.table.copy_(pooled.T)
        aggregator.shift.copy_(shift)
        aggregator.diagonal.copy_(right.log() - usual[:, 0].log() - shift)
    return aggregator


@every_row
@every_world
def test_factors_are_the_posterior_of_annotators_who_are_wrong_alike(
    name: str, C: int, X: int, M: int
) -> None:
    """Proposition D.3 for shared factors: each annotator has their own accuracy per class, and errs as all do.

    With two classes this holds for every annotator.
    """
    generator = torch.Generator().manual_seed(5)
    right, itself = fractions(generator, M, C + 1)[:, :C], torch.eye(C, dtype=torch.bool)
    mistakes = fractions(generator, C, C).masked_fill(itself, 0)
    mistakes = mistakes / mistakes.sum(dim=1, keepdim=True)
    confusion = torch.where(itself, right[:, :, None], (1 - right)[:, :, None] * mistakes)
    torch.testing.assert_close(confusion.sum(dim=2), torch.ones(M, C, dtype=torch.float64))
    prior = torch.arange(1, C + 1).double()
    world = World(prior / prior.sum(), fractions(generator, C, X), independent_crowd(confusion))
    assert (right[0] - right[1]).abs().max() > 0.1
    h, g, _ = world.bayes()
    log_p = world.prior.log()
    aggregator = factors_of(right, mistakes)
    torch.testing.assert_close(aggregator.weight, confusion.log(), rtol=1e-12, atol=1e-12)
    log_g = aggregator(log_p, world.annotators, world.annotations).detach()
    torch.testing.assert_close(log_g.exp(), g, rtol=1e-12, atol=1e-12)
    gain = expected_gain(world.joint, h.log(), log_g, log_p, name)
    assert float(gain) == pytest.approx(world.information(name), rel=1e-10)


@every_row
def test_factors_can_leave_out_a_junior(name: str) -> None:
    """Theorem 3.4 needs juniors at zero, so the shared matrix must not count for them."""
    C, right = 3, torch.tensor([[0.8, 0.6, 0.7], [0.5, 0.9, 0.6]], dtype=torch.float64)
    mistakes = torch.tensor([[0, 0.3, 0.7], [0.6, 0, 0.4], [0.5, 0.5, 0]], dtype=torch.float64)
    itself = torch.eye(C, dtype=torch.bool)
    confusion = torch.where(itself, right[:, :, None], (1 - right)[:, :, None] * mistakes)
    crowd = with_junior(independent_crowd(confusion), 0, copy_carelessly(C))
    prior = torch.full((C,), 1 / C, dtype=torch.float64)
    world = World(prior, fractions(torch.Generator().manual_seed(6), C, 5), crowd)
    aggregator = factors_of(torch.cat([right, right[:1]]), mistakes)
    with torch.no_grad():
        for factor in (aggregator.scale, aggregator.shift, aggregator.diagonal):
            factor[2] = 0
    h, g, _ = world.bayes()
    log_g = aggregator(prior.log(), world.annotators, world.annotations).detach()
    torch.testing.assert_close(log_g.exp(), g, rtol=1e-10, atol=1e-12)
    gain = expected_gain(world.joint, h.log(), log_g, prior.log(), name)
    assert float(gain) == pytest.approx(world.information(name), rel=1e-10)


@every_world
def test_forecast_of_the_bayes_posteriors_is_the_joint_posterior(C: int, X: int, M: int) -> None:
    """Zeta is meant to be the best use of both: it must be P(c | x, y), with the prior counted once."""
    world, _ = small_world(C=C, X=X, M=M)
    h, g, zeta = world.bayes()
    for x in range(X):
        log_h = h[x].log().expand(len(g), C)
        found = forecast(log_h, g.log(), world.prior.log())
        torch.testing.assert_close(found.exp(), zeta[x], rtol=1e-12, atol=1e-12)
    assert (zeta - g).abs().max() > 0.05
    assert (zeta - h[:, None]).abs().max() > 0.05


def copy_exactly(C: int) -> Tensor:
    """Return the channel of a junior who repeats what the senior said."""
    return torch.eye(C, dtype=torch.float64)


def copy_carelessly(C: int) -> Tensor:
    """Return the channel of a junior who sometimes mishears, some classes more than others."""
    return (fractions(torch.Generator().manual_seed(8), C, C) + 3 * torch.eye(C)) / 4


def say_one_class(C: int) -> Tensor:
    """Return the channel of a junior who ignores the senior and always says class 0 (case 4.2)."""
    return torch.eye(C, dtype=torch.float64)[0].expand(C, C)


@every_row
@pytest.mark.parametrize("channel", [copy_exactly, copy_carelessly, say_one_class])
def test_seniors_with_log_confusion_and_juniors_at_zero_reach_the_information(
    name: str, channel: Callable[[int], Tensor]
) -> None:
    """The general case of Theorem 3.4: correlated mistakes are the reason for the method."""
    C, seniors = 3, 2
    world, confusion = small_world(C=C, M=seniors)
    crowd = with_junior(with_junior(world.crowd, 1, channel(C)), 1, channel(C))
    copied = World(world.prior, world.x_given_c, crowd)
    assert copied.joint.sum() == pytest.approx(1)
    assert copied.annotations.shape[1] == seniors + 2
    h, g, zeta = copied.bayes()

    weight = torch.zeros(seniors + 2, C, C, dtype=torch.float64)
    weight[:seniors] = confusion.log()
    log_g = copied.aggregate(weight)
    torch.testing.assert_close(log_g.exp(), g, rtol=1e-12, atol=1e-12)
    gain = expected_gain(copied.joint, h.log(), log_g, copied.prior.log(), name)
    information = copied.information(name)
    assert information == pytest.approx(world.information(name), rel=1e-10)  # copies add nothing
    assert float(gain) == pytest.approx(information, rel=1e-10)
    found = forecast(h.log()[:, None], log_g[None], copied.prior.log())
    torch.testing.assert_close(found.exp(), zeta, rtol=1e-12, atol=1e-12)

    # If juniors were treated as independent, each with the log of their own confusion, the senior's
    # mistakes would count repeatedly.
    if channel is not say_one_class:
        weight[seniors:] = (confusion[1] @ channel(C)).log()
        naive = copied.aggregate(weight)
        assert (naive.exp() - g).abs().max() > 0.05
        assert float(expected_gain(copied.joint, h.log(), naive, copied.prior.log(), name)) < (
            information - 1e-3
        )


def test_missing_labels_leave_the_posterior_of_the_labels_given() -> None:
    """Real crowds are mostly missing labels. A missing label must count for nothing, and not as class 0."""
    world, confusion = small_world(M=3)
    lossy = World(world.prior, world.x_given_c, with_missing(world.crowd, [0.3, 0.8, 0.5]))
    assert lossy.joint.sum() == pytest.approx(1)
    assert len(lossy.crowd) == 4**3
    assert (lossy.annotations == MISSING).any()
    _, g, zeta = lossy.bayes()
    log_g = lossy.aggregate(confusion.log())
    torch.testing.assert_close(log_g.exp(), g, rtol=1e-12, atol=1e-12)
    nobody = (lossy.annotations == MISSING).all(dim=1)
    assert int(nobody.sum()) == 1
    torch.testing.assert_close(log_g[nobody][0].exp(), world.prior, rtol=1e-12, atol=1e-12)
    h, _, _ = world.bayes()
    found = forecast(h.log()[:, None], log_g[None], world.prior.log())
    torch.testing.assert_close(found.exp(), zeta, rtol=1e-12, atol=1e-12)
    # An item's labels also give the posterior of the world in which only those annotators exist.
    alone = World(world.prior, world.x_given_c, independent_crowd(confusion[1:2]))
    only_second = (lossy.annotations != MISSING).int().tolist().index([0, 1, 0])
    said = int(lossy.annotations[only_second, 1])
    torch.testing.assert_close(log_g[only_second].exp(), alone.bayes()[1][said])


@every_row
def test_missing_labels_reach_the_information_that_is_left(name: str) -> None:
    """Theorem 3.4 must hold for crowds with missing labels, not only for complete ones."""
    world, confusion = small_world(M=3)
    lossy = World(world.prior, world.x_given_c, with_missing(world.crowd, [0.3, 0.8, 0.5]))
    h, _, _ = lossy.bayes()
    log_g = lossy.aggregate(confusion.log())
    gain = expected_gain(lossy.joint, h.log(), log_g, lossy.prior.log(), name)
    assert float(gain) == pytest.approx(lossy.information(name), rel=1e-10)
    assert lossy.information(name) < world.information(name) - 1e-2


# --- Appendix E: 101 experts who mislead the likelihood
# ---------------------------------------------------------------

EXPERTS = 101
HALF = torch.full((2, 2), 0.5, dtype=torch.float64)
IDENTITY = torch.eye(2, dtype=torch.float64)


def coin_world() -> World:
    """Return Example E.2: x = y = the answer of the first expert; the second tosses a coin, and all others copy her."""
    crowd = {
        (truth, *[coin] * (EXPERTS - 1)): 0.5 * IDENTITY[truth]
        for truth, coin in product((0, 1), repeat=2)
    }
    return World(torch.tensor([0.5, 0.5], dtype=torch.float64), IDENTITY, crowd)


def likelihood(world: World, h: Tensor, matrices: Tensor) -> float:
    """Return E log sum_c h(x)_c prod_m W^m_{c, y^m}, of (X, C) h and transition matrices (M, C, C)."""
    total = 0.0
    for x in range(len(h)):
        for y, labels in enumerate(world.crowd):
            if world.joint[x, y] > 0:
                each = torch.stack([matrices[m, :, r] for m, r in enumerate(labels)]).prod(dim=0)
                total += float(world.joint[x, y] * (h[x] * each).sum().log())
    return total


def matrices(first: Tensor, others: Tensor) -> Tensor:
    """Return one matrix for the first expert and another for the hundred."""
    return torch.stack([first] + [others] * (EXPERTS - 1))


def test_likelihood_is_misled_by_a_hundred_copies() -> None:
    """The likelihood that the AggNet baseline maximises prefers to know nothing. Both readings of the printed proof.

    As printed, identities for everyone give h_0 log 0.5. That holds where the coin happens to agree with
    the truth; elsewhere they give log 0. A first matrix that knows nothing, and identities for the others,
    give 2 log 0.5; more is not possible, as the labels alone have an entropy of 2 log 2. The conclusion
    stands: 2 log 0.5 >> 100 log 0.5.
    """
    world = coin_world()
    assert world.joint.sum() == 1
    assert world.annotations.shape == (4, EXPERTS)
    knows, ignorant = IDENTITY, HALF
    assert likelihood(world, ignorant, matrices(IDENTITY, IDENTITY)) == -math.inf
    agreeing = World(world.prior, world.x_given_c, {(c,) * EXPERTS: IDENTITY[c] for c in (0, 1)})
    assert likelihood(agreeing, ignorant, matrices(IDENTITY, IDENTITY)) == pytest.approx(
        math.log(0.5)
    )
    of_h_0 = likelihood(world, ignorant, matrices(HALF, IDENTITY))
    assert of_h_0 == pytest.approx(2 * math.log(0.5))
    of_h_star = likelihood(world, knows, matrices(IDENTITY, HALF))
    assert of_h_star == pytest.approx(100 * math.log(0.5))
    assert of_h_star < of_h_0 - 60


def test_likelihood_of_the_best_classifier_cannot_be_raised() -> None:
    """The comparison is between maxima: with better matrices h* might have caught up."""
    world = coin_world()
    entropy = 2 * math.log(2)
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        first = fractions(generator, 2, 2)
        near = (fractions(generator, EXPERTS - 1, 2, 2) + 20 * HALF) / 21
        other = torch.cat([first[None], near])
        assert likelihood(world, IDENTITY, other) < 100 * math.log(0.5)
        nearly = torch.cat([IDENTITY[None], near])
        assert likelihood(world, IDENTITY, nearly) < 100 * math.log(0.5)
        copies = matrices(first, (1 - 1e-9) * IDENTITY + 1e-9 * HALF)
        assert likelihood(world, HALF, copies) <= -entropy


@every_row
def test_gain_is_not_misled_by_a_hundred_copies(name: str) -> None:
    """With the same hundred copies, the gain must prefer the classifier that knows."""
    world = coin_world()
    log_p = world.prior.log()
    log_h_star, log_h_0 = (40 * IDENTITY).log_softmax(-1), HALF.log()
    seniors = torch.zeros(EXPERTS, 2, 2, dtype=torch.float64)
    seniors[0] = 40 * IDENTITY
    gain = expected_gain(world.joint, log_h_star, world.aggregate(seniors), log_p, name)
    information = world.information(name)
    assert float(gain) == pytest.approx(information, rel=1e-8)
    if name == "kl":
        assert information == pytest.approx(math.log(2))
    for seed in range(5):
        (weight,) = random_logs(seed, (EXPERTS, 2, 2))
        of_h_0 = expected_gain(world.joint, log_h_0, world.aggregate(weight), log_p, name)
        assert float(of_h_0) == pytest.approx(0, abs=1e-12)
        assert float(gain) > float(of_h_0) + 0.1
        of_h_star = expected_gain(world.joint, log_h_star, world.aggregate(weight), log_p, name)
        assert float(of_h_star) < float(gain) - 0.05
    majority = world.aggregate(IDENTITY.expand(EXPERTS, 2, 2))
    misled = expected_gain(world.joint, log_h_star, majority, log_p, name)
    assert float(misled) < 0.1 < float(gain)


# --- the way there
# ----------------------------------------------------------------------------------------------------


def initial_weight_of(world: World, smoothing: float = 1e-6) -> Tensor:
    """Return equation 2 for infinitely many items of a world: each set of labels counts by its probability."""
    shares = vote_share(world.annotations, len(world.prior)).double()
    weighted = shares * world.joint.sum(0)[:, None]
    M = world.annotations.shape[1]
    counts = confusion_counts(weighted, world.annotators, world.annotations, M)
    return initial_weight(counts, smoothing)


@every_row
@pytest.mark.parametrize(("X", "M"), [(5, 4), (4, 2)], ids=["M > C", "C > M"])
def test_ascent_from_the_papers_start_reaches_the_information(name: str, X: int, M: int) -> None:
    """A maximum that training does not reach from the start of the votes would be useless."""
    world, _ = small_world(seed=2, C=3, X=X, M=M)
    log_p = world.prior.log()
    logits = torch.zeros(X, 3, dtype=torch.float64, requires_grad=True)
    weight = initial_weight_of(world).requires_grad_()
    information = world.information(name)

    def gain() -> Tensor:
        return expected_gain(
            world.joint, logits.log_softmax(-1), world.aggregate(weight), log_p, name
        )

    assert information > 0.05
    assert float(gain().detach()) < information / 2
    optimizer = torch.optim.Adam([logits, weight], lr=0.05, maximize=True)
    for _ in range(300):
        optimizer.zero_grad()
        gain().backward()
        optimizer.step()
    reached = float(gain().detach())
    assert information - 1e-3 < reached <= information + 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    "prior",
    [(0.85, 0.15), pytest.param((0.98, 0.02), marks=pytest.mark.full), (0.6, 0.3, 0.1)],
    ids=["LUNA16", "rare", "three"],
)
def test_learned_prior_goes_from_the_vote_share_to_the_truth(prior: tuple[float, ...]) -> None:
    """Annotators' mistakes make a rare class look ten times as frequent, which a learned p must correct."""
    C, M, X = len(prior), 4, 6
    generator = torch.Generator().manual_seed(0)
    confusion, pictures = confusions(generator, M, C), fractions(generator, C, X)
    true = torch.tensor(prior, dtype=torch.float64)
    world = World(true, pictures, independent_crowd(confusion))
    shares = vote_share(world.annotations, C).double().T @ world.joint.sum(0)
    assert shares[-1] > 1.3 * true[-1]
    logits = torch.zeros(X, C, dtype=torch.float64, requires_grad=True)
    weight = initial_weight_of(world).requires_grad_()
    p = shares.log().requires_grad_()

    def gain() -> Tensor:
        log_p = p.log_softmax(-1)
        log_g = aggregate(weight, log_p, world.annotators, world.annotations)
        return expected_gain(world.joint, logits.log_softmax(-1), log_g, log_p, "kl")

    optimizer = torch.optim.Adam([logits, weight, p], lr=0.05, maximize=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3000)
    for _ in range(3000):
        optimizer.zero_grad()
        gain().backward()
        optimizer.step()
        scheduler.step()
    torch.testing.assert_close(p.detach().softmax(-1), true, rtol=0, atol=1e-3)
    assert float(gain().detach()) > world.information("kl") - 1e-5


# --- latent seniors: what the paper's conclusion leaves open
# ---------------------------------------------------------------------------------------------------


def latent_crowd(seniors: Tensor) -> Crowd:
    """Return the crowd of `simulate_latent_seniors`: R and R + S (mod C) of each senior's answer S."""
    C = seniors.shape[-1]
    crowd: Crowd = {(): torch.ones(C, dtype=torch.float64)}
    for confusion in seniors:
        crowd = {
            (*labels, first, second): probability * confusion[:, (second - first) % C] / C
            for labels, probability in crowd.items()
            for first, second in product(range(C), repeat=2)
        }
    return crowd


def latent_world(C: int, *right: float) -> tuple[World, Tensor]:
    """Return a world of latent seniors, right with these probabilities, and their confusion matrices."""
    seniors = torch.stack([uniform_mistakes(*[probability] * C) for probability in right])
    prior = torch.full((C,), 1 / C, dtype=torch.float64)
    world = World(prior, uniform_mistakes(*[0.9] * C), latent_crowd(seniors))
    assert world.joint.sum() == pytest.approx(1)
    return world, seniors


every_latent_world = pytest.mark.parametrize(
    ("C", "right"), [(2, (0.9, 0.7)), (3, (0.8,))], ids=["two seniors", "three classes"]
)


def test_latent_seniors_are_drawn_from_the_crowd_of_the_theory() -> None:
    """What is proved about one crowd says nothing about another."""
    _, seniors = latent_world(2, 0.9, 0.7)
    truth = torch.arange(40_000) % 2
    drawn = simulate_latent_seniors(
        truth,
        Experts("two", ("no", "yes"), seniors),
        generator=torch.Generator().manual_seed(0),
    ).annotations
    for labels, probability in latent_crowd(seniors).items():
        same = (drawn == torch.tensor(labels)).all(dim=1)
        for c in (0, 1):
            share = float(same[truth == c].double().mean())
            assert share == pytest.approx(float(probability[c]), abs=6 * 0.5 / 20_000**0.5)


@every_row
@every_latent_world
def test_latent_seniors_tell_as_much_as_seniors_in_sight(
    name: str, C: int, right: tuple[float, ...]
) -> None:
    """If hiding the seniors lost information, failing on this crowd would be no fault of the aggregator."""
    world, seniors = latent_world(C, *right)
    in_sight = World(world.prior, world.x_given_c, independent_crowd(seniors))
    assert world.information(name) == pytest.approx(in_sight.information(name), rel=1e-10)
    h, g, _ = world.bayes()
    gain = expected_gain(world.joint, h.log(), g.log(), world.prior.log(), name)
    assert float(gain) == pytest.approx(world.information(name), rel=1e-10)
    assert world.information(name) > 0.05


@every_latent_world
def test_no_sum_over_single_labels_of_latent_seniors_depends_on_the_class(
    C: int, right: tuple[float, ...]
) -> None:
    """Single labels must carry no information here, or the crowd would be no special case."""
    world, _ = latent_world(C, *right)
    M = world.annotations.shape[1]
    for m in range(M):
        said = torch.nn.functional.one_hot(world.annotations[:, m], C).double()
        single = world.y_given_c @ said  # P(r | c)
        torch.testing.assert_close(single, torch.full((C, C), 1 / C, dtype=torch.float64))
    (weight,) = random_logs(0, (M, C, C))
    total = weight[torch.arange(M), :, world.annotations].sum(dim=1)  # (Y, C)
    mean = world.y_given_c @ total
    assert total.std() > 0.5
    torch.testing.assert_close(mean, mean[:1].expand(C, C), rtol=0, atol=1e-12)


@every_row
@every_latent_world
def test_at_the_papers_start_latent_seniors_gain_nothing(
    name: str, C: int, right: tuple[float, ...]
) -> None:
    """The reason why training stalls: at equation 2 the mean of g is the same in each class.

    For KL and Pearson no classifier gains then: E_U df(K) is at most its value at the mean of K
    given x, which is 1 (Jensen), and the penalty is at least its value at 1. And at the classifier
    that knows nothing the gradient is zero for h and W alike: a saddle.
    """
    world, _ = latent_world(C, *right)
    weight = initial_weight_of(world)
    log_g = world.aggregate(weight)
    assert (log_g.exp() - 1 / C).abs().max() > 0.1  # it is not uniform
    mean = world.y_given_c @ log_g.exp()
    torch.testing.assert_close(mean, torch.full((C, C), 1 / C, dtype=torch.float64))
    X, log_p = len(world.joint), world.prior.log()
    if name in ("kl", "pearson"):
        for seed in range(20):
            (logits,) = random_logs(seed, (X, C))
            gain = expected_gain(world.joint, logits.log_softmax(-1), log_g, log_p, name)
            assert float(gain) < 0
    logits = torch.zeros(X, C, dtype=torch.float64, requires_grad=True)
    weight.requires_grad_()
    gain = expected_gain(world.joint, logits.log_softmax(-1), world.aggregate(weight), log_p, name)
    assert float(gain.detach()) == pytest.approx(0, abs=1e-12)
    for gradient in torch.autograd.grad(gain, (logits, weight)):
        assert gradient.abs().max() < 1e-12


def test_weighted_average_is_never_the_posterior_of_latent_seniors() -> None:
    """It fails because of its form, not its training: the log odds of two labels add up, those of a pair do not.

    With two classes and a uniform prior K = 1 + (2h - 1)(2g - 1), so the gain is the information
    only where 2g - 1 is that of the posterior up to a factor. Its sign is that of the agreement of
    the two juniors, and over (0,0), (1,1), (0,1), (1,0), signed +, +, -, -, the log odds of no
    weighted average sum to anything but zero.
    """
    world, _ = latent_world(2, 0.9)
    sign = torch.tensor([1.0 if a == b else -1.0 for a, b in world.crowd], dtype=torch.float64)
    for seed in range(20):
        (weight,) = random_logs(seed, (2, 2, 2))
        log_g = world.aggregate(5 * weight)
        assert abs(float(sign @ (log_g[:, 0] - log_g[:, 1]))) < 1e-10
    _, g, _ = world.bayes()
    for factor in (1.0, -1.0, 0.1):
        scaled = 0.5 + factor * (g - 0.5)
        assert abs(float(sign @ scaled.logit()[:, 0])) > 0.5


def ascend(world: World, weight: Tensor, logits: Tensor, steps: int = 300) -> float:
    """Maximise the exact gain over classifier and weighted average; return the result."""
    weight, logits = weight.clone().requires_grad_(), logits.clone().requires_grad_()
    optimizer = torch.optim.Adam([weight, logits], lr=0.05, maximize=True)
    for _ in range(steps):
        optimizer.zero_grad()
        log_h, log_g = logits.log_softmax(-1), world.aggregate(weight)
        gain = expected_gain(world.joint, log_h, log_g, world.prior.log(), "kl")
        gain.backward()
        optimizer.step()
    return float(gain.detach())


def test_weighted_average_gets_a_quarter_of_what_two_latent_seniors_tell() -> None:
    """It gets some: "both say 0" against all other answers of a pair has its form, and is its best from any start.

    A claim that it can learn nothing at all would be false, and a quarter may be all that a user sees.
    """
    world, _ = latent_world(2, 0.9, 0.9)
    reached = []
    for seed in range(4):
        weight, logits = random_logs(seed, (4, 2, 2), (2, 2))
        reached.append(ascend(world, 2 * weight, logits, steps=200))
    assert max(reached) < 0.25 * world.information("kl")
    assert max(reached) - min(reached) < 0.01


def listening(seniors: Tensor) -> InteractionAggregator:
    """Return the interaction aggregator that knows which juniors belong together, and their senior.

    It has a feature for each pair of juniors and each pair of labels, on where both were given. Its score
    is the senior's log confusion at their difference.
    """
    num_seniors, C, _ = seniors.shape
    aggregator = InteractionAggregator(2 * num_seniors, C, num_seniors * C * C).double().eval()
    with torch.no_grad():
        for parameter in aggregator.parameters():
            parameter.zero_()
        features = product(range(num_seniors), range(C), range(C))
        for k, (m, first, second) in enumerate(features):
            aggregator.embedding[2 * m, first, k] = 1
            aggregator.embedding[2 * m + 1, second, k] = 1
            aggregator.mix[k] = seniors[m, :, (second - first) % C].log()
    return aggregator


@every_row
@every_latent_world
def test_interaction_can_be_the_posterior_of_latent_seniors(
    name: str, C: int, right: tuple[float, ...]
) -> None:
    """The other half of the claim: its form is rich enough, so that Theorem 3.4 holds again."""
    world, seniors = latent_world(C, *right)
    log_p = world.prior.log()
    log_g = listening(seniors)(log_p, world.annotators, world.annotations).detach()
    h, g, zeta = world.bayes()
    torch.testing.assert_close(log_g.exp(), g, rtol=1e-10, atol=1e-10)
    gain = expected_gain(world.joint, h.log(), log_g, log_p, name)
    assert float(gain) == pytest.approx(world.information(name), rel=1e-10)
    found = forecast(h.log()[:, None], log_g[None], log_p)
    torch.testing.assert_close(found.exp(), zeta, rtol=1e-10, atol=1e-10)


def test_only_pairs_that_do_not_start_at_zero_point_the_way_out() -> None:
    """Where W gains nothing, the gain's mixed curvature in h and g is the only direction of ascent.

    The weighted average has none: averaged over a class, no change of W changes g. Pairs that are zero have
    none either, as products of zeros; small ones do.
    """
    world, _ = latent_world(2, 0.9)
    log_p = world.prior.log()
    direction = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)  # h learns the truth

    def curvature(aggregator: torch.nn.Module) -> dict[str, float]:
        step = torch.zeros((), dtype=torch.float64, requires_grad=True)
        log_g = aggregator(log_p, world.annotators, world.annotations)
        gain = expected_gain(world.joint, (step * direction).log_softmax(-1), log_g, log_p, "kl")
        (slope,) = torch.autograd.grad(gain, step, create_graph=True)
        names, parameters = zip(*aggregator.named_parameters(), strict=True)
        grads = torch.autograd.grad(slope, parameters)
        return {n: float(grad.abs().max()) for n, grad in zip(names, grads, strict=True)}

    torch.manual_seed(0)
    aggregator = InteractionAggregator(2, 2).double().eval()
    torch.nn.init.zeros_(aggregator.table)
    found = curvature(aggregator)
    assert found["table"] < 1e-3 < min(found["embedding"], found["mix"])
    torch.nn.init.zeros_(aggregator.embedding)
    assert max(curvature(aggregator).values()) < 1e-12
