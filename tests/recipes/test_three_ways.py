"""A model that a recipe has trained and pushed gives the same results in three ways of loading it."""

import os
import re
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image
from transformers import AutoImageProcessor, AutoModel

from hf_maxmig.command import classification, runs
from hf_maxmig.command.flags import parse
from tests.networks import small_timm, small_vit
from tests.processes import finished

# The client passes a file to its HTTP client in a deprecated way.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning"),
]

SHORT = ["--num_train_epochs", "2", "--init", "vote_share", "--search_rate", "False", "--use_cpu", "True"]  # fmt: skip

PULL = """
import sys

way, *kinds = sys.argv[1:]

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "hf_maxmig":
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

if way == "package":
    import hf_maxmig
    trusted = {}
else:
    sys.meta_path.insert(0, Blocked())
    trusted = {"trust_remote_code": True}

import torch
from PIL import Image
from transformers import AutoModel, AutoModelForImageClassification, pipeline

for kind in kinds:
    name = f"org/maxmig-{kind}"
    inputs = torch.load(f"{kind}/asked.pt", weights_only=True)
    answers = []
    for auto_class in (AutoModel, AutoModelForImageClassification):
        pair = auto_class.from_pretrained(name, **trusted)
        with torch.no_grad():
            outputs = pair(**inputs)
        answers.append([outputs.logits, outputs.aggregator_logits, outputs.forecast_logits])
    classify = pipeline("image-classification", model=name, **trusted)
    scores = {entry["label"]: entry["score"] for entry in classify(Image.open("picture.png"), top_k=10)}
    forecast = pipeline("crowd-forecast", model=name, **trusted)(Image.open("picture.png"), top_k=10)["forecast"]
    assert {entry["label"] for entry in forecast} == {*scores}
    assert all(abs(entry["score"] - scores[entry["label"]]) < 1e-5 for entry in forecast)
    who, said = pair.config.annotators[0], pair.config.class_names[0]
    pictures = [{"image": Image.open("picture.png"), "votes": {who: said}}, Image.open("picture.png")]
    questions = pair.ask(pictures, 3, annotators=[who, "new"], processor=classify.image_processor)
    torch.save([answers, scores, questions], f"{kind}/{way}.pt")
assert ("hf_maxmig" in sys.modules) == (way == "package")
"""


@pytest.fixture
def push(ann, load, tmp_path):
    """Train on the digits by a recipe, and push the model."""

    def by_recipe(kind):
        folder = str(tmp_path / kind)
        shared = [
            "--push_to_hub",
            "True",
            "--hub_model_id",
            f"org/maxmig-{kind}",
            "--report_to",
            "none",
            *SHORT,
        ]
        if kind == "digits":
            page = load("digits")
            page.main(*arguments(page.DigitsArguments, page.DigitsTrainingArguments,
                                 ["--output_dir", folder, *shared]))  # fmt: skip
            return folder
        files = tmp_path / "files"
        page = load("digits")
        few = {
            split: data.select(range(200))
            for split, data in page.digits(page.DigitsArguments(), seed=0).items()
        }
        page.write_files(few, files)
        network = {"timm": small_timm, "transformers": small_vit}[kind](num_labels=10)
        network.save_pretrained(tmp_path / "network")
        processor = {"timm": None, "transformers": "ViTImageProcessor"}[kind]
        if processor is not None:
            import transformers

            size = {"height": 16, "width": 16}
            getattr(transformers, processor)(size=size).save_pretrained(tmp_path / "network")
        runs.run(classification.recipe(*arguments(
            classification.DataArguments, classification.ModelArguments,
            classification.ClassificationTrainingArguments,
            ["--train_dir", str(files / "train"), "--votes", str(files / "votes.csv"), "--model_name_or_path",
             str(tmp_path / "network"), "--output_dir", folder, *shared],
        )))  # fmt: skip
        return folder

    return by_recipe


def arguments(*kinds):
    *kinds, flags = kinds
    return parse(*kinds, arguments=flags)


def asked_of(folder):
    """Write down the questions to a model; return this process's answers."""
    picture = Image.open(folder.parent / "picture.png")
    processor = AutoImageProcessor.from_pretrained(folder)
    inputs = dict(processor([picture, picture.rotate(90)], return_tensors="pt"))
    inputs["annotators"] = torch.tensor([[0, 2, 9], [1, -1, -1]])
    inputs["annotations"] = torch.tensor([[1, 1, 4], [0, -1, -1]])
    torch.save(inputs, folder / "asked.pt")
    with torch.no_grad():
        return AutoModel.from_pretrained(folder)(**inputs)


@pytest.mark.parametrize(
    "kinds",
    [
        ["digits", "transformers"],
        pytest.param(["digits", "timm", "transformers"], marks=pytest.mark.full),
    ],
    ids=len,
)
def test_model_comes_back_three_ways(kinds, push, hub, monkeypatch, tmp_path):
    """With the package, by remote code without it, and in a pipeline, the numbers must be the same."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (40, 50, 3), generator=generator, dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(tmp_path / "picture.png")
    expected = {kind: asked_of(Path(push(kind))) for kind in kinds}
    for way in ("package", "remote_code"):
        if way == "package":  # which this process has: a new one imports for ten seconds
            monkeypatch.chdir(tmp_path)
            monkeypatch.setattr(sys, "argv", ["pull", way, *kinds])
            exec(compile(PULL, "pull", "exec"), {})
        else:
            home = hub.environment(tmp_path / "home_without")
            command = [sys.executable, "-I", "-c", PULL, way, *kinds]
            finished(command, cwd=tmp_path, env={**os.environ, **home})
        for kind, outputs in expected.items():
            answers, scores, questions = torch.load(
                tmp_path / kind / f"{way}.pt", weights_only=True
            )
            who = AutoModel.from_pretrained(tmp_path / kind).config.annotators[0]
            asked = {(one["item"], one["annotator"]) for one in questions}
            assert (1, who) in asked <= {(0, "new"), (1, "new"), (1, who)}
            logits = outputs.logits, outputs.aggregator_logits, outputs.forecast_logits
            assert outputs.aggregator_logits[0].std() > 0.1
            assert len(answers) == 2
            for answer in answers:
                for given, wanted in zip(answer, logits, strict=True):
                    torch.testing.assert_close(given, wanted, rtol=0, atol=1e-6)
            wanted = outputs.logits[0].softmax(dim=-1).tolist()
            assert [scores[str(c)] for c in range(10)] == pytest.approx(wanted, abs=1e-6), kind


def test_model_of_labelme_loads_exactly_as_its_card_says(ann, hub, load, shared_data, tmp_path):
    """The card that was pushed with it shows `AutoModel.from_pretrained("org/maxmig-labelme")`."""
    page = load("labelme")
    folder = str(tmp_path / "out")
    name = "org/maxmig-labelme"
    page.main(*arguments(page.LabelMeArguments, page.RealCrowdTrainingArguments, [
        "--data_dir", str(shared_data / "labelme"), "--output_dir", folder, "--push_to_hub", "True",
        "--hub_model_id", name, "--report_to", "none", *SHORT,
    ]))  # fmt: skip
    card = ModelCard(hub.repository(name).files["README.md"].content.decode())
    examples = re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)
    (pair,) = [example for example in examples if "AutoModel.from_pretrained" in example]
    assert f'model = AutoModel.from_pretrained("{name}")' in pair
    for example in examples:
        space = {}
        exec(compile(example, "card", "exec"), space)
    mine = AutoModel.from_pretrained(folder).state_dict()
    for key, tensor in space["model"].state_dict().items():
        assert torch.equal(tensor, mine[key]), key
    assert card.data.model_name == "maxmig-labelme"
