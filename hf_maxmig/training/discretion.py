"""Annotators' names are hidden from callbacks if they must not leave the machine.

Trackers send the model's config to their servers, and callbacks do not say whether they are trackers. So no
callback sees the names. Trackers that also upload checkpoints, which hold the names, are refused.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

# Callbacks of transformers that upload models or checkpoints: the variable that turns it on, and its default.
_ENVIRONMENT = {
    "WandbCallback": ("WANDB_LOG_MODEL", "false"),
    "MLflowCallback": ("HF_MLFLOW_LOG_ARTIFACTS", "false"),
    "DagsHubCallback": ("HF_DAGSHUB_LOG_ARTIFACTS", "false"),
    "CometCallback": ("COMET_LOG_ASSETS", "false"),
    "ClearMLCallback": ("CLEARML_LOG_MODEL", "true"),
    "DVCLiveCallback": ("HF_DVCLIVE_LOG_MODEL", "false"),
    "SwanLabCallback": ("SWANLAB_LOG_MODEL", "false"),
}
_ATTRIBUTES = ("_log_model", "_log_checkpoints", "sync_checkpoints")  # attributes that turn it on
_OFF = ("", "0", "false", "f", "no", "n", "off", "none")


class DiscreetHandler(CallbackHandler):
    """`CallbackHandler` that hides the annotators' names, unless the arguments share them."""

    hidden: list[str] | None = None  # the names, while a callback runs

    def call_event(
        self,
        event: str,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> TrainerControl:
        """Call the event on all callbacks."""
        with self._hiding(getattr(args, "hub_annotators", "names") != "names"):
            return super().call_event(event, args, state, control, **kwargs)

    @contextlib.contextmanager
    def _hiding(self, asked: bool) -> Iterator[None]:
        config = getattr(self.model, "config", None)
        names = getattr(config, "annotators", None)
        if not asked or config is None or names is None:
            yield
            return
        config.annotators, self.hidden = None, names
        try:
            yield
        finally:
            config.annotators, self.hidden = names, None

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """Show the names temporarily: a callback may save, evaluate or report through its trainer."""
        if self.hidden is None:
            yield
            return
        config, names = self.model.config, self.hidden
        config.annotators, self.hidden = names, None
        try:
            yield
        finally:
            config.annotators, self.hidden = None, names


def check_trackers(callbacks: list[Any]) -> None:
    """Refuse trackers that upload checkpoints, which hold the annotators' names.

    Args:
        callbacks: of a trainer that does not share the names.

    Raises:
        ValueError: for the first such tracker; the message says how to turn its uploads off.
    """
    for callback in callbacks:
        for kind in type(callback).__mro__:
            name, default = _ENVIRONMENT.get(kind.__name__, ("", ""))
            value = os.environ.get(name, default) if name else ""
            for attribute in () if name else _ATTRIBUTES:
                value = value or getattr(callback, attribute, "")
            if str(getattr(value, "value", value)).lower() not in _OFF:
                how = f"set {name}=false" if name else "turn it off"
                raise ValueError(
                    f"`hub_annotators` must be 'names' where a tracker uploads checkpoints, which hold the annotators' "
                    f"names: {type(callback).__name__} does. To hide them, {how}."
                )
