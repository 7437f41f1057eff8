"""Copies: annotators who agree more than the truth explains.

`evidence.py` forecasts each item without the votes that are judged.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from scipy.stats import beta, false_discovery_control
from torch import Tensor

from ..data.flat_votes import FlatVotes
from ..model.votes import Votes
from .evidence import CELLS, Confusions, Evidence, check_shapes, fit_confusions

MIN_COMMON = 10  # fewer common items are no evidence after a correction for thousands of pairs
LARGE_SHARE = 0.5  # a copy repeats at least half of the votes that the truth does not explain
SHARED_BY_ALL = 0.2  # honest annotators on hard items: 90 of 100 pairs of a real crowd share less
HANGS_TOGETHER = 0.3  # share from which two who are no copies may still count as one voice
SIGNIFICANCE = 0.01  # false discovery rate over all pairs
# For two annotators who never disagree: how often honest annotators agree, at least and at most. The
# upper limit rises if the rest of the crowd agrees still more often.
HONEST_AGREEMENT, CAREFUL_AGREEMENT = 0.9, 0.95
ROUNDS = 4  # at most; each leaves out the copies found before, until no more are found
_SHARES = torch.cat([torch.arange(0, 0.96, 0.05), torch.tensor([0.98, 0.995])]).double()
MOST_MEETINGS = 20_000_000  # of two votes on an item; half a minute. Beyond, items are sampled


@dataclass(frozen=True)
class Copy:
    """Two annotators who agree more than the truth explains.

    Args:
        annotator: number of one of the two.
        source: number of the other, the one with more right votes. The votes cannot tell who was
            first: either may be the copy, or both copy a third.
        common: how many items both voted on.
        agreed: on how many of them they agreed.
        expected: on how many they would agree if their mistakes were independent; for two who never
            disagreed, if they were as careful as honest annotators can be.
        p_value: the probability of that many agreements then, corrected for the number of pairs
            (Benjamini-Hochberg).
        share: the share of one annotator's votes, among those that the truth does not explain, that
            repeats the other's, 0..1.
    """

    annotator: int
    source: int
    common: int
    agreed: int
    expected: float
    p_value: float
    share: float = 1.0


def find_copies(log_h: Tensor, weight: Tensor, crowd: Iterable[Votes]) -> list[Copy]:
    """Find annotators who repeat another's votes.

    Two honest annotators agree because both see the truth; given the truth, their mistakes are
    independent. If one says r, the other says r with probability
    q = sum_c z_c P(a: r | c) P(b: r | c) / sum_c z_c P(a: r | c), z the forecast without either.
    An annotator who repeats a share k of the other's votes agrees with probability k + (1 - k) q. A
    shared mistake, where q is small, is evidence for copying. A truth that both see, or a class that
    both always say, has q near 1 and is no evidence, however often they agree.

    On hard items honest annotators share mistakes too, so independence (k = 0) is the wrong null
    hypothesis. The null is every share up to the one that 95 of 100 pairs of this crowd stay below, and
    at least `SHARED_BY_ALL`. A pair is a copy if its most likely k is `LARGE_SHARE` or more and the
    likelihood ratio of such shares to the null keeps the false discovery rate over all pairs at most
    `SIGNIFICANCE`. A likelihood ratio exceeds x with probability 1/x at most (Markov), for any number
    of items, so its inverse is a p-value; Benjamini-Hochberg holds for such p-values however the pairs
    depend on each other.

    Copies of copies hide each other, because the vote of the third passes for truth. So copies that were
    found are left out together, and the search is repeated. Annotators joined by copying form a group.
    Its member with the most right votes is called the source, which does not mean that it was first. If
    copies make up over half of all comparisons, nothing is left to compare them with, and none are named.

    Two annotators who never disagree are named without a model of their mistakes, for there may be none
    to compare. Honest annotators agree on an item with probability q, and on n items with the product.
    q is what the truth explains, without anyone identical to them, but between `HONEST_AGREEMENT` and
    `CAREFUL_AGREEMENT`; if the rest of the crowd agrees more often than that, q is the crowd's rate. If
    no two annotators ever disagree, the classifier has learned from one voice and is no independent
    evidence; q is then `HONEST_AGREEMENT`. So two who are both always right are named too, given enough
    items (90 of 100 pairs of 59 annotators: over 200): the votes cannot tell them from copies.
    Annotators who always say the same class agree with each other and are not named for that.

    Args:
        log_h: (N, C), log-probabilities of the classifier for the items in their order.
        weight: (M, C, C), W: annotator, scored class, reported class.
        crowd: the crowd part by part, each as `Votes`, in the order of the items, as
            `crowd_batches` yields them. Read once.

    Returns:
        Each copy with its source, the clearest first.

    Raises:
        ValueError: if shapes do not fit.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> truth = torch.arange(400) % 2
        >>> right = torch.rand(400, 4, generator=generator) < 0.8
        >>> said = torch.where(right, truth[:, None], 1 - truth[:, None])
        >>> said = torch.cat([said, said[:, :1]], dim=1)  # the fifth repeats the first
        >>> log_h = torch.nn.functional.one_hot(truth, 2).mul(0.9).add(0.05).log()
        >>> weight = torch.zeros(5, 2, 2)
        >>> [(c.annotator, c.source) for c in
        ...  find_copies(log_h, weight, [(torch.arange(5).repeat(400, 1), said)])]
        [(4, 0)]
    """
    check_shapes(log_h, weight)
    return copies_among(Evidence(log_h, weight, FlatVotes.read(crowd)))[0]


def copying_groups(copies: Sequence[Copy], num_annotators: int) -> list[list[int]]:
    """Join pairs to groups, each of which counts as one annotator.

    Args:
        copies: the pairs.
        num_annotators: M.

    Returns:
        Their members' numbers, ascending; the largest group first. Annotators without a copy are in none.
    """
    joined = _joined([c.annotator for c in copies], [c.source for c in copies], num_annotators)
    return sorted(joined, key=len, reverse=True)


def _joined(low: Sequence[int], high: Sequence[int], number: int) -> list[list[int]]:
    """Join pairs of numbers below `number` to sets: their members ascending, the set with the lowest first."""
    if not len(low):
        return []
    graph = csr_matrix((np.ones(len(low)), (low, high)), shape=(number, number))
    component = connected_components(graph, directed=False)[1]
    sets: dict[int, list[int]] = {}
    for m in np.unique([*low, *high]).tolist():
        sets.setdefault(int(component[m]), []).append(m)
    return list(sets.values())


def copies_among(evidence: Evidence) -> tuple[list[Copy], Tensor, Confusions]:
    """Find copies, and judge each annotator without the votes of their own group.

    Args:
        evidence: of all votes.

    Returns:
        The copies; (M,) int64, the group of each annotator, named by the number of its source; and
        confusions that leave a group out together. If votes have weights, copies are found by the class
        that each vote names first.
    """
    votes = evidence.votes
    if votes.weight is not None:
        copies, groups, _ = copies_among(evidence.of_answers())
        return copies, groups, fit_confusions(evidence, groups)
    groups = torch.arange(evidence.num_annotators)
    pairs = _Pairs.on_common_items(votes, evidence.num_annotators)
    copies = []
    if not len(pairs.key):
        return copies, groups, fit_confusions(evidence, groups)

    def named(found: Tensor, p_value: Tensor, confusions: Confusions) -> tuple[list[Copy], Tensor]:
        right = torch.zeros(len(groups), dtype=torch.float64)
        right.index_add_(0, votes.annotator, confusions.right)
        return pairs.name_sources(found, p_value, right)

    identical = torch.ones(len(pairs.key), dtype=torch.float64)
    confusions = fit_confusions(evidence, groups)
    alike = pairs.compare(evidence, confusions, groups).perhaps_identical()
    if alike.any():
        # They would confirm each other: all who never disagree are left out together.
        _, together = named(alike, identical, confusions)
        apart = fit_confusions(evidence, together)
        identical = pairs.compare(evidence, apart, together).identical()
        copies, groups = named(identical < SIGNIFICANCE, identical, apart)
        confusions = fit_confusions(evidence, groups)
        pairs.compare(evidence, confusions, groups)
    for _ in range(ROUNDS):
        found, p_value = pairs.find(identical)
        copies, after = named(found, p_value, confusions)
        if torch.equal(after, groups):
            break
        groups = after
        confusions = fit_confusions(evidence, groups)
        pairs.compare(evidence, confusions, groups)
    return copies, groups, confusions


def hanging_together(evidence: Evidence, groups: Tensor) -> list[Tensor]:
    """Find annotators whose mistakes seem to hang together, though they need not be copies.

    Tools with the same word list, and models with the same training data, err on the same items. Here a
    pair is found if its most likely share of repeated votes is `HANGS_TOGETHER` or more, beyond the
    share of honest annotators on hard items (`SHARED_BY_ALL`). The rest of the crowd is no standard here, so
    this accuses nobody: whoever asks has to see whether it helps to count them as one voice.

    Args:
        evidence: of all votes. If they have weights, each vote counts for the class that it names first.
        groups: (M,) int64, group numbers of the copies that are known.

    Returns:
        The numbers of the annotators of each set, ascending, with all members of their groups.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> truth = torch.arange(2_000) % 2
        >>> def votes(right, of):
        ...     return torch.where(torch.rand(2_000, 1, generator=generator) < right, of, 1 - of)
        >>> people, tool = [votes(0.8, truth[:, None]) for _ in range(4)], votes(0.65, truth[:, None])
        >>> said = torch.cat([*people, votes(0.9, tool), votes(0.9, tool)], dim=1)
        >>> log_h = torch.nn.functional.one_hot(truth, 2).mul(0.6).add(0.2).log()
        >>> flat = FlatVotes.read([(torch.arange(6).repeat(2_000, 1), said)])
        >>> hanging_together(Evidence(log_h, torch.eye(2).expand(6, -1, -1), flat), torch.arange(6))
        [tensor([4, 5])]
    """
    votes = evidence.votes
    if votes.weight is not None:
        return hanging_together(evidence.of_answers(), groups)
    pairs = _Pairs.on_common_items(votes, evidence.num_annotators)
    if not len(pairs.key):
        return []
    pairs.compare(evidence, fit_confusions(evidence, groups), groups)
    p_value = pairs.p_values(HANGS_TOGETHER)(SHARED_BY_ALL)
    found = (pairs.most_likely() >= HANGS_TOGETHER) & (p_value < SIGNIFICANCE)
    low, high = groups[pairs.low[found]], groups[pairs.high[found]]
    apart = low != high
    sets = _joined(low[apart].tolist(), high[apart].tolist(), len(groups))
    return [torch.isin(groups, torch.tensor(one)).nonzero()[:, 0] for one in sets]


class _Pairs:
    """Pairs of annotators with enough common items, and all other pairs as one last row.

    Args:
        votes: all votes.
        one_each: numbers of one vote of each annotator on each item, by item and annotator.
        key: (P,) a M + b of each pair a < b, ascending.
        common: (P,), on how many items they met.
        num_annotators: M.
    """

    def __init__(
        self, votes: FlatVotes, one_each: Tensor, key: Tensor, common: Tensor, num_annotators: int
    ) -> None:
        self.votes, self.one_each, self.key, self.common = votes, one_each, key, common
        self.low, self.high = key // num_annotators, key % num_annotators
        self.num_annotators = num_annotators
        rows = len(key) + 1
        self.log_likelihood = torch.zeros(rows, len(_SHARES))
        self.met = torch.zeros(rows, dtype=torch.float64)
        self.agreed = torch.zeros(rows, dtype=torch.float64)
        self.expected = torch.zeros(rows, dtype=torch.float64)
        self.explained = torch.zeros(rows, dtype=torch.float64)
        self.honest = torch.zeros(len(key), dtype=torch.float64)

    @classmethod
    def on_common_items(cls, votes: FlatVotes, num_annotators: int) -> "_Pairs":
        """Find them by a sparse product, a block of annotators at a time."""
        code = (votes.item * num_annotators + votes.annotator).numpy()
        one_each = _sample(votes, torch.from_numpy(np.unique(code, return_index=True)[1]))
        rows, columns = votes.annotator[one_each].numpy(), votes.item[one_each].numpy()
        columns = np.unique(columns, return_inverse=True)[1]
        shape = (num_annotators, int(columns.max(initial=-1)) + 1)
        labelled = csr_matrix((np.ones(len(rows), np.int32), (rows, columns)), shape=shape)
        keys, common = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        width = max(1, CELLS // (4 * num_annotators))
        for start in range(0, num_annotators, width):
            product = (labelled[start : start + width] @ labelled.T).tocoo()
            low, high = product.row.astype(np.int64) + start, product.col.astype(np.int64)
            taken = (low < high) & (product.data >= MIN_COMMON)
            keys.append(low[taken] * num_annotators + high[taken])
            common.append(product.data[taken].astype(np.int64))
        key, count = np.concatenate(keys), np.concatenate(common)
        order = np.argsort(key)
        return cls(
            votes,
            one_each,
            torch.from_numpy(key[order]),
            torch.from_numpy(count[order]),
            num_annotators,
        )

    def compare(self, evidence: Evidence, confusions: Confusions, groups: Tensor) -> "_Pairs":
        """Add up, over the common items of each pair, the likelihood of every share k."""
        for total in (self.log_likelihood, self.met, self.agreed, self.expected, self.explained):
            total.zero_()
        dtype = evidence.dtype
        confusion = confusions.confusion.to(dtype)
        by_report = confusion.transpose(1, 2).contiguous()
        shares, last = _SHARES.float(), len(self.key)
        width = CELLS // (8 * max(evidence.num_classes, len(_SHARES)))
        for left, right in _meetings(self.votes, self.one_each, width):
            a, b = self.votes.annotator[left], self.votes.annotator[right]
            key = a * self.num_annotators + b
            place = torch.searchsorted(self.key, key).clamp(max=last - 1)
            place = torch.where(self.key[place] == key, place, last)
            forecast = evidence.without_pair(groups, left, right).exp()
            said = self.votes.annotation[left]
            same = said == self.votes.annotation[right]
            by_a, by_b = forecast * by_report[a, said], by_report[b, said]
            both = (by_a * by_b).sum(dim=1)
            # 1 / q, the mean of both directions: either may be the copy
            surprise = (by_a.sum(dim=1) + (forecast * by_b).sum(dim=1)) / (2 * both)
            agree = (shares * surprise[:, None] + 1 - shares).log()
            self.log_likelihood.index_add_(
                0, place, torch.where(same[:, None], agree, (1 - shares).log()).float()
            )
            self.met.index_add_(0, place, torch.ones_like(place).double())
            self.agreed.index_add_(0, place, same.double())
            careful = (1 / surprise).clamp(HONEST_AGREEMENT, CAREFUL_AGREEMENT)
            self.explained.index_add_(0, place, careful.log().double())
            known = (place < last).nonzero()[:, 0]
            pair, back = place[known].unique(return_inverse=True)
            alike = (confusion[self.low[pair]] * confusion[self.high[pair]]).sum(dim=2)
            self.expected.index_add_(
                0, place[known], (forecast[known] * alike[back]).sum(dim=1).double()
            )
        return self

    def perhaps_identical(self) -> Tensor:
        """Find pairs who never disagree, on too many items for chance: (P,) bool."""
        enough = np.log(SIGNIFICANCE) / np.log(HONEST_AGREEMENT)
        return self._never_disagree()[:-1] & (self.met[:-1] >= enough) & (self._by_habit() < 1)

    def _never_disagree(self) -> Tensor:
        return self.agreed == self.met

    def _by_habit(self) -> Tensor:
        """(P,), how often two would agree if each said classes at their own rates, whatever the item."""
        votes = self.votes
        number = int(votes.annotation.max()) + 1
        said = (
            torch.bincount(
                votes.annotator * number + votes.annotation, minlength=self.num_annotators * number
            )
            .view(-1, number)
            .double()
        )
        share = said / said.sum(dim=1, keepdim=True).clamp(min=1)
        parts = [slice(s, s + CELLS // number) for s in range(0, len(self.key), CELLS // number)]
        return torch.cat(
            [torch.linalg.vecdot(share[self.low[p]], share[self.high[p]]) for p in parts]
        )

    def identical(self) -> Tensor:
        """Compute the p-value of never disagreeing, (P,), corrected for P; 1 for pairs who ever did."""
        met, alike = self.met[:-1], self._never_disagree()
        usual, honest = 0.0, met * np.log(HONEST_AGREEMENT)
        if not alike.all():
            usual = float(self.agreed[~alike].sum() / self.met[~alike].sum())
            honest = self.explained[:-1]
        least = met * self._by_habit().clamp(min=max(usual, 1e-300)).log()
        log_p = torch.maximum(honest, least)
        self.honest = met * (log_p / met).exp()
        p_value = torch.where(alike[:-1], log_p.exp(), 1.0)
        return torch.from_numpy(false_discovery_control(p_value.numpy()))

    def most_likely(self) -> Tensor:
        """The most likely share that each pair repeats, (P,)."""
        return _SHARES[self.log_likelihood[:-1].argmax(dim=1)]

    def p_values(self, least: float) -> Callable[[float], Tensor]:
        """Test each pair: does it repeat a share of `least` or more, rather than one up to a limit?

        Returns:
            A function of the limit: (P,), corrected for P (Benjamini-Hochberg).
        """
        likelihood = self.log_likelihood[:-1].double()
        large = least <= _SHARES
        mean = likelihood[:, large].logsumexp(dim=1) - np.log(int(large.sum()))

        def beyond(limit: float) -> Tensor:
            honest = likelihood[:, limit + 1e-9 >= _SHARES].amax(dim=1)
            p_value = (honest - mean).clamp(max=0).exp()
            return torch.from_numpy(false_discovery_control(p_value.numpy()))

        return beyond

    def find(self, identical: Tensor) -> tuple[Tensor, Tensor]:
        """Find the pairs who copy.

        Args:
            identical: (P,) p-values of `identical`.

        Returns:
            (P,) bool, and (P,) p-values corrected for P.
        """
        most_likely, null = self.most_likely(), SHARED_BY_ALL
        copying = self.p_values(LARGE_SHARE)
        found = torch.zeros(len(self.key), dtype=torch.bool)
        p_value = torch.ones(len(self.key), dtype=torch.float64)
        for _ in range(ROUNDS):
            p_value = copying(null)
            before = found
            found = (most_likely >= max(LARGE_SHARE, null)) & (p_value < SIGNIFICANCE)
            if torch.equal(found, before):
                break
            null = max(SHARED_BY_ALL, self._shared_by_most(~found))
        same = identical < SIGNIFICANCE
        found &= ~same
        if self.met[:-1][found].sum() > (self.met.sum() - self.met[:-1][same].sum()) / 2:
            found = torch.zeros_like(found)
        self.expected[:-1][same] = self.expected[:-1].minimum(self.honest)[same]
        return found | same, torch.where(same, identical, p_value)

    def _shared_by_most(self, taken: Tensor) -> float:
        """Find the share that 95 of 100 pairs stay under: a Beta over the pairs' shares, fitted."""
        likelihood = self.log_likelihood[:-1].double()[taken]
        rest = float(_SHARES[int(self.log_likelihood[-1].argmax())])
        if not len(likelihood):
            return rest
        edges = (_SHARES[1:] + _SHARES[:-1]) / 2
        best, share = -np.inf, 0.0
        for mean in (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
            for size in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0):
                spread = beta(mean * size, (1 - mean) * size)
                mass = np.diff(np.concatenate([[0.0], spread.cdf(edges.numpy()), [1.0]]))
                log_mass = torch.from_numpy(np.log(np.maximum(mass, 1e-300)))
                value = float((likelihood + log_mass).logsumexp(dim=1).sum())
                if value > best:
                    best, share = value, float(spread.ppf(0.95))
        return max(rest, share)

    def name_sources(
        self, found: Tensor, p_value: Tensor, right: Tensor
    ) -> tuple[list[Copy], Tensor]:
        """Join pairs to groups, and point each member to the one with the most right labels.

        Args:
            found: (P,) bool, which pairs copy.
            p_value: (P,).
            right: (M,), how many labels of each are right.

        Returns:
            The copies, the clearest first, and (M,) the group of each annotator.
        """
        groups = torch.arange(self.num_annotators)
        edges = {}
        for place in found.nonzero()[:, 0].tolist():
            edges[int(self.low[place]), int(self.high[place])] = place
        if not edges:
            return [], groups
        low, high = zip(*edges, strict=True)
        copies = []
        for group in _joined(low, high, self.num_annotators):
            # Equal up to rounding is equal: the first of them.
            source = max(group, key=lambda m: (round(float(right[m]), 3), -m))
            groups[group] = source
            # A member that never met the source points to the copy of it that is nearest to the source.
            reached, waiting = {source}, [source]
            while waiting:
                here = waiting.pop(0)
                for m in group:
                    place = edges.get((min(here, m), max(here, m)))
                    if m not in reached and place is not None:
                        copies.append(self._copy(m, here, place, float(p_value[place])))
                        reached.add(m)
                        waiting.append(m)
        return sorted(copies, key=lambda copy: (copy.p_value, -copy.common)), groups

    def _copy(self, annotator: int, source: int, place: int, p_value: float) -> Copy:
        return Copy(
            annotator=annotator,
            source=source,
            common=int(self.met[place]),
            agreed=int(self.agreed[place]),
            expected=float(self.expected[place]),
            p_value=p_value,
            share=float(_SHARES[int(self.log_likelihood[place].argmax())]),
        )


def _sample(votes: FlatVotes, one_each: Tensor) -> Tensor:
    """Keep every n-th item if there are too many meetings to compare all."""
    _, place, lengths = torch.unique_consecutive(
        votes.item[one_each], return_inverse=True, return_counts=True
    )
    meetings = int((lengths * (lengths - 1) // 2).sum())
    return one_each[place % (1 + meetings // MOST_MEETINGS) == 0]


def _meetings(votes: FlatVotes, one_each: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of votes on the same item, about `width` at a time, the lower annotator left."""
    lengths = torch.unique_consecutive(votes.item[one_each], return_counts=True)[1]
    starts = lengths.cumsum(0) - lengths
    for length in lengths.unique().tolist():
        if length < 2:
            continue
        of_length = starts[lengths == length]
        for left, right in zip(
            *(side.split(width) for side in torch.triu_indices(length, length, 1)), strict=True
        ):
            for start in of_length.split(max(1, width // len(left))):
                yield (
                    one_each[(start[:, None] + left).flatten()],
                    one_each[(start[:, None] + right).flatten()],
                )
