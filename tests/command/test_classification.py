"""One's own items and votes: the classifier, and whole runs."""

import csv
import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image as Picture
from torch import nn
from transformers import AutoModel, ViTImageProcessor, pipeline

from hf_maxmig.cli import main
from hf_maxmig.command import classification as recipe
from tests.children import needs_fork, printed_by
from tests.written_data import COLOURS, write_pictures, write_votes
from tests.written_items import WORDS, truth_of, world


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
    votes = dict(enumerate(["blue", "green", "red"]))
    classifier, _ = recipe.whole_classifier(str(place), votes)
    assert classifier.config.id2label == own
    torch.testing.assert_close(classifier.classifier[-1].weight, backbone.classifier[-1].weight)
    with caplog.at_level("WARNING"):
        other, _ = recipe.whole_classifier(str(place), dict(enumerate(["cat", "dog", "red"])))
    assert "its output layer starts anew" in caplog.text
    assert other.config.id2label == {0: "cat", 1: "dog", 2: "red"}
    assert not torch.equal(other.classifier[-1].weight, backbone.classifier[-1].weight)


def test_a_missing_column_is_named(tmp_path):
    """A misspelt column would fail deep inside."""
    rows = write_pictures(tmp_path / "photos", number=3)
    votes = write_votes(tmp_path / "votes.csv", rows)
    asked = recipe.DataArguments(
        votes=str(votes),
        train_dir=str(tmp_path / "photos"),
        item_column="id",
        votes_annotator="who",
    )
    with pytest.raises(ValueError, match="must have a column 'id', got image"):
        recipe.voted_items(asked)


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


# Short, and without the searches that come before a training: each modality takes another way to the same trainer.
BRIEF = [
    "--num_train_epochs", "12", "--learning_rate", "1e-2", "--per_device_train_batch_size", "16", "--init", "vote_share",
    "--search_rate", "False", "--search_strength", "False", "--use_cpu", "--report_to", "none", "--disable_tqdm", "True",
]  # fmt: skip


def typed(*words):
    main([str(word) for word in words])


def table_of(file):
    with file.open(newline="", encoding="utf-8") as lines:
        return [*csv.DictReader(lines)]


@pytest.mark.slow
@pytest.mark.parametrize("modality", ["text", "audio", "table"])
def test_each_modality_goes_from_files_to_a_pipeline(modality, tmp_path, caplog):
    """The path of a new user: two files in; model, results, labels and report out; then raw items to the model."""
    flags, items, votes = world(modality, tmp_path)
    out = tmp_path / "out"
    typed("train", *flags, *votes, "--output_dir", out, *BRIEF)
    told = {"text": "texts (column 'text')", "audio": "sounds (column 'audio')", "table": "rows of a table"}  # fmt: skip
    assert f"The items are {told[modality]}" in caplog.text
    results = json.loads((out / "all_results.json").read_text())
    assert results["eval_accuracy"] > 0.9
    assert (out / "_report" / "report.html").stat().st_size > 10_000
    verdicts = {row["annotator"]: row["verdict"] for row in table_of(out / "_report" / "annotators.csv")}  # fmt: skip
    assert verdicts["always_low"] == "always says one class"
    labels = table_of(out / "_report" / "relabelled.csv")
    assert len(labels) == 90
    # The saved model takes items as they are, in a pipeline and for the other verbs.
    ask = pipeline("crowd-forecast", model=str(out), device="cpu")
    for i in range(3):
        item = {
            "text": lambda i=i: {"text": f"the film was {WORDS[truth_of(i)][0]}"},
            "audio": lambda i=i: {"audio": str(items / f"s{i:03}.wav")},
            "table": lambda i=i: {k: v or None for k, v in table_of(items)[i].items()},
        }[modality]()
        if modality == "table":
            item = {**item, "size": float(item["size"]), "noise": float(item["noise"])}
        answer = ask({**item, "votes": {"ann": truth_of(i)}})
        assert answer["forecast"][0]["label"] == truth_of(i)
        assert answer["heard"] == [("ann", truth_of(i))]
    typed("relabel", out, items, *votes, "--output_dir", tmp_path / "again", "--use_cpu")
    again = table_of(tmp_path / "again" / "relabelled.csv")
    name = "file_name" if modality == "audio" else "id"
    forecasts = {row[name]: row["forecast"] for row in labels}
    assert {row[name]: row["forecast"] for row in again} == forecasts
