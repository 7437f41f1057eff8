"""How much the classifier and the votes count in a forecast, by gold labels that were left out.

Left-out votes say it first (`left_out`). They foretell what annotators say, and where classifier and
annotators err alike they take both for surer than they are. A gold label is foretold by the same forecast,
made without it.
"""

import copy
from typing import NamedTuple

import torch
from torch import Tensor

from .left_out import Judged, LeftOutVotes

FOLDS = 5  # of the gold labels; each is foretold by confusions that were counted without it
RATIOS = 2.0 ** torch.linspace(-2.5, 1.5, 17)  # of what left-out votes say, tried for both scalars
DOUBT = 0.5  # standard deviation, in nats, of a scalar's logarithm around what left-out votes say


class Tempered(NamedTuple):
    """What gold labels make of a way to combine a classifier and the votes.

    Args:
        found: the way, with the scalars that gold labels say.
        likely: (G,), log-probability of each gold label, by the forecast without it.
    """

    found: Judged
    likely: Tensor


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

    def heard(self) -> Tensor:
        """Sum what the votes on each gold item say, by confusions counted without its gold label: (G, C)."""
        log_h, log_p = self.log_h, self.log_p
        heard = torch.zeros_like(log_h)
        fold = torch.arange(len(self.rows)) % FOLDS
        for number in range(min(FOLDS, len(self.rows))):
            held = self.rows[fold == number]
            others = copy.copy(self.votes)
            others.trusted = self.trusted.index_fill(0, held, 0.0)
            weight = others.learn(0.5 * (log_h + log_p), log_h.exp()[others.item])
            heard[held] = others.forecasts(torch.zeros_like(log_h), weight, 1.0)[0][held]
        return heard[self.rows]

    def temper(self, found: Judged, heard: Tensor) -> Tempered:
        """Let gold labels say how much the classifier and the votes count.

        The forecast of an item is log p + s_h (log h - log p) + s_g (sum of its votes' columns). Each
        gold label is foretold without itself. s_h and s_g are what the gold labels say on average, where
        log s has a normal prior around what left-out votes have said (`DOUBT`): few gold labels change
        little.

        Args:
            found: a way that left-out votes have judged.
            heard: (G, C), the sum of the columns of the votes on each gold item, as `found.votes`
                multiplies it.

        Returns:
            The way with other scalars.
        """
        log_p, log_ratio = self.log_p, RATIOS.log()
        seen = found.classifier * (self.log_h - log_p)[self.rows]
        heard = found.votes * heard

        def likely(a: float, b: float) -> Tensor:
            log_posterior = (log_p + a * seen + b * heard).log_softmax(dim=-1)
            return log_posterior.gather(1, self.gold[:, None])[:, 0]

        ratios = RATIOS.tolist()
        scores = torch.tensor([[float(likely(a, b).sum()) for b in ratios] for a in ratios])
        scores = scores - (log_ratio[:, None] ** 2 + log_ratio**2) / (2 * DOUBT**2)
        weights = scores.flatten().softmax(dim=0).view_as(scores)
        a = float((weights.sum(dim=1) @ log_ratio).exp())
        b = float((weights.sum(dim=0) @ log_ratio).exp())
        classifier = a * found.classifier
        before = found.classifier * self.log_h + (1 - found.classifier) * log_p + self.trusted
        after = classifier * self.log_h + (1 - classifier) * log_p + self.trusted
        tempered = found._replace(
            classifier=classifier,
            votes=b * found.votes,
            weight=b * found.weight,
            log_forecast=(after + b * (found.log_forecast - before)).log_softmax(dim=-1),
        )
        return Tempered(tempered, likely(a, b))

    def best(self, found: Judged) -> Tempered:
        """Temper what `LeftOutVotes.best` has found."""
        return self.temper(found, self.heard())

    def alike(self, found: Judged) -> Tempered:
        """Temper what `LeftOutVotes.alike` has found: there is no confusion to be counted."""
        each = torch.eye(len(self.log_p)).expand(self.votes.num_annotators, -1, -1)
        others = copy.copy(self.votes)
        others.trusted = None
        heard, _ = others.forecasts(torch.zeros_like(self.log_h), each, 1.0)
        return self.temper(found, heard[self.rows])


def clearly_likelier(one: Tempered, other: Tempered) -> bool:
    """Whether gold labels are foretold better, by more than a standard error of the difference.

    Example:
        >>> one, other = Tempered(None, torch.tensor([-0.1, -0.3])), Tempered(None, torch.tensor([-0.9, -1.2]))
        >>> clearly_likelier(one, other), clearly_likelier(other, one)
        (True, False)
    """
    difference = one.likely - other.likely
    spread = float((difference - difference.mean()).square().sum()) ** 0.5
    return float(difference.sum()) > spread
