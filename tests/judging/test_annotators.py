"""The verdict on each annotator, on crowds where the right verdict is known."""

import csv
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import beta

from hf_maxmig.judging.annotators import judge_annotators
from hf_maxmig.judging.verdicts import Verdict
from hf_maxmig.model.functional import confusion_counts
from tests.judging.calibrated_crowds import draw, everyone, weight_of

CLASSES = ["cat", "dog", "emu"]


def names(number):
    return [f"worker {m}" for m in range(number)]


def log_h_of(truth, num_classes=3):
    """Return log h of a classifier that knows the truth."""
    return torch.eye(num_classes)[truth].mul(0.999).add(0.001 / num_classes).log()


def judge(log_h, said, weight=None, who=None, annotators=None, classes=None):
    num_annotators = said.shape[1] if who is None else int(who.max()) + 1
    num_classes = log_h.shape[1]
    return judge_annotators(
        log_h,
        torch.zeros(num_annotators, num_classes, num_classes) if weight is None else weight,
        [(everyone(said) if who is None else who, said)],
        annotators or names(num_annotators),
        classes or CLASSES[:num_classes],
    )


def mixed_crowd(num_items=500, seed=0):
    """Draw a crowd with three kinds of good annotators and one of each kind of bad ones."""
    log_h, truth, confusion, said = draw(
        [0.97, 0.95, 0.7, 0.6, 0.75, 1 / 3, 0.9], num_items=num_items, seed=seed
    )
    said[:, 6] = (said[:, 6] + 1) % 3
    confusion[6] = confusion[6][:, [2, 0, 1]]
    said = torch.cat([said, torch.full_like(said[:, :1], 1), said[:, 2:3]], dim=1)
    constant = torch.eye(3)[1].expand(1, 3, 3)
    weight = weight_of(torch.cat([confusion, constant, confusion[2:3]]))
    weight[[2, 8]] /= 2
    should = ["expert", "expert", "copied or copying", "ordinary", "ordinary"]
    should += ["random", "adversarial", "always says one class", "copied or copying"]
    return log_h, truth, weight, said, should


@pytest.mark.parametrize("seed", range(3))
def test_verdicts_on_a_crowd_of_every_kind(seed):
    """One wrong accusation costs more than a spammer who goes undetected."""
    log_h, _, weight, said, should = mixed_crowd(seed=seed)
    report = judge(log_h, said, weight)
    assert report.verdict == should
    assert [(copy.annotator, copy.source) for copy in report.copies] == [(8, 2)]
    assert set(report.verdict) == {verdict.value for verdict in Verdict} - {"too few votes"}
    assert all(reason.endswith(".") for reason in report.reason)


def test_verdicts_do_not_depend_on_the_order_of_the_annotators():
    """If ties were broken by number, the numbering would decide who is accused."""
    log_h, _, weight, said, _ = mixed_crowd()
    order = torch.tensor([8, 3, 5, 0, 7, 6, 2, 4, 1])
    first, second = judge(log_h, said, weight), judge(log_h, said[:, order], weight[order])
    for m, old in enumerate(order.tolist()):
        assert second.verdict[m] == first.verdict[old]
        assert second.accuracy[m] == pytest.approx(first.accuracy[old], abs=1e-3)
        assert second.information[m] == pytest.approx(first.information[old], abs=1e-3)
    assert Counter(second.verdict) == Counter(first.verdict)


def test_counts_are_those_of_the_gold_labels_where_the_model_knows_them():
    """With nothing to estimate, only the arithmetic can be wrong."""
    _, truth, _, said = draw([0.9, 0.6, 0.5, 0.8], num_items=300)
    report = judge(log_h_of(truth), said)
    expected = confusion_counts(torch.eye(3)[truth], everyone(said), said, num_annotators=4)
    np.testing.assert_allclose(report.counts, expected.numpy(), atol=0.5)
    gold = (said == truth[:, None]).float().mean(dim=0)
    np.testing.assert_allclose(report.accuracy, gold, atol=2e-3)
    np.testing.assert_array_equal(report.votes, [300] * 4)
    np.testing.assert_allclose(report.confusion.sum(axis=2), 1)


def test_interval_is_jeffreys_where_the_model_knows_the_truth():
    """On a grid too coarse for many votes, the quantiles would be off by the width of the interval."""
    for num_items in (12, 100, 3000):
        _, truth, _, said = draw([0.9, 0.6, 0.5, 0.8], num_items=num_items, seed=4)
        report = judge(log_h_of(truth), said)
        hits = (said == truth[:, None]).sum(dim=0).numpy()
        low = beta.ppf(0.025, hits + 0.5, num_items - hits + 0.5)
        high = beta.ppf(0.975, hits + 0.5, num_items - hits + 0.5)
        assert (hits > 0).all()
        assert (hits < num_items).all()
        np.testing.assert_allclose(report.accuracy_low, low, atol=0.1 * (high - low).max())
        np.testing.assert_allclose(report.accuracy_high, high, atol=0.1 * (high - low).max())


def few_votes_each(votes_each, certainty, seed, num_items=1500, num_annotators=60):
    """Return annotators and votes where everyone labels only a few of many items."""
    skills = torch.tensor([1 / 3, 0.6, 0.8, 0.95, 1.0]).repeat(num_annotators // 5).tolist()
    log_h, _, confusion, said = draw(skills, num_items, seed=seed, certainty=certainty)
    generator = torch.Generator().manual_seed(seed)
    rank = torch.rand(said.shape, generator=generator).argsort(dim=0).argsort(dim=0)
    who = torch.where(rank < votes_each, everyone(said), -1)
    said = torch.where(who >= 0, said, -1)
    return torch.tensor(skills).numpy(), judge(log_h, said, weight_of(confusion), who)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("certainty", "votes_each", "least"), [(8.0, 10, 0.92), (8.0, 200, 0.92), (3.0, 200, 0.9)]
)
def test_intervals_cover_the_true_accuracy(certainty, votes_each, least):
    """An interval called 95 % that covers 70 % of cases would be a false promise."""
    covered = []
    for seed in range(3):
        skills, report = few_votes_each(votes_each, certainty, seed)
        covered += list(
            (report.accuracy_low <= skills + 1e-6) & (skills - 1e-6 <= report.accuracy_high)
        )
    assert least <= np.mean(covered) < 0.995


def test_confusion_is_drawn_to_the_crowd_where_votes_are_few():
    """A single right label would otherwise mean 100 % accuracy, and no label at all a division by zero."""
    _, truth, _, said = draw([0.8, 0.75, 0.85, 0.8, 0.8, 0.78], num_items=400)
    who = everyone(said)
    who[1:, 5] = -1
    said[0, 5] = truth[0]
    report = judge(log_h_of(truth), torch.where(who >= 0, said, -1), who=who)
    assert report.votes[5] == 1
    crowd = report.counts.sum(axis=0)
    crowd /= crowd.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(report.confusion[5], crowd, atol=0.1)
    own = report.counts[0] / report.counts[0].sum(axis=1, keepdims=True)
    assert np.abs(report.confusion[0] - own).max() < 0.02 + 32 / 400
    assert report.strength > 0


def test_random_annotator_is_not_flattered_by_their_own_votes():
    """Most items have two labels. A forecast that includes an annotator's own vote agrees with anyone."""
    log_h, _, _, said = draw([0.8] * 9 + [1 / 3], num_items=1500, certainty=1.5)
    generator = torch.Generator().manual_seed(0)
    kept = torch.rand(said.shape, generator=generator).argsort(dim=1).argsort(dim=1) < 2
    who = torch.where(kept, everyone(said), -1)
    weight = weight_of(torch.eye(3).mul(0.7).add(0.1)).expand(10, 3, 3)  # not known to be random
    report = judge(log_h, torch.where(kept, said, -1), weight, who)
    assert report.verdict[9] == "random"
    assert report.accuracy[9] < 0.45
    assert report.information[9] < 0.02
    assert set(report.verdict[:9]) <= {"expert", "ordinary"}


def test_who_was_only_shown_one_class_is_no_spammer():
    """An expert who only sees cats always says cat, just like a spammer who sees everything."""
    _, truth, _, said = draw([0.8, 0.8, 0.8, 1.0, 0.8], num_items=400)
    who = everyone(said)
    who[truth != 0, 3] = -1
    said[:, 4] = 0
    report = judge(log_h_of(truth), torch.where(who >= 0, said, -1), who=who)
    assert report.votes[3] > 50
    assert report.verdict[3] in ("expert", "ordinary")
    assert report.verdict[4] == "always says one class"
    assert "cat" in report.reason[4]


def test_rare_finds_are_no_single_class():
    """With one positive in twenty-five, even a good doctor nearly always says no."""
    truth = (torch.arange(600) % 25 == 0).long()
    doctor = truth.clone()
    doctor[0:250:25] = 0  # misses ten of the 24
    other = torch.where(torch.arange(600) % 7 == 0, 1 - truth, truth)
    said = torch.stack([doctor, other, torch.zeros_like(truth)], dim=1)
    report = judge(log_h_of(truth, 2), said)
    assert (doctor == 0).float().mean() > 0.95
    assert report.verdict[0] in ("expert", "ordinary")
    assert report.verdict[2] == "always says one class"


def test_consistent_mix_up_of_names_is_adversarial_even_at_chance_accuracy():
    """With a few classes permuted, the accuracy alone looks like chance."""
    truth = torch.arange(800) % 4
    generator = torch.Generator().manual_seed(0)
    fair = torch.where(
        torch.rand(800, generator=generator) < 0.7, truth,
        torch.randint(4, (800,), generator=generator),
    )  # fmt: skip
    mixed = torch.tensor([0, 2, 3, 1])[truth]
    report = judge(
        log_h_of(truth, 4), torch.stack([fair, fair.roll(4), mixed], dim=1), classes=list("abcd")
    )
    assert (mixed == truth).float().mean() == 0.25  # chance
    assert report.verdict[2] == "adversarial"


def test_few_votes_are_no_evidence():
    """Nine wrong labels in a row can happen by chance, and a wrong verdict sticks."""
    _, truth, _, said = draw([0.8] * 5, num_items=300)
    who = everyone(said)
    who[9:, 3] = -1
    who[1:, 4] = -1
    said[:9, 3] = (truth[:9] + 1) % 3
    report = judge(log_h_of(truth), torch.where(who >= 0, said, -1), who=who)
    assert report.verdict[3:] == ["too few votes"] * 2
    assert report.reason[4].startswith("1 vote,")


def test_annotator_without_votes():
    """An annotator without votes gets NaN, not a warning and not the crowd's accuracy."""
    _, truth, _, said = draw([0.8, 0.7], num_items=100)
    weight = torch.zeros(4, 3, 3)
    report = judge_annotators(log_h_of(truth), weight, [(everyone(said), said)], names(4), CLASSES)
    assert report.verdict[2:] == ["too few votes"] * 2
    assert np.isnan(report.accuracy[2:]).all()
    assert np.isnan(report.accuracy_low[2:]).all()
    assert np.isnan(report.accuracy_high[2:]).all()
    assert (report.information[2:] == 0).all()
    assert not np.isnan(report.confusion).any()
    assert report.table()["accuracy"][2:] == [None, None]


@pytest.mark.parametrize("num_items", [0, 4])
def test_crowd_without_votes(num_items):
    """A data set that nobody has labelled yet gets a report too."""
    nobody = torch.full((num_items, 1), -1)
    log_h = torch.zeros(num_items, 3).log_softmax(-1)
    report = judge_annotators(log_h, torch.zeros(2, 3, 3), [(nobody, nobody)], names(2), CLASSES)
    assert report.verdict == ["too few votes"] * 2
    assert len(report.table()) == 2
    assert str(report).split("\n") == [
        "2 annotators cast 0 votes: 2 too few votes. 0 can be trusted, 2 should be looked at, 0 should be "
        "left out.",
        "1. Get more votes before judging (2 annotators): worker 0, worker 1.",
    ]


def test_single_annotator_and_two_classes():
    """A single annotator has no crowd to be compared with; with two classes, shapes coincide."""
    _, truth, _, said = draw([0.95], num_items=200, num_classes=2)
    report = judge(log_h_of(truth, 2), said)
    assert report.verdict == ["expert"]
    assert report.confusion.shape == (1, 2, 2)


def test_model_that_knows_nothing_accuses_nobody():
    """Under a flat forecast, everyone is right as often as chance."""
    _, _, _, said = draw([0.9, 0.8, 0.7], num_items=200)
    report = judge(torch.zeros(200, 3).log_softmax(-1), said)
    assert set(report.verdict) == {"too few votes"}
    assert (report.accuracy_high - report.accuracy_low > 0.8).all()


def test_unknown_annotators_and_second_votes():
    """A label by annotator -1 would count for the last annotator, and a second vote would confirm the first."""
    log_h, _, weight, said, _ = mixed_crowd(num_items=200)
    plain = judge(log_h, said, weight)
    unknown = torch.full_like(said[:, :1], -1)
    with_unknown = judge(
        log_h, torch.cat([said, said[:, :1]], 1), weight, torch.cat([everyone(said), unknown], 1)
    )
    np.testing.assert_array_equal(plain.counts, with_unknown.counts)
    assert plain.verdict == with_unknown.verdict
    # The random annotator votes three times on everything, and is no more accurate for it.
    again = [torch.cat([x, x[:, 5:6], x[:, 5:6]], 1) for x in (everyone(said), said)]
    repeated = judge(log_h, again[1], weight, again[0])
    assert repeated.votes[5] == 600
    assert repeated.accuracy[5] == pytest.approx(plain.accuracy[5], abs=0.03)


def test_information_of_chance_is_near_zero_and_of_experts_the_entropy():
    """A small table always shows a pattern by chance: without a correction, spammers would look informed."""
    shown = []
    for seed in range(20):
        _, truth, _, said = draw([1 / 3, 1.0], num_items=60, seed=seed, certainty=20.0)
        report = judge(log_h_of(truth), said)
        share = torch.bincount(truth, minlength=3) / 60
        entropy = -(share * share.log()).sum()
        assert report.information[1] == pytest.approx(float(entropy), abs=0.02)
        shown.append(report.information[0])
    assert np.mean(shown) < 0.03  # uncorrected 4 / (2 * 60) = 0.033 on average, and seldom zero
    assert min(shown) == 0


def test_table_and_file_with_hostile_names(tmp_path):
    """A worker named =HYPERLINK(...) would run code in the spreadsheet of whoever pays them."""
    log_h, _, weight, said, _ = mixed_crowd()
    hostile = ['=HYPERLINK("http://x","y")', "+1", "-1", "@SUM(A1)", 'quote", comma', "new\nline",
               "\t=1", "Ünïcode", ""]  # fmt: skip
    report = judge(log_h, said, weight, annotators=hostile, classes=["=cat", "dog", "emu"])
    table = report.table()
    assert table["annotator"][:] == hostile
    assert table["copies"][:] == [None, None, "", *[None] * 5, "-1"]
    assert "says" in table["confuses"][2]
    report.save(tmp_path / "annotators.csv")
    with open(tmp_path / "annotators.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    assert list(rows[0]) == table.column_names
    for row, name in zip(rows, hostile, strict=True):
        assert row["annotator"] in (name, f"'{name}")
        for value in row.values():
            assert not value.startswith(("=", "+", "@", "\t", "\r", "-"))
    assert rows[8]["copies"] == "'-1"
    assert "copied or copying" in str(report)


def test_most_frequent_mistake_is_said_in_words():
    """If truth and label were exchanged, the owner would look at the wrong class."""
    truth = torch.arange(200) % 2
    said = truth.clone()
    said[(truth == 0) & (torch.arange(200) < 60)] = 1  # dog where it is cat: 30 of 100
    report = judge(log_h_of(truth, 2), torch.stack([said, truth], dim=1))
    assert report.most_frequent_mistake(0).startswith("says dog where it is cat: ")
    assert 0.25 < report.confusion[0, 0, 1] < 0.33
    assert report.most_frequent_mistake(1) is None


def test_names_and_shapes_must_fit():
    """A report with names shifted by one would accuse the wrong person."""
    _, truth, _, said = draw([0.8, 0.7], num_items=20)
    crowd, weight = [(everyone(said), said)], torch.zeros(2, 3, 3)
    with pytest.raises(ValueError, match="`annotators` must be M = 2 names"):
        judge_annotators(log_h_of(truth), weight, crowd, names(3), CLASSES)
    with pytest.raises(ValueError, match="`classes` must be C = 3 names"):
        judge_annotators(log_h_of(truth), weight, crowd, names(2), ["cat"])
    with pytest.raises(
        ValueError, match="`crowd` must have N = 19 items, one a row of `log_h`, got 20"
    ):
        judge_annotators(log_h_of(truth[:19]), weight, crowd, names(2), CLASSES)


def test_worst_class_is_the_one_they_are_right_on_least_often():
    """The worst class is one of the true classes, not of the reported ones.

    Classes never seen are no weakness.
    """
    truth = torch.arange(300) % 3
    said = truth.clone()
    said[(truth == 1) & (torch.arange(300) < 150)] = 2  # half of the dogs are emus
    who = everyone(torch.stack([said, truth, truth], dim=1))
    who[truth == 0, 2] = -1  # the third never sees a cat
    report = judge(log_h_of(truth), torch.stack([said, truth, truth], dim=1), who=who)
    name, share = report.worst_class(0)
    assert name == "dog"
    assert 0.45 < share < 0.55
    assert share == report.confusion[0].diagonal().min()
    assert report.worst_class(2)[0] != "cat"
    table = report.table()
    assert (table["worst_class"][0], table["worst_class_accuracy"][0]) == (name, share)
    nobody = judge_annotators(
        log_h_of(truth), torch.zeros(2, 3, 3), [(torch.zeros(300, 1, dtype=torch.long), said[:, None])],
        names(2), CLASSES,
    )  # fmt: skip
    assert nobody.worst_class(1) == (None, None)
    assert nobody.table()["worst_class"][1] is None


def test_copies_stand_together_and_the_best_are_those_to_trust():
    """An original used to be listed far from its copies, and the console named other annotators than the page."""
    log_h, _, weight, said, should = mixed_crowd()
    report = judge(log_h, said, weight)
    assert report.verdict == should
    order = report.to_act_on_first()
    assert sorted(order) == list(range(9))
    assert order[:3] == [5, 6, 7]
    assert order[3:5] == [2, 8]
    assert {report.verdict[m] for m in report.best()} == {"expert", "ordinary"}
    assert report.best()[:2] == sorted([0, 1], key=lambda m: -report.accuracy_low[m])
    lines = str(report).split("\n")
    assert lines[0] == (
        "9 annotators cast 4,500 votes: 2 expert, 2 ordinary, 1 random, 1 always says one class, "
        "1 adversarial, 2 copied or copying. 4 can be trusted, 2 should be looked at, 3 should be left out. "
        "With each group of copies counted once, 8 voices remain."
    )
    assert "4. Count as one voice (2 annotators): worker 2, worker 8. They agree more" in str(
        report
    )
    assert [line.partition(" - ")[0] for line in lines if line.startswith("Most doubtful")] == [
        f"Most doubtful: worker {m}" for m in (5, 6, 7)
    ]
