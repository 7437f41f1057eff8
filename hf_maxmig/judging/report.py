"""One page on what was found: which annotators to trust, which labels look wrong, what to do about both.

The page is one file that asks for nothing from outside, written from `report.html`; its plots come
from `plots.py`, what it shows of an item from `showing.py`. Annotators and items are judged in
`annotators.py` and `relabel.py`, and what the console says of annotators too comes from there.
"""

import functools
import itertools
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import ClassLabel, Dataset, Value

from ..data.class_order import align_gold
from ..data.columns import GOLD_COLUMNS, check_is_dataset, crowd_names
from ..metrics import calibration, plurality_accuracy
from ..model.items import ALL_CROWD_COLUMNS, WEIGHTS_COLUMN
from ..model.version import __version__
from ..model.whole_files import staged
from .annotators import MAX_NAMED, AnnotatorReport
from .outlook import Outlook, Payment
from .plots import (
    agreement_plot,
    confusion_plot,
    gain_plot,
    information_plot,
    need_matplotlib,
    outlook_plot,
    quality_plot,
    reliability_plot,
)
from .questions import COLUMNS, as_csv
from .relabel import GOLD_USED, RELABELLED, Suspects
from .showing import MOST_BYTES, Showing, fitting
from .templates import templates
from .verdicts import TRUST, Verdict

_MEASURES = (
    ("accuracy", "classifier"),
    ("aggregator_accuracy", "aggregator"),
    ("forecast_accuracy", "forecast"),
)
_MAX_PAIRS = 20
_MAX_MAPS = 8
_MAX_HARDEST = 10
_MAX_QUESTIONS, _MAX_PAID = 20, 20
_ON_CARDS = (*ALL_CROWD_COLUMNS, "forecast", "confidence", "label_quality", "difficulty")


def write_report(
    path: str | os.PathLike[str],
    annotators: AnnotatorReport,
    *,
    title: str,
    summary: str,
    log_history: Sequence[Mapping[str, Any]] = (),
    relabelled: Dataset | None = None,
    metrics: Mapping[str, float] | None = None,
    max_annotators: int = 50,
    max_suspects: int = 60,
    gold_labels_used: int = 0,
    show: Sequence[str] | None = None,
    outlook: Outlook | None = None,
) -> Path:
    """Write what was found as one HTML page that needs nothing beside it.

    The page shows pictures, sounds in a player, texts, and the rows of a table. It stays under 8 MB:
    what would pass that is named instead, and the page says so.

    Args:
        path: of the page; folders on the way are made.
        annotators: what is known of the annotators.
        title: of the page.
        summary: of the crowd, lines of text.
        log_history: of `Trainer`'s state; `gain` and `eval_gain` are drawn.
        relabelled: the items with their forecasts, as `relabel` gives them; None leaves out all
            items.
        metrics: measured on an evaluation set, by their names in `all_results.json`.
        max_annotators: rows of the annotators' table; those to act on come first.
        max_suspects: suspect items shown, the most suspect first.
        gold_labels_used: how many gold labels the training used. Items that the column `gold_used` of
            `relabelled` marks are not measured against.
        show: columns of `relabelled` that the page shows of an item, in this order. None shows all but
            votes, gold labels, results and lists of numbers.
        outlook: what to ask next, and what the answers would bring; None leaves it out.

    Returns:
        Where the page is.

    Raises:
        ImportError: if matplotlib is absent.
        TypeError: if `annotators`, `relabelled`, `show` or a text is of another type, or a metric is
            not a number.
        ValueError: if `relabelled` lacks a column or is of other classes, a maximum is negative, or
            `show` names a column that is absent or cannot be shown.
    """
    need_matplotlib()
    for name, value in (("max_annotators", max_annotators), ("max_suspects", max_suspects)):
        if not isinstance(value, int):
            raise TypeError(f"`{name}` must be a whole number, got {value!r}.")
        if value < 0:
            raise ValueError(f"`{name}` must be at least 0, got {value}.")
    if not isinstance(annotators, AnnotatorReport):
        raise TypeError(
            f"`annotators` must be an AnnotatorReport, got {type(annotators).__name__}: "
            "`judge_annotators` makes one."
        )
    for name, text in (("title", title), ("summary", summary)):
        if not isinstance(text, str):
            raise TypeError(f"`{name}` must be text, got {type(text).__name__}.")
    if Path(path).is_dir():
        raise ValueError(f"`path` must be that of a file, got {path}: it is a folder.")
    _check_measured(log_history, metrics or {})
    if relabelled is not None:
        check_is_dataset(relabelled)
    items: dict[str, Any] | None = None
    gold, cards, hardest = np.zeros(0, dtype=np.int64), [], []
    if relabelled is not None:
        if missing := [name for name in RELABELLED if name not in relabelled.column_names]:
            raise ValueError(
                f"`relabelled` must have the columns of `relabel`, got none called {missing[0]!r}."
            )
        relabelled = relabelled.with_format(None)
        _check_posteriors(relabelled, annotators.classes)
        gold = _gold(align_gold(relabelled, annotators.classes), len(annotators.classes))
        if GOLD_USED in relabelled.column_names:
            gold = np.where(np.asarray(_column(relabelled, GOLD_USED)), -1, gold)
        items = _items(relabelled, gold, annotators.classes)
        suspects, hard = _most_suspect(relabelled, max_suspects), _hardest(relabelled)
        showing = Showing.of(relabelled, np.union1d(suspects, hard), show)
        cards = _cards(relabelled, suspects, gold, annotators, showing)
        hardest = _cards(relabelled, hard, gold, annotators, showing)
    group = np.array([Verdict.called(verdict).group for verdict in annotators.verdict])
    order = annotators.to_act_on_first()
    best = annotators.best()
    environment = templates(__package__)
    page = functools.partial(
        environment.get_template("report.html").render,
        title=title,
        summary=summary,
        crowd=annotators,
        items=items,
        cards=cards,
        rows=[_row(annotators, m) for m in order[:max_annotators]],
        groups=[[annotators.annotators[m] for m in order if group[m] == g] for g in range(3)],
        best=[annotators.annotators[m] for m in best],
        hardest=hardest,
        pairs=[_pair(annotators, pair) for pair in annotators.copies[:MAX_NAMED]],
        pairs_drawn=min(_MAX_PAIRS, len(annotators.copies)),
        evaluation=_evaluation(metrics or {}),
        plots=_plots(annotators, group, log_history, relabelled, gold),
        outlook=outlook,
        **_asking(annotators, outlook),
        maps=_maps(annotators, best, order),
        terms=_terms(),
        at_most=math.log(len(annotators.classes)),
        named=MAX_NAMED,
        gold_labels_used=gold_labels_used,
        gold_left_out=relabelled is not None and GOLD_USED in relabelled.column_names,
        versions=_versions(),
        most_megabytes=MOST_BYTES // 10**6,
    )
    draw = vars(environment.get_template("item.html").module)["draw"]
    parts = [part for card in cards for part in card["parts"]]
    bare = page(
        drawn={part: draw(part) for part in parts},
        left_out=Counter(part.kind for part in parts if part.more),
    )
    drawn, left_out = fitting(parts, draw, MOST_BYTES - len(bare.encode()))
    whole = page(drawn=drawn, left_out=Counter(part.kind for part in left_out))
    with staged(Path(path)) as place:
        place.write_text(whole, encoding="utf-8", newline="\n")
    return Path(path)


def _check_measured(log_history: Any, metrics: Any) -> None:
    """Raise unless the metrics are numbers by name, and the history is a list of such."""
    entries = log_history if isinstance(log_history, Sequence) else None
    if entries is None or not all(isinstance(entry, Mapping) for entry in entries):
        raise TypeError(
            "`log_history` must be a list of dicts, as `trainer.state.log_history` is, got "
            f"{type(log_history).__name__}."
        )
    if not isinstance(metrics, Mapping):
        raise TypeError(f"`metrics` must be a dict of numbers, got {type(metrics).__name__}.")
    for name in (f"{prefix}{name}" for name, _ in _MEASURES for prefix in ("eval_", "test_", "")):
        if name in metrics and not isinstance(metrics[name], int | float | np.number):
            raise TypeError(
                f"`metrics` must hold numbers, got {type(metrics[name]).__name__} for {name!r}."
            )


def _check_posteriors(dataset: Dataset, classes: Sequence[str]) -> None:
    """Raise if the items were relabelled with other classes."""
    for name in ("classifier", "aggregator", "forecast"):
        length = getattr(dataset.features[f"{name}_posterior"], "length", None)
        if length != len(classes):
            raise ValueError(
                f"`relabelled` must have {len(classes)} numbers in `{name}_posterior`, one a class of "
                f"`annotators`, got {length}."
            )


def _versions() -> dict[str, str]:
    found = {"hf_maxmig": __version__}
    for name in ("transformers", "torch", "datasets", "matplotlib"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a package may lie on the path uninstalled
            continue
    return found


# Annotators


def _row(report: AnnotatorReport, m: int) -> dict[str, Any]:
    return {
        "name": report.annotators[m],
        "verdict": Verdict.called(report.verdict[m]),
        "votes": int(report.votes[m]),
        "accuracy": float(report.accuracy[m]),
        "low": float(report.accuracy_low[m]),
        "high": float(report.accuracy_high[m]),
        "information": float(report.information[m]),
        "worst": report.worst_class(m),
        "reason": report.reason[m],
    }


def _terms() -> list[tuple[list[Verdict], str]]:
    """What each verdict means, those to trust first; verdicts of one meaning are together."""
    terms: dict[str, list[Verdict]] = {}
    for verdict in sorted(Verdict, key=lambda verdict: verdict.group):
        terms.setdefault(verdict.meaning, []).append(verdict)
    return [(verdicts, meaning) for meaning, verdicts in terms.items()]


def _asking(report: AnnotatorReport, outlook: Outlook | None) -> dict[str, Any]:
    """What the page shows of questions and payment, and all of it as files in links."""
    payments = Payment.of(report)
    rows = [
        (report.annotators[p.annotator], int(report.votes[p.annotator]), p.nats, p.share) for p in payments
    ]  # fmt: skip
    found: dict[str, Any] = {
        "payments": payments[:_MAX_PAID],
        "payments_in_all": len(payments),
        "payment_link": _link(["annotator", "votes", "nats", "share"], rows),
        "questions": [],
        "questions_link": "",
        "curve": "",
    }
    if outlook is not None:
        table = outlook.questions
        names = [name for name in table.column_names if name not in COLUMNS]
        shown = table.select(range(min(_MAX_QUESTIONS, len(table)))).to_list()
        for row in shown:
            own = row[names[0]] if names else None
            row["name"] = f"row {row['item']}" if own is None else str(own)
        found["questions"] = shown
        found["curve"] = outlook_plot(outlook.right) if shown else ""
        found["questions_link"] = _link(
            table.column_names, ([*row.values()] for row in table.to_list())
        )
    return found


def _link(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Put a table into a link, as a file to download."""
    return f"data:text/csv;charset=utf-8,{quote(as_csv(names, rows), errors='replace')}"


def _pair(report: AnnotatorReport, pair: Any) -> dict[str, Any]:
    names = report.annotators
    return {"one": names[pair.source], "other": names[pair.annotator], "found": pair}


# Items


def _column(dataset: Dataset, name: str) -> pa.Array:
    return dataset.select_columns([name]).with_format("arrow")[:][name].combine_chunks()


def _probabilities(dataset: Dataset, name: str, classes: int) -> np.ndarray:
    return np.asarray(_column(dataset, name).flatten()).reshape(-1, classes)


def _gold(dataset: Dataset, classes: int) -> np.ndarray:
    """(N,) gold labels, -1 where there is none."""
    for name in GOLD_COLUMNS:
        feature = dataset.features.get(name)
        if isinstance(feature, ClassLabel) or (
            isinstance(feature, Value) and pa.types.is_integer(feature.pa_type)
        ):
            gold = np.asarray(pc.fill_null(_column(dataset, name).cast(pa.int64()), -1))
            return np.where((gold >= 0) & (gold < classes), gold, -1)
    return np.full(len(dataset), -1)


def _items(dataset: Dataset, gold: np.ndarray, classes: Sequence[str]) -> dict[str, Any]:
    """What is known of N items together, and how often each answer is right by gold labels."""
    suspect = np.asarray(pc.fill_null(_column(dataset, "suspect"), False))
    unvoted = np.asarray(_column(dataset, "suspicion").is_null())
    confidence = np.asarray(_column(dataset, "confidence"), dtype=float)
    quality = _numbers(dataset, "label_quality")
    with_gold = np.flatnonzero(gold >= 0)
    known = dataset.select(with_gold)
    number = pa.array(list(classes), pa.string())
    plurality = np.asarray(
        pc.fill_null(pc.index_in(_column(known, "plurality").cast(pa.string()), number), -1)
    )
    answers = {
        name: _probabilities(known, f"{name}_posterior", len(classes)).argmax(axis=1)
        for name in ("classifier", "aggregator", "forecast")
    }
    voted = ~unvoted[with_gold]
    shares = _shares(known, len(classes))
    with_votes = shares.sum(dim=1) > 0
    scores = [
        (what, float((answer[taken] == gold[with_gold][taken]).mean()), int(taken.sum()))
        for what, answer, taken in (
            ("aggregator", answers["aggregator"], voted),
            ("classifier", answers["classifier"], voted | True),
            ("forecast", answers["forecast"], voted | True),
        )
        if taken.any()
    ]
    if with_votes.any():
        right = plurality_accuracy(
            shares[with_votes], torch.from_numpy(gold[with_gold])[with_votes]
        )
        scores.insert(0, ("plurality of the votes", right, int(with_votes.sum())))
    judged = suspect[with_gold] & (plurality >= 0)
    suspects = Suspects.of(dataset)
    # A measurement counts for more than an expectation.
    hits = (answers["forecast"] == gold[with_gold])[suspect[with_gold]]
    measured = float(hits.mean()) if len(hits) else None
    return {
        "number": len(dataset),
        "without_votes": int(unvoted.sum()),
        "weighted_votes": _weighted(dataset),
        "suspects": suspects.number,
        "suspects_forecast": suspects.forecast,
        "suspects_crowd": suspects.crowd,
        "suspects_measured": measured,
        "suspects_with_gold": int(suspect[with_gold].sum()),
        "take_forecasts": suspects.take_forecasts and (measured is None or measured > 0.5),
        "expected": float(np.nanmean(confidence)) if len(dataset) else math.nan,
        "with_gold": len(with_gold),
        "scores": scores,
        "judged": int(judged.sum()),
        "judged_wrong": int((judged & (plurality != gold[with_gold])).sum()),
        "quality": float(quality[~unvoted].mean()) if (~unvoted).any() else math.nan,
    }


def _shares(dataset: Dataset, classes: int) -> torch.Tensor:
    """(N, C) vote shares; zeros without votes."""
    counts = torch.zeros(len(dataset), classes, dtype=torch.float64)
    if "annotations" in dataset.column_names:
        said = _column(dataset, "annotations").to_pylist()
        weights: list[Any] = [itertools.repeat(1.0)] * len(said)
        if WEIGHTS_COLUMN in dataset.column_names:
            weights = _column(dataset, WEIGHTS_COLUMN).to_pylist()
        for count, votes, each in zip(counts, said, weights, strict=True):
            for c, weight in zip(votes or (), each, strict=False):
                if c is not None and c >= 0:
                    count[c] += weight
    total = counts.sum(dim=1, keepdim=True)
    return counts / torch.where(total > 0, total, 1.0)


def _weighted(dataset: Dataset) -> int:
    """Count the votes, or parts of them, that do not count in full."""
    if WEIGHTS_COLUMN not in dataset.column_names:
        return 0
    weights = np.asarray(pc.list_flatten(_column(dataset, WEIGHTS_COLUMN)))
    return int((weights < 1).sum())


def _evaluation(metrics: Mapping[str, float]) -> dict[str, float]:
    """Accuracies of the evaluation set, by what they are of."""
    return {
        what: float(metrics[key])
        for name, what in _MEASURES
        for key in (f"eval_{name}", f"test_{name}", name)
        if key in metrics
    }


def _numbers(dataset: Dataset, name: str) -> np.ndarray:
    """(N,), NaN where there is none."""
    return np.asarray(pc.fill_null(_column(dataset, name).cast(pa.float64()), math.nan))


def _most_suspect(dataset: Dataset, most: int) -> np.ndarray:
    """Rows of the most suspect items."""
    suspect = np.asarray(pc.fill_null(_column(dataset, "suspect"), False))
    suspicion = np.nan_to_num(_numbers(dataset, "suspicion"))
    rows = np.flatnonzero(suspect)
    return rows[np.argsort(-suspicion[rows], kind="stable")][:most]


def _hardest(dataset: Dataset) -> np.ndarray:
    """Rows of the items whose votes are expected to be wrong most often."""
    difficulty = np.nan_to_num(_numbers(dataset, "difficulty"))
    rows = np.argsort(-difficulty, kind="stable")[:_MAX_HARDEST]
    return rows[difficulty[rows] > 0]


def _cards(
    dataset: Dataset,
    rows: np.ndarray,
    gold: np.ndarray,
    report: AnnotatorReport,
    showing: Showing,
) -> list[dict[str, Any]]:
    """Some of the items as the page shows them."""
    (names, classes), features = crowd_names(dataset), dataset.features
    cards = []
    for i, row in zip(rows, showing.read(dataset, rows, _ON_CARDS), strict=True):
        parts = showing.parts(row, features, int(i))
        cards.append(
            {
                "name": showing.name(row, int(i)),
                "parts": parts,
                "pictured": any(part.kind == "picture" for part in parts),
                "snippet": showing.snippet(row, features),
                "votes": votes_on(row, names or report.annotators, classes or report.classes),
                "forecast": row["forecast"],
                "confidence": row["confidence"],
                "quality": row["label_quality"],
                "difficulty": row["difficulty"],
                "gold": report.classes[gold[i]] if gold[i] >= 0 else None,
            }
        )
    return cards


def votes_on(
    row: Mapping[str, Any], annotators: Sequence[str], classes: Sequence[str]
) -> list[dict[str, Any]]:
    """Who said what of an item, the most frequent first."""
    said = row.get("annotations") or []
    who = row.get("annotators", range(len(said)))  # a dense column has a place an annotator
    names: dict[int, list[str]] = {}
    weights = row.get(WEIGHTS_COLUMN) or [1.0] * len(said)
    for m, c, weight in zip(who, said, weights, strict=True):
        if c is not None and c >= 0 and weight > 0:
            faint = "" if weight == 1 else f" ({weight:.2f})"
            names.setdefault(c, []).append(f"{annotators[m]}{faint}")
    most_first = sorted(names, key=lambda c: (-len(names[c]), c))
    return [{"label": classes[c], "names": names[c]} for c in most_first]


# Pictures


def _plots(
    report: AnnotatorReport,
    group: np.ndarray,
    log_history: Iterable[Mapping[str, Any]],
    relabelled: Dataset | None,
    gold: np.ndarray,
) -> dict[str, str]:
    """The pictures there is something to draw in, by name."""
    plots = {}
    if ((report.votes > 0) & np.isfinite(report.information)).any():
        plots["information"] = information_plot(
            report.votes, report.information, group, report.annotators
        )
    if report.copies:
        plots["agreement"] = agreement_plot(report.copies[:_MAX_PAIRS], report.annotators)
    if relabelled is not None and len(quality := _numbers(relabelled, "label_quality")):
        quality = quality[np.isfinite(quality)]
        if len(quality):
            plots["quality"] = quality_plot(quality)
    log_history = list(log_history)
    unit = "epoch" if all("epoch" in entry for entry in log_history) else "step"
    curves = {
        name: curve
        for key, name in (("gain", "training"), ("eval_gain", "evaluation"))
        if (curve := _curve(log_history, key, unit))[0]
    }
    if curves:
        plots["gain"] = gain_plot(curves, unit)
    if relabelled is not None and (gold >= 0).any():
        known = relabelled.select(np.flatnonzero(gold >= 0))
        posteriors = {
            name: _probabilities(known, f"{name}_posterior", len(report.classes))
            for name in ("classifier", "forecast")
        }
        plots["reliability"] = reliability_plot(
            {
                name: calibration(np.clip(p.max(axis=1), 0, 1), p.argmax(axis=1) == gold[gold >= 0])
                for name, p in posteriors.items()
            }
        )
    return plots


def _curve(
    log_history: Iterable[Mapping[str, Any]], key: str, unit: str
) -> tuple[list[float], list[float]]:
    found: dict[float, float] = {}
    for entry in log_history:
        if all(
            isinstance(entry.get(k), int | float) and math.isfinite(entry[k]) for k in (unit, key)
        ):
            # What is measured once more after the training may be another epoch's.
            found.setdefault(float(entry[unit]), float(entry[key]))
    points = list(found.items())
    points = points[:: max(1, len(points) // 500)]
    return [x for x, _ in points], [y for _, y in points]


def _maps(
    report: AnnotatorReport, best: Sequence[int], order: Sequence[int]
) -> list[dict[str, Any]]:
    """Confusions of the best annotators, then of those to act on, one of each verdict in turn.

    Of annotators with too few votes little is known; they only fill up what room is left.
    """
    known = (report.votes > 0) & np.isfinite(report.confusion).all(axis=(1, 2))
    trusted = [m for m in best if known[m]]
    doubtful: list[tuple[int, int, int]] = []
    unknown: list[int] = []
    turn: Counter[str] = Counter()
    for m in order:
        verdict = Verdict.called(report.verdict[m])
        if known[m] and verdict is Verdict.TOO_FEW:
            unknown.append(m)
        elif known[m] and verdict.group != TRUST:
            turn[report.verdict[m]] += 1
            doubtful.append((turn[report.verdict[m]], len(doubtful), m))
    chosen = trusted[: max(_MAX_MAPS // 2, _MAX_MAPS - len(doubtful))]
    chosen += [m for _, _, m in sorted(doubtful)[: _MAX_MAPS - len(chosen)]]
    chosen += unknown[: _MAX_MAPS - len(chosen)]
    maps = []
    for m in chosen:
        plot, shown = confusion_plot(
            f"map-{m}", report.confusion[m], report.counts[m], report.classes
        )
        maps.append({"plot": plot, "shown": shown, **_row(report, m)})
    return maps
