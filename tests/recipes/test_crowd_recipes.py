"""The recipes of real crowds on sentences and songs, from published files to a model that takes raw items."""

import csv

import numpy as np
import pytest
import torch
from transformers import AutoModel, pipeline

from hf_maxmig import TableClassifier, TextHeadClassifier
from tests.modalities import TEXT, item_of_text

RIGHT = (0.9, 0.8, 0.7, 0.6)  # of four workers; the last does not vote on every item
GENRES = ["blues", "jazz", "rock"]


def votes_on(labels, num_classes, rng):
    """Draw votes, (N, M), -1 for none: worker m is right with probability `RIGHT[m]`."""
    wrong = (labels[:, None] + rng.integers(1, num_classes, (len(labels), 4))) % num_classes
    votes = np.where(rng.random(wrong.shape) < RIGHT, labels[:, None], wrong)
    votes[::2, 3] = -1
    return votes


@pytest.fixture
def sentences(tmp_path):
    """Write sentences one per line, gold labels, the table of votes, and a tiny encoder."""
    rng, folder = np.random.default_rng(0), tmp_path / "sentiment"
    folder.mkdir()
    for split, number in (("train", 90), ("test", 30)):
        labels = rng.integers(2, size=number)
        lines = "".join(f"{item_of_text(label, rng)} \n" for label in labels)
        (folder / f"Sentiment_text_{split}.txt").write_text(lines, encoding="latin-1")
        np.savetxt(folder / f"Sentiment_Z_{split}.txt", labels, fmt="%d")
        if split == "train":
            np.savetxt(folder / "answers.txt", votes_on(labels, 2, rng), fmt="%d")
    torch.manual_seed(0)
    encoder = TEXT.encoder()
    encoder.save_pretrained(tmp_path / "encoder")
    TEXT.processor().save_pretrained(tmp_path / "encoder")
    return folder, tmp_path / "encoder"


@pytest.fixture
def songs(tmp_path):
    """Write tables of songs with features and genre, and a table with one vote per row."""
    rng, folder = np.random.default_rng(0), tmp_path / "music"
    folder.mkdir()
    for split, number in (("gold", 90), ("test", 30)):
        labels = rng.integers(3, size=number)
        values = np.eye(3)[labels] * 40 + rng.normal(0, 1, (number, 3))
        with (folder / f"music_genre_{split}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "feature0", "feature1", "feature2", "class"])
            for i, (row, label) in enumerate(zip(values, labels, strict=True)):
                writer.writerow([f"{split}{i}.mp3", *row, GENRES[label]])
        if split == "gold":
            with (folder / "mturk_answers.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(["worker", "song", "true_label", "label"])
                for (i, m), vote in np.ndenumerate(votes_on(labels, 3, rng)):
                    if vote >= 0:
                        writer.writerow([m, f"gold{i}.mp3", GENRES[labels[i]], GENRES[vote]])
    return folder


@pytest.mark.slow
def test_sentences_become_a_model_that_takes_a_sentence(parsed, sentences, tmp_path):
    folder, encoder = sentences
    page, *given = parsed(
        "sentiment", "--data_dir", folder, "--backbone", encoder, "--num_train_epochs", 20,
        "--learning_rate", 0.01,
    )  # fmt: skip
    metrics = page.main(*given)
    assert metrics["eval_accuracy"] > 0.8
    model = AutoModel.from_pretrained(tmp_path / "out")
    assert isinstance(model.classifier, TextHeadClassifier)
    assert model.config.class_names == ["negative", "positive"]
    ask = pipeline("crowd-forecast", model=str(tmp_path / "out"))
    answer = ask({"text": "dog barks bone", "votes": {"0": "positive"}})
    assert answer["forecast"][0]["label"] == "positive"
    assert answer["heard"] == [("0", "positive")]


def test_the_whole_encoder_learns_from_tokens(parsed, sentences):
    folder, encoder = sentences
    flags = ("--data_dir", folder, "--backbone", encoder, "--fine_tune", "True")
    page, *given = parsed("sentiment", *flags)
    made = page.recipe(*given)
    assert {"input_ids", "attention_mask", "text"} <= {*made.train.column_names}
    assert all(parameter.requires_grad for parameter in made.classifier.parameters())
    assert made.processor is not None


def test_votes_on_sentences_are_those_of_the_table(parsed, sentences):
    """Answers read as another worker's, or a gap read as a vote, would give another crowd."""
    folder, _ = sentences
    page, *_ = parsed("sentiment", "--data_dir", folder)
    data = page.sentences(folder)
    table = np.loadtxt(folder / "answers.txt", dtype=int)
    names = data["train"].features["annotators"].feature.names
    for row, votes in zip(data["train"], table, strict=True):
        said = {int(names[m]): c for m, c in zip(row["annotators"], row["annotations"], strict=True)}  # fmt: skip
        assert said == {m: vote for m, vote in enumerate(votes) if vote >= 0}
    assert data["test"]["label"][:] == np.loadtxt(folder / "Sentiment_Z_test.txt").tolist()


@pytest.mark.slow
def test_songs_become_a_model_that_takes_a_row(parsed, songs, tmp_path):
    page, *given = parsed("music", "--data_dir", songs, "--num_train_epochs", 20)
    metrics = page.main(*given)
    assert metrics["eval_accuracy"] > 0.8
    model = AutoModel.from_pretrained(tmp_path / "out")
    assert isinstance(model.classifier, TableClassifier)
    assert model.config.class_names == GENRES
    ask = pipeline("crowd-forecast", model=str(tmp_path / "out"))
    song = {"feature0": 0.0, "feature1": 40.0, "feature2": 0.0, "votes": {"0": "jazz"}}
    assert ask(song)["forecast"][0]["label"] == "jazz"


def test_real_songs_and_sentences_are_read_whole(load, shared_data):
    """The numbers of items, workers and votes must be the published ones."""
    music = load("music").songs(shared_data / "music")
    assert [len(music[split]) for split in ("train", "test")] == [700, 300]
    assert sum(map(len, music["train"]["annotations"])) == 2945
    assert len(music["train"].features["annotators"].feature.names) == 44
    sentiment = load("sentiment").sentences(shared_data / "sentiment")
    assert [len(sentiment[split]) for split in ("train", "test")] == [4999, 3999]
    assert sum(map(len, sentiment["train"]["annotations"])) == 27746
    assert len(sentiment["train"].features["annotators"].feature.names) == 203
