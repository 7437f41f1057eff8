"""The user's items, read from a folder, a file or the Hub: pictures, texts, sounds, or rows of a table.

`content.py` finds out which of the four they are, and in which columns.
"""

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from datasets import (
    Audio,
    ClassLabel,
    Dataset,
    DatasetDict,
    load_dataset,
    load_from_disk,
)

from ..data.columns import GOLD_COLUMNS
from ..data.inputs import PICTURE_FILES, SOUND_FILES
from ..data.readers.files import open_source
from ..data.readers.read_annotations import read_annotations
from ..data.readers.tables import record_columns
from ..data.readers.values import MISSING, SPACE
from .flags import one_line

logger = logging.getLogger(__name__)

Modality = Literal["image", "text", "audio", "table"]
WORDS: dict[str, str] = {
    "image": "pictures",
    "text": "texts",
    "audio": "sounds",
    "table": "rows of a table",
}
TASKS = {
    "image": "image-classification",
    "text": "text-classification",
    "audio": "audio-classification",
    "table": "tabular-classification",
}
MODALITIES = {task: modality for modality, task in TASKS.items()}
_TABLES = frozenset({".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson"})
_ARROW = {".parquet": "parquet", ".arrow": "arrow"}  # keep the types of `datasets`
_WHOLE = r"^-?(0|[1-9][0-9]{0,17})$"
_CODE = r"^[+-]?0[0-9]+$"  # 007 is a name, not the number 7


@dataclass
class VotesForm:
    """The form and the columns of the votes."""

    votes_format: str | None = field(
        default=None, metadata={"help": "Form of the votes; detected by default."}
    )
    votes_item: str | None = field(
        default=None,
        metadata={"help": "Column of the votes that names the item, if not detected."},
    )
    votes_annotator: str | None = field(
        default=None, metadata={"help": "Column of the votes that names the annotator."}
    )
    votes_annotation: str | None = field(
        default=None, metadata={"help": "Column of the votes that names the class."}
    )
    votes_gold: str | None = field(
        default=None, metadata={"help": "Column of the votes with gold labels."}
    )
    votes_weight: str | None = field(
        default=None,
        metadata={
            "help": "Column of the votes that says how much each counts, from 0 to 1. A usual name, such as `confidence`, "
            "is detected; `none` counts all votes in full."
        },
    )

    def read(self, source: str) -> Dataset:
        """Read the votes of a file or a folder.

        Raises:
            FileNotFoundError: if it does not exist.
            ValueError: if it holds no votes, or their form is not recognised.
        """
        check_votes(source)
        try:
            return read_annotations(
                source, self.votes_format, item=self.votes_item, annotator=self.votes_annotator,
                annotation=self.votes_annotation, gold=self.votes_gold,
                weight=False if self.votes_weight == "none" else self.votes_weight,
            )  # fmt: skip
        except ValueError as error:  # in the words of the flags
            told = re.sub(
                r"`(item|annotator|annotation|gold|weight|format)(=`|`(?= must ))",
                r"`--votes_\1`",
                str(error),
            )
            raise ValueError(told) from error


@dataclass
class ItemColumns(VotesForm):
    """The columns of the items, and how votes find them."""

    item_column: str | None = field(
        default=None,
        metadata={
            "help": "Column that the votes refer to. By default, the file names of pictures and sounds, or the one column "
            "that holds the names in the votes."
        },
    )
    text_column: str | None = field(
        default=None, metadata={"help": "Column of texts, if not detected."}
    )
    text_pair_column: str | None = field(
        default=None, metadata={"help": "Column of second texts, where an item is a pair of texts."}
    )
    image_column: str | None = field(
        default=None,
        metadata={
            "help": "Column of pictures or of their paths; by default `image`, or the only one."
        },
    )
    audio_column: str | None = field(
        default=None, metadata={"help": "Column of sounds or of their paths, if not detected."}
    )
    feature_columns: list[str] | None = field(
        default=None,
        metadata={
            "help": "Columns of a table that describe a row; by default all but item and gold label."
        },
    )
    categorical_columns: list[str] | None = field(
        default=None,
        metadata={
            "help": "Columns of a table whose whole numbers stand for categories; texts always do."
        },
    )
    label_column: str = field(
        default="label",
        metadata={"help": "Column of gold labels, if any. They only measure results."},
    )
    max_seconds: float | None = field(
        default=None,
        metadata={
            "help": "Length to which sounds are cut or filled up; by default that of the longest one, at most 10 seconds."
        },
    )
    dataset_config_name: str | None = field(
        default=None, metadata={"help": "Which configuration of a data set of the Hub."}
    )
    max_unknown_share: float = field(
        default=0.0, metadata={"help": "Share of votes that may refer to missing items."}
    )

    def __post_init__(self) -> None:
        if not 0 <= self.max_unknown_share <= 1:
            raise ValueError(
                f"`--max_unknown_share` must lie in 0..1, got {self.max_unknown_share}."
            )
        if self.max_seconds is not None and not 0 < self.max_seconds < float("inf"):
            raise ValueError(f"`--max_seconds` must be above 0, got {self.max_seconds}.")
        kinds = self.named_columns()
        if len(kinds) > 1:
            raise ValueError(
                f"items must be of one kind, got {' and '.join(f'`--{flag}`' for flag in kinds.values())}."
            )
        if self.text_pair_column is not None and self.text_column is None:
            raise ValueError("`--text_pair_column` must come with `--text_column`, got none.")

    def named_columns(self) -> dict[str, str]:
        """Say of which kind the items are by the flags, and by which flag."""
        flags = {
            "image": "image_column",
            "text": "text_column",
            "audio": "audio_column",
            "table": "feature_columns",
        }
        return {kind: flag for kind, flag in flags.items() if getattr(self, flag) is not None}


def shown(names: Sequence[str], most: int = 12) -> str:
    """List the first few names.

    Example:
        >>> shown(["a", "b", "c"], most=2)
        'a, b and 1 more'
    """
    return ", ".join(names[:most]) + f" and {len(names) - most} more" * (len(names) > most)


def check_votes(place: str) -> None:
    """Raise if the votes do not exist."""
    if not Path(place).exists():
        raise FileNotFoundError(
            f"`--votes` must be a file or folder of votes, got {place!r}: there is none."
        )


# Reading


def read_folder(folder: str, modality: str | None = None) -> tuple[Dataset, Modality]:
    """Read a folder of pictures or of sounds; its subfolders, if there are several, are gold labels.

    Args:
        folder: its path.
        modality: what to read, if it holds both.

    Returns:
        The items, with a column `image` or `audio`, and which of the two.

    Raises:
        ValueError: if it holds neither, both, or files that cannot be read.
    """
    if modality in ("text", "table"):
        raise ValueError(
            f"{WORDS[modality]} must be given by `--train_file` or `--dataset_name`, got the folder {folder!r}."
        )
    sounds, pictures = _files(folder, SOUND_FILES), _files(folder, PICTURE_FILES)
    if modality is None and sounds and pictures:
        raise ValueError(
            f"{folder} must hold pictures or sounds, got {len(pictures)} and {len(sounds)} of them: say by "
            "`--task image` or `--task audio` which ones are the items."
        )
    if modality == "audio" or (modality is None and sounds):
        if not sounds:
            raise ValueError(f"{folder} must hold sounds, got none.")
        return _sounds(folder, sounds), "audio"
    try:
        files = {"train": str(Path(folder).resolve() / "**")}  # whatever the folders are called
        return load_dataset("imagefolder", data_files=files, split="train"), "image"
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{folder} must be a data set of pictures or sounds, got: {one_line(error)}"
        ) from error


def _files(folder: str, endings: frozenset[str]) -> list[Path]:
    """List the files with these endings, as `datasets` does: without hidden ones."""
    found = []
    for place, folders, names in os.walk(Path(folder).resolve(), followlinks=True):
        folders[:] = [name for name in folders if name[:1] not in "._"]
        found += [
            Path(place, name)
            for name in names
            if name[:1] not in "._" and Path(name).suffix.lower() in endings
        ]
    return sorted(found)


def _sounds(folder: str, files: list[Path]) -> Dataset:
    """Make a data set of files; `audiofolder` of `datasets` does not work without torchcodec."""
    stored = [{"bytes": None, "path": str(path)} for path in files]
    dataset = Dataset.from_dict({"audio": stored}).cast_column("audio", Audio(decode=False))
    parents = [path.parent.name for path in files]
    if len({*parents}) > 1 and len({len(path.parts) for path in files}) == 1:
        names = sorted({*parents})
        labels = [names.index(parent) for parent in parents]
        dataset = dataset.add_column("label", labels, feature=ClassLabel(names=names))
    return dataset


def read_hub(name: str, config: str | None, split: str | None) -> Dataset:
    """Read a data set of the Hub.

    Raises:
        ValueError: if there is none, or it cannot be read.
    """
    try:
        return load_dataset(name, config, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name}, split {split!r} must be a data set of pictures, texts, sounds or rows, got: {one_line(error)}"
        ) from error


def read_saved(place: str, split: str) -> Dataset | None:
    """Load a data set that `datasets` has written; None if the place holds none.

    Args:
        place: a folder of `save_to_disk`, or a Parquet or Arrow file.
        split: which one, if there are several.

    Raises:
        ValueError: if it cannot be read, or has no such split.
    """
    path = Path(place)
    several = (path / "dataset_dict.json").is_file()
    try:
        if several or (path / "state.json").is_file():
            dataset = load_from_disk(place)
        elif path.suffix in _ARROW and path.is_file():
            files = {"train": str(path.resolve())}
            return load_dataset(_ARROW[path.suffix], data_files=files, split="train")
        else:
            return None
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{place} must be a data set, got: {one_line(error, 300)}") from error
    if not isinstance(dataset, DatasetDict):
        return dataset
    if split not in dataset:
        raise ValueError(f"`--split` must be one of {', '.join(dataset)}, got {split!r}.")
    return dataset[split]


def read_table(place: str) -> Dataset:
    r"""Read a file with an item per row: CSV, TSV, JSON, JSON lines or Parquet.

    A column of a text file holds numbers if all its cells are numbers, without zeros before them; an empty
    cell is None. A column that mixes texts and numbers holds texts.

    Args:
        place: the file.

    Returns:
        The items.

    Raises:
        ValueError: if the file is none of these, or broken; the error names the line.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "people.csv")
        >>> _ = file.write_text("id,age,job\n007,41,cook\n008,,\n")
        >>> read_table(str(file))[1]
        {'id': '008', 'age': None, 'job': None}
    """
    path = Path(place)
    saved = read_saved(place, "train")
    if saved is not None:
        return saved
    if path.suffix.lower() not in _TABLES:
        raise ValueError(
            f"a file of items must end in one of {', '.join(sorted({*_TABLES, *_ARROW}))}, got {place!r}."
        )
    source = open_source(place, None)
    if source.kind == "records":
        columns = record_columns(source.name, source.content, source.place)
    elif source.kind == "table":
        columns = dict(source.content)
    else:
        raise ValueError(f"{path.name}: must be a table with an item per row, got a {source.kind}.")
    arrays = {name: _typed(column) for name, column in columns.items()}
    if left := [name for name, array in arrays.items() if array is None]:
        logger.warning("%s: columns of mixed types are left out: %s.", path.name, shown(left))
    kept = {name: array for name, array in arrays.items() if array is not None}
    if not kept:
        raise ValueError(f"{path.name}: must have columns of one type, got only mixed ones.")
    return Dataset(pa.table(kept))


def _typed(column: Any) -> pa.Array | None:
    """Find the type of a column; None if it has none."""
    values = column.to_pylist() if hasattr(column, "to_pylist") else list(column)
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and kinds:
        return pa.array(values, pa.float64() if float in kinds else None)
    if kinds <= {str, int, float}:
        return _of_text(pa.array([None if v is None else str(v) for v in values], pa.string()))
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _of_text(cells: pa.Array) -> pa.Array:
    """Turn text into numbers if all of it is; an empty cell becomes None."""
    bare = pc.utf8_trim(cells, SPACE)
    cells = pc.if_else(pc.equal(bare, ""), None, cells)
    missing = pc.or_kleene(pc.is_null(cells), pc.is_in(bare, pa.array(sorted(MISSING))))
    numbers = pc.if_else(missing, None, bare)
    if (
        numbers.null_count == len(numbers)
        or pc.any(pc.match_substring_regex(numbers, _CODE)).as_py()
    ):
        return cells
    whole = pc.all(pc.match_substring_regex(numbers, _WHOLE)).as_py()
    try:
        return pc.cast(numbers, pa.int64() if whole else pa.float64())
    except pa.ArrowInvalid:
        return cells


def with_label(dataset: Dataset, label_column: str) -> Dataset:
    """Call the column of gold labels `label`, and leave out others that would be taken for it."""
    names = dataset.column_names
    if label_column not in names and label_column == "label" and "labels" in names:
        label_column = "labels"
    others = [name for name in GOLD_COLUMNS if name in names and name != label_column]
    if label_column not in names:
        return dataset
    dataset = dataset.remove_columns(others)
    return dataset if label_column == "label" else dataset.rename_column(label_column, "label")
