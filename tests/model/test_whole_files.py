"""Saved models are complete, and incomplete ones are refused."""

import errno
import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
)

from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGModel, save_classifier
from hf_maxmig.model.whole_files import MANIFEST, already_checked, check_whole, read_manifest
from tests.children import needs_fork, run

WEIGHTS = "model.safetensors"


def make_pair(seed, annotators):
    torch.manual_seed(seed)
    head = HeadConfig(input_size=5, hidden_size=16, id2label={0: "cat", 1: "dog", 2: "emu"})
    pair = MaxMIGModel.from_classifier(HeadClassifier(head), annotators=annotators)
    nn.init.normal_(pair.aggregator.table)
    return pair


def small_resnet(seed, names):
    torch.manual_seed(seed)
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", id2label=dict(enumerate(names))
    )  # fmt: skip
    return MaxMIGModel.from_classifier(ResNetForImageClassification(config), num_annotators=2)


@pytest.fixture
def saved(tmp_path):
    make_pair(0, ["ann", "bob"]).save_pretrained(tmp_path / "pair")
    return tmp_path / "pair"


SAVES = {
    "pair": (
        lambda seed: make_pair(seed, ["ann", "bob"] if seed == 0 else ["cyd", "dee"]),
        lambda pair, folder: pair.save_pretrained(folder),
        lambda folder: AutoModel.from_pretrained(folder),
        lambda model: (model.config.annotators, model.aggregator.table.tolist()),
    ),
    "in parts": (
        lambda seed: make_pair(seed, ["ann", "bob"] if seed == 0 else ["cyd", "dee"]),
        lambda pair, folder: pair.save_pretrained(folder, max_shard_size=600),
        lambda folder: AutoModel.from_pretrained(folder),
        lambda model: (model.config.annotators, model.aggregator.table.tolist()),
    ),
    "classifier": (
        lambda seed: small_resnet(seed, ["cat", "dog"] if seed == 0 else ["emu", "fox"]),
        lambda pair, folder: save_classifier(pair, folder),
        lambda folder: AutoModelForImageClassification.from_pretrained(folder),
        lambda model: (model.config.id2label, model.classifier[-1].weight.tolist()),
    ),
}  # fmt: skip


def killed_at(number, kind, folder):
    """Save the new model in a process that dies before its n-th disk operation."""
    make, save, *_ = SAVES[kind]
    new, done = make(1), 0

    def counted(step):
        def take(*args, **kwargs):
            nonlocal done
            if done == number:
                os._exit(9)
            done += 1
            return step(*args, **kwargs)

        return take

    for name in ("replace", "rename", "link", "unlink", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))
    save(new, folder)
    os._exit(0)  # a normal exit would also touch the disk


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize(
    ("kind", "every"),
    [
        ("in parts", 4), ("classifier", 1),
        *(pytest.param(kind, 1, marks=pytest.mark.full) for kind in ("in parts", "pair")),
    ],
)  # fmt: skip
def test_save_that_is_killed_leaves_the_old_or_the_new_model(kind, every, tmp_path):
    """New weights under the old names of annotators or classes would load as another model."""
    make, save, load, told_of = SAVES[kind]
    old, new = make(0), make(1)
    save(old, tmp_path / "old")
    save(new, tmp_path / "new")
    expected = [told_of(load(tmp_path / name)) for name in ("old", "new")]
    assert expected[0] != expected[1]
    outcomes, ended, number = [], False, 0
    while not ended:
        folder = tmp_path / "model"
        shutil.copytree(tmp_path / "old", folder)
        code = run(tmp_path / "log", killed_at, number, kind, folder)
        assert code in (0, 9), (tmp_path / "log").read_text()
        ended = code == 0
        outcomes.append(expected.index(told_of(load(folder))))
        save(old, folder)  # the next save cleans up
        assert not list(folder.glob("_switching-*"))
        assert told_of(load(folder)) == expected[0]
        shutil.rmtree(folder)
        number += every
    assert outcomes == sorted(outcomes)
    assert outcomes.count(0) > (1 if every == 1 else 0)
    assert outcomes.count(1) > 4


def without_a_tensor(folder):
    tensors = load_file(folder / WEIGHTS)
    del tensors["aggregator.table"]
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def with_another(folder):
    save_file(
        load_file(folder / WEIGHTS) | {"w": torch.ones(2)}, folder / WEIGHTS, {"format": "pt"}
    )


def with_another_shape(folder):
    tensors = load_file(folder / WEIGHTS)
    save_file(tensors | {"aggregator.table": torch.ones(5, 3, 3)}, folder / WEIGHTS, {"format": "pt"})  # fmt: skip


def with_an_empty_head(folder):
    (folder / WEIGHTS).write_bytes((2).to_bytes(8, "little") + b"{}")


DAMAGE = {
    "none for aggregator.table": without_a_tensor,
    "some too many, w": with_another,
    "another shape for aggregator.table": with_another_shape,
    "none for aggregator.table, classifier.fc.bias": with_an_empty_head,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_weights_that_are_not_the_models_are_refused_without_a_manifest_too(damage, saved):
    """A tensor missing from the file would start at random, and the model would look like any other."""
    (saved / MANIFEST).unlink()
    DAMAGE[damage](saved)
    with pytest.raises(ValueError, match=f"weights must be those of the model.*got {damage}"):
        AutoModel.from_pretrained(saved)


def test_model_without_a_manifest_and_with_a_readme_of_ones_own_loads(saved):
    """Older models, models from the Hub or assembled by hand are valid too, and people edit READMEs."""
    (saved / "README.md").write_text("# Mine")
    AutoModel.from_pretrained(saved)
    (saved / MANIFEST).unlink()
    AutoModel.from_pretrained(saved)


def flipped(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(bytes(content))


def test_one_flipped_bit_is_found(saved):
    """The size is right and every tensor is present, so nothing but the digest shows the change."""
    flipped(saved / WEIGHTS, -3)
    with pytest.raises(
        ValueError, match=r"`model\.safetensors` must be as it was saved, got other"
    ):
        AutoModel.from_pretrained(saved)
    (saved / MANIFEST).unlink()  # as the message advises
    AutoModel.from_pretrained(saved)


@pytest.mark.parametrize(
    ("change", "loads"),
    [
        (lambda config: config | {"mine": 1}, True),
        (lambda config: {k: v for k, v in config.items() if k != "aggregator"}, True),
        (lambda config: dict(reversed(config.items())), True),
        (lambda config: config | {"divergence": "pearson"}, False),
        (lambda config: {k.replace("aggregator", "aggregatos"): v for k, v in config.items()}, False),
    ],
)  # fmt: skip
def test_config_may_gain_and_lose_fields_but_not_say_something_else(change, loads, saved):
    """Users add fields and older versions lack some, but a changed value makes another model."""
    path = saved / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    if loads:
        AutoModel.from_pretrained(saved)
    else:
        with pytest.raises(
            ValueError, match=r"`config\.json` must be as it was saved, got another"
        ):
            AutoModel.from_pretrained(saved)


def test_damaged_manifest_is_no_manifest(saved):
    """If it were trusted, it would refuse a good model or accept a damaged one."""
    for content in (b"", b"{}", b"[]", b"\xff", b"[" * 100_000):
        (saved / MANIFEST).write_bytes(content)
        with pytest.raises(ValueError, match="must be as it was saved, got other content"):
            read_manifest(saved)


def test_digests_are_computed_once_where_they_were_just_now(saved):
    """Otherwise a large checkpoint would be read twice: before resuming and while loading."""
    with already_checked(saved):
        flipped(saved / WEIGHTS, -3)
        check_whole(saved)
    with pytest.raises(ValueError, match="got other content"):
        check_whole(saved)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_full_or_locked_disk_is_told_and_the_old_model_stays(number, saved, monkeypatch):
    """The error of whichever library wrote last does not say that somebody has to free or unlock the disk."""
    before = {path.name: path.read_bytes() for path in saved.iterdir()}

    def refuse(tensors, filename, metadata=None):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", refuse)
    with pytest.raises(OSError, match="a model must be written whole, got an error in"):
        make_pair(1, ["cyd", "dee"]).save_pretrained(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
