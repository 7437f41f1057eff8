"""Bring gold labels and a classifier's outputs into the order of a model's classes.

Both may have their own list of classes, and the same number may mean different classes in them. So both
are matched by name. `class_names.py` compares the names; the trainer checks the classes of the votes.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, Features, IterableDataset, Value
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset
from transformers import PreTrainedModel
from transformers.utils import logging

from ..metrics import NO_LABEL
from ..model.class_lists import (
    by_number,
    differences,
    in_order,
    is_numbered,
    listed,
    meant,
    same_names,
)
from ..model.opening import plain
from ..model.surgery import reorder_outputs
from .columns import GOLD_COLUMNS, with_columns

logger = logging.get_logger(__name__)

_WHOLE = re.compile(r"-?\d+")


def hub_parts(dataset: Any) -> Iterator[Any]:
    """Yield the data sets with names inside a trainer's argument.

    Args:
        dataset: any data set, a dict of them, or torch's `Subset` or `ConcatDataset`.

    Yields:
        The data sets inside, or `dataset` itself.
    """
    if isinstance(dataset, dict):
        for part in dataset.values():
            yield from hub_parts(part)
    elif isinstance(dataset, Subset):
        yield from hub_parts(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            yield from hub_parts(part)
    else:
        yield dataset


def align_gold(dataset: Any, classes: Sequence[str]) -> Any:
    """Number the gold labels of a data set as a model numbers its classes.

    A `ClassLabel`, text and booleans are matched by name. Numbers without names are taken as the
    model's numbers, which is logged once. If the class names are other numbers, such as 1 to 5, a gold
    label 5 is the class named `5`.

    Args:
        dataset: a data set, a stream, or torch's `Subset` or `ConcatDataset` of them. A data set
            without features has no names and is returned as it is.
        classes: C names, `model.config.class_names`.

    Returns:
        The data set, with `labels` or `label` as a `ClassLabel` of the C names; the same object if the
        numbers are right already.

    Raises:
        ValueError: if a gold label is none of the classes, naming the item. With a stream it is raised
            when the item is read.

    Example:
        >>> features = Features(name=Value("string"), label=ClassLabel(names=["dog", "cat"]))
        >>> items = Dataset.from_dict({"name": ["a", "b", "c"], "label": [0, 1, 1]}, features=features)
        >>> align_gold(items, ["cat", "dog", "emu"])["label"][:]
        [1, 0, 0]
    """
    if isinstance(dataset, ConcatDataset):
        parts = [align_gold(part, classes) for part in dataset.datasets]
        same = all(new is old for new, old in zip(parts, dataset.datasets, strict=True))
        return dataset if same else ConcatDataset(parts)
    if isinstance(dataset, Subset) and isinstance(dataset.dataset, Dataset | Subset):
        inner: Any = dataset.dataset
        chosen = inner.select(dataset.indices) if isinstance(inner, Dataset) else inner
        aligned = align_gold(chosen, classes)
        if aligned is chosen:
            return dataset
        return aligned if isinstance(inner, Dataset) else Subset(aligned, dataset.indices)
    features = getattr(dataset, "features", None) or {}
    column = next((name for name in GOLD_COLUMNS if name in features), None)
    if column is None or not isinstance(dataset, Dataset | IterableDataset):
        return dataset
    names = _names_of(column, features[column], classes)
    if names is None:
        return dataset
    number = _Number(column, names, classes)
    feature = Features({**features, column: ClassLabel(names=list(classes))})
    if isinstance(dataset, IterableDataset):
        return dataset.map(number.of_example, features=feature)
    return with_columns(dataset, feature, {column: number.of_column(dataset)})


def align_outputs(
    classifier: PreTrainedModel, classes: Sequence[str], inputs: Callable[[], dict[str, Tensor]]
) -> None:
    """Reorder the outputs of a classifier with the same class names, in its config and its weights.

    Each output keeps its meaning. A classifier with other classes, or without names, is not changed.

    Args:
        classifier: any classifier of transformers.
        classes: C names.
        inputs: returns a batch on which the reordering is verified, if one is needed.

    Raises:
        ValueError: if its output layer was not found.
    """
    own = in_order(classifier.config.id2label)
    if own == list(classes) or not same_names(own, classes):
        return
    order = Tensor([own.index(name) for name in classes]).long()
    if not reorder_outputs(classifier, order, inputs()):
        raise ValueError(
            f"`model` must have the data set's classes in its order, got {differences(own, classes)}, and "
            f"the output layer of {type(classifier).__name__}, in which to exchange them, was not found: "
            f"number the votes as it does, `add_annotations(..., classes={own})`."
        )
    classifier.config.id2label = dict(enumerate(classes))
    classifier.config.label2id = {name: c for c, name in enumerate(classes)}


def _names_of(column: str, feature: Any, classes: Sequence[str]) -> dict[Any, str] | None:
    """Names of gold labels that are not names themselves; None if they are the model's numbers."""
    kind = feature.pa_type if isinstance(feature, Value) else None
    if isinstance(feature, ClassLabel):
        names = list(feature.names)
        if names == list(classes)[: len(names)]:
            return None
        if not by_number(names, classes):
            return dict(enumerate(names))
    elif kind is None or pa.types.is_null(kind):
        return None
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return {}
    elif pa.types.is_boolean(kind) and {name.lower() for name in classes} == {"false", "true"}:
        return {name.lower() == "true": name for name in classes}
    elif all(_WHOLE.fullmatch(name) for name in classes) and not is_numbered(classes):
        return {int(name): name for name in classes}
    if not is_numbered(classes):
        logger.warning_once(
            f"The gold labels in `{column}` have no names: 0 is taken for the class {classes[0]!r}, and so on in the "
            f"order {listed(classes)}. A `ClassLabel` would be matched by name."
        )
    return None


class _Number:
    """Numbers gold labels by their names.

    Args:
        column: the name of the column.
        names: the names of gold labels that are not names themselves.
        classes: C names.
    """

    def __init__(self, column: str, names: dict[Any, str], classes: Sequence[str]) -> None:
        self.column, self.names, self.classes = column, names, list(classes)
        self.number = {known: c for c, known in enumerate(classes)}

    def of(self, value: Any) -> int | None:
        """Number one gold label; None without one, -1 for a name that is not a class."""
        if (
            value is None
            or value != value
            or (not isinstance(value, str) and value in (-1, NO_LABEL))
        ):
            return None
        return self.number.get(self.names.get(value, str(value)), -1)

    def of_column(self, dataset: Dataset) -> pa.Array:
        """Number the gold labels of a data set."""
        rows = dataset.select_columns([self.column]).with_format("arrow")[:][self.column]
        encoded = rows.combine_chunks().dictionary_encode()
        values = encoded.dictionary.to_pylist()
        numbers = [self.of(value) for value in values]
        codes = np.asarray(pc.fill_null(encoded.indices, len(values)))
        if -1 in numbers:
            code = numbers.index(-1)
            self._refuse(values[code], f" at item {int((codes == code).argmax())}")
        found = np.array([NO_LABEL if n is None else n for n in [*numbers, None]])[codes]
        return pa.array(found, pa.int64(), mask=found < 0)

    def of_example(self, example: dict[str, Any]) -> dict[str, Any]:
        """Number the gold label of one item."""
        value = plain(example[self.column])
        number = self.of(value)
        if number == -1:
            self._refuse(value, "")
        return {self.column: number}

    def _refuse(self, value: Any, where: str) -> None:
        name = self.names.get(value, str(value))
        raise ValueError(
            f"`{self.column}` must hold gold labels of the model's {len(self.classes)} classes, "
            f"{listed(self.classes)}, got {name!r}{where}{meant(name, self.classes)}: give `add_annotations` all "
            "`classes`, or remove the column if it does not hold gold labels of these classes."
        )


__all__ = ["align_gold", "align_outputs"]
