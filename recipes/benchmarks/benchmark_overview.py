r"""All methods of the benchmark in pictures: a table in colours over all worlds, and a ranking per world. Not a recipe itself.

    cells = read_cells(Path("out/benchmark"))
    table_in_colours(cells, Path("figure3.png"))
    for group, some in by_group(worlds(results(cells))).items():
        ranking(some, Path(f"{group}.png"))

A method that was not measured in a world has a dot in the table, and no line in the ranking. `benchmark_cells.py` has
the numbers, `benchmark_figure.py` draws the paper's methods only.
"""

import contextlib
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from benchmark_cells import (
    BEYOND_PAPER,
    CEILING,
    FAMILIES,
    LEVELS,
    OTHERS,
    OURS,
    PICKS,
    Cell,
    family,
    method_name,
    results,
)
from benchmark_figure import SETTINGS
from benchmark_ranks import REAL_CROWDS, World, by_group, by_wins, worlds

from hf_maxmig.model.whole_files import staged

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A colour and a marker each, so that nobody has to tell colours apart; colours after P. Tol's schemes.
MARKS = dict(
    zip(
        (*FAMILIES, OTHERS),
        (
            ("#BB1122", "*"), ("#777777", "s"), ("#228833", "^"), ("#AA3377", "D"), ("#44AAAA", "v"),
            ("#4477AA", "o"), ("#BB8800", "P"), ("#222222", "X"),
        ),
        strict=True,
    )
)  # fmt: skip
# Points below the first of a world, and the colour up to there: the lighter the nearer, in greys too.
STEPS = (
    (0.5, "#FFFFE5"), (1.0, "#FFF3B8"), (2.0, "#FEE08B"), (5.0, "#FDB95A"), (10.0, "#F28C28"),
    (20.0, "#CC5A0A"), (50.0, "#983404"), (100.0, "#5C2206"),
)  # fmt: skip
_DARK = 10.0  # points beyond which letters are white
_INK, _PALE, _GREY = "#222222", "#999999", "#EEEEEE"
_WIDE = 7.2  # inches, as a page
_NAMES, _COLUMN, _ROW = 1.74, 0.303, 0.142  # inches: the methods' names, a world, a line
MOST_COLUMNS = int((_WIDE - _NAMES) / _COLUMN)
_PANEL, _LINE = 3.6, 0.125  # inches: a panel of the ranking, a line in it
_LETTERS = 16  # in a line of a world's name
_SIZE, _SMALL = 7.0, 6.5  # points


def table_in_colours(cells: Iterable[Cell], path: Path, pick: str = "last") -> None:
    """Draw the accuracy of every method's classifier in every world: a line a method, a column a world.

    The colour is the distance to the first of the world. On top are the methods that win most comparisons.

    Args:
        cells: of any data sets.
        path: of the PNG. The same cells give the same bytes.
        pick: which epoch, one of `PICKS`.

    Raises:
        ImportError: without matplotlib.
        ValueError: as `results` does, or if no accuracy of a method is among the cells.
    """
    some = _some(cells, pick)
    parts = bands(some)
    orders = [by_wins(band) for band in parts]
    heads = [_head(band) for band in parts]
    gold = [any(world.ceiling for world in band) for band in parts]
    heights = [
        head + _ROW * (len(order) + more) + 0.2
        for head, order, more in zip(heads, orders, gold, strict=True)
    ]
    top = 1.32
    with _drawing(_WIDE, top + sum(heights), path) as drawing:
        axes = _page(drawing)
        _title(axes, pick, "on top: the methods that win most comparisons, of those measured")
        _families(axes, some)
        _steps(axes, 0.96)
        for band, order, head, height in zip(parts, orders, heads, heights, strict=True):
            _band(axes, band, order, top, head)
            top += height


def ranking(some: Sequence[World], path: Path, pick: str = "last") -> None:
    """Draw every method's accuracy and its standard deviation, a panel a world, the best on top.

    Args:
        some: a few worlds, as each takes a third of a page.
        path: of the PNG. The same worlds give the same bytes.
        pick: of which epoch they are, one of `PICKS`.

    Raises:
        ImportError: without matplotlib.
    """
    some = _in_pairs(some)
    rows = [some[i : i + 2] for i in range(0, len(some), 2)]
    heights = [_LINE * max(len(world.numbers) for world in row) + 0.62 for row in rows]
    top = 0.86
    with _drawing(_WIDE, top + sum(heights), path) as drawing:
        axes = _page(drawing)
        _title(axes, pick, "lines: standard deviation over seeds; dashed: trained on gold labels")
        _families(axes, some)
        for row, height in zip(rows, heights, strict=True):
            for k, world in enumerate(row):
                _panel(drawing, world, _PANEL * k, top)
            top += height


def bands(some: Sequence[World], most: int = MOST_COLUMNS) -> list[list[World]]:
    """Break worlds into bands that fit on a page; a group only if it is wider than a band.

    Example:
        >>> some = [World(group, "", {}) for group in "aaabbc"]
        >>> ["".join(world.group for world in band) for band in bands(some, 4)]
        ['aaa', 'bbc']
    """
    made: list[list[World]] = [[]]
    for members in by_group(some).values():
        if made[-1] and len(made[-1]) + len(members) > most:
            made.append([])
        for world in members:
            if len(made[-1]) == most:
                made.append([])
            made[-1].append(world)
    return made


def _some(cells: Iterable[Cell], pick: str) -> list[World]:
    found = worlds(results(cells, pick))
    if not found:
        raise ValueError(
            f"`cells` must hold the accuracy of a method {_of(pick)}, got none: {CEILING} is drawn beside others only."
        )
    return found


def _of(pick: str) -> str:
    return PICKS[pick].partition(" (")[0]


def _in_pairs(some: Sequence[World]) -> list[World]:
    """Put a crowd of low expertise beside the one of high expertise."""
    endings = [f"({level[0].upper()})" for level in LEVELS]
    at = {(world.group, world.name): world for world in some}
    order = []
    for group, name in at:
        stem = name[:-3] if name.endswith(tuple(endings)) else name
        order += [(group, other) for other in (name, *(stem + ending for ending in endings))]
    return [at[key] for key in dict.fromkeys(order) if key in at]


@contextlib.contextmanager
def _drawing(wide: float, high: float, path: Path) -> "Iterator[Figure]":
    """Give a figure of this size in inches, and write it when all went well."""
    try:
        import matplotlib.style
        from matplotlib.figure import Figure
        from PIL import Image
    except ImportError as error:
        raise ImportError("the figure needs matplotlib: pip install 'hf_maxmig[plots]'") from error

    settings: list[Any] = ["default", SETTINGS]  # whatever the user's settings are
    with matplotlib.style.context(settings):
        drawing = Figure(figsize=(wide, high))
        yield drawing
        pixels = io.BytesIO()
        drawing.savefig(pixels, format="png", dpi=200, metadata={"Software": None})
        with Image.open(pixels) as image, staged(path) as place:
            # With a palette the file has a third of the size.
            image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
                place, format="png", optimize=True
            )


def _page(drawing: "Figure") -> "Axes":
    """Give axes in inches from the upper left corner."""
    wide, high = drawing.get_size_inches()
    axes = drawing.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, wide)
    axes.set_ylim(high, 0)
    axes.set_axis_off()
    return axes


def _text(axes: "Axes", x: float, y: float, words: str, **style: Any) -> None:
    axes.text(x, y, words, **{"ha": "center", "va": "center", "color": _INK, **style})


def _mark(axes: "Axes", x: float, y: float, name: str) -> None:
    colour, marker = MARKS[name]
    size = 44 if marker == "*" else 15
    axes.scatter([x], [y], s=size, marker=marker, c=colour, linewidths=0, clip_on=False)


def _title(axes: "Axes", pick: str, words: str) -> None:
    _text(axes, _WIDE / 2, 0.14, f"Test accuracy in percent {_of(pick)}", size=9, weight="bold")
    _text(axes, _WIDE / 2, 0.31, words, size=_SIZE)


def _families(axes: "Axes", some: Sequence[World]) -> None:
    """Put a legend of the families that are there in two lines."""
    there = {family(method) for world in some for method in world.numbers}
    for i, name in enumerate(name for name in MARKS if name in there):
        x, y = 0.15 + 1.78 * (i % 4), 0.53 + 0.17 * (i // 4)
        _mark(axes, x, y, name)
        _text(
            axes,
            x + 0.1,
            y,
            name,
            ha="left",
            size=_SIZE,
            color=MARKS[name][0],
            weight=_weight(name),
        )


def _weight(name: str) -> str:
    return "bold" if name == OURS else "normal"


def _steps(axes: "Axes", y: float) -> None:
    """Put a legend of the colours: points below the first."""
    from matplotlib.patches import Rectangle

    _text(axes, 0.1, y, "points below the first:", ha="left", size=_SIZE)
    x, before = 1.28, 0.0
    for most, colour in STEPS:
        axes.add_patch(Rectangle((x, y - 0.07), 0.45, 0.14, facecolor=colour, linewidth=0))
        words = f"{before:g}-{most:g}"
        _text(axes, x + 0.225, y, words, size=_SMALL, color=_letters(most))
        x, before = x + 0.45, most
    axes.add_patch(
        Rectangle((x + 0.12, y - 0.06), 0.24, 0.12, fill=False, edgecolor=_INK, linewidth=0.9)
    )
    _text(axes, x + 0.41, y, "the first", ha="left", size=_SIZE, weight="bold")
    axes.add_patch(
        Rectangle((0.12, y + 0.11), 0.24, 0.12, fill=False, edgecolor=_INK, linewidth=0.9)
    )
    words = "framed, but not bold: within a standard error of the difference to the first"
    _text(axes, 0.42, y + 0.17, words, ha="left", size=_SIZE)
    _text(axes, 4.6, y + 0.17, "·  not measured", ha="left", size=_SIZE)


def _letters(below: float) -> str:
    return "white" if below > _DARK else _INK


def _colour(below: float) -> str:
    return next((colour for most, colour in STEPS if below <= most), STEPS[-1][1])


def _lines(world: World) -> list[str]:
    """Break a world's name, which is written upwards, into lines."""
    return wrap(world.name, _LETTERS)


def _head(band: Sequence[World]) -> float:
    """Return the height of what stands above the table: groups and worlds."""
    letters = max(len(line) for world in band for line in _lines(world))
    return 0.22 + 0.062 * letters


def _band(
    axes: "Axes", band: Sequence[World], order: Sequence[str], top: float, head: float
) -> None:
    from matplotlib.patches import Rectangle

    bottom = top + head
    for group in dict.fromkeys(world.group for world in band):
        columns = [i for i, world in enumerate(band) if world.group == group]
        left, right = _NAMES + _COLUMN * columns[0], _NAMES + _COLUMN * (columns[-1] + 1)
        _text(axes, (left + right) / 2, top + 0.07, group, size=_SIZE, weight="bold")
        axes.plot([left + 0.03, right - 0.03], [top + 0.15] * 2, color=_INK, linewidth=0.8)
    for i, world in enumerate(band):
        x = _NAMES + _COLUMN * (i + 0.5)
        style = {"va": "bottom", "rotation": 90, "linespacing": 0.95, "size": _SMALL}
        _text(axes, x, bottom - 0.04, "\n".join(_lines(world)), **style)
    for k, method in enumerate(order):
        y = bottom + _ROW * (k + 0.5)
        name = family(method)
        _mark(axes, 0.1, y, name)
        _text(
            axes,
            0.2,
            y,
            method_name(method),
            ha="left",
            size=_SIZE,
            color=MARKS[name][0],
            weight=_weight(name),
        )
        for i, world in enumerate(band):
            x = _NAMES + _COLUMN * i
            if method not in world.numbers:
                _text(axes, x + _COLUMN / 2, y, "·", size=_SIZE, color=_PALE)
                continue
            below, is_first = world.distance(method), world.rank(method) == 1
            framed = is_first or world.level(method)
            edge = 0.012 if framed else 0
            axes.add_patch(
                Rectangle(
                    (x + edge, y - _ROW / 2 + edge), _COLUMN - 2 * edge, _ROW - 2 * edge, facecolor=_colour(below),
                    edgecolor=_INK if framed else "none", linewidth=0.9 if framed else 0, zorder=2 if framed else 1,
                )
            )  # fmt: skip
            _text(
                axes, x + _COLUMN / 2, y, f"{world.numbers[method].mean:.1f}", size=_SMALL, color=_letters(below),
                weight="bold" if is_first else "normal", zorder=3,
            )  # fmt: skip
    if any(world.ceiling for world in band):
        y = bottom + _ROW * (len(order) + 0.5) + 0.02
        _text(axes, 0.2, y, method_name(CEILING), ha="left", size=_SIZE)
        for i, world in enumerate(band):
            if world.ceiling:
                _text(
                    axes, _NAMES + _COLUMN * (i + 0.5), y, f"{world.ceiling.mean:.1f}", size=_SMALL
                )


def _limits(world: World) -> tuple[float, float]:
    """Return an axis on which every mean, deviation and the ceiling can be seen."""
    numbers = [*world.numbers.values(), *([world.ceiling] if world.ceiling else [])]
    low = min(number.mean - (number.deviation or 0) for number in numbers)
    high = max(number.mean + (number.deviation or 0) for number in numbers)
    edge = max(0.05 * (high - low), 0.1)
    return low - edge, high + edge


def _panel(drawing: "Figure", world: World, left: float, top: float) -> None:
    """Draw one world of the ranking, with its upper left corner there, in inches."""
    wide, high = drawing.get_size_inches()
    order = by_wins([world])
    room = _LINE * len(order)
    plot = left + 1.8, _PANEL - 2.23  # from where, and how wide
    axes = drawing.add_axes(
        (plot[0] / wide, 1 - (top + 0.22 + room) / high, plot[1] / wide, room / high)
    )
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_xlim(*_limits(world))
    title = (
        world.name
        if world.group == REAL_CROWDS
        else f"{world.group.removesuffix(BEYOND_PAPER)}, {world.name}"
    )
    middle = (left + _PANEL / 2) / wide, 1 - (top + 0.19) / high
    drawing.text(*middle, title, size=8, weight="bold", ha="center", va="bottom")
    axes.set_yticks([])
    axes.tick_params(axis="x", labelsize=_SMALL, length=2)
    axes.xaxis.grid(color="#DDDDDD", linewidth=0.6)
    names, figures = axes.get_yaxis_transform(), axes.get_yaxis_transform()
    for k, method in enumerate(order):
        number, name = world.numbers[method], family(method)
        if name == OURS:
            axes.axhspan(k - 0.5, k + 0.5, facecolor="#FBE4E4", linewidth=0, zorder=0)
        if number.deviation is not None:
            axes.errorbar(
                number.mean, k, xerr=number.deviation, ecolor=MARKS[name][0], elinewidth=0.9
            )
        _mark(axes, number.mean, k, name)
        style = {"size": _SIZE, "color": MARKS[name][0], "weight": _weight(name)}
        _text(axes, -0.03, k, method_name(method), ha="right", transform=names, **style)
        _text(
            axes,
            1.14,
            k,
            f"{number.mean:.1f}",
            ha="right",
            transform=figures,
            **{**style, "size": _SMALL},
        )
    if world.ceiling is not None:
        axes.axvline(world.ceiling.mean, color=_INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=0)
