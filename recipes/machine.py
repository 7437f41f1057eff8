"""What the benchmarks say they were measured with. Not a recipe itself."""

import os
import platform
from pathlib import Path
from types import ModuleType
from typing import Any


def machine(*modules: ModuleType, **more: Any) -> dict[str, Any]:
    """Say what the numbers were measured with.

    Args:
        *modules: whose versions matter.
        **more: what else does.

    Returns:
        Platform, processor, cores, `more`, and the versions.
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
    }
