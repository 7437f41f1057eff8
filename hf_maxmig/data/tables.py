"""Fit the processor of a table to a training set, with scikit-learn: means, scales and categories.

`TableProcessor` itself is in `model/table_processor.py`, which the Hub carries.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Dataset, Value
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from transformers.utils import logging

from ..model.class_lists import listed, meant
from ..model.opening import short
from ..model.table_processor import TableProcessor, is_missing
from .collator import NOT_INPUTS

logger = logging.get_logger(__name__)

RESERVED = (*NOT_INPUTS, "votes")  # columns that are no features: the crowd's, and gold labels

_FEW = 20  # rows; with fewer nothing is said about how many values differ
_MOST_CATEGORIES = 1000
_NUMBER = re.compile(r"\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*")
_PLAIN = {bool: "truth", int: "number", float: "number", Decimal: "number", str: "text"}


class _Column(NamedTuple):
    """A column as it was read."""

    kind: str  # "number", "truth", "text", "class" or "nothing"
    values: np.ndarray  # (N,): float64 with NaN, or objects with None, where one is missing
    whole: bool = False  # whether all numbers are whole
    names: list[str] | None = None  # of classes


def fitted_table_processor(
    dataset: Dataset | Sequence[Mapping[str, Any]],
    feature_columns: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    *,
    categorical: Sequence[str] = (),
) -> TableProcessor:
    """Fit a `TableProcessor` to the columns of a training set.

    Numbers and truth values are standardised, by scikit-learn's `StandardScaler`. Texts and `ClassLabel`s are
    categories, one-hot by its `OneHotEncoder`. Whole numbers stay numbers, even if they take few
    values, unless they are named in `categorical`. Neither votes nor gold labels are read.

    An empty cell of a CSV file, `NA` or `n/a` is None already: pandas and `datasets` read it so, and the
    column holds numbers. Other words among numbers make it a column of text, which is refused.

    Left out, with a word: columns with a single value or none at all. Also, unless `feature_columns`
    names them: whole numbers that number the rows, and text with another value in more than half of
    the rows or with more than 1,000 values, such as identifiers and free text.

    Args:
        dataset: the training set; or a list of rows, each a dict by column names.
        feature_columns: the columns to read, in the order of the features; by default all but the
            crowd's, `labels`, `label`, `votes` and those in `exclude`.
        exclude: columns that are no features, such as the item's name or a gold label in a column of
            another name.
        categorical: columns of whole numbers, or of text that looks like numbers, which stand for
            categories.

    Returns:
        The processor. `TableConfig(input_size=processor.size)` fits it.

    Raises:
        TypeError: if the data set is a stream, or something else.
        ValueError: if a column is not there, holds dates, lists or other things than numbers, truth
            values and text; holds values of several types, or text most of which is numbers; or holds an
            infinite number. The error names the column and the row. Also if no column is left.

    Example:
        >>> rows = Dataset.from_dict({"age": [30, 50, None], "job": ["nurse", "clerk", "nurse"],
        ...                           "label": [0, 1, 1]})
        >>> processor = fitted_table_processor(rows)
        >>> processor.feature_names
        ['age', 'age is missing', 'job = clerk', 'job = nurse']
        >>> processor([{"age": 60, "job": "clerk"}])["features"]
        tensor([[2., 0., 1., 0.]])
    """
    given = _names(dataset)
    names = _chosen(given, feature_columns, exclude, categorical)
    columns, left_out = [], {}
    for name, column in _read(dataset, names):
        as_category = name in categorical
        why = _of_no_use(column, feature_columns is not None or as_category)
        if column.kind == "text" and not as_category:
            _check_no_numbers(name, column.values)
        if why is not None:
            left_out[name] = why
        elif column.kind in ("text", "class") or as_category:
            columns.append(_fitted_categories(name, column))
        else:
            columns.append(_fitted_number(name, column))
    if left_out:
        logger.warning(
            "Columns that are no features, and left out: %s.",
            "; ".join(f"{name!r}, {why}" for name, why in left_out.items()),
        )
    if not columns:
        raise ValueError(
            f"a table must have a column that describes its items, got {listed(names) or 'none'} besides votes and "
            "gold labels" + (", none of which can be a feature" if names else "") + "."
        )
    return TableProcessor(columns)


# Which columns


def _names(dataset: Any) -> list[str]:
    if isinstance(dataset, Dataset):
        return dataset.column_names
    if isinstance(dataset, list | tuple) and all(isinstance(row, Mapping) for row in dataset):
        return list(dict.fromkeys(name for row in dataset for name in row))
    raise TypeError(
        f"`dataset` must be a `datasets.Dataset` or a list of dicts, got {type(dataset).__name__}: take "
        "`Dataset.from_pandas(frame)`, or of a stream `Dataset.from_list(list(stream.take(10_000)))`."
    )


def _chosen(
    given: list[str],
    feature_columns: Sequence[str] | None,
    exclude: Sequence[str],
    categorical: Sequence[str],
) -> list[str]:
    """Return the columns to read."""
    for argument, named in (
        ("feature_columns", feature_columns or ()),
        ("exclude", exclude),
        ("categorical", categorical),
    ):
        if isinstance(named, str):
            raise TypeError(f"`{argument}` must be a list of names, got {named!r}: write [{named!r}].")  # fmt: skip
        if unknown := [name for name in named if name not in given]:
            raise ValueError(
                f"`{argument}` must name columns of the data set, got {unknown[0]!r}{meant(unknown[0], given)}: it has "
                f"{', '.join(given) or 'none'}."
            )
    if feature_columns is None:
        names = [name for name in given if name not in (*RESERVED, *exclude)]
    else:
        names = list(feature_columns)
        for name in names:
            if name in RESERVED:
                raise ValueError(
                    f"`feature_columns` must name columns that describe items, got {name!r}, which holds votes or gold "
                    "labels: rename it if it is a feature."
                )
            if names.count(name) > 1:
                raise ValueError(f"`feature_columns` must name a column once, got {name!r} twice.")
    if others := [name for name in categorical if name not in names]:
        raise ValueError(f"`categorical` must name columns that are read, got {others[0]!r}.")
    if "features" in names:
        raise ValueError(
            "a column of a table must not be named 'features', which is what a classifier takes: rename it, or "
            "`exclude` it."
        )
    return names


def _of_no_use(column: _Column, named: bool) -> str | None:
    """Say why a column is no feature, or None."""
    missing = _is_missing(column.values)
    values = column.values[~missing]
    different = len({*values.tolist()})
    if different == 0:
        return "empty"
    if different == 1 and not missing.any():
        return f"always {short(values[0])}"
    if named or len(values) < _FEW:
        return None
    if column.kind == "text" and 2 * different > len(values):
        return "another value in most rows"
    if column.kind == "text" and different > _MOST_CATEGORIES:
        return f"{different:,} different values"
    span = values.max() - values.min() if column.whole else None
    if different == len(values) == len(missing) and span == len(values) - 1:
        return "the rows' numbers"
    return None


def _check_no_numbers(name: str, values: np.ndarray) -> None:
    """Refuse text that is meant as numbers."""
    there = ~_is_missing(values)
    numbers = np.array([bool(_NUMBER.fullmatch(value)) for value in values[there]], dtype=bool)
    if 2 * numbers.sum() <= len(numbers):
        return
    remedy = (
        "make it numbers, with None for what is not known (pandas' `to_numeric(..., errors='coerce')`), or name it "
        "in `categorical` if they stand for categories"
    )
    if not numbers.all():
        row = int(np.flatnonzero(there)[numbers.argmin()])
        raise ValueError(
            f"column {name!r} must hold values of one type, got {short(values[row])} at item {row} among numbers: {remedy}."
        )
    if len(numbers) >= _FEW and 2 * len({*values[there]}) > len(numbers):
        raise ValueError(
            f"column {name!r} must hold numbers as numbers, got {short(values[there][0])} as text: {remedy}."
        )


# Their values


def _is_missing(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        return np.isnan(values)
    return np.array([value is None for value in values], dtype=bool)


def _read(dataset: Any, names: Sequence[str]) -> Iterator[tuple[str, _Column]]:
    """Read the columns: of a data set through Arrow, without its transform."""
    if not isinstance(dataset, Dataset):
        yield from ((name, _of_rows(dataset, name)) for name in names)
        return
    kinds = dataset.features  # a copy, as each view of the data set makes one
    for name in names:
        if not isinstance(kinds[name], Value | ClassLabel):
            raise _unsuitable(name, type(kinds[name]).__name__)
    table = dataset.with_format("arrow", columns=[*names])[:]
    for name in names:
        yield name, _of_arrow(name, kinds[name], table[name].combine_chunks())


def _of_arrow(name: str, feature: Value | ClassLabel, array: pa.Array) -> _Column:
    kind = array.type
    if isinstance(feature, ClassLabel):
        codes = [None if code is None or code < 0 else code for code in array.to_pylist()]
        return _Column("class", _objects(codes), names=list(feature.names))
    if pa.types.is_null(kind):
        return _Column("nothing", _objects([None] * len(array)))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _Column("text", _texts(array.to_pylist()))
    whole, truth = pa.types.is_integer(kind), pa.types.is_boolean(kind)
    if not (whole or truth or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise _unsuitable(name, str(kind))
    # Through Python only where a cast might refuse a number.
    exact = array if pa.types.is_decimal(kind) else array.cast(pa.float64(), safe=False)
    numbers = exact.to_pylist() if pa.types.is_decimal(kind) else exact.to_numpy(zero_copy_only=False)  # fmt: skip
    return _Column("truth" if truth else "number", _finite(name, numbers), whole)


def _of_rows(rows: Sequence[Mapping[str, Any]], name: str) -> _Column:
    """Read a column of dicts, whose types may differ."""
    values = []
    for row, of_row in enumerate(rows):
        if name not in of_row:
            raise ValueError(
                f"each row must have the column {name!r}, got {listed([*map(str, of_row)]) or 'nothing'} at item {row}: "
                "None stands for a value that is not known."
            )
        value = of_row[name]
        value = value.item() if getattr(value, "ndim", 1) == 0 else value
        values.append(None if is_missing(value) else value)
    kinds = [None if value is None else _PLAIN.get(type(value)) for value in values]
    for row, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        if value is not None and kind is None:
            raise _unsuitable(name, type(value).__name__, row)
    first = next((kind for kind in kinds if kind), "nothing")
    for row, kind in enumerate(kinds):
        if kind not in (None, first):
            raise ValueError(
                f"column {name!r} must hold values of one type, got {short(values[row])} at item {row} and "
                f"{short(values[kinds.index(first)])} at item {kinds.index(first)}: make them of one type, or None where "
                "the value is not known."
            )
    if first in ("text", "nothing"):
        return _Column(first, _texts(values))
    whole = all(value is None or isinstance(value, int) for value in values)
    return _Column(first, _finite(name, values), whole)


def _unsuitable(name: str, kind: str, row: int | None = None) -> ValueError:
    where = "" if row is None else f" at item {row}"
    hint = "leave it out by `exclude`"
    if "date" in kind or "time" in kind or "duration" in kind:
        hint = "make numbers of it that mean something for the items (an age in days, the hour), or " + hint  # fmt: skip
    elif kind in ("List", "LargeList", "Sequence", "list", "tuple", "ndarray"):
        hint = "give its numbers columns of their own, or " + hint
    return ValueError(
        f"column {name!r} must hold numbers, truth values or text, got {kind}{where}: {hint}."
    )


def _objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _texts(values: list[Any]) -> np.ndarray:
    """Blank text is an empty cell."""
    return _objects([None if value is None or not value.strip() else value for value in values])


def _finite(name: str, values: Any) -> np.ndarray:
    numbers = np.array([np.nan if v is None else _as_float(v) for v in values]) if isinstance(values, list) else values.astype(np.float64)  # fmt: skip
    infinite = np.isinf(numbers)
    if infinite.any():
        row = int(infinite.argmax())
        raise ValueError(
            f"column {name!r} must hold finite numbers, got {numbers[row]} at item {row}: mend it, or make it None."
        )
    return numbers


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


# What is learned of them


def _fitted_number(name: str, column: _Column) -> dict[str, Any]:
    with np.errstate(over="ignore", invalid="ignore"):
        scaler = StandardScaler().fit(column.values[:, None])
    mean, scale = float(scaler.mean_[0]), float(scaler.scale_[0])
    if not np.isfinite(scaler.var_[0]):  # the scale is then 1
        row = int(np.nanargmax(np.abs(column.values)))
        raise ValueError(
            f"column {name!r} must hold numbers whose spread can be computed, got {column.values[row]} at item {row}: "
            "divide them, or take their logarithms."
        )
    missing = bool(_is_missing(column.values).any())
    return {"name": name, "kind": column.kind, "mean": mean, "scale": scale, "missing": missing}


def _fitted_categories(name: str, column: _Column) -> dict[str, Any]:
    missing = _is_missing(column.values)
    values = column.values[~missing]
    if column.kind == "number":
        if not column.whole and (values != np.floor(values)).any():
            row = int(np.flatnonzero(~missing)[(values != np.floor(values)).argmax()])
            raise ValueError(
                f"`categorical` must name columns of whole numbers or text, got {name!r} with "
                f"{column.values[row]} at item {row}."
            )
        values = values.astype(np.int64)
    elif column.kind == "truth":
        return _fitted_number(name, column)
    elif column.kind == "class":
        values = values.astype(np.int64)
    (found,) = OneHotEncoder().fit(values[:, None]).categories_
    categories = found.tolist()
    fitted: dict[str, Any] = {"name": name, "kind": "category", "missing": bool(missing.any())}
    if column.names is not None:
        fitted["names"] = column.names
        categories = [column.names[code] for code in categories]
    return {**fitted, "categories": categories}


__all__ = ["RESERVED", "fitted_table_processor"]
