"""How defaults were chosen: by the gain on held-out items alone, which needs no gold label.

For each setting of a grid, each crowd and each of a few seeds, some training items are kept back;
the crowd's labels on them give the held-out gain, averaged over crowds and seeds. The setting taken
is the shortest training within one standard error of the best mean, and among equally short ones
that of the highest mean. Accuracies are written too, to be looked at afterwards; nothing reads
them.

    python recipes/defaults.py --dataset labelme --data_dir DIR --output_dir out/defaults
    python recipes/defaults.py --dataset digits --output_dir out/defaults

Ten and forty minutes on two cores. `recipes/results/defaults_*.json` are what they wrote. The
settings of `labelme.py` are LabelMe's choice. The defaults of `MaxMIGTrainingArguments` lie between
the two: the digits choose the classifier's own rate for the aggregator, LabelMe a hundred times it.
"""

import itertools
import json
import multiprocessing
import platform
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import digits
import labelme
import torch
import transformers
from recipe import parse

GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "labelme": {
        "num_train_epochs": (5, 10, 20, 40),
        "aggregator_learning_rate": (1e-2, 3e-2, 1e-1),
        "aggregator_warmup_ratio": (0.1, 0.3, 0.5),
    },
    # 1e-3 is the classifier's own rate; strength 1 is the paper's start.
    "digits": {
        "aggregator_learning_rate": (1e-3, 1e-2),
        "aggregator_warmup_ratio": (0.0, 0.3),
        "init_strength": (0.5, 1.0),
    },
}
HELD_OUT_ITEMS = 200
CROWDS = list(itertools.product(("independent", "naive_majority", "correlated"), ("high", "low")))


@dataclass
class Arguments:
    """What to search over, and where to write."""

    dataset: Literal["labelme", "digits"] = field(metadata={"help": "Whose grid."})
    output_dir: str = field(metadata={"help": "Where `defaults_DATASET.json` goes."})
    data_dir: str | None = field(default=None, metadata={"help": "Folder or archive of LabelMe."})
    seeds: int = field(default=4, metadata={"help": "Runs a setting and crowd."})
    workers: int = field(default=1, metadata={"help": "Processes side by side."})


def measure(arguments: Arguments, setting: dict[str, float], seed: int) -> list[dict[str, float]]:
    """Train once for each crowd of the data set, with some items kept back."""
    quiet = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "seed": seed}
    results = []
    for case, expertise in CROWDS if arguments.dataset == "digits" else [(None, None)]:
        with tempfile.TemporaryDirectory() as folder:
            if arguments.dataset == "digits":
                chosen = digits.DigitsArguments(case, expertise, HELD_OUT_ITEMS)
                training = digits.DigitsTrainingArguments(folder, **quiet, **setting)
                results.append(digits.main(chosen, training))
            else:
                chosen = labelme.LabelMeArguments(arguments.data_dir, held_out_items=HELD_OUT_ITEMS)
                training = labelme.LabelMeTrainingArguments(folder, **quiet, **setting)
                results.append(labelme.main(chosen, training))
    return results


def choose(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Take the shortest training within one standard error of the best held-out gain."""
    best = max(rows, key=lambda row: row["held_out_gain"])
    near = [r for r in rows if r["held_out_gain"] >= best["held_out_gain"] - best["standard_error"]]
    return min(near, key=lambda r: (r["setting"].get("num_train_epochs", 0), -r["held_out_gain"]))


def search(arguments: Arguments) -> None:
    """Measure the grid, choose, and write both."""
    grid, rows = GRIDS[arguments.dataset], []
    settings = [dict(zip(grid, v, strict=True)) for v in itertools.product(*grid.values())]
    jobs = [(arguments, setting, seed) for setting in settings for seed in range(arguments.seeds)]
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        done = pool.starmap(measure, jobs, chunksize=1)
    for i, setting in enumerate(settings):
        runs = done[i * arguments.seeds : (i + 1) * arguments.seeds]
        gains = [statistics.mean(crowd["eval_gain"] for crowd in run) for run in runs]
        accuracies = [statistics.mean(crowd["eval_accuracy"] for crowd in run) for run in runs]
        rows.append(
            {
                "setting": setting,
                "held_out_gain": statistics.mean(gains),
                "standard_error": statistics.stdev(gains) / len(gains) ** 0.5,
                "test_accuracy_not_used": statistics.mean(accuracies),
            }
        )
        print(json.dumps(rows[-1]))
    command = ["python", "recipes/defaults.py", "--dataset", arguments.dataset]
    result = {
        "chosen": choose(rows),
        "rows": rows,
        "held_out_items": HELD_OUT_ITEMS,
        "seeds": list(range(arguments.seeds)),
        "command": " ".join([*command, "--seeds", str(arguments.seeds)]),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"defaults_{arguments.dataset}.json"
    (folder / name).write_text(json.dumps(result, indent=2) + "\n")
    print("chosen:", json.dumps(result["chosen"]), file=sys.stderr)


if __name__ == "__main__":
    search(*parse(Arguments))
