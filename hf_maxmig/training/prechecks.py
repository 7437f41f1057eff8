"""Checks before a training of what would otherwise fail only after hours, or go unnoticed.

`refusals.py` checks the arguments by themselves; this file checks them with the model, the data and the devices.
"""

import copy
import math
from typing import Any

from torch.utils.data import IterableDataset
from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.utils import logging

from ..data.columns import crowd_names
from ..data.numbered import check_first
from ..model.class_lists import differences, listed
from ..model.modeling_maxmig import CrowdModel
from ..model.surgery import adapter_layers, output_layers
from .cross_fit import LEAST_STEPS
from .refusals import check_metric
from .training_args import MaxMIGTrainingArguments
from .vote_tables import vote_tables

logger = logging.get_logger(__name__)


# The gain selects the epoch if the user has set none of these: see `MaxMIGTrainingArguments.select_by_gain`.
LEFT_OPEN = (
    "eval_strategy", "save_strategy", "save_steps", "save_total_limit", "save_only_model", "load_best_model_at_end",
    "metric_for_best_model",
)  # fmt: skip


def settled(args: MaxMIGTrainingArguments, dataset: Any) -> MaxMIGTrainingArguments:
    """Fill in what the arguments leave open.

    Args:
        args: as the user gave them; never changed, for the user may give them to another trainer.
        dataset: the training set.

    Returns:
        The same arguments, or a changed copy.
    """
    if args.num_train_epochs is None:
        args = copy.copy(args)
        sized = dataset is not None and hasattr(dataset, "__len__")
        args.num_train_epochs = args.epochs_for(len(dataset) if sized else None)
    if args.dataloader_persistent_workers:
        logger.warning_once(
            "`dataloader_persistent_workers` is ignored: checkpoints do not hold the random states of workers "
            "that outlive an epoch, so a resumed training would end with other weights."
        )
        args = copy.copy(args)
        args.dataloader_persistent_workers = False
    return args


def selected_by_gain(args: MaxMIGTrainingArguments) -> MaxMIGTrainingArguments:
    """Let the gain on the evaluation set select the epoch, if the arguments leave that open.

    Args:
        args: as the user gave them.

    Returns:
        A copy that evaluates and saves each epoch; the same arguments if any of `LEFT_OPEN` is set.
    """
    defaults = TrainingArguments.__dataclass_fields__
    if any(getattr(args, name) != defaults[name].default for name in LEFT_OPEN):
        return args
    args = copy.copy(args)
    args.eval_strategy = IntervalStrategy.EPOCH
    args.save_strategy = SaveStrategy.EPOCH
    args.save_total_limit = 1
    args.load_best_model_at_end = True
    args.metric_for_best_model = "gain"
    args.greater_is_better = True
    logger.info(
        "The evaluation set has votes: each epoch is evaluated and saved, and training ends with "
        "the one whose gain on it is highest. `select_by_gain=False` turns this off."
    )
    return args


def short_arguments(
    args: MaxMIGTrainingArguments, num_items: int, share: float, seed: int | None = None
) -> MaxMIGTrainingArguments:
    """Make the arguments of a short, silent training before the training itself; it writes no files.

    Args:
        args: of the training itself.
        num_items: how many items the short training has.
        share: of the training's epochs or steps; at least an epoch or `LEAST_STEPS`.
        seed: of the batches and of dropout; that of the training by default.

    Example:
        >>> args = MaxMIGTrainingArguments("out", num_train_epochs=50, use_cpu=True, report_to="none")
        >>> short_arguments(args, num_items=10_000, share=0.1).num_train_epochs
        5.0
    """
    args = copy.copy(args)
    # At least an epoch of few items; of many, enough steps to learn something.
    steps = math.ceil(num_items / (args.train_batch_size * args.world_size))
    least = min(1.0, LEAST_STEPS * args.gradient_accumulation_steps / steps)
    args.num_train_epochs = max(least, share * (args.num_train_epochs or 1.0))
    args.max_steps = -1 if args.max_steps < 0 else math.ceil(share * args.max_steps)
    args.eval_strategy = args.save_strategy = args.logging_strategy = "no"
    args.load_best_model_at_end = args.push_to_hub = args.name_classes = args.guards = False
    args.use_gold_labels = False
    args.report_to, args.disable_tqdm, args.init = [], True, "keep"
    args.eval_on_start, args.skip_memory_metrics = False, True
    args.neftune_noise_alpha = None  # a copy of the model already has this training's noise
    args.seed = args.seed if seed is None else seed
    return args


def check_devices(
    args: MaxMIGTrainingArguments,
    model: CrowdModel,
    accelerator: Any,
    dataset: Any,
    fsdp: bool,
    deepspeed: bool,
) -> None:
    """Raise if the arguments ask for what several devices cannot do.

    Args:
        args: of the training.
        model: what is trained.
        accelerator: that of the trainer.
        dataset: the evaluation set, or a dictionary of them.
        fsdp: whether FSDP spreads the parameters.
        deepspeed: whether DeepSpeed does.

    Raises:
        ValueError: if devices are to share the items of a batch, if several devices are to evaluate a
            stream, or if adapters or tables of votes are to be spread.
    """
    ways = getattr(accelerator, "parallelism_config", None)
    if ways is not None and ways.non_data_parallel_size > 1:
        raise ValueError(
            "`parallelism_config` must only divide the items among devices, got devices that share the items of one "
            f"batch ({ways.non_data_parallel_size} each): an item would be compared with itself. Use FSDP for a large "
            "model."
        )
    for part in dataset.values() if isinstance(dataset, dict) else [dataset]:
        check_can_evaluate(args, part)
    if args.fsdp and args.world_size > 1 and not fsdp:
        logger.warning_once(
            "`fsdp` is ignored: accelerate does not spread parameters over processes without accelerators."
        )
    if vote_tables(model) and (fsdp or deepspeed):
        raise ValueError(
            f"{model.method} must be whole on each device, got FSDP or DeepSpeed: it learns something about each vote, "
            "which is no part of the saved model. Leave `fsdp` and `deepspeed` off."
        )
    if not adapter_layers(model):
        return
    if fsdp or deepspeed:
        raise ValueError(
            "a classifier with adapters must be whole on each device, got FSDP or DeepSpeed: adapters are merged "
            "when the model is saved. Leave `fsdp` and `deepspeed` off."
        )
    outputs = output_layers(model.classifier, model.config.num_labels)
    if outputs and not any(layer.weight.requires_grad for layer in outputs):
        logger.warning_once(
            "The classifier's output layer is frozen: name it in `modules_to_save` of the adapter's config."
        )


def check_can_evaluate(args: MaxMIGTrainingArguments, dataset: Any) -> None:
    """Raise if a stream is to be evaluated on several devices.

    Args:
        args: of the training.
        dataset: to be evaluated.

    Raises:
        ValueError: if it is a stream and there are several devices.
    """
    if isinstance(dataset, IterableDataset) and args.world_size > 1:
        raise ValueError(
            f"a stream must be evaluated on one device, got {args.world_size}: accelerate would fill up the "
            "last batch with items of the first. Give a `datasets.Dataset`, such as "
            "`Dataset.from_list(list(stream.take(1000)), features=stream.features)`."
        )


def check_training(
    args: MaxMIGTrainingArguments, model: CrowdModel, dataset: Any, held_out: Any, own_metrics: bool
) -> None:
    """Raise if arguments, model and data do not go together.

    Args:
        args: of the training.
        model: what is trained.
        dataset: the training set.
        held_out: the evaluation set, or a dictionary of them.
        own_metrics: whether the user adds metrics.

    Raises:
        ValueError: if batches are too small, if no evaluation has the metric of the arguments, or if
            the training set does not have their column of lengths.
    """
    items = args.train_batch_size * (args.world_size if args.gather_across_devices else 1)
    if items < model.least_items:
        raise ValueError(
            f"`per_device_train_batch_size` must be {model.least_items} or more for {model.method}, got "
            f"{args.per_device_train_batch_size}: it compares the items of a batch."
        )
    if not own_metrics and not isinstance(held_out, dict):
        check_metric(args, model.loss_is_minus_gain)
    columns = getattr(dataset, "column_names", None) or ()
    named = args.length_column_name
    if (
        args.train_sampling_strategy in ("group_by_length", "batch_rebalance")
        and named != TrainingArguments.__dataclass_fields__["length_column_name"].default
        and named not in columns
    ):
        raise ValueError(
            f"`length_column_name` must be a column of the training set, got {named!r}: it has "
            f"{', '.join(columns) or 'none'}."
        )


def check_items(dataset: Any, held_out: Any, collate: Any) -> None:
    """Read the first item of each data set, so that an error in every item shows at once.

    Args:
        dataset: the training set.
        held_out: the evaluation set, or a dictionary of them.
        collate: the collator.

    Raises:
        ValueError, OSError, TypeError or ImportError: as reading and collating do.
    """
    parts = held_out.values() if isinstance(held_out, dict) else [held_out]
    for part in (dataset, *parts):
        check_first(part, collate)


def check_names(model: CrowdModel, known: list[str] | None, dataset: Any) -> None:
    """Raise unless a data set's names are the model's: its annotator 7 must be the model's annotator 7.

    Args:
        model: the model whose classes are compared.
        known: the names of its annotators, if they have any.
        dataset: any data set; one without names passes.

    Raises:
        ValueError: if its annotators or its classes are not the model's, in the model's order.
    """
    annotators, classes = crowd_names(dataset)
    config = model.config
    if annotators is not None and known is not None and annotators != known:
        new = sorted(set(annotators) - set(known))
        raise ValueError(
            f"the data set's annotators must be those of the model, in its order, got {len(annotators)} for "
            f"{config.num_annotators}, {len(new)} of them unknown ({', '.join(new[:3]) or 'none'}): use "
            "`align_annotators(dataset, model.config.annotators)`."
        )
    if classes is not None and classes != config.class_names:
        raise ValueError(
            f"the data set's classes must be those of the model, {listed(config.class_names)}, got "
            f"{differences(classes, config.class_names)}: give `add_annotations` the model's `classes`."
        )
