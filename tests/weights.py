"""The parameters and buffers of a model, and whether two models are equal."""

import torch


def state(trained):
    """Return the current parameters and buffers of a model, or of the one that a trainer trains."""
    model = getattr(trained, "crowd_model", trained)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def equal(first, second):
    """Return whether two states are equal to the last bit."""
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def assert_same(first, second, atol=0.0):
    """Assert that two states are equal; a failure names the tensor that differs."""
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(
            first[name], second[name], rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )
