"""Cross-fitted networks: the prediction for an item does not depend on its own votes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot

from hf_maxmig.model.functional import aggregate, mutual_information_gain, vote_share
from hf_maxmig.training.fold_networks import (
    DROPOUT,
    RATE,
    CrossFit,
    Networks,
    _adam_step,
    _prior_slope,
    _slope,
    divide,
    principal_components,
)

N, M, C, D = 70, 4, 3, 5


@pytest.fixture
def world():
    """Features that identify the class, and two or three votes per item, some of them wrong."""
    generator = torch.Generator().manual_seed(3)
    truth = torch.arange(N) % C
    features = 2 * torch.randn(C, D, generator=generator)[truth]
    features = features + torch.randn(N, D, generator=generator)
    annotators = torch.rand(N, M, generator=generator).argsort(dim=1)[:, :3].sort(dim=1).values
    wrong = torch.rand(N, 3, generator=generator) < 0.3
    said = torch.where(wrong, torch.randint(C, (N, 3), generator=generator), truth[:, None])
    annotators[::4, 2], said[::4, 2] = -1, -1
    return principal_components(features), truth, (annotators, said)


def fit(features, fold=None, seed=0, **settings):
    fold = divide(torch.ones(len(features), dtype=torch.bool), seed=1) if fold is None else fold
    return CrossFit(features, fold, C, seed, **settings)


def said_by(networks, features):
    return networks.logits(networks.hidden(features)).log_softmax(dim=-1)


def test_slope_of_many_networks_is_that_of_the_gain_of_each():
    """The gradient is written out for speed.

    An error in it would train something other than the paper's gain.
    """
    torch.manual_seed(0)
    R, n, B = 2, 4, 9
    scores = torch.randn(R, n, B, C).double().requires_grad_()
    log_h = scores.log_softmax(-1)
    log_g = torch.randn(R, n, B, C).double().log_softmax(-1)
    log_p = torch.randn(R, C).double().log_softmax(-1)
    found = _slope(log_h.detach(), log_g, log_p)
    assert found.shape == scores.shape
    gains = [
        mutual_information_gain(log_h[r, k], log_g[r, k], log_p[r])
        for r in range(R)
        for k in range(n)
    ]
    torch.testing.assert_close(found, torch.autograd.grad(sum(gains), scores)[0])


def test_slope_of_a_prior_is_that_of_the_gain():
    """The prior appears in the gain and in the scores of g.

    Counting only one of them would lead to another prior.
    """
    torch.manual_seed(0)
    R, B = 2, 9
    logits = torch.randn(R, C).double().requires_grad_()
    log_p = logits.log_softmax(-1)
    log_h = torch.randn(R, B, C).double().log_softmax(-1)
    log_g = (torch.randn(R, B, C).double() + log_p[:, None]).log_softmax(-1)
    given = log_g.detach(), log_p.detach()
    found = _prior_slope(log_h, *given, _slope(given[0], log_h, given[1]))
    gains = sum(mutual_information_gain(log_h[r], log_g[r], log_p[r]) for r in range(R))
    torch.testing.assert_close(found, torch.autograd.grad(gains, logits)[0])


def test_slope_is_finite_where_both_sides_are_sure_of_different_classes():
    """K underflows there. W at a hundred times the rate reaches log-probabilities like these."""
    sure = torch.tensor([[[0.0, -200.0], [-200.0, 0.0], [0.0, -200.0]]])
    half = torch.tensor([[0.5, 0.5]]).log()
    found = _slope(sure, sure.flip(-1), half)
    assert found.isfinite().all()


def test_step_of_adam_is_that_of_torch_with_a_rate_an_element():
    """Columns of W have their own learning rates, which no torch optimizer offers."""
    torch.manual_seed(0)
    rates = torch.tensor([1e-2, 1e-1])
    ours = torch.randn(4, 2)
    columns = [ours[:, j].clone().requires_grad_() for j in range(2)]
    adam = torch.optim.Adam(
        [{"params": [c], "lr": float(r)} for c, r in zip(columns, rates, strict=True)]
    )
    moments = torch.zeros(4, 2), torch.zeros(4, 2)
    before = ours.clone()
    for step in range(1, 9):
        gradient = torch.randn(4, 2)
        for j, column in enumerate(columns):
            column.grad = gradient[:, j].clone()
        _adam_step(ours, gradient, moments, rates, step)
        adam.step()
    torch.testing.assert_close(ours, torch.stack([c.detach() for c in columns], dim=1))
    assert (ours - before).abs().min() > 1e-3


def test_what_is_said_of_an_item_does_not_depend_on_its_target(world):
    """This is the promise of cross-fitting: otherwise networks repeat the votes that they are meant to check."""
    features, truth, _ = world
    fold = divide(torch.ones(N, dtype=torch.bool), seed=1)
    targets = one_hot(truth, C).float()
    usual = fit(features, fold).learn(targets, steps=30)
    for own in range(3):
        changed = torch.where((fold == own)[:, None], targets.roll(1, dims=1), targets)
        found = fit(features, fold).learn(changed, steps=30)
        assert torch.equal(found[fold == own], usual[fold == own])
        assert (found - usual)[fold != own].abs().mean() > 0.01


def test_networks_in_a_race_do_not_learn_from_the_votes_of_their_own_fold(world):
    """W learns from all votes. With W held fixed, a vote must not affect the prediction for its own item."""
    features, _, (who, said) = world
    fold = divide(torch.ones(N, dtype=torch.bool), seed=1)
    log_p = torch.full((C,), -math.log(C))
    weight = 2 * torch.eye(C).expand(M, C, C).contiguous()

    def race(annotations, multiple):
        fitted = fit(features, fold)
        fitted.learn(one_hot(torch.arange(N) % C, C).float(), steps=10)
        return fitted.race((who, annotations), weight, [(log_p, multiple)], 30, (1.0,))[0]

    usual = race(said, 0.0)
    assert torch.equal(usual.weight, weight)
    for own in range(3):
        changed = torch.where((fold == own)[:, None] & (said >= 0), (said + 1) % C, said)
        found = race(changed, 0.0)
        assert torch.equal(found.log_h[fold == own], usual.log_h[fold == own])
        assert (found.log_h - usual.log_h)[fold != own].abs().mean() > 0.01
    assert (race(said, 10.0).weight - weight).abs().max() > 0.01


def test_weight_learns_from_networks_that_have_not_seen_the_item(world):
    """W's first step must follow the gain of out-of-fold networks, not of those that repeat the votes."""
    features, _, (who, said) = world
    fitted = fit(features)
    shares = vote_share(said, C)
    unseen = fitted.learn(shares, steps=300)
    each = said_by(fitted.networks, features)  # (folds, N, C)
    learned = each[(fitted.fold + 1) % 3, torch.arange(N)]
    batch = fitted._batches(1)[0].flatten()
    log_p = torch.tensor([0.5, 0.3, 0.2]).log()

    def climbed(log_h):
        weight = start.clone().requires_grad_()
        log_g = aggregate(weight, log_p, who[batch], said[batch])
        mutual_information_gain(log_h[batch], log_g, log_p).backward()
        return start + 10 * RATE * weight.grad / (weight.grad.abs() + 1e-8)

    torch.manual_seed(0)
    start = torch.eye(C).expand(M, C, C) + 0.1 * torch.randn(M, C, C)
    (raced,) = fitted.race((who, said), start, [(log_p, 10.0)], 1, (1.0,))
    assert (climbed(learned) - climbed(unseen)).abs().max() > 0.01
    torch.testing.assert_close(raced.weight, climbed(unseen), atol=1e-4, rtol=0)


def test_each_setting_of_a_race_is_what_it_would_be_alone(world):
    """All settings run as one batch of matrices. An error in their order would mix them up."""
    features, truth, crowd = world
    weight = 0.5 * torch.eye(C).expand(M, C, C) + 0.1 * torch.arange(M)[:, None, None]
    options = [
        (torch.full((C,), -math.log(C)), 10.0),
        (torch.tensor([0.6, 0.3, 0.1]).log(), 100.0),
    ]

    def race(chosen):
        fitted = fit(features)
        fitted.learn(one_hot(truth, C).float(), steps=3)
        return fitted.race(crowd, weight, chosen, 4, (0.25, 1.0))

    together = race(options)
    assert [one.multiple for one in together] == [10.0, 100.0, 10.0, 100.0]
    # The same units drop out in all of them.
    for place, option in enumerate(options):
        early, late = race([option])
        for alone, one in ((early, together[place]), (late, together[place + 2])):
            assert torch.equal(one.log_p, option[0])
            torch.testing.assert_close(one.weight, alone.weight, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(one.log_h, alone.log_h, atol=1e-4, rtol=1e-4)
    moved = (together[3].weight - weight).abs().max(), (together[2].weight - weight).abs().max()
    assert moved[0] > 5 * moved[1]


def test_fits_are_repeatable_and_leave_the_random_state_alone(world):
    """A training that starts with them must not draw other batches because of it."""
    features, truth, crowd = world
    targets = one_hot(truth, C).float()
    weight = torch.eye(C).expand(M, C, C)
    settings_ = [(torch.full((C,), -math.log(C)), 10.0)]

    def both(seed):
        fitted = fit(features, seed=seed)
        return fitted.learn(targets, 5), fitted.race(crowd, weight, settings_, 5, (1.0,))[0]

    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, raced = both(seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    again, raced_again = both(seed=0)
    assert torch.equal(first, again)
    assert torch.equal(raced.log_h, raced_again.log_h)
    assert torch.equal(raced.weight, raced_again.weight)
    assert not torch.equal(first, both(seed=1)[0])


def test_items_that_no_network_learns_from_are_judged_by_all(world):
    """Covers items beyond the limit of those learned from, and items without votes."""
    features, truth, _ = world
    learned = torch.arange(N) % 5 > 0
    fold = divide(learned, seed=0, most=40)
    assert (fold >= 0).sum() == 40
    targets = one_hot(truth, C).float()
    fitted = fit(features, fold)
    log_h = fitted.learn(targets, steps=20)
    each = said_by(fitted.networks, features)
    everyone = each.exp().mean(dim=0).log()
    torch.testing.assert_close(log_h[fold < 0], everyone[fold < 0])
    own = each[fold.clamp(min=0), torch.arange(N)]
    torch.testing.assert_close(log_h[fold >= 0], own[fold >= 0])
    assert (own - everyone).abs().max() > 0.01
    # The predictions for the others do not change.
    changed = torch.where((fold < 0)[:, None], targets.roll(1, dims=1), targets)
    assert torch.equal(fit(features, fold).learn(changed, steps=20), log_h)


def test_each_step_is_told(world):
    """A progress bar that does not move looks like a hang."""
    features, truth, crowd = world
    ticks = []
    fitted = fit(features, tick=lambda: ticks.append(1))
    fitted.learn(one_hot(truth, C).float(), 4)
    weight = torch.eye(C).expand(M, C, C)
    fitted.race(crowd, weight, [(torch.full((C,), -math.log(C)), 10.0)], 3, (1.0,))
    assert len(ticks) == 7


def test_batches_take_each_item_once_before_one_comes_again(world):
    """Drawn independently for each step, some items would hardly be seen in a short training."""
    features, *_ = world
    fold = divide(torch.arange(N) % 7 > 0, seed=0)
    fitted = fit(features, fold)
    batches = fitted._batches(5)
    assert len(batches) == 5
    for batch in batches:
        assert (fold[batch] == torch.arange(3)[:, None]).all()  # a row of each fold
        assert len(batch.unique()) == batch.numel() == int((fold >= 0).sum())


def test_networks_side_by_side_are_those_one_by_one():
    """One batch of matrices replaces a loop over networks."""
    networks = Networks.drawn(3, D, C, torch.Generator().manual_seed(0))
    x = torch.randn(8, D)
    found, twice = said_by(networks, x), said_by(networks.repeated(2), x)
    for k in range(3):
        hidden = (x @ networks.first[k] + networks.first_bias[k]).relu()
        logits = hidden @ networks.output[k] + networks.output_bias[k]
        torch.testing.assert_close(found[k], logits.log_softmax(-1))
        torch.testing.assert_close(twice[3 + k], found[k])
    assert not torch.allclose(found[0], found[1], atol=0.01)


def test_networks_step_as_torch_would():
    """Their gradient is written out, and units that drop out must have none."""
    torch.manual_seed(0)
    networks = Networks.drawn(3, D, C, torch.Generator().manual_seed(0))
    names = ("first", "first_bias", "output", "output_bias")
    copies = [getattr(networks, name).clone().requires_grad_() for name in names]
    adam = torch.optim.Adam(copies, lr=0.01)
    for _ in range(4):
        x, target = torch.randn(8, D), torch.rand(3, 8, C).softmax(dim=-1)
        kept = (torch.rand(8, networks.first.shape[2]) >= DROPOUT) / (1 - DROPOUT)
        hidden = networks.hidden(x) * kept
        slope = networks.logits(hidden).softmax(dim=-1) - target
        networks.step(x, hidden, slope, rate=0.01)
        inner = torch.baddbmm(copies[1], x.expand(3, -1, -1), copies[0]).relu() * kept
        log_h = torch.baddbmm(copies[3], inner, copies[2]).log_softmax(dim=-1)
        adam.zero_grad()
        (-(target * log_h).sum()).backward()
        adam.step()
    for name, expected in zip(names, copies, strict=True):
        torch.testing.assert_close(getattr(networks, name), expected.detach(), atol=1e-5, rtol=1e-4)


@settings(deadline=None, max_examples=60)
@given(
    learned=st.lists(st.booleans(), min_size=1, max_size=40),
    seed=st.integers(0, 2**31),
    folds=st.integers(2, 5),
    most=st.integers(1, 50),
)
def test_folds_are_even_and_of_what_can_be_learned_from(learned, seed, folds, most):
    """If one fold held all the labelled items, its networks would have nothing to learn from."""
    mask = torch.tensor(learned)
    fold = divide(mask, seed, folds=folds, most=most)
    assert (fold[~mask] == -1).all()
    taken = fold[fold >= 0]
    assert len(taken) == min(most, int(mask.sum()))
    sizes = torch.bincount(taken, minlength=folds)
    assert len(sizes) == folds
    assert sizes.max() - sizes.min() <= 1
    assert torch.equal(fold, divide(mask, seed, folds=folds, most=most))


def test_folds_are_drawn_at_random():
    """In the order of the data set, which is often sorted by class, a fold would lack a class."""
    fold = divide(torch.ones(300, dtype=torch.bool), seed=0)
    halves = torch.bincount(fold[:150], minlength=3)
    assert not torch.equal(fold[:150].sort().values, fold[:150])
    assert halves.min() > 30
    assert not torch.equal(fold, divide(torch.ones(300, dtype=torch.bool), seed=1))


numbers = st.floats(-100, 100, width=32)


@settings(deadline=None, max_examples=60)
@given(
    data=st.data(),
    shape=st.tuples(st.integers(2, 9), st.integers(1, 6)),
    most=st.integers(1, 8),
    shift=numbers,
    factor=st.floats(0.125, 8, width=32),
)
def test_components_do_not_know_where_zero_is_nor_the_unit(data, shape, most, shift, factor):
    """Features are finite, of mean square one, and independent of offset and unit."""
    values = data.draw(st.lists(st.integers(-9, 9), min_size=math.prod(shape), max_size=math.prod(shape)))  # fmt: skip
    features = torch.tensor(values, dtype=torch.float32).view(shape)
    found = principal_components(features, most)
    assert found.shape == (shape[0], min(shape[1], most))
    assert found.dtype == torch.float32
    assert found.isfinite().all()
    differs = bool((features != features[0]).any())
    torch.testing.assert_close(
        found.square().mean(), torch.tensor(float(differs)), atol=1e-3, rtol=0
    )
    moved = principal_components(factor * features + shift, most)
    torch.testing.assert_close(moved @ moved.T, found @ found.T, atol=2e-2, rtol=0)
    order = torch.randperm(shape[0], generator=torch.Generator().manual_seed(0))
    turned = principal_components(features[order], most)
    torch.testing.assert_close(
        turned @ turned.T, (found @ found.T)[order][:, order], atol=2e-2, rtol=0
    )


def test_components_are_the_directions_in_which_items_differ_most():
    """Compare with numpy's singular value decomposition."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 7, generator=generator) * torch.tensor([3.0, 2.5, 2, 1, 1, 0.5, 0.5])
    turn = torch.linalg.qr(torch.randn(7, 7, generator=generator)).Q
    found = principal_components(features @ turn + 5, most=3)
    centred = (features - features.mean(dim=0)).double().numpy()
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    expected = u[:, :3] * s[:3]
    expected = torch.from_numpy(expected / np.sqrt((expected**2).mean())).float()
    torch.testing.assert_close(found @ found.T, expected @ expected.T, atol=1e-3, rtol=1e-3)


def test_columns_of_unlike_scales_count_alike_and_others_as_they_differ():
    """A table may mix metres and millimetres; computed features mix noise and signal."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(200, 2, generator=generator)
    for more in (0, 3, 20):
        beside = torch.cat([base, torch.randn(200, more, generator=generator)], dim=1)
        beside[:, 0] *= 1000
        table = principal_components(beside)
        torch.testing.assert_close(table.std(dim=0), torch.ones(2 + more), atol=0.01, rtol=0)
    computed = principal_components(base * torch.tensor([5.0, 1.0])).std(dim=0)
    assert computed[0] > 4 * computed[1]
    constant = principal_components(torch.cat([base, torch.full((200, 1), 7.0)], dim=1))
    torch.testing.assert_close(constant[:, 2], torch.zeros(200))
