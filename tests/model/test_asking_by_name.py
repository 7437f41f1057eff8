"""A saved model asks as its trainer does, about items as users have them."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModel

from hf_maxmig import CrowdCollator, CrowdTrainer, MaxMIGModel, MaxMIGTrainer, peer
from hf_maxmig.data.collator import crowd_batches
from hf_maxmig.model.votes import Votes
from tests.modalities import MODALITIES, TABLE
from tests.networks import small_head
from tests.worlds import ANNOTATORS, CLASSES, items_of, make_crowd


@pytest.fixture(scope="module")
def crowd():
    return make_crowd(150, seed=1, unlabelled=30)


def make(crowd, kind=None, annotators=ANNOTATORS, **fields):
    """Return a model that has learned the items, unsure, and the first annotators by equation 2."""
    head = small_head()
    features, labels = (torch.tensor(crowd[name][:]) for name in ("features", "label"))
    optimizer = torch.optim.Adam(head.parameters(), lr=0.02)
    for _ in range(10):
        optimizer.zero_grad()
        cross_entropy(head(features=features).logits, labels).backward()
        optimizer.step()
    if kind is None:
        model = MaxMIGModel.from_classifier(head, annotators=annotators, **fields)
    else:
        model = peer(kind, head, annotators=annotators)
    if hasattr(model, "aggregator"):
        votes = crowd_batches(crowd, CrowdCollator(4, 3))
        model.initialize_crowd([Votes(torch.where(who < len(annotators), who, -1), said) for who, said in votes])  # fmt: skip
    return model.eval()


def pairs_of(asked):
    return [(one["item"], one["annotator"]) for one in asked]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [(None, {}), (None, {"aggregator": "factored"}), ("aggnet", {}), ("majority_vote", {})],
    ids=str,
)
def test_saved_model_asks_as_a_trainer(kind, fields, crowd, make_args, tmp_path):
    """Two answers to one question would send people to one item by one door and to another by the other."""
    model = make(crowd, kind, **fields)
    assert hasattr(model, "aggregator") == (kind != "majority_vote")
    trainer = (MaxMIGTrainer if kind is None else CrowdTrainer)(model=model, args=make_args())
    limits = {
        "most_per_annotator": 9,
        "annotators": ["zoe", *ANNOTATORS[:3]],
        "costs": {"ann": 1.5, "bob": 1.0, "cyd": 0.8, "zoe": 0.7},
    }
    copies = trainer._crowd(crowd, trainer.predict(crowd)).groups
    assert copies.tolist() == [0, 1, 2, 3]
    model.save_pretrained(tmp_path)
    saved = AutoModel.from_pretrained(tmp_path)
    for gain in ("information", "accuracy"):
        expected = trainer.ask(crowd, 25, gain, **limits).remove_columns("reason")
        asked = saved.ask(crowd, 25, gain=gain, **limits, batch_size=7)
        assert len(asked) > 12
        assert pairs_of(asked) == pairs_of(expected)
        gains = [one["expected_gain"] for one in asked]
        assert gains == pytest.approx(expected["expected_gain"][:], abs=1e-5)
    assert {"zoe", "ann"} <= {one["annotator"] for one in asked}


def test_items_as_a_pipeline_takes_them(crowd):
    """Items without votes are worth asking about most: left out, they would never be labelled."""
    model = make(crowd)
    model.train()
    asked = model.ask(items_of(crowd), 20)
    assert model.training
    assert pairs_of(asked) == pairs_of(model.ask(crowd, 20))
    assert sum(not crowd[i]["annotators"] for i, _ in pairs_of(asked)) > 5
    for item, who in pairs_of(asked):
        assert ANNOTATORS.index(who) not in crowd[item]["annotators"]
    alone = [torch.tensor(row["features"]) for row in crowd]  # by W it is known who is good
    dense = [{**row, "annotations": [dict(zip(row["annotators"], row["annotations"], strict=True)).get(m, -1) for m in range(4)]} for row in crowd]  # fmt: skip
    for row in dense:
        del row["annotators"]
    assert pairs_of(model.ask(dense, 20)) == pairs_of(asked)
    bare = model.ask(iter(alone), 9)
    assert pairs_of(bare) == pairs_of(model.ask(crowd.select_columns("features"), 9))
    assert "dee" not in {one["annotator"] for one in bare}
    assert model.ask([], 9) == []


def test_annotators_without_names_go_by_number(crowd):
    """Taken for somebody new, annotator 0 would be an average one."""
    model = MaxMIGModel.from_classifier(small_head(), num_annotators=2)
    model.aggregator.table.data.copy_(torch.stack([3 * torch.eye(3), torch.zeros(3, 3)]))
    asked = model.ask([{"features": [0.0] * 5, "votes": {1: "cat"}}], 2, annotators=[0, 7])
    assert pairs_of(asked) == [(0, "0"), (0, "7")]


def test_votes_of_people_whom_the_model_does_not_know_count(crowd):
    """Otherwise they are asked again, and items that they have settled look open."""
    model = make(crowd, annotators=ANNOTATORS[:2])
    asked = model.ask(crowd, 400)
    known = {(i, ANNOTATORS[m]) for i, row in enumerate(crowd["annotators"]) for m in row}
    assert not known & {*pairs_of(asked)}
    best = {who: model.ask(crowd, 1, annotators=[who])[0]["expected_gain"] for who in ANNOTATORS}
    assert best["cyd"] > 2 * best["dee"]  # who answers at random
    # An answer tells less where cyd has voted.
    items = items_of(crowd)
    unsure = next(one["item"] for one in asked if one["annotator"] == "ann" and not items[one["item"]]["votes"])  # fmt: skip
    before = next(one["expected_gain"] for one in asked if one["item"] == unsure)
    likely = model(features=torch.tensor([crowd[unsure]["features"]])).log_h.argmax()
    items[unsure]["votes"] = {"cyd": CLASSES[likely]}
    after = [one for one in model.ask(items, 400, annotators=["ann"]) if one["item"] == unsure]
    assert not after or after[0]["expected_gain"] < 0.9 * before
    assert model.config.annotators == ANNOTATORS[:2]


def test_copies_are_asked_once(crowd):
    """A copy would be paid for an answer that is known."""
    model = make(crowd)
    ours = {"annotators": ["ann", "bob"]}
    twice = pairs_of(model.ask(crowd, 400, **ours))
    once = pairs_of(model.ask(crowd, 400, **ours, copies=[["ann", "bob"]]))
    assert len({i for i, _ in twice}) < len(twice)
    assert len({i for i, _ in once}) == len(once) > 9
    voted = {i for i, row in enumerate(crowd["annotators"]) if {*row} & {0, 1}}
    assert not voted & {i for i, _ in once}


@pytest.mark.parametrize("modality", [*MODALITIES, TABLE], ids=repr)
def test_items_of_every_modality_are_read_by_their_processor(modality):
    """Users keep pictures, texts, sounds and rows in their data, not the classifier's inputs."""
    model, processor, crowd = modality.model(), modality.processor(), modality.crowd(12)
    model.aggregator.table.data.copy_(2 * torch.eye(3))
    asked = model.ask(crowd, 9, annotators=["zoe", *ANNOTATORS], processor=processor, batch_size=5)
    assert 0 < len(asked) <= 9


@pytest.mark.parametrize(
    ("items", "limits", "message"),
    [
        ("votes.csv", {}, "`items` must be items with their votes, .* got str"),
        ([3], {}, "an item must be a dict with `features`, .* got int 3 as item 0"),
        ([{"item": 1, "annotator": "ann", "annotation": "cat"}], {}, "`items` must be items with their votes, got a table of votes"),
        ([{"features": [0.0] * 5, "votes": {"ann": "cta"}}], {}, "must name one of the 3 classes, got 'cta' by 'ann' at item 0"),
        ([{"features": [0.0] * 4}], {}, "must be 5 numbers, got the shape .4,. at item 0"),
        ([{"features": [0.0] * 5, "annotations": [0, 1]}], {}, "`annotations` without `annotators` must have one place per annotator, M = 4, got 2 at item 0"),
        (None, {"copies": [["ann", "eve"]]}, "`copies` must be groups of annotators' names, got 'eve'"),
        (None, {"annotators": "ann"}, "`annotators` must be a list of names, got 'ann'"),
        (None, {"annotators": ["ann", "ann"]}, "`annotators` must be unique names, got 'ann' more than once"),
        (None, {"costs": {"ann": 1.0}}, "got none for 'bob', 'cyd', 'dee'.$"),
        (None, {"costs": [1.0]}, "`costs` must be a mapping from names to numbers, got list"),
        (None, {"costs": dict.fromkeys(ANNOTATORS, "1")}, "`costs.'ann'.` must be a number, got str '1'"),
        (None, {"gain": "money"}, "`gain` must be one of information, accuracy, got 'money'"),
        (None, {"most_per_item": 0}, "`most_per_item` must be 1 or more, got 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(items, limits, message, crowd):
    """A misspelt class would be no vote, and a limit of zero no limit."""
    model = MaxMIGModel.from_classifier(small_head(), annotators=ANNOTATORS)
    items = items_of(crowd)[:5] if items is None else items
    with pytest.raises((ValueError, TypeError), match=message):
        model.ask(items, 3, **limits)


def test_limits_are_checked_before_items_are_read(crowd):
    """A million pictures would be opened for an error about the budget."""
    model = MaxMIGModel.from_classifier(small_head(), annotators=ANNOTATORS)
    read = iter(items_of(crowd))
    with pytest.raises(ValueError, match="`budget` must be finite and not negative, got -1"):
        model.ask(read, -1)
    assert len([*read]) == len(crowd)
