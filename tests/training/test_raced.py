"""The race: what it finds, which items it uses, and that it trains no backbone."""

import copy
import math

import numpy as np
import pytest
import torch

from hf_maxmig import FourLayerCNN, FourLayerCNNConfig, MaxMIGTrainer
from hf_maxmig.model.functional import NO_MASS, mutual_information_gain
from hf_maxmig.training import search
from hf_maxmig.training.fold_networks import CrossFit, divide
from hf_maxmig.training.raced import MULTIPLES, race
from hf_maxmig.training.search import can_race, chosen, start_by_race

N, M, C = 600, 4, 3


def world(share, right=(0.95, 0.8, 0.6, 1 / 3), num_items=N, seed=0):
    """Draw items with class frequencies `share`, and annotators with accuracies `right`."""
    generator = torch.Generator().manual_seed(seed)
    classes = len(share)
    truth = torch.multinomial(torch.tensor(share), num_items, True, generator=generator)
    features = torch.randn(num_items, 6, generator=generator)
    features[torch.arange(num_items), truth] += 2.5
    knows = torch.rand(num_items, len(right), generator=generator) < torch.tensor(right)
    wrong = (truth[:, None] + torch.randint(1, classes, knows.shape, generator=generator)) % classes
    said = torch.where(knows, truth[:, None], wrong)
    who = torch.arange(len(right)).repeat(num_items, 1)
    return features, truth, who, said


def raced(features, who, said, priors=None, voted=None, **changes):
    classes = C if voted is None else len(voted)
    uniform = torch.full((classes,), 1 / classes).log()
    settings = {
        "held_out": torch.arange(len(features)) < len(features) // 5,
        "num_annotators": who.shape[1], "priors": {False: uniform} if priors is None else priors,
        "voted": torch.ones(classes, dtype=torch.bool) if voted is None else voted,
        "smoothing": 0.01, "scale": 0.5, "steps": 200,
    }  # fmt: skip
    return race(features, (who, said), **{**settings, **changes})


def held_out_gain(one, number):
    return float(mutual_information_gain(one.log_h[:number], one.log_g[:number], one.log_p))


def test_race_tells_who_is_right():
    """If W stayed as it started, the annotator who guesses would count as much as the others."""
    features, truth, who, said = world([1 / 3] * 3)
    first, second = raced(features, who, said)
    assert (first.multiple, second.multiple) == MULTIPLES
    for one in (first, second):
        contrast = one.weight.diagonal(dim1=1, dim2=2).mean(dim=1) - one.weight.mean(dim=(1, 2))
        assert contrast.argsort(descending=True).tolist() == [0, 1, 2, 3]
        right = [(table.argmax(dim=1) == truth).float().mean() for table in (one.log_h, one.log_g)]
        assert min(right) > 0.9
        torch.testing.assert_close(one.log_g.exp().sum(dim=1), torch.ones(N))


def test_held_out_items_teach_nothing():
    """Otherwise the gain on them would be highest where most is memorised."""
    features, _, who, said = world([1 / 3] * 3)
    others = said.clone()
    others[: N // 5] = (others[: N // 5] + 1) % C
    for one, other in zip(raced(features, who, said), raced(features, who, others), strict=True):
        assert torch.equal(one.weight, other.weight)
        assert torch.equal(one.log_h, other.log_h)
        assert held_out_gain(one, N // 5) > held_out_gain(other, N // 5) + 0.5
    others[N // 5 :] = (others[N // 5 :] + 1) % C
    assert not torch.equal(raced(features, who, others)[0].weight, one.weight)


def test_learned_prior_is_found_where_a_class_is_rare():
    """With a uniform prior, five times as many items are called rare as there are."""
    features, truth, who, said = world([0.88, 0.12], right=(0.8, 0.75, 0.7))
    uniform, voted = torch.tensor([0.5, 0.5]).log(), torch.ones(2, dtype=torch.bool)
    found = raced(features, who, said, {False: uniform, True: None}, voted)
    assert [(one.learned, one.multiple) for one in found] == [
        (learned, multiple) for learned in (False, True) for multiple in MULTIPLES
    ]
    given, learned = found[0], found[len(MULTIPLES)]
    assert torch.equal(given.log_p, uniform)
    assert float(truth.float().mean()) < 0.14
    assert float(learned.log_p.exp()[1]) < 0.22
    number = N // 5
    assert held_out_gain(learned, number) > held_out_gain(given, number)


def test_class_without_votes_has_no_part_in_it():
    """Networks would make use of it, and move half of another class there."""
    features, truth, who, said = world([0.5, 0.5], right=(0.9, 0.8, 0.6))
    wide = torch.tensor([0, 2])[said]  # class 1 of three has no votes
    voted = torch.tensor([True, False, True])
    for one in raced(features, who, wide, voted=voted):
        assert one.log_p[1] == NO_MASS
        assert (one.log_h[:, 1] == NO_MASS).all()
        assert (one.log_g[:, 1] == NO_MASS).all()
        assert not one.weight[:, 1].any()
        assert not one.weight[:, :, 1].any()
        assert ((one.log_g.argmax(dim=1) == 2) == (truth == 1)).float().mean() > 0.85


def test_prior_that_is_given_stays_beside_one_that_is_learned():
    """Both are rows of one parameter table."""
    features, _, who, said = world([0.7, 0.2, 0.1])
    log_p, weight = torch.tensor([0.5, 0.3, 0.2]).log(), torch.zeros(M, C, C) + torch.eye(C)
    settings = [(log_p, 10.0)] * 2

    def run(learned):
        fitted = CrossFit(features, divide(torch.ones(N) > 0, seed=0), C, seed=0)
        return fitted.race((who, said), weight, settings, 60, (1.0,), learned=learned)

    plain, mixed = run(None), run(torch.tensor([False, True]))
    torch.testing.assert_close(mixed[0].log_p, log_p)
    torch.testing.assert_close(mixed[0].weight, plain[0].weight, rtol=1e-4, atol=1e-4)
    assert (mixed[1].log_p - log_p).abs().max() > 0.1


# In a training


@pytest.fixture
def pictures(crowd):
    rng = np.random.default_rng(0)
    labels = np.array(crowd["label"][:])
    shades = labels[:, None, None, None] - 1 + rng.normal(size=(len(crowd), 3, 16, 16))
    return crowd.remove_columns(["features", "label"]).add_column(
        "pixel_values", shades.astype("float32").tolist()
    )


@pytest.fixture
def from_scratch(pictures, make_args):
    def build(**changes):
        torch.manual_seed(0)
        classifier = FourLayerCNN(FourLayerCNNConfig(image_size=16, num_labels=C))
        args = make_args(**{"init": None, "search_rate": True, "learning_rate": 1e-3, **changes})
        return MaxMIGTrainer(model=classifier, args=args, train_dataset=pictures)

    return build


@pytest.mark.parametrize("init", [None, "information"])
def test_classifier_is_trained_no_longer_than_it_is_warmed_up(init, from_scratch):
    """Short trainings of the whole classifier used to take as long as the training itself."""
    trainer = from_scratch(init=init, num_train_epochs=20)
    assert can_race(trainer._training())
    steps = []
    trainer.crowd_model.classifier.convolutions.register_forward_hook(
        lambda module, given, _: steps.append((module.training, len(given[0])))
    )
    trainer._begin()
    items, epoch = len(trainer.train_dataset), -(-len(trainer.train_dataset) // 16)
    learned = [number for training, number in steps if training]
    assert len(learned) == epoch  # a twentieth of twenty epochs
    assert sum(learned) == items
    # Features of the items with votes are computed once.
    voted = sum(bool(said) for said in trainer.train_dataset["annotations"])
    assert sum(number for training, number in steps if not training) == voted


def test_what_was_chosen_is_what_training_starts_from(from_scratch, monkeypatch):
    """W of one setting with the rate of another was never evaluated."""
    trainer, seen = from_scratch(), []

    def kept(*args, **kwargs):
        seen.append(race(*args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(search, "race", kept)
    tries = start_by_race(trainer._training())
    (outcomes,) = seen
    assert len(outcomes) == 4  # two rates with each prior
    assert [one.prior for one in tries] == ["uniform", "learned"]
    best, model = chosen(tries), trainer.crowd_model
    assert best.rate == pytest.approx(1e-2)
    assert best.prior == model.config.prior
    number = round(0.2 * len(outcomes[0].log_h))
    for attempt, learned in zip(tries, (False, True), strict=True):
        gains = [held_out_gain(one, number) for one in outcomes if one.learned == learned]
        assert attempt.gain == pytest.approx(max(gains), abs=1e-5)
    ours = [one for one in outcomes if one.learned == (best.prior == "learned")]
    one = max(ours, key=lambda one: held_out_gain(one, number))
    assert torch.equal(model.aggregator.weight, trainer.args.init_strength * one.weight)
    assert trainer.args.init_strength == 0.5
    torch.testing.assert_close(model.log_prior(), one.log_p)


@pytest.mark.parametrize("prior", ["learned", "vote_share", "0.2,0.3,0.5"])
def test_prior_that_was_asked_for_is_the_only_one(prior, from_scratch):
    """A user's own prior must not be overruled."""
    trainer = from_scratch(prior=prior)
    tries = start_by_race(trainer._training())
    model = trainer.crowd_model
    assert [str(one.prior) for one in tries] == [str(model.config.prior)]
    if prior == "0.2,0.3,0.5":
        torch.testing.assert_close(model.log_prior().exp(), torch.tensor([0.2, 0.3, 0.5]))
    else:
        assert model.prior.logits.requires_grad == (prior == "learned")
        assert float(model.log_prior().detach().exp().std()) > 0.001


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"divergence": "pearson"},
        {"aggregator": "interaction"},
        {"aggregator_learning_rate": 0.1},
    ],
    ids=["no output layer", "pearson", "interaction", "rate by hand"],
)
def test_what_cannot_be_raced_is_searched_for_as_ever(changes, from_scratch, monkeypatch):
    """Covers features that no layer reads, and pairs of labels, which the networks do not support."""
    trainer = from_scratch(num_train_epochs=1, **changes)
    if not changes:
        assert can_race(trainer._training())
        monkeypatch.setattr(search, "output_layers", lambda classifier, num_classes: [])
    assert not can_race(trainer._training())
    monkeypatch.setattr(search, "race", lambda *args, **kwargs: pytest.fail("a race"))
    trainer.train()
    assert bool(trainer.start.tried) == ("aggregator_learning_rate" not in changes)


@pytest.mark.parametrize("features", [None, torch.full((60, 4), math.nan), torch.ones(60, 4)])
def test_layer_that_reads_no_features_is_seen_in_time(features, from_scratch, monkeypatch):
    """Such a layer looks like an output layer; the search must then start from the unchanged classifier."""
    trainer, begun = from_scratch(num_train_epochs=1), []
    before = copy.deepcopy(trainer.crowd_model.state_dict())

    def start(training, seed):
        now = training.model.state_dict()
        begun.append(all(torch.equal(now[name], tensor) for name, tensor in before.items()))

    monkeypatch.setattr(search, "race", lambda *args, **kwargs: pytest.fail("a race"))
    monkeypatch.setattr(search, "start_from_information", start)
    monkeypatch.setattr(trainer, "features_of", lambda model, dataset: features)
    assert can_race(trainer._training())
    trainer.train()
    assert begun[0]
    assert trainer.start.tried


@pytest.mark.slow
def test_training_ends_as_a_search_by_the_classifier_itself_would_have_it(
    from_scratch, pictures, crowd
):
    """With all defaults, classifier, W and forecast must come out right."""
    trainer = from_scratch(num_train_epochs=10)
    metrics = trainer.train().metrics
    assert metrics["aggregator_learning_rate"] == pytest.approx(1e-2)
    assert "search_gain_0.01" in trainer.state.log_history[0]
    truth = np.array(crowd["label"][:])
    log_h, _, log_forecast = trainer.predict(pictures).predictions
    assert (log_h.argmax(axis=1) == truth).mean() > 0.9
    assert (log_forecast.argmax(axis=1) == truth).mean() > 0.9
