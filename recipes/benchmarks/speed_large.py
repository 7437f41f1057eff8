"""Job `large` of `benchmark_speed.py`: time and memory of the gain for large batches and for many classes.

It runs in separate processes: one for the peaks of memory, one for the times.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from machine import GIVES_BACK, held_memory, in_child, peak_memory, reset_peak_memory
from speed_plain import gain_inputs, lean_pairwise_gain, plain_gain
from speed_rows import Row, agree, by_turns, in_turn, row

from hf_maxmig import mutual_information_gain

SMALL = 4096  # items of the batch from whose peak that of a larger one is estimated

Size = tuple[str, int, int]  # divergence, N, C
Peaks = tuple[float, float | None]  # MiB of ours, and of N x N ratios; None if that is too much


def peak_of(call: Callable[[], Any]) -> float:
    """Return the peak memory of a call beyond what was held before, in MiB."""
    call()
    before = held_memory()
    reset_peak_memory()
    call()
    return max(0.0, peak_memory() - before)


def ours_and_pairwise(
    divergence: str, N: int, C: int
) -> tuple[Callable[[], tuple], Callable[[], tuple]]:
    """Return two calls, forward and backward: the library's, and the leanest with N x N ratios."""
    leaves = gain_inputs(N, C, torch.Generator().manual_seed(N))

    def ours() -> tuple:
        gain = mutual_information_gain(*leaves, divergence)
        return gain, *torch.autograd.grad(gain, leaves)

    def pairwise() -> tuple:
        if divergence == "kl":
            gain = lean_pairwise_gain(*leaves)
        else:
            gain = plain_gain(*leaves, divergence)
        return gain, *torch.autograd.grad(gain, leaves)

    return ours, pairwise


def measure_peaks(sizes: Sequence[Size], most_mib: float, threads: int) -> list[Peaks]:
    """Measure the peaks. N x N ratios are skipped if those of fewer items show that they are too large."""
    torch.set_num_threads(threads)
    peaks: list[Peaks] = []
    for divergence, N, C in sizes:
        ours, pairwise = ours_and_pairwise(divergence, N, C)
        small = min(N, SMALL)
        of_pairs = peak_of(ours_and_pairwise(divergence, small, C)[1])
        if of_pairs * (N / small) ** 2 > most_mib:
            peaks.append((peak_of(ours), None))
        else:
            peaks.append((peak_of(ours), of_pairs if small == N else peak_of(pairwise)))
    return peaks


def measure_gains(
    sizes: Sequence[Size], peaks: Sequence[Peaks], rounds: int, threads: int
) -> list[Row]:
    """Time each, beside N x N ratios where those fit."""
    torch.set_num_threads(threads)
    rows = []
    for (divergence, N, C), (of_ours, of_pairs) in zip(sizes, peaks, strict=True):
        job = f"{divergence} gain, N={N:,}, C={C:,}"
        ours, pairwise = ours_and_pairwise(divergence, N, C)
        if of_pairs is None:
            ours()
            line = row(job, [], *in_turn([ours], rounds))
        else:
            agree(ours(), pairwise())
            line = by_turns(job, pairwise, ours, rounds)
        line.ours_mib, line.plain_mib = of_ours, of_pairs
        rows.append(line)
    return rows


def measure_large(sizes: Sequence[Size], most_mib: float, rounds: int) -> list[Row]:
    """Job 5."""
    threads = torch.get_num_threads()
    peaks = in_child(GIVES_BACK, measure_peaks, sizes, most_mib, threads)
    return in_child({}, measure_gains, sizes, peaks, rounds, threads)
