"""A start from information: annotators are weighed by their agreement with a briefly trained classifier.

Equation 2 of the paper starts the aggregator from the vote share. In it a majority that always gives
the same answer counts most, and two classes that few annotators can tell apart come out merged. Here
an annotator's votes count as much as they agree, beyond chance, with the predictions of a classifier
that has not seen the items. An annotator who gives the same answer for every item counts nothing.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.trainer_utils import PredictionOutput

from ..data.collator import POSTERIOR_COLUMN
from ..data.numbered import part_of
from ..data.posteriors import WithPosterior
from ..model.aggregators import Weigh, check_any_label
from ..model.annotator_rows import shrunk_weight
from ..model.cross_entropy import TargetModel
from ..model.functional import ConfusionSums, confusion_sums, initial_weight, vote_share
from ..model.modeling_maxmig import MaxMIGModel
from ..model.votes import Votes, voted_classes
from .gold import taught, trusted_columns, with_trusted
from .training import Training

Crowd = Sequence[Votes]

BRIEF = 0.05  # share of the training for which a classifier is briefly trained
LOOKED_AT = 100_000  # most items by which annotators are weighed
FOLDS = 2  # each item is predicted by a classifier that was trained on the other half
ROUNDS = 2  # the second classifier learns without the annotators that the first gave no weight
FAINT = 0.02  # share of the largest weight; weights below it are noise


class BriefModel(TargetModel):
    """A classifier that learns from given shares (N, C), set as `shares` before it is trained."""

    method = "Soft vote"  # its name in errors and logs
    reference = "the share of each class among an item's votes"
    shares: Tensor

    def prepare(self, dataset: Any, crowd: Any, unseen: Tensor | None = None) -> WithPosterior:
        """Return the training set with each item's share."""
        return WithPosterior(dataset, self.shares.numpy())

    def targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the (B, C) shares, zeros for an item without votes."""
        if POSTERIOR_COLUMN not in batch:
            raise ValueError(
                f"`data_collator` must pass on `{POSTERIOR_COLUMN}`, got {', '.join(batch)}: the classifier's start is "
                "learned from it. Use a `CrowdCollator`, or set `init='vote_share'`."
            )
        return batch[POSTERIOR_COLUMN]


def agreement(sums: ConfusionSums) -> Tensor:
    """Measure how far each annotator agrees with a posterior beyond chance.

    mean_i q_{i, y_i^m} - sum_r P_m(r) mean_i q_ir, over the items that annotator m voted on, where q is
    the posterior and P_m(r) the share of class r among m's votes. This is the covariance between the
    annotator's votes and the posterior; it is zero for an annotator who always votes for the same class.

    Args:
        sums: of the posterior.

    Returns:
        (M,), zero for an annotator without votes.

    Example:
        >>> posterior = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
        >>> who, said = torch.tensor([[0, 1], [0, 1]]), torch.tensor([[0, 0], [1, 0]])
        >>> agreement(confusion_sums([(posterior, who, said)], num_annotators=2, num_classes=2))
        tensor([0.3500, 0.0000])
    """
    labels = sums.said.sum(dim=1).clamp(min=torch.finfo(sums.said.dtype).tiny)
    agreed, held = sums.right.sum(dim=1), sums.right + sums.wrong
    return agreed / labels - (sums.said / labels[:, None] * (held / labels[:, None])).sum(dim=1)


def weighted_vote_share(crowd: Votes, weights: Tensor, num_classes: int) -> Tensor:
    """Compute the vote share in which an annotator's vote counts as much as their weight.

    Args:
        crowd: the votes on N items; the weight of a vote multiplies that of its annotator.
        weights: (M,), not negative, of the annotators.
        num_classes: C.

    Returns:
        (N, C), rows summing to one; the plain share if no vote on an item has weight, zeros if it has
        no votes.

    Example:
        >>> who, said = torch.tensor([[0, 1], [1, -1]]), torch.tensor([[0, 1], [1, -1]])
        >>> weighted_vote_share(Votes(who, said), torch.tensor([0.6, 0.0]), num_classes=2)
        tensor([[1., 0.],
                [0., 1.]])
    """
    given = crowd.given
    label = torch.where(given, crowd.annotations, 0)
    each = torch.where(given, weights[crowd.annotators.clamp(min=0)], 0.0)
    plain = given.to(each.dtype)
    if crowd.weights is not None:
        each, plain = each * crowd.weights, plain * crowd.weights
    count = torch.where(each.sum(dim=1, keepdim=True) > 0, each, plain)
    share = count.new_zeros(len(count), num_classes).scatter_add_(1, label, count)
    return share / share.sum(dim=1, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)


def informed_share(
    crowd: Crowd, num_annotators: int, num_classes: int, predict: Callable[[Tensor], Tensor]
) -> Tensor:
    """Compute the vote share with annotators weighed by their agreement with classifiers of the items.

    Args:
        crowd: the training crowd, part by part.
        num_annotators: M.
        num_classes: C.
        predict: turns (N, C) shares into (N, C) log-probabilities of classifiers that have learned
            from the shares of other items; minus infinity for an item without a prediction.

    Returns:
        (N, C), rows summing to one, zeros for an item without votes.
    """
    share = _shares(crowd, torch.ones(num_annotators), num_classes)
    for _ in range(ROUNDS):
        sums = confusion_sums(_parts(crowd, predict(share).exp()), num_annotators, num_classes)
        weights, labels = agreement(sums).clamp(min=0), sums.said.sum(dim=1)
        # Annotators without a vote on a predicted item are unknown: they get the average weight.
        usual = (weights * labels).sum() / labels.sum().clamp(min=torch.finfo(labels.dtype).tiny)
        weights = torch.where(labels > 0, weights, usual)
        weights = torch.where(weights > FAINT * weights.max(), weights, 0.0)
        share = _shares(crowd, weights, num_classes)
    return share


@torch.no_grad()
def start_from_share(
    model: MaxMIGModel,
    crowd: Crowd,
    share: Tensor,
    smoothing: float,
    scale: float,
    weigh: Weigh = shrunk_weight,
    gold: Tensor | None = None,
) -> None:
    """Start aggregator and prior from a share, see `shrunk_weight`.

    Args:
        model: it is changed.
        crowd: the training crowd, part by part.
        share: (N, C), as from `informed_share`.
        smoothing: pseudo-votes in each cell.
        scale: of W.
        weigh: turns confusion counts into log-probabilities.
        gold: (N,) int64, gold labels that the user hands over: they name classes, as votes do.
    """
    mass = model.aggregator.start_from(_parts(crowd, share), smoothing, scale, weigh)
    voted = voted_classes(crowd, len(mass))
    if gold is not None:
        voted[gold[gold >= 0]] = True
    model.prior.initialize(mass, voted)


def start_from_votes_and_gold(training: Training) -> None:
    """Start aggregator and prior by equation 2, with the trusted annotator's votes among the others.

    Args:
        training: with `gold_labels`.
    """
    args, model, gold = training.args, training.model, training.gold_labels
    assert gold is not None
    crowd, C = list(training.crowd_of(training.train_dataset)), model.config.num_labels
    share = torch.cat([vote_share(said, C, *weights) for _, said, *weights in crowd])
    share = taught(share, trusted_columns(gold, C))
    start_from_share(model, crowd, share, args.smoothing, args.init_strength, initial_weight, gold)


def start_from_information(training: Training, seed: int) -> None:
    """Start aggregator and prior from the informed share, and warm the classifier up on it.

    Args:
        training: its model is changed; its training set is a `datasets.Dataset`.
        seed: of the halves, the batches and dropout.

    Raises:
        ValueError: if no item has a vote.
    """
    args, model, dataset = training.args, training.model, training.train_dataset
    crowd = list(training.crowd_of(dataset))
    check_any_label(any(bool(part.annotated.any()) for part in crowd))
    gold = training.gold_labels
    trusted = None if gold is None else trusted_columns(gold, model.config.num_labels)

    def predict(share: Tensor) -> Tensor:
        log_h = torch.full_like(share, -torch.inf)
        for learned, predicted in folds(len(share), seed):
            _, ask = briefly_trained(training, learned, taught(share, trusted), seed)
            output = ask(part_of(dataset, predicted))
            log_h[predicted] = torch.from_numpy(output.predictions[0]).to(log_h.dtype)
        looked_at = log_h.isfinite().any(dim=1, keepdim=True)
        return torch.where(looked_at, with_trusted(log_h, trusted), log_h)

    share = informed_share(crowd, model.config.num_annotators, model.config.num_labels, predict)
    share = taught(share, trusted)
    start_from_share(model, crowd, share, args.smoothing, args.init_strength, gold=gold)
    warm_up(training, share, seed)


def briefly_trained(
    training: Training, rows: list[int], share: Tensor, seed: int, length: float = BRIEF
) -> tuple[nn.Module, Callable[[Any], PredictionOutput]]:
    """Train a copy of the classifier on the shares of some items.

    Args:
        training: its model stays as it is.
        rows: the items.
        share: (N, C), of all items.
        seed: of the batches and of dropout.
        length: the share of the training's epochs or steps.

    Returns:
        The copy, and a function that predicts a data set by it.
    """
    model, config = training.model, training.model.config
    brief = BriefModel.from_classifier(
        copy.deepcopy(model.classifier_alone()),  # with the present class names of the model
        config.num_annotators,
        annotators=config.annotators,
        id2label=config.id2label,
    )
    brief.shares = share[rows]
    ask = training.train_briefly(brief, rows, length, seed=seed)
    return brief.classifier, ask


def warm_up(training: Training, share: Tensor, seed: int) -> None:
    """Train the model's own classifier briefly on all items: see `briefly_trained`."""
    classifier, _ = briefly_trained(training, list(range(len(share))), share, seed)
    training.model.classifier.load_state_dict(classifier.state_dict())


def folds(num_items: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Divide the items: those that each classifier learns from, and those, limited in number, that it predicts."""
    rows = torch.randperm(num_items, generator=torch.Generator().manual_seed(seed))
    return [
        (torch.cat([rows[k::FOLDS] for k in range(FOLDS) if k != fold]).tolist(), rows[fold::FOLDS][: LOOKED_AT // FOLDS].tolist())
        for fold in range(FOLDS)
    ]  # fmt: skip


def _shares(crowd: Crowd, weights: Tensor, num_classes: int) -> Tensor:
    parts = [weighted_vote_share(Votes(*part), weights, num_classes) for part in crowd]
    return torch.cat(parts)


def _parts(crowd: Crowd, posterior: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the posteriors of the items of each part of the crowd, with their votes."""
    for part, votes in zip(posterior.split([len(p[0]) for p in crowd]), crowd, strict=True):
        yield part, *votes
