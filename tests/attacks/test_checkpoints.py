"""Damaged checkpoints and model folders: skipped, refused by us, or read as if undamaged."""

import contextlib
import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch

from hf_maxmig import MaxMIGModel, MaxMIGTrainer
from hf_maxmig.model.whole_files import MANIFEST
from hf_maxmig.training.checkpoints import checkpoints_in, find_start
from tests.attacks.mutations import SEED, damaged, is_ours, twisted


def numbers(names, *some):
    """Parametrise by number of attacks: some always, and five times as many in the full suite."""
    many = tuple(5 * number for number in some)
    return pytest.mark.parametrize(names, [some, pytest.param(*many, marks=pytest.mark.full)])


NEEDED = ("config.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", MANIFEST)  # fmt: skip


def files_of(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def told_by(files):
    """Return what the files of a checkpoint say; in config and manifest, white space is ignored."""
    content = dict(files)
    for name in {"config.json", MANIFEST} & {*files}:
        with contextlib.suppress(ValueError):
            content[name] = json.dumps(json.loads(files[name].decode("utf-8")), sort_keys=True)
    return content


def tried(call, *args):
    """Return what a call returns and what it raises; one of the two is None."""
    try:
        return call(*args), None
    except Exception as error:  # of any type, as its origin is what is tested
        return None, error


def hurt(folder, other, rng, names):
    """Damage a folder in a way that disks, copies and killed saves do."""
    name = rng.choice(names)
    path, kind = folder / name, rng.randrange(9)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.write_bytes(b"")
    elif kind == 2 and (other / name).is_file():
        shutil.copy(other / name, path)
    elif kind == 3:
        head = b"{}"
        (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    elif kind == 4 and name.endswith(".json"):
        path.write_text(json.dumps(twisted(json.loads(path.read_bytes()), rng)))
    elif kind == 5:
        path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])
    elif kind == 6:
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(content))
    elif kind == 7:
        for each in rng.sample(names, rng.randrange(2, len(names))):
            if (other / each).is_file():
                shutil.copy(other / each, folder / each)
    else:
        path.write_bytes(damaged(path.read_bytes(), rng))


@pytest.fixture
def trained(crowd, make_model, make_args, tmp_path):
    """Return an output folder with the checkpoints 3, 6 and 9 of one training, and its final weights."""
    args = make_args(num_train_epochs=2, save_strategy="steps", save_steps=3, save_total_limit=4)
    trainer = MaxMIGTrainer(model=make_model(0.5), args=args, train_dataset=crowd)
    trainer.train()
    out = Path(args.output_dir)
    shutil.rmtree(out / "checkpoint-12")
    assert [p.name for p in checkpoints_in(out)] == ["checkpoint-3", "checkpoint-6", "checkpoint-9"]

    def again():
        trainer = MaxMIGTrainer(model=make_model(0.5, seed=3), args=args, train_dataset=crowd)
        trainer.train(resume_from_checkpoint=True)
        return trainer.crowd_model.state_dict()

    return out, trainer.crowd_model.state_dict(), again


@pytest.mark.slow
@numbers(("checkpoints", "resumed"), 140, 2)
def test_damaged_checkpoints_are_passed_over_or_refused(checkpoints, resumed, trained):
    """364 of 800 used to raise foreign errors, or training continued from something else."""
    out, expected, again = trained
    rng, outcomes = random.Random(SEED), Counter()
    last, other, kept = out / "checkpoint-9", out / "checkpoint-6", out.parent / "kept"
    shutil.copytree(last, kept)
    whole = told_by(files_of(kept))
    for number in range(checkpoints):
        hurt(last, other, rng, NEEDED)
        same = told_by(files_of(last)) == whole
        _, found, _ = find_start(True, out, keeps=False)
        assert Path(found).name == ("checkpoint-9" if same else "checkpoint-6"), number
        _, error = tried(find_start, str(last), out, False)
        assert (error is None) == same, (number, repr(error))
        assert same or is_ours(error), (number, repr(error))
        outcomes["as before" if same else "refused"] += 1
        if number < resumed:
            assert all(torch.equal(value, expected[n]) for n, value in again().items()), number
            shutil.rmtree(out / "checkpoint-12")
        shutil.rmtree(last, ignore_errors=True)
        shutil.copytree(kept, last)
    assert outcomes["refused"] > 0.8 * checkpoints, outcomes
    print(f"{checkpoints} damaged checkpoints: {dict(outcomes)}, {resumed} resumed")


def is_same_model(folder, pair):
    again = MaxMIGModel.from_pretrained(folder)
    tensors = zip(again.state_dict().items(), pair.state_dict().items(), strict=True)
    configs = [model.config.to_dict() for model in (again, pair)]
    for each in configs:
        each.pop("_name_or_path", None)
    return configs[0] == configs[1] and all(
        a == b and torch.equal(x, y) for (a, x), (b, y) in tensors
    )


def fields_of(folder):
    """Return the names of a config's fields; none if it is not JSON."""
    with contextlib.suppress(OSError, ValueError):
        return {*json.loads((folder / "config.json").read_text(encoding="utf-8"))}
    return set()


@pytest.mark.slow
@numbers(("models",), 50)
def test_damaged_model_folders_are_refused_or_as_before(models, make_model, tmp_path):
    """A `{}` in place of the head's config loaded a model of random weights, a flipped bit another model."""
    pair, folder, kept = make_model(), tmp_path / "pair", tmp_path / "kept"
    torch.nn.init.normal_(pair.aggregator.table)
    pair.save_pretrained(kept)
    make_model(seed=4, prior="learned").save_pretrained(tmp_path / "other")
    pair = MaxMIGModel.from_pretrained(kept)
    rng, outcomes = random.Random(SEED), Counter()
    for number in range(models):
        shutil.copytree(kept, folder)
        hurt(folder, tmp_path / "other", rng, ("config.json", "model.safetensors", MANIFEST))
        same, error = tried(is_same_model, folder, pair)
        if error is not None:
            assert is_ours(error), (number, repr(error))
            assert told_by(files_of(folder)) != told_by(files_of(kept)), number
            outcomes["refused"] += 1
        elif same:
            outcomes["as before"] += 1
        else:
            # Only warned about: a config that lost a field, or a folder without a manifest or with
            # another's.
            lost = bool(fields_of(kept) - fields_of(folder)) and fields_of(folder) < fields_of(kept)
            manifest = files_of(folder).get(MANIFEST)
            assert lost or manifest in (None, files_of(tmp_path / "other")[MANIFEST]), number
            outcomes["others' fields or manifest"] += 1
        shutil.rmtree(folder)
    assert outcomes["refused"] > 0.5 * models, outcomes
    print(f"{models} damaged model folders: {dict(outcomes)}")


def tensors_of(content):
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length])


@pytest.mark.slow
@numbers(("bare",), 50)
def test_damaged_weights_without_a_manifest_are_refused_or_as_before(bare, make_model, tmp_path):
    """Older or hand-made models have no manifest, so only missing or misshapen tensors can be detected."""
    folder, kept = tmp_path / "pair", tmp_path / "kept"
    make_model().save_pretrained(kept)
    (kept / MANIFEST).unlink()
    pair = MaxMIGModel.from_pretrained(kept)
    weights = (kept / "model.safetensors").read_bytes()
    head = 8 + int.from_bytes(weights[:8], "little")
    rng, outcomes = random.Random(SEED), Counter()
    for number in range(bare):
        shutil.copytree(kept, folder)
        # Without a digest nobody can detect changed numbers: only the list of tensors is damaged.
        content = damaged(weights[:head], rng) + weights[head:]
        if number % 3 == 0:
            content = weights[: rng.randrange(len(weights))]
        (folder / "model.safetensors").write_bytes(content)
        same, error = tried(is_same_model, folder, pair)
        assert error is None or is_ours(error), (number, repr(error), content[:200])
        # A tensor of another offset or type is another file, which someone may have written on purpose.
        assert error or same or tensors_of(content) != tensors_of(weights), number
        outcomes["refused" if error else "as before" if same else "another file"] += 1
        shutil.rmtree(folder)
    assert outcomes["refused"] > 0.7 * bare, outcomes
    print(f"{bare} damaged files of weights: {dict(outcomes)}")
