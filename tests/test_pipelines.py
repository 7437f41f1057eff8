"""`pipeline("crowd-forecast")`: votes by name go in, what the pair itself forecasts comes out."""

import logging

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoImageProcessor,
    AutoModel,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    ResNetConfig,
    ResNetForImageClassification,
    ViTImageProcessor,
    pipeline,
)

from hf_maxmig import MaxMIGModel, peer
from hf_maxmig.pipelines import TASK, ForecastPipeline, number_votes
from tests.worlds import ANNOTATORS, CLASSES

VOTES = [
    {"ann": "cat", "dee": "dog"},
    [("bob", "emu"), ("bob", "dog"), ("ann", "emu"), ("cyd", "cat")],  # bob votes twice
    None,
    {"eve": "dog", "cyd": "emu"},  # nobody knows eve
    {},
]
NUMBERS = (
    torch.tensor([[0, 3, -1, -1], [1, 1, 0, 2], [-1] * 4, [-1, 2, -1, -1], [-1] * 4]),
    torch.tensor([[0, 1, -1, -1], [2, 1, 2, 0], [-1] * 4, [1, 2, -1, -1], [-1] * 4]),
)


def draw_crowd(model):
    with torch.no_grad():
        model.aggregator.table.normal_(generator=torch.Generator().manual_seed(1))
        model.prior.logits.copy_(torch.tensor([0.3, -0.5, 0.1]))
    return model


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
    """A pair for pictures and its processor, on disk."""
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
    """(B, C) scores by class number."""
    rows = [{a["label"]: a["score"] for a in answer["forecast"]} for answer in answers]
    return torch.tensor([[row[name] for name in CLASSES] for row in rows])


@pytest.mark.parametrize("batch_size", [1, 2, 5, 8])
def test_forecasts_are_the_models_own_in_batches_of_any_size(model, items, expected, batch_size):
    """Padded with 0, as transformers pads, a missing vote is one by the first annotator; dropout left on."""
    assert (expected.argmax(1) != expected[2].argmax()).any()
    answers = pipeline(TASK, model=model)(items, batch_size=batch_size)
    torch.testing.assert_close(table(answers), expected)
    for answer in answers:
        scores = [a["score"] for a in answer["forecast"]]
        assert scores == sorted(scores, reverse=True)


def test_one_item_and_a_generator_are_answered_as_a_list_is(model, items, expected):
    """Three ways through transformers' `__call__`, one of which never batches."""
    forecast = pipeline(TASK, model=model, batch_size=2)
    torch.testing.assert_close(table([forecast(item) for item in items]), expected)
    torch.testing.assert_close(table(forecast(item for item in items)), expected)
    assert forecast([]) == []


def test_answers_say_who_was_heard(model, items):
    """A forecast without the votes that one sent looks like one with them."""
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
    """A misspelt name costs its votes; a warning an item would drown the log."""
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
    """They are neither padding that is looked up nor a reason to fall back to the prior."""
    forecast = pipeline(TASK, model=model)
    answers = forecast(
        [{"features": features[0], "votes": {"eve": "dog"}}, {"features": features[0]}]
    )
    with torch.no_grad():
        h = model.eval()(features=features[:1]).logits.softmax(-1)
    torch.testing.assert_close(table(answers), h.expand(2, 3))


@pytest.mark.parametrize("position", [0, 3])
def test_unknown_class_is_an_error_that_names_the_item(model, items, position):
    """Left out in silence, the vote of a misspelt class would be gone."""
    items[position] = {**items[position], "votes": [("ann", "cat"), ("bob", "dgo")]}
    message = f"'dgo' by 'bob' at item {position} (did you mean 'dog'?): the model knows 'cat', 'dog', 'emu'."
    with pytest.raises(ValueError, match="must name one of the 3 classes") as caught:
        pipeline(TASK, model=model)(items, batch_size=2)
    assert message in str(caught.value)


@pytest.mark.parametrize("votes", ["cat", ["cat", "dog"], [("ann", "cat", 1)], [{"ann": "cat"}]])
def test_votes_of_another_form_are_refused(model, features, votes):
    """A text of two letters unpacks into an annotator and a class."""
    with pytest.raises(TypeError, match="must be a mapping from annotator to class, or a list"):
        pipeline(TASK, model=model)({"features": features[0], "votes": votes})


def test_items_of_another_form_are_refused(model, features):
    """Crowd columns by number, unheard, would give the classifier's answer for the forecast."""
    forecast = pipeline(TASK, model=model)
    with pytest.raises(ValueError, match="must come by name, as `votes`, got 'annotators'"):
        forecast({"features": features[0], "annotators": [0], "annotations": [1]})
    with pytest.raises(TypeError, match="an item must be a picture, a path, or a dict .*, got int"):
        forecast([3])
    with pytest.raises(ValueError, match="must have an input of the classifier"):
        forecast({"feature": features[0], "votes": {"ann": "cat"}})
    with pytest.raises(ValueError, match="must go through an image processor, got none"):
        forecast(Image.new("RGB", (8, 8)))
    with pytest.raises(ValueError, match="`top_k` must be at least 1, got 0"):
        forecast({"features": features[0]}, top_k=0)


def test_top_k_leaves_the_likeliest(model, items, expected):
    """Sorted the wrong way round, the least likely classes would be left."""
    answers = pipeline(TASK, model=model, top_k=2)(items)
    best = expected.topk(2).indices.tolist()
    assert [[a["label"] for a in answer["forecast"]] for answer in answers] == [
        [CLASSES[c] for c in row] for row in best
    ]
    assert len(pipeline(TASK, model=model)(items[0], top_k=9)["forecast"]) == 3


def test_gold_labels_of_an_item_are_not_looked_at(model, items):
    """A row of a labelled data set must give the answer of an unlabelled one."""
    forecast = pipeline(TASK, model=model)
    assert forecast({**items[1], "label": 0, "labels": "any"}) == forecast(items[1])


def test_annotators_without_names_go_by_number(make_model, features):
    """Old checkpoints, and crowds that are numbered, have no names."""
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


def test_pair_with_hashed_names_hears_the_plain_ones_by_its_salt(model, items, expected):
    """Shared without names, a pair would be deaf to the people who trained it."""
    salt = "not this one, please"
    model.hash_annotators(salt)
    deaf = pipeline(TASK, model=model)
    assert not any(answer["heard"] for answer in deaf(items))
    for answers in (deaf(items, salt=salt), pipeline(TASK, model=model, salt=salt)(items)):
        torch.testing.assert_close(table(answers), expected)
        assert answers[0]["heard"] == [("ann", "cat"), ("dee", "dog")]


def test_method_without_a_forecaster_says_that_votes_are_of_no_use(make_model, features, caplog):
    """The classifier's answer beside `heard` votes would be taken for a forecast."""
    model = peer("crowd_layer", make_model().classifier, annotators=ANNOTATORS)
    with caplog.at_level(logging.WARNING):
        answer = pipeline(TASK, model=model)({"features": features[0], "votes": {"ann": "cat"}})
    assert (answer["heard"], answer["unheard"]) == ([], [("ann", "cat")])
    assert "1 of 1 votes are of no use to" in caplog.text
    with torch.no_grad():
        h = model.eval()(features=features[:1]).logits.softmax(-1)
    names = model.config.class_names
    assert answer["forecast"][0]["label"] == names[h.argmax()]


def test_saved_pair_forecasts_from_pictures_and_files(saved, pictures, tmp_path):
    """The whole way of who pulls a pair: folder in, pictures and votes in, names out."""
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


def test_pipeline_is_saved_as_a_pair_that_nobody_has_to_trust(saved, pictures, tmp_path):
    """Transformers would write this module beside the pair, and refuse to load it without trust."""
    first = pipeline(TASK, model=str(saved))
    first.save_pretrained(tmp_path / "again")
    assert not (tmp_path / "again" / "pipelines.py").exists()
    item = {"image": pictures[1], "votes": VOTES[1]}
    assert pipeline(TASK, model=str(tmp_path / "again"))(item) == first(item)


def test_half_precision_pair_takes_float32_pixels(saved, pictures):
    """A pair saved in bfloat16 would meet pixels of another type."""
    half = pipeline(TASK, model=str(saved), dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    item = {"image": pictures[1], "votes": VOTES[1]}
    full = pipeline(TASK, model=str(saved))
    torch.testing.assert_close(table([half(item)]), table([full(item)]), rtol=0, atol=0.05)


def test_texts_of_different_lengths_are_padded_by_the_tokenizer():
    """The core knows no pictures: a pair around a text classifier goes through the same door."""
    words = WordLevel({"[PAD]": 0, "a": 1}, unk_token="[PAD]")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), pad_token="[PAD]")
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9, num_labels=3
    )  # fmt: skip
    names = dict(enumerate(CLASSES))
    model = MaxMIGModel.from_classifier(
        BertForSequenceClassification(config), annotators=ANNOTATORS, id2label=names
    )
    draw_crowd(model).eval()
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


def test_workers_keep_the_order(model, items, expected):
    """Several processes open the pictures; a stream read by each of them would come twice."""
    forecast = pipeline(TASK, model=model, batch_size=2)
    torch.testing.assert_close(table(forecast(items, num_workers=2)), expected)
    torch.testing.assert_close(table(forecast((i for i in items), num_workers=2)), expected)


def test_votes_are_numbered_as_the_model_numbers(features):
    """The pure half of the pipeline, item by item."""
    who, said = number_votes(VOTES, ANNOTATORS, CLASSES)
    torch.testing.assert_close(who, NUMBERS[0])
    torch.testing.assert_close(said, NUMBERS[1])
    who, said = number_votes([None, {}], ANNOTATORS, CLASSES)
    assert who.tolist() == said.tolist() == [[-1], [-1]]
    assert number_votes([[(7, 1)]], ["5", "7"], ["0", "1"])[0].tolist() == [[1]]
    with pytest.raises(ValueError, match="got 'None' by 'ann' at item 9"):
        number_votes([{}, {"ann": None}], ANNOTATORS, CLASSES, start=8)
