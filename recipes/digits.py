"""Digits: the whole path in under a minute on two cores, with nothing to download.

Data: the 1,797 handwritten digits, 8 x 8 grey, that come with scikit-learn (UCI, "Optical
recognition of handwritten digits", CC BY 4.0); 1,078 to train, 719 to test. The crowd is simulated:
the ten-class experts of the paper's Appendix B, with independent mistakes (case 4.1), a naive
majority (4.2) or correlated mistakes (4.3), of high or low expertise; or a crowd beyond the paper's cases, sparse,
of hard items, or tiring (`docs/results.md`).

    accelerate launch recipes/digits.py --output_dir out/digits

prints majority vote, aggregator, classifier and forecaster against the gold labels that training
never saw, and saves the model. Expect a classifier accuracy of 0.975 (the same
network trained on gold labels gives 0.98; majority vote is right on 0.67 of the training images).

`--write_files DIR` writes the pictures and a file of votes instead, to try
`classification.py` on.
"""

import csv
from dataclasses import dataclass, field
from pathlib import Path

import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from datasets.utils import tqdm
from PIL import Image as Picture
from recipe import SimulatedCrowdArguments, simulated, simulated_recipe
from sklearn.datasets import load_digits
from transformers import ViTImageProcessor, set_seed

from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGTrainingArguments
from hf_maxmig.command.flags import start
from hf_maxmig.command.runs import Recipe, run

CLASSES = [str(digit) for digit in range(10)]
NUM_TRAIN = 1078


@dataclass
class DigitsArguments(SimulatedCrowdArguments):
    """Which crowd to simulate."""

    write_files: str | None = field(
        default=None,
        metadata={
            "help": "Folder to write pictures and votes to, as a data owner has them, instead of training."
        },
    )


@dataclass
class DigitsTrainingArguments(MaxMIGTrainingArguments):
    """What differs from the defaults."""

    # 17 steps an epoch: 1,700 in all, for the classes to form and the aggregator to follow.
    num_train_epochs: float = 100
    # Two log lines tell as much as a hundred.
    logging_steps: float = 340
    save_strategy: str = "no"


def digits(arguments: DigitsArguments, seed: int) -> DatasetDict:
    """Split the digits and let a simulated crowd label them."""
    source = load_digits()
    shuffled = torch.randperm(len(source.target), generator=torch.Generator().manual_seed(0))
    features = Features(image=Image(), label=ClassLabel(names=CLASSES))
    splits = {}
    for name, rows in (("train", shuffled[:NUM_TRAIN]), ("test", shuffled[NUM_TRAIN:])):
        pictures = [Picture.fromarray((source.images[i] * 15.9375).astype("uint8")) for i in rows]
        labels = source.target[rows.numpy()].tolist()
        splits[name] = Dataset.from_dict({"image": pictures, "label": labels}, features=features)
    return simulated(DatasetDict(splits), "cifar10", arguments, seed)


def write_files(data: DatasetDict, folder: Path) -> None:
    """Write pictures, and votes in a long table with a gold label for every tenth picture."""
    for split, dataset in data.items():
        for i, row in enumerate(tqdm(dataset, desc=f"Writing {split}")):
            place = folder / split / (CLASSES[row["label"]] if split == "test" else "")
            place.mkdir(parents=True, exist_ok=True)
            row["image"].save(place / f"digit_{i:04}.png")
    train = data["train"]
    names = train.features["annotators"].feature.names
    with (folder / "votes.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "worker", "label", "gold"])
        for i, row in enumerate(train.remove_columns("image")):
            gold = CLASSES[row["label"]] if i % 10 == 0 else ""
            for m, r in zip(row["annotators"], row["annotations"], strict=True):
                writer.writerow([f"digit_{i:04}.png", names[m], CLASSES[r], gold])


def recipe(arguments: DigitsArguments, training: DigitsTrainingArguments) -> Recipe:
    set_seed(training.seed)
    data = digits(arguments, training.seed)
    # 3 channels: pipelines open every picture in colour.
    classifier = HeadClassifier(HeadConfig(input_size=3 * 8 * 8, num_labels=10))
    processor = ViTImageProcessor(size={"height": 8, "width": 8})
    return simulated_recipe("digits", data, arguments, training, classifier, processor)


def build(arguments: DigitsArguments, training: DigitsTrainingArguments) -> Recipe | None:
    if arguments.write_files is not None:
        write_files(digits(arguments, training.seed), Path(arguments.write_files))
        return None
    return recipe(arguments, training)


def main(arguments: DigitsArguments, training: DigitsTrainingArguments) -> dict[str, float]:
    built = build(arguments, training)
    return {} if built is None else run(built)


if __name__ == "__main__":
    start(build, run)
