"""Pictures, texts, sounds and table rows: a promise about models of one modality holds for all."""

import json
import os
import re
import sys

import numpy as np
import pytest
import torch
from datasets import DatasetDict
from huggingface_hub import ModelCard
from transformers import AutoModel, pipeline

from hf_maxmig import MaxMIGModel, MaxMIGTrainer, export_onnx, frozen_features, save_classifier
from hf_maxmig.model.items import ItemReader
from hf_maxmig.sharing.model_card import model_card
from tests.modalities import AUDIO, IMAGE, MODALITIES, TABLE, TEXT, samples
from tests.processes import finished
from tests.worlds import CLASSES

NAME = "org/model"
VOTES = {"ann": "cat", "dee": "dog"}
NUMBERS = {"annotators": torch.tensor([[0, 3]]), "annotations": torch.tensor([[0, 1]])}

# The client passes a file to its HTTP client in a deprecated way.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]
each_modality = pytest.mark.parametrize("modality", MODALITIES, ids=repr)
CLASSIFIERS = [(modality, head) for modality in (*MODALITIES, TABLE) for head in (True, False)]
each_classifier = pytest.mark.parametrize(
    ("modality", "head"),
    CLASSIFIERS,
    ids=lambda v: ("native", "head")[v] if isinstance(v, bool) else repr(v),
)


def inputs_of(modality, model, number=4):
    """Return a batch of the raw items, as the pipeline makes it."""
    reader = ItemReader(model.classifier, modality.task, modality.processor())
    return reader.batch([reader(modality.parts(raw), n) for n, raw in enumerate(modality.raw(number))], 0)  # fmt: skip


def scores(answers):
    answers = [one[0] if isinstance(one[0], list) else one for one in answers]  # texts
    return torch.tensor([[{a["label"]: a["score"] for a in one}[c] for c in CLASSES] for one in answers])  # fmt: skip


@each_classifier
def test_model_comes_back_by_the_auto_classes(modality, head, tmp_path):
    """The task follows from the classifier. With a wrong Auto class, nobody could load the model."""
    model = modality.model(head)
    assert model.config.classifier_task == modality.task
    model.save_pretrained(tmp_path / "whole")
    save_classifier(model, tmp_path / "alone", modality.processor())
    batch = inputs_of(modality, model)
    with torch.no_grad():
        expected = model(**batch).logits
        assert expected.softmax(-1).std(dim=0).max() > 1e-3  # items differ
        for auto_class in (AutoModel, modality.auto_class):
            again = auto_class.from_pretrained(tmp_path / "whole").eval()
            assert type(again) is MaxMIGModel
            torch.testing.assert_close(again(**batch).logits, expected)
            assert again(**batch, annotators=torch.tensor([[0]] * 4), annotations=torch.tensor([[1]] * 4)).forecast_logits is not None  # fmt: skip
        alone = modality.auto_class.from_pretrained(tmp_path / "alone").eval()
        assert type(alone) is type(model.classifier)
        torch.testing.assert_close(alone(**batch).logits, expected)
    frozen = [n for n, p in again.named_parameters() if not p.requires_grad]
    assert all(n.startswith("classifier.encoder.") for n in frozen)
    assert bool(frozen) == (head and modality is not TABLE)


@each_classifier
def test_pipelines_take_raw_items(modality, head, tmp_path):
    """Files and strings must give the model's own answer, in batches of any size."""
    model, raw = modality.model(head), modality.raw()
    model.save_pretrained(tmp_path)
    modality.processor().save_pretrained(tmp_path)
    forecast = pipeline("crowd-forecast", model=str(tmp_path))
    answers = forecast([{**modality.parts(item), "votes": VOTES} for item in raw])
    again = forecast([{**modality.parts(item), "votes": VOTES} for item in raw], batch_size=3)
    batch = inputs_of(modality, model)
    crowd = {name: numbers.expand(len(raw), -1) for name, numbers in NUMBERS.items()}
    with torch.no_grad():
        out = model(**batch, **crowd)
    expected = out.forecast_logits.exp()
    for one in (answers, again):
        torch.testing.assert_close(scores([a["forecast"] for a in one]), expected, atol=1e-5, rtol=0)  # fmt: skip
    assert answers[0]["heard"] == [("ann", "cat"), ("dee", "dog")]
    if modality is TABLE:
        return  # transformers has no pipeline for tables
    plain = pipeline(modality.task, model=str(tmp_path), top_k=3)
    if modality is AUDIO:  # transformers' own pipeline needs ffmpeg to open files
        raw = [samples(item["bytes"]) for item in raw]
    found = scores([plain(item) for item in raw])
    torch.testing.assert_close(found, out.logits.softmax(-1), atol=1e-5, rtol=0)


def blocks(card):
    return re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)


@each_modality
def test_code_of_the_card_runs(modality, tmp_path, monkeypatch):
    """Copied from the card, the example must run."""
    model = modality.model()
    model.save_pretrained(tmp_path / "model")
    modality.processor().save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    raw = modality.raw(1)[0]
    if modality.name == "image":
        raw.save("picture.jpg")
    elif modality.name == "audio":
        (tmp_path / "sound.wav").write_bytes(raw["bytes"])
    card = model_card(model, {}, {}, "model", repo_id="./model", processor=modality.processor())
    assert card.data.pipeline_tag == modality.task
    classify, forecast, whole = blocks(card)
    assert f'pipeline("{modality.task}"' in classify
    if modality is AUDIO:
        assert "`ffmpeg`" in card.text
        classify = classify.replace('classify("sound.wav")', "")
    space = {}
    for block in (classify, forecast.replace("forecast({", "answer = forecast({"), whole):
        exec(compile(block, "card", "exec"), space)
    assert space["answer"]["unheard"] == [("an annotator", "cat")]
    assert type(space["model"]) is MaxMIGModel


@pytest.mark.slow
@each_modality
def test_trained_on_features_the_pushed_model_takes_items(
    modality, hub, ann, make_args, tmp_path, monkeypatch
):
    """Covers the whole way, from computing features to classifying raw items with the model loaded from the Hub."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    modality.encoder().save_pretrained(tmp_path / "encoder")
    processor = modality.processor()
    crowd = modality.crowd()
    data, encoder = frozen_features(DatasetDict(train=crowd), str(tmp_path / "encoder"), processor, modality.name)  # fmt: skip
    assert ("text" in data["train"][0]) == (modality is TEXT)
    head = modality.head.from_encoder(encoder, 8, dropout=0.0, id2label=dict(enumerate(CLASSES)))
    args = make_args(hub_model_id=NAME, num_train_epochs=15)
    trainer = MaxMIGTrainer(head, args, train_dataset=data["train"], processing_class=processor)
    trainer.train()
    assert trainer.evaluate(data["train"])["eval_accuracy"] > 0.6
    trainer.push_to_hub()
    files = hub.repository(NAME).files
    assert {"heads.py", "pooling.py", "pipelines.py", "model.safetensors"} < {*files}
    card = ModelCard(files["README.md"].content.decode())
    assert card.data.pipeline_tag == modality.task
    forecast = pipeline("crowd-forecast", model=NAME)
    raw = crowd[3][modality.name]
    answer = forecast({modality.name: raw, "votes": {}})
    log_h = trainer.predict(data["train"]).predictions[0][3]
    expected = torch.tensor(np.exp(log_h))[None]
    torch.testing.assert_close(scores([answer["forecast"]]), expected, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("modality", [TEXT, AUDIO, TABLE], ids=repr)
def test_head_is_exported(modality, tmp_path):
    """The file takes the encoder's inputs, or a row's features, padded and in batches of any size.

    Pictures have their own test.
    """
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = modality.model()
    batch = inputs_of(modality, model)
    export_onnx(model, tmp_path / "h.onnx", batch)
    session = onnxruntime.InferenceSession(tmp_path / "h.onnx")
    assert {i.name for i in session.get_inputs()} == {*batch}
    with torch.no_grad():
        right = model(**batch).logits
    (found,) = session.run(None, {name: tensor.numpy()[1:] for name, tensor in batch.items()})
    torch.testing.assert_close(torch.from_numpy(found), right[1:], rtol=0, atol=1e-4)


WITHOUT_PACKAGE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("hf_maxmig", "datasets"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
import json
from transformers import AutoFeatureExtractor, AutoModel, pipeline

def classify(name, task, raw):
    folder = f"{name}-alone"
    if name == "row":  # transformers has no pipeline for tables
        processor = AutoFeatureExtractor.from_pretrained(folder, trust_remote_code=True)
        model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
        probabilities = model(**processor([raw])).logits.softmax(-1)[0].tolist()
        return [{"label": model.config.id2label[c], "score": p} for c, p in enumerate(probabilities)]
    if isinstance(raw, list):
        import numpy
        raw = numpy.array(raw, dtype="float32")
    return pipeline(task, model=folder, trust_remote_code=True, top_k=3)(raw)

answers = {}
for name, task, parts, raw in json.loads(sys.argv[1]):
    forecast = pipeline("crowd-forecast", model=f"{name}-whole", trust_remote_code=True)
    assert name != "row" or forecast.image_processor is None
    answer = forecast({**parts, "votes": {"ann": "cat", "dee": "dog"}})
    answers[name] = [answer["forecast"], classify(name, task, raw)]
print(json.dumps(answers))
"""


@pytest.mark.slow
def test_items_are_classified_without_the_package(tmp_path):
    """Users of the model have only transformers: the model's code is uploaded with it."""
    asked, expected = [], {}
    for modality in (*MODALITIES, TABLE):
        model, raw = modality.model(), modality.raw(1)[0]
        whole = tmp_path / f"{modality.name}-whole"
        model.save_pretrained(whole)
        modality.processor().save_pretrained(whole)
        save_classifier(model, tmp_path / f"{modality.name}-alone", modality.processor())
        item = plain = raw
        if modality is IMAGE:
            raw.save(tmp_path / "picture.png")
            item = plain = "picture.png"
        elif modality is AUDIO:
            (tmp_path / "sound.wav").write_bytes(raw["bytes"])
            item, plain = "sound.wav", samples(raw["bytes"]).tolist()
        asked.append([modality.name, modality.task, modality.parts(item), plain])
        with torch.no_grad():
            out = model(**inputs_of(modality, model, 1), **NUMBERS)
        expected[modality.name] = torch.cat([out.forecast_logits.exp(), out.logits.softmax(-1)])
    env = {**os.environ, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": ""}
    output, _ = finished([sys.executable, "-c", WITHOUT_PACKAGE, json.dumps(asked)], env=env, cwd=tmp_path)  # fmt: skip
    answers = json.loads(output.splitlines()[-1])
    for name, right in expected.items():
        torch.testing.assert_close(scores(answers[name]), right, atol=1e-5, rtol=0)
