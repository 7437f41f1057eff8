"""Figures on predictions, measured against gold labels.

Not a recipe itself, see `untouched.py` and `gold_labels.py`.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
from crowds import Crowd

from hf_maxmig.metrics import certainty


def of_posterior(log_p: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Measure (N, C) log-probabilities against (N,) gold labels: accuracy, nats, 15 bins."""
    certain = certainty(log_p, gold)
    right = log_p.argmax(axis=1) == gold
    return {"accuracy": float(right.mean()), "nll": certain["nll"], "ece": certain["ece"]}


def of_posteriors(posteriors: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Measure several, as `NAME_accuracy`, `NAME_nll`, `NAME_ece`.

    Args:
        posteriors: by name, (N, C) log-probabilities and (N,) gold labels.
    """
    return {
        f"{name}_{key}": value
        for name, (log_p, gold) in posteriors.items()
        for key, value in of_posterior(log_p, gold).items()
    }


def of_suspects(share: np.ndarray, log_forecast: np.ndarray, gold: np.ndarray) -> dict[str, Any]:
    """Measure the items that `relabel` calls suspect, whose forecast is none of the classes with the most votes.

    Args:
        share: (N, C), of an item's votes.
        log_forecast: (N, C).
        gold: (N,).

    Returns:
        How many; of these the share whose label is wrong indeed (the gold label is none of those
        classes either), and the share whose forecast is right; None where there are none.
    """
    said = log_forecast.argmax(axis=1)
    top = (share == share.max(axis=1, keepdims=True)) & (share > 0)
    rows = np.arange(len(gold))
    suspect = ~top[rows, said] & top.any(axis=1)
    wrong = ~top[rows, gold]
    some = bool(suspect.any())
    return {
        "suspects": int(suspect.sum()),
        "suspects_wrong": float(wrong[suspect].mean()) if some else None,
        "suspects_put_right": float((said == gold)[suspect].mean()) if some else None,
        "labels_wrong": float(wrong[top.any(axis=1)].mean()),
    }


def dawid_skene(crowd: Crowd) -> float | None:
    """Return the accuracy of crowd-kit's Dawid-Skene on items with votes; None without crowd-kit."""
    if find_spec("crowdkit") is None:
        return None
    import pandas as pd
    from crowdkit.aggregation import DawidSkene

    table = pd.DataFrame({"task": crowd.item, "worker": crowd.annotator, "label": crowd.annotation})
    said = DawidSkene(n_iter=100).fit_predict(table)
    return float((said.to_numpy() == crowd.gold[said.index.to_numpy()]).mean())
