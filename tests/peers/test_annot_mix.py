"""annot-mix compared with plain loops in float64, and the choice of partners to blend with."""

import numpy as np
import pytest
import torch

from hf_maxmig import CrowdTrainer
from hf_maxmig.model.functional import Mixed
from hf_maxmig.model.votes import Votes
from hf_maxmig.peers import AnnotMixConfig, peer
from tests.networks import small_head, text_pair
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
from tests.worlds import ANNOTATORS, CLASSES


def fixed(model, batch, seed=5):
    """Make the model blend with given shares and partners, and return them."""
    generator = torch.Generator().manual_seed(seed)
    votes = len(given(batch))
    mixed = Mixed(
        torch.rand(votes, generator=generator), torch.randperm(votes, generator=generator)
    )
    model.draw = lambda number, device: mixed if number == votes else None
    return mixed


def in_loops(model, batch, mixed):
    """Return the loss as in the authors' program; row c of a matrix is the true class c."""
    w, votes = weights(model), given(batch)
    weight = batch.get("annotation_weights")
    table, shares = w["network.annotator.table"], mixed.share.double().tolist()
    pairs = [
        (s, votes[v], votes[p])
        for v, (s, p) in enumerate(zip(shares, mixed.partner.tolist(), strict=True))
    ]
    assert any(one[0] == other[0] for _, one, other in pairs)  # also of one item
    blends = [
        s * batch["features"][one[0]] + (1 - s) * batch["features"][other[0]]
        for s, one, other in pairs
    ]
    hidden, logits = hidden_and_logits(model, torch.stack(blends).float())
    known = []
    for (s, one, other), e in zip(pairs, hidden, strict=True):
        a = s * table[one[1]] + (1 - s) * table[other[1]] + w["network.annotator.bias"]
        both = np.concatenate([linear(w, "network.item", e), a])
        known.append(linear(w, "network.hidden", both))
    total, count = 0.0, 0.0
    for (s, one, other), row, scores in zip(
        pairs, normed(w, "network.norm", known), logits, strict=True
    ):
        matrix = softmax(linear(w, "network.confusion.linear", np.maximum(row, 0)).reshape(C, C))
        said = np.log(softmax(scores) @ matrix)
        for part, (i, m, y) in ((s, one), (1 - s, other)):
            place = batch["annotators"][i].tolist().index(m)
            part *= 1.0 if weight is None else weight[i, place].item()
            total, count = total - part * said[y], count + part
    return total / count


@pytest.mark.parametrize("weighted", [False, True])
def test_loss_is_that_of_the_authors(weighted):
    """With another partner's class or annotator it would learn from noise, while the loss still falls."""
    model, batch = drawn("annot_mix", num_items=9, dropout=0.0, embedding_size=6)
    if weighted:
        batch["annotation_weights"] = (
            torch.rand(9, 3, generator=torch.Generator().manual_seed(2)) / 2 + 0.5
        )
    mixed = fixed(model, batch)
    expected = in_loops(model, batch, mixed)
    loss, empty = loss_of(model, batch)
    assert not empty
    assert loss.item() == pytest.approx(expected, abs=5e-6)
    apart = Mixed(torch.ones_like(mixed.share), mixed.partner)
    assert abs(expected - in_loops(model, batch, apart)) > 0.01


def test_each_vote_gets_its_own_share_and_partner():
    """One share per batch, or partners per item, would be mixup, which is another method."""
    model, _ = drawn("annot_mix")
    torch.manual_seed(0)
    mixed = model.draw(400, torch.device("cpu"))
    assert sorted(mixed.partner.tolist()) == list(range(400))
    quarters = torch.histc(mixed.share, bins=4, min=0, max=1)
    assert quarters.min() > 70  # Beta(1, 1) is uniform
    few = peer("annot_mix", small_head(), num_annotators=M, alpha=0.05).draw(
        400, torch.device("cpu")
    )
    assert ((few.share - 0.5).abs() > 0.4).float().mean() > 0.8


def test_gradient_of_the_network_stops_at_the_features():
    """The classifier must learn through its answers only, not through the features that explain them."""
    model, batch = drawn("annot_mix", dropout=0.0)
    fixed(model, batch)
    loss_of(model, batch)[0].backward()
    found = model.classifier.fc.weight.grad.clone()
    assert found.abs().sum() > 0
    with torch.no_grad():  # an output layer of zeros would pass no gradient
        model.classifier.output.weight.zero_()
    model.zero_grad()
    loss_of(model, batch)[0].backward()
    assert model.classifier.fc.weight.grad.abs().max() == 0


def test_nothing_is_blended_in_evaluation():
    """Predictions with votes must equal those without."""
    model, batch = drawn("annot_mix")
    model.eval()
    output = model(**batch)
    torch.testing.assert_close(output.logits, model(features=batch["features"]).logits)
    with pytest.raises(ValueError, match="in training mode"):
        model.crowd_loss(output, batch)


def test_mixup_of_the_trainer_and_whole_numbers_are_refused(crowd, make_args):
    """They would give blends of blends, or means of token ids."""
    model = peer(
        "annot_mix", small_head(), annotators=ANNOTATORS, id2label=dict(enumerate(CLASSES))
    )
    with pytest.raises(
        ValueError, match=r"`mixup_alpha` must be 0 for annot-mix, got 0\.4.*blends votes itself"
    ):
        CrowdTrainer(model=model, args=make_args(mixup_alpha=0.4), train_dataset=crowd)
    words = peer("annot_mix", text_pair().classifier, annotators=ANNOTATORS).train()
    who = torch.tensor([[0, 1], [2, 3]])
    with pytest.raises(ValueError, match="the method not annot-mix .* `input_ids` of int64"):
        words(input_ids=torch.tensor([[1, 2], [3, 4]]), annotators=who, annotations=who % 3)


def test_impossible_settings_are_refused():
    """Shares would not form a distribution, or the network would be dropped entirely."""
    for fields, message in (
        ({"alpha": 0.0}, "`alpha` must be positive and finite, got 0"),
        ({"eta": 0.0}, "`eta` must lie between 0 and 1, got 0"),
        ({"dropout": 1.0}, "`dropout` must be 0 or more and below 1, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            AnnotMixConfig(**fields)


def test_weights_of_single_votes_count_in_both_blends():
    """A vote of weight 0 must not count, not even as a partner."""
    model, batch = drawn("annot_mix", dropout=0.0)
    first = loss_of(model, batch)[0]
    votes = Votes.of(batch)
    more = {
        name: torch.cat([batch[name], batch[name][:, :1]], dim=1)
        for name in ("annotators", "annotations")
    }
    more["annotators"][:, -1], more["annotations"][:, -1] = 0, 1
    more["annotation_weights"] = torch.cat([votes.given.float(), torch.zeros(11, 1)], dim=1)
    second = loss_of(model, {**batch, **more})[0]
    torch.testing.assert_close(first, second)
