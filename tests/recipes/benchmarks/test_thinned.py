"""The curves over numbers of votes: how votes are removed, which cells there are, and what the page shows."""

import json
import sys

import numpy as np
import pytest

from tests.recipes.imported import recipes

SHORT = ["--num_train_epochs", "2"]


@pytest.fixture(scope="module")
def load():
    with recipes() as load:
        yield load


@pytest.fixture(scope="module")
def thinned(load):
    return load("thinned")


def cell(thinned, method="aggnet", votes=1, annotators=None, seed=0, world="digits_high"):
    crowd = thinned.WORLDS[world].crowd
    return thinned.ThinnedCell(crowd[0], method, *crowd[1:], seed, world, votes, annotators)


def test_every_method_meets_every_number_of_votes_and_the_ceiling_all_of_them(thinned):
    """A curve must have no gap, and gold labels need not be measured again for each number of votes."""
    found = list(thinned.cells("sentiment", ["aggnet", "true_labels"], 2))
    assert len(set(found)) == len({c.name for c in found}) == len(found) == 2 * (8 + 1)
    of_seed = [
        (c.votes_per_item, c.num_annotators) for c in found if c.seed == 1 and c.method == "aggnet"
    ]
    assert of_seed == [
        (None, None), (1, None), (2, None), (3, None), (5, None), (None, 10), (None, 30), (None, 100),
    ]  # fmt: skip
    ceiling = [c for c in found if c.method == "true_labels"]
    assert [(c.votes_per_item, c.num_annotators, c.seed) for c in ceiling] == [
        (None, None, 0), (None, None, 1),
    ]  # fmt: skip


def test_votes_are_thinned_and_items_are_not(thinned, monkeypatch):
    """Fewer items with as many votes would answer another question. The draw depends on the seed."""
    built = thinned.build(cell(thinned), SHORT, 0.0)
    monkeypatch.setattr(thinned, "build", lambda cell, flags, held_out: built)  # it takes a second
    whole = built.train
    one, again = (cell(thinned).recipe(SHORT, 0.0) for _ in range(2))
    assert {len(votes) for votes in whole["annotations"]} == {10}
    assert {len(votes) for votes in one.train["annotations"]} == {1}
    for name in ("annotators", "annotations"):
        assert np.array_equal(np.stack(one.train[name]), np.stack(again.train[name]))
    assert one.held_out is None
    assert len(one.train) == len(whole) == 1078
    assert np.array_equal(np.stack(one.train["features"]), np.stack(whole["features"]))
    assert one.test.column_names == ["label", "features"]
    other = cell(thinned, seed=1).recipe(SHORT, 0.0)
    assert not np.array_equal(
        np.stack(one.train["annotators"]), np.stack(other.train["annotators"])
    )
    few = cell(thinned, votes=None, annotators=2).recipe(SHORT, 0.0)
    assert few.train.features["annotators"].feature.num_classes == 2
    assert {len(votes) for votes in few.train["annotations"]} == {2}


@pytest.fixture(scope="module")
def results(load, thinned, tmp_path_factory):
    """Return results with one vote per item, few annotators, and a method without a forecaster."""
    folder = tmp_path_factory.mktemp("thinned")
    wanted = [
        cell(thinned, "max_mig_cross_fit"), cell(thinned, "max_mig_cross_fit", None, 2), cell(thinned, "majority_vote"),
    ]  # fmt: skip
    return folder, [load("benchmark").run_cell(one, SHORT, 0.0, folder) for one in wanted]


@pytest.mark.slow
def test_a_cell_says_what_was_left_and_how_it_is_run_again(thinned, results):
    """Two numbers of votes are two cells, not one that is measured twice."""
    folder, found = results
    by_votes, by_annotators, plain = found
    place = folder / "digits_high" / "max_mig_cross_fit-votes1-annotatorsall-seed0.json"
    assert json.loads(place.read_text()) == by_votes
    assert (by_votes["votes_per_item"], by_votes["num_annotators"]) == (1, None)
    assert (by_annotators["votes_per_item"], by_annotators["num_annotators"]) == (None, 2)
    assert by_votes["last"]["epoch"] == by_votes["best_on_test"]["epoch"] == 2
    assert by_votes["forecast_items"] == "train"
    assert by_votes["held_out_items"] == 0
    assert "forecast_accuracy" in by_votes["last"]
    assert "forecast_accuracy" not in plain["last"]
    assert by_votes["command"] == (
        "python recipes/benchmarks/thinned.py --worlds digits_high --methods max_mig_cross_fit --seeds 1 --num_train_epochs 2"
    )
    assert len(thinned.read_cells(folder)) == 3
    assert not thinned.run_missing(
        [cell(thinned, "max_mig_cross_fit")], SHORT, 0.0, folder, 1
    )  # it is there


def test_places_are_not_written(thinned, tmp_path):
    """A results file is public."""
    for name in ("labelme", "cifar10n"):
        assert thinned.WORLDS[name].flags(tmp_path) is None
        assert thinned.WORLDS[name].flags(None) is None
    (tmp_path / "cifar10n").mkdir()
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10n" / "CIFAR-10_human.pt").touch()
    flags = thinned.WORLDS["cifar10n"].flags(tmp_path)
    assert flags[::2] == ["--data_dir", "--human_file"]
    written = cell(thinned, world="cifar10n").command([*flags, *SHORT], 0.0)
    assert str(tmp_path) not in written
    assert "--seeds 1 --data_dir DIR --num_train_epochs 2" in written
    assert thinned.WORLDS["digits_low"].flags(None) == []


def made(method, votes, annotators, seed, world="sentiment", **last):
    """Return a cell as the recipe writes it."""
    return {
        "dataset": world, "method": method, "case": None, "expertise": None, "seed": seed, "world": world,
        "votes_per_item": votes, "num_annotators": annotators, "last": last,
    }  # fmt: skip


@pytest.fixture
def cells():
    return [
        *(made("aggnet", 1, None, seed, accuracy=0.5 + seed / 10) for seed in (0, 1)),
        made("aggnet", None, None, 0, accuracy=0.8, forecast_accuracy=0.9),
        made("aggnet", None, 30, 0, accuracy=0.6),
        made("majority_vote", 1, None, 0, accuracy=0.4),
        made("true_labels", None, None, 0, accuracy=0.95),
        made("aggnet", 2, None, 0, world="labelme", accuracy=0.7),
    ]


def test_tables_have_each_number_in_its_column(thinned, cells):
    """A number under another heading would reverse the conclusion."""
    numbers = thinned.curves(cells, "accuracy")
    by_votes = [
        [part.strip() for part in line.split("|")]
        for line in thinned.table(numbers, 0).splitlines()
    ]
    assert by_votes[0] == ["", "votes per item", "1", "2", "all", ""]
    assert by_votes[2:] == [
        ["", "LabelMe: AggNet", "", "70.0", "", ""],
        ["", "Sentiment: Majority vote", "40.0", "", "", ""],
        ["", "Sentiment: AggNet", "55.0 ± 7.1", "", "80.0", ""],
        ["", "Sentiment: True labels", "", "", "95.0", ""],
    ]
    by_annotators = thinned.table(numbers, 1).splitlines()
    assert [part.strip() for part in by_annotators[0].split("|")] == [
        "",
        "annotators",
        "30",
        "all",
        "",
    ]
    assert not any(
        "LabelMe" in line for line in by_annotators
    )  # of its annotators none was left out
    forecast = thinned.table(thinned.curves(cells, "forecast_accuracy"), 0)
    assert forecast.count("90.0") == 1


def test_picture_has_a_curve_for_each_method_and_is_the_same_each_time(thinned, cells, tmp_path):
    """A committed picture may change only when the results do."""
    pytest.importorskip("matplotlib")
    numbers = thinned.curves(cells, "accuracy")
    for name in ("a", "b"):
        thinned.picture(numbers, tmp_path / f"{name}.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    more = thinned.curves([*cells, made("crowd_layer", 1, None, 0, accuracy=0.7)], "accuracy")
    thinned.picture(more, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes() != (tmp_path / "a.png").read_bytes()


def test_recipe_runs_by_its_flags_and_leaves_out_what_is_not_there(
    load, thinned, monkeypatch, capsys, tmp_path
):
    """Runs the quick version in this process: one method, one seed, two epochs."""

    def here(wanted, flags, held_out, folder, jobs):
        for one in wanted:
            load("benchmark").run_cell(one, flags, held_out, folder)

    def typed(*flags):
        monkeypatch.setattr(
            sys, "argv", ["thinned.py", "--output_dir", str(tmp_path / "out"), *flags]
        )
        thinned.main()
        return capsys.readouterr().out

    monkeypatch.setattr(thinned, "run_missing", here)
    printed = typed("--worlds", "labelme", "digits_sparse", "--methods", "true_labels", *SHORT)
    assert "labelme is left out" in printed
    assert "Digits, sparse two (H): True labels" in printed
    typed("--collect", str(tmp_path / "all.json"))
    (found,) = thinned.read_cells(tmp_path / "all.json")
    assert (found["method"], found["world"], found["case"]) == (
        "true_labels",
        "digits_sparse",
        "sparse_two",
    )
    with pytest.raises(SystemExit):
        typed("--collect", str(tmp_path / "all.json"), *SHORT)


def test_page_shows_the_committed_results(thinned, root):
    """Numbers typed by hand go stale."""
    numbers = thinned.read_cells(thinned.RESULTS)
    page = (root / "docs" / "how_many_votes.md").read_text(encoding="utf-8")
    for by in (0, 1):
        assert thinned.table(thinned.curves(numbers, "accuracy"), by) in page
    assert thinned.PICTURE.is_file()
