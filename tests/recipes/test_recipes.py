"""Each recipe, run to its end as its page says."""

import json

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from transformers import (
    AutoModel,
    pipeline,
)

from hf_maxmig import read_annotations
from hf_maxmig.command.flags import parse
from tests.children import needs_fork, page, printed_by, together
from tests.processes import launch
from tests.written_data import write_flat


def check_digits(folder, printed):
    """Check what the project's first command promises: its number, its table, and a model that classifies a picture."""
    results = json.loads((folder / "all_results.json").read_text())
    assert results["eval_accuracy"] >= 0.93
    assert results["eval_majority_vote_accuracy"] < 0.7
    assert results["eval_gain"] > 1.7  # by networks that have not seen the items
    for row in ("majority vote", "aggregator g", "classifier h", "forecaster zeta"):
        assert row in printed
    assert printed.count("classifier h") == 1
    assert "Inside" in (folder / "README.md").read_text()
    model = AutoModel.from_pretrained(folder)
    assert model.config.annotators[0] == "senior_A"
    picture = Image.fromarray((load_digits().images[0] * 15.9375).astype("uint8"))
    assert pipeline("image-classification", model=str(folder))(picture)[0]["label"] == "0"


@pytest.mark.slow
@pytest.mark.full  # `.ci/run` runs the command itself
@needs_fork
def test_digits_does_its_job_in_one_process(root, tmp_path):
    """This is the first thing that a newcomer sees."""
    script = root / "recipes" / "digits.py"
    check_digits(tmp_path, printed_by(tmp_path / "log", script, "--output_dir", tmp_path))


@pytest.mark.slow
def test_tones_reaches_its_number_and_the_model_hears_a_file(load, tmp_path):
    """The demonstration of sounds must reach its number, and save a model that takes a file.

    It must also write files for `maxmig train`.
    """
    tones = load("tones")
    flags = ["--output_dir", str(tmp_path / "out"), "--use_cpu", "--report_to", "none"]
    results = tones.main(*parse(tones.TonesArguments, tones.TonesTrainingArguments, arguments=flags))  # fmt: skip
    assert results["eval_majority_vote_accuracy"] < 0.7
    assert results["eval_accuracy"] > 0.95
    files = tmp_path / "files"
    written = [*flags, "--write_files", str(files)]
    assert not tones.main(*parse(tones.TonesArguments, tones.TonesTrainingArguments, arguments=written))  # fmt: skip
    assert len([*(files / "train").iterdir()]) == 1000
    assert read_annotations(files / "votes.csv").num_rows == 10_000
    hear = pipeline("crowd-forecast", model=str(tmp_path / "out"), device="cpu")
    for kind in ("hiss", "rising"):
        file = next((files / "test" / kind).iterdir())
        assert hear(str(file))["forecast"][0]["label"] == kind


def by_torchrun(folder, recipe, *flags):
    """Start a recipe on two processes, each of which imports the libraries."""
    return launch(
        recipe.parents[1], recipe, *flags,
        launcher=("torch.distributed.run", "--standalone", "--nproc_per_node=2"),
    )  # fmt: skip


def by_fork(folder, recipe, *flags):
    """Start a recipe on two processes that already have the libraries."""
    together(folder, 2, page, recipe, *flags)
    return "".join((folder / f"log-{rank}").read_text() for rank in range(2))


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("on_two", [by_fork, by_torchrun])
def test_digits_runs_on_two_processes(on_two, root, tmp_path):
    """The processes share a batch of 64 and find the same start and rate; one of them writes."""
    printed = on_two(
        tmp_path, root / "recipes" / "digits.py", "--output_dir", tmp_path / "out",
        "--per_device_train_batch_size", 32, "--use_cpu", "--report_to", "none", "--num_train_epochs", 20,
    )  # fmt: skip
    check_digits(tmp_path / "out", printed)


def digits_settings(digits, folder, case, expertise, *more):
    return parse(
        digits.DigitsArguments, digits.DigitsTrainingArguments,
        arguments=["--output_dir", str(folder), "--case", case, "--expertise", expertise, *map(str, more),
                   "--use_cpu", "True", "--report_to", "none", "--disable_tqdm", "True"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("case", "expertise", "annotators"),
    [("independent", "high", 5), ("naive_majority", "high", 10), ("independent", "low", 10)],
)
def test_flags_of_digits_reach_the_crowd(case, expertise, annotators, load, tmp_path):
    """A flag that is read but not used would give the default crowd under another name."""
    digits = load("digits")
    arguments, training = digits_settings(digits, tmp_path, case, expertise)
    assert (arguments.case, arguments.expertise) == (case, expertise)
    crowd = digits.digits(arguments, training.seed)["train"]
    assert len(crowd.features["annotators"].feature.names) == annotators


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
    ("case", "expertise", "seed", "epochs", "least"),
    [
        ("independent", "high", 1, 50, 0.96),
        ("naive_majority", "high", 0, 100, 0.93),
        ("independent", "low", 0, 100, 0.85),
    ],
)
def test_digits_learns_from_the_other_crowds(case, expertise, seed, epochs, least, load, tmp_path):
    """The defaults must suit more than one crowd.

    With seed 1 the start from the vote share merges two classes of independent experts (accuracy 0.87),
    as with two of ten seeds; the start from information keeps them apart.
    """
    digits = load("digits")
    flags = ("--seed", seed, "--num_train_epochs", epochs)
    settings = digits_settings(digits, tmp_path, case, expertise, *flags)
    assert digits.main(*settings)["eval_accuracy"] > least


@pytest.mark.slow
@needs_fork
def test_labelme_reaches_its_numbers(root, shared_data, tmp_path):
    """The real crowd, with the command of the recipe's page."""
    printed_by(
        tmp_path / "log", root / "recipes" / "labelme.py", "--data_dir", shared_data / "labelme", "--output_dir",
        tmp_path, "--seed", 0,
    )  # fmt: skip
    results = json.loads((tmp_path / "all_results.json").read_text())
    assert results["eval_accuracy"] >= 0.87
    assert results["eval_forecast_accuracy"] >= 0.86
    assert results["eval_gain"] > 1.5
    assert AutoModel.from_pretrained(tmp_path).config.num_annotators == 59


@pytest.mark.slow
@needs_fork
def test_labelme_from_images_saves_backbone_and_head(root, backbone, tmp_path):
    """The head is trained on cached features, but the saved model must take pictures, with the pretrained backbone."""
    data_dir = write_flat(tmp_path / "data")
    printed_by(
        tmp_path / "log", root / "recipes" / "labelme.py", "--data_dir", data_dir, "--backbone", tmp_path / "backbone",
        "--output_dir", tmp_path / "out", "--num_train_epochs", 2, "--use_cpu", "--report_to", "none",
    )  # fmt: skip
    model = AutoModel.from_pretrained(tmp_path / "out").eval()
    before = backbone.resnet.state_dict()
    for name, tensor in model.classifier.encoder.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    picture = next((data_dir / "images" / "train").rglob("*.jpg"))
    assert len(pipeline("image-classification", model=str(tmp_path / "out"))(str(picture))) == 5


def test_config_file_gives_defaults_under_the_command_line(load, tmp_path):
    """A number that YAML reads as text, or a misspelt key, must not be used for training."""
    digits = load("digits")
    file = tmp_path / "digits.yaml"
    file.write_text("learning_rate: 1e-4\ncase: independent\nseed: 7\n")

    def parsed(*more):
        return parse(
            digits.DigitsArguments, digits.DigitsTrainingArguments,
            arguments=["--config", str(file), "--output_dir", str(tmp_path), "--use_cpu", "True", *more],
        )  # fmt: skip

    arguments, training = parsed("--seed", "3")
    assert (arguments.case, training.learning_rate, training.seed) == ("independent", 1e-4, 3)
    assert training.num_train_epochs == 100
    file.write_text("learning_rat: 1\n")
    with pytest.raises(ValueError, match="must only have flags of this recipe, got learning_rat"):
        parsed()


def test_setting_is_chosen_by_the_held_out_gain_alone(load):
    """It is the shortest training within a standard error of the best; accuracies must not matter."""
    defaults = load("defaults")

    def row(epochs, gain, accuracy):
        setting = {"num_train_epochs": epochs}
        return {
            "setting": setting, "held_out_gain": gain, "standard_error": 0.02,
            "test_accuracy_not_used": accuracy,
        }  # fmt: skip

    rows = [row(5, 1.4, 0.99), row(10, 1.49, 0.1), row(20, 1.5, 0.9), row(10, 1.485, 0.9)]
    assert defaults.choose(rows) is rows[1]


def test_items_kept_back_are_the_same_for_every_seed(load, crowd):
    """If each setting held out other items, their gains would not be comparable."""
    recipe = load("recipe")
    torch.manual_seed(1)
    train, held_out = recipe.keep_back(crowd, 20)
    torch.manual_seed(2)
    again, _ = recipe.keep_back(crowd, 20)
    assert (len(train), len(held_out)) == (70, 20)
    assert train["features"][:] == again["features"][:]
    together = train["features"][:] + held_out["features"][:]
    assert sorted(together) == sorted(crowd["features"][:])
    assert recipe.keep_back(crowd, 0) == (crowd, None)
    for wrong in (-1, 90):
        with pytest.raises(
            ValueError, match="`held_out_items` must lie in 0..89, of 90 training items"
        ):
            recipe.keep_back(crowd, wrong)


def test_recipe_pages_say_source_licence_command_and_number(root):
    """If a recipe does not say what to expect, nobody can see that it fails."""
    for name in ("digits", "labelme"):
        page = (root / "recipes" / f"{name}.py").read_text().split('"""')[1]
        for word in ("Data:", f"recipes/{name}.py --", "xpect a classifier accuracy of 0.", "two"):
            assert word in page, (name, word)
