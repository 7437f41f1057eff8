"""Which annotators to trust on which classes, by a trained model.

The door and its report. The sentences that the console and the page have in common stand here. What is measured of an annotator is in `facts.py`, the verdict on them in
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
from .verdicts import LEAVE_OUT, LOOK_AT, TRUST, Judge, Verdict, counted, listed, others_in_groups

MAX_NAMED = 12  # items, annotators or pairs that a sentence lists
_MAX_GROUPS = 5  # of annotators who count as one voice, that are listed
_MAX_BEST = 3
LEAST_SEEN = 0.5  # items of a class, as expected, that it takes to say how an annotator does on it


@dataclass(frozen=True)
class Action:
    """One thing to do about some of the annotators.

    Args:
        advice: what to do.
        names: of the annotators; none where the advice counts them itself.
        remark: one sentence on why, or nothing.
        one_voice: whether they copy or are copied.

    Example:
        >>> print(Action("Get more votes before judging", ["ann", "bob"]))
        Get more votes before judging (2 annotators): ann, bob.
    """

    advice: str
    names: list[str]
    remark: str = ""
    one_voice: bool = False

    def __str__(self) -> str:
        number = counted(len(self.names), "annotator")
        names = f" ({number}): {listed(self.names, MAX_NAMED)}" if self.names else ""
        return f"{self.advice}{names}.{' ' if self.remark else ''}{self.remark}"


@dataclass(frozen=True)
class AnnotatorReport:
    """What is known of M annotators; every array is in the order of `annotators`.

    Args:
        annotators: M names.
        classes: C names.
        votes: (M,) int64, how many votes each cast.
        counts: (M, C, C), how often each said what on which class, as far as the model can tell:
            annotator, true row, reported column.
        confusion: (M, C, C), the same as probabilities, drawn towards the crowd where votes are few.
        accuracy: (M,), the share of their votes that is right, as far as the model can tell; NaN
            without votes.
        accuracy_low: (M,), lower end of the 95 % interval.
        accuracy_high: (M,), upper end.
        information: (M,), nats of information about the class in a vote of theirs.
        verdict: M values of `Verdict`.
        reason: M sentences that say why.
        copies: pairs of annotators who agree beyond what the truth explains, the clearest first.
        strength: the weight of the crowd's own confusion in `confusion`, in votes per class.
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
        """Return a table with one row per annotator.

        Returns:
            Columns `annotator`, `votes`, `accuracy`, `accuracy_low`, `accuracy_high`,
            `information`, `verdict`, `copies` (the names of those who are one voice with them, with
            a semicolon between two; None if there are none), `reason`, `confuses` (the most
            frequent mistake, or None), `worst_class` and `worst_class_accuracy` (the share of the
            items of that class on which they are right). Undefined numbers are None.
        """
        others = others_in_groups(self.voices(), self.annotators)
        mistakes = [self.most_frequent_mistake(m) for m in range(len(self.annotators))]
        worst = [self.worst_class(m) for m in range(len(self.annotators))]
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
                "worst_class": [name for name, _ in worst],
                "worst_class_accuracy": [share for _, share in worst],
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

    def worst_class(self, annotator: int) -> tuple[str | None, float | None]:
        """Find the class on which an annotator is right least often.

        Args:
            annotator: their number.

        Returns:
            Its name, and how likely they are right on it, by `confusion`. Classes of which they
            seem to have seen no item are left out; (None, None) if that leaves none.
        """
        share = self.confusion[annotator].diagonal()
        seen = (self.counts[annotator].sum(axis=1) >= LEAST_SEEN) & np.isfinite(share)
        if not seen.any():
            return None, None
        worst = int(np.where(seen, share, np.inf).argmin())
        return self.classes[worst], float(share[worst])

    def best(self) -> list[int]:
        """Give the annotators to trust who voted: experts first, then by the lower end of the interval."""
        verdicts = [Verdict.called(name) for name in self.verdict]
        trusted = [m for m, v in enumerate(verdicts) if v.group == TRUST and self.votes[m] > 0]
        low = np.nan_to_num(self.accuracy_low, nan=-1.0)
        return sorted(trusted, key=lambda m: (-verdicts[m].turn, -low[m]))

    def to_act_on_first(self) -> list[int]:
        """Order all annotators by what is most urgent, then by falling number of votes.

        A group that copies stands together where the most urgent of its members belongs, the one
        that the others most likely copied first.
        """
        number = len(self.annotators)
        turn = np.array([Verdict.called(name).turn for name in self.verdict], dtype=int)
        group, behind = np.full(number, -1), np.ones(number)
        pairs = Counter(copy.source for copy in self.copies)
        right = np.nan_to_num(self.votes * self.accuracy)
        for g, voice in enumerate(self.voices()):
            group[voice], turn[voice] = g, turn[voice].min()
            behind[max(voice, key=lambda m: (pairs[m], right[m]))] = 0
        return [int(m) for m in np.lexsort((-self.votes, behind, group, turn))]

    def overview(self) -> str:
        """Sum up the annotators in a few sentences."""
        verdicts = [Verdict.called(name) for name in self.verdict]
        number, groups = Counter(verdicts), Counter(verdict.group for verdict in verdicts)
        votes = counted(int(self.votes.sum()), "vote")
        counts = ", ".join(f"{number[v]:,} {v.value}" for v in Verdict if number[v])
        text = f"{counted(len(verdicts), 'annotator')} cast {votes}: {counts or 'none'}."
        trust, look, leave = (f"{groups[g]:,}" for g in (TRUST, LOOK_AT, LEAVE_OUT))
        text += f" {trust} can be trusted, {look} should be looked at, {leave} should be left out."
        if voices := self.voices():
            left = len(verdicts) - sum(map(len, voices)) + len(voices)
            text += f" With each group of copies counted once, {counted(left, 'voice')} remain"
            text += "s." if left == 1 else "."
        return text

    def actions(self) -> list[Action]:
        """Say what to do about whom, the most urgent first."""
        order, voices = self.to_act_on_first(), self.voices()
        place = {m: i for i, m in enumerate(order)}
        actions = []
        for verdict in sorted(Verdict, key=lambda verdict: verdict.turn):
            if verdict is Verdict.COPY and voices:
                for voice in voices[:_MAX_GROUPS]:
                    names = [self.annotators[m] for m in sorted(voice, key=place.__getitem__)]
                    remark = "They agree more than the truth explains; the votes cannot tell who was first."
                    actions.append(Action("Count as one voice", names, remark, one_voice=True))
                if (more := len(voices) - _MAX_GROUPS) > 0:
                    advice = f"Count as one voice each of {counted(more, 'more group')}"
                    actions.append(Action(advice, [], "All are in annotators.csv."))
            elif verdict.advice:
                found = [m for m in order if self.verdict[m] == verdict.value]
                if found:
                    names = [self.annotators[m] for m in found]
                    actions.append(Action(verdict.advice, names, verdict.remark))
        return actions

    def save(self, path: str | os.PathLike) -> None:
        """Write `table` as CSV, fit for a spreadsheet.

        A name that a spreadsheet would take for a formula (it begins with =, +, -, @ or a control
        character) is written with an apostrophe before it, which spreadsheets show as plain text;
        so are sentences. `table` itself has the names as they are.

        Args:
            path: of the file.
        """
        table = self.table().to_pandas()
        for name in ("annotator", "verdict", "copies", "reason", "confuses", "worst_class"):
            table[name] = [spreadsheet_text(text) for text in table[name]]
        with staged(Path(path)) as place:
            table.to_csv(place, index=False)

    def __str__(self) -> str:
        actions = self.actions()
        lines = [self.overview(), *(f"{i}. {action}" for i, action in enumerate(actions, 1))]
        if not actions:
            lines.append("Nothing stands out: the annotators can be trusted.")
        leave = [
            m for m in self.to_act_on_first() if Verdict.called(self.verdict[m]).group == LEAVE_OUT
        ]
        for title, shown in (("Best", self.best()), ("Most doubtful", leave)):
            lines += [
                f"{title}: {self.annotators[m]} - {self.reason[m]}" for m in shown[:_MAX_BEST]
            ]
        return "\n".join(lines)


def judge_annotators(
    log_h: Tensor,
    weight: Tensor,
    crowd: Iterable[Votes],
    annotators: Sequence[str],
    classes: Sequence[str],
) -> AnnotatorReport:
    """Judge each annotator by what the classifier and the other annotators say of their items.

    A vote is held against the forecast made without it: zeta contains the vote, and where items
    have few votes it would agree with a random annotator too. Votes of an annotator's copies are
    left out with their own.

    `accuracy` is the mean over votes of the probability w that the vote is right, from zeta without
    it and the annotator's own confusion. The interval is Jeffreys' of a binomial share where zeta
    is sure, and wider where it is not, see `_interval`. `information` is the mutual information
    between class and label in `counts`, less what chance would show in as many votes.

    All of this is as far as the model can tell: where the model is overconfident, or wrong together
    with the crowd, so is the interval. On simulated crowds it covers the true accuracy in 94 of 100
    cases where zeta is sure or votes are many (200), and in 88 of 100 where an annotator has 30 votes
    on items of which a third is unsure (83 where half is). On LabelMe, where the model is wrong on
    11 % of the items, it covers the accuracy by gold labels in 75 of 100, and is 8 points too high on
    average.

    Verdicts, the first that holds (the constants are in `verdicts.py`):

    - *too few votes*: fewer than `MIN_VOTES`.
    - *always says one class*: `ONE_CLASS` of the votes are for it, and so are `ONE_CLASS` of those on
      items of another class (this class has a probability of `ELSEWHERE` at most without them),
      significantly more than half. An annotator who was only shown cats and says cat is not meant.
    - *copied or copying*: agrees with another beyond what the truth explains, see
      `copies.find_copies`. All of a group are called so, for the votes cannot tell who was first.
    - *adversarial*: right less often than by chance, sum_r (share of votes r)(share of items of
      class r), by a tenth of that (`AVOIDS`) and more than shuffling their votes would give, and the
      interval lies below chance;
      or not useful, as below, though their votes depend on the class.
    - *random*: shown not to be useful: their accuracy lies below chance and half (`USEFUL`) of what an
      ordinary annotator has beyond it, so does the upper end of the interval, and nothing (`HINT`)
      suggests more than chance.
    - *expert*: as ordinary, and a vote removes half of the uncertainty about the class, and three of
      four votes are right even at the lower end of the interval.
    - *ordinary*: right more often than by chance, by the interval or by more than shuffling their
      votes would give; or all items are of one class, and they say it.
    - *too few votes*: everyone else; the votes do not tell.

    The three that condemn (one class, adversarial, random) need `ENOUGH_TO_CONDEMN` votes. The
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
