"""Speed on an accelerator: Max-MIG beside cross-entropy, both with the trainer, in bfloat16.

ResNet-50 and ViT-S/16 at 224 pixels with random weights, with and without torch's compiler; nothing to
download. Batches of noise are prepared in pinned memory, so that neither side waits for data. Both train
by turns in one process, and the device is synchronised at the start and end of each turn. It measures:

- images per second of both, and the ratio of their steps, the median over pairs of turns;
- the peak memory of each;
- from a profile of some steps: the kernels' time per step, the share of it that Max-MIG adds
  (aggregator, forecast and gain, forward and backward, profiled separately), and how often a step makes
  the host wait.

    python recipes/benchmarks/benchmark_gpu.py --output_dir out/benchmark_gpu

takes under 8 minutes on one accelerator, most of it compilation, prints a table and writes it to
`benchmark_gpu.json`, row by row. `--quick` shows in half a minute that it runs, on any machine.
"""

import gc
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import above  # noqa: F401  the recipes can be imported
import timm
import torch
import transformers
from machine import machine
from pages import markdown
from results_file import command, write_results
from speed_plain import draw_crowd
from speed_rows import Reading, now
from speed_trainer import OUR_SETTINGS, SETTINGS, InTurn, Network, Turns, train_by_turns
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import hf_maxmig
from hf_maxmig import (
    CrowdCollator,
    MaxMIGModel,
    MaxMIGOutput,
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
    forecast,
)
from hf_maxmig.command.flags import errors_in_one_line, parse

MIB = 2**20
READY_BATCHES = 4
WAITS = (  # of the host for the device, as a profile names them
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::item",
    "aten::_local_scalar_dense",
)  # fmt: skip


@dataclass
class GpuArguments:
    """What to measure, and where to write."""

    output_dir: str = field(
        default="out/benchmark_gpu", metadata={"help": "Folder of `benchmark_gpu.json`."}
    )
    batch: int = field(default=128, metadata={"help": "Items of a batch, B."})
    annotators: int = field(default=747, metadata={"help": "Annotators, M; three labels per item."})
    classes: int = field(default=10, metadata={"help": "Classes, C."})
    rounds: int = field(default=8, metadata={"help": "Turns of each side."})
    minutes: float = field(
        default=6.0, metadata={"help": "After which nothing new is begun: a row takes up to two."}
    )
    quick: bool = field(
        default=False,
        metadata={"help": "Tiny sizes, on the processor: shows that it runs, not how fast it is."},
    )


@dataclass(frozen=True)
class Sizes:
    """The networks and batches to train; the defaults are those of the results.

    Args:
        networks: models of timm, with B of `GpuArguments`.
        backend: of torch's compiler.
    """

    networks: tuple[Network, ...] = (
        Network("resnet50", size=224, batch=0, settling=10, steps=10),
        Network("vit_small_patch16_224", size=224, batch=0, settling=10, steps=10),
    )
    backend: str = "inductor"


QUICK = Sizes(
    networks=(Network("test_resnet", size=32, batch=0, settling=1, steps=2),), backend="eager"
)


@dataclass
class Side:
    """The measurements of one of the two trainings.

    Args:
        images_a_second: trained on.
        peak_mib: memory of the device, beyond what it held before; 0 without an accelerator.
        kernels_ms: per step, all kernels together; the processor's operations without an accelerator.
        waits: of the host for the device, per step, by cause.
    """

    images_a_second: float
    peak_mib: float
    kernels_ms: float
    waits: dict[str, float]


@dataclass
class Row:
    """One line of the table.

    Args:
        network: the classifier.
        compiled: whether by torch's compiler.
        plain: cross-entropy on gold labels.
        ours: Max-MIG.
        ratio: seconds of a step, ours / plain: median over pairs of turns.
        crowd_ms: kernels of aggregator, forecast and gain, forward and backward, per step, not
            compiled.
        crowd_share: of the kernels of our step.
        error: why it was not measured.
    """

    network: str
    compiled: bool
    plain: Side | None = None
    ours: Side | None = None
    ratio: float | None = None
    crowd_ms: float | None = None
    crowd_share: float | None = None
    error: str = ""


# Inputs


class Places(Dataset[int]):
    """A data set of only numbers: the collator has the batches ready."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, place: int) -> int:
        return place


class ReadyBatches:
    """Returns batches that were made before; each side gets the columns that it takes."""

    def __init__(self, batches: list[dict[str, Tensor]], *columns: str) -> None:
        self.batches = [{name: batch[name] for name in columns} for batch in batches]

    def __call__(self, places: list[int]) -> dict[str, Tensor]:
        """Return one of the batches, whichever items are requested."""
        return dict(self.batches[places[0] % len(self.batches)])


def make_batches(size: int, given: GpuArguments) -> list[dict[str, Tensor]]:
    """Draw noise for pictures, gold labels and votes."""
    B, M, C = given.batch, given.annotators, given.classes
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(READY_BATCHES):
        who, what = draw_crowd(B, M, C, [min(M, 3)], generator)
        annotators, annotations = CrowdCollator(M, C).crowd(
            [{"annotators": a, "annotations": b} for a, b in zip(who, what, strict=True)]
        )
        batch = {
            "pixel_values": torch.randn((B, 3, size, size), generator=generator),
            "labels": torch.randint(C, (B,), generator=generator),
            "annotators": annotators,
            "annotations": annotations,
        }
        batches.append({n: t if given.quick else t.pin_memory() for n, t in batch.items()})
    return batches


# Measuring


def synchronized(device: torch.device) -> Reading:
    """Read the clock once the device has done all its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return now()


class Profiled:
    """A profile of some steps.

    Args:
        steps: their number.
        device: on which they are computed.
    """

    def __init__(self, steps: int, device: torch.device) -> None:
        self.steps, self.device = steps, device
        self.kernels_ms = 0.0
        self.waits: dict[str, float] = {}
        kinds = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
        self.profile = profile(
            activities=[ProfilerActivity.CPU, *(kinds[k] for k in kinds if k == device.type)]
        )

    def start(self) -> None:
        """Start."""
        self.profile.start()

    def stop(self) -> None:
        """Stop, and sum up."""
        self.profile.stop()
        events = self.profile.key_averages()
        if self.device.type == "cpu":
            microseconds = sum(event.self_cpu_time_total for event in events)
        else:
            microseconds = sum(
                event.self_device_time_total
                for event in events
                if event.device_type != DeviceType.CPU and not event.is_user_annotation
            )
        self.kernels_ms = microseconds / 1e3 / self.steps
        waits = Counter({e.key: e.count for e in events if e.key in WAITS})
        self.waits = {name: waits[name] / self.steps for name in WAITS if waits[name]}


class ProfiledTurn(InTurn):
    """Also records the peak memory of the first turn, and profiles the last, which is not counted.

    Args:
        device: where the steps are computed.
        *args: as in `InTurn`.
    """

    def __init__(self, device: torch.device, *args: Any) -> None:
        super().__init__(*args, clock=partial(synchronized, device))
        self.device = device
        self.held = 0
        self.peak_mib = 0.0
        self.profiled: Profiled | None = None

    def begin_memory(self) -> None:
        """Before there is a trainer."""
        if self.device.type != "cpu":
            gc.collect()
            torch.accelerator.empty_cache()
            torch.accelerator.reset_peak_memory_stats()
            self.held = torch.accelerator.memory_allocated()

    def begin_turn(self) -> None:
        """Record the time, and in the last turn start the profile."""
        super().begin_turn()
        if len(self.readings) == self.rounds - 1:
            self.profiled = Profiled(self.steps, self.device)
            self.profiled.start()

    def end_turn(self) -> None:
        """Record the time per step."""
        if self.start is None and self.device.type != "cpu":
            self.peak_mib = (torch.accelerator.max_memory_allocated() - self.held) / MIB
        if self.profiled is not None:
            self.profiled.stop()
        super().end_turn()

    def result(self, batch: int) -> Side:
        """Return what was measured."""
        assert self.profiled is not None
        seconds = median(reading.wall for reading in self.readings[:-1])
        return Side(batch / seconds, self.peak_mib, self.profiled.kernels_ms, self.profiled.waits)


def crowd_kernels(batch: dict[str, Tensor], given: GpuArguments, device: torch.device) -> float:
    """Profile what Max-MIG adds to a step: aggregator, forecast and gain, forward and backward.

    Returns:
        Milliseconds of a step.
    """
    network = Network("head", size=2, batch=given.batch, settling=0, steps=1)
    model = MaxMIGModel.from_classifier(network.build(given.classes), given.annotators)
    model.to(device)
    crowd = {name: batch[name].to(device) for name in ("annotators", "annotations")}
    logits = torch.randn(given.batch, given.classes, device=device, requires_grad=True)

    def step() -> None:
        log_p = model.prior()
        log_g = model.aggregator(log_p, crowd["annotators"], crowd["annotations"])
        zeta = forecast(logits.log_softmax(dim=-1), log_g, log_p)
        outputs = MaxMIGOutput(logits=logits, aggregator_logits=log_g, forecast_logits=zeta)
        loss, _ = model.crowd_loss(outputs, crowd)
        loss.backward()

    for _ in range(3):
        step()
    synchronized(device)
    profiled = Profiled(10, device)
    profiled.start()
    for _ in range(profiled.steps):
        step()
    profiled.stop()
    return profiled.kernels_ms


def device_of(given: GpuArguments) -> torch.device:
    """The device of all computations."""
    accelerator = None if given.quick else torch.accelerator.current_accelerator()
    return accelerator or torch.device("cpu")


def measure(network: Network, compiled: bool, backend: str, given: GpuArguments) -> Row:
    """Train both sides of one row by turns."""
    B, M, C = given.batch, given.annotators, given.classes
    device = device_of(given)
    batches = make_batches(network.size, given)
    crowd = [(batch["annotators"], batch["annotations"]) for batch in batches]
    settings: dict[str, Any] = {
        **SETTINGS,
        "output_dir": given.output_dir,
        "per_device_train_batch_size": B,
        "bf16": True,
        "use_cpu": given.quick,
        "torch_compile": compiled,
        "torch_compile_backend": backend if compiled else None,
        "dataloader_pin_memory": not given.quick,  # they already are; copies do not wait
        "accelerator_config": {"non_blocking": not given.quick},
    }

    def plain(callback: InTurn) -> Trainer:
        callback.begin_memory()
        return Trainer(
            model=network.build(C),
            args=TrainingArguments(
                **settings, max_steps=callback.max_steps, remove_unused_columns=False
            ),
            data_collator=ReadyBatches(batches, "pixel_values", "labels"),
            train_dataset=Places(B * callback.max_steps),
            callbacks=[callback],
        )

    def ours(callback: InTurn) -> Trainer:
        callback.begin_memory()
        model = MaxMIGModel.from_classifier(network.build(C), num_annotators=M)
        model.initialize_crowd(crowd)
        return MaxMIGTrainer(
            model=model,
            args=MaxMIGTrainingArguments(
                **settings, **{**OUR_SETTINGS, "init": "keep"}, max_steps=callback.max_steps
            ),
            data_collator=ReadyBatches(batches, "pixel_values", "annotators", "annotations"),
            train_dataset=Places(B * callback.max_steps),
            callbacks=[callback],
        )

    rounds = given.rounds + 1  # the last one is profiled

    def callback(turns: Turns, side: int) -> ProfiledTurn:
        return ProfiledTurn(device, turns, side, network.settling, network.steps, rounds)

    sides = train_by_turns([plain, ours], callback, rounds)
    pairs = zip(*(side.readings[:-1] for side in sides), strict=True)
    row = Row(network.name, compiled, *(side.result(B) for side in sides))
    row.ratio = median(one.wall / other.wall for other, one in pairs)
    row.crowd_ms = crowd_kernels(batches[0], given, device)
    row.crowd_share = row.crowd_ms / row.ours.kernels_ms
    return row


# Reporting


def in_numbers(waits: dict[str, float]) -> str:
    """Write how often the host waits, by cause.

    Example:
        >>> in_numbers({"aten::item": 2.0, "cudaStreamSynchronize": 0.25}), in_numbers({})
        ('item 2, StreamSynchronize 0.25', 'none')
    """
    parts = (f"{k.removeprefix('aten::').removeprefix('cuda')} {v:g}" for k, v in waits.items())
    return ", ".join(parts) or "none"


def table(rows: list[Row]) -> str:
    """Render the table for readers."""
    header = [
        "network", "compiled", "plain images/s", "our images/s", "step of plain", "plain MiB", "our MiB",
        "plain kernels", "our kernels", "of them crowd", "plain waits a step", "our waits a step", "",
    ]  # fmt: skip
    lines = []
    for row in rows:
        start = [row.network, "yes" if row.compiled else "no"]
        plain, ours = row.plain, row.ours
        if plain is None or ours is None:
            lines.append([*start, *[""] * 10, row.error])
            continue
        sides = (plain, ours)
        lines.append(
            [
                *start,
                *(f"{side.images_a_second:,.0f}" for side in sides),
                f"{row.ratio:.3f}",
                *(f"{side.peak_mib:,.0f}" for side in sides),
                *(f"{side.kernels_ms:.2f} ms" for side in sides),
                f"{row.crowd_ms:.2f} ms, {row.crowd_share:.2%}",
                *(in_numbers(side.waits) for side in sides),
                "",
            ]
        )
    return markdown(header, lines)


def check_machine(quick: bool) -> None:
    """Exit with an error unless there is one accelerator."""
    number = torch.accelerator.device_count()
    if not quick and number != 1:
        sys.exit(
            f"benchmark_gpu.py needs one accelerator, got {number}: `--quick` shows on the processor that it runs."
            if number == 0
            else f"benchmark_gpu.py needs one accelerator, got {number}: set CUDA_VISIBLE_DEVICES=0."
        )


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    (given,) = parse(GpuArguments, arguments=arguments)
    check_machine(given.quick)
    sizes = QUICK if given.quick else Sizes()
    if given.quick:
        given.batch, given.annotators, given.classes, given.rounds = 5, 7, 3, 2
    start = time.perf_counter()
    about = machine(torch, transformers, timm, hf_maxmig)
    if torch.cuda.is_available() and not given.quick:
        about["accelerator"] = torch.cuda.get_device_name()
    results: dict[str, Any] = {
        "command": command(__file__, sys.argv[1:] if arguments is None else arguments),
        "machine": about,
        "quick": given.quick,
        "sizes": {
            name: getattr(given, name) for name in ("batch", "annotators", "classes", "rounds")
        },
    }
    file = Path(given.output_dir) / "benchmark_gpu.json"
    rows: list[Row] = []
    first = Profiled(1, device_of(given))  # the main thread must use a profiler first
    first.start()
    first.stop()
    for compiled, network in product((False, True), sizes.networks):
        try:
            if time.perf_counter() - start > 60 * given.minutes:
                raise TimeoutError("there was no time left")
            rows.append(measure(network, compiled, sizes.backend, given))
        except Exception as error:  # earlier measurements are worth keeping
            if given.quick:
                raise
            rows.append(Row(network.name, compiled, error=f"{type(error).__name__}: {error}"[:200]))
        torch.compiler.reset()
        results["minutes"] = round((time.perf_counter() - start) / 60, 2)
        results["rows"] = [asdict(row) for row in rows]
        write_results(file, results)
    print(table(rows))
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"The table is in {file}.")
    return results


if __name__ == "__main__":
    with errors_in_one_line():
        main()
