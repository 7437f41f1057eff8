"""Find a classifier's output layer, for methods that use the features below it, and read them."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..model.surgery import logits_of, output_layers


def output_layer(classifier: nn.Module, num_classes: int) -> nn.Linear:
    """Find the linear layer that computes the logits: the last one with C outputs.

    Args:
        classifier: any classifier.
        num_classes: C.

    Returns:
        The layer itself.

    Raises:
        TypeError: if there is none.

    Example:
        >>> output_layer(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), num_classes=3)
        Linear(in_features=4, out_features=3, bias=True)
    """
    for layer in reversed(output_layers(classifier, num_classes)):
        if isinstance(layer, nn.Linear):
            return layer
    raise TypeError(
        f"`classifier` must end in a linear layer with one output per class = {num_classes}, got "
        f"{type(classifier).__name__} without one."
    )


def logits_and_features(
    classifier: nn.Module,
    layer: nn.Module,
    inputs: Mapping[str, Any],
    asked: Mapping[str, bool] | None = None,
) -> tuple[Tensor, Tensor]:
    """Run a classifier once, and note what one of its layers reads.

    Args:
        classifier: any classifier.
        layer: one of its layers, which it runs; see `output_layer`.
        inputs: a batch for the classifier.
        asked: as in `logits_of`.

    Returns:
        The logits (B, C), and the input of the layer (B, D), both with gradient.

    Example:
        >>> import torch
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, hidden_size=4, num_labels=3))
        >>> logits, features = logits_and_features(head, head.output, {"features": torch.zeros(2, 5)})
        >>> logits.shape, features.shape
        (torch.Size([2, 3]), torch.Size([2, 4]))
    """
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    try:
        logits = logits_of(classifier, inputs, asked)
    finally:
        hook.remove()
    return logits, seen[-1].flatten(1)
