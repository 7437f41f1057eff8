"""The command `maxmig`: its verbs, its help, and one line per error."""

import sys
from dataclasses import fields

import pytest

import hf_maxmig
from hf_maxmig.cli import VERBS, main
from hf_maxmig.command.classification import (
    ClassificationTrainingArguments,
    DataArguments,
    ModelArguments,
)
from tests.processes import finished, launch
from tests.written_data import write_pictures, write_votes

TEN = [
    "votes", "train_dir", "train_file", "dataset_name", "test_dir", "test_file", "model_name_or_path", "freeze_backbone",
    "num_train_epochs", "output_dir",
]  # fmt: skip


def printed_by(capsys, *words):
    """Return what the command prints; it ends with exit code 0, or without one."""
    code = None
    try:
        main([str(word) for word in words])
    except SystemExit as left:
        code = left.code
    assert not code
    return capsys.readouterr().out


@pytest.fixture
def refused(capsys):
    """Return the line that the command ends with."""

    def by(*words):
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        printed = capsys.readouterr()
        assert left.value.code == 2
        assert printed.out == ""
        last = printed.err.splitlines()[-1]
        assert last.startswith("maxmig")
        return last

    return by


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_wait_for_no_library(flag, root):
    """Importing torch and transformers takes seconds, which a user who asks for help should not have to wait."""
    code = f"import sys; sys.argv = ['maxmig', '{flag}']; import maxmig; maxmig.main(); print([*sys.modules])"
    printed, _ = finished([sys.executable, "-c", code], cwd=root)
    assert "'hf_maxmig'" not in printed
    assert "'torch'" not in printed
    assert "'argparse'" not in printed
    assert ("verbs:" in printed) == (flag == "--help")


@pytest.mark.slow
@pytest.mark.full  # `.ci/run` launches a script
@pytest.mark.parametrize(
    "launcher",
    [
        ("accelerate.commands.launch",),
        ("torch.distributed.run", "--standalone", "--nproc_per_node=2"),
    ],
)
def test_launchers_start_the_command_by_its_module(launcher, root):
    """On several devices the installed command does not work: launchers take a script or a module."""
    printed = launch(root, "-m", "hf_maxmig.cli", "train", "--help", launcher=launcher)
    assert printed.startswith("usage: maxmig train ")
    assert printed.count("usage:") == (2 if "--nproc_per_node=2" in launcher else 1)


def test_version_is_the_package_s(capsys):
    """A bug report that names a wrong version misleads everybody."""
    assert printed_by(capsys, "--version") == f"maxmig {hf_maxmig.__version__}\n"


def test_help_names_every_verb(capsys, root):
    """Nobody uses a verb that is not listed, and one without a file fails."""
    text = printed_by(capsys, "--help")
    assert text == printed_by(capsys)
    for verb, what in VERBS.items():
        assert f"  {verb} " in text
        assert what in text
        assert (root / "hf_maxmig" / "command" / f"{verb}.py").is_file()


@pytest.mark.parametrize("verb", VERBS)
def test_verb_says_what_it_takes(verb, capsys):
    """Without the verb in the usage line, users cannot copy it."""
    text = printed_by(capsys, verb, "--help")
    assert text.startswith(f"usage: maxmig {verb} ")
    assert max(map(len, text.splitlines())) <= 110


def test_help_of_train_begins_with_ten_flags(capsys):
    """200 flags in the order of a dataclass hide the two that are required."""
    lines = printed_by(capsys, "train", "--help").splitlines()
    flags = [line.split()[0].removeprefix("--") for line in lines if line.startswith("  --")]
    assert flags[:10] == TEN
    kinds = (DataArguments, ModelArguments, ClassificationTrainingArguments)
    known = {field.name for kind in kinds for field in fields(kind) if field.init}
    assert sorted(flags) == sorted({*known, "config"})  # each once
    (rest,) = [i for i, line in enumerate(lines) if line.startswith("all other training arguments")]
    assert {*TEN, "hub_salt", "votes_item", "push_to_hub", "config"} <= {
        *flags[: rest - lines.count("")]
    }
    assert any(line.startswith("  --adam_beta1") for line in lines[rest:])
    assert not any(line.startswith("  --adam_beta1") for line in lines[:rest])


def test_wrong_verb_is_one_line(refused):
    """A traceback of an import does not say which verbs there are."""
    line = refused("trian")
    assert line.startswith("maxmig: error: the verb must be one of describe, train,")
    assert line.endswith("got 'trian' (did you mean train?).")


def test_what_is_wrong_with_a_training_is_one_line(refused, tmp_path):
    """The error names flag, file, folder or column, which a page of traceback would hide."""
    rows = write_pictures(tmp_path / "photos", number=6)
    votes = write_votes(tmp_path / "votes.csv", rows)
    usual = ["--train_dir", tmp_path / "photos", "--model_name_or_path", "maxmig_vgg16", "--output_dir",
             tmp_path / "out", "--use_cpu"]  # fmt: skip
    for flags, message in (
        (["--vots", votes], "unknown flags: --vots (did you mean --votes?)"),
        (["--votes", tmp_path / "none.csv"], "`--votes` must be a file or folder of votes, got"),
        (["--votes", votes, "--test_dir", tmp_path / "none"], "`--test_dir` must be a folder"),
        (["--votes", votes, "--votes_annotator", "name"], "'name'"),
    ):
        line = refused("train", *usual, *flags)
        assert line.startswith("maxmig train: error: ")
        assert message in line
    assert not (tmp_path / "out").exists()
