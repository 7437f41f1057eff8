"""Configs that anyone may have written: an immediate error of ours, or the model that the config describes."""

import json
import random
import signal
import threading

import pytest
import torch
from transformers import AutoConfig, AutoModel, ResNetConfig, ViTConfig

from hf_maxmig import FourLayerCNNConfig, HeadConfig, MaxMIGConfig, MaxMIGModel
from tests.attacks.mutations import SEED, damaged, is_ours, twisted

SECONDS = 5  # for one config; all but a few take milliseconds

CLASSIFIERS = {
    "head": HeadConfig(input_size=4, hidden_size=3, num_labels=3),
    "cnn": FourLayerCNNConfig(image_size=16, hidden_sizes=[2, 2], fc_size=4, num_labels=3),
    "resnet": ResNetConfig(embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1], layer_type="basic", num_labels=3),
    "vit": ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=16, patch_size=8,
        num_labels=3,
    ),
}  # fmt: skip


def config_of(name):
    return MaxMIGConfig(
        classifier_config=CLASSIFIERS[name].to_dict(),
        annotators=["ann", "bob", "eve"],
        id2label={0: "cat", 1: "dog", 2: "emu"},
        prior=[0.5, 0.25, 0.25],
        frozen=["output"] if name == "head" else None,
    )


class Slow(BaseException):
    """Not an `Exception`, so that no code on the way handles it as an error of its own."""


@pytest.fixture
def in_time():
    """Stop code that does not end: a hang is the worst outcome of all."""

    def stop(*_):
        raise Slow

    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGALRM, stop)

    def run(function):
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            return function()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    yield run
    signal.signal(signal.SIGALRM, before)


def build(fields):
    """Return the config, and the model built from it."""
    config = MaxMIGConfig.from_dict(json.loads(json.dumps(fields)))
    return config, MaxMIGModel(config)


def check_says_what_it_is(config, model, fields):
    """Check that an accepted config means what its fields say, not something close to it."""
    names = fields.get("annotators")
    if names is not None:
        assert config.annotators == [str(name) for name in names]
    assert config.num_annotators == model.aggregator.table.shape[0]
    assert model.aggregator.table.shape[1:] == (config.num_labels,) * 2
    given = fields.get("id2label")
    if given is not None:
        assert config.class_names == [str(given[str(c)]) for c in range(len(given))]
    inner = fields["classifier_config"]
    assert config.classifier_config.model_type == inner["model_type"]
    prior = fields.get("prior", "uniform")
    assert config.prior == prior or sum(config.prior) == pytest.approx(1)
    assert model.classifier.config.num_labels == config.num_labels
    json.dumps(config.to_dict(), default=str).encode("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_twisted_config_is_refused_or_says_what_is_built(name, in_time):
    """Any field may have another type, be missing or repeated, or hold an excessive size."""
    rng, fields = (
        random.Random(f"{SEED} {name}"),
        json.loads(config_of(name).to_json_string(use_diff=False)),
    )
    build(fields)
    refused = taken = 0
    for number in range(350):
        wrong = fields
        for _ in range(rng.choice((1, 1, 2))):
            wrong = twisted(wrong, rng)
        try:
            config, model = in_time(lambda wrong=wrong: build(wrong))
        except Slow:
            pytest.fail(f"{name} {number}: it takes more than {SECONDS} s: {_shown(fields, wrong)}")
        except Exception as error:
            if not is_ours(error):
                pytest.fail(f"{name} {number}: {error!r} of {_shown(fields, wrong)}")
            refused += 1
        else:
            check_says_what_it_is(config, model, wrong)
            taken += 1
    assert refused > 20
    assert taken > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["head", "vit"])
def test_damaged_config_file_is_refused_or_says_what_is_loaded(name, in_time, tmp_path):
    """Through `from_pretrained`: files that are not JSON, not a config of ours, or do not fit the weights."""
    torch.manual_seed(0)
    model = MaxMIGModel(config_of(name))
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    whole, rng = path.read_bytes(), random.Random(f"{SEED} bytes {name}")
    doors = (MaxMIGConfig.from_pretrained, MaxMIGModel.from_pretrained, AutoConfig.from_pretrained, AutoModel.from_pretrained)  # fmt: skip
    refused = 0
    for number in range(250):
        wrong = damaged(whole, rng)
        path.write_bytes(wrong)
        door = doors[number % len(doors)]
        try:
            loaded = in_time(lambda door=door: door(tmp_path))
        except Slow:
            pytest.fail(f"{name} {number}: it takes more than {SECONDS} s: {wrong!r}")
        except Exception as error:
            foreign = door.__self__ in (AutoConfig, AutoModel) and not _reaches_us(wrong)
            if not (is_ours(error) or foreign):
                pytest.fail(f"{name} {number}: {error!r} of {wrong!r}")
            refused += 1
        else:
            config = getattr(loaded, "config", loaded)
            assert isinstance(config, MaxMIGConfig)
            fields = json.loads(wrong)
            assert config.annotators == (fields.get("annotators") or config.annotators)
            if loaded is not config:
                for tensor, other in zip(model.parameters(), loaded.parameters(), strict=True):
                    assert torch.equal(tensor, other)
    assert refused > 50


def _reaches_us(data):
    """Return whether an Auto class gets as far as our config; before that, transformers raises its own errors."""
    try:
        fields = json.loads(data.decode("utf-8"))
    except ValueError:
        return False
    return isinstance(fields, dict) and fields.get("model_type") == "maxmig"


def _shown(fields, wrong, name=""):
    """Return where a twisted config differs."""
    if isinstance(fields, dict) and isinstance(wrong, dict):
        keys = dict.fromkeys([*fields, *wrong])
        parts = [
            _shown(fields.get(key), wrong.get(key), f"{name}.{key}")
            for key in keys
            if repr(fields.get(key)) != repr(wrong.get(key))
        ]
        return "; ".join(parts)
    return f"{name}: {repr(wrong)[:200]}"
