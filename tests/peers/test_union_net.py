"""Union-Net compared with plain loops over items, votes and all pairs of annotator and class, in float64."""

import math

import pytest
import torch

from hf_maxmig.peers import UnionNetConfig, peer
from tests.networks import small_head
from tests.worlds import random_votes

M, C = 4, 3


def softmax(scores):
    largest = max(scores)
    exponents = [math.exp(score - largest) for score in scores]
    return [exponent / sum(exponents) for exponent in exponents]


def in_loops(name, scores, logits, who, said):
    """Return the loss, from T[m][r][c], the score of the pair (m, r) in class c."""
    pairs = [(m, r) for m in range(M) for r in range(C)]
    of_items = []
    for i in range(len(who)):
        h = softmax(logits[i])
        if name == "union_net":
            u = softmax([sum(scores[m][r][c] * h[c] for c in range(C)) for m, r in pairs])
        else:
            columns = [softmax([scores[m][r][c] for m, r in pairs]) for c in range(C)]
            u = [sum(h[c] * columns[c][place] for c in range(C)) for place in range(len(pairs))]
        said_of = [(m, r) for m, r in zip(who[i], said[i], strict=True) if m >= 0 and r >= 0]
        if said_of:
            of_items.append(-sum(math.log(u[pairs.index(pair)]) for pair in said_of))
    return sum(of_items) / len(of_items)


@pytest.mark.parametrize("name", ["union_net", "union_net_b"])
def test_loss_is_that_of_the_paper(name):
    """A mean over votes, or a softmax per annotator, would be another method that learns as well."""
    who, said = random_votes(11)
    model = peer(name, small_head(), num_annotators=M).train()
    torch.manual_seed(0)
    torch.nn.init.normal_(model.matrices.table)
    batch = {"features": 2 * torch.randn(11, 5), "annotators": who, "annotations": said}
    logits = model.classifier(features=batch["features"]).logits.double().tolist()
    table, votes = model.matrices.table.double(), (who.tolist(), said.tolist())
    assert len({row.count(-1) for row in votes[1] if max(row) >= 0}) > 1
    expected = in_loops(name, table.tolist(), logits, *votes)
    loss, empty = model.crowd_loss(model(**batch), batch)
    assert not empty
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    turned = in_loops(name, table.transpose(1, 2).tolist(), logits, *votes)
    other = in_loops("other" if name == "union_net" else "union_net", table.tolist(), logits, *votes)  # fmt: skip
    assert min(abs(expected - turned), abs(expected - other)) > 1e-2


def test_columns_are_confusions_times_how_much_an_annotator_votes():
    """The docstring states this relation to SpeeLFC."""
    union = peer("union_net_b", small_head(), num_annotators=M)
    alone = peer("spee_lfc", small_head(), num_annotators=M)
    torch.nn.init.normal_(union.matrices.table)
    table = union.matrices.table.detach()
    alone.matrices.table.data.copy_(table)
    share = table.exp().sum(dim=1) / table.exp().sum(dim=(0, 1))  # annotator, class
    for c in range(C):
        sure = torch.full((1, C), -torch.inf)
        sure[0, c] = 0.0
        who = torch.arange(M)[None]
        joint = union.matrices.of_columns(sure, who).exp()
        torch.testing.assert_close(
            joint, alone.matrices.log_said(sure, who).exp() * share[None, :, [c]]
        )
        torch.testing.assert_close(joint.sum(), torch.tensor(1.0))


def test_start_of_the_authors():
    """T starts at the identity, of which a hundred-thousandth is spread over the other classes."""
    for name in ("union_net", "union_net_b"):
        model = peer(name, small_head(), num_annotators=M)
        for reset in (False, True):
            if reset:
                model.initialize_crowd([random_votes(9)])
            expected = torch.full((C, C), 1e-5 / 2).fill_diagonal_(1 - 1e-5)
            torch.testing.assert_close(model.matrices.table, expected.expand(M, C, C))
    with pytest.raises(
        ValueError, match="`normalised` must be one of mixture, columns, got 'rows'"
    ):
        UnionNetConfig(annotators=["ann"], normalised="rows")


def test_columns_are_read_once_for_all_items():
    """Only the softmax of the mixture has to compare all annotators for each item."""
    who, said = random_votes(12)
    largest = {}

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest[name] = max(largest.get(name, 0), out.numel())
            return out

    batch = {"features": torch.randn(12, 5), "annotators": who, "annotations": said}
    for name in ("union_net", "union_net_b"):
        model = peer(name, small_head(), num_annotators=5000).train()
        with Watch():
            model.crowd_loss(model(**batch), batch)
    assert largest == {"union_net": 12 * 5000 * C, "union_net_b": 5000 * C * C}
