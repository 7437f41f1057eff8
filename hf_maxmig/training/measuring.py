"""Measuring: a crowd model's posteriors in the order of the data set, compared with votes and gold labels."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import EvalPrediction
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput
from transformers.utils import logging

from ..data.class_order import align_gold, hub_parts
from ..data.collator import CrowdCollator, padded
from ..data.columns import check_is_dataset, has_crowd_columns
from ..data.numbered import (
    ROW,
    UNKNOWN,
    beside_votes,
    by_item,
    check_predicted_once,
    in_order,
    taken,
)
from ..judging.questions import Crowd, questions_table
from ..judging.relabel import most_suspect_first, relabelled, save_relabelled
from ..metrics import NO_LABEL, measured
from ..model.functional import Posteriors
from ..model.known_crowd import Limits, weight_of
from ..model.votes import Votes
from .batch import batch_posteriors, note_main_input
from .checkpoints import swapped
from .distributed import whole_parameters
from .gold import handed_over, number_of
from .guards import Watch
from .known_items import KnownItems
from .prechecks import check_names
from .precision import weights_kept
from .start import Start
from .training import votes_of
from .tuning import TunedTrainer

logger = logging.get_logger(__name__)


class MeasuringTrainer(TunedTrainer):
    """The part of the trainer that predicts, measures and relabels.

    For items of the training set it uses what is known of them (`known_items.py`).
    """

    _watch: Watch

    def __init__(
        self,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        **kwargs: Any,
    ) -> None:
        self._user_metrics = compute_metrics
        self.start = Start("keep")  # what the last training started from
        self._gold_read: tuple[Any, Tensor] | None = None  # the data set and its `gold_labels`
        self._known = KnownItems(None)
        self._of_training = False  # whether items of the training set are predicted now
        super().__init__(compute_metrics=self._crowd_metrics, **kwargs)
        self._watch = Watch(self.crowd_model, self.args, on=False)

    def crowd_of(self, dataset: Any) -> Iterator[Votes]:
        """Read the votes of a data set, checked, a part at a time."""
        return votes_of(dataset, self.crowd_model)

    @property
    def gold_labels(self) -> Tensor | None:
        """(N,) int64, the gold labels of the training items that the training uses, -1 for none.

        None unless `use_gold_labels` is set.
        """
        dataset = self.train_dataset
        if not self.args.use_gold_labels or dataset is None:
            return None
        if self._gold_read is None or self._gold_read[0] is not dataset:
            self._gold_read = dataset, handed_over(dataset, self.crowd_model)
        return self._gold_read[1]

    @property
    def _gold_labels_used(self) -> int:
        return number_of(self.gold_labels)

    @property
    def known(self) -> KnownItems:
        """What is known of the items of the training set beside the model's posteriors."""
        now = self.train_dataset, self.start.items, self.gold_labels
        kept = self._known
        if any(a is not b for a, b in zip((kept.dataset, kept.found, kept.gold), now, strict=True)):
            self._known = KnownItems(*now)
        return self._known

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate as `Trainer` does; the results also go on the model card.

        Args:
            eval_dataset: as in `Trainer`.
            ignore_keys: as in `Trainer`.
            metric_key_prefix: as in `Trainer`.

        Returns:
            As `Trainer.evaluate`. With votes on two items or more, over the whole set: `eval_gain`
            in nats, `eval_gain_ceiling`, the gain of a perfect model, and `eval_gain_low` and
            `eval_gain_high`, its 95 % interval. With gold labels `eval_accuracy`,
            `eval_aggregator_accuracy` and `eval_forecast_accuracy`.
        """
        metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        self._results.update(metrics)
        self._counted.update({f"{metric_key_prefix}_{n}": k for n, k in self._items.items()})
        if self.is_in_train:
            asked = self.eval_dataset if eval_dataset is None else eval_dataset
            asked = self.eval_dataset[asked] if isinstance(asked, str) else asked
            self._watch.evaluated(asked, metric_key_prefix, metrics, self.state)
        return metrics

    def evaluation_loop(self, dataloader: DataLoader, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate as `Trainer` does, and put the predictions in the order of the data set.

        After an evaluation in half precision the weights get their precision back.
        """
        half = self.args.bf16_full_eval or self.args.fp16_full_eval
        keeping = weights_kept(self.model) if half and not self.is_in_train else None
        read: Any = getattr(dataloader.dataset, "source", dataloader.dataset)
        of_training = swapped(self, "_of_training", self.known.are(read))
        with keeping or contextlib.nullcontext(), of_training:
            output = super().evaluation_loop(dataloader, *args, **kwargs)
        return by_item(output, dataloader)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, tuple[Tensor, ...], tuple[Tensor, Tensor, Tensor]]:
        """Compute the three posteriors of a batch, with or without gold labels or annotations.

        Returns:
            No loss; (B, C) log-probabilities of h, g and the forecast; gold labels (-100 for none),
            which items have a g, and their row numbers. Without annotations, or if the method has no
            g, the prior stands for g, and the forecast is h.
        """
        inputs = self._prepare_inputs(inputs)
        labels, rows = inputs.pop("labels", None), inputs.pop(ROW, None)
        note_main_input(self.crowd_model, inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs)
            posteriors, annotated = batch_posteriors(self.crowd_model, outputs, inputs)
        if self._of_training and rows is not None:
            posteriors = self.known.correct(posteriors, rows, self.crowd_model)
            labels = None if labels is None else self.known.unlearned(labels, rows)
        if labels is None:
            labels = torch.full_like(annotated, NO_LABEL, dtype=torch.int64)
        if rows is None:
            rows = torch.full_like(annotated, UNKNOWN, dtype=torch.int64)
        return None, (*posteriors,), (labels, annotated, rows)  # `Trainer` makes lists of them

    def _crowd_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        labels, annotated, rows = prediction.label_ids
        order = in_order(rows)
        posteriors = taken(prediction.predictions, order)
        labels, annotated = labels[order], annotated[order].astype(bool)
        if self.is_in_train and (rows[order] == np.arange(len(order))).all():
            self._watch.see(Posteriors(*(torch.from_numpy(part) for part in posteriors)))
        metrics, self._items = measured(posteriors, labels, annotated, self.crowd_model)
        if self._of_training and self._gold_labels_used:
            metrics["gold_labels_used"] = self._gold_labels_used
            logger.warning_once(
                f"The training used {self._gold_labels_used} gold labels of the training set: accuracies on that set "
                "leave them out."
            )
        if self._user_metrics is not None:
            seen = prediction.inputs
            inputs = None if seen is None else taken(seen, order)
            metrics |= self._user_metrics(EvalPrediction(posteriors, labels, inputs))
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        name = self.args.metric_for_best_model
        if name is not None and f"eval_{name.removeprefix('eval_')}" not in metrics:
            raise ValueError(
                f"`metric_for_best_model` must be a metric of the evaluation, got {name!r}: it has "
                f"{', '.join(key.removeprefix('eval_') for key in metrics)}."
            )
        return super()._determine_best_metric(metrics, trial)

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
    ) -> PredictionOutput:
        """Predict the three posteriors.

        Args:
            test_dataset: with or without crowd columns.
            ignore_keys: as in `Trainer`.
            metric_key_prefix: as in `Trainer`.

        Returns:
            `predictions`: three (N, C) arrays, the log-probabilities of h, g and the forecast, in the
            order of the data set; `label_ids`: (N,) gold labels, -100 for none and for those that
            the training used; `metrics`.

        Raises:
            ValueError: if some items were not predicted once each, or their row numbers are unknown.
        """
        output = super().predict(test_dataset, ignore_keys, metric_key_prefix)
        if output.label_ids is None:
            return output
        check_predicted_once(output.label_ids, test_dataset)
        return output._replace(label_ids=output.label_ids[0])

    def posteriors_of(self, dataset: Any) -> Iterator[tuple[Posteriors, *tuple[Tensor, ...]]]:
        """Yield the posteriors of the items, part by part, with the tensors of their votes.

        All devices get the same. Nothing is computed before the first part is asked for.
        """
        loader = self._own_dataloader(dataset)
        with swapped(self, "compute_metrics", None):
            output = self.evaluation_loop(loader, "Posterior", prediction_loss_only=False)
        check_predicted_once(output.label_ids, dataset)
        posteriors = Posteriors(*(torch.from_numpy(part) for part in output.predictions))
        yield from beside_votes(posteriors, self.crowd_of(dataset))

    def relabel(self, dataset: Dataset, path: str | os.PathLike[str] | None = None) -> Dataset:
        """Clean the labels: list the model's forecast of each item, the most suspect items first.

        Args:
            dataset: items with votes, without votes, or with votes on some.
            path: the Parquet file to write, with annotators and classes by name; a CSV of the same
                name is written beside it. By default `_report/relabelled.parquet` in the output
                folder, which `push_to_hub` does not upload.

        Returns:
            The data set with the columns of `hf_maxmig.judging.relabel.relabelled`, among them `forecast`,
            `confidence` and `suspect`, sorted as the file is: items whose forecast differs from the
            plurality of the votes come first, the most confident forecasts on top.

        Raises:
            TypeError: if `dataset` is not a `datasets.Dataset`.
            ValueError: if it already has one of these columns.
        """
        return self._relabel(dataset, self._posteriors(dataset), path)

    def _relabel(
        self, dataset: Dataset, output: PredictionOutput, path: str | os.PathLike[str] | None
    ) -> Dataset:
        cleaned = self.cleaned(dataset, output)
        config, file = (
            self.crowd_model.config,
            Path(path or self._report_folder / "relabelled.parquet"),
        )
        if self.is_world_process_zero():
            if file.absolute().is_relative_to(Path(self.args.output_dir).absolute()):
                self._keep_from_uploads()
            save_relabelled(cleaned, self.annotator_names, config.class_names, file)
        return cleaned

    def cleaned(self, dataset: Dataset, output: PredictionOutput) -> Dataset:
        """Clean the labels as `relabel` does, and write nothing.

        Args:
            dataset: the items.
            output: of `predict`, for these items.

        Returns:
            As `relabel`.

        Raises:
            ValueError: as `relabel`.
        """
        config = self.crowd_model.config
        gold = self.gold_labels if self.known.are(self._by_name(dataset)) else None
        used = None if gold is None else (gold >= 0).numpy()
        checker = CrowdCollator(config.num_annotators, config.num_labels)
        log_h, log_g, log_forecast = output.predictions
        return most_suspect_first(
            relabelled(dataset, log_h, log_g, log_forecast, checker, config.class_names, used)
        )

    def ask(
        self,
        dataset: Dataset,
        budget: float,
        gain: str = "information",
        *,
        costs: Mapping[str, float] | None = None,
        most_per_annotator: int | None = None,
        most_per_item: int | None = None,
        at_least: float | None = None,
        annotators: Sequence[str] | None = None,
        item_column: str | None = None,
    ) -> Dataset:
        """Say what to ask next, and whom: the votes that are expected to tell most.

        How annotators answer is estimated from the votes in `dataset`, each by a forecast without the annotator's
        own, and drawn towards everybody's where votes are few (`hf_maxmig.model.annotator_rows`). A question about
        an item knows of those that stand before it, and a copy is not asked where its original has answered
        (`choose_questions`).

        Args:
            dataset: items with votes, without votes, or with votes on some. For items of the training set the
                classifier is replaced by networks that have not seen them, where there are any.
            budget: what all questions may cost together; their number, if there are no `costs`.
            gain: `information`, in nats, or `accuracy`, of the forecast.
            costs: of an answer by each annotator, by name; 1 by default.
            most_per_annotator: questions.
            most_per_item: questions.
            at_least: a question with a smaller expected gain is not asked; by default one that is hardly worth
                asking, see `choose_questions`. 0 spends the whole budget.
            annotators: names of those who may be asked; everybody by default. People whom the model does not know
                are taken for average annotators.
            item_column: a column of `dataset` that names the items; it is repeated in the result, a column `item` as
                `item_name`.

        Returns:
            One row per question, the most valuable first: `item`, the row number; the item's name, if
            `item_column` is given; `annotator`; `expected_gain`; `reason`, a sentence.

        Raises:
            TypeError: if `dataset` is not a `datasets.Dataset`.
            ValueError: if there is no such column, somebody has no cost, or a number is not of its range.
        """
        limits = Limits(
            budget, gain, costs, most_per_annotator, most_per_item, at_least, annotators
        )
        check_is_dataset(dataset)
        if item_column is not None and item_column not in dataset.column_names:
            raise ValueError(
                f"`item_column` must be a column of `dataset`, got {item_column!r}: it has "
                f"{', '.join(dataset.column_names)}."
            )
        names = {} if item_column is None else {item_column: dataset.with_format(None)[item_column]}
        new = limits.new(self._asked_names)
        return questions_table(self._crowd(dataset, self.predict(dataset), new), limits, names)

    def _crowd(
        self,
        dataset: Dataset,
        output: PredictionOutput,
        new: Sequence[str] = (),
        groups: torch.Tensor | None = None,
    ) -> Crowd:
        """Put together what is known of the items and of those who may be asked, see `Crowd.of`."""
        model, nobody = self.crowd_model, torch.zeros(len(dataset), 0, dtype=torch.int64)
        votes = Votes(nobody, nobody)
        if has_crowd_columns(dataset):
            votes = padded(self.crowd_of(dataset))
        names = self._asked_names
        log_h, _, log_forecast = map(torch.from_numpy, output.predictions)
        with whole_parameters(model):
            weight = weight_of(model)
        return Crowd.of(
            log_h, log_forecast, weight, votes, names, model.config.class_names, new, groups
        )

    @property
    def _asked_names(self) -> list[str]:
        return self.annotator_names or [
            str(m) for m in range(self.crowd_model.config.num_annotators)
        ]

    def _posteriors(self, dataset: Dataset) -> PredictionOutput:
        check_is_dataset(dataset)
        return self.predict(dataset)

    @property
    def _report_folder(self) -> Path:
        # `push_to_hub` leaves out what starts with an underscore: the report names people and holds data.
        return Path(self.args.output_dir, "_report")

    def _by_name(self, dataset: Any) -> Any:
        """Check the names of a data set, or of a dict of them, and number its gold labels as the model does."""
        self._check_names(dataset)
        classes = self.crowd_model.config.class_names
        if isinstance(dataset, dict):
            return {name: align_gold(part, classes) for name, part in dataset.items()}
        return align_gold(dataset, classes)

    def _check_names(self, dataset: Any) -> None:
        for part in hub_parts(dataset):
            check_names(self.crowd_model, self.annotator_names, part)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Match the names of the data set first; no item is dropped, whatever training does."""
        if not isinstance(eval_dataset, str):
            eval_dataset = self._by_name(eval_dataset)
        # With persistent workers `Trainer` keeps one loader and uses it for any data set.
        kept = getattr(self, "_eval_dataloaders", {})
        key = eval_dataset if isinstance(eval_dataset, str) else "eval"
        asked = self.eval_dataset if eval_dataset is None else eval_dataset
        asked = self.eval_dataset[key] if isinstance(eval_dataset, str) else asked
        if key in kept:
            read = kept[key].dataset
            if getattr(read, "source", read) is not asked:
                del kept[key]
        with swapped(self.args, "dataloader_drop_last", False):
            return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Match the names of the data set first; no item is dropped, whatever training does."""
        with swapped(self.args, "dataloader_drop_last", False):
            return super().get_test_dataloader(self._by_name(test_dataset))

    def _own_dataloader(self, dataset: Any) -> DataLoader:
        """Make batches for the trainer's own predictions: a batch that fits in training also fits here."""
        args = self.args
        size = max(args.per_device_train_batch_size, args.per_device_eval_batch_size)
        with swapped(args, "per_device_eval_batch_size", size):
            return self.get_test_dataloader(dataset)
