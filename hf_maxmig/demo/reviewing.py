"""The items that somebody looks through, the most suspect first: what each is, who said what, and what the model says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from datasets import Dataset

from ..data.columns import crowd_names
from ..judging.annotators import AnnotatorReport
from ..judging.relabel import RELABELLED
from ..judging.report import votes_on
from ..judging.showing import Part, Showing
from ..model.items import ALL_CROWD_COLUMNS

_ON_CARDS = (*ALL_CROWD_COLUMNS, *RELABELLED)


@dataclass(frozen=True)
class Card:
    """An item, as the page shows it.

    Args:
        name: what votes call it.
        title: what the page calls it.
        parts: its picture, sound, text or row, whole.
        votes: who said what, the most frequent first: dicts of `label` and `names`.
        voted: places among the classes of those with the most votes.
        forecast: place of the likeliest class.
        suspect: whether the forecast is none of the classes with the most votes.
        posteriors: by name of the posterior, C probabilities.
    """

    name: str
    title: str
    parts: list[Part]
    votes: list[dict[str, Any]]
    voted: list[int]
    forecast: int
    suspect: bool
    posteriors: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Reviewing:
    """A relabelled data set to look through.

    Args:
        dataset: from `relabelled`, the most suspect items first.
        classes: C names.
        annotators: M names.
        item_column: what votes call the items by; None for their row numbers in `numbers`.
        numbers: (N,) the row of each item in the user's data, for names where there is no column.
    """

    dataset: Dataset
    classes: Sequence[str]
    annotators: Sequence[str]
    item_column: str | None = None
    numbers: np.ndarray | None = None

    @property
    def number(self) -> int:
        """N, how many items there are."""
        return len(self.dataset)

    @cached_property
    def suspects(self) -> int:
        """How many of them are suspect: these come first."""
        return int(np.count_nonzero(self.dataset.with_format("numpy")["suspect"][:]))

    @cached_property
    def _showing(self) -> Showing:
        first = np.arange(min(self.number, 100))
        return Showing.of(self.dataset.with_format(None), first, None)

    def name(self, place: int) -> str:
        """Say what votes call an item.

        Args:
            place: 0 for the most suspect one.
        """
        if self.item_column is not None:
            return str(self.dataset.with_format(None)[self.item_column][place])
        return str(place if self.numbers is None else int(self.numbers[place]))

    def card(self, place: int, pixels: int = 480) -> Card:
        """Show an item.

        Args:
            place: 0 for the most suspect one.
            pixels: of the longer side of its picture.

        Returns:
            What the page shows of it.

        Raises:
            IndexError: if there is no such place.
        """
        if not 0 <= place < self.number:
            raise IndexError(f"`place` must lie in 0..{self.number - 1}, got {place}.")
        dataset, showing = self.dataset.with_format(None), self._showing
        row = showing.read(dataset, np.array([place]), _ON_CARDS)[0]
        names, classes = crowd_names(dataset)
        votes = votes_on(row, names or self.annotators, classes or self.classes)
        most = max((len(vote["names"]) for vote in votes), default=0)
        title = showing.name(row, place)
        return Card(
            name=self.name(place),
            title=self.name(place) if title.startswith("row ") else title,
            parts=[part.whole() for part in showing.parts(row, dataset.features, place, pixels)],
            votes=votes,
            voted=[
                [*self.classes].index(vote["label"]) for vote in votes if len(vote["names"]) == most
            ],
            forecast=[*self.classes].index(row["forecast"]),
            suspect=bool(row["suspect"]),
            posteriors={n: row[f"{n}_posterior"] for n in ("classifier", "aggregator", "forecast")},
        )

    def errors(self, annotator: int, most: int = 12) -> list[int]:
        """Find the items on which an annotator is most surely wrong, by the forecast.

        Args:
            annotator: their number.
            most: how many.

        Returns:
            The places of these items, the surest mistake first.
        """
        item, who, said = self._votes
        own = who == annotator
        item, said = item[own], said[own]
        right = self._forecast[item, said]
        wrong = self._forecast[item].argmax(axis=1) != said
        order = np.argsort(right[wrong], kind="stable")[:most]
        return item[wrong][order].tolist()

    def said(self, annotator: int, place: int) -> list[str]:
        """List what an annotator said of an item."""
        item, who, said = self._votes
        return [self.classes[c] for c in said[(who == annotator) & (item == place)]]

    @cached_property
    def _votes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All votes: the place of the item, the annotator, the class."""
        table = self.dataset.select_columns(["annotators", "annotations"]).with_format("arrow")[:]
        lists = [table[name].combine_chunks() for name in ("annotators", "annotations")]
        lengths = np.asarray(lists[0].value_lengths().fill_null(0))
        who, said = (np.asarray(part.flatten().fill_null(-1)) for part in lists)
        item = np.repeat(np.arange(len(lengths)), lengths)
        given = (who >= 0) & (said >= 0)
        return item[given], who[given], said[given]

    @cached_property
    def _forecast(self) -> np.ndarray:
        table = self.dataset.select_columns(["forecast_posterior"]).with_format("arrow")[:]
        flat = np.asarray(table["forecast_posterior"].combine_chunks().flatten())
        return flat.reshape(-1, len(self.classes))


@dataclass(frozen=True)
class Person:
    """What the page shows of an annotator.

    Args:
        name: theirs.
        verdict: on them.
        reason: of the verdict.
        confuses: their most frequent mistake; None without one.
        votes: how many.
        accuracy: share of right votes, with its interval; NaN without votes.
        low: lower end.
        high: upper end.
        information: nats of a vote.
        classes: the places of the classes in `confusion`.
        confusion: rows of true classes, columns of reported ones.
        left_out: how many classes the table leaves out.
    """

    name: str
    verdict: str
    reason: str
    confuses: str | None
    votes: int
    accuracy: float
    low: float
    high: float
    information: float
    classes: list[int]
    confusion: np.ndarray
    left_out: int


def person(judged: AnnotatorReport, annotator: int, most_classes: int = 10) -> Person:
    """Collect what is known of an annotator.

    Args:
        judged: the annotators.
        annotator: the number of one.
        most_classes: of the table; those with the most votes and mistakes are kept, in their order.

    Returns:
        What the page shows.

    Raises:
        IndexError: if there is no such annotator.
    """
    if not 0 <= annotator < len(judged.annotators):
        raise IndexError(
            f"`annotator` must lie in 0..{len(judged.annotators) - 1}, got {annotator}."
        )
    counts = judged.counts[annotator]
    busy = counts.sum(axis=0) + counts.sum(axis=1)
    kept = np.sort(np.argsort(-busy, kind="stable")[:most_classes])
    return Person(
        name=judged.annotators[annotator],
        verdict=judged.verdict[annotator],
        reason=judged.reason[annotator],
        confuses=judged.most_frequent_mistake(annotator),
        votes=int(judged.votes[annotator]),
        accuracy=float(judged.accuracy[annotator]),
        low=float(judged.accuracy_low[annotator]),
        high=float(judged.accuracy_high[annotator]),
        information=float(judged.information[annotator]),
        classes=kept.tolist(),
        confusion=judged.confusion[annotator][np.ix_(kept, kept)],
        left_out=len(judged.classes) - len(kept),
    )
