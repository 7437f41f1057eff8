"""The structure of a network without its weights, to check whether a rebuilt network is the same.

`wrapping.py` decides which network to build; for timm, `timm_models.py` does.
"""

import contextlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import initialization as init

# Attributes that training and saving change, or that only say where the weights came from.
_PASSING = (
    "training", "grad_checkpointing", "pretrained_cfg", "pretrained_model_args", "default_cfg", "feature_info",
)  # fmt: skip
_SHOWN, _WIDTH = 3, 160  # differences in an error, and characters of each
_PLAIN = (bool, int, float, str, type(None))

Structure = dict[str, dict[str, Any]]


@contextlib.contextmanager
def built_bare() -> Iterator[None]:
    """Build networks without memory for their weights, as `from_pretrained` does."""
    with (
        torch.random.fork_rng(devices=[]),
        torch.device("meta"),
        init.no_init_weights(),
        init.meta_device_safe_creation_ops(),
    ):
        yield


def structure_of(network: nn.Module, attributes: bool = False) -> Structure:
    """List the modules of a network, each with what determines its computation.

    A layer adapted by PEFT counts as the layer inside it.

    Args:
        network: any; its tensors may be on the meta device.
        attributes: whether plain attributes count too (numbers, text, functions by their names);
            timm keeps the arguments of a model there.

    Returns:
        By module name: its class, the shapes of its tensors, the printed settings of torch's own
        layers, and the attributes.

    Example:
        >>> structure_of(nn.Sequential(nn.Dropout(0.5)))["0"]
        {'class': 'Dropout', 'settings': 'p=0.5, inplace=False'}
    """
    found: Structure = {}
    stack = [("", network)]
    while stack:
        name, outer = stack.pop()
        module = _without_adapter(outer)
        found[name] = _described(module, attributes)
        children = [
            (f"{name}.{child}" if name else child, m) for child, m in module.named_children()
        ]
        stack.extend(reversed(children))
    return found


def differences(is_now: Structure, built: Structure) -> list[str]:
    """List where two structures differ, one line per place: the present and the rebuilt value.

    Example:
        >>> differences(structure_of(nn.Sequential(nn.ReLU())), structure_of(nn.Sequential(nn.Tanh())))
        ["0: class 'ReLU', not 'Tanh'"]
    """
    lines = []
    for name in dict.fromkeys([*is_now, *built]):
        place = name or "the model"
        if name not in built:
            lines.append(f"{place}: {is_now[name]['class']}, which is one layer more")
        elif name not in is_now:
            lines.append(f"{place}: nothing, not {built[name]['class']}")
        else:
            ours, theirs = is_now[name], built[name]
            lines += [
                f"{place}: {key} {ours.get(key)!r}, not {theirs.get(key)!r}"
                for key in dict.fromkeys([*ours, *theirs])
                if ours.get(key) != theirs.get(key)
            ]
    return lines


def shortened(lines: Sequence[str]) -> str:
    """Put the first few differences into one line of an error.

    Example:
        >>> shortened(["a: 1, not 2", "b: 3, not 4", "c: 5, not 6", "d: 7, not 8"])
        'a: 1, not 2; b: 3, not 4; c: 5, not 6 and 1 more'
    """
    shown = "; ".join(textwrap.shorten(line, _WIDTH, placeholder=" ...") for line in lines[:_SHOWN])
    return f"{shown} and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else shown


def _without_adapter(module: nn.Module) -> nn.Module:
    while True:
        inside = getattr(module, "base_layer", None)
        if not isinstance(inside, nn.Module):
            inside = getattr(module, "original_module", None)
        if not isinstance(inside, nn.Module):
            return module
        module = inside


def _described(module: nn.Module, attributes: bool) -> dict[str, Any]:
    kind = type(module)
    # Synchronised devices use another class for batch normalisation, with the same parameters.
    name = "BatchNorm2d" if kind is nn.SyncBatchNorm else kind.__name__
    described: dict[str, Any] = {"class": name}
    tensors: Mapping[str, Any] = {**module._parameters, **module._buffers}
    for tensor_name, tensor in tensors.items():
        # Buffers that are not saved may be rebuilt for each picture size.
        if tensor is not None and tensor_name not in module._non_persistent_buffers_set:
            described[tensor_name] = tuple(tensor.shape)
    if kind.__module__.startswith("torch.nn."):
        described["settings"] = module.extra_repr()
    if attributes:
        for key, value in vars(module).items():
            if not key.startswith("_") and key not in _PASSING and key not in described:
                known, shown = _plain(value)
                if known:
                    described[key] = shown
    return described


def _plain(value: Any) -> tuple[bool, Any]:
    """Turn an attribute into a comparable value, if possible."""
    if isinstance(value, _PLAIN):
        return True, value
    if isinstance(value, list | tuple):
        parts = [_plain(part) for part in value]
        return all(known for known, _ in parts), [part for _, part in parts]
    if isinstance(value, Mapping):
        parts = [_plain(part) for part in value.values()]
        return all(known for known, _ in parts), dict(
            zip(value, (p for _, p in parts), strict=True)
        )
    if callable(value) and not isinstance(value, nn.Module) and hasattr(value, "__qualname__"):
        return True, value.__qualname__
    return False, None


__all__ = ["Structure", "built_bare", "differences", "shortened", "structure_of"]
