"""The user's own pictures and votes: from a folder and a file to a classifier that is ready to train.

Pictures are a folder or any data set of the Hub. Votes are a file in any form that
`read_annotations` knows. The classifier is any model of the Hub or of timm, or one of this package by
its type. Gold labels, if the pictures have them, only measure results. The training itself is in
`runs.py`.
"""

import difflib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
from datasets import ClassLabel, Dataset, DatasetDict, Image, load_dataset
from torch import nn
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    ViTImageProcessor,
    set_seed,
)

from ..data.columns import add_annotations
from ..data.features import frozen_features
from ..data.readers.read_annotations import read_annotations
from ..model.class_lists import in_order, is_numbered, same_names
from ..model.classifiers import CLASSIFIERS
from ..model.heads import HeadClassifier
from ..model.surgery import output_layers
from ..sharing.processors import portable_processor
from ..training.training_args import MaxMIGTrainingArguments
from .flags import one_line
from .runs import Recipe

logger = logging.getLogger(__name__)


@dataclass
class VotesForm:
    """The form and the columns of the votes."""

    votes_format: str | None = field(
        default=None, metadata={"help": "Form of the votes; detected by default."}
    )
    votes_item: str | None = field(
        default=None,
        metadata={"help": "Column of the votes that names the picture, if not detected."},
    )
    votes_annotator: str | None = field(
        default=None, metadata={"help": "Column of the votes that names the annotator."}
    )
    votes_annotation: str | None = field(
        default=None, metadata={"help": "Column of the votes that names the class."}
    )
    votes_gold: str | None = field(
        default=None, metadata={"help": "Column of the votes with gold labels."}
    )

    def read(self, source: str) -> Dataset:
        """Read the votes of a file or a folder.

        Raises:
            FileNotFoundError: if it does not exist.
            ValueError: if it holds no votes, or their form is not recognised.
        """
        check_votes(source)
        return read_annotations(
            source, self.votes_format, item=self.votes_item, annotator=self.votes_annotator,
            annotation=self.votes_annotation, gold=self.votes_gold,
        )  # fmt: skip


@dataclass
class DataArguments(VotesForm):
    """Pictures and votes."""

    votes: str = field(
        kw_only=True,
        metadata={
            "help": "File or folder of votes: a table (CSV, TSV, JSON, Parquet) with a vote a row or a column an "
            "annotator, or what Label Studio, Argilla, doccano or MTurk export."
        },
    )
    dataset_name: str | None = field(
        default=None, metadata={"help": "A data set of the Hub.", "metavar": "NAME"}
    )
    dataset_config_name: str | None = field(
        default=None, metadata={"help": "Which configuration of the data set."}
    )
    train_split: str = field(default="train", metadata={"help": "Split that the votes are about."})
    test_split: str | None = field(
        default=None, metadata={"help": "Split with gold labels to measure on."}
    )
    train_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder of pictures, in subfolders or not, instead of a data set.",
            "metavar": "DIR",
        },
    )
    test_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder of pictures to measure on, with a subfolder for each gold class.",
            "metavar": "DIR",
        },
    )
    image_column: str = field(default="image", metadata={"help": "Column of pictures."})
    label_column: str = field(default="label", metadata={"help": "Column of gold labels, if any."})
    item_column: str | None = field(
        default=None,
        metadata={"help": "Column the votes refer to; the pictures' file names by default."},
    )
    max_unknown_share: float = field(
        default=0.0, metadata={"help": "Share of votes that may refer to missing pictures."}
    )

    def __post_init__(self) -> None:
        if not 0 <= self.max_unknown_share <= 1:
            raise ValueError(
                f"`--max_unknown_share` must lie in 0..1, got {self.max_unknown_share}."
            )


@dataclass
class ModelArguments:
    """The classifier."""

    model_name_or_path: str = field(
        metadata={
            "help": "A model of the Hub or in a folder, a name of timm, or one of ours from "
            f"scratch: {', '.join(CLASSIFIERS)}.",
            "metavar": "MODEL",
        }
    )
    freeze_backbone: bool = field(
        default=False,
        metadata={"help": "Train only a head, on features that are computed once."},
    )
    image_size: int | None = field(
        default=None, metadata={"help": "Side of the pictures, for a model of ours from scratch."}
    )

    def __post_init__(self) -> None:
        if self.image_size is not None and self.model_name_or_path not in CLASSIFIERS:
            raise ValueError(
                f"`--image_size` must only be given for {', '.join(CLASSIFIERS)}, got it for "
                f"{self.model_name_or_path}: its image processor says which size it takes."
            )
        if self.image_size is not None and self.image_size < 1:
            raise ValueError(f"`--image_size` must be at least 1, got {self.image_size}.")


@dataclass
class ImageClassificationTrainingArguments(MaxMIGTrainingArguments):
    """What differs from the defaults."""

    output_dir: str | None = field(
        default=None,
        metadata={"help": "Folder for the model, its card and its report.", "metavar": "DIR"},
    )
    push_to_hub: bool = field(
        default=False,
        metadata={"help": "Share the model and its card on the Hub, without the report."},
    )
    num_train_epochs: float = field(
        default=15, metadata={"help": "How often each picture is seen.", "metavar": "NUMBER"}
    )
    logging_strategy: str = "epoch"  # a point an epoch on the curve of the report
    save_strategy: str = "no"


def check_votes(place: str) -> None:
    """Raise if the votes do not exist."""
    if not Path(place).exists():
        raise FileNotFoundError(
            f"`--votes` must be a file or folder of votes, got {place!r}: there is none."
        )


def check_places(arguments: DataArguments) -> None:
    """Raise before anything is read if the place of the pictures is not given or does not exist."""
    if (arguments.train_dir is None) == (arguments.dataset_name is None):
        raise ValueError(
            "pictures must be given by `--train_dir` or `--dataset_name`, got "
            f"{'neither' if arguments.train_dir is None else 'both'}."
        )
    if arguments.test_split is not None and arguments.dataset_name is None:
        raise ValueError(
            "`--test_split` must come with `--dataset_name`, got none: a folder of test pictures is "
            "`--test_dir`."
        )
    for name in ("train_dir", "test_dir"):
        folder = getattr(arguments, name)
        if folder is not None and not Path(folder).is_dir():
            what = "a file" if Path(folder).exists() else "none"
            raise FileNotFoundError(
                f"`--{name}` must be a folder of pictures, got {folder!r}: there is {what}."
            )


def pictures(arguments: DataArguments, test: bool = False) -> Dataset:
    """Load the pictures, with their gold labels in `label` if they have any."""
    check_places(arguments)
    folder = arguments.test_dir if test else arguments.train_dir
    split = arguments.test_split if test else arguments.train_split
    try:
        if folder is not None:
            files = {"train": str(Path(folder).resolve() / "**")}  # whatever the folders are called
            dataset = load_dataset("imagefolder", data_files=files, split="train")
        else:
            name = arguments.dataset_name
            dataset = load_dataset(name, arguments.dataset_config_name, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        where = f"{arguments.dataset_name}, split {split!r}" if folder is None else folder
        raise ValueError(
            f"{where} must be a data set of pictures, got: {one_line(error)}"
        ) from error
    for name in (arguments.image_column, *([arguments.item_column] if not test else [])):
        if name is not None and name not in dataset.column_names:
            raise ValueError(
                f"the pictures must have a column {name!r}, got {', '.join(dataset.column_names)}."
            )
    if arguments.label_column in dataset.column_names and arguments.label_column != "label":
        dataset = dataset.rename_column(arguments.label_column, "label")
    return dataset


def named_items(dataset: Dataset, votes: Dataset, image_column: str) -> tuple[Dataset, str]:
    """Name the pictures by their files: the path below the folder, the file name, or that without its ending.

    All three are usual; the one that matches most votes is chosen.
    """
    files = dataset.cast_column(image_column, Image(decode=False))[image_column]
    named: list[Any] = [file["path"] or None for file in files]
    if None in named:
        raise ValueError(
            "the pictures must have file names for the votes to refer to, got none for item "
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
            "the pictures must have different file names for the votes to refer to, got the same "
            "for several: name a column with `--item_column`."
        )
    way = max(unique, key=lambda way: len(voted & {*unique[way]}))
    names = unique[way]
    logger.warning(
        "Pictures are named by their %s, such as %r: %d of the %d items with votes are there.",
        way, names[0], len(voted & {*names}), len(voted),
    )  # fmt: skip
    return dataset.add_column("file_name", names), "file_name"


def _shared_parts(paths: list[tuple[str, ...]]) -> list[str]:
    """Folders that all paths have in common."""
    shared = []
    for parts in zip(*(path[:-1] for path in paths), strict=False):
        if len({*parts}) > 1:
            break
        shared.append(parts[0])
    return shared


def with_votes(
    images: Dataset, votes: Dataset, arguments: DataArguments, classes: list[str] | None = None
) -> Dataset:
    """Join the votes; by default, the classes are those of the gold labels if the votes name no others."""
    item_column = arguments.item_column
    if item_column is None:
        images, item_column = named_items(images, votes, arguments.image_column)
    gold = images.features.get("label")
    if isinstance(gold, ClassLabel):
        other = sorted({str(name) for name in votes.unique("annotation")} - {None, *gold.names})
        if other:
            logger.warning(
                "The votes name %s, but the pictures' `label` only has %s: it is not a gold label of "
                "these classes, and is left out.",
                ", ".join(map(repr, other[:5])), ", ".join(map(repr, gold.names[:5])),
            )  # fmt: skip
            images = images.remove_columns("label")
        else:
            classes = classes or gold.names
    return add_annotations(
        images, votes, item_column, classes=classes, max_unknown_share=arguments.max_unknown_share
    )


def with_gold(images: Dataset, classes: list[str]) -> Dataset:
    """Number the gold labels of the test pictures as the votes' classes are."""
    gold = images.features.get("label")
    if not isinstance(gold, ClassLabel) or {*gold.names} - {*classes}:
        raise ValueError(
            f"the test pictures must have gold labels of the classes {', '.join(classes)}, got "
            f"{', '.join(getattr(gold, 'names', ['none']))}: put them in a subfolder a class, or "
            "name the column by `--label_column`."
        )
    number = [classes.index(name) for name in gold.names]
    labels = [None if c is None or c < 0 else number[c] for c in images["label"]]
    images = images.remove_columns("label")
    return images.add_column("label", labels, feature=ClassLabel(names=classes))


def whole_classifier(arguments: ModelArguments, names: dict[int, str]) -> tuple[nn.Module, Any]:
    """Load a classifier to be trained in all layers, with a new output layer.

    A classifier with exactly these classes keeps its output layer: the trainer matches them by name.
    """
    name = arguments.model_name_or_path
    if name in CLASSIFIERS:
        config_class, model_class = CLASSIFIERS[name]
        config = config_class(id2label=names)
        if arguments.image_size is not None:
            config.image_size = arguments.image_size
        side = getattr(config, "image_size", 32)
        return model_class(config), ViTImageProcessor(size={"height": side, "width": side})
    name = hub_name(name)
    own, classes = in_order(AutoConfig.from_pretrained(name).id2label), list(names.values())
    known = same_names(own, classes)
    called = {"id2label": names, "label2id": {label: c for c, label in names.items()}}
    classifier = AutoModelForImageClassification.from_pretrained(
        name, num_labels=len(names), ignore_mismatched_sizes=True, **({} if known else called)
    )
    if len(own) == len(classes) and not known and not is_numbered(own):
        logger.warning("%s has as many classes, but others: its output layer starts anew.", name)
        for layer in output_layers(classifier, len(classes))[-1:]:
            layer.reset_parameters()
    return classifier, AutoImageProcessor.from_pretrained(name)


def hub_name(name: str) -> str:
    """Return the name on the Hub of a model that is given by its timm name."""
    if "/" in name or Path(name).exists() or not timm.is_model(name):
        return name
    return timm.get_pretrained_cfg(name).hf_hub_id or name


def check_model(arguments: ModelArguments) -> None:
    """Raise before anything is read if there is no such model."""
    name = arguments.model_name_or_path
    if name in CLASSIFIERS:
        if arguments.freeze_backbone:
            raise ValueError(
                f"`--freeze_backbone` must come with a pretrained model, got {name}: it starts from "
                "scratch."
            )
        return
    try:
        AutoConfig.from_pretrained(hub_name(name))
    except (OSError, ValueError) as error:
        near = difflib.get_close_matches(name, [*CLASSIFIERS, *timm.list_models()], n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(
            f"`--model_name_or_path` must be a model, got {name!r}{hint}: {one_line(error, 300)}"
        ) from error


def recipe(
    data: DataArguments, model: ModelArguments, training: ImageClassificationTrainingArguments
) -> Recipe:
    """Read pictures and votes, and load the classifier; raise before reading if something is missing.

    Args:
        data: where pictures and votes are.
        model: which classifier.
        training: the arguments of the training.

    Returns:
        The argument of `run`.

    Raises:
        FileNotFoundError: if the votes or a folder of pictures do not exist.
        ValueError: if pictures are given twice or not at all, if a column or the model does not exist, or
            if votes and pictures do not match.
    """
    check_places(data)
    check_votes(data.votes)
    check_model(model)
    set_seed(training.seed)
    with training.main_process_first(desc="votes and pictures"):
        train = with_votes(pictures(data), data.read(data.votes), data)
        annotators, classes = (
            train.features[column].feature.names for column in ("annotators", "annotations")
        )
        has_test = data.test_dir is not None or data.test_split is not None
        test = with_gold(pictures(data, test=True), classes) if has_test else None
    names = dict(enumerate(classes))
    classifier: nn.Module
    if model.freeze_backbone:
        name = hub_name(model.model_name_or_path)
        processor = portable_processor(AutoImageProcessor.from_pretrained(name))
        splits = {"train": train} if test is None else {"train": train, "test": test}
        with training.main_process_first(desc="features"):
            splits, encoder = frozen_features(
                DatasetDict(splits), name, processor, data.image_column
            )
        train, test = splits["train"], splits.get("test")
        size = len(train[0]["features"])
        classifier = HeadClassifier.from_encoder(encoder, input_size=size, id2label=names)
    else:
        classifier, processor = whole_classifier(model, names)
    return Recipe(
        classifier=classifier,
        training=training,
        train=train,
        test=test,
        processor=processor,
        report=True,
        setting={
            "votes": Path(data.votes).name,
            "annotators": len(annotators),
            "model": model.model_name_or_path,
            "freeze_backbone": model.freeze_backbone,
        },
    )
