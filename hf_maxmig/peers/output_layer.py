"""Where a classifier ends: its output layer, for methods that look below it."""

from torch import nn


def output_layer(classifier: nn.Module, num_classes: int) -> nn.Linear:
    """Find the linear layer that gives the logits: the last one with C outputs.

    Args:
        classifier: any.
        num_classes: C.

    Returns:
        The layer itself.

    Raises:
        TypeError: if there is none.

    Example:
        >>> output_layer(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), num_classes=3)
        Linear(in_features=4, out_features=3, bias=True)
    """
    layers = [
        module
        for module in classifier.modules()
        if isinstance(module, nn.Linear) and module.out_features == num_classes
    ]
    if not layers:
        raise TypeError(
            f"`classifier` must end in a linear layer with one output a class = {num_classes}, got "
            f"{type(classifier).__name__} without one."
        )
    return layers[-1]
