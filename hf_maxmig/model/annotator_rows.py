"""How each annotator answers on items of each class: log P(m says r | c), shrunk towards everybody.

Votes are counted by forecasts that leave out the annotator's own: with it, a forecast agrees with a
random annotator too. Rows with few counts are drawn towards those of all annotators together.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from .functional import log_softmax, widen
from .votes import Votes

SMOOTHING = 0.01  # pseudo-votes in each cell of the pooled rows
ROUNDS = 10  # in which each vote is also weighed by its own annotator's rows
# Concentrations of the Dirichlet prior, in votes, from which the likeliest is chosen.
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 10_000.0)


def annotator_rows(
    log_h: Tensor,
    weight: Tensor,
    crowd: Iterable[Votes],
    groups: Tensor | None = None,
    rounds: int = ROUNDS,
) -> Tensor:
    """Estimate how each annotator answers, from the forecasts of the others.

    Item i without annotator m is of class c with a probability proportional to
    h(x_i)_c exp(sum of W^a e(y_i^a) over all a outside of m's group). A group of copies is one voice: the
    mean of its columns.

    Counts by these forecasts alone are blurred: somebody who is always right looks wrong wherever the
    others are unsure. So each vote is also weighed by its own annotator's rows, and counted again, `rounds`
    times. This is EM for each annotator alone: no vote is evidence about another annotator.

    Each row is drawn towards that of all annotators together, as if that stood for some further votes. Their
    number is the one of `STRENGTHS` with which each vote is predicted best from the other votes of its
    annotator. The counts' own likelihood would not do: blurred counts look alike, and once they are drawn
    together they stay so.

    Args:
        log_h: (N, C), log-probabilities of a classifier, in nats.
        weight: (M, C, C), W: annotator, scored class, reported class. Zeros for somebody new: their votes
            are counted, and change no forecast.
        crowd: the votes part by part, each as `Votes`, in the order of the items. Read once.
        groups: (M,) int64, a number below M per group of copies; by default nobody copies.
        rounds: of weighing each vote by its own annotator's rows; 0 counts by the others alone, and draws
            rows as strongly as one vote does.

    Returns:
        (M, C, C), log P(m says r | c): annotator, true row, reported column. Somebody without votes has
        the rows of all annotators together.

    Raises:
        ValueError: if the parts have more or fewer items than `log_h`.

    Example:
        >>> truth = torch.arange(40) % 2
        >>> said = torch.stack([truth, 1 - truth], dim=1)  # the first is right, the second never
        >>> log_h = torch.eye(2)[truth].mul(0.8).add(0.1).log()
        >>> votes = Votes(torch.arange(2).repeat(40, 1), said)
        >>> rows = annotator_rows(log_h, torch.zeros(3, 2, 2), [votes])
        >>> rows[:, 0].exp().round(decimals=1)  # the third has not voted yet
        tensor([[1.0000, 0.0000],
                [0.0000, 1.0000],
                [0.5000, 0.5000]])
    """
    M = len(weight)
    groups = torch.arange(M) if groups is None else groups
    table = widen(weight).transpose(1, 2)
    parts, start = [], 0
    for part in crowd:
        votes = Votes(*part).to("cpu")
        items = slice(start, start + len(votes.annotators))
        parts.append(_without_own(widen(log_h[items]), table, votes, groups))
        start = items.stop
    if start != len(log_h):
        raise ValueError(
            f"`crowd` must have N = {len(log_h)} items, one per row of `log_h`, got {start}."
        )
    counts, strength = _counted(parts, M, None), 1.0
    for step in range(rounds):
        log_rows = _drawn(counts, strength)
        counts = _counted(parts, M, log_rows)
        if step in (rounds // 2, rounds - 1):
            strength = _best_strength(parts, log_rows, counts)
    return _drawn(counts, strength)


def _drawn(counts: Tensor, strength: float) -> Tensor:
    return drawn_towards(counts + SMOOTHING, pooled_rows(counts), strength)


class _Part(NamedTuple):
    """The votes on some items, one after another.

    Args:
        who: (V,) int64, the annotator of each.
        said: (V,) int64, the class that each names.
        each: (V, 1), how much each counts.
        own: (V,) int64, a number per item and annotator.
        forecast: (V, C), log-probabilities of its item without the annotator's group.
    """

    who: Tensor
    said: Tensor
    each: Tensor
    own: Tensor
    forecast: Tensor


class _Voices(NamedTuple):
    """What the groups of annotators have said about some items.

    Args:
        item: (U,) int64, the item of each voice.
        voice: (V,) int64, the voice of each vote.
        own: (V,) int64, a number per item and annotator.
        spoken: (U, C), the score that each voice adds to its item.
    """

    item: Tensor
    voice: Tensor
    own: Tensor
    spoken: Tensor

    @classmethod
    def of(cls, table: Tensor, votes: Votes, groups: Tensor) -> "_Voices":
        """Add up votes; `table` is W as (annotator, reported, scored)."""
        M = len(groups)
        item, slot = votes.given.nonzero(as_tuple=True)
        who, said = votes.annotators[item, slot], votes.annotations[item, slot]
        pairs, own = (item * M + who).unique(return_inverse=True)
        voices, voice = (item * M + groups[who]).unique(return_inverse=True)
        of_pair = voice.new_zeros(len(pairs)).scatter_(0, own, voice)
        spoken = table.new_zeros(len(voices), table.shape[2])
        spoken.index_add_(0, voice, table[who, said] * _each(votes, table.dtype))
        spoken /= torch.bincount(of_pair, minlength=len(voices))[:, None]
        return cls(voices // M, voice, own, spoken)


def _each(votes: Votes, dtype: torch.dtype) -> Tensor:
    """Return how much each vote counts: (V, 1)."""
    given = votes.given
    if votes.weights is None:
        return torch.ones(int(given.sum()), 1, dtype=dtype)
    return votes.weights[given][:, None].to(dtype)


def _without_own(log_h: Tensor, table: Tensor, votes: Votes, groups: Tensor) -> _Part:
    """Forecast the item of each vote without its annotator's group."""
    item, voice, own, spoken = _Voices.of(table, votes, groups)
    scores = log_h.to(table.dtype).index_add(0, item, spoken)
    forecast = without_voice(scores, spoken, votes.given.nonzero()[:, 0], voice)
    who, said = votes.annotators[votes.given], votes.annotations[votes.given]
    return _Part(who, said, _each(votes, table.dtype), own, forecast)


def with_votes(
    log_h: Tensor, weight: Tensor, crowd: Iterable[Votes], groups: Tensor | None = None
) -> Tensor:
    """Forecast items by a classifier and the votes, each group of copies as one voice.

    Args:
        log_h: (N, C), log-probabilities of a classifier, in nats.
        weight: (M, C, C), W, or log P(m says r | c): annotator, scored class, reported class.
        crowd: the votes part by part, each as `Votes`, in the order of the items. Read once.
        groups: (M,) int64, a number below M per group of copies; by default nobody copies.

    Returns:
        (N, C), log-probabilities.

    Example:
        >>> log_h = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log()
        >>> rows = torch.tensor([[[0.9, 0.1], [0.1, 0.9]]] * 2).log()
        >>> votes = Votes(torch.tensor([[0, 1], [-1, -1]]), torch.tensor([[0, 0], [-1, -1]]))
        >>> with_votes(log_h, rows, [votes]).exp()
        tensor([[0.9878, 0.0122],
                [0.5000, 0.5000]])
        >>> with_votes(log_h, rows, [votes], torch.tensor([0, 0]))[0].exp()
        tensor([0.9000, 0.1000])
    """
    groups = torch.arange(len(weight)) if groups is None else groups
    table, scores, start = widen(weight).transpose(1, 2), [], 0
    for part in crowd:
        votes = Votes(*part).to("cpu")
        voices = _Voices.of(table, votes, groups)
        own = widen(log_h[start : start + len(votes.annotators)]).to(table.dtype)
        scores.append(own.index_add(0, voices.item, voices.spoken))
        start += len(votes.annotators)
    return torch.cat(scores).log_softmax(dim=1)


def _posterior(part: _Part, log_rows: Tensor | None) -> Tensor:
    """Weigh the forecasts without votes by their annotators' (M, C, C) rows: (V, C) probabilities."""
    if log_rows is None:
        return part.forecast.softmax(dim=1)
    likely = log_rows.transpose(1, 2)[part.who, part.said] * part.each
    number = int(part.own.max()) + 1 if len(part.own) else 0
    likely = likely.new_zeros(number, likely.shape[1]).index_add_(0, part.own, likely)[part.own]
    return (part.forecast + likely).softmax(dim=1)


def _counted(parts: list[_Part], num_annotators: int, log_rows: Tensor | None) -> Tensor:
    """Count votes by the forecasts without them, and by their annotators' rows if there are any: (M, C, C)."""
    C = parts[0].forecast.shape[1] if parts else 0
    by_report = torch.zeros(num_annotators * C, C, dtype=parts[0].forecast.dtype)
    for part in parts:
        counted = _posterior(part, log_rows) * part.each
        by_report.index_add_(0, part.who * C + part.said, counted)
    return by_report.view(num_annotators, C, C).transpose(1, 2)


def _best_strength(parts: list[_Part], log_rows: Tensor, counts: Tensor) -> float:
    """Find for how many votes the rows of all must stand to predict each vote best without itself."""
    foretold = torch.zeros(len(STRENGTHS), dtype=torch.float64)
    pooled, totals = pooled_rows(counts).T.to(counts.dtype), counts.sum(dim=2)
    for part in parts:
        own = _posterior(part, log_rows) * part.each
        others = (counts[part.who, :, part.said] - own).clamp(min=0)
        total, prior = (totals[part.who] - own).clamp(min=0), pooled[part.said]
        zeta = part.forecast.exp()
        for k, votes in enumerate(STRENGTHS):
            chance = (zeta * (others + votes * prior) / (total + votes)).sum(dim=1)
            foretold[k] += (chance.log() * part.each[:, 0]).sum()
    return STRENGTHS[int(foretold.argmax())]


def without_voice(scores: Tensor, spoken: Tensor, item: Tensor, voice: Tensor) -> Tensor:
    """Forecast items without one voice each, by subtracting its score from that of the item.

    Args:
        scores: (N, C), of the items, in nats, with all voices.
        spoken: (U, C), the score that each voice has added to its item.
        item: (n,) int64, which items.
        voice: (n,) int64, the voice that each goes without.

    Returns:
        (n, C), log-probabilities.

    Example:
        >>> scores, spoken = torch.tensor([[0.0, 2.0]]), torch.tensor([[0.0, 2.0]])
        >>> without_voice(scores, spoken, torch.tensor([0]), torch.tensor([0])).exp()
        tensor([[0.5000, 0.5000]])
    """
    return log_softmax(scores[item] - spoken[voice])


def shrunk_weight(counts: Tensor, smoothing: float | Tensor) -> Tensor:
    """Start W from confusion counts, shrunk towards those of all annotators together.

    Each row of an annotator is modelled as a draw from a Dirichlet distribution around the pooled row of
    all annotators, with a concentration of s votes. s is the value of `STRENGTHS` under which the counts
    are likeliest. If annotators are similar or votes are few, all start nearly the same; if annotators
    differ, each starts from their own counts.

    Args:
        counts: (M, C, R), `confusion_counts` of a share; R = C, unless reports were put together.
        smoothing: pseudo-votes added to each cell, more than zero; or (R,) of them.

    Returns:
        (M, C, R): annotator, scored class, reported class; the pooled rows for an annotator without
        votes.

    Example:
        >>> alike = torch.tensor([[[8.0, 2.0], [2.0, 8.0]], [[7.0, 3.0], [1.0, 9.0]]])
        >>> shrunk_weight(alike, smoothing=0.01).exp()[:, 0, 0].round(decimals=2)
        tensor([0.7500, 0.7500])
    """
    together = pooled_rows(counts, smoothing)
    return drawn_towards(counts + smoothing, together, concentration(counts, together))


def pooled_rows(counts: Tensor, smoothing: float | Tensor = SMOOTHING) -> Tensor:
    """Put all annotators together: (C, R) float64 rows that sum to one, of (M, C, R) counts."""
    together = counts.sum(dim=0).double() + smoothing
    return together / together.sum(dim=1, keepdim=True)


def concentration(counts: Tensor, pooled: Tensor) -> float:
    """Find how much alike annotators are: the likeliest of `STRENGTHS`, in votes per row.

    Args:
        counts: (M, C, R).
        pooled: (C, R), the rows around which those of the annotators are drawn.
    """
    likely = _log_likelihoods(counts, torch.tensor(STRENGTHS)[:, None, None] * pooled)
    return STRENGTHS[int(likely.argmax())]


def drawn_towards(counts: Tensor, pooled: Tensor, votes: float) -> Tensor:
    """Draw rows towards those of all annotators together.

    Args:
        counts: (M, C, R).
        pooled: (C, R) rows that sum to one.
        votes: for how many votes per row they stand.

    Returns:
        (M, C, R), logs of rows that sum to one.

    Example:
        >>> drawn_towards(torch.tensor([[[3.0, 0.0]]]), torch.tensor([[0.5, 0.5]]), votes=1.0).exp()
        tensor([[[0.8750, 0.1250]]])
    """
    drawn = counts + (votes * pooled).to(counts.dtype)
    return (drawn / drawn.sum(dim=2, keepdim=True)).log()


def _log_likelihoods(counts: Tensor, concentrations: Tensor) -> Tensor:
    """Log-likelihoods of (M, C, R) counts with Dirichlet-multinomial rows, up to a constant: (S,) for (S, C, R)."""
    likely = concentrations.new_zeros(len(concentrations))
    least, prior = torch.lgamma(concentrations), concentrations.sum(dim=2)
    least_rows = torch.lgamma(prior)
    for chunk in counts.split(max(1, 2**18 // counts[0].numel())):  # in float64 all take much room
        some = chunk.double()
        some = some[some.sum(dim=(1, 2)) > 0]  # annotators without votes change no likelihood
        cells = torch.lgamma(some + concentrations[:, None]).sum(dim=1) - len(some) * least
        rows = len(some) * least_rows - torch.lgamma(some.sum(dim=2) + prior[:, None]).sum(dim=1)
        likely += rows.sum(dim=1) + cells.sum(dim=(1, 2))
    return likely
