"""What is estimated before a training: the weight of each annotator, and the class of each item."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import hf_maxmig.training.cross_fit
from hf_maxmig.data.simulated.beyond import simulate_tiring_crowd
from hf_maxmig.data.simulated.experts import experts
from hf_maxmig.data.simulated.simulation import simulate_crowd
from hf_maxmig.model.functional import NO_MASS, vote_share
from hf_maxmig.model.heads import HeadClassifier, HeadConfig
from hf_maxmig.model.votes import Votes
from hf_maxmig.training.cross_fit import (
    MANY_VOTES,
    MULTIPLES,
    CrossFitted,
    constant,
    cross_fit,
    temper,
)
from hf_maxmig.training.fold_networks import CrossFit
from hf_maxmig.training.left_out import LeftOutVotes
from tests.training.drawn_crowds import draw, features_of, same, share_right


def plurality(crowd, truth, classes):
    """Return the accuracy of the plurality, with ties counted by chance."""
    share = vote_share(crowd[1], classes)
    best = (share == share.max(dim=1, keepdim=True).values).float()
    return float((best[torch.arange(len(truth)), truth] / best.sum(dim=1)).mean())


@pytest.fixture(scope="module")
def small():
    """Eighty items of three classes, and five annotators, one of them random."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(80) % 3
    crowd = draw(truth, [0.9, 0.8, 0.8, 0.7, 1 / 3], generator)
    return features_of(truth, generator), truth, crowd


@pytest.fixture(scope="module")
def found(small):
    features, _, crowd = small
    return cross_fit(features, crowd, 5, 3, steps=40)


def test_start_comes_back_from_its_file_to_the_bit(found, tmp_path):
    """A resumed training must learn exactly the same targets."""
    found.save(tmp_path / "start.safetensors")
    again = CrossFitted.load(tmp_path / "start.safetensors")
    assert same(again, found)
    assert len(found.likelihoods) == 3
    odd = dataclasses.replace(
        found, tells_apart=not found.tells_apart, classifier=0.1 + 0.2,
        likelihoods={"search_prior_uniform": -1 / 3}, targets=found.targets.T.contiguous().T,
    )  # fmt: skip
    assert not odd.targets.is_contiguous()
    odd.save(tmp_path / "start.safetensors")
    assert same(CrossFitted.load(tmp_path / "start.safetensors"), odd)


def test_start_is_a_value_of_the_right_shapes(found, small):
    """The trainer relies on these shapes when it applies the start."""
    _, truth, _ = small
    assert found.targets.shape == found.log_h.shape == (80, 3)
    torch.testing.assert_close(found.targets.sum(dim=1), torch.ones(80))
    torch.testing.assert_close(found.log_h.logsumexp(dim=1), torch.zeros(80), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.log_p.exp().sum(), torch.tensor(1.0))
    assert found.weight.shape == (5, 3, 3)
    assert share_right(found.targets, truth) > 0.9
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.classifier = 1.0


@pytest.mark.slow
def test_start_is_repeatable_and_draws_nothing_of_the_training(small, found):
    """If finding the start advanced the random generator, the training after it would differ."""
    features, _, crowd = small
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = cross_fit(features, crowd, 5, 3, steps=40)
    assert torch.equal(torch.get_rng_state(), before)
    assert same(again, found)
    assert not torch.equal(cross_fit(features, crowd, 5, 3, seed=1, steps=40).log_h, found.log_h)


def test_items_without_votes_are_judged_but_not_learned(small):
    """A row of zeros takes no part in the loss."""
    features, _, (who, said) = small
    who, said = who.clone(), said.clone()
    who[::5], said[::5] = -1, -1
    start = cross_fit(features, (who, said), 5, 3, steps=40)
    silent = torch.arange(80) % 5 == 0
    assert (start.targets[silent] == 0).all()
    torch.testing.assert_close(start.targets[~silent].sum(dim=1), torch.ones(64))
    assert start.log_h[silent].isfinite().all()


@pytest.mark.slow
def test_classes_that_nobody_voted_for_have_no_mass(small):
    """The votes name three of five outputs. The other two must not appear anywhere."""
    features, truth, (who, said) = small
    place = torch.tensor([1, 2, 4])
    start = cross_fit(features, (who, place[said]), 5, 5, steps=40)
    usual = cross_fit(features, (who, said), 5, 3, steps=40)
    empty = torch.tensor([0, 3])
    assert (start.targets[:, empty] == 0).all()
    assert (start.log_h[:, empty] <= NO_MASS).all()
    assert (start.log_p[empty] <= NO_MASS).all()
    assert (start.weight[:, empty] == 0).all()
    assert (start.weight[:, :, empty] == 0).all()
    assert torch.equal(start.targets[:, place], usual.targets)
    assert torch.equal(start.log_p[place], usual.log_p)
    assert torch.equal(start.weight[:, place[:, None], place], usual.weight)
    assert (start.classifier, start.tells_apart) == (usual.classifier, usual.tells_apart)
    assert share_right(start.targets, place[truth]) > 0.9


def test_votes_for_one_class_are_refused(small):
    """With one class there is nothing to distinguish."""
    features, _, (who, said) = small
    with pytest.raises(ValueError, match="the votes must name two classes or more, got 1"):
        cross_fit(features, (who, torch.zeros_like(said)), 5, 3, steps=4)


def test_prior_that_is_given_is_kept(small):
    """The votes must not overrule a prior that the user knows."""
    features, _, crowd = small
    prior = torch.tensor([0.6, 0.3, 0.1]).log()
    start = cross_fit(features, crowd, 5, 3, prior=prior, steps=20)
    torch.testing.assert_close(start.log_p, prior)
    assert [name for name in start.likelihoods if "prior" in name] == ["search_prior_given"]


def test_prior_is_even_where_the_votes_are(found):
    """Small differences may only be a preference of the annotators."""
    torch.testing.assert_close(found.log_p, torch.full((3,), -math.log(3)))
    assert [name for name in found.likelihoods if "prior" in name] == ["search_prior_uniform"]


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), rare=st.sampled_from([7, 20]), votes=st.integers(1, 30))
def test_who_votes_seldom_is_not_constant_for_want_of_a_rare_class(seed, rare, votes):
    """Among thirty items there may be none of a class of one in twenty, which is not the annotator's fault."""
    generator = torch.Generator().manual_seed(seed)
    truth = (torch.rand(400, generator=generator) < 1 / (rare + 1)).long()
    who = torch.stack([torch.zeros(400), torch.where(torch.arange(400) < votes, 1, -1)], dim=1)
    who = who.long()
    said = torch.where(who >= 0, truth[:, None], -1)
    assert not constant(Votes(who, said), 2, 2).any()


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6), classes=st.integers(2, 6), lazy=st.integers(1, 6), honest=st.integers(1, 4)
)  # fmt: skip
def test_who_always_says_one_class_is_constant_in_any_number(seed, classes, lazy, honest):
    """Lazy annotators give the same label to all items.

    However many they are, honest ones must not be counted among them.
    """
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(300) % classes
    good = draw(truth, [0.8] * honest, generator)[1]
    said = torch.cat([good, torch.full((300, lazy), int(truth[seed % 300]))], dim=1)
    who = torch.arange(honest + lazy).repeat(300, 1)
    assert (
        constant(Votes(who, said), honest + lazy, classes).tolist()
        == [False] * honest + [True] * lazy
    )


def test_where_all_are_constant_nobody_is():
    """Otherwise no votes would be left. An annotator without votes is not constant either."""
    who = torch.tensor([[0, 1]]).repeat(200, 1)
    said = torch.tensor([[0, 1]]).repeat(200, 1)
    assert not constant(Votes(who, said), 3, 2).any()


def world_of_experts(case, seed, items=700):
    """Return the paper's experts on features that identify the class: what the votes say, and who cast them."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(10, (items,), generator=generator)
    crowd = simulate_crowd(truth, experts("cifar10", "high"), case, generator=generator)
    features = features_of(truth, generator, size=20, apart=1.0)
    return features, truth, (crowd.annotators, crowd.annotations), len(crowd.names)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["independent", "naive_majority", "correlated"])
@pytest.mark.parametrize("seed", [0, 1])
def test_crowds_of_the_paper_are_seen_through(case, seed):
    """Juniors who always say one class, or copy a senior, outvote those who look at the item.

    When copies counted in full until the end, the networks learned their mistakes, and classes merged (0.82 to 0.94).
    """
    features, truth, crowd, annotators = world_of_experts(case, seed=0)
    start = cross_fit(features, crowd, annotators, 10, steps=300, seed=seed)
    usual = plurality(crowd, truth, 10)
    assert usual < 0.85
    assert share_right(start.targets, truth) > 0.98
    assert start.tells_apart
    # The trainer's forecast under the given W, and the share in it of annotators without votes.
    said = start.weight[crowd[0][:, :, None], torch.arange(10), crowd[1][:, :, None]].sum(dim=1)
    assert share_right((start.log_h + said).softmax(dim=1), truth) > usual + 0.1
    silent = constant(Votes(*crowd), annotators, 10)
    assert silent.any() == (case == "naive_majority")
    assert not start.weight[silent].any()


@pytest.mark.parametrize("case", ["independent", "correlated"])
def test_progress_ends_at_its_total(case, monkeypatch):
    """A bar beyond its total hides how much is left. Where annotators copy, there are more steps than planned."""
    module = hf_maxmig.training.cross_fit
    bars = []

    class Bar(module.tqdm):
        def update(self, n=1):
            assert self.n + n <= self.total
            super().update(n)

        def close(self):
            bars.append((self.n, self.total))
            super().close()

    monkeypatch.setattr(module, "tqdm", Bar)
    features, _, crowd, annotators = world_of_experts(case, seed=0, items=300)
    cross_fit(features, crowd, annotators, 10, steps=40, quiet=False)
    steps, total = bars[0]
    assert steps == total
    assert (total == 3 * 40 + 2 * 40) == (case == "independent")


@pytest.mark.slow
def test_copies_do_not_share_a_vote_if_others_who_were_not_found_outvote_them():
    """Two who nearly always repeat a poor senior pass unseen. The copies of a good one must not be weakened then."""
    features, truth, (who, said), annotators = world_of_experts("correlated", seed=2)
    generator = torch.Generator().manual_seed(7)
    other = torch.randint(10, said.shape, generator=generator)
    own = ((who == 5) | (who == 6)) & (torch.rand(said.shape, generator=generator) > 0.95)
    start = cross_fit(features, (who, torch.where(own, other, said)), annotators, 10, steps=300)
    assert share_right(start.targets, truth) > 0.98


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 4])
def test_classes_that_most_annotators_confuse_do_not_merge(seed):
    """The best two of five take 5 for 3 and 7 for 4, and all of them tire: few votes tell these classes apart."""
    digits = load_digits()
    truth = torch.tensor(digits.target)
    features = torch.tensor(digits.data / 16, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    truth, features = truth[:1_000], features[:1_000]
    crowd = simulate_tiring_crowd(truth, experts("cifar10", "high"), generator=generator)
    assert plurality(crowd[1:], truth, 10) < 0.65
    start = cross_fit(features, crowd[1:], 5, 10, seed=seed)
    assert share_right(start.targets, truth) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("rare", [7, 20])
@pytest.mark.parametrize("seed", [0, 1])
def test_rare_class_is_neither_lost_nor_made_large(rare, seed):
    """A start that balances the classes finds the rare one everywhere.

    One that follows only the votes never finds it.
    """
    generator = torch.Generator().manual_seed(seed)
    truth = (torch.arange(640) % (rare + 1) == 0).long()
    crowd = draw(truth, [0.92, 0.88, 0.85, 0.8, 0.75], generator)
    features = features_of(truth, generator, apart=1.5)
    start = cross_fit(features, crowd, 5, 2, steps=300)
    assert share_right(start.targets, truth) >= plurality(crowd, truth, 2)
    assert start.targets[truth == 1].argmax(dim=1).float().mean() > 0.75
    found = float((start.targets.argmax(dim=1) == 1).float().mean())
    assert 0.5 < found * (rare + 1) < 1.7


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_three_annotators_on_two_hundred_items_are_not_below_the_plurality(seed):
    """This is the crowd of somebody who just tries the package."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(2, (200,), generator=generator)
    crowd = draw(truth, [0.9, 0.8, 0.5], generator)
    features = 1.5 * truth[:, None] + torch.randn(200, 4, generator=generator)
    start = cross_fit(features, crowd, 3, 2, steps=200)
    assert share_right(start.targets, truth) >= plurality(crowd, truth, 2)


@pytest.mark.slow
def test_where_annotators_cannot_be_told_apart_the_plurality_counts():
    """With one or two votes per annotator, apparent differences between annotators are chance."""
    generator = torch.Generator().manual_seed(0)
    items, annotators = 150, 300
    truth = torch.arange(items) % 3
    who = (torch.arange(items)[:, None] + torch.tensor([0, 101, 211])) % annotators
    hit = torch.rand(items, 3, generator=generator) < 0.6
    said = torch.where(hit, truth[:, None], torch.randint(3, (items, 3), generator=generator))
    noise = torch.randn(items, 4, generator=generator)
    start = cross_fit(noise, (who, said), annotators, 3, steps=60)
    assert not start.tells_apart
    share = vote_share(said, 3)
    sure = share.max(dim=1).values > 0.5
    assert 50 < int(sure.sum()) < items
    assert torch.equal(start.targets.argmax(dim=1)[sure], share.argmax(dim=1)[sure])
    strengths = start.weight.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(strengths, strengths[:1, :1].expand_as(strengths))


def test_classifier_that_hardly_counts_keeps_its_likeliest_class():
    """Drawn to a prior of 1 : 7 and not to equal probabilities, it would call everything the frequent class."""
    generator = torch.Generator().manual_seed(0)
    items, annotators = 240, 480
    truth = (torch.arange(items) % 8 == 0).long()
    who = (torch.arange(items)[:, None] + torch.tensor([0, 131, 211])) % annotators
    said = torch.where(torch.rand(items, 3, generator=generator) < 0.85, truth[:, None], 1 - truth[:, None])  # fmt: skip
    features = 1.5 * truth[:, None] + torch.randn(items, 4, generator=generator)
    start = cross_fit(features, (who, said), annotators, 2, steps=100)
    assert not start.tells_apart
    assert start.classifier < 1
    assert start.log_p[1].exp() < 0.35
    torch.manual_seed(0)
    head = HeadClassifier(HeadConfig(input_size=4, num_labels=2)).eval()
    with torch.no_grad():
        before = head(features=features).logits.argmax(dim=1)
        assert temper(head, start, {"features": features})
        after = head(features=features).logits.argmax(dim=1)
    assert 0 < before.sum() < items
    assert torch.equal(after, before)
    rare = start.log_h.argmax(dim=1) == 1
    assert 0.3 < float(rare.sum()) / float(truth.sum()) < 3


def test_classes_that_come_out_exchanged_are_named_by_the_votes(small, monkeypatch):
    """The gain does not tell. Among copies, one race in eight ends so on digits, and half the targets would be wrong."""
    features, truth, crowd = small
    race, order = CrossFit.race, torch.tensor([1, 2, 0])

    def exchanged(self, *given, **named):
        return [
            one._replace(log_h=one.log_h[:, order], weight=one.weight[:, order])
            for one in race(self, *given, **named)
        ]

    monkeypatch.setattr(CrossFit, "race", exchanged)
    start = cross_fit(features, crowd, 5, 3, steps=60)
    assert share_right(start.targets, truth) > 0.9
    assert share_right(start.log_h, truth) > 0.8
    assert (start.weight[:4].argmax(dim=1) == torch.arange(3)).all()


def test_copies_are_one_voice_where_classes_are_named(monkeypatch):
    """Counted one by one, copies who take a class for another hide which of the two is which."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(300) % 3
    who, said = draw(truth, [0.9, 0.7, 0.8, 0.8], generator)
    crowd = torch.cat([who, torch.tensor([[4, 5]] * 300)], dim=1), said[:, [0, 1, 2, 3, 1, 1]]
    heard, names = [], hf_maxmig.training.cross_fit.clear_names

    def noted(posteriors):
        heard.extend(posteriors())
        return names(posteriors)

    monkeypatch.setattr(hf_maxmig.training.cross_fit, "clear_names", noted)
    cross_fit(features_of(truth, generator), crowd, 6, 3, steps=60)
    ((_, annotations, each),) = heard
    assert torch.equal(annotations, crowd[1])
    torch.testing.assert_close(each, torch.tensor([1, 1 / 3, 1, 1, 1 / 3, 1 / 3]).expand(300, -1))


@pytest.mark.parametrize("seed", range(3))
def test_few_votes_of_experts_do_not_move_the_prior(seed):
    """Experts who do not know some classes call them by other names, so these are named more often than they occur.

    With one vote per item, left-out votes cannot show it. With the prior of the votes, too many items would stay in them.
    """
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(10, (500,), generator=generator)
    drawn = simulate_crowd(truth, experts("cifar10", "high"), generator=generator)
    one = torch.randint(5, (500, 1), generator=generator)
    crowd = drawn.annotators.gather(1, one), drawn.annotations.gather(1, one)
    share = torch.bincount(crowd[1].flatten(), minlength=10) / 500
    assert 0.04 < math.log(10) - float(torch.special.entr(share).sum()) < 0.12
    start = cross_fit(features_of(truth, generator), crowd, 5, 10, steps=100)
    torch.testing.assert_close(start.log_p.exp(), torch.full((10,), 0.1))


def test_prior_of_two_classes_of_which_one_is_rare_is_that_of_the_votes():
    """With equal shares, a rare class would be seen in many items of the frequent one."""
    generator = torch.Generator().manual_seed(0)
    truth = (torch.arange(300) % 6 == 0).long()
    crowd = draw(truth, [0.95, 0.95, 0.9], generator)
    start = cross_fit(features_of(truth, generator), crowd, 3, 2, steps=100)
    assert float(start.log_p[1].exp()) == pytest.approx(1 / 6, abs=0.08)


def test_only_the_usual_rate_is_tried_where_nearly_all_votes_are_by_annotators_with_many():
    """A second race costs as much as the first; only cells of W that are seldom seen need a faster rate."""

    def tried(*votes):
        who = torch.cat([torch.full((number,), m) for m, number in enumerate(votes)])[:, None]
        crowd = Votes(who, torch.zeros_like(who))
        return hf_maxmig.training.cross_fit._multiples(crowd)

    many = MANY_VOTES
    assert tried(many, 3 * many) == MULTIPLES[:1]
    assert tried(many - 1, many - 1) == MULTIPLES
    assert tried(10 * many, *[20] * 50) == MULTIPLES[:1]
    assert tried(2 * many, *[20] * 50) == MULTIPLES
    unvoted = Votes(torch.full((3, 1), -1), torch.full((3, 1), -1))
    assert hf_maxmig.training.cross_fit._multiples(unvoted) == MULTIPLES


def test_items_that_settings_are_judged_by_are_of_all_classes(monkeypatch):
    """Data sets are often sorted by class, so the first items would all be of one class."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(240) // 80
    crowd = draw(truth, [0.9, 0.8, 0.7], generator)
    features = features_of(truth, generator)
    judged = []

    class Noting(LeftOutVotes):
        def __init__(self, crowd, *rest):
            judged.append(crowd.annotations)
            super().__init__(crowd, *rest)

    monkeypatch.setattr(hf_maxmig.training.cross_fit, "LeftOutVotes", Noting)
    monkeypatch.setattr(hf_maxmig.training.cross_fit, "MOST_JUDGED", 60)
    start = cross_fit(features, crowd, 3, 3, steps=60)
    few, whole = judged
    assert len(few) == 60
    assert len(whole) == 240
    assert (torch.bincount(few.flatten(), minlength=3) > 30).all()
    assert share_right(start.targets, truth) > 0.9


@pytest.mark.parametrize(
    ("early", "last", "taken"), [(0.5, 0.5, [1] * 4), (0.3, 0.9, [1] * 4), (0.9, 0.3, [0] * 4)]
)
def test_early_look_is_taken_only_where_it_predicts_votes_clearly_better(
    early, last, taken, small, monkeypatch
):
    """On photographs of LabelMe both looks predict votes alike, and networks that stop early are a point worse.

    Chance gives the higher likelihood now to one of two equal looks, now to the other.
    """
    features, truth, crowd = small
    race, best_setting = CrossFit.race, hf_maxmig.training.cross_fit._best_setting
    spread, looks, chosen = torch.eye(3)[truth], [], []
    generator = torch.Generator().manual_seed(5)

    def known(self, *given, **named):
        """Race, and let the networks of each look give the truth known probabilities, half of them a bit higher."""
        results = race(self, *given, **named)
        looks.clear()
        for mean in (early, last):
            sides = torch.arange(len(truth)) % 2 * 0.1 - 0.05
            right = mean + sides[torch.randperm(len(truth), generator=generator)][:, None]
            looks.append((right * spread + (1 - right) * (1 - spread) / 2).log())
        each = len(results) // len(looks)
        return [one._replace(log_h=looks[i // each]) for i, one in enumerate(results)]

    def listened(*given):
        found = best_setting(*given)
        _, raced = found[1]
        chosen.append([raced.log_h.equal(log_h) for log_h in looks].index(True))
        return found

    monkeypatch.setattr(CrossFit, "race", known)
    monkeypatch.setattr(hf_maxmig.training.cross_fit, "_best_setting", listened)
    for _ in range(4):
        cross_fit(features, crowd, 5, 3, steps=20)
    assert chosen == taken
