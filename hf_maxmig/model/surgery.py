"""Surgery on any classifier: remove adapters; find, read and change the output layer.

All of it depends on a network's layers, not on its class. The effect on the logits is verified on a batch,
and a change without the intended effect is undone.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .heads import FeatureHead

Model = TypeVar("Model", bound=nn.Module)


def without_peft_model(model: Any) -> Any:
    """Take `PeftModel` off a classifier; its adapters stay inside.

    Args:
        model: any.

    Returns:
        The classifier of transformers inside a `PeftModel`; anything else as it is.

    Raises:
        TypeError: if the adapters are prompts in front of the classifier, not inside its layers.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> classifier = HeadClassifier(HeadConfig(input_size=5, num_labels=3))
        >>> without_peft_model(classifier) is classifier
        True
    """
    if not (hasattr(model, "get_base_model") and hasattr(model, "active_peft_config")):
        return model
    if model.active_peft_config.is_prompt_learning:
        raise TypeError(
            "adapters must be inside the classifier's layers, as those of LoRA are, got "
            f"{model.active_peft_config.peft_type.value}."
        )
    return model.get_base_model()


def adapter_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Find the layers that PEFT has replaced: adapted layers, and copies that are trained.

    Args:
        model: any.

    Returns:
        The outermost ones by name.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> adapter_layers(HeadClassifier(HeadConfig(input_size=5, num_labels=3)))
        {}
    """
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        adapted = hasattr(module, "base_layer") and hasattr(module, "merge")
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if not inside and (adapted or hasattr(module, "unload_and_optionally_merge_module")):
            found[name] = module
    return found


def merge_adapters(model: Model) -> Model:
    """Copy a model with the PEFT adapters merged into its layers; the copy does not need PEFT.

    Args:
        model: a classifier, or a crowd model; it stays as it is.

    Returns:
        The copy, whose layers are the usual ones.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> classifier = HeadClassifier(HeadConfig(input_size=5, num_labels=3))
        >>> [*merge_adapters(classifier).state_dict()] == [*classifier.state_dict()]
        True
    """
    merged = copy.deepcopy(model)
    for name, layer in adapter_layers(merged).items():
        unload: Any = getattr(layer, "unload_and_optionally_merge_module", None)
        if unload is not None:
            plain = unload(merge=True, safe_merge=True, adapter_names=None)
        else:
            adapted: Any = layer
            adapted.merge(safe_merge=True)
            plain = adapted.get_base_layer()
        merged.set_submodule(name, plain)
    for module in merged.modules():
        for name in ("peft_config", "_hf_peft_config_loaded"):
            vars(module).pop(name, None)
    return merged


def answer_in_words(classifier: nn.Module) -> dict[str, bool]:
    """Return the inputs to add so that a classifier names its outputs; some need none."""
    parameters = inspect.signature(classifier.forward).parameters.values()
    named = any(p.name == "return_dict" or p.kind is p.VAR_KEYWORD for p in parameters)
    return {"return_dict": True} if named else {}


def logits_of(
    classifier: nn.Module, inputs: Mapping[str, Any], asked: Mapping[str, bool] | None = None
) -> Tensor:
    """Run a classifier of transformers, or the user's own.

    Args:
        classifier: its output has `logits`.
        inputs: a batch for it.
        asked: the result of `answer_in_words`, computed by default; `torch.compile` cannot trace that.

    Returns:
        (B, C), the logits.

    Raises:
        TypeError: if its output has no logits of that shape.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> classifier = HeadClassifier(HeadConfig(input_size=5, num_labels=3))
        >>> logits_of(classifier, {"features": torch.zeros(2, 5)}).shape
        torch.Size([2, 3])
    """
    asked = answer_in_words(classifier) if asked is None else asked
    logits = getattr(classifier(**inputs, **asked), "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(
            f"`classifier` must give an output with `logits`, (B, C), got {found} of {type(classifier).__name__}."
        )
    return logits


def output_layers(classifier: nn.Module, num_classes: int) -> list[nn.Linear | nn.Conv2d]:
    """Find the layers that may compute the logits: linear or a convolution, with one output per class.

    Args:
        classifier: any.
        num_classes: C.

    Returns:
        The layers themselves, in their order: the last one is the output; models with two heads
        (distillation) have two.

    Example:
        >>> output_layers(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), num_classes=3)
        [Linear(in_features=4, out_features=3, bias=True)]
    """
    return [
        module
        for module in classifier.modules()
        if isinstance(module, nn.Linear | nn.Conv2d) and module.weight.shape[0] == num_classes
    ]


@torch.no_grad()
def reorder_outputs(classifier: nn.Module, order: Tensor, inputs: dict[str, Tensor]) -> bool:
    """Reorder a classifier's outputs in its own last layer, so that its native checkpoint has them too.

    Args:
        classifier: any; its output layer must be linear or a convolution.
        order: (C,) int64, output r becomes the former output `order[r]`.
        inputs: a batch to verify the effect on.

    Returns:
        Whether it worked. If not, the classifier is as before.
    """

    def reorder(layer: nn.Linear | nn.Conv2d) -> None:
        for parameter in _own_parameters(layer):
            parameter.copy_(parameter[order.to(parameter.device)].clone())

    def reordered(logits: Tensor, _: Sequence[nn.Linear | nn.Conv2d]) -> Tensor:
        return logits[:, order.to(logits.device)]

    return _change_outputs(classifier, len(order), inputs, reorder, reordered)


@torch.no_grad()
def scale_outputs(
    classifier: nn.Module, factor: float, shift: Tensor, inputs: dict[str, Tensor]
) -> bool:
    """Make a classifier less or more confident in its own last layer: logits times a factor, plus a shift.

    Args:
        classifier: any; its output layer must be linear or a convolution.
        factor: positive factor on the logits.
        shift: (C,), then added to the logits; left out where the layer has no bias.
        inputs: a batch to verify the effect on.

    Returns:
        Whether it worked. If not, the classifier is as before.
    """

    def scale(layer: nn.Linear | nn.Conv2d) -> None:
        for parameter in _own_parameters(layer):
            parameter.mul_(factor)
        if layer.bias is not None:
            layer.bias.add_(shift.to(layer.bias))

    def scaled(logits: Tensor, layers: Sequence[nn.Linear | nn.Conv2d]) -> Tensor:
        shifted = all(layer.bias is not None for layer in layers)
        return logits * factor + (shift.to(logits) if shifted else 0.0)

    if not output_layers(classifier, len(shift)):
        return False
    return _change_outputs(classifier, len(shift), inputs, scale, scaled)


@torch.no_grad()
def penultimate_features(
    classifier: nn.Module, inputs: dict[str, Tensor], num_classes: int
) -> Tensor | None:
    """Return the input of a classifier's output layer: one vector per item.

    If the layer reads several places of an item, such as the tokens of a decoder, the vector is their
    weighted mean. A place's weight is the weight of its output in the item's logits. So it is the token
    that the logits come from, and never padding.

    Args:
        classifier: any.
        inputs: a batch for it.
        num_classes: C.

    Returns:
        (B, D); for a `HeadClassifier` and the like, the input of the head. None if there is no such layer, it does
        not read each item separately, or the logits do not come from it.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=3))
        >>> penultimate_features(head, {"features": torch.zeros(2, 5)}, num_classes=3).shape
        torch.Size([2, 5])
    """
    if isinstance(classifier, FeatureHead):
        return classifier.read_batch(inputs)
    beside: set[nn.Module] = set()  # adapters of PEFT, which add to what a layer gives
    for module in classifier.modules():
        if hasattr(module, "base_layer") and hasattr(module, "merge"):
            base: Any = module.base_layer
            beside |= {*module.modules()} - {*base.modules()}
    layers = [each for each in output_layers(classifier, num_classes) if each not in beside]
    if not layers:
        return None
    seen: list[tuple[Tensor, Tensor]] = []

    def look(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.append((given[0], output.detach().requires_grad_()))
        torch.set_grad_enabled(True)  # only little computation follows the layer
        return seen[-1][1]

    hook = layers[-1].register_forward_hook(look)
    training = classifier.training
    classifier.eval()
    try:
        logits = logits_of(classifier, inputs)
    finally:
        torch.set_grad_enabled(False)
        hook.remove()
        classifier.train(training)
    if not seen or len(seen[-1][0]) != len(logits) or not logits.requires_grad:
        return None
    read, output = seen[-1]
    if isinstance(layers[-1], nn.Conv2d):
        read = read.movedim(1, -1)
    read = read.float().reshape(len(read), -1, read.shape[-1])
    if read.shape[1] == 1:
        return read[:, 0]
    weights = _weights_of_places(logits, output, 1 if isinstance(layers[-1], nn.Conv2d) else -1)
    if weights.shape[1] != read.shape[1]:
        return read.mean(dim=1)  # a convolution that reads several places at once
    whole = weights.sum(dim=1, keepdim=True)
    if (whole == 0).any():
        return None
    read = torch.where(weights[..., None] == 0, 0.0, read)
    return (weights[..., None] * read).sum(dim=1) / whole


@torch.enable_grad()
def _weights_of_places(logits: Tensor, output: Tensor, class_axis: int) -> Tensor:
    """Compute the weight of each place of an item in its logits: (B, P), up to a factor per item.

    Args:
        logits: (B, C), computed from `output`.
        output: of the layer, one score per class and place.
        class_axis: its axis of classes.
    """
    # A direction in which even normalised logits change.
    direction = torch.linspace(1, 2, logits.shape[1], device=logits.device)
    (gradient,) = torch.autograd.grad((logits.float() @ direction).sum(), output)
    return (gradient.movedim(class_axis, -1).float() @ direction).flatten(1)


def _change_outputs(
    classifier: nn.Module,
    num_classes: int,
    inputs: dict[str, Tensor],
    change: Callable[[nn.Linear | nn.Conv2d], None],
    expected: Callable[[Tensor, Sequence[nn.Linear | nn.Conv2d]], Tensor],
) -> bool:
    """Change the layers that compute the logits, and verify on a batch that the logits change as expected.

    The last layer alone is tried first, then the last two, for models with two heads. If neither works,
    the classifier is left as it was.
    """
    training = classifier.training
    classifier.eval()
    try:
        before = logits_of(classifier, inputs)
        layers = output_layers(classifier, num_classes)
        for chosen in (layers[-1:], layers[-2:]):
            kept = [(p, p.clone()) for layer in chosen for p in _own_parameters(layer)]
            for layer in chosen:
                change(layer)
            after = logits_of(classifier, inputs)
            if torch.allclose(after, expected(before, chosen), rtol=1e-3, atol=1e-3):
                return True
            for parameter, value in kept:
                parameter.copy_(value)
        return False
    finally:
        classifier.train(training)


def _own_parameters(layer: nn.Linear | nn.Conv2d) -> list[Tensor]:
    return [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
