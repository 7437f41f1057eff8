"""What to ask next, and whom, as a table that people read: each question with the reason for it.

Which questions they are is decided in `model/asking.py`, and how annotators answer in `model/known_crowd.py`. Here
it is found who copies whom.
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
from ..model.asking import Questions, expected_information
from ..model.known_crowd import KnownCrowd, Limits, known_crowd
from ..model.votes import Votes
from .copies import copies_among
from .evidence import Evidence
from .relabel import spreadsheet_text

SURE = 0.9  # probability from which the model hesitates no more
COLUMNS = ("item", "annotator", "expected_gain", "reason")
FEW = 0.1  # share of those asked who may do better where somebody does well


@dataclass(frozen=True)
class Crowd(KnownCrowd):
    """What a crowd has said and can be expected to say, with the names of the classes.

    Args:
        classes: C names.
    """

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
        """Find out how annotators answer, and who copies whom: see `known_crowd`.

        Args:
            log_h: (N, C), log-probabilities of the classifier.
            log_forecast: (N, C), log-probabilities by classifier and votes.
            weight: (M, C, C), W; None if a method has none.
            votes: of the N items.
            annotators: M names.
            classes: C names.
            new: names of people who have not voted yet.
            groups: (M,) int64, a number below M per group of copies, if they have been looked for already.
        """

        def found(weight: Tensor) -> Tensor:
            return copies_among(Evidence(log_h, weight, FlatVotes.read([votes])))[1]

        known = known_crowd(
            log_h, log_forecast, weight, votes, annotators, new, found if groups is None else groups
        )
        return cls(**vars(known), classes=list(classes))


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
    columns: dict[str, list[Any]] = {"item": found.item.tolist()}
    for name, values in (items or {}).items():
        columns[f"{name}_name" if name in COLUMNS else name] = [values[i] for i in columns["item"]]
    columns |= {
        "annotator": [crowd.annotators[m] for m in found.annotator],
        "expected_gain": limits.gains(found),
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
