"""MBEM: EM whose confusion matrices come from the classifier's own answers.

A. Khetan, Z. C. Lipton, A. Anandkumar. Learning From Noisy Singly-labeled Data. ICLR 2018 (model
bootstrapped expectation maximization). It is not in the paper's comparison. It was made for one vote
per item, where there is no agreement among annotators to learn from.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..model.cross_entropy import against_targets
from ..model.functional import Posteriors
from ..model.outputs import Gather, MaxMIGOutput, PosteriorParts
from ..model.votes import Votes
from .aggnet import AggNetConfig, AggNetModel


class MBEMConfig(AggNetConfig):
    """Configuration of `MBEMModel`.

    Args:
        rounds: T, the number of equal parts of the training; the confusion matrices are estimated at
            the end of each.

    Raises:
        ValueError: if `rounds` is less than 1.

    Example:
        >>> MBEMConfig(annotators=["ann", "bob"]).rounds
        2
    """

    model_type = "maxmig_mbem"
    rounds: int = 2

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.rounds < 1:
            raise ValueError(f"`rounds` must be at least 1, got {self.rounds}.")


class MBEMModel(AggNetModel):
    """Train on the votes' posterior, then judge the annotators by the trained classifier; repeat.

    Loss: mean_i - sum_c g(y_i)_c log h(x_i)_c, with g(y)_c proportional to
    p_c prod_m P^m(y^m | c), the posterior of the votes without the classifier. At the end of each of
    the T rounds t_i = argmax_c h(x_i)_c is taken as the truth to count P^m and p.

    In the first round the vote share takes the place of g. The authors train a new network in each
    round; here the same network is trained further.

    Args:
        config: the model's configuration; `rounds` is T.
        classifier: h, if already built; see `from_classifier`.

    References:
        A. Khetan, Z. C. Lipton, A. Anandkumar. Learning From Noisy Singly-labeled Data. ICLR 2018,
        Algorithm 1.

    Relations:
        `aggnet` counts with the forecast, which includes the annotator's own vote, and trains on it.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = MBEMModel.from_classifier(head, num_annotators=3)
        >>> log_h = torch.tensor([[0.4, 0.6]]).log()
        >>> model.posterior(Posteriors(log_h, log_g=log_h, log_forecast=log_h))
        tensor([[0., 1.]])
    """

    config_class = MBEMConfig
    method = "MBEM"
    reference = "Khetan, Lipton, Anandkumar. Learning From Noisy Singly-labeled Data. ICLR 2018."

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute the cross-entropy against g, see the class."""
        log_h = outputs.log_h
        annotated = Votes.of(batch).annotated
        g = cast(Tensor, outputs.aggregator_logits).exp() * annotated[:, None]
        targets = torch.where(self.rounds_done == 0, self.vote_share(batch).to(g.dtype), g)
        return against_targets(log_h, targets, gather)

    def posterior(self, posteriors: Posteriors) -> Tensor:
        """Return the (N, C) classifier's answer, one-hot."""
        log_h = posteriors.log_h
        return one_hot(log_h.argmax(dim=1), log_h.shape[1]).to(log_h.dtype)

    def end_epoch(self, parts: PosteriorParts, progress: float) -> None:
        """Estimate matrices and prior if a round is over."""
        rounds = int(progress * self.config.rounds + 1e-6)
        if rounds > self.rounds_done:
            super().end_epoch(parts, progress)
            self.rounds_done.fill_(rounds)
