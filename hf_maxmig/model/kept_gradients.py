"""Rows of tables as large as the crowd, and the memory of their gradients."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import embedding

LARGE = 2**23  # numbers, 32 MiB: smaller blocks of memory are not given back to the system


class TableRows:
    """Reads rows of tables as `torch.nn.functional.embedding` does, and keeps the gradients' memory.

    A gradient is as large as its table, however few rows were read: 40 MB for 100,000 annotators
    and ten classes. On a CPU the operating system takes back memory of that size after each step and
    hands out empty pages in the next, which costs more than the rest of the aggregator. Here the memory
    is kept and reused once no gradient in it is referenced any more; while gradients are accumulated
    or kept, it is not. An accelerator's allocator keeps memory by itself, and so does the operating
    system for tables smaller than `LARGE`; those are read by `embedding` itself.

    A copy, or one read from a file, starts without memory.

    Example:
        >>> read = TableRows()
        >>> table = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
        >>> rows = read(torch.tensor([2, 0, 2]), table)
        >>> rows.tolist()
        [[5.0, 6.0], [1.0, 2.0], [5.0, 6.0]]
        >>> rows.sum().backward()
        >>> table.grad.tolist()
        [[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]]
    """

    def __init__(self) -> None:
        # By shape and type: memory, and a weak reference that dies with the last tensor on it.
        self._kept: dict[tuple[torch.Size, torch.dtype], tuple[bytearray, weakref.ref]] = {}

    def __reduce__(self) -> tuple[type["TableRows"], tuple[()]]:
        return TableRows, ()

    def __call__(self, index: Tensor, table: Tensor) -> Tensor:
        """Read (...) int64 rows of a (R, D) table: (..., D)."""
        large = type(table) in (Tensor, Parameter) and table.numel() >= LARGE
        if not large or table.device.type != "cpu" or torch.compiler.is_compiling():
            return embedding(index, table)
        return _Read.apply(table, index, self)

    def zeros(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Return zeros on the CPU, in the memory of the last ones if these are no longer referenced."""
        memory, lent = self._kept.get((shape, dtype), (None, None))
        if memory is None or (lent is not None and lent() is not None):
            memory = bytearray(shape.numel() * dtype.itemsize)
        view = memoryview(memory)  # a new object, which all tensors on it keep alive
        self._kept[shape, dtype] = memory, weakref.ref(view)
        return torch.frombuffer(view, dtype=dtype).view(shape).zero_()


class _Read(torch.autograd.Function):
    """`embedding`, with its gradient in kept memory."""

    @staticmethod
    def forward(table: Tensor, index: Tensor, rows: TableRows) -> Tensor:
        return embedding(index, table)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, TableRows], output: Tensor) -> None:
        table, index, ctx.rows = inputs
        ctx.shape = table.shape
        ctx.save_for_backward(index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient needs a gradient itself
            zeros = grad.new_zeros(ctx.shape)
            return zeros.index_add(0, index.flatten(), grad.reshape(-1, ctx.shape[1])), None, None
        zeros = ctx.rows.zeros(ctx.shape, grad.dtype)
        return zeros.index_add_(0, index.flatten(), grad.reshape(-1, ctx.shape[1])), None, None
