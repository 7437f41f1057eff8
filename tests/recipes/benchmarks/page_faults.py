"""What a fresh process of `test_benchmark_speed.py` runs: a module of its own, for it waits for no library but torch."""

import resource

import torch


def faults_of_large_blocks() -> int:
    """Count the page faults of taking 64 MiB and giving them back, ten times, once that has run."""
    faults = [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
    for _ in range(20):
        torch.ones(2**24)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    return faults[-1] - faults[-11]
