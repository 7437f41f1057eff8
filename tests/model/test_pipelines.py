"""`pipeline("crowd-forecast")`: votes by name go in, and the model's own forecast comes out."""

import base64
import json
import logging
import wave

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    ASTConfig,
    ASTFeatureExtractor,
    ASTForAudioClassification,
    AutoImageProcessor,
    AutoModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTImageProcessor,
    pipeline,
)

from hf_maxmig import MaxMIGModel, peer
from hf_maxmig.model import opening
from hf_maxmig.model.named_votes import number_votes
from hf_maxmig.model.opening import opened_sound
from hf_maxmig.model.pipelines import TASK, ForecastPipeline
from tests.children import needs_fork, run
from tests.networks import draw_crowd, text_pair
from tests.worlds import ANNOTATORS, CLASSES

VOTES = [
    {"ann": "cat", "dee": "dog"},
    [("bob", "emu"), ("bob", "dog"), ("ann", "emu"), ("cyd", "cat")],  # bob votes twice
    None,
    {"eve": "dog", "cyd": "emu"},  # eve is unknown
    {},
]
NUMBERS = (
    torch.tensor([[0, 3, -1, -1], [1, 1, 0, 2], [-1] * 4, [-1, 2, -1, -1], [-1] * 4]),
    torch.tensor([[0, 1, -1, -1], [2, 1, 2, 0], [-1] * 4, [1, 2, -1, -1], [-1] * 4]),
)


@pytest.fixture
def model(make_model):
    return draw_crowd(make_model(dropout=0.5, prior="learned"))


@pytest.fixture
def features():
    return torch.randn(len(VOTES), 5, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def items(features):
    return [{"features": f.tolist(), "votes": v} for f, v in zip(features, VOTES, strict=True)]


@pytest.fixture
def expected(model, features):
    model.eval()
    with torch.no_grad():
        out = model(features=features, annotators=NUMBERS[0], annotations=NUMBERS[1])
    model.train()  # as a trainer leaves it
    return out.forecast_logits.exp()


@pytest.fixture(scope="module")
def pictures():
    return [Image.effect_noise((40 + i, 30), 60 + 20 * i).convert("RGB") for i in range(len(VOTES))]


@pytest.fixture
def saved(tmp_path):
    """Return the folder of a saved picture model and its processor."""
    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", num_labels=3
    )
    pair = MaxMIGModel.from_classifier(
        ResNetForImageClassification(config),
        annotators=ANNOTATORS,
        id2label=dict(enumerate(CLASSES)),
    )
    draw_crowd(pair).save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    return tmp_path


def table(answers):
    """Return (B, C) scores, ordered by class number."""
    rows = [{a["label"]: a["score"] for a in answer["forecast"]} for answer in answers]
    return torch.tensor([[row[name] for name in CLASSES] for row in rows])


@pytest.mark.parametrize("batch_size", [1, 2, 5, 8])
def test_forecasts_are_the_models_own_in_batches_of_any_size(model, items, expected, batch_size):
    """Transformers pads with 0, which would be a vote by the first annotator.

    Dropout left on would also show here.
    """
    assert (expected.argmax(1) != expected[2].argmax()).any()
    answers = pipeline(TASK, model=model)(items, batch_size=batch_size)
    torch.testing.assert_close(table(answers), expected)
    for answer in answers:
        scores = [a["score"] for a in answer["forecast"]]
        assert scores == sorted(scores, reverse=True)


def test_one_item_and_a_generator_are_answered_as_a_list_is(model, items, expected):
    """These are three ways through transformers' `__call__`, one of which never batches."""
    forecast = pipeline(TASK, model=model, batch_size=2)
    torch.testing.assert_close(table([forecast(item) for item in items]), expected)
    torch.testing.assert_close(table(forecast(item for item in items)), expected)
    assert forecast([]) == []


def test_answers_say_who_was_heard(model, items):
    """Otherwise a forecast that ignored the user's votes would look like one that used them."""
    answers = pipeline(TASK, model=model)(items, batch_size=2)
    assert [answer["heard"] for answer in answers] == [
        [("ann", "cat"), ("dee", "dog")],
        VOTES[1],
        [],
        [("cyd", "emu")],
        [],
    ]
    assert [answer["unheard"] for answer in answers] == [[], [], [], [("eve", "dog")], []]


def test_unknown_annotators_are_told_once_a_call(model, items, features, caplog):
    """A misspelt name loses its votes. One warning per item would drown the log."""
    forecast = pipeline(TASK, model=model)
    with caplog.at_level(logging.WARNING):
        forecast(items[:3])
        assert not caplog.text
        forecast([*items, {"features": features[0], "votes": {"eve": "cat", "mal": "cat"}}])
    (record,) = caplog.records
    assert (
        "3 of 10 votes are unknown to the model and add nothing: by 'eve', 'mal'." in record.message
    )


def test_votes_of_unknown_annotators_alone_leave_the_classifiers_answer(model, items, features):
    """They must neither be looked up as padding nor make the forecast fall back to the prior."""
    forecast = pipeline(TASK, model=model)
    answers = forecast(
        [{"features": features[0], "votes": {"eve": "dog"}}, {"features": features[0]}]
    )
    with torch.no_grad():
        h = model.eval()(features=features[:1]).logits.softmax(-1)
    torch.testing.assert_close(table(answers), h.expand(2, 3))


@pytest.mark.parametrize("position", [0, 3])
def test_unknown_class_is_an_error_that_names_the_item(model, items, position):
    """If it were skipped silently, the vote for a misspelt class would be lost."""
    items[position] = {**items[position], "votes": [("ann", "cat"), ("bob", "dgo")]}
    message = f"'dgo' by 'bob' at item {position} (did you mean 'dog'?): the model knows 'cat', 'dog', 'emu'."
    with pytest.raises(ValueError, match="must name one of the 3 classes") as caught:
        pipeline(TASK, model=model)(items, batch_size=2)
    assert message in str(caught.value)


@pytest.mark.parametrize("votes", ["cat", ["cat", "dog"], [("ann", "cat", 1)], [{"ann": "cat"}]])
def test_votes_of_another_form_are_refused(model, features, votes):
    """A string of two letters would unpack into an annotator and a class."""
    with pytest.raises(TypeError, match="must be a mapping from annotator to class, or a list"):
        pipeline(TASK, model=model)({"features": features[0], "votes": votes})


def test_items_of_another_form_are_refused(model, features):
    """Crowd columns given by number would be ignored, and the classifier's answer returned as the forecast."""
    forecast = pipeline(TASK, model=model)
    with pytest.raises(ValueError, match="must come by name, as `votes`, got 'annotators'"):
        forecast({"features": features[0], "annotators": [0], "annotations": [1]})
    with pytest.raises(TypeError, match="a dict with `features`, 5 numbers .* got int 3 as item 0"):
        forecast([3])
    with pytest.raises(
        ValueError, match=r"an input of the classifier, got 'feature' .* mean 'features'"
    ):
        forecast({"feature": features[0], "votes": {"ann": "cat"}})
    with pytest.raises(ValueError, match="must go through an image processor, got none"):
        forecast(Image.new("RGB", (8, 8)))
    with pytest.raises(ValueError, match="`top_k` must be at least 1, got 0"):
        forecast({"features": features[0]}, top_k=0)


def test_top_k_leaves_the_likeliest(model, items, expected):
    """Sorted the wrong way round, the least likely classes would be kept."""
    answers = pipeline(TASK, model=model, top_k=2)(items)
    best = expected.topk(2).indices.tolist()
    assert [[a["label"] for a in answer["forecast"]] for answer in answers] == [
        [CLASSES[c] for c in row] for row in best
    ]
    assert len(pipeline(TASK, model=model)(items[0], top_k=9)["forecast"]) == 3


def test_gold_labels_of_an_item_are_not_looked_at(model, items):
    """A row of a labelled data set must give the same answer as an unlabelled one."""
    forecast = pipeline(TASK, model=model)
    assert forecast({**items[1], "label": 0, "labels": "any"}) == forecast(items[1])


def test_annotators_without_names_go_by_number(make_model, features):
    """Old checkpoints and numbered crowds have no names."""
    named = draw_crowd(make_model())
    model = MaxMIGModel.from_classifier(
        named.classifier, num_annotators=4, id2label=dict(enumerate(CLASSES))
    )
    model.aggregator.load_state_dict(named.aggregator.state_dict())
    forecast = pipeline(TASK, model=model)
    item = {"features": features[0], "votes": {0: "cat", "3": "dog", 4: "cat", "-1": "cat"}}
    answer = forecast(item)
    assert answer["heard"] == [("0", "cat"), ("3", "dog")]
    assert answer["unheard"] == [("4", "cat"), ("-1", "cat")]
    with torch.no_grad():
        out = model(features=features[:1], annotators=NUMBERS[0][:1], annotations=NUMBERS[1][:1])
    torch.testing.assert_close(table([answer]), out.forecast_logits.exp())


def test_model_with_hashed_names_hears_the_plain_ones_by_its_salt(model, items, expected):
    """Without the salt, a model shared with hashed names would ignore the people who trained it."""
    salt = "not this one, please"
    model.hash_annotators(salt)
    deaf = pipeline(TASK, model=model)
    assert not any(answer["heard"] for answer in deaf(items))
    for answers in (deaf(items, salt=salt), pipeline(TASK, model=model, salt=salt)(items)):
        torch.testing.assert_close(table(answers), expected)
        assert answers[0]["heard"] == [("ann", "cat"), ("dee", "dog")]


def test_method_without_a_forecaster_says_that_votes_are_of_no_use(make_model, features, caplog):
    """The classifier's answer next to `heard` votes would be taken for a forecast."""
    model = peer("crowd_layer", make_model().classifier, annotators=ANNOTATORS)
    with caplog.at_level(logging.WARNING):
        answer = pipeline(TASK, model=model)({"features": features[0], "votes": {"ann": "cat"}})
    assert (answer["heard"], answer["unheard"]) == ([], [("ann", "cat")])
    assert "1 of 1 votes are not used by" in caplog.text
    with torch.no_grad():
        h = model.eval()(features=features[:1]).logits.softmax(-1)
    names = model.config.class_names
    assert answer["forecast"][0]["label"] == names[h.argmax()]


def test_saved_model_forecasts_from_pictures_and_files(saved, pictures, tmp_path):
    """Runs the user's whole path: from a folder, pictures and votes to class names."""
    forecast = pipeline(TASK, model=str(saved), batch_size=3)
    assert type(forecast) is ForecastPipeline
    items = [{"image": p, "votes": v} for p, v in zip(pictures, VOTES, strict=True)]
    pixel_values = AutoImageProcessor.from_pretrained(saved)(pictures, return_tensors="pt")
    model = AutoModel.from_pretrained(saved)
    with torch.no_grad():
        out = model(**pixel_values, annotators=NUMBERS[0], annotations=NUMBERS[1])
    torch.testing.assert_close(table(forecast(items)), out.forecast_logits.exp())

    path = tmp_path / "picture.png"
    pictures[0].save(path)
    for image in (path, str(path)):
        torch.testing.assert_close(
            table([forecast({"image": image, "votes": VOTES[0]})]), out.forecast_logits[:1].exp()
        )
        torch.testing.assert_close(table([forecast(image)]), out.logits[:1].softmax(-1))


def test_model_says_where_its_pipeline_is_and_nobody_with_the_package_has_to_trust_it(
    saved, pictures, tmp_path
):
    """Transformers refuses a task named in the config without `trust_remote_code`, even if the package provides it."""
    first = pipeline(TASK, model=str(saved))
    first.save_pretrained(tmp_path / "again")
    for folder in (saved, tmp_path / "again"):
        config = json.loads((folder / "config.json").read_text())["custom_pipelines"]
        assert config[TASK]["impl"] == "pipelines.ForecastPipeline"
        assert (folder / "pipelines.py").is_file()
    assert not hasattr(first.model.config, "custom_pipelines")
    item = {"image": pictures[1], "votes": VOTES[1]}
    second = pipeline(TASK, model=str(tmp_path / "again"))
    assert type(second) is ForecastPipeline
    assert second(item) == first(item)


def test_half_precision_model_takes_float32_pixels(saved, pictures):
    """A model saved in bfloat16 would be given pixels of another type."""
    half = pipeline(TASK, model=str(saved), dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    item = {"image": pictures[1], "votes": VOTES[1]}
    full = pipeline(TASK, model=str(saved))
    torch.testing.assert_close(table([half(item)]), table([full(item)]), rtol=0, atol=0.05)


def test_texts_of_different_lengths_are_padded_by_the_tokenizer(tokenizer):
    """The core knows nothing about pictures: a text classifier must work in the same pipeline."""
    model = text_pair()
    texts = [[1, 2, 3], [4, 5, 6, 7, 8]]
    forecast = pipeline(TASK, model=model, tokenizer=tokenizer)
    items = [
        {"input_ids": t, "attention_mask": [1] * len(t), "votes": VOTES[i]}
        for i, t in enumerate(texts)
    ]
    answers = forecast(items, batch_size=2)
    for i, text in enumerate(texts):
        with torch.no_grad():
            out = model(
                input_ids=torch.tensor([text]), annotators=NUMBERS[0][i : i + 1], annotations=NUMBERS[1][i : i + 1]
            )  # fmt: skip
        torch.testing.assert_close(table(answers[i : i + 1]), out.forecast_logits.exp())


def test_classifier_without_a_crowd_is_refused():
    """Its answers would pass for forecasts."""
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], num_labels=3)
    with pytest.raises(TypeError, match="such as MaxMIGModel, got ResNetForImageClassification"):
        pipeline(TASK, model=ResNetForImageClassification(config))


def forecast_with_workers(folder, items):
    forecast = pipeline(TASK, model=str(folder), batch_size=2)
    results = [forecast(items, num_workers=2), forecast((i for i in items), num_workers=2)]
    torch.save([table(answers) for answers in results], folder / "scores.pt")


@pytest.mark.slow
@needs_fork  # a generator cannot be sent to a worker
def test_workers_keep_the_order(model, items, expected, tmp_path):
    """Several processes open the pictures. A stream that each of them reads would come twice."""
    model.save_pretrained(tmp_path)
    log = tmp_path / "log"
    assert run(log, forecast_with_workers, tmp_path, items) == 0, log.read_text()
    for scores in torch.load(tmp_path / "scores.pt"):
        torch.testing.assert_close(scores, expected)


def test_votes_are_numbered_as_the_model_numbers(features):
    """Tests the pure half of the pipeline, item by item."""
    who, said = number_votes(VOTES, ANNOTATORS, CLASSES)
    torch.testing.assert_close(who, NUMBERS[0])
    torch.testing.assert_close(said, NUMBERS[1])
    who, said = number_votes([None, {}], ANNOTATORS, CLASSES)
    assert who.tolist() == said.tolist() == [[-1], [-1]]
    assert number_votes([[(7, 1)]], ["5", "7"], ["0", "1"])[0].tolist() == [[1]]
    with pytest.raises(ValueError, match="got 'None' by 'ann' at item 9"):
        number_votes([{}, {"ann": None}], ANNOTATORS, CLASSES, start=8)


def test_texts_are_taken_as_they_are(tokenizer):
    """A plain text used to be refused with advice to rename its column."""
    model = text_pair()
    forecast = pipeline(TASK, model=model, tokenizer=tokenizer)
    texts = ["a good film", "bad"]
    items = [{"text": text, "votes": VOTES[i]} for i, text in enumerate(texts)]
    tokens = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        out = model(
            **tokens, annotators=NUMBERS[0][:2], annotations=NUMBERS[1][:2]
        )  # fmt: skip
    torch.testing.assert_close(table(forecast(items, batch_size=2)), out.forecast_logits.exp())
    torch.testing.assert_close(
        table([forecast(texts[1])]), out.logits[1:].softmax(-1), atol=1e-6, rtol=0
    )
    for item, error, message in (
        ({"text": 3}, TypeError, "`text` must be text, got int 3 at item 0"),
        ({"txt": "a"}, ValueError, "got 'txt' at item 0 \\(did you mean 'text'"),
        ("a \ud800", ValueError, "must be Unicode"),
        ("", ValueError, "`text` must have at least one word, got '' at item 0"),
        ({"text": "a", "text_pair": " "}, ValueError, "at least one word, got ' ' at item 0"),
        (
            "a beyond",
            ValueError,
            r"`input_ids` must be whole numbers from 0 to 8, got 9 at item 0: is the tokenizer",
        ),
        ("a " * 13, ValueError, "at most 12 tokens, got 13 at item 0"),
        (Image.new("RGB", (8, 8)), ValueError, "`text` must be text|an item must"),
    ):
        with pytest.raises((error, TypeError), match=message):
            forecast(item)


def test_what_makes_the_inputs_is_missed_at_construction(tokenizer):
    """It would be too late to learn after an hour of reading pictures that the tokenizer is missing."""
    with pytest.raises(
        ValueError, match="`tokenizer` must be given for a classifier of texts, got none"
    ):
        pipeline(TASK, model=text_pair())
    with pytest.raises(
        ValueError, match="`feature_extractor` must be given for a classifier of sounds"
    ):
        pipeline(TASK, model=sound_pair())


def sound_pair():
    torch.manual_seed(0)
    config = ASTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=3,
        max_length=64, num_mel_bins=16,
    )  # fmt: skip
    pair = MaxMIGModel.from_classifier(
        ASTForAudioClassification(config),
        annotators=ANNOTATORS,
        id2label=dict(enumerate(CLASSES)),
    )
    return draw_crowd(pair).eval()


def test_sounds_are_taken_from_files_and_as_a_data_set_has_them(tmp_path):
    """A sound file used to be opened as a picture."""
    extractor = ASTFeatureExtractor(max_length=64, num_mel_bins=16)
    samples = np.sin(np.arange(8000) / 10).astype(np.float32)
    samples = np.round(samples * 2**14) / 2**15
    with wave.open(str(tmp_path / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", None))
        file.writeframes((samples * 2**15).astype("<i2").tobytes())
    model = sound_pair()
    forecast = pipeline(TASK, model=model, feature_extractor=extractor)
    inputs = extractor(samples, sampling_rate=16000, return_tensors="pt")
    with torch.no_grad():
        out = model(**inputs, annotators=NUMBERS[0][:1], annotations=NUMBERS[1][:1])
    for audio in (
        tmp_path / "sound.wav",
        str(tmp_path / "sound.wav"),
        samples,
        {"array": samples, "sampling_rate": 16000},
    ):
        answer = forecast({"audio": audio, "votes": VOTES[0]})
        torch.testing.assert_close(table([answer]), out.forecast_logits.exp(), atol=1e-4, rtol=0)
    torch.testing.assert_close(
        table([forecast(tmp_path / "sound.wav")]), out.logits.softmax(-1), atol=1e-4, rtol=0
    )
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    for item, message in (
        (
            {"array": samples, "sampling_rate": 0},
            "from 100 to 1,000,000 samples a second, got 0 at item 0",
        ),
        ({"array": samples}, "got None at item 0: say it as `sampling_rate`"),
        (samples[:0], "`audio` must have samples, got none at item 0"),
        ({"array": [samples, samples], "sampling_rate": 16000}, "one channel, got the shape"),
        (samples * np.nan, "finite samples .* with NaN or infinity at item 0"),
        ((samples * 2**15).astype("int16"), r"in -1..1, got whole numbers \(int16\) at item 0"),
        (tmp_path / "none.wav", "no such file"),
        (tmp_path, "there is a folder"),
        (tmp_path / "picture.png", "item 0 must be a sound that can be read"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            forecast({"audio": item})


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_sounds_of_any_rate_and_width_are_read_without_a_library(width, rate, tmp_path):
    """At twice the rate a sound is another one, and the classifier would answer all the same."""
    heard = np.sin(2 * np.pi * 440 * np.arange(rate) / rate) / 2
    numbers = np.round(heard * (2 ** (8 * width - 1) - 1)).astype("<i8")
    if width == 1:
        numbers += 128
    path = str(tmp_path / "sound.wav")
    with wave.open(path, "wb") as file:
        file.setparams((2, width, rate, 0, "NONE", None))
        both = np.stack([numbers, numbers], axis=1)  # two channels
        file.writeframes(both.view("u1").reshape(rate, 2, 8)[..., :width].tobytes())
    same = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000) / 2
    stored = {"path": None, "bytes": (tmp_path / "sound.wav").read_bytes()}
    for content in (path, stored, {"array": heard, "sampling_rate": np.int64(rate)}):
        samples = opened_sound(content, 16000, number=0)
        assert (samples.dtype, samples.shape) == (np.float32, (16000,))
        # Except at the ends, where the filter has no neighbouring samples.
        np.testing.assert_allclose(samples[200:-200], same[200:-200], atol=0.02)
    whole = stored["bytes"]
    with pytest.raises(ValueError, match="item 7 must be a sound that can be read, .*ends after"):
        opened_sound({"path": "a.wav", "bytes": whole[: len(whole) // 2]}, 16000, number=7)


def test_other_sounds_are_left_to_a_library_and_asked_for_by_name(monkeypatch):
    """Compressed sounds are stored in a data set as bytes, and no library reads those as they are."""
    stored = {"bytes": b"fLaC and so on", "path": "a.flac"}
    seen = []

    def decoded(source, sampling_rate):
        seen.append((base64.b64decode(source.split(",")[1]), sampling_rate))
        return np.ones(5, dtype="float32")

    monkeypatch.setattr(opening, "load_audio", decoded)
    assert opened_sound(stored, 16000, number=0).tolist() == [1.0] * 5
    assert seen == [(stored["bytes"], 16000)]

    def missing(source, sampling_rate):
        raise ImportError("soundfile")

    monkeypatch.setattr(opening, "load_audio", missing)
    with pytest.raises(ValueError, match="item 3 must be .* got 'a.flac': only WAV.*pip install soundfile soxr"):  # fmt: skip
        opened_sound(stored, 16000, number=3)


def test_pictures_that_cannot_be_opened_are_named(saved, tmp_path):
    """`UnidentifiedImageError` does not name the item, and a plain text looks like a missing file."""
    forecast = pipeline(TASK, model=str(saved))
    (tmp_path / "sound.wav").write_bytes(b"RIFF....WAVE")
    good = Image.new("RGB", (8, 8))
    for item, message in (
        ("a good film", "item 1 must be a picture or the path of one, got 'a good film': there is no such file"),
        (tmp_path, "there is a folder"),
        (str(tmp_path / "sound.wav"), "item 1 must be a picture that can be read, got .*sound.wav"),
        ({"image": 3}, "`image` must be a picture, or the path of one, got int 3 at item 1"),
        ({"image": Image.new("I;16", (8, 8))}, "8 bits per channel, got mode 'I;16' at item 1"),
        ({"pixel_values": torch.zeros(3)}, "ResNetForImageClassification cannot take the items from 1 on"),
        ({"pixel_values": torch.full((3, 32, 32), torch.nan)}, "finite numbers, got others at item 1"),
    ):  # fmt: skip
        with pytest.raises((ValueError, OSError, TypeError), match=message):
            forecast([good, item])


def test_a_table_of_numbers_is_told_how_to_come(model, features):
    """Only the person who trained the model knows the order of its 124 columns."""
    forecast = pipeline(TASK, model=model)
    row = {f"x{i}": float(value) for i, value in enumerate(features[0])}
    with pytest.raises(
        ValueError, match="put the 5 numbers into one list, `features`, in the same order"
    ):
        forecast({**row, "votes": {"ann": "cat"}})
    with pytest.raises(ValueError, match="got the shape \\(4,\\) at item 0"):
        forecast({"features": features[0, :4]})
    with pytest.raises(ValueError, match="finite numbers, got others at item 2"):
        forecast([features[0], features[1], features[2] * torch.inf])
    with pytest.raises(
        ValueError, match="`features` must hold numbers, got 'a' at item 0|got \\['a'"
    ):
        forecast({"features": ["a"] * 5})
    torch.testing.assert_close(
        table([forecast(features[0])]), table([forecast({"features": features[0].tolist()})])
    )


def test_options_are_checked_before_an_item_is_read(model, features):
    """The loader would say "batch_size should be a positive integer" only after the model was loaded."""
    forecast = pipeline(TASK, model=model)
    for options, error in (
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
        ({"batch_size": "2"}, "`batch_size` must be a whole number, got '2'"),
        ({"num_workers": -1}, "`num_workers` must be at least 0"),
        ({"top_k": 1.5}, "`top_k` must be a whole number"),
        ({"salt": "short"}, "at least 16 characters"),
        ({"salt": 7}, "`salt` must be text, got int"),
        ({"topk": 3}, "options must be .*, got topk"),
    ):
        with pytest.raises((TypeError, ValueError), match=error):
            forecast(features[0], **options)
