"""The verdicts: what each is called and what to do about it, and which one holds of an annotator.

A verdict is one row of `Verdict`. The report and its page take names, order, advice and explanation
from there; `Judge` says when it holds.
"""

from collections.abc import Sequence
from enum import Enum

import numpy as np
from scipy.stats import binom, false_discovery_control, norm

from .copies import Copy, copying_groups
from .evidence import Confusions
from .facts import Facts

TRUST, LOOK_AT, LEAVE_OUT = 0, 1, 2  # what to do with an annotator


class Verdict(Enum):
    """What an annotator may be found to be; of those to leave out the most harmful comes last.

    Args:
        value: what the verdict is called.
        group: `TRUST`, `LOOK_AT` or `LEAVE_OUT`.
        turn: its place where the page shows those to act on first; no two have the same.
        meaning: how the page explains it. Verdicts of the same meaning are explained together.
        advice: what the page says to do; empty where there is nothing to do.
        remark: what the page adds to the advice.

    Example:
        >>> Verdict.called("random").group == LEAVE_OUT
        True
    """

    group: int
    turn: int
    meaning: str
    advice: str
    remark: str

    EXPERT = ("expert", TRUST, 6, "Trust: they are right more often than by chance.")
    ORDINARY = ("ordinary", TRUST, 5, EXPERT[3])
    RANDOM = (
        "random", LEAVE_OUT, 0,
        "Leave out: shown to be right too seldom to be of use, or to say one class whatever the item. Of those who are "
        "left out at most 5 in 100 are expected to be so by bad luck.",
        "Leave out answers no better than random",
    )  # fmt: skip
    ONE_CLASS = (
        "always says one class", LEAVE_OUT, 2, RANDOM[3],
        "Leave out who always says the same class",
    )  # fmt: skip
    ADVERSARIAL = (
        "adversarial", LEAVE_OUT, 1,
        "Leave out of any vote: wrong more often than by chance, in a regular way. Training turns such labels round and "
        "uses them.",
        "Do not use labels of adversaries as they stand",
        "They are wrong in a regular way, which training turns round; perhaps they misread the instructions.",
    )  # fmt: skip
    COPY = (
        "copied or copying", LOOK_AT, 3,
        "Look at: agrees with another more than the truth explains. Together they are one voice. The votes cannot tell "
        "who was first, so all of them are called so.",
        "Count those who copy and are copied as one voice",
    )  # fmt: skip
    TOO_FEW = (
        "too few votes", LOOK_AT, 4,
        "Look at: too few labels to be judged, or too close to chance for as many.",
        "Get more labels before judging",
    )  # fmt: skip

    def __new__(
        cls, value: str, group: int, turn: int, meaning: str, advice: str = "", remark: str = ""
    ) -> "Verdict":
        """Take a row apart."""
        verdict = object.__new__(cls)
        verdict._value_, verdict.group, verdict.turn = value, group, turn
        verdict.meaning, verdict.advice, verdict.remark = meaning, advice, remark
        return verdict

    @classmethod
    def called(cls, name: str) -> "Verdict":
        """Find the verdict of that name."""
        return {verdict.value: verdict for verdict in cls}[name]


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
EXPERT_INFORMATION = 0.5  # share of the class entropy that a label settles
EXPERT_ACCURACY = 0.75  # three labels of four are right, at the lower end of the interval


class Judge:
    """Say the verdict on each annotator, and why.

    Every sentence states what was tested, so that it holds wherever its verdict does.

    Args:
        facts: what was measured of M annotators.
        confusions: of the same.
        copies: pairs of annotators who copy, the clearest first.
        groups: (M,), who copies whom: each group is named by the number of its source.
        annotators: M names.
        classes: C names.
    """

    def __init__(
        self,
        facts: Facts,
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
        self.others = others_in_groups(copying_groups(copies, len(annotators)), annotators)
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

    def verdict(self, m: int) -> tuple[Verdict, str]:
        """Give the verdict on an annotator by their number, and a sentence."""
        facts, n = self.facts, int(self.facts.votes[m])
        if n == 0:
            return Verdict.TOO_FEW, "No votes."
        if self._one_class(m):
            said = f"Says {self.classes[facts.top[m]]} in {self._top_share(m):.0%} of {n} labels"
            return Verdict.ONE_CLASS, (
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
            return Verdict.COPY, f"{self._copies(m)} Of {labels} {right}."
        if n < MIN_VOTES:
            return Verdict.TOO_FEW, f"{labels}, fewer than the {MIN_VOTES} it takes."
        avoids = accuracy <= (1 - AVOIDS) * chance and high < chance
        if self._holds("less than chance", m) and avoids:
            points = round(
                100 * round(chance, 2 + digits) - 100 * round(accuracy, 2 + digits), digits
            )
            return Verdict.ADVERSARIAL, (
                f"Of {labels} {right}, {points:.{digits}f} points less than the {by_chance} "
                f"({self._p('less than chance', m)}): which label they give depends on the class."
            )
        no_use = self._holds("no use", m) and high < useful
        if no_use and low <= chance:
            tells = facts.information[m] > AS_GOOD_AS_NOTHING * self.informed
            if self._holds("pattern", m) and tells:
                return Verdict.ADVERSARIAL, (
                    f"Of {labels} {right}, {by_chance}: less than {of_use} ({self._p('no use', m)}), but "
                    f"which label they give depends on the class ({self._p('pattern', m)}; "
                    f"{facts.information[m]:.2f} nats a label). They say another, or mix up the names."
                )
            if self.by_luck[m] > HINT:
                return Verdict.RANDOM, (
                    f"Of {labels} {right}, {by_chance}. That is not shown to be more than chance "
                    f"({_p_value(self.by_luck[m])}), and shown to be less than {of_use} "
                    f"({self._p('no use', m)})."
                )
        explained, above = self._explained(m), self._holds("more than chance", m)
        if low <= chance and not above and not explained:
            few = f"; nobody is condemned on fewer than {ENOUGH_TO_CONDEMN}"
            few = few if n < ENOUGH_TO_CONDEMN and high < useful else ""
            return Verdict.TOO_FEW, f"{labels}, {right}, {by_chance}: not enough to tell{few}."
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
            return Verdict.EXPERT, (
                f"Of {labels} {right}, {compared}; a label settles {share:.0%} of what there is to know "
                "of the class."
            )
        return Verdict.ORDINARY, (
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
        whom = "the other" if len(others) == 1 else f"{len(others)} others ({listed(others)})"
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


def others_in_groups(groups: Sequence[Sequence[int]], names: Sequence[str]) -> dict[int, list[str]]:
    """Give the names of the others in the group of each who is in one."""
    return {m: [names[k] for k in group if k != m] for group in groups for m in group}


def listed(names: Sequence[str], most: int = 5) -> str:
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


def _many(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
