"""The trainer's model: a classifier of transformers or timm is wrapped in a crowd model."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..data.class_order import align_outputs
from ..data.collator import CrowdCollator, input_names
from ..data.columns import crowd_names
from ..data.numbered import few_inputs
from ..model.modeling_maxmig import MaxMIGModel
from ..model.surgery import without_peft_model
from ..model.wrapping import as_hub_classifier, widen_for_training
from .refusals import check_model
from .training_args import MaxMIGTrainingArguments

AsCrowdModel = Callable[[nn.Module, MaxMIGTrainingArguments, Any], PreTrainedModel]


def is_crowd_model(model: nn.Module) -> bool:
    """Tell whether a model is a crowd model and not a plain classifier."""
    return hasattr(model, "crowd_loss")


def made_ready(
    model: nn.Module,
    args: MaxMIGTrainingArguments,
    train_dataset: Any,
    start_from: Any,
    collate: Callable[[list[dict[str, Any]]], dict[str, Tensor]] | None,
    processor: Any,
    as_crowd_model: AsCrowdModel,
) -> PreTrainedModel:
    """Make a crowd model of what the trainer was given, ready to be trained.

    Args:
        model: a crowd model, or a classifier of transformers or timm, which may have adapters.
        args: the training arguments.
        train_dataset: the data set whose features name annotators and classes; None if nothing is trained.
        start_from: the data set that names them if the training set is a stream without names.
        collate: the user's collator, if there is one.
        processor: the processor of the items.
        as_crowd_model: wraps a plain classifier, or refuses it.

    Raises:
        TypeError: if adapters are around a whole crowd model.
        ValueError: as in `check_model`, and as wrapping raises it.
    """
    whole = is_crowd_model(model)
    # A stream that was mapped has often lost its features.
    named = start_from if None in crowd_names(train_dataset) else train_dataset
    plain = without_peft_model(model)
    if plain is not model and whole:
        raise TypeError(
            "adapters must be put around the classifier, got them around a whole model, whose aggregator they "
            "would freeze: make the model from `get_peft_model(classifier, ...)`."
        )
    if train_dataset is not None:
        widen_for_training(plain)
    annotators, classes = crowd_names(named)
    if not whole and hasattr(plain, "pretrained_cfg"):
        plain = as_hub_classifier(plain)
    if not whole and classes is not None and isinstance(plain, PreTrainedModel):
        collator = collate or CrowdCollator(
            len(annotators or ()), len(classes), processor, input_names(plain)
        )
        some = named if train_dataset is None else train_dataset
        align_outputs(plain, classes, lambda: few_inputs(some, collator, plain.device))
    pair = as_crowd_model(plain, args, named)
    check_model(args, pair)
    return pair


def wrap_classifier(
    model: nn.Module, args: MaxMIGTrainingArguments, dataset: Any
) -> PreTrainedModel:
    """Wrap a plain classifier in a Max-MIG model, with the names that the data set's features carry.

    Args:
        model: the classifier; a crowd model stays as it is.
        args: the training arguments, which choose divergence, prior and aggregator.
        dataset: a data set with crowd columns.

    Raises:
        ValueError: if the features do not name annotators and classes; or if the model is a crowd
            model and `args` ask for another divergence, prior or aggregator than its own.
    """
    if is_crowd_model(model):
        _check_built_in(model, args)
        return model
    annotators, classes = crowd_names(dataset)
    if annotators is None or classes is None:
        raise ValueError(
            "`train_dataset` must name annotators and classes in its features (see "
            "`add_annotations` and `crowd_features`) for a plain classifier to be wrapped; or "
            "pass a `MaxMIGModel`."
        )
    return MaxMIGModel.from_classifier(
        model,
        annotators=annotators,
        id2label=dict(enumerate(classes)),
        divergence=args.divergence,
        prior=args.prior_value,
        aggregator=args.aggregator,
    )


def _check_built_in(model: PreTrainedModel, args: MaxMIGTrainingArguments) -> None:
    for name, value in (
        ("divergence", args.divergence),
        ("prior", args.prior_value),
        ("aggregator", args.aggregator),
    ):
        own = getattr(model.config, name, value)
        default = MaxMIGTrainingArguments.__dataclass_fields__[name].default
        if getattr(args, name) != default and value != own:
            raise ValueError(
                f"`{name}` must be that of the model, {own!r}, got {value!r}: it is built into a "
                "crowd model, give it to `from_classifier`."
            )
