"""Speed: Max-MIG beside a plain version written from the paper, in one run and on one thread.

Four jobs, each measured by turns, so that whatever else the machine does meets both sides:

1. the gain, forward and backward, against the N x N ratios K of equation 1, computed at once, with
   masks for i = j and i != j; for KL also against the leanest pairwise version we know (no logs of
   K where Table 1 has none);
2. the aggregator, forward and backward, against one linear layer an annotator on one-hot rows;
3. the initialisation of 50,000 items x 747 annotators from the columns of a data set, against a
   loop over annotators with one-hot matrices in memory; and, for 10,000 x 59, against a loop over
   annotators, items and classes;
4. a step of `MaxMIGTrainer`, from one step's end to the next (data, forward, backward, optimizer),
   against one of `transformers.Trainer` with cross-entropy on gold labels: same network, items,
   optimizer and settings.

Nothing is timed before both sides of jobs 1-3 agree: in value, and in the gradient of everything
that is trained.

    python recipes/benchmark_speed.py --output_dir out/benchmark_speed

takes 3 to 5 minutes on two cores, prints a table and writes it to `benchmark_speed.json`. Expect,
times faster than plain: KL gain of 1,024 items 50 (16 against the leanest pairs), of 4,096 items
800 (240), Pearson 50, Jensen-Shannon 2.5 (it needs every pair); aggregator of 59, 747 and 2,571
annotators 6, 90 and 340; initialisation 200, in 0.02 s. A trainer step takes as long as one of
cross-entropy, give or take 4 %, which is noise: what Max-MIG adds is 5 ms to 650. `--quick` shows
in seconds that it runs.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import timm
import torch
import transformers
from datasets import Array3D, ClassLabel, Dataset, Features, concatenate_datasets
from machine import machine
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot
from transformers import (
    HfArgumentParser,
    PrinterCallback,
    TimmWrapperConfig,
    TimmWrapperForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import hf_maxmig
from hf_maxmig import (
    CrowdCollator,
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
    WeightedAverageAggregator,
    crowd_features,
    mutual_information_gain,
)
from hf_maxmig.data.collator import crowd_batches

READING = 0.05  # seconds that one reading of the clock should span, in as many calls as that takes
LONGEST = 10.0  # seconds after which a slow job has had rounds enough, if there were three
SMOOTHING = 0.01


@dataclass
class SpeedArguments:
    """How to measure, and where to write."""

    output_dir: str = field(
        default="out/benchmark_speed", metadata={"help": "Folder of `benchmark_speed.json`."}
    )
    threads: int = field(default=1, metadata={"help": "Threads of torch."})
    rounds: int = field(
        default=9, metadata={"help": "Times that both sides of a job are measured."}
    )
    quick: bool = field(
        default=False,
        metadata={"help": "Tiny sizes, two rounds: shows that it runs, not how fast it is."},
    )


@dataclass(frozen=True)
class Sizes:
    """How large each job is; the defaults are those of the results.

    Args:
        gain: pairs (divergence, N).
        gain_classes: C of the gain.
        aggregator: triples (B, M, C).
        initialisation: N, M, C; three labels an item.
        triple_loop: N, M, C of the slowest plain version; three labels an item.
        network: a model of timm.
        pixels: height and width of the pictures.
        trainer_batch: B of a trainer's step.
        trainer_annotators: several M; three labels an item.
        steps: steps of one run of a trainer.
        settling: steps of a run that are not counted.
    """

    gain: tuple[tuple[str, int], ...] = (
        ("kl", 256),
        ("kl", 1024),
        ("kl", 4096),
        ("pearson", 1024),
        ("jensen_shannon", 1024),
    )
    gain_classes: int = 10
    aggregator: tuple[tuple[int, int, int], ...] = ((64, 59, 8), (64, 747, 10), (64, 2571, 10))
    initialisation: tuple[int, int, int] = (50_000, 747, 10)
    triple_loop: tuple[int, int, int] = (10_000, 59, 8)
    network: str = "resnet18"
    pixels: int = 64
    trainer_batch: int = 64
    trainer_annotators: tuple[int, ...] = (59, 747)
    steps: int = 6
    settling: int = 2


QUICK = Sizes(
    gain=(("kl", 5), ("pearson", 7), ("jensen_shannon", 6)),
    gain_classes=3,
    aggregator=((5, 4, 3), (4, 3, 6)),
    initialisation=(11, 7, 3),
    triple_loop=(7, 4, 3),
    network="test_resnet",
    pixels=32,
    trainer_batch=4,
    trainer_annotators=(5,),
    steps=4,
    settling=1,
)

# What the library is to reach, by the job's name; a job that is not here has no target.
AT_LEAST = {"kl gain, N=1024": 30.0, "aggregator, M=747": 50.0}  # plain / ours
AT_MOST = {"trainer step, M=59": 1.05, "trainer step, M=747": 1.05}  # ours / plain
AT_MOST_SECONDS = {"initialisation, 50,000 x 747": 1.0}


@dataclass
class Row:
    """One line of the table.

    Args:
        job: what was measured.
        plain: seconds by the clock of the plain version, the median.
        ours: seconds by the clock of the library, the median.
        ratio: plain / ours, or ours / plain for a trainer step: median over rounds of the ratio
            within a round.
        ratio_of_medians: the same of the two medians.
        cpu_ratio: as `ratio`, of processor time: what other work on the machine disturbs least.
            Targets go by it.
        ratio_is: which of the two ratios it is.
        target: what was wanted, in words.
        met: whether it was reached; None if there is no target or the sizes are not the ones it is
            for.
    """

    job: str
    plain: float
    ours: float
    ratio: float
    ratio_of_medians: float
    cpu_ratio: float
    ratio_is: str
    target: str = ""
    met: bool | None = None


# The plain versions


def plain_gain(log_h: Tensor, log_g: Tensor, log_p: Tensor, divergence: str = "kl") -> Tensor:
    """Equation 1 as it is printed: df of all N x N ratios, f* of that, and a mask for each mean."""
    N = len(log_h)
    K = torch.einsum("ic,jc->ij", log_h.exp() / log_p.exp(), log_g.exp())
    same = torch.eye(N, dtype=K.dtype)
    if divergence == "kl":
        reward = 1 + K.log()
        penalty = (reward - 1).exp()
    elif divergence == "pearson":
        reward = 2 * (K - 1)
        penalty = reward + reward**2 / 4
    else:
        reward = (2 * K / (1 + K)).log()
        penalty = -(2 - reward.exp()).log()
    return (reward * same).sum() / N - (penalty * (1 - same)).sum() / (N * (N - 1))


def lean_pairwise_gain(log_h: Tensor, log_g: Tensor, log_p: Tensor) -> Tensor:
    """KL with Table 1's last column and logs on the diagonal only: as lean as N x N ratios get."""
    N = len(log_h)
    K = torch.einsum("ic,jc->ij", log_h.exp() / log_p.exp(), log_g.exp())
    agree = K.diagonal()
    return (1 + agree.log()).mean() - (K.sum() - agree.sum()) / (N * (N - 1))


class PlainAggregator(nn.Module):
    """The aggregator as M linear layers, each on its annotator's one-hot row."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weights = nn.ParameterList(matrix.clone() for matrix in weight)

    def forward(self, log_p: Tensor, one_hots: Tensor) -> Tensor:
        """Aggregate (B, M, C) rows, zero where a label is missing, to (B, C) log g."""
        score = log_p
        for m, weight in enumerate(self.weights):
            score = score + linear(one_hots[:, m], weight)
        return score.log_softmax(dim=-1)


def plain_initial_weight(dense: Tensor, num_classes: int, smoothing: float) -> Tensor:
    """Equation 2, annotator by annotator, of (M, N) labels with -1 for none; items at once."""
    classes = torch.arange(num_classes, dtype=dense.dtype)
    votes = torch.stack([(dense == c).sum(dim=0) for c in classes], dim=1).float()
    share = votes / votes.sum(dim=1, keepdim=True).clamp(min=1)
    weight = torch.zeros(len(dense), num_classes, num_classes)
    for m, said in enumerate(dense):
        counts = share.T @ (said[:, None] == classes).float() + smoothing
        if (said >= 0).any():
            weight[m] = (counts / counts.sum(dim=1, keepdim=True)).log()
    return weight


def triple_loop_initial_weight(
    dense: list[list[int]], num_classes: int, smoothing: float
) -> list[list[list[float]]]:
    """Equation 2 by a loop over annotators, items and classes, of M lists of N labels."""
    num_items = len(dense[0])
    share = []
    for i in range(num_items):
        said = [labels[i] for labels in dense if labels[i] >= 0]
        share.append([said.count(c) / max(1, len(said)) for c in range(num_classes)])
    weight = []
    for labels in dense:
        counts = [[smoothing] * num_classes for _ in range(num_classes)]
        seen = False
        for i in range(num_items):
            if labels[i] >= 0:
                seen = True
                for c in range(num_classes):
                    counts[c][labels[i]] += share[i][c]
        weight.append([[math.log(n / sum(row)) if seen else 0.0 for n in row] for row in counts])
    return weight


# What they are measured on


def gain_inputs(
    N: int, C: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Draw log h, log g and log p, as leaves that want a gradient."""
    return [
        torch.randn(shape, generator=generator, dtype=dtype).log_softmax(-1).requires_grad_()
        for shape in ((N, C), (N, C), (C,))
    ]


def draw_crowd(
    N: int, M: int, C: int, counts: Sequence[int], generator: torch.Generator
) -> tuple[list[list[int]], list[list[int]]]:
    """Draw ragged labels; an item has one of `counts` different annotators, all equally likely."""
    which = torch.randint(len(counts), (N,), generator=generator).tolist()
    most = min(M, max(counts))
    # Steps of one length around the circle of annotators: different ones, without a permutation an
    # item.
    first = torch.randint(M, (N, 1), generator=generator)
    who = ((first + (M // most) * torch.arange(most)) % M).tolist()
    what = torch.randint(C, (N, most), generator=generator).tolist()
    return (
        [row[: counts[n]] for row, n in zip(who, which, strict=True)],
        [row[: counts[n]] for row, n in zip(what, which, strict=True)],
    )


def crowd_dataset(N: int, M: int, C: int, generator: torch.Generator) -> Dataset:
    """Make a data set of the two crowd columns, three labels an item."""
    annotators, annotations = draw_crowd(N, M, C, [min(M, 3)], generator)
    return Dataset.from_dict(
        {"annotators": annotators, "annotations": annotations},
        features=crowd_features([f"annotator {m}" for m in range(M)], [str(c) for c in range(C)]),
    )


def dense_labels(annotators: Tensor, annotations: Tensor, num_annotators: int) -> Tensor:
    """Spread (N, K) pairs, padded with -1, over an (M, N) int8 matrix with -1 for none."""
    dense = torch.full((num_annotators, len(annotators)), -1, dtype=torch.int8)
    item, slot = (annotators >= 0).nonzero(as_tuple=True)
    dense[annotators[item, slot], item] = annotations[item, slot].to(torch.int8)
    return dense


def one_hot_rows(
    annotators: Tensor, annotations: Tensor, num_annotators: int, num_classes: int
) -> Tensor:
    """Make (B, M, C) rows of padded (B, K) pairs: zero where an annotator gave no label."""
    labels = dense_labels(annotators, annotations, num_annotators).T.long()
    return one_hot(labels + 1, num_classes + 1)[..., 1:].float()


def picture_dataset(N: int, C: int, pixels: int, generator: torch.Generator) -> Dataset:
    """Make noise for pictures, with gold labels: a step costs the same whatever is on them."""
    shape = (3, pixels, pixels)
    features = Features(
        pixel_values=Array3D(shape, "float32"), labels=ClassLabel(names=[str(c) for c in range(C)])
    )
    pictures = torch.randn((N, *shape), generator=generator).numpy()
    labels = torch.randint(C, (N,), generator=generator).tolist()
    return Dataset.from_dict({"pixel_values": pictures, "labels": labels}, features=features)


# Measuring


def agree(ours: Tensor | Sequence[Tensor], plain: Tensor | Sequence[Tensor]) -> None:
    """Raise an AssertionError unless both are the same, up to rounding of the largest entry."""
    if isinstance(ours, Tensor) and isinstance(plain, Tensor):
        tolerance = 1e-4 if ours.dtype == torch.float32 else 1e-10
        scale = float(plain.detach().abs().max())
        torch.testing.assert_close(ours, plain, rtol=tolerance, atol=tolerance * scale)
        return
    for one, other in zip(ours, plain, strict=True):
        agree(one, other)


@dataclass(frozen=True)
class Reading:
    """How long something took: seconds by the clock, and seconds of the processor."""

    wall: float
    cpu: float


def read(call: Callable[[], Any], calls: int = 1) -> Reading:
    """Time some calls, after a few uncounted ones: the caches are full of the other side's data."""
    for _ in range(calls // 4):
        call()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call()
    return Reading((time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls)


def by_turns(
    job: str, plain: Callable[[], Any], ours: Callable[[], Any], rounds: int, quick: bool
) -> Row:
    """Measure two calls by turns, each of them first every other time; both have run before."""
    sides = (plain, ours)
    once = [read(call).wall for call in sides]
    once = [
        read(call, min(20, max(1, round(READING / wall)))).wall
        for call, wall in zip(sides, once, strict=True)
    ]
    calls = [max(1, round(READING / wall)) for wall in once]
    rounds = max(min(rounds, 3), min(rounds, round(LONGEST / sum(once))))
    readings: tuple[list[Reading], list[Reading]] = ([], [])
    for turn in range(rounds):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            readings[side].append(read(sides[side], calls[side]))
    return row(job, *readings, "plain / ours", quick)


def row(
    job: str, plain: Sequence[Reading], ours: Sequence[Reading], ratio_is: str, quick: bool
) -> Row:
    """Make a line of the table of readings taken in pairs."""
    above, below = (plain, ours) if ratio_is == "plain / ours" else (ours, plain)
    pairs = list(zip(above, below, strict=True))
    line = Row(
        job=job,
        plain=statistics.median(reading.wall for reading in plain),
        ours=statistics.median(reading.wall for reading in ours),
        ratio=statistics.median(a.wall / b.wall for a, b in pairs),
        ratio_of_medians=statistics.median(a.wall for a in above)
        / statistics.median(b.wall for b in below),
        cpu_ratio=statistics.median(a.cpu / b.cpu for a, b in pairs),
        ratio_is=ratio_is,
    )
    if quick:
        return line
    if job in AT_LEAST:
        line.target = f"at least {AT_LEAST[job]:g} x faster"
        line.met = line.cpu_ratio >= AT_LEAST[job]
    if job in AT_MOST:
        line.target = f"at most {AT_MOST[job]:g} of plain"
        line.met = line.cpu_ratio <= AT_MOST[job]
    if job in AT_MOST_SECONDS:
        line.target = f"at most {AT_MOST_SECONDS[job]:g} s"
        line.met = line.ours <= AT_MOST_SECONDS[job]
    return line


def measure_gain(sizes: Sizes, rounds: int, quick: bool) -> list[Row]:
    """Job 1."""
    rows = []
    for divergence, N in sizes.gain:
        leaves = gain_inputs(N, sizes.gain_classes, torch.Generator().manual_seed(N))

        def ours(divergence: str = divergence, leaves: list[Tensor] = leaves) -> tuple:
            gain = mutual_information_gain(*leaves, divergence)
            return gain, *torch.autograd.grad(gain, leaves)

        def plain(divergence: str = divergence, leaves: list[Tensor] = leaves) -> tuple:
            gain = plain_gain(*leaves, divergence)
            return gain, *torch.autograd.grad(gain, leaves)

        def lean(leaves: list[Tensor] = leaves) -> tuple:
            gain = lean_pairwise_gain(*leaves)
            return gain, *torch.autograd.grad(gain, leaves)

        agree(ours(), plain())
        rows.append(by_turns(f"{divergence} gain, N={N}", plain, ours, rounds, quick))
        if divergence == "kl":
            agree(ours(), lean())
            rows.append(by_turns(f"kl gain, N={N}, lean pairs", lean, ours, rounds, quick))
    return rows


def measure_aggregator(sizes: Sizes, rounds: int, quick: bool) -> list[Row]:
    """Job 2."""
    rows = []
    for B, M, C in sizes.aggregator:
        generator = torch.Generator().manual_seed(M)
        annotators, annotations = CrowdCollator(M, C).crowd(
            [
                {"annotators": who, "annotations": what}
                for who, what in zip(
                    *draw_crowd(B, M, C, range(1, min(M, 5) + 1), generator), strict=True
                )
            ]
        )
        aggregator = WeightedAverageAggregator(M, C)
        nn.init.normal_(aggregator.table, generator=generator)
        layers = PlainAggregator(aggregator.weight.detach())
        log_p = torch.randn(C, generator=generator).log_softmax(-1)
        one_hots = one_hot_rows(annotators, annotations, M, C)  # ready beforehand, and not timed
        direction = torch.randn((B, C), generator=generator)

        def ours(
            module: nn.Module = aggregator,
            inputs: tuple = (log_p, annotators, annotations),
            direction: Tensor = direction,
        ) -> tuple:
            log_g = module(*inputs)
            return log_g, *torch.autograd.grad((log_g * direction).sum(), list(module.parameters()))

        def plain(
            module: nn.Module = layers,
            inputs: tuple = (log_p, one_hots),
            direction: Tensor = direction,
        ) -> tuple:
            log_g = module(*inputs)
            return log_g, *torch.autograd.grad((log_g * direction).sum(), list(module.parameters()))

        log_g, gradient = ours()
        log_g_of_layers, *gradients = plain()
        agree((log_g, gradient.transpose(1, 2)), (log_g_of_layers, torch.stack(gradients)))
        rows.append(by_turns(f"aggregator, M={M}", plain, ours, rounds, quick))
    return rows


def measure_initialisation(sizes: Sizes, rounds: int, quick: bool) -> list[Row]:
    """Job 3; ours begins at the data set's columns, the plain ones at a dense matrix in memory."""
    rows = []
    for name, (N, M, C) in (
        ("initialisation", sizes.initialisation),
        ("initialisation by triple loop", sizes.triple_loop),
    ):
        dataset = crowd_dataset(N, M, C, torch.Generator().manual_seed(N))
        collator = CrowdCollator(M, C)
        aggregator = WeightedAverageAggregator(M, C)
        pairs = [torch.cat(part) for part in zip(*crowd_batches(dataset, collator), strict=True)]
        dense = dense_labels(*pairs, M)
        as_lists = dense.tolist()

        def ours(
            aggregator: WeightedAverageAggregator = aggregator,
            dataset: Dataset = dataset,
            collator: CrowdCollator = collator,
        ) -> Tensor:
            aggregator.initialize(crowd_batches(dataset, collator), SMOOTHING)
            return aggregator.weight.detach()

        def plain(dense: Tensor = dense, C: int = C) -> Tensor:
            return plain_initial_weight(dense, C, SMOOTHING)

        def triple(as_lists: list[list[int]] = as_lists, C: int = C) -> list:
            return triple_loop_initial_weight(as_lists, C, SMOOTHING)

        agree(ours(), plain())
        if name != "initialisation":
            agree(ours(), torch.tensor(triple()))
        other = plain if name == "initialisation" else triple
        rows.append(by_turns(f"{name}, {N:,} x {M}", other, ours, rounds, quick))
    return rows


class StepClock(TrainerCallback):
    """Notes when each step ends: in between are data, forward, backward and optimizer."""

    def __init__(self) -> None:
        self.ends: list[Reading] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Note the time."""
        self.ends.append(Reading(time.perf_counter(), time.process_time()))

    def median(self, settling: int) -> Reading:
        """Return what a step takes once the first few are over."""
        ends = self.ends[settling - 1 :]
        return Reading(
            statistics.median(b.wall - a.wall for a, b in pairwise(ends)),
            statistics.median(b.cpu - a.cpu for a, b in pairwise(ends)),
        )


def step(trainer_class: type[Trainer], sizes: Sizes, dataset: Dataset, output_dir: str) -> Reading:
    """Train a fresh network for a few steps."""
    settings = {
        "output_dir": output_dir,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
        "per_device_train_batch_size": sizes.trainer_batch,
        "max_steps": sizes.steps,
        "save_strategy": "no",
        "logging_nan_inf_filter": False,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "report_to": "none",
        "use_cpu": True,
    }
    if issubclass(trainer_class, MaxMIGTrainer):
        training = MaxMIGTrainingArguments(**settings, name_classes=False)
    else:
        training = TrainingArguments(**settings)
    config = TimmWrapperConfig(
        architecture=sizes.network, num_labels=dataset.features["labels"].num_classes
    )
    clock = StepClock()
    trainer = trainer_class(
        model=TimmWrapperForImageClassification(config),
        args=training,
        train_dataset=dataset,
        callbacks=[clock],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return clock.median(sizes.settling)


def measure_trainer(sizes: Sizes, rounds: int, quick: bool, output_dir: str) -> list[Row]:
    """Job 4: short runs by turns, on the same pictures; the plain one drops the crowd columns."""
    generator = torch.Generator().manual_seed(0)
    N, C = sizes.trainer_batch * (sizes.steps + 1), sizes.gain_classes
    pictures = picture_dataset(N, C, sizes.pixels, generator)
    datasets = {
        M: concatenate_datasets([pictures, crowd_dataset(N, M, C, generator)], axis=1).with_format(
            "torch"
        )
        for M in sizes.trainer_annotators
    }
    sides = [(Trainer, sizes.trainer_annotators[0])]
    sides += [(MaxMIGTrainer, M) for M in sizes.trainer_annotators]
    readings: dict[tuple, list[Reading]] = {side: [] for side in sides}
    for turn in range(rounds):
        for trainer_class, M in sides if turn % 2 == 0 else sides[::-1]:
            reading = step(trainer_class, sizes, datasets[M], output_dir)
            readings[trainer_class, M].append(reading)
    plain, *ours = readings.items()
    return [
        row(f"trainer step, M={M}", plain[1], theirs, "ours / plain", quick)
        for (_, M), theirs in ours
    ]


# Telling


def in_words(duration: float) -> str:
    """Write seconds so that they can be read.

    Example:
        >>> in_words(0.00034), in_words(0.25), in_words(2.5)
        ('0.34 ms', '250 ms', '2.5 s')
    """
    return f"{duration * 1e3:.3g} ms" if duration < 0.9995 else f"{duration:.3g} s"


def table(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """Render what a person wants to see."""
    cells = [("job", "plain", "ours", "ratio", "of CPU time", "", "target", "")]
    for line in rows:
        faster = line.ratio_is == "plain / ours"
        ratios = [f"{r:.3g}" if faster else f"{r:.3f}" for r in (line.ratio, line.cpu_ratio)]
        kind = "x faster" if faster else "of plain"
        met = {None: "", True: "met", False: "missed"}[line.met]
        times = in_words(line.plain), in_words(line.ours)
        cells.append((line.job, *times, *ratios, kind, line.target, met))
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join(
            text.rjust(width) if 1 <= i <= 4 else text.ljust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    return "\n".join([*lines, ", ".join(f"{name} {value}" for name, value in about.items())])


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    (given,) = HfArgumentParser(SpeedArguments).parse_args_into_dataclasses(arguments)
    torch.set_num_threads(given.threads)
    sizes, rounds = (QUICK, 2) if given.quick else (Sizes(), given.rounds)
    start = time.perf_counter()
    rows = [
        *measure_gain(sizes, rounds, given.quick),
        *measure_aggregator(sizes, rounds, given.quick),
        *measure_initialisation(sizes, rounds, given.quick),
        *measure_trainer(sizes, rounds, given.quick, given.output_dir),
    ]
    about = machine(torch, transformers, timm, hf_maxmig, threads=torch.get_num_threads())
    results = {
        "command": " ".join(
            [
                "python recipes/benchmark_speed.py",
                *(sys.argv[1:] if arguments is None else arguments),
            ]
        ),
        "machine": about,
        "quick": given.quick,
        "rounds": rounds,
        "minutes": round((time.perf_counter() - start) / 60, 2),
        "rows": [asdict(line) for line in rows],
    }
    folder = Path(given.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=2) + "\n"
    (folder / "benchmark_speed.json").write_text(text, encoding="utf-8")
    print(table(rows, about))
    print(f"The table is in {folder / 'benchmark_speed.json'}.")
    return results


if __name__ == "__main__":
    main()
