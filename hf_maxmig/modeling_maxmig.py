"""MaxMIGModel: classifier, aggregator and prior as one Hub model."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.utils import ModelOutput

from .aggregator import ClassPrior, WeightedAverageAggregator
from .classifiers import CLASSIFIERS, keep_weights, reorder_outputs
from .configuration_maxmig import MaxMIGConfig
from .functional import (
    forecast,
    is_given,
    mutual_information_gain,
    reward_and_penalty,
    widen,
)

AUTO_CLASSES = {
    "image-classification": AutoModelForImageClassification,
    "text-classification": AutoModelForSequenceClassification,
    "audio-classification": AutoModelForAudioClassification,
}


@dataclass
class MaxMIGOutput(ModelOutput):
    """What a forward pass gives.

    Args:
        loss: scalar, minus the gain of the batch in nats; only if asked for by `return_loss=True`.
        logits: (B, C), the classifier's, not normalised.
        aggregator_logits: (B, C), log g; None without annotations.
        forecast_logits: (B, C), log zeta; None without annotations.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    aggregator_logits: Tensor | None = None
    forecast_logits: Tensor | None = None


class MaxMIGModel(PreTrainedModel):
    """A classifier h and an aggregator g, joined by a class prior p (paper, Section 3.1).

    What it does with a batch is in `forward`; `trainer.CrowdTrainer` trains it through five verbs
    that every crowd model has: `crowd_parameters`, `initialize_crowd`, `crowd_loss`, `gain` and
    `reorder_classes`.

    Args:
        config: what the pair is made of.
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

    config_class = MaxMIGConfig
    base_model_prefix = "classifier"
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    accepts_loss_kwargs = False
    supports_gradient_checkpointing = True
    _keep_in_fp32_modules_strict = ["aggregator", "prior"]
    # The classifier inside checks what it supports itself.
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: MaxMIGConfig, classifier: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        self.classifier = build_classifier(config) if classifier is None else classifier
        self.prior = ClassPrior(config.num_labels, config.prior)
        self.aggregator = WeightedAverageAggregator(
            cast(int, config.num_annotators), config.num_labels
        )
        self.main_input_name = self.classifier.main_input_name
        self.input_modalities = self.classifier.input_modalities
        self.supports_gradient_checkpointing = self.classifier.supports_gradient_checkpointing
        self.post_init()

    @classmethod
    def from_classifier(
        cls,
        classifier: nn.Module,
        num_annotators: int | None = None,
        *,
        annotators: list[str] | None = None,
        **config_fields: Any,
    ) -> "MaxMIGModel":
        """Put an untrained aggregator beside a classifier.

        Args:
            classifier: any classifier of transformers, or a timm model; its weights are kept.
            num_annotators: M, if the annotators have no names.
            annotators: M names.
            **config_fields: further fields of `MaxMIGConfig`: `divergence`, `prior`, `id2label`.

        Returns:
            The model; the classifier is not copied.

        Raises:
            TypeError: if `classifier` is neither from transformers nor from timm.
            ValueError: if neither the number nor the names of the annotators are given, or the
                class names are not as many as the classifier's outputs.
        """
        if num_annotators is None and annotators is None:
            raise ValueError("`num_annotators` or `annotators` must be given, got neither.")
        hub_classifier: Any = as_hub_classifier(classifier)
        names = config_fields.get("id2label")
        if names is not None and len(names) != hub_classifier.config.num_labels:
            raise ValueError(
                f"the classifier must have one output a class = {len(names)}, got "
                f"{hub_classifier.config.num_labels}: load it with `num_labels={len(names)}, "
                "ignore_mismatched_sizes=True`."
            )
        config = MaxMIGConfig(
            classifier_config=hub_classifier.config,
            classifier_task=_task_of(hub_classifier),
            num_annotators=num_annotators,
            annotators=annotators,
            # A composite config hands its own down to its parts.
            attn_implementation=hub_classifier.config._attn_implementation,
            **config_fields,
        )
        config.dtype = hub_classifier.config.dtype
        return cls(config, classifier=keep_weights(hub_classifier))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, WeightedAverageAggregator):
            init.zeros_(module.table)
        elif isinstance(module, ClassPrior):
            init.copy_(module.logits, module.initial_logits(self.config.num_labels))

    def _set_gradient_checkpointing(self, *args: Any, **kwargs: Any) -> None:
        self.classifier._set_gradient_checkpointing(*args, **kwargs)

    def get_input_embeddings(self) -> nn.Module:
        """Return the classifier's, for text."""
        return self.classifier.get_input_embeddings()

    def forward(
        self,
        annotators: Tensor | None = None,
        annotations: Tensor | None = None,
        labels: Tensor | None = None,
        return_loss: bool | None = None,
        return_dict: bool | None = None,
        **classifier_inputs: Any,
    ) -> MaxMIGOutput | tuple[Tensor, ...]:
        """Classify, and with annotations aggregate and forecast.

        Args:
            annotators: (B, K) int64, who labelled each item, padded with -1.
            annotations: (B, K) int64, what each of them said, padded with -1.
            labels: (B,) gold labels; accepted because data sets have them, and never used.
            return_loss: also compute minus the gain of this batch, for training loops without a
                trainer.
            return_dict: False gives a tuple.
            **classifier_inputs: go to the classifier: `pixel_values`, `features`, `input_ids`, ...

        Returns:
            Logits of h, g and zeta, see `MaxMIGOutput`.

        Raises:
            ValueError: if only one of `annotators` and `annotations` is given, or a loss is asked
                for without them.
        """
        if (annotators is None) != (annotations is None):
            missing = "annotators" if annotators is None else "annotations"
            raise ValueError(
                f"`annotators` and `annotations` must be given together, got no `{missing}`."
            )
        logits = self.classifier(**classifier_inputs, return_dict=True).logits
        log_g = zeta = loss = None
        if annotators is not None and annotations is not None:
            log_p = self.prior()
            log_g = self.aggregator(log_p, annotators, annotations)
            log_h = widen(logits).log_softmax(dim=-1)
            zeta = forecast(log_h, log_g, log_p)
            if return_loss:
                loss = -self.gain(log_h, log_g, is_annotated(annotators, annotations))
        elif return_loss:
            raise ValueError(
                "a loss must be computed from `annotators` and `annotations`, got neither."
            )
        output = MaxMIGOutput(
            loss=loss, logits=logits, aggregator_logits=log_g, forecast_logits=zeta
        )
        return output.to_tuple() if return_dict is False else output

    def crowd_parameters(self) -> Iterator[nn.Parameter]:
        """Yield what is trained at the aggregator's rate: W, and the prior if it is learned."""
        for module in (self.aggregator, self.prior):
            yield from (p for p in module.parameters() if p.requires_grad)

    def initialize_crowd(
        self,
        batches: Iterable[tuple[Tensor, Tensor]],
        smoothing: float = 0.01,
        strength: float = 1.0,
    ) -> None:
        """Start aggregator and prior from the training crowd alone (paper, equation 2).

        Args:
            batches: pairs (annotators, annotations), each (N, K) int64 padded with -1, together the
                training crowd.
            smoothing: pseudo-labels added to each cell of a confusion matrix.
            strength: what W is multiplied by; 1 is the paper's start.
        """
        self.prior.initialize(self.aggregator.initialize(batches, smoothing, strength))

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        annotators: Tensor,
        annotations: Tensor,
        gather: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute minus the gain of a batch, in float32, without waiting for the device.

        Args:
            outputs: of `forward` on this batch.
            annotators: (B, K) int64, padded with -1.
            annotations: (B, K) int64, padded with -1.
            gather: joins a (B, ...) tensor over the devices, with gradient.

        Returns:
            The loss, and whether it is empty: with fewer than two annotated items it is zero, with
            zero gradient.
        """
        annotated = gather(is_annotated(annotators, annotations))
        reward, penalty = reward_and_penalty(
            gather(widen(cast(Tensor, outputs.logits)).log_softmax(dim=-1)),
            gather(cast(Tensor, outputs.aggregator_logits)),
            self.prior(),
            self.config.divergence,
            annotated,
        )
        empty = annotated.sum() < 2
        return (penalty - reward) * ~empty, empty

    @torch.no_grad()
    def reorder_classes(self, order: Tensor, inputs: dict[str, Tensor]) -> bool:
        """Exchange classes in classifier, aggregator and prior: r becomes what was `order[r]`.

        Args:
            order: (C,) int64, a permutation.
            inputs: a batch for the classifier, on which to see that its outputs were exchanged.

        Returns:
            Whether they were; if its output layer was not found, nothing has changed.
        """
        if not reorder_outputs(self.classifier, order, inputs):
            return False
        order = order.to(self.device)
        self.aggregator.table.copy_(self.aggregator.table[:, :, order].clone())
        self.prior.logits.copy_(self.prior.logits[order].clone())
        return True

    def gain(self, log_h: Tensor, log_g: Tensor, annotated: Tensor | None = None) -> Tensor:
        """Compute `mutual_information_gain` under this model's prior and divergence."""
        return mutual_information_gain(
            log_h, log_g, self.prior(), self.config.divergence, annotated
        )

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Save like any model of transformers, but whole or not at all.

        Everything is written to a folder inside `save_directory` first and then moved into place
        file by file: an interrupted save leaves the files of the last one.

        Args:
            save_directory: the folder, made if absent.
            **kwargs: as in `PreTrainedModel.save_pretrained`.
        """
        if self.is_remote_code():
            reference = f"{type(self).__module__.rsplit('.', 1)[-1]}.{type(self).__name__}"
            auto_map = getattr(self.config, "auto_map", None) or {}
            self.config.auto_map = {**auto_map, "AutoModelForImageClassification": reference}
        target = Path(save_directory)
        target.mkdir(parents=True, exist_ok=True)
        if kwargs.get("push_to_hub"):
            kwargs.setdefault("repo_id", target.name)  # not that of the staging folder
        with tempfile.TemporaryDirectory(dir=target, prefix=".saving-") as staging:
            super().save_pretrained(staging, **kwargs)
            written = [path.name for path in Path(staging).iterdir()]
            for name in written:
                os.replace(Path(staging, name), target / name)
        if any(name.endswith(".safetensors") for name in written):
            for stale in target.glob("model*.safetensors*"):
                if stale.name not in written:
                    stale.unlink()


def is_annotated(annotators: Tensor, annotations: Tensor) -> Tensor:
    """Tell which of the B items have a label by a known annotator: (B,) bool."""
    return is_given(annotators, annotations).any(dim=1)


def build_classifier(config: PreTrainedConfig) -> PreTrainedModel:
    """Build h, without weights, from a pair's config."""
    inner = config.classifier_config
    if inner.model_type in CLASSIFIERS:
        return CLASSIFIERS[inner.model_type][1](inner)
    return AUTO_CLASSES[config.classifier_task].from_config(inner)


def as_hub_classifier(classifier: nn.Module) -> PreTrainedModel:
    """Return a classifier of transformers, wrapping a timm model if need be.

    Raises:
        TypeError: if it is neither.
    """
    if isinstance(classifier, PreTrainedModel):
        return classifier
    architecture = (getattr(classifier, "pretrained_cfg", None) or {}).get("architecture")
    if architecture is None:
        raise TypeError(
            "`classifier` must be a classifier of transformers or timm, got "
            f"{type(classifier).__name__}: subclass `transformers.PreTrainedModel` to bring your own."
        )
    from transformers import TimmWrapperConfig, TimmWrapperForImageClassification

    config = TimmWrapperConfig(architecture=architecture, num_labels=classifier.num_classes)
    wrapper = TimmWrapperForImageClassification(config)
    wrapper.timm_model.load_state_dict(classifier.state_dict())
    return wrapper


def _task_of(classifier: PreTrainedModel) -> str:
    """Find the pipeline task whose Auto class builds this classifier."""
    config = classifier.config
    if config.model_type in CLASSIFIERS:
        return "image-classification"
    for task, auto_class in AUTO_CLASSES.items():
        mapping = auto_class._model_mapping
        if type(config) in mapping:
            classes = mapping[type(config)]
            if isinstance(classifier, classes if isinstance(classes, tuple) else (classes,)):
                return task
    raise TypeError(
        f"`classifier` must be a model for one of {', '.join(AUTO_CLASSES)}, got "
        f"{type(classifier).__name__}."
    )


__all__ = ["MaxMIGModel", "MaxMIGOutput"]
