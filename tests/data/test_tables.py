"""Tests of `hf_maxmig.data.tables`: which columns become features, and that scikit-learn computes the same ones."""

import datetime
import logging
import math

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Image, List, Value
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from hf_maxmig import fitted_table_processor

ROWS = 37
CLASSES = ["low", "middle", "high"]


def drawn(seed=0, rows=ROWS):
    """Draw columns of each type, with and without missing values."""
    rng = np.random.default_rng(seed)
    age = rng.normal(40, 9, rows).round(2)
    income = [None if rng.random() < 0.2 else float(x) for x in rng.lognormal(10, 1, rows)]
    job = [None if rng.random() < 0.2 else str(x) for x in rng.choice(["clerk", "nurse", "pilot"], rows)]  # fmt: skip
    return {
        "id": [f"row{i}" for i in range(rows)],
        "age": age.tolist(),
        "rooms": rng.integers(1, 6, rows).tolist(),
        "income": income,
        "owns": (rng.random(rows) < 0.3).tolist(),
        "job": job,
        "town": rng.choice(["Ghent", "Graz"], rows).tolist(),
        "level": rng.integers(0, 2, rows).tolist(),
        "label": rng.integers(0, 2, rows).tolist(),
        "annotators": [[0, 1]] * rows,
        "annotations": [[0, 1]] * rows,
    }


@pytest.fixture
def dataset():
    return Dataset.from_dict(drawn()).cast_column("level", ClassLabel(names=CLASSES))


def test_features_are_those_of_scikit_learn(dataset):
    """The code is written without scikit-learn so that the Hub can carry it.

    A wrong scale would go unnoticed.
    """
    numbers, categories = ["age", "rooms", "income"], ["job", "town"]
    frame = dataset.to_pandas()
    standardised = make_pipeline(
        StandardScaler(), SimpleImputer(strategy="constant", fill_value=0.0)
    )
    theirs = ColumnTransformer(
        [
            ("numbers", standardised, numbers),
            ("missing", make_pipeline(SimpleImputer(add_indicator=True)), ["income"]),
            ("truth", StandardScaler(), ["owns"]),
            ("categories", OneHotEncoder(sparse_output=False, handle_unknown="ignore"), categories),
            ("classes", OneHotEncoder(sparse_output=False, handle_unknown="ignore"), ["level"]),
        ],
    ).fit(frame)
    processor = fitted_table_processor(dataset, exclude=["id"])
    assert processor.feature_names == [
        "age", "rooms", "income", "income is missing", "owns",
        "job = clerk", "job = nurse", "job = pilot", "job is missing",
        "town = Ghent", "town = Graz", "level = low", "level = middle",
    ]  # fmt: skip
    other = Dataset.from_dict(drawn(seed=1)).cast_column("level", ClassLabel(names=CLASSES))
    for data in (dataset, other):
        expected = theirs.transform(data.to_pandas())
        assert np.isfinite(expected).all()
        expected = np.delete(expected, 3, axis=1)  # the numbers beside the indicator
        found = processor(data.to_list())["features"].numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(processor(data[:])["features"].numpy(), found)


def test_rows_and_data_sets_give_the_same_processor(dataset):
    """A user may have rows before there is a data set."""
    plain = {name: values for name, values in drawn().items() if name not in ("id", "level")}
    rows = [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]
    of_rows = fitted_table_processor(rows)
    assert of_rows.columns == fitted_table_processor(Dataset.from_list(rows)).columns
    assert of_rows.columns == fitted_table_processor(Dataset.from_list(rows).with_format("torch")).columns  # fmt: skip


def test_votes_and_gold_labels_are_no_features(dataset):
    """The classifier would read a gold label among its features as known."""
    assert {"label", "annotators", "annotations"} < {*dataset.column_names}
    found = fitted_table_processor(dataset, exclude=["id"]).column_names
    assert found == ["age", "rooms", "income", "owns", "job", "town", "level"]
    votes = dataset.rename_column("age", "votes").rename_column("rooms", "labels")
    assert not {"votes", "labels"} & {*fitted_table_processor(votes, exclude=["id"]).column_names}
    for name in ("label", "annotators"):
        with pytest.raises(ValueError, match=f"got '{name}', which holds votes or gold labels"):
            fitted_table_processor(dataset, ["age", name])


def test_named_columns_are_read_in_their_order(dataset):
    """Features must follow the order of the names, and an unknown name must be an error."""
    processor = fitted_table_processor(dataset, ["town", "age"])
    assert processor.feature_names == ["town = Ghent", "town = Graz", "age"]
    for wanted, error, message in (
        (["age", "Town"], ValueError, r"got 'Town' \(did you mean 'town'\?\): it has id, age"),
        (["age", "age"], ValueError, "got 'age' twice"),
        ("age", TypeError, r"`feature_columns` must be a list of names, got 'age': write \['age'\]"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            fitted_table_processor(dataset, wanted)
    with pytest.raises(ValueError, match="`exclude` must name columns of the data set, got 'name'"):
        fitted_table_processor(dataset, exclude=["name"])
    with pytest.raises(ValueError, match="`categorical` must name columns that are read, got 'id'"):
        fitted_table_processor(dataset, ["age"], categorical=["id"])
    with pytest.raises(ValueError, match="must not be named 'features'"):
        fitted_table_processor(dataset.rename_column("age", "features"))


def test_columns_of_no_use_are_left_out_with_a_word(dataset, caplog):
    """A one-hot column per row memorises the rows, and a constant column would divide by zero."""
    rows = len(dataset)
    dataset = (
        dataset.add_column("empty", [None] * rows, feature=Value("float32"))
        .add_column("nothing", [None] * rows)
        .add_column("blank", [" "] * rows)
        .add_column("unit", ["cm"] * rows)
        .add_column("version", [3] * rows)
        .add_column("number", list(reversed(range(5, 5 + rows))))
        .add_column("noted", [None, *[1.5] * (rows - 1)])
    )
    with caplog.at_level(logging.WARNING):
        processor = fitted_table_processor(dataset)
    assert processor.column_names == ["age", "rooms", "income", "owns", "job", "town", "level", "noted"]  # fmt: skip
    (record,) = caplog.records
    assert record.message == (
        "Columns that are no features, and left out: 'id', another value in most rows; 'empty', empty; 'nothing', "
        "empty; 'blank', empty; 'unit', always 'cm'; 'version', always 3.0; 'number', the rows' numbers."
    )
    # Whether a value is present is information.
    assert processor.feature_names[-2:] == ["noted", "noted is missing"]
    kept = fitted_table_processor(dataset, ["number", "id", "unit"])
    assert kept.column_names == ["number", "id"]
    assert kept.size == 1 + rows
    with pytest.raises(
        ValueError, match="got 'unit', 'empty' besides votes and gold labels, none of which can be"
    ):
        fitted_table_processor(dataset, ["unit", "empty"])


def test_column_with_very_many_categories_is_left_out_unless_it_is_named():
    """Nobody wants a one-hot encoding of ten thousand towns by default."""
    dataset = Dataset.from_dict({"town": [f"t{i % 1001}" for i in range(2500)], "x": [0.0, 1.0] * 1250})  # fmt: skip
    assert fitted_table_processor(dataset).column_names == ["x"]
    assert fitted_table_processor(dataset, ["town", "x"]).size == 1002


def test_whole_numbers_stay_numbers_unless_they_are_said_to_be_categories(dataset):
    """Rooms can be counted, codes cannot, and only the user knows which is which."""
    assert fitted_table_processor(dataset, ["rooms"]).feature_names == ["rooms"]
    coded = fitted_table_processor(dataset, ["rooms"], categorical=["rooms"])
    assert coded.feature_names == [f"rooms = {i}" for i in sorted({*dataset["rooms"]})]
    assert coded([{"rooms": 2}])["features"].tolist() == [[float(i == 2) for i in sorted({*dataset["rooms"]})]]  # fmt: skip
    gaps = Dataset.from_dict({"code": [4.0, None, 2.0]})
    assert fitted_table_processor(gaps, categorical=["code"]).feature_names == [
        "code = 2", "code = 4", "code is missing",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="whole numbers or text, got 'age' with .* at item 0"):
        fitted_table_processor(dataset, ["age"], categorical=["age"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([datetime.date(2020, 1, 2)] * 3, "column 'x' must hold numbers.*got date32.*an age in days"),
        ([datetime.datetime(2020, 1, 2)] * 3, r"got timestamp\[us\].*an age in days.*`exclude`"),
        ([datetime.time(3)] * 3, "got time64"),
        ([datetime.timedelta(3)] * 3, "got duration"),
        ([[1.0, 2.0]] * 3, "got List: give its numbers columns of their own"),
        ([b"x"] * 3, "got binary: leave it out by `exclude`"),
        ([{"a": 1}] * 3, "column 'x' must hold numbers, truth values or text, got dict"),
        ([0.5, math.inf, 1.0], "column 'x' must hold finite numbers, got inf at item 1"),
        ([0.5, 1.0, -math.inf], "column 'x' must hold finite numbers, got -inf at item 2"),
        ([1e300, -1e300, 0.0], r"whose spread can be computed, got 1e\+300 at item 0"),
        (["1", "2.5", "n/a"], "must hold values of one type, got 'n/a' at item 2 among numbers.*None"),
        (["?", "-2,5", "1e3"], r"must hold values of one type, got '\?' at item 0 among numbers"),
        ([None, "2", "x"] + ["3"] * 4, "got 'x' at item 2 among numbers"),
        ([str(i / 8) for i in range(20)], "must hold numbers as numbers, got '0.0' as text"),
    ],
)  # fmt: skip
def test_column_of_no_known_kind_is_refused_by_name(values, message):
    """If it were left out silently, the user would notice after the training, or never."""
    dataset = Dataset.from_dict({"x": values, "y": [i * i for i in range(len(values))]})
    with pytest.raises(ValueError, match=message):
        fitted_table_processor(dataset)
    assert fitted_table_processor(dataset, exclude=["x"]).column_names == ["y"]


def test_pictures_are_refused_by_name():
    """They need an image processor."""
    dataset = Dataset.from_dict({"x": [1, 2], "photo": ["a.png", "b.png"]}).cast_column("photo", Image())  # fmt: skip
    with pytest.raises(
        ValueError, match="column 'photo' must hold numbers.*got Image: leave it out"
    ):
        fitted_table_processor(dataset)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, "two", 3], "column 'x' must hold values of one type, got 'two' at item 1 and 1 at item 0"),
        ([None, "one", 2], "got 2 at item 2 and 'one' at item 1"),
        ([True, 1.5, 3], "got 1.5 at item 1 and True at item 0"),
        ([1, datetime.date(2020, 1, 2), 3], "got date at item 1: make numbers of it"),
        ([1, [2], 3], "got list at item 1: give its numbers columns"),
        ([1, {}, 3], "got dict at item 1"),
        ([1, 10**400, 3], "must hold finite numbers, got inf at item 1"),
    ],
)  # fmt: skip
def test_rows_of_mixed_types_are_refused_by_name(values, message):
    """A column with a number here and a text there is a mistake in the data."""
    with pytest.raises(ValueError, match=message):
        fitted_table_processor([{"x": value} for value in values])
    with pytest.raises(ValueError, match="each row must have the column 'y', got 'x' at item 1"):
        fitted_table_processor([{"x": 1, "y": 2}, {"x": 3}])


def test_cells_of_a_csv_file_are_numbers_or_missing_or_refused(tmp_path, monkeypatch):
    """Markers of "not known" are missing values; other words must be refused."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n1,2\n2.5,n/a\n,3\nNA,4\n")
    found = fitted_table_processor(Dataset.from_csv(str(path), cache_dir=str(tmp_path / "cache")))
    assert found.feature_names == ["x", "x is missing", "y", "y is missing"]
    path.write_text("x,y\n1,2\n2.5,unknown\n,3\nNA,4\n")
    words = Dataset.from_csv(str(path), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match="column 'y' must hold values of one type, got 'unknown' at item 1"):  # fmt: skip
        fitted_table_processor(words)


def test_text_that_holds_some_numbers_is_text():
    """A grade "5" among words is a word, and columns named as categories may hold only numbers."""
    few = Dataset.from_dict({"x": ["5", "good", "bad", "5"]})
    assert fitted_table_processor(few).feature_names == ["x = 5", "x = bad", "x = good"]
    zips = Dataset.from_dict({"x": ["01", "02", "01", "02"]})
    assert fitted_table_processor(zips).feature_names == ["x = 01", "x = 02"]
    rooms = Dataset.from_dict({"x": ["1", "2", "3+"]})
    found = fitted_table_processor(rooms, categorical=["x"])
    assert found.feature_names == ["x = 1", "x = 2", "x = 3+"]


def test_numbers_of_every_type_are_read():
    """Decimals do not cast, integers with gaps come as floats, and half precision overflows early."""
    values = [1, None, 3, 4]
    for kind in ("int8", "uint64", "float16", "float64", "decimal128(22, 2)"):
        column = Dataset.from_dict({"x": values}).cast_column("x", Value(kind))
        (fitted,) = fitted_table_processor(column).columns
        assert (fitted["kind"], fitted["missing"]) == ("number", True)
        assert fitted["mean"] == pytest.approx(8 / 3)


def test_class_without_an_example_is_zeros(dataset, caplog):
    """Class labels come as numbers in a data set and as names in a pipeline."""
    processor = fitted_table_processor(dataset, ["level"])
    for row, expected in (("middle", [0.0, 1.0]), (0, [1.0, 0.0]), ("high", [0.0, 0.0])):
        assert processor([{"level": row}])["features"].tolist() == [expected]
    assert "Column 'level' has 'high' at item 0" in caplog.text
    missing = dataset.map(lambda row, i: {"level": -1 if i else row["level"]}, with_indices=True)
    assert fitted_table_processor(missing, ["level"]).feature_names[-1] == "level is missing"


def test_streams_and_frames_are_refused_with_the_way_to_go():
    """Their columns cannot be read twice, or not by this function."""
    stream = Dataset.from_dict({"x": [1, 2]}).to_iterable_dataset()
    for wrong in (stream, 3, "rows", [1, 2]):
        with pytest.raises(TypeError, match=r"must be a `datasets.Dataset` or a list of dicts"):
            fitted_table_processor(wrong)
    with pytest.raises(ValueError, match="a table must have a column that describes its items, got none"):  # fmt: skip
        fitted_table_processor(Dataset.from_dict({"label": [0, 1]}))


def test_transform_and_selection_of_a_data_set(dataset):
    """A selection is read as it is; a transform, which makes other columns, is not applied."""
    half = dataset.select(range(0, ROWS, 2))
    assert fitted_table_processor(half, ["age"]).columns[0]["mean"] == pytest.approx(np.mean(half["age"]))  # fmt: skip
    seen = []
    half.set_transform(lambda batch: seen.append(batch) or {"x": [0] * len(batch["age"])})
    assert fitted_table_processor(half, ["age"]).column_names == ["age"]
    assert not seen


def test_mapped_over_a_data_set_it_makes_features(dataset):
    """Users map the processor over a data set to look at the features."""
    processor = fitted_table_processor(dataset, exclude=["id"])
    mapped = dataset.map(processor, batched=True, batch_size=10)
    assert mapped.features["features"] == List(Value("float32"))
    found = torch.tensor(mapped["features"][:])
    torch.testing.assert_close(found, processor(dataset.to_list())["features"])
