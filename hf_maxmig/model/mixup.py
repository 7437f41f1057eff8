"""Mixup: a classifier learns from blends of two items of a batch.

H. Zhang, M. Cisse, Y. N. Dauphin, D. Lopez-Paz. mixup: Beyond Empirical Risk Minimization. ICLR 2018.

This module draws which items are blended, and blends their inputs. The loss of a blend is in
`CrowdModel.blended_loss`, the gain of blends in `functional.mutual_information_gain`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .functional import Mixed
from .outputs import Gather

LEAST_ITEMS = 3  # a blend of two items is compared with a third


def draw_blends(taught: Tensor, alpha: float) -> Mixed:
    """Draw a partner for each item of a batch, and one share for all of them.

    All random numbers come from torch's CPU generator, whose state checkpoints restore.

    Args:
        taught: (B,) bool, the items with something to learn from. They are blended with each other,
            and the others among themselves; with fewer than three of them nothing is blended.
        alpha: parameter of the symmetric Beta distribution that the share is drawn from.

    Returns:
        Share and partners, on the device of `taught`.

    Example:
        >>> mixed = draw_blends(torch.tensor([True, False, True, True]), alpha=1.0)
        >>> int(mixed.partner[1]), sorted(mixed.partner.tolist())
        (1, [0, 1, 2, 3])
    """
    share = torch.distributions.Beta(alpha, alpha).sample().to(taught.device, non_blocking=True)
    order = torch.rand(len(taught)).to(taught.device, non_blocking=True) + taught
    partner = torch.empty_like(taught, dtype=torch.int64)
    partner[taught.to(torch.uint8).argsort(stable=True)] = order.argsort()
    itself = torch.arange(len(taught), device=taught.device)
    return Mixed(share, torch.where(taught.sum() < LEAST_ITEMS, itself, partner))


def over_devices(mixed: Mixed, gather: Gather) -> Mixed:
    """Renumber the partners for the joined batch of all devices.

    Args:
        mixed: how the items of this device are blended with each other.
        gather: joins a (B, ...) tensor over the devices.

    Returns:
        Share and partners of all items; the share is the same on all devices.

    Example:
        >>> mixed = Mixed(torch.tensor(0.75), torch.tensor([1, 0]))
        >>> over_devices(mixed, lambda tensor: tensor.repeat(2)).partner.tolist()
        [1, 0, 3, 2]
    """
    # Partners are on the same device, so their distance is the same in the joined batch.
    away = mixed.partner - torch.arange(len(mixed.partner), device=mixed.partner.device)
    away = gather(away)
    return Mixed(mixed.share, away + torch.arange(len(away), device=away.device))


def blended_inputs(inputs: Mapping[str, Any], mixed: Mixed) -> dict[str, Any]:
    """Blend the inputs of a classifier: a weighted mean of numbers, the union of masks.

    Args:
        inputs: of a batch: (B, ...) tensors; anything without one row per item stays as it is.
        mixed: how the items are blended.

    Returns:
        The inputs of the blends.

    Raises:
        ValueError: if an input holds integers, such as token ids.

    Example:
        >>> mixed = Mixed(torch.tensor(0.75), torch.tensor([1, 0]))
        >>> blended_inputs({"features": torch.tensor([[0.0], [4.0]])}, mixed)
        {'features': tensor([[1.],
                [3.]])}
    """
    return {name: _blended(name, value, mixed) for name, value in inputs.items()}


def _blended(name: str, value: Any, mixed: Mixed) -> Any:
    if not isinstance(value, Tensor) or value.shape[:1] != mixed.partner.shape:
        return value
    if value.dtype == torch.bool or name.endswith("mask"):
        return torch.maximum(value, value[mixed.partner])
    if not value.is_floating_point():
        raise ValueError(
            f"`mixup_alpha` must be 0 and the method not annot-mix where the classifier reads whole numbers, got "
            f"`{name}` of {str(value.dtype).removeprefix('torch.')}: numbers of words cannot be blended."
        )
    return mixed.blend(value)
