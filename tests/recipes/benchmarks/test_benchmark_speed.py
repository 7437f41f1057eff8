"""Tests of `recipes/benchmarks/benchmark_speed.py`: both sides do the same work, and the figures are right."""

import doctest
import json
import platform
import resource
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from hf_maxmig import (
    CrowdCollator,
    WeightedAverageAggregator,
    aggregate,
    mutual_information_gain,
)
from tests import children, reference
from tests.recipes.benchmarks.page_faults import faults_of_large_blocks
from tests.recipes.imported import recipes

PARTS = ("speed_rows", "speed_plain", "speed_trainer", "speed_large", "speed_crowdkit")
SEEDS = range(4)


@pytest.fixture(scope="module")
def benchmark():
    with recipes() as load:
        yield load("benchmark_speed")


@pytest.fixture
def part(benchmark: ModuleType) -> SimpleNamespace:
    """Return the recipe's other modules."""
    return SimpleNamespace(**{name.split("_")[1]: sys.modules[name] for name in PARTS})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("divergence", ["kl", "pearson", "jensen_shannon"])
def test_plain_gain_is_that_of_the_library(
    benchmark: ModuleType, divergence: str, seed: int
) -> None:
    """A plain version that computes something else would make any ratio possible."""
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
    """With scored and reported class exchanged it would cost the same, but be another aggregator."""
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
    assert any(not row for row in who)  # one item has no labels, and neither has the last annotator
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
    """A comparison that cannot fail would compare nothing."""
    right = torch.tensor([1.0, 200.0])
    benchmark.agree([right, right + 1e-3], [right, right])
    for wrong in (right + 0.1, right[:1]):
        with pytest.raises(AssertionError):
            benchmark.agree([right, wrong], [right, right])
    with pytest.raises(ValueError, match="longer"):
        benchmark.agree([right], [right, right])


def test_row_takes_ratios_within_pairs(part: SimpleNamespace) -> None:
    """On a machine that slows down, the medians of both sides may come from different times."""
    reading = part.rows.Reading
    plain = [reading(2.0, 6.0), reading(20.0, 6.0), reading(200.0, 6.0)]
    ours = [reading(1.0, 0.1), reading(10.0, 0.1), reading(50.0, 0.1)]
    line = part.rows.row("aggregator", plain, ours)
    assert (line.plain, line.ours, line.ratio) == (20.0, 10.0, 2.0)
    assert line.cpu_ratio == pytest.approx(60)
    slow = part.rows.row("trainer step", ours, plain, part.rows.OURS_OVER_PLAIN)
    assert (slow.plain, slow.ours, slow.ratio) == (10.0, 20.0, 2.0)
    alone = part.rows.row("gain", [], ours)
    assert (alone.ours, alone.plain, alone.ratio, alone.cpu_ratio) == (10.0, None, None, None)


def test_targets_go_by_processor_time(benchmark: ModuleType, part: SimpleNamespace) -> None:
    """By wall-clock time, other work on the machine would decide."""
    reading = part.rows.Reading
    cases = (
        ("aggregator, M=747", reading(1.0, 60.0), part.rows.PLAIN_OVER_OURS, True),
        ("aggregator, M=747", reading(60.0, 1.0), part.rows.PLAIN_OVER_OURS, False),
        ("trainer step, resnet18, M=59", reading(0.5, 1.0), part.rows.OURS_OVER_PLAIN, True),
        ("trainer step, resnet18, M=59", reading(1.0, 0.5), part.rows.OURS_OVER_PLAIN, False),
        ("aggregator, M=59", reading(1.0, 60.0), part.rows.PLAIN_OVER_OURS, None),
    )
    for job, plain, kind, met in cases:
        line = part.rows.row(job, [plain], [reading(1.0, 1.0)], kind)
        benchmark.judge(line)
        assert line.met is met, job
        assert bool(line.target) == (met is not None)


def test_targets_are_of_jobs_that_there_are(benchmark: ModuleType) -> None:
    """A target under a misspelt name would never be missed."""
    sizes = benchmark.Sizes()
    N, M, _ = sizes.initialisation
    jobs = {f"{divergence} gain, N={N}" for divergence, N in sizes.gain}
    jobs |= {f"aggregator, M={M}" for _, M, _ in sizes.aggregator}
    jobs |= {
        f"trainer step, {network.name}, M={M:,}{how}"
        for network in sizes.networks
        for M in sizes.trainer_annotators
        for how in ("", ", same batches")
    }
    jobs |= {f"initialisation, {N:,} x {M}"}
    targets = {*benchmark.AT_LEAST, *benchmark.AT_MOST, *benchmark.AT_MOST_SECONDS}
    assert targets
    assert targets <= jobs


def test_unknown_job_is_refused(benchmark: ModuleType) -> None:
    """If it were skipped, nothing would be measured and the table would be empty."""
    with pytest.raises(ValueError, match=r"`jobs` must be some of gain, .*, got 'gian'"):
        benchmark.main(["--jobs", "gian"])


# Trainings that take turns


class PretendTrainer:
    """Takes empty steps and records whose they were; shows if a second one runs at the same time."""

    working = threading.Lock()

    def __init__(self, callback: Any, log: list[int], fails_at: int | None = None) -> None:
        self.callback, self.log, self.fails_at = callback, log, fails_at

    def remove_callback(self, callback: Any) -> None:
        pass

    def train(self) -> None:
        for step in range(self.callback.max_steps):
            assert self.working.acquire(blocking=False)
            if step == self.fails_at:
                self.working.release()
                raise ValueError("no data")
            self.log.append(self.callback.side)
            time.sleep(0.001)
            self.working.release()
            self.callback.on_step_end()


def turns_of(part: SimpleNamespace, fails_at: int | None = None) -> tuple[list[int], list[Any]]:
    log: list[int] = []
    trainers = [
        lambda callback: PretendTrainer(callback, log),
        lambda callback: PretendTrainer(callback, log, fails_at),
        lambda callback: PretendTrainer(callback, log),
    ]
    reading = part.rows.Reading

    def callback(turns: Any, side: int) -> Any:
        # Time is counted in steps of all trainings.
        return part.trainer.InTurn(
            turns, side, 1, 2, rounds=2, clock=lambda: reading(len(log), len(log))
        )

    return log, part.trainer.train_by_turns(trainers, callback, rounds=2)


def test_trainings_take_turns(part: SimpleNamespace) -> None:
    """Two at once would slow each other down, and whoever is always first finds cold caches."""
    log, sides = turns_of(part)
    assert log == [0, 1, 2, 2, 2, 1, 1, 0, 0, 0, 0, 1, 1, 2, 2]
    for side in sides:  # one's own step, without those of the others
        assert side.readings == [part.rows.Reading(1.0, 1.0)] * 2


def test_failing_training_ends_the_others(part: SimpleNamespace) -> None:
    """The others would wait for their turn for ever, and the first error is the reason to report."""
    with pytest.raises(ValueError, match="no data"):
        turns_of(part, fails_at=2)


@pytest.mark.parametrize("name", ["head", "vit_tiny"])
def test_compared_trainers_train_the_same_network(part: SimpleNamespace, name: str) -> None:
    """A model around another classifier, or with another loss, would not be comparable."""
    trainer, plain = part.trainer, part.plain
    network = trainer.Network(name, size=32, batch=4, settling=1, steps=1)
    generator = torch.Generator().manual_seed(0)
    items = plain.noise_dataset(network.column, 7, 3, network.shape, generator)
    dataset = trainer.concatenate_datasets(
        [items.with_format("torch"), plain.crowd_dataset(7, 5, 3, generator)], axis=1
    )
    trainer.check_step(network, dataset, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "plain_gain", lambda *inputs: -plain.plain_gain(*inputs))
        with pytest.raises(AssertionError):
            trainer.check_step(network, dataset, 5)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these variables")
def test_kept_memory_costs_no_page_faults(part: SimpleNamespace) -> None:
    """A side whose memory happens to be returned to the system would pay for that, not for its method."""
    pages = 2**26 // resource.getpagesize()
    faults = [
        part.trainer.in_child(environment, faults_of_large_blocks)
        for environment in ({}, part.trainer.KEEPS)
    ]
    assert faults[0] > 5 * pages / 512  # the system uses huge pages where it can
    assert faults[1] < faults[0] / 10


@pytest.mark.parametrize("rounds", [1, 2, 5, 7, 30])
def test_rounds_are_shared_out_among_trainings(part: SimpleNamespace, rounds: int) -> None:
    """A training without a turn would never begin, and the others would wait for it."""
    shares = part.trainer.shared_out(rounds, part.trainer.TRAININGS)
    assert sum(shares) == rounds
    assert len(shares) == min(rounds, part.trainer.TRAININGS)
    assert max(shares) - min(shares) <= 1


def test_readings_of_all_trainings_are_kept_in_pairs(
    part: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Within one training the ratio depends on memory placement, and unpaired readings mean nothing."""
    trainer, reading, given = part.trainer, part.rows.Reading, []

    def pretend(makers: list[Any], callbacks: Any, rounds: int) -> list[Any]:
        sides = [callbacks(None, side) for side in range(len(makers))]
        for side in sides:
            assert side.rounds == rounds
            walls = [10.0 ** len(given) * (1 + side.side)] * rounds
            side.readings += [reading(wall, wall) for wall in walls]
        given.append(rounds)
        return sides

    monkeypatch.setattr(trainer, "train_by_turns", pretend)
    network = trainer.Network("head", size=6, batch=5, settling=1, steps=1)
    rows = trainer.measure_network(network, [3, 4], 3, rounds=7, output_dir=str(tmp_path))
    assert given == trainer.shared_out(7, trainer.TRAININGS)
    assert [line.ratio for line in rows] == [2.0, 3.0, 1.5, 4.0, 2.0]


# Large batches


@pytest.mark.slow
@pytest.mark.full
def test_peaks_are_of_the_call_alone(part: SimpleNamespace) -> None:
    """Memory of another job, memory held before, or reserved memory must not be counted."""
    large, sizes = part.large, [("kl", 2000, 3), ("jensen_shannon", 1500, 3), ("kl", 5000, 3)]
    peaks = large.in_child(large.GIVES_BACK, large.measure_peaks, sizes, 150.0, 1)
    for (_, N, _), (ours, pairs) in zip(sizes[:2], peaks, strict=False):
        matrix = 4 * N**2 / 2**20
        assert 1.9 * matrix < pairs < 12 * matrix
        assert ours < 4.5 * matrix
    assert peaks[0][0] < 1
    assert peaks[2][1] is None  # two matrices of 95 MiB


def test_pairs_that_do_not_fit_are_left_blank(part: SimpleNamespace) -> None:
    """If they were tried, they would exhaust the machine's memory."""
    sizes, peaks = [("kl", 600, 3), ("pearson", 700, 3)], [(1.5, 3.5), (2.5, None)]
    rows = part.large.measure_gains(sizes, peaks, rounds=2, threads=torch.get_num_threads())
    one, other = rows
    assert one.plain > one.ours
    assert (one.ours_mib, one.plain_mib) == (1.5, 3.5)
    assert (other.plain, other.plain_mib, other.ratio) == (None, None, None)
    assert other.ours > 0
    assert other.ours_mib == 2.5
    *_, cells = (line.split("|") for line in part.rows.table(rows).splitlines())
    assert [cell.strip() for cell in cells[3:4] + cells[5:8]] == ["", "", "", ""]


# crowd-kit


class PretendFits:
    """Returns the given time of each fit at once."""

    def __init__(self, votes: int, M: int, C: int, longest: float) -> None:
        self.votes = votes

    asked: ClassVar[list[tuple[int, str]]] = []
    takes: ClassVar[dict[str, float | None]] = {}

    def fit(self, kind: str) -> Any:
        self.asked.append((self.votes, kind))
        seconds = self.takes.get(kind, 0.5)
        return None if seconds is None else sys.modules["speed_rows"].Reading(seconds, seconds)

    def end(self) -> None:
        pass


def test_slow_fits_are_not_tried_on_more_votes(
    part: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would take a minute and teach nothing."""
    monkeypatch.setattr(part.crowdkit, "Fits", PretendFits)
    monkeypatch.setattr(PretendFits, "asked", [])
    monkeypatch.setattr(PretendFits, "takes", {"GLAD": None, "MACE": 40.0})
    rows = part.crowdkit.measure_crowdkit([60, 120], 7, 3, longest=60.0, rounds=2)
    more = {kind for votes, kind in PretendFits.asked if votes == 120}
    assert {*part.crowdkit.FITS.values()} - more == {"GLAD", "MACE"}
    assert len(PretendFits.asked) == 2 * len(part.crowdkit.FITS) - 2
    plain = {line.job: line.plain for line in rows}
    assert plain["our start, crowd-kit's glad, 60 votes"] is None
    assert plain["our start, crowd-kit's mace, 60 votes"] == 40.0
    assert plain["our start, crowd-kit's mace, 120 votes"] is None
    assert plain["our start, crowd-kit's wawa, 120 votes"] == 0.5
    assert {line.ratio for line in rows} == {None}  # the two sides do not do the same work


def test_without_crowdkit_the_rest_is_measured(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Crowd-kit is optional."""
    monkeypatch.setattr(benchmark, "find_spec", lambda name: None)
    given = benchmark.SpeedArguments(threads=[torch.get_num_threads()])
    assert benchmark.measure("crowdkit", benchmark.QUICK, 2, given) == []
    assert "crowd-kit is not installed" in capsys.readouterr().out


@pytest.mark.slow
def test_fit_that_takes_too_long_is_ended(
    part: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fit of a minute must not delay the page or the fits after it."""
    pytest.importorskip("crowdkit")
    children.come_with_libraries(monkeypatch)
    fits = part.crowdkit.Fits(votes=60, M=7, C=3, longest=0.0)
    try:
        assert fits.fit("MACE") is None
        assert fits.process is None
        fits.longest = 60.0
        assert fits.fit("MajorityVote").wall > 0
        process = fits.process
    finally:
        fits.end()
    assert process is not None
    assert not process.is_alive()


def test_table_of_the_page_is_what_the_results_give(part: SimpleNamespace, root: Path) -> None:
    """A table that was typed by hand, or left over from another run, shows what was never measured."""
    rows = part.rows
    lines = json.loads(rows.RESULTS.read_text(encoding="utf-8"))["rows"]
    table = rows.short_table([rows.Row(**line) for line in lines])
    page = (root / "docs" / "speed.md").read_text(encoding="utf-8")
    assert f"<!-- speed -->\n{table}\n<!-- end speed -->" in page


def test_short_table_tells_how_much_faster_or_slower(part: SimpleNamespace) -> None:
    """Both kinds of ratio share a column, and what was not measured stays blank."""
    reading, row, threads = part.rows.Reading, part.rows.row, torch.get_num_threads()
    one, two, many = [reading(1.0, 1.0)], [reading(2.0, 3.0)], [reading(5.0, 2000.0)]
    steps = part.rows.OURS_OVER_PLAIN
    lines = [
        row("gain", many, one), row("small gain", two, one), row("step", one, two, steps),
        row("trainer step, vit_tiny, M=5, same batches", one, two, steps),
        row("our start, crowd-kit's glad", [], one), row("epoch", [], two),
    ]  # fmt: skip
    of_head = row("trainer step, head, M=5", one, two, steps)
    of_head.threads = threads + 1
    cells = [
        line.split("|")[1:-1] for line in part.rows.short_table([*lines, of_head]).splitlines()
    ]
    assert [[cell.strip() for cell in line] for line in cells[2:]] == [
        ["gain", str(threads), "5 s", "1 s", "2,000x faster"],
        ["small gain", str(threads), "2 s", "1 s", "3.0x faster"],
        ["step", str(threads), "1 s", "2 s", "3.000 of plain"],
        ["epoch", str(threads), "", "2 s", ""],
    ]


def test_examples_of_the_recipe_hold(part: SimpleNamespace) -> None:
    """Pytest does not collect the examples in recipes."""
    for page in (part.rows, part.trainer):
        results = doctest.testmod(page)
        assert results.attempted
        assert not results.failed


@pytest.mark.slow
def test_quick_run_writes_what_it_prints(
    benchmark: ModuleType,
    part: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Results are read by their keys, and a full run is too long to fail at its end."""
    # In this process, which has the libraries: starting a new one per entry takes half a minute.
    for of in (part.large, part.trainer):
        monkeypatch.setattr(of, "in_child", lambda _, function, *given: function(*given))
    monkeypatch.setattr(part.trainer, "TRAININGS", 1)  # several trainings have their own test
    monkeypatch.setattr(part.crowdkit, "Fits", PretendFits)
    monkeypatch.setattr(benchmark, "find_spec", lambda name: True)
    threads = torch.get_num_threads()
    try:
        benchmark.main(["--quick", "--threads", "1", "2", "--output_dir", str(tmp_path)])
    finally:
        torch.set_num_threads(threads)
    results = json.loads((tmp_path / "benchmark_speed.json").read_text(encoding="utf-8"))
    assert set(results) == {"command", "machine", "quick", "rounds", "minutes", "rows"}
    assert results["quick"] is True
    machine = {"platform", "cpu", "cores", "threads"}
    assert set(results["machine"]) == {
        *machine, "python", "torch", "transformers", "timm", "hf_maxmig", "commit"
    }  # fmt: skip
    assert results["machine"]["threads"] == [1, 2]
    printed = capsys.readouterr().out
    assert benchmark.CAPTION in printed
    kinds = set()
    for line in results["rows"]:
        assert set(line) == {
            "job", "threads", "plain", "ours", "ratio", "ratio_of_medians", "cpu_ratio", "ratio_is",
            "plain_mib", "ours_mib", "target", "met",
        }  # fmt: skip
        kind = line["job"].split(",")[0]
        compared = kind not in ("our start", "epoch of our aggregator")
        for key in ("ours", *["plain", "ratio", "cpu_ratio"] * compared):
            assert line[key] > 0
        assert line["target"] == ""
        assert line["met"] is None
        assert f"| {line['job']} " in printed
        kinds.add(kind)
    assert kinds == {
        "kl gain", "pearson gain", "jensen_shannon gain", "aggregator", "initialisation",
        "initialisation by triple loop", "trainer step", "our start", "epoch of our aggregator",
    }  # fmt: skip
    steps = [line for line in results["rows"] if line["job"].startswith("trainer step")]
    assert {line["threads"] for line in steps} == {1, 2}
    assert len({line["job"] for line in steps}) == len(steps) / 2 == 3 * (1 + 2 * 2)
