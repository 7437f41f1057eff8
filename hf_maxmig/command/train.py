"""`maxmig train`: from items and votes to a trained model, its report and its card."""

from dataclasses import fields

from transformers import TrainingArguments

from ..training.training_args import MaxMIGTrainingArguments
from .classification import DataArguments, ModelArguments, recipe
from .flags import start
from .runs import run
from .usage import Usage

_DATA = ("votes", "train_dir", "train_file", "dataset_name", "test_dir", "test_file")
_CLASSIFIER = ("model_name_or_path", "freeze_backbone")
_COLUMNS = (
    "task",
    "item_column",
    "text_column",
    "text_pair_column",
    "image_column",
    "audio_column",
    "feature_columns",
    "categorical_columns",
    "label_column",
)
_THEIRS = {field.name for field in fields(TrainingArguments)}
USAGE = Usage(
    program="maxmig train",
    call="--votes VOTES --train_dir DIR --model_name_or_path MODEL --output_dir DIR [flags]",
    description="Train a classifier on items - pictures, texts, sounds, or rows of a table - and on votes by several "
    "people about what they are. The output folder then holds the model and its card, and in `_report` a page on which "
    "annotators to trust and which items to check again. Gold labels, if there are any, only measure results. "
    "`--no_NAME` turns off a switch that is on by default.",
    sections=[
        ("items and votes", _DATA),
        ("classifier", _CLASSIFIER),
        ("training and result", ("num_train_epochs", "output_dir")),
        ("what the items are, where that is not clear", _COLUMNS),
        (
            "more about items, votes and classifier",
            [
                *(f.name for f in fields(DataArguments) if f.name not in (*_DATA, *_COLUMNS)),
                *(f.name for f in fields(ModelArguments) if f.name not in _CLASSIFIER),
                "push_to_hub",
                "config",
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
