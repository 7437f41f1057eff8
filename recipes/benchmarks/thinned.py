r"""How many votes do I need? Votes are removed, by item or by annotator, and each method learns from the rest.

    python recipes/benchmarks/thinned.py --data_dir DIR --seeds 3 --output_dir out/thinned

runs what is missing of worlds x votes x methods x seeds, as `benchmark.py` does: the data set's recipe, the same rates and
epochs for every method, one file per cell. DIR has a folder for each data set, `labelme/`, `sentiment/`, `cifar10/` and
`cifar10n/`; missing ones are left out, and the digits need none. No training items are held out.
`thin_votes` draws the votes, with the seed of the cell, and looks at no gold label. Test items have no votes here.

    python recipes/benchmarks/thinned.py --output_dir out/thinned --collect results.json

collects the cells; `--write_docs` writes the tables and the picture of `docs/how_many_votes.md` from the committed
results. Other flags are passed to the recipes: `--worlds digits_high --num_train_epochs 2` takes seconds per cell.
Expect the figures of that page.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import above  # noqa: F401  the recipes can be imported
from benchmark import METHODS, Cell, build, collect, known_methods, run_missing
from benchmark_cells import CEILING, Number, average, method_name, read_cells
from benchmark_figure import SETTINGS, STYLES
from pages import DOCS, markdown, write_part
from recipe import shown
from results_file import command

from hf_maxmig import thin_votes
from hf_maxmig.command.runs import Recipe
from hf_maxmig.model.items import ALL_CROWD_COLUMNS
from hf_maxmig.model.whole_files import staged

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = Path(__file__).with_name("results") / "thinned.json"
PAGE, PICTURE = DOCS / "how_many_votes.md", DOCS / "pictures" / "how_many_votes.png"
COMPARED = (
    "max_mig_cross_fit", "majority_vote", "aggnet", "crowd_layer", "dawid_skene", CEILING
)  # fmt: skip
STYLE = {  # colour and marker; the others have those of matplotlib
    "max_mig_cross_fit": (STYLES["max_mig"][0], "o"),
    "majority_vote": ("#888888", "s"),
    "aggnet": (STYLES["aggnet"][0], "^"),
    "crowd_layer": (STYLES["crowd_layer"][0], "D"),
    "dawid_skene": (STYLES["doctor_net"][0], "v"),
}
Thinned = tuple[int | None, int | None]  # the most votes per item, and the number of annotators
WHOLE: Thinned = (None, None)


class World(NamedTuple):
    """A crowd, and to what it is thinned.

    Args:
        title: as people call it.
        crowd: a row of `benchmark.DATASETS`, case and expertise.
        whole: votes per item and annotators that there are.
        votes: per item, the numbers to thin to.
        annotators: likewise.
        places: of the data, flag and path below `--data_dir`.
    """

    title: str
    crowd: tuple[str, str | None, str | None]
    whole: tuple[str, str]
    votes: tuple[int, ...] = ()
    annotators: tuple[int, ...] = ()
    places: tuple[tuple[str, str], ...] = ()

    @property
    def thinned(self) -> list[Thinned]:
        """What is measured."""
        by_votes: list[Thinned] = [(votes, None) for votes in self.votes]
        return [WHOLE, *by_votes, *((None, number) for number in self.annotators)]

    def flags(self, data_dir: Path | None) -> list[str] | None:
        """Return the flags that tell the recipe where the data is; None if it is missing."""
        found = [(flag, (data_dir or Path()) / place) for flag, place in self.places]
        if found and (data_dir is None or not all(path.exists() for _, path in found)):
            return None
        return [word for flag, path in found for word in (flag, str(path))]


WORLDS = {
    "labelme": World(
        "LabelMe", ("labelme", None, None), ("2.5", "59"), (1, 2), (10, 20, 40),
        places=(("--data_dir", "labelme"),),
    ),
    "sentiment": World(
        "Sentiment", ("sentiment", None, None), ("5.6", "203"), (1, 2, 3, 5), (10, 30, 100),
        places=(("--data_dir", "sentiment"),),
    ),
    "digits_high": World(
        "Digits, 4.2(H)", ("digits", "naive_majority", "high"), ("10", "10"), (1, 2, 3, 5)
    ),
    "digits_low": World(
        "Digits, 4.2(L)", ("digits", "naive_majority", "low"), ("25", "25"), (1, 2, 3, 5)
    ),
    "digits_sparse": World(
        "Digits, sparse two (H)", ("digits", "sparse_two", "high"), ("2", "300"), (1,), (10, 30, 100)
    ),
    "cifar10n": World(
        "CIFAR-10N, given features", ("cifar10n_features", None, None), ("3", "3"), (1, 2),
        places=(("--data_dir", "cifar10"), ("--human_file", "cifar10n/CIFAR-10_human.pt")),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ThinnedCell(Cell):
    """One training on some of the votes.

    Args:
        world: a row of `WORLDS`.
        votes_per_item: the most; None all.
        num_annotators: None all.
    """

    looks: ClassVar[int] = 1  # the last epoch

    world: str
    votes_per_item: int | None
    num_annotators: int | None

    @property
    def name(self) -> str:
        """The name of its file."""
        parts = [
            f"votes{self.votes_per_item or 'all'}",
            f"annotators{self.num_annotators or 'all'}",
        ]
        return "-".join([self.method, *parts, f"seed{self.seed}"])

    def file(self, folder: Path) -> Path:
        """The path of its result."""
        return folder / self.world / f"{self.name}.json"

    def command(self, flags: list[str], held_out: float) -> str:
        """Return the command that repeats this cell and the method's others in the world."""
        words = ["--worlds", self.world, "--methods", self.method, "--seeds", str(self.seed + 1)]
        of_recipe = [*flags]
        for flag, _ in WORLDS[self.world].places:
            at = of_recipe.index(flag)
            del of_recipe[at : at + 2]
        places = ["--data_dir", "DIR"] if WORLDS[self.world].places else []
        return command(__file__, [*words, *places, *shown(of_recipe)])

    def recipe(self, flags: list[str], held_out: float) -> Recipe:
        """Build everything but the method, and remove votes."""
        whole = build(self, flags, held_out)
        train = thin_votes(
            whole.train, votes_per_item=self.votes_per_item, annotators=self.num_annotators, seed=self.seed
        )  # fmt: skip
        test = whole.test
        there = [name for name in ALL_CROWD_COLUMNS if name in test.column_names]
        return replace(whole, train=train, test=test.remove_columns(there))


def cells(world: str, methods: Sequence[str], seeds: int) -> Iterator[ThinnedCell]:
    """List the cells of a world seed by seed; the ceiling does not depend on votes."""
    dataset, case, level = WORLDS[world].crowd
    for seed in range(seeds):
        for votes, annotators in WORLDS[world].thinned:
            for method in methods:
                if method != CEILING or (votes, annotators) == WHOLE:
                    yield ThinnedCell(dataset, method, case, level, seed, world, votes, annotators)


# Tables and picture

Curves = dict[tuple[str, str, Thinned], Number]  # by world, method and votes


def curves(found: Sequence[dict[str, Any]], measure: str) -> Curves:
    """Average a measure of the last epoch over seeds; in percent."""
    values: dict[tuple[str, str, Thinned], dict[int, float]] = defaultdict(dict)
    for cell in found:
        value = cell["last"].get(measure)
        if value is not None:
            place = cell["votes_per_item"], cell["num_annotators"]
            values[cell["world"], cell["method"], place][cell["seed"]] = 100 * value
    return {key: average(several) for key, several in values.items()}


def methods_of(numbers: Curves, world: str) -> list[str]:
    """Name the methods measured in a world, in the usual order, without the ceiling."""
    there = {method for name, method, _ in numbers if name == world}
    usual = dict.fromkeys((*COMPARED, *METHODS))
    return [name for name in usual if name in there - {CEILING}]


def swept(world: World, by: int) -> list[tuple[str, Thinned]]:
    """Return what a world is thinned to, by votes (0) or by annotators (1), the full number last."""
    places = [place for place in world.thinned if place[by] is not None]
    named = [(str(place[by]), place) for place in places]
    return [*named, (f"all, {world.whole[by]}", WHOLE)] if named else []


def thinned_worlds(numbers: Curves, by: int) -> list[str]:
    """Name the worlds of which votes (0) or annotators (1) were taken away; all measured, if of none they were."""
    thinned = {name for name, _, place in numbers if place[by] is not None}
    shown = thinned or {name for name, _, _ in numbers}
    return [name for name in WORLDS if name in shown and swept(WORLDS[name], by)]


def table(numbers: Curves, by: int) -> str:
    """Write one curve per row, with a column for each number of votes or of annotators in any world."""
    worlds = thinned_worlds(numbers, by)
    columns = sorted(
        {place[by] or 0 for name in worlds for _, place in swept(WORLDS[name], by)} - {0}
    )
    lines = []
    for name in worlds:
        for method in methods_of(numbers, name):

            def text(place: Thinned, name: str = name, method: str = method) -> str:
                number = numbers.get((name, method, place))
                return "" if number is None else percent(number)

            places: list[Thinned] = [(n, None) if by == 0 else (None, n) for n in columns]
            row = [text(place) for place in [*places, WHOLE]]
            lines.append([f"{WORLDS[name].title}: {method_name(method)}", *row])
        ceiling = numbers.get((name, CEILING, WHOLE))
        if ceiling is not None:
            there = [""] * len(columns)
            lines.append(
                [f"{WORLDS[name].title}: {method_name(CEILING)}", *there, percent(ceiling)]
            )
    what = "votes per item" if by == 0 else "annotators"
    return markdown([what, *map(str, columns), "all"], lines)


def percent(number: Number) -> str:
    """Write one decimal, and the deviation if there are several seeds."""
    spread = "" if number.deviation is None else f" ± {number.deviation:.1f}"
    return f"{number.mean:.1f}{spread}"


def picture(numbers: Curves, path: Path) -> None:
    """Draw the classifier's accuracy over the number of votes, one panel per world and way of thinning."""
    import matplotlib.style
    from matplotlib.figure import Figure

    panels = [(name, by) for by in (0, 1) for name in thinned_worlds(numbers, by)]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    settings: list[Any] = ["default", SETTINGS]
    with matplotlib.style.context(settings):
        drawing = Figure(figsize=(max(5.0, 2.4 * columns), 0.5 + 2.1 * rows), layout="constrained")
        axes = list(drawing.subplots(rows, columns, squeeze=False).flat)
        for each, (name, by) in zip(axes, panels, strict=False):
            _panel(each, numbers, name, by)
        for each in axes[len(panels) :]:
            each.remove()
        handles: dict[str, Any] = {}
        for each in drawing.axes:
            handles |= dict(zip(*reversed(each.get_legend_handles_labels()), strict=True))
        drawing.legend(
            handles.values(), handles.keys(), loc="outside upper left", ncols=3, frameon=False
        )
        with staged(path) as place:
            drawing.savefig(place, dpi=200, metadata={"Software": None})


def _panel(axes: "Axes", numbers: Curves, name: str, by: int) -> None:
    places = swept(WORLDS[name], by)
    methods = methods_of(numbers, name)
    for k, method in enumerate(methods):
        colour, marker = STYLE.get(method, (None, "x"))
        aside = 0.06 * (k - (len(methods) - 1) / 2)  # deviations would hide each other
        points = [(x + aside, numbers.get((name, method, p))) for x, (_, p) in enumerate(places)]
        there = [(x, number) for x, number in points if number is not None]
        axes.errorbar(
            [x for x, _ in there], [number.mean for _, number in there],
            [number.deviation or 0 for _, number in there], label=method_name(method), color=colour,
            marker=marker, markersize=4, linewidth=1.2, elinewidth=0.7,
        )  # fmt: skip
    ceiling = numbers.get((name, CEILING, WHOLE))
    if ceiling is not None:
        axes.axhline(
            ceiling.mean, color="#333333", linewidth=1, linestyle=(0, (4, 2)), label=method_name(CEILING)
        )  # fmt: skip
    axes.set_xticks(range(len(places)), [text for text, _ in places])
    axes.set_xlabel("votes per item" if by == 0 else "annotators")
    axes.set_ylabel("accuracy in percent")
    axes.set_title(WORLDS[name].title)
    axes.yaxis.grid(color="#DDDDDD", linewidth=0.6)


def write_docs(found: Sequence[dict[str, Any]]) -> None:
    """Write the tables and the picture of the page."""
    numbers = curves(found, "accuracy")
    write_part("by votes", table(numbers, 0), PAGE)
    write_part("by annotators", table(numbers, 1), PAGE)
    write_part("training items", table(curves(found, "forecast_accuracy"), 0), PAGE)
    picture(numbers, PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    add("--methods", nargs="+", choices=METHODS, default=list(COMPARED))
    add("--seeds", type=int, default=1, help="runs, with seeds 0, 1, ...")
    add("--data_dir", type=Path, help="folder with a folder for each data set")
    add("--output_dir", type=Path, default=Path("out/thinned"), help="a file a cell goes here")
    add("--jobs", type=int, help="cells at once, as in `benchmark.py`")
    add("--collect", type=Path, help="run nothing, write what is there in one file")
    add("--write_docs", action="store_true", help="run nothing, write the page of the results")
    arguments, flags = parser.parse_known_args()
    if flags and (arguments.collect or arguments.write_docs):
        parser.error(f"unrecognized arguments: {' '.join(flags)}")
    if arguments.write_docs:
        write_docs(read_cells(RESULTS))
        return
    if arguments.collect:
        collect(read_cells(arguments.output_dir), arguments.collect)
        return
    methods = [name for name in known_methods(None) if name in arguments.methods]
    for world in arguments.worlds:
        places = WORLDS[world].flags(arguments.data_dir)
        if places is None:
            print(f"{world} is left out: its data is not below --data_dir.")
            continue
        wanted = list(cells(world, methods, arguments.seeds))
        run_missing(wanted, [*places, *flags], 0.0, arguments.output_dir, arguments.jobs)
        numbers = curves(read_cells(arguments.output_dir / world), "accuracy")
        for by in (0, 1):
            if swept(WORLDS[world], by):
                print(table(numbers, by))


if __name__ == "__main__":
    main()
