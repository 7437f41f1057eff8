"""Collate items into the model's batches: crowd columns are padded, pictures and text processed.

The columns themselves are made in `columns.py`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, IterableDataset
from datasets.features.features import require_decoding
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset as TorchDataset
from transformers import DataCollatorWithPadding

from ..metrics import NO_LABEL
from ..model.items import ALL_CROWD_COLUMNS, WEIGHTS_COLUMN, check_ids, reads_rows
from ..model.items import input_names as input_names
from ..model.opening import short
from ..model.votes import Votes
from .columns import CROWD_COLUMNS, EVERY, GOLD_COLUMNS, check_range, flat_lists
from .inputs import (
    as_rgb,
    check_all_or_none,
    check_complete,
    check_finite,
    check_fits,
    data_inputs,
    has_pictures,
    is_numeric,
    remedy,
    stack,
)
from .readers.cells import is_lists
from .readers.weights import check_weights

POSTERIOR_COLUMN = "crowd_posterior"  # C numbers per item, for methods that prepare them

_CELLS = (
    2**22
)  # places of a padded chunk: one item with very many votes must not widen a million rows

TRUSTED_COLUMN = "crowd_trusted"  # C numbers per item, in a training with gold labels
NOT_INPUTS = (*ALL_CROWD_COLUMNS, POSTERIOR_COLUMN, TRUSTED_COLUMN, *GOLD_COLUMNS)

FlatLists = tuple[np.ndarray, np.ndarray]  # all values in a row, and the length of each list
Columns = dict[
    str, Any
]  # a list of each example's value; or an array; or Arrow's, of crowd columns


class CrowdCollator:
    """Turn examples into a batch: padded crowd columns, gold labels, the classifier's inputs.

    Votes come as ragged lists `annotators` and `annotations`, or as a dense row of `annotations` alone
    (one place per annotator, -1 for no vote). An annotator may vote on an item twice. Lists, arrays
    and tensors are all accepted. Lists `annotation_weights` say how much each vote counts, from 0 to 1; a
    vote of weight 0 is left out. Without such a column all votes count as 1.

    Gold labels in `labels`, or else `label`, pass through. An item without one gets -100; its value may
    be absent, None, NaN (what None becomes in the torch format), -1 or -100.

    A column `crowd_posterior`, which some methods prepare, is stacked.

    Errors name examples by their numbers in the data set if these are known
    (`hf_maxmig.data.numbered`), and otherwise by their place in the batch.

    Inputs: a column of pictures goes through the image processor, as RGB. A tokenizer or a feature
    extractor pads the columns that it knows. A table processor makes `features` of the columns that it
    reads, unless the examples have `features` already. Other columns of numbers are stacked, float64 as float32.
    Columns of text, dates or structures are left out.

    Args:
        num_annotators: M.
        num_classes: C.
        processor: an image processor, a tokenizer, a feature extractor or a table processor.
        input_names: the inputs that the classifier takes; every column by default.
        vocabulary: the number of tokens of the classifier, if it takes `input_ids`.

    Raises:
        ValueError: with the number of the item, if lists differ in length, hold None, or hold a number
            out of range (also in `input_ids`); if only some examples have a column; if a gold label is
            not a class; if a picture cannot be read; or if an input is not finite. With the name of
            the column, if its numbers differ in shape, there are pictures but no image processor,
            there are two columns of pictures, or the classifier takes none of the columns.
        TypeError: if examples are not dicts.

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
        vocabulary: int | None = None,
    ) -> None:
        self.num_annotators = num_annotators
        self.num_classes = num_classes
        self.processor = processor
        self.input_names = input_names
        self.vocabulary = vocabulary
        makes = reads_rows(processor) and self.takes("features")
        self._row_columns = frozenset(processor.column_names if makes else ())

    def __call__(self, examples: list[dict[str, Any]] | pa.Table) -> dict[str, Tensor]:
        """Collate B examples: (B, K) annotators and annotations, (B,) labels, and the inputs."""
        return self.collate(examples, getattr(examples, "numbers", EVERY))

    def collate(
        self, examples: list[dict[str, Any]] | pa.Table, items: Sequence[int]
    ) -> dict[str, Tensor]:
        """Collate examples with known numbers; errors call the i-th example `items[i]`."""
        columns = _columns(examples, items, self._row_columns)
        batch = self._inputs(columns, items)
        if "input_ids" in batch:
            check_ids(batch["input_ids"], self.vocabulary, items)
        if any(name in columns for name in ALL_CROWD_COLUMNS):
            batch |= self.pairs(_flat_columns(columns, items), items).as_batch()
        if POSTERIOR_COLUMN in columns:
            batch[POSTERIOR_COLUMN] = stack(POSTERIOR_COLUMN, columns[POSTERIOR_COLUMN], items)
        check_finite(batch, items[: len(examples)])
        labels = self._gold(columns, items)
        if labels is not None:
            batch["labels"] = labels
        return batch

    # The crowd

    def crowd(self, examples: list[dict[str, Any]], items: Sequence[int] = EVERY) -> Votes:
        """Pad the crowd columns of some examples; `items` are their numbers, for errors."""
        return self.pairs(_flat_columns(_columns(examples, items), items), items)

    def pairs(self, columns: dict[str, FlatLists], items: Sequence[int] = EVERY) -> Votes:
        """Check and pad flat columns.

        Args:
            columns: for `annotations`, and `annotators` unless dense, and `annotation_weights` if there
                are any: all values in a row, and the length of each item's list.
            items: the items' numbers, for errors.

        Returns:
            Annotators and annotations, each (n, K) int64 padded with -1, K at least 1; with weights if
            the columns have any.
        """
        annotations, lengths = columns["annotations"]
        check_range("annotations", annotations, lengths, self.num_classes, items)
        weights, counted = columns.get(WEIGHTS_COLUMN, (None, lengths))
        if (lengths != counted).any():
            i = int((lengths != counted).argmax())
            raise ValueError(
                f"`annotations` and `{WEIGHTS_COLUMN}` must have the same length, got {lengths[i]} and {counted[i]} at "
                f"item {items[i]}: each vote has its weight."
            )
        if weights is not None:
            check_weights(WEIGHTS_COLUMN, weights, lengths, items)
        item = np.repeat(np.arange(len(lengths)), lengths)
        if "annotators" in columns:
            annotators, others = columns["annotators"]
            if (lengths != others).any():
                i = int((lengths != others).argmax())
                raise ValueError(
                    "`annotators` and `annotations` must have the same length, got "
                    f"{others[i]} and {lengths[i]} at item {items[i]}."
                )
            check_range("annotators", annotators, lengths, self.num_annotators, items)
        else:
            if (lengths != self.num_annotators).any():
                i = int((lengths != self.num_annotators).argmax())
                raise ValueError(
                    "dense `annotations` must have one place per annotator, M = "
                    f"{self.num_annotators}, got {lengths[i]} at item {items[i]}: ragged ones "
                    "need a column `annotators`."
                )
            given = annotations >= 0
            annotators = np.tile(np.arange(self.num_annotators), len(lengths))[given]
            annotations, item = annotations[given], item[given]
            weights = weights if weights is None else weights[given]
            lengths = np.bincount(item, minlength=len(lengths))
        if weights is not None and not weights.all():  # a vote of weight zero is none
            counts = weights > 0
            annotators, annotations, item, weights = (
                table[counts] for table in (annotators, annotations, item, weights)
            )
            lengths = np.bincount(item, minlength=len(lengths))
        width = max(1, int(lengths.max(initial=0)))
        place = np.arange(len(item)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        pairs = np.full((2, len(lengths), width), -1, dtype=np.int64)
        pairs[0, item, place] = annotators
        pairs[1, item, place] = annotations
        each = None
        if weights is not None:
            each = np.zeros(pairs.shape[1:], dtype=np.float32)
            each[item, place] = weights
        tables = [*pairs, *([] if each is None else [each])]
        return Votes(*map(torch.from_numpy, tables))

    # Gold labels

    def gold(self, examples: list[dict[str, Any]] | pa.Table, items: Sequence[int]) -> Tensor:
        """Check the gold labels of some examples: (n,) int64, `NO_LABEL` where there is none."""
        labels = self._gold(_columns(examples, items), items)
        return torch.full((len(examples),), NO_LABEL) if labels is None else labels

    def _gold(self, columns: Columns, items: Sequence[int]) -> Tensor | None:
        column = next((name for name in GOLD_COLUMNS if name in columns), None)
        if column is None:
            return None
        values = columns[column]
        if isinstance(values, np.ndarray) and values.ndim == 1:
            numbers = values.astype(np.float64)
        else:
            arrays = [_array(NO_LABEL if value is None else value) for value in values]
            numbers = np.array([_number(array) for array in arrays])
        none = np.isnan(numbers) | (numbers == -1) | (numbers == NO_LABEL)
        good = (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < self.num_classes)
        if not (good | none).all():
            i = int((good | none).argmin())
            raise ValueError(
                f"`{column}` must lie in 0..{self.num_classes - 1}, or be None, -1 or {NO_LABEL} "
                f"for no gold label, got {short(values[i])} at item {items[i]}."
            )
        return torch.from_numpy(np.where(none, NO_LABEL, numbers).astype(np.int64))

    # Inputs

    def takes(self, name: str) -> bool:
        """Whether a column is an input of the classifier."""
        return self.input_names is None or name in self.input_names

    def reads(self, name: str) -> bool:
        """Whether a column is an input of the classifier, or the table processor makes one of it."""
        return self.takes(name) or name in self._row_columns

    def _inputs(self, names: Columns, items: Sequence[int]) -> dict[str, Tensor]:
        columns = described = {n: v for n, v in names.items() if n not in NOT_INPUTS}
        if self._row_columns and "features" not in columns:
            made = {"features": self.processor.read(columns, items).numpy()}
            rest = {n: v for n, v in columns.items() if n not in self._row_columns}
            columns = {**rest, **made}
        pictures = {n: v for n, v in columns.items() if has_pictures(v)}
        columns = {n: v for n, v in columns.items() if n not in pictures and self.takes(n)}
        batch: dict[str, Tensor] = {}
        if self.takes("pixel_values") and "pixel_values" not in columns and pictures:
            batch.update(self._process(pictures, items))
        known = getattr(self.processor, "model_input_names", ())
        if (
            hasattr(self.processor, "pad")
            and "pixel_values" not in known
            and {*known[:1]} & {*columns}
        ):
            known_columns = {name: columns.pop(name) for name in known if name in columns}
            batch.update(self._pad(known_columns, items))
        for name, values in columns.items():
            if is_numeric(values):
                batch[name] = stack(name, values, items)
            else:
                check_all_or_none(name, values, items)
        if self.input_names is not None and not batch:
            raise ValueError(
                f"examples must have an input of the classifier, one of {', '.join(data_inputs(self.input_names))}, "
                f"got {', '.join(names) or 'none'}: {remedy(described, self.input_names)}"
            )
        return {name: tensor for name, tensor in batch.items() if self.takes(name)}

    def _process(self, columns: dict[str, list[Any]], items: Sequence[int]) -> dict[str, Tensor]:
        """Put pictures through the image processor."""
        (name, pictures), *others = columns.items()
        if others:
            raise ValueError(
                f"examples must have one column of pictures, got {', '.join(columns)}: remove the "
                "other columns, or compute `pixel_values` yourself."
            )
        known = getattr(self.processor, "model_input_names", ["pixel_values"])
        if self.processor is None or "pixel_values" not in known:
            got = "none" if self.processor is None else type(self.processor).__name__
            raise ValueError(
                f"a data set with pictures (column {name!r}) must come with an image processor, "
                f"got {got}: pass `processing_class`, or compute `pixel_values` yourself."
            )
        colour = [as_rgb(picture, name, items[i]) for i, picture in enumerate(pictures)]
        try:
            return dict(self.processor(colour, return_tensors="pt"))
        except Exception as error:
            i = _first_failing(lambda i: self.processor([colour[i]], return_tensors="pt"), colour)
            where = "a batch" if i is None else f"item {items[i]}, {colour[i].size} pixels"
            raise ValueError(
                f"column {name!r} must hold pictures that {type(self.processor).__name__} takes, got {where} "
                f"({type(error).__name__}: {error})."
            ) from error

    def _pad(self, columns: dict[str, list[Any]], items: Sequence[int]) -> dict[str, Tensor]:
        """Let the tokenizer or the feature extractor pad the columns that it knows."""
        for name, values in columns.items():
            check_complete(name, values, items)
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        pad = DataCollatorWithPadding(self.processor)
        try:
            batch = dict(pad(rows))
        except Exception as error:
            i = _first_failing(lambda i: pad([rows[i]]), rows)
            i = _first_unlike(rows) if i is None else i
            where = "" if i is None else f", got {short(rows[i])} at item {items[i]}"
            raise ValueError(
                f"columns {', '.join(columns)} must be as {type(self.processor).__name__} makes them, lists of numbers "
                f"of one length{where} ({type(error).__name__}: {error})."
            ) from error
        return batch


def crowd_batches(
    dataset: Any, collator: CrowdCollator, batch_size: int = 65_536
) -> Iterator[Votes]:
    """Read only the crowd columns of a data set, chunk by chunk, as padded votes.

    Args:
        dataset: a `datasets.Dataset` (read through Arrow, without its transform), an
            `IterableDataset` (from its start, even if it was resumed in the middle), or any data
            set with a length.
        collator: checks and pads.
        batch_size: the largest number of items in a chunk; fewer where an item has very many votes.

    Yields:
        Annotators and annotations, each (n, K) int64 padded with -1, in the order of the items; with
        weights if the data set has a column of them.

    Raises:
        ValueError: if there are no annotations, or a value is out of range, see `CrowdCollator`.
    """
    for columns, start in _flat_chunks(dataset, batch_size):
        yield from _narrow_chunks(columns, EVERY[start:], collator)


def padded(crowd: Iterable[Votes]) -> Votes:
    """Join the parts of a crowd, padded to the largest K.

    Args:
        crowd: the crowd part by part, each as `Votes` with a K of its own, as `crowd_batches` yields
            them. Read once.

    Returns:
        All votes; of shape (0, 0) if there are no parts.

    Example:
        >>> one = Votes(torch.tensor([[0, 2]]), torch.tensor([[1, 0]]))
        >>> annotators, annotations = padded([one, Votes(torch.tensor([[3]]), torch.tensor([[1]]))])
        >>> annotators.tolist(), annotations.tolist()
        ([[0, 2], [3, -1]], [[1, 0], [1, -1]])
    """
    parts = [Votes(*part) for part in crowd]
    most = max((part.annotators.shape[1] for part in parts), default=0)

    def joined(tables: list[Tensor], value: int) -> Tensor:
        rows = [torch.nn.functional.pad(t, (0, most - t.shape[1]), value=value) for t in tables]
        return torch.cat(rows) if rows else torch.zeros(0, 0, dtype=torch.int64)

    who, said = (joined([part[side] for part in parts], -1) for side in (0, 1))
    weights = [p.weights if p.weights is not None else p.given.float() for p in parts]
    return Votes(who, said, joined(weights, 0) if any(len(p) > 2 for p in parts) else None)


def padded_annotations(crowd: Iterable[Votes]) -> tuple[Tensor, ...]:
    """Put the votes of all items in one table, without those of unknown annotators.

    Args:
        crowd: the crowd part by part, each as `Votes` with a K of its own, as `crowd_batches` yields
            them; one item or more. Read once.

    Returns:
        (N, K) int64, an item's votes first, then -1; and (N, K), their weights, if they have any.

    Example:
        >>> one = Votes(torch.tensor([[-1, 2]]), torch.tensor([[1, 0]]))
        >>> (votes,) = padded_annotations([one, Votes(torch.tensor([[3, 4]]), torch.tensor([[1, 2]]))])
        >>> votes.tolist()
        [[0, -1], [1, 2]]
    """
    votes = padded(crowd)
    known = votes.known
    tables = [[row[of >= 0] for row, of in zip(t, known, strict=True)] for t in (known, *votes[2:])]
    return tuple(
        pad_sequence(rows, batch_first=True, padding_value=value)
        for rows, value in zip(tables, (-1, 0), strict=False)
    )


def gold_labels(dataset: Dataset, collator: CrowdCollator, batch_size: int = 65_536) -> Tensor:
    """Read only the gold labels of a data set, through Arrow, without its transform.

    Args:
        dataset: with or without a column `labels` or `label`.
        collator: checks the gold labels.
        batch_size: items in a chunk.

    Returns:
        (N,) int64, -1 where there is none.

    Raises:
        ValueError: if a gold label is not a class; the error names the item.

    Example:
        >>> items = Dataset.from_dict({"label": [1, None, -100]})
        >>> gold_labels(items, CrowdCollator(num_annotators=3, num_classes=2))
        tensor([ 1, -1, -1])
    """
    found = torch.full((len(dataset),), -1)
    column = next((name for name in GOLD_COLUMNS if name in dataset.column_names), None)
    if column is None:
        return found
    rows = dataset.with_format("arrow", columns=[column])
    for start in range(0, len(rows), batch_size):
        labels = collator.gold(rows[start : start + batch_size], EVERY[start:])
        found[start : start + len(labels)] = labels.clamp(min=-1)
    return found


def _flat_chunks(dataset: Any, batch_size: int) -> Iterator[tuple[dict[str, FlatLists], int]]:
    if isinstance(dataset, Dataset) and "annotations" in dataset.column_names:
        columns = [name for name in ALL_CROWD_COLUMNS if name in dataset.column_names]
        rows = dataset.with_format("arrow", columns=columns)
        for start in range(0, len(rows), batch_size):
            table = rows[start : start + batch_size]
            yield {name: flat_lists(name, table[name], EVERY[start:]) for name in columns}, start
        return
    examples: list[dict[str, Any]] = []
    start = 0
    for example in _examples(dataset):
        examples.append({name: example[name] for name in ALL_CROWD_COLUMNS if name in example})
        if len(examples) == min(batch_size, 1024):
            yield _flat_columns(_columns(examples, EVERY[start:]), EVERY[start:]), start
            start += len(examples)
            examples = []
    if examples:
        yield _flat_columns(_columns(examples, EVERY[start:]), EVERY[start:]), start


def _examples(dataset: Any) -> Iterator[dict[str, Any]]:
    if isinstance(dataset, IterableDataset):
        names: Any = dataset.column_names or next(iter(dataset.take(1)), {})
        # A selection is a new stream, which starts from the beginning.
        return iter(dataset.select_columns([name for name in ALL_CROWD_COLUMNS if name in names]))
    if hasattr(dataset, "__len__"):
        return (dataset[i] for i in range(len(dataset)))
    return iter(dataset)


def _narrow_chunks(
    columns: dict[str, FlatLists], items: Sequence[int], collator: CrowdCollator
) -> Iterator[Votes]:
    """Pad a chunk, in halves where an item with many votes would make it too wide."""
    lengths = columns["annotations"][1]
    half = len(lengths) // 2
    if half and len(lengths) * int(lengths.max()) > _CELLS:
        left, right = {}, {}
        for name, (values, its_lengths) in columns.items():
            cut = int(its_lengths[:half].sum())
            left[name] = values[:cut], its_lengths[:half]
            right[name] = values[cut:], its_lengths[half:]
        yield from _narrow_chunks(left, items, collator)
        yield from _narrow_chunks(right, items[half:], collator)
    else:
        yield collator.pairs(columns, items)


def _columns(
    examples: list[dict[str, Any]] | pa.Table, items: Sequence[int], exact: Collection[str] = ()
) -> Columns:
    if isinstance(examples, pa.Table):
        examples = examples.combine_chunks()  # one chunk per item: join all columns at once
        return {
            name: _read(name, examples[name], items, name in exact)
            for name in examples.column_names
        }
    for i, example in enumerate(examples):
        if type(example) is not dict and not isinstance(example, Mapping):
            raise TypeError(
                f"examples must be dicts of columns, got {short(example)} at item {items[i]}."
            )
    names = dict.fromkeys(name for example in examples for name in example)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"columns must have names, got {short(wrong[0])}.")
    return {name: [example.get(name) for example in examples] for name in names}


def _read(name: str, column: pa.ChunkedArray, items: Sequence[int], exact: bool) -> Any:
    return column if name in ALL_CROWD_COLUMNS else _values(name, column, items, exact)


def _values(
    name: str, column: pa.ChunkedArray, items: Sequence[int], exact: bool
) -> np.ndarray | list[Any]:
    """Read a column: numbers of one shape as an array, anything else as Python objects.

    Numbers that are still to be standardised are not rounded before, `exact`.
    """
    array = column.combine_chunks()
    if isinstance(array, pa.ExtensionArray):  # Array2D to Array5D
        array = array.storage
    shape = [len(array)]
    while is_lists(array.type):
        lengths = np.unique(pc.list_value_length(array))
        if array.null_count or len(lengths) != 1:
            return column.to_pylist()
        shape.append(int(lengths[0]))
        array = array.flatten()
    kind = array.type
    if array.null_count or not (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    ):
        return column.to_pylist()
    numbers = array.to_numpy(zero_copy_only=False).reshape(shape)
    check_fits(name, numbers, items)
    # The types are those of `datasets`. It is a copy, because Arrow's memory must not be written to.
    kinds = {"f": np.float64 if exact else np.float32, "b": np.bool_}
    with np.errstate(over="ignore"):  # infinity is refused with the item's number
        return numbers.astype(kinds.get(numbers.dtype.kind, np.int64))


class ArrowRows(TorchDataset[pa.Table]):
    """Items of a data set as tables: their values reach the batch without becoming Python objects.

    Args:
        dataset: the data set.
        columns: the columns to read.
    """

    def __init__(self, dataset: Dataset, columns: list[str]) -> None:
        # Selected, not only hidden: a batch is gathered over all columns that the table has.
        self.rows = dataset.select_columns(columns).with_format("arrow")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> pa.Table:
        return self.rows[[row]]

    def __getitems__(self, rows: list[int]) -> pa.Table:
        """Take a batch at once."""
        return self.rows[rows]


def arrow_rows(dataset: Any, collator: Any) -> Any:
    """Read the items as tables where that gives the same batches; it is five times as fast.

    Args:
        dataset: any data set.
        collator: makes its batches.

    Returns:
        `ArrowRows`; or `dataset` itself, if a transform or a decoder must see each item, or the
        classifier's inputs are not among its columns.
    """
    if not (isinstance(dataset, Dataset) and type(collator) is CrowdCollator):
        return dataset
    kind, options = dataset.format["type"], dataset.format["format_kwargs"]
    if kind not in (None, "numpy", "torch") or options:
        return dataset
    columns = [
        name for name in dataset.format["columns"] if name in NOT_INPUTS or collator.reads(name)
    ]
    features = dataset.features  # a copy, with all the annotators' names
    if any(require_decoding(features[name]) for name in columns):
        return dataset
    return dataset if {*columns} <= {*NOT_INPUTS} else ArrowRows(dataset, columns)


def _flat_columns(columns: Columns, items: Sequence[int]) -> dict[str, FlatLists]:
    """Flatten the crowd columns; dense annotations come without annotators."""
    dense = "annotators" not in columns
    weights = [WEIGHTS_COLUMN] if WEIGHTS_COLUMN in columns else []
    flat = {}
    for name in (*CROWD_COLUMNS[dense:], *weights):
        values = columns.get(name, [None])
        read = flat_lists if isinstance(values, pa.ChunkedArray) else _flat_rows
        flat[name] = read(name, values, items)
    return flat


def _flat_rows(name: str, rows: list[Any], items: Sequence[int]) -> FlatLists:
    arrays = [_numbers_of(row, "iuf" if name == WEIGHTS_COLUMN else "iu") for row in rows]
    bad = [i for i, array in enumerate(arrays) if array is None]
    if bad:
        # The torch format turns all rows to floats if one has a None: find the row that has it.
        i = next((i for i in bad if _has_nan(rows[i])), bad[0])
        if rows[i] is None:
            raise ValueError(
                f"`{name}` must be a list, got None at item {items[i]}: an item without votes "
                "has an empty list."
            )
        if name == WEIGHTS_COLUMN:
            raise ValueError(
                f"`{name}` must be a flat list of numbers, got {short(rows[i])} at item {items[i]}: a vote that counts "
                "in full has 1."
            )
        raise ValueError(
            f"`{name}` must be a flat list of integers, got {short(rows[i])} at item {items[i]}: None "
            "and NaN are not votes, leave them out."
        )
    flat = [array for array in arrays if array is not None]
    return np.concatenate(flat), np.array([len(array) for array in flat])


def _array(value: Any) -> np.ndarray | None:
    """Turn a value into an array; None if that fails, as for lists of unequal lengths."""
    try:
        return np.asarray(value)
    except Exception:  # a class may raise anything when it is converted
        return None


def _numbers_of(row: Any, kinds: str) -> np.ndarray | None:
    """Turn a list, an array or a tensor into (k,) numbers of these kinds; None if that is not possible."""
    array = _array(row)
    if array is None or array.ndim != 1:
        return None
    if not array.size:
        return array.astype(np.int64)
    return array if array.dtype.kind in kinds else None


def _number(array: np.ndarray | None) -> float:
    """Turn an array of one number into that number, and anything else into minus infinity, not a class."""
    whole = array is not None and array.ndim == 0 and array.dtype.kind in "biuf"
    return float(array) if array is not None and whole else -np.inf


def _has_nan(row: Any) -> bool:
    return isinstance(row, np.ndarray | Tensor) and bool(np.any(np.asarray(row != row)))


def _first_unlike(rows: list[dict[str, Any]]) -> int | None:
    """Find the first row with anything but numbers, another depth than most, or unequal lengths."""
    depths_of = []
    for row in rows:
        arrays = [_array(value) for value in row.values()]
        shapes = [a.shape for a in arrays if a is not None and a.dtype.kind in "biuf"]
        same = len(shapes) == len(arrays) and len({shape[:1] for shape in shapes}) == 1
        depths_of.append([len(shape) for shape in shapes] if same else None)
    usual = max((depths for depths in depths_of if depths), key=depths_of.count, default=None)
    return next(
        (i for i, depths in enumerate(depths_of) if depths is None or depths != usual), None
    )


def _first_failing(call: Callable[[int], Any], rows: list[Any]) -> int | None:
    """Find the first row that fails on its own."""
    for i in range(len(rows)):
        try:
            call(i)
        except Exception:
            return i
    return None
