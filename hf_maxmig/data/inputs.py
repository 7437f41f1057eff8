"""The inputs of a batch: pictures are opened, numbers are stacked, other columns are refused by name.

Errors name an item by its number in the data set, which is `items[i]` for the i-th example.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from transformers.utils import logging

from ..model.items import bare_numbers
from ..model.opening import in_rgb, short

logger = logging.get_logger(__name__)

# The names of a classifier's inputs in its forward, by the kind of data.
TEXT_INPUTS = frozenset({"input_ids"})
SOUND_INPUTS = frozenset({"input_values", "input_features"})

_ANIMATED = frozenset(
    {"GIF", "PNG", "WEBP", "TIFF"}
)  # without MPO, the format of many telephones' pictures
PICTURE_FILES = frozenset(
    {".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
SOUND_FILES = frozenset({".flac", ".m4a", ".mp3", ".ogg", ".opus", ".wav"})
_LARGEST = torch.iinfo(torch.int64).max


# Pictures


def has_pictures(values: Any) -> bool:
    """Whether a column holds pictures."""
    return isinstance(values, list) and any(isinstance(value, Image) for value in values)


def as_rgb(picture: Any, name: str, item: int) -> Image:
    """Turn a picture into 8 bits of red, green and blue.

    Args:
        picture: a value of the column.
        name: the name of the column, for errors.
        item: the number of the item, for errors.

    Raises:
        ValueError: if the value is not a picture, has no pixels, cannot be read, or has a range that
            RGB would cut off.

    Example:
        >>> from PIL.Image import new
        >>> as_rgb(new("L", (2, 3)), "photo", 0).mode
        'RGB'
    """
    if not isinstance(picture, Image):
        raise ValueError(
            f"column {name!r} must hold a picture in every example, got {short(picture)} at item {item}."
        )
    if picture.mode.startswith(("I", "F")):
        raise ValueError(
            f"column {name!r} must hold pictures of 8 bits per channel, got mode {picture.mode!r} at "
            f"item {item}, which RGB would cut off: scale them, or compute `pixel_values` yourself."
        )
    if not all(picture.size):
        width, height = picture.size
        raise ValueError(
            f"column {name!r} must hold pictures with pixels, got {width} x {height} at item {item}: leave it out."
        )
    if getattr(picture, "format", None) in _ANIMATED and getattr(picture, "is_animated", False):
        logger.warning_once(
            "Column %r holds pictures with several frames, such as item %d: the first frame is used.",
            name,
            item,
        )
    try:
        return in_rgb(picture)
    except Exception as error:  # Pillow raises many types, SyntaxError among them
        file = getattr(picture, "filename", "")
        raise ValueError(
            f"column {name!r} must hold pictures that can be read, got {file or 'one'} in mode {picture.mode!r} at "
            f"item {item} ({type(error).__name__}: {error}): repair it, or leave the item out."
        ) from error


# Numbers


def leaves(value: Any) -> Iterator[Any]:
    """Yield the elements of nested lists, without None."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list | tuple) or (
            isinstance(value, np.ndarray) and value.dtype == object
        ):
            waiting.extend(reversed(list(value)))
        elif value is not None:
            yield value


def is_numeric(values: Any) -> bool:
    """Whether a column holds numbers, judged by its first value."""
    if isinstance(values, np.ndarray):
        return True
    leaf = next((leaf for value in values for leaf in leaves(value)), None)
    return _is_number(leaf)


def check_all_or_none(name: str, values: list[Any], items: Sequence[int]) -> None:
    """Refuse a column with numbers in some examples only, which would be left out silently."""
    kinds = [next((_is_number(leaf) for leaf in leaves(value)), None) for value in values]
    if True in kinds:
        i = kinds.index(False)
        raise ValueError(
            f"column {name!r} must hold numbers in every example, got {short(values[i])} at item {items[i]}."
        )


def check_complete(name: str, values: Sequence[Any], items: Sequence[int]) -> None:
    """Refuse a column with a missing value."""
    for i, value in enumerate(values):
        if value is None:
            raise ValueError(
                f"column {name!r} must have a value in every example, got none at item {items[i]}."
            )


def stack(name: str, values: np.ndarray | list[Any], items: Sequence[int]) -> Tensor:
    """Stack a column's numbers to (B, ...), float64 as float32.

    Raises:
        ValueError: if the numbers differ in shape, one is missing, or an integer exceeds 64 bits;
            naming the column and an item.
    """
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values)
    check_complete(name, values, items)
    try:
        if all(isinstance(value, Tensor) for value in values):
            stacked = torch.stack(values)
        else:
            arrays = [np.asarray(value) for value in values]
            check_fits(name, arrays, items)
            stacked = torch.from_numpy(np.stack(arrays))
    except (RuntimeError, TypeError, ValueError) as error:
        if str(error).startswith(f"column {name!r}"):
            raise
        i = _unlike(values)
        raise ValueError(
            f"column {name!r} must hold numbers of one shape in all examples, got {short(values[i])} at item "
            f"{items[i]} and {short(values[0 if i else -1])} beside it. Pad them (a tokenizer given as "
            "`processing_class` pads text), or remove the column."
        ) from error
    return stacked.float() if stacked.dtype == torch.float64 else stacked


def check_fits(name: str, arrays: Sequence[np.ndarray], items: Sequence[int]) -> None:
    """Refuse integers beyond signed 64 bits, which would become other numbers."""
    for i, array in enumerate(arrays):
        if array.dtype.kind == "u" and array.size and array.max() > _LARGEST:
            raise ValueError(
                f"column {name!r} must hold integers below 2**63, got {array.max()} at item {items[i]}."
            )


def check_finite(batch: Mapping[str, Any], items: Sequence[int]) -> None:
    """Refuse NaN and infinity: a single one makes all weights NaN within a few steps.

    Raises:
        ValueError: if there is one, naming the column and the item.

    Example:
        >>> check_finite({"x": torch.tensor([[0.5], [1.5]])}, items=range(2))
    """
    for name, tensor in batch.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            continue
        # One pass without further memory; a second is needed only if the sum overflows its type.
        if not tensor.numel() or bool(torch.isfinite(tensor.sum())):
            continue
        wrong = ~torch.isfinite(tensor)
        if not bool(wrong.any()):
            continue
        got = float(tensor[wrong][0])
        where = "in the batch"
        if len(tensor) == len(
            items
        ):  # some processors join the patches of all pictures in one tensor
            row = wrong.reshape(len(wrong), -1).any(dim=1).int().argmax()
            where = f"at item {items[int(row)]}"
        raise ValueError(
            f"`{name}` must be finite, got {got} {where}: None and empty cells become NaN, and values beyond float32 "
            "become infinity. Correct the value, or leave the item out."
        )


def _is_number(leaf: Any) -> bool:
    if isinstance(leaf, bool | int | float | Tensor):
        return True
    try:
        return np.asarray(leaf).dtype.kind in "biuf"
    except Exception:  # objects that convert themselves
        return False


def _unlike(values: list[Any]) -> int:
    """Find the first example whose numbers have another shape than most."""
    shapes = []
    for value in values:
        try:
            array = np.asarray(value)
            shapes.append(array.shape if array.dtype.kind in "biuf" else None)
        except Exception:
            shapes.append(None)
    usual = max((shape for shape in shapes if shape is not None), key=shapes.count, default=None)
    return next((i for i, shape in enumerate(shapes) if shape is None or shape != usual), 0)


# Columns that are not inputs, and how to turn them into inputs


def data_inputs(names: Sequence[str]) -> list[str]:
    """Leave out the arguments of a forward that are not data: gold labels, and output options.

    Example:
        >>> data_inputs(["pixel_values", "labels", "output_attentions", "return_dict"])
        ['pixel_values']
    """
    return [n for n in names if n != "labels" and not n.startswith(("output_", "return_"))]


def remedy(columns: Mapping[str, Any], wanted: Sequence[str]) -> str:
    """Suggest what to do with columns that are not inputs.

    Args:
        columns: the columns of a batch, by name.
        wanted: the names of the classifier's inputs.

    Example:
        >>> remedy({"image": ["a/1.png"]}, ["pixel_values"]).split(": ")[1]
        "open them by `dataset.cast_column('image', Image())` of `datasets`."
        >>> remedy({"review": ["Good."]}, ["input_ids"]).split(": ")[0]
        "column 'review' holds text that is not tokenised"
    """
    first = {
        name: next((value for value in values if value is not None), None)
        for name, values in columns.items()
    }
    texts = {name: value for name, value in first.items() if isinstance(value, str)}
    numbers = bare_numbers(first)
    beside = bool((TEXT_INPUTS | SOUND_INPUTS) & {*wanted})  # numbers are then no item
    if "features" in wanted and len(numbers) > 1 and not beside:
        return (
            "let `processing_class=fitted_table_processor(dataset)` make features of its columns; or, if some of "
            f"{', '.join(numbers[:5])} are features as they are, put them into one list per item: "
            "`dataset.map(lambda item: {'features': [item[name] for name in columns]})`."
        )
    if "pixel_values" in wanted:
        for name, value in first.items():
            if what := _file(value, PICTURE_FILES):
                return f"column {name!r} holds {what}, not pictures: open them by `dataset.cast_column({name!r}, Image())` of `datasets`."
        for name, value in first.items():
            if getattr(value, "ndim", 0) >= 2 or _depth(value) >= 2:
                return (
                    f"column {name!r} holds arrays, not pictures: take `dataset.with_format(None)`, which opens pictures, or "
                    "compute `pixel_values` by the image processor."
                )
    if SOUND_INPUTS & {*wanted}:
        for name, value in first.items():
            if what := _file(value, SOUND_FILES):
                return (
                    f"column {name!r} holds {what}, not sound: open them by `dataset.cast_column({name!r}, Audio())` of "
                    "`datasets`, and let the feature extractor turn them into inputs in `dataset.map`."
                )
            if (isinstance(value, Mapping) and "array" in value) or "Audio" in type(value).__name__:
                return f"column {name!r} holds sound as it was recorded: let the feature extractor turn it into inputs in `dataset.map`."
    if TEXT_INPUTS & {*wanted} and texts:
        name = max(texts, key=lambda name: len(texts[name]))
        frozen = f", or `frozen_features` with `column={name!r}`" if "features" in wanted else ""
        return (
            f"column {name!r} holds text that is not tokenised: do `dataset.map(lambda batch: tokenizer(batch[{name!r}], "
            f"truncation=True), batched=True)`{frozen}."
        )
    if "pixel_values" in wanted and texts:
        name = max(texts, key=lambda name: texts[name].count("/"))
        return f"if column {name!r} holds paths of pictures, open them by `dataset.cast_column({name!r}, Image())` of `datasets`; else rename your column."
    return "rename your column."


def _file(value: Any, endings: frozenset[str]) -> str | None:
    """Describe a value that is an unopened file, None for any other."""
    if isinstance(value, bytes | bytearray):
        return "bytes of files"
    if isinstance(value, Mapping) and ("bytes" in value or "path" in value):
        return "files that are not opened (decode=False)"
    if isinstance(value, str | PurePath) and PurePath(value).suffix.lower() in endings:
        return "paths"
    return None


def _depth(value: Any) -> int:
    depth = 0
    while isinstance(value, list | tuple) and value and depth < 3:
        value, depth = value[0], depth + 1
    return depth if isinstance(value, bool | int | float) else 0
