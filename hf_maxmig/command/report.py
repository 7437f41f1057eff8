"""`maxmig report`: the page on which annotators to trust and which items to check again, by a saved model."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from ..data.columns import has_votes
from ..model.modeling_maxmig import MaxMIGModel
from .flags import one_line, start
from .saved import SavedArguments, items, saved_model, trainer_of
from .usage import Usage

USAGE = Usage(
    program="maxmig report",
    call="MODEL DATA [--votes VOTES] --output_dir DIR [flags]",
    description="Write report.html, annotators.csv and the cleaned labels for data with votes. For the data that a model "
    "was trained on, the report of `maxmig train` is better: it judges each item by networks that have not seen it. "
    "Needs matplotlib.",
    sections=[
        ("model and data", ["model", "data", "votes"]),
        ("result", ["output_dir", "show_columns"]),
    ],
    rest="more about model, data and votes",
    words=("model", "data"),
)


@dataclass
class ReportArguments(SavedArguments):
    """A saved model, and the items to report on."""

    show_columns: list[str] | None = field(
        default=None,
        metadata={"help": "Columns of an item that the report shows, in this order."},
    )


def report(arguments: ReportArguments) -> None:
    """Write the report, and print its first lines.

    It shows accuracies if the data have gold labels, and the curve of the gain if `trainer_state.json` is in the
    model's folder.

    Args:
        arguments: which model and data.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if model, data and votes do not fit together.
    """
    model = saved_model(arguments.model)
    if not isinstance(model, MaxMIGModel):
        raise ValueError(f"MODEL must be trained by Max-MIG, got one of {model.method}.")
    dataset = items(arguments, model)
    if not has_votes(dataset, items=1):
        raise ValueError("a report needs votes, got data without any: give them by `--votes`.")
    folder = Path(arguments.output_dir)
    log_history = _log_history(arguments.model)
    with trainer_of(arguments, model) as trainer:
        trainer.state.log_history = log_history
        title = Path(arguments.model).resolve().name
        print(trainer.report(dataset, folder, title=title, show=arguments.show_columns))
    print(f"The report is in {folder / 'report.html'}.")


def _log_history(model: str) -> list[Any]:
    """Read what a training has logged, if its state is in the model's folder.

    Raises:
        ValueError: if the file is damaged.
    """
    file = Path(model, TRAINER_STATE_NAME)
    if not file.is_file():
        return []
    try:
        logged = TrainerState.load_from_json(str(file)).log_history
        if not isinstance(logged, list) or not all(isinstance(entry, dict) for entry in logged):
            raise TypeError("a `log_history` that is not a list of objects")
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{file} must be the state that a trainer saves, got: {one_line(error)}: remove it for a report without "
            "the curve of the gain."
        ) from error
    return logged


def main(arguments: list[str]) -> None:
    """Report by the flags.

    Args:
        arguments: what follows `maxmig report`.
    """
    start(report, arguments=arguments, usage=USAGE)
