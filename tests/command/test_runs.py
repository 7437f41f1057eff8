"""A run from data to a saved model: what it measures beside the trainer."""

import pytest

from hf_maxmig import MaxMIGTrainer
from hf_maxmig.command.runs import majority_vote_accuracy


def test_majority_vote_counts_ties_by_their_share(crowd, make_model, make_args):
    """Breaking ties by the lowest class favours one class, by the gold label cheats."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    expected = 0.0
    for votes, label in zip(crowd["annotations"][:], crowd["label"][:], strict=True):
        counts = [votes.count(c) for c in range(3)]
        top = [c for c in range(3) if counts[c] == max(counts)]
        expected += (label in top) / len(top)
    assert majority_vote_accuracy(crowd, trainer) == pytest.approx(expected / len(crowd), abs=1e-6)
