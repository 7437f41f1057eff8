"""A source, the user's arguments, and the unchecked votes that a format reads from both.

The formats are in `exports.py` and `read_annotations.py`.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cells import Cells, Column
from .values import USUAL, Rule

_SHOWN = 8  # how many names an error lists


@dataclass(frozen=True)
class Asked:
    """The user's arguments: where each role is found; None if it must be recognised."""

    item: str | None = None
    annotator: Any = None
    annotation: str | None = None
    gold: str | None = None
    rule: Rule = USUAL
    classes: list[str] | None = None
    weight: str | bool | None = None


@dataclass(frozen=True)
class Source:
    """A source: its name, its content, and the names of its rows in errors."""

    name: str
    kind: str  # what the content is: table, records, mapping, matrix, files or arrays
    content: Any
    path: Path | None = None
    place: Callable[[int], str] = "row {}".format
    note: str = ""
    known: frozenset[str] = frozenset()  # the names of its ClassLabels
    open_end: str | None = None  # column of the last cell if no line end follows: it may be cut off

    def wrong(self, what: str, row: int | None = None) -> ValueError:
        """Make an error that names the place: `votes.csv, line 812: ...`."""
        where = self.name if row is None else f"{self.name}, {self.place(row)}"
        return ValueError(f"{where}: {what}")

    def part(self, row: int, record: Any, key: str, kind: type) -> Any:
        """Return `record[key]` if it has the type that the format demands."""
        if not isinstance(record, dict):
            raise self.wrong(f"must be an object with names, got {type(record).__name__}.", row)
        value = record.get(key)
        if not isinstance(value, kind):
            got = type(value).__name__ if key in record else f"only {shown(record)}"
            raise self.wrong(f"`{key}` must be a {kind.__name__}, got {got}.", row)
        if isinstance(value, dict) and not all(isinstance(name, str) for name in value):
            raise self.wrong(f"names in `{key}` must be text, got {shown(value)}.", row)
        return value

    def records(self) -> list[Any]:
        """Return the content as a list of records."""
        if self.kind == "table":
            columns = {
                name: column if isinstance(column, list) else column.to_pylist()
                for name, column in self.content.items()
            }
            return [
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ]
        return list(self.content)


@dataclass
class UncheckedVotes:
    """One vote per row, not yet checked: columns by role or extra name, and notes for the log."""

    columns: dict[str, Column]
    source: Source
    rows: Any = None  # for each row the number of its record, if that is not the row's own number
    found: dict[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    said: Cells | None = None  # annotations, then gold labels, if the format has read them
    doubts: list[str] = field(default_factory=list)  # doubtful values, in words for the log
    open_ends: list[tuple[str, int]] = field(
        default_factory=list
    )  # role and row of cells that may be cut

    @property
    def name(self) -> str:
        """The name of the source."""
        return self.source.name

    def place(self, row: int) -> str:
        """Say where a row is from, as `Source.place` does."""
        return self.source.place(row if self.rows is None else int(self.rows[row]))

    def wrong(self, what: str, row: int) -> ValueError:
        """Make an error that names the place, as `Source.wrong` does."""
        return self.source.wrong(what, row if self.rows is None else int(self.rows[row]))


def shown(names: Iterable[Any]) -> str:
    """List the first few names."""
    names = [str(name) for name in names]
    return ", ".join(names[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)
