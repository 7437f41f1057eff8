"""MaDL compared with plain loops in float64, and the weights of similar annotators."""

import math

import numpy as np
import pytest
import torch

from hf_maxmig.peers import MaDLConfig, madl, peer
from tests.networks import small_head
from tests.peers.drawn_models import (
    C,
    M,
    drawn,
    given,
    hidden_and_logits,
    linear,
    loss_of,
    normed,
    softmax,
    weights,
)


def clique_weights(table, gamma):
    """Return one over the sum of an annotator's similarities to all, scaled to a mean of 1."""
    alike = [[math.exp(-gamma * ((a - b) ** 2).sum()) for b in table] for a in table]
    inverse = np.array([1 / sum(row) for row in alike])
    return inverse / inverse.mean()


def in_loops(model, batch):
    """Return the loss as in the authors' program; row c of a matrix is the true class c."""
    w = weights(model)
    hidden, logits = hidden_and_logits(model, batch["features"])
    known, who = [], []
    for i, m, _ in given(batch):
        a = w["network.annotator.table"][m] + w["network.annotator.bias"]
        x = linear(w, "network.item", hidden[i])
        pairs = np.outer(a + x, a + x)
        product = [(pairs * matrix).sum() for matrix in w["network.product.weight"]]
        known.append(linear(w, "network.hidden", np.concatenate([a, x, product])))
        who.append(a)
    block = np.maximum(normed(w, "network.hidden_norm", known), 0)
    block = normed(w, "network.back_norm", [linear(w, "network.back", row) for row in block])
    gamma = math.exp(w["network.log_gamma"])
    cliques, terms = clique_weights(w["network.annotator.table"], gamma), []
    for (i, m, y), row, a in zip(given(batch), block, who, strict=True):
        scores = linear(w, "network.confusion.linear", np.maximum(row + a, 0))
        matrix = softmax(scores.reshape(C, C))
        terms.append(-cliques[m] * math.log(softmax(logits[i]) @ matrix[:, y]))
    density = torch.distributions.Gamma(1.25, 0.25).log_prob(torch.tensor(gamma)).item()
    return np.mean(terms) - density


def test_loss_is_that_of_the_authors():
    """Without the residual, the product or the weights it would learn almost as well."""
    model, batch = drawn("madl", embedding_size=5, hidden_size=7)
    loss, empty = loss_of(model, batch)
    assert not empty
    assert loss.item() == pytest.approx(in_loops(model, batch), abs=2e-5)


def test_starts_at_matrices_of_eta_for_each_class():
    """With a transposed or flat start, classes would lose their names."""
    model = peer("madl", small_head(), num_annotators=M, eta=0.7)
    bias = model.network.confusion.linear.bias.view(C, C).softmax(dim=1)
    torch.testing.assert_close(bias.diagonal(), torch.full((C,), 0.7))


def test_annotators_who_are_alike_share_one_weight():
    """Three copies must count as one annotator, or their mistakes outvote the others."""
    model = peer("madl", small_head(), num_annotators=5)
    with torch.no_grad():
        model.network.annotator.table.copy_(10 * torch.eye(5, 16))
        model.network.annotator.table[2:] = model.network.annotator.table[2]
    found = model.network.clique_weights(torch.tensor([0, 1, 2, 3, 4, 4]))
    expected = torch.tensor([1, 1, 1 / 3, 1 / 3, 1 / 3, 1 / 3])
    torch.testing.assert_close(found.detach(), expected / expected[:5].mean())


def test_bandwidth_is_trained_by_votes_and_prior():
    """A parameter that the optimizer never gets, or that its prior does not hold, would be a constant."""
    model, batch = drawn("madl")
    assert any(p is model.network.log_gamma for p in model.crowd_parameters())
    with torch.no_grad():
        model.network.annotator.table /= 3  # not so far apart that all similarities are zero
    loss_of(model, batch)[0].backward()
    found = model.network.log_gamma.grad.item()
    gamma = model.network.log_gamma.exp().item()
    assert found != pytest.approx(-(0.25 - 0.25 * gamma), abs=1e-3)  # of the prior alone


def test_large_crowd_is_compared_with_some_of_it(monkeypatch):
    """All pairs of a hundred thousand annotators would take 40 GB."""
    torch.manual_seed(0)
    model = peer("madl", small_head(), num_annotators=3000)
    asked = torch.arange(0, 3000, 7)
    with torch.no_grad():
        model.network.annotator.table.normal_()
        model.network.annotator.table[:300] = 0.1 * model.network.annotator.table[0]  # a clique
    some = model.network.clique_weights(asked).detach()
    monkeypatch.setattr(madl, "MOST_COMPARED", 3000)
    every = model.network.clique_weights(asked).detach()
    assert every[:40].max() < 0.1 * every[50:].mean()
    assert not torch.equal(some, every)
    torch.testing.assert_close(some, every, rtol=0.25, atol=0)


def test_features_are_read_without_gradient():
    """The classifier must not adapt its features to be explained."""
    model, batch = drawn("madl")
    assert not model(**batch).features.requires_grad


def test_impossible_settings_are_refused():
    """Their logs would not be finite."""
    with pytest.raises(ValueError, match="`eta` must lie between 0 and 1, got 1"):
        MaDLConfig(eta=1.0)
    with pytest.raises(ValueError, match=r"`gamma_shape` must be above 1 .* got 1\.0 and 0\.25"):
        MaDLConfig(gamma_shape=1.0)


def test_hidden_sizes_are_the_authors():
    """Results with a network of another size would be those of another method."""
    network = peer("madl", small_head(), num_annotators=M).network
    assert network.annotator.table.shape == (M, 16)
    assert network.hidden.weight.shape == (128, 48)
    assert network.confusion.linear.weight.shape == (C * C, 16)
