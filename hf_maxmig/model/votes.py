"""The votes of a crowd as two padded tensors, and which of their places hold a vote.

`functional.py` computes with them; the code that reads them from a data set is outside of this folder.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

import torch
from torch import Tensor


class Votes(NamedTuple):
    """The votes on N items: a batch, a part of a crowd or all of it.

    K is the largest number of votes on an item. A vote of an unknown annotator has -1 for the annotator.

    Args:
        annotators: (N, K) int64, who voted on each item, padded with -1.
        annotations: (N, K) int64, which class each of them named, padded with -1.

    Example:
        >>> votes = Votes(torch.tensor([[0, 1], [1, -1]]), torch.tensor([[2, 2], [0, -1]]))
        >>> votes.given.tolist(), votes.annotated.tolist()
        ([[True, True], [True, False]], [True, True])
    """

    annotators: Tensor
    annotations: Tensor

    @classmethod
    def of(cls, batch: Mapping[str, Tensor]) -> Self:
        """Take the votes out of a batch, as a collator makes it."""
        return cls(batch["annotators"], batch["annotations"])

    @property
    def given(self) -> Tensor:
        """(N, K) bool, which places hold a vote by a known annotator."""
        return is_given(*self)

    @property
    def annotated(self) -> Tensor:
        """(N,) bool, which items have a vote by a known annotator."""
        return is_annotated(*self)

    @property
    def known(self) -> Tensor:
        """(N, K) int64, the annotations of known annotators, and -1."""
        return torch.where(self.annotators >= 0, self.annotations, -1)


def is_given(annotators: Tensor, annotations: Tensor) -> Tensor:
    """Tell which places of (N, K) padded votes hold one by a known annotator: (N, K) bool."""
    return (annotators >= 0) & (annotations >= 0)


def is_annotated(annotators: Tensor, annotations: Tensor) -> Tensor:
    """Tell which of N items have a vote by a known annotator: (N,) bool."""
    return is_given(annotators, annotations).any(dim=1)


def voted_classes(parts: Iterable[Votes], num_classes: int) -> Tensor:
    """Tell which classes a known annotator has voted for.

    Args:
        parts: the crowd part by part, each as `Votes`.
        num_classes: C.

    Returns:
        (C,) bool.

    Example:
        >>> voted_classes([Votes(torch.tensor([[0, -1]]), torch.tensor([[2, 1]]))], num_classes=3)
        tensor([False, False,  True])
    """
    voted = torch.zeros(num_classes, dtype=torch.bool)
    for annotators, annotations in parts:
        voted[annotations[is_given(annotators, annotations)].cpu()] = True
    return voted
