"""The user's own items and votes: from two files to a classifier that is ready to train.

Items are pictures, texts, sounds or rows of a table: a folder, a file or a data set of the Hub. Votes are a
file in any form that `read_annotations` knows. The classifier is any model of the Hub or of timm, or one of
this package by its type. Gold labels, if the items have them, only measure results. The training itself is in
`runs.py`.
"""

import difflib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import timm
from datasets import Dataset, DatasetDict
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoTokenizer,
    PreTrainedModel,
    ViTImageProcessor,
    set_seed,
)

from ..data.features import frozen_features
from ..data.tables import RESERVED, fitted_table_processor
from ..model.class_lists import in_order, is_numbered, same_names
from ..model.classifiers import CLASSIFIERS, VGG16, FourLayerCNN
from ..model.heads import (
    AudioHeadClassifier,
    HeadClassifier,
    TableClassifier,
    TableConfig,
    TextHeadClassifier,
)
from ..model.surgery import output_layers
from ..model.wrapping import AUTO_CLASSES
from ..sharing.processors import portable_processor
from ..training.training_args import MaxMIGTrainingArguments
from .content import Content, check_column, content_of, same_content
from .flags import one_line
from .items import (
    TASKS,
    WORDS,
    ItemColumns,
    Modality,
    check_votes,
    read_folder,
    read_hub,
    read_table,
    with_label,
)
from .joining import matching_column, with_gold, with_names, with_votes
from .processing import set_length, with_inputs
from .runs import Recipe

logger = logging.getLogger(__name__)

HEAD_RATE = 1e-3
# Epochs and rate of a network that learns in all its layers. Those of texts and sounds are pretrained, and large rates
# would make them forget it.
WHOLE = {"image": (15, HEAD_RATE), "text": (3, 5e-5), "audio": (3, 5e-5)}

# Those that need no pretrained part.
OURS = {
    name: (config, model)
    for name, (config, model) in CLASSIFIERS.items()
    if model in (FourLayerCNN, VGG16, TableClassifier)
}
_HEADS: dict[str, Any] = {
    "image": HeadClassifier,
    "text": TextHeadClassifier,
    "audio": AudioHeadClassifier,
}
_PROCESSORS: dict[str, Any] = {
    "image": AutoImageProcessor,
    "text": AutoTokenizer,
    "audio": AutoFeatureExtractor,
}


@dataclass
class DataArguments(ItemColumns):
    """Items and votes."""

    votes: str = field(
        kw_only=True,
        metadata={
            "help": "File or folder of votes: a table (CSV, TSV, JSON, Parquet) with one vote per row or one column per "
            "annotator, or what Label Studio, Argilla, doccano or MTurk export."
        },
    )
    train_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder of pictures or sounds that the votes are about, in subfolders or not.",
            "metavar": "DIR",
        },
    )
    train_file: str | None = field(
        default=None,
        metadata={
            "help": "Table with an item per row, instead of a folder: CSV, TSV, JSON, JSON lines or Parquet, with texts, "
            "with paths of pictures or sounds, or with numbers and categories.",
            "metavar": "FILE",
        },
    )
    dataset_name: str | None = field(
        default=None,
        metadata={"help": "A data set of the Hub, instead of either.", "metavar": "NAME"},
    )
    test_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder of items to measure on, with a subfolder for each gold class.",
            "metavar": "DIR",
        },
    )
    test_file: str | None = field(
        default=None,
        metadata={
            "help": "Table of items with gold labels to measure on.",
            "metavar": "FILE",
        },
    )
    task: Modality | None = field(
        default=None,
        metadata={"help": "What the items are, if that is not clear from files or columns."},
    )
    train_split: str = field(default="train", metadata={"help": "Split that the votes are about."})
    test_split: str | None = field(
        default=None, metadata={"help": "Split with gold labels to measure on."}
    )
    show_columns: list[str] | None = field(
        default=None,
        metadata={"help": "Columns of an item that the report shows, in this order."},
    )


@dataclass
class ModelArguments:
    """The classifier."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "A model of the Hub or in a folder, a name of timm, or one of ours from "
            f"scratch: {', '.join(OURS)}. The last one reads tables, and is their default.",
            "metavar": "MODEL",
        },
    )
    freeze_backbone: bool = field(
        default=False,
        metadata={"help": "Train only a head, on features that are computed once."},
    )
    pooling: Literal["mean", "cls", "pooled"] | None = field(
        default=None,
        metadata={
            "help": "With `--freeze_backbone`: how the encoder's output becomes one vector, the mean over all places, the "
            "first place, or the encoder's own way."
        },
    )
    image_size: int | None = field(
        default=None, metadata={"help": "Side of the pictures, for a model of ours from scratch."}
    )

    def __post_init__(self) -> None:
        if self.image_size is not None and self.model_name_or_path not in OURS:
            raise ValueError(
                f"`--image_size` must only be given for {', '.join(OURS)}, got it for "
                f"{self.model_name_or_path}: its image processor says which size it takes."
            )
        if self.pooling is not None and not self.freeze_backbone:
            raise ValueError("`--pooling` must come with `--freeze_backbone`, got none.")
        if self.image_size is not None and self.image_size < 1:
            raise ValueError(f"`--image_size` must be at least 1, got {self.image_size}.")


@dataclass
class ClassificationTrainingArguments(MaxMIGTrainingArguments):
    """What differs from the defaults."""

    output_dir: str | None = field(
        default=None,
        metadata={"help": "Folder for the model, its card and its report.", "metavar": "DIR"},
    )
    push_to_hub: bool = field(
        default=False,
        metadata={"help": "Share the model and its card on the Hub, without the report."},
    )
    num_train_epochs: float | None = field(
        default=None,
        metadata={
            "help": "How often each item is seen. Default: as often as makes 1,500 steps for a head or a table, 15 times "
            "for a whole network of pictures, 3 times of texts or sounds.",
            "metavar": "NUMBER",
        },
    )
    learning_rate: float | None = field(  # type: ignore[assignment]  # settled before the training
        default=None,
        metadata={
            "help": "Learning rate of the classifier. Default: 5e-5 for a whole network of texts or sounds, else 1e-3."
        },
    )
    logging_strategy: str = "epoch"  # a point an epoch on the curve of the report
    save_strategy: str = "no"


def settle(training: ClassificationTrainingArguments, modality: str, whole: bool) -> None:
    """Choose epochs and rate where none are given.

    Args:
        training: the arguments, which are changed.
        modality: of the items.
        whole: whether all layers of a network learn, and not only a head.
    """
    epochs, rate = WHOLE[modality] if whole else (None, HEAD_RATE)
    if training.num_train_epochs is None:
        training.num_train_epochs = epochs  # None: the trainer counts the steps
    if training.learning_rate is None:
        training.learning_rate = rate


def check_places(arguments: DataArguments) -> None:
    """Raise before anything is read if the place of the items is not given or does not exist."""
    places = [n for n in ("train_dir", "train_file", "dataset_name") if getattr(arguments, n)]
    if len(places) != 1:
        got = " and ".join(f"`--{name}`" for name in places) or "none of them"
        raise ValueError(
            f"items must be given by one of `--train_dir`, `--train_file` and `--dataset_name`, got {got}."
        )
    if arguments.test_split is not None and arguments.dataset_name is None:
        raise ValueError(
            "`--test_split` must come with `--dataset_name`, got none: test items are given by `--test_dir` or "
            "`--test_file`."
        )
    tests = [n for n in ("test_dir", "test_file", "test_split") if getattr(arguments, n)]
    if len(tests) > 1:
        raise ValueError(
            f"test items must be given once, got {' and '.join(f'`--{name}`' for name in tests)}."
        )
    for name in ("train_dir", "test_dir"):
        folder = getattr(arguments, name)
        if folder is not None and not Path(folder).is_dir():
            what = "a file" if Path(folder).exists() else "none"
            raise FileNotFoundError(
                f"`--{name}` must be a folder of pictures or sounds, got {folder!r}: there is {what}."
            )
    for name in ("train_file", "test_file"):
        file = getattr(arguments, name)
        if file is not None and not Path(file).is_file():
            what = "a folder" if Path(file).exists() else "none"
            raise FileNotFoundError(
                f"`--{name}` must be a file with an item per row, got {file!r}: there is {what}."
            )


def read_items(
    arguments: DataArguments, test: bool = False, modality: str | None = None
) -> tuple[Dataset, str | None, str | None]:
    """Read the items, with their gold labels in `label` if they have any.

    Args:
        arguments: where they are.
        test: whether those to measure on are read.
        modality: what they are, if it is known.

    Returns:
        The items; what they are, if it is known; the folder where relative paths begin, if there is one.
    """
    kind = "test" if test else "train"
    folder, file = getattr(arguments, f"{kind}_dir"), getattr(arguments, f"{kind}_file")
    modality = modality or arguments.task
    place = None
    if folder is not None:
        dataset, modality = read_folder(folder, modality)
    elif file is not None:
        dataset, place = read_table(file), str(Path(file).parent)
    else:
        split = getattr(arguments, f"{kind}_split")
        dataset = read_hub(arguments.dataset_name or "", arguments.dataset_config_name, split)
    return with_label(dataset, arguments.label_column), modality, place


def voted_items(arguments: DataArguments) -> tuple[Dataset, Content]:
    """Read items and votes and join them; one line says what the items are and where their names stand.

    Args:
        arguments: where they are.

    Returns:
        The items with crowd columns, and what they are.

    Raises:
        ValueError: if something is missing, or could be meant in several ways.
    """
    votes = arguments.read(arguments.votes)
    dataset, modality, place = read_items(arguments)
    check_column(dataset, arguments.item_column)
    item = arguments.item_column or matching_column(dataset, votes)
    dataset, content = content_of(dataset, arguments, modality, place, item)
    dataset, column = with_names(dataset, votes, arguments.item_column)
    content = content.without(column)
    logger.warning("The items are %s; the votes name them as column %r does.", content, column)
    unknown = arguments.max_unknown_share
    return with_votes(dataset, votes, column, max_unknown_share=unknown), content


def test_items(arguments: DataArguments, content: Content, classes: list[str]) -> Dataset | None:
    """Read the items to measure on; None if there are none.

    Args:
        arguments: where they are.
        content: what the others are, and in which columns.
        classes: C names.

    Raises:
        ValueError: if they have other columns, or no gold labels of these classes.
    """
    if not (arguments.test_dir or arguments.test_file or arguments.test_split):
        return None
    dataset, _, place = read_items(arguments, test=True, modality=content.modality)
    return with_gold(same_content(dataset, arguments, content, place), classes)


def whole_classifier(
    name: str,
    names: dict[int, str],
    modality: str,
    processor: Any = None,
    image_size: int | None = None,
) -> PreTrainedModel:
    """Load a classifier of pictures, texts or sounds to be trained in all layers, with a new output layer.

    A classifier with exactly these classes keeps its output layer: the trainer matches them by name.

    Args:
        name: which one.
        names: of the classes, by number.
        modality: what it reads.
        processor: its processor.
        image_size: side of the pictures, for a model of ours.

    Raises:
        ValueError: if the model reads something else.
    """
    if name in OURS:
        config_class, model_class = OURS[name]
        config = config_class(id2label=names)
        if image_size is not None:
            config.image_size = image_size
        return model_class(config)
    name = hub_name(name)
    own, classes = in_order(AutoConfig.from_pretrained(name).id2label), list(names.values())
    known = same_names(own, classes)
    called = {"id2label": names, "label2id": {label: c for c, label in names.items()}}
    try:
        classifier = AUTO_CLASSES[TASKS[modality]].from_pretrained(
            name, num_labels=len(names), ignore_mismatched_sizes=True, **({} if known else called)
        )
    except ValueError as error:
        raise ValueError(
            f"`--model_name_or_path` must be a model that reads {WORDS[modality]}, got {name!r}: {one_line(error, 200)}"
        ) from error
    if len(own) == len(classes) and not known and not is_numbered(own):
        logger.warning("%s has as many classes, but others: its output layer starts anew.", name)
        for layer in output_layers(classifier, len(classes))[-1:]:
            layer.reset_parameters()
    if modality == "text":
        classifier.config.pad_token_id = processor.pad_token_id
    return classifier


def frozen_classifier(
    name: str,
    names: dict[int, str],
    splits: DatasetDict,
    content: Content,
    processor: Any,
    pooling: str | None = None,
) -> tuple[PreTrainedModel, DatasetDict]:
    """Put a head on a frozen encoder, and compute the encoder's features once.

    Args:
        name: of the encoder.
        names: of the classes, by number.
        splits: the items.
        content: what they are.
        processor: of the encoder.
        pooling: how the encoder's output becomes one vector; that of the head by default.

    Returns:
        The classifier, and the items with `features`.

    Raises:
        ValueError, OSError: if an item cannot be read; the error names it.
    """
    column, *pair = content.columns
    splits, encoder = frozen_features(
        splits, hub_name(name), processor, column,
        pooling=pooling, pair_column=pair[0] if pair else None,
    )  # fmt: skip
    size = len(splits["train"][0]["features"])
    classifier = _HEADS[content.modality].from_encoder(
        encoder, input_size=size, id2label=names, pooling=pooling
    )
    return classifier, splits


def table_classifier(
    splits: DatasetDict, names: dict[int, str], content: Content, asked: ItemColumns
) -> tuple[PreTrainedModel, Any]:
    """Fit a processor to the rows of a table, and make the network that reads them.

    Args:
        splits: the items; the processor is fitted to `train`.
        names: of the classes, by number.
        content: the columns that may describe a row.
        asked: the columns that flags name.

    Returns:
        The classifier and the processor, which the collator uses.

    Raises:
        ValueError: if a column holds values of several types, or none tells rows apart; also if the test items lack
            one.
    """
    train = splits["train"]
    others = [n for n in train.column_names if n not in (*content.columns, *RESERVED)]
    processor = fitted_table_processor(
        train, asked.feature_columns, others, categorical=asked.categorical_columns or ()
    )
    for name, part in splits.items():
        if name != "train":
            processor.read(part.with_format(None)[:])
    config = TableConfig(input_size=processor.size, id2label=names)
    return TableClassifier(config), processor


def load_processor(name: str, modality: str, image_size: int | None = None) -> Any:
    """Load the processor of a model: of pictures, texts or sounds.

    Raises:
        ValueError: if there is none, or the tokenizer has no token to pad with.
    """
    if name in OURS:
        side = image_size or getattr(OURS[name][0](), "image_size", 32)
        return ViTImageProcessor(size={"height": side, "width": side})
    try:
        processor = _PROCESSORS[modality].from_pretrained(hub_name(name))
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(
            f"`--model_name_or_path` must come with a processor of {WORDS[modality]}, got {name!r}: "
            f"{one_line(error, 200)}"
        ) from error
    if modality == "text" and processor.pad_token is None:
        if processor.eos_token is None:
            raise ValueError(f"the tokenizer of {name!r} must have a token to pad with, got none.")
        processor.pad_token = processor.eos_token
    return processor


def hub_name(name: str) -> str:
    """Return the name on the Hub of a model that is given by its timm name."""
    if "/" in name or Path(name).exists() or not timm.is_model(name):
        return name
    return timm.get_pretrained_cfg(name).hf_hub_id or name


def check_model(arguments: ModelArguments) -> None:
    """Raise before anything is read if there is no such model."""
    name = arguments.model_name_or_path
    if arguments.freeze_backbone and name in (None, *OURS):
        raise ValueError(
            f"`--freeze_backbone` must come with a pretrained model, got {name or 'none'}"
            f"{': it starts from scratch' if name else ''}."
        )
    if name is None or name in OURS:
        return
    try:
        AutoConfig.from_pretrained(hub_name(name))
    except (OSError, ValueError) as error:
        near = difflib.get_close_matches(name, [*OURS, *timm.list_models()], n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(
            f"`--model_name_or_path` must be a model, got {name!r}{hint}: {one_line(error, 300)}"
        ) from error


def model_for(arguments: ModelArguments, modality: str) -> str:
    """Name the model for such items.

    Raises:
        ValueError: if none is given, or it reads something else.
    """
    name = arguments.model_name_or_path
    if modality == "table":
        if name not in (None, TableConfig.model_type):
            raise ValueError(
                f"`--model_name_or_path` must be {TableConfig.model_type} for rows of a table, got {name}."
            )
        return TableConfig.model_type
    if name is None:
        raise ValueError(f"`--model_name_or_path` must be given for {WORDS[modality]}, got none.")
    if name in OURS and modality != "image":
        raise ValueError(
            f"`--model_name_or_path` must be a model that reads {WORDS[modality]}, got {name}."
        )
    return name


def recipe(
    data: DataArguments, model: ModelArguments, training: ClassificationTrainingArguments
) -> Recipe:
    """Read items and votes, and load the classifier; raise before reading if something is missing.

    Args:
        data: where items and votes are.
        model: which classifier.
        training: the arguments of the training.

    Returns:
        The argument of `run`.

    Raises:
        FileNotFoundError: if the votes, or a folder or file of items, do not exist.
        ValueError: if items are given twice or not at all, if a column or the model does not exist, or
            if votes and items do not match.
    """
    check_places(data)
    check_votes(data.votes)
    if data.train_dir is not None:
        model_for(model, "image")
    check_model(model)
    set_seed(training.seed)
    with training.main_process_first(desc="votes and items"):
        train, content = voted_items(data)
        annotators, classes = (
            train.features[column].feature.names for column in ("annotators", "annotations")
        )
        test = test_items(data, content, classes)
    splits = DatasetDict({"train": train} if test is None else {"train": train, "test": test})
    name = model_for(model, content.modality)
    names = dict(enumerate(classes))
    whole = content.modality != "table" and not model.freeze_backbone
    settle(training, content.modality, whole)
    classifier: PreTrainedModel
    if content.modality == "table":
        classifier, processor = table_classifier(splits, names, content, data)
    else:
        processor = load_processor(name, content.modality, model.image_size)
        if content.modality == "audio":
            set_length(splits, content.columns[0], processor, data.max_seconds)
        if model.freeze_backbone:
            processor = portable_processor(processor)
            with training.main_process_first(desc="features"):
                classifier, splits = frozen_classifier(
                    name, names, splits, content, processor, model.pooling
                )
        else:
            classifier = whole_classifier(
                name, names, content.modality, processor, model.image_size
            )
            with training.main_process_first(desc="inputs"):
                splits = DatasetDict(
                    {n: with_inputs(s, content, processor, classifier) for n, s in splits.items()}
                )
    return Recipe(
        classifier=classifier,
        training=training,
        train=splits["train"],
        test=splits.get("test"),
        processor=processor,
        report=True,
        show=data.show_columns,
        setting={
            "votes": Path(data.votes).name,
            "annotators": len(annotators),
            "model": name,
            "freeze_backbone": model.freeze_backbone,
        },
    )
