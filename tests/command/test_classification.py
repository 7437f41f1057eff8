"""A user's own items and votes: choosing the classifier, and whole runs."""

import csv
import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image as Picture
from torch import nn
from transformers import AutoModel, AutoTokenizer, ViTImageProcessor, pipeline

from hf_maxmig.cli import main
from hf_maxmig.command import classification as recipe
from tests.children import needs_fork, printed_by
from tests.written_data import COLOURS, write_pictures, write_votes
from tests.written_items import (
    truth_of,
    voted,
    write_rows,
    write_sound_model,
    write_text_model,
    write_texts,
)


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
    """Its outputs used to be given the votes' order of names, which called them by wrong ones."""
    place, own = tmp_path / "known", {0: "red", 1: "blue", 2: "green"}
    backbone.config.id2label, backbone.config.label2id = own, {name: c for c, name in own.items()}
    backbone.classifier[-1] = nn.Linear(backbone.classifier[-1].in_features, 3)
    backbone.save_pretrained(place)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(place)
    votes = dict(enumerate(["blue", "green", "red"]))
    classifier = recipe.whole_classifier(str(place), votes, "image")
    assert classifier.config.id2label == own
    torch.testing.assert_close(classifier.classifier[-1].weight, backbone.classifier[-1].weight)
    with caplog.at_level("WARNING"):
        others = dict(enumerate(["cat", "dog", "red"]))
        other = recipe.whole_classifier(str(place), others, "image")
    assert "its output layer starts anew" in caplog.text
    assert other.config.id2label == {0: "cat", 1: "dog", 2: "red"}
    assert not torch.equal(other.classifier[-1].weight, backbone.classifier[-1].weight)


@pytest.mark.parametrize(
    ("modality", "whole", "given", "epochs", "rate"),
    [
        ("image", True, {}, 15, 1e-3),
        ("text", True, {}, 3, 5e-5),
        ("audio", True, {"num_train_epochs": 7}, 7, 5e-5),
        ("text", False, {}, None, 1e-3),
        ("table", False, {"learning_rate": 0.01}, None, 0.01),
        ("image", True, {"preset": "paper_labelme"}, 200, 1e-4),
    ],
)
def test_epochs_and_rate_fit_what_is_trained(tmp_path, modality, whole, given, epochs, rate):
    """A head on few items needs more epochs than a whole network, and the user's own setting is kept."""
    training = recipe.ClassificationTrainingArguments(str(tmp_path), **given)
    recipe.settle(training, modality, whole)
    assert (training.num_train_epochs, training.learning_rate) == (epochs, rate)


def test_a_missing_column_is_named(tmp_path):
    """A misspelt column would otherwise fail deep inside."""
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
    """A new user gets everything promised: model, card, results, page, annotators and labels, without gold labels."""
    rows = write_pictures(tmp_path / "photos", number=120)
    write_pictures(tmp_path / "test", number=60, by_class=True)
    votes = write_votes(tmp_path / "votes.csv", rows)
    printed = printed_by(
        tmp_path / "log", root / "recipes" / "classification.py", "--train_dir", tmp_path / "photos", "--test_dir",
        tmp_path / "test", "--votes", votes, "--model_name_or_path", "maxmig_four_layer_cnn",
        "--image_size", 16, "--num_train_epochs", 20, "--output_dir", tmp_path / "out", "--use_cpu",
        "--votes_annotator", "who",
        "--report_to", "none",
    )  # fmt: skip
    out = tmp_path / "out"
    results = json.loads((out / "all_results.json").read_text())
    assert results["eval_accuracy"] > 0.9
    assert "eval_forecast_accuracy" not in results  # they have no gold labels
    relabelled = Dataset.from_parquet(
        str(out / "_report" / "relabelled.parquet"), cache_dir=str(tmp_path / "cache")
    )
    assert len(relabelled) == 120
    assert relabelled["image"][0].size == (12, 12)
    truth = [list(COLOURS)[int(name[1:-4]) % 3] for name in relabelled["file_name"]]
    assert np.mean([a == b for a, b in zip(relabelled["forecast"], truth, strict=True)]) > 0.95
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


def typed(*words):
    main([str(word) for word in words])


@pytest.fixture
def refused(tmp_path, capsys):
    """Return the line that `maxmig train` ends with, on a small table of texts with votes and changed flags."""
    texts = write_texts(tmp_path, 9)
    votes = write_rows(
        tmp_path / "votes.csv", ("item", "who", "said"), voted([f"t{i}" for i in range(9)], map(truth_of, range(9)))
    )  # fmt: skip
    usual = {"train_file": texts, "votes": votes, "votes_annotator": "who", "votes_annotation": "said",
             "model_name_or_path": write_text_model(tmp_path / "model"), "output_dir": tmp_path / "out"}  # fmt: skip

    def by(**changes):
        flags = [f"--{k}={v}" for k, v in {**usual, **changes}.items() if v is not None]
        with pytest.raises(SystemExit) as left:
            typed("train", *flags, "--use_cpu")
        assert left.value.code == 2
        assert not (tmp_path / "out").exists()
        return capsys.readouterr().err.splitlines()[-1]

    return by


def test_items_that_do_not_fit_are_refused_in_a_line(refused, tmp_path):
    """The refusal comes before training and names the wrong file, column or flag."""

    def table(name, *rows):
        return write_rows(tmp_path / f"{name}.csv", rows[0], rows[1:])

    sound_model = write_sound_model(tmp_path / "sounds")
    ids = [f"t{i}" for i in range(9)]
    numbers = [("id", "size"), *((name, i) for i, name in enumerate(ids))]
    mixed = [("id", "size"), *((name, "x" if i == 4 else i) for i, name in enumerate(ids))]
    twice = [("id", "text"), *((name, "a good film") for name in [*ids[:8], "t0"])]
    for changes, message in (
        ({"train_file": table("one", ("id",), *((name,) for name in ids))}, "it must be clear what the items are, got the columns id (string)"),
        ({"train_file": table("twice", *twice)}, "column 'id' must identify the items, got 't0' more than once"),
        ({"train_file": table("other", ("id", "text"), ("x", "a good film"))}, "one column must hold the items' names in the votes, such as 't0', got none among id, text"),
        ({"train_file": table("gaps", ("id", "text"), *((name, "film" if name != "t3" else " ") for name in ids))}, "column 'text' must hold a text in every row, got none at item 3"),
        ({"train_file": table("mixed", *mixed), "task": "table", "model_name_or_path": None}, "column 'size' must hold values of one type, got 'x' at item 4"),
        ({"train_file": table("numbers", *numbers), "test_file": table("t1", ("id", "label"), ("a", "low")), "model_name_or_path": None}, "a table must have the column 'size'"),
        ({"train_file": table("numbers", *numbers), "test_file": table("t2", ("size", "label"), ("x", "low")), "model_name_or_path": None}, "column 'size' must hold numbers, as in training, got 'x' at item 0"),
        ({"train_file": table("numbers", *numbers)}, "`--model_name_or_path` must be maxmig_table for rows of a table"),
        ({"model_name_or_path": "maxmig_table"}, "must be a model that reads texts, got maxmig_table"),
        ({"model_name_or_path": None}, "`--model_name_or_path` must be given for texts, got none"),
        ({"model_name_or_path": sound_model}, "`--model_name_or_path` must "),
        ({"test_file": table("t3", ("id", "text"), ("a", "good"))}, "the test items must have gold labels of the classes high, low, mid, got none"),
        ({"test_file": table("t4", ("text", "label"), ("good", "best"))}, "got best"),
        ({"test_file": table("t5", ("text", "label"), ("good", 7), ("bad", 0))}, "or their numbers from 0, got 7"),
        ({"test_file": table("t6", ("said", "label"), ("good", "low"))}, "the items must have a column 'text', got said, label"),
        ({"task": "audio"}, "must have one column of sounds"),
        ({"text_column": "nothing"}, "must have a column 'nothing', got id, text, label"),
    ):  # fmt: skip
        assert message in refused(**changes), changes


@pytest.mark.slow
def test_pairs_of_texts_go_from_files_to_answers(tmp_path):
    """If the second text got lost on the way, the classifier would only see half of each pair."""
    texts = write_texts(tmp_path, 60)
    with texts.open(newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    pairs = [(r["id"], "film film", r["text"], f"remark {r['id']}") for r in rows]
    items = write_rows(tmp_path / "pairs.csv", ("id", "first", "second", "remark"), pairs)
    ids, truths = [r["id"] for r in rows], [r["label"] for r in rows]
    votes = write_rows(
        tmp_path / "votes.csv", ("item", "who", "said", "sure"), [(*row, 0.9) for row in voted(ids, truths)]
    )  # fmt: skip
    out = tmp_path / "out"
    typed(
        "train", "--train_file", items, "--votes", votes, "--votes_item", "item", "--votes_annotator", "who",
        "--votes_annotation", "said", "--votes_weight", "sure", "--text_column", "first", "--text_pair_column", "second",
        "--model_name_or_path", write_text_model(tmp_path / "model"), "--freeze_backbone", "--show_columns", "id", "second",
        "--output_dir", out, "--use_cpu", "--report_to", "none",
    )  # fmt: skip
    labels = Dataset.from_parquet(
        str(out / "_report" / "relabelled.parquet"), cache_dir=str(tmp_path / "cache")
    )
    said = dict(zip(labels["id"], labels["forecast"], strict=True))
    assert np.mean([said[name] == truth for name, truth in zip(ids, truths, strict=True)]) > 0.9
    page = (out / "_report" / "report.html").read_text(encoding="utf-8")
    assert any(row[2] in page for row in pairs)
    assert "film film" not in page
    assert "remark t" not in page
    ask, tokens = pipeline("crowd-forecast", model=str(out)), AutoTokenizer.from_pretrained(out)
    model = AutoModel.from_pretrained(out).eval()
    for _, first, second, _ in pairs[:3]:
        answer = ask({"text": first, "text_pair": second}, top_k=3)["forecast"]
        with torch.no_grad():
            h = model(**tokens(first, second, return_tensors="pt")).logits.softmax(-1)[0]
        expected = {model.config.id2label[c]: float(p) for c, p in enumerate(h)}
        assert {a["label"]: a["score"] for a in answer} == pytest.approx(expected, abs=1e-5)
