"""The verbs that start from a saved model: report, relabel, update and card."""

import csv
import json
import re

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict, Features, List, Value, load_dataset
from huggingface_hub import HfApi
from transformers import AutoImageProcessor, ViTImageProcessor

from hf_maxmig import (
    FourLayerCNN,
    FourLayerCNNConfig,
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    add_annotations,
    crowd_features,
    peer,
    read_annotations,
)
from hf_maxmig.cli import main
from hf_maxmig.command.saved import SavedArguments, items, saved_model
from tests.written_data import COLOURS, write_pictures, write_votes

CLASSES = [*COLOURS, "grey"]  # with a class that nobody votes for, and not in alphabetical order
PEOPLE = [
    "red_only",
    "bob",
    "ann",
    "eve",
]  # in another order than in the votes, one of whose annotators is unknown


def classifier():
    torch.manual_seed(0)
    names = dict(enumerate(CLASSES))
    return FourLayerCNN(FourLayerCNNConfig(image_size=16, id2label=names))


def save(model, place):
    model.save_pretrained(place)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(place)
    return place


@pytest.fixture
def model(tmp_path):
    """An untrained saved model with several annotators, some of whom vote here."""
    return save(MaxMIGModel.from_classifier(classifier(), annotators=PEOPLE), tmp_path / "model")


@pytest.fixture
def photos(tmp_path):
    """A folder of pictures and a file of votes, as flags."""
    rows = write_pictures(tmp_path / "photos", number=12, by_class=True)
    votes = write_votes(tmp_path / "votes.csv", rows)
    return [tmp_path / "photos", "--votes", votes, "--votes_annotator", "who"]


def joined(photos):
    """The pictures with their votes, as a user keeps them who has joined them before."""
    pictures = load_dataset("imagefolder", data_files={"train": f"{photos[0]}/**"}, split="train")
    names = [f"{name}/p{i:02}.png" for name in sorted(COLOURS) for i in range(12) if [*COLOURS][i % 3] == name]  # fmt: skip
    votes = read_annotations(photos[2], annotator="who")
    return add_annotations(
        pictures.add_column("file_name", names), votes, "file_name", classes=CLASSES
    )


def typed(*words):
    main([str(word) for word in words])


def written(file):
    with file.open(newline="", encoding="utf-8") as table:
        return [*csv.DictReader(table)]


def test_relabel_numbers_the_votes_as_the_model_does(model, photos, tmp_path, capsys, caplog):
    """Numbered alphabetically, votes for blue would count as red, and ann's votes as those of red_only."""
    typed("relabel", model, *photos, "--output_dir", tmp_path / "out", "--use_cpu")
    rows = written(tmp_path / "out" / "relabelled.csv")
    assert len(rows) == 12
    assert {row["forecast"] for row in rows} <= {*CLASSES}
    votes = read_annotations(photos[2], annotator="who")
    said = {(v["item"], v["annotator"]): v["annotation"] for v in votes}
    relabelled = Dataset.from_parquet(
        str(tmp_path / "out" / "relabelled.parquet"), cache_dir=str(tmp_path / "cache")
    )
    for row in relabelled.remove_columns("image"):
        who_said = dict(zip(row["annotators"], row["annotations"], strict=True))
        for name in ("red_only", "bob", "ann"):
            assert who_said[name] == said[row["file_name"], name]
    assert "'cyd'" in caplog.text  # unknown to the model
    assert "of 12 items have a suspect label" in capsys.readouterr().out


def test_relabel_needs_no_votes(model, photos, tmp_path, capsys):
    """A trained model can label pictures that the crowd has not seen."""
    typed("relabel", model, photos[0], "--output_dir", tmp_path / "out", "--use_cpu")
    assert len(written(tmp_path / "out" / "relabelled.csv")) == 12
    assert capsys.readouterr().out.startswith("0 of 12 items")


@pytest.mark.parametrize(
    "form",
    [
        pytest.param("folder", marks=pytest.mark.slow),
        pytest.param("splits", marks=pytest.mark.slow),
        "parquet",
    ],
)
def test_saved_data_sets_with_crowd_columns_need_no_file_of_votes(form, model, photos, tmp_path):
    """A user who has joined votes and pictures need not keep the file of votes."""
    data = joined(photos)
    place, flags = tmp_path / "data", []
    if form == "folder":
        data.save_to_disk(place)
    elif form == "splits":
        DatasetDict(first=data.select(range(3)), rest=data.select(range(3, 12))).save_to_disk(place)
        flags = ["--split", "rest"]
    else:
        place = tmp_path / "data.parquet"
        data.to_parquet(place)
    typed("report", model, place, *flags, "--output_dir", tmp_path / "out", "--use_cpu")
    assert len(written(tmp_path / "out" / "relabelled.csv")) == (9 if form == "splits" else 12)
    assert {row["annotator"] for row in written(tmp_path / "out" / "annotators.csv")} == {*PEOPLE}
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<title>" in page
    assert "red_only" in page


def test_report_shows_what_is_known_of_the_training_and_of_gold_labels(model, photos, tmp_path):
    """The page of a saved model used to lack the training curve, although its file was there."""
    history = [{"gain": 0.25, "epoch": 1.0}, {"gain": 0.5, "epoch": 2.0}]
    (model / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    flags = ["--use_cpu", "--output_dir"]
    typed("report", model, *photos, *flags, tmp_path / "known")
    (model / "trainer_state.json").unlink()
    rows = write_pictures(tmp_path / "unsorted", number=12)  # without a folder per class
    votes = write_votes(tmp_path / "votes.csv", rows)
    words = ["--votes", votes, "--votes_annotator", "who", *flags, tmp_path / "unknown"]
    typed("report", model, tmp_path / "unsorted", *words)
    known, unknown = (
        (tmp_path / name / "report.html").read_text(encoding="utf-8")
        for name in ("known", "unknown")
    )
    for words in ("Accuracy by gold labels", 'id="gain"'):
        assert words in known
        assert words not in unknown
    cleaned = Dataset.from_parquet(
        str(tmp_path / "known" / "relabelled.parquet"), cache_dir=str(tmp_path / "cache")
    )
    right = np.mean(np.array(cleaned["label"][:]) == np.array(cleaned["forecast"][:]))
    row = re.search(r">forecast</th>.*?</tr>", known, re.S)[0]
    assert f">{100 * right:.1f}\u00a0%<" in row


def test_gold_labels_of_a_saved_data_set_are_found_by_their_column(model, tmp_path):
    """If only `label` were looked for, nothing would be measured, and nobody would see why."""
    data = Dataset.from_dict({"truth": ["red"], "pixel_values": [[[[0.0]]]]})
    data.save_to_disk(tmp_path / "data")
    asked = SavedArguments(
        model=str(model), data=str(tmp_path / "data"), output_dir="out", label_column="truth"
    )
    assert items(asked, saved_model(str(model))).column_names == ["label", "pixel_values"]


def test_card_says_what_is_beside_the_model(model, tmp_path, capsys):
    """The card contains the measured results and the given licence, but nobody's name."""
    results = {"results": {"eval_accuracy": 0.875}, "arguments": {"learning_rate": 0.125}}
    (model / "results.json").write_text(json.dumps(results))
    typed("card", model, "--license", "mit")
    printed = capsys.readouterr().out
    assert "license: mit" in printed
    assert "0.875" in printed
    assert "0.125" in printed
    assert "red_only" not in printed
    assert not (model / "README.md").exists()
    typed("card", model, "--license", "mit", "--output_dir", tmp_path / "out")
    assert (tmp_path / "out" / "README.md").read_text(encoding="utf-8").strip() in printed


@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
def test_model_of_the_hub_is_known_by_its_name(model, photos, ann, hub, tmp_path, capsys):
    """A user of a model on the Hub has its name, but no folder."""
    (model / "results.json").write_text(json.dumps({"results": {"eval_accuracy": 0.875}}))
    HfApi().create_repo("org/pair")
    HfApi().upload_folder(repo_id="org/pair", folder_path=model)
    typed("card", "org/pair")
    printed = capsys.readouterr().out
    assert "- name: pair" in printed
    assert 'AutoModel.from_pretrained("org/pair")' in printed  # the full name, not only `pair`
    assert "0.875" in printed
    typed("relabel", "org/pair", photos[0], "--output_dir", tmp_path / "out", "--use_cpu")
    assert len(written(tmp_path / "out" / "relabelled.csv")) == 12
    for verb, *words in (["card"], ["relabel", photos[0], "--output_dir", tmp_path / "out"]):
        with pytest.raises(SystemExit) as left:
            typed(verb, "org/none", *words)
        assert left.value.code == 2
        assert "MODEL must be a saved crowd model, got 'org/none'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
def test_data_set_of_the_hub_is_known_by_its_name(model, photos, ann, hub, tmp_path):
    """Covers pictures that are only on the Hub, with columns of votes or with a separate file of votes."""
    data = joined(photos)
    DatasetDict(first=data.select(range(3)), rest=data.select(range(3, 12))).push_to_hub(
        "org/crowd"
    )
    data.remove_columns(["annotators", "annotations"]).push_to_hub("org/pictures")
    out, flags = tmp_path / "out", ["--use_cpu", "--output_dir"]
    typed("report", model, "org/crowd", "--split", "rest", *flags, out)
    assert len(written(out / "relabelled.csv")) == 9
    assert {row["annotator"] for row in written(out / "annotators.csv")} == {*PEOPLE}
    assert "Accuracy by gold labels" in (out / "report.html").read_text(encoding="utf-8")
    votes = [*photos[1:], "--item_column", "file_name"]
    typed("relabel", model, "org/pictures", *votes, *flags, tmp_path / "cleaned")
    rows = written(tmp_path / "cleaned" / "relabelled.csv")
    assert {row["file_name"] for row in rows} == {*data["file_name"]}
    assert all(row["suspicion"] for row in rows)  # empty without votes
    assert any(path.startswith("/datasets/org/pictures") for _, path, _ in hub.requests)


@pytest.mark.slow
def test_update_writes_a_model_that_knows_everybody(model, photos, tmp_path, capsys):
    """Otherwise a new annotator's votes add nothing, and the card and the report count the old annotators."""
    results = {"results": {"eval_accuracy": 0.75, "eval_gain": 1.0}, "arguments": {"seed": 3}}
    (model / "results.json").write_text(json.dumps(results))
    folder, votes, *flags = photos[0], photos[2], *photos[3:]
    typed("update", model, votes, folder, *flags, "--output_dir", tmp_path / "out", "--use_cpu")
    out = tmp_path / "out"
    assert "1 new annotator: cyd.\nThe updated model is in" in capsys.readouterr().out
    again = saved_model(str(out))
    assert again.config.annotators == [*PEOPLE, "cyd"]
    voted = again.aggregator.weight.detach().abs().amax(dim=(1, 2)) > 0
    assert voted.tolist() == [name != "eve" for name in again.config.annotators]
    assert AutoImageProcessor.from_pretrained(out).size["height"] == 16
    rows = written(out / "_report" / "relabelled.csv")
    assert sum("cyd: " in row["votes"] for row in rows) > 0
    assert {row["annotator"] for row in written(out / "_report" / "annotators.csv")} == {
        *PEOPLE,
        "cyd",
    }
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "5 annotators" in card
    assert "cyd" not in card
    kept = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert kept == {
        **results,
        "results": {"eval_accuracy": 0.75},
    }  # the gain is that of the former model
    assert "/_*" in (out / ".gitignore").read_text(encoding="utf-8")
    # The updated model takes the same votes again; nobody is new.
    typed("update", out, votes, folder, *flags, "--output_dir", tmp_path / "again", "--use_cpu")
    assert "No new annotators.\n" in capsys.readouterr().out


@pytest.mark.slow
def test_update_counts_copies_as_one_voice_with_and_without_pictures(tmp_path, capsys, without):
    """Copies who count one by one outvote the others. The report finds them, but only matplotlib can draw it."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(2, (400,), generator=generator)
    features = 3.0 * torch.eye(2)[truth] + torch.randn(400, 2, generator=generator)
    head = HeadClassifier(HeadConfig(input_size=2, hidden_size=2, num_labels=2))
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            parameter.copy_(2.0 * torch.eye(2) if "weight" in name else torch.zeros(2))
    pair = MaxMIGModel.from_classifier(head, annotators=["ann", "bob", "cyd"])
    pair.save_pretrained(tmp_path / "model")
    right = torch.rand(400, 4, generator=generator) < torch.tensor([0.8, 0.75, 0.7, 0.8])
    said = torch.where(right, truth[:, None], 1 - truth[:, None])
    said[:, 1] = said[:, 0]  # bob copies ann
    rows = {
        "features": features.tolist(),
        "annotators": [[0, 1, 2, 3]] * 400,
        "annotations": said.tolist(),
    }
    named = crowd_features(["ann", "bob", "cyd", "dee"], ["LABEL_0", "LABEL_1"])
    data = Dataset.from_dict(rows, features=Features({"features": List(Value("float32")), **named}))
    data.save_to_disk(tmp_path / "data")

    weights = []
    for drawn in (True, False):
        if not drawn:
            without("matplotlib")
        out = tmp_path / f"out-{drawn}"
        typed(
            "update",
            tmp_path / "model",
            "--data",
            tmp_path / "data",
            "--output_dir",
            out,
            "--use_cpu",
        )
        assert "copies" in capsys.readouterr().out
        assert (out / "_report" / "report.html").exists() == drawn
        assert (out / "_report" / "relabelled.csv").exists()
        assert "2 copied or copying" in (out / "README.md").read_text(encoding="utf-8")
        weights.append(saved_model(str(out)).aggregator.weight.detach())
    assert torch.equal(*weights)
    # Together they say as much as one of them: half as much as dee, who is as often right.
    ann, bob, _, dee = (float(each[0, 0] - each[1, 0]) for each in weights[0])
    assert ann == bob
    assert 0.3 < ann / dee < 0.7


@pytest.mark.slow
def test_what_is_wrong_is_one_line(model, photos, tmp_path, capsys):
    """Covers model, data, votes and combinations that do not fit."""
    out = ["--output_dir", tmp_path / "out", "--use_cpu"]
    rival = peer("majority_vote", classifier(), annotators=PEOPLE)
    save(rival, tmp_path / "rival")
    save(classifier(), tmp_path / "alone")
    (model / "results.json").write_text("{")
    (model / "trainer_state.json").write_text('{"log_history": 3}')
    for words, message in (
        (["report", tmp_path / "none", *photos, *out], "MODEL must be a saved crowd model, got"),
        (["report", tmp_path / "alone", *photos, *out], "MODEL must be a saved crowd model, got"),
        (["report", tmp_path / "rival", *photos, *out], "MODEL must be trained by Max-MIG"),
        (["report", model, *out], "the following arguments are required: --data"),
        (["report", model, photos[0], *out], "a report needs votes"),
        (["report", model, photos[2], *out], "votes are given by `--votes`"),
        (["report", model, tmp_path / "none", *out], "must be a data set of pictures"),
        (["relabel", model, photos[0], "--votes", "/none.csv", *out], "`--votes` must be a file"),
        (["relabel", model, photos[0], "stray", *out], "flags must start with --, got 'stray'"),
        (["relabel", model, photos[0], "--votse", "x", *out], "did you mean --votes?"),
        (["relabel", model, photos[0], "--output_dir", photos[2]], "`--output_dir` must be a folder"),
        (["relabel", model, photos[0], "--image_column", "x", *out], "must have a column 'x'"),
        (["card", model], "must be JSON"),
        (["report", model, *photos, *out], "must be the state that a trainer saves"),
        (["update", model, photos[2], photos[0], *photos[3:], *out], "must be JSON"),
        (["update", model, "--data", photos[0], *out], "an update needs votes, got data without any"),
        (["update", tmp_path / "rival", photos[2], photos[0], *photos[3:], *out], "need a model that combines votes"),
        (["card"], "the following arguments are required: --model"),
    ):  # fmt: skip
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            typed(*words)
        assert left.value.code == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith(f"maxmig {words[0]}: error: "), words
        assert message in last, words
    assert not (tmp_path / "out").exists()
