"""How default settings were chosen, and why the aggregator's rate is searched for: by held-out gain alone.

For each setting of a grid, each crowd and each of a few seeds, some training items are held out, and
their votes give the held-out gain. The setting chosen for a crowd is the shortest training within one
standard error of the best mean, and among equally short ones that with the highest mean. Accuracies are
recorded for later inspection, but do not influence the choice.

    python recipes/benchmarks/defaults.py --dataset labelme --data_dir DIR --output_dir out/defaults
    python recipes/benchmarks/defaults.py --dataset digits --output_dir out/defaults

Five minutes each on two cores. `recipes/benchmarks/results/defaults_*.json` are their results. LabelMe's
epochs are at the maximum of its gain. The rates show why the trainer searches for them: a crowd of high expertise
and LabelMe need an aggregator ten to a hundred times as fast as the classifier, one of low expertise an
equally fast one. Two fifths of the epochs prefer the same rate as all of them, while after a fifth the
slow rate is not yet clearly ahead for the crowd of low expertise.
"""

import itertools
import json
import multiprocessing
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import above  # noqa: F401  the recipes can be imported
import digits
import labelme
import torch
import transformers
from machine import machine
from results_file import command, write_results

import hf_maxmig
from hf_maxmig.command.flags import start

RATES = (1e-3, 1e-2, 1e-1)  # 1e-3 is the classifier's own
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "labelme": {"num_train_epochs": (4, 10, 20, 40), "aggregator_learning_rate": RATES},
    "digits": {"num_train_epochs": (20, 40, 100), "aggregator_learning_rate": RATES},
}
HELD_OUT_ITEMS = 200
CROWDS = [("correlated", "high"), ("correlated", "low")]


@dataclass
class Arguments:
    """What to search over, and where to write."""

    dataset: Literal["labelme", "digits"] = field(metadata={"help": "Whose grid."})
    output_dir: str = field(metadata={"help": "Where `defaults_DATASET.json` goes."})
    data_dir: str | None = field(default=None, metadata={"help": "Folder or archive of LabelMe."})
    seeds: int = field(default=4, metadata={"help": "Runs a setting and crowd."})
    workers: int = field(default=1, metadata={"help": "Processes side by side."})


def measure(
    arguments: Arguments, setting: dict[str, float], crowd: tuple[str, str] | None, seed: int
) -> dict[str, float]:
    """Train once, with some items kept back."""
    quiet = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        if crowd is None:
            chosen = labelme.LabelMeArguments(arguments.data_dir, held_out_items=HELD_OUT_ITEMS)
            training = labelme.RealCrowdTrainingArguments(folder, **quiet, **setting)
            return labelme.main(chosen, training)
        data = digits.DigitsArguments(*crowd, HELD_OUT_ITEMS)
        return digits.main(data, digits.DigitsTrainingArguments(folder, **quiet, **setting))


def choose(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Take the shortest training within one standard error of the best held-out gain."""
    best = max(rows, key=lambda row: row["held_out_gain"])
    near = [r for r in rows if r["held_out_gain"] >= best["held_out_gain"] - best["standard_error"]]
    return min(near, key=lambda r: (r["setting"].get("num_train_epochs", 0), -r["held_out_gain"]))


def search(arguments: Arguments) -> None:
    """Measure the grid, choose for each crowd, and write both."""
    grid = GRIDS[arguments.dataset]
    settings = [dict(zip(grid, v, strict=True)) for v in itertools.product(*grid.values())]
    crowds = CROWDS if arguments.dataset == "digits" else [None]
    kinds = list(itertools.product(crowds, settings))
    jobs = [(arguments, setting, crowd, seed) for crowd, setting in kinds
            for seed in range(arguments.seeds)]  # fmt: skip
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        done = pool.starmap(measure, jobs, chunksize=1)
    rows = []
    for i, (crowd, setting) in enumerate(kinds):
        runs = done[i * arguments.seeds : (i + 1) * arguments.seeds]
        gains = [run["eval_gain"] for run in runs]
        row = {
            "crowd": None if crowd is None else list(crowd),
            "setting": setting,
            "held_out_gain": round(statistics.mean(gains), 5),
            "standard_error": round(statistics.stdev(gains) / len(gains) ** 0.5, 5),
            "test_accuracy_not_used": round(statistics.mean(r["eval_accuracy"] for r in runs), 5),
        }
        rows.append(row)
        print(json.dumps(row))
    size = len(settings)
    of_crowd = [rows[i : i + size] for i in range(0, len(rows), size)]
    result = {
        "chosen": [choose(some) for some in of_crowd],
        "rows": rows,
        "held_out_items": HELD_OUT_ITEMS,
        "seeds": list(range(arguments.seeds)),
        "command": command(
            __file__, ["--dataset", arguments.dataset, "--seeds", str(arguments.seeds)]
        ),
        "versions": machine(torch, transformers, hf_maxmig),
    }
    write_results(Path(arguments.output_dir) / f"defaults_{arguments.dataset}.json", result)
    print("chosen:", json.dumps(result["chosen"]), file=sys.stderr)


if __name__ == "__main__":
    start(search)
