"""Gold labels that a user hands over: they count as the votes of one more, trusted annotator.

They are used only with `MaxMIGTrainingArguments(use_gold_labels=True)`. The trusted annotator has one fixed
confusion, 1 - eps on the diagonal and eps / (C - 1) elsewhere. It is not trained, judged or saved, and not
one of the M annotators. Its vote on an item is a column of log-probabilities, added to those of the other
votes. `tempering.py` calibrates forecasts by gold labels.
"""

from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from ..data.collator import CrowdCollator, gold_labels
from ..model.modeling_maxmig import CrowdModel

TRUSTED_ERRS = 0.01  # eps: gold labels come from people, too


def handed_over(dataset: Any, model: CrowdModel) -> Tensor:
    """Read the gold labels that a training is to use, checked.

    Args:
        dataset: the training set.
        model: what is trained.

    Returns:
        (N,) int64, -1 where there is none.

    Raises:
        ValueError: if the method uses no gold labels, if the training set is not a `datasets.Dataset` or
            has no gold labels, or if one of them is not a class.
    """
    config = model.config
    if not (model.loss_is_minus_gain or model.learns_from_gold_labels):
        raise ValueError(
            f"`use_gold_labels` must be False for {model.method}, got True: of the rivals only `true_labels` learns from "
            "gold labels. Train a `MaxMIGModel`."
        )
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"`use_gold_labels` needs a datasets.Dataset to train on, got {type(dataset).__name__}: which items have a "
            "gold label must be known before the training. Leave the option off, or make a Dataset of it."
        )
    gold = gold_labels(dataset, CrowdCollator(config.num_annotators, config.num_labels))
    if not (gold >= 0).any():
        raise ValueError(
            f"`use_gold_labels` needs gold labels in the column `labels` or `label` of the training set, got none on "
            f"{len(gold)} items: add the column (`add_annotations` makes one of a column `gold` of the votes), or leave "
            "the option off."
        )
    return gold


def number_of(gold: Tensor | None) -> int:
    """Count gold labels.

    Args:
        gold: (N,) int64, negative where there is none; None if none are used.

    Example:
        >>> number_of(torch.tensor([2, -1, 0])), number_of(None)
        (2, 0)
    """
    return 0 if gold is None else int((gold >= 0).sum())


def trusted_columns(gold: Tensor, num_classes: int) -> Tensor:
    """Return the column that the trusted annotator adds to each item's scores.

    Args:
        gold: (N,) int64, gold labels; negative where there is none.
        num_classes: C.

    Returns:
        (N, C): log P(the trusted annotator says the gold label | class c); zeros without a gold label.

    Example:
        >>> trusted_columns(torch.tensor([1, -1]), num_classes=3).exp()
        tensor([[0.0050, 0.9900, 0.0050],
                [1.0000, 1.0000, 1.0000]])
    """
    is_gold = torch.arange(num_classes, device=gold.device) == gold[:, None]
    column = torch.where(is_gold, 1 - TRUSTED_ERRS, TRUSTED_ERRS / (num_classes - 1)).log()
    return torch.where(gold[:, None] >= 0, column, 0.0)


def taught(share: Tensor, trusted: Tensor | None) -> Tensor:
    """Replace the vote share of items with gold labels by the trusted annotator's probabilities.

    Args:
        share: (N, C), probabilities; zeros for an item without votes.
        trusted: (N, C) of `trusted_columns`; None without gold labels.

    Returns:
        (N, C), probabilities.

    Example:
        >>> taught(torch.tensor([[0.5, 0.5], [0.2, 0.8]]), trusted_columns(torch.tensor([0, -1]), 2))
        tensor([[0.9900, 0.0100],
                [0.2000, 0.8000]])
    """
    if trusted is None:
        return share
    return torch.where((trusted != 0).any(dim=1, keepdim=True), trusted.exp(), share)


def with_trusted(log_posterior: Tensor, trusted: Tensor | None) -> Tensor:
    """Add the trusted annotator's columns to (N, C) log-probabilities, and normalise.

    Example:
        >>> with_trusted(torch.tensor([[0.2, 0.8]]).log(), trusted_columns(torch.tensor([0]), 2)).exp()
        tensor([[0.9612, 0.0388]])
    """
    return log_posterior if trusted is None else (log_posterior + trusted).log_softmax(dim=-1)
