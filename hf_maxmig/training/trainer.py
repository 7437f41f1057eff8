"""CrowdTrainer: `Trainer` for any crowd method. MaxMIGTrainer: the same for any Hub classifier.

The trainer never asks which method it trains. It calls the few verbs that every crowd model has,
see `modeling_maxmig.CrowdModel`.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import EvalPrediction, PreTrainedModel, PrinterCallback, TrainerState
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput, TrainOutput, has_length
from transformers.utils import logging

from ..data.class_order import align_gold, hub_parts
from ..data.collator import CrowdCollator, input_names
from ..data.columns import check_is_dataset, has_votes
from ..data.numbered import (
    ROW,
    UNKNOWN,
    beside_votes,
    by_item,
    check_predicted_once,
    few_inputs,
    in_order,
    part_of,
    taken,
)
from ..judging.relabel import most_suspect_first, relabelled, save_relabelled
from ..metrics import NO_LABEL, measured
from ..model.functional import Posteriors
from ..model.modeling_maxmig import CrowdModel
from ..model.votes import Votes
from ..sharing.processors import portable_processor
from .batch import batch_loss, batch_posteriors, note_main_input
from .checkpoints import swapped
from .class_names import class_order, rename_classes
from .cross_fit import temper
from .distributed import gather_with_gradient, whole_parameters, without_gradient
from .gold import handed_over
from .guards import Watch
from .item_features import features_of
from .known_items import KnownItems
from .loading import loading
from .moments import BeginOfTraining, EndOfEpoch
from .prechecks import (
    check_can_evaluate,
    check_devices,
    check_items,
    check_names,
    check_training,
    selected_by_gain,
    settled,
    short_arguments,
)
from .precision import weights_kept
from .rates import Groups, aggregator_rate, give_own_rates, let_rise, own_groups
from .refusals import schedule_settings
from .start import Start, check_start
from .starting import find_start, initialize_from_votes, start_items, way
from .strength import best_strength, voted_posteriors
from .training import Training, votes_of
from .training_args import MaxMIGTrainingArguments
from .tuning import TunedTrainer
from .wrapped import is_crowd_model, made_ready

logger = logging.get_logger(__name__)


class CrowdTrainer(TunedTrainer):
    """Train a crowd model: a classifier learns from the columns `annotators` and `annotations`.

    Gold labels, where the data set has them, are only measured against, unless `use_gold_labels=True` says
    that those of the training set are to be learned from. Everything else of `Trainer` works as ever, with
    two defaults more:

    - Where it can be (`init="cross_fit"`), networks that have not seen an item say what it is before the
      training, and the classifier learns that (`hf_maxmig.training.cross_fit`). Of the items of `train_dataset`
      `predict`, `evaluate`, `relabel` and `report` then give what those networks say.
    - Elsewhere, if the method maximises the gain, `eval_dataset` is a `datasets.Dataset` with votes, and
      the arguments say nothing of evaluating and saving, both happen each epoch, one checkpoint is kept,
      and the epoch with the highest gain on that set is what `train` ends with (`select_by_gain=False`
      turns it off); whatever the arguments say of those, W is then given the strength that these votes
      say (`search_strength=False`).

    Args:
        model: a crowd model.
        args: the arguments.
        data_collator: a `CrowdCollator` by default, with `processing_class`.
        train_dataset: with crowd columns.
        eval_dataset: with crowd columns, gold labels, both or neither.
        processing_class: the image processor, or the tokenizer; saved with the model.
        compute_metrics: further metrics. Its `predictions` are the three (N, C) log-probabilities
            of h, g and the forecast, its `label_ids` the gold labels, -100 where there are none.
        start_from: whose votes start the aggregator and name the classes: a number of items, the
            first of the training set; or a data set with crowd columns, of which nothing else is
            read. All training items by default: a stream is read once more for either.
        **kwargs: as in `Trainer`.

    Raises:
        TypeError: if `args` are not `MaxMIGTrainingArguments`.
        ValueError: if a data set's annotators or classes are not the model's; if `start_from` is no
            positive number; if `use_gold_labels` is set and the method uses none, or `train_dataset` is no
            `datasets.Dataset` or has none; or where several devices cannot do what is asked: evaluate a stream,
            share the items of a batch, spread adapters.
    """

    args: MaxMIGTrainingArguments
    loss_is_scaled_for_ga = (
        False  # the loss of a batch is a mean: Trainer divides it by the accumulation steps
    )

    def __init__(
        self,
        model: PreTrainedModel | None = None,
        args: MaxMIGTrainingArguments | None = None,
        data_collator: Callable[[list[dict[str, Any]]], dict[str, Tensor]] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        start_from: Any = None,
        **kwargs: Any,
    ) -> None:
        args = MaxMIGTrainingArguments() if args is None else args
        if not isinstance(args, MaxMIGTrainingArguments):
            raise TypeError(
                f"`args` must be MaxMIGTrainingArguments, got {type(args).__name__}: they say how the aggregator is "
                "trained."
            )
        args = settled(args, train_dataset)
        if isinstance(start_from, int) and start_from < 1:
            raise ValueError(
                f"`start_from` must be a number of items, 1 or more, or a data set, got {start_from}."
            )
        processing_class = portable_processor(processing_class)
        self._user_metrics = compute_metrics
        self.start_from = start_from
        self.pair_is_ours = False
        self._optimizer_given = (
            kwargs.get("optimizers", (None, None))[0] is not None
            or kwargs.get("optimizer_cls_and_kwargs") is not None
        )

        def wrap(model: nn.Module) -> PreTrainedModel:
            # A search over hyperparameters changes them.
            now = self.args if hasattr(self, "args") else cast(MaxMIGTrainingArguments, args)
            # Of a pair that is made here, not of one that was given, the search may choose the parts.
            self.pair_is_ours = not is_crowd_model(model)
            return made_ready(
                model, now, train_dataset, start_from, data_collator, processing_class, self.as_crowd_model
            )  # fmt: skip

        self._wrap = wrap
        super().__init__(
            model=model if model is None else self._wrap(model),
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_metrics=self._crowd_metrics,
            **kwargs,
        )
        self.model_accepts_loss_kwargs = False
        self._epoch_end = EndOfEpoch(self._end_epoch)
        self.add_callback(self._epoch_end)
        self.add_callback(BeginOfTraining(self._note_rates))
        if data_collator is None:
            self.data_collator = CrowdCollator(
                num_annotators=self.crowd_model.config.num_annotators,
                num_classes=self.crowd_model.config.num_labels,
                processor=processing_class,
                input_names=input_names(self.crowd_model.classifier),
                vocabulary=getattr(self.crowd_model.classifier.config, "vocab_size", None),
            )
        self._watch = Watch(self.crowd_model, self.args, on=False)
        self.start = Start("keep")  # what the last training started from
        self.found_strength: float | None = None  # of the aggregator, after training
        self._gold_read: tuple[Any, Tensor] | None = None  # of which data set, see `gold_labels`
        self._known = KnownItems(train_dataset)
        self._of_training = False  # whether items of the training set are what is predicted now
        # What the features of a classifier lack for a start by them, as far as it is known.
        self._unread: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()
        by_gain = self.crowd_model.loss_is_minus_gain and self.init != "cross_fit"
        if args.select_by_gain and by_gain and has_votes(eval_dataset):
            self.args = selected_by_gain(self.args)
        self._check_names(start_from)
        self.train_dataset = self._by_name(train_dataset)
        self.eval_dataset = self._by_name(eval_dataset)
        _ = self.gold_labels  # what cannot be used is refused now
        self._check_devices()

    def _check_devices(self) -> None:
        check_devices(
            self.args, self.crowd_model, self.accelerator, self.eval_dataset, self.is_fsdp_enabled,
            self.is_deepspeed_enabled,
        )  # fmt: skip

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
        gold = self.gold_labels
        return 0 if gold is None else int((gold >= 0).sum())

    @staticmethod
    def as_crowd_model(
        model: nn.Module, args: MaxMIGTrainingArguments, dataset: Any
    ) -> PreTrainedModel:
        """Turn what the user passed into a crowd model; here it must be one already."""
        if not is_crowd_model(model):
            raise TypeError(
                f"`model` must be a crowd model, got {type(model).__name__}: `MaxMIGTrainer` wraps "
                "a plain classifier."
            )
        return model

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Build the model anew, as `Trainer` does, and as a crowd model."""
        return self._wrap(super().call_model_init(trial))

    # Training

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train; a fresh run first starts the aggregator from the training crowd.

        Args:
            resume_from_checkpoint: as in `Trainer`; True takes this training's last checkpoint in the
                output folder that is whole.
            trial: as in `Trainer`.
            ignore_keys_for_eval: as in `Trainer`.

        Returns:
            As `Trainer.train`; the metrics also have what the search chose.

        Raises:
            FileNotFoundError: if the checkpoint is not there.
            OSError: if the output folder may not be written, or has no room.
            ValueError: if the checkpoint is not whole or of another crowd or model; there is none of this training; or
                another training is at work in the output folder.
        """
        with self._one_training(resume_from_checkpoint, trial) as checkpoint:
            return self._train(checkpoint, trial, ignore_keys_for_eval)

    def _train(
        self, checkpoint: str | None, trial: Any, ignore_keys_for_eval: list[str] | None
    ) -> TrainOutput:
        self._fresh, self.start = checkpoint is None, Start("keep", rate=self.start.rate)
        self._unread.clear()
        self._resumed_from, self.found_strength = checkpoint, None
        self._started = False
        self._results.clear()  # of an earlier pair
        output = super().train(checkpoint, trial, ignore_keys_for_eval)
        changed = self._temper()
        start = self.start
        if start.items is None and self.args.name_classes:
            changed = self.name_classes() is not None
        self._watch.end(self.train_dataset, self.posteriors_of)
        if start.tried and start.rate is not None:
            output.metrics["aggregator_learning_rate"] = self.aggregator_rate
        if start.tried:
            output.metrics["prior"] = self.crowd_model.config.prior
            output.metrics["aggregator"] = self.crowd_model.config.aggregator
        if self._gold_labels_used:
            output.metrics["gold_labels_used"] = self._gold_labels_used
        self.found_strength = self._strengthen()
        if self.found_strength is not None:
            output.metrics["aggregator_strength"] = self.found_strength
            changed |= self.found_strength != 1.0
        if self._results and (changed or self.args.load_best_model_at_end) and trial is None:
            self.evaluate()  # the card tells of the pair as it is, not of the last epoch's
        self._judge_trial(trial)
        return output

    def _hp_search_setup(self, trial: Any) -> None:
        # `Trainer` calls this in every training: after a `model_init`, before a checkpoint is loaded.
        super()._hp_search_setup(trial)
        self._begin_noting(self._resumed_from)
        check_training(
            self.args, self.crowd_model, self.train_dataset, self.eval_dataset, self._user_metrics is not None
        )  # fmt: skip
        if not self._short:
            check_items(self.train_dataset, self.eval_dataset, self.data_collator)
        if self._resumed_from:
            self.start = Start.load(Path(self._resumed_from))
            check_start(self.start, self.train_dataset, self.gold_labels)
        if self._gold_labels_used:
            self.crowd_model.config.gold_labels_used = self._gold_labels_used
        if self._resumed_from and self.pair_is_ours:
            self._use_parts()
        guarded = self.args.guards and not self.crowd_model.learns_from_gold_labels
        self._watch = Watch(self.crowd_model, self.args, guarded, self.is_world_process_zero())
        self._watch.begin(self.train_dataset)

    def _strengthen(self) -> float | None:
        """Multiply W by what the votes of the evaluation set say, if it has any."""
        model, dataset = self.crowd_model, self.eval_dataset
        asked = self.args.search_strength and model.loss_is_minus_gain
        if not asked or self.start.items is not None or not has_votes(dataset):
            return None  # left-out votes have said it, or nobody can
        log_h, log_g = voted_posteriors(self.posteriors_of(dataset))
        with torch.no_grad(), whole_parameters(self.model):
            log_p = model.log_prior().cpu()
        strength = best_strength(log_h, log_g, log_p, model.config.divergence)
        with whole_parameters(self.model):
            model.aggregator.strengthen(strength)
        logger.info("W was multiplied by %.2f, by the gain on the evaluation set.", strength)
        return strength

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> TrainOutput:
        # After a `model_init` and before anything wraps the model, unless it is trained again.
        # Nor when a smaller batch is tried, which `auto_find_batch_size` does.
        if self._fresh and self.args.init != "keep" and not self._started:
            self._started = True
            with whole_parameters(self.model):
                self._begin()
        # What was found stays: W has no part in the loss.
        stays = [] if self.start.items is None else self.crowd_model.crowd_parameters()
        with without_gradient(stays):
            return super()._inner_training_loop(*args, **kwargs)

    def _begin(self) -> None:
        """Find out what the training starts from, and start from it: nowhere else is it applied."""
        training, model = self._training(), self.crowd_model
        self.start = find_start(
            training, self.args.disable_tqdm or not self.is_local_process_zero()
        )
        if self.start.state:
            self._use_parts()
            model.load_state_dict(self.start.state, strict=False)
            self.start = dataclasses.replace(self.start, state={})
            self.optimizer = None  # that of an earlier training has its rates
        else:
            initialize_from_votes(training, model)

    def _use_parts(self) -> None:
        """Take the kinds of prior and aggregator that were found."""
        model, start = self.crowd_model, self.start
        if start.aggregator not in (None, model.config.aggregator):
            model.use_aggregator(start.aggregator)
        if start.prior is not None and start.prior != model.config.prior:
            model.use_prior(start.prior, [])

    def _training(self) -> Training:
        """What those see of this training who find out what it starts from."""
        return Training(
            model=self.crowd_model, args=self.args, train_dataset=self.train_dataset,
            eval_dataset=self.eval_dataset, start_from=self.start_from, gold=lambda: self.gold_labels,
            is_ours=self.pair_is_ours, own_optimizer=self._optimizer_given,
            train_briefly=self._train_briefly, features_of=self.features_of, collate=self.data_collator,
            unread=self._unread,
        )  # fmt: skip

    def _temper(self) -> bool:
        found = self.start.items
        if found is None or found.classifier == 1.0:
            return False
        inputs = few_inputs(self.train_dataset, self.data_collator, self.args.device)
        return temper(self.crowd_model.classifier, found, inputs)

    def _save_beside(self, folder: Path) -> None:
        self.start.save(folder)

    @property
    def init(self) -> str:
        """How a fresh run starts, also where the arguments leave it open."""
        return way(self._training())

    @property
    def aggregator_rate(self) -> float:
        """The rate of W: the given one, the one found, or ten times the classifier's."""
        return aggregator_rate(self.args, self.crowd_model, self.start.rate)

    def _note_rates(self, state: TrainerState) -> None:
        """Put what was tried in the log."""
        if self._fresh and self.start.tried:
            self.log(self.start.logs())
        ended = not self._fresh and state.global_step >= state.max_steps
        if ended and not self._resumed["epoch_ended"]:
            self._end_epoch(1.0)  # killed between the last step and the end of its epoch

    def _manifest_facts(self) -> dict[str, Any]:
        return {"epoch_ended": self._epoch_end.done_at == self.state.global_step}

    def _train_briefly(
        self,
        model: CrowdModel,
        rows: list[int],
        share: float,
        rate: float | None = None,
        seed: int | None = None,
    ) -> Callable[[Any], PredictionOutput]:
        """Train another model for part of this training, see `TrainBriefly`."""
        short = self.short_trainer(model, rows, share, seed)
        short.start = Start("keep", rate=rate)
        short.train()
        return short.predict

    def short_trainer(
        self, model: CrowdModel, rows: list[int], share: float, seed: int | None = None
    ) -> "CrowdTrainer":
        """Make a trainer of another model for part of this training, which writes and says nothing.

        Args:
            model: what it trains, from where it is.
            rows: the training items it has.
            share: of this training's epochs or steps; an epoch or 200 steps at the least.
            seed: of the batches and what drops out; that of this training by default.
        """
        trainer = CrowdTrainer(
            model=model,
            args=short_arguments(self.args, len(rows), share, seed),
            data_collator=self.data_collator,
            train_dataset=part_of(self.train_dataset, rows),
        )
        trainer._short = True
        trainer.remove_callback(PrinterCallback)
        return trainer

    def features_of(self, model: CrowdModel, dataset: Any) -> Tensor | None:
        """Compute what a model's output layer reads of each item: (N, D); None if it reads no vector."""
        batches = map(self._prepare_inputs, self._own_dataloader(dataset))
        with self.autocast_smart_context_manager():
            return features_of(
                model.classifier, batches, model.config.num_labels, len(dataset), self.args.seed,
                self.accelerator.gather,
            )  # fmt: skip

    def crowd_of(self, dataset: Any) -> Iterator[Votes]:
        """Read the votes of a data set, checked: (n, K) annotators and annotations."""
        return votes_of(dataset, self.crowd_model)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """Compute the loss of a batch, over all devices; gold labels are set aside first."""
        loss, empty, outputs = batch_loss(
            model, self.crowd_model, inputs, self.known, self.args.mixup_alpha, self._gather
        )
        self._note_loss(loss)
        self._watch.step(loss, empty)
        return (loss, outputs) if return_outputs else loss

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        can = "attention_mask" in inputs or (
            getattr(self.processing_class, "pad_token_id", None) is not None
        )
        if self.args.include_num_input_tokens_seen != "non_padding" or can:
            super()._track_num_input_tokens(inputs)
            return
        logger.warning_once(
            "`include_num_input_tokens_seen` counts all input: nothing says what is padding in it."
        )
        with swapped(self.args, "include_num_input_tokens_seen", "all"):
            super()._track_num_input_tokens(inputs)

    def _gather(self, tensor: Tensor) -> Tensor:
        if not self.args.gather_across_devices:
            return tensor
        # Batches that are balanced by their lengths have any number of items.
        balanced = self.args.train_sampling_strategy == "batch_rebalance"
        return gather_with_gradient(tensor, None if balanced else self._train_batch_size)

    def get_train_dataloader(self) -> DataLoader:
        """Load what the method has prepared; over several devices without the incomplete last batch.

        Filling it up, as accelerate does, would compare an item with itself.

        Raises:
            ValueError: if there is no full batch.
        """
        prepared = self.crowd_model.prepare(self.train_dataset, self.crowd_of(self.train_dataset))
        drop = self.args.dataloader_drop_last or self.args.world_size > 1
        with swapped(self, "train_dataset", prepared), self._drop_last(drop):
            loader = super().get_train_dataloader()
        if drop and has_length(loader) and len(loader) == 0:
            raise ValueError(
                f"the training set must fill a batch of {self._train_batch_size} items on each of "
                f"{self.args.world_size} device(s), got {len(self.train_dataset)} items: lower "
                "`per_device_train_batch_size`."
            )
        return loader

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Sampler | None] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> DataLoader:
        """Load items as `Trainer` does; each batch knows which they are (`hf_maxmig.data.numbered`)."""
        if not is_training:
            check_can_evaluate(self.args, dataset)
        keep = not is_training or self.start.items is not None or self.gold_labels is not None
        config = self.accelerator.dataloader_config
        plan = loading(
            self.args, config.dispatch_batches, dataset, self.data_collator, sampler_fn, batch_size, is_training, keep
        )  # fmt: skip
        with (
            swapped(self, "data_collator", plan.collate),
            swapped(self.args, "dataloader_in_order", plan.in_order),
            swapped(config, "dispatch_batches", plan.dispatch),
        ):
            return super()._get_dataloader(
                plan.items, description, batch_size, plan.draw, is_training, dataloader_key
            )

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler | None:
        """Read from the first item to the last, whatever the order of training is."""
        alone = has_length(eval_dataset) and self.args.world_size <= 1
        return SequentialSampler(eval_dataset) if alone else None

    def _init_training_state(
        self, max_steps: int, steps: int, epochs: int, checkpoint: str | None, trial: Any
    ) -> tuple[int, int]:
        done = super()._init_training_state(max_steps, steps, epochs, checkpoint, trial)
        if checkpoint is not None and self.state.global_step >= max_steps:
            return epochs, 0  # `Trainer` would go on in that epoch, and take a step more
        if checkpoint is None or has_length(self.train_dataset):
            return done
        # `Trainer` takes all steps for one pass; how many passes over a stream there were, and what
        # share of all steps the last one had, is in `epoch`.
        passes = int(self.state.epoch)
        batches = (self.state.epoch - passes) * max_steps * self.args.gradient_accumulation_steps
        return passes, 0 if self.args.ignore_data_skip else round(batches)

    def _drop_last(self, drop: bool) -> contextlib.AbstractContextManager[None]:
        return swapped(self.args, "dataloader_drop_last", drop)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Build the optimizer of `Trainer`; the crowd's parameters get their rate and no decay."""
        if self.optimizer is not None:
            return self.optimizer
        optimizer = super().create_optimizer(model)
        give_own_rates(optimizer, self._own_groups())
        return optimizer

    def _own_groups(self) -> Groups:
        return own_groups(self.args, self.crowd_model, self.start.rate)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> LRScheduler:
        """Build the schedule of `Trainer`; where the gain is maximised, W's rate has its own rise."""
        if self.lr_scheduler is not None:
            return self.lr_scheduler
        with swapped(self.args, "lr_scheduler_kwargs", schedule_settings(self.args)):
            scheduler = super().create_scheduler(num_training_steps, optimizer)
        if self.crowd_model.loss_is_minus_gain:
            rise = int(self.args.aggregator_warmup_ratio * num_training_steps)
            let_rise(scheduler, self._own_groups(), rise)
        return scheduler

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what the method has beside the loss; say once if steps had too few annotated items."""
        if "loss" in logs:
            if self.crowd_model.loss_is_minus_gain and self.start.items is None:
                logs["gain"] = -logs["loss"]
            logs.update(self.crowd_model.logs())
            self._watch.tell_empty_steps()
        super().log(logs, start_time)

    def _end_epoch(self, progress: float) -> None:
        self.check_numbers()
        with whole_parameters(self.model):
            self.crowd_model.end_epoch(self.posteriors_of(self.train_dataset), progress)

    def posteriors_of(self, dataset: Any) -> Iterator[tuple[Posteriors, Tensor, Tensor]]:
        """Yield what the model makes of the items, the same on all devices.

        The posteriors of part of the items, and their annotators and annotations. Nothing is computed
        before the first is asked for.
        """
        loader = self._own_dataloader(dataset)
        with swapped(self, "compute_metrics", None):
            output = self.evaluation_loop(loader, "Posterior", prediction_loss_only=False)
        check_predicted_once(output.label_ids, dataset)
        posteriors = Posteriors(*(torch.from_numpy(part) for part in output.predictions))
        yield from beside_votes(posteriors, self.crowd_of(dataset))

    def class_order(self) -> Tensor:
        """Find the order of the classes that fits the votes on the training items best.

        Returns:
            (C,) int64, `order`: place r belongs to what is class `order[r]` now; 0..C-1 if the names
            are right already, or the method's loss tells the classes apart.
        """
        gold = self.gold_labels if self.start_from is None else None
        items = start_items(self._training())
        with whole_parameters(self.crowd_model):
            return class_order(self.crowd_model, lambda: self.crowd_of(items), gold)

    def name_classes(self) -> list[str] | None:
        """Give the classes the names that fit the votes best, in classifier, W and prior.

        The gain does not change when classes are exchanged, so training may leave two of them
        swapped.

        Returns:
            The names that the classes had before, in their new order; None if they were right
            already, or the method's loss tells the classes apart.
        """
        model, order = self.crowd_model, self.class_order()
        if torch.equal(order, torch.arange(len(order))):
            return None
        inputs = few_inputs(self.train_dataset, self.data_collator, self.args.device)
        with whole_parameters(model):
            return rename_classes(model, order, inputs)

    def listed_arguments(self) -> dict[str, Any]:
        """Tell what the card says of the training, with what the search found."""
        listed = super().listed_arguments() | {"init": self.init}
        maximises = self.crowd_model.loss_is_minus_gain and self.init != "cross_fit"
        if maximises:  # else these change nothing
            for name in ("init_strength", "aggregator_warmup_ratio"):
                listed[name] = getattr(self.args, name)
        if self.init != "cross_fit" and any(True for _ in self.crowd_model.crowd_parameters()):
            listed["aggregator_learning_rate"] = self.aggregator_rate
        if self.found_strength is not None:
            listed["aggregator_strength"] = round(self.found_strength, 3)
        if self.args.mixup_alpha:
            listed["mixup_alpha"] = self.args.mixup_alpha
        return listed

    # Evaluation

    def evaluation_loop(self, dataloader: DataLoader, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate as `Trainer` does; in half precision, the weights get theirs back.

        What is predicted is put in the order of the data set.
        """
        half = self.args.bf16_full_eval or self.args.fp16_full_eval
        keeping = weights_kept(self.model) if half and not self.is_in_train else None
        read: Any = getattr(dataloader.dataset, "source", dataloader.dataset)
        of_training = swapped(self, "_of_training", self.known.are(read))
        with keeping or contextlib.nullcontext(), of_training:
            output = super().evaluation_loop(dataloader, *args, **kwargs)
        return by_item(output, dataloader)

    @property
    def known(self) -> KnownItems:
        """What is known of the items of the training set."""
        now = self.train_dataset, self.start.items, self.gold_labels
        kept = self._known
        if any(a is not b for a, b in zip((kept.dataset, kept.found, kept.gold), now, strict=True)):
            self._known = KnownItems(*now)
        return self._known

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        name = self.args.metric_for_best_model
        if name is not None and f"eval_{name.removeprefix('eval_')}" not in metrics:
            raise ValueError(
                f"`metric_for_best_model` must be a metric of the evaluation, got {name!r}: it has "
                f"{', '.join(key.removeprefix('eval_') for key in metrics)}."
            )
        return super()._determine_best_metric(metrics, trial)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, tuple[Tensor, ...], tuple[Tensor, Tensor, Tensor]]:
        """Compute the three posteriors of a batch, with or without gold labels or annotations.

        Returns:
            No loss; (B, C) log-probabilities of h, g and the forecast (without annotations, or if
            the method has no g, that is the prior and the forecast is h); gold labels (-100 for
            none), which items have a g, and which items they are.
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
            ValueError: if not each item was predicted, or it is not known which were.
        """
        output = super().predict(test_dataset, ignore_keys, metric_key_prefix)
        if output.label_ids is None:
            return output
        check_predicted_once(output.label_ids, test_dataset)
        return output._replace(label_ids=output.label_ids[0])

    def relabel(self, dataset: Dataset, path: str | os.PathLike[str] | None = None) -> Dataset:
        """Clean the labels: what the pair makes of each item, the most suspect ones first.

        Args:
            dataset: items with votes, without, or with votes on some.
            path: the Parquet file to write, in which annotators and classes go by their names; a CSV
                of the same name lies beside it. `_report/relabelled.parquet` in the output folder
                by default, where `push_to_hub` leaves it out.

        Returns:
            The data set with the columns of `hf_maxmig.judging.relabel.relabelled`, among them `forecast`,
            `confidence` and `suspect`, sorted as the file is: items where the plurality of the
            votes and the forecast differ come first, the surest of them on top.

        Raises:
            TypeError: if `dataset` is not a `datasets.Dataset`.
            ValueError: if it has one of these columns already.
        """
        return self._relabel(dataset, self._posteriors(dataset), path)

    @property
    def _report_folder(self) -> Path:
        # What starts with an underscore `push_to_hub` leaves out: this names people and holds data.
        return Path(self.args.output_dir, "_report")

    def _posteriors(self, dataset: Dataset) -> PredictionOutput:
        check_is_dataset(dataset)
        return self.predict(dataset)

    def _relabel(
        self, dataset: Dataset, output: PredictionOutput, path: str | os.PathLike[str] | None
    ) -> Dataset:
        model, file = self.crowd_model, Path(path or self._report_folder / "relabelled.parquet")
        gold = self.gold_labels if self.known.are(self._by_name(dataset)) else None
        used = None if gold is None else (gold >= 0).numpy()
        names, annotators = model.config.class_names, self.annotator_names
        checker = CrowdCollator(model.config.num_annotators, model.config.num_labels)
        log_h, log_g, log_forecast = output.predictions
        cleaned = most_suspect_first(
            relabelled(dataset, log_h, log_g, log_forecast, checker, names, used)
        )
        if self.is_world_process_zero():
            if file.absolute().is_relative_to(Path(self.args.output_dir).absolute()):
                self._keep_from_uploads()
            save_relabelled(cleaned, annotators, names, file)
        return cleaned

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
            in nats, `eval_gain_ceiling`, the gain of a perfect pair, and `eval_gain_low` and
            `eval_gain_high`, its 95 % interval. With gold labels `eval_accuracy`,
            `eval_aggregator_accuracy` and `eval_forecast_accuracy`.
        """
        metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        self._results.update(metrics)
        self._counted.update({f"{metric_key_prefix}_{n}": k for n, k in self._items.items()})
        if self.is_in_train:
            asked = self.eval_dataset if eval_dataset is None else eval_dataset
            asked = self.eval_dataset[asked] if isinstance(asked, str) else asked
            progress = self.state.global_step / self.state.max_steps
            self._watch.evaluated(asked, metric_key_prefix, metrics, progress)
        return metrics

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Match the names of the data set first; no item is dropped, whatever training does."""
        if not isinstance(eval_dataset, str):
            eval_dataset = self._by_name(eval_dataset)
        # With persistent workers `Trainer` keeps one loader, and takes it for any data set.
        kept = getattr(self, "_eval_dataloaders", {})
        key = eval_dataset if isinstance(eval_dataset, str) else "eval"
        asked = self.eval_dataset if eval_dataset is None else eval_dataset
        asked = self.eval_dataset[key] if isinstance(eval_dataset, str) else asked
        if key in kept:
            read = kept[key].dataset
            if getattr(read, "source", read) is not asked:
                del kept[key]
        with self._drop_last(False):
            return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Match the names of the data set first; no item is dropped, whatever training does."""
        with self._drop_last(False):
            return super().get_test_dataloader(self._by_name(test_dataset))

    def _own_dataloader(self, dataset: Any) -> DataLoader:
        """Make batches of what is predicted for the training: what it can train on it can predict."""
        args = self.args
        size = max(args.per_device_train_batch_size, args.per_device_eval_batch_size)
        with swapped(args, "per_device_eval_batch_size", size):
            return self.get_test_dataloader(dataset)

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
                f"{self._gold_labels_used} gold labels of the training set were used in the training: accuracies on it "
                "leave them out."
            )
        if self._user_metrics is not None:
            seen = prediction.inputs
            inputs = None if seen is None else taken(seen, order)
            metrics |= self._user_metrics(EvalPrediction(posteriors, labels, inputs))
        return metrics

    def _by_name(self, dataset: Any) -> Any:
        """Check the names of a data set, or of each of a dict, and number its gold labels as the model does."""
        self._check_names(dataset)
        classes = self.crowd_model.config.class_names
        if isinstance(dataset, dict):
            return {name: align_gold(part, classes) for name, part in dataset.items()}
        return align_gold(dataset, classes)

    def _check_names(self, dataset: Any) -> None:
        for part in hub_parts(dataset):
            check_names(self.crowd_model, self.annotator_names, part)
