"""New votes and new annotators without training: rows of W in closed form, from the forecasts of the others.

W^m_{c,l} = strength * log P(m says l | c). P is counted by forecasts without m's own votes, and drawn towards
everybody's where votes are few (`annotator_rows.py`). That takes one pass of the classifier over the items, and a
time that grows with the votes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from transformers.utils import logging

from .annotator_rows import annotator_rows
from .config_checks import MOST_ANNOTATORS, checked_annotators
from .exchange import more_annotators
from .functional import NO_MASS
from .named_votes import numbers_of, some_of, votes_in_numbers
from .opening import short
from .voted_items import VotedItems, annotators_of, groups_of, read_items
from .votes import Votes, voted_classes

logger = logging.get_logger(__name__)

_PART = 1024  # items whose votes are padded to one width
PASSES = 2  # in the second one, new annotators are evidence about each other


class UpdatedByVotes:
    """The part of a crowd model that takes new votes and new annotators without training."""

    config: Any
    aggregator: Any
    method: ClassVar[str]

    def add_annotator(
        self, name: str, votes: Any = None, *, processor: Any = None, batch_size: int = 64
    ) -> None:
        """Add an annotator, without training.

        The matrix of the new annotator comes from their votes and from what classifier and the other annotators
        say of the same items. With few votes it is close to everybody's. Nobody else's matrix changes.

        A trainer of this model must be made anew, for the model has more parameters.

        Args:
            name: of the new annotator; for a model whose annotators have no names, the next number.
            votes: items with the votes on them, see `update`; other annotators' votes are needed too. None for
                somebody who has not voted yet, who gets the mean of all matrices.
            processor: as in `update`.
            batch_size: as in `update`.

        Raises:
            TypeError, ValueError: as `update`; or if the name is known already, or there are votes but none by
                this annotator.

        Example:
            >>> from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGModel
            >>> head = HeadClassifier(HeadConfig(input_size=2, num_labels=2))
            >>> model = MaxMIGModel.from_classifier(head, annotators=["ann", "bob"])
            >>> model.add_annotator("eve")
            >>> model.config.annotators, model.aggregator.weight.shape
            (['ann', 'bob', 'eve'], torch.Size([3, 2, 2]))
        """
        _check_can_update(self)
        names, _ = checked_annotators([name], None)
        (name,) = cast(list[str], names)
        if name in annotators_of(self):
            raise ValueError(
                f"`name` must be that of a new annotator, got {short(name)}, whom the model knows: `update` takes new "
                "votes of known annotators."
            )
        _check_new(self, [name])
        if votes is None:
            weight = self.aggregator.weight.detach()
            with_votes = weight.abs().sum(dim=(1, 2)) > 0
            row = weight[with_votes].mean(dim=0) if with_votes.any() else weight.mean(dim=0)
            _extend(self, [name], {len(weight): row})
            return
        read = read_items(self, votes, processor, batch_size)
        if name not in read.voters:
            raise ValueError(
                f"`votes` must have a vote by the new annotator, {short(name)}, got votes by {some_of(read.voters)}: "
                "leave `votes` out for somebody who has not voted yet."
            )
        M = self.config.num_annotators
        _extend(self, [name], {M: _rows(self, read, [name], ())[M]})

    def update(
        self,
        votes: Any,
        *,
        copies: Sequence[Sequence[str]] = (),
        processor: Any = None,
        batch_size: int = 64,
    ) -> list[str]:
        """Take new votes into account, by known and by new annotators, without training.

        Each annotator with votes here gets a new matrix:
        W^m_{c,l} = s log((sum_i zeta_i(c) [y_i^m = l] + k P(l | c)) / (sum_i zeta_i(c) + k)), where zeta is the
        forecast without m's votes, P everybody's matrix, k the number of votes for which it stands, by the likeliest
        Dirichlet prior, and s how strong the model's W is now. The classifier, the prior and the matrices of
        annotators without votes here stay.

        Give all votes so far, not only the new ones: a matrix does not say how many votes it rests on.

        A trainer of this model must be made anew if there are new annotators, for the model has more parameters.

        Args:
            votes: items with the votes on them. A `datasets.Dataset` with crowd columns and the classifier's inputs, or
                what the processor reads: the features of `annotators` and `annotations` name both. Or a list of
                dicts, as the pipeline `crowd-forecast` takes them, with `votes` by name.
            copies: groups of names who copy each other: a group counts as one vote per item. `judge_annotators`
                finds them (`report.voices()`).
            processor: image processor, tokenizer, feature extractor or table processor, if the items need one.
            batch_size: items that go through the classifier together.

        Returns:
            The names of the new annotators.

        Raises:
            TypeError: if `votes` is something else.
            ValueError: if the model does not combine votes, or its aggregator has no matrix per annotator; if a class is
                unknown; if no known annotator has a vote, or their votes contradict the model; if an item cannot be
                read.

        Example:
            >>> from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGModel
            >>> head = HeadClassifier(HeadConfig(input_size=2, id2label={0: "cat", 1: "dog"}))
            >>> model = MaxMIGModel.from_classifier(head, annotators=["ann", "bob"])
            >>> votes = [{"features": [0.0, 1.0], "votes": {"ann": "cat", "bob": "cat", "eve": "cat"}},
            ...          {"features": [1.0, 0.0], "votes": {"ann": "dog", "bob": "dog", "eve": "dog"}}]
            >>> model.update(9 * votes)
            ['eve']
        """
        _check_can_update(self)
        read = read_items(self, votes, processor, batch_size)
        number = numbers_of(annotators_of(self))
        new = [name for name in read.voters if name not in number]
        if self.config.annotators is None:
            new.sort(key=_as_number)
        _check_new(self, new)
        rows = _rows(self, read, new, copies)
        number = numbers_of([*number, *new])
        changed = {number[name] for name in read.voters}
        _extend(self, new, {m: rows[m] for m in sorted(changed)})
        return new


def _check_can_update(model: Any) -> None:
    """Raise unless a model has one matrix per annotator, which its votes go through."""
    aggregator = getattr(model, "aggregator", None)
    if aggregator is None:
        raise ValueError(
            f"new votes need a model that combines votes, such as one of Max-MIG or AggNet, got one of {model.method}: "
            "only its classifier answers, so it must be trained again."
        )
    if model.config.aggregator != "weighted_average":
        raise ValueError(
            "`aggregator` must be 'weighted_average' for votes without training, got "
            f"{model.config.aggregator!r}: its annotators share what was trained. Train again with the new votes."
        )


def _as_number(name: str) -> int:
    return int(name) if name.isdecimal() and len(name) < 10 else MOST_ANNOTATORS


def _check_new(model: Any, new: list[str]) -> None:
    """Raise unless names can be those of new annotators."""
    config, M = model.config, model.config.num_annotators
    if config.annotators is not None:
        checked_annotators([*config.annotators, *new], None)
        return
    wanted = [str(m) for m in range(M, M + len(new))]
    if new != wanted:
        raise ValueError(
            f"new annotators must have the next numbers, {some_of(wanted)}, for a model whose annotators have no names, "
            f"got {some_of(new)}: name them all by `model.config.annotators`."
        )


def _extend(model: Any, new: list[str], rows: Mapping[int, Tensor]) -> None:
    """Add annotators, and set the (C, C) matrices of these numbers."""
    if new:
        more_annotators(model, new)
    table = model.aggregator.table
    with torch.no_grad():
        for m, row in rows.items():
            table[m] = row.T.to(table)


# Votes on items


def _rows(model: Any, read: VotedItems, new: list[str], copies: Sequence[Sequence[str]]) -> Tensor:
    """Compute the (M, C, C) rows of all annotators, the new ones last."""
    config, known = model.config, annotators_of(model)
    number = numbers_of([*known, *new])
    classes = numbers_of(config.class_names)
    votes = [
        votes_in_numbers(read.votes[start : start + _PART], number, classes, start)
        for start in range(0, len(read.votes), _PART)
    ]
    weight, log_p = model.aggregator.weight.detach().cpu(), model.log_prior().detach().cpu()
    weight = torch.cat([weight, weight.new_zeros(len(new), *weight.shape[1:])])
    unheard = voted_classes(votes, config.num_labels) & (log_p <= NO_MASS)
    if unheard.any():
        names = [config.class_names[c] for c in unheard.nonzero()[:, 0]]
        logger.warning(
            "Nobody had voted for %s in the training: the model goes on to leave it out. Train again with these "
            "votes.",
            some_of(names),
        )
    groups = groups_of(copies, number) if copies else None
    return new_rows(
        read.log_h, weight, votes, torch.arange(len(weight)) < len(known), log_p, groups
    )


# Rows of W


def new_rows(
    log_h: Tensor,
    weight: Tensor,
    crowd: Sequence[Votes],
    known: Tensor,
    log_p: Tensor,
    groups: Tensor | None = None,
) -> Tensor:
    """Compute W from votes, as strong as that of the known annotators is.

    Args:
        log_h: (N, C), log-probabilities of the classifier, in nats.
        weight: (M, C, C), the present W: annotator, scored class, reported class; zeros for new annotators.
        crowd: the votes part by part, in the order of the items.
        known: (M,) bool, false for new annotators.
        log_p: (C,), log of the class prior; a class of `NO_MASS` takes no part.
        groups: (M,) int64, a number below M per group of copies, who share one vote; by default nobody copies.

    Returns:
        (M, C, C), the rows of all annotators, also of those without votes.

    Raises:
        ValueError: if no known annotator has a vote, or their votes contradict W.

    Example:
        >>> truth = torch.arange(400) % 2
        >>> coin = torch.arange(400) // 2 % 2
        >>> votes = Votes(torch.arange(2).repeat(400, 1), torch.stack([truth, coin], dim=1))
        >>> sure = torch.tensor([[2.0, -2.0], [-2.0, 2.0]])
        >>> log_h = torch.eye(2)[truth].mul(0.8).add(0.1).log()
        >>> half = torch.tensor([0.5, 0.5]).log()
        >>> W = new_rows(log_h, torch.stack([sure, 0 * sure]), [votes], torch.tensor([True, False]), half)
        >>> (W[:, 0] - W[:, 1]).round(decimals=1).abs()  # what a vote says; the new annotator tosses a coin
        tensor([[4., 4.],
                [0., 0.]])
    """
    counts = _cast(crowd, *weight.shape[:2])
    if not counts[known].any():
        raise ValueError(
            "`votes` must have votes by annotators whom the model knows, got none: new annotators are compared with "
            "them. Give all votes on the items, or all votes so far."
        )
    share = torch.ones(len(weight)) if groups is None else _shares(crowd, groups)
    # Whether the present W shares the votes of copies is unknown.
    alone = known & (share == 1)
    compared = alone if counts[alone].any() else known
    has_mass = log_p > NO_MASS
    log_h = torch.where(has_mass, log_h, NO_MASS).log_softmax(dim=-1)
    now = weight
    for _ in range(PASSES):
        rows = share[:, None, None] * annotator_rows(log_h, now, crowd, groups)
        before, found = (w[compared][:, has_mass] for w in (weight, rows))
        strength = strength_of(before, found, counts[compared])
        if strength == 0:
            raise ValueError(
                "`votes` must agree with what the model has learned of the annotators whom it knows, got votes that "
                "contradict it: the classes must be named as in the training."
            )
        rows = rows * strength
        now = torch.where(known[:, None, None], weight, rows)
    return rows


def strength_of(weight: Tensor, log_rows: Tensor, cast: Tensor) -> float:
    """Find the number by which W is stronger than the logs of its annotators' confusions.

    It fits what each vote adds to the scores of an item by least squares. A column of W says the same if a number
    is added to all of it, so columns are compared without their means.

    Args:
        weight: (M, C, C), W: annotator, scored class, reported class.
        log_rows: (M, C, C), log P(m says l | c).
        cast: (M, C), how often each annotator named each class.

    Returns:
        The number, not negative; 1 if W is zero, as before a training, or the confusions say nothing about items.

    Example:
        >>> rows = torch.tensor([[[0.8, 0.2], [0.4, 0.6]]]).log()
        >>> round(strength_of(0.5 * rows + torch.tensor([3.0, 7.0]), rows, torch.tensor([[9.0, 1.0]])), 4)
        0.5
    """
    W, rows = ((w - w.mean(dim=1, keepdim=True)).double() for w in (weight, log_rows))
    each = cast.double()[:, None]
    norm = float((each * rows.square()).sum())
    if norm == 0 or not weight.any():
        return 1.0
    return max(0.0, float((each * W * rows).sum()) / norm)


def _cast(crowd: Sequence[Votes], num_annotators: int, num_classes: int) -> Tensor:
    """Count how often each annotator named each class: (M, C) float64."""
    cast = torch.zeros(num_annotators * num_classes, dtype=torch.float64)
    for votes in crowd:
        given = votes.given
        each = None if votes.weights is None else votes.weights[given].double()
        cells = votes.annotators[given] * num_classes + votes.annotations[given]
        cast += torch.bincount(cells, each, len(cast))
    return cast.view(num_annotators, num_classes)


def _shares(crowd: Sequence[Votes], groups: Tensor) -> Tensor:
    """Average each annotator's share of a group's vote: (M,), 1 for annotators in no group, or without votes."""
    M = len(groups)
    total, number = torch.zeros(M), torch.zeros(M)
    for votes in crowd:
        item, slot = votes.given.nonzero(as_tuple=True)
        pairs = (item * M + votes.annotators[item, slot]).unique()
        voices, voice = (pairs // M * M + groups[pairs % M]).unique(return_inverse=True)
        size = torch.bincount(voice, minlength=len(voices)).float()
        total.index_add_(0, pairs % M, 1 / size[voice])
        number.index_add_(0, pairs % M, torch.ones(len(pairs)))
    return torch.where(number > 0, total / number.clamp(min=1), 1.0)


__all__ = ["UpdatedByVotes", "new_rows", "strength_of"]
