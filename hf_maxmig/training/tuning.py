"""The search over hyperparameters of `Trainer`, with trials that do not depend on each other.

`Trainer.hyperparameter_search` makes the model before it knows a trial's arguments, and keeps the arguments
of earlier trials. By default it minimises the sum of all metrics. A gain, its ceiling and its interval have
a sum that grows with the gain, so the gain would be minimised.
"""

from collections.abc import Callable
from typing import Any

from transformers.hyperparameter_search import (
    ALL_HYPERPARAMETER_SEARCH_BACKENDS,
    default_hp_search_backend,
)
from transformers.trainer_utils import BestRun, HPSearchBackend, TrainOutput
from transformers.utils import logging

from .stopping import DivergedError, StoppingTrainer

logger = logging.get_logger(__name__)


class TunedTrainer(StoppingTrainer):
    """The part of the trainer that searches over hyperparameters."""

    model: Any
    model_wrapped: Any
    pair_is_ours: bool
    _wrap: Callable[[Any], Any]
    _before_trials: dict[str, Any] | None = None  # the arguments, as they were given

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int = 20,
        direction: str | list[str] = "minimize",
        backend: str | HPSearchBackend | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun | list[BestRun]:
        """Search as `Trainer` does, by the gain on the evaluation set.

        A trial is judged by its final model, after the best epoch was loaded, classes were named and W got
        its strength. A trial whose loss is no longer finite is left out with a warning. The arguments are
        restored afterwards.

        Args:
            hp_space: as in `Trainer`; also the fields of `MaxMIGTrainingArguments`.
            compute_objective: as in `Trainer`; by default the gain on the evaluation set, minus the
                gain if the direction is to minimise. No gold label is used.
            n_trials: as in `Trainer`.
            direction: as in `Trainer`.
            backend: as in `Trainer`.
            hp_name: as in `Trainer`.
            **kwargs: as in `Trainer`; for optuna, no `n_jobs`.

        Returns:
            As `Trainer.hyperparameter_search`.

        Raises:
            ImportError: if the backend is not installed.
            ValueError: if the trainer has no `model_init`, if it has no single `eval_dataset` for the
                default objective, or if every trial was left out.
        """
        name = _available(backend)
        if self.model_init is None:
            raise ValueError(
                "`model_init` must be given to the trainer for a search over hyperparameters, got a model: each trial "
                "starts from a new one."
            )
        if kwargs.get("n_jobs", 1) != 1:
            raise ValueError(
                f"`n_jobs` must be 1, got {kwargs['n_jobs']}: the trials share one trainer."
            )
        if compute_objective is None:
            compute_objective = self._default_objective(direction)
        self._before_trials = dict(vars(self.args))
        try:
            return super().hyperparameter_search(
                hp_space, compute_objective, n_trials, direction, name, hp_name, **kwargs
            )
        except ValueError as error:
            if "No trials are completed" not in str(error):
                raise
            raise ValueError(
                f"at least one of the {n_trials} trials must end with a finite loss, got none: lower the rates that are "
                "tried."
            ) from error
        finally:
            self._give_arguments_back()
            self._before_trials = self.hp_search_backend = None
            self.is_in_train = False  # a trial that was cut short leaves it on

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train as `Trainer` does; a trial that diverges is stopped, and the search goes on."""
        try:
            return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        except DivergedError as error:
            searched = trial is not None and self.hp_search_backend == HPSearchBackend.OPTUNA
            if not searched:
                raise
            import optuna

            logger.warning("Trial %s is left out: %s", trial.number, error)
            raise optuna.TrialPruned(str(error)) from error

    def _hp_search_setup(self, trial: Any) -> None:
        if trial is not None:
            self._give_arguments_back()  # another trial may have set what this one does not
        super()._hp_search_setup(trial)
        if trial is None or self.hp_search_backend is None:
            return
        self.args.check()
        # The model was made before the trial's arguments were known.
        pair = self.crowd_model
        self.model = self.model_wrapped = self._wrap(pair.classifier if self.pair_is_ours else pair)
        if self.place_model_on_device:
            self._move_model_to_device(self.model, self.args.device)

    def _give_arguments_back(self) -> None:
        if self._before_trials is not None:
            self.args.__dict__.update(self._before_trials)

    def _judge_trial(self, trial: Any) -> None:
        """Compute the objective from the final model."""
        if trial is not None and self.hp_search_backend is not None:
            self.objective = self.compute_objective(self.evaluate())

    def _default_objective(self, direction: str | list[str]) -> Callable[[dict[str, float]], float]:
        if not isinstance(direction, str):
            raise ValueError(
                f"`compute_objective` must be given for several directions, got none for {direction}: by default there is "
                "one objective, the gain."
            )
        if self.eval_dataset is None or isinstance(self.eval_dataset, dict):
            got = "none" if self.eval_dataset is None else f"{len(self.eval_dataset)} of them"
            raise ValueError(
                f"`eval_dataset` must be one data set with votes, got {got}: trials are judged by the gain on it. Give "
                "one, or `compute_objective`."
            )
        sign = 1.0 if direction == "maximize" else -1.0

        def objective(metrics: dict[str, float]) -> float:
            if "eval_gain" not in metrics:
                raise ValueError(
                    "an evaluation must have a gain for trials to be judged by it, got none: there are votes on fewer than "
                    "two items, or the method has no aggregator. Give `compute_objective`."
                )
            return sign * metrics["eval_gain"]

        return objective


def _available(backend: str | HPSearchBackend | None) -> str:
    names = [b.value for b in HPSearchBackend]
    if backend is not None and str(getattr(backend, "value", backend)) not in names:
        raise ValueError(f"`backend` must be one of {', '.join(names)}, got {backend!r}.")
    installed = [b for b, kind in ALL_HYPERPARAMETER_SEARCH_BACKENDS.items() if kind.is_available()]
    if backend is None:
        if not installed:
            raise ImportError(
                "a search over hyperparameters needs a backend: `pip install optuna`."
            )
        return str(default_hp_search_backend())
    chosen = HPSearchBackend(backend)
    if chosen not in installed:
        raise ImportError(
            f"`backend` must be installed, got {chosen.value!r}, which is not: "
            f"{ALL_HYPERPARAMETER_SEARCH_BACKENDS[chosen].pip_install()}."
        )
    return str(chosen.value)
