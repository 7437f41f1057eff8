"""What to ask next, and whom: the value of a vote before it is cast, and the questions a budget is best spent on.

A question is a pair of an item and an annotator. With zeta the forecast of the item and P(l | c, m) how the
annotator answers on items of class c (`annotator_rows.py`), the answer l comes with probability
q_l = sum_c zeta_c P(l | c, m).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .functional import alike, widen
from .opening import plain, short
from .votes import Votes

GAINS = ("information", "accuracy")
LEAST = 1e-6  # a smaller gain is rounding
# Of the information that an annotator's answer gives about an item of which only the class shares are known. What gives
# less is not worth asking: the item is settled, or as settled as this annotator can make it.
WORTH = 0.1
MOST_ANSWERS = 64  # combinations of answers to the questions about an item that are told apart
_CELLS = 2**22  # numbers held at a time
_POOL = 2**25  # numbers of the table of items that are looked at and annotators
_REFERENCES = 512  # forecasts at which bounds touch the information
_LOOKED_AT = 2  # items per question that can still be asked
_NEARLY = 0.5  # of what another item may be worth, below which other items are looked at


class Questions(NamedTuple):
    """Chosen questions, the most valuable first.

    Args:
        item: (Q,) int64, row number of the item of each.
        annotator: (Q,) int64, number of the annotator.
        information: (Q,), nats about the class that the answer is expected to give, beyond the answers to
            the questions about the same item that stand before.
        accuracy: (Q,), how much likelier the likeliest class is then expected to be right, likewise.
    """

    item: Tensor
    annotator: Tensor
    information: Tensor
    accuracy: Tensor


def choose_questions(
    log_forecast: Tensor,
    log_rows: Tensor,
    budget: float,
    votes: Votes | None = None,
    *,
    gain: str = "information",
    groups: Tensor | None = None,
    costs: Tensor | None = None,
    askable: Tensor | None = None,
    most_per_annotator: int | None = None,
    most_per_item: int | None = None,
    at_least: float | None = None,
) -> Questions:
    """Choose the questions that a budget is best spent on, one after another by gain per cost.

    A question about an item that has been asked about is worth less. Its value is exact: the mean over all
    answers to the questions before, each with the forecast that it leads to. If an item has more than
    `MOST_ANSWERS` combinations of answers, the unlikeliest are taken together. The answers are assumed to be
    independent given the class, so copies, which are not, are asked once per item.

    No table of all items and annotators is made. The information is concave in the forecast, so a tangent
    bounds it from above, and only items whose bound can compete are looked at. Without a cap per annotator
    no other question could have been chosen. With one, people drop out, and then each question is worth at
    least half of any that was not looked at; in practice the sum of all gains is lower by less than 1 %.

    Args:
        log_forecast: (N, C), log-probabilities of the items' classes, in nats.
        log_rows: (M, C, C), log P(m says r | c), finite: annotator, true row, reported column.
        budget: what all questions may cost together; their number, if there are no `costs`.
        votes: of the N items; nobody is asked about an item that they, or a copy of theirs, have voted on.
        gain: `information`, or `accuracy`: see `expected_information` and `expected_accuracy`.
        groups: (M,) int64, a number below M per group of copies; by default nobody copies.
        costs: (M,), more than zero, of one answer by each annotator; 1 by default.
        askable: (M,) bool, who may be asked; everybody by default.
        most_per_annotator: of these questions.
        most_per_item: of these questions.
        at_least: a question with a smaller gain is not asked. By default, where information is gained, an annotator
            is asked only what gives a tenth (`WORTH`) of what their answer would give about an item of which only
            the class shares are known; 0 spends the whole budget.

    Returns:
        The questions; fewer than the budget allows if nothing else is worth asking.

    Raises:
        ValueError: if shapes do not fit, or a number is not of its range.

    Example:
        >>> forecast = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.6, 0.4]]).log()
        >>> rows = torch.tensor([[[0.9, 0.1], [0.1, 0.9]], [[0.6, 0.4], [0.4, 0.6]]]).log()
        >>> asked = choose_questions(forecast, rows, budget=3)
        >>> asked.item.tolist(), asked.annotator.tolist()
        ([0, 2, 1], [0, 0, 0])
        >>> choose_questions(forecast, rows, budget=3, most_per_annotator=2).annotator.tolist()
        [0, 0, 1]
    """
    check_limits(budget, gain, most_per_annotator, most_per_item, at_least)
    _check(log_forecast, log_rows, votes)
    M = len(log_rows)
    numbers, nobody = torch.arange(M), torch.zeros(len(log_forecast), 0, dtype=torch.int64)
    votes = Votes(nobody, nobody) if votes is None else Votes(*votes).to("cpu")
    groups = numbers if groups is None else groups
    costs = torch.ones(M) if costs is None else costs.float()
    askable = torch.ones(M, dtype=torch.bool) if askable is None else askable
    for name, given in (("groups", groups), ("costs", costs), ("askable", askable)):
        if given.shape != (M,):
            raise ValueError(f"`{name}` must have shape (M,) = ({M},), got {tuple(given.shape)}.")
    if not bool((costs > 0).all() & costs.isfinite().all()):
        raise ValueError(
            f"`costs` must be more than zero and finite, got {costs.min():g} to {costs.max():g}."
        )
    zeta, rows = alike(widen(log_forecast.cpu()).softmax(dim=1), widen(log_rows.cpu()).exp())
    world = _World(
        zeta,
        rows[askable],
        votes,
        groups,
        groups[askable],
        costs[askable],
        gain,
        _least(zeta, rows[askable], gain, at_least),
    )
    most = (
        float("inf") if most_per_annotator is None else most_per_annotator,
        float("inf") if most_per_item is None else most_per_item,
    )
    found = _Choice(world, budget, *most).spent() if len(zeta) else []
    item, who, information, accuracy = zip(*found, strict=True) if found else ((),) * 4
    return Questions(
        torch.tensor(item, dtype=torch.int64),
        numbers[askable][torch.tensor(who, dtype=torch.int64)],
        torch.tensor(information, dtype=torch.float32),
        torch.tensor(accuracy, dtype=torch.float32),
    )


def expected_information(log_forecast: Tensor, log_rows: Tensor) -> Tensor:
    """Compute the information that an annotator's answer is expected to give about the class of an item.

    I = H(q) - sum_c zeta_c H(P(. | c, m)), the mutual information of class and answer. It is zero for an
    annotator whose answers do not depend on the class, and at most the entropy of the forecast.

    Args:
        log_forecast: (..., C), log-probabilities of the items' classes, in nats.
        log_rows: (M, C, C), log P(m says r | c): annotator, true row, reported column; or (C, C), of one.

    Returns:
        (..., M), in nats; (...) for rows of one annotator.

    Example:
        >>> forecast = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
        >>> careful = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()
        >>> random = torch.full((2, 2), 0.5).log()
        >>> expected_information(forecast, torch.stack([careful, random])).abs()
        tensor([[0.3681, 0.0000],
                [0.1463, 0.0000]])
    """
    if log_rows.ndim == 2:
        return expected_information(log_forecast, log_rows[None])[..., 0]
    zeta, rows = alike(widen(log_forecast).exp(), widen(log_rows).exp())
    return information_gains(zeta, rows)


def expected_accuracy(log_forecast: Tensor, log_rows: Tensor) -> Tensor:
    """Compute how much likelier the forecast's likeliest class is expected to be right after an answer.

    sum_l max_c zeta_c P(l | c, m) - max_c zeta_c. It is zero if no answer would change the likeliest class,
    even if the answer would make it surer or less sure.

    Args:
        log_forecast: (..., C), log-probabilities of the items' classes, in nats.
        log_rows: (M, C, C), log P(m says r | c): annotator, true row, reported column; or (C, C), of one.

    Returns:
        (..., M), a difference of probabilities; (...) for rows of one annotator.

    Example:
        >>> forecast = torch.tensor([[0.5, 0.5], [0.95, 0.05]]).log()
        >>> careful = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()
        >>> expected_accuracy(forecast, careful).round(decimals=4).abs()
        tensor([0.4000, 0.0000])
    """
    if log_rows.ndim == 2:
        return expected_accuracy(log_forecast, log_rows[None])[..., 0]
    zeta, rows = alike(widen(log_forecast).exp(), widen(log_rows).exp())
    return accuracy_gains(zeta, rows)


def answer_entropies(rows: Tensor) -> Tensor:
    """Compute how unsure an annotator's answer is if the class is known: (M, C), of (M, C, C) rows."""
    return torch.special.entr(rows).sum(dim=-1)


def information_gains(zeta: Tensor, rows: Tensor) -> Tensor:
    """Compute `expected_information` of (..., C) and (M, C, C) probabilities."""
    M, C, R = rows.shape
    by_class = rows.permute(1, 0, 2).reshape(C, M * R)
    entropies = answer_entropies(rows).T
    flat = zeta.reshape(-1, C)
    parts = [
        torch.special.entr(part @ by_class).view(-1, M, R).sum(dim=2) - part @ entropies
        for part in flat.split(max(1, _CELLS // (M * R)))
    ]
    return torch.cat(parts).view(*zeta.shape[:-1], M)


def accuracy_gains(zeta: Tensor, rows: Tensor) -> Tensor:
    """Compute `expected_accuracy` of (..., C) and (M, C, C) probabilities."""
    M, C, R = rows.shape
    flat = zeta.reshape(-1, C)
    parts = [
        (part[:, None, :, None] * rows).amax(dim=2).sum(dim=2) - part.amax(dim=1, keepdim=True)
        for part in flat.split(max(1, _CELLS // (M * C * R)))
    ]
    return torch.cat(parts).view(*zeta.shape[:-1], M)


class _World(NamedTuple):
    """What is known before the first question.

    Args:
        zeta: (N, C), probabilities of the items' classes.
        rows: (M, C, C), P(m says r | c), of those who may be asked.
        votes: of the N items, by all annotators.
        voter_groups: the group of each of all annotators.
        groups: (M,) int64, the group of each of those who may be asked.
        costs: (M,).
        gain: one of `GAINS`.
        least: (M,), the smallest gain that is worth a question to each.
    """

    zeta: Tensor
    rows: Tensor
    votes: Votes
    voter_groups: Tensor
    groups: Tensor
    costs: Tensor
    gain: str
    least: Tensor

    def scores(self, items: Tensor) -> Tensor:
        """Return the gain per cost of asking each annotator first: (n, M), minus infinity where nobody asks."""
        gains = self.gains(self.zeta[items])
        return self.per_cost(gains.masked_fill(self.answered(items), -torch.inf))

    def gains(self, zeta: Tensor) -> Tensor:
        """Return the (n, M) gains of a question about items of (n, C) forecasts."""
        of = information_gains if self.gain == "information" else accuracy_gains
        return of(zeta, self.rows)

    def per_cost(self, gains: Tensor) -> Tensor:
        """Divide (..., M) gains by the costs; what is not worth a question becomes minus infinity."""
        return torch.where(gains >= self.least, gains / self.costs, -torch.inf)

    def answered(self, items: Tensor) -> Tensor:
        """Tell who has voted on an item, or has a copy who has: (n, M) bool."""
        votes = self.votes.rows(items)
        row, slot = votes.given.nonzero(as_tuple=True)
        known = torch.zeros(len(items), len(self.voter_groups), dtype=torch.bool)
        known[row, self.voter_groups[votes.annotators[row, slot]]] = True
        return known[:, self.groups]


class _Item:
    """An item that is asked about: the forecasts that its answers can lead to.

    Args:
        zeta: (C,), its probabilities before.
        blocked: (M,) bool, who must not be asked about it.
    """

    def __init__(self, zeta: Tensor, blocked: Tensor) -> None:
        self.joint = zeta[None]  # combination of answers, class
        self.blocked = blocked
        self.questions = 0

    def unsure(self) -> float:
        """Compute the entropy of the class that is expected to be left, in nats."""
        return float(
            torch.special.entr(self.joint).sum() - torch.special.entr(self.joint.sum(dim=1)).sum()
        )

    def right(self) -> float:
        """Compute how likely the likeliest class is expected to be right."""
        return float(self.joint.amax(dim=1).sum())

    def gains(self, world: _World) -> Tensor:
        """Compute the gain per cost of asking each annotator next: (M,), minus infinity where nobody asks."""
        chance = self.joint.sum(dim=1)
        gains = chance @ world.gains(self.joint / chance[:, None])
        return world.per_cost(gains.masked_fill(self.blocked, -torch.inf))

    def ask(self, rows: Tensor, group: Tensor) -> tuple[float, float]:
        """Ask an annotator.

        Args:
            rows: (C, R), P(l | c) of the annotator.
            group: (M,) bool, the annotator and those who copy.

        Returns:
            The expected information, and the expected gain in accuracy.
        """
        unsure, right = self.unsure(), self.right()
        joint = (self.joint[:, None, :] * rows.T).flatten(0, 1)
        joint = joint[joint.sum(dim=1) > 0]
        self.joint, self.blocked = joint, self.blocked | group
        self.questions += 1
        gained = max(unsure - self.unsure(), 0.0), max(self.right() - right, 0.0)
        if len(joint) > MOST_ANSWERS:
            order = joint.sum(dim=1).argsort(descending=True, stable=True)
            rest = joint[order[MOST_ANSWERS - 1 :]].sum(dim=0, keepdim=True)
            self.joint = torch.cat([joint[order[: MOST_ANSWERS - 1]], rest])
        return gained


class _Choice:
    """The greedy choice: the best question first, then the best of what is left.

    `items` are the rows of `table`, the gains per cost of those items that can compete. The row of an item
    that has just been asked about is `stale`: it holds bounds, and is computed again only if they win.
    `outside` bounds the gain per cost of all questions about other items.

    Args:
        world: what is known before.
        budget: what the questions may cost.
        most_per_annotator: questions.
        most_per_item: questions.
    """

    def __init__(
        self, world: _World, budget: float, most_per_annotator: float, most_per_item: float
    ) -> None:
        self.world, self.left, self.most_per_item = world, float(budget), most_per_item
        self.room = torch.full((len(world.rows),), float(most_per_annotator))
        self.tangents = _nearest(world.zeta)
        self.asked: dict[int, _Item] = {}
        self.found: list[tuple[int, int, float, float]] = []
        self.items = torch.zeros(0, dtype=torch.int64)
        self.table = world.rows.new_zeros(0, len(world.rows))
        self.stale = torch.zeros(0, dtype=torch.bool)

    def spent(self) -> list[tuple[int, int, float, float]]:
        """Choose until the budget is spent, or nothing is worth a question; return what was chosen."""
        while self.open().any() and self._look() and not self._take():
            pass
        return self.found

    def open(self) -> Tensor:
        """(M,) bool, who may still be asked."""
        return (self.room > 0) & (self.world.costs <= self.left * (1 + 1e-6))

    def _look(self) -> bool:
        """Look for the items that can compete; return whether there are any."""
        world, is_open = self.world, self.open()
        most = min(self.left / float(world.costs[is_open].min()), float(self.room[is_open].sum()))
        size = int(max(1, min(_LOOKED_AT * most, _POOL // len(is_open))))
        others = torch.ones(len(world.zeta), dtype=torch.bool)
        others[list(self.asked)] = False
        bounds = _bounds(world, is_open, others, *self.tangents)
        items, table, self.outside = _best_rows(world, is_open, bounds, size)
        kept = torch.tensor([int(i) in self.asked for i in self.items], dtype=torch.bool)
        self.items = torch.cat([self.items[kept], items])
        self.table = torch.cat([self.table[kept], table])
        self.stale = torch.cat([self.stale[kept], torch.zeros(len(items), dtype=torch.bool)])
        if len(self.items):
            self.best, self.who = self.table.max(dim=1)
        return len(self.items) > 0

    def _take(self) -> bool:
        """Choose among the items that are looked at; return whether no other item can compete any more."""
        while True:
            place = int(self.best.argmax())
            value = float(self.best[place])
            if value == -torch.inf or value < _NEARLY * self.outside:
                return self.outside == -torch.inf
            if self.stale[place]:
                self._refresh(place)
                continue
            self._ask(place, int(self.who[place]))
            if not self.open().any():
                return True

    def _refresh(self, place: int) -> None:
        """Compute a row that held bounds."""
        gains = self.asked[int(self.items[place])].gains(self.world)
        self.table[place] = gains.masked_fill(~self.open(), -torch.inf)
        self.stale[place] = False
        self._find_best(place)

    def _find_best(self, place: int) -> None:
        value, who = self.table[place].max(dim=0)
        self.best[place], self.who[place] = value, who

    def _ask(self, place: int, who: int) -> None:
        """Ask an annotator about an item."""
        world, number = self.world, int(self.items[place])
        item = self.asked.get(number)
        if item is None:
            blocked = world.answered(self.items[place : place + 1])[0]
            item = self.asked[number] = _Item(world.zeta[number], blocked)
        group = world.groups == world.groups[who]
        self.found.append((number, who, *item.ask(world.rows[who], group)))
        before = self.open()
        self.room[who] -= 1
        self.left -= float(world.costs[who])
        self._bound(place, item)
        closed = (before & ~self.open()).nonzero()[:, 0]
        if len(closed) and self.open().any():
            self.table[:, closed] = -torch.inf
            rows = torch.isin(self.who, closed).nonzero()[:, 0]
            self.best[rows], self.who[rows] = self.table[rows].max(dim=1)

    def _bound(self, place: int, item: _Item) -> None:
        """Bound the gains of one more question about an item: no answer tells more than is unknown."""
        world, row = self.world, self.table[place]
        barred = item.blocked | ~self.open()
        if world.gain == "information":  # an answer tells less where other answers are known
            bound = torch.minimum(row, item.unsure() / world.costs)
        else:
            bound = (1 - item.right()) / world.costs
        if item.questions >= self.most_per_item:
            barred = torch.ones_like(barred)
        self.table[place] = bound.masked_fill(barred, -torch.inf)
        self.stale[place] = True
        self._find_best(place)


def _least(zeta: Tensor, rows: Tensor, gain: str, at_least: float | None) -> Tensor:
    """Find the gain that is worth a question to each annotator: (M,)."""
    least = rows.new_full((len(rows),), at_least or 0.0)
    if at_least is None and gain == "information" and rows.numel() and len(zeta):
        least = WORTH * information_gains(zeta.mean(dim=0), rows)
    return least.clamp(min=LEAST)


def _scores(world: _World, is_open: Tensor, items: Tensor) -> Tensor:
    """Return the gain per cost of first questions: (n, M), minus infinity where nobody asks."""
    return world.scores(items).masked_fill(~is_open, -torch.inf)


def _best_rows(
    world: _World, is_open: Tensor, bounds: Tensor, size: int
) -> tuple[Tensor, Tensor, float]:
    """Find the items whose best first question is worth most.

    Args:
        world: what is known.
        is_open: (M,) bool, who may be asked.
        bounds: (N,), what no question about an item is worth more than, per cost; minus infinity for items
            that are not looked at.
        size: how many.

    Returns:
        (P,) int64, their numbers, at most `size`; (P, M) gains per cost; and what the best question about
        any other item is worth at most.
    """
    order = bounds.argsort(descending=True, stable=True)
    order = order[bounds[order] >= world.least.min() / world.costs.max()]
    step = max(1, _CELLS // world.rows[..., 0].numel())
    parts = [(order[:0], world.rows.new_zeros(0, len(is_open)))]
    best, least, left_out = parts[0][1].new_zeros(0), -torch.inf, False
    for part in order.split(step) if len(order) else ():
        if float(bounds[part[0]]) <= least:
            left_out = True
            break
        scores = _scores(world, is_open, part)
        value = scores.amax(dim=1)
        taken = value > least
        left_out |= bool(((value > -torch.inf) & ~taken).any())
        parts.append((part[taken], scores[taken]))
        best = torch.cat([best, value[taken]])
        if len(best) > size:
            left_out = True
            best = best.topk(size).values
        if len(best) == size:
            least = float(best.min())
        if sum(len(items) for items, _ in parts) > 2 * size:
            parts = [_joined(parts, least)]
    items, table = _joined(parts, least)
    return items, table, least if left_out else -torch.inf


def _joined(parts: list[tuple[Tensor, Tensor]], least: float) -> tuple[Tensor, Tensor]:
    """Join items and their rows, by number, without those that are worth less than `least`."""
    items, table = (torch.cat(column) for column in zip(*parts, strict=True))
    kept = (table.amax(dim=1) >= least).nonzero()[:, 0]
    kept = kept[items[kept].argsort()]
    return items[kept], table[kept]


def _bounds(
    world: _World, is_open: Tensor, wanted: Tensor, touched: Tensor, near: Tensor
) -> Tensor:
    """Bound what a first question about each item is worth, without computing it.

    I_m(zeta) = sum_c zeta_c D(P(. | c, m) || q) is at most the same sum with the q of another forecast: the
    tangent there. So it takes one product of matrices with a forecast near the item's. No question tells
    more than the entropy of the forecast either, and none raises the accuracy above one.

    Args:
        world: what is known.
        is_open: (M,) bool, who may be asked.
        wanted: (N,) bool, which items.
        touched: (K, C), the forecasts at which tangents touch.
        near: (N,) int64, the nearest of these for each item.

    Returns:
        (N,), bounds of the gain per cost of the best question; minus infinity where an item is not wanted.
    """
    zeta, costs, rows = world.zeta, world.costs[is_open], world.rows[is_open]
    if world.gain == "accuracy":
        bounds = (1 - zeta.amax(dim=1)) / costs.min()
        return bounds.masked_fill(~wanted, -torch.inf)
    bounds = (torch.special.entr(zeta).sum(dim=1) + LEAST) / costs.min()
    bounds.masked_fill_(~wanted, -torch.inf)
    entropies, step = answer_entropies(rows).T, max(1, _CELLS // len(costs))
    order = near.argsort(stable=True)
    order = order[wanted[order]]
    for group in order.split(torch.bincount(near[order], minlength=len(touched)).tolist()):
        if not len(group):
            continue
        q = torch.einsum("c,mcr->mr", touched[near[group[0]]], rows)
        tangent = -torch.einsum("mcr,mr->cm", rows, q.log()) - entropies
        for items in group.split(step):
            own = (zeta[items] @ tangent + LEAST) / costs
            bounds[items] = torch.minimum(bounds[items], own.amax(dim=1))
    return bounds


def _nearest(zeta: Tensor) -> tuple[Tensor, Tensor]:
    """Choose forecasts at which tangents touch, unsure ones above all, and the nearest of them for each item.

    Args:
        zeta: (N, C).

    Returns:
        (K, C); (N,) int64.
    """
    number = min(_REFERENCES, len(zeta))
    generator = torch.Generator().manual_seed(0)
    pick = torch.randperm(len(zeta), generator=generator)[: 2**20]
    unsure = torch.special.entr(zeta[pick]).sum(dim=1) + LEAST
    pick = pick[torch.multinomial(unsure, number, generator=generator)]
    touched = 0.99 * zeta[pick] + 0.01 / zeta.shape[1]
    log_touched = touched.log().T
    parts = zeta.split(max(1, _CELLS // number))
    return touched, torch.cat([(part @ log_touched).argmax(dim=1) for part in parts])


def _check(log_forecast: Tensor, log_rows: Tensor, votes: Votes | None) -> None:
    """Check what the questions are chosen from."""
    if log_rows.ndim != 3 or log_rows.shape[1] != log_rows.shape[2]:
        raise ValueError(f"`log_rows` must have shape (M, C, C), got {tuple(log_rows.shape)}.")
    if log_forecast.ndim != 2 or log_forecast.shape[1] != log_rows.shape[1]:
        raise ValueError(
            f"`log_forecast` must have shape (N, C) = (N, {log_rows.shape[1]}), got "
            f"{tuple(log_forecast.shape)}: one row per item, one column per class of `log_rows`."
        )
    if not bool(log_rows.isfinite().all()):
        raise ValueError(
            "`log_rows` must be finite, got a log of zero: draw the rows towards everybody's, as "
            "`annotator_rows` does."
        )
    if votes is not None and len(votes.annotators) != len(log_forecast):
        raise ValueError(
            f"`votes` must be of N = {len(log_forecast)} items, one per row of `log_forecast`, got "
            f"{len(votes.annotators)}."
        )


def check_limits(
    budget: float,
    gain: str,
    most_per_annotator: int | None,
    most_per_item: int | None,
    at_least: float | None,
) -> None:
    """Check what limits the questions: see `choose_questions`.

    Raises:
        TypeError: if a number is something else.
        ValueError: if a number is not of its range, or there is no such gain.
    """
    if gain not in GAINS:
        raise ValueError(f"`gain` must be one of {', '.join(GAINS)}, got {gain!r}.")
    for name, value in (("budget", budget), ("at_least", at_least)):
        if value is None and name == "at_least":
            continue
        if not 0 <= checked_number(name, value) < float("inf"):
            raise ValueError(f"`{name}` must be finite and not negative, got {value}.")
    mosts = ("most_per_annotator", most_per_annotator), ("most_per_item", most_per_item)
    for name, most in mosts:
        if most is not None and not checked_number(name, most) >= 1:
            raise ValueError(f"`{name}` must be 1 or more, got {most}: None is no limit.")


def checked_number(name: str, value: Any) -> float:
    """Return a number; raise a `TypeError` that names the argument if it is something else."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"`{name}` must be a number, got {type(value).__name__} {short(value)}.")
    return value
