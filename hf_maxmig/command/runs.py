"""A run from data to a saved model: training, measuring, saving.

A recipe chooses the data and the classifier. This file does the rest, the same for every recipe.
"""

import importlib.util
import logging
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from torch import nn

from ..data.class_order import align_gold
from ..data.collator import crowd_batches
from ..metrics import plurality_accuracy
from ..model.functional import vote_share
from ..training.maxmig_trainer import MaxMIGTrainer
from ..training.training_args import MaxMIGTrainingArguments

logger = logging.getLogger(__name__)


@dataclass
class Recipe:
    """A data set and a classifier, ready to train.

    Args:
        classifier: h.
        training: the arguments.
        train: items with crowd columns; its `label`, if any, only measures results.
        test: items with gold labels, or None; a simulated crowd has voted on them too.
        processor: what reads the items, saved with the model; None if the classifier takes features
            only.
        held_out: items with crowd columns kept from training; their gain is then reported.
        report: also relabel the training items and judge the annotators.
        show: columns of an item that the report shows; None shows all but inputs and votes.
        setting: further entries of the results.
    """

    classifier: nn.Module
    training: MaxMIGTrainingArguments
    train: Dataset
    test: Dataset | None = None
    processor: Any = None
    held_out: Dataset | None = None
    report: bool = False
    show: list[str] | None = None
    setting: dict[str, Any] = field(default_factory=dict)


def run(recipe: Recipe) -> dict[str, float]:
    """Train, measure, print and save.

    Args:
        recipe: what to run.

    Returns:
        The content of `all_results.json`: `eval_accuracy` of the classifier on the test items; the
        accuracies of aggregator and forecaster on the items with votes; `eval_gain` on the held-out items
        if there are any, else on the training items. If the test items have votes too, `eval_test_gain`
        is the gain on them, which the model's card shows, and `eval_test_forecast_accuracy` is (dc) of
        the paper's Table 3.
    """
    plots = importlib.util.find_spec("matplotlib") is not None
    if recipe.report and not plots:
        logger.warning(
            "The report page needs matplotlib (pip install 'hf_maxmig[plots]'): without it, only the cleaned labels are "
            "written, to _report/relabelled.csv."
        )
    voted = recipe.train if recipe.held_out is None else recipe.held_out
    trainer = MaxMIGTrainer(
        model=recipe.classifier,
        args=recipe.training,
        train_dataset=recipe.train,
        # Evaluated during the training only if `--eval_strategy` asks for it.
        eval_dataset={"crowd": voted}
        if recipe.test is None
        else {"crowd": voted, "test": recipe.test},
        processing_class=recipe.processor,
    )
    outcome = trainer.train(resume_from_checkpoint=recipe.training.resume_from_checkpoint)
    trainer.save_metrics("train", outcome.metrics)
    metrics = trainer.evaluate(voted)
    metrics.pop("eval_accuracy", None)  # of the classifier, on items that it was trained on
    test_metrics = {} if recipe.test is None else trainer.evaluate(recipe.test)
    for source, name in (
        ("accuracy", "accuracy"),
        ("forecast_accuracy", "test_forecast_accuracy"),
        ("gain", "test_gain"),
    ):
        if f"eval_{source}" in test_metrics:
            metrics[f"eval_{name}"] = test_metrics[f"eval_{source}"]
    known = voted.select(gold_rows(voted))
    if len(known):
        metrics["eval_majority_vote_accuracy"] = majority_vote_accuracy(known, trainer)
    trainer.save_metrics("eval", {**metrics, **recipe.setting, "seed": recipe.training.seed})
    trainer.save_state()
    trainer.save_model()
    judged = None
    if recipe.report and plots:
        judged = trainer.report(recipe.train, metrics=test_metrics, show=recipe.show)
    elif recipe.report:
        trainer.relabel(recipe.train)
    trainer.create_model_card()
    if trainer.is_world_process_zero():
        num_test = 0 if recipe.test is None else len(recipe.test)
        print(table(metrics, len(voted), len(known), num_test))
        if judged is not None:
            print(judged)
        print(f"All that was made is in {recipe.training.output_dir}.")
    if recipe.training.push_to_hub:
        trainer.push_to_hub()
    # A process that exits at once may be aborted while a thread of gloo still holds a tensor.
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
    return metrics


def gold_rows(dataset: Dataset) -> list[int]:
    """Find the items with a gold label."""
    if "label" not in dataset.column_names:
        return []
    labels = dataset.with_format(None)["label"][:]
    return [i for i, label in enumerate(labels) if label is not None and label >= 0]


def majority_vote_accuracy(dataset: Dataset, trainer: MaxMIGTrainer) -> float:
    """Accuracy of the plurality on items with gold labels; a tie counts by its share, no votes as a guess."""
    num_classes = trainer.crowd_model.config.num_labels
    dataset = align_gold(dataset, trainer.crowd_model.config.class_names)
    crowd = crowd_batches(dataset, trainer.data_collator)
    shares = torch.cat([vote_share(said, num_classes, *each) for _, said, *each in crowd])
    labels = torch.as_tensor(dataset.with_format(None)["label"][:])
    return plurality_accuracy(shares, labels)


def table(metrics: dict[str, float], num_items: int, num_voted: int, num_test: int) -> str:
    """Format the main results."""
    rows = [
        (
            "majority vote",
            "eval_majority_vote_accuracy",
            f"{num_voted} items with votes and gold labels",
        ),
        (
            "aggregator g",
            "eval_aggregator_accuracy",
            f"{num_voted} items with votes and gold labels",
        ),
        (
            "forecaster zeta",
            "eval_forecast_accuracy",
            f"{num_voted} items with votes and gold labels",
        ),
        ("classifier h", "eval_accuracy", f"{num_test} test items, without votes"),
        ("forecaster zeta", "eval_test_forecast_accuracy", f"{num_test} test items, with votes"),
    ]
    lines = [f"{name:16}  {metrics[key]:8.4f}  {on}" for name, key, on in rows if key in metrics]
    if lines:
        lines.insert(0, f"{'':16}  accuracy  measured on")
    for key, on in (
        ("eval_gain", f"{num_items} items with votes"),
        ("eval_test_gain", f"{num_test} test items, with votes"),
    ):
        if key in metrics:
            lines.append(f"{'gain':16}  {metrics[key]:8.4f}  nats, {on}; needs no gold label")
    return "\n".join(lines)
