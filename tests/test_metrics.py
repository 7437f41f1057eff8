"""Accuracies over the items that have what they need, the gain's ceiling and interval, and calibration."""

import math
import time

import numpy as np
import pytest
import torch
from scipy.stats import t
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from hf_maxmig.metrics import (
    SPREAD_ITEMS,
    accuracies,
    calibration,
    certainty,
    chance_of_right,
    claims_of_right,
    gain_ceiling,
    gain_interval,
    plurality_accuracy,
)
from hf_maxmig.model.divergences import DIVERGENCES
from hf_maxmig.model.functional import mutual_information_gain, vote_share

every_row = pytest.mark.parametrize("divergence", DIVERGENCES)


def sampled_pair(num_items, num_classes, generator, sharpness=2.0):
    """Return an h and a g that err independently of each other, and the uniform prior under which both are right."""
    truth = torch.randint(num_classes, (num_items,), generator=generator)
    logs = []
    for _ in range(2):
        noise = torch.randn(num_items, num_classes, generator=generator, dtype=torch.float64)
        logits = noise + sharpness * torch.nn.functional.one_hot(truth, num_classes)
        logs.append((sharpness * logits).log_softmax(-1))  # the posterior given such noise
    prior = torch.full((num_classes,), -math.log(num_classes), dtype=torch.float64)
    return *logs, prior


def test_accuracies_count_only_items_that_allow_them():
    """Counting items without a gold label, or unvoted ones for the aggregator, would lower the score."""
    rng = np.random.default_rng(0)
    posteriors = [np.log(rng.dirichlet(np.ones(3), size=7)) for _ in range(3)]
    labels = np.array([0, 2, -100, 1, 1, -100, 0])
    annotated = np.array([True, False, True, True, True, True, False])
    scores = accuracies(*posteriors, labels, annotated)
    rows = {
        "accuracy": [0, 1, 3, 4, 6],
        "aggregator_accuracy": [0, 3, 4],
        "forecast_accuracy": [0, 3, 4],
    }
    for (name, taken), posterior in zip(rows.items(), posteriors, strict=True):
        right = sum(posterior[i].argmax() == labels[i] for i in taken)
        assert scores[name] == pytest.approx(right / len(taken))


def test_accuracies_are_absent_where_nothing_can_be_measured():
    """Zero or NaN in a results file looks like a result."""
    posterior = np.log(np.full((2, 3), 1 / 3))
    nothing = accuracies(
        posterior, posterior, posterior, np.array([-100, -100]), np.array([True, True])
    )
    assert nothing == {}
    unlabelled = accuracies(
        posterior, posterior, posterior, np.array([0, 1]), np.array([False, False])
    )
    assert unlabelled.keys() == {"accuracy"}


def test_certainty_is_that_of_scikit_learn_on_items_with_gold_labels():
    """Another base of the logarithm, or half a Brier score, would give numbers just as plausible."""
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(4), size=60)
    labels = np.where(rng.random(60) < 0.5, p.argmax(axis=1), rng.integers(4, size=60))
    gold = np.arange(60) % 5 > 0
    found = certainty(np.log(p).astype(np.float32), np.where(gold, labels, -100))
    assert found["nll"] == pytest.approx(log_loss(labels[gold], p[gold], labels=range(4)), abs=1e-5)
    right = brier_score_loss(labels[gold], p[gold], labels=range(4), scale_by_half=False)
    assert found["brier"] == pytest.approx(right, abs=1e-5)
    top = calibration(p[gold].max(axis=1), p[gold].argmax(axis=1) == labels[gold])
    assert found["ece"] == pytest.approx(top.error, abs=1e-5)
    assert certainty(np.log(p), np.full(60, -100)) == {}


def test_certainty_of_a_class_of_hardly_any_probability_stays_finite():
    """With scikit-learn's clipping, a memorised mistake at e^-200 would cost only 36 nats."""
    sure = np.array([[0.0, -200.0]])
    assert certainty(sure, np.array([1]))["nll"] == pytest.approx(200)
    assert certainty(sure, np.array([1]))["brier"] == pytest.approx(2)


def test_chance_of_right_and_its_measures_are_those_of_loops():
    """With a transposed matrix, or the vote itself in the claim, the result would still be a probability."""
    rng = np.random.default_rng(4)
    N, M, C, K = 30, 4, 3, 2
    p, matrices = rng.dirichlet(np.ones(C), size=N), rng.dirichlet(np.ones(C), size=(M, C))
    who = np.stack([rng.permutation(M)[:K] for _ in range(N)])
    chance = chance_of_right(p, matrices, who)
    for i in range(N):
        for k in range(K):
            right = sum(p[i, c] * matrices[who[i, k], c, c] for c in range(C))
            assert chance[i, k] == pytest.approx(right)
    claimed, right = chance.ravel(), rng.random(N * K) < chance.ravel()
    claimed[:5] = claimed[5]  # ties
    assert 0 < right.mean() < 1
    found = claims_of_right(claimed, right)
    pairs = [(a, b) for a in claimed[right] for b in claimed[~right]]
    above = np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs])
    assert found["auroc"] == pytest.approx(above)
    assert found["brier"] == pytest.approx(np.mean((claimed - right) ** 2))
    assert found["accuracy"] == np.mean(
        [(c > 0.5) == r for c, r in zip(claimed, right, strict=True)]
    )
    error = 0.0
    for b in range(10):
        held = [v for v in range(N * K) if b / 10 < max(claimed[v], 1 - claimed[v]) <= (b + 1) / 10]
        says = sum(max(claimed[v], 1 - claimed[v]) for v in held)
        error += abs(sum((claimed[v] > 0.5) == right[v] for v in held) - says) / (N * K)
    assert found["ece"] == pytest.approx(error)


@pytest.mark.filterwarnings("error")
def test_claims_about_votes_that_are_all_right_have_no_ranking():
    """scikit-learn warns and returns NaN, which is not valid JSON."""
    found = claims_of_right(np.array([0.75, 0.5]), np.array([True, True]))
    assert found.keys() == {"accuracy", "brier", "ece"}
    assert found["brier"] == pytest.approx((0.25**2 + 0.5**2) / 2)


@every_row
@pytest.mark.parametrize("counts", [[1, 2, 4], [3, 3], [1, 1, 1, 1, 1]])
def test_ceiling_is_the_expected_gain_of_a_perfect_pair(divergence, counts):
    """A ceiling in another unit, or of another divergence, would still look plausible.

    In this finite world an item is its class. Over all N^2 pairs, including each item with itself, the
    mean reward less the mean penalty is the expectation; the library's gain leaves out those N pairs.
    """
    truth = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    N = len(truth)
    log_p = (torch.tensor(counts).double() / N).log()
    sure = torch.eye(len(counts), dtype=torch.float64)[truth].log()
    gain = mutual_information_gain(sure, sure, log_p, divergence)
    row = DIVERGENCES[divergence]
    own = row.penalty(-log_p[truth]).mean()
    reward = row.reward(-log_p[truth]).mean()
    expected = reward - ((reward - gain) * (N - 1) + own) / N
    assert gain_ceiling(log_p, divergence) == pytest.approx(float(expected), rel=1e-9)
    assert gain_ceiling(log_p, divergence) > 0.2


def test_ceiling_of_kl_is_the_entropy_of_the_prior():
    """This is what the documentation promises; Pearson's is C - 1, whatever the prior."""
    log_p = torch.tensor([0.7, 0.2, 0.1]).log()
    entropy = -(0.7 * math.log(0.7) + 0.2 * math.log(0.2) + 0.1 * math.log(0.1))
    assert gain_ceiling(log_p) == pytest.approx(entropy, abs=1e-6)
    assert gain_ceiling(log_p, "pearson") == pytest.approx(2, abs=1e-5)


@every_row
def test_interval_is_that_of_leaving_out_each_item(divergence):
    """A closed form that forgets a pair, or divides by N and not N - 1, gives a slightly shorter interval."""
    log_h, log_g, log_p = sampled_pair(13, 3, torch.Generator().manual_seed(0))
    N = len(log_h)
    keep = [[j for j in range(N) if j != i] for i in range(N)]
    left_out = torch.stack(
        [mutual_information_gain(log_h[rows], log_g[rows], log_p, divergence) for rows in keep]
    )
    error = ((N - 1) / N * (left_out - left_out.mean()).square().sum()).sqrt()
    gain = float(mutual_information_gain(log_h, log_g, log_p, divergence))
    margin = float(t.ppf(0.975, N - 1) * error)
    low, high = gain_interval(log_h, log_g, log_p, divergence)
    assert (low, high) == pytest.approx((gain - margin, gain + margin), rel=1e-9)
    assert gain_interval(log_h, log_g, log_p, divergence, gain=7.0)[0] == pytest.approx(
        7 + low - gain
    )


def test_interval_of_many_items_is_quick_and_no_other():
    """All pairs of 100,000 items would take minutes, but a subset of them must not pass for the whole."""
    log_h, log_g, log_p = sampled_pair(100_000, 5, torch.Generator().manual_seed(0))
    start = time.perf_counter()
    low, high = gain_interval(log_h, log_g, log_p, "jensen_shannon", gain=0.0)
    assert time.perf_counter() - start < 3
    few = gain_interval(log_h[:SPREAD_ITEMS], log_g[:SPREAD_ITEMS], log_p, "jensen_shannon")
    assert high - low == pytest.approx((few[1] - few[0]) * (SPREAD_ITEMS / 1e5) ** 0.5, rel=0.1)
    assert (low, high) == gain_interval(log_h, log_g, log_p, "jensen_shannon", gain=0.0)


@pytest.mark.slow
@every_row
@pytest.mark.parametrize("num_items", [60, 400])
def test_interval_holds_the_gain_on_further_items(divergence, num_items):
    """This is its only purpose: 95 of 100 samples must have it inside."""
    generator = torch.Generator().manual_seed(1)
    log_h, log_g, log_p = sampled_pair(8_000, 3, generator)
    expected = float(mutual_information_gain(log_h, log_g, log_p, divergence))
    inside = 0
    for _ in range(500):
        low, high = gain_interval(*sampled_pair(num_items, 3, generator), divergence)
        inside += low < expected < high
    assert 0.91 <= inside / 500 <= 0.98


def test_interval_needs_three_items():
    """With two items none can be left out, and NaN in a results file looks like a result."""
    log_h, log_g, log_p = sampled_pair(2, 3, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="at least 3 items with annotations, got 2"):
        gain_interval(log_h, log_g, log_p)


def test_calibration_agrees_with_a_loop_and_with_scikit_learn():
    """With a bin's edge on the wrong side, or a mean over bins and not items, the figure would look plausible."""
    rng = np.random.default_rng(0)
    confidence = np.append(rng.random(200), [0.0, 1.0, 0.2, 0.6])
    correct = rng.random(204) < confidence**2
    measured = calibration(confidence, correct, bins=5)
    error, counts = 0.0, []
    for b in range(5):
        inside = [i for i, p in enumerate(confidence) if b / 5 < p <= (b + 1) / 5 or b == p == 0]
        claimed = sum(confidence[i] for i in inside) / len(inside)
        right = sum(bool(correct[i]) for i in inside) / len(inside)
        error += len(inside) / 204 * abs(claimed - right)
        counts.append(len(inside))
    assert measured.error == pytest.approx(error)
    assert error > 0.05
    assert measured.count.tolist() == counts
    accuracy, claim = calibration_curve(correct[:200], confidence[:200], n_bins=5)
    measured = calibration(confidence[:200], correct[:200], bins=5)
    np.testing.assert_allclose(measured.accuracy, accuracy)
    np.testing.assert_allclose(measured.confidence, claim)


def test_calibration_lists_only_bins_that_hold_items():
    """An empty bin shown as (0, 0) would look like a posterior that is always wrong."""
    measured = calibration(np.array([0.95, 0.91, 0.05]), np.array([True, False, False]), bins=10)
    assert measured.count.tolist() == [1, 2]
    np.testing.assert_allclose(measured.confidence, [0.05, 0.93])
    np.testing.assert_allclose(measured.accuracy, [0, 0.5])
    assert measured.error == pytest.approx((0.05 + 2 * 0.43) / 3)


@pytest.mark.parametrize(
    ("confidence", "correct", "bins", "message"),
    [
        (
            [0.5],
            [True, False],
            15,
            r"same shape \(N,\) with N of at least 1, got \(1,\) and \(2,\)",
        ),
        ([], [], 15, r"got \(0,\) and \(0,\)"),
        ([0.5, 1.5], [True, True], 15, r"must lie in \[0, 1\], got 1.5 at item 1"),
        ([float("nan")], [True], 15, "got nan at item 0"),
        ([0.5], [True], 0, "`bins` must be at least 1, got 0"),
    ],
)
def test_calibration_of_what_is_no_probability_is_refused(confidence, correct, bins, message):
    """Log-probabilities would all fall into one bin."""
    with pytest.raises(ValueError, match=message):
        calibration(np.array(confidence), np.array(correct), bins)


def test_tie_of_votes_counts_by_its_share_everywhere():
    """When only one of page and console counted ties, the same crowd had two accuracies."""
    votes = torch.tensor([[0, 0, 1], [0, 1, -1], [2, 1, 0], [1, 1, 1]])
    labels = torch.tensor([0, 1, 2, 0])
    expected = (1 + 1 / 2 + 1 / 3 + 0) / 4
    assert plurality_accuracy(vote_share(votes, 3), labels) == pytest.approx(expected)
