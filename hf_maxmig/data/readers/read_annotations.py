"""Read a crowd's votes from any source: `read_annotations` and its formats.

A format is one function and one row of `FORMATS`. This module recognises the format, reads tables (long,
wide, dense) and names the values. `files.py` opens files, `exports.py` reads the exports of annotation
tools, and `columns.py` joins votes to a data set.
"""

import difflib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetInfo, Features
from transformers.utils import logging

from .cells import Cells, Column, class_numbers, read_cells, read_items
from .exports import annotator_files, argilla, cifar_n, is_argilla, label_studio, peerannot
from .files import SAMPLE, TABLES, first_names, open_source, saw
from .roles import ROLES, WEIGHT, candidates, extra_name, pick
from .source import Asked, Source, UncheckedVotes, shown
from .tables import record_columns
from .values import class_names, is_missing, is_text, plain_key, rule_of
from .weights import weights_of

logger = logging.get_logger(__name__)

_MOST_CLASSES = (
    65_536  # a larger number in a matrix is not a class: the file is damaged, or holds ids
)


def read_annotations(
    source: Any,
    format: str | None = None,
    *,
    item: str | None = None,
    annotator: Any = None,
    annotation: str | None = None,
    gold: str | None = None,
    weight: str | bool | None = None,
    missing: Sequence[str | int] | str | int | None = None,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Read votes (item, annotator, annotation) from any of the formats below.

    The format is recognised from the content; an ambiguous one is an error. One line of the log says
    what was found and counts everything that is left out.

    - `long`: a table, one vote per row: CSV, TSV, JSON, JSON lines, Parquet; MTurk, Toloka, crowd-kit, Label Studio's
      JSON-MIN and CSV.
    - `wide`: a table, one column per annotator, empty where there is no vote.
    - `dense`: a matrix of whole numbers, items in rows, -1 where there is no vote: .txt, .npy.
    - `peerannot`: JSON `{task: {worker: label}}`.
    - `label_studio`: JSON of Label Studio.
    - `argilla`: records of Argilla 1 or 2, JSON or from the Hub.
    - `annotator_files`: a folder or a list of files, one per annotator: doccano, or tables.
    - `cifar_n`: `CIFAR-10_human.pt`, `CIFAR-100_human.pt`.

    All formats follow the same rules (`hf_maxmig.data.readers.cells`):

    - White space around annotators and labels is removed. Items keep theirs, because they must match
      the data set's.
    - Values that pandas reads as missing (NA, nan, NULL, None, ...) are no answer, and so is -1 among
      names. In a wide table such a cell is no vote; in a table with one vote per row it is an error.
    - A list of one label is that label. Several labels in one cell are an error.
    - In text files everything is text: 007 stays 007, but 1.0 is 1 if all labels are numbers. Elsewhere
      whole numbers are numbers. A column of numbers and text becomes text; if both the number 1 and the
      text "1" occur, the text is written with its quotes.
    - True and False become "true" and "false".

    The line of the log also names doubtful values, such as a class "?" or two names that differ only by
    letter case.

    Args:
        source: a path, a folder, a pattern or a list of paths, or a table in memory: a
            `datasets.Dataset`, a pandas data frame, an Arrow table, a list of records.
        format: one of `FORMATS`; by default recognised from the content.
        item: the item's column, key of `data` (Label Studio) or key of `fields` (Argilla).
        annotator: the annotator's column or key; for a wide table the columns of the annotators; for
            CIFAR-100N the path of its file of workers.
        annotation: the vote's column, question, or array.
        gold: the column or key of the item's gold label, if there is one.
        weight: the column that says how much each vote counts, from 0 to 1, in a table with one vote per row:
            the annotator's own confidence, or a probability. An empty cell counts in full. By default a
            column of such numbers with a usual name, such as `confidence`; False reads none.
        missing: texts or numbers that stand for no answer, in place of the usual ones: `["NA", "?"]`
            for these two, or `()` for none, if a class is called "None". A row whose annotation is one
            of them is left out and counted.
        classes: names of all classes, in the order of their numbers. `annotation` and `gold` become
            a ClassLabel of these, and any other value is an error. A name among them is a class even if
            it looks like a marker or like several labels. Votes that are numbers from 0 to C - 1 are
            numbers of these classes.

    Returns:
        One vote per row, with the columns `item`, `annotator`, `annotation`, then `gold` if the source
        has gold labels (each row has that of its item), then `weight` where votes have weights, then the other columns of the source. Those
        with one of these names are renamed to `original_...`. An item with a gold label and no
        vote has one row, whose annotator and annotation are None. `add_annotations` joins the result to
        a data set.

    Raises:
        FileNotFoundError: if there is no such file.
        TypeError: if `source` is none of the above.
        ValueError: if the source is malformed, a row has no item, annotator or label, an item has two
            gold labels, the format or a column is ambiguous, or there are no votes. The error names
            the file, the line or record, and the cause.

    Example:
        >>> votes = [{"image": "a.jpg", "worker": "ann", "label": "cat"},
        ...          {"image": "a.jpg", "worker": "bob", "label": "dog"}]
        >>> read_annotations(votes)[1]
        {'item': 'a.jpg', 'annotator': 'bob', 'annotation': 'dog'}
    """
    if format is not None and (not isinstance(format, str) or format not in FORMATS):
        raise ValueError(f"`format` must be one of {', '.join(FORMATS)}, got {format!a}.")
    asked = _asked(item, annotator, annotation, gold, missing, classes, weight)
    opened = open_source(source, format)
    chosen = format or _recognise(opened, asked)
    form = FORMATS[chosen]
    if opened.kind not in form.kinds:
        raise opened.wrong(f"must be {form.says} for `format={chosen!r}`, got {saw(opened)}.")
    for role in (*ROLES, WEIGHT):
        if getattr(asked, role) is not None and role not in form.takes:
            raise opened.wrong(
                f"`{role}` must be left out for {chosen}: it is not looked up there."
            )
    return _finish(form.read(opened, asked), chosen, asked, format is None)


def _asked(
    item: Any, annotator: Any, annotation: Any, gold: Any, missing: Any, classes: Any, weight: Any
) -> Asked:
    """Check the user's arguments."""
    for role, name in (
        ("item", item),
        ("annotation", annotation),
        ("gold", gold),
        (WEIGHT, weight or None),
    ):
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`{role}` must be a name, got {type(name).__name__}.")
    if not isinstance(annotator, str | os.PathLike | list | tuple | None) or (
        isinstance(annotator, list | tuple) and not all(isinstance(one, str) for one in annotator)
    ):
        raise TypeError(
            f"`annotator` must be a name, a path or a list of names, got {annotator!a}."
        )
    rule, names = rule_of(missing, classes), class_names(classes)
    return Asked(item, annotator, annotation, gold, rule, names, weight)


# The tables


def long(source: Source, asked: Asked) -> UncheckedVotes:
    """Read a table with one vote per row.

    Args:
        source: columns or records.
        asked: a column for each role; by default the only one with a usual name. In a table with
            columns item, annotator and annotation, these are the roles.

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
    open_ends = [(role, -1) for role, name in found.items() if name == source.open_end]
    out = {role: columns.pop(name) for role, name in found.items()}
    open_ends = [(role, len(out[role]) - 1) for role, _ in open_ends]
    weight, named_so, doubts = weights_of(source, columns, asked.weight)
    extras = weight | _extras(source, columns)
    return UncheckedVotes(
        out | extras, source, found=found | named_so, doubts=doubts, open_ends=open_ends
    )


def wide(source: Source, asked: Asked) -> UncheckedVotes:
    """Read a table with one column per annotator, empty where there is no vote.

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
        raise source.wrong(f"must have a column per annotator, got only {shown(columns)}.")
    for name in who:
        pick(source, "annotator", columns, name)
    number = len(columns[item])
    heads = [*who, *([] if gold is None else [gold])]

    def wrong(i: int, row: int, what: str) -> Exception:
        return source.wrong(f"`{heads[i]}` {what}", row)

    rule = asked.rule.but(source.known)
    cells = read_cells([columns[name] for name in heads], heads, rule, wrong, answers=True)
    for i, name in enumerate(who):
        if re.fullmatch("unnamed_[0-9]+|Unnamed: [0-9]+", name) and (cells.codes[i] >= 0).any():
            first = int((cells.codes[i] >= 0).argmax())
            raise source.wrong(
                f"a label must stand under an annotator's name, got {name!r}.", first
            )
    labels = cells.columns[: len(who)]
    said = pa.chunked_array([chunk for column in labels for chunk in column.chunks], labels[0].type)
    place = np.flatnonzero(np.concatenate(cells.codes[: len(who)]) >= 0)
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
    cells.is_marker = [np.zeros(len(row), bool)]
    open_ends = []
    if source.open_end is not None and source.open_end in heads:
        last = (row == number - 1) & (~none if source.open_end != gold else True)
        if source.open_end != gold:
            last &= place // number == who.index(source.open_end)
        role = "gold" if source.open_end == gold else "annotation"
        open_ends = [(role, int(at)) for at in np.flatnonzero(last)[:1]]
    found = {"item": item, "annotator": f"columns {shown(who)}"}
    if gold is not None:
        out["gold"], found["gold"] = _take(cells.columns[-1], row), gold
    rest = {n: _take(c, row) for n, c in columns.items() if n not in (item, gold, *who)}
    out |= _extras(source, rest)
    return UncheckedVotes(out, source, row, found, said=cells, open_ends=open_ends)


def dense(source: Source, asked: Asked) -> UncheckedVotes:
    """Read a matrix of votes: items in rows, annotators in columns, -1 where there is no vote.

    Args:
        source: (N, M) whole numbers.
        asked: not used.

    Returns:
        The votes; items and annotators are numbered from 0.

    Raises:
        ValueError: if it is not a matrix of numbers, or a value is not a whole number or below -1.
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
    if (largest := int(matrix.max(initial=0))) >= _MOST_CLASSES:
        row, m = (int(i) for i in np.argwhere(matrix == largest)[0])
        raise source.wrong(
            f"labels must be numbers of classes below {_MOST_CLASSES}, got {largest} of annotator {m}.", row
        )  # fmt: skip
    item, annotator = np.nonzero(matrix >= 0)
    columns: dict[str, Column] = {
        "item": pa.array(item),
        "annotator": pa.array(annotator),
        "annotation": pa.array(matrix[item, annotator].astype(np.int64)),
    }
    silent = Counter({"items without a vote": len(matrix) - len(np.unique(item))})
    votes = UncheckedVotes(columns, source, item, left_out=silent)
    absent = np.setdiff1d(np.arange(largest), columns["annotation"])
    if len(absent) > largest // 2:
        votes.doubts.append(f"{largest} is the largest label, {len(absent)} below it do not occur")
    if source.open_end is not None and matrix[-1, -1] >= 0:
        votes.open_ends = [("annotation", len(item) - 1)]
    return votes


def _columns(source: Source) -> dict[str, Column]:
    """Return the columns of a table, or of records as lists with None where a key is absent."""
    if source.kind == "table":
        return dict(source.content)
    return record_columns(source.name, source.records(), source.place)


def _extras(source: Source, columns: dict[str, Column]) -> dict[str, Column]:
    extras = {extra_name(name): column for name, column in columns.items()}
    if len(extras) < len(columns):
        raise source.wrong(f"column names must differ, got {shown(sorted(columns))}.")
    return extras


def _take(column: Column, rows: np.ndarray) -> Column:
    if isinstance(column, list):
        return [column[row] for row in rows]
    return column.take(pa.array(rows))


# The formats, and how they are recognised


def _looks_long(source: Source, asked: Asked) -> bool:
    names = first_names(source)
    if isinstance(asked.annotator, list | tuple):
        return False
    return all(getattr(asked, role) or candidates(role, names) for role in ROLES[:3])


def _looks_wide(source: Source, asked: Asked) -> bool:
    """Recognise a crowd's columns: each annotator has a label in common with another."""
    names = first_names(source)
    if isinstance(asked.annotator, list | tuple):
        return True
    if candidates("annotator", names) or candidates("annotation", names) or asked.annotation:
        return False
    first = {names[0]} if names and re.match("unnamed_|Unnamed: ", names[0]) else set()
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
        keys = {plain_key(value, asked.rule) for value in values if not is_missing(value)}
        said.append(keys - {None})
    shared = Counter(value for values in said for value in values)
    return all(any(shared[value] > 1 for value in values) for values in said if values)


def _looks_label_studio(source: Source, asked: Asked) -> bool:
    return {"data", "annotations"} <= set(first_names(source))


def _looks_argilla(source: Source, asked: Asked) -> bool:
    content = source.content
    if source.kind == "table":  # turning the whole table into records would be slow
        content = {name: column[:SAMPLE] for name, column in content.items()}
    return any(map(is_argilla, replace(source, content=content).records()[:SAMPLE]))


def _looks_dense(source: Source, asked: Asked) -> bool:
    """Recognise votes, as opposed to counts or gold labels: some are missing."""
    return source.content.ndim == 2 and bool((source.content == -1).any())


def _always(source: Source, asked: Asked) -> bool:
    return True


@dataclass(frozen=True)
class Format:
    """A format: its reader, its recogniser, the roles that a user may name, and a description."""

    read: Callable[[Source, Asked], UncheckedVotes]
    looks: Callable[[Source, Asked], bool]
    kinds: tuple[str, ...]
    takes: tuple[str, ...]
    says: str


FORMATS = {
    "long": Format(long, _looks_long, TABLES, (*ROLES, WEIGHT), "a table with one vote per row"),
    "wide": Format(
        wide, _looks_wide, TABLES, ("item", "annotator", "gold"), "a table, one column per annotator"
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
        "one file per annotator, a folder or a list of paths (doccano)",
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


# From the votes of a format to the resulting table


def _finish(votes: UncheckedVotes, format: str, asked: Asked, guessed: bool) -> Dataset:
    """Name the values, check that votes are complete, and add the gold label of its item to each row."""
    source, columns, left_out = votes.source, dict(votes.columns), votes.left_out
    roles = [role for role in ROLES if role in columns]
    named, cells = _named(votes, columns, asked)
    marked = cells.is_marker[0] if asked.rule.is_given else np.zeros(len(named["item"]), bool)

    has = {role: np.asarray(column.is_valid()) for role, column in named.items()}
    has_gold = has.get("gold", np.zeros(len(has["item"]), bool))
    is_vote = has["annotator"] & has["annotation"]
    nobody = ~has["annotator"] & ~has["annotation"]
    blank = nobody & ~has_gold & ~has["item"]
    no_answer = marked & has["annotator"] & has["item"]
    for role, wrong in {
        "item": ~has["item"] & ~blank,
        "annotator": has["annotation"] & ~has["annotator"],
        "annotation": has["annotator"] & ~has["annotation"] & ~no_answer,
    }.items():
        if wrong.any():
            row = int(wrong.argmax())
            seen = {r: c[row].as_py() for r, c in named.items() if has[r][row]}
            raise votes.wrong(
                f"has no {role}, only {_pairs(seen)}{_marker(votes, role, row)}.", row
            )
    left_out["blank rows"] = int(blank.sum())
    left_out["rows without a vote"] = int((nobody & ~has_gold & ~blank).sum())
    left_out["rows whose annotation stands for none"] = int(no_answer.sum())
    if not is_vote.any():
        raise source.wrong(f"must hold at least one vote, got none{_counted(left_out)}.")
    _check_open_ends(votes, named)

    keep = is_vote
    if "gold" in named:
        codes, of_item = _spread_gold(votes, named["item"], named["gold"], has_gold)
        named["gold"] = named["gold"].take(pa.array(of_item, mask=of_item < 0))
        voted = np.bincount(codes[is_vote], minlength=codes.max() + 1) > 0
        alone = nobody & has_gold & ~voted[codes]
        rows = np.flatnonzero(alone)
        keep = is_vote.copy()
        keep[rows[np.unique(codes[rows], return_index=True)[1]]] = True  # one row per item
        left_out["gold-only rows of items that have another row"] = int(
            (nobody & has_gold & ~keep).sum()
        )

    if asked.classes is not None:
        named |= _numbered(votes, named, asked.classes)
    named |= {name: _extra(votes, name, column) for name, column in columns.items()}
    table = pa.table({role: named.pop(role) for role in roles} | named)
    if not keep.all():
        table = table.filter(pa.array(keep))
    _tell(votes, format, asked, guessed, table)
    try:
        features = Features.from_arrow_schema(table.schema)
    except Exception as error:  # of `datasets`, for types of Arrow that it does not know
        raise source.wrong(f"columns must be of types that `datasets` holds: {error}.") from error
    if asked.classes is not None:
        label = ClassLabel(names=asked.classes)
        features |= {role: label for role in ROLES[2:] if role in features}
    return Dataset(table, DatasetInfo(features=features))


def _named(
    votes: UncheckedVotes, columns: dict[str, Column], asked: Asked
) -> tuple[dict[str, pa.ChunkedArray], Cells]:
    """Read the columns of the roles, and remove them from `columns`."""

    def wrong(heads: list[str]) -> Callable[[int, int, str], Exception]:
        return lambda i, row, what: votes.wrong(f"`{heads[i]}` {what}", row)

    head = votes.found.get("item", "item")
    items, doubts = read_items(columns.pop("item"), head, wrong([head]))
    if pa.types.is_large_string(items.type) and items.nbytes < 2**31:
        items = items.cast(pa.string())  # text may have other Arrow types
    named = {"item": items}
    votes.doubts += doubts
    rule = asked.rule.but(votes.source.known)
    read: list[Cells] = []
    for together in (["annotator"], [role for role in ROLES[2:] if role in columns]):
        heads = [votes.found.get(role, role) for role in together]
        values = [columns.pop(role) for role in together]
        answers = together != ["annotator"]
        if answers and votes.said is not None:
            cells = votes.said
            named |= zip(together, values, strict=True)
        else:
            cells = read_cells(values, heads, rule, wrong(heads), answers=answers)
            named |= zip(together, cells.columns, strict=True)
        for marker, number in cells.marked.items():
            votes.left_out[f"{marker!r} read as missing"] += number
        votes.doubts += cells.doubts
        read.append(cells)
    return named, read[-1]


def _marker(votes: UncheckedVotes, role: str, row: int) -> str:
    """Say how to keep a text that is read as missing, if the cell holds one."""
    cell = votes.columns[role][row]
    text = cell.as_py() if isinstance(cell, pa.Scalar) else cell
    if text is None or not str(text).strip():
        return ""
    remedy = "name it by `missing` to leave such rows out, or " if role == "annotation" else ""
    return f": {text!r} is read as missing; {remedy}pass `missing=()` if it is a name"


def _check_open_ends(votes: UncheckedVotes, named: dict[str, pa.ChunkedArray]) -> None:
    """Refuse a last cell that looks cut off: it occurs only there, and a longer name begins with it."""
    for role, row in votes.open_ends:
        name = named[role][row].as_py()
        together = [named[r] for r in (ROLES[2:] if role in ROLES[2:] else [role]) if r in named]
        number = sum(pc.sum(pc.equal(column, name)).as_py() or 0 for column in together)
        if name is None or role == "item" or number != 1:
            continue
        others = {str(other) for column in together for other in column.unique().to_pylist()}
        longer = sorted(other for other in others - {str(name)} if other.startswith(str(name)))
        if longer:
            raise votes.wrong(
                f"the last cell must be whole, got {name!r}, which occurs only there while "
                f"{longer[0]!r} begins with it, and no line end: the file may be cut. End its last "
                "line if it is whole.", row
            )  # fmt: skip
        votes.doubts.append(f"{role} {name!r} occurs only in the last cell, which may be cut")


def _numbered(
    votes: UncheckedVotes, named: dict[str, pa.ChunkedArray], classes: list[str]
) -> dict[str, pa.ChunkedArray]:
    """Number annotations and gold labels by the caller's classes."""
    columns = {role: named[role] for role in ROLES[2:] if role in named}
    chunks = [chunk for column in columns.values() for chunk in column.chunks]
    names = pa.chunked_array(chunks, named["annotation"].type).unique().drop_null()
    try:
        numbers, doubt = class_numbers(names.to_pylist(), classes)
    except ValueError as error:
        raise votes.source.wrong(str(error)) from None
    votes.doubts += [doubt] * bool(doubt)
    if None in numbers:
        name = names[numbers.index(None)]
        role = next(r for r, column in columns.items() if pc.index(column, name).as_py() >= 0)
        near = difflib.get_close_matches(str(name), classes, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise votes.wrong(
            f"{role} {name.as_py()!r} is not one of the {len(classes)} classes{hint}.",
            pc.index(columns[role], name).as_py(),
        )
    as_numbers = pa.array(numbers, pa.int64())
    return {
        r: as_numbers.take(pc.index_in(column, value_set=names)) for r, column in columns.items()
    }


def _spread_gold(
    votes: UncheckedVotes, items: pa.ChunkedArray, gold: pa.ChunkedArray, has_gold: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Number the items, and find for each row the row with its item's gold label; -1 for none."""
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


def _tell(votes: UncheckedVotes, format: str, asked: Asked, guessed: bool, table: pa.Table) -> None:
    """Log in one line what was read, as a warning if anything was guessed or left out."""
    number = len(table) - table["annotation"].null_count
    items, annotators = (len(table[role].drop_null().unique()) for role in ROLES[:2])
    text = f"{votes.source.name}: {format}{' table' * (format in ('long', 'wide'))}, "
    text += f"{number} votes on {items} items by {annotators} annotators"
    text += f", {_pairs(votes.found)}" * (len(votes.found) > 0)
    text += f" ({votes.source.note})" * (votes.source.note != "")
    if gold_only := len(table) - number:
        text += f"; {gold_only} rows hold a gold label only"
    text += _counted(votes.left_out)
    if doubts := list(dict.fromkeys(votes.doubts)):
        text += f"; in doubt: {'; '.join(doubts)}"
    named = all(getattr(asked, role) is not None for role in votes.found)
    quiet = named and not guessed and not +votes.left_out and not doubts
    (logger.info if quiet else logger.warning)("%s", text)


def _extra(votes: UncheckedVotes, name: str, column: Column) -> Any:
    """Convert an extra column to Arrow: unchanged if its values are of one kind, otherwise as JSON."""
    if not isinstance(column, list):
        return column
    if len({type(value) for value in column if not is_missing(value)}) <= 1:
        try:
            return pa.array(column, from_pandas=True)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            pass
    texts: list[str | None] = []
    for row, value in enumerate(column):
        try:
            text = (
                value
                if isinstance(value, str)
                else json.dumps(value, ensure_ascii=False, default=str)
            )
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise votes.wrong(
                f"`{name}` must be a value that JSON can hold: {error}.", row
            ) from error
        if not is_text(text):
            raise votes.wrong(f"`{name}` must be Unicode text, got half a character in it.", row)
        texts.append(None if is_missing(value) else text)
    return pa.array(texts, pa.string())
