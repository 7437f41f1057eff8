"""Published figures beside ours: the same method, and the epoch that is nearest to theirs."""

import pytest

from tests.recipes.benchmarks.cells import cell


@pytest.fixture
def published(load):
    """Import the module from its folder."""
    return load("benchmark_published")


def shown(text):
    table, _, said = text.partition("\n\n")
    rows = [[entry.strip() for entry in line.strip("|").split("|")] for line in table.splitlines()]
    return {(row[0], row[1], row[2]): (row[3], row[4]) for row in rows[2:]}, said


def test_an_epoch_that_gold_labels_chose_never_stands_beside_our_last(published):
    """The best of many epochs beside the last one makes the other program look better by a point or two."""
    cells = [
        cell("conal", dataset="labelme", seed=seed, accuracy=accuracy)
        for seed, accuracy in enumerate((0.80, 0.82))
    ]
    cells.append(
        cell("geo_f", dataset="digits", case="independent", expertise="high", accuracy=0.1)
    )
    found, said = shown(published.beside_published(cells))
    dino, vgg = list(published.PUBLISHED)[:2]
    assert found["CoNAL", dino, "last"] == ("83.7 ± 0.4", "81.0 ± 1.4")
    assert found["CoNAL", vgg, "gold validation"] == ("87.12", "82.0 ± 1.4")  # the best test epoch
    assert found["Max-MIG", vgg, "best on test"] == ("86.42 ± 0.36", "")
    assert found["GeoCrowdNet-F", dino, "last"] == ("85.4 ± 0.5", "")  # of another data set
    assert said == (
        "Of 1 methods whose last epoch is published, more than 1 point lower here: CoNAL; "
        "more than 1 point higher: none."
    )


def test_gold_labels_are_compared_and_not_counted_as_a_method(published):
    cells = [cell("true_labels", dataset="labelme", accuracy=0.9)]
    found, said = shown(published.beside_published(cells))
    assert ("93.9 ± 0.3", "90.0") in found.values()
    assert said == ""
    elsewhere = [
        cell("true_labels", dataset="music", accuracy=0.75),
        cell("conal", dataset="music", accuracy=0.5),
    ]
    _, said = shown(published.beside_published([*cells, *elsewhere]))
    assert said == (
        "Music: annot-mix is published with 73.8 %, where gold labels lead to 79.6 %; here gold labels lead to 75.0 %."
    )


def test_published_figures_are_of_methods_here(published, load):
    """A misspelt key would leave a blank that looks like something that was not measured."""
    numbers = load("benchmark_cells")
    rows = [row for some in published.PUBLISHED.values() for row in some]
    assert len({(row.method, row.epoch, row.source) for row in rows}) == len(rows) > 15
    for row in rows:
        assert row.method.removesuffix(numbers.AFTER_WAUM) in numbers.METHODS
        assert row.epoch in (published.LAST, published.VALIDATION, published.TEST)
        assert 80 < row.mean < 95
    paper = numbers.PAPER["labelme"]["accuracy"]["max_mig"][0].mean
    assert [row.mean for row in rows if row.method == "max_mig"] == [paper]
