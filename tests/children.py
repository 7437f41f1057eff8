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
import sys
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import pytest
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
IMPORTED_ONCE = ["tests.worlds", "hf_maxmig.training.trainer", "transformers", "timm"]
# On a Mac the libraries do not outlive a fork.
needs_fork = pytest.mark.skipif(
    not hasattr(os, "fork") or sys.platform == "darwin", reason="kills children, which are forked"
)


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


def page(path, *flags):
    """Be a script that was started with flags; for `run`."""
    sys.path.insert(0, str(path.parent))
    sys.argv = list(map(str, (path, *flags)))
    runpy.run_path(str(path), run_name="__main__")


def run(log, function, *args):
    """Run a function of a module in a child to its end: the exit code."""
    with started(log, function, *args) as child:
        return ended(child)
