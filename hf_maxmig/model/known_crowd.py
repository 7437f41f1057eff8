"""What a crowd has said and can be expected to say, and which questions to it are allowed, by name.

Which questions are best is decided in `asking.py`; how annotators answer is estimated in `annotator_rows.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .annotator_rows import annotator_rows, with_votes
from .asking import Questions, check_limits, checked_number, choose_questions
from .config_checks import checked_annotators
from .functional import NO_MASS
from .named_votes import some_of
from .opening import short
from .votes import Votes


@dataclass(frozen=True)
class KnownCrowd:
    """What a crowd has said and can be expected to say; M annotators, the new ones last.

    Args:
        log_forecast: (N, C), log-probabilities of the items' classes.
        log_rows: (M, C, C), log P(m says r | c).
        votes: of the N items.
        groups: (M,) int64, a number per group of copies.
        known: (M,) bool, of whom anything is known: the others are taken for average annotators.
        annotators: M names.
    """

    log_forecast: Tensor
    log_rows: Tensor
    votes: Votes
    groups: Tensor
    known: Tensor
    annotators: list[str]


def known_crowd(
    log_h: Tensor,
    log_forecast: Tensor | None,
    weight: Tensor | None,
    votes: Votes,
    annotators: Sequence[str],
    new: Sequence[str] = (),
    groups: Tensor | Callable[[Tensor], Tensor] | None = None,
) -> KnownCrowd:
    """Find out how annotators answer.

    Annotators with votes on these items are known by them, those without by W. If W says nothing of somebody either,
    they get everybody's rows.

    Args:
        log_h: (N, C), log-probabilities of the classifier.
        log_forecast: (N, C), log-probabilities by classifier and the votes of those whom W knows. Not used without W.
        weight: (L, C, C), W of the first L annotators: annotator, scored class, reported class. None if a method has
            none. The votes of all others count as much as their rows say.
        votes: of the N items.
        annotators: M names.
        new: names of people who have not voted yet: they are taken for the average annotator.
        groups: (M,) int64, a number below M per group of copies. Or a function of the (M, C, C) matrices by which
            votes count, which is called if there are votes. By default nobody copies.

    Returns:
        What is known of the M annotators and the new ones.

    Example:
        >>> log_h = torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log()
        >>> nobody = Votes(torch.full((2, 1), -1), torch.full((2, 1), -1))
        >>> W = torch.tensor([[[0.9, 0.1], [0.1, 0.9]]]).log()
        >>> crowd = known_crowd(log_h, log_h, W, nobody, ["ann"], new=["zoe"])
        >>> crowd.log_rows.exp()[:, 0], crowd.known  # nothing is known of anybody else
        (tensor([[0.9000, 0.1000],
                [0.5000, 0.5000]]), tensor([ True, False]))
    """
    (C,), M, heard = log_h.shape[1:], len(annotators), 0 if weight is None else len(weight)
    W, has_votes = torch.zeros(M, C, C), bool(votes.annotated.any())
    if weight is not None:
        W = torch.cat([weight, weight.new_zeros(M - heard, C, C)])
    elif has_votes:
        W = annotator_rows(log_h, W, [votes])
    if callable(groups):
        groups = groups(W) if has_votes else None
    groups = torch.arange(M) if groups is None else groups
    # A last annotator who has not voted gets everybody's rows, and lends them to all who are new.
    log_rows = annotator_rows(
        log_h, torch.cat([W, W.new_zeros(1, C, C)]), [votes], torch.cat([groups, torch.tensor([M])])
    )
    log_forecast = log_h if weight is None or log_forecast is None else log_forecast
    if heard < M:
        unheard = torch.arange(M) >= heard
        counted = torch.where(unheard[:, None, None], log_rows[:-1], 0.0)
        log_forecast = with_votes(log_forecast, counted, [votes], groups)
    cast = torch.bincount(votes.annotators[votes.given], minlength=M)
    trained = (W != 0).any(dim=(1, 2))
    silent = trained & (cast == 0)
    log_rows[:-1][silent] = W[silent].log_softmax(dim=2).to(log_rows.dtype)
    return KnownCrowd(
        log_forecast,
        torch.cat([log_rows[:-1], log_rows[-1:].expand(len(new), -1, -1)]),
        votes,
        torch.cat([groups, torch.arange(M, M + len(new))]),
        torch.cat([trained | (cast > 0), torch.zeros(len(new), dtype=torch.bool)]),
        [*annotators, *new],
    )


def weight_of(model: Any) -> Tensor | None:
    """Write out W as votes are weighed by it: (M, C, C); None for a method that does not combine votes.

    A vote for another class is evidence against a class without votes.
    """
    aggregator = getattr(model, "aggregator", None)
    if aggregator is None:
        return None
    return torch.where(model.prior.left_out[:, None], NO_MASS, aggregator.weight).detach().cpu()


@dataclass(frozen=True)
class Limits:
    """What may be asked: see `choose_questions`; people by name.

    Args:
        budget: what all questions may cost together; their number, if there are no costs.
        gain: `information` or `accuracy`.
        costs: of one answer, by annotator; 1 by default.
        most_per_annotator: questions.
        most_per_item: questions.
        at_least: the gain that is worth a question; by default see `choose_questions`.
        annotators: who may be asked; everybody by default.

    Raises:
        TypeError: if `annotators` is no list of names, `costs` are not by name, or a number is something else.
        ValueError: if a number is not of its range, or a name comes twice.

    Example:
        >>> Limits(9, annotators=["zoe", "ann"]).new(known=["ann", "bob"])
        ['zoe']
    """

    budget: float
    gain: str = "information"
    costs: Mapping[str, float] | None = None
    most_per_annotator: int | None = None
    most_per_item: int | None = None
    at_least: float | None = None
    annotators: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check all but whether each annotator has a cost: who they are is not known yet."""
        check_limits(
            self.budget, self.gain, self.most_per_annotator, self.most_per_item, self.at_least
        )
        if self.annotators is not None:
            object.__setattr__(self, "annotators", checked_annotators(self.annotators, None)[0])
        costs = self.costs
        if costs is not None and not isinstance(costs, Mapping):
            raise TypeError(
                f"`costs` must be a mapping from names to numbers, got {type(costs).__name__}."
            )
        for name, cost in (costs or {}).items():
            checked_number(f"costs[{short(name)}]", cost)

    def new(self, known: Sequence[str]) -> list[str]:
        """Name those who may be asked and are not known."""
        among = {*known}
        return [name for name in dict.fromkeys(self.annotators or ()) if name not in among]

    def choose(self, crowd: KnownCrowd) -> Questions:
        """Choose questions.

        Raises:
            ValueError: if somebody who may be asked has no cost, or a cost is not above zero.
        """
        names = crowd.annotators
        wanted = {*names} if self.annotators is None else {*self.annotators}
        costs = None
        if self.costs is not None:
            missing = [name for name in names if name in wanted and name not in self.costs]
            if missing:
                raise ValueError(
                    f"`costs` must have a cost for everybody who may be asked, got none for {some_of(missing)}."
                )
            costs = torch.tensor([float(self.costs.get(name, 1.0)) for name in names])
        return choose_questions(
            crowd.log_forecast, crowd.log_rows, self.budget, crowd.votes,
            gain=self.gain, groups=crowd.groups, costs=costs,
            askable=torch.tensor([name in wanted for name in names]),
            most_per_annotator=self.most_per_annotator, most_per_item=self.most_per_item,
            at_least=self.at_least,
        )  # fmt: skip

    def gains(self, found: Questions) -> list[float]:
        """Take the gains by which questions were chosen."""
        return (found.information if self.gain == "information" else found.accuracy).tolist()


__all__ = ["KnownCrowd", "Limits", "known_crowd", "weight_of"]
