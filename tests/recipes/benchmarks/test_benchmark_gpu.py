"""Tests of `recipes/benchmarks/benchmark_gpu.py`, as far as it runs without an accelerator."""

import doctest
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.recipes.imported import recipes


@pytest.fixture(scope="module")
def benchmark():
    with recipes() as load:
        yield load("benchmark_gpu")


@pytest.mark.parametrize(("number", "message"), [(0, "--quick"), (2, "CUDA_VISIBLE_DEVICES=0")])
def test_machine_without_one_accelerator_is_told_so(
    benchmark: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    number: int,
    message: str,
) -> None:
    """Without an accelerator it would take hours on the CPU without mentioning it."""
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: number)
    with pytest.raises(
        SystemExit, match=rf"needs one accelerator, got {number}: .*{message}"
    ) as end:
        benchmark.main(["--output_dir", str(tmp_path)])
    assert "\n" not in str(end.value)
    assert not [*tmp_path.iterdir()]


def test_batches_lie_ready(benchmark: ModuleType) -> None:
    """If batches were made on demand, their making would be measured.

    Gold labels are for the plain side only.
    """
    given = benchmark.GpuArguments(batch=5, annotators=7, classes=3, quick=True)
    batches = benchmark.make_batches(4, given)
    ready = benchmark.ReadyBatches(batches, "pixel_values", "annotators")
    assert set(ready([0])) == {"pixel_values", "annotators"}
    assert ready([6, 7])["pixel_values"] is batches[6 % len(batches)]["pixel_values"]
    assert batches[0]["pixel_values"].shape == (5, 3, 4, 4)
    assert batches[0]["annotations"].shape == (5, 3)


def test_examples_of_the_recipe_hold(benchmark: ModuleType) -> None:
    """Pytest does not collect the examples in recipes."""
    results = doctest.testmod(benchmark)
    assert results.attempted
    assert not results.failed


def test_row_that_failed_says_why(benchmark: ModuleType) -> None:
    """A missing compiler must not hide what was measured without it."""
    side = benchmark.Side(1234.0, 99.0, 2.5, {"aten::item": 2.0})
    rows = [
        benchmark.Row("resnet50", False, side, side, 1.01, 0.05, 0.02),
        benchmark.Row("resnet50", True, error="RuntimeError: no C compiler"),
    ]
    printed = benchmark.table(rows)
    assert "RuntimeError: no C compiler" in printed
    assert "1,234" in printed
    assert "item 2" in printed


@pytest.mark.slow
@pytest.mark.full  # it compiles networks
def test_quick_run_writes_what_it_prints(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Time on an accelerator is expensive, so errors must be found without one."""
    benchmark.main(["--quick", "--output_dir", str(tmp_path)])
    results = json.loads((tmp_path / "benchmark_gpu.json").read_text(encoding="utf-8"))
    assert set(results) == {"command", "machine", "quick", "sizes", "minutes", "rows"}
    printed = capsys.readouterr().out
    assert [row["compiled"] for row in results["rows"]] == [False, True]
    for row in results["rows"]:
        assert row["error"] == ""
        assert f"| {row['network']} " in printed
        assert row["ratio"] > 0
        assert row["crowd_ms"] > 0
        for side in (row["plain"], row["ours"]):
            assert side["images_a_second"] > 0
            assert side["kernels_ms"] > 0
            assert side["peak_mib"] == 0
            # Adam reads each parameter's step count, which costs nothing on a CPU.
            assert side["waits"]["aten::item"] >= 1
