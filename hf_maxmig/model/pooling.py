"""One vector per item from an encoder of transformers: run it without gradients, and pool its hidden states.

The heads in `classifiers.py` read items by this. The Hub carries it with them.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

POOLINGS = ("mean", "cls", "pooled")


def check_pooling(pooling: str | None) -> None:
    """Refuse a pooling that is not one of `POOLINGS` or None.

    Raises:
        ValueError: if it is another.
    """
    if pooling not in (None, *POOLINGS):
        raise ValueError(
            f"`pooling` must be one of {', '.join(POOLINGS)} or None, got {pooling!r}."
        )


def part_that_reads(encoder: PreTrainedModel) -> PreTrainedModel:
    """Return the part of a model that reads texts or sounds: its encoder, if it also has a decoder."""
    return encoder.get_encoder() if encoder.config.is_encoder_decoder else encoder


def inputs_read(encoder: PreTrainedModel) -> frozenset[str]:
    """Name the inputs that an encoder of texts or sounds takes, without a catch-all.

    Example:
        >>> from transformers import DistilBertConfig, DistilBertModel
        >>> tiny = DistilBertConfig(dim=8, n_layers=1, n_heads=2, hidden_dim=8, vocab_size=9)
        >>> "token_type_ids" in inputs_read(DistilBertModel(tiny))
        False
    """
    return frozenset(inspect.signature(part_that_reads(encoder).forward).parameters)


@torch.no_grad()
def encoded(
    encoder: PreTrainedModel,
    inputs: Mapping[str, Tensor | None],
    pooling: str | None = None,
    taken: frozenset[str] | None = None,
) -> Tensor:
    """Turn a batch of texts or sounds into one vector per item.

    Args:
        encoder: as `AutoModel` builds it. Of an encoder with a decoder, only the encoder runs.
        inputs: the batch by the names of the encoder's inputs, each (B, T) or (B, T, size). What it does not
            take is left out.
        pooling: see `pooled`; the mean by default.
        taken: the result of `inputs_read`, computed by default; `torch.compile` cannot trace that.

    Returns:
        (B, D).

    Raises:
        ValueError: if the encoder has no such output.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> tiny = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)
        >>> encoded(BertModel(tiny), {"input_ids": torch.ones(2, 5, dtype=torch.int64)}).shape
        torch.Size([2, 8])
    """
    reads = part_that_reads(encoder)
    taken = inputs_read(encoder) if taken is None else taken
    given = {
        name: tensor.to(encoder.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in inputs.items()
        if tensor is not None and name in taken
    }
    outputs = reads(**given, return_dict=True)
    return pooled(outputs, pooling or "mean", mask=inputs.get("attention_mask"), encoder=reads)


def pooled(
    outputs: Any, pooling: str, mask: Tensor | None = None, encoder: nn.Module | None = None
) -> Tensor:
    """Make one vector per item of an encoder's output.

    Args:
        outputs: with `last_hidden_state`, (B, T, D), or (B, D, height, width) of a convolutional network; or
            with `pooler_output`.
        pooling: `mean` over the places that are attended to, `cls` for the first of them, or `pooled` for the
            encoder's own pooled output.
        mask: (B, S), 0 where an input was padded; S may be longer than T.
        encoder: says which of the T places were padded, if S is longer.

    Returns:
        (B, D).

    Raises:
        ValueError: if the output lacks what is to be pooled.

    Example:
        >>> from transformers.modeling_outputs import BaseModelOutput
        >>> outputs = BaseModelOutput(last_hidden_state=torch.tensor([[[1.0], [3.0], [9.0]]]))
        >>> mask = torch.tensor([[1, 1, 0]])
        >>> pooled(outputs, "mean", mask), pooled(outputs, "cls", mask)
        (tensor([[2.]]), tensor([[1.]]))
    """
    if pooling == "pooled":
        whole = getattr(outputs, "pooler_output", None)
        if not isinstance(whole, Tensor):
            raise ValueError(
                f"`pooling` must be 'mean' or 'cls' for {_named(encoder)}, got 'pooled': it has no pooled output."
            )
        return whole.flatten(1)
    hidden = getattr(outputs, "last_hidden_state", None)
    if not isinstance(hidden, Tensor):
        raise ValueError(
            f"an encoder must give `last_hidden_state`, got {type(outputs).__name__} of {_named(encoder)}."
        )
    if hidden.ndim == 4:
        if pooling == "cls":
            raise ValueError(
                f"`pooling` must be 'mean' or 'pooled' for {_named(encoder)}, got 'cls': its output is a picture."
            )
        return hidden.flatten(2).mean(dim=2)
    attended = mask_of_places(mask, hidden.shape[1], encoder)
    if pooling == "cls":
        if attended is None:
            return hidden[:, 0]
        first = (attended > 0).int().argmax(dim=1)  # a tokenizer may pad on the left
        return hidden[torch.arange(len(hidden), device=hidden.device), first]
    mean = mean_of_places(hidden, attended)
    if mean is None:
        raise ValueError(
            f"an encoder must give one state per place, (B, T, D), got {tuple(hidden.shape)} of {_named(encoder)}."
        )
    return mean


def mask_of_places(
    mask: Tensor | None, places: int, encoder: nn.Module | None = None
) -> Tensor | None:
    """Say which places of the output are attended to, where an encoder of sounds has shortened its input.

    Args:
        mask: (B, S), 0 where an input was padded; None if nothing was.
        places: T, of the output.
        encoder: whose output it is; wav2vec 2.0 and its relatives know their own mask.

    Returns:
        (B, T); None if nothing was padded, or it is not known what was.

    Example:
        >>> mask_of_places(torch.tensor([[1, 1, 1, 0, 0, 0]]), 3)
        tensor([[1, 1, 0]])
    """
    if mask is None or mask.ndim != 2 or mask.shape[1] == places:
        return mask if mask is None or mask.ndim == 2 else None
    shortened: Any = getattr(encoder, "_get_feature_vector_attention_mask", None)
    if shortened is not None:
        return shortened(places, mask)
    step, rest = divmod(mask.shape[1], max(places, 1))
    return mask[:, ::step] if step and not rest else None


def mean_of_places(hidden: Tensor, mask: Tensor | None) -> Tensor | None:
    """Average hidden states over the positions of an item, without padding.

    Args:
        hidden: (B, T, D); other shapes have no mean.
        mask: (B, T), 0 for padding; None without padding.

    Returns:
        (B, D) float32; None if `hidden` has another shape, or `mask` does not fit it.

    Example:
        >>> mean_of_places(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[1, 1, 0]]))
        tensor([[2.]])
    """
    if hidden.dim() != 3 or (mask is not None and mask.shape != hidden.shape[:2]):
        return None
    if mask is None:
        return hidden.float().mean(dim=1)
    taken = (mask > 0)[..., None]
    summed = torch.where(taken, hidden.float(), 0.0).sum(dim=1)
    return summed / taken.sum(dim=1).clamp(min=1)


def _named(encoder: nn.Module | None) -> str:
    return "the encoder" if encoder is None else type(encoder).__name__


__all__ = [
    "POOLINGS",
    "check_pooling",
    "encoded",
    "inputs_read",
    "mask_of_places",
    "mean_of_places",
    "part_that_reads",
    "pooled",
]
