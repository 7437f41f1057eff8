"""A training stops when a number is no longer finite, and no such model is saved.

The check never makes the host wait for a device that computes ahead: the notes of `finite.py` are read
before each log, evaluation and save, and at the end of each epoch. By then the weights are lost, but not
the checkpoints. On a CPU the training stops before the step that would spoil the weights.
"""

from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from ..model.finite import FirstNonFinite, non_finite_weight
from .saving import SharingTrainer

LEAST_SCALE = (
    2.0**-20
)  # of a loss in half precision: gradients that are too large at it are not finite


class DivergedError(ValueError):
    """A number of the training is no longer finite."""


class StoppingTrainer(SharingTrainer):
    """The part of the trainer that stops a training that has diverged.

    `Trainer` itself would go on and save, and one NaN makes all weights NaN.
    """

    _short = False  # whether this is one of the short trainings before a training

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin_noting(None)

    def _begin_noting(self, checkpoint: str | None) -> None:
        """Forget an earlier training; a resumed one has a good checkpoint already."""
        self._good_checkpoint = checkpoint
        self._losses = FirstNonFinite(self.args.device)
        self._gradients = FirstNonFinite(self.args.device)

    def check_numbers(self) -> None:
        """Raise `DivergedError` if a loss or a gradient was not finite; the host waits for the device here."""
        scaler = getattr(self.accelerator, "scaler", None)
        losses, gradients = self._losses.found(), self._gradients.found()
        if scaler is not None and self.args.world_size > 1:  # only one of them may have seen it
            seen = torch.tensor(losses or (0, 0.0), dtype=torch.float32, device=self.args.device)
            gathered = self.accelerator.gather(seen[None])
            step, value = max(gathered.tolist(), key=lambda pair: pair[0])
            losses = (int(step), value) if step else None
        if losses is not None and (gradients is None or losses[0] <= gradients[0]):
            self._stop(f"the loss must be finite, got {losses[1]:g}", losses[0])
        if gradients is not None:
            self._stop(f"the gradient must be finite, got a norm of {gradients[1]:g}", gradients[0])
        if scaler is not None and scaler.is_enabled() and scaler.get_scale() < LEAST_SCALE:
            self._stop(
                f"the gradient must be finite, got none that is at a loss scale of {scaler.get_scale():g}",
                self.state.global_step,
            )

    def _stop(self, what: str, step: int) -> NoReturn:
        self.is_in_train = False
        where = "short training before the training" if self._short else "training"
        saved = "none was saved"
        if self._good_checkpoint is not None:
            saved = f"it is {self._good_checkpoint}"
        half = " `fp16` ends at 65,504: try `bf16`." if self.args.fp16 else ""
        raise DivergedError(
            f"{what} at step {step} of {self.state.max_steps} of a {where}: it is stopped. The last good checkpoint: {saved}. "
            f"Look for huge numbers in the items, or lower `learning_rate` or `aggregator_learning_rate`.{half}"
        )

    def _note_loss(self, loss: Tensor) -> None:
        self._losses.note(loss.mean(), self.state.global_step + 1)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        # With a loss scale, a step with too large gradients is skipped and the scale is lowered.
        if getattr(self.accelerator, "scaler", None) is None and norm is not None:
            whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            whole = torch.as_tensor(whole, device=self.args.device)
            self._gradients.note(whole, self.state.global_step + 1)
        if self.args.device.type == "cpu":
            self.check_numbers()
        return norm

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        control = self.control
        if control.should_log or control.should_evaluate or control.should_save:
            self.check_numbers()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> TrainOutput:
        self.check_numbers()
        self._check_weights(together=self.args.world_size > 1)
        return super()._finalize_training(*args, **kwargs)

    def _check_weights(self, together: bool) -> None:
        """Raise `DivergedError` if a weight is not finite; on all devices together, if all come here."""
        name = non_finite_weight(self.model)
        if together:
            lost = torch.tensor([name is not None], device=self.args.device)
            if bool(self.accelerator.gather(lost).any()):
                name = name or "one of another device"
        if name is not None:
            self._stop(
                f"the weights must be finite, got one that is not, {name},", self.state.global_step
            )

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self._good_checkpoint = f"{self._get_output_dir(trial=trial)}/{folder}"

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save as `Trainer` does, unless a weight is not finite.

        Args:
            output_dir: as in `Trainer`.
            _internal_call: as in `Trainer`.

        Raises:
            DivergedError: if a weight is not finite.
        """
        # A single process may save, unless each has a part of the weights.
        self._check_weights(together=self.is_fsdp_enabled or self.is_deepspeed_enabled)
        super().save_model(output_dir, _internal_call)
