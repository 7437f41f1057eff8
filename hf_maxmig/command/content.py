"""What the items are - pictures, texts, sounds or rows of a table - and the columns that hold them.

Flags say it, or else the columns themselves, where they leave no doubt. `processing.py` turns the columns into a
classifier's inputs.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Audio, Dataset, Image, Value

from ..data.columns import GOLD_COLUMNS
from ..data.inputs import PICTURE_FILES, SOUND_FILES
from ..data.readers.values import SPACE
from ..model.items import ALL_CROWD_COLUMNS
from .items import WORDS, ItemColumns, Modality, shown

# Columns of text are usually called so.
_TEXT_NAMES = frozenset(
    {
        "text", "texts", "sentence", "sentences", "content", "body", "document", "review", "comment", "tweet", "message",
        "utterance", "question", "headline", "abstract",
    }
)  # fmt: skip
_PROSE = 3  # words of a usual cell of text; categories and names have fewer
_LOOKED_AT = 200  # rows that tell what a column holds


@dataclass(frozen=True)
class Content:
    """What the items are, and the columns that hold them.

    Args:
        modality: image, text, audio or table.
        columns: one column; for pairs of texts two; of a table all that describe a row.
    """

    modality: Modality
    columns: tuple[str, ...]

    def without(self, item: str) -> "Content":
        """Leave out the column that names the items: it describes no row of a table."""
        columns = tuple(name for name in self.columns if name != item)
        return self if self.modality != "table" else Content(self.modality, columns)

    def __str__(self) -> str:
        """Say both in words."""
        shown = ", ".join(map(repr, self.columns[:5])) + ", ..." * (len(self.columns) > 5)
        return f"{WORDS[self.modality]} (column{'s' * (len(self.columns) > 1)} {shown})"


def content_of(
    dataset: Dataset,
    asked: ItemColumns,
    modality: str | None = None,
    folder: str | None = None,
    item: str | None = None,
) -> tuple[Dataset, Content]:
    """Find out what the items are, and open the files whose paths a column holds.

    Args:
        dataset: the items, as they were read.
        asked: the columns that flags name.
        modality: image, text, audio or table, if it is known.
        folder: where relative paths of pictures and sounds begin.
        item: the column that the votes refer to, if it is known.

    Returns:
        The items, with columns of `Image` or `Audio(decode=False)` for files, and what they are.

    Raises:
        ValueError: if a column is absent, or several could be meant; with the columns and the flag to set.
        FileNotFoundError: if there is no file of a name.
    """
    named = asked.named_columns()
    if modality is not None and named and modality not in named:
        (flag,) = named.values()
        raise ValueError(f"`--{flag}` must not be given for {WORDS[modality]}.")
    for flag in ("text_column", "text_pair_column", "image_column", "audio_column"):
        check_column(dataset, getattr(asked, flag))
    for name in (*(asked.feature_columns or ()), *(asked.categorical_columns or ())):
        check_column(dataset, name)
    modality = modality or next(iter(named), None)
    found: tuple[str, ...]
    if modality is None:
        modality, found = _guessed(dataset, item)
    elif named:
        found = _asked_columns(asked, modality)
    else:
        found = _columns_of(dataset, modality, item)
    if modality in ("image", "audio"):
        dataset, column = _opened(dataset, found[0], modality, folder)
        found = (column,)
    content = Content(modality, found)  # type: ignore[arg-type]
    if modality == "text":
        check_texts(dataset, content)
    return dataset, content


def same_content(
    dataset: Dataset, asked: ItemColumns, content: Content, folder: str | None = None
) -> Dataset:
    """Find in other items the columns that these hold, and open files.

    Args:
        dataset: the other items, as they were read.
        asked: the columns that flags name.
        content: what the first items are.
        folder: where relative paths of pictures and sounds begin.

    Returns:
        The other items; pictures or sounds in a column of the same name.

    Raises:
        ValueError: if a column is absent, or holds something else.
    """
    if content.modality in ("image", "audio"):
        dataset, found = content_of(dataset, asked, content.modality, folder)
        old, new = found.columns[0], content.columns[0]
        return dataset if old == new else dataset.rename_column(old, new)
    if content.modality == "text":
        for name in content.columns:
            check_column(dataset, name)
        check_texts(dataset, content)
    return dataset  # a table's processor checks its columns


def check_column(dataset: Dataset, name: str | None) -> None:
    """Raise if a flag names a column that is not there."""
    if name is not None and name not in dataset.column_names:
        raise ValueError(
            f"the items must have a column {name!r}, got {shown(dataset.column_names)}."
        )


def _asked_columns(asked: ItemColumns, modality: str) -> tuple[str, ...]:
    if modality == "table":
        return tuple(dict.fromkeys(asked.feature_columns or ()))
    if modality == "text":
        return tuple(filter(None, (asked.text_column, asked.text_pair_column)))
    return (getattr(asked, f"{modality}_column"),)


def _guessed(dataset: Dataset, item: str | None) -> tuple[Modality, tuple[str, ...]]:
    """Find what the items are, where that is certain."""
    free = _free(dataset, item=None)
    modalities: tuple[Modality, Modality] = ("image", "audio")
    media = {kind: names for kind in modalities if (names := _media(dataset, free, kind))}
    if len(media) == 1:
        ((kind, names),) = media.items()
        return kind, _only(dataset, names, kind)
    if not media:
        texts = _obvious_texts(dataset, free)
        if len(texts) == 1:
            return "text", (texts[0],)
        rest = _free(dataset, item)
        if rest and all(is_number(dataset.features[name]) for name in rest):
            return "table", tuple(rest)
    raise ValueError(
        f"it must be clear what the items are, got the columns {_described(dataset)}: name the column by "
        "`--text_column`, `--image_column` or `--audio_column`, or take the rows of a table by `--task table`."
    )


def _columns_of(dataset: Dataset, modality: str, item: str | None) -> tuple[str, ...]:
    """Find the columns of items whose kind is known."""
    if modality == "table":
        rest = tuple(_free(dataset, item))
        if not rest:
            raise ValueError(
                f"a table must have columns that describe its rows, got {_described(dataset)}."
            )
        return rest
    free = _free(dataset, item=None)
    if modality in ("image", "audio"):
        names = _media(dataset, free, modality)
        return _only(dataset, names, modality)
    texts = _obvious_texts(dataset, free)
    if not texts:
        texts = [n for n in _free(dataset, item) if is_text(dataset.features[n])]
    return _only(dataset, texts, modality)


def _only(dataset: Dataset, names: list[str], modality: str) -> tuple[str]:
    if modality in names:  # `image` of several pictures
        return (modality,)
    if len(names) != 1:
        which = f"several of them, {shown(names)}" if names else _described(dataset)
        raise ValueError(
            f"the items must have one column of {WORDS[modality]}, got {which}: name it by `--{modality}_column`"
            f"{' (and the second one of a pair by `--text_pair_column`)' if modality == 'text' else ''}."
        )
    return (names[0],)


def _free(dataset: Dataset, item: str | None) -> list[str]:
    taken = {*ALL_CROWD_COLUMNS, *GOLD_COLUMNS, item}
    return [name for name in dataset.column_names if name not in taken]


def _media(dataset: Dataset, names: Sequence[str], modality: str) -> list[str]:
    """List the columns of pictures or sounds, or else those of paths of such files."""
    kind, endings = (Image, PICTURE_FILES) if modality == "image" else (Audio, SOUND_FILES)
    own = [name for name in names if isinstance(dataset.features[name], kind)]
    if own:
        return own
    paths = []
    for name in names:
        cells = _first_cells(dataset, name) if is_text(dataset.features[name]) else []
        if cells and all(Path(cell).suffix.lower() in endings for cell in cells):
            paths.append(name)
    return paths


def _obvious_texts(dataset: Dataset, names: Sequence[str]) -> list[str]:
    """List the columns called as those of texts are, or else those with several words in a usual cell."""
    texts = [name for name in names if is_text(dataset.features[name])]
    usual = [name for name in texts if name.strip().lower() in _TEXT_NAMES]
    return usual or [name for name in texts if _is_prose(_first_cells(dataset, name))]


def _is_prose(cells: list[str]) -> bool:
    return bool(cells) and statistics.median(len(cell.split()) for cell in cells) >= _PROSE


def _first_cells(dataset: Dataset, name: str) -> list[str]:
    rows = dataset.select_columns([name]).with_format("arrow")[:_LOOKED_AT]
    return [cell for cell in rows[name].to_pylist() if cell]


def is_text(feature: Any) -> bool:
    """Whether a column of `datasets` holds text."""
    return isinstance(feature, Value) and feature.dtype in ("string", "large_string")


def is_number(feature: Any) -> bool:
    """Whether a column of `datasets` holds numbers."""
    return isinstance(feature, Value) and feature.dtype.startswith(("int", "uint", "float", "bool"))


def _described(dataset: Dataset) -> str:
    """List columns with their types."""
    kinds = {name: getattr(f, "dtype", type(f).__name__) for name, f in dataset.features.items()}
    kinds |= {n: "pictures" for n, f in dataset.features.items() if isinstance(f, Image)}
    kinds |= {n: "sounds" for n, f in dataset.features.items() if isinstance(f, Audio)}
    return shown([f"{name} ({kind})" for name, kind in kinds.items()])


# Files and texts


def _opened(
    dataset: Dataset, column: str, modality: str, folder: str | None
) -> tuple[Dataset, str]:
    """Take paths for the files there, in a column of its own; sounds are not decoded here."""
    feature = dataset.features[column]
    kind = Image() if modality == "image" else Audio(decode=False)
    if isinstance(feature, Image):
        return dataset, column
    if isinstance(feature, Audio):
        return dataset.cast_column(column, kind), column
    if not is_text(feature):
        raise ValueError(
            f"column {column!r} must hold {WORDS[modality]} or their paths, got {getattr(feature, 'dtype', feature)}."
        )
    paths = dataset.select_columns([column]).with_format("arrow")[:][column].to_pylist()
    there = [_found(path, folder, column, row) for row, path in enumerate(paths)]
    if column == modality:  # the votes may name its paths
        dataset = dataset.rename_column(column, _free_name(dataset, "file_name"))
    name = _free_name(dataset, modality)
    files = Dataset.from_dict({name: [{"bytes": None, "path": path} for path in there]})
    stored = files.cast_column(name, kind).with_format("arrow")[:][name].combine_chunks()
    return dataset.add_column(name, stored, feature=kind), name


def _free_name(dataset: Dataset, name: str) -> str:
    """Find a name that no column has."""
    while name in dataset.column_names:
        name += "_"
    return name


def _found(path: str | None, folder: str | None, column: str, row: int) -> str:
    """Find a file by its path from the folder of the table, or from here."""
    if path is None:
        raise ValueError(
            f"column {column!r} must name a file in every row, got none at item {row}."
        )
    for place in (Path(folder or "."), Path()):
        if (place / path).is_file():
            return str((place / path).resolve())
    raise FileNotFoundError(
        f"column {column!r} must name files that are there, got {path!r} at item {row}: paths begin at "
        f"{folder or 'the current folder'}."
    )


def check_texts(dataset: Dataset, content: Content) -> None:
    """Raise if an item has no text, or something else.

    Raises:
        ValueError: naming the column, and the item.
    """
    for name in content.columns:
        if not is_text(dataset.features[name]):
            got = getattr(dataset.features[name], "dtype", dataset.features[name])
            raise ValueError(f"column {name!r} must hold text, got {got}.")
        cells = dataset.select_columns([name]).with_format("arrow")[:][name]
        empty = pc.fill_null(pc.equal(pc.utf8_trim(cells, SPACE), ""), True)
        row = pc.index(empty, True).as_py()
        if row >= 0:
            got = "none" if cells[row].as_py() is None else repr(cells[row].as_py()[:20])
            more = int(pc.sum(pc.cast(empty, pa.int64())).as_py()) - 1
            raise ValueError(
                f"column {name!r} must hold a text in every row, got {got} at item {row}"
                f"{f' and at {more} more' if more else ''}: leave the row out, and its votes."
            )
