"""A run from data to a saved model: what it measures in addition to the trainer."""

import pytest

from hf_maxmig import MaxMIGTrainer
from hf_maxmig.command.runs import Recipe, majority_vote_accuracy, run


def test_majority_vote_counts_ties_by_their_share(crowd, make_model, make_args):
    """Breaking ties by the lowest class favours that class, and breaking them by the gold label cheats."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    expected = 0.0
    for votes, label in zip(crowd["annotations"][:], crowd["label"][:], strict=True):
        counts = [votes.count(c) for c in range(3)]
        top = [c for c in range(3) if counts[c] == max(counts)]
        expected += (label in top) / len(top)
    assert majority_vote_accuracy(crowd, trainer) == pytest.approx(expected / len(crowd), abs=1e-6)


def test_without_matplotlib_all_but_the_page_is_made(
    crowd, make_model, make_args, without, caplog, tmp_path
):
    """A missing optional library must not cost the cleaned labels after hours of training."""
    without("matplotlib")
    args = make_args(num_train_epochs=1)
    run(Recipe(classifier=make_model(), training=args, train=crowd, report=True))
    assert "needs matplotlib (pip install 'hf_maxmig[plots]')" in caplog.text
    made = {path.name for path in (tmp_path / "out" / "_report").iterdir()}
    assert made == {"relabelled.parquet", "relabelled.csv"}
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert (tmp_path / "out" / "README.md").is_file()
