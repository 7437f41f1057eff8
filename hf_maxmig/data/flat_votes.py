"""All votes of a crowd in a row, without padding, for code that reads each vote."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..model.votes import Votes


@dataclass(frozen=True)
class FlatVotes:
    """V votes in a row, grouped by item.

    Args:
        item: (V,) int64, ascending.
        annotator: (V,) int64.
        annotation: (V,) int64.
        num_items: N, including the items without a vote.
    """

    item: Tensor
    annotator: Tensor
    annotation: Tensor
    num_items: int

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
        for part in crowd:
            votes = Votes(*part)
            item, slot = votes.given.nonzero(as_tuple=True)
            rows.append(torch.stack([item + start, *(side[item, slot] for side in votes)]).cpu())
            start += len(votes.annotators)
        item, annotator, annotation = torch.cat(rows, dim=1)
        return cls(item, annotator, annotation, start)

    def __len__(self) -> int:
        return len(self.item)
