r"""New votes without training: `model.update` beside training anew.

Two cases. *People*: a model is trained without some of the annotators, who then join with all their votes. *Votes*: it is
trained on one vote per item, and the others come later. Each is measured as it was trained, updated, and beside a
model trained on all votes with the same seed; for people also with the mean matrix for each new one. All figures are of
aggregator and forecaster on the training items with votes. `worlds.py` describes the worlds, with sources and terms.

    python recipes/benchmarks/joining.py --crowds_dir DIR --output_dir out/joining

Ten minutes of processor time. Expect on LabelMe, when ten people join, a forecaster as accurate as one trained anew, to
half a point. `recipes/benchmarks/results/joining.json` is what it wrote. What is stopped keeps what it has measured, and continues
from there when it is started again.

    python recipes/benchmarks/joining.py --quick --output_dir out/joining

is the README's world with one seed: seconds, with nothing to read. `--write_docs` writes the table in
`docs/updating.md` anew, from the committed results.
"""

import copy
import json
import tempfile
from collections.abc import Iterator
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
from pages import DOCS, markdown, write_part
from quiet import QUIET, hush
from results_file import by_kind, command, write_results, write_so_far
from speed_rows import now, since
from transformers import PrinterCallback, set_seed

from hf_maxmig import (
    CrowdCollator,
    MaxMIGModel,
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
    align_annotators,
    thin_votes,
)
from hf_maxmig.command.flags import start
from hf_maxmig.data.collator import crowd_batches

RESULTS = Path(__file__).with_name("results") / "joining.json"
PAGE = DOCS / "updating.md"
KIND = ("world", "case", "seed")  # of a run; the rest are its figures
CASES = ("people", "votes")
STATES = {  # of a model, in the order in which a table shows them
    "before": "as trained",
    "mean": "new people with the mean matrix",
    "updated": "updated",
    "anew": "trained anew",
}


@dataclass
class Arguments:
    """What to run, and where to read and write."""

    output_dir: str = field(metadata={"help": "Where `joining.json` goes."})
    crowds_dir: str | None = field(
        default=None, metadata={"help": "Folder of the real crowds; without it they are left out."}
    )
    worlds: list[str] = field(
        default_factory=lambda: ["labelme", "music"], metadata={"help": "Those of `untouched.py`."}
    )
    people: int = field(default=10, metadata={"help": "How many annotators join."})
    seeds: int = field(default=3, metadata={"help": "Runs, with seeds 0, 1, ..."})
    quick: bool = field(default=False, metadata={"help": "The README's world alone, one seed."})
    write_docs: bool = field(
        default=False,
        metadata={"help": "Measure nothing, and write the docs' table from the committed results."},
    )

    def __post_init__(self) -> None:
        if self.quick:
            self.worlds, self.people, self.seeds = [worlds.SNIPPET], 1, 1
        for name in ("seeds", "people"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        worlds.check_names(self.worlds, worlds.WORLDS)


def trained(world: worlds.World, train: Dataset, seed: int) -> MaxMIGModel:
    """Train by the defaults, without gold labels."""
    set_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer = MaxMIGTrainer(
            model=world.new_classifier(train.features["annotations"].feature.names),
            args=MaxMIGTrainingArguments(folder, seed=seed, **QUIET),
            train_dataset=train.remove_columns("label"),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    model = trainer.crowd_model.eval()
    assert isinstance(model, MaxMIGModel)
    return model


def accuracies(model: MaxMIGModel, train: Dataset) -> dict[str, float]:
    """Measure aggregator and forecaster on the items with votes; unknown annotators add nothing."""
    config = model.config
    dataset = align_annotators(train, config.annotators)
    features = torch.tensor(np.array(train["features"][:]), dtype=torch.float32)
    gold, right, voted = torch.tensor(train["label"][:]), [], []
    start = 0
    for votes in crowd_batches(dataset, CrowdCollator(config.num_annotators, config.num_labels)):
        rows = slice(start, start + len(votes.annotators))
        start = rows.stop
        with torch.no_grad():
            output = model(features=features[rows], **votes.as_batch())
        says = torch.stack([output.aggregator_logits, output.forecast_logits]).argmax(dim=-1)
        right.append(says == gold[rows])
        voted.append((votes.annotations >= 0).any(dim=1))
    of_voted = torch.cat(right, dim=1)[:, torch.cat(voted)].double().mean(dim=1)
    return {"aggregator": float(of_voted[0]), "forecast": float(of_voted[1])}


def fewer(train: Dataset, case: str, people: int, seed: int) -> Dataset:
    """Take away what comes later: people, or all votes but one per item."""
    if case == "votes":
        return thin_votes(train, votes_per_item=1, seed=seed)
    voters = len({m for who in train["annotators"][:] for m in who})
    return thin_votes(train, annotators=max(1, voters - people), seed=seed)


def measure(world: worlds.World, seed: int, people: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Train on part of the votes, update, and train anew.

    Args:
        world: where.
        seed: of what is taken away, of network and training.
        people: how many annotators join.

    Yields:
        The case, and its figures by name.
    """
    train = world.train
    anew = accuracies(trained(world, train, seed), train)
    for case in CASES:
        model = trained(world, fewer(train, case, people, seed), seed)
        states = {"before": accuracies(model, train), "anew": anew}
        voters = {m for who in train["annotators"][:] for m in who}
        names = [train.features["annotators"].feature.names[m] for m in sorted(voters)]
        new = [name for name in names if name not in model.config.annotators]
        if case == "people":
            joined = copy.deepcopy(model)
            for name in new:
                joined.add_annotator(name)
            states["mean"] = accuracies(joined, train)
        begin = now()
        found = model.update(train.remove_columns("label"))
        seconds = since(begin, now()).cpu
        assert sorted(found) == sorted(new)
        states["updated"] = accuracies(model, train)
        figures = {f"{s}_{k}": states[s][k] if s in states else None for s in STATES for k in anew}
        yield case, {"new_people": len(new), "seconds": seconds, **figures}


def table(rows: list[dict[str, Any]]) -> str:
    """Render the means, in percent: one line per state of the model."""
    cells = []
    for row in rows:
        mean = row["mean"]
        number = round(mean["new_people"])
        people = f"{number} {'person joins' if number == 1 else 'people join'}"
        came = people if row["case"] == "people" else "one vote per item, then all"
        for state, name in STATES.items():
            if mean[f"{state}_forecast"] is not None:
                figures = [f"{100 * mean[f'{state}_{k}']:.1f}" for k in ("aggregator", "forecast")]
                cells.append([f"{row['world']}: {came}", name, *figures])
    return markdown(["what comes", "model", "aggregator", "forecaster"], cells)


def main(arguments: Arguments) -> dict[str, Any]:
    if arguments.write_docs:
        committed: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
        write_part("joining", table(committed["rows"]), PAGE)
        return committed
    hush()
    folder = Path(arguments.output_dir)
    file, kept = folder / "joining.json", folder / "runs.json"
    runs: list[dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else []
    done = {(run["world"], run["seed"]) for run in runs}
    usual = not arguments.quick
    given = {
        "--crowds_dir DIR": arguments.crowds_dir, "--quick": arguments.quick,
        "--worlds " + " ".join(map(repr, arguments.worlds)): usual, f"--people {arguments.people}": usual,
        f"--seeds {arguments.seeds}": usual, "--output_dir OUT": True,
    }  # fmt: skip
    result: dict[str, Any] = {
        "command": command(__file__, given),
        **measured_with(torch, transformers, datasets, accelerate, np),
        "seconds_are": "of the processor, for an update",
        "rows": by_kind(runs, KIND),
    }
    places = worlds.Places(arguments.output_dir, arguments.crowds_dir)
    for name in worlds.readable(arguments.worlds, places):
        for seed in range(arguments.seeds):
            if (name, seed) in done:
                continue
            world = worlds.WORLDS[name](places, seed)
            found = list(measure(world, seed, arguments.people))
            runs += [{"world": name, "seed": seed, "case": case, **figures} for case, figures in found]  # fmt: skip
            write_results(kept, runs)
            result["rows"] = by_kind(runs, KIND)
            said = [f"{c} {f['updated_forecast']:.3f}, anew {f['anew_forecast']:.3f}" for c, f in found]  # fmt: skip
            write_so_far(file, result, f"{name}, seed {seed}: {'; '.join(said)}")
    print(table(result["rows"]))
    return result


if __name__ == "__main__":
    start(main)
