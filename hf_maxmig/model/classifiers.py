"""The paper's own classifiers h, as Hub models (paper, Section 4, "Networks", and Appendix B.2).

Any other h comes from transformers or timm. None of these depends on a crowd: a plain `Trainer` can
train them too.
"""

import inspect
import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import ImageClassifierOutput


class FourLayerCNNConfig(PreTrainedConfig):
    """Configuration of `FourLayerCNN`.

    Args:
        num_channels: 3, or 1 for grey pictures (colour pictures are then averaged over their
            channels).
        image_size: side of the square picture, in pixels.
        hidden_sizes: channels of the four convolutions.
        fc_size: units of the fully connected layer.
        dropout: share dropped between this layer and the output.

    Example:
        >>> FourLayerCNNConfig(num_channels=1, image_size=50).hidden_sizes
        (32, 32, 64, 64)
    """

    model_type = "maxmig_four_layer_cnn"
    num_channels: int = 3
    image_size: int = 150
    hidden_sizes: list[int] | tuple[int, ...] = (32, 32, 64, 64)
    fc_size: int = 128
    dropout: float = 0.5


class VGG16Config(PreTrainedConfig):
    """Configuration of `VGG16`: for 32 x 32 pictures, with batch normalisation.

    Args:
        num_channels: of the picture.

    Example:
        >>> VGG16Config(num_labels=10).num_labels
        10
    """

    model_type = "maxmig_vgg16"
    num_channels: int = 3


class HeadConfig(PreTrainedConfig):
    """Configuration of `HeadClassifier`.

    Args:
        input_size: D, the length of a feature vector.
        hidden_size: units of the fully connected layer.
        dropout: share dropped between this layer and the output.
        encoder_config: config of a frozen backbone that turns pictures into features; None if
            features are given.

    Example:
        >>> HeadConfig(input_size=512, num_labels=8).hidden_size
        128
    """

    model_type = "maxmig_head"
    input_size: int = 512
    hidden_size: int = 128
    dropout: float = 0.5
    encoder_config: dict | PreTrainedConfig | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if isinstance(self.encoder_config, dict):
            self.encoder_config = AutoConfig.for_model(**self.encoder_config)
        if not isinstance(self.encoder_config, PreTrainedConfig | None):
            raise TypeError(
                f"`encoder_config` must be a config or None, got {type(self.encoder_config).__name__}."
            )


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


class _ClassifierModel(PreTrainedModel):
    """Shared by all: torch's own initialisation, and the loss of a plain classifier."""

    task = "image-classification"  # of `AUTO_CLASSES`
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _auto_class = "AutoModelForImageClassification"
    accepts_loss_kwargs = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Conv2d):
            init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            if module.bias is not None:
                bound = 1 / math.sqrt(module.weight[0].numel())
                init.uniform_(module.bias, -bound, bound)
        elif isinstance(module, nn.BatchNorm2d):
            super()._init_weights(module)

    def _output(self, logits: Tensor, labels: Tensor | None) -> ImageClassifierOutput:
        loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
        return ImageClassifierOutput(loss=loss, logits=logits)


class FourLayerCNN(_ClassifierModel):
    """The four-layer network of Rodrigues & Pereira (AAAI 2018), for Dogs vs. Cats and LUNA16.

    Four times 3 x 3 convolution, batch normalisation, ReLU and 2 x 2 pooling; then 128 ReLU units,
    dropout, output.

    Example:
        >>> model = FourLayerCNN(FourLayerCNNConfig(num_channels=1, image_size=50, num_labels=2))
        >>> model(torch.zeros(3, 1, 50, 50)).logits.shape
        torch.Size([3, 2])
    """

    config_class = FourLayerCNNConfig

    def __init__(self, config: FourLayerCNNConfig) -> None:
        super().__init__(config)
        sizes = [config.num_channels, *config.hidden_sizes]
        self.convolutions = nn.Sequential(
            *(_conv_block(a, b, pool=True) for a, b in itertools.pairwise(sizes))
        )
        side = config.image_size // 2 ** len(config.hidden_sizes)
        if side < 1:
            raise ValueError(
                f"`image_size` must be at least {2 ** len(config.hidden_sizes)}, got {config.image_size}: "
                "each of the convolutions halves it."
            )
        # A CPU convolves this layout twice as fast.
        self.convolutions.to(memory_format=torch.channels_last)
        self.fc = nn.Linear(sizes[-1] * side * side, config.fc_size)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.fc_size, config.num_labels)
        self.post_init()

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, return_dict: bool | None = None
    ) -> ImageClassifierOutput:
        """Classify (B, channels, side, side) pictures; labels (B,) give a cross-entropy."""
        if self.config.num_channels == 1 and pixel_values.shape[1] > 1:
            pixel_values = pixel_values.mean(dim=1, keepdim=True)
        hidden = self.fc(self.convolutions(pixel_values).flatten(1)).relu()
        return self._output(self.output(self.dropout(hidden)), labels)


class VGG16(_ClassifierModel):
    """VGG-16 with batch normalisation for 32 x 32 pictures: the paper's h on CIFAR-10.

    Example:
        >>> model = VGG16(VGG16Config(num_labels=10)).eval()
        >>> model(torch.zeros(2, 3, 32, 32)).logits.shape
        torch.Size([2, 10])
    """

    config_class = VGG16Config
    stages = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))

    def __init__(self, config: VGG16Config) -> None:
        super().__init__(config)
        blocks, size = [], config.num_channels
        for stage in self.stages:
            for i, width in enumerate(stage):
                blocks.append(_conv_block(size, width, pool=i == len(stage) - 1))
                size = width
        self.convolutions = nn.Sequential(*blocks)
        self.output = nn.Linear(size, config.num_labels)
        self.post_init()

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, return_dict: bool | None = None
    ) -> ImageClassifierOutput:
        """Classify (B, num_channels, 32, 32) pictures; labels (B,) give a cross-entropy."""
        return self._output(self.output(self.convolutions(pixel_values).flatten(1)), labels)


class FeatureHead(_ClassifierModel):
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


class HeadClassifier(FeatureHead):
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
    ) -> "HeadClassifier":
        """Put a new head on a backbone.

        Args:
            encoder: a backbone as `AutoModel.from_pretrained` returns it; its weights are kept and
                frozen.
            input_size: D, the length of its feature vector, see `encode`.
            **config_fields: fields of `HeadConfig`, such as `num_labels` or `id2label`.

        Returns:
            The classifier.
        """
        config = cls.config_class(
            input_size=input_size, encoder_config=encoder.config, **config_fields
        )
        return cls(config, encoder=keep_weights(encoder))

    @staticmethod
    @torch.no_grad()
    def encode(encoder: PreTrainedModel, pixel_values: Tensor) -> Tensor:
        """Turn (B, channels, height, width) pictures into (B, D): the backbone's pooled output."""
        outputs = encoder(pixel_values=pixel_values.to(encoder.dtype), return_dict=True)
        pooled = getattr(outputs, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1)
        hidden = outputs.last_hidden_state  # (B, tokens, D) or (B, D, height, width)
        return hidden.mean(dim=1) if hidden.ndim == 3 else hidden.flatten(2).mean(dim=2)

    def train(self, mode: bool = True) -> "HeadClassifier":
        """Switch the head; the backbone stays frozen, also when `from_pretrained` calls `eval()`."""
        super().train(mode)
        if self.encoder is not None:
            self.encoder.requires_grad_(False).eval()
        return self

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
        encoder = self.encoder
        return pixel_values.flatten(1) if encoder is None else self.encode(encoder, pixel_values)

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


def _conv_block(size_in: int, size_out: int, pool: bool) -> nn.Sequential:
    # The maximum first: ReLU of it is the maximum of ReLUs, on a quarter of the numbers.
    pooled = [nn.MaxPool2d(2)] if pool else []
    return nn.Sequential(
        nn.Conv2d(size_in, size_out, 3, padding=1), nn.BatchNorm2d(size_out), *pooled, nn.ReLU()
    )


def keep_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Mark a model as initialised, so that a model around it does not redraw its weights."""
    for module in model.modules():
        module._is_hf_initialized = True
    return model


CLASSIFIERS: dict[str, tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
    model.config_class.model_type: (model.config_class, model)
    for model in (FourLayerCNN, VGG16, HeadClassifier, TableClassifier)
}

__all__ = [
    "CLASSIFIERS",
    "VGG16",
    "FeatureHead",
    "FourLayerCNN",
    "FourLayerCNNConfig",
    "HeadClassifier",
    "HeadConfig",
    "TableClassifier",
    "TableConfig",
    "VGG16Config",
]
