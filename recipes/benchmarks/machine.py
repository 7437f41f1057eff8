"""The versions and machine that the benchmarks record, new processes, and the memory of a process.

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

# The C library keeps freed memory for the next call, which would then seem to take none, except for
# blocks larger than this threshold. The threshold grows unless it is set.
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
# Memory that is given back costs page faults when it is taken again: 15 to 32 thousand in a step of
# ResNet-18 on 64 px, or 40 to 70 ms of 700, depending by chance on where a training's blocks lie.
# Here nothing is given back, and all threads share one heap.
KEEPS = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}


def machine(*modules: ModuleType, **more: Any) -> dict[str, Any]:
    """Return the versions and the machine of a measurement.

    Args:
        *modules: whose versions are recorded.
        **more: further entries.

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
    """Return the entries of a results file: `versions` as from `machine`, and torch's `threads`."""
    threads = os.environ.get("OMP_NUM_THREADS", str(torch.get_num_threads()))
    return {"versions": machine(*modules, **more), "threads": threads}


def commit() -> str | None:
    """Return the commit of these recipes, with "-dirty" if they were changed since; None outside git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def in_child(environment: dict[str, str], function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process, with additions to its environment."""
    context = multiprocessing.get_context("spawn")
    with patch.dict(os.environ, environment), ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def held_memory() -> float:
    """MiB that this process holds now; the peak so far where the system does not report it."""
    return _status("VmRSS")


def peak_memory() -> float:
    """The most MiB that this process has held.

    On Linux `ru_maxrss` of a new process starts at its parent's; /proc has its own.
    """
    return _status("VmHWM")


def reset_peak_memory() -> None:
    """Restart the measurement of the peak, where the system allows it."""
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
