"""New votes and new annotators for a trained model, without training."""

import copy
import functools
import logging

import pytest
import torch
from datasets import ClassLabel, List
from torch.nn.functional import cross_entropy
from transformers import AutoModel, pipeline, set_seed

from hf_maxmig import (
    CrowdCollator,
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
    align_annotators,
    labelme,
    peer,
    thin_votes,
)
from hf_maxmig.data.collator import crowd_batches
from hf_maxmig.model import updating
from hf_maxmig.model.updating import new_rows, strength_of
from hf_maxmig.model.votes import Votes
from tests.modalities import MODALITIES, TABLE
from tests.networks import small_head
from tests.worlds import ANNOTATORS, CLASSES, items_of, make_crowd

RIGHT = [0.85, 0.7, 0.6, 0.8, 1 / 3]
KNOWN = torch.tensor([True, True, True, False, False])
EVEN = torch.full((3,), 1 / 3).log()


def drawn_world(right=RIGHT, num_items=6000, strength=0.6, missing=0.3, sees=0.8):
    """Draw items of three classes, a calibrated classifier, and annotators of whom three are known.

    The fourth names the next class.

    Args:
        right: how often each annotator says what they see.
        num_items: N.
        strength: of W.
        missing: share of votes that are not cast.
        sees: how often the classifier is right.

    Returns:
        log_h, W with zeros for new annotators, votes, and the (M, C, C) log confusions.
    """
    generator = torch.Generator().manual_seed(0)

    def matrix(share):
        return torch.eye(3) * (share - (1 - share) / 2) + (1 - share) / 2

    def drawn(rows):
        return torch.multinomial(rows, 1, generator=generator)[:, 0]

    truth = torch.randint(3, (num_items,), generator=generator)
    confusion = torch.stack([matrix(share) for share in right])
    confusion[3] = confusion[3].roll(1, dims=1)
    said = torch.stack([drawn(rows[truth]) for rows in confusion], dim=1)
    log_h = matrix(sees)[drawn(matrix(sees)[truth])].log()
    who = torch.arange(len(right)).repeat(num_items, 1)
    absent = torch.rand(who.shape, generator=generator) < missing
    weight = strength * confusion.log()
    weight[3:] = 0.0
    votes = Votes(who.masked_fill(absent, -1), said.masked_fill(absent, -1))
    return log_h, weight, votes, confusion.log()


def centred(weight):
    """Remove what does not change g: a number added to a column."""
    return weight - weight.mean(dim=1, keepdim=True)


def test_new_rows_are_the_confusions_as_strong_as_the_others():
    """At another strength new annotators would count more, or less, than the known ones of the same quality."""
    log_h, weight, votes, log_confusion = drawn_world()
    rows = new_rows(log_h, weight, [votes], KNOWN, EVEN)
    found, expected = centred(rows)[3:], centred(0.6 * log_confusion)[3:]
    assert expected[0].abs().max() > 0.8
    assert (found - expected).abs().max() < 0.12
    # In parts as a whole.
    parts = [votes.rows(slice(0, 2500)), votes.rows(slice(2500, None))]
    torch.testing.assert_close(new_rows(log_h, weight, parts, KNOWN, EVEN), rows)


def test_strength_is_found_whatever_is_added_to_columns():
    """Training moves a column of W as a whole; taken for strength, that would scale all new rows."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(4, 3, 3, generator=generator).log_softmax(dim=2)
    cast = torch.rand(4, 3, generator=generator)
    weight = 1.7 * rows + 5 * torch.rand(4, 1, 3, generator=generator)
    assert strength_of(weight, rows, cast) == pytest.approx(1.7, rel=1e-5)
    assert strength_of(-weight, rows, cast) == 0.0
    assert strength_of(0 * weight, rows, cast) == 1.0
    # An annotator without votes has no say.
    cast[0], weight[0] = 0.0, 100.0
    assert strength_of(weight, rows, cast) == pytest.approx(1.7, rel=1e-5)


def test_new_annotators_are_evidence_about_each_other(monkeypatch):
    """Many new people, mostly on items of their own, would be judged by the classifier alone."""
    log_h, weight, votes, log_confusion = drawn_world([*RIGHT[:3], *[0.8] * 6, *[0.5] * 4], missing=0.7, sees=0.4)  # fmt: skip
    elsewhere = (torch.arange(6000) % 10 > 0)[:, None] & (votes.annotators < 3)
    votes = Votes(votes.annotators.masked_fill(elsewhere, -1), votes.annotations)
    known = torch.arange(13) < 3
    errors = []
    for passes in (1, updating.PASSES):
        monkeypatch.setattr(updating, "PASSES", passes)
        rows = new_rows(log_h, weight, [votes], known, EVEN)
        errors.append(float((centred(rows) - centred(0.6 * log_confusion))[3:].abs().mean()))
    assert errors[1] < 0.15
    assert errors[0] > 1.5 * errors[1]


def test_copies_share_a_vote():
    """Two copies that count in full outvote two others; each must look as good without the other."""
    log_h, weight, votes, log_confusion = drawn_world()
    who, said = (table.clone() for table in votes)
    who[:, 4] = torch.where(who[:, 0] >= 0, 4, -1)  # the last new one copies the first known one
    said[:, 4] = said[:, 0]
    votes = Votes(who, said)
    alone = new_rows(log_h, weight, [votes], KNOWN, EVEN)
    groups = torch.tensor([0, 1, 2, 3, 0])
    shared = new_rows(log_h, weight, [votes], KNOWN, EVEN, groups)
    expected = centred(0.6 * log_confusion)[0] / 2
    assert (centred(shared)[4] - expected).abs().max() < 0.2
    assert centred(alone)[4].diagonal().sum() > 1.3 * centred(shared)[4].diagonal().sum()


# The model


@pytest.fixture(scope="module")
def crowd():
    """Votes by ann, bob, cyd and dee."""
    return make_crowd(200)


@functools.cache
def learned_head():
    """Return a classifier that has learned the items."""
    crowd, head = make_crowd(200), small_head()
    features, labels = (torch.tensor(crowd[name][:]) for name in ("features", "label"))
    optimizer = torch.optim.Adam(head.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        cross_entropy(head(features=features).logits, labels).backward()
        optimizer.step()
    return head


def make(kind=None, annotators=("ann", "bob"), **fields):
    """Return a model that knows ann and bob, with W as equation 2 starts it, and has learned the items."""
    known = list(annotators) if isinstance(annotators, tuple) else annotators
    if kind is None:
        model = MaxMIGModel.from_classifier(
            copy.deepcopy(learned_head()), annotators=known, **fields
        )
    else:
        model = peer(kind, copy.deepcopy(learned_head()), annotators=known)
    if hasattr(model, "aggregator"):
        rows = [(r["annotators"], r["annotations"]) for r in make_crowd(200)]
        votes = [[(m, c) for m, c in zip(*row, strict=True) if m < 2] for row in rows]
        tables = torch.full((2, len(votes), 2), -1)
        for i, of_item in enumerate(votes):
            for k, vote in enumerate(of_item):
                tables[:, i, k] = torch.tensor(vote)
        model.initialize_crowd([Votes(*tables)])
    return model.eval()


@pytest.mark.parametrize("kind", [None, "aggnet"])
def test_update_takes_new_people_and_new_votes_in(kind, crowd, tmp_path):
    """Config, table and saved model must agree, and the votes of new people be heard."""
    model = make(kind)
    classifier = {name: part.clone() for name, part in model.classifier.state_dict().items()}
    assert {*model.update(crowd)} == {*model.config.annotators[2:]} == {"cyd", "dee"}
    assert model.config.num_annotators == 4
    assert model.aggregator.weight.shape == (4, 3, 3)
    for name, part in model.classifier.state_dict().items():
        assert torch.equal(part, classifier[name])
    # cyd is more often right than dee.
    right = centred(model.aggregator.weight.detach()).diagonal(dim1=1, dim2=2).sum(dim=1)
    place = model.config.annotators.index
    assert right[place("cyd")] > 1.3 * right[place("dee")] > 0
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path)
    assert again.config.annotators == model.config.annotators
    assert torch.equal(again.aggregator.weight, model.aggregator.weight)
    answer = pipeline("crowd-forecast", model=again)({"features": [0.0] * 5, "votes": {"cyd": "cat", "eve": "cat"}})  # fmt: skip
    assert answer["heard"] == [("cyd", "cat")]
    order = torch.tensor([3, 1, 0, 2])
    again.reorder_annotators(order)
    assert torch.equal(again.aggregator.weight, model.aggregator.weight[order])


def test_data_set_and_items_of_a_pipeline_say_the_same(crowd):
    """A data set numbers annotators in its own order; taken for the model's, they would get each other's rows."""
    columns, by_name = make(annotators=("bob", "ann")), make(annotators=("bob", "ann"))
    unlabelled = crowd.remove_columns("label")
    assert columns.update(unlabelled, batch_size=7) == by_name.update(items_of(crowd))
    torch.testing.assert_close(columns.aggregator.weight, by_name.aggregator.weight)
    place = columns.config.annotators.index
    right = centred(columns.aggregator.weight.detach()).diagonal(dim1=1, dim2=2).sum(dim=1)
    assert right[place("ann")] > right[place("cyd")] > right[place("dee")]


def test_weight_of_a_vote_counts(crowd):
    """If unsure votes counted in full, few of them would pull a row away from everybody's."""
    weighted, plain = make(), make()
    unsure = crowd.map(lambda row: {"annotation_weights": [0.25 if m == 2 else 1.0 for m in row["annotators"]]})  # fmt: skip
    items = items_of(crowd)
    for row in items:
        row["votes"] = [(who, (said, 0.25) if who == "cyd" else said) for who, said in row["votes"]]
    weighted.update(unsure)
    by_name = make()
    by_name.update(items)
    plain.update(crowd)
    torch.testing.assert_close(by_name.aggregator.weight, weighted.aggregator.weight)
    m = plain.config.annotators.index("cyd")
    assert (weighted.aggregator.weight[m] - plain.aggregator.weight[m]).abs().max() > 0.05


def test_items_without_votes_are_not_classified(crowd):
    """A million items with votes on a thousand must take the time of a thousand."""
    model, seen = make(), []
    model.classifier.register_forward_pre_hook(lambda _, args, named: seen.append(len(named["features"])), with_kwargs=True)  # fmt: skip
    assert sum(not row for row in crowd["annotators"]) == 7
    model.update(crowd, batch_size=50)
    assert sum(seen) == len(crowd) - 7


def test_add_annotator_changes_nobody_else(crowd):
    """A person who joins must not move the others' rows; update would."""
    model, updated = make(), make()
    before = model.aggregator.weight.detach().clone()
    only_cyd = crowd.map(lambda r: {c: [v for m, v in zip(r["annotators"], r[c], strict=True) if m < 3] for c in ("annotators", "annotations")})  # fmt: skip
    model.add_annotator("cyd", only_cyd)
    assert updated.update(only_cyd) == ["cyd"]
    assert model.config.annotators == ["ann", "bob", "cyd"]
    torch.testing.assert_close(model.aggregator.weight[2], updated.aggregator.weight[2])
    assert torch.equal(model.aggregator.weight[:2], before)
    assert not torch.equal(updated.aggregator.weight[:2], before)


def test_somebody_who_has_not_voted_gets_the_mean():
    """With zeros their first votes would not count until the next update."""
    model = make()
    mean = model.aggregator.weight.detach().mean(dim=0)
    model.add_annotator("eve")
    assert mean.abs().max() > 0.1
    torch.testing.assert_close(model.aggregator.weight[2], mean)
    model.aggregator.table.sum().backward()
    assert model.aggregator.table.grad.shape == (3, 3, 3)


def test_annotators_without_names_are_numbered_on():
    """A new person 5 after annotators 0 and 1 would be annotator 2 in the model, and 5 in the data."""
    model = MaxMIGModel.from_classifier(small_head(), num_annotators=2)
    model.add_annotator("2")
    votes = [{"features": [float(i), 0, 0, 0, 0], "votes": {0: "cat", 4: "cat", 3: "dog"}} for i in range(9)]  # fmt: skip
    assert model.update(votes) == ["3", "4"]
    assert (model.config.annotators, model.config.num_annotators) == (None, 5)
    with pytest.raises(ValueError, match="must have the next numbers, '5', for a model .* got '7'"):
        model.add_annotator("7")


def test_model_trains_on_with_new_people(crowd, make_args):
    """A new trainer must have the new parameter in its optimizer."""
    model = make()
    model.update(crowd)
    model.reorder_annotators(torch.tensor([model.config.annotators.index(n) for n in ANNOTATORS]))
    model.config.annotators = ANNOTATORS
    before = model.aggregator.weight.detach().clone()
    MaxMIGTrainer(model=model, args=make_args(init="keep"), train_dataset=crowd).train()
    assert (model.aggregator.weight - before).abs().amax(dim=(1, 2)).min() > 0


def changed(crowd, **columns):
    return [{**row, **columns} for row in items_of(crowd)]


def test_votes_that_contradict_the_model_are_refused(crowd):
    """With the names of two classes exchanged, an update would turn everybody's matrix round, or leave it without effect."""
    model, swapped = make(), dict(zip(CLASSES, ["dog", "emu", "cat"], strict=True))
    before = model.aggregator.weight.detach().clone()
    other = [{**row, "votes": [(who, swapped[said]) for who, said in row["votes"]]} for row in items_of(crowd)]  # fmt: skip
    with pytest.raises(ValueError, match="got votes that contradict it: the classes must be named"):
        model.update(other)
    assert torch.equal(model.aggregator.weight, before)


@pytest.mark.parametrize(
    ("votes", "message"),
    [
        (lambda crowd: changed(crowd, votes={"ann": "cta"}), "must name one of the 3 classes, got 'cta' by 'ann' at item 0 .did you mean 'cat'"),
        (lambda crowd: changed(crowd, votes={"cyd": "cat"}), "must have votes by annotators whom the model knows, got none"),
        (lambda crowd: [], "must have votes by annotators whom the model knows, got none"),
        (lambda crowd: [{"item": 1, "annotator": "ann", "annotation": "cat"}], "got a table of votes: join them by `add_annotations`"),
        (lambda crowd: "votes.csv", "must be items with their votes, .* got str"),
        (lambda crowd: [3], "must be dicts of an item and its votes, got int 3 as item 0"),
        (lambda crowd: [{"votes": {"ann": "cat"}}], "must have an input of the classifier, got nothing at item 0"),
        (lambda crowd: [{"features": [0.0] * 4, "votes": {"ann": "cat"}}], "must be 5 numbers, got the shape .4,. at item 0"),
        (lambda crowd: [{"features": [0.0] * 5, "annotators": [0, 1], "annotations": [0]}], "must be lists of one length, got others at item 0"),
        (lambda crowd: [{"features": [0.0] * 5, "annotators": [0, 7], "annotations": [0, 0]}], "`annotators` must lie in 0..1 .* got 7 at item 0"),
        (lambda crowd: changed(crowd, annotators=["ann"], annotations=[0]), "`annotators` must hold integers, got 'ann' at item 0: give votes with names as `votes`"),
        (lambda crowd: changed(crowd, annotators=[0], annotations=["cat"]), "`annotations` must hold integers, got 'cat' at item 0"),
        (lambda crowd: changed(crowd, annotators=[0.5], annotations=[0]), "`annotators` must hold integers, got 0.5 at item 0"),
        (lambda crowd: changed(crowd, annotators=[0], annotations=[None]), "`annotations` must hold integers, got None at item 0"),
        (lambda crowd: changed(crowd, annotators=[0], annotations=[True]), "`annotations` must hold integers, got True at item 0"),
        (lambda crowd: changed(crowd, annotators=[0], annotations=[float("nan")]), "`annotations` must hold integers, got nan at item 0"),
        (lambda crowd: changed(crowd, annotators="a", annotations="b"), "must be lists of one length"),
        (lambda crowd: changed(crowd, annotators=0, annotations=1), "must be lists of one length"),
        (lambda crowd: changed(crowd, annotators=[0], annotations=[0], annotation_weights=["much"]), "`annotation_weights` must have weights in 0..1, got 'much'"),
        (lambda crowd: changed(crowd, annotators=[0], annotations=[0], annotation_weights=[float("nan")]), "`annotation_weights` must have weights in 0..1, got nan"),
        (lambda crowd: changed(crowd, annotators=[0], annotations=[0], annotation_weights=[3]), "`annotation_weights` must have weights in 0..1, got 3"),
    ],
)  # fmt: skip
def test_what_is_no_vote_is_refused_and_nothing_changes(votes, message, crowd):
    """Half an update would leave config and table of different lengths."""
    model = make()
    before = model.aggregator.weight.detach().clone()
    with pytest.raises((ValueError, TypeError), match=message):
        model.update(votes(crowd))
    assert model.config.annotators == ["ann", "bob"]
    assert torch.equal(model.aggregator.weight, before)


@pytest.mark.parametrize(
    ("name", "voted", "message"),
    [
        ("ann", False, "must be that of a new annotator, got 'ann', whom the model knows: `update`"),
        ("eve", True, "must have a vote by the new annotator, 'eve', got votes by"),
        ("\ud800", False, "must be text that can be written"),
    ],
)  # fmt: skip
def test_name_that_cannot_be_added_is_refused(name, voted, message, crowd):
    """A known name would be in the config twice; a misspelt one would get everybody's matrix."""
    model = make()
    with pytest.raises(ValueError, match=message):
        model.add_annotator(name, crowd if voted else None)
    assert model.config.annotators == ["ann", "bob"]
    with pytest.raises(ValueError, match="must be groups of annotators' names, got 'eve'"):
        model.update(crowd, copies=[["ann", "eve"]])
    assert model.config.annotators == ["ann", "bob"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: make(aggregator="factored"), "must be 'weighted_average' .* got 'factored'"),
        (lambda: make(aggregator="interaction"), "must be 'weighted_average' .* got 'interaction'"),
        (lambda: make("crowd_layer"), "needs? a model that combines votes.* got one of Crowd Layer"),
        (lambda: make("majority_vote"), "needs? a model that combines votes.* got one of Majority"),
    ],
)  # fmt: skip
def test_model_whose_annotators_share_parameters_is_refused_by_name(build, message, crowd):
    """A factored W has no row of its own; a rival's answers do not depend on votes."""
    model = build()
    for call in (lambda: model.update(crowd), lambda: model.add_annotator("eve")):
        with pytest.raises(ValueError, match=message):
            call()
    assert model.config.annotators == ["ann", "bob"]


def test_votes_for_a_class_that_the_training_left_out_are_told(crowd, caplog):
    """Nobody voted for it then, so it has no prior mass: new votes cannot bring it back."""
    model = make()
    model.prior.initialize(torch.ones(3), torch.tensor([True, True, False]))
    with caplog.at_level(logging.WARNING):
        model.update(crowd)
    assert "Nobody had voted for 'emu' in the training" in caplog.text
    assert model.aggregator.weight.isfinite().all()


def test_name_of_a_class_is_matched_not_its_number(crowd):
    """Votes of a data set with classes in another order would all be for other classes."""
    features = crowd.features.copy()
    order = [2, 0, 1]
    features["annotations"].feature = type(features["annotations"].feature)(names=[CLASSES[c] for c in order])  # fmt: skip
    place = {c: order.index(c) for c in range(3)}
    other = crowd.map(lambda r: {"annotations": [place[c] for c in r["annotations"]]}).cast(features)  # fmt: skip
    model, expected = make(), make()
    model.update(other)
    expected.update(crowd)
    torch.testing.assert_close(model.aggregator.weight, expected.aggregator.weight)


@pytest.mark.parametrize("modality", [*MODALITIES, TABLE], ids=repr)
def test_items_of_every_modality_are_read_by_their_processor(modality):
    """Users keep pictures, texts, sounds and rows in their data, not the classifier's inputs."""
    model, processor, crowd = modality.model(), modality.processor(), modality.crowd(30)
    features = crowd.features.copy()
    features["annotators"] = List(ClassLabel(names=[*ANNOTATORS[:3], "eve"]))
    model.aggregator.table.data.copy_(2 * torch.eye(3))
    before = model.aggregator.weight.detach().clone()
    assert model.update(crowd.cast(features), processor=processor, batch_size=8) == ["eve"]
    assert model.config.annotators == [*ANNOTATORS, "eve"]
    assert (model.aggregator.weight[:3] - before[:3]).abs().amax(dim=(1, 2)).min() > 0
    assert torch.equal(model.aggregator.weight[3], before[3])
    assert model.aggregator.weight[4].abs().max() > 0


@pytest.mark.slow
@pytest.mark.full  # six trainings, whose own accuracies differ by a point from seed to seed
@pytest.mark.timeout(1200)
def test_ten_of_labelmes_workers_join_without_training(shared_data, tmp_path):
    """The forecaster with ten workers added afterwards must be as good as one that was trained with them."""
    train = labelme(shared_data / "labelme")["train"]
    features = torch.tensor(train.with_format("numpy")["features"][:])
    gold = torch.tensor(train["label"][:])
    names = dict(enumerate(train.features["label"].names))

    def trained(dataset, seed):
        set_seed(seed)
        head = HeadClassifier(HeadConfig(input_size=features.shape[1], id2label=names))
        args = MaxMIGTrainingArguments(
            str(tmp_path / "out"), report_to="none", use_cpu=True, save_strategy="no", disable_tqdm=True, seed=seed,
        )  # fmt: skip
        trainer = MaxMIGTrainer(model=head, args=args, train_dataset=dataset)
        trainer.train()
        return trainer.crowd_model.eval()

    def accuracy(model):
        dataset = align_annotators(train, model.config.annotators)
        (votes,) = crowd_batches(dataset, CrowdCollator(model.config.num_annotators, len(names)))
        with torch.no_grad():
            output = model(features=features, **votes.as_batch())
        return float((output.forecast_logits.argmax(dim=1) == gold).float().mean())

    accuracies = []
    for seed in range(3):
        model = trained(thin_votes(train, annotators=49, seed=seed), seed)
        assert model.config.num_annotators == 49
        assert len(model.update(train)) == 10
        accuracies.append((accuracy(model), accuracy(trained(train, seed))))
    updated, anew = torch.tensor(accuracies).mean(dim=0)
    assert updated >= anew - 0.005, accuracies
