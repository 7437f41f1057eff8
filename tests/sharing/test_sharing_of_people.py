"""What others can see of the annotators, and the model card with runnable examples."""

import json
import re

import numpy as np
import pytest
import torch
from datasets import ClassLabel, load_dataset
from huggingface_hub import DatasetCard, ModelCard
from PIL import Image
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    ViTImageProcessor,
)

from hf_maxmig import (
    CrowdTrainer,
    FourLayerCNN,
    FourLayerCNNConfig,
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    MaxMIGTrainer,
    describe,
    hash_annotators,
    peer,
)
from hf_maxmig.model.aggregators import AGGREGATORS
from hf_maxmig.model.annotator_names import SHARED_AS, hashed_names
from hf_maxmig.peers import PEERS
from tests.networks import small_timm, small_vit
from tests.worlds import ANNOTATORS, CLASSES

NAME = "org/pair"
SALT = "not to be guessed by anybody"

# The client passes a file to its HTTP client in a deprecated way.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


def uploaded(hub):
    """Return the content of every commit, by commit and file; the code contains example names."""
    return {
        (commit, path): file.content
        for commit, files in hub.repository(NAME).commits.items()
        for path, file in files.items()
        if not path.endswith(".py")
    }


def named(files, names):
    """Return the files that hold a name as a word of its own."""
    words = [re.compile(rb"[\"'\s]" + re.escape(name.encode()) + rb"[\"'\s,]") for name in names]
    return {path for path, content in files.items() if any(word.search(content) for word in words)}


# Names


def test_names_are_shared_only_by_default(hub, ann, make_trainer):
    """If names could not be found here, the other tests would mean nothing."""
    make_trainer().push_to_hub()
    assert {path for _, path in named(uploaded(hub), ANNOTATORS)} == {"config.json"}


@pytest.mark.parametrize("who", ["trainer", "arguments", "model"])
@pytest.mark.parametrize("annotators", ["hashed", "dropped"])
def test_names_do_not_go_up(annotators, who, hub, ann, make_trainer, tmp_path):
    """No commit, not even an earlier one, may contain them, while the owner's own model keeps them."""
    salt = SALT if annotators == "hashed" else None
    asked = {"hub_annotators": annotators, "hub_salt": salt} if who == "arguments" else {}
    trainer = make_trainer(**asked)
    trainer.train()
    trainer.save_model()
    before = {
        path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()
    }
    if who == "model":
        trainer.crowd_model.push_to_hub(NAME, annotators=annotators, salt=salt)
    elif who == "arguments":
        trainer.push_to_hub()
    else:
        trainer.push_to_hub(annotators=annotators, salt=salt)
    assert not named(uploaded(hub), [*ANNOTATORS, SALT])
    after = {
        path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()
    }
    assert after == before
    assert trainer.crowd_model.config.annotators == ANNOTATORS
    x = torch.randn(6, 5)
    if annotators == "hashed":
        shared = AutoModel.from_pretrained(NAME)
        assert shared.config.annotators == sorted(hashed_names(ANNOTATORS, SALT))
        order = np.argsort(hashed_names(ANNOTATORS, SALT))
        for name, tensor in trainer.crowd_model.state_dict().items():
            rows = tensor[order] if name == "aggregator.table" else tensor
            assert torch.equal(shared.state_dict()[name], rows)
    else:
        shared = AutoModelForImageClassification.from_pretrained(NAME)
        assert not hasattr(shared, "aggregator")
        assert shared.config.id2label == dict(enumerate(CLASSES))
    with torch.no_grad():
        logits = shared(features=x).logits, trainer.crowd_model.eval()(features=x).logits
    torch.testing.assert_close(*logits)


@pytest.mark.parametrize("annotators", ["hashed", "dropped"])
def test_nothing_is_pushed_before_names_are_taken_out(annotators, hub, ann, make_trainer):
    """Checkpoints contain the names, and `save_model` also pushes if pushing is enabled."""
    salt = SALT if annotators == "hashed" else None
    trainer = make_trainer(
        push_to_hub=True, save_strategy="epoch", hub_annotators=annotators, hub_salt=salt
    )
    trainer.train()
    trainer.save_model()
    trainer._finish_current_push()
    assert "model.safetensors" in hub.repository(NAME).files
    assert not named(uploaded(hub), [*ANNOTATORS, SALT])
    assert "<HUB_SALT>" in trainer.args.to_json_string() or salt is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"annotators": "secret"}, "`annotators` must be one of names, hashed, dropped, got 'secret'"),
        ({"annotators": "hashed"}, "`salt` must be given with `annotators='hashed'`, and only with it, got none"),
        ({"annotators": "hashed", "salt": "short"}, "`salt` must have at least 16 characters, got 5"),
        ({"salt": SALT}, "`salt` must be given with `annotators='hashed'`, and only with it, got one with 'names'"),
    ],
    ids=["unknown", "unsalted", "short", "salt_alone"],
)  # fmt: skip
def test_nothing_goes_up_if_it_is_unclear_what_may_be_seen(asked, message, hub, ann, make_trainer):
    trainer = make_trainer()
    for push in (trainer.push_to_hub, lambda **how: trainer.crowd_model.push_to_hub(NAME, **how)):
        with pytest.raises(ValueError, match=re.escape(message)):
            push(**asked)
    assert ("models", NAME) not in hub.repositories
    assert trainer.crowd_model.config.annotators == ANNOTATORS


def test_salt_that_is_not_asked_for_is_refused(make_args, make_model):
    """A user who passes a salt believes that the names are hashed."""
    with pytest.raises(ValueError, match="`hub_salt` must be given with"):
        make_args(hub_salt=SALT)
    with (
        pytest.raises(ValueError, match="`salt` must be given with"),
        make_model().shared_as("names", SALT),
    ):
        pass  # fmt: skip


def test_classifier_that_does_not_stand_alone_is_not_shared_alone(hub, ann):
    """Doctor Net averages the answers of its heads, so its classifier alone is another model."""
    head = HeadClassifier(HeadConfig(input_size=5, num_labels=3))
    model = peer("doctor_net", head, annotators=ANNOTATORS, id2label=dict(enumerate(CLASSES)))
    with pytest.raises(ValueError, match="what classifies must be `model.classifier` alone"):
        model.push_to_hub(NAME, annotators="dropped")


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_hashed_model_says_the_same_of_the_same_votes(aggregator, make_model):
    """A row of W under somebody else's hash would be another annotator."""
    check_hashed(make_model(aggregator=aggregator))


@pytest.mark.parametrize("method", PEERS)
def test_hashed_rival_says_the_same_of_the_same_votes(method):
    """Each method stores its annotators' parameters in another place."""
    classes = 2 if method == "kos" else 3
    head = HeadClassifier(HeadConfig(input_size=5, num_labels=classes))
    model = peer(method, head, annotators=ANNOTATORS)
    for module in model.modules():
        if hasattr(module, "active"):
            module.active.copy_(torch.tensor([1.0, 0.0, 1.0, 1.0]))
    check_hashed(model)


def kept(model):
    """Return the state that a forward pass in training mode leaves unchanged: everything but running means."""
    return {n: t for n, t in model.state_dict().items() if "norm." not in n}


def check_hashed(model):
    """Fill all rows with distinct numbers, hash, and compare the results of all methods on the votes."""
    generator = torch.Generator().manual_seed(0)
    M, C = model.config.num_annotators, model.config.num_labels
    for name, tensor in model.state_dict().items():
        if (
            not name.startswith("classifier.")
            and tensor.is_floating_point()
            and "active" not in name
        ):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    model.train()
    features = torch.randn(7, 5, generator=generator)
    voters = torch.randint(M, (7, 3), generator=generator)
    said = torch.randint(C, (7, 3), generator=generator)
    shares = torch.full((7, C), 1 / C)
    before = {name: tensor.clone() for name, tensor in kept(model).items()}
    place = np.argsort(np.argsort(hashed_names(ANNOTATORS, SALT)))

    def heard(voters):
        batch = {
            "annotators": voters,
            "annotations": said,
            "crowd_posterior": shares,
            "labels": said[:, 0],
        }
        torch.manual_seed(0)
        output = model(features=features, annotators=voters, annotations=said)
        loss, _ = model.crowd_loss(output, batch)
        model.eval()
        answers = model(features=features, annotators=voters, annotations=said)
        model.train()
        tensors = [t for t in (*output.to_tuple(), *answers.to_tuple()) if t is not None]
        return [loss.detach(), *(tensor.detach() for tensor in tensors)]

    known = heard(voters)
    with model.shared_as("hashed", SALT):
        assert model.config.annotators == sorted(hashed_names(ANNOTATORS, SALT))
        for ours, theirs in zip(heard(torch.from_numpy(place)[voters]), known, strict=True):
            torch.testing.assert_close(ours, theirs)
        changed = [n for n, t in kept(model).items() if not torch.equal(t, before[n])]
        knows = [n for n in before if not n.startswith("classifier.") and M in before[n].shape[:1]]
        assert set(changed) <= set(knows)
    assert model.config.annotators == ANNOTATORS
    for name, tensor in kept(model).items():
        assert torch.equal(tensor, before[name])


def test_method_whose_rows_nobody_knows_of_is_not_hashed(make_model):
    """Its rows would stay in the order of the names."""
    model = make_model()
    model.own = torch.nn.Linear(2, model.config.num_annotators)
    with pytest.raises(NotImplementedError, match="MaxMIGModel must define `reorder_annotators`"):
        model.hash_annotators(SALT)
    assert model.config.annotators == ANNOTATORS


def test_model_without_names_is_not_called_hashed(make_model):
    """Its rows follow the data's order, so anyone with a list of the names could match them."""
    model = MaxMIGModel.from_classifier(make_model().classifier, num_annotators=4)
    with pytest.raises(
        ValueError, match="annotators must have names to be hashed, got only their number, 4"
    ):
        model.hash_annotators(SALT)


# The card


def examples(text):
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def picture_processor():
    return ViTImageProcessor(size={"height": 16, "width": 16})


CARDS = {
    "features": (lambda: HeadClassifier(HeadConfig(input_size=5, num_labels=3)), None),
    "pixels": (lambda: FourLayerCNN(FourLayerCNNConfig(image_size=16, num_channels=3, num_labels=3)), None),
    "own network": (lambda: FourLayerCNN(FourLayerCNNConfig(image_size=16, num_channels=3, num_labels=3)), picture_processor),
    "transformers": (small_vit, picture_processor),
    "timm": (small_timm, picture_processor),
}  # fmt: skip


@pytest.fixture
def push_card(hub, ann, crowd, make_args, monkeypatch, tmp_path):
    """Push an untrained model and return its card; the examples find a picture."""
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (20, 30), "olive").save("picture.jpg")

    def push(kind, method="max_mig", **how):
        make_classifier, make_processor = CARDS[kind]
        model = make_classifier()
        options = {
            "args": make_args(hub_model_id=NAME), "train_dataset": crowd,
            "processing_class": make_processor and make_processor(),
        }  # fmt: skip
        if method == "max_mig":
            trainer = MaxMIGTrainer(model=model, **options)
        else:
            model = peer(method, model, annotators=ANNOTATORS, id2label=dict(enumerate(CLASSES)))
            trainer = CrowdTrainer(model=model, **options)
        trainer.push_to_hub(**how)
        return ModelCard(hub.repository(NAME).files["README.md"].content.decode())

    return push


def run(card, name="card"):
    """Run each example by itself, as a reader does; return the value of its last line."""
    given = []
    for example in examples(card.text):
        *lines, last = example.strip().splitlines()
        space = {}
        exec(compile("\n".join(lines), name, "exec"), space)
        try:
            given.append(eval(last, space))
        except SyntaxError:
            exec(last, space)
            given.append(space["model"])
    return given


ONE_OF_EACH_CLASS = {kind: name for name, (kind, _) in PEERS.items() if name != "kos"}.values()


@pytest.mark.parametrize("shared", SHARED_AS)
@pytest.mark.parametrize("kind", CARDS)
def test_examples_of_the_card_run_as_they_stand(kind, shared, push_card):
    """Copying these lines is a new user's first minute with a model."""
    card = push_card(kind, annotators=shared, salt=SALT if shared == "hashed" else None)
    given = run(card)
    assert len(given) == (1 if shared == "dropped" else 3)
    labels = given[0].shape[1] if torch.is_tensor(given[0]) else len(given[0])
    assert labels == 3
    if shared != "dropped":
        assert given[1]["unheard"] == [("an annotator", "cat")]
        assert given[2].config.num_annotators == 4
    assert ("**their names are in `config.json`" in card.text) == (shared == "names")
    assert ("salted hashes of their names" in card.text) == (shared == "hashed")
    assert ("the classifier is here" in card.text) == (shared == "dropped")


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=() if name in ONE_OF_EACH_CLASS else pytest.mark.full)
        for name in PEERS
        if name != "kos"  # it needs two classes
    ],
)
def test_examples_of_a_rivals_card_run_too(method, push_card):
    given = run(push_card("features", method))
    assert given[0].shape == (1, 3)
    assert len(given[1]["forecast"]) == 3
    assert given[2].method


def test_native_classifier_alone_needs_nothing_of_the_package(push_card):
    """A classifier that transformers knows must load without an import that only the model needs."""
    assert "hf_maxmig" not in examples(push_card("transformers", annotators="dropped").text)[0]
    assert "import hf_maxmig" in examples(push_card("own network", annotators="dropped").text)[0]


def test_card_has_no_gap_and_states_the_licence(push_card):
    """Sections that the template omits must leave no gap, and a model without a licence may not be used."""
    card = push_card("features", license="cc-by-4.0")
    assert "\n\n\n" not in card.content
    assert card.data.license == "cc-by-4.0"
    assert "## Licence\n\ncc-by-4.0\n" in card.text
    assert "## Licence\n\nNone is stated" in push_card("features").text


def test_results_go_up_beside_the_card(hub, ann, make_trainer, crowd):
    """Tables of many models are built from files, not from prose."""
    trainer = make_trainer()
    trainer.train()
    metrics = trainer.evaluate(crowd)
    trainer.push_to_hub()
    stored = json.loads(hub.repository(NAME).files["results.json"].content)
    assert stored["results"]["eval_gain"] == pytest.approx(metrics["eval_gain"])
    assert stored["results"]["eval_accuracy"] == pytest.approx(metrics["eval_accuracy"])
    assert stored["arguments"]["learning_rate"] == trainer.args.learning_rate


# Data


@pytest.fixture
def shared_crowd(hub, ann, crowd):
    crowd.push_to_hub("org/crowd")
    return crowd


def test_crowd_columns_come_back_with_names_and_types(shared_crowd):
    """A list of numbers without names is no crowd."""
    again = load_dataset("org/crowd", split="train")
    assert again.features == shared_crowd.features
    assert again[:] == shared_crowd[:]
    assert isinstance(again.features["annotators"].feature, ClassLabel)


def test_stream_from_the_hub_feeds_the_trainer(shared_crowd, make_args):
    """Data larger than the disk are streamed, and start like whole ones."""
    stream = load_dataset("org/crowd", split="train", streaming=True)
    assert stream.features == shared_crowd.features
    args = make_args(max_steps=30)
    head = HeadClassifier(HeadConfig(input_size=5, hidden_size=16, num_labels=3))
    trainer = MaxMIGTrainer(model=head, args=args, train_dataset=stream)
    trainer.train()
    assert trainer.crowd_model.config.annotators == ANNOTATORS
    assert trainer.evaluate(shared_crowd)["eval_accuracy"] > 0.8


def test_section_of_a_data_sets_card_names_columns_and_nobody(shared_crowd, hub):
    """The data set's features already name the annotators, by hash if the data were hashed."""
    section = describe(shared_crowd).card_section()
    assert not [name for name in ANNOTATORS if re.search(rf"\b{name}\b", section)]
    card = DatasetCard.load("org/crowd")
    card.text += "\n" + section
    card.push_to_hub("org/crowd")
    text = hub.repository("org/crowd", "datasets").files["README.md"].content.decode()
    assert "| `annotators` | list of `ClassLabel`, 4 names |" in text
    assert "90 items, 4 annotators, 3 classes" in text
    assert load_dataset("org/crowd", split="train").features == shared_crowd.features


def test_hashed_data_go_up_without_a_name(hub, ann, crowd):
    """The hashes must equal those of a model hashed with the same salt."""
    hash_annotators(crowd, SALT).push_to_hub("org/crowd")
    files = hub.repository("org/crowd", "datasets").files
    assert not named({path: file.content for path, file in files.items()}, ANNOTATORS)
    again = load_dataset("org/crowd", split="train")
    assert again.features["annotators"].feature.names == sorted(hashed_names(ANNOTATORS, SALT))


# Training curves


@pytest.mark.parametrize("kind", ["tensorboard"])
def test_gain_curves_reach_the_boards_by_sensible_names(
    kind, make_model, make_args, crowd, tmp_path
):
    """Users compare `train/gain` with `eval/gain` and its ceiling to see where they part."""
    pytest.importorskip(kind)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    args = make_args(
        report_to=kind, logging_strategy="steps", logging_steps=3, eval_strategy="epoch", init="information",
        search_rate=True, num_train_epochs=4, learning_rate=1e-2,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "runs"))
        trainer = MaxMIGTrainer(
            model=make_model(), args=args, train_dataset=crowd, eval_dataset=crowd
        )
        trainer.train()
    events = EventAccumulator(str(tmp_path / "runs")).Reload()
    tags = set(events.Tags()["scalars"])
    assert {
        "train/gain",
        "eval/gain",
        "eval/gain_ceiling",
        "eval/gain_low",
        "eval/gain_high",
        "eval/accuracy",
    } <= tags
    assert "train/aggregator_learning_rate" in tags
    assert [e.value for e in events.Scalars("eval/gain")] == pytest.approx(
        [row["eval_gain"] for row in trainer.state.log_history if "eval_gain" in row], abs=1e-5
    )
