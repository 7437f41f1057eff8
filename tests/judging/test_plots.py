"""Plots embedded in a page: well-formed, in the page's colours, and showing the given numbers."""

import re
import sys
from importlib.resources import files
from xml.etree import ElementTree

import numpy as np
import pytest

from hf_maxmig.judging.copies import Copy
from hf_maxmig.judging.plots import (
    _rows,
    _spread_ties,
    agreement_plot,
    confusion_plot,
    gain_plot,
    information_plot,
    legible,
    quality_plot,
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
    """Return one plot of each kind, by name."""
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
        "quality": quality_plot(rng.random(50)),
    }


@pytest.fixture(scope="module")
def hostile():
    """Return the plots with all of `NAMES`."""
    return pictures(NAMES)


def test_pictures_of_hostile_names_are_the_elements_of_plain_ones(hostile):
    """A name that becomes a tag could run code on the reader's machine, in a file that is passed on."""
    plain = pictures([f"name {i}" for i in range(len(NAMES))])
    assert "&lt;script" in "".join(hostile.values())
    for name, text in hostile.items():
        tags = {element.tag for element in ElementTree.fromstring(text).iter()}
        assert tags == {element.tag for element in ElementTree.fromstring(plain[name]).iter()}
        assert tags <= {"svg", "g", "path", "defs", "use", "text", "clipPath", "rect"}
        text.encode("utf-8")


def test_names_reach_the_picture_as_text(hostile):
    """Parsed as mathematics, a dollar sign is an error; drawn as outlines, Japanese would be boxes."""
    for text in (hostile[name] for name in ("information", "map-0", "agreement")):
        written = {element.text for element in ElementTree.fromstring(text).iter("text")}
        assert written & {NAMES[1]}
        assert written & {NAMES[2]}


def test_ids_are_unique_across_a_page(hostile):
    """Two plots that use the same id clip or mark each other's lines."""
    page = "".join(hostile.values())
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids)) > 10
    used = re.findall(r'(?:href="|url\()#([^")]*)', page)
    assert used
    assert set(used) <= set(ids)


def test_pictures_take_the_colours_of_the_page(hostile):
    """Fixed colours may be invisible in dark mode."""
    for text in hostile.values():
        root = ElementTree.fromstring(text)
        assert not re.search("#[0-9a-f]{6}", " ".join(e.get("style", "") for e in root.iter()))
        assert "var(--ink)" in text
        assert root.get("role") == "img"
        assert len(root.get("aria-label")) > 10
        assert "http" not in text


def test_pictures_are_the_same_each_time_whatever_the_user_has_set(hostile):
    """Random ids or a date would change the page each time. A user's style must be neither used nor lost."""
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
    """Pyplot chooses a backend and keeps figures, which fails on a server without a display."""
    log = tmp_path / "log"
    assert run(log, draw) == 0, log.read_text()
    assert log.read_text() == "False False\n"


def test_information_plot_draws_whom_it_can():
    """A single annotator, or one without labels, must not stop the page."""
    text = information_plot(
        np.array([0, 5, 5]), np.array([np.nan, 0.2, np.nan]), np.array([1, 0, 0]), ["a", "b", "c"]
    )
    written = [element.text for element in ElementTree.fromstring(text).iter("text")]
    assert "b" in written
    assert not {"a", "c"} & set(written)


def test_information_plot_of_many_stays_small():
    """With a mark for each of 20,000 annotators, a phone could not open the page."""
    rng = np.random.default_rng(0)
    many = 20_000
    text = information_plot(
        rng.integers(1, 5000, many), rng.random(many), rng.integers(0, 3, many), ["a"] * many
    )
    assert 500_000 > text.count("<use") > 1000
    assert len(text) < 4e6


def test_confusion_plot_shows_the_shares_and_caps_the_classes():
    """A hundred rows do not fit into a small picture, and a share in the wrong cell misleads."""
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


def themes():
    """Return the page's colours by name: one dictionary each for light, dark and print."""
    page = files("hf_maxmig.judging").joinpath("report.html").read_text(encoding="utf-8")
    blocks = re.findall(r":root {(.*?)}", page, re.S)
    return [dict(re.findall(r"(--[\w-]+): (#\w{6})", block)) for block in blocks]


def mixed(colours, parts):
    """Blend colours painted over each other, the first at the bottom: red, green and blue from 0 to 1."""
    out = np.zeros(3)
    for colour, part in zip(colours, parts, strict=True):
        rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        out = part * rgb + (1 - part) * out
    return out


def luminance(rgb):
    """Return the relative luminance of WCAG 2.2."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def test_numbers_of_a_confusion_plot_contrast_with_their_cells():
    """On a mid tone, neither the page's ink nor its card reaches 4.5, the minimum contrast of WCAG AA."""
    shares = np.linspace(0.01, 1, 36).reshape(6, 6)
    text, _ = confusion_plot("m", shares, np.eye(6), list("abcdef"))
    drawn = ElementTree.fromstring(text)
    numbers = [e.get("style") for e in drawn.iter("text") if e.text.isdigit()]
    cells = [
        re.search(r"fill: var\((--\w+)\)(?:; fill-opacity: ([\d.]+))?", e.get("style", ""))
        for e in drawn.iter("path")
    ]
    empty = {float(c[2]) for c in cells if c and c[1] == "--line"}
    opacities = [float(c[2] or 1) for c in cells if c and c[1] == "--ink"]
    np.testing.assert_allclose(opacities, shares.ravel(), atol=1e-5)
    assert len(numbers) == 36
    assert len(empty) == 1
    light, dark, printed = themes()
    assert light["--card"] != dark["--card"]
    for theme in (light, dark, printed):
        for style, opacity in zip(numbers, opacities, strict=True):
            colour = re.search(r"fill: (?:var\((--[\w-]+)\)|(#\w{6}))", style)
            # Matplotlib omits black, the default fill of an SVG.
            number = "#000000" if colour is None else colour[2] or theme[colour[1]]
            under = [theme["--card"], theme["--line"], theme["--ink"]]
            cell = mixed(under, [1, *empty, opacity])
            assert contrast(mixed([number], [1]), cell) >= 4.5, (number, opacity)
    assert contrast(np.zeros(3), np.ones(3)) == pytest.approx(21)


def test_graph_of_copies_has_a_row_for_each():
    """Two annotators drawn in one place look like one. The original comes before its copies."""
    pairs = [(0, 1), (2, 1), (3, 1), (5, 6), (7, 8), (8, 9), (9, 7)]
    rows = _rows(pairs)
    assert rows.keys() == {0, 1, 2, 3, 5, 6, 7, 8, 9}
    assert np.diff(sorted(rows.values())).min() >= 1
    order = sorted(rows, key=rows.__getitem__)
    assert order[0] == 1
    assert set(order[1:4]) == {0, 2, 3}
    assert set(order[4:7]) == {7, 8, 9}
    assert order[7:] == [6, 5]


def _boxes(text):
    """Return left, right, top, bottom and content of each line of text in a plot."""
    found = []
    for element in ElementTree.fromstring(text).iter("text"):
        style = element.get("style", "")
        size = float(re.search(r"font-size: ([\d.]+)px", style)[1])
        where = element.get("transform", "")
        moved = re.search(r"translate\(([-\d.]+) ([-\d.]+)\)", where)
        x, y = (
            (float(element.get(k) or 0) for k in "xy")
            if moved is None
            else map(float, moved.groups())
        )
        assert "rotate(-0" in where or "rotate" not in where
        wide = 0.6 * size * sum(1 if ord(c) < 0x3000 else 1.7 for c in element.text)
        left = x - {"middle": wide / 2, "end": wide}.get(
            (re.search(r"text-anchor: (\w+)", style) or [0, ""])[1], 0
        )
        found.append((left, left + wide, y - 0.8 * size, y + 0.2 * size, element.text))
    return found


@pytest.mark.parametrize("pairs", [
    [(m, 0) for m in range(1, 9)],
    [(a, b) for a in range(5) for b in range(a)],
    [(m, m + 1) for m in range(0, 40, 2)],
    [(0, 40)],
])  # fmt: skip
def test_graph_of_copies_prints_nothing_over_anything(pairs):
    """Numbers in the middle of a line used to overlap the names at its ends."""
    copies = [Copy(a, b, 1200, 1100, 700.0, 1e-6) for a, b in pairs]
    boxes = _boxes(
        agreement_plot(copies, [f"annotator no. {m:02}" for m in range(40)] + ["注釈者" * 9])
    )
    names = {m for pair in pairs for m in pair}
    assert len(names) == len({round(box[2]) for box in boxes})
    assert {f"annotator no. {m:02}" for m in names - {40}} <= {box[4] for box in boxes}
    assert sum("1,100 of 1,200" in box[4] for box in boxes) >= len(names) / 2
    for i, (left, right, top, bottom, said) in enumerate(boxes):
        assert left >= 0
        assert right <= 72 * 4.3
        for other in boxes[:i]:
            apart = left >= other[1] or right <= other[0] or top >= other[3] or bottom <= other[2]
            assert apart, (said, other[4])


def _marks(text):
    """Return the places of the marks of a scatter plot, grouped by class."""
    groups = ElementTree.fromstring(text).iter("g")
    return np.array([
        (float(use.get("x")), float(use.get("y")))
        for group in groups if group.get("clip-path") for use in group.findall("use")
    ])  # fmt: skip


@pytest.mark.parametrize("votes", [[1078] * 10, [1000, 1010, 1020] * 3, [50] * 6 + [100] * 6])
def test_annotators_with_equally_many_votes_do_not_make_one_column(votes):
    """Ten marks used to be stacked in one column while the rest of the plot was empty."""
    number = len(votes)
    names = [f"w{m}" for m in range(number)]
    information = np.linspace(0.2, 1.5, number)
    text = information_plot(np.array(votes), information, np.zeros(number, int), names)
    marks = _marks(text)
    assert len(marks) == number
    assert len(np.unique(np.round(marks[:, 0]))) == number
    written = " ".join(e.text for e in ElementTree.fromstring(text).iter("text"))
    assert ("by rank" in written) == (max(votes) < 2 * min(votes))
    assert ("1,078 votes each" in written) == (votes[0] == 1078)


def test_ties_are_spread_without_changing_places_with_others():
    """An annotator with 5 votes must not be drawn to the right of one with 6."""
    votes = np.array([1, 1, 1, 2, 2, 2, 2, 5, 5, 6, 40] * 4)
    for logarithmic in (False, True):
        place = _spread_ties(votes, logarithmic)
        assert len(np.unique(np.round(place, 6))) == len(votes)
        for few in (1, 2, 5, 6):
            assert place[votes <= few].max() < place[votes > few].min()
        np.testing.assert_allclose(place[:10], votes[:10], rtol=0.4)
    assert _spread_ties(np.array([3, 9, 4]), False).tolist() == [3, 9, 4]


def test_quality_plot_counts_each_item_once():
    """A label of quality 1 would be lost if the last bar did not include its right edge."""
    text = quality_plot(np.array([0.0, 0.01, 0.5, 1.0, 1.0, 1.0]))
    root = ElementTree.fromstring(text)
    bars = [
        e
        for e in root.iter("path")
        if "var(--ink)" in e.get("style", "") and "fill:" in e.get("style", "")
    ]
    heights = []
    for bar in bars:
        y = [float(v) for v in re.findall(r"[ML] [-\d.]+ ([-\d.]+)", bar.get("d"))]
        heights.append(max(y) - min(y))
    heights = np.sort([h for h in heights if h > 0])
    np.testing.assert_allclose(heights / heights[0], [1, 2, 3], rtol=1e-3)


def test_short_and_legible_keep_what_can_be_kept():
    """Joined emoji and right-to-left names are valid. Only characters that break or mirror the page must go."""
    family, hebrew = "\U0001f468\u200d\U0001f469", "\u05d3\u05d5\u05d3"
    assert legible(f"{family} {hebrew}\n\t") == f"{family} {hebrew}\n\t"
    assert legible("\u202e\u2066\x0b\x85\ufffe\udc00") == "\ufffd" * 6
    assert short("  a\n b ") == "a b"
    assert len(short("y" * 50, 12)) == 12
