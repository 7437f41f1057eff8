"""Who is first, by how much, and who is level with the first."""

import doctest

import pytest

from tests.recipes.benchmarks.cells import cell, real, small


@pytest.fixture
def numbers(load):
    """Import the module from its folder."""
    return load("benchmark_cells")


@pytest.fixture
def ranks(load):
    """Import the module from its folder."""
    return load("benchmark_ranks")


def test_standard_error_is_paired_where_the_seeds_are_the_same(numbers):
    """A seed draws the crowd of both methods, so what they share is no uncertainty of their difference."""
    one = numbers.average({0: 60.0, 1: 80.0, 2: 100.0})
    other = numbers.average({0: 58.0, 1: 77.0, 2: 96.0})
    assert numbers.standard_error(one, other) == pytest.approx(1 / 3**0.5)
    assert numbers.standard_error(other, one) == pytest.approx(1 / 3**0.5)
    assert not numbers.within_error(one, other)
    shifted = numbers.average({3: 58.0, 4: 77.0, 5: 96.0})
    assert numbers.standard_error(one, shifted) == pytest.approx(((400 + 361) / 3) ** 0.5)
    assert numbers.within_error(one, shifted)


def test_equal_numbers_of_every_seed_are_level(numbers):
    """Where all fall to one class, differences have no spread: 0 must count as within 0."""
    one, other = (numbers.average({0: 8.6, 1: 8.6}) for _ in range(2))
    assert numbers.within_error(one, other)


def test_one_seed_has_no_standard_error(numbers):
    """A difference whose spread nobody knows must not be called small."""
    one, two = numbers.average({0: 80.0}), numbers.average({0: 80.1, 1: 70.0})
    for pair in ((one, two), (two, one), (one, one), (two, numbers.Number(80.0, 5.0, 5))):
        assert numbers.standard_error(*pair) is None
        assert not numbers.within_error(*pair)


def test_worlds_are_those_with_a_method_and_list_who_is_there(ranks, numbers):
    """Empty worlds would count as ones in which everybody is missing."""
    cells = [*small(), *real(), cell("true_labels", dataset="music", accuracy=0.7)]
    found = ranks.worlds(numbers.results(cells))
    assert [(world.group, world.name) for world in found] == [
        ("Digits", "4.1(H)"), ("Digits", "4.2(H)"), ("Digits", "4.3(L)"), ("Real crowds", "LabelMe"),
    ]  # fmt: skip
    first = found[0]
    assert list(first.numbers) == ["majority_vote", "crowd_layer_vote_share", "max_mig"]
    assert first.ceiling.mean == pytest.approx(97.5)
    assert [first.rank(method) for method in first.numbers] == [1, 3, 1]
    assert first.distance("crowd_layer_vote_share") == pytest.approx(36)
    assert not ranks.worlds(numbers.results(cells), "nll")


def test_lower_is_better_for_what_is_an_error(ranks, numbers):
    """The worst likelihood, taken for the best, would turn every table upside down."""
    cells = [
        cell(method, seed=seed, dataset="labelme", accuracy=0.9, nll=value + seed / 100)
        for method, value in (("max_mig", 0.3), ("madl", 0.4), ("conal", 0.4))
        for seed in (0, 1)
    ]
    (world,) = ranks.worlds(numbers.results(cells), "nll")
    assert {method: world.rank(method) for method in world.numbers} == {
        "max_mig": 1, "madl": 2, "conal": 2,
    }  # fmt: skip
    assert world.distance("madl") == pytest.approx(0.1)
    assert not world.level("madl")  # the same distance with each seed
    assert world.ceiling is None


def test_a_method_is_sorted_by_where_it_was_measured(ranks, numbers):
    """A sum of ranks or distances would put on top whoever was left out of the hard worlds."""
    average = numbers.average

    def world(**means):
        return ranks.World("", "", {name: average({0: mean}) for name, mean in means.items()})

    easy, hard = world(a=90.0, b=89.0, c=88.0), world(a=50.0, b=10.0)
    assert ranks.by_wins([easy, hard]) == ["a", "b", "c"]
    assert ranks.by_wins([world(a=1.0), easy]) == ["a", "b", "c"]
    assert ranks.by_wins([world(z=1.0)]) == ["z"]


def lines_of(table):
    """Return the entries of each line by its first."""
    rows = [[entry.strip() for entry in line.strip("|").split("|")] for line in table.splitlines()]
    return {first: rest for first, *rest in rows}


def test_ranks_are_means_over_the_crowds_of_a_data_set_and_blank_if_one_is_missing(ranks):
    """The mean over the easy crowds alone would beat that over all."""

    def both(method, first, second=None, **measures):
        made = [cell(method, "independent", "high", accuracy=first, **measures)]
        if second is not None:
            made.append(cell(method, "correlated", "low", accuracy=second, **measures))
        return made

    cells = [
        *both("max_mig", 0.90, 0.80, nll=0.3),
        *both("aggnet", 0.92, 0.60, nll=0.5),
        *both("madl", 0.95),
        cell("max_mig", dataset="labelme", accuracy=0.9),
        cell("max_mig", dataset="labelme", accuracy=0.92, seed=1),
        cell("conal", dataset="labelme", accuracy=0.92),
        cell("conal", dataset="labelme", accuracy=0.896, seed=1),
        cell("true_labels", dataset="labelme", accuracy=0.99),
    ]
    accuracy, table, nll, likelihoods = ranks.ranks_in_short(cells).split("\n\n")
    assert accuracy == "**Accuracy: rank, and points below the first**"
    assert lines_of(table) == {
        "method": ["Digits (2)", "LabelMe"],
        "-" * len(table.splitlines()[1].split("|")[1]): [
            r.strip() for r in table.splitlines()[1].strip("|").split("|")[1:]
        ],
        "MaDL": ["", ""],
        "Max-MIG": ["**2.0 (2.5)**", "**1 (0.0)**"],
        "AggNet": ["**2.0 (11.5)**", ""],
        "CoNAL": ["", "2 (0.2) †"],
        "methods": ["3", "2"],
    }
    assert nll.startswith("**Negative log-likelihood")
    assert lines_of(likelihoods)["AggNet"] == ["2.0 (0.200)"]
    by_crowd = ranks.ranks_by_crowd(cells).split("\n\n")
    assert [text for text in by_crowd if text.startswith("**")] == [
        "**Digits: Accuracy: rank, and points below the first**",
        "**Digits: Negative log-likelihood: rank, and nats above the first**",
    ]
    found = lines_of(by_crowd[1])
    assert found["MaDL"] == ["**1 (0.0)**", ""]
    assert found["Max-MIG"] == ["3 (5.0)", "**1 (0.0)**"]


def test_examples_in_the_docstrings_run(load):
    """Nothing else runs the doctests of recipes."""
    for name in ("benchmark_cells", "benchmark_ranks", "benchmark_overview"):
        failed, tried = doctest.testmod(load(name))
        assert not failed
        assert tried > 1
