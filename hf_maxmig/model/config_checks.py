"""Checks of a config: a wrong one is refused at once, and the error names the field.

A `config.json` may come from anyone, and it decides which classes are built and how large.
"""

import contextlib
import dataclasses
import functools
import traceback
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from .classifiers import CLASSIFIERS

MOST_ANNOTATORS, MOST_CLASSES = 2**31 - 1, 10**6
# Far above any existing classifier: larger numbers would keep a computer building layers for hours.
_MOST_LAYERS, _MOST_OF_A_KIND = 2_000, 2**16
_LAYERS = ("layer", "depth", "block", "repeat", "stage")
# Arguments that transformers passes to a config besides its fields, and removes again.
_HANDED = (
    "attn_implementation", "experts_implementation", "name_or_path", "num_labels", "output_attentions", "torch_dtype",
    "model_type", "use_return_dict",
)  # fmt: skip


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn any exception of a library inside into a ValueError that says what was wrong.

    Args:
        what: beginning of the error: the requirement.

    Raises:
        ValueError: for any exception; one raised by this package passes through unchanged.

    Example:
        >>> with refusing("`size` must be a number of pixels"):
        ...     int("many")
        Traceback (most recent call last):
        ...
        ValueError: `size` must be a number of pixels, got ValueError: invalid literal for int() with base 10: 'many'.
    """
    try:
        yield
    except Exception as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        ours = Path(frame.f_code.co_filename).parent == Path(__file__).parent
        if ours and isinstance(error, ValueError | TypeError | OSError):
            raise
        said = " ".join(str(error).split())
        shown = said if len(said) <= 300 else f"{said[:300]} ..."
        raise ValueError(f"{what}, got {type(error).__name__}: {shown.rstrip('.')}.") from error


def check_fields(config: PreTrainedConfig, further: Mapping[str, Any]) -> None:
    """Check the types of a config's fields, and that its further entries can be kept.

    Args:
        config: the config, just filled.
        further: entries that are not fields.

    Raises:
        TypeError: if a field has another type.
        ValueError: if a number is far too large, or a further name would hide a method.
    """
    own: Any = type(config)
    for name, kind in _kinds(own).items():
        value = vars(config).get(name, getattr(own, name, None))
        if not _is(value, kind):
            raise TypeError(f"`{name}` must be {_shown(kind)}, got {_brief(value)}.")
    for name in further:
        if name not in _HANDED and getattr(own, name, None) is not None and name != "auto_map":
            raise ValueError(
                f"a config must not have a field {name!r}, got {_brief(further[name])}."
            )
    kind = further.get("model_type", own.model_type)
    if kind != own.model_type:
        raise ValueError(f"`model_type` must be {own.model_type!r}, got {_brief(kind)}.")
    attention = further.get("attn_implementation")
    if not isinstance(attention, str | Mapping | None):
        raise TypeError(f"`attn_implementation` must be a name, got {_brief(attention)}.")
    dtype = further.get("torch_dtype") if config.dtype is None else config.dtype
    if isinstance(dtype, str) and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ValueError(
            f"`dtype` must name a type of torch, such as float32, got {_brief(dtype)}."
        )
    _check_count("num_labels", further.get("num_labels"), MOST_CLASSES)


def checked_annotators(names: Any, number: int | None) -> tuple[list[str] | None, int]:
    """Check the names of annotators and their number.

    Args:
        names: M names, text or whole numbers; None if there are none.
        number: M; None if it is the number of names.

    Returns:
        The names as text, or None; and M.

    Raises:
        TypeError: if `names` is not a list of names.
        ValueError: if a name occurs twice, or there are not M names.

    Example:
        >>> checked_annotators([7, 3], None)
        (['7', '3'], 2)
    """
    _check_count("num_annotators", number, MOST_ANNOTATORS)
    if names is None:
        return None, 1 if number is None else number
    if isinstance(names, str | bytes | Mapping) or not isinstance(names, Iterable):
        raise TypeError(f"`annotators` must be a list of names, got {_brief(names)}.")
    texts = [_name("annotators", name) for name in names]
    if len(set(texts)) < len(texts):
        seen: set[str] = set()
        twice = next(name for name in texts if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"`annotators` must be unique names, got {twice!r} more than once.")
    if number not in (None, len(texts)):
        raise ValueError(
            f"`num_annotators` must be the number of `annotators` = {len(texts)}, got {number}."
        )
    _check_count("num_annotators", len(texts), MOST_ANNOTATORS)
    _check_text("annotators", texts)
    return texts, len(texts)


def checked_classes(names: Any, number: int | None = None) -> dict[int, str]:
    """Check `id2label`, the names of classes by their numbers.

    Args:
        names: the mapping; its numbers may be text, as in JSON.
        number: C, if given separately.

    Returns:
        The names in the order of the numbers.

    Raises:
        TypeError: if `names` is not a mapping from numbers to names.
        ValueError: if the numbers are not 0 to C - 1, or `number` differs from C.

    Example:
        >>> checked_classes({"1": "dog", "0": "cat"})
        {0: 'cat', 1: 'dog'}
        >>> checked_classes({0: "cat", 2: "dog"})
        Traceback (most recent call last):
        ...
        ValueError: `id2label` must name the classes 0 to 1, got no 1.
    """
    if not isinstance(names, Mapping):
        raise TypeError(
            f"`id2label` must map the numbers of classes to names, got {_brief(names)}."
        )
    found: dict[int, str] = {}
    for key, name in names.items():
        if isinstance(key, bool) or not (isinstance(key, int) or (isinstance(key, str) and key.isdecimal() and len(key) < 20)):  # fmt: skip
            raise TypeError(f"`id2label` must have numbers as keys, got {_brief(key)}.")
        if int(key) in found:
            raise ValueError(f"`id2label` must name each class once, got {int(key)} twice.")
        found[int(key)] = _name("id2label", name)
    _check_count("num_labels", len(found), MOST_CLASSES)
    missing = next((c for c in range(len(found)) if c not in found), None)
    if missing is not None:
        raise ValueError(
            f"`id2label` must name the classes 0 to {len(found) - 1}, got no {missing}."
        )
    if number not in (None, len(found)):
        raise ValueError(
            f"`num_labels` must be the number of names in `id2label` = {len(found)}, got {number}."
        )
    _check_text("id2label", found.values())
    return {c: found[c] for c in range(len(found))}


def checked_classifier_config(given: Any) -> PreTrainedConfig | None:
    """Build the config of a classifier, unless it is one already.

    Args:
        given: the config, a dict with its `model_type`, or None.

    Returns:
        The config, whose classes are numbered without gaps; None for None.

    Raises:
        TypeError: if it is none of these.
        ValueError: if the type is unknown, or the config cannot be built.
    """
    if isinstance(given, Mapping):
        kind = given.get("model_type")
        known = isinstance(kind, str) and (kind in CLASSIFIERS or kind in CONFIG_MAPPING)
        if not known:
            raise ValueError(
                f"`classifier_config` must have the `model_type` of a model of transformers, got {_brief(kind)}: a "
                "classifier of one's own must be registered with AutoConfig and its Auto class before."
            )
        _check_proportions(given)
        if given.get("id2label") is not None:
            checked_classes(given["id2label"])
        # Without the package, our own networks are not in transformers' table.
        build: Any = CLASSIFIERS[kind][0] if kind in CLASSIFIERS else CONFIG_MAPPING[kind]
        with refusing(f"`classifier_config` must be a config of type {kind!r}"):
            given = build(**given)
            given.to_json_string()  # it must be possible to save it
    if given is not None and not isinstance(given, PreTrainedConfig):
        raise TypeError(
            f"`classifier_config` must be a config of transformers or a dict, got {_brief(given)}."
        )
    return given


@functools.cache
def _kinds(config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """List the annotated types of a config's fields."""
    names: Any = {"torch": torch}
    hints = get_type_hints(config_class, localns=names)
    return {field.name: hints[field.name] for field in dataclasses.fields(config_class)}


def _check_proportions(value: Any, name: str = "classifier_config", depth: int = 0) -> None:
    """Refuse numbers that would keep a computer building layers, or names of classes, for hours."""
    if depth > 20:
        raise ValueError(f"`{name}` must not be nested so deeply.")
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str | int):
                raise TypeError(f"`{name}` must have names as keys, got {_brief(key)}.")
            _check_proportions(part, str(key), depth + 1)
        for key in ("num_labels", "num_classes"):
            number = value.get(key)
            if isinstance(number, int) and number > MOST_CLASSES:
                _check_count(key, number, MOST_CLASSES)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_proportions(part, name, depth + 1)
    elif isinstance(value, int):
        most = (
            _MOST_LAYERS
            if any(word in name for word in _LAYERS) and "id" not in name.split("_")
            else None
        )
        if most is None and name.startswith("num_") and name not in ("num_labels", "num_classes"):
            most = _MOST_OF_A_KIND
        if most is not None and value > most:
            raise ValueError(f"`{name}` must be at most {most}, got {_brief(value)}.")


def _check_count(name: str, number: Any, most: int) -> None:
    if number is None:
        return
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"`{name}` must be a whole number, got {_brief(number)}.")
    if number < 1:
        raise ValueError(f"`{name}` must be at least 1, got {number}.")
    if number > most:
        raise ValueError(f"`{name}` must be at most {most}, got {_brief(number)}.")


def _name(field: str, name: Any) -> str:
    if isinstance(name, str):
        return name
    if isinstance(name, bool) or not hasattr(name, "__index__"):
        raise TypeError(f"`{field}` must be names, got {_brief(name)}.")
    return str(name)


def _check_text(field: str, names: Iterable[str]) -> None:
    try:
        "".join(names).encode("utf-8")
    except UnicodeEncodeError:
        wrong = next(name for name in names if any("\ud800" <= c <= "\udfff" for c in name))
        raise ValueError(
            f"`{field}` must be text that can be written, got half a character in {wrong!r}."
        ) from None


def _is(value: Any, kind: Any) -> bool:
    """Whether a value has an annotated type; types that JSON cannot hold are not checked in depth."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_is(value, part) for part in parts)
    if origin is Literal:
        return any(value is part or value == part for part in parts)
    if kind in (None, type(None)):
        return value is None
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin in (list, Sequence):
        # Table libraries have their own kinds of lists.
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            return False
        return origin is Sequence or all(_is(part, parts[0]) for part in value)
    if origin is tuple:
        return isinstance(value, list | tuple)
    if origin is dict:
        return isinstance(value, Mapping)
    return isinstance(value, origin or kind)


def _shown(kind: Any) -> str:
    parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    names = [
        "None" if part in (None, type(None)) else str(part) if get_args(part) else part.__name__
        for part in parts
    ]
    return " or ".join(names)


def _brief(value: Any) -> str:
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]} ..."


__all__ = [
    "MOST_ANNOTATORS",
    "MOST_CLASSES",
    "check_fields",
    "checked_annotators",
    "checked_classes",
    "checked_classifier_config",
    "refusing",
]
