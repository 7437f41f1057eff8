"""The start of one training by cross-fitting: what it needs, how it is found, and how it is checked.

`find_start` (`start.py`) takes features and votes as tensors. Here are the steps between a training and
those tensors: whether model, arguments and data admit such a start; the features of the items, computed
by the classifier; how long the networks are trained; and the classifier's last layer, made as sure as
left-out votes say. Nothing here knows the trainer, which applies the `Start` in one place.
"""

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers.trainer_utils import has_length
from transformers.utils import logging

from ..data.collator import NOT_INPUTS, CrowdCollator, crowd_batches, padded
from ..data.columns import has_votes
from ..data.numbered import ROW, UNKNOWN, check_each_once, in_order
from ..metrics import LEAST_ITEMS
from ..model.classifiers import HeadClassifier
from ..model.functional import NO_MASS
from ..model.modeling_maxmig import CrowdModel, MaxMIGModel
from ..model.surgery import output_layers, penultimate_features, scale_outputs, without_peft_model
from .crossfit import MOST_FEATURES
from .start import MOST_CELLS, STEPS, STEPS_A_STEP, Start, find_start
from .training_args import MaxMIGTrainingArguments

logger = logging.get_logger(__name__)

MOST_NUMBERS = 2**28  # of features that are kept, a gigabyte
SAME = 1e-6  # of the largest feature: by less than this they differ by rounding alone
LEAST_STEPS = 200  # of a short training before the training, if an epoch has as many


def missing_for_start(
    model: CrowdModel, args: MaxMIGTrainingArguments, dataset: Any, start_from: Any = None
) -> str | None:
    """Say what a training lacks for a start by cross-fitting.

    Args:
        model: what is trained.
        args: of the training.
        dataset: the training set.
        start_from: whose votes start the aggregator, as the trainer was given it.

    Returns:
        The first thing that is missing; None if nothing is.

    Example:
        >>> head = HeadClassifier(HeadClassifier.config_class(input_size=2, num_labels=2))
        >>> model = MaxMIGModel.from_classifier(head, annotators=["ann", "bob"], divergence="pearson")
        >>> missing_for_start(model, MaxMIGTrainingArguments("out", use_cpu=True), None)
        "the divergence 'kl'"
    """
    config = model.config
    cells = config.num_annotators * config.num_labels**2
    needed = (
        (type(model) is MaxMIGModel, "a MaxMIGModel"),
        (getattr(config, "aggregator", None) == "weighted_average", "the aggregator 'weighted_average'"),
        (getattr(config, "divergence", None) == "kl", "the divergence 'kl'"),
        (getattr(config, "prior", None) != "learned", "a prior that is not learned"),
        (not (args.fsdp or args.deepspeed), "a whole model on each device, without FSDP or DeepSpeed"),
        (start_from is None, "no `start_from`"),
        (isinstance(dataset, Dataset) and has_votes(dataset, 3 * LEAST_ITEMS), f"a datasets.Dataset with votes on {3 * LEAST_ITEMS} items"),
        (cells <= MOST_CELLS, f"M C^2 of at most {MOST_CELLS:,}"),
        (_has_features(model.classifier, config.num_labels), "a `HeadClassifier`, or a pretrained classifier whose output layer is found"),
    )  # fmt: skip
    return next((what for holds, what in needed if not holds), None)


def _has_features(classifier: nn.Module, num_classes: int) -> bool:
    """Whether a classifier reads given features, or has learned some before."""
    if isinstance(classifier, HeadClassifier):
        return True
    pretrained = getattr(getattr(classifier, "config", None), "_name_or_path", None)
    return bool(pretrained) and bool(output_layers(classifier, num_classes))


@torch.no_grad()
def features_of(
    classifier: nn.Module,
    batches: Iterable[Mapping[str, Tensor]],
    num_classes: int,
    num_items: int,
    seed: int,
    gather: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Tensor | None:
    """Compute what the classifier's output layer reads of each item, and what its encoder says of it.

    Between the two, text classifiers have layers that no pretraining has touched. So the mean of the
    encoder's last hidden states stands beside what the output layer reads, at the same scale.

    Args:
        classifier: whose features they are.
        batches: of all items, on the classifier's device; `crowd_row` says which they are. Where several
            processes share the items, those of this one.
        num_classes: C.
        num_items: N.
        seed: of the random directions that too many features are projected on.
        gather: joins (B, ...) tensors of all processes.

    Returns:
        (N, D) float32, on the CPU, in the order of the items; None if the output layer does not read one
        vector an item.

    Raises:
        ValueError: if there are no features of an item, or it is not known which are whose.

    Example:
        >>> head = HeadClassifier(HeadClassifier.config_class(input_size=2, num_labels=3))
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


def mean_of_places(hidden: Tensor, mask: Tensor | None) -> Tensor | None:
    """Average hidden states over the places of an item, but for padding.

    Args:
        hidden: (B, T, D) for a mean to be taken.
        mask: (B, T), 0 where there is padding; None if there is none.

    Returns:
        (B, D); None if these are not states of places, or the mask is of other places.

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


@contextlib.contextmanager
def _hidden_states(classifier: nn.Module) -> Iterator[list[Tensor]]:
    """Keep the last hidden states of the classifier's encoder, if it has one that gives them."""
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
    """Project features on random directions if they would take too much room: distances outlive it."""
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
    """Whether a classifier's output layer reads one vector an item.

    Args:
        classifier: any.
        batch: of two items or more, on its device.
        num_classes: C.

    Example:
        >>> head = HeadClassifier(HeadClassifier.config_class(input_size=2, num_labels=3))
        >>> reads_items(head, {"features": torch.eye(2)}, num_classes=3)
        True
    """
    inputs = {n: t for n, t in batch.items() if n not in (*NOT_INPUTS, "labels", ROW)}
    return penultimate_features(classifier, inputs, num_classes) is not None


def missing_in_features(features: Tensor | None) -> str | None:
    """Say what features lack for networks to learn from them.

    Args:
        features: (N, D), of the items; None if there are none.

    Returns:
        What is missing; None if nothing is.

    Example:
        >>> missing_in_features(torch.tensor([[0.5, 1.0], [0.5, 2.0]]))
        >>> missing_in_features(torch.tensor([[0.5, 1.0], [0.5, 1.0]]))
        "features that differ between items, got the same for all 2 from the classifier's last layer"
    """
    if features is None:
        return "a classifier whose output layer reads one vector an item"
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


def start_of_training(
    model: CrowdModel,
    args: MaxMIGTrainingArguments,
    features: Tensor,
    crowd: tuple[Tensor, Tensor],
    prior: Tensor | None = None,
    quiet: bool = True,
    gold: Tensor | None = None,
) -> Start:
    """Find the start of a training; the model stays as it is.

    Args:
        model: what is trained: it says how many annotators and classes there are.
        args: of the training.
        features: (N, D), of the training items.
        crowd: (N, K) annotators and annotations, int64, padded with -1.
        prior: (C,) log prior, if it is given; else left-out votes choose one.
        quiet: whether to show no progress.
        gold: (N,) int64, gold labels that the user hands over, -1 for an item without.

    Returns:
        The start.
    """
    config = model.config
    found = find_start(
        features, crowd, config.num_annotators, config.num_labels, prior, args.seed,
        steps=network_steps(args, len(features)), quiet=quiet, gold=gold,
    )  # fmt: skip
    if not found.tells_apart:
        logger.warning(
            "The votes do not show that some annotators are better than others, so every vote counts the same: the "
            "forecasts follow the plurality of the votes, and the classifier learns from that. With more votes by each "
            "annotator this may change."
        )
    return dataclasses.replace(found, votes=votes_digest(crowd))


def votes_digest(crowd: tuple[Tensor, Tensor]) -> str:
    """Hash votes in the order of the items: who said what of which.

    Args:
        crowd: (N, K) annotators and annotations, int64, padded with -1 to the widest K.

    Returns:
        32 hexadecimal digits.

    Example:
        >>> ann = torch.zeros(2, 1, dtype=torch.int64)
        >>> votes_digest((ann, torch.tensor([[0], [1]]))) == votes_digest((ann, torch.tensor([[1], [0]])))
        False
    """
    digest = hashlib.blake2b(digest_size=16)
    for table in crowd:
        digest.update(f"{tuple(table.shape)}".encode())
        digest.update(table.contiguous().numpy().data)
    return digest.hexdigest()


def has_votes_of(found: Start, dataset: Any) -> bool:
    """Tell whether the votes of a data set are those that a start was found by; all are read for it.

    Args:
        found: the start; of one that does not know its votes this is taken for granted.
        dataset: with crowd columns.
    """
    if not found.votes:
        return True
    collator = CrowdCollator(*found.weight.shape[:2])
    return votes_digest(padded(crowd_batches(dataset, collator))) == found.votes


def network_steps(args: MaxMIGTrainingArguments, num_items: int) -> int:
    """Say how long the networks are trained: more steps than this change little, fewer teach too little.

    Args:
        args: of the training.
        num_items: N.

    Example:
        >>> network_steps(MaxMIGTrainingArguments("out", use_cpu=True, max_steps=800), num_items=90)
        400
    """
    batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    epoch = math.ceil(num_items / batch)
    planned = args.max_steps if args.max_steps > 0 else epoch * (args.num_train_epochs or 1)
    return max(LEAST_STEPS, min(STEPS, round(planned * STEPS_A_STEP)))


def check_found_for(found: Start, dataset: Any, gold: Tensor | None = None) -> None:
    """Refuse to go on with what was found out about other items, or by other gold labels.

    Args:
        found: of a checkpoint.
        dataset: the training set.
        gold: (N,) int64, its gold labels that the user hands over, -1 for an item without.

    Raises:
        ValueError: if the items are not as many as the start has, nobody knows how many, or they have
            other votes; or if other gold labels were used.
    """
    items = len(dataset) if has_length(dataset) else None
    if items != len(found.targets):
        raise ValueError(
            f"the training set must be that of the checkpoint, N = {len(found.targets)} items, got "
            f"{'a stream' if items is None else items}: what the classifier learns was found out for each of them."
        )
    if not has_votes_of(found, dataset):
        raise ValueError(
            "the training set must be that of the checkpoint, with its votes in its order, got other votes on as many "
            "items: what the classifier learns was found out by those. Train anew, without `resume_from_checkpoint`."
        )
    used = torch.full((items,), -1) if found.gold is None else found.gold
    if not torch.equal(used, torch.full((items,), -1) if gold is None else gold):
        counts = [int((g >= 0).sum()) if g is not None else 0 for g in (found.gold, gold)]
        raise ValueError(
            f"the gold labels that are used must be those of the checkpoint, {counts[0]} of them, got "
            f"{f'others on {counts[1]} items' if counts[1] else 'none'}: set `use_gold_labels` as it was, or train anew."
        )


def temper(classifier: nn.Module, found: Start, inputs: dict[str, Tensor]) -> bool:
    """Make a trained classifier as sure as left-out votes say, in its own last layer.

    Args:
        classifier: it has learned the targets of the start.
        found: the start.
        inputs: a batch for the classifier, on which to see that just this happened.

    Returns:
        Whether the classifier has changed.
    """
    # Where all votes count alike it is drawn to equal probabilities: see `LeftOutVotes.alike`.
    even = torch.where(found.log_p > NO_MASS, 0.0, NO_MASS)
    shift = (1 - found.classifier) * (found.log_p if found.tells_apart else even)
    if scale_outputs(classifier, found.classifier, shift, inputs):
        logger.info(
            "The classifier's logits were multiplied by %.2f, by left-out votes.", found.classifier
        )
        return True
    logger.warning(
        "The classifier is surer than left-out votes allow, but its output layer was not found: forecasts of new "
        "items count it too much."
    )
    return False
