r"""The effect of a few gold labels: `use_gold_labels`, with all other arguments at their defaults.

The trainer gets the gold labels of randomly drawn items: none, 20, 50, ..., each set part of the next. All
figures are measured on other items: the classifier's on test items, the forecaster's and the networks' on
the training items whose gold labels are never used, the same for each number. `worlds.py` describes the
worlds, with sources and terms.

    python recipes/benchmarks/gold_labels.py --crowds_dir DIR --output_dir out/gold_labels

Twelve minutes of processor time. Expect on LabelMe a classifier accuracy of 0.90 on
test items with 50 gold labels: `recipes/benchmarks/results/gold_labels.json` is what it wrote. What is stopped
keeps what it has measured, and continues from there when it is started again.

    python recipes/benchmarks/gold_labels.py --quick --output_dir out/gold_labels

is the README's world with one seed: seconds, with nothing to read. `--write_docs` writes the table in
`docs/training_arguments.md` anew, from the committed results.
"""

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import above  # noqa: F401  the recipes can be imported
import accelerate
import datasets
import numpy as np
import torch
import transformers
import worlds
from datasets import Dataset
from machine import measured_with
from measures import of_posteriors
from pages import DOCS, markdown, write_part
from quiet import QUIET, hush
from results_file import by_kind, command, write_results, write_so_far
from speed_rows import now, since
from transformers import PrinterCallback, set_seed

from hf_maxmig import MaxMIGTrainer, MaxMIGTrainingArguments
from hf_maxmig.command.flags import start

RESULTS = Path(__file__).with_name("results") / "gold_labels.json"
PAGE = DOCS / "training_arguments.md"
KIND = ("world", "gold_labels", "seed")  # of a run; the rest are its figures


@dataclass
class Arguments:
    """What to run, and where to read and write."""

    output_dir: str = field(metadata={"help": "Where `gold_labels.json` goes."})
    crowds_dir: str | None = field(
        default=None, metadata={"help": "Folder of the real crowds; without it they are left out."}
    )
    worlds: list[str] = field(
        default_factory=lambda: ["labelme", "sentiment", "digits 4.1 L"],
        metadata={"help": "Those of `untouched.py`."},
    )
    gold_labels: list[int] = field(
        default_factory=lambda: [0, 20, 50, 100, 200],
        metadata={"help": "How many are handed over."},
    )
    seeds: int = field(default=5, metadata={"help": "Runs, with seeds 0, 1, ..."})
    quick: bool = field(default=False, metadata={"help": "The README's world alone, one seed."})
    write_docs: bool = field(
        default=False,
        metadata={"help": "Measure nothing, and write the docs' table from the committed results."},
    )

    def __post_init__(self) -> None:
        if self.quick:
            self.worlds, self.gold_labels, self.seeds = [worlds.SNIPPET], [0, 20], 1
        if self.seeds < 1:
            raise ValueError(f"`seeds` must be at least 1, got {self.seeds}.")
        if not self.gold_labels or min(self.gold_labels) < 0:
            raise ValueError(f"`gold_labels` must be numbers of 0 or more, got {self.gold_labels}.")
        worlds.check_names(self.worlds, worlds.WORLDS)


def with_gold(dataset: Dataset, rows: np.ndarray) -> Dataset:
    """Keep the gold labels of some rows; None for the others."""
    gold: list[int | None] = [None] * len(dataset)
    for row in rows.tolist():
        gold[row] = dataset["label"][row]
    return dataset.remove_columns("label").add_column(
        "label", gold, feature=dataset.features["label"]
    )


def measure(world: worlds.World, seed: int, number: int, most: int) -> dict[str, float]:
    """Train with a number of gold labels, and measure on items without one.

    Args:
        world: where.
        seed: of the draw, of network and training.
        number: of gold labels that the trainer gets.
        most: number of drawn training items that are excluded from measuring, whatever `number` is.

    Returns:
        Figures by name.
    """
    classes = world.train.features["annotations"].feature.names
    gold = np.array(world.train["label"][:])
    voted = np.array([len(said) > 0 for said in world.train["annotations"][:]])
    order = np.random.default_rng(seed).permutation(len(gold))
    others = np.setdiff1d(np.flatnonzero(voted), order[:most])
    train = world.train.remove_columns("label")
    if number:
        train = with_gold(world.train, order[:number])
    set_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer = MaxMIGTrainer(
            model=world.new_classifier(classes),
            args=MaxMIGTrainingArguments(folder, seed=seed, use_gold_labels=number > 0, **QUIET),
            train_dataset=train,
        )
        trainer.remove_callback(PrinterCallback)
        begin = now()
        metrics = trainer.train().metrics
        seconds = since(begin, now()).cpu
        log_h, _, log_forecast = trainer.predict(train).predictions
        on_test = trainer.predict(world.test.select_columns("features")).predictions[0]
    return {
        "gold_labels_used": metrics.get("gold_labels_used", 0),
        "measured_items": len(others),
        "seconds": seconds,
        **of_posteriors(
            {
                "test": (on_test, np.array(world.test["label"][:])),
                "networks": (log_h[others], gold[others]),
                "forecast": (log_forecast[others], gold[others]),
            }
        ),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Render the means, accuracies in percent."""
    heads = ["world", "gold labels", "seeds", "classifier, new items", "NLL", "ECE", "forecaster", "NLL", "ECE"]  # fmt: skip
    cells = []
    for row in rows:
        mean = row["mean"]
        cells.append([row["world"], str(row["gold_labels"]), str(len(row["seeds"]))])
        for name in ("test", "forecast"):
            cells[-1].append(f"{100 * mean[f'{name}_accuracy']:.1f}")
            cells[-1] += [f"{mean[f'{name}_{key}']:.3f}" for key in ("nll", "ece")]
    return markdown(heads, cells)


def main(arguments: Arguments) -> dict[str, Any]:
    if arguments.write_docs:
        committed: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
        write_part("gold labels", table(committed["rows"]), PAGE)
        return committed
    hush()
    folder = Path(arguments.output_dir)
    file, kept = folder / "gold_labels.json", folder / "runs.json"
    runs: list[dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else []
    done = {tuple(run[key] for key in KIND) for run in runs}
    numbers = " ".join(map(str, arguments.gold_labels))
    given = {
        "--crowds_dir DIR": arguments.crowds_dir, "--quick": arguments.quick,
        "--worlds " + " ".join(map(repr, arguments.worlds)): not arguments.quick,
        f"--gold_labels {numbers}": not arguments.quick, f"--seeds {arguments.seeds}": not arguments.quick,
        "--output_dir OUT": True,
    }  # fmt: skip
    result: dict[str, Any] = {
        "command": command(__file__, given),
        **measured_with(torch, transformers, datasets, accelerate, np),
        "seconds_are": "of the processor",
        "rows": by_kind(runs, KIND),
    }
    places = worlds.Places(arguments.output_dir, arguments.crowds_dir)
    for name in worlds.readable(arguments.worlds, places):
        for seed in range(arguments.seeds):
            world = worlds.WORLDS[name](places, seed)
            for number in arguments.gold_labels:
                if (name, number, seed) in done:
                    continue
                figures = measure(world, seed, number, max(arguments.gold_labels))
                runs.append({"world": name, "seed": seed, "gold_labels": number, **figures})
                write_results(kept, runs)
                result["rows"] = by_kind(runs, KIND)
                write_so_far(
                    file,
                    result,
                    f"{name}, seed {seed}, {number} gold labels: test {figures['test_accuracy']:.3f}, forecast "
                    f"{figures['forecast_accuracy']:.3f}, ECE {figures['forecast_ece']:.3f}",
                )
    print(table(result["rows"]))
    return result


if __name__ == "__main__":
    start(main)
