"""Open files of votes: text, tables, JSON and binary files become a `Source`.

The content is not interpreted here: `read_annotations.py` finds the format and the roles of the columns.
Every error names the file, the line or byte, and the cause.
"""

import codecs
import csv
import glob
import json
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
from datasets import Dataset, Features

from ..columns import check_is_dataset
from .exports import load_arrays
from .source import Source, shown
from .tables import arrow_columns, checked_columns, columns_of
from .values import SPACE

SAMPLE = 100  # records from which the format is recognised
TABLES = ("table", "records")

_BLOCK = 1 << 24  # bytes of CSV that Arrow reads at once; no row may be longer


def open_source(source: Any, format: str | None) -> Source:
    """Read the user's source without interpreting it.

    Args:
        source: as in `read_annotations`.
        format: the name of a row of `FORMATS`, or None.

    Returns:
        A table, records, an object, a matrix, arrays or several files.

    Raises:
        TypeError: if `source` has another type.
        FileNotFoundError: if there is no such file.
        ValueError: if a file is empty or broken, naming the file and the place in it.
    """
    if isinstance(source, str | os.PathLike):
        paths = _paths(os.fspath(source))
        if paths is not None:
            return _files(Path(source).name, paths)
        file = _read_file(Path(source), format)
        return _files(file.name, [Path(source)]) if format == "annotator_files" else file
    for kind, name in _IN_MEMORY.items():
        if isinstance(source, kind):
            return _in_memory(name, source)
    if isinstance(source, np.ndarray):
        return Source("the matrix", "matrix", source, place="item {}".format)
    if isinstance(source, list | tuple) and source:
        if all(isinstance(one, str | os.PathLike) for one in source):
            return _files("the files", [Path(one) for one in source])
        if isinstance(source[0], dict):
            records = Source("the records", "records", list(source), place="row {}".format)
            for row, record in enumerate(records.content):
                if isinstance(record, dict) and not all(isinstance(key, str) for key in record):
                    raise records.wrong(f"names must be text, got {shown(record)}.", row)
            return records
    if type(source) is dict and source:
        return _object(Source("the dict", "mapping", source, place="row {}".format))
    if isinstance(source, list | tuple | dict) and not source:
        raise ValueError("`source` must hold votes, got nothing.")
    if isinstance(source, dict):  # a DatasetDict: its message names the splits
        check_is_dataset(source)
    raise TypeError(
        "`source` must be a path, a list of paths, a datasets.Dataset, a data frame, an Arrow "
        f"table or a list of records, got {type(source).__name__}."
    )


def first_names(source: Source) -> list[str]:
    """Return the names of the columns, or of the keys of the first records."""
    if source.kind == "table":
        return list(source.content)
    records = [record for record in source.content[:SAMPLE] if isinstance(record, dict)]
    return list(dict.fromkeys(name for record in records for name in record))


def saw(source: Source) -> str:
    """Describe a source of unknown format, for errors."""
    content = source.content
    if source.kind == "table":
        return f"a table with columns {shown(content)}"
    if source.kind == "records":
        return f"{len(content)} records with keys {shown(first_names(source)) or 'none'}"
    if source.kind == "mapping":
        return f"an object with keys {shown(content)}"
    if source.kind == "matrix":
        return f"a matrix {content.shape} without -1"
    return f"{len(content)} {source.kind}"


def _paths(source: str) -> list[Path] | None:
    """Return the files of a folder or a pattern, None for a single file."""
    path = Path(source)
    try:
        path.stat()
    except (OSError, ValueError):  # a name that no file can have, such as a very long one
        if not glob.has_magic(source):
            raise FileNotFoundError(
                f"`source` must be a file or a folder, got {source[:200]!a}: no such file."
            ) from None
    if path.is_dir():
        return sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    if path.is_file():
        return None
    if glob.has_magic(source):
        found = sorted(Path(name) for name in glob.glob(source))
        if found:
            return found
    raise FileNotFoundError(f"`source` must be a file or a folder, got {source}: no such file.")


def _files(name: str, paths: list[Path]) -> Source:
    files = [_read_file(path, None) for path in paths]
    for file in files:
        if file.kind not in TABLES:
            raise file.wrong(
                f"must be a table or records, one file per annotator, got {saw(file)}."
            )
    return Source(name, "files", files)


def _read_file(path: Path, format: str | None) -> Source:
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a file, got no such file.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path.name}: is empty.")
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise ValueError(
            f"{path.name}: the file must end in one of {', '.join(_ENDINGS)}, got {ending!r}: "
            "export the votes in one of these."
        )
    if format == "dense" and ending in (".csv", ".tsv"):
        return _matrix_of_text(path, "," if ending == ".csv" else "\t")
    return _ENDINGS[ending](path)


_IN_MEMORY: dict[Any, str] = {
    Dataset: "the data set",
    pa.Table: "the table",
    pd.DataFrame: "the data frame",
}


def _in_memory(name: str, source: Any) -> Source:
    table = columns_of(name, source)
    if table is None:  # a dict that does not hold columns
        return Source(name, "mapping", source, place="row {}".format)
    return _of_columns(Source(name, "table", None, known=table.known), table.columns)


def _of_columns(source: Source, columns: dict[str, Any]) -> Source:
    """Return a table with these columns, if there are rows."""
    if not any(len(column) for column in columns.values()):
        raise source.wrong(f"holds no rows, only the columns {shown(columns)}.")
    return replace(source, kind="table", content=columns)


def _object(source: Source) -> Source:
    """Distinguish a dict of columns from a dict of workers' labels."""
    table = columns_of(source.name, source.content)
    return source if table is None else _of_columns(source, table.columns)


# Text


def _text(path: Path) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 with a byte order mark, without the mark."""
    data = path.read_bytes()
    utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if utf_16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        start = error.start + 3 * (not utf_16 and data.startswith(codecs.BOM_UTF8))
        line = data.count(b"\n", 0, start) + 1
        raise ValueError(
            f"{path.name}, line {line}: must be text in UTF-8, got byte 0x{data[start]:02x} at "
            f"place {start}: save the file as UTF-8."
        ) from error
    if (nul := text.find("\0")) >= 0:
        line = text.count("\n", 0, nul) + 1
        raise ValueError(f"{path.name}, line {line}: must be text, got a NUL character.")
    if not text.strip():
        raise ValueError(f"{path.name}: is empty.")
    return text


def _lines(text: str) -> Iterator[str]:
    return (match[0] for match in re.finditer(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+", text))


def _rows(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each row begins, and its cells. A broken quote is an error."""
    reader = csv.reader(_lines(text), delimiter=delimiter, strict=True)
    line = 1
    try:
        for cells in reader:
            if cells:  # not an empty line
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path.name}, line {line}: a quote in the row that begins here is broken: {error}."
        ) from error


def _text_table(path: Path) -> Source:
    text = _text(path)
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    head = re.sub('"[^"]*"', "", next(line for line in _lines(text) if line.strip()))
    delimiter = usual if usual in head else max(",;\t|", key=lambda mark: head.count(mark))
    note = "" if delimiter == usual or delimiter not in head else f"separated by {delimiter!r}"

    (line, names), *first = islice(_rows(path, text, delimiter), 2)
    if not any(name.strip(SPACE) for name in names):
        raise ValueError(
            f"{path.name}, line {line}: must name the columns, got a row of empty cells: remove it."
        )
    header = [name.strip(SPACE) or f"unnamed_{i}" for i, name in enumerate(names)]
    text_columns = [[] if not first else [""]] * len(header)
    _of_columns(  # with our message, before Arrow raises its own
        Source(path.name, "table", None), checked_columns(path.name, header, text_columns)
    )
    if header[-2:] == ["Approve", "Reject"] and len(first[0][1]) == len(header) - 2:
        header = header[
            :-2
        ]  # MTurk writes these two headings for later use, without cells below them

    def check() -> None:
        for line, cells in islice(_rows(path, text, delimiter), 1, None):
            if len(cells) != len(header):
                raise ValueError(
                    f"{path.name}, line {line}: must have {len(header)} fields, got {len(cells)}: "
                    f"{shown(map(repr, cells))}."
                )

    def place(row: int) -> str:
        rows = islice(_rows(path, _text(path), delimiter), row + 1, None)
        return f"line {next(rows)[0]}"

    if '"' in text:  # Arrow would read an unclosed quote to the end of the file
        check()
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(text.encode()),
            pa_csv.ReadOptions(
                column_names=header, skip_rows=first[0][0] - 1, block_size=_BLOCK, use_threads=False
            ),
            pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values='"' in text),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        check()
        raise ValueError(f"{path.name}: {error}") from error
    open_end = None
    if text[-1] not in '\r\n"':
        open_end = header[-1]
        note = f"{note}, " * (note != "") + "its last line has no end"
    columns = arrow_columns(path.name, table, {}).columns
    return _of_columns(
        Source(path.name, "table", None, path, place, note=note, open_end=open_end), columns
    )


def _matrix_of_text(path: Path, delimiter: str | None = None) -> Source:
    lines = [(n, line) for n, line in enumerate(_lines(_text(path)), 1) if line.strip()]
    cells = [line.split(delimiter) for _, line in lines]
    for (number, _), row in zip(lines, cells, strict=True):
        if len(row) != len(cells[0]):
            raise ValueError(
                f"{path.name}, line {number}: must have M = {len(cells[0])} labels as line "
                f"{lines[0][0]} has, got {len(row)}."
            )
        if any(_float(cell) is None for cell in row):
            wrong = next(cell for cell in row if _float(cell) is None)
            raise ValueError(
                f"{path.name}, line {number}: labels must be whole numbers, got {wrong!r}."
            )
    matrix = np.array(cells, dtype=object).astype(np.float64)
    open_end = None if lines[-1][1][-1] in "\r\n" else ""
    note = "its last line has no end" * (open_end is not None)

    def place(row: int) -> str:
        return f"line {lines[row][0]}"

    return Source(path.name, "matrix", matrix, path, place, note, open_end=open_end)


def _float(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _txt(path: Path) -> Source:
    """Read a matrix if the first line holds only numbers, otherwise a table."""
    first = next(line for line in _lines(_text(path)) if line.strip())
    if all(_float(cell) is not None for cell in first.split()):
        return _matrix_of_text(path)
    return _text_table(path)


# JSON and binary files


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that occurs twice in one object, because Python would keep only the last."""
    out = dict(pairs)
    if len(out) < len(pairs):
        twice = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise ValueError(f"key {twice!r} occurs twice in one object")
    return out


_JSON = json.JSONDecoder(object_pairs_hook=_unique)  # one per line would take most of the time


def _loads(name: str, text: str, first_line: int = 1) -> Any:
    try:
        return _JSON.decode(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise ValueError(
            f"{name}, line {line}: broken JSON at column {error.colno}: {error.msg}."
        ) from error
    except (ValueError, RecursionError) as error:
        where = f"{name}, line {first_line}" if first_line > 1 or "\n" not in text else name
        raise ValueError(f"{where}: broken JSON: {error}.") from error


def _json(path: Path) -> Source:
    text = _text(path)
    try:
        content = _loads(path.name, text)
    except ValueError as error:
        if isinstance(error.__cause__, json.JSONDecodeError) and "Extra data" in str(error):
            return _json_lines(path)  # with the ending .json
        raise
    if isinstance(content, dict) and content:
        return _object(Source(path.name, "mapping", content, path))
    if not isinstance(content, list) or not content:
        got = "nothing in it" if content in ([], {}) else type(content).__name__
        raise ValueError(f"{path.name}: must hold a list of records or an object, got {got}.")
    return Source(path.name, "records", content, path, lambda row: f"record {row + 1}")


def _json_lines(path: Path) -> Source:
    lines = [(n, line) for n, line in enumerate(_lines(_text(path)), 1) if line.strip()]
    records = [_loads(path.name, line, number) for number, line in lines]
    return Source(path.name, "records", records, path, lambda row: f"line {lines[row][0]}")


def _parquet(path: Path) -> Source:
    try:
        with pa_parquet.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
            _check_statistics(file.metadata, table)
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path.name}: must be a whole Parquet file: {error}") from error
    try:
        features = Features.from_arrow_schema(table.schema)
    except Exception as error:
        raise ValueError(
            f"{path.name}: must describe its columns as `datasets` does, got metadata that cannot be "
            f"read: {error}."
        ) from error
    read = arrow_columns(path.name, table, features)
    return _of_columns(Source(path.name, "table", None, path, known=read.known), read.columns)


def _check_statistics(metadata: Any, table: pa.Table) -> None:
    """Raise a ValueError if the columns contradict the file's own statistics."""
    if metadata.num_rows != len(table):
        raise ValueError(f"it says {metadata.num_rows} rows and holds {len(table)}")
    flat = {name: i for i, name in enumerate(table.column_names)}
    start = 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        for column in range(rows.num_columns):
            chunk = rows.column(column)
            stored = chunk.statistics
            if chunk.path_in_schema not in flat or stored is None:
                continue
            values = table[chunk.path_in_schema].slice(start, rows.num_rows)
            if stored.has_null_count and stored.null_count != values.null_count:
                raise ValueError(
                    f"column {chunk.path_in_schema} says it has {stored.null_count} nulls and has "
                    f"{values.null_count}"
                )
            if not stored.has_min_max or not _is_plain(values.type):
                continue
            seen = pc.min_max(values).as_py()
            if (seen["min"], seen["max"]) != (stored.min, stored.max):
                raise ValueError(
                    f"column {chunk.path_in_schema} says it lies in {stored.min!r}..{stored.max!r} "
                    f"and lies in {seen['min']!r}..{seen['max']!r}"
                )
        start += rows.num_rows


def _is_plain(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _npy(path: Path) -> Source:
    try:
        matrix = _load_npy(path)
    except Exception as error:  # numpy evaluates the header, so a broken one can raise anything
        raise ValueError(f"{path.name}: must be a .npy file without objects: {error}") from error
    return Source(path.name, "matrix", matrix, path, place="item {}".format)


def _load_npy(path: Path) -> np.ndarray:
    """Load a file with one array whose length agrees with its header."""
    headers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("error")
        version = np.lib.format.read_magic(file)
        if version not in headers:
            raise ValueError(f"its version must be 1.0 or 2.0, got {version}")
        shape, _, dtype = headers[version](file)
        size = file.tell() + math.prod(shape) * dtype.itemsize
        if size != path.stat().st_size and not dtype.hasobject:
            raise ValueError(f"it must have {size} bytes, got {path.stat().st_size}")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


_ENDINGS: dict[str, Callable[[Path], Source]] = {
    ".csv": _text_table,
    ".tsv": _text_table,
    ".txt": _txt,
    ".json": _json,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
    ".npy": _npy,
    ".pt": load_arrays,
}
