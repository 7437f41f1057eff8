"""Which name belongs to which class: the one thing the gain cannot tell.

MIG^f does not change when the classes of h, g and p are exchanged together. The crowd tells them
apart: its labels name the classes, and the right names are those that fit the labels best.
"""

from collections.abc import Iterable

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from .functional import vote_share


def votes_by_class(posteriors: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
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
    it.

    Args:
        votes: (C, C), see `votes_by_class`.

    Returns:
        (C,) int64, `order`: place r of the renamed model is what was class `order[r]`.

    Example:
        >>> best_names(torch.tensor([[0.1, 0.9], [0.6, 0.4]]))
        tensor([1, 0])
    """
    votes = votes.double().cpu()
    row, column = (torch.from_numpy(i) for i in linear_sum_assignment(votes.numpy(), maximize=True))
    if votes[row, column].sum() <= votes.trace() + 1e-9:
        return torch.arange(len(votes))  # as good as any other: two classes may be the same one
    return torch.argsort(column)
