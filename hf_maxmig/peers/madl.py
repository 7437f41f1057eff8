"""MaDL: a confusion matrix for each vote, and less weight for annotators who resemble many others.

M. Herde, D. Huseljic, B. Sick. Multi-annotator Deep Learning: A Probabilistic Framework for Classification.
Transactions on Machine Learning Research, 2023. It is not in the Max-MIG paper's comparison.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ..model.configuration_maxmig import MaxMIGConfig
from ..model.outputs import Gather, MaxMIGOutput
from ..model.votes import Votes
from .annotator_matrices import log_said
from .feature_networks import (
    AnnotatorEmbeddings,
    ConfusionOutput,
    FeatureModel,
    FeatureNetwork,
    OutputWithFeatures,
    VoteNorm,
    check_eta,
    mean_of_votes,
    vote_rows,
)

# Of a larger crowd, so many annotators are drawn in each step to compare with: 16 MiB of similarities.
MOST_COMPARED = 2048


class MaDLConfig(MaxMIGConfig):
    """Configuration of `MaDLModel`.

    Args:
        eta: at the start, about the probability that a vote is right.
        embedding_size: length of the vectors of items and annotators.
        hidden_size: units of the network on both.
        gamma_shape: of the Gamma distribution that gamma, the bandwidth of the similarities, comes from.
        gamma_rate: likewise.

    Raises:
        ValueError: if `eta` is not between 0 and 1, `gamma_shape` is not above 1 or `gamma_rate` not
            positive.

    Example:
        >>> MaDLConfig(annotators=["ann", "bob"]).eta
        0.8
    """

    model_type = "maxmig_madl"
    _auto_class = None
    eta: float = 0.8
    embedding_size: int = 16
    hidden_size: int = 128
    gamma_shape: float = 1.25
    gamma_rate: float = 0.25

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_eta(self.eta)
        if not (self.gamma_shape > 1 and self.gamma_rate > 0):
            raise ValueError(
                "`gamma_shape` must be above 1 and `gamma_rate` above 0, got "
                f"{self.gamma_shape} and {self.gamma_rate}: gamma starts at the peak of its distribution."
            )


class OuterProduct(FeatureNetwork):
    """Products of all pairs of numbers of the sum of two vectors, with E outputs.

    Args:
        size: E, length of the vectors and number of outputs.

    Example:
        >>> OuterProduct(2)(torch.zeros(1, 2), torch.ones(1, 2)).shape
        torch.Size([1, 2])
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, size, size))
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Draw the weights anew."""
        init.xavier_uniform_(self.weight)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """Turn two (V, E) into (V, E)."""
        both = one + other
        return torch.einsum("ve,pef,vf->vp", both, self.weight, both)


class AnnotatorPerformance(FeatureNetwork):
    """The confusion matrix of each vote, by its annotator and the features of its item.

    Args:
        num_annotators: M.
        num_classes: C.
        num_features: D.
        config: sizes, eta and the distribution of gamma.

    Example:
        >>> network = AnnotatorPerformance(3, num_classes=2, num_features=5, config=MaDLConfig())
        >>> network(torch.zeros(4, 5), torch.tensor([0, 3, 3]), torch.tensor([1, 0, 2])).shape
        torch.Size([3, 2, 2])
        >>> round(network.clique_weights(torch.tensor([0, 1, 2])).sum().item(), 4)
        3.0
    """

    def __init__(
        self, num_annotators: int, num_classes: int, num_features: int, config: MaDLConfig
    ) -> None:
        super().__init__()
        size = config.embedding_size
        self.annotator = AnnotatorEmbeddings(num_annotators, size)
        self.item = nn.Linear(num_features, size)
        self.product = OuterProduct(size)
        self.hidden = nn.Linear(3 * size, config.hidden_size)
        self.hidden_norm = VoteNorm(config.hidden_size)
        self.back = nn.Linear(config.hidden_size, size)
        self.back_norm = VoteNorm(size)
        self.confusion = ConfusionOutput(size, num_classes, config.eta)
        # gamma as its log, which stays positive wherever the optimizer steps
        self.log_gamma = nn.Parameter(torch.empty(()))
        self.shape, self.rate = config.gamma_shape, config.gamma_rate
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Draw the layers anew; gamma starts at the peak of its distribution."""
        super().reset()
        init.constant_(self.log_gamma, math.log((self.shape - 1) / self.rate))

    def forward(self, features: Tensor, item: Tensor, annotator: Tensor) -> Tensor:
        """Turn (B, D) features and (V,) items and annotators into (V, C, C) log-probabilities."""
        who, what = self.annotator(annotator), self.item(features)[item]
        known = torch.cat([who, what, self.product(who, what)], dim=1)
        hidden = self.hidden_norm(self.hidden(known)).relu()
        return self.confusion((self.back_norm(self.back(hidden)) + who).relu())

    def clique_weights(self, annotators: Tensor) -> Tensor:
        """Weigh annotators by one over the sum of their similarities to all, on average 1.

        The gradient reaches gamma only. Of a crowd of more than `MOST_COMPARED` annotators that many are
        drawn anew each time, and their similarities stand for those of all.

        Args:
            annotators: (V,) int64.

        Returns:
            (V,).
        """
        table = self.annotator.table.detach()
        if len(table) <= MOST_COMPARED:
            compared = torch.arange(len(table), device=table.device)
        else:
            compared = torch.randint(len(table), (MOST_COMPARED,)).to(table.device)
        of_compared = 1 / self._similarities(table, compared, compared)
        return 1 / self._similarities(table, annotators, compared) / of_compared.mean()

    def _similarities(self, table: Tensor, annotators: Tensor, compared: Tensor) -> Tensor:
        """Return the (V,) sums of similarities to all M: 1 to oneself, and M - 1 times the mean to others."""
        exact = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(table[annotators], table[compared], compute_mode=exact)
        others = annotators[:, None] != compared
        similarity = (-self.log_gamma.exp() * distance**2).exp() * others
        mean = similarity.sum(dim=1) / others.sum(dim=1).clamp(min=1)
        return 1 + (len(table) - 1) * mean

    def log_prior(self) -> Tensor:
        """Return the log density of gamma."""
        constant = self.shape * math.log(self.rate) - math.lgamma(self.shape)
        return constant + (self.shape - 1) * self.log_gamma - self.rate * self.log_gamma.exp()


class MaDLModel(FeatureModel):
    """Explain each vote by a class and a confusion matrix that depends on annotator and item.

    P(y | x_i, m) = sum_c h(x_i)_c A_cy(e_i, m). A is the softmax over the reported class of a network on a
    vector of the annotator, a vector made of the features e_i below the classifier's output layer, and
    their outer product, with a residual block. It starts near matrices of eta on the diagonal. Loss: the
    mean over all votes of -w_m log P(y_i^m | x_i, m), minus the log density of gamma under its Gamma
    distribution. w_m is one over the sum of the similarities exp(-gamma |v_m - v_k|^2) of the annotator's
    vector to those of all annotators k, scaled to a mean of 1 over the annotators: annotators who err
    alike share one weight, without anybody saying who belongs together.

    The gradient of the network stops at e, and that of the weights at the vectors. The matrices cost C^2
    outputs per vote, and nothing per annotator. The weights compare the annotators of a batch with all, of
    a large crowd with some. The network normalises over the votes of a batch, on each device by itself.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.

    Raises:
        TypeError: if the classifier does not end in a linear layer.

    References:
        M. Herde, D. Huseljic, B. Sick. Multi-annotator Deep Learning: A Probabilistic Framework for
        Classification. Transactions on Machine Learning Research, 2023, with features that the classifier
        has learned and with weights; github.com/ies-research/multi-annotator-deep-learning. There gamma itself
        is trained, and read as 0.001 at the least; here its log.

    Relations:
        `annot_mix` has such a network without weights and learns from blends of two votes. `spee_lfc` has
        one matrix per annotator for all items. `find_copies` of this package finds cliques with a test.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = MaDLModel.from_classifier(head, num_annotators=3)
        >>> model.network.log_gamma.exp().detach()
        tensor(1.)
    """

    config_class = MaDLConfig
    method = "MaDL"
    reference = (
        "Herde, Huseljic, Sick. Multi-annotator Deep Learning: A Probabilistic Framework for "
        "Classification. TMLR, 2023."
    )
    network: AnnotatorPerformance

    def build_network(
        self, num_annotators: int, num_classes: int, num_features: int
    ) -> AnnotatorPerformance:
        """Build the network for A."""
        config = cast(MaDLConfig, self.config)
        return AnnotatorPerformance(num_annotators, num_classes, num_features, config)

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute the weighted cross-entropy of all votes, see the class and `CrowdModel.crowd_loss`."""
        rows, log_h = vote_rows(Votes.of(batch)), outputs.log_h
        features = cast(Tensor, cast(OutputWithFeatures, outputs).features)
        with torch.autocast(log_h.device.type, enabled=False):
            log_confusion = self.network(features, rows.item, rows.annotator)
            said = log_said(log_h[rows.item], log_confusion)
            losses = -said.gather(1, rows.annotation[:, None])[:, 0] * rows.weight
            losses = losses * self.network.clique_weights(rows.annotator)
        loss, empty = mean_of_votes(losses, rows.weight, rows.item, len(log_h), gather)
        return loss - self.network.log_prior() * ~empty, empty
