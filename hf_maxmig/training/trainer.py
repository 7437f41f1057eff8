"""CrowdTrainer: `Trainer` for any crowd method. MaxMIGTrainer: the same for any Hub classifier.

The trainer never asks which method it trains. It calls the few verbs that every crowd model has,
see `modeling_maxmig.CrowdModel`.
"""

import contextlib
import copy
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from datasets import Dataset
from datasets import IterableDataset as HubStream
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, IterableDataset, Sampler, SequentialSampler, Subset
from tqdm.auto import tqdm
from transformers import (
    EvalPrediction,
    PreTrainedModel,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import (
    EvalLoopOutput,
    IntervalStrategy,
    PredictionOutput,
    SaveStrategy,
    TrainOutput,
    has_length,
)
from transformers.utils import logging

from ..data.class_order import align_gold, align_outputs, hub_parts
from ..data.collator import (
    NOT_INPUTS,
    POSTERIOR_COLUMN,
    TRUSTED_COLUMN,
    CrowdCollator,
    arrow_rows,
    crowd_batches,
    input_names,
    padded,
)
from ..data.columns import check_is_dataset, crowd_names, has_crowd_columns, has_votes
from ..data.describe import describe
from ..data.numbered import (
    ROW,
    UNKNOWN,
    NumberedCollator,
    NumberedItems,
    check_each_once,
    check_first,
    first_batch,
    in_order,
    is_sequential,
    part_of,
    taken,
)
from ..judging.annotators import AnnotatorReport, judge_annotators
from ..judging.plots import need_matplotlib
from ..judging.relabel import most_suspect_first, relabelled, with_names, write_csv, write_parquet
from ..judging.report import write_report
from ..metrics import (
    LEAST_ITEMS,
    NO_LABEL,
    accuracies,
    check_predicted,
    gain_ceiling,
    gain_interval,
)
from ..model.aggregators import AGGREGATORS
from ..model.class_lists import differences, listed
from ..model.classifiers import HeadClassifier
from ..model.cross_entropy import against_targets
from ..model.functional import NO_MASS, Mixed, forecast, vote_share
from ..model.mixup import blended_inputs, draw_blends
from ..model.modeling_maxmig import CrowdModel, MaxMIGModel
from ..model.surgery import adapter_layers, output_layers, without_peft_model
from ..model.votes import is_annotated, voted_classes
from ..model.wrapping import as_hub_classifier, widen_for_training
from ..sharing.processors import portable_processor
from .checkpoints import swapped
from .class_names import clear_names
from .cross_fitted import (
    LEAST_STEPS,
    MOST_NUMBERS,
    check_found_for,
    features_of,
    has_votes_of,
    missing_for_start,
    missing_in_features,
    reads_items,
    start_of_training,
    temper,
)
from .distributed import (
    WholeBatches,
    from_first_process,
    gather_with_gradient,
    whole_parameters,
    without_gradient,
)
from .gold import handed_over, taught, trusted_columns, with_trusted
from .informed_start import start_from_votes_and_gold
from .precision import weights_kept
from .refusals import check_metric, check_model, schedule_settings
from .search import (
    Try,
    can_start_from_information,
    chosen,
    search_rate,
    start_and_search,
)
from .start import Start
from .strength import find_strength
from .training_args import AGGREGATOR_RATE_MULTIPLE, MaxMIGTrainingArguments
from .tuning import TunedTrainer
from .watch import Watch

logger = logging.get_logger(__name__)

STARTED = "start.safetensors"  # in a checkpoint: what was found out before the training

# What a user has not touched, the gain may choose: see `MaxMIGTrainingArguments.select_by_gain`.
LEFT_OPEN = (
    "eval_strategy", "save_strategy", "save_steps", "save_total_limit", "save_only_model", "load_best_model_at_end",
    "metric_for_best_model",
)  # fmt: skip


class CrowdTrainer(TunedTrainer):
    """Train a crowd model: a classifier learns from the columns `annotators` and `annotations`.

    Gold labels, where the data set has them, are only measured against, unless `use_gold_labels=True` says
    that those of the training set are to be learned from. Everything else of `Trainer` works as ever, with
    two defaults more:

    - Where it can be (`init="cross_fit"`), networks that have not seen an item say what it is before the
      training, and the classifier learns that (`hf_maxmig.training.start`). Of the items of `train_dataset`
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
        if args.num_train_epochs is None:
            args = copy.copy(args)  # a user may give theirs to another trainer
            sized = train_dataset is not None and hasattr(train_dataset, "__len__")
            args.num_train_epochs = args.epochs_for(len(train_dataset) if sized else None)
        if args.dataloader_persistent_workers:
            logger.warning_once(
                "`dataloader_persistent_workers` is ignored: no checkpoint holds the random states of workers "
                "that outlive an epoch, and a resumed training would come to other weights."
            )
            args = copy.copy(args)
            args.dataloader_persistent_workers = False
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
            self.pair_is_ours = not hasattr(model, "crowd_loss")
            # A stream that was mapped has often lost its features.
            named = start_from if None in crowd_names(train_dataset) else train_dataset
            plain = without_peft_model(model)
            if plain is not model and not self.pair_is_ours:
                raise TypeError(
                    "adapters must be put around the classifier, got them around a whole pair, whose aggregator they "
                    "would freeze: make the pair of `get_peft_model(classifier, ...)`."
                )
            if train_dataset is not None:
                widen_for_training(plain)
            annotators, classes = crowd_names(named)
            if self.pair_is_ours and hasattr(plain, "pretrained_cfg"):
                plain = as_hub_classifier(plain)
            if self.pair_is_ours and classes is not None and isinstance(plain, PreTrainedModel):
                collator = data_collator or CrowdCollator(
                    len(annotators or ()), len(classes), processing_class, input_names(plain)
                )
                align_outputs(
                    plain,
                    classes,
                    lambda: _classifier_inputs(
                        collator, named if train_dataset is None else train_dataset, plain.device
                    ),
                )
            pair = self.as_crowd_model(plain, now, named)
            check_model(now, pair)
            return pair

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
        self._epoch_end = _EndOfEpoch(self._end_epoch)
        self.add_callback(self._epoch_end)
        self.add_callback(_BeginOfTraining(self._note_rates))
        if data_collator is None:
            self.data_collator = CrowdCollator(
                num_annotators=self.crowd_model.config.num_annotators,
                num_classes=self.crowd_model.config.num_labels,
                processor=processing_class,
                input_names=input_names(self.crowd_model.classifier),
                vocabulary=getattr(self.crowd_model.classifier.config, "vocab_size", None),
            )
        self._empty_steps = torch.zeros((), device=self.args.device)
        self._empty_steps_told = False
        self._watch = Watch(self, on=False)
        self.found_rate: float | None = None  # of the aggregator, by the search
        self.found_strength: float | None = None  # of the aggregator, after training
        self._tries: list[Try] = []
        self._found: Start | None = None  # by cross-fitting, of the items of the training set
        self._gold_read: tuple[Any, Tensor] | None = None  # of which data set, see `gold_labels`
        # Tables of the training items, and what of them is where the batches are: see `_rows_of`.
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}
        # What the features of a classifier lack for that, as far as it is known.
        self._unread: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()
        self._own_votes: tuple[Any, bool] = (None, False)  # whether a training set has those of it
        self._of_training = False  # whether they are what is predicted now
        self._short_trainings: Any = None  # a progress bar
        by_gain = self.crowd_model.loss_is_minus_gain and self._init != "cross_fit"
        if args.select_by_gain and by_gain and has_votes(eval_dataset):
            self._select_by_gain()
        self._check_names(start_from)
        self.train_dataset = self._by_name(train_dataset)
        self.eval_dataset = self._by_name(eval_dataset)
        _ = self.gold_labels  # what cannot be used is refused now
        self._check_devices()

    def _check_devices(self) -> None:
        """Refuse what several devices cannot do, before anything is trained."""
        ways = getattr(self.accelerator, "parallelism_config", None)
        if ways is not None and ways.non_data_parallel_size > 1:
            raise ValueError(
                "`parallelism_config` must share out items only, got devices that share those of one batch "
                f"({ways.non_data_parallel_size} each): an item would be compared with itself. Use FSDP for a large model."
            )
        dataset = self.eval_dataset
        for part in dataset.values() if isinstance(dataset, dict) else [dataset]:
            self._check_can_evaluate(part)
        if self.args.fsdp and self.args.world_size > 1 and not self.is_fsdp_enabled:
            logger.warning_once(
                "`fsdp` is ignored: accelerate spreads no parameters over processes without accelerators."
            )
        if not adapter_layers(self.crowd_model):
            return
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ValueError(
                "a classifier with adapters must be whole on each device, got FSDP or DeepSpeed: adapters are merged "
                "when the pair is saved. Leave `fsdp` and `deepspeed` off."
            )
        outputs = output_layers(self.crowd_model.classifier, self.crowd_model.config.num_labels)
        if outputs and not any(layer.weight.requires_grad for layer in outputs):
            logger.warning_once(
                "The classifier's output layer is frozen: name it in `modules_to_save` of the adapter's config."
            )

    def _check_can_evaluate(self, dataset: Any) -> None:
        if isinstance(dataset, IterableDataset) and self.args.world_size > 1:
            raise ValueError(
                f"a stream must be evaluated on one device, got {self.args.world_size}: accelerate would fill up the "
                "last batch with items of the first. Give a `datasets.Dataset`, such as "
                "`Dataset.from_list(list(stream.take(1000)), features=stream.features)`."
            )

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

    def _select_by_gain(self) -> None:
        """Let the gain on the evaluation set choose the epoch, if the arguments leave that open."""
        defaults = TrainingArguments.__dataclass_fields__
        if any(getattr(self.args, name) != defaults[name].default for name in LEFT_OPEN):
            return
        self.args = copy.copy(self.args)  # a user may give theirs to another trainer
        self.args.eval_strategy = IntervalStrategy.EPOCH
        self.args.save_strategy = SaveStrategy.EPOCH
        self.args.save_total_limit = 1
        self.args.load_best_model_at_end = True
        self.args.metric_for_best_model = "gain"
        self.args.greater_is_better = True
        logger.info(
            "The evaluation set has votes: each epoch is evaluated and saved, and training ends with "
            "the one whose gain on it is highest. `select_by_gain=False` turns this off."
        )

    @staticmethod
    def as_crowd_model(
        model: nn.Module, args: MaxMIGTrainingArguments, dataset: Any
    ) -> PreTrainedModel:
        """Turn what the user passed into a crowd model; here it must be one already."""
        if not hasattr(model, "crowd_loss"):
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
        self._fresh, self._tries, self._found = checkpoint is None, [], None
        self._moved.clear()
        self._unread.clear()
        self._own_votes = None, False
        self._resumed_from, self.found_strength = checkpoint, None
        self._empty_steps.zero_()
        self._started = False
        self._results.clear()  # of an earlier pair
        output = super().train(checkpoint, trial, ignore_keys_for_eval)
        changed = self._temper()
        if self._found is None and self.args.name_classes:
            changed = self.name_classes() is not None
        self._watch.end()
        if self._tries:
            output.metrics["aggregator_learning_rate"] = self.aggregator_rate
        if self._tries or self._found is not None:
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
        self._check_before_training()
        if self._resumed_from:
            path = Path(self._resumed_from, STARTED)
            self._found = Start.load(path) if path.is_file() else None
            if self._found is not None:
                check_found_for(self._found, self.train_dataset, self.gold_labels)
            used = self._resumed.get("gold_labels_used", 0)
            if used != self._gold_labels_used:
                raise ValueError(
                    f"the gold labels that are used must be those of the checkpoint, {used} of them, got "
                    f"{self._gold_labels_used}: set `use_gold_labels` as it was, or train anew."
                )
        if self._gold_labels_used:
            self.crowd_model.config.gold_labels_used = self._gold_labels_used
        if self._resumed_from and self.pair_is_ours:
            found = type(self.crowd_model.config).from_pretrained(self._resumed_from)
            self.crowd_model.use_aggregator(found.aggregator)
            self.crowd_model.use_prior(found.prior, [])
        guarded = self.args.guards and not self.crowd_model.learns_from_gold_labels
        self._watch = Watch(self, on=guarded)
        self._watch.begin()

    def _check_before_training(self) -> None:
        """Refuse what would come out only after the search, or never."""
        args, model = self.args, self.crowd_model
        items = args.train_batch_size * (args.world_size if args.gather_across_devices else 1)
        if items < model.least_items:
            raise ValueError(
                f"`per_device_train_batch_size` must be {model.least_items} or more for {model.method}, got "
                f"{args.per_device_train_batch_size}: it compares the items of a batch."
            )
        if self._user_metrics is None and not isinstance(self.eval_dataset, dict):
            check_metric(args, model.loss_is_minus_gain)
        columns = getattr(self.train_dataset, "column_names", None) or ()
        named = args.length_column_name
        if (
            args.train_sampling_strategy in ("group_by_length", "batch_rebalance")
            and named != MaxMIGTrainingArguments.__dataclass_fields__["length_column_name"].default
            and named not in columns
        ):
            raise ValueError(
                f"`length_column_name` must be a column of the training set, got {named!r}: it has "
                f"{', '.join(columns) or 'none'}."
            )
        held_out = self.eval_dataset
        parts = held_out.values() if isinstance(held_out, dict) else [held_out]
        for part in () if self._short else (self.train_dataset, *parts):
            check_first(part, self.data_collator)

    def _strengthen(self) -> float | None:
        """Multiply W by what the votes of the evaluation set say, if it has any."""
        model, dataset = self.crowd_model, self.eval_dataset
        asked = self.args.search_strength and model.loss_is_minus_gain
        if not asked or self._found is not None or not has_votes(dataset):
            return None  # left-out votes have said it, or nobody can
        strength = find_strength(self, dataset)
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
                self._start()
        # What was found stays: W has no part in the loss.
        stays = [] if self._found is None else self.crowd_model.crowd_parameters()
        with without_gradient(stays):
            return super()._inner_training_loop(*args, **kwargs)

    def _start(self) -> None:
        args, model = self.args, self.crowd_model
        self._tries, self.found_rate = [], None
        if self._init == "cross_fit" and self._start_by_cross_fitting():
            return
        can = can_start_from_information(self)
        if args.init == "information" and not model.loss_is_minus_gain:
            raise ValueError(
                f"`init` must be 'vote_share' or 'keep' for {model.method}, got 'information': that start is for methods "
                "that maximise the gain."
            )
        if args.init == "information" and not can:
            raise ValueError(
                "`init` must be 'vote_share' or 'keep' unless the training set is a datasets.Dataset with votes, a "
                "full batch of items in each half of it, got 'information' with "
                f"{type(self.train_dataset).__name__}: each half of the items is predicted."
            )
        if args.init == "information" and self.start_from is not None:
            raise ValueError(
                "`start_from` must not be given with `init='information'`, which asks all training items, got "
                f"{_shown(self.start_from)}."
            )
        quiet = args.disable_tqdm or not self.is_local_process_zero()
        with tqdm(
            desc="Short trainings, to find a start and a rate", unit="", disable=quiet
        ) as bar:
            self._short_trainings = bar
            if self._init == "vote_share":
                crowd = self.crowd_of(self._start_items())
                model.initialize_crowd(
                    crowd, args.smoothing, args.init_strength, self._voted_classes()
                )
                if model.loss_is_minus_gain and self.start_from is None and self._gold_labels_used:
                    start_from_votes_and_gold(self)
                if self.searches and can:
                    self._tries = search_rate(self)
            else:
                self._tries = start_and_search(self)
        if self._tries:
            best = chosen(self._tries)
            self.found_rate = best.rate
            if best.aggregator != model.config.aggregator:
                model.use_aggregator(best.aggregator)
            if best.prior != model.config.prior:
                model.use_prior(best.prior, self.crowd_of(self.train_dataset))
            self.optimizer = None  # that of an earlier training has its rates

    def _start_by_cross_fitting(self) -> bool:
        """Find out what each item is, and give W and the prior what was found.

        Returns:
            Whether it was found: if features show only now that it cannot be, another start is taken,
            unless `init` asks for this one.
        """
        args, model, dataset = self.args, self.crowd_model, self.train_dataset
        problem = self._missing_for_cross_fit()
        if problem is None:
            features = self.features_of(dataset)
            problem = self._unread[model.classifier] = missing_in_features(features)
            if problem is not None and args.init is None:
                logger.warning(
                    "The training does not start as it does by default, for which it needs %s: it starts from `%s`.",
                    problem, self._init,
                )  # fmt: skip
                return False
        if problem is not None:
            raise ValueError(f"`init='cross_fit'` needs {problem}. Use another `init`.")
        crowd, prior, gold = padded(self.crowd_of(dataset)), None, self.gold_labels
        if not self.pair_is_ours or args.prior != "auto":
            shares = vote_share(crowd[1], model.config.num_labels)
            voted = shares.sum(dim=0) > 0
            if gold is not None:
                shares = taught(shares, trusted_columns(gold, model.config.num_labels))
                voted[gold[gold >= 0]] = True
            model.prior.initialize(shares.sum(dim=0), voted)
            prior = model.log_prior().detach().cpu()
        quiet, seen = args.disable_tqdm, cast(Tensor, features)
        self._found = from_first_process(
            lambda: start_of_training(model, args, seen, crowd, prior, quiet, gold)
        )
        model.use_start(self._found.weight, self._found.log_p)
        self.optimizer = None  # that of an earlier training has its rates
        return True

    def _missing_for_cross_fit(self) -> str | None:
        """Say what is missing for a start by cross-fitting; None if nothing is.

        What a pretrained classifier's output layer reads is looked at on two items, once.
        """
        model, dataset = self.crowd_model, self.train_dataset
        missing = missing_for_start(model, self.args, dataset, self.start_from)
        if missing is not None or isinstance(model.classifier, HeadClassifier):
            return missing or self._unread.get(model.classifier)
        if model.classifier not in self._unread:
            batch = first_batch(dataset, self.data_collator, 2)
            inputs = {n: t.to(model.device) for n, t in batch.items() if isinstance(t, Tensor)}
            reads = reads_items(model.classifier, inputs, model.config.num_labels)
            self._unread[model.classifier] = None if reads else missing_in_features(None)
        return self._unread[model.classifier]

    def _temper(self) -> bool:
        found = self._found
        if found is None or found.classifier == 1.0:
            return False
        inputs = _classifier_inputs(self.data_collator, self.train_dataset, self.args.device)
        return temper(self.crowd_model.classifier, found, inputs)

    def _save_beside(self, folder: Path) -> None:
        if self._found is not None:
            self._found.save(folder / STARTED)

    @property
    def _init(self) -> str:
        """How a fresh run starts, also where the arguments leave it open."""
        if self.args.init is not None:
            return self.args.init
        rates = self.args.searches_rate and not self._optimizer_given
        if rates and self._missing_for_cross_fit() is None:
            return "cross_fit"
        # A rival starts as its authors start it.
        asks_items = self.crowd_model.loss_is_minus_gain and self.start_from is None
        return "information" if asks_items and can_start_from_information(self) else "vote_share"

    def _voted_classes(self) -> Tensor | None:
        """Which classes the crowd has voted for, where not all of it starts the aggregator."""
        if self.start_from is None:
            return None
        num_classes = self.crowd_model.config.num_labels
        if not has_crowd_columns(self.train_dataset):  # all of a stream would be read for it
            return torch.ones(num_classes, dtype=torch.bool)
        parts = itertools.chain(
            self.crowd_of(self.train_dataset), self.crowd_of(self._start_items())
        )
        return voted_classes(parts, num_classes)

    def _start_items(self) -> Any:
        """Return the items whose votes start the aggregator and name the classes."""
        if isinstance(self.start_from, int):
            return _first(self.train_dataset, self.start_from)
        return self.train_dataset if self.start_from is None else self.start_from

    @property
    def searches(self) -> bool:
        """Whether rate, prior and aggregator are searched for.

        Not if the method does not maximise the gain, which decides; nor if the rate is given, or a
        whole optimizer is; nor if the pair was given with an aggregator that is on trial: its pairs
        of labels start at random, and at a slow rate stay so.
        """
        if not self.crowd_model.loss_is_minus_gain:
            return False
        kind = AGGREGATORS.get(getattr(self.crowd_model.config, "aggregator", ""))
        known = self.pair_is_ours or (kind is not None and not kind.on_trial)
        return self.args.searches_rate and not self._optimizer_given and known

    @property
    def aggregator_rate(self) -> float:
        """The rate of W: the given one, the one found, or ten times the classifier's.

        What a rival has for its crowd is trained as the classifier is, as its authors do.
        """
        if self.args.aggregator_learning_rate is not None:
            return self.args.aggregator_learning_rate
        if self.found_rate is not None:
            return self.found_rate
        if not self.crowd_model.loss_is_minus_gain:
            return self.args.learning_rate
        return AGGREGATOR_RATE_MULTIPLE * self.args.learning_rate

    @property
    def prior_rate(self) -> float:
        """The rate of a learned prior: C numbers cannot memorise items, and may have far to go."""
        if self.args.aggregator_learning_rate is not None:
            return self.args.aggregator_learning_rate
        return max(self.aggregator_rate, AGGREGATOR_RATE_MULTIPLE * self.args.learning_rate)

    def _note_rates(self, state: TrainerState) -> None:
        """Put what was tried in the log; a resumed run finds it there."""
        if self._fresh and self._found is not None:
            self.log(dict(self._found.likelihoods))
        elif self._fresh and self._tries:
            logs = {f"search_{one.name}": one.gain for one in self._tries if one.is_finite}
            self.log(logs | {"aggregator_learning_rate": self.aggregator_rate})
        elif not self._fresh:
            found = (logs.get("aggregator_learning_rate") for logs in state.log_history)
            self.found_rate = next((rate for rate in found if rate is not None), None)
            if state.global_step >= state.max_steps and not self._resumed["epoch_ended"]:
                self._end_epoch(1.0)  # killed between the last step and the end of its epoch

    def _manifest_facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"epoch_ended": self._epoch_end.done_at == self.state.global_step}
        return facts | (
            {"gold_labels_used": self._gold_labels_used} if self._gold_labels_used else {}
        )

    def sibling(
        self, model: CrowdModel, rows: list[int], share: float, **changes: Any
    ) -> "CrowdTrainer":
        """Make a trainer of another model for part of this training, which writes and says nothing.

        Args:
            model: what it trains, from where it is.
            rows: the training items it has.
            share: of this training's epochs or steps; an epoch or 200 steps at the least.
            **changes: of the arguments.
        """
        args = copy.copy(self.args)
        # Of few items an epoch, of many what is enough to learn something.
        steps = math.ceil(len(rows) / (args.train_batch_size * args.world_size))
        least = min(1.0, LEAST_STEPS * args.gradient_accumulation_steps / steps)
        args.num_train_epochs = max(least, share * (args.num_train_epochs or 1.0))
        args.max_steps = -1 if args.max_steps < 0 else math.ceil(share * args.max_steps)
        args.eval_strategy = args.save_strategy = args.logging_strategy = "no"
        args.load_best_model_at_end = args.push_to_hub = args.name_classes = args.guards = False
        args.use_gold_labels = False
        args.report_to, args.disable_tqdm, args.init = [], True, "keep"
        args.eval_on_start, args.skip_memory_metrics = False, True
        args.neftune_noise_alpha = None  # a copy of the model has this training's noise already
        for name, value in changes.items():
            setattr(args, name, value)
        trainer = CrowdTrainer(
            model=model,
            args=args,
            data_collator=self.data_collator,
            train_dataset=part_of(self.train_dataset, rows),
        )
        trainer._short = True
        trainer.remove_callback(PrinterCallback)
        if self._short_trainings is not None:
            self._short_trainings.update()
        return trainer

    def features_of(self, dataset: Any) -> Tensor | None:
        """Compute what the classifier's output layer reads of each item: (N, D); None if it has none."""
        model = self.crowd_model
        batches = map(self._prepare_inputs, self._own_dataloader(dataset))
        with self.autocast_smart_context_manager():
            return features_of(
                model.classifier, batches, model.config.num_labels, len(dataset), self.args.seed,
                self.accelerator.gather,
            )  # fmt: skip

    def crowd_of(self, dataset: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """Read the votes of a data set, checked: pairs of (n, K) annotators and annotations."""
        return crowd_batches(dataset, self._pair_checker())

    def _pair_checker(self) -> CrowdCollator:
        config = self.crowd_model.config
        return CrowdCollator(config.num_annotators, config.num_labels)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """Compute the loss of a batch, over all devices; gold labels are set aside first."""
        crowd_model = self.crowd_model
        if not crowd_model.learns_from_gold_labels:
            inputs = {name: value for name, value in inputs.items() if name != "labels"}
        if "annotations" not in inputs and not crowd_model.learns_from_gold_labels:
            raise ValueError(
                "a training batch must have `annotators` and `annotations`, got "
                f"{', '.join(inputs) or 'nothing'}: see `add_annotations`."
            )
        self._note_main_input(inputs)
        found, beside = self._found, {POSTERIOR_COLUMN, TRUSTED_COLUMN, ROW}
        gold = self.gold_labels
        if found is None and gold is not None and crowd_model.loss_is_minus_gain:
            known_gold = self._rows_of(gold, inputs[ROW])
            inputs[TRUSTED_COLUMN] = trusted_columns(known_gold, crowd_model.config.num_labels)
        if found is not None:
            beside |= {"annotators", "annotations"}  # what they say is in the targets
        given = {n: value for n, value in inputs.items() if n not in beside}
        mixed = self._blends(inputs) if self.args.mixup_alpha else None
        if mixed is not None:
            read = {n: value for n, value in given.items() if n not in NOT_INPUTS}
            given |= blended_inputs(read, mixed)
        outputs = model(**given)
        if found is not None:
            targets = self._rows_of(found.targets, inputs[ROW]).to(outputs.log_h)
            targets = targets if mixed is None else mixed.blend(targets)
            loss, empty = against_targets(outputs.log_h, targets, self._gather)
        elif mixed is not None:
            known = {n: value for n, value in inputs.items() if n in NOT_INPUTS}
            loss, empty = crowd_model.blended_loss(outputs, known, mixed, self._gather)
        else:
            loss, empty = crowd_model.crowd_loss(outputs, inputs, self._gather)
        self._empty_steps += empty
        self._note_loss(loss)
        self._watch.step(loss)
        return (loss, outputs) if return_outputs else loss

    def _blends(self, inputs: dict[str, Any]) -> Mixed:
        """Draw how the items of a batch are blended, to the same share on all devices that share a loss."""
        if self.crowd_model.learns_from_gold_labels and "labels" in inputs:
            taught = inputs["labels"] != NO_LABEL
        else:
            taught = is_annotated(inputs["annotators"], inputs["annotations"])
            if self.gold_labels is not None:
                taught |= self._rows_of(self.gold_labels, inputs[ROW]) >= 0
        mixed = draw_blends(taught, self.args.mixup_alpha)
        return mixed._replace(share=self._gather(mixed.share.repeat(len(taught)))[0])

    def _rows_of(self, table: Tensor, rows: Tensor) -> Tensor:
        """Look up what is known of a batch's items, on its own device: the host waits for no row numbers."""
        kept, moved = self._moved.get(id(table), (None, table))
        if kept is not table:
            moved = table.to(rows.device if table.numel() <= MOST_NUMBERS else "cpu")
            self._moved[id(table)] = table, moved
        return moved[rows.to(moved.device)]

    def _note_main_input(self, inputs: dict[str, Any]) -> None:
        """Have `Trainer` count and hand on what is in the batches: features, say, and no pictures."""
        model = self.crowd_model
        if model.main_input_name not in inputs:
            own = (name for name in inputs if name not in NOT_INPUTS)
            model.main_input_name = next(own, model.main_input_name)

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
        rest = {"is_training": is_training, "dataloader_key": dataloader_key}
        if isinstance(dataset, IterableDataset) and self.args.world_size > 1:
            if not is_training:
                self._check_can_evaluate(dataset)
            return self._shared_stream(dataset, description, batch_size, sampler_fn, **rest)
        if isinstance(dataset, IterableDataset) or not has_length(dataset):
            return super()._get_dataloader(dataset, description, batch_size, sampler_fn, **rest)
        items = NumberedItems(arrow_rows(dataset, self.data_collator), dataset)

        def sampler(_: Any) -> Sampler | None:  # what draws the items may look at columns
            return None if sampler_fn is None else sampler_fn(dataset)

        keep = not is_training or self._found is not None or self.gold_labels is not None
        collate = NumberedCollator(self.data_collator, keep)
        ordered = self.args.dataloader_in_order if is_training else True
        with (
            swapped(self, "data_collator", collate),
            swapped(self.args, "dataloader_in_order", ordered),
            # Else the first process collates for all, and joins batches of unlike widths.
            swapped(self.accelerator.dataloader_config, "dispatch_batches", False),
        ):
            return super()._get_dataloader(items, description, batch_size, sampler, **rest)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler | None:
        """Read from the first item to the last, whatever the order of training is."""
        alone = has_length(eval_dataset) and self.args.world_size <= 1
        return SequentialSampler(eval_dataset) if alone else None

    def _shared_stream(
        self, stream: Any, description: str, batch_size: int, *args: Any, **kwargs: Any
    ) -> DataLoader:
        """Let each process read the stream and keep its part of each batch, as one process would have it.

        Unless it is told to read shards of its own, by `dispatch_batches=False`.
        """
        config, world = self.accelerator.dataloader_config, self.args.world_size
        own_shards = config.dispatch_batches is False and isinstance(stream, HubStream)
        if not own_shards or stream.num_shards < world:
            stream = WholeBatches(stream, batch_size * world)
        # Else the first process collates for all, and joins batches of unlike widths.
        dispatch = bool(config.dispatch_batches)
        with swapped(config, "dispatch_batches", dispatch):
            return super()._get_dataloader(stream, description, batch_size, *args, **kwargs)

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
        own = self._own_rates()
        taken = {id(parameter) for parameters, _ in own for parameter in parameters}
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in taken]
        for parameters, rate in own:
            optimizer.add_param_group({"params": parameters, "lr": rate, "weight_decay": 0.0})
        return optimizer

    def _own_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        model = self.crowd_model
        own = [
            (list(model.crowd_parameters()), self.aggregator_rate),
            (list(model.prior_parameters()), self.prior_rate),
        ]
        return [(parameters, rate) for parameters, rate in own if parameters]

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> LRScheduler:
        """Build the schedule of `Trainer`; where the gain is maximised, W's rate has its own rise."""
        if self.lr_scheduler is not None:
            return self.lr_scheduler
        with swapped(self.args, "lr_scheduler_kwargs", schedule_settings(self.args)):
            scheduler = super().create_scheduler(num_training_steps, optimizer)
        rise = int(self.args.aggregator_warmup_ratio * num_training_steps)
        rises = rise > 0 and self.crowd_model.loss_is_minus_gain
        if not rises or not isinstance(scheduler, LambdaLR):
            return scheduler
        own = {id(p) for parameters, _ in self._own_rates() for p in parameters}
        for place, group in enumerate(scheduler.optimizer.param_groups):
            if group["params"] and all(id(p) in own for p in group["params"]):
                base = scheduler.lr_lambdas[place]
                scheduler.lr_lambdas[place] = functools.partial(_rising, base, rise)
                group["lr"] *= (1 / rise) ** 2
        scheduler._last_lr = [group["lr"] for group in scheduler.optimizer.param_groups]
        return scheduler

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what the method has beside the loss; say once if steps had too few annotated items."""
        if "loss" in logs:
            if self.crowd_model.loss_is_minus_gain and self._found is None:
                logs["gain"] = -logs["loss"]
            logs.update(self.crowd_model.logs())
            self._tell_empty_steps()
        super().log(logs, start_time)

    def _tell_empty_steps(self) -> None:
        if not self._empty_steps_told and self._empty_steps.item():
            self._empty_steps_told = True
            logger.warning(
                "%d step(s) had fewer than %d items with annotations, which %s needs, and taught nothing. Use larger "
                "batches, or leave out items without labels.",
                int(self._empty_steps), self.crowd_model.least_items, self.crowd_model.method,
            )  # fmt: skip

    def _end_epoch(self, progress: float) -> None:
        self.check_numbers()
        with whole_parameters(self.model):
            self.crowd_model.end_epoch(self.posteriors_of(self.train_dataset), progress)

    def posteriors_of(
        self, dataset: Any
    ) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor]]:
        """Yield what the model makes of the items, the same on all devices.

        The three (n, C) log-probabilities of part of the items, and their annotators and
        annotations. Nothing is computed before the first is asked for.
        """
        loader = self._own_dataloader(dataset)
        with swapped(self, "compute_metrics", None):
            output = self.evaluation_loop(loader, "Posterior", prediction_loss_only=False)
        self._check_rows(output.label_ids, dataset)
        log_h, log_g, log_forecast = (torch.from_numpy(p) for p in output.predictions)
        start = 0
        for annotators, annotations in self.crowd_of(dataset):
            part = slice(start, start + len(annotators))
            yield (log_h[part], log_g[part], log_forecast[part]), annotators, annotations
            start = part.stop
        if start != len(log_h):
            raise ValueError(
                f"the data set must have as many votes' items as it has items, got {start} and {len(log_h)}: does a "
                "transform leave items out?"
            )

    def _check_rows(self, label_ids: Any, dataset: Any) -> None:
        """Check that predictions are those of the items, one each, before they meet their votes."""
        if label_ids is not None and has_length(dataset):
            check_each_once(label_ids[2], len(dataset))

    def class_order(self) -> Tensor:
        """Find the order of the classes that fits the votes on the training items best.

        Returns:
            (C,) int64, `order`: place r belongs to what is class `order[r]` now; 0..C-1 if the names
            are right already, or the method's loss tells the classes apart.
        """
        model = self.crowd_model
        if not model.blind_to_class_names:
            return torch.arange(model.config.num_labels)
        device = model.aggregator.table.device
        gold = self.gold_labels if self.start_from is None else None

        def posteriors() -> Iterator[tuple[Tensor, Tensor]]:
            start = 0
            for annotators, annotations in self.crowd_of(self._start_items()):
                g = model.aggregator(model.prior(), annotators.to(device), annotations.to(device))
                said = torch.where(annotators >= 0, annotations, -1)
                if gold is not None:  # it outvotes all others on its item
                    own = gold[start : start + len(said), None]
                    said = torch.cat([said, own.expand(-1, said.shape[1] + 1)], dim=1)
                start += len(said)
                yield g.exp().cpu(), said

        # It may drop out; only now is it asked.
        with (
            torch.no_grad(),
            whole_parameters(model),
            swapped(model.aggregator, "training", False),
        ):
            return clear_names(posteriors)

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
        inputs = _classifier_inputs(self.data_collator, self.train_dataset, self.args.device)
        names = [model.config.class_names[c] for c in order]
        with whole_parameters(model):
            found = model.reorder_classes(order, inputs)
        if not found:
            logger.warning(
                "The votes say that classes came out exchanged (%s should be %s), but the output layer of %s was not "
                "found: rename them in `id2label`, or set `name_classes=False`.",
                ", ".join(names), ", ".join(model.config.class_names), type(model.classifier).__name__,
            )  # fmt: skip
            return None
        logger.info(
            "The votes name the classes in another order; it was changed from: %s.",
            ", ".join(names),
        )
        return names

    def listed_arguments(self) -> dict[str, Any]:
        """Tell what the card says of the training, with what the search found."""
        listed = super().listed_arguments() | {"init": self._init}
        maximises = self.crowd_model.loss_is_minus_gain and self._init != "cross_fit"
        if maximises:  # else these change nothing
            for name in ("init_strength", "aggregator_warmup_ratio"):
                listed[name] = getattr(self.args, name)
        if self._init != "cross_fit" and any(True for _ in self.crowd_model.crowd_parameters()):
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
        of_training = swapped(self, "_of_training", self._is_training_set(read))
        with keeping or contextlib.nullcontext(), of_training:
            output = super().evaluation_loop(dataloader, *args, **kwargs)
        if output.label_ids is None:
            return output
        labels, annotated, rows = output.label_ids
        dataset: Any = dataloader.dataset
        # A stream comes in its order; a loader of the user's has one that can be known.
        known = not has_length(dataset) or (is_sequential(dataloader) and len(rows) == len(dataset))
        if known and len(rows) and (rows < 0).all():
            rows = np.arange(len(rows))
        order = in_order(rows)
        return output._replace(
            predictions=taken(output.predictions, order),
            label_ids=taken((labels, annotated, rows), order),
        )

    def _is_training_set(self, dataset: Any) -> bool:
        """Whether items are the training set's, in their order: those that networks were cross-fitted on."""
        own = self.train_dataset
        if not has_length(dataset) or not has_length(own) or len(dataset) != len(own):
            return False
        if self._found is not None and len(dataset) != len(self._found.log_h):
            return False
        mark = getattr(dataset, "_fingerprint", None)
        if dataset is not own and (mark is None or mark != getattr(own, "_fingerprint", None)):
            return False
        if self._found is None:
            return True
        if self._own_votes[0] is not own:  # it may be another than the one that was trained on
            self._own_votes = own, has_crowd_columns(own) and has_votes_of(self._found, own)
        return self._own_votes[1]

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
        self._note_main_input(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs)
            log_h = outputs.log_h
            annotated = log_h.new_zeros(len(log_h), dtype=torch.bool)
            log_g, log_forecast = outputs.aggregator_logits, outputs.forecast_logits
            if log_g is None:
                log_p = self.crowd_model.log_prior()
                log_g, log_forecast = log_p.expand_as(log_h).contiguous(), log_h
            else:
                annotated = is_annotated(inputs["annotators"], inputs["annotations"])
        found = self._found if self._of_training and rows is not None else None
        if found is not None:
            # Of an item that it has learned the classifier says what the votes have said.
            log_h = found.log_h[rows.cpu()].to(log_h)
            log_forecast = forecast(log_h, log_g, self.crowd_model.log_prior())
        if self._of_training and rows is not None and self.gold_labels is not None:
            gold = self.gold_labels[rows.cpu()]
            if self.crowd_model.loss_is_minus_gain:
                columns = trusted_columns(gold, log_h.shape[1]).to(log_forecast)
                log_forecast = with_trusted(log_forecast, columns)
            if labels is not None:  # nothing is measured on what was learned
                labels = labels.masked_fill((gold >= 0).to(labels.device), NO_LABEL)
        if labels is None:
            labels = torch.full_like(annotated, NO_LABEL, dtype=torch.int64)
        if rows is None:
            rows = torch.full_like(annotated, UNKNOWN, dtype=torch.int64)
        return None, (log_h, log_g, log_forecast), (labels, annotated, rows)

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
        self._check_rows(output.label_ids, test_dataset)
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
        names = self.crowd_model.config.class_names
        log_h, log_g, log_forecast = output.predictions
        gold = self.gold_labels if self._is_training_set(self._by_name(dataset)) else None
        used = None if gold is None else (gold >= 0).numpy()
        told = relabelled(dataset, log_h, log_g, log_forecast, self._pair_checker(), names, used)
        told = most_suspect_first(told)
        if self.is_world_process_zero():
            file = Path(path or self._report_folder / "relabelled.parquet")
            if file.absolute().is_relative_to(Path(self.args.output_dir).absolute()):
                self._keep_from_uploads()
            named = with_names(told, self.annotator_names, names)
            write_parquet(named, file)
            write_csv(named, file.with_suffix(".csv"))
        return told

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
            self._watch.evaluated(eval_dataset, metric_key_prefix, metrics)
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
        log_h, log_g, log_forecast = taken(prediction.predictions, order)
        labels, annotated = labels[order], annotated[order].astype(bool)
        gold, known = labels != NO_LABEL, int((annotated & (labels != NO_LABEL)).sum())
        self._items = {
            "accuracy": int(gold.sum()), "aggregator_accuracy": known, "forecast_accuracy": known,
            "gain": int(annotated.sum()),
        }  # fmt: skip
        if self.is_in_train and (rows[order] == np.arange(len(order))).all():
            self._watch.see((log_h, log_g, log_forecast))
        metrics: dict[str, float] = {}
        if annotated.sum() >= 2:
            model, divergence = self.crowd_model, self.crowd_model.config.divergence
            h, g = (torch.from_numpy(t[annotated]).to(self.args.device) for t in (log_h, log_g))
            with torch.no_grad():
                gain, log_p = float(model.gain(h, g)), model.log_prior()
            check_predicted(log_h, log_g, annotated)
            metrics = {"gain": gain, "gain_ceiling": gain_ceiling(log_p, divergence)}
            if len(h) >= LEAST_ITEMS:
                low, high = gain_interval(h, g, log_p, divergence, gain)
                metrics |= {"gain_low": low, "gain_high": high}
            if model.loss_is_minus_gain:
                metrics["loss"] = -gain
        metrics |= accuracies(log_h, log_g, log_forecast, labels, annotated)
        if self._of_training and self._gold_labels_used:
            metrics["gold_labels_used"] = self._gold_labels_used
            logger.warning_once(
                f"{self._gold_labels_used} gold labels of the training set were used in the training: accuracies on it "
                "leave them out."
            )
        if self._user_metrics is not None:
            seen = prediction.inputs
            metrics |= self._user_metrics(
                EvalPrediction(
                    predictions=(log_h, log_g, log_forecast),
                    label_ids=labels,
                    inputs=None if seen is None else taken(seen, order),
                )
            )
        return metrics

    def _by_name(self, dataset: Any) -> Any:
        """Check the names of a data set, or of each of a dict, and number its gold labels as the model does."""
        self._check_names(dataset)
        classes = self.crowd_model.config.class_names
        if isinstance(dataset, dict):
            return {name: align_gold(part, classes) for name, part in dataset.items()}
        return align_gold(dataset, classes)

    def _check_names(self, dataset: Any) -> None:
        """Annotator 7 of the data set must be annotator 7 of the model, and so must the votes' classes."""
        for part in hub_parts(dataset):
            annotators, classes = crowd_names(part)
            config, known = self.crowd_model.config, self.annotator_names
            if annotators is not None and known is not None and annotators != known:
                new = sorted(set(annotators) - set(known))
                raise ValueError(
                    f"the data set's annotators must be those of the model, in its order, got {len(annotators)} for "
                    f"{config.num_annotators}, {len(new)} of them unknown ({', '.join(new[:3]) or 'none'}): use "
                    "`align_annotators(dataset, model.config.annotators)`."
                )
            if classes is not None and classes != config.class_names:
                raise ValueError(
                    f"the data set's classes must be those of the model, {listed(config.class_names)}, got "
                    f"{differences(classes, config.class_names)}: give `add_annotations` the model's `classes`."
                )


class MaxMIGTrainer(CrowdTrainer):
    """Train a classifier and an aggregator together by Max-MIG.

    With `use_gold_labels=True` a gold label on a training item counts as the answer of one more
    annotator, who is trusted (`hf_maxmig.training.gold`). Results on the training set leave these gold labels
    out, and its forecasts include them. A subset of the training set or a copy in another order cannot
    be recognised.

    Args:
        model: a `MaxMIGModel`; or a classifier of transformers or timm, which is wrapped in one:
            annotators and classes are read off the training set's features, divergence, prior and
            aggregator off `args`. It may have adapters of PEFT (`get_peft_model`, LoRA): only they
            are trained, and what else is not frozen; saved they are merged.
        args: the arguments.
        train_dataset: with crowd columns.
        **kwargs: as in `CrowdTrainer`.

    Raises:
        ValueError: if the model is a plain classifier and the training set's features do not name
            annotators and classes; or it is a crowd model and `args` ask for another divergence, prior
            or aggregator than its own.

    Example:
        >>> from datasets import Dataset
        >>> from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGTrainingArguments
        >>> from hf_maxmig import add_annotations
        >>> items = Dataset.from_dict({"name": ["a", "b"], "features": [[0.0, 1.0], [1.0, 0.0]]})
        >>> votes = {"item": ["a", "b"], "annotator": ["ann", "ann"], "annotation": ["cat", "dog"]}
        >>> trainer = MaxMIGTrainer(
        ...     model=HeadClassifier(HeadConfig(input_size=2, num_labels=2)),
        ...     args=MaxMIGTrainingArguments("out", report_to="none", use_cpu=True),
        ...     train_dataset=add_annotations(items, votes, item_column="name"),
        ... )
        >>> trainer.crowd_model.config.annotators, trainer.crowd_model.config.class_names
        (['ann'], ['cat', 'dog'])
    """

    @staticmethod
    def as_crowd_model(
        model: nn.Module, args: MaxMIGTrainingArguments, dataset: Any
    ) -> PreTrainedModel:
        """Wrap a plain classifier, with the names that the data set's features carry."""
        if hasattr(model, "crowd_loss"):
            _check_built_in(model, args)
            return model
        annotators, classes = crowd_names(dataset)
        if annotators is None or classes is None:
            raise ValueError(
                "`train_dataset` must name annotators and classes in its features (see "
                "`add_annotations` and `crowd_features`) for a plain classifier to be wrapped; or "
                "pass a `MaxMIGModel`."
            )
        return MaxMIGModel.from_classifier(
            model,
            annotators=annotators,
            id2label=dict(enumerate(classes)),
            divergence=args.divergence,
            prior=args.prior_value,
            aggregator=args.aggregator,
        )

    def report(
        self,
        dataset: Dataset,
        folder: str | os.PathLike[str] | None = None,
        title: str | None = None,
        metrics: dict[str, float] | None = None,
    ) -> AnnotatorReport:
        """Tell the owner of a data set whom to trust and which labels to look at again.

        Writes `report.html`, one page that needs nothing beside it, `annotators.csv`,
        `relabelled.parquet` and `relabelled.csv` (see `relabel`).

        Args:
            dataset: items with votes; gold labels, where it has them, are only measured against.
            folder: where the files go; `_report` in the output folder by default, which
                `push_to_hub` leaves out: the files name people and hold the data.
            title: of the page; the output folder's name by default.
            metrics: measured on other items, as `evaluate` returns them; shown beside.

        Returns:
            What is known of each annotator; printing it gives a few lines.

        Raises:
            ImportError: if matplotlib, which draws the page, is not installed.
            TypeError: if `dataset` is not a `datasets.Dataset`.
            ValueError: if it has no crowd columns, or has a column of `relabel` already.
        """
        need_matplotlib()
        summary = describe(dataset)
        folder = Path(folder or self._report_folder)
        output = self._posteriors(dataset)
        told = self._relabel(dataset, output, folder / "relabelled.parquet")
        model = self.crowd_model
        with torch.no_grad(), whole_parameters(model):
            # A vote for another class speaks against one that nobody voted for.
            left_out = model.prior.left_out[:, None]
            judged = judge_annotators(
                torch.from_numpy(output.predictions[0]),
                torch.where(left_out, NO_MASS, model.aggregator.weight).cpu(),
                self.crowd_of(dataset),
                self.annotator_names or [str(m) for m in range(model.config.num_annotators)],
                model.config.class_names,
            )
        if self.is_world_process_zero():
            judged.save(folder / "annotators.csv")
            write_report(
                folder / "report.html", judged, title=title or Path(self.args.output_dir).resolve().name,
                summary=str(summary), log_history=self.state.log_history,
                relabelled=told.with_format(None), metrics=metrics,
                gold_labels_used=model.config.gold_labels_used or 0,
            )  # fmt: skip
        self._judged = judged
        return judged


class _BeginOfTraining(TrainerCallback):
    """Calls when the state of a training is there, that of a resumed one too."""

    def __init__(self, begin: Callable[[TrainerState], None]) -> None:
        self.begin = begin

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Call."""
        self.begin(state)


class _EndOfEpoch(TrainerCallback):
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


def _check_built_in(model: PreTrainedModel, args: MaxMIGTrainingArguments) -> None:
    for name, value in (
        ("divergence", args.divergence),
        ("prior", args.prior_value),
        ("aggregator", args.aggregator),
    ):
        own = getattr(model.config, name, value)
        default = MaxMIGTrainingArguments.__dataclass_fields__[name].default
        if getattr(args, name) != default and value != own:
            raise ValueError(
                f"`{name}` must be that of the model, {own!r}, got {value!r}: it is built into a "
                "crowd model, give it to `from_classifier`."
            )


def _first(dataset: Any, number: int) -> Any:
    """Take the first items, without reading any that is not asked for."""
    if isinstance(dataset, HubStream):
        return dataset.take(number)
    if not hasattr(dataset, "__len__"):
        return itertools.islice(dataset, number)
    rows = range(min(number, len(dataset)))
    return dataset.select(rows) if isinstance(dataset, Dataset) else Subset(dataset, rows)


def _classifier_inputs(
    collator: Callable[[list[dict[str, Any]]], dict[str, Tensor]],
    dataset: Any,
    device: torch.device,
) -> dict[str, Tensor]:
    """Give a few items as the classifier takes them, for a look at its outputs."""
    batch = collator(list(_first(dataset, 8)))
    skipped = {"annotators", "annotations", "labels", POSTERIOR_COLUMN}
    return {name: tensor.to(device) for name, tensor in batch.items() if name not in skipped}


def _rising(base: Callable[[int], float], rise: int, step: int) -> float:
    return base(step) * min(1.0, (step + 1) / rise) ** 2


def _shown(start_from: Any) -> str:
    return f"{start_from} items" if isinstance(start_from, int) else type(start_from).__name__
