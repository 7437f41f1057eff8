"""What a crowd model makes of a batch, and how it is joined over devices."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

from torch import Tensor
from transformers.utils import ModelOutput

from .functional import Posteriors, widen

Gather = Callable[[Tensor], Tensor]  # joins a (B, ...) tensor over the devices, with gradient
# Part by part: what the model makes of the items, and their (N, K) annotators and annotations.
PosteriorParts = Iterable[tuple[Posteriors, Tensor, Tensor]]


@dataclass
class MaxMIGOutput(ModelOutput):
    """What a forward pass gives.

    Args:
        loss: scalar, of the batch in nats (Max-MIG: minus the gain); only if asked for by
            `return_loss=True`.
        logits: (B, C), the classifier's, not normalised.
        aggregator_logits: (B, C), log g; None without annotations, or if the method has no g.
        forecast_logits: (B, C), log zeta; None where log g is.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    aggregator_logits: Tensor | None = None
    forecast_logits: Tensor | None = None

    @property
    def log_h(self) -> Tensor:
        """(B, C), log-probabilities of the classifier, in float32 or wider."""
        return widen(cast(Tensor, self.logits)).log_softmax(dim=-1)
