"""Code shared by networks beside a classifier: votes as rows, and their normalisation."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hf_maxmig.model.votes import Votes
from hf_maxmig.peers import madl, peer
from hf_maxmig.peers.feature_networks import VoteNorm, vote_rows
from tests.networks import small_head
from tests.weights import state
from tests.worlds import random_votes

NAMES = ["conal", "crowd_ar", "annot_mix", "madl"]


def test_normalisation_is_torchs_but_for_a_single_vote():
    """Torch raises an error for a single row, which a last batch may have."""
    ours, theirs = VoteNorm(3), nn.BatchNorm1d(3)
    rows = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(rows), theirs(rows))
    torch.testing.assert_close(ours(rows[:1]), theirs.eval()(rows[:1]))
    torch.testing.assert_close(ours.eval()(rows), theirs(rows))


def test_votes_without_weight_or_annotator_are_no_rows():
    """Padding in a normalisation over votes would change all of them."""
    votes = Votes(
        torch.tensor([[2, -1, 1], [0, 1, 2]]),
        torch.tensor([[1, 2, 0], [-1, 2, 2]]),
        torch.tensor([[0.5, 1.0, 0.0], [1.0, 1.0, 0.25]]),
    )
    rows = vote_rows(votes)
    assert [table.tolist() for table in rows] == [[0, 1, 1], [2, 1, 2], [1, 2, 2], [0.5, 1, 0.25]]
    assert vote_rows(Votes(*(table[:0] for table in votes[:2]))).item.tolist() == []
    none = vote_rows(Votes(torch.full((2, 0), -1), torch.full((2, 0), -1)))
    assert none.weight.tolist() == [0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_networks_start_as_torch_starts_them(name):
    """Transformers would initialise layers with a deviation of 0.02, or leave tables uninitialised."""
    network = peer(name, small_head(), num_annotators=400).network
    for layer in network.modules():
        if isinstance(layer, nn.Linear) and layer.weight.numel() > 40:
            bound = layer.in_features**-0.5
            assert 0.8 * bound < layer.weight.abs().max() <= bound
    table = getattr(getattr(network, "annotator", None), "table", None)
    if table is None:
        assert network.expertise.detach().std() == pytest.approx((2 / 403) ** 0.5, rel=0.1)
    else:
        assert 0.045 < table.abs().max() <= 0.05


@pytest.mark.parametrize("name", NAMES)
def test_loading_draws_nothing_anew(name, tmp_path):
    """A table that is drawn again after loading would forget the annotators."""
    model = peer(name, small_head(), num_annotators=4)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    for key, tensor in state(model).items():
        assert torch.equal(state(again)[key], tensor), key


FREE = ("view", "transpose", "detach", "alias", "aten.t.")  # no numbers are computed


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor that is computed."""

    found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not any(free in str(func) for free in FREE):
            self.found = max(self.found, out.numel())
        return out


@pytest.mark.parametrize("name", ["crowd_ar", "annot_mix", "madl"])
def test_cost_of_a_loss_does_not_grow_with_the_annotators(name, monkeypatch):
    """Matrices or similarities of all annotators would take gigabytes for a hundred thousand of them."""
    monkeypatch.setattr(madl, "MOST_COMPARED", 40)
    who, said = random_votes(12)
    batch = {"features": torch.randn(12, 5), "annotators": who, "annotations": said}
    sizes = []
    for num_annotators in (50, 20_000):
        model = peer(name, small_head(), num_annotators=num_annotators).train()
        with Largest() as largest:
            model.crowd_loss(model(**batch), batch)
        sizes.append(largest.found)
    assert sizes[0] == sizes[1] < 20_000
