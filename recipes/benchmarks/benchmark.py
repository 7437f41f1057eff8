r"""Every method of the paper's comparison on the same data, crowds, seeds, trainer and protocol.

    python recipes/benchmarks/benchmark.py --dataset digits --seeds 1
    python recipes/benchmarks/benchmark.py --dataset digits --table --figure digits.png

The first command runs what is missing of methods x cases x expertise x seeds, as many cells at once
as there are cores, and writes one file per cell. Finished cells are not run again, so a stopped run loses
only the cells in progress. The digits take under 20 minutes on two cores. The second command shows the
finished cells as the paper's tables, in Markdown and LaTeX, and as its figure 3.

    python recipes/benchmarks/benchmark.py --dataset labelme --seeds 10 --data_dir DIR
    python recipes/benchmarks/benchmark.py --dataset luna16 --methods max_mig aggnet --seeds 3 --data_dir DIR

Other flags are passed to the data set's recipe, such as the folder of its data or training arguments for
all methods. On the digits, expect the tables of `docs/results.md`. On two cores, one seed of all methods
takes a minute on LabelMe, an hour on CIFAR-10's features (a third of it for crowd-kit's GLAD), and one to
two hours on LUNA16 with `--bf16 True --use_cpu True` if the processor computes in bfloat16 (AVX512-BF16,
AMX); leave out both flags on other processors.

The protocol is the same for every method: the network, the rates, the batches and the epochs of the
data set's recipe; each starts as its authors start it, `max_mig_vote_share` from equation 2. A tenth
of the training items is held out, and the epoch with the highest gain on their votes is the label-free
pick of the methods that have a g. In this pick Max-MIG's W has the strength found on these votes, as after
any training with held-out votes. Each cell records the last epoch, which is the headline, the label-free
pick and the best epoch on the test items side by side: accuracy, negative log-likelihood, Brier score and
calibration error. At the end it also records how well the method knows when an annotator is right.
Gold labels train `true_labels`, the ceiling, and nothing else.
"""

import argparse
import copy
import gc
import importlib
import json
import math
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, get_type_hints
from unittest.mock import patch

import above  # noqa: F401  the recipes can be imported
import accelerate
import datasets
import torch
import transformers
from benchmark_cells import AFTER_WAUM, LEVELS, read_cells
from benchmark_claims import beside_all, summary
from benchmark_figure import figure
from benchmark_tables import further, latex, markdown
from machine import KEEPS, machine, peak_memory, reset_peak_memory
from quiet import hush
from recipe import encoded, keep_back, shown
from results_file import command
from torch import Tensor
from torch.nn.functional import one_hot, pad
from tqdm import tqdm
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import PredictionOutput

from hf_maxmig import CrowdTrainer, HeadClassifier, MaxMIGTrainer, confusion
from hf_maxmig.command.flags import parse
from hf_maxmig.command.runs import Recipe
from hf_maxmig.data.collator import crowd_batches
from hf_maxmig.data.columns import crowd_names, has_votes
from hf_maxmig.data.simulated.beyond import MORE_CASES
from hf_maxmig.data.simulated.simulation import CASES
from hf_maxmig.metrics import accuracies, certainty, chance_of_right, claims_of_right
from hf_maxmig.model.functional import forecast
from hf_maxmig.model.whole_files import staged
from hf_maxmig.peers import PEERS, peer, waum_filter
from hf_maxmig.peers.aggregated import ALGORITHMS
from hf_maxmig.training.strength import best_strength, voted_posteriors, with_strength

OURS: dict[str, dict[str, Any]] = {
    # name: what differs from the recipe's arguments
    "max_mig": {
        "init": "information"
    },  # classifier and W maximise the gain together, as in the paper
    "max_mig_vote_share": {"init": "vote_share", "search_rate": False},
    "max_mig_factored": {"aggregator": "factored"},
    "max_mig_cross_fit": {"init": "cross_fit"},  # the trainer's default start
}
OF_CLASSIFIER = ("accuracy", "nll", "brier", "ece")  # what needs no votes
FOUND = ("aggregator_learning_rate", "prior")  # by the trainer itself
METHODS = (*OURS, *PEERS)
HELD_OUT = 0.1  # of the training items
CELLS_OF_A_WORKER = 100  # on average, until a new process takes its place
LOOKS = 25  # at most, per training: on small data, evaluating costs as much as training


class Source(NamedTuple):
    """The source of a data set.

    Args:
        recipe: its page.
        flags: of the page.
        simulated: whether its crowd is simulated.
        num_classes: C.
    """

    recipe: str
    flags: tuple[str, ...] = ()
    simulated: bool = True
    num_classes: int = 10


DATASETS = {
    "digits": Source("digits"),
    # The epochs that the held-out gain chose: see `defaults.py`.
    "labelme": Source("labelme", ("--num_train_epochs", "10"), simulated=False, num_classes=8),
    # `worlds.write_picture_encoder` writes these weights from a package; `--backbone` says where they are then.
    "labelme_images": Source(
        "labelme",
        ("--num_train_epochs", "10", "--backbone", "timm/tf_efficientnet_lite0.in1k"),
        simulated=False,
        num_classes=8,
    ),
    "cifar10": Source("cifar10"),
    "cifar10_features": Source("cifar10", ("--content", "features")),
    "cifar10n": Source("cifar10", ("--crowd", "human"), simulated=False),
    "cifar10n_features": Source(
        "cifar10", ("--crowd", "human", "--content", "features"), simulated=False
    ),
    "dogs_vs_cats": Source("dogs_vs_cats", num_classes=2),
    "luna16": Source("luna16", num_classes=2),
    "music": Source("music", simulated=False),
    "sentiment": Source("sentiment", simulated=False, num_classes=2),
    "sentiment_fine_tuned": Source(
        "sentiment",
        (
            "--fine_tune",
            "True",
            "--num_train_epochs",
            "2",
            "--learning_rate",
            "5e-5",
            "--per_device_train_batch_size",
            "32",
        ),
        simulated=False,
        num_classes=2,
    ),
}


@dataclass(frozen=True)
class Cell:
    """One training.

    Args:
        dataset: a row of `DATASETS`.
        method: a row of `OURS` or of `PEERS`.
        case: of a simulated crowd, else None; None too where the crowd plays no part.
        expertise: likewise.
        seed: of crowd, network and batches.
        waum: share of the training items that `waum_filter` leaves out before the method; None for no filter.
    """

    looks: ClassVar[int] = LOOKS

    dataset: str
    method: str
    case: str | None
    expertise: str | None
    seed: int
    waum: float | None = field(default=None, kw_only=True)

    @property
    def row(self) -> str:
        """The name of its row in a table."""
        return self.method if self.waum is None else f"{self.method}{AFTER_WAUM}"

    @property
    def name(self) -> str:
        """The name of its file."""
        parts = [self.row, self.case, self.expertise, f"seed{self.seed}"]
        return "-".join(part for part in parts if part is not None)

    def file(self, folder: Path) -> Path:
        """The path of its result."""
        return folder / self.dataset / f"{self.name}.json"

    def command(self, flags: list[str], held_out: float) -> str:
        """Return the command that repeats this cell (and those of smaller seeds)."""
        words = ["--dataset", self.dataset, "--methods", self.method]
        if self.case is not None and self.expertise is not None:
            words += ["--cases", self.case, "--expertise", self.expertise]
        words += ["--seeds", str(self.seed + 1)]
        if held_out != HELD_OUT:
            words += ["--held_out", str(held_out)]
        if self.waum is not None:
            words += ["--waum", str(self.waum)]
        return command(__file__, [*words, *shown(flags)])

    def recipe(self, flags: list[str], held_out: float) -> Recipe:
        """Make everything but the method."""
        return build(self, flags, held_out)


def cells(
    dataset: str,
    methods: list[str],
    cases: list[str],
    expertise: list[str],
    seeds: int,
    waum: float | None = None,
) -> Iterator[Cell]:
    """List the cells seed by seed, so that a stopped run is a whole table with fewer seeds."""
    source = DATASETS[dataset]
    for seed in range(seeds):
        crowds: list[tuple[str | None, str | None]] = [(None, None)]
        if source.simulated:
            crowds = [(case, level) for level, case in product(expertise, cases)]
        for (case, level), method in product(crowds, methods):
            if method == "kos" and source.num_classes != 2:
                continue
            if method != "true_labels":
                yield Cell(dataset, method, case, level, seed, waum=waum)
        if "true_labels" in methods and waum is None:  # no vote can mislead it
            yield Cell(dataset, "true_labels", None, None, seed)


# One cell


class Looks(TrainerCallback):
    """Measures after epochs without changing the training; `seconds` excludes this time.

    Args:
        recipe: what is measured on.
        most: how often at the most.
    """

    def __init__(self, recipe: Recipe, most: int = LOOKS) -> None:
        self.recipe, self.most = recipe, most
        self.voted = has_votes(recipe.test, items=1)
        self.trainer: CrowdTrainer | None = None
        self.rows: list[dict[str, float]] = []
        self.strengthened: list[dict[str, float]] = []  # what the strength of W changes in a row
        self.seconds = 0.0

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure in the last epoch, and at regular intervals before it."""
        epoch = round(state.epoch or 0)
        if not looks_at(epoch, round(args.num_train_epochs), self.most):
            return
        started = time.perf_counter()
        with torch.random.fork_rng():
            row, strengthened = self.look()
        self.rows.append({"epoch": epoch, **row})
        self.strengthened.append(strengthened)
        self.seconds += time.perf_counter() - started

    @torch.no_grad()
    def look(self) -> tuple[dict[str, float], dict[str, float]]:
        """Measure the classifier on the test items; g and forecast there, or where votes are.

        Returns:
            The row, and its changes if the training ended here with held-out votes, which then
            set the strength of g's.
        """
        assert self.trainer is not None
        trainer, recipe = self.trainer, self.recipe
        order = trainer.class_order()  # the names that the classes get at the end
        output = trainer.predict(recipe.test)
        row = measured(trainer, output, order)
        if not self.voted:
            output = trainer.predict(recipe.train)
            row |= with_votes(measured(trainer, output, order))
        if recipe.held_out is None or "aggregator_accuracy" not in row:
            return row, {}
        model = trainer.crowd_model
        log_h, log_g = voted_posteriors(trainer.posteriors_of(recipe.held_out))
        if len(log_h) < 2:
            return row, {}
        row["gain"] = float(model.gain(log_h, log_g))
        if not model.loss_is_minus_gain:
            return row, {}
        strength = best_strength(log_h, log_g, model.log_prior(), model.config.divergence)
        found = measured(trainer, output, order, strength)
        return row, {"strength": strength} | with_votes(found)

    def look_at_end(self) -> None:
        """Measure the last row again if the classifier learned from cross-fitting: at the end it may have been tempered."""
        assert self.trainer is not None
        start = getattr(self.trainer, "start", None)
        if start is not None and start.items is not None:
            row, self.strengthened[-1] = self.look()
            self.rows[-1] |= row

    def label_free(self) -> dict[str, float] | None:
        """Return what a training with held-out votes would have ended with."""
        if "gain" not in self.rows[-1]:
            return None
        place = max(range(len(self.rows)), key=lambda k: self.rows[k]["gain"])
        return self.rows[place] | self.strengthened[place]


def looks_at(epoch: int, epochs: int, most: int = LOOKS) -> bool:
    """Return whether to evaluate after an epoch: at regular intervals, and always after the last."""
    return (epochs - epoch) % math.ceil(epochs / most) == 0


def measured(
    trainer: CrowdTrainer, output: PredictionOutput, order: Tensor, strength: float = 1.0
) -> dict[str, float]:
    """Measure h, and also g and the forecast if the method has a g and the items have votes.

    Returns:
        `accuracy`, `aggregator_accuracy`, `forecast_accuracy`; `nll`, `brier`, `ece` of h, and as
        `forecast_nll` and so on those of the forecast.
    """
    log_h, log_g, log_forecast = (torch.from_numpy(log) for log in output.predictions)
    if strength != 1.0:
        log_p = trainer.crowd_model.log_prior()
        log_g = with_strength(log_g, log_p, strength)
        log_forecast = forecast(log_h, log_g, log_p)
    h, g, zeta = (log[:, order].numpy() for log in (log_h, log_g, log_forecast))
    gold = output.label_ids
    with_g = "test_aggregator_accuracy" in output.metrics
    row = accuracies(h, g, zeta, gold, torch.full((len(h),), with_g).numpy()) | certainty(h, gold)
    if with_g:
        row |= {f"forecast_{name}": value for name, value in certainty(zeta, gold).items()}
    return row


def with_votes(row: dict[str, float]) -> dict[str, float]:
    """Keep the measures that depend on the items' votes."""
    return {name: value for name, value in row.items() if name not in OF_CLASSIFIER}


class Judged(NamedTuple):
    """Items with votes, as a trained model judges them.

    Args:
        posterior: (N, C), probabilities of the forecast, or of h where the method has no g.
        gold: (N,) int64, the class.
        annotators: (N, K) int64, padded with -1.
        annotations: (N, K) int64, padded with -1.
    """

    posterior: Tensor
    gold: Tensor
    annotators: Tensor
    annotations: Tensor


def judged(trainer: CrowdTrainer, dataset: datasets.Dataset) -> Judged:
    """Predict items, and read their votes."""
    log_posterior = torch.from_numpy(trainer.predict(dataset).predictions[2])
    gold = torch.tensor(dataset.with_format(None)["label"][:])
    crowd = list(crowd_batches(dataset, trainer.data_collator))
    width = max(who.shape[1] for who, _ in crowd)
    who, said = (
        torch.cat([pad(part, (0, width - part.shape[1]), value=-1) for part in parts])
        for parts in zip(*crowd, strict=True)
    )
    return Judged(log_posterior.exp(), gold, who, said)


def of_annotators(trainer: CrowdTrainer, train: Judged, voted: Judged) -> dict[str, Any]:
    """Measure what the method knows about its annotators, against gold labels.

    Args:
        trainer: at the end of the training.
        train: the training items.
        voted: the items whose votes are judged: test items if these have votes.

    Returns:
        `claims_of_right` of P(vote is right) = sum_c posterior_c A_cc; `confusion_error` of the matrices A
        on the training items; and whether A is the method's `own`, or `counted` with its posterior.
    """
    model, own = trainer.crowd_model, "own"
    matrices = model.confusion()
    if matrices is None:
        own = "counted"
        of_train = train.annotators, train.annotations, model.config.num_annotators
        matrices = confusion(train.posterior, *of_train)
    matrices = matrices.cpu()
    claimed = chance_of_right(voted.posterior.numpy(), matrices.numpy(), voted.annotators.numpy())
    right, given = voted.annotations == voted.gold[:, None], (voted.annotators >= 0).numpy()
    scores = claims_of_right(claimed[given], right.numpy()[given])
    scores["confusion_error"] = matrices_distance(matrices, *train[1:])
    return {name: round(value, 5) for name, value in scores.items()} | {"matrices": own}


def confusion_distance(
    posterior: Tensor, gold: Tensor, annotators: Tensor, annotations: Tensor, num_annotators: int
) -> float:
    """Total variation between P(annotator says r | class c) by a posterior and by gold labels.

    Args:
        posterior: (N, C) probabilities of the class.
        gold: (N,) int64, the class.
        annotators: (N, K) int64, padded with -1.
        annotations: (N, K) int64, padded with -1.
        num_annotators: M.

    Returns:
        The mean over the cells (annotator, class), each as often as it has labels; 0 to 1.
    """
    found = confusion(posterior, annotators, annotations, num_annotators)
    return matrices_distance(found, gold, annotators, annotations)


def matrices_distance(
    found: Tensor, gold: Tensor, annotators: Tensor, annotations: Tensor
) -> float:
    """Compare (M, C, C) confusion matrices with those of gold labels, as `confusion_distance` does."""
    num_annotators, num_classes, _ = found.shape
    truth = one_hot(gold, num_classes).to(found.dtype)
    right = confusion(truth, annotators, annotations, num_annotators)
    index = annotators * num_classes + gold[:, None]
    labels = torch.bincount(index[annotators >= 0], minlength=num_annotators * num_classes)
    distance = (found - right).abs().sum(dim=-1).flatten() / 2
    return float((distance * labels).sum() / labels.sum())


def make_trainer(method: str, recipe: Recipe, callbacks: list[TrainerCallback]) -> CrowdTrainer:
    """Build the method's trainer on the recipe's classifier."""
    arguments = copy.copy(recipe.training)
    for name, value in OURS.get(method, {}).items():
        setattr(arguments, name, value)
    options: dict[str, Any] = {
        "args": arguments, "train_dataset": recipe.train, "callbacks": callbacks
    }  # fmt: skip
    if method in OURS:
        trainer: CrowdTrainer = MaxMIGTrainer(model=recipe.classifier, **options)
    else:
        annotators, classes = crowd_names(recipe.train)
        id2label = dict(enumerate(classes or ()))
        model = peer(method, recipe.classifier, annotators=annotators, id2label=id2label)
        trainer = CrowdTrainer(model=model, **options)
    trainer.remove_callback(PrinterCallback)
    return trainer


def run_cell(cell: Cell, flags: list[str], held_out: float, folder: Path) -> dict[str, Any]:
    """Train and measure one cell, and write its file."""
    reset_peak_memory()
    recipe = cell.recipe(flags, held_out)
    looks = Looks(recipe, cell.looks)
    trainer = make_trainer(cell.method, recipe, [looks])
    looks.trainer = trainer
    started = time.perf_counter()
    metrics = trainer.train().metrics
    seconds = time.perf_counter() - started - looks.seconds
    looks.look_at_end()
    rows = looks.rows
    train = judged(trainer, recipe.train)
    voted = judged(trainer, recipe.test) if looks.voted else train
    num_annotators = trainer.crowd_model.config.num_annotators
    result = {
        **asdict(cell),
        "method": cell.row,
        "last": rows[-1],
        "label_free": looks.label_free(),
        "best_on_test": max(rows, key=lambda row: row["accuracy"]),
        "found": {name: metrics[name] for name in FOUND if name in metrics},
        "forecast_items": "test" if looks.voted else "train",
        "confusion_error": round(confusion_distance(*train, num_annotators), 5),
        "annotators": of_annotators(trainer, train, voted),
        "seconds": round(seconds, 2),
        "peak_memory_mib": round(peak_memory()),
        "threads": torch.get_num_threads(),
        "held_out_items": 0 if recipe.held_out is None else len(recipe.held_out),
        "versions": machine(torch, transformers, datasets, accelerate),
        "command": cell.command(flags, held_out),
    }
    with staged(cell.file(folder)) as place:
        place.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def build(cell: Cell, flags: list[str], held_out: float) -> Recipe:
    """Let the data set's recipe build everything but the method; pictures are processed once."""
    source = DATASETS[cell.dataset]
    page = importlib.import_module(source.recipe)
    kinds = get_type_hints(page.recipe)
    crowd = []
    if source.simulated and cell.case is not None and cell.expertise is not None:
        crowd = ["--case", cell.case, "--expertise", cell.expertise]
    with tempfile.TemporaryDirectory() as folder:
        # The trainer saves and reports nothing.
        quiet = ["--output_dir", folder, "--report_to", "none", "--disable_tqdm", "True"]
        quiet += ["--logging_strategy", "no", "--save_strategy", "no"]
        arguments, training = parse(
            kinds["arguments"], kinds["training"],
            arguments=["--per_device_eval_batch_size", "512", *source.flags, *crowd, *flags, *quiet, "--seed", str(cell.seed)],
        )  # fmt: skip
    recipe = page.recipe(arguments, training)
    train, kept = keep_back(recipe.train, round(held_out * len(recipe.train)))
    parts = {"train": train, "held_out": kept, "test": recipe.test}
    named = set(train.column_names)
    if "image" in named and "features" not in named and recipe.processor is not None:
        flat = isinstance(recipe.classifier, HeadClassifier)
        parts = {
            name: part if part is None else encoded(part, recipe.processor, flat)
            for name, part in parts.items()
        }
    if cell.waum is not None:
        parts["train"] = waum_filter(parts["train"], recipe.classifier, cell.waum, training)
    return replace(recipe, **parts)


# Many cells


def watch_parent() -> None:
    """Exit when the parent is gone: a worker alone would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def start_worker(threads: int) -> None:
    watch_parent()
    gc.freeze()  # or each training would search all imported objects for garbage
    torch.set_num_threads(threads)
    hush()


def run_cells(
    todo: list[Cell], flags: list[str], held_out: float, folder: Path, jobs: int
) -> dict[Cell, str]:
    """Run cells in `jobs` parallel processes.

    Returns:
        What went wrong, by cell: one that fails does not stop the others.
    """
    threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, (os.cpu_count() or 1) // jobs))
    # Read when a worker starts and loads its libraries; the user's own settings stay.
    environment = {**KEEPS, "OMP_NUM_THREADS": str(threads), **os.environ}
    failed: dict[Cell, str] = {}
    with patch.dict(os.environ, environment), tqdm(total=len(todo), unit="cell", smoothing=0.05) as bar:  # fmt: skip
        # New processes from time to time, for libraries keep memory. A pool whose processes have a limit of tasks may
        # hang in Python 3.11 to 3.14.
        for start in range(0, len(todo), jobs * CELLS_OF_A_WORKER):
            with ProcessPoolExecutor(
                jobs, multiprocessing.get_context("spawn"), start_worker, (threads,)
            ) as pool:
                waiting: dict[Future[dict[str, Any]], Cell] = {
                    pool.submit(run_cell, cell, flags, held_out, folder): cell
                    for cell in todo[start : start + jobs * CELLS_OF_A_WORKER]
                }
                for done in as_completed(waiting):
                    cell = waiting[done]
                    if error := done.exception():
                        failed[cell] = "".join(traceback.format_exception(error))
                        bar.write(f"{cell.name}: {error}")
                    else:
                        bar.set_postfix_str(f"{cell.name} {done.result()['last']['accuracy']:.3f}")
                    bar.update()
    return failed


def unfinished(
    wanted: Sequence[Cell], flags: list[str], held_out: float, folder: Path
) -> list[Cell]:
    """Return the cells that are still missing.

    Raises:
        ValueError: if a cell is there that was run with other flags.
    """
    todo = []
    for cell in wanted:
        if not cell.file(folder).exists():
            todo.append(cell)
            continue
        command = json.loads(cell.file(folder).read_text(encoding="utf-8"))["command"]
        if command != cell.command(flags, held_out):
            raise ValueError(
                f"{cell.file(folder)} must be of the same flags as this run, got {command!r}: choose "
                "another --output_dir, or delete it."
            )
    return todo


def collect(found: list[dict[str, Any]], file: Path) -> None:
    """Write cells into one file, one per line, which is then committed."""
    lines = ",\n".join(json.dumps(cell) for cell in found)
    with staged(file) as place:
        place.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def known_methods(wanted: list[str] | None) -> list[str]:
    """All methods that can run here, unless the user names some."""
    if wanted is not None:
        return wanted
    if find_spec("crowdkit") is None:
        print(
            "crowd-kit is not installed: its aggregators are left out; `pip install hf_maxmig[peers]`."
        )
        return [name for name in METHODS if name not in ALGORITHMS]
    return list(METHODS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--dataset", choices=DATASETS, required=True)
    add("--methods", nargs="+", choices=METHODS, help="default: all")
    add(
        "--cases",
        nargs="+",
        choices=(*CASES, *MORE_CASES),
        default=list(CASES),
        help="of a simulated crowd; default: the paper's",
    )
    add("--expertise", nargs="+", choices=LEVELS, default=list(LEVELS))
    add("--seeds", type=int, default=5, help="runs, with seeds 0, 1, ...")
    add("--held_out", type=float, default=HELD_OUT, help="share of the training items kept back")
    add(
        "--waum",
        type=float,
        help="leave out this share of the training items before any method, the most ambiguous by WAUM",
    )
    add("--output_dir", type=Path, default=Path("out/benchmark"), help="a file a cell goes here")
    add(
        "--jobs",
        type=int,
        help="cells at once; default: as many as cores, or one on an accelerator",
    )
    add("--table", action="store_true", help="run nothing, print what is there")
    add(
        "--figure", type=Path, help="run nothing, draw what is there: a .png or .svg, both are made"
    )
    add("--collect", type=Path, help="run nothing, write what is there in one file")
    arguments, flags = parser.parse_known_args()
    folder = arguments.output_dir
    if not (arguments.table or arguments.figure or arguments.collect):
        methods = known_methods(arguments.methods)
        wanted = cells(
            arguments.dataset, methods, arguments.cases, arguments.expertise, arguments.seeds, arguments.waum
        )  # fmt: skip
        run_missing(list(wanted), flags, arguments.held_out, folder, arguments.jobs)
    elif flags:
        parser.error(f"unrecognized arguments: {' '.join(flags)}")
    found = read_cells(folder / arguments.dataset)
    if arguments.collect:
        collect(found, arguments.collect)
    if arguments.figure:
        print(*figure(found, arguments.figure), sep="\n")
    if arguments.table or not (arguments.collect or arguments.figure):
        parts = (markdown(found), further(found), summary(found), beside_all(found))
        print(*filter(None, parts), sep="\n")
    if arguments.table:
        print(latex(found))


def run_missing(
    wanted: Sequence[Cell], flags: list[str], held_out: float, folder: Path, jobs: int | None
) -> None:
    """Run the missing cells.

    Args:
        wanted: the cells.
        flags: of the recipe.
        held_out: share of the training items kept back.
        folder: where their files go.
        jobs: cells at once; None as many as cores, or one on an accelerator.

    Raises:
        SystemExit: if one failed.
    """
    todo = unfinished(wanted, flags, held_out, folder)
    print(f"{len(wanted)} cells, {len(wanted) - len(todo)} of them are there.")
    jobs = jobs or (1 if torch.accelerator.is_available() else os.cpu_count() or 1)
    failed = run_cells(todo, flags, held_out, folder, jobs) if todo else {}
    if failed:
        for cell, error in failed.items():
            print(f"{cell.name} failed:\n{error}", file=sys.stderr)
        raise SystemExit(f"{len(failed)} of {len(todo)} cells failed; the others are written.")


if __name__ == "__main__":
    main()
