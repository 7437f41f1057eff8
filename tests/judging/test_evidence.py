"""The forecast of each item without the votes that it is used to judge."""

import pytest
import torch

from hf_maxmig.data.flat_votes import FlatVotes
from hf_maxmig.judging.evidence import Evidence, fit_confusions
from hf_maxmig.model.functional import aggregate, forecast
from tests.judging.calibrated_crowds import draw, everyone


def random_crowd(num_items=23, num_annotators=7, num_classes=4, width=5, seed=3):
    """Draw ragged votes, with unknown annotators, an empty item and an annotator who labels an item twice."""
    generator = torch.Generator().manual_seed(seed)
    who = torch.randint(-1, num_annotators, (num_items, width), generator=generator)
    said = torch.randint(num_classes, (num_items, width), generator=generator)
    who[0], who[1, :2] = -1, 3
    said = torch.where(who < 0, -1, said)
    said[2] = -1
    log_h = torch.randn(num_items, num_classes, generator=generator).double().log_softmax(-1)
    weight = torch.randn(num_annotators, num_classes, num_classes, generator=generator).double()
    return log_h, weight, who, said


def test_forecast_without_own_votes_is_the_forecast_of_a_crowd_that_never_had_them():
    """A forecast that includes an annotator's own vote makes even a random annotator look good."""
    log_h, weight, who, said = random_crowd()
    votes = FlatVotes.read([(who, said)])
    groups = torch.tensor([0, 1, 1, 3, 4, 5, 6])  # 1 and 2 are left out together
    evidence = Evidence(log_h, weight, votes)
    log_p = torch.tensor([0.1, 0.2, 0.3, 0.4]).double().log()
    fast = evidence.without_own(groups, slice(0, len(votes)))
    pair = evidence.without_pair(groups, torch.arange(len(votes)), torch.arange(len(votes)))
    assert torch.equal(fast, pair)
    assert (groups[votes.annotator] != votes.annotator).any()  # some group is left out
    for v in range(len(votes)):
        i, m = votes.item[v], votes.annotator[v]
        if groups[m] != 1 and {1, 2} <= set(who[i].tolist()):
            continue  # for others, a group counts once: see below
        others = torch.where((who[i] >= 0) & (groups[who[i]] != groups[m]), who[i], -1)
        log_g = aggregate(weight, log_p, others[None], said[i][None])
        torch.testing.assert_close(fast[v], forecast(log_h[i][None], log_g, log_p)[0])


def test_forecast_without_a_pair_lacks_both_of_them():
    """If the other vote stayed in, the agreement of a copy would seem explained by the forecast."""
    log_h, weight, who, said = random_crowd()
    votes = FlatVotes.read([(who, said)])
    evidence, alone = Evidence(log_h, weight, votes), torch.arange(7)
    same_item = (votes.item[:, None] == votes.item).triu(1)
    left, right = (same_item & (votes.annotator[:, None] != votes.annotator)).nonzero().T
    assert len(left) > 20
    log_p = torch.full((4,), 0.25).double().log()
    fast = evidence.without_pair(alone, left, right)
    for row, a, b in zip(fast, left, right, strict=True):
        i = votes.item[a]
        gone = (who[i] == votes.annotator[a]) | (who[i] == votes.annotator[b])
        log_g = aggregate(weight, log_p, torch.where(gone, -1, who[i])[None], said[i][None])
        torch.testing.assert_close(row, forecast(log_h[i][None], log_g, log_p)[0])


def test_confusions_do_not_blur_where_the_forecast_is_unsure():
    """If unsure forecasts were counted as they are, an annotator who is always right would look only 80 % right."""
    log_h, _, confusion, said = draw([1.0, 0.8, 1 / 3], num_items=3000, certainty=1.5)
    assert log_h.exp().amax(dim=1).mean() < 0.75  # the forecast is unsure
    evidence = Evidence(log_h, torch.zeros(3, 3, 3), FlatVotes.read([(everyone(said), said)]))
    found = fit_confusions(evidence, torch.arange(3))
    torch.testing.assert_close(found.confusion.float(), confusion, atol=0.05, rtol=0)
    assert found.counts.sum() == pytest.approx(said.numel())


def test_a_group_of_copies_speaks_once_of_an_item():
    """Five copies would otherwise outvote three honest annotators in the forecast that judges them."""
    log_h, weight, who, said = random_crowd()
    votes = FlatVotes.read([(who, said)])
    # The vote of 1, 2 and 5 together is the mean of the columns of W that they select.
    groups, once = torch.tensor([0, 1, 1, 3, 4, 1, 6]), torch.zeros(len(who), 4).double()
    met = 0
    for i in range(len(who)):
        given = [(int(m), int(r)) for m, r in zip(who[i], said[i], strict=True) if r >= 0]
        members = {m for m, _ in given if m in (1, 2, 5)}
        met += len(members) > 1
        for m, r in given:
            once[i] += weight[m, :, r] / (len(members) if m in members else 1)
    assert met > 2
    evidence = Evidence(log_h, weight, votes)
    fast = evidence.without_own(groups, slice(0, len(votes)))
    for v in range(len(votes)):
        i, m = int(votes.item[v]), int(votes.annotator[v])
        own = torch.zeros(4).double()
        given = [(int(a), int(r)) for a, r in zip(who[i], said[i], strict=True) if r >= 0]
        members = {a for a, _ in given if groups[a] == groups[m]}
        for a, r in given:
            own += weight[a, :, r] / len(members) if a in members else 0
        torch.testing.assert_close(fast[v], (log_h[i] + once[i] - own).log_softmax(0))
