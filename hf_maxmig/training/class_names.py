"""The names of the classes: the one thing that the gain does not determine.

MIG^f does not change when the classes of h, g and p are exchanged together. The votes determine the
names: the right ones are those that fit the votes best.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from transformers.utils import logging

from ..model.functional import vote_share
from ..model.modeling_maxmig import CrowdModel
from ..model.votes import Votes
from .checkpoints import swapped

logger = logging.get_logger(__name__)

# Standard errors by which other names must fit the votes better. The limit must not be higher: exchanged
# names can fit worse by as little as two standard errors (correlated mistakes on 1,000 digits: 2.0 to 3.0
# in 5 of 360 exchanges).
CLEAR = 1.5
ByItem = Iterable[
    tuple[Tensor, ...]
]  # part by part: a posterior, annotations, and weights if votes have any


def votes_by_class(posteriors: ByItem) -> Tensor:
    """Count the votes on the items of each class.

    Args:
        posteriors: pairs of (N, C) probabilities that an item is of a class, and (N, K) annotations
            padded with -1; with their weights as a third if they have any.

    Returns:
        (C, C): class of the posterior, class of the votes; each row sums to one, or to zero for a
        class without items.

    Example:
        >>> posterior, said = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1, 1], [0, 1]])
        >>> votes_by_class([(posterior, said)])
        tensor([[0.0000, 1.0000],
                [0.5000, 0.5000]])
    """
    total: Tensor | float = 0.0
    for posterior, annotations, *weights in posteriors:
        share = vote_share(annotations, posterior.shape[1], *weights)
        total = total + posterior.T @ share.to(posterior.dtype)
    mass = torch.as_tensor(total).sum(dim=1, keepdim=True)
    return total / torch.where(mass > 0, mass, 1)


def best_names(votes: Tensor) -> Tensor:
    """Choose the names that agree with most votes, each once (the Hungarian method).

    A constant annotator adds the same to each row and so does not change the assignment. A class
    without votes keeps its place: no vote is evidence for its name or for another.

    Args:
        votes: (C, C), see `votes_by_class`.

    Returns:
        (C,) int64, `order`: place r of the renamed model is what was class `order[r]`.

    Example:
        >>> best_names(torch.tensor([[0.1, 0.9], [0.6, 0.4]]))
        tensor([1, 0])
    """
    order = torch.arange(len(votes))
    voted = (votes.sum(dim=0) > 0).nonzero()[:, 0].cpu()
    some = votes.double().cpu()[voted][:, voted]
    row, column = (torch.from_numpy(i) for i in linear_sum_assignment(some.numpy(), maximize=True))
    if some[row, column].sum() <= some.trace() + 1e-9:
        return order  # as good as any other: two classes may be the same
    order[voted] = voted[torch.argsort(column)]
    return order


def clear_names(posteriors: Callable[[], ByItem]) -> Tensor:
    """Choose the names that the votes support, and change only names for which the evidence is clear.

    The best names (`best_names`) are a permutation; each of its cycles is judged by itself. The evidence
    of item i for a cycle is

        d_i = sum_c q_ic (s_i,new(c) - s_i,c),

    where q is the posterior, s the item's vote share less its mean over the items, and new(c) the name
    that class c would get. It is the share of the item's votes that the new names match beyond the old
    ones. A class counts by its number of items; a constant annotator does not count. The names change if
    sum_i d_i exceeds `CLEAR` times the root of sum_i d_i^2. Three items that all support a change are
    enough; a class of almost no mass never is.

    Args:
        posteriors: gives pairs of (N, C) probabilities that an item is of a class, and (N, K)
            annotations padded with -1; it is called once for each pass.

    Returns:
        (C,) int64, `order`, as from `best_names`.

    Example:
        >>> said = torch.tensor([0, 1, 2]).repeat(20)[:, None]
        >>> swapped = torch.eye(3)[[1, 0, 2]][said[:, 0]]
        >>> clear_names(lambda: [(swapped, said)])
        tensor([1, 0, 2])
        >>> clear_names(lambda: [(swapped[:3], said[:3])])  # one item of each class
        tensor([0, 1, 2])
    """
    order = best_names(votes_by_class(posteriors()))
    cycles = list(_cycles(order))
    if not cycles:
        return order
    total, number = torch.zeros(len(order), dtype=torch.float64), 0
    for _, share in _shares(posteriors()):
        total, number = total + share.sum(dim=0), number + len(share)
    sums = torch.zeros(2, len(cycles), dtype=torch.float64)
    for posterior, share in _shares(posteriors()):
        share = share - total / max(1, number)
        for k, cycle in enumerate(cycles):
            now = order[cycle]  # the class that would get the name of place `cycle`
            gained = (posterior[:, now] * (share[:, cycle] - share[:, now])).sum(dim=1)
            sums[:, k] += torch.stack([gained.sum(), gained.square().sum()])
    for cycle, (gained, squares) in zip(cycles, sums.T, strict=True):
        if not gained > CLEAR * squares.sqrt():
            order[cycle] = cycle
    return order


def class_order(
    model: CrowdModel, crowd: Callable[[], Iterable[Votes]], gold: Tensor | None
) -> Tensor:
    """Find the order of the classes that fits the votes best.

    Args:
        model: its aggregator classifies each item by its votes.
        crowd: returns the votes that name the classes.
        gold: (N,) int64, gold labels of these items that the user hands over, -1 for none.

    Returns:
        (C,) int64, `order`: place r belongs to the present class `order[r]`; 0..C-1 if the names
        are right already, or the method's loss tells the classes apart.
    """
    if not model.blind_to_class_names:
        return torch.arange(model.config.num_labels)
    device = model.aggregator.table.device

    def posteriors() -> Iterator[tuple[Tensor, ...]]:
        start = 0
        for votes in crowd():
            g = model.aggregator(model.prior(), *votes.to(device))
            said, *weights = votes.known, *votes[2:]
            if gold is not None:  # it outvotes all others on its item
                own = gold[start : start + len(said), None].expand(-1, said.shape[1] + 1)
                said = torch.cat([said, own], dim=1)
                weights = [torch.cat([each, torch.ones_like(own)], dim=1) for each in weights]
            start += len(said)
            yield g.exp().cpu(), said, *weights

    # The aggregator may have dropout: it is off while the posteriors are computed.
    with torch.no_grad(), swapped(model.aggregator, "training", False):
        return clear_names(posteriors)


def rename_classes(model: CrowdModel, order: Tensor, inputs: dict[str, Tensor]) -> list[str] | None:
    """Give the classes other names, in classifier, W and prior.

    Args:
        model: it is changed.
        order: (C,) int64, from `class_order`.
        inputs: a batch for the classifier, to check that its outputs are exchanged.

    Returns:
        The previous names of the classes, in their new order; None if nothing changed.
    """
    names = [model.config.class_names[c] for c in order]
    if not model.reorder_classes(order, inputs):
        logger.warning(
            "The votes say that classes came out exchanged (%s should be %s), but the output layer of %s was not "
            "found: rename them in `id2label`, or set `name_classes=False`.",
            ", ".join(names), ", ".join(model.config.class_names), type(model.classifier).__name__,
        )  # fmt: skip
        return None
    logger.info(
        "The votes name the classes in another order; it was changed from: %s.", ", ".join(names)
    )
    return names


def _cycles(order: Tensor) -> Iterator[Tensor]:
    """Yield the places of each cycle of a permutation, without fixed points."""
    left = {place for place, now in enumerate(order.tolist()) if place != now}
    while left:
        cycle = [left.pop()]
        while (following := int(order[cycle[-1]])) != cycle[0]:
            cycle.append(following)
        left -= {*cycle}
        yield torch.tensor(cycle)


def _shares(posteriors: ByItem) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield posterior and vote share of the items that have votes, in float64."""
    for posterior, annotations, *weights in posteriors:
        share = vote_share(annotations, posterior.shape[1], *weights).double().cpu()
        voted = share.sum(dim=1) > 0
        yield posterior.double().cpu()[voted], share[voted]
