"""All votes of a crowd in a row, without padding, for code that reads each vote."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..model.votes import Votes

_ROUNDING = 1e-3  # of the sum of C probabilities


@dataclass(frozen=True)
class FlatVotes:
    """V votes in a row, grouped by item.

    Args:
        item: (V,) int64, ascending.
        annotator: (V,) int64.
        annotation: (V,) int64.
        num_items: N, including the items without a vote.
        weight: (V,) float32, how much each vote counts; None if all count as 1.
    """

    item: Tensor
    annotator: Tensor
    annotation: Tensor
    num_items: int
    weight: Tensor | None = None

    @classmethod
    def read(cls, crowd: Iterable[Votes]) -> "FlatVotes":
        """Flatten a crowd; votes of unknown annotators (-1) are left out.

        Args:
            crowd: the crowd part by part, each as `Votes`, in the order of the items, as
                `crowd_batches` yields them. Read once.

        Returns:
            The votes, 24 bytes each.

        Example:
            >>> crowd = [Votes(torch.tensor([[0, 1], [-1, 1]]), torch.tensor([[2, 2], [0, 1]]))]
            >>> votes = FlatVotes.read(crowd)
            >>> votes.item.tolist(), votes.annotator.tolist(), votes.annotation.tolist()
            ([0, 0, 1], [0, 1, 1], [2, 2, 1])
        """
        rows, start = [torch.zeros(3, 0, dtype=torch.int64)], 0
        weights: list[Tensor] = []
        is_weighted = False
        for part in crowd:
            votes = Votes(*part)
            item, slot = votes.given.nonzero(as_tuple=True)
            rows.append(torch.stack([item + start, *(t[item, slot] for t in votes[:2])]).cpu())
            is_weighted |= votes.weights is not None
            each = torch.ones(len(item)) if votes.weights is None else votes.weights[item, slot]
            weights.append(each.float().cpu())
            start += len(votes.annotators)
        item, annotator, annotation = torch.cat(rows, dim=1)
        return cls(item, annotator, annotation, start, torch.cat(weights) if is_weighted else None)

    def __len__(self) -> int:
        return len(self.item)

    def counts(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return how much each vote counts: (V,), ones where votes have no weights."""
        ones = torch.ones(len(self.item), dtype=dtype)
        return ones if self.weight is None else self.weight.to(dtype)

    def together(self, group: Tensor) -> Tensor:
        """Return the weights of all votes of a vote's group, (V,); ones where votes have no weights.

        Args:
            group: (V,) int64, any number per group; without weights each vote must be a group.
        """
        if self.weight is None:
            return self.counts()
        number = group.unique(return_inverse=True)[1]
        return torch.bincount(number, self.counts())[number]

    @cached_property
    def whole(self) -> Tensor:
        """(V,) int64, ascending numbers: the vote that each of these is a part of.

        Weighted votes of an annotator on an item are parts of one vote if their weights sum to 1 or less,
        as those of a soft vote do. Otherwise each vote is whole.

        Example:
            >>> parts = Votes(*torch.tensor([[[0, 0, 1]], [[1, 0, 1]]]), torch.tensor([[0.75, 0.25, 1.0]]))
            >>> FlatVotes.read([parts]).whole
            tensor([0, 0, 1])
        """
        if self.weight is None or not len(self):
            return torch.arange(len(self))
        key = self.item * (int(self.annotator.max()) + 1) + self.annotator
        _, same = key.unique(return_inverse=True)
        total = torch.zeros(int(same.max()) + 1, dtype=torch.float64)
        total.index_add_(0, same, self.weight.double())
        alone = len(total) + torch.arange(len(self))
        numbers = torch.where(total[same] <= 1 + _ROUNDING, same, alone)
        return numbers.unique(return_inverse=True)[1]

    def answers(self) -> "FlatVotes":
        """Keep the heaviest part of each vote, as a vote that counts in full: the class it names first.

        Example:
            >>> parts = Votes(*torch.tensor([[[0, 0, 1]], [[1, 0, 1]]]), torch.tensor([[0.25, 0.75, 0.5]]))
            >>> FlatVotes.read([parts]).answers().annotation
            tensor([0, 1])
        """
        if self.weight is None:
            return self
        heaviest = self.weight.argsort(descending=True, stable=True)
        heaviest = heaviest[self.whole[heaviest].argsort(stable=True)]
        first = torch.ones(len(self), dtype=torch.bool)
        first[1:] = self.whole[heaviest][1:] != self.whole[heaviest][:-1]
        kept = heaviest[first].sort().values
        return FlatVotes(
            self.item[kept], self.annotator[kept], self.annotation[kept], self.num_items
        )
