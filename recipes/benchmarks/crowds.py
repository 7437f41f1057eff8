"""Real crowds with gold labels, read from a folder of their published files, as votes alone.

What lives here: a reader for each crowd, and Dawid and Skene's confusions by EM as a quick stand-in
for a trained aggregator. Gold labels are handed on for measuring only.

| folder | files | source |
|---|---|---|
| `sentiment`, `labelme` | `answers.txt`, one row per item, -1 for no vote; one gold label per row | Rodrigues & Pereira, AAAI 2018 |
| `music` | `mturk_answers.csv` | Rodrigues et al., Pattern Recognition Letters 2013 |
| `bluebirds` | `labels.yaml`, `gt.yaml` | Welinder et al., NIPS 2010 |
| `dogs_labels` | `answer.csv`, `truth.csv` | Zhou et al., NIPS 2012 |
| `leaves` | `NAME.resp`, `NAME.gold` | CrowdwiseKit |
"""

import csv
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

_STEPS, _STRENGTH = 50, 4.0  # of EM; prior votes per row, drawing it to the crowd's


class Crowd(NamedTuple):
    """V votes on N items, and the gold labels.

    Args:
        item: (V,) int64, ascending.
        annotator: (V,) int64.
        annotation: (V,) int64.
        gold: (N,) int64, -1 where there is none; for measuring only.
        annotators: M names.
        classes: C names.
        items: N names.
    """

    item: np.ndarray
    annotator: np.ndarray
    annotation: np.ndarray
    gold: np.ndarray
    annotators: list[str]
    classes: list[str]
    items: list[str]

    def padded(self) -> tuple[np.ndarray, np.ndarray]:
        """Return annotators and annotations, (N, K) each, padded with -1."""
        given = np.bincount(self.item, minlength=len(self.gold))
        slot = np.arange(len(self.item)) - (given.cumsum() - given)[self.item]
        who = np.full((len(self.gold), int(given.max())), -1)
        said = who.copy()
        who[self.item, slot], said[self.item, slot] = self.annotator, self.annotation
        return who, said

    def confusions(self) -> tuple[np.ndarray, np.ndarray]:
        """Run Dawid and Skene's EM on the votes: (M, C, C) and (C,), probabilities."""
        M, C = len(self.annotators), len(self.classes)
        posterior = np.full((len(self.gold), C), 1e-9)
        np.add.at(posterior, (self.item, self.annotation), 1)
        posterior /= posterior.sum(axis=1, keepdims=True)
        for _ in range(_STEPS):
            counts = np.zeros((M, C, C))
            np.add.at(
                counts.transpose(0, 2, 1), (self.annotator, self.annotation), posterior[self.item]
            )
            pooled = counts.sum(axis=0) + 1
            pooled /= pooled.sum(axis=1, keepdims=True)
            confusion = (counts + _STRENGTH * pooled) / (
                counts.sum(axis=2, keepdims=True) + _STRENGTH
            )
            prior = posterior.mean(axis=0)
            logits = np.tile(np.log(prior), (len(self.gold), 1))
            spoken = np.log(confusion).transpose(0, 2, 1)[self.annotator, self.annotation]
            np.add.at(logits, self.item, spoken)
            posterior = np.exp(logits - logits.max(axis=1, keepdims=True))
            posterior /= posterior.sum(axis=1, keepdims=True)
        return confusion, prior


def _crowd(votes: Iterable[tuple[Any, Any, Any]], gold: Mapping[Any, Any]) -> Crowd:
    """Number items, annotators and classes of (item, annotator, label) in the order of their names."""
    rows = sorted({(str(i), str(m), str(r)) for i, m, r in votes})
    named = {str(i): str(c) for i, c in gold.items()}
    items, annotators, classes = (sorted(set(names)) for names in zip(*rows, strict=True))
    classes = sorted({*classes, *(named[i] for i in items if i in named)})
    numbers = [{n: k for k, n in enumerate(names)} for names in (items, annotators, classes)]
    item, who, said = np.array(
        [[of[n] for of, n in zip(numbers, row, strict=True)] for row in rows]
    ).T
    truth = np.array([numbers[2][named[i]] if i in named else -1 for i in items])
    return Crowd(item, who, said, truth, annotators, classes, items)


def _matrix(votes: Path, gold: Path) -> Crowd:
    table = np.loadtxt(votes, dtype=int)
    item, who = np.nonzero(table >= 0)
    given = zip(item, who, table[item, who], strict=True)
    return _crowd(given, dict(enumerate(np.loadtxt(gold, dtype=int))))


def _table(path: Path, **settings: Any) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, **settings))


def _music(folder: Path) -> Crowd:
    rows = _table(folder / "mturk_answers.csv")
    gold = {row["song"]: row["true_label"] for row in rows}
    return _crowd(((row["song"], row["worker"], row["label"]) for row in rows), gold)


def _dogs(folder: Path) -> Crowd:
    rows = _table(folder / "answer.csv")
    gold = {row["question"]: row["truth"] for row in _table(folder / "truth.csv")}
    return _crowd(((row["question"], row["worker"], row["answer"]) for row in rows), gold)


def _bluebirds(folder: Path) -> Crowd:
    votes, gold = (
        yaml.safe_load((folder / name).read_text()) for name in ("labels.yaml", "gt.yaml")
    )
    return _crowd(((i, m, r) for m, said in votes.items() for i, r in said.items()), gold)


def _leaves(folder: Path, name: str) -> Crowd:
    votes = _table(folder / f"{name}.resp", delimiter="\t", fieldnames=["worker", "item", "label"])
    gold = _table(folder / f"{name}.gold", delimiter="\t", fieldnames=["item", "label"])
    return _crowd(
        ((row["item"], row["worker"], row["label"]) for row in votes),
        {row["item"]: row["label"] for row in gold},
    )


READERS: dict[str, Callable[[Path], Crowd]] = {
    "sentiment": lambda root: _matrix(
        root / "sentiment/answers.txt", root / "sentiment/Sentiment_Z_train.txt"
    ),
    "labelme": lambda root: _matrix(
        root / "labelme/answers.txt", root / "labelme/labels_train.txt"
    ),
    "music": lambda root: _music(root / "music"),
    "alder": lambda root: _leaves(root / "leaves", "alder"),
    "oak": lambda root: _leaves(root / "leaves", "oak"),
    "bluebirds": lambda root: _bluebirds(root / "bluebirds"),
    "dogs_labels": lambda root: _dogs(root / "dogs_labels"),
}


def read(name: str, folder: Path) -> Crowd:
    """Read a crowd.

    Args:
        name: one of `READERS`.
        folder: with a folder for each crowd.

    Returns:
        The crowd; classes, annotators and items in the order of their names.
    """
    return READERS[name](folder)
