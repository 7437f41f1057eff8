"""The recipes of the paper's data sets, from a few picture files to a saved model."""

import json
from typing import get_args, get_type_hints

import numpy as np
import PIL.Image
import pytest
from datasets import Dataset, Features, Image
from transformers import AutoModel, pipeline

from hf_maxmig import VGG16, FourLayerCNN, HeadClassifier
from hf_maxmig.data.simulated.beyond import MORE_CASES
from hf_maxmig.data.simulated.experts import CIFAR10, DOGS_VS_CATS, LUNA16
from hf_maxmig.data.simulated.simulation import CASES
from tests.written_data import write_human

CLASSES = {"cifar10": CIFAR10, "dogs_vs_cats": DOGS_VS_CATS, "luna16": LUNA16}
SIDES = {"cifar10": 32, "dogs_vs_cats": 150, "luna16": 50}
EACH = {"train": 8, "test": 3}  # items per class
every = pytest.mark.parametrize("name", list(SIDES))


@pytest.fixture
def data_dir(tmp_path):
    """Write one folder of pictures per class, each with its own grey and some noise."""

    def of(name):
        rng, side = np.random.default_rng(0), SIDES[name]
        shape = (side, side) if name == "luna16" else (side, side, 3)
        for split, each in EACH.items():
            for c, word in enumerate(CLASSES[name]):
                place = tmp_path / name / split / word
                place.mkdir(parents=True)
                for i in range(each):
                    pixels = 25 * c + rng.integers(20, size=shape)
                    PIL.Image.fromarray(pixels.astype(np.uint8)).save(place / f"{i}.png")
        return tmp_path / name

    return of


@pytest.fixture
def feature_dir(tmp_path):
    """Write features and human labels for them."""
    rng, folder = np.random.default_rng(0), tmp_path / "features"
    folder.mkdir()
    for split, each in EACH.items():
        labels = rng.permutation(np.repeat(np.arange(10), each))
        values = np.eye(10)[labels] + rng.normal(0, 0.05, (len(labels), 10))
        np.save(folder / f"features_small_{split}.npy", values.astype(np.float32))
        np.savetxt(folder / f"labels_{split}.txt", labels, fmt="%d")
        if split == "train":
            write_human(folder / "CIFAR-10_human.pt", labels, random_label2=labels)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("cifar10", marks=pytest.mark.full),
        "dogs_vs_cats",
        "luna16",
    ],  # VGG-16 takes a quarter of a minute
)
def test_recipe_trains_and_saves_a_model_that_takes_pictures(name, parsed, data_dir, tmp_path):
    """The paper's network is trained on the paper's crowd with the flags of the recipe's page."""
    folder = data_dir(name)
    page, *given = parsed(
        name, "--data_dir", folder, "--num_train_epochs", 1, "--case", "naive_majority",
        "--expertise", "low", "--held_out_items", 4,
    )  # fmt: skip
    metrics = page.main(*given)
    results = json.loads((tmp_path / "out" / "all_results.json").read_text())
    assert (results["dataset"], results["case"], results["expertise"]) == (
        name, "naive_majority", "low",
    )  # fmt: skip
    assert results["held_out_items"] == 4
    for key in ("eval_accuracy", "eval_test_forecast_accuracy", "eval_gain"):
        assert results[key] == metrics[key]
    model = AutoModel.from_pretrained(tmp_path / "out")
    assert isinstance(model.classifier, VGG16 if name == "cifar10" else FourLayerCNN)
    assert model.config.class_names == list(CLASSES[name])
    assert model.config.annotators == [
        *(f"senior_{letter}" for letter in "ABCDEFGHIJ"), *(f"junior_{j + 1}" for j in range(15)),
    ]  # fmt: skip
    path = folder / "test" / CLASSES[name][1] / "0.png"
    classify = pipeline("image-classification", model=str(tmp_path / "out"))
    size = classify.image_processor.size
    assert (size["height"], size["width"]) == (SIDES[name], SIDES[name])
    assert {row["label"] for row in classify(str(path))} <= set(CLASSES[name])


@every
def test_recipe_lets_the_papers_experts_label_train_and_test(name, parsed, data_dir):
    """With experts of another data set, or other class numbers, it would not be the paper's experiment."""
    page, *given = parsed(name, "--data_dir", data_dir(name), "--case", "correlated")
    made = page.recipe(*given)
    for part, split in ((made.train, "train"), (made.test, "test")):
        part = part.select_columns(["label", "annotators", "annotations"]).with_format("numpy")[:]
        votes = np.stack(part["annotations"])
        assert votes.shape == (EACH[split] * len(CLASSES[name]), 10)
        assert (np.stack(part["annotators"]) == np.arange(10)).all()
        for junior, senior in zip(range(5, 10), (0, 0, 2, 2, 2), strict=True):
            assert (votes[:, junior] == votes[:, senior]).all()
        if name == "cifar10":
            # A uses one name for both classes of a hard pair; C knows the mammals.
            said = {
                page_class: {CLASSES[name][r] for r in votes[part["label"] == c, 0]}
                for c, page_class in enumerate(CLASSES[name])
            }
            assert said["dog"] == said["cat"] == {"cat"}
            assert said["bird"] == said["airplane"] == {"airplane"}
            mammals = np.isin(part["label"], [CLASSES[name].index(w) for w in ("cat", "dog")])
            assert (votes[mammals, 2] == part["label"][mammals]).all()
    assert made.classifier.config.id2label == dict(enumerate(CLASSES[name]))
    assert made.held_out is None
    again = page.recipe(*given)
    for a, b in zip(made.classifier.parameters(), again.classifier.parameters(), strict=True):
        assert a.equal(b)  # the seed is set before the network is initialised
    assert made.train["annotations"][:] == again.train["annotations"][:]


@every
@pytest.mark.parametrize(
    ("case", "annotators", "per_item"), [("sparse_one", 300, 1), ("hard_items", 10, 10)]
)
def test_recipe_takes_cases_beyond_the_papers(name, case, annotators, per_item, parsed, data_dir):
    """The flag must not list a case that the recipe cannot draw. Hard items are found from the pictures."""
    page, *given = parsed(name, "--data_dir", data_dir(name), "--case", case, "--expertise", "low")
    made = page.recipe(*given)
    for part in (made.train, made.test):
        assert len(part.features["annotators"].feature.names) == annotators
        assert {len(votes) for votes in part["annotations"]} == {per_item}
    assert made.setting["case"] == case


def test_every_case_is_a_flag_of_the_recipes(load):
    """A case could be drawn but not be requested, or the other way round."""
    flag = get_type_hints(load("recipe").SimulatedCrowdArguments)["case"]
    assert get_args(flag) == (*CASES, *MORE_CASES)


def test_items_are_alike_by_what_they_show(load, data_dir):
    """If pictures were matched with other rows, or columns of votes read as features, other items would be hard."""
    numbers = load("recipe").item_numbers
    rows = [[0.5, 2.0, 3.0], [1.0, 0.0, 7.0]]
    assert numbers(Dataset.from_dict({"label": [1, 0], "features": rows})).tolist() == rows
    sounds = Dataset.from_dict({"input_values": [[[1.0, 2.0], [3.0, 4.0]]] * 2})
    assert numbers(sounds).tolist() == [[1.0, 2.0, 3.0, 4.0]] * 2
    grey = [PIL.Image.fromarray(np.arange(64, dtype="uint8").reshape(8, 8) + k) for k in range(2)]
    pictures = Dataset.from_dict({"image": grey}, features=Features(image=Image()))
    assert numbers(pictures)[1, ::3].tolist() == list(range(1, 65))
    with pytest.raises(ValueError, match="got the columns label"):
        numbers(Dataset.from_dict({"label": [1]}))


@every
def test_recipe_has_the_papers_rates_by_its_preset(name, parsed, data_dir):
    """If its own defaults took precedence over the preset, a recipe would not follow the paper's protocol."""
    *_, training = parsed(name, "--data_dir", ".", "--preset", f"paper_{name}")
    cifar = name == "cifar10"
    assert training.learning_rate == (1e-3 if cifar else 1e-4)
    assert training.aggregator_learning_rate == 1e-4
    assert training.per_device_train_batch_size == (64 if cifar else 16)
    assert training.num_train_epochs == (50 if cifar else 20)
    assert training.prior == ("uniform" if cifar else "learned")


def test_cifar10_defaults_depend_on_the_content_and_give_way(parsed, data_dir, feature_dir):
    """Fifty epochs of a head on features would waste an hour, but a flag must still take precedence."""
    images = ("--data_dir", data_dir("cifar10"))
    features = ("--data_dir", feature_dir, "--content", "features")
    for flags, expected in (
        (images, (50, 64)),
        (features, (10, 256)),
        ((*features, "--num_train_epochs", 0.5), (0.5, 256)),
        ((*features, "--per_device_train_batch_size", 7), (10, 7)),
        ((*features, "--preset", "paper_cifar10"), (50, 64)),
    ):
        page, *given = parsed("cifar10", *flags)
        training = page.recipe(*given).training
        assert (training.num_train_epochs, training.per_device_train_batch_size) == expected


@pytest.mark.slow
def test_cifar10_learns_from_human_labels_of_features(parsed, feature_dir, tmp_path):
    """Three annotators and no votes on test items: the recipe must not simulate any."""
    page, *given = parsed(
        "cifar10", "--data_dir", feature_dir, "--content", "features", "--crowd", "human",
        "--human_file", feature_dir / "CIFAR-10_human.pt", "--num_train_epochs", 2,
    )  # fmt: skip
    metrics = page.main(*given)
    assert "eval_test_forecast_accuracy" not in metrics
    assert {"eval_accuracy", "eval_forecast_accuracy", "eval_gain"} <= set(metrics)
    results = json.loads((tmp_path / "out" / "all_results.json").read_text())
    assert results["dataset"] == "cifar10n_features"
    assert (results["case"], results["expertise"]) == (None, None)
    model = AutoModel.from_pretrained(tmp_path / "out")
    assert model.config.annotators == ["random_label1", "random_label2", "random_label3"]
    assert isinstance(model.classifier, HeadClassifier)
    assert (model.classifier.config.input_size, model.classifier.config.hidden_size) == (10, 256)


def test_cifar10_human_file_goes_with_the_human_crowd(parsed):
    """If the file were ignored, simulated labels would be reported as CIFAR-10N."""
    with pytest.raises(ValueError, match="`human_file` must be given with .* got None with human"):
        parsed("cifar10", "--crowd", "human")
    with pytest.raises(ValueError, match="got a.pt with simulated"):
        parsed("cifar10", "--human_file", "a.pt")


def test_recipe_pages_say_source_licence_command_and_number(root):
    """If a recipe does not say what to expect, nobody can see that it fails."""
    licences = {"cifar10": "no licence", "dogs_vs_cats": "rules", "luna16": "CC BY"}
    paper = {"cifar10": "86.71", "dogs_vs_cats": "78.94", "luna16": "91.15"}
    for name in SIDES:
        page = (root / "recipes" / f"{name}.py").read_text().split('"""')[1]
        for word in (
            "Data:", f"recipes/{name}.py --", "xpect a classifier accuracy of", paper[name],
            licences[name], "https://", "`--data_dir` is a folder", "minutes", f"--preset paper_{name}",
        ):  # fmt: skip
            assert word in " ".join(page.split()), (name, word)
