"""Speed: Max-MIG beside a plain version written from the paper, side by side in one run.

Six jobs, each measured by turns, so that other work on the machine affects both sides alike:

1. `gain`, forward and backward, against the N x N ratios K of equation 1, computed at once, with
   masks for i = j and i != j; for KL also against the leanest pairwise version we know (no logs of
   K where Table 1 has none);
2. `aggregator`, forward and backward, against one linear layer per annotator on one-hot rows;
3. `initialisation` of 50,000 items x 747 annotators from the columns of a data set, against a
   loop over annotators with one-hot matrices in memory; and, for 10,000 x 59, against a loop over
   annotators, items and classes;
4. `trainer`: a step of `MaxMIGTrainer`, from one step's end to the next (data, forward, backward,
   optimizer), against one of `transformers.Trainer` with cross-entropy on gold labels: same network,
   items, optimizer and settings, three labels per item, a row for each number of `--threads`.
   `Trainer` reads its batches from `datasets`, ours reads Arrow's tables. In the rows "same batches"
   `Trainer` reads those too, which shows the method alone. Work before the first step and after the
   last is not counted: search, start, names of the classes, guards. Each side is trained five times,
   in a process that gives no memory back, see `machine.KEEPS`;
5. `large`: the gain of large batches and of many classes, time and memory beyond what the process
   held before, beside the leanest N x N ratios, if those fit into 4 GiB;
6. `crowdkit`: crowd-kit's aggregators, fitted to their end, beside our start, one pass over the same
   votes, and the work that g adds to one epoch of training; blank where a fit takes over a minute. The
   two sides do different work: crowd-kit's comes before a training on aggregated labels.

Nothing is timed before both sides of jobs 1-3 and 5 agree, in value and in the gradient of
everything that is trained; in 4, classifiers and losses do; in 6, the counted votes.

    python recipes/benchmarks/benchmark_speed.py --output_dir out/benchmark_speed

takes about 18 minutes on two otherwise idle cores, prints a table and writes it to
`benchmark_speed.json`. Expect, times faster than plain: KL gain of 1,024 items 50 (20 against the
leanest pairs), of 4,096 items 800 (200), Pearson 30 to 45, Jensen-Shannon 2.5 (it needs every pair);
aggregator of 59, 747 and 2,571 annotators 7, 90 and 350; initialisation 200, in 0.02 s; large batches
1,300 and 5 MiB instead of 2 GiB for 16,384 items, 3 to 7 with a thousand classes or more. A step of
ResNet-18 or of a small ViT takes as long as one of cross-entropy, give or take a hundredth: Max-MIG
adds 2 ms to 650. It adds 12 ms with 100,000 annotators, whose ten million parameters need a gradient and
a step of Adam each time, and up to 26 with two threads. The head on features, at 6 ms per step, takes
nine tenths of the plain time, 1.6 times as long with the same batches, and three times with 100,000
annotators. crowd-kit's Dawid-Skene takes 2 s for 100,000 votes and 12 s for a million, our start
0.01 s and 0.07 s, an epoch 0.3 s and 4 s.
`--jobs gain large` runs some, `--threads 1 2` takes the trainers' steps with one thread and with
two, `--quick` shows in a minute that it runs.
"""

import sys
import time
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import above  # noqa: F401  the recipes can be imported
import timm
import torch
import transformers
from datasets import Dataset
from machine import machine
from results_file import command, write_results
from speed_crowdkit import measure_crowdkit
from speed_large import measure_large
from speed_plain import (
    SMOOTHING,
    PlainAggregator,
    crowd_dataset,
    dense_labels,
    draw_crowd,
    gain_inputs,
    lean_pairwise_gain,
    one_hot_rows,
    plain_gain,
    plain_initial_weight,
    triple_loop_initial_weight,
)
from speed_rows import Row, agree, by_turns, table
from speed_trainer import Network, measure_trainer
from torch import Tensor, nn

import hf_maxmig
from hf_maxmig import CrowdCollator, WeightedAverageAggregator, mutual_information_gain
from hf_maxmig.command.flags import errors_in_one_line, parse
from hf_maxmig.data.collator import crowd_batches

JOBS = ("gain", "aggregator", "initialisation", "trainer", "large", "crowdkit")


@dataclass
class SpeedArguments:
    """What to measure and how, and where to write."""

    output_dir: str = field(
        default="out/benchmark_speed", metadata={"help": "Folder of `benchmark_speed.json`."}
    )
    jobs: list[str] = field(
        default_factory=lambda: [*JOBS], metadata={"help": f"Some of {', '.join(JOBS)}."}
    )
    threads: list[int] = field(
        default_factory=lambda: [1],
        metadata={"help": "Threads of torch; of several, all jobs but `trainer` take the first."},
    )
    rounds: int = field(
        default=30, metadata={"help": "Times that both sides of a job are measured, at the most."}
    )
    quick: bool = field(
        default=False,
        metadata={"help": "Tiny sizes, two rounds: shows that it runs, not how fast it is."},
    )

    def __post_init__(self) -> None:
        for job in self.jobs:
            if job not in JOBS:
                raise ValueError(f"`jobs` must be some of {', '.join(JOBS)}, got {job!r}.")


@dataclass(frozen=True)
class Sizes:
    """The size of each job; the defaults are those of the results.

    Args:
        gain: pairs (divergence, N).
        gain_classes: C of the gain and of the trainers.
        aggregator: triples (B, M, C).
        initialisation: N, M, C; three labels per item.
        triple_loop: N, M, C of the slowest plain version; three labels per item.
        networks: what trainers train.
        trainer_annotators: several M; three labels per item.
        large: triples (divergence, N, C).
        pairwise_mib: memory that N x N ratios may take.
        votes: numbers of votes for crowd-kit, the smallest first; three labels per item.
        voters: M and C of those.
        longest_fit: seconds that a fit of crowd-kit may take.
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
    networks: tuple[Network, ...] = (
        Network("resnet18", size=64, batch=64, settling=2, steps=1),
        Network("vit_tiny", size=224, batch=16, settling=2, steps=1),
        Network("head", size=512, batch=256, settling=20, steps=20),
    )
    trainer_annotators: tuple[int, ...] = (59, 747, 100_000)
    large: tuple[tuple[str, int, int], ...] = (
        ("kl", 4096, 10),
        ("kl", 16_384, 10),
        ("kl", 65_536, 10),
        ("kl", 1024, 1000),
        ("kl", 1024, 10_000),
        ("pearson", 4096, 1000),
        ("jensen_shannon", 8192, 10),
    )
    pairwise_mib: float = 4096.0
    votes: tuple[int, ...] = (100_000, 1_000_000)
    voters: tuple[int, int] = (1000, 10)
    longest_fit: float = 60.0


QUICK = Sizes(
    gain=(("kl", 5), ("pearson", 7), ("jensen_shannon", 6)),
    gain_classes=3,
    aggregator=((5, 4, 3), (4, 3, 6)),
    initialisation=(11, 7, 3),
    triple_loop=(7, 4, 3),
    networks=(
        Network("test_resnet", size=32, batch=4, settling=1, steps=1),
        Network("vit_tiny", size=32, batch=3, settling=1, steps=1),
        Network("head", size=6, batch=5, settling=1, steps=2),
    ),
    trainer_annotators=(5, 7),
    large=(("kl", 7, 3), ("pearson", 6, 5), ("jensen_shannon", 5, 3)),
    votes=(60, 90),
    voters=(7, 3),
)

CAPTION = (
    "Times are medians by the clock, ratios medians over pairs of turns; targets go by processor "
    "time. Plain is written from the paper, lean pairs are the leanest N x N form we know; memory is "
    "what was taken beyond what the process held. A trainer's step is compared with one of "
    "cross-entropy in `transformers.Trainer`, whose batches `datasets` makes item by item, while "
    "ours are read from Arrow's tables; with the same batches, it reads those too. Beside our start "
    "is the whole fit of a method of crowd-kit; blank is what would take over a minute or 4 GiB."
)

# Targets of the library, by the job's name; other jobs have none.
AT_LEAST = {"kl gain, N=1024": 30.0, "aggregator, M=747": 50.0}  # plain / ours
AT_MOST = {  # ours / plain
    f"trainer step, {network}, M={M:,}{how}": most
    for network in ("resnet18", "vit_tiny")
    for M, most in ((59, 1.02), (747, 1.02), (100_000, 1.05))
    for how in ("", ", same batches")
}
AT_MOST_SECONDS = {"initialisation, 50,000 x 747": 1.0}


def judge(line: Row) -> None:
    """Record the target of a job, and whether it was reached."""
    if line.job in AT_LEAST and line.cpu_ratio is not None:
        line.target = f"at least {AT_LEAST[line.job]:g} x faster"
        line.met = line.cpu_ratio >= AT_LEAST[line.job]
    if line.job in AT_MOST and line.cpu_ratio is not None:
        line.target = f"at most {AT_MOST[line.job]:g} of plain"
        line.met = line.cpu_ratio <= AT_MOST[line.job]
    if line.job in AT_MOST_SECONDS:
        line.target = f"at most {AT_MOST_SECONDS[line.job]:g} s"
        line.met = line.ours <= AT_MOST_SECONDS[line.job]


def measure_gain(sizes: Sizes, rounds: int) -> list[Row]:
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
        rows.append(by_turns(f"{divergence} gain, N={N}", plain, ours, rounds))
        if divergence == "kl":
            agree(ours(), lean())
            rows.append(by_turns(f"kl gain, N={N}, lean pairs", lean, ours, rounds))
    return rows


def measure_aggregator(sizes: Sizes, rounds: int) -> list[Row]:
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
        one_hots = one_hot_rows(annotators, annotations, M, C)  # prepared beforehand, and not timed
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
        rows.append(by_turns(f"aggregator, M={M}", plain, ours, rounds))
    return rows


def measure_initialisation(sizes: Sizes, rounds: int) -> list[Row]:
    """Job 3; ours starts from the data set's columns, the plain ones from a dense matrix in memory."""
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
        rows.append(by_turns(f"{name}, {N:,} x {M}", other, ours, rounds))
    return rows


def measure(job: str, sizes: Sizes, rounds: int, given: SpeedArguments) -> list[Row]:
    """Run a job."""
    torch.set_num_threads(given.threads[0])
    if job == "trainer":
        return measure_trainer(
            sizes.networks,
            sizes.trainer_annotators,
            sizes.gain_classes,
            rounds,
            given.output_dir,
            given.threads,
        )
    if job == "large":
        return measure_large(sizes.large, sizes.pairwise_mib, rounds)
    if job == "crowdkit":
        if not find_spec("crowdkit"):
            print("crowd-kit is not installed, nothing is compared with it: `hf_maxmig[peers]`.")
            return []
        return measure_crowdkit(sizes.votes, *sizes.voters, sizes.longest_fit, rounds)
    one_of_ours = {
        "gain": measure_gain,
        "aggregator": measure_aggregator,
        "initialisation": measure_initialisation,
    }
    return one_of_ours[job](sizes, rounds)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    (given,) = parse(SpeedArguments, arguments=arguments)
    sizes, rounds = (QUICK, 2) if given.quick else (Sizes(), given.rounds)
    start = time.perf_counter()
    rows = [
        line for job in JOBS if job in given.jobs for line in measure(job, sizes, rounds, given)
    ]
    if not given.quick:
        for line in rows:
            judge(line)
    about = machine(torch, transformers, timm, hf_maxmig, threads=given.threads)
    results = {
        "command": command(__file__, sys.argv[1:] if arguments is None else arguments),
        "machine": about,
        "quick": given.quick,
        "rounds": rounds,
        "minutes": round((time.perf_counter() - start) / 60, 2),
        "rows": [asdict(line) for line in rows],
    }
    file = Path(given.output_dir) / "benchmark_speed.json"
    write_results(file, results)
    print(table(rows))
    print()
    print(CAPTION)
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"The table is in {file}.")
    return results


if __name__ == "__main__":
    with errors_in_one_line():
        main()
