"""Trainings that only measure: they say, save and report nothing, and run on the processor. Not a recipe itself."""

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
    """Let the libraries say only what went wrong."""
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
