"""COINNet: confusion matrices, and for each vote what no matrix explains.

T. Nguyen, S. Ibrahim, X. Fu. Noisy Label Learning with Instance-Dependent Outliers: Identifiability via
Crowd Wisdom. NeurIPS 2024.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from ..data.numbered import ROW
from ..model.configuration_maxmig import MaxMIGConfig
from ..model.cross_entropy import against_annotations, mean_of_given
from ..model.outputs import Gather, MaxMIGOutput
from ..model.votes import Votes
from ..training.vote_tables import VoteTable
from .annotator_matrices import MatricesConfig, MatricesModel, check_strength
from .confusion import spread_of_answers

# Where the authors cut probabilities, what they add to a squared length, and its exponent.
LEAST, JITTER, EXPONENT = 1e-10, 1e-10, 0.2


class CoinNetConfig(MatricesConfig):
    """Configuration of `CoinNetModel`.

    Args:
        lam1: the strength of the volume of the classifier's answers.
        lam2: the strength of the penalty on outliers: a higher one leaves fewer.
        start: how the matrices start: `"authors"`, with 1 on the diagonal of the scores and 0 elsewhere;
            or `"vote_share"`, equation 2 of the Max-MIG paper.

    Raises:
        ValueError: if `start` is unknown, or a strength is negative or not finite.

    Example:
        >>> CoinNetConfig(annotators=["ann", "bob"]).lam2
        0.01
    """

    model_type = "maxmig_coin_net"
    _auto_class = None
    lam1: float = 0.01
    lam2: float = 0.01

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_strength("lam1", self.lam1)
        check_strength("lam2", self.lam2)


class CoinNetModel(MatricesModel):
    """Explain a vote by its annotator's confusion matrix, or else call it an outlier.

    The probability of the vote of annotator m on item i is y_(i,m) = A^m' h(x_i) + E_(i,m), cut to 1e-10 .. 1
    and normalised. A^m is the softmax of scores over the reported class, and E_(i,m) a trained vector of C
    numbers with mean zero, for each vote of the training set. Loss: mean over all votes of -log y_(i,m)_r,
    - lam1 log det(F'F), F the B x C answers of the classifier to the annotated items of a batch (see
    `confusion.minus_log_volume` for small batches), + lam2 mean over items of (|E_i|^2 + 1e-10)^0.2, which
    prefers a few items with large outliers to many with small ones.

    `outliers_of_items` tells after a training how far each item is from what the matrices explain. The
    vectors are in a training's checkpoints, so that it can be resumed, and in no saved or shared model. They
    need `CrowdTrainer` and a training set with a length: `forward(return_loss=True)` knows no item, and
    computes the loss without them.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.

    References:
        T. Nguyen, S. Ibrahim, X. Fu. Noisy Label Learning with Instance-Dependent Outliers: Identifiability
        via Crowd Wisdom. NeurIPS 2024. The authors drop log det when it is not finite, and choose the
        epoch by gold validation labels; neither is done here.

    Relations:
        With E = 0 it is `geo_f` at another strength, and with lam1 = 0 too `spee_lfc`. `relabel` of any
        method ranks items by how little their votes fit; here those votes also teach less.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> CoinNetModel.from_classifier(head, num_annotators=3).matrices.table.shape
        torch.Size([3, 2, 2])
    """

    config_class = CoinNetConfig
    method = "COINNet"
    reference = (
        "Nguyen, Ibrahim, Fu. Noisy Label Learning with Instance-Dependent Outliers: Identifiability "
        "via Crowd Wisdom. NeurIPS 2024."
    )
    takes_blends = False  # an outlier is one of an item, not of a blend

    def build_crowd(self, config: MaxMIGConfig) -> None:
        """Build the matrices and the table of outliers, which is empty before a training."""
        super().build_crowd(config)
        self.outliers = VoteTable(config.num_labels)

    def crowd_parameters(self) -> Any:
        """Yield the matrices, and during a training the outliers."""
        yield from super().crowd_parameters()
        yield from self.outliers.parameters()

    def outliers_of_items(self) -> Tensor:
        """Return (N,) |E_i| of the items of the last training, in their order.

        Raises:
            ValueError: if this object has not been trained.
        """
        if self.outliers.found is None:
            raise ValueError(
                "`outliers_of_items` must follow a training of this model, got none: a saved model holds no "
                "outliers."
            )
        return self.outliers.of_items(_centred(self.outliers.found).square().sum(dim=-1)).sqrt()

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss, see `CrowdModel.crowd_loss`; the batch of a training has its items' rows.

        Raises:
            ValueError: if the batch of a training has no rows.
        """
        votes, log_h = Votes.of(batch), outputs.log_h
        log_said, outliers = self.matrices.log_said(log_h, votes.annotators), None
        if self.outliers.rows is not None:
            if ROW not in batch:
                raise ValueError(
                    f"a training batch must have `{ROW}`, got {', '.join(batch)}: use `CrowdTrainer`, with a collator "
                    "that keeps the items in order or passes their rows on."
                )
            read = _centred(self.outliers(batch[ROW], log_said.shape[1]))
            outliers = torch.where(votes.given[..., None], read, 0.0)
            said = (log_said.exp() + outliers).clamp(LEAST, 1 - LEAST)
            log_said = said.log() - said.sum(dim=-1, keepdim=True).log()
        loss, empty = against_annotations(log_said, votes, gather)
        config = cast(CoinNetConfig, self.config)
        loss = loss + config.lam1 * spread_of_answers(log_h, votes, gather) * ~empty
        if outliers is not None:
            each = (outliers.square().sum(dim=(1, 2)) + JITTER) ** EXPONENT
            annotated = votes.annotated.to(each.dtype)
            loss = loss + config.lam2 * mean_of_given(each * annotated, annotated, gather)[0]
        return loss, empty


def _centred(outliers: Tensor) -> Tensor:
    return outliers - outliers.mean(dim=-1, keepdim=True)
