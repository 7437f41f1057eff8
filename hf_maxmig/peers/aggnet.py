"""AggNet: EM over the annotators' confusion matrices and a network.

S. Albarqouni, C. Baur, F. Achilles, V. Belagiannis, S. Demirci, N. Navab. AggNet: Deep Learning
From Crowds for Mitosis Detection in Breast Cancer Histology Images. IEEE Transactions on Medical
Imaging 35(5), 2016. The network takes the place of the logistic regression of Raykar et al. (2010).
It is the maximum-likelihood method that the Max-MIG paper compares with (Section 4 and Appendix E).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ..model.aggregators import WeightedAverageAggregator
from ..model.configuration_maxmig import MaxMIGConfig
from ..model.cross_entropy import mean_of_given
from ..model.functional import Posteriors, confusion_counts, initial_weight, vote_share
from ..model.modeling_maxmig import CrowdModel, MaxMIGModel
from ..model.outputs import Gather, MaxMIGOutput, PosteriorParts
from ..model.votes import Votes


class AggNetConfig(MaxMIGConfig):
    """Configuration of `AggNetModel`.

    Args:
        prior: `"vote_share"`, which starts from the vote share and is re-estimated with the confusion
            matrices; `"uniform"` or C numbers stay as they are. It affects g, but not the loss, the
            classifier or the forecast.
        smoothing: pseudo-labels in each cell of a confusion matrix, at each estimation.

    Raises:
        ValueError: if the prior is `"learned"`, or `smoothing` is not positive.

    Example:
        >>> AggNetConfig(annotators=["ann", "bob"]).prior
        'vote_share'
    """

    model_type = "maxmig_aggnet"
    _auto_class = None
    prior: str | list[float] = "vote_share"
    smoothing: float = 0.01

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.prior == "learned":
            raise ValueError(
                "`prior` must be vote_share, uniform or a list for an EM method, got 'learned': "
                "vote_share is estimated with the confusion matrices."
            )
        if not self.smoothing > 0:
            raise ValueError(f"`smoothing` must be positive, got {self.smoothing}.")


class ConfusionAggregator(WeightedAverageAggregator):
    """The aggregator whose W is the log of confusion matrices, which are counted, not trained.

    Then g is the posterior of independent annotators (paper, Proposition D.3).

    Args:
        num_annotators: M.
        num_classes: C.

    Example:
        >>> aggregator = ConfusionAggregator(num_annotators=1, num_classes=2)
        >>> truth, who = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0], [0]])
        >>> _ = aggregator.estimate([(truth, who, torch.tensor([[0], [1]]))], smoothing=0.5)
        >>> aggregator.weight.exp()
        tensor([[[0.7500, 0.2500],
                 [0.2500, 0.7500]]])
    """

    def __init__(self, num_annotators: int, num_classes: int) -> None:
        super().__init__(num_annotators, num_classes)
        table = self.table.detach()
        del self.table
        # A buffer, because the optimizer and DDP expect a gradient for every parameter.
        self.register_buffer("table", table)

    @torch.no_grad()
    def estimate(self, parts: Iterable[tuple[Tensor, ...]], smoothing: float) -> Tensor:
        """Set W to the log confusion under the items' posteriors: the M-step.

        Args:
            parts: triples of (N, C) probabilities of the true class and the items' (N, K)
                annotators and annotations, together the training crowd; with weights as a fourth.
            smoothing: pseudo-labels in each cell.

        Returns:
            (C,), the probabilities summed over the annotated items.
        """
        num_annotators, num_classes, _ = self.table.shape
        counts = torch.zeros(num_annotators, num_classes, num_classes, dtype=torch.float64)
        mass = torch.zeros(num_classes, dtype=torch.float64)
        for posterior, *tables in parts:
            votes, posterior = Votes(*tables), posterior.double()
            who, said, *weights = votes
            counts += confusion_counts(posterior, who, said, num_annotators, *weights)
            mass += posterior[votes.annotated].sum(dim=0)
        self.table.copy_(initial_weight(counts, smoothing).transpose(1, 2))
        return mass


class AggNetModel(MaxMIGModel):
    """Maximise the likelihood of the votes over the classifier and the confusion matrices, by EM.

    The votes on item i have the likelihood l_i = sum_c h(x_i)_c prod_m P^m(y_i^m | c).
    E-step: q_ic proportional to h(x_i)_c prod_m P^m(y_i^m | c). M-step: P^m(r | c) proportional to
    sum_i q_ic 1(y_i^m = r), once per epoch, from the whole training set. The classifier learns from
    q. In the first epoch, before any M-step, it learns from the vote share instead, so that the items
    can separate a class that the first matrices would merge with another.

    With W = log P this uses the parts of Max-MIG: q is the forecast h g / p, and the loss is the mean
    of -log K_ii, K_ii = sum_c h(x_i)_c g(y_i)_c / p_c, which is -log l_i up to a term independent of
    the classifier. Its gradient is that of the cross-entropy against q, with q fixed, so each step of
    the optimizer has its own E-step. "AggNet (d)" of the paper is `logits`, and "AggNet (dc)" is
    `forecast_logits`.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.

    References:
        S. Albarqouni et al. AggNet: Deep Learning From Crowds for Mitosis Detection in Breast
        Cancer Histology Images. IEEE Transactions on Medical Imaging 35(5), 2016. It starts from
        equation 2 of the Max-MIG paper (Appendix B.2), at full strength.

    Relations:
        The loss is minus the reward of Max-MIG's gain under KL (plus 1), without the penalty, and the
        aggregator is counted instead of trained. So correlated mistakes count as evidence (Appendix
        E). `raykar` is the same with a linear classifier, and `mbem` counts with the classifier's
        answers. With an uninformative classifier it is the method of Dawid and Skene (1979).

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = AggNetModel.from_classifier(head, num_annotators=3)
        >>> who, said = torch.tensor([[0, 1], [0, 2]]), torch.tensor([[1, 1], [0, 0]])
        >>> model.initialize_crowd([(who, said)], smoothing=0.1)
        >>> out = model(features=torch.zeros(2, 5), annotators=who, annotations=said)
        >>> out.forecast_logits.argmax(dim=1)
        tensor([1, 0])
    """

    config_class = AggNetConfig
    _auto_class = None
    method = "AggNet"
    reference = (
        "Albarqouni et al. AggNet: Deep Learning From Crowds for Mitosis Detection in Breast "
        "Cancer Histology Images. IEEE Transactions on Medical Imaging 35(5), 2016."
    )
    loss_is_minus_gain = False
    least_items = 1
    aggregator_class = ConfusionAggregator
    aggregator: ConfusionAggregator
    blended_loss = CrowdModel.blended_loss  # the loss of an item does not depend on the others

    def build_crowd(self, config: MaxMIGConfig) -> None:
        """Build prior and aggregator, and the counter of M-steps."""
        super().build_crowd(config)
        # Saved, so that a resumed run continues at the right step.
        self.register_buffer("rounds_done", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, AggNetModel):
            init.zeros_(module.rounds_done)

    def crowd_parameters(self) -> Iterator[nn.Parameter]:
        """Yield nothing: matrices and prior are estimated in closed form."""
        return iter(())

    def initialize_crowd(
        self,
        batches: Iterable[Votes],
        smoothing: float = 0.01,
        voted: Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        """Initialise by equation 2, unscaled: the matrices are probabilities here."""
        super().initialize_crowd(batches, smoothing, voted=voted)
        self.rounds_done.zero_()

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute minus the mean log-likelihood of the items' votes, see the class."""
        log_h = outputs.log_h
        log_k = (log_h + cast(Tensor, outputs.aggregator_logits) - self.prior()).logsumexp(dim=-1)
        against_share = -(self.vote_share(batch) * log_h).sum(dim=-1)
        annotated = Votes.of(batch).annotated
        loss = torch.where(self.rounds_done == 0, against_share, -log_k)
        return mean_of_given(torch.where(annotated, loss, 0.0), annotated.to(loss.dtype), gather)

    def vote_share(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the (B, C) vote share, which replaces the posterior before the first M-step."""
        votes = Votes.of(batch)
        return vote_share(votes.known, self.config.num_labels, votes.weights)

    def posterior(self, posteriors: Posteriors) -> Tensor:
        """Return the (N, C) probabilities that the M-step counts with: q, the forecast."""
        return posteriors.log_forecast.exp()

    def confusion(self) -> Tensor:
        """Return the (M, C, C) matrices of the last M-step."""
        return self.aggregator.weight.exp()

    def end_epoch(self, parts: PosteriorParts, progress: float) -> None:
        """Take the M-step over the whole training set."""
        counted = ((self.posterior(Posteriors(*p)), *votes) for p, *votes in parts)
        self.prior.initialize(self.aggregator.estimate(counted, self.config.smoothing).float())
        self.rounds_done += 1
