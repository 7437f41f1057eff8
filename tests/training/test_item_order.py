"""Predictions meet the votes of their own items, however items are sampled, read, collated and shared."""

import copy

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler, Subset, SubsetRandomSampler
from transformers import default_data_collator

from hf_maxmig import CrowdCollator, CrowdTrainer, MaxMIGTrainer
from hf_maxmig.data.numbered import ROW
from tests.worlds import make_crowd

STRATEGIES = ("random", "sequential", "group_by_length", "batch_rebalance")


class Rows(torch.utils.data.Dataset):
    """A data set that does not depend on Hugging Face's."""

    def __init__(self, dataset):
        self.rows = list(dataset)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Own(CrowdCollator):
    """A user's collator that extends ours."""

    def __call__(self, examples):
        return super().__call__(list(examples))


def by_hand(examples):
    """Collate without our code, and return only the named columns."""
    votes = CrowdCollator(4, 3).crowd([dict(example) for example in examples])
    features = torch.tensor(np.array([example["features"] for example in examples]))
    return {"features": features.float(), "annotators": votes[0], "annotations": votes[1]}


def longest_first(examples):
    """Sort items by length, as collators that pack sequences do."""
    return by_hand(sorted(examples, key=lambda example: -len(example["annotators"])))


def longest_first_and_says_so(examples):
    """Do the same, and also return the items' numbers."""
    order = sorted(range(len(examples)), key=lambda i: -len(examples[i]["annotators"]))
    rows = torch.tensor(examples.rows)[order]
    return {**by_hand([examples[i] for i in order]), ROW: rows}


def only_voted(examples):
    """Drop the items without votes."""
    return by_hand([example for example in examples if len(example["annotators"])])


KINDS = {
    "dataset": lambda d: d,
    "torch_format": lambda d: d.with_format("torch"),
    "transform": lambda d: d.with_transform(lambda batch: batch),
    "selected": lambda d: d.select(range(len(d) - 1, -1, -1)).select(range(len(d) - 1, -1, -1)),
    "rows": Rows,
    "subset": lambda d: Subset(Rows(d), range(len(d))),
    "list": list,
}
COLLATORS = {
    "ours": None,
    "own": Own(4, 3, input_names=["features"]),
    "by_hand": by_hand,
    "says": longest_first_and_says_so,
}


@pytest.fixture(scope="module")
def numbered():
    """Items of different lengths, each identifiable by its features."""
    crowd = make_crowd(37)
    lengths = np.random.default_rng(1).permutation(len(crowd)).tolist()
    return crowd.add_column("length", lengths)


@pytest.fixture
def make(make_model, make_args, numbered):
    def trainer(kind=MaxMIGTrainer, collator=None, model=None, **changes):
        args = make_args(**changes)
        return kind(
            model=model or make_model(), args=args, train_dataset=numbered, data_collator=collator
        )

    return trainer


def naive(trainer, dataset):
    """Predict item by item: log h, in the order of the data set."""
    model = trainer.crowd_model.classifier.eval()
    features = torch.tensor(np.array(dataset["features"][:], dtype=np.float32))
    with torch.no_grad():
        rows = [model(features=row[None]).logits.log_softmax(-1) for row in features]
    return torch.cat(rows).numpy()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    strategy=st.sampled_from(STRATEGIES),
    kind=st.sampled_from(sorted(KINDS)),
    collator=st.sampled_from(sorted(COLLATORS)),
    size=st.sampled_from([1, 4, 36, 37, 50]),
    in_order=st.booleans(),
)
def test_predictions_are_in_the_order_of_the_data_set(
    make, numbered, strategy, kind, collator, size, in_order
):
    """When items are sorted by length, a prediction would clean the label of another item."""
    trainer = make(
        collator=COLLATORS[collator], train_sampling_strategy=strategy, per_device_eval_batch_size=size,
        dataloader_in_order=in_order,
    )  # fmt: skip
    expected = naive(trainer, numbered)
    assert np.unique(expected[:, 0]).size == len(numbered)  # each row is identified by it
    dataset = KINDS[kind](numbered)
    output = trainer.predict(dataset)
    np.testing.assert_allclose(output.predictions[0], expected, atol=1e-5)
    parts = list(trainer.posteriors_of(dataset))
    np.testing.assert_allclose(torch.cat([p[0][0] for p in parts]), expected, atol=1e-5)
    votes = torch.cat([(p[2] >= 0).sum(dim=1) for p in parts])
    assert votes.tolist() == [len(row) for row in numbered["annotations"]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_relabel_is_of_the_same_items_under_any_strategy(make, numbered, strategy):
    """The accuracy of cleaned labels once fell from 0.98 to 0.42 because of their order alone."""
    trainer = make(train_sampling_strategy=strategy, report_to="none")
    relabelled = trainer.relabel(numbered.add_column("row", list(range(len(numbered)))))
    expected = np.exp(naive(trainer, numbered))[relabelled["row"][:]]
    np.testing.assert_allclose(np.array(relabelled["classifier_posterior"][:]), expected, atol=1e-5)


@pytest.mark.slow
def test_predictions_are_in_order_with_workers_that_overtake_each_other(
    make, numbered, clean_workers
):
    """Batches arrive as they are ready, so the last one is not the incomplete one."""
    trainer = make(
        dataloader_num_workers=2, dataloader_in_order=False, per_device_eval_batch_size=4
    )
    for dataset in (numbered, numbered.select(range(20, 3, -1))):
        predicted = trainer.predict(dataset).predictions[0]
        np.testing.assert_allclose(predicted, naive(trainer, dataset), atol=1e-5)


@pytest.mark.slow
def test_persistent_workers_read_the_data_set_that_is_asked_for(make, numbered, clean_workers):
    """`Trainer` keeps the loader of the first evaluation and would reuse it for any other data set."""
    trainer = make(dataloader_num_workers=1, dataloader_persistent_workers=True)
    half = numbered.select(range(20))
    first, second = trainer.evaluate(numbered), trainer.evaluate(half)
    assert first["eval_accuracy"] != second["eval_accuracy"]
    plain = make(model=trainer.crowd_model).evaluate(half)
    assert second["eval_accuracy"] == plain["eval_accuracy"]


def test_metrics_of_the_user_see_the_order_of_the_data_set(make_model, make_args, numbered):
    """They may join predictions with what they know about the items."""
    seen = []

    class Shuffled(MaxMIGTrainer):
        def _get_eval_sampler(self, dataset):
            return RandomSampler(dataset)

    trainer = Shuffled(
        model=make_model(), args=make_args(), train_dataset=numbered, eval_dataset=numbered,
        compute_metrics=lambda outputs: seen.append(outputs) or {},
    )  # fmt: skip
    trainer.evaluate()
    np.testing.assert_allclose(seen[0].predictions[0], naive(trainer, numbered), atol=1e-5)
    np.testing.assert_array_equal(seen[0].label_ids, numbered["label"][:])


def test_a_collator_that_sorts_is_refused_unless_it_says_so(make, numbered):
    """The prediction for its longest item would be taken for that of the first."""
    trainer = make(collator=longest_first)
    with pytest.raises(ValueError, match=r"`data_collator` must keep the order .* torch\.tensor"):
        trainer.predict(numbered)


def test_a_collator_that_leaves_items_out_is_refused_where_predictions_meet_items(make, numbered):
    """One missing row shifts all that follow. Metrics over the remaining items are still valid."""
    trainer = make(collator=only_voted)
    assert "eval_gain" in trainer.evaluate(numbered)
    for call in (trainer.predict, trainer.relabel, lambda d: list(trainer.posteriors_of(d))):
        with pytest.raises(ValueError, match="each prediction must have the row of its item"):
            call(numbered)


def test_a_sampler_that_leaves_items_out_is_refused_where_predictions_meet_items(
    make_model, make_args, numbered
):
    """Evaluating on some items is legitimate, but their predictions are not those of the first ones."""

    class Some(MaxMIGTrainer):
        def _get_eval_sampler(self, dataset):
            return SubsetRandomSampler(range(0, len(dataset), 2))

    trainer = Some(model=make_model(), args=make_args(), train_dataset=numbered)
    assert "eval_gain" in trainer.evaluate(numbered)
    with pytest.raises(
        ValueError, match=r"a prediction for each of 37 items, got 19, none for 18 .*1, 3, 5"
    ):
        trainer.predict(numbered)


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_loader_of_the_users_must_be_in_order(make_model, make_args, numbered, shuffled):
    """It passes on no item numbers, so the items are only known if it reads from first to last."""

    class Loader(CrowdTrainer):
        def get_test_dataloader(self, dataset):
            return DataLoader(dataset, 8, shuffle=shuffled, collate_fn=self.data_collator)

    trainer = Loader(model=make_model(), args=make_args(), train_dataset=numbered)
    if shuffled:
        with pytest.raises(ValueError, match="each prediction must have the row of its item"):
            trainer.predict(numbered)
    else:
        predicted = trainer.predict(numbered).predictions[0]
        np.testing.assert_allclose(predicted, naive(trainer, numbered), atol=1e-5)


def test_collators_of_others_see_the_examples_that_they_always_saw(make, numbered):
    """An extra number would be stacked as a model input."""
    seen = []

    def collate(examples):
        seen.extend(set(example) for example in examples)
        return by_hand(examples)

    trainer = make(collator=collate, max_steps=2)
    trainer.train()
    trainer.predict(numbered)
    assert seen
    assert all(names == {*numbered.column_names} for names in seen)
    ours = default_data_collator([{"x": 1.0}])  # it stacks whatever it finds
    assert ROW not in ours


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_batches_have_no_numbers(make, numbered, strategy):
    """The classifier must not be given an item's position."""
    trainer = make(train_sampling_strategy=strategy, length_column_name="length")
    batches = list(trainer.get_train_dataloader())
    assert all(
        set(batch) == {"features", "annotators", "annotations", "labels"} for batch in batches
    )
    read = torch.cat([batch["features"] for batch in batches])
    assert sorted(read[:, 0].tolist()) == pytest.approx(
        sorted(np.array(numbered["features"][:])[:, 0])
    )


def test_a_stream_comes_in_its_order(make, numbered):
    """A stream has no item numbers, and needs none."""
    trainer = make()
    predicted = trainer.predict(numbered.to_iterable_dataset()).predictions[0]
    np.testing.assert_allclose(predicted, naive(trainer, numbered), atol=1e-5)


def test_the_same_steps_are_taken_by_any_form_of_the_data(make_model, make_args, numbered):
    """Item numbers must not change which items are drawn."""
    start, states = make_model(), []
    for kind in ("dataset", "transform", "rows", "list"):
        trainer = MaxMIGTrainer(
            model=copy.deepcopy(start), args=make_args(max_steps=5, init="keep", search_rate=False), train_dataset=KINDS[kind](numbered)
        )  # fmt: skip
        trainer.train()
        states.append(trainer.crowd_model.classifier.state_dict())
    for other in states[1:]:
        for name, tensor in states[0].items():
            torch.testing.assert_close(other[name], tensor)


def test_numbers_of_a_part_are_those_of_the_whole():
    """Short trainings use half of the items, and an error must name the right one."""
    from hf_maxmig.data.numbered import NumberedItems, numbers, part_of

    dataset = Dataset.from_dict({"x": [0.0, 1.0, 2.0, 3.0, 4.0]})
    part = part_of(part_of(dataset, [4, 2, 0]), [2, 0])
    assert part["x"][:] == [0.0, 4.0]
    assert [numbers(part)[i] for i in range(2)] == [0, 4]
    items = NumberedItems(part)
    batch = items.__getitems__([1])
    assert (batch.rows, batch.numbers) == ([1], [4])
