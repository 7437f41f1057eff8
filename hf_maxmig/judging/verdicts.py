"""The verdicts on annotators: their names, the advice that goes with each, and when each holds.

A verdict is one row of `Verdict`. The report and its page take names, order, advice and explanation
from there; `Judge` decides which verdict holds.
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
    """A verdict on an annotator, and the advice that goes with it.

    Args:
        value: the name of the verdict.
        group: `TRUST`, `LOOK_AT` or `LEAVE_OUT`.
        turn: its place in the page's list of things to do; no two have the same.
        meaning: the page's explanation. Verdicts with the same explanation share it.
        advice: what the page says to do; empty if there is nothing to do.
        remark: a sentence after the advice.

    Example:
        >>> Verdict.called("random").group == LEAVE_OUT
        True
    """

    group: int
    turn: int
    meaning: str
    advice: str
    remark: str

    EXPERT = ("expert", TRUST, 6, "Trust: more votes are right than by chance.")
    ORDINARY = ("ordinary", TRUST, 5, EXPERT[3])
    RANDOM = (
        "random", LEAVE_OUT, 0,
        "Leave out: too few of the votes are right to be useful, or all are for the same class whatever the item. At most "
        "5 in 100 of those left out are expected to be there by bad luck.",
        "Leave out annotators whose votes are too seldom right to be useful",
    )  # fmt: skip
    ONE_CLASS = (
        "always says one class", LEAVE_OUT, 2, RANDOM[3],
        "Leave out annotators who always vote for the same class",
    )  # fmt: skip
    ADVERSARIAL = (
        "adversarial", LEAVE_OUT, 1,
        "Leave out of vote counts: more votes are wrong than by chance, in a systematic way. The model learns the pattern "
        "and can still use these votes.",
        "Do not count the votes of adversaries as they are",
        "Their mistakes are systematic, and the model corrects them. Perhaps they misread the instructions.",
    )  # fmt: skip
    COPY = (
        "copied or copying", LOOK_AT, 3,
        "Look at: agrees with another annotator more than the truth explains. Together they count as one voice. The "
        "votes cannot tell who was first, so the original is named too.",
        "Count copies and their original as one voice",
    )  # fmt: skip
    TOO_FEW = (
        "too few votes", LOOK_AT, 4,
        "Look at: too few votes to judge, or a share of right votes too close to chance.",
        "Get more votes before judging",
    )  # fmt: skip

    def __new__(
        cls, value: str, group: int, turn: int, meaning: str, advice: str = "", remark: str = ""
    ) -> "Verdict":
        """Make a verdict from a row."""
        verdict = object.__new__(cls)
        verdict._value_, verdict.group, verdict.turn = value, group, turn
        verdict.meaning, verdict.advice, verdict.remark = meaning, advice, remark
        return verdict

    @classmethod
    def called(cls, name: str) -> "Verdict":
        """Return the verdict with this name."""
        return {verdict.value: verdict for verdict in cls}[name]


# Limits of the verdicts. A user need not set them: each is a definition, not fitted to a crowd.
FALSE_DISCOVERIES = 0.05  # expected share of wrong verdicts among random, adversarial and one class
MIN_VOTES = 10  # with fewer, the interval of the accuracy always spans half the scale
ENOUGH_TO_CONDEMN = 25  # votes; with fewer, an interval around one half is wider than 40 points
USEFUL = 0.5  # share of an ordinary annotator's accuracy beyond chance; less is useless
LEAST_ORDINARY = 0.2  # share of the range above chance: 60 % right with two equal classes
AVOIDS = 0.1  # the accuracy of an adversary is a tenth below chance
HINT = 0.05  # uncorrected p-value of being above chance; under it nobody is called random
AS_GOOD_AS_NOTHING = 0.1  # share of the information in an ordinary annotator's vote
ONE_CLASS = 0.95  # share of the votes that are one class
EXPERT_INFORMATION = 0.5  # share of the class entropy that one vote removes
EXPERT_ACCURACY = 0.75  # lower end of the interval: three of four votes are right


class Judge:
    """Gives each annotator a verdict, with a sentence that states the reason.

    Each sentence states what was tested, so it is true whenever its verdict holds.

    Args:
        facts: the measurements of M annotators.
        confusions: their confusion matrices.
        copies: pairs of annotators who copy, the clearest first.
        groups: (M,), for each annotator the number of the source of their group of copies.
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
        # The default if there is nobody to compare with: half of the range above chance.
        ordinary, self.usual, self.informed = 0.5, 0.5, 0.0
        if voice.any():
            skill = (facts.accuracy - facts.chance)[voice] / (1 - facts.chance)[voice]
            ordinary = max(LEAST_ORDINARY, float(np.median(skill)))
            self.usual = float(np.median(facts.accuracy[voice]))
            self.informed = float(np.median(facts.information[voice]))
        self.useful = facts.chance + USEFUL * ordinary * (1 - facts.chance)
        self.p_value = self._tested()

    def _by_luck(self) -> np.ndarray:
        """(M,) p-values: the probability that the same votes in random order are right as often."""
        moved = self.facts.deviation > 0
        spread = np.where(moved, self.facts.deviation, 1.0)
        return np.where(moved, norm.sf(self.facts.lift / spread), 1.0)

    def _above_chance(self) -> np.ndarray:
        """The same, corrected over all annotators with enough votes to be trusted."""
        return _false_discoveries(self.by_luck, self.facts.votes >= MIN_VOTES)

    def _tested(self) -> dict[str, np.ndarray]:
        """P-values of each test, corrected over all annotators."""
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
        """Return the verdict on annotator number m, and the sentence with its reason."""
        facts, n = self.facts, int(self.facts.votes[m])
        if n == 0:
            return Verdict.TOO_FEW, "No votes."
        if self._one_class(m):
            said = (
                f"{self._top_share(m):.0%} of {counted(n, 'vote')} say {self.classes[facts.top[m]]}"
            )
            return Verdict.ONE_CLASS, (
                f"{said}, also on {facts.there[m]:.0f} of the {facts.elsewhere[m]:.0f} items that belong to "
                f"another class ({self._p('one class', m)})."
            )
        accuracy, chance, useful = facts.accuracy[m], facts.chance[m], self.useful[m]
        low, high = facts.accuracy_low[m], facts.accuracy_high[m]
        digits = _digits((low, chance), (high, chance), (high, useful))
        percent = [f"{share:.{digits}%}" for share in (accuracy, low, high, chance, useful)]
        votes = counted(n, "vote")
        right = f"{percent[0]} ({percent[1]} to {percent[2]}) of {votes} are right"
        by_chance, of_use = (
            f"{percent[3]} expected by chance",
            f"the {percent[4]} needed to be useful",
        )
        if m in self.edge:
            return Verdict.COPY, f"{self._copies(m)} {right}."
        if n < MIN_VOTES:
            return Verdict.TOO_FEW, f"{votes}, fewer than the {MIN_VOTES} needed."
        avoids = accuracy <= (1 - AVOIDS) * chance and high < chance
        if self._holds("less than chance", m) and avoids:
            points = round(
                100 * round(chance, 2 + digits) - 100 * round(accuracy, 2 + digits), digits
            )
            return Verdict.ADVERSARIAL, (
                f"{right}, {points:.{digits}f} points below the {by_chance} "
                f"({self._p('less than chance', m)}): the votes depend on the class, but name another one."
            )
        no_use = self._holds("no use", m) and high < useful
        if no_use and low <= chance:
            tells = facts.information[m] > AS_GOOD_AS_NOTHING * self.informed
            if self._holds("pattern", m) and tells:
                return Verdict.ADVERSARIAL, (
                    f"{right}, against {by_chance}. This is below {of_use} ({self._p('no use', m)}), but the "
                    f"votes depend on the class ({self._p('pattern', m)}; {facts.information[m]:.2f} nats per "
                    "vote): they name another one, or mix up the names."
                )
            if self.by_luck[m] > HINT:
                return Verdict.RANDOM, (
                    f"{right}, against {by_chance}. This is not significantly better than chance "
                    f"({_p_value(self.by_luck[m])}), and significantly below {of_use} "
                    f"({self._p('no use', m)})."
                )
        explained, above = self._explained(m), self._holds("more than chance", m)
        if low <= chance and not above and not explained:
            few = f"; nobody is left out on fewer than {ENOUGH_TO_CONDEMN} votes"
            few = few if n < ENOUGH_TO_CONDEMN and high < useful else ""
            return Verdict.TOO_FEW, f"{right}, against {by_chance}: not enough to tell{few}."
        if low > chance:
            compared = f", above the {by_chance}"
        elif above:
            compared = (
                f", against {by_chance}; the same votes in random order would be right less often "
            )
            compared += f"({self._p('more than chance', m)})"
        else:
            compared = ", all on items that seem to belong to one class"
        compared += f", but below {of_use}" if no_use else ""
        share = facts.information[m] / max(facts.entropy[m], 1e-12)
        if share >= EXPERT_INFORMATION and low > EXPERT_ACCURACY:
            return Verdict.EXPERT, (
                f"{right}{compared}. A vote removes {share:.0%} of the uncertainty about the class."
            )
        return Verdict.ORDINARY, (
            f"{right}{compared}. A vote carries {facts.information[m]:.2f} nats of information."
        )

    def _top_share(self, m: int) -> float:
        said = self.counts[m].sum(axis=0)
        return float(said[self.facts.top[m]] / said.sum())

    def _one_class(self, m: int) -> bool:
        """Tell whether an annotator gives their most frequent answer on items of other classes, too."""
        there, elsewhere = self.facts.there[m], self.facts.elsewhere[m]
        return (
            self._holds("one class", m)
            and self._top_share(m) >= ONE_CLASS
            and there >= ONE_CLASS * elsewhere - 0.5
            and self.by_luck[m] > HINT
        )

    def _explained(self, m: int) -> bool:
        """Tell whether all items belonged to one class, and the annotator named it."""
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
        agreed = "all" if copy.agreed == copy.common else f"{copy.agreed:,} of"
        whom = "the other" if len(others) == 1 else f"{len(others)} others ({listed(others)})"
        return (
            f"Agrees with {other} on {agreed} {copy.common:,} common items, {copy.expected:,.0f} expected "
            f"({_p_value(copy.p_value)}). Counts as one voice with {whom}; the votes cannot tell who was "
            "first."
        )


def _false_discoveries(p_value: np.ndarray, tested: np.ndarray) -> np.ndarray:
    """Correct the p-values of those tested by Benjamini-Hochberg; all others get 1."""
    corrected = np.ones(len(p_value))
    if tested.any():
        corrected[tested] = false_discovery_control(np.clip(p_value[tested], 0, 1))
    return corrected


def others_in_groups(groups: Sequence[Sequence[int]], names: Sequence[str]) -> dict[int, list[str]]:
    """Return, for each annotator in a group, the names of the others in it."""
    return {m: [names[k] for k in group if k != m] for group in groups for m in group}


def listed(names: Sequence[str], most: int = 5) -> str:
    """Join the first few names by commas."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _digits(*pairs: tuple[float, float]) -> int:
    """Return the fewest decimals with which the percentages keep the order of the numbers."""

    def kept(a: float, b: float, digits: int) -> bool:
        one, other = round(a, 2 + digits), round(b, 2 + digits)
        return (one < other) == (a < b) and (one > other) == (a > b)

    return next((d for d in range(4) if all(kept(a, b, d) for a, b in pairs)), 4)


def _p_value(p: float) -> str:
    return "p < 1e-12" if p < 1e-12 else f"p = {p:.1g}"


def counted(number: int, thing: str) -> str:
    """Write a number with its noun, such as `1 class` or `1,078 votes`."""
    plural = f"{thing}es" if thing.endswith("s") else f"{thing}s"
    return f"{number:,} {thing if number == 1 else plural}"
