r"""Tables of numbers in Markdown and LaTeX, with the best of each column in bold. Not a recipe itself.

`benchmark_tables.py` says which numbers.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from benchmark_cells import CEILING, Number, dataset_name, method_name, within_error

MARK = "†"
LEVEL = (
    "Within a standard error of the difference to the first of its column. The error is the paired one where both were "
    "measured with the same seeds, else Welch's; one seed has none."
)


class Row(NamedTuple):
    """A row of a table.

    Args:
        name: in the first column.
        numbers: one per column, None where nothing was measured.
        ours: whether it takes part in the choice of the best; the paper's and the ceiling do not.
        paper: whether it is the paper's.
    """

    name: str
    numbers: tuple[Number | None, ...]
    ours: bool = True
    paper: bool = False


class Block(NamedTuple):
    """Rows of one measure, or of one measure per column.

    Args:
        heading: text above the methods.
        rows: of them.
        ceiling: the number of gold labels, which need no crowd.
        lower: the columns in which the lowest number is the best.
    """

    heading: str
    rows: list[Row]
    ceiling: Number | None = None
    lower: frozenset[int] = frozenset()


class Table(NamedTuple):
    """What Markdown and LaTeX write.

    Args:
        dataset: its name.
        title: what the numbers are.
        columns: their headings.
        blocks: the rows.
        seeds: of most numbers; the others say of how many they are.
        decimals: of each number but the paper's.
        what: of several tables of a data set, which this is; empty for that of accuracies.
    """

    dataset: str
    title: str
    columns: list[str]
    blocks: list[Block]
    seeds: int | None
    decimals: int = 1
    what: str = ""


def text_of(number: Number, decimals: int = 1) -> str:
    """Write a number, with its deviation if it has one."""
    parts = [number.mean] if number.deviation is None else [number.mean, number.deviation]
    return " ± ".join(f"{part:.{decimals}f}" for part in parts)


def _written(
    block: Block, table: Table, plain: Callable[[str], str], bold: Callable[[str], str]
) -> list[list[str]]:
    """Write the rows of a block, with the best of each column in bold: all of those that print the same.

    Behind the others that are within a standard error of the best stands `MARK`.
    """
    ours = [row.numbers for row in block.rows if row.ours]
    decimals = table.decimals
    first: list[Number | None] = [
        (min if i in block.lower else max)(
            (number for number in column if number is not None), key=lambda n: n.mean, default=None
        )
        for i, column in enumerate(zip(*ours, strict=True))
    ] or [None] * len(table.columns)  # fmt: skip

    def entry(row: Row, column: int) -> str:
        number, best = row.numbers[column], first[column]
        if number is None:
            return ""
        compared = row.ours and best is not None
        is_best = compared and round(number.mean, decimals) == round(best.mean, decimals)
        # The paper's numbers as it prints them.
        text = (bold if is_best else plain)(text_of(number, 2 if row.paper else decimals))
        if row.paper:
            return text
        level = compared and not is_best and within_error(number, best)
        return text + _count(number, table) + (f" {MARK}" if level else "")

    return [[row.name, *(entry(row, i) for i in range(len(row.numbers)))] for row in block.rows]


def _footnote(table: Table) -> str:
    """Explain `MARK` if it stands in a table."""
    rows = [row for block in table.blocks for row in _written(block, table, str, str)]
    marked = any(entry.endswith(MARK) for row in rows for entry in row[1:])
    return f"{MARK} {LEVEL}" if marked else ""


def _count(number: Number, table: Table) -> str:
    return f" ({number.seeds})" if number.seeds != table.seeds else ""


def markdown_table(table: Table) -> str:
    """Write a table in Markdown, with its title."""
    name = dataset_name(table.dataset) + (f": {table.what}" if table.what else "")
    lines = [f"### {name}", "", table.title, ""]
    for block in table.blocks:
        lines += [*rows_of(block, table), ""]
        if block.ceiling is not None:
            text = text_of(block.ceiling, table.decimals) + _count(block.ceiling, table)
            lines += [f"Trained on the true labels, which no crowd changes: {text}.", ""]
    if footnote := _footnote(table):
        lines += [footnote, ""]
    return "\n".join(lines)


def rows_of(block: Block, table: Table) -> list[str]:
    """Write the lines of a block in Markdown."""
    rows = _written(block, table, str, "**{}**".format)
    rows = [[block.heading, *table.columns], *rows]
    wide = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * wide[0], *("-" * (width - 1) + ":" for width in wide[1:])]
    lines = []
    for row in [rows[0], rule, *rows[1:]]:
        first = row[0].ljust(wide[0])
        rest = (text.rjust(width) for text, width in zip(row[1:], wide[1:], strict=True))
        lines.append(f"| {' | '.join([first, *rest])} |")
    return lines


def latex_table(table: Table) -> str:
    r"""Write a table as a `table` environment of LaTeX."""

    def plain(text: str) -> str:
        return f"${text}$".replace("±", r"\pm")

    def bold(text: str) -> str:
        return plain(rf"\mathbf{{{text}}}")

    caption = f"{dataset_name(table.dataset)}. {table.title} {_footnote(table)}".rstrip()
    width = len(table.columns)
    several = len(table.blocks) > 1
    heading = "" if several else table.blocks[0].heading if table.blocks else ""
    lines = [
        r"\begin{table}[htp]",
        rf"\caption{{{_escaped(caption)}}}",
        rf"\label{{table:{re.sub('[^A-Za-z0-9]+', '-', f'{table.dataset} {table.what}'.strip())}}}",
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
            entries = [entry.replace(f" {MARK}", _LATEX[MARK]) for entry in entries]
            lines.append(rf"{' & '.join([_escaped(name), *entries])} \\")
        if block.ceiling is not None:
            text = plain(text_of(block.ceiling, table.decimals)) + _count(block.ceiling, table)
            lines.append(
                rf"{_escaped(method_name(CEILING))} & \multicolumn{{{width}}}{{c}}{{{text}}} \\"
            )
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    MARK: r"\textsuperscript{\dag}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}  # fmt: skip


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
