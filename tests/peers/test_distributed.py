"""Rivals on several devices must take the step of one process with the same global batch."""

import pytest
import torch

from tests.processes import run_script


def run(root, out, processes, name):
    script = root / "tests" / "peers" / "two_processes.py"
    run_script(root, processes, script, out, 16 // processes, name)
    return torch.load(out, weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aggnet", "mbem", "crowd_layer", "doctor_net_weighted"])
def test_two_processes_take_the_step_of_one(name, root, tmp_path):
    """Means of means, or matrices counted by each device from its own share, only look right."""
    one, two = (run(root, tmp_path / f"{n}.pt", n, name) for n in (1, 2))
    assert one["parameters"].keys() == two["parameters"].keys()
    for key, tensor in one["parameters"].items():
        torch.testing.assert_close(two["parameters"][key], tensor, rtol=0, atol=1e-5, msg=key)
    assert two["losses"] == pytest.approx(one["losses"], abs=1e-5)
    assert one["losses"][0] != pytest.approx(one["losses"][-1], abs=1e-3)
