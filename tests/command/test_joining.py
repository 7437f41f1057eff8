"""How votes and gold labels are matched with items."""

import logging
import re

import pytest
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as Picture

from hf_maxmig import read_annotations
from hf_maxmig.command.items import read_folder
from hf_maxmig.command.joining import (
    matching_column,
    named_items,
    with_gold,
    with_names,
    with_votes,
)
from hf_maxmig.data.class_order import align_gold
from tests.written_data import write_pictures, write_votes


@pytest.mark.parametrize(
    ("called", "way"),
    [
        (lambda name: name, "path"),
        (lambda name: name.split("/")[-1], "file name"),
        (lambda name: name.split("/")[-1].split(".")[0], "file name without its ending"),
    ],
)
def test_pictures_are_called_as_the_votes_call_them(called, way, tmp_path, caplog):
    """Votes may name whole paths, file names or stems, and the choice must be reported."""
    rows = write_pictures(tmp_path / "photos", by_class=True)
    rows = [(called(item), who, said) for item, who, said in rows]
    votes = read_annotations(write_votes(tmp_path / "votes.csv", rows), annotator="who")
    pictures, _ = read_folder(str(tmp_path / "photos"))
    with caplog.at_level(logging.WARNING):
        pictures, column = with_names(pictures, votes, None)
        train = with_votes(pictures, votes, column)
    assert f"named by their {way}," in caplog.text
    assert "30 of the 30 items" in caplog.text
    said = {(item, who): label for item, who, label in rows}
    who, what = (train.features[name].feature.names for name in ("annotators", "annotations"))
    assert sum(map(len, train["annotators"])) == len(rows)
    for row in train.remove_columns("image"):
        for m, r in zip(row["annotators"], row["annotations"], strict=True):
            assert said[row["file_name"], who[m]] == what[r]


def test_file_names_that_occur_twice_name_nothing(tmp_path):
    """If two folders each hold a photo 1.png, votes joined by file name would go to both."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Picture.new("RGB", (4, 4)).save(tmp_path / folder / "1.png")
    paths = [str(tmp_path / folder / "1.png") for folder in ("a", "b")]
    images = Dataset.from_dict({"image": paths}).cast_column("image", Image())
    votes = Dataset.from_dict({"item": ["1.png"], "annotator": ["ann"], "annotation": ["cat"]})
    named, column = named_items(images, votes, "image")
    assert named[column][:] == ["a/1.png", "b/1.png"]


def test_pictures_without_file_names_need_an_item_column():
    """Pictures of a Hub data set are bytes, so votes cannot refer to a file."""
    images = Dataset.from_dict({"image": [Picture.new("RGB", (4, 4))]}, Features(image=Image()))
    votes = Dataset.from_dict({"item": ["1"], "annotator": ["ann"], "annotation": ["cat"]})
    with pytest.raises(ValueError, match="name the column with `--item_column`"):
        named_items(images, votes, "image")


def test_gold_labels_give_the_order_of_classes():
    """Class 0 of the votes must be class 0 of the gold labels, or every accuracy is wrong."""
    features = Features(name=Value("string"), label=ClassLabel(names=["red", "green", "blue"]))
    images = Dataset.from_dict({"name": ["x", "y"], "label": [1, 2]}, features=features)
    votes = Dataset.from_dict(
        {"item": ["x", "y"], "annotator": ["ann", "ann"], "annotation": ["green", "blue"]}
    )
    train = with_votes(images, votes, "name")
    assert train.features["annotations"].feature.names == ["red", "green", "blue"]
    assert train["annotations"][:] == [[1], [2]]
    assert train["label"][:] == [1, 2]


def test_folders_that_are_no_classes_are_no_gold_labels(caplog):
    """Folders named after dates would be taken for the truth."""
    features = Features(name=Value("string"), label=ClassLabel(names=["monday", "tuesday"]))
    images = Dataset.from_dict({"name": ["x", "y"], "label": [1, 0]}, features=features)
    votes = Dataset.from_dict({"item": ["x"], "annotator": ["ann"], "annotation": ["green"]})
    with caplog.at_level(logging.WARNING):
        train = with_votes(images, votes, "name")
    assert "label" not in train.column_names
    assert "not a gold label of these classes" in caplog.text


def test_gold_labels_of_the_test_are_numbered_as_the_votes():
    """A test folder may list its classes in another order, or lack some."""
    features = Features(name=Value("string"), label=ClassLabel(names=["red", "blue"]))
    columns = {"name": ["x", "y", "z"], "label": [0, 1, None]}
    images = Dataset.from_dict(columns, features=features)
    assert with_gold(images, ["blue", "green", "red"])["label"][:] == [2, 0, None]
    with pytest.raises(ValueError, match=r"gold labels of the classes cat, dog, got red, blue"):
        with_gold(images, ["cat", "dog"])


def table(**columns):
    return Dataset.from_dict(columns)


def votes_on(*items, said="yes"):
    return table(item=list(items), annotator=["ann"] * len(items), annotation=[said] * len(items))


def test_column_of_the_names_is_found():
    """A user with only one column of names should not have to name it."""
    items = table(number=[7, 8, 9], kind=["a", "b", "a"], text=["x1", "x2", "x3"])
    assert matching_column(items, votes_on("9", "7")) == "number"
    assert matching_column(items, votes_on("x3", "x1", "x1")) == "text"
    assert matching_column(items, votes_on("a")) == "kind"  # twice there: the join reports it
    assert matching_column(items, votes_on("x1", "none")) is None
    with pytest.raises(ValueError, match="column 'kind' must identify the items, got 'a' more"):
        with_votes(items, votes_on("a"), with_names(items, votes_on("a"), None)[1])


def test_names_in_two_columns_or_none_need_a_flag():
    """Joined by the wrong column, every vote would be about another item."""
    items = table(row=[1, 2, 3], page=[2, 3, 1], text=["x", "y", "z"])
    with pytest.raises(ValueError, match="such as '2', got several, row, page: name it by `--item_column`"):  # fmt: skip
        with_names(items, votes_on("2", "3"), None)
    assert with_names(items, votes_on("2"), "page")[1] == "page"
    with pytest.raises(ValueError, match="such as 'b', got none among row, page, text: name it"):
        with_names(items, votes_on("b"), None)


def test_votes_on_items_that_are_not_in_the_file_are_refused():
    """A typing error in the names could silently drop half of the votes."""
    items, votes = table(name=["a", "b", "c"], other=[1, 2, 3]), votes_on("a", "c", "d")
    items, column = with_names(items, votes, None)
    assert column == "name"
    with pytest.raises(ValueError, match="1 of 3 votes refer to 1 items that column 'name' does not have, such as 'd'"):  # fmt: skip
        with_votes(items, votes, column)
    assert with_votes(items, votes, column, max_unknown_share=0.5)["annotations"][:] == [[0], [], [0]]  # fmt: skip


def test_paths_may_be_named_by_another_column(tmp_path):
    """A table of files usually also has a column of short names."""
    write_pictures(tmp_path, number=2)
    pictures, _ = read_folder(str(tmp_path))
    pictures = pictures.add_column("id", ["x", "y"])
    assert with_names(pictures, votes_on("y", "x"), None)[1] == "id"
    assert with_names(pictures, votes_on("y", "x"), "id")[1] == "id"
    by_file, column = with_names(pictures, votes_on("p01", "p00"), None)
    assert by_file[column][:] == ["p00", "p01"]


@pytest.mark.parametrize(
    ("gold", "classes", "expected"),
    [
        (["yes", None, "no"], ["no", "yes"], [1, None, 0]),
        ([" yes ", "", "NA"], ["no", "yes"], [1, None, None]),
        ([1, None, 0], ["no", "yes"], [1, None, 0]),
        ([2, 1, None], ["1", "2"], [1, 0, None]),
    ],
)
def test_gold_labels_of_a_file_are_names_or_numbers(gold, classes, expected):
    """A file has no `ClassLabel`. Gold labels read wrongly would measure something else."""
    votes = table(item=["a", "b"], annotator=["ann", "ann"], annotation=classes)
    train = with_votes(table(name=["a", "b", "c"], label=gold), votes, "name")
    assert train.features["annotations"].feature.names == classes
    assert align_gold(train, classes)["label"][:] == expected
    test = with_gold(table(name=["a", "b", "c"], label=gold), classes)
    assert test["label"][:] == expected


def test_gold_labels_may_name_a_class_that_nobody_votes_for():
    """Without a class that the crowd never used, its items would count as something else."""
    items = table(name=["a", "b"], label=["maybe", "no"])
    votes = table(item=["a", "b"], annotator=["ann", "ann"], annotation=["no", "maybe"])
    wider = table(name=["a", "b"], label=["maybe", "never"])
    assert with_votes(items, votes, "name").features["label"].names == ["maybe", "no"]
    both = table(name=["a", "b", "c"], label=["maybe", "never", "no"])
    assert with_votes(both, votes, "name").features["annotations"].feature.names == ["maybe", "never", "no"]  # fmt: skip
    assert "label" not in with_votes(wider, votes, "name").column_names


def test_numbers_that_stand_for_no_class_are_no_gold_labels(caplog):
    """An error at the end of a training would cost all of it."""
    items, votes = table(name=["a", "b"], label=[0, 7]), votes_on("a", "b")
    with caplog.at_level(logging.WARNING):
        assert "label" not in with_votes(items, votes, "name").column_names
    assert "numbers that stand for no class, such as 7" in caplog.text
    with pytest.raises(ValueError, match="or their numbers from 0, got 7"):
        with_gold(items, ["no", "yes"])
    with pytest.raises(ValueError, match="or their numbers from 0, got 0"):
        with_gold(items, ["1", "7"])


def test_test_items_without_gold_labels_are_refused():
    """Nothing could be measured, and nobody would see why."""
    for items, got in (
        (table(name=["a"]), "none"),
        (table(name=["a"], label=[None]), "none"),
        (table(name=["a"], label=[""]), "none"),
        (table(name=["a"], label=["maybe"]), "maybe"),
    ):
        with pytest.raises(
            ValueError, match=re.escape(f"must have gold labels of the classes no, yes, got {got}:")
        ):
            with_gold(items, ["no", "yes"])
