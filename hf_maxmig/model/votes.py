"""The votes of a crowd as padded tensors, and which of their places hold a vote.

`functional.py` computes with them; the code that reads them from a data set is outside of this folder.
"""

from collections.abc import Iterable, Mapping
from typing import Self

import torch
from torch import Tensor


class Votes(tuple[Tensor, ...]):
    """The votes on N items: a batch, a part of a crowd or all of it.

    K is the largest number of votes on an item. A vote of an unknown annotator has -1 for the annotator.

    A vote may have a weight: how confident its annotator is, or the probability that they give to this class.
    Votes are a tuple of two tensors, or of three if they have weights. So `Votes(*votes)` keeps the weights, and
    code that unpacks two tensors fails on weighted votes instead of counting them in full.

    Args:
        annotators: (N, K) int64, who voted on each item, padded with -1.
        annotations: (N, K) int64, which class each of them named, padded with -1.
        weights: (N, K) float32 in 0..1, how much each vote counts, padded with 0. None: all count as 1.

    Example:
        >>> votes = Votes(torch.tensor([[0, 1], [1, -1]]), torch.tensor([[2, 2], [0, -1]]))
        >>> votes.given.tolist(), votes.annotated.tolist()
        ([[True, True], [True, False]], [True, True])
        >>> unsure = Votes(*votes, torch.tensor([[1.0, 0.5], [0.0, 0.0]]))
        >>> unsure.given.tolist(), unsure.annotated.tolist()  # a weight of zero is no vote
        ([[True, True], [False, False]], [True, False])
    """

    def __new__(  # noqa: D102
        cls, annotators: Tensor, annotations: Tensor, weights: Tensor | None = None
    ) -> Self:
        tables = (
            (annotators, annotations) if weights is None else (annotators, annotations, weights)
        )
        return super().__new__(cls, tables)

    def __getnewargs__(self) -> tuple[Tensor, ...]:
        return tuple(self)

    @classmethod
    def of(cls, batch: Mapping[str, Tensor]) -> Self:
        """Take the votes out of a batch, as a collator makes it."""
        return cls(batch["annotators"], batch["annotations"], batch.get("annotation_weights"))

    def as_batch(self) -> dict[str, Tensor]:
        """Name the tensors as a batch does."""
        return dict(zip(("annotators", "annotations", "annotation_weights"), self, strict=False))

    @property
    def annotators(self) -> Tensor:
        """(N, K) int64, who voted on each item, padded with -1."""
        return self[0]

    @property
    def annotations(self) -> Tensor:
        """(N, K) int64, which class each of them named, padded with -1."""
        return self[1]

    @property
    def weights(self) -> Tensor | None:
        """(N, K) float32, how much each vote counts; None if all count as 1."""
        return self[2] if len(self) > 2 else None

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

    def rows(self, index: Tensor | slice) -> Self:
        """Take some of the items."""
        return type(self)(*(table[index] for table in self))

    def to(self, device: torch.device | str) -> Self:
        """Move the votes to a device."""
        return type(self)(*(table.to(device) for table in self))

    def saying(self, annotations: Tensor) -> Self:
        """Replace the (N, K) annotations."""
        return type(self)(self.annotators, annotations, *self[2:])


def given_together(
    annotators: Tensor | None, annotations: Tensor | None, annotation_weights: Tensor | None
) -> Votes | None:
    """Join what a model was given to votes; None if there are none.

    Raises:
        ValueError: if one of the first two is given without the other, or weights without both.
    """
    if annotators is not None and annotations is not None:
        return Votes(annotators, annotations, annotation_weights)
    if annotators is None and annotations is None and annotation_weights is None:
        return None
    missing = "annotators" if annotators is None else "annotations"
    raise ValueError(f"`annotators` and `annotations` must be given together, got no `{missing}`.")


def is_given(annotators: Tensor, annotations: Tensor, weights: Tensor | None = None) -> Tensor:
    """Tell which places of (N, K) padded votes hold one by a known annotator: (N, K) bool."""
    given = (annotators >= 0) & (annotations >= 0)
    return given if weights is None else given & (weights > 0)


def is_annotated(annotators: Tensor, annotations: Tensor, weights: Tensor | None = None) -> Tensor:
    """Tell which of N items have a vote by a known annotator: (N,) bool."""
    return is_given(annotators, annotations, weights).any(dim=1)


def weighted(rows: Tensor, given: Tensor, weights: Tensor | None) -> Tensor:
    """Multiply what votes say by their weights, and set it to zero where there is no vote.

    Args:
        rows: (N, K, D), in float32 or wider; anything where there is no vote.
        given: (N, K) bool, which places hold a vote.
        weights: (N, K), how much each vote counts; None if all count as 1.

    Returns:
        (N, K, D).

    Example:
        >>> said, given = torch.tensor([[[2.0], [torch.nan]]]), torch.tensor([[True, False]])
        >>> weighted(said, given, torch.tensor([[0.25, 0.0]])).tolist()
        [[[0.5], [0.0]]]
    """
    rows = torch.where(given[..., None], rows, 0.0)
    return rows if weights is None else rows * weights.to(rows.dtype)[..., None]


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
    for part in parts:
        votes = Votes(*part)
        voted[votes.annotations[votes.given].cpu()] = True
    return voted


def plurality(share: Tensor) -> Tensor:
    """Round vote shares to the class with the most votes; tied classes share an item equally.

    No class is preferred for its number.

    Args:
        share: (N, C), of each class among an item's votes; a row of zeros without votes stays.

    Returns:
        (N, C), rows summing to one, or zeros.

    Example:
        >>> plurality(torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.0, 0.0]]))
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000],
                [0.0000, 0.0000]])
    """
    top = (share == share.amax(dim=1, keepdim=True)) & (share > 0)
    return top / torch.where(top.any(dim=1), top.sum(dim=1), 1)[:, None]
