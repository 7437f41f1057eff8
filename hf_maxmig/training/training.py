"""The parts of a training that the search for its start needs, and a way to train briefly."""

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from transformers.trainer_utils import PredictionOutput

from ..data.collator import CrowdCollator, crowd_batches
from ..model.aggregators import AGGREGATORS
from ..model.modeling_maxmig import CrowdModel
from ..model.votes import Votes
from .training_args import MaxMIGTrainingArguments


class TrainBriefly(Protocol):
    """Trains briefly and silently."""

    def __call__(
        self,
        model: CrowdModel,
        rows: list[int],
        share: float,
        rate: float | None = None,
        seed: int | None = None,
    ) -> Callable[[Any], PredictionOutput]:
        """Train a model, from its present state, on some of the items.

        Args:
            model: it is changed.
            rows: of the training set.
            share: of the training's epochs or steps.
            rate: of the aggregator; as the training has it by default.
            seed: of batches and dropout; that of the training by default.

        Returns:
            A function that predicts a data set by the model.

        Raises:
            DivergedError: if a number is no longer finite.
        """


@dataclass(frozen=True)
class Training:
    """A training before its first step.

    Args:
        model: the model to be trained.
        args: of the training.
        train_dataset: the training set.
        eval_dataset: the evaluation set, if there is one.
        start_from: the trainer's argument of that name.
        gold: returns the gold labels of the training items that the user hands over.
        is_ours: whether the trainer has made the model, so that its parts may be chosen.
        own_optimizer: whether the user has given an optimizer, with its rates.
        train_briefly: trains another model briefly.
        features_of: computes the input of a model's output layer for each item of a data set, (N, D);
            None if that is not one vector per item.
        collate: makes a batch of examples.
        unread: what the features of a classifier lack, as far as it is known.
    """

    model: CrowdModel
    args: MaxMIGTrainingArguments
    train_dataset: Any
    eval_dataset: Any
    start_from: Any
    gold: Callable[[], Tensor | None]
    is_ours: bool
    own_optimizer: bool
    train_briefly: TrainBriefly
    features_of: Callable[[CrowdModel, Any], Tensor | None]
    collate: Callable[[list[Any]], dict[str, Any]]
    unread: MutableMapping[nn.Module, str | None] = field(default_factory=WeakKeyDictionary)

    @property
    def searches(self) -> bool:
        """Whether rate, prior and aggregator are searched for.

        They are not if the method does not maximise the gain, by which settings are judged; if the rate
        or a whole optimizer is given; or if the model was given with an aggregator that is on trial: its
        parameters for pairs of votes start at random, and stay so at a low rate.
        """
        if not self.model.loss_is_minus_gain:
            return False
        kind = AGGREGATORS.get(getattr(self.model.config, "aggregator", ""))
        known = self.is_ours or (kind is not None and not kind.on_trial)
        return self.args.searches_rate and not self.own_optimizer and known

    @property
    def gold_labels(self) -> Tensor | None:
        """(N,) int64, the gold labels that the user hands over, -1 for none; None if none are used."""
        return self.gold()

    @property
    def uses_gold_labels(self) -> bool:
        """Whether any gold label is used."""
        return self.gold_labels is not None and bool((self.gold_labels >= 0).any())

    def crowd_of(self, dataset: Any) -> Iterator[Votes]:
        """Read the votes of a data set, checked, a part at a time."""
        return votes_of(dataset, self.model)


def votes_of(dataset: Any, model: CrowdModel) -> Iterator[Votes]:
    """Read the votes of a data set, a part at a time.

    Args:
        dataset: with crowd columns.
        model: whose annotators and classes they name.

    Returns:
        The votes, padded.

    Raises:
        ValueError: if an annotator or a class is not the model's.
    """
    config = model.config
    collator = CrowdCollator(config.num_annotators, config.num_labels)
    return crowd_batches(dataset, collator)
