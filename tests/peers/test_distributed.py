"""Rivals on several devices must take the step of one process with the same global batch."""

import pytest
import torch

from tests.children import together
from tests.peers import two_processes

NAMES = [
    "aggnet", "mbem", "crowd_layer", "doctor_net_weighted", "geo_f", "geo_w", "coin_net", "crowdlab",
    "conal",
]  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Return the outcome of two processes by rival; one launch trains them all."""
    out = tmp_path_factory.mktemp("two")
    together(out, 2, two_processes.train_all, out, NAMES)
    return {name: torch.load(out / f"{name}.pt", weights_only=True) for name in NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_take_the_step_of_one(name, two, tmp_path):
    """Means of means, or matrices counted per device from its own share, only look right."""
    two_processes.train(tmp_path, name)
    one = torch.load(tmp_path / f"{name}.pt", weights_only=True)
    assert one["parameters"].keys() == two[name]["parameters"].keys()
    for key, tensor in one["parameters"].items():
        torch.testing.assert_close(two[name]["parameters"][key], tensor, rtol=0, atol=1e-5, msg=key)
    assert two[name]["losses"] == pytest.approx(one["losses"], abs=1e-5)
    assert one["losses"][0] != pytest.approx(one["losses"][-1], abs=1e-3)
