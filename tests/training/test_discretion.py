"""No tracker receives a name that the Hub does not get, and training is not disturbed."""

import dataclasses
import json
import pickle
import re
import sys
from unittest.mock import MagicMock

import pytest
from transformers import AutoModel, TrainerCallback
from transformers.integrations import integration_utils

from hf_maxmig import MaxMIGTrainer
from hf_maxmig.training.discretion import check_trackers
from tests.worlds import ANNOTATORS

SALT = "a salt that nobody is told of"
TOKEN = "hf_" + "AbCdEfGh" * 4
HIDDEN = {
    "hashed": {"hub_annotators": "hashed", "hub_salt": SALT},
    "dropped": {"hub_annotators": "dropped"},
}
EVENTS = [name for name in vars(TrainerCallback) if name.startswith("on_")]


def says_a_name(text):
    """Return whether a name occurs as a word of its own."""
    return any(re.search(rf"\b{name}\b", text) for name in ANNOTATORS)


def record(log, event, args, state, model):
    config = model.config
    shown = {
        "config": [config.to_dict(), config.to_diff_dict(), repr(config), str(config), config.to_json_string()],
        "attributes": [vars(config), config.annotators, repr(model), pickle.dumps(config)],
        "args": [args.to_dict(), args.to_sanitized_dict(), repr(args), dataclasses.asdict(args), vars(args)],
        "state": [vars(state), dataclasses.asdict(state)],
    }  # fmt: skip
    log.append((event, json.dumps(shown, default=str)))


class Recorder(TrainerCallback):
    """Record everything that a callback is shown at each event."""

    def __init__(self):
        self.log = []


for name in EVENTS:

    def call(self, args, state, control, model=None, event=name, **kwargs):
        record(self.log, event, args, state, model)

    setattr(Recorder, name, call)


@pytest.fixture
def trained(make_args, make_model, crowd):
    """Train, evaluate, predict and push with a recorder; return its records and the trainer."""

    def run(*callbacks, **changes):
        recorder = Recorder()
        args = make_args(
            save_strategy="epoch", eval_strategy="epoch", logging_strategy="epoch", hub_token=TOKEN, num_train_epochs=1, **changes
        )  # fmt: skip
        trainer = MaxMIGTrainer(
            model=make_model(), args=args, train_dataset=crowd, eval_dataset=crowd, callbacks=[recorder, *callbacks],
        )  # fmt: skip
        trainer.train()
        trainer.evaluate()
        trainer.predict(crowd)
        trainer.save_model()
        trainer.callback_handler.on_push_begin(args, trainer.state, trainer.control)
        return recorder.log, trainer

    return run


def test_with_names_shared_a_tracker_gets_them(trained):
    """If a tracker never received names, the tests below would pass for another reason."""
    log, _ = trained()
    assert {event for event, text in log if says_a_name(text)} == {event for event, _ in log}
    assert not [event for event, text in log if TOKEN in text]


@pytest.mark.parametrize("how", HIDDEN)
def test_no_callback_sees_a_name_that_the_hub_does_not_see(how, trained, tmp_path):
    """The run's config, with all names, used to be synced to a public page."""
    log, trainer = trained(**HIDDEN[how])
    assert {event for event, _ in log} >= {
        "on_init_end", "on_train_begin", "on_step_end", "on_log", "on_evaluate", "on_save", "on_train_end", "on_predict",
        "on_push_begin",
    }  # fmt: skip
    assert not [event for event, text in log if says_a_name(text) or SALT in text or TOKEN in text]
    assert trainer.crowd_model.config.annotators == ANNOTATORS
    for folder in (tmp_path / "out", *(tmp_path / "out").glob("checkpoint-*")):
        assert AutoModel.from_pretrained(folder).config.annotators == ANNOTATORS


class Meddler(TrainerCallback):
    """Use the trainer inside an event, as users' callbacks do."""

    def __init__(self, folder):
        self.folder, self.names = folder, None

    def on_epoch_end(self, args, state, control, **kwargs):
        self.trainer.evaluate()
        self.trainer.save_model(str(self.folder))
        self.names = self.trainer.annotator_names
        self.judged = self.trainer.report(self.trainer.train_dataset, self.folder / "report")


@pytest.mark.slow
def test_callback_may_evaluate_save_and_report(make_args, make_model, crowd, tmp_path):
    """Names hidden from callbacks must still be available where the trainer itself needs them."""
    meddler = Meddler(tmp_path / "saved")
    args = make_args(**HIDDEN["hashed"])
    trainer = MaxMIGTrainer(
        model=make_model(), args=args, train_dataset=crowd, eval_dataset=crowd, callbacks=[meddler]
    )
    meddler.trainer = trainer
    trainer.train()
    assert AutoModel.from_pretrained(tmp_path / "saved").config.annotators == ANNOTATORS
    assert meddler.names == meddler.judged.annotators == ANNOTATORS


def test_failing_callback_leaves_the_names(make_args, make_model, crowd):
    """An interrupted training would otherwise continue, and be saved, without the names."""

    class Fails(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            raise KeyboardInterrupt

    trainer = MaxMIGTrainer(
        model=make_model(), args=make_args(**HIDDEN["dropped"]), train_dataset=crowd, callbacks=[Fails()]
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.crowd_model.config.annotators == ANNOTATORS
    assert trainer.annotator_names == ANNOTATORS


# The trackers of transformers

MODULES = {
    "azure_ml": "azureml.core.run", "comet_ml": "comet_ml", "mlflow": "mlflow", "trackio": "trackio", "wandb": "wandb",
    "clearml": "clearml", "swanlab": "swanlab", "neptune": "neptune", "codecarbon": "codecarbon", "dvclive": "dvclive",
    "dagshub": "dagshub.upload", "flyte": "flytekit",
}  # fmt: skip


@pytest.fixture
def pretend(monkeypatch):
    """Pretend that a tracker is installed, and return the mock that records its calls."""

    def install(kind):
        tracker = MagicMock()
        parts = MODULES[kind].split(".")
        for end in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), tracker)
        if kind == "neptune":
            monkeypatch.setitem(sys.modules, "neptune.internal.utils", tracker)
        tracker.__version__ = "3.0"
        if kind == "wandb":
            sdk = MagicMock(ConfigError=KeyError)
            for name in ("wandb.sdk", "wandb.sdk.lib", "wandb.sdk.lib.config_util"):
                monkeypatch.setitem(sys.modules, name, sdk)
        if kind == "mlflow":
            tracker.utils.validation.MAX_PARAM_VAL_LENGTH = 10**6
            tracker.utils.validation.MAX_PARAMS_TAGS_PER_BATCH = 10**6
        tracker.Live = type("Live", (), {})
        for name in dir(integration_utils):
            if name.startswith("is_") and f"_{kind.split('_')[0]}" in name and "available" in name:
                monkeypatch.setattr(integration_utils, name, lambda: True)
        for name in ("_is_comet_installed", "_is_comet_recent_enough"):
            monkeypatch.setattr(integration_utils, name, True, raising=False)
        if kind == "dagshub":
            monkeypatch.setattr(integration_utils, "is_mlflow_available", lambda: True)
            monkeypatch.setitem(sys.modules, "mlflow", tracker)
            monkeypatch.setenv("MLFLOW_TRACKING_URI", "x")
        return tracker

    return install


@pytest.mark.parametrize("how", ["names", "hashed"])
@pytest.mark.parametrize("kind", ["mlflow", "trackio", "wandb", "clearml", "swanlab"])
def test_trackers_of_transformers_are_told_no_name(
    kind, how, pretend, make_args, make_model, crowd, monkeypatch
):
    """Each tracker reads the config in its own way. With names shared, each of them must receive them."""
    tracker = pretend(kind)
    monkeypatch.setenv("CLEARML_LOG_MODEL", "false")
    args = make_args(
        report_to=kind, logging_strategy="epoch", hub_token=TOKEN, **HIDDEN.get(how, {})
    )
    trainer = MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd)
    trainer.train()
    calls = repr(tracker.mock_calls) + repr([call.args for call in tracker.mock_calls])
    assert "learning_rate" in calls
    assert says_a_name(calls) == (how == "names")
    assert TOKEN not in calls
    assert SALT not in calls


@pytest.mark.parametrize("how", ["names", *HIDDEN])
def test_tensorboard_writes_no_name(how, make_args, make_model, crowd, monkeypatch, tmp_path):
    """Many users upload TensorBoard's files beside the model."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "runs"))
    args = make_args(
        report_to="tensorboard", logging_strategy="epoch", hub_token=TOKEN, **HIDDEN.get(how, {})
    )
    MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd).train()
    written = "".join(
        p.read_bytes().decode("latin1") for p in (tmp_path / "runs").rglob("*") if p.is_file()
    )
    assert "model_type" in written
    assert says_a_name(written) == (how == "names")
    assert TOKEN not in written
    assert SALT not in written


UPLOADING = {
    "wandb": ("WANDB_LOG_MODEL", "checkpoint"), "mlflow": ("HF_MLFLOW_LOG_ARTIFACTS", "1"),
    "comet_ml": ("COMET_LOG_ASSETS", "TRUE"), "clearml": ("CLEARML_LOG_MODEL", None),
    "dvclive": ("HF_DVCLIVE_LOG_MODEL", "all"), "swanlab": ("SWANLAB_LOG_MODEL", "last"),
    "dagshub": ("HF_DAGSHUB_LOG_ARTIFACTS", "1"), "flyte": ("sync_checkpoints", None),
}  # fmt: skip


@pytest.mark.parametrize("kind", UPLOADING)
def test_tracker_that_uploads_checkpoints_is_refused(
    kind, pretend, make_args, make_model, crowd, monkeypatch, hub, ann
):
    """A checkpoint contains the names, and rows in their order.

    The refusal must come before a repository is created.
    """
    pretend(kind)
    variable, value = UPLOADING[kind]
    if value is not None:
        monkeypatch.setenv(variable, value)
    args = make_args(report_to=kind, push_to_hub=True, hub_model_id="org/pair", **HIDDEN["dropped"])
    with pytest.raises(
        ValueError, match="`hub_annotators` must be 'names' where a tracker uploads checkpoints"
    ):
        MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd)
    assert not hub.repositories
    MaxMIGTrainer(model=make_model(), args=make_args(report_to=kind), train_dataset=crowd)


def test_tracker_that_is_added_later_is_looked_at_too(make_args, make_model, crowd):
    class NeptuneCallback(TrainerCallback):
        _log_checkpoints = "last"

    trainer = MaxMIGTrainer(
        model=make_model(), args=make_args(**HIDDEN["dropped"]), train_dataset=crowd
    )
    with pytest.raises(ValueError, match="NeptuneCallback does. To hide them, turn it off"):
        trainer.add_callback(NeptuneCallback)
    check_trackers([TrainerCallback(), Recorder()])
