"""What measurements write: a command that can be typed, means that mention missing figures, complete files."""

import doctest
import json

import pytest


@pytest.fixture
def results_file(load):
    return load("results_file")


def test_command_names_a_script_that_is_there(results_file, root):
    """A results file whose command cannot be typed proves nothing."""
    command = results_file.command(results_file.__file__, ["--seeds", "3"])
    assert command == "python recipes/benchmarks/results_file.py --seeds 3"
    assert (root / command.split()[1]).is_file()


def test_examples_are_what_comes_out(results_file):
    """Nothing else runs the doctests of recipes."""
    failed, tried = doctest.testmod(results_file)
    assert (failed, tried) == (0, 4)


def test_seeds_without_a_figure_are_left_out_of_its_mean(results_file):
    """Counted as zero, a figure that was not measured would be a failure."""
    summary = results_file.over_seeds([{"a": None, "b": 0.33333}, {"a": 0.5, "b": None}])
    assert summary["mean"] == {"a": 0.5, "b": 0.3333}
    assert summary["by_seed"] == {"a": [None, 0.5], "b": [0.3333, None]}
    assert results_file.over_seeds([{"a": None}])["mean"] == {"a": None}


def test_results_are_whole_after_each_run(results_file, tmp_path, capsys):
    """A run that is stopped while it writes must keep its earlier results."""
    file = tmp_path / "new" / "results.json"
    results_file.write_so_far(file, {"done": 1}, "one is done")
    assert json.loads(file.read_text(encoding="utf-8")) == {"done": 1}
    assert file.read_text(encoding="utf-8") == '{\n  "done": 1\n}\n'
    assert capsys.readouterr().out == "one is done\n"
    with pytest.raises(TypeError):
        results_file.write_so_far(file, {"done": object()}, "two are done")
    assert json.loads(file.read_text(encoding="utf-8")) == {"done": 1}
    assert capsys.readouterr().out == ""
    assert [path.name for path in file.parent.iterdir()] == ["results.json"]
