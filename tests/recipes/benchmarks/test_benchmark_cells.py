"""The benchmark's numbers: each cell is counted once, and unreadable files are named."""

import json

import pytest

from hf_maxmig.peers import PEERS
from tests.recipes.benchmarks.cells import cell, small


@pytest.fixture
def numbers(load):
    """Import the module from its folder."""
    return load("benchmark_cells")


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_read_cells_takes_folders_files_and_lists(numbers, tmp_path):
    """A committed list and the folder of a run must both be read as one set of cells."""
    one, *others = small()
    write(tmp_path / "run" / "digits" / "one.json", one)
    file = write(tmp_path / "results" / "digits.json", others)
    assert numbers.read_cells(tmp_path / "run", file) == [one, *others]
    assert numbers.read_cells(file, file) == others


def test_read_cells_passes_over_other_results_in_a_folder(numbers, tmp_path):
    """The folder of results holds other files too, but a file that was named by mistake must give an error."""
    others = [
        write(tmp_path / "speed.json", {"rows": [], "command": "python recipes/benchmarks/benchmark_speed.py"}),
        write(tmp_path / "numbers.json", [1, 2]),
    ]  # fmt: skip
    write(tmp_path / "digits.json", small())
    write(tmp_path / ".saving-x" / "digits.json", {})
    (tmp_path / ".saving-x" / "half.json").write_text('{"method": "max')
    assert numbers.read_cells(tmp_path) == small()
    for file in others:
        with pytest.raises(ValueError, match=f"{file.name} must be a cell of the benchmark"):
            numbers.read_cells(file)


def test_read_cells_names_both_files_of_a_duplicate(numbers, tmp_path):
    """A cell that is counted twice makes the standard deviation too small."""
    write(tmp_path / "a.json", small()[0])
    write(tmp_path / "b.json", small()[:2])
    with pytest.raises(ValueError, match=r"digits, max_mig, .*a\.json and in .*b\.json"):
        numbers.read_cells(tmp_path)


def test_read_cells_names_what_it_cannot_read(numbers, tmp_path):
    """If a broken file were skipped, the table would silently have one seed less."""
    with pytest.raises(FileNotFoundError, match="nothing is there"):
        numbers.read_cells(tmp_path / "none")
    file = tmp_path / "half.json"
    file.write_text('{"method": "max')
    with pytest.raises(ValueError, match=r"half\.json must be JSON"):
        numbers.read_cells(tmp_path)
    write(file, [small()[0], {"method": "aggnet"}])
    with pytest.raises(ValueError, match=r"half\.json must be a cell .* 1 of 2 without"):
        numbers.read_cells(tmp_path)
    write(file, {**small()[0], "case": "random"})
    with pytest.raises(
        ValueError, match=r"half\.json: case and expertise must be one of .*'random'"
    ):
        numbers.read_cells(tmp_path)


def test_paper_has_all_rows(numbers):
    """In a table of a hundred numbers, nobody notices a missing row or number."""
    rows = [
        row
        for name in ("dogs_vs_cats", "cifar10", "luna16")
        for measure in numbers.PAPER[name].values()
        for row in measure.values()
    ]
    assert len(rows) == 12
    assert {len(row) for row in rows} == {6}
    assert len(numbers.PAPER["labelme"]["accuracy"]) == 5
    means = [number.mean for row in rows for number in row]
    assert sum(means) == pytest.approx(5718.96)


def test_every_rival_has_a_name_of_its_own(numbers):
    """Two rows with the same name cannot be distinguished."""
    names = [numbers.METHODS[method] for method in ("max_mig", *PEERS)]
    assert len(set(names)) == len(names)
    assert not [name for name in names if "_" in name]


def test_real_and_simulated_crowds_of_one_data_set_are_refused(numbers):
    """One of the two would silently be left out of the table."""
    cells = [cell("max_mig", accuracy=0.5), *small()]
    with pytest.raises(ValueError, match="`cells` of digits must all have a case"):
        numbers.results(cells)
    with pytest.raises(ValueError, match="`cells` must hold at least one cell"):
        numbers.results([])


def test_crowds_beyond_the_paper_stand_in_a_table_of_their_own(numbers):
    """Otherwise six columns would be empty, or the paper's table would have fourteen columns."""
    beyond = [
        cell("max_mig", "tiring", "low", accuracy=0.5),
        cell("max_mig", "sparse_one", "high", accuracy=0.7),
        cell("true_labels", accuracy=0.97),
    ]
    (alone,) = numbers.results(beyond)
    assert alone.crowds == (("sparse_one", "high"), ("tiring", "low"))
    assert [number.mean for number in alone.row("max_mig", "accuracy")] == pytest.approx([70, 50])
    assert alone.ceiling.mean == pytest.approx(97)
    assert [numbers.crowd_name(crowd) for crowd in alone.crowds] == ["sparse one (H)", "tiring (L)"]
    paper, again = numbers.results([*small(), *beyond[:2]])
    assert paper == numbers.results(small())[0]
    assert numbers.dataset_name(again.dataset) == "Digits, more crowds"
    assert again.numbers["true_labels", numbers.REAL, "accuracy"].mean == pytest.approx(97.5)
    with pytest.raises(ValueError, match="must all have a case and expertise or none"):
        numbers.results([cell("max_mig", accuracy=0.7), *beyond])
