"""Runs a script to a clean end, on one process or several."""

import os
import subprocess
import sys

LAUNCHER = ("-m", "torch.distributed.run", "--standalone")


def run_script(root, processes, script, *arguments):
    """A process that aborts after its work is done is a failure too."""
    launcher = [*LAUNCHER, f"--nproc_per_node={processes}"] if processes > 1 else []
    ended = subprocess.run(
        [sys.executable, *launcher, *map(str, (script, *arguments))], cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
