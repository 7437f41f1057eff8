"""Judging by votes that were left out: how much the classifier counts, how much the votes do, and by which W.

A vote is foretold from the other votes on its item and from a classifier that has not learned from the
item. How well it is foretold needs no gold label, and nothing that is judged by it has seen it:

    L = mean over votes of log sum_c zeta_-m(c) P(m says r | c),

where zeta_-m is the forecast without the votes of m and of whoever copies m, and P(. | c, m) is counted
on other items. The gain cannot take its place: where classifier and annotators err on the same items, it
rewards W for the errors that they share.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..data.flat_votes import FlatVotes
from ..judging.evidence import voices, without_voice
from ..model.votes import Votes
from .informed_start import shrunk_weight

SMOOTHING = 0.01  # pseudo-votes in each cell of everybody's confusion
CLASSIFIER_COUNTS = (0.1, 0.25, 0.5, 0.75, 1.0)
VOTES_COUNT = (0.5, 0.75, 1.5)  # or 1.0
ITERATIONS = 10
OWN = 0.5  # of what a vote says of its item, in counting it: see `LeftOutVotes.learn`
# Of the classifier and of a vote, where all votes count alike; the first of each overrules the fewest.
ALIKE_CLASSIFIER, ALIKE_VOTE = (0.1, 0.25, 0.5, 1.0), (3.0, 1.0, 0.5, 0.25)


class Judged(NamedTuple):
    """One way to combine a classifier and the votes, and how well it foretells a vote.

    Args:
        score: L, the mean log-likelihood of a left-out vote, in nats.
        parts: (V,), of each vote.
        classifier: how much the classifier counts, s_h.
        votes: how much the votes count, s_g.
        weight: (M, C, C), W with all of this in it: annotator, scored class, reported class.
        log_forecast: (N, C), of the items with all votes, in log-probabilities.
    """

    score: float
    parts: Tensor
    classifier: float
    votes: float
    weight: Tensor
    log_forecast: Tensor


class LeftOutVotes:
    """A crowd's votes, each of which can be left out.

    Args:
        annotators: (N, K) int64, padded with -1.
        annotations: (N, K) int64, padded with -1.
        num_annotators: M.
        num_classes: C.
        groups: (M,) int64, who is one voice: copies have one number. Everyone alone by default.
        seed: of the two halves that confusions are counted on.
        trusted: (N, C), scores by gold labels, which stay when votes are left out: see `gold.trusted_columns`.

    Example:
        Three annotators of whom one says anything; the classifier knows nothing.

        >>> generator = torch.Generator().manual_seed(0)
        >>> truth = torch.arange(300) % 2
        >>> said = torch.stack([truth, truth, torch.randint(2, (300,), generator=generator)], dim=1)
        >>> votes = LeftOutVotes(torch.arange(3).repeat(300, 1), said, 3, 2)
        >>> nothing = torch.full((300, 2), 0.5).log()
        >>> start = torch.eye(2)[truth].mul(0.8).add(0.1)
        >>> best = votes.best(nothing, nothing[0], start[votes.item])
        >>> bool((best.log_forecast.argmax(dim=1) == truth).all())
        True
    """

    def __init__(
        self,
        annotators: Tensor,
        annotations: Tensor,
        num_annotators: int,
        num_classes: int,
        groups: Tensor | None = None,
        seed: int = 0,
        trusted: Tensor | None = None,
    ) -> None:
        self.trusted = trusted
        votes = FlatVotes.read([Votes(annotators, annotations)])
        self.item, self.annotator, self.annotation = votes.item, votes.annotator, votes.annotation
        self.num_items, self.num_annotators = len(annotators), num_annotators
        self.num_classes = num_classes
        self.groups = torch.arange(num_annotators) if groups is None else groups
        # Votes of a group on an item are left out together, and are one vote between them.
        _, self.voice = voices(votes, self.groups)
        self.share = (1 / torch.bincount(self.voice))[self.voice].float()
        generator = torch.Generator().manual_seed(seed)
        self.half = torch.randperm(self.num_items, generator=generator)[self.item] % 2

    @property
    def each(self) -> Tensor:
        """A W that counts all votes alike: (M, C, C)."""
        return torch.eye(self.num_classes).expand(self.num_annotators, -1, -1)

    def count(self, posterior: Tensor, share: Tensor | None = None) -> Tensor:
        """Count what annotators say: (M, C, C), from a (V, C) posterior of each vote's item."""
        cell = self.annotator * self.num_classes + self.annotation
        counts = posterior.new_zeros(self.num_annotators * self.num_classes, self.num_classes)
        counts.index_add_(0, cell, posterior * (self.share if share is None else share)[:, None])
        return counts.view(-1, self.num_classes, self.num_classes).transpose(1, 2)

    def columns(self, weight: Tensor) -> Tensor:
        """Give the column of an (M, C, C) W that each vote picks: (V, C)."""
        return weight[self.annotator, :, self.annotation]

    def forecasts(self, base: Tensor, weight: Tensor, strength: float) -> tuple[Tensor, Tensor]:
        """Add votes to what is known of the items without them.

        Args:
            base: (N, C), scores.
            weight: (M, C, C), W.
            strength: what W is multiplied by.

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
        """Let the votes teach each other (EM, with rows drawn to everybody's).

        Each vote is counted by what the others say of its item, and by half of what it says itself (`OWN`).
        Counted by the others alone, who are never sure, confusions come out flatter than they are, and
        flatter with each iteration, until votes say nothing; counted by all that it says, votes by those
        who err alike confirm each other.

        Args:
            base: (N, C), scores of the items without votes.
            posterior: (V, C), the probabilities of each vote's item to start from.
            iterations: how many.

        Returns:
            (M, C, C), log P(annotator says r | class c).
        """
        log_rows = shrunk_weight(self.count(posterior), SMOOTHING)
        for _ in range(iterations):
            _, without = self.forecasts(base, log_rows, 1.0)
            seen = (without + OWN * self.columns(log_rows)).softmax(dim=-1)
            log_rows = shrunk_weight(self.count(seen), SMOOTHING)
        return log_rows

    def foretold(self, without: Tensor) -> Tensor:
        """Foretell each vote from (V, C) log-probabilities without it: (V,) log-likelihoods."""
        found = without.new_zeros(len(self.item))
        for half in (0, 1):
            counts = self.count(without.exp(), self.share * (self.half != half))
            log_rows = shrunk_weight(counts, SMOOTHING)
            likely = (without + self.columns(log_rows)).logsumexp(dim=-1)
            found = torch.where(self.half == half, likely, found)
        return found

    def best(self, log_h: Tensor, log_p: Tensor, posterior: Tensor) -> Judged:
        """Find how much a classifier and the votes count, by the votes that are left out.

        Args:
            log_h: (N, C), log-probabilities of classifiers that have not learned from the item.
            log_p: (C,), log of the class prior.
            posterior: (V, C), the probabilities of each vote's item to learn from first.

        Returns:
            The best way.
        """
        weight = self.learn(0.5 * (log_h + log_p), posterior)
        tried = [self._judged(log_h, log_p, weight, how, 1.0) for how in CLASSIFIER_COUNTS]
        how = max(tried, key=lambda one: one.score).classifier
        tried += [self._judged(log_h, log_p, weight, how, votes) for votes in VOTES_COUNT]
        found = max(tried, key=lambda one: one.score)
        return found._replace(weight=weight * (found.votes * self._voices())[:, None, None])

    def _judged(
        self, log_h: Tensor, log_p: Tensor, weight: Tensor, classifier: float, votes: float
    ) -> Judged:
        """Judge one way to combine a classifier and the votes."""
        base = classifier * log_h + (1 - classifier) * log_p
        total, without = self.forecasts(base, weight, votes)
        parts = self.foretold(without)
        score = float((parts * self.share).sum() / self.share.sum())
        return Judged(score, parts, classifier, votes, weight, total.log_softmax(dim=-1))

    def _voices(self) -> Tensor:
        """How much of a voice each annotator is on average, (M,): copies share one."""
        votes = torch.zeros(2, self.num_annotators)
        votes.index_add_(1, self.annotator, torch.stack([self.share, torch.ones_like(self.share)]))
        return torch.where(votes[1] > 0, votes[0] / votes[1].clamp(min=1), 1.0)

    def again(self, found: Judged, base: Tensor, weight: Tensor) -> Judged:
        """Combine as was found to be best for some of these items.

        Args:
            found: the way.
            base: (N, C), scores of the items without votes, with the classifier in them.
            weight: (M, C, C), log P(annotator says r | class c), of all these votes.

        Returns:
            The way, with W and forecasts of these votes; score and parts are those that were found.
        """
        total, _ = self.forecasts(base, weight, found.votes)
        weight = weight * (found.votes * self._voices())[:, None, None]
        return found._replace(weight=weight, log_forecast=total.log_softmax(dim=-1))

    def alike(self, log_h: Tensor) -> Judged:
        """Count all votes alike: the plurality, with a classifier that breaks ties.

        However little the classifier counts, its likeliest class is the one that it was: it is drawn
        towards equal probabilities, not towards the prior, which would overrule it.

        Args:
            log_h: (N, C), log-probabilities of classifiers that have not learned from the item.

        Returns:
            Of the ways in which no item comes out as a class that fewer have voted for, the one that
            foretells left-out votes best.
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

    def clearly_better(self, one: Judged, other: Judged, errors: float = 1.0) -> bool:
        """Whether one foretells votes better, by more than so many standard errors of the difference."""
        difference = (one.parts - other.parts) * self.share
        spread = float((difference - difference.mean()).square().sum()) ** 0.5
        return float(difference.sum()) > errors * spread
