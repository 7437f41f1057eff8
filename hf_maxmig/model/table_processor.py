"""Rows of a table, as users have them, turned into the features that a classifier takes.

The Hub carries this with the model: means and categories are kept as JSON. `data/tables.py` fits them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.feature_extraction_utils import BatchFeature, FeatureExtractionMixin
from transformers.utils import logging

from .class_lists import listed, meant
from .opening import short

logger = logging.get_logger(__name__)

KINDS = ("number", "truth", "category")
_MISSING = ("NAType", "NaTType")  # of pandas, which is not needed here


class TableProcessor(FeatureExtractionMixin):
    """Turn rows of a table into feature vectors: numbers standardised, categories one-hot.

    `fitted_table_processor` makes it from a training set. A trainer that is given it as `processing_class`
    reads the columns themselves; `dataset.map(processor, batched=True)` computes the features once. It is
    saved beside the model as `preprocessor_config.json`, which is JSON and no pickle, and needs neither
    scikit-learn nor pandas.

    - A number x becomes (x - mean) / scale, a truth value likewise as 0 or 1. A missing one (None, NaN)
      becomes the mean, which is 0. Where training had missing ones, a further feature is 1 if it is missing.
    - A category becomes as many numbers as training had categories, a single one of them 1. A category
      that training did not have becomes zeros, with one warning per column. A missing one (None, NaN,
      blank text) is a category of its own, where training had missing ones.

    Args:
        columns: one dict per column that is read, in the order of the features. Each has a `name` and a
            `kind`: `number` or `truth`, with `mean`, `scale` and `missing` (whether training had missing
            ones); or `category`, with `categories`, `missing` and, where the data set stores classes by
            their numbers, all their `names`.
        **kwargs: as in `FeatureExtractionMixin`.

    Raises:
        ValueError: if `columns` do not describe columns.

    Example:
        >>> processor = TableProcessor([
        ...     {"name": "age", "kind": "number", "mean": 40.0, "scale": 10.0, "missing": True},
        ...     {"name": "job", "kind": "category", "categories": ["clerk", "nurse"], "missing": False}])
        >>> processor.feature_names
        ['age', 'age is missing', 'job = clerk', 'job = nurse']
        >>> processor([{"age": 50, "job": "nurse"}, {"age": None, "job": "clerk"}])["features"]
        tensor([[1., 0., 0., 1.],
                [0., 1., 1., 0.]])
    """

    model_input_names = ["features"]

    def __init__(self, columns: Sequence[Mapping[str, Any]] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.columns = [_checked(column, place) for place, column in enumerate(columns)]
        if not self.columns:
            raise ValueError("`columns` must describe a column or more, got none.")
        names = self.column_names
        if len({*names}) < len(names):
            raise ValueError(f"`columns` must have names of their own, got {listed(names)}.")
        self._layout = _Layout(self.columns)
        self._warned: set[str] = set()  # columns with categories that training did not have

    @property
    def column_names(self) -> list[str]:
        """The columns that are read."""
        return [column["name"] for column in self.columns]

    @property
    def feature_names(self) -> list[str]:
        """What each of the D features is."""
        names = []
        for column in self.columns:
            name = column["name"]
            own = [name]
            if column["kind"] == "category":
                own = [f"{name} = {category}" for category in column["categories"]]
            names += [*own, f"{name} is missing"] if column["missing"] else own
        return names

    @property
    def size(self) -> int:
        """D, the length of a feature vector: `TableConfig(input_size=processor.size)`."""
        return self._layout.size

    @property
    def example(self) -> dict[str, Any]:
        """A row for a first try: of each column the mean, or a category."""
        row: dict[str, Any] = {}
        for column in self.columns:
            if column["kind"] == "category":
                row[column["name"]] = column["categories"][0]
            elif column["kind"] == "truth":
                row[column["name"]] = column["mean"] >= 0.5
            else:
                row[column["name"]] = float(f"{column['mean']:.4g}")
        return row

    def __call__(
        self,
        rows: Sequence[Mapping[str, Any]] | Mapping[str, Any],
        items: Sequence[int] | None = None,
        return_tensors: str | None = "pt",
        **kwargs: Any,
    ) -> BatchFeature:
        """Turn rows into features.

        Args:
            rows: B dicts by column names; or columns by name, each with B values, as `Dataset.map`
                gives them with `batched=True`. Other columns are ignored.
            items: the rows' numbers, for errors; by default their places.
            return_tensors: `pt` for a tensor, `np` for an array.
            **kwargs: ignored, as transformers passes options of other processors.

        Returns:
            `features`, (B, D) float32.

        Raises:
            TypeError: if `rows` are neither.
            ValueError: if a column is missing, or a value is not of its column's kind or not finite.
                The error names the column and the row.
        """
        columns: Any = rows
        if not isinstance(rows, Mapping):
            columns = self._by_column(rows, items)
        elif not all(_is_column(rows[name]) for name in self.column_names if name in rows):
            raise TypeError(
                f"`rows` must be a list of dicts, or a dict of columns, got a single dict {short(rows)}: "
                "put it into a list."
            )
        features = self.read(columns, items)
        if return_tensors not in (None, "pt", "np"):
            raise ValueError(f"`return_tensors` must be 'pt' or 'np', got {return_tensors!r}.")
        made: Any = features.numpy() if return_tensors == "np" else features
        return BatchFeature({"features": made})

    def read(self, columns: Mapping[str, Any], items: Sequence[int] | None = None) -> Tensor:
        """Turn columns into features.

        Args:
            columns: by name, each a list, an array or a tensor of B values. Others are ignored.
            items: the rows' numbers, for errors; by default their places.

        Returns:
            (B, D) float32.

        Raises:
            ValueError: as calling does.
        """
        absent = [name for name in self.column_names if name not in columns]
        if absent:
            raise ValueError(
                f"a table must have the column{'s' if absent[1:] else ''} {listed(absent)}, got "
                f"{listed([*map(str, columns)]) or 'none'}{meant(absent[0], [*map(str, columns)])}."
            )
        lengths = [len(columns[name]) for name in self.column_names]
        if len({*lengths}) > 1:
            raise ValueError(
                "columns must have the same number of values, got "
                + ", ".join(f"{n} of {name!r}" for n, name in zip(lengths, self.column_names, strict=True))
                + "."
            )  # fmt: skip
        called = range(lengths[0]) if items is None else items
        layout = self._layout
        features = torch.zeros(lengths[0], layout.size + 1)  # the last is for unseen categories
        if layout.numbers:
            numbers = [_numbers(c, columns[c["name"]], called) for c in layout.numbers]
            self._measure(torch.stack(numbers, dim=1), features, called)
        if layout.categories:
            places = [self._places(c, columns[c["name"]], called) for c in layout.categories]
            features.scatter_(1, torch.tensor(places, dtype=torch.int64).T, 1.0)
        return features[:, : layout.size].contiguous()

    def to_dict(self) -> dict[str, Any]:
        """Return what is saved."""
        saved = {n: v for n, v in super().to_dict().items() if not n.startswith("_")}
        # AutoImageProcessor reads the same file. Without a type it would take this code for its own.
        return {**saved, "image_processor_type": "none"}

    def _by_column(
        self, rows: Sequence[Mapping[str, Any]], items: Sequence[int] | None
    ) -> dict[str, list[Any]]:
        if isinstance(rows, str | bytes) or not isinstance(rows, Sequence):
            raise TypeError(f"`rows` must be a list of dicts, got {type(rows).__name__}.")
        names = self.column_names
        for place, row in enumerate(rows):
            number = place if items is None else items[place]
            if not isinstance(row, Mapping):
                raise TypeError(f"a row must be a dict, got {short(row)} at item {number}.")
            absent = [name for name in names if name not in row]
            if absent:
                given = [str(name) for name in row]
                raise ValueError(
                    f"a row must have the column{'s' if absent[1:] else ''} {listed(absent)}, got "
                    f"{listed(given) or 'nothing'} at item {number}{meant(absent[0], given)}: None stands for a "
                    "value that is not known."
                )
        return {name: [row[name] for row in rows] for name in names}

    def _measure(self, numbers: Tensor, features: Tensor, items: Sequence[int]) -> None:
        """Standardise (B, K) numbers, NaN where one is missing, and put them into the features."""
        layout = self._layout
        scaled = ((numbers - layout.means) / layout.scales).float()
        missing = numbers.isnan()
        infinite = scaled.isinf() | (scaled.isnan() & ~missing)
        if bool(infinite.any()):
            row, column = infinite.nonzero()[0].tolist()
            raise ValueError(
                f"column {layout.numbers[column]['name']!r} must hold finite numbers, of a size like those of training, "
                f"got {float(numbers[row, column])} at item {items[row]}: None stands for a number that is not known."
            )
        features[:, layout.number_places] = scaled.nan_to_num(0.0)
        features[:, layout.missing_places] = missing[:, layout.may_lack].float()

    def _places(self, column: dict[str, Any], values: Any, items: Sequence[int]) -> list[int]:
        """Find the feature that is 1 for each of B categories; the last for one that training did not have."""
        known, unseen = self._layout.known[column["name"]], self._layout.size
        read = _category_reader(column)
        given = values.tolist() if hasattr(values, "tolist") else values
        found = [read(value, row, items) for row, value in enumerate(given)]
        places = [known.get(value, unseen) for value in found]
        if unseen in places and column["name"] not in self._warned:
            self._warned.add(column["name"])
            row = places.index(unseen)
            what = "a missing value" if found[row] is None else short(found[row])
            logger.warning(
                "Column %r has %s at item %d, which it did not have in training: such values become zeros, which "
                "say nothing.",
                column["name"], what, items[row],
            )  # fmt: skip
        return places


class _Layout:
    """Where the features of each column are."""

    def __init__(self, columns: Sequence[dict[str, Any]]) -> None:
        self.numbers = [column for column in columns if column["kind"] != "category"]
        self.categories = [column for column in columns if column["kind"] == "category"]
        self.means = torch.tensor([c["mean"] for c in self.numbers], dtype=torch.float64)
        self.scales = torch.tensor([c["scale"] for c in self.numbers], dtype=torch.float64)
        self.may_lack = [k for k, column in enumerate(self.numbers) if column["missing"]]
        self.number_places: list[int] = []
        self.missing_places: list[int] = []
        self.known: dict[str, dict[Any, int]] = {}  # of each column, the place of each category
        self.size = 0
        for column in columns:
            if column["kind"] == "category":
                values = [*column["categories"], *([None] if column["missing"] else [])]
                self.known[column["name"]] = {v: self.size + i for i, v in enumerate(values)}
                self.size += len(values)
                continue
            self.number_places.append(self.size)
            if column["missing"]:
                self.missing_places.append(self.size + 1)
            self.size += 1 + column["missing"]


def is_missing(value: Any) -> bool:
    """Tell whether a cell is empty: None, NaN or pandas' own.

    Example:
        >>> is_missing(None), is_missing(float("nan")), is_missing(0)
        (True, True, False)
    """
    return value is None or type(value).__name__ in _MISSING or (isinstance(value, float) and value != value)  # fmt: skip


def _numbers(column: dict[str, Any], values: Any, items: Sequence[int]) -> Tensor:
    """Read a column of numbers: (B,) float64, NaN where one is missing."""
    kind = getattr(getattr(values, "dtype", None), "kind", None)
    truth = column["kind"] == "truth"
    if kind in ("i", "u", "f") and not truth and values.ndim == 1:  # an array; others are lists
        return torch.as_tensor(values.astype("float64"))
    given = values.tolist() if hasattr(values, "tolist") else values
    if not truth and {*map(type, given)} <= {float}:
        return torch.tensor(given, dtype=torch.float64)
    read = [_number(column["name"], truth, value, row, items) for row, value in enumerate(given)]
    return torch.tensor(read, dtype=torch.float64)


def _number(name: str, truth: bool, value: Any, row: int, items: Sequence[int]) -> float:
    plain: Any = value.item() if getattr(value, "ndim", 1) == 0 else value
    if is_missing(plain):
        return math.nan
    is_truth = isinstance(plain, bool)
    if truth and isinstance(plain, int | float) and plain in (0, 1):
        return float(plain)
    if not truth and not is_truth and not isinstance(plain, str | bytes):
        try:
            return float(plain)
        except OverflowError:  # a whole number that is larger than any float
            return math.inf
        except (TypeError, ValueError):
            pass
    wanted = "truth values" if truth else "numbers"
    raise ValueError(
        f"column {name!r} must hold {wanted}, as in training, got {short(value)} at item {items[row]}: None stands "
        "for a value that is not known."
    )


def _category_reader(column: dict[str, Any]) -> Callable[[Any, int, Sequence[int]], Any]:
    """Return what turns a cell into a category, or None if it is empty."""
    names, name = column.get("names"), column["name"]
    coded = isinstance(column["categories"][0], int)

    def read(value: Any, row: int, items: Sequence[int]) -> Any:
        if type(value) is str and not coded:
            return value if value.strip() else None
        plain = value.item() if getattr(value, "ndim", 1) == 0 else value
        whole = isinstance(plain, int | float) and not isinstance(plain, bool) and plain % 1 == 0
        if is_missing(plain) or (names is not None and whole and plain == -1):
            return None
        if coded and whole:
            return int(plain)
        if names is not None and whole and 0 <= plain < len(names):
            return names[int(plain)]
        if isinstance(plain, str) and not coded:
            return str(plain) if plain.strip() else None
        wanted = "whole numbers, which stand for categories" if coded else "text"
        if names is not None:
            wanted = f"the name or the number of one of {len(names)} classes"
        raise ValueError(
            f"column {name!r} must hold {wanted}, as in training, got {short(value)} at item {items[row]}: None "
            "stands for a value that is not known."
        )

    return read


def _is_column(value: Any) -> bool:
    if isinstance(value, str | bytes):
        return False
    return isinstance(value, Sequence) or getattr(value, "ndim", 0) >= 1


def _checked(column: Any, place: int) -> dict[str, Any]:
    """Check a column's description, which may have been written by hand."""
    where = f"`columns` must describe each column, got at place {place}"
    if not isinstance(column, Mapping):
        raise ValueError(f"{where} {short(column)}: it is no dict.")
    name, kind = column.get("name"), column.get("kind")
    if not isinstance(name, str) or kind not in KINDS:
        raise ValueError(f"{where} {short(column)}: it needs a `name`, and a `kind` of {listed(KINDS)}.")  # fmt: skip
    if not isinstance(column.get("missing"), bool):
        raise ValueError(f"{where} ({name!r}) no `missing`, true or false.")
    if kind == "category":
        categories: Any = column.get("categories")
        kinds = {*map(type, categories)} if isinstance(categories, list) else {None}
        if kinds not in ({str}, {int}) or len({*categories}) < len(categories):
            raise ValueError(f"{where} ({name!r}) {short(categories)} for a list of different `categories`.")  # fmt: skip
        return dict(column)
    for field in ("mean", "scale"):
        value: Any = column.get(field)
        if type(value) not in (int, float) or not math.isfinite(value) or (field == "scale" and value <= 0):  # fmt: skip
            raise ValueError(f"{where} ({name!r}) {short(value)} for its `{field}`.")
    return dict(column)


__all__ = ["KINDS", "TableProcessor", "is_missing"]
