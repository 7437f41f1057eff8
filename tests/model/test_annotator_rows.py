"""How annotators answer on items of each class: counted without their own votes, and drawn towards everybody."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_maxmig.model.annotator_rows import (
    SMOOTHING,
    STRENGTHS,
    annotator_rows,
    shrunk_weight,
)
from hf_maxmig.model.functional import confusion_counts
from hf_maxmig.model.votes import Votes
from tests import reference
from tests.worlds import random_votes

N, M, C, K = 7, 5, 3, 4


def shrink(counts):
    return reference.shrunk_log_rows(counts, SMOOTHING, STRENGTHS)


def a_crowd(weighted):
    """Return h, W and votes: one item has none, somebody votes twice on another, and the last annotator never."""
    generator = torch.Generator().manual_seed(2)
    h = torch.randn(N, C, generator=generator).double().softmax(dim=1)
    W = torch.randn(M, C, C, generator=generator).double()
    who = torch.rand(N, K, generator=generator).mul(M - 1).long()
    said = torch.randint(C, (N, K), generator=generator)
    who[3], said[3] = -1, -1
    who[5, :3], said[5, :3] = torch.tensor([2, 2, 1]), torch.tensor([0, 1, 1])
    who[1, 2:] = -1  # votes of people whom the model does not know
    weights = torch.rand(N, K, generator=generator) if weighted else None
    return h, W, Votes(who, said) if weights is None else Votes(who, said, weights)


@pytest.mark.parametrize("rounds", [0, 3])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("groups", [[0, 1, 2, 3, 4], [0, 1, 1, 3, 1], [4, 4, 4, 4, 4]], ids=str)
def test_rows_are_those_of_a_loop(groups, weighted, rounds):
    """Votes, voices and annotators' own votes are three numberings of the same rows, easily mixed up."""
    h, W, votes = a_crowd(weighted)
    listed = [
        [
            (int(votes.annotators[i, k]), int(votes.annotations[i, k]), 1.0 if votes.weights is None else float(votes.weights[i, k]))
            for k in range(K)
            if votes.given[i, k]
        ]
        for i in range(N)
    ]  # fmt: skip
    expected = reference.annotator_rows(h, W, listed, groups, rounds, SMOOTHING, STRENGTHS)
    parts = [votes.rows(slice(0, 2)), votes.rows(slice(2, N))]
    found = annotator_rows(h.log(), W, parts, torch.tensor(groups), rounds)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_own_vote_is_no_evidence_for_itself():
    """With their own votes in the forecast, people who vote at random would look right."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(2, (4000, 1), generator=generator)
    right = torch.rand(4000, 4, generator=generator) < torch.tensor([0.9, 0.9, 0.9, 0.5])
    said = torch.where(right, truth, 1 - truth)
    weight = torch.full((4, 2, 2), 0.25).add(torch.eye(2).mul(0.5)).log()
    log_h = torch.full((4000, 2), 0.5).log()
    rows = annotator_rows(log_h, weight, [Votes(torch.arange(4).expand(4000, 4), said)]).exp()
    torch.testing.assert_close(rows[:3, 0, 0], torch.full((3,), 0.9), atol=0.06, rtol=0)
    torch.testing.assert_close(rows[3], torch.full((2, 2), 0.5), atol=0.03, rtol=0)
    posterior = sum(weight[m].T[said[:, m]] for m in range(4)).softmax(dim=1)
    with_own = torch.stack([posterior[said[:, 3] == r].sum(dim=0) for r in range(2)], dim=1)
    assert (with_own / with_own.sum(dim=1, keepdim=True)).diagonal().min() > 0.55


def test_copies_do_not_confirm_each_other():
    """Left out one at a time, two who always agree are right by each other's word."""
    generator = torch.Generator().manual_seed(0)
    said = torch.randint(2, (2000, 1), generator=generator).expand(-1, 2)
    votes = Votes(torch.arange(2).expand(2000, 2), said)
    weight = torch.full((2, 2, 2), 0.1).add(torch.eye(2).mul(0.8)).log()
    log_h = torch.randn(2000, 2, generator=generator).log_softmax(dim=1)
    apart = annotator_rows(log_h, weight, [votes]).exp()
    together = annotator_rows(log_h, weight, [votes], torch.tensor([1, 1])).exp()
    assert apart.diagonal(dim1=1, dim2=2).min() > 0.9
    assert together.diagonal(dim1=1, dim2=2).max() < 0.6


def test_new_annotator_has_the_rows_of_all_and_changes_nobody_elses():
    """A row of zeros in W is a vote that is counted and changes no forecast."""
    h, W, votes = a_crowd(weighted=False)
    W[2] = 0
    rows = annotator_rows(h.log(), W, [votes], rounds=0).exp()
    torch.testing.assert_close(rows.sum(dim=2), torch.ones(M, C).double())
    absent = Votes(torch.where(votes.annotators == 2, -1, votes.annotators), votes.annotations)
    before = annotator_rows(h.log(), W, [absent], rounds=0).exp()
    counts = [confusion_counts(h, *part, M) for part in (votes, absent)]
    assert counts[0][2].sum() > 0
    # The pool that all are drawn towards has changed, by one vote's worth.
    torch.testing.assert_close(rows[[0, 1, 3]], before[[0, 1, 3]], atol=0.25, rtol=0)
    for found in (rows, before):  # who has not voted has the pool itself, but for its smoothing
        drawn = (found[-1] * (1 + C * SMOOTHING) - SMOOTHING).sum(dim=1)
        torch.testing.assert_close(drawn, torch.ones(C).double())
    torch.testing.assert_close(before[2], before[-1])


def test_few_votes_tell_annotators_apart_if_they_differ():
    """Blurred counts look alike: drawn together by their own likelihood, the best and the worst would stay so."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(3, (2000,), generator=generator)
    for skill, error in ((torch.linspace(1 / 3, 0.9, 40), 0.11), (torch.full((40,), 0.65), 0.05)):
        right = torch.rand(2000, 40, generator=generator) < skill
        wrong = (truth[:, None] + torch.randint(1, 3, (2000, 40), generator=generator)) % 3
        said = torch.where(right, truth[:, None], wrong)
        who = torch.stack([torch.randperm(40, generator=generator)[:2] for _ in range(2000)])
        seen = torch.where(torch.rand(2000, generator=generator) < 0.7, truth, (truth + 1) % 3)
        log_h = torch.eye(3)[seen].mul(0.55).add(0.15).log()
        rows = annotator_rows(log_h, torch.zeros(40, 3, 3), [Votes(who, said.gather(1, who))])
        found = rows.exp().diagonal(dim1=1, dim2=2).mean(dim=1)
        assert (found - skill).abs().mean() < error


def test_crowd_of_other_items_is_refused():
    """Rows of the classifier and votes of other items would be joined by their numbers."""
    h, W, votes = a_crowd(weighted=False)
    with pytest.raises(ValueError, match="must have N = 7 items, one per row of `log_h`, got 5"):
        annotator_rows(h.log(), W, [votes.rows(slice(0, 5))])
    nobody = random_votes(N, M, C, K)[0].fill_(-1)
    alone = annotator_rows(h.log(), W, [Votes(nobody, nobody)])
    torch.testing.assert_close(alone.exp(), torch.full((M, C, C), 1 / 3).double())


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), annotators=st.integers(1, 5), classes=st.integers(2, 4))
def test_shrunk_confusions_are_those_of_a_loop(seed, annotators, classes):
    """Rows sum to one, and an annotator without votes gets the whole crowd's."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.rand(annotators, classes, classes, generator=generator) * 10
    counts[-1] = 0 if annotators > 1 else counts[-1]
    found = shrunk_weight(counts, SMOOTHING).exp()
    torch.testing.assert_close(
        found.double(), shrink(counts.double().tolist()).exp(), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(found.sum(dim=2), torch.ones(annotators, classes))
    assert (found > 0).all()
    if annotators > 1:
        together = counts.sum(dim=0) + SMOOTHING
        together = together / together.sum(dim=1, keepdim=True)
        torch.testing.assert_close(found[-1], together, atol=0.04, rtol=0)


def test_unlike_annotators_keep_their_rows_and_alike_ones_share_them():
    """A fixed number of pseudo-votes would be wrong for one of the two."""
    unlike = torch.tensor([[[95.0, 5.0], [5.0, 95.0]], [[5.0, 95.0], [95.0, 5.0]]])
    assert shrunk_weight(unlike, SMOOTHING).exp()[0, 0, 0] > 0.9
    alike = torch.tensor([[[6.0, 4.0], [4.0, 6.0]], [[8.0, 2.0], [2.0, 8.0]]]).repeat(5, 1, 1)
    assert (
        shrunk_weight(alike, SMOOTHING).exp()[0] - shrunk_weight(alike, SMOOTHING).exp()[1]
    ).abs().max() < 0.02
