"""Operations for which the host waits for a device, each at the cost of the work in its queue."""

import torch
import torch.utils._python_dispatch

BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
INDEXED = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)


class Waits(torch.utils._python_dispatch.TorchDispatchMode):
    """Record what makes the host wait for the device: reading a value, or a shape that depends on values."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.seen = []
        # These read memory without an operation.
        for name in ("tolist", "numpy", "cpu", "__array__"):
            monkeypatch.setattr(torch.Tensor, name, self.noted(name, getattr(torch.Tensor, name)))

    def noted(self, name, method):
        def call(*args, **kwargs):
            self.seen.append(name)
            return method(*args, **kwargs)

        return call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by_value = bool(BY_VALUE & {*func.tags})
        if func.overloadpacket in INDEXED:  # indices are known, a mask is not
            by_value = any(i is not None and i.dtype == torch.bool for i in args[1])
        if by_value:
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))
