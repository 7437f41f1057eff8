"""Features of a frozen backbone, computed once, so that a head trains without opening a picture.

The head itself is `HeadClassifier`.
"""

import functools
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import datasets.config
import torch
from datasets import DatasetDict, Image, concatenate_datasets
from datasets.fingerprint import Hasher
from transformers import AutoModel, PreTrainedModel

from ..model.heads import HeadClassifier
from .inputs import as_rgb
from .named.sealed import made_once
from .numbered import NumberedItems


def frozen_features(
    data: DatasetDict,
    backbone: str | os.PathLike[str],
    processor: Any,
    image_column: str = "image",
    batch_size: int = 32,
) -> tuple[DatasetDict, PreTrainedModel]:
    """Add features of a frozen backbone to the pictures, computed once and cached.

    The cache of `datasets` holds them in Arrow files, under a name made of the pictures, the backbone's
    weights and the processor's settings. Other runs, methods or votes reuse them. If any of these has
    changed, or the file is damaged, they are computed again. An accelerator is used if there is one.

    Args:
        data: splits with a column of pictures.
        backbone: a Hub name or a folder.
        processor: its image processor.
        image_column: the column of pictures.
        batch_size: pictures that go through the backbone together.

    Returns:
        The data with a column `features`, (D,) float32 per item, and the backbone. Rows no longer show
        the pictures, so that training decodes none; `with_format(None)` shows them again. The
        backbone is in float32, whatever type it was saved in.

    Raises:
        FileNotFoundError, OSError, ValueError: if a picture is missing, cannot be read, or has more
            than 8 bits per channel. The error names the item and its file.

    Example:
        >>> import tempfile
        >>> from PIL import Image as Picture
        >>> from transformers import ResNetConfig, ResNetModel, ViTImageProcessor
        >>> folder = tempfile.mkdtemp()
        >>> config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1], layer_type="basic")
        >>> ResNetModel(config).save_pretrained(folder)
        >>> pictures = datasets.Dataset.from_dict({"image": [Picture.new("RGB", (9, 9), "olive")]})
        >>> data = DatasetDict(train=pictures.cast_column("image", Image()))
        >>> data, encoder = frozen_features(data, folder, ViTImageProcessor(size={"height": 32, "width": 32}))
        >>> len(data["train"][0]["features"])
        6
    """
    # Transformers would take the type that it was saved in, half precision for many.
    encoder = AutoModel.from_pretrained(backbone, dtype=torch.float32).eval()
    reader = Hasher.hash(
        [{n: t.numpy() for n, t in encoder.state_dict().items()}, processor.to_dict()]
    )
    if torch.accelerator.is_available():
        encoder.to(torch.accelerator.current_accelerator())
    folder = Path(datasets.config.HF_DATASETS_CACHE, "hf_maxmig", "features")

    def encode(read: NumberedItems, batch: Any, rows: list[int]) -> dict[str, Any]:
        try:
            given = batch[image_column]
        except Exception:
            read.name_the_broken(rows)
            raise
        pictures = [as_rgb(p, image_column, row) for p, row in zip(given, rows, strict=True)]
        pixel_values = processor(pictures, return_tensors="pt")["pixel_values"].to(encoder.device)
        return {"features": HeadClassifier.encode(encoder, pixel_values).float().cpu().numpy()}

    encoded = DatasetDict()
    for name, split in data.items():
        files = split.cast_column(image_column, Image(decode=False))[image_column]
        identities = [_identity(image_column, file, row) for row, file in enumerate(files)]
        key = Hasher.hash([reader, identities])
        place = folder / f"{key}.arrow"
        compute = functools.partial(
            split.select_columns(image_column).map,
            functools.partial(encode, NumberedItems(split.select_columns(image_column))),
            with_indices=True, batched=True, batch_size=batch_size,
            remove_columns=image_column, desc=f"Features of {name}", new_fingerprint=key,
        )  # fmt: skip
        made_once(place, _writing(compute))
        features = compute(cache_file_name=str(place), load_from_cache_file=True)
        joined = concatenate_datasets([split, features], axis=1)
        shown = [column for column in joined.column_names if column != image_column]
        encoded[name] = joined.with_format(columns=shown)
    return encoded, encoder.cpu()


def _writing(compute: Callable[..., Any]) -> Callable[[Path], Any]:
    return lambda path: compute(cache_file_name=str(path), load_from_cache_file=False)


def _identity(column: str, file: Any, row: int) -> tuple[Any, ...]:
    """Tell pictures apart: by their bytes, or by file and time."""
    if file is None or (file["bytes"] is None and not file["path"]):
        raise ValueError(
            f"column {column!r} must hold a picture in every example, got none at item {row}: leave it out."
        )
    if file["bytes"] is not None:
        return (sha256(file["bytes"]).hexdigest(),)
    try:
        return file["path"], os.stat(file["path"]).st_mtime_ns
    except OSError as error:
        raise FileNotFoundError(
            f"column {column!r} must hold files that are there, got {file['path']} at item {row}: bring it back, or "
            "leave the item out."
        ) from error
