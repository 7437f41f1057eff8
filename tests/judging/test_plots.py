"""Pictures that stand in a page: well-formed, in its colours, and of the numbers given."""

import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from hf_maxmig.judging.copies import Copy
from hf_maxmig.judging.plots import (
    _places,
    agreement_plot,
    confusion_plot,
    gain_plot,
    information_plot,
    legible,
    reliability_plot,
    short,
)
from hf_maxmig.metrics import calibration
from tests.children import needs_fork, run

pytest.importorskip("matplotlib")

NAMES = [
    "<script>alert(1)</script>",
    r"$\frac{1}$",
    "注釈者",
    "a\u202eb\x00\ud800",
    "]]> & \"q\" 'q'",
    "x" * 300,
    "",
]


def pictures(names):
    """One of each kind, by name."""
    number = len(names)
    rng = np.random.default_rng(0)
    table = rng.dirichlet(np.ones(number), size=number)
    pairs = [
        Copy(0, 1, 20, 19, 8.0, 1e-6),
        Copy(2, 1, 20, 18, 8.0, 1e-5),
        Copy(3, 4, 9, 9, 4.0, 1e-3),
    ]
    right = rng.random(50) < 0.7
    return {
        "information": information_plot(
            np.arange(1, number + 1) * 10, rng.random(number), np.arange(number) % 3, names
        ),
        "map-0": confusion_plot("map-0", table, table * 10, names)[0],
        "map-1": confusion_plot("map-1", table[:2, :2], table[:2, :2], names[:2])[0],
        "agreement": agreement_plot(pairs, names),
        "gain": gain_plot({"training": ([1, 2], [0.1, 0.4]), "evaluation": ([2], [0.3])}, "epoch"),
        "reliability": reliability_plot({"classifier": calibration(rng.random(50), right)}),
    }


@pytest.fixture(scope="module")
def hostile():
    """The pictures of all of `NAMES`."""
    return pictures(NAMES)


def test_pictures_of_hostile_names_are_the_elements_of_plain_ones(hostile):
    """A name that becomes a tag runs on the reader's machine, in a file that is passed on."""
    plain = pictures([f"name {i}" for i in range(len(NAMES))])
    assert "&lt;script" in "".join(hostile.values())
    for name, text in hostile.items():
        tags = {element.tag for element in ElementTree.fromstring(text).iter()}
        assert tags == {element.tag for element in ElementTree.fromstring(plain[name]).iter()}
        assert tags <= {"svg", "g", "path", "defs", "use", "text", "clipPath", "rect"}
        text.encode("utf-8")


def test_names_reach_the_picture_as_text(hostile):
    """Read as mathematics a dollar sign is an error; as outlines, Japanese would be boxes."""
    for text in (hostile[name] for name in ("information", "map-0", "agreement")):
        written = {element.text for element in ElementTree.fromstring(text).iter("text")}
        assert written & {NAMES[1]}
        assert written & {NAMES[2]}


def test_ids_are_unique_across_a_page(hostile):
    """Two pictures with one id clip or mark each other's lines."""
    page = "".join(hostile.values())
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids)) > 10
    used = re.findall(r'(?:href="|url\()#([^")]*)', page)
    assert used
    assert set(used) <= set(ids)


def test_pictures_take_the_colours_of_the_page(hostile):
    """A colour of their own may not be seen in the dark."""
    for text in hostile.values():
        root = ElementTree.fromstring(text)
        assert not re.search("#[0-9a-f]{6}", " ".join(e.get("style", "") for e in root.iter()))
        assert "var(--ink)" in text
        assert root.get("role") == "img"
        assert len(root.get("aria-label")) > 10
        assert "http" not in text


def test_pictures_are_the_same_each_time_whatever_the_user_has_set(hostile):
    """Random ids or a date make every page differ; a user's own style must neither enter nor be lost."""
    import matplotlib

    with matplotlib.rc_context({"text.color": "red", "svg.fonttype": "path", "axes.grid": True}):
        before = dict(matplotlib.rcParams)
        assert pictures(NAMES) == hostile
        assert dict(matplotlib.rcParams) == before


def draw():
    before = "matplotlib.pyplot" in sys.modules
    gain_plot({"a": ([1], [2])}, "step")
    print(before, "matplotlib.pyplot" in sys.modules)


@pytest.mark.slow
@needs_fork
def test_drawing_leaves_pyplot_alone(tmp_path):
    """The pyplot module chooses a backend and keeps figures; on a server without a display that fails."""
    log = tmp_path / "log"
    assert run(log, draw) == 0, log.read_text()
    assert log.read_text() == "False False\n"


def test_information_plot_draws_whom_it_can():
    """One annotator, or one without labels, must not stop the page."""
    text = information_plot(
        np.array([0, 5, 5]), np.array([np.nan, 0.2, np.nan]), np.array([1, 0, 0]), ["a", "b", "c"]
    )
    written = [element.text for element in ElementTree.fromstring(text).iter("text")]
    assert "b" in written
    assert not {"a", "c"} & set(written)


def test_information_plot_of_many_stays_small():
    """A mark for each of 20,000 annotators makes a page that a phone cannot open."""
    rng = np.random.default_rng(0)
    many = 20_000
    text = information_plot(
        rng.integers(1, 5000, many), rng.random(many), rng.integers(0, 3, many), ["a"] * many
    )
    assert 500_000 > text.count("<use") > 1000
    assert len(text) < 4e6


def test_confusion_plot_shows_the_shares_and_caps_the_classes():
    """A hundred rows in a picture of a hand's breadth are no rows; a share in a wrong cell misleads."""
    text, shown = confusion_plot(
        "m", np.array([[0.75, 0.25], [0.0, 1.0]]), np.eye(2), ["cat", "dog"]
    )
    written = [element.text for element in ElementTree.fromstring(text).iter("text")]
    assert [word for word in written if word.isdigit()] == ["75", "25", "100"]
    assert shown == 2
    counts = np.zeros((100, 100))
    counts[97, 3] = 5
    text, shown = confusion_plot("m", np.eye(100), counts, [f"class {c}" for c in range(100)])
    assert shown == 12
    assert "class 97" in text
    assert "class 3" in text
    assert "class 50" not in text


def test_graph_of_copies_has_a_place_for_each():
    """Two annotators in one place look like one."""
    pairs = [(0, 1), (2, 1), (3, 1), (5, 6), (7, 8), (8, 9), (9, 7)]
    places = _places(pairs)
    assert places.keys() == {0, 1, 2, 3, 5, 6, 7, 8, 9}
    xy = np.array(list(places.values()))
    apart = np.linalg.norm(xy[:, None] - xy[None], axis=-1) + 9 * np.eye(len(xy))
    assert apart.min() > 1


def test_short_and_legible_keep_what_can_be_kept():
    """Joined emoji and right-to-left names are names; only what breaks or turns a page must go."""
    family, hebrew = "\U0001f468\u200d\U0001f469", "\u05d3\u05d5\u05d3"
    assert legible(f"{family} {hebrew}\n\t") == f"{family} {hebrew}\n\t"
    assert legible("\u202e\u2066\x0b\x85\ufffe\udc00") == "\ufffd" * 6
    assert short("  a\n b ") == "a b"
    assert len(short("y" * 50, 12)) == 12
