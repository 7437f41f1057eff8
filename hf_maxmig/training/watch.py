"""Watch: when the guards are asked, and of which numbers; what they say is `guards.py`'s."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset

from ..data.collator import padded_annotations
from ..data.columns import has_crowd_columns, has_votes
from ..model.votes import is_given
from .guards import Guards, merged_classes, permuted_classes, too_few_votes
from .training import CrowdTraining

GUARDED_ITEMS = 2000  # and 20 a class: how many items the guards look at
CLASSES_FORMED = 0.75  # share of the training after which what is still merged is likely to stay so


class Watch:
    """Watches over one training.

    Args:
        trainer: whose training it is.
        on: whether anything is looked at and said.
    """

    def __init__(self, trainer: CrowdTraining, on: bool) -> None:
        self.trainer = trainer
        self.on = on
        self.guards = Guards(on=on and trainer.is_world_process_zero())
        self.asked_for_classes = False
        self._seen: tuple[NDArray[np.floating], ...] | None = None

    def begin(self) -> None:
        """Before training: are there votes enough?"""
        trainer = self.trainer
        # Of a stream all would be read for it.
        if not self.on or not has_crowd_columns(trainer.train_dataset):
            return
        config, items = trainer.crowd_model.config, 0
        votes = torch.zeros(config.num_annotators, dtype=torch.int64)
        for annotators, annotations in trainer.crowd_of(trainer.train_dataset):
            given = is_given(annotators, annotations)
            votes += torch.bincount(annotators[given], minlength=len(votes))
            items += int(given.any(dim=1).sum())
        self.guards.say("votes", too_few_votes(votes, items, config.num_labels))

    def step(self, loss: Tensor) -> None:
        """After a training step: remember its gain."""
        if self.on and self.trainer.crowd_model.loss_is_minus_gain:
            self.guards.note_step(-loss)

    def see(self, predictions: tuple[NDArray[np.floating], ...]) -> None:
        """While an evaluation is measured: keep what it predicted."""
        if self.on:
            self._seen = predictions

    def evaluated(self, eval_dataset: Any, prefix: str, metrics: dict[str, float]) -> None:
        """After an evaluation in training: are the items memorised, what became of the classes?"""
        if not self.on:
            return
        trainer = self.trainer
        dataset = trainer.eval_dataset if eval_dataset is None else eval_dataset
        dataset = trainer.eval_dataset[dataset] if isinstance(dataset, str) else dataset
        seen, self._seen = self._seen, None
        if isinstance(dataset, dict):  # each of them has been here already
            return
        gain, high = (metrics.get(f"{prefix}_{name}") for name in ("gain", "gain_high"))
        if trainer.crowd_model.loss_is_minus_gain and gain is not None and high is not None:
            self.guards.note_evaluation(prefix, gain, high)
            if not trainer.args.load_best_model_at_end:
                message = self.guards.overfitted(prefix, metrics[f"{prefix}_gain_ceiling"])
                self.guards.say("overfitted", message)
        formed = trainer.state.global_step >= CLASSES_FORMED * trainer.state.max_steps
        if formed and seen and has_votes(dataset) and len(seen[0]) == len(dataset):
            rows = self._some_rows(len(dataset))
            told = tuple(torch.from_numpy(p[rows]) for p in seen)
            self._ask_for_classes(told, trainer.crowd_of(dataset.select(rows)))

    def end(self) -> None:
        """After training: look at some training items, if no evaluation has shown the classes."""
        dataset = self.trainer.train_dataset
        if not self.on or self.asked_for_classes or not hasattr(dataset, "__len__"):
            return
        rows = self._some_rows(len(dataset))
        some = dataset.select(rows) if isinstance(dataset, Dataset) else Subset(dataset, rows)
        parts = list(self.trainer.posteriors_of(some))
        told = tuple(torch.cat([part[0][k] for part in parts]) for k in range(3))
        self._ask_for_classes(told, ((who, said) for _, who, said in parts))

    def _some_rows(self, number: int) -> list[int]:
        step = -(-number // (GUARDED_ITEMS + 20 * self.trainer.crowd_model.config.num_labels))
        return list(range(0, number, max(1, step)))

    def _ask_for_classes(
        self, told: tuple[Tensor, ...], crowd: Iterable[tuple[Tensor, Tensor]]
    ) -> None:
        self.asked_for_classes = True
        model = self.trainer.crowd_model
        annotations = padded_annotations(crowd)
        voted = (annotations >= 0).any(dim=1)
        if not voted.any():
            return
        h, g, forecast = (t[voted].exp() for t in told)
        annotations, classes = annotations[voted], model.config.class_names
        message = merged_classes("classifier", h, annotations, classes)
        if message is None and hasattr(model, "aggregator"):
            message = merged_classes("aggregator", g, annotations, classes, usual=h.mean(dim=0))
        self.guards.say("merged", message)
        named = self.trainer.args.name_classes and model.blind_to_class_names
        if message is None and not named:  # else they are named when training ends
            self.guards.say("permuted", permuted_classes(forecast, annotations, classes))
