"""Left-out gold labels decide how much the classifier and the votes count in a forecast.

Left-out votes decide it first (`left_out`), but they only show what annotators say. Where classifier and
annotators err alike, both then count too much, and classes that annotators mistake for each other keep the
annotators' names. Here each gold label is predicted by the same forecast, made without it.
"""

import copy
from typing import NamedTuple

import torch
from torch import Tensor

from .left_out import Judged, LeftOutVotes

FOLDS = 5  # of the gold labels; each is predicted by confusions that were counted without it
DOUBT = (
    0.3  # standard deviation, in nats, of a scalar's logarithm around the value by left-out votes
)
SHIFT = 1.0  # standard deviation, in nats, of what is added to the scores of a class


class Tempered(NamedTuple):
    """A combination of a classifier and the votes, tempered by gold labels.

    Args:
        found: the combination, with the scalars found by gold labels.
        likely: (G,), log-probability of each gold label, by the forecast without it and without d, whose
            C numbers were fitted to these very labels.
        shift: (C,), d, added to the scores of each class.
    """

    found: Judged
    likely: Tensor
    shift: Tensor


class GoldLabels:
    """Gold labels, each of which can be left out.

    Args:
        votes: with `trusted` columns.
        log_h: (N, C), log-probabilities of classifiers that have not learned from the item.
        log_p: (C,), log of the class prior.
    """

    def __init__(self, votes: LeftOutVotes, log_h: Tensor, log_p: Tensor) -> None:
        assert votes.trusted is not None
        self.votes, self.log_h, self.log_p, self.trusted = votes, log_h, log_p, votes.trusted
        self.rows = (self.trusted != 0).any(dim=1).nonzero()[:, 0]
        self.gold = self.trusted[self.rows].argmax(dim=1)

    def voted(self) -> Tensor:
        """Sum what the votes on each gold item say, by confusions counted without its gold label: (G, C)."""
        log_h, log_p = self.log_h, self.log_p
        voted = torch.zeros_like(log_h)
        fold = torch.arange(len(self.rows)) % FOLDS
        for number in range(min(FOLDS, len(self.rows))):
            held = self.rows[fold == number]
            others = copy.copy(self.votes)
            others.trusted = self.trusted.index_fill(0, held, 0.0)
            weight = others.learn(0.5 * (log_h + log_p), log_h.exp()[others.item])
            voted[held] = others.forecasts(torch.zeros_like(log_h), weight, 1.0)[0][held]
        return voted[self.rows]

    def temper(self, found: Judged, voted: Tensor, shifts: bool = True) -> Tempered:
        """Find by gold labels how much the classifier and the votes count, and a shift of each class.

        The forecast of an item is log p + s_h (log h - log p) + s_g (sum of its votes' columns) + d. Each
        gold label is predicted without itself. s_h, s_g and the C numbers d are the likeliest under the gold
        labels and a normal prior: of log s around the value by left-out votes (`DOUBT`), of d around zero
        (`SHIFT`). So few gold labels change little. Votes cannot show d: if most annotators call one class
        by another's name, their votes look like that other class. d is zero unless the classifier alone also
        predicts gold labels better with it; otherwise d would correct the votes and spoil the classifier.

        Args:
            found: a combination that left-out votes have judged.
            voted: (G, C), the sum of the columns of the votes on each gold item, before `found.votes`
                multiplies it.
            shifts: whether to look for d.

        Returns:
            The tempered combination.
        """
        log_p = self.log_p
        seen, voted = found.classifier * (self.log_h - log_p)[self.rows], found.votes * voted
        a, b, shift = self._fit(seen, voted, 0.0)
        likely = self._likely(log_p + a * seen + b * voted)
        if shifts:
            shifted = self._fit(seen, voted, SHIFT)
            alone = [
                self._likely(log_p + x * seen + d).sum() for x, _, d in (shifted, (a, b, shift))
            ]
            if alone[0] > alone[1]:
                a, b, shift = shifted
        classifier = a * found.classifier
        before = found.classifier * self.log_h + (1 - found.classifier) * log_p + self.trusted
        after = classifier * self.log_h + (1 - classifier) * log_p + self.trusted + shift
        tempered = found._replace(
            classifier=classifier,
            votes=b * found.votes,
            weight=b * found.weight,
            log_forecast=(after + b * (found.log_forecast - before)).log_softmax(dim=-1),
        )
        return Tempered(tempered, likely, shift)

    def _likely(self, scores: Tensor) -> Tensor:
        return scores.log_softmax(dim=-1).gather(1, self.gold[:, None])[:, 0]

    def _fit(self, seen: Tensor, voted: Tensor, shifts: float) -> tuple[float, float, Tensor]:
        """Find what the gold labels multiply `seen` and `voted` by, and d, of that standard deviation."""
        C = len(self.log_p)
        doubt = torch.tensor([DOUBT, DOUBT, *[shifts] * C])
        unit = torch.zeros(2 + C, requires_grad=True)  # of a standard normal prior

        def minus_log_posterior() -> Tensor:
            a, b, shift = (doubt * unit).split([1, 1, C])
            scores = self.log_p + a.exp() * seen + b.exp() * voted + shift
            optimizer.zero_grad()
            loss = unit.square().sum() / 2 - self._likely(scores).sum()
            loss.backward()
            return loss

        optimizer = torch.optim.LBFGS([unit], max_iter=100, line_search_fn="strong_wolfe")
        with torch.enable_grad():
            optimizer.step(minus_log_posterior)
        a, b, shift = (doubt * unit.detach()).split([1, 1, C])
        return float(a.exp()), float(b.exp()), shift

    def best(self, found: Judged) -> Tempered:
        """Temper what `LeftOutVotes.best` has found."""
        return self.temper(found, self.voted())

    def alike(self, found: Judged) -> Tempered:
        """Temper what `LeftOutVotes.alike` has found: no confusion is counted, no class is shifted."""
        others = copy.copy(self.votes)
        others.trusted = None
        voted, _ = others.forecasts(torch.zeros_like(self.log_h), others.each, 1.0)
        return self.temper(found, voted[self.rows], shifts=False)


def clearly_likelier(one: Tempered, other: Tempered) -> bool:
    """Whether gold labels are predicted better, by more than a standard error of the difference.

    Example:
        >>> one, other = Tempered(None, torch.tensor([-0.1, -0.3]), None), Tempered(None, torch.tensor([-0.9, -1.2]), None)
        >>> clearly_likelier(one, other), clearly_likelier(other, one)
        (True, False)
    """
    difference = one.likely - other.likely
    spread = float((difference - difference.mean()).square().sum()) ** 0.5
    return float(difference.sum()) > spread
