"""The paper's head on feature vectors: FC 128, ReLU, dropout, output (Section 4, "Networks", LabelMe).

A head reads features that are given, or a frozen encoder of pictures, texts or sounds. Networks without an
encoder of somebody else's are in `classifiers.py`.
"""

import functools
import inspect
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput

from .plain_classifier import PlainClassifier, keep_weights
from .pooling import check_pooling, encoded, inputs_read, pooled

# What items go into an encoder as; its other inputs go along with them.
_ITEMS = frozenset({"input_ids", "input_values", "input_features"})


class HeadConfig(PreTrainedConfig):
    """Configuration of `HeadClassifier`.

    Args:
        input_size: D, the length of a feature vector.
        hidden_size: units of the fully connected layer.
        dropout: share dropped between this layer and the output.
        encoder_config: config of a frozen backbone that turns pictures into features; None if
            features are given.
        pooling: how the backbone's output becomes one vector, see `pooling.pooled`: "mean", "cls" or
            "pooled". By default its pooled output if it has one, and the mean otherwise.

    Example:
        >>> HeadConfig(input_size=512, num_labels=8).hidden_size
        128
    """

    model_type = "maxmig_head"
    input_size: int = 512
    hidden_size: int = 128
    dropout: float = 0.5
    encoder_config: dict | PreTrainedConfig | None = None
    pooling: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_pooling(self.pooling)
        if isinstance(self.encoder_config, dict):
            self.encoder_config = AutoConfig.for_model(**self.encoder_config)
        if not isinstance(self.encoder_config, PreTrainedConfig | None):
            raise TypeError(
                f"`encoder_config` must be a config or None, got {type(self.encoder_config).__name__}."
            )


class TextHeadConfig(HeadConfig):
    """Configuration of `TextHeadClassifier`.

    Args:
        input_size: D, the length of a feature vector.
        hidden_size: units of the fully connected layer.
        dropout: share dropped between this layer and the output.
        encoder_config: config of a frozen encoder that turns tokens into features; None if features
            are given.
        pooling: how the encoder's output becomes one vector: "mean" over the tokens that are attended
            to, which is the default, "cls" for the first of them, or "pooled" for its own pooled output.

    Example:
        >>> TextHeadConfig(input_size=384, num_labels=2, pooling="cls").pooling
        'cls'
    """

    model_type = "maxmig_text_head"

    @property
    def vocab_size(self) -> int | None:
        """The number of tokens of the encoder, if there is one."""
        return getattr(self.encoder_config, "vocab_size", None)


class AudioHeadConfig(HeadConfig):
    """Configuration of `AudioHeadClassifier`.

    Args:
        input_size: D, the length of a feature vector.
        hidden_size: units of the fully connected layer.
        dropout: share dropped between this layer and the output.
        encoder_config: config of a frozen encoder that turns sounds into features; None if features
            are given.
        pooling: how the encoder's output becomes one vector: "mean" over the places that are attended
            to, which is the default, "cls" for the first of them, or "pooled" for its own pooled output.

    Example:
        >>> AudioHeadConfig(input_size=768, num_labels=4).hidden_size
        128
    """

    model_type = "maxmig_audio_head"


class TableConfig(PreTrainedConfig):
    """Configuration of `TableClassifier`.

    Args:
        input_size: D, the length of a row's feature vector, `TableProcessor.size`.
        hidden_size: units of the fully connected layer.
        dropout: share dropped between this layer and the output.

    Example:
        >>> TableConfig(input_size=12, num_labels=3).hidden_size
        128
    """

    model_type = "maxmig_table"
    input_size: int = 512
    hidden_size: int = 128
    dropout: float = 0.5


class FeatureHead(PlainClassifier):
    """The paper's head on feature vectors: FC 128, ReLU, dropout, output.

    A subclass says in `read` what the features are made of.
    """

    def make_head(self, config: Any) -> None:
        """Make the head's layers; a subclass calls this after it has made its own."""
        self.fc = nn.Linear(config.input_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.hidden_size, config.num_labels)

    def read(self, *args: Any, **inputs: Any) -> Tensor:
        """Return the head's input, (B, D), made of the inputs that the subclass names."""
        raise NotImplementedError

    def read_batch(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the head's input, (B, D), for a batch that may hold more than the head reads."""
        names = inspect.signature(self.read).parameters
        return self.read(**{name: inputs[name] for name in names if name in inputs})

    def classify(self, features: Tensor, labels: Tensor | None = None) -> ImageClassifierOutput:
        """Classify (B, D) features; labels (B,) give a cross-entropy.

        Raises:
            ValueError: if D is not the head's `input_size`.
        """
        if features.shape[-1] != self.config.input_size:
            raise ValueError(
                f"features must have `input_size` = {self.config.input_size} numbers per item, got the shape "
                f"{tuple(features.shape)}: make the head with "
                f"`{type(self.config).__name__}(input_size={features.shape[-1]})`."
            )
        hidden = self.fc(features.to(self.fc.weight.dtype)).relu()
        return self._output(self.output(self.dropout(hidden)), labels)


class EncoderHead(FeatureHead):
    """A head on a frozen encoder, or on features that were computed by one before.

    With an encoder it takes either items or the features already computed from them. So features are
    computed once, the head is trained on them, and the saved model still takes items.
    """

    config_class: Any = HeadConfig

    def __init__(self, config: HeadConfig, encoder: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        if encoder is None and config.encoder_config is not None:
            encoder = AutoModel.from_config(config.encoder_config)
        self.encoder = encoder
        self.make_head(config)
        self.post_init()
        self.train(self.training)

    @classmethod
    def from_encoder(
        cls, encoder: PreTrainedModel, input_size: int, **config_fields: object
    ) -> Self:
        """Put a new head on an encoder.

        Args:
            encoder: as `AutoModel.from_pretrained` returns it; its weights are kept and frozen.
            input_size: D, the length of its feature vector.
            **config_fields: fields of the head's config, such as `num_labels`, `id2label` or `pooling`.

        Returns:
            The classifier.
        """
        config = cls.config_class(
            input_size=input_size, encoder_config=encoder.config, **config_fields
        )
        return cls(config, encoder=keep_weights(encoder))

    def train(self, mode: bool = True) -> Self:
        """Switch the head; the encoder stays frozen, also when `from_pretrained` calls `eval()`."""
        super().train(mode)
        if self.encoder is not None:
            self.encoder.requires_grad_(False).eval()
        return self

    def read_items(self, features: Tensor | None, inputs: dict[str, Tensor | None]) -> Tensor:
        """Return the head's input, (B, D): the features if there are any, otherwise the encoder's.

        Args:
            features: (B, D).
            inputs: of the encoder, by name; None where not given.

        Raises:
            ValueError: if there are no features, and no items or no encoder for them.
        """
        if features is not None:
            return features
        wanted = " or ".join(f"`{name}`" for name in inputs if name in _ITEMS)
        if not any(inputs[name] is not None for name in inputs if name in _ITEMS):
            raise ValueError(
                f"`{type(self).__name__}` must be given `features` or {wanted}, got neither."
            )
        if self.encoder is None:
            raise ValueError(
                f"`{type(self).__name__}` must be given `features`, got {wanted} without an encoder: make it "
                "by `from_encoder`."
            )
        return encoded(self.encoder, inputs, self.config.pooling, self._taken)

    @functools.cached_property
    def _taken(self) -> frozenset[str]:
        return inputs_read(self.encoder)


class HeadClassifier(EncoderHead):
    """The paper's h on LabelMe: FC 128, ReLU, dropout, output on given features or a frozen backbone.

    With a backbone it takes either pictures or the features already computed from them, so that
    features are computed once, the head is trained on them, and the saved model still takes
    pictures.

    Example:
        >>> model = HeadClassifier(HeadConfig(input_size=512, num_labels=8))
        >>> model(features=torch.zeros(4, 512)).logits.shape
        torch.Size([4, 8])
    """

    config_class = HeadConfig

    @staticmethod
    @torch.no_grad()
    def encode(
        encoder: PreTrainedModel, pixel_values: Tensor, pooling: str | None = None
    ) -> Tensor:
        """Turn (B, channels, height, width) pictures into (B, D), by default the backbone's pooled output."""
        outputs = encoder(pixel_values=pixel_values.to(encoder.dtype), return_dict=True)
        if pooling is None:
            has_one = getattr(outputs, "pooler_output", None) is not None
            pooling = "pooled" if has_one else "mean"
        return pooled(outputs, pooling, encoder=encoder)

    def read(self, pixel_values: Tensor | None = None, features: Tensor | None = None) -> Tensor:
        """Return the head's input, (B, D): features as they are, pictures encoded or flattened.

        Raises:
            ValueError: if neither is given.
        """
        if features is not None:
            return features
        if pixel_values is None:
            raise ValueError(
                "`HeadClassifier` must be given `features` or `pixel_values`, got neither."
            )
        if self.encoder is None:
            return pixel_values.flatten(1)
        return self.encode(self.encoder, pixel_values, self.config.pooling)

    def forward(
        self,
        pixel_values: Tensor | None = None,
        features: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
    ) -> ImageClassifierOutput:
        """Classify (B, D) features, or pictures through the backbone or else as flat vectors.

        Raises:
            ValueError: if neither is given, or D is not the head's `input_size`.
        """
        return self.classify(self.read(pixel_values, features), labels)


class TextHeadClassifier(EncoderHead):
    """The paper's head on texts: FC 128, ReLU, dropout, output on a frozen encoder or given features.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)
        >>> model = TextHeadClassifier.from_encoder(BertModel(tiny), input_size=8, num_labels=3)
        >>> tokens = torch.tensor([[1, 2, 0], [3, 4, 5]])
        >>> model(input_ids=tokens, attention_mask=(tokens > 0).long()).logits.shape
        torch.Size([2, 3])
        >>> model(features=torch.zeros(4, 8)).logits.shape
        torch.Size([4, 3])
    """

    config_class = TextHeadConfig
    task = "text-classification"
    main_input_name = "input_ids"
    input_modalities = ("text",)
    _auto_class = "AutoModelForSequenceClassification"

    def read(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        """Return the head's input, (B, D): features as they are, or tokens encoded.

        Raises:
            ValueError: if neither is given, or there is no encoder for the tokens.
        """
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
        }
        return self.read_items(features, inputs)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        features: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
    ) -> ImageClassifierOutput:
        """Classify (B, D) features, or texts as (B, T) tokens through the encoder.

        Args:
            input_ids: (B, T) int64.
            attention_mask: (B, T), 0 where a text was padded.
            token_type_ids: (B, T) int64, which of two texts a token is of, if the encoder reads it.
            features: (B, D), taken instead of tokens.
            labels: (B,) int64, give a cross-entropy.
            return_dict: has no effect.

        Raises:
            ValueError: if neither is given, or D is not the head's `input_size`.
        """
        features = self.read(input_ids, attention_mask, token_type_ids, features)
        return self.classify(features, labels)


class AudioHeadClassifier(EncoderHead):
    """The paper's head on sounds: FC 128, ReLU, dropout, output on a frozen encoder or given features.

    Example:
        >>> from transformers import ASTConfig, ASTModel
        >>> tiny = ASTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        ...                  max_length=64, num_mel_bins=16)
        >>> model = AudioHeadClassifier.from_encoder(ASTModel(tiny), input_size=8, num_labels=3)
        >>> model(input_values=torch.zeros(2, 64, 16)).logits.shape
        torch.Size([2, 3])
    """

    config_class = AudioHeadConfig
    task = "audio-classification"
    main_input_name = "input_values"
    input_modalities = ("audio",)
    _auto_class = "AutoModelForAudioClassification"

    def read(
        self,
        input_values: Tensor | None = None,
        input_features: Tensor | None = None,
        attention_mask: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        """Return the head's input, (B, D): features as they are, or sounds encoded.

        Raises:
            ValueError: if neither is given, or there is no encoder for the sounds.
        """
        inputs = {
            "input_values": input_values,
            "input_features": input_features,
            "attention_mask": attention_mask,
        }
        return self.read_items(features, inputs)

    def forward(
        self,
        input_values: Tensor | None = None,
        input_features: Tensor | None = None,
        attention_mask: Tensor | None = None,
        features: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
    ) -> ImageClassifierOutput:
        """Classify (B, D) features, or sounds through the encoder, as its feature extractor makes them.

        Args:
            input_values: (B, T) samples, or (B, T, size) of a spectrogram.
            input_features: (B, size, T) or (B, T, size), for encoders that call them so.
            attention_mask: (B, T), 0 where a sound was padded.
            features: (B, D), taken instead of sounds.
            labels: (B,) int64, give a cross-entropy.
            return_dict: has no effect.

        Raises:
            ValueError: if neither is given, or D is not the head's `input_size`.
        """
        features = self.read(input_values, input_features, attention_mask, features)
        return self.classify(features, labels)


class TableClassifier(FeatureHead):
    """The paper's head on the rows of a table, which a `TableProcessor` turns into features.

    Example:
        >>> model = TableClassifier(TableConfig(input_size=12, num_labels=3))
        >>> model(torch.zeros(4, 12)).logits.shape
        torch.Size([4, 3])
    """

    config_class = TableConfig
    task = "tabular-classification"
    main_input_name = "features"
    _auto_class = "AutoModel"

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.make_head(config)
        self.post_init()

    def read(self, features: Tensor | None = None) -> Tensor:
        """Return the features as they are, (B, D).

        Raises:
            ValueError: if there are none.
        """
        if features is None:
            raise ValueError("`TableClassifier` must be given `features`, got none.")
        return features

    def forward(
        self,
        features: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
    ) -> ImageClassifierOutput:
        """Classify (B, D) features; labels (B,) give a cross-entropy.

        Raises:
            ValueError: if there are none, or D is not the head's `input_size`.
        """
        return self.classify(self.read(features), labels)


__all__ = [
    "AudioHeadClassifier",
    "AudioHeadConfig",
    "EncoderHead",
    "FeatureHead",
    "HeadClassifier",
    "HeadConfig",
    "TableClassifier",
    "TableConfig",
    "TextHeadClassifier",
    "TextHeadConfig",
]
