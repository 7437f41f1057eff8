"""Child processes that a test may kill: each is forked from a process with a single thread.

A fork copies only the thread that forks. A lock held by another thread at that moment stays locked in
the child, where anything that asks for it waits for ever. A pytest process has other threads, of xdist
and of pools that load weights. The server of `multiprocessing` has none, and all its children share the
modules that it has imported.
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
# On a Mac the libraries do not survive a fork.
CAN_FORK = hasattr(os, "fork") and sys.platform != "darwin"
needs_fork = pytest.mark.skipif(not CAN_FORK, reason="starts children, which are forked")


@functools.cache
def context():
    """Return the context of `multiprocessing` whose server has imported what most children need."""
    clean = multiprocessing.get_context("forkserver")
    clean.set_forkserver_preload(IMPORTED_ONCE)
    # Arrow's allocator would start a thread; the server finds modules only through its environment.
    settings = {"PYTHONPATH": str(ROOT), "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    with mock.patch.dict(os.environ, settings):
        forkserver.ensure_running()
    first = clean.Process(target=int)  # waits for the imports
    first.start()
    first.join(120)
    return clean


def _call(log, function, *args):
    gc.freeze()  # or each training would search the imported objects for garbage
    multiprocessing.set_start_method(None, force=True)  # Python's default, not that of this child
    tqdm.monitor_interval = 0  # a thread, from which workers of loaders would be forked
    with open(log, "a", buffering=1, encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        function(*args)


@contextlib.contextmanager
def started(log, function, *args):
    """Start a function of a module in a child that writes its output to a file; it is killed at the end."""
    child = context().Process(target=_call, args=(log, function, *args))
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join(60)


def ended(child, seconds=120):
    """Wait for a child to end.

    Return its exit code, minus the signal that killed it, or None if it is still running.
    """
    child.join(seconds)
    return child.exitcode


def as_rank(rank, processes, port, function, *args):
    """Be one of several processes that meet at a port, as if started by `torchrun`; for `started`."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    function(*args)


def free_port():
    """Return a port at which several processes can meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def together(folder, processes, function, *args, seconds=240):
    """Run a function of a module in several children that form one group; each must succeed, and in time.

    This takes a fifth of the processor time of `torchrun`, whose processes each import the libraries.
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
            # Without one of them the others would wait, so they are ended too.
            output = "\n".join(log.read_text() for log in logs if log.exists())
            assert codes, f"not ended in {seconds} s: {output}"
            assert not any(codes), output


def come_with_libraries(monkeypatch):
    """Let the code under test fork its new processes from the server with the libraries; on a Mac, from nothing."""
    plain = multiprocessing.get_context
    if CAN_FORK:
        monkeypatch.setattr(
            multiprocessing, "get_context", lambda kind=None: context() if kind == "spawn" else plain(kind)
        )  # fmt: skip


def page(path, *flags):
    """Run as a script that was started with flags; for `run`."""
    sys.path.insert(0, str(path.parent))
    sys.argv = list(map(str, (path, *flags)))
    runpy.run_path(str(path), run_name="__main__")


def printed_by(log, path, *flags):
    """Run a script with flags, which must succeed; return what it printed, output and errors together."""
    with started(log, page, path, *flags) as child:
        code = ended(child, 280)
    assert code == 0, log.read_text()
    return log.read_text()


def run(log, function, *args):
    """Run a function of a module in a child to its end; return the exit code."""
    with started(log, function, *args) as child:
        return ended(child)
