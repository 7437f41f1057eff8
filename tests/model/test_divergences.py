"""Tests of `hf_maxmig.model.divergences`: each row against Table 1.

New rows in `DIVERGENCES` are tested automatically.
"""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hf_maxmig.model import divergences
from hf_maxmig.model.divergences import DIVERGENCES, get_divergence
from hf_maxmig.model.functional import reward_and_penalty
from tests import reference

GRID = torch.logspace(-3, 3, 37, dtype=torch.float64)  # values of K, with 1 among them
every_row = pytest.mark.parametrize("name", DIVERGENCES)


class LargestTensor(TorchDispatchMode):
    """Record the number of elements of the largest tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


def two_tables(N: int, C: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return two different (N, C) tables of positive numbers, in the roles of h / p and g."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.rand(N, C, generator=generator, dtype=torch.float64) + 0.05 for _ in range(2))
    return 3 * a, b / b.sum(dim=1, keepdim=True)


def test_rows_are_named_by_their_keys() -> None:
    """A config saves the key and the row reports its name, so the two must agree."""
    assert {"kl", "pearson", "jensen_shannon"} <= DIVERGENCES.keys()
    assert [row.name for row in DIVERGENCES.values()] == list(DIVERGENCES)


def test_rows_cannot_be_changed() -> None:
    """The rows are shared: a change to one would change the gain for every other user of it."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        get_divergence("kl").penalty_at_zero = 1.0  # type: ignore[misc]


def test_unknown_name_lists_the_options() -> None:
    """Without the options, a user with a misspelt name would have to search the source."""
    with pytest.raises(ValueError, match="divergence") as error:
        get_divergence("hellinger")
    options = ", ".join(DIVERGENCES)
    assert str(error.value) == f"`divergence` must be one of {options}, got 'hellinger'."


@every_row
def test_f_is_a_divergence(name: str) -> None:
    """With f(1) != 0 an ignorant classifier earns a gain. Without convexity the maximum is elsewhere."""
    f = DIVERGENCES[name].f
    assert 1 in GRID
    assert float(f(torch.tensor(1.0, dtype=torch.float64))) == pytest.approx(0, abs=1e-15)
    t = GRID.clone().requires_grad_()
    slope = torch.autograd.grad(f(t).sum(), t, create_graph=True)[0]
    curvature = torch.autograd.grad(slope.sum(), t)[0]
    assert (curvature > 0).all()


@pytest.mark.parametrize("name", reference.TABLE_1)
def test_row_is_the_one_printed(name: str) -> None:
    """A row could be a valid divergence and still not the one it is named after."""
    row, (reward, penalty) = DIVERGENCES[name], reference.TABLE_1[name]
    torch.testing.assert_close(row.reward(GRID.log()), reward(GRID), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(row.penalty(GRID.log()), penalty(GRID), rtol=1e-12, atol=1e-12)
    f = torch.tensor([reference.F[name](t) for t in GRID.tolist()], dtype=torch.float64)
    torch.testing.assert_close(row.f(GRID), f, rtol=1e-12, atol=1e-12)


@every_row
def test_reward_is_the_slope_of_f(name: str) -> None:
    """A reward that is not df(K) still trains, but maximises something that is not mutual information."""
    row = DIVERGENCES[name]
    slope, _ = reference.slope_and_conjugate(row.f)
    torch.testing.assert_close(row.reward(GRID.log()), slope(GRID), rtol=1e-10, atol=1e-10)


@every_row
def test_penalty_is_the_conjugate_at_the_slope(name: str) -> None:
    """The penalty must be f*(s), the largest t s - f(t), at s = df(K), where t = K attains it."""
    row = DIVERGENCES[name]
    slope, conjugate = reference.slope_and_conjugate(row.f)
    penalty = row.penalty(GRID.log())
    torch.testing.assert_close(penalty, conjugate(GRID), rtol=1e-9, atol=1e-9)
    over_t = GRID[None, :] * slope(GRID).detach()[:, None] - row.f(GRID)[None, :]
    torch.testing.assert_close(penalty, over_t.amax(dim=1), rtol=1e-9, atol=1e-9)
    assert (over_t.argmax(dim=1) == torch.arange(len(GRID))).all()


@every_row
def test_penalty_at_zero_is_the_limit(name: str) -> None:
    """Masked items sit at K = 0. With a wrong limit the gain would depend on how many there are."""
    row = DIVERGENCES[name]
    k = torch.tensor([-300.0, -700.0, -math.inf], dtype=torch.float64)
    limit = torch.full_like(k, row.penalty_at_zero)
    torch.testing.assert_close(row.penalty(k), limit, rtol=0, atol=1e-15)


@every_row
def test_reward_and_penalty_are_finite_far_from_agreement(name: str) -> None:
    """A confident classifier meets a confident crowd in the first epoch, and one infinity ends the training."""
    row = DIVERGENCES[name]
    for curve in (row.reward, row.penalty):
        k = torch.tensor([-1e4, -200.0, 0.0, 5.0], requires_grad=True)
        value = curve(k)
        slope = torch.autograd.grad(value.sum(), k)[0]
        assert value.dtype == torch.float32
        assert value.isfinite().all()
        assert slope.isfinite().all()
        assert (slope >= 0).all()


@every_row
@pytest.mark.parametrize(("N", "C"), [(5, 3), (3, 7), (2, 4)])
def test_pair_sum_equals_the_double_loop(name: str, N: int, C: int) -> None:
    """The closed forms are the one place where Table 1 is written a second time."""
    row, (a, b) = DIVERGENCES[name], two_tables(N, C)
    total = 0.0
    for i in range(N):
        for j in range(N):
            K = sum(a[i, c] * b[j, c] for c in range(C))
            total += float(row.penalty(K.log())) - row.penalty_at_zero
    assert float(row.pair_sum(a, b)) == pytest.approx(total, rel=1e-12)
    assert float(row.pair_sum(a.flip(1), b)) != pytest.approx(total, rel=1e-3)


@every_row
def test_pair_sum_rows_of_zeros_add_nothing(name: str) -> None:
    """Items without annotations stay in the tables as zeros and must not look like disagreement."""
    row, (a, b) = DIVERGENCES[name], two_tables(5, 3)
    zeros = torch.zeros(2, 3, dtype=a.dtype)
    both = row.pair_sum(torch.cat([zeros, a]), torch.cat([b, zeros]))
    assert float(row.pair_sum(a, b)) > 1
    assert float(both) == pytest.approx(float(row.pair_sum(a, b)), rel=1e-13)
    assert float(row.pair_sum(0 * a, 0 * b)) == 0


@every_row
@pytest.mark.parametrize("elements", [1, 7, 10, 24])
def test_pair_sum_in_blocks_equals_the_whole(
    name: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are used only from 2049 items per batch, where nobody would notice a lost remainder."""
    N, row = 5, DIVERGENCES[name]
    a, b = (table.requires_grad_() for table in two_tables(N, 3))
    whole = row.pair_sum(a, b)
    whole_grads = torch.autograd.grad(whole, (a, b))
    sizes = []
    checkpoint = divergences.checkpoint

    def counting(function: Any, block: Tensor, *rest: Any, **options: Any) -> Any:
        sizes.append(len(block))
        return checkpoint(function, block, *rest, **options)

    monkeypatch.setattr(divergences, "checkpoint", counting)
    monkeypatch.setattr(divergences, "BLOCK_ELEMENTS", elements)
    blocked = row.pair_sum(a, b)
    if name == "jensen_shannon":
        assert sum(sizes) == N
        assert max(sizes) == max(1, elements // N)
    torch.testing.assert_close(blocked, whole, rtol=1e-13, atol=0)
    blocked_grads = torch.autograd.grad(blocked, (a, b))
    torch.testing.assert_close(blocked_grads, whole_grads, rtol=1e-13, atol=0)


@every_row
@pytest.mark.parametrize("elements", [10, 1 << 22])
def test_pair_sum_gradient_is_exact(
    name: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The penalty's gradient keeps h and g from agreeing on one class for everything."""
    monkeypatch.setattr(divergences, "BLOCK_ELEMENTS", elements)
    a, b = (table.requires_grad_() for table in two_tables(5, 3))
    assert torch.autograd.gradcheck(DIVERGENCES[name].pair_sum, (a, b))


@every_row
def test_gain_makes_no_tensor_larger_than_a_block(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The closed forms and blocks exist to avoid an N x N or N x N x C table of a gathered batch."""
    N, C, elements = 64, 3, 256
    log_h, log_g = (
        torch.randn(N, C, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)
        for seed in (0, 1)
    )
    log_h.requires_grad_()
    log_g.requires_grad_()
    log_p = torch.zeros(C).log_softmax(-1)

    def largest() -> int:
        with LargestTensor() as recorder:
            reward, penalty = reward_and_penalty(log_h, log_g, log_p, name)
            torch.autograd.grad(reward - penalty, (log_h, log_g))
        return recorder.numel

    assert N * C <= elements < N * N
    if name == "jensen_shannon":
        assert largest() == N * N  # the recorder sees the pairs while they fit in one block
    monkeypatch.setattr(divergences, "BLOCK_ELEMENTS", elements)
    assert N * C <= largest() <= elements


def test_blocks_are_not_kept_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all small blocks were kept until the backward pass, they would need N x N memory after all."""
    N, C = 64, 3
    a, b = (table.requires_grad_() for table in two_tables(N, C))
    row = DIVERGENCES["jensen_shannon"]

    def kept() -> int:
        numel = {}  # by memory: every block keeps the same b

        def pack(tensor: Tensor) -> Tensor:
            numel[tensor.untyped_storage().data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            total = row.pair_sum(a, b)
        assert total.requires_grad
        return sum(numel.values())

    assert kept() >= N * N
    monkeypatch.setattr(divergences, "BLOCK_ELEMENTS", 256)
    assert kept() < N * N // 4
