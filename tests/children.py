"""Children that a test may kill: each is forked from a process that has one thread.

A fork copies only the thread that forks. A lock that another thread holds at that moment stays locked in the child, and
whoever asks for it waits for ever. A pytest process has other threads: that of xdist, pools that load weights. The server of
`multiprocessing` has none, and what it imports once every child has.
"""

import contextlib
import functools
import gc
import multiprocessing
import os
import runpy
import socket
import sys
import time
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from unittest import mock

import pytest
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
IMPORTED_ONCE = ["tests.worlds", "hf_maxmig.training.trainer", "transformers", "timm"]
# On a Mac the libraries do not outlive a fork.
CAN_FORK = hasattr(os, "fork") and sys.platform != "darwin"
needs_fork = pytest.mark.skipif(not CAN_FORK, reason="starts children, which are forked")


@functools.cache
def context():
    """Give the context of `multiprocessing` whose server has imported what most children need."""
    clean = multiprocessing.get_context("forkserver")
    clean.set_forkserver_preload(IMPORTED_ONCE)
    # Arrow's allocator would begin a thread; the server finds modules by its environment alone.
    settings = {"PYTHONPATH": str(ROOT), "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    with mock.patch.dict(os.environ, settings):
        forkserver.ensure_running()
    first = clean.Process(target=int)  # which waits for the imports
    first.start()
    first.join(120)
    return clean


def _call(log, function, *args):
    gc.freeze()  # what is imported is no garbage: each training looks through it else
    multiprocessing.set_start_method(None, force=True)  # that of Python, not of this child
    tqdm.monitor_interval = 0  # a thread, and workers of loaders are forked from here
    with open(log, "a", buffering=1, encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        function(*args)


@contextlib.contextmanager
def started(log, function, *args):
    """Start a function of a module in a child that writes to a file what it says; killed at the end."""
    child = context().Process(target=_call, args=(log, function, *args))
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join(60)


def ended(child, seconds=120):
    """Wait for the end of a child: its exit code, minus the signal that it died of; None if it goes on."""
    child.join(seconds)
    return child.exitcode


def as_rank(rank, processes, port, function, *args):
    """Be one of several processes, which meet at a port, as if `torchrun` had started them; for `started`."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    function(*args)


def free_port():
    """Find a port at which several processes can meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def together(folder, processes, function, *args, seconds=240):
    """Run a function of a module in several children that are one group; each must end well, and in time.

    A fifth of the processor time of `torchrun`, each process of which imports the libraries.
    """
    if not CAN_FORK:
        pytest.skip("starts children, which are forked")
    logs, port = [folder / f"log-{rank}" for rank in range(processes)], free_port()
    with contextlib.ExitStack() as all_of_them:
        children = [
            all_of_them.enter_context(started(log, as_rank, rank, processes, port, function, *args))
            for rank, log in enumerate(logs)
        ]
        at_work, deadline = (
            {child.sentinel: child for child in children},
            time.monotonic() + seconds,
        )
        while at_work:
            gone = wait(at_work, deadline - time.monotonic())
            codes = [ended(at_work.pop(sentinel)) for sentinel in gone]
            # Without one of them the others wait: they are ended too.
            told = "\n".join(log.read_text() for log in logs if log.exists())
            assert codes, f"not ended in {seconds} s: {told}"
            assert not any(codes), told


def come_with_libraries(monkeypatch):
    """Let processes that the code begins afresh be forked from the server, which has the libraries; on a Mac, none."""
    plain = multiprocessing.get_context
    if CAN_FORK:
        monkeypatch.setattr(
            multiprocessing, "get_context", lambda kind=None: context() if kind == "spawn" else plain(kind)
        )  # fmt: skip


def page(path, *flags):
    """Be a script that was started with flags; for `run`."""
    sys.path.insert(0, str(path.parent))
    sys.argv = list(map(str, (path, *flags)))
    runpy.run_path(str(path), run_name="__main__")


def printed_by(log, path, *flags):
    """Run a script with flags to its end, which must be a good one: what it printed, output and errors together."""
    with started(log, page, path, *flags) as child:
        code = ended(child, 280)
    assert code == 0, log.read_text()
    return log.read_text()


def run(log, function, *args):
    """Run a function of a module in a child to its end: the exit code."""
    with started(log, function, *args) as child:
        return ended(child)
