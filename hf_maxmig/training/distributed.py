"""Several devices: what a gain over all of them needs, and parameters whole where FSDP spreads them.

W devices with B items each take the step of one with N = W B items: the gain compares an item with
those of all devices. For this h and g are gathered, never the N x N table. A training step of
Max-MIG with C classes hands to collectives, beside what DDP or FSDP does with the gradients,

    bytes = B (8 C + 1) from each device, N (8 C + 1) to each:

log h and log g in float32, and one byte an item that says whether it has a label; mixup adds twelve
bytes an item, for the share and the partner. Nothing is sent in
the backward pass, and none of it waits for the host. With gradient accumulation this is for each of
the batches that are added up; a comparison is with the items of one of them.

What normalises over the items of a device, as batch normalisation does, still does so: convert it to
`torch.nn.SyncBatchNorm` if it must not.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import IterableDataset

T = TypeVar("T")


class _GatherWithGradient(torch.autograd.Function):
    """All-gather of equally many rows along the first axis.

    Every process computes the same loss of all rows, so what the others would send back is what it
    has itself: the gradient of its own rows, once a process. Where the parameters' gradients are
    then averaged, as DDP and FSDP do, the step equals that of one process.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.processes, ctx.rank = dist.get_world_size(), dist.get_rank()
        joined = tensor.new_empty(ctx.processes * len(tensor), *tensor.shape[1:])
        dist.all_gather(list(joined.chunk(ctx.processes)), tensor.contiguous())
        return joined

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.chunk(ctx.processes)[ctx.rank] * ctx.processes


def gather_with_gradient(tensor: Tensor, size: int | None = None) -> Tensor:
    """Join a tensor over all processes, in order of rank; with one process, return it as it is.

    The loss of what is joined must be the same on every process: see `_GatherWithGradient`.

    Args:
        tensor: (B, ...), B may differ between processes; bool tensors carry no gradient.
        size: what B is at the most, on any process. Without it the processes first tell each other,
            for which the host waits.

    Returns:
        (W * size, ...), the same on every process: each one's rows, then zeros (False) up to the
        size; with one process (B, ...).

    Raises:
        ValueError: if there are more rows than `size`.

    Example:
        >>> gather_with_gradient(torch.tensor([1.0, 2.0]), size=2)
        tensor([1., 2.])
    """
    if not several_processes():
        return tensor
    if size is None:
        longest = torch.tensor(len(tensor), device=tensor.device)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        size = int(longest)
    if len(tensor) > size:
        raise ValueError(
            f"a batch must have at most {size} items on each device, `per_device_train_batch_size`, got {len(tensor)}."
        )
    if len(tensor) < size:
        tensor = torch.cat([tensor, tensor.new_zeros(size - len(tensor), *tensor.shape[1:])])
    if tensor.dtype == torch.bool:
        return _GatherWithGradient.apply(tensor.to(torch.uint8)).bool()
    return _GatherWithGradient.apply(tensor)


def several_processes() -> bool:
    """Whether this is one of several processes."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def from_first_process(compute: Callable[[], T]) -> T:
    """Compute on the first process, and hand what comes of it to all.

    Args:
        compute: what the first process calls; its result must be one that can be pickled.

    Returns:
        The result of the first process, on each.

    Raises:
        Exception: what `compute` has raised, on each: one that went on alone would wait for the others.

    Example:
        >>> from_first_process(lambda: 2)
        2
    """
    if not several_processes():
        return compute()
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = compute()
        except Exception as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome)
    result, problem = outcome
    if problem is not None:
        raise problem
    return result


class WholeBatches(IterableDataset):
    """A stream without the last items, if they fill no batch.

    accelerate fills it up with items of the first batch, which would be compared with themselves.

    Args:
        stream: yields items.
        size: items in a batch, those of all devices together.

    Example:
        >>> list(WholeBatches(range(5), size=2))
        [0, 1, 2, 3]
    """

    def __init__(self, stream: Any, size: int) -> None:
        self.stream = stream
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        batch = []
        for item in self.stream:
            batch.append(item)
            if len(batch) == self.size:
                yield from batch
                batch = []

    def __getattr__(self, name: str) -> Any:
        # What shuffles it each epoch: `set_epoch`, `generator`.
        if name == "stream":  # it is being unpickled
            raise AttributeError(name)
        return getattr(self.stream, name)


@contextlib.contextmanager
def whole_parameters(model: nn.Module) -> Iterator[None]:
    """Have parameters whole on each device for a while, where FSDP spreads them; what changes stays.

    A model without FSDP is left as it is. Every process must come by, and change the same.

    Args:
        model: whole or spread by FSDP2 (`fully_shard`).

    Example:
        >>> model = nn.Linear(2, 2)
        >>> with whole_parameters(model), torch.no_grad():
        ...     _ = model.bias.fill_(1.0)
        >>> model.bias.tolist()
        [1.0, 1.0]
    """
    spread: list[Any] = [module for module in model.modules() if hasattr(module, "unshard")]
    if not spread:
        yield
        return
    from torch.distributed.tensor import DTensor, distribute_tensor

    for module in spread:
        module.unshard()
    before = {name: parameter._version for name, parameter in model.named_parameters()}
    yield
    changed = {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        # A forward pass has spread some of them again.
        if not isinstance(parameter, DTensor) and parameter._version != before[name]
    }
    for module in spread:
        module.reshard()
    for name, whole in changed.items():
        spread_out: Any = model.get_parameter(name)
        # Every process has the whole: each takes its own part, and nothing is sent.
        part = distribute_tensor(
            whole, spread_out.device_mesh, spread_out.placements, src_data_rank=None
        )
        spread_out.detach().copy_(part)


@contextlib.contextmanager
def without_gradient(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Have no gradient of parameters for a while, which DDP would wait for: they have no part in the loss.

    Args:
        parameters: any; those that have no gradient anyway stay as they are.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> with without_gradient([model.bias]):
        ...     print(model.bias.requires_grad)
        False
        >>> model.bias.requires_grad
        True
    """
    changed = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in changed:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in changed:
            parameter.requires_grad_(True)


@contextlib.contextmanager
def own_class(model: Any) -> Iterator[None]:
    """Let a model be of its own class for a while: FSDP2 has put another in its place.

    The Hub is told the class of a model that is saved, and gets the source of it: torch's.

    Args:
        model: any.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> with own_class(model):
        ...     print(type(model).__name__)
        Linear
    """
    spread = type(model)
    place = getattr(spread, "_orig_cls_mro_index", 0)
    model.__class__ = spread.__mro__[place]
    try:
        yield
    finally:
        model.__class__ = spread
