"""Features of a frozen encoder, computed once, so that a head trains without opening an item.

The heads themselves are in `model/heads.py`.
"""

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import datasets.config
import numpy as np
import torch
from datasets import Audio, Dataset, DatasetDict, Image, concatenate_datasets
from datasets.fingerprint import Hasher
from torch import Tensor
from transformers import (
    AutoModel,
    FeatureExtractionMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    SequenceFeatureExtractor,
)
from transformers.utils import logging

from ..model.heads import HeadClassifier
from ..model.items import ItemReader, most_tokens
from ..model.opening import short
from ..model.pooling import check_pooling, encoded, inputs_read
from .inputs import as_rgb
from .named.sealed import made_once
from .numbered import NumberedItems

logger = logging.get_logger(__name__)

_WHAT = {"image": "a picture", "text": "a text", "audio": "a sound"}
_SORTED_TOGETHER = 32  # batches whose texts or sounds are sorted by length, so that few are padded

Encode = Callable[[Any, Mapping[str, Any], list[int]], Tensor]  # items, a batch, its rows


def frozen_features(
    data: DatasetDict,
    backbone: str | os.PathLike[str],
    processor: Any,
    column: str = "image",
    batch_size: int = 32,
    *,
    pooling: str | None = None,
    pair_column: str | None = None,
) -> tuple[DatasetDict, PreTrainedModel]:
    """Add features of a frozen encoder to pictures, texts or sounds, computed once and cached.

    The cache of `datasets` holds them in Arrow files, under a name made of the items, the encoder's weights,
    the processor's settings and the pooling. Other runs, methods or votes reuse them. If any of these has
    changed, or the file is damaged, they are computed again. An accelerator is used if there is one.

    A text is cut at the largest number of tokens that the encoder reads. A sound is resampled to the rate of
    the feature extractor.

    Args:
        data: splits with a column of items.
        backbone: a Hub name or a folder of any encoder that `AutoModel` loads.
        processor: its image processor, tokenizer or feature extractor, which says what the items are.
        column: of pictures, texts or sounds. Pictures and sounds may be files, as `datasets.Image` and
            `datasets.Audio` or as paths; sounds also dicts with `array` and `sampling_rate`.
        batch_size: items that go through the encoder together.
        pooling: how the encoder's output becomes one vector. "mean" is over the tokens or the moments that are
            attended to, "cls" takes the first of them, "pooled" the encoder's own pooled output. The default
            is the mean; for pictures, the pooled output if there is one. Give a head the same `pooling`.
        pair_column: of second texts, for pairs.

    Returns:
        The data with a column `features`, (D,) float32 per item, and the encoder. Rows no longer show
        pictures or sounds, so that training decodes none; `with_format(None)` shows them again. The
        encoder is in float32, whatever type it was saved in.

    Raises:
        FileNotFoundError, OSError, ValueError, TypeError: if an item is missing, empty, cannot be read,
            or gives features that are not finite; if a picture has more than 8 bits per channel. The error
            names the item and its file.
        TypeError: if `processor` is none of the three.
        ValueError: if a column is missing, or `pooling` is unknown.

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
    content = content_of(processor)
    check_pooling(pooling)
    if pair_column is not None and content != "text":
        raise ValueError(
            f"`pair_column` must only be given for texts, got {pair_column!r} with {type(processor).__name__}."
        )
    columns = [column] if pair_column is None else [column, pair_column]
    for name, split in data.items():
        for wanted in columns:
            if wanted not in split.column_names:
                raise ValueError(
                    f"the data must have a column {wanted!r} in each split, got {', '.join(split.column_names)} in "
                    f"{name!r}."
                )
    encoder = _loaded(backbone, pooling or ("pooled" if content == "image" else "mean"))
    weights = {n: t.numpy() for n, t in encoder.state_dict().items()}
    reader = Hasher.hash([weights, _settings(processor, encoder), pooling])
    if torch.accelerator.is_available():
        encoder.to(torch.accelerator.current_accelerator())
    if content == "image":
        encode: Encode = functools.partial(_encode_pictures, encoder, processor, column, pooling)
        at_once = batch_size
    else:
        encode = _item_encoder(encoder, processor, content, columns, batch_size, pooling)
        at_once = batch_size * _SORTED_TOGETHER
    folder = Path(datasets.config.HF_DATASETS_CACHE, "hf_maxmig", "features")

    with_features = DatasetDict()
    for name, split in data.items():
        unopened = _unopened(split, content, column)
        identities = [
            _identity(column, _WHAT[content], item, row)
            for row, item in enumerate(unopened[column])
        ]
        if pair_column is not None:
            pairs = enumerate(split[pair_column])
            identities += [_identity(pair_column, "a text", item, row) for row, item in pairs]
        key = Hasher.hash([reader, identities])
        place = folder / f"{key}.arrow"
        # A picture is opened by `datasets`, with its own errors; a sound by this package.
        items = _opened(split, column) if content == "image" else unopened
        items = items.select_columns(columns)
        compute = functools.partial(
            items.map, functools.partial(_features_of, encode, NumberedItems(items)),
            with_indices=True, batched=True, batch_size=at_once,
            remove_columns=columns, desc=f"Features of {name}", new_fingerprint=key,
        )  # fmt: skip
        made_once(place, _writing(compute))
        features = compute(cache_file_name=str(place), load_from_cache_file=True)
        joined = concatenate_datasets([split, features], axis=1)
        hidden = [] if content == "text" else columns
        shown = [one for one in joined.column_names if one not in hidden]
        with_features[name] = joined.with_format(columns=shown)
    return with_features, encoder.cpu()


def content_of(processor: Any) -> str:
    """Say what a processor reads: "image", "text" or "audio".

    Raises:
        TypeError: if it is none of the three, or several in one.

    Example:
        >>> from transformers import ViTImageProcessor, Wav2Vec2FeatureExtractor
        >>> content_of(ViTImageProcessor()), content_of(Wav2Vec2FeatureExtractor())
        ('image', 'audio')
    """
    if isinstance(processor, PreTrainedTokenizerBase):
        return "text"
    if isinstance(processor, SequenceFeatureExtractor):
        return "audio"
    known = getattr(processor, "model_input_names", ["pixel_values"])
    several = isinstance(processor, ProcessorMixin)
    if several or (isinstance(processor, FeatureExtractionMixin) and "pixel_values" not in known):
        raise TypeError(
            "`processor` must be an image processor, a tokenizer or a feature extractor, got "
            f"{type(processor).__name__}{': take one of its parts' if several else ''}."
        )
    return "image"


# The encoder


def _loaded(backbone: str | os.PathLike[str], pooling: str) -> PreTrainedModel:
    """Load an encoder in float32, whatever type it was saved in."""
    with torch.random.fork_rng():
        torch.manual_seed(0)  # what the checkpoint lacks is drawn: the same in each run
        encoder, info = AutoModel.from_pretrained(
            backbone, dtype=torch.float32, output_loading_info=True
        )
    drawn = [name for name in info["missing_keys"] if "pooler" in name]
    if pooling == "pooled" and drawn:
        logger.warning(
            "The pooling layer of %s is not in the checkpoint (%s), so the pooled output is that of random weights: "
            "take `pooling` 'mean' or 'cls'.",
            type(encoder).__name__,
            ", ".join(drawn),
        )
    return encoder.eval()


def _settings(processor: Any, encoder: PreTrainedModel) -> Any:
    """Return all settings of a processor that its outputs depend on."""
    if not isinstance(processor, PreTrainedTokenizerBase):
        return processor.to_dict()
    fast = getattr(processor, "backend_tokenizer", None)
    if fast is None:
        rules: dict[str, Any] = {
            "vocabulary": processor.get_vocab(),
            "options": processor.init_kwargs,
        }
    else:
        rules = json.loads(fast.to_str())
        for state in ("truncation", "padding"):  # of its last call
            rules.pop(state, None)
    return [
        type(processor).__name__,
        rules,
        most_tokens(encoder, processor),
        str(processor.truncation_side),
    ]


# Items


def _unopened(split: Dataset, content: str, column: str) -> Dataset:
    """Return a split whose pictures or sounds are files that are not opened; texts as they are."""
    kind = split.features[column]
    if content == "image":
        return split.cast_column(column, Image(decode=False))
    files = isinstance(kind, Audio) or "string" in str(getattr(kind, "dtype", ""))
    if content == "audio" and files:
        return split.cast_column(column, Audio(decode=False))
    return split


def _opened(split: Dataset, column: str) -> Dataset:
    """Return a split that opens its pictures, which may be files so far."""
    kind = split.features[column]
    opens = isinstance(kind, Image) and kind.decode
    return split if opens else split.cast_column(column, Image())


def _identity(column: str, what: str, item: Any, row: int) -> tuple[Any, ...]:
    """Tell items apart: by their content, or by file and time."""
    file = isinstance(item, Mapping) and {*item} <= {"bytes", "path"}
    if item is None or (file and item["bytes"] is None and not item["path"]):
        raise ValueError(
            f"column {column!r} must hold {what} in every example, got none at item {row}: leave it out."
        )
    if what == "a text":
        if not isinstance(item, str):
            raise TypeError(
                f"column {column!r} must hold {what} in every example, got {type(item).__name__} {short(item)} at "
                f"item {row}."
            )
        if not item.strip():
            raise ValueError(
                f"column {column!r} must hold texts of at least one word, got {item!r} at item {row}: leave it out."
            )
        return (sha256(item.encode()).hexdigest(),)
    if not file:
        return (Hasher.hash(item),)
    if item["bytes"] is not None:
        return (sha256(item["bytes"]).hexdigest(),)
    try:
        return item["path"], os.stat(item["path"]).st_mtime_ns
    except OSError as error:
        raise FileNotFoundError(
            f"column {column!r} must hold files that are there, got {item['path']} at item {row}: bring it back, or "
            "leave the item out."
        ) from error


def _writing(compute: Callable[..., Any]) -> Callable[[Path], Any]:
    return lambda path: compute(cache_file_name=str(path), load_from_cache_file=False)


# Features


def _features_of(
    encode: Encode, read: NumberedItems, batch: Mapping[str, Any], rows: list[int]
) -> dict[str, np.ndarray]:
    features = encode(read, batch, rows).float().cpu()
    finite = features.isfinite().all(dim=1)
    if not finite.all():
        raise ValueError(
            f"the features of each item must be finite, got others at item {rows[int((~finite).nonzero()[0])]}: mend it, "
            "or leave it out."
        )
    return {"features": features.numpy()}


def _encode_pictures(
    encoder: PreTrainedModel,
    processor: Any,
    column: str,
    pooling: str | None,
    read: NumberedItems,
    batch: Mapping[str, Any],
    rows: list[int],
) -> Tensor:
    try:
        given = batch[column]
    except Exception:
        read.name_the_broken(rows)
        raise
    pictures = [as_rgb(picture, column, row) for picture, row in zip(given, rows, strict=True)]
    pixel_values = processor(pictures, return_tensors="pt")["pixel_values"].to(encoder.device)
    chosen = () if pooling is None else (pooling,)
    return HeadClassifier.encode(encoder, pixel_values, *chosen)


def _item_encoder(
    encoder: PreTrainedModel,
    processor: Any,
    content: str,
    columns: list[str],
    batch_size: int,
    pooling: str | None,
) -> Encode:
    """Make what encodes texts or sounds, each read as a pipeline reads it."""
    reader = ItemReader(encoder, f"{content}-classification", processor, cuts=True)
    taken = inputs_read(encoder)
    parts = [content, f"{content}_pair"]

    def prepared(item: dict[str, Any], row: int) -> dict[str, Tensor]:
        try:
            return reader(item, row)
        except (OSError, TypeError, ValueError) as error:
            kind = next(
                kind for kind in (OSError, TypeError, ValueError) if isinstance(error, kind)
            )
            raise kind(f"column {columns[0]!r}: {error}") from error

    def together(inputs: list[dict[str, Tensor]], rows: Sequence[int]) -> Tensor:
        batch = reader.batch(inputs, rows[0])
        batch = {name: tensor.to(encoder.device) for name, tensor in batch.items()}
        return encoded(encoder, batch, pooling, taken)

    def encode(_: NumberedItems, batch: Mapping[str, Any], rows: list[int]) -> Tensor:
        given = zip(*(batch[name] for name in columns), strict=True)
        items = [dict(zip(parts, item, strict=False)) for item in given]
        inputs = [prepared(item, row) for item, row in zip(items, rows, strict=True)]
        found: dict[int, Tensor] = {}
        for chosen in _batches(inputs, batch_size):
            of_these = [inputs[i] for i in chosen]
            numbers = [rows[i] for i in chosen]
            try:
                features = together(of_these, numbers)
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                for one, number in zip(of_these, numbers, strict=True):
                    _check_takes(encoder, functools.partial(together, [one], [number]), one, number)
                raise
            found.update(zip(chosen, features, strict=True))
        return torch.stack([found[i] for i in range(len(rows))])

    return encode


def _check_takes(
    encoder: PreTrainedModel, run: Callable[[], Any], inputs: Mapping[str, Tensor], row: int
) -> None:
    """Name the item that an encoder cannot take, such as a sound that is too short for it."""
    try:
        run()
    except Exception as error:
        shapes = ", ".join(f"`{name}` of the shape {tuple(t.shape)}" for name, t in inputs.items())
        raise ValueError(
            f"{type(encoder).__name__} must be able to read each item, got {shapes} at item {row}: {short(error)}."
        ) from error


def _batches(inputs: list[dict[str, Tensor]], batch_size: int) -> Iterator[list[int]]:
    """Put items of similar length together; without a mask, only of the same: padding would change them."""
    shapes = [[tuple(tensor.shape) for tensor in one.values()] for one in inputs]
    masked = all("attention_mask" in one for one in inputs)
    chosen: list[int] = []
    for i in sorted(range(len(inputs)), key=shapes.__getitem__):
        if chosen:
            length, shortest = shapes[i][0][0], shapes[chosen[0]][0][0]
            alike = length <= 2 * shortest if masked else shapes[i] == shapes[chosen[0]]
            if not alike or len(chosen) == batch_size:
                yield chosen
                chosen = []
        chosen.append(i)
    if chosen:
        yield chosen


__all__ = ["content_of", "frozen_features"]
