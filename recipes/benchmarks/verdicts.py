"""Are the verdicts on annotators right? The paper's crowds, with bad actors among them.

    python recipes/benchmarks/verdicts.py --seeds 3 --output_file recipes/benchmarks/results/verdicts.json

Data: 1,000 of the handwritten digits that come with scikit-learn (CC BY 4.0), as 64 numbers each.
They stand in for the paper's pictures: ten classes for CIFAR-10, odd or even for Dogs vs. Cats, 8
and 9 against the rest for LUNA16, whose malignant fifth they are. The crowds are the paper's
(Appendix B), six of them in three cases. Each also has two annotators who label at random and two
adversaries, who are as good as the first two seniors but name the class after the one they believe in.
Each world is trained as a user would, without gold labels, and every annotator is judged.

With `--crowds_dir` the real crowds of `crowds.py` are judged too, from their votes alone (Dawid and
Skene's confusions, a classifier that knows nothing), and compared with their gold labels: a verdict
that condemns (random, adversarial, always one class) is false if the annotator beats chance by gold at
p < 0.05, where chance is that of their own labels on their own items; one is missed if they gave at least
100 labels and are not better than chance by gold (p > 0.3). At most one in twenty condemned annotators may
be condemned falsely. This takes seconds. The older rules condemned 58 in these seven crowds, 18 falsely.

For comparison, the same rules are run with the true classes, to see what 1,000 labels can show at all.
Expect few mistakes there: no copy or constant annotator is missed or falsely named; 1 of 20 random
annotators is not recognised; a third of the adversaries of LUNA16 (low) is called random; and of the good
annotators of Dogs vs. Cats (low), right on 55 labels of 100, 4 are called random and 10 "too few votes"
in three seeds. About half an hour on one core. The rules were tried out on other seeds and on crowds drawn at random.
"""

import argparse
import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import accelerate
import datasets
import numpy as np
import sklearn
import torch
import transformers
from crowds import READERS, Crowd, read
from datasets import Dataset, Features, List, Value
from machine import measured_with
from quiet import QUIET, hush
from results_file import command, write_results
from scipy.stats import binomtest
from sklearn.datasets import load_digits
from torch import Tensor
from transformers import set_seed

from hf_maxmig import (
    HeadClassifier,
    HeadConfig,
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
    crowd_features,
    experts,
    simulate_crowd,
)
from hf_maxmig.data.collator import CrowdCollator, crowd_batches
from hf_maxmig.data.simulated.simulation import CASES
from hf_maxmig.judging.annotators import AnnotatorReport, judge_annotators

NUM_ITEMS = 1000
# Which of ten digits is which class.
CLASS_OF = {
    "cifar10": list(range(10)),
    "dogs_vs_cats": [digit % 2 for digit in range(10)],
    "luna16": [int(digit >= 8) for digit in range(10)],
}
NUM_RANDOM = NUM_ADVERSARIAL = 2
CONDEMNED = ("random", "adversarial", "always says one class")
GOOD = "good"  # expert or ordinary: which of the two does not matter here


class World(NamedTuple):
    """A crowd, and the right verdicts on it.

    Args:
        data: items with votes.
        labels: (N,), the true classes, for `judge_told` only.
        should: the right verdict on each annotator.
        group: (M,), who has the same labels: those of the same number.
    """

    data: Dataset
    labels: Tensor
    should: list[str]
    group: list[int]


def make_world(dataset: str, expertise: str, case: str, seed: int) -> World:
    """Draw items, votes and bad actors."""
    generator = torch.Generator().manual_seed(seed)
    source = load_digits()
    rows = torch.randperm(len(source.target), generator=generator)[:NUM_ITEMS].numpy()
    labels = torch.tensor(CLASS_OF[dataset])[source.target[rows]]
    paper = experts(dataset, expertise)
    num_classes = len(paper.classes)
    crowd = simulate_crowd(labels, paper, case, generator=generator)
    shape = (NUM_ITEMS, NUM_RANDOM)
    random = torch.randint(num_classes, shape, generator=generator)
    believed = [
        torch.multinomial(confusion[labels], 1, generator=generator)
        for confusion in paper.seniors[:NUM_ADVERSARIAL]
    ]
    adversarial = (torch.cat(believed, dim=1) + 1) % num_classes
    annotations = torch.cat([crowd.annotations, random, adversarial], dim=1)
    num_seniors, num_juniors = len(paper.seniors), len(crowd.names) - len(paper.seniors)
    should = [GOOD] * num_seniors
    group = list(range(num_seniors + num_juniors + NUM_RANDOM + NUM_ADVERSARIAL))
    if case == "naive_majority":
        should += ["always says one class"] * num_juniors
    elif case == "correlated":
        for junior, senior in enumerate(paper.copied):
            # The votes cannot tell who was first, so the original gets the same verdict.
            should.append("copied or copying")
            should[senior] = "copied or copying"
            group[num_seniors + junior] = senior
    should += ["random"] * NUM_RANDOM + ["adversarial"] * NUM_ADVERSARIAL
    names = [*crowd.names, *(f"random_{k + 1}" for k in range(NUM_RANDOM))]
    names += [f"adversary_{k + 1}" for k in range(NUM_ADVERSARIAL)]
    features = Features(
        features=List(Value("float32"), length=64), **crowd_features(names, paper.classes)
    )
    columns = {
        "features": (source.data[rows] / 16).astype("float32"),
        "annotators": torch.arange(len(names)).repeat(NUM_ITEMS, 1).tolist(),
        "annotations": annotations.tolist(),
    }
    return World(Dataset.from_dict(columns, features=features), labels, should, group)


def judge(world: World, seed: int, epochs: float) -> AnnotatorReport:
    """Train the model on the votes alone, with the package's defaults, and judge the annotators."""
    set_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        training = MaxMIGTrainingArguments(folder, num_train_epochs=epochs, seed=seed, **QUIET)
        size = len(world.data.features["annotations"].feature.names)
        classifier = HeadClassifier(HeadConfig(input_size=64, num_labels=size))
        trainer = MaxMIGTrainer(model=classifier, args=training, train_dataset=world.data)
        trainer.train()
        log_h = torch.from_numpy(trainer.predict(world.data).predictions[0])
    return say(world, log_h, trainer.crowd_model.aggregator.weight.detach())


def judge_told(world: World) -> AnnotatorReport:
    """Judge by the same rules, but with the truth in place of a trained model."""
    names, classes = (world.data.features[c].feature.names for c in ("annotators", "annotations"))
    sure = torch.nn.functional.one_hot(world.labels, len(classes)) * 0.99 + 0.01 / len(classes)
    return say(world, sure.log(), torch.zeros(len(names), len(classes), len(classes)))


def say(world: World, log_h: Tensor, weight: Tensor) -> AnnotatorReport:
    names, classes = (world.data.features[c].feature.names for c in ("annotators", "annotations"))
    crowd = crowd_batches(world.data, CrowdCollator(len(names), len(classes)))
    return judge_annotators(log_h, weight, crowd, names, classes)


def compare(report: AnnotatorReport, world: World) -> list[tuple[str, str]]:
    """Pair the right verdict on each annotator with the actual one.

    A verdict that joins someone with a person who is neither copy nor original is wrong.
    """
    voice = {m: set(members) for members in report.voices() for m in members}
    groups: dict[int, list[int]] = {}
    for m, group in enumerate(world.group):
        groups.setdefault(group, []).append(m)
    pairs = []
    for members in groups.values():
        is_said = []
        for m in members:
            said = report.verdict[m]
            if said == "copied or copying" and not voice[m] <= set(members):
                said = "one voice with a stranger"
            is_said.append(GOOD if said in ("expert", "ordinary") else said)
        expected, given = Counter(world.should[m] for m in members), Counter(is_said)
        pairs += [(name, name) for name in (expected & given).elements()]
        missed, wrong = (expected - given).elements(), (given - expected).elements()
        pairs += zip(sorted(missed), sorted(wrong), strict=True)
    return pairs


def against_gold(
    crowd: Crowd,
    report: AnnotatorReport | None = None,
    condemned: Sequence[str] = CONDEMNED,
) -> dict[str, Any]:
    """Count false and missed verdicts by gold labels.

    Args:
        crowd: who was judged.
        report: the verdicts, from the votes alone by default.
        condemned: verdicts that say that somebody is useless.

    Returns:
        Counts, and of each false verdict its reason.
    """
    report = judge_votes(crowd) if report is None else report
    verdicts = Counter(report.verdict)
    false, missed = [], 0
    for m, (verdict, reason) in enumerate(zip(report.verdict, report.reason, strict=True)):
        known = (crowd.annotator == m) & (crowd.gold[crowd.item] >= 0)
        gold, said = crowd.gold[crowd.item[known]], crowd.annotation[known]
        if not len(gold):
            continue
        share = [np.bincount(x, minlength=len(crowd.classes)) / len(gold) for x in (gold, said)]
        right, chance = int((gold == said).sum()), float(min(1, share[0] @ share[1]))
        p_value = binomtest(right, len(gold), chance, alternative="greater").pvalue
        if verdict in condemned and p_value < 0.05:
            false.append(f"{reason} By gold {right} of {len(gold)} (p = {p_value:.2g}).")
        missed += bool(verdict not in condemned and len(gold) >= 100 and p_value > 0.3)
    return {
        "annotators": len(crowd.annotators),
        "votes": len(crowd.item),
        "verdicts": dict(sorted(verdicts.items())),
        "condemned": sum(verdicts[name] for name in condemned),
        "condemned_falsely": len(false),
        "not_better_than_chance_and_not_condemned": missed,
        "false": false,
    }


def judge_votes(crowd: Crowd) -> AnnotatorReport:
    """Judge from the votes alone: confusions by EM, and a classifier that knows nothing."""
    who, said = (torch.from_numpy(x) for x in crowd.padded())
    log_h = torch.full((len(crowd.gold), len(crowd.classes)), -math.log(len(crowd.classes)))
    weight = torch.from_numpy(crowd.confusions()[0]).log().float()
    return judge_annotators(log_h, weight, [(who, said)], crowd.annotators, crowd.classes)


def mistakes(pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    wrong = Counter(pair for pair in pairs if pair[0] != pair[1])
    return [{"should": a, "said": b, "times": n} for (a, b), n in sorted(wrong.items())]


def scores(pairs: list[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Precision and recall of each verdict; None where there is nothing to be right about."""
    result: dict[str, dict[str, Any]] = {}
    for name in sorted({name for pair in pairs for name in pair}):
        right = sum(pair == (name, name) for pair in pairs)
        should = sum(expected == name for expected, _ in pairs)
        said = sum(given == name for _, given in pairs)
        result[name] = {
            "precision": round(right / said, 4) if said else None,
            "recall": round(right / should, 4) if should else None,
            "should": should,
            "said": said,
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--seeds", type=int, default=3, help="worlds of each kind")
    parser.add_argument("--first_seed", type=int, default=0, help="seeds from here on")
    parser.add_argument("--num_train_epochs", type=float, default=100)
    parser.add_argument("--datasets", nargs="+", default=list(CLASS_OF), choices=list(CLASS_OF))
    parser.add_argument("--crowds_dir", type=Path, help="folder with the real crowds")
    parser.add_argument("--output_file", type=Path, required=True, help="the JSON to write")
    arguments = parser.parse_args()
    hush()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    worlds = []
    pairs: dict[str, list[tuple[str, str]]] = {}
    for dataset, expertise, case in product(arguments.datasets, ("high", "low"), CASES):
        trained, told_truth, seconds = [], [], []
        for seed in seeds:
            world = make_world(dataset, expertise, case, seed)
            start = time.monotonic()
            trained += compare(judge(world, seed, arguments.num_train_epochs), world)
            seconds.append(round(time.monotonic() - start, 1))
            told_truth += compare(judge_told(world), world)
        worlds.append(
            {
                "dataset": dataset,
                "expertise": expertise,
                "case": case,
                "scores": scores(trained),
                "mistakes": mistakes(trained),
                "mistakes_told_the_truth": mistakes(told_truth),
                "seconds": seconds,
            }
        )
        for name, new in ((expertise, trained), (f"{expertise}_told_the_truth", told_truth)):
            pairs[name] = pairs.get(name, []) + new
        print(json.dumps({k: v for k, v in worlds[-1].items() if k != "scores"}), flush=True)
    real = {}
    for name in READERS if arguments.crowds_dir else ():
        real[name] = against_gold(read(name, arguments.crowds_dir))
        print(json.dumps({name: real[name]}), flush=True)
    result = {
        "recipe": "verdicts.py",
        "command": command(
            __file__,
            [
                "--seeds",
                str(arguments.seeds),
                *["--crowds_dir", "DIR"] * bool(arguments.crowds_dir),
            ],
        ),
        "items": NUM_ITEMS,
        "seeds": list(seeds),
        **{name: scores(pairs[name]) for name in sorted(pairs)},
        "worlds": worlds,
        "real_crowds_from_votes_alone": real,
        **measured_with(torch, transformers, datasets, accelerate, sklearn),
    }
    write_results(arguments.output_file, result)
    print(json.dumps({name: result[name] for name in sorted(pairs)}, indent=2))


if __name__ == "__main__":
    main()
