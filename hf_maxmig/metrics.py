"""Measure posteriors and confusion matrices against gold labels, and the gain without them.

The gain itself is in `functional.py`; this module computes its interval and its ceiling.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t
from sklearn.metrics import brier_score_loss, roc_auc_score
from torch import Tensor

from .model.divergences import get_divergence
from .model.functional import NO_MASS, alike, mutual_information_gain, widen
from .model.modeling_maxmig import CrowdModel

NO_LABEL = -100  # what transformers writes for a missing gold label
LEAST_ITEMS = 3  # for an interval: each is left out once, and the gain compares two
COVERAGE = 0.95  # of the interval
VOTE_BINS = 10  # of the calibration error of what is claimed of votes
SPREAD_ITEMS = 2048  # how many items tell the spread: to 2 %, from one block of ratios of 16 MiB


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


def measured(
    posteriors: tuple[NDArray[np.floating], ...],
    labels: NDArray[np.integer],
    annotated: NDArray[np.bool_],
    model: CrowdModel,
) -> tuple[dict[str, float], dict[str, int]]:
    """Measure a model's posteriors, as an evaluation reports it.

    Args:
        posteriors: three (N, C) log-probabilities: of the classifier, the aggregator, the forecaster.
        labels: (N,), gold labels; `NO_LABEL` where there is none.
        annotated: (N,), which items have annotations.
        model: the model of the posteriors.

    Returns:
        The metrics, and the number of items that each was measured on.

    Raises:
        ValueError: as `check_predicted`.
    """
    log_h, log_g, log_forecast = posteriors
    gold = labels != NO_LABEL
    known = int((annotated & gold).sum())
    items = {
        "accuracy": int(gold.sum()), "aggregator_accuracy": known, "forecast_accuracy": known,
        "gain": int(annotated.sum()),
    }  # fmt: skip
    metrics: dict[str, float] = {}
    if annotated.sum() >= 2:
        divergence = model.config.divergence
        h, g = (torch.from_numpy(t[annotated]).to(model.device) for t in (log_h, log_g))
        with torch.no_grad():
            gain, log_p = float(model.gain(h, g)), model.log_prior()
        check_predicted(log_h, log_g, annotated)
        metrics = {"gain": gain, "gain_ceiling": gain_ceiling(log_p, divergence)}
        if len(h) >= LEAST_ITEMS:
            low, high = gain_interval(h, g, log_p, divergence, gain)
            metrics |= {"gain_low": low, "gain_high": high}
        if model.loss_is_minus_gain:
            metrics["loss"] = -gain
    return metrics | accuracies(log_h, log_g, log_forecast, labels, annotated), items


def check_predicted(
    log_h: NDArray[np.floating], log_g: NDArray[np.floating], annotated: NDArray[np.bool_]
) -> None:
    """Check that a gain can be computed from predictions.

    Args:
        log_h: (N, C), log-probabilities of the classifier.
        log_g: (N, C), of the aggregator.
        annotated: (N,), which items have annotations: only these are looked at.

    Raises:
        ValueError: if a row has a NaN or no probability at all, with the first such item.

    Example:
        >>> check_predicted(np.log([[0.5, 0.5]]), np.log([[0.5, 0.5]]), np.array([True]))
    """
    for who, posterior in (("classifier", log_h), ("aggregator", log_g)):
        wrong = annotated & ~np.isfinite(posterior.max(axis=1))
        if wrong.any():
            item = int(wrong.argmax())
            raise ValueError(
                f"what the {who} predicts must be finite, got {posterior[item]} for item {item}: its weights or its inputs "
                "are too large for their type."
            )


def plurality_accuracy(shares: Tensor, labels: Tensor) -> float:
    """Compare the votes alone with gold labels: the class with the most of them.

    Args:
        shares: (N, C), vote shares of items with votes.
        labels: (N,) int64, gold labels.

    Returns:
        The share of items whose most frequent class is the gold label; where several are the most
        frequent, an item counts by its share, as if one of them were drawn.

    Example:
        >>> shares = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
        >>> plurality_accuracy(shares, torch.tensor([0, 1]))
        0.75
    """
    top = (shares == shares.amax(dim=1, keepdim=True)).float()
    return float((top / top.sum(dim=1, keepdim=True))[torch.arange(len(top)), labels].mean())


def gain_ceiling(log_p: Tensor, divergence: str = "kl") -> float:
    """Compute the gain of perfect posteriors: an h and a g that are certain of the class and right.

    Then K = 1 / p_c where both items are of class c and 0 between classes, so the f-mutual
    information (paper, Theorem 3.4) is sum_c p_c^2 f(1 / p_c) + (1 - sum_c p_c^2) f(0): the entropy
    of p for KL, C - 1 for Pearson. It is the largest expected gain if the classes are distributed as
    p; the gain on few items may exceed it by chance.

    Args:
        log_p: (C,), log of the class prior.
        divergence: a row of Table 1.

    Returns:
        The ceiling, in nats.

    Example:
        >>> round(gain_ceiling(torch.tensor([0.5, 0.5]).log()), 4)  # log 2
        0.6931
    """
    f = get_divergence(divergence).f
    p = log_p.detach().cpu().double()
    p = p[p > NO_MASS].exp()  # no item is expected of a class without mass
    apart = 1 - p.square().sum()  # how often two items are of different classes
    return float((p.square() * f(1 / p)).sum() + apart * f(p.new_zeros(())))


@torch.no_grad()
def gain_interval(
    log_h: Tensor,
    log_g: Tensor,
    log_p: Tensor,
    divergence: str = "kl",
    gain: float | None = None,
) -> tuple[float, float]:
    """Compute the 95 % interval of the gain of h and g on further items like these.

    It uses the jackknife: the standard error is sqrt(var(v) / N) with v of `gain_parts`, and the
    interval is Student's. A bootstrap would have to weight all pairs anew for each sample, would count
    an item drawn twice as a pair that agrees with itself, and needs a seed. With more than
    `SPREAD_ITEMS` items, a random part of them, the same at each call, determines the spread; the gain
    is that of all items.

    The interval belongs to this h and this g, not to another training. On items that they were trained
    on, the gain at its centre is too high.

    Args:
        log_h: (N, C), log-probabilities of the classifier for items with annotations, in nats.
        log_g: (N, C), log-probabilities of the aggregator for the same items.
        log_p: (C,), log of the class prior.
        divergence: a row of Table 1.
        gain: on these items, if already computed.

    Returns:
        Lower and upper end, in nats.

    Raises:
        ValueError: if the shapes do not fit, or there are fewer than `LEAST_ITEMS` items.

    Example:
        >>> says, half = torch.eye(2).mul(3).log_softmax(-1), torch.tensor([0.5, 0.5]).log()
        >>> log_h, log_g = says[[0, 1] * 20], says[[0, 1, 0, 1, 0, 0, 0, 1] * 5]  # 7 of 8 agree
        >>> low, high = gain_interval(log_h, log_g, half)
        >>> f"{low:.2f} to {high:.2f}"
        '0.09 to 0.56'
    """
    N = len(log_h)
    if N < LEAST_ITEMS:
        raise ValueError(
            f"an interval of the gain needs at least {LEAST_ITEMS} items with annotations, got {N}: "
            "it is computed by leaving out each of them."
        )
    if gain is None:
        gain = float(mutual_information_gain(log_h, log_g, log_p, divergence))
    parts = gain_parts(log_h, log_g, log_p, divergence)
    margin = float(t.ppf((1 + COVERAGE) / 2, len(parts) - 1) * parts.std() / N**0.5)
    return gain - margin, gain + margin


def gain_parts(log_h: Tensor, log_g: Tensor, log_p: Tensor, divergence: str = "kl") -> Tensor:
    """Divide the gain among the items: leaving out item i changes it in proportion to v_i.

    v_i = df(K_ii) - (sum_{j != i} f*(df(K_ij)) + f*(df(K_ji))) / (N - 2), whatever the divergence.

    Args:
        log_h: (N, C), log-probabilities of the classifier for items with annotations, in nats.
        log_g: (N, C), log-probabilities of the aggregator for the same items.
        log_p: (C,), log of the class prior.
        divergence: a row of Table 1.

    Returns:
        (min(N, `SPREAD_ITEMS`),), v of all items or of a random part, the same at each call.
    """
    if len(log_h) > SPREAD_ITEMS:
        drawn = torch.randperm(len(log_h), generator=torch.Generator().manual_seed(0))
        drawn = drawn[:SPREAD_ITEMS]
        log_h, log_g = log_h[drawn.to(log_h.device)], log_g[drawn.to(log_g.device)]
    row = get_divergence(divergence)
    log_h, log_g, log_p = alike(widen(log_h), widen(log_g), widen(log_p))
    log_k = (log_h + log_g - log_p).logsumexp(dim=-1)
    penalty = row.penalty(((log_h - log_p).exp() @ log_g.exp().T).log())
    others = penalty.sum(dim=0) + penalty.sum(dim=1) - 2 * penalty.diagonal()
    return row.reward(log_k) - others / (len(log_k) - 2)


@dataclass(frozen=True)
class Calibration:
    """How often a posterior is right where it claims a probability, bin by bin.

    Only bins that hold an item are listed, B of them.

    Args:
        error: the expected calibration error: the mean distance between claimed probability and
            share right, over all items.
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


def certainty(
    log_p: NDArray[np.floating], labels: NDArray[np.integer], bins: int = 15
) -> dict[str, float]:
    """Measure whether a posterior is as certain as it may be.

    `nll` is the mean of -log p_ic at the gold label c, in nats. `brier` is the mean of
    sum_c (p_ic - [c is the gold label])^2, 0 to 2. Both are lowest in expectation for the true posterior.
    `ece` is the calibration error of the likeliest class, 0 to 1.

    Args:
        log_p: (N, C), log-probabilities.
        labels: (N,), gold labels; items with `NO_LABEL` are left out.
        bins: of the calibration error.

    Returns:
        The three; nothing if no item has a gold label.

    Example:
        >>> told = certainty(np.log([[0.8, 0.2], [0.4, 0.6]]), np.array([0, NO_LABEL]))
        >>> {name: round(value, 3) for name, value in told.items()}
        {'nll': 0.223, 'brier': 0.08, 'ece': 0.2}
    """
    gold = labels != NO_LABEL
    if not gold.any():
        return {}
    log_p, labels = log_p[gold].astype(np.float64), labels[gold]
    p, truth = np.exp(log_p), np.eye(log_p.shape[1])[labels]
    # scikit-learn's log loss clips probabilities, which these logs need not.
    return {
        "nll": float(-log_p[np.arange(len(labels)), labels].mean()),
        "brier": float(np.square(p - truth).sum(axis=1).mean()),
        "ece": calibration(p.max(axis=1).clip(0, 1), p.argmax(axis=1) == labels, bins).error,
    }


def chance_of_right(
    posterior: NDArray[np.floating],
    confusion: NDArray[np.floating],
    annotators: NDArray[np.integer],
) -> NDArray[np.floating]:
    """Compute the probability that an annotator is right about an item, whatever they say.

    P(m is right about i) = sum_c p_ic A^m_cc, where A^m_cc is how often m recognises class c. The vote
    itself has no part in it, so that it can be asked before somebody votes.

    Args:
        posterior: (N, C), probabilities of the class of each item.
        confusion: (M, C, C), A: annotator, true class, reported class; rows sum to one.
        annotators: (N, K), whom to ask about each item; the result is meaningless at -1.

    Returns:
        (N, K), probabilities.

    Example:
        >>> good, bad = [[0.9, 0.1], [0.3, 0.7]], [[0.5, 0.5], [0.5, 0.5]]
        >>> chance_of_right(np.array([[0.5, 0.5]]), np.array([good, bad]), np.array([[0, 1]]))
        array([[0.8, 0.5]])
    """
    recognised = np.diagonal(confusion, axis1=1, axis2=2)  # (M, C)
    # Rounded probabilities may sum to a little more than one.
    return (recognised[annotators] * posterior[:, None, :]).sum(axis=-1).clip(max=1)


def claims_of_right(
    claimed: NDArray[np.floating], right: NDArray[np.bool_], bins: int = VOTE_BINS
) -> dict[str, float]:
    """Compare the probability that a vote is right with whether it is.

    Args:
        claimed: (V,), the probability that each vote is right, see `chance_of_right`.
        right: (V,) bool, whether it is.
        bins: of the calibration error.

    Returns:
        `accuracy`: share of votes that are right where more than one half is claimed, and wrong elsewhere;
        `auroc`: how often a right vote has a higher claim than a wrong one, one half for ties, absent if
        all votes are right or all are wrong; `brier`: mean of (claimed - right)^2, 0 to 1; `ece`: the
        calibration error of the likelier of the two, 0 to 1.

    Raises:
        ValueError: as `calibration`.

    Example:
        >>> told = claims_of_right(np.array([0.9, 0.6, 0.8]), np.array([True, False, True]))
        >>> {name: round(value, 3) for name, value in told.items()}
        {'accuracy': 0.667, 'auroc': 1.0, 'brier': 0.137, 'ece': 0.3}
    """
    claimed, right = np.asarray(claimed, dtype=np.float64), np.asarray(right)
    said = claimed > 0.5
    ece = calibration(np.maximum(claimed, 1 - claimed), said == right, bins).error
    scores = {"accuracy": float((said == right).mean())}
    if right.any() and not right.all():
        scores["auroc"] = float(roc_auc_score(right, claimed))
    scores["brier"] = float(brier_score_loss(right, claimed, labels=[False, True]))
    return scores | {"ece": ece}
