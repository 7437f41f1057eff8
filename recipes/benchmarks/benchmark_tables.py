r"""The cells of `benchmark.py` as the paper's tables, in Markdown and LaTeX, and its claims judged. Not a recipe itself.

    cells = read_cells(Path("out/benchmark"), Path("results/luna16.json"))
    print(markdown(cells), summary(cells), sep="\n")

Run as `python recipes/benchmarks/benchmark_tables.py` it writes the page of the committed results anew, their
figure, the tables of `docs/results.md`, and the README's short one. `benchmark_cells.py` has the numbers, `benchmark_figure.py` the figure.

The headline is the last epoch. The other two picks of each cell make the same tables, whose title
says which. The paper prints the best epoch on the test items: its rows say so.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmark_cells import (
    ANNOTATORS,
    CEILING,
    CERTAINTY,
    CROWDS,
    HIGHER,
    MEASURES,
    METHODS,
    OF_PAPER,
    PICKS,
    REAL,
    SHORT,
    SHOWN,
    Cell,
    Number,
    Results,
    clearly_below,
    crowd_name,
    dataset_name,
    method_name,
    ordered,
    read_cells,
    results,
)
from benchmark_claims import beside_all, part_of, summary
from benchmark_figure import figure
from benchmark_layout import MARK, Block, Row, Table, latex_table, markdown_table, rows_of
from benchmark_overview import ranking, table_in_colours
from benchmark_published import beside_published
from benchmark_ranks import by_group, ranks_by_crowd, ranks_in_short, worlds
from benchmark_rivals import beside_best
from pages import DOCS, README, takes_no_flags, write_part

from hf_maxmig.data.simulated.simulation import CASES
from hf_maxmig.model.whole_files import staged

RESULTS = Path(__file__).with_name("results") / "benchmark"

# Explanations of a table, below its title.
NOTES = {
    ("dogs_vs_cats", "last"): (
        "Trained on 2,700 photographs and measured on 1,000; the paper has 12,500 of each."
    ),
    ("dogs_vs_cats", "label_free"): (
        "The gain on so few held-out photographs falls while most accuracies still rise, and the pick mostly comes too early."
    ),
    ("luna16", "last"): (
        "With low expertise (L), the classifier has memorised patches by the last epoch. W has then grown too large, and the "
        "forecaster trusts the votes too much. Held-out votes mostly prevent this: see the label-free pick."
    ),
}

LEGEND = "Bold: the best of its column. Blank: not measured."
FURTHER: dict[str, tuple[dict[str, str], str]] = {
    # kind of table: its measures, and their description in its title
    "certainty": (
        CERTAINTY,
        "Negative log-likelihood of the gold label in nats, Brier score (0 to 2) and calibration error of the likeliest class "
        "(15 bins), {pick}; the classifier's (d) on the test items, the forecaster's (dc) on {items}. The lower, the better.",
    ),
    "annotators": (
        ANNOTATORS,
        "How well a method knows whether an annotator is right about an item, by the class it believes in and the annotator's "
        "confusion matrix, on the votes on {items}, {pick}: accuracy and AUROC (the higher, the better), Brier score (0 to 1) and "
        "calibration error (10 bins). The class is that of the forecaster, or of the classifier where there is none. The error of the "
        "matrices is the total variation between them and those of the gold labels.",
    ),
}


def tables(cells: Iterable[Cell], pick: str = "last", aggregator: bool = False) -> list[Table]:
    """Arrange cells as tables 2 and 3 of the paper do; see `markdown`."""
    return [_table(result, pick, aggregator) for result in results(cells, pick)]


def _table(result: Results, pick: str, aggregator: bool) -> Table:
    if result.crowds == (REAL,):
        columns, blocks = list(MEASURES.values()), [_real_block(result)]
    else:
        columns = [crowd_name(crowd) for crowd in result.crowds]
        wanted = [m for m in MEASURES if m != "aggregator_accuracy" or aggregator]
        blocks = [block for block in (_block(result, m) for m in wanted) if block.rows]
    usual, others = _seeds(blocks)
    title = _title(result, pick, usual, others)
    return Table(result.dataset, title, columns, blocks, usual)


def _seeds(blocks: list[Block]) -> tuple[int | None, bool]:
    """Return the number of seeds of most numbers, and whether others differ."""
    shown = [row.numbers for block in blocks for row in block.rows if not row.paper]
    numbers = [number for row in shown for number in row if number is not None]
    numbers += [block.ceiling for block in blocks if block.ceiling is not None]
    seeds = Counter(number.seeds for number in numbers)
    return max(seeds, key=lambda n: (seeds[n], n or 0), default=None), len(seeds) > 1


def further_tables(cells: Iterable[Cell], pick: str = "last") -> list[Table]:
    """Arrange the cells' measures beyond accuracies; see `further`."""
    return [
        table
        for result in results(cells, pick)
        for kind in FURTHER
        if (table := _further_table(result, pick, kind)).blocks
    ]


def _further_table(result: Results, pick: str, kind: str) -> Table:
    measures, words = FURTHER[kind]
    if result.crowds == (REAL,):
        columns = list(measures.values())
        blocks = [_side_by_side(result, list(measures))]
    else:
        columns = [crowd_name(crowd) for crowd in result.crowds]
        blocks = [_one_measure(result, measure, title) for measure, title in measures.items()]
    blocks = [block for block in blocks if block.rows]
    usual, others = _seeds(blocks)
    items = f"the {result.items} items"
    title = f"{words.format(pick=PICKS[pick], items=items)} {_spread(usual, others)} {LEGEND}"
    return Table(result.dataset, title, columns, blocks, usual, decimals=3, what=kind)


def _side_by_side(result: Results, measures: list[str]) -> Block:
    rows = []
    for method in [*result.methods, CEILING]:
        numbers = tuple(result.numbers.get((method, REAL, measure)) for measure in measures)
        if any(numbers):
            rows.append(Row(method_name(method), numbers, ours=method != CEILING))
    lower = frozenset(i for i, measure in enumerate(measures) if measure not in HIGHER)
    return Block("Method", rows, lower=lower)


def _one_measure(result: Results, measure: str, title: str) -> Block:
    rows = [(method_name(method), result.row(method, measure)) for method in result.methods]
    lower = frozenset() if measure in HIGHER else frozenset(range(len(result.crowds)))
    shown = [Row(name, numbers) for name, numbers in rows if any(numbers)]
    # The classifier trained on gold labels needs no crowd; its measures of annotators are of one crowd.
    ceiling = result.numbers.get((CEILING, REAL, measure)) if measure in CERTAINTY else None
    return Block(title, shown, ceiling, lower)


def _block(result: Results, measure: str) -> Block:
    printed = result.printed(measure)
    rows = []
    for method in ordered({*result.methods, *printed}, METHODS):
        numbers = result.row(method, measure)
        if any(numbers):
            rows.append(Row(method_name(method), numbers))
        if method in printed:
            rows.append(_paper_row(part_of(method, measure), printed[method]))
    ceiling = result.ceiling if measure == "accuracy" else None
    return Block(MEASURES[measure], rows, ceiling)


def _real_block(result: Results) -> Block:
    """Put the measures side by side: a real crowd is one crowd."""
    printed = result.printed("accuracy")
    rows = []
    for method in [*ordered({*result.methods, *printed}, METHODS), CEILING]:
        numbers = tuple(result.numbers.get((method, REAL, measure)) for measure in MEASURES)
        if any(numbers):
            rows.append(Row(method_name(method), numbers, ours=method != CEILING))
        if method in printed:
            rows.append(_paper_row(method_name(method), (*printed[method], None, None)))
    return Block("Method", rows)


def _paper_row(name: str, numbers: tuple[Number | None, ...]) -> Row:
    return Row(f"paper: {name}, best test epoch", numbers, ours=False, paper=True)


def _title(result: Results, pick: str, seeds: int | None, others: bool) -> str:
    items = "on the test items"
    if result.items != "test":
        items += f" (forecaster and aggregator: on the {result.items} items)"
    lines = [f"Accuracy in percent {PICKS[pick]}, {items}."]
    lines += [_spread(seeds, others), LEGEND]
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


def _spread(seeds: int | None, others: bool) -> str:
    if seeds == 1:
        spread = "One seed"
    elif seeds is not None:
        spread = f"Mean ± standard deviation over {seeds} seeds"
    else:
        spread = "Nothing is measured"
    return f"{spread}{', elsewhere their number in brackets' if others else ''}."


def _beside_paper(result: Results) -> str:
    """Return where ours is clearly below the paper's best test epoch."""
    method, parts, below, compared = "max_mig", [], 0, 0
    for measure, what in SHORT.items():
        printed = result.printed(measure).get(method)
        if printed is None:
            continue
        ours = result.row(method, measure)
        worse = clearly_below(result.crowds, ours, printed)
        if worse:
            crowds = ", ".join(CROWDS[crowd] for crowd in worse if crowd in CROWDS)
            parts.append(f"{what} of {crowds}" if crowds else what)
        below += len(worse)
        compared += sum(number is not None for number in ours)
    if not compared:
        return ""
    short = "more than a point below the paper's best test epoch"
    if not parts:
        return f"{method_name(method)} is nowhere {short}."
    only = "only " if 2 * below <= compared else ""
    return f"{method_name(method)} is {short} {only}in {' and in '.join(parts)}."


def markdown(cells: Iterable[Cell], pick: str = "last", aggregator: bool = False) -> str:
    """Write the tables of all data sets in Markdown.

    A simulated crowd makes the paper's Table 3: one row per method, one column per case, first of the
    classifier, then of the data-crowds forecaster where the method has one. Cases beyond the paper's make
    another such table. A real crowd makes its
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
    return "\n".join(markdown_table(table) for table in tables(cells, pick, aggregator))


def further(cells: Iterable[Cell], pick: str = "last") -> str:
    """Write measures beyond accuracies in Markdown: how certain a method is, and what it knows about annotators.

    A cell of an earlier version does not say it, and has no row.

    Args:
        cells: of any data sets.
        pick: which epoch, one of `PICKS`; annotators are measured in the last one.

    Returns:
        The text, with a newline at the end; nothing if no cell says any of it.

    Raises:
        ValueError: as `results` does.
    """
    return "\n".join(markdown_table(table) for table in further_tables(cells, pick))


def latex(cells: Iterable[Cell], pick: str = "last", aggregator: bool = False) -> str:
    r"""Write the tables of all data sets in LaTeX, for a document with `\usepackage{booktabs}`.

    Args:
        cells: of any data sets.
        pick: which epoch, one of `PICKS`.
        aggregator: for simulated crowds, whether to add rows of the aggregator.

    Returns:
        One `table` environment a data set, then those of `further`; a newline at the end.

    Raises:
        ValueError: as `results` does.
    """
    cells = list(cells)
    every = [*tables(cells, pick, aggregator), *further_tables(cells, pick)]
    return "\n".join([r"% needs \usepackage{booktabs}", *map(latex_table, every)])


# The page of the committed results


RANKS = (
    f"Of the classifier in the last epoch. Methods that print the same share a rank; {MARK}: within a standard error of the "
    "difference to the first. Over several crowds, whose number is in brackets, both are means. Blank: not measured on all "
    "of them. The lines are sorted by the share of comparisons won, with each other method, on each crowd on which both "
    "were measured. The last line says how many methods there are."
)


RIVALS: dict[str, Callable[[Sequence[Cell]], str]] = {
    # parts of the page of rivals
    "beside the best": beside_best,
    "ranks": ranks_in_short,
    "published": beside_published,
}


def page(cells: Sequence[Cell]) -> str:
    """Write the whole page of the committed results: what stands beside them as README.md."""
    parts = [
        "# Every method on every crowd",
        "Made by `python recipes/benchmarks/benchmark_tables.py` from the files in this folder, which `python recipes/benchmarks/benchmark.py "
        "--dataset NAME --collect FILE` wrote; each cell in them says the command that runs it again. A tenth of the training "
        "items is kept back, for every method alike. The headline is the last epoch.",
        "![The paper's figure 3, with all methods](figure3.png)",
        "## The paper's claims",
        summary(cells),
        "## Max-MIG beside all methods",
        beside_all(cells),
        "## Ranks",
        RANKS,
        ranks_in_short(cells),
        ranks_by_crowd(cells),
        "## Last epoch",
        markdown(cells, aggregator=True),
        "## Label-free pick: the epoch with the highest gain on the held-out items",
        markdown(cells, pick="label_free"),
        "## Best epoch on the test items, as the literature prints it",
        markdown(cells, pick="best_on_test"),
    ]
    parts += [
        "## Ranked",
        "Each method's accuracy of the last epoch, with its deviation over seeds, world by world.",
    ]
    parts += [f"![{group}]({file})" for group, file in ranking_files(cells).items()]
    if beyond := further(cells):
        parts += ["## Beyond accuracy: certainty, and what is known of annotators", beyond]
    return "\n\n".join(part.strip() for part in parts) + "\n"


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
        name = dataset_name(pair[0].dataset)
        last, held_out = (result.row(method, "forecast_accuracy") for result in pair)
        for pick, numbers in (("last epoch", last), ("with held-out votes", held_out)):
            numbers = tuple(number and number._replace(seeds=None) for number in numbers)
            rows.append(Row(f"{name}, {pick}", numbers, ours=False))
        costly = clearly_below(pair[0].crowds, held_out, last)
        if costly:
            lost.append(f"{', '.join(CROWDS[crowd] for crowd in costly)} of {name}")
    cost = (
        f"They cost more than a point in {'; '.join(lost)}."
        if lost
        else "They cost nowhere more than a point."
    )
    words = f"Held-out votes choose the epoch and the strength of W, by the gain and without a gold label. {cost}"
    table = Table(
        "What held-out votes are worth", words, list(CROWDS.values()),
        [Block(f"{method_name(method)}, forecaster (dc)", rows)], seeds=None,
    )  # fmt: skip
    return markdown_table(table)


def of_docs(cells: Sequence[Cell]) -> str:
    """Write what the page of results shows: the paper's methods and our start, last epoch; held-out votes.

    Likelihood and calibration stand below the accuracies, of the methods whose cells have them.
    """
    shown = [cell for cell in cells if cell["method"] in (*SHOWN, CEILING)]
    certainty = [table for table in further_tables(shown) if table.what == "certainty"]
    parts = [markdown(shown), *map(markdown_table, certainty), held_out_votes(cells)]
    return "\n".join(part for part in parts if part)


def in_short(cells: Iterable[Cell]) -> str:
    """Write the README's table: classifiers on the real crowd and on the simulated crowds of the digits.

    Args:
        cells: of any data sets, those of LabelMe and of the digits among them.

    Returns:
        One row per method of the paper, and one of gold labels.
    """
    by_name = {result.dataset: result for result in results(cells)}
    real, simulated = by_name["labelme"], by_name["digits"]
    rows = [
        Row(
            method_name(method),
            (*real.row(method, "accuracy"), *simulated.row(method, "accuracy")),
        )
        for method in OF_PAPER
    ]
    gold = (real.ceiling, *[simulated.ceiling] * len(simulated.crowds))
    rows.append(Row(method_name(CEILING), gold, ours=False))
    rows = [
        # Marks would need their footnote.
        row._replace(numbers=tuple(n and n._replace(seeds=None, by_seed={}) for n in row.numbers))
        for row in rows
    ]
    columns = ["LabelMe", *CROWDS.values()]
    table = Table("", "", columns, [Block("Classifier", rows)], seeds=None)
    return "\n".join(rows_of(*table.blocks, table))


def ranking_files(cells: Sequence[Cell]) -> dict[str, str]:
    """Name the picture of each data set, and that of the real crowds, by its title."""
    groups = by_group(worlds(results(cells)))
    return {group: f"ranking_{_plain(group).lower()}.png" for group in groups}


def draw(cells: Sequence[Cell], folder: Path) -> None:
    """Draw all methods in all worlds, the worlds one by one, and the paper's methods on the digits."""
    table_in_colours(cells, folder / "figure3.png")
    files = ranking_files(cells)
    for old in folder.glob("ranking_*.png"):
        if old.name not in files.values():
            old.unlink()
    for group, some in by_group(worlds(results(cells))).items():
        ranking(some, folder / files[group])
    digits = [
        cell for cell in cells if cell["dataset"] == "digits" and cell["case"] in (*CASES, None)
    ]
    _, svg = figure(digits, folder / "digits.png")
    svg.unlink()  # with hatching, it is larger than all the results


def _plain(text: str) -> str:
    """Write a text in letters, digits and hyphens."""
    return re.sub("[^A-Za-z0-9]+", "-", text).strip("-")


def main() -> None:
    takes_no_flags(__doc__)
    cells = read_cells(RESULTS)
    with staged(RESULTS / "README.md") as place:
        place.write_text(page(cells), encoding="utf-8")
    draw(cells, RESULTS)
    write_part("benchmark", of_docs(cells), DOCS / "results.md")
    write_part("results in short", in_short(cells), README)
    for part, write in RIVALS.items():
        write_part(part, write(cells), DOCS / "rivals.md")


if __name__ == "__main__":
    main()
