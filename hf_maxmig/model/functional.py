"""The paper on one page: pure functions of tensors, in the paper's letters, in log space.

h is the classifier, g the aggregator of the crowd's votes, p the class prior; N items, M
annotators, C classes. The modules with parameters are in `aggregators.py`, the rows of Table 1 in
`divergences.py`.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from .divergences import get_divergence
from .votes import Votes, is_given, weighted

# Log of the prior mass of a class that nobody voted for: 2e-16. It is below the precision of float32,
# while 1 / p^2, summed over all items of any batch, still fits into float32.
NO_MASS = -36.0

_CELLS = 2**22  # numbers held at a time when votes are counted

Read = Callable[[Tensor, Tensor], Tensor]  # (...) rows of an (R, D) table, to (..., D)


class Mixed(NamedTuple):
    """How the items of a batch are blended for mixup: x'_i = s x_i + (1 - s) x_j with j = partner of i.

    Args:
        share: scalar, s in 0..1; or (N,), one for each item, which only `blend` takes.
        partner: (N,) int64, a permutation of the items.

    Example:
        >>> mixed = Mixed(torch.tensor(0.75), torch.tensor([1, 0]))
        >>> mixed.blend(torch.tensor([[0.0], [4.0]])).tolist()
        [[1.0], [3.0]]
    """

    share: Tensor
    partner: Tensor

    def blend(self, tensor: Tensor) -> Tensor:
        """Blend each row of an (N, ...) tensor of fractions with that of its partner."""
        share = self.share.to(tensor.dtype)
        if share.ndim:
            share = share.view(-1, *[1] * (tensor.ndim - 1))
        return share * tensor + (1 - share) * tensor[self.partner]


def mutual_information_gain(
    log_h: Tensor,
    log_g: Tensor,
    log_p: Tensor,
    divergence: str = "kl",
    annotated: Tensor | None = None,
    mixed: Mixed | None = None,
) -> Tensor:
    """How much more h and g agree on the same item than on others: MIG^f (paper, equation 1).

    With K_ij = sum_c h(x_i)_c g(y_j)_c / p_c, MIG^f = mean_i df(K_ii) - mean_{i != j} f*(df(K_ij)),
    where both means run over the items that have annotations. Its maximum over h and g is the
    f-mutual information between the data and the crowd's labels (Theorem 3.4). It is a U-statistic:
    the mean over batches is unbiased.

    With mixup, h classifies blends of two items i and j of the batch, and the reward is
    s df(K(h(x'), g_i)) + (1 - s) df(K(h(x'), g_j)). The penalty pairs each blend with the items that
    are not in it.

    Args:
        log_h: (N, C), log-probabilities of the classifier, in nats.
        log_g: (N, C), log-probabilities of the aggregator for the same items.
        log_p: (C,), log of the class prior.
        divergence: a row of Table 1: `"kl"`, `"pearson"` or `"jensen_shannon"`.
        annotated: (N,) bool, which items have annotations; the others take no part. By default all
            have.
        mixed: how the items are blended, if row i of `log_h` belongs to a blend of item i with its
            partner. A blend takes no part if one of its items has no annotations. `log_g` stays that
            of the items themselves.

    Returns:
        A scalar, in nats; float32, or float64 if the inputs are.

    Raises:
        ValueError: if the shapes do not fit, fewer than two items have annotations, or no blend can be
            compared with an annotated item outside of it.

    Example:
        >>> h = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).mul(20).log_softmax(-1)
        >>> half = torch.tensor([0.5, 0.5]).log()
        >>> mutual_information_gain(h, h, half)  # sure, and never agreeing by chance: 1 + log 2
        tensor(1.6931)
    """
    _check_gain_inputs(log_h, log_g, log_p, annotated, mixed)
    count = log_h.shape[0] if annotated is None else int(annotated.sum())
    if count < 2:
        raise ValueError(
            f"the gain needs at least 2 items with annotations in a batch, got {count}: "
            "it compares each item with the others."
        )
    if mixed is not None and not bool(_pairs(annotated, mixed)[2]):
        raise ValueError(
            f"the gain needs at least 3 items with annotations in a batch of blends, got {count}: it compares each "
            "blend of two items with the others."
        )
    reward, penalty = reward_and_penalty(log_h, log_g, log_p, divergence, annotated, mixed)
    return reward - penalty


def reward_and_penalty(
    log_h: Tensor,
    log_g: Tensor,
    log_p: Tensor,
    divergence: str = "kl",
    annotated: Tensor | None = None,
    mixed: Mixed | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the two means of equation 1 without reading a value, so that no device has to wait.

    The training step calls this; `mutual_information_gain` adds checks. The result is float32 or wider
    under any autocast. KL costs O(N C), Pearson O(N C min(N, C)), Jensen-Shannon O(N^2 C) in blocks.

    Args:
        log_h: (N, C), log-probabilities of the classifier, in nats.
        log_g: (N, C), log-probabilities of the aggregator for the same items.
        log_p: (C,), log of the class prior.
        divergence: a row of Table 1.
        annotated: (N,) bool, which items take part; all by default.
        mixed: how the items are blended, see `mutual_information_gain`.

    Returns:
        Reward and penalty, two scalars in nats. With fewer than two annotated items both are finite
        but meaningless.
    """
    if mixed is not None:
        return _of_blends(log_h, log_g, log_p, divergence, annotated, mixed)
    row = get_divergence(divergence)
    with torch.autocast(log_h.device.type, enabled=False):
        log_h, log_g, log_p = alike(widen(log_h), widen(log_g), widen(log_p))
        if annotated is not None:  # the other rows may hold anything, and NaN * 0 is NaN
            log_h, log_g = (torch.where(annotated[:, None], t, log_p) for t in (log_h, log_g))
        log_h_over_p = log_h - log_p
        log_k = (log_h_over_p + log_g).logsumexp(dim=-1)  # of K_ii
        h_over_p, g = log_h_over_p.exp(), log_g.exp()
        reward, own = row.reward(log_k), row.penalty(log_k) - row.penalty_at_zero
        if annotated is None:
            count = log_k.new_tensor(float(log_k.shape[0]))
        else:
            taken = annotated.to(log_k.dtype)
            count = taken.sum()
            h_over_p, g = h_over_p * taken[:, None], g * taken[:, None]
            reward, own = reward * taken, own * taken
        others = row.pair_sum(h_over_p, g) - own.sum()
        at_least_two = torch.maximum(count, torch.full_like(count, 2))
        return (
            reward.sum() / at_least_two,
            others / (at_least_two * (at_least_two - 1)) + row.penalty_at_zero,
        )


def _of_blends(
    log_h: Tensor,
    log_g: Tensor,
    log_p: Tensor,
    divergence: str,
    annotated: Tensor | None,
    mixed: Mixed,
) -> tuple[Tensor, Tensor]:
    """Compute `reward_and_penalty` of blends, at the same cost."""
    row, partner = get_divergence(divergence), mixed.partner
    with torch.autocast(log_h.device.type, enabled=False):
        log_h, log_g, log_p = alike(widen(log_h), widen(log_g), widen(log_p))
        blends, two, pairs = _pairs(annotated, mixed)
        if annotated is not None:  # the other rows may hold anything, and NaN * 0 is NaN
            log_h = torch.where(blends[:, None], log_h, log_p)
            log_g = torch.where(annotated[:, None], log_g, log_p)
        log_h_over_p = log_h - log_p
        log_k = (log_h_over_p + log_g).logsumexp(dim=-1)  # of K_ii
        log_k_partner = (log_h_over_p + log_g[partner]).logsumexp(dim=-1)
        share, taken = mixed.share.to(log_k), blends.to(log_k.dtype)
        reward = share * row.reward(log_k) + (1 - share) * row.reward(log_k_partner)
        own, other = (row.penalty(k) - row.penalty_at_zero for k in (log_k, log_k_partner))
        own = torch.where(two, own + other, own)
        h_over_p, g = log_h_over_p.exp() * taken[:, None], log_g.exp()
        if annotated is not None:
            g = g * annotated.to(g.dtype)[:, None]
        others = row.pair_sum(h_over_p, g) - (own * taken).sum()
        return (
            (reward * taken).sum() / taken.sum().clamp(min=1),
            others / pairs.clamp(min=1).to(others.dtype) + row.penalty_at_zero,
        )


def _pairs(annotated: Tensor | None, mixed: Mixed) -> tuple[Tensor, Tensor, Tensor]:
    """Find the blends that take part, those of two different items, and the number of comparisons."""
    partner = mixed.partner
    items = torch.ones_like(partner, dtype=torch.bool) if annotated is None else annotated
    blends = items & items[partner]
    two = partner != torch.arange(len(partner), device=partner.device)
    return blends, two, ((items.sum() - 1 - two.long()) * blends).sum()


def aggregate(
    weight: Tensor,
    log_p: Tensor,
    annotators: Tensor,
    annotations: Tensor,
    annotation_weights: Tensor | None = None,
    read: Read = embedding,
) -> Tensor:
    """Combine an item's votes into a posterior: the weighted-average aggregator g.

    g(y) = softmax(sum_m W^m e(y^m) + b) with b = log p (paper, Section 3.1): each vote picks a
    column of its annotator's matrix. A missing vote adds nothing, so the cost grows with the
    votes given, not with M. With W^m = log confusion of independent annotators it is their exact
    posterior (Proposition D.3).

    A weighted vote adds q W^m e(y^m). An annotator who gives each class l a probability q_l adds
    W^m q = sum_l q_l W^m e(l), the mean of what the vote would add if it were drawn from q.

    Args:
        weight: (M, C, C), W: annotator, scored class, reported class.
        log_p: (C,), log of the class prior; `NO_MASS` for a class that is left out.
        annotators: (B, K) int64, who labelled each item, padded with -1.
        annotations: (B, K) int64, the votes of these annotators, padded with -1.
        annotation_weights: (B, K), q, how much each vote counts, padded with 0; by default all count as 1.
        read: the function that reads rows of a table: `embedding`, or `TableRows`.

    Returns:
        (B, C), log-probabilities, see `posterior_of`; the prior where an item has no annotations.

    Example:
        >>> weight = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]]).log()  # one annotator's log confusion
        >>> half = torch.tensor([0.5, 0.5]).log()
        >>> aggregate(weight, half, torch.tensor([[0], [-1]]), torch.tensor([[0], [-1]])).exp()
        tensor([[0.8182, 0.1818],
                [0.5000, 0.5000]])
    """
    num_annotators, num_classes, _ = weight.shape
    given = is_given(annotators, annotations, annotation_weights)
    table = weight.transpose(1, 2).reshape(num_annotators * num_classes, num_classes)
    index = torch.where(given, annotators * num_classes + annotations, 0)
    with torch.autocast(weight.device.type, enabled=False):
        columns = weighted(widen(read(index, table)), given, annotation_weights)
        return posterior_of(columns.sum(dim=1) + widen(log_p), log_p)


def posterior_of(scores: Tensor, log_p: Tensor) -> Tensor:
    """Normalise the scores of a posterior g, and leave out classes without prior mass.

    Where log p_c is `NO_MASS` or less, g_c = p_c^2, whatever the scores. Then g_c / p_c = p_c, so the
    class has no part in K, the penalty and the forecast, and no gradient. All values stay finite.

    Args:
        scores: (B, C), unnormalised.
        log_p: (C,), log of the class prior.

    Returns:
        (B, C), log-probabilities.

    Example:
        >>> log_p = torch.tensor([0.5, 0.5, 0.0]).log().clamp(min=NO_MASS)
        >>> posterior_of(torch.tensor([[1.0, 0.0, 9.0]]), log_p).exp()
        tensor([[7.3106e-01, 2.6894e-01, 5.3802e-32]])
    """
    log_p = widen(log_p)
    left_out = log_p <= NO_MASS
    log_g = torch.where(left_out, -torch.inf, scores).log_softmax(dim=-1)
    return torch.where(left_out, 2 * log_p, log_g)


def aggregate_factored(
    pooled: Tensor,
    scale: Tensor,
    shift: Tensor,
    diagonal: Tensor,
    log_p: Tensor,
    annotators: Tensor,
    annotations: Tensor,
    speaks_for: Tensor | None = None,
    annotation_weights: Tensor | None = None,
    read: Read = embedding,
) -> Tensor:
    """Combine votes as `aggregate` does, with a W that annotators share up to two numbers per class.

    W^m_{c,r} = a_m P_{c,r} + s^m_c + d^m_r [r speaks for c]. P is one matrix for all annotators, a_m
    says how far annotator m follows it, s^m_c is m's offset for class c, and d^m_r is the extra weight
    of m's vote r for the class that r speaks for. W itself, M C^2 numbers, is never built; the cost
    grows with the votes given.

    It is the posterior of independent annotators with their own accuracy on each class, whose mistakes
    are distributed alike: P(m says r | c) = q^m_c for r = c, and (1 - q^m_c) E_{c,r} for the others.
    With two classes every annotator is of this kind. An annotator with a = s = d = 0 has no effect.

    Args:
        pooled: (C, C), P: scored class, reported class.
        scale: (M,), a.
        shift: (M, C), s: annotator, scored class.
        diagonal: (M, C), d: annotator, reported class.
        log_p: (C,), log of the class prior.
        annotators: (B, K) int64, who labelled each item, padded with -1.
        annotations: (B, K) int64, the votes of these annotators, padded with -1.
        annotation_weights: (B, K), how much each vote counts, see `aggregate`.
        speaks_for: (C,) int64, the class that each report speaks for; itself by default.
        read: the function that reads rows of a table: `embedding`, or `TableRows`.

    Returns:
        (B, C), log-probabilities; the prior where an item has no annotations.

    Example:
        >>> coin = torch.zeros(2, 2)
        >>> sure = torch.tensor([[0.0, 0.0], [2.0, 2.0]])  # of two annotators
        >>> who, said = torch.tensor([[1], [0]]), torch.tensor([[1], [1]])
        >>> aggregate_factored(coin, torch.ones(2), coin, sure, coin[0], who, said).exp()
        tensor([[0.1192, 0.8808],
                [0.5000, 0.5000]])
    """
    given = is_given(annotators, annotations, annotation_weights)
    who, said = torch.where(given, annotators, 0), torch.where(given, annotations, 0)
    meant = said if speaks_for is None else speaks_for[said]
    label = who * diagonal.shape[1] + said
    with torch.autocast(pooled.device.type, enabled=False):
        columns = read(who, scale[:, None]) * read(said, pooled.T) + read(who, shift)
        own = widen(read(label, diagonal.reshape(-1, 1)))
        columns = widen(columns).scatter_add(2, meant[..., None], own)
        columns = weighted(columns, given, annotation_weights)
        return posterior_of(columns.sum(dim=1) + widen(log_p), log_p)


def label_pairs(
    table: Tensor,
    annotators: Tensor,
    annotations: Tensor,
    annotation_weights: Tensor | None = None,
    read: Read = embedding,
) -> Tensor:
    """Pool the pairs of an item's votes: products of two votes' features, summed over all pairs.

    sum_{a < b} v_a v_b = ((sum_a v_a)^2 - sum_a v_a^2) / 2, feature by feature, where v_a is the row
    of the item's a-th vote. So the cost grows with the votes given, not with their pairs. The order
    of the votes does not matter, a missing one adds nothing, and a single one gives zero. A pair of
    weighted votes counts by the product of their weights.

    Args:
        table: (M, C, D): annotator, reported class, feature.
        annotators: (B, K) int64, who labelled each item, padded with -1.
        annotations: (B, K) int64, the votes of these annotators, padded with -1.
        annotation_weights: (B, K), how much each vote counts, see `aggregate`.
        read: the function that reads rows of a table: `embedding`, or `TableRows`.

    Returns:
        (B, D), in float32 or wider.

    Example:
        >>> table = torch.tensor([[[1.0], [-1.0]], [[1.0], [-1.0]]])  # the same sign: the same label
        >>> who, said = torch.tensor([[0, 1], [0, 1], [1, -1]]), torch.tensor([[1, 1], [0, 1], [0, -1]])
        >>> label_pairs(table, who, said).tolist()
        [[1.0], [-1.0], [0.0]]
    """
    num_annotators, num_classes, _ = table.shape
    given = is_given(annotators, annotations, annotation_weights)
    index = torch.where(given, annotators * num_classes + annotations, 0)
    with torch.autocast(table.device.type, enabled=False):
        rows = widen(read(index, table.reshape(num_annotators * num_classes, -1)))
        rows = weighted(rows, given, annotation_weights)
        return (rows.sum(dim=1).square() - rows.square().sum(dim=1)) / 2


class Posteriors(NamedTuple):
    """The beliefs of a model about N items: three log-probabilities of the true class, in nats.

    Args:
        log_h: (N, C), of the classifier.
        log_g: (N, C), of the aggregator; the prior for an item without votes.
        log_forecast: (N, C), of both together, see `forecast`.
    """

    log_h: Tensor
    log_g: Tensor
    log_forecast: Tensor


def forecast(log_h: Tensor, log_g: Tensor, log_p: Tensor) -> Tensor:
    """Combine the evidence of the item and of the crowd: the data-crowds forecaster zeta.

    zeta(x, y)_c is proportional to h(x)_c g(y)_c / p_c (paper, Section 3.1). Dividing by p keeps
    the prior, present in both h and g, from counting twice.

    Args:
        log_h: (N, C), log-probabilities of the classifier, in nats.
        log_g: (N, C), log-probabilities of the aggregator for the same items.
        log_p: (C,), log of the class prior.

    Returns:
        (N, C), log-probabilities.

    Example:
        >>> half, says = torch.tensor([0.5, 0.5]).log(), torch.tensor([[0.8, 0.2]]).log()
        >>> forecast(says, says, half).exp()
        tensor([[0.9412, 0.0588]])
    """
    with torch.autocast(log_h.device.type, enabled=False):
        return (widen(log_h) + widen(log_g) - widen(log_p)).log_softmax(dim=-1)


def vote_share(
    annotations: Tensor, num_classes: int, annotation_weights: Tensor | None = None
) -> Tensor:
    """Count votes: Q, the share of each class among an item's votes (paper, Appendix B.2).

    The paper averages over all M annotators. Where votes are missing, the average here is over the
    votes given.

    Args:
        annotations: (N, K) int64, the votes on each item, padded with -1.
        num_classes: C.
        annotation_weights: (N, K), how much each vote counts; by default all count as 1.

    Returns:
        (N, C), float32, rows summing to one; a row of zeros for an item without annotations.

    Example:
        >>> vote_share(torch.tensor([[0, 0, 1, -1], [1, -1, -1, -1]]), num_classes=2)
        tensor([[0.6667, 0.3333],
                [0.0000, 1.0000]])
    """
    given = annotations >= 0
    counts = torch.zeros(annotations.shape[0], num_classes, device=annotations.device)
    if annotation_weights is not None:
        each = torch.where(given, annotation_weights.to(counts.dtype), 0.0)
        counts.scatter_add_(1, torch.where(given, annotations, 0), each)
        total = counts.sum(dim=1, keepdim=True)
        return counts / torch.where(total > 0, total, 1)
    counts.scatter_add_(1, torch.where(given, annotations, 0), given.to(counts.dtype))
    return counts / torch.where(given.any(dim=1), given.sum(dim=1), 1)[:, None]


def confusion_counts(
    posterior: Tensor,
    annotators: Tensor,
    annotations: Tensor,
    num_annotators: int,
    annotation_weights: Tensor | None = None,
) -> Tensor:
    """Count how often annotator m says r on items of class c, weighted by the posterior of class c.

    The counts of the parts of a data set add up to those of the whole, so a crowd of any size can be
    counted in chunks.

    Args:
        posterior: (N, C), probabilities of the true class, such as the vote share.
        annotators: (N, K) int64, who labelled each item, padded with -1.
        annotations: (N, K) int64, the votes of these annotators, padded with -1.
        num_annotators: M.
        annotation_weights: (N, K), q, how much each vote counts; by default all count as 1.

    Returns:
        (M, C, C): annotator, true row, reported column; sum_i q_i^m posterior_ic 1(y_i^m = r).

    Example:
        >>> posterior = torch.tensor([[0.8, 0.2], [0.0, 1.0]])
        >>> who, said = torch.tensor([[0], [0]]), torch.tensor([[0], [1]])
        >>> confusion_counts(posterior, who, said, num_annotators=1)
        tensor([[[0.8000, 0.0000],
                 [0.2000, 1.0000]]])
    """
    num_classes = posterior.shape[1]
    item, slot = is_given(annotators, annotations, annotation_weights).nonzero(as_tuple=True)
    index = annotators[item, slot] * num_classes + annotations[item, slot]
    counts = posterior.new_zeros(num_annotators * num_classes, num_classes)
    rows = posterior[item]
    if annotation_weights is not None:
        rows = rows * annotation_weights[item, slot, None].to(rows)
    counts.index_add_(0, index, rows)
    return counts.view(num_annotators, num_classes, num_classes).transpose(1, 2)


class ConfusionSums(NamedTuple):
    """Sums of `confusion_counts` along their axes, without the M C^2 numbers themselves.

    Args:
        pooled: (C, C) float64, over all annotators: true row, reported column.
        right: (M, C), how often each annotator was right on items of class c: the diagonals.
        wrong: (M, C), how often each annotator was wrong on items of class c.
        said: (M, C), how often each annotator said r.
        mass: (C,), the posterior summed over the items, with or without votes.
    """

    pooled: Tensor
    right: Tensor
    wrong: Tensor
    said: Tensor
    mass: Tensor


def confusion_sums(
    parts: Iterable[tuple[Tensor, ...]], num_annotators: int, num_classes: int
) -> ConfusionSums:
    """Count a crowd in one pass and O(C^2 + M C) memory.

    Args:
        parts: triples of (n, C) probabilities of the true class and the items' (n, K) annotators and
            annotations, padded with -1; with their weights as a fourth if they have any.
        num_annotators: M.
        num_classes: C.

    Returns:
        The sums.

    Example:
        >>> posterior = torch.tensor([[0.8, 0.2], [0.0, 1.0]])
        >>> parts = [(posterior, torch.tensor([[0], [0]]), torch.tensor([[0], [1]]))]
        >>> sums = confusion_sums(parts, num_annotators=1, num_classes=2)
        >>> sums.right, sums.wrong
        (tensor([[0.8000, 1.0000]]), tensor([[0.0000, 0.2000]]))
    """
    M, C = num_annotators, num_classes
    by_report, mass = torch.zeros(C, C, dtype=torch.float64), torch.zeros(C)
    right, said, wrong = torch.zeros(M * C), torch.zeros(M * C), torch.zeros(M, C)
    for posterior, *tables in parts:
        votes = Votes(*tables)
        mass += posterior.sum(dim=0)
        labels = votes.given.nonzero()
        for item, slot in (some.unbind(dim=1) for some in labels.split(max(1, _CELLS // C))):
            who, label = votes.annotators[item, slot], votes.annotations[item, slot]
            rows = posterior[item].float()
            if votes.weights is not None:
                rows = rows * votes.weights[item, slot, None]
            by_report.index_add_(0, label, rows.double())
            said.index_add_(0, who * C + label, rows.sum(dim=1))
            right.index_add_(0, who * C + label, rows.gather(1, label[:, None])[:, 0])
            wrong.index_add_(0, who, rows.scatter(1, label[:, None], 0.0))
    return ConfusionSums(by_report.T, right.view(M, C), wrong, said.view(M, C), mass)


def confusion(
    posterior: Tensor,
    annotators: Tensor,
    annotations: Tensor,
    num_annotators: int,
    smoothing: float = 0.0,
    annotation_weights: Tensor | None = None,
) -> Tensor:
    """Estimate each annotator's confusion matrix: P(annotator m says r | true class c).

    Args:
        posterior: (N, C), probabilities of the true class: the vote share, h, g or the forecast.
        annotators: (N, K) int64, who labelled each item, padded with -1.
        annotations: (N, K) int64, the votes of these annotators, padded with -1.
        num_annotators: M.
        smoothing: pseudo-labels added to each of the C^2 cells.
        annotation_weights: (N, K), how much each vote counts; by default all count as 1.

    Returns:
        (M, C, C) with annotator, true row, reported column. Each row sums to one. It is uniform where
        the annotator voted on no item that could be of that class.

    Example:
        >>> truth = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> who, said = torch.tensor([[0], [0], [0]]), torch.tensor([[0], [0], [1]])
        >>> confusion(truth, who, said, num_annotators=1)
        tensor([[[1.0000, 0.0000],
                 [0.5000, 0.5000]]])
    """
    counts = confusion_counts(
        posterior, annotators, annotations, num_annotators, annotation_weights
    )
    return normalize_counts(counts, smoothing)


def normalize_counts(counts: Tensor, smoothing: float | Tensor = 0.0) -> Tensor:
    """Turn confusion counts into rows that sum to one.

    Args:
        counts: (M, C, R), as from `confusion_counts`.
        smoothing: pseudo-labels added to each cell; or (R,) numbers, one per column.

    Returns:
        (M, C, R), rows summing to one; uniform where a row has no counts.

    Example:
        >>> normalize_counts(torch.tensor([[[3.0, 1.0], [0.0, 0.0]]]))
        tensor([[[0.7500, 0.2500],
                 [0.5000, 0.5000]]])
    """
    counts = counts + smoothing
    total = counts.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, counts, 1 / counts.shape[-1]) / torch.where(total > 0, total, 1)


def initial_weight(counts: Tensor, smoothing: float | Tensor) -> Tensor:
    """Initialise W from the crowd alone: log confusion with the vote share (paper, equation 2).

    W^m_{c,r} = log((sum_i Q_ic 1(y_i^m = r) + s) / (sum_i Q_ic + C s)), where both sums run over the
    items that annotator m labelled and s is the smoothing. The matrix of an annotator without votes
    is zero and has no effect.

    Args:
        counts: (M, C, R), `confusion_counts` of the vote share; R = C, unless several reports were
            merged.
        smoothing: s > 0, pseudo-labels added to each cell, or (R,) numbers, one per column. They keep
            the log finite where a combination never occurred.

    Returns:
        (M, C, R): annotator, scored class, reported class.

    Raises:
        ValueError: if `smoothing` is not positive.

    Example:
        >>> initial_weight(torch.tensor([[[3.0, 0.0], [0.0, 3.0]]]), smoothing=1.0).exp()
        tensor([[[0.8000, 0.2000],
                 [0.2000, 0.8000]]])
    """
    if not bool((torch.as_tensor(smoothing) > 0).all()):
        raise ValueError(
            f"`smoothing` must be positive, got {smoothing}: without it a label never given has log 0."
        )
    seen = counts.sum(dim=(1, 2)) > 0
    return normalize_counts(counts, smoothing).log() * seen[:, None, None]


def vote_share_prior(counts: Tensor) -> Tensor:
    """Estimate the class prior from the vote share of the training crowd.

    Args:
        counts: (C,), the vote share summed over the annotated items.

    Returns:
        (C,), log-probabilities. One pseudo-item, spread over the classes, keeps a class without votes
        above zero.

    Example:
        >>> vote_share_prior(torch.tensor([7.0, 2.0])).exp()
        tensor([0.7500, 0.2500])
    """
    return ((counts + 1 / counts.shape[0]) / (counts.sum() + 1)).log()


def widen(log_probability: Tensor) -> Tensor:
    """Bring a half-precision tensor to float32; leave float32 and float64 as they are."""
    return log_probability if log_probability.dtype == torch.float64 else log_probability.float()


def log_softmax(scores: Tensor) -> Tensor:
    """Normalise (..., C) scores to log-probabilities: torch's own takes four times as long over few classes on a CPU."""
    shifted = scores - scores.amax(dim=-1, keepdim=True)
    return shifted - shifted.exp().sum(dim=-1, keepdim=True).log_()


def alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Bring all tensors to the widest type among them: torch multiplies only matrices of one type."""
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    return tuple(tensor.double() if wide else tensor for tensor in tensors)


def _check_gain_inputs(
    log_h: Tensor,
    log_g: Tensor,
    log_p: Tensor,
    annotated: Tensor | None,
    mixed: Mixed | None,
) -> None:
    if log_h.ndim != 2 or log_h.shape != log_g.shape:
        raise ValueError(
            f"`log_h` and `log_g` must have the same shape (N, C), got {tuple(log_h.shape)} and "
            f"{tuple(log_g.shape)}: row i of both belongs to item i."
        )
    if log_p.shape != log_h.shape[1:]:
        raise ValueError(
            f"`log_p` must have shape (C,) = ({log_h.shape[1]},), got {tuple(log_p.shape)}."
        )
    if annotated is not None and annotated.shape != log_h.shape[:1]:
        raise ValueError(
            f"`annotated` must have shape (N,) = ({log_h.shape[0]},), got {tuple(annotated.shape)}."
        )
    if mixed is not None:
        items = torch.arange(len(log_h), device=mixed.partner.device)
        if not torch.equal(mixed.partner.sort().values, items):
            raise ValueError(
                f"`mixed.partner` must be a permutation of 0..{len(log_h) - 1}, the items, got "
                f"{mixed.partner.tolist()}."
            )
