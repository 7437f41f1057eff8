"""The recipe that measures the effect of a few gold labels."""

import importlib
import json

import numpy as np
import pytest

from tests.recipes.imported import recipes


@pytest.fixture(scope="module")
def recipe():
    with recipes() as load:
        yield load("gold_labels")


def test_other_gold_labels_are_hidden(recipe, tmp_path):
    """The trainer would use every gold label that it sees."""
    train = recipe.worlds.sixty_seconds(recipe.worlds.Places(str(tmp_path)), 0).train
    part = recipe.with_gold(train, np.array([7, 3, 190]))
    known = {row: label for row, label in enumerate(part["label"][:]) if label is not None}
    assert known == {row: train["label"][row] for row in (3, 7, 190)}
    assert part.features["label"] == train.features["label"]


def test_all_numbers_are_measured_on_the_same_items(recipe, tmp_path, monkeypatch):
    """Otherwise runs whose easiest items were drawn as gold labels would look worse."""
    world = recipe.worlds.sixty_seconds(recipe.worlds.Places(str(tmp_path)), 0)
    seen, given = [], []
    measures = importlib.import_module("measures")
    usual, trainer = measures.of_posterior, recipe.MaxMIGTrainer

    def spy(log_p, truth):
        seen.append(truth)
        return usual(log_p, truth)

    class Untrained(trainer):
        def train(self):
            given.append(self.gold_labels)
            return type("Output", (), {"metrics": {}})

    monkeypatch.setattr(measures, "of_posterior", spy)
    monkeypatch.setattr(recipe, "MaxMIGTrainer", Untrained)
    figures = [recipe.measure(world, 1, number, 50) for number in (0, 20, 50)]
    assert [row["measured_items"] for row in figures] == [150, 150, 150]
    for test, networks, forecast in (seen[0:3], seen[3:6], seen[6:9]):
        assert len(test) == 1000
        assert np.array_equal(networks, seen[1])
        assert np.array_equal(forecast, seen[1])
    assert given[0] is None
    few, many = (set((gold >= 0).nonzero()[:, 0].tolist()) for gold in given[1:])
    assert (len(few), len(many)) == (20, 50)
    assert few < many
    gold = np.array(world.train["label"][:])
    assert np.array_equal(np.delete(gold, sorted(many)), seen[1])


def test_seeds_come_together(recipe):
    """They are grouped by world and number, whatever the order of the runs."""
    runs = [
        {"world": w, "seed": s, "gold_labels": n, "test_accuracy": n / 100 + s}
        for s in (0, 1) for n in (50, 0) for w in ("here", "elsewhere")
    ]  # fmt: skip
    rows = recipe.by_kind(runs, recipe.KIND)
    keys = [(row["world"], row["gold_labels"], row["seeds"]) for row in rows]
    assert keys == [(w, n, [0, 1]) for w in ("elsewhere", "here") for n in (0, 50)]
    assert rows[1]["mean"] == {"test_accuracy": 1.0}
    assert rows[1]["by_seed"] == {"test_accuracy": [0.5, 1.5]}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"seeds": 0}, "`seeds` must be at least 1, got 0"),
        ({"gold_labels": [20, -1]}, r"`gold_labels` must be numbers of 0 or more, got \[20, -1\]"),
        ({"worlds": ["labelmi"]}, "`worlds` must be of .*labelme.*, got labelmi"),
    ],
)
def test_wrong_arguments_are_refused(changes, error, recipe):
    """Otherwise there would be nothing to show after hours."""
    with pytest.raises(ValueError, match=error):
        recipe.Arguments("out", **changes)


@pytest.mark.slow
def test_quick_mode_measures_the_snippet_and_goes_on_where_it_was(
    recipe, tmp_path, capsys, monkeypatch
):
    """Runs the whole way, from the flag to the table."""
    monkeypatch.setattr(recipe.datasets, "disable_progress_bars", lambda: None)
    results = recipe.main(recipe.Arguments(str(tmp_path), quick=True))
    assert results == json.loads((tmp_path / "gold_labels.json").read_text())
    assert results["command"] == "python recipes/benchmarks/gold_labels.py --quick --output_dir OUT"
    without, with_some = results["rows"]
    assert (without["gold_labels"], with_some["gold_labels"]) == (0, 20)
    assert (without["mean"]["gold_labels_used"], with_some["mean"]["gold_labels_used"]) == (0, 20)
    for row in results["rows"]:
        assert row["mean"]["measured_items"] == 180
        assert row["mean"]["test_accuracy"] > 0.95
        assert row["mean"]["forecast_accuracy"] > 0.95
    assert "| sixty seconds |          20 |     1 |" in capsys.readouterr().out

    def measured_again(*args):
        raise AssertionError("it was measured before")

    monkeypatch.setattr(recipe, "measure", measured_again)
    assert recipe.main(recipe.Arguments(str(tmp_path), quick=True))["rows"] == results["rows"]


def test_page_says_command_number_and_minutes(recipe):
    """If a recipe does not say what to expect, nobody can see that it fails."""
    for word in ("recipes/benchmarks/gold_labels.py --crowds_dir", "Expect", "minutes", "terms"):
        assert word in recipe.__doc__, word


def test_docs_table_is_written_from_the_results(recipe, tmp_path, monkeypatch):
    """No new measurement is needed for the table."""
    row = {"world": "here", "gold_labels": 50, "seeds": [0, 1], "mean": {}}
    for of in ("test", "forecast"):
        row["mean"] |= {f"{of}_accuracy": 0.912, f"{of}_nll": 0.3, f"{of}_ece": 0.04}
    monkeypatch.setattr(recipe, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(recipe, "PAGE", tmp_path / "page.md")
    recipe.RESULTS.write_text(json.dumps({"rows": [row]}))
    recipe.PAGE.write_text("Before.\n<!-- gold labels -->\nold\n<!-- end gold labels -->\nAfter.\n")
    recipe.main(recipe.Arguments(str(tmp_path / "out"), write_docs=True))
    page = recipe.PAGE.read_text()
    assert page.startswith("Before.\n<!-- gold labels -->\n| world | gold labels | seeds |")
    assert "| here  |          50 |     2 |" in page
    assert page.endswith("|\n<!-- end gold labels -->\nAfter.\n")
    assert not (tmp_path / "out").exists()


def test_docs_show_the_committed_figures(recipe):
    """The table could be typed by hand, or older than the results."""
    result = json.loads(recipe.RESULTS.read_text(encoding="utf-8"))
    page = recipe.PAGE.read_text(encoding="utf-8")
    table = recipe.table(result["rows"])
    assert f"<!-- gold labels -->\n{table}\n<!-- end gold labels -->" in page
    assert "torch" in result["versions"]
    assert all(row["mean"]["gold_labels_used"] == row["gold_labels"] for row in result["rows"])
