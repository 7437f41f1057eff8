"""Read one value of a table of votes: a name, a number, or no answer.

The rules are listed in `cells.py`, which reads whole columns and decides what depends on all values of a
kind.
"""

import ast
import datetime
import json
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

Name = int | str

# What `pandas.read_csv` reads as missing, and what databases, R and spreadsheets write for it.
MISSING = frozenset(
    [
        "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
        "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "NaT",
        "NA_character_", "NA_integer_", "\\N", "(null)", "<null>", "[null]", "[NULL]",
        "#VALUE!", "#REF!", "#DIV/0!", "#NUM!", "#NAME?", "#NULL!",
    ]
)  # fmt: skip
NO_WIDTH = "\u00ad\u180e\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
SPACE = "".join(c for c in map(chr, range(0x3001)) if c.isspace()) + NO_WIDTH
_EXACT = 2.0**53  # whole numbers above it are not exact in a float
SHOWN = 3  # how many names a message lists


@dataclass(frozen=True)
class Rule:
    """A rule for values: the texts that stand for no answer, and the known names."""

    missing: frozenset[str] = MISSING
    is_given: bool = False  # the caller named the markers, so they are not in doubt
    known: frozenset[str] = frozenset()

    def but(self, known: Iterable[str]) -> "Rule":
        """Return the rule with further known names."""
        return replace(self, known=self.known | frozenset(known))


USUAL = Rule()


def rule_of(missing: Any, classes: Sequence[Any] | None = None) -> Rule:
    """Return the rule for a caller's arguments.

    Args:
        missing: a text or number that stands for no answer, or several; None for the usual ones.
        classes: the known names.

    Raises:
        TypeError: if either has another type.

    Example:
        >>> sorted(rule_of(["?", -1]).missing), "NA" in rule_of(None).missing
        (['-1', '?'], True)
    """
    known = frozenset(class_names(classes) or ())
    if missing is None:
        return Rule(known=known)
    several = [missing] if isinstance(missing, str | int | float) else missing
    if not isinstance(several, list | tuple | set | frozenset) or not all(
        isinstance(one, str | int | float) for one in several
    ):
        raise TypeError(
            f"`missing` must be texts that stand for no answer, such as ['NA', '?'], got {missing!r}."
        )
    return Rule(frozenset(str(one).strip(SPACE) for one in several), True, known)


def class_names(classes: Any) -> list[str] | None:
    """Return class names as text, None for None.

    Raises:
        TypeError: if they are not a sequence of text or whole numbers.
        ValueError: if there are none, or a name occurs twice, is empty or cannot be written in UTF-8.

    Example:
        >>> class_names([0, 1])
        ['0', '1']
    """
    if classes is None:
        return None
    names = checked_names("classes", classes)
    if not names:
        raise ValueError("`classes` must hold at least one name, got none.")
    return names


def checked_names(what: str, names: Any) -> list[str]:
    """Check names, and return them as text; `what` is the argument, for errors."""
    try:
        if isinstance(names, str | bytes | dict):
            raise TypeError
        listed = list(names)
        if not all(isinstance(one, str | int | np.integer) for one in listed):
            raise TypeError
    except TypeError:
        raise TypeError(f"`{what}` must be a list of names, got {shown_value(names)}.") from None
    texts = [str(name) for name in listed]
    for name, number in Counter(texts).items():
        if number > 1:
            raise ValueError(f"`{what}` must differ, got {name!r} {number} times.")
        if not name or not is_text(name):
            raise ValueError(f"`{what}` must be names in Unicode text, got {name!r}.")
    return texts


class NoNameError(ValueError):
    """Raised for a value that is not a name; its text is the cause."""


@dataclass(frozen=True)
class Marker:
    """A text that stands for no answer."""

    text: str


class WrittenFloat(float):
    """A number that keeps the text it was written as."""

    text: str

    def __new__(cls, value: float, text: str) -> "WrittenFloat":
        """Make a number from its value and its text."""
        out = super().__new__(cls, value)
        out.text = text
        return out


def value_of(value: Any, rule: Rule, answers: bool, strip: bool = True) -> Any:
    """Return a number, a text, a marker, or None for no answer."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if answers and isinstance(value, list | tuple | set | frozenset | dict | np.ndarray):
        value = only_answer(value)
    if is_missing(value):
        return None
    if isinstance(value, str):
        return _text(str(value), rule, answers) if strip else _sound(str(value))
    number = _number(value)
    return Marker(str(number)) if rule.is_given and str(number) in rule.missing else number


def _sound(text: str) -> str:
    if not is_text(text):
        raise NoNameError(f"must be Unicode text, got half a character in {text[:80]!r}.")
    return text


def _text(text: str, rule: Rule, answers: bool) -> Any:
    text = _sound(text)
    if text in rule.known:
        return text
    text = text.strip(SPACE)
    if text in rule.known:
        return text
    if text == "":
        return None
    if text in rule.missing:
        return Marker(text)
    if answers and text[0] in "[{" and text[-1] in "]}" and len(text) < 10_000:
        listed = _list_in_text(text)
        if listed is not None:
            one = only_answer(listed)
            if one is None:
                return text if listed else Marker(text)
            return _text(str(_number(one) if not isinstance(one, str) else one), rule, False)
    return text


def _list_in_text(text: str) -> Any:
    """Return the list or object that a text is in JSON or Python syntax, None for other text."""
    for parse in (json.loads, ast.literal_eval):
        try:
            found = parse(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        return found if isinstance(found, list | dict | set | tuple) else None
    return None


def _number(value: Any) -> Name:
    """Return a whole number, 3.0 included, as an int, True as "true", another scalar as its text."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, int | np.integer):
        return short_number(int(value))
    if isinstance(value, float | np.floating):
        number = float(value)
        if not np.isfinite(number):
            raise NoNameError(f"must be finite, got {number}.")
        if number.is_integer() and abs(number) < _EXACT:
            return int(number)
        if isinstance(value, WrittenFloat):
            return value.text
        kind = pa.float32() if isinstance(value, np.float32 | np.float16) else pa.float64()
        return str(pa.array([number], kind).cast(pa.string())[0].as_py())
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise NoNameError(f"must be finite, got {value}.")
        if abs(value.adjusted()) < 100 and value == value.to_integral_value():
            return int(value)
        return str(value)
    if isinstance(value, uuid.UUID | datetime.date | datetime.time | datetime.timedelta):
        return str(value)
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(pd.Timestamp(value) if isinstance(value, np.datetime64) else pd.Timedelta(value))
    raise NoNameError(f"must hold text or numbers, got {shown_value(value)}.")


def short_number(number: int) -> int:
    """Return a whole number, unless it is too long to be written out."""
    if number.bit_length() > 4096:
        raise NoNameError(f"must hold text or numbers, got one of {number.bit_length()} bits.")
    return number


def only_answer(value: Any) -> Any:
    """Return the one label in an answer, None if there is none.

    Raises:
        ValueError: if there are several, or the answer is an object.

    Example:
        >>> only_answer(["cat"]), only_answer([]), only_answer("cat")
        ('cat', None, 'cat')
    """
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple | set | frozenset):
        several = list(value)
        if len(several) > 1:
            raise NoNameError(f"must be one label, got {len(several)}: {listed(several)}.")
        value = several[0] if several else None
    if isinstance(value, list | tuple | set | frozenset | dict | np.ndarray):
        raise NoNameError(f"must be one label, got {shown_value(value)}.")
    return None if is_missing(value) or (isinstance(value, str) and value == "") else value


def is_missing(value: Any) -> bool:
    """Whether a value is None or a NaN of any library."""
    if value is None or value is pd.NA or value is pd.NaT:
        return True
    if isinstance(value, float | np.floating):
        return bool(value != value)
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, np.datetime64 | np.timedelta64) and bool(np.isnat(value))


def plain_key(value: Any, rule: Rule) -> Any:
    """Return the value of a cell by the rules that need no other cell, to recognise formats."""
    try:
        value = value_of(value, rule, True)
    except NoNameError:
        return None
    if isinstance(value, str) and value.endswith(".0"):
        value = value[:-2]
    return None if isinstance(value, Marker) or value is None else str(value)


def is_text(text: str) -> bool:
    """Whether a text can be written in UTF-8. JSON can hold half a character, which cannot be stored.

    Example:
        >>> is_text("é"), is_text(chr(0xD800))
        (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def listed(names: Iterable[Any]) -> str:
    """List the first few names, on one line."""
    names = [shown_value(name) for name in names]
    return ", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN)


def shown_value(value: Any) -> str:
    """Write a value on one short line, whatever it is."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError, OverflowError):
        text = f"a {type(value).__name__}"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 80 else text[:80] + "..."
