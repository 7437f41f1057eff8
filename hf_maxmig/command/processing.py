"""Columns of texts, sounds or rows become the inputs of a classifier; pictures wait for the training.

Texts are tokenised and cut to the classifier's length; batches are padded when they are made. Sounds are
read, resampled, and cut or filled up to one length. The columns themselves stay, for reports.
"""

import logging
from collections.abc import Sequence
from typing import Any

from datasets import Dataset, DatasetDict, concatenate_datasets
from datasets.fingerprint import Hasher
from transformers import PreTrainedModel

from ..model.items import ItemReader, most_tokens, sound_size
from ..model.opening import opened_sound
from .content import Content

logger = logging.getLogger(__name__)

MOST_SECONDS = 10.0


def with_inputs(
    dataset: Dataset, content: Content, processor: Any, classifier: PreTrainedModel
) -> Dataset:
    """Add the classifier's inputs to texts and sounds; pictures and rows are read in training.

    Args:
        dataset: the items.
        content: what they are.
        processor: the tokenizer of texts; the feature extractor of sounds, with their length.
        classifier: what reads the inputs; it says how long a text may be.

    Returns:
        The items with further columns.

    Raises:
        ValueError, OSError: if an item cannot be read; the error names it.
    """
    if content.modality == "text":
        return _tokenised(dataset, content.columns, processor, classifier)
    if content.modality == "audio":
        return _heard(dataset, content.columns[0], processor, classifier)
    return dataset


# Texts


def _tokenised(
    dataset: Dataset, columns: Sequence[str], tokenizer: Any, classifier: PreTrainedModel
) -> Dataset:
    most = most_tokens(classifier, tokenizer)

    def tokens(*texts: list[str]) -> dict[str, Any]:
        return dict(tokenizer(*map(list, texts), truncation=most is not None, max_length=most))

    return dataset.map(tokens, batched=True, input_columns=list(columns), desc="Tokens")


# Sounds


def set_length(splits: DatasetDict, column: str, extractor: Any, seconds: float | None) -> None:
    """Note in a feature extractor the length to which sounds are cut or filled up, and say it.

    Args:
        splits: the items, `train` among them.
        column: of sounds.
        extractor: the feature extractor, which is saved with the model.
        seconds: that length; by default that of the longest training sound, at most `MOST_SECONDS`.

    Raises:
        ValueError, OSError: if a sound cannot be read; the error names it.
    """
    if seconds is None:
        rate, longest = extractor.sampling_rate, 1
        for row, sound in enumerate(splits["train"].select_columns([column]).with_format(None)):
            longest = max(longest, len(opened_sound(sound[column], rate, row)))
            if longest >= MOST_SECONDS * rate:
                break
        seconds = min(longest / rate, MOST_SECONDS)
    extractor.max_seconds = seconds
    logger.warning(
        "Sounds are cut or filled up to %.3g seconds; `--max_seconds` sets another length.", seconds
    )


def _heard(dataset: Dataset, column: str, extractor: Any, classifier: PreTrainedModel) -> Dataset:
    """Read sounds as a pipeline reads them."""
    reader = ItemReader(classifier, "audio-classification", extractor)

    def inputs(sound: Any, row: int) -> dict[str, Any]:
        made = reader({"audio": sound}, row)
        return {name: tensor.numpy() for name, tensor in made.items()}

    # Not from the cache, which knows sounds by their paths: a file may have changed.
    made = dataset.select_columns([column]).map(
        inputs, input_columns=[column], with_indices=True, remove_columns=[column], desc="Sounds",
        load_from_cache_file=False,
        new_fingerprint=Hasher.hash([dataset._fingerprint, sound_size(extractor)]),
    )  # fmt: skip
    return concatenate_datasets([dataset, made], axis=1)
