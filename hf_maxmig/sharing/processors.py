"""Image processors that can be saved beside a pair, so that who loads it has what it was trained with."""

from typing import Any

from transformers import BitImageProcessor
from transformers.utils import logging

logger = logging.get_logger(__name__)

# timm's names, PIL's numbers
_RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}


def portable_processor(processor: Any) -> Any:
    """Replace timm's image processor, which saves nothing, by one of transformers that does the same.

    It resizes, crops and normalises alike, to a pixel of the crop's place. Trained with and saved,
    it is what a pipeline then finds beside the pair.

    Args:
        processor: an image processor or anything else that a trainer takes.

    Returns:
        A `BitImageProcessor` for timm's; anything else as it is.

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
            "The image processor (%s) has no equal that can be saved: save your own beside the pair.",
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
