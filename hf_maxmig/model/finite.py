"""Non-finite numbers: find the step of the first one, and save none.

One NaN in a loss makes all weights NaN in the next step. The notes of each step stay on the device. They
are read where the host waits anyway, and always before something is saved.
"""

import torch
from torch import Tensor, nn


class FirstNonFinite:
    """Remembers the first number of a kind that is not finite, without a device having to wait.

    Args:
        device: where the numbers are.

    Example:
        >>> losses = FirstNonFinite(torch.device("cpu"))
        >>> for step, loss in enumerate([0.5, float("inf"), float("nan")], start=1):
        ...     losses.note(torch.tensor(loss), step)
        >>> losses.found()
        (2, inf)
    """

    def __init__(self, device: torch.device) -> None:
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._value = torch.zeros((), dtype=torch.float32, device=device)

    def note(self, value: Tensor, step: int) -> None:
        """Note a number: a scalar tensor, and the step that it belongs to, from 1 on."""
        value = value.detach().float()
        first = ~value.isfinite() & (self._step == 0)
        self._step = torch.where(first, step, self._step)
        self._value = torch.where(first, value, self._value)

    def found(self) -> tuple[int, float] | None:
        """Return step and value of the first one, or None; the host waits here."""
        step = int(self._step.item())
        return (step, float(self._value.item())) if step else None


@torch.no_grad()
def non_finite_weight(model: nn.Module) -> str | None:
    """Find a weight that is not finite.

    Args:
        model: its parameters must be finite, and of its buffers none NaN or plus infinity; minus
            infinity is how networks mask.

    Returns:
        The name of the first one, or None. The host waits once.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> non_finite_weight(layer)
        >>> _ = layer.bias.data.fill_(float("nan"))
        >>> non_finite_weight(layer)
        'bias'
    """
    named = [(name, _here(p).isfinite().all()) for name, p in model.named_parameters() if p.numel()]
    named += [
        (name, ~(b.isnan() | b.isposinf()).any())
        for name, b in model.named_buffers()
        if b.is_floating_point() and b.numel()
    ]
    if not named:
        return None
    right = torch.stack([flag.to(named[0][1].device) for _, flag in named])
    if bool(right.all()):
        return None
    return named[int(right.int().argmin())][0]


def _here(parameter: Tensor) -> Tensor:
    """Return this device's part of a parameter that is sharded over several."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def check_finite(model: nn.Module) -> None:
    """Raise a ValueError if a model has a weight that is not finite: it would be saved as a good one."""
    name = non_finite_weight(model)
    if name is not None:
        raise ValueError(
            f"what is saved must be finite, got a weight that is not, `{name}`: the training has diverged. Go back to an "
            "earlier checkpoint."
        )
