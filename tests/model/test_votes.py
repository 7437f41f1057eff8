"""Votes with and without weights, as one value."""

import copy
import pickle

import pytest
import torch

from hf_maxmig.model.votes import Votes, given_together, voted_classes

WHO = torch.tensor([[0, 1, -1], [2, -1, -1]])
SAID = torch.tensor([[1, 0, 2], [2, 0, -1]])
WEIGHTS = torch.tensor([[0.5, 0.0, 1.0], [1.0, 1.0, 0.0]])


def test_votes_unpack_to_two_and_refuse_to_lose_their_weights() -> None:
    """Code that ignores weights would otherwise silently count an uncertain vote in full."""
    who, said = Votes(WHO, SAID)
    assert who is WHO
    assert said is SAID
    with pytest.raises(ValueError, match="too many values"):
        who, said = Votes(WHO, SAID, WEIGHTS)


def test_weights_stay_with_their_votes() -> None:
    votes = Votes(WHO, SAID, WEIGHTS)
    for same in (
        Votes(*votes), votes.to("cpu"), pickle.loads(pickle.dumps(votes)), copy.deepcopy(votes),
        Votes.of(votes.as_batch()), votes.rows(slice(0, 2)),
    ):  # fmt: skip
        assert isinstance(same, Votes)
        assert torch.equal(same.weights, WEIGHTS)
        assert torch.equal(same.annotations, SAID)
    assert torch.equal(votes.rows(torch.tensor([1])).weights, WEIGHTS[1:])
    others = votes.saying(1 - SAID)
    assert torch.equal(others.annotations, 1 - SAID)
    assert torch.equal(others.weights, WEIGHTS)
    plain = Votes(WHO, SAID)
    assert plain.weights is None
    assert list(plain.as_batch()) == ["annotators", "annotations"]


def test_vote_of_weight_zero_is_none() -> None:
    votes = Votes(WHO, SAID, WEIGHTS)
    assert votes.given.tolist() == [[True, False, False], [True, False, False]]
    assert Votes(WHO, SAID).given.tolist() == [[True, True, False], [True, False, False]]
    assert not Votes(WHO, SAID, torch.zeros(2, 3)).annotated.any()
    assert voted_classes([votes], 3).tolist() == [False, True, True]
    assert voted_classes([(WHO, SAID)], 3).tolist() == [True, True, True]


@pytest.mark.parametrize("given", [(WHO, None, None), (None, SAID, None), (None, None, WEIGHTS)])
def test_model_refuses_half_a_vote(given: tuple) -> None:
    with pytest.raises(ValueError, match="must be given together, got no `anno"):
        given_together(*given)
    assert given_together(None, None, None) is None
