"""Fixtures of the tests of training."""

import pytest

from hf_maxmig.training import starting


@pytest.fixture
def brief(monkeypatch):
    """Train the networks for only a few steps, for tests that do not depend on what they learn."""
    monkeypatch.setattr(starting, "network_steps", lambda args, num_items: 6)
