"""Fixtures of the tests of training."""

import pytest

from hf_maxmig.training import starting


@pytest.fixture
def brief(monkeypatch):
    """Train the networks for a few steps: what they come to does not matter here."""
    monkeypatch.setattr(starting, "network_steps", lambda args, num_items: 6)
