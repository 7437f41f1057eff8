"""Token and salt appear in no printed form of the arguments, no file and no upload."""

import copy
import dataclasses
import io
import json
import logging
import os
import pickle
import pprint
import sys
import traceback

import pytest
import torch
import yaml
from transformers import HfArgumentParser

from hf_maxmig import MaxMIGTrainingArguments, hash_annotators
from hf_maxmig.command.flags import parse
from hf_maxmig.training.masking import Secret, masked, masked_flags

SALT = "a salt that nobody is told of"
TOKEN = "hf_" + "AbCdEfGh" * 4
NAME = "org/pair"

# The client passes a file to its HTTP client in a deprecated way.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@pytest.fixture
def args(make_args):
    return make_args(hub_annotators="hashed", hub_salt=SALT, hub_token=TOKEN)


def pickled(args):
    with io.BytesIO() as buffer:
        torch.save(args, buffer)
        return pickle.dumps(args).decode("latin1") + buffer.getvalue().decode("latin1")


def with_locals(args):
    def fails(args, hub_salt):
        raise RuntimeError(args)

    try:
        fails(args, args.hub_salt)
    except RuntimeError as error:
        report = traceback.TracebackException.from_exception(error, capture_locals=True)
        return "".join(report.format())
    raise AssertionError("nothing was raised")


def logged(args):
    stream = io.StringIO()
    logger = logging.Logger("shown")
    logger.addHandler(logging.StreamHandler(stream))
    logger.warning("%s %r %s %r", args, args, args.hub_salt, [args.hub_token])
    return stream.getvalue()


@dataclasses.dataclass
class FurtherArguments(MaxMIGTrainingArguments):
    """A user's own arguments, printed as `dataclass` prints them."""

    further: int = 3


def parsed(args):
    flags = ["--output_dir", "out", "--report_to", "none", "--hub_annotators", "hashed"]
    flags += ["--hub_salt", SALT, "--hub_token", TOKEN]
    (given,) = HfArgumentParser(FurtherArguments).parse_args_into_dataclasses(flags)
    assert (given.hub_salt, given.hub_token, given.further) == (SALT, TOKEN, 3)
    return repr(given) + str(given) + json.dumps(dataclasses.asdict(given), default=str)


def changed_copy(args):
    again = dataclasses.replace(copy.deepcopy(copy.copy(args)), seed=3)
    assert (again.hub_salt, again.hub_token, again.seed) == (SALT, TOKEN, 3)
    return repr(again) + again.to_json_string()


FORMS = {
    "str": str,
    "repr": repr,
    "formatted": lambda args: f"{args} {args!r} {args!s} %s" % args,
    "pretty": pprint.pformat,
    "in a list": lambda args: repr([args]),
    "to_dict": lambda args: repr(args.to_dict()) + json.dumps(args.to_dict()),
    "to_sanitized_dict": lambda args: json.dumps(args.to_sanitized_dict()),
    "to_json_string": lambda args: args.to_json_string(),
    "asdict": lambda args: json.dumps(dataclasses.asdict(args), default=str),
    "astuple": lambda args: json.dumps(dataclasses.astuple(args), default=str),
    "asdict as YAML": lambda args: yaml.dump(json.loads(json.dumps(dataclasses.asdict(args), default=str))),
    "vars": lambda args: repr(vars(args)) + json.dumps(vars(args), default=str),
    "pickled": pickled,
    "in a traceback": with_locals,
    "logged": logged,
    "parsed": parsed,
    "copied": changed_copy,
    "the salt itself": lambda args: repr(args.hub_salt) + str(args.hub_salt) + repr({"a": args.hub_token}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_no_form_shows_a_secret(form, args):
    """Arguments are printed, logged, written to results files and sent to trackers."""
    shown = FORMS[form](args)
    assert len(shown) > 20
    assert SALT not in shown
    assert TOKEN not in shown


def test_secrets_are_used_all_the_same(args):
    """If the mask itself were used, the token would open nothing and anybody could compute the hashes."""
    assert args.hub_salt == SALT
    assert f"Bearer {args.hub_token}" == f"Bearer {TOKEN}"
    assert args.hub_token.encode() == TOKEN.encode()
    other = copy.copy(args)
    other.hub_token = None
    assert (other.hub_token, args.hub_token) == (None, TOKEN)
    assert pickle.loads(pickle.dumps(args)).hub_salt is None


def test_arguments_that_lost_their_salt_train_nothing(args, make_trainer, monkeypatch):
    """A pickled copy has no salt. An error after the training would waste all its time."""
    again = pickle.loads(pickle.dumps(args))
    trainer_class = type(make_trainer())
    with pytest.raises(ValueError, match="`hub_salt` must be given with"):
        trainer_class(
            model=make_trainer().crowd_model, args=again, train_dataset=make_trainer().train_dataset
        )


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"hub_annotators": "hashed", "hub_salt": "short"}, ValueError, "`hub_salt` must have at least 16 characters, got 5"),
        ({"hub_annotators": "hashed", "hub_salt": 16 * b"x"}, TypeError, "`hub_salt` must be a string, got bytes"),
        ({"hub_annotators": "hidden"}, ValueError, "`hub_annotators` must be one of names, hashed, dropped, got 'hidden'"),
        ({"hub_strategy": "checkpoint"}, ValueError, "`hub_strategy` must be 'end' or 'every_save', got 'checkpoint'"),
        ({"hub_strategy": "all_checkpoints"}, ValueError, "`hub_strategy` must be 'end' or 'every_save', got 'all_"),
    ],
)  # fmt: skip
def test_what_cannot_be_shared_is_said_before_anything_is_trained(asked, error, message, make_args):
    """After the training, an empty repository would already exist and the time be spent."""
    with pytest.raises(error, match=message) as raised:
        make_args(push_to_hub=True, **asked)
    assert "short" not in str(raised.value).replace("a short salt", "")


def test_model_whose_annotators_have_no_names_is_not_asked_for_hashes(make_args, make_model, crowd):
    from hf_maxmig import MaxMIGModel, MaxMIGTrainer

    model = MaxMIGModel.from_classifier(
        make_model().classifier, num_annotators=4, id2label=make_model().config.id2label
    )
    asked = make_args(hub_annotators="hashed", hub_salt=SALT)
    with pytest.raises(
        ValueError, match="`hub_annotators` must be 'names' or 'dropped' for a model"
    ):
        MaxMIGTrainer(model=model, args=asked, train_dataset=crowd)


def test_addresses_and_results_show_no_password():
    """The data folder may be an address that contains a token."""
    for text in (
        f"https://user:{SALT.replace(' ', '')}@host/a", f"s3://x?token={TOKEN}&a=b", f"a {TOKEN} b",
        {"deepspeed": {"api_key": TOKEN}, "list": [(TOKEN,)]},
    ):  # fmt: skip
        shown = str(masked(text))
        assert TOKEN not in shown
        assert SALT.replace(" ", "") not in shown
    for plain in ("org/name@main", "ann@example.org", "a?b=c&d=e", "tokens=3", "/data/hf_cache/x"):
        assert masked(plain) == plain
    flags = [
        "r.py",
        "--hub_token",
        "x1",
        "--hub-salt",
        "x2",
        "--hub_t=x3",
        "--hub_sal",
        "x4",
        "--seed",
        "1",
    ]
    shown = masked_flags(flags)
    assert not [flag for flag in shown if "x" in flag.replace("<HIDDEN>", "")]
    assert shown[-2:] == ["--seed", "1"]
    assert isinstance(Secret("a"), str)


# Files


@pytest.fixture(scope="module")
def removed():
    """Record each file that is removed or moved while switched on, as an audit hook cannot be removed."""
    seen = {"on": False, "files": {}}

    def watch(event, details):
        if seen["on"] and event in ("os.remove", "os.rename"):
            path = details[0]
            if isinstance(path, (str, os.PathLike)) and os.path.isfile(path):
                seen["on"] = False
                with open(path, "rb") as file:
                    seen["files"].setdefault(str(path), b"")
                    seen["files"][str(path)] += file.read()
                seen["on"] = True

    sys.addaudithook(watch)
    return seen


def test_hook_sees_what_is_there_for_a_moment_only(removed, tmp_path):
    """If the hook missed them, the next test would show nothing."""
    removed["on"] = True
    path = tmp_path / "for a moment"
    torch.save({"salt": SALT}, path)
    path.unlink()
    removed["on"] = False
    assert SALT.encode() in removed["files"].pop(str(path))


@pytest.mark.parametrize("annotators", ["hashed", "dropped"])
def test_no_file_has_a_secret_at_any_time(
    annotators, removed, hub, ann, make_trainer, tmp_path, caplog, monkeypatch
):
    """Each save used to pickle the arguments into a file that everybody on the machine could briefly read."""
    saved = []
    save = torch.save
    monkeypatch.setattr(
        torch, "save", lambda what, *a, **k: (saved.append(what), save(what, *a, **k))
    )
    salt = SALT if annotators == "hashed" else None
    caplog.set_level(logging.DEBUG)
    trainer = make_trainer(
        hub_annotators=annotators, hub_salt=salt, hub_token=ann, push_to_hub=True, save_strategy="epoch",
        report_to="tensorboard",
    )  # fmt: skip
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "runs"))
    removed["files"].clear()
    removed["on"] = True
    trainer.train()
    trainer.save_model()
    trainer.create_model_card()
    removed["on"] = False
    assert removed["files"]
    assert saved  # optimizers and the like
    assert not [what for what in saved if isinstance(what, MaxMIGTrainingArguments)]
    contents = {str(p): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    contents |= removed["files"]
    for commit, files in hub.repository(NAME).commits.items():
        contents |= {f"{commit}/{path}": file.content for path, file in files.items()}
    contents["log"] = caplog.text.encode()
    assert not [path for path in contents if path.endswith("training_args.bin")]
    for secret in (SALT, ann):
        assert not [path for path, content in contents.items() if secret.encode() in content]


def test_results_of_a_recipe_have_no_secret(load, tmp_path, monkeypatch):
    """Results are committed, and a failed run prints its command."""
    repeat = load("repeat")
    flags = ["--hub_token", TOKEN, f"--hub_salt={SALT}", "--data_dir", "/home/ann/data"]
    flags += ["--data-dir=/home/ann/data", "--config", "/home/ann/settings.yaml"]
    (tmp_path / "fails.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(repeat, "__file__", str(tmp_path / "repeat.py"))
    with pytest.raises(repeat.subprocess.CalledProcessError) as raised:
        repeat.run_seed(tmp_path / "fails.py", flags, 0)
    shown = str(raised.value) + repr(raised.value.cmd)
    shown += "".join(traceback.format_exception(raised.value)) + " ".join(repeat.shown(flags))
    assert TOKEN not in shown
    assert SALT not in shown
    assert "/home/ann" not in shown


def test_salt_hashes_as_the_plain_text_does(args, crowd):
    """If the mask were hashed, everybody could compute the hashes."""
    assert hash_annotators(crowd, args.hub_salt).features == hash_annotators(crowd, SALT).features


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("hub_annotators: hashed\nhub_salt: SALT\nhub_token: TOKEN\n", ["--help"]),
        ("hub_annotators: hashed\nhub_salt: SALT\nhub_token: TOKEN\n", ["--learning_rate", "x"]),
        ('hub_salt: "SALT\n', []),
        ("hub_salt: [SALT]\n", []),
        ("hub_salt: {a: SALT}\n", []),
        ("hub_salt: SALT: TOKEN\n", []),
        ("hub_slat: SALT\n", []),
        ("hub_annotators: names\nhub_salt: SALT\n", []),
        ("seed: 1\n", ["--hub_slat", "SALT", "--hub_tokn=TOKEN"]),
    ],
)
def test_command_line_that_is_wrong_shows_no_secret(text, flags, tmp_path, capsys):
    """Users paste the error about a file into questions to others."""
    path = tmp_path / "settings.yaml"
    path.write_text(
        (text + f"output_dir: {tmp_path}\n").replace("SALT", SALT).replace("TOKEN", TOKEN)
    )
    given = [flag.replace("SALT", SALT).replace("TOKEN", TOKEN) for flag in flags]
    with pytest.raises((SystemExit, ValueError)) as raised:
        parse(MaxMIGTrainingArguments, arguments=["--config", str(path), *given])
    shown = "".join(traceback.format_exception(raised.value, chain=False)) + "".join(
        capsys.readouterr()
    )
    assert len(shown) > 20
    assert SALT not in shown
    assert TOKEN not in shown
