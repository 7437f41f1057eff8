"""The report's pictures: each function takes numbers and gives one `<svg>` to stand in a page.

The page colours them: where a picture is drawn in `_INK`, the page finds `var(--ink)`, so light and
dark are one picture. Text stays text, set in the page's font. What is shown of whom is decided in
`report.py`.
"""

import importlib.util
import io
import re
import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from ..metrics import Calibration
from .copies import Copy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours no picture would choose, each a stand-in for one of the page's.
_INK, _MUTED, _LINE, _CARD, _GOOD, _WARN, _BAD = (f"#00000{i}" for i in range(1, 8))
_BLACK_ON_LIGHT, _WHITE_ON_LIGHT = "#000008", "#000009"  # the page swaps them when it is dark
_NAMES = {
    _INK: "ink", _MUTED: "muted", _LINE: "line", _CARD: "card", _GOOD: "good", _WARN: "warn",
    _BAD: "bad", _BLACK_ON_LIGHT: "black-on-light", _WHITE_ON_LIGHT: "white-on-light",
}  # fmt: skip
# The page's line, ink and card, light and dark, as they are in `report.html`.
_LIGHT, _DARK = ("#d5dbe0", "#1c2329", "#ffffff"), ("#333d46", "#e4e8eb", "#1a2127")
_EMPTY_CELL = 0.45  # opacity of the line's colour under every cell of a confusion matrix
_GROUPS = (("trust", _GOOD, "o"), ("look at", _WARN, "^"), ("leave out", _BAD, "X"))
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may hold dollar signs
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "legend.frameon": False,
}
# Would end or garble an XML document, or turn the rest of a line around.
_UNFIT = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff"
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_WIDE, _TALL = 4.3, 3.0  # inches, of which a unit of the picture is the 72nd
_GRID = (200, 120)  # points that share a cell of this grid are drawn as one
_LINE_OF_TEXT = 15.0  # points from one name to the next in the graph of copies
_ARCS, _NAME_ROOM = 50.0, 92.0  # points that the arcs and the names beside them take there
_EVEN = 1.05  # the most votes against the fewest: below, all count as equally many
_GOLDEN = 0.618034  # multiples of it, modulo 1, spread points without a pattern
_MAX_LABELS = 10
_MAX_CLASSES = 12
_MAX_CELLS_WITH_NUMBERS = 36


def need_matplotlib() -> None:
    """Raise an ImportError that says what to install, if matplotlib is absent."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError(
            "the report's plots need matplotlib: pip install 'hf_maxmig[plots]'", name="matplotlib"
        )


def legible(text: str) -> str:
    r"""Replace what no page can hold and what turns a line around; the rest stays as it is.

    Args:
        text: anything.

    Returns:
        Text that encodes as UTF-8 and is allowed in XML.

    Example:
        >>> legible("a\u202eb\x00c\ud800").encode("ascii", "namereplace").count(b"REPLACEMENT")
        3
    """
    return _UNFIT.sub("\ufffd", text)


def short(text: str, length: int = 18) -> str:
    """Bring a name to one line of at most `length` characters.

    Example:
        >>> short("the  tall building on the left", 14)
        'the tall buil…'
    """
    line = " ".join(legible(text).split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def information_plot(
    votes: np.ndarray, information: np.ndarray, group: np.ndarray, names: Sequence[str]
) -> str:
    """Show how much each annotator's votes tell against how many they cast.

    Where all cast about equally many, the annotators stand side by side instead, the most
    informative first. Otherwise those with the same number are spread around it.

    Args:
        votes: (M,), how many votes each cast; annotators without any are not drawn.
        information: (M,), nats per vote.
        group: (M,), 0 to trust, 1 to look at, 2 to leave out; the last two get a name first.
        names: M names.

    Returns:
        An SVG element.
    """
    drawn = np.flatnonzero((votes > 0) & np.isfinite(information))
    most, fewest = votes[drawn].max(), votes[drawn].min()
    even = len(drawn) > 1 and most <= _EVEN * fewest
    logarithmic = not even and most > 20 * fewest
    place = np.zeros(len(votes))
    if even:
        place[drawn[np.argsort(-information[drawn], kind="stable")]] = np.arange(len(drawn)) + 1
    else:
        place[drawn] = _spread_ties(votes[drawn], logarithmic)

    def draw(axes: "Axes") -> None:
        from matplotlib.ticker import MaxNLocator

        if logarithmic:
            axes.set_xscale("log")
        axes.margins(x=0.1)
        for number, (label, colour, marker) in enumerate(_GROUPS):
            part = drawn[group[drawn] == number]
            x = np.log(place[part]) if logarithmic else place[part]
            part = part[_one_a_cell(x, information[part])]
            if len(part):
                axes.scatter(
                    place[part], information[part], s=30 if len(drawn) < 200 else 9, c=colour,
                    marker=marker, alpha=0.8, linewidths=0, label=label,
                )  # fmt: skip
        axes.set_ylabel("nats per vote")
        top = max(0.05, information[drawn].max())
        axes.set_ylim(min(0, information[drawn].min()) - 0.05 * top, 1.1 * top)
        if even:
            number_of_votes = f"{fewest:,}" if most == fewest else f"{fewest:,} to {most:,}"
            axes.set_xlabel(f"annotators by rank; {number_of_votes} votes each")
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        else:
            axes.set_xlabel("votes")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        axes.xaxis.set_minor_formatter(lambda x, _: "")
        for handle in _legend_above(axes):
            handle.set_sizes([30])
        first = np.lexsort((-votes[drawn], -group[drawn]))
        best = np.argsort(-information[drawn], kind="stable")[:3]
        points = np.stack([place[drawn], information[drawn]], axis=1)
        order = list(dict.fromkeys([*first[: 3 * _MAX_LABELS], *best]))
        _name_points(axes, points, np.array(order), [names[int(m)] for m in drawn])

    return _svg("information", "Information per vote of each annotator against their votes", draw)


def _spread_ties(votes: np.ndarray, logarithmic: bool) -> np.ndarray:
    """(M,) places on the axis: equal numbers of votes fill up to 0.4 of the way to the next."""
    scale = np.log(votes) if logarithmic else votes.astype(float)
    values, number, count = np.unique(scale, return_inverse=True, return_counts=True)
    gaps = np.diff(values) if len(values) > 1 else np.ones(1)
    room = 0.4 * np.minimum(np.append(gaps[0], gaps), np.append(gaps, gaps[-1]))
    turn = np.zeros(len(votes), dtype=int)  # of an annotator among their equals
    in_order = np.argsort(number, kind="stable")
    turn[in_order] = np.arange(len(votes)) - np.repeat(np.cumsum(count) - count, count)
    shift = 2 * ((0.5 + _GOLDEN * turn) % 1) - 1  # the first of each stays where it is
    # A handful needs less room than a crowd.
    place = scale + room[number] * np.minimum(1, count[number] / 10) * shift
    return np.exp(place) if logarithmic else place


def _one_a_cell(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Numbers of the points that a reader can tell apart."""
    cells = [
        np.round((value - value.min()) / (np.ptp(value) or 1) * size) if len(value) else value
        for value, size in zip((x, y), _GRID, strict=True)
    ]
    return np.unique(np.stack(cells), axis=1, return_index=True)[1]


def _name_points(axes: "Axes", points: np.ndarray, order: np.ndarray, names: Sequence[str]) -> None:
    """Write names beside (M, 2) points, the first first, and none over a point or another name."""
    axes.autoscale_view()  # else the limits are those of before the points
    places = (axes.transData + axes.transAxes.inverted()).transform(points)
    taken: list[tuple[float, float, float]] = []
    for i in order:
        name, (x, y) = short(names[int(i)]), places[i]
        width = 0.024 * len(name)
        beside = np.abs(places[:, 1] - y) < 0.04
        for left, shift, side in ((x + 0.02, 6, "left"), (x - 0.02 - width, -6, "right")):
            covers = beside & (places[:, 0] > left - 0.01) & (places[:, 0] < left + width + 0.01)
            if (
                len(taken) < _MAX_LABELS
                and 0 <= left <= 1 - width
                and not covers.any()
                and all(abs(y - h) > 0.06 or left > a + w or a > left + width for a, h, w in taken)
            ):
                taken.append((left, y, width))
                axes.annotate(
                    name, points[i], xytext=(shift, 0), textcoords="offset points", fontsize=8,
                    ha=side, va="center",
                )  # fmt: skip
                break


def confusion_plot(
    name: str, confusion: np.ndarray, counts: np.ndarray, classes: Sequence[str]
) -> tuple[str, int]:
    """Show what an annotator says on each class.

    Args:
        name: of the picture, unique on its page.
        confusion: (C, C), probabilities, true row, reported column.
        counts: (C, C), votes behind them; where there are many classes, those with the most are
            shown.
        classes: C names.

    Returns:
        An SVG element, and how many classes are on it.
    """
    used = counts.sum(axis=0) + counts.sum(axis=1)
    shown = np.sort(np.argsort(-used, kind="stable")[:_MAX_CLASSES])
    table, size = confusion[np.ix_(shown, shown)], len(shown)

    def draw(axes: "Axes") -> None:
        from matplotlib.collections import PolyCollection
        from matplotlib.colors import to_rgba

        cells = [
            [(c - 0.48, r - 0.48), (c + 0.48, r - 0.48), (c + 0.48, r + 0.48), (c - 0.48, r + 0.48)]
            for r in range(size)
            for c in range(size)
        ]
        share = np.clip(np.nan_to_num(table).ravel(), 0, 1)
        axes.add_collection(PolyCollection(cells, facecolors=to_rgba(_LINE, _EMPTY_CELL)))
        seen = [i for i, p in enumerate(share) if p >= 0.005]
        axes.add_collection(
            PolyCollection(
                [cells[i] for i in seen], facecolors=[to_rgba(_INK, share[i]) for i in seen]
            )
        )
        if size**2 <= _MAX_CELLS_WITH_NUMBERS:
            for i in seen:
                axes.text(
                    i % size, i // size, f"{100 * share[i]:.0f}", ha="center", va="center",
                    color=_number_colour(share[i]),
                )  # fmt: skip
        ticks = [short(classes[c], 12) for c in shown]
        upright = max(map(len, ticks)) * size > 24
        axes.set_xticks(range(size), ticks, rotation=90 if upright else 0, color=_INK)
        axes.set_yticks(range(size), ticks, color=_INK)
        axes.tick_params(length=0)
        axes.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), aspect="equal")
        axes.set_xlabel("says", color=_MUTED)
        axes.set_ylabel("true class", color=_MUTED)
        axes.spines[:].set_visible(False)

    rows = ", ".join(f"{short(classes[c])} {table[i, i]:.2f}" for i, c in enumerate(shown))
    return _svg(name, f"Share right of each true class: {rows}", draw, (3.0, 2.8)), size


def _number_colour(share: float) -> str:
    """Choose black or white for a number on its cell, whichever contrasts more, in both themes.

    The better of black and white reaches a contrast of 4.58 on any colour, more than the 4.5 that WCAG AA
    demands. The page's ink and card do not: on mid tones they reach 4.
    """
    light, dark = (_is_bright(share, *theme) for theme in (_LIGHT, _DARK))
    if light == dark:
        return "#000000" if light else "#ffffff"
    return _BLACK_ON_LIGHT if light else _WHITE_ON_LIGHT


def _is_bright(share: float, line: str, ink: str, card: str) -> bool:
    """Whether black contrasts more than white with a cell: luminance as in WCAG 2."""
    from matplotlib.colors import to_rgb

    line_rgb, ink_rgb, card_rgb = (np.array(to_rgb(colour)) for colour in (line, ink, card))
    empty = _EMPTY_CELL * line_rgb + (1 - _EMPTY_CELL) * card_rgb
    cell = share * ink_rgb + (1 - share) * empty
    linear = np.where(cell <= 0.04045, cell / 12.92, ((cell + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))
    return (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05)


def agreement_plot(copies: Sequence[Copy], names: Sequence[str]) -> str:
    """Show who agrees with whom beyond what the truth explains.

    Annotators stand one below the other, each group together and its source first.
    An arc joins each pair, and beside a name stands the agreement with one further up.

    Args:
        copies: the pairs, at least one.
        names: of all annotators.

    Returns:
        An SVG element.
    """
    rows = _rows([(pair.annotator, pair.source) for pair in copies])
    beside: dict[int, Copy] = {}  # the clearest pair of an annotator with one further up
    for pair in copies:
        beside.setdefault(max(pair.annotator, pair.source, key=rows.__getitem__), pair)
    bottom = max(rows.values())
    longest = max(abs(rows[pair.annotator] - rows[pair.source]) for pair in copies)
    wide, tall = 72 * _WIDE, _LINE_OF_TEXT * (bottom + 1)

    def draw(axes: "Axes") -> None:
        angle = np.linspace(-np.pi / 2, np.pi / 2, 25)
        for pair in copies:
            top, low = sorted((rows[pair.annotator], rows[pair.source]))
            reach = (_ARCS - 12) * (low - top) / max(4, longest)
            axes.plot(
                _ARCS - (reach + 4) * np.cos(angle),
                _LINE_OF_TEXT * ((top + low) / 2 + (low - top) / 2 * np.sin(angle)),
                color=_WARN, linewidth=0.5 + 2 * (pair.agreed / max(1, pair.common)) ** 2,
                alpha=0.7, zorder=1,
            )  # fmt: skip
        heights = _LINE_OF_TEXT * np.array(list(rows.values()))
        axes.scatter(np.full(len(rows), _ARCS), heights, s=30, c=_WARN, linewidths=0, zorder=2)
        for m, row in rows.items():
            at: dict[str, Any] = {
                "y": _LINE_OF_TEXT * row,
                "va": "center_baseline",
                "fontsize": 8.5,
            }
            axes.text(x=_ARCS + 9, s=_fitting(names[m], 16), **at)
            if m in beside:
                pair = beside[m]
                other = names[pair.source if pair.annotator == m else pair.annotator]
                said = f"{pair.agreed:,} of {pair.common:,} as {_fitting(other, 12)}"
                axes.text(x=_ARCS + 9 + _NAME_ROOM, s=said, color=_MUTED, **at)
        axes.set(xlim=(0, wide), ylim=(tall - _LINE_OF_TEXT / 2, -_LINE_OF_TEXT / 2))
        axes.set_axis_off()

    title = "Who agrees with whom beyond what the truth explains"
    return _svg("agreement", title, draw, (_WIDE, tall / 72))


def _fitting(name: str, length: int) -> str:
    """Shorten a name; one in characters that are twice as wide, to half."""
    wide = any(unicodedata.east_asian_width(character) in "WF" for character in name)
    return short(name, length // 2 if wide else length)


def _rows(pairs: Sequence[tuple[int, int]]) -> dict[int, float]:
    """Give each annotator a row: groups stand together, with a gap between two."""
    members, ends = np.unique(np.array(pairs), return_inverse=True)
    ends = ends.reshape(-1, 2)
    links = coo_matrix((np.ones(len(ends)), ends.T), shape=(len(members),) * 2)
    number, group = connected_components(links, directed=False)
    degree = np.bincount(ends.ravel())
    source = np.bincount(ends[:, 1], minlength=len(members))
    rows: dict[int, float] = {}
    largest_first = np.argsort(-np.bincount(group, minlength=number), kind="stable")
    for place, g in enumerate(largest_first):
        inside = np.flatnonzero(group == g)
        for i in inside[np.lexsort((-degree[inside], -source[inside]))]:
            rows[int(members[i])] = len(rows) + 0.6 * place
    return rows


def gain_plot(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], unit: str) -> str:
    """Show how the gain rose.

    Args:
        curves: name of each curve, where it was measured and what it was, in nats.
        unit: of where, such as `epoch`.

    Returns:
        An SVG element.
    """

    def draw(axes: "Axes") -> None:
        for (name, (x, y)), colour, style in zip(
            curves.items(), (_INK, _GOOD), ("-", "--"), strict=False
        ):
            marker = "o" if len(x) < 40 else None
            axes.plot(x, y, style, color=colour, marker=marker, markersize=3.5, label=name)
        axes.set_xlabel(unit)
        axes.set_ylabel("gain in nats")
        _legend_above(axes)

    return _svg("gain", "Gain during training", draw)


def outlook_plot(right: np.ndarray) -> str:
    """Show how the share of right labels is expected to rise with further votes.

    Args:
        right: (Q + 1,), the share after 0, 1, ..., Q votes.

    Returns:
        An SVG element.
    """
    at = np.unique(np.linspace(0, len(right) - 1, 60).round().astype(int))

    def draw(axes: "Axes") -> None:
        from matplotlib.ticker import PercentFormatter

        axes.plot(at, right[at], "-", color=_INK)
        axes.set_xlabel("further votes")
        axes.set_ylabel("labels that are right")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))

    return _svg("outlook", "Expected share of right labels after further votes", draw)


def reliability_plot(curves: Mapping[str, Calibration]) -> str:
    """Show how often each posterior is right at each probability it gives.

    Args:
        curves: name and measured calibration of each posterior.

    Returns:
        An SVG element.
    """

    def draw(axes: "Axes") -> None:
        axes.plot([0, 1], [0, 1], ":", color=_MUTED, linewidth=1)
        for (name, curve), colour, marker in zip(
            curves.items(), (_INK, _GOOD), ("o", "s"), strict=False
        ):
            label = f"{name}: off by {100 * curve.error:.1f} %"
            size = 8 + 90 * curve.count / curve.count.sum()
            axes.plot(curve.confidence, curve.accuracy, color=colour, linewidth=0.8, alpha=0.6)
            axes.scatter(
                curve.confidence, curve.accuracy, s=size, c=colour, marker=marker, linewidths=0,
                label=label, clip_on=False, alpha=0.85,
            )  # fmt: skip
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.set_xlabel("probability of the likeliest class")
        axes.set_ylabel("share right")
        for handle in _legend_above(axes):
            handle.set_sizes([30])

    return _svg("reliability", "Share right against the probability given", draw)


def quality_plot(quality: np.ndarray) -> str:
    """Show how many labels of the crowd are how sure.

    Args:
        quality: (N,), label quality of items with votes, 0..1.

    Returns:
        An SVG element.
    """
    count, edges = np.histogram(np.clip(quality, 0, 1), bins=20, range=(0, 1))

    def draw(axes: "Axes") -> None:
        from matplotlib.collections import PolyCollection
        from matplotlib.ticker import MaxNLocator

        bars = [
            [(left + 0.003, 0), (left + 0.047, 0), (left + 0.047, n), (left + 0.003, n)]
            for left, n in zip(edges[:-1], count, strict=True)
            if n
        ]
        axes.add_collection(PolyCollection(bars, facecolors=_INK, linewidths=0))
        axes.set(xlim=(0, 1), ylim=(0, 1.05 * max(1, count.max())))
        axes.set_xlabel("label quality")
        axes.set_ylabel("items")
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}")

    return _svg("quality", "How many of the crowd's labels have which label quality", draw)


def _legend_above(axes: "Axes") -> list[Any]:
    legend = axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=3, handletextpad=0.5, columnspacing=1.2
    )
    return list(legend.legend_handles)


def _svg(
    name: str,
    title: str,
    draw: Callable[["Axes"], None],
    size: tuple[float, float] = (_WIDE, _TALL),
) -> str:
    import matplotlib.style
    from matplotlib.figure import Figure

    text = io.StringIO()
    settings: list[Any] = [
        "default",
        {**_SETTINGS, "svg.hashsalt": name},
    ]  # whatever the user has set
    with matplotlib.style.context(settings), warnings.catch_warnings():
        # The browser sets the text, and has the fonts.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        figure.savefig(text, format="svg", transparent=True)
    return _inline(text.getvalue(), name, title)


def _inline(document: str, name: str, title: str) -> str:
    """Turn an SVG document into an element of a page: own ids, the page's colours, no header."""
    root = ElementTree.fromstring(document)
    for child in list(root):
        style = child.find("{*}style")  # meant for a document, it would rule the whole page
        if child.tag.endswith("metadata") or style is not None:
            root.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {
            key.rpartition("}")[2]: _attribute(key.rpartition("}")[2], value, name)
            for key, value in element.attrib.items()
            if not (element.tag == "g" and key == "id")
        }
        if element.tag != "text":
            element.text = None
        element.tail = None
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": legible(title)}
    return ElementTree.tostring(root, encoding="unicode")


def _attribute(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "style":
        value = re.sub(r"font-family: [^;]*; ?", "", value)
        return re.sub("#00000[1-9]", lambda match: f"var(--{_NAMES[match[0]]})", value)
    if key in ("href", "clip-path"):
        return value.replace("#", f"#{name}-")
    return " ".join(value.split())
