"""The paper's own classifiers h, as Hub models (paper, Section 4, "Networks", and Appendix B.2).

Any other h comes from transformers or timm. None of these depends on a crowd: a plain `Trainer` can
train them too.
"""

import itertools

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput

from .heads import AudioHeadClassifier, HeadClassifier, TableClassifier, TextHeadClassifier
from .plain_classifier import PlainClassifier


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


class FourLayerCNN(PlainClassifier):
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


class VGG16(PlainClassifier):
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


def _conv_block(size_in: int, size_out: int, pool: bool) -> nn.Sequential:
    # The maximum first: ReLU of it is the maximum of ReLUs, on a quarter of the numbers.
    pooled = [nn.MaxPool2d(2)] if pool else []
    return nn.Sequential(
        nn.Conv2d(size_in, size_out, 3, padding=1), nn.BatchNorm2d(size_out), *pooled, nn.ReLU()
    )


CLASSIFIERS: dict[str, tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
    model.config_class.model_type: (model.config_class, model)
    for model in (
        FourLayerCNN,
        VGG16,
        HeadClassifier,
        TextHeadClassifier,
        AudioHeadClassifier,
        TableClassifier,
    )
}

__all__ = ["CLASSIFIERS", "VGG16", "FourLayerCNN", "FourLayerCNNConfig", "VGG16Config"]
