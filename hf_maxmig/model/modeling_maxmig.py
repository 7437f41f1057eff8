"""CrowdModel: a classifier that learns from crowd labels. MaxMIGModel: with aggregator and prior.

Both are Hub models. The other methods of the paper's comparison are in `peers/`.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .aggregators import AGGREGATORS, ClassPrior, WeightedAverageAggregator, check_prior
from .annotator_names import check_shared_as, hash_names, names_hashed
from .asking_by_name import AsksForVotes
from .carried import carrying_code
from .checked_loading import check_loaded, check_weights, damage_named
from .class_lists import check_outputs, in_order
from .config_checks import refusing
from .configuration_maxmig import MaxMIGConfig
from .exchange import another_aggregator, another_prior, exchange_annotators, prior_at
from .finite import check_finite
from .functional import Mixed, forecast, mutual_information_gain, widen
from .losses import minus_gain, of_partners
from .mixup import over_devices
from .outputs import Gather, MaxMIGOutput, PosteriorParts
from .plain_classifier import keep_weights
from .structures import built_bare
from .surgery import adapter_layers, answer_in_words, logits_of, merge_adapters, reorder_outputs
from .updating import UpdatedByVotes
from .votes import Votes, given_together
from .whole_files import MANIFEST, written_whole
from .wrapping import (
    as_hub_classifier,
    build_classifier,
    check_comes_back,
    check_fits,
    freeze,
    frozen_layers,
    task_and_class,
)


class CrowdModel(AsksForVotes, UpdatedByVotes, PreTrainedModel):
    """A classifier h that learns from crowd labels: what all methods share.

    `trainer.CrowdTrainer` never asks which method it trains. It calls these verbs: `prepare`,
    `initialize_crowd`, `crowd_parameters`, `prior_parameters`, `crowd_loss`, `end_epoch`,
    `log_prior`, `gain` and `logs`. All but `crowd_loss` have a default, and so has `confusion`, for
    measures. The class attributes describe everything else about a method.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.
    """

    method: ClassVar[str]  # as the literature calls it
    reference: ClassVar[str]  # the publication
    loss_is_minus_gain: ClassVar[bool] = False
    learns_from_gold_labels: ClassVar[bool] = False  # only `true_labels`, the ceiling
    # Whether the loss stays the same when classes are exchanged. If so, the votes name the classes.
    blind_to_class_names: ClassVar[bool] = False
    least_items: ClassVar[int] = 1  # with annotations, for a batch to teach anything
    folds: int = 0  # of a cross-validation before the training, see `prepare`; 0 for none
    # Whether the outputs for one item's input can be compared with the votes on another item.
    takes_blends: ClassVar[bool] = True
    # Whether `classifier` classifies by itself, with nothing on top of it.
    classifies_alone: ClassVar[bool] = True
    # Set by the package: the code that the Hub carries cannot write a card.
    pushed_with_card: ClassVar[Callable[..., contextlib.AbstractContextManager[None]] | None] = None

    config_class = MaxMIGConfig
    base_model_prefix = "classifier"
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    accepts_loss_kwargs = False
    supports_gradient_checkpointing = True
    # The classifier inside checks what it supports itself.
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: MaxMIGConfig, classifier: PreTrainedModel | None = None) -> None:
        with refusing("the config must be one that transformers builds a model of"):
            super().__init__(config)
        self.classifier = build_classifier(config) if classifier is None else classifier
        self.main_input_name = self.classifier.main_input_name
        self.input_modalities = self.classifier.input_modalities
        self._asked = answer_in_words(self.classifier)
        self.supports_gradient_checkpointing = self.classifier.supports_gradient_checkpointing
        with refusing(
            "`num_annotators` and the number of classes must make tables that can be built"
        ):
            self.build_crowd(config)
        self.post_init()

    def build_crowd(self, config: MaxMIGConfig) -> None:
        """Build the modules that depend on the annotators; none here."""

    @classmethod
    def from_classifier(
        cls,
        classifier: nn.Module,
        num_annotators: int | None = None,
        *,
        annotators: list[str] | None = None,
        **config_fields: Any,
    ) -> Self:
        """Make a crowd model from a classifier; the parts that depend on the annotators are untrained.

        Args:
            classifier: any classifier of transformers, or a timm model; its weights are kept.
            num_annotators: M, if the annotators have no names.
            annotators: M names.
            **config_fields: further fields of the method's config: `id2label`, which names outputs that
                have no names yet; for Max-MIG also `divergence`, `prior` and `aggregator`.

        Returns:
            The model; the classifier is not copied.

        Raises:
            TypeError: if `classifier` is neither from transformers nor from timm.
            ValueError: if neither the number nor the names of the annotators are given, the number of
                class names differs from the number of outputs, or the names differ from the
                classifier's own.
        """
        if num_annotators is None and annotators is None:
            raise ValueError("`num_annotators` or `annotators` must be given, got neither.")
        hub_classifier: Any = as_hub_classifier(classifier)
        if (names := config_fields.get("id2label")) is not None:
            check_outputs(in_order(hub_classifier.config.id2label), in_order(names))
        task, class_name = task_and_class(hub_classifier)
        config = cls.config_class(
            classifier_config=hub_classifier.config,
            classifier_task=task,
            classifier_class=class_name,
            num_annotators=num_annotators,
            annotators=annotators,
            # A composite config passes its own value on to its parts.
            attn_implementation=hub_classifier.config._attn_implementation,
            **config_fields,
        )
        config.dtype = hub_classifier.dtype
        check_comes_back(hub_classifier, config)
        return cls(config, classifier=keep_weights(hub_classifier))

    def _set_gradient_checkpointing(self, *args: Any, **kwargs: Any) -> None:
        self.classifier._set_gradient_checkpointing(*args, **kwargs)

    def get_input_embeddings(self) -> nn.Module | None:
        """Return the classifier's embeddings of text, else None: FSDP would shard patches twice."""
        try:
            embeddings = self.classifier.get_input_embeddings()
        except NotImplementedError:
            return None
        return embeddings if isinstance(embeddings, nn.Embedding) else None

    def forward(
        self,
        annotators: Tensor | None = None,
        annotations: Tensor | None = None,
        labels: Tensor | None = None,
        annotation_weights: Tensor | None = None,
        return_loss: bool | None = None,
        return_dict: bool | None = None,
        **classifier_inputs: Any,
    ) -> MaxMIGOutput | tuple[Tensor, ...]:
        """Classify. With annotations, also aggregate and forecast, if the method does.

        Args:
            annotators: (B, K) int64, who labelled each item, padded with -1.
            annotations: (B, K) int64, the votes of these annotators, padded with -1.
            labels: (B,) gold labels. They are accepted because data sets have them; only
                `true_labels` uses them.
            annotation_weights: (B, K) in 0..1, how much each vote counts; by default all count as 1.
            return_loss: also compute the loss of this batch, for training loops without a trainer.
            return_dict: False returns a tuple.
            **classifier_inputs: passed on to the classifier: `pixel_values`, `features`, `input_ids`,
                ...; floating-point tensors are cast to the type of its weights.

        Returns:
            Logits of h, g and zeta, see `MaxMIGOutput`.

        Raises:
            ValueError: if `annotators` or `annotations` is given without the other, or weights without
                them, or a loss is requested without them or with too few annotated items.
        """
        votes = given_together(annotators, annotations, annotation_weights)
        dtype = self.classifier.dtype
        for name, value in classifier_inputs.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                classifier_inputs[name] = value.to(dtype)
        output = self.outputs(votes, **classifier_inputs)
        if return_loss:
            if votes is None and not self.learns_from_gold_labels:
                raise ValueError(
                    "a loss must be computed from `annotators` and `annotations`, got neither."
                )
            batch = {} if votes is None else votes.as_batch()
            loss, empty = self.crowd_loss(
                output, batch if labels is None else batch | {"labels": labels}
            )
            if empty:
                raise ValueError(
                    f"a loss needs at least {self.least_items} item(s) with annotations in a "
                    "batch, got fewer."
                )
            output = type(output)(loss=loss, **output)
        return output.to_tuple() if return_dict is False else output

    def outputs(self, votes: Votes | None, **classifier_inputs: Any) -> MaxMIGOutput:
        """Compute the return value of `forward` from inputs that it has checked."""
        return MaxMIGOutput(logits=logits_of(self.classifier, classifier_inputs, self._asked))

    # The verbs

    def prepare(self, dataset: Any, crowd: Iterable[Votes], unseen: Tensor | None = None) -> Any:
        """Add to the training set what the method needs about each item; unchanged here.

        Args:
            dataset: the training set.
            crowd: its votes, part by part, in the order of the items.
            unseen: (N, C), log-probabilities by classifiers that have not seen the item; only with `folds`.

        Returns:
            A data set of as many items. It may have a further column `crowd_posterior` of C numbers
            per item, which reach `crowd_loss` as (B, C).
        """
        return dataset

    def hash_annotators(self, salt: str) -> None:
        """Replace the annotators' names by salted hashes, before the model is shared.

        The annotators, and all that was learned about them, are then sorted by hash. In the order of
        their names, which is mostly alphabetical, a list of names would reveal who is who.
        `hash_annotators(dataset, salt)` does the same to data. Call it before or after training, not
        in between: the optimizer's state stays in the old order.

        Args:
            salt: a secret of 16 characters or more.

        Raises:
            ValueError: if the salt is shorter, or the annotators have no names.
        """
        hash_names(self, salt)

    def reorder_annotators(self, order: Tensor) -> None:
        """Reorder the annotators in all that was learned about them: m becomes the former `order[m]`.

        Their names in the config stay. A method whose annotators have parameters or buffers outside
        a `Float32Module` must override this.

        Args:
            order: (M,) int64, a permutation.

        Raises:
            NotImplementedError: if the method should override this and does not.
        """
        exchange_annotators(self, order)

    def classifier_alone(self) -> PreTrainedModel:
        """Give the classifier the names of the classes, and return it.

        Raises:
            ValueError: if the method puts more on top of `classifier` to classify.
        """
        if not self.classifies_alone:
            raise ValueError(
                f"what classifies must be `model.classifier` alone, got {type(self).__name__}, which "
                "puts more on top of it: save the whole with `model.save_pretrained`."
            )
        self.classifier.config.id2label = dict(self.config.id2label)
        self.classifier.config.label2id = dict(self.config.label2id)
        return self.classifier

    @contextlib.contextmanager
    def shared_as(
        self,
        annotators: str = "names",
        salt: str | None = None,
        whole: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> Iterator[PreTrainedModel]:
        """Temporarily turn the model into the form that others may see.

        Args:
            annotators: `names` keeps the names, which may be personal data; `hashed` hashes them;
                `dropped` leaves the classifier alone.
            salt: a secret of 16 characters or more, for hashes.
            whole: a context that gathers parameters which are sharded over devices.

        Yields:
            The module to share: the model, or its classifier.

        Raises:
            ValueError: if `annotators` is none of the three; the salt is missing, too short or not
                needed; the annotators have no names to hash; or the classifier does not classify by
                itself.
        """
        check_shared_as(annotators, salt)
        if salt is None:
            yield self.classifier_alone() if annotators == "dropped" else self
            return
        with names_hashed(self, salt, whole):
            yield self

    def crowd_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters trained at the aggregator's rate; none here."""
        return iter(())

    def prior_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters trained at the prior's rate; none here."""
        return iter(())

    def initialize_crowd(
        self,
        batches: Iterable[Votes],
        smoothing: float = 0.01,
        voted: Tensor | None = None,
    ) -> None:
        """Initialise the modules of `build_crowd` from the training crowd alone; nothing here.

        Args:
            batches: the training crowd, part by part.
            smoothing: pseudo-labels added to each cell of a confusion matrix.
            voted: (C,) bool, the classes that somebody voted for; needed where the batches are only
                part of the crowd. The other classes get no prior mass.
        """

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss of a batch, in float32, without waiting for the device.

        Args:
            outputs: of `forward` on this batch.
            batch: `annotators` and `annotations`, each (B, K) int64 padded with -1, and
                `annotation_weights` if they have weights: `Votes.of(batch)`;
                `crowd_posterior`, (B, C), if `prepare` has added it; `labels`, (B,) gold labels,
                only if the method learns from them; `crowd_trusted`, (B, C), what a trusted annotator adds to
                log g, only if the user hands gold labels over to a method that maximises the gain.
            gather: joins a (B, ...) tensor over the devices, with gradient. It may append rows of
                zeros (False).

        Returns:
            The loss, and whether it is empty. With fewer than `least_items` annotated items it is
            zero, with zero gradient.
        """
        raise NotImplementedError

    def blended_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        mixed: Mixed,
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss of a batch of blends (mixup): the two items' losses, weighted by their shares.

        Args:
            outputs: of `forward` on blended inputs, with the items' own annotators and annotations.
            batch: as in `crowd_loss`, of the items themselves.
            mixed: how the items are blended; the share is the same on all devices that `gather` joins.
            gather: as in `crowd_loss`.

        Returns:
            As `crowd_loss`.
        """
        own, empty = self.crowd_loss(outputs, batch, gather)
        other, _ = self.crowd_loss(*of_partners(outputs, batch, mixed), gather)
        return mixed.share * own + (1 - mixed.share) * other, empty

    def end_epoch(self, parts: PosteriorParts, progress: float) -> None:
        """Take the method's step between epochs; none here.

        Args:
            parts: the training items, part by part: their `Posteriors` in evaluation mode, then the
                tensors of their `Votes`. They are computed only when iterated, which all devices must do.
            progress: share of the training that is done, up to 1.
        """

    def log_prior(self) -> Tensor:
        """Return (C,) log p, the belief about an item without votes; uniform here."""
        num_classes = self.config.num_labels
        return torch.full((num_classes,), -math.log(num_classes), device=self.device)

    def gain(self, log_h: Tensor, log_g: Tensor, annotated: Tensor | None = None) -> Tensor:
        """Compute `mutual_information_gain` under this model's prior and divergence."""
        return mutual_information_gain(
            log_h, log_g, self.log_prior(), self.config.divergence, annotated
        )

    def logs(self) -> dict[str, float]:
        """Return further values to log with the loss; none here."""
        return {}

    def confusion(self) -> Tensor | None:
        """Return the (M, C, C) confusion matrices that were learned, rows of true classes; None if none were."""
        return None

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike | None, *args: Any, **kwargs: Any
    ) -> Self:
        """Load like any model of transformers, but only complete safetensors, never a pickle.

        Args:
            pretrained_model_name_or_path: a folder, or a repository of the Hub.
            *args: as in `PreTrainedModel.from_pretrained`.
            **kwargs: as there.

        Returns:
            The model, in evaluation mode.

        Raises:
            ValueError: if the only weights are pickled; a file is incomplete or, in a folder, was changed after
                saving; or a tensor is missing, unexpected, or of another shape.
        """
        name, with_info = pretrained_model_name_or_path, kwargs.pop("output_loading_info", False)
        if name is not None:
            check_weights(name, **kwargs)
        may_differ = kwargs.pop("ignore_mismatched_sizes", False)
        model: Any
        with damage_named(name):
            model, found = super().from_pretrained(
                name, *args, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
            )
        if kwargs.get("state_dict") is None:  # else the caller chose the tensors
            check_loaded(name, found, may_differ)
        freeze(model.classifier, model.config.frozen or ())
        loaded: Any = (model, found) if with_info else model
        return loaded

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Save like any model of transformers, but completely or not at all: see `whole_files.written_whole`.

        PEFT adapters are merged into the layers, so that loading the model does not need PEFT.

        Args:
            save_directory: the folder, made if absent.
            **kwargs: as in `PreTrainedModel.save_pretrained`.

        Raises:
            ValueError: if a weight is not finite.
        """
        check_finite(self)
        if kwargs.get("state_dict") is None and adapter_layers(self):
            merged = merge_adapters(self)
            # The other layers were frozen only for the adapters.
            merged.classifier.requires_grad_(True)
            merged.save_pretrained(save_directory, **kwargs)
            return
        self.config.frozen = frozen_layers(self.classifier) or None
        target = Path(save_directory)
        carded: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if kwargs.get("push_to_hub"):
            kwargs.setdefault("repo_id", target.name)  # not that of the staging folder
            carded = self.with_card("names")
        with written_whole(target) as staging, carrying_code(self, Path(staging)), carded:
            super().save_pretrained(staging, **kwargs)

    def _upload_modified_files(self, working_dir: str, *args: Any, **kwargs: Any) -> Any:
        # The Hub has its own digests, and its files are edited one by one.
        Path(working_dir, MANIFEST).unlink(missing_ok=True)
        return super()._upload_modified_files(working_dir, *args, **kwargs)

    def push_to_hub(
        self, repo_id: str, *, annotators: str = "names", salt: str | None = None, **kwargs: Any
    ) -> str:
        """Upload like any model of transformers.

        Args:
            repo_id: name of the repository.
            annotators: what others see of the crowd, as in `shared_as`.
            salt: as there.
            **kwargs: as in `PreTrainedModel.push_to_hub`.

        Returns:
            As there.
        """
        with self.shared_as(annotators, salt) as shared, self.with_card(annotators):
            push = super().push_to_hub if shared is self else shared.push_to_hub
            return push(repo_id, **kwargs)

    def with_card(self, annotators: str) -> contextlib.AbstractContextManager[None]:
        """Add a model card to what is pushed; the package writes it, see `sharing.model_card.pushed_with_card`.

        Args:
            annotators: what others see of the crowd, as in `shared_as`.
        """
        if self.pushed_with_card is None:
            return contextlib.nullcontext()
        return self.pushed_with_card(annotators)


class MaxMIGModel(CrowdModel):
    """A classifier h and an aggregator g, joined by a class prior p (paper, Section 3.1).

    `forward` says what it does with a batch; `CrowdModel` lists the verbs that train it.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGModel
        >>> model = MaxMIGModel.from_classifier(
        ...     HeadClassifier(HeadConfig(input_size=5, num_labels=3)), annotators=["ann", "bob"])
        >>> votes = torch.tensor([[0, 1], [1, -1]]), torch.tensor([[2, 2], [0, -1]])
        >>> out = model(features=torch.zeros(2, 5), annotators=votes[0], annotations=votes[1])
        >>> out.forecast_logits.shape
        torch.Size([2, 3])
    """

    method = "Max-MIG"
    reference = (
        "Cao, Xu, Kong, Wang. Max-MIG: an Information Theoretic Approach for Joint Learning from "
        "Crowds. ICLR 2019."
    )
    loss_is_minus_gain = True
    blind_to_class_names = True
    least_items = 2
    # The aggregator of a method that has its own; otherwise the config names one.
    aggregator_class: ClassVar[type[WeightedAverageAggregator] | None] = None
    aggregator: WeightedAverageAggregator
    _keep_in_fp32_modules_strict = ["aggregator", "prior"]

    def build_crowd(self, config: MaxMIGConfig) -> None:
        """Build the prior and the aggregator.

        Raises:
            ValueError: if the config asks for another aggregator than the method's own.
        """
        own = self.aggregator_class
        if own is not None and config.aggregator != "weighted_average":
            raise ValueError(
                f"`aggregator` must be weighted_average for {self.method}, got "
                f"{config.aggregator!r}: it has an aggregator of its own."
            )
        aggregator_class = own or AGGREGATORS[config.aggregator]
        self.prior = ClassPrior(config.num_labels, config.prior)
        sizes = cast(int, config.num_annotators), config.num_labels
        with built_bare():
            check_fits(aggregator_class(*sizes))
        self.aggregator = aggregator_class(*sizes)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, WeightedAverageAggregator):
            module.reset(init)
        elif isinstance(module, ClassPrior):
            init.copy_(module.logits, module.initial_logits(self.config.num_labels))

    def outputs(self, votes: Votes | None, **classifier_inputs: Any) -> MaxMIGOutput:
        """Classify. With votes, also aggregate and forecast."""
        logits = logits_of(self.classifier, classifier_inputs, self._asked)
        if votes is None:
            return MaxMIGOutput(logits=logits)
        log_p = self.prior()
        log_g = self.aggregator(log_p, *votes)
        zeta = forecast(widen(logits).log_softmax(dim=-1), log_g, log_p)
        return MaxMIGOutput(logits=logits, aggregator_logits=log_g, forecast_logits=zeta)

    def crowd_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters trained at the aggregator's rate: its own."""
        yield from (p for p in self.aggregator.parameters() if p.requires_grad)

    def prior_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the prior's parameters, if it is learned."""
        yield from (p for p in self.prior.parameters() if p.requires_grad)

    def initialize_crowd(
        self,
        batches: Iterable[Votes],
        smoothing: float = 0.01,
        voted: Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        """Initialise aggregator and prior from the training crowd alone (paper, equation 2).

        To the arguments of `CrowdModel.initialize_crowd` it adds `scale`.

        Args:
            batches: the training crowd, part by part.
            smoothing: pseudo-labels added to each cell of a confusion matrix.
            voted: (C,) bool, the classes that somebody voted for.
            scale: the factor on the initial W; 1 is the paper's start.
        """
        shares = self.aggregator.initialize(batches, smoothing, scale)
        self.prior.initialize(shares, shares > 0 if voted is None else voted)

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute minus the gain of a batch, see `CrowdModel.crowd_loss`."""
        log_p, divergence = self.prior(), self.config.divergence
        return minus_gain(outputs, batch, log_p, divergence, self.least_items, gather)

    def blended_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        mixed: Mixed,
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute minus the gain of a batch of blends, see `CrowdModel.blended_loss`."""
        log_p, divergence = self.prior(), self.config.divergence
        joined = over_devices(mixed, gather)
        return minus_gain(outputs, batch, log_p, divergence, self.least_items, gather, joined)

    def use_aggregator(self, aggregator: str) -> None:
        """Switch to another kind of aggregator. W is kept; the scores of pairs of votes are not.

        Args:
            aggregator: as in `MaxMIGConfig`; the present kind changes nothing.

        Raises:
            ValueError: if `aggregator` is none of these, or one of the two is `factored`.
        """
        now = self.config.aggregator
        self.aggregator = another_aggregator(self.aggregator, now, aggregator)
        self.config.aggregator = aggregator

    def use_prior(self, prior: str | list[float], crowd: Iterable[Votes]) -> None:
        """Switch to another kind of prior; one that follows the crowd starts from the mean of g.

        Args:
            prior: as in `MaxMIGConfig`.
            crowd: the training crowd, part by part.

        Raises:
            ValueError: if `prior` is none of these.
        """
        self.config.prior = check_prior(prior, self.config.num_labels)
        self.prior = another_prior(self.prior, self.config.prior, self.aggregator, crowd)

    @torch.no_grad()
    def use_start(self, weight: Tensor, log_p: Tensor) -> None:
        """Set W and the prior to values found by other means.

        Args:
            weight: (M, C, C), W: annotator, scored class, reported class.
            log_p: (C,), log of the prior; `functional.NO_MASS` for a class that is left out. If it
                differs from the model's prior, the prior's kind becomes one that follows the votes.
        """
        self.aggregator.table.copy_(weight.transpose(1, 2))
        self.prior = prior_at(self.prior, log_p)
        if self.config.prior in ("uniform", "learned"):
            self.config.prior = self.prior.prior

    def log_prior(self) -> Tensor:
        """Return (C,) log p."""
        return self.prior()

    def logs(self) -> dict[str, float]:
        """Return the prior's entropy, and a learned prior class by class."""
        log_p = self.prior().detach()
        if hasattr(log_p, "full_tensor"):  # FSDP has spread it over the devices
            log_p = log_p.full_tensor()
        log_p = log_p.double().cpu()
        logs = {"prior_entropy": float(-(log_p.exp() * log_p).sum())}
        if self.config.prior == "learned":
            names = zip(self.config.class_names, log_p.exp(), strict=True)
            logs.update({f"prior_{name}": float(p) for name, p in names})
        return logs

    @torch.no_grad()
    def reorder_classes(self, order: Tensor, inputs: dict[str, Tensor]) -> bool:
        """Reorder the classes in classifier, aggregator and prior: r becomes the former `order[r]`.

        Args:
            order: (C,) int64, a permutation.
            inputs: a batch for the classifier, to verify that its outputs were reordered.

        Returns:
            Whether they were. If the output layer was not found, nothing has changed.
        """
        if not reorder_outputs(self.classifier, order, inputs):
            return False
        order = order.to(self.device)
        self.aggregator.reorder_classes(order)
        self.prior.logits.copy_(self.prior.logits[order].clone())
        return True


__all__ = ["CrowdModel", "MaxMIGModel", "MaxMIGOutput"]
