"""What more votes would bring, and what those so far have brought: for the report.

The questions come from `questions.py`. Payment goes by the information that each annotator has given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from ..model.known_crowd import Limits
from .annotators import AnnotatorReport
from .questions import Crowd, table_of

MOST = 1000  # questions
SHARES = 3  # nobody is asked more often than this many times an equal share


@dataclass(frozen=True)
class Outlook:
    """The questions that would tell most, and how sure the labels would be after their answers.

    Args:
        questions: from `questions_table`, the most valuable first.
        right: (Q + 1,), the share of the labels that is expected to be right after 0, 1, ..., Q answers.
        unsure: (Q + 1,), what is expected to be unknown of a label then, in nats.
        most_per_annotator: how many questions one annotator gets at most.
    """

    questions: Dataset
    right: np.ndarray
    unsure: np.ndarray
    most_per_annotator: int

    @classmethod
    def of(cls, crowd: Crowd, items: Mapping[str, Sequence[Any]] | None = None) -> "Outlook":
        """Ask for as many votes as there are, but at most `MOST`.

        Args:
            crowd: what is known.
            items: a column that names the N items, if they have names.
        """
        budget = min(MOST, max(1, int(crowd.votes.given.sum())))
        share = -(-SHARES * budget // len(crowd.annotators))
        limits = Limits(budget, most_per_annotator=share)
        found = limits.choose(crowd)
        zeta = crowd.log_forecast.double().exp()
        right = float(zeta.amax(dim=1).mean()) if len(zeta) else float("nan")
        unsure = float(torch.special.entr(zeta).sum(dim=1).mean()) if len(zeta) else float("nan")

        def after(gains: torch.Tensor) -> np.ndarray:
            return np.concatenate([[0.0], gains.double().cumsum(dim=0).numpy()]) / max(1, len(zeta))

        return cls(
            table_of(crowd, limits, found, items),
            right + after(found.accuracy),
            np.maximum(unsure - after(found.information), 0.0),
            share,
        )


@dataclass(frozen=True)
class Payment:
    """What an annotator has given.

    Args:
        annotator: their number.
        nats: the information of all their votes together.
        share: of the information that all have given.
        voices: how many annotators share the information, because they copy each other.
    """

    annotator: int
    nats: float
    share: float
    voices: int

    @classmethod
    def of(cls, report: AnnotatorReport) -> "list[Payment]":
        """Value what each has given: votes times nats per vote. A group of copies is worth one of them.

        Args:
            report: what is known of the annotators.

        Returns:
            Those who have voted, the largest share first; empty if nobody has given any information.
        """
        voices = np.ones(len(report.annotators), dtype=int)
        for group in report.voices():
            voices[group] = len(group)
        nats = np.nan_to_num(report.votes * report.information) / voices
        total = float(nats.sum())
        if total <= 0:
            return []
        order = np.argsort(-nats, kind="stable")
        return [
            cls(int(m), float(nats[m]), float(nats[m] / total), int(voices[m]))
            for m in order
            if report.votes[m] > 0
        ]
