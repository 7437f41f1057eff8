"""Which name belongs to which class: the one thing the gain cannot tell.

MIG^f does not change when the classes of h, g and p are exchanged together. The crowd tells them
apart: its labels name the classes, and the right names are those that fit the labels best.
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

# Standard errors by which other names must fit the votes better. Not more: where the names are right, they
# fit worse, by as much as they fit better where two are exchanged, and that can be as little as two
# (correlated mistakes on 1,000 digits, 2.0 to 3.0 in 5 of 360 exchanges).
CLEAR = 1.5
ByItem = Iterable[tuple[Tensor, Tensor]]  # a posterior and the annotations, part by part


def votes_by_class(posteriors: ByItem) -> Tensor:
    """Count what the crowd says of the items of each class.

    Args:
        posteriors: pairs of (N, C) probabilities that an item is of a class, and (N, K) annotations
            padded with -1.

    Returns:
        (C, C): class of the posterior, class of the votes; each row sums to one, or to zero if
        nothing is of the class.

    Example:
        >>> posterior, said = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1, 1], [0, 1]])
        >>> votes_by_class([(posterior, said)])
        tensor([[0.0000, 1.0000],
                [0.5000, 0.5000]])
    """
    total: Tensor | float = 0.0
    for posterior, annotations in posteriors:
        total = total + posterior.T @ vote_share(annotations, posterior.shape[1]).to(
            posterior.dtype
        )
    mass = torch.as_tensor(total).sum(dim=1, keepdim=True)
    return total / torch.where(mass > 0, mass, 1)


def best_names(votes: Tensor) -> Tensor:
    """Choose the names that the most votes speak for, each once (the Hungarian method).

    A constant annotator adds the same to each row and so has no say: an assignment is unmoved by
    it. A class that nobody voted for keeps its place: no vote speaks for its name, nor for another.

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
        return order  # as good as any other: two classes may be the same one
    order[voted] = voted[torch.argsort(column)]
    return order


def clear_names(posteriors: Callable[[], ByItem]) -> Tensor:
    """Choose the names that the votes speak for, and change only those for which they do so clearly.

    Of the best names (`best_names`) each cycle of classes that exchange theirs is looked at by itself.
    Item i speaks for it by

        d_i = sum_c q_ic (s_i,new(c) - s_i,c),

    where q is the posterior, s the item's vote share less its mean over the items, and new(c) the name
    that class c would get: what more of its votes match. A class counts by the items there are of it,
    and a constant annotator not at all. The names change if sum_i d_i exceeds `CLEAR` times the root of
    sum_i d_i^2: three items that all speak for it are enough, a class of hardly any mass never is.

    Args:
        posteriors: gives pairs of (N, C) probabilities that an item is of a class, and (N, K)
            annotations padded with -1; asked for anew each time it is read.

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
        model: whose aggregator says what each item is, by its votes.
        crowd: gives the votes that name the classes.
        gold: (N,) int64, gold labels of these items that the user hands over, -1 for none.

    Returns:
        (C,) int64, `order`: place r belongs to what is class `order[r]` now; 0..C-1 if the names
        are right already, or the method's loss tells the classes apart.
    """
    if not model.blind_to_class_names:
        return torch.arange(model.config.num_labels)
    device = model.aggregator.table.device

    def posteriors() -> Iterator[tuple[Tensor, Tensor]]:
        start = 0
        for annotators, annotations in crowd():
            g = model.aggregator(model.prior(), annotators.to(device), annotations.to(device))
            said = torch.where(annotators >= 0, annotations, -1)
            if gold is not None:  # it outvotes all others on its item
                own = gold[start : start + len(said), None]
                said = torch.cat([said, own.expand(-1, said.shape[1] + 1)], dim=1)
            start += len(said)
            yield g.exp().cpu(), said

    # It may drop out; only now is it asked.
    with torch.no_grad(), swapped(model.aggregator, "training", False):
        return clear_names(posteriors)


def rename_classes(model: CrowdModel, order: Tensor, inputs: dict[str, Tensor]) -> list[str] | None:
    """Give the classes other names, in classifier, W and prior.

    Args:
        model: it is changed.
        order: (C,) int64, from `class_order`.
        inputs: a batch for the classifier, on which to see that its outputs were exchanged.

    Returns:
        The names that the classes had before, in their new order; None if they stay.
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
    """Yield the places of each cycle of a permutation, those that stay left out."""
    left = {place for place, now in enumerate(order.tolist()) if place != now}
    while left:
        cycle = [left.pop()]
        while (following := int(order[cycle[-1]])) != cycle[0]:
            cycle.append(following)
        left -= {*cycle}
        yield torch.tensor(cycle)


def _shares(posteriors: ByItem) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield posterior and vote share of the items that have votes, in float64."""
    for posterior, annotations in posteriors:
        share = vote_share(annotations, posterior.shape[1]).double().cpu()
        voted = share.sum(dim=1) > 0
        yield posterior.double().cpu()[voted], share[voted]
