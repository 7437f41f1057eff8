"""Models of tables leave the house: their card, the Hub, ONNX, and a machine without the package."""

import json
import os
import re
import sys

import pytest
import torch
from huggingface_hub import ModelCard

from hf_maxmig import (
    MaxMIGModel,
    MaxMIGTrainer,
    TableClassifier,
    TableConfig,
    TableProcessor,
    export_onnx,
    fitted_table_processor,
    save_classifier,
)
from hf_maxmig.sharing.model_card import model_card
from tests.networks import draw_crowd
from tests.processes import finished
from tests.worlds import ANNOTATORS, CLASSES, make_table

NAME = "org/animals"
VOTES = {"ann": "cat", "dee": "dog"}

# The client hands a file to its own client in a manner that is going out of use.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@pytest.fixture(scope="module")
def table():
    return make_table()


@pytest.fixture(scope="module")
def processor(table):
    return fitted_table_processor(table)


@pytest.fixture
def pair(processor):
    torch.manual_seed(0)
    head = TableClassifier(TableConfig(input_size=processor.size, num_labels=3))
    names = dict(enumerate(CLASSES))
    return draw_crowd(MaxMIGModel.from_classifier(head, annotators=ANNOTATORS, id2label=names)).eval()  # fmt: skip


def blocks(card):
    return re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)


def run(block):
    """Run a block of a card, the last line of which is an expression: its value, and all names."""
    *lines, last = block.strip().splitlines()
    value, space = None, {}
    if " = " in last:
        lines.append(last)
    exec(compile("\n".join(lines), "card", "exec"), space)
    if " = " not in last:
        value = eval(compile(last, "card", "eval"), space)
    return value, space


@pytest.mark.parametrize("columns", ["few", "many"])
def test_card_shows_a_row_and_its_code_runs(columns, pair, processor, tmp_path):
    """Copied from the card, the example must run: there is no pipeline for tables in transformers."""
    if columns == "many":
        more = [c | {"name": f"{c['name']} {i}"} for i in range(9) for c in processor.columns]
        processor = TableProcessor(more)
        torch.manual_seed(1)
        head = TableClassifier(TableConfig(input_size=processor.size, num_labels=3))
        names = dict(enumerate(CLASSES))
        pair = MaxMIGModel.from_classifier(head, annotators=ANNOTATORS, id2label=names).eval()
    folder = tmp_path / "model"
    pair.save_pretrained(folder)
    processor.save_pretrained(folder)
    card = model_card(pair, {}, {}, "animals", repo_id=str(folder), processor=processor)
    assert card.data.pipeline_tag == "tabular-classification"
    assert "| columns of a row | height" in card.text
    assert ("and 25 more |" in card.text) == (columns == "many")
    assert max(map(len, "".join(blocks(card)).replace(str(folder), "").splitlines())) < 120
    assert "image" not in card.text
    classify, forecast, whole = blocks(card)
    with torch.no_grad():
        expected = pair(**processor([processor.example])).logits.softmax(-1)
    torch.testing.assert_close(run(classify)[0], expected)
    answer, _ = run(forecast.replace('"an annotator": "cat"', '"ann": "cat"'))
    assert answer["heard"] == [("ann", "cat")]
    assert type(run(whole)[1]["model"]) is MaxMIGModel


def test_card_without_a_processor_takes_features(pair, processor, tmp_path):
    """The model may have been trained on features that came from somewhere else."""
    pair.save_pretrained(tmp_path)
    card = model_card(pair, {}, {}, "animals", repo_id=str(tmp_path))
    classify, forecast, _ = blocks(card)
    assert f"features=torch.zeros(1, {processor.size})" in classify
    assert run(classify)[0].shape == (1, 3)
    assert run(forecast)[0]["unheard"] == [("an annotator", "cat")]


@pytest.mark.slow
def test_pushed_model_is_used_as_its_card_says(pair, processor, table, hub, ann, make_args):
    """The processor goes up with the model and its code; no pickle, and no scikit-learn, is needed."""
    trainer = MaxMIGTrainer(pair, make_args(hub_model_id=NAME), train_dataset=table, processing_class=processor)  # fmt: skip
    trainer.push_to_hub()
    files = hub.repository(NAME).files
    assert {"preprocessor_config.json", "table_processor.py", "pipelines.py"} < {*files}
    assert b"sklearn" not in files["table_processor.py"].content
    saved = json.loads(files["preprocessor_config.json"].content)
    assert saved["columns"] == processor.columns
    card = ModelCard(files["README.md"].content.decode())
    for block in blocks(card):
        run(block)
    trainer.push_to_hub(annotators="dropped")
    card = ModelCard(hub.repository(NAME).files["README.md"].content.decode())
    (classify,) = blocks(card)
    _, space = run(classify)
    assert type(space["model"]) is TableClassifier


@pytest.mark.slow
def test_classifier_of_tables_is_exported(pair, processor, table, tmp_path):
    """Whoever serves it computes the features by the processor."""
    pytest.importorskip("onnxruntime")
    features = processor(table.to_list()[:5])["features"]
    export_onnx(pair, tmp_path / "model.onnx", {"features": features})
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (logits,) = session.run(["logits"], {"features": features[:3].numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), pair(features=features[:3]).logits)


WITHOUT_PACKAGE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("hf_maxmig", "datasets"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
import json
from transformers import AutoFeatureExtractor, AutoModel, pipeline

row = json.loads(sys.argv[1])
forecast = pipeline("crowd-forecast", model="whole", trust_remote_code=True)
assert forecast.image_processor is None
processor = AutoFeatureExtractor.from_pretrained("alone", trust_remote_code=True)
model = AutoModel.from_pretrained("alone", trust_remote_code=True).eval()
probabilities = model(**processor([row])).logits.softmax(-1)[0].tolist()
print(json.dumps([forecast({**row, "votes": {"ann": "cat", "dee": "dog"}}), probabilities]))
"""


@pytest.mark.slow
def test_tables_are_classified_without_the_package(pair, processor, tmp_path):
    """Whoever pulls the model has transformers, and nothing else of ours."""
    pair.save_pretrained(tmp_path / "whole")
    processor.save_pretrained(tmp_path / "whole")
    save_classifier(pair, tmp_path / "alone", processor)
    assert {p.suffix for p in (tmp_path / "alone").iterdir()} == {".json", ".py", ".safetensors"}
    row = {"height": 1.5, "weight": None, "legs": 4, "colour": "grey", "tame": True}
    env = {**os.environ, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": ""}
    output, _ = finished([sys.executable, "-c", WITHOUT_PACKAGE, json.dumps(row)], env=env, cwd=tmp_path)  # fmt: skip
    answer, probabilities = json.loads(output.splitlines()[-1])
    from transformers import pipeline

    here = pipeline("crowd-forecast", model=str(tmp_path / "whole"))({**row, "votes": VOTES})
    assert answer["heard"] == [["ann", "cat"], ["dee", "dog"]]
    assert [a["label"] for a in answer["forecast"]] == [a["label"] for a in here["forecast"]]
    assert [a["score"] for a in answer["forecast"]] == pytest.approx([a["score"] for a in here["forecast"]], abs=1e-5)  # fmt: skip
    with torch.no_grad():
        expected = pair(**processor([row])).logits.softmax(-1)[0].tolist()
    assert probabilities == pytest.approx(expected, abs=1e-5)
