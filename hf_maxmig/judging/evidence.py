"""The evidence on each item, with and without some of its votes.

The judgement of annotators starts here: the forecast of an item without the votes of one or two
annotators, and the confusion of each annotator by these forecasts. `copies.py` finds copies, and
`verdicts.py` decides on verdicts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data.flat_votes import FlatVotes
from ..model.annotator_rows import without_voice
from ..model.functional import log_softmax, widen

CELLS = 2**24  # numbers held at a time
_ITERATIONS, _CHOOSE_AT = 30, 10
_STRENGTHS = 2.0 ** np.arange(
    -1, 6
)  # votes per row; above 32 the crowd would outweigh an annotator


def voices(votes: FlatVotes, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Join the votes of a group on an item to one voice, which is left out as a whole.

    Args:
        votes: V votes.
        groups: (M,) int64, a number below M per group; `torch.arange(M)` if nobody copies.

    Returns:
        (U,) int64, the item of each voice, ascending; and (V,) int64, the voice of each vote.

    Example:
        >>> votes = FlatVotes.read([(torch.tensor([[0, 1, 2]]), torch.tensor([[1, 1, 0]]))])
        >>> voices(votes, torch.tensor([0, 0, 2]))
        (tensor([0, 0]), tensor([0, 0, 1]))
    """
    key = votes.item * len(groups) + groups[votes.annotator]
    key, voice = key.unique(return_inverse=True)
    return key // len(groups), voice


class Evidence:
    """The forecast of each item, with the part that each vote has in it.

    zeta_i is proportional to h(x_i) exp(sum of W^m e(y_i^m)): the prior in g and the prior in the
    denominator cancel. The forecast without some votes is the same sum without their columns: it is
    exact, and costs a subtraction.

    Annotators who copy each other may be put into groups. A group is one voice: the votes of its members
    on an item count once, as the mean of their columns, each multiplied by its vote's weight. So five copies cannot outvote three others. If
    the training has already divided the weight of one annotator among copies, their voice is weaker than
    it should be; that makes the forecast less confident and accuses nobody.

    Args:
        log_h: (N, C), log-probabilities of the classifier.
        weight: (M, C, C), W: annotator, scored class, reported class.
        votes: V votes.

    Example:
        >>> half, sure = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.0, -2.0], [-2.0, 0.0]])
        >>> votes = FlatVotes.read([(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))])
        >>> evidence = Evidence(half, torch.stack([sure, sure]), votes)
        >>> evidence.without_own(torch.arange(2), slice(0, 2)).exp()  # the other one's vote is left
        tensor([[0.1192, 0.8808],
                [0.8808, 0.1192]])
    """

    def __init__(self, log_h: Tensor, weight: Tensor, votes: FlatVotes) -> None:
        self.votes = votes
        self.num_annotators, self.num_classes, _ = weight.shape
        self.table = widen(weight).transpose(1, 2).contiguous()  # annotator, reported, scored
        self.log_h = widen(log_h)
        self._groups: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The type of all that is computed from it."""
        return self.log_h.dtype

    def of_answers(self) -> "Evidence":
        """The evidence in which each vote counts in full, for the class that it names first."""
        return Evidence(self.log_h, self.table.transpose(1, 2), self.votes.answers())

    def chunks(self, width: int = 1) -> Iterator[slice]:
        """Cut the votes so that `width` numbers per vote and class fit in memory."""
        step = max(1, CELLS // (self.num_classes * width))
        for start in range(0, len(self.votes), step):
            yield slice(start, min(start + step, len(self.votes)))

    def spoken(self, part: slice | Tensor) -> Tensor:
        """Return the column of W that each of some votes picks, multiplied by the vote's weight: (n, C)."""
        columns = self.table[self.votes.annotator[part], self.votes.annotation[part]]
        if self.votes.weight is None:
            return columns
        return columns * self.votes.weight[part, None].to(columns.dtype)

    def _prepare(self, groups: Tensor) -> None:
        """Compute the mean column of each group on each item, over its members who voted."""
        M, annotator = self.num_annotators, self.votes.annotator
        item, self.voice = voices(self.votes, groups)
        size = torch.bincount(torch.unique(self.voice * M + annotator) // M)  # members who spoke
        self.spoken_mean = torch.zeros(len(item), self.num_classes, dtype=self.dtype)
        for part in self.chunks():
            self.spoken_mean.index_add_(0, self.voice[part], self.spoken(part))
        self.spoken_mean /= size[:, None]
        self.scores = self.log_h.clone().index_add_(0, item, self.spoken_mean)
        self._groups = groups.clone()

    def without_own(self, groups: Tensor, part: slice | Tensor) -> Tensor:
        """Forecast the item of each of some votes from all but the votes of its annotator's group.

        Args:
            groups: (M,) int64, a number below M per group; `torch.arange(M)` if nobody copies.
            part: which votes.

        Returns:
            (n, C), log-probabilities.
        """
        if self._groups is None or not torch.equal(self._groups, groups):
            self._prepare(groups)
        item, voice = self.votes.item[part], self.voice[part]
        return without_voice(self.scores, self.spoken_mean, item, voice)

    def without_pair(self, groups: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """Forecast items without the groups of two votes each.

        Args:
            groups: (M,) int64, as in `without_own`.
            left: (n,), numbers of votes.
            right: (n,), numbers of votes on the same items.

        Returns:
            (n, C), log-probabilities.
        """
        if self._groups is None or not torch.equal(self._groups, groups):
            self._prepare(groups)
        one, other = self.voice[left], self.voice[right]
        rest = self.scores[self.votes.item[left]] - self.spoken_mean[one]
        rest -= self.spoken_mean[other] * (one != other)[:, None]
        return log_softmax(rest)


@dataclass(frozen=True)
class Confusions:
    """How M annotators confuse C classes.

    Args:
        counts: (M, C, C) float64: annotator, true row, reported column.
        confusion: (M, C, C) float64, from `counts` plus `strength` pseudo-votes per row of the pooled one.
        pooled: (C, C), the confusion of all annotators together.
        strength: pseudo-votes per row, the number with which votes are best predicted from the others.
        right: (V,), the probability that each vote is right.
    """

    counts: Tensor
    confusion: Tensor
    pooled: Tensor
    strength: float
    right: Tensor


def fit_confusions(evidence: Evidence, groups: Tensor) -> Confusions:
    """Find the confusion under which each annotator's votes are most likely, given the others.

    The class of an item is known up to zeta without the annotator's group. Counts by zeta alone are
    blurred: an annotator who is always right would look wrong wherever zeta is unsure. So each vote is
    also weighed by its own annotator's confusion, zeta_-v(c) P(m says r | c), and counted again until
    nothing changes. This is EM for each annotator alone: no vote is evidence for another annotator's.
    A vote of weight q counts q times, and its own evidence is P(m says r | c)^q; the parts of a soft vote
    are one vote, whose own evidence is that of all its parts.
    Rows with few counts are shrunk towards the pooled confusion by a Dirichlet prior, whose number of
    votes per row is the one that best predicts each vote from the other votes of its annotator.

    Args:
        evidence: of all votes.
        groups: (M,) int64, the groups that are left out together.

    Returns:
        The confusions.
    """
    M, C, votes = evidence.num_annotators, evidence.num_classes, evidence.votes
    parts = list(evidence.chunks())
    forecasts = [evidence.without_own(groups, part).exp() for part in parts]
    cell = votes.annotator * C + votes.annotation
    table = torch.ones(M * C, C, dtype=evidence.dtype)  # of the confusion: cell, true class
    right = torch.zeros(len(votes), dtype=torch.float64)
    strength = 1.0

    each = votes.counts()[:, None]
    # The weight of all parts of a vote, and of those that name the same class.
    parts_together = votes.together(votes.whole)[:, None]
    alike = votes.together(votes.whole * C + votes.annotation)[:, None]

    def own_evidence() -> Callable[[slice], Tensor]:
        """Return (n, C), up to a factor: the likelihood of each vote by its annotator's confusion."""
        if votes.weight is None:
            return lambda part: table[cell[part]]
        total = table.new_zeros(len(votes), C)
        for part in parts:
            said = table.log()[cell[part]] * each[part].to(table.dtype)
            total.index_add_(0, votes.whole[part], said)
        return lambda part: total[votes.whole[part]].softmax(dim=1)

    def posterior(forecast: Tensor, own: Tensor) -> Tensor:
        joint = forecast * own
        return joint / joint.sum(dim=1, keepdim=True)

    for step in range(_ITERATIONS):
        before = right.clone()
        by_report = torch.zeros(M * C, C, dtype=torch.float64)
        likely = own_evidence()
        for part, forecast in zip(parts, forecasts, strict=True):
            truth = posterior(forecast, likely(part))
            by_report.index_add_(0, cell[part], truth.double() * each[part])
            right[part] = truth.gather(1, votes.annotation[part, None])[:, 0].double()
        counts = by_report.view(M, C, C).transpose(1, 2)
        pooled = counts.sum(dim=0) + 1 / C
        pooled /= pooled.sum(dim=1, keepdim=True)
        if step == _CHOOSE_AT:
            # Each vote, predicted from the other votes of its annotator and the crowd.
            foretold = np.zeros(len(_STRENGTHS))
            rows = counts.sum(dim=2)
            for part, forecast in zip(parts, forecasts, strict=True):
                own = posterior(forecast, likely(part)).double()
                others = (by_report[cell[part]] - own * alike[part]).clamp(min=0)
                total = (rows[votes.annotator[part]] - own * parts_together[part]).clamp(min=0)
                prior = pooled.T[votes.annotation[part]]
                for k, s in enumerate(_STRENGTHS):
                    chance = (forecast * ((others + s * prior) / (total + s))).sum(dim=1)
                    foretold[k] += float((chance.log() * each[part, 0]).sum())
            strength = float(_STRENGTHS[int(foretold.argmax())])
        confusion = (counts + strength * pooled) / (counts.sum(dim=2, keepdim=True) + strength)
        table = confusion.transpose(1, 2).reshape(M * C, C).to(table.dtype)
        if step > _CHOOSE_AT and (right - before).abs().sum() <= 1e-4 * len(votes):
            break
    return Confusions(counts, confusion, pooled, strength, right)


def check_shapes(log_h: Tensor, weight: Tensor) -> None:
    """Check that classifier and aggregator have the same classes.

    Raises:
        ValueError: if they do not.
    """
    if weight.ndim != 3 or weight.shape[1] != weight.shape[2]:
        raise ValueError(f"`weight` must have shape (M, C, C), got {tuple(weight.shape)}.")
    if log_h.ndim != 2 or log_h.shape[1] != weight.shape[1]:
        raise ValueError(
            f"`log_h` must have shape (N, C) = (N, {weight.shape[1]}), got {tuple(log_h.shape)}: one "
            "row per item of the crowd, one column per class of `weight`."
        )
