"""What to ask next as a table: whom it names, and the sentences that say why."""

import pytest
import torch

from hf_maxmig.judging.questions import Crowd, questions_table
from hf_maxmig.model.known_crowd import Limits
from hf_maxmig.model.votes import Votes

ANNOTATORS, CLASSES = ["ann", "bob", "eve", "sam"], ["cat", "dog", "emu"]
N = 300


@pytest.fixture(scope="module")
def said():
    """Ann is right, bob mistakes cats for dogs and dogs for cats, eve copies ann, and sam answers at random."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(3, (N,), generator=generator)
    wrong = torch.rand(N, generator=generator) < 0.08
    ann = torch.where(wrong, (truth + 1) % 3, truth)
    muddle = torch.where(torch.rand(N, generator=generator) < 0.5, 1, 0)
    bob = torch.where(truth == 2, 2, muddle)
    sam = torch.randint(3, (N,), generator=generator)
    annotations = torch.stack([ann, bob, ann, sam], dim=1)
    annotators = torch.arange(4).repeat(N, 1)
    absent = torch.arange(N) >= N - 30  # the last items have no vote
    annotators[absent], annotations[absent] = -1, -1
    guess = torch.where(torch.rand(N, generator=generator) < 0.7, truth, (truth + 1) % 3)
    log_h = torch.eye(3)[guess].mul(0.6).add(0.4 / 3).log()
    log_h[-1] = torch.tensor([0.5, 0.48, 0.02]).log()
    log_h[-2] = torch.tensor([0.02, 0.49, 0.49]).log()
    log_h[-3] = torch.tensor([0.97, 0.02, 0.01]).log()
    return log_h, Votes(annotators, annotations)


def crowd_of(said, weight=None, new=()):
    log_h, votes = said
    return Crowd.of(log_h, log_h, weight, votes, ANNOTATORS, CLASSES, new)


def test_people_are_known_by_what_they_said(said):
    """Rows of a random annotator like those of a good one would buy noise."""
    crowd = crowd_of(said, new=["new"])
    rows = crowd.log_rows.exp()
    assert rows[0].diagonal().min() > 0.7
    assert (rows[3] - 1 / 3).abs().max() < 0.12
    assert rows[1, 2, 2] > 0.9
    assert (rows[1, :2, :2] - 0.5).abs().max() < 0.25
    torch.testing.assert_close(rows[4].sum(dim=1), torch.ones(3))
    assert 0.4 < rows[4, 0, 0] < 0.8  # of all together
    assert crowd.groups.tolist() == [0, 1, 0, 3, 4]
    assert crowd.known.tolist() == [True] * 4 + [False]
    # Votes count though the method has no W: ann and bob agree on emus.
    agreed = (said[1].annotations[:, :2] == 2).all(dim=1)
    assert crowd.log_forecast.exp()[agreed, 2].min() > 0.8


def test_unlabelled_items_are_asked_of_those_who_know(said):
    """A copy would be paid for an answer that is known, and a random annotator for none."""
    table = questions_table(crowd_of(said), Limits(40), {"name": [f"pic{i}" for i in range(N)]})
    assert table.column_names == ["item", "name", "annotator", "expected_gain", "reason"]
    assert table["name"][:] == [f"pic{i}" for i in table["item"]]
    assert not {"sam"} & {*table["annotator"]}
    pairs = [*zip(table["item"], table["annotator"], strict=True)]
    assert len({*pairs}) == 40
    assert not {i for i, m in pairs if m == "ann"} & {i for i, m in pairs if m == "eve"}
    assert min(table["item"]) >= N - 30  # all others have been answered by everybody
    gains = table["expected_gain"][:]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] > 0


def test_reasons_say_who_tells_which_classes_apart(said):
    """A number alone persuades nobody to pay for an answer."""
    crowd = crowd_of(said, new=["new"])
    limits = Limits(200, at_least=0, annotators=["ann", "bob", "new"])
    table = questions_table(crowd, limits)
    reason = {}
    for item, who, why in zip(table["item"], table["annotator"], table["reason"], strict=True):
        reason.setdefault((item, who), why)
    assert reason[N - 1, "ann"] == (
        "the model hesitates between cat (50%) and dog (48%); ann tells these apart better than anybody else"
    )  # fmt: skip
    assert reason[N - 3, "ann"].startswith("the model says cat (97%), but it could be dog (2%); ")
    assert any(
        why.endswith("; new has not voted yet and is taken for an average annotator")
        for (_, who), why in reason.items()
        if who == "new"
    )
    assert any(
        "the answer of ann may not settle it: the model hesitates between" in why
        for (_, who), why in reason.items()
        if who != "ann"
    )
    alike = questions_table(crowd, Limits(9, annotators=["ann", "eve"]))
    assert all(
        why.endswith(f"; nobody tells these apart better than {who}")
        for why, who in zip(alike["reason"], alike["annotator"], strict=True)
    )
    left = questions_table(
        crowd, Limits(40, most_per_annotator=10, annotators=["ann", "sam", "bob"])
    )
    endings = {why.rsplit("; ", 1)[1] for why in left["reason"]}
    assert {"only 1 of 3 tell these apart better than bob"} <= endings


def test_gain_is_what_was_asked_for_and_costs_count(said):
    """Nats of information and a share of right forecasts are numbers of the same size."""
    crowd = crowd_of(said)
    accuracy = questions_table(crowd, Limits(5, gain="accuracy"))["expected_gain"][:]
    information = questions_table(crowd, Limits(5))["expected_gain"][:]
    assert 0 < max(accuracy) < 0.6 < max(information)
    costs = {"ann": 10.0, "bob": 1.0, "eve": 10.0, "sam": 1.0}
    table = questions_table(crowd, Limits(12.5, costs=costs))
    assert sum(costs[who] for who in table["annotator"]) <= 12.5
    assert {*table["annotator"]} == {"bob"}
    with pytest.raises(ValueError, match="got none for 'bob', 'eve', 'sam'.$"):
        questions_table(crowd, Limits(12, costs={"ann": 1.0}))
    with pytest.raises(TypeError, match="must be a list of names, got 'ann'"):
        Limits(3, annotators="ann")


def test_nobody_has_voted_yet():
    """The first questions are asked before there are any votes."""
    log_h = torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.05, 0.05]]).log()
    nobody = torch.zeros(2, 0, dtype=torch.int64)
    crowd = Crowd.of(log_h, log_h, None, Votes(nobody, nobody), ANNOTATORS, CLASSES)
    assert not len(questions_table(crowd, Limits(3)))  # nothing says that anybody knows anything
    weight = torch.zeros(4, 3, 3)
    weight[1] = 2 * torch.eye(3)  # learned from votes on other items
    crowd = Crowd.of(log_h, log_h, weight, Votes(nobody, nobody), ANNOTATORS, CLASSES)
    assert crowd.known.tolist() == [False, True, False, False]
    table = questions_table(crowd, Limits(3))
    assert [*zip(table["item"], table["annotator"], strict=True)] == [(0, "bob"), (1, "bob")]
