"""The items' numbers in a data set: errors name them, and predictions are put back in their order.

A batch is read from a data set by the numbers of its items. The numbers travel along with the examples, so
that no code relies on the order in which a sampler, a collator, workers or other devices read the items.
Streams have no numbers; their order is that of reading.
"""

import itertools
import os
import random
import weakref
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Audio, Dataset, Image
from datasets import IterableDataset as HubStream
from datasets.utils.file_utils import is_local_path
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import SequentialSampler, Subset
from transformers.trainer_utils import EvalLoopOutput, has_length

from ..model.functional import Posteriors
from ..model.items import ALL_CROWD_COLUMNS
from ..model.opening import short
from ..model.votes import Votes
from .collator import POSTERIOR_COLUMN, CrowdCollator, arrow_rows
from .columns import EVERY, GOLD_COLUMNS

ROW = "crowd_row"  # of a batch: (B,) int64, the rows of its items in the data set
UNKNOWN = -1  # the row of an item whose batch does not know it

_LOOKED_FOR = 100_000  # the largest number of files looked for before a training
_COMPARED = 2**16  # the largest tensor of a batch that is compared to check a collator's order
_PARTS: "weakref.WeakKeyDictionary[Dataset, np.ndarray]" = weakref.WeakKeyDictionary()


def part_of(dataset: Dataset, rows: Sequence[int]) -> Dataset:
    """Select items; errors still name them by their numbers in the whole data set.

    Args:
        dataset: the whole, or a part of one.
        rows: the items to select.

    Example:
        >>> part = part_of(Dataset.from_dict({"x": [0, 1, 2, 3]}), [3, 1])
        >>> part["x"][:], [numbers(part)[row] for row in range(2)]
        ([3, 1], [3, 1])
    """
    part = dataset.select(rows)
    whole = _PARTS.get(dataset)
    chosen = np.asarray(rows, dtype=np.int64)
    _PARTS[part] = chosen if whole is None else whole[chosen]
    return part


def numbers(dataset: Any) -> Sequence[int]:
    """Return the items' numbers for errors: their rows, or for a `part_of` those in the whole."""
    while hasattr(dataset, "dataset") and not hasattr(dataset, "indices"):
        dataset = dataset.dataset
    found = _PARTS.get(dataset) if isinstance(dataset, Dataset) else None
    return EVERY if found is None else found.tolist()


class Batch(NamedTuple):
    """Examples of a batch, their rows in the data set, and their numbers in errors."""

    examples: Any
    rows: Sequence[int]
    numbers: Sequence[int]


class Examples(list[Any]):
    """Examples of a batch that know their `rows` in the data set, and their `numbers` in errors.

    A collator that puts them in another order must pass their rows on, so that predictions can be put
    back: `batch["crowd_row"] = torch.tensor(examples.rows)[order]`.
    """

    rows: Sequence[int]
    numbers: Sequence[int]


class NumberedItems(TorchDataset[Any]):
    """A data set whose batches know which items they hold.

    Args:
        items: the items to read, with a length.
        source: the user's data set, of which `items` may be another form.

    Raises:
        ValueError, OSError, TypeError or ImportError: if an item cannot be read. The error names the
            item, and the file of a picture or a sound.

    Example:
        >>> NumberedItems([{"x": 0.5}, {"x": 1.5}]).__getitems__([1]).rows
        [1]
    """

    def __init__(self, items: Any, source: Any = None) -> None:
        self.items = items
        self.source = items if source is None else source
        self.called = numbers(self.source)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]

    def __getitems__(self, rows: list[int]) -> Batch:
        """Take a batch at once."""
        try:
            if hasattr(self.items, "__getitems__"):
                examples = self.items.__getitems__(rows)
            else:
                examples = [self.items[row] for row in rows]
        except MemoryError:
            raise
        except Exception:
            self.name_the_broken(rows)
            raise
        called = rows if self.called is EVERY else [self.called[row] for row in rows]
        return Batch(examples, rows, called)

    def name_the_broken(self, rows: Sequence[int]) -> None:
        """Raise the error of the first item that cannot be read, if any; see `unreadable`."""
        for row in rows:
            try:
                self.items[row]
            except Exception as error:
                raise unreadable(self.source, row, self.called[row], error) from error

    def __getattr__(self, name: str) -> Any:
        # For instance `set_epoch`, which the trainer calls in each epoch.
        if name in ("items", "source"):  # not there yet while it is unpickled
            raise AttributeError(name)
        return getattr(self.items, name)


def unreadable(dataset: Any, row: int, number: int, error: Exception) -> Exception:
    """Build the error of an item that cannot be read, a built-in exception.

    Args:
        dataset: the data set of the item.
        row: its row there.
        number: its number in the error.
        error: the exception raised by reading it.
    """
    kinds = (FileNotFoundError, OSError, TypeError, ImportError)
    kind = next((kind for kind in kinds if isinstance(error, kind)), ValueError)
    # Pillow's message shows the memory that it read from.
    reason = f"{type(error).__name__}: {error}"[:300]
    column, file = _broken_file(dataset, row)
    if column is None:
        return kind(f"each item of the data set must be readable, got at item {number} {reason}")
    return kind(
        f"column {column!r} must hold files that can be read, got {file or 'one without a name'} at item {number} "
        f"({reason}): repair the file, or leave the item out."
    )


def check_first(dataset: Any, collate: Any) -> None:
    """Read and collate the first item, so that an error common to all items shows before a training.

    The state of the random generators is restored afterwards.

    Args:
        dataset: with a length. A stream, or a data set with a transform, is not checked.
        collate: a `CrowdCollator`; with another collator nothing is checked.

    Raises:
        ValueError, OSError, TypeError or ImportError: as reading and collating do; also if the file of
            any item's picture or sound is missing.

    Example:
        >>> check_first([{"x": 0.5}], CrowdCollator(num_annotators=3, num_classes=2))
    """
    inner = _inner(dataset)
    made = isinstance(inner, Dataset) and inner.format["type"] == "custom"
    if not isinstance(collate, CrowdCollator) or made or not has_length(dataset):
        return
    items = arrow_rows(dataset, collate)
    if len(dataset):
        first_batch(dataset, collate, 1)
    if isinstance(items, Dataset) and len(items):
        _check_files(items)


def first_batch(dataset: Any, collate: Any, number: int) -> Any:
    """Read and collate the first items, and restore the state of the random generators afterwards.

    Args:
        dataset: with a length.
        collate: any collator.
        number: of items; all of them if there are fewer.

    Raises:
        ValueError, OSError, TypeError or ImportError: as reading and collating do.

    Example:
        >>> first_batch([{"x": 0.5}, {"x": 1.5}], CrowdCollator(num_annotators=3, num_classes=2), 1)
        {'x': tensor([0.5000])}
    """
    items = NumberedItems(arrow_rows(dataset, collate), dataset)
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            batch = items.__getitems__([*range(min(number, len(dataset)))])
            return NumberedCollator(collate, keep=False)(batch)
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def first_items(dataset: Any, number: int) -> Any:
    """Take the first items, without reading any others.

    Args:
        dataset: a data set or a stream.
        number: of items; all of them if there are fewer.

    Example:
        >>> list(first_items(iter("abc"), 2))
        ['a', 'b']
    """
    if isinstance(dataset, HubStream):
        return dataset.take(number)
    if not hasattr(dataset, "__len__"):
        return itertools.islice(dataset, number)
    rows = range(min(number, len(dataset)))
    return dataset.select(rows) if isinstance(dataset, Dataset) else Subset(dataset, rows)


def few_inputs(dataset: Any, collate: Any, device: torch.device) -> dict[str, Tensor]:
    """Return the classifier's inputs of a few items, to inspect its outputs on them.

    Args:
        dataset: a data set or a stream.
        collate: any collator.
        device: the device of the tensors.
    """
    kept_back = {*ALL_CROWD_COLUMNS, "labels", POSTERIOR_COLUMN}
    batch = collate(list(first_items(dataset, 8)))
    return {name: tensor.to(device) for name, tensor in batch.items() if name not in kept_back}


def _check_files(dataset: Dataset) -> None:
    """Refuse missing files, which would otherwise stop the training in the middle of an epoch."""
    called = numbers(dataset)
    for name, feature in dataset.features.items():
        if not isinstance(feature, Image | Audio) or not feature.decode:
            continue
        if name not in dataset.format["columns"]:
            continue
        rows = dataset.with_format("arrow", columns=[name])
        if rows[0][name][0].as_py()["bytes"] is not None:
            continue  # the files are stored in the data set, and reading them takes long
        for start in range(0, min(len(rows), _LOOKED_FOR), 1000):
            column = rows[start : start + 1000][name].combine_chunks()
            inside = pc.is_valid(column.field("bytes")).to_pylist()
            paths = column.field("path").to_pylist()
            for row, (path, is_inside) in enumerate(zip(paths, inside, strict=True), start):
                if path and not is_inside and is_local_path(path) and not os.path.exists(path):
                    raise FileNotFoundError(
                        f"column {name!r} must hold files that are there, got {path} at item {called[row]}: restore "
                        "it, or leave the item out."
                    )


def _broken_file(dataset: Any, row: int) -> tuple[str | None, str | None]:
    """Find the column and the file of a picture or sound of an item that cannot be opened."""
    dataset, row = _inner(dataset), _inner_row(dataset, row)
    if not isinstance(dataset, Dataset):
        return None, None
    media = {n: f for n, f in dataset.features.items() if isinstance(f, Image | Audio) and f.decode}
    if not media:
        return None, None
    try:
        stored = dataset.with_format("arrow", columns=list(media))[row].to_pylist()[0]
    except Exception:  # Arrow's own file is broken
        return None, None
    for name, feature in media.items():
        value = stored[name]
        try:
            if value is not None:
                feature.decode_example(value)
        except Exception:
            return name, value.get("path")
    return None, None


def _inner(dataset: Any) -> Any:
    """Unwrap a data set, for instance from `torch.utils.data.Subset`."""
    while not isinstance(dataset, Dataset) and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    return dataset


def _inner_row(dataset: Any, row: int) -> int:
    while not isinstance(dataset, Dataset) and hasattr(dataset, "dataset"):
        indices = getattr(dataset, "indices", None)
        row = row if indices is None else int(indices[row])
        dataset = dataset.dataset
    return row


class NumberedCollator:
    """Passes the items' numbers around a collator, which sees the same examples as without it.

    Args:
        collate: any collator.
        keep: whether to add `crowd_row` to the batch, for `in_order`.

    Raises:
        ValueError: if such a batch comes back in another order. A batch with another number of items
            gets no `crowd_row`.

    Example:
        >>> collate = NumberedCollator(CrowdCollator(num_annotators=3, num_classes=2), keep=True)
        >>> items = NumberedItems([{"x": 0.5}, {"x": 1.5}])
        >>> collate(items.__getitems__([1, 0]))
        {'x': tensor([1.5000, 0.5000]), 'crowd_row': tensor([1, 0])}
    """

    def __init__(self, collate: Any, keep: bool) -> None:
        self.collate = collate
        self.keep = keep

    def __call__(self, given: Any) -> Any:
        """Collate a `Batch`; anything else goes to the collator unchanged."""
        if not isinstance(given, Batch):
            return self.collate(given)
        if isinstance(given.examples, pa.Table):
            batch, examples = self.collate.collate(given.examples, given.numbers), None
        else:
            examples = Examples(given.examples)
            examples.rows, examples.numbers = given.rows, given.numbers
            batch = self.collate(examples)
        if not isinstance(batch, MutableMapping):
            return batch
        if not self.keep:
            batch.pop(ROW, None)
        elif ROW not in batch:
            ours = type(self.collate) is CrowdCollator
            if ours or _is_of(batch, len(given.rows)):
                if not ours:
                    _check_order(batch, given)
                batch[ROW] = torch.tensor(given.rows, dtype=torch.int64)
        return batch


def _is_of(batch: Mapping[str, Any], number: int) -> bool:
    """Whether a batch has this number of items, judged by its tensors."""
    sizes = {n: len(t) for n, t in batch.items() if isinstance(t, Tensor) and t.ndim}
    sure = {size for name, size in sizes.items() if name in (*ALL_CROWD_COLUMNS, "labels")}
    return sure == {number} if sure else number in sizes.values()


def _check_order(batch: Mapping[str, Any], given: Batch) -> None:
    """Refuse a batch that holds the examples in another order; changed values are allowed."""
    for name, tensor in batch.items():
        names = GOLD_COLUMNS if name in GOLD_COLUMNS else (name,)
        if not isinstance(tensor, Tensor) or not tensor.ndim or tensor.numel() > _COMPARED:
            continue
        flat = [_flat(example, names) for example in given.examples]
        expected = [values for values in flat if values is not None]
        if len(expected) < len(flat):
            continue
        rows = tensor.detach().reshape(len(tensor), -1).tolist()
        pairs = list(zip(rows, expected, strict=True))
        if all(_holds(row, values) for row, values in pairs):
            continue
        left = list(rows)
        for values in expected:
            place = next((k for k, row in enumerate(left) if _holds(row, values)), None)
            if place is None:
                break  # not another order, but other values: the collator transforms them
            left.pop(place)
        else:
            i = next(i for i, (row, values) in enumerate(pairs) if not _holds(row, values))
            raise ValueError(
                f"`data_collator` must keep the order of the examples, got another one (column {name!r}, item "
                f"{given.numbers[i]}): predictions would be assigned to the wrong items. Or let it pass their rows on: "
                f"batch[{ROW!r}] = torch.tensor(examples.rows)[order]."
            )


def _flat(example: Any, names: Sequence[str]) -> list[float] | None:
    """List the numbers that an example has in a column."""
    if not isinstance(example, Mapping):
        return None
    value = next((example[name] for name in names if example.get(name) is not None), None)
    try:
        array = np.asarray(value)
    except Exception:
        return None
    return array.ravel().tolist() if array.dtype.kind in "biuf" else None


def _holds(row: list[float], values: list[float]) -> bool:
    """Whether a padded row has these values at one of its ends."""
    size = len(values)
    return row[:size] == values or row[len(row) - size :] == values


def in_order(rows: np.ndarray) -> np.ndarray:
    """Find the order that puts items back, each of them once.

    Args:
        rows: (R,) int64, of the items that were read.

    Returns:
        Places in `rows`, by increasing row; all places unchanged if any row is `UNKNOWN`.

    Example:
        >>> in_order(np.array([2, 0, 1, 0]))
        array([1, 2, 0])
    """
    if (rows < 0).any():
        return np.arange(len(rows))
    return np.unique(rows, return_index=True)[1]


def taken(tables: Any, order: np.ndarray) -> Any:
    """Take the same rows of each table.

    Example:
        >>> taken((np.array([5, 6, 7]), np.array([[1.0], [2.0], [3.0]])), np.array([2, 0]))
        (array([7, 5]), array([[3.],
               [1.]]))
    """
    if isinstance(tables, tuple | list):
        return tuple(taken(table, order) for table in tables)
    return tables[order]


def is_sequential(loader: Any) -> bool:
    """Whether a loader reads its data set from the first item to the last."""
    sampler: Any = getattr(loader, "batch_sampler", None)
    while hasattr(sampler, "batch_sampler"):  # accelerate's, around torch's
        sampler = sampler.batch_sampler
    return isinstance(getattr(sampler, "sampler", None), SequentialSampler)


def by_item(output: EvalLoopOutput, loader: Any) -> EvalLoopOutput:
    """Put predictions in the order of the data set.

    Args:
        output: of an evaluation; its `label_ids` are the gold labels, whether each item has votes, and
            the items' rows.
        loader: the loader of that evaluation.
    """
    if output.label_ids is None:
        return output
    labels, annotated, rows = output.label_ids
    dataset = loader.dataset
    # A stream keeps its order, and so does a user's loader that reads sequentially.
    known = not has_length(dataset) or (is_sequential(loader) and len(rows) == len(dataset))
    if known and len(rows) and (rows < 0).all():
        rows = np.arange(len(rows))
    order = in_order(rows)
    return output._replace(
        predictions=taken(output.predictions, order),
        label_ids=taken((labels, annotated, rows), order),
    )


def check_predicted_once(label_ids: Any, dataset: Any) -> None:
    """Check that there is one prediction per item before predictions are joined with votes.

    Args:
        label_ids: of an evaluation, see `by_item`.
        dataset: the data set of the predictions.

    Raises:
        ValueError: as `check_each_once`.
    """
    if label_ids is not None and has_length(dataset):
        check_each_once(label_ids[2], len(dataset))


def beside_votes(
    posteriors: Posteriors, crowd: Iterable[Votes]
) -> Iterator[tuple[Posteriors, *tuple[Tensor, ...]]]:
    """Yield posteriors together with the votes on the same items.

    Args:
        posteriors: of N items.
        crowd: their votes, part by part.

    Raises:
        ValueError: if the votes are on more or fewer items.
    """
    start = 0
    for votes in crowd:
        part = slice(start, start + len(votes[0]))
        yield Posteriors(*(table[part] for table in posteriors)), *votes
        start = part.stop
    if start != len(posteriors.log_h):
        raise ValueError(
            f"the votes must be on as many items as were predicted, got {start} and {len(posteriors.log_h)}: does "
            "a transform leave items out?"
        )


def check_each_once(rows: np.ndarray, number: int) -> None:
    """Refuse predictions unless there is one for each item of a data set, in its order.

    Args:
        rows: (R,) int64, of the items that were predicted, put back in order.
        number: of items.

    Raises:
        ValueError: if items are missing, which the error names; or if rows are unknown.

    Example:
        >>> check_each_once(np.array([0, 1, 2]), 3)
    """
    if (rows < 0).any():
        raise ValueError(
            f"each prediction must have the row of its item, got {len(rows)} without for {number} items: does a "
            f"collator leave items out, or a loader of your own shuffle? Pass on batch[{ROW!r}], the items' rows."
        )
    if len(rows) == number and (rows == np.arange(number)).all():
        return
    there = np.zeros(number, dtype=bool)
    there[rows[rows < number]] = True
    missing = np.flatnonzero(~there)
    raise ValueError(
        f"there must be a prediction for each of {number} items, got {len(rows)}, none for {len(missing)} of them "
        f"({short(missing[:5].tolist())}): did a sampler or a collator leave items out?"
    )
