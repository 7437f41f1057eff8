"""Several devices: the gain over the items of all of them, and whole parameters under FSDP.

W devices with B items each take the same step as one device with N = W B items: the gain compares an
item with those of all devices. For this, h and g are gathered, never the N x N table. Beside the
gradients of DDP or FSDP, a training step of Max-MIG with C classes communicates

    bytes = B (8 C + 1) from each device, N (8 C + 1) to each:

log h and log g in float32, and one byte per item that says whether it has votes. Mixup adds twelve
bytes per item, for the share and the partner. The backward pass sends nothing, and nothing waits for
the host. With gradient accumulation these are the numbers of each accumulated batch, and an item is
compared with the items of its own batch only.

Layers that normalise over the items of a device, such as batch normalisation, still do so: convert
them to `torch.nn.SyncBatchNorm` to normalise over all devices.
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

    Every process computes the same loss of all rows. So each already has the gradient that the others
    would send back: that of its own rows, once per process. DDP and FSDP then average the parameters'
    gradients, and the step equals that of one process.
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

    Every process must compute the same loss of the joined tensor: see `_GatherWithGradient`.

    Args:
        tensor: (B, ...), B may differ between processes; bool tensors carry no gradient.
        size: the largest B on any process. If it is not given, the processes first exchange their sizes,
            which the host waits for.

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
    """Compute something on the first process, and give all processes the result.

    Args:
        compute: the first process calls it; its result must be picklable.

    Returns:
        The result, on every process.

    Raises:
        Exception: the error of `compute`, on every process: one that continued would wait for the others.

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
    """A stream without its last items, if they do not fill a batch.

    accelerate would fill that batch up with items of the first batch, and compare these with themselves.

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
    """Make parameters whole on each device temporarily if FSDP spreads them; changes are kept.

    A model without FSDP is left as it is. Every process must enter, and make the same changes.

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
        # Every process has the whole parameter and takes its own part: nothing is sent.
        part = distribute_tensor(
            whole, spread_out.device_mesh, spread_out.placements, src_data_rank=None
        )
        spread_out.detach().copy_(part)


@contextlib.contextmanager
def without_gradient(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Turn the gradient of parameters off temporarily: they have no part in the loss, and DDP would wait for it.

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
    """Give a model its own class back temporarily: FSDP2 has replaced it.

    Saving for the Hub writes the class and its source file, which would be torch's.

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
