"""Asking, measured by hiding votes: what is hidden, what each strategy buys, and what the page shows."""

import json
import sys

import numpy as np
import pytest
import torch

from tests.recipes.imported import recipes

GOOD, GUESSER, COPY = 0, 1, 2
N, NEW, M, C = 24, 7, 3, 4


@pytest.fixture(scope="module")
def asking():
    with recipes() as load:
        yield load("asking")


@pytest.fixture(scope="module")
def crowd(asking):
    """Return items whose features tell the class, with somebody good, a guesser and a copy of the former."""
    rng = np.random.default_rng(0)
    gold = np.arange(N + NEW) % C
    said = np.stack([gold[:N], rng.integers(C, size=N), gold[:N]], axis=1)
    votes = asking.crowds.Crowd(
        item=np.repeat(np.arange(N), M), annotator=np.tile(np.arange(M), N), annotation=said.ravel(), gold=gold[:N],
        annotators=["good", "guesser", "copy"], classes=list("abcd"), items=[str(i) for i in range(N)],
    )  # fmt: skip
    features = torch.eye(C)[gold] + 0.1 * torch.randn(
        N + NEW, C, generator=torch.Generator().manual_seed(0)
    )
    return asking.Crowd(features, votes, gold[N:])


@pytest.fixture
def learned(asking, crowd):
    """Return what a training could have found: the guesser has voted on every item, and counts nothing."""
    known = crowd.votes.annotator == GUESSER
    some = np.arange(N) % 4 == 0  # the good one has voted on these
    known |= (crowd.votes.annotator == GOOD) & some[crowd.votes.item]
    noise = torch.randn(N, C, generator=torch.Generator().manual_seed(1))
    log_h = (2 * torch.eye(C)[crowd.votes.gold] + 0.3 * noise).log_softmax(dim=1)
    weight = torch.zeros(M, C, C)
    weight[GOOD] = weight[COPY] = torch.eye(C)
    return asking.Learned(
        known, log_h.clone(), log_h, weight, torch.tensor([GOOD, GUESSER, GOOD]), 0.5, 0.5
    )


@pytest.mark.parametrize(("per_item", "items"), [(0.5, N // 2), (1, N), (2, N)])
def test_start_knows_as_many_votes_of_as_many_items(asking, crowd, per_item, items):
    """A start with other numbers of votes would hide more or fewer than the page says."""
    known = asking.first_votes(crowd.votes, per_item, seed=3)
    of_items = np.bincount(crowd.votes.item[known], minlength=N)
    assert (of_items > 0).sum() == items
    assert set(of_items[of_items > 0]) == {max(1, per_item)}
    assert np.array_equal(known, asking.first_votes(crowd.votes, per_item, seed=3))
    assert not np.array_equal(known, asking.first_votes(crowd.votes, per_item, seed=4))


@pytest.mark.parametrize(
    "name",
    ["random", "vote_entropy", "least_agreement", "active_lab", "max_mig", "max_mig_accuracy"],
)
def test_every_strategy_buys_hidden_votes_once_and_spends_the_budget(asking, crowd, learned, name):
    """A vote that was bought twice, or was known before, would make a strategy look thrifty."""
    if name == "active_lab":
        pytest.importorskip("cleanlab")
    assert name in asking.STRATEGIES
    hidden = (~learned.known).nonzero()[0]
    for budget in (1, 11, len(hidden)):
        before = learned.known.copy()
        chosen = asking.STRATEGIES[name](
            crowd, learned.known, learned, budget, np.random.default_rng(0)
        )
        assert len(chosen) == budget
        assert len(set(chosen.tolist())) == budget
        assert set(chosen.tolist()) <= set(hidden.tolist())
        assert np.array_equal(learned.known, before)


def test_items_are_chosen_by_their_votes_and_each_once_before_one_comes_again(asking, crowd):
    """A strategy that spent the budget on one item would be no rival."""
    votes = crowd.votes
    # Item 0 has two unlike votes, item 1 two like ones, and the others one or none.
    known = np.zeros(len(votes.item), dtype=bool)
    known[[0, 1, 3, 4, 6]] = True
    said = votes.annotation.copy()
    said[:5] = [0, 1, 0, 2, 2]
    unlike = crowd._replace(votes=votes._replace(annotation=said))
    for name in ("vote_entropy", "least_agreement"):
        buy = asking.STRATEGIES[name]
        chosen = buy(unlike, known, None, N, np.random.default_rng(0))
        items = votes.item[chosen]
        assert sorted(items) == list(range(N))
        assert set(items[: N - 3]) == set(range(3, N))  # those without votes
        assert items[N - 3] == 0
        assert set(items[N - 2 :]) == {1, 2}


def test_forecasts_are_updated_by_what_was_bought_since_and_copies_count_once(
    asking, crowd, learned
):
    """Compares with a loop: each group adds one column per item, and none where it had voted before."""
    known = learned.known.copy()
    bought = [i * M + m for i in (0, 1, 2) for m in (GOOD, COPY) if not known[i * M + m]]
    assert len(bought) == 5  # on item 0 only the copy's is new
    known[bought] = True
    log_forecast, log_rows = asking.updated(crowd, known, learned)
    expected = learned.log_forecast.clone()
    for i in (1, 2):
        expected[i] += log_rows[GOOD][:, crowd.votes.annotation[i * M + GOOD]]
    torch.testing.assert_close(log_forecast, expected.log_softmax(dim=1))
    assert not torch.allclose(log_forecast[1], learned.log_forecast[1])
    assert torch.allclose(log_rows.exp().sum(dim=2), torch.ones(M, C))


def test_max_mig_asks_those_who_know_and_no_copy_of_somebody_who_was_asked(asking, crowd, learned):
    """The score is worth its name only if it prefers an annotator who tells classes apart."""
    known = crowd.votes.item < N // 2  # to learn from
    learned = learned._replace(known=known)
    chosen = asking.max_mig(crowd, known, learned, 12, np.random.default_rng(0))
    assert set(crowd.votes.annotator[chosen]) <= {GOOD, COPY}
    assert len(set(crowd.votes.item[chosen])) == 12


@pytest.mark.slow
def test_buying_measures_at_the_shares_it_says(asking, crowd):
    """The curve's points are what the table interpolates between."""
    known = asking.first_votes(crowd.votes, 1, seed=0)
    first = asking.learn(crowd, known, seed=0, steps=3)
    assert first.log_forecast.shape == (N, C)
    assert 0 <= first.classifier <= 1
    curve = asking.buy("random", crowd, first, seed=0, steps=3)["curve"]
    assert [bought for bought, *_ in curve] == [0, *(round(s * 48) for s in asking.TRAINED_AT)]
    assert curve[0][1:] == (first.forecaster, first.classifier)
    assert np.array_equal(first.known, known)


@pytest.mark.slow
def test_expected_accuracy_is_that_of_the_forecasts_and_the_answers(asking, crowd, learned):
    """The page compares it with what then came; a number of something else would look like a wrong promise."""
    known = learned.known
    zeta = asking.best_questions(crowd, known, learned, 0)[0].exp()
    assert asking.foreseen(crowd, known, learned, 0) == pytest.approx(
        float(zeta.amax(dim=1).mean())
    )
    more = [asking.foreseen(crowd, known, learned, budget) for budget in (0, 5, 20)]
    assert more == sorted(more)
    assert more[0] < more[-1] <= 1
    first = asking.learn(crowd, asking.first_votes(crowd.votes, 1, seed=0), seed=0, steps=3)
    bought = asking.buy("max_mig", crowd, first, seed=0, steps=3)
    assert len(bought["foreseen"]) == len(bought["curve"])
    assert bought["foreseen"][0] == pytest.approx(
        float(first.log_forecast.exp().amax(dim=1).mean())
    )


def cells(asking):
    """Return results as the recipe writes them: of random choice, and of one that needs a third."""
    bought = [0, 10, 30, 50, 70, 90]
    random, quick = [0.5, 0.55, 0.6, 0.65, 0.7, 0.8], [0.5, 0.6, 0.8, 0.8, 0.9, 0.9]
    return [
        {
            "world": "labelme", "strategy": strategy, "seed": seed, "known": 5, "hidden": 100,
            "curve": [[b, a + 0.01 * seed, a / 2] for b, a in zip(bought, accuracy, strict=True)],
        }
        for strategy, accuracy in (("random", random), ("max_mig", quick))
        for seed in (0, 1)
    ]  # fmt: skip


def test_votes_needed_are_read_off_the_mean_curve(asking):
    """Three places to be wrong: before the first point, between two, and never."""
    bought, accuracy = np.array([0.0, 0.2, 0.6]), np.array([0.5, 0.7, 0.6])
    assert asking.needed(bought, accuracy, 0.4) == 0
    assert asking.needed(bought, accuracy, 0.6) == pytest.approx(0.1)
    assert asking.needed(bought, accuracy, 0.9) == 1
    found = cells(asking)
    assert asking.needed_of(found, "labelme", "random") == (pytest.approx(0.9), pytest.approx(0))
    assert asking.needed_of(found, "labelme", "max_mig")[0] == pytest.approx(0.3)
    unlike = [
        one | {"curve": [[b, 0.9 * f if one["seed"] and one["strategy"] == "max_mig" else f, c] for b, f, c in one["curve"]]}
        for one in found
    ]  # fmt: skip
    value, error = asking.needed_of(unlike, "labelme", "max_mig")
    assert value > 0.3
    assert error > 0.01


def test_tables_have_each_number_in_its_column(asking):
    """A number under another heading would reverse the conclusion."""
    header, _, line = (
        [part.strip() for part in row.split("|")[1:-1]]
        for row in asking.table_needed(cells(asking)).splitlines()
    )
    assert header == ["world", "seeds", "accuracy to reach", "random", "Max-MIG"]
    assert line == ["LabelMe", "2", "80.5", "90 ± 0", "30 ± 0"]
    rows = asking.table_accuracies(cells(asking), 2).splitlines()
    assert [part.strip() for part in rows[3].split("|")[1:-1]] == [
        "LabelMe, 30 % bought", "30.0", "40.0",
    ]  # fmt: skip


def test_expected_and_measured_accuracy_stand_side_by_side(asking):
    """Exchanged, a model that promises too much would look modest."""
    found = [one | {"foreseen": [0.9] * 6} if one["strategy"] == "max_mig" else one for one in cells(asking)]  # fmt: skip
    header, _, line = (
        [part.strip() for part in row.split("|")[1:-1]]
        for row in asking.table_foreseen(found).splitlines()
    )
    assert header == ["world", "0 %", "10 %", "30 %", "50 %", "70 %", "90 %"]
    assert line[:3] == ["LabelMe", "90.0 / 50.5", "90.0 / 60.5"]


def test_page_shows_the_committed_results(asking):
    """A table typed by hand drifts away from the measurements."""
    found = json.loads(asking.RESULTS.read_text(encoding="utf-8"))["cells"]
    page = asking.PAGE.read_text(encoding="utf-8")
    assert len(found) > 9
    for table in (
        asking.table_needed(found), asking.table_accuracies(found, 1), asking.table_accuracies(found, 2),
        asking.table_foreseen(found),
    ):  # fmt: skip
        assert table in page
    assert asking.PICTURE.exists()


@pytest.mark.slow
def test_picture_is_the_same_each_time(asking, tmp_path):
    """A committed picture may change only when the results do."""
    pytest.importorskip("matplotlib")
    found = cells(asking)
    for name, some in (("a", found), ("b", found), ("c", found[:2])):
        asking.picture(some, tmp_path / f"{name}.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "c.png").read_bytes()


@pytest.mark.slow
def test_recipe_measures_what_is_missing_and_leaves_out_what_is_not_there(
    asking, crowd, monkeypatch, capsys, tmp_path
):
    """A run that was stopped goes on, and a world without data stops no other."""

    def typed(*flags):
        monkeypatch.setattr(sys, "argv", ["asking.py", "--output_dir", str(tmp_path), *flags])
        asking.main()
        return capsys.readouterr().out

    monkeypatch.setattr(asking, "read", lambda world, places, seed: crowd)
    monkeypatch.setattr(asking, "hush", lambda: None)
    monkeypatch.setattr(asking, "TRAINED_AT", (0.5, 0.9))
    flags = [
        "--worlds",
        "labelme",
        "digits_copies",
        "--strategies",
        "random",
        "max_mig",
        "--steps",
        "1",
    ]
    printed = typed(*flags)
    assert "labelme is left out" in printed
    assert "Digits, half copy" in printed
    files = sorted(tmp_path.glob("*/*.json"))
    assert [f"{file.parent.name}/{file.stem}" for file in files] == [
        "digits_copies/max_mig-seed0", "digits_copies/random-seed0",
    ]  # fmt: skip
    files[0].unlink()
    monkeypatch.setattr(asking, "at_random", None)  # what is there is not measured again
    assert typed(*flags).count("forecaster") == 1
    typed("--collect", str(tmp_path / "all.json"))
    assert len(json.loads((tmp_path / "all.json").read_text())["cells"]) == 2
