"""Loading: how items come to the trainer, each batch knowing which they are."""

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
    """What a loader is made of.

    Args:
        items: that it reads.
        draw: makes the sampler of them.
        collate: makes a batch of examples.
        in_order: whether batches come in the order in which workers were asked for them.
        dispatch: whether the first process reads for all; None leaves it to accelerate.
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

    On several devices each process reads a stream and keeps its part of each batch, as one process
    would have it, unless it is told to read shards of its own by `dispatch_batches=False`. The first
    process never collates for all: it would join batches of unlike widths.

    Args:
        args: of the training.
        dispatch: accelerate's `dispatch_batches`, as the user has it.
        dataset: the items.
        collate: makes a batch of examples.
        draw: makes the sampler of a data set, by its columns.
        batch_size: of one device.
        is_training: whether the loader is the training's.
        keep_rows: whether batches say which items they are.
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
