"""What several recipes share: a simulated crowd, pictures put through the processor once, items kept back.

Not a recipe itself. The run from data to a saved model is the package's, `hf_maxmig.command.runs`.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from datasets import (
    Array3D,
    Dataset,
    DatasetDict,
    Features,
    List,
    Value,
    concatenate_datasets,
)
from torch import nn

from hf_maxmig import MaxMIGTrainingArguments, crowd_features, experts
from hf_maxmig.command.runs import Recipe
from hf_maxmig.data.simulated.beyond import simulate_case
from hf_maxmig.training.masking import masked_flags

# Flags that say where things lie: nobody else's business.
PLACES = ("--data_dir", "--output_dir", "--backbone", "--human_file", "--config")


@dataclass
class RealCrowdTrainingArguments(MaxMIGTrainingArguments):
    """What differs from the defaults where a real crowd is small."""

    logging_steps: float = 100
    save_strategy: str = "no"


def number_kept_back() -> Any:
    """Declare the flag that says how many training items `keep_back` keeps; the last one of a recipe's own."""
    text = "Training items kept back; the gain on their votes chooses between settings."
    return field(default=0, metadata={"help": text})


@dataclass
class SimulatedCrowdArguments:
    """Which crowd to simulate, and what to keep from training."""

    case: Literal[
        "independent", "naive_majority", "correlated", "sparse_one", "sparse_two", "hard_items", "tiring"
    ] = field(
        default="correlated",
        metadata={
            "help": "How the annotators' mistakes hang together: the paper's cases 4.1-4.3; or 300 annotators and one or two "
            "votes per item; items that are hard for all; annotators who tire."
        },
    )  # fmt: skip
    expertise: Literal["high", "low"] = field(
        default="high",
        metadata={
            "help": "How much the senior annotators know (paper, Appendix B). Beyond the paper's cases, all annotators have "
            "the seniors' matrices."
        },
    )
    held_out_items: int = number_kept_back()


def shown(flags: list[str]) -> list[str]:
    """Replace folders by DIR, and mask secrets: what is shown may be passed on."""
    found = []
    for before, flag in zip(["", *flags], masked_flags(flags), strict=False):
        name, equals, _ = flag.partition("=")
        inside = f"{name}=DIR" if equals and _is_place(name) else flag
        found.append("DIR" if _is_place(before) else inside)
    return found


def _is_place(flag: str) -> bool:
    return flag[:2] == "--" and f"--{flag[2:].replace('-', '_')}" in PLACES


def encoded(dataset: Dataset, processor: Any, flat: bool, image_column: str = "image") -> Dataset:
    """Put pictures through the processor once: for training that makes no use of random pictures.

    Args:
        dataset: with a column of pictures.
        processor: the image processor.
        flat: whether the numbers are wanted as one vector, in `features`, or as pictures, in
            `pixel_values`.
        image_column: the column of pictures, which goes.

    Returns:
        The data set, in the numpy format.
    """
    pixels = np.concatenate(
        [
            processor([picture.convert("RGB") for picture in part[image_column]], return_tensors="np")[
                "pixel_values"
            ]
            for part in dataset.select_columns(image_column).iter(256)
        ]
    ).astype("float32")  # fmt: skip
    name, kind = "pixel_values", Array3D(pixels.shape[1:], "float32")
    if flat:
        pixels = pixels.reshape(len(pixels), -1)
        name, kind = "features", List(Value("float32"), length=pixels.shape[1])
    column = Dataset.from_dict({name: pixels}, features=Features({name: kind}))
    rest = dataset.remove_columns(image_column)
    return concatenate_datasets([rest, column], axis=1).with_format("numpy")


def keep_back(train: Dataset, held_out_items: int) -> tuple[Dataset, Dataset | None]:
    """Keep some items back, the same for every seed of the training."""
    if not 0 <= held_out_items < len(train):
        raise ValueError(
            f"`held_out_items` must lie in 0..{len(train) - 1}, of {len(train)} training items, got "
            f"{held_out_items}."
        )
    if held_out_items == 0:
        return train, None
    rows = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).tolist()
    return train.select(rows[held_out_items:]), train.select(rows[:held_out_items])


def item_numbers(dataset: Dataset) -> np.ndarray:
    """Give the numbers by which items are alike: (N, D), features or sounds as given, pictures at 8 x 8.

    Raises:
        ValueError: if the data set has none of these columns.
    """
    if "image" in dataset.column_names:
        pictures = dataset.with_format(None).select_columns("image")
        small = [np.asarray(row["image"].convert("RGB").resize((8, 8))) for row in pictures]
        return np.stack(small).reshape(len(small), -1).astype("float32")
    for name in ("features", "input_values"):
        if name in dataset.column_names:
            numbers = dataset.with_format("numpy").select_columns(name)[:][name]
            return np.stack(numbers).reshape(len(dataset), -1)
    raise ValueError(
        "case hard_items must have items with features, image or input_values, got the columns "
        f"{', '.join(dataset.column_names)}."
    )


def simulated(
    data: DatasetDict, dataset: str, arguments: SimulatedCrowdArguments, seed: int
) -> DatasetDict:
    """Let the paper's experts label training and test items.

    Args:
        data: splits `train` and `test` with gold labels, in the experts' order of the classes.
        dataset: whose experts (paper, Appendix B): `cifar10`, `dogs_vs_cats` or `luna16`.
        arguments: which crowd.
        seed: another crowd each.

    Returns:
        The data with crowd columns.
    """
    generator = torch.Generator().manual_seed(seed)
    labelled = DatasetDict()
    for name in ("train", "test"):
        crowd = simulate_case(
            data[name].with_format(None)["label"][:],
            experts(dataset, arguments.expertise),
            arguments.case,
            features=item_numbers(data[name]) if arguments.case == "hard_items" else None,
            generator=generator,
        )
        votes = Dataset.from_dict(
            {"annotators": crowd.annotators.tolist(), "annotations": crowd.annotations.tolist()},
            features=crowd_features(crowd.names, data[name].features["label"].names),
        )
        labelled[name] = concatenate_datasets([data[name], votes], axis=1)
    return labelled


def simulated_recipe(
    dataset: str,
    data: DatasetDict,
    arguments: SimulatedCrowdArguments,
    training: MaxMIGTrainingArguments,
    classifier: nn.Module,
    processor: Any,
) -> Recipe:
    """Put together what a page with a simulated crowd has made.

    Args:
        dataset: its name in the results.
        data: what `simulated` returns.
        arguments: which crowd, and what to keep from training.
        training: the arguments.
        classifier: h.
        processor: the image processor.

    Returns:
        The recipe.
    """
    train, held_out = keep_back(data["train"], arguments.held_out_items)
    return Recipe(
        classifier=classifier,
        training=training,
        train=train,
        held_out=held_out,
        test=data["test"],
        processor=processor,
        setting={
            "dataset": dataset,
            "case": arguments.case,
            "expertise": arguments.expertise,
            "held_out_items": arguments.held_out_items,
        },
    )
