"""Loading a saved model and a data set by their names, for the verbs that come after the training."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset
from transformers import AutoModel

from ..data.columns import GOLD_COLUMNS, align_annotators, crowd_names, has_crowd_columns
from ..demo.opening import saved_processor
from ..model.items import input_names
from ..model.modeling_maxmig import CrowdModel
from ..training.maxmig_trainer import MaxMIGTrainer
from ..training.training_args import MaxMIGTrainingArguments
from .content import check_column, content_of
from .flags import one_line
from .items import (
    MODALITIES,
    WORDS,
    ItemColumns,
    read_folder,
    read_hub,
    read_saved,
    read_table,
    with_label,
)
from .joining import matching_column, with_names, with_votes
from .processing import with_inputs


@dataclass
class SavedArguments(ItemColumns):
    """A saved model, and the items to use it on."""

    model: str = field(
        kw_only=True, metadata={"help": "Folder of a saved model, or its name on the Hub."}
    )
    data: str = field(
        kw_only=True,
        metadata={
            "help": "Items as the model reads them: a folder of pictures or sounds, a table (CSV, TSV, JSON, JSON lines, "
            "Parquet, Arrow), a folder of `save_to_disk`, or a data set of the Hub."
        },
    )
    output_dir: str = field(
        kw_only=True, metadata={"help": "Folder for the output.", "metavar": "DIR"}
    )
    votes: str | None = field(
        default=None,
        metadata={"help": "File or folder of votes, where the data has no crowd columns."},
    )
    split: str = field(default="train", metadata={"help": "Which split of the data."})
    per_device_eval_batch_size: int = field(
        default=64, metadata={"help": "Items that a device reads at once."}
    )
    use_cpu: bool = field(default=False, metadata={"help": "Do not use an accelerator."})


def saved_model(name: str) -> CrowdModel:
    """Load a crowd model.

    Raises:
        ValueError: if there is none.
    """
    try:
        model = AutoModel.from_pretrained(name)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(
            f"MODEL must be a saved crowd model, got {name!r}: {one_line(error, 300)}"
        ) from error
    if not isinstance(model, CrowdModel):
        raise ValueError(f"MODEL must be a saved crowd model, got a {type(model).__name__}.")
    return model


def items(arguments: SavedArguments, model: CrowdModel) -> Dataset:
    """Read the items, turn them into the model's inputs, and join the votes as the model numbers them.

    Args:
        arguments: the places of items and votes.
        model: the model, which says what the items are; its class and annotator names are used.

    Returns:
        The data set; without crowd columns if it has none and there are no `votes`.

    Raises:
        ValueError: if a place, a column or a name does not fit.
    """
    return named_items(arguments, model)[0]


def named_items(arguments: SavedArguments, model: CrowdModel) -> tuple[Dataset, str | None]:
    """Read the items as `items` does, and say by which column votes name them.

    Args:
        arguments: the places of items and votes.
        model: as in `items`.

    Returns:
        The data set, and the column; None if there are no `votes` and no flag names it.

    Raises:
        ValueError: as `items`.
    """
    dataset, column = items_with_votes(arguments, model)
    return numbered(dataset, model), column


def numbered(dataset: Dataset, model: CrowdModel) -> Dataset:
    """Number the annotators as a model does, if both have names for them; unknown ones become -1."""
    known = model.config.annotators
    if known is not None and crowd_names(dataset)[0] not in (None, list(known)):
        return align_annotators(dataset, known)
    return dataset


def items_with_votes(arguments: SavedArguments, model: CrowdModel) -> tuple[Dataset, str | None]:
    """Read the items as `named_items` does, with the annotators as the votes number them, also unknown ones.

    Args:
        arguments: the places of items and votes.
        model: as in `items`.

    Returns:
        As `named_items`.

    Raises:
        ValueError: as `items`.
    """
    modality = MODALITIES[model.config.classifier_task]
    inputs = {*input_names(model.classifier)} - {*GOLD_COLUMNS}
    dataset, place = _read(arguments, modality)
    dataset = with_label(dataset, arguments.label_column)
    check_column(dataset, arguments.item_column)
    votes = None
    if arguments.votes is not None:
        if has_crowd_columns(dataset):
            raise ValueError("`--votes` must not be given for data that has crowd columns already.")
        votes = arguments.read(arguments.votes)
    item = arguments.item_column
    if votes is not None and item is None:
        item = matching_column(dataset, votes)
    processor = saved_processor(arguments.model)
    if not inputs & {*dataset.column_names}:
        try:
            dataset, content = content_of(dataset, arguments, modality, place, item)
        except FileNotFoundError as error:
            hint = "" if votes is not None else " DATA holds items; votes are given by `--votes`."
            raise FileNotFoundError(f"{error}{hint}") from error
        if processor is None and modality != "image":
            raise ValueError(f"MODEL must come with a processor of {WORDS[modality]}, got none.")
        if arguments.max_seconds is not None:
            processor.max_seconds = arguments.max_seconds
        dataset = with_inputs(dataset, content, processor, model.classifier)
    if votes is not None:
        dataset, item = with_names(dataset, votes, arguments.item_column)
        dataset = with_votes(
            dataset, votes, item, classes=model.config.class_names,
            max_unknown_share=arguments.max_unknown_share,
        )  # fmt: skip
    return dataset, item


def _read(arguments: SavedArguments, modality: str) -> tuple[Dataset, str | None]:
    """Read the items; also the folder where relative paths begin, if there is one."""
    place = Path(arguments.data)
    dataset = read_saved(arguments.data, arguments.split)
    if dataset is not None:
        return dataset, str(place.parent) if place.is_file() else None
    if place.is_dir():
        return read_folder(arguments.data, modality)[0], None
    if place.is_file():
        return read_table(arguments.data), str(place.parent)
    return read_hub(arguments.data, arguments.dataset_config_name, arguments.split), None


@contextmanager
def trainer_of(arguments: SavedArguments, model: CrowdModel) -> Iterator[MaxMIGTrainer]:
    """Yield a trainer that only measures; its own files are deleted afterwards."""
    if Path(arguments.output_dir).is_file():
        raise ValueError(f"`--output_dir` must be a folder, got {arguments.output_dir!r}: a file.")
    with tempfile.TemporaryDirectory() as folder:
        args = MaxMIGTrainingArguments(
            folder,
            report_to="none",
            per_device_eval_batch_size=arguments.per_device_eval_batch_size,
            use_cpu=arguments.use_cpu,
        )
        yield MaxMIGTrainer(
            model=model, args=args, processing_class=saved_processor(arguments.model)
        )
