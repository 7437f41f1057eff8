"""Training on the rows of a table: the collator computes the features, for every kind of data set."""

import pytest
import torch
from transformers import AutoModel

from hf_maxmig import (
    CrowdCollator,
    MaxMIGTrainer,
    TableProcessor,
    fitted_table_processor,
)
from hf_maxmig.data.collator import ArrowRows, arrow_rows
from hf_maxmig.model.items import input_names
from tests.networks import table_classifier
from tests.worlds import make_table


@pytest.fixture
def collator(table_processor):
    names = input_names(table_classifier(table_processor))
    return CrowdCollator(4, 3, processor=table_processor, input_names=names)


def trained(args, table_processor, dataset, resume=None, **settings):
    trainer = MaxMIGTrainer(
        table_classifier(table_processor), args, train_dataset=dataset, processing_class=table_processor, **settings
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_columns_become_the_processors_features(table, table_processor, collator):
    """Covers batches from Arrow, dicts, streams and tensors."""
    expected = table_processor(table.to_list())["features"]
    rows = arrow_rows(table, collator)
    assert isinstance(rows, ArrowRows)
    batch = collator(rows.__getitems__([*range(len(table))]))
    torch.testing.assert_close(batch.pop("features"), expected, rtol=0, atol=0)
    assert {*batch} == {"annotators", "annotations", "labels"}
    for examples in (table.to_list(), list(table.to_iterable_dataset()), list(table.with_format("torch"))):  # fmt: skip
        torch.testing.assert_close(collator(examples)["features"], expected)
    alike = table.with_format("numpy")
    batch = collator(arrow_rows(alike, collator).__getitems__([3, 1]))
    torch.testing.assert_close(batch["features"], expected[[3, 1]], rtol=0, atol=0)


def test_numbers_are_not_rounded_before_their_mean_is_taken_off():
    """Years and times are large and differ in their last digits, which float32 cannot hold."""
    table = make_table().map(lambda row, i: {"weight": 1.7e9 + i}, with_indices=True)
    table_processor = fitted_table_processor(table, ["weight"])
    collator = CrowdCollator(4, 3, processor=table_processor, input_names=["features", "labels"])
    features = collator(arrow_rows(table, collator).__getitems__([0, 1, 2]))["features"]
    assert len({*features.flatten().tolist()}) == 3


def test_features_that_are_there_are_taken(table, table_processor, collator):
    """A user who has mapped the data set may have removed the columns, and does not want to compute features twice."""
    made = table.map(table_processor, batched=True).remove_columns(table_processor.column_names)
    expected = table_processor(table.to_list())["features"]
    batch = collator(arrow_rows(made, collator).__getitems__([*range(len(made))]))
    torch.testing.assert_close(batch["features"], expected)


def test_table_without_a_column_is_refused_by_name(table, table_processor, collator):
    """The error must come before training and name the column, and for a bad cell the item."""
    with pytest.raises(ValueError, match="a table must have the column 'weight', got 'height', 'leg"):  # fmt: skip
        collator(table.remove_columns("weight").to_list())
    bare = CrowdCollator(4, 3, input_names=collator.input_names)
    with pytest.raises(ValueError, match=r"let `processing_class=fitted_table_processor\(dataset\)`"):  # fmt: skip
        bare(table.to_list())
    rows = table.to_list()[:3]
    rows[1]["weight"] = "heavy"
    with pytest.raises(ValueError, match="column 'weight' must hold numbers.*got 'heavy' at item 7"):  # fmt: skip
        collator.collate(rows, [6, 7, 8])


@pytest.mark.slow
def test_training_on_columns_is_training_on_features(table, table_processor, make_args, tmp_path):
    """Covers the whole way, from the start before the training to the predictions after it, and resuming."""
    settings = {"init": "cross_fit", "num_train_epochs": 4, "save_strategy": "epoch"}
    trainer = trained(make_args(**settings), table_processor, table)
    assert trainer.start.items is not None  # of networks on the features
    result = trainer.evaluate(table)
    assert result["eval_accuracy"] > 0.8
    made = table.map(table_processor, batched=True).remove_columns(table_processor.column_names)
    other = trained(
        make_args(output_dir=str(tmp_path / "other"), **settings), table_processor, made
    )
    again = trained(make_args(**settings), table_processor, table, resume=str(tmp_path / "out" / "checkpoint-12"))  # fmt: skip
    for name, weight in trainer.crowd_model.state_dict().items():
        torch.testing.assert_close(other.crowd_model.state_dict()[name], weight, rtol=0, atol=0)
        torch.testing.assert_close(again.crowd_model.state_dict()[name], weight, rtol=0, atol=0)
    checkpoint = TableProcessor.from_pretrained(tmp_path / "out" / "checkpoint-12")
    assert checkpoint.columns == table_processor.columns
    trainer.save_model()
    loaded = AutoModel.from_pretrained(tmp_path / "out")
    assert loaded.config.classifier_task == "tabular-classification"
    features = table_processor(table.to_list())["features"]
    mine = trainer.crowd_model.eval()(features=features).logits
    torch.testing.assert_close(loaded.eval()(features=features).logits, mine)


@pytest.mark.slow
def test_stream_of_rows_is_trained_on(table, table_processor, make_args):
    """A stream yields dicts, and is read from its beginning."""
    args = make_args(max_steps=40, num_train_epochs=1)
    trainer = trained(args, table_processor, table.to_iterable_dataset())
    assert trainer.evaluate(table)["eval_accuracy"] > 0.8
