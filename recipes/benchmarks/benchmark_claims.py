r"""What the paper claims of its methods, judged by the benchmark's cells. Not a recipe itself.

    cells = read_cells(Path("out/benchmark"))
    print(summary(cells), beside_all(cells), sep="\n")

Differences within their standard error are said to be so.
"""

from collections.abc import Iterable, Mapping

from benchmark_cells import (
    CROWDS,
    LEVELS,
    OF_PAPER,
    OURS,
    REAL,
    SHORT,
    Cell,
    Number,
    Results,
    dataset_name,
    family,
    method_name,
    results,
    within_error,
)
from benchmark_layout import text_of
from benchmark_ranks import REAL_CROWDS, World, by_group, worlds

from hf_maxmig.data.simulated.simulation import CASES

# The paper's words in percentage points.
FALL = 5.0  # the smallest that the paper calls a fall is 6.1: AggNet on LUNA16, 4.1(H) to 4.3(H)
# Five experts who err carry less information than gold labels, so some distance from these is no
# failure. The paper calls larger distances one: AggNet on CIFAR-10, 4.3(H), is 22 below its 4.1.
FAILURE = 10.0
TIE = 0.5  # "almost": in 4.1(L) of CIFAR-10 the paper's AggNet is 0.05 above Max-MIG

JUDGED = ("max_mig", "max_mig_cross_fit")  # the start by the gain, and the one with nothing set
_STANDS = {
    "accuracy": f"(d) is the best of all methods, or within {TIE:g} points of it",
    "nll": "has the lowest or second lowest NLL (d)",
    "ece": "has the lowest or second lowest calibration error (d)",
}


def part_of(method: str, measure: str) -> str:
    """Name a method and whether its classifier (d) or its forecaster (dc) is meant."""
    return f"{method_name(method)} {SHORT[measure]}"


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
        if result.crowds not in ((REAL,), tuple(CROWDS)):
            continue  # the paper claims nothing of these
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
        lines += [f"- {dataset_name(result.dataset)}: {claim}." for claim in claims]
    return "\n".join([*lines, ""])


_MISTAKES = {"naive_majority": "naive majority", "correlated": "correlated mistakes"}


def _verdict(holds: bool) -> str:
    return "holds" if holds else "does not hold"


def _falls(result: Results, method: str, measure: str, case: str) -> str:
    claim = f"{part_of(method, measure)} falls under {_MISTAKES[case]}"
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
        words = f"{text_of(after)} against {text_of(before)} in {there}{_noise(after, before)}"
        verdicts.append(f"{here} {_verdict(holds)}, {words}")
    return f"{claim} ({FALL:g} points or more below 4.1): {'; '.join(verdicts)}"


def _fails_under_none(result: Results) -> str:
    ours = part_of("max_mig", "accuracy")
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
    words = f"{text_of(measured[worst])} in {CROWDS[worst]} against {text_of(result.ceiling)}"
    return f"{claim}: {_verdict(holds)}, {words}"


def _leads(result: Results, measure: str) -> str:
    part = part_of("max_mig", measure)
    claim = f"{part} is the best of the paper's methods, or within {TIE:g} points of it"
    verdicts = []
    for crowd in result.crowds:
        numbers = {
            method: number
            for method in OF_PAPER
            if (number := result.numbers.get((method, crowd, measure))) is not None
        }
        if verdict := _against_best(numbers, "max_mig", f"{CROWDS.get(crowd, '')} "):
            verdicts.append(verdict.strip())
    return f"{claim}: {'; '.join(verdicts) or 'not measured'}"


def _against_best(numbers: Mapping[str, Number], method: str, crowd: str) -> str:
    """Judge whether a method is the best, or within `TIE` of the best other one; nothing if one is missing."""
    rivals = {name: number for name, number in numbers.items() if name != method}
    ours = numbers.get(method)
    if ours is None or not rivals:
        return ""
    best = max(rivals, key=lambda name: rivals[name].mean)
    holds = ours.mean >= rivals[best].mean - TIE
    words = f"{text_of(ours)} against {text_of(rivals[best])} ({method_name(best)})"
    return f"{crowd}{_verdict(holds)}, {words}{_noise(ours, rivals[best])}"


def _noise(one: Number, other: Number) -> str:
    return ", within a standard error" if within_error(one, other) else ""


def beside_all(cells: Iterable[Cell], pick: str = "last") -> str:
    """Judge how Max-MIG stands beside all other methods, a line a claim.

    The start by the gain and the one with nothing set are judged each by itself, and neither beside the other or another
    start of ours.

    Args:
        cells: of any data sets.
        pick: which epoch, one of `PICKS`.

    Returns:
        A Markdown list of lines: the accuracy is the best or within `TIE` points of it; likelihood and calibration are
        the best or the second best. A newline at the end.

    Raises:
        ValueError: as `results` does.
    """
    found, lines = results(cells, pick), []
    for measure, words in _STANDS.items():
        for group, some in by_group(worlds(found, measure)).items():
            for method in JUDGED:
                verdicts = [
                    verdict for world in some if (verdict := _stands(world, method, measure))
                ]
                if verdicts:
                    lines.append(
                        f"- {group}: {method_name(method)} {words}: {'; '.join(verdicts)}."
                    )
    return "\n".join([*lines, ""])


def _stands(world: World, method: str, measure: str) -> str:
    numbers = {
        name: n for name, n in world.numbers.items() if name == method or family(name) != OURS
    }
    crowd = f"{world.name}{':' if world.group == REAL_CROWDS else ''} "
    if measure == "accuracy":
        return _against_best(numbers, method, crowd)
    if method not in numbers or len(numbers) < 2:
        return ""
    rank = world._replace(numbers=numbers).rank(method)
    ours = numbers.pop(method)
    best = min(numbers, key=lambda name: numbers[name].mean)
    figures = f"{text_of(ours, 3)} against {text_of(numbers[best], 3)} ({method_name(best)})"
    return f"{crowd}{_verdict(rank <= 2)}, {figures}{_noise(ours, numbers[best])}"
