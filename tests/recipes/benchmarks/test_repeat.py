"""The recipe that repeats another recipe: what its results file says of several seeds."""

import doctest
import json
import sys

import pytest

PRETEND = """
import argparse, json, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--output_dir", type=pathlib.Path)
given, _ = parser.parse_known_args()
accuracy = 0.5 + given.seed / 10
results = {"eval_accuracy": accuracy, "eval_gain": 0.3, "train_runtime": 2.0, "held_out_items": 7}
looks = [(1.0, 0.9, 0.1), (2.0, 0.4 + given.seed / 10, 0.8), (3.0, accuracy, 0.7), (3.0, 0.95, 0.9)]
history = [{"epoch": 1.0, "loss": 0.4}]
for epoch, test, gain in looks:
    history += [{"epoch": epoch, "eval_test_accuracy": test}, {"epoch": epoch, "eval_crowd_gain": gain}]
(given.output_dir / "all_results.json").write_text(json.dumps(results))
(given.output_dir / "trainer_state.json").write_text(json.dumps({"log_history": history}))
"""


@pytest.fixture
def repeat(load):
    return load("repeat")


def test_results_are_of_every_seed_and_pick(repeat, tmp_path, monkeypatch):
    """If the model were measured again after training, the last epoch would win every pick."""
    (tmp_path / "pretend.py").write_text(PRETEND)
    file = tmp_path / "results" / "pretend.json"
    monkeypatch.setattr(repeat, "__file__", str(tmp_path / "benchmarks" / "repeat.py"))
    flags = ["--seeds", "3", "--output_file", str(file), "pretend.py", "--case", "correlated"]
    monkeypatch.setattr(sys, "argv", ["repeat.py", *flags])
    repeat.main()
    result = json.loads(file.read_text())
    assert result["command"] == "python recipes/pretend.py --case correlated --seed SEED"
    assert result["last_epoch_mean"] == {"accuracy": 0.6, "gain": 0.3}
    assert result["last_epoch_deviation"] == {"accuracy": 0.1, "gain": 0.0}
    assert [run["seed"] for run in result["runs"]] == [0, 1, 2]
    for run in result["runs"]:
        accuracy = 0.4 + run["seed"] / 10
        assert run["label_free"] == {"epoch": 2.0, "accuracy": accuracy, "gain": 0.8}
        assert run["best_on_test"] == {"epoch": 1.0, "accuracy": 0.9}
    assert {"python", "torch", "timm"} <= set(result["versions"])


def test_recipe_that_fails_leaves_no_results(repeat, tmp_path, monkeypatch):
    """A mean over only the seeds that succeeded describes no setting."""
    (tmp_path / "pretend.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(repeat, "__file__", str(tmp_path / "benchmarks" / "repeat.py"))
    flags = ["--output_file", str(tmp_path / "results.json"), "pretend.py"]
    monkeypatch.setattr(sys, "argv", ["repeat.py", *flags])
    with pytest.raises(repeat.subprocess.CalledProcessError):
        repeat.main()
    assert not (tmp_path / "results.json").exists()


def test_example_holds(repeat):
    """Pytest does not collect the examples in recipes."""
    results = doctest.testmod(repeat)
    assert results.attempted
    assert not results.failed
