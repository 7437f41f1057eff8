"""The race: it finds the W, prior and rate that a classifier starts from.

Finding them by short trainings of the classifier costs as much as its training. Here small networks on its
features stand in for it (`fold_networks`): each learns without some of the items, and W learns only from
networks that have not seen the item. All settings are trained at once, as one batch of matrices, and are
compared by the gain on items that none of them has learned from. No gold label is used.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..model.functional import NO_MASS, aggregate, vote_share_prior
from ..model.votes import Votes
from .cross_fit import BRIEF, MULTIPLES, STEPS, first_weight
from .fold_networks import CrossFit, VotedClasses, divide, principal_components


class Outcome(NamedTuple):
    """The result of one setting of the race.

    Args:
        multiple: the rate of W, as a multiple of the classifier's.
        learned: whether the prior was learned.
        log_p: (C,), the prior.
        weight: (M, C, C), W: annotator, scored class, reported class.
        log_h: (N, C), log-probabilities by networks that have not learned from the item.
        log_g: (N, C), log-probabilities by the votes, W and the prior.
    """

    multiple: float
    learned: bool
    log_p: Tensor
    weight: Tensor
    log_h: Tensor
    log_g: Tensor


def race(
    features: Tensor,
    crowd: Votes,
    held_out: Tensor,
    num_annotators: int,
    priors: dict[bool, Tensor | None],
    voted: Tensor,
    smoothing: float,
    scale: float,
    steps: int = STEPS,
    seed: int = 0,
) -> list[Outcome]:
    """Train networks on features, W and the prior, in each setting.

    Args:
        features: (N, D), of the items.
        crowd: the votes on all items.
        held_out: (N,) bool, the items that nothing learns from.
        num_annotators: M.
        priors: maps whether the prior is learned to its (C,) logarithm, or to that which it starts from;
            None for the class shares of the votes, weighed by agreement with the networks.
        voted: (C,) bool, the classes with votes, two or more; the others take no part.
        smoothing: pseudo-votes in each cell of the confusions that W starts from.
        scale: of that W.
        steps: of the networks.
        seed: of all random numbers.

    Returns:
        The results, for each prior in the order of `MULTIPLES`.

    Example:
        >>> truth = torch.arange(240) % 2
        >>> crowd = torch.arange(3).repeat(240, 1), truth[:, None].repeat(1, 3)
        >>> uniform = torch.tensor([0.5, 0.5]).log()
        >>> first, _ = race(
        ...     torch.eye(2)[truth], crowd, torch.arange(240) < 48, 3, {False: uniform},
        ...     torch.tensor([True, True]), smoothing=0.01, scale=0.5,
        ... )
        >>> bool((first.log_g.argmax(dim=1) == truth).all())
        True
    """
    classes = VotedClasses(voted)
    crowd = Votes(*crowd)
    crowd = crowd.saying(classes.narrow(crowd.annotations))
    M, C = num_annotators, len(classes)
    learns = crowd.annotated & ~held_out
    fitted = CrossFit(principal_components(features), divide(learns, seed), C, seed)
    some = Votes(crowd.annotators.masked_fill(held_out[:, None], -1), *crowd[1:])
    first = first_weight(fitted, some, M, min(BRIEF, steps), smoothing, scale)
    of_votes = vote_share_prior(first.share.sum(dim=0))
    settings, learned = [], []
    for is_learned, log_p in priors.items():
        start = of_votes if log_p is None else log_p[classes.numbers].log_softmax(dim=0)
        settings += [(start, multiple) for multiple in MULTIPLES]
        learned += [is_learned] * len(MULTIPLES)
    free = torch.tensor(learned) if any(learned) else None
    raced = fitted.race(some, first.weight, settings, steps, looks=(1.0,), learned=free)

    found = []
    for one, is_learned in zip(raced, learned, strict=True):
        log_g = aggregate(one.weight, one.log_p, *crowd)
        weight = classes.spread_weight(one.weight)
        log_p, log_h, log_g = (
            classes.spread(table, NO_MASS) for table in (one.log_p, one.log_h, log_g)
        )
        found.append(Outcome(one.multiple, is_learned, log_p, weight, log_h, log_g))
    return found
