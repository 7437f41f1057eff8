"""Items with votes as users have them: classified, and with the votes by name."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .items import ALL_CROWD_COLUMNS, CROWD_COLUMNS, WEIGHTS_COLUMN, ItemReader
from .named_votes import Vote, checked_weight, numbers_of, votes_in_numbers, votes_in_pairs
from .opening import plain, short


class VotedItems(NamedTuple):
    """What the items and their votes say.

    Args:
        log_h: (N, C), log-probabilities of the classifier; zeros for an item that is not classified.
        log_forecast: (N, C), by classifier and the votes of annotators whom the model knows; None if it does not
            combine votes, or only items with votes are classified.
        votes: of each item.
    """

    log_h: Tensor
    log_forecast: Tensor | None
    votes: list[list[Vote]]

    @property
    def voters(self) -> list[str]:
        """Who has voted, in the order of their first votes."""
        return list(dict.fromkeys(vote[0] for of_item in self.votes for vote in of_item))


def annotators_of(model: Any) -> list[str]:
    """Name the annotators, by their numbers if they have no names."""
    config = model.config
    return list(config.annotators or map(str, range(config.num_annotators)))


def groups_of(copies: Sequence[Sequence[str]], number: dict[str, int]) -> Tensor:
    """Number groups of names: (M,) int64."""
    groups = torch.arange(len(number))
    for names in copies:
        if isinstance(names, str) or (unknown := [name for name in names if name not in number]):
            got = names if isinstance(names, str) else unknown[0]
            raise ValueError(
                f"`copies` must be groups of annotators' names, got {short(got)}, who is neither known nor has voted."
            )
        members = [number[name] for name in names]
        groups[members] = min(members, default=0)
    return groups


@torch.no_grad()
def read_items(
    model: Any,
    items: Any,
    processor: Any,
    batch_size: int,
    *,
    argument: str = "votes",
    every_item: bool = False,
) -> VotedItems:
    """Read items with their votes, and classify them.

    Args:
        model: a crowd model.
        items: a `datasets.Dataset` with crowd columns and the classifier's inputs, or what the processor reads; or
            a list of what the pipeline `crowd-forecast` takes.
        processor: image processor, tokenizer, feature extractor or table processor, if the items need one.
        batch_size: items that go through the classifier together.
        argument: what the caller calls `items`, for errors.
        every_item: whether items without votes are read too, and forecasts are made. Otherwise each item must
            be a dict with votes, and those without any are not classified.

    Raises:
        TypeError: if `items` is something else.
        ValueError: if an item cannot be read, or numbers someone or a class that has no name.
    """
    if isinstance(items, str | bytes | Mapping | Tensor) or not isinstance(items, Iterable):
        raise TypeError(
            f"`{argument}` must be items with their votes, a `datasets.Dataset` with crowd columns or a list of dicts, "
            f"got {type(items).__name__}: `add_annotations` joins votes to items."
        )
    own = annotators_of(model), list(model.config.class_names)
    number, classes = map(numbers_of, own)
    names = [_column_names(items, c) or known for c, known in zip(CROWD_COLUMNS, own, strict=True)]
    reader = ItemReader(model.classifier, model.config.classifier_task, processor)
    rows: Any = items
    columns = [*(getattr(items, "column_names", None) or ())]
    if {*columns} & {*reader.names}:  # other columns would be decoded for nothing
        wanted = {*reader.names, *ALL_CROWD_COLUMNS, "votes"}
        rows = rows.select_columns([name for name in columns if name in wanted])
    votes: list[list[Vote]] = []
    log_h: list[Tensor] = []
    log_forecast: list[Tensor] = []
    waiting: list[dict[str, Tensor]] = []
    classified: list[int] = []  # numbers of the items

    def classify() -> None:
        if not waiting:
            return
        start = classified[len(log_h)]
        batch = reader.batch(waiting, start)
        if every_item:
            batch |= votes_in_numbers(votes[start:], number, classes, start).as_batch()
        output = model(**{name: part.to(model.device) for name, part in batch.items()})
        log_h.extend(output.log_h.float().cpu())
        if output.forecast_logits is not None:
            log_forecast.extend(output.forecast_logits.float().cpu())
        waiting.clear()

    trains = model.training
    model.eval()
    try:
        for place, item in enumerate(rows):
            alone = every_item and not isinstance(item, Mapping)
            votes.append([] if alone else _votes_of(item, names, place, argument))
            if every_item or votes[-1]:
                classified.append(place)
                waiting.append(reader(item, place))
                if len(waiting) == batch_size:
                    classify()
        classify()
    finally:
        model.train(trains)
    table = torch.zeros(len(votes), model.config.num_labels)
    if log_h:
        table[classified] = torch.stack(log_h)
    return VotedItems(table, torch.stack(log_forecast) if log_forecast else None, votes)


def _column_names(items: Any, column: str) -> list[str] | None:
    """Read the names off the features of a data set."""
    feature = (getattr(items, "features", None) or {}).get(column)
    names = getattr(getattr(feature, "feature", None), "names", None)
    return None if names is None else list(names)


def _votes_of(item: Any, names: Sequence[Sequence[str]], number: int, argument: str) -> list[Vote]:
    """Read the votes of an item, from its crowd columns or from `votes`."""
    if not isinstance(item, Mapping):
        raise TypeError(
            f"`{argument}` must be dicts of an item and its votes, got {type(item).__name__} {short(item)} as item "
            f"{number}."
        )
    if not {*CROWD_COLUMNS} & {*item}:
        if {"item", "annotation"} <= {*item}:
            raise ValueError(
                f"`{argument}` must be items with their votes, got a table of votes: join them by `add_annotations`."
            )
        return votes_in_pairs(item.get("votes"), number)
    if item.get(CROWD_COLUMNS[0]) is None and (said := item.get(CROWD_COLUMNS[1])) is not None:
        if len(said) != len(names[0]):
            raise ValueError(
                "`annotations` without `annotators` must have one place per annotator, M = "
                f"{len(names[0])}, got {len(said)} at item {number}."
            )
        item = {**item, CROWD_COLUMNS[0]: range(len(said))}
    columns = [item[name] for name in ALL_CROWD_COLUMNS if item.get(name) is not None]
    lists = all(isinstance(c, Sized) and not isinstance(c, str | bytes | Mapping) for c in columns)
    if not lists or len({len(column) for column in columns}) > 1 or len(columns) < 2:
        raise ValueError(
            f"`annotators` and `annotations` must be lists of one length, got others at item {number}."
        )
    found: list[Vote] = []
    if len(columns) == len(CROWD_COLUMNS):
        columns.append([1] * len(columns[0]))
    for *pair, weight in zip(*columns, strict=True):
        who, said = (_place(*each, number) for each in zip(pair, CROWD_COLUMNS, strict=True))
        if who < 0 or said < 0:
            continue  # padding
        for place, of, column in zip((who, said), names, CROWD_COLUMNS, strict=True):
            if place >= len(of):
                raise ValueError(
                    f"`{column}` must lie in 0..{len(of) - 1} or be -1 for padding, got {place} at item {number}: "
                    "the features of a data set name more."
                )
        vote = names[0][who], names[1][said]
        each = checked_weight(weight, vote[0], number, WEIGHTS_COLUMN)
        found.append(vote if each == 1 else (*vote, each))
    return found


def _place(number: Any, column: str, item: int) -> int:
    """Check the number of an annotator or a class."""
    value = plain(number)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(
        f"`{column}` must hold integers, got {short(number)} at item {item}: give votes with names as `votes`, a mapping "
        "from annotator to class, or let `add_annotations` number them."
    )


__all__ = ["VotedItems", "annotators_of", "groups_of", "read_items"]
