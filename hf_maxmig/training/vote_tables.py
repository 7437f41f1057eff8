"""Parameters about single votes of the training set: they live as long as a training.

A method may learn parameters of each vote on each item, which do not apply to other items. Before the first
step the trainer passes all votes to the method; then it gives it the rows of each batch's items, and writes
the tables into checkpoints. A saved or shared model does not hold them.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.trainer_utils import has_length

from ..model.aggregators import Float32Module
from ..model.kept_gradients import TableRows
from ..model.votes import Votes

FILE = "votes.safetensors"  # in a checkpoint
_FIRST = "/first"  # in that file, beside the tables: no module has such a name


class VoteTable(Float32Module):
    """A row of trained numbers for each vote of the training set; all zero at first.

    Between trainings there are no parameters: `found` then holds what the last one has learned. The rows
    are no part of `state_dict`, so no saved model has them.

    Args:
        size: D, how many numbers a row has.

    Example:
        >>> table = VoteTable(size=2)
        >>> table.meet(torch.tensor([0, 2, 3]))  # two votes on the first item, one on the second
        >>> table.rows.shape
        torch.Size([3, 2])
        >>> table(torch.tensor([1, 0]), width=2).shape  # of both items, the second one first
        torch.Size([2, 2, 2])
        >>> table.part()
        >>> list(table.parameters()), table.found.shape
        ([], torch.Size([3, 2]))
    """

    rows: nn.Parameter | None
    first: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_parameter("rows", None)
        # The row of each item's first vote, and at the end the number of votes.
        self.register_buffer("first", torch.zeros(1, dtype=torch.int64), persistent=False)
        self.found: Tensor | None = None
        self._parted: tuple[nn.Parameter, ...] = ()  # an optimizer may know it: it is used again
        self.read = TableRows()

    @torch.no_grad()
    def meet(self, first: Tensor) -> None:
        """Make a row of zeros for each vote of a training set.

        Args:
            first: (N + 1,) int64, of `first_votes`.
        """
        device, number = self.first.device, int(first[-1])
        self.first = first.to(device)
        known = self._parted or (() if self.rows is None else (self.rows,))
        if known and known[0].shape == (number, self.size) and known[0].device == device:
            self.rows = known[0]
            self.rows.zero_()
        else:
            self.rows = nn.Parameter(torch.zeros(number, self.size, device=device))
        self._parted, self.found = (), None

    @torch.no_grad()
    def part(self) -> None:
        """End the training: what was learned stays in `found`, and is no parameter any more."""
        if self.rows is not None:
            self.found, self._parted = self.rows.detach().clone(), (self.rows,)
            self.rows = None

    def forward(self, items: Tensor, width: int) -> Tensor:
        """Read the rows of some items' votes.

        Args:
            items: (B,) int64, the items' places in the training set.
            width: K, the places per item.

        Returns:
            (B, K, D), zeros where an item has no vote.
        """
        table = cast(nn.Parameter, self.rows)
        start, end = self.first[items, None], self.first[items + 1, None]
        index = start + torch.arange(width, device=items.device)
        rows = self.read(index.clamp(max=len(table) - 1), table)
        return torch.where((index < end)[..., None], rows, 0.0)

    def of_items(self, values: Tensor) -> Tensor:
        """Add up (V,) values of votes per item: (N,)."""
        items = torch.arange(len(self.first) - 1, device=values.device)
        each = items.repeat_interleave(self.first.diff().to(values.device))
        return values.new_zeros(len(items)).index_add(0, each, values)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Save nothing: see the class."""

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load nothing."""


def first_votes(crowd: Iterable[Votes]) -> Tensor:
    """Number the votes of a training set, item by item.

    Args:
        crowd: the votes, part by part, in the order of the items.

    Returns:
        (N + 1,) int64: the number of each item's first vote, and at the end how many votes there are. An
        item has as many as its last filled place says, so that every place has its number in any batch.

    Raises:
        ValueError: if there are no votes.

    Example:
        >>> votes = Votes(torch.tensor([[0, 3], [-1, -1], [1, -1]]), torch.tensor([[1, 1], [-1, -1], [0, -1]]))
        >>> first_votes([votes]).tolist()
        [0, 2, 2, 3]
    """
    lengths = [torch.zeros(1, dtype=torch.int64)]
    for votes in (Votes(*part) for part in crowd):
        taken = (votes.annotators >= 0) | (votes.annotations >= 0)
        places = torch.arange(1, taken.shape[1] + 1, device=taken.device)
        lengths.append((taken * places).amax(dim=1).cpu())
    first = torch.cat(lengths).cumsum(dim=0)
    if first[-1] == 0:
        raise ValueError(
            "the training set must have at least one vote, got none: check the columns `annotators` and "
            "`annotations`."
        )
    return first


def vote_tables(model: nn.Module) -> dict[str, VoteTable]:
    """Find the tables of votes in a model, by the names of their modules."""
    return {n: module for n, module in model.named_modules() if isinstance(module, VoteTable)}


def meet_votes(model: nn.Module, dataset: Any, crowd: Iterable[Votes], folder: str | None) -> None:
    """Begin a training: make the tables for its crowd, or read them from a checkpoint.

    Args:
        model: without tables, nothing happens and nothing is read.
        dataset: the training set.
        crowd: its votes, part by part, in the order of the items.
        folder: the checkpoint, if the training is resumed.

    Raises:
        TypeError: if the training set is a stream.
        ValueError: if it has no votes, or others than the checkpoint's.
    """
    tables = vote_tables(model)
    if not tables:
        return
    if not has_length(dataset):
        raise TypeError(
            f"`train_dataset` must have a length for {type(model).__name__}, got {type(dataset).__name__}: something "
            "is learned about each of its votes."
        )
    first = first_votes(crowd)
    saved = {} if folder is None else load_file(Path(folder) / FILE)
    if folder is not None and not torch.equal(saved[_FIRST], first):
        raise ValueError(
            f"the training set must be that of the checkpoint, with {int(saved[_FIRST][-1])} votes, got "
            f"{int(first[-1])} votes or others: take the same data, or train anew."
        )
    for name, table in tables.items():
        table.meet(first)
        if folder is not None:
            cast(nn.Parameter, table.rows).data.copy_(saved[name])


def save_votes(model: nn.Module, folder: Path) -> None:
    """Write the tables of a model into a checkpoint, if it has any."""
    tables: dict[str, Tensor] = {}
    for name, table in vote_tables(model).items():
        rows = table.found if table.rows is None else table.rows  # the training may have ended
        if rows is not None:
            tables |= {name: rows.detach().cpu(), _FIRST: table.first.cpu()}
    if tables:
        save_file(tables, folder / FILE)


def part_with_votes(model: nn.Module) -> None:
    """End a training: the tables of a model are no parameters any more."""
    for table in vote_tables(model).values():
        table.part()
