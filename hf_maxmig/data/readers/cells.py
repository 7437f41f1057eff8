"""Read the cells of a table of votes, by one rule for every file, table and record.

1. White space around annotators, classes and gold labels is removed, including Unicode's and that of
   zero width. Items keep theirs, because they must match the data set's.
2. An empty cell, and a text among the markers in `MISSING`, is None: no answer. So is -1 among names.
3. A list of one label is that label, also as text in JSON or Python syntax. Several labels in one cell
   are an error, also joined by a sign such as # if one of them is a class by itself.
4. Whole numbers are numbers: 3.0 is 3, also in text if all values are numbers.
5. Known names (of a `ClassLabel`, or passed by the caller) are never changed.

`values.py` reads single values; this module reads columns, and decides by all their values together.
Doubtful values, such as names that differ only by letter case, are described in words (`doubts`).
"""

import itertools
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .values import (
    MISSING,
    NO_WIDTH,
    SHOWN,
    SPACE,
    Marker,
    Name,
    NoNameError,
    Rule,
    WrittenFloat,
    listed,
    short_number,
    value_of,
)

Column = Any  # of Arrow, or a list of Python values

# What may stand for none as well, in small letters; the log says where one is a name.
_DOUBTFUL = frozenset(
    [
        "-", "--", "---", "\u2013", "\u2014", "?", "??", ".", "..", "...", "*", "_", "/",
        "\\", "#", "na", "n/a", "n.a.", "nan", "none", "null", "nil", "nat", "<na>", "#n/a",
        "missing", "undefined", "(blank)", "(empty)", "n.d.", "n/d", "no answer", "no label",
        "unlabeled", "unlabelled", "not available",
    ]
)  # fmt: skip
_INSIDE = re.compile(f"[{re.escape(SPACE)}]+")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
_JOINS = (
    "#",
    "|",
    ";",
    "\n",
    ",",
    "/",
    "&",
    "+",
)  # between several labels; the last few are common in names
_SURE_JOINS = 4  # this many of them are seldom part of one name


@dataclass
class Cells:
    """The content of columns of one kind: the names that occur, and which of them is in each row."""

    names: list[Name]  # that differ; whole numbers all of them, or text
    codes: list[np.ndarray]  # a column each: (n,) numbers of names, -1 where nothing is said
    columns: list[pa.ChunkedArray]
    is_marker: list[np.ndarray]  # a column each: (n,), where a marker was taken for no answer
    marked: Counter[str] = field(default_factory=Counter)  # such markers
    doubts: list[str] = field(default_factory=list)


# Makes an error from the number of the column, the row and the cause.
Wrong = Callable[[int, int, str], Exception]


def read_cells(
    columns: Sequence[Column],
    heads: Sequence[str],
    rule: Rule,
    wrong: Wrong,
    *,
    answers: bool = False,
) -> Cells:
    """Read columns of names of one kind: annotators, or annotations with their gold labels.

    Args:
        columns: Arrow columns, or lists of Python values.
        heads: the names of the columns, for messages.
        rule: the known names and the markers of missing values.
        wrong: makes the error from a column, a row and a cause.
        answers: whether these are annotations, which may be lists, several in one cell, or -1.

    Returns:
        The names. They are whole numbers if all values are whole numbers of 64 bits, and text
        otherwise. A text that would equal a number of the same column is written with its quotes.

    Raises:
        Exception: made by `wrong`, for a cell that is not a name.

    Example:
        >>> def wrong(column, row, cause): return ValueError(f"row {row}: {cause}")
        >>> read = read_cells([[" cup", "NA", ["mug"]]], ["label"], Rule(), wrong, answers=True)
        >>> read.columns[0].to_pylist(), dict(read.marked)
        (['cup', None, 'mug'], {'NA': 1})
    """
    for i, column in enumerate(columns):
        _check_kind(column, i, answers, wrong)
    coded = [_encoded(column) for column in columns]
    all_values: list[
        list[Any]
    ] = []  # for each column, each value: a number, a text, a marker or None
    for i, (values, codes) in enumerate(coded):
        try:
            all_values.append([value_of(value, rule, answers) for value in values])
        except NoNameError:
            for number, value in enumerate(values):
                try:
                    value_of(value, rule, answers)
                except NoNameError as error:
                    row = int((codes == number).argmax())
                    raise wrong(i, row, str(error)) from None
    marked: Counter[str] = Counter()
    doubts: list[str] = []
    _whole_numbers(all_values, rule, doubts)
    if answers:
        _truth_values(all_values, rule, doubts)
        _minus_one(all_values, heads, rule, doubts)
        _several(all_values, coded, rule, wrong, doubts)
    if not rule.is_given:
        _markers_in_doubt(all_values, rule, doubts)
    is_marker = []
    for values, (_, codes) in zip(all_values, coded, strict=True):
        markers = [number for number, value in enumerate(values) if isinstance(value, Marker)]
        is_marker.append(np.isin(codes, markers) if markers else np.zeros(len(codes), bool))
        for number in markers:
            marked[values[number].text] += int((codes == number).sum())
            values[number] = None
    names, kind = _names(all_values, heads, doubts)
    doubts += look_alike(
        heads[0], [name for name in dict.fromkeys(itertools.chain(*names)) if name is not None]
    )

    number_of: dict[Name, int] = {}
    for column in names:
        for name in column:
            if name is not None:
                number_of.setdefault(name, len(number_of))
    out: list[pa.ChunkedArray] = []
    all_codes = []
    every = pa.array(list(number_of), kind)
    for column, (values, codes), original in zip(names, coded, columns, strict=True):
        renumbered = np.array([-1 if n is None else number_of[n] for n in column] + [-1], np.int64)
        all_codes.append(renumbered[codes])
        if isinstance(original, pa.ChunkedArray) and original.type == kind and values == column:
            out.append(original)
        else:
            taken = every.take(pa.array(all_codes[-1], mask=all_codes[-1] < 0))
            out.append(pa.chunked_array([taken]))
    return Cells(list(number_of), all_codes, out, is_marker, marked, doubts)


def read_items(
    column: Column, head: str, wrong: Wrong, *, doubts: bool = True
) -> tuple[pa.ChunkedArray, list[str]]:
    """Read a column of items. Unlike annotators, they keep white space and markers as part of the name.

    Args:
        column: an Arrow column, or a list of Python values.
        head: the name of the column.
        wrong: makes the error from a column, a row and a cause.
        doubts: whether to look for doubtful values.

    Returns:
        Whole numbers or text, None where a cell is empty; and the doubtful values, in words.
    """
    _check_kind(column, 0, False, wrong)
    if isinstance(column, pa.ChunkedArray):
        kind = column.type
        if pa.types.is_integer(kind) and kind != pa.uint64():
            return column.cast(pa.int64()), []
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            empty = pc.equal(column, "")
            if pc.any(empty).as_py():
                column = pc.if_else(empty, pa.scalar(None, kind), column)
            return column, _items_in_doubt(head, column) if doubts else []
    values, codes = _encoded(column)
    all_values: list[Any] = []
    for number, value in enumerate(values):
        try:
            all_values.append(None if value == "" else value_of(value, _ITEMS, False, strip=False))
        except NoNameError as error:
            raise wrong(0, int((codes == number).argmax()), str(error)) from None
    found: list[str] = []
    (names,), kind = _names([all_values], [head], found)
    names_and_none = pa.array([*names, None], kind)
    out = pa.chunked_array([names_and_none.take(pa.array(np.where(codes < 0, len(names), codes)))])
    if doubts and kind == pa.string():
        found += _items_in_doubt(head, out)
    return out, found


def class_numbers(names: Sequence[Name], classes: Sequence[str]) -> tuple[list[int | None], str]:
    """Number each name by its place among the classes. A number that is not a class name counts from 0.

    Args:
        names: the names that occur.
        classes: the class names in the order of their numbers.

    Returns:
        A number for each name, None for one that is not a class; and a sentence on what was in doubt.

    Raises:
        ValueError: if all names are whole numbers, no class name is one, and the numbers do not start
            at 0 or are not below C.

    Example:
        >>> class_numbers([1, 0], ["negative", "positive"])
        ([1, 0], "0 is 'negative', 1 is 'positive'")
    """
    number = {name: c for c, name in enumerate(classes)}
    texts = [str(name) for name in names]
    if not texts or not all(map(_WHOLE.fullmatch, texts)) or any(map(_WHOLE.fullmatch, classes)):
        return [number.get(text) for text in texts], ""
    places = [short_number(int(text)) for text in texts]
    if min(places) != 0 or max(places) >= len(classes):
        raise ValueError(
            f"`classes` must be the names in the votes, or the votes class numbers from 0 to "
            f"C - 1 = {len(classes) - 1}, got {listed(map(repr, classes))} and votes from "
            f"{min(places)} to {max(places)}: write the names into the votes."
        )
    said = ", ".join(f"{c} is {classes[c]!r}" for c in sorted(places)[:SHOWN])
    return list(places), said + ", ..." * (len(places) > SHOWN)


# The distinct values of a column


_ITEMS = Rule(frozenset(), True)


def _check_kind(column: Column, number: int, answers: bool, wrong: Wrong) -> None:
    """Refuse an Arrow column that cannot hold names, such as pictures, before it is read."""
    kind = getattr(column, "type", None)
    if kind is None or column.null_count == len(column):
        return
    if pa.types.is_nested(kind) and not (answers and is_lists(kind)):
        row = int(np.asarray(column.is_valid()).argmax())
        raise wrong(number, row, f"must hold text or numbers, got {kind}.")


def is_lists(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists, of any or of a fixed length."""
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _encoded(column: Column) -> tuple[list[Any], np.ndarray]:
    """Return the distinct values, and the number of its value for each row; -1 for null."""
    if isinstance(column, pa.ChunkedArray | pa.Array):
        return _encoded_arrow(column)
    known: dict[tuple[type, Any], int] = {}
    values: list[Any] = []
    codes = np.empty(len(column), np.int64)
    for row, value in enumerate(column):
        try:
            number = known.setdefault((type(value), value), len(values))
        except TypeError:  # a list or a dict: each row counts as distinct
            number = len(values)
        if number == len(values):
            values.append(value)
        codes[row] = number
    return values, codes


def _encoded_arrow(column: Any) -> tuple[list[Any], np.ndarray]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind := kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _encoded(column.to_pylist())
    if pa.types.is_float16(kind):
        column = column.cast(kind := pa.float32())
    try:
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        encoded = array.dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # lists, structures
        return _encoded(column.to_pylist())
    codes = np.asarray(pc.fill_null(encoded.indices, -1)).astype(np.int64)
    values = encoded.dictionary.to_pylist()
    if pa.types.is_floating(kind):  # as Arrow writes a number of that width
        texts = encoded.dictionary.cast(pa.string()).to_pylist()
        values = [
            WrittenFloat(v, t) if v is not None else None
            for v, t in zip(values, texts, strict=True)
        ]
    return values, codes


# Rules that depend on all values of a kind


def _said(all_values: list[list[Any]]) -> set[Any]:
    return {
        v for values in all_values for v in values if v is not None and not isinstance(v, Marker)
    }


def _whole_numbers(all_values: list[list[Any]], rule: Rule, doubts: list[str]) -> None:
    """Read the text 1.0 as 1 if all values are numbers: pandas and R write a column with gaps so."""
    said = _said(all_values)
    texts = {value for value in said if isinstance(value, str)} - rule.known
    ends = sorted(text for text in texts if text.endswith(".0"))
    if not ends or not all(_DECIMAL.fullmatch(text) for text in texts):
        return
    for values in all_values:
        for number, value in enumerate(values):
            if isinstance(value, str) and value in texts and value.endswith(".0"):
                values[number] = "0" if value == "-0.0" else value[:-2]
    doubts.append(f"{ends[0]} is read as {ends[0][:-2]}, as all are numbers")


def _truth_values(all_values: list[list[Any]], rule: Rule, doubts: list[str]) -> None:
    """Read True and TRUE as true if all values are truth values: pandas and R write them so."""
    said = _said(all_values)
    texts = {value for value in said if isinstance(value, str)}
    other = sorted(text for text in texts if not text.islower())
    if not other or texts != said or not {text.lower() for text in texts} <= {"true", "false"}:
        return
    if texts & rule.known:
        return
    for values in all_values:
        for number, value in enumerate(values):
            if isinstance(value, str):
                values[number] = value.lower()
    doubts.append(f"{other[0]} is read as {other[0].lower()}, as all are truth values")


def _minus_one(
    all_values: list[list[Any]], heads: Sequence[str], rule: Rule, doubts: list[str]
) -> None:
    """Read -1 as no answer among names, and report it among numbers."""
    said = _said(all_values)
    if rule.is_given or not {-1, "-1"} & said or "-1" in rule.known:
        return
    others = {str(value) for value in said} - {"-1"}
    numbers = {other for other in others if _DECIMAL.fullmatch(other)}
    if others and not numbers:
        for values in all_values:
            for number, value in enumerate(values):
                if value in (-1, "-1"):
                    values[number] = Marker("-1")
    elif not any(other.startswith("-") for other in others):
        doubts.append("'-1' is read as a class, not as missing")


def _several(
    all_values: list[list[Any]],
    coded: list[tuple[list[Any], np.ndarray]],
    rule: Rule,
    wrong: Wrong,
    doubts: list[str],
) -> None:
    """Refuse a text that joins several labels, if one of them is a class by itself."""
    texts = {v for v in _said(all_values) if isinstance(v, str)}
    names = {str(value) for value in _said(all_values)} | rule.known
    for text in sorted(texts - rule.known):
        for place, join in enumerate(_JOINS):
            parts = [part.strip(SPACE) for part in text.split(join)]
            if len(parts) < 2 or not all(parts):
                continue
            alone = [part for part in parts if part in names]
            decimal = join == "," and re.fullmatch(r"-?[0-9]+,[0-9]+", text)
            sure = alone if place < _SURE_JOINS else len(alone) == len(parts) and join == ","
            if sure and not decimal:
                for i, (values, (_, codes)) in enumerate(zip(all_values, coded, strict=True)):
                    if text in values:
                        row = int((codes == values.index(text)).argmax())
                        raise wrong(
                            i, row,
                            f"must be one label, got {text!r}, and {alone[0]!r} is a class by itself: "
                            "write one label per row; if it is one class, name all by `classes`.",
                        )  # fmt: skip
            if place < _SURE_JOINS or len(alone) == len(parts):
                doubts.append(f"{text!r} is read as one class")
                break


def _markers_in_doubt(all_values: list[list[Any]], rule: Rule, doubts: list[str]) -> None:
    said = {str(value) for value in _said(all_values)} - rule.known
    found = sorted(name for name in said if name.lower() in _DOUBTFUL)
    numbers = [int(name) for name in said if _WHOLE.fullmatch(name) and len(name) < 9]
    if len(numbers) == len(said) > 2:
        largest = sorted(numbers, key=abs)[-1]
        rest = max(
            abs(number) for number in numbers if abs(number) != abs(largest) or number > 0 > largest
        )
        if set(str(abs(largest))) == {"9"} and abs(largest) > 9 and abs(largest) > 3 * rest:
            found.append(str(largest))  # -99 and 999 are how surveys write a missing answer
    if found:
        doubts.append(f"{listed(map(repr, found))} is read as a name, not as missing")


def _names(
    all_values: list[list[Any]], heads: Sequence[str], doubts: list[str]
) -> tuple[list[list[Name | None]], pa.DataType]:
    """Turn all values into whole numbers, or all into text."""
    said = _said(all_values)
    if said and all(isinstance(v, int) and -(2**63) <= v < 2**63 for v in said):
        return all_values, pa.int64()
    collide: set[str] = set()
    for values in all_values:
        texts = {value for value in values if isinstance(value, str)}
        collide |= texts & {str(value) for value in values if isinstance(value, int)}
    if collide:
        doubts.append(
            f"{' and '.join(heads)} holds both numbers and text for {listed(sorted(collide))}: the "
            "text is written with its quotes"
        )

    def name(value: Any) -> Name | None:
        # Text that begins with a quote gets quotes too, so that no two names become the same.
        if isinstance(value, str) and collide and (value in collide or value.startswith('"')):
            return json.dumps(value, ensure_ascii=False)
        return None if value is None else str(value)

    return [[name(value) for value in values] for values in all_values], pa.string()


_FOLDS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("how Unicode composes them", lambda name: unicodedata.normalize("NFC", name)),
    ("white space", lambda name: _INSIDE.sub("", name)),
    ("letter case", str.casefold),
    ("zeros", lambda name: re.sub(r"^(-?)0+(?=[0-9])", r"\1", name)),
)


def _folded(name: str) -> str:
    name = unicodedata.normalize("NFKC", name)
    return re.sub(r"^(-?)0+(?=[0-9])", r"\1", _INSIDE.sub("", name).casefold())


def look_alike(head: str, names: Iterable[Name]) -> list[str]:
    """Report names that differ only by white space, letter case, Unicode's form or leading zeros.

    Example:
        >>> look_alike("label", ["cup", "Cup", "mug"])
        ["label 'Cup' and 'cup' differ by letter case only"]
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if isinstance(name, str):
            groups[_folded(name)].append(name)
    twins = [sorted(group)[:2] for group in groups.values() if len(group) > 1]
    if not twins:
        return []
    one, other = min(twins)
    how = next((how for how, fold in _FOLDS if fold(one) == fold(other)), "writing")
    more = f", and {len(twins) - 1} more such names" if len(twins) > 1 else ""
    return [f"{head} {one!r} and {other!r} differ by {how} only{more}"]


def _items_in_doubt(head: str, column: pa.ChunkedArray) -> list[str]:
    """Report look-alike items and markers among them, without a Python object per item."""
    names = column.unique().drop_null()
    letters = np.frombuffer(names.buffers()[2] or b"", np.uint8)  # of all names joined
    folded = names
    if (letters > 127).any():
        folded = pc.utf8_normalize(folded, "NFKC")
        folded = pc.replace_substring_regex(folded, f"[{NO_WIDTH}]", "")
        folded = pc.utf8_lower(folded)
    elif ((letters >= ord("A")) & (letters <= ord("Z"))).any():
        folded = pc.ascii_lower(folded)
    if (letters <= ord(" ")).any() or (letters > 127).any():
        folded = pc.replace_substring_regex(folded, r"[\s\pZ]+", "")
    if pc.any(pc.starts_with(folded, "0")).as_py():
        folded = pc.replace_substring_regex(folded, "^0+([0-9])", r"\1")
    doubts: list[str] = []
    if folded is not names and pc.count_distinct(folded).as_py() < len(names):
        counted = folded.value_counts()
        twice = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
        chosen = names.filter(pc.is_in(folded, value_set=twice))
        doubts += look_alike(head, chosen[:1000].to_pylist())
    marker = pc.is_in(names, value_set=pa.array(sorted(MISSING), names.type))
    if pc.any(marker).as_py():
        found = names.filter(marker).to_pylist()
        doubts.append(f"{listed(map(repr, sorted(found)))} is read as the name of an item")
    return doubts
