"""Weights of votes: how much each counts, from 0 (not at all) to 1 (in full).

A weight is an annotator's own confidence in a vote, or the probability that they give to its class. An
annotator who gives each class a probability has several votes on an item, one per class (`soft_votes`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import List, Value

from .cells import Column
from .roles import WEIGHT, candidates, pick
from .source import Source, shown

WEIGHTS = List(Value("float32"))
RULE = "a vote counts from 0, not at all, to 1, in full"


def read_weights(column: Column, wrong: Callable[[int, int, str], Exception]) -> np.ndarray:
    """Read a column of weights.

    Args:
        column: numbers, or text of numbers.
        wrong: makes an error of the number of a column (0), the row, and what is wrong there.

    Returns:
        (V,) float32 in 0..1; 1 where a cell is empty.

    Raises:
        ValueError: if a cell is no number, or not in 0..1.

    Example:
        >>> read_weights([0.8, None, 0.0], lambda i, row, what: ValueError(what))
        array([0.8, 1. , 0. ], dtype=float32)
    """
    cells = column if isinstance(column, list) else column.to_pylist()
    values = np.ones(len(cells), dtype=np.float64)
    for row, cell in enumerate(cells):
        if cell is None or cell == "" or (isinstance(cell, float) and np.isnan(cell)):
            continue
        try:
            values[row] = np.nan if isinstance(cell, bool) else float(cell)
        except (TypeError, ValueError):
            values[row] = np.nan
    bad = ~((values >= 0) & (values <= 1))
    if bad.any():
        row = int(bad.argmax())
        percent = ": divide percentages by 100" if 1 < values[row] <= 100 else ""
        raise wrong(0, row, f"must lie in 0..1, got {cells[row]!r}{percent}; {RULE}.")
    return values.astype(np.float32)


def weights_of(
    source: Source, columns: dict[str, Column], asked: str | bool | None
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Find and read the weights of a table with one vote per row, and remove them from its columns.

    A column is found by a usual name, such as `confidence`, if all its values are weights. One that the user
    names must hold weights.

    Args:
        source: of the table, for errors.
        columns: of the table, without those of other roles; changed.
        asked: the column's name; None looks for one, False reads none.

    Returns:
        The column `weight`, what it was called, and doubts for the log.

    Raises:
        ValueError: if the named column is absent or holds anything but weights.
    """
    if isinstance(asked, str):
        name = pick(source, WEIGHT, columns, asked) or asked
        weights = read_weights(
            columns.pop(name), lambda i, row, what: source.wrong(f"`{name}` {what}", row)
        )
        return {WEIGHT: pa.array(weights)}, {WEIGHT: name}, []
    found = [] if asked is False else candidates(WEIGHT, columns)
    if len(found) != 1:
        several = f"{shown(found)} could each be the weight; name it by `weight=...`"
        return {}, {}, [several] if found else []
    try:
        weights = read_weights(columns[found[0]], lambda i, row, what: ValueError(what))
    except ValueError as error:
        return {}, {}, [f"{found[0]!r} is not read as weights: it {str(error).partition(';')[0]}"]
    del columns[found[0]]
    return {WEIGHT: pa.array(weights)}, {WEIGHT: found[0]}, []


def check_weights(name: str, values: np.ndarray, lengths: np.ndarray, items: Sequence[int]) -> None:
    """Check the range of a flat column of weights.

    Args:
        name: of the column.
        values: all weights in a row.
        lengths: (n,), of the items' lists.
        items: the items' numbers, for errors.

    Raises:
        ValueError: naming the first item with a weight that is not in 0..1.
    """
    bad = ~((values >= 0) & (values <= 1))
    if bad.any():
        place = int(bad.argmax())
        row = int(np.searchsorted(np.cumsum(lengths), place, side="right"))
        raise ValueError(
            f"`{name}` must lie in 0..1, got {values[place]:g} at item {items[row]}: {RULE}."
        )


def soft_votes(
    items: Sequence[Any],
    annotator: str,
    probabilities: Any,
    classes: Sequence[str],
    least: float = 1e-3,
) -> dict[str, list[Any]]:
    """Turn an annotator's class probabilities into weighted votes, one per item and class.

    Args:
        items: N names of items.
        annotator: the name of the annotator, for instance of a language model.
        probabilities: (N, C), rows summing to one or less; a row of zeros is no vote.
        classes: C names.
        least: probabilities below this are left out.

    Returns:
        A table of votes for `add_annotations`: `item`, `annotator`, `annotation` and `weight`.

    Raises:
        ValueError: if shapes do not fit, a probability is not in 0..1, or a row sums to more than one.

    Example:
        >>> soft_votes(["a", "b"], "lexicon", [[0.75, 0.25], [0.0, 1.0]], ["neg", "pos"])["weight"]
        [0.75, 0.25, 1.0]
    """
    table = np.asarray(probabilities, dtype=np.float64)
    if table.shape != (len(items), len(classes)):
        raise ValueError(
            f"`probabilities` must have shape (N, C) = ({len(items)}, {len(classes)}), got {table.shape}: one row per "
            "item, one column per class."
        )
    bad = ~((table >= 0) & (table <= 1)).all(axis=1) | (table.sum(axis=1) > 1 + 1e-3)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"`probabilities` must be in 0..1, with rows summing to one or less, got {table[row].tolist()} for item "
            f"{items[row]!r}."
        )
    least = max(least, float(np.finfo(np.float32).tiny))
    rows, columns = np.nonzero(table >= least)
    return {
        "item": [items[i] for i in rows.tolist()],
        "annotator": [annotator] * len(rows),
        "annotation": [classes[c] for c in columns.tolist()],
        WEIGHT: table[rows, columns].tolist(),
    }
