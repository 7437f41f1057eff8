"""Columns of texts, sounds or rows become the inputs of a classifier; pictures wait for the training.

Texts are tokenised and cut to the classifier's length; batches are padded when they are made. Sounds are
read, resampled, and cut or filled up to one length. The columns themselves stay, for reports.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from datasets import Dataset, DatasetDict, concatenate_datasets
from datasets.fingerprint import Hasher

from ..model.opening import opened_sound
from .content import Content

logger = logging.getLogger(__name__)

MOST_SECONDS = 10.0
_UNLIMITED = 10**6  # a tokenizer without a limit reports a very large number


def with_inputs(
    dataset: Dataset,
    content: Content,
    processor: Any,
    config: Any = None,
) -> Dataset:
    """Add the classifier's inputs to items.

    Args:
        dataset: the items.
        content: what they are.
        processor: the tokenizer of texts; the feature extractor of sounds, whose `max_seconds` are their length;
            pictures are left as they are.
        config: of the classifier, which says how long a text may be.

    Returns:
        The items with further columns.

    Raises:
        ValueError, OSError: if an item cannot be read; the error names it.
    """
    if content.modality == "text":
        return _tokenised(dataset, content.columns, processor, config)
    if content.modality == "audio":
        (column,) = content.columns
        seconds = getattr(processor, "max_seconds", None) or seconds_of(dataset, column, processor)
        return _heard(dataset, column, processor, seconds)
    return dataset


def splits_with_inputs(
    splits: DatasetDict,
    content: Content,
    processor: Any,
    config: Any = None,
    max_seconds: float | None = None,
) -> DatasetDict:
    """Add the classifier's inputs to training and test items, sounds of one length.

    Args:
        splits: the items, `train` among them.
        content: what they are.
        processor: as in `with_inputs`; it keeps the length of the sounds.
        config: of the classifier.
        max_seconds: that length; by default that of the longest training sound, at most `MOST_SECONDS`.

    Returns:
        The items with further columns.
    """
    if content.modality == "audio":
        if max_seconds is None:
            max_seconds = seconds_of(splits["train"], content.columns[0], processor)
        processor.max_seconds = max_seconds
    made = {name: with_inputs(part, content, processor, config) for name, part in splits.items()}
    return DatasetDict(made)


# Texts


def _tokenised(
    dataset: Dataset, columns: Sequence[str], tokenizer: Any, config: Any = None
) -> Dataset:
    length = text_length(tokenizer, config)

    def tokens(*texts: list[str]) -> dict[str, Any]:
        return dict(tokenizer(*map(list, texts), truncation=length is not None, max_length=length))

    return dataset.map(tokens, batched=True, input_columns=list(columns), desc="Tokens")


def text_length(tokenizer: Any, config: Any = None) -> int | None:
    """Find how many tokens a text may have; None without a limit.

    Args:
        tokenizer: it says so, or not.
        config: of the classifier, whose places are counted otherwise.
    """
    limits = [
        getattr(tokenizer, "model_max_length", None),
        getattr(config, "max_position_embeddings", None),
    ]
    known = [limit for limit in limits if limit is not None and limit < _UNLIMITED]
    return min(known, default=None)


# Sounds


def seconds_of(dataset: Dataset, column: str, extractor: Any) -> float:
    """Find the length of the longest sound, at most `MOST_SECONDS`, and say it."""
    rate = extractor.sampling_rate
    longest = 0
    for row, sound in enumerate(_stored(dataset, column)):
        longest = max(longest, len(opened_sound(sound, rate, row)))
        if longest >= MOST_SECONDS * rate:
            break
    seconds = min(longest / rate, MOST_SECONDS)
    logger.warning(
        "Sounds are cut or filled up to %.3g seconds; `--max_seconds` sets another length.", seconds
    )
    return seconds


def _heard(dataset: Dataset, column: str, extractor: Any, seconds: float) -> Dataset:
    rate = extractor.sampling_rate
    size = max(1, round(seconds * rate))
    # An extractor of spectrograms fills up to its own length.
    fills = extractor.model_input_names[0] == "input_values"
    padding = {"padding": "max_length", "max_length": size, "truncation": True} if fills else {}

    def inputs(batch: dict[str, Any], rows: list[int]) -> dict[str, Any]:
        sounds = [opened_sound(s, rate, r)[:size] for s, r in zip(batch[column], rows, strict=True)]
        made = extractor(sounds, sampling_rate=rate, return_tensors="np", **padding)
        return {name: list(values) for name, values in made.items()}

    # Not from the cache, which knows sounds by their paths: a file may have changed.
    made = dataset.select_columns([column]).map(
        inputs, batched=True, with_indices=True, batch_size=64, remove_columns=[column], desc="Sounds",
        load_from_cache_file=False, new_fingerprint=Hasher.hash([dataset._fingerprint, size]),
    )  # fmt: skip
    return concatenate_datasets([dataset, made], axis=1)


def _stored(dataset: Dataset, column: str) -> Iterator[Any]:
    """Yield the sounds as files or bytes, not decoded."""
    return (row[column] for row in dataset.select_columns([column]).with_format(None))
