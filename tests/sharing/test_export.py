"""The classifier alone: what transformers loads by itself, and what onnxruntime computes."""

import json
import os
import sys

import pytest
import torch
from PIL import Image
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    BertConfig,
    BertForSequenceClassification,
    ViTImageProcessor,
    pipeline,
)

from hf_maxmig import (
    MaxMIGModel,
    peer,
)
from hf_maxmig.sharing import export as exporting
from hf_maxmig.sharing.export import export_onnx, save_classifier
from tests.networks import cnn, head_on_backbone, head_on_pictures, resnet, timm_model, vgg
from tests.processes import finished

CLASSES = ["cat", "dog", "emu", "fox", "gnu"]


NATIVE = [resnet, timm_model]
OURS = [cnn, head_on_pictures, head_on_backbone]


def make_pair(make_classifier):
    """Return a model in training mode, as a trainer leaves it, with random batch statistics."""
    torch.manual_seed(0)
    pair = MaxMIGModel.from_classifier(
        make_classifier(), annotators=["ann", "bob"], id2label=dict(enumerate(CLASSES))
    )
    with torch.no_grad():
        for module in pair.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 2)
        pair.aggregator.table.normal_()
    return pair.train()


def pictures(number=4):
    return torch.randn(number, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def logits(model):
    with torch.no_grad():
        return model.eval()(pixel_values=pictures()).logits


@pytest.mark.parametrize(
    "make_classifier",
    [
        resnet,
        timm_model,
        cnn,
        head_on_pictures,
        head_on_backbone,
        pytest.param(vgg, marks=pytest.mark.slow),
    ],
    ids=lambda f: f.__name__,
)
def test_saved_classifier_is_the_models_with_its_class_names(make_classifier, tmp_path):
    """A checkpoint with names LABEL_0 to LABEL_4, or of an untrained classifier, would load as well."""
    pair = make_pair(make_classifier)
    saved = save_classifier(pair, tmp_path / "new" / "classifier")
    assert saved is pair.classifier
    again = AutoModelForImageClassification.from_pretrained(tmp_path / "new" / "classifier")
    assert again.config.id2label == dict(enumerate(CLASSES))
    assert again.config.label2id == {name: c for c, name in enumerate(CLASSES)}
    assert not hasattr(again, "aggregator")
    torch.testing.assert_close(logits(again), logits(pair), rtol=0, atol=1e-6)


def test_names_given_to_the_model_later_are_saved(tmp_path):
    """The classifier's config holds a copy of the names, which may be out of date."""
    pair = make_pair(resnet)
    pair.config.id2label = {c: name.upper() for c, name in enumerate(CLASSES)}
    pair.config.label2id = {name: c for c, name in pair.config.id2label.items()}
    save_classifier(pair, tmp_path)
    config = AutoModelForImageClassification.from_pretrained(tmp_path).config
    assert config.id2label[1] == "DOG"
    assert config.label2id["DOG"] == 1


def test_classifier_with_its_processor_runs_in_a_pipeline(tmp_path):
    """This is the first thing that anyone tries with the folder."""
    pair = make_pair(resnet)
    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    save_classifier(pair, tmp_path, processor)
    picture = Image.effect_noise((40, 30), 90).convert("RGB")
    (best, *_) = pipeline("image-classification", model=str(tmp_path))(picture)
    with torch.no_grad():
        h = pair.eval()(**processor(picture, return_tensors="pt")).logits.softmax(-1)[0]
    assert best["label"] == CLASSES[h.argmax()]
    assert best["score"] == pytest.approx(float(h.max()), abs=1e-5)


@pytest.mark.slow
def test_classifier_runs_without_the_package(tmp_path):
    """In deployment there is only transformers; only our own networks need their source file."""
    trusted = {"resnet": False, "timm_model": False, "head_on_backbone": True, "head_on_pictures": True}  # fmt: skip
    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    for make_classifier in (resnet, timm_model, head_on_backbone, head_on_pictures):
        folder = tmp_path / make_classifier.__name__
        pair = make_pair(make_classifier)
        if make_classifier is head_on_pictures:  # as transformers saves it
            pair.classifier_alone().save_pretrained(folder)
            processor.save_pretrained(folder)
        else:
            save_classifier(pair, folder, processor)
        ours = sorted(path.name for path in folder.glob("*.py"))
        ours_if_any = ["heads.py", "plain_classifier.py", "pooling.py"]
        assert ours == ours_if_any * trusted[make_classifier.__name__]
    Image.effect_noise((40, 30), 90).convert("RGB").save(tmp_path / "picture.png")
    script = (
        "import sys; sys.modules['hf_maxmig'] = None\n"
        "import json; from transformers import AutoModelForImageClassification, pipeline\n"
        "answers = {}\n"
        f"for name, trust in {trusted}.items():\n"
        "    AutoModelForImageClassification.from_pretrained(name, trust_remote_code=trust)\n"
        "    ask = pipeline('image-classification', model=name, trust_remote_code=trust)\n"
        "    answers[name] = ask('picture.png')\n"
        "assert sys.modules['hf_maxmig'] is None\n"
        "json.dump(answers, open('answers.json', 'w'))\n"
    )
    env = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    finished([sys.executable, "-c", script], cwd=tmp_path, env=env)
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert answers.keys() == trusted.keys()
    for name, answer in answers.items():
        here = pipeline("image-classification", model=str(tmp_path / name))
        right = {a["label"]: a["score"] for a in here(str(tmp_path / "picture.png"))}
        assert right.keys() == set(CLASSES)
        assert {a["label"]: a["score"] for a in answer} == pytest.approx(right, abs=1e-5)


def test_model_is_not_replaced_by_its_classifier(tmp_path):
    """Saved into the model's own folder, the classifier would overwrite the aggregator for good."""
    pair = make_pair(resnet)
    pair.save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match="must be empty or hold a classifier of type 'resnet', got"
    ):
        save_classifier(pair, tmp_path)
    assert type(AutoModel.from_pretrained(tmp_path)) is MaxMIGModel
    save_classifier(pair, tmp_path / "alone")
    save_classifier(pair, tmp_path / "alone")  # saving it again is fine


def test_interrupted_save_leaves_the_last_classifier_whole(tmp_path, monkeypatch):
    """After a full disk in the middle of the weights, the deployed classifier must still load."""
    pair = make_pair(resnet)
    save_classifier(pair, tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def half_written(tensors, filename, metadata=None):
        with open(filename, "wb") as file:
            file.write(b"\0" * 100)
        raise OSError("No space left on device")

    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", half_written)
    nn.init.zeros_(pair.classifier.classifier[-1].weight)
    with pytest.raises(OSError, match="No space left"):
        save_classifier(pair, tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_what_is_no_classifier_by_itself_is_refused(tmp_path):
    """Doctor Net averages over heads, so its `classifier` alone gives other answers."""
    heads = peer("doctor_net", resnet(), num_annotators=2)
    for refused in (
        lambda model: save_classifier(model, tmp_path),
        lambda model: exporting._classifier_of(model),
    ):
        with pytest.raises(
            ValueError, match="must be `model.classifier` alone, got DoctorNetModel"
        ):
            refused(heads)
        with pytest.raises(TypeError, match="such as MaxMIGModel, got ResNetForImageClass"):
            refused(resnet())
    assert not list(tmp_path.iterdir())
    assert save_classifier(peer("aggnet", resnet(), num_annotators=2), tmp_path) is not None


# ONNX


@pytest.fixture
def onnxruntime():
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'hf_maxmig[onnx]'")
    return pytest.importorskip(
        "onnxruntime", reason="onnxruntime is not installed: pip install 'hf_maxmig[onnx]'"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "make_classifier",
    [*NATIVE, *OURS, pytest.param(vgg, marks=pytest.mark.full)],
    ids=lambda f: f.__name__,
)
def test_onnx_computes_the_logits_for_batches_of_any_size(make_classifier, tmp_path, onnxruntime):
    """An export in training mode, or with a fixed batch size, would still run."""
    pair = make_pair(make_classifier)
    path = export_onnx(pair, tmp_path / "new" / "h.onnx", {"pixel_values": pictures(1)})
    assert pair.classifier.training
    assert [p.name for p in path.parent.iterdir()] == ["h.onnx"]
    session = onnxruntime.InferenceSession(path)
    assert [i.name for i in session.get_inputs()] == ["pixel_values"]
    assert [o.name for o in session.get_outputs()] == ["logits"]
    names = json.loads(session.get_modelmeta().custom_metadata_map["id2label"])
    assert names == {str(c): name for c, name in enumerate(CLASSES)}
    right = logits(pair)
    for size in (1, 3, 4):
        (found,) = session.run(None, {"pixel_values": pictures().numpy()[:size]})
        torch.testing.assert_close(torch.from_numpy(found), right[:size], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_onnx_takes_features_and_half_precision(tmp_path, onnxruntime):
    """A head on given features has another input, and bfloat16 cannot be stored in the file."""
    pair = make_pair(head_on_pictures).to(torch.bfloat16)
    features = pictures().flatten(1)
    path = export_onnx(pair, tmp_path / "h.onnx", {"features": features.to(torch.bfloat16)})
    assert pair.dtype == torch.bfloat16
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(None, {"features": features.numpy()})
    with torch.no_grad():
        right = pair.float().eval()(features=features).logits
    torch.testing.assert_close(torch.from_numpy(found), right, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_onnx_of_a_text_classifier_takes_several_inputs(tmp_path, onnxruntime):
    """Two inputs of one size used to end in torch's NameError."""
    config = BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=5
    )  # fmt: skip
    pair = make_pair(lambda: BertForSequenceClassification(config))
    tokens = torch.randint(3, 30, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    mask[1, 4:] = 0
    path = export_onnx(pair, tmp_path / "h.onnx", {"input_ids": tokens, "attention_mask": mask})
    session = onnxruntime.InferenceSession(path)
    assert [value.shape[0] for value in (*session.get_inputs(), *session.get_outputs())] == ["batch"] * 3  # fmt: skip
    with torch.no_grad():
        right = pair.eval()(input_ids=tokens, attention_mask=mask).logits
    for size in (1, 2, 3):
        inputs = {"input_ids": tokens.numpy()[:size], "attention_mask": mask.numpy()[:size]}
        (found,) = session.run(None, inputs)
        torch.testing.assert_close(torch.from_numpy(found), right[:size], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_onnx_that_computes_something_else_is_not_written(tmp_path, onnxruntime, monkeypatch):
    """A faulty export written over a good file would be deployed in its place."""
    pair, path = make_pair(head_on_pictures), tmp_path / "h.onnx"
    example = {"features": pictures().flatten(1)}
    before = export_onnx(pair, path, example).read_bytes()
    check = exporting._check_file

    def check_another(place, wrapped, batch, atol):
        nn.init.normal_(wrapped.classifier.output.weight)  # torch now computes something else
        check(place, wrapped, batch, atol)

    monkeypatch.setattr(exporting, "_check_file", check_another)
    with pytest.raises(
        RuntimeError, match="must compute torch's logits to 0.0001, got a difference"
    ):
        export_onnx(pair, path, example)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["h.onnx"]


def test_onnx_without_its_packages_says_what_to_install(tmp_path, monkeypatch):
    """Torch's own message names one missing package at a time."""
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        ImportError,
        match=r"got no .*onnxscript.*: install them by `pip install 'hf_maxmig\[onnx\]'`",
    ):
        export_onnx(
            make_pair(head_on_pictures), tmp_path / "h.onnx", {"features": torch.zeros(2, 3072)}
        )


@pytest.mark.parametrize(
    "example",
    [{}, {"features": torch.zeros(0, 4)}, {"a": torch.zeros(2, 4), "b": torch.zeros(3, 4)}],
)
def test_example_without_a_batch_is_refused(example):
    """An export with an empty example checks nothing."""
    with pytest.raises(ValueError, match="`example` must hold tensors of the same number of items"):
        exporting._batch(example)
