"""Make sure that a wrapped classifier loads as the same one: its class, layers, number type and frozen parts.

`MaxMIGConfig` stores these facts. This module finds them, uses them to build the classifier, and checks
them before a training.
"""

import dataclasses
import inspect
import os
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import ModelOutput, logging

from .classifiers import CLASSIFIERS
from .config_checks import refusing
from .structures import built_bare, differences, shortened, structure_of
from .surgery import adapter_layers, without_peft_model
from .timm_models import wrapped_timm_model

logger = logging.get_logger(__name__)

AUTO_CLASSES = {
    "image-classification": AutoModelForImageClassification,
    "text-classification": AutoModelForSequenceClassification,
    "audio-classification": AutoModelForAudioClassification,
    # No Auto class is for tables alone.
    "tabular-classification": AutoModel,
}


def as_hub_classifier(classifier: nn.Module) -> PreTrainedModel:
    """Return a classifier of transformers; a timm model is put into a wrapper.

    Args:
        classifier: of transformers, of timm, or the user's own, registered.

    Returns:
        The classifier itself, or a wrapper around the timm model itself.

    Raises:
        TypeError: if it is none of these.
        ValueError: if a timm model would load as another one.
    """
    classifier = without_peft_model(classifier)
    if isinstance(classifier, PreTrainedModel):
        return classifier
    if (getattr(classifier, "pretrained_cfg", None) or {}).get("architecture") is not None:
        return wrapped_timm_model(classifier)
    raise TypeError(
        f"`classifier` must be a classifier of transformers or timm, got {type(classifier).__name__}: make it a "
        "subclass of `transformers.PreTrainedModel` whose output has `logits`, and register that: "
        f"{_how_to_register('MyConfig', 'MyModel')}."
    )


def task_and_class(classifier: PreTrainedModel) -> tuple[str, str | None]:
    """Find the pipeline task whose Auto class builds this classifier, and which of its classes it is.

    Args:
        classifier: of transformers, or registered.

    Returns:
        The task; the class's name, or None if the Auto class by itself builds that one.

    Raises:
        TypeError: if no Auto class for classification builds just this class.
    """
    own, config = type(classifier), classifier.config
    for _, model in CLASSIFIERS.values():
        if own is model:
            return model.task, None
    parents = []
    for task in AUTO_CLASSES:
        classes = _classes(task, type(config))
        if own in classes:
            if _known_config(config.model_type) is not type(config):
                raise TypeError(
                    f"`classifier` must have a config that is registered with AutoConfig, got {own.__name__} with "
                    f"{type(config).__name__} of `model_type` {config.model_type!r}: "
                    f"`AutoConfig.register({config.model_type!r}, {type(config).__name__})`, with a `model_type` "
                    "that transformers does not have."
                )
            _check_output(own)
            return task, None if own is classes[0] else own.__name__
        parents += [kind.__name__ for kind in classes if issubclass(own, kind)]
    if parents:
        raise TypeError(
            f"`classifier` must be of a class that an Auto class builds, got {own.__name__}: it would come back as "
            f"{parents[0]}. Give it a config of its own `model_type` and register both: "
            f"{_how_to_register('MyConfig', own.__name__)}."
        )
    if own.__module__.startswith("transformers."):
        names = ", ".join(a.__name__ for a in AUTO_CLASSES.values() if a is not AutoModel)
        raise TypeError(
            f"`classifier` must be a model for one of {', '.join(AUTO_CLASSES)}, got {own.__name__}: load it with one "
            f"of {names}, and `num_labels=C`."
        )
    raise TypeError(
        f"`classifier` must be a model for one of {', '.join(AUTO_CLASSES)}, got {own.__name__}, which no Auto class "
        f"builds: register it, {_how_to_register(type(config).__name__, own.__name__)}, before it is wrapped "
        "and before the model is loaded again."
    )


def build_classifier(config: PreTrainedConfig) -> PreTrainedModel:
    """Build h, without weights, from the config of a crowd model.

    Args:
        config: of the crowd model.

    Returns:
        The classifier, with the layers frozen that the config lists.

    Raises:
        ValueError: if the task is unknown, it has no such class, or such a classifier cannot be built.
    """
    inner: Any = config.classifier_config
    if inner.model_type in CLASSIFIERS:
        kind: Any = CLASSIFIERS[inner.model_type][1]
    else:
        kind = _class_of(config, inner)
    with refusing(f"`classifier_config` must describe a {kind.__name__} that can be built"):
        if torch.get_default_device().type != "meta":
            with built_bare():
                check_fits(kind._from_config(inner))
        classifier = kind._from_config(inner)
    freeze(classifier, config.frozen or ())
    return classifier


def check_fits(network: nn.Module) -> None:
    """Check that a network, which may have no memory yet, fits into the machine's memory.

    Raises:
        ValueError: if it does not.
    """
    needed = sum(tensor.numel() * tensor.element_size() for tensor in network.parameters())
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else needed  # fmt: skip
    if needed > there:
        raise ValueError(
            f"{type(network).__name__} must fit into the machine's memory of {there:,} bytes, got {needed:,}: the "
            "sizes in its config are wrong, or load it on a larger machine."
        )


def _class_of(config: Any, inner: PreTrainedConfig) -> Any:
    if config.classifier_task not in AUTO_CLASSES:
        raise ValueError(
            f"`classifier_task` must be one of {', '.join(AUTO_CLASSES)}, got {config.classifier_task!r}."
        )
    classes = _classes(config.classifier_task, type(inner))
    if not classes:
        raise ValueError(
            f"`classifier_config` must be of a model for {config.classifier_task}, got {type(inner).__name__}."
        )
    named = {kind.__name__: kind for kind in classes}
    wanted = config.classifier_class or classes[0].__name__
    if wanted not in named:
        raise ValueError(
            f"`classifier_class` must be one of {', '.join(named)} for {type(inner).__name__}, got {wanted!r}."
        )
    return named[wanted]


def check_comes_back(classifier: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Check that the config builds the same layers as the classifier has, and that its weights have one type.

    Nothing is computed: the built network has no memory for its weights.

    Args:
        classifier: h.
        config: of the crowd model around it, as it is read from the disk.

    Raises:
        ValueError: if anything differs.
    """
    if getattr(classifier, "is_quantized", False):
        return  # its layers are made when it is loaded
    with built_bare():
        built = build_classifier(config)
    left = differences(structure_of(classifier), structure_of(built))
    if left:
        raise ValueError(
            f"`classifier` must be what its config builds, got {type(classifier).__name__} which would come back as "
            f"another model ({shortened(left)}): say it in the config (`num_labels`, the rates of dropout), or make "
            "the change a class of its own and register it: "
            f"{_how_to_register('MyConfig', 'MyModel')}."
        )
    _check_one_type(classifier)


def _check_one_type(classifier: PreTrainedModel) -> None:
    """Refuse weights of several types, because all are loaded as one type."""
    kept = {
        *(getattr(classifier, "_keep_in_fp32_modules", None) or ()),
        *(getattr(classifier, "_keep_in_fp32_modules_strict", None) or ()),
    }
    adapted = tuple(f"{name}." for name in adapter_layers(classifier))
    types = {
        str(parameter.dtype).removeprefix("torch.")
        for name, parameter in classifier.named_parameters()
        if parameter.is_floating_point()
        and not (adapted and name.startswith(adapted))
        and not kept.intersection(name.split("."))
    }
    if len(types) > 1:
        raise ValueError(
            f"`classifier` must have weights of one type, got {' and '.join(sorted(types))}: they would come back as "
            "one. Bring them to one by `classifier.float()`."
        )


def frozen_layers(classifier: nn.Module) -> list[str]:
    """List the layers that are not trained, and single parameters of layers that are partly trained.

    Args:
        classifier: any classifier. With PEFT adapters the list is empty: they freeze the layers that
            they adapt, and are merged when it is saved.

    Returns:
        The names; together they cover exactly the parameters without gradient.

    Example:
        >>> network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        >>> _ = network[0].requires_grad_(False)
        >>> network[1].bias.requires_grad = False
        >>> frozen_layers(network)
        ['0', '1.bias']
    """
    if adapter_layers(classifier):
        return []
    names, stack = [], [("", classifier)]
    while stack:
        name, module = stack.pop()
        parameters = list(module.parameters())
        if name and parameters and not any(p.requires_grad for p in parameters):
            names.append(name)
            continue
        inside = f"{name}." if name else ""
        names += [inside + own for own, p in module.named_parameters(recurse=False) if not p.requires_grad]  # fmt: skip
        children = [(inside + child, m) for child, m in module.named_children()]
        stack.extend(reversed(children))
    return names


def freeze(classifier: nn.Module, names: list[str] | tuple[str, ...]) -> None:
    """Freeze layers and parameters by name, as `frozen_layers` lists them.

    Raises:
        ValueError: if the classifier has no layer or parameter of a name.
    """
    modules, parameters = dict(classifier.named_modules()), dict(classifier.named_parameters())
    for name in names:
        if name in modules:
            modules[name].requires_grad_(False)
        elif name in parameters:
            parameters[name].requires_grad_(False)
        else:
            raise ValueError(
                f"`frozen` must name layers or parameters of {type(classifier).__name__}, got {name!r}."
            )


def widen_for_training(model: nn.Module) -> None:
    """Convert a classifier or a crowd model in half precision to float32 before it is trained.

    Transformers loads a checkpoint in the type in which it was saved. A training step is too small for a
    precision of 8 or 11 bits, and torch's mixed precision for float16 needs wider weights.

    Args:
        model: the model. With PEFT adapters, or quantized, it stays as it is, because its trained
            parameters are float32 already.
    """
    half = {
        str(p.dtype).removeprefix("torch.")
        for p in model.parameters()
        if p.requires_grad and p.is_floating_point() and torch.finfo(p.dtype).bits < 32
    }
    inside: Any = getattr(model, "classifier", model)
    if not half or adapter_layers(model) or getattr(inside, "is_quantized", False):
        return
    model.float()
    for config in (getattr(part, "config", None) for part in (model, inside)):
        if isinstance(config, PreTrainedConfig):
            config.dtype = torch.float32
    logger.warning_once(
        "The classifier is in %s, as it was saved, and is trained in float32, which takes twice the memory; `bf16=True` "
        'still computes in half precision. `from_pretrained(..., dtype="float32")` loads it so.',
        " and ".join(sorted(half)),
    )


def _classes(task: str, config_class: type) -> list[Any]:
    """List the classes of a task's Auto class for a config; it builds the first one.

    Most of what is registered with `AutoModel` are encoders: a classifier of tables is a user's own, and takes
    `features`.
    """
    mapping = AUTO_CLASSES[task]._model_mapping
    if config_class not in mapping:
        return []
    classes = mapping[config_class]
    found = list(classes) if isinstance(classes, tuple | list) else [classes]
    if AUTO_CLASSES[task] is AutoModel:
        return [kind for kind in found if "features" in inspect.signature(kind.forward).parameters]
    return found


def _check_output(kind: Any) -> None:
    """Refuse a class whose annotated output has no logits."""
    output: Any = inspect.signature(kind.forward).return_annotation
    if isinstance(output, type) and issubclass(output, ModelOutput):
        fields: Any = output
        if "logits" not in [field.name for field in dataclasses.fields(fields)]:
            raise TypeError(
                f"`classifier` must give an output with `logits`, got {kind.__name__} which gives {output.__name__}."
            )


def _known_config(model_type: str) -> Any:
    try:
        return CONFIG_MAPPING[model_type]  # its `get` finds only configs that were used before
    except KeyError:
        return None


def _how_to_register(config: str, model: str) -> str:
    return (
        f"`AutoConfig.register('my_type', {config})` and `AutoModelForImageClassification.register({config}, {model})`"
        " (or the Auto class of text or audio; of tables, `AutoModel`)"
    )


__all__ = [
    "AUTO_CLASSES",
    "as_hub_classifier",
    "build_classifier",
    "check_comes_back",
    "freeze",
    "frozen_layers",
    "task_and_class",
    "widen_for_training",
]
