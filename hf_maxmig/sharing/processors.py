"""Image processors that can be saved with a model, so that it is used with the one it was trained with."""

from typing import Any

from transformers import BitImageProcessor
from transformers.utils import logging

logger = logging.get_logger(__name__)

# timm's names, PIL's numbers
_RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}


def portable_processor(processor: Any) -> Any:
    """Replace timm's image processor, which cannot be saved, by an equivalent one of transformers.

    It resizes, crops and normalises in the same way, up to a pixel in the place of the crop. It is used
    in training and saved with the model, where pipelines find it.

    Args:
        processor: an image processor or anything else that a trainer takes.

    Returns:
        A `BitImageProcessor` for timm's; anything else unchanged.

    Example:
        >>> usual = BitImageProcessor()
        >>> portable_processor(usual) is usual
        True
    """
    if type(processor).__name__ != "TimmWrapperImageProcessor":
        return processor
    settings = processor.data_config
    _, height, width = settings["input_size"]
    resample = _RESAMPLING.get(settings["interpolation"])
    if settings["crop_mode"] != "center" or height != width or resample is None:
        logger.warning(
            "The image processor (%s) has no equivalent that can be saved: save your own beside the model.",
            settings,
        )
        return processor
    return BitImageProcessor(
        size={"shortest_edge": int(height / settings["crop_pct"])},
        crop_size={"height": height, "width": width},
        resample=resample,
        image_mean=list(settings["mean"]),
        image_std=list(settings["std"]),
        do_convert_rgb=True,
    )
