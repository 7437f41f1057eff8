"""`maxmig demo`: what is shown of a saved model and its data, before a browser opens it."""

import logging

import pytest
import torch
from datasets import Dataset, load_dataset
from transformers import ViTImageProcessor

from hf_maxmig import FourLayerCNN, FourLayerCNNConfig, MaxMIGModel, peer, read_annotations
from hf_maxmig.cli import main
from hf_maxmig.command.demo import DemoArguments, page_of, with_item_names
from tests.written_data import COLOURS, write_pictures, write_votes

PEOPLE = ["red_only", "bob", "ann", "cyd"]


def classifier():
    torch.manual_seed(0)
    names = dict(enumerate(COLOURS))
    return FourLayerCNN(FourLayerCNNConfig(image_size=16, id2label=names))


def save(model, place):
    model.save_pretrained(place)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(place)
    return str(place)


@pytest.fixture
def made(tmp_path):
    """An untrained saved model, pictures, and votes on them."""
    rows = write_pictures(tmp_path / "photos", number=12)
    model = MaxMIGModel.from_classifier(classifier(), annotators=PEOPLE)
    return {
        "model": save(model, tmp_path / "model"),
        "data": str(tmp_path / "photos"),
        "votes": str(write_votes(tmp_path / "votes.csv", rows)),
        "votes_annotator": "who",
        "output_dir": str(tmp_path / "out"),
        "use_cpu": True,
    }


def test_page_has_items_and_annotators_under_their_names(made, tmp_path):
    """A correction must name the item as the votes do, and a verdict the annotator."""
    page = page_of(DemoArguments(**made))
    votes = read_annotations(made["votes"], annotator="who")
    reviewing = page.reviewing
    assert {reviewing.name(place) for place in range(12)} == {*votes["item"]}
    assert page.judged.annotators == PEOPLE
    said = {(v["item"], v["annotator"]): v["annotation"] for v in votes}
    for place in range(12):
        card = reviewing.card(place)
        told = {(card.name, who): vote["label"] for vote in card.votes for who in vote["names"]}
        assert told == {key: label for key, label in said.items() if key[0] == card.name}
    assert page.corrections.path == tmp_path / "out" / "corrections.csv"
    assert not (tmp_path / "out").exists()


def test_page_of_a_model_alone_reads_no_items(made):
    """Who pulls a model from the Hub has no data."""
    page = page_of(DemoArguments(model=made["model"]))
    assert (page.reviewing, page.corrections, page.judged) == (None, None, None)
    assert page.trying.annotators == PEOPLE
    assert page.title == "model"


def test_page_of_another_method_has_items_but_no_verdicts(made, tmp_path):
    """The judgement needs W, which majority vote has not."""
    rival = peer("majority_vote", classifier(), annotators=PEOPLE)
    page = page_of(DemoArguments(**made | {"model": save(rival, tmp_path / "rival")}))
    assert page.reviewing.number == 12
    assert page.judged is None


def test_items_without_votes_are_named_by_their_files(made, caplog):
    """The first votes on pictures name files, so the first corrections must too."""
    del made["votes"], made["votes_annotator"]
    caplog.set_level(logging.WARNING)
    page = page_of(DemoArguments(**made))
    assert {page.reviewing.name(place) for place in range(12)} == {f"p{i:02}.png" for i in range(12)}  # fmt: skip
    assert page.judged is None
    pictures = load_dataset("imagefolder", data_dir=made["data"], split="train")
    nameless = pictures.map(lambda row: {"image": row["image"].convert("L")})
    assert with_item_names(nameless, None)[1] is None
    assert with_item_names(Dataset.from_dict({"id": ["a", "b"]}), "id")[1] == "id"


def test_what_is_wrong_is_one_line(made, capsys, monkeypatch, without):
    """All of it is found before a page opens that would be empty."""
    monkeypatch.setattr("hf_maxmig.command.demo.need_gradio", lambda: None)  # it may be absent here
    flags = ["--use_cpu", "--votes_annotator", "who", "--output_dir", made["output_dir"]]
    for words, message in (
        ([made["model"], "--votes", made["votes"], *flags], "`--votes` must come with DATA"),
        ([made["model"], made["data"], "--votes", made["votes"], *flags, "--corrections", made["votes"]],
         "votes.csv must have the columns item, annotator, annotation, gold, got picture, who, label"),
        (["/none"], "MODEL must be a saved crowd model, got '/none'"),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as left:
            main(["demo", *words])
        assert left.value.code == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
    monkeypatch.undo()
    without("gradio")
    with pytest.raises(SystemExit):
        main(["demo", made["model"]])
    assert "pip install 'hf_maxmig[demo]'" in capsys.readouterr().err
