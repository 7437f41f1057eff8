"""What all recipes share: training, measuring, saving.

Not a recipe itself. A recipe says which data and which classifier; this page does the rest, the
same for each of them.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from commandline import parse as parse
from commandline import start as start
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

from hf_maxmig import (
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
    crowd_features,
    experts,
    simulate_crowd,
    vote_share,
)
from hf_maxmig.data.class_order import align_gold
from hf_maxmig.data.collator import crowd_batches
from hf_maxmig.metrics import plurality_accuracy
from hf_maxmig.training.masking import masked_flags

# Flags that say where things lie: nobody else's business.
PLACES = ("--data_dir", "--output_dir", "--backbone", "--human_file", "--config")


@dataclass
class Recipe:
    """A data set and a classifier, ready to train.

    Args:
        classifier: h.
        training: the arguments.
        train: items with crowd columns; its `label`, if any, is only measured against.
        test: items with gold labels, or None; a simulated crowd has labelled them too.
        processor: the image processor saved with the pair; None if the classifier takes features
            only.
        held_out: items with crowd columns kept from training, whose gain is then reported.
        report: also relabel the training items and judge the annotators.
        setting: what else to write beside the results.
    """

    classifier: nn.Module
    training: MaxMIGTrainingArguments
    train: Dataset
    test: Dataset | None = None
    processor: Any = None
    held_out: Dataset | None = None
    report: bool = False
    setting: dict[str, Any] = field(default_factory=dict)


@dataclass
class SimulatedCrowdArguments:
    """Which crowd to simulate, and what to keep from training."""

    case: Literal["independent", "naive_majority", "correlated"] = field(
        default="correlated",
        metadata={"help": "How the annotators' mistakes hang together (paper, cases 4.1-4.3)."},
    )
    expertise: Literal["high", "low"] = field(
        default="high",
        metadata={"help": "How much the senior annotators know (paper, Appendix B)."},
    )
    held_out_items: int = field(
        default=0,
        metadata={
            "help": "Training items kept back; the gain on their votes chooses between settings."
        },
    )


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


def run(recipe: Recipe) -> dict[str, float]:
    """Train, measure, print and save.

    Args:
        recipe: what to run.

    Returns:
        What `all_results.json` holds: `eval_accuracy` of the classifier on the test items;
        aggregator and forecaster on the items with votes; `eval_gain` on the held-out items if
        there are any, else on the training items. Where the test items have votes too,
        `eval_test_gain` is the gain on them, which the model's card gives, and `eval_test_forecast_accuracy` the
        paper's (dc) of its Table 3.
    """
    voted = recipe.train if recipe.held_out is None else recipe.held_out
    trainer = MaxMIGTrainer(
        model=recipe.classifier,
        args=recipe.training,
        train_dataset=recipe.train,
        # Looked at during training only if asked for by `--eval_strategy`.
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
    judged = trainer.report(recipe.train, metrics=test_metrics) if recipe.report else None
    trainer.create_model_card()
    if trainer.is_world_process_zero():
        num_test = 0 if recipe.test is None else len(recipe.test)
        print(table(metrics, len(voted), len(known), num_test))
        if judged is not None:
            print(judged)
        print(f"All that was made is in {recipe.training.output_dir}.")
    if recipe.training.push_to_hub:
        trainer.push_to_hub()
    # Whoever leaves at once may leave while a thread of gloo still holds a tensor, and is then aborted.
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
    return metrics


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
        crowd = simulate_crowd(
            data[name].with_format(None)["label"][:],
            experts(dataset, arguments.expertise),
            arguments.case,
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
    shares = torch.cat([vote_share(votes, num_classes) for _, votes in crowd])
    labels = torch.as_tensor(dataset.with_format(None)["label"][:])
    return plurality_accuracy(shares, labels)


def table(metrics: dict[str, float], num_items: int, num_voted: int, num_test: int) -> str:
    """Render what a person wants to see first."""
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
