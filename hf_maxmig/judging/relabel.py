"""The labels cleaned: a data set with what the model makes of each item beside what the crowd said."""

import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import Audio, ClassLabel, Dataset, Features, List, Value
from datasets.table import embed_table_storage
from datasets.utils import tqdm

from ..data.collator import CrowdCollator, crowd_batches
from ..data.columns import (
    CROWD_COLUMNS,
    crowd_names,
    flat_lists,
    with_columns,
)
from ..data.inputs import SOUND_INPUTS, TEXT_INPUTS
from ..model.functional import vote_share
from ..model.items import WEIGHTS_COLUMN
from ..model.whole_files import staged

RELABELLED = (
    "forecast", "confidence", "plurality", "label_quality", "suspect", "suspicion", "difficulty",
    "classifier_posterior", "aggregator_posterior", "forecast_posterior",
)  # fmt: skip
GOLD_USED = "gold_used"  # a further column, where gold labels were used in the training
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # how what a spreadsheet computes may begin
_ROWS_AT_ONCE = 1000  # with pictures of 100 kB, 100 MB


def relabelled(
    dataset: Dataset,
    log_h: np.ndarray,
    log_g: np.ndarray,
    log_forecast: np.ndarray,
    collator: CrowdCollator,
    classes: Sequence[str],
    gold_used: np.ndarray | None = None,
) -> Dataset:
    """Put the three posteriors and what follows from them beside an item's own columns.

    Args:
        dataset: N items, with votes, without, or with votes on some.
        log_h: (N, C), log-probabilities of the classifier, in nats.
        log_g: (N, C), log-probabilities of the aggregator.
        log_forecast: (N, C), log-probabilities of the forecaster; those of the classifier where an
            item has no votes.
        collator: checks the crowd columns.
        classes: C names.
        gold_used: (N,) bool, of which items the training used the gold label, and the forecaster does;
            None adds no column.

    Returns:
        The data set with these columns added, in its own order:

        | column | |
        |---|---|
        | `forecast` | name of the likeliest class of the forecaster |
        | `confidence` | its probability |
        | `plurality` | name of the class with the most votes; None without votes or at a tie |
        | `label_quality` | the forecast's probability of the plurality: how sure the crowd's label is. At a tie, that of the likeliest of the tied classes; None without votes |
        | `suspect` | whether the forecast is none of the classes with the most votes |
        | `suspicion` | probability that those are all wrong; None without votes |
        | `difficulty` | expected share of the item's votes that are wrong, by the forecast; None without votes |
        | `classifier_posterior`, `aggregator_posterior`, `forecast_posterior` | C probabilities |
        | `gold_used` | whether the item's gold label was used; only if `gold_used` is given |

    Raises:
        ValueError: if the data set has one of these columns already, or the posteriors are not of
            its items.

    Example:
        >>> items = Dataset.from_dict({"annotators": [[0, 1, 2]], "annotations": [[0, 0, 1]]})
        >>> log_h = np.log([[0.1, 0.9]])
        >>> cleaned = relabelled(items, log_h, log_h, log_h, CrowdCollator(3, 2), ["cat", "dog"])
        >>> cleaned["forecast"][0], cleaned["plurality"][0], round(cleaned["suspicion"][0], 3)
        ('dog', 'cat', 0.9)
        >>> round(cleaned["label_quality"][0], 3), round(cleaned["difficulty"][0], 3)
        (0.1, 0.633)
    """
    for argument, array in (("log_h", log_h), ("log_g", log_g), ("log_forecast", log_forecast)):
        if array.shape != (len(dataset), len(classes)):
            raise ValueError(
                f"`{argument}` must have shape (N, C) = ({len(dataset)}, {len(classes)}), got "
                f"{array.shape}: row i is item i."
            )
    probability = np.exp(log_forecast)
    best = log_forecast.argmax(axis=1)
    shares = _vote_shares(dataset, collator, len(classes))
    most = shares.max(axis=1, keepdims=True)
    top = (shares == most) & (most > 0)
    voted = top.any(axis=1)
    single = top.sum(axis=1) == 1
    names = np.array(classes, dtype=object)
    suspicion = np.clip(1 - (probability * top).sum(axis=1), 0, 1)
    difficulty = np.clip(1 - (probability * shares).sum(axis=1), 0, 1)
    columns = {
        "forecast": pa.array(names[best], pa.string()),
        "confidence": pa.array(probability.max(axis=1), pa.float32()),
        "plurality": pa.array(names[top.argmax(axis=1)], pa.string(), mask=~single),
        "label_quality": pa.array((probability * top).max(axis=1), pa.float32(), mask=~voted),
        "suspect": pa.array(voted & ~top[np.arange(len(top)), best]),
        "suspicion": pa.array(suspicion, pa.float32(), mask=~voted),
        "difficulty": pa.array(difficulty, pa.float32(), mask=~voted),
        "classifier_posterior": _rows(np.exp(log_h)),
        "aggregator_posterior": _rows(np.exp(log_g)),
        "forecast_posterior": _rows(probability),
    }
    if gold_used is not None:
        columns[GOLD_USED] = pa.array(gold_used)
    if taken := [name for name in columns if name in dataset.column_names]:
        raise ValueError(
            f"`dataset` must not have a column {taken[0]!r} yet: remove or rename it, nothing is "
            "overwritten."
        )
    posterior = List(Value("float32"), length=len(classes))
    kinds = {
        "forecast": Value("string"),
        "confidence": Value("float32"),
        "plurality": Value("string"),
        "label_quality": Value("float32"),
        "suspect": Value("bool"),
        "suspicion": Value("float32"),
        "difficulty": Value("float32"),
        GOLD_USED: Value("bool"),
    }
    return with_columns(dataset, Features({n: kinds.get(n, posterior) for n in columns}), columns)


@dataclass(frozen=True)
class Suspects:
    """The suspect items of a relabelled data set, and how often forecast and crowd should be right.

    Args:
        number: how many there are.
        forecast: expected share whose forecast is right, by the forecaster's own probabilities: the
            mean of `confidence`; NaN without suspects.
        crowd: expected share of which a class with the most votes is right: the mean of
            1 - `suspicion`.
    """

    number: int
    forecast: float
    crowd: float

    @classmethod
    def of(cls, dataset: Dataset) -> "Suspects":
        """Read them off the columns.

        Args:
            dataset: from `relabelled`.

        Returns:
            What is expected, no gold labels asked.

        Example:
            >>> items = Dataset.from_dict({"suspect": [True, True, False], "suspicion": [0.9, 0.6, 0.0],
            ...                            "confidence": [0.7, 0.5, 0.9]})
            >>> found = Suspects.of(items)
            >>> found.number, round(found.forecast, 2), round(found.crowd, 2), found.take_forecasts
            (2, 0.6, 0.25, True)
        """
        suspect = np.asarray(_column(dataset, "suspect").fill_null(False), dtype=bool)
        if not suspect.any():
            return cls(0, float("nan"), float("nan"))
        confidence = np.asarray(_column(dataset, "confidence"), dtype=float)
        crowd = 1 - np.asarray(_column(dataset, "suspicion"), dtype=float)
        return cls(
            int(suspect.sum()), float(confidence[suspect].mean()), float(crowd[suspect].mean())
        )

    @property
    def take_forecasts(self) -> bool:
        """Whether more than half of the forecasts are expected to be right."""
        return self.forecast > 0.5


def most_suspect_first(dataset: Dataset) -> Dataset:
    """Sort a relabelled data set: suspects first, each part by falling suspicion.

    Args:
        dataset: from `relabelled`.

    Returns:
        The same rows; those without votes last, equal ones in their order.
    """
    flat = dataset.select_columns(["suspect", "suspicion"]).with_format("arrow")[:]
    suspicion = np.asarray(flat["suspicion"].fill_null(-1.0))
    return dataset.select(np.lexsort((-suspicion, ~np.asarray(flat["suspect"]))))


def write_parquet(dataset: Dataset, path: Path) -> None:
    """Write a data set, whole or not at all.

    Pictures that lie in other files are taken in; `Dataset.to_parquet` would write their paths. Sounds
    are large: those that lie in other files stay paths.

    Args:
        dataset: what to write.
        path: of the file.
    """
    rows = dataset.with_format("arrow")
    schema = dataset.features.arrow_schema
    sounds = [name for name, kind in dataset.features.items() if isinstance(kind, Audio)]
    with staged(path) as place, pq.ParquetWriter(place, schema) as writer:
        starts = range(0, len(rows), _ROWS_AT_ONCE)
        for start in tqdm(starts, desc=f"Writing {path.name}", disable=len(starts) < 2):
            table = rows[start : start + _ROWS_AT_ONCE]
            table = table.cast(schema)
            embedded = embed_table_storage(table.drop_columns(sounds))
            columns = [(table if n in sounds else embedded)[n] for n in schema.names]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def with_names(
    dataset: Dataset, annotators: Sequence[str] | None = None, classes: Sequence[str] | None = None
) -> Dataset:
    """Put names where a data set has numbers: annotators, annotations, gold labels and other classes.

    Args:
        dataset: with crowd columns, or without.
        annotators: M names, where its features have none; None leaves the numbers.
        classes: C names, likewise.

    Returns:
        The same rows. A column that says no number keeps None in its place.

    Example:
        >>> items = Dataset.from_dict({"annotators": [[0, 1], []], "annotations": [[1, 0], []]})
        >>> named = with_names(items, ["ann", "bob"], ["cat", "dog"])
        >>> named["annotators"][:], named["annotations"][:]
        ([['ann', 'bob'], []], [['dog', 'cat'], []])
    """
    own_annotators, own_classes = crowd_names(dataset)
    columns: dict[str, pa.Array] = {}
    kinds: dict[str, Any] = {}
    for name, names in zip(
        CROWD_COLUMNS, (own_annotators or annotators, own_classes or classes), strict=True
    ):
        if name in dataset.column_names and names:
            values, lengths = flat_lists(name, _column(dataset, name))
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            columns[name] = pa.ListArray.from_arrays(pa.array(offsets), _named(values, names))
            kinds[name] = List(Value("string"))
    for name, feature in dataset.features.items():
        if isinstance(feature, ClassLabel) and feature.names:
            codes = _column(dataset, name).fill_null(-1).to_numpy()
            columns[name], kinds[name] = _named(codes, feature.names), Value("string")
    return with_columns(dataset, Features(kinds), columns) if columns else dataset


def save_relabelled(
    dataset: Dataset,
    annotators: Sequence[str] | None,
    classes: Sequence[str],
    path: Path,
) -> None:
    """Write a relabelled data set with names, as Parquet and, beside it, as CSV.

    What a tokenizer or a feature extractor made of texts or sounds is left out where these are there: it is
    larger than they are, and nobody reads it.

    Args:
        dataset: from `relabelled`.
        annotators: M names, if they have any.
        classes: C names.
        path: of the Parquet file.
    """
    named = with_names(dataset, annotators, classes)
    own = [kind for name, kind in dataset.features.items() if name not in RELABELLED]
    has_text = any(getattr(kind, "dtype", "") in ("string", "large_string") for kind in own)
    has_sound = any(isinstance(kind, Audio) for kind in own)
    made = {*(TEXT_INPUTS if has_text else ()), *(SOUND_INPUTS if has_sound else ())}
    if made & {*named.column_names}:
        made |= {"attention_mask", "token_type_ids"}
    named = named.remove_columns([name for name in named.column_names if name in made])
    write_parquet(named, path)
    write_csv(named, path.with_suffix(".csv"))


def write_csv(dataset: Dataset, path: Path) -> None:
    """Write what a spreadsheet shows of a relabelled data set, whole or not at all.

    Pictures, lists and posteriors are left out; a sound is the path of its file; the votes come in one
    column, `ann: cat; bob: dog`, with its weight behind a vote that does not count in full,
    `ann: cat (0.80)`. Text that a spreadsheet would take for a formula has an apostrophe
    before it.

    Args:
        dataset: from `with_names`.
        path: of the file.
    """
    sounds = [name for name, kind in dataset.features.items() if isinstance(kind, Audio)]
    plain = [
        name
        for name, kind in dataset.features.items()
        if name in sounds or (isinstance(kind, Value) and "binary" not in kind.dtype)
    ]
    # In double precision 14.38 would become 14.380000114440918.
    single = [name for name in plain if getattr(dataset.features[name], "dtype", "") == "float32"]
    voted = [name for name in CROWD_COLUMNS if name in dataset.column_names]
    own = [name for name in plain if name not in RELABELLED]
    found = [name for name in plain if name in RELABELLED]
    weights = [name for name in (WEIGHTS_COLUMN,) if voted and name in dataset.column_names]
    rows = dataset.with_format(None).select_columns([*plain, *voted, *weights])
    for name in sounds:
        rows = rows.cast_column(name, Audio(decode=False))
    with staged(path) as place, place.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = [*own, *(["votes"] if voted else []), *found]
        writer.writerow([spreadsheet_text(name) for name in names])
        for row in rows:
            row |= {name: row[name] and row[name]["path"] for name in sounds}
            row |= {name: np.float32(row[name]) for name in single if row[name] is not None}
            said = "; ".join(
                (text if who is None else f"{who}: {text}")
                + ("" if each == 1 else f" ({each:.2f})")
                for who, text, each in zip(
                    row.get("annotators") or itertools.repeat(None),
                    row.get("annotations") or (),
                    row.get(WEIGHTS_COLUMN) or itertools.repeat(1.0),
                    strict=False,
                )
                if text is not None
            )
            cells = [*(row[n] for n in own), *([said] if voted else []), *(row[n] for n in found)]
            writer.writerow([spreadsheet_text(cell) for cell in cells])


def spreadsheet_text(value: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would take for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _named(codes: np.ndarray, names: Sequence[str]) -> pa.Array:
    numbers = pa.array(codes, pa.int64(), mask=(codes < 0) | (codes >= len(names)))
    return pa.array(list(names), pa.string()).take(numbers)


def _column(dataset: Dataset, name: str) -> pa.ChunkedArray:
    return dataset.select_columns([name]).with_format("arrow")[:][name]


def _vote_shares(dataset: Dataset, collator: CrowdCollator, num_classes: int) -> np.ndarray:
    """(N, C), the share of an item's votes that each class has; zeros without votes."""
    if "annotations" not in dataset.column_names:
        return np.zeros((len(dataset), num_classes), dtype=np.float32)
    crowd = crowd_batches(dataset, collator)
    parts = [vote_share(said, num_classes, *weights) for _, said, *weights in crowd]
    return torch.cat(parts).numpy()


def _rows(array: np.ndarray) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(
        pa.array(array.astype(np.float32).ravel()), array.shape[1]
    )
