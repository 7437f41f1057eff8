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
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.stats import binom, chi2, false_discovery_control, norm
from torch import Tensor

from ..model.whole_files import staged
from .copies import Copy, copies_among
from .evidence import Confusions, Evidence, FlatVotes, check_shapes
from .relabel import spreadsheet_text

VERDICTS = (
    "expert",
    "ordinary",
    "always says one class",
    "random",
    "adversarial",
    "copied or copying",
    "too few votes",
)

# What a verdict rests on. Nothing a user has to set: each is a statement, not a fit to a crowd.
FALSE_DISCOVERIES = 0.05  # share of those called random, adversarial or of one class who are not
MIN_VOTES = 10  # with fewer the interval of the accuracy spans half the scale, whatever they are
ENOUGH_TO_CONDEMN = 25  # labels: with fewer the interval about one half is wider than 40 points
USEFUL = 0.5  # of what an ordinary annotator is right on beyond chance: less is of no use
LEAST_ORDINARY = 0.2  # of what chance leaves: 60 of 100 right where two classes are as frequent
AVOIDS = 0.1  # an adversary is right on a tenth less than by chance
HINT = 0.05  # p-value, uncorrected: whoever is this much above chance is not called random
AS_GOOD_AS_NOTHING = 0.1  # of the information of an ordinary annotator's label
ONE_CLASS = 0.95  # share of the labels that are one class
ELSEWHERE = 0.2  # probability of that class, at most, on an item that is something else
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
            `information`, `verdict`, `copies` (the names of those who are one voice with them, with
            a semicolon between two; None if there are none), `reason` and `confuses`, the most
            frequent mistake, or None. Numbers that do not exist are None.
        """
        others = _others(self.voices(), self.annotators)
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
        return _voices(self.copies, len(self.annotators))

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
        for members in self.voices()[:3]:
            names = _listed([self.annotators[m] for m in members])
            lines.append(f"One voice: {names} - who was first, the votes cannot tell.")
        good = [m for m, name in enumerate(self.verdict) if name in ("expert", "ordinary")]
        best = sorted(good, key=lambda m: -self.accuracy_low[m])[:3]
        bad = ("adversarial", "always says one class", "random")
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

    votes = FlatVotes.read(counted())
    if rows != len(log_h):
        raise ValueError(
            f"`crowd` must have N = {len(log_h)} items, one a row of `log_h`, got {rows}."
        )
    evidence = Evidence(log_h.cpu(), weight.cpu(), votes)
    copies, groups, confusions = copies_among(evidence)
    facts = _Facts.of(evidence, groups, confusions)
    judged = _Judge(facts, confusions, copies, groups.numpy(), list(annotators), list(classes))
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

    `chance` is the share that would be right by chance, `lift` how many more labels are right than
    that, `deviation` that of `lift` were their labels shuffled; `pattern` is the p-value of any
    other dependence between label and class. `top` is the class they say most often, `elsewhere`
    how many of their items are something else, and `there` on how many of these they say it.
    """

    votes: np.ndarray
    accuracy: np.ndarray
    accuracy_low: np.ndarray
    accuracy_high: np.ndarray
    information: np.ndarray
    entropy: np.ndarray
    shares: "_Shares"
    chance: np.ndarray
    lift: np.ndarray
    deviation: np.ndarray
    pattern: np.ndarray
    top: np.ndarray
    elsewhere: np.ndarray
    there: np.ndarray

    @classmethod
    def of(cls, evidence: Evidence, groups: Tensor, confusions: Confusions) -> "_Facts":
        M, C, votes = evidence.num_annotators, evidence.num_classes, evidence.votes
        n = torch.bincount(votes.annotator, minlength=M).double()
        right = torch.zeros(M, dtype=torch.float64)
        right.index_add_(0, votes.annotator, confusions.right)
        accuracy = torch.where(n > 0, right / n, torch.nan).numpy()
        shares = _shares(evidence, groups, confusions)
        low, high = shares.interval()
        low, high = np.fmin(low, accuracy), np.fmax(high, accuracy)
        low, high = (np.where(np.isnan(accuracy), np.nan, end) for end in (low, high))

        said = torch.bincount(votes.annotator * C + votes.annotation, minlength=M * C).view(M, C)
        top = said.argmax(dim=1)
        elsewhere, there = torch.zeros(2, M, dtype=torch.float64)
        # Sums of z, of z z' and of z by label: all that shuffling the labels needs.
        by_label = torch.zeros(M * C, C, dtype=torch.float64)
        square = torch.zeros(M, C, C, dtype=torch.float64)
        for part in evidence.chunks(width=2 * C):
            z = evidence.without_own(groups, part).exp().double()
            cell = votes.annotator[part] * C + votes.annotation[part]
            by_label.index_add_(0, cell, z)
            square.index_add_(0, votes.annotator[part], z[:, :, None] * z[:, None, :])
            usual = top[votes.annotator[part]]
            other = z.gather(1, usual[:, None])[:, 0] <= ELSEWHERE
            elsewhere.index_add_(0, votes.annotator[part], other.double())
            spoken = other & (votes.annotation[part] == usual)
            there.index_add_(0, votes.annotator[part], spoken.double())
        table = by_label.view(M, C, C).transpose(1, 2)  # annotator, class, label
        count = torch.where(n > 0, n, 1)[:, None]
        said = said.double() / count
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
            shares=shares,
            chance=(expected / count[:, 0]).numpy(),
            lift=lift.numpy(),
            deviation=deviation.numpy(),
            pattern=pattern,
            top=top.numpy(),
            elsewhere=elsewhere.numpy(),
            there=there.numpy(),
        )


def _shares(evidence: Evidence, groups: Tensor, confusions: Confusions) -> "_Shares":
    """Say how likely each accuracy of each annotator is: the posterior under Jeffreys' prior.

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
        rows = table.transpose(1, 2).reshape(M * C, C).to(evidence.dtype)
        for part, forecast in zip(parts, forecasts, strict=True):
            chance = torch.linalg.vecdot(forecast, rows[cell[part]]).double().log()
            likelihood[:, k].index_add_(0, votes.annotator[part], chance)
    return _Shares(tilted.numpy(), likelihood.numpy())


class _Shares:
    """Posterior of the share of right labels of M annotators, under Beta(1/2, 1/2).

    Args:
        accuracy: (M, T), shares, ascending.
        likelihood: (M, T), log-likelihood of the labels at each.
    """

    def __init__(self, accuracy: np.ndarray, likelihood: np.ndarray) -> None:
        self.likelihood = likelihood
        # The angle in which Jeffreys' prior is flat.
        self.angle = np.arcsin(np.sqrt(np.clip(accuracy, 0, 1)))
        density = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
        mass = (density[:, 1:] + density[:, :-1]) / 2 * np.diff(self.angle, axis=1)
        below = np.concatenate([np.zeros((len(mass), 1)), mass.cumsum(axis=1)], axis=1)
        self.below = below / np.maximum(below[:, -1:], 1e-300)

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """Give both ends of the interval of `COVERAGE`, (M,) each."""
        low, high = (
            np.sin([np.interp(tail, b, a) for b, a in zip(self.below, self.angle, strict=True)])
            ** 2
            for tail in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
        )
        # All right, or all wrong, is no evidence against always: the interval has one end.
        top = self.likelihood.max(axis=1) - 1e-3
        low = np.where(self.likelihood[:, 0] >= top, 0.0, low)
        return low, np.where(self.likelihood[:, -1] >= top, 1.0, high)

    def above(self, share: np.ndarray) -> np.ndarray:
        """Give the probability that each is right more often than on a share of theirs, (M,)."""
        angle = np.arcsin(np.sqrt(np.clip(share, 0, 1)))
        rows = zip(angle, self.angle, self.below, strict=True)
        return 1 - np.array([np.interp(x, a, b) for x, a, b in rows])


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
    """Say the verdict on each annotator, and why.

    Every sentence states what was tested, so that it holds wherever its verdict does.
    """

    def __init__(
        self,
        facts: _Facts,
        confusions: Confusions,
        copies: list[Copy],
        groups: np.ndarray,
        annotators: list[str],
        classes: list[str],
    ) -> None:
        self.facts, self.annotators, self.classes = facts, annotators, classes
        self.counts = confusions.counts.numpy()
        self.edge: dict[int, Copy] = {}  # the clearest first
        for copy in copies:
            self.edge.setdefault(copy.annotator, copy)
            self.edge.setdefault(copy.source, copy)
        self.others = _others(_voices(copies, len(annotators)), annotators)
        self.by_luck = self._by_luck()
        sure = (self._above_chance() <= FALSE_DISCOVERIES) & (facts.accuracy_low > facts.chance)
        voice = sure & (groups == np.arange(len(groups)))
        # Nobody to compare with: someone who is right on half of what chance leaves.
        ordinary, self.usual, self.informed = 0.5, 0.5, 0.0
        if voice.any():
            skill = (facts.accuracy - facts.chance)[voice] / (1 - facts.chance)[voice]
            ordinary = max(LEAST_ORDINARY, float(np.median(skill)))
            self.usual = float(np.median(facts.accuracy[voice]))
            self.informed = float(np.median(facts.information[voice]))
        self.useful = facts.chance + USEFUL * ordinary * (1 - facts.chance)
        self.p_value = self._tested()

    def _by_luck(self) -> np.ndarray:
        """P-value of being right so often, (M,): that their labels in another order would be."""
        moved = self.facts.deviation > 0
        spread = np.where(moved, self.facts.deviation, 1.0)
        return np.where(moved, norm.sf(self.facts.lift / spread), 1.0)

    def _above_chance(self) -> np.ndarray:
        """The same, corrected for all annotators with votes enough to be praised."""
        return _false_discoveries(self.by_luck, self.facts.votes >= MIN_VOTES)

    def _tested(self) -> dict[str, np.ndarray]:
        """P-values of each way to be condemned, each corrected for all annotators."""
        facts = self.facts
        spread = np.where(facts.deviation > 0, facts.deviation, np.inf)
        tests = {
            "one class": binom.sf(facts.there - 1, facts.elsewhere, 0.5),
            "less than chance": norm.cdf(np.minimum(facts.lift + 0.5, 0) / spread),
            "no use": facts.shares.above(self.useful),
            "pattern": facts.pattern,
        }
        judged = facts.votes >= ENOUGH_TO_CONDEMN
        corrected = {name: _false_discoveries(p, judged) for name, p in tests.items()}
        return corrected | {"more than chance": self._above_chance()}

    def _holds(self, test: str, m: int) -> bool:
        return bool(self.p_value[test][m] <= FALSE_DISCOVERIES)

    def verdict(self, m: int) -> tuple[str, str]:
        """Give one of `VERDICTS` and a sentence."""
        facts, n = self.facts, int(self.facts.votes[m])
        if n == 0:
            return "too few votes", "No votes."
        if self._one_class(m):
            said = f"Says {self.classes[facts.top[m]]} in {self._top_share(m):.0%} of {n} labels"
            return "always says one class", (
                f"{said}, also on {facts.there[m]:.0f} of the {facts.elsewhere[m]:.0f} items that are "
                f"something else ({self._p('one class', m)})."
            )
        accuracy, chance, useful = facts.accuracy[m], facts.chance[m], self.useful[m]
        low, high = facts.accuracy_low[m], facts.accuracy_high[m]
        digits = _digits((low, chance), (high, chance), (high, useful))
        percent = [f"{share:.{digits}%}" for share in (accuracy, low, high, chance, useful)]
        right = f"right on {percent[0]} ({percent[1]} to {percent[2]})"
        by_chance, of_use = (
            f"{percent[3]} expected by chance",
            f"the {percent[4]} that would be of use",
        )
        labels = _many(n, "label")
        if m in self.edge:
            return "copied or copying", f"{self._copies(m)} Of {labels} {right}."
        if n < MIN_VOTES:
            return "too few votes", f"{labels}, fewer than the {MIN_VOTES} it takes."
        avoids = accuracy <= (1 - AVOIDS) * chance and high < chance
        if self._holds("less than chance", m) and avoids:
            points = round(
                100 * round(chance, 2 + digits) - 100 * round(accuracy, 2 + digits), digits
            )
            return "adversarial", (
                f"Of {labels} {right}, {points:.{digits}f} points less than the {by_chance} "
                f"({self._p('less than chance', m)}): which label they give depends on the class."
            )
        no_use = self._holds("no use", m) and high < useful
        if no_use and low <= chance:
            tells = facts.information[m] > AS_GOOD_AS_NOTHING * self.informed
            if self._holds("pattern", m) and tells:
                return "adversarial", (
                    f"Of {labels} {right}, {by_chance}: less than {of_use} ({self._p('no use', m)}), but "
                    f"which label they give depends on the class ({self._p('pattern', m)}; "
                    f"{facts.information[m]:.2f} nats a label). They say another, or mix up the names."
                )
            if self.by_luck[m] > HINT:
                return "random", (
                    f"Of {labels} {right}, {by_chance}. That is not shown to be more than chance "
                    f"({_p_value(self.by_luck[m])}), and shown to be less than {of_use} "
                    f"({self._p('no use', m)})."
                )
        explained, above = self._explained(m), self._holds("more than chance", m)
        if low <= chance and not above and not explained:
            few = f"; nobody is condemned on fewer than {ENOUGH_TO_CONDEMN}"
            few = few if n < ENOUGH_TO_CONDEMN and high < useful else ""
            return "too few votes", f"{labels}, {right}, {by_chance}: not enough to tell{few}."
        if low > chance:
            compared = f"more than the {by_chance}"
        elif above:
            compared = f"{by_chance}, more than the same labels in another order would be "
            compared += f"({self._p('more than chance', m)})"
        else:
            compared = "all on items that seem to be of one class"
        compared += f", less than {of_use}" if no_use else ""
        share = facts.information[m] / max(facts.entropy[m], 1e-12)
        if share >= EXPERT_INFORMATION and low > EXPERT_ACCURACY:
            return "expert", (
                f"Of {labels} {right}, {compared}; a label settles {share:.0%} of what there is to know "
                "of the class."
            )
        return "ordinary", (
            f"Of {labels} {right}, {compared}; a label carries {facts.information[m]:.2f} nats."
        )

    def _top_share(self, m: int) -> float:
        said = self.counts[m].sum(axis=0)
        return float(said[self.facts.top[m]] / said.sum())

    def _one_class(self, m: int) -> bool:
        """Tell whether they say their most frequent label also where it is something else."""
        there, elsewhere = self.facts.there[m], self.facts.elsewhere[m]
        return (
            self._holds("one class", m)
            and self._top_share(m) >= ONE_CLASS
            and there >= ONE_CLASS * elsewhere - 0.5
            and self.by_luck[m] > HINT
        )

    def _explained(self, m: int) -> bool:
        """Tell whether there was but one class to see, and that is what was said."""
        items = self.counts[m].sum(axis=1)
        return bool(
            items.max() >= ONE_CLASS * items.sum()
            and self.facts.elsewhere[m] == 0
            and self.facts.accuracy_low[m] >= self.usual
        )

    def _p(self, test: str, m: int) -> str:
        return _p_value(self.p_value[test][m])

    def _copies(self, m: int) -> str:
        copy, others = self.edge[m], self.others[m]
        other = self.annotators[copy.source if copy.annotator == m else copy.annotator]
        if copy.agreed == copy.common:
            said = f"Says the same as {other} on all {copy.common} common items"
        else:
            said = f"Says the same as {other} on {copy.agreed} of {copy.common} common items"
        whom = "the other" if len(others) == 1 else f"{len(others)} others ({_listed(others)})"
        return (
            f"{said}, {copy.expected:.0f} expected ({_p_value(copy.p_value)}). They are one voice with "
            f"{whom}; who was first, the votes cannot tell."
        )


def _false_discoveries(p_value: np.ndarray, tested: np.ndarray) -> np.ndarray:
    """Correct p-values by Benjamini-Hochberg over those tested; 1 for all others."""
    corrected = np.ones(len(p_value))
    if tested.any():
        corrected[tested] = false_discovery_control(np.clip(p_value[tested], 0, 1))
    return corrected


def _voices(copies: Sequence[Copy], number: int) -> list[list[int]]:
    """Join pairs to groups: their members' numbers, ascending; the largest group first."""
    low, high = [c.annotator for c in copies], [c.source for c in copies]
    graph = coo_matrix((np.ones(len(copies)), (low, high)), shape=(number, number))
    component = connected_components(graph, directed=False)[1] if number else []
    groups: dict[int, list[int]] = {}
    for m in sorted({*low, *high}):
        groups.setdefault(int(component[m]), []).append(m)
    return sorted(groups.values(), key=len, reverse=True)


def _others(voices: Sequence[Sequence[int]], names: Sequence[str]) -> dict[int, list[str]]:
    """Give the names of the others in the group of each who is in one."""
    return {m: [names[k] for k in group if k != m] for group in voices for m in group}


def _listed(names: Sequence[str], most: int = 5) -> str:
    """Names in a row, the first few."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _digits(*pairs: tuple[float, float]) -> int:
    """Give the fewest decimals with which percentages stand in the order of the numbers."""

    def kept(a: float, b: float, digits: int) -> bool:
        one, other = round(a, 2 + digits), round(b, 2 + digits)
        return (one < other) == (a < b) and (one > other) == (a > b)

    return next((d for d in range(4) if all(kept(a, b, d) for a, b in pairs)), 4)


def _p_value(p: float) -> str:
    return "p < 1e-12" if p < 1e-12 else f"p = {p:.1g}"


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
