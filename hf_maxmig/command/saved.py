"""Loading a saved model and a data set by their names, for the verbs that come after the training."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from transformers import AutoModel, AutoProcessor

from ..data.columns import align_annotators, crowd_names, has_crowd_columns
from ..model.modeling_maxmig import CrowdModel
from ..training.maxmig_trainer import MaxMIGTrainer
from ..training.training_args import MaxMIGTrainingArguments
from .flags import one_line
from .image_classification import DataArguments, VotesForm, pictures, with_votes

_KINDS = {".parquet": "parquet", ".arrow": "arrow"}  # of files that keep the names of crowd columns


@dataclass
class SavedArguments(VotesForm):
    """A saved model, and the items to use it on."""

    model: str = field(
        kw_only=True, metadata={"help": "Folder of a saved model, or its name on the Hub."}
    )
    data: str = field(
        kw_only=True,
        metadata={
            "help": "Folder of pictures, folder of `save_to_disk`, Parquet or Arrow file, or a data set of the Hub."
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
    dataset_config_name: str | None = field(
        default=None, metadata={"help": "Which configuration of a data set of the Hub."}
    )
    image_column: str = field(default="image", metadata={"help": "Column of pictures."})
    label_column: str = field(default="label", metadata={"help": "Column of gold labels, if any."})
    item_column: str | None = field(
        default=None,
        metadata={"help": "Column the votes refer to; the pictures' file names by default."},
    )
    max_unknown_share: float = field(
        default=0.0, metadata={"help": "Share of votes that may refer to missing items."}
    )
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


def saved_processor(name: str) -> Any:
    """Load the processor saved with a model; None if there is none."""
    try:
        return AutoProcessor.from_pretrained(name)
    except (OSError, ValueError):
        return None


def loaded(place: str, split: str) -> Dataset | None:
    """Load a saved data set; None if the place holds none.

    Args:
        place: a folder of `save_to_disk`, or a Parquet or Arrow file.
        split: which one, if there are several.

    Raises:
        ValueError: if it cannot be read, or has no such split.
    """
    path = Path(place)
    several = (path / "dataset_dict.json").is_file()
    try:
        if several or (path / "state.json").is_file():
            dataset = load_from_disk(place)
        elif path.suffix in _KINDS and path.is_file():
            files = {"train": str(path.resolve())}
            return load_dataset(_KINDS[path.suffix], data_files=files, split="train")
        else:
            return None
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{place} must be a data set, got: {one_line(error, 300)}") from error
    if not isinstance(dataset, DatasetDict):
        return dataset
    if split not in dataset:
        raise ValueError(f"`--split` must be one of {', '.join(dataset)}, got {split!r}.")
    return dataset[split]


def items(arguments: SavedArguments, model: CrowdModel) -> Dataset:
    """Load the items and join the votes, with annotators and classes numbered as the model numbers them.

    Args:
        arguments: the places of items and votes.
        model: the model whose class and annotator names are used.

    Returns:
        The data set; without crowd columns if it has none and there are no `votes`.

    Raises:
        ValueError: if a place, a column or a name does not fit.
    """
    folder = Path(arguments.data).is_dir()
    asked = DataArguments(
        votes=arguments.votes or "",
        train_dir=arguments.data if folder else None,
        dataset_name=None if folder else arguments.data,
        dataset_config_name=arguments.dataset_config_name,
        train_split=arguments.split,
        image_column=arguments.image_column,
        label_column=arguments.label_column,
        item_column=arguments.item_column,
        max_unknown_share=arguments.max_unknown_share,
    )
    if not folder and Path(arguments.data).exists() and Path(arguments.data).suffix not in _KINDS:
        raise ValueError(
            f"DATA must be a folder, a Parquet or Arrow file or a data set of the Hub, got {arguments.data!r}: votes are "
            "given by `--votes`."
        )
    dataset = loaded(arguments.data, arguments.split)
    if dataset is None:
        dataset = pictures(asked)
    elif arguments.label_column != "label" and arguments.label_column in dataset.column_names:
        dataset = dataset.rename_column(arguments.label_column, "label")
    if arguments.votes is not None:
        if has_crowd_columns(dataset):
            raise ValueError("`--votes` must not be given for data that has crowd columns already.")
        votes = arguments.read(arguments.votes)
        dataset = with_votes(dataset, votes, asked, classes=model.config.class_names)
    known = model.config.annotators
    if known is not None and crowd_names(dataset)[0] not in (None, list(known)):
        dataset = align_annotators(dataset, known)
    return dataset


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
