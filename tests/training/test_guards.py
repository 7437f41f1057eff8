"""Guards: each failure gets exactly one warning from its own guard, and a good run is silent."""

import logging

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_maxmig import CrowdCollator, CrowdTrainer, MaxMIGTrainer, crowd_features
from hf_maxmig.data.collator import crowd_batches
from hf_maxmig.model.functional import vote_share
from hf_maxmig.peers import peer
from hf_maxmig.training.guards import (
    Guards,
    merged_classes,
    overfitted,
    permuted_classes,
    too_few_votes,
)
from tests.worlds import ANNOTATORS, CLASSES, make_crowd

NAMES = ["cat", "dog", "emu", "fox"]
SAYS = {
    "votes": "The votes are",
    "merged": "uses fewer classes than the crowd",
    "permuted": "disagrees with the votes",
    "overfitted": "memorises the training items",
}


@pytest.fixture
def said(caplog):
    """Return which guards have warned, one entry per warning."""
    logging.getLogger("hf_maxmig").propagate = True

    def found():
        warned = [r for r in caplog.records if r.name == "hf_maxmig.training.guards"]
        names = [n for r in warned for n, words in SAYS.items() if words in r.getMessage()]
        assert len(names) == len(warned)
        return names

    with caplog.at_level("WARNING"):
        yield found


def votes_and_truth(num_items=400, right=0.6, seed=0):
    """Three annotators, each right on their own share of the items of four classes."""
    rng = np.random.default_rng(seed)
    truth = np.arange(num_items) % 4
    lucky = rng.random((num_items, 3)) < right
    votes = np.where(lucky, truth[:, None], rng.integers(4, size=(num_items, 3)))
    return torch.from_numpy(votes), torch.from_numpy(truth)


def sure(answers, rest=0.02):
    """(N, 4) probabilities with nearly all mass on one class."""
    return torch.full((len(answers), 4), rest / 4) + (1 - rest) * torch.eye(4)[answers]


# The pure functions


@pytest.mark.parametrize(
    ("votes", "items", "message"),
    [
        ([0, 0], 0, "No training item has a vote"),
        ([40, 0], 40, "all by one annotator"),
        ([3, 2, 3, 60], 50, "1.4 per item, and 3 of 4 annotators have fewer than 4, one per class"),
        ([3, 2, 60, 60], 100, None),  # a few annotators with few votes
        ([3, 3, 3, 3], 4, None),  # few votes by each, but many per item
        ([20, 30], 50, None),  # one vote per item, by annotators with enough votes
    ],
)
def test_too_few_votes_are_told(votes, items, message):
    """A model trained on too few votes looks as good as any other."""
    warning = too_few_votes(torch.tensor(votes), items, num_classes=4)
    assert warning is None if message is None else message in warning


def test_lost_class_is_told_with_what_stands_in_its_place():
    """An accuracy on three classes of four looks fine, and without gold labels nobody sees the loss."""
    votes, truth = votes_and_truth()
    assert merged_classes("classifier", sure(truth), votes, NAMES) is None
    merged = torch.where(truth == 3, 1, truth)
    message = merged_classes("classifier", sure(merged), votes, NAMES)
    assert "The classifier" in message
    assert "fox (mostly dog in its place) is hardly ever its answer" in message
    assert "apart" not in message.split(". ")[0]


def test_constant_answer_is_told():
    """The worst merge of all must not escape because there is nothing to compare it with."""
    votes, truth = votes_and_truth()
    message = merged_classes("aggregator", sure(torch.full_like(truth, 2)), votes, NAMES)
    assert all(f"{name} (mostly emu in its place)" in message for name in ("cat", "dog", "fox"))


def test_halved_classes_are_told():
    """Where the aggregator splits items evenly between two classes, both have mass but neither wins an item."""
    votes, truth = votes_and_truth()
    posterior = sure(truth)
    both = (truth == 0) | (truth == 2)
    posterior[both] = torch.tensor([0.495, 0.005, 0.495, 0.005])
    noise = torch.rand(len(posterior), 4, generator=torch.Generator().manual_seed(0)) * 0.02
    posterior = (posterior + noise) / (posterior + noise).sum(dim=1, keepdim=True)
    message = merged_classes("aggregator", posterior, votes, NAMES)
    assert "it does not tell cat and emu apart" in message
    assert "hardly" not in message


def test_unsure_posterior_is_not_taken_for_a_merged_one():
    """With a weak crowd or hard pictures, being right three times in eight still distinguishes classes."""
    votes, truth = votes_and_truth(right=0.3)
    assert merged_classes("aggregator", sure(truth, rest=0.8), votes, NAMES) is None
    shares = vote_share(votes, 4)
    assert merged_classes("classifier", shares / 2 + 1 / 8, votes, NAMES) is None


def test_annotators_who_always_say_one_class_do_not_make_it_lost():
    """In case 4.2 of the paper most votes name one class to which few items belong."""
    votes, truth = votes_and_truth(num_items=2000)
    votes = torch.cat([votes, torch.zeros(len(votes), 17, dtype=votes.dtype)], dim=1)
    keep = (truth > 0) | (torch.arange(len(truth)) % 20 == 0)  # class 0: one item in sixteen
    votes, truth = votes[keep], truth[keep]
    share = vote_share(votes, 4).mean(dim=0)[0]
    assert (truth == 0).double().mean() < 0.1 * share
    assert merged_classes("classifier", sure(truth), votes, NAMES) is None


def test_rare_class_of_careless_votes_is_not_called_lost():
    """Two items in a hundred are rare, and careless votes of four classes report them thirteen times as often."""
    votes, truth = votes_and_truth(num_items=4000)
    truth = torch.where(torch.arange(4000) % 50 == 0, 3, truth % 3)
    guesses = torch.randint(4, votes.shape, generator=torch.Generator().manual_seed(0))
    votes = torch.where(torch.rand(votes.shape, generator=torch.Generator().manual_seed(1)) < 0.1,
                        truth[:, None], guesses)  # fmt: skip
    assert vote_share(votes, 4).mean(dim=0)[3] > 0.2
    h = sure(truth, rest=1e-3)
    assert merged_classes("classifier", h, votes, NAMES) is None
    # In the votes it hardly shows: an aggregator that knows how rare it is almost never predicts it.
    g = sure(truth, rest=0.8) * torch.tensor([1.0, 1.0, 1.0, 0.03])
    g = g / g.sum(dim=1, keepdim=True)
    assert "fox" in merged_classes("aggregator", g, votes, NAMES)
    assert merged_classes("aggregator", g, votes, NAMES, usual=h.mean(dim=0)) is None
    gone = torch.where(truth == 3, 1, truth)
    assert "fox" in merged_classes("classifier", sure(gone, rest=1e-3), votes, NAMES)


def test_class_of_few_items_is_not_called_lost():
    """A rare class may be absent from twenty items."""
    votes, truth = votes_and_truth(num_items=20)
    assert (
        merged_classes("classifier", sure(torch.where(truth == 3, 1, truth)), votes, NAMES) is None
    )


def test_exchanged_classes_are_told_and_near_ties_are_not():
    """A swap changes no figure but the accuracy. Two classes that are merged may have either name."""
    votes, truth = votes_and_truth()
    assert permuted_classes(sure(truth), votes, NAMES) is None
    swapped = torch.tensor([1, 0, 2, 3])[truth]
    message = permuted_classes(sure(swapped), votes, NAMES)
    assert "dog should be cat, cat should be dog" in message
    assert "emu" not in message
    random = torch.randint(4, (400, 3), generator=torch.Generator().manual_seed(0))
    assert permuted_classes(sure(truth), random, NAMES) is None


def test_training_that_diverged_still_ends():
    """A guard that raises would prevent the checkpoint and the log that show what happened."""
    votes, truth = votes_and_truth()
    lost = torch.full((len(truth), 4), torch.nan)
    assert merged_classes("classifier", lost, votes, NAMES) is None
    assert permuted_classes(lost, votes, NAMES) is None


@pytest.mark.parametrize(
    ("training", "held_out", "high", "warned"),
    [
        ([0.5, 0.8, 1.0], [0.6, 0.4, 0.3], [0.7, 0.5, 0.4], True),
        ([0.5, 0.8, 1.0], [0.6, 0.4, 0.55], [0.7, 0.5, 0.65], False),  # within chance again
        ([0.5, 0.8], [0.6, 0.3], [0.7, 0.4], False),  # one evaluation is no trend
        ([0.9, 0.8, 0.7], [0.6, 0.4, 0.3], [0.7, 0.5, 0.4], False),  # it falls in training too
        ([0.5, 0.8, 1.0], [0.3, 0.4, 0.6], [0.4, 0.5, 0.7], False),
        ([float("nan")] * 3, [0.6, 0.4, 0.3], [0.7, 0.5, 0.4], False),
        ([0.5], [float("nan")], [float("nan")], False),
    ],
)
def test_gain_that_falls_on_held_out_items_only_is_told(training, held_out, high, warned):
    """A short dip must not warn. Overfitting is a gain that rises in training alone."""
    message = overfitted(training, held_out, high, ceiling=1.1)
    assert (message is not None) == warned
    if warned:
        assert "1.000 nats there, of at most 1.100" in message
        assert "fell from 0.600 to 0.300" in message


def test_each_guard_warns_once_and_none_if_turned_off(said):
    """One line per evaluation would drown the log."""
    for on in (False, True):
        guards = Guards(on=on)
        for _ in range(3):
            guards.say("permuted", None)
            guards.say("merged", "The classifier uses fewer classes than the crowd: emu.")
    assert said() == ["merged"]


# In training


def start_of_all_classes(model, dataset, order):
    """Start the aggregator from votes with exchanged classes, and make training keep that start."""
    batches = crowd_batches(dataset, CrowdCollator(len(ANNOTATORS), len(CLASSES)))
    names = torch.tensor([*order, -1])  # the last is the padding
    model.initialize_crowd([(who, names[what]) for who, what in batches], scale=0.5)
    table = model.aggregator.table.detach().view(len(ANNOTATORS), len(CLASSES), len(CLASSES))
    with torch.no_grad():
        model.aggregator.table.copy_(table[:, order].reshape_as(model.aggregator.table))


@pytest.mark.slow
@pytest.mark.parametrize("evaluated", [pytest.param(False, marks=pytest.mark.full), True])
@pytest.mark.parametrize("divergence", ["kl", "pearson", "jensen_shannon"])
def test_run_that_goes_right_is_silent(evaluated, divergence, make_model, make_args, said):
    """Nobody reads a warning that is always there."""
    changes = {"eval_strategy": "epoch"} if evaluated else {}
    trainer = MaxMIGTrainer(
        model=make_model(divergence=divergence),
        args=make_args(num_train_epochs=15, **changes),
        train_dataset=make_crowd(num_items=200),
        eval_dataset=make_crowd(num_items=150, seed=1) if evaluated else None,
    )
    trainer.train()
    assert trainer.evaluate(make_crowd(seed=2))["eval_accuracy"] > 0.93
    assert trainer._watch.asked_for_classes
    assert said() == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["majority_vote", "crowd_layer", "aggnet", "true_labels"])
def test_rivals_that_go_right_are_silent(name, crowd, make_model, make_args, said):
    """Checks that do not apply to a method must be skipped without a warning."""
    head = make_model().classifier
    model = peer(name, head, num_annotators=4)
    args = make_args(num_train_epochs=15)
    trainer = CrowdTrainer(model=model, args=args, train_dataset=crowd)
    trainer.train()
    assert trainer.evaluate(make_crowd(seed=1))["eval_accuracy"] > 0.9
    assert said() == []


@pytest.mark.slow
@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize("on", [False, True])
def test_merged_classes_are_told(evaluated, on, make_model, make_args, said):
    """Two classes that start merged stay merged, because their gradients are the same."""
    crowd = make_crowd(num_items=200)
    model = make_model()
    start_of_all_classes(model, crowd, [0, 1, 2])
    *_, layer = (m for m in model.classifier.modules() if isinstance(m, torch.nn.Linear))
    with torch.no_grad():
        model.aggregator.table[:, :, 2] = model.aggregator.table[:, :, 1]
        layer.weight[2], layer.bias[2] = layer.weight[1], layer.bias[1]
    changes = {"eval_strategy": "epoch"} if evaluated else {}
    args = make_args(num_train_epochs=8, init="keep", guards=on, **changes)
    trainer = MaxMIGTrainer(
        model=model, args=args, train_dataset=crowd, eval_dataset=make_crowd(150, seed=1)
    )
    trainer.train()
    assert trainer.evaluate(make_crowd(seed=2))["eval_gain"] < 0.5  # 0.76 if they are not merged
    assert said() == (["merged"] if on else [])


@pytest.mark.slow
def test_exchanged_classes_are_told_if_they_are_not_renamed(make_model, make_args, said):
    """With `name_classes` they are corrected at the end, and nothing must be reported."""
    crowd = make_crowd(num_items=200)
    for rename in (True, False):
        model = make_model()
        start_of_all_classes(model, crowd, [1, 0, 2])
        args = make_args(
            num_train_epochs=15, init="keep", name_classes=rename, eval_strategy="epoch"
        )
        trainer = MaxMIGTrainer(
            model=model, args=args, train_dataset=crowd, eval_dataset=make_crowd(150, seed=1)
        )
        trainer.train()
        right = trainer.evaluate(make_crowd(seed=2))["eval_accuracy"] > 0.9
        assert right == rename
        assert said() == ([] if rename else ["permuted"])


def test_votes_of_one_annotator_are_told_before_training(crowd, make_model, make_args, said):
    """The run would take hours and look like any other."""
    mine = crowd.map(
        lambda row: {
            name: [v for m, v in zip(row["annotators"], row[name], strict=True) if m == 0]
            for name in ("annotators", "annotations")
        },
        load_from_cache_file=False,
    ).cast(crowd.features)
    args = make_args(max_steps=1)
    trainer = MaxMIGTrainer(model=make_model(), args=args, train_dataset=mine)
    trainer.train()
    assert said()[0] == "votes"


def noise(num_items, seed):
    """Features independent of the votes: anything learned from them is memorised."""
    rng = np.random.default_rng(seed)
    features = crowd_features(ANNOTATORS, CLASSES)
    votes = np.repeat(rng.integers(3, size=(num_items, 1)), 4, axis=1)
    dataset = Dataset.from_dict(
        {
            "features": rng.normal(size=(num_items, 5)).astype("float32"),
            "annotators": [[0, 1, 2, 3]] * num_items,
            "annotations": votes.tolist(),
        }
    )
    for name in features:
        dataset = dataset.cast_column(name, features[name])
    return dataset


@pytest.mark.slow
@pytest.mark.parametrize("keeps_the_best", [False, pytest.param(True, marks=pytest.mark.full)])
def test_what_is_learned_by_heart_is_told(keeps_the_best, make_model, make_args, said):
    """The training gain keeps rising and looks like success.

    If the best epoch is kept, no warning is needed.
    """
    best = {"load_best_model_at_end": True, "save_strategy": "epoch"} if keeps_the_best else {}
    args = make_args(num_train_epochs=25, learning_rate=0.05, eval_strategy="epoch", **best)
    trainer = MaxMIGTrainer(
        model=make_model(), args=args, train_dataset=noise(64, 0), eval_dataset=noise(200, 1)
    )
    trainer.train()
    warnings = said()
    assert ("overfitted" in warnings) != keeps_the_best
    assert warnings.count("overfitted") <= 1
