"""Weights keep their precision through an evaluation in half precision."""

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def weights_kept(model: nn.Module) -> Iterator[None]:
    """Restore a model's weights at the end, with their type and device.

    `bf16_full_eval` and `fp16_full_eval` of `Trainer` cast the model and leave it cast, so that a model
    saved afterwards would be rounded.

    Args:
        model: the model whose parameters and buffers are kept. Those on an accelerator wait on the CPU.

    Example:
        >>> import torch
        >>> layer = nn.Linear(2, 3)
        >>> with weights_kept(layer):
        ...     _ = layer.to(torch.bfloat16)
        >>> layer.weight.dtype
        torch.float32
    """
    parameters = [(p, p.data.cpu(), p.device) for p in model.parameters()]
    buffers = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    try:
        yield
    finally:
        for parameter, data, device in parameters:
            parameter.data = data.to(device)
        for module, name, buffer in buffers:
            module._buffers[name] = buffer
