"""Run commands to their end; those that hang are killed, with all the processes that they started."""

import contextlib
import os
import signal
import subprocess
import sys


@contextlib.contextmanager
def begun(command, **options):
    """Start a command in its own process group, none of which is left at the end."""
    process = subprocess.Popen(
        list(map(str, command)), start_new_session=True, text=True, **options
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def finished(command, seconds=240, code=0, **options):
    """Run a command, which must end in time with an exit code; return output and errors separately."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with begun(command, **pipes, **options) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(
                f"{command} did not end within {seconds} s: {late.output}{late.stderr}"
            ) from late
    assert process.returncode == code, f"{output}{errors}"
    return output, errors


def launch(root, *arguments, launcher=("accelerate.commands.launch",)):
    """Run a recipe to its end, as its page says; return what it printed."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return finished([sys.executable, "-m", *launcher, *arguments], 280, cwd=root, env=env)[0]
