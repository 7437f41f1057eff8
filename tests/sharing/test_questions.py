"""Questions in files: what a spreadsheet shows, and what the tools import."""

import csv
import json

import pytest
from datasets import Dataset

from hf_maxmig import read_annotations, write_questions


@pytest.fixture
def questions():
    return Dataset.from_dict(
        {
            "item": [7, 2, 7],
            "file": ["=b.jpg", "a.jpg", "=b.jpg"],
            "annotator": ["Zoë", "@bob", "@bob"],
            "expected_gain": [0.5, 0.25, 0.125],
            "reason": ["the model hesitates", "a, b; c", "x"],
        }
    )


def test_table_opens_in_a_spreadsheet(questions, tmp_path):
    """A name such as =cmd(...) would be run."""
    write_questions(questions, tmp_path / "q.csv")
    rows = [*csv.reader((tmp_path / "q.csv").read_text(encoding="utf-8").splitlines())]
    assert rows[0] == ["item", "file", "annotator", "expected_gain", "reason"]
    assert rows[1] == ["7", "'=b.jpg", "Zoë", "0.5", "the model hesitates"]
    assert rows[2][2:] == ["'@bob", "0.25", "a, b; c"]
    assert len(rows) == 4


def test_label_studio_gets_a_task_per_item_and_gives_votes_back(questions, tmp_path):
    """The field must be the variable of the labelling interface, or the import is refused."""
    file = tmp_path / "tasks.json"
    write_questions(questions, file, format="label_studio", field="image")
    tasks = json.loads(file.read_text(encoding="utf-8"))
    assert [task["data"] for task in tasks] == [
        {"image": "=b.jpg", "item": 7},
        {"image": "a.jpg", "item": 2},
    ]
    assert tasks[0]["meta"]["ask"][1] == {
        "annotator": "@bob", "expected_gain": 0.125, "reason": "x"
    }  # fmt: skip
    said = {"type": "choices", "from_name": "c", "to_name": "i", "value": {"choices": ["cat"]}}
    for number, task in enumerate(tasks):  # as Label Studio exports them
        task["id"] = number
        task["annotations"] = [{"completed_by": 5, "was_cancelled": False, "result": [said]}]
    file.write_text(json.dumps(tasks), encoding="utf-8")
    votes = read_annotations(file, item="image")
    assert votes["item"][:] == ["=b.jpg", "a.jpg"]
    assert votes["annotation"][:] == ["cat", "cat"]


def test_argilla_gets_a_record_per_line(questions, tmp_path):
    """`rg.Record(**record)` takes `id`, `fields` and `metadata`; fields are texts."""
    write_questions(questions, tmp_path / "r.jsonl", format="argilla")
    lines = (tmp_path / "r.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "id": "7",
            "fields": {"file": "=b.jpg"},
            "metadata": {"ask": ["Zoë", "@bob"], "expected_gain": 0.625, "reason": ["the model hesitates", "x"]},
        },
        {
            "id": "2",
            "fields": {"file": "a.jpg"},
            "metadata": {"ask": ["@bob"], "expected_gain": 0.25, "reason": ["a, b; c"]},
        },
    ]  # fmt: skip
    write_questions(questions.remove_columns("file"), tmp_path / "r.jsonl", format="argilla")
    first = json.loads((tmp_path / "r.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert first["fields"] == {"item": "7"}


def test_nothing_is_written_of_what_does_not_fit(questions, tmp_path):
    """A half written file would be imported."""
    file = tmp_path / "q"
    with pytest.raises(ValueError, match="must be one of csv, label_studio, argilla, got 'xml'"):
        write_questions(questions, file, format="xml")
    with pytest.raises(ValueError, match="got no 'reason'"):
        write_questions(questions.remove_columns("reason"), file)
    with pytest.raises(ValueError, match="`field` must not be given for a table, got 'image'"):
        write_questions(questions, file, field="image")
    assert not file.exists()
    empty = questions.select([])
    write_questions(empty, file, format="label_studio")
    assert json.loads(file.read_text()) == []
