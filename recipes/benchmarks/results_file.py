"""What a measurement writes: the command that repeats it, means over seeds, one file. Not a recipe itself."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_maxmig.model.whole_files import staged

ROOT = Path(__file__).resolve().parents[2]


def command(script: str, flags: Iterable[str] | Mapping[str, Any]) -> str:
    """Return the command that repeats a script of this folder, from the project's root.

    Args:
        script: its `__file__`.
        flags: as they are typed; of a mapping, those whose value is true.

    Example:
        >>> command(__file__, ["--seeds", "3"])
        'python recipes/benchmarks/results_file.py --seeds 3'
        >>> command(__file__, {"--quick": False, "--output_dir OUT": True})
        'python recipes/benchmarks/results_file.py --output_dir OUT'
    """
    if isinstance(flags, Mapping):
        flags = [flag for flag, given in flags.items() if given]
    return " ".join(["python", Path(script).resolve().relative_to(ROOT).as_posix(), *flags])


def over_seeds(runs: Sequence[Mapping[str, float | None]]) -> dict[str, dict[str, Any]]:
    """Aggregate the figures of several seeds.

    Args:
        runs: figures by name, the same names in each; None where there is no figure.

    Returns:
        `mean`, over the seeds that have the figure, None where none has; and `by_seed`.

    Example:
        >>> over_seeds([{"a": 1, "b": None}, {"a": 2, "b": 0.5}])
        {'mean': {'a': 1.5, 'b': 0.5}, 'by_seed': {'a': [1, 2], 'b': [None, 0.5]}}
    """
    by_seed = {key: [run[key] for run in runs] for key in runs[0]}
    known = {key: [v for v in values if v is not None] for key, values in by_seed.items()}
    return {
        "mean": {
            key: round(statistics.mean(values), 4) if values else None
            for key, values in known.items()
        },
        "by_seed": {
            key: [value if value is None else round(value, 4) for value in values]
            for key, values in by_seed.items()
        },
    }


def by_kind(runs: Sequence[Mapping[str, Any]], kind: Sequence[str]) -> list[dict[str, Any]]:
    """Aggregate the runs of each kind over their seeds.

    Args:
        runs: figures by name, beside what says of which kind a run is.
        kind: names of the latter, `seed` among them; it tells the runs of a kind apart.

    Returns:
        One row per kind, in order: its names but the seed, `seeds`, and what `over_seeds` returns of the figures.

    Example:
        >>> by_kind([{"world": "w", "seed": 0, "a": 1}, {"world": "w", "seed": 1, "a": 2}], ["world", "seed"])
        [{'world': 'w', 'seeds': [0, 1], 'mean': {'a': 1.5}, 'by_seed': {'a': [1, 2]}}]
    """
    names = [name for name in kind if name != "seed"]
    kinds: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for run in runs:
        kinds.setdefault(tuple(run[name] for name in names), []).append(run)
    return [
        {
            **dict(zip(names, key, strict=True)),
            "seeds": [run["seed"] for run in same],
            **over_seeds([{name: run[name] for name in run if name not in kind} for run in same]),
        }
        for key, same in sorted(kinds.items(), key=lambda pair: pair[0])
    ]


def write_results(file: Path, result: Any) -> None:
    """Write results as JSON, completely or not at all; missing folders are created."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with staged(file) as place:
        place.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def write_so_far(file: Path, result: Any, line: str) -> None:
    """Write the results after each run and print the newest, so that a stopped measurement keeps what it has."""
    write_results(file, result)
    print(line, flush=True)
