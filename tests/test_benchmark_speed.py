"""Tests of `recipes/benchmark_speed.py`: it times the same thing done twice and tells the truth."""

import doctest
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hf_maxmig import (
    CrowdCollator,
    WeightedAverageAggregator,
    aggregate,
    mutual_information_gain,
)

from . import reference

RECIPE = Path(__file__).parent.parent / "recipes" / "benchmark_speed.py"
SEEDS = range(4)


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Load the recipe, which is a script and no part of the package; it finds others beside it."""
    spec = importlib.util.spec_from_file_location("benchmark_speed", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark_speed"] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(RECIPE.parent))
        spec.loader.exec_module(module)
    yield module
    del sys.modules["benchmark_speed"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("divergence", ["kl", "pearson", "jensen_shannon"])
def test_plain_gain_is_that_of_the_library(
    benchmark: ModuleType, divergence: str, seed: int
) -> None:
    """A plain version of something else would make any ratio."""
    generator = torch.Generator().manual_seed(seed)
    leaves = benchmark.gain_inputs(5, 3, generator, dtype=torch.float64)
    ours = mutual_information_gain(*leaves, divergence)
    for plain in (benchmark.plain_gain, *[benchmark.lean_pairwise_gain] * (divergence == "kl")):
        other = plain(*leaves, *[divergence] * (plain is benchmark.plain_gain))
        torch.testing.assert_close(other, ours)
        gradients = torch.autograd.grad(ours, leaves, retain_graph=True)
        assert all(gradient.abs().max() > 1e-3 for gradient in gradients)
        torch.testing.assert_close(torch.autograd.grad(other, leaves), gradients)
    h, g, p = (leaf.detach().exp() for leaf in leaves)
    naive = reference.gain(h, g, p, reference.TABLE_1[divergence])
    torch.testing.assert_close(ours.detach(), naive)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("M", "C"), [(4, 3), (3, 6)])
def test_plain_aggregator_is_that_of_the_library(
    benchmark: ModuleType, M: int, C: int, seed: int
) -> None:
    """Scored and reported class exchanged would cost the same, and be another aggregator."""
    generator = torch.Generator().manual_seed(seed)
    who, what = benchmark.draw_crowd(5, M, C, range(1, M), generator)
    assert len({len(row) for row in who}) > 1  # some items are padded
    assert all(len(set(row)) == len(row) for row in who)
    pairs = CrowdCollator(M, C).crowd(
        [{"annotators": a, "annotations": b} for a, b in zip(who, what, strict=True)]
    )
    weight = torch.randn((M, C, C), generator=generator).double().requires_grad_()
    log_p = torch.randn(C, generator=generator).double().log_softmax(-1)
    layers = benchmark.PlainAggregator(weight.detach())
    one_hots = benchmark.one_hot_rows(*pairs, M, C).double()
    ours, plain = aggregate(weight, log_p, *pairs), layers(log_p, one_hots)
    torch.testing.assert_close(plain, ours)
    direction = torch.randn((5, C), generator=generator).double()
    (gradient,) = torch.autograd.grad((ours * direction).sum(), weight)
    assert gradient.abs().max() > 1e-3
    gradients = torch.autograd.grad((plain * direction).sum(), list(layers.parameters()))
    torch.testing.assert_close(torch.stack(gradients), gradient)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("M", "C"), [(4, 3), (3, 6)])
def test_plain_initialisations_are_that_of_the_library(
    benchmark: ModuleType, M: int, C: int, seed: int
) -> None:
    """Sums over all items, and not over those that the annotator labelled, would be as fast."""
    generator = torch.Generator().manual_seed(seed)
    who, what = benchmark.draw_crowd(7, M - 1, C, range(M), generator)
    assert any(not row for row in who)  # an item without labels; the last annotator has none either
    pairs = CrowdCollator(M, C).crowd(
        [{"annotators": a, "annotations": b} for a, b in zip(who, what, strict=True)]
    )
    aggregator = WeightedAverageAggregator(M, C)
    aggregator.initialize([pairs], smoothing=0.01)
    dense = benchmark.dense_labels(*pairs, M)
    for plain in (
        benchmark.plain_initial_weight(dense, C, 0.01),
        torch.tensor(benchmark.triple_loop_initial_weight(dense.tolist(), C, 0.01)),
    ):
        torch.testing.assert_close(plain, aggregator.weight.detach(), rtol=1e-5, atol=1e-5)
        assert not plain[-1].any()
        assert plain[0].any()


def test_agree_tells_versions_apart(benchmark: ModuleType) -> None:
    """A comparison that cannot fail compares nothing."""
    right = torch.tensor([1.0, 200.0])
    benchmark.agree([right, right + 1e-3], [right, right])
    for wrong in (right + 0.1, right[:1]):
        with pytest.raises(AssertionError):
            benchmark.agree([right, wrong], [right, right])
    with pytest.raises(ValueError, match="longer"):
        benchmark.agree([right], [right, right])


def test_row_takes_ratios_within_pairs(benchmark: ModuleType) -> None:
    """On a machine that grows slower, medians of both sides may come from different times."""
    reading = benchmark.Reading
    plain = [reading(2.0, 6.0), reading(20.0, 6.0), reading(200.0, 6.0)]
    ours = [reading(1.0, 0.1), reading(10.0, 0.1), reading(50.0, 0.1)]
    line = benchmark.row("aggregator, M=747", plain, ours, "plain / ours", quick=False)
    assert (line.plain, line.ours, line.ratio) == (20.0, 10.0, 2.0)
    assert line.cpu_ratio == pytest.approx(60)
    assert line.met is True
    slow = benchmark.row("trainer step, M=59", ours, plain, "ours / plain", quick=False)
    assert slow.ratio == 2.0
    assert slow.met is False
    assert benchmark.row("trainer step, M=59", ours, plain, "ours / plain", quick=True).met is None


def test_targets_are_of_jobs_that_there_are(benchmark: ModuleType) -> None:
    """A target under a misspelt name is never missed."""
    sizes = benchmark.Sizes()
    N, M, _ = sizes.initialisation
    jobs = {f"{divergence} gain, N={N}" for divergence, N in sizes.gain}
    jobs |= {f"aggregator, M={M}" for _, M, _ in sizes.aggregator}
    jobs |= {f"trainer step, M={M}" for M in sizes.trainer_annotators}
    jobs |= {f"initialisation, {N:,} x {M}"}
    targets = {*benchmark.AT_LEAST, *benchmark.AT_MOST, *benchmark.AT_MOST_SECONDS}
    assert targets
    assert targets <= jobs


def test_examples_of_the_recipe_hold(benchmark: ModuleType) -> None:
    """Recipes are not among the modules whose examples pytest runs."""
    results = doctest.testmod(benchmark)
    assert results.attempted
    assert not results.failed


@pytest.mark.slow
def test_quick_run_writes_what_it_prints(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The results are read by their keys; a full run is too long to find a fault at its end."""
    threads = torch.get_num_threads()
    try:
        benchmark.main(["--quick", "--output_dir", str(tmp_path)])
    finally:
        torch.set_num_threads(threads)
    results = json.loads((tmp_path / "benchmark_speed.json").read_text(encoding="utf-8"))
    assert set(results) == {"command", "machine", "quick", "rounds", "minutes", "rows"}
    assert results["quick"] is True
    machine = {"platform", "cpu", "cores", "threads"}
    assert set(results["machine"]) == {
        *machine, "python", "torch", "transformers", "timm", "hf_maxmig"
    }  # fmt: skip
    assert results["machine"]["threads"] == 1
    printed = capsys.readouterr().out
    kinds = set()
    for line in results["rows"]:
        assert set(line) == {
            "job", "plain", "ours", "ratio", "ratio_of_medians", "cpu_ratio", "ratio_is",
            "target", "met",
        }  # fmt: skip
        assert min(line[key] for key in ("plain", "ours", "ratio", "cpu_ratio")) > 0
        assert line["target"] == ""
        assert line["met"] is None
        assert line["job"] in printed
        kinds.add(line["job"].split(",")[0])
    assert kinds == {
        "kl gain", "pearson gain", "jensen_shannon gain", "aggregator", "initialisation",
        "initialisation by triple loop", "trainer step",
    }  # fmt: skip
