"""Models of tables on the Hub: their card shows a row, and the processor is uploaded with them.

What holds for all modalities is tested in `test_modalities.py`.
"""

import json
import re

import pytest
import torch
from huggingface_hub import ModelCard

from hf_maxmig import (
    MaxMIGModel,
    MaxMIGTrainer,
    TableClassifier,
    TableProcessor,
)
from hf_maxmig.sharing.model_card import model_card
from tests.networks import draw_crowd, table_classifier
from tests.worlds import ANNOTATORS, CLASSES

NAME = "org/animals"

# The client passes a file to its HTTP client in a deprecated way.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@pytest.fixture
def pair(table_processor):
    head = table_classifier(table_processor)
    names = dict(enumerate(CLASSES))
    return draw_crowd(MaxMIGModel.from_classifier(head, annotators=ANNOTATORS, id2label=names)).eval()  # fmt: skip


def blocks(card):
    return re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)


def run(block):
    """Run a block of a card whose last line is an expression; return its value and all names."""
    *lines, last = block.strip().splitlines()
    value, space = None, {}
    if " = " in last:
        lines.append(last)
    exec(compile("\n".join(lines), "card", "exec"), space)
    if " = " not in last:
        value = eval(compile(last, "card", "eval"), space)
    return value, space


@pytest.mark.parametrize("columns", ["few", "many"])
def test_card_shows_a_row_and_its_code_runs(columns, pair, table_processor, tmp_path):
    """Transformers has no pipeline for tables, so the example copied from the card must run by itself."""
    if columns == "many":
        more = [c | {"name": f"{c['name']} {i}"} for i in range(9) for c in table_processor.columns]
        table_processor = TableProcessor(more)
        head = table_classifier(table_processor)
        names = dict(enumerate(CLASSES))
        pair = MaxMIGModel.from_classifier(head, annotators=ANNOTATORS, id2label=names).eval()
    folder = tmp_path / "model"
    pair.save_pretrained(folder)
    table_processor.save_pretrained(folder)
    card = model_card(pair, {}, {}, "animals", repo_id=str(folder), processor=table_processor)
    assert card.data.pipeline_tag == "tabular-classification"
    assert "| columns of a row | height" in card.text
    assert ("and 25 more |" in card.text) == (columns == "many")
    assert max(map(len, "".join(blocks(card)).replace(str(folder), "").splitlines())) < 120
    assert "image" not in card.text
    classify, forecast, whole = blocks(card)
    with torch.no_grad():
        expected = pair(**table_processor([table_processor.example])).logits.softmax(-1)
    torch.testing.assert_close(run(classify)[0], expected)
    answer, _ = run(forecast.replace('"an annotator": "cat"', '"ann": "cat"'))
    assert answer["heard"] == [("ann", "cat")]
    assert type(run(whole)[1]["model"]) is MaxMIGModel


def test_card_without_a_processor_takes_features(pair, table_processor, tmp_path):
    """The model may have been trained on features computed elsewhere."""
    pair.save_pretrained(tmp_path)
    card = model_card(pair, {}, {}, "animals", repo_id=str(tmp_path))
    classify, forecast, _ = blocks(card)
    assert f"features=torch.zeros(1, {table_processor.size})" in classify
    assert run(classify)[0].shape == (1, 3)
    assert run(forecast)[0]["unheard"] == [("an annotator", "cat")]


@pytest.mark.slow
def test_pushed_model_is_used_as_its_card_says(pair, table_processor, table, hub, ann, make_args):
    """The processor is uploaded with the model and its code; neither a pickle nor scikit-learn is needed."""
    trainer = MaxMIGTrainer(pair, make_args(hub_model_id=NAME), train_dataset=table, processing_class=table_processor)  # fmt: skip
    trainer.push_to_hub()
    files = hub.repository(NAME).files
    assert {"preprocessor_config.json", "table_processor.py", "pipelines.py"} < {*files}
    assert b"sklearn" not in files["table_processor.py"].content
    saved = json.loads(files["preprocessor_config.json"].content)
    assert saved["columns"] == table_processor.columns
    card = ModelCard(files["README.md"].content.decode())
    for block in blocks(card):
        run(block)
    trainer.push_to_hub(annotators="dropped")
    card = ModelCard(hub.repository(NAME).files["README.md"].content.decode())
    (classify,) = blocks(card)
    _, space = run(classify)
    assert type(space["model"]) is TableClassifier
