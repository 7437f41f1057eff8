"""CrowdTrainer: `Trainer` for any crowd method.

The trainer never asks which method it trains. It calls the few verbs that every crowd model has,
see `modeling_maxmig.CrowdModel`.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import EvalPrediction, PreTrainedModel, PrinterCallback, TrainerState
from transformers.trainer_utils import PredictionOutput, TrainOutput, has_length
from transformers.utils import logging

from ..data.collator import CrowdCollator, input_names
from ..data.columns import has_votes
from ..data.numbered import (
    few_inputs,
    part_of,
)
from ..model.modeling_maxmig import CrowdModel
from ..sharing.processors import portable_processor
from .batch import batch_loss
from .checkpoints import swapped
from .class_names import class_order, rename_classes
from .cross_fit import temper
from .cross_validation import unseen_posteriors
from .distributed import gather_with_gradient, whole_parameters, without_gradient
from .guards import Watch
from .item_features import features_of
from .loading import loading
from .measuring import MeasuringTrainer
from .moments import BeginOfTraining, EndOfEpoch
from .prechecks import (
    check_can_evaluate,
    check_devices,
    check_items,
    check_training,
    selected_by_gain,
    settled,
    short_arguments,
)
from .rates import Groups, aggregator_rate, give_own_rates, let_rise, own_groups
from .refusals import schedule_settings
from .start import Start, check_start
from .starting import find_start, initialize_from_votes, start_items, way
from .strength import best_strength, voted_posteriors
from .training import Training
from .training_args import MaxMIGTrainingArguments
from .vote_tables import meet_votes, part_with_votes, save_votes, vote_tables
from .wrapped import is_crowd_model, made_ready

logger = logging.get_logger(__name__)


class CrowdTrainer(MeasuringTrainer):
    """Train a crowd model: a classifier learns from the columns `annotators` and `annotations`.

    Gold labels, where the data set has them, only measure results, unless `use_gold_labels=True` lets the
    model learn from those of the training set. `Trainer` works as usual, with two more defaults:

    - Where it applies (`init="cross_fit"`), networks that have not seen an item estimate its class before
      the training, and the classifier learns from these estimates and the votes
      (`hf_maxmig.training.cross_fit`). For the items of `train_dataset`, `predict`, `evaluate`, `relabel` and
      `report` then use these networks in the classifier's place.
    - Elsewhere, if the method maximises the gain and `eval_dataset` is a `datasets.Dataset` with votes,
      each epoch is evaluated and saved, one checkpoint is kept, and `train` ends with the epoch whose gain
      on that set is highest. This needs the arguments for evaluating and saving at their defaults;
      `select_by_gain=False` turns it off. W is then multiplied by the strength that the votes of that set
      suggest, whatever these arguments are; `search_strength=False` turns that off.

    Args:
        model: a crowd model.
        args: the arguments.
        data_collator: a `CrowdCollator` by default, with `processing_class`.
        train_dataset: with crowd columns.
        eval_dataset: with crowd columns, gold labels, both or neither.
        processing_class: the image processor, tokenizer, feature extractor or table processor; saved with
            the model.
        compute_metrics: further metrics. Its `predictions` are the three (N, C) log-probabilities
            of h, g and the forecast, its `label_ids` the gold labels, -100 where there are none.
        start_from: the items whose votes start the aggregator and name the classes: a number, for the
            first items of the training set; or a data set, of which only the crowd columns are read.
            All training items by default. A stream is read one more time for this.
        **kwargs: as in `Trainer`.

    Raises:
        TypeError: if `args` are not `MaxMIGTrainingArguments`.
        ValueError: if a data set's annotators or classes are not the model's; if `start_from` is a number
            below 1; if `use_gold_labels` is set, but the method uses no gold labels, or `train_dataset` is
            not a `datasets.Dataset` or has none; or if several devices are to evaluate a stream, share the
            items of a batch or spread adapters.
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
                f"`args` must be MaxMIGTrainingArguments, got {type(args).__name__}: the aggregator is trained by its "
                "arguments."
            )
        args = settled(args, train_dataset)
        if isinstance(start_from, int) and start_from < 1:
            raise ValueError(
                f"`start_from` must be a number of items, 1 or more, or a data set, got {start_from}."
            )
        processing_class = portable_processor(processing_class)
        self.start_from = start_from
        self.pair_is_ours = False
        self._given_optimizer = kwargs.get("optimizers", (None, None))[0]
        self._optimizer_given = (
            self._given_optimizer is not None or kwargs.get("optimizer_cls_and_kwargs") is not None
        )

        def wrap(model: nn.Module) -> PreTrainedModel:
            # A search over hyperparameters changes them.
            now = self.args if hasattr(self, "args") else cast(MaxMIGTrainingArguments, args)
            # The search may choose the parts of a model that is made here, not of one that was given.
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
            compute_metrics=compute_metrics,
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
        self.found_strength: float | None = None  # of the aggregator, after training
        # What a classifier's features lack for a start from features, as far as it is known.
        self._unread: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()
        by_gain = self.crowd_model.loss_is_minus_gain and self.init != "cross_fit"
        if args.select_by_gain and by_gain and has_votes(eval_dataset):
            self.args = selected_by_gain(self.args)
        self._check_names(start_from)
        self.train_dataset = self._by_name(train_dataset)
        self.eval_dataset = self._by_name(eval_dataset)
        _ = self.gold_labels  # unusable ones raise now
        self._check_devices()

    def _check_devices(self) -> None:
        check_devices(
            self.args, self.crowd_model, self.accelerator, self.eval_dataset, self.is_fsdp_enabled,
            self.is_deepspeed_enabled,
        )  # fmt: skip

    @staticmethod
    def as_crowd_model(
        model: nn.Module, args: MaxMIGTrainingArguments, dataset: Any
    ) -> PreTrainedModel:
        """Turn the user's model into a crowd model; in this class it must be one already."""
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
            resume_from_checkpoint: as in `Trainer`; True takes this training's last complete checkpoint in
                the output folder.
            trial: as in `Trainer`.
            ignore_keys_for_eval: as in `Trainer`.

        Returns:
            As `Trainer.train`; the metrics also hold what the search chose.

        Raises:
            FileNotFoundError: if the checkpoint does not exist.
            OSError: if the output folder cannot be written, or has no room.
            ValueError: if the checkpoint is incomplete, or of another crowd or model; if there is none of this
                training; or if another training is using the output folder.
        """
        with self._one_training(resume_from_checkpoint, trial) as checkpoint:
            return self._train(checkpoint, trial, ignore_keys_for_eval)

    def _train(
        self, checkpoint: str | None, trial: Any, ignore_keys_for_eval: list[str] | None
    ) -> TrainOutput:
        self._fresh = checkpoint is None
        used = self._gold_labels_used
        self.start = Start("keep", rate=self.start.rate, gold_labels=used)
        self._unread.clear()
        self._resumed_from, self.found_strength = checkpoint, None
        self._started = False
        self._results.clear()  # of an earlier model
        output = super().train(checkpoint, trial, ignore_keys_for_eval)
        part_with_votes(self.crowd_model)
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
            self.evaluate()  # the card describes the final model, not that of the last epoch
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
        crowd = self.crowd_of(self.train_dataset)
        meet_votes(self.crowd_model, self.train_dataset, crowd, self._resumed_from)
        if self._gold_labels_used:
            self.crowd_model.config.gold_labels_used = self._gold_labels_used
        if self._resumed_from and self.pair_is_ours:
            self._use_parts()
        guarded = self.args.guards and not self.crowd_model.learns_from_gold_labels
        self._watch = Watch(self.crowd_model, self.args, guarded, self.is_world_process_zero())
        self._watch.begin(self.train_dataset)

    def _strengthen(self) -> float | None:
        """Multiply W by the strength that the votes of the evaluation set suggest, if it has any."""
        model, dataset = self.crowd_model, self.eval_dataset
        asked = self.args.search_strength and model.loss_is_minus_gain
        if not asked or self.start.items is not None or not has_votes(dataset):
            return None  # left-out votes have decided it, or no votes can
        log_h, log_g = voted_posteriors(self.posteriors_of(dataset))
        with torch.no_grad(), whole_parameters(self.model):
            log_p = model.log_prior().cpu()
        strength = best_strength(log_h, log_g, log_p, model.config.divergence)
        with whole_parameters(self.model):
            model.aggregator.strengthen(strength)
        logger.info("W was multiplied by %.2f, by the gain on the evaluation set.", strength)
        return strength

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> TrainOutput:
        # After a `model_init` and before anything wraps the model, unless it is trained again, or
        # `auto_find_batch_size` tries a smaller batch.
        if self._fresh and not self._started:
            self._started = True
            with whole_parameters(self.model):
                if self.args.init != "keep":
                    self._begin()
                self._cross_validate()
        # W stays as it was found: it has no part in the loss.
        stays = [] if self.start.items is None else self.crowd_model.crowd_parameters()
        with without_gradient(stays):
            return super()._inner_training_loop(*args, **kwargs)

    def _begin(self) -> None:
        """Find the start of the training and apply it; this is the only place that does."""
        training, model = self._training(), self.crowd_model
        self.start = find_start(
            training, self.args.disable_tqdm or not self.is_local_process_zero()
        )
        if self.start.state:
            self._use_parts()
            model.load_state_dict(self.start.state, strict=False)
            self.start = dataclasses.replace(self.start, state={})
            if self.start.tried:
                self.optimizer = self._given_optimizer  # that of an earlier training has its rates
        else:
            initialize_from_votes(training, model)

    def _cross_validate(self) -> None:
        """Ask classifiers that have not seen an item about it, if the method needs that."""
        quiet = self.args.disable_tqdm or not self.is_local_process_zero()
        unseen = unseen_posteriors(self._training(), quiet)
        self.start = dataclasses.replace(self.start, unseen=unseen)

    def _use_parts(self) -> None:
        """Switch to the kinds of prior and aggregator that were found."""
        model, start = self.crowd_model, self.start
        if start.aggregator not in (None, model.config.aggregator):
            model.use_aggregator(start.aggregator)
        if start.prior is not None and start.prior != model.config.prior:
            model.use_prior(start.prior, [])

    def _training(self) -> Training:
        """The parts of this training that the search for its start needs."""
        return Training(
            model=self.crowd_model, args=self.args, train_dataset=self.train_dataset,
            eval_dataset=self.eval_dataset, start_from=self.start_from, gold=lambda: self.gold_labels,
            is_ours=self.pair_is_ours, own_optimizer=self._optimizer_given,
            train_briefly=self._train_briefly, features_of=self.features_of, collate=self.data_collator,
            unread=self._unread,
        )  # fmt: skip

    def _temper(self) -> bool:
        found = self.start.items
        if found is None or found.classifier >= 1.0:
            return False
        inputs = few_inputs(self.train_dataset, self.data_collator, self.args.device)
        return temper(self.crowd_model.classifier, found, inputs)

    def _save_beside(self, folder: Path) -> None:
        self.start.of(self.crowd_model).save(folder)
        save_votes(self.crowd_model, folder)

    @property
    def init(self) -> str:
        """How a fresh run starts, even if the arguments leave it open."""
        return way(self._training())

    @property
    def aggregator_rate(self) -> float:
        """The rate of W: the given one, the one found, or ten times the classifier's."""
        return aggregator_rate(self.args, self.crowd_model, self.start.rate)

    def _note_rates(self, state: TrainerState) -> None:
        """Log the settings that were tried."""
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
        """Make a silent trainer of another model for part of this training; it writes no files.

        Args:
            model: the model to train, from its present state.
            rows: the training items it has.
            share: of this training's epochs or steps; at least an epoch or 200 steps.
            seed: of the batches and of dropout; that of this training by default.
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
        """Compute the input of a model's output layer for each item: (N, D); None if it is no vector."""
        batches = map(self._prepare_inputs, self._own_dataloader(dataset))
        with self.autocast_smart_context_manager():
            return features_of(
                model.classifier, batches, model.config.num_labels, len(dataset), self.args.seed,
                self.accelerator.gather,
            )  # fmt: skip

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
            "`include_num_input_tokens_seen` also counts padding: there is no attention mask or padding token."
        )
        with swapped(self.args, "include_num_input_tokens_seen", "all"):
            super()._track_num_input_tokens(inputs)

    def _gather(self, tensor: Tensor) -> Tensor:
        if not self.args.gather_across_devices:
            return tensor
        # Batches that are balanced by length have any number of items.
        balanced = self.args.train_sampling_strategy == "batch_rebalance"
        return gather_with_gradient(tensor, None if balanced else self._train_batch_size)

    def get_train_dataloader(self) -> DataLoader:
        """Load what the method has prepared; on several devices, drop an incomplete last batch.

        accelerate would fill it up with items that are in it already, and compare them with themselves.

        Raises:
            ValueError: if there is no full batch.
        """
        found = {} if self.start.unseen is None else {"unseen": self.start.unseen}
        crowd = self.crowd_of(self.train_dataset)
        prepared = self.crowd_model.prepare(self.train_dataset, crowd, **found)
        drop = self.args.dataloader_drop_last or self.args.world_size > 1
        with (
            swapped(self, "train_dataset", prepared),
            swapped(self.args, "dataloader_drop_last", drop),
        ):
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
        """Load items as `Trainer` does; each batch carries the row numbers of its items (`hf_maxmig.data.numbered`)."""
        if not is_training:
            check_can_evaluate(self.args, dataset)
        keep = not is_training or self.start.items is not None or self.gold_labels is not None
        keep |= bool(vote_tables(self.crowd_model))
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
        """Read from the first item to the last, whatever the order of the training."""
        alone = has_length(eval_dataset) and self.args.world_size <= 1
        return SequentialSampler(eval_dataset) if alone else None

    def _init_training_state(
        self, max_steps: int, steps: int, epochs: int, checkpoint: str | None, trial: Any
    ) -> tuple[int, int]:
        done = super()._init_training_state(max_steps, steps, epochs, checkpoint, trial)
        if checkpoint is not None and self.state.global_step >= max_steps:
            return epochs, 0  # `Trainer` would continue in that epoch and take one more step
        if checkpoint is None or has_length(self.train_dataset):
            return done
        # `Trainer` takes all steps for one pass. `epoch` holds how many passes over a stream there were,
        # and what share of all steps the last one had.
        passes = int(self.state.epoch)
        batches = (self.state.epoch - passes) * max_steps * self.args.gradient_accumulation_steps
        return passes, 0 if self.args.ignore_data_skip else round(batches)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Build the optimizer of `Trainer`; the crowd's parameters get their own rate and no weight decay."""
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
        """Build the schedule of `Trainer`; where the gain is maximised, W's rate also has a warmup."""
        if self.lr_scheduler is not None:
            return self.lr_scheduler
        with swapped(self.args, "lr_scheduler_kwargs", schedule_settings(self.args)):
            scheduler = super().create_scheduler(num_training_steps, optimizer)
        if self.crowd_model.loss_is_minus_gain:
            rise = int(self.args.aggregator_warmup_ratio * num_training_steps)
            let_rise(scheduler, self._own_groups(), rise)
        return scheduler

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Also log the method's own values; warn once if steps had too few annotated items."""
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

    def class_order(self) -> Tensor:
        """Find the order of the classes that fits the votes on the training items best.

        Returns:
            (C,) int64, `order`: place r belongs to the present class `order[r]`; 0..C-1 if the names
            are right already, or the method's loss tells the classes apart.
        """
        gold = self.gold_labels if self.start_from is None else None
        training = self._training()
        with whole_parameters(self.crowd_model):
            # The items are taken anew each time: a stream is read more than once.
            return class_order(self.crowd_model, lambda: self.crowd_of(start_items(training)), gold)

    def name_classes(self) -> list[str] | None:
        """Give the classes the names that fit the votes best, in classifier, W and prior.

        The gain does not change when classes are exchanged, so training may leave two of them
        swapped.

        Returns:
            The previous names of the classes, in their new order; None if they were right already,
            or the method's loss tells the classes apart.
        """
        model, order = self.crowd_model, self.class_order()
        if torch.equal(order, torch.arange(len(order))):
            return None
        inputs = few_inputs(self.train_dataset, self.data_collator, self.args.device)
        with whole_parameters(model):
            return rename_classes(model, order, inputs)

    def listed_arguments(self) -> dict[str, Any]:
        """List the training arguments for the model card, with what the search found."""
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
