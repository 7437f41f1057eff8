"""Tests of `recipes/benchmarks/benchmark_columns.py`: both sides do the same join, and the figures are right."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hf_maxmig import add_annotations
from tests.children import come_with_libraries
from tests.recipes.imported import recipes

TINY = ["--votes", "500", "--items", "70", "--annotators", "9", "--classes", "4"]
TINY += ["--plain_votes", "300", "--rounds", "2"]


@pytest.fixture(scope="module")
def benchmark():
    with recipes() as load:
        yield load("benchmark_columns")


def test_plain_join_is_that_of_the_library(benchmark: ModuleType) -> None:
    """Another order of an item's votes, or of names, would be as fast but not comparable."""
    votes = benchmark.draw_votes(votes=60, items=11, annotators=5, classes=3)
    joined = add_annotations(benchmark.items_dataset(11), votes, item_column="file_name")
    who, what = benchmark.plain_join(benchmark.item_names(11), votes.to_pydict())
    assert (joined["annotators"][:], joined["annotations"][:]) == (who, what)
    assert len({len(row) for row in who}) > 2
    assert len({m for row in who for m in row}) == 5


def test_drawn_votes_are_a_crowd_in_random_order(benchmark: ModuleType) -> None:
    """Sorted votes are joined faster than real ones, and random votes never agree."""
    votes = benchmark.draw_votes(votes=5000, items=70, annotators=40, classes=4)
    assert votes == benchmark.draw_votes(votes=5000, items=70, annotators=40, classes=4)
    columns = {name: votes[name].to_pylist() for name in votes.column_names}
    assert columns["item"] != sorted(columns["item"])
    assert set(columns["item"]) <= set(benchmark.item_names(70))
    many, few = (columns["annotator"].count(f"annotator {m}") for m in (0, 39))
    assert many > 5 * few > 0
    of_item = [
        a
        for i, a in zip(columns["item"], columns["annotation"], strict=True)
        if i == columns["item"][0]
    ]
    assert max(of_item.count(c) for c in set(of_item)) / len(of_item) > 0.5


def test_targets_are_judged_at_their_sizes_only(benchmark: ModuleType) -> None:
    """Joining a thousand votes in under a minute proves nothing."""
    given = benchmark.ColumnsArguments()
    rows = {
        job: benchmark.Row(job, seconds=seconds, cpu_seconds=70.0, peak_mib=5000.0, added_mib=900.0)
        for job, seconds in (
            ("add_annotations", 59.0), ("initialize_crowd", 3.1), ("MaxMIGTrainer, 100 steps", 50.0)
        )
    }  # fmt: skip
    verdicts = benchmark.targets(given, rows, 16.0)
    assert [verdict["met"] for verdict in verdicts] == [True, False, True, False, True]
    given.votes = 1000
    assert benchmark.targets(given, rows, 16.0) == []


def test_tiny_run_writes_what_it_prints(
    benchmark: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Results are read by their keys, and a full run is too long to fail at its end."""
    # In this process, which has the libraries: starting a new one per entry takes half a minute.
    monkeypatch.setattr(benchmark, "measure", benchmark.measured)
    for name in ("crowdkit", "crowdkit.aggregation", "crowdkit.metrics.data"):
        monkeypatch.setitem(sys.modules, name, None)
    benchmark.main([*TINY, "--output_dir", str(tmp_path)])
    results = json.loads((tmp_path / "benchmark_columns.json").read_text(encoding="utf-8"))
    assert set(results) == {
        "command", "machine", "sizes", "rows", "bytes", "plain", "targets", "description", "minutes"
    }  # fmt: skip
    assert results["command"].startswith(
        "python recipes/benchmarks/benchmark_columns.py --votes 500"
    )
    assert results["sizes"] == {"votes": 500, "items": 70, "annotators": 9, "classes": 4}
    assert [row["job"] for row in results["rows"]] == [
        "read_annotations, CSV", "read_annotations, Parquet", "add_annotations", "crowd_batches",
        "initialize_crowd", "MaxMIGTrainer, 100 steps", "describe, without crowd-kit", "describe",
    ]  # fmt: skip
    printed = capsys.readouterr().out
    for row in results["rows"]:
        assert set(row) == {"job", "seconds", "cpu_seconds", "peak_mib", "added_mib"}
        assert row["seconds"] > 0
        assert row["peak_mib"] > 50
        assert row["job"] in printed
    # Two int64 per vote, and two int32 per item.
    assert results["bytes"]["values_a_vote"] == 16
    assert results["bytes"]["offsets_an_item"] == 8
    assert results["plain"]["ratio"] > 0
    assert results["targets"] == []
    assert results["description"] in printed
    assert "70 items, 9 annotators, 4 classes" in printed


def test_a_job_that_loses_votes_is_found(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that reads half of the file is twice as fast."""

    def measured(name: str, prepare: Any, *arguments: Any) -> Any:
        return benchmark.Row(name, 1.0, 1.0, 100.0, 1.0), {"votes": 250}

    monkeypatch.setattr(benchmark, "measure", measured)
    with pytest.raises(AssertionError, match="must see 500 votes"):
        benchmark.main([*TINY, "--output_dir", str(tmp_path)])


@pytest.mark.slow
def test_a_job_has_its_own_memory(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a process that is not new, the memory peak belongs to whatever ran before."""
    come_with_libraries(monkeypatch)  # after it, a plain fork would no longer be a new process
    ballast = np.ones(30_000_000)
    (given,) = benchmark.parse(benchmark.ColumnsArguments, arguments=TINY)
    row, found = benchmark.measure("write", benchmark.write_votes, tmp_path, given)
    assert found == {"votes": 500}
    assert ballast.nbytes / benchmark.MIB > 200
    assert row.peak_mib < benchmark.peak_memory() - 100
    assert 0 <= row.added_mib < 100
