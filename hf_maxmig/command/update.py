"""`maxmig update`: new votes and new annotators for a saved model, without training."""

import importlib.util
import json
from pathlib import Path
from typing import Any

from datasets import Dataset

from ..data.columns import has_votes
from ..data.describe import describe
from ..judging.annotators import AnnotatorReport
from ..model.whole_files import staged
from ..sharing.model_card import model_card
from ..training.maxmig_trainer import MaxMIGTrainer
from ..training.saving import IGNORED, NOT_FOR_OTHERS, RESULTS
from ..training.training_args import MaxMIGTrainingArguments
from .card import results
from .flags import start
from .saved import (
    SavedArguments,
    items_with_votes,
    numbered,
    saved_model,
    saved_processor,
    trainer_of,
)
from .usage import Usage

# The only result that new votes leave as it was.
STAYS = "eval_accuracy"
USAGE = Usage(
    program="maxmig update",
    call="MODEL VOTES DATA --output_dir DIR [flags]",
    description="Take new votes into a saved model without training: annotators with votes get new matrices, and new "
    "ones are added. VOTES are all votes so far, old and new. The output folder then holds the updated model and its "
    "card, and in `_report` the cleaned labels and, with matplotlib, the page on annotators.",
    sections=[("model and data", ["model", "votes", "data"]), ("result", ["output_dir"])],
    rest="more about model, data and votes",
    words=("model", "votes", "data"),
)


def update(arguments: SavedArguments) -> None:
    """Update a saved model, write it with its card, relabel and report.

    Args:
        arguments: which model, votes and data.

    Raises:
        ValueError: if model, data and votes do not fit together, or the model cannot be updated.
    """
    model, folder = saved_model(arguments.model), Path(arguments.output_dir)
    dataset, _ = items_with_votes(arguments, model)
    if not has_votes(dataset, items=1):
        raise ValueError("an update needs votes, got data without any: give them as VOTES.")
    processor = saved_processor(arguments.model)
    written = results(arguments.model)
    device = MaxMIGTrainingArguments(
        arguments.output_dir, use_cpu=arguments.use_cpu, report_to="none"
    ).device
    model.to(device)
    options: dict[str, Any] = {
        "processor": processor, "batch_size": arguments.per_device_eval_batch_size
    }  # fmt: skip
    new = model.update(dataset, **options)
    known = numbered(dataset, model)
    with trainer_of(arguments, model) as trainer:
        output = trainer.predict(known)
        judged = trainer.judged(known, output)
        if judged.voices():
            # Copies are known only now. Counted as one voice, they change the matrices.
            copies = [[judged.annotators[m] for m in voice] for voice in judged.voices()]
            model.update(dataset, copies=copies, **options)
            judged = trainer.judged(known, output)  # the classifier says what it said
        judged = _report(trainer, known, folder) or judged
    model.save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    kept = {key: value for key, value in written.get("results", {}).items() if key == STAYS}
    written = {**written, "results": kept}
    card = model_card(
        model, kept, written.get("arguments", {}), folder.resolve().name, processor=processor, data=describe(known),
        judged=judged,
    )  # fmt: skip
    card.save(folder / "README.md")
    with staged(folder / RESULTS) as place:
        place.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    print(judged)
    number = len(new) or "No"
    print(
        f"{number} new annotator{'' if len(new) == 1 else 's'}{': ' if new else ''}{', '.join(new)}."
    )
    print(f"The updated model is in {folder}, what it says of the data in {folder / '_report'}.")


def _report(trainer: MaxMIGTrainer, dataset: Dataset, folder: Path) -> AnnotatorReport | None:
    """Write the report, or without matplotlib only the cleaned labels, to `_report`, which `hf upload` leaves out."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / IGNORED).exists():
        (folder / IGNORED).write_text(NOT_FOR_OTHERS, encoding="utf-8")
    if importlib.util.find_spec("matplotlib") is None:
        trainer.relabel(dataset, folder / "_report" / "relabelled.parquet")
        return None
    return trainer.report(dataset, folder / "_report", title=folder.resolve().name)


def main(arguments: list[str]) -> None:
    """Update by the flags.

    Args:
        arguments: what follows `maxmig update`.
    """
    start(update, arguments=arguments, usage=USAGE)
