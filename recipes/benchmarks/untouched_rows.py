"""How the figures of `untouched.py` are shown. Not a recipe itself.

Run as `python recipes/benchmarks/untouched_rows.py` it writes the page's tables anew from the committed results.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pages import DOCS, markdown, takes_no_flags, write_part

RESULTS = Path(__file__).with_name("results") / "untouched.json"
PAGE = DOCS / "untouched_defaults.md"

# The page's columns: heading, figure, and how it is written.
PERCENT, NUMBER, NATS, SECONDS, COUNT = "percent", ".1f", ".3f", ".1f", ".0f"
COLUMNS: dict[str, list[tuple[str, str, str]]] = {
    "New items": [
        ("seeds", "seeds", COUNT),
        ("items", "items", COUNT),
        ("votes per item", "votes_per_item", NUMBER),
        ("network on the plurality", "test_plain_accuracy", PERCENT),
        ("classifier", "test_accuracy", PERCENT),
        ("NLL", "test_nll", NATS),
        ("ECE", "test_ece", NATS),
    ],
    "The training items: who is right how often": [
        ("plurality", "plurality_accuracy", PERCENT),
        ("Dawid-Skene", "dawid_skene_accuracy", PERCENT),
        ("aggregator", "aggregator_accuracy", PERCENT),
        ("classifier", "classifier_accuracy", PERCENT),
        ("forecaster", "forecast_accuracy", PERCENT),
        ("suspects", "suspects", COUNT),
        ("label wrong", "suspects_wrong", PERCENT),
        ("forecast right", "suspects_put_right", PERCENT),
    ],
    "The training items: how sure, and how rightly so": [
        ("NLL, aggregator", "aggregator_nll", NATS),
        ("classifier", "classifier_nll", NATS),
        ("forecaster", "forecast_nll", NATS),
        ("ECE, aggregator", "aggregator_ece", NATS),
        ("classifier", "classifier_ece", NATS),
        ("forecaster", "forecast_ece", NATS),
    ],
    "The annotators, and the time": [
        ("annotators", "annotators", COUNT),
        ("condemned", "condemned", NUMBER),
        ("of these better than chance", "condemned_better_than_chance", NUMBER),
        ("start, s", "start_seconds", SECONDS),
        ("training, s", "training_seconds", SECONDS),
        ("plain, s", "plain_seconds", SECONDS),
        ("ratio", "ratio", NUMBER),
    ],
}


def cell(value: float | None, how: str) -> str:
    """Write a figure, or a dash if there is none.

    Example:
        >>> cell(0.8954, PERCENT), cell(0.34567, NATS), cell(None, COUNT)
        ('89.5', '0.346', '-')
    """
    if value is None:
        return "-"
    return f"{100 * value:.1f}" if how == PERCENT else f"{value:,{how}}"


def value(row: dict[str, Any], key: str) -> float | None:
    """Return a figure's mean over seeds, or the number of seeds."""
    return row["seeds"] if key == "seeds" else row["mean"][key]


def tables(worlds: Sequence[dict[str, Any]]) -> str:
    """Render the figures, first with all training items, then with a fifth held out."""
    parts = []
    for held_out, title in (
        (False, "All training items"),
        (True, "A fifth of the training items given as `eval_dataset`"),
    ):
        rows = [row for row in worlds if row["held_out"] == held_out]
        if not rows:
            continue
        parts.append(f"## {title}")
        for heading, columns in COLUMNS.items():
            header = ["world", *(name for name, _, _ in columns)]
            lines = [
                [row["world"], *(cell(value(row, key), how) for _, key, how in columns)]
                for row in rows
            ]
            parts += [f"### {heading}", markdown(header, lines)]
    return "\n\n".join(parts)


def main() -> None:
    takes_no_flags(__doc__)
    worlds = json.loads(RESULTS.read_text(encoding="utf-8"))["worlds"]
    write_part("untouched", tables(worlds), PAGE)


if __name__ == "__main__":
    main()
