"""Named data sets of pictures: CIFAR-10, Dogs vs. Cats and LUNA16 (paper, Section 4).

This module turns the usual layouts of their files into a `DatasetDict`, and reads the human labels of
CIFAR-10N. LabelMe, which comes with its crowd, is in `sources.py`; the paper's simulated crowds are in
`experts.py` and `simulation.py`. A class is identified by its name, never by its number in a source.
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    Image,
    List,
    Value,
    concatenate_datasets,
    load_dataset,
)
from transformers.utils import logging

from ..columns import add_annotations, crowd_features, with_columns
from ..readers.read_annotations import read_annotations
from ..simulated.experts import CIFAR10, DOGS_VS_CATS, LUNA16
from .sources import read_array, whole_numbers

logger = logging.get_logger(__name__)

_SPLITS = ("train", "test")
_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
_BATCHES = "cifar-10-batches-py"  # the folder in the published archive of CIFAR-10
_KAGGLE = re.compile(r"(cat|dog)\.(\d+)\.jpe?g", re.IGNORECASE)
_USUAL = "`train.parquet` and `test.parquet` (image, label), or train/<class>/ and test/<class>/"


class _Source(NamedTuple):
    """A data set: its classes, where to get it, and the layouts of files that are read."""

    name: str
    classes: tuple[str, ...]
    sizes: tuple[int, int]  # of the paper's training and test set
    hub: str | None
    origin: str
    layouts: str


_CIFAR10 = _Source(
    "CIFAR-10",
    CIFAR10,
    (50_000, 10_000),
    "uoft-cs/cifar10",
    "https://www.cs.toronto.edu/~kriz/cifar.html (the Python version)",
    f"the folder {_BATCHES}, or {_USUAL}",
)
_DOGS_VS_CATS = _Source(
    "Dogs vs. Cats",
    DOGS_VS_CATS,
    (12_500, 12_500),
    "microsoft/cats_vs_dogs",
    "https://www.kaggle.com/c/dogs-vs-cats/data (train.zip)",
    f"Kaggle's train/cat.0.jpg ... train/dog.12499.jpg, or {_USUAL}",
)
_LUNA16 = _Source(
    "LUNA16",
    LUNA16,
    (6_484, 1_622),
    None,
    "https://luna16.grand-challenge.org and make the patches by `recipes/prepare_luna16.py`",
    _USUAL,
)


def cifar10(
    data_dir: str | os.PathLike[str] | None = None,
    *,
    content: Literal["images", "features"] = "images",
) -> DatasetDict:
    """Load CIFAR-10: 60,000 pictures, 32 x 32 in colour, of ten classes.

    Krizhevsky, "Learning multiple layers of features from tiny images", 2009. Its authors ask to be
    cited and state no licence.

    Items are in the original order, which the human labels of CIFAR-10N and CIFAR-10H need. Only a
    folder of pictures by class does not record that order.

    Args:
        data_dir: A folder with `train.parquet` and `test.parquet`; with `cifar-10-batches-py` (or
            that folder itself), whose files are opened only if their MD5 sums are the published
            ones; or with `train/<class>/` and `test/<class>/`. For features: with
            `features_*_{train,test}.npy`, (N, D) floats, and `labels_{train,test}.txt`, N lines
            with the published class numbers. None: from the Hub, `uoft-cs/cifar10`.
        content: What represents an item: `"images"`, or precomputed `"features"`.

    Returns:
        The splits `train` and `test` with the columns `image`, or `features` (D float32), and
        `label` (gold, classes in the order of `hf_maxmig.data.simulated.experts.CIFAR10`).

    Raises:
        ValueError: If a file is malformed or files disagree, classes are not CIFAR-10's or have no
            names, or `content` is unknown.
        FileNotFoundError: If the data are not in `data_dir`.
        ConnectionError: If the Hub cannot be reached and the data are not in its cache.
    """
    if content not in ("images", "features"):
        raise ValueError(f"`content` must be 'images' or 'features', got {content!r}.")
    if content == "features":
        if data_dir is None:
            raise ValueError(
                "`data_dir` must be a folder with features_*_train.npy, features_*_test.npy, "
                "labels_train.txt and labels_test.txt for `content='features'`, got None."
            )
        return _checked(_features(_folder(data_dir, _CIFAR10)), _CIFAR10)
    if data_dir is None:
        data = _from_hub(_CIFAR10)
        return _checked({split: data[split] for split in _SPLITS}, _CIFAR10)
    folder = _folder(data_dir, _CIFAR10)
    batches = folder if folder.name == _BATCHES else folder / _BATCHES
    splits = _batches(batches) if batches.is_dir() else _splits(folder, _CIFAR10)
    return _checked(splits, _CIFAR10)


def cifar10n(data: DatasetDict, path: str | os.PathLike[str]) -> DatasetDict:
    """Add three human labels to each training item of CIFAR-10.

    Wei et al., "Learning with noisy labels revisited", ICLR 2022 (CC BY-NC 4.0),
    http://noisylabels.com. 747 workers gave the labels, but the published worker ids do not belong to
    them. So the three places `random_label1` to `random_label3` are taken as three annotators.

    The file identifies items only by their position. The gold labels in the file and in `data` are
    compared to verify that order and class numbers agree; they are not used for anything else.

    Args:
        data: The result of `cifar10`, its training items in the original order.
        path: `CIFAR-10_human.pt`.

    Returns:
        The data with crowd columns, which are empty for the test items.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is malformed or belongs to other items.
    """
    votes = read_annotations(path, "cifar_n")
    train, columns = data["train"], votes.with_format("numpy")[:]
    items, first = np.unique(columns["item"], return_index=True)
    if len(items) != len(train):
        raise ValueError(
            f"{path} must be of the training items, N = {len(train)}, got {len(items)}: its labels "
            "belong to all of CIFAR-10's."
        )
    gold, clean = np.asarray(train.with_format(None)["label"][:]), columns["gold"][first]
    if len(other := np.flatnonzero(gold != clean)):
        raise ValueError(
            f"{path} must have the gold labels of the training items, in their order, got others "
            f"for {len(other)} of {len(gold)}, first at item {other[0]}: load CIFAR-10 in its "
            f"original order, from the Hub or from {_BATCHES}."
        )
    classes = train.features["label"].names
    votes = votes.remove_columns("gold").cast_column("annotation", ClassLabel(names=classes))
    train = train.add_column("item", np.arange(len(train)))
    train = add_annotations(train, votes, item_column="item").remove_columns("item")
    nothing: list[list[int]] = [[]] * len(data["test"])
    schema = crowd_features(train.features["annotators"].feature.names, classes)
    empty = Dataset.from_dict(dict.fromkeys(schema, nothing), features=schema)
    return DatasetDict(train=train, test=concatenate_datasets([data["test"], empty], axis=1))


def dogs_vs_cats(data_dir: str | os.PathLike[str] | None = None) -> DatasetDict:
    """Load Dogs vs. Cats: 25,000 photographs, half of them to train, half to test.

    Elson et al., "Asirra", CCS 2007; Kaggle, 2013 (the rules of its competition). The paper's division
    is not published, so the halves are drawn by a fixed seed: the same files give the same halves. The
    Hub's copy is Microsoft's, with 23,410 readable pictures, divided in the same way.

    Args:
        data_dir: A folder with Kaggle's `train/cat.0.jpg` ... `train/dog.12499.jpg` (or that folder
            itself); with `train.parquet` and `test.parquet`; or with `train/<class>/` and
            `test/<class>/`. None: from the Hub, `microsoft/cats_vs_dogs`.

    Returns:
        The splits `train` and `test` with the columns `image` and `label` (gold; cat, dog).

    Raises:
        ValueError: If a file is malformed, or its classes are others or have no names.
        FileNotFoundError: If the data are not in `data_dir`.
        ConnectionError: If the Hub cannot be reached and the data are not in its cache.
    """
    if data_dir is None:
        return _checked(_halves(_from_hub(_DOGS_VS_CATS)["train"]), _DOGS_VS_CATS)
    folder = _folder(data_dir, _DOGS_VS_CATS)
    kaggle = _kaggle(folder)
    return _checked(
        _splits(folder, _DOGS_VS_CATS) if kaggle is None else _halves(kaggle), _DOGS_VS_CATS
    )


def luna16(data_dir: str | os.PathLike[str]) -> DatasetDict:
    """Load patches of LUNA16: 50 x 50 in grey, cut out of CT scans of the lung.

    Setio et al., "Validation, comparison, and combination of algorithms for automatic detection of
    pulmonary nodules", Medical Image Analysis 2017 (CC BY 4.0). `recipes/prepare_luna16.py` cuts the
    patches out of the scans. The paper's class "malignant" is LUNA16's "nodule".

    Args:
        data_dir: A folder with `train.parquet` and `test.parquet`, or with
            `train/{benign,malignant}/` and `test/{benign,malignant}/`.

    Returns:
        The splits `train` and `test` with the columns `image` and `label` (gold; benign,
        malignant).

    Raises:
        ValueError: If a file is malformed, or classes are others or have no names.
        FileNotFoundError: If the data are not in `data_dir`.
    """
    return _checked(_splits(_folder(data_dir, _LUNA16), _LUNA16), _LUNA16)


# Finding the data


def _folder(data_dir: str | os.PathLike[str], source: _Source) -> Path:
    folder = Path(data_dir).expanduser().absolute()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"`data_dir` must be a folder with {source.name}, got {folder}: "
            f"{'it is a file' if folder.exists() else 'it does not exist'}. Get the data from "
            f"{source.origin}, in one of these layouts: {source.layouts}."
        )
    return folder


def _from_hub(source: _Source) -> dict[str, Dataset]:
    """Load the data set from the Hub, with our column names."""
    try:
        data = load_dataset(str(source.hub))
    except OSError as cause:  # offline, unreachable, or an error as the answer
        raise ConnectionError(
            f"{source.name} must come from the Hub, {source.hub}, got '{cause}': be online, without "
            f"HF_HUB_OFFLINE; or get it from {source.origin} and pass its folder as `data_dir`, "
            f"with {source.layouts}."
        ) from cause
    return {
        split: _named(rows, source.classes, f"{source.hub}, {split}")
        for split, rows in data.items()
    }


def _splits(folder: Path, source: _Source) -> dict[str, Dataset]:
    """Read the layouts that all data sets share."""
    files = [folder / f"{split}.parquet" for split in _SPLITS]
    if all(file.is_file() for file in files):
        # One by one: read together, the second would get the class names of the first.
        rows = [_named(Dataset.from_parquet(str(f)), source.classes, str(f)) for f in files]
        return dict(zip(_SPLITS, rows, strict=True))
    if all((folder / split).is_dir() for split in _SPLITS):
        return {split: _class_folders(folder / split, source.classes) for split in _SPLITS}
    names = sorted(path.name for path in folder.iterdir())
    raise FileNotFoundError(
        f"`data_dir` must hold {source.name} as {source.layouts}, got {folder} with "
        f"{', '.join(names[:5]) or 'nothing'}{' ...' if len(names) > 5 else ''}: get it from "
        f"{source.origin}."
    )


# From files to columns


def _named(rows: Dataset, classes: Sequence[str], where: str) -> Dataset:
    """Rename a table's columns to ours, and number its classes as we do, by their names."""
    ours = {"image": ("image", "img"), "label": ("label", "labels")}
    theirs = {}
    for column, words in ours.items():
        found = [word for word in words if word in rows.column_names]
        if len(found) != 1:
            raise ValueError(
                f"{where} must have a column `{column}`, got {', '.join(rows.column_names)}."
            )
        theirs[found[0]] = column
    rows = rows.select_columns(list(theirs)).rename_columns(theirs)
    if not isinstance(rows.features["image"], Image):
        rows = rows.cast_column("image", Image())
    if rows.features["label"] in (Value("string"), Value("large_string")):
        rows = rows.class_encode_column("label")
    label = rows.features["label"]
    if not isinstance(label, ClassLabel):
        raise ValueError(
            f"{where}: `label` must be a ClassLabel or text, got {label}: a number without a name "
            "could be any class."
        )
    _check_names(label.names, classes, where)
    number = {name.casefold(): c for c, name in enumerate(classes)}
    column = rows.with_format("arrow")["label"][:]
    values = np.asarray(column.fill_null(-1))
    if (values < 0).any():
        item = int((values < 0).argmax())
        raise ValueError(f"{where} must have a label for each item, got none at item {item}.")
    if list(label.names) == list(classes):
        return rows
    values = np.array([number[name.casefold()] for name in label.names])[values]
    schema = Features(label=ClassLabel(names=list(classes)))
    return with_columns(rows, schema, {"label": pa.array(values)})


def _class_folders(root: Path, classes: Sequence[str]) -> Dataset:
    """Read pictures from one folder per class."""
    there = {path.name: path for path in _visible(root) if path.is_dir()}
    _check_names(there, classes, str(root))
    folders = {name.casefold(): path for name, path in there.items()}
    found = [
        [path for path in _visible(folders[name.casefold()]) if path.suffix.lower() in _SUFFIXES]
        for name in classes
    ]
    labels = np.repeat(np.arange(len(classes)), [len(paths) for paths in found])
    return _pictures([str(path) for paths in found for path in paths], labels, classes)


def _kaggle(folder: Path) -> Dataset | None:
    """Read `cat.0.jpg` ... `dog.12499.jpg`, in this order; None if there are no such files."""
    for root in (folder, folder / "train", folder / "train" / "train"):
        paths = _visible(root) if root.is_dir() else []
        found = {path: match for path in paths if (match := _KAGGLE.fullmatch(path.name))}
        if found:
            labels = {p: DOGS_VS_CATS.index(match[1].lower()) for p, match in found.items()}
            order = sorted(found, key=lambda path: (labels[path], int(found[path][2])))
            return _pictures([str(p) for p in order], [labels[p] for p in order], DOGS_VS_CATS)
    return None


def _batches(folder: Path) -> dict[str, Dataset]:
    """Read the published pickles, after checking that they are those: unpickling a file can run code."""
    from torchvision import datasets as published  # slow to import

    out = {}
    for split in _SPLITS:
        try:
            batches = published.CIFAR10(folder.parent, train=split == "train", download=False)
        except RuntimeError as cause:
            raise ValueError(
                f"{folder} must hold the published files, whose MD5 sums are known, got others or too "
                f"few: none was opened; get them again from {_CIFAR10.origin}."
            ) from cause
        rows = _pictures(list(batches.data), batches.targets, batches.classes)
        out[split] = _named(rows, CIFAR10, f"{folder}, {split}")
    return out


def _features(folder: Path) -> dict[str, Dataset]:
    """Read precomputed features, and labels as the published class numbers."""
    kinds = [
        {path.name.removesuffix(f"_{split}.npy") for path in folder.glob(f"features_*_{split}.npy")}
        for split in _SPLITS
    ]
    if len(kinds[0]) != 1 or kinds[0] != kinds[1]:
        got = ", ".join(sorted(path.name for path in folder.glob("features_*.npy")))
        raise FileNotFoundError(
            "`data_dir` must hold one features_*_train.npy and the features_*_test.npy of the same "
            f"name, got {folder} with {got or 'none'}."
        )
    (kind,), out, widths = kinds[0], {}, {}
    for split in _SPLITS:
        labels = whole_numbers(folder / f"labels_{split}.txt", 0, len(CIFAR10) - 1).ravel()
        values = read_array(path := folder / f"{kind}_{split}.npy")
        if values.ndim != 2 or values.dtype.kind != "f" or len(values) != len(labels):
            raise ValueError(
                f"{path} must be floats (N, D), a row for each line of labels_{split}.txt, "
                f"N = {len(labels)}, got {values.dtype} {values.shape}."
            )
        widths[split] = values.shape[1]
        schema = Features(
            features=List(Value("float32"), length=widths[split]),
            label=ClassLabel(names=list(CIFAR10)),
        )
        table = {"features": values.astype(np.float32), "label": labels}
        out[split] = Dataset.from_dict(table, features=schema)
    if widths["train"] != widths["test"]:
        raise ValueError(
            f"features in {folder} must have one length D in both splits, got {widths}."
        )
    return out


def _pictures(pictures: list, labels: Iterable[int], classes: Sequence[str]) -> Dataset:
    """Make a table of paths, or of arrays, and labels."""
    schema = Features(image=Image(), label=ClassLabel(names=list(classes)))
    return Dataset.from_dict({"image": pictures, "label": list(labels)}, features=schema)


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _halves(rows: Dataset) -> dict[str, Dataset]:
    """Draw half of the items for training and half for the test, by a fixed seed."""
    return dict(rows.train_test_split(test_size=0.5, seed=0))


# Checks


def _check_names(names: Iterable[str], classes: Sequence[str], where: str) -> None:
    got = list(names)
    if sorted(name.casefold() for name in got) != sorted(name.casefold() for name in classes):
        raise ValueError(
            f"{where} must name the {len(classes)} classes {', '.join(classes)}, in any order, got "
            f"{', '.join(got) or 'none'}."
        )


def _checked(data: dict[str, Dataset], source: _Source) -> DatasetDict:
    """Check that each class occurs in each split, and log if the data set is not complete."""
    for split, rows in data.items():
        counts = np.bincount(rows.with_format("numpy")["label"][:], minlength=len(source.classes))
        if not counts.all():
            raise ValueError(
                f"{source.name}, {split}, must have items of each class, got none of "
                f"'{source.classes[int(counts.argmin())]}' among {len(rows)}."
            )
    got = tuple(len(data[split]) for split in _SPLITS)
    if got != source.sizes:
        logger.warning(
            "%s: %d items to train and %d to test, the paper's has %d and %d.",
            source.name,
            *got,
            *source.sizes,
        )
    return DatasetDict({split: data[split] for split in _SPLITS})
