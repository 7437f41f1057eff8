r"""The cells of `benchmark.py` as the paper's tables and its figure 3. Not a recipe itself.

    cells = read_cells(Path("out/benchmark"), Path("results/luna16.json"))
    print(markdown(cells), summary(cells), sep="\n")
    figure(cells, Path("benchmark.png"))

Run as `python recipes/benchmarks/benchmark_tables.py` it writes the page of the committed results anew, and the
README's part of it.

The headline is the last epoch. The other two picks of each cell make the same tables, whose title
says which. The paper prints the best epoch on the test items: its rows say so.
"""

import json
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from readme import write_part

from hf_maxmig import MaxMIGModel
from hf_maxmig.data.simulated.simulation import CASES
from hf_maxmig.model.staging import staged
from hf_maxmig.peers import PEERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cell = dict[str, Any]
Crowd = tuple[str | None, str | None]  # case and expertise; neither, of a real crowd

LEVELS = ("high", "low")
CROWDS: dict[Crowd, str] = {
    # as the paper numbers them
    (case, level): f"4.{number}({level[0].upper()})"
    for level in LEVELS
    for number, case in enumerate(CASES, start=1)
}
REAL: Crowd = (None, None)
MEASURES = {
    "accuracy": "Classifier (d)",
    "forecast_accuracy": "Data-crowds forecaster (dc)",
    "aggregator_accuracy": "Aggregator",
}
SHORT = {"accuracy": "(d)", "forecast_accuracy": "(dc)"}  # as the paper calls them
PICKS = {
    "last": "of the last epoch",
    "label_free": "of the epoch picked without gold labels (by the gain on held-out votes)",
    "best_on_test": "of the best epoch on the test items (no fair number: what picks it also measures it)",
}
ITEMS = {"test": "test", "train": "training"}
BFLOAT16 = re.compile(r"--bf16\b(?![ =]False)")  # in the command of a cell
KEYS = {"method", "dataset", "case", "expertise", "seed", "last"}  # what makes a cell

DATASETS = {
    "digits": "Digits",
    "luna16": "LUNA16",
    "dogs_vs_cats": "Dogs vs. Cats",
    "cifar10": "CIFAR-10",
    "cifar10_features": "CIFAR-10, given features",
    "labelme": "LabelMe",
    "cifar10n": "CIFAR-10N",
    "cifar10n_features": "CIFAR-10N, given features",
}
BELOW = 1.0  # points by which a number is clearly below another
# Why a table is as it is, below its title.
NOTES = {
    ("dogs_vs_cats", "last"): (
        "Trained on 2,700 photographs and measured on 1,000; the paper has 12,500 of each."
    ),
    ("dogs_vs_cats", "label_free"): (
        "The gain on so few held-out photographs falls while most accuracies still rise, and the pick mostly comes too early."
    ),
    ("luna16", "last"): (
        "In L the classifier knows patches by heart by then, W has grown with it, and the forecaster believes the votes too "
        "much: with held-out votes a training does not end so, see the label-free pick."
    ),
}
CEILING = "true_labels"
METHODS = {
    # as people call them, in the order of the rows
    **{name: model.method for name, (model, _) in PEERS.items() if isinstance(model.method, str)},
    "crowd_layer_vote_share": "Crowd Layer, eq. 2 start",
    "doctor_net_weighted": "Doctor Net, learned weights",
    "dawid_skene": "Dawid-Skene",
    "one_coin_dawid_skene": "One-coin Dawid-Skene",
    "glad": "GLAD",
    "kos": "KOS",
    "mace": "MACE",
    "mmsr": "MMSR",
    "wawa": "Wawa",
    "zero_based_skill": "Zero-based skill",
    "max_mig": MaxMIGModel.method,
    "max_mig_vote_share": f"{MaxMIGModel.method}, eq. 2 start",
    "max_mig_factored": f"{MaxMIGModel.method}, factored",
}
# The paper starts Crowd Layer at the identity, and on CIFAR-10 at equation 2 (Appendix B.2).
OF_PAPER = (
    "majority_vote", "crowd_layer", "crowd_layer_vote_share", "doctor_net", "aggnet", "max_mig"
)  # fmt: skip
SHOWN = (*OF_PAPER, "max_mig_vote_share")  # in the figure and the README
RESULTS = Path(__file__).with_name("results") / "benchmark"


class Number(NamedTuple):
    """Accuracies of several seeds, in percent.

    Args:
        mean: over the seeds.
        deviation: the standard deviation, with n - 1; None for one seed, or where it isn't told.
        seeds: how many; None where it isn't told.
    """

    mean: float
    deviation: float | None = None
    seeds: int | None = None


def _printed(*means: float) -> tuple[Number, ...]:
    return tuple(Number(mean) for mean in means)


PAPER: dict[str, dict[str, dict[str, tuple[Number, ...]]]] = {
    # data set: measure: method: as printed, in the order of `CROWDS`; all of the best test epoch
    "labelme": {  # Table 2
        "accuracy": {
            "majority_vote": (Number(80.41, 0.56),),
            "crowd_layer": (Number(83.65, 0.50),),
            "doctor_net": (Number(80.56, 0.59),),
            "aggnet": (Number(85.20, 0.26),),
            "max_mig": (Number(86.42, 0.36),),
        },
    },
    # Table 3
    "dogs_vs_cats": {
        "accuracy": {
            "max_mig": _printed(79.52, 80.25, 78.94, 71.44, 71.07, 68.40),
            "aggnet": _printed(79.36, 79.53, 71.97, 70.46, 70.07, 63.85),
        },
        "forecast_accuracy": {
            "max_mig": _printed(88.80, 87.60, 87.17, 73.99, 73.38, 70.75),
            "aggnet": _printed(88.00, 88.56, 75.00, 71.27, 70.75, 61.14),
        },
    },
    "cifar10": {
        "accuracy": {
            "max_mig": _printed(86.33, 86.55, 86.71, 70.16, 69.99, 67.59),
            "aggnet": _printed(86.13, 86.27, 63.91, 70.21, 62.50, 38.27),
        },
        "forecast_accuracy": {
            "max_mig": _printed(98.10, 98.18, 99.06, 75.55, 75.11, 72.47),
            "aggnet": _printed(99.05, 99.01, 70.01, 74.76, 72.02, 29.03),
        },
    },
    "luna16": {
        "accuracy": {
            "max_mig": _printed(90.88, 91.06, 91.15, 88.90, 89.04, 88.85),
            "aggnet": _printed(89.56, 90.23, 83.47, 81.42, 83.53, 81.68),
        },
        "forecast_accuracy": {
            "max_mig": _printed(94.56, 93.97, 92.63, 91.16, 91.23, 92.05),
            "aggnet": _printed(91.13, 91.94, 65.14, 70.97, 74.41, 61.76),
        },
    },
}

# What the paper's words mean in percentage points.
FALL = 5.0  # the smallest that the paper calls one is 6.1: AggNet on LUNA16, 4.1(H) to 4.3(H)
# Five experts who err tell less than gold labels do, so some distance from these is no failure. One
# that the paper calls a failure is of another size: AggNet on CIFAR-10, 4.3(H), is 22 below its 4.1.
FAILURE = 10.0
TIE = 0.5  # "almost": in 4.1(L) of CIFAR-10 the paper's AggNet is 0.05 above Max-MIG


# Reading


def read_cells(*places: Path) -> list[Cell]:
    """Read what `benchmark.py` wrote.

    Args:
        *places: folders, of which every `*.json` is read, in folders below too, or files: a cell or
            a list of cells each. A file in a folder that holds something else is passed over.

    Returns:
        The cells, in the order of the places and of the files' names.

    Raises:
        FileNotFoundError: if a place isn't there.
        ValueError: if a file is broken, one named directly holds no cells, a cell has an unknown
            case or expertise, or two are of the same data set, method, crowd and seed.
    """
    files: dict[Path, bool] = {}  # whether it was named directly
    for place in places:
        if not place.exists():
            raise FileNotFoundError(
                f"`places` must be folders or files, got {place}: nothing is there."
            )
        if place.is_dir():
            for file in sorted(place.rglob("*.json")):
                # A folder with a dot in front holds what is being written.
                if not any(part.startswith(".") for part in file.relative_to(place).parts):
                    files.setdefault(file, False)
        else:
            files[place] = True
    found: dict[tuple[Any, ...], tuple[Path, Cell]] = {}
    for file, named in files.items():
        for cell in _cells_of(file, named):
            key = (cell["dataset"], cell["method"], cell["case"], cell["expertise"], cell["seed"])
            if key in found:
                raise ValueError(
                    f"`places` must hold each cell once, got {', '.join(map(str, key))} in "
                    f"{found[key][0]} and in {file}: leave one of them out."
                )
            found[key] = file, cell
    return [cell for _, cell in found.values()]


def _cells_of(file: Path, named: bool) -> list[Cell]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} must be JSON, got a file that is broken: {error}.") from error
    rows = content if isinstance(content, list) else [content]
    cells = [row for row in rows if isinstance(row, dict) and row.keys() >= KEYS]
    if len(cells) < len(rows) and (cells or named):
        raise ValueError(
            f"{file} must be a cell of the benchmark or a list of them, got "
            f"{len(rows) - len(cells)} of {len(rows)} without {', '.join(sorted(KEYS))}."
        )
    for cell in cells:
        crowd = (cell["case"], cell["expertise"])
        if crowd not in CROWDS and crowd != REAL:
            raise ValueError(
                f"{file}: case and expertise must be one of {', '.join(CASES)} and one of "
                f"{', '.join(LEVELS)}, or null both, got {crowd[0]!r} and {crowd[1]!r}."
            )
    return cells


# Numbers


class Results(NamedTuple):
    """What was measured on a data set.

    Args:
        dataset: its name.
        crowds: the six simulated ones, or the real one.
        methods: those that have a cell, in the order of `METHODS`, without `true_labels`.
        numbers: by method, crowd and measure; `true_labels` has one for any crowd.
        items: which items forecaster and aggregator are measured on.
        cells: how many trainings there were.
        in_bfloat16: how many of them in bfloat16.
    """

    dataset: str
    crowds: tuple[Crowd, ...]
    methods: list[str]
    numbers: dict[tuple[str, Crowd, str], Number]
    items: str
    cells: int
    in_bfloat16: int

    def row(self, method: str, measure: str) -> tuple[Number | None, ...]:
        """The numbers of a method, crowd by crowd; None where nothing was measured."""
        return tuple(self.numbers.get((method, crowd, measure)) for crowd in self.crowds)

    def printed(self, measure: str) -> dict[str, tuple[Number, ...]]:
        """The paper's numbers for these crowds, by method."""
        rows = PAPER.get(self.dataset, {}).get(measure, {})
        return {name: row for name, row in rows.items() if len(row) == len(self.crowds)}

    @property
    def ceiling(self) -> Number | None:
        """The classifier trained on gold labels."""
        return self.numbers.get((CEILING, REAL, "accuracy"))


def results(cells: Iterable[Cell], pick: str = "last") -> list[Results]:
    """Average over seeds.

    Args:
        cells: of any data sets.
        pick: one of `PICKS`.

    Returns:
        One for each data set, in the order of `DATASETS`.

    Raises:
        ValueError: if there are no cells or no such pick, or a data set has cells of a simulated
            crowd and of a real one.
    """
    if pick not in PICKS:
        raise ValueError(f"`pick` must be one of {', '.join(PICKS)}, got {pick!r}.")
    by_dataset = defaultdict(list)
    for cell in cells:
        by_dataset[cell["dataset"]].append(cell)
    if not by_dataset:
        raise ValueError("`cells` must hold at least one cell, got none.")
    return [
        _results(dataset, by_dataset[dataset], pick) for dataset in _ordered(by_dataset, DATASETS)
    ]


def _results(dataset: str, cells: list[Cell], pick: str) -> Results:
    values, items = defaultdict(list), set()
    for cell in cells:
        for measure in MEASURES:
            value = (cell.get(pick) or {}).get(measure)
            if value is None:
                continue
            crowd = (cell["case"], cell["expertise"])
            values[cell["method"], crowd, measure].append(100 * value)
            if measure != "accuracy":
                items.add(ITEMS[cell.get("forecast_items", "test")])
    of_crowd = {(cell["case"], cell["expertise"]) for cell in cells if cell["method"] != CEILING}
    if REAL in of_crowd and len(of_crowd) > 1:
        raise ValueError(
            f"`cells` of {dataset} must all have a case and expertise or none of them (but for "
            f"{CEILING}), got both."
        )
    simulated = bool(of_crowd - {REAL})
    return Results(
        dataset=dataset,
        crowds=tuple(CROWDS) if simulated else (REAL,),
        methods=_ordered({cell["method"] for cell in cells} - {CEILING}, METHODS),
        numbers={key: _average(several) for key, several in values.items()},
        items=" and ".join(sorted(items)) or "test",
        cells=len(cells),
        in_bfloat16=sum(bool(BFLOAT16.search(cell.get("command", ""))) for cell in cells),
    )


def _average(values: list[float]) -> Number:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Number(statistics.mean(values), deviation, len(values))


def _ordered(names: Iterable[str], first: Iterable[str]) -> list[str]:
    names = set(names)
    known = [name for name in first if name in names]
    return known + sorted(names - set(known))


# Tables


class Row(NamedTuple):
    """A row of a table.

    Args:
        name: what stands in front.
        numbers: one a column, None where nothing was measured.
        ours: whether it takes part in the choice of the best; the paper's and the ceiling do not.
        paper: whether it is the paper's.
    """

    name: str
    numbers: tuple[Number | None, ...]
    ours: bool = True
    paper: bool = False


class Block(NamedTuple):
    """Rows of one measure; `ceiling` is the number of gold labels, which need no crowd."""

    heading: str
    rows: list[Row]
    ceiling: Number | None = None


class Table(NamedTuple):
    """What Markdown and LaTeX write.

    Args:
        dataset: its name.
        title: what the numbers are.
        columns: their headings.
        blocks: the rows.
        seeds: of most numbers; the others say of how many they are.
    """

    dataset: str
    title: str
    columns: list[str]
    blocks: list[Block]
    seeds: int | None


def tables(cells: Iterable[Cell], pick: str = "last", aggregator: bool = False) -> list[Table]:
    """Arrange cells as tables 2 and 3 of the paper do; see `markdown`."""
    return [_table(result, pick, aggregator) for result in results(cells, pick)]


def _table(result: Results, pick: str, aggregator: bool) -> Table:
    if result.crowds == (REAL,):
        columns, blocks = list(MEASURES.values()), [_real_block(result)]
    else:
        columns = list(CROWDS.values())
        wanted = [m for m in MEASURES if m != "aggregator_accuracy" or aggregator]
        blocks = [block for block in (_block(result, m) for m in wanted) if block.rows]
    shown = [row.numbers for block in blocks for row in block.rows if not row.paper]
    numbers = [number for row in shown for number in row if number is not None]
    numbers += [block.ceiling for block in blocks if block.ceiling is not None]
    seeds = Counter(number.seeds for number in numbers)
    usual = max(seeds, key=lambda n: (seeds[n], n or 0), default=None)
    title = _title(result, pick, usual, len(seeds) > 1)
    return Table(result.dataset, title, columns, blocks, usual)


def _block(result: Results, measure: str) -> Block:
    printed = result.printed(measure)
    rows = []
    for method in _ordered({*result.methods, *printed}, METHODS):
        numbers = result.row(method, measure)
        if any(numbers):
            rows.append(Row(_name(method), numbers))
        if method in printed:
            rows.append(_paper_row(_part(method, measure), printed[method]))
    ceiling = result.ceiling if measure == "accuracy" else None
    return Block(MEASURES[measure], rows, ceiling)


def _real_block(result: Results) -> Block:
    """Measures side by side: a real crowd is one crowd."""
    printed = result.printed("accuracy")
    rows = []
    for method in [*_ordered({*result.methods, *printed}, METHODS), CEILING]:
        numbers = tuple(result.numbers.get((method, REAL, measure)) for measure in MEASURES)
        if any(numbers):
            rows.append(Row(_name(method), numbers, ours=method != CEILING))
        if method in printed:
            rows.append(_paper_row(_name(method), (*printed[method], None, None)))
    return Block("Method", rows)


def _paper_row(name: str, numbers: tuple[Number | None, ...]) -> Row:
    return Row(f"paper: {name}, best test epoch", numbers, ours=False, paper=True)


def _title(result: Results, pick: str, seeds: int | None, others: bool) -> str:
    items = "on the test items"
    if result.items != "test":
        items += f" (forecaster and aggregator: on the {result.items} items)"
    lines = [f"Accuracy in percent {PICKS[pick]}, {items}."]
    if seeds == 1:
        spread = "One seed"
    elif seeds is not None:
        spread = f"Mean ± standard deviation over {seeds} seeds"
    else:
        spread = "Nothing is measured"
    lines.append(f"{spread}{', elsewhere their number in brackets' if others else ''}.")
    lines.append("Bold: the best of its column. Blank: not measured.")
    if 0 < result.in_bfloat16 < result.cells:
        lines.append(
            f"Of {result.cells} trainings {result.in_bfloat16} were in bfloat16, the others in float32: the command of each "
            "cell says which."
        )
    if pick == "label_free":
        lines.append("A method without an aggregator has no such pick.")
        lines.append("Max-MIG's W has the strength that the held-out votes give it.")
    lines += [_beside_paper(result), NOTES.get((result.dataset, pick), "")]
    return " ".join(line for line in lines if line)


def _beside_paper(result: Results) -> str:
    """Say where ours is clearly below what the paper prints of its best test epoch."""
    method, parts, below, compared = "max_mig", [], 0, 0
    for measure, what in SHORT.items():
        printed = result.printed(measure).get(method)
        if printed is None:
            continue
        ours = result.row(method, measure)
        worse = _clearly_below(result.crowds, ours, printed)
        if worse:
            crowds = ", ".join(CROWDS[crowd] for crowd in worse if crowd in CROWDS)
            parts.append(f"{what} of {crowds}" if crowds else what)
        below += len(worse)
        compared += sum(number is not None for number in ours)
    if not compared:
        return ""
    only = "Only in" if 2 * below <= compared else "In"
    where = f"{only} {' and in '.join(parts)}" if parts else "Nowhere"
    return f"{where} is {_name(method)} more than a point below the paper's best test epoch."


def _clearly_below(
    crowds: Sequence[Crowd], numbers: Sequence[Number | None], others: Sequence[Number | None]
) -> list[Crowd]:
    return [
        crowd
        for crowd, number, other in zip(crowds, numbers, others, strict=True)
        if number and other and number.mean < other.mean - BELOW
    ]


def _name(method: str) -> str:
    return METHODS.get(method, method)


def _part(method: str, measure: str) -> str:
    return f"{_name(method)} {SHORT[measure]}"


def _dataset_name(dataset: str) -> str:
    return DATASETS.get(dataset, dataset)


def _text(number: Number, paper: bool = False) -> str:
    """One decimal; the paper's as it prints them."""
    decimals = 2 if paper else 1
    parts = [number.mean] if number.deviation is None else [number.mean, number.deviation]
    return " ± ".join(f"{part:.{decimals}f}" for part in parts)


def _written(
    block: Block, table: Table, plain: Callable[[str], str], bold: Callable[[str], str]
) -> list[list[str]]:
    """The rows of a block as text, best of each column in bold: all of those that print the same."""
    ours = [row.numbers for row in block.rows if row.ours]
    best = [
        max((round(number.mean, 1) for number in column if number is not None), default=math.inf)
        for column in zip(*ours, strict=True)
    ] or [math.inf] * len(table.columns)

    def entry(row: Row, column: int) -> str:
        number = row.numbers[column]
        if number is None:
            return ""
        is_best = row.ours and round(number.mean, 1) == best[column]
        text = (bold if is_best else plain)(_text(number, row.paper))
        return text if row.paper else text + _count(number, table)

    return [[row.name, *(entry(row, i) for i in range(len(row.numbers)))] for row in block.rows]


def _count(number: Number, table: Table) -> str:
    return f" ({number.seeds})" if number.seeds != table.seeds else ""


def markdown(cells: Iterable[Cell], pick: str = "last", aggregator: bool = False) -> str:
    """Write the tables of all data sets in Markdown.

    A simulated crowd makes the paper's Table 3: a row a method, a column a case, first of the
    classifier, then of the data-crowds forecaster where the method has one. A real crowd makes its
    Table 2, with forecaster and aggregator in further columns. Where the paper prints numbers of the
    data set, they stand below ours.

    Args:
        cells: of any data sets.
        pick: which epoch, one of `PICKS`.
        aggregator: for simulated crowds, whether to add a table of the aggregator.

    Returns:
        The text, with a newline at the end.

    Raises:
        ValueError: as `results` does.
    """
    return "\n".join(_markdown(table) for table in tables(cells, pick, aggregator))


def _markdown(table: Table) -> str:
    lines = [f"### {_dataset_name(table.dataset)}", "", table.title, ""]
    for block in table.blocks:
        rows = _written(block, table, str, "**{}**".format)
        rows = [[block.heading, *table.columns], *rows]
        wide = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
        rule = ["-" * wide[0], *("-" * (width - 1) + ":" for width in wide[1:])]
        for row in [rows[0], rule, *rows[1:]]:
            first = row[0].ljust(wide[0])
            rest = (text.rjust(width) for text, width in zip(row[1:], wide[1:], strict=True))
            lines.append(f"| {' | '.join([first, *rest])} |")
        lines.append("")
        if block.ceiling is not None:
            text = _text(block.ceiling) + _count(block.ceiling, table)
            lines += [f"Trained on the true labels, which no crowd changes: {text}.", ""]
    return "\n".join(lines)


def latex(cells: Iterable[Cell], pick: str = "last", aggregator: bool = False) -> str:
    r"""Write the tables of all data sets in LaTeX, for a document with `\usepackage{booktabs}`.

    Args:
        cells: of any data sets.
        pick: which epoch, one of `PICKS`.
        aggregator: for simulated crowds, whether to add rows of the aggregator.

    Returns:
        One `table` environment a data set; a newline at the end.

    Raises:
        ValueError: as `results` does.
    """
    written = [_latex(table) for table in tables(cells, pick, aggregator)]
    return "\n".join([r"% needs \usepackage{booktabs}", *written])


def _latex(table: Table) -> str:
    def plain(text: str) -> str:
        return f"${text}$".replace("±", r"\pm")

    def bold(text: str) -> str:
        return plain(rf"\mathbf{{{text}}}")

    width = len(table.columns)
    several = len(table.blocks) > 1
    heading = "" if several else table.blocks[0].heading if table.blocks else ""
    lines = [
        r"\begin{table}[htp]",
        rf"\caption{{{_escaped(f'{_dataset_name(table.dataset)}. {table.title}')}}}",
        rf"\label{{table:{re.sub('[^A-Za-z0-9]+', '-', table.dataset)}}}",
        r"\centering",
        rf"\begin{{tabular}}{{l{' c' * width}}}",
        r"\toprule",
        rf"{' & '.join(_escaped(text) for text in [heading, *table.columns])} \\",
    ]
    for block in table.blocks:
        lines.append(r"\midrule")
        if several:
            lines.append(
                rf"\multicolumn{{{width + 1}}}{{l}}{{\emph{{{_escaped(block.heading)}}}}} \\"
            )
        for name, *entries in _written(block, table, plain, bold):
            lines.append(rf"{' & '.join([_escaped(name), *entries])} \\")
        if block.ceiling is not None:
            text = plain(_text(block.ceiling)) + _count(block.ceiling, table)
            lines.append(rf"{_escaped(_name(CEILING))} & \multicolumn{{{width}}}{{c}}{{{text}}} \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}  # fmt: skip


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


# The paper's claims


def summary(cells: Iterable[Cell], pick: str = "last") -> str:
    """Judge what the paper claims by the accuracies of classifier and forecaster, a line a claim.

    Args:
        cells: of any data sets.
        pick: which epoch, one of `PICKS`.

    Returns:
        A Markdown list, each line with its numbers; a newline at the end. What "falls" and "fails"
        mean is in `FALL`, `FAILURE` and `TIE`, in percentage points.

    Raises:
        ValueError: as `results` does.
    """
    lines = []
    for result in results(cells, pick):
        simulated, claims = result.crowds != (REAL,), []
        if simulated:
            claims += [
                _falls(result, "majority_vote", "accuracy", "naive_majority"),
                _falls(result, "aggnet", "accuracy", "correlated"),
                _fails_under_none(result),
            ]
        claims.append(_leads(result, "accuracy"))
        forecasts = any(result.row("aggnet", "forecast_accuracy"))
        if forecasts and simulated:
            claims.append(_falls(result, "aggnet", "forecast_accuracy", "correlated"))
        if forecasts:
            claims.append(_leads(result, "forecast_accuracy"))
        lines += [f"- {_dataset_name(result.dataset)}: {claim}." for claim in claims]
    return "\n".join([*lines, ""])


_MISTAKES = {"naive_majority": "naive majority", "correlated": "correlated mistakes"}


def _verdict(holds: bool) -> str:
    return "holds" if holds else "does not hold"


def _falls(result: Results, method: str, measure: str, case: str) -> str:
    claim = f"{_part(method, measure)} falls under {_MISTAKES[case]}"
    verdicts = []
    for level in LEVELS:
        before, after = (
            result.numbers.get((method, (name, level), measure)) for name in (CASES[0], case)
        )
        here, there = CROWDS[case, level], CROWDS[CASES[0], level]
        if before is None or after is None:
            verdicts.append(f"{here} not measured")
            continue
        holds = before.mean - after.mean >= FALL
        told = f"{_text(after)} against {_text(before)} in {there}"
        verdicts.append(f"{here} {_verdict(holds)}, {told}")
    return f"{claim} ({FALL:g} points or more below 4.1): {'; '.join(verdicts)}"


def _fails_under_none(result: Results) -> str:
    ours = _part("max_mig", "accuracy")
    claim = f"{ours} fails under none (at most {FAILURE:g} points below the true labels, in H)"
    crowds = [(case, "high") for case in CASES]
    found = {crowd: result.numbers.get(("max_mig", crowd, "accuracy")) for crowd in crowds}
    measured = {crowd: number for crowd, number in found.items() if number is not None}
    if result.ceiling is None or len(measured) < len(crowds):
        lack = [CROWDS[crowd] for crowd in crowds if crowd not in measured]
        lack += ["true labels"] if result.ceiling is None else []
        return f"{claim}: not judged, {', '.join(lack)} not measured"
    worst = min(measured, key=lambda crowd: measured[crowd].mean)
    holds = result.ceiling.mean - measured[worst].mean <= FAILURE
    told = f"{_text(measured[worst])} in {CROWDS[worst]} against {_text(result.ceiling)}"
    return f"{claim}: {_verdict(holds)}, {told}"


def _leads(result: Results, measure: str) -> str:
    part = _part("max_mig", measure)
    claim = f"{part} is the best of the paper's methods, or within {TIE:g} points of it"
    verdicts = []
    for crowd in result.crowds:
        rivals = {
            method: number
            for method in OF_PAPER
            if (number := result.numbers.get((method, crowd, measure))) is not None
        }
        ours = rivals.pop("max_mig", None)
        if ours is None or not rivals:
            continue
        best = max(rivals, key=lambda method: rivals[method].mean)
        holds = ours.mean >= rivals[best].mean - TIE
        told = f"{_text(ours)} against {_text(rivals[best])} ({_name(best)})"
        verdicts.append(f"{CROWDS.get(crowd, '')} {_verdict(holds)}, {told}".strip())
    return f"{claim}: {'; '.join(verdicts) or 'not measured'}"


# Figure 3

# Colours after P. Tol's colour-blind safe schemes, the paper's methods as in its figure (Max-MIG
# red); hatched where two would look alike without colour.
_STYLES = {
    "majority_vote": ("#BBBBBB", ""),
    "crowd_layer": ("#4477AA", "////"),
    "crowd_layer_vote_share": ("#88BBDD", "\\\\\\\\"),
    "doctor_net": ("#228855", ""),
    "aggnet": ("#DDAA33", "...."),
    "max_mig": ("#BB1122", ""),
    "max_mig_vote_share": ("#EE8866", "////"),
}
_OTHERS = ("#332288", "#88CCEE", "#999933", "#AA4499", "#661100", "#DDCC77", "#44BB99", "#882255")
_HATCHES = ("", "\\\\\\\\", "xxxx")
_INK = "#333333"
_DASHES = (0, (4, 2))
_SETTINGS: dict[str, Any] = {
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
_WIDE, _TALL, _NARROW = 7.2, 1.9, 2.6  # inches: a row of panels and a panel of a real crowd
_BAR = 0.84  # of the distance between two groups, what the bars take


def figure(
    cells: Iterable[Cell], path: Path, pick: str = "last", methods: Sequence[str] | None = None
) -> list[Path]:
    """Draw the paper's figure 3: the classifiers' accuracies, a panel a data set.

    Groups of bars are the six crowds, or the real one; a bar is a method, its line the standard
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
            f"`methods` must be some of {', '.join(_ordered(there, METHODS))} (the line of "
            f"{CEILING} is always drawn), got {', '.join(chosen) or 'none of the paper'}."
        )
    settings: list[Any] = ["default", _SETTINGS]  # whatever the user has set
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
    others = [method for method in methods if method not in _STYLES]
    made = {
        method: (_OTHERS[i % len(_OTHERS)], _HATCHES[i // len(_OTHERS) % len(_HATCHES)])
        for i, method in enumerate(others)
    }
    return {method: {**_STYLES, **made}[method] for method in methods}


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
    title = _dataset_name(result.dataset)
    axes.set_title(title if bottom == 0 else f"{title} (axis from {bottom:g})")


def _group(crowd: Crowd) -> str:
    case, _ = crowd
    return "real crowd" if case is None else f"{CROWDS[crowd]}\n{case.replace('_', ' ')}"


def _start(result: Results, methods: list[str]) -> float:
    """Where the axis starts: low enough that the lowest bar keeps a fifth of the height."""
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
    """Put the legend above the panels, to be read line by line, and say how many lines it takes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=colour, hatch=hatch, linewidth=0, label=_name(method))
        for method, (colour, hatch) in styles.items()
    ]
    if any(result.ceiling is not None for result in found):
        handles.append(
            Line2D([], [], label=_name(CEILING), color=_INK, linewidth=1, linestyle=_DASHES)
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


# The page of the committed results


def page(cells: Sequence[Cell]) -> str:
    """Write all there is of the committed results: what stands beside them as README.md."""
    told = [
        "# Every method on every crowd",
        "Made by `python recipes/benchmarks/benchmark_tables.py` from the files in this folder, which `python recipes/benchmarks/benchmark.py "
        "--dataset NAME --collect FILE` wrote; each cell in them says the command that runs it again. A tenth of the training "
        "items is kept back, for every method alike. The headline is the last epoch.",
        "![The paper's figure 3](figure3.png)",
        "## The paper's claims",
        summary(cells),
        "## Last epoch",
        markdown(cells, aggregator=True),
        "## Label-free pick: the epoch with the highest gain on the held-out items",
        markdown(cells, pick="label_free"),
        "## Best epoch on the test items, as the literature prints it",
        markdown(cells, pick="best_on_test"),
    ]
    return "\n\n".join(part.strip() for part in told) + "\n"


def held_out_votes(cells: Sequence[Cell]) -> str:
    """Write what votes that were held out are worth to Max-MIG's forecaster, on simulated crowds.

    Args:
        cells: of any data sets.

    Returns:
        A table of the last epoch beside the label-free pick, with where that costs; nothing if there
        is no such cell.
    """
    method, rows = "max_mig", []
    ours = [cell for cell in cells if cell["method"] == method and cell["case"] in CASES]
    if not ours:
        return ""
    lost = []
    for pair in zip(results(ours), results(ours, "label_free"), strict=True):
        name = _dataset_name(pair[0].dataset)
        last, held_out = (result.row(method, "forecast_accuracy") for result in pair)
        for pick, numbers in (("last epoch", last), ("with held-out votes", held_out)):
            numbers = tuple(number and number._replace(seeds=None) for number in numbers)
            rows.append(Row(f"{name}, {pick}", numbers, ours=False))
        costly = _clearly_below(pair[0].crowds, held_out, last)
        if costly:
            lost.append(f"{', '.join(CROWDS[crowd] for crowd in costly)} of {name}")
    cost = f"In {'; in '.join(lost)} they cost" if lost else "Nowhere do they cost"
    told = f"They choose the epoch, and say how much the votes count in it: by the gain, without a gold label. {cost} more than a point."
    table = Table(
        "What held-out votes are worth", told, list(CROWDS.values()),
        [Block(f"{_name(method)}, forecaster (dc)", rows)], seeds=None,
    )  # fmt: skip
    return _markdown(table)


def of_readme(cells: Sequence[Cell]) -> str:
    """Write what the README shows: the paper's methods and our start, last epoch; held-out votes."""
    shown = markdown([cell for cell in cells if cell["method"] in (*SHOWN, CEILING)])
    return "\n".join(part for part in (shown, held_out_votes(cells)) if part)


def main() -> None:
    cells = read_cells(RESULTS)
    with staged(RESULTS / "README.md") as place:
        place.write_text(page(cells), encoding="utf-8")
    _, svg = figure(cells, RESULTS / "figure3.png")
    svg.unlink()  # hatched, it is larger than all the results
    write_part("benchmark", of_readme(cells))


if __name__ == "__main__":
    main()
