"""The page of a saved model alone, as a Space shows it; and the processor that was saved with a model."""

from typing import Any

from transformers import AutoModel, AutoProcessor

from .app import Page
from .trying import Trying


def saved_processor(name: str, revision: str | None = None) -> Any:
    """Load the processor saved with a model.

    Args:
        name: a folder, or a repository of the Hub.
        revision: branch, tag or commit.

    Returns:
        The processor; None if there is none.
    """
    try:
        return AutoProcessor.from_pretrained(name, revision=revision)
    except (OSError, ValueError):
        return None


def model_page(name: str, revision: str | None = None) -> Page:
    """Load a model to try, without data.

    Args:
        name: a folder, or a repository of the Hub.
        revision: branch, tag or commit.

    Returns:
        What the page shows.

    Raises:
        OSError, ValueError: if there is no such model.
    """
    model = AutoModel.from_pretrained(name, revision=revision)
    return Page(name.split("/")[-1], Trying(model, saved_processor(name, revision)))
