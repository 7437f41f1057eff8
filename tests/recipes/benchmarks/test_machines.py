"""Tests of `recipes/benchmarks/machines.py`: scores become votes, and gold labels are only for measuring."""

import json

import numpy as np
import pytest


@pytest.fixture
def machines(load):
    return load("machines")


def test_scores_become_votes(machines) -> None:
    """A score of zero is no vote, and a soft vote is one vote in two parts."""
    scores = {"tool": np.array([0.5, 0.0, -1.0])}
    hard = machines.machine_votes(scores, "hard", ["neg", "pos"])
    assert [(row["item"], row["annotation"], row["weight"]) for row in hard] == [
        (0, "pos", 1.0), (2, "neg", 1.0),
    ]  # fmt: skip
    soft = machines.machine_votes(scores, "soft", ["neg", "pos"])
    assert [(row["item"], row["annotation"], row["weight"]) for row in soft] == [
        (0, "neg", 0.25), (0, "pos", 0.75), (2, "neg", 1.0),
    ]  # fmt: skip


def test_cases_join_the_right_annotators_without_gold_labels(machines) -> None:
    world, scores = machines.made_up()
    for case, (people, how) in machines.CASES.items():
        train = machines.joined(world.train, scores, case)
        names = train.features["annotators"].feature.names
        assert any(name.startswith("person") for name in names) == people, case
        assert ("first tool" in names) == (how is not None), case
        assert ("annotation_weights" in train.column_names) == (how == "soft"), case
        assert "label" not in train.column_names


@pytest.mark.slow
@pytest.mark.full
def test_quick_run_writes_what_it_measured(machines, tmp_path) -> None:
    result = machines.main(machines.Arguments(str(tmp_path), quick=True))
    assert json.loads((tmp_path / "machines.json").read_text())["rows"] == result["rows"]
    assert [row["case"] for row in result["rows"]] == list(machines.CASES)
    assert machines.tables(result).count("first tool") == 2
    with pytest.raises(ValueError, match="`crowds_dir` must be given"):
        machines.Arguments(str(tmp_path))


def test_page_holds_the_committed_results(machines) -> None:
    committed = json.loads(machines.RESULTS.read_text(encoding="utf-8"))
    assert machines.tables(committed) in machines.PAGE.read_text(encoding="utf-8")
