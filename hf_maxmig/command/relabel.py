"""`maxmig relabel`: cleaned labels of a data set, by a saved model."""

from pathlib import Path

from .flags import start
from .saved import SavedArguments, items, saved_model, trainer_of
from .usage import Usage

USAGE = Usage(
    program="maxmig relabel",
    call="MODEL DATA [--votes VOTES] --output_dir DIR [flags]",
    description="Write relabelled.parquet and relabelled.csv: what each item is, by the model and by its votes if it has "
    "any, those first where the two differ.",
    sections=[("model and data", ["model", "data", "votes"]), ("result", ["output_dir"])],
    rest="more about model, data and votes",
    words=("model", "data"),
)


def relabel(arguments: SavedArguments) -> None:
    """Write the cleaned labels, and print how many are suspect.

    Args:
        arguments: which model and data.

    Raises:
        ValueError: if model, data and votes do not fit together.
    """
    model = saved_model(arguments.model)
    dataset = items(arguments, model)
    file = Path(arguments.output_dir, "relabelled.parquet")
    with trainer_of(arguments, model) as trainer:
        cleaned = trainer.relabel(dataset, file)
    suspect = sum(cleaned.with_format(None)["suspect"][:])
    print(f"{suspect:,} of {len(cleaned):,} items have a suspect label; they come first.")
    print(f"The labels are in {file} and {file.with_suffix('.csv')}.")


def main(arguments: list[str]) -> None:
    """Relabel by the flags.

    Args:
        arguments: what follows `maxmig relabel`.
    """
    start(relabel, arguments=arguments, usage=USAGE)
