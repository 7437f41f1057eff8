"""Left-out votes: how they are predicted, and what they reveal about classifier and annotators."""

import math

import pytest
import torch

from hf_maxmig.model.annotator_rows import SMOOTHING, STRENGTHS, shrunk_weight
from hf_maxmig.model.functional import vote_share
from hf_maxmig.model.votes import Votes
from hf_maxmig.training.left_out import (
    CLASSIFIER_COUNTS,
    OWN,
    SURER,
    LeftOutVotes,
)
from tests.reference import shrunk_log_rows
from tests.training.drawn_crowds import as_sure, make_world, uniform

N, M, C = 7, 4, 3


@pytest.fixture
def tiny():
    """Seven items with up to four votes each; one item has none, and one annotator voted twice on another."""
    who = torch.tensor(
        [[0, 1, 2, 3], [0, 2, -1, -1], [1, 3, -1, -1], [-1] * 4, [3, 2, 1, 1], [0, 3, 2, -1], [1, -1, -1, -1]]
    )  # fmt: skip
    said = torch.tensor(
        [[0, 0, 1, 1], [2, 2, -1, -1], [1, 0, -1, -1], [-1] * 4, [2, 2, 2, 0], [0, 1, 0, -1], [1, -1, -1, -1]]
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(N, C, generator=generator)
    weight = torch.randn(M, C, C, generator=generator)
    return who, said, base, weight


def loop_forecasts(who, said, base, weight, strength, groups):
    """Compute the definition one vote at a time. Repeated votes, and votes of a group, count as one."""
    total, without = base.clone().double(), []
    for i in range(len(who)):
        votes = [(int(m), int(r)) for m, r in zip(who[i], said[i], strict=True) if m >= 0]
        size = {}
        for m, _ in votes:
            size[int(groups[m])] = size.get(int(groups[m]), 0) + 1
        for m, r in votes:
            total[i] += strength * weight[m, :, r].double() / size[int(groups[m])]
        for m, _ in votes:
            rest = base[i].clone().double()
            for other, r in votes:
                if groups[other] != groups[m]:
                    rest += strength * weight[other, :, r].double() / size[int(groups[other])]
            without.append(rest.log_softmax(-1))
    return total.float(), torch.stack(without).float()


GROUPS = [torch.arange(M), torch.tensor([0, 1, 2, 2]), torch.tensor([3, 3, 3, 3])]


@pytest.mark.parametrize("groups", GROUPS, ids=lambda groups: str(groups.tolist()))
def test_forecasts_are_those_of_a_loop(groups, tiny):
    """Indices of votes, items and groups are three numberings that are easily mixed up."""
    who, said, base, weight = tiny
    votes = LeftOutVotes(Votes(who, said), M, C, groups)
    total, without = votes.forecasts(base, weight, 0.7)
    expected = loop_forecasts(who, said, base, weight, 0.7, groups)
    torch.testing.assert_close(total, expected[0])
    torch.testing.assert_close(without, expected[1])


def test_counts_are_those_of_a_loop(tiny):
    """Rows are scored classes and columns reported ones. Two votes on one item count once."""
    who, said, *_ = tiny
    votes = LeftOutVotes(Votes(who, said), M, C)
    posterior = torch.rand(len(votes.item), C)
    expected = torch.zeros(M, C, C)
    for v in range(len(votes.item)):
        m, r, i = int(votes.annotator[v]), int(votes.annotation[v]), int(votes.item[v])
        twice = int((who[i] == m).sum())
        for c in range(C):
            expected[m, c, r] += posterior[v, c] / twice
    assert (who == 1).sum(dim=1).max() == 2
    torch.testing.assert_close(votes.count(posterior), expected)


@pytest.mark.parametrize("groups", GROUPS[:2], ids=lambda groups: str(groups.tolist()))
def test_vote_is_foretold_without_itself(groups, tiny):
    """The likelihoods of all possible votes sum to one only if nothing in them depends on the vote."""
    who, said, base, weight = tiny
    number = 0
    usual = LeftOutVotes(Votes(who, said), M, C, groups)
    for i, slot in (who >= 0).nonzero().tolist():
        likely, seen = [], []
        for r in range(C):
            changed = said.clone()
            changed[i, slot] = r
            votes = LeftOutVotes(Votes(who, changed), M, C, groups)
            assert (votes.item[number], votes.annotator[number]) == (i, who[i, slot])
            assert torch.equal(votes.half, usual.half)
            _, without = votes.forecasts(base, weight, 1.0)
            seen.append(without)
            likely.append(votes.foretold(without)[number])
        for other in seen[1:]:
            torch.testing.assert_close(other[number], seen[0][number])
            same_voice = groups[who[i]] == groups[who[i, slot]]
            alone = bool((same_voice | (who[i] < 0)).all())
            moved = (other - seen[0])[usual.item == i].abs().max() > 1e-3
            assert bool(moved) != alone
        torch.testing.assert_close(torch.stack(likely).exp().sum(), torch.tensor(1.0))
        number += 1
    assert number == len(usual.item)


def test_confusions_that_foretell_are_counted_on_other_items(tiny):
    """Counted on the same items, the most flexible confusion matrices would predict best."""
    who, said, base, weight = tiny
    votes = LeftOutVotes(Votes(who, said), M, C)
    _, without = votes.forecasts(base, weight, 1.0)
    usual = votes.foretold(without)
    moved = without.clone()
    moved[votes.half == 0] = moved[votes.half == 0].roll(1, dims=1)
    found = votes.foretold(moved)
    assert 0 < int((votes.half == 0).sum()) < len(votes.half)
    assert (found - usual)[votes.half == 1].abs().max() > 1e-3
    assert len(votes.item[votes.half == 0].unique()) + len(votes.item[votes.half == 1].unique()) == len(votes.item.unique())  # fmt: skip


def test_copies_of_one_annotator_weigh_as_one():
    """Five copies of one annotator would outvote four independent ones."""
    _, who, said, log_h = make_world()
    copied = torch.cat([who, torch.where(who == 0, 6, -1), torch.where(who == 0, 7, -1)], dim=1)
    again = torch.cat([said, torch.where(who == 0, said, -1), torch.where(who == 0, said, -1)], dim=1)  # fmt: skip
    groups = torch.tensor([0, 1, 2, 3, 4, 5, 0, 0])
    one = LeftOutVotes(Votes(who, said), 6, 3)
    three = LeftOutVotes(Votes(copied, again), 8, 3, groups)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 3, 3, generator=generator)
    total, without = one.forecasts(log_h, weight, 0.8)
    total_3, without_3 = three.forecasts(log_h, torch.cat([weight, weight[[0, 0]]]), 0.8)
    torch.testing.assert_close(total_3, total)
    first = three.annotator < 6
    torch.testing.assert_close(without_3[first], without)
    assert (one.annotator == 0).sum() > 100
    # The same holds where all votes count alike, and for W, which has no groups: each copy gets a
    # third.
    alike, alike_3 = one.alike(log_h), three.alike(log_h)
    assert alike.votes == alike_3.votes
    torch.testing.assert_close(alike_3.log_forecast, alike.log_forecast)
    torch.testing.assert_close(alike_3.weight[[0, 6, 7]].sum(dim=0), alike.weight[0])
    torch.testing.assert_close(alike_3.weight[1:6], alike.weight[1:])
    ungrouped = LeftOutVotes(Votes(copied, again), 8, 3).forecasts(log_h, torch.cat([weight, weight[[0, 0]]]), 0.8)  # fmt: skip
    assert (ungrouped[0] - total).abs().max() > 0.5


def best_of(world, **changes):
    _, who, said, log_h = world
    votes = LeftOutVotes(Votes(who, said), 6, 3, **changes)
    return votes.best(log_h, uniform(3), vote_share(said, 3)[votes.item])


def test_numbers_of_annotators_and_classes_do_not_matter():
    """The result must not depend on how annotators and classes are numbered."""
    truth, who, said, log_h = make_world()
    usual = best_of((truth, who, said, log_h))
    order = torch.tensor([4, 2, 0, 5, 1, 3])  # annotator m becomes order[m]
    other = best_of((truth, order[who], said, log_h))
    torch.testing.assert_close(other.weight[order], usual.weight, atol=1e-3, rtol=0)
    torch.testing.assert_close(other.log_forecast, usual.log_forecast, atol=1e-3, rtol=0)
    assert other.score == pytest.approx(usual.score, abs=1e-5)
    order = torch.tensor([2, 0, 1])  # class c becomes order[c]
    back = torch.argsort(order)
    other = best_of((truth, who, order[said], log_h[:, back]))
    torch.testing.assert_close(other.weight[:, order][:, :, order], usual.weight, atol=1e-3, rtol=0)
    torch.testing.assert_close(other.log_forecast[:, order], usual.log_forecast, atol=1e-3, rtol=0)
    assert (other.classifier, other.votes) == (usual.classifier, usual.votes)
    assert (usual.weight[0] - usual.weight[5]).abs().max() > 0.3


def loop_learn(who, said, base, posterior, iterations):
    """Run EM with shrunk rows: one vote, one class, one number at a time."""
    votes = [(int(i), int(k)) for i, k in (who >= 0).nonzero()]

    def counted(each):
        counts = torch.zeros(M, C, C)
        for (i, k), row in zip(votes, each, strict=True):
            twice = int((who[i] == who[i, k]).sum())
            for c in range(C):
                counts[who[i, k], c, said[i, k]] += float(row[c]) / twice
        return shrunk_log_rows(counts.double().tolist(), SMOOTHING, STRENGTHS).float()

    rows = counted(posterior)
    for _ in range(iterations):
        _, without = loop_forecasts(who, said, base, rows, 1.0, torch.arange(M))
        own = torch.stack([rows[who[i, k], :, said[i, k]] for i, k in votes])
        rows = counted((without + OWN * own).softmax(dim=-1))
    return rows


@pytest.mark.parametrize("iterations", [0, 1, 4])
def test_votes_teach_each_other_as_in_a_loop(iterations, tiny):
    """EM over flat, indexed votes, with shares within groups and shrunk rows."""
    who, said, base, _ = tiny
    votes = LeftOutVotes(Votes(who, said), M, C)
    posterior = torch.rand(len(votes.item), C, generator=torch.Generator().manual_seed(0))
    posterior = posterior / posterior.sum(dim=1, keepdim=True)
    found = votes.learn(base, posterior, iterations)
    expected = loop_learn(who, said, base, posterior, iterations)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_confusions_come_out_as_they_are(seed):
    """Counted with the other votes alone, the best annotators look hardly better than the worst."""
    world = make_world(items=1500, seed=seed)
    best = best_of(world)
    rows = (best.weight / best.votes).exp()
    right = rows.diagonal(dim1=1, dim2=2).mean(dim=1)
    torch.testing.assert_close(right, torch.linspace(0.55, 0.85, 6), atol=0.15, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_classifier_that_says_more_than_votes_counts_much_and_noise_least(seed):
    """Nothing else says how good the classifier is, so left-out votes must."""
    truth, who, said, _ = make_world(seed=seed)
    generator = torch.Generator().manual_seed(100 + seed)
    wrong = (truth + torch.randint(1, 3, truth.shape, generator=generator)) % 3
    good = torch.where(torch.rand(len(truth), generator=generator) < 0.95, truth, wrong)
    strong = best_of((truth, who, said, as_sure(good, 0.95, 3)))
    assert strong.classifier >= 0.75
    share = vote_share(said, 3)
    usual = float((share.argmax(dim=1) == truth).float().mean())
    right = float((strong.log_forecast.argmax(dim=1) == truth).float().mean())
    assert right > max(usual, 0.95)
    noise = best_of((truth, who, said, as_sure(torch.randint(3, truth.shape, generator=generator), 0.8, 3)))  # fmt: skip
    assert noise.classifier == min(CLASSIFIER_COUNTS)
    assert float((noise.log_forecast.argmax(dim=1) == truth).float().mean()) > usual - 0.02
    assert strong.score > noise.score + 0.02


@pytest.mark.parametrize("seed", range(3))
def test_classifier_and_votes_together_are_better_than_either(seed):
    """A classifier that is right on three items in four must not replace votes that are as good."""
    world = make_world(items=600, votes=3, right=(0.5, 0.85), classifier=0.75, seed=seed)
    truth, _, said, log_h = world
    best = best_of(world)
    right = float((best.log_forecast.argmax(dim=1) == truth).float().mean())
    votes = float((vote_share(said, 3).argmax(dim=1) == truth).float().mean())
    assert right > votes + 0.03
    assert right > float((log_h.argmax(dim=1) == truth).float().mean()) + 0.03


@pytest.mark.parametrize("seed", range(3))
def test_classifier_surer_than_it_is_right_counts_less(seed):
    """Large networks are nearly always overconfident."""
    truth, who, said, log_h = make_world(seed=seed)
    honest = best_of((truth, who, said, log_h))
    sure = best_of((truth, who, said, as_sure(log_h.argmax(dim=1), 0.9999, 3)))
    assert sure.classifier < honest.classifier


@pytest.mark.parametrize("seed", range(3))
def test_classifier_may_count_more_than_once_only_where_it_is_not_sure_enough(seed):
    """A classifier that learned from soft targets is right more often than it says."""
    _, who, said, log_h = make_world(items=2_000, seed=seed)
    right = log_h.argmax(dim=1)

    def found(log_h, **how):
        votes = LeftOutVotes(Votes(who, said), 6, 3)
        start = vote_share(said, 3)[votes.item]
        return votes, votes.best(log_h, uniform(3), start, **how)

    votes, honest = found(log_h, surer=True)
    assert honest.classifier <= 1.0
    assert honest.score == found(log_h)[1].score
    unsure = as_sure(right, 0.6, 3)
    votes, surer = found(unsure, surer=True)
    assert surer.classifier == max(SURER)
    _, once = found(unsure)
    assert once.classifier == 1.0
    assert surer.score > once.score
    claimed = (surer.classifier * unsure).softmax(dim=1).max(dim=1).values.mean()
    assert abs(claimed - 0.8) < 0.1 < abs(unsure.exp().max(dim=1).values.mean() - 0.8)

    # Other votes may ask for more than the classifier's own confidence allows.
    votes._confidence = lambda *given: 1.25
    start = vote_share(said, 3)[votes.item]
    assert votes.best(unsure, uniform(3), start, surer=True).classifier == 1.25


def test_confidence_is_judged_by_the_classifier_alone(tiny):
    """As in a loop over votes: confusions of the other half, counted by forecasts without the vote."""
    who, said, base, weight = tiny
    votes = LeftOutVotes(Votes(who, said), M, C)
    _, without = votes.forecasts(base, weight, 1.0)
    by = base.log_softmax(dim=1)[votes.item]
    expected = []
    for v in range(len(votes.item)):
        others = votes.half != votes.half[v]
        counts = votes.count(without.exp(), votes.share * others)
        rows = shrunk_weight(counts, SMOOTHING)[votes.annotator[v], :, votes.annotation[v]]
        expected.append(float((by[v].exp() * rows.exp()).sum().log()))
    torch.testing.assert_close(votes.foretold(without, by), torch.tensor(expected))
    assert (votes.foretold(without, by) - votes.foretold(without)).abs().max() > 1e-3


def test_of_two_ways_one_is_clearly_better_only_beyond_chance():
    """Otherwise whatever is tried later wins half of all ties."""
    truth, who, said, log_h = make_world()
    votes = LeftOutVotes(Votes(who, said), 6, 3)
    start = vote_share(said, 3)[votes.item]
    good = votes.best(log_h, uniform(3), start)
    none = votes.best(uniform(3).expand(len(truth), -1), uniform(3), start)
    assert votes.clearly_better(good, none)
    assert not votes.clearly_better(none, good)
    assert not votes.clearly_better(good, good)
    generator = torch.Generator().manual_seed(0)
    other = good._replace(parts=good.parts + 0.3 * torch.randn(len(good.parts), generator=generator))  # fmt: skip
    assert not votes.clearly_better(other, good, errors=3)
    assert not votes.clearly_better(good, other, errors=3)
    assert votes.clearly_better(good._replace(parts=good.parts + 0.01), good, errors=3)


def test_where_all_votes_count_alike_the_classifier_only_breaks_ties():
    """The result must be the plurality, whoever voted."""
    truth, who, said, log_h = make_world(votes=4)
    votes = LeftOutVotes(Votes(who, said), 6, 3)
    alike = votes.alike(log_h)
    share = vote_share(said, 3)
    best = share == share.max(dim=1, keepdim=True).values
    chosen = alike.log_forecast.argmax(dim=1)
    assert best[torch.arange(len(truth)), chosen].all()
    ties = best.sum(dim=1) > 1
    assert ties.sum() > 20
    expected = torch.where(best, log_h, -math.inf).argmax(dim=1)
    assert torch.equal(chosen[ties], expected[ties])
