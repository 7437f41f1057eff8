"""The page of rivals: whose figures stand beside Max-MIG's."""

import pytest

from hf_maxmig.peers import PEERS
from tests.recipes.benchmarks.cells import cell


@pytest.fixture
def rivals(load):
    """Import the module from its folder."""
    return load("benchmark_rivals")


def row(method, *accuracies, start=0, **place):
    return [
        cell(method, seed=start + i, accuracy=a, ece=1 - a, **place)
        for i, a in enumerate(accuracies)
    ]


def lines_of(table):
    return [[entry.strip() for entry in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_best_of_each_kind_stands_beside_max_mig(rivals):
    """A rival of the wrong kind, or not the best one, would make the comparison look better than it is."""
    crowd = {"case": "sparse_one", "expertise": "low"}
    cells = [
        *row("max_mig", 0.90, 0.92, dataset="labelme"),
        *row(
            "max_mig_vote_share", 0.99, 0.99, dataset="labelme"
        ),  # another start of ours: no column
        *row("conal", 0.91, 0.89, dataset="labelme"),
        *row("madl", 0.88, 0.90, dataset="labelme"),
        *row("aggnet", 0.80, 0.84, dataset="labelme"),
        *row("mace", 0.70, 0.84, dataset="labelme"),
        *row("true_labels", 0.95, 0.95, dataset="labelme"),
        *row("max_mig", 0.90, dataset="music"),  # no rival since 2019
        *row("aggnet", 0.85, dataset="music"),
        *row("geo_w", 0.70, **crowd),
        *row("max_mig_cross_fit", 0.60, **crowd),
    ]
    accuracy, table, errors, calibration = rivals.beside_best(cells).split("\n\n")
    assert accuracy == "**Accuracy in percent**"
    heading, _, *lines = lines_of(table)
    assert heading == ["crowd", *rivals.COLUMNS, "gold labels"]
    assert lines == [
        ["Digits, more crowds, sparse one (L)", "", "60.0", "**70.0** GeoCrowdNet-W", "", ""],
        ["LabelMe", "**91.0 ± 1.4**", "", "90.0 ± 1.4 † CoNAL", "82.0 ± 2.8 AggNet", "95.0 ± 0.0"],
    ]  # fmt: skip
    assert errors == "**Calibration error**"
    assert lines_of(calibration)[3][3] == "0.100 ± 0.014 † CoNAL"  # the lowest


def test_waum_makes_no_rival_of_max_mig_and_no_earlier_method_of_a_rival(rivals):
    """Max-MIG on the items that WAUM leaves would otherwise be the best rival, and beat itself."""
    cells = [
        *row("max_mig", 0.90, dataset="labelme"),
        *row("max_mig_waum", 0.95, dataset="labelme"),
        *row("majority_vote_waum", 0.85, dataset="labelme"),
        *row("majority_vote", 0.80, dataset="labelme"),
    ]
    *_, line = lines_of(rivals.beside_best(cells).split("\n\n")[1])
    assert line == ["LabelMe", "**90.0**", "85.0 Majority vote + WAUM", "80.0 Majority vote"]


def test_without_a_rival_since_2019_there_is_nothing_to_show(rivals):
    assert (
        rivals.beside_best(
            [*row("max_mig", 0.9, dataset="labelme"), *row("aggnet", 0.8, dataset="labelme")]
        )
        == ""
    )


def test_every_rival_since_2019_has_a_name(rivals, load):
    """A key that was misspelt would never be found among the cells."""
    assert {*rivals.SINCE_2019} < {*load("benchmark_cells").METHODS}


def test_page_of_rivals_has_a_line_for_each_rival(root):
    """A method that is not on the page is found by nobody; crowd-kit's stand for each other."""
    page = (root / "docs" / "rivals.md").read_text(encoding="utf-8")
    table = page.partition("## The methods")[2].partition("\n## ")[0]
    crowd_kit = {name for name, (_, settings) in PEERS.items() if "algorithm" in settings}
    assert len(crowd_kit) > 5
    assert [name for name in PEERS if name not in crowd_kit and f"`{name}`" not in table] == []
    assert any(f"`{name}`" in table for name in crowd_kit)
