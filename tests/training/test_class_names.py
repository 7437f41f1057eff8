"""Tests of `hf_maxmig.training.class_names`: the right names for the classes, from the votes alone."""

from itertools import permutations

import pytest
import torch
from torch import Tensor

from hf_maxmig.model.functional import vote_share
from hf_maxmig.training.class_names import best_names, votes_by_class

C = 4
CYCLE = torch.tensor([2, 0, 3, 1])  # unlike a swap, not its own inverse


def labelled_crowd(N: int = 60, K: int = 3, accuracy: float = 0.6) -> tuple[Tensor, Tensor]:
    """Return (N, C) confident posteriors and (N, K) annotations, each right with probability `accuracy`."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(N) % C
    wrong = (truth[:, None] + torch.randint(1, C, (N, K), generator=generator)) % C
    right = torch.rand(N, K, generator=generator) < accuracy
    posterior = torch.eye(C)[truth] * 0.85 + 0.05 * (1 - torch.eye(C)[truth])
    return posterior, torch.where(right, truth[:, None], wrong)


def test_votes_by_class_equal_the_loops() -> None:
    """Counts over the wrong axis would name classes by their frequency."""
    generator = torch.Generator().manual_seed(1)
    posterior = torch.rand(5, 3, generator=generator).softmax(-1)
    annotations = torch.tensor(
        [[0, 0, -1, 1], [-1, 2, 2, 2], [1, -1, -1, -1], [-1] * 4, [2, 0, 1, 1]]
    )
    shares = vote_share(annotations, 3)
    expected = torch.zeros(3, 3)
    for c in range(3):
        for r in range(3):
            expected[c, r] = sum(posterior[i, c] * shares[i, r] for i in range(5))
        expected[c] /= expected[c].sum()
    found = votes_by_class([(posterior, annotations)])
    assert (expected - expected.T).abs().max() > 0.01
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(1), torch.ones(3))


def test_votes_by_class_do_not_depend_on_the_batches() -> None:
    """A mean of means would give the last, short batch too much weight."""
    posterior, annotations = labelled_crowd(7)
    whole = votes_by_class([(posterior, annotations)])
    parts = votes_by_class(
        (posterior[part], annotations[part]) for part in (slice(0, 5), slice(5, 7))
    )
    torch.testing.assert_close(parts, whole)


def test_votes_by_class_of_a_class_without_items_are_zero() -> None:
    """A class that h never predicts must not become NaN: a single NaN prevents any assignment."""
    posterior = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    votes = votes_by_class([(posterior, torch.tensor([[0], [1]]))])
    assert votes.tolist() == [[0.5, 0.5], [0, 0]]
    assert sorted(best_names(votes).tolist()) == [0, 1]


def test_votes_by_class_take_float64_and_half_precision() -> None:
    """Posteriors come in the classifier's dtype."""
    posterior, annotations = labelled_crowd(6)
    expected = votes_by_class([(posterior, annotations)])
    for dtype in (torch.float64, torch.bfloat16):
        votes = votes_by_class([(posterior.to(dtype), annotations)])
        torch.testing.assert_close(votes.float(), expected, rtol=0.02, atol=0.02)
        assert sorted(best_names(votes).tolist()) == list(range(C))


def test_best_names_are_the_best_of_all_assignments() -> None:
    """If each class took the name most voted for it, one name could be given twice and another to nobody."""
    for seed in range(20):
        votes = torch.rand(C, C, generator=torch.Generator().manual_seed(seed))
        order = best_names(votes)
        assert order.dtype == torch.int64
        totals = {
            names: float(sum(votes[names[r], r] for r in range(C)))
            for names in permutations(range(C))
        }
        assert tuple(order.tolist()) == max(totals, key=lambda names: totals[names])


def test_best_names_stay_where_they_are_right() -> None:
    """Noise in the votes must not rename the classes of a good model."""
    votes = votes_by_class([labelled_crowd()])
    assert best_names(votes).tolist() == [0, 1, 2, 3]


def test_best_names_find_a_swap() -> None:
    """A poor start swaps two classes, which costs half of the accuracy."""
    posterior, annotations = labelled_crowd()
    swap = torch.tensor([0, 3, 2, 1])
    order = best_names(votes_by_class([(posterior[:, swap], annotations)]))
    assert order.tolist() == [0, 3, 2, 1]


def test_best_names_undo_any_exchange() -> None:
    """An order read backwards undoes every swap, but no cycle of three or more."""
    posterior, annotations = labelled_crowd()
    assert not torch.equal(CYCLE.argsort(), CYCLE)
    exchanged = posterior[:, CYCLE]
    assert not torch.equal(exchanged, posterior)
    order = best_names(votes_by_class([(exchanged, annotations)]))
    assert torch.equal(exchanged[:, order], posterior)


@pytest.mark.parametrize("exchange", [torch.arange(C), CYCLE])
def test_best_names_do_not_listen_to_constant_annotators(exchange: Tensor) -> None:
    """Case 4.2 of the paper: a majority that always says class 0 would give its name to every class."""
    posterior, annotations = labelled_crowd()
    posterior = posterior[:, exchange]
    alone = best_names(votes_by_class([(posterior, annotations)]))
    naive = torch.zeros(len(annotations), 5, dtype=torch.int64)
    votes = votes_by_class([(posterior, torch.cat([annotations, naive], dim=1))])
    assert (votes.argmax(dim=1) == 0).all()
    assert torch.equal(best_names(votes), alone)
