"""Confusion: one confusion matrix per annotator behind the classifier, trained together with it.

Four methods share this likelihood, the "coupled cross-entropy", and differ in what they add to it:
SpeeLFC nothing, Tanno et al. the matrices' trace, GeoCrowdNet the volume of the classifier's answers
(F) or of the matrices (W). The references are in the docstring of `ConfusionModel`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ..model.cross_entropy import against_annotations
from ..model.functional import widen
from ..model.outputs import Gather, MaxMIGOutput
from ..model.votes import Votes
from .annotator_matrices import (
    AnnotatorMatrices,
    MatricesConfig,
    MatricesModel,
    annotators_with_votes,
    check_strength,
)

REGULARISERS = {
    # name: as people call the method, the default strength, the publication
    "none": ("SpeeLFC", 0.0, "Chen et al. Structured Probabilistic End-to-End Learning from Crowds. IJCAI 2020."),
    "trace": ("Trace Regularisation", 0.01, "Tanno et al. Learning from Noisy Labels by Regularized Estimation of Annotator Confusion. CVPR 2019."),
    "geo_f": ("GeoCrowdNet-F", 0.001, "Ibrahim, Nguyen, Fu. Deep Learning from Crowdsourced Labels. ICLR 2023."),
    "geo_w": ("GeoCrowdNet-W", 0.001, "Ibrahim, Nguyen, Fu. Deep Learning from Crowdsourced Labels. ICLR 2023."),
}  # fmt: skip
JITTER = (
    1e-6  # of the mean squared length of a row, so that a determinant of too few rows is not zero
)


class ConfusionConfig(MatricesConfig):
    """Configuration of `ConfusionModel`.

    Args:
        regulariser: what is added to the likelihood, a row of `REGULARISERS`.
        lam: its strength; by default that of the row: 0.01 for the trace, 0.001 for both volumes.
        start: how the matrices start: `"authors"`, from scores of 6 on the diagonal and 0 elsewhere
            for the trace and 1 and 0 for the others; or `"vote_share"`, equation 2 of the Max-MIG paper.

    Raises:
        ValueError: if `regulariser` or `start` is unknown, or `lam` is negative, not finite, or has
            nothing to weigh.

    Example:
        >>> ConfusionConfig(annotators=["ann", "bob"], regulariser="trace").strength
        0.01
    """

    model_type = "maxmig_confusion"
    _auto_class = None
    regulariser: str = "none"
    lam: float | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.regulariser not in REGULARISERS:
            raise ValueError(
                f"`regulariser` must be one of {', '.join(REGULARISERS)}, got {self.regulariser!r}."
            )
        if self.lam is not None:
            check_strength("lam", self.lam)
        if self.lam and self.regulariser == "none":
            raise ValueError(
                f"`lam` must be left out without a regulariser, got {self.lam}: choose a `regulariser` too."
            )

    @property
    def strength(self) -> float:
        """`lam`, or the default of the regulariser."""
        return REGULARISERS[self.regulariser][1] if self.lam is None else self.lam


def minus_log_volume(rows: Tensor, count: Tensor) -> Tensor:
    """Compute -log det(R'R + n e I), which is large where the rows of R span little volume.

    Without e = `JITTER` the determinant of fewer than C rows is zero, and its logarithm has neither a
    value nor a gradient. The sum is in float64, where the device has it.

    Args:
        rows: (n', C), R: rows of probabilities, and of zeros, which change nothing.
        count: scalar, n: how many rows are not zeros; 0 counts as 1.

    Returns:
        Scalar, in float32 or wider.

    Example:
        >>> spread = minus_log_volume(torch.eye(2), torch.tensor(2))
        >>> alike = minus_log_volume(torch.full((2, 2), 0.5), torch.tensor(2))
        >>> round(spread.item(), 3), round(alike.item(), 3)
        (-0.0, 13.122)
    """
    with torch.autocast(rows.device.type, enabled=False):
        exact = widen(rows) if rows.device.type == "mps" else rows.double()
        least = JITTER * count.clamp(min=1).to(exact.dtype) * torch.eye(rows.shape[1]).to(exact)
        return -torch.linalg.slogdet(exact.T @ exact + least).logabsdet.to(widen(rows).dtype)


class ConfusionMatrices(AnnotatorMatrices):
    """One confusion matrix per annotator, and what a regulariser says of all of them.

    Args:
        num_annotators: M.
        num_classes: C.

    Example:
        >>> matrices = ConfusionMatrices(num_annotators=3, num_classes=2)
        >>> round(matrices.mean_trace().item(), 4)  # right with a probability of 0.7311 in both classes
        1.4621
    """

    of_annotators = ("table", "active")
    active: Tensor

    def __init__(self, num_annotators: int, num_classes: int) -> None:
        super().__init__(num_annotators, num_classes)
        # The annotators with training votes: the likelihood says nothing about the others' matrices.
        self.register_buffer("active", torch.ones(num_annotators))

    def of_active(self) -> Tensor:
        """Return (M, C, C), the matrices of all annotators, reported by true; zeros for the inactive."""
        return self.table.softmax(dim=1) * self.active[:, None, None]

    def mean_trace(self) -> Tensor:
        """Return the mean trace of the active annotators' matrices: how often they are right, times C."""
        diagonals = self.of_active().diagonal(dim1=1, dim2=2)
        return diagonals.sum() / self.active.sum().clamp(min=1)

    def minus_log_volume(self) -> Tensor:
        """Return `minus_log_volume` of the stack of all active annotators' matrices, C rows of each."""
        rows = self.of_active().flatten(0, 1)
        return minus_log_volume(rows, self.active.sum() * self.table.shape[1])


class ConfusionModel(MatricesModel):
    """Explain each vote by a class and its annotator's confusion matrix: P(r) = sum_c h(x)_c A^m_cr.

    A^m is the softmax of scores W^m over the reported class. Loss: the mean over all votes of
    -log sum_c h(x_i)_c A^m_{c, y_i^m}, plus what `regulariser` names:

    - `none`: nothing.
    - `trace`: + lam mean_m trace A^m. The votes then have to say how good an annotator is. Where it starts,
      the matrices must be nearly diagonal, or the classes lose their names; the authors first train
      without it, and here the start of 6 on the diagonal does that.
    - `geo_f`: - lam log det(F'F), F the B x C answers of the classifier to the annotated items of a batch.
      In a batch of fewer than C such items F'F is singular. `JITTER` keeps the term finite there: it
      then spreads the answers over as many directions as there are items. F has the items of all devices,
      but only those of one accumulated batch.
    - `geo_w`: - lam log det(S'S), S the (M C) x C stack of the matrices of all annotators.

    The annotators without training votes have no part in `trace` and `geo_w`, which could otherwise be
    satisfied by matrices that explain nothing. The cost of a step grows with the number of votes, not of
    annotators; but `trace` and `geo_w` also read the M C^2 numbers of the matrices once, as the
    optimizer does. Their sum over the annotators of a batch would be cheaper, but is another method.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.

    References:
        Z. Chen et al. Structured Probabilistic End-to-End Learning from Crowds. IJCAI 2020. (`none`)
        R. Tanno et al. Learning from Noisy Labels by Regularized Estimation of Annotator Confusion. CVPR
        2019. (`trace`)
        S. Ibrahim, T. Nguyen, X. Fu. Deep Learning from Crowdsourced Labels: Coupled Cross-Entropy
        Minimization, Identifiability, and Regularization. ICLR 2023. (`geo_f`, `geo_w`) The authors choose
        `lam` among 0.1 and 0.2 by gold validation labels; 0.001 needs none, and 0.1 collapses now and then.
        A term that is not finite is never dropped here.

    Relations:
        `aggnet` fits the same likelihood by expectation and maximisation, with all votes on an item
        together; here each vote is explained by itself. `crowd_layer` has the softmax after the mixture.
        `union_net_b` has one normaliser for all annotators. `coin_net` adds what no matrix explains.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = ConfusionModel.from_classifier(head, num_annotators=3, regulariser="trace")
        >>> model.matrices.of_active()[0].detach()
        tensor([[0.9975, 0.0025],
                [0.0025, 0.9975]])
    """

    config_class = ConfusionConfig
    matrices_class = ConfusionMatrices
    matrices: ConfusionMatrices

    @property
    def method(self) -> str:  # type: ignore[override]
        """What the method is called with this regulariser."""
        return REGULARISERS[self.config.regulariser][0]

    @property
    def reference(self) -> str:  # type: ignore[override]
        """The publication of the method with this regulariser."""
        return REGULARISERS[self.config.regulariser][2]

    def authors_start(self) -> Tensor:
        """Return the scores that every annotator has at the authors' start."""
        identity = super().authors_start()
        return 6 * identity if self.config.regulariser == "trace" else identity

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ConfusionMatrices):
            init.ones_(module.active)

    @torch.no_grad()
    def initialize_crowd(
        self,
        batches: Iterable[Votes],
        smoothing: float = 0.01,
        voted: Tensor | None = None,
    ) -> None:
        """Initialise the matrices as the config says, and find the annotators with votes."""
        parts = [Votes(*part) for part in batches]
        super().initialize_crowd(parts, smoothing, voted)
        self.matrices.active.copy_(annotators_with_votes(parts, len(self.matrices.active)))

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute the cross-entropy of all votes and the regulariser, see `CrowdModel.crowd_loss`."""
        votes, log_h = Votes.of(batch), outputs.log_h
        log_said = self.matrices.log_said(log_h, votes.annotators)
        loss, empty = against_annotations(log_said, votes, gather)
        config = cast(ConfusionConfig, self.config)
        if config.strength == 0:
            return loss, empty
        return loss + config.strength * self.regulariser(log_h, votes, gather) * ~empty, empty

    def regulariser(self, log_h: Tensor, votes: Votes, gather: Gather) -> Tensor:
        """Compute what the config adds to the likelihood, without its strength.

        Args:
            log_h: (B, C), log-probabilities of the classifier.
            votes: of the batch.
            gather: joins a (B, ...) tensor over the devices, with gradient.
        """
        if self.config.regulariser == "trace":
            return self.matrices.mean_trace()
        if self.config.regulariser == "geo_w":
            return self.matrices.minus_log_volume()
        return spread_of_answers(log_h, votes, gather)


def spread_of_answers(log_h: Tensor, votes: Votes, gather: Gather) -> Tensor:
    """Compute `minus_log_volume` of the classifier's answers to the annotated items of a batch.

    Args:
        log_h: (B, C), log-probabilities of the classifier.
        votes: of the batch.
        gather: joins a (B, ...) tensor over the devices, with gradient.
    """
    annotated = votes.annotated.to(log_h.dtype)
    answers = log_h.exp() * annotated[:, None]
    return minus_log_volume(gather(answers), gather(annotated).sum())
