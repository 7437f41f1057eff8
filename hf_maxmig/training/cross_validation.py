"""Cross-validation before a training, for methods that ask what a classifier says of items it has not seen.

It trains the classifier itself, for as long as the training will. `cross_fit` trains small networks on
features instead, together with W, and is Max-MIG's own.
"""

import math

import torch
from datasets import Dataset
from torch import Tensor
from tqdm.auto import tqdm

from ..data.collator import padded
from ..data.numbered import part_of
from ..model.functional import vote_share
from ..model.votes import plurality
from .fold_networks import divide
from .informed_start import briefly_trained
from .training import Training


def unseen_posteriors(training: Training, quiet: bool = True) -> Tensor | None:
    """Judge each training item by a classifier that has not learned from it.

    The items with votes are divided into `model.folds` parts at random. For each part a copy of the
    classifier learns the plurality of the votes on the other parts, with the arguments of the training.

    Args:
        training: before its first step; its model stays as it is.
        quiet: whether to hide the progress bar.

    Returns:
        (N, C) float32, log-probabilities; uniform for an item without votes. None if the method asks for
        no folds.

    Raises:
        TypeError: if the training set is no `datasets.Dataset`, such as a stream.
        ValueError: if fewer items than folds have votes.
    """
    model, dataset = training.model, training.train_dataset
    if not model.folds:
        return None
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"`train_dataset` must be a datasets.Dataset for {model.method}, got {type(dataset).__name__}: its items are "
            "divided into folds before the first step."
        )
    crowd, num_classes, seed = (
        padded(training.crowd_of(dataset)),
        model.config.num_labels,
        training.args.seed,
    )
    targets = plurality(vote_share(crowd.known, num_classes, crowd.weights))
    labelled = crowd.annotated
    if int(labelled.sum()) < model.folds:
        raise ValueError(
            f"the training set must have votes on {model.folds} items or more for {model.method}, one for each of its "
            f"`folds`, got {int(labelled.sum())}."
        )
    fold = divide(labelled, seed, folds=model.folds, most=len(labelled))
    log_h = torch.full((len(fold), num_classes), -math.log(num_classes))
    for left_out in tqdm(range(model.folds), desc="Cross-validation", unit="fold", disable=quiet):
        learned = ((fold >= 0) & (fold != left_out)).nonzero()[:, 0].tolist()
        predicted = (fold == left_out).nonzero()[:, 0].tolist()
        _, ask = briefly_trained(training, learned, targets, seed, length=1.0)
        log_h[predicted] = torch.from_numpy(ask(part_of(dataset, predicted)).predictions[0]).float()
    return log_h
