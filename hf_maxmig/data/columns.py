"""Crowd labels as two columns of a data set, and how a batch of them reaches the model.

`annotators` says who labelled an item, `annotations` what each of them said: ragged, of equal lengths, empty where
an item has no labels. Reading files of votes is not done here, nor is any training.
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import ClassLabel, Dataset, Features, IterableDataset, List, concatenate_datasets
from datasets.features import Sequence as SequenceFeature
from torch import Tensor
from transformers.utils import logging

from ..metrics import NO_LABEL

logger = logging.get_logger(__name__)

GOLD_COLUMNS = ("labels", "label")
_SHOWN = 5  # how many names an error or a warning lists


def crowd_features(annotators: Sequence[str], classes: Sequence[str]) -> Features:
    """Give the schema of the two crowd columns.

    Args:
        annotators: M names.
        classes: C names.

    Returns:
        Features of `annotators` and `annotations`.

    Example:
        >>> sorted(crowd_features(["ann", "bob"], ["cat", "dog"]))
        ['annotations', 'annotators']
    """
    return Features(
        annotators=List(ClassLabel(names=list(annotators))),
        annotations=List(ClassLabel(names=list(classes))),
    )


def crowd_names(dataset: Any) -> tuple[list[str] | None, list[str] | None]:
    """Read the names of annotators and classes off a data set.

    Args:
        dataset: a data set with crowd columns, or without; anything that has `features`.

    Returns:
        Annotator names and class names; None where the features do not carry them. A dense column of annotations
        (one place an annotator, -1 for none) of fixed length gives numbers for the annotators' names.

    Example:
        >>> features = crowd_features(["ann", "bob"], ["cat", "dog"])
        >>> crowd_names(Dataset.from_dict({"annotators": [[0]], "annotations": [[1]]}, features=features))
        (['ann', 'bob'], ['cat', 'dog'])
    """
    features = getattr(dataset, "features", None) or {}
    annotations = _inner(features.get("annotations"))
    annotators = _inner(features.get("annotators"))
    names = list(annotators.names) if isinstance(annotators, ClassLabel) else None
    if annotators is None and getattr(features.get("annotations"), "length", -1) > 0:
        names = [str(m) for m in range(features["annotations"].length)]
    return names, list(annotations.names) if isinstance(annotations, ClassLabel) else None


def _inner(feature: Any) -> Any:
    return feature.feature if isinstance(feature, List | SequenceFeature) else None


def add_annotations(
    dataset: Dataset,
    votes: Any,
    item_column: str,
    *,
    classes: Sequence[str] | None = None,
    max_unknown_share: float = 0.0,
) -> Dataset:
    """Join a long table of votes to a data set, as its crowd columns.

    Args:
        dataset: the items, one a row.
        votes: a table with columns `item`, `annotator`, `annotation`, one vote a row: a `datasets.Dataset`, a pandas
            data frame, an Arrow table or a dict of lists.
        item_column: the column of `dataset` that the votes' `item` refers to; its values must be unique.
        classes: C class names in the order of their numbers; by default those of the votes' `ClassLabel`, else the
            names that occur, sorted.
        max_unknown_share: share of votes that may refer to items that `dataset` does not have; they are left out with
            a warning.

    Returns:
        The data set with `annotators` and `annotations`; items without votes have empty lists. The order of an item's
        votes is that of the table, and annotators are sorted by name.

    Raises:
        KeyError: if a column is absent.
        ValueError: if the data set has crowd columns already, items are not unique, a value is missing, a class is not
            in `classes`, or too many votes refer to unknown items.

    Example:
        >>> images = Dataset.from_dict({"file_name": ["a.jpg", "b.jpg"]})
        >>> votes = {"item": ["a.jpg", "a.jpg"], "annotator": ["bob", "ann"], "annotation": ["cat", "dog"]}
        >>> joined = add_annotations(images, votes, item_column="file_name")
        >>> joined["annotators"][:], joined["annotations"][:]
        ([[1, 0], []], [[0, 1], []])
    """
    table, vote_classes = _votes_table(votes)
    if item_column not in dataset.column_names:
        raise KeyError(
            f"`item_column` must be a column of the data set, one of {', '.join(dataset.column_names)}, "
            f"got {item_column!r}."
        )
    for name in ("annotators", "annotations"):
        if name in dataset.column_names:
            raise ValueError(f"`dataset` must not have a column {name!r} yet; remove it to join other votes.")
    position = _positions(dataset, table["item"], item_column, max_unknown_share)
    known = position >= 0
    annotator_names, annotator = _encode_annotators(table["annotator"])
    class_names, annotation = _encode_classes(table["annotation"], classes or vote_classes)

    order = np.argsort(position[known], kind="stable")
    lengths = np.bincount(position[known], minlength=len(dataset))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    features = crowd_features(annotator_names, class_names)
    columns = {
        name: pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), pa.array(values[known][order], pa.int64())
        )
        for name, values in (("annotators", annotator), ("annotations", annotation))
    }
    crowd = Dataset(pa.table(columns)).cast(features)
    joined = concatenate_datasets([dataset.with_format(None), crowd], axis=1)
    return joined.with_format(**dataset.format) if dataset.format["type"] else joined


def _votes_table(votes: Any) -> tuple[pa.Table, list[str] | None]:
    """Bring votes to Arrow; a ClassLabel annotation becomes its names."""
    names = None
    if isinstance(votes, Dataset):
        feature = votes.features.get("annotation")
        names = list(feature.names) if isinstance(feature, ClassLabel) else None
        table = votes.with_format("arrow")[:]
    elif isinstance(votes, pa.Table):
        table = votes
    elif isinstance(votes, dict):
        table = pa.table(votes)
    else:
        table = pa.Table.from_pandas(votes, preserve_index=False)
    for column in ("item", "annotator", "annotation"):
        if column not in table.column_names:
            raise KeyError(
                f"`votes` must have the columns item, annotator and annotation, got {', '.join(table.column_names)}: "
                f"{column!r} is missing; rename yours."
            )
        if table[column].null_count:
            row = pc.index(pc.is_null(table[column]), True).as_py()
            raise ValueError(f"`votes` must not have missing values, got none for {column!r} at row {row}.")
    if names is not None:
        codes = np.asarray(table["annotation"])
        table = table.set_column(
            table.column_names.index("annotation"), "annotation", pa.array(names).take(pa.array(codes))
        )
    return table, names


def _positions(
    dataset: Dataset, items: pa.ChunkedArray, item_column: str, max_unknown_share: float
) -> np.ndarray:
    """Row of the data set for each vote; -1 where there is none."""
    rows = dataset.select_columns([item_column]).with_format("arrow")[:][item_column].combine_chunks()
    if len(rows.unique()) != len(rows):
        counts = rows.value_counts()
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))[0].as_py()
        raise ValueError(f"column {item_column!r} must identify the items, got {twice!r} more than once.")
    if pa.types.is_string(rows.type) != pa.types.is_string(items.type):
        # Numbers on one side, strings on the other: the data set's own type decides.
        try:
            items = items.cast(rows.type)
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"`votes` must name items as column {item_column!r} does ({rows.type}), got {items.type}: {error}"
            ) from error
    position = np.asarray(pc.fill_null(pc.index_in(items, value_set=rows.cast(items.type)), -1))
    unknown = position < 0
    if unknown.any():
        shown = pc.unique(items.filter(pa.array(unknown))).to_pylist()
        text = (
            f"{int(unknown.sum())} of {len(unknown)} votes refer to {len(shown)} items that column {item_column!r} "
            f"does not have, such as {', '.join(map(repr, shown[:_SHOWN]))}"
        )
        if unknown.mean() > max_unknown_share:
            raise ValueError(
                f"{text}: more than `max_unknown_share` = {max_unknown_share}. Check `item_column`, or allow more."
            )
        logger.warning("%s; they are left out.", text)
    return position


def _encode_annotators(annotators: pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    encoded = annotators.cast(pa.string()).combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), dtype=np.int64)
    rank[np.asarray(order)] = np.arange(len(order))
    return encoded.dictionary.take(order).to_pylist(), rank[np.asarray(encoded.indices)]


def _encode_classes(
    annotations: pa.ChunkedArray, classes: Sequence[str] | None
) -> tuple[list[str], np.ndarray]:
    values = annotations.cast(pa.string())
    names = sorted(pc.unique(values).to_pylist()) if classes is None else [str(name) for name in classes]
    codes = pc.index_in(values, value_set=pa.array(names, pa.string()))
    if codes.null_count:
        row = pc.index(pc.is_null(codes), True).as_py()
        name = values[row].as_py()
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(
            f"`votes`, row {row}: annotation {name!r} is not one of the {len(names)} classes{hint}."
        )
    return names, np.asarray(codes).astype(np.int64)


def align_annotators(dataset: Dataset, annotators: Sequence[str]) -> Dataset:
    """Number the annotators of a data set as a model numbers them; those it does not know become -1.

    Args:
        dataset: with crowd columns whose features carry names.
        annotators: the model's names, `model.config.annotators`.

    Returns:
        The data set with `annotators` renumbered. Labels of unknown annotators stay, and add nothing.

    Raises:
        ValueError: if the data set's features do not name the annotators.

    Example:
        >>> features = crowd_features(["bob", "eve"], ["cat", "dog"])
        >>> dataset = Dataset.from_dict({"annotators": [[0, 1]], "annotations": [[1, 1]]}, features=features)
        >>> align_annotators(dataset, ["ann", "bob"])["annotators"][:]
        [[1, -1]]
    """
    names, classes = crowd_names(dataset)
    if names is None or classes is None:
        raise ValueError("`dataset` must have `annotators` and `annotations` with named features, got neither name.")
    known = {name: m for m, name in enumerate(annotators)}
    renumber = pa.array([known.get(name, -1) for name in names], pa.int64())
    pairs = dataset.select_columns(["annotators", "annotations"]).with_format("arrow")[:].combine_chunks()
    column = pairs["annotators"].combine_chunks()
    renumbered = pa.ListArray.from_arrays(column.offsets, renumber.take(column.values))
    crowd = Dataset(pa.table({"annotators": renumbered, "annotations": pairs["annotations"]}))
    crowd = crowd.cast(crowd_features(annotators, classes))
    rest = dataset.with_format(None).remove_columns(["annotators", "annotations"])
    joined = concatenate_datasets([rest, crowd], axis=1)
    return joined.with_format(**dataset.format) if dataset.format["type"] else joined


def crowd_batches(
    dataset: Any, collator: "CrowdCollator", batch_size: int = 65_536
) -> Iterator[tuple[Tensor, Tensor]]:
    """Read only the crowd columns of a data set, chunk by chunk, as padded pairs.

    Args:
        dataset: a `datasets.Dataset` (read through Arrow), an `IterableDataset`, or any data set with a length.
        collator: checks and pads.
        batch_size: items in a chunk.

    Yields:
        Annotators and annotations, each (n, K) int64 padded with -1.

    Raises:
        ValueError: if a value is out of range, see `CrowdCollator`.
    """
    if isinstance(dataset, Dataset):
        columns = [name for name in ("annotators", "annotations") if name in dataset.column_names]
        rows = dataset.select_columns(columns).with_format("arrow")
        for start in range(0, len(rows), batch_size):
            table = rows[start : start + batch_size]
            yield collator.pairs({name: _ragged(table[name], name) for name in columns}, start)
        return
    examples: list[dict[str, Any]] = []
    start = 0
    if isinstance(dataset, IterableDataset):
        stream = iter(dataset.select_columns(["annotators", "annotations"]))
    else:
        stream = (dataset[i] for i in range(len(dataset)))
    for example in stream:
        examples.append(example)
        if len(examples) == min(batch_size, 1024):
            yield collator.crowd(examples, start)
            start += len(examples)
            examples = []
    if examples:
        yield collator.crowd(examples, start)


def _ragged(column: pa.ChunkedArray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Values and lengths of a list column, without a Python object a row."""
    column = column.combine_chunks()
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise ValueError(f"`{name}` must be a list, got None at item {row}: an item without labels has an empty list.")
    values = column.flatten()
    if values.null_count:
        raise ValueError(f"`{name}` must not hold None, got {values.null_count} of them.")
    lengths = np.asarray(pc.list_value_length(column))
    return np.asarray(values), lengths


class CrowdCollator:
    """Turn examples with crowd columns into a batch: padded pairs, pictures through the image processor, the rest.

    Ragged pairs come as `annotators` and `annotations`; a dense row of annotations alone (one place an annotator, -1
    for none) is taken too. Duplicate pairs are allowed: an annotator may label an item twice. Gold labels in `label`
    or `labels` pass through, -100 where there is none (None or -1).

    Args:
        num_annotators: M.
        num_classes: C.
        processor: an image processor, or a tokenizer.
        input_names: the columns that the classifier takes; every numeric column by default.

    Raises:
        ValueError: naming the item: if lists differ in length, hold None, or hold a number out of range; if only part
            of the examples have crowd columns; if there are pictures but no processor.

    Example:
        >>> collate = CrowdCollator(num_annotators=3, num_classes=2)
        >>> batch = collate([{"x": 0.5, "annotators": [2, 0], "annotations": [1, 1]},
        ...                  {"x": 0.1, "annotators": [], "annotations": []}])
        >>> batch["annotators"].tolist(), batch["annotations"].tolist()
        ([[2, 0], [-1, -1]], [[1, 1], [-1, -1]])
    """

    def __init__(
        self,
        num_annotators: int,
        num_classes: int,
        processor: Any = None,
        input_names: Sequence[str] | None = None,
    ) -> None:
        self.num_annotators = num_annotators
        self.num_classes = num_classes
        self.processor = processor
        self.input_names = input_names

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Collate B examples: (B, K) annotators and annotations, (B,) labels, and the classifier's inputs."""
        batch = self._inputs(examples)
        if any("annotations" in example for example in examples):
            batch["annotators"], batch["annotations"] = self.crowd(examples)
        labels = self._gold(examples)
        if labels is not None:
            batch["labels"] = labels
        return batch

    def crowd(self, examples: list[dict[str, Any]], start: int = 0) -> tuple[Tensor, Tensor]:
        """Pad the crowd columns of some examples; `start` is the number of the first, for errors."""
        columns = {}
        for name in ("annotators", "annotations"):
            rows = [example.get(name) for example in examples]
            if name == "annotators" and all(row is None for row in rows):
                continue  # dense annotations
            for i, row in enumerate(rows):
                if row is None:
                    raise ValueError(
                        f"`{name}` must be a list, got None at item {start + i}: an item without labels has an empty "
                        "list."
                    )
            arrays = [np.asarray(row) for row in rows]
            for i, array in enumerate(arrays):
                if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
                    raise ValueError(
                        f"`{name}` must be a flat list of integers, got {rows[i]!r} at item {start + i}: "
                        "None and NaN are no labels, leave them out."
                    )
            columns[name] = (
                np.concatenate(arrays).astype(np.int64),
                np.array([len(array) for array in arrays]),
            )
        return self.pairs(columns, start)

    def pairs(
        self, columns: dict[str, tuple[np.ndarray, np.ndarray]], start: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Check and pad flat columns.

        Args:
            columns: for `annotations`, and `annotators` unless dense: all values in a row, and the length of each
                item's list.
            start: number of the first item, for errors.

        Returns:
            Annotators and annotations, each (n, K) int64 padded with -1, K at least 1.
        """
        annotations, lengths = columns["annotations"]
        item = np.repeat(np.arange(len(lengths)), lengths)
        self._check("annotations", annotations, self.num_classes, item, start)
        if "annotators" in columns:
            annotators, others = columns["annotators"]
            if (lengths != others).any():
                i = int((lengths != others).argmax())
                raise ValueError(
                    f"`annotators` and `annotations` must have the same length, got {others[i]} and {lengths[i]} at "
                    f"item {start + i}."
                )
            self._check("annotators", annotators, self.num_annotators, item, start)
        else:
            if (lengths != self.num_annotators).any():
                i = int((lengths != self.num_annotators).argmax())
                raise ValueError(
                    f"dense `annotations` must have one place an annotator, M = {self.num_annotators}, got "
                    f"{lengths[i]} at item {start + i}: ragged ones need a column `annotators`."
                )
            given = annotations >= 0
            annotators = np.tile(np.arange(self.num_annotators), len(lengths))[given]
            annotations, item = annotations[given], item[given]
            lengths = np.bincount(item, minlength=len(lengths))
        width = max(1, int(lengths.max(initial=0)))
        place = np.arange(len(item)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        padded = np.full((2, len(lengths), width), -1, dtype=np.int64)
        padded[0, item, place] = annotators
        padded[1, item, place] = annotations
        return torch.from_numpy(padded[0]), torch.from_numpy(padded[1])

    def _check(
        self, name: str, values: np.ndarray, number: int, item: np.ndarray, start: int
    ) -> None:
        bad = (values < -1) | (values >= number)
        if bad.any():
            i = int(bad.argmax())
            raise ValueError(
                f"`{name}` must lie in 0..{number - 1} or be -1 for padding, got {values[i]} at item "
                f"{start + int(item[i])}."
            )

    def _gold(self, examples: list[dict[str, Any]]) -> Tensor | None:
        column = next((name for name in GOLD_COLUMNS if name in examples[0]), None)
        if column is None:
            return None
        values = []
        for i, example in enumerate(examples):
            value = example.get(column)
            value = NO_LABEL if value is None or value == -1 else int(value)
            if value != NO_LABEL and not 0 <= value < self.num_classes:
                raise ValueError(
                    f"`{column}` must lie in 0..{self.num_classes - 1}, or be None, -1 or {NO_LABEL} for no gold "
                    f"label, got {value} at item {i}."
                )
            values.append(value)
        return torch.tensor(values)

    def _inputs(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch: dict[str, Tensor] = {}
        skipped = {"annotators", "annotations", *GOLD_COLUMNS}
        names = [name for name in examples[0] if name not in skipped]
        for name in names:
            values = [example[name] for example in examples]
            if hasattr(values[0], "convert"):  # a PIL picture
                if "pixel_values" not in names:
                    batch["pixel_values"] = self._pictures(values)
            elif self.input_names is not None and name not in self.input_names:
                continue
            elif name == "input_ids" and hasattr(self.processor, "pad"):
                fields = [n for n in self.processor.model_input_names if n in names]
                batch.update(
                    self.processor.pad([{n: e[n] for n in fields} for e in examples], return_tensors="pt")
                )
            elif name not in batch and not isinstance(values[0], str | bytes | None.__class__):
                batch[name] = _stack(name, values)
        return batch

    def _pictures(self, pictures: list[Any]) -> Tensor:
        if self.processor is None:
            raise ValueError(
                "a data set with pictures must come with an image processor: pass `processing_class`, or compute "
                "`pixel_values` yourself."
            )
        colour = [picture.convert("RGB") for picture in pictures]
        return self.processor(colour, return_tensors="pt")["pixel_values"]


def _stack(name: str, values: list[Any]) -> Tensor:
    if isinstance(values[0], Tensor):
        return torch.stack(values)
    try:
        array = np.stack([np.asarray(value) for value in values])
    except ValueError as error:
        raise ValueError(f"column {name!r} must have rows of one shape to be stacked: {error}.") from error
    return torch.from_numpy(array.astype(np.float32) if array.dtype == np.float64 else array)
