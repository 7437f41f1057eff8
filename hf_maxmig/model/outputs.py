"""The outputs of a crowd model for a batch, and how they are joined over devices."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

from torch import Tensor
from transformers.utils import ModelOutput

from .functional import Posteriors, widen

Gather = Callable[[Tensor], Tensor]  # joins a (B, ...) tensor over the devices, with gradient
# Part by part: the items' posteriors, and the (N, K) tensors of their votes.
PosteriorParts = Iterable[tuple[Posteriors, *tuple[Tensor, ...]]]


@dataclass
class MaxMIGOutput(ModelOutput):
    """The result of a forward pass.

    Args:
        loss: scalar, of the batch in nats (Max-MIG: minus the gain); only with `return_loss=True`.
        logits: (B, C), the classifier's, unnormalised.
        aggregator_logits: (B, C), log g; None without annotations, or if the method has no g.
        forecast_logits: (B, C), log zeta; None where log g is None.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    aggregator_logits: Tensor | None = None
    forecast_logits: Tensor | None = None

    @property
    def log_h(self) -> Tensor:
        """(B, C), log-probabilities of the classifier, in float32 or wider."""
        return widen(cast(Tensor, self.logits)).log_softmax(dim=-1)
