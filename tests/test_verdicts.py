"""The recipe that measures verdicts: what it calls right, and one world trained to the end."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

from hf_maxmig.copies import Copy


@pytest.fixture(scope="module")
def recipe(root):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root / "recipes"))
        yield importlib.import_module("verdicts")
    del sys.modules["verdicts"]


def report(verdict, *copies):
    made = [Copy(a, b, common=10, agreed=10, expected=5.0, p_value=0.0) for a, b in copies]
    return SimpleNamespace(verdict=verdict, copies=made)


def world(should, group):
    return SimpleNamespace(should=should, group=group)


def test_group_of_equals_is_right_whoever_is_the_source(recipe):
    """The votes cannot tell who was first: half of all right answers would count as wrong."""
    one = world(["good", "copies another", "random"], [0, 0, 2])
    for verdict, copy in (
        (["ordinary", "copies another", "random"], (1, 0)),
        (["copies another", "expert", "random"], (0, 1)),
    ):
        pairs = recipe.compare(report(verdict, copy), one)
        assert all(a == b for a, b in pairs)
        assert len(pairs) == 3


def test_copy_of_a_stranger_is_a_mistake(recipe):
    """Right verdict, wrong person."""
    one = world(["good", "copies another", "good"], [0, 0, 2])
    verdict = ["ordinary", "copies another", "ordinary"]
    pairs = recipe.compare(report(verdict, (1, 2)), one)
    assert ("copies another", "copies a stranger") in pairs
    assert recipe.mistakes(pairs) == [
        {"should": "copies another", "said": "copies a stranger", "times": 1}
    ]


def test_scores_are_precision_and_recall(recipe):
    """Exchanged, a recipe that accuses everyone would look perfect."""
    pairs = [("good", "good")] * 3 + [("random", "good")] + [("random", "random")]
    scores = recipe.scores(pairs)
    assert scores["good"] == {"precision": 0.75, "recall": 1.0, "should": 3, "said": 4}
    assert scores["random"] == {"precision": 1.0, "recall": 0.5, "should": 2, "said": 1}


@pytest.mark.parametrize("case", ["independent", "naive_majority", "correlated"])
def test_told_the_truth_the_verdicts_on_the_papers_crowd_are_right(recipe, case):
    """What fails with the truth at hand is no fault of training."""
    made = recipe.make_world("cifar10", "high", case, seed=7)
    assert (
        len(made.should) == len(made.group) == len(made.data.features["annotators"].feature.names)
    )
    assert recipe.mistakes(recipe.compare(recipe.judge_told(made), made)) == []


@pytest.mark.slow
def test_trained_without_the_truth_the_verdicts_are_right(recipe):
    """The whole path as a user goes it."""
    torch.manual_seed(0)
    made = recipe.make_world("cifar10", "high", "correlated", seed=7)
    pairs = recipe.compare(recipe.judge(made, seed=7, epochs=100), made)
    assert recipe.mistakes(pairs) == []
    assert ("copies another", "copies another") in pairs
