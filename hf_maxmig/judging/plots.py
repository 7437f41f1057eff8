"""The report's pictures: each function takes numbers and gives one `<svg>` to stand in a page.

The page colours them: where a picture is drawn in `_INK`, the page finds `var(--ink)`, so light and
dark are one picture. Text stays text, set in the page's font. What is shown of whom is decided in
`report.py`.
"""

import importlib.util
import io
import re
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
_NAMES = {
    _INK: "ink", _MUTED: "muted", _LINE: "line", _CARD: "card", _GOOD: "good", _WARN: "warn",
    _BAD: "bad",
}  # fmt: skip
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
_ACROSS = 6.4  # of the graph of copies, where two who are linked are 1.5 apart
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
    """Show how much each annotator's labels tell against how many they gave.

    Args:
        votes: (M,), how many labels each gave; those with none are not drawn.
        information: (M,), nats a label.
        group: (M,), 0 to trust, 1 to look at, 2 to leave out; the last two get a name first.
        names: M names.

    Returns:
        An SVG element.
    """
    drawn = np.flatnonzero((votes > 0) & np.isfinite(information))
    spread = votes[drawn].max() / votes[drawn].min()

    def draw(axes: "Axes") -> None:
        if spread > 20:
            axes.set_xscale("log")
        axes.margins(x=0.1)
        for number, (label, colour, marker) in enumerate(_GROUPS):
            part = drawn[group[drawn] == number]
            x = np.log(votes[part]) if spread > 20 else votes[part]
            part = part[_one_a_cell(x, information[part])]
            if len(part):
                axes.scatter(
                    votes[part], information[part], s=30 if len(drawn) < 200 else 9, c=colour,
                    marker=marker, alpha=0.8, linewidths=0, label=label,
                )  # fmt: skip
        axes.set_xlabel("labels given")
        axes.set_ylabel("nats a label")
        top = max(0.05, information[drawn].max())
        axes.set_ylim(min(0, information[drawn].min()) - 0.05 * top, 1.1 * top)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        axes.xaxis.set_minor_formatter(lambda x, _: "")
        for handle in _legend_above(axes):
            handle.set_sizes([30])
        first = np.lexsort((-votes[drawn], -group[drawn]))
        best = np.argsort(-information[drawn], kind="stable")[:3]
        points = np.stack([votes[drawn], information[drawn]], axis=1)
        order = list(dict.fromkeys([*first[: 3 * _MAX_LABELS], *best]))
        _name_points(axes, points, np.array(order), [names[int(m)] for m in drawn])

    return _svg("information", "Information of each annotator against labels given", draw)


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
        counts: (C, C), labels behind them; where there are many classes, those with the most are
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
        axes.add_collection(PolyCollection(cells, facecolors=to_rgba(_LINE, 0.45)))
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
                    color=_CARD if share[i] > 0.5 else _INK,
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
    return _svg(name, f"Share said rightly of each true class: {rows}", draw, (3.0, 2.8)), size


def agreement_plot(copies: Sequence[Copy], names: Sequence[str]) -> str:
    """Show who agrees with whom beyond what the truth explains: annotators, and a line a pair.

    Args:
        copies: the pairs, at least one.
        names: of all annotators.

    Returns:
        An SVG element.
    """
    places = _places([(pair.annotator, pair.source) for pair in copies])
    x, y = np.array(list(places.values())).T

    def draw(axes: "Axes") -> None:
        for pair in copies:
            ends = np.array([places[pair.annotator], places[pair.source]])
            share = pair.agreed / max(1, pair.common)
            axes.plot(*ends.T, color=_WARN, linewidth=0.5 + 3 * share**2, alpha=0.7, zorder=1)
            if len(copies) <= 12:
                axes.annotate(
                    f"{pair.agreed:,}/{pair.common:,}", ends.mean(axis=0), fontsize=7.5, ha="center",
                    xytext=(0, 4), textcoords="offset points", color=_MUTED,
                )  # fmt: skip
        axes.scatter(x, y, s=42, c=_WARN, linewidths=0, zorder=2)
        for m, place in places.items():
            axes.annotate(
                short(names[m], 14), place, xytext=(0, -7), textcoords="offset points",
                ha="center", va="top", fontsize=8.5,
            )  # fmt: skip
        middle = (x.min() + x.max()) / 2
        axes.set(
            xlim=(middle - across / 2, middle + across / 2), ylim=(y.min() - 0.6, y.max() + 0.4)
        )
        axes.set_axis_off()

    across = max(_ACROSS, np.ptp(x) + 1.6)
    size = (_WIDE, float(min(_WIDE * (np.ptp(y) + 1) / across, 2 * _WIDE)))
    return _svg("agreement", "Who agrees with whom beyond what the truth explains", draw, size)


def _places(pairs: Sequence[tuple[int, int]]) -> dict[int, tuple[float, float]]:
    """Set each group that hangs together around its best connected member, groups in rows."""
    members, ends = np.unique(np.array(pairs), return_inverse=True)
    ends = ends.reshape(-1, 2)
    links = coo_matrix((np.ones(len(ends)), ends.T), shape=(len(members),) * 2)
    number, group = connected_components(links, directed=False)
    degree = np.bincount(ends.ravel())
    places: dict[int, tuple[float, float]] = {}
    left = top = deepest = 0.0
    for g in range(number):
        inside = np.flatnonzero(group == g)
        inside = inside[np.argsort(-degree[inside], kind="stable")]
        angle = 2 * np.pi * np.arange(len(inside) - 1) / (len(inside) - 1)
        radius = max(1.5, 0.2 * len(angle))
        x, y = radius * np.append(0, np.cos(angle)), radius * np.append(0, np.sin(angle))
        width, height = np.ptp(x) + 1.6, np.ptp(y) + 1.1
        if left and left + width > _ACROSS:
            left, top, deepest = 0.0, top - deepest, 0.0
        for i, a, b in zip(inside, x - x.min() + 0.8 + left, y - y.max() + top, strict=True):
            places[int(members[i])] = (float(a), float(b))
        left, deepest = left + width, max(deepest, height)
    return places


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


def reliability_plot(curves: Mapping[str, Calibration]) -> str:
    """Show how often each is right where it claims a probability.

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
        axes.set_xlabel("probability it gives its answer")
        axes.set_ylabel("share right")
        for handle in _legend_above(axes):
            handle.set_sizes([30])

    return _svg("reliability", "Share right against the probability claimed", draw)


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
        return re.sub("#00000[1-7]", lambda match: f"var(--{_NAMES[match[0]]})", value)
    if key in ("href", "clip-path"):
        return value.replace("#", f"#{name}-")
    return " ".join(value.split())
