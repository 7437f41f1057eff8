"""The recipe that measures verdicts: what it counts as right, and one world trained to the end."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.recipes.imported import recipes


@pytest.fixture(scope="module")
def recipe():
    with recipes() as load:
        yield load("verdicts")


def report(verdict, *voices):
    return SimpleNamespace(verdict=verdict, voices=lambda: [sorted(voice) for voice in voices])


def world(should, group):
    return SimpleNamespace(should=should, group=group)


def test_group_of_equals_is_right_whoever_was_first(recipe):
    """The votes cannot tell who was first, so the original gets the same verdict."""
    one = world(["copied or copying", "copied or copying", "random"], [0, 0, 2])
    pairs = recipe.compare(report([*one.should], (0, 1)), one)
    assert len(pairs) == 3
    assert all(a == b for a, b in pairs)
    pairs = recipe.compare(report(["ordinary", "copied or copying", "random"], (0, 1)), one)
    assert ("copied or copying", "good") in pairs


def test_one_voice_with_a_stranger_is_a_mistake(recipe):
    """The verdict is right, but the person is wrong."""
    one = world(["copied or copying", "copied or copying", "good"], [0, 0, 2])
    verdict = ["ordinary", "copied or copying", "copied or copying"]
    pairs = recipe.compare(report(verdict, (1, 2)), one)
    assert ("good", "one voice with a stranger") in pairs
    assert ("copied or copying", "one voice with a stranger") in pairs


def test_real_crowds_are_judged_against_gold(recipe):
    """If votes were used as gold labels, nobody would ever be condemned falsely."""
    rng = np.random.default_rng(0)
    gold = rng.integers(2, size=400)
    said = np.stack([np.where(rng.random(400) < 0.9, gold, 1 - gold) for _ in range(4)], axis=1)
    said = np.concatenate([said, rng.integers(2, size=(400, 1))], axis=1)
    item, who = np.indices(said.shape).reshape(2, -1)
    names = [f"w{m}" for m in range(5)]
    crowd = recipe.Crowd(
        item, who, said.ravel(), gold, names, ["no", "yes"], [*map(str, range(400))]
    )
    np.testing.assert_array_equal(crowd.padded()[1], said)
    np.testing.assert_allclose(crowd.confusions()[0][:4].diagonal(axis1=1, axis2=2), 0.9, atol=0.08)
    found = recipe.against_gold(crowd)
    assert found["verdicts"]["random"] == 1
    assert (found["condemned"], found["condemned_falsely"]) == (1, 0)
    # The same votes, with the fifth annotator's answers as gold labels.
    turned = recipe.against_gold(crowd._replace(gold=said[:, 4]))
    assert (turned["condemned"], turned["condemned_falsely"]) == (1, 1)
    assert "By gold 400 of 400" in turned["false"][0]
    assert turned["not_better_than_chance_and_not_condemned"] > 0


@pytest.mark.slow
def test_at_most_one_in_twenty_of_those_condemned_in_real_crowds_beats_chance(recipe, shared_data):
    """Of 58 condemned annotators in seven real crowds, 18 used to be better than chance by gold labels."""
    found = {name: recipe.against_gold(recipe.read(name, shared_data)) for name in recipe.READERS}
    condemned = sum(crowd["condemned"] for crowd in found.values())
    assert condemned >= 10
    assert sum(crowd["condemned_falsely"] for crowd in found.values()) <= condemned / 20


def test_scores_are_precision_and_recall(recipe):
    """With the two exchanged, a recipe that accuses everyone would look perfect."""
    pairs = [("good", "good")] * 3 + [("random", "good")] + [("random", "random")]
    scores = recipe.scores(pairs)
    assert scores["good"] == {"precision": 0.75, "recall": 1.0, "should": 3, "said": 4}
    assert scores["random"] == {"precision": 1.0, "recall": 0.5, "should": 2, "said": 1}


@pytest.mark.parametrize("case", ["independent", "naive_majority", "correlated"])
def test_told_the_truth_the_verdicts_on_the_papers_crowd_are_right(recipe, case):
    """A failure with the truth at hand would not be a fault of training."""
    made = recipe.make_world("cifar10", "high", case, seed=7)
    assert (
        len(made.should) == len(made.group) == len(made.data.features["annotators"].feature.names)
    )
    assert recipe.mistakes(recipe.compare(recipe.judge_told(made), made)) == []


@pytest.mark.slow
def test_trained_without_the_truth_the_verdicts_are_right(recipe):
    """Runs the whole way that a user goes."""
    torch.manual_seed(0)
    made = recipe.make_world("cifar10", "high", "correlated", seed=7)
    pairs = recipe.compare(recipe.judge(made, seed=7, epochs=40), made)
    assert recipe.mistakes(pairs) == []
    assert ("copied or copying", "copied or copying") in pairs
