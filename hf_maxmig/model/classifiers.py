"""The paper's own classifiers h, as Hub models (paper, Section 4, "Networks", and Appendix B.2).

Any other h comes from transformers or timm. None of these knows of a crowd: a plain `Trainer` can
train them too.
"""

import copy
import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import ImageClassifierOutput

Model = TypeVar("Model", bound=nn.Module)


class FourLayerCNNConfig(PreTrainedConfig):
    """Configuration of `FourLayerCNN`.

    Args:
        num_channels: 3, or 1 for grey pictures (colour pictures are then averaged over their
            channels).
        image_size: side of the square picture, in pixels.
        hidden_sizes: channels of the four convolutions.
        fc_size: units of the fully connected layer.
        dropout: share dropped between it and the output.

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
        input_size: D, numbers a feature vector has.
        hidden_size: units of the fully connected layer.
        dropout: share dropped between it and the output.
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


class _ClassifierModel(PreTrainedModel):
    """What the three share: torch's own initialisation, and the loss of a plain classifier."""

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
        # What a CPU convolves twice as fast.
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


class HeadClassifier(_ClassifierModel):
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
        self.fc = nn.Linear(config.input_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()
        self.train(self.training)

    @classmethod
    def from_encoder(
        cls, encoder: PreTrainedModel, input_size: int, **config_fields: object
    ) -> "HeadClassifier":
        """Put a new head on a backbone.

        Args:
            encoder: what `AutoModel.from_pretrained` returns; its weights are kept and frozen.
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
        """Give what the head reads, (B, D): features as they are, pictures by the backbone or flat.

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
        """Classify (B, D) features, or pictures: through the backbone, or else as flat vectors.

        Raises:
            ValueError: if neither is given, or D is not the head's `input_size`.
        """
        features = self.read(pixel_values, features)
        if features.shape[-1] != self.config.input_size:
            raise ValueError(
                f"features must have `input_size` = {self.config.input_size} numbers an item, got the shape "
                f"{tuple(features.shape)}: make the head with `HeadConfig(input_size={features.shape[-1]})`."
            )
        hidden = self.fc(features.to(self.fc.weight.dtype)).relu()
        return self._output(self.output(self.dropout(hidden)), labels)


def _conv_block(size_in: int, size_out: int, pool: bool) -> nn.Sequential:
    # The maximum first: ReLU of it is the maximum of ReLUs, on a quarter of the numbers.
    pooled = [nn.MaxPool2d(2)] if pool else []
    return nn.Sequential(
        nn.Conv2d(size_in, size_out, 3, padding=1), nn.BatchNorm2d(size_out), *pooled, nn.ReLU()
    )


def keep_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Mark a model as initialised, so that one around it does not draw its weights anew."""
    for module in model.modules():
        module._is_hf_initialized = True
    return model


def without_peft_model(model: Any) -> Any:
    """Take `PeftModel` off a classifier; its adapters stay inside.

    Args:
        model: any.

    Returns:
        The classifier of transformers inside a `PeftModel`; anything else as it is.

    Raises:
        TypeError: if the classifier's layers are as they were: prompts are learned in front of it.

    Example:
        >>> classifier = HeadClassifier(HeadConfig(input_size=5, num_labels=3))
        >>> without_peft_model(classifier) is classifier
        True
    """
    if not (hasattr(model, "get_base_model") and hasattr(model, "active_peft_config")):
        return model
    if model.active_peft_config.is_prompt_learning:
        raise TypeError(
            "adapters must be inside the classifier's layers, as those of LoRA are, got "
            f"{model.active_peft_config.peft_type.value}."
        )
    return model.get_base_model()


def adapter_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Find what PEFT has put in the place of layers: adapted ones, and copies that are trained.

    Args:
        model: any.

    Returns:
        The outermost of them by name.

    Example:
        >>> adapter_layers(HeadClassifier(HeadConfig(input_size=5, num_labels=3)))
        {}
    """
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        adapted = hasattr(module, "base_layer") and hasattr(module, "merge")
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if not inside and (adapted or hasattr(module, "unload_and_optionally_merge_module")):
            found[name] = module
    return found


def merge_adapters(model: Model) -> Model:
    """Copy a model with the adapters of PEFT merged into its layers: it needs PEFT no more.

    Args:
        model: a classifier, or a pair with one; it stays as it is.

    Returns:
        The copy, whose layers are the usual ones.

    Example:
        >>> classifier = HeadClassifier(HeadConfig(input_size=5, num_labels=3))
        >>> [*merge_adapters(classifier).state_dict()] == [*classifier.state_dict()]
        True
    """
    merged = copy.deepcopy(model)
    for name, layer in adapter_layers(merged).items():
        unload: Any = getattr(layer, "unload_and_optionally_merge_module", None)
        if unload is not None:
            plain = unload(merge=True, safe_merge=True, adapter_names=None)
        else:
            adapted: Any = layer
            adapted.merge(safe_merge=True)
            plain = adapted.get_base_layer()
        merged.set_submodule(name, plain)
    for module in merged.modules():
        for name in ("peft_config", "_hf_peft_config_loaded"):
            vars(module).pop(name, None)
    return merged


def answer_in_words(classifier: nn.Module) -> dict[str, bool]:
    """Say what to add to the inputs, so that a classifier names its outputs: nothing, for some."""
    parameters = inspect.signature(classifier.forward).parameters.values()
    named = any(p.name == "return_dict" or p.kind is p.VAR_KEYWORD for p in parameters)
    return {"return_dict": True} if named else {}


def logits_of(
    classifier: nn.Module, inputs: Mapping[str, Any], asked: Mapping[str, bool] | None = None
) -> Tensor:
    """Run a classifier of transformers, or of one's own.

    Args:
        classifier: what gives an output with `logits`.
        inputs: a batch for it.
        asked: of `answer_in_words`, looked up anew by default; `torch.compile` cannot follow that.

    Returns:
        (B, C), the logits.

    Raises:
        TypeError: if its output has no such logits.

    Example:
        >>> classifier = HeadClassifier(HeadConfig(input_size=5, num_labels=3))
        >>> logits_of(classifier, {"features": torch.zeros(2, 5)}).shape
        torch.Size([2, 3])
    """
    asked = answer_in_words(classifier) if asked is None else asked
    logits = getattr(classifier(**inputs, **asked), "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(
            f"`classifier` must give an output with `logits`, (B, C), got {found} of {type(classifier).__name__}."
        )
    return logits


def output_layers(classifier: nn.Module, num_classes: int) -> list[nn.Linear | nn.Conv2d]:
    """Find the layers that may give the logits: linear or a convolution, with one output a class.

    Args:
        classifier: any.
        num_classes: C.

    Returns:
        The layers themselves, in their order: the last one is the output; models with two heads
        (distillation) have two.

    Example:
        >>> output_layers(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), num_classes=3)
        [Linear(in_features=4, out_features=3, bias=True)]
    """
    return [
        module
        for module in classifier.modules()
        if isinstance(module, nn.Linear | nn.Conv2d) and module.weight.shape[0] == num_classes
    ]


@torch.no_grad()
def reorder_outputs(classifier: nn.Module, order: Tensor, inputs: dict[str, Tensor]) -> bool:
    """Exchange a classifier's outputs in its own last layer: its native checkpoint has them too.

    Args:
        classifier: any; its output layer must be linear or a convolution.
        order: (C,) int64, output r becomes what was output `order[r]`.
        inputs: a batch on which to see that just this happened.

    Returns:
        Whether it did. If not, the classifier is as before.
    """

    def reorder(layer: nn.Linear | nn.Conv2d) -> None:
        for parameter in _own_parameters(layer):
            parameter.copy_(parameter[order.to(parameter.device)].clone())

    def reordered(logits: Tensor, _: Sequence[nn.Linear | nn.Conv2d]) -> Tensor:
        return logits[:, order.to(logits.device)]

    return _change_outputs(classifier, len(order), inputs, reorder, reordered)


@torch.no_grad()
def scale_outputs(
    classifier: nn.Module, factor: float, shift: Tensor, inputs: dict[str, Tensor]
) -> bool:
    """Make a classifier less sure, or surer, in its own last layer: logits times a factor, plus a shift.

    Args:
        classifier: any; its output layer must be linear or a convolution.
        factor: what the logits are multiplied by, above zero.
        shift: (C,), what is then added; left out where the layer has no bias.
        inputs: a batch on which to see that just this happened.

    Returns:
        Whether it did. If not, the classifier is as before.
    """

    def scale(layer: nn.Linear | nn.Conv2d) -> None:
        for parameter in _own_parameters(layer):
            parameter.mul_(factor)
        if layer.bias is not None:
            layer.bias.add_(shift.to(layer.bias))

    def scaled(logits: Tensor, layers: Sequence[nn.Linear | nn.Conv2d]) -> Tensor:
        shifted = all(layer.bias is not None for layer in layers)
        return logits * factor + (shift.to(logits) if shifted else 0.0)

    if not output_layers(classifier, len(shift)):
        return False
    return _change_outputs(classifier, len(shift), inputs, scale, scaled)


@torch.no_grad()
def penultimate_features(
    classifier: nn.Module, inputs: dict[str, Tensor], num_classes: int
) -> Tensor | None:
    """Give what a classifier's output layer reads: one vector an item.

    Where the layer reads several places of an item, as the tokens of a decoder, the vector is their mean
    with the weights that their outputs have in the item's logits: the token that the logits are those
    of, and never padding.

    Args:
        classifier: any.
        inputs: a batch for it.
        num_classes: C.

    Returns:
        (B, D); what a `HeadClassifier` reads itself; None where there is no such layer, it does not read
        each item by itself, or the logits do not come from it.

    Example:
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=3))
        >>> penultimate_features(head, {"features": torch.zeros(2, 5)}, num_classes=3).shape
        torch.Size([2, 5])
    """
    if isinstance(classifier, HeadClassifier):
        return classifier.read(inputs.get("pixel_values"), inputs.get("features"))
    beside: set[nn.Module] = set()  # adapters of PEFT, which add to what a layer gives
    for module in classifier.modules():
        if hasattr(module, "base_layer") and hasattr(module, "merge"):
            base: Any = module.base_layer
            beside |= {*module.modules()} - {*base.modules()}
    layers = [each for each in output_layers(classifier, num_classes) if each not in beside]
    if not layers:
        return None
    seen: list[tuple[Tensor, Tensor]] = []

    def look(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.append((given[0], output.detach().requires_grad_()))
        torch.set_grad_enabled(True)  # what follows the layer is little
        return seen[-1][1]

    hook = layers[-1].register_forward_hook(look)
    training = classifier.training
    classifier.eval()
    try:
        logits = logits_of(classifier, inputs)
    finally:
        torch.set_grad_enabled(False)
        hook.remove()
        classifier.train(training)
    if not seen or len(seen[-1][0]) != len(logits) or not logits.requires_grad:
        return None
    read, output = seen[-1]
    if isinstance(layers[-1], nn.Conv2d):
        read = read.movedim(1, -1)
    read = read.float().reshape(len(read), -1, read.shape[-1])
    if read.shape[1] == 1:
        return read[:, 0]
    weights = _weights_of_places(logits, output, 1 if isinstance(layers[-1], nn.Conv2d) else -1)
    if weights.shape[1] != read.shape[1]:
        return read.mean(dim=1)  # a convolution that reads several places at once
    whole = weights.sum(dim=1, keepdim=True)
    if (whole == 0).any():
        return None
    read = torch.where(weights[..., None] == 0, 0.0, read)
    return (weights[..., None] * read).sum(dim=1) / whole


@torch.enable_grad()
def _weights_of_places(logits: Tensor, output: Tensor, class_axis: int) -> Tensor:
    """Tell how much each place of an item counts in its logits: (B, P), up to a factor an item.

    Args:
        logits: (B, C), computed from `output`.
        output: of the layer, one score a class and place.
        class_axis: which of its axes is that of the classes.
    """
    # A direction in which logits change also where they are normalised.
    direction = torch.linspace(1, 2, logits.shape[1], device=logits.device)
    (gradient,) = torch.autograd.grad((logits.float() @ direction).sum(), output)
    return (gradient.movedim(class_axis, -1).float() @ direction).flatten(1)


def _change_outputs(
    classifier: nn.Module,
    num_classes: int,
    inputs: dict[str, Tensor],
    change: Callable[[nn.Linear | nn.Conv2d], None],
    expected: Callable[[Tensor, Sequence[nn.Linear | nn.Conv2d]], Tensor],
) -> bool:
    """Change the layers that give the logits, and see on a batch that the logits changed as expected.

    The last layer alone is tried first, then the last two: models with two heads have two. Where neither
    does, the classifier is left as it was.
    """
    training = classifier.training
    classifier.eval()
    try:
        before = logits_of(classifier, inputs)
        layers = output_layers(classifier, num_classes)
        for chosen in (layers[-1:], layers[-2:]):
            kept = [(p, p.clone()) for layer in chosen for p in _own_parameters(layer)]
            for layer in chosen:
                change(layer)
            after = logits_of(classifier, inputs)
            if torch.allclose(after, expected(before, chosen), rtol=1e-3, atol=1e-3):
                return True
            for parameter, value in kept:
                parameter.copy_(value)
        return False
    finally:
        classifier.train(training)


def _own_parameters(layer: nn.Linear | nn.Conv2d) -> list[Tensor]:
    return [layer.weight] if layer.bias is None else [layer.weight, layer.bias]


CLASSIFIERS: dict[str, tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
    model.config_class.model_type: (model.config_class, model)
    for model in (FourLayerCNN, VGG16, HeadClassifier)
}

__all__ = [
    "CLASSIFIERS",
    "VGG16",
    "FourLayerCNN",
    "FourLayerCNNConfig",
    "HeadClassifier",
    "HeadConfig",
    "VGG16Config",
]
