"""How speed is measured, compared and shown. Not a recipe itself, see `benchmark_speed.py`.

Run as `python recipes/benchmarks/speed_rows.py` it writes the table of `docs/speed.md` anew from the committed results.
"""

import json
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pages import DOCS, markdown, takes_no_flags, write_part
from torch import Tensor

READING = 0.05  # seconds that one reading of the clock should span, by repeating the call
LONGEST = 10.0  # seconds after which a slow job gets no more rounds, once it had three

RESULTS = Path(__file__).with_name("results") / "benchmark_speed.json"
# On the page, what the method adds is shown only once, and similar rivals are left out.
LEFT_OUT = re.compile(
    r"(resnet18|vit_tiny).*same batches|, cross-entropy, our batches|(one_coin|mmsr|zero_based|wawa)"
)

PLAIN_OVER_OURS, OURS_OVER_PLAIN = "plain / ours", "ours / plain"


@dataclass(frozen=True)
class Reading:
    """A duration, or a point in time: by the clock and of the processor; in seconds."""

    wall: float
    cpu: float


@dataclass
class Row:
    """One line of the table.

    Args:
        job: what was measured.
        threads: of torch.
        plain: seconds by the clock of the other side, the median; None if it was not measured.
        ours: seconds by the clock of the library, the median.
        ratio: plain / ours, or ours / plain for a trainer step: median over rounds of the ratio
            within a round.
        ratio_of_medians: the same of the two medians.
        cpu_ratio: as `ratio`, of processor time: what other work on the machine disturbs least.
            Targets go by it.
        ratio_is: which of the two ratios it is.
        plain_mib: memory that the other side took at the most, if it was measured.
        ours_mib: memory that the library took at the most, if it was measured.
        target: what was wanted, in words.
        met: whether it was reached; None if there is no target or the sizes are not the ones it is
            for.
    """

    job: str
    threads: int
    plain: float | None
    ours: float
    ratio: float | None
    ratio_of_medians: float | None
    cpu_ratio: float | None
    ratio_is: str
    plain_mib: float | None = None
    ours_mib: float | None = None
    target: str = ""
    met: bool | None = None


def agree(ours: Tensor | Sequence[Tensor], plain: Tensor | Sequence[Tensor]) -> None:
    """Raise an AssertionError unless both are equal, up to rounding relative to the largest entry."""
    if isinstance(ours, Tensor) and isinstance(plain, Tensor):
        tolerance = 1e-4 if ours.dtype == torch.float32 else 1e-10
        scale = float(plain.detach().abs().max())
        torch.testing.assert_close(ours, plain, rtol=tolerance, atol=tolerance * scale)
        return
    for one, other in zip(ours, plain, strict=True):
        agree(one, other)


def now() -> Reading:
    """Read the clock."""
    return Reading(time.perf_counter(), time.process_time())


def since(start: Reading, end: Reading, calls: int = 1) -> Reading:
    """Return the time of one of several calls."""
    return Reading((end.wall - start.wall) / calls, (end.cpu - start.cpu) / calls)


def read(call: Callable[[], Any], calls: int = 1) -> Reading:
    """Time some calls after a few uncounted ones, as the caches are full of the other side's data."""
    for _ in range(calls // 4):
        call()
    start = now()
    for _ in range(calls):
        call()
    return since(start, now(), calls)


def in_turn(sides: Sequence[Callable[[], Any]], rounds: int) -> list[list[Reading]]:
    """Measure calls by turns, in reverse order every other time; all have run before."""
    once = [read(call).wall for call in sides]
    once = [
        read(call, min(20, max(1, round(READING / wall)))).wall
        for call, wall in zip(sides, once, strict=True)
    ]
    calls = [max(1, round(READING / wall)) for wall in once]
    rounds = max(min(rounds, 3), min(rounds, round(LONGEST / sum(once))))
    readings: list[list[Reading]] = [[] for _ in sides]
    places = range(len(sides))
    for turn in range(rounds):
        for side in places if turn % 2 == 0 else reversed(places):
            readings[side].append(read(sides[side], calls[side]))
    return readings


def by_turns(job: str, plain: Callable[[], Any], ours: Callable[[], Any], rounds: int) -> Row:
    """Measure two calls by turns; both have run before."""
    return row(job, *in_turn([plain, ours], rounds))


def row(
    job: str,
    plain: Sequence[Reading],
    ours: Sequence[Reading],
    ratio_is: str = PLAIN_OVER_OURS,
) -> Row:
    """Make a table row of readings taken in pairs, or of ours alone."""
    line = Row(
        job=job,
        threads=torch.get_num_threads(),
        plain=None,
        ours=statistics.median(reading.wall for reading in ours),
        ratio=None,
        ratio_of_medians=None,
        cpu_ratio=None,
        ratio_is=ratio_is,
    )
    if plain:
        above, below = (plain, ours) if ratio_is == PLAIN_OVER_OURS else (ours, plain)
        pairs = list(zip(above, below, strict=True))
        line.plain = statistics.median(reading.wall for reading in plain)
        line.ratio = statistics.median(a.wall / b.wall for a, b in pairs)
        line.ratio_of_medians = statistics.median(a.wall for a in above) / statistics.median(
            b.wall for b in below
        )
        line.cpu_ratio = statistics.median(a.cpu / b.cpu for a, b in pairs)
    return line


def in_words(duration: float | None) -> str:
    """Write seconds in a readable unit.

    Example:
        >>> in_words(0.00034), in_words(0.25), in_words(2.5), in_words(None)
        ('0.34 ms', '250 ms', '2.5 s', '')
    """
    if duration is None:
        return ""
    return f"{duration * 1e3:.3g} ms" if duration < 0.9995 else f"{duration:.3g} s"


def table(rows: Sequence[Row]) -> str:
    """Render the table for readers."""
    header = [
        "job", "threads", "plain", "ours", "by the clock", "of processor time", "plain MiB", "our MiB", "target", "",
    ]  # fmt: skip
    lines = []
    for line in rows:
        faster = line.ratio_is == PLAIN_OVER_OURS
        ratios = [
            "" if r is None else f"{r:.3g} x faster" if faster else f"{r:.3f} of plain"
            for r in (line.ratio, line.cpu_ratio)
        ]
        memory = ["" if m is None else f"{m:,.0f}" for m in (line.plain_mib, line.ours_mib)]
        met = {None: "", True: "met", False: "missed"}[line.met]
        times = in_words(line.plain), in_words(line.ours)
        lines.append([line.job, str(line.threads), *times, *ratios, *memory, line.target, met])
    return markdown(header, lines)


def short_table(rows: Sequence[Row]) -> str:
    """Render the short table of the page: one ratio, of processor time; some rows, with fewer threads."""
    fewest = min(line.threads for line in rows)
    header = ["", "threads", "plain", "ours", "ours is", "MiB, plain", "MiB, ours"]
    lines = []
    for line in rows:
        not_fitted = line.plain is None and "crowd-kit" in line.job
        of_head = line.threads > fewest and "head" in line.job
        if LEFT_OUT.search(line.job) or not_fitted or of_head:
            continue
        ratio = "" if line.cpu_ratio is None else f"{line.cpu_ratio:.3f} of plain"
        if line.ratio_is == PLAIN_OVER_OURS and line.cpu_ratio is not None:
            ratio = f"{line.cpu_ratio:,.{0 if line.cpu_ratio >= 10 else 1}f}x faster"
        memory = ["" if m is None else f"{m:,.0f}" for m in (line.plain_mib, line.ours_mib)]
        times = in_words(line.plain), in_words(line.ours)
        lines.append([line.job, str(line.threads), *times, ratio, *memory])
    return markdown(header, lines)


def main() -> None:
    takes_no_flags(__doc__)
    rows = [Row(**line) for line in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]]
    write_part("speed", short_table(rows), DOCS / "speed.md")


if __name__ == "__main__":
    main()
