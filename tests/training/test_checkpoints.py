"""A training resumes from its own complete checkpoint, or says why it does not."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from hf_maxmig import MaxMIGTrainer
from hf_maxmig.model.whole_files import MANIFEST, read_manifest
from hf_maxmig.training import checkpoints as module
from hf_maxmig.training.checkpoints import RUN, check_checkpoint
from tests.processes import begun
from tests.weights import state

STEPS = 6  # per epoch: 90 items in batches of 16


class KilledError(Exception):
    """Ends a training in the middle."""


class KillAt(TrainerCallback):
    """End a training after a step; what is due at that step is saved before."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KilledError

    def on_train_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KilledError


@pytest.fixture
def trainer_of(crowd, make_model, make_args):
    """Build a trainer that writes a checkpoint every three steps."""

    def build(kill=None, fields=None, held_out=None, **changes):
        settings = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
        return MaxMIGTrainer(
            model=make_model(0.5, **(fields or {})), args=make_args(**(settings | changes)),
            train_dataset=crowd, eval_dataset=held_out, callbacks=[] if kill is None else [KillAt(kill)],
        )  # fmt: skip

    return build


def killed(trainer, resume=None):
    with pytest.raises(KilledError):
        trainer.train(resume_from_checkpoint=resume)
    return Path(trainer.args.output_dir)


def assert_equal(first, second):
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def uninterrupted(trainer_of, tmp_path):
    trainer = trainer_of(output_dir=str(tmp_path / "uninterrupted"))
    trainer.train()
    assert trainer.state.global_step == 2 * STEPS
    return state(trainer)


def test_manifest_names_every_file_of_a_checkpoint(trainer_of):
    """A file that the manifest does not name could be missing, or come from another step."""
    out = killed(trainer_of(kill=4))
    manifest = check_checkpoint(out / "checkpoint-3")
    names = {path.name for path in (out / "checkpoint-3").iterdir()} - {MANIFEST}
    assert names == set(manifest["files"]) > {
        "model.safetensors", "config.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json",
    }  # fmt: skip
    assert manifest["step"] == 3
    assert manifest["run"] == json.loads((out / RUN).read_text())["id"]


NEEDED = ["model.safetensors", "config.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", MANIFEST]  # fmt: skip


@pytest.mark.parametrize("name", NEEDED)
def test_checkpoint_that_lacks_a_file_is_passed_over_and_named_it_is_refused(
    name, trainer_of, uninterrupted
):
    """Without the optimizer's state, training would silently continue to other weights."""
    out = killed(trainer_of(kill=7))
    (out / "checkpoint-6" / name).unlink()
    with pytest.raises(ValueError, match=r"must (be as it was saved|have a manifest)"):
        trainer_of().train(resume_from_checkpoint=str(out / "checkpoint-6"))
    again = trainer_of()
    again.train(resume_from_checkpoint=True)
    assert_equal(uninterrupted, state(again))


def emptied(checkpoint):
    (checkpoint / "trainer_state.json").write_text("")


def cut(checkpoint):
    path = checkpoint / "trainer_state.json"
    path.write_text(path.read_text()[:40])


def of_another_step(checkpoint):
    shutil.copy(checkpoint.with_name("checkpoint-3") / "optimizer.pt", checkpoint / "optimizer.pt")


def wholly_of_another_step(checkpoint):
    shutil.rmtree(checkpoint)
    shutil.copytree(checkpoint.with_name("checkpoint-3"), checkpoint)


def with_a_scaler(checkpoint):
    torch.save({}, checkpoint / "scaler.pt")


@pytest.mark.parametrize(
    "damage", [emptied, cut, of_another_step, wholly_of_another_step, with_a_scaler]
)
def test_damaged_checkpoint_is_passed_over_and_named_it_is_refused(
    damage, trainer_of, uninterrupted
):
    """Half-written files, or files of two steps, gave a JSONDecodeError at best and other weights at worst."""
    out = killed(trainer_of(kill=7))
    damage(out / "checkpoint-6")
    with pytest.raises(
        ValueError, match=r"must (be as it was saved|be of the step|have the files)"
    ):
        trainer_of().train(resume_from_checkpoint=str(out / "checkpoint-6"))
    again = trainer_of()
    again.train(resume_from_checkpoint=True)
    assert_equal(uninterrupted, state(again))


def test_training_that_was_killed_after_its_last_step_takes_no_other(trainer_of, tmp_path):
    """`Trainer` used to continue inside the epoch: step 11 of 10, and other weights under a constant rate."""
    settings = {"max_steps": 10, "save_steps": 5, "lr_scheduler_type": "constant"}
    whole = trainer_of(output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    killed(trainer_of(kill=10, **settings))
    again = trainer_of(**settings)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 10
    assert_equal(state(whole), state(again))


def test_second_training_in_a_folder_does_not_go_on_from_the_first(trainer_of, caplog):
    """The second training would resume from the other's last checkpoint and consider itself done."""
    first = trainer_of()
    first.train()
    out = killed(trainer_of(kill=2, learning_rate=0.1))
    with pytest.raises(ValueError, match=r"0 incomplete and 4 of other trainings \(checkpoint-12"):
        trainer_of().train(resume_from_checkpoint=True)
    killed(trainer_of(kill=4, learning_rate=0.1))
    again = trainer_of(kill=4, learning_rate=0.1)
    killed(again, resume=True)
    assert again.state.global_step == 4
    # It may resume from the other if asked by path; checkpoints that the other wrote later stay the
    # other's.
    branch = trainer_of(kill=8)
    killed(branch, resume=str(out / "checkpoint-6"))
    assert branch.state.global_step == 8
    assert json.loads((out / RUN).read_text())["start"].endswith("checkpoint-6")
    last = trainer_of(kill=7)
    killed(last, resume=True)
    assert last.state.global_step == 7
    last = trainer_of()
    last.train(resume_from_checkpoint="True")  # as given on the command line
    assert last.state.global_step == 12


def test_other_training_s_checkpoints_are_neither_deleted_nor_taken_for_the_best(trainer_of, crowd):
    """With room for one checkpoint, the newest used to be deleted in favour of an earlier training's higher step."""
    first = trainer_of()
    first.train()
    second = trainer_of(
        held_out=crowd, save_total_limit=1, load_best_model_at_end=True, eval_strategy="steps", eval_steps=3, max_steps=9
    )  # fmt: skip
    second.train()
    out = Path(second.args.output_dir)
    runs = {p.name: read_manifest(p)["run"] for p in out.glob("checkpoint-*")}
    assert len(runs) == 2
    assert runs.pop("checkpoint-12") == first._run.id
    (name,) = runs
    assert runs[name] == second._run.id
    assert second.state.best_model_checkpoint.endswith(name)


def test_training_goes_on_in_another_folder(trainer_of, uninterrupted, tmp_path):
    """Resuming from another output folder is legitimate.

    Killed before its first save, the run must resume from there again.
    """
    out = killed(trainer_of(kill=7))
    moved = {"output_dir": str(tmp_path / "moved")}
    killed(trainer_of(kill=8, **moved), resume=str(out / "checkpoint-6"))
    again = trainer_of(**moved)
    again.train(resume_from_checkpoint=True)
    assert_equal(uninterrupted, state(again))


def test_folder_is_of_one_training_at_a_time(trainer_of, monkeypatch):
    """The first training would end with the second's weights as its best epoch."""

    class Intrude(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            trainer_of().train()

    trainer = trainer_of()
    trainer.add_callback(Intrude())
    with pytest.raises(ValueError, match="`output_dir` must be of one training at a time"):
        trainer.train()
    out = Path(trainer.args.output_dir)
    holding = (
        "import sys; from filelock import FileLock; lock = FileLock(sys.argv[1]); lock.acquire(); print('held', flush=True); "
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", holding, out / module.LOCK]
    with begun(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == "held\n"
        monkeypatch.setattr(module, "LOCK_PATIENCE", 0.1)
        with pytest.raises(ValueError, match="where another one is at work"):
            trainer_of().train()
    # the lock is released when its process ends
    killed(trainer_of(kill=1))


def test_short_trainings_and_those_without_checkpoints_ask_for_no_folder(trainer_of, tmp_path):
    """Experiments that write nothing may share a folder, or use one that is read-only."""
    trainer = trainer_of(save_strategy="no", max_steps=1)
    trainer.train()
    assert [path.name for path in tmp_path.rglob("_*")] == []


@pytest.mark.parametrize(
    ("resume", "error", "message"),
    [
        ("out/chekpoint-6", FileNotFoundError, "there are: checkpoint-3, checkpoint-6"),
        ("org/pair", FileNotFoundError, "must be the folder of a checkpoint, got 'org/pair'"),
        ("", FileNotFoundError, "got ''"),
        (6, TypeError, "must be a path, True, False or None, got int"),
    ],
)
def test_path_that_is_not_there_is_told_and_asked_of_no_hub(resume, error, message, trainer_of):
    """A misspelt path used to be taken for the name of a repository."""
    killed(trainer_of(kill=7))
    with pytest.raises(error, match=message):
        trainer_of().train(resume_from_checkpoint=resume)


def test_checkpoint_of_only_a_model_is_refused(trainer_of):
    """Without optimizer and schedule, training continues to other weights."""
    out = killed(trainer_of(kill=4, save_only_model=True))
    with pytest.raises(ValueError, match="saved with `save_only_model=True`"):
        trainer_of().train(resume_from_checkpoint=str(out / "checkpoint-3"))


def test_checkpoint_of_another_crowd_or_model_is_refused(trainer_of, make_model):
    """With annotators in another order, each would get another's matrix."""
    out = killed(trainer_of(kill=4))
    checkpoint = str(out / "checkpoint-3")
    trainer = trainer_of()
    trainer.crowd_model.config.annotators = ["bob", "ann", "cyd", "dee"]
    with pytest.raises(ValueError, match=r"4 annotators of this training.*\(in another order\)"):
        trainer.train(resume_from_checkpoint=checkpoint)
    with pytest.raises(ValueError, match=r"must be of this model, whose .*aggregator\.\w+ has"):
        trainer_of(fields={"aggregator": "factored"}).train(resume_from_checkpoint=checkpoint)
    with pytest.raises(ValueError, match="with the same optimizer and schedule"):
        trainer_of(optim="sgd").train(resume_from_checkpoint=checkpoint)
    with pytest.raises(ValueError, match="with the same optimizer and schedule"):
        trainer_of(fields={"prior": "learned"}).train(resume_from_checkpoint=checkpoint)


@pytest.mark.parametrize("writer", ["torch.save", "transformers.modeling_utils.safe_save_file"])
def test_full_disk_ends_training_with_a_word_and_the_checkpoint_before(
    writer, trainer_of, uninterrupted, monkeypatch
):
    """Otherwise half a checkpoint would be the newest one, and the error would be torch's own."""

    class Fill(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 5:
                monkeypatch.setattr(writer, full)

    def full(content, path, *args, **kwargs):
        Path(path).write_bytes(b"\0" * 100)
        raise RuntimeError(
            "[enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file data/0"
        )

    trainer = trainer_of()
    trainer.add_callback(Fill())
    with pytest.raises(OSError, match="a checkpoint must be written whole, got an error at step 6"):
        trainer.train()
    monkeypatch.undo()
    out = Path(trainer.args.output_dir)
    assert [p.name for p in out.glob("checkpoint-*")] == ["checkpoint-3"]
    again = trainer_of()
    again.train(resume_from_checkpoint=True)
    assert_equal(uninterrupted, state(again))


def test_folder_that_may_not_be_written_is_told_before_training(trainer_of, tmp_path, monkeypatch):
    """After one epoch, or ten, it would be too late."""
    trainer = trainer_of()
    shutil.rmtree(trainer.args.output_dir)
    Path(trainer.args.output_dir).write_text("a file")
    with pytest.raises(OSError, match="`output_dir` must be a folder that may be written"):
        trainer.train()


def test_best_checkpoint_that_was_damaged_is_refused(trainer_of, crowd):
    """The training would end with weights other than the best ones."""

    class Damage(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs):
            raise AssertionError

        def on_save(self, args, state, control, **kwargs):
            if state.global_step == 12:
                path = Path(state.best_model_checkpoint, "model.safetensors")
                content = path.read_bytes()
                path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    trainer = trainer_of(
        held_out=crowd, load_best_model_at_end=True, eval_strategy="steps", eval_steps=3
    )
    trainer.add_callback(Damage())
    with pytest.raises(
        ValueError, match=r"`model\.safetensors` must be as it was saved, got other"
    ):
        trainer.train()


@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # of the client
def test_push_while_training_leaves_a_whole_model_where_another_was(hub, ann, make_trainer):
    """`Trainer` copies its files one by one over the old ones, so digests would not match."""
    trainer = make_trainer(push_to_hub=True, save_strategy="epoch", hub_token=ann)
    out = Path(trainer.args.output_dir)
    trainer.crowd_model.save_pretrained(out)
    before = read_manifest(out)["files"]
    trainer.train()
    trainer._finish_current_push()
    assert read_manifest(out)["files"] != before
    again = type(trainer.crowd_model).from_pretrained(out).state_dict()
    written = [
        type(trainer.crowd_model).from_pretrained(p).state_dict() for p in out.glob("checkpoint-*")
    ]
    assert sum(all(torch.equal(again[n], each[n]) for n in again) for each in written) == 1
    assert "Training in progress, epoch 1" in hub.repository("org/pair").messages
    assert not [path for path in hub.repository("org/pair").files if path.startswith("_")]
