"""Find a classifier's output layer, for methods that use the features below it."""

from torch import nn

from ..model.surgery import output_layers


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
