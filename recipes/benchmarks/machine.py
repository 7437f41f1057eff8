"""What the benchmarks say they were measured with, processes of their own, and the memory of one.

Not a recipe itself.
"""

import multiprocessing
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

# The C library keeps what is freed for the next call, which would then seem to take no memory; not
# where it is larger than this, but that grows unless it is set.
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
# What it gives back costs page faults when it is taken again: a step of ResNet-18 on 64 px has 15 to
# 32 thousand, 40 to 70 ms of 700, by chance of where a training's blocks lie. Here nothing is given
# back, and all threads take from one heap.
KEEPS = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}


def machine(*modules: ModuleType, **more: Any) -> dict[str, Any]:
    """Say what the numbers were measured with.

    Args:
        *modules: whose versions matter.
        **more: what else does.

    Returns:
        Platform, processor, cores, `more`, the versions, and the commit of this checkout.
    """
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(
            (line.split(":", 1)[1].strip() for line in lines if "model name" in line), model
        )
    return {
        "platform": platform.platform(),
        "cpu": model,
        "cores": os.cpu_count(),
        **more,
        "python": platform.python_version(),
        **{module.__name__: module.__version__ for module in modules},
        "commit": commit(),
    }


def measured_with(*modules: ModuleType, **more: Any) -> dict[str, Any]:
    """Say it as results have it: `versions` as `machine` gives them, and the `threads` of torch."""
    threads = os.environ.get("OMP_NUM_THREADS", str(torch.get_num_threads()))
    return {"versions": machine(*modules, **more), "threads": threads}


def commit() -> str | None:
    """Say which commit these recipes are of, "-dirty" if they were changed since; None if of none."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def in_child(environment: dict[str, str], function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process, with more in its environment."""
    context = multiprocessing.get_context("spawn")
    with patch.dict(os.environ, environment), ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def held_memory() -> float:
    """MiB that this process holds now; where the system does not say, the most so far."""
    return _status("VmRSS")


def peak_memory() -> float:
    """MiB that this process has held at the most.

    On Linux `ru_maxrss` of a fresh process begins at its parent's; /proc has what is its own.
    """
    return _status("VmHWM")


def reset_peak_memory() -> None:
    """Begin to measure the peak anew, where the system lets one."""
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5", encoding="ascii")


def _status(what: str) -> float:
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith(what):
                return int(line.split()[1]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
