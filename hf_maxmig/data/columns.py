"""Votes as columns of a data set: their schema, and the joins that make them.

`annotators` lists who labelled an item, `annotations` their votes. Both are ragged, of equal lengths,
and empty where an item has no votes. Where votes have weights, a third such column `annotation_weights`
holds how much each of them counts (`readers/weights.py`). `collator.py` turns a batch of them into the model's input. Files
of votes are read elsewhere.
"""

import difflib
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, Features, LargeList, List
from torch.utils.data import Subset
from transformers.utils import logging

from ..model.annotator_names import hashed_order
from ..model.items import ALL_CROWD_COLUMNS, WEIGHTS_COLUMN
from ..model.items import CROWD_COLUMNS as CROWD_COLUMNS
from ..model.items import GOLD_COLUMNS as GOLD_COLUMNS
from .readers.cells import Cells, class_numbers, is_lists, read_cells, read_items
from .readers.roles import WEIGHT
from .readers.tables import columns_of
from .readers.values import Name, Rule, checked_names, class_names, rule_of
from .readers.weights import WEIGHTS, read_weights

logger = logging.get_logger(__name__)

EVERY = range(sys.maxsize)  # the items' numbers in errors, for a whole data set
_VOTE_COLUMNS = ("item", "annotator", "annotation")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
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
        annotators=List(ClassLabel(names=checked_names("annotators", annotators))),
        annotations=List(ClassLabel(names=checked_names("classes", classes))),
    )


def crowd_names(dataset: Any) -> tuple[list[str] | None, list[str] | None]:
    """Read the names of annotators and classes off a data set.

    Args:
        dataset: a data set with or without crowd columns; anything that has `features`, or a torch
            `Subset` of it.

    Returns:
        Annotator names and class names; None where the features do not carry them. For a dense
        column of annotations of fixed length (one place per annotator, -1 for no vote), the
        annotators' names are their numbers.

    Example:
        >>> features = crowd_features(["ann", "bob"], ["cat", "dog"])
        >>> columns = {"annotators": [[0]], "annotations": [[1]]}
        >>> crowd_names(Dataset.from_dict(columns, features=features))
        (['ann', 'bob'], ['cat', 'dog'])
    """
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    features = getattr(dataset, "features", None) or {}
    length = getattr(features.get("annotations"), "length", -1)
    annotators = _names(features.get("annotators"))
    if "annotators" not in features and length > 0:
        annotators = [str(m) for m in range(length)]
    return annotators, _names(features.get("annotations"))


def _names(feature: Any) -> list[str] | None:
    inner = feature.feature if isinstance(feature, List | LargeList) else None
    return list(inner.names) if isinstance(inner, ClassLabel) else None


def add_annotations(
    dataset: Dataset,
    votes: Any,
    item_column: str,
    *,
    classes: Sequence[str] | None = None,
    max_unknown_share: float = 0.0,
    missing: Sequence[str | int] | str | int | None = None,
) -> Dataset:
    """Join a long table of votes to a data set, as its crowd columns.

    Args:
        dataset: the items, one per row. Its format or transform stays. A transform still gets its old
            columns; the new ones are added to its result.
        votes: a table with columns `item`, `annotator`, `annotation`, one vote per row: a
            `datasets.Dataset`, a pandas data frame, an Arrow table, a dict of lists or a list of
            records. Names may be text or numbers. A column `weight` says how much each vote counts, from 0
            to 1; an empty cell is 1, and a vote of weight 0 is none. A column `gold`, the gold label of the item or None, becomes the
            column `label` if the data set has no gold labels of its own. An item without votes gets
            its gold label from a row whose annotator and annotation are both None.
        item_column: the column of `dataset` that the votes' `item` refers to, text or integers;
            its values must be unique.
        classes: C class names in the order of their numbers. The default is the first of these that
            exists: the names of the votes' `ClassLabel`; those of the data set's gold labels, if
            their `ClassLabel` has all names that occur; the names that occur, sorted, numbers by
            value. If no class name is a number, votes from 0 to C - 1 are class numbers.
        max_unknown_share: share of votes that may refer to items that `dataset` does not have;
            they are left out with a warning.
        missing: texts or numbers that stand for no answer, in place of the usual ones. The rule is
            that of `read_annotations`.

    Returns:
        The data set with `annotators` and `annotations`, with `annotation_weights` if not all votes
        count as 1, and with `label` if the votes have gold labels (None for an item without one). Items without votes have empty lists. An item's votes
        keep the order of the table. Annotators are those of the whole table, sorted by name, numbers
        by value, so that splits joined to one table agree.

    Raises:
        TypeError: if `dataset` is not a `datasets.Dataset`, or names are neither text nor numbers.
        KeyError: if a column is absent.
        ValueError: if the data set has crowd columns already, items are not unique, there are no
            votes, a value is missing, a class is not in `classes`, too many votes refer to
            unknown items, or an item has two gold labels.

    Example:
        >>> images = Dataset.from_dict({"file_name": ["a.jpg", "b.jpg"]})
        >>> votes = {"item": ["a.jpg", "a.jpg"], "annotator": ["bob", "ann"]}
        >>> votes["annotation"] = ["cat", "dog"]
        >>> joined = add_annotations(images, votes, item_column="file_name")
        >>> joined["annotators"][:], joined["annotations"][:]
        ([[1, 0], []], [[0, 1], []])
    """
    check_is_dataset(dataset)
    if not isinstance(item_column, str) or item_column not in dataset.column_names:
        raise KeyError(
            "`item_column` must be a column of the data set, one of "
            f"{', '.join(dataset.column_names)}, got {item_column!a}."
        )
    for name in ALL_CROWD_COLUMNS:
        if name in dataset.column_names:
            raise ValueError(
                f"`dataset` must not have a column {name!r} yet; remove it to join other votes."
            )
    _check_share(max_unknown_share)
    own_classes = class_names(classes)
    rule = rule_of(missing, classes)
    read = _read_votes(votes, rule.but(_gold_classes(dataset) or ()))
    position = _positions(dataset, read, item_column, max_unknown_share)
    is_vote = read.is_vote
    if not is_vote.any():
        raise ValueError(f"`votes` must hold at least one vote, got none in {len(position)} rows.")
    annotator_names, annotator = _sorted(read.annotator.names, read.annotator.codes[0])
    classes = own_classes or read.classes or _gold_classes(dataset, read.annotation.names)
    names, annotation, gold = _encode_classes(read, classes)
    if read.doubts:
        logger.warning("`votes`: in doubt: %s", "; ".join(dict.fromkeys(read.doubts)))

    known = is_vote & (position >= 0)
    if read.weight is not None:
        known &= read.weight > 0
    place, annotator, annotation = position[known], annotator[known], annotation[known]
    order = np.argsort(place, kind="stable")
    lengths = np.bincount(place, minlength=len(dataset))
    features = crowd_features(annotator_names, names)
    columns = {
        "annotators": lists_of(annotator[order], lengths),
        "annotations": lists_of(annotation[order], lengths),
    }
    if read.weight is not None and (read.weight[known] != 1).any():
        features[WEIGHTS_COLUMN] = WEIGHTS
        weights = pa.array(read.weight[known][order], pa.float32())
        columns[WEIGHTS_COLUMN] = pa.ListArray.from_arrays(offsets(lengths), weights)
    if gold is not None and not set(GOLD_COLUMNS) & set(dataset.column_names):
        label = _label_of_each_item(gold, position, len(dataset), names, read.items)
        features["label"] = ClassLabel(names=names)
        columns["label"] = pa.array(label, pa.int64(), mask=label < 0)
    return with_columns(dataset, features, columns)


def align_annotators(dataset: Dataset, annotators: Sequence[str]) -> Dataset:
    """Number the annotators of a data set as a model numbers them; unknown ones become -1.

    Args:
        dataset: with crowd columns; the features of `annotators` carry names.
        annotators: the model's names, `model.config.annotators`.

    Returns:
        The data set with `annotators` renumbered. Votes of annotators unknown to the model stay but
        add nothing; their number is logged.

    Raises:
        TypeError: if `dataset` is not a `datasets.Dataset`.
        ValueError: if the features of the data set do not name the annotators, or a number is out
            of range.

    Example:
        >>> features = crowd_features(["bob", "eve"], ["cat", "dog"])
        >>> columns = {"annotators": [[0, 1]], "annotations": [[1, 1]]}
        >>> dataset = Dataset.from_dict(columns, features=features)
        >>> align_annotators(dataset, ["ann", "bob"])["annotators"][:]
        [[1, -1]]
    """
    names = named_annotators(dataset)
    annotators = checked_names("annotators", annotators)
    number = {name: m for m, name in enumerate(annotators)}
    renumbered = np.array([number.get(name, -1) for name in names] + [-1])  # the last is for -1
    values, lengths = numbered_annotators(dataset)
    check_range("annotators", values, lengths, len(names))
    unknown = [name for name in names if name not in number]
    if unknown:
        logger.warning(
            "%d of %d annotators are not among the model's %d, such as %s: their votes add "
            "nothing.",
            len(unknown), len(names), len(number), ", ".join(map(repr, unknown[:_SHOWN])),
        )  # fmt: skip
    feature = Features(annotators=List(ClassLabel(names=list(annotators))))
    return with_columns(dataset, feature, {"annotators": lists_of(renumbered[values], lengths)})


def hash_annotators(dataset: Dataset, salt: str) -> Dataset:
    """Replace the names of the annotators by salted hashes, before the data is shared.

    A model whose names were hashed with the same salt, by `model.hash_annotators(salt)`, knows them.
    Both number the annotators in the order of their hashes, and each item's votes are sorted by these
    numbers. In the order of the names, which is mostly alphabetical, a list of names would reveal who
    is who.

    Args:
        dataset: with crowd columns; the features of `annotators` carry names.
        salt: a secret of 16 characters or more.

    Returns:
        The data set, with the same votes on each item, under other names and in another order. A
        list column with one value per vote is reordered with them. Other columns stay; a warning
        names those that also hold an annotator's name.

    Raises:
        TypeError: if `dataset` is not a `datasets.Dataset`, or the salt is not text.
        ValueError: if the features of the data set do not name the annotators, the salt is too short,
            the lists of `annotators` and `annotations` differ in length, or a number is out of range.

    Example:
        >>> features = crowd_features(["ann", "bob"], ["cat", "dog"])
        >>> columns = {"annotators": [[0]], "annotations": [[1]]}
        >>> shared = hash_annotators(Dataset.from_dict(columns, features=features), "not this one, please")
        >>> crowd_names(shared)[0] == hashed_order(["ann", "bob"], "not this one, please")[0]
        True
    """
    names = named_annotators(dataset)
    hashes, order = hashed_order(names, salt)
    number = np.append(np.argsort(order), -1)  # the last is for -1
    values, lengths = numbered_annotators(dataset)
    check_range("annotators", values, lengths, len(names))
    features = {"annotators": List(ClassLabel(names=hashes))}
    row, named = np.repeat(np.arange(len(lengths)), lengths), number[values]
    # Stable, so that repeated votes of an annotator keep their order. Padding stays last.
    place = np.lexsort((np.where(named < 0, len(names), named), row))
    columns = {"annotators": lists_of(named[place], lengths)}
    for name, lists in of_each_vote(dataset, lengths):
        features[name] = List(dataset.features[name].feature)
        columns[name] = pa.ListArray.from_arrays(offsets(lengths), lists.flatten().take(place))
    _tell_names_elsewhere(dataset, names)
    return with_columns(dataset, Features(features), columns)


def of_each_vote(dataset: Dataset, lengths: np.ndarray) -> Iterator[tuple[str, pa.Array]]:
    """Find the columns with one value per vote: `annotations`, and lists of the same lengths."""
    vary = len(np.unique(lengths)) > 1
    for name, feature in dataset.features.items():
        said = name in (CROWD_COLUMNS[1], WEIGHTS_COLUMN)
        if name == "annotators" or not (said or (vary and isinstance(feature, List | LargeList))):
            continue
        column = dataset.select_columns([name]).with_format("arrow")[:][name]
        if said:
            flat_lists(name, column)  # it refuses anything but lists of numbers
        lists = column.combine_chunks()
        widths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
        if np.array_equal(widths, lengths):
            yield name, lists
        elif said:
            at = int((widths != lengths).argmax())
            raise ValueError(
                f"`annotators` and `{name}` must have lists of one length, got "
                f"{lengths[at]} and {widths[at]} at item {at}."
            )


def _tell_names_elsewhere(dataset: Dataset, names: list[str]) -> None:
    """Log the other columns in which a cell is an annotator's name."""
    # No column can hold half a character, which a name that is not Unicode has.
    known = pa.array([n.encode("utf-8", "replace").decode() for n in names], pa.large_string())
    for name in dataset.column_names:
        if name == "annotators":
            continue
        kind = dataset.data.schema.field(name).type
        while is_lists(kind):
            kind = kind.value_type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            continue
        column = dataset.select_columns([name]).with_format("arrow")[:][name]
        while is_lists(column.type):
            column = pc.list_flatten(column)
        if pc.any(pc.is_in(column.cast(pa.large_string()), known)).as_py():
            logger.warning(
                "The column `%s` also holds names of annotators and stays as it is: remove it before you share the "
                "data.", name,
            )  # fmt: skip


def named_annotators(dataset: Dataset) -> list[str]:
    """Read the annotators' names off the features, or raise that they are not there."""
    check_is_dataset(dataset)
    names = _names(dataset.features.get("annotators"))
    if names is None:
        raise ValueError(
            "`dataset` must have a column `annotators` whose features name them, got "
            f"{dataset.features.get('annotators', 'no such column')}: see `crowd_features`."
        )
    return names


def numbered_annotators(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Read the column `annotators` as `flat_lists` does."""
    column = dataset.select_columns(["annotators"]).with_format("arrow")[:]["annotators"]
    return flat_lists("annotators", column)


# List columns, without a Python object per row


def flat_lists(
    name: str, column: pa.ChunkedArray, items: Sequence[int] = EVERY
) -> tuple[np.ndarray, np.ndarray]:
    """Split a column of lists of numbers into its values and the lengths of its lists.

    The numbers are integers, except in `annotation_weights`.

    Args:
        name: of the column, for errors.
        column: lists, large lists or lists of fixed length, possibly sliced or in chunks.
        items: the items' numbers, for errors.

    Returns:
        All values in a row, and the (n,) length of each item's list.

    Raises:
        ValueError: if the column holds anything else, or a None.
    """
    kind, numbers = column.type, "numbers" if name == WEIGHTS_COLUMN else "integers"
    if not is_lists(kind) or not (
        pa.types.is_integer(kind.value_type)
        or pa.types.is_null(kind.value_type)
        or (name == WEIGHTS_COLUMN and pa.types.is_floating(kind.value_type))
    ):
        raise ValueError(f"`{name}` must be lists of {numbers}, got a column of {kind}.")
    lists = column.combine_chunks()
    if lists.null_count:
        row = pc.index(lists.is_null(), True).as_py()
        raise ValueError(
            f"`{name}` must be a list, got None at item {items[row]}: an item without votes has "
            "an empty list."
        )
    values, lengths = lists.flatten(), np.asarray(pc.list_value_length(lists))
    if values.null_count:
        place = pc.index(values.is_null(), True).as_py()
        row = int(np.searchsorted(np.cumsum(lengths), place, side="right"))
        raise ValueError(
            f"`{name}` must hold {numbers}, got None at item {items[row]}: "
            + ("a vote that counts in full has 1." if name == WEIGHTS_COLUMN else "None is not a vote, leave it out.")
        )  # fmt: skip
    wanted = pa.float32() if name == WEIGHTS_COLUMN else pa.int64()
    return np.asarray(values.cast(wanted, safe=name != WEIGHTS_COLUMN)), lengths


def check_range(
    name: str, values: np.ndarray, lengths: np.ndarray, number: int, items: Sequence[int] = EVERY
) -> None:
    """Check the range of the values of a flat column of lists.

    Args:
        name: of the column.
        values: all values in a row.
        lengths: (n,), of the items' lists.
        number: M or C; values must be smaller.
        items: the items' numbers, for errors.

    Raises:
        ValueError: naming the first item with a value out of range.
    """
    bad = (values < -1) | (values >= number)
    if bad.any():
        place = int(bad.argmax())
        row = int(np.searchsorted(np.cumsum(lengths), place, side="right"))
        raise ValueError(
            f"`{name}` must lie in 0..{number - 1} or be -1 for padding, got "
            f"{int(values[place])} at item {items[row]}."
        )


def lists_of(values: np.ndarray, lengths: np.ndarray) -> pa.ListArray:
    """Make a column of lists of integers from all values in a row."""
    return pa.ListArray.from_arrays(offsets(lengths), pa.array(values, pa.int64()))


def offsets(lengths: np.ndarray) -> pa.Array:
    """Give the places where lists of these lengths begin, and the end, as Arrow wants them."""
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def with_columns(dataset: Dataset, features: Features, columns: dict[str, pa.Array]) -> Dataset:
    """Add or replace columns; format, transform and the order of the columns stay."""
    # A replaced column stays until all are added: a data set without columns has no number of rows.
    old = {name: f"{name}, as it was" for name in columns if name in dataset.column_names}
    joined = dataset.rename_columns(old) if old else dataset
    for name, column in columns.items():
        joined = joined.add_column(name, column, feature=features[name])
    added = [name for name in columns if name not in dataset.column_names]
    joined = joined.select_columns(dataset.column_names + added)
    form = dataset.format
    if form["type"] == "custom" and added:
        form["output_all_columns"] = True
    elif set(form["columns"]) == set(dataset.column_names):
        form["columns"] = None
    else:
        form["columns"] = form["columns"] + added
    return joined.with_format(**form)


def check_is_dataset(dataset: Any) -> None:
    """Raise a TypeError unless this is a `datasets.Dataset`; for a dict the error names the splits."""
    if not isinstance(dataset, Dataset):
        hint = f"one of its splits, {', '.join(dataset)}" if isinstance(dataset, dict) else "one"
        raise TypeError(
            f"`dataset` must be a datasets.Dataset, got {type(dataset).__name__}: pass {hint}."
        )


# Votes


@dataclass
class _ReadVotes:
    """The cells of a table of votes: items, annotators, and annotations with gold labels."""

    items: pa.ChunkedArray
    annotator: Cells
    annotation: Cells
    classes: list[str] | None  # of the ClassLabel of the annotations
    doubts: list[str]
    is_vote: np.ndarray
    weight: np.ndarray | None  # (V,) float32


def _read_votes(votes: Any, rule: Rule) -> _ReadVotes:
    """Read the cells of a table of votes; half a vote is an error."""
    table = columns_of("`votes`", votes)
    if table is None:
        raise TypeError(
            "`votes` must be a datasets.Dataset, a data frame, an Arrow table, a dict of columns or a "
            f"list of records, got {type(votes).__name__}: read a file by `read_annotations`."
        )
    for name in _VOTE_COLUMNS:
        if name not in table.columns:
            raise KeyError(
                "`votes` must have the columns item, annotator and annotation, got "
                f"{', '.join(table.columns)}: {name!r} is missing; rename yours."
            )
    answers = ["annotation", *(["gold"] if "gold" in table.columns else [])]

    def wrong(names: list[str]) -> Callable[[int, int, str], Exception]:
        def error(i: int, row: int, what: str) -> Exception:
            kind = TypeError if what.startswith("must hold") else ValueError
            return kind(f"column {names[i]!r} of `votes`, row {row}: {what}")

        return error

    rule = rule.but(table.known)
    items, doubts = read_items(table.columns["item"], "item", wrong(["item"]), doubts=False)
    who = read_cells([table.columns["annotator"]], ["annotator"], rule, wrong(["annotator"]))
    columns = [table.columns[name] for name in answers]
    said = read_cells(columns, answers, rule, wrong(answers), answers=True)

    has_name, has_label = who.codes[0] >= 0, said.codes[0] >= 0
    # Rows that only hold an item's gold label, and those whose annotation is missing for the caller.
    nobody = ~has_name & ~has_label & (len(answers) > 1)
    if rule.is_given:
        nobody |= said.is_marker[0]
    for name, missing in {
        "item": np.asarray(items.is_null()),
        "annotator": ~has_name & ~nobody,
        "annotation": ~has_label & ~nobody,
    }.items():
        if missing.any():
            row = int(missing.argmax())
            cell = table.columns[name][row]
            cell = cell.as_py() if isinstance(cell, pa.Scalar) else cell
            marker = {"annotator": who, "annotation": said}.get(name)
            hint = (
                ": pass `missing=()` if it is a name" if marker and marker.is_marker[0][row] else ""
            )
            raise ValueError(
                f"`votes` must not have missing values, got {cell!r} for {name!r} at row {row}{hint}."
            )
    doubts += who.doubts + said.doubts
    marked = who.marked + said.marked
    doubts += [
        f"{number} cells of {marker!r} are read as missing" for marker, number in marked.items()
    ]
    feature = votes.features["annotation"] if isinstance(votes, Dataset) else None
    classes = list(feature.names) if isinstance(feature, ClassLabel) else None
    weight = None
    if WEIGHT in table.columns:
        weight = read_weights(table.columns[WEIGHT], wrong([WEIGHT]))
    return _ReadVotes(items, who, said, classes, doubts, has_label & has_name, weight)


def _positions(
    dataset: Dataset, read: _ReadVotes, item_column: str, max_unknown_share: float
) -> np.ndarray:
    """The data set's row for each vote; -1 where there is none."""
    items = read.items
    column = dataset.select_columns([item_column]).with_format("arrow")[:][item_column]

    def wrong(_: int, row: int, what: str) -> Exception:
        return TypeError(f"column {item_column!r}, row {row}: {what}")

    rows = read_items(column, item_column, wrong, doubts=False)[0].combine_chunks()
    if len(rows.unique()) != len(rows):
        counts = rows.value_counts()
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))[0].as_py()
        raise ValueError(
            f"column {item_column!r} must identify the items, got {twice!r} more than once."
        )
    if pa.types.is_integer(rows.type) and not pa.types.is_integer(items.type):
        items = _as_numbers(items, item_column, read.doubts)
    elif rows.type != items.type:
        rows, items = rows.cast(pa.large_string()), items.cast(pa.large_string())
    position = np.asarray(pc.fill_null(pc.index_in(items, value_set=rows), -1))
    unknown = position < 0
    if unknown.any():
        shown = pc.unique(items.filter(pa.array(unknown))).to_pylist()
        text = (
            f"{int(unknown.sum())} of {len(unknown)} votes refer to {len(shown)} items that column "
            f"{item_column!r} does not have, such as {', '.join(map(repr, shown[:_SHOWN]))}"
        )
        if unknown.mean() > max_unknown_share:
            raise ValueError(
                f"{text}: more than `max_unknown_share` = {max_unknown_share}. Check "
                "`item_column`, or allow more."
            )
        logger.warning("%s; they are left out.", text)
    return position


def _gold_classes(dataset: Dataset, names: Sequence[Name] | None = None) -> list[str] | None:
    """Return the classes of the data set's own gold labels, if the votes name no other class."""
    feature = next((f for n in GOLD_COLUMNS if (f := dataset.features.get(n)) is not None), None)
    if not isinstance(feature, ClassLabel):
        return None
    return list(feature.names) if {*map(str, names or ())} <= {*feature.names} else None


def _check_share(share: Any) -> None:
    """Raise a ValueError unless `max_unknown_share` lies in 0..1."""
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ValueError(f"`max_unknown_share` must lie in 0..1, got {share!a}.")


def _as_numbers(items: pa.ChunkedArray, item_column: str, doubts: list[str]) -> pa.ChunkedArray:
    """Read the items' text as integers, like the data set's; two items may not become one."""
    texts = items.unique().drop_null()
    odd = pc.invert(pc.match_substring_regex(texts, r"^-?[0-9]{1,18}(\.0)?$"))
    if (at := pc.index(odd, True).as_py()) >= 0:
        raise ValueError(
            f"`votes` must name items as column {item_column!r} does, by int64, got "
            f"{texts[at].as_py()!r}: is it the right column?"
        )
    numbers = pc.cast(pc.replace_substring_regex(texts, r"\.0$", ""), pa.int64())
    counts = numbers.value_counts()
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        same = texts.filter(pc.equal(numbers, twice[0])).to_pylist()
        raise ValueError(
            f"`votes` must name items as column {item_column!r} does, by int64, got {same[0]!r} and "
            f"{same[1]!r}, which would be one item: make the column text, or the votes numbers."
        )
    changed = texts.filter(pc.not_equal(numbers.cast(texts.type), texts))
    if len(changed):
        doubts.append(f"item {changed[0].as_py()!r} is taken for the number in {item_column!r}")
    return pa.chunked_array([numbers.take(pc.index_in(items, value_set=texts).combine_chunks())])


def _sorted(names: Sequence[Name], codes: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Number the names in sorted order, numbers by value (2 before 10); None is -1."""
    texts = [str(name) for name in names]
    if all(_NUMBER.fullmatch(name) for name in texts):
        ordered = sorted(texts, key=lambda name: (Decimal(name), name))
    else:
        ordered = sorted(texts)
    number = {name: i for i, name in enumerate(ordered)}
    return ordered, np.array([*(number[name] for name in texts), -1], dtype=np.int64)[codes]


def _encode_classes(
    read: _ReadVotes, classes: list[str] | None
) -> tuple[list[str], np.ndarray, np.ndarray | None]:
    """Number annotations and gold labels by the same classes; -1 where there is none."""
    names = read.annotation.names
    if classes is None:
        coded = [_sorted(names, codes) for codes in read.annotation.codes]
        return coded[0][0], coded[0][1], coded[1][1] if len(coded) > 1 else None
    numbers, doubt = class_numbers(names, classes)
    read.doubts += [doubt] * bool(doubt)
    of = np.array([*(-2 if number is None else number for number in numbers), -1])
    recoded = []
    for what, codes in zip(("annotation", "gold label"), read.annotation.codes, strict=False):
        recoded.append(of[codes])
        _check_known(
            what, recoded[-1], [str(names[code]) for code in codes[recoded[-1] == -2][:1]], classes
        )
    return classes, recoded[0], recoded[1] if len(recoded) > 1 else None


def _check_known(what: str, codes: np.ndarray, unknown: list[str], classes: list[str]) -> None:
    """Raise a ValueError that names the first row with a class that the caller does not have."""
    if unknown:
        row = int((codes == -2).argmax())
        near = difflib.get_close_matches(unknown[0], classes, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(
            f"`votes`, row {row}: {what} {unknown[0]!r} is not one of the {len(classes)} classes{hint}."
        )


def _label_of_each_item(
    gold: np.ndarray, position: np.ndarray, num_items: int, names: list[str], items: Any
) -> np.ndarray:
    """(N,) gold labels, -1 where there is none; all rows of an item must agree."""
    rows = np.flatnonzero((gold >= 0) & (position >= 0))
    label = np.full(num_items, -1)
    label[position[rows]] = gold[rows]
    other = rows[label[position[rows]] != gold[rows]]
    if len(other):
        row = int(other[0])
        raise ValueError(
            f"`votes` must have one gold label per item, got {names[gold[row]]!r} at row {row} and "
            f"{names[label[position[row]]]!r} elsewhere for item {items[row].as_py()!r}."
        )
    return label


def has_crowd_columns(dataset: Any) -> bool:
    """Tell whether a data set of Arrow columns has crowd columns; False for a stream, unknown there."""
    return isinstance(dataset, Dataset) and "annotations" in dataset.column_names


def has_votes(dataset: Any, items: int = 2) -> bool:
    """Tell whether a data set of Arrow columns has votes on at least `items` items; a gain needs two."""
    if not has_crowd_columns(dataset):
        return False
    column = dataset.select_columns("annotations").with_format(None)
    voted = (row for row in column if _has_vote(row["annotations"]))
    return len(list(itertools.islice(voted, items))) == items


def _has_vote(votes: Any) -> bool:
    """Tell whether an item has a vote; what is no number counts too, so that it is read and refused by name."""
    if not isinstance(votes, list):
        return votes is not None
    return any(not isinstance(vote, int | float) or vote >= 0 for vote in votes if vote is not None)
