"""A batch: its posteriors, and its loss by the method or by the targets found before the training."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..data.collator import NOT_INPUTS, POSTERIOR_COLUMN, TRUSTED_COLUMN
from ..data.numbered import ROW
from ..metrics import NO_LABEL
from ..model.cross_entropy import against_targets
from ..model.functional import Mixed, Posteriors
from ..model.items import ALL_CROWD_COLUMNS
from ..model.mixup import blended_inputs, draw_blends
from ..model.modeling_maxmig import CrowdModel
from ..model.votes import Votes
from .gold import trusted_columns
from .known_items import KnownItems

Gather = Callable[[Tensor], Tensor]


def batch_loss(
    model: nn.Module,
    crowd_model: CrowdModel,
    inputs: dict[str, Any],
    known: KnownItems,
    mixup_alpha: float,
    gather: Gather,
) -> tuple[Tensor, Tensor, Any]:
    """Compute the loss of a batch over all devices; gold labels are set aside first.

    Args:
        model: the model to call.
        crowd_model: the same, without the wrappers of accelerate.
        inputs: of the batch.
        known: what is known of the training items.
        mixup_alpha: parameter of mixup; 0 for none.
        gather: joins a (B, ...) tensor over the devices, with gradient.

    Returns:
        The loss, whether there was nothing to learn from, and the model's outputs.

    Raises:
        ValueError: if the batch has no votes.
    """
    if not crowd_model.learns_from_gold_labels:
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
    if "annotations" not in inputs and not crowd_model.learns_from_gold_labels:
        raise ValueError(
            "a training batch must have `annotators` and `annotations`, got "
            f"{', '.join(inputs) or 'nothing'}: see `add_annotations`."
        )
    note_main_input(crowd_model, inputs)
    found, gold, beside = known.found, known.gold, {POSTERIOR_COLUMN, TRUSTED_COLUMN, ROW}
    if found is None and gold is not None and crowd_model.loss_is_minus_gain:
        columns = trusted_columns(known.rows_of(gold, inputs[ROW]), crowd_model.config.num_labels)
        inputs[TRUSTED_COLUMN] = columns
    if found is not None:
        beside |= {*ALL_CROWD_COLUMNS}  # the targets include the votes
    given = {n: value for n, value in inputs.items() if n not in beside}
    mixed = _blends(crowd_model, inputs, known, mixup_alpha, gather) if mixup_alpha else None
    if mixed is not None:
        read = {n: value for n, value in given.items() if n not in NOT_INPUTS}
        given |= blended_inputs(read, mixed)
    outputs = model(**given)
    if found is not None:
        targets = known.rows_of(found.targets, inputs[ROW]).to(outputs.log_h)
        targets = targets if mixed is None else mixed.blend(targets)
        return *against_targets(outputs.log_h, targets, gather), outputs
    if mixed is not None:
        crowd = {n: value for n, value in inputs.items() if n in NOT_INPUTS}
        return *crowd_model.blended_loss(outputs, crowd, mixed, gather), outputs
    return *crowd_model.crowd_loss(outputs, inputs, gather), outputs


def _blends(
    model: CrowdModel, inputs: dict[str, Any], known: KnownItems, alpha: float, gather: Gather
) -> Mixed:
    """Draw the partners of a batch's items, and a share that is the same on all devices."""
    if model.learns_from_gold_labels and "labels" in inputs:
        taught = inputs["labels"] != NO_LABEL
    else:
        taught = Votes.of(inputs).annotated
        if known.gold is not None:
            taught |= known.rows_of(known.gold, inputs[ROW]) >= 0
    mixed = draw_blends(taught, alpha)
    return mixed._replace(share=gather(mixed.share.repeat(len(taught)))[0])


def note_main_input(model: CrowdModel, inputs: dict[str, Any]) -> None:
    """Let `Trainer` count and pass on the inputs that batches have, such as features instead of pictures.

    Args:
        model: if its main input is not in the batch, the first input of the batch becomes it.
        inputs: of the batch.
    """
    if model.main_input_name not in inputs:
        own = (name for name in inputs if name not in NOT_INPUTS)
        model.main_input_name = next(own, model.main_input_name)


def batch_posteriors(
    model: CrowdModel, outputs: Any, inputs: dict[str, Any]
) -> tuple[Posteriors, Tensor]:
    """Return the three posteriors of a batch.

    Args:
        model: the model.
        outputs: its outputs for the batch.
        inputs: of the batch.

    Returns:
        The posteriors, and (B,) bool, which items have a g. Without annotations, or if the method has no
        g, the prior stands for g, and the forecast is h.
    """
    log_h, log_g = outputs.log_h, outputs.aggregator_logits
    if log_g is None:
        log_g = model.log_prior().expand_as(log_h).contiguous()
        return Posteriors(log_h, log_g, log_h), log_h.new_zeros(len(log_h), dtype=torch.bool)
    annotated = Votes.of(inputs).annotated
    return Posteriors(log_h, log_g, outputs.forecast_logits), annotated
