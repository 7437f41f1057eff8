"""CoNAL compared with plain loops in float64, and the purpose of its two kinds of confusion."""

import numpy as np
import pytest
import torch

from hf_maxmig.model.votes import Votes
from hf_maxmig.peers import CoNALConfig, peer
from tests import reference
from tests.networks import resnet, small_head
from tests.peers.drawn_models import (
    C,
    M,
    drawn,
    given,
    hidden_and_logits,
    linear,
    loss_of,
    sigmoid,
    softmax,
    weights,
)
from tests.worlds import random_votes


def in_loops(model, batch, lam):
    """Return the loss as in the paper; row c of a matrix is the true class c."""
    w, terms = weights(model), []
    own, common = w["matrices.table"].transpose(0, 2, 1), w["network.matrix"].T
    _, logits = hidden_and_logits(model, batch["features"])
    for i, m, y in given(batch):
        x = batch["features"][i].double().numpy()
        a = linear(w, "network.item", linear(w, "network.hidden", x))
        b = w["network.annotator.table"][m] + w["network.annotator.bias"]
        share = sigmoid(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        p = softmax(logits[i])
        scores = share * (p @ common) + (1 - share) * (p @ own[m])
        terms.append(-np.log(softmax(scores)[y]))
    apart = sum(np.sqrt(((own[m] - common) ** 2).sum()) for m in range(M))
    return np.mean(terms) - lam * apart


@pytest.mark.parametrize("lam", [1e-5, 0.01])
def test_loss_is_that_of_the_paper(lam):
    """A transposed matrix, exchanged shares or a dropped term would still learn."""
    model, batch = drawn("conal", lam=lam)
    loss, empty = loss_of(model, batch)
    assert not empty
    assert loss.item() == pytest.approx(in_loops(model, batch, lam), abs=2e-6)
    if lam == 0.01:
        assert abs(loss.item() - in_loops(model, batch, 0)) > 0.01


def test_matrices_start_at_twice_the_identity_and_all_of_them_move():
    """Matrices that are only read as copies never move, while the loss still falls."""
    who, said = random_votes(11)
    model = peer("conal", small_head(), num_annotators=M).train()
    model.initialize_crowd([(who, said)])
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    for table in (*start["matrices.table"], start["network.matrix"]):
        torch.testing.assert_close(table, 2 * torch.eye(C))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = {"features": torch.randn(11, 5), "annotators": who, "annotations": said}
    for _ in range(3):  # the share has no gradient while G and W are equal
        optimizer.zero_grad()
        loss_of(model, batch)[0].backward()
        optimizer.step()
    moved = {n: (p - start[n]).abs().max().item() for n, p in model.named_parameters()}
    assert {n for n, by in moved.items() if by == 0} == set()


def test_votes_start_the_common_matrix_from_all_annotators_together():
    """In the mean of their matrices, an annotator with one vote would count as much as one with all."""
    who, said = random_votes(30)
    model = peer("conal", small_head(), num_annotators=M, start="vote_share")
    model.initialize_crowd(iter([Votes(who[:10], said[:10]), Votes(who[10:], said[10:])]))
    said = torch.where(who < 0, -1, said)
    counts = reference.confusion_counts(reference.vote_share(said, C), who.clamp(max=0), said, 1)
    expected = reference.confusion(counts, 0.01)[0]
    found = model.network.matrix.T.exp().double()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert not torch.allclose(model.matrices.table[0].T.exp().double(), expected, atol=1e-3)


def test_confusion_is_that_of_scores_half_common_and_half_own():
    """An annotator's own matrix alone would leave out half of what explains the votes."""
    model, _ = drawn("conal")
    own, common = model.matrices.table.transpose(1, 2), model.network.matrix.T
    expected = (0.5 * (torch.eye(C) @ own) + 0.5 * (torch.eye(C) @ common)).softmax(dim=-1)
    torch.testing.assert_close(model.confusion(), expected.detach())


def test_network_reads_given_features_or_those_of_the_last_layer():
    """Below a head's output layer, the classifier has already discarded what makes an item hard."""
    head = peer("conal", small_head(), num_annotators=M)
    assert head.network.hidden.in_features == 5
    features = torch.randn(3, 5)
    who = torch.tensor([[0], [1], [2]])
    torch.testing.assert_close(
        head(features=features, annotators=who, annotations=who).features, features
    )
    pictures = peer("conal", resnet(), num_annotators=M).train()
    out = pictures(pixel_values=torch.randn(3, 3, 32, 32), annotators=who, annotations=who)
    assert out.features.shape == (3, pictures.network.hidden.in_features) == (3, 12)
    assert not out.features.requires_grad


def test_impossible_settings_are_refused():
    """They would train, but with another loss."""
    with pytest.raises(ValueError, match="`lam` must be a finite number of 0 or more, got -1"):
        CoNALConfig(lam=-1)
    with pytest.raises(ValueError, match="`start` must be one of authors, vote_share, got 'eye'"):
        CoNALConfig(start="eye")
