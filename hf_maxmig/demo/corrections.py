"""The file of corrections: what reviewers say of items, as votes or as gold labels, in a CSV that `read_annotations` reads.

Several people may write at once, also from several processes: each change is made under a lock, and the file is
replaced as a whole.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from ..data.readers.values import MISSING
from ..judging.plots import legible
from ..model.whole_files import staged

COLUMNS = ("item", "annotator", "annotation", "gold")
MOST_LETTERS = 100  # of a reviewer's name
_SECONDS = 20.0  # that a change waits for those of others


@dataclass(frozen=True)
class Corrections:
    """What reviewers have said of items.

    A row is a vote (`item`, `annotator`, `annotation`), or the gold label of an item (`item`, `gold`). Who votes on
    an item again replaces their vote, and a gold label replaces the one before.

    Args:
        path: of the CSV file; it is made with the first correction.
        classes: C names.

    Raises:
        ValueError: if there is a file that is no such table.

    Example:
        >>> import tempfile
        >>> corrections = Corrections(Path(tempfile.mkdtemp(), "corrections.csv"), ["cat", "dog"])
        >>> corrections.vote("a.jpg", "zoe", "dog"), corrections.gold("b.jpg", "cat")
        (1, 2)
        >>> print(corrections.path.read_text(), end="")
        item,annotator,annotation,gold
        a.jpg,zoe,dog,
        b.jpg,,,cat
    """

    path: Path
    classes: Sequence[str] = field(repr=False)

    def __post_init__(self) -> None:
        self.rows()

    def vote(self, item: str, reviewer: str, annotation: str) -> int:
        """Save a reviewer's vote on an item, in place of an earlier one of theirs.

        Args:
            item: its name.
            reviewer: their name.
            annotation: a class.

        Returns:
            How many corrections the file holds.

        Raises:
            ValueError: if the reviewer has no name that a table of votes can hold, or there is no such class.
            OSError: if the file cannot be written.
        """
        return self._save((item, checked_reviewer(reviewer), self._checked(annotation), ""))

    def gold(self, item: str, annotation: str) -> int:
        """Save the gold label of an item, in place of an earlier one.

        Args:
            item: its name.
            annotation: a class.

        Returns:
            How many corrections the file holds.

        Raises:
            ValueError: if there is no such class.
            OSError: if the file cannot be written.
        """
        return self._save((item, "", "", self._checked(annotation)))

    def rows(self) -> list[tuple[str, ...]]:
        """Read all corrections, in the order in which they were made.

        Returns:
            Of each the cells of `COLUMNS`.

        Raises:
            ValueError: if the file is no table of corrections.
        """
        if not self.path.exists():
            return []
        try:
            with self.path.open(newline="", encoding="utf-8") as file:
                head, *rows = [tuple(row) for row in csv.reader(file)] or [()]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise ValueError(
                f"{self.path} must be a table of corrections, got: {error}."
            ) from error
        if head != COLUMNS or any(len(row) != len(COLUMNS) for row in rows):
            raise ValueError(
                f"{self.path} must have the columns {', '.join(COLUMNS)}, got {', '.join(head) or 'none'}: name "
                "another file for corrections."
            )
        return rows

    def of(self, item: str) -> list[tuple[str, str]]:
        """Look up what was said of an item.

        Args:
            item: its name.

        Returns:
            Pairs of a reviewer and a class; the reviewer of a gold label is empty.
        """
        return [(who, said or gold) for name, who, said, gold in self.rows() if name == item]

    def _save(self, row: tuple[str, str, str, str]) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path.with_name(f".{self.path.name}.lock"), timeout=_SECONDS)
        try:
            with lock:
                rows = [*(other for other in self.rows() if other[:2] != row[:2]), row]
                with (
                    staged(self.path) as place,
                    place.open("w", newline="", encoding="utf-8") as file,
                ):
                    csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
        except Timeout as error:
            raise OSError(
                f"{self.path} must be free within {_SECONDS:.0f} seconds, got a lock that another process holds."
            ) from error
        return len(rows)

    def _checked(self, annotation: str) -> str:
        if annotation not in self.classes:
            raise ValueError(f"a correction must name one of the classes, got {annotation!a}.")
        return annotation


def checked_reviewer(name: str) -> str:
    """Check a reviewer's name.

    Args:
        name: as it was typed.

    Returns:
        The name without white space around it.

    Raises:
        ValueError: if nothing is left, the name is a marker of missing values, too long, or has letters that no
            page can hold.

    Example:
        >>> checked_reviewer(" zoe ")
        'zoe'
    """
    name = name.strip()
    if not name or name in MISSING:
        got = f"got {name!r}, which stands for no name" if name else "got none"
        raise ValueError(f"a reviewer must have a name, {got}: type yours.")
    if len(name) > MOST_LETTERS:
        raise ValueError(
            f"a reviewer's name must have at most {MOST_LETTERS} letters, got {len(name)}."
        )
    if legible(name) != name or len(name.splitlines()) > 1:
        raise ValueError("a reviewer's name must be one line of visible letters, got others.")
    return name
