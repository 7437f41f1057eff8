"""What is measured of each annotator: the share of right votes, its interval, and the information of a vote.

`verdicts.py` decides what follows from it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from .evidence import Confusions, Evidence

ELSEWHERE = 0.2  # an item is of another class if the probability of this one is at most this
COVERAGE = 0.95  # of the intervals
_TILTS, _MOST_TILT = 61, 12.0  # of the confusion, to find the interval; in log odds of being right


@dataclass(frozen=True)
class Facts:
    """The numbers that verdicts are based on; (M,) arrays.

    `chance` is the share of votes that would be right by chance, `lift` how many more votes are right,
    and `deviation` the standard deviation of `lift` if the annotator's votes were shuffled. `pattern` is
    the p-value of any other dependence between vote and class. `top` is the annotator's most frequent
    class, `elsewhere` how many of their items are of another class, and `there` on how many of these they
    vote for `top`.
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
    def of(cls, evidence: Evidence, groups: Tensor, confusions: Confusions) -> "Facts":
        """Measure M annotators.

        Args:
            evidence: of all votes.
            groups: (M,) int64, the groups that are left out together.
            confusions: without the votes of each annotator's group.
        """
        M, C, votes = evidence.num_annotators, evidence.num_classes, evidence.votes
        each = votes.counts()
        n = torch.bincount(
            votes.annotator, each, minlength=M
        ).double()  # of no votes it is another type
        right = torch.zeros(M, dtype=torch.float64)
        right.index_add_(0, votes.annotator, confusions.right * each)
        accuracy = torch.where(n > 0, right / n, torch.nan).numpy()
        shares = _shares(evidence, groups, confusions)
        low, high = shares.interval()
        low, high = np.fmin(low, accuracy), np.fmax(high, accuracy)
        low, high = (np.where(np.isnan(accuracy), np.nan, end) for end in (low, high))

        cells = votes.annotator * C + votes.annotation
        said = torch.bincount(cells, each, minlength=M * C).view(M, C).double()
        top = said.argmax(dim=1)
        elsewhere, there = torch.zeros(2, M, dtype=torch.float64)
        # Sums of z, of z z' and of z by label: all that shuffling the labels needs.
        by_label = torch.zeros(M * C, C, dtype=torch.float64)
        square = torch.zeros(M, C, C, dtype=torch.float64)
        for part in evidence.chunks(width=2 * C):
            z = evidence.without_own(groups, part).exp().double()
            own = each[part, None]
            by_label.index_add_(0, cells[part], z * own)
            square.index_add_(0, votes.annotator[part], (z * own)[:, :, None] * z[:, None, :])
            usual = top[votes.annotator[part]]
            other = z.gather(1, usual[:, None])[:, 0] <= ELSEWHERE
            elsewhere.index_add_(0, votes.annotator[part], other * each[part])
            spoken = other & (votes.annotation[part] == usual)
            there.index_add_(0, votes.annotator[part], spoken * each[part])
        table = by_label.view(M, C, C).transpose(1, 2)  # annotator, class, label
        count = torch.where(n > 0, n, 1)[:, None]
        said = said / count
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
            votes=n.round().long().numpy(),
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
            elsewhere=elsewhere.round().numpy(),  # counts of votes, for a binomial test
            there=there.round().numpy(),
        )


def _shares(evidence: Evidence, groups: Tensor, confusions: Confusions) -> "_Shares":
    """Compute the posterior of each annotator's accuracy under Jeffreys' prior.

    Each confusion is tilted, P_t(r | c) proportional to P(r | c) exp(t [r = c]): t moves the accuracy
    from 0 to 1, and the likelihood of the votes given zeta limits how far. Where zeta is certain, the
    interval is Jeffreys' interval of a binomial share. Where zeta knows nothing, the likelihood is flat
    and the interval is wide.
    """
    M, C, votes = evidence.num_annotators, evidence.num_classes, evidence.votes
    confusion = confusions.confusion
    diagonal = confusion.diagonal(dim1=1, dim2=2)
    items = confusions.counts.sum(dim=2)
    n = items.sum(dim=1)
    share = items / n.clamp(min=1)[:, None]
    accuracy = (share * diagonal).sum(dim=1)
    # The grid is finer where the interval is shorter.
    scale = (15 / (n * accuracy * (1 - accuracy) + 1).sqrt()).clamp(0.02, 1.0)
    grid = torch.sinh(torch.linspace(-5, 5, _TILTS, dtype=torch.float64)) / np.sinh(5) * _MOST_TILT
    likelihood = torch.zeros(M, _TILTS, dtype=torch.float64)
    tilted = torch.zeros(M, _TILTS, dtype=torch.float64)
    parts = list(evidence.chunks())
    forecasts = [evidence.without_own(groups, part).exp() for part in parts]
    cell, each = votes.annotator * C + votes.annotation, votes.counts()
    for k, u in enumerate(grid):
        odds = torch.exp(u * scale)[:, None]
        table = confusion / (1 + diagonal * (odds - 1))[:, :, None]
        table.diagonal(dim1=1, dim2=2).mul_(odds)
        tilted[:, k] = (share * table.diagonal(dim1=1, dim2=2)).sum(dim=1)
        rows = table.transpose(1, 2).reshape(M * C, C).to(evidence.dtype)
        for part, forecast in zip(parts, forecasts, strict=True):
            chance = torch.linalg.vecdot(forecast, rows[cell[part]]).double().log()
            likelihood[:, k].index_add_(0, votes.annotator[part], chance * each[part])
    return _Shares(tilted.numpy(), likelihood.numpy())


class _Shares:
    """Posterior of the share of right votes of M annotators, under Beta(1/2, 1/2).

    Args:
        accuracy: (M, T), shares, ascending.
        likelihood: (M, T), log-likelihood of the votes at each.
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
        """Return both ends of the interval of `COVERAGE`, (M,) each."""
        low, high = (
            np.sin([np.interp(tail, b, a) for b, a in zip(self.below, self.angle, strict=True)])
            ** 2
            for tail in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
        )
        # If all votes are right, or all wrong, nothing speaks against 1, or 0: the interval ends there.
        top = self.likelihood.max(axis=1) - 1e-3
        low = np.where(self.likelihood[:, 0] >= top, 0.0, low)
        return low, np.where(self.likelihood[:, -1] >= top, 1.0, high)

    def above(self, share: np.ndarray) -> np.ndarray:
        """Return the probability that each annotator's share of right votes exceeds a given one, (M,)."""
        angle = np.arcsin(np.sqrt(np.clip(share, 0, 1)))
        rows = zip(angle, self.angle, self.below, strict=True)
        return 1 - np.array([np.interp(x, a, b) for x, a, b in rows])


def _entropy(counts: Tensor) -> Tensor:
    """Entropy of the last dimension, in nats; zero where nothing is counted."""
    p = counts / counts.sum(dim=-1, keepdim=True).clamp(min=1e-300)
    return -torch.special.xlogy(p, p).sum(dim=-1)


def _information(confusions: Confusions, n: Tensor) -> np.ndarray:
    """Mutual information of class and vote in the counts, corrected for chance.

    By chance a table of n votes shows an information of about e = d / 2n, where d are its degrees of
    freedom, and at most the smaller entropy H. e / sqrt(1 + (e / H)^2) is close to the mean of simulated
    tables in both limits. H (I - chance) / (H - chance) maps H to H and chance to zero.
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
    """P-value of a dependence of the vote on the class other than being right or wrong.

    The statistic is Pillai's trace, which is the chi^2 of the table if z is certain, less `known`, the
    square of what being right shows. The p-value is 1 if the table is too sparse, with fewer than five
    votes per cell on average, and for two classes, where no other dependence exists.
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
