"""What a model holds, and whether two hold the same."""

import torch


def state(trained):
    """The parameters and buffers of a model, or of the one that a trainer trains, as they are now."""
    model = getattr(trained, "crowd_model", trained)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def equal(first, second):
    """Whether two states are the same to the last bit."""
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def assert_same(first, second, atol=0.0):
    """Assert that two states are the same; a difference is told with the name of its tensor."""
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(
            first[name], second[name], rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )
