r"""Who is first in which world, by how much, and who is level with the first. Not a recipe itself.

    for world in worlds(results(cells)):
        print(world.group, world.name, world.first)

A world is one crowd of one data set. `benchmark_cells.py` has the numbers.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmark_cells import (
    CEILING,
    HIGHER,
    REAL,
    Cell,
    Number,
    Results,
    crowd_name,
    dataset_name,
    method_name,
    results,
    within_error,
)
from benchmark_layout import MARK
from pages import markdown

REAL_CROWDS = "Real crowds"
RANKED = {
    # measure of the classifier: what it is
    "accuracy": "Accuracy: rank, and points below the first",
    "nll": "Negative log-likelihood: rank, and nats above the first",
    "ece": "Calibration error: rank, and distance to the first",
}


class World(NamedTuple):
    """A measure of all methods on one crowd of one data set.

    Args:
        group: what stands above it and its neighbours: the data set, or `REAL_CROWDS`.
        name: among its neighbours.
        numbers: by method, without the ceiling; at least one.
        ceiling: of gold labels.
        lower: whether the lowest number is the best.
        decimals: as it is printed.
    """

    group: str
    name: str
    numbers: dict[str, Number]
    ceiling: Number | None = None
    lower: bool = False
    decimals: int = 1

    @property
    def first(self) -> Number:
        """The best number."""
        return min(self.numbers.values(), key=lambda number: self._worse(number.mean))

    def printed(self, method: str) -> float:
        """The number of a method as it is printed."""
        return round(self.numbers[method].mean, self.decimals)

    def rank(self, method: str) -> int:
        """The rank of a method; those that print the same share one."""
        own = self._worse(self.printed(method))
        return 1 + sum(self._worse(self.printed(rival)) < own for rival in self.numbers)

    def distance(self, method: str) -> float:
        """How much worse than the first a method is."""
        return self._worse(self.numbers[method].mean) - self._worse(self.first.mean)

    def level(self, method: str) -> bool:
        """Whether a method is behind the first, but within a standard error of the difference."""
        return self.rank(method) > 1 and within_error(self.numbers[method], self.first)

    def _worse(self, value: float) -> float:
        return value if self.lower else -value


def worlds(found: Iterable[Results], measure: str = "accuracy") -> list[World]:
    """List the worlds in which a measure of some method is known.

    Args:
        found: by data set.
        measure: a row of `MEASURES` or `CERTAINTY`.

    Returns:
        The simulated crowds by data set, then the real ones.
    """
    simulated, real = [], []
    for result in found:
        for crowd in result.crowds:
            row = {
                method: result.numbers.get((method, crowd, measure)) for method in result.methods
            }
            numbers = {method: number for method, number in row.items() if number is not None}
            if not numbers:
                continue
            own = dataset_name(result.dataset)
            place = (REAL_CROWDS, own) if crowd == REAL else (own, crowd_name(crowd))
            world = World(
                *place, numbers, result.numbers.get((CEILING, REAL, measure)),
                lower=measure not in HIGHER, decimals=1 if measure in HIGHER else 3,
            )  # fmt: skip
            (real if crowd == REAL else simulated).append(world)
    return [*simulated, *real]


def by_group(some: Iterable[World]) -> dict[str, list[World]]:
    """Group worlds by data set; the real crowds are one group."""
    groups: dict[str, list[World]] = {}
    for world in some:
        groups.setdefault(world.group, []).append(world)
    return groups


def by_wins(some: Sequence[World]) -> list[str]:
    """Sort methods by the share of their comparisons that they win: with each other method, in each world with both.

    So a method is judged only where it was measured. Numbers that print the same are half a win each.

    Example:
        >>> three = World("", "", {"a": Number(90.0), "b": Number(80.0), "c": Number(70.0)})
        >>> by_wins([three, World("", "", {"b": Number(90.0), "c": Number(95.0)})])
        ['a', 'b', 'c']
    """
    won: dict[str, list[float]] = {}
    for world in some:
        ranks = {method: world.rank(method) for method in world.numbers}
        for method, rank in ranks.items():
            others = [other for rival, other in ranks.items() if rival != method]
            wins = [0.5 if rank == other else float(rank < other) for other in others]
            won.setdefault(method, []).extend(wins)

    def lost(method: str) -> float:
        return 1 - sum(won[method]) / len(won[method]) if won[method] else 1.0

    return sorted(won, key=lambda method: (lost(method), method_name(method)))


def ranks_in_short(cells: Iterable[Cell], pick: str = "last") -> str:
    """Write rank and distance to the first, a column a data set: over simulated crowds their means.

    Args:
        cells: of any data sets.
        pick: which epoch, one of `PICKS`.

    Returns:
        A table in Markdown for each of `RANKED` that some cell has, below what it is.

    Raises:
        ValueError: as `results` does.
    """
    found, parts = results(cells, pick), []
    for measure, title in RANKED.items():
        some = worlds(found, measure)
        columns = {}
        for group, members in by_group(some).items():
            if group == REAL_CROWDS:
                columns |= {world.name: [world] for world in members}
            else:
                columns[f"{group} ({len(members)})" if len(members) > 1 else group] = members
        if some:
            parts += [f"**{title}**", _table(by_wins(some), columns)]
    return "\n\n".join(parts)


def ranks_by_crowd(cells: Iterable[Cell], pick: str = "last") -> str:
    """Write rank and distance to the first on each simulated crowd, a table a data set; see `ranks_in_short`."""
    found, parts = results(cells, pick), []
    for measure, title in RANKED.items():
        for group, some in by_group(worlds(found, measure)).items():
            if group != REAL_CROWDS:
                columns = {world.name: [world] for world in some}
                parts += [f"**{group}: {title}**", _table(by_wins(some), columns)]
    return "\n\n".join(parts)


def _table(order: Sequence[str], columns: Mapping[str, Sequence[World]]) -> str:
    """Write a line a method, and the number of methods in each column."""
    best = {
        name: min(_mean_rank(method, some) for method in order if _everywhere(method, some))
        for name, some in columns.items()
        if any(_everywhere(method, some) for method in order)
    }
    lines = [
        [
            method_name(method),
            *(_entry(method, some, best.get(name)) for name, some in columns.items()),
        ]
        for method in order
    ]
    counts = [str(max(len(world.numbers) for world in some)) for some in columns.values()]
    return markdown(["method", *columns], [*lines, ["methods", *counts]])


def _everywhere(method: str, some: Sequence[World]) -> bool:
    return all(method in world.numbers for world in some)


def _mean_rank(method: str, some: Sequence[World]) -> float:
    return statistics.mean(world.rank(method) for world in some)


def _entry(method: str, some: Sequence[World], best: float | None) -> str:
    """Write rank and distance; nothing if the method was not measured in all of the worlds."""
    if not _everywhere(method, some):
        return ""
    rank = _mean_rank(method, some)
    distance = statistics.mean(world.distance(method) for world in some)
    place = f"{rank:.1f}" if len(some) > 1 else f"{rank:.0f}"
    text = f"{place} ({distance:.{some[0].decimals}f})"
    if rank == best:
        return f"**{text}**"
    return text + (f" {MARK}" if len(some) == 1 and some[0].level(method) else "")
