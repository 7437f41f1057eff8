"""Children are forked from a process with one thread, and compute with one."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.children import IMPORTED_ONCE, ended, needs_fork, run, started, together

pytestmark = [pytest.mark.slow, needs_fork]


def look():
    """Print what a child finds when it starts."""
    with open("/proc/self/status", encoding="utf-8") as file:
        mine = file.read()
    with open(f"/proc/{os.getppid()}/status", encoding="utf-8") as file:
        server = file.read()
    for status in (mine, server):
        print(next(line for line in status.splitlines() if line.startswith("Threads:")))
    print([name in sys.modules for name in IMPORTED_ONCE])
    print(os.environ["OMP_NUM_THREADS"], torch.get_num_threads())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts threads in /proc")
def test_child_and_its_server_have_one_thread(tmp_path):
    """A lock held by another thread would hang a child, once in some hundred runs."""
    assert run(tmp_path / "log", look) == 0, (tmp_path / "log").read_text()
    every = str([True] * len(IMPORTED_ONCE))
    assert (tmp_path / "log").read_text().splitlines() == ["Threads:\t1"] * 2 + [every, "1 1"]


def fail():
    raise KeyError("the child's own words")


def test_end_of_a_child_is_told(tmp_path):
    """A child that hangs must not hang the tests, and one that fails must say why."""
    log = tmp_path / "log"
    assert run(log, fail) == 1
    assert 'KeyError: "the child\'s own words"' in log.read_text()
    with started(log, time.sleep, 600) as child:
        assert ended(child, 0.1) is None
        os.kill(child.pid, signal.SIGTERM)
        assert ended(child) == -signal.SIGTERM
    with started(log, time.sleep, 600) as child:
        pass
    assert child.exitcode == -signal.SIGKILL


def fail_in_one_of_two(folder):
    rank = os.environ["RANK"]
    (folder / rank).write_text(str(os.getpid()))
    if rank == "1":
        raise KeyError("the second's own words")
    time.sleep(600)


def test_others_of_a_group_end_with_the_one_that_fails(tmp_path):
    """They would wait for it until their own time is up, and its error would be lost."""
    with pytest.raises(AssertionError, match="the second's own words"):
        together(tmp_path, 2, fail_in_one_of_two, tmp_path)
    first = tmp_path / "0"
    assert not first.exists() or not Path("/proc", first.read_text(), "fd").exists()
    with pytest.raises(AssertionError, match="not ended in 0.1 s"):
        together(tmp_path, 2, time.sleep, 600, seconds=0.1)


def test_no_test_forks_or_waits_without_an_end():
    """A hang would end the tests without a message; the two modules that start processes prevent it."""
    for path in Path(__file__).parent.rglob("*.py"):
        if path.name in ("children.py", "processes.py", "test_children.py"):
            continue
        text = path.read_text(encoding="utf-8")
        for call in ("os.fork(", "subprocess.run(", "Popen(", ".join()", ".wait()", ".communicate()"):  # fmt: skip
            assert call not in text, (path.name, call)
