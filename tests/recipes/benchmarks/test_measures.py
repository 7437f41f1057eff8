"""Tests of the figures that are measured against gold labels."""

import importlib

import numpy as np
import pytest

from tests.recipes.imported import recipes


@pytest.fixture(scope="module")
def measures():
    with recipes() as load:
        yield load("measures")


@pytest.fixture(scope="module")
def worlds(measures):
    return importlib.import_module("worlds")


def test_posteriors_are_measured_as_by_hand(measures):
    """Nobody would notice a wrong sign or base of the logarithm."""
    p = np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.6, 0.4, 0.0]])
    with np.errstate(divide="ignore"):
        measured = measures.of_posterior(np.log(p), np.array([0, 2, 1]))
    assert measured["accuracy"] == pytest.approx(2 / 3)
    assert measured["nll"] == pytest.approx(-np.log([0.5, 0.8, 0.4]).mean())
    assert measured["ece"] == pytest.approx((0.5 + 0.2 + 0.6) / 3)


def test_suspects_are_those_whose_forecast_nobody_outvoted(measures):
    """Precision is that of the label: an item at a tie, or without votes, is no suspect."""
    share = np.array([[1, 0, 0], [1, 0, 0], [1, 0, 0], [0.5, 0.5, 0], [0, 0, 0]])
    said, gold = np.array([1, 1, 2, 1, 2]), np.array([1, 2, 0, 2, 2])
    forecast = np.log(np.eye(3)[said] * 0.7 + 0.1)
    figures = measures.of_suspects(share, forecast, gold)
    assert figures["suspects"] == 3
    assert figures["suspects_wrong"] == pytest.approx(2 / 3)
    assert figures["suspects_put_right"] == pytest.approx(1 / 3)
    assert figures["labels_wrong"] == pytest.approx(3 / 4)
    none = measures.of_suspects(share[:1], forecast[2:3] * 0, gold[:1])
    assert (none["suspects"], none["suspects_wrong"]) == (0, None)


@pytest.mark.filterwarnings("ignore:The (copy|inplace) keyword")  # crowd-kit on pandas 3.1
def test_dawid_skene_is_measured_on_its_own_items(measures, worlds):
    """Its answer is sorted by item. If one has no vote, gold labels of the others must not shift."""
    pytest.importorskip("crowdkit")
    crowd = worlds.crowd_of(worlds.sixty_seconds(worlds.Places("."), 0).train)
    agreed = crowd._replace(annotation=crowd.gold[crowd.item])
    assert measures.dawid_skene(agreed) == 1
    kept = agreed.item >= 5
    part = agreed._replace(
        item=agreed.item[kept], annotator=agreed.annotator[kept], annotation=agreed.annotation[kept]
    )
    assert measures.dawid_skene(part) == 1
    assert measures.dawid_skene(part._replace(gold=1 - part.gold)) == 0
