"""MaxMIGConfig: the configuration of a trained model, as `config.json` holds it."""

from collections.abc import Sequence
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from .aggregators import check_aggregator, check_prior
from .checked_loading import check_version
from .class_lists import check_inverse, differences, in_order, same_names
from .config_checks import (
    check_fields,
    checked_annotators,
    checked_classes,
    checked_classifier_config,
    refusing,
)
from .divergences import get_divergence
from .version import __version__

# Arguments that transformers passes to a config and that are not its fields.
_TOLD = ("attn_implementation", "auto_map", "custom_pipelines", "num_labels")


class MaxMIGConfig(PreTrainedConfig):
    """Configuration of a classifier and an aggregator trained together.

    Class names are `id2label`, as everywhere in transformers; by default they are the classifier's.
    They also become the names of the classifier's outputs. New names rename its classes. The same
    names in another order are refused, because they would give outputs the wrong names.

    Args:
        classifier_config: the config of h, any classifier that an Auto class builds, or one of
            `classifiers.py`.
        classifier_task: the pipeline task of h, which decides the Auto class that builds it.
        classifier_class: name of its class, where that Auto class has several for the config, as for
            DeiT with a teacher; the first by default.
        frozen: names of layers and parameters of h that are not trained; set when the model is saved.
        num_annotators: M. The number of `annotators` by default.
        annotators: M names, unique; None if only their number is known.
        divergence: a row of Table 1: `"kl"`, `"pearson"` or `"jensen_shannon"`.
        prior: `"uniform"`, `"vote_share"`, `"learned"`, or C positive numbers (normalised).
        aggregator: `"weighted_average"`, the paper's; `"interaction"`, which also scores pairs of
            votes; or `"factored"`, for crowds that are too large for one matrix of C^2 numbers per
            annotator.
        gold_labels_used: number of gold labels that the model was trained on, besides the crowd's
            votes; None if none.
        hf_maxmig_version: version of the package that saved the model; set automatically.

    Raises:
        ValueError: if names are not unique; counts disagree; `id2label` contradicts `label2id` or the
            classifier's names; or divergence, prior or aggregator is none of the above.

    Example:
        >>> from transformers import ResNetConfig
        >>> classifier = ResNetConfig(num_labels=3)
        >>> config = MaxMIGConfig(classifier_config=classifier, annotators=["ann", "bob"])
        >>> config.num_annotators, config.num_labels
        (2, 3)
    """

    model_type = "maxmig"
    sub_configs_defaults = {
        "classifier_config": SubConfigSpec(config_class=AutoConfig, model_type="resnet")
    }

    classifier_config: dict | PreTrainedConfig | None = None
    classifier_task: str = "image-classification"
    classifier_class: str | None = None
    frozen: list[str] | None = None
    num_annotators: int | None = None
    annotators: Sequence[str] | None = None
    divergence: str = "kl"
    prior: str | list[float] = "uniform"
    aggregator: str = "weighted_average"
    gold_labels_used: int | None = None
    hf_maxmig_version: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        check_fields(self, kwargs)
        check_version(
            self.hf_maxmig_version,
            (name for name in kwargs if not hasattr(PreTrainedConfig, name) and name not in _TOLD),
        )
        self.hf_maxmig_version = __version__
        if not __name__.startswith("transformers_modules"):
            # They serve users without the package, by remote code; the package has its own.
            kwargs.pop("custom_pipelines", None)
        self.classifier_config = checked_classifier_config(self.classifier_config)
        before: Any = self
        number = kwargs.get("num_labels")
        if before.id2label is not None:
            before.id2label = checked_classes(before.id2label, number)
        classes_given = before.id2label is not None or number is not None
        numbers = before.label2id or {}
        with refusing("the config must be one that transformers takes"):
            super().__post_init__(**kwargs)
        classifier: Any = self.classifier_config
        if classifier.id2label is None:  # PVT's config has a number of classes but no names
            classifier.id2label = {c: f"LABEL_{c}" for c in range(classifier.num_labels or 2)}
        names = checked_classes((before if classes_given else classifier).id2label)
        check_inverse(names, numbers)
        own, given = in_order(checked_classes(classifier.id2label)), in_order(names)
        if own != given and same_names(own, given):
            raise ValueError(
                f"`id2label` must have the classifier's classes in its order, got {differences(given, own)}: "
                "leave `id2label` out."
            )
        self.id2label, self.label2id = names, {name: c for c, name in names.items()}
        # A timm classifier's config does not save its class names, so these are copied into it.
        classifier.id2label, classifier.label2id = dict(names), dict(self.label2id)
        self.annotators, self.num_annotators = checked_annotators(
            self.annotators, self.num_annotators
        )
        get_divergence(self.divergence)
        check_aggregator(self.aggregator)
        self.prior = check_prior(self.prior, self.num_labels)

    def to_dict(self) -> dict[str, Any]:
        """Write out all fields, with the same class names in each place that has them."""
        classifier: Any = self.classifier_config
        self.label2id = {name: c for c, name in self.id2label.items()}
        classifier.id2label, classifier.label2id = dict(self.id2label), dict(self.label2id)
        return super().to_dict()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a config from the fields read from a file.

        Args:
            config_dict: the fields.
            **kwargs: as in `PreTrainedConfig.from_dict`.

        Returns:
            As there.

        Raises:
            TypeError: if a field has another type.
            ValueError: if a field is wrong, or `classifier_config` is missing.
        """
        if not isinstance(config_dict, dict) or config_dict.get("classifier_config") is None:
            raise ValueError(
                "the config of a crowd model must say in `classifier_config` what its classifier is, got none: "
                "it belongs to another model, or is damaged."
            )
        return super().from_dict(config_dict, **kwargs)

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a `config.json`, as `PreTrainedConfig.get_config_dict`.

        Args:
            *args: as there.
            **kwargs: as there.

        Returns:
            As there.

        Raises:
            OSError: by transformers, if there is no such file.
            ValueError: if it is not a config in JSON.
        """
        try:
            return super().get_config_dict(*args, **kwargs)
        except OSError as error:
            if "not a valid JSON" not in str(error):
                raise
            raise ValueError(
                f"`config.json` must be JSON in UTF-8, got something else: {error}"
            ) from error
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"`config.json` must be a JSON object with the fields of a config, got {type(error).__name__}: "
                f"{str(error).rstrip('.')}."
            ) from error

    @property
    def class_names(self) -> list[str]:
        """The C class names, by class number."""
        return [self.id2label[c] for c in range(self.num_labels)]


__all__ = ["MaxMIGConfig"]
