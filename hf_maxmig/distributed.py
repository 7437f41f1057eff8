"""Join tensors over the devices of a run, with gradient: what a gain over all devices needs."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _GatherWithGradient(torch.autograd.Function):
    """All-gather along the first axis; sizes may differ between processes.

    Backward sums the gradients of all processes and keeps its own slice. Where every process
    computes the whole global loss and the parameters' gradients are then averaged, as DDP does, the
    step equals that of one process.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        size = torch.tensor([tensor.shape[0]], device=tensor.device)
        sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
        dist.all_gather(sizes, size)
        lengths = [int(length) for length in sizes]
        ctx.start, ctx.length = sum(lengths[: dist.get_rank()]), tensor.shape[0]
        padded = tensor.new_zeros(max(lengths), *tensor.shape[1:])
        padded[: tensor.shape[0]] = tensor
        parts = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(parts, padded)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient[ctx.start : ctx.start + ctx.length]


def gather_with_gradient(tensor: Tensor) -> Tensor:
    """Join a tensor over all processes, in order of rank; with one process, return it as it is.

    Args:
        tensor: (B, ...), B may differ between processes; bool tensors carry no gradient.

    Returns:
        (sum of B, ...), the same on every process.

    Example:
        >>> gather_with_gradient(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return tensor
    if tensor.dtype == torch.bool:
        return _GatherWithGradient.apply(tensor.to(torch.uint8)).bool()
    return _GatherWithGradient.apply(tensor)
