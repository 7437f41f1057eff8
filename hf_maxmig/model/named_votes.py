"""The votes on single items as users have them, by the names of annotators and classes, turned into numbers."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from .opening import plain, short
from .votes import Votes

VotesByName = Mapping[Any, Any] | Iterable[tuple[Any, Any]]  # annotator: class, or pairs of both
Vote = tuple[str, str] | tuple[str, str, float]  # annotator, class, and the weight if it is given

_SHOWN = 5  # how many names an error or a warning lists


def number_votes(
    votes: Sequence[VotesByName | None],
    annotators: Sequence[str],
    classes: Sequence[str],
    start: int = 0,
) -> Votes:
    """Turn votes with names into the numbers that a model takes.

    Args:
        votes: of B items, each a mapping from annotator to class, a list of such pairs (an annotator
            may vote twice), or None. Names may be text or numbers. In place of a class an annotator may
            give `(class, weight)`, or a mapping from classes to probabilities; weights lie in 0..1.
        annotators: M names, `model.config.annotators`.
        classes: C names, `model.config.class_names`.
        start: number of the first item, for errors.

    Returns:
        The votes, K at least 1, with weights if any is given. An annotator who is not one of the M is -1
        and adds nothing.

    Raises:
        TypeError: if an item's votes are neither a mapping nor pairs, or a name is neither text nor
            a number.
        ValueError: if a class is not one of the C, a weight does not lie in 0..1, or the probabilities
            that an annotator gives to classes sum to more than one.

    Example:
        >>> votes = [{"ann": "cat", "eve": "dog"}, [("bob", "dog"), ("bob", "cat"), ("ann", "cat")]]
        >>> who, said = number_votes(votes, annotators=["ann", "bob"], classes=["cat", "dog"])
        >>> who.tolist(), said.tolist()
        ([[0, -1, -1], [1, 1, 0]], [[0, 1, -1], [1, 0, 0]])
        >>> number_votes([{"ann": ("cat", 0.5), "bob": {"cat": 0.25, "dog": 0.75}}],
        ...              annotators=["ann", "bob"], classes=["cat", "dog"]).weights
        tensor([[0.5000, 0.2500, 0.7500]])
    """
    pairs = [votes_in_pairs(of_item, item) for item, of_item in enumerate(votes, start)]
    return votes_in_numbers(pairs, numbers_of(annotators), numbers_of(classes), start)


def votes_in_pairs(votes: VotesByName | None, item: int) -> list[Vote]:
    """Turn an item's votes into pairs of names, with a weight if one is given."""
    if votes is None:
        return []
    if isinstance(votes, str | bytes) or not isinstance(votes, Iterable):
        raise TypeError(_NO_VOTES.format(short(votes), item))
    found: list[Vote] = []
    for pair in list(votes.items() if isinstance(votes, Mapping) else votes):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise TypeError(_NO_VOTES.format(short(votes), item))
        who, said = pair
        if not isinstance(said, Mapping | list | tuple):
            found.append((_name(who, item), _name(said, item)))
            continue
        parts = list(said.items()) if isinstance(said, Mapping) else [said]
        if not parts or any(len(part) != 2 for part in parts):
            raise TypeError(_NO_VOTES.format(short(votes), item))
        weights = [checked_weight(weight, who, item) for _, weight in parts]
        if sum(weights) > 1 + 1e-3:
            raise ValueError(
                f"`votes` must have probabilities that sum to one or less, got {short(said)} by {short(who)} at item "
                f"{item}."
            )
        found += [
            (_name(who, item), _name(part[0], item), weight)
            for part, weight in zip(parts, weights, strict=True)
            if weight > 0
        ]
    return found


def _name(name: Any, item: int) -> str:
    """Check the name of an annotator or a class."""
    names = (str, int, float, type(None))
    if not isinstance(plain(name), names):
        raise TypeError(
            "`votes` must name annotators and classes by text or numbers, got "
            f"{type(name).__name__} {short(name)} at item {item}."
        )
    return str(name)


def checked_weight(weight: Any, who: Any, item: int, where: str = "votes") -> float:
    """Check how much a vote counts.

    Args:
        weight: as the user gives it.
        who: whose vote, for the error.
        item: its number, likewise.
        where: what the user calls it, likewise.

    Returns:
        A number in 0..1.

    Raises:
        ValueError: if it is something else.

    Example:
        >>> checked_weight(0.5, "ann", item=3)
        0.5
    """
    value = plain(weight)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(
            f"`{where}` must have weights in 0..1, got {short(weight)} by {short(who)} at item {item}: a vote counts "
            "from 0, not at all, to 1, in full."
        )
    return float(value)


_NO_VOTES = (
    "`votes` must be a mapping from annotator to class, or a list of such pairs, got {} at item {}. In place of a class "
    "there may be (class, weight), or a mapping from classes to probabilities."
)


def numbers_of(names: Sequence[str]) -> dict[str, int]:
    """Number names in their order."""
    return {name: number for number, name in enumerate(names)}


def votes_in_numbers(
    votes: list[list[Vote]],
    annotators: dict[str, int],
    classes: dict[str, int],
    start: int,
) -> Votes:
    """Look the names up, see `number_votes`."""
    found: list[tuple[int, int, int, int]] = []  # item, place, annotator, class
    each: list[float] = []
    for row, of_item in enumerate(votes):
        for place, (who, said, *weight) in enumerate(of_item):
            if said not in classes:
                near = difflib.get_close_matches(said[:99], classes, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise ValueError(
                    f"`votes` must name one of the {len(classes)} classes, got {short(said)} by {short(who)} "
                    f"at item {start + row}{hint}: the model knows {some_of(list(classes))}."
                )
            found.append((row, place, annotators.get(who, -1), classes[said]))
            each.append(weight[0] if weight else 1.0)
    shape = len(votes), max([1, *map(len, votes)])
    item, slot, *numbers = torch.tensor(found, dtype=torch.int64).view(-1, 4).unbind(dim=1)
    who_said = torch.full((2, *shape), -1, dtype=torch.int64)
    who_said[:, item, slot] = torch.stack(numbers)
    if not any(len(vote) > 2 for of_item in votes for vote in of_item):
        return Votes(who_said[0], who_said[1])
    weights = torch.zeros(shape)
    weights[item, slot] = torch.tensor(each)
    return Votes(who_said[0], who_said[1], weights)


def some_of(names: Sequence[str]) -> str:
    """List the first names, for an error or a warning."""
    shown = ", ".join(map(short, names[:_SHOWN]))
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


__all__ = [
    "Vote",
    "VotesByName",
    "checked_weight",
    "number_votes",
    "numbers_of",
    "some_of",
    "votes_in_numbers",
    "votes_in_pairs",
]
