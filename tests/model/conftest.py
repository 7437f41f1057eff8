"""Fixtures of the tests of models."""

import pytest
import torch


@pytest.fixture
def memory_of_nan(monkeypatch):
    """What loading does not set shows: new memory is full of what no model has."""
    before = torch.empty_like

    def filled(*args, **kwargs):
        tensor = before(*args, **kwargs)
        if tensor.device.type != "meta" and tensor.dtype != torch.bool:
            tensor.fill_(torch.nan if tensor.is_floating_point() else 99)
        return tensor

    monkeypatch.setattr(torch, "empty_like", filled)
