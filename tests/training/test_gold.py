"""Gold labels passed by the user: the trusted annotator, and how it changes a start."""

import math

import pytest
import torch

from hf_maxmig.model.functional import NO_MASS, aggregate, vote_share
from hf_maxmig.model.votes import Votes
from hf_maxmig.training.cross_fit import cross_fit
from hf_maxmig.training.fold_networks import CrossFit, divide, principal_components
from hf_maxmig.training.gold import TRUSTED_ERRS, taught, trusted_columns, with_trusted
from hf_maxmig.training.left_out import LeftOutVotes
from hf_maxmig.training.tempering import GoldLabels
from tests.training.drawn_crowds import (
    as_sure,
    draw,
    features_of,
    make_world,
    same,
    share_right,
    uniform,
)

# The trusted annotator


def test_trusted_annotator_makes_the_exact_posterior():
    """It must act like one more annotator's log confusion, or it counts too much or too little (Proposition D.3)."""
    generator = torch.Generator().manual_seed(0)
    M, C = 3, 4
    confusion = torch.rand(M, C, C, generator=generator).softmax(dim=2)
    p = torch.rand(C, generator=generator).softmax(dim=0)
    gold_says = torch.full((C, C), TRUSTED_ERRS / (C - 1))
    gold_says.fill_diagonal_(1 - TRUSTED_ERRS)
    torch.testing.assert_close(gold_says.sum(dim=1), torch.ones(C))
    who = torch.arange(M).repeat(C**M * C, 1)
    outcomes = torch.cartesian_prod(*(torch.arange(C) for _ in range(M + 1)))
    said, gold = outcomes[:, :M], outcomes[:, M]
    joint = p.repeat(len(outcomes), 1)
    for i, row in enumerate(outcomes):
        for c in range(C):
            joint[i, c] *= gold_says[c, row[M]]
            for m in range(M):
                joint[i, c] *= confusion[m, c, row[m]]
    log_g = aggregate(confusion.log(), p.log(), who, said)
    found = with_trusted(log_g, trusted_columns(gold, C)).exp()
    torch.testing.assert_close(found, joint / joint.sum(dim=1, keepdim=True))
    assert (found - log_g.exp()).abs().max() > 0.5


def test_items_without_gold_label_hear_nothing():
    """No gold label is -1 in this package and -100 in transformers."""
    log_g = torch.rand(3, 5).log_softmax(dim=1)
    columns = trusted_columns(torch.tensor([-1, -100, 2]), 5)
    assert (columns[:2] == 0).all()
    torch.testing.assert_close(with_trusted(log_g, columns)[:2], log_g[:2])
    share = log_g.exp()
    assert torch.equal(taught(share, columns)[:2], share[:2])
    torch.testing.assert_close(taught(share, columns)[2], columns[2].exp())
    assert with_trusted(log_g, None) is log_g
    assert taught(share, None) is share


# Its effect on networks and left-out votes


def test_no_fold_lacks_items_that_are_divided_first():
    """Beyond the limit on items, a gold label would be left out.

    In a single fold, most networks would miss it.
    """
    first = torch.arange(1000) % 90 == 7
    learned = torch.arange(1000) % 2 == 1
    fold = divide(learned, seed=3, folds=3, most=60, first=first)
    taken = first & learned
    assert 3 < int(taken.sum()) < 60
    assert (fold[taken] >= 0).all()
    sizes = torch.bincount(fold[taken], minlength=3)
    assert int(sizes.max() - sizes.min()) <= 1
    assert int((fold >= 0).sum()) == 60
    assert torch.equal(divide(learned, 3), divide(learned, 3, first=torch.zeros_like(learned)))


def test_race_of_networks_hears_the_trusted_annotator():
    """Where nobody has voted, g knows nothing else, so the gain would teach nothing without it."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(120) % 2
    features = principal_components(features_of(truth, generator, apart=4.0))
    nobody = torch.full((120, 1), -1)
    columns = trusted_columns(truth, 2)
    settings = [(uniform(2), 10.0)]
    right = []
    for trusted in (columns, trusted_columns(1 - truth, 2), None):
        fitted = CrossFit(features, divide(truth >= 0, 0), 2, seed=0)
        weight = torch.zeros(1, 2, 2)
        raced = fitted.race((nobody, nobody), weight, settings, 120, (1.0,), trusted)
        right.append(share_right(raced[0].log_h, truth))
        assert torch.equal(raced[0].weight, weight)
    assert right[0] > 0.95
    assert right[1] < 0.05
    assert 0.05 < right[2] < 0.95


def test_forecasts_without_a_vote_keep_the_gold_label():
    """If they were left out along with the vote, gold labels would not improve the confusion matrices."""
    truth, who, said, log_h = make_world()
    gold = torch.where(torch.arange(len(truth)) % 4 == 0, truth, -1)
    columns = trusted_columns(gold, 3)
    weight = torch.randn(6, 3, 3, generator=torch.Generator().manual_seed(0))
    usual = LeftOutVotes(Votes(who, said), 6, 3).forecasts(log_h + columns, weight, 0.7)
    votes = LeftOutVotes(Votes(who, said), 6, 3, trusted=columns)
    for one, other in zip(votes.forecasts(log_h, weight, 0.7), usual, strict=True):
        torch.testing.assert_close(one, other)
    none = LeftOutVotes(Votes(who, said), 6, 3).forecasts(log_h, weight, 0.7)
    assert (none[1] - usual[1]).abs().max() > 1


def test_confusions_that_gold_labels_tell_are_nearer_to_the_truth():
    """On two thirds of the first class everybody names the second, which the votes alone cannot reveal."""
    generator = torch.Generator().manual_seed(1)
    truth = torch.arange(600) % 3
    who = torch.arange(4).repeat(600, 1)
    hit = torch.rand(who.shape, generator=generator) < 0.85
    hit &= ~((truth == 0) & (torch.rand(600, generator=generator) < 2 / 3))[:, None]
    said = torch.where(hit, truth[:, None], (truth[:, None] + 1) % 3)
    log_h = uniform(3).expand(600, -1)
    gold = torch.where(torch.arange(600) % 5 == 0, truth, -1)
    start = vote_share(said, 3)

    def first_row(trusted):
        votes = LeftOutVotes(Votes(who, said), 4, 3, trusted=trusted)
        return votes.learn(log_h, start[votes.item]).exp()[:, 0].mean(dim=0)

    with_gold, without_gold = first_row(trusted_columns(gold, 3)), first_row(None)
    expected = 0.85 / 3
    assert abs(float(with_gold[0]) - expected) < 0.6 * abs(float(without_gold[0]) - expected)
    assert abs(float(without_gold[0]) - expected) > 0.2


# How much classifier and votes count


def calibrated_by(gold, world, log_h):
    _, who, said, _ = world
    votes = LeftOutVotes(Votes(who, said), 6, 3, trusted=trusted_columns(gold, 3))
    found = votes.best(log_h, uniform(3), vote_share(said, 3)[votes.item])
    return votes, found, GoldLabels(votes, log_h, uniform(3)).best(found)


def test_classifier_that_errs_where_the_crowd_does_counts_less_by_gold_labels():
    """Left-out votes cannot reveal it, because they agree with the classifier."""
    generator = torch.Generator().manual_seed(0)
    world = make_world(items=900, votes=3, right=(0.8, 0.95), seed=2)
    truth, who, said, _ = world
    # On a third of the items, annotators and classifier all name the next class.
    hard = torch.rand(900, generator=generator) < 0.3
    said = torch.where(hard[:, None] & (said >= 0), (said + 1) % 3, said)
    log_h = as_sure((truth + hard.long()) % 3, 0.97, 3)
    gold = torch.where(torch.arange(900) % 3 == 0, truth, -1)
    votes, found, (known, _, shift) = calibrated_by(gold, (truth, who, said, None), log_h)
    assert known.classifier < 0.8 * found.classifier
    assert known.votes < 0.8 * found.votes
    ratio = known.votes / found.votes
    torch.testing.assert_close(known.weight, found.weight * ratio)
    # The forecast follows from these scalars, gold label included.
    base = known.classifier * log_h + (1 - known.classifier) * uniform(3) + shift
    total, _ = votes.forecasts(base, found.weight, ratio)
    torch.testing.assert_close(known.log_forecast, total.log_softmax(dim=1), atol=1e-4, rtol=0)
    others = gold < 0
    nll = [-float(j.log_forecast[others].gather(1, truth[others, None]).mean()) for j in (found, known)]  # fmt: skip
    assert nll[1] < 0.8 * nll[0]


@pytest.mark.parametrize("seed", range(3))
def test_few_gold_labels_change_little(seed):
    """There are many left-out votes, which a handful of gold labels, right or wrong, must not overrule."""
    world = make_world(seed=seed)
    truth, *_, log_h = world
    few = torch.arange(len(truth)) < 5
    _, found, (right, _, shift) = calibrated_by(torch.where(few, truth, -1), world, log_h)
    assert shift.abs().max() < 0.6
    assert 0.7 < right.classifier / found.classifier < 1.4
    assert 0.7 < right.votes / found.votes < 1.4
    _, found, (wrong, *_) = calibrated_by(torch.where(few, (truth + 1) % 3, -1), world, log_h)
    assert 0.3 < wrong.classifier / found.classifier < right.classifier / found.classifier
    assert 0.3 < wrong.votes / found.votes < right.votes / found.votes


def test_class_that_goes_by_another_name_is_shifted_by_gold_labels_alone():
    """Annotators and classifier both call half of the first class the second, which the votes cannot reveal."""
    generator = torch.Generator().manual_seed(0)
    world = make_world(items=900, votes=3, right=(0.8, 0.95), seed=2)
    truth, who, said, _ = world
    hard = (truth == 0) & (torch.rand(900, generator=generator) < 0.5)
    said = torch.where(hard[:, None] & (said >= 0), torch.where(said == 0, 1, said), said)
    log_h = as_sure(torch.where(hard, 1, truth), 0.7, 3)
    gold = torch.where(torch.arange(900) % 6 == 0, truth, -1)
    _, found, (known, likely, shift) = calibrated_by(gold, (truth, who, said, None), log_h)
    assert float(shift[0] - shift[1]) > 0.9
    assert abs(float(shift.sum())) < 0.05
    assert likely.shape == (150,)
    others = gold < 0
    nll = [-float(j.log_forecast[others].gather(1, truth[others, None]).mean()) for j in (found, known)]  # fmt: skip
    assert nll[1] < nll[0] - 0.1


def test_gold_labels_that_agree_with_the_forecasts_shift_nothing():
    """Where nothing is wrong, nothing must be corrected."""
    world = make_world(items=900)
    truth, *_, log_h = world
    gold = torch.where(torch.arange(900) % 6 == 0, truth, -1)
    _, _, (_, _, shift) = calibrated_by(gold, world, log_h)
    assert shift.abs().max() < 0.45


def test_shift_that_mends_the_votes_alone_is_left(monkeypatch):
    """Here the annotators confuse two classes and the classifier does not. It must not learn to."""
    generator = torch.Generator().manual_seed(0)
    truth, who, said, _ = make_world(items=900, votes=3, right=(0.8, 0.95), seed=2)
    hard = (truth == 0) & (torch.rand(900, generator=generator) < 0.7)
    said = torch.where(hard[:, None] & (said >= 0), torch.where(said == 0, 1, said), said)
    log_h = as_sure(truth, 0.4, 3)  # right, with little confidence
    gold = torch.where(torch.arange(900) % 6 == 0, truth, -1)
    fitted = []
    fit = GoldLabels._fit

    def spy(self, *args):
        fitted.append(fit(self, *args))
        return fitted[-1]

    monkeypatch.setattr(GoldLabels, "_fit", spy)
    _, _, (_, _, shift) = calibrated_by(gold, (truth, who, said, None), log_h)
    assert float(fitted[1][2][0] - fitted[1][2][1]) > 0.15  # a shift was found
    assert (shift == 0).all()


def test_where_all_votes_count_alike_no_class_is_shifted():
    """There the classifier only breaks ties, and a shift would outweigh it."""
    world = make_world(items=300)
    truth, who, said, log_h = world
    gold = torch.where(torch.arange(300) % 3 == 0, (truth + 1) % 3, -1)
    votes = LeftOutVotes(Votes(who, said), 6, 3, trusted=trusted_columns(gold, 3))
    alike = votes.alike(log_h)
    even = GoldLabels(votes, log_h, uniform(3)).alike(alike)
    assert even.shift.abs().max() < 1e-6
    assert even.found.votes < 0.8 * alike.votes  # the gold labels contradict the votes
    torch.testing.assert_close(even.found.weight, alike.weight * even.found.votes / alike.votes)


def test_gold_label_is_foretold_without_itself(monkeypatch):
    """Otherwise confusion matrices repeat the gold label, and votes would count more the less is known."""
    world = make_world()
    truth, *_, log_h = world
    gold = torch.where(torch.arange(len(truth)) % 10 == 0, truth, -1)
    held = []
    learn = LeftOutVotes.learn

    def spy(self, *args):
        held.append((self.trusted != 0).any(dim=1))
        return learn(self, *args)

    monkeypatch.setattr(LeftOutVotes, "learn", spy)
    calibrated_by(gold, world, log_h)
    _, *folds = held  # the first one is that of `best`
    assert len(folds) == 5
    missing = torch.stack([(gold >= 0) & ~fold for fold in folds])
    assert torch.equal(missing.sum(dim=0), (gold >= 0).long())
    assert int(missing.sum(dim=1).max() - missing.sum(dim=1).min()) <= 1


# The start


@pytest.fixture(scope="module")
def hard():
    """Ninety items of three classes with few good votes.

    A quarter have a gold label, some of these without a vote.
    """
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(90) % 3
    who, said = draw(truth, [0.75, 0.6, 0.6, 0.4], generator, votes=2)
    who[::9], said[::9] = -1, -1
    gold = torch.where(torch.arange(90) % 4 == 0, truth, -1)
    return features_of(truth, generator, apart=1.5), truth, (who, said), gold


@pytest.fixture(scope="module")
def start(hard):
    features, _, crowd, gold = hard
    return cross_fit(features, crowd, 4, 3, steps=60, gold=gold)


def test_start_with_gold_labels_teaches_them(hard, start):
    """Items without votes learn them too, and no annotator is added to the model."""
    _, truth, (who, _), gold = hard
    known, voted = gold >= 0, (who >= 0).any(dim=1)
    assert (known & ~voted).any()
    assert (~known & ~voted).any()
    assert torch.equal(start.targets.sum(dim=1) > 0, known | voted)
    assert torch.equal(start.targets[known].argmax(dim=1), truth[known])
    assert float(start.targets[known].max(dim=1).values.mean()) > 0.95
    assert start.weight.shape == (4, 3, 3)
    assert torch.equal(start.gold, gold)


def test_targets_of_gold_items_are_forecasts_with_the_trusted_column(hard, start):
    """Relabelling adds the same column to the same forecast."""
    _, _, (who, said), gold = hard
    log_g = aggregate(start.weight, start.log_p, who, said)
    expected = with_trusted(start.log_h + log_g - start.log_p, trusted_columns(gold, 3)).exp()
    taken = start.targets.sum(dim=1) > 0
    torch.testing.assert_close(start.targets[taken], expected[taken], atol=1e-4, rtol=0)


def test_networks_have_not_learned_from_the_gold_label_of_the_item_they_judge(hard, start):
    """Otherwise calibration and accuracy would be measured on what was learned."""
    features, _, crowd, gold = hard
    lied = gold.clone()
    row = int((gold >= 0).nonzero()[3])
    lied[row] = (gold[row] + 1) % 3
    other = cross_fit(features, crowd, 4, 3, steps=60, gold=lied)
    assert float((other.targets[row] - start.targets[row]).abs().max()) > 0.5
    assert float((other.log_h[row].exp() - start.log_h[row].exp()).abs().max()) < 0.2


def test_start_without_gold_labels_knows_of_none(hard):
    """The default must be the same to the last digit, and record that there were none."""
    features, _, crowd, _ = hard
    start = cross_fit(features, crowd, 4, 3, steps=20)
    assert start.gold is None
    assert same(start, cross_fit(features, crowd, 4, 3, steps=20, gold=None))


def test_start_with_gold_labels_comes_back_from_its_file(start, tmp_path):
    """A resumed training must know which gold labels were used."""
    start.save(tmp_path / "start.safetensors")
    again = type(start).load(tmp_path / "start.safetensors")
    assert same(again, start)
    assert again.gold.dtype == torch.int64


@pytest.mark.slow
def test_class_that_only_gold_labels_name_has_mass(hard):
    """A class without votes takes no part in a start, unless a gold label names it."""
    features, truth, (who, said), _ = hard
    place = torch.tensor([0, 1, 3])
    merged = torch.where(said == 2, 0, said)
    gold = torch.where(torch.arange(90) % 2 == 0, place[truth], -1)
    start = cross_fit(features, (who, merged), 4, 5, steps=60, gold=gold)
    assert (start.log_p[[2, 4]] <= NO_MASS).all()
    assert start.log_p[3] > math.log(0.05)
    assert torch.equal(start.targets[gold >= 0].argmax(dim=1), gold[gold >= 0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_gold_labels_help_items_that_have_none(seed):
    """What gold labels reveal about annotators and networks must help the other items."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(300) % 3
    crowd = draw(truth, [0.5, 0.5, 0.45, 0.45], generator, votes=1)
    features = features_of(truth, generator, apart=1.0)
    gold = torch.where(torch.arange(300) % 4 == 0, truth, -1)
    others = gold < 0
    right = [
        share_right(cross_fit(features, crowd, 4, 3, seed=seed, steps=200, gold=g).targets[others], truth[others])
        for g in (None, gold)
    ]  # fmt: skip
    assert right[1] > right[0] + 0.03
