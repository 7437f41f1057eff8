"""Several devices must take the step of one process with the same global batch."""

import pytest
import torch

from hf_maxmig.distributed import gather_with_gradient
from tests.processes import run_script


def run(root, out, processes, batch_size, *flags):
    run_script(root, processes, root / "tests" / "two_processes.py", out, batch_size, *flags)
    return torch.load(out, weights_only=True)


@pytest.fixture(scope="module")
def one_process(root, tmp_path_factory):
    return run(root, tmp_path_factory.mktemp("one") / "one.pt", 1, 16)


@pytest.mark.slow
def test_two_processes_take_the_step_of_one(one_process, root, tmp_path):
    """Without gradient through the gather, or with the prior's counted twice, training only looks right."""
    two = run(root, tmp_path / "two.pt", 2, 8)
    assert one_process["steps"] == two["steps"] == 4
    for name, tensor in one_process["parameters"].items():
        torch.testing.assert_close(two["parameters"][name], tensor, rtol=0, atol=1e-6, msg=name)
    assert one_process["parameters"]["prior.logits"].std() > 1e-3
    assert two["metrics"] == pytest.approx(one_process["metrics"], abs=1e-6)
    assert two["losses"] == pytest.approx(one_process["losses"], abs=1e-6)
    for first, second in zip(one_process["posteriors"], two["posteriors"], strict=True):
        assert first.shape == second.shape == (70, 3)
        torch.testing.assert_close(first, second, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_gain_of_each_device_alone_is_another_objective(one_process, root, tmp_path):
    """If this were the same, the test above would show nothing; and the flag must do something."""
    local = run(root, tmp_path / "local.pt", 2, 8, "--local-gain")
    gaps = [
        (local["parameters"][name] - tensor).abs().max()
        for name, tensor in one_process["parameters"].items()
    ]
    assert max(gaps) > 1e-4


def test_gather_in_one_process_is_the_tensor_itself():
    """A copy would cost memory, a detached one the gradient."""
    tensor = torch.ones(3, requires_grad=True)
    assert gather_with_gradient(tensor) is tensor


@pytest.mark.slow
def test_gather_takes_uneven_batches(root, tmp_path):
    """The last batch of an epoch may differ between processes: a plain all-gather would hang or pad with zeros."""
    script = tmp_path / "gather.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "from hf_maxmig.distributed import gather_with_gradient\n"
        "dist.init_process_group('gloo')\n"
        "rank = dist.get_rank()\n"
        "whole = torch.arange(10.0).reshape(5, 2) + 1\n"
        "mine = (whole[:4] if rank == 0 else whole[4:]).clone().requires_grad_()\n"
        "joined = gather_with_gradient(mine)\n"
        "assert torch.equal(joined, whole)\n"
        "weights = torch.arange(10.0).reshape(5, 2)\n"
        "(joined * weights).sum().backward()\n"
        "own = weights[:4] if rank == 0 else weights[4:]\n"
        "assert torch.equal(mine.grad, 2 * own), mine.grad\n"
        "flags = gather_with_gradient(torch.tensor([True] * (3 - rank)))\n"
        "assert flags.dtype == torch.bool and flags.tolist() == [True] * 5\n"
        "dist.destroy_process_group()\n"
        "open(sys.argv[1] + str(rank), 'w').write('done')\n"
    )
    run_script(root, 2, script, tmp_path / "rank")
    assert (tmp_path / "rank0").read_text() == (tmp_path / "rank1").read_text() == "done"
