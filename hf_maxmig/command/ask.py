"""`maxmig ask`: which item to ask whom next, by a saved model."""

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path

from ..model.asking import GAINS
from ..sharing.questions import FORMATS, write_questions
from .flags import start
from .saved import SavedArguments, named_items, saved_model, trainer_of
from .usage import Usage

USAGE = Usage(
    program="maxmig ask",
    call="MODEL DATA [--votes VOTES] --budget N [flags]",
    description="Choose the questions that tell most: which item to ask whom, what the answer is expected to tell, and "
    "why. Give all votes so far: by them it is known who answers how, and who has answered already.",
    sections=[
        ("model and data", ["model", "data", "votes"]),
        (
            "questions",
            ["budget", "costs", "annotators", "most_per_annotator", "most_per_item", "at_least", "gain"],
        ),
        ("result", ["output_file", "format", "tool_field", "output_dir"]),
    ],
    rest="more about model, data and votes",
    words=("model", "data"),
)  # fmt: skip


@dataclass
class AskArguments(SavedArguments):
    """A saved model, the items to ask about, and what may be asked."""

    budget: float = field(
        kw_only=True,
        metadata={"help": "What all questions may cost together; their number without `--costs`."},
    )
    output_dir: str = field(
        default=".", metadata={"help": "Folder of the file of questions.", "metavar": "DIR"}
    )
    output_file: str = field(
        default="questions.csv",
        metadata={
            "help": "File of questions, in `--output_dir` if it is no path.",
            "metavar": "FILE",
        },
    )
    format: str = field(
        default="csv",
        metadata={
            "help": "A table, tasks that Label Studio imports, or records of Argilla 2.",
            "choices": [*FORMATS],
        },
    )
    tool_field: str | None = field(
        default=None,
        metadata={
            "help": "Name of the item in Label Studio's labelling interface or Argilla's settings, such as image."
        },
    )
    gain: str = field(
        default="information",
        metadata={
            "help": "Whether an answer is worth the nats it tells, or how much likelier the labels are right.",
            "choices": [*GAINS],
        },
    )
    costs: str | None = field(
        default=None,
        metadata={
            "help": "CSV with the columns annotator and cost: what an answer of each costs.",
            "metavar": "FILE",
        },
    )
    annotators: list[str] | None = field(
        default=None,
        metadata={
            "help": "Who may be asked, also people who are new; by default all of the model."
        },
    )
    most_per_annotator: int | None = field(
        default=None, metadata={"help": "Questions to one annotator, at most."}
    )
    most_per_item: int | None = field(
        default=None, metadata={"help": "Questions about one item, at most."}
    )
    at_least: float | None = field(
        default=None,
        metadata={
            "help": "A question with a smaller expected gain is not asked; 0 spends the whole budget. Default: a "
            "tenth of what the annotator's answer would tell about an item of which nothing is known."
        },
    )


def ask(arguments: AskArguments) -> None:
    """Choose questions, write them, and print how many and how much they are expected to tell.

    Args:
        arguments: which model and data, and what may be asked.

    Raises:
        ValueError: if model, data and votes do not fit together, or a number or a cost is out of range.
    """
    costs = None if arguments.costs is None else read_costs(Path(arguments.costs))
    model = saved_model(arguments.model)
    dataset, column = named_items(arguments, model)
    column = None if column is None or column not in dataset.column_names else column
    with trainer_of(arguments, model) as trainer:
        asked = trainer.ask(
            dataset, arguments.budget, arguments.gain, costs=costs, at_least=arguments.at_least,
            most_per_annotator=arguments.most_per_annotator, most_per_item=arguments.most_per_item,
            annotators=arguments.annotators, item_column=column,
        )  # fmt: skip
    file = Path(arguments.output_dir, arguments.output_file)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_questions(asked, file, arguments.format, arguments.tool_field)
    items, people = ({*asked[name]} for name in ("item", "annotator"))
    print(f"{len(asked):,} questions about {len(items):,} items to {len(people):,} annotators.")
    if costs is None and len(asked) < arguments.budget and arguments.at_least is None:
        print(
            "Nothing else may be asked, or is worth it. `--at_least 0` asks whatever may be asked."
        )
    if len(asked):
        unit = "nats" if arguments.gain == "information" else "items more that are right"
        print(f"Their answers are expected to give {sum(asked['expected_gain']):.1f} {unit}.")
    print(f"The questions are in {file}.")


def read_costs(file: Path) -> dict[str, float]:
    r"""Read what an answer of each annotator costs.

    Args:
        file: CSV with the columns `annotator` and `cost`.

    Returns:
        The cost of each, by name.

    Raises:
        ValueError: if a column is missing, a cost is not a number above zero, or a name comes twice.
        FileNotFoundError: if there is no such file.

    Example:
        >>> _ = Path("costs.csv").write_text("annotator,cost\nann,0.5\nbob,2\n")
        >>> read_costs(Path("costs.csv"))
        {'ann': 0.5, 'bob': 2.0}
    """
    if not file.is_file():
        raise FileNotFoundError(f"`--costs` must be a file, got {str(file)!r}: there is none.")
    costs: dict[str, float] = {}
    with file.open(newline="", encoding="utf-8-sig") as table:
        reader = csv.DictReader(table)
        names = reader.fieldnames or []
        if missing := [name for name in ("annotator", "cost") if name not in names]:
            raise ValueError(
                f"{file} must have the columns annotator and cost, got no {missing[0]!r}: it has "
                f"{', '.join(names) or 'none'}."
            )
        for row in reader:
            place, name = f"{file}, line {reader.line_num}", row["annotator"]
            try:
                cost = float(row["cost"])
            except (TypeError, ValueError):
                cost = math.nan
            if not 0 < cost < math.inf:
                raise ValueError(
                    f"{place}: a cost must be a number above zero, got {row['cost']!r}."
                )
            if name in costs:
                raise ValueError(f"{place}: {name!r} must have one cost, got a second.")
            costs[name] = cost
    return costs


def main(arguments: list[str]) -> None:
    """Ask by the flags.

    Args:
        arguments: what follows `maxmig ask`.
    """
    start(ask, arguments=arguments, usage=USAGE)
