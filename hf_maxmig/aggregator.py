"""The crowd's side of the model: the class prior p, the aggregator g, and how both start.

The formulas are in `functional.py`; here is what has parameters.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from .functional import (
    aggregate,
    confusion_counts,
    initial_weight,
    vote_share,
    vote_share_prior,
)

PRIORS = ("uniform", "vote_share", "learned")


def check_prior(prior: str | list[float], num_classes: int) -> str | list[float]:
    """Check a prior as a config gives it, and normalise a list.

    Args:
        prior: one of `PRIORS`, or C positive numbers.
        num_classes: C.

    Returns:
        The name, or the list scaled to sum to one.

    Raises:
        ValueError: if the name is unknown, the list has another length than C, or a number is not
            positive.

    Example:
        >>> check_prior([8, 2], num_classes=2)
        [0.8, 0.2]
    """
    if isinstance(prior, str):
        if prior not in PRIORS:
            raise ValueError(
                f"`prior` must be one of {', '.join(PRIORS)} or a list of C = {num_classes} numbers, got {prior!r}."
            )
        return prior
    values = [float(value) for value in prior]
    if len(values) != num_classes:
        raise ValueError(
            f"`prior` must have C = {num_classes} numbers, one a class, got {len(values)}: {values}."
        )
    if not all(0 < value < math.inf for value in values):
        raise ValueError(
            f"`prior` must be positive and finite, got {values}: a class of probability zero has no log; leave it out."
        )
    total = math.fsum(values)
    return [value / total for value in values]


class Float32Module(nn.Module):
    """A module whose parameters stay in float32 or wider when the model around it is cast down.

    The aggregator adds up the evidence of many labels: in bfloat16 an update of 1e-3 to a weight of
    4 is lost.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        def keep_wide(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if not moved.is_floating_point() or torch.finfo(moved.dtype).bits >= 32:
                return moved
            return tensor.to(moved.device)

        return super()._apply(keep_wide, recurse)


def check_any_label(found: bool) -> None:
    """Raise a ValueError if a training crowd has no label to start from."""
    if not found:
        raise ValueError(
            "the training set must have at least one label by a known annotator, got none: "
            "check the columns `annotators` and `annotations`."
        )


class ClassPrior(Float32Module):
    """The prior p over classes (paper, Section 3.1), as logits on the simplex; trained if learned.

    Args:
        num_classes: C.
        prior: `"uniform"`; C numbers; `"vote_share"`, which stays uniform until the crowd is seen;
            or `"learned"`, which starts from the vote share and is then trained with the
            aggregator.

    Example:
        >>> ClassPrior(2, prior=[0.8, 0.2])().exp()
        tensor([0.8000, 0.2000])
    """

    logits: Tensor

    def __init__(self, num_classes: int, prior: str | list[float] = "uniform") -> None:
        super().__init__()
        self.prior = check_prior(prior, num_classes)
        logits = self.initial_logits(num_classes)
        if prior == "learned":
            self.logits = nn.Parameter(logits)
        else:  # a buffer: `from_pretrained` makes every parameter one that is trained
            self.register_buffer("logits", logits)

    def initial_logits(self, num_classes: int) -> Tensor:
        """Return the (C,) logits before any crowd is seen."""
        if isinstance(self.prior, list):
            return torch.tensor(self.prior, dtype=torch.float32).log()
        return torch.zeros(num_classes, dtype=torch.float32)

    def forward(self) -> Tensor:
        """Return (C,) log p, in float32 or wider."""
        with torch.autocast(self.logits.device.type, enabled=False):
            return self.logits.log_softmax(dim=-1)

    @torch.no_grad()
    def initialize(self, shares: Tensor) -> None:
        """Follow the crowd, if this prior does: (C,) vote share summed over the annotated items."""
        if self.prior in ("vote_share", "learned"):
            self.logits.copy_(vote_share_prior(shares))


class WeightedAverageAggregator(Float32Module):
    """The paper's aggregator g (Section 3.1): a matrix an annotator, summed over the labels given.

    Args:
        num_annotators: M.
        num_classes: C.

    Example:
        >>> aggregator = WeightedAverageAggregator(num_annotators=3, num_classes=2)
        >>> aggregator.weight.shape  # annotator, scored class, reported class
        torch.Size([3, 2, 2])
        >>> half = torch.tensor([0.5, 0.5]).log()
        >>> who, said = torch.tensor([[0, 2]]), torch.tensor([[1, 1]])
        >>> aggregator(half, who, said).exp().tolist()  # not trained yet
        [[0.5, 0.5]]
    """

    def __init__(self, num_annotators: int, num_classes: int) -> None:
        super().__init__()
        # Kept as (annotator, reported, scored): a label reads one contiguous row, see
        # `functional.aggregate`.
        self.table = nn.Parameter(
            torch.zeros(num_annotators, num_classes, num_classes, dtype=torch.float32)
        )

    @property
    def weight(self) -> Tensor:
        """W, a view of the table: (M, C, C): annotator, scored class, reported class."""
        return self.table.transpose(1, 2)

    def forward(self, log_p: Tensor, annotators: Tensor, annotations: Tensor) -> Tensor:
        """Aggregate (B, K) annotators and annotations under a (C,) log prior to (B, C) log g."""
        return aggregate(self.weight, log_p, annotators, annotations)

    @torch.no_grad()
    def initialize(
        self, batches: Iterable[tuple[Tensor, Tensor]], smoothing: float, strength: float = 1.0
    ) -> Tensor:
        """Start W from the training crowd alone, in one pass (paper, equation 2).

        Args:
            batches: pairs (annotators, annotations), each (N, K) int64 padded with -1.
            smoothing: pseudo-labels added to each cell of a confusion matrix.
            strength: what W is multiplied by; 1 is the paper's start. Below one the first g is less
                sure of itself than the vote share, whose labels are also the evidence, would have
                it.

        Returns:
            (C,), the vote share summed over the annotated items: what the prior starts from.

        Raises:
            ValueError: if no item has a label.
        """
        num_annotators, num_classes, _ = self.table.shape
        counts = torch.zeros(num_annotators, num_classes, num_classes)
        shares = torch.zeros(num_classes)
        for annotators, annotations in batches:
            share = vote_share(torch.where(annotators >= 0, annotations, -1), num_classes)
            counts += confusion_counts(share, annotators, annotations, num_annotators)
            shares += share.sum(dim=0)
        check_any_label(bool(shares.sum() > 0))
        weight = initial_weight(counts, smoothing) * strength
        self.table.copy_(weight.transpose(1, 2))
        return shares
