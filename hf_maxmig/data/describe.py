"""Describe a crowd before anything is trained: who voted how often, and how far annotators agree.

This module counts. Chance-corrected agreement comes from crowd-kit, an optional extra. A trained model's
judgement of annotators and items is elsewhere.
"""

import warnings
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from ..model.votes import Votes
from .collator import CrowdCollator, crowd_batches
from .columns import check_is_dataset, crowd_names
from .flat_votes import FlatVotes

ALPHA_VOTES = 100_000  # crowd-kit's alpha takes 3 microseconds and 0.4 kB per vote
CONSISTENCY_CELLS = 400_000  # votes times classes; its consistency takes 6 microseconds each
SEED = 0  # of the sample of items, where there are more than that
_SHOWN = 5  # names or positions that are listed
_CLASSES_SHOWN = 8  # shares that the text lists
_EDGES = [1, 2, 3, 4, 5, 10, 20, 50, *(10**k for k in range(2, 13))]  # of the histograms

_SECTION = """## Crowd labels

| column | type | |
|---|---|---|
| `annotators` | list of `ClassLabel`, {annotators:,} names | who labelled the item |
| `annotations` | list of `ClassLabel`, {classes:,} names | what each of them said, in the same order |{weights_row}

The lists of an item have the same length; they are empty if nobody has labelled it. A column `label`, if there is one,
holds gold labels, with -1 or nothing where there is none.

```text
{summary}
```

Made for `hf_maxmig` (`pip install hf_maxmig`), whose trainers read these columns as they are.
"""

_WEIGHTS_ROW = """
| `annotation_weights` | list of `float32` | how much each of these votes counts, from 0 to 1, in the same order |"""


class Description(dict[str, Any]):
    """The result of `describe`: a dictionary of plain numbers, lists and text; `str` turns it into a page.

    Example:
        >>> found = Description(items=3, votes=0, items_without_votes=3, annotators=2, classes=2)
        >>> print(found)
        3 items, 2 annotators, 2 classes: no votes
    """

    def __str__(self) -> str:
        crowd = (
            f"{_number(self['items'], 'item')}, {_number(self['annotators'], 'annotator')}, "
            f"{_number(self['classes'], 'class', 'classes')}"
        )
        if not self["votes"]:
            return f"{crowd}: no votes"
        rows = [("votes", self._votes()), *self._weights(), *self._amounts()]
        rows += [("classes", self._shares())]
        rows += self._agreement()
        few, ties, twice = self["few_votes"], self["ties"], self["duplicates"]
        rows += [
            (
                f"below {few['below']} votes",
                _number(few["annotators"], "annotator") + _listed(few["names"], few["annotators"]),
            ),
            (
                "ties for most votes",
                _number(ties["items"], "item") + _listed(ties["positions"], ties["items"]),
            ),
            (
                "same annotator twice",
                _number(twice["votes"], "further vote")
                + (" on " + _number(twice["items"], "item") if twice["items"] else "")
                + _listed(twice["positions"], twice["items"]),
            ),
        ]
        if self["votes_of_unknown_annotators"]:
            text = f"{self['votes_of_unknown_annotators']:,} votes, not counted above"
            rows.append(("unknown annotators", text))
        width = max(len(name) for name, _ in rows)
        return "\n".join([crowd, *(f"  {name:<{width}}  {text}" for name, text in rows)])

    @property
    def summary(self) -> str:
        """The part of the page that does not name annotators."""
        return str(self).split("\n  below ")[0]

    def card_section(self) -> str:
        """Write the section of a data set's card that describes its crowd columns.

        Returns:
            Markdown, without annotators' names.

        Example:
            >>> found = Description(items=3, votes=0, items_without_votes=3, annotators=2, classes=2)
            >>> found.card_section().splitlines()[0]
            '## Crowd labels'
        """
        row = _WEIGHTS_ROW if self.get("weights") else ""
        return _SECTION.format(summary=self.summary, weights_row=row, **self)

    def _votes(self) -> str:
        return (
            f"{self['votes']:,}; {_number(self['items_without_votes'], 'item')} without any, "
            f"{_number(self['annotators'] - self['annotators_with_votes'], 'annotator')} without any"
        )

    def _weights(self) -> list[tuple[str, str]]:
        found = self.get("weights")
        if not found:
            return []
        text = f"{found['votes']:,}, which count {found['mean']:.2f} on average"
        soft = f"; {_number(found['soft'], 'vote')} with probabilities of several classes"
        return [("weighted votes", text + soft * bool(found["soft"]))]

    def _amounts(self) -> list[tuple[str, str]]:
        rows = []
        for name in ("item", "annotator"):
            of = self[f"votes_per_{name}"]
            bins = ", ".join(f"{count:,} with {span}" for span, count in of["histogram"].items())
            middle = f"median {of['median']:,g}, mean {of['mean']:,.2f}"
            text = f"{of['min']:,} to {of['max']:,}, {middle} ({bins})"
            rows.append((f"votes per {name}", text))
        return rows

    def _shares(self) -> str:
        shares = sorted(self["class_share"].items(), key=lambda pair: -pair[1])
        voted = [(name, share) for name, share in shares if share]
        text = ", ".join(f"{name} {share:.1%}" for name, share in voted[:_CLASSES_SHOWN])
        if len(voted) > _CLASSES_SHOWN:
            text += f", {len(voted) - _CLASSES_SHOWN:,} more"
        never = self["classes_without_votes"]
        return text + ("; nobody said" + _listed(never, len(never)) if never else "")

    def _agreement(self) -> list[tuple[str, str]]:
        several = self["items_with_two_votes"]
        if not several:
            return [("agreement", "not defined: no item has two votes")]
        rows = [
            ("pairs that agree", f"{self['pairwise_agreement']:.1%} of pairs of votes on one item"),
            (
                "vote entropy",
                f"{self['vote_entropy']:.3f} nats, mean over {_number(several, 'item')} with two "
                "votes or more",
            ),
        ]
        for key, name in (("alpha", "Krippendorff's alpha"), ("consistency", "consistency")):
            value, items = self[key], self[f"{key}_items"]
            text = "not defined here" if value is None else f"{value:.3f}"
            if items is None:
                text = "install hf_maxmig[peers]"
            elif items < several:
                text += f", of {items:,} items drawn at random"
            rows.append((name, text))
        return rows


def describe(dataset: Dataset, *, min_votes: int = 10) -> Description:
    """Describe the crowd columns of a data set: the numbers of votes, and how far annotators agree.

    A vote is a pair of annotator and annotation, neither of them -1. The parts of a soft vote, whose weights
    sum to 1 or less, are one vote. Numbers of votes count each as one; shares, entropy, agreement and ties
    count votes by their weights, and crowd-kit's numbers use the class that a vote names first. A second vote of an annotator on
    one item counts like any other, here and in crowd-kit's numbers, and is reported. Only the crowd
    columns are read, chunk by chunk.

    Args:
        dataset: N items with `annotators` and `annotations`, or dense `annotations` of a fixed
            length; the features name annotators and classes.
        min_votes: annotators with fewer votes are listed; at least 1.

    Returns:
        A dictionary that `json.dumps` accepts and `print` shows as a page. Its keys:

        - `items`, `items_without_votes`, `items_with_two_votes`: N, and numbers of items; the last counts two votes or more.
        - `annotators`, `annotators_with_votes`: the number named, and the number that voted.
        - `classes`, `votes`: C, and the number of votes.
        - `weights`, only if votes have weights: number of `votes` that do not count in full, `mean` weight of these, and how many are `soft`, with several classes.
        - `votes_of_unknown_annotators`: annotations whose annotator is -1, which count nowhere else.
        - `votes_per_item`, `votes_per_annotator`: `min`, `median`, `mean`, `max`, and `histogram` (from votes to number, without empty bins), of those with votes.
        - `class_share`, `classes_without_votes`: each class's share of the votes; names of classes.
        - `vote_entropy`: nats, mean over items with two votes or more.
        - `pairwise_agreement`: share of agreeing pairs among all pairs of votes on one item.
        - `alpha`, `alpha_items`: Krippendorff's alpha by crowd-kit, and its number of items.
        - `consistency`, `consistency_items`: crowd-kit's consistency, and its number of items.
        - `few_votes`: number of `annotators` with at least one vote but fewer than `below`, some `names`, fewest votes first.
        - `ties`: number of `items` where several classes have most votes, some `positions`.
        - `duplicates`: number of `votes` beyond an annotator's first on an item, `items`, some `positions`.

        Undefined values are None: amounts, entropy and agreement without votes, or without two votes
        on any item; `alpha`, `consistency` and their numbers of items without crowd-kit, which the
        extra `peers` installs. Consistency is the mean posterior of the class with the most votes,
        where an annotator's skill is the share of their votes for that class. A crowd that makes the
        same mistakes is consistent, too. Both use the items with two votes or more. If these have more
        than `ALPHA_VOTES` votes, or more than `CONSISTENCY_CELLS` votes times classes, both use a
        random sample, which is the same in every call. `vote_entropy` is crowd-kit's `uncertainty` of
        the same items.

    Raises:
        TypeError: if `dataset` is not a `datasets.Dataset`.
        KeyError: if it has no column `annotations`.
        ValueError: if its features do not name annotators and classes, lists differ in length, a
            number is out of range, or `min_votes` is below 1.

    Example:
        >>> from hf_maxmig.data.columns import crowd_features
        >>> columns = {"annotators": [[0, 1], [1, 2], []], "annotations": [[0, 0], [1, 0], []]}
        >>> names = crowd_features(["ann", "bob", "cid"], ["cat", "dog"])
        >>> found = describe(Dataset.from_dict(columns, features=names), min_votes=2)
        >>> found["votes"], found["class_share"], found["few_votes"]["names"]
        (4, {'cat': 0.75, 'dog': 0.25}, ['ann', 'cid'])
        >>> print(str(found).splitlines()[0])
        3 items, 3 annotators, 2 classes
    """
    check_is_dataset(dataset)
    if not isinstance(min_votes, int | float | np.integer) or not min_votes >= 1:
        raise ValueError(f"`min_votes` must be at least 1, got {min_votes!a}.")
    if "annotations" not in dataset.column_names:
        raise KeyError(
            "`dataset` must have the crowd columns annotators and annotations, got "
            f"{', '.join(dataset.column_names) or 'no columns'}: see `add_annotations`."
        )
    annotators, classes = crowd_names(dataset)
    if annotators is None or classes is None:
        raise ValueError(
            "`dataset` must name annotators and classes in its features, got "
            f"{dataset.features.get('annotators', 'no column `annotators`')} and "
            f"{dataset.features['annotations']}: see `add_annotations` and `crowd_features`."
        )
    count = _Count(len(annotators), len(classes))
    for chunk in crowd_batches(dataset, CrowdCollator(len(annotators), len(classes))):
        count.add(chunk)

    of_item = np.concatenate([np.zeros(0, np.int64), *count.of_item])
    of_annotator, of_class = count.of_annotator, count.of_class
    votes, several = int(of_item.sum()), np.flatnonzero(of_item >= 2)
    total = float(of_class.sum())
    few = np.flatnonzero((of_annotator > 0) & (of_annotator < min_votes))
    few = few[np.argsort(of_annotator[few], kind="stable")]
    return Description(
        items=len(of_item),
        items_without_votes=int((of_item == 0).sum()),
        items_with_two_votes=len(several),
        annotators=len(annotators),
        annotators_with_votes=int((of_annotator > 0).sum()),
        classes=len(classes),
        votes=votes,
        votes_of_unknown_annotators=count.unknown,
        votes_per_item=_amounts(of_item[of_item > 0]),
        votes_per_annotator=_amounts(of_annotator[of_annotator > 0]),
        class_share={
            name: float(n) / (total or 1.0) for name, n in zip(classes, of_class, strict=True)
        },
        classes_without_votes=[n for n, k in zip(classes, of_class, strict=True) if not k],
        vote_entropy=count.entropy / len(several) if len(several) else None,
        pairwise_agreement=count.agreeing / count.pairs if count.pairs else None,
        **_agreement(dataset, of_item, several, count),
        few_votes={
            "below": min_votes,
            "annotators": len(few),
            "names": [annotators[m] for m in few[:_SHOWN]],
        },
        ties={"items": count.ties, "positions": count.tied},
        duplicates={
            "votes": count.duplicates, "items": count.twice, "positions": count.twice_at
        },
        **count.weights(),
    )  # fmt: skip


class _Count:
    """Counts that are summed over chunks of items. A cell is a combination of item and class with votes."""

    def __init__(self, num_annotators: int, num_classes: int) -> None:
        self.of_item: list[np.ndarray] = []
        self.of_annotator = np.zeros(num_annotators, np.int64)
        self.of_class = np.zeros(num_classes)
        # votes for the class with most votes; at a tie, for the first such class
        self.for_plurality = np.zeros(num_annotators)
        self.items = self.unknown = self.ties = self.twice = self.duplicates = 0
        self.agreeing = self.pairs = 0.0
        self.are_weighted = False
        self.weighted = self.soft = 0
        self.weight = 0.0
        self.entropy = 0.0
        self.tied: list[int] = []
        self.twice_at: list[int] = []

    def add(self, chunk: Votes) -> None:
        """Count the votes on further items."""
        N, M, C = len(chunk.annotators), len(self.of_annotator), len(self.of_class)
        self.unknown += int(((chunk.annotators < 0) & (chunk.annotations >= 0)).sum())
        flat = FlatVotes.read([chunk])
        first = flat.answers()  # one row per vote
        item, who, what = first.item.numpy(), first.annotator.numpy(), first.annotation.numpy()
        votes = np.bincount(item, minlength=N)
        self.of_item.append(votes)
        self.of_annotator += np.bincount(who, minlength=M)
        each, said = flat.counts().numpy(), flat.annotation.numpy()
        self.of_class += np.bincount(said, each, minlength=C)

        cell, place = np.unique(flat.item.numpy() * C + said, return_inverse=True)
        count = np.bincount(place, each, minlength=len(cell))
        of, said = np.divmod(cell, C)
        mass = np.bincount(of, count, minlength=N)
        share = count / mass[of]
        self.entropy += float(share @ (-np.log(share) * (votes[of] >= 2)))
        # Pairs of votes, without those of a vote with itself.
        self.agreeing += float(count @ count) - _squares(flat, flat.whole * C + flat.annotation)
        self.pairs += float(mass @ mass) - _squares(flat, flat.whole)
        most = np.zeros(N)
        np.maximum.at(most, of, count)
        top = count >= most[of] * (1 - 1e-6)  # sums of weights are not exact
        tops = np.bincount(of[top], minlength=N)
        self.ties += self._note(tops > 1, self.tied)
        plurality = np.zeros(N, np.int64)
        plurality[of[top][::-1]] = said[top][::-1]  # the last written is the first class
        self.for_plurality += np.bincount(who, what == plurality[item], minlength=M)
        self._count_weights(flat)

        pair = np.sort(item * M + who)
        again = pair[1:][pair[1:] == pair[:-1]] // M  # the item of each further vote
        self.duplicates += len(again)
        self.twice += self._note(np.bincount(again, minlength=N) > 0, self.twice_at)
        self.items += N

    def _count_weights(self, flat: FlatVotes) -> None:
        if flat.weight is None:
            return
        self.are_weighted = True
        total = np.bincount(flat.whole.numpy(), flat.weight.numpy())
        soft = np.bincount(flat.whole.numpy()) > 1
        less = (total < 1 - 1e-6) | soft
        self.weighted += int(less.sum())
        self.weight += float(total[less].sum())
        self.soft += int(soft.sum())

    def weights(self) -> dict[str, Any]:
        """Summarise the weights of votes; nothing if they have none."""
        if not self.are_weighted:
            return {}
        mean = self.weight / self.weighted if self.weighted else None
        return {"weights": {"votes": self.weighted, "mean": mean, "soft": self.soft}}

    def _note(self, found: np.ndarray, positions: list[int]) -> int:
        at = np.flatnonzero(found)
        positions += (self.items + at[: _SHOWN - len(positions)]).tolist()
        return len(at)


def _squares(flat: FlatVotes, group: Tensor) -> float:
    """Sum the squares of the weights of V groups of votes' parts; V if each vote is one part that counts in full."""
    if flat.weight is None:
        return float(len(flat))
    number = group.unique(return_inverse=True)[1]
    return float(torch.bincount(number, flat.counts()).square().sum())


def _amounts(numbers: np.ndarray) -> dict[str, Any] | None:
    """Summarise numbers of votes."""
    if not len(numbers):
        return None
    where = np.searchsorted(_EDGES, numbers, side="right") - 1
    spans = {}
    for i, count in enumerate(np.bincount(where)):
        if count:
            low, high = _EDGES[i], _EDGES[i + 1] - 1
            spans[f"{low:,}" if low == high else f"{low:,}-{high:,}"] = int(count)
    return {
        "min": int(numbers.min()),
        "median": float(np.median(numbers)),
        "mean": float(numbers.mean()),
        "max": int(numbers.max()),
        "histogram": spans,
    }


# Agreement, by crowd-kit


def _agreement(
    dataset: Dataset, of_item: np.ndarray, several: np.ndarray, count: _Count
) -> dict[str, Any]:
    try:
        from crowdkit.aggregation import MajorityVote
        from crowdkit.metrics.data import alpha_krippendorff, consistency
    except ImportError:
        return dict.fromkeys(("alpha", "alpha_items", "consistency", "consistency_items"))
    if not len(several):
        return {"alpha": None, "alpha_items": 0, "consistency": None, "consistency_items": 0}
    import pandas as pd

    drawn = np.random.default_rng(SEED).permutation(several)
    mean, classes = of_item[several].mean(), np.count_nonzero(count.of_class)
    sizes = [
        min(len(drawn), max(1, int(votes / mean)))
        for votes in (ALPHA_VOTES, CONSISTENCY_CELLS / classes)
    ]
    answers, fewer = (pd.DataFrame(_votes(dataset, np.sort(drawn[:size]), count)) for size in sizes)
    skill = pd.Series(count.for_plurality / np.maximum(1, count.of_annotator))
    one_voter = answers["task"].nunique() == answers["worker"].nunique() == 1
    with (
        warnings.catch_warnings()
    ):  # warnings of crowd-kit, about changes in pandas and about many classes
        warnings.simplefilter("ignore")
        return {
            "alpha": None if one_voter else float(alpha_krippendorff(answers)),
            "alpha_items": sizes[0],
            "consistency": float(consistency(fewer, skill, MajorityVote())),
            "consistency_items": sizes[1],
        }


def _votes(dataset: Dataset, items: np.ndarray, count: _Count) -> dict[str, np.ndarray]:
    """List the votes on some items, under crowd-kit's names."""
    chosen = dataset if len(items) == len(dataset) else dataset.select(items)
    collator = CrowdCollator(len(count.of_annotator), len(count.of_class))
    votes = FlatVotes.read(crowd_batches(chosen, collator)).answers()
    numbers = {"task": votes.item, "worker": votes.annotator, "label": votes.annotation}
    return {name: column.numpy() for name, column in numbers.items()}


# Words


def _number(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}" if count else f"no {one}"


def _listed(names: list[Any], of: int) -> str:
    """Write some of `of` names after a colon; nothing without names."""
    if not names:
        return ""
    shown = ", ".join(str(name) for name in names[:_SHOWN])
    return f": {shown}" + (", ..." if of > min(len(names), _SHOWN) else "")
