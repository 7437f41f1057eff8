"""Run a recipe with several seeds and write one results file, as evidence for its accuracy.

    python recipes/benchmarks/repeat.py --seeds 5 --output_file results.json digits.py --case correlated --expertise high

Each seed gives three numbers side by side: of the last epoch, which is the headline; of the epoch
with the highest gain on held-out items, if the recipe holds some out (`--held_out_items`); and of
the best epoch on the test items, which the literature often quotes but should not.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import above  # noqa: F401  the recipes can be imported
import accelerate
import datasets
import timm
import torch
import transformers
from machine import measured_with
from recipe import shown
from results_file import write_results

KEPT = ("accuracy", "aggregator_accuracy", "forecast_accuracy", "gain", "majority_vote_accuracy")


def run_seed(recipe: Path, flags: list[str], seed: int) -> dict[str, Any]:
    """Run the recipe once, evaluating in every epoch, and read what it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(recipe), *flags, "--output_dir", folder, "--seed", str(seed)]
        quiet = ["--eval_strategy", "epoch", "--report_to", "none", "--disable_tqdm", "True"]
        ended = subprocess.run([*command, *quiet], check=False, stdout=subprocess.DEVNULL)
        if ended.returncode:
            raise subprocess.CalledProcessError(ended.returncode, shown([*command, *quiet]))
        results = json.loads(Path(folder, "all_results.json").read_text())
        history = json.loads(Path(folder, "trainer_state.json").read_text())["log_history"]
    return summarise(results, history, seed)


def at_epochs(history: list[dict[str, Any]], name: str) -> dict[float, float]:
    """Read a number at the end of each epoch, ignoring what is measured again after the last.

    Example:
        >>> at_epochs([{"epoch": 1.0, "loss": 0.5}, {"epoch": 1.0, "gain": 0.2},
        ...            {"epoch": 2.0, "gain": 0.4}, {"epoch": 2.0, "gain": 0.3}], "gain")
        {1.0: 0.2, 2.0: 0.4}
    """
    found: dict[float, float] = {}
    for entry in history:
        if name in entry:
            found.setdefault(entry["epoch"], entry[name])
    return found


def summarise(results: dict[str, Any], history: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """Put the last epoch, the label-free pick and the best on test side by side."""
    tests = at_epochs(history, "eval_test_accuracy")
    gains = at_epochs(history, "eval_crowd_gain")
    last = {name: results[f"eval_{name}"] for name in KEPT if f"eval_{name}" in results}
    label_free = None
    if results.get("held_out_items"):
        epoch = max(gains, key=gains.__getitem__)
        label_free = {"epoch": epoch, "accuracy": tests[epoch], "gain": gains[epoch]}
    best = max(tests, key=tests.__getitem__)
    return {
        "seed": seed,
        "last": last,
        "label_free": label_free,
        "best_on_test": {"epoch": best, "accuracy": max(tests[best], last["accuracy"])},
        "seconds": results["train_runtime"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--seeds", type=int, default=5, help="runs, with seeds 0, 1, ...")
    parser.add_argument("--output_file", type=Path, required=True, help="the JSON to write")
    parser.add_argument("recipe", help="a recipe of the folder above, followed by its flags")
    arguments, flags = parser.parse_known_args()
    recipe = Path(__file__).parents[1] / arguments.recipe
    if not recipe.is_file():
        parser.error(
            f"{recipe} must be a recipe of the folder above, such as digits.py: there is none."
        )
    runs = [run_seed(recipe, flags, seed) for seed in range(arguments.seeds)]
    names = [name for name in KEPT if all(name in run["last"] for run in runs)]
    values = {name: [run["last"][name] for run in runs] for name in names}
    result = {
        "recipe": arguments.recipe,
        "command": " ".join(
            ["python", f"recipes/{arguments.recipe}", *shown(flags), "--seed", "SEED"]
        ),
        "last_epoch_mean": {name: round(statistics.mean(v), 5) for name, v in values.items()},
        "last_epoch_deviation": {
            name: round(statistics.stdev(v), 5) if len(v) > 1 else None
            for name, v in values.items()
        },
        "runs": runs,
        **measured_with(torch, transformers, datasets, accelerate, timm),
    }
    write_results(arguments.output_file, result)
    print(
        json.dumps(
            {k: result[k] for k in ("command", "last_epoch_mean", "last_epoch_deviation")}, indent=2
        )
    )


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:  # the recipe has printed the reason
        raise SystemExit(error.returncode) from None
