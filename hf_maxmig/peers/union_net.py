"""Union-Net: all annotators as one, who names a pair of annotator and class.

H. Wei, R. Xie, L. Feng, B. Han, B. An. Deep Learning from Multiple Noisy Annotators as A Union. IEEE
Transactions on Neural Networks and Learning Systems, 2022.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..model.cross_entropy import log_likelihoods, mean_of_given
from ..model.functional import widen
from ..model.outputs import Gather, MaxMIGOutput
from ..model.votes import Votes
from .annotator_matrices import AnnotatorMatrices, MatricesConfig, MatricesModel

NORMALISED = ("mixture", "columns")
# The authors' start is the identity, a little of it spread over the other classes.
SPREAD = 1e-5


class UnionNetConfig(MatricesConfig):
    """Configuration of `UnionNetModel`.

    Args:
        normalised: what the softmax over all pairs of annotator and class is taken of: the
            `"mixture"` of the scores (Union-Net A), or the `"columns"` of the matrix (B).
        start: how the matrices start: `"authors"`, at the identity, or `"vote_share"`, equation 2 of the
            Max-MIG paper.

    Raises:
        ValueError: if `normalised` or `start` is unknown.

    Example:
        >>> UnionNetConfig(annotators=["ann", "bob"]).normalised
        'mixture'
    """

    model_type = "maxmig_union_net"
    _auto_class = None
    normalised: str = "mixture"

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.normalised not in NORMALISED:
            raise ValueError(
                f"`normalised` must be one of {', '.join(NORMALISED)}, got {self.normalised!r}."
            )


class UnionMatrices(AnnotatorMatrices):
    """The (M C) x C matrix T of all annotators: `AnnotatorMatrices`, one below the other.

    Args:
        num_annotators: M.
        num_classes: C.

    Example:
        >>> union = UnionMatrices(num_annotators=2, num_classes=2)
        >>> sure, who = torch.tensor([[1.0, 0.0]]).log(), torch.tensor([[0, 1]])
        >>> for log_said in (union.of_mixture, union.of_columns):
        ...     round(log_said(sure, who).exp().sum().item(), 5)
        1.0
        1.0
    """

    def of_mixture(self, log_h: Tensor, annotators: Tensor) -> Tensor:
        """Take the softmax over all pairs of the mixed scores T h.

        Args:
            log_h: (B, C) log-probabilities.
            annotators: (B, K) int64.

        Returns:
            (B, K, C) log-probabilities of the pairs, meaningless at -1. They sum to one over all M
            annotators and C classes.
        """
        with torch.autocast(log_h.device.type, enabled=False):
            h = widen(log_h).exp()
            everything = (h @ self.table.flatten(0, 1).T).logsumexp(dim=-1)
            return self(h, annotators) - everything[:, None, None]

    def of_columns(self, log_h: Tensor, annotators: Tensor) -> Tensor:
        """Mix the columns of T, each a distribution over all pairs by its softmax; as `of_mixture` otherwise."""
        with torch.autocast(log_h.device.type, enabled=False):
            everything = self.table.flatten(0, 1).logsumexp(dim=0)
            return (self.of(annotators) - everything + widen(log_h)[:, None, None, :]).logsumexp(-1)


class UnionNetModel(MatricesModel):
    """Explain the votes on an item as draws from one distribution over all pairs of annotator and class.

    T is the (M C) x C stack of one matrix of scores per annotator. Union-Net A (`union_net`):
    u(x) = softmax(T h(x)) over all M C pairs. B (`union_net_b`): u(x) = softmax(T) h(x), the softmax of each
    column of T. Loss: mean over *items* of -sum over the item's votes of log u(x_i)_(m, r): an item with
    more votes counts more.

    h alone classifies. The softmax of A needs B M C scores in each step: its cost grows with the number of
    annotators by definition. That of B reads the M C^2 scores once, and the votes. From the authors' start A
    gives up a class now and then, as `crowd_layer` does; the training then warns.

    Args:
        config: the model's configuration; `normalised` says which of the two.
        classifier: h, if already built; see `from_classifier`.

    References:
        H. Wei, R. Xie, L. Feng, B. Han, B. An. Deep Learning from Multiple Noisy Annotators as A Union.
        IEEE TNNLS 2022.

    Relations:
        `spee_lfc` gives each annotator a normaliser of their own, so that it does not matter how much they
        vote. B is `spee_lfc` times P(m | c), how much of the votes on class c are m's. `crowd_layer` has the
        scores of A, and a softmax per annotator.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = UnionNetModel.from_classifier(head, num_annotators=3)
        >>> who, said = torch.tensor([[0, 1], [0, -1]]), torch.tensor([[1, 1], [0, -1]])
        >>> model(features=torch.zeros(2, 5), annotators=who, annotations=said, return_loss=True).loss > 0
        tensor(True)
    """

    config_class = UnionNetConfig
    matrices_class = UnionMatrices
    matrices: UnionMatrices
    reference = (
        "Wei et al. Deep Learning from Multiple Noisy Annotators as A Union. IEEE TNNLS 2022."
    )

    @property
    def method(self) -> str:  # type: ignore[override]
        """Union-Net A or B."""
        return "Union-Net A" if self.config.normalised == "mixture" else "Union-Net B"

    def authors_start(self) -> Tensor:
        """Return the scores that every annotator has at the authors' start."""
        num_classes = self.config.num_labels
        others = SPREAD / max(1, num_classes - 1)
        return others + (1 - SPREAD - others) * torch.eye(num_classes)

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute the cross-entropy of the items' votes, see `CrowdModel.crowd_loss`."""
        votes, log_h = Votes.of(batch), outputs.log_h
        mixed = self.config.normalised == "mixture"
        read = self.matrices.of_mixture if mixed else self.matrices.of_columns
        log_likelihood, _ = log_likelihoods(read(log_h, votes.annotators), votes)
        return mean_of_given(-log_likelihood, votes.annotated.to(log_likelihood.dtype), gather)
