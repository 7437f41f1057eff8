"""Measure the three posteriors against gold labels, where there are any."""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Calibration:
    """How often a posterior is right where it claims a probability, bin by bin.

    Only bins that hold an item are listed, B of them.

    Args:
        error: the expected calibration error: how far claim and share right are apart, over all
            items.
        confidence: (B,), mean probability claimed in a bin.
        accuracy: (B,), share right.
        count: (B,) int64, items.
    """

    error: float
    confidence: NDArray[np.floating]
    accuracy: NDArray[np.floating]
    count: NDArray[np.integer]


def calibration(
    confidence: NDArray[np.floating], correct: NDArray[np.bool_], bins: int = 15
) -> Calibration:
    """Compare what a posterior claims with how often it is right.

    The expected calibration error is sum_b (n_b / N) |accuracy_b - confidence_b|, over bins of
    equal width (Guo et al., "On Calibration of Modern Neural Networks", 2017, Equation 3), where
    n_b of the N items claim a probability in bin b; the upper end belongs to a bin.

    Args:
        confidence: (N,), the probability given to the answer, in [0, 1].
        correct: (N,) bool, whether the answer is right.
        bins: how many.

    Returns:
        The error and the curve.

    Raises:
        ValueError: if there are no items or no bins, the shapes differ, or a confidence is no
            probability.

    Example:
        >>> measured = calibration(np.array([0.9, 0.9, 0.6]), np.array([True, False, True]), bins=2)
        >>> measured.accuracy, measured.count, round(measured.error, 3)
        (array([0.66666667]), array([3]), 0.133)
    """
    confidence, correct = np.asarray(confidence, dtype=np.float64), np.asarray(correct)
    if bins < 1:
        raise ValueError(f"`bins` must be at least 1, got {bins}.")
    if confidence.ndim != 1 or confidence.shape != correct.shape or not len(confidence):
        raise ValueError(
            "`confidence` and `correct` must have the same shape (N,) with N of at least 1, got "
            f"{confidence.shape} and {correct.shape}."
        )
    outside = ~((confidence >= 0) & (confidence <= 1))
    if outside.any():
        i = int(outside.argmax())
        raise ValueError(f"`confidence` must lie in [0, 1], got {confidence[i]} at item {i}.")
    place = np.maximum(np.ceil(confidence * bins).astype(np.int64) - 1, 0)
    count = np.bincount(place, minlength=bins)
    claimed, right = np.bincount(place, confidence, bins), np.bincount(place, correct, bins)
    held = count > 0
    return Calibration(
        error=float(np.abs(right - claimed).sum() / len(confidence)),
        confidence=claimed[held] / count[held],
        accuracy=right[held] / count[held],
        count=count[held],
    )
