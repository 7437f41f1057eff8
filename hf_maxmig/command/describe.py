"""`maxmig describe`: statistics of the votes before anything is trained."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset

from ..data.columns import add_annotations, has_crowd_columns
from ..data.describe import Description
from ..data.describe import describe as described
from .flags import start
from .items import VotesForm, read_saved
from .usage import Usage


@dataclass
class DescribeArguments(VotesForm):
    """Votes, and how to describe them."""

    votes: str = field(
        kw_only=True,
        metadata={"help": "File or folder of votes, or a saved data set with crowd columns."},
    )
    min_votes: int = field(
        default=10,
        metadata={"help": "Annotators with fewer votes are listed.", "metavar": "NUMBER"},
    )
    output_file: str | None = field(
        default=None, metadata={"help": "JSON file to write all numbers to.", "metavar": "FILE"}
    )
    split: str = field(default="train", metadata={"help": "Which split of a saved data set."})


USAGE = Usage(
    program="maxmig describe",
    call="VOTES [flags]",
    description="Show how many votes there are, by how many annotators, on which items, and how far they agree.",
    sections=[("votes", ["votes"]), ("output", ["min_votes", "output_file"])],
    rest="form and columns of the votes, if they are not detected",
    words=("votes",),
)


def describe(arguments: DescribeArguments) -> Description:
    """Describe the votes and print the description.

    Args:
        arguments: which votes.

    Returns:
        The description.

    Raises:
        FileNotFoundError: if there are no such votes.
        ValueError: if they cannot be read.
    """
    dataset = read_saved(arguments.votes, arguments.split)
    if dataset is None or not has_crowd_columns(dataset):
        votes = arguments.read(arguments.votes)
        items = Dataset.from_dict({"item": list(dict.fromkeys(votes["item"]))})
        dataset = add_annotations(items, votes, "item")
    found = described(dataset, min_votes=arguments.min_votes)
    print(found)
    if arguments.output_file is not None:
        path = Path(arguments.output_file)
        if path.is_dir():
            raise ValueError(f"`--output_file` must be a file, got the folder {path}.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def main(arguments: list[str]) -> None:
    """Describe by the flags.

    Args:
        arguments: what follows `maxmig describe`.
    """
    start(describe, arguments=arguments, usage=USAGE)
