"""Items by their numbers: errors name them, and what is predicted of them goes back in their order.

A batch comes from a data set by the numbers of its items. They are carried along beside the examples,
so that nothing has to assume in which order items were read: not by a sampler, a collator, workers or
other devices. Streams have no numbers: their order is the one in which they come.
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
from ..model.opening import short
from ..model.votes import Votes
from .collator import POSTERIOR_COLUMN, CrowdCollator, arrow_rows
from .columns import CROWD_COLUMNS, EVERY, GOLD_COLUMNS

ROW = "crowd_row"  # of a batch: (B,) int64, where in the data set its items stand
UNKNOWN = -1  # where a batch does not say it

_LOOKED_FOR = 100_000  # files at the most that are looked for before a training
_COMPARED = 2**16  # numbers of a batch, at the most, by which a collator's order is checked
_PARTS: "weakref.WeakKeyDictionary[Dataset, np.ndarray]" = weakref.WeakKeyDictionary()


def part_of(dataset: Dataset, rows: Sequence[int]) -> Dataset:
    """Select items, which errors go on calling by the numbers that they have in the whole.

    Args:
        dataset: the whole, or a part of one.
        rows: which of its items.

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
    """Tell what errors call the items of a data set: their places, unless it is a `part_of` another."""
    while hasattr(dataset, "dataset") and not hasattr(dataset, "indices"):
        dataset = dataset.dataset
    found = _PARTS.get(dataset) if isinstance(dataset, Dataset) else None
    return EVERY if found is None else found.tolist()


class Batch(NamedTuple):
    """Examples of a batch, where in the data set they stand, and what errors call them."""

    examples: Any
    rows: Sequence[int]
    numbers: Sequence[int]


class Examples(list[Any]):
    """Examples of a batch that know their `rows` in the data set, and their `numbers` in errors.

    A collator that puts them in another order hands their rows on, so that predictions find back:
    `batch["crowd_row"] = torch.tensor(examples.rows)[order]`.
    """

    rows: Sequence[int]
    numbers: Sequence[int]


class NumberedItems(TorchDataset[Any]):
    """A data set whose batches know which items they hold.

    Args:
        items: what is read, with a length.
        source: the data set that was asked for, of which `items` may be another form.

    Raises:
        ValueError, OSError, TypeError or ImportError: naming the item, and the file if it is a
            picture or a sound, if one cannot be read.

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
        """Raise the error of the first of some items that cannot be read, if any; see `unreadable`."""
        for row in rows:
            try:
                self.items[row]
            except Exception as error:
                raise unreadable(self.source, row, self.called[row], error) from error

    def __getattr__(self, name: str) -> Any:
        # What the trainer calls in each epoch, for instance: `set_epoch`.
        if name in ("items", "source"):  # it is being unpickled
            raise AttributeError(name)
        return getattr(self.items, name)


def unreadable(dataset: Any, row: int, number: int, error: Exception) -> Exception:
    """Make the error of an item that cannot be read, of a built-in kind.

    Args:
        dataset: which has it.
        row: where.
        number: what the error calls it.
        error: what reading it raised.
    """
    kinds = (FileNotFoundError, OSError, TypeError, ImportError)
    kind = next((kind for kind in kinds if isinstance(error, kind)), ValueError)
    # Pillow shows the memory that it read from.
    reason = f"{type(error).__name__}: {error}"[:300]
    column, file = _broken_file(dataset, row)
    if column is None:
        return kind(f"each item of the data set must be readable, got at item {number} {reason}")
    return kind(
        f"column {column!r} must hold files that can be read, got {file or 'one without a name'} at item {number} "
        f"({reason}): mend the file, or leave the item out."
    )


def check_first(dataset: Any, collate: Any) -> None:
    """Read the first item and collate it: what is wrong with all of them shows before a training.

    What is drawn at random afterwards is as if it had not been read.

    Args:
        dataset: with a length; another is left alone, and so is one whose examples a transform makes.
        collate: a `CrowdCollator`; another is left alone.

    Raises:
        ValueError, OSError, TypeError or ImportError: as reading and collating do; also if a file of a
            picture or a sound is not there, of any item.

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
    """Read and collate the first items; what is drawn at random afterwards is as if they had not been read.

    Args:
        dataset: with a length.
        collate: any collator.
        number: of items, fewer if there are no more.

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
    """Take the first items, without reading any that is not asked for.

    Args:
        dataset: a data set or a stream.
        number: of items, fewer if there are no more.

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
    """Give a few items as the classifier takes them, for a look at its outputs.

    Args:
        dataset: a data set or a stream.
        collate: any collator.
        device: where the tensors go.
    """
    kept_back = {*CROWD_COLUMNS, "labels", POSTERIOR_COLUMN}
    batch = collate(list(first_items(dataset, 8)))
    return {name: tensor.to(device) for name, tensor in batch.items() if name not in kept_back}


def _check_files(dataset: Dataset) -> None:
    """Refuse files that are not there: found in the middle of an epoch, its time would be lost."""
    called = numbers(dataset)
    for name, feature in dataset.features.items():
        if not isinstance(feature, Image | Audio) or not feature.decode:
            continue
        if name not in dataset.format["columns"]:
            continue
        rows = dataset.with_format("arrow", columns=[name])
        if rows[0][name][0].as_py()["bytes"] is not None:
            continue  # they lie in the data set, and to read them takes long
        for start in range(0, min(len(rows), _LOOKED_FOR), 1000):
            column = rows[start : start + 1000][name].combine_chunks()
            inside = pc.is_valid(column.field("bytes")).to_pylist()
            paths = column.field("path").to_pylist()
            for row, (path, is_inside) in enumerate(zip(paths, inside, strict=True), start):
                if path and not is_inside and is_local_path(path) and not os.path.exists(path):
                    raise FileNotFoundError(
                        f"column {name!r} must hold files that are there, got {path} at item {called[row]}: bring it "
                        "back, or leave the item out."
                    )


def _broken_file(dataset: Any, row: int) -> tuple[str | None, str | None]:
    """Find the column and the file of an item's picture or sound that cannot be opened."""
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
    """Go through what is put around a data set, as `torch.utils.data.Subset`."""
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
    """Hands the items' numbers past a collator, which sees the examples that it always saw.

    Args:
        collate: any collator.
        keep: whether the batch is to have `crowd_row`, for `in_order`.

    Raises:
        ValueError: if a batch that is to have it comes back in another order; one that is not of as
            many items is left without.

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
        """Collate a `Batch`; what is none, as it is."""
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
    """Whether a batch is of so many items, as far as its tensors tell."""
    sizes = {n: len(t) for n, t in batch.items() if isinstance(t, Tensor) and t.ndim}
    sure = {size for name, size in sizes.items() if name in (*CROWD_COLUMNS, "labels")}
    return sure == {number} if sure else number in sizes.values()


def _check_order(batch: Mapping[str, Any], given: Batch) -> None:
    """Refuse a batch that holds the examples in another order; what it changed in them is its own."""
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
                break  # not another order, but other values: a transform of its own
            left.pop(place)
        else:
            i = next(i for i, (row, values) in enumerate(pairs) if not _holds(row, values))
            raise ValueError(
                f"`data_collator` must keep the order of the examples, got another one (column {name!r}, item "
                f"{given.numbers[i]}): what is predicted would be taken for other items'. Or let it hand on which they are: "
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
        Places in `rows`, by rising row; all of them as they are if any is `UNKNOWN`.

    Example:
        >>> in_order(np.array([2, 0, 1, 0]))
        array([1, 2, 0])
    """
    if (rows < 0).any():
        return np.arange(len(rows))
    return np.unique(rows, return_index=True)[1]


def taken(tables: Any, order: np.ndarray) -> Any:
    """Take rows of each of some tables.

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
    """Put what was predicted in the order of the data set.

    Args:
        output: of an evaluation; its `label_ids` are gold labels, which items have votes, and which items
            they are.
        loader: that was read.
    """
    if output.label_ids is None:
        return output
    labels, annotated, rows = output.label_ids
    dataset = loader.dataset
    # A stream comes in its order; a loader of the user's has one that can be known.
    known = not has_length(dataset) or (is_sequential(loader) and len(rows) == len(dataset))
    if known and len(rows) and (rows < 0).all():
        rows = np.arange(len(rows))
    order = in_order(rows)
    return output._replace(
        predictions=taken(output.predictions, order),
        label_ids=taken((labels, annotated, rows), order),
    )


def check_predicted_once(label_ids: Any, dataset: Any) -> None:
    """Check that predictions are those of the items, one each, before they meet their votes.

    Args:
        label_ids: of an evaluation, see `by_item`.
        dataset: that was predicted.

    Raises:
        ValueError: as `check_each_once`.
    """
    if label_ids is not None and has_length(dataset):
        check_each_once(label_ids[2], len(dataset))


def beside_votes(
    posteriors: Posteriors, crowd: Iterable[Votes]
) -> Iterator[tuple[Posteriors, Tensor, Tensor]]:
    """Yield posteriors beside the votes of the same items.

    Args:
        posteriors: of N items.
        crowd: their votes, part by part.

    Raises:
        ValueError: if there are votes of more items or fewer.
    """
    start = 0
    for annotators, annotations in crowd:
        part = slice(start, start + len(annotators))
        yield Posteriors(*(table[part] for table in posteriors)), annotators, annotations
        start = part.stop
    if start != len(posteriors.log_h):
        raise ValueError(
            f"the data set must have as many votes' items as it has items, got {start} and {len(posteriors.log_h)}: does "
            "a transform leave items out?"
        )


def check_each_once(rows: np.ndarray, number: int) -> None:
    """Refuse predictions that are not one for each item of a data set, in its order.

    Args:
        rows: (R,) int64, of the items that were predicted, put back in order.
        number: of items.

    Raises:
        ValueError: naming items that are missing; or if it is not known which are which.

    Example:
        >>> check_each_once(np.array([0, 1, 2]), 3)
    """
    if (rows < 0).any():
        raise ValueError(
            f"each prediction must say of which item it is, got {len(rows)} that do not for {number} items: a collator that "
            f"leaves items out, or a loader of your own that shuffles? Hand on batch[{ROW!r}], the items' numbers."
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
