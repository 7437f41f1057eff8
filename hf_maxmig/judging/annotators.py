"""Whom to trust on what: what a trained pair says of each annotator.

The door and its report. What is measured of an annotator is in `facts.py`, the verdict on them in
`verdicts.py`, who copies whom in `copies.py`, and the page that shows it all in `report.py`.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset
from torch import Tensor

from ..data.flat_votes import FlatVotes
from ..model.votes import Votes
from ..model.whole_files import staged
from .copies import Copy, copies_among, copying_groups
from .evidence import Evidence, check_shapes
from .facts import Facts
from .relabel import spreadsheet_text
from .verdicts import LEAVE_OUT, TRUST, Judge, Verdict, listed, others_in_groups


@dataclass(frozen=True)
class AnnotatorReport:
    """What is known of M annotators; every array is in the order of `annotators`.

    Args:
        annotators: M names.
        classes: C names.
        votes: (M,) int64, how many labels each gave.
        counts: (M, C, C), how often each said what on which class, as far as the pair can tell:
            annotator, true row, reported column.
        confusion: (M, C, C), the same as probabilities, drawn towards the crowd where votes are few.
        accuracy: (M,), the share of their labels that is right, in the eyes of the pair; NaN
            without votes.
        accuracy_low: (M,), lower end of the 95 % interval.
        accuracy_high: (M,), upper end.
        information: (M,), nats that a label of theirs carries about the class.
        verdict: M values of `Verdict`.
        reason: M sentences that say why.
        copies: pairs of annotators who agree beyond what the truth explains, the clearest first.
        strength: how many votes a class the crowd's own confusion counts for in `confusion`.
    """

    annotators: list[str]
    classes: list[str]
    votes: np.ndarray
    counts: np.ndarray
    confusion: np.ndarray
    accuracy: np.ndarray
    accuracy_low: np.ndarray
    accuracy_high: np.ndarray
    information: np.ndarray
    verdict: list[str]
    reason: list[str]
    copies: list[Copy]
    strength: float = 0.0

    def table(self) -> Dataset:
        """Give one row an annotator.

        Returns:
            Columns `annotator`, `votes`, `accuracy`, `accuracy_low`, `accuracy_high`,
            `information`, `verdict`, `copies` (the names of those who are one voice with them, with
            a semicolon between two; None if there are none), `reason` and `confuses`, the most
            frequent mistake, or None. Numbers that do not exist are None.
        """
        others = others_in_groups(self.voices(), self.annotators)
        mistakes = [self.most_frequent_mistake(m) for m in range(len(self.annotators))]
        return Dataset.from_dict(
            {
                "annotator": self.annotators,
                "votes": self.votes.tolist(),
                "accuracy": _or_none(self.accuracy),
                "accuracy_low": _or_none(self.accuracy_low),
                "accuracy_high": _or_none(self.accuracy_high),
                "information": _or_none(self.information),
                "verdict": self.verdict,
                "copies": [
                    "; ".join(others[m]) if m in others else None
                    for m in range(len(self.annotators))
                ],
                "reason": self.reason,
                "confuses": mistakes,
            }
        )

    def voices(self) -> list[list[int]]:
        """Give the groups of annotators who copy or are copied: each counts as one voice.

        Returns:
            Their numbers, ascending; the largest group first.
        """
        return copying_groups(self.copies, len(self.annotators))

    def most_frequent_mistake(self, annotator: int) -> str | None:
        """Say what an annotator most often mistakes for what, such as `says dog where it is cat`.

        Args:
            annotator: their number.

        Returns:
            A phrase with the share of it, or None if there is no mistake of half a vote or more.
        """
        wrong = self.counts[annotator] * (1 - np.eye(len(self.classes)))
        true, said = np.unravel_index(int(wrong.argmax()), wrong.shape)
        if wrong[true, said] < 0.5:
            return None
        share = self.confusion[annotator, true, said]
        return f"says {self.classes[said]} where it is {self.classes[true]}: {share:.0%}"

    def save(self, path: str | os.PathLike) -> None:
        """Write `table` as CSV, fit for a spreadsheet.

        A name that a spreadsheet would take for a formula (it begins with =, +, -, @ or a control
        character) is written with an apostrophe before it, which spreadsheets show as plain text;
        so are sentences. `table` itself has the names as they are.

        Args:
            path: of the file.
        """
        table = self.table().to_pandas()
        for name in ("annotator", "verdict", "copies", "reason", "confuses"):
            table[name] = [spreadsheet_text(text) for text in table[name]]
        with staged(Path(path)) as place:
            table.to_csv(place, index=False)

    def __str__(self) -> str:
        verdicts = [Verdict.called(name) for name in self.verdict]
        number = Counter(verdicts)
        counts = ", ".join(f"{number[v]} {v.value}" for v in Verdict if number[v])
        lines = [f"{len(self.annotators)} annotators: {counts or 'none'}."]
        for members in self.voices()[:3]:
            names = listed([self.annotators[m] for m in members])
            lines.append(f"One voice: {names} - who was first, the votes cannot tell.")
        good = [m for m, verdict in enumerate(verdicts) if verdict.group == TRUST]
        best = sorted(good, key=lambda m: -self.accuracy_low[m])[:3]
        worst_first = [v for v in reversed(Verdict) if v.group == LEAVE_OUT]
        doubtful = [m for bad in worst_first for m, v in enumerate(verdicts) if v is bad]
        for title, shown in (("Best", best), ("Most doubtful", doubtful[:3])):
            lines += [f"{title}: {self.annotators[m]} - {self.reason[m]}" for m in shown]
        return "\n".join(lines)


def judge_annotators(
    log_h: Tensor,
    weight: Tensor,
    crowd: Iterable[Votes],
    annotators: Sequence[str],
    classes: Sequence[str],
) -> AnnotatorReport:
    """Judge each annotator by what the classifier and the others say of their items.

    A vote is held against the forecast made without it: zeta contains the vote, and where items
    have few votes it would agree with a random annotator too. Votes of an annotator's copies are
    left out with their own.

    `accuracy` is the mean over votes of the probability w that the vote is right, from zeta without
    it and the annotator's own confusion. The interval is Jeffreys' of a binomial share where zeta
    is sure, and wider where it is not, see `_interval`. `information` is the mutual information
    between class and label in `counts`, less what chance would show in as many votes.

    All of this is in the eyes of the pair: where it is surer of itself than it should be, or wrong
    together with the crowd, so is the interval. On simulated crowds it holds the true accuracy in
    94 of 100 cases where zeta is sure or votes are many (200), and in 88 of 100 where an annotator
    has 30 votes on items of which a third is unsure (83 where half is). On LabelMe, whose pair is
    wrong on 11 % of the items, it holds the share right by gold in 75 of 100, and is 8 points too
    kind on average.

    Verdicts, the first that holds (the constants are in `verdicts.py`):

    - *too few votes*: fewer than `MIN_VOTES`.
    - *always says one class*: `ONE_CLASS` of the labels are it, and so are `ONE_CLASS` of those on
      items that are something else (this class has a probability of `ELSEWHERE` at most without
      them), more of these than half: who was only shown cats and says cat is not meant.
    - *copied or copying*: agrees with another beyond what the truth explains, see
      `copies.find_copies`. All of a group are called so, for the votes cannot tell who was first.
    - *adversarial*: right less often than by chance, sum_r (share of labels r)(share of items of
      class r), by a tenth of that (`AVOIDS`) and more than shuffling their labels would give, and the
      interval lies below chance;
      or not useful, as below, though which label they give depends on the class.
    - *random*: shown to be of no use: what they are right on lies below chance and half (`USEFUL`)
      of what an ordinary annotator has beyond it, so does the upper end of the interval, and
      nothing (`HINT`) speaks for more than chance.
    - *expert*: as ordinary, and a label settles half of what there is to know of the class, and three
      of four are right even at the lower end of the interval.
    - *ordinary*: right more often than by chance, by the interval or by more than shuffling their
      labels would give; or all items are of one class, and they say it.
    - *too few votes*: everyone else; it is not known what they are.

    The three that condemn (one class, adversarial, random) take `ENOUGH_TO_CONDEMN` labels. The
    p-values of each are corrected by Benjamini-Hochberg, over all annotators with so many, to a false
    discovery rate of `FALSE_DISCOVERIES`; that of *random* is the probability, given the votes, that
    they are useful. An ordinary annotator is the median of those who are right more often than by
    chance, and has at least `LEAST_ORDINARY` of what chance leaves; a group that copies counts once. The classifier may have memorised votes; what is judged
    on items that it was not trained on is free of that.

    Args:
        log_h: (N, C), log-probabilities of the classifier for the items in their order.
        weight: (M, C, C), W of the trained aggregator: annotator, scored class, reported class.
        crowd: the crowd part by part, each as `Votes`, in the order of the items, as
            `crowd_batches` yields them. Read once; annotators of -1 are left out.
        annotators: M names.
        classes: C names.

    Returns:
        The report.

    Raises:
        ValueError: if shapes and names do not fit, or the crowd has more or fewer items than
            `log_h`.

    Example:
        >>> import torch
        >>> truth = torch.arange(60) % 2
        >>> said = torch.stack([truth, truth, 1 - truth, torch.zeros_like(truth)], dim=1)
        >>> log_h = torch.nn.functional.one_hot(truth, 2).mul(0.9).add(0.05).log()
        >>> report = judge_annotators(log_h, torch.zeros(4, 2, 2), [(torch.arange(4).repeat(60, 1), said)],
        ...                           ["ann", "bob", "eve", "lou"], ["cat", "dog"])
        >>> report.verdict
        ['expert', 'expert', 'adversarial', 'always says one class']
    """
    _check(log_h, weight, annotators, classes)
    votes = FlatVotes.read(crowd)
    if votes.num_items != len(log_h):
        raise ValueError(
            f"`crowd` must have N = {len(log_h)} items, one a row of `log_h`, got {votes.num_items}."
        )
    evidence = Evidence(log_h.cpu(), weight.cpu(), votes)
    copies, groups, confusions = copies_among(evidence)
    facts = Facts.of(evidence, groups, confusions)
    judge = Judge(facts, confusions, copies, groups.numpy(), list(annotators), list(classes))
    verdicts = [judge.verdict(m) for m in range(len(annotators))]
    return AnnotatorReport(
        annotators=list(annotators),
        classes=list(classes),
        votes=facts.votes,
        counts=confusions.counts.numpy(),
        confusion=confusions.confusion.numpy(),
        accuracy=facts.accuracy,
        accuracy_low=facts.accuracy_low,
        accuracy_high=facts.accuracy_high,
        information=facts.information,
        verdict=[verdict.value for verdict, _ in verdicts],
        reason=[reason for _, reason in verdicts],
        copies=copies,
        strength=confusions.strength,
    )


def _or_none(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _check(
    log_h: Tensor, weight: Tensor, annotators: Sequence[str], classes: Sequence[str]
) -> None:
    check_shapes(log_h, weight)
    for name, names, size, letter in (
        ("annotators", annotators, weight.shape[0], "M"),
        ("classes", classes, weight.shape[1], "C"),
    ):
        if len(names) != size:
            raise ValueError(
                f"`{name}` must be {letter} = {size} names, as many as `weight` knows, got "
                f"{len(names)}."
            )
