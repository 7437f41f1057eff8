"""What the page knows of an item that somebody shows, against the model and its pipeline."""

import pytest
import torch
from transformers import pipeline

from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGModel, peer
from hf_maxmig.demo.drawing import answer_of, shown_item
from hf_maxmig.demo.trying import Trying, meaning_of
from tests.judging.pages import HOSTILE
from tests.modalities import AUDIO, IMAGE, MODALITIES, TABLE
from tests.networks import small_head
from tests.worlds import ANNOTATORS, CLASSES


@pytest.mark.parametrize("modality", [*MODALITIES, TABLE], ids=repr)
def test_answer_is_that_of_the_pipeline(modality):
    """Who tries a model on the page must see what the model says in a script, with the same votes."""
    model, processor = modality.model(), modality.processor()
    trying = Trying(model, processor)
    item = modality.parts(modality.raw(1)[0])
    votes = [(0, 2), (3, 1), (0, 2)]
    answer = trying.answer(item, votes)
    assert trying.takes == {"row": "columns"}.get(modality.name, modality.name)
    role = {"image": "image_processor", "text": "tokenizer"}.get(modality.name, "feature_extractor")
    ask = pipeline("crowd-forecast", model=model, **{role: processor})
    for number, step in enumerate(answer.steps):
        told = [(ANNOTATORS[m], CLASSES[c]) for m, c in votes[:number]]
        expected = {one["label"]: one["score"] for one in ask(item | {"votes": told})["forecast"]}
        got = dict(zip(CLASSES, step.forecast.tolist(), strict=True))
        assert got == pytest.approx(expected, abs=1e-5)
        assert step.vote == (votes[number - 1] if number else None)
    torch.testing.assert_close(answer.classifier, answer.steps[0].forecast)
    torch.testing.assert_close(answer.steps[0].aggregator, model.prior().exp().detach())
    assert not torch.allclose(answer.steps[1].aggregator, answer.steps[2].aggregator, atol=1e-3)


def test_method_without_an_aggregator_says_so():
    """A table of votes that change nothing would be taken for a fault."""
    model = peer("crowd_layer", small_head(), annotators=ANNOTATORS)
    trying = Trying(model)
    answer = trying.answer({"features": [0.0] * 5}, [(0, 1)])
    assert answer.steps[-1].aggregator is None
    html = answer_of(trying, answer)
    assert f"{model.method} has no aggregator: votes change nothing here" in html
    assert "Vote by vote" not in html


def test_cells_of_a_form_become_a_row():
    """A place among the categories is not the category, and nothing chosen is not the first."""
    trying = Trying(TABLE.model(), TABLE.processor())
    kinds = [column["kind"] for column in trying.columns]
    assert {*kinds} == {"number", "truth", "category"}
    full = trying.row([1 if kind != "number" else 2.5 for kind in kinds])
    empty = trying.row([None] * len(kinds))
    for column in trying.columns:
        wanted = {"number": 2.5, "truth": 1}.get(column["kind"])
        wanted = column["categories"][1] if wanted is None else wanted
        assert full[column["name"]] == wanted
        assert empty[column["name"]] is None
    for row in (full, empty):
        assert trying.answer(row).classifier.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no picture", "This must be a picture that can be read, got a file that is not: "),
        (b"", "This must be a picture that can be read, got a file that is not: "),
        (b"\x89PNG\r\n\x1a\n" + b"x" * 50, "This must be a picture that can be read, got a file that is not: "),
    ],
)  # fmt: skip
def test_what_is_no_picture_is_a_sentence(content, message, tmp_path):
    """The path of a temporary file on the server is nothing that a person has seen."""
    trying = Trying(IMAGE.model(), IMAGE.processor())
    path = tmp_path / "a b'c.png"
    path.write_bytes(content)
    with pytest.raises((ValueError, OSError)) as told:
        trying.answer({"image": str(path)})
    sentence = meaning_of(told.value)
    assert sentence.startswith(message)
    assert len(sentence.splitlines()) == 1
    assert str(tmp_path) not in sentence
    assert shown_item(str(path), "image") == ""


def test_sound_is_heard_beside_its_answer(tmp_path):
    """A person who has dropped the wrong recording hears it."""
    path = tmp_path / "sound.wav"
    path.write_bytes(AUDIO.raw(1)[0]["bytes"])
    html = shown_item(str(path), "audio")
    assert "<audio controls" in html
    assert "data:audio/wav;base64," in html
    trying = Trying(AUDIO.model(), AUDIO.processor())
    same = trying.answer(AUDIO.parts(AUDIO.raw(1)[0]))
    torch.testing.assert_close(trying.answer({"audio": str(path)}).classifier, same.classifier)


@pytest.mark.parametrize("text", ["1 2 x", "nan 0 0 0 0", "1 2", "inf,0,0,0,0", "1e999 0 0 0 0"])
def test_numbers_that_are_none_are_a_sentence(text):
    """A person types these; a traceback would not say which."""
    trying = Trying(MaxMIGModel.from_classifier(small_head(), annotators=ANNOTATORS))
    with pytest.raises(ValueError, match="must (be|hold)"):
        trying.answer(trying.features(text))
    assert trying.features("0,1; 2\n3 4") == {"features": [0.0, 1.0, 2.0, 3.0, 4.0]}


@pytest.mark.parametrize("vote", [(-1, 0), (4, 0), (0, 3), (0, -1)])
def test_vote_of_nobody_is_refused(vote):
    """A browser may send any number; -1 would silently be no vote."""
    trying = Trying(MaxMIGModel.from_classifier(small_head(), annotators=ANNOTATORS))
    with pytest.raises(IndexError, match="must be of an annotator for a class"):
        trying.answer({"features": [0.0] * 5}, [vote])


def test_hostile_names_stay_text_in_an_answer():
    """A name of a class or an annotator comes from a file that a stranger may have written."""
    names = [name.encode("utf-8", "replace").decode() for name in HOSTILE]
    head = HeadClassifier(HeadConfig(input_size=2, id2label=dict(enumerate(names))))
    model = MaxMIGModel.from_classifier(head, annotators=names)
    trying = Trying(model)
    html = answer_of(trying, trying.answer({"features": [0.0, 1.0]}, [(0, 0), (1, 1), (2, 2)]))
    for part in ("<script", "<img", "</title", "\u202e", "\0"):
        assert part not in html
    assert "&lt;script&gt;alert(1)" in html
