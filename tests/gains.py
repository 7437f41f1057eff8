"""Log-probabilities as input of a gain, and a gain with its gradients."""

from collections.abc import Callable

import torch
from torch import Tensor


def log_tables(N: int, C: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return log_h (N, C), log_g (N, C) and log_p (C,), all different."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((N, C), (N, C), (C,))
    return [
        torch.randn(shape, generator=generator, dtype=dtype).mul(1.5).log_softmax(-1)
        for shape in shapes
    ]


def value_and_gradients(
    gain: Callable[[list[Tensor]], Tensor], leaves: list[Tensor], through: bool = False
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return a gain and its gradients with respect to log-probabilities or, `through` log_softmax, to logits."""
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    value = gain([leaf.log_softmax(-1) for leaf in leaves] if through else leaves)
    return value.detach(), torch.autograd.grad(value, leaves)
