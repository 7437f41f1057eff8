"""What all recipes share: reading the command line, training, measuring, printing, saving.

Not a recipe itself. A recipe says which data and which classifier; this page does the rest, the
same for each of them.
"""

import argparse
import dataclasses
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
import yaml
from datasets import Dataset
from torch import nn
from transformers import HfArgumentParser

from hf_maxmig import MaxMIGTrainer, MaxMIGTrainingArguments, vote_share
from hf_maxmig.data.collator import crowd_batches


@dataclass
class Recipe:
    """A data set and a classifier, ready to train.

    Args:
        classifier: h.
        training: the arguments.
        train: items with crowd columns; its `label`, if any, is only measured against.
        test: items with gold labels.
        processor: the image processor saved with the pair; None if the classifier takes features
            only.
        held_out: items with crowd columns kept from training, whose gain is then reported.
        setting: what else to write beside the results.
    """

    classifier: nn.Module
    training: MaxMIGTrainingArguments
    train: Dataset
    test: Dataset
    processor: Any = None
    held_out: Dataset | None = None
    setting: dict[str, Any] = field(default_factory=dict)


def parse(*dataclass_types: type, arguments: list[str] | None = None) -> tuple[Any, ...]:
    """Read the command line; `--config file.yaml` gives defaults under it.

    Args:
        *dataclass_types: whose fields are the flags.
        arguments: the command line; that of the process by default.

    Returns:
        One instance a type.

    Raises:
        ValueError: if the file has a key that is no flag.
    """
    before = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    before.add_argument("--config")
    given, rest = before.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    parser = HfArgumentParser(dataclass_types)
    if given.config is not None:
        with open(given.config, encoding="utf-8") as file:
            values = yaml.safe_load(file) or {}
        known = {f.name: f for kind in dataclass_types for f in dataclasses.fields(kind)}
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ValueError(
                f"{given.config} must only have flags of this recipe, got {', '.join(unknown)}."
            )
        # YAML reads 1e-4 as a string; argparse brings a string default to the flag's type.
        parser.set_defaults(**{k: str(v) if isinstance(v, float) else v for k, v in values.items()})
    return parser.parse_args_into_dataclasses(args=rest)


def run(recipe: Recipe) -> dict[str, float]:
    """Train, measure, print and save.

    Args:
        recipe: what to run.

    Returns:
        What `all_results.json` holds: `eval_accuracy` of the classifier on the test items;
        aggregator and forecaster on the items with votes; `eval_gain` on the held-out items if
        there are any, else on the training items.
    """
    voted = recipe.train if recipe.held_out is None else recipe.held_out
    trainer = MaxMIGTrainer(
        model=recipe.classifier,
        args=recipe.training,
        train_dataset=recipe.train,
        # Looked at during training only if asked for by `--eval_strategy`.
        eval_dataset={"crowd": voted, "test": recipe.test},
        processing_class=recipe.processor,
    )
    outcome = trainer.train(resume_from_checkpoint=recipe.training.resume_from_checkpoint)
    trainer.save_metrics("train", outcome.metrics)
    metrics = {**trainer.evaluate(voted), **trainer.evaluate(recipe.test)}
    if "label" in recipe.train.column_names:
        metrics["eval_majority_vote_accuracy"] = majority_vote_accuracy(voted, trainer)
    trainer.save_metrics("eval", {**metrics, **recipe.setting, "seed": recipe.training.seed})
    trainer.save_state()
    trainer.save_model()
    trainer.create_model_card()
    if trainer.is_world_process_zero():
        print(table(metrics, len(voted), len(recipe.test)))
        print(f"The pair, its results and its card are in {recipe.training.output_dir}.")
    # Whoever leaves at once may leave while a thread of gloo still holds a tensor, and is then aborted.
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
    return metrics


def keep_back(train: Dataset, held_out_items: int) -> tuple[Dataset, Dataset | None]:
    """Keep some items back, the same for every seed of the training."""
    if held_out_items == 0:
        return train, None
    rows = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).tolist()
    return train.select(rows[held_out_items:]), train.select(rows[:held_out_items])


def majority_vote_accuracy(dataset: Dataset, trainer: MaxMIGTrainer) -> float:
    """Accuracy of the plurality of votes; a tie counts by its share, no votes as a guess."""
    num_classes = trainer.crowd_model.config.num_labels
    crowd = crowd_batches(dataset, trainer.data_collator)
    shares = torch.cat([vote_share(votes, num_classes) for _, votes in crowd])
    top = (shares == shares.amax(dim=1, keepdim=True)).float()
    labels = torch.as_tensor(dataset.with_format(None)["label"][:])
    return float((top / top.sum(dim=1, keepdim=True))[torch.arange(len(top)), labels].mean())


def table(metrics: dict[str, float], num_voted: int, num_test: int) -> str:
    """Render what a person wants to see first."""
    rows = [
        ("majority vote", "eval_majority_vote_accuracy", f"{num_voted} items with votes"),
        ("aggregator g", "eval_aggregator_accuracy", f"{num_voted} items with votes"),
        ("forecaster zeta", "eval_forecast_accuracy", f"{num_voted} items with votes"),
        ("classifier h", "eval_accuracy", f"{num_test} test items, no votes"),
    ]
    lines = [f"{'':16}  accuracy  measured on"]
    lines += [f"{name:16}  {metrics[key]:8.4f}  {on}" for name, key, on in rows if key in metrics]
    if "eval_gain" in metrics:
        lines.append(f"{'gain':16}  {metrics['eval_gain']:8.4f}  nats; needs no gold label")
    return "\n".join(lines)
