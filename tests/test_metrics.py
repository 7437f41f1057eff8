"""Accuracies over the items that allow them."""

import numpy as np
import pytest

from hf_maxmig.metrics import accuracies


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
