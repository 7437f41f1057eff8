"""`maxmig demo`: a page in the browser, on which a saved model and its data can be looked at and labels corrected."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from datasets import Audio, Dataset, Image

from ..data.columns import has_votes
from ..demo.app import Page, app, launched_here, need_gradio
from ..demo.corrections import Corrections
from ..demo.reviewing import Reviewing
from ..demo.trying import Trying
from ..judging.showing import Showing
from ..model.modeling_maxmig import MaxMIGModel
from .flags import start
from .joining import named_items as files_named
from .saved import SavedArguments, named_items, saved_model, saved_processor, trainer_of
from .usage import Usage

USAGE = Usage(
    program="maxmig demo",
    call="MODEL [DATA] [--votes VOTES] [flags]",
    description="Open a page on which people try the model, look through the items with the most suspect labels and "
    "correct them, and look at annotators. It is for this machine alone, and asks for nothing from outside. Corrections "
    "go to a CSV that `--votes` reads. Needs gradio.",
    sections=[
        ("model and data", ["model", "data", "votes"]),
        ("page", ["corrections", "port", "no_browser"]),
    ],
    rest="more about model, data and votes",
    words=("model", "data"),
)

_ROW = "row_of_item"  # a column, for as long as the items are sorted


@dataclass
class DemoArguments(SavedArguments):
    """A saved model, and the items to look through, if there are any."""

    data: str = field(
        default="",
        kw_only=True,
        metadata={
            "help": "Items to look through, as `maxmig relabel` takes them. Without them the page has only the model."
        },
    )
    output_dir: str = field(
        default=".", metadata={"help": "Folder of the file of corrections.", "metavar": "DIR"}
    )
    corrections: str = field(
        default="corrections.csv",
        metadata={
            "help": "File of corrections, in `--output_dir` if it is no path.",
            "metavar": "FILE",
        },
    )
    port: int | None = field(
        default=None,
        metadata={"help": "Port of the page; by default the first free one from 7860."},
    )
    no_browser: bool = field(
        default=False, metadata={"help": "Do not open the page in the browser."}
    )


def page_of(arguments: DemoArguments) -> Page:
    """Load the model, and judge items and annotators if there are any.

    Args:
        arguments: which model and data.

    Returns:
        What the page shows.

    Raises:
        ValueError: if model, data and votes do not fit together, or the file of corrections is another table.
    """
    model = saved_model(arguments.model)
    trying = Trying(model, saved_processor(arguments.model))
    title = Path(arguments.model).resolve().name
    if not arguments.data:
        if arguments.votes is not None:
            raise ValueError("`--votes` must come with DATA, the items they are on, got none.")
        return Page(title, trying)
    place = Path(arguments.output_dir, arguments.corrections)
    corrections = Corrections(place, trying.classes)
    dataset, column = named_items(arguments, model)
    dataset, column = with_item_names(dataset, column)
    dataset = dataset.add_column(_ROW, [*range(len(dataset))])
    judged = None
    with trainer_of(arguments, model) as trainer:
        output = trainer.predict(dataset)
        cleaned = trainer.cleaned(dataset, output)
        if isinstance(model, MaxMIGModel) and has_votes(dataset, items=1):
            judged = trainer.judged(dataset, output)
    numbers = cleaned.with_format("numpy")[_ROW][:]
    cleaned = cleaned.remove_columns(_ROW)
    reviewing = Reviewing(cleaned, trying.classes, trying.annotators, column, numbers)
    return Page(title, trying, reviewing, corrections, judged)


def with_item_names(dataset: Dataset, column: str | None) -> tuple[Dataset, str | None]:
    """Find the column by which votes can name the items, or make one of the files' names.

    Args:
        dataset: the items.
        column: that of the votes, if it is known.

    Returns:
        The items and the column; None if there is none: row numbers then name them.

    Example:
        >>> with_item_names(Dataset.from_dict({"id": ["a", "b"], "text": ["Good.", "Bad."]}), None)[1]
        'id'
        >>> print(with_item_names(Dataset.from_dict({"id": ["a", "a"], "text": ["Good.", "Bad."]}), None)[1])
        None
    """
    files = [n for n, kind in dataset.features.items() if isinstance(kind, Image | Audio)]
    if column is not None and column not in files:
        return dataset, column
    named = Showing.of(dataset.with_format(None), np.arange(min(1, len(dataset))), []).called
    if named is not None and len({*dataset[named][:]}) == len(dataset):
        return dataset, named
    if files:
        nobody = Dataset.from_dict({"item": []})
        with contextlib.suppress(ValueError):  # pictures without files
            return files_named(dataset, nobody, files[0]) or (dataset, None)
    return dataset, None


def demo(arguments: DemoArguments) -> None:
    """Open the page, and serve it until it is interrupted.

    Args:
        arguments: which model and data.

    Raises:
        ImportError: if Gradio is not installed.
        OSError: if the port is taken.
        ValueError: as `page_of`.
    """
    need_gradio()
    page = page_of(arguments)
    blocks = app(page)
    address = launched_here(
        blocks, arguments.port, inbrowser=not arguments.no_browser, prevent_thread_lock=True
    )
    print(f"The page is at {address} (Ctrl-C ends it).", flush=True)
    if page.corrections is not None:
        print(f"Corrections go to {page.corrections.path}.", flush=True)
    blocks.block_thread()


def main(arguments: list[str]) -> None:
    """Open the page by the flags.

    Args:
        arguments: what follows `maxmig demo`.
    """
    start(demo, arguments=arguments, usage=USAGE)
