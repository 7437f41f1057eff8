"""What all classifiers of this package share: torch's own initialisation, and the loss of a plain classifier.

The networks are in `classifiers.py`, the heads on features in `heads.py`.
"""

import math

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import ImageClassifierOutput


class PlainClassifier(PreTrainedModel):
    """Shared by all: torch's own initialisation, and the loss of a plain classifier."""

    task = "image-classification"  # of `AUTO_CLASSES`
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _auto_class = "AutoModelForImageClassification"
    accepts_loss_kwargs = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Conv2d):
            draw_as_torch(module)
        elif isinstance(module, nn.BatchNorm2d):
            super()._init_weights(module)

    def _output(self, logits: Tensor, labels: Tensor | None) -> ImageClassifierOutput:
        loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
        return ImageClassifierOutput(loss=loss, logits=logits)


def draw_as_torch(layer: nn.Linear | nn.Conv2d) -> None:
    """Initialise a layer as its constructor does; weights that were loaded stay.

    Args:
        layer: the layer.
    """
    init.kaiming_uniform_(layer.weight, a=math.sqrt(5))
    if layer.bias is not None:
        bound = 1 / math.sqrt(layer.weight[0].numel())
        init.uniform_(layer.bias, -bound, bound)


def keep_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Mark a model as initialised, so that a model around it does not redraw its weights."""
    for module in model.modules():
        module._is_hf_initialized = True
    return model


__all__ = ["PlainClassifier", "keep_weights"]
