"""Tests of `hf_maxmig.model.table_processor`: cells of every type, and what is saved."""

import json
import logging
import math
from decimal import Decimal

import numpy as np
import pytest
import torch
from transformers import AutoFeatureExtractor, AutoImageProcessor

from hf_maxmig import TableProcessor

AGE = {"name": "age", "kind": "number", "mean": 40.0, "scale": 8.0, "missing": True}
WORKS = {"name": "works", "kind": "truth", "mean": 0.25, "scale": 0.5, "missing": False}
JOB = {"name": "job", "kind": "category", "categories": ["clerk", "nurse"], "missing": True}
SIZE = {"name": "size", "kind": "category", "categories": ["small", "large"], "missing": False,
        "names": ["small", "middle", "large"]}  # fmt: skip
CODE = {"name": "code", "kind": "category", "categories": [7, 1], "missing": False}
ROW = {"age": 44, "works": True, "job": "nurse", "size": "large", "code": 7}
FEATURES = [0.5, 0.0, 1.5, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]


@pytest.fixture
def processor():
    return TableProcessor([AGE, WORKS, JOB, SIZE, CODE])


def read(processor, **changes):
    return processor([ROW | changes])["features"][0].tolist()


def test_row_becomes_the_features_that_their_names_say(processor):
    """Features in another order than in training would give nonsense without an error."""
    assert dict(zip(processor.feature_names, read(processor), strict=True)) == {
        "age": 0.5, "age is missing": 0.0, "works": 1.5,
        "job = clerk": 0.0, "job = nurse": 1.0, "job is missing": 0.0,
        "size = small": 0.0, "size = large": 1.0, "code = 7": 1.0, "code = 1": 0.0,
    }  # fmt: skip
    assert processor.size == len(FEATURES)
    assert processor(ROW | {} and [ROW])["features"].dtype == torch.float32
    reordered = [dict(reversed(ROW.items())) | {"name": "ann"}]
    assert processor(reordered)["features"].tolist() == [FEATURES]
    assert read(processor, **processor.example)[0] == 0.0


@pytest.mark.parametrize("nothing", [None, math.nan, np.float64("nan")])
def test_missing_value_is_the_mean_or_a_category_of_its_own(processor, nothing):
    """A NaN feature would make all weights NaN."""
    assert read(processor, age=nothing)[:2] == [0.0, 1.0]
    assert read(processor, works=nothing)[2] == 0.0
    assert read(processor, job=nothing)[3:6] == [0.0, 0.0, 1.0]
    assert read(processor, job="  ")[3:6] == [0.0, 0.0, 1.0]


def test_pandas_own_nothing_is_missing(processor):
    """A data frame with nullable columns yields rows with `pandas.NA`."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({**{n: [v] for n, v in ROW.items()}, "age": pandas.array([None], "Int64")})  # fmt: skip
    assert processor(frame.to_dict("records"))["features"][0, :2].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("age", [44.0, np.int32(44), np.float32(44), Decimal(44), torch.tensor(44), np.array(44)]),
        ("works", [1, 1.0, np.bool_(True)]),
        ("job", [np.str_("nurse")]),
        ("size", [2, np.int64(2), 2.0]),
        ("code", [7.0, np.int8(7)]),
    ],
)
def test_value_is_read_in_every_form_of_it(processor, name, same):
    """Rows come from JSON, pandas, torch and data sets."""
    for value in same:
        assert read(processor, **{name: value}) == FEATURES, repr(value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"age": "44"}, "column 'age' must hold numbers, as in training, got '44' at item 1"),
        ({"age": True}, "column 'age' must hold numbers, as in training, got True at item 1"),
        ({"age": [44]}, r"column 'age' must hold numbers, as in training, got \[44\] at item 1"),
        ({"age": math.inf}, "column 'age' must hold finite numbers.*got inf at item 1"),
        ({"age": 10**400}, "column 'age' must hold finite numbers.*got inf at item 1"),
        ({"age": 1e300}, r"column 'age' must hold finite numbers.*got 1e\+300 at item 1"),
        ({"works": 2}, "column 'works' must hold truth values, as in training, got 2 at item 1"),
        ({"works": np.array([1, 0])}, "column 'works' must hold truth values.*got array"),
        ({"size": np.array([1, 0])}, "column 'size' must hold the name or the number.*got array"),
        ({"works": "yes"}, "column 'works' must hold truth values.*got 'yes' at item 1"),
        ({"job": 3}, "column 'job' must hold text, as in training, got 3 at item 1"),
        ({"job": ["nurse"]}, r"column 'job' must hold text.*got \['nurse'\] at item 1"),
        ({"size": 3}, "'size' must hold the name or the number of one of 3 classes.*got 3 at item"),
        ({"size": 1.5}, "'size' must hold the name or the number of one of 3 classes.*got 1.5 at"),
        ({"code": "7"}, "column 'code' must hold whole numbers, which stand for categories.*got '7'"),
        ({"code": math.inf}, "column 'code' must hold whole numbers.*got inf at item 1"),
        ({"code": True}, "column 'code' must hold whole numbers.*got True at item 1"),
    ],
)  # fmt: skip
def test_value_of_another_kind_is_refused_by_column_and_item(processor, changes, message):
    """A text in a column of numbers must not become a number."""
    with pytest.raises(ValueError, match=message):
        processor([ROW, ROW | changes])
    with pytest.raises(ValueError, match=message.replace("item 1", "item 8")):
        processor([ROW, ROW | changes], items=[5, 8])


def test_missing_column_is_refused_by_name(processor):
    """A column left out by mistake differs from a value that is not known."""
    row = {name: value for name, value in ROW.items() if name not in ("age", "job")}
    with pytest.raises(ValueError, match=r"must have the columns 'age', 'job', got .* at item 1"):
        processor([ROW, row])
    with pytest.raises(ValueError, match=r"the column 'age', got .* \(did you mean 'Age'\?\)"):
        processor([{"Age": 44} | {n: v for n, v in ROW.items() if n != "age"}])
    with pytest.raises(ValueError, match="a table must have the columns 'age', 'job', got 'works'"):
        processor({name: [value] for name, value in row.items()})
    for rows, message in (
        (ROW, "put it into a list"),
        ([3], "a row must be a dict, got 3 at item 0"),
        ("age", "`rows` must be a list of dicts, got str"),
    ):
        with pytest.raises(TypeError, match=message):
            processor(rows)
    with pytest.raises(ValueError, match="same number of values, got 2 of 'age', 1 of 'works'"):
        processor({name: [value] for name, value in ROW.items()} | {"age": [1, 2]})


def test_unseen_category_becomes_zeros_with_one_warning_a_column(processor, caplog):
    """A warning per item would drown the log. No warning would hide that the column is ignored."""
    rows = [ROW, ROW | {"job": "pilot"}, ROW | {"job": "smith", "size": "middle", "code": 3}]
    with caplog.at_level(logging.WARNING):
        found = processor(rows, items=[4, 5, 6])["features"]
        processor(rows)
    assert found[2].tolist() == [0.5, 0.0, 1.5] + [0.0] * 7
    assert found[0].tolist() == FEATURES
    assert len(caplog.records) == 3
    assert "Column 'job' has 'pilot' at item 5" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert read(processor, size=None)[6:8] == [0.0, 0.0]  # training had no missing values
        assert read(processor, size=-1)[6:8] == [0.0, 0.0]  # as a data set stores it
    assert not caplog.records  # this column has already been warned about


def test_columns_are_read_as_rows_are(processor):
    """A data set's batches come as arrays, the items of a pipeline one by one."""
    rows = [ROW, ROW | {"age": 48.5, "works": False, "job": None, "size": "small", "code": 1}]
    columns = {name: [row[name] for row in rows] for name in ROW}
    arrays = columns | {
        "age": np.array([44, 48.5], np.float32),
        "works": np.array([True, False]),
        "size": np.array([2, 0]),
        "code": np.array([7, 1]),
    }
    expected = processor(rows)["features"]
    for form in (columns, arrays, arrays | {"age": torch.tensor([44, 48.5])}):
        torch.testing.assert_close(processor(form)["features"], expected, rtol=0, atol=0)
    assert isinstance(processor(rows, return_tensors="np")["features"], np.ndarray)
    with pytest.raises(ValueError, match="`return_tensors` must be 'pt' or 'np', got 'tf'"):
        processor(rows, return_tensors="tf")
    assert processor([])["features"].shape == (0, processor.size)


def test_integers_beyond_a_float_keep_their_order():
    """A column of nanoseconds must not be cut to 32 bits before its mean is subtracted."""
    column = AGE | {"mean": 1e15, "scale": 1e3, "missing": False}
    processor = TableProcessor([column])
    values = np.array([10**15, 10**15 + 2000])
    for form in (values, values.tolist()):
        assert processor({"age": form})["features"].tolist() == [[0.0], [2.0]]


def test_saved_processor_is_json_and_loads_by_the_auto_class(processor, tmp_path):
    """A pickle would run whatever code it contains."""
    processor([ROW | {"job": "pilot"}])  # the warnings already given are not saved
    processor.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert saved["columns"] == [AGE, WORKS, JOB, SIZE, CODE]
    assert saved["auto_map"] == {"AutoFeatureExtractor": "table_processor.TableProcessor"}
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".py"}
    again = AutoFeatureExtractor.from_pretrained(tmp_path)
    assert type(again) is TableProcessor
    assert again([ROW])["features"].tolist() == [FEATURES]
    again.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "preprocessor_config.json").read_bytes() == (
        tmp_path / "preprocessor_config.json"
    ).read_bytes()
    # A pipeline that looks for an image processor there finds none, and does not ask for trust.
    with pytest.raises(ValueError, match="Unrecognized image processor"):
        AutoImageProcessor.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([], "`columns` must describe a column or more, got none"),
        ([3], "at place 0 3: it is no dict"),
        ([AGE, AGE], "must have names of their own, got 'age', 'age'"),
        ([AGE | {"kind": "date"}], "needs a `name`, and a `kind` of 'number', 'truth', 'category'"),
        ([AGE | {"scale": 0.0}], r"\('age'\) 0.0 for its `scale`"),
        ([AGE | {"mean": math.nan}], r"\('age'\) nan for its `mean`"),
        ([AGE | {"missing": 1}], r"\('age'\) no `missing`"),
        ([AGE, JOB | {"categories": ["a", 1]}], r"at place 1 \('job'\) \['a', 1\] for a list"),
        ([JOB | {"categories": ["a", "a"]}], "for a list of different `categories`"),
        ([JOB | {"categories": []}], "for a list of different `categories`"),
    ],
)
def test_wrong_description_is_refused(columns, message):
    """A file edited by hand must not fail in the middle of a forecast."""
    with pytest.raises(ValueError, match=message):
        TableProcessor(columns)
