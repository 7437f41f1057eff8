r"""The cells of `benchmark.py` as numbers: read, averaged over seeds, beside those of the paper.

    cells = read_cells(Path("out/benchmark"), Path("results/luna16.json"))
    for result in results(cells, pick="last"):
        print(result.dataset, result.row("max_mig", "accuracy"))

Not a recipe itself. `benchmark_tables.py` writes them down, `benchmark_figure.py` draws them.
"""

import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from hf_maxmig import MaxMIGModel
from hf_maxmig.data.simulated.beyond import MORE_CASES
from hf_maxmig.data.simulated.simulation import CASES
from hf_maxmig.peers import PEERS

Cell = dict[str, Any]
Crowd = tuple[str | None, str | None]  # case and expertise; neither, of a real crowd

LEVELS = ("high", "low")
CROWDS: dict[Crowd, str] = {
    # as the paper numbers them
    (case, level): f"4.{number}({level[0].upper()})"
    for level in LEVELS
    for number, case in enumerate(CASES, start=1)
}
BEYOND: dict[Crowd, str] = {
    # the paper's cases, in tables of their own
    (case, level): f"{case.replace('_', ' ')} ({level[0].upper()})"
    for level in LEVELS
    for case in MORE_CASES
}
REAL: Crowd = (None, None)
MEASURES = {
    "accuracy": "Classifier (d)",
    "forecast_accuracy": "Data-crowds forecaster (dc)",
    "aggregator_accuracy": "Aggregator",
}
CERTAINTY = {
    # of the classifier, and of the forecaster where the method has one; the lower, the better
    f"{prefix}{name}": f"{title} {of}"
    for prefix, of in (("", "(d)"), ("forecast_", "(dc)"))
    for name, title in (("nll", "NLL"), ("brier", "Brier score"), ("ece", "Calibration error"))
}
ANNOTATORS = {
    # of P(vote is right), and of the confusion matrices; see `benchmark.of_annotators`
    "annotators_accuracy": "Accuracy",
    "annotators_auroc": "AUROC",
    "annotators_brier": "Brier score",
    "annotators_ece": "Calibration error",
    "annotators_confusion_error": "Error of the matrices",
}
HIGHER = {*MEASURES, "annotators_accuracy", "annotators_auroc"}  # is better; of the others, lower
SHORT = {"accuracy": "(d)", "forecast_accuracy": "(dc)"}  # as the paper calls them
PICKS = {
    "last": "of the last epoch",
    "label_free": "of the epoch picked without gold labels (by the gain on held-out votes)",
    "best_on_test": "of the best epoch on the test items (no fair number: what picks it also measures it)",
}
ITEMS = {"test": "test", "train": "training"}
BFLOAT16 = re.compile(r"--bf16\b(?![ =]False)")  # in the command of a cell
KEY = ("dataset", "method", "case", "expertise", "seed")  # which cell it is
THINNED = ("votes_per_item", "num_annotators")  # and of those of `thinned.py`
KEYS = {*KEY, "last"}  # what makes a cell

DATASETS = {
    "digits": "Digits",
    "luna16": "LUNA16",
    "dogs_vs_cats": "Dogs vs. Cats",
    "cifar10": "CIFAR-10",
    "cifar10_features": "CIFAR-10, given features",
    "labelme": "LabelMe",
    "labelme_images": "LabelMe, photographs by Lite0",
    "music": "Music",
    "sentiment": "Sentiment, a head on a frozen encoder",
    "sentiment_fine_tuned": "Sentiment, the whole encoder",
    "cifar10n": "CIFAR-10N",
    "cifar10n_features": "CIFAR-10N, given features",
}
BEYOND_PAPER = ", more crowds"  # behind a data set's name
AFTER_WAUM = "_waum"  # behind a method's name, where `waum_filter` has left out items before it
BELOW = 1.0  # points by which a number must be lower to count as clearly lower
CEILING = "true_labels"
FAMILIES = {
    # what a method does with the votes; those of no family are by themselves
    "Max-MIG": ("max_mig", "max_mig_vote_share", "max_mig_factored", "max_mig_cross_fit"),
    "votes as labels": ("majority_vote", "soft_vote"),
    "aggregated, then trained on": (
        "dawid_skene", "one_coin_dawid_skene", "glad", "kos", "mace", "mmsr", "wawa", "zero_based_skill", "crowdlab"
    ),
    "expectation and maximisation": ("aggnet", "mbem", "raykar"),
    "one output per annotator": ("doctor_net", "doctor_net_weighted"),
    "a matrix per annotator": (
        "crowd_layer", "crowd_layer_vote_share", "spee_lfc", "trace", "geo_f", "geo_w", "coin_net", "union_net",
        "union_net_b", "conal"
    ),
    "a matrix or reliability per vote": ("crowd_ar", "annot_mix", "madl"),
}  # fmt: skip
OURS, OTHERS = "Max-MIG", "others"  # a row of `FAMILIES`, and methods of none
METHODS = {
    # display names, in the order of the rows
    **{name: model.method for name, (model, _) in PEERS.items() if isinstance(model.method, str)},
    "crowd_layer_vote_share": "Crowd Layer, eq. 2 start",
    "spee_lfc": "SpeeLFC",
    "trace": "Trace Regularisation",
    "geo_f": "GeoCrowdNet-F",
    "geo_w": "GeoCrowdNet-W",
    "union_net": "Union-Net A",
    "union_net_b": "Union-Net B",
    "doctor_net_weighted": "Doctor Net, learned weights",
    "dawid_skene": "Dawid-Skene",
    "one_coin_dawid_skene": "One-coin Dawid-Skene",
    "glad": "GLAD",
    "kos": "KOS",
    "mace": "MACE",
    "mmsr": "MMSR",
    "wawa": "Wawa",
    "zero_based_skill": "Zero-based skill",
    "max_mig": MaxMIGModel.method,
    "max_mig_vote_share": f"{MaxMIGModel.method}, eq. 2 start",
    "max_mig_factored": f"{MaxMIGModel.method}, factored",
    "max_mig_cross_fit": f"{MaxMIGModel.method}, cross-fitted",
}
# The paper starts Crowd Layer at the identity, and on CIFAR-10 at equation 2 (Appendix B.2).
OF_PAPER = (
    "majority_vote", "crowd_layer", "crowd_layer_vote_share", "doctor_net", "aggnet", "max_mig"
)  # fmt: skip
SHOWN = (*OF_PAPER, "max_mig_vote_share")  # in the figure and on the page of results


class Number(NamedTuple):
    """A measure over several seeds; those of `MEASURES` are in percent.

    Args:
        mean: over the seeds.
        deviation: the standard deviation, with n - 1; None for one seed, or where it is not stated.
        seeds: their number; None if it is not stated.
        by_seed: the measure of each seed, where it was measured here.
    """

    mean: float
    deviation: float | None = None
    seeds: int | None = None
    by_seed: Mapping[int, float] = MappingProxyType({})


def _printed(*means: float) -> tuple[Number, ...]:
    return tuple(Number(mean) for mean in means)


PAPER: dict[str, dict[str, dict[str, tuple[Number, ...]]]] = {
    # data set: measure: method: as printed, in the order of `CROWDS`; all of the best test epoch
    "labelme": {  # Table 2
        "accuracy": {
            "majority_vote": (Number(80.41, 0.56),),
            "crowd_layer": (Number(83.65, 0.50),),
            "doctor_net": (Number(80.56, 0.59),),
            "aggnet": (Number(85.20, 0.26),),
            "max_mig": (Number(86.42, 0.36),),
        },
    },
    # Table 3
    "dogs_vs_cats": {
        "accuracy": {
            "max_mig": _printed(79.52, 80.25, 78.94, 71.44, 71.07, 68.40),
            "aggnet": _printed(79.36, 79.53, 71.97, 70.46, 70.07, 63.85),
        },
        "forecast_accuracy": {
            "max_mig": _printed(88.80, 87.60, 87.17, 73.99, 73.38, 70.75),
            "aggnet": _printed(88.00, 88.56, 75.00, 71.27, 70.75, 61.14),
        },
    },
    "cifar10": {
        "accuracy": {
            "max_mig": _printed(86.33, 86.55, 86.71, 70.16, 69.99, 67.59),
            "aggnet": _printed(86.13, 86.27, 63.91, 70.21, 62.50, 38.27),
        },
        "forecast_accuracy": {
            "max_mig": _printed(98.10, 98.18, 99.06, 75.55, 75.11, 72.47),
            "aggnet": _printed(99.05, 99.01, 70.01, 74.76, 72.02, 29.03),
        },
    },
    "luna16": {
        "accuracy": {
            "max_mig": _printed(90.88, 91.06, 91.15, 88.90, 89.04, 88.85),
            "aggnet": _printed(89.56, 90.23, 83.47, 81.42, 83.53, 81.68),
        },
        "forecast_accuracy": {
            "max_mig": _printed(94.56, 93.97, 92.63, 91.16, 91.23, 92.05),
            "aggnet": _printed(91.13, 91.94, 65.14, 70.97, 74.41, 61.76),
        },
    },
}


# Reading


def read_cells(*places: Path) -> list[Cell]:
    """Read what `benchmark.py` wrote.

    Args:
        *places: folders, of which every `*.json` is read, in folders below too, or files: a cell or
            a list of cells each. A file in a folder that holds something else is skipped.

    Returns:
        The cells, in the order of the places and of the files' names.

    Raises:
        FileNotFoundError: if a place isn't there.
        ValueError: if a file is broken, one named directly holds no cells, a cell has an unknown
            case or expertise, or two are of the same data set, method, crowd and seed.
    """
    files: dict[Path, bool] = {}  # whether it was named directly
    for place in places:
        if not place.exists():
            raise FileNotFoundError(
                f"`places` must be folders or files, got {place}: nothing is there."
            )
        if place.is_dir():
            for file in sorted(place.rglob("*.json")):
                # A folder whose name starts with a dot holds files that are being written.
                if not any(part.startswith(".") for part in file.relative_to(place).parts):
                    files.setdefault(file, False)
        else:
            files[place] = True
    found: dict[tuple[Any, ...], tuple[Path, Cell]] = {}
    for file, named in files.items():
        for cell in _cells_of(file, named):
            key = tuple(cell[name] for name in (*KEY, *THINNED) if name in cell)
            if key in found:
                raise ValueError(
                    f"`places` must hold each cell once, got {', '.join(map(str, key))} in "
                    f"{found[key][0]} and in {file}: leave one of them out."
                )
            found[key] = file, cell
    return [cell for _, cell in found.values()]


def _cells_of(file: Path, named: bool) -> list[Cell]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} must be JSON, got a file that is broken: {error}.") from error
    rows = content if isinstance(content, list) else [content]
    cells = [row for row in rows if isinstance(row, dict) and row.keys() >= KEYS]
    if len(cells) < len(rows) and (cells or named):
        raise ValueError(
            f"{file} must be a cell of the benchmark or a list of them, got "
            f"{len(rows) - len(cells)} of {len(rows)} without {', '.join(sorted(KEYS))}."
        )
    for cell in cells:
        crowd = (cell["case"], cell["expertise"])
        if crowd not in {*CROWDS, *BEYOND, REAL}:
            raise ValueError(
                f"{file}: case and expertise must be one of {', '.join((*CASES, *MORE_CASES))} and one of "
                f"{', '.join(LEVELS)}, or null both, got {crowd[0]!r} and {crowd[1]!r}."
            )
    return cells


# Averaging


class Results(NamedTuple):
    """What was measured on a data set.

    Args:
        dataset: its name; with `BEYOND_PAPER` behind it where the crowds are beyond the paper's cases.
        crowds: the paper's six, those measured beyond its cases, or the real one.
        methods: those that have a cell, in the order of `METHODS`, without `true_labels`.
        numbers: by method, crowd and measure, a row of `MEASURES`, `CERTAINTY` or `ANNOTATORS`;
            `true_labels` has one for any crowd.
        items: which items forecaster and aggregator are measured on.
        cells: how many trainings there were.
        in_bfloat16: how many of them in bfloat16.
    """

    dataset: str
    crowds: tuple[Crowd, ...]
    methods: list[str]
    numbers: dict[tuple[str, Crowd, str], Number]
    items: str
    cells: int
    in_bfloat16: int

    def row(self, method: str, measure: str) -> tuple[Number | None, ...]:
        """The numbers of a method, crowd by crowd; None where nothing was measured."""
        return tuple(self.numbers.get((method, crowd, measure)) for crowd in self.crowds)

    def printed(self, measure: str) -> dict[str, tuple[Number, ...]]:
        """The paper's numbers for these crowds, by method."""
        rows = PAPER.get(self.dataset, {}).get(measure, {})
        return {name: row for name, row in rows.items() if len(row) == len(self.crowds)}

    @property
    def ceiling(self) -> Number | None:
        """The classifier trained on gold labels."""
        return self.numbers.get((CEILING, REAL, "accuracy"))


def results(cells: Iterable[Cell], pick: str = "last") -> list[Results]:
    """Average over seeds.

    Args:
        cells: of any data sets.
        pick: one of `PICKS`.

    Returns:
        One for each data set, in the order of `DATASETS`; then those of crowds beyond the paper's cases.

    Raises:
        ValueError: if there are no cells or no such pick, or a data set has cells of a simulated
            crowd and of a real one.
    """
    if pick not in PICKS:
        raise ValueError(f"`pick` must be one of {', '.join(PICKS)}, got {pick!r}.")
    by_dataset = defaultdict(list)
    for cell in cells:
        by_dataset[cell["dataset"]].append(cell)
    if not by_dataset:
        raise ValueError("`cells` must hold at least one cell, got none.")
    groups = {}
    for dataset, of_dataset in by_dataset.items():
        groups |= _paper_and_beyond(dataset, of_dataset)
    return [_results(dataset, groups[dataset], pick) for dataset in ordered(groups, DATASETS)]


def _crowd(cell: Cell) -> Crowd:
    return cell["case"], cell["expertise"]


def _paper_and_beyond(dataset: str, cells: list[Cell]) -> dict[str, list[Cell]]:
    """Separate the cells of crowds beyond the paper's cases; the ceiling belongs to all crowds."""
    compared = [cell for cell in cells if cell["method"] != CEILING]
    ceiling = [cell for cell in cells if cell["method"] == CEILING]
    of_crowd = {_crowd(cell) for cell in compared}
    if REAL in of_crowd and len(of_crowd) > 1:
        raise ValueError(
            f"`cells` of {dataset} must all have a case and expertise or none of them (but for "
            f"{CEILING}), got both."
        )
    beyond = [cell for cell in compared if _crowd(cell) in BEYOND]
    others = [cell for cell in compared if _crowd(cell) not in BEYOND]
    groups = {dataset: others, dataset + BEYOND_PAPER: beyond}
    kept = {name: group + ceiling for name, group in groups.items() if group}
    return kept or {dataset: ceiling}


def _results(dataset: str, cells: list[Cell], pick: str) -> Results:
    values: dict[tuple[str, Crowd, str], dict[int, float]] = defaultdict(dict)
    items = set()
    for cell in cells:
        for measure, value in _measured(cell, pick).items():
            values[cell["method"], _crowd(cell), measure][cell["seed"]] = value
            if measure in ("aggregator_accuracy", "forecast_accuracy", *ANNOTATORS):
                items.add(ITEMS[cell.get("forecast_items", "test")])
    of_crowd = {_crowd(cell) for cell in cells if cell["method"] != CEILING}
    crowds: tuple[Crowd, ...] = (REAL,)
    if of_crowd - {REAL}:
        beyond = tuple(crowd for crowd in BEYOND if crowd in of_crowd)
        crowds = beyond or tuple(CROWDS)
    return Results(
        dataset=dataset,
        crowds=crowds,
        methods=ordered({cell["method"] for cell in cells} - {CEILING}, METHODS),
        numbers={key: average(several) for key, several in values.items()},
        items=" and ".join(sorted(items)) or "test",
        cells=len(cells),
        in_bfloat16=sum(bool(BFLOAT16.search(cell.get("command", ""))) for cell in cells),
    )


def _measured(cell: Cell, pick: str) -> dict[str, float]:
    """The measures of a cell in a pick; older cells lack some of them."""
    row = cell.get(pick) or {}
    found = {name: 100 * row[name] for name in MEASURES if name in row}
    found |= {name: row[name] for name in CERTAINTY if name in row}
    if pick == "last":  # measured once, at the end
        known = cell.get("annotators", {})
        each = {name: known.get(name.removeprefix("annotators_")) for name in ANNOTATORS}
        found |= {name: value for name, value in each.items() if value is not None}
    return found


def average(by_seed: Mapping[int, float]) -> Number:
    """Average over seeds."""
    values = list(by_seed.values())
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Number(statistics.mean(values), deviation, len(values), by_seed)


def standard_error(one: Number, other: Number) -> float | None:
    """Return the standard error of the difference of two means.

    It is the paired one if both were measured with the same seeds, as a seed draws crowd, network and batches of both;
    else Welch's.

    Args:
        one: a measure of one method.
        other: the same of another.

    Returns:
        None if one of them has a single seed.

    Example:
        >>> one, other = average({0: 80.0, 1: 84.0}), average({0: 81.0, 1: 86.0})
        >>> round(standard_error(one, other), 3)
        0.5
        >>> round(standard_error(one, average({0: 81.0, 1: 86.0, 2: 83.5})), 3)
        2.466
    """
    if len(one.by_seed) < 2 or len(other.by_seed) < 2:
        return None
    if one.by_seed.keys() == other.by_seed.keys():
        differences = [one.by_seed[seed] - other.by_seed[seed] for seed in one.by_seed]
        return statistics.stdev(differences) / math.sqrt(len(differences))
    parts = [statistics.variance(n.by_seed.values()) / len(n.by_seed) for n in (one, other)]
    return math.sqrt(sum(parts))


def within_error(one: Number, other: Number) -> bool:
    """Return whether two means are no further apart than the standard error of their difference.

    Of a single seed there is no standard error, so the answer is no.
    """
    error = standard_error(one, other)
    return error is not None and abs(one.mean - other.mean) <= error


def clearly_below(
    crowds: Sequence[Crowd], numbers: Sequence[Number | None], others: Sequence[Number | None]
) -> list[Crowd]:
    """Return the crowds in which a number is lower than the other by more than `BELOW`.

    Args:
        crowds: of both.
        numbers: one a crowd; None where nothing was measured.
        others: likewise.
    """
    return [
        crowd
        for crowd, number, other in zip(crowds, numbers, others, strict=True)
        if number and other and number.mean < other.mean - BELOW
    ]


# Names


def method_name(method: str) -> str:
    """Return a method's display name."""
    plain = method.removesuffix(AFTER_WAUM)
    name = METHODS.get(plain, plain)
    return name if plain == method else f"{name} + WAUM"


def family(method: str) -> str:
    """Return the row of `FAMILIES` that a method is in."""
    plain = method.removesuffix(AFTER_WAUM)
    return next((name for name, members in FAMILIES.items() if plain in members), OTHERS)


def crowd_name(crowd: Crowd) -> str:
    """Return the name of a simulated crowd in a table."""
    return CROWDS.get(crowd) or BEYOND[crowd]


def dataset_name(dataset: str) -> str:
    """Return a data set's display name."""
    name = dataset.removesuffix(BEYOND_PAPER)
    return DATASETS.get(name, name) + dataset[len(name) :]


def ordered(names: Iterable[str], first: Iterable[str]) -> list[str]:
    """Sort names: those in `first` in that order, then the others."""
    names = set(names)
    known = [name for name in first if name in names]
    return known + sorted(names - set(known))
