r"""Max-MIG beside its best rivals, crowd by crowd, as `docs/rivals.md` shows it. Not a recipe itself.

    print(beside_best(read_cells(Path("results"))))

`benchmark_tables.py` writes the page. `benchmark_ranks.py` has the ranks of all methods.
"""

from collections.abc import Callable, Iterable

from benchmark_cells import AFTER_WAUM, OURS, Cell, family, method_name, results, within_error
from benchmark_layout import MARK, text_of
from benchmark_ranks import REAL_CROWDS, World, worlds
from pages import markdown

SINCE_2019 = (
    "spee_lfc", "trace", "geo_f", "geo_w", "coin_net", "union_net", "union_net_b", "conal", "crowd_ar", "annot_mix",
    "madl", "crowdlab",
)  # fmt: skip


def is_since_2019(method: str) -> bool:
    """Tell whether a method is a rival since 2019; WAUM before any rival is one, too."""
    return family(method) != OURS and (method in SINCE_2019 or method.endswith(AFTER_WAUM))


COLUMNS: dict[str, Callable[[str], bool]] = {
    # heading: the methods of which the best is shown
    "Max-MIG": "max_mig".__eq__,
    "Max-MIG, cross-fitted": "max_mig_cross_fit".__eq__,
    "best rival since 2019": is_since_2019,
    "best earlier rival": lambda method: family(method) != OURS and not is_since_2019(method),
}
SHOWN_MEASURES = {
    "accuracy": "Accuracy in percent",
    "nll": "Negative log-likelihood in nats",
    "brier": "Brier score",
    "ece": "Calibration error",
}


def beside_best(cells: Iterable[Cell], pick: str = "last") -> str:
    """Write a line a crowd: Max-MIG, the best rival since 2019, the best earlier one and gold labels.

    Crowds without a rival since 2019 are left out.

    Args:
        cells: of any data sets.
        pick: which epoch, one of `PICKS`.

    Returns:
        A table in Markdown for each of `SHOWN_MEASURES` that some cell has.

    Raises:
        ValueError: as `results` does.
    """
    found, parts = results(cells, pick), []
    for measure, title in SHOWN_MEASURES.items():
        some = [world for world in worlds(found, measure) if any(map(is_since_2019, world.numbers))]
        if some:
            lines = [_line(world) for world in some]
            parts += [f"**{title}**", markdown(["crowd", *COLUMNS, "gold labels"], lines)]
    return "\n\n".join(parts)


def _line(world: World) -> list[str]:
    name = world.name if world.group == REAL_CROWDS else f"{world.group}, {world.name}"
    bests = [_best(world, filter(shown, world.numbers)) for shown in COLUMNS.values()]
    first = min((best for best in bests if best), key=world.rank)
    gold = "" if world.ceiling is None else text_of(world.ceiling, world.decimals)
    return [name, *(_entry(world, best, first) for best in bests), gold]


def _best(world: World, methods: Iterable[str]) -> str | None:
    return min(methods, key=lambda name: (world.rank(name), world.distance(name)), default=None)


def _entry(world: World, method: str | None, first: str) -> str:
    if method is None:
        return ""
    text = text_of(world.numbers[method], world.decimals)
    if world.printed(method) == world.printed(first):
        text = f"**{text}**"
    elif within_error(world.numbers[method], world.numbers[first]):
        text += f" {MARK}"
    return text if family(method) == OURS else f"{text} {method_name(method)}"
