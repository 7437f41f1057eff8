r"""Wrong labels: does `suspicion` find them better than a data owner's other tools?

A data owner's label is the plurality of the votes. For each world below, each score ranks the items from
the most to the least suspect label. Average precision measures how many labels at the top of the list are
wrong (a shuffled list gets the base rate, the share of wrong labels). Gold labels are read only for this.
At a tie one of the classes is drawn, the same for all scores.

Data: the digits of `digits.py` (UCI, CC BY 4.0) with its six simulated crowds, with every vote and
with three votes per item, as real crowds have; digits whose labels were flipped at random (one label
per item, a tenth flipped; three votes per item, a fifth of the votes flipped); the real crowd of
LabelMe (`labelme.py` has source and licence). The model is trained as in these two recipes, from the
paper's start, with the aggregator at ten times the classifier's rate (LabelMe: a hundred times) and no
search.

Rivals: entropy of the votes and share of the plurality; crowd-kit's Dawid-Skene, with one accuracy per
annotator or a matrix each, its `uncertainty`, GLAD and MACE (where there are at most 3,000 votes:
both take half a minute for 10,000); cleanlab's label quality of the plurality and its CROWDLAB,
from the out-of-sample probabilities of plain classifiers trained on the plurality, as its
documentation recommends (logistic regression; the network that h is), and from those of h.
CROWDLAB appears twice: with the quality of the plurality's label, and with `consensus_quality_score`,
the quality of the label that CROWDLAB itself prefers.

    pip install crowd-kit cleanlab
    python recipes/benchmarks/suspects.py --labelme_dir DIR --output_dir out/suspects

Eight minutes on two cores. Expect an average precision of 0.87 on LabelMe (base rate 0.23, vote
entropy 0.46, best of crowd-kit 0.51, of cleanlab 0.78) and of 0.98 over all fifteen worlds (0.62,
0.68, 0.81): `recipes/benchmarks/results/suspects.json` is what it wrote. It also shows that with h
cleanlab is as good as `suspicion` on LabelMe, and h alone better (0.91), and that with flipped
labels a plain classifier is almost enough.
"""

import itertools
import multiprocessing
import statistics
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import above  # noqa: F401  the recipes can be imported
import datasets
import digits
import labelme
import numpy as np
import sklearn
import torch
import transformers
from datasets import Dataset, Features, List, Value
from machine import measured_with
from quiet import QUIET
from recipe import encoded
from results_file import command, write_results
from scipy.stats import entropy
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from torch.utils.data import DataLoader, TensorDataset
from transformers import ViTImageProcessor, set_seed

from hf_maxmig import (
    Experts,
    HeadClassifier,
    HeadConfig,
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
    crowd_features,
    experts,
    simulate_crowd,
)
from hf_maxmig.command.flags import start
from hf_maxmig.data.simulated.experts import uniform_mistakes

OURS = "suspicion"
PARTS = ("classifier h alone", "aggregator g alone")  # of our model: neither a rival nor a headline
SLOW_ABOVE = 3000  # votes
RIVALS = {"crowd-kit": "crowdkit", "cleanlab": "cleanlab"}  # package: module


class World(NamedTuple):
    """A data set in which labels go wrong. Without experts: LabelMe."""

    name: str
    experts: Experts | None = None
    case: str = "independent"
    labels_per_item: int | None = None


def flipped(share: float, num_annotators: int) -> Experts:
    """Return annotators who are right except for a share of labels, replaced by any other class."""
    confusion = uniform_mistakes(*[1 - share] * len(digits.CLASSES))
    return Experts("flipped", tuple(digits.CLASSES), torch.stack([confusion] * num_annotators))


WORLDS = [
    World(f"digits, {case}, {level}, {votes}", experts("cifar10", level), case, per_item)
    for (votes, per_item), case, level in itertools.product(
        [("all votes", None), ("3 votes", 3)],
        ["independent", "naive_majority", "correlated"],
        ["high", "low"],
    )
]
WORLDS += [
    World("digits, 1 label, 10 % flipped", flipped(0.1, 1)),
    World("digits, 3 votes, 20 % flipped", flipped(0.2, 10), labels_per_item=3),
    World("labelme"),
]


@dataclass
class Arguments:
    """What to run, and where to write."""

    output_dir: str = field(metadata={"help": "Where `suspects.json` goes."})
    labelme_dir: str | None = field(
        default=None, metadata={"help": "Folder or archive of LabelMe; without it: digits only."}
    )
    seeds: int = field(default=3, metadata={"help": "Runs a world, with seeds 0, 1, ..."})
    workers: int = field(default=2, metadata={"help": "Processes at once."})


class GivenLabels(NamedTuple):
    """The votes on N items, and the single label that a data owner derives from them.

    Args:
        task: (V,), number of the item.
        worker: (V,), number of the annotator.
        label: (V,), the label.
        share: (N, C), share of an item's votes.
        single: (N,), whether one class has the most votes.
        given: (N,), the class with the most votes; at a tie one of them.
    """

    task: np.ndarray
    worker: np.ndarray
    label: np.ndarray
    share: np.ndarray
    single: np.ndarray
    given: np.ndarray

    def of_given(self, probability: np.ndarray) -> np.ndarray:
        """Take the probability of the given label out of (N, C)."""
        return probability[np.arange(len(self.given)), self.given]

    def against_given(self, probability: np.ndarray) -> np.ndarray:
        """Sum the other classes' probabilities: 1 - p without the rounding error that would order values near 0."""
        others = probability.astype(np.float64)
        others[np.arange(len(self.given)), self.given] = 0
        return others.sum(axis=1)


def read_votes(
    annotators: list[list[int]], annotations: list[list[int]], classes: int
) -> GivenLabels:
    """Convert ragged columns to the form used here; every item needs a vote."""
    number = [len(said) for said in annotations]
    task = np.repeat(np.arange(len(number)), number)
    worker, label = np.concatenate(annotators), np.concatenate(annotations)
    counts = np.zeros((len(number), classes))
    np.add.at(counts, (task, label), 1)
    top = counts == counts.max(axis=1, keepdims=True)
    drawn = np.random.default_rng(0).random(top.shape)
    return GivenLabels(
        task=task,
        worker=worker,
        label=label,
        share=counts / counts.sum(axis=1, keepdims=True),
        single=top.sum(axis=1) == 1,
        given=np.where(top, drawn, -1).argmax(axis=1),
    )


def vote_scores(votes: GivenLabels) -> dict[str, np.ndarray]:
    """Score by the votes alone. Here and below: (N,), higher is more suspect."""
    return {
        "vote entropy": entropy(votes.share, axis=1),
        "1 - vote share": votes.against_given(votes.share),
    }


def crowdkit_scores(votes: GivenLabels) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Score by the models of crowd-kit, which use the votes but not the items.

    Args:
        votes: on all items.

    Returns:
        The scores, and the flags: items where Dawid-Skene prefers another label.
    """
    import pandas as pd
    from crowdkit.aggregation import GLAD, MACE, DawidSkene, OneCoinDawidSkene
    from crowdkit.metrics.data import uncertainty

    table = pd.DataFrame({"task": votes.task, "worker": votes.worker, "label": votes.label})
    num_items, num_classes = votes.share.shape
    one_coin = OneCoinDawidSkene(n_iter=100)
    models = {"Dawid-Skene": DawidSkene(n_iter=100), "one-coin Dawid-Skene": one_coin}
    if len(table) <= SLOW_ABOVE:
        models |= {"GLAD": GLAD(), "MACE": MACE(random_state=0)}
    posterior = {}
    for name, model in models.items():
        answer = model.fit_predict_proba(table).reindex(range(num_items))
        posterior[name] = answer.reindex(columns=range(num_classes), fill_value=0).to_numpy()
    scores = {f"crowd-kit {n}": votes.against_given(p) for n, p in posterior.items()}
    doubt = uncertainty(table, workers_skills=one_coin.skills_, aggregate=False)
    scores["crowd-kit uncertainty"] = doubt.reindex(range(num_items)).to_numpy()
    return scores, {"Dawid-Skene": posterior["Dawid-Skene"].argmax(axis=1) != votes.given}


def plain_posteriors(
    features: np.ndarray, votes: GivenLabels, training: MaxMIGTrainingArguments
) -> dict[str, np.ndarray]:
    """Predict each item by plain classifiers trained on the given labels of other items.

    Args:
        features: (N, D).
        votes: on the same items.
        training: epochs, rate and batch size of h, taken for the network.

    Returns:
        By name, (N, C) probabilities from 5-fold cross-validation.
    """
    posteriors = {name: np.zeros_like(votes.share) for name in ("logistic", "network")}
    for train, test in StratifiedKFold(5).split(features, votes.given):
        said = np.unique(votes.given[train])
        if len(said) == 1:  # a naive majority: there is nothing to distinguish
            posteriors["logistic"][test, said] = 1
        else:
            fitted = LogisticRegression(max_iter=1000).fit(features[train], votes.given[train])
            posteriors["logistic"][np.ix_(test, said)] = fitted.predict_proba(features[test])
        head = HeadConfig(input_size=features.shape[1], num_labels=votes.share.shape[1])
        network = train_plainly(HeadClassifier(head), features[train], votes.given[train], training)
        with torch.no_grad():
            logits = network(features=torch.as_tensor(features[test])).logits
        posteriors["network"][test] = logits.double().softmax(dim=1).numpy()
    return posteriors


def train_plainly(
    model: HeadClassifier, features: np.ndarray, labels: np.ndarray, like: MaxMIGTrainingArguments
) -> HeadClassifier:
    """Train h's network by cross-entropy, with h's epochs, batches, rate and schedule."""
    items = TensorDataset(torch.as_tensor(features), torch.as_tensor(labels))
    loader = DataLoader(items, like.per_device_train_batch_size, shuffle=True)
    steps = round(like.num_train_epochs * len(loader))
    optimizer = torch.optim.AdamW(model.parameters(), like.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for x, said in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps):
        optimizer.zero_grad()
        model(features=x, labels=said).loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def cleanlab_scores(
    votes: GivenLabels, plain: dict[str, np.ndarray], h: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Score by cleanlab, which combines a classifier's probabilities with the labels.

    Args:
        votes: on all items.
        plain: by name, (N, C), out-of-sample probabilities.
        h: (N, C), probabilities of our classifier.

    Returns:
        The scores, and the flags: items where CROWDLAB prefers another label, or, with one label
        an item, where `find_label_issues` finds one.
    """
    from cleanlab.filter import find_label_issues
    from cleanlab.multiannotator import get_label_quality_multiannotator
    from cleanlab.rank import get_label_quality_scores

    scores, flags = {}, {}
    for name, probability in plain.items():
        quality = get_label_quality_scores(votes.given, probability)
        scores[f"cleanlab label quality, {name}"] = 1 - quality
    if len(votes.task) == len(votes.given):  # CROWDLAB refuses one label per item
        for name, probability in plain.items():
            flags[f"label issues, {name}"] = find_label_issues(votes.given, probability, n_jobs=1)
        return scores, flags
    workers, column = np.unique(votes.worker, return_inverse=True)
    dense = np.full((len(votes.given), len(workers)), np.nan)
    dense[votes.task, column] = votes.label
    for name, probability in {**plain, "h": h}.items():
        quality_tables = get_label_quality_multiannotator(dense, probability, verbose=False)
        # The quality of the given label stands at the annotators who gave it; it is the same for
        # all of them.
        quality = quality_tables["detailed_label_quality"].to_numpy()
        quality = np.where(dense == votes.given[:, None], quality, -np.inf).max(axis=1)
        scores[f"cleanlab CROWDLAB, {name}"] = 1 - quality
        preferred = quality_tables["label_quality"]
        doubt = 1 - preferred["consensus_quality_score"].to_numpy()
        scores[f"cleanlab consensus quality, {name}"] = doubt
        flags[f"CROWDLAB, {name}"] = preferred["consensus_label"].to_numpy() != votes.given
    return scores, flags


def our_scores(relabelled: dict[str, Any], votes: GivenLabels) -> dict[str, np.ndarray]:
    """Score by the result of `relabel`.

    `suspicion` is about all classes with the most votes. For one of them drawn at a tie, the forecast
    gives the same: one minus the probability of the label.

    Args:
        relabelled: columns of a relabelled data set.
        votes: on the same items.

    Returns:
        The suspicion, and what it would be with one half of the model alone.
    """
    forecast, h, g = (
        np.asarray(relabelled[f"{name}_posterior"])
        for name in ("forecast", "classifier", "aggregator")
    )
    written = np.asarray(relabelled["suspicion"], dtype=np.float64)
    drawn = 1 - votes.of_given(forecast)
    np.testing.assert_allclose(written[votes.single], drawn[votes.single], atol=1e-5)
    return {
        OURS: np.where(votes.single, written, drawn),
        PARTS[0]: votes.against_given(h),
        PARTS[1]: votes.against_given(g),
    }


def measure_scores(scores: dict[str, np.ndarray], wrong: np.ndarray) -> dict[str, dict[str, float]]:
    """Measure how well each score ranks wrong labels before right ones."""
    return {
        name: {
            "average_precision": float(average_precision_score(wrong, score)),
            "auroc": float(roc_auc_score(wrong, score)),
        }
        for name, score in scores.items()
    }


def measure_flags(flags: dict[str, np.ndarray], wrong: np.ndarray) -> dict[str, dict[str, float]]:
    """Measure how many flagged labels are wrong, and how many wrong ones are flagged."""
    return {
        name: {
            "flagged": int(flag.sum()),
            "precision": float(wrong[flag].mean()) if flag.any() else None,
            "recall": float(flag[wrong].mean()),
        }
        for name, flag in flags.items()
    }


AT_ONE_RATE: dict[str, Any] = {"init": "vote_share", "search_rate": False, "prior": "uniform"}
OF_LABELME = {"aggregator_learning_rate": 0.1, "aggregator_warmup_ratio": 0.5}


def build(
    world: World, seed: int, labelme_dir: str | None
) -> tuple[Dataset, type[MaxMIGTrainingArguments]]:
    """Return the training items, and the training arguments of the data's recipe."""
    if world.experts is None:
        return labelme.labelme(labelme_dir)["train"], labelme.RealCrowdTrainingArguments
    pictures = digits.digits(digits.DigitsArguments("independent", "high"), seed)["train"]
    # The features that `digits.py` computes from a picture in each step, computed once: half the time.
    processor = ViTImageProcessor(size={"height": 8, "width": 8})
    pixels = encoded(pictures, processor, flat=True)["features"][:]
    crowd = simulate_crowd(
        pictures["label"][:],
        world.experts,
        world.case,
        labels_per_item=world.labels_per_item,
        generator=torch.Generator().manual_seed(seed),
    )
    columns = {
        "features": pixels,
        "annotators": crowd.annotators.numpy(),
        "annotations": crowd.annotations.numpy(),
        "label": pictures["label"][:],
    }
    features = Features(
        features=List(Value("float32"), length=columns["features"].shape[1]),
        label=pictures.features["label"],
        **crowd_features(crowd.names, digits.CLASSES),
    )
    return Dataset.from_dict(columns, features=features), digits.DigitsTrainingArguments


def relabel(train: Dataset, training: MaxMIGTrainingArguments) -> dict[str, Any]:
    """Train the model and relabel each item with votes, in the order of the items."""
    numbered = train.add_column("number", list(range(len(train))))
    size, classes = train.features["features"].length, train.features["label"].num_classes
    trainer = MaxMIGTrainer(
        model=HeadClassifier(HeadConfig(input_size=size, num_labels=classes)),
        args=training,
        train_dataset=numbered,
    )
    trainer.train()
    relabelled = trainer.relabel(numbered)[:]
    order = [i for i in np.argsort(relabelled["number"]) if relabelled["annotations"][i]]
    return {name: [column[i] for i in order] for name, column in relabelled.items()}


def run(world: World, seed: int, labelme_dir: str | None = None, **changes: Any) -> dict[str, Any]:
    """Train in one world and measure every score there.

    Args:
        world: where.
        seed: of the crowd, if it is simulated, and of the training.
        labelme_dir: folder or archive.
        **changes: training arguments other than the recipe's.

    Returns:
        Base rate, the scores' and the flags' figures. Flags are measured where one class has the
        most votes, for `suspect` spares all classes of a tie.
    """
    train, recipe = build(world, seed, labelme_dir)
    with tempfile.TemporaryDirectory() as folder:
        rate = AT_ONE_RATE | (OF_LABELME if world.experts is None else {})
        training = recipe(folder, seed=seed, **rate, **QUIET, **changes)
        set_seed(seed)
        relabelled = relabel(train, training)
    classes = train.features["label"].num_classes
    votes = read_votes(relabelled["annotators"], relabelled["annotations"], classes)
    features = np.asarray(relabelled["features"], dtype=np.float32)
    scores = our_scores(relabelled, votes) | vote_scores(votes)
    flags = {"suspect": np.asarray(relabelled["suspect"])}
    if find_spec("crowdkit"):
        more = crowdkit_scores(votes)
        scores, flags = scores | more[0], flags | more[1]
    if find_spec("cleanlab"):
        h = np.asarray(relabelled["classifier_posterior"], dtype=np.float64)
        more = cleanlab_scores(votes, plain_posteriors(features, votes, training), h)
        scores, flags = scores | more[0], flags | more[1]
    wrong = votes.given != np.asarray(relabelled["label"])
    measured = measure_scores(scores, wrong)
    print(f"{world.name}, seed {seed}: {measured[OURS]['average_precision']:.3f}", flush=True)
    return {
        "seed": seed,
        "items": len(wrong),
        "votes": len(votes.task),
        "ties": int((~votes.single).sum()),
        "base_rate": float(wrong.mean()),
        "scores": measured,
        "flags": measure_flags({n: f[votes.single] for n, f in flags.items()}, wrong[votes.single]),
    }


def summarise(world: World, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Aggregate the seeds of a world, best score first."""

    def mean(values: list[float | None]) -> float | None:
        return None if None in values else round(statistics.mean(values), 4)

    scores, flags = {}, {}
    for name in runs[0]["scores"]:
        precisions = [run["scores"][name]["average_precision"] for run in runs]
        scores[name] = {
            "average_precision": mean(precisions),
            "deviation": round(statistics.stdev(precisions), 4) if len(runs) > 1 else None,
            "auroc": mean([run["scores"][name]["auroc"] for run in runs]),
            "average_precision_by_seed": [round(p, 4) for p in precisions],
        }
    for name, figures in runs[0]["flags"].items():
        flags[name] = {key: mean([run["flags"][name][key] for run in runs]) for key in figures}
    order = sorted(scores, key=lambda name: -scores[name]["average_precision"])
    return {
        "world": world.name,
        "items": runs[0]["items"],
        "votes": runs[0]["votes"],
        "ties": mean([run["ties"] for run in runs]),
        "base_rate": mean([run["base_rate"] for run in runs]),
        "scores": {name: scores[name] for name in order},
        "flags": flags,
    }


def best_of(world: dict[str, Any], package: str) -> str:
    """Name a package's best score that does not need our h: chosen by gold labels, in its favour."""
    names = [n for n in world["scores"] if n.startswith(package) and not n.endswith(", h")]
    return max(names, key=lambda n: world["scores"][n]["average_precision"])


def table(worlds: list[dict[str, Any]]) -> str:
    """Render the average precisions; of each package the best score, with hindsight."""
    lines = [f"{'average precision':36} base   ours   vote entropy"]
    for world in worlds:
        precision = {n: f"{s['average_precision']:.3f}" for n, s in world["scores"].items()}
        cells = [f"{world['base_rate']:.3f}", precision[OURS], precision["vote entropy"]]
        for package in RIVALS:
            if any(name.startswith(package) for name in precision):
                best = best_of(world, package)
                cells.append(f"{precision[best]} {best:38}")
        lines.append("  ".join([f"{world['world']:35}", *cells]).rstrip())
    return "\n".join(lines)


def main(arguments: Arguments) -> dict[str, Any]:
    for package, module in RIVALS.items():
        if not find_spec(module):
            print(f"{package} is not installed: its rows are left out.")
    worlds = [w for w in WORLDS if w.experts is not None or arguments.labelme_dir is not None]
    if len(worlds) < len(WORLDS):
        print("No --labelme_dir is given: LabelMe is left out.")
    jobs = [(w, seed, arguments.labelme_dir) for w in worlds for seed in range(arguments.seeds)]
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        runs = pool.starmap(run, jobs, chunksize=1)
    summaries = [
        summarise(world, runs[i * arguments.seeds : (i + 1) * arguments.seeds])
        for i, world in enumerate(worlds)
    ]
    rivals = {package: version(package) for package, module in RIVALS.items() if find_spec(module)}
    flags = {
        "--labelme_dir DIR": arguments.labelme_dir is not None, f"--seeds {arguments.seeds}": True,
        "--output_dir OUT": True,
    }  # fmt: skip
    result = {
        "command": command(__file__, flags),
        "seeds": list(range(arguments.seeds)),
        "worlds": summaries,
        **measured_with(torch, transformers, datasets, sklearn, np, **rivals),
    }
    write_results(Path(arguments.output_dir) / "suspects.json", result)
    print(table(summaries))
    return result


if __name__ == "__main__":
    start(main)
