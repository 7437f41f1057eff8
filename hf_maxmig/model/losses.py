"""Losses of a batch: minus the gain, over all devices, of items or of their blends."""

import dataclasses
from collections.abc import Mapping
from typing import cast

from torch import Tensor

from .functional import Mixed, reward_and_penalty
from .outputs import Gather, MaxMIGOutput
from .votes import Votes


def minus_gain(
    outputs: MaxMIGOutput,
    batch: Mapping[str, Tensor],
    log_p: Tensor,
    divergence: str,
    least_items: int,
    gather: Gather,
    mixed: Mixed | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute minus the gain of a batch, without waiting for the device.

    Args:
        outputs: of `MaxMIGModel.forward` on this batch.
        batch: as in `CrowdModel.crowd_loss`.
        log_p: (C,), log of the class prior.
        divergence: a row of Table 1.
        least_items: with fewer annotated items than this there is nothing to compare.
        gather: as in `CrowdModel.crowd_loss`.
        mixed: how the inputs were blended, if they were, with partners numbered in the joined batch.

    Returns:
        The loss in nats, and whether it is empty: then it is zero, with zero gradient.
    """
    annotated = Votes.of(batch).annotated
    log_g = cast(Tensor, outputs.aggregator_logits)
    if "crowd_trusted" in batch:
        annotated = annotated | (batch["crowd_trusted"] != 0).any(dim=1)
        log_g = (log_g + batch["crowd_trusted"]).log_softmax(dim=-1)
    annotated = gather(annotated)
    log_h, log_g = gather(outputs.log_h), gather(log_g)
    reward, penalty = reward_and_penalty(log_h, log_g, log_p, divergence, annotated, mixed)
    empty = annotated.sum() < least_items
    return (penalty - reward) * ~empty, empty


def of_partners(
    outputs: MaxMIGOutput, batch: Mapping[str, Tensor], mixed: Mixed
) -> tuple[MaxMIGOutput, dict[str, Tensor]]:
    """Replace the votes on each item of a batch of blends by those on its partner.

    Args:
        outputs: of the blends.
        batch: of the items themselves.
        mixed: how they are blended.

    Returns:
        The classifier's outputs for the blends with the aggregator's logits of the partners, and the
        partners' batch.
    """
    log_g = outputs.aggregator_logits
    log_g = None if log_g is None else log_g[mixed.partner]
    others = {name: tensor[mixed.partner] for name, tensor in batch.items()}
    return dataclasses.replace(outputs, aggregator_logits=log_g, forecast_logits=None), others
