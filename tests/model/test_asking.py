"""What to ask next, and whom: the value of a vote, and the greedy choice, compared with loops."""

import math

import pytest
import torch

from hf_maxmig.model import asking
from hf_maxmig.model.asking import (
    LEAST,
    choose_questions,
    expected_accuracy,
    expected_information,
)
from hf_maxmig.model.votes import Votes
from tests import reference

SIZES = [(6, 4, 3), (9, 5, 2), (7, 3, 4)]  # N, M, C


def world(sizes, seed=0):
    """Return forecasts, rows of annotators of differing quality, and votes that some of them have cast."""
    N, M, C = sizes
    generator = torch.Generator().manual_seed(seed)
    zeta = torch.rand(N, C, generator=generator).pow(3) + 0.01
    skill = torch.rand(M, 1, 1, generator=generator)
    rows = skill * torch.eye(C) + (1 - skill) * torch.rand(M, C, C, generator=generator).softmax(2)
    rows = 0.98 * rows + 0.02 / C
    who = torch.rand(N, 2, generator=generator).mul(M).long()
    who[torch.rand(N, 2, generator=generator) < 0.5] = -1
    zeta = zeta / zeta.sum(dim=1, keepdim=True)
    return zeta.log(), rows.log(), Votes(who, who.clamp(max=C - 1))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gains_are_those_of_loops(sizes):
    """True class and answer are two axes of the same length: exchanged, the values still look plausible."""
    log_forecast, log_rows, _ = world(sizes)
    information = expected_information(log_forecast, log_rows)
    accuracy = expected_accuracy(log_forecast, log_rows)
    for i, zeta in enumerate(log_forecast.double().exp().tolist()):
        for m, rows in enumerate(log_rows.double().exp().tolist()):
            expected = reference.expected_gains([zeta], rows)
            assert float(information[i, m]) == pytest.approx(expected[0], abs=1e-5)
            assert float(accuracy[i, m]) == pytest.approx(expected[1], abs=1e-5)
    torch.testing.assert_close(expected_information(log_forecast, log_rows[1]), information[:, 1])
    torch.testing.assert_close(expected_accuracy(log_forecast[2], log_rows), accuracy[2])


def test_information_is_within_what_is_unknown():
    """It is nothing for answers that do not depend on the class, and all that is unknown for perfect ones."""
    log_forecast, _, _ = world((6, 4, 3))
    unknown = torch.special.entr(log_forecast.exp()).sum(dim=1)
    same = torch.tensor([0.7, 0.2, 0.1]).log().expand(3, 3)
    torch.testing.assert_close(expected_information(log_forecast, same), torch.zeros(6), atol=1e-6, rtol=0)  # fmt: skip
    assert expected_accuracy(log_forecast, same).abs().max() < 1e-6
    perfect = torch.eye(3)[[2, 0, 1]].log()  # in other words: an adversary tells as much
    torch.testing.assert_close(expected_information(log_forecast, perfect), unknown)
    right = 1 - log_forecast.exp().amax(dim=1)
    torch.testing.assert_close(expected_accuracy(log_forecast, perfect), right)


@pytest.mark.parametrize("gain", ["information", "accuracy"])
@pytest.mark.parametrize("seed", range(6))
def test_choice_is_that_of_a_loop(seed, gain):
    """Caps, costs, copies, votes given and answers to come: each forbids or devalues other pairs."""
    _, M, _ = sizes = SIZES[seed % 3]
    log_forecast, log_rows, votes = world(sizes, seed)
    groups = [0, 0, *range(2, M)] if seed % 2 else list(range(M))
    generator = torch.Generator().manual_seed(seed)
    costs = torch.rand(M, generator=generator).add(0.5).tolist() if seed > 2 else [1.0] * M
    most, each = [99, 2, 3][seed % 3], [99, 1][seed % 2]
    least = [0.0, 0.03][seed // 3]
    expected = reference.greedy_questions(
        log_forecast.double().exp().tolist(), log_rows.double().exp().tolist(), 7.0,
        [[int(m) for m in row if m >= 0] for row in votes.annotators],
        gain == "accuracy", groups, costs, most, each, max(least, LEAST),
    )  # fmt: skip
    found = choose_questions(
        log_forecast, log_rows, 7.0, votes, gain=gain, groups=torch.tensor(groups),
        costs=torch.tensor(costs), most_per_annotator=most, most_per_item=each, at_least=least,
    )  # fmt: skip
    assert len(expected) > 2
    assert [*zip(found.item.tolist(), found.annotator.tolist(), strict=True)] == [
        (i, m) for i, m, _, _ in expected
    ]
    for name, column in (("information", 2), ("accuracy", 3)):
        gains = torch.tensor([one[column] for one in expected])
        torch.testing.assert_close(getattr(found, name), gains, atol=1e-5, rtol=0)


def test_bounds_leave_out_nothing_that_would_be_chosen(monkeypatch):
    """At a million items most are never looked at; the choice must not depend on it."""
    log_forecast, log_rows, votes = world((400, 5, 3))
    votes = Votes(votes.annotators.clamp(max=4), votes.annotations)
    whole = choose_questions(log_forecast, log_rows, 25, votes)
    looked_at = []
    scores = asking._World.scores
    monkeypatch.setattr(asking, "_CELLS", 60)
    monkeypatch.setattr(asking, "_LOOKED_AT", 1)
    monkeypatch.setattr(
        asking._World, "scores", lambda self, items: looked_at.extend(items) or scores(self, items)
    )
    few = choose_questions(log_forecast, log_rows, 25, votes)
    assert 25 <= len(looked_at) < 200
    for one, other in zip(whole, few, strict=True):
        torch.testing.assert_close(one, other)


def test_with_caps_little_is_lost_by_looking_at_few_items(monkeypatch):
    """When the best have enough to do, other items matter than before."""
    log_forecast, log_rows, votes = world((400, 6, 3), seed=3)
    whole = choose_questions(log_forecast, log_rows, 48, votes, most_per_annotator=8)
    assert torch.bincount(whole.annotator).tolist() == [8] * 6
    monkeypatch.setattr(asking, "_CELLS", 60)
    monkeypatch.setattr(asking, "_POOL", 6 * 30)
    few = choose_questions(log_forecast, log_rows, 48, votes, most_per_annotator=8)
    assert torch.bincount(few.annotator).tolist() == [8] * 6
    assert 0.97 * whole.information.sum() <= few.information.sum()


def test_second_question_about_an_item_knows_of_the_first():
    """Twice the value of one answer would send everybody to the same item."""
    forecast = torch.tensor([[0.5, 0.5], [0.8, 0.2]]).log()
    rows = torch.tensor([[[0.95, 0.05], [0.05, 0.95]]] * 3).log()
    asked = choose_questions(forecast, rows, budget=3)
    assert asked.item.tolist() == [0, 1, 0]
    alone = expected_information(forecast, rows)
    assert float(asked.information[0]) == pytest.approx(float(alone[0, 0]))
    assert float(asked.information[2]) < 0.4 * float(alone[0, 0])
    assert float(asked.information[[0, 2]].sum()) < math.log(2)
    copies = choose_questions(forecast, rows, budget=6, groups=torch.tensor([2, 2, 2]))
    assert copies.item.tolist() == [0, 1]  # a copy adds nothing


def test_many_answers_are_taken_together(monkeypatch):
    """Told apart, the answers to s questions with C classes would be C^s."""
    forecast = torch.full((1, 3), 1 / 3).log()
    rows = torch.full((9, 3, 3), 0.15).add(torch.eye(3).mul(0.55)).log()
    exact = choose_questions(forecast, rows, budget=5).information
    monkeypatch.setattr(asking, "MOST_ANSWERS", 27)
    near = choose_questions(forecast, rows, budget=9).information
    torch.testing.assert_close(near[:2], exact[:2])
    torch.testing.assert_close(near[:5], exact, atol=0.03, rtol=0)
    assert len(near) == 9


def test_nothing_is_asked_that_is_not_worth_it():
    """A budget is no reason to pay for answers that tell nothing."""
    forecast = torch.tensor([[1.0, 1e-30], [0.5, 0.5]]).log()
    rows = torch.tensor([[[0.6, 0.4], [0.4, 0.6]], [[0.5, 0.5], [0.5, 0.5]]]).log()
    assert choose_questions(forecast, rows, 9).item.tolist() == [1]
    assert not len(choose_questions(forecast, rows, 9, at_least=0.05).item)
    assert not len(choose_questions(forecast, rows, 0).item)
    nobody = torch.zeros(2, dtype=torch.bool)
    assert not len(choose_questions(forecast, rows, 9, askable=nobody).item)
    voted = Votes(torch.tensor([[-1], [0]]), torch.tensor([[-1], [1]]))
    assert not len(choose_questions(forecast, rows, 9, voted).item)
    assert not len(choose_questions(forecast[:0], rows, 9).item)


def test_by_default_nobody_is_asked_what_is_hardly_worth_asking():
    """Where an item is settled, people are wrong as often as the model, and their votes cost money all the same."""
    forecast = torch.tensor([[0.5, 0.5], [0.997, 0.003], [0.003, 0.997], [0.6, 0.4]]).log()
    careful, poor = [[0.95, 0.05], [0.05, 0.95]], [[0.55, 0.45], [0.45, 0.55]]
    rows = torch.tensor([careful, poor]).log()
    asked = choose_questions(forecast, rows, 99)
    assert {*asked.item.tolist()} == {0, 3}
    # The measure is what each can tell: the answers of poor annotators are not the less worth asking for.
    alone = choose_questions(forecast, rows[1:], 99)
    assert alone.item.tolist() == [0, 3]
    assert (alone.information < 0.01).all()
    known = torch.tensor([0.5, 0.5]).log()
    worth = asking.WORTH * expected_information(forecast.exp().mean(dim=0).log(), rows)
    torch.testing.assert_close(worth, asking.WORTH * expected_information(known, rows), atol=5e-3, rtol=0)  # fmt: skip
    assert (asked.information >= worth[asked.annotator]).all()
    everything = choose_questions(forecast, rows, 99, at_least=0)
    assert len(everything.item) == 8
    pairs = [*zip(asked.item.tolist(), asked.annotator.tolist(), strict=True)]
    for item, who, gained in zip(*everything[:3], strict=True):
        assert ((int(item), int(who)) in pairs) == bool(gained >= worth[who])
    # An answer that would change no label raises no accuracy: there the whole budget may be spent.
    by_accuracy = choose_questions(forecast, rows, 99, gain="accuracy")
    assert 0 < len(by_accuracy.item) < 8


def test_budget_of_costs_is_no_number_of_questions():
    """At a tenth each, a budget of 1 pays for ten answers, also of one person or about one item."""
    forecast = torch.full((20, 2), 0.5).log()
    rows = torch.tensor([[[0.9, 0.1], [0.1, 0.9]]]).log()
    assert len(choose_questions(forecast, rows, 1, costs=torch.tensor([0.1])).item) == 10
    several = choose_questions(
        forecast[:1], rows.repeat(5, 1, 1), 1, costs=torch.full((5,), 0.1), at_least=0
    )
    assert len(several.item) == 5


def test_only_those_who_may_be_asked_are():
    """Numbers of annotators are those of the model, whoever else is asked."""
    log_forecast, log_rows, votes = world((9, 5, 2))
    askable = torch.tensor([False, True, False, False, True])
    asked = choose_questions(log_forecast, log_rows, 12, votes, askable=askable)
    assert set(asked.annotator.tolist()) == {1, 4}
    known = {(i, m) for i in range(9) for m in votes.annotators[i].tolist()}
    assert any(m in (1, 4) for _, m in known)
    assert not known & {*zip(asked.item.tolist(), asked.annotator.tolist(), strict=True)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"log_rows": torch.zeros(2, 3, 2)}, r"`log_rows` must have shape \(M, C, C\), got \(2, 3, 2\)"),
        ({"log_rows": torch.zeros(2, 2, 2)}, r"must have shape \(N, C\) = \(N, 2\), got \(4, 3\)"),
        ({"log_rows": torch.eye(3).log()[None]}, "must be finite, got a log of zero"),
        ({"votes": Votes(*torch.zeros(2, 3, 1).long())}, "must be of N = 4 items.* got 3"),
        ({"gain": "money"}, "must be one of information, accuracy, got 'money'"),
        ({"budget": -1}, "`budget` must be finite and not negative, got -1"),
        ({"budget": "1"}, "`budget` must be a number, got str '1'"),
        ({"most_per_item": 0}, "`most_per_item` must be 1 or more, got 0: None is no limit"),
        ({"most_per_annotator": -2}, "`most_per_annotator` must be 1 or more, got -2"),
        ({"at_least": math.nan}, "`at_least` must be finite and not negative, got nan"),
        ({"costs": torch.tensor([1.0, 0.0])}, "`costs` must be more than zero and finite, got 0 to 1"),
        ({"groups": torch.zeros(3)}, r"`groups` must have shape \(M,\) = \(2,\), got \(3,\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(change, said):
    """A wrong shape would broadcast, and a cost of zero would buy everything."""
    given = {"log_forecast": torch.zeros(4, 3), "log_rows": torch.zeros(2, 3, 3), "budget": 1}
    with pytest.raises((ValueError, TypeError), match=said):
        choose_questions(**given | change)
