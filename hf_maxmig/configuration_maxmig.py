"""MaxMIGConfig: what a trained pair is made of, as it lies in `config.json`."""

import hashlib
import hmac
from collections import Counter
from collections.abc import Sequence
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from .aggregator import check_aggregator, check_prior
from .class_names import check_inverse, differences, in_order, same_names
from .classifiers import CLASSIFIERS
from .divergences import get_divergence
from .loading import check_version
from .version import __version__

LEAST_SALT = 16  # characters: names are few and can be guessed, if the salt can
_HASH = 16  # hexadecimal digits


def hashed_names(names: Sequence[str], salt: str) -> list[str]:
    """Replace names by salted hashes: whoever has names and salt can tell whose is whose, nobody else.

    Args:
        names: unique.
        salt: a secret of 16 characters or more; the same one gives the same hashes.

    Returns:
        As many hexadecimal numbers of 16 digits, HMAC-SHA-256.

    Raises:
        TypeError: if the salt is no text.
        ValueError: if the salt is shorter.

    Example:
        >>> hashed_names(["bob", "ann"], salt="not this one, please")
        ['b16455290235576f', '65dc3a238ad4869d']
    """
    key = check_salt(salt).encode("utf-8", "surrogatepass")
    told = (str(name).encode("utf-8", "surrogatepass") for name in names)
    return [hmac.new(key, name, hashlib.sha256).hexdigest()[:_HASH] for name in told]


def check_salt(salt: str, name: str = "salt") -> str:
    """Check a salt, and return it: its characters are not in the error.

    Args:
        salt: what is to be one.
        name: of the argument, for the error.

    Raises:
        TypeError: if it is no text.
        ValueError: if it is too short.
    """
    if not isinstance(salt, str):
        raise TypeError(f"`{name}` must be a string, got {type(salt).__name__}.")
    if len(salt) < LEAST_SALT:
        raise ValueError(
            f"`{name}` must have at least {LEAST_SALT} characters, got {len(salt)}: names are few, and "
            "a short salt can be guessed with them. `secrets.token_hex()` makes one."
        )
    return salt


def hashed_order(names: Sequence[str], salt: str) -> tuple[list[str], list[int]]:
    """Sort the hashes of names: in the order of the names, a list of them would give all away.

    Args:
        names: unique.
        salt: as in `hashed_names`.

    Returns:
        The hashes in their own order, and for each the place of its name among `names`.

    Raises:
        TypeError: if the salt is no text.
        ValueError: if the salt is too short, or two names have the same hash.

    Example:
        >>> hashed_order(["bob", "ann"], salt="not this one, please")
        (['65dc3a238ad4869d', 'b16455290235576f'], [1, 0])
    """
    hashes = hashed_names(names, salt)
    if len(set(hashes)) != len(hashes):
        raise ValueError(
            f"`annotators` must be unique names, and so must be their hashes, got {len(set(hashes))} hashes of "
            f"{len(hashes)} names: take another salt."
        )
    order = sorted(range(len(hashes)), key=hashes.__getitem__)
    return [hashes[place] for place in order], order


# Not fields of a config, but what transformers hands to one.
_TOLD = ("attn_implementation", "auto_map", "custom_pipelines", "num_labels")


class MaxMIGConfig(PreTrainedConfig):
    """Configuration of a classifier and an aggregator trained together.

    Class names are `id2label`, as everywhere in transformers; without them, those of the classifier
    are taken. With them the classifier's outputs are called by them, too: other names rename its classes,
    but the same names in another order are refused, for its outputs would be called by wrong ones.

    Args:
        classifier_config: the config of h, any classifier that an Auto class builds, or one of
            `classifiers.py`.
        classifier_task: the pipeline task of h: which Auto class builds it.
        num_annotators: M. The number of `annotators` by default.
        annotators: M names, unique; None if only their number is known.
        divergence: a row of Table 1: `"kl"`, `"pearson"` or `"jensen_shannon"`.
        prior: `"uniform"`, `"vote_share"`, `"learned"`, or C positive numbers (normalised).
        aggregator: `"weighted_average"`, the paper's; `"interaction"`, which also hears what two
            labels say only together; or `"factored"`, for crowds that are too large for a matrix of
            C^2 numbers an annotator.
        hf_maxmig_version: of the package that saved the pair; set by itself.

    Raises:
        ValueError: if names are not unique, counts disagree, `id2label` and `label2id`, or `id2label`
            and the classifier's, contradict each other, or divergence, prior or aggregator are none of
            the above.

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
    num_annotators: int | None = None
    annotators: Sequence[str] | None = None
    divergence: str = "kl"
    prior: str | list[float] = "uniform"
    aggregator: str = "weighted_average"
    hf_maxmig_version: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        check_version(
            self.hf_maxmig_version,
            (name for name in kwargs if not hasattr(PreTrainedConfig, name) and name not in _TOLD),
        )
        self.hf_maxmig_version = __version__
        if not __name__.startswith("transformers_modules"):
            # They are for those without the package, who have to trust them; here it has its own.
            kwargs.pop("custom_pipelines", None)
        given = self.classifier_config
        if isinstance(given, dict) and given.get("model_type") in CLASSIFIERS:
            # Our own networks are not in transformers' table where the package is not installed.
            self.classifier_config = CLASSIFIERS[given["model_type"]][0](**given)
        before: Any = self
        classes_given = before.id2label is not None or kwargs.get("num_labels") is not None
        numbers = before.label2id or {}
        super().__post_init__(**kwargs)
        classifier: Any = self.classifier_config
        # Keys may come in any order, and a timm classifier's names are written out as they come.
        names: dict[int, str] = dict(
            sorted((before if classes_given else classifier).id2label.items())
        )
        check_inverse(names, numbers)
        own, given = in_order(classifier.id2label), in_order(names)
        if own != given and same_names(own, given):
            raise ValueError(
                f"`id2label` must have the classifier's classes in its order, got {differences(given, own)}: "
                "leave `id2label` out."
            )
        self.id2label, self.label2id = names, {name: c for c, name in names.items()}
        # A timm classifier's config does not carry its class names to disk: one truth, copied down.
        classifier.id2label, classifier.label2id = dict(names), dict(self.label2id)

        if self.annotators is not None:
            self.annotators = [str(name) for name in self.annotators]
            (name, times), *_ = Counter(self.annotators).most_common(1) or [("", 1)]
            if times > 1:
                raise ValueError(f"`annotators` must be unique names, got {name!r} more than once.")
            if self.num_annotators not in (None, len(self.annotators)):
                raise ValueError(
                    f"`num_annotators` must be the number of `annotators` = {len(self.annotators)}, "
                    f"got {self.num_annotators}."
                )
            self.num_annotators = len(self.annotators)
        elif self.num_annotators is None:
            self.num_annotators = 1
        if self.num_annotators < 1:
            raise ValueError(f"`num_annotators` must be at least 1, got {self.num_annotators}.")
        get_divergence(self.divergence)
        check_aggregator(self.aggregator)
        self.prior = check_prior(self.prior, self.num_labels)

    def to_dict(self) -> dict[str, Any]:
        """Write out all fields, the class names alike in each place that has them."""
        classifier: Any = self.classifier_config
        self.label2id = {name: c for c, name in self.id2label.items()}
        classifier.id2label, classifier.label2id = dict(self.id2label), dict(self.label2id)
        return super().to_dict()

    @property
    def class_names(self) -> list[str]:
        """The C class names, by class number."""
        return [self.id2label[c] for c in range(self.num_labels)]


__all__ = ["MaxMIGConfig"]
