"""`maxmig train`: from pictures and votes to a trained model, its report and its card."""

from dataclasses import fields

from transformers import TrainingArguments

from ..training.training_args import MaxMIGTrainingArguments
from .flags import start
from .image_classification import DataArguments, recipe
from .runs import run
from .usage import Usage

_DATA = ("votes", "train_dir", "test_dir", "dataset_name")
_THEIRS = {field.name for field in fields(TrainingArguments)}
USAGE = Usage(
    program="maxmig train",
    call="--votes VOTES --train_dir DIR --model_name_or_path MODEL --output_dir DIR [flags]",
    description="Train a classifier on pictures and on votes by several people about what they show. The output folder "
    "then holds the model and its card, and in `_report` a page on which annotators to trust and which pictures to check "
    "again. Gold labels, if there are any, only measure results. `--no_NAME` turns off a switch that is on by default.",
    sections=[
        ("pictures and votes", _DATA),
        ("classifier", ("model_name_or_path", "freeze_backbone")),
        ("training and result", ("num_train_epochs", "output_dir", "push_to_hub", "config")),
        (
            "more about pictures, votes and classifier",
            [
                *(field.name for field in fields(DataArguments) if field.name not in _DATA),
                "image_size",
            ],
        ),
        (
            "learning from a crowd",
            [field.name for field in fields(MaxMIGTrainingArguments) if field.name not in _THEIRS],
        ),
    ],
    rest="all other training arguments, those of transformers.TrainingArguments",
)


def main(arguments: list[str]) -> None:
    """Train by the flags.

    Args:
        arguments: what follows `maxmig train`.
    """
    start(recipe, run, arguments=arguments, usage=USAGE)
