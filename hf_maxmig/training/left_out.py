"""Left-out votes: they decide how much the classifier counts, how much the votes count, and which W is used.

Each vote is predicted from the other votes on its item and from a classifier that has not learned from the
item. This needs no gold label, and nothing that a vote judges has seen it:

    L = mean over votes of log sum_c zeta_-m(c) P(m says r | c),

where zeta_-m is the forecast without the votes of m and of the annotators who copy m, and P(. | c, m) is
counted on other items. A vote of weight q counts q times in L. The gain cannot replace L: where classifier and annotators err on the same items, it
rewards W for the errors that they share.
"""

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..data.flat_votes import FlatVotes
from ..judging.evidence import voices
from ..model.annotator_rows import SMOOTHING, shrunk_weight, without_voice
from ..model.functional import log_softmax
from ..model.votes import Votes

CLASSIFIER_COUNTS: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 1.0)
SURER = (1.25, 1.5)  # a classifier may count more than once only where it is not sure enough
VOTES_COUNT = (0.5, 0.75, 1.5)  # or 1.0
ITERATIONS = 10
OWN = 0.5  # weight of a vote's own evidence when it is counted: see `LeftOutVotes.learn`
# Factors of the classifier and of a vote, if all votes count the same; the first of each overrules the fewest votes.
ALIKE_CLASSIFIER, ALIKE_VOTE = (0.1, 0.25, 0.5, 1.0), (3.0, 1.0, 0.5, 0.25)


class Judged(NamedTuple):
    """One way to combine a classifier and the votes, and how well it predicts a vote.

    Args:
        score: L, the mean log-likelihood of a left-out vote, in nats.
        parts: (V,), the log-likelihood of each vote.
        classifier: how much the classifier counts, s_h.
        votes: how much the votes count, s_g.
        weight: (M, C, C), W, multiplied by s_g and by each annotator's share of a vote: annotator, scored
            class, reported class.
        log_forecast: (N, C), log-probabilities of the items by all votes.
    """

    score: float
    parts: Tensor
    classifier: float
    votes: float
    weight: Tensor
    log_forecast: Tensor


def shares(votes: FlatVotes, voice: Tensor) -> Tensor:
    """Divide the weight of one vote among those of a voice: (V,), from the (V,) voice of each vote."""
    if votes.weight is None:
        return (1 / torch.bincount(voice))[voice].float()
    parts = torch.bincount(votes.whole)[votes.whole]
    return votes.weight / torch.bincount(voice, 1 / parts)[voice].float()


class LeftOutVotes:
    """A crowd's votes, each of which can be left out.

    Args:
        crowd: the votes on N items.
        num_annotators: M.
        num_classes: C.
        groups: (M,) int64, group numbers: annotators who copy each other share one. By default every
            annotator is a group.
        seed: of the two halves that confusions are counted on.
        trusted: (N, C), scores by gold labels, which stay when votes are left out: see `gold.trusted_columns`.

    Example:
        Two of three annotators are right, the third votes at random; the classifier knows nothing.

        >>> generator = torch.Generator().manual_seed(0)
        >>> truth = torch.arange(300) % 2
        >>> said = torch.stack([truth, truth, torch.randint(2, (300,), generator=generator)], dim=1)
        >>> votes = LeftOutVotes(Votes(torch.arange(3).repeat(300, 1), said), 3, 2)
        >>> nothing = torch.full((300, 2), 0.5).log()
        >>> start = torch.eye(2)[truth].mul(0.8).add(0.1)
        >>> best = votes.best(nothing, nothing[0], start[votes.item])
        >>> bool((best.log_forecast.argmax(dim=1) == truth).all())
        True
    """

    def __init__(
        self,
        crowd: Votes,
        num_annotators: int,
        num_classes: int,
        groups: Tensor | None = None,
        seed: int = 0,
        trusted: Tensor | None = None,
    ) -> None:
        self.trusted = trusted
        self.flat = votes = FlatVotes.read([crowd])
        self.item, self.annotator, self.annotation = votes.item, votes.annotator, votes.annotation
        self.num_items, self.num_annotators = votes.num_items, num_annotators
        self.num_classes = num_classes
        self._group(torch.arange(num_annotators) if groups is None else groups)
        generator = torch.Generator().manual_seed(seed)
        self.half = torch.randperm(self.num_items, generator=generator)[self.item] % 2

    def _group(self, groups: Tensor) -> None:
        """Let the votes of a group on an item be left out together, and count as one vote together."""
        self.groups = groups
        _, self.voice = voices(self.flat, groups)
        self.share = shares(self.flat, self.voice)

    def grouped(self, groups: Tensor) -> "LeftOutVotes":
        """Return the same votes in other groups, (M,) int64."""
        other = copy.copy(self)
        other._group(groups)
        return other

    @property
    def each(self) -> Tensor:
        """The W that counts all votes the same: (M, C, C)."""
        return torch.eye(self.num_classes).expand(self.num_annotators, -1, -1)

    def count(self, posterior: Tensor, share: Tensor | None = None) -> Tensor:
        """Count annotators' votes: (M, C, C), from the (V, C) posterior of each vote's item."""
        cell = self.annotator * self.num_classes + self.annotation
        counts = posterior.new_zeros(self.num_annotators * self.num_classes, self.num_classes)
        counts.index_add_(0, cell, posterior * (self.share if share is None else share)[:, None])
        return counts.view(-1, self.num_classes, self.num_classes).transpose(1, 2)

    def columns(self, weight: Tensor) -> Tensor:
        """Return the column of an (M, C, C) W that each vote picks: (V, C)."""
        return weight[self.annotator, :, self.annotation]

    def _own(self, log_rows: Tensor) -> Tensor:
        """Return the own evidence of each vote, (V, C), in which its weight counts and those of its other parts."""
        columns = self.columns(log_rows)
        if self.flat.weight is None:
            return columns
        whole = self.flat.whole
        total = torch.zeros_like(columns).index_add_(0, whole, columns * self.flat.weight[:, None])
        return total[whole]

    def forecasts(self, base: Tensor, weight: Tensor, strength: float) -> tuple[Tensor, Tensor]:
        """Add the votes to the scores of the items.

        Args:
            base: (N, C), scores without votes.
            weight: (M, C, C), W.
            strength: factor of W.

        Returns:
            (N, C) scores with all votes, and (V, C) log-probabilities without the votes of the
            vote's own group.
        """
        columns = self.columns(weight) * (strength * self.share)[:, None]
        known = base if self.trusted is None else base + self.trusted
        total = known.index_add(0, self.item, columns)
        own = base.new_zeros(int(self.voice.max()) + 1, self.num_classes)
        own.index_add_(0, self.voice, columns)
        return total, without_voice(total, own, self.item, self.voice)

    def learn(self, base: Tensor, posterior: Tensor, iterations: int = ITERATIONS) -> Tensor:
        """Estimate confusions from the votes by EM, with each row shrunk towards that of all annotators.

        Each vote is counted by the other votes on its item and by half of its own evidence (`OWN`).
        Without its own evidence, confusions come out flatter than they are, and flatter with each
        iteration until votes say nothing, for the other votes never settle an item. With all of it,
        annotators who make the same mistakes confirm each other.

        Args:
            base: (N, C), scores of the items without votes.
            posterior: (V, C), the first class probabilities of each vote's item.
            iterations: of EM.

        Returns:
            (M, C, C), log P(annotator says r | class c).
        """
        log_rows = shrunk_weight(self.count(posterior), SMOOTHING)
        for _ in range(iterations):
            _, without = self.forecasts(base, log_rows, 1.0)
            seen = log_softmax(without + OWN * self._own(log_rows)).exp_()
            log_rows = shrunk_weight(self.count(seen), SMOOTHING)
        return log_rows

    def foretold(self, without: Tensor, by: Tensor | None = None) -> Tensor:
        """Predict each vote: (V,) log-likelihoods.

        Args:
            without: (V, C), log-probabilities without the vote, which confusions are counted by.
            by: (V, C), log-probabilities that predict, `without` by default.
        """
        by = without if by is None else by
        found = without.new_zeros(len(self.item))
        for half in (0, 1):
            counts = self.count(without.exp(), self.share * (self.half != half))
            log_rows = shrunk_weight(counts, SMOOTHING)
            likely = (by + self.columns(log_rows)).logsumexp(dim=-1)
            found = torch.where(self.half == half, likely, found)
        return found

    def score(self, parts: Tensor) -> float:
        """Average the (V,) log-likelihoods of votes; copies share one vote."""
        return float((parts * self.share).sum() / self.share.sum())

    def best(self, log_h: Tensor, log_p: Tensor, posterior: Tensor, surer: bool = False) -> Judged:
        """Find how much a classifier and the votes count, by left-out votes.

        Args:
            log_h: (N, C), log-probabilities of classifiers that have not learned from the item.
            log_p: (C,), log of the class prior.
            posterior: (V, C), the first class probabilities of each vote's item, see `learn`.
            surer: whether the classifier may count more than once, if votes show that it is not sure
                enough (`_confidence`).

        Returns:
            The combination with the highest score.
        """
        weight = self.learn(0.5 * (log_h + log_p), posterior)
        counts = CLASSIFIER_COUNTS
        if surer:
            most = self._confidence(log_h, log_p, weight)
            counts += tuple(how for how in SURER if how <= most)
        tried = [self._judged(log_h, log_p, weight, how, 1.0) for how in counts]
        how = max(tried, key=lambda one: one.score).classifier
        tried += [self._judged(log_h, log_p, weight, how, votes) for votes in VOTES_COUNT]
        found = max(tried, key=lambda one: one.score)
        return found._replace(weight=weight * (found.votes * self._voices())[:, None, None])

    def _confidence(self, log_h: Tensor, log_p: Tensor, weight: Tensor) -> float:
        """Find the factor of the classifier's logits with which it predicts votes best by itself.

        Beside other votes a classifier that is sure enough may seem to deserve more, for it makes up for
        mistakes that annotators share.
        """
        _, without = self.forecasts(log_h, weight, 1.0)

        def alone(how: float) -> float:
            said = log_softmax(how * log_h + (1 - how) * log_p)
            return self.score(self.foretold(without, by=said[self.item]))

        return max((1.0, *SURER), key=alone)

    def _judged(
        self, log_h: Tensor, log_p: Tensor, weight: Tensor, classifier: float, votes: float
    ) -> Judged:
        """Judge one way to combine a classifier and the votes."""
        base = classifier * log_h + (1 - classifier) * log_p
        total, without = self.forecasts(base, weight, votes)
        parts = self.foretold(without)
        return Judged(self.score(parts), parts, classifier, votes, weight, log_softmax(total))

    def _voices(self) -> Tensor:
        """Each annotator's average share of a vote, (M,): copies share one vote."""
        votes = torch.zeros(2, self.num_annotators)
        each = self.flat.counts(torch.float32)
        votes.index_add_(1, self.annotator, torch.stack([self.share, each]))
        return torch.where(votes[1] > 0, votes[0] / torch.where(votes[1] > 0, votes[1], 1), 1.0)

    def again(self, found: Judged, base: Tensor, weight: Tensor) -> Judged:
        """Combine these votes in the way that was best for some of these items.

        Args:
            found: that way.
            base: (N, C), scores of the items by the classifier, without votes.
            weight: (M, C, C), log P(annotator says r | class c), of all these votes.

        Returns:
            The same way, with W and forecasts of these votes; score and parts stay as they were.
        """
        total, _ = self.forecasts(base, weight, found.votes)
        weight = weight * (found.votes * self._voices())[:, None, None]
        return found._replace(weight=weight, log_forecast=log_softmax(total))

    def alike(self, log_h: Tensor) -> Judged:
        """Count all votes the same: the plurality, with a classifier that breaks ties.

        The classifier is drawn towards equal probabilities, not towards the prior. So its likeliest class
        stays the same, however little it counts; the prior would overrule it.

        Args:
            log_h: (N, C), log-probabilities of classifiers that have not learned from the item.

        Returns:
            The combination that predicts left-out votes best among those that never overrule the
            plurality of an item's votes.
        """
        each = self.each
        votes, _ = self.forecasts(torch.zeros_like(log_h), each, 1.0)
        most = votes.max(dim=1).values - 1e-6  # votes of copies are parts, and their sums inexact
        even = log_h.new_full((self.num_classes,), -math.log(self.num_classes))
        found: Judged | None = None
        for classifier in ALIKE_CLASSIFIER:
            for vote in ALIKE_VOTE:
                one = self._judged(log_h, even, each, classifier, vote)
                says = one.log_forecast.argmax(dim=1, keepdim=True)
                kept = bool((votes.gather(1, says)[:, 0] >= most).all())
                if found is None or (kept and one.score > found.score):
                    found = one
        assert found is not None
        return found._replace(weight=each * (found.votes * self._voices())[:, None, None])

    def clearly_better(
        self, one: Judged, other: Judged, errors: float = 1.0, of: Tensor | None = None
    ) -> bool:
        """Whether one predicts votes better, by more than `errors` standard errors of the difference.

        Args:
            one: the one in question.
            other: what it is compared with.
            errors: how many standard errors.
            of: (V,) bool, which votes count; all by default.
        """
        difference = (one.parts - other.parts) * self.share
        if of is not None:
            difference = torch.where(of, difference, 0.0)
        if self.flat.weight is not None:  # the parts of a vote are not independent of each other
            whole = self.flat.whole
            difference = difference.new_zeros(int(whole.max()) + 1).index_add_(0, whole, difference)
        spread = float((difference - difference.mean()).square().sum()) ** 0.5
        return float(difference.sum()) > errors * spread
