"""Questions as files: a table for people, or tasks for the tools in which votes are cast."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset

from ..judging.questions import COLUMNS, as_csv
from ..model.whole_files import staged

Rows = list[dict[str, Any]]


def write_questions(
    questions: Dataset, path: str | os.PathLike[str], format: str = "csv", field: str | None = None
) -> None:
    """Write questions to a file, whole or not at all.

    Args:
        questions: from `CrowdTrainer.ask`.
        path: of the file.
        format: `csv`, one row per question; text that a spreadsheet would take for a formula has an apostrophe before
            it. `label_studio`, the JSON of tasks that Label Studio imports: one per item, with the questions about it
            in `meta.ask`. `argilla`, one record of Argilla 2 per line: `fields`, and as `metadata` who is to be asked
            and the gain of all their answers together.
        field: the name under which a tool is given the item: the variable of Label Studio's labelling interface, the
            field of Argilla's settings. By default that of the column that names the items, or `item`.

    Raises:
        ValueError: if `questions` lack a column, the format is unknown, or a table is to have a field.

    Example:
        >>> questions = Dataset.from_dict({"item": [7], "file": ["a.jpg"], "annotator": ["ann"],
        ...                                "expected_gain": [0.5], "reason": ["the model hesitates"]})
        >>> write_questions(questions, "tasks.json", format="label_studio", field="image")
        >>> json.loads(Path("tasks.json").read_text())[0]["data"]
        {'image': 'a.jpg', 'item': 7}
    """
    missing = [name for name in COLUMNS if name not in questions.column_names]
    if missing:
        raise ValueError(
            f"`questions` must have the columns {', '.join(COLUMNS)}, as `ask` returns them, got no {missing[0]!r}."
        )
    if format not in FORMATS:
        raise ValueError(f"`format` must be one of {', '.join(FORMATS)}, got {format!r}.")
    if format == "csv" and field is not None:
        raise ValueError(f"`field` must not be given for a table, got {field!r}: it is a tool's.")
    rows: Rows = questions.with_format(None).to_list()
    own = [name for name in questions.column_names if name not in COLUMNS]
    with staged(Path(path)) as place:
        FORMATS[format](rows, own, field, place)


def _csv(rows: Rows, own: list[str], field: str | None, place: Path) -> None:
    names = ["item", *own, *COLUMNS[1:]]
    text = as_csv(names, ([row[name] for name in names] for row in rows))
    place.write_text(text, encoding="utf-8", newline="")


def _label_studio(rows: Rows, own: list[str], field: str | None, place: Path) -> None:
    tasks = [
        {
            "data": _content(about[0], own, field),
            "meta": {"ask": [{name: row[name] for name in COLUMNS[1:]} for row in about]},
        }
        for about in _by_item(rows)
    ]
    text = json.dumps(tasks, ensure_ascii=False, indent=1)
    place.write_text(text + "\n", encoding="utf-8")


def _argilla(rows: Rows, own: list[str], field: str | None, place: Path) -> None:
    with place.open("w", encoding="utf-8") as file:
        for about in _by_item(rows):
            # Argilla's fields are texts and links; the row number tells records apart.
            fields = {name: str(v) for name, v in _content(about[0], own, field).items()}
            if len(fields) > 1:
                del fields["item"]
            record = {
                "id": str(about[0]["item"]),
                "fields": fields,
                "metadata": {
                    "ask": [row["annotator"] for row in about],
                    "expected_gain": sum(row["expected_gain"] for row in about),
                    "reason": [row["reason"] for row in about],
                },
            }
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


FORMATS: dict[str, Callable[[Rows, list[str], str | None, Path], None]] = {
    "csv": _csv,
    "label_studio": _label_studio,
    "argilla": _argilla,
}


def _by_item(rows: Rows) -> list[Rows]:
    """Put the questions about an item together, the most valuable item first."""
    found: dict[int, Rows] = {}
    for row in rows:
        found.setdefault(row["item"], []).append(row)
    return list(found.values())


def _content(row: dict[str, Any], own: list[str], field: str | None) -> dict[str, Any]:
    """Name an item for a tool."""
    content = {name: row[name] for name in own}
    if field is not None:
        first = own[0] if own else "item"
        content = {field: row[first], **{n: v for n, v in content.items() if n != first}}
    return {**content, "item": row["item"]}
