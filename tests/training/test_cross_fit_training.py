"""The trainer's default start: the classifier learns the class that cross-fitted networks and votes give each item."""

import copy
import dataclasses
import math
import re

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers.utils import logging

import hf_maxmig.training.cross_fit
import hf_maxmig.training.item_features
import hf_maxmig.training.known_items
import hf_maxmig.training.maxmig_trainer
import hf_maxmig.training.starting
import hf_maxmig.training.trainer
from hf_maxmig import (
    CrowdTrainer,
    FourLayerCNN,
    FourLayerCNNConfig,
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
    add_annotations,
)
from hf_maxmig.model.functional import NO_MASS, forecast
from hf_maxmig.model.whole_files import read_manifest
from hf_maxmig.peers import peer
from hf_maxmig.training.cross_fit import CrossFitted
from hf_maxmig.training.cross_fit import cross_fit as find_items
from tests.networks import small_vit
from tests.weights import equal, state
from tests.worlds import ANNOTATORS, by_hand, make_crowd


@pytest.fixture
def cross_fit(make_model, make_args, crowd):
    """Build a trainer with default settings."""

    def build(dataset=crowd, model=None, **changes):
        settings = {"init": None, "search_rate": True, "num_train_epochs": 1, **changes}
        start_from = settings.pop("start_from", None)
        return MaxMIGTrainer(
            model=make_model() if model is None else model, args=make_args(**settings),
            train_dataset=dataset, start_from=start_from,
        )  # fmt: skip

    return build


@pytest.fixture
def warned(caplog):
    logging.get_logger("hf_maxmig").propagate = True
    with caplog.at_level("WARNING"):
        yield lambda: [r.getMessage() for r in caplog.records if r.name.startswith("hf_maxmig.")]


def same_start(first, second):
    pairs = [
        (getattr(first, f.name), getattr(second, f.name)) for f in dataclasses.fields(CrossFitted)
    ]
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def changed(**fields):
    """Return a `cross_fit` with some of its results replaced."""

    def find(*args, **kwargs):
        return dataclasses.replace(find_items(*args, **kwargs), **fields)

    return find


# Which trainings use this start


def test_training_starts_so_by_default(cross_fit, make_model, brief):
    """Most users get this start, from a whole model or from a classifier that the trainer wraps."""
    assert cross_fit().init == "cross_fit"
    trainer = cross_fit(model=make_model().classifier)
    assert trainer.init == trainer.listed_arguments()["init"] == "cross_fit"
    trainer.train()
    found, model = trainer.start.items, trainer.crowd_model
    assert torch.equal(model.aggregator.weight, found.weight)
    assert model.aggregator.table.requires_grad  # a later training may train W too
    torch.testing.assert_close(model.log_prior(), found.log_p)
    logged = set().union(*trainer.state.log_history)
    assert set(found.likelihoods) <= logged
    assert "aggregator_learning_rate" not in logged


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"init": "vote_share"}, "vote_share"),
        ({"init": "information"}, "information"),
        ({"search_rate": False}, "information"),
        ({"aggregator_learning_rate": 0.1}, "information"),
        ({"start_from": 40}, "vote_share"),
    ],
)
def test_what_is_set_by_hand_starts_otherwise(changes, expected, cross_fit):
    """A user who gives W a learning rate wants it to be trained."""
    assert cross_fit(**changes).init == expected


@pytest.mark.parametrize(
    "fields", [{"divergence": "pearson"}, {"aggregator": "factored"}, {"prior": "learned"}]
)
def test_another_model_starts_otherwise(fields, cross_fit, make_model):
    """The start was derived for KL and one matrix per annotator."""
    assert cross_fit(model=make_model(**fields)).init == "information"


def test_stream_starts_otherwise(crowd, make_model, make_args):
    """The items of a stream cannot be read a second time."""
    args = make_args(init=None, search_rate=True, max_steps=2)
    stream = crowd.to_iterable_dataset()
    assert MaxMIGTrainer(model=make_model(), args=args, train_dataset=stream).init == "vote_share"


def test_classifier_from_scratch_starts_otherwise_and_a_pretrained_one_so(
    pictures, pretrained, make_args
):
    """Networks learn nothing on random features, but do on those of a pretrained classifier."""
    settings = {"args": make_args(init=None, search_rate=True), "train_dataset": pictures}
    scratch = FourLayerCNN(FourLayerCNNConfig(image_size=16, num_labels=3))
    assert MaxMIGTrainer(model=scratch, **settings).init == "information"
    assert MaxMIGTrainer(model=small_vit(), **settings).init == "information"
    assert MaxMIGTrainer(model=pretrained, **settings).init == "cross_fit"


def read_in_one_row(layer):
    """Make the output layer read the tokens of all items as one row."""
    layer.register_forward_pre_hook(
        lambda _, given: torch.stack([given[0], -given[0]], 1).flatten(0, 1)
    )
    layer.register_forward_hook(lambda _, given, scores: scores.view(-1, 2, 3).mean(dim=1))


class Drawing:
    """A collator that draws at random, as augmentation does."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, examples):
        torch.rand(1)
        return self.collate(examples)


@pytest.fixture
def pictures(crowd):
    values = np.random.default_rng(0).normal(size=(len(crowd), 3, 16, 16)).astype("float32")
    return crowd.remove_columns("features").add_column("pixel_values", values.tolist())


@pytest.fixture
def pretrained(tmp_path):
    """A picture network that was loaded from disk."""
    torch.manual_seed(0)
    small_vit().save_pretrained(tmp_path / "vit")
    return type(small_vit()).from_pretrained(tmp_path / "vit")


def test_output_layer_that_reads_no_vector_an_item_starts_otherwise(
    pictures, pretrained, make_args, monkeypatch
):
    """This is checked once, before training. A user who asked for this start must get an error."""
    read_in_one_row(pretrained.classifier)
    asked, look = [], hf_maxmig.training.starting.reads_items
    monkeypatch.setattr(
        hf_maxmig.training.starting, "reads_items", lambda *a: asked.append(a) or look(*a)
    )
    args = make_args(init=None, search_rate=True)
    trainer = MaxMIGTrainer(model=pretrained, args=args, train_dataset=pictures)
    trainer.data_collator = Drawing(trainer.data_collator)
    trainer._unread.clear()
    asked.clear()
    before = torch.random.get_rng_state()
    for _ in range(3):
        assert trainer.init == "information"
    assert torch.equal(torch.random.get_rng_state(), before)
    assert len(asked) == 1
    args = make_args(init="cross_fit", search_rate=True)
    trainer = MaxMIGTrainer(model=pretrained, args=args, train_dataset=pictures)
    with pytest.raises(ValueError, match="needs a classifier whose output layer reads one vector"):
        trainer.train()


def test_rival_starts_as_its_authors_start_it(crowd, make_args, make_model):
    """The estimates are meant for Max-MIG's model only."""
    model = peer("soft_vote", make_model().classifier, annotators=ANNOTATORS)
    args = make_args(init=None, search_rate=True)
    assert CrowdTrainer(model=model, args=args, train_dataset=crowd).init == "vote_share"


@pytest.mark.parametrize(
    ("fields", "changes", "missing"),
    [
        ({"divergence": "pearson"}, {}, "the divergence 'kl'"),
        ({"aggregator": "factored"}, {}, "the aggregator 'weighted_average'"),
        ({"prior": "learned"}, {}, "a prior that is not learned"),
        ({}, {"start_from": 40}, "no `start_from`"),
        ({}, {"dataset": make_crowd(12, unlabelled=4)}, "a datasets.Dataset with votes on 9 items"),
    ],
)
def test_start_that_cannot_be_is_refused_with_what_is_missing(
    fields, changes, missing, cross_fit, make_model
):
    """If another start replaced the requested one, nobody would notice."""
    trainer = cross_fit(model=make_model(**fields), init="cross_fit", **changes)
    with pytest.raises(ValueError, match=re.escape(f"`init='cross_fit'` needs {missing}. Use")):
        trainer.train()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (torch.ones_like, "features that differ between items, got the same for all 90"),
        (lambda x: x.masked_fill(x == x.max(), math.nan), "finite features, got others from"),
        (lambda x: x.masked_fill(x == x.max(), math.inf), "finite features, got others from"),
    ],
    ids=["same", "nan", "infinite"],
)
def test_features_that_say_nothing_start_otherwise_or_are_refused(
    spoil, message, cross_fit, monkeypatch, warned
):
    """On such features networks learn nonsense, which the classifier would then learn too."""
    look = hf_maxmig.training.item_features.penultimate_features
    monkeypatch.setattr(
        hf_maxmig.training.item_features, "penultimate_features", lambda *given: spoil(look(*given))
    )
    trainer = cross_fit(max_steps=2, search_rate=True)
    assert trainer.init == "cross_fit"
    trainer.train()
    assert trainer.start.items is None
    assert trainer.listed_arguments()["init"] == "information"
    assert [message in m for m in warned() if "does not start by cross-fitting" in m] == [True]
    with pytest.raises(ValueError, match=message):
        cross_fit(init="cross_fit").train()


def test_start_that_cannot_be_of_stream_or_scratch_or_rival_is_refused(
    crowd, make_model, make_args
):
    """Each case has its own error message."""
    args = make_args(init="cross_fit", search_rate=True, max_steps=1)
    stream = MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd.to_iterable_dataset())
    with pytest.raises(ValueError, match="`init='cross_fit'` needs a datasets.Dataset with votes"):
        stream.train()
    model = peer("soft_vote", make_model().classifier, annotators=ANNOTATORS)
    rival = CrowdTrainer(model=model, args=args, train_dataset=crowd)
    with pytest.raises(ValueError, match="`init='cross_fit'` needs a MaxMIGModel"):
        rival.train()
    pictures = np.zeros((len(crowd), 3, 16, 16), dtype="float32")
    crowd = crowd.remove_columns("features").add_column("pixel_values", pictures.tolist())
    scratch = MaxMIGTrainer(model=small_vit(), args=args, train_dataset=crowd)
    with pytest.raises(ValueError, match="needs a `HeadClassifier`, or a pretrained classifier"):
        scratch.train()


# What is learned and predicted


def test_classifier_learns_the_targets_and_w_stays(cross_fit, crowd, brief, monkeypatch):
    """One step of plain descent must equal that of the cross-entropy, computed by hand."""
    trainer = cross_fit(
        max_steps=1, optim="sgd", learning_rate=0.5, max_grad_norm=0.0, lr_scheduler_type="constant",
        per_device_train_batch_size=len(crowd), name_classes=False,
    )  # fmt: skip
    monkeypatch.setattr(hf_maxmig.training.trainer, "temper", lambda *given: False)
    before = copy.deepcopy(trainer.crowd_model.classifier)
    trainer.train()
    targets = trainer.start.items.targets
    taken = targets.sum(dim=1) > 0
    assert 0 < int(taken.sum()) < len(crowd)
    log_h = before(features=torch.tensor(crowd["features"])).logits.log_softmax(-1)
    (-(targets * log_h).sum() / taken.sum()).backward()
    for name, parameter in before.named_parameters():
        expected = parameter.detach() - 0.5 * parameter.grad
        found = trainer.crowd_model.classifier.get_parameter(name)
        torch.testing.assert_close(found.detach(), expected, atol=1e-5, rtol=0)
        assert parameter.grad.abs().max() > 1e-4
    assert torch.equal(trainer.crowd_model.aggregator.weight, trainer.start.items.weight)


@pytest.fixture
def trained(cross_fit, brief):
    trainer = cross_fit()
    trainer.train()
    return trainer


def test_training_items_are_predicted_by_networks_that_have_not_seen_them(trained, crowd):
    """On items that it has learned, a classifier repeats the votes."""
    own = by_hand(trained, crowd)
    found = trained.start.items
    twin = make_crowd()
    assert twin is not crowd
    assert twin._fingerprint == crowd._fingerprint
    assert (own[0] - found.log_h).abs().max() > 0.05
    for dataset in (crowd, twin, copy.copy(crowd)):
        log_h, log_g, log_forecast = map(torch.tensor, trained.predict(dataset).predictions)
        torch.testing.assert_close(log_h, found.log_h)
        torch.testing.assert_close(log_g, own[1])
        expected = forecast(log_h, log_g, trained.crowd_model.log_prior().detach())
        torch.testing.assert_close(log_forecast, expected)


@pytest.mark.slow
def test_forecasts_of_training_items_are_what_the_classifier_learned(cross_fit, monkeypatch):
    """The labels that are cleaned and those that are learned must be the same."""
    monkeypatch.setattr(hf_maxmig.training.starting, "network_steps", lambda args, num_items: 60)
    crowd = make_crowd(200)
    trainer = cross_fit(dataset=crowd)
    trainer.train()
    found = trainer.start.items
    assert found.tells_apart
    voted = found.targets.sum(dim=1) > 0
    log_forecast = torch.tensor(trainer.predict(crowd).predictions[2])
    torch.testing.assert_close(log_forecast.exp()[voted], found.targets[voted], atol=1e-4, rtol=0)


def test_other_items_are_predicted_by_the_model(trained, crowd):
    """On other items, or in another order, the stored estimates would belong to the wrong items."""
    others = {
        "part": crowd.select(range(40)),
        "shuffled": crowd.shuffle(seed=3),
        "reversed": crowd.select(range(len(crowd) - 1, -1, -1)),
        "other": make_crowd(seed=1),
        "without votes": crowd.remove_columns(["annotators", "annotations"]),
    }
    for name, dataset in others.items():
        predicted = trained.predict(dataset).predictions
        expected = by_hand(trained, dataset)
        np.testing.assert_allclose(predicted[0], expected[0].numpy(), atol=1e-5, err_msg=name)
    # After that, the training set is recognised again.
    log_h = torch.tensor(trained.predict(crowd).predictions[0])
    torch.testing.assert_close(log_h, trained.start.items.log_h)


def test_votes_of_the_training_set_are_read_once_to_know_it(trained, crowd, monkeypatch):
    """A million items may be evaluated each epoch.

    A data set put in place later must not be taken for the known one.
    """
    read, look = [], hf_maxmig.training.known_items.has_votes_of
    monkeypatch.setattr(
        hf_maxmig.training.known_items, "has_votes_of", lambda *a: read.append(a) or look(*a)
    )
    for _ in range(3):
        trained.evaluate(crowd)
    trained.evaluate(make_crowd(seed=1))
    assert len(read) == 1
    other = make_crowd(seed=1)
    assert len(other) == len(crowd)
    trained.train_dataset = other
    expected = by_hand(trained, other)
    np.testing.assert_allclose(trained.predict(other).predictions[0], expected[0], atol=1e-5)
    assert len(read) == 2


def test_targets_are_looked_up_where_the_batch_is(cross_fit, brief, monkeypatch):
    """A look-up in host memory would wait for all of the device's pending work in each step."""
    trainer = cross_fit(max_steps=1)
    trainer.train()
    batch = next(iter(trainer.get_train_dataloader()))
    table, rows = trainer.start.items.targets, batch["crowd_row"]
    assert torch.equal(trainer.known.rows_of(table, rows), table[rows])
    for method in ("cpu", "item", "tolist"):
        monkeypatch.setattr(torch.Tensor, method, lambda *a: pytest.fail("the host waits"))
    moved = trainer.known._moved[id(table)][1]
    trainer.compute_loss(trainer.model, dict(batch))
    assert trainer.known._moved[id(table)][1] is moved
    assert len(trainer.known._moved) == 1
    trainer.known._moved.clear()
    assert trainer.known.rows_of(table, rows.to("meta")).device.type == "meta"


def test_evaluation_of_the_training_set_is_out_of_fold(trained, crowd):
    """Accuracies on the training set must be those of the predictions that relabelling uses."""
    metrics = trained.evaluate(crowd)
    gold = torch.tensor(crowd["label"])
    right = float((trained.start.items.log_h.argmax(dim=1) == gold).float().mean())
    assert metrics["eval_accuracy"] == pytest.approx(right)


@pytest.mark.slow
def test_relabelled_items_and_the_report_use_them(trained, crowd, tmp_path, monkeypatch):
    """Predictions of the classifier, which has learned the items, would hide the suspects."""
    given = []
    judge = hf_maxmig.training.maxmig_trainer.judge_annotators

    def spy(log_h, *args, **kwargs):
        given.append(log_h)
        return judge(log_h, *args, **kwargs)

    monkeypatch.setattr(hf_maxmig.training.maxmig_trainer, "judge_annotators", spy)
    numbered = crowd.add_column("number", list(range(len(crowd))))
    trained.train_dataset = numbered  # the same items
    relabelled = trained.relabel(numbered, tmp_path / "clean.parquet")
    log_h = trained.start.items.log_h.exp()[relabelled["number"]]
    torch.testing.assert_close(
        torch.tensor(relabelled["classifier_posterior"]), log_h, atol=1e-5, rtol=0
    )
    assert [*relabelled["number"]] != sorted(relabelled["number"])
    trained.report(numbered, tmp_path / "report")
    torch.testing.assert_close(given[0], trained.start.items.log_h)


@pytest.mark.slow
def test_gold_labels_do_not_reach_it(cross_fit, crowd, brief):
    """Gold labels stand in the same rows as the votes."""
    rng = np.random.default_rng(0)
    lied = crowd.remove_columns("label").add_column("label", rng.permutation(crowd["label"]))
    lied = lied.cast(crowd.features)
    assert lied["label"][:20] != crowd["label"][:20]
    trainers = [cross_fit(dataset=each) for each in (crowd, lied, crowd.remove_columns("label"))]
    for trainer in trainers:
        trainer.train()
    for other in trainers[1:]:
        assert equal(state(other), state(trainers[0]))
        assert same_start(other.start.items, trainers[0].start.items)


def test_votes_that_are_no_longer_there_do_not_matter_after_the_start(cross_fit, brief):
    """Once the targets are known, the votes in a batch have no part in the loss."""
    trainer = cross_fit(max_steps=1)
    trainer.train()
    batch = next(iter(trainer.get_train_dataloader()))
    model = trainer.crowd_model.eval()
    usual = trainer.compute_loss(model, dict(batch))
    other = {**batch, "annotations": (batch["annotations"] - 1).clamp(min=-1)}
    assert not torch.equal(other["annotations"], batch["annotations"])
    assert torch.equal(trainer.compute_loss(model, other), usual)


@pytest.mark.slow
def test_new_training_starts_anew(cross_fit, brief):
    """Estimates of an earlier training are of the same items, but perhaps under other settings."""
    trainer = cross_fit()
    trainer.train()
    first = trainer.start.items
    trainer.args.init = "vote_share"
    trainer.train()
    assert trainer.start.items is None
    assert first is not None


# Checkpoints


@pytest.fixture
def checkpoints(cross_fit, brief, make_model):
    """Return a training with a checkpoint in the middle of an epoch, and a second trainer for it."""

    def build(seed=0):
        return cross_fit(
            model=make_model(dropout=0.5, seed=seed), num_train_epochs=2, save_strategy="steps",
            save_steps=4, save_total_limit=3,
        )  # fmt: skip

    return build


@pytest.mark.slow
def test_resumed_training_equals_the_whole_one(checkpoints, monkeypatch):
    """Equal to the last bit, and without searching for the start again."""
    whole = checkpoints()
    whole.train()
    folder = f"{whole.args.output_dir}/checkpoint-4"
    assert whole.state.max_steps == 12
    monkeypatch.setattr(
        hf_maxmig.training.starting, "cross_fit", lambda *a, **k: pytest.fail("anew")
    )
    again = checkpoints(seed=5)
    again.train(resume_from_checkpoint=folder)
    assert equal(state(again), state(whole))
    assert same_start(again.start.items, whole.start.items)
    crowd = again.train_dataset
    for one, other in zip(again.predict(crowd).predictions, whole.predict(crowd).predictions, strict=True):  # fmt: skip
        assert np.array_equal(one, other)


@pytest.mark.slow
def test_checkpoint_names_its_start_and_is_refused_without_it(checkpoints, tmp_path):
    """Resumed with other targets, it would be another training."""
    trainer = checkpoints()
    trainer.train()
    folder = tmp_path / "out" / "checkpoint-4"
    assert "start.safetensors" in read_manifest(folder)["files"]
    assert same_start(CrossFitted.load(folder / "start.safetensors"), trainer.start.items)
    content = bytearray((folder / "start.safetensors").read_bytes())
    content[-3] ^= 1
    (folder / "start.safetensors").write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"start\.safetensors"):
        checkpoints().train(resume_from_checkpoint=str(folder))
    (folder / "start.safetensors").unlink()
    with pytest.raises(ValueError, match=r"start\.safetensors"):
        checkpoints().train(resume_from_checkpoint=str(folder))


@pytest.mark.slow
def test_checkpoint_of_other_items_is_refused(checkpoints, cross_fit, crowd, tmp_path):
    """Item 7 would learn the target of another item 7."""
    checkpoints().train()
    folder = str(tmp_path / "out" / "checkpoint-4")
    settings = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 4}
    with pytest.raises(ValueError, match="must be that of the checkpoint, N = 90 items, got 80"):
        cross_fit(dataset=crowd.select(range(80)), **settings).train(resume_from_checkpoint=folder)
    stream = cross_fit(dataset=crowd.to_iterable_dataset(), max_steps=12, **settings)
    with pytest.raises(ValueError, match="N = 90 items, got a stream"):
        stream.train(resume_from_checkpoint=folder)


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_checkpoint_of_other_votes_on_as_many_items_is_refused(
    known, checkpoints, cross_fit, crowd, tmp_path, monkeypatch
):
    """Item 7 would learn the target of another item 7. A checkpoint without the votes' digest is accepted."""
    if not known:  # earlier versions stored none
        monkeypatch.setattr(hf_maxmig.training.starting, "votes_digest", lambda votes: "")
    checkpoints().train()
    folder = str(tmp_path / "out" / "checkpoint-4")
    assert (
        bool(CrossFitted.load(tmp_path / "out" / "checkpoint-4" / "start.safetensors").votes)
        == known
    )
    settings = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 4}
    same = crowd.add_column("number", list(range(len(crowd))))
    cross_fit(dataset=same, **settings).train(resume_from_checkpoint=folder)
    for other in (make_crowd(seed=1), crowd.select(range(len(crowd) - 1, -1, -1))):
        assert len(other) == len(crowd)
        trainer = cross_fit(dataset=other, **settings)
        if known:
            with pytest.raises(ValueError, match="got other votes on as many items"):
                trainer.train(resume_from_checkpoint=folder)
        else:
            trainer.train(resume_from_checkpoint=folder)


@pytest.mark.slow
def test_checkpoint_of_another_start_goes_on_as_it_began(cross_fit, brief):
    """A checkpoint of an earlier version contains no start."""
    settings = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 4}
    whole = cross_fit(init="vote_share", search_rate=False, **settings)
    whole.train()
    again = cross_fit(init=None, search_rate=True, **settings)
    again.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-4")
    assert again.start.items is None
    assert equal(state(again), state(whole))


# The model that receives the start


@pytest.mark.parametrize(
    ("prior", "numbers", "kind"),
    [
        ("uniform", [1 / 3, 1 / 3, 1 / 3], "uniform"),
        ("uniform", [0.5, 0.3, 0.2], "vote_share"),
        ("vote_share", [0.5, 0.3, 0.2], "vote_share"),
        ("vote_share", [1 / 3, 1 / 3, 1 / 3], "vote_share"),
    ],
)
def test_model_takes_weight_and_prior_and_is_saved_with_them(
    prior, numbers, kind, make_model, tmp_path
):
    """If the config does not record the prior, another one is loaded."""
    model = make_model(prior=prior)
    weight = torch.randn(4, 3, 3)
    model.use_start(weight, torch.tensor(numbers).log())
    assert model.config.prior == kind
    model.save_pretrained(tmp_path)
    for each in (model, MaxMIGModel.from_pretrained(tmp_path)):
        assert torch.equal(each.aggregator.weight, weight)
        torch.testing.assert_close(each.log_prior().exp(), torch.tensor(numbers))


def test_model_leaves_out_a_class_that_has_no_mass(make_model, tmp_path):
    """Nobody voted for the class, so it must not be forecast after loading either."""
    model = make_model()
    model.use_start(torch.zeros(4, 3, 3), torch.tensor([math.log(0.5), NO_MASS, math.log(0.5)]))
    model.save_pretrained(tmp_path)
    for each in (model, MaxMIGModel.from_pretrained(tmp_path)):
        expected = torch.tensor([0.5, 0.0, 0.5])
        torch.testing.assert_close(each.log_prior().exp(), expected)
        assert each.prior.left_out.tolist() == [False, True, False]


def test_prior_that_is_given_stays(cross_fit, make_model, brief):
    """The prior comes from the arguments, for a classifier that the trainer wraps."""
    trainer = cross_fit(model=make_model().classifier, prior="0.5,0.25,0.25")
    trainer.train()
    expected = torch.tensor([0.5, 0.25, 0.25])
    torch.testing.assert_close(trainer.crowd_model.log_prior().exp(), expected)
    assert trainer.crowd_model.config.prior == [0.5, 0.25, 0.25]


# The classifier alone


@pytest.mark.slow
@pytest.mark.parametrize("apart", [True, False])
def test_classifier_that_counts_half_is_half_as_sure_also_by_itself(
    apart, cross_fit, brief, monkeypatch, tmp_path
):
    """Its own checkpoint must be as confident as the model: drawn to the prior, or to equal probabilities."""
    other = make_crowd(seed=1)
    log_p = torch.tensor([0.5, 0.3, 0.2]).log()
    outcome = {}
    for counts in (1.0, 0.5, 1.5):
        monkeypatch.setattr(
            hf_maxmig.training.starting, "cross_fit",
            changed(classifier=counts, log_p=log_p, tells_apart=apart),
        )  # fmt: skip
        trainer = cross_fit()
        trainer.train()
        outcome[counts] = torch.tensor(trainer.predict(other).predictions[0])
        trainer.crowd_model.classifier.save_pretrained(tmp_path / "h")
        alone = HeadClassifier.from_pretrained(tmp_path / "h")
        with torch.no_grad():
            logits = alone(features=torch.tensor(other["features"])).logits
        torch.testing.assert_close(logits.log_softmax(-1), outcome[counts], atol=1e-5, rtol=0)
    drawn_to = log_p if apart else torch.zeros(3)
    expected = (0.5 * outcome[1.0] + 0.5 * drawn_to).log_softmax(-1)
    torch.testing.assert_close(outcome[0.5], expected, atol=1e-5, rtol=0)
    assert (outcome[0.5] - outcome[1.0]).abs().max() > 0.1
    # What networks lack in confidence is in the targets that the classifier has learned.
    assert torch.equal(outcome[1.5], outcome[1.0])


# Warnings


@pytest.mark.parametrize("apart", [True, False])
def test_plurality_in_place_of_annotators_is_told_once(
    apart, cross_fit, brief, monkeypatch, warned
):
    """Users who paid for votes want to know that annotators cannot be told apart.

    Otherwise there is no warning.
    """
    monkeypatch.setattr(
        hf_maxmig.training.starting, "cross_fit", changed(tells_apart=apart, classifier=1.0)
    )
    cross_fit().train()
    assert len([m for m in warned() if "follow the plurality of the votes" in m]) == (not apart)
    assert len(warned()) == (not apart)


# The README's world


def sixty_seconds(seed):
    """Two hundred items and three annotators, as in the README."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(2, size=200)
    names, features = [f"img{i}" for i in range(200)], rng.normal(truth[:, None] * 3, 1, (200, 4))
    votes = {"item": [], "annotator": [], "annotation": []}
    share = np.zeros((200, 2))
    for i, y in enumerate(truth):
        for who, right in {"ann": 0.9, "bob": 0.8, "cyd": 0.5}.items():
            said = y if rng.random() < right else 1 - y
            share[i, said] += 1
            votes["item"].append(names[i])
            votes["annotator"].append(who)
            votes["annotation"].append(["cat", "dog"][said])
    items = Dataset.from_dict({"name": names, "features": features})
    return add_annotations(items, votes, item_column="name"), truth, share


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_example_of_the_readme_is_at_least_as_good_as_majority_vote(seed, tmp_path):
    """This is the first thing that anybody tries; it must hold for any random head."""
    dataset, truth, share = sixty_seconds(0)
    torch.manual_seed(seed)
    classifier = HeadClassifier(HeadConfig(input_size=4, num_labels=2))
    args = MaxMIGTrainingArguments(
        str(tmp_path), num_train_epochs=20, report_to="none", disable_tqdm=True, use_cpu=True,
        save_strategy="no",
    )  # fmt: skip
    trainer = MaxMIGTrainer(model=classifier, args=args, train_dataset=dataset)
    trainer.train()
    log_h, _, log_forecast = trainer.predict(dataset).predictions
    majority = (share.argmax(axis=1) == truth).mean()
    assert 0.75 < majority < 0.95
    assert (log_forecast.argmax(axis=1) == truth).mean() >= majority
    assert (log_h.argmax(axis=1) == truth).mean() >= majority
    with torch.no_grad():
        logits = classifier(features=torch.tensor(dataset["features"])).logits
    assert (logits.argmax(dim=1).numpy() == truth).mean() >= majority
