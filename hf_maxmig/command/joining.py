"""Votes and gold labels join the items: by which names votes find items, and which class a gold label is.

Gold labels only measure results.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Audio, ClassLabel, Dataset, Features, Image

from ..data.class_order import align_gold
from ..data.columns import GOLD_COLUMNS, add_annotations, with_columns
from ..data.readers.values import MISSING, SPACE
from ..model.items import ALL_CROWD_COLUMNS
from .content import is_number, is_text
from .items import shown

logger = logging.getLogger(__name__)


# Which item a vote is about


def matching_column(dataset: Dataset, votes: Dataset) -> str | None:
    """Find the one column that holds all of the items' names in the votes; None if there is none, or are several.

    Args:
        dataset: the items.
        votes: the votes.

    Example:
        >>> items = Dataset.from_dict({"id": ["a", "b"], "text": ["Good.", "Bad."]})
        >>> matching_column(items, Dataset.from_dict({"item": ["b", "b", "a"]}))
        'id'
    """
    found, full = _matching(dataset, votes)
    return found[0] if full and len(found) == 1 else None


def _matching(dataset: Dataset, votes: Dataset) -> tuple[list[str], bool]:
    """List the columns with most of the items' names in the votes, and say whether these are all."""
    voted = {str(item) for item in votes.unique("item")}
    found: dict[str, tuple[int, bool]] = {}
    for name, feature in dataset.features.items():
        if name in (*ALL_CROWD_COLUMNS, *GOLD_COLUMNS) or not (
            is_text(feature) or is_number(feature)
        ):
            continue
        values = dataset.select_columns([name]).with_format("arrow")[:][name].to_pylist()
        names = {str(value) for value in values}
        found[name] = (len(voted & names), len(names) == len(values))
    most = max((number for number, _ in found.values()), default=0)
    best = [name for name, (number, _) in found.items() if number == most > 0]
    # A column with a name twice is not one of names, unless there is no other: then that is the error.
    return [name for name in best if found[name][1]] or best, most == len(voted)


def named_items(
    dataset: Dataset, votes: Dataset, column: str, others: bool = False
) -> tuple[Dataset, str] | None:
    """Name the items by their files: the path below the folder, the file name, or that without its ending.

    All three are usual; the one that matches most votes is chosen.

    Args:
        dataset: the items.
        votes: the votes.
        column: of pictures or sounds.
        others: whether another column could hold the names, so that names without any vote are not taken.

    Returns:
        The items with a column of names, and that column; None if `others` and nothing matches.

    Raises:
        ValueError: if files have no names, or several have the same.
    """
    undecoded = type(dataset.features[column])(decode=False)
    files = dataset.cast_column(column, undecoded).select_columns([column]).with_format(None)
    named: list[Any] = [file["path"] or None for file in files[column]]
    if None in named:
        if others:
            return None
        raise ValueError(
            f"{_plural(dataset, column)} must have file names for the votes to refer to, got none for item "
            f"{named.index(None)}: name the column with `--item_column`."
        )
    paths = [Path(name) for name in named]
    voted = {str(item) for item in votes["item"]}
    root = Path(*_shared_parts([path.parts for path in paths]))
    ways = {
        "path": [path.relative_to(root).as_posix() for path in paths],
        "file name": [path.name for path in paths],
        "file name without its ending": [path.stem for path in paths],
    }
    unique = {way: names for way, names in ways.items() if len({*names}) == len(names)}
    if not unique:
        raise ValueError(
            f"{_plural(dataset, column)} must have different file names for the votes to refer to, got the same "
            "for several: name a column with `--item_column`."
        )
    way = max(unique, key=lambda way: len(voted & {*unique[way]}))
    names = unique[way]
    number = len(voted & {*names})
    if others and not number:
        return None
    logger.warning(
        "%s are named by their %s, such as %r: %d of the %d items with votes are there.",
        _plural(dataset, column).removeprefix("the ").capitalize(), way, names[0], number, len(voted),
    )  # fmt: skip
    free = next(n for n in ("file_name", "file_name_of_item") if n not in dataset.column_names)
    return dataset.add_column(free, names), free


def _plural(dataset: Dataset, column: str) -> str:
    return "the sounds" if isinstance(dataset.features[column], Audio) else "the pictures"


def _shared_parts(paths: list[tuple[str, ...]]) -> list[str]:
    """Folders that all paths have in common."""
    shared = []
    for parts in zip(*(path[:-1] for path in paths), strict=False):
        if len({*parts}) > 1:
            break
        shared.append(parts[0])
    return shared


def with_names(dataset: Dataset, votes: Dataset, asked: str | None) -> tuple[Dataset, str]:
    """Find the column that votes refer to, or make it of the files' names.

    Args:
        dataset: the items, with files opened.
        votes: the votes.
        asked: the column that a flag names.

    Returns:
        The items and the column.

    Raises:
        ValueError: if no column holds the items' names, or several do.
    """
    files = [n for n, f in dataset.features.items() if isinstance(f, Image | Audio)]
    if asked is not None and asked not in files:
        return dataset, asked
    found, full = _matching(dataset, votes)
    if full and len(found) == 1:
        return dataset, found[0]
    by_file = named_items(dataset, votes, files[0], others=bool(found)) if files else None
    if by_file is not None:
        return by_file
    if len(found) == 1:
        return dataset, found[0]
    example = votes[0]["item"]
    raise ValueError(
        f"one column must hold the items' names in the votes, such as {example!r}, got "
        f"{f'several, {shown(found)}' if found else f'none among {shown(dataset.column_names)}'}: name it by "
        "`--item_column`."
    )


# Votes and gold labels


def with_votes(
    dataset: Dataset,
    votes: Dataset,
    column: str,
    *,
    classes: Sequence[str] | None = None,
    max_unknown_share: float = 0.0,
) -> Dataset:
    """Join the votes; by default, the classes are those of the gold labels if the votes name no others.

    Args:
        dataset: the items, with gold labels in `label` if they have any.
        votes: the votes.
        column: the column that they refer to.
        classes: C names, if they are known.
        max_unknown_share: share of votes that may refer to missing items.

    Returns:
        The items with crowd columns; without `label` if that does not hold these classes.

    Raises:
        ValueError: if votes and items do not fit together.
    """
    dataset = _clean_gold(dataset)
    gold = _gold_names(dataset)
    voted = {str(name) for name in votes.unique("annotation")} - {"None"}
    if gold is not None:
        if voted <= {*gold}:
            classes = classes or (gold if len(gold) > len(voted) or _has_order(dataset) else None)
        elif _has_order(dataset) or not {*gold} <= voted:
            logger.warning(
                "The votes name %s, but the items' `label` only has %s: it is not a gold label of these classes, and is "
                "left out.",
                ", ".join(map(repr, sorted(voted - {*gold})[:5])), ", ".join(map(repr, gold[:5])),
            )  # fmt: skip
            dataset = dataset.remove_columns("label")
    joined = add_annotations(
        dataset, votes, column, classes=classes, max_unknown_share=max_unknown_share
    )
    if wrong := _wrong_numbers(joined, joined.features["annotations"].feature.names):
        logger.warning(
            "The items' `label` holds numbers that stand for no class, such as %s: it is left out.",
            wrong,
        )
        return joined.remove_columns("label")
    feature = joined.features.get("label")
    if feature is None or isinstance(feature, ClassLabel) or not is_text(feature):
        return joined
    return align_gold(joined, joined.features["annotations"].feature.names)


def with_gold(dataset: Dataset, classes: Sequence[str]) -> Dataset:
    """Number the gold labels of test items as the votes' classes are.

    Args:
        dataset: the test items, with gold labels in `label`: a `ClassLabel`, text or numbers.
        classes: C names.

    Returns:
        The items, `label` a `ClassLabel` of the C names, None where there is none.

    Raises:
        ValueError: if there are no gold labels, or others than these.
    """
    dataset = _clean_gold(dataset)
    gold = _gold_names(dataset)
    if "label" not in dataset.column_names or (gold is not None and {*gold} - {*classes}):
        raise ValueError(
            f"the test items must have gold labels of the classes {shown(list(classes))}, got "
            f"{shown(gold or ['none'])}: put pictures or sounds in a subfolder a class, or name the column by "
            "`--label_column`."
        )
    if gold is None:
        if wrong := _wrong_numbers(dataset, classes):
            raise ValueError(
                f"the test items must have gold labels that are names of the classes {shown(list(classes))}, or their "
                f"numbers from 0, got {wrong}."
            )
        return align_gold(dataset, classes)
    feature = dataset.features["label"]
    name_of = dict(enumerate(feature.names)) if isinstance(feature, ClassLabel) else None
    number = {name: c for c, name in enumerate(classes)}
    rows = dataset.select_columns(["label"]).with_format("arrow")[:]["label"].to_pylist()
    names = rows if name_of is None else [None if c is None else name_of.get(c) for c in rows]
    labels = [None if name is None else number[name] for name in names]
    dataset = dataset.remove_columns("label")
    return dataset.add_column("label", labels, feature=ClassLabel(names=list(classes)))


def _wrong_numbers(dataset: Dataset, classes: Sequence[str]) -> str:
    """Give a gold label that is a number and neither the name nor the place of a class; empty if there is none."""
    feature = dataset.features.get("label")
    if feature is None or isinstance(feature, ClassLabel) or is_text(feature):
        return ""
    values = [value for value in dataset.unique("label") if value is not None and value == value]
    if any(isinstance(value, bool) for value in values):
        return ""
    right = {*classes, *map(str, range(len(classes))), "-1", "-100"}
    if all(name.lstrip("-").isdigit() for name in classes):
        right = {*classes, "-1", "-100"}
    return next((str(v) for v in values if str(int(v) if v == int(v) else v) not in right), "")


def _has_order(dataset: Dataset) -> bool:
    """Whether the gold labels come with a list of all classes."""
    return isinstance(dataset.features.get("label"), ClassLabel)


def _gold_names(dataset: Dataset) -> list[str] | None:
    """Names of the gold labels, in order; None if they have none, or are numbers."""
    feature = dataset.features.get("label")
    if isinstance(feature, ClassLabel):
        return list(feature.names)
    if not is_text(feature):
        return None
    return sorted(name for name in dataset.unique("label") if name is not None)


def _clean_gold(dataset: Dataset) -> Dataset:
    """Strip text in `label`, and take markers such as NA for none; a column without any is left out."""
    feature = dataset.features.get("label")
    if feature is None or isinstance(feature, ClassLabel):
        return dataset
    cells = dataset.select_columns(["label"]).with_format("arrow")[:]["label"].combine_chunks()
    if is_text(feature):
        cells = pc.utf8_trim(cells, SPACE)
        missing = pc.is_in(cells, pa.array(["", *sorted(MISSING)], cells.type))
        cells = pc.if_else(missing, None, cells)
    if cells.null_count == len(cells):
        return dataset.remove_columns("label")
    if not is_text(feature):
        return dataset
    return with_columns(dataset, Features({**dataset.features, "label": feature}), {"label": cells})
