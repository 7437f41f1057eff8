"""Exchange parts of a crowd model: annotators in another order, another kind of aggregator or prior.

The new part keeps what was learned as far as it can represent it.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .aggregators import (
    AGGREGATORS,
    ClassPrior,
    FactoredAggregator,
    Float32Module,
    WeightedAverageAggregator,
    check_aggregator,
)
from .functional import NO_MASS
from .votes import Votes


@torch.no_grad()
def exchange_annotators(model: Any, order: Tensor) -> None:
    """Reorder the annotators in all that was learned about them: m becomes the former `order[m]`.

    Args:
        model: a crowd model that keeps the annotators' parameters and buffers in `Float32Module`s.
        order: (M,) int64, a permutation.

    Raises:
        NotImplementedError: if some may be elsewhere.
    """
    for module in _of_annotators(model, "reorder_annotators"):
        module.reorder_annotators(order)


def more_annotators(model: Any, names: list[str]) -> None:
    """Append annotators about whom nothing is known: all their numbers are zero.

    Args:
        model: a crowd model that keeps the annotators' parameters and buffers in `Float32Module`s.
        names: of the new annotators; they are not kept if the others have none.

    Raises:
        NotImplementedError: if some may be elsewhere.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGModel
        >>> head = HeadClassifier(HeadConfig(input_size=2, num_labels=3))
        >>> model = MaxMIGModel.from_classifier(head, annotators=["ann", "bob"])
        >>> more_annotators(model, ["eve"])
        >>> model.config.num_annotators, model.aggregator.table.shape
        (3, torch.Size([3, 3, 3]))
    """
    for module in _of_annotators(model, "add_annotators"):
        module.add_annotators(len(names))
    config = model.config
    if config.annotators is not None:
        config.annotators = [*config.annotators, *names]
    config.num_annotators += len(names)


@torch.no_grad()
def another_aggregator(
    aggregator: WeightedAverageAggregator, now: str, wanted: str
) -> WeightedAverageAggregator:
    """Build an aggregator of another kind. W is kept; the scores of pairs of votes are not.

    Args:
        aggregator: the present one.
        now: its kind, as in `MaxMIGConfig`.
        wanted: the other kind; the same kind returns `aggregator` itself.

    Returns:
        The aggregator, on the same device.

    Raises:
        ValueError: if the kind is unknown, or one of the two is `factored`.

    Example:
        >>> aggregator = WeightedAverageAggregator(num_annotators=2, num_classes=3)
        >>> type(another_aggregator(aggregator, "weighted_average", "interaction")).__name__
        'InteractionAggregator'
    """
    check_aggregator(wanted)
    if wanted == now:
        return aggregator
    table, kind = aggregator.table, AGGREGATORS[wanted]
    if FactoredAggregator in (type(aggregator), kind):
        raise ValueError(
            f"`aggregator` must be {now!r}, that of the model, got {wanted!r}: "
            "matrices of single annotators and shared factors cannot be converted into each other. Build "
            "the model with the aggregator that it should have."
        )
    num_annotators, num_classes, _ = table.shape
    other = kind(num_annotators, num_classes).to(table.device)
    other.table.copy_(table)
    return other


@torch.no_grad()
def another_prior(
    prior: ClassPrior,
    wanted: str | list[float],
    aggregator: WeightedAverageAggregator,
    crowd: Iterable[Votes],
) -> ClassPrior:
    """Build a prior of another kind; one that follows the crowd starts from the mean of g.

    Args:
        prior: the present one; classes without mass stay without.
        wanted: as in `MaxMIGConfig`.
        aggregator: g.
        crowd: the training crowd, part by part.

    Returns:
        The prior, on the same device.

    Raises:
        ValueError: if `wanted` is not a prior.

    Example:
        >>> aggregator = WeightedAverageAggregator(num_annotators=2, num_classes=2)
        >>> another_prior(ClassPrior(2), [3.0, 1.0], aggregator, [])().exp()
        tensor([0.7500, 0.2500])
    """
    C, device = len(prior.logits), prior.logits.device
    other = ClassPrior(C, wanted).to(device)
    other.initialize(torch.ones(C, device=device), ~prior.left_out)
    shares = torch.zeros(C, device=device)
    for part in crowd:
        votes = Votes(*part).to(device)
        shares += aggregator(other(), *votes).exp()[votes.annotated].sum(dim=0)
    if shares.sum() > 0:
        other.initialize(shares)
    return other


@torch.no_grad()
def prior_at(prior: ClassPrior, log_p: Tensor) -> ClassPrior:
    """Set a prior to numbers found by other means.

    Args:
        prior: the present one.
        log_p: (C,), log of the prior; `functional.NO_MASS` for a class that is left out.

    Returns:
        The prior itself; or, if its kind cannot hold the numbers, one that follows the votes or is
        uniform.

    Example:
        >>> found = prior_at(ClassPrior(2), torch.tensor([0.75, 0.25]).log())
        >>> found.prior, found().exp()
        ('vote_share', tensor([0.7500, 0.2500]))
    """
    if torch.allclose(prior().cpu(), log_p, atol=1e-4):
        return prior
    if prior.prior in ("uniform", "learned"):
        even = bool((log_p[log_p > NO_MASS] - log_p.max()).abs().max() < 1e-4)
        kind = "uniform" if even else "vote_share"
        prior = ClassPrior(len(log_p), kind).to(prior.logits.device)
    logits = torch.where(log_p <= NO_MASS, 2 * NO_MASS, log_p)
    prior.logits.copy_(logits.to(prior.logits.device))
    return prior


def _of_annotators(model: Any, verb: str) -> list[Float32Module]:
    """Find the modules that hold the annotators' numbers, or raise if there may be others.

    Args:
        model: a crowd model.
        verb: what the model must define if it has others, for the error.
    """
    modules = [m for m in model.modules() if isinstance(m, Float32Module)]
    known = {id(tensor) for part in (model.classifier, *modules) for tensor in _tensors(part)}
    unknown = [tensor for tensor in _tensors(model) if id(tensor) not in known]
    if any(model.config.num_annotators in tensor.shape for tensor in unknown):
        raise NotImplementedError(
            f"{type(model).__name__} must define `{verb}`, got none: it has parameters of its own that "
            "may be the annotators'."
        )
    return modules


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    return itertools.chain(module.parameters(), module.buffers())
