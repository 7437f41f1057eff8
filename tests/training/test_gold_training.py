"""`use_gold_labels`: how a training uses gold labels from the user, and where it reports them."""

import re

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value

import hf_maxmig.training.batch
from hf_maxmig import (
    CrowdTrainer,
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    MaxMIGTrainer,
    MaxMIGTrainingArguments,
    labelme,
)
from hf_maxmig.data.collator import CrowdCollator, gold_labels
from hf_maxmig.data.posteriors import WithPosterior
from hf_maxmig.metrics import calibration
from hf_maxmig.model.functional import forecast, reward_and_penalty
from hf_maxmig.peers import peer
from hf_maxmig.training.gold import trusted_columns, with_trusted
from tests.weights import equal, state
from tests.worlds import ANNOTATORS, CLASSES, InOrder, make_crowd

KNOWN = 13  # items with a gold label, every seventh


def known_rows(items=90):
    return torch.arange(items) % 7 == 0


def hide(dataset, known):
    """Keep the gold labels of some items; None for the others."""
    gold = [label if kept else None for label, kept in zip(dataset["label"], known, strict=True)]
    return dataset.remove_columns("label").add_column("label", gold).cast(dataset.features)


@pytest.fixture(scope="session")
def partly():
    """The crowd with gold labels on some items, one of which has no votes."""
    crowd = make_crowd()
    silent = torch.tensor([not who for who in crowd["annotators"]])
    assert int(known_rows().sum()) == KNOWN
    assert (silent & known_rows()).any()
    return hide(crowd, known_rows())


@pytest.fixture
def trainer_of(make_model, make_args, partly):
    def build(dataset=partly, model=None, kind=MaxMIGTrainer, start_from=None, **changes):
        settings = {"use_gold_labels": True, "num_train_epochs": 1, **changes}
        return kind(
            model=make_model() if model is None else model, args=make_args(**settings),
            train_dataset=dataset, start_from=start_from,
        )  # fmt: skip

    return build


CROSS_FIT = {"init": None, "search_rate": True}


# What is read


def test_gold_labels_are_read_with_all_ways_to_say_none():
    """Missing may be -1, -100, None or NaN. A number that is no class is refused with its item."""
    collator = CrowdCollator(4, 3)
    said = {"label": [2, None, -1, 0, -100]}
    assert gold_labels(Dataset.from_dict(said), collator, 2).tolist() == [2, -1, -1, 0, -1]
    said = {"labels": [2.0, float("nan"), 1.0]}
    assert gold_labels(Dataset.from_dict(said), collator).tolist() == [2, -1, 1]
    assert gold_labels(Dataset.from_dict({"x": [1, 2]}), collator).tolist() == [-1, -1]
    for wrong in (3, -2):
        with pytest.raises(ValueError, match=rf"`label` must lie in 0\.\.2.*got {wrong} at item 3"):
            gold_labels(Dataset.from_dict({"label": [0, 1, None, wrong]}), collator, 2)


def test_option_is_off_by_default_and_then_nothing_is_read(trainer_of, crowd):
    """Gold labels that are only meant for measuring must not be used."""
    trainer = trainer_of(dataset=crowd, use_gold_labels=False)
    assert trainer.args.__dataclass_fields__["use_gold_labels"].default is False
    assert trainer.gold_labels is None
    trainer.train()
    assert trainer.crowd_model.config.gold_labels_used is None
    assert "gold_labels_used" not in trainer.evaluate(crowd, metric_key_prefix="train")


@pytest.mark.parametrize("init", ["vote_share", "information", "cross_fit"])
def test_without_the_option_gold_labels_change_nothing(init, trainer_of, crowd, brief):
    """Without the option they must not matter; with it they must, whatever the start."""
    rng = np.random.default_rng(0)
    lied = crowd.remove_columns("label").add_column("label", rng.permutation(crowd["label"]))
    settings = {"init": init, "search_rate": init == "cross_fit", "num_train_epochs": 0.5}
    states = []
    for dataset, used in ((crowd, False), (lied, False), (crowd, True), (lied, True)):
        trainer = trainer_of(dataset=dataset, use_gold_labels=used, **settings)
        assert trainer.init == init
        trainer.train()
        states.append(state(trainer))
    assert equal(states[0], states[1])
    assert not equal(states[0], states[2])
    assert not equal(states[2], states[3])


def test_what_cannot_be_used_is_refused_before_the_training(trainer_of, crowd, make_model):
    """A user who sets the option relies on it."""
    nobody = crowd.remove_columns("label")
    with pytest.raises(ValueError, match="needs gold labels in the column .* got none on 90 items"):
        trainer_of(dataset=nobody)
    with pytest.raises(ValueError, match="needs gold labels in the column .* got none on 90 items"):
        trainer_of(dataset=hide(crowd, torch.zeros(90, dtype=torch.bool)))
    with pytest.raises(
        ValueError, match=r"needs a datasets\.Dataset to train on, got IterableDatas"
    ):
        trainer_of(dataset=crowd.to_iterable_dataset(), max_steps=2)
    wrong = crowd.remove_columns("label").add_column("label", [0] * 50 + [3] + [0] * 39)
    with pytest.raises(ValueError, match=r"`label` must lie in 0\.\.2.*got 3 at item 50"):
        trainer_of(dataset=wrong)
    trainer_of(dataset=None)  # to evaluate another set


@pytest.mark.parametrize("name", ["majority_vote", "soft_vote", "aggnet", "crowd_layer"])
def test_rivals_refuse_it(name, trainer_of, make_model):
    """Rivals are compared as their authors describe them."""
    model = peer(name, make_model().classifier, annotators=ANNOTATORS)
    expected = f"`use_gold_labels` must be False for {re.escape(model.method)}, got True"
    with pytest.raises(ValueError, match=expected):
        trainer_of(model=model, kind=CrowdTrainer)


def test_true_labels_take_it_and_their_training_stays(trainer_of, make_model, partly):
    """The method learns from gold labels anyway; with the option, nothing is measured on them."""
    states, metrics = [], []
    for used in (False, True):
        model = peer("true_labels", make_model().classifier, annotators=ANNOTATORS)
        trainer = trainer_of(model=model, kind=CrowdTrainer, use_gold_labels=used)
        trainer.train()
        states.append(state(trainer))
        metrics.append(trainer.evaluate(partly))
    assert equal(*states)
    assert "eval_accuracy" in metrics[0]
    assert "eval_accuracy" not in metrics[1]


# The loss and the starts


def test_loss_is_that_of_one_annotator_more(trainer_of, make_model, partly):
    """The gain must be that of a g with the trusted annotator, on items without votes too."""
    trainer = trainer_of(kind=InOrder, per_device_train_batch_size=90)
    batch = next(iter(trainer.get_train_dataloader()))
    model = trainer.crowd_model.eval()
    found = trainer.compute_loss(model, dict(batch))
    with torch.no_grad():
        out = model(**{n: batch[n] for n in ("features", "annotators", "annotations")})
        columns = trusted_columns(trainer.gold_labels, 3)
        log_g = with_trusted(out.aggregator_logits, columns)
        taken = (batch["annotators"] >= 0).any(dim=1) | known_rows()
        reward, penalty = reward_and_penalty(out.log_h, log_g, model.log_prior(), "kl", taken)
    torch.testing.assert_close(found.detach(), penalty - reward)
    trainer.args.use_gold_labels = False
    usual = trainer.compute_loss(model, dict(batch))
    assert abs(float((usual - found).detach())) > 0.01
    assert int((known_rows() & (batch["annotators"] < 0).all(dim=1)).sum()) > 0


@pytest.mark.parametrize(
    "settings", [CROSS_FIT, {"init": "vote_share"}], ids=["cross_fit", "votes"]
)
def test_items_with_nothing_but_a_gold_label_are_blended_with_others_that_teach(
    settings, trainer_of, brief, monkeypatch
):
    """Blended with an item about which nothing is known, they would count only in part."""
    seen = []
    draw = hf_maxmig.training.batch.draw_blends

    def spy(taught, alpha):
        seen.append(taught)
        return draw(taught, alpha)

    monkeypatch.setattr(hf_maxmig.training.batch, "draw_blends", spy)
    trainer = trainer_of(
        kind=InOrder, mixup_alpha=0.4, per_device_train_batch_size=90, max_steps=1, **settings
    )
    trainer.train()
    voted = torch.tensor([bool(who) for who in trainer.train_dataset["annotators"]])
    assert torch.equal(seen[-1], voted | known_rows())
    assert (known_rows() & ~voted).any()


def test_start_by_votes_counts_the_trusted_answers(trainer_of, partly):
    """Where there is a gold label, confusion matrices are counted against it."""
    trainer = trainer_of(num_train_epochs=0, init_strength=1.0)
    trainer.train()
    counts = torch.full((4, 3, 3), 0.01)
    for i, (who, said) in enumerate(zip(partly["annotators"], partly["annotations"], strict=True)):
        if not who:
            continue
        share = torch.bincount(torch.tensor(said), minlength=3) / len(said)
        if known_rows()[i]:
            share = torch.full((3,), 0.005)
            share[partly["label"][i]] = 0.99
        for m, r in zip(who, said, strict=True):
            counts[m, :, r] += share
    expected = (counts / counts.sum(dim=2, keepdim=True)).log()
    torch.testing.assert_close(trainer.crowd_model.aggregator.weight.detach(), expected)


def test_classes_get_the_names_that_gold_labels_say(trainer_of, crowd):
    """One annotator separates two classes but swaps their names; the other guesses."""
    rng = np.random.default_rng(0)
    wrong = [[1, 0, 2][c] for c in crowd["label"]]
    coin = [int(rng.integers(2)) if c < 2 else 2 for c in crowd["label"]]
    votes = {
        "annotators": [[0, 1]] * len(crowd),
        "annotations": [list(pair) for pair in zip(wrong, coin, strict=True)],
    }
    dataset = crowd.remove_columns(list(votes))
    for name, column in votes.items():
        dataset = dataset.add_column(name, column, feature=crowd.features[name])
    orders = []
    for used in (True, False):
        trainer = trainer_of(dataset=dataset, num_train_epochs=0, init="keep", use_gold_labels=used)
        model = trainer.crowd_model
        rows = torch.eye(3).mul(0.9).add(0.03).log()
        model.use_start(torch.stack([rows, *[torch.zeros(3, 3)] * 3]), model.log_prior().detach())
        orders.append(trainer.class_order().tolist())
    assert orders == [[1, 0, 2], [0, 1, 2]]


# Results for the training items


@pytest.fixture
def trained(trainer_of, brief):
    trainer = trainer_of(**CROSS_FIT)
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    "settings", [CROSS_FIT, {"init": "vote_share"}], ids=["cross_fit", "votes"]
)
def test_forecasts_of_training_items_hear_the_trusted_annotator(
    settings, trainer_of, partly, brief
):
    """Forecasts of other items do not use it, as their gold labels are unknown."""
    trainer = trainer_of(**settings)
    trainer.train()
    log_h, log_g, log_forecast = map(torch.tensor, trainer.predict(partly).predictions)
    usual = forecast(log_h, log_g, trainer.crowd_model.log_prior().detach())
    columns = trusted_columns(trainer.gold_labels, 3)
    torch.testing.assert_close(log_forecast, with_trusted(usual, columns), atol=1e-5, rtol=0)
    gold = trainer.gold_labels[known_rows()]
    assert torch.equal(log_forecast[known_rows()].argmax(dim=1), gold)
    shuffled = partly.shuffle(seed=1)
    log_h, log_g, log_forecast = map(torch.tensor, trainer.predict(shuffled).predictions)
    usual = forecast(log_h, log_g, trainer.crowd_model.log_prior().detach())
    torch.testing.assert_close(log_forecast, usual, atol=1e-5, rtol=0)


def test_nothing_is_measured_on_gold_labels_that_were_used(trainer_of, crowd, partly, brief):
    """The model would be right on them by construction."""
    trainer = trainer_of(**CROSS_FIT)
    trainer.train()
    metrics = trainer.evaluate(partly)
    assert metrics["eval_gold_labels_used"] == KNOWN
    assert not {n for n in metrics if n.endswith("accuracy")}
    output = trainer.predict(partly)
    assert (output.label_ids == -100).all()
    assert output.metrics["test_gold_labels_used"] == KNOWN
    # On the same items in another order, the gold labels are not recognised.
    assert "eval_accuracy" in trainer.evaluate(partly.shuffle(seed=1))
    assert "eval_gold_labels_used" not in trainer.evaluate(crowd)


def test_metrics_of_a_user_see_no_gold_label_that_was_used(make_model, make_args, partly):
    """`compute_metrics` gets -100 for them."""
    seen = []

    def compute(prediction):
        seen.append(prediction.label_ids)
        return {}

    trainer = MaxMIGTrainer(
        model=make_model(), args=make_args(use_gold_labels=True), train_dataset=partly,
        compute_metrics=compute,
    )  # fmt: skip
    trainer.evaluate(partly)
    trainer.evaluate(partly.select(range(50)))
    assert (seen[0] == -100).all()
    assert (seen[1] >= 0).sum() == int(known_rows(50).sum())


def test_training_set_is_known_again_where_its_gold_labels_were_renumbered(
    make_model, make_args, partly
):
    """In a data set that is rebuilt for each evaluation, the same class names may have other numbers."""
    order = [2, 0, 1]
    names = [CLASSES[c] for c in order]
    gold = [None if c is None else order.index(c) for c in partly["label"]]
    features = Features({**partly.features, "label": ClassLabel(names=names)})
    renamed = partly.remove_columns("label").add_column("label", gold).cast(features)
    text = partly.remove_columns("label").add_column(
        "label", [None if c is None else CLASSES[c] for c in partly["label"]]
    )
    assert text.features["label"] == Value("string")
    for dataset in (renamed, text):
        trainer = MaxMIGTrainer(
            model=make_model(), args=make_args(use_gold_labels=True), train_dataset=dataset
        )
        expected = torch.tensor([-1 if c is None else c for c in partly["label"]])
        assert torch.equal(trainer.gold_labels, expected)
        assert trainer.evaluate(dataset)["eval_gold_labels_used"] == KNOWN


# Where it is reported


def test_metrics_config_and_card_say_how_many_were_used(trained, partly, tmp_path):
    """Results with gold labels must not pass for results of the votes alone."""
    number = KNOWN
    assert trained.train().metrics["gold_labels_used"] == number
    trained.save_model(str(tmp_path / "model"))
    again = MaxMIGModel.from_pretrained(tmp_path / "model")
    assert again.config.gold_labels_used == number
    assert again.config.num_annotators == 4
    assert again.aggregator.weight.shape == (4, 3, 3)
    trained.create_model_card()
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"votes, {number} gold labels reached the training. The" in " ".join(card.split())
    assert f"| gold labels used | {number} |\n| annotators | 4" in card
    assert "no gold label reached" not in " ".join(card.split())


def test_card_without_the_option_is_as_it_was(trainer_of, tmp_path):
    """No gold label reached the training, and the card says so."""
    trainer = trainer_of(use_gold_labels=False)
    trainer.train()
    trainer.create_model_card()
    card = " ".join((tmp_path / "out" / "README.md").read_text(encoding="utf-8").split())
    assert "ICLR 2019): no gold label reached the training. The classifier" in card
    assert "gold labels used" not in card


def test_relabelled_items_say_whose_gold_label_was_used(trained, partly, tmp_path):
    """The forecast of such an item is partly its own gold label."""
    numbered = partly.add_column("number", list(range(len(partly))))
    trained.train_dataset = numbered  # the same items
    relabelled = trained.relabel(numbered, tmp_path / "clean.parquet")
    used = torch.tensor(relabelled["gold_used"])
    assert torch.equal(used, known_rows()[relabelled["number"]])
    gold = torch.tensor([-1 if c is None else c for c in relabelled["label"]])
    named = [CLASSES.index(name) for name in relabelled["forecast"]]
    assert torch.equal(gold[used], torch.tensor(named)[used])
    assert "gold_used" not in trained.relabel(partly.shuffle(seed=1), tmp_path / "x").column_names


@pytest.mark.slow
def test_report_measures_on_other_gold_labels_only(trainer_of, crowd, partly, tmp_path, brief):
    """The report also says how many were used."""
    trainer = trainer_of(**CROSS_FIT)
    trainer.train()
    trainer.report(partly, tmp_path / "own")
    page = (tmp_path / "own" / "report.html").read_text(encoding="utf-8")
    assert f"The training used {KNOWN} gold labels. No figure here is measured on them." in page
    assert "no gold labels to compare with" in page
    assert "training never saw them" not in page
    trainer.report(crowd, tmp_path / "others")
    page = (tmp_path / "others" / "report.html").read_text(encoding="utf-8")
    assert f"used {KNOWN} gold labels. Figures on items whose gold label was used" in page
    assert "by gold labels " in page


# Checkpoints


@pytest.mark.parametrize(
    "settings", [CROSS_FIT, {"init": "vote_share"}], ids=["cross_fit", "votes"]
)
def test_resumed_training_comes_to_the_same_weights(settings, trainer_of, partly, brief):
    """A checkpoint must hold everything that gold labels need."""
    settings = {**settings, "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 4}
    whole = trainer_of(**settings)
    whole.train()
    folder = f"{whole.args.output_dir}/checkpoint-4"
    again = trainer_of(**settings)
    again.train(resume_from_checkpoint=folder)
    assert equal(state(again), state(whole))
    assert again.crowd_model.config.gold_labels_used == KNOWN
    for one, other in zip(
        again.predict(partly).predictions, whole.predict(partly).predictions, strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "settings", [CROSS_FIT, {"init": "vote_share"}], ids=["cross_fit", "votes"]
)
def test_checkpoint_of_other_gold_labels_is_refused(settings, trainer_of, crowd, brief):
    """Part of the training would have used them and part not."""
    settings = {**settings, "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 4}
    whole = trainer_of(**settings)
    whole.train()
    folder = f"{whole.args.output_dir}/checkpoint-4"
    expected = "must be those of the checkpoint, 13 of them, got "
    with pytest.raises(ValueError, match=expected + "(none|0)"):
        trainer_of(**settings, use_gold_labels=False).train(resume_from_checkpoint=folder)
    with pytest.raises(ValueError, match=expected + "(others on )?90"):
        trainer_of(dataset=crowd, **settings).train(resume_from_checkpoint=folder)


def test_short_trainings_before_the_training_have_data_that_need_no_gold_labels(
    trainer_of, monkeypatch
):
    """They train on parts of the items, some of which may have no gold label."""
    seen = []
    prepared = WithPosterior.__init__

    def spy(self, *args, **kwargs):
        seen.append(args)
        prepared(self, *args, **kwargs)

    monkeypatch.setattr(WithPosterior, "__init__", spy)
    trainer = trainer_of(init="information")
    trainer.train()
    assert len(seen) > 2
    shares = torch.tensor(seen[-1][1])  # what the classifier learns first, for all items
    gold = trainer.gold_labels
    assert len(shares) == 90
    torch.testing.assert_close(shares[gold >= 0].max(dim=1).values, torch.full((13,), 0.99))
    assert torch.equal(shares[gold >= 0].argmax(dim=1), gold[gold >= 0])


@pytest.mark.slow
@pytest.mark.full  # `test_gold.py` shows it on a drawn crowd
def test_fifty_gold_labels_help_other_items_of_a_real_crowd(shared_data, make_args):
    """On LabelMe most annotators call open country a mountain, a coast or a forest, and networks learn it from them."""
    data = labelme(shared_data / "labelme")
    train, test = data["train"], data["test"].select_columns("features")
    gold, of_test = np.array(train["label"][:]), np.array(data["test"]["label"][:])
    rows = np.random.default_rng(0).permutation(len(gold))[:50]
    known = torch.zeros(len(gold), dtype=torch.bool)
    known[rows] = True
    others = ~known.numpy()
    right, nll, errors = [], [], []
    for used in (False, True):
        size = len(train[0]["features"])
        names = train.features["annotations"].feature.names
        torch.manual_seed(0)
        trainer = MaxMIGTrainer(
            model=HeadClassifier(HeadConfig(input_size=size, id2label=dict(enumerate(names)))),
            args=MaxMIGTrainingArguments(
                make_args().output_dir, use_gold_labels=used, report_to="none", disable_tqdm=True,
                save_strategy="no", use_cpu=True,
            ),
            train_dataset=hide(train, known),
        )  # fmt: skip
        trainer.train()
        right.append((trainer.predict(test).predictions[0].argmax(axis=1) == of_test).mean())
        log_forecast = trainer.predict(trainer.train_dataset).predictions[2][others]
        nll.append(-log_forecast[np.arange(len(log_forecast)), gold[others]].mean())
        said = log_forecast.argmax(axis=1) == gold[others]
        errors.append(calibration(np.exp(log_forecast.max(axis=1)).clip(0, 1), said).error)
    assert right[1] > max(right[0] + 0.005, 0.9)
    assert nll[1] < nll[0] - 0.04
    assert errors[1] < 0.065
