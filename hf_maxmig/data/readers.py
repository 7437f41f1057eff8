"""Votes of a crowd from wherever they are kept: one door, `read_annotations`, and its formats.

What lives here: telling the format, the tables (long, wide, dense), and the names that values get.
Opening files is in `files.py`, what the exports of annotation tools look like in `exports.py`;
joining votes to a data set is in `columns.py`.

A format is one function and one row of `FORMATS`.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from transformers.utils import logging

from .exports import (
    ROLES,
    Asked,
    Column,
    Source,
    Votes,
    annotator_files,
    argilla,
    candidates,
    cifar_n,
    extra_name,
    is_argilla,
    label_studio,
    peerannot,
    pick,
    shown,
)
from .files import SAMPLE, TABLES, first_names, open_source, saw

logger = logging.get_logger(__name__)

_EXACT = 2.0**53  # whole numbers above it are not exact in a float


def read_annotations(
    source: Any,
    format: str | None = None,
    *,
    item: str | None = None,
    annotator: Any = None,
    annotation: str | None = None,
    gold: str | None = None,
) -> Dataset:
    """Read who said what about which item, in whatever form the votes arrive.

    The format is told from the content and what was found is logged in one line; what cannot be
    told is an error. Nothing is left out without being counted in that line.

    | `format` | what |
    |---|---|
    | `long` | a table, one vote a row: CSV, TSV, JSON, JSON lines, Parquet; MTurk, Toloka, crowd-kit, Label Studio's JSON-MIN and CSV |
    | `wide` | a table, one column an annotator, empty where there is no label |
    | `dense` | a matrix of whole numbers, items in rows, -1 where there is no label: .txt, .npy |
    | `peerannot` | JSON `{task: {worker: label}}` |
    | `label_studio` | JSON of Label Studio |
    | `argilla` | records of Argilla 1 or 2, JSON or from the Hub |
    | `annotator_files` | a folder or a list of files, one an annotator: doccano, or tables |
    | `cifar_n` | `CIFAR-10_human.pt`, `CIFAR-100_human.pt` |

    In text tables everything is text: 007 stays 007. Headers, annotators and labels lose the white
    space around them, items keep theirs: they must match the data set's. Elsewhere whole numbers
    are numbers; a column of numbers and text becomes text, and where both the number 1 and the text
    "1" occur the text is written with its quotes. True and False become "true" and "false".

    Args:
        source: a path, a folder, a pattern or a list of paths, or a table in memory: a
            `datasets.Dataset`, a pandas data frame, an Arrow table, a list of records.
        format: one of `FORMATS`; by default told from the content.
        item: where the item stands: column, key of `data` (Label Studio) or of `fields` (Argilla).
        annotator: where the annotator stands; for a wide table the columns that are annotators; for
            CIFAR-100N the path of its file of workers.
        annotation: where the label stands: column, question, or array.
        gold: where the item's gold label stands, if anywhere.

    Returns:
        One vote a row: `item`, `annotator`, `annotation`, then `gold` where the source has gold
        labels (each row has that of its item), then the other columns of the source, one called as
        one of ours with `original_` before its name. An item with a gold label and no vote is one
        row whose annotator and annotation are None. `add_annotations` joins it to a data set.

    Raises:
        FileNotFoundError: if there is no such file.
        TypeError: if `source` is none of the above.
        ValueError: naming file, line or record, and cause, if the source is malformed, a row has a
            label without annotator or item or the other way round, an item has two gold labels, the
            format or a column cannot be told, or there are no votes.

    Example:
        >>> votes = [{"image": "a.jpg", "worker": "ann", "label": "cat"},
        ...          {"image": "a.jpg", "worker": "bob", "label": "dog"}]
        >>> read_annotations(votes)[1]
        {'item': 'a.jpg', 'annotator': 'bob', 'annotation': 'dog'}
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"`format` must be one of {', '.join(FORMATS)}, got {format!r}.")
    asked = Asked(item, annotator, annotation, gold)
    opened = open_source(source, format)
    chosen = format or _recognise(opened, asked)
    form = FORMATS[chosen]
    if opened.kind not in form.kinds:
        raise opened.wrong(f"must be {form.says} for `format={chosen!r}`, got {saw(opened)}.")
    for role in ROLES:
        if getattr(asked, role) is not None and role not in form.takes:
            raise opened.wrong(
                f"`{role}` must be left out for {chosen}: it is not looked up there."
            )
    return _finish(form.read(opened, asked), chosen, asked, format is None)


# The tables


def long(source: Source, asked: Asked) -> Votes:
    """Read a table with one vote a row.

    Args:
        source: columns or records.
        asked: a column for each role; by default the only one with a usual name. A table that has
            columns item, annotator and annotation is taken at its word.

    Returns:
        The votes, with all other columns.

    Raises:
        ValueError: if no column, or more than one, could be a role.
    """
    columns = _columns(source)
    found: dict[str, str] = {}
    for role in ROLES:
        named = getattr(asked, role)
        if named is None and role in columns and set(ROLES[:3]) <= columns.keys():
            named = role
        elif named is None and role == "gold":  # Toloka: of several, that of the same question
            twin = re.sub("^OUTPUT:", "GOLDEN:", found["annotation"])
            named = twin if twin != found["annotation"] and twin in columns else None
        named = pick(source, role, columns, named, required=role != "gold")
        if named is not None:
            found[role] = named
    if len(set(found.values())) < len(found):
        raise source.wrong(f"each role must have its own column, got {_pairs(found)}.")
    out = {role: columns.pop(name) for role, name in found.items()}
    return Votes(out | _extras(source, columns), source, found=found)


def wide(source: Source, asked: Asked) -> Votes:
    """Read a table with one column an annotator, empty where there is no label.

    Args:
        source: columns or records.
        asked: `item`: a column; by default the only one with a usual name, else the first.
            `annotator`: the columns that are annotators; by default all but the item and gold.

    Returns:
        The votes, item by item; with the other columns if `annotator` was given.

    Raises:
        ValueError: if there is no column of an annotator.
    """
    columns = _columns(source)
    item = asked.item if candidates("item", columns) or asked.item else next(iter(columns))
    item = pick(source, "item", columns, item) or ""
    gold = pick(source, "gold", columns, asked.gold, required=False)
    who = [asked.annotator] if isinstance(asked.annotator, str) else asked.annotator
    who = [name for name in columns if name not in (item, gold)] if who is None else list(who)
    if not who:
        raise source.wrong(f"must have a column an annotator, got only {shown(columns)}.")
    for name in who:
        pick(source, "annotator", columns, name)
    number = len(columns[item])
    labels = _named(source, [columns[name] for name in who], who, trim=source.is_text)
    said = pa.chunked_array([chunk for column in labels for chunk in column.chunks], labels[0].type)
    place = np.flatnonzero(np.asarray(said.is_valid()))
    place = place[np.argsort(place % number, kind="stable")]  # item by item
    silent = np.setdiff1d(np.arange(number), place % number)  # may still have a gold label
    none = np.arange(len(place) + len(silent)) >= len(place)
    place = np.concatenate([place, silent])
    row = place % number
    out: dict[str, Column] = {
        "item": _take(columns[item], row),
        "annotator": pa.array(who).take(pa.array(place // number, mask=none)),
        "annotation": said.take(pa.array(place, mask=none)),
    }
    found = {"item": item, "annotator": f"columns {shown(who)}"}
    if gold is not None:
        out["gold"], found["gold"] = _take(columns[gold], row), gold
    rest = {n: _take(c, row) for n, c in columns.items() if n not in (item, gold, *who)}
    return Votes(out | _extras(source, rest), source, row, found)


def dense(source: Source, asked: Asked) -> Votes:
    """Read a matrix of labels: items in rows, annotators in columns, -1 where there is no label.

    Args:
        source: (N, M) whole numbers.
        asked: nothing.

    Returns:
        The votes; items and annotators are numbered from 0.

    Raises:
        ValueError: if the array is none, or a value is no whole number or below -1.
    """
    matrix = source.content
    if matrix.ndim != 2 or matrix.dtype.kind not in "iuf":
        raise source.wrong(
            f"must be a matrix of numbers (N, M), got {matrix.dtype} {matrix.shape}."
        )
    wrong = (matrix != np.floor(matrix)) | (matrix < -1) | ~np.isfinite(matrix)
    if wrong.any():
        row, m = (int(i) for i in np.argwhere(wrong)[0])
        raise source.wrong(
            f"labels must be whole numbers from 0, or -1 for none, got {matrix[row, m]} of "
            f"annotator {m}.", row
        )  # fmt: skip
    item, annotator = np.nonzero(matrix >= 0)
    columns: dict[str, Column] = {
        "item": pa.array(item),
        "annotator": pa.array(annotator),
        "annotation": pa.array(matrix[item, annotator].astype(np.int64)),
    }
    silent = Counter({"items without a vote": len(matrix) - len(np.unique(item))})
    return Votes(columns, source, item, left_out=silent)


def _columns(source: Source) -> dict[str, Column]:
    """Return the columns of a table, or of records as lists with None where a key is absent."""
    if source.kind == "table":
        return dict(source.content)
    records = source.records()
    for row, record in enumerate(records):
        if not isinstance(record, dict):
            raise source.wrong(f"must be an object with names, got {type(record).__name__}.", row)
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def _extras(source: Source, columns: dict[str, Column]) -> dict[str, Column]:
    extras = {extra_name(name): column for name, column in columns.items()}
    if len(extras) < len(columns):
        raise source.wrong(f"column names must differ, got {shown(sorted(columns))}.")
    return extras


def _take(column: Column, rows: np.ndarray) -> Column:
    if isinstance(column, list):
        return [column[row] for row in rows]
    return column.take(pa.array(rows))


# The formats, and telling them apart


def _looks_long(source: Source, asked: Asked) -> bool:
    names = first_names(source)
    if isinstance(asked.annotator, list | tuple):
        return False
    return all(getattr(asked, role) or candidates(role, names) for role in ROLES[:3])


def _looks_wide(source: Source, asked: Asked) -> bool:
    """Tell a crowd from other columns: each annotator shares a label with another one."""
    names = first_names(source)
    if isinstance(asked.annotator, list | tuple):
        return True
    if candidates("annotator", names) or candidates("annotation", names) or asked.annotation:
        return False
    first = {names[0]} if names and names[0].startswith("unnamed_") else set()
    item = {asked.item} if asked.item else set(candidates("item", names)) or first
    rest = [name for name in names if name not in {*item, *candidates("gold", names)}]
    if len(item) != 1 or len(rest) < 2:
        return False
    columns = _columns(source)
    said = []
    for name in rest:
        values = columns[name]
        if not isinstance(values, list):
            nested = pa.types.is_nested(values.type)
            values = [[]] if nested else values.unique().to_pylist()
        if any(isinstance(value, list | dict) for value in values):
            return False
        said.append({value for value in values if not _is_missing(value) and value != ""})
    shared = Counter(value for values in said for value in values)
    return all(any(shared[value] > 1 for value in values) for values in said if values)


def _looks_label_studio(source: Source, asked: Asked) -> bool:
    return {"data", "annotations"} <= set(first_names(source))


def _looks_argilla(source: Source, asked: Asked) -> bool:
    content = source.content
    if source.kind == "table":  # of which turning the whole into records would take long
        content = {name: column[:SAMPLE] for name, column in content.items()}
    return any(map(is_argilla, replace(source, content=content).records()[:SAMPLE]))


def _looks_dense(source: Source, asked: Asked) -> bool:
    """Tell labels from counts or gold labels: some are missing."""
    return source.content.ndim == 2 and bool((source.content == -1).any())


def _always(source: Source, asked: Asked) -> bool:
    return True


@dataclass(frozen=True)
class Format:
    """A format: its reader, how it is told, which roles one may name, and what it is in words."""

    read: Callable[[Source, Asked], Votes]
    looks: Callable[[Source, Asked], bool]
    kinds: tuple[str, ...]
    takes: tuple[str, ...]
    says: str


FORMATS = {
    "long": Format(long, _looks_long, TABLES, ROLES, "a table with one vote a row"),
    "wide": Format(
        wide, _looks_wide, TABLES, ("item", "annotator", "gold"), "a table, one column an annotator"
    ),
    "dense": Format(
        dense, _looks_dense, ("matrix",), (), "a matrix of whole numbers, -1 for no label (.txt, .npy)"
    ),
    "peerannot": Format(peerannot, _always, ("mapping",), (), "JSON {task: {worker: label}}"),
    "label_studio": Format(
        label_studio,
        _looks_label_studio,
        ("records",),
        ("item", "annotation", "gold"),
        "JSON of Label Studio",
    ),
    "argilla": Format(
        argilla, _looks_argilla, TABLES, ("item", "annotation", "gold"), "records of Argilla"
    ),
    "annotator_files": Format(
        annotator_files,
        _always,
        ("files",),
        ("item", "annotation", "gold"),
        "one file an annotator, a folder or a list of paths (doccano)",
    ),
    "cifar_n": Format(
        cifar_n, _always, ("arrays",), ("annotator", "annotation"), "CIFAR-10N or CIFAR-100N (.pt)"
    ),
}  # fmt: skip


def _recognise(source: Source, asked: Asked) -> str:
    fits = [
        name
        for name, form in FORMATS.items()
        if source.kind in form.kinds and form.looks(source, asked)
    ]
    if len(fits) == 1:
        return fits[0]
    table = ""
    if source.kind in TABLES:
        names = first_names(source)
        found = {r: getattr(asked, r) or shown(candidates(r, names)) for r in ROLES[:3]}
        table = " Columns that could be a role: " + _pairs(
            {r: n or "none" for r, n in found.items()}
        )
        table += "; name them by `item=`, `annotator=`, `annotation=`."
    formats = "".join(f"\n  {name!r}: {form.says}" for name, form in FORMATS.items())
    raise source.wrong(
        f"{'no format fits' if not fits else f'fits both {shown(fits)}'}, got {saw(source)}."
        f"{table} Or name the format by `format=`:{formats}"
    )


def _pairs(found: dict[str, str]) -> str:
    return ", ".join(f"{role}={name}" for role, name in found.items())


# From what a format found to the table that leaves


def _finish(votes: Votes, format: str, asked: Asked, guessed: bool) -> Dataset:
    """Name the values, check that votes are whole, give each row the gold label of its item."""
    source, columns, left_out = votes.source, dict(votes.columns), votes.left_out
    roles = [role for role in ROLES if role in columns]
    named: dict[str, Any] = {}
    for together in (["item"], ["annotator"], roles[2:]):  # gold labels are named as annotations
        values = [columns.pop(role) for role in together]
        heads = [votes.found.get(role, role) for role in together]
        trim = source.is_text and together != ["item"]
        named |= zip(together, _named(votes, values, heads, trim), strict=True)

    has = {role: np.asarray(column.is_valid()) for role, column in named.items()}
    has_gold = has.get("gold", np.zeros(len(has["item"]), bool))
    is_vote = has["annotator"] & has["annotation"]
    nobody = ~has["annotator"] & ~has["annotation"]
    blank = nobody & ~has_gold & ~has["item"]
    for role, wrong in {
        "item": ~has["item"] & ~blank,
        "annotator": has["annotation"] & ~has["annotator"],
        "annotation": has["annotator"] & ~has["annotation"],
    }.items():
        if wrong.any():
            row = int(wrong.argmax())
            seen = {r: c[row].as_py() for r, c in named.items() if has[r][row]}
            raise votes.wrong(f"has no {role}, only {_pairs(seen)}.", row)
    left_out["blank rows"] = int(blank.sum())
    left_out["rows without a vote"] = int((nobody & ~has_gold & ~blank).sum())
    if not is_vote.any():
        raise source.wrong(f"must hold at least one vote, got none{_counted(left_out)}.")

    keep = is_vote
    if "gold" in named:
        codes, of_item = _spread_gold(votes, named["item"], named["gold"], has_gold)
        named["gold"] = named["gold"].take(pa.array(of_item, mask=of_item < 0))
        voted = np.bincount(codes[is_vote], minlength=codes.max() + 1) > 0
        alone = nobody & has_gold & ~voted[codes]
        rows = np.flatnonzero(alone)
        keep = is_vote.copy()
        keep[rows[np.unique(codes[rows], return_index=True)[1]]] = True  # one row an item
        left_out["gold-only rows of items that have another row"] = int(
            (nobody & has_gold & ~keep).sum()
        )

    named |= {name: _extra(column) for name, column in columns.items()}
    table = pa.table({role: named.pop(role) for role in roles} | named)
    if not keep.all():
        table = table.filter(pa.array(keep))
    _tell(votes, format, asked, guessed, table)
    return Dataset(table)


def _spread_gold(
    votes: Votes, items: pa.ChunkedArray, gold: pa.ChunkedArray, has_gold: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Number the items, and say for each row which row holds its item's gold label; -1 for none."""
    codes, labels = _codes(items), _codes(gold)
    rows = np.flatnonzero(has_gold)
    holder = np.full(codes.max() + 2, -1)
    holder[codes[rows[::-1]]] = rows[::-1]  # the first row of an item counts
    other = rows[labels[holder[codes[rows]]] != labels[rows]]
    if len(other):
        row = int(other[0])
        first = int(holder[codes[row]])
        raise votes.wrong(
            f"item {items[row].as_py()!r} must have one gold label, got {gold[row].as_py()!r} here "
            f"and {gold[first].as_py()!r} at {votes.place(first)}.", row
        )  # fmt: skip
    holder[-1] = -1
    return codes, holder[codes]


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    encoded = column.combine_chunks().dictionary_encode()
    return np.asarray(pc.fill_null(encoded.indices, -1)).astype(np.int64)


def _counted(left_out: Counter[str]) -> str:
    parts = [f"{what} {number}" for what, number in left_out.items() if number]
    return f"; left out: {', '.join(parts)}" if parts else ""


def _tell(votes: Votes, format: str, asked: Asked, guessed: bool, table: pa.Table) -> None:
    """Say in one line what was read; loudly where anything was guessed or left out."""
    number = len(table) - table["annotation"].null_count
    items, annotators = (len(table[role].drop_null().unique()) for role in ROLES[:2])
    text = f"{votes.source.name}: {format}{' table' * (format in ('long', 'wide'))}, "
    text += f"{number} votes on {items} items by {annotators} annotators"
    text += f", {_pairs(votes.found)}" * (len(votes.found) > 0)
    text += f" ({votes.source.note})" * (votes.source.note != "")
    if gold_only := len(table) - number:
        text += f"; {gold_only} rows hold a gold label only"
    text += _counted(votes.left_out)
    named = all(getattr(asked, role) is not None for role in votes.found)
    quiet = named and not guessed and not +votes.left_out
    (logger.info if quiet else logger.warning)("%s", text)


# The names that values get


def _named(
    votes: Votes | Source, columns: list[Column], heads: list[str], trim: bool
) -> list[pa.ChunkedArray]:
    """Bring columns of one kind of name to whole numbers or text, all alike; None where missing."""
    if any(isinstance(column, list) for column in columns):
        values = [c if isinstance(c, list) else c.to_pylist() for c in columns]
        named = _named_values(votes, values, heads)
    else:
        named = [
            _named_arrow(votes, column, head) for column, head in zip(columns, heads, strict=True)
        ]
        if len({column.type for column in named if column.null_count < len(column)}) == 1:
            kind = next(c.type for c in named if c.null_count < len(c))
        else:
            kind = pa.string()
        named = [column.cast(kind) for column in named]
    if named[0].type == pa.string():
        for i, column in enumerate(named):
            column = pc.ascii_trim_whitespace(column) if trim else column
            empty = pc.equal(column, "")
            named[i] = pc.if_else(empty, pa.scalar(None, pa.string()), column)
    return [c if isinstance(c, pa.ChunkedArray) else pa.chunked_array([c]) for c in named]


def _named_arrow(votes: Votes | Source, column: Any, head: str) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind := kind.value_type)
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        row = int(np.asarray(column.is_valid()).argmax())
        raise votes.wrong(f"`{head}` must hold text or numbers, got {kind}.", row)
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:
            pass  # 2.5, or more than 64 bits
    return column.cast(pa.string())


def _named_values(
    votes: Votes | Source, columns: list[list[Any]], heads: list[str]
) -> list[pa.Array]:
    known: dict[tuple[type, Any], int | float | str | None] = {}  # what each value becomes
    for column, head in zip(columns, heads, strict=True):
        for row, value in enumerate(column):
            if isinstance(value, list | tuple | dict | set | bytes | np.ndarray):
                got = json.dumps(value, ensure_ascii=False, default=str)
                raise votes.wrong(f"`{head}` must hold text or numbers, got {got}.", row)
            if (key := (type(value), value)) not in known:
                known[key] = None if _is_missing(value) or value == "" else _number(value)
    texts = {name for (kind, _), name in known.items() if kind is str and name is not None}
    others = {name for (kind, _), name in known.items() if kind is not str and name is not None}
    kind = pa.string()
    if not texts and others and all(isinstance(n, int) and _fits(n) for n in others):
        kind = pa.int64()
    else:
        collide = texts & {str(name) for name in others}
        if collide:
            logger.warning(
                "%s: %s holds both numbers and text for %s: the text is written with its quotes.",
                votes.name, " and ".join(heads), shown(sorted(collide)),
            )  # fmt: skip
        for key, name in known.items():
            # Text that begins with a quote gets quotes too: no two names may become one.
            if isinstance(name, str) and key[0] is str and collide:
                quote = name in collide or name.startswith('"')
                known[key] = json.dumps(name, ensure_ascii=False) if quote else name
            elif name is not None:
                known[key] = str(name)
    return [pa.array([known[type(v), v] for v in column], kind) for column in columns]


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or value is pd.NaT or value != value


def _number(value: Any) -> int | float | str:
    """Return a whole number as such, 3.0 too; True as "true"; anything else as its text."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        number = float(value)
        return int(number) if number.is_integer() and abs(number) < _EXACT else number
    return str(value)


def _extra(column: Column) -> Any:
    """Bring an extra column to Arrow: as it is if its values are of one kind, else as JSON."""
    if not isinstance(column, list):
        return column
    if len({type(value) for value in column if not _is_missing(value)}) <= 1:
        try:
            return pa.array(column, from_pandas=True)
        except (pa.ArrowException, OverflowError):
            pass
    texts = [
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for value in column
    ]
    return pa.array([None if _is_missing(v) else t for v, t in zip(column, texts, strict=True)])
