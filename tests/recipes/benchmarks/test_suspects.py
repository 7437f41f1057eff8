"""The recipe that compares scores for wrong labels: each score must be read the right way round."""

import json
from functools import partial

import numpy as np
import pytest

from tests.recipes.imported import recipes

CLASSES = 3
NUM_ITEMS = 84


@pytest.fixture(scope="module")
def suspects():
    with recipes() as load:
        yield load("suspects")


@pytest.fixture
def world(suspects):
    """Three unanimous annotators, except on every seventh item, where two of them give the same wrong answer."""
    gold = np.arange(NUM_ITEMS) % CLASSES
    wrong = np.arange(NUM_ITEMS) % 7 == 0
    said = np.repeat(gold[:, None], 3, axis=1)
    for i in np.flatnonzero(wrong):
        said[i] = (gold[i] + 1 + i // 21 % 2) % CLASSES
        said[i, i // 7 % 3] = gold[i]
    votes = suspects.read_votes([[0, 1, 2]] * NUM_ITEMS, said.tolist(), CLASSES)
    assert (votes.given != gold).tolist() == wrong.tolist()
    noise = np.random.default_rng(1).normal(size=(NUM_ITEMS, 5)).astype(np.float32)
    features = noise * 0.3 + 3 * np.eye(CLASSES, 5, dtype=np.float32)[gold]
    return votes, gold, wrong, features


def test_perfect_score_has_average_precision_one_and_its_opposite_auroc_zero(suspects, world):
    """A figure read upside down would praise the worst score."""
    *_, wrong, _ = world
    scores = {"perfect": wrong * 0.5, "opposite": -1.0 * wrong, "constant": np.ones(NUM_ITEMS)}
    measured = suspects.measure_scores(scores, wrong)
    assert measured["perfect"] == {"average_precision": 1.0, "auroc": 1.0}
    assert measured["opposite"]["auroc"] == 0
    assert measured["constant"] == pytest.approx({"average_precision": 1 / 7, "auroc": 0.5})


def test_flags_are_measured_by_precision_and_recall(suspects):
    """With the two exchanged, a rash flag would look cautious."""
    wrong = np.array([True, True, True, False, False])
    flags = {"rash": np.array([True, True, False, True, True]), "none": np.zeros(5, dtype=bool)}
    measured = suspects.measure_flags(flags, wrong)
    assert measured["rash"] == pytest.approx({"flagged": 4, "precision": 1 / 2, "recall": 2 / 3})
    assert measured["none"] == {"flagged": 0, "precision": None, "recall": 0}


def test_tie_is_drawn_once_among_the_most_voted_classes(suspects):
    """The lowest class must not win every tie, and all scores must judge the same draw."""
    crowd = [[0, 1]] * 50 + [[0, 1, 2]] * 3, [[1, 2]] * 50 + [[2, 2, 0]] * 3
    votes = suspects.read_votes(*crowd, CLASSES)
    assert not votes.single[:50].any()
    assert votes.single[50:].all()
    assert set(votes.given[:50]) == {1, 2}
    assert votes.given[50:].tolist() == [2, 2, 2]
    assert suspects.read_votes(*crowd, CLASSES).given.tolist() == votes.given.tolist()


def relabelled_by(votes, forecast):
    """Return what `relabel` would write for a forecast, with a classifier and an aggregator that agree with it."""
    columns = ("forecast_posterior", "classifier_posterior", "aggregator_posterior")
    suspicion = 1 - votes.of_given(forecast)
    return {**dict.fromkeys(columns, forecast.tolist()), "suspicion": suspicion.tolist()}


def assert_wrong_ranked_first(suspects, scores, wrong):
    assert scores
    for name, score in scores.items():
        assert score.shape == wrong.shape, name
        assert np.isfinite(score).all(), name
        assert suspects.measure_scores({name: score}, wrong)[name]["auroc"] > 0.9, name


def test_our_and_the_votes_scores_are_higher_where_the_label_is_wrong(suspects, world):
    """Each score is turned by hand from "how good" to "how suspect"."""
    votes, gold, wrong, _ = world
    forecast = 0.7 * np.eye(CLASSES)[gold] + 0.1
    scores = suspects.our_scores(relabelled_by(votes, forecast), votes) | suspects.vote_scores(
        votes
    )
    assert set(scores) == {suspects.OURS, *suspects.PARTS, "vote entropy", "1 - vote share"}
    assert scores[suspects.OURS] == pytest.approx(np.where(wrong, 0.9, 0.2))
    assert scores["1 - vote share"] == pytest.approx(np.where(wrong, 1 / 3, 0))
    assert_wrong_ranked_first(suspects, scores, wrong)


def test_suspicion_must_be_what_relabel_wrote(suspects, world):
    """Figures of a formula that the package does not use would be meaningless."""
    votes, gold, *_ = world
    relabelled = relabelled_by(votes, np.eye(CLASSES)[gold])
    relabelled["suspicion"][7] += 0.01
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        suspects.our_scores(relabelled, votes)


@pytest.mark.filterwarnings("ignore:The (copy|inplace) keyword")  # crowd-kit on pandas 3.1
@pytest.mark.slow
def test_crowdkit_scores_are_higher_where_the_label_is_wrong(suspects, world, monkeypatch):
    """Its tables are by name, not by position, so another column order would judge other labels."""
    models = pytest.importorskip("crowdkit.aggregation")
    # The crowd is easy, and crowd-kit takes seconds to converge.
    monkeypatch.setattr(models, "MACE", partial(models.MACE, n_restarts=2, n_iter=20))
    monkeypatch.setattr(models, "GLAD", partial(models.GLAD, n_iter=5, m_step_max_iter=5))
    votes, _, wrong, _ = world
    scores, flags = suspects.crowdkit_scores(votes)
    assert len(scores) == 5
    assert_wrong_ranked_first(suspects, scores, wrong)
    assert flags["Dawid-Skene"].shape == wrong.shape


def test_cleanlab_scores_are_higher_where_the_label_is_wrong(suspects, world, make_args):
    """Cleanlab's qualities are low for bad labels; a CROWDLAB quality belongs to an annotator's label."""
    pytest.importorskip("cleanlab")
    votes, gold, wrong, features = world
    training = make_args(num_train_epochs=40)
    plain = suspects.plain_posteriors(features, votes, training)
    for probability in plain.values():
        assert probability.sum(axis=1) == pytest.approx(1)
        assert (probability.argmax(axis=1) == gold).mean() > 0.8
    h = 0.7 * np.eye(CLASSES)[gold] + 0.1
    scores, flags = suspects.cleanlab_scores(votes, plain, h)
    assert set(flags) == {f"CROWDLAB, {name}" for name in (*plain, "h")}
    assert len(scores) == 2 * len(plain) + 1 + len(plain) + 1
    # Where CROWDLAB prefers another label, its consensus quality is of that one, so nothing is
    # promised.
    of_given = {n: s for n, s in scores.items() if "consensus" not in n}
    assert_wrong_ranked_first(suspects, of_given, wrong)

    one = suspects.read_votes([[0]] * NUM_ITEMS, votes.given[:, None].tolist(), CLASSES)
    scores, flags = suspects.cleanlab_scores(one, plain, h)
    assert set(scores) == {f"cleanlab label quality, {name}" for name in plain}
    assert_wrong_ranked_first(suspects, scores, wrong)
    for flag in flags.values():
        assert wrong[flag].mean() > 0.8


def test_seeds_come_together_best_score_first(suspects):
    """Table and file must give the mean, and of each package the best score that does not need our h."""
    entropies, ours = (0.2, 0.4), (0.9, 1.0)
    runs = [
        {
            "seed": seed, "items": 5, "votes": 9, "ties": 1, "base_rate": 0.1,
            "scores": {
                name: {"average_precision": value, "auroc": 0.5}
                for name, value in (
                    ("vote entropy", entropies[seed]), ("suspicion", ours[seed]), ("cleanlab CROWDLAB, h", 0.99),
                    ("cleanlab CROWDLAB, logistic", 0.8), ("cleanlab label quality, logistic", 0.7),
                )
            },
            "flags": {"suspect": {"flagged": 1, "precision": None, "recall": 0.5}},
        }
        for seed in (0, 1)
    ]  # fmt: skip
    summary = suspects.summarise(suspects.World("here"), runs)
    assert next(iter(summary["scores"])) == "cleanlab CROWDLAB, h"
    assert summary["scores"]["suspicion"]["average_precision"] == pytest.approx(0.95)
    assert summary["scores"]["vote entropy"]["average_precision_by_seed"] == [0.2, 0.4]
    assert summary["flags"]["suspect"] == {"flagged": 1, "precision": None, "recall": 0.5}
    assert suspects.best_of(summary, "cleanlab") == "cleanlab CROWDLAB, logistic"
    row = suspects.table([summary]).splitlines()[1]
    assert row.split() == [
        "here",
        "0.100",
        "0.950",
        "0.300",
        "0.800",
        "cleanlab",
        "CROWDLAB,",
        "logistic",
    ]


def test_page_says_command_number_and_minutes(suspects):
    """If a recipe does not say what to expect, nobody can see that it fails."""
    for word in (
        "recipes/benchmarks/suspects.py --labelme_dir",
        "Expect",
        "inutes",
        "pip install",
        "licence",
    ):
        assert word in suspects.__doc__, word


def test_committed_figures_are_of_these_worlds_and_scores(suspects, root):
    """A results file older than the recipe would be quoted for what it does not say."""
    result = json.loads((root / "recipes" / "benchmarks" / "results" / "suspects.json").read_text())
    assert [w["world"] for w in result["worlds"]] == [w.name for w in suspects.WORLDS]
    for world in result["worlds"]:
        precision = {n: s["average_precision"] for n, s in world["scores"].items()}
        assert precision[suspects.OURS] > precision["vote entropy"], world["world"]
        for package in suspects.RIVALS:
            best = suspects.best_of(world, package)
            assert precision[suspects.OURS] > precision[best], (world["world"], best)


def test_single_given_class_leaves_a_plain_classifier_nothing_to_tell_apart(suspects, make_args):
    """A naive majority outvotes all others on every item, and logistic regression refuses labels of one class."""
    features = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    votes = suspects.read_votes([[0, 1, 2]] * 20, [[1, 1, 2]] * 20, CLASSES)
    plain = suspects.plain_posteriors(features, votes, make_args())
    assert (plain["logistic"] == [0, 1, 0]).all()
    assert plain["network"].sum(axis=1) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The (copy|inplace) keyword")  # crowd-kit on pandas 3.1
def test_suspicion_finds_wrong_labels_far_better_than_the_entropy_of_the_votes(suspects):
    """The recipe's claim, in a world where copied mistakes make a third of the pluralities wrong."""
    named = {world.name: world for world in suspects.WORLDS}
    found = suspects.run(named["digits, correlated, high, all votes"], seed=0, num_train_epochs=20)
    assert found["base_rate"] > 0.25
    precision = {name: s["average_precision"] for name, s in found["scores"].items()}
    assert precision["suspicion"] > precision["vote entropy"] + 0.3
    assert found["flags"]["suspect"]["precision"] > 0.9
