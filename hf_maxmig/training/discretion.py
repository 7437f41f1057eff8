"""What callbacks see where the annotators' names must not leave the machine: a model without them.

A tracker sends the model's config to where it keeps its runs, and nobody knows which callbacks are
trackers. Some upload checkpoints too, which hold the names: those are refused.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

# Callbacks of transformers that upload models or checkpoints: what turns that on, by default or not.
_ENVIRONMENT = {
    "WandbCallback": ("WANDB_LOG_MODEL", "false"),
    "MLflowCallback": ("HF_MLFLOW_LOG_ARTIFACTS", "false"),
    "DagsHubCallback": ("HF_DAGSHUB_LOG_ARTIFACTS", "false"),
    "CometCallback": ("COMET_LOG_ASSETS", "false"),
    "ClearMLCallback": ("CLEARML_LOG_MODEL", "true"),
    "DVCLiveCallback": ("HF_DVCLIVE_LOG_MODEL", "false"),
    "SwanLabCallback": ("SWANLAB_LOG_MODEL", "false"),
}
_ATTRIBUTES = ("_log_model", "_log_checkpoints", "sync_checkpoints")  # and given by hand
_OFF = ("", "0", "false", "f", "no", "n", "off", "none")


class DiscreetHandler(CallbackHandler):
    """`CallbackHandler` that hides the annotators' names, unless the arguments share them."""

    hidden: list[str] | None = None  # while a callback is called

    def call_event(
        self,
        event: str,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> TrainerControl:
        """Call it on all callbacks."""
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
        """Have the names back for a while: a callback may save, evaluate or report by its trainer."""
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
        ValueError: naming the first, and what turns it off.
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
