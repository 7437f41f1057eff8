"""Tests of table rows in a pipeline: `hf_maxmig.model.items` and `pipelines`."""

import logging
import math

import pytest
import torch
from PIL import Image
from transformers import pipeline

from hf_maxmig import (
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    TableClassifier,
    TableConfig,
    fitted_table_processor,
)
from hf_maxmig.model.items import ItemReader
from tests.networks import draw_crowd
from tests.worlds import ANNOTATORS, CLASSES, make_table

TASK = "crowd-forecast"
VOTES = [{"ann": "cat", "dee": "dog"}, None, {"bob": "emu"}, {"ann": "dog"}, {}]


@pytest.fixture(scope="module")
def rows(table):
    columns = ["height", "weight", "legs", "colour", "tame"]
    return table.select_columns(columns).select(range(len(VOTES))).to_list()


@pytest.fixture(scope="module", params=["table", "head"])
def model(table_processor, request):
    torch.manual_seed(0)
    kinds = {"table": (TableClassifier, TableConfig), "head": (HeadClassifier, HeadConfig)}
    kind, config = kinds[request.param]
    classifier = kind(config(input_size=table_processor.size, num_labels=3))
    names = dict(enumerate(CLASSES))
    return draw_crowd(MaxMIGModel.from_classifier(classifier, annotators=ANNOTATORS, id2label=names))  # fmt: skip


def scores(answers):
    named = [{a["label"]: a["score"] for a in answer["forecast"]} for answer in answers]
    return torch.tensor([[of_item[name] for name in CLASSES] for of_item in named])


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_rows_are_forecast_as_their_features_are(model, table_processor, rows, batch_size):
    """A column in another place, or a row without its votes, would give other forecasts without an error."""
    assert None in [row["height"] for row in rows]
    features = table_processor(rows)["features"]
    by_row = pipeline(TASK, model=model, feature_extractor=table_processor, batch_size=batch_size)
    by_features = pipeline(TASK, model=model)
    items = [{**row, "votes": votes} for row, votes in zip(rows, VOTES, strict=True)]
    expected = by_features(
        [{"features": x, "votes": votes} for x, votes in zip(features, VOTES, strict=True)]
    )
    answers = by_row(items)
    torch.testing.assert_close(scores(answers), scores(expected))
    assert [answer["heard"] for answer in answers] == [answer["heard"] for answer in expected]
    assert scores(answers)[0].argmax() != scores(by_row(rows))[0].argmax()
    # Other keys, the order of the keys and gold labels have no effect.
    other = [dict(reversed(row.items())) | {"name": "rex", "label": 1} for row in rows]
    torch.testing.assert_close(scores(by_row(other)), scores(by_row(rows)))
    one = by_row(items[0])
    torch.testing.assert_close(scores([one]), scores(answers[:1]))
    # The features themselves are accepted too.
    torch.testing.assert_close(scores(by_row([{"features": features[1]}])), scores(answers[1:2]))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"height": "tall"}, ValueError, "column 'height' must hold numbers.*got 'tall' at item 2"),
        ({"legs": math.inf}, ValueError, "column 'legs' must hold finite numbers.*at item 2"),
        ({"colour": 3}, ValueError, "column 'colour' must hold text.*got 3 at item 2"),
        ({"tame": "no"}, ValueError, "column 'tame' must hold truth values.*got 'no' at item 2"),
        ({"votes": {"ann": "yak"}}, ValueError, "must name one of the 3 classes, got 'yak' by 'ann' at item 2"),
        ({"annotations": [1]}, ValueError, "votes must come by name, as `votes`, got 'annotations' at item 2"),
    ],
)  # fmt: skip
def test_bad_cell_is_refused_by_column_and_item(
    model, table_processor, rows, changes, error, message
):
    """A batch fails as a whole, so the message must say which item to fix."""
    forecast = pipeline(TASK, model=model, feature_extractor=table_processor, batch_size=3)
    with pytest.raises(error, match=message):
        forecast([*rows[:2], rows[2] | changes])


def test_item_that_is_no_row_is_refused_with_what_is_expected(model, table_processor, rows):
    """The message names missing columns, and other kinds of items."""
    forecast = pipeline(TASK, model=model, feature_extractor=table_processor)
    short = {name: value for name, value in rows[1].items() if name != "weight"}
    with pytest.raises(ValueError, match="must have the column 'weight', got .* at item 1"):
        forecast([rows[0], short])
    with pytest.raises(ValueError, match="must have the columns 'height', .*got nothing at item 0"):
        forecast({"votes": {}})
    for item in ("a row", Image.new("RGB", (3, 4)), 3):
        with pytest.raises(TypeError, match=r"a dict with the columns 'height', 'weight', .* \(or `feat"):  # fmt: skip
            forecast(item)


def test_unseen_colour_is_told_once(model, rows, caplog):
    """An unseen category carries no information: the forecast uses the other columns, with one warning."""
    table_processor = fitted_table_processor(make_table())
    forecast = pipeline(TASK, model=model, feature_extractor=table_processor)
    with caplog.at_level(logging.WARNING):
        forecast([rows[0], rows[1] | {"colour": "pink"}, rows[2] | {"colour": "blue"}])
    assert caplog.text.count("Column 'colour' has 'pink' at item 1") == 1
    assert "blue" not in caplog.text


def test_model_of_tables_without_a_processor_takes_features(rows):
    """Without a processor a row cannot be read, and the message says what is missing."""
    reader = ItemReader(TableClassifier(TableConfig(input_size=7)), "tabular-classification")
    assert reader({"features": [0] * 7}, 0)["features"].tolist() == [0.0] * 7
    assert reader.expected == "a dict with `features`, 7 numbers, and `votes`"
    with pytest.raises(ValueError, match="save the training's table processor beside the model"):
        reader(rows[0], 3)
