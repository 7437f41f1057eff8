"""What is asked of a trainer by those who stand below it: start, search and watch."""

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor
from transformers import TrainerState
from transformers.trainer_utils import PredictionOutput

from ..model.modeling_maxmig import CrowdModel
from .training_args import MaxMIGTrainingArguments


class CrowdTraining(Protocol):
    """A `CrowdTrainer`, as far as they know it; `Trainer` says what is not said here."""

    args: MaxMIGTrainingArguments
    train_dataset: Any
    eval_dataset: Any
    state: TrainerState
    found_rate: float | None
    pair_is_ours: bool
    diverged: bool

    @property
    def crowd_model(self) -> CrowdModel:
        """The pair, without what accelerate has put around it."""

    @property
    def gold_labels(self) -> Tensor | None:
        """(N,) int64, those of the training items that the user hands over, -1 for none."""

    @property
    def searches(self) -> bool:
        """Whether the rate is searched for."""

    def crowd_of(self, dataset: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """Read the votes of a data set, checked: pairs of (n, K) annotators and annotations."""

    def posteriors_of(
        self, dataset: Any
    ) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor]]:
        """Yield the three (n, C) log-probabilities of part of the items, and their votes."""

    def sibling(
        self, model: CrowdModel, rows: list[int], share: float, **changes: Any
    ) -> "CrowdTraining":
        """Make a trainer of another model for part of this training, which says nothing."""

    def features_of(self, dataset: Any) -> Tensor | None:
        """Compute what the classifier's output layer reads of each item: (N, D); None if it has none."""

    def train(self) -> Any:
        """Train."""

    def predict(self, test_dataset: Any) -> PredictionOutput:
        """Predict the three posteriors."""

    def is_world_process_zero(self) -> bool:
        """Whether this process is the one that speaks."""
