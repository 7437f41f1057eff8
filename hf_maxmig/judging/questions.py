"""What to ask next, and whom, as a table that people read: each question with the reason for it.

Which questions they are is decided in `model/asking.py`. Here the forecasts, how annotators answer, and who
copies whom are put together for it.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from ..data.flat_votes import FlatVotes
from ..model.annotator_rows import annotator_rows, with_votes
from ..model.asking import Questions, choose_questions, expected_information
from ..model.votes import Votes
from .copies import copies_among
from .evidence import Evidence
from .relabel import spreadsheet_text
from .verdicts import counted

SURE = 0.9  # probability from which the model hesitates no more
COLUMNS = ("item", "annotator", "expected_gain", "reason")
FEW = 0.1  # share of those asked who may do better where somebody does well


@dataclass(frozen=True)
class Crowd:
    """What a crowd has said and can be expected to say; M annotators, the new ones last.

    Args:
        log_forecast: (N, C), log-probabilities of the items' classes.
        log_rows: (M, C, C), log P(m says r | c).
        votes: of the N items.
        groups: (M,) int64, a number per group of copies.
        known: (M,) bool, of whom anything is known: the others are taken for average annotators.
        annotators: M names.
        classes: C names.
    """

    log_forecast: Tensor
    log_rows: Tensor
    votes: Votes
    groups: Tensor
    known: Tensor
    annotators: list[str]
    classes: list[str]

    @classmethod
    def of(
        cls,
        log_h: Tensor,
        log_forecast: Tensor,
        weight: Tensor | None,
        votes: Votes,
        annotators: Sequence[str],
        classes: Sequence[str],
        new: Sequence[str] = (),
        groups: Tensor | None = None,
    ) -> "Crowd":
        """Find out how annotators answer, and who copies whom.

        Those without votes on these items are known by W; if it says nothing of them, they get everybody's rows.

        Args:
            log_h: (N, C), log-probabilities of the classifier.
            log_forecast: (N, C), log-probabilities by classifier and votes.
            weight: (M, C, C), W: annotator, scored class, reported class. None if a method has none: then votes
                count as much as their annotators' rows say, and `log_forecast` is not used.
            votes: of the N items.
            annotators: M names.
            classes: C names.
            new: names of people who have not voted yet: they are taken for the average annotator.
            groups: (M,) int64, a number below M per group of copies, if they have been looked for already.
        """
        number, C = len(annotators), len(classes)
        W = torch.zeros(number, C, C) if weight is None else weight
        has_votes = bool(votes.annotated.any())
        if weight is None and has_votes:
            W = annotator_rows(log_h, W, [votes])
        if groups is None and has_votes:
            groups = copies_among(Evidence(log_h, W, FlatVotes.read([votes])))[1]
        groups = torch.arange(number) if groups is None else groups
        # A last annotator who has not voted gets everybody's rows, and lends them to all who are new.
        log_rows = annotator_rows(
            log_h, torch.cat([W, W.new_zeros(1, C, C)]), [votes], torch.cat([groups, torch.tensor([number])])
        )  # fmt: skip
        if weight is None:
            log_forecast = with_votes(log_h, log_rows[:-1], [votes], groups)
        cast = torch.bincount(votes.annotators[votes.given], minlength=number)
        trained = (W != 0).any(dim=(1, 2))
        silent = trained & (cast == 0)
        log_rows[:-1][silent] = W[silent].log_softmax(dim=2).to(log_rows.dtype)
        log_rows = torch.cat([log_rows[:-1], log_rows[-1:].expand(len(new), -1, -1)])
        groups = torch.cat([groups, torch.arange(number, number + len(new))])
        known = torch.cat([trained | (cast > 0), torch.zeros(len(new), dtype=torch.bool)])
        return cls(log_forecast, log_rows, votes, groups, known, [*annotators, *new], list(classes))


@dataclass(frozen=True)
class Limits:
    """What may be asked: see `choose_questions`; people by name.

    Args:
        budget: what all questions may cost together; their number, if there are no costs.
        gain: `information` or `accuracy`.
        costs: of one answer, by annotator; 1 by default.
        most_per_annotator: questions.
        most_per_item: questions.
        at_least: the gain that is worth a question.
        annotators: who may be asked; everybody by default.
    """

    budget: float
    gain: str = "information"
    costs: Mapping[str, float] | None = None
    most_per_annotator: int | None = None
    most_per_item: int | None = None
    at_least: float = 0.0
    annotators: Sequence[str] | None = None

    def new(self, known: Sequence[str]) -> list[str]:
        """Name those who may be asked and are not known, each once.

        Raises:
            TypeError: if `annotators` are no list of names.
        """
        if isinstance(self.annotators, str):
            raise TypeError(f"`annotators` must be a list of names, got {self.annotators!r}.")
        return [name for name in dict.fromkeys(self.annotators or ()) if name not in {*known}]

    def choose(self, crowd: Crowd) -> Questions:
        """Choose questions.

        Raises:
            ValueError: if somebody who may be asked has no cost, or a number is not of its range.
        """
        names = crowd.annotators
        wanted = {*names} if self.annotators is None else {*self.annotators}
        costs = None
        if self.costs is not None:
            missing = [name for name in names if name in wanted and name not in self.costs]
            if missing:
                raise ValueError(
                    f"`costs` must have a cost for everybody who may be asked, got none for {missing[0]!r} "
                    f"({counted(len(missing), 'annotator')} in all)."
                )
            costs = torch.tensor([float(self.costs.get(name, 1.0)) for name in names])
        return choose_questions(
            crowd.log_forecast, crowd.log_rows, self.budget, crowd.votes,
            gain=self.gain, groups=crowd.groups, costs=costs,
            askable=torch.tensor([name in wanted for name in names]),
            most_per_annotator=self.most_per_annotator, most_per_item=self.most_per_item,
            at_least=self.at_least,
        )  # fmt: skip


def questions_table(
    crowd: Crowd, limits: Limits, items: Mapping[str, Sequence[Any]] | None = None
) -> Dataset:
    """Choose questions, and say why.

    Args:
        crowd: what is known.
        limits: what may be asked.
        items: a column that names the N items, if they have names.

    Returns:
        One row per question, the most valuable first: `item`, the row number; the item's name, if `items` are given
        (a column `item` becomes `item_name`);
        `annotator`; `expected_gain`, in nats, or as a difference of probabilities where the gain is accuracy; and
        `reason`, a sentence.
    """
    return table_of(crowd, limits, limits.choose(crowd), items)


def table_of(
    crowd: Crowd,
    limits: Limits,
    found: Questions,
    items: Mapping[str, Sequence[Any]] | None = None,
) -> Dataset:
    """Say why questions were chosen: see `questions_table`."""
    gain = found.information if limits.gain == "information" else found.accuracy
    columns: dict[str, list[Any]] = {"item": found.item.tolist()}
    for name, values in (items or {}).items():
        columns[f"{name}_name" if name in COLUMNS else name] = [values[i] for i in columns["item"]]
    columns |= {
        "annotator": [crowd.annotators[m] for m in found.annotator],
        "expected_gain": gain.tolist(),
        "reason": reasons(crowd, limits, found),
    }
    return Dataset.from_dict(columns)


def as_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    r"""Write a table as CSV, in which text that a spreadsheet would take for a formula has an apostrophe before it.

    Args:
        names: of the columns.
        rows: their values.

    Example:
        >>> as_csv(["who", "nats"], [["=ann", 0.5]])
        "who,nats\r\n'=ann,0.5\r\n"
    """
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow([spreadsheet_text(name) for name in names])
    writer.writerows([spreadsheet_text(value) for value in row] for row in rows)
    return file.getvalue()


def reasons(crowd: Crowd, limits: Limits, found: Questions) -> list[str]:
    """Say in a sentence each why these questions are asked.

    Args:
        crowd: what is known.
        limits: who may be asked.
        found: Q questions, in order.

    Returns:
        Q sentences.
    """
    names, classes = crowd.annotators, crowd.classes
    asked = np.isin(names, list(names if limits.annotators is None else limits.annotators))
    top = crowd.log_forecast[found.item].exp().topk(2, dim=1)
    skill: dict[tuple[int, int], np.ndarray] = {}
    before: dict[int, str] = {}
    sentences = []
    for item, who, chances, pair in zip(
        found.item.tolist(), found.annotator.tolist(), top.values.tolist(), top.indices.tolist(), strict=True
    ):  # fmt: skip
        key = (min(pair), max(pair))
        if key not in skill:
            even = torch.full((len(classes),), -torch.inf)
            even[list(key)] = float(np.log(0.5))
            skill[key] = expected_information(even, crowd.log_rows).numpy()
        better = int((skill[key][asked] > skill[key][who] + 1e-4).sum())
        alike = int((np.abs(skill[key][asked] - skill[key][who]) <= 1e-4).sum()) - 1
        unsure = _unsure([classes[c] for c in pair], chances)
        name = names[who]
        if not crowd.known[who]:
            good = f"{name} has not voted yet and is taken for an average annotator"
        elif better == 0 and alike == 0:
            good = f"{name} tells these apart better than anybody else"
        elif better == 0:
            good = f"nobody tells these apart better than {name}"
        elif better <= max(1, FEW * asked.sum()):
            good = f"only {better} of {asked.sum()} tell these apart better than {name}"
        else:
            good = f"{name} tells most here of those who are left for it"
        if item in before:
            unsure = f"{before[item]} may not settle it: {unsure}"
        before[item] = f"the answer of {name}"
        sentences.append(f"{unsure}; {good}")
    return sentences


def _unsure(names: Sequence[str], chances: Sequence[float]) -> str:
    """Say between which classes a model hesitates."""
    first, second = (f"{name} ({chance:.0%})" for name, chance in zip(names, chances, strict=True))
    if chances[0] >= SURE:
        return f"the model says {first}, but it could be {second}"
    return f"the model hesitates between {first} and {second}"
