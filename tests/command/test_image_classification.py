"""One's own pictures and votes: how the two find each other, and a whole run."""

import csv
import json
import logging

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as Picture
from torch import nn
from transformers import AutoModel, ViTImageProcessor, pipeline

from hf_maxmig import read_annotations
from hf_maxmig.command import image_classification as recipe
from tests.children import needs_fork, printed_by
from tests.written_data import COLOURS, write_pictures, write_votes


def data_arguments(**fields):
    return recipe.DataArguments(**{"votes": "votes.csv", **fields})


@pytest.mark.parametrize(
    ("called", "way"),
    [
        (lambda name: name, "path"),
        (lambda name: name.split("/")[-1], "file name"),
        (lambda name: name.split("/")[-1].split(".")[0], "file name without its ending"),
    ],
)
def test_pictures_are_called_as_the_votes_call_them(called, way, tmp_path, caplog):
    """Votes name whole paths, file names or stems; what was chosen must be said."""
    rows = write_pictures(tmp_path / "photos", by_class=True)
    rows = [(called(item), who, said) for item, who, said in rows]
    votes = read_annotations(write_votes(tmp_path / "votes.csv", rows), annotator="who")
    arguments = data_arguments(train_dir=str(tmp_path / "photos"))
    with caplog.at_level(logging.WARNING):
        train = recipe.with_votes(recipe.pictures(arguments), votes, arguments)
    assert f"named by their {way}," in caplog.text
    assert "30 of the 30 items" in caplog.text
    said = {(item, who): label for item, who, label in rows}
    who, what = (train.features[name].feature.names for name in ("annotators", "annotations"))
    assert sum(map(len, train["annotators"])) == len(rows)
    for row in train.remove_columns("image"):
        for m, r in zip(row["annotators"], row["annotations"], strict=True):
            assert said[row["file_name"], who[m]] == what[r]


def test_file_names_that_occur_twice_name_nothing(tmp_path):
    """Two folders with a photo 1.png each: joined by the last part, votes would go to both."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Picture.new("RGB", (4, 4)).save(tmp_path / folder / "1.png")
    paths = [str(tmp_path / folder / "1.png") for folder in ("a", "b")]
    images = Dataset.from_dict({"image": paths}).cast_column("image", Image())
    votes = Dataset.from_dict({"item": ["1.png"], "annotator": ["ann"], "annotation": ["cat"]})
    named, column = recipe.named_items(images, votes, "image")
    assert named[column][:] == ["a/1.png", "b/1.png"]


def test_pictures_without_file_names_need_an_item_column():
    """Pictures of a Hub data set are bytes: votes cannot refer to a file."""
    images = Dataset.from_dict({"image": [Picture.new("RGB", (4, 4))]}, Features(image=Image()))
    votes = Dataset.from_dict({"item": ["1"], "annotator": ["ann"], "annotation": ["cat"]})
    with pytest.raises(ValueError, match="name the column with `--item_column`"):
        recipe.named_items(images, votes, "image")


def test_gold_labels_give_the_order_of_classes():
    """Class 0 of the votes must be class 0 of the gold labels, or every accuracy is wrong."""
    features = Features(name=Value("string"), label=ClassLabel(names=["red", "green", "blue"]))
    images = Dataset.from_dict({"name": ["x", "y"], "label": [1, 2]}, features=features)
    votes = Dataset.from_dict(
        {"item": ["x", "y"], "annotator": ["ann", "ann"], "annotation": ["green", "blue"]}
    )
    train = recipe.with_votes(images, votes, data_arguments(item_column="name"))
    assert train.features["annotations"].feature.names == ["red", "green", "blue"]
    assert train["annotations"][:] == [[1], [2]]
    assert train["label"][:] == [1, 2]


def test_folders_that_are_no_classes_are_no_gold_labels(caplog):
    """Folders named after days would be taken for the truth."""
    features = Features(name=Value("string"), label=ClassLabel(names=["monday", "tuesday"]))
    images = Dataset.from_dict({"name": ["x", "y"], "label": [1, 0]}, features=features)
    votes = Dataset.from_dict({"item": ["x"], "annotator": ["ann"], "annotation": ["green"]})
    with caplog.at_level(logging.WARNING):
        train = recipe.with_votes(images, votes, data_arguments(item_column="name"))
    assert "label" not in train.column_names
    assert "not a gold label of these classes" in caplog.text


def test_gold_labels_of_the_test_are_numbered_as_the_votes():
    """A test folder lists its classes in another order, or lacks some."""
    features = Features(name=Value("string"), label=ClassLabel(names=["red", "blue"]))
    columns = {"name": ["x", "y", "z"], "label": [0, 1, None]}
    images = Dataset.from_dict(columns, features=features)
    assert recipe.with_gold(images, ["blue", "green", "red"])["label"][:] == [2, 0, None]
    with pytest.raises(ValueError, match=r"gold labels of the classes cat, dog, got red, blue"):
        recipe.with_gold(images, ["cat", "dog"])


@pytest.mark.parametrize(
    ("name", "hub"),
    [
        ("resnet18", "timm/resnet18.a1_in1k"),
        ("resnet18.tv_in1k", "timm/resnet18.tv_in1k"),
        ("google/vit-base-patch16-224", "google/vit-base-patch16-224"),
        ("no_such_model", "no_such_model"),
    ],
)
def test_timm_names_are_found_on_the_hub(name, hub):
    """Timm's own names lack the organisation and often the weights."""
    assert recipe.hub_name(name) == hub


def test_classifier_that_knows_the_classes_keeps_what_it_knows(backbone, tmp_path, caplog):
    """Given the votes' order of names, its outputs were called what they are not."""
    place, own = tmp_path / "known", {0: "red", 1: "blue", 2: "green"}
    backbone.config.id2label, backbone.config.label2id = own, {name: c for c, name in own.items()}
    backbone.classifier[-1] = nn.Linear(backbone.classifier[-1].in_features, 3)
    backbone.save_pretrained(place)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(place)
    arguments = recipe.ModelArguments(str(place))
    votes = dict(enumerate(["blue", "green", "red"]))
    classifier, _ = recipe.whole_classifier(arguments, votes)
    assert classifier.config.id2label == own
    torch.testing.assert_close(classifier.classifier[-1].weight, backbone.classifier[-1].weight)
    with caplog.at_level("WARNING"):
        other, _ = recipe.whole_classifier(arguments, dict(enumerate(["cat", "dog", "red"])))
    assert "its output layer starts anew" in caplog.text
    assert other.config.id2label == {0: "cat", 1: "dog", 2: "red"}
    assert not torch.equal(other.classifier[-1].weight, backbone.classifier[-1].weight)


def test_pictures_must_be_given():
    """`load_dataset(None)` fails without saying which flag is missing."""
    with pytest.raises(ValueError, match="`--train_dir` or `--dataset_name`, got neither"):
        recipe.pictures(data_arguments())


def test_a_missing_column_is_named(tmp_path):
    """A misspelt column would fail deep inside."""
    write_pictures(tmp_path / "photos", number=3)
    arguments = data_arguments(train_dir=str(tmp_path / "photos"), item_column="id")
    with pytest.raises(ValueError, match="must have a column 'id', got image"):
        recipe.pictures(arguments)


@pytest.mark.slow
@needs_fork
def test_a_folder_and_a_file_of_votes_become_all_that_is_promised(root, tmp_path):
    """The path of a new user: pair, card, results, page, annotators, labels; no gold label needed."""
    rows = write_pictures(tmp_path / "photos", number=120)
    write_pictures(tmp_path / "test", number=60, by_class=True)
    votes = write_votes(tmp_path / "votes.csv", rows)
    printed = printed_by(
        tmp_path / "log", root / "recipes" / "image_classification.py", "--train_dir", tmp_path / "photos", "--test_dir",
        tmp_path / "test", "--votes", votes, "--model_name_or_path", "maxmig_four_layer_cnn",
        "--image_size", 16, "--num_train_epochs", 20, "--output_dir", tmp_path / "out", "--use_cpu",
        "--votes_annotator", "who",
        "--report_to", "none",
    )  # fmt: skip
    out = tmp_path / "out"
    results = json.loads((out / "all_results.json").read_text())
    assert results["eval_accuracy"] > 0.9
    assert "eval_forecast_accuracy" not in results  # nobody knows the truth of the training items
    told = Dataset.from_parquet(
        str(out / "_report" / "relabelled.parquet"), cache_dir=str(tmp_path / "cache")
    )
    assert len(told) == 120
    assert told["image"][0].size == (12, 12)
    truth = [list(COLOURS)[int(name[1:-4]) % 3] for name in told["file_name"]]
    assert np.mean([a == b for a, b in zip(told["forecast"], truth, strict=True)]) > 0.95
    with (out / "_report" / "annotators.csv").open(newline="", encoding="utf-8") as file:
        verdicts = {row["annotator"]: row["verdict"] for row in csv.DictReader(file)}
    assert verdicts["red_only"] == "always says one class"
    assert {verdicts[name] for name in ("ann", "bob", "cyd")} <= {"expert", "ordinary"}
    page = (out / "_report" / "report.html").read_text(encoding="utf-8")
    assert "red_only" in page
    assert "data:image/jpeg;base64," in page
    assert "majority vote" not in printed
    assert "red_only" in printed
    assert AutoModel.from_pretrained(out).config.class_names == ["blue", "green", "red"]
    picture = Picture.new("RGB", (12, 12), COLOURS["green"])
    assert pipeline("image-classification", model=str(out))(picture)[0]["label"] == "green"
