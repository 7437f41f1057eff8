"""Features of the items: the input of a classifier's output layer.

Small networks on these features stand in for the classifier before a training; see `cross_fit.py` and
`raced.py`.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.collator import NOT_INPUTS
from ..data.numbered import ROW, UNKNOWN, check_each_once, in_order
from ..model.pooling import mean_of_places
from ..model.surgery import penultimate_features, without_peft_model
from .fold_networks import MOST_FEATURES

MOST_NUMBERS = 2**28  # of features that are kept: a gigabyte
SAME = 1e-6  # of the largest feature: smaller differences are rounding


@torch.no_grad()
def features_of(
    classifier: nn.Module,
    batches: Iterable[Mapping[str, Tensor]],
    num_classes: int,
    num_items: int,
    seed: int,
    gather: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Tensor | None:
    """Compute the features of each item: the output layer's input, and the mean of the encoder's states.

    Text classifiers have layers between encoder and output layer that were not pretrained. So the mean of
    the encoder's last hidden states is put beside the output layer's input, at the same scale.

    Args:
        classifier: the classifier that computes the features.
        batches: the batches of all items, on the classifier's device; `crowd_row` holds the items'
            numbers. If several processes share the items, those of this process.
        num_classes: C.
        num_items: N.
        seed: the seed of the random directions on which too many features are projected.
        gather: joins (B, ...) tensors of all processes.

    Returns:
        (N, D) float32, on the CPU, in the order of the items; None if the output layer does not read one
        vector per item.

    Raises:
        ValueError: if an item has no features, or `crowd_row` is missing.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=2, num_labels=3))
        >>> batch = {"features": torch.eye(2), "crowd_row": torch.tensor([1, 0])}
        >>> features_of(head, [batch], num_classes=3, num_items=2, seed=0)
        tensor([[0., 1.],
                [1., 0.]])
    """
    found, means = [], []
    for batch in batches:
        inputs = {n: t for n, t in batch.items() if n not in (*NOT_INPUTS, "labels", ROW)}
        with _hidden_states(classifier) as hidden:
            features = penultimate_features(classifier, inputs, num_classes)
        if features is None:
            return None
        mean = mean_of_places(hidden[-1], inputs.get("attention_mask")) if hidden else None
        if mean is not None:
            means.append(gather(_fewer(mean, num_items, seed)).cpu())
        features = _fewer(features, num_items, seed)
        unknown = torch.full((len(features),), UNKNOWN, device=features.device)
        found.append((gather(features).cpu(), gather(batch.get(ROW, unknown)).cpu().numpy()))
    rows = np.concatenate([part[1] for part in found])
    order = in_order(rows)
    check_each_once(rows[order], num_items)
    whole = torch.cat([part[0] for part in found])[order]
    if len(means) < len(found):
        return whole
    return torch.cat([_of_one_scale(whole), _of_one_scale(torch.cat(means)[order])], dim=1)


@contextlib.contextmanager
def _hidden_states(classifier: nn.Module) -> Iterator[list[Tensor]]:
    """Keep the last hidden states of the classifier's encoder, if its encoder returns them."""
    plain = without_peft_model(classifier)
    encoder, kept = getattr(plain, "base_model", plain), list[Tensor]()
    if encoder is plain:
        yield kept
        return

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        hidden = getattr(output, "last_hidden_state", None)
        if isinstance(hidden, Tensor):
            kept.append(hidden.detach())

    hook = encoder.register_forward_hook(keep)
    try:
        yield kept
    finally:
        hook.remove()


def _fewer(features: Tensor, num_items: int, seed: int) -> Tensor:
    """Project features on random directions if they take too much memory; distances are nearly kept."""
    size = features.shape[1], 2 * MOST_FEATURES
    if size[0] * num_items <= MOST_NUMBERS or size[0] <= size[1]:
        return features.float()
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(size, generator=generator).to(features.device)
    return features.float() @ directions / size[0] ** 0.5


def _of_one_scale(features: Tensor) -> Tensor:
    centred = features - features.mean(dim=0)
    return centred / centred.square().mean().sqrt().clamp(min=1e-6)


def reads_items(classifier: nn.Module, batch: Mapping[str, Tensor], num_classes: int) -> bool:
    """Whether a classifier's output layer reads one vector per item.

    Args:
        classifier: any classifier.
        batch: a batch of two items or more, on its device.
        num_classes: C.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=2, num_labels=3))
        >>> reads_items(head, {"features": torch.eye(2)}, num_classes=3)
        True
    """
    inputs = {n: t for n, t in batch.items() if n not in (*NOT_INPUTS, "labels", ROW)}
    return penultimate_features(classifier, inputs, num_classes) is not None


def missing_in_features(features: Tensor | None) -> str | None:
    """Say why networks could not learn from features.

    Args:
        features: (N, D), the features of the items; None if there are none.

    Returns:
        What is needed and what came, in words; None if nothing is missing.

    Example:
        >>> missing_in_features(torch.tensor([[0.5, 1.0], [0.5, 2.0]]))
        >>> missing_in_features(torch.tensor([[0.5, 1.0], [0.5, 1.0]]))
        "features that differ between items, got the same for all 2 from the classifier's last layer"
    """
    if features is None:
        return "a classifier whose output layer reads one vector per item"
    finite = features.isfinite().all(dim=1)
    if not finite.all():
        return (
            f"finite features, got others from the classifier's last layer for {int((~finite).sum())} of "
            f"{len(features)} items, the first of them item {int((~finite).nonzero()[0])}"
        )
    spread = (features.amax(dim=0) - features.amin(dim=0)).max()
    if spread <= SAME * features.abs().max():
        return (
            f"features that differ between items, got the same for all {len(features)} from the classifier's last "
            "layer"
        )
    return None
