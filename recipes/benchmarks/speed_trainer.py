"""Job `trainer` of `benchmark_speed.py`: a step of `MaxMIGTrainer` and one of `Trainer`, by turns.

Each training is a thread that only runs in its turns of a few steps: other work on the machine then
affects all of them alike, and no training starts or ends within a turn. A step lasts from its end to
the next one's: data, forward, backward, optimizer.

They share a process that gives no memory back, see `machine.KEEPS`. Each side is trained several times,
with its blocks at other addresses each time, and takes turns in all of these trainings.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from datasets import Dataset, concatenate_datasets
from machine import KEEPS, in_child
from speed_plain import crowd_dataset, noise_dataset, plain_gain
from speed_rows import OURS_OVER_PLAIN, Reading, Row, agree, now, row, since
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    TimmWrapperConfig,
    TimmWrapperForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

from hf_maxmig import (
    CrowdCollator,
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
)
from hf_maxmig.data.collator import arrow_rows, input_names

NUM_BATCHES = 8  # of a data set; the content of a batch makes no difference
TRAININGS = 5  # per side: two equal ones differ by up to 1 %, always in the same direction


class Network(NamedTuple):
    """A network to be trained, and the length of a turn.

    Args:
        name: `vit_tiny`; `head`, on given features; or a model of timm.
        size: height and width of a picture, or the length of a feature vector.
        batch: B.
        settling: steps that are not counted.
        steps: of a turn.
    """

    name: str
    size: int
    batch: int
    settling: int
    steps: int

    @property
    def column(self) -> str:
        """The column of its inputs."""
        return "features" if self.name == "head" else "pixel_values"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an item in that column."""
        return (self.size,) if self.name == "head" else (3, self.size, self.size)

    def build(self, C: int) -> PreTrainedModel:
        """Build it with random weights."""
        if self.name == "head":
            return HeadClassifier(HeadConfig(input_size=self.size, num_labels=C))
        if self.name == "vit_tiny":
            sizes = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
            return ViTForImageClassification(ViTConfig(image_size=self.size, num_labels=C, **sizes))
        return TimmWrapperForImageClassification(
            TimmWrapperConfig(architecture=self.name, num_labels=C)
        )


# Trainings that take turns


class Turns:
    """Says whose turn it is: all sides in order and then in reverse, so that no side is always first.

    Args:
        sides: how many there are.
        rounds: how many turns each of them has.
    """

    def __init__(self, sides: int, rounds: int) -> None:
        places = range(sides)
        self.order = [side for turn in range(rounds) for side in (places, places[::-1])[turn % 2]]
        self.place = 0
        self.error: BaseException | None = None
        self.changed = threading.Condition()

    def wait(self, side: int) -> None:
        """Wait for this side's turn."""
        with self.changed:
            self.changed.wait_for(lambda: self.error or self.order[self.place] == side)
        if self.error is not None:
            raise RuntimeError("another training has failed.") from self.error

    def pass_on(self) -> None:
        """End a turn."""
        with self.changed:
            self.place += 1
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Release all sides."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()


class InTurn(TrainerCallback):
    """Lets a training run only in its turns, and times them.

    Args:
        turns: whose turn it is.
        side: this training's number.
        settling: steps of the first turn, which is not counted: it begins before the training.
        steps: of each of the others.
        rounds: how many others there are.
        clock: reads the time.
    """

    def __init__(
        self,
        turns: Turns,
        side: int,
        settling: int,
        steps: int,
        rounds: int,
        clock: Callable[[], Reading] = now,
    ) -> None:
        self.turns, self.side = turns, side
        self.settling, self.steps, self.rounds = settling, steps, rounds
        self.clock = clock
        self.left = settling
        self.readings: list[Reading] = []
        self.start: Reading | None = None

    @property
    def max_steps(self) -> int:
        """The number of steps of the training."""
        return self.settling + self.rounds * self.steps

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Count the step, and at the end of a turn wait for the next."""
        self.left -= 1
        if self.left:
            return
        self.end_turn()
        if len(self.readings) < self.rounds:  # the last turn ends with the training
            self.turns.pass_on()
            self.turns.wait(self.side)
            self.left = self.steps
            self.begin_turn()

    def begin_turn(self) -> None:
        """Record the time."""
        self.start = self.clock()

    def end_turn(self) -> None:
        """Record the time per step."""
        if self.start is not None:
            self.readings.append(since(self.start, self.clock(), self.steps))


def train_by_turns(
    trainers: Sequence[Callable[[InTurn], Trainer]],
    callbacks: Callable[[Turns, int], InTurn],
    rounds: int,
) -> list[InTurn]:
    """Make several trainers and let them train by turns.

    Args:
        trainers: makes each of them, around the callback that it is given.
        callbacks: makes those, of `Turns` and the side's number.
        rounds: how many turns each of them has after the first.

    Returns:
        The callbacks: they have the readings.
    """
    turns = Turns(len(trainers), rounds + 1)
    sides = [callbacks(turns, side) for side in range(len(trainers))]
    threads = torch.get_num_threads()

    def run(side: InTurn, make: Callable[[InTurn], Trainer]) -> None:
        torch.set_num_threads(threads)  # each new thread has its own setting
        try:
            turns.wait(side.side)
            trainer = make(side)
            trainer.remove_callback(PrinterCallback)
            trainer.train()
            turns.pass_on()
        except BaseException as error:
            turns.fail(error)
            raise

    with ThreadPoolExecutor(len(sides)) as pool:
        done = [pool.submit(run, *pair) for pair in zip(sides, trainers, strict=True)]
    if turns.error is not None:
        raise turns.error
    for training in done:
        training.result()
    return sides


# The trainers

SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "lr_scheduler_type": "cosine",
    "save_strategy": "no",
    "logging_strategy": "no",
    "logging_nan_inf_filter": False,
    "disable_tqdm": True,
    "report_to": "none",
}
# The trainer's work before the first step and after the last is not part of a step.
OUR_SETTINGS: dict[str, Any] = {
    "init": "vote_share",
    "search_rate": False,
    "name_classes": False,
    "guards": False,
}


def plain_trainer(
    network: Network, items: Dataset, settings: dict[str, Any], callback: InTurn
) -> Trainer:
    """Cross-entropy on gold labels with the unchanged `Trainer`: `datasets` formats each item."""
    return Trainer(
        model=network.build(items.features["labels"].num_classes),
        args=TrainingArguments(**settings, max_steps=callback.max_steps),
        train_dataset=items,
        callbacks=[callback],
    )


def plain_trainer_of_tables(
    network: Network, items: Dataset, settings: dict[str, Any], callback: InTurn
) -> Trainer:
    """The same, but with batches read from Arrow's tables, as `MaxMIGTrainer` reads them."""
    C = items.features["labels"].num_classes
    classifier = network.build(C)
    collator = CrowdCollator(0, C, input_names=input_names(classifier))
    return Trainer(
        model=classifier,
        args=TrainingArguments(
            **settings, max_steps=callback.max_steps, remove_unused_columns=False
        ),
        data_collator=collator,
        train_dataset=arrow_rows(items, collator),
        callbacks=[callback],
    )


def our_trainer(
    network: Network, dataset: Dataset, settings: dict[str, Any], callback: InTurn
) -> MaxMIGTrainer:
    """Max-MIG on the same items, with their columns of votes."""
    return MaxMIGTrainer(
        model=network.build(dataset.features["labels"].num_classes),
        args=MaxMIGTrainingArguments(**settings, **OUR_SETTINGS, max_steps=callback.max_steps),
        train_dataset=dataset,
        callbacks=[callback],
    )


def check_step(network: Network, dataset: Dataset, M: int) -> None:
    """Raise an AssertionError unless the model contains the classifier, and its loss is equation 1."""
    C = dataset.features["labels"].num_classes
    classifier = network.build(C).eval()
    model = MaxMIGModel.from_classifier(classifier, num_annotators=M).eval()
    collator = CrowdCollator(M, C, input_names=input_names(classifier))
    batch = collator([dataset[i] for i in range(min(len(dataset), 8))])
    with torch.no_grad():
        torch.nn.init.normal_(model.aggregator.table)
        output = model(**batch, return_loss=True)
        agree(output.logits, classifier(**{network.column: batch[network.column]}).logits)
        gain = plain_gain(output.log_h, output.aggregator_logits, model.log_prior())
        agree(1 - output.loss, 1 + gain)  # the difference of rewards and penalties of about one


def shared_out(rounds: int, trainings: int) -> list[int]:
    """Divide rounds evenly among trainings, at least one for each.

    Example:
        >>> shared_out(30, 4), shared_out(2, 5)
        ([8, 8, 7, 7], [1, 1])
    """
    trainings = min(rounds, trainings)
    return [rounds // trainings + (i < rounds % trainings) for i in range(trainings)]


def measure_network(
    network: Network, annotators: Sequence[int], C: int, rounds: int, output_dir: str
) -> list[Row]:
    """Measure one network with crowds of several sizes, and without."""
    generator = torch.Generator().manual_seed(0)
    N = NUM_BATCHES * network.batch
    items = noise_dataset(network.column, N, C, network.shape, generator).with_format("torch")
    crowds = {
        M: concatenate_datasets([items, crowd_dataset(N, M, C, generator)], axis=1)
        for M in annotators
    }
    check_step(network, crowds[annotators[0]], annotators[0])
    settings = {
        **SETTINGS,
        "output_dir": output_dir,
        "per_device_train_batch_size": network.batch,
        "dataloader_pin_memory": False,
        "use_cpu": True,
    }

    def maker(kind: Callable[..., Trainer], dataset: Dataset) -> Callable[[InTurn], Trainer]:
        return lambda callback: kind(network, dataset, settings, callback)

    makers = [
        maker(plain_trainer, items),
        maker(plain_trainer_of_tables, items),
        *(maker(our_trainer, dataset) for dataset in crowds.values()),
    ]
    readings: list[list[Reading]] = [[] for _ in makers]
    for turns_each in shared_out(rounds, TRAININGS):
        sides = train_by_turns(
            makers,
            lambda turns, side, rounds=turns_each: InTurn(
                turns, side, network.settling, network.steps, rounds
            ),
            turns_each,
        )
        for of_all, side in zip(readings, sides, strict=True):
            of_all += side.readings
    plain, of_tables, *ours = readings
    job = f"trainer step, {network.name}"
    return [
        # The same work twice, except for the batches, which also shows the error of the other rows.
        row(f"{job}, cross-entropy, our batches", plain, of_tables, OURS_OVER_PLAIN),
        *(
            row(f"{job}, M={M:,}{how}", other, theirs, OURS_OVER_PLAIN)
            for M, theirs in zip(annotators, ours, strict=True)
            for how, other in (("", plain), (", same batches", of_tables))
        ),
    ]


def measure_networks(
    networks: Sequence[Network],
    annotators: Sequence[int],
    C: int,
    rounds: int,
    output_dir: str,
    threads: Sequence[int],
) -> list[Row]:
    """Measure all networks in this process, with each number of threads."""
    rows = []
    for number in threads:
        torch.set_num_threads(number)
        for network in networks:
            rows += measure_network(network, annotators, C, rounds, output_dir)
    return rows


def measure_trainer(*arguments: Any) -> list[Row]:
    """Job 4: all networks, in a separate process; takes the arguments of `measure_networks`."""
    return in_child(KEEPS, measure_networks, *arguments)
