"""Accuracies over the items that allow them, and how far a probability can be believed."""

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from hf_maxmig.metrics import accuracies, calibration


def test_accuracies_count_only_items_that_allow_them():
    """An item without gold label counted as wrong, or an unlabelled one for the aggregator, lowers the score."""
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
    """Zero or NaN in a results file reads like a result."""
    posterior = np.log(np.full((2, 3), 1 / 3))
    nothing = accuracies(
        posterior, posterior, posterior, np.array([-100, -100]), np.array([True, True])
    )
    assert nothing == {}
    unlabelled = accuracies(
        posterior, posterior, posterior, np.array([0, 1]), np.array([False, False])
    )
    assert unlabelled.keys() == {"accuracy"}


def test_calibration_agrees_with_a_loop_and_with_scikit_learn():
    """A bin's edge on the wrong side, or a mean over bins in place of items, is a plausible number."""
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
    """An empty bin as (0, 0) is drawn as a posterior that is always wrong."""
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
    """Log-probabilities in place of probabilities would all fall into one bin."""
    with pytest.raises(ValueError, match=message):
        calibration(np.array(confidence), np.array(correct), bins)
