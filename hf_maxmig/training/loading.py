"""Loading: how the trainer gets its batches, each with the numbers of its items."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from datasets import IterableDataset as HubStream
from torch.utils.data import IterableDataset, Sampler
from transformers.trainer_utils import has_length

from ..data.collator import arrow_rows
from ..data.numbered import NumberedCollator, NumberedItems
from .distributed import WholeBatches
from .training_args import MaxMIGTrainingArguments

Draw = Callable[[Any], Sampler | None]


class Loading(NamedTuple):
    """The parts of a data loader.

    Args:
        items: the items that it reads.
        draw: makes a sampler for them.
        collate: makes a batch from examples.
        in_order: whether batches arrive in the order in which they were requested from the workers.
        dispatch: whether the first process reads for all; None leaves the choice to accelerate.
    """

    items: Any
    draw: Draw | None
    collate: Any
    in_order: bool
    dispatch: bool | None


def loading(
    args: MaxMIGTrainingArguments,
    dispatch: bool | None,
    dataset: Any,
    collate: Any,
    draw: Draw | None,
    batch_size: int,
    is_training: bool,
    keep_rows: bool,
) -> Loading:
    """Plan how the items of a data set are loaded.

    On several devices every process reads the whole stream and keeps its part of each batch, so that the
    batches are those of a single process. With `dispatch_batches=False` each process reads its own shards
    instead. The first process never collates for all, because it would join batches of different widths.

    Args:
        args: the training arguments.
        dispatch: accelerate's `dispatch_batches`, as set by the user.
        dataset: the items.
        collate: makes a batch from examples.
        draw: makes the sampler of a data set, from its columns.
        batch_size: the batch size of one device.
        is_training: whether the loader is for training.
        keep_rows: whether batches hold the numbers of their items.
    """
    world, in_order = args.world_size, args.dataloader_in_order
    if isinstance(dataset, IterableDataset) and world > 1:
        own_shards = dispatch is False and isinstance(dataset, HubStream)
        if not own_shards or cast(HubStream, dataset).num_shards < world:
            dataset = WholeBatches(dataset, batch_size * world)
        return Loading(dataset, draw, collate, in_order, bool(dispatch))
    if isinstance(dataset, IterableDataset) or not has_length(dataset):
        return Loading(dataset, draw, collate, in_order, dispatch)
    items = NumberedItems(arrow_rows(dataset, collate), dataset)
    return Loading(
        items,
        lambda _: None if draw is None else draw(dataset),
        NumberedCollator(collate, keep_rows),
        in_order if is_training else True,
        False,
    )
