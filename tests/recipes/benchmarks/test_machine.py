"""The versions and machine that the recipes record with their measurements."""

import pytest
import torch

from tests.processes import finished


@pytest.fixture
def machine(load):
    return load("machine")


def git(folder, *command):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    finished(["git", "-C", folder, *who, *command])


def test_numbers_are_of_a_commit(machine, tmp_path, monkeypatch):
    """The package's version stays the same while its defaults change."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    file = tmp_path / "machine.py"
    file.write_text("one")
    monkeypatch.setattr(machine, "__file__", str(file))
    assert machine.commit() is None
    git(tmp_path, "init")
    assert machine.commit() is None
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    first = machine.commit()
    file.write_text("two")
    assert machine.commit() == f"{first}-dirty"
    git(tmp_path, "commit", "-am", "two")
    assert machine.commit() not in (first, f"{first}-dirty", None)
    (tmp_path / "results.json").write_text("{}")
    assert not machine.commit().endswith("-dirty")


def test_without_git_there_is_no_commit(machine, monkeypatch):
    """Running a recipe must not require git."""
    monkeypatch.setenv("PATH", "")
    said = machine.machine(torch, threads=3)
    assert said["commit"] is None
    assert said["torch"] == torch.__version__
    assert said["threads"] == 3
