"""Measure the three posteriors against gold labels, where there are any."""

import numpy as np
from numpy.typing import NDArray

NO_LABEL = -100  # what transformers writes for a missing gold label


def accuracies(
    log_h: NDArray[np.floating],
    log_g: NDArray[np.floating],
    log_forecast: NDArray[np.floating],
    labels: NDArray[np.integer],
    annotated: NDArray[np.bool_],
) -> dict[str, float]:
    """Compare the three posteriors with gold labels.

    Args:
        log_h: (N, C), log-probabilities of the classifier.
        log_g: (N, C), of the aggregator.
        log_forecast: (N, C), of the forecaster.
        labels: (N,), gold labels; `NO_LABEL` where there is none.
        annotated: (N,), which items have annotations: aggregator and forecaster are measured on
            these.

    Returns:
        `accuracy`, `aggregator_accuracy`, `forecast_accuracy`; each only where an item allows it.

    Example:
        >>> first, second = np.log([[0.9, 0.1]]), np.log([[0.2, 0.8]])
        >>> accuracies(first, second, second, np.array([1]), np.array([True]))
        {'accuracy': 0.0, 'aggregator_accuracy': 1.0, 'forecast_accuracy': 1.0}
    """
    gold = labels != NO_LABEL
    scores = {}
    for name, posterior, taken in (
        ("accuracy", log_h, gold),
        ("aggregator_accuracy", log_g, gold & annotated),
        ("forecast_accuracy", log_forecast, gold & annotated),
    ):
        if taken.any():
            scores[name] = float((posterior[taken].argmax(axis=-1) == labels[taken]).mean())
    return scores
