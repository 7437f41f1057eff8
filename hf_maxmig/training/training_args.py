"""MaxMIGTrainingArguments: everything of `TrainingArguments`, and what a crowd adds."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import HubStrategy

from ..model.annotator_names import SHARED_AS, check_salt
from .masking import hides, masked
from .refusals import refuse, refuse_as_given

AGGREGATOR_RATE_MULTIPLE = 10.0  # of the classifier's rate, where it is not searched for
STEPS, LEAST_EPOCHS, MOST_EPOCHS = 1500, 3, 100  # see `epochs_for`
# They upload the optimizer and the state of the random numbers, which are pickled.
_STRATEGIES_OF_CHECKPOINTS = (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS)

_PAPER: dict[str, Any] = {
    # Adam without decay, clipping or schedule (Appendix B.2).
    "optim": "adamw_torch",
    "weight_decay": 0.0,
    "max_grad_norm": 0.0,
    "lr_scheduler_type": "constant",
    "aggregator_learning_rate": 1e-4,
    "aggregator_warmup_ratio": 0.0,
    "init": "vote_share",
    "prior": "uniform",
    "smoothing": 0.01,
    "init_strength": 1.0,
    "name_classes": False,
    "select_by_gain": False,
    "search_strength": False,
    "mixup_alpha": 0.0,
}
PAPER_PRESETS: dict[str, dict[str, Any]] = {
    # Rates and batch sizes are the paper's (Appendix B.2); the epochs are those of the authors'
    # published code.
    "paper_labelme": {
        **_PAPER,
        "learning_rate": 1e-4,
        "per_device_train_batch_size": 64,
        # The authors train 20 epochs on ten augmented copies of each image.
        "num_train_epochs": 200,
    },
    "paper_cifar10": {
        **_PAPER,
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 64,
        "num_train_epochs": 50,
    },
    "paper_dogs_vs_cats": {
        **_PAPER,
        "learning_rate": 1e-4,
        "per_device_train_batch_size": 16,
        "num_train_epochs": 20,
        "prior": "learned",
    },
    "paper_luna16": {
        **_PAPER,
        "learning_rate": 1e-4,
        "per_device_train_batch_size": 16,
        "num_train_epochs": 20,
        "prior": "learned",
    },
}


@hides("hub_token", "hub_salt")
@dataclass(repr=False)
class MaxMIGTrainingArguments(TrainingArguments):
    """`TrainingArguments` for training from votes.

    Defaults that differ from the parent: `remove_unused_columns=False` (the collator picks what the
    classifier takes), `label_names=["labels"]`, `logging_nan_inf_filter=False` (a NaN loss shows),
    `learning_rate=1e-3`, `lr_scheduler_type="cosine"`, `per_device_train_batch_size=64` (the gain
    compares the items of a batch), `num_train_epochs` as many as make 1,500 steps, 3 to 50,
    `ddp_find_unused_parameters=False`, `dataloader_pin_memory` only with an accelerator; with
    `load_best_model_at_end`, `metric_for_best_model="gain"`.

    Args:
        divergence: row of Table 1, for a classifier that the trainer wraps.
        prior: class prior, for a classifier that the trainer wraps; by default uniform, or learned
            where the search says so.
        aggregator: for a classifier that the trainer wraps; `interaction` also learns what two votes
            say together, `factored` is for very many annotators and classes.
        aggregator_learning_rate: rate of W and of a learned prior; by default searched for, and for
            the prior at least ten times `learning_rate`. Methods that do not maximise the gain use
            the classifier's.
        search_rate: whether to search for it, where it is not given.
        aggregator_warmup_ratio: share of training over which that rate rises from zero, where the
            gain is maximised.
        gather_across_devices: compute the gain over the items of all devices.
        init: how a training starts; by default `cross_fit` where that is possible: the classifier learns
            what the votes, and networks that have not seen the item, say about it
            (`hf_maxmig.training.cross_fit`).
        smoothing: pseudo-votes in each cell of the confusion matrices that W starts from.
        init_strength: scale of that W; 1 is the paper's.
        name_classes: name the classes after training by the votes.
        select_by_gain: with an evaluation set that has votes, keep the epoch with the highest gain on
            it.
        search_strength: with an evaluation set that has votes, multiply W after training by the strength
            at which the gain on that set is highest; see `strength.best_strength`.
        mixup_alpha: parameter of the Beta distribution from which mixup draws the share of each of two
            blended items; 0 for no mixup.
        use_gold_labels: also learn from the gold labels of the training items (`hf_maxmig.training.gold`).
        guards: warn about what almost certainly went wrong.
        preset: the paper's protocol for one of its data sets.
        hub_annotators: what the Hub sees of the crowd. With `hashed` or `dropped`, callbacks do not see
            the names either, and trackers that upload checkpoints are refused.
        hub_salt: salt of the hashes. It is never written or shown, and neither is `hub_token`: the
            arguments have masks in their places when they are printed, pickled or copied by
            `dataclasses.asdict`.

    Raises:
        ValueError: if a value is out of range, or an option of the parent cannot go with crowd
            labels.

    Example:
        >>> MaxMIGTrainingArguments("out", preset="paper_cifar10").aggregator_learning_rate
        0.0001
    """

    divergence: Literal["kl", "pearson", "jensen_shannon"] = field(
        default="kl",
        metadata={
            "help": "Divergence of the gain, a row of the paper's Table 1. For a classifier that the trainer wraps in a "
            "`MaxMIGModel`."
        },
    )
    prior: str = field(
        default="auto",
        metadata={
            "help": "Class prior, for a classifier that the trainer wraps: `uniform`, `vote_share`, `learned`, or numbers "
            "separated by commas, such as `0.8,0.2`. `auto` is `uniform`, or `learned` where the gain on held-out "
            "votes is clearly higher with it: see `search_rate`."
        },
    )
    aggregator: Literal["weighted_average", "interaction", "factored"] = field(
        default="weighted_average",
        metadata={
            "help": "Aggregator, for a classifier that the trainer wraps. `weighted_average` is the paper's. `interaction` "
            "also learns what two votes say together; it is used only if the gain on held-out votes is clearly higher "
            "with it, see `search_rate`. `factored` has 2 C numbers per annotator instead of C^2, for crowds that are "
            "too large for the others."
        },
    )
    aggregator_learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Learning rate of the aggregator and of a learned prior. Default: see `search_rate`. Methods that do not "
            "maximise the gain use the classifier's rate."
        },
    )
    search_rate: bool = field(
        default=True,
        metadata={
            "help": "If `aggregator_learning_rate` is not given, find out before the training what W and the prior start from "
            "and how fast W learns: by the gain on held-out votes, on at most 20,000 items. The classifier is warmed "
            "up for a twentieth of the epochs. Small networks on its features, W and the prior are then trained in "
            "several settings at once. W starts from the best setting and learns at ten times `learning_rate`. A "
            "`HeadClassifier` is trained itself instead, for two fifths of the epochs each, with 10, 100 and 1 times "
            "`learning_rate`. So is whatever cannot be searched on features: another aggregator or divergence, gold "
            "labels, several devices, a classifier whose output layer is not found. That takes about as long as the "
            "training. If false, W learns at ten times `learning_rate`."
        },
    )
    aggregator_warmup_ratio: float = field(
        default=0.3,
        metadata={
            "help": "Share of the training over which the aggregator's rate rises quadratically from zero: slowly while the "
            "classes form, fast afterwards."
        },
    )
    gather_across_devices: bool = field(
        default=True,
        metadata={
            "help": "Compute the gain over the items of all devices. The step then equals that of one process with the same "
            "global batch."
        },
    )
    init: Literal["cross_fit", "information", "vote_share", "keep"] | None = field(
        default=None,
        metadata={
            "help": "How a new run starts. `cross_fit`: small networks on features of the items are trained by the gain, each "
            "without the items that it judges. Left-out votes decide how much the networks and the votes count. The "
            "classifier then learns what both say about each item, and W stays as it was found. With the others, "
            "classifier and W maximise the gain together. `information`: annotators count as much as they agree with "
            "briefly trained classifiers, or with networks on the features of one (see `search_rate`), and the "
            "classifier starts warm; this takes a tenth to a sixth of the training time. `vote_share`: the paper's "
            "equation 2. `keep`: what the model has, as a resumed run always does. Default: `cross_fit` for the "
            "paper's aggregator and divergence, else `information`. It is `vote_share` where neither is possible: for "
            "a stream, with FSDP or DeepSpeed, and for methods that do not maximise the gain."
        },
    )
    smoothing: float = field(
        default=0.01,
        metadata={
            "help": "Pseudo-votes added to each cell of the confusion matrices that W starts from."
        },
    )
    init_strength: float = field(
        default=0.5,
        metadata={
            "help": "Scale of the initial W; 1 is the paper's. An annotator's own votes are part of the vote share they are "
            "compared with, and copied votes count each time they occur. At scale 1 the first aggregator is therefore "
            "overconfident. If the classifier never gives some classes that most annotators confuse with others, try "
            "0.75: a W that starts too weak lets them merge."
        },
    )
    name_classes: bool = field(
        default=True,
        metadata={
            "help": "After training, give each class the name that fits the votes best. The gain does not change when classes "
            "are exchanged; without this, two of them may come out swapped."
        },
    )
    select_by_gain: bool = field(
        default=True,
        metadata={
            "help": "With an `eval_dataset` that has votes, evaluate and save each epoch, and end with the epoch of the "
            "highest gain. This needs no gold label. It applies only if `eval_strategy`, `save_strategy`, "
            "`save_total_limit`, `load_best_model_at_end` and `metric_for_best_model` are all left at their defaults, "
            "and `eval_dataset` is not a dictionary. Not with `init=cross_fit`, where more epochs do no harm."
        },
    )
    search_strength: bool = field(
        default=True,
        metadata={
            "help": "With an `eval_dataset` that has votes, multiply W after the training by the strength at which the gain on "
            "these votes is highest. The fewer votes there are, the nearer it stays to 1. A classifier that memorises "
            "items otherwise makes the votes count too much. Not with `init=cross_fit`, where left-out votes decide "
            "it."
        },
    )
    mixup_alpha: float = field(
        default=0.0,
        metadata={
            "help": "Train on blends of two items of a batch (mixup): their inputs, and what is learned about them, are mixed "
            "by a share that is drawn from Beta(alpha, alpha) for each batch. 0 turns it off. It makes the classifier "
            "less confident, which helps where it is overconfident and harms elsewhere: see "
            "`docs/training_arguments.md`. Only for classifiers that read real numbers (`pixel_values`, `features`, "
            "`input_features`, `input_values`)."
        },
    )
    use_gold_labels: bool = field(
        default=False,
        metadata={
            "help": "Also learn from gold labels: those in the column `labels` or `label` of the training set, on items that "
            "have one (-100, -1 or None elsewhere). They count as the votes of one more annotator, who is trusted, and "
            "decide how confident forecasts may be. For that the items with gold labels should be drawn at random. "
            "Results on the training set leave these labels out. If false, gold labels are only measured against."
        },
    )
    guards: bool = field(
        default=True,
        metadata={
            "help": "Warn, once each, about too few votes, about merged or exchanged classes, and about a gain that rises in "
            "training while it falls on the evaluation set."
        },
    )
    preset: str | None = field(
        default=None,
        metadata={
            "help": f"The paper's protocol for a data set: {', '.join(PAPER_PRESETS)}. It sets each argument that you "
            "leave at its default."
        },
    )

    hub_annotators: Literal["names", "hashed", "dropped"] = field(
        default="names",
        metadata={
            "help": "What `push_to_hub` shares about the annotators. `names`: their names, which may be personal data. "
            "`hashed`: salted hashes instead. `dropped`: nothing, only the classifier is pushed. With `hashed` and "
            "`dropped` nothing is pushed before the end of the training."
        },
    )
    hub_salt: str | None = field(
        default=None,
        metadata={"help": "Salt for `hub_annotators=hashed`: a secret of at least 16 characters."},
    )

    learning_rate: float = field(
        default=1e-3, metadata={"help": "Learning rate of the classifier."}
    )
    num_train_epochs: float | None = field(
        default=None,
        metadata={
            "help": f"Epochs. Default: as many as make {STEPS:,} steps, at least {LEAST_EPOCHS} and at most {MOST_EPOCHS}."
        },
    )
    lr_scheduler_type: str = field(default="cosine", metadata={"help": "Schedule of both rates."})
    per_device_train_batch_size: int = field(
        default=64,
        metadata={
            "help": "Items per device and step. The gain compares the items of a batch with each other."
        },
    )
    remove_unused_columns: bool = field(
        default=False,
        metadata={
            "help": "Must stay False: the collator picks the columns that the classifier takes."
        },
    )
    label_names: list[str] | None = field(
        default_factory=lambda: ["labels"],
        metadata={"help": "Column of the gold labels, if there are any."},
    )
    logging_nan_inf_filter: bool = field(
        default=False,
        metadata={"help": "Whether to hide steps whose loss is not finite from the log."},
    )
    dataloader_pin_memory: bool = field(
        default_factory=torch.accelerator.is_available,
        metadata={
            "help": "Whether batches wait in pinned memory. Default: only with an accelerator."
        },
    )
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "Whether DDP looks for parameters without gradient."}
    )

    def __post_init__(self) -> None:
        if self.preset is not None:
            self._apply_preset()
        if self.load_best_model_at_end and getattr(self, "metric_for_best_model", None) is None:
            self.metric_for_best_model = "gain"
        refuse_as_given(self)
        super().__post_init__()
        self.check()

    def check(self) -> None:
        """Check what was given, or what a search over hyperparameters has set.

        Raises:
            ValueError: if a value is out of range, or an option of the parent cannot go with crowd
                labels.
        """
        refuse(self)
        self.check_sharing()

    def check_sharing(self) -> None:
        """Check before the training what may be shared: after it, an error would come too late.

        Raises:
            TypeError: if the salt is not a string.
            ValueError: if `hub_annotators` is none of the three values, if the salt is missing, too short
                or not needed, or if checkpoints would be uploaded.
        """
        if self.hub_annotators not in SHARED_AS:
            raise ValueError(
                f"`hub_annotators` must be one of {', '.join(SHARED_AS)}, got {self.hub_annotators!r}."
            )
        if (self.hub_annotators == "hashed") != (self.hub_salt is not None):
            raise ValueError(
                "`hub_salt` must be given with `hub_annotators='hashed'`, and only with it, got "
                f"{'none' if self.hub_salt is None else 'one'} with {self.hub_annotators!r}."
            )
        if self.hub_salt is not None:
            check_salt(self.hub_salt, "hub_salt")
        if self.push_to_hub and self.hub_strategy in _STRATEGIES_OF_CHECKPOINTS:
            raise ValueError(
                f"`hub_strategy` must be 'end' or 'every_save', got '{HubStrategy(self.hub_strategy).value}': what a "
                "checkpoint holds beside the model is pickled, and a pickle can run any code when it is loaded. "
                "Resume from the output folder."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, with the secrets masked."""
        return {name: masked(value) for name, value in super().to_dict().items()}

    def __str__(self) -> str:
        return masked(super().__str__())

    __repr__ = __str__

    @property
    def prior_value(self) -> str | list[float]:
        """The prior as a config takes it: a name, or numbers."""
        if self.prior == "auto":
            return "uniform"
        if "," not in self.prior:
            return self.prior
        try:
            return [float(part) for part in self.prior.split(",")]
        except ValueError as error:
            raise ValueError(
                f"`prior` must be a name or numbers separated by commas, got {self.prior!r}."
            ) from error

    @property
    def searches_rate(self) -> bool:
        """Whether the aggregator's rate is to be searched for."""
        return self.search_rate and self.aggregator_learning_rate is None

    def epochs_for(self, num_items: int | None) -> float:
        """Compute how many epochs to train, if none are given: the fewer items, the more epochs.

        Args:
            num_items: of the training set; None if its length is unknown.
        """
        if num_items is None:
            return LEAST_EPOCHS
        batch = self.train_batch_size * self.gradient_accumulation_steps * self.world_size
        epochs = math.ceil(STEPS * batch / max(1, num_items))
        return float(min(max(epochs, LEAST_EPOCHS), MOST_EPOCHS))

    def _apply_preset(self) -> None:
        if self.preset not in PAPER_PRESETS:
            raise ValueError(
                f"`preset` must be one of {', '.join(PAPER_PRESETS)}, got {self.preset!r}."
            )
        defaults = {f.name: f.default for f in fields(self)}
        for name, value in PAPER_PRESETS[self.preset].items():
            if getattr(self, name) == defaults[name]:
                setattr(self, name, value)
