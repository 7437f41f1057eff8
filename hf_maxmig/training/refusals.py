"""Arguments that are refused, each with its reason: an argument without effect raises instead of being ignored.

`docs/training_arguments.md` lists every field of `TrainingArguments`: those that work, those that are
refused here, and those that have no bearing on crowd labels.
"""

import math
import os
import re
from typing import Any

from transformers.training_args import OptimizerNames
from transformers.utils import logging

from ..model.heads import FeatureHead

logger = logging.get_logger(__name__)

# Must stay at one value.
FIXED: dict[str, tuple[Any, str]] = {
    "remove_unused_columns": (False, "the collator needs the crowd's columns"),
    "prediction_loss_only": (
        False,
        "the gain is computed over the whole set, from all predictions",
    ),
    "batch_eval_metrics": (False, "the gain is computed over the whole set, not per batch"),
    "eval_do_concat_batches": (True, "the gain is computed over the whole set, not per batch"),
    "eval_use_gather_object": (False, "predictions are tensors and gathered as such"),
    "use_liger_kernel": (False, "Liger has kernels for language models, none for crowd models"),
    "liger_kernel_config": (None, "Liger has kernels for language models, none for crowd models"),
    "label_smoothing_factor": (0.0, "gold labels never reach the loss"),
}
# Limits of the numbers that are given: (least, whether the least itself is allowed, below what).
_NUMBERS: dict[str, tuple[float, bool, float]] = {
    "learning_rate": (0.0, True, math.inf),
    "aggregator_learning_rate": (0.0, False, math.inf),
    "smoothing": (0.0, False, math.inf),
    "init_strength": (0.0, False, math.inf),
    "mixup_alpha": (0.0, True, math.inf),
    "weight_decay": (0.0, True, math.inf),
    "adam_beta1": (0.0, True, 1.0),
    "adam_beta2": (0.0, True, 1.0),
    "adam_epsilon": (0.0, False, math.inf),
    "neftune_noise_alpha": (0.0, False, math.inf),
    "num_train_epochs": (0.0, True, math.inf),
    "warmup_steps": (0.0, True, math.inf),
    "per_device_train_batch_size": (1, True, math.inf),
    "per_device_eval_batch_size": (1, True, math.inf),
    "gradient_accumulation_steps": (1, True, math.inf),
    "eval_accumulation_steps": (1, True, math.inf),
    "seed": (0, True, 2**32),
    "data_seed": (0, True, 2**64),
}
_COUNTS = {name for name, (least, _, _) in _NUMBERS.items() if isinstance(least, int)}
# They update each parameter while the gradients are computed, all at one rate.
_AT_ONE_RATE = {
    name
    for name in OptimizerNames
    if "lomo" in name.value or name.value.endswith("_layerwise") or "apollo" in name.value
}
_NEEDS_TARGETS = {name for name in OptimizerNames if "galore" in name.value}
# Keys of `optim_args` that each optimizer reads; it ignores all others silently.
_OPTIM_ARGS: dict[str, set[str]] = {
    "adamw_torch": set(),
    "adamw_torch_fused": set(),
    "adafactor": set(),
    "sgd": {"momentum", "dampening", "weight_decay", "nesterov"},
    "adagrad": {"lr_decay", "weight_decay", "eps"},
    "rmsprop": {"momentum", "alpha", "eps", "weight_decay", "centered"},
}
_SCHEDULES = {  # and the keywords of which each needs one
    "cosine_with_min_lr": ("min_lr", "min_lr_rate"),
    "cosine_warmup_with_min_lr": ("min_lr", "min_lr_rate"),
    "warmup_stable_decay": ("num_decay_steps",),
}
_BY_METRIC = ("reduce_lr_on_plateau", "greedy")
_METRICS = (
    "gain", "gain_ceiling", "gain_low", "gain_high", "accuracy", "aggregator_accuracy", "forecast_accuracy",
)  # fmt: skip
_TIMES = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
_SAMPLERS = ("random", "sequential", "group_by_length", "batch_rebalance")
_GOLD = {"label", "labels"}


def refuse_as_given(args: Any) -> None:
    """Raise for arguments at which `TrainingArguments` would fail with an error that does not name them.

    Args:
        args: the arguments, before they are converted.

    Raises:
        ValueError: for the first such argument.
    """
    if args.ddp_backend is not None and "WORLD_SIZE" not in os.environ:
        raise ValueError(
            f"`ddp_backend` must be left out for a single process, got {args.ddp_backend!r}: start several, with "
            "`accelerate launch` or `torchrun`."
        )
    if args.optim_args and not all(
        re.fullmatch(r"[^=,]+=[^=,]+", part) for part in args.optim_args.replace(" ", "").split(",")
    ):
        raise ValueError(
            f"`optim_args` must be `name=value`, several separated by commas, got {args.optim_args!r}."
        )


def refuse(args: Any) -> None:
    """Raise for arguments that do not go with crowd labels, or that would be ignored silently.

    Args:
        args: the arguments, or those that a search over hyperparameters has set.

    Raises:
        ValueError: for the first such argument.

    Example:
        >>> from hf_maxmig import MaxMIGTrainingArguments
        >>> MaxMIGTrainingArguments("out", batch_eval_metrics=True, report_to="none", use_cpu=True)
        Traceback (most recent call last):
        ...
        ValueError: `batch_eval_metrics` must be False, got True: the gain is computed over the whole set, not per batch.
    """
    for name, (value, why) in FIXED.items():
        if getattr(args, name) != value:
            raise ValueError(f"`{name}` must be {value}, got {getattr(args, name)}: {why}.")
    for name, limits in _NUMBERS.items():
        _refuse_number(name, getattr(args, name), *limits)
    if not 0 <= args.aggregator_warmup_ratio <= 1:
        raise ValueError(
            f"`aggregator_warmup_ratio` must lie in 0..1, got {args.aggregator_warmup_ratio}."
        )
    if not args.max_grad_norm >= 0:
        raise ValueError(
            f"`max_grad_norm` must be 0, for none, or more, got {args.max_grad_norm}: no gradient would be clipped."
        )
    if args.max_steps == 0:
        raise ValueError("`max_steps` must be 1 or more, or -1 for `num_train_epochs`, got 0.")
    _refuse_schedule(args)
    _refuse_optimizer(args)
    _refuse_data(args)
    if any(getattr(option, "value", option) == "tpu_metrics_debug" for option in args.debug):
        raise ValueError(
            "`debug` must not contain 'tpu_metrics_debug', got it: crowd models are not trained on TPUs."
        )
    if "loss" in args.include_for_metrics:
        raise ValueError(
            "`include_for_metrics` must not contain 'loss', got it: the loss is minus the gain of the whole set, and "
            "single items have none."
        )
    if args.init == "information" and (args.fsdp or args.deepspeed):
        raise ValueError(
            "`init` must be 'vote_share' or 'keep' with FSDP or DeepSpeed, got 'information': it "
            "trains copies of the classifier."
        )
    if args.fp16 and args.device.type == "cpu":
        logger.warning_once(
            "`fp16` has no effect on a CPU: the training is in float32. `bf16` works there."
        )


def check_metric(args: Any, loss_is_minus_gain: bool) -> None:
    """Check `metric_for_best_model` before a training, not at its first evaluation.

    Args:
        args: the arguments.
        loss_is_minus_gain: whether evaluations have a loss.

    Raises:
        ValueError: if evaluations do not have that metric.
    """
    name = args.metric_for_best_model
    if name is None or getattr(args.eval_strategy, "value", args.eval_strategy) == "no":
        return
    known = [*_METRICS, *(["loss"] if loss_is_minus_gain else [])]
    if name.removeprefix("eval_") not in (*known, *_TIMES):
        raise ValueError(
            f"`metric_for_best_model` must be one of {', '.join(known)}, got {name!r}."
        )


def check_model(args: Any, model: Any) -> None:
    """Check before the training that the model can do what the arguments ask for.

    Args:
        args: the arguments.
        model: the crowd model.

    Raises:
        ValueError: if mixup is on and the classifier reads words or the method takes no blends; if the
            classifier has no word embeddings for NEFTune; or if it cannot recompute its activations.
    """
    kind = type(model.classifier).__name__
    reads_words = model.main_input_name == "input_ids"
    if args.mixup_alpha and reads_words and not isinstance(model.classifier, FeatureHead):
        raise ValueError(
            f"`mixup_alpha` must be 0 for {kind}, got {args.mixup_alpha}: it reads token numbers, which cannot be blended."
        )
    if args.mixup_alpha and not model.takes_blends:
        raise ValueError(
            f"`mixup_alpha` must be 0 for {model.method}, got {args.mixup_alpha}: its loss of an item depends on the "
            "item's own annotators, or it blends votes itself, so two items cannot be blended."
        )
    if args.neftune_noise_alpha is not None and model.get_input_embeddings() is None:
        raise ValueError(
            f"`neftune_noise_alpha` must be left out for {kind}, got {args.neftune_noise_alpha}: it has no word embeddings "
            "to add noise to."
        )
    if args.activation_checkpointing and not model.supports_gradient_checkpointing:
        raise ValueError(
            f"`activation_checkpointing` must be left out for {kind}, got True: it cannot recompute its activations."
        )


def _refuse_number(name: str, value: Any, least: float, itself: bool, below: float) -> None:
    if value is None:
        return
    right = value >= least if itself else value > least
    if name in _COUNTS and value != int(value):
        right = False
    if right and value < below:
        return
    if name in _COUNTS:
        wanted = "a whole number, 1 or more" if least else f"a whole number in 0..{below - 1}"
    elif below == 1:
        wanted = "in 0..1 and below 1"
    else:
        wanted = "finite, 0 or more" if itself else "positive and finite"
    raise ValueError(f"`{name}` must be {wanted}, got {value}.")


def _refuse_schedule(args: Any) -> None:
    kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    given = {} if args.lr_scheduler_kwargs is None else args.lr_scheduler_kwargs
    if not isinstance(given, dict):
        raise ValueError(f"`lr_scheduler_kwargs` must be a dictionary, got {given!r}.")
    needed = _SCHEDULES.get(kind)
    if needed is not None and not set(needed) & set(given):
        raise ValueError(
            f"`lr_scheduler_kwargs` must have {' or '.join(map(repr, needed))} with lr_scheduler_type={kind!r}, got "
            f"{given or 'none'}."
        )
    if kind in _BY_METRIC and args.aggregator_warmup_ratio:
        logger.warning_once(
            "`aggregator_warmup_ratio` has no effect with lr_scheduler_type=%r, which follows a metric: the rate of W "
            "does not rise from zero.",
            kind,
        )


def schedule_settings(args: Any) -> dict[str, Any] | None:
    """Set the direction of a schedule that follows a metric, and let it compare absolute differences.

    By default PyTorch takes a lower metric for the better one and compares relative differences. Under
    a negative loss, such as minus a gain, no change would then count as an improvement.

    Args:
        args: the arguments; settings of the user's stay.

    Returns:
        `lr_scheduler_kwargs` with these settings.
    """
    kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    given: dict[str, Any] | None = args.lr_scheduler_kwargs
    if kind not in _BY_METRIC:
        return given
    mode = "max" if args.greater_is_better else "min"
    return {"mode": mode, "threshold_mode": "abs", **(given or {})}


def _refuse_optimizer(args: Any) -> None:
    if args.optim in _AT_ONE_RATE:
        raise ValueError(
            f"`optim` must be an optimizer with groups of parameters, got {args.optim.value!r}: it has one rate for all "
            "parameters, and the aggregator needs its own."
        )
    given = (args.optim_args or "").replace(" ", "")
    names = {part.partition("=")[0] for part in given.split(",")} if given else set()
    reads = _OPTIM_ARGS.get(args.optim.value)
    if reads is not None and not names <= reads:
        raise ValueError(
            f"`optim_args` must be of {', '.join(sorted(reads)) or 'nothing'} with optim={args.optim.value!r}, got "
            f"{', '.join(sorted(names - reads))}: it would not be read."
        )
    if args.optim_target_modules is not None and args.optim not in _NEEDS_TARGETS:
        raise ValueError(
            f"`optim_target_modules` must be left out with optim={args.optim.value!r}, got {args.optim_target_modules!r}: "
            "only GaLore reads it."
        )


def _refuse_data(args: Any) -> None:
    if args.train_sampling_strategy not in _SAMPLERS:
        raise ValueError(
            f"`train_sampling_strategy` must be one of {', '.join(_SAMPLERS)}, got {args.train_sampling_strategy!r}."
        )
    if not set(args.label_names or ()) <= _GOLD:
        raise ValueError(
            f"`label_names` must be ['labels'], got {args.label_names}: gold labels are read from the column `label` or "
            "`labels`; rename it."
        )
    if args.dataloader_persistent_workers and not args.dataloader_num_workers:
        raise ValueError(
            "`dataloader_persistent_workers` must be False without `dataloader_num_workers`, got True."
        )
