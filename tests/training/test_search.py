"""The search: which rates are tried, which one is chosen, and that it uses no gold label and costs no training step."""

import copy

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value

from hf_maxmig import (
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    MaxMIGTrainer,
    crowd_features,
    experts,
    simulate_crowd,
)
from hf_maxmig.model.aggregators import AGGREGATORS
from hf_maxmig.training import search
from hf_maxmig.training.search import Try, chosen, search_rate, start_and_search
from tests.worlds import make_crowd


def attempt(rate, gain, prior="uniform", merged=False, parts=None, kind="weighted_average"):
    """Return a short training with the same gain for each item, unless `parts` are given."""
    parts = torch.zeros(4) if parts is None else torch.tensor(parts)
    return Try(rate, prior, kind, gain, parts, merged)


def short_trainings(gains, merged=()):
    """Stand in for short trainings: maps rate multiples to gains, and records what was tried."""
    asked = []

    def train(training, multiple, prior, kind, rows, held_out):
        asked.append((multiple, rows, held_out, prior, kind))
        rate = multiple * training.args.learning_rate
        gain = gains.get((multiple, prior), 0.0 if prior == "learned" else gains.get(multiple))
        gain = gains[kind] if AGGREGATORS[kind].on_trial else gain
        return attempt(rate, gain, prior, multiple in merged, kind=kind)

    train.asked = asked
    return train


def automatic(make_model, make_args, crowd, **changes):
    """Build a trainer with default settings."""
    args = make_args(**{"init": "information", "search_rate": True, **changes})
    return MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd)


@pytest.mark.parametrize(
    ("gains", "tried", "taken"),
    [
        ({10: 0.5, 100: 0.7}, [10, 100], 100),
        ({10: 0.5, 100: 0.3, 1: 0.6}, [10, 100, 1], 1),
        ({10: 0.5, 100: 0.3, 1: 0.2}, [10, 100, 1], 10),
        ({10: 0.5, 100: float("nan"), 1: 0.2}, [10, 100, 1], 10),
        ({10: float("nan"), 100: 0.3}, [10, 100], 100),
        ({10: -0.5, 100: -0.7, 1: -0.6}, [10, 100, 1], 10),
    ],
)
def test_search_goes_up_and_down_if_up_was_worse(
    gains, tried, taken, crowd, make_model, make_args, monkeypatch
):
    """A training that diverged has no gain and must not win."""
    trainer = automatic(make_model, make_args, crowd)
    train = short_trainings(gains)
    monkeypatch.setattr(search, "_try", train)
    tries = search_rate(trainer._training())
    assert [multiple for multiple, *_ in train.asked] == tried
    assert chosen(tries).rate == pytest.approx(taken * 1e-2)


def test_rates_are_judged_on_items_that_none_of_them_learned_from(
    crowd, make_model, make_args, monkeypatch
):
    """On items that it has learned, the rate that memorises most looks best."""
    numbered = crowd.add_column("row", list(range(len(crowd))))
    trainer = automatic(make_model, make_args, numbered)
    train = short_trainings({10: 0.5, 100: 0.3, 1: 0.2})
    monkeypatch.setattr(search, "_try", train)
    search_rate(trainer._training())
    held_out = set(train.asked[0][2]["row"][:])
    learned = set(train.asked[0][1])
    assert len(held_out) == 18
    assert held_out | learned == set(range(len(crowd)))
    assert not held_out & learned
    assert all(asked[1:] == train.asked[0][1:] for asked in train.asked)


def test_evaluation_set_with_votes_is_what_is_held_out(crowd, make_model, make_args, monkeypatch):
    """Then all training items are used for training."""
    others = make_crowd(seed=5)
    trainer = automatic(make_model, make_args, crowd)
    trainer.eval_dataset = others
    train = short_trainings({10: 0.5, 100: 0.7})
    monkeypatch.setattr(search, "_try", train)
    search_rate(trainer._training())
    assert train.asked[0][2] is others
    assert sorted(train.asked[0][1]) == list(range(len(crowd)))


def test_few_items_of_many_are_searched(crowd, make_model, make_args, monkeypatch):
    """A search over a million pictures would cost as much as everything else."""
    monkeypatch.setattr(search, "SEARCHED_ITEMS", 50)
    trainer = automatic(make_model, make_args, crowd)
    train = short_trainings({10: 0.5, 100: 0.7})
    monkeypatch.setattr(search, "_try", train)
    search_rate(trainer._training())
    assert (len(train.asked[0][1]), len(train.asked[0][2])) == (40, 10)


def test_rate_that_was_found_trains_and_is_told(crowd, make_model, make_args, monkeypatch):
    """The rate must reach both the optimizer and the model card."""
    trainer = automatic(make_model, make_args, crowd, aggregator_warmup_ratio=0.0)
    monkeypatch.setattr(search, "_try", short_trainings({10: 0.5, 100: 0.3, 1: 0.6}))
    metrics = trainer.train().metrics
    assert (metrics["aggregator_learning_rate"], metrics["prior"]) == (
        pytest.approx(1e-2),
        "uniform",
    )
    assert trainer.aggregator_rate == pytest.approx(1e-2)
    assert trainer.optimizer.param_groups[-1]["initial_lr"] == pytest.approx(1e-2)
    first = trainer.state.log_history[0]
    assert first["search_gain_0.01"] == 0.6
    assert first["search_gain_1"] == 0.3
    assert first["aggregator_learning_rate"] == pytest.approx(1e-2)
    trainer.create_model_card()
    card = (trainer.args.output_dir + "/README.md", "aggregator_learning_rate")
    with open(card[0], encoding="utf-8") as page:
        line = next(line for line in page if card[1] in line)
    assert "0.01" in line


def test_resumed_run_keeps_the_rate_and_searches_no_more(crowd, make_model, make_args, monkeypatch):
    """Half of the training at one rate and half at another would equal neither."""
    settings = {"num_train_epochs": 4, "save_strategy": "epoch"}
    whole = automatic(make_model, make_args, crowd, **settings)
    train = short_trainings({10: 0.5, 100: 0.3, 1: 0.6})
    monkeypatch.setattr(search, "_try", train)
    whole.train()
    asked = len(train.asked)
    resumed = automatic(make_model, make_args, crowd, **settings)
    steps = whole.state.max_steps // 4
    resumed.train(resume_from_checkpoint=f"{resumed.args.output_dir}/checkpoint-{2 * steps}")
    assert len(train.asked) == asked
    assert resumed.aggregator_rate == pytest.approx(1e-2)
    for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("second_is_better", [True, False])
def test_start_that_merged_classes_is_made_again_and_the_better_one_kept(
    second_is_better, crowd, make_model, make_args, monkeypatch
):
    """The gain distinguishes a start with merged classes from one without."""
    trainer = automatic(make_model, make_args, crowd)
    starts, answers = (
        [],
        iter(
            [
                attempt(0.1, 0.5, merged=True),
                attempt(0.1, 0.9 if second_is_better else 0.4),
            ]
        ),
    )

    def start(training, seed):
        table = trainer.crowd_model.aggregator.table
        assert not starts or torch.equal(table, fresh)  # a second start does not build on the first
        with torch.no_grad():
            table += seed + 1
        starts.append(table.clone())

    fresh = trainer.crowd_model.aggregator.table.detach().clone()
    monkeypatch.setattr(search, "start_from_information", start)
    monkeypatch.setattr(search, "search_rate", lambda training: [next(answers)])
    tries = start_and_search(trainer._training())
    assert len(starts) == 2
    kept = starts[1] if second_is_better else starts[0]
    assert torch.equal(trainer.crowd_model.aggregator.table, kept)
    assert tries[0].merged != second_is_better


@pytest.mark.parametrize(("gain", "again"), [(0.5, False), (-0.01, True)])
def test_start_from_single_labels_is_undone_where_they_tell_nothing(
    gain, again, make_args, monkeypatch
):
    """What classifier and W have learned is then noise, from which pairs of labels are not found."""
    trainer = wrapped(make_args, uneven_crowd(), aggregator="interaction")
    model = trainer.crowd_model
    before = copy.deepcopy(model.classifier.state_dict())

    def start(training, seed):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1

    tries = [attempt(0.1, gain), attempt(0.1, 0.9 if not again else -0.02, kind="interaction")]
    monkeypatch.setattr(search, "start_from_information", start)
    monkeypatch.setattr(search, "search_rate", lambda training: tries)
    assert chosen(start_and_search(trainer._training())).aggregator == "interaction"
    for name, tensor in model.classifier.state_dict().items():
        assert torch.equal(tensor, before[name]) == again
    fresh = wrapped(make_args, uneven_crowd(), aggregator="interaction").crowd_model
    fresh.initialize_crowd(
        trainer.crowd_of(trainer.train_dataset),
        trainer.args.smoothing,
        scale=trainer.args.init_strength,
    )
    assert torch.allclose(model.aggregator.table, fresh.aggregator.table) == again


def test_start_without_merged_classes_is_made_once(crowd, make_model, make_args, monkeypatch):
    """A second start takes a sixth of the time of the training."""
    trainer = automatic(make_model, make_args, crowd)
    seeds = []
    monkeypatch.setattr(search, "start_from_information", lambda training, seed: seeds.append(seed))
    monkeypatch.setattr(search, "search_rate", lambda training: [attempt(0.1, 0.5)])
    start_and_search(trainer._training())
    assert seeds == [trainer.args.seed]


@pytest.mark.parametrize(
    "changes", [{"search_rate": False}, {"aggregator_learning_rate": 0.07}], ids=str
)
def test_rate_given_by_hand_and_the_flag_turn_it_off(
    changes, crowd, make_model, make_args, monkeypatch
):
    """One flag turns it off, and a user's own rate is not overruled."""
    monkeypatch.setattr(search, "_try", lambda *args: pytest.fail("a search"))
    trainer = automatic(make_model, make_args, crowd, **{"max_steps": 2, **changes})
    trainer.train()
    assert trainer.aggregator_rate == changes.get("aggregator_learning_rate", 0.1)


def test_given_model_with_interaction_has_the_rate_that_it_needs(
    crowd, make_model, make_args, monkeypatch
):
    """At a slow rate its random pairs stay random: on the digits the forecast falls to 0.14."""
    monkeypatch.setattr(search, "_try", lambda *args: pytest.fail("a search"))
    args = make_args(init="information", search_rate=True, max_steps=2)
    model = make_model(aggregator="interaction")
    trainer = MaxMIGTrainer(model=model, args=args, train_dataset=crowd)
    trainer.train()
    assert trainer.aggregator_rate == pytest.approx(0.1)


@pytest.mark.parametrize(("gain", "taken"), [(0.9, "interaction"), (0.55, "weighted_average")])
def test_pairs_of_labels_are_heard_where_they_tell_more(gain, taken, make_args, monkeypatch):
    """If seniors are visible, pairs are memorised and the forecast loses a point."""
    train = short_trainings({10: 0.5, 100: 0.3, 1: 0.6, "interaction": gain})
    monkeypatch.setattr(search, "_try", train)
    dataset, settings = uneven_crowd(), {"num_train_epochs": 2, "save_strategy": "epoch"}
    trainer = wrapped(make_args, dataset, aggregator="interaction", **settings)
    table = trainer.crowd_model.aggregator.table
    metrics = trainer.train().metrics
    assert [asked[4] for asked in train.asked].count("interaction") == 1
    assert train.asked[-1][0] == 10
    model = trainer.crowd_model
    assert (model.config.aggregator, metrics["aggregator"]) == (taken, taken)
    assert trainer.aggregator_rate == pytest.approx(0.1 if taken == "interaction" else 0.01)
    assert (model.aggregator.table is table) == (taken == "interaction")
    resumed = wrapped(make_args, dataset, aggregator="interaction", **settings)
    half = trainer.state.max_steps // 2
    resumed.train(resume_from_checkpoint=f"{resumed.args.output_dir}/checkpoint-{half}")
    assert resumed.crowd_model.config.aggregator == taken
    for a, b in zip(resumed.model.parameters(), trainer.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("given", [True, False], ids=["given", "wrapped"])
def test_factored_model_is_trained_as_asked_at_a_rate_that_is_searched_for(
    given, crowd, make_model, make_args, monkeypatch
):
    """It is chosen for its size: the paper's aggregator, tried beside it, would not fit in memory."""
    train = short_trainings({10: 0.5, 100: 0.7})
    monkeypatch.setattr(search, "_try", train)
    if given:
        args = make_args(init="information", search_rate=True, max_steps=2)
        model = make_model(aggregator="factored")
        trainer = MaxMIGTrainer(model=model, args=args, train_dataset=crowd)
    else:
        trainer = wrapped(make_args, uneven_crowd(), aggregator="factored", max_steps=2)
    aggregator = trainer.crowd_model.aggregator
    metrics = trainer.train().metrics
    assert {asked[4] for asked in train.asked} == {"factored"}
    assert trainer.crowd_model.aggregator is aggregator
    assert metrics["aggregator"] == "factored"
    assert trainer.aggregator_rate == pytest.approx(1.0)
    assert trainer.state.log_history[0]["search_gain_1"] == 0.7


def test_factored_model_that_tells_nothing_is_no_pair_of_labels():
    """All of its tries have the same name, so the last one would win whatever it gained."""
    tries = [attempt(0.1, -0.5, kind="factored"), attempt(1.0, -0.7, kind="factored")]
    assert not tries[0].tells_something
    assert chosen(tries) is tries[0]
    assert [one.name for one in tries] == ["gain_0.1", "gain_1"]


def test_given_optimizer_is_left_as_it_is(crowd, make_model, make_args, monkeypatch):
    """Its rates are the user's, and it does not hold the logits of another prior."""
    monkeypatch.setattr(search, "_try", lambda *args: pytest.fail("a search"))
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    args = make_args(
        init="information", search_rate=True, max_steps=2, lr_scheduler_type="constant"
    )
    trainer = MaxMIGTrainer(
        model=model, args=args, train_dataset=crowd, optimizers=(optimizer, None)
    )
    trainer.train()
    assert {group["lr"] for group in optimizer.param_groups} == {0.3}
    assert trainer.optimizer.optimizer is optimizer  # the given one did the training


def test_second_training_has_the_rate_that_it_found(crowd, make_model, make_args, monkeypatch):
    """`Trainer` keeps the optimizer of the first training."""
    trainer = automatic(make_model, make_args, crowd, aggregator_warmup_ratio=0.0)
    for best in (1, 100):
        gains = {10: 0.5, 100: 0.3, 1: 0.2, best: 0.6}
        monkeypatch.setattr(search, "_try", short_trainings(gains))
        trainer.train()
        rate = trainer.optimizer.param_groups[-1]["initial_lr"]
        assert rate == pytest.approx(best * 1e-2)


@pytest.mark.parametrize(
    ("items", "epochs", "share", "expected"),
    [(90, 20, 0.4, 8.0), (90, 10, 0.05, 1.0), (90_000, 3, 0.05, 0.15), (9000, 3, 0.05, 200 / 563)],
)
def test_short_training_is_short_where_an_epoch_is_long(
    items, epochs, share, expected, crowd, make_model, make_args
):
    """Three epochs of a million items must not cost five whole epochs to find a start."""
    many = crowd.select(np.arange(items) % len(crowd))
    trainer = automatic(make_model, make_args, many, num_train_epochs=epochs)
    short = trainer.short_trainer(make_model(), list(range(items)), share)
    assert short.args.num_train_epochs == pytest.approx(expected)


def test_stream_trains_without(crowd, make_model, make_args, monkeypatch):
    """Whatever needs parts of the data must be left out for a stream."""
    monkeypatch.setattr(search, "_try", lambda *args: pytest.fail("a search"))
    trainer = automatic(make_model, make_args, crowd.to_iterable_dataset(), max_steps=2, init=None)
    trainer.train()
    assert trainer.state.global_step == 2
    assert trainer.aggregator_rate == pytest.approx(0.1)


def test_handful_of_items_trains(make_model, make_args):
    """With too few items to hold any out, nothing is searched."""
    few = make_crowd(num_items=4, unlabelled=0)
    trainer = automatic(make_model, make_args, few, init=None)
    trainer.train()
    assert trainer.start.rate is None


def test_gold_labels_do_not_reach_start_search_and_training(crowd, make_model, make_args):
    """With all defaults, the result must be the same from data with and without gold labels."""
    wrong = crowd.map(lambda row: {"label": (row["label"] + 1) % 3}, load_from_cache_file=False)
    trained = []
    for dataset in (crowd.remove_columns("label"), wrong):
        trainer = automatic(make_model, make_args, dataset)
        trainer.train()
        trained.append((trainer.state.log_history[0], list(trainer.model.parameters())))
    assert trained[0][0] == trained[1][0]
    assert "search_gain_0.1" in trained[0][0]
    for a, b in zip(trained[0][1], trained[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_short_trainings_say_and_write_nothing(crowd, make_model, make_args, tmp_path, capsys):
    """Five short trainings would fill the screen with logs and the disk with checkpoints."""
    trainer = automatic(make_model, make_args, crowd)
    trainer._begin()
    assert trainer.start.rate
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == [] or list((tmp_path / "out").iterdir()) == []


def test_search_leaves_the_start_as_it_is(crowd, make_model, make_args):
    """The training must begin where the tries began, not where the last one ended."""
    trainer = automatic(make_model, make_args, crowd)
    before = [p.detach().clone() for p in trainer.crowd_model.parameters()]
    search_rate(trainer._training())
    for a, b in zip(before, trainer.crowd_model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def uneven_crowd(num_items=240, share=0.15, seed=0):
    """Two classes, one of them rare, and three annotators who are mostly right."""
    rng = np.random.default_rng(seed)
    truth = (rng.random(num_items) < share).astype(int)
    votes = np.where(rng.random((num_items, 3)) < 0.85, truth[:, None], 1 - truth[:, None])
    return Dataset.from_dict(
        {
            "features": (rng.normal(size=(num_items, 5)) + 3 * truth[:, None]).astype("float32"),
            "annotators": [[0, 1, 2]] * num_items,
            "annotations": votes.tolist(),
        },
        features=Features(
            features=List(Value("float32"), length=5), **crowd_features(["ann", "bob", "cyd"], ["cat", "dog"])
        ),
    )  # fmt: skip


def wrapped(make_args, dataset, **changes):
    """Return a trainer for a plain classifier, with default settings."""
    torch.manual_seed(0)
    head = HeadClassifier(HeadConfig(input_size=5, hidden_size=16, num_labels=2))
    args = make_args(**{"init": "information", "search_rate": True, **changes})
    return MaxMIGTrainer(model=head, args=args, train_dataset=dataset)


@pytest.mark.slow
def test_learned_prior_is_taken_where_classes_are_uneven_and_the_gain_says_so(make_args):
    """With a uniform prior, a model calls five times as many items malignant as there are."""
    trainer = wrapped(make_args, uneven_crowd(), num_train_epochs=8)
    assert trainer.crowd_model.config.prior == "uniform"
    trainer.train()
    assert trainer.crowd_model.config.prior == "learned"
    assert trainer.crowd_model.prior.logits.requires_grad
    assert float(trainer.crowd_model.log_prior().detach().exp()[1]) < 0.3
    tried = trainer.state.log_history[0]
    assert [name for name in tried if name.endswith("_learned_prior")]


def test_prior_of_a_resumed_run_is_that_of_the_checkpoint(make_args, tmp_path):
    """Otherwise a prior would be learned until the run is stopped, and fixed afterwards."""
    settings = {"num_train_epochs": 4, "save_strategy": "epoch"}
    whole = wrapped(make_args, uneven_crowd(), **settings)
    whole.train()
    resumed = wrapped(make_args, uneven_crowd(), **settings)
    step = whole.state.max_steps // 2
    resumed.train(resume_from_checkpoint=f"{resumed.args.output_dir}/checkpoint-{step}")
    assert resumed.crowd_model.config.prior == "learned"
    for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("prior", ["uniform", "vote_share"])
def test_prior_that_was_given_stays(prior, make_args, monkeypatch):
    """The prior may come from the arguments or be built into a model."""
    train = short_trainings({10: 0.5, 100: 0.3, 1: 0.2})
    monkeypatch.setattr(search, "_try", train)
    asked = wrapped(make_args, uneven_crowd(), prior=prior)
    asked.train()
    pair = MaxMIGModel.from_classifier(
        HeadClassifier(HeadConfig(input_size=5, num_labels=2)),
        annotators=["ann", "bob", "cyd"], id2label={0: "cat", 1: "dog"}, prior=prior,
    )  # fmt: skip
    args = make_args(init="information", search_rate=True)
    built = MaxMIGTrainer(model=pair, args=args, train_dataset=uneven_crowd())
    built.train()
    for trainer in (asked, built):
        assert trainer.crowd_model.config.prior == prior
    assert {asked[3] for asked in train.asked} == {prior}


@pytest.mark.parametrize(("gain", "taken"), [(0.52, 10), (0.6, 100), (float("nan"), 10)])
def test_what_is_usual_is_kept_unless_something_is_clearly_better(gain, taken):
    """On a thousand items of a weak crowd gains are noise, and the highest by chance would win."""
    usual = attempt(10, 0.5, parts=[0.4, 0.6, 0.5, 0.5])
    other = attempt(100, gain, prior="learned", parts=[0.5, 0.5, 0.7, 0.6])  # error 0.065
    assert chosen([usual, other]).rate == taken
    diverged = attempt(10, float("nan"), parts=[float("nan")] * 4)
    assert chosen([diverged, usual]) is usual


@pytest.mark.parametrize(("gain", "taken"), [(0.2, "weighted_average"), (0.05, "interaction")])
def test_pairs_of_labels_are_taken_if_asked_for_where_single_ones_tell_nothing(gain, taken):
    """A short training may not have found the pairs yet, and there is nothing to lose."""
    usual = attempt(10, gain, parts=[-0.2, 0.3, 0.1, -0.1])  # error 0.11
    pairs = attempt(10, -0.1, parts=[-0.1, -0.1, -0.2, 0.0], kind="interaction")
    assert usual.tells_something == (taken == "weighted_average")
    assert chosen([usual, pairs]).aggregator == taken


def test_learned_prior_is_tried_at_the_rate_that_was_best(make_args, monkeypatch):
    """At a rate too slow for W, a learned prior makes up for what W cannot express, and wins wrongly."""
    gains = {10: 0.5, 100: 0.7, (10, "learned"): 0.9, (100, "learned"): 0.6}
    train = short_trainings(gains)
    monkeypatch.setattr(search, "_try", train)
    trainer = wrapped(make_args, uneven_crowd())
    trainer.train()
    assert [(asked[0], asked[3]) for asked in train.asked] == [
        (10, "uniform"), (100, "uniform"), (100, "learned")
    ]  # fmt: skip
    assert trainer.crowd_model.config.prior == "uniform"
    assert trainer.start.rate == pytest.approx(1.0)


def luna16_crowd(share, num_items, expertise, seed):
    """Two overlapping clouds labelled by the paper's experts of LUNA16, and the class of each item."""
    generator = torch.Generator().manual_seed(seed)
    truth = (torch.rand(num_items, generator=generator) < share).long()
    x = torch.randn(num_items, 5, generator=generator)
    x[:, 0] += 2.2 * (2 * truth - 1)
    votes = simulate_crowd(truth, experts("luna16", expertise), "independent", generator=generator)
    pairs = [(w[w >= 0].tolist(), s[w >= 0].tolist())
             for w, s in zip(votes.annotators, votes.annotations, strict=True)]  # fmt: skip
    who, said = zip(*pairs, strict=True)
    columns = {"features": x.numpy(), "annotators": who, "annotations": said, "label": truth}
    names = crowd_features(votes.names, ["benign", "malignant"])
    features = Features(
        features=List(Value("float32"), length=5), **names, label=ClassLabel(names=["benign", "malignant"])
    )  # fmt: skip
    return Dataset.from_dict(columns, features=features)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
    ("share", "num_items", "expertise"),
    # With one item in fifty and annotators right on 60 %, five thousand items carry a thousandth of
    # a nat.
    [
        (0.15, 2000, "high"),
        (0.15, 2000, "low"),
        (0.02, 3000, "high"),
    ],
)
def test_learned_prior_is_as_good_as_the_true_one(share, num_items, expertise, make_args):
    """With all defaults and one malignant patch in seven; the paper set this prior by hand."""
    crowd = luna16_crowd(share, num_items, expertise, seed=0)
    test = luna16_crowd(share, 20_000, expertise, seed=1)
    right = {}
    for prior in ("auto", f"{1 - share},{share}"):
        args = make_args(
            init="information", search_rate=True, prior=prior, learning_rate=1e-3, num_train_epochs=20,
            per_device_train_batch_size=64, per_device_eval_batch_size=1024,
        )  # fmt: skip
        torch.manual_seed(0)
        head = HeadClassifier(HeadConfig(input_size=5, hidden_size=16, num_labels=2))
        trainer = MaxMIGTrainer(model=head, args=args, train_dataset=crowd)
        trainer.train()
        output = trainer.predict(test)
        right[prior] = output.metrics["test_accuracy"]
        rare = output.label_ids == 1
        found = (output.predictions[0].argmax(-1) == 1)[rare].mean()
        if prior == "auto":
            assert trainer.crowd_model.config.prior == "learned"
            assert found > 0.8  # it did not collapse
    assert right["auto"] > right[f"{1 - share},{share}"] - 0.005
