"""Parts of a crowd model exchanged for others: annotators in another order, another kind of aggregator or prior.

What was learned is kept as far as the new part has a place for it.
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
from .votes import Votes, is_annotated


@torch.no_grad()
def exchange_annotators(model: Any, order: Tensor) -> None:
    """Exchange the annotators in all that is learned of them: m becomes who was `order[m]`.

    Args:
        model: a crowd model, whose parameters and buffers of annotators are in `Float32Module`s.
        order: (M,) int64, a permutation.

    Raises:
        NotImplementedError: if some may be elsewhere.
    """
    modules = [m for m in model.modules() if isinstance(m, Float32Module)]
    known = {id(tensor) for part in (model.classifier, *modules) for tensor in _tensors(part)}
    unknown = [tensor for tensor in _tensors(model) if id(tensor) not in known]
    if any(model.config.num_annotators in tensor.shape for tensor in unknown):
        raise NotImplementedError(
            f"{type(model).__name__} must define `reorder_annotators`, got none: it has parameters of its own that "
            "may be the annotators'."
        )
    for module in modules:
        module.reorder_annotators(order)


@torch.no_grad()
def another_aggregator(
    aggregator: WeightedAverageAggregator, now: str, wanted: str
) -> WeightedAverageAggregator:
    """Make an aggregator of another kind, with the W there is; what pairs of labels say is not kept.

    Args:
        aggregator: the one there is.
        now: its kind, as in `MaxMIGConfig`.
        wanted: the other kind; the same one gives back `aggregator` itself.

    Returns:
        The aggregator, on the same device.

    Raises:
        ValueError: if there is no such kind, or one of the two is `factored`.

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
            f"`aggregator` must be {now!r}, that of the pair, got {wanted!r}: "
            "a matrix an annotator and factors that they share do not turn into each other; build "
            "the pair with the one that it is to have."
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
    """Make a prior of another kind; one that follows the crowd starts from what g makes of it.

    Args:
        prior: the one there is: classes without mass stay so.
        wanted: as in `MaxMIGConfig`.
        aggregator: g.
        crowd: the training crowd, part by part.

    Returns:
        The prior, on the same device.

    Raises:
        ValueError: if `wanted` is no prior.

    Example:
        >>> aggregator = WeightedAverageAggregator(num_annotators=2, num_classes=2)
        >>> another_prior(ClassPrior(2), [3.0, 1.0], aggregator, [])().exp()
        tensor([0.7500, 0.2500])
    """
    C, device = len(prior.logits), prior.logits.device
    other = ClassPrior(C, wanted).to(device)
    other.initialize(torch.ones(C, device=device), ~prior.left_out)
    shares = torch.zeros(C, device=device)
    for annotators, annotations in crowd:
        who, said = annotators.to(device), annotations.to(device)
        g = aggregator(other(), who, said).exp()
        shares += g[is_annotated(who, said)].sum(dim=0)
    if shares.sum() > 0:
        other.initialize(shares)
    return other


@torch.no_grad()
def prior_at(prior: ClassPrior, log_p: Tensor) -> ClassPrior:
    """Bring a prior to numbers that were found by other means.

    Args:
        prior: the one there is.
        log_p: (C,), log of the prior; `functional.NO_MASS` for a class that is left out.

    Returns:
        The prior itself; or one that follows the votes, or is uniform, where its kind has no room for
        the numbers.

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


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    return itertools.chain(module.parameters(), module.buffers())
