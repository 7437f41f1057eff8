"""Hostile inputs to the pipeline, the recipes' command line and the metric: an error of ours, or the right result.

Allowed outcomes are an error of ours, and the result that the oracle here computes from the damaged
input: a damaged vote that is still a valid vote must be counted as what it says now.
"""

import copy
import math
import random
from dataclasses import dataclass, field

import pytest
import torch
import yaml
from transformers import pipeline

from hf_maxmig.command.flags import is_told, parse
from hf_maxmig.crowd_metrics.app import EXAMPLE, measure
from hf_maxmig.crowd_metrics.crowd_metrics import CrowdMetrics
from hf_maxmig.model.pipelines import TASK
from tests.attacks.mutations import SEED, damaged, is_ours, is_said, twisted
from tests.networks import draw_crowd, text_pair
from tests.worlds import ANNOTATORS, CLASSES, items_of, make_crowd

pytestmark = pytest.mark.slow


REFUSED = object()


def outcome(ask, given, ours=is_ours):
    """Return the result for an input, or `REFUSED` after an error of ours."""
    try:
        return ask()
    except Exception as error:
        if not ours(error):
            raise AssertionError(f"{type(error).__name__} for {str(given)[:300]}") from error
        return REFUSED


def shown_by(answer):
    """Return what an answer says about the votes, and the scores by class."""
    scores = {entry["label"]: entry["score"] for entry in answer["forecast"]}
    return answer["heard"], answer["unheard"], [scores[name] for name in CLASSES]


def votes_of(item):
    """Be the oracle: return votes as pairs of texts, whichever way they were written."""
    votes = item.get("votes")
    if votes is None:
        return []
    return [(str(a), str(c)) for a, c in (votes.items() if isinstance(votes, dict) else votes)]


def expected(model, item, inputs):
    """Be the oracle: return the model's own forecast from the votes of annotators it knows."""
    pairs = votes_of(item)
    heard = [(a, c) for a, c in pairs if a in ANNOTATORS]
    numbers = [(ANNOTATORS.index(a), CLASSES.index(c)) for a, c in heard] or [(-1, -1)]
    who, said = (torch.tensor([column]) for column in zip(*numbers, strict=True))
    with torch.no_grad():
        out = model(**inputs, annotators=who, annotations=said)
    scores = out.forecast_logits.exp()[0].tolist()
    return heard, [(a, c) for a, c in pairs if a not in ANNOTATORS], scores


def attack(forecast, item, inputs_of):
    """Ask for one item; return whether it was answered correctly or refused by us."""
    answer = outcome(lambda: forecast(copy.deepcopy(item)), item)
    if answer is REFUSED:
        return False
    if isinstance(answer, list):  # a list of items, none of which is one
        assert answer == item == []
        return True
    heard, unheard, scores = expected(forecast.model, item, inputs_of(item))
    assert (answer["heard"], answer["unheard"]) == (heard, unheard), str(item)[:300]
    assert shown_by(answer)[2] == pytest.approx(scores, abs=1e-5), str(item)[:300]
    return True


def test_pipeline_of_numbers_answers_what_was_asked_or_refuses(make_model):
    """A NaN, a nested list or a numeric vote used to crash, or be answered as something else."""
    rng = random.Random(SEED)
    model = draw_crowd(make_model(prior="learned")).eval()
    forecast = pipeline(TASK, model=model)
    usual = {
        "features": [0.5, -1.0, 0.25, 2.0, 0.0],
        "votes": {"ann": "cat", "dee": "dog", "eve": "emu"},
        "label": 1,
    }
    listed = {**usual, "votes": [["bob", "emu"], ["bob", "dog"], ["cyd", "cat"]]}

    def inputs(item):
        return {"features": torch.tensor([item["features"]], dtype=torch.float32)}

    answered = sum(
        attack(forecast, twisted(rng.choice((usual, listed)), rng), inputs) for _ in range(400)
    )
    assert 40 < answered < 360


@pytest.mark.filterwarnings("ignore:.*max_length.*")
def test_pipeline_of_texts_answers_what_was_asked_or_refuses(tokenizer):
    """Covers half a character, a megabyte of text, and numbers in place of texts."""
    rng = random.Random(SEED + 1)
    forecast = pipeline(TASK, model=text_pair(), tokenizer=tokenizer)
    usual = {"text": "a good film", "votes": {"ann": "cat"}}

    def inputs(item):
        return dict(tokenizer([item["text"]], return_tensors="pt"))

    answered = 0
    for _ in range(150):
        item = twisted(usual, rng)
        if rng.random() < 0.3:
            text = damaged(b"a good film", rng).decode("utf-8", "surrogateescape")
            item = {**usual, "text": text}
        answered += attack(forecast, item, inputs)
    assert 20 < answered < 140


def test_metric_measures_what_it_was_given_or_refuses():
    """Numpy's own errors do not name the argument, and a string of digits is not a probability."""
    rng = random.Random(SEED + 2)
    metric = object.__new__(CrowdMetrics)
    usual = {
        **EXAMPLE,
        "annotated": [True, False, True],
        "bins": 5,
        "confusion": [[[0.5, 0.5], [0.0, 1.0]]],
        "true_confusion": [[[3, 0], [0, 1]]],
    }
    before = metric._compute(**usual)
    measured = 0
    for _ in range(400):
        given = twisted(usual, rng)
        if not {"predictions", "references"} <= {*given} <= {*usual}:
            continue  # Python's own refusal
        found = outcome(lambda given=given: metric._compute(**given), given)
        if found is REFUSED:
            continue
        measured += 1
        assert all(math.isfinite(value) for value in found.values()), str(given)[:300]
        assert {*found} <= {*before}
    assert measured > 4


def test_page_of_the_metric_takes_any_text():
    """People who type into the page of the Space do not always type JSON."""
    rng = random.Random(SEED + 3)
    for text in ("", "null", "[]", "3", "{}", '{"predictions": []}', "[" * 10_000, '{"x": 1}'):
        with pytest.raises(ValueError, match="the arguments must") as caught:
            measure(text)
        assert is_ours(caught.value)
    data = b'{"x": [[0.9, 0.1]], "references": [0]}'
    for _ in range(60):
        with pytest.raises(ValueError, match="the arguments must"):
            measure(damaged(data, rng).decode("utf-8", "replace"))


@pytest.mark.parametrize("kind", ["names", "numbers"])
def test_new_votes_are_counted_as_they_say_or_nothing_changes(kind, make_model):
    """A number of half an annotator was rounded, and a name in place of a number was an error of Python's own."""
    rng = random.Random(SEED + 6)
    model = draw_crowd(make_model()).eval()
    crowd = make_crowd(24).filter(lambda row: len(row["annotations"]) > 0)
    usual = items_of(crowd)
    if kind == "numbers":
        usual = list(crowd.remove_columns("label"))
        usual[::2] = [{**item, "annotation_weights": [0.5] * len(item["annotators"])} for item in usual[::2]]  # fmt: skip
    done = 0
    for _ in range(150):
        place = rng.randrange(len(usual))
        item = twisted(usual[place], rng)
        items = [*usual[:place], item, *usual[place + 1 :]]
        for door in (lambda it, items: it.update(items), lambda it, items: it.ask(items, 3)):
            tried = copy.deepcopy(model)
            if outcome(lambda tried=tried, door=door, items=items: door(tried, items), item, is_said) is REFUSED:  # fmt: skip
                assert tried.config.annotators == ANNOTATORS
                assert torch.equal(tried.aggregator.table, model.aggregator.table), item
                continue
            done += 1
            said = votes_of(item) if isinstance(item, dict) else []
            assert {*tried.config.annotators} <= {*ANNOTATORS, *(who for who, _ in said)}, item
            assert tried.aggregator.weight.isfinite().all()
    assert 10 < done < 290


@dataclass
class Flags:
    """Flags like those of a recipe."""

    name: str = field(metadata={"help": "A text that must be given."})
    number: int = field(default=3, metadata={"help": "A whole number."})
    rate: float = field(default=1e-3, metadata={"help": "A number."})
    switch: bool = field(default=False, metadata={"help": "Yes or no."})
    words: list[str] = field(default_factory=list, metadata={"help": "Some words."})
    maybe: str | None = field(default=None, metadata={"help": "A text, or none."})


FILE = b"""\
# a file of flags
name: birds
number: 7
rate: 1e-4
switch: yes
words: [a, b]
maybe: null
"""


def test_any_file_of_flags_is_read_as_it_says_or_refused(tmp_path):
    """A file that is truncated, or repeats a key, must not be used as if it were whole."""
    rng = random.Random(SEED + 4)
    file = tmp_path / "flags.yaml"
    readings = 0
    for _ in range(400):
        data = damaged(FILE, rng)
        file.write_bytes(data)
        flags = ["--config", str(file)]
        read = outcome(lambda flags=flags: parse(Flags, arguments=flags), data, is_told)
        if read is REFUSED:
            continue
        readings, (found,) = readings + 1, read
        says = yaml.load(data.decode("utf-8-sig"), Loader=yaml.BaseLoader) or {}
        assert {*says} <= {"name", "number", "rate", "switch", "words", "maybe"}
        assert found.name == says["name"]
        assert found.number == int(says.get("number", 3))
        assert found.rate == float(says.get("rate", 1e-3))
        assert found.switch == (says.get("switch", "no").lower() in ("yes", "y", "true", "t", "1", "on"))  # fmt: skip
        words = says.get("words", [])
        assert found.words == (words if isinstance(words, list) else [words])
    assert 40 < readings < 360


def test_any_command_line_is_read_as_it_says_or_refused(tmp_path):
    """Covers abbreviations, values without flags and flags without values, from people and from scripts."""
    rng = random.Random(SEED + 5)
    usual = ["--name", "birds", "--number", "7", "--rate=1e-4", "--switch", "--words", "a", "b"]
    pieces = ["--nam", "--", "-", "--name=", "--number=x", "--config", "é", "\udcff", "-1", "nan", "--words", str(tmp_path), "a\0", "--switch=perhaps"]  # fmt: skip
    readings = 0
    for _ in range(300):
        flags = list(usual)
        for _ in range(rng.choice((1, 1, 2))):
            place = rng.randrange(len(flags))
            kind = rng.randrange(3)
            if kind == 0:
                del flags[place]
            elif kind == 1:
                flags[place] = rng.choice(pieces)
            else:
                flags.insert(place, rng.choice(pieces))
        read = outcome(lambda flags=flags: parse(Flags, arguments=flags), flags, is_told)
        if read is REFUSED:
            continue
        readings, (found,) = readings + 1, read
        named = [flag.split("=")[0] for flag in flags if flag.startswith("--")]
        if len({*named}) < len(named):
            continue  # of a flag that is repeated the last value counts
        # Everything that was given appears in what was read.
        whole = " ".join([found.name, str(found.number), *found.words])
        for piece in flags:
            if not piece.startswith("-") and piece not in ("7", "nan"):
                assert piece in whole, (piece, flags)
    assert readings > 10
