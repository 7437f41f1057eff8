"""The pictures of all methods: each method and world is there, and what was not measured is not made up."""

import contextlib
import itertools
import sys

import pytest

from tests.recipes.benchmarks.cells import cell, real, small

pytest.importorskip("matplotlib")


@pytest.fixture
def numbers(load):
    """Import the module from its folder."""
    return load("benchmark_cells")


@pytest.fixture
def overview(load):
    """Import the module from its folder."""
    return load("benchmark_overview")


@pytest.fixture
def drawn(overview, monkeypatch):
    """Keep the figures that are written."""
    figures, drawing = [], overview._drawing

    @contextlib.contextmanager
    def kept(*place):
        with drawing(*place) as figure:
            figures.append(figure)
            yield figure

    monkeypatch.setattr(overview, "_drawing", kept)
    return figures


def texts(figure):
    return [text for axes in figure.axes for text in axes.texts]


def words(figure):
    return [text.get_text() for text in texts(figure)]


def many(numbers):
    """Return all methods in many worlds, with holes: simulated crowds, those beyond the paper's, and real ones."""
    methods = [*numbers.METHODS, "a_later_method", "aggnet_waum"]
    crowds = [*numbers.CROWDS, *numbers.BEYOND]
    places = [("digits", crowd) for crowd in crowds]
    places += [("luna16", crowd) for crowd in list(numbers.CROWDS)[:2]]
    places += [(name, numbers.REAL) for name in ("labelme", "sentiment", "cifar10n_features")]
    return [
        cell(method, *crowd, seed=seed, dataset=dataset, accuracy=(7 * i + 13 * j + seed) % 101 / 101)
        for i, method in enumerate(methods)
        for j, (dataset, crowd) in enumerate(places)
        for seed in range(1 + i % 3)
        if (i + 2 * j) % 5 and (method != "true_labels" or crowd == numbers.REAL)
    ]  # fmt: skip


@pytest.mark.slow
def test_every_method_and_world_is_in_the_table(overview, drawn, numbers, tmp_path):
    """A method without a line is forgotten; a line that is cut off or tiny cannot be read in print."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    cells = many(numbers)
    overview.table_in_colours(cells, tmp_path / "new" / "table.png")
    (figure,) = drawn
    found = words(figure)
    some = overview.worlds(numbers.results(cells))
    parts = overview.bands(some)
    assert len(parts) > 1
    assert sum(map(len, parts)) == len(some) == 14 + 2 + 3
    for method in {method for world in some for method in world.numbers}:
        there = [band for band in parts if any(method in world.numbers for world in band)]
        legend = numbers.method_name(method) in overview.MARKS
        assert found.count(numbers.method_name(method)) == len(there) + legend, method
    assert found.count("4.3(L)") == 1
    missing = sum(
        method not in world.numbers
        for band in parts
        for world in band
        for method in {method for other in band for method in other.numbers}
    )
    assert found.count("·") == missing > 20
    page, renderer = figure.bbox, FigureCanvasAgg(figure).get_renderer()
    for text in texts(figure):
        assert text.get_fontsize() >= 6.5, text
        box = text.get_window_extent(renderer)
        inside = page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
        assert inside, (text, box, page)
    assert figure.get_size_inches()[0] == 7.2


def test_table_marks_the_first_and_those_level_with_it(overview, drawn, tmp_path):
    """A frame around everything, or around the best of chance, would claim what the seeds do not show."""

    def row(method, *accuracies):
        return [
            cell(method, seed=i, dataset="labelme", accuracy=a) for i, a in enumerate(accuracies)
        ]

    cells = [
        *row("max_mig", 0.90, 0.92, 0.94),
        *row("aggnet", 0.92, 0.90, 0.93),  # 0.3 points below, and the error is 1.2
        *row("conal", 0.89, 0.91, 0.93),  # a point below with each seed
        *row("madl", 0.918),  # of one seed nothing is known
    ]  # fmt: skip
    overview.table_in_colours(cells, tmp_path / "table.png")
    (axes,) = drawn[0].axes
    cells_of_table = [p for p in axes.patches if p.get_y() > 1.3]
    framed = [p.get_linewidth() > 0 for p in cells_of_table]
    assert framed == [True, False, True, False]  # Max-MIG, MaDL, AggNet, CoNAL
    figures = [t for t in axes.texts if t.get_text() in ("92.0", "91.8", "91.7", "91.0")]
    assert [t.get_text() for t in figures] == ["92.0", "91.8", "91.7", "91.0"]
    assert [t.get_fontweight() == "bold" for t in figures] == [True, False, False, False]
    lines = [
        t.get_text() for t in axes.texts if t.get_text() in ("Max-MIG", "MaDL", "AggNet", "CoNAL")
    ]
    assert lines[-4:] == ["Max-MIG", "MaDL", "AggNet", "CoNAL"]


def test_families_and_distances_are_told_apart_without_colour(overview, numbers):
    """One in twelve men does not see red and green apart, and a printer may have no colour at all."""
    from matplotlib.colors import to_rgb

    assert {*overview.MARKS} == {*numbers.FAMILIES, numbers.OTHERS}
    markers = [marker for _, marker in overview.MARKS.values()]
    assert len({*markers}) == len(markers)
    light = [
        sum(map(float.__mul__, to_rgb(c), (0.2126, 0.7152, 0.0722))) for _, c in overview.STEPS
    ]
    assert all(before - after > 0.02 for before, after in itertools.pairwise(light))
    members = [method for row in numbers.FAMILIES.values() for method in row]
    assert sorted(members) == sorted({*numbers.METHODS} - {numbers.CEILING})


def test_ranking_is_sorted_and_shows_deviations(overview, drawn, numbers, tmp_path):
    """Read from top to bottom, the accuracies must fall, each with its own name beside it."""
    some = overview.by_group(overview.worlds(numbers.results([*small(), *real()])))
    overview.ranking(some["Digits"], tmp_path / "digits.png")
    (figure,) = drawn
    assert [text.get_text() for text in figure.texts] == [
        "Digits, 4.1(H)", "Digits, 4.2(H)", "Digits, 4.3(L)",
    ]  # fmt: skip
    first = figure.axes[1]
    assert [text.get_text() for text in first.texts] == [
        "Majority vote", "91.0", "Max-MIG", "91.0", "Crowd Layer, eq. 2 start", "55.0",
    ]  # fmt: skip
    assert len(first.containers) == 3  # deviations
    assert len(figure.axes[3].containers) == 0  # of one seed there is none
    low, high = first.get_xlim()
    assert low < 55.0 - 7.1
    assert high > 97.5
    overview.ranking(some["Real crowds"], tmp_path / "real.png")
    assert drawn[1].texts[0].get_text() == "LabelMe"


def test_no_name_of_the_ranking_is_cut_off(overview, drawn, numbers, tmp_path):
    """Long names ran out of their panel, and were cut at the edge of the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    group = max(numbers.DATASETS.values(), key=len)
    methods = sorted({*numbers.METHODS, "max_mig_cross_fit_waum"} - {numbers.CEILING})
    row = {method: numbers.Number(80.0, 1.0, 3) for method in methods}
    some = [overview.World(overview.REAL_CROWDS, group, row)]
    overview.ranking(some, tmp_path / "one.png")
    (figure,) = drawn
    for text in [*figure.texts, *figure.axes[1].texts]:
        box = text.get_window_extent(FigureCanvasAgg(figure).get_renderer())
        assert box.x0 >= 0
        assert box.x1 <= overview._PANEL * figure.dpi, text.get_text()


def test_crowds_of_low_expertise_stand_beside_those_of_high(overview):
    """Six panels in the order of the paper's table would put 4.3(H) beside 4.1(L)."""
    names = ["4.1(H)", "4.2(H)", "4.1(L)", "4.2(L)", "LabelMe"]
    some = [overview.World("", name, {}) for name in names]
    paired = [world.name for world in overview._in_pairs(some)]
    assert paired == ["4.1(H)", "4.1(L)", "4.2(H)", "4.2(L)", "LabelMe"]


def test_a_group_wider_than_the_page_goes_on_in_the_next_band(overview):
    some = [overview.World("wide", str(i), {}) for i in range(2 * overview.MOST_COLUMNS + 1)]
    assert [len(band) for band in overview.bands(some)] == [overview.MOST_COLUMNS] * 2 + [1]


@pytest.mark.slow
def test_pictures_are_the_same_each_time(overview, numbers, tmp_path):
    """With a date in the file, each run would produce a change to commit."""
    for draw, what in (
        (overview.table_in_colours, small()),
        (overview.ranking, overview.worlds(numbers.results(small()))),
    ):
        places = [tmp_path / name for name in ("first.png", "second.png")]
        for place in places:
            draw(what, place)
        first, second = (place.read_bytes() for place in places)
        assert first == second
        assert first.startswith(b"\x89PNG")


def test_gold_labels_alone_are_no_table(overview, tmp_path):
    with pytest.raises(ValueError, match="must hold the accuracy of a method of the last epoch"):
        overview.table_in_colours([cell("true_labels", accuracy=0.9)], tmp_path / "table.png")
    assert not list(tmp_path.iterdir())


def test_pictures_without_matplotlib_say_what_to_install(overview, tmp_path, monkeypatch):
    """Matplotlib is optional."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    with pytest.raises(ImportError, match=r"hf_maxmig\[plots\]"):
        overview.table_in_colours(small(), tmp_path / "table.png")
