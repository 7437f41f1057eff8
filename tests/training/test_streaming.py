"""Streams: a training set that is read as it comes and may exceed any memory."""

import itertools
import weakref

import pytest
import torch
from datasets import IterableDataset
from transformers import TrainerCallback

from hf_maxmig import CrowdCollator, HeadClassifier, HeadConfig, MaxMIGTrainer, crowd_features
from hf_maxmig.data.collator import crowd_batches
from tests.worlds import ANNOTATORS, CLASSES, make_crowd

BATCH = 16
ENOUGH = 5_000  # items after which an endless stream is being loaded, not read


class Row(dict):
    """An item that can show whether anything still holds it."""


class Endless(torch.utils.data.IterableDataset):
    """A torch stream without an end, which counts the items requested and those held at a time."""

    def __init__(self, crowd):
        self.items = list(crowd)
        self.reads, self.held, self.most_held = [], 0, 0

    def let_go(self):
        self.held -= 1

    def __iter__(self):
        self.reads.append(0)
        for item in itertools.cycle(self.items):
            assert self.reads[-1] < ENOUGH
            self.reads[-1] += 1
            row = Row(item)
            self.held += 1
            self.most_held = max(self.most_held, self.held)
            weakref.finalize(row, self.let_go)
            yield row
            del row


class Start(TrainerCallback):
    """Record the votes from which the aggregator starts."""

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.table = model.aggregator.table.detach().clone()


def started_from(crowd, make_model):
    """Return the start of equation 2 from these items, at half strength, the default."""
    model = make_model()
    model.initialize_crowd(crowd_batches(crowd, CrowdCollator(4, 3)), scale=0.5)
    return model.aggregator.table.detach()


@pytest.mark.parametrize("asked", ["number", "table of votes"])
def test_stream_without_an_end_is_read_as_it_comes(asked, crowd, make_model, make_args):
    """If the start, the class names or a prefetch read it to its end, it would fill any memory."""
    stream, start = Endless(crowd), Start()
    trainer = MaxMIGTrainer(
        model=make_model(),
        args=make_args(max_steps=30),
        train_dataset=stream,
        start_from=40 if asked == "number" else crowd,
        callbacks=[start],
    )
    trainer.train()
    assert trainer.state.global_step == 30
    *others, training = sorted(stream.reads)
    assert others == ([40, 40] if asked == "number" else [])
    assert 30 * BATCH <= training <= 32 * BATCH
    assert BATCH <= stream.most_held <= (40 if asked == "number" else 2 * BATCH)
    expected = crowd.select(range(40)) if asked == "number" else crowd
    torch.testing.assert_close(start.table, started_from(expected, make_model))
    assert trainer.evaluate(make_crowd(seed=1))["eval_accuracy"] > 0.8


def test_stream_of_the_hub_is_read_no_further_than_asked(crowd, make_model, make_args):
    """`take` from a shuffled stream, or a batch of a thousand, would read far more."""
    read = []

    def generate():
        for item in itertools.cycle(crowd):
            assert len(read) < ENOUGH
            read.append(1)
            yield item

    stream = IterableDataset.from_generator(generate, features=crowd.features)
    args = make_args(max_steps=4)
    trainer = MaxMIGTrainer(model=make_model(), args=args, train_dataset=stream, start_from=40)
    trainer.train()
    assert len(read) <= 40 + 6 * BATCH + 40


def test_stream_with_an_end_starts_from_all_of_it(crowd, make_model, make_args):
    """The default must not depend on whether items are streamed."""
    start = Start()
    trainer = MaxMIGTrainer(
        model=make_model(),
        args=make_args(max_steps=2),
        train_dataset=crowd.to_iterable_dataset(),
        callbacks=[start],
    )
    trainer.train()
    torch.testing.assert_close(start.table, started_from(crowd, make_model))


@pytest.mark.parametrize("kind", ["columns", "rows"])
def test_first_items_start_other_data_sets_too(kind, crowd, make_model, make_args):
    """The setting must not be ignored without a stream; more than there are means all."""
    for number in (40, 1000):
        start = Start()
        trainer = MaxMIGTrainer(
            model=make_model(),
            args=make_args(max_steps=2, init=None),
            train_dataset=crowd if kind == "columns" else list(crowd),
            start_from=number,
            callbacks=[start],
        )
        trainer.train()
        first = crowd.select(range(min(number, len(crowd))))
        torch.testing.assert_close(start.table, started_from(first, make_model))
        assert trainer.listed_arguments()["init"] == "vote_share"


def test_classes_are_named_by_the_first_items_of_a_stream(crowd, make_model, make_args):
    """The items are read twice: once for the best names and once to see whether they are clear."""
    trainer = MaxMIGTrainer(
        model=make_model(), args=make_args(max_steps=1), train_dataset=Endless(crowd), start_from=60
    )
    aggregator, order = trainer.crowd_model.aggregator, torch.tensor([1, 0, 2])
    trainer.crowd_model.initialize_crowd(trainer.crowd_of(crowd))
    assert torch.equal(trainer.class_order(), torch.arange(3))
    aggregator.reorder_classes(order)
    assert torch.equal(trainer.class_order(), order)


def test_classes_are_named_by_the_votes_that_it_starts_from(crowd, make_model, make_args):
    """Otherwise the stream's votes would be read to its end."""
    trainer = MaxMIGTrainer(
        model=make_model(),
        args=make_args(max_steps=60),
        train_dataset=Endless(crowd),
        start_from=crowd,
    )
    trainer.train()
    batch = {"features": torch.tensor(crowd["features"][:8])}
    assert trainer.crowd_model.reorder_classes(torch.tensor([2, 0, 1]), batch)
    assert trainer.name_classes() == ["dog", "emu", "cat"]


def test_names_come_with_the_votes_where_a_stream_has_none(crowd, make_args):
    """`map` removes a stream's features, so a classifier could not be wrapped."""
    stream = crowd.to_iterable_dataset().map(lambda row: row)
    assert stream.features is None
    trainer = MaxMIGTrainer(
        model=HeadClassifier(HeadConfig(input_size=5, num_labels=3)),
        args=make_args(max_steps=2),
        train_dataset=stream,
        start_from=crowd.select_columns(["annotators", "annotations"]),
    )
    trainer.train()
    config = trainer.crowd_model.config
    assert (config.annotators, config.class_names) == (ANNOTATORS, CLASSES)


def test_votes_of_others_do_not_start_it(crowd, make_model, make_args):
    """Annotator 0 of another table is another person."""
    others = crowd.cast_column(
        "annotators", crowd_features(ANNOTATORS[::-1], CLASSES)["annotators"]
    )
    with pytest.raises(ValueError, match="annotators must be those of the model"):
        MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd, start_from=others)


def test_start_from_nothing_is_refused(crowd, make_model, make_args):
    """Zero items would be taken for "not set", or fail somewhere else."""
    for number in (0, -3):
        with pytest.raises(ValueError, match=f"must be a number of items, 1 or more.*got {number}"):
            MaxMIGTrainer(
                model=make_model(), args=make_args(), train_dataset=crowd, start_from=number
            )


def test_start_from_some_cannot_be_a_start_from_information(crowd, make_model, make_args):
    """If both were requested, one would be ignored."""
    for start, shown in ((40, "40 items"), (crowd, "Dataset")):
        trainer = MaxMIGTrainer(
            model=make_model(),
            args=make_args(init="information"),
            train_dataset=crowd,
            start_from=start,
        )
        with pytest.raises(ValueError, match=f"`start_from` must not be given.*got {shown}"):
            trainer.train()


# Resuming. A pass over the 90 items has six batches, the last of ten.

STEPS = 14


class SaveAt(TrainerCallback):
    def __init__(self, *steps):
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = state.global_step in self.steps


def trained(folder, make_model, make_args, saved=(), checkpoint=None, **changes):
    """Train on a stream with another order in each pass, with a network that uses dropout."""
    trainer = MaxMIGTrainer(
        model=make_model(0.5, prior="learned"),
        args=make_args(output_dir=str(folder), max_steps=STEPS, **changes),
        train_dataset=make_crowd()
        .to_iterable_dataset(num_shards=3)
        .shuffle(seed=1, buffer_size=20),
        callbacks=[SaveAt(*saved)],
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    assert trainer.state.global_step == STEPS
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize(("accumulation", "saved"), [(1, (2, 6, 9, 13)), (2, (3, 8)), (4, (1, 3))])
def test_resumed_stream_goes_on_where_it_stopped(
    accumulation, saved, make_model, make_args, tmp_path
):
    """`Trainer` treats all steps as one pass, so from the second on items would be skipped or seen twice."""
    changes = {"gradient_accumulation_steps": accumulation}
    whole = trained(tmp_path, make_model, make_args, saved, **changes)
    assert whole.state.epoch > 2
    expected = whole.crowd_model.state_dict()
    for step in saved:
        checkpoint = str(tmp_path / f"checkpoint-{step}")
        again = trained(tmp_path / "again", make_model, make_args, (), checkpoint, **changes)
        assert again.state.epoch == whole.state.epoch
        for name, tensor in again.crowd_model.state_dict().items():
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)


def test_resumed_stream_may_leave_its_place(make_model, make_args, tmp_path):
    """`ignore_data_skip` is for streams too long to be read again: the pass restarts."""
    trained(tmp_path, make_model, make_args, saved=(9,))
    again = trained(
        tmp_path, make_model, make_args, (), str(tmp_path / "checkpoint-9"), ignore_data_skip=True
    )
    # Five steps of the second pass were left; `epoch` counts the passes and the steps in this one.
    assert again.state.epoch == pytest.approx(1 + 5 / STEPS)
