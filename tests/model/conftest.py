"""Fixtures of the tests of models."""

import pytest
import torch


@pytest.fixture
def memory_of_nan(monkeypatch):
    """Fill new memory with NaN, so that any tensor that loading forgets to set shows up."""
    before = torch.empty_like

    def filled(*args, **kwargs):
        tensor = before(*args, **kwargs)
        if tensor.device.type != "meta" and tensor.dtype != torch.bool:
            tensor.fill_(torch.nan if tensor.is_floating_point() else 99)
        return tensor

    monkeypatch.setattr(torch, "empty_like", filled)
