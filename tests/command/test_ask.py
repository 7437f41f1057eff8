"""`maxmig ask`: from a saved model and votes to a file of questions."""

import csv
import json

import pytest
import torch

from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGModel, read_annotations
from hf_maxmig.cli import main
from tests.worlds import ANNOTATORS, CLASSES, make_crowd


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A saved model with W of equation 2, a table of items, and a file of votes, one of them by a stranger."""
    folder = tmp_path_factory.mktemp("asked")
    torch.manual_seed(0)
    head = HeadClassifier(HeadConfig(input_size=5, num_labels=3))
    model = MaxMIGModel.from_classifier(head, annotators=ANNOTATORS, id2label=dict(enumerate(CLASSES)))  # fmt: skip
    crowd = make_crowd(120)
    rows = [
        (f"x{i}", ANNOTATORS[m], CLASSES[r])
        for i, item in enumerate(crowd)
        for m, r in zip(item["annotators"], item["annotations"], strict=True)
    ]
    with (folder / "votes.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("item", "annotator", "annotation"), *rows, ("x1", "zoe", "cat")]
        )
    with (folder / "items.jsonl").open("w") as file:
        for i, item in enumerate(crowd):
            file.write(json.dumps({"item": f"x{i}", "features": item["features"]}) + "\n")
    model.initialize_crowd([_votes(crowd)])
    model.save_pretrained(folder / "model")
    return folder


def _votes(crowd):
    from hf_maxmig.data.collator import CrowdCollator, crowd_batches, padded

    return padded(crowd_batches(crowd, CrowdCollator(4, 3)))


def typed(place, *flags):
    main(["ask", str(place / "model"), str(place / "items.jsonl"), "--votes", str(place / "votes.csv"),
          "--use_cpu", *map(str, flags)])  # fmt: skip


def test_questions_are_written_and_counted(place, tmp_path, capsys):
    """A question that somebody has answered would be paid twice."""
    typed(place, "--budget", 9, "--output_dir", tmp_path)
    with (tmp_path / "questions.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [*rows[0]] == ["item", "item_name", "annotator", "expected_gain", "reason"]
    votes = read_annotations(place / "votes.csv")
    answered = {*zip(votes["item"], votes["annotator"], strict=True)}
    assert len(rows) == 9
    assert not answered & {(row["item_name"], row["annotator"]) for row in rows}
    assert all(row["item_name"] == f"x{row['item']}" for row in rows)
    assert all("the model" in row["reason"] for row in rows)
    said = capsys.readouterr().out
    assert said.startswith("9 questions about ")
    assert f"{sum(float(row['expected_gain']) for row in rows):.1f} nats" in said
    assert "Nothing else" not in said


def test_a_budget_that_is_not_spent_says_why(place, tmp_path, capsys):
    """Whoever has paid for 10,000 answers would look for the missing questions."""
    numbers = {}
    for flags in ((), ("--at_least", 0)):
        typed(place, "--budget", 9999, *flags, "--output_dir", tmp_path)
        numbers[flags], said = capsys.readouterr().out.split(maxsplit=1)
        assert ("Nothing else may be asked, or is worth it." in said) == (not flags)
    fewer, more = numbers.values()
    assert int(fewer) < int(more)


def test_costs_people_and_tools(place, tmp_path, capsys):
    """The flags go where their names say."""
    (tmp_path / "costs.csv").write_text("annotator,cost\nann,4\nbob,1\n")
    typed(
        place, "--budget", 6, "--costs", tmp_path / "costs.csv", "--annotators", "ann", "bob",
        "--most_per_annotator", 1, "--format", "label_studio", "--tool_field", "row",
        "--output_file", tmp_path / "tasks.json",
    )  # fmt: skip
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    asked = [one["annotator"] for task in tasks for one in task["meta"]["ask"]]
    assert sorted(asked) == ["ann", "bob"]
    assert all(task["data"]["row"] == f"x{task['data']['item']}" for task in tasks)
    typed(place, "--budget", 9, "--at_least", 2, "--output_dir", tmp_path)  # more than log 3
    assert "0 questions about 0 items to 0 annotators." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("annotator,price\nann,1\n", "must have the columns annotator and cost, got no 'cost'"),
        ("annotator,cost\nann,free\n", "line 2: a cost must be a number above zero, got 'free'"),
        ("annotator,cost\nann,0\n", "line 2: a cost must be a number above zero, got '0'"),
        ("annotator,cost\nann,1\nann,2\n", "line 3: 'ann' must have one cost, got a second"),
        ("annotator,cost\nann,1\n", "got none for 'bob'"),
        (None, "`--costs` must be a file, got"),
    ],
)
def test_unusable_costs_are_one_line(text, said, place, tmp_path, capsys):
    """A cost that was read as something else is noticed on the bill."""
    if text is not None:
        (tmp_path / "c.csv").write_text(text)
    with pytest.raises(SystemExit):
        typed(place, "--budget", 9, "--costs", tmp_path / "c.csv", "--output_dir", tmp_path)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "questions.csv").exists()
