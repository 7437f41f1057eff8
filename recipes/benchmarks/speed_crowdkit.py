"""Job `crowdkit` of `benchmark_speed.py`: crowd-kit's aggregators beside our start and one epoch.

They do not do the same work: a fit of crowd-kit's is the whole method, while our start is one pass over
the votes, from which training begins, and an epoch is what g adds to one epoch of that training.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from datasets import Dataset
from speed_plain import SMOOTHING, crowd_dataset
from speed_rows import Reading, Row, agree, in_turn, now, row, since
from torch import Tensor

from hf_maxmig import (
    CrowdCollator,
    WeightedAverageAggregator,
    mutual_information_gain,
    vote_share,
)
from hf_maxmig.data.collator import crowd_batches
from hf_maxmig.peers.aggregated import ALGORITHMS

RIGHT = 0.7  # share of votes for the item's class
BATCH = 64  # of the epoch: the default of the training arguments
STARTING = 300.0  # seconds that a process may take to import and to draw the votes
FITS = {
    "majority_vote": "MajorityVote",
    **{name: kind for name, kind in ALGORITHMS.items() if name != "kos"},  # two classes only
}


def drawn(votes: int, M: int, C: int) -> Dataset:
    """Draw a crowd, three votes per item."""
    generator = torch.Generator().manual_seed(votes)
    return crowd_dataset(votes // min(M, 3), M, C, generator, RIGHT)


def pairs_of(dataset: Dataset, M: int, C: int) -> tuple[Tensor, Tensor]:
    """Return (N, K) annotators and annotations."""
    parts = crowd_batches(dataset, CrowdCollator(M, C))
    annotators, annotations = (torch.cat(part) for part in zip(*parts, strict=True))
    return annotators, annotations


# crowd-kit, in a process that can be killed


def serve(connection: Connection, votes: int, M: int, C: int) -> None:
    """Draw the votes, check that both sides count them alike, then fit what is requested."""
    import pandas as pd

    torch.set_num_threads(1)
    annotators, annotations = pairs_of(drawn(votes, M, C), M, C)
    N, K = annotators.shape
    table = pd.DataFrame(
        {
            "task": torch.arange(N).repeat_interleave(K).numpy(),
            "worker": annotators.flatten().numpy(),
            "label": annotations.flatten().numpy(),
        }
    )
    kinds = import_module("crowdkit.aggregation")
    counted = kinds.MajorityVote().fit(table).probas_
    counted = counted.reindex(range(N)).reindex(columns=range(C), fill_value=0).fillna(0)
    agree(vote_share(annotations, C), torch.from_numpy(counted.to_numpy("float32", copy=True)))
    connection.send("ready")
    while True:
        kind = connection.recv()
        if kind is None:
            return
        model = getattr(kinds, kind)()
        start = now()
        model.fit(table)
        connection.send(since(start, now()))


class Fits:
    """Fits crowd-kit's aggregators to some votes, each within a time limit.

    Args:
        votes: how many.
        M: annotators.
        C: classes.
        longest: seconds that a fit may take.
    """

    def __init__(self, votes: int, M: int, C: int, longest: float) -> None:
        self.sizes, self.longest = (votes, M, C), longest
        self.process: BaseProcess | None = None
        self.connection: Connection | None = None

    def fit(self, kind: str) -> Reading | None:
        """Fit one of crowd-kit's classes; return None if it takes too long."""
        connection = self.connection or self.begin()
        connection.send(kind)
        reading = self.received(connection, self.longest)
        if reading is None:
            self.end()
        return reading

    def begin(self) -> Connection:
        """Start a process."""
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, *self.sizes), daemon=True)
        self.process.start()
        theirs.close()  # so that its end is noticed here
        if self.received(self.connection, STARTING) is None:
            raise TimeoutError(f"crowd-kit must be ready in {STARTING:g} s, got nothing.")
        return self.connection

    def received(self, connection: Connection, longest: float) -> Any:
        """Receive a message from the process; return None after a timeout."""
        if not connection.poll(longest):
            return None
        try:
            return connection.recv()
        except EOFError as error:
            raise RuntimeError("crowd-kit's process has failed: its error is above.") from error

    def end(self) -> None:
        """End the process, whatever it is doing."""
        if self.process is not None and self.connection is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
        self.process = self.connection = None


# Ours


def one_epoch(annotators: Tensor, annotations: Tensor, M: int, C: int) -> Callable[[], Any]:
    """Return a call that does what the aggregator adds to an epoch: g, gain, gradient, Adam's step."""
    aggregator = WeightedAverageAggregator(M, C)
    optimizer = torch.optim.AdamW(aggregator.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    log_p = torch.zeros(C).log_softmax(-1)
    generator = torch.Generator().manual_seed(0)
    log_h = torch.randn((len(annotators), C), generator=generator).log_softmax(-1)

    def epoch() -> None:
        for rows in torch.randperm(len(annotators), generator=generator).split(BATCH):
            if len(rows) < 2:
                continue
            log_g = aggregator(log_p, annotators[rows], annotations[rows])
            (-mutual_information_gain(log_h[rows], log_g, log_p)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def measure_crowdkit(
    sizes: Sequence[int], M: int, C: int, longest: float, rounds: int
) -> list[Row]:
    """Job 6: skip a fit that, judging by its time for fewer votes, would take too long.

    Args:
        sizes: numbers of votes, the smallest first.
        M: annotators.
        C: classes.
        longest: seconds that a fit may take.
        rounds: how often ours are measured.
    """
    rows = []
    before: dict[str, float] = {}  # seconds per vote
    for votes in sizes:
        dataset, aggregator = drawn(votes, M, C), WeightedAverageAggregator(M, C)
        collator = CrowdCollator(M, C)

        def start(
            dataset: Dataset = dataset,
            aggregator: WeightedAverageAggregator = aggregator,
            collator: CrowdCollator = collator,
        ) -> None:
            aggregator.initialize(crowd_batches(dataset, collator), SMOOTHING)

        start()
        (starts,) = in_turn([start], rounds)
        fits = Fits(votes, M, C, longest)
        try:
            for name, kind in FITS.items():
                fit = None
                if before.get(name, 0.0) * votes <= longest:
                    fit = fits.fit(kind)
                before[name] = float("inf") if fit is None else fit.wall / votes
                line = row(f"our start, crowd-kit's {name}, {votes:,} votes", [], starts)
                line.plain = fit and fit.wall  # without a ratio, as it does other work
                rows.append(line)
        finally:
            fits.end()
        epoch = one_epoch(*pairs_of(dataset, M, C), M, C)
        epoch()
        rows.append(row(f"epoch of our aggregator, {votes:,} votes", [], *in_turn([epoch], 1)))
    return rows
