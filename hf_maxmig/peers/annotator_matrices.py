"""Matrices of annotators behind a classifier, trained together with it, and the models that have them.

`crowd_layer`, `confusion`, `union_net` and others read a matrix differently; how it is stored, read and
started is the same, and lives here.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ..model.aggregators import Float32Module, WeightedAverageAggregator
from ..model.configuration_maxmig import MaxMIGConfig
from ..model.functional import widen
from ..model.kept_gradients import TableRows
from ..model.modeling_maxmig import CrowdModel
from ..model.votes import Votes

STARTS = ("authors", "vote_share")


def log_said(log_h: Tensor, log_confusion: Tensor) -> Tensor:
    """Mix the rows of confusion matrices: log sum_c h_c A_cr.

    Args:
        log_h: (..., C), log-probabilities of the classifier.
        log_confusion: (..., C, R): true class, reported class.

    Returns:
        (..., R), log-probabilities of the reported class.

    Example:
        >>> sure, confusion = torch.tensor([[1.0, 1e-9]]), torch.tensor([[[0.9, 0.1], [0.4, 0.6]]])
        >>> log_said(sure.log(), confusion.log()).exp()
        tensor([[0.9000, 0.1000]])
    """
    return (log_h[..., None] + log_confusion).logsumexp(dim=-2)


class AnnotatorMatrices(Float32Module):
    """One matrix per annotator, from the classifier's probabilities to the annotator's votes.

    Args:
        num_annotators: M.
        num_classes: C.

    Example:
        >>> matrices = AnnotatorMatrices(num_annotators=3, num_classes=2)
        >>> sure = torch.tensor([[1.0, 0.0]])
        >>> matrices(sure, torch.tensor([[2, 0]])).tolist()  # one logit more for what is true
        [[[1.0, 0.0], [1.0, 0.0]]]
    """

    of_annotators: ClassVar[tuple[str, ...]] = ("table",)

    def __init__(self, num_annotators: int, num_classes: int) -> None:
        super().__init__()
        # annotator, reported class, true class: an annotator's matrix is one contiguous block
        self.table = nn.Parameter(torch.eye(num_classes).repeat(num_annotators, 1, 1))
        self.read = TableRows()

    def of(self, annotators: Tensor) -> Tensor:
        """Read the matrices of (B, K) annotators: (B, K, C, C) reported by true, meaningless at -1."""
        num_annotators, num_classes, _ = self.table.shape
        rows = self.read(annotators.clamp(min=0), self.table.view(num_annotators, -1))
        return widen(rows).view(*annotators.shape, num_classes, num_classes)

    def forward(self, h: Tensor, annotators: Tensor) -> Tensor:
        """Turn (B, C) probabilities and (B, K) annotators into (B, K, C) logits, meaningless at -1."""
        with torch.autocast(h.device.type, enabled=False):
            return (self.of(annotators) @ widen(h)[:, None, :, None]).squeeze(-1)

    def log_said(self, log_h: Tensor, annotators: Tensor) -> Tensor:
        """Mix the rows of each annotator's confusion matrix, the softmax of their scores over the reported class.

        Args:
            log_h: (B, C) log-probabilities.
            annotators: (B, K) int64.

        Returns:
            (B, K, C) log-probabilities of their votes, meaningless at -1.
        """
        with torch.autocast(log_h.device.type, enabled=False):
            log_confusion = self.of(annotators).log_softmax(dim=-2)
            return log_said(widen(log_h)[:, None], log_confusion.transpose(-1, -2))

    @torch.no_grad()
    def where_sure(self) -> Tensor:
        """Return (M, C, C), true by reported: the votes where the classifier is sure of c, softmax(W^m e_c)."""
        return widen(self.table).softmax(dim=1).transpose(1, 2)

    @torch.no_grad()
    def start_from_votes(self, batches: Iterable[Votes], smoothing: float) -> None:
        """Set each matrix to equation 2 of the Max-MIG paper: logs of P(reported class | vote share).

        Args:
            batches: the training crowd, part by part.
            smoothing: pseudo-labels added to each cell of a confusion matrix.
        """
        start = WeightedAverageAggregator(*self.table.shape[:2])
        start.initialize(batches, smoothing)
        self.table.copy_(start.table)


def check_strength(name: str, value: float) -> None:
    """Raise a ValueError if the strength of a term of a loss is negative or not finite."""
    if not 0 <= value < float("inf"):
        raise ValueError(f"`{name}` must be a finite number of 0 or more, got {value}.")


def annotators_with_votes(crowd: Iterable[Votes], num_annotators: int) -> Tensor:
    """Find the annotators who have voted.

    Args:
        crowd: the votes, part by part.
        num_annotators: M.

    Returns:
        (M,), one for an annotator with a vote, zero for the others.

    Example:
        >>> annotators_with_votes([Votes(torch.tensor([[0, 2, -1]]), torch.tensor([[1, 1, -1]]))], 4)
        tensor([1., 0., 1., 0.])
    """
    voted = torch.zeros(num_annotators)
    for votes in (Votes(*part) for part in crowd):
        voted[votes.annotators[votes.given].cpu()] = 1
    return voted


class MatricesConfig(MaxMIGConfig):
    """Configuration of a `MatricesModel`.

    Args:
        start: how the matrices start: `"authors"`, as the method's authors do, or `"vote_share"`,
            equation 2 of the Max-MIG paper.

    Raises:
        ValueError: if `start` is neither.
    """

    _auto_class = None
    start: str = "authors"

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.start not in STARTS:
            raise ValueError(f"`start` must be one of {', '.join(STARTS)}, got {self.start!r}.")


class MatricesModel(CrowdModel):
    """A classifier and one trained C x C matrix per annotator: what several methods share.

    A method defines `crowd_loss`, and `authors_start` unless its authors start at the identity.

    Args:
        config: the model's configuration; `start` says how the matrices start.
        classifier: h, if already built; see `from_classifier`.
    """

    matrices_class: ClassVar[type[AnnotatorMatrices]] = AnnotatorMatrices
    matrices: AnnotatorMatrices
    _keep_in_fp32_modules_strict = ["matrices"]

    def build_crowd(self, config: MaxMIGConfig) -> None:
        """Build the matrices."""
        self.matrices = self.matrices_class(cast(int, config.num_annotators), config.num_labels)

    def authors_start(self) -> Tensor:
        """Return the (C, C) scores, reported by true, that every annotator has at the authors' start."""
        return torch.eye(self.config.num_labels)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, AnnotatorMatrices):
            init.copy_(module.table, self.authors_start().expand_as(module.table))

    def confusion(self) -> Tensor:
        """Return (M, C, C): what each annotator says where the classifier is sure of a class."""
        return self.matrices.where_sure()

    def crowd_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the matrices."""
        yield from (p for p in self.matrices.parameters() if p.requires_grad)

    @torch.no_grad()
    def initialize_crowd(
        self,
        batches: Iterable[Votes],
        smoothing: float = 0.01,
        voted: Tensor | None = None,
    ) -> None:
        """Initialise the matrices as the config says."""
        if self.config.start == "vote_share":
            self.matrices.start_from_votes(batches, smoothing)
        else:
            self.matrices.table.copy_(self.authors_start().expand_as(self.matrices.table))
