"""Callbacks for two moments of a training: its beginning, and the last step of each epoch."""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState


class BeginOfTraining(TrainerCallback):
    """Calls a function when a training begins or resumes, as soon as its state exists."""

    def __init__(self, begin: Callable[[TrainerState], None]) -> None:
        self.begin = begin

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Call the function."""
        self.begin(state)


class EndOfEpoch(TrainerCallback):
    """Calls a function at the last step of each epoch, before anything is evaluated or saved."""

    def __init__(self, end_epoch: Callable[[float], None]) -> None:
        self.end_epoch = end_epoch
        self.done_at = -1

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forget the previous training."""
        self.done_at = -1

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Call the function if the epoch is complete, so that a checkpoint of this step includes it."""
        if state.epoch == round(state.epoch):
            self._call(state)

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Call the function if the epoch ended without a full count, as a stream of unknown length does."""
        if self.done_at != state.global_step:
            self._call(state)

    def _call(self, state: TrainerState) -> None:
        self.done_at = state.global_step
        self.end_epoch(min(1.0, state.global_step / state.max_steps))
