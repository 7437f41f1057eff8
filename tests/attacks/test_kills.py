"""Trainings that are killed, run out of disk or lose a process resume to the same weights, or say why not."""

import contextlib
import os
import random
import resource
import shutil
import signal
import stat
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from hf_maxmig import (
    MaxMIGModel,
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
)
from hf_maxmig.model.whole_files import read_manifest
from hf_maxmig.training.checkpoints import checkpoints_in
from tests.attacks.mutations import SEED
from tests.children import as_rank, ended, free_port, needs_fork, run, started
from tests.networks import small_head
from tests.worlds import ANNOTATORS, make_crowd

pytestmark = [pytest.mark.slow, needs_fork]

KILLS = 4  # per kind, every other one inside a save; fewer outside the full suite
LOST = 60  # seconds within which a process must stop once its partner is gone
KINDS = {
    "plain": {},
    "search": {"search_rate": True, "init": None, "per_device_train_batch_size": 12},
    "accumulation": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 8},
    "learned prior": {"fields": {"prior": "learned"}},
    "factored": {"fields": {"aggregator": "factored"}},
    "workers": {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
}  # fmt: skip


def train(out, fields=None, resume=None, callback=None, **changes):
    """Train in a folder, from a checkpoint or from the start; write the weights to a file beside it."""
    settings = {
        "output_dir": str(out), "use_cpu": True, "report_to": "none", "disable_tqdm": True, "num_train_epochs": 2,
        "per_device_train_batch_size": 16, "save_strategy": "steps", "save_steps": 3, "save_total_limit": 2,
        "logging_strategy": "no", "learning_rate": 1e-2, "init": "vote_share", "search_rate": False,
        "search_strength": False,
    }  # fmt: skip
    model = small_head(dropout=0.5)
    if fields:
        model = MaxMIGModel.from_classifier(model, annotators=ANNOTATORS, **fields)
    trainer = MaxMIGTrainer(
        model=model, args=MaxMIGTrainingArguments(**(settings | changes)), train_dataset=make_crowd(),
        callbacks=[callback] if callback else [],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model()
    torch.save(dict(trainer.crowd_model.state_dict()), f"{out}.pt")


def go_on(out, **settings):
    """Resume from the last whole checkpoint, or start over if there is none."""
    whole = any("step" in (read_manifest(path) or {}) for path in checkpoints_in(out))
    train(out, resume=whole, **settings)


def assert_ended_as(expected, out, log):
    found = torch.load(f"{out}.pt")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected), log.read_text()
    saved = MaxMIGModel.from_pretrained(out).state_dict()
    assert all(torch.equal(expected[name], saved[name]) for name in expected)


def killed_inside_a_save(number):
    """Kill this process before the n-th disk operation of a save."""
    left = number

    def counted(step):
        def take(*args, **kwargs):
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*args, **kwargs)

        return take

    for place, name in (
        (os, "replace"), (os, "rename"), (os, "fsync"), (os, "link"), (torch, "save"), (shutil, "rmtree"),
    ):  # fmt: skip
        setattr(place, name, counted(getattr(place, name)))


def train_killed_inside_a_save(number, out, settings):
    killed_inside_a_save(number)
    train(out, **settings)


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        *((kind, KILLS // 2) for kind in ("plain", "search", "workers")),
        *(pytest.param(kind, KILLS, marks=pytest.mark.full) for kind in KINDS),
    ],
)
def test_killed_training_goes_on_to_the_same_weights(kind, kills, tmp_path):
    """A difference in the last bit shows that it is another training, although nobody would see it."""
    settings, log = KINDS[kind], tmp_path / "log"
    whole, began = tmp_path / "whole", time.monotonic()
    assert run(log, partial(train, whole, **settings)) == 0, log.read_text()
    seconds, expected = time.monotonic() - began, torch.load(f"{whole}.pt")
    rng, outcomes = random.Random(f"{SEED} {kind}"), Counter()
    for number in range(kills):
        out = tmp_path / f"run-{number}"
        inside = number % 2 == 1
        if inside:
            code = run(log, train_killed_inside_a_save, rng.randrange(60), out, settings)
        else:
            sent = signal.SIGKILL if number % 4 == 0 else signal.SIGTERM
            with started(log, partial(train, out, **settings)) as child:
                time.sleep(rng.random() * seconds)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, sent)
                code = ended(child)
        assert code in (0, -signal.SIGKILL, -signal.SIGTERM), log.read_text()
        outcomes["inside a save" if inside else "at some time"] += code != 0
        outcomes["with a checkpoint"] += bool(checkpoints_in(out))
        assert run(log, partial(go_on, out, **settings)) == 0, log.read_text()
        assert_ended_as(expected, out, log)
    assert outcomes["inside a save"] + outcomes["at some time"] >= max(1, kills - 2), outcomes
    print(f"{kind}: {dict(outcomes)} of {kills}")


class Once(TrainerCallback):
    """Run a function at the beginning of a step."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.action()


def fill(room):
    """Let no file grow beyond a number of bytes: the system refuses it, to torch and safetensors too."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))


@pytest.mark.parametrize(
    ("rooms", "least"),
    [
        ((100, 1_100, 2_500, 20_000), 3),
        pytest.param((0, 600, 1_000, 1_300, 5_000), 3, marks=pytest.mark.full),
    ],
)
def test_full_disk_is_told_and_training_goes_on_from_the_checkpoint_before(rooms, least, tmp_path):
    """Any file of a save may be the one that no longer fits."""
    log, whole = tmp_path / "log", tmp_path / "whole"
    assert run(log, train, whole) == 0, log.read_text()
    expected, refused = torch.load(f"{whole}.pt"), 0
    for room in rooms:
        out, log = tmp_path / f"room-{room}", tmp_path / f"log-{room}"
        code = run(log, partial(train, out, callback=Once(4, partial(fill, room))))
        # The training's own message comes last, in a file with no more room than the others.
        assert code == 1, (room, log.read_text())
        names = [path.name for path in checkpoints_in(out)]
        assert names[0] == "checkpoint-3", names
        refused += names == ["checkpoint-3"]
        assert run(tmp_path / "log", go_on, out) == 0
        assert_ended_as(expected, out, tmp_path / "log")
    assert refused >= least


def speak():
    print("it trains")


def train_locked_out(out):
    if os.geteuid() == 0:  # file modes do not restrict root
        os.setuid(65534)
    train(out, callback=Once(0, speak))


def test_folder_that_may_not_be_written_is_told_before_training():
    """After one epoch, or ten, it would be too late."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
        closed = [p for p in Path(place).parents if not p.stat().st_mode & stat.S_IXOTH]
        if os.geteuid() == 0 and closed:
            pytest.skip(f"another user, whom modes keep out, cannot reach {closed[0]}")
        out, log = Path(place, "out"), Path(place, "log")
        out.mkdir()
        out.chmod(0o555)
        log.touch()
        log.chmod(0o666)

        code = run(log, train_locked_out, out)
        text = log.read_text()
        assert code == 1
        assert "OSError: `output_dir` must be a folder that may be written" in text, text
        assert "it trains" not in text


def one_of_two(out):
    """Train as one of two processes, the second of which dies before its fifth step."""
    second = os.environ["RANK"] == "1"
    die = Once(4, partial(signal.raise_signal, signal.SIGKILL)) if second else None
    train(out, callback=die, per_device_train_batch_size=8, ddp_backend="gloo")


def test_process_whose_partner_was_killed_stops_with_an_error(tmp_path):
    """Otherwise it would wait for ever and block its machine."""
    port = free_port()
    out, logs = tmp_path / "out", [tmp_path / "log-0", tmp_path / "log-1"]
    with (
        started(logs[0], as_rank, 0, 2, port, one_of_two, out) as first,
        started(logs[1], as_rank, 1, 2, port, one_of_two, out) as second,
    ):
        assert ended(second) == -signal.SIGKILL, [log.read_text() for log in logs]
        began = time.monotonic()
        code = ended(first, LOST)
        assert code not in (None, 0), logs[0].read_text()
        print(f"the other stopped after {time.monotonic() - began:.1f} s with code {code}")
    assert [path.name for path in checkpoints_in(out)] == ["checkpoint-3"]
