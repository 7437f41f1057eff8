"""How the settings of `labelme.py` were chosen: by the gain on held-out items alone.

For each setting, and each of a few seeds, 200 of the 1,000 LabelMe training images are kept back;
the crowd's labels on them give the held-out gain. The setting taken is the shortest training within
one standard error of the best mean, and among equally short ones that of the highest mean.
Accuracies are written too, to be looked at afterwards; nothing reads them.

    python recipes/labelme_defaults.py --data_dir DIR --output_dir out/labelme_defaults

Ten minutes on two cores. `recipes/results/labelme_defaults.json` is what it wrote.
"""

import itertools
import json
import platform
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from labelme import LabelMeArguments, LabelMeTrainingArguments, main
from recipe import parse

GRID = {
    "num_train_epochs": (5, 10, 20, 40),
    "aggregator_learning_rate": (1e-2, 3e-2, 1e-1),
    "aggregator_warmup_ratio": (0.1, 0.3, 0.5),
}
HELD_OUT_ITEMS = 200


@dataclass
class Arguments:
    """What to search over, and where to write."""

    data_dir: str = field(metadata={"help": "Folder or archive of LabelMe."})
    output_dir: str = field(metadata={"help": "Where `labelme_defaults.json` goes."})
    seeds: int = field(default=4, metadata={"help": "Runs a setting."})


def measure(arguments: Arguments, setting: dict[str, float], seed: int) -> dict[str, float]:
    """Train once with some items kept back."""
    with tempfile.TemporaryDirectory() as folder:
        training = LabelMeTrainingArguments(
            output_dir=folder, seed=seed, report_to="none", disable_tqdm=True, logging_strategy="no", **setting
        )  # fmt: skip
        return main(LabelMeArguments(arguments.data_dir, held_out_items=HELD_OUT_ITEMS), training)


def choose(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Take the shortest training within one standard error of the best held-out gain."""
    best = max(rows, key=lambda row: row["held_out_gain"])
    near = [r for r in rows if r["held_out_gain"] >= best["held_out_gain"] - best["standard_error"]]
    return min(near, key=lambda row: (row["setting"]["num_train_epochs"], -row["held_out_gain"]))


def search(arguments: Arguments) -> None:
    """Measure the grid, choose, and write both."""
    rows = []
    for values in itertools.product(*GRID.values()):
        setting = dict(zip(GRID, values, strict=True))
        runs = [measure(arguments, setting, seed) for seed in range(arguments.seeds)]
        gains = [run["eval_gain"] for run in runs]
        rows.append(
            {
                "setting": setting,
                "held_out_gain": statistics.mean(gains),
                "standard_error": statistics.stdev(gains) / len(gains) ** 0.5,
                "test_accuracy_not_used": statistics.mean(run["eval_accuracy"] for run in runs),
            }
        )
        print(json.dumps(rows[-1]))
    result = {
        "chosen": choose(rows),
        "rows": rows,
        "held_out_items": HELD_OUT_ITEMS,
        "seeds": list(range(arguments.seeds)),
        "command": " ".join(
            ["python", "recipes/labelme_defaults.py", "--seeds", str(arguments.seeds)]
        ),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "labelme_defaults.json").write_text(json.dumps(result, indent=2) + "\n")
    print("chosen:", json.dumps(result["chosen"]), file=sys.stderr)


if __name__ == "__main__":
    search(*parse(Arguments))
