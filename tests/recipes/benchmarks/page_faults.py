"""Run in a new process by `test_benchmark_speed.py`; a separate module, so that it imports no library but torch."""

import resource

import torch


def faults_of_large_blocks() -> int:
    """Count the page faults of allocating and freeing 64 MiB ten times, after one warm-up."""
    faults = [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
    for _ in range(20):
        torch.ones(2**24)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    return faults[-1] - faults[-11]
