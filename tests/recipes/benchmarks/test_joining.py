"""The recipe that measures an update beside training anew."""

import json

import pytest

from tests.recipes.imported import recipes


@pytest.fixture(scope="module")
def recipe():
    with recipes() as load:
        yield load("joining")


@pytest.fixture(scope="module")
def world(recipe, tmp_path_factory):
    return recipe.worlds.sixty_seconds(recipe.worlds.Places(str(tmp_path_factory.mktemp("world"))), 0)  # fmt: skip


def test_what_comes_later_is_taken_away(recipe, world):
    """A model that had seen the later votes would be as good before as after."""
    people = recipe.fewer(world.train, "people", 1, seed=0)
    assert people.features["annotators"].feature.num_classes == 2
    assert {len(said) for said in people["annotations"]} == {2}
    votes = recipe.fewer(world.train, "votes", 1, seed=0)
    assert {len(said) for said in votes["annotations"]} == {1}
    assert {len(said) for said in world.train["annotations"]} == {3}


def test_states_of_a_model_are_measured_on_all_votes(recipe, world, monkeypatch):
    """A model that is measured before it is updated twice, or on the votes that it knows, would look the same."""
    trained, asked = [], []

    def untrained(world, train, seed):
        names = train.features["annotators"].feature.names
        trained.append(len(names))
        classifier = world.new_classifier(train.features["annotations"].feature.names)
        for parameter in classifier.parameters():  # a random one may contradict the votes
            parameter.detach().zero_()
        model = recipe.MaxMIGModel.from_classifier(classifier, annotators=names).eval()
        votes = list(recipe.crowd_batches(train, recipe.CrowdCollator(len(names), 2)))
        model.initialize_crowd(votes)
        return model

    def spy(model, train):
        asked.append((model.config.num_annotators, sum(map(len, train["annotations"]))))
        return {"aggregator": 0.5, "forecast": len(asked) / 10}

    monkeypatch.setattr(recipe, "trained", untrained)
    monkeypatch.setattr(recipe, "accuracies", spy)
    found = dict(recipe.measure(world, 0, 1))
    assert trained == [3, 2, 3]
    # anew; people: before, with the mean matrix, updated; votes: before, updated
    assert asked == [(3, 600), (2, 600), (3, 600), (3, 600), (3, 600), (3, 600)]
    people = found["people"]
    assert [people[f"{state}_forecast"] for state in ("anew", "before", "mean", "updated")] == [0.1, 0.2, 0.3, 0.4]  # fmt: skip
    assert (people["new_people"], found["votes"]["new_people"]) == (1, 0)
    assert found["votes"]["mean_forecast"] is None


def test_accuracy_is_that_of_items_with_votes(recipe, world):
    """Items without votes have no aggregator's answer but the prior."""
    names = world.train.features["annotators"].feature.names
    classifier = world.new_classifier(["cat", "dog"])
    model = recipe.MaxMIGModel.from_classifier(classifier, annotators=names).eval()
    model.initialize_crowd(list(recipe.crowd_batches(world.train, recipe.CrowdCollator(3, 2))))
    whole = recipe.accuracies(model, world.train)
    assert 0.8 < whole["aggregator"] < 1
    silent = world.train.map(lambda row, i: {c: row[c] if i % 2 else [] for c in recipe.worlds.CROWD}, with_indices=True)  # fmt: skip
    half = recipe.accuracies(model, silent)
    alone = recipe.accuracies(model, world.train.select(range(1, 200, 2)))
    assert half == pytest.approx(alone)


def test_table_shows_each_state(recipe):
    """A state that was not measured, as the mean matrix where nobody is new, has no line."""
    figures = {f"{s}_{k}": 0.5 for s in recipe.STATES for k in ("aggregator", "forecast")}
    runs = [
        {"world": "here", "case": case, "seed": 0, "new_people": people, **figures, **none}
        for case, people, none in (("votes", 0, {"mean_aggregator": None, "mean_forecast": None}), ("people", 1, {}))
    ]  # fmt: skip
    lines = recipe.table(recipe.by_kind(runs, recipe.KIND)).splitlines()[2:]
    assert len(lines) == 7
    assert sum("here: 1 person joins" in line for line in lines) == 4
    assert sum("mean matrix" in line for line in lines) == 1


def test_page_has_the_committed_results(recipe):
    """A table typed by hand drifts away from the measurements; ten who join must lose half a point at most on LabelMe."""
    rows = json.loads(recipe.RESULTS.read_text(encoding="utf-8"))["rows"]
    page = recipe.PAGE.read_text(encoding="utf-8")
    assert f"<!-- joining -->\n{recipe.table(rows)}\n<!-- end joining -->" in page
    (mean,) = [r["mean"] for r in rows if (r["world"], r["case"]) == ("labelme", "people")]
    assert mean["new_people"] == 10
    assert mean["updated_forecast"] >= mean["anew_forecast"] - 0.005


def test_wrong_arguments_are_refused(recipe):
    """A run of no seeds, or without people, would write an empty file."""
    with pytest.raises(ValueError, match="`people` must be at least 1, got 0"):
        recipe.Arguments("out", people=0)
    with pytest.raises(ValueError, match="`worlds` must be of .*labelme.*, got labelmi"):
        recipe.Arguments("out", worlds=["labelmi"])
