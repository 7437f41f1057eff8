"""What the page shows of an item: its picture, a player for its sound, its text, its row.

The page is one file of at most `MOST_BYTES`. Whatever is large - pictures, sounds, the rest of a long text,
the further columns of a long row - is on it while there is room, the first items first. `item.html` draws
the parts; `embedding.py` makes what is embedded.
"""

import math
import mimetypes
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Audio, ClassLabel, Dataset, Image, LargeList, List, Value

from ..data.columns import GOLD_COLUMNS
from ..model.items import ALL_CROWD_COLUMNS
from .embedding import THUMBNAIL, player, thumbnail
from .relabel import GOLD_USED, RELABELLED

MOST_BYTES = 8_000_000  # of the page
_ID_COLUMNS = ("file_name", "item", "item_id", "image_id", "id", "name", "path", "url")
_NOT_SHOWN = (*RELABELLED, GOLD_USED, *ALL_CROWD_COLUMNS, *GOLD_COLUMNS)
_BEGINNING = 240  # characters of a text that are shown at once
_LONGEST = 20_000  # characters of a text that are on the page
_PHRASE = 40  # a column with longer values holds texts, not names
_FIELDS = 8  # columns of a row that are shown at once
_BESIDE = (
    3  # columns that are shown at once beside a picture, a sound or a text, if there are no more
)
_NONE = "\u2013"
_VALUE = 160  # characters of a value in a row

Draw = Callable[["Part"], str]


@dataclass(frozen=True, eq=False)
class Part:
    """Something of an item that the page shows.

    Args:
        kind: `picture`, `sound`, `text` or `row`; a macro of `item.html`.
        item: the item's name.
        column: written above the part; empty if there is no other of its kind.
        file: what the item is called where the part is left out.
        begins: what is always shown, a text or the fields of a row.
        more: how many characters, columns or embedded files come on top if there is room.
        beyond: characters that are never on the page.
        load: makes `rest`; None if that cannot be read.
        state: `out`, `whole` or `lost`.
        rest: a data URI, the rest of a text, or further fields.
        remark: on what is embedded.
    """

    kind: str
    item: str
    column: str
    file: str = ""
    begins: Any = None
    more: int = 1
    beyond: int = 0
    load: Callable[[], tuple[Any, str] | None] = field(default=lambda: None)
    state: str = "out"
    rest: Any = None
    remark: str = ""

    def whole(self) -> "Part":
        """Add what is embedded, or note that it cannot be read."""
        loaded = self.load()
        if loaded is None:
            return replace(self, state="lost")
        return replace(self, state="whole", rest=loaded[0], remark=loaded[1])


@dataclass(frozen=True)
class Showing:
    """By which columns the page shows an item.

    Args:
        called: column of the item's name, if there is one.
        pictures: columns of pictures.
        sounds: columns of sounds.
        texts: columns of texts.
        fields: columns of names and numbers, shown as a row.
        chosen: whether the user chose the columns.
    """

    called: str | None
    pictures: list[str]
    sounds: list[str]
    texts: list[str]
    fields: list[str]
    chosen: bool

    @classmethod
    def of(cls, dataset: Dataset, rows: np.ndarray, show: Sequence[str] | None) -> "Showing":
        """Choose the columns by their features and, for texts and paths, by what the rows hold.

        Args:
            dataset: from `relabelled`, without a format.
            rows: of the items that will be shown.
            show: the columns in their order; None takes all but votes, gold labels, results and
                lists of numbers.

        Returns:
            The columns by their kind.

        Raises:
            TypeError: if `show` is not a list of names.
            ValueError: if it names a column that is absent or that no page can show.

        Example:
            >>> dataset = Dataset.from_dict({"id": [7], "sentence": ["A film. " * 9], "stars": [4], "features": [[0.1]]})
            >>> found = Showing.of(dataset, np.array([0]), None)
            >>> found.called, found.texts, found.fields
            ('id', ['sentence'], ['stars'])
        """
        kinds = {name: _kind(feature) for name, feature in dataset.features.items()}
        own = [name for name, kind in kinds.items() if kind and name not in _NOT_SHOWN]
        called = name_column(dataset)
        names = own if show is None else _checked(show, kinds)
        samples = {
            name: [v for v in _column(dataset, rows, name) if v is not None]
            for name in names
            if kinds[name] == "name"
        }
        if not (media := any(kinds[name] in ("picture", "sound") for name in names)):
            for name, values in samples.items():
                kinds[name] = _kind_of_files(values) or "name"
                media |= kinds[name] != "name"
        left = [name for name in names if show is not None or name != called]
        words = [name for name in left if kinds[name] == "name"]
        rest = [name for name in left if kinds[name] in ("name", "value")]
        alone = [] if media else rest
        texts = [
            name
            for name in words
            if max(map(len, samples[name]), default=0) > _PHRASE or alone == [name]
        ]
        return cls(
            called=called,
            pictures=[name for name in names if kinds[name] == "picture"],
            sounds=[name for name in names if kinds[name] == "sound"],
            texts=texts,
            fields=[name for name in rest if name not in texts],
            chosen=show is not None,
        )

    @property
    def columns(self) -> list[str]:
        """All of them, each once."""
        called = [self.called] if self.called else []
        return [*dict.fromkeys(called + self.pictures + self.sounds + self.texts + self.fields)]

    def read(self, dataset: Dataset, rows: np.ndarray, further: Iterable[str]) -> Dataset:
        """Read some items without decoding pictures or sounds.

        Args:
            dataset: from `relabelled`, without a format.
            rows: which items.
            further: other columns to read.
        """
        taken = [n for n in dict.fromkeys([*self.columns, *further]) if n in dataset.column_names]
        read = dataset.select(rows).select_columns(taken)
        for name in taken:
            if isinstance(read.features[name], Image):
                read = read.cast_column(name, Image(decode=False))
            elif isinstance(read.features[name], Audio):
                read = read.cast_column(name, Audio(decode=False))
        return read

    def name(self, item: Mapping[str, Any], number: int) -> str:
        """Give the item's name: its own, that of its file, or the number of its row."""
        media = [*self.pictures, *self.sounds]
        if self.called and self.called not in media and item[self.called] is not None:
            called = item[self.called]
            return called if isinstance(called, str) else f"{self.called} {called}"
        files = [_file(item[name]) for name in media]
        return next(filter(None, files), f"row {number}")

    def parts(
        self,
        item: Mapping[str, Any],
        features: Mapping[str, Any],
        number: int,
        pixels: int = THUMBNAIL,
    ) -> list[Part]:
        """List what the page shows of an item.

        Args:
            item: as `read` gives it.
            features: of its columns.
            number: of its row.
            pixels: of the longer side of a picture.
        """
        name = self.name(item, number)
        parts = []
        for kind, columns, load in (
            ("picture", self.pictures, partial(thumbnail, pixels=pixels)),
            ("sound", self.sounds, player),
        ):
            for column in columns:
                title, content = column if len(columns) > 1 else "", item[column]
                file = _file(content) or name
                parts.append(Part(kind, name, title, file, load=partial(load, content)))
        for column in self.texts:
            parts.append(_text(item[column], name, column if len(self.texts) > 1 else ""))
        if self.fields:
            rows = [(column, shown(item[column], features[column])) for column in self.fields]
            # Beside what the item is, many columns are folded, unless they are asked for.
            alone = self.chosen or not parts or len(rows) <= _BESIDE
            first = _FIELDS if alone else 0
            rest = rows[first:]
            parts.append(
                Part("row", name, "", name, rows[:first], len(rest), load=lambda: (rest, ""))
            )
        return parts

    def snippet(self, item: Mapping[str, Any], features: Mapping[str, Any]) -> str:
        """Describe an item in a line, where it has a text or a row and nothing to see."""
        if self.pictures or self.sounds:
            return ""
        if self.texts:
            return " / ".join(str(item[name]) for name in self.texts if item[name])
        return ", ".join(f"{name}: {shown(item[name], features[name])}" for name in self.fields[:4])


def fitting(parts: Iterable[Part], draw: Draw, room: int) -> tuple[dict[Part, str], list[Part]]:
    """Put in what fits.

    Args:
        parts: in the order in which they are put in.
        draw: draws a part, in HTML.
        room: how many bytes the page may grow over the one with all parts left out.

    Returns:
        The HTML of each part, and the parts that are left out.

    Example:
        >>> parts = [Part("text", "a", "", load=lambda: (5 * "x", "")), Part("text", "b", "", load=lambda: ("x", ""))]
        >>> drawn, out = fitting(parts, lambda part: part.item + (part.rest or ""), 4)
        >>> [*drawn.values()], [part.item for part in out]
        (['a', 'bx'], ['a'])
    """
    drawn, left_out = {}, []
    for part in parts:
        drawn[part] = draw(part)
        if not part.more:
            continue
        whole = draw(part.whole())
        growth = len(whole.encode()) - len(drawn[part].encode())
        if growth <= room:
            drawn[part] = whole
            room -= max(growth, 0)
        else:
            left_out.append(part)
    return drawn, left_out


def shown(value: Any, feature: Any) -> str:
    """Write a value of a row in a few characters.

    Example:
        >>> shown(1, ClassLabel(names=["red", "blue"])), shown(0.1234567, Value("float32")), shown(None, Value("int8"))
        ('blue', '0.123457', '–')
        >>> shown(["a", "b"], List(Value("string"))), shown({"x": 1}, {"x": Value("int8")})
        ('a, b', 'x: 1')
    """
    if isinstance(value, list):
        inner = getattr(feature, "feature", None)
        text = ", ".join(shown(part, inner) for part in value)
    elif isinstance(value, Mapping):
        inner = feature if isinstance(feature, Mapping) else {}
        text = "; ".join(f"{key}: {shown(part, inner.get(key))}" for key, part in value.items())
    elif isinstance(feature, ClassLabel) and isinstance(value, int):
        text = feature.names[value] if 0 <= value < len(feature.names or ()) else _NONE
    elif value is None or (isinstance(value, float) and math.isnan(value)):
        text = _NONE
    else:
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _VALUE else text[: _VALUE - 1] + "…"


def _text(text: str | None, item: str, column: str) -> Part:
    if not text:
        missing = "(no text)" if text is None else "(empty text)"
        return Part("text", item, column, item, missing, 0)
    cut = len(text)
    if cut > _BEGINNING + _BEGINNING // 4:  # a few characters are not worth a click
        space = text.rfind(" ", _BEGINNING // 2, _BEGINNING)
        cut = _BEGINNING if space < 0 else space
    rest = text[cut:_LONGEST]
    beyond = max(0, len(text) - _LONGEST)
    return Part("text", item, column, item, text[:cut], len(rest), beyond, lambda: (rest, ""))


def name_column(dataset: Dataset) -> str | None:
    """Find the column that names the items, if there is one.

    Example:
        >>> name_column(Dataset.from_dict({"stars": [4], "photo_id": ["a7"]}))
        'photo_id'
    """
    kinds = {name: _kind(feature) for name, feature in dataset.features.items()}
    own = [name for name, kind in kinds.items() if kind and name not in _NOT_SHOWN]
    ids = [*_ID_COLUMNS, *(n for n in own if n.lower().endswith(("_id", " id")))]
    return next((n for n in ids if n in own and kinds[n] in ("name", "value")), None)


def _kind(feature: Any) -> str:
    """Say how a column can be shown: picture, sound, name (text), value, or not at all."""
    if isinstance(feature, Image):
        return "picture"
    if isinstance(feature, Audio):
        return "sound"
    if isinstance(feature, Mapping) and {"array", "sampling_rate"} <= {*feature}:
        return "sound"
    if isinstance(feature, Value):
        if pa.types.is_string(feature.pa_type) or pa.types.is_large_string(feature.pa_type):
            return "name"
        return "" if "binary" in feature.dtype or feature.dtype == "null" else "value"
    kinds = [*_leaves(feature)]
    words = any(kind == "word" for kind in kinds)
    return "value" if kinds and "" not in kinds and (words or isinstance(feature, Mapping)) else ""


def _leaves(feature: Any) -> Iterable[str]:
    """Yield what the values inside a feature are: words, numbers, or nothing that can be written."""
    if isinstance(feature, Mapping):
        for part in feature.values():
            yield from _leaves(part)
    elif isinstance(feature, List | LargeList):
        yield from _leaves(feature.feature)
    elif isinstance(feature, ClassLabel):
        yield "word"
    elif isinstance(feature, Value):
        yield {"name": "word", "value": "number", "": ""}[_kind(feature)]
    else:
        yield ""


def _kind_of_files(values: Sequence[str]) -> str:
    """Say what the files are whose paths a column holds, if it holds such."""
    for value in values:
        kind = (mimetypes.guess_type(value)[0] or "").partition("/")[0]
        if kind in ("audio", "image") and "\0" not in value and os.path.isfile(value):
            return {"audio": "sound", "image": "picture"}[kind]
    return ""


def _file(content: Any) -> str:
    """Give the name of an item's file; empty if it has none."""
    path = content.get("path") if isinstance(content, Mapping) else content
    return os.path.basename(path) if isinstance(path, str) else ""


def _column(dataset: Dataset, rows: np.ndarray, name: str) -> list[Any]:
    return dataset.select_columns([name]).select(rows)[name][:]


def _checked(show: Any, kinds: Mapping[str, str]) -> list[str]:
    if isinstance(show, str) or not isinstance(show, Sequence):
        raise TypeError(f"`show` must be a list of column names, got {show!r}.")
    for name in show:
        if name not in kinds:
            raise ValueError(
                f"`show` must name columns of the data set, {', '.join(kinds)}, got {name!r}."
            )
        if not kinds[name]:
            raise ValueError(
                f"`show` must name columns that a page can show, got {name!r}: it holds lists of "
                "numbers, or bytes."
            )
    return [*dict.fromkeys(show)]
