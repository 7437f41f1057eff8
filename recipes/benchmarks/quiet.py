"""Settings for trainings that only measure: they log, save and report nothing, and run on the CPU.

Not a recipe itself.
"""

from typing import Any

import datasets
import transformers

QUIET: dict[str, Any] = {
    "report_to": "none",
    "disable_tqdm": True,
    "save_strategy": "no",
    "logging_strategy": "no",
    "use_cpu": True,
}


def hush() -> None:
    """Let the libraries log only errors."""
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
