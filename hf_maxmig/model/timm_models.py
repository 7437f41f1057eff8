"""A timm model as a classifier of transformers: its arguments are recovered and verified.

timm does not store the arguments with which a model was made. They are read off the model, and the model is
rebuilt from them. It is accepted only if the rebuilt model is the same.
"""

import contextlib
import copy
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import logging

from .structures import Structure, built_bare, differences, shortened, structure_of

_VALUES = 3  # how many values of an argument are tried

# Layer attributes that hold an argument of `timm.create_model`: argument, class of the layer (None:
# any), attribute.
_TRACES: tuple[tuple[str, str | None, str], ...] = (
    ("in_chans", None, "in_channels"),
    ("in_chans", None, "in_chans"),
    ("img_size", None, "img_size"),
    ("global_pool", None, "global_pool"),
    ("global_pool", None, "pool_type"),
    ("drop_rate", None, "drop_rate"),
    ("drop_rate", None, "p"),
    ("drop_path_rate", "DropPath", "drop_prob"),
    ("patch_size", None, "patch_size"),
    ("depth", None, "depth"),
    ("embed_dim", None, "embed_dim"),
    ("num_heads", None, "num_heads"),
    ("dynamic_img_size", None, "dynamic_img_size"),
    ("no_embed_class", None, "no_embed_class"),
    ("class_token", None, "has_class_token"),
    ("reg_tokens", None, "num_reg_tokens"),
    ("pos_drop_rate", None, "p"),
    ("proj_drop_rate", None, "p"),
    ("attn_drop_rate", None, "p"),
    ("window_size", None, "window_size"),
    ("groups", None, "groups"),
)
# Arguments that leave no attribute of their name, with their usual values.
_TRIED: dict[str, tuple[Any, ...]] = {
    "output_stride": (8, 16, 32),
    "act_layer": ("relu", "gelu", "silu", "gelu_tanh", "quick_gelu", "leaky_relu", "elu", "hard_swish", "mish", "tanh"),
    "norm_layer": ("batchnorm2d", "layernorm", "layernorm2d", "groupnorm", "rmsnorm", "frozenbatchnorm2d"),
    "init_values": (1e-5,),
    "qkv_bias": (False,),
    "qk_norm": (True,),
    "fc_norm": (True, False),
    "pre_norm": (True,),
    "pos_embed": ("none",),
    "replace_stem_pool": (True,),
}  # fmt: skip
_STAGE = re.compile(r"(stages|layers|levels|blocks)\.(\d+)(?:\.blocks)?\.(\d+)")


def wrapped_timm_model(model: nn.Module) -> PreTrainedModel:
    """Put a timm model into transformers' wrapper; the model is not copied.

    Its own arguments (`global_pool`, `output_stride`, `in_chans`, `img_size`, rates of dropout, ...)
    go into the wrapper's config as `model_args`. A model rebuilt from that config with these weights
    must have the same layers and classify in the same way.

    Args:
        model: made by `timm.create_model`, with a head.

    Returns:
        The wrapper, a `TimmWrapperForImageClassification`.

    Raises:
        TypeError: if the model has no head.
        ValueError: if the rebuilt model would be another one.

    Example:
        >>> import timm
        >>> model = timm.create_model("test_resnet", num_classes=3, global_pool="max", in_chans=1)
        >>> wrapped_timm_model(model).config.model_args
        {'in_chans': 1, 'global_pool': 'max'}
    """
    architecture = getattr(model, "pretrained_cfg", {})["architecture"]
    classes = getattr(model, "num_classes", None)
    if not isinstance(classes, int) or classes < 1:
        raise TypeError(
            f"`classifier` must have a head, got timm's {architecture} with `num_classes`={classes!r}: make it with "
            "the number of classes, `timm.create_model(..., num_classes=C)`."
        )
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if len(names) > len(list(model.parameters())):
        raise ValueError(
            f"`classifier` must have weights of its own in each layer, got timm's {architecture} whose layers share some: "
            "transformers cannot save it."
        )
    arguments = _arguments(model, architecture, classes)
    config = _config(architecture, classes, arguments)
    with built_bare():
        wrapper = _wrapper(config)
    wrapper.timm_model = model
    # The Hub's names of its outputs, unless some name two classes, as in ImageNet.
    names = [str(name) for name in getattr(model, "pretrained_cfg", {}).get("label_names") or ()]
    if len(names) == len({*names}) == classes:
        config.id2label = dict(enumerate(names))
        config.label2id = {name: c for c, name in config.id2label.items()}
    config.dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    wrapper.train(model.training)
    _check_alike(wrapper, architecture)
    return wrapper


def _arguments(model: nn.Module, architecture: str, classes: int) -> dict[str, Any]:
    """Find the arguments with which timm builds this structure."""
    target = structure_of(model, attributes=True)

    def away(arguments: dict[str, Any]) -> tuple[list[str], Structure]:
        with built_bare():
            built = _wrapper(_config(architecture, classes, arguments)).timm_model
        structure = structure_of(built, attributes=True)
        return differences(target, structure), structure

    found: dict[str, Any] = dict(getattr(model, "pretrained_model_args", None) or {})
    left, built = away(found)
    if left and found:
        left, built = min((left, built), away({}), key=lambda pair: len(pair[0]))
    best: dict[str, Any] = {}
    for name, values in _candidates(target, built) if left else ():
        for value in values if left and name not in found else ():
            try:
                trial, _ = away({**found, name: value})
            except Exception:
                continue
            if len(trial) < len(left):
                best, left = {name: value}, trial
        found |= best
        best = {}
    if left:
        raise ValueError(
            f"`classifier` must be what timm builds by its name, or with arguments that can be read off it, got "
            f"{architecture} which would come back as another model ({shortened(left)}). {_REMEDY}"
        )
    return found


_REMEDY = (
    "Say yourself how it is made: `wrapper = TimmWrapperForImageClassification(TimmWrapperConfig(architecture=..., "
    "num_labels=C, model_args={...}))`, `wrapper.timm_model.load_state_dict(model.state_dict())`, and give that."
)


def _candidates(target: Structure, built: Structure) -> Iterator[tuple[str, list[Any]]]:
    """Yield arguments with values to try, first those that the model's layers show."""
    for argument, kind, attribute in _TRACES:
        values = []
        for name, ours in target.items():
            value = ours.get(attribute)
            same = value == built.get(name, {}).get(attribute)
            if value is not None and not same and kind in (None, ours["class"]):
                values.append(value)
        if argument == "drop_path_rate":
            # It grows from layer to layer up to the rate, in float32.
            values = [round(max(values), 6), max(values)] if values else []
        several = list({json.dumps(value): value for value in values}.values())[:_VALUES]
        equal = [v[0] for v in several if isinstance(v, list) and v and v == v[:1] * len(v)]
        yield argument, equal + several
    stages = Counter(match[2] for name in target if (match := _STAGE.fullmatch(name)))
    yield "depths", [list(stages.values())]
    yield "layers", [list(stages.values())]
    yield from ((argument, list(values)) for argument, values in _TRIED.items())


def _config(architecture: str, classes: int, arguments: dict[str, Any]) -> Any:
    from transformers import TimmWrapperConfig

    kept = json.loads(json.dumps(arguments)) or None  # as they are read from the disk
    return TimmWrapperConfig(architecture=architecture, num_labels=classes, model_args=kept)


def _wrapper(config: Any) -> Any:
    from transformers import TimmWrapperForImageClassification

    return TimmWrapperForImageClassification(config)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the progress bar and the report of a loading that the user did not start."""
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


@torch.no_grad()
def _check_alike(wrapper: Any, architecture: str) -> None:
    """Rebuild the wrapper as loading does, and compare the logits of both on a random picture."""
    model = wrapper.timm_model
    device = next(model.parameters()).device
    modes = {module: module.training for module in model.modules()}
    wrapper.eval()
    try:
        with torch.random.fork_rng(devices=[]), _quiet():
            again = type(wrapper).from_pretrained(
                None,
                config=_config(architecture, model.num_classes, wrapper.config.model_args or {}),
                state_dict=wrapper.state_dict(),
            )
            pair = [model, again.timm_model.to(device=device).eval()]
            if wrapper.dtype in (torch.float16, torch.bfloat16):  # a CPU does not have all of it
                pair = [copy.deepcopy(network).float() for network in pair]
            alike = _same_logits(*pair)
    finally:
        for module, mode in modes.items():
            module.training = mode
    if not alike:
        raise ValueError(
            f"`classifier` must classify the same when it is built anew with the same weights, got timm's {architecture} "
            f"which does not. {_REMEDY}"
        )


def _same_logits(model: nn.Module, again: nn.Module) -> bool:
    for pictures in _inputs(model):
        try:
            first = model(pictures)
        except Exception:
            continue
        return torch.allclose(first, again(pictures), rtol=1e-4, atol=1e-5, equal_nan=True)
    return False


def _inputs(model: nn.Module) -> Iterator[Tensor]:
    """Yield random pictures in the sizes that the model may take, a small one first if it takes any size."""
    settings: dict[str, Any] = getattr(model, "pretrained_cfg", {})
    parameter = next(p for p in model.parameters() if p.is_floating_point())
    structure = structure_of(model, attributes=True)
    channels = next(
        (d["in_channels"] for d in structure.values() if "in_channels" in d),
        getattr(model, "in_chans", settings.get("input_size", (3,))[0]),
    )
    own = [d["img_size"] for d in structure.values() if d.get("img_size")]
    sizes = [own[0] if isinstance(own[0], list) else [own[0]] * 2] if own else [[96, 96]]
    sizes.append(list(settings.get("input_size", (3, 224, 224))[-2:]))
    for size in sizes:
        noise = torch.randn(1, channels, *size, generator=torch.Generator().manual_seed(0))
        yield noise.to(parameter.device, parameter.dtype)


__all__ = ["wrapped_timm_model"]
