"""Moments of a training that something else waits for: its beginning, and the last step of each epoch."""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState


class BeginOfTraining(TrainerCallback):
    """Calls when the state of a training is there, that of a resumed one too."""

    def __init__(self, begin: Callable[[TrainerState], None]) -> None:
        self.begin = begin

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Call."""
        self.begin(state)


class EndOfEpoch(TrainerCallback):
    """Calls at the last step of each epoch, before anything is evaluated or saved there."""

    def __init__(self, end_epoch: Callable[[float], None]) -> None:
        self.end_epoch = end_epoch
        self.done_at = -1

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forget an earlier training."""
        self.done_at = -1

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Call if the epoch is full: a checkpoint of this very step has it then."""
        if state.epoch == round(state.epoch):
            self._call(state)

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Call if the epoch ended otherwise: a stream does not know its length."""
        if self.done_at != state.global_step:
            self._call(state)

    def _call(self, state: TrainerState) -> None:
        self.done_at = state.global_step
        self.end_epoch(min(1.0, state.global_step / state.max_steps))
