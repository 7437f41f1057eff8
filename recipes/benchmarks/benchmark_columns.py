"""Columns of votes at scale: ten million votes joined, stored, read and described, in seconds and bytes.

Each job runs in a new process, so that its peak memory is its own:

1. `read_annotations` of the votes from CSV and from Parquet;
2. `add_annotations`: votes in a table in memory, in random order, items and annotators by name;
3. `crowd_batches`: one reading of the joined columns, as training starts with;
4. `initialize_crowd`: equation 2 of all votes, from the joined columns;
5. `MaxMIGTrainer`: start, search and 100 steps of a head on eight features, all by default, on the
   columns and features as stored on disk;
6. `describe`, without crowd-kit and with it.

At a smaller size, the join is also compared by turns with plain Python, a dict of lists. Nothing is
timed before both agree.

    python recipes/benchmarks/benchmark_columns.py --output_dir out/benchmark_columns

takes 3 to 5 minutes on two cores, 4 GiB of memory and 1 GB of disk, prints a table and writes it to
`benchmark_columns.json`. Expect the following for ten million votes: joining takes 10 s (twice that on a
busy machine) and 3 GiB, reading from CSV 16 s and 4 GiB, from Parquet 6 s, batching 1 s, starting W 2 s.
Finding a start and a rate and taking 100 training steps takes a minute and 0.9 GiB beyond data and model.
Describing the votes takes 2 s, and 4 s more with crowd-kit. Plain Python takes three times as long to join.
The columns take 16 bytes per vote, two int64 (`ClassLabel` has no other type), and 8 per item for the
offsets of its lists, 16.8 in all; 3.4 in a Parquet file. `--votes 5000 --items 700 --annotators 90
--plain_votes 3000` shows in a minute that it runs.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import above  # noqa: F401  the recipes can be imported
import datasets
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from datasets import Dataset, Features, List, Value, concatenate_datasets
from machine import held_memory, in_child, machine, peak_memory, reset_peak_memory
from results_file import command, write_results
from speed_rows import now, since
from transformers import PrinterCallback

import hf_maxmig
from hf_maxmig import (
    CrowdCollator,
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
    add_annotations,
)
from hf_maxmig.command.flags import errors_in_one_line, parse
from hf_maxmig.data.collator import crowd_batches
from hf_maxmig.data.columns import crowd_names
from hf_maxmig.data.describe import describe
from hf_maxmig.data.readers.read_annotations import read_annotations

MIB = 2**20
RIGHT = 0.7  # share of votes for the item's class; the others name any class
BUSY = 3  # annotator m of M cast about 1 - (m / M)^(1/3) of the votes: a few are busy, most are not
GIVEN_SIZES = {"votes": 10_000_000, "items": 1_000_000, "annotators": 100_000}  # of the targets
AT_MOST_SECONDS = 60.0  # of the join
AT_MOST_MIB = 4 * 1024  # of its process, everything loaded
AT_MOST_BYTES = 16.0  # a vote, of what the two columns hold
AT_MOST_START = 3.0  # seconds of equation 2
AT_MOST_TRAINER = 1024  # MiB that training takes above data and model
FEATURES = 8


@dataclass
class ColumnsArguments:
    """The sizes, and where to write."""

    output_dir: str = field(
        default="out/benchmark_columns", metadata={"help": "Folder of `benchmark_columns.json`."}
    )
    votes: int = field(default=10_000_000, metadata={"help": "Votes."})
    items: int = field(default=1_000_000, metadata={"help": "Items, N."})
    annotators: int = field(default=100_000, metadata={"help": "Annotators, M."})
    classes: int = field(default=10, metadata={"help": "Classes, C."})
    plain_votes: int = field(
        default=1_000_000,
        metadata={"help": "Votes of the comparison with plain Python; a tenth as many items."},
    )
    rounds: int = field(default=3, metadata={"help": "Times that both joins are measured."})


@dataclass
class Row:
    """One line of the table.

    Args:
        job: what was measured.
        seconds: by the clock.
        cpu_seconds: of the processor, all threads together, which other work disturbs least.
        peak_mib: the most memory that the process held at any time: Python, the libraries, the
            input, the work, the result.
        added_mib: the same, less the memory held when the job began with its input loaded.
    """

    job: str
    seconds: float
    cpu_seconds: float
    peak_mib: float
    added_mib: float


# Inputs


def draw_votes(votes: int, items: int, annotators: int, classes: int, seed: int = 0) -> pa.Table:
    """Draw a long table of votes by name, in random order."""
    rng = np.random.default_rng(seed)
    item = rng.integers(items, size=votes)
    annotator = (annotators * rng.random(votes) ** BUSY).astype(np.int64)
    truth = rng.integers(classes, size=items)
    said = np.where(rng.random(votes) < RIGHT, truth[item], rng.integers(classes, size=votes))
    columns = {}
    for name, numbers, names in (
        ("item", item, item_names(items)),
        ("annotator", annotator, [f"annotator {m}" for m in range(annotators)]),
        ("annotation", said, [f"class {c}" for c in range(classes)]),
    ):
        columns[name] = pa.array(names, pa.large_string()).take(pa.array(numbers))
    return pa.table(columns)


def item_names(items: int) -> list[str]:
    return [f"images/{i:07}.jpg" for i in range(items)]


def items_dataset(items: int) -> Dataset:
    return Dataset.from_dict({"file_name": item_names(items)})


def plain_join(
    items: Sequence[str], votes: dict[str, list[str]]
) -> tuple[list[list[int]], list[list[int]]]:
    """Join by a dict of lists, the obvious way; numbers follow the sorted names."""
    number = {name: m for m, name in enumerate(sorted(set(votes["annotator"])))}
    classes = {name: c for c, name in enumerate(sorted(set(votes["annotation"])))}
    of: dict[str, tuple[list[int], list[int]]] = {name: ([], []) for name in items}
    for item, annotator, annotation in zip(*votes.values(), strict=True):
        who, what = of[item]
        who.append(number[annotator])
        what.append(classes[annotation])
    return [of[item][0] for item in items], [of[item][1] for item in items]


# Jobs, each in a separate process: (folder, sizes) to a function to time


def job_read(folder: Path, given: ColumnsArguments, kind: str) -> Callable[[], Any]:
    return lambda: read_annotations(folder / f"votes.{kind}")


def job_join(folder: Path, given: ColumnsArguments) -> Callable[[], Any]:
    votes, images = pq.read_table(folder / "votes.parquet"), items_dataset(given.items)
    return lambda: add_annotations(images, votes, item_column="file_name")


def job_batches(folder: Path, given: ColumnsArguments) -> Callable[[], Any]:
    dataset = Dataset.from_file(str(folder / "joined.arrow"))
    annotators, classes = crowd_names(dataset)
    collator = CrowdCollator(len(annotators or ()), len(classes or ()))
    return lambda: sum(int((who >= 0).sum()) for who, _ in crowd_batches(dataset, collator))


def small_pair(dataset: Dataset) -> MaxMIGModel:
    """Return a head on the features with the crowd of the columns."""
    annotators, classes = crowd_names(dataset)
    head = HeadClassifier(HeadConfig(input_size=FEATURES, id2label=dict(enumerate(classes or ()))))
    return MaxMIGModel.from_classifier(head, annotators=annotators)


def job_initialise(folder: Path, given: ColumnsArguments) -> Callable[[], Any]:
    dataset = Dataset.from_file(str(folder / "joined.arrow"))
    model = small_pair(dataset)
    collator = CrowdCollator(given.annotators, given.classes)

    def start() -> int:
        model.initialize_crowd(crowd_batches(dataset, collator))
        return given.votes if bool(model.aggregator.table.isfinite().all()) else 0

    return start


def job_train(folder: Path, given: ColumnsArguments) -> Callable[[], Any]:
    votes = Dataset.from_file(str(folder / "joined.arrow"))
    features = np.random.default_rng(0).normal(size=(given.items, FEATURES)).astype("float32")
    kind = Features(features=List(Value("float32"), length=FEATURES))
    path = folder / "features.arrow"
    table = Dataset.from_dict({"features": features}, features=kind).data.table
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table)
    del features, table
    dataset = concatenate_datasets([votes, Dataset.from_file(str(path))], axis=1)
    model = small_pair(dataset)

    def train() -> int:
        args = MaxMIGTrainingArguments(
            str(folder / "out"), max_steps=100, per_device_train_batch_size=256, use_cpu=True,
            report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no",
        )  # fmt: skip
        trainer = MaxMIGTrainer(model=model, args=args, train_dataset=dataset)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return given.votes

    return train


def job_describe(folder: Path, given: ColumnsArguments, peers: bool) -> Callable[[], Any]:
    if not peers:
        sys.modules["crowdkit"] = None  # type: ignore[assignment]  # as if it were not installed
    dataset = Dataset.from_file(str(folder / "joined.arrow"))
    return lambda: describe(dataset)


def kept(result: Any, folder: Path) -> dict[str, Any]:
    """Return what is inspected of a job's result afterwards."""
    if isinstance(result, Dataset) and "annotations" in result.column_names:
        columns = result.select_columns(["annotators", "annotations"])
        parquet = folder / "joined.parquet"
        columns.to_parquet(parquet)
        table = columns.with_format("arrow")[:]
        # Not by `save_to_disk`, which writes all names again for every thousand rows.
        with pa.ipc.new_stream(folder / "joined.arrow", columns.data.schema) as stream:
            stream.write_table(columns.data.table)
        values = [table[name].combine_chunks().flatten() for name in columns.column_names]
        return {
            "votes": len(values[0]),
            "values": sum(array.nbytes for array in values),
            "columns": table.nbytes,
            "parquet": parquet.stat().st_size,
        }
    if isinstance(result, Dataset):
        return {"votes": len(result)}
    return {"votes": result} if isinstance(result, int) else {"text": str(result), **result}


def measure(
    name: str, prepare: Callable[..., Callable[[], Any]], *arguments: Any
) -> tuple[Row, dict[str, Any]]:
    """Run a job in a new process, which prepares, times and inspects the result."""
    return in_child({}, measured, name, prepare, *arguments)


def measured(
    name: str, prepare: Callable[..., Callable[[], Any]], *arguments: Any
) -> tuple[Row, dict[str, Any]]:
    call = prepare(*arguments)
    reset_peak_memory()  # preparing is over
    before, start = held_memory(), now()
    result = call()
    took, most = since(start, now()), peak_memory()
    return Row(name, took.wall, took.cpu, most, most - before), kept(result, arguments[0])


def write_votes(folder: Path, given: ColumnsArguments) -> Callable[[], Any]:
    table = draw_votes(given.votes, given.items, given.annotators, given.classes)

    def write() -> int:
        pq.write_table(table, folder / "votes.parquet")
        pyarrow.csv.write_csv(table, folder / "votes.csv")
        return len(table)

    return write


def measure_plain(given: ColumnsArguments) -> dict[str, Any]:
    """Join by turns, plain and ours, each of them first every other time."""
    votes, items = given.plain_votes, max(2, given.plain_votes // 10)
    table = draw_votes(votes, items, max(2, votes // 100), given.classes, seed=1)
    as_lists, names, images = table.to_pydict(), item_names(items), items_dataset(items)
    sides: dict[str, Callable[[], Any]] = {
        "plain": lambda: plain_join(names, as_lists),
        "ours": lambda: add_annotations(images, table, item_column="file_name"),
    }
    joined = sides["ours"]()
    if (joined["annotators"][:], joined["annotations"][:]) != sides["plain"]():
        raise AssertionError("both joins must give the same lists.")
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(given.rounds):
        for side in list(sides)[:: 1 if turn % 2 == 0 else -1]:
            start = time.perf_counter()
            sides[side]()
            seconds[side].append(time.perf_counter() - start)
    pairs = zip(seconds["plain"], seconds["ours"], strict=True)
    return {
        "votes": votes,
        "items": items,
        "plain": statistics.median(seconds["plain"]),
        "ours": statistics.median(seconds["ours"]),
        "ratio": statistics.median(plain / ours for plain, ours in pairs),
    }


# Reporting


def targets(
    given: ColumnsArguments, rows: dict[str, Row], bytes_a_vote: float
) -> list[dict[str, Any]]:
    """Return the target and whether it was reached; nothing at other sizes than the target's."""
    if {name: getattr(given, name) for name in GIVEN_SIZES} != GIVEN_SIZES:
        return []
    join, start, trainer = (
        rows[job] for job in ("add_annotations", "initialize_crowd", "MaxMIGTrainer, 100 steps")
    )
    return [
        {"target": f"{what} at most {most:g} {unit}", "met": value <= most}
        for what, value, most, unit in (
            ("join", join.seconds, AT_MOST_SECONDS, "s"),
            ("memory of the join", join.peak_mib, AT_MOST_MIB, "MiB"),
            ("values of the columns", bytes_a_vote, AT_MOST_BYTES, "bytes a vote"),
            ("start of W", start.seconds, AT_MOST_START, "s"),
            (
                "memory of a training above data and model",
                trainer.added_mib,
                AT_MOST_TRAINER,
                "MiB",
            ),
        )
    ]


def table(results: dict[str, Any]) -> str:
    """Render the table for readers."""
    cells = [("job", "seconds", "of CPU", "peak MiB", "of it added")]
    for row in results["rows"]:
        times = f"{row['seconds']:.2f}", f"{row['cpu_seconds']:.2f}"
        cells.append((row["job"], *times, f"{row['peak_mib']:,.0f}", f"{row['added_mib']:,.0f}"))
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join(
            text.rjust(width) if i else text.ljust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]
    size, plain = results["bytes"], results["plain"]
    lines += [
        f"bytes a vote: {size['values_a_vote']:.2f} of values, {size['columns_a_vote']:.2f} with "
        f"the {size['offsets_an_item']:.2f} an item that say where its lists begin, "
        f"{size['parquet_a_vote']:.2f} in a Parquet file",
        f"plain Python, {plain['votes']:,} votes: {plain['plain']:.2f} s, ours "
        f"{plain['ours']:.2f} s, {plain['ratio']:.1f} x faster",
        *(f"{'met' if t['met'] else 'missed'}: {t['target']}" for t in results["targets"]),
        "",
        results["description"],
        "",
        ", ".join(f"{name} {value}" for name, value in results["machine"].items()),
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    (given,) = parse(ColumnsArguments, arguments=arguments)
    start = time.perf_counter()
    rows, found = [], {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure("write", write_votes, folder, given)
        for job, prepare, *more in (
            ("read_annotations, CSV", job_read, "csv"),
            ("read_annotations, Parquet", job_read, "parquet"),
            ("add_annotations", job_join),
            ("crowd_batches", job_batches),
            ("initialize_crowd", job_initialise),
            ("MaxMIGTrainer, 100 steps", job_train),
            ("describe, without crowd-kit", job_describe, False),
            ("describe", job_describe, True),
        ):
            row, found[job] = measure(job, prepare, folder, given, *more)
            if found[job]["votes"] != given.votes:
                raise AssertionError(f"{job} must see {given.votes} votes, got {found[job]}.")
            rows.append(row)
    size = found["add_annotations"]
    description = found["describe"]
    results = {
        "command": command(__file__, sys.argv[1:] if arguments is None else arguments),
        "machine": machine(pa, np, datasets, hf_maxmig),
        "sizes": {k: getattr(given, k) for k in ("votes", "items", "annotators", "classes")},
        "rows": [asdict(row) for row in rows],
        "bytes": {
            "values_a_vote": size["values"] / given.votes,
            "offsets_an_item": (size["columns"] - size["values"]) / given.items,
            "columns_a_vote": size["columns"] / given.votes,
            "parquet_a_vote": size["parquet"] / given.votes,
        },
        "plain": measure_plain(given),
        "targets": targets(given, {row.job: row for row in rows}, size["values"] / given.votes),
        "description": description["text"],
        "minutes": 0.0,
    }
    results["minutes"] = round((time.perf_counter() - start) / 60, 2)
    file = Path(given.output_dir) / "benchmark_columns.json"
    write_results(file, results)
    print(table(results))
    print(f"The table is in {file}.")
    return results


if __name__ == "__main__":
    with errors_in_one_line():
        main()
