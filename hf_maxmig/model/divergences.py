"""Table 1 of the paper as rows: the reward and the penalty of each f-divergence.

A row is a function of the paper's ratio K alone; classifier and aggregator come together in
`functional.py`. To add a divergence, add a row to `DIVERGENCES`; the contract tests then cover it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus
from torch.utils.checkpoint import checkpoint

BLOCK_ELEMENTS = 1 << 22  # most elements of one block of the N x N ratios: 16 MiB in float32


@dataclass(frozen=True)
class Divergence:
    """One row of Table 1.

    Args:
        name: the row's name in a config.
        f: the convex function of the divergence, of the ratio t (Table 1, column 2).
        reward: df(K) as a function of k = log K (column 3), in nats.
        penalty: f*(df(K)) as a function of k = log K (column 4), in nats.
        penalty_at_zero: the penalty's limit at K = 0, in nats.
        pair_sum: of (N, C) `a` and (N, C) `b`, not negative, the sum over all N^2 pairs of `penalty
            - penalty_at_zero` at K_ij = <a_i, b_j>. A row of zeros adds nothing, so masked items
            can stay.
    """

    name: str
    f: Callable[[Tensor], Tensor]
    reward: Callable[[Tensor], Tensor]
    penalty: Callable[[Tensor], Tensor]
    penalty_at_zero: float
    pair_sum: Callable[[Tensor, Tensor], Tensor]


def _linear_pair_sum(a: Tensor, b: Tensor) -> Tensor:
    # sum_ij K_ij = <sum_i a_i, sum_j b_j>: O(N C).
    return a.sum(dim=0) @ b.sum(dim=0)


def _square_pair_sum(a: Tensor, b: Tensor) -> Tensor:
    # sum_ij K_ij^2 = <a^T a, b^T b>: O(N C^2); or, of fewer items than classes, O(N^2 C).
    if a.shape[0] < a.shape[1]:
        return (a @ b.T).square().sum()
    return ((a.T @ a) * (b.T @ b)).sum()


def _log1p_pair_sum(a: Tensor, b: Tensor) -> Tensor:
    # sum_ij log(1 + K_ij) needs every pair. Blocks of rows keep memory at BLOCK_ELEMENTS, and are
    # computed again in the backward pass rather than kept.
    rows = max(1, BLOCK_ELEMENTS // max(1, b.shape[0]))
    if rows >= a.shape[0]:
        return _log1p_block(a, b)
    return torch.stack(
        [checkpoint(_log1p_block, block, b, use_reentrant=False) for block in a.split(rows)]
    ).sum()


def _log1p_block(a: Tensor, b: Tensor) -> Tensor:
    # K is not negative, so log(1 + K) is as exact a sum; log1p takes eight times as long on a CPU.
    return (a @ b.T).add(1).log().sum()


def _jensen_shannon_f(t: Tensor) -> Tensor:
    return -(t + 1) * ((t + 1) / 2).log() + torch.xlogy(t, t)


DIVERGENCES: dict[str, Divergence] = {
    row.name: row
    for row in (
        Divergence(
            name="kl",
            f=lambda t: torch.xlogy(t, t),
            reward=lambda k: 1 + k,
            penalty=torch.exp,
            penalty_at_zero=0.0,
            pair_sum=_linear_pair_sum,
        ),
        Divergence(
            name="pearson",
            f=lambda t: (t - 1) ** 2,
            reward=lambda k: 2 * torch.expm1(k),
            penalty=lambda k: torch.expm1(2 * k),
            penalty_at_zero=-1.0,
            pair_sum=_square_pair_sum,
        ),
        Divergence(
            name="jensen_shannon",
            f=_jensen_shannon_f,
            reward=lambda k: math.log(2) + logsigmoid(k),
            penalty=lambda k: softplus(k) - math.log(2),
            penalty_at_zero=-math.log(2),
            pair_sum=_log1p_pair_sum,
        ),
    )
}


def get_divergence(name: str) -> Divergence:
    """Look up a row of Table 1 by name.

    Args:
        name: one of the keys of `DIVERGENCES`.

    Returns:
        The row.

    Raises:
        ValueError: if no row has that name.

    Example:
        >>> get_divergence("kl").reward(torch.tensor(0.0))  # K = 1: agreement by chance
        tensor(1.)
    """
    if name not in DIVERGENCES:
        raise ValueError(f"`divergence` must be one of {', '.join(DIVERGENCES)}, got {name!r}.")
    return DIVERGENCES[name]
