"""Columns of a table in memory: from `datasets`, Arrow, pandas, a dict of columns or a list of records.

The numbers of a `ClassLabel` become its names, also inside lists and structures. The columns are not
interpreted here.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, LargeList, List

from .cells import Column
from .values import is_text

_COLUMN_TYPES = (list, tuple, np.ndarray, pa.Array, pa.ChunkedArray, pd.Series, pd.Index)


@dataclass(frozen=True)
class Table:
    """Columns by name, as Arrow columns or lists of Python values; and the names of their ClassLabels."""

    columns: dict[str, Column]
    known: frozenset[str] = frozenset()


def columns_of(name: str, source: Any) -> Table | None:
    """Return the columns of a table in memory, or None for anything else.

    Args:
        name: the name of the table, for errors.
        source: anything.

    Raises:
        ValueError: if two columns have the same name, columns differ in length, a number is out of the
            range of its ClassLabel, or Arrow's memory is invalid.

    Example:
        >>> columns_of("votes", {"item": [1, 2]}).columns["item"].to_pylist()
        [1, 2]
    """
    if isinstance(source, Dataset):
        return arrow_columns(name, source.with_format("arrow")[:], source.features)
    if isinstance(source, pa.Table):
        return arrow_columns(name, source, {})
    if isinstance(source, pd.DataFrame):
        columns = [_series(source.iloc[:, i]) for i in range(source.shape[1])]
        return Table(checked_columns(name, map(str, source.columns), columns))
    if isinstance(source, dict) and all(isinstance(c, _COLUMN_TYPES) for c in source.values()):
        return Table(checked_columns(name, map(str, source), map(_series, source.values())))
    if isinstance(source, list | tuple) and source and isinstance(source[0], dict):
        return Table(record_columns(name, source, "row {}".format))
    return None


def record_columns(name: str, records: Any, place: Any) -> dict[str, Column]:
    """Turn records into columns, with None where a key is absent.

    Raises:
        ValueError: if a record is not an object, or has a key that is not text; naming the record.
    """
    for row, record in enumerate(records):
        if not isinstance(record, dict):
            raise ValueError(
                f"{name}, {place(row)}: must be an object with names, got {type(record).__name__}."
            )
        for key in record:
            if not isinstance(key, str) or not is_text(key):
                raise ValueError(f"{name}, {place(row)}: keys must be text, got {key!a}.")
    names = dict.fromkeys(key for record in records for key in record)
    return {key: [record.get(key) for record in records] for key in names}


def checked_columns(
    name: str, names: Iterable[str], columns: Iterable[Column]
) -> dict[str, Column]:
    """Return columns by name, with Arrow arrays as chunked ones.

    Raises:
        ValueError: if a name occurs twice or is not text, or the columns differ in length.
    """
    names, columns = list(names), list(columns)
    if twice := [one for one, n in Counter(names).items() if n > 1]:
        raise ValueError(f"{name}: column names must differ, got {twice[0]!a} more than once.")
    if strange := [one for one in names if not is_text(one)]:
        raise ValueError(f"{name}: column names must be Unicode text, got {strange[0]!a}.")
    lengths = {one: len(column) for one, column in zip(names, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{name}: columns must be of one length, got {lengths}.")
    return {
        one: pa.chunked_array([column]) if isinstance(column, pa.Array) else column
        for one, column in zip(names, columns, strict=True)
    }


def arrow_columns(name: str, table: pa.Table, features: Any) -> Table:
    """Return the columns of an Arrow table, and the names of the ClassLabels among its features.

    Raises:
        ValueError: if its memory is invalid, or a number is out of the range of its ClassLabel.
    """
    try:
        table.validate(full=True)
    except pa.ArrowException as error:
        raise ValueError(f"{name}: must be a valid Arrow table, got: {error}.") from error
    columns: list[Column] = []
    known: set[str] = set()
    for column, values in zip(table.column_names, table.columns, strict=True):
        feature = features.get(column)
        names = set(_class_names(feature))
        known |= names
        if not names:
            columns.append(values)
        elif isinstance(feature, ClassLabel):
            columns.append(_decoded(name, column, values, feature))
        else:
            columns.append([_inside(name, column, feature, v) for v in values.to_pylist()])
    return Table(checked_columns(name, table.column_names, columns), frozenset(known))


def _class_names(feature: Any) -> Iterable[str]:
    """Yield the names of all ClassLabels inside a feature."""
    if isinstance(feature, ClassLabel):
        yield from feature.names
    elif isinstance(feature, List | LargeList):
        yield from _class_names(feature.feature)
    elif isinstance(feature, list | tuple | dict):
        inner = feature.values() if isinstance(feature, dict) else feature
        yield from (one for part in inner for one in _class_names(part))


def _decoded(name: str, column: str, values: pa.ChunkedArray, feature: ClassLabel) -> Column:
    """Write out the names of a ClassLabel; its -1 is a missing value."""
    if not pa.types.is_integer(values.type):
        return values
    number = values.combine_chunks()
    wrong = pc.fill_null(pc.greater_equal(number, len(feature.names)), False)
    if (row := pc.index(wrong, True).as_py()) >= 0:
        raise ValueError(
            f"{name}, row {row}: `{column}` must lie in 0..{len(feature.names) - 1} or be -1, got "
            f"{number[row].as_py()}."
        )
    number = pc.if_else(pc.less(number, 0), pa.scalar(None, number.type), number)
    names = pa.array(feature.names, pa.string())
    return pa.chunked_array([names.take(number)])


def _inside(name: str, column: str, feature: Any, value: Any) -> Any:
    """Write out the names of ClassLabels inside lists and structures."""
    if value is None:
        return None
    if isinstance(feature, ClassLabel) and isinstance(value, int):
        if value >= len(feature.names):
            raise ValueError(
                f"{name}: `{column}` must lie in 0..{len(feature.names) - 1} or be -1, got {value}."
            )
        return feature.names[value] if value >= 0 else None
    if isinstance(feature, List | LargeList):
        return [_inside(name, column, feature.feature, one) for one in value]
    if isinstance(feature, list | tuple) and len(feature) == 1 and isinstance(value, list):
        return [_inside(name, column, feature[0], one) for one in value]
    if isinstance(feature, dict) and isinstance(value, dict):
        return {key: _inside(name, column, feature.get(key), one) for key, one in value.items()}
    return value


def _series(column: Any) -> Column:
    """Return an Arrow column, or a list of Python values where Arrow would guess or fail."""
    if isinstance(column, pa.Array | pa.ChunkedArray | list | tuple):
        # Arrow reads a list of one type fast. With several types it would guess.
        if isinstance(column, tuple):
            column = list(column)
        kinds = set(map(type, column)) if isinstance(column, list) else set()
        if len(kinds) == 1 and kinds <= {int, str}:
            return _by_arrow(column)
        return column
    if (
        getattr(getattr(column, "dtype", None), "kind", "") == "O"
        or getattr(column, "ndim", 1) != 1
    ):
        return list(column)
    return _by_arrow(column)


def _by_arrow(column: Any) -> Column:
    try:
        return pa.array(column, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return list(column)
