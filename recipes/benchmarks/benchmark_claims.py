r"""What the paper claims of its methods, judged by the benchmark's cells. Not a recipe itself.

print(summary(read_cells(Path("out/benchmark"))))
"""

from collections.abc import Iterable

from benchmark_cells import (
    CROWDS,
    LEVELS,
    OF_PAPER,
    REAL,
    SHORT,
    Cell,
    Results,
    dataset_name,
    method_name,
    results,
)
from benchmark_layout import text_of

from hf_maxmig.data.simulated.simulation import CASES

# The paper's words in percentage points.
FALL = 5.0  # the smallest that the paper calls a fall is 6.1: AggNet on LUNA16, 4.1(H) to 4.3(H)
# Five experts who err carry less information than gold labels, so some distance from these is no
# failure. The paper calls larger distances one: AggNet on CIFAR-10, 4.3(H), is 22 below its 4.1.
FAILURE = 10.0
TIE = 0.5  # "almost": in 4.1(L) of CIFAR-10 the paper's AggNet is 0.05 above Max-MIG


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
        words = f"{text_of(after)} against {text_of(before)} in {there}"
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
        words = f"{text_of(ours)} against {text_of(rivals[best])} ({method_name(best)})"
        verdicts.append(f"{CROWDS.get(crowd, '')} {_verdict(holds)}, {words}".strip())
    return f"{claim}: {'; '.join(verdicts) or 'not measured'}"
