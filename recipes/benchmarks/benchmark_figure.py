r"""The cells of `benchmark.py` as the paper's figure 3. Not a recipe itself.

    figure(read_cells(Path("out/benchmark")), Path("benchmark.png"))

`benchmark_cells.py` has the numbers.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from benchmark_cells import (
    CEILING,
    METHODS,
    PICKS,
    REAL,
    SHOWN,
    Cell,
    Crowd,
    Results,
    crowd_name,
    dataset_name,
    method_name,
    ordered,
    results,
)

from hf_maxmig.data.simulated.simulation import CASES
from hf_maxmig.model.whole_files import staged

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours after P. Tol's colour-blind safe schemes, the paper's methods as in its figure (Max-MIG
# red); hatched where two would look alike without colour.
STYLES = {
    "majority_vote": ("#BBBBBB", ""),
    "crowd_layer": ("#4477AA", "////"),
    "crowd_layer_vote_share": ("#88BBDD", "\\\\\\\\"),
    "doctor_net": ("#228855", ""),
    "aggnet": ("#DDAA33", "...."),
    "max_mig": ("#BB1122", ""),
    "max_mig_vote_share": ("#EE8866", "////"),
}
_OTHERS = ("#332288", "#88CCEE", "#999933", "#AA4499", "#661100", "#DDCC77", "#44BB99", "#882255")
_HATCHES = ("", "\\\\\\\\", "xxxx", "++++")
_INK = "#333333"
_DASHES = (0, (4, 2))
SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "benchmark",
    "text.parse_math": False,
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.edgecolor": _INK,
    "hatch.color": "white",
    "hatch.linewidth": 0.6,
}
_WIDE, _TALL, _NARROW = 7.2, 1.9, 2.6  # inches: a row of panels, and a panel of a real crowd
_LETTERS = 28  # in a line of the title of a panel of a real crowd
_BAR = 0.84  # share of the distance between two groups that the bars take


def figure(
    cells: Iterable[Cell], path: Path, pick: str = "last", methods: Sequence[str] | None = None
) -> list[Path]:
    """Draw the paper's figure 3: the classifiers' accuracies, a panel a data set.

    Groups of bars are the simulated crowds, or the real one; a bar is a method, its line the standard
    deviation over seeds; the dashed line is the classifier trained on gold labels. The axis starts
    above zero where no bar would be hidden, and says so.

    Args:
        cells: of any data sets.
        path: where it goes: a name that ends in `.png` or `.svg`, or in neither.
        pick: which epoch, one of `PICKS`.
        methods: which; those of the paper that were measured if None.

    Returns:
        The PNG and the SVG. The same cells give the same bytes.

    Raises:
        ImportError: without matplotlib.
        ValueError: as `results` does; if `path` ends in something else, a method is unknown, or none
            is left.
    """
    try:
        import matplotlib.style
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the figure needs matplotlib: pip install 'hf_maxmig[plots]'") from error

    if path.suffix not in ("", ".png", ".svg"):
        raise ValueError(f"`path` must end in .png, .svg or neither, got {path}: both are made.")
    found = results(cells, pick)
    there = {m for result in found for m in result.methods if any(result.row(m, "accuracy"))}
    chosen = list(methods) if methods is not None else [m for m in SHOWN if m in there]
    possible = (there | METHODS.keys()) - {CEILING}
    if not chosen or not possible.issuperset(chosen):
        raise ValueError(
            f"`methods` must be some of {', '.join(ordered(there, METHODS))} (the line of "
            f"{CEILING} is always drawn), got {', '.join(chosen) or 'none of the paper'}."
        )
    settings: list[Any] = ["default", SETTINGS]  # whatever the user's settings are
    with matplotlib.style.context(settings):
        drawing = Figure(layout="constrained")
        _draw(drawing, found, chosen, pick)
        paths = [path.with_suffix(".png"), path.with_suffix(".svg")]
        for file, metadata in zip(paths, ({"Software": None}, {"Date": None}), strict=True):
            with staged(file) as place:
                drawing.savefig(place, dpi=200, metadata=metadata)
    return paths


def _draw(drawing: "Figure", found: list[Results], methods: list[str], pick: str) -> None:
    wide = [result for result in found if result.crowds != (REAL,)]
    narrow = [result for result in found if result.crowds == (REAL,)]
    columns = 3 if wide else min(3, len(narrow))
    rows = len(wide) + math.ceil(len(narrow) / columns)
    width = _WIDE if columns == 3 else max(4.2, _NARROW * columns)
    grid = drawing.add_gridspec(rows, columns)
    panels = [drawing.add_subplot(grid[row, :]) for row in range(len(wide))]
    for i in range(len(narrow)):
        panels.append(drawing.add_subplot(grid[len(wide) + i // columns, i % columns]))
    styles = _styles(methods)
    for axes, result in zip(panels, [*wide, *narrow], strict=True):
        _panel(axes, result, styles)
    for axes in [*panels[: len(wide)], *panels[len(wide) :: columns]]:  # the first of each row
        axes.set_ylabel("accuracy in percent")
    title = f"Test accuracy {PICKS[pick].partition(' (')[0]}"
    drawn = [number for result in found for m in methods for number in result.row(m, "accuracy")]
    if any(number is not None and number.deviation is not None for number in drawn):
        title += "\nLines on the bars: standard deviation over seeds"
    lines = _legend(drawing, styles, found, width, title)
    drawing.set_size_inches(width, 0.25 + 0.17 * lines + _TALL * rows)


def _styles(methods: list[str]) -> dict[str, tuple[str, str]]:
    others = [method for method in methods if method not in STYLES]
    made = {
        method: (_OTHERS[i % len(_OTHERS)], _HATCHES[i // len(_OTHERS) % len(_HATCHES)])
        for i, method in enumerate(others)
    }
    return {method: {**STYLES, **made}[method] for method in methods}


def _panel(axes: "Axes", result: Results, styles: dict[str, tuple[str, str]]) -> None:
    one = _BAR / len(styles)
    bottom = _start(result, list(styles))
    blank = []
    for k, (method, (colour, hatch)) in enumerate(styles.items()):
        for group, number in enumerate(result.row(method, "accuracy")):
            at = group + (k + 0.5) * one - _BAR / 2
            if number is None:
                blank.append(at)
                continue
            axes.bar(
                at, number.mean - bottom, 0.92 * one, bottom, color=colour, hatch=hatch, linewidth=0
            )
            if number.deviation is not None:
                axes.errorbar(
                    at, number.mean, number.deviation, ecolor=_INK, elinewidth=0.8, capsize=min(2, 12 * one),
                    capthick=0.8,
                )  # fmt: skip
    height = 100 - bottom
    room = one * 72 * (_WIDE if len(result.crowds) > 1 else _NARROW) / (len(result.crowds) + 1)
    size = min(4, 0.7 * room) ** 2
    axes.scatter(
        blank, [bottom + 0.05 * height] * len(blank), s=size, marker="x", c=_INK, linewidths=0.8
    )
    if result.ceiling is not None:
        axes.axhline(result.ceiling.mean, color=_INK, linewidth=1, linestyle=_DASHES)
    axes.set_ylim(bottom, 100)
    axes.set_xlim(-0.55, len(result.crowds) - 0.45)
    axes.set_xticks(range(len(result.crowds)), [_group(crowd) for crowd in result.crowds])
    axes.tick_params(axis="x", length=0)
    axes.yaxis.grid(color="#DDDDDD", linewidth=0.6)
    title = dataset_name(result.dataset)
    if bottom:
        title += f" (axis from {bottom:g})"
    axes.set_title(title if len(result.crowds) > 1 else fill(title, _LETTERS))


def _group(crowd: Crowd) -> str:
    case, level = crowd
    if case is None or level is None:
        return "real crowd"
    if case in CASES:
        return f"{crowd_name(crowd)}\n{case.replace('_', ' ')}"
    return f"{case.replace('_', ' ')}\n({level[0].upper()})"


def _start(result: Results, methods: list[str]) -> float:
    """Return where the axis starts: low enough that the lowest bar keeps a fifth of the height."""
    rows = [result.row(method, "accuracy") for method in methods]
    lowest = min(
        (number.mean - (number.deviation or 0) for row in rows for number in row if number is not None),
        default=0,
    )  # fmt: skip
    return max(0, 10 * math.floor((lowest - (100 - lowest) / 4) / 10))


def _legend(
    drawing: "Figure",
    styles: dict[str, tuple[str, str]],
    found: list[Results],
    width: float,
    title: str,
) -> int:
    """Put the legend above the panels, to be read row by row, and return its number of rows."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=colour, hatch=hatch, linewidth=0, label=method_name(method))
        for method, (colour, hatch) in styles.items()
    ]
    if any(result.ceiling is not None for result in found):
        handles.append(
            Line2D([], [], label=method_name(CEILING), color=_INK, linewidth=1, linestyle=_DASHES)
        )
    if any(None in result.row(method, "accuracy") for result in found for method in styles):
        handles.append(
            Line2D(
                [], [], label="not measured", color=_INK, marker="x", markersize=4, linestyle="none"
            )
        )
    inches = [0.4 + 0.06 * len(handle.get_label()) for handle in handles]  # a mark and its letters
    across = len(handles) if sum(inches) <= width else int(width / max(inches))
    by_column = [handle for i in range(across) for handle in handles[i::across]]
    legend = drawing.legend(
        handles=by_column, loc="outside upper center", ncols=across, frameon=False, title=title,
        handlelength=1.6, handletextpad=0.5, columnspacing=1.2,
    )  # fmt: skip
    legend.get_title().set_multialignment("center")
    return math.ceil(len(handles) / across) + title.count("\n") + 1
