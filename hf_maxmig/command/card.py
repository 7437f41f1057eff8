"""`maxmig card`: the card of a saved model."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from ..sharing.model_card import model_card
from ..training.saving import RESULTS
from .flags import start
from .saved import saved_model, saved_processor
from .usage import Usage


@dataclass
class CardArguments:
    """A saved model, and the further fields of its card's header."""

    model: str = field(metadata={"help": "Folder of a saved model, or its name on the Hub."})
    output_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder to write README.md to; by default the card is printed.",
            "metavar": "DIR",
        },
    )
    repo_id: str | None = field(
        default=None, metadata={"help": "Where the model will be on the Hub, for its examples."}
    )
    license: str | None = field(default=None, metadata={"help": "Its licence, such as apache-2.0."})
    dataset: str | None = field(default=None, metadata={"help": "What it was trained on."})


USAGE = Usage(
    program="maxmig card",
    call="MODEL [flags]",
    description="Write the card of a model: what it is, how to use it, what was measured. It names no annotator. The card "
    "that a training writes says more: it has seen the data.",
    sections=[("model", ["model"]), ("result", ["output_dir"])],
    rest="header",
    words=("model",),
)


def card(arguments: CardArguments) -> None:
    """Print or write the card.

    Args:
        arguments: of which model.

    Raises:
        ValueError: if there is no such model.
    """
    model = saved_model(arguments.model)
    written = results(arguments.model)
    on_hub = None if Path(arguments.model).exists() else arguments.model
    repo_id = arguments.repo_id or on_hub
    name = (repo_id or Path(arguments.model).resolve().name).split("/")[-1]
    header: dict[str, Any] = {"license": arguments.license, "datasets": arguments.dataset}
    made = model_card(
        model, written.get("results", {}), written.get("arguments", {}), name, repo_id=repo_id,
        processor=saved_processor(arguments.model),
        **{key: value for key, value in header.items() if value is not None},
    )  # fmt: skip
    if arguments.output_dir is None:
        print(made)
        return
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    made.save(folder / "README.md")
    print(f"The card is {folder / 'README.md'}.")


def results(model: str) -> dict[str, Any]:
    """Read the results of the training, if they were saved beside the model."""
    file = cached_file(
        model, RESULTS, _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )  # fmt: skip
    if file is None:
        return {}
    try:
        written = json.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} must be JSON, got: {error}.") from error
    return written if isinstance(written, dict) else {}


def main(arguments: list[str]) -> None:
    """Write a card by the flags.

    Args:
        arguments: what follows `maxmig card`.
    """
    start(card, arguments=arguments, usage=USAGE)
