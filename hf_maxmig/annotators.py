"""Whom to trust on what: what a trained pair says of each annotator.

What is measured of an annotator and the verdict on them live here, who copies whom in `copies.py`,
and the page that shows both in `report.py`.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from scipy.stats import binom, chi2, norm
from torch import Tensor

from .copies import Confusions, Copy, Evidence, Votes, check_shapes, copies_among
from .relabel import spreadsheet_text
from .staging import staged

VERDICTS = (
    "expert",
    "ordinary",
    "always says one class",
    "random",
    "adversarial",
    "copies another",
    "too few votes",
)

# What a verdict rests on. Nothing a user has to set: each is a statement, not a fit to a crowd.
SIGNIFICANCE = 0.05  # that anyone of the crowd is called something by chance, for each verdict
MIN_VOTES = 10  # with fewer the interval of the accuracy spans half the scale, whatever they are
POWER = 0.95  # no one is called random on fewer votes than would show an ordinary annotator
AS_GOOD_AS_NOTHING = 0.1  # of what an ordinary annotator's labels show beyond chance
ONE_CLASS = 0.95  # share of the labels that are one class
EXPERT_INFORMATION = 0.5  # share of the class entropy that a label settles
EXPERT_ACCURACY = 0.75  # three labels of four are right, at the lower end of the interval
COVERAGE = 0.95  # of the intervals
_TILTS, _MOST_TILT = 61, 12.0  # of the confusion, to find the interval; in log odds of being right


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
        verdict: M of `VERDICTS`.
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
            `information`, `verdict`, `copies` (the name of the source, or None), `reason` and
            `confuses`, the most frequent mistake, or None. Numbers that do not exist are None.
        """
        source = {copy.annotator: self.annotators[copy.source] for copy in self.copies}
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
                "copies": [source.get(m) for m in range(len(self.annotators))],
                "reason": self.reason,
                "confuses": mistakes,
            }
        )

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
        number = Counter(self.verdict)
        counts = ", ".join(f"{number[name]} {name}" for name in VERDICTS if number[name])
        lines = [f"{len(self.annotators)} annotators: {counts or 'none'}."]
        good = [m for m, name in enumerate(self.verdict) if name in ("expert", "ordinary")]
        best = sorted(good, key=lambda m: -self.information[m])[:3]
        bad = ("adversarial", "copies another", "always says one class", "random")
        doubtful = [m for name in bad for m, verdict in enumerate(self.verdict) if verdict == name]
        for title, shown in (("Best", best), ("Most doubtful", doubtful[:3])):
            lines += [f"{title}: {self.annotators[m]} - {self.reason[m]}" for m in shown]
        return "\n".join(lines)


def judge_annotators(
    log_h: Tensor,
    weight: Tensor,
    crowd: Iterable[tuple[Tensor, Tensor]],
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

    Verdicts, the first that holds:

    - *too few votes*: fewer than `MIN_VOTES`.
    - *always says one class*: `ONE_CLASS` of the labels are it, and it is also said on the items
      that are something else (`ONE_CLASS` of those too, on more of them than a coin would): who was
      only shown cats and says cat is not meant.
    - *copies another*: see `copies.find_copies`.
    - *adversarial*: right less often than by chance, sum_r (share of labels r)(share of items of
      class r), by more than shuffling their labels would give; or no more often than by chance,
      though which label they give depends on the class.
    - *random*: not right more often than by chance, where 95 of 100 (`POWER`) ordinary annotators
      with such items would be; and the interval leaves out what those are right on.
    - *too few votes*: not more often than by chance, and an ordinary annotator could have missed it
      too.
    - *expert*: a label settles half of what there is to know of the class, and three of four are
      right even at the lower end of the interval.
    - *ordinary*: everyone else.

    "Beyond chance" means more than a tenth (`AS_GOOD_AS_NOTHING`) of what the median of the
    informative annotators shows, and is corrected for the number of annotators. The classifier may
    have learned votes by heart; what is judged on items that it was not trained on is free of that.

    Args:
        log_h: (N, C), log-probabilities of the classifier for the items in their order.
        weight: (M, C, C), W of the trained aggregator: annotator, scored class, reported class.
        crowd: pairs (annotators, annotations), each (n, K) int64 padded with -1, in the order of
            the items, as `crowd_batches` yields them. Read once; annotators of -1 are left out.
        annotators: M names.
        classes: C names.

    Returns:
        The report.

    Raises:
        ValueError: if shapes and names do not fit, or the crowd has more or fewer items than
            `log_h`.

    Example:
        >>> truth = torch.arange(60) % 2
        >>> said = torch.stack([truth, truth, 1 - truth, torch.zeros_like(truth)], dim=1)
        >>> log_h = torch.nn.functional.one_hot(truth, 2).mul(0.9).add(0.05).log()
        >>> report = judge_annotators(log_h, torch.zeros(4, 2, 2), [(torch.arange(4).repeat(60, 1), said)],
        ...                           ["ann", "bob", "eve", "lou"], ["cat", "dog"])
        >>> report.verdict
        ['expert', 'expert', 'adversarial', 'always says one class']
    """
    _check(log_h, weight, annotators, classes)
    rows = 0

    def counted() -> Iterable[tuple[Tensor, Tensor]]:
        nonlocal rows
        for who, said in crowd:
            rows += len(who)
            yield who, said

    votes = Votes.read(counted())
    if rows != len(log_h):
        raise ValueError(
            f"`crowd` must have N = {len(log_h)} items, one a row of `log_h`, got {rows}."
        )
    evidence = Evidence(log_h.cpu(), weight.cpu(), votes)
    copies, groups, confusions = copies_among(evidence)
    facts = _Facts.of(evidence, groups, confusions)
    judged = _Judge(facts, confusions, copies, list(annotators), list(classes))
    verdicts = [judged.verdict(m) for m in range(len(annotators))]
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
        verdict=[verdict for verdict, _ in verdicts],
        reason=[reason for _, reason in verdicts],
        copies=copies,
        strength=confusions.strength,
    )


@dataclass(frozen=True)
class _Facts:
    """What the verdicts rest on; (M,) arrays.

    `lift` is how many more labels are right than by chance, `room` how many there could be,
    `deviation` that of `lift` were their labels shuffled; `pattern` is the p-value of any
    other dependence between label and class.
    """

    votes: np.ndarray
    accuracy: np.ndarray
    accuracy_low: np.ndarray
    accuracy_high: np.ndarray
    information: np.ndarray
    entropy: np.ndarray
    lift: np.ndarray
    room: np.ndarray
    deviation: np.ndarray
    pattern: np.ndarray

    @classmethod
    def of(cls, evidence: Evidence, groups: Tensor, confusions: Confusions) -> "_Facts":
        M, C, votes = evidence.num_annotators, evidence.num_classes, evidence.votes
        n = torch.bincount(votes.annotator, minlength=M).double()
        right = torch.zeros(M, dtype=torch.float64)
        right.index_add_(0, votes.annotator, confusions.right)
        accuracy = torch.where(n > 0, right / n, torch.nan).numpy()
        low, high = _interval(evidence, groups, confusions)
        low, high = np.fmin(low, accuracy), np.fmax(high, accuracy)
        low, high = (np.where(np.isnan(accuracy), np.nan, end) for end in (low, high))

        # Sums of z, of z z' and of z by label: all that shuffling the labels needs.
        by_label = torch.zeros(M * C, C, dtype=torch.float64)
        square = torch.zeros(M, C, C, dtype=torch.float64)
        for part in evidence.chunks(width=2 * C):
            z = evidence.without_own(groups, part).exp().double()
            cell = votes.annotator[part] * C + votes.annotation[part]
            by_label.index_add_(0, cell, z)
            square.index_add_(0, votes.annotator[part], z[:, :, None] * z[:, None, :])
        table = by_label.view(M, C, C).transpose(1, 2)  # annotator, class, label
        count = torch.where(n > 0, n, 1)[:, None]
        said = torch.bincount(votes.annotator * C + votes.annotation, minlength=M * C)
        said = said.view(M, C).double() / count
        mean = table.sum(dim=2) / count
        scatter = square - count[:, :, None] * mean[:, :, None] * mean[:, None, :]
        expected = count[:, 0] * (mean * said).sum(dim=1)
        own = (said * scatter.diagonal(dim1=1, dim2=2)).sum(dim=1)
        cross = torch.einsum("mi,mij,mj->m", said, scatter, said)
        spread = count[:, 0] / (count[:, 0] - 1).clamp(min=1)
        lift = table.diagonal(dim1=1, dim2=2).sum(dim=1) - expected
        deviation = (spread * (own - cross).clamp(min=0)).sqrt()
        own_share = torch.where(deviation > 0, lift / deviation, 0.0).square()
        pattern = _pattern(table, mean, said, scatter, n, own_share)
        return cls(
            votes=n.long().numpy(),
            accuracy=accuracy,
            accuracy_low=low,
            accuracy_high=high,
            information=_information(confusions, n),
            entropy=_entropy(confusions.counts.sum(dim=2)).numpy(),
            lift=lift.numpy(),
            room=(n - expected).numpy(),
            deviation=deviation.numpy(),
            pattern=pattern,
        )


def _interval(
    evidence: Evidence, groups: Tensor, confusions: Confusions
) -> tuple[np.ndarray, np.ndarray]:
    """Give the ends of the interval of each accuracy: posterior quantiles under Jeffreys' prior.

    The confusion of each is tilted, P_t(r | c) proportional to P(r | c) exp(t [r = c]): t moves the
    accuracy from 0 to 1, and the likelihood of the labels given zeta says how far it may go. Where
    zeta is sure this is Jeffreys' interval of a binomial share; where it knows nothing the
    likelihood is flat, and the interval is wide.
    """
    M, C, votes = evidence.num_annotators, evidence.num_classes, evidence.votes
    confusion = confusions.confusion
    diagonal = confusion.diagonal(dim1=1, dim2=2)
    items = confusions.counts.sum(dim=2)
    n = items.sum(dim=1)
    share = items / n.clamp(min=1)[:, None]
    accuracy = (share * diagonal).sum(dim=1)
    # As fine as the interval is short.
    scale = (15 / (n * accuracy * (1 - accuracy) + 1).sqrt()).clamp(0.02, 1.0)
    grid = torch.sinh(torch.linspace(-5, 5, _TILTS, dtype=torch.float64)) / np.sinh(5) * _MOST_TILT
    likelihood = torch.zeros(M, _TILTS, dtype=torch.float64)
    tilted = torch.zeros(M, _TILTS, dtype=torch.float64)
    parts = list(evidence.chunks())
    forecasts = [evidence.without_own(groups, part).exp() for part in parts]
    cell = votes.annotator * C + votes.annotation
    for k, u in enumerate(grid):
        odds = torch.exp(u * scale)[:, None]
        table = confusion / (1 + diagonal * (odds - 1))[:, :, None]
        table.diagonal(dim1=1, dim2=2).mul_(odds)
        tilted[:, k] = (share * table.diagonal(dim1=1, dim2=2)).sum(dim=1)
        rows = table.transpose(1, 2).reshape(M * C, C).to(evidence.total.dtype)
        for part, forecast in zip(parts, forecasts, strict=True):
            chance = torch.linalg.vecdot(forecast, rows[cell[part]]).double().log()
            likelihood[:, k].index_add_(0, votes.annotator[part], chance)
    return _quantiles(tilted.numpy(), likelihood.numpy())


def _quantiles(accuracy: np.ndarray, likelihood: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integrate exp(likelihood) under Beta(1/2, 1/2) over the accuracy, ascending, row by row."""
    angle = np.arcsin(np.sqrt(np.clip(accuracy, 0, 1)))  # in which Jeffreys' prior is flat
    density = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    mass = (density[:, 1:] + density[:, :-1]) / 2 * np.diff(angle, axis=1)
    below = np.concatenate([np.zeros((len(mass), 1)), mass.cumsum(axis=1)], axis=1)
    total = below[:, -1]
    ends = []
    for tail in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2):
        ends.append(np.array([np.interp(tail * t, b, a) for t, b, a in zip(total, below, angle, strict=True)]))  # fmt: skip
    low, high = np.sin(ends[0]) ** 2, np.sin(ends[1]) ** 2
    # All right, or all wrong, is no evidence against always: the interval has one end.
    top = likelihood.max(axis=1) - 1e-3
    return np.where(likelihood[:, 0] >= top, 0.0, low), np.where(
        likelihood[:, -1] >= top, 1.0, high
    )


def _entropy(counts: Tensor) -> Tensor:
    """Entropy of the last dimension, in nats; zero where nothing is counted."""
    p = counts / counts.sum(dim=-1, keepdim=True).clamp(min=1e-300)
    return -torch.special.xlogy(p, p).sum(dim=-1)


def _information(confusions: Confusions, n: Tensor) -> np.ndarray:
    """Mutual information of class and label in the counts, without what chance shows.

    By chance a table of n votes shows about e = d / 2n, d its degrees of freedom, and no more than
    there is, the smaller entropy H: e / sqrt(1 + (e / H)^2) is near the mean of simulated tables
    at either end. H (I - chance) / (H - chance) leaves H at H and brings chance to zero.
    """
    counts = confusions.counts
    classes, labels = counts.sum(dim=2), counts.sum(dim=1)
    joint = _entropy(counts.flatten(1))
    most = torch.minimum(_entropy(classes), _entropy(labels))
    information = _entropy(classes) + _entropy(labels) - joint
    freedom = (classes.clamp(max=1).sum(dim=1) - 1).clamp(min=0)
    freedom = freedom * (labels.clamp(max=1).sum(dim=1) - 1).clamp(min=0)
    room = most.clamp(min=1e-12)
    few = freedom / (2 * n.clamp(min=1))
    chance = few / (1 + (few / room).square()).sqrt()
    corrected = room * (information - chance) / (room - chance).clamp(min=1e-12)
    corrected = torch.where(most > 1e-9, corrected, 0.0).clamp(min=0)
    return torch.minimum(corrected, most).abs().numpy()  # no -0.0


def _pattern(
    table: Tensor, mean: Tensor, said: Tensor, scatter: Tensor, n: Tensor, known: Tensor
) -> np.ndarray:
    """P-value of a dependence of label on class other than being right or wrong.

    Pillai's trace, the chi^2 of the table where z is sure, less `known`, the square of what being
    right shows. Left at 1 where the table is too sparse for it, fewer than five votes a cell on
    average; with two classes there is nothing else.
    """
    away = table - n[:, None, None] * mean[:, :, None] * said[:, None, :]
    classes = (mean * n[:, None] >= 1).sum(dim=1)
    labels = (said > 0).sum(dim=1)
    freedom = ((classes - 1) * (labels - 1) - 1).numpy()
    p_value = np.ones(len(n))
    for m in np.flatnonzero((freedom > 0) & (n.numpy() >= 5 * classes.numpy() * labels.numpy())):
        label_scatter = n[m] * (torch.diag(said[m]) - said[m][:, None] * said[m])
        inverse = torch.linalg.pinv(scatter[m], rtol=1e-3, hermitian=True)
        other = torch.linalg.pinv(label_scatter, rtol=1e-6, hermitian=True)
        trace = torch.einsum("ij,jk,kl,il->", inverse, away[m], other, away[m])
        p_value[m] = chi2.sf(float((n[m] - 1) * trace - known[m]), freedom[m])
    return p_value


class _Judge:
    """Say the verdict on each annotator, and why."""

    def __init__(
        self,
        facts: _Facts,
        confusions: Confusions,
        copies: list[Copy],
        annotators: list[str],
        classes: list[str],
    ) -> None:
        self.facts, self.annotators, self.classes = facts, annotators, classes
        self.counts = confusions.counts.numpy()
        self.copy_of = {copy.annotator: copy for copy in copies}
        self.level = SIGNIFICANCE / max(1, int((facts.votes > 0).sum()))
        self.bar = float(norm.isf(self.level))
        sure = (facts.deviation > 0) & (facts.lift > self.bar * facts.deviation)
        # Nobody to compare with: someone who is right half of what chance leaves.
        self.ordinary = float(np.median(facts.lift[sure] / facts.room[sure])) if sure.any() else 0.5
        self.usual = float(np.median(facts.accuracy[sure])) if sure.any() else 0.5

    def verdict(self, m: int) -> tuple[str, str]:
        """Give one of `VERDICTS` and a sentence."""
        facts, n = self.facts, int(self.facts.votes[m])
        if n == 0:
            return "too few votes", "No votes."
        if n < MIN_VOTES:
            return "too few votes", f"{_many(n, 'label')}, fewer than the {MIN_VOTES} it takes."
        accuracy = (
            f"right on {facts.accuracy[m]:.0%} "
            f"({facts.accuracy_low[m]:.0%} to {facts.accuracy_high[m]:.0%})"
        )
        reason = self._one_class(m, n)
        if reason is not None:
            return "always says one class", reason
        if m in self.copy_of:
            return "copies another", self._copies(self.copy_of[m])
        lift, room, deviation = facts.lift[m], facts.room[m], facts.deviation[m]
        slack = AS_GOOD_AS_NOTHING * self.ordinary * room
        chance = f"{1 - room / n:.0%} by chance"
        if lift + slack < -self.bar * deviation:
            return (
                "adversarial",
                f"Of {n} labels {accuracy}, less than the {chance}: they know the class and say "
                "another.",
            )
        # In deviations: where an ordinary annotator would be, and the cut between them and chance.
        # As high as the correction for M asks for, unless that would hit too many of them.
        usual = (self.ordinary * room - slack) / deviation if deviation > 0 else 0.0
        cut = min(self.bar, max(usual - norm.ppf(POWER), norm.ppf(POWER)))
        if lift - slack <= cut * deviation:
            if facts.pattern[m] < self.level and self._tells(m):
                return (
                    "adversarial",
                    f"Of {n} labels {accuracy}, no more than the {chance}, but they depend on the "
                    f"class ({facts.information[m]:.2f} nats): they say another, or mix up the names.",
                )
            if usual >= 2 * norm.ppf(POWER) and facts.accuracy_high[m] < self.usual:
                return (
                    "random",
                    f"Of {n} labels {accuracy}, no more than the {chance}, where an ordinary "
                    "annotator would have shown.",
                )
            if not self._explained(m):
                return (
                    "too few votes",
                    f"{_many(n, 'label')}, {accuracy}: not enough to tell from the {chance}.",
                )
        share = facts.information[m] / max(facts.entropy[m], 1e-12)
        if share >= EXPERT_INFORMATION and facts.accuracy_low[m] > EXPERT_ACCURACY:
            return (
                "expert",
                f"Of {_many(n, 'label')} {accuracy}; a label settles {share:.0%} of what there is "
                "to know of the class.",
            )
        return (
            "ordinary",
            f"Of {_many(n, 'label')} {accuracy}; a label carries {facts.information[m]:.2f} nats.",
        )

    def _one_class(self, m: int, n: int) -> str | None:
        counts = self.counts[m]
        said = counts.sum(axis=0)
        r = int(said.argmax())
        elsewhere = n - counts[r].sum()
        wrongly = said[r] - counts[r, r]
        if said[r] < ONE_CLASS * n or wrongly < ONE_CLASS * elsewhere - 0.5:
            return None
        if binom.sf(np.floor(wrongly) - 1, np.floor(elsewhere), 0.5) > self.level:
            return None
        return (
            f"Says {self.classes[r]} in {said[r] / n:.0%} of {n} labels, also on "
            f"{wrongly / elsewhere:.0%} of the {elsewhere:.0f} items that are something else."
        )

    def _tells(self, m: int) -> bool:
        """A pattern counts if it is worth a tenth of what an ordinary annotator's label is."""
        informed = self.facts.information[self.facts.lift > self.bar * self.facts.deviation]
        usual = float(np.median(informed)) if len(informed) else 0.0
        return bool(self.facts.information[m] > AS_GOOD_AS_NOTHING * usual)

    def _explained(self, m: int) -> bool:
        """Tell whether there was but one class to see, and that is what was said."""
        items = self.counts[m].sum(axis=1)
        return bool(
            items.max() >= ONE_CLASS * items.sum() and self.facts.accuracy_low[m] >= self.usual
        )

    def _copies(self, copy: Copy) -> str:
        p = "p < 1e-12" if copy.p_value < 1e-12 else f"p = {copy.p_value:.1g}"
        return (
            f"Says the same as {self.annotators[copy.source]} on {copy.agreed} of {copy.common} common "
            f"items, {copy.expected:.0f} expected ({p}); which of them copies, the votes cannot tell."
        )


def _or_none(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _many(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


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
