"""The benchmark's figure: it shows exactly what the cells say."""

import sys
from xml.etree import ElementTree

import pytest

from tests.recipes.benchmarks.cells import claimed, real, small


@pytest.fixture
def numbers(load):
    """Import the module from its folder."""
    return load("benchmark_cells")


@pytest.fixture
def drawing(load):
    """Import the module from its folder."""
    return load("benchmark_figure")


def written(file):
    return [element.text for element in ElementTree.parse(file).iterfind(".//{*}text")]


@pytest.mark.slow
def test_figure_names_every_method_and_what_is_missing(drawing, tmp_path):
    """A bar of height zero for something that was not run would look like a failure."""
    pytest.importorskip("matplotlib")
    from PIL import Image

    places = drawing.figure([*small(), *real()], tmp_path / "new" / "figure.svg")
    png, svg = places
    assert [place.name for place in places] == ["figure.png", "figure.svg"]
    with Image.open(png) as picture:
        picture.load()
        assert picture.width == pytest.approx(1440, abs=2)
    words = written(svg)
    for word in ("Majority vote", "Doctor Net", "Max-MIG", "True labels", "not measured"):
        assert words.count(word) == 1
    assert words.count("4.3(L)") == 1
    assert words.count("real crowd") == 1
    assert "Digits" in words
    assert "LabelMe (axis from 70)" in words
    assert "Crowd Layer, eq. 2 start" in words  # the paper uses both starts


def test_figure_of_what_is_complete_marks_nothing(drawing, tmp_path):
    """A legend for a mark that never appears sends the reader looking for it."""
    pytest.importorskip("matplotlib")
    words = written(drawing.figure(claimed(0.9), tmp_path / "figure")[1])
    assert "AggNet" in words
    assert not {"not measured", "Lines on the bars: standard deviation over seeds"} & set(words)


def test_figure_takes_other_methods(drawing, numbers, tmp_path):
    """Every method needs a colour, and a misspelt name must not become a row of crosses."""
    pytest.importorskip("matplotlib")
    methods = [method for method in numbers.METHODS if method != "true_labels"]
    words = written(drawing.figure(small(), tmp_path / "figure", methods=methods)[1])
    assert {numbers.METHODS[method] for method in methods} <= set(words)
    styles = drawing._styles(methods)
    assert len(set(styles.values())) == len(methods) > 15
    for wrong in (["maxmig"], ["true_labels"], []):
        with pytest.raises(ValueError, match="`methods` must be some of majority_vote,"):
            drawing.figure(small(), tmp_path / "figure", methods=wrong)
    with pytest.raises(ValueError, match=r"`path` must end in \.png, \.svg or neither"):
        drawing.figure(small(), tmp_path / "figure.pdf")


def test_figure_is_the_same_each_time(drawing, tmp_path):
    """With a date in the file, each run would produce a change to commit."""
    pytest.importorskip("matplotlib")
    first, second = (
        [place.read_bytes() for place in drawing.figure(small(), tmp_path / name / "figure")]
        for name in ("first", "second")
    )
    assert first == second


def test_figure_without_matplotlib_says_what_to_install(drawing, tmp_path, monkeypatch):
    """Matplotlib is optional."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    with pytest.raises(ImportError, match=r"hf_maxmig\[plots\]"):
        drawing.figure(small(), tmp_path / "figure")
