"""A class that nobody voted for takes part in nothing: prior, start, gain, forecast, names, report."""

import math

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_maxmig import (
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    MaxMIGTrainer,
    add_annotations,
    forecast,
    mutual_information_gain,
)
from hf_maxmig.data.collator import CrowdCollator, crowd_batches
from hf_maxmig.metrics import gain_ceiling
from hf_maxmig.model.aggregators import AGGREGATORS, ClassPrior
from hf_maxmig.model.functional import NO_MASS
from hf_maxmig.model.votes import voted_classes
from hf_maxmig.peers import peer
from hf_maxmig.training.class_names import clear_names
from hf_maxmig.training.strength import with_strength

NAMES = ["ant", "bee", "cow", "doe"]
UNVOTED = 1  # in the middle: code that only cuts off the end would pass otherwise
VOTED = torch.tensor([c != UNVOTED for c in range(4)])
WHO = torch.tensor([[0, 1, 2], [0, 1, -1], [2, 1, 0], [0, 2, -1], [1, -1, -1], [0, 1, 2]])
SAID = torch.tensor([[0, 0, 2], [2, 2, -1], [3, 3, 3], [3, 0, -1], [2, -1, -1], [0, 2, 2]])


def model_of(num_classes=4, **fields):
    torch.manual_seed(0)
    head = HeadClassifier(
        HeadConfig(input_size=5, hidden_size=6, num_labels=num_classes, dropout=0.0)
    )
    return MaxMIGModel.from_classifier(head, num_annotators=3, **fields).eval()


def in_three(annotations):
    """Renumber votes as if the unvoted class did not exist."""
    return torch.where(annotations > UNVOTED, annotations - 1, annotations)


@pytest.mark.parametrize("prior", ["uniform", "vote_share", "learned"])
def test_prior_has_no_mass_for_a_class_nobody_voted_for(prior):
    """With a pseudo-vote, or a share of a uniform prior, the class would attract items, and log 0 is not finite."""
    model, three = model_of(prior=prior), model_of(3, prior=prior)
    model.initialize_crowd([(WHO, SAID)])
    three.initialize_crowd([(WHO, in_three(SAID))])
    log_p = model.log_prior()
    assert log_p[UNVOTED] == NO_MASS
    assert log_p.isfinite().all()
    torch.testing.assert_close(log_p[VOTED].exp().sum(), torch.tensor(1.0))
    if prior == "uniform":
        torch.testing.assert_close(log_p[VOTED], three.log_prior())


def test_prior_that_was_given_stays_as_given():
    """A user who says that one item in ten is of the class knows more than the votes."""
    given = [0.3, 0.1, 0.3, 0.3]
    model = model_of(prior=given)
    model.initialize_crowd([(WHO, SAID)])
    torch.testing.assert_close(model.log_prior().exp(), torch.tensor(given))
    assert not model.prior.left_out.any()


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_aggregator_and_forecast_leave_it_out(aggregator):
    """Contradictory votes and an unsure classifier both used to end up in the unvoted class."""
    model = model_of(aggregator=aggregator)
    model.initialize_crowd([(WHO, SAID)])
    with torch.no_grad():
        out = model(features=torch.randn(6, 5), annotators=WHO, annotations=SAID)
    for log in (out.aggregator_logits, out.forecast_logits):
        assert log.isfinite().all()
        assert (log[:, UNVOTED] < NO_MASS + 5).all()
        torch.testing.assert_close(log[:, VOTED].exp().sum(dim=1), torch.ones(6))


@pytest.mark.parametrize("divergence", ["kl", "pearson", "jensen_shannon"])
def test_gain_is_that_of_the_classes_there_are(divergence):
    """The gain divides by p: for a class without mass, 1 / p^2 must neither be infinite nor count."""
    model, three = model_of(), model_of(3)
    model.initialize_crowd([(WHO, SAID)])
    three.initialize_crowd([(WHO, in_three(SAID))])
    log_h = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    log_p, fewer = model.log_prior(), three.log_prior()
    log_g = model.aggregator(log_p, WHO, SAID)
    # W of the others is unchanged, except for the column of a report that nobody made.
    log_g_three = log_g[:, VOTED].log_softmax(-1)
    four = torch.full((6, 4), -50.0)
    four[:, VOTED] = log_h
    found = mutual_information_gain(four, log_g, log_p, divergence)
    expected = mutual_information_gain(log_h, log_g_three, fewer, divergence)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        forecast(four, log_g, log_p)[:, VOTED],
        forecast(log_h, log_g_three, fewer),
        rtol=1e-5,
        atol=1e-5,
    )
    assert gain_ceiling(log_p, divergence) == pytest.approx(
        gain_ceiling(fewer, divergence), rel=1e-6
    )


@pytest.mark.parametrize("divergence", ["kl", "pearson", "jensen_shannon"])
@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_gradients_are_finite_and_turn_the_classifier_away_from_it(aggregator, divergence):
    """One NaN beside a zero would make all weights NaN after a step."""
    model = model_of(prior="learned", aggregator=aggregator, divergence=divergence)
    model.initialize_crowd([(WHO, SAID)])
    logits = torch.zeros(6, 4, requires_grad=True)
    log_g = model.aggregator(model.prior(), WHO, SAID)
    gain = mutual_information_gain(logits.log_softmax(-1), log_g, model.prior(), divergence)
    gain.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert logits.grad[:, UNVOTED].sum() < 0
    assert model.prior.logits.grad[UNVOTED] == 0
    assert model.prior.logits.grad[VOTED].abs().sum() > 0


def test_what_is_left_out_survives_the_disk_another_prior_and_another_order(tmp_path):
    """A model that is loaded or resumed would let the class in again."""
    model = model_of()
    model.initialize_crowd([(WHO, SAID)])
    model.save_pretrained(tmp_path)
    again = MaxMIGModel.from_pretrained(tmp_path)
    assert torch.equal(again.prior.left_out, ~VOTED)
    for prior in ("learned", "vote_share", "uniform"):
        again.use_prior(prior, [(WHO, SAID)])
        assert torch.equal(again.prior.left_out, ~VOTED), prior
    again.use_aggregator("interaction")
    assert torch.equal(again.prior.left_out, ~VOTED)
    assert again.reorder_classes(torch.tensor([1, 0, 2, 3]), {"features": torch.randn(3, 5)})
    assert again.prior.left_out.tolist() == [True, False, False, False]
    again.initialize_crowd([(WHO, SAID.clamp(max=1)), (WHO, SAID)])  # now somebody has voted for it
    assert not again.prior.left_out.any()


def test_em_methods_keep_it_out_at_each_step():
    """They estimate their prior anew in each step, from posteriors whose sixteenth digit is not zero."""
    torch.manual_seed(0)
    head = HeadClassifier(HeadConfig(input_size=5, num_labels=4))
    model = peer("aggnet", head, num_annotators=3)
    model.initialize_crowd([(WHO, SAID)])
    with torch.no_grad():
        out = model(features=torch.randn(6, 5), annotators=WHO, annotations=SAID)
    logs = (out.log_h, out.aggregator_logits, out.forecast_logits)
    model.end_epoch([(logs, WHO, SAID)], progress=1.0)
    assert model.log_prior()[UNVOTED] == NO_MASS
    assert model.log_prior().isfinite().all()


@pytest.mark.parametrize("strength", [0.1, 1.0, 10.0])
def test_strength_is_found_without_it(strength):
    """At a tenth of the strength, "no mass" would become a mass again."""
    model = model_of()
    model.initialize_crowd([(WHO, SAID)])
    log_p = model.log_prior()
    weaker = with_strength(model.aggregator(log_p, WHO, SAID), log_p, strength)
    model.aggregator.strengthen(strength)
    torch.testing.assert_close(weaker, model.aggregator(log_p, WHO, SAID), rtol=1e-4, atol=1e-4)


def test_votes_by_unknown_annotators_are_no_votes():
    """Nothing is known about what these annotators mean by a label."""
    assert voted_classes([(torch.tensor([[-1, 0]]), torch.tensor([[1, 2]]))], 4).tolist() == [
        False, False, True, False,
    ]  # fmt: skip


def test_class_that_only_later_items_name_is_not_left_out(make_args):
    """The first items start the aggregator, and may lack a rare class."""
    items = Dataset.from_dict({"id": list(range(40)), "features": np.zeros((40, 5)).tolist()})
    said = ["ant", "cow"] * 19 + ["doe", "doe"]
    votes = {"item": list(range(40)), "annotator": ["p", "q"] * 20, "annotation": said}
    dataset = add_annotations(items, votes, "id", classes=NAMES)
    for data, left_out in (
        (dataset, [False, True, False, False]),
        (dataset.to_iterable_dataset(), [False] * 4),
    ):
        head = HeadClassifier(HeadConfig(input_size=5, num_labels=4))
        trainer = MaxMIGTrainer(
            model=head, args=make_args(max_steps=1), train_dataset=data, start_from=10
        )
        trainer.train()
        assert trainer.crowd_model.prior.left_out.tolist() == left_out


# Names


def crowd_of(truth, repeat=1, constant=None):
    said = torch.tensor(truth)[:, None].repeat(1, repeat)
    if constant is not None:
        said = torch.cat([said, torch.full((len(said), 4), constant)], dim=1)
    return said


def test_name_that_nobody_said_stays_where_it_is():
    """An unused name costs nothing to give away.

    It used to go to the worst of the other classes, which lost its own.
    """
    truth = [0, 2, 3] * 20
    posterior = torch.eye(4)[truth] * 0.9
    posterior[:, UNVOTED] = 0.1
    posterior[::20] = torch.eye(4)[UNVOTED]  # a few items that resemble no class
    posterior[::3, 0], posterior[::3, 2] = 0.4, 0.5
    said = crowd_of(truth)
    assert clear_names(lambda: [(posterior, said)])[UNVOTED] == UNVOTED


def test_names_change_only_on_clear_evidence():
    """A class with a single item used to be renamed by a single vote."""
    for number, changes in ((1, False), (20, True)):
        truth = [0, 1] * number + [2, 3] * 20
        posterior = torch.eye(4)[[1, 0, 2, 3]][truth]
        order = clear_names(lambda: [(posterior, crowd_of(truth))])  # noqa: B023
        assert order.tolist() == ([1, 0, 2, 3] if changes else [0, 1, 2, 3])


def test_exchanges_are_judged_one_by_one():
    """A clear swap must neither carry along a doubtful one nor wait for it."""
    truth = [0, 1] * 20 + [2, 3]
    posterior = torch.eye(4)[[1, 0, 3, 2]][truth]
    assert clear_names(lambda: [(posterior, crowd_of(truth))]).tolist() == [1, 0, 2, 3]
    three = torch.eye(4)[[1, 2, 0, 3]][[0, 1, 2, 3] * 20]
    order = clear_names(lambda: [(three, crowd_of([0, 1, 2, 3] * 20))])
    assert torch.equal(three[:, order], torch.eye(4)[[0, 1, 2, 3] * 20])


def test_weak_evidence_of_many_items_names_two_classes_that_few_can_tell_apart():
    """Correlated mistakes leave weak evidence.

    Demanding three standard errors kept two digits swapped in a perfect model.
    """
    truth = [0] * 100 + [1] * 100 + [2, 3] * 100
    said = [0] * 61 + [1] * 39 + [0] * 75 + [1] * 25 + [2, 3] * 100
    swapped = torch.eye(4)[truth]
    votes = torch.tensor(said)[:, None]
    assert clear_names(lambda: [(swapped, votes)]).tolist() == [1, 0, 2, 3]
    right = swapped[:, [1, 0, 2, 3]]
    assert clear_names(lambda: [(right, votes)]).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("constant", [0, 3])
def test_constant_annotators_have_no_say_however_unlike_the_classes_are(constant):
    """Four of five annotators who always say one class would give its name to the most frequent one."""
    truth = [0] * 60 + [2] * 12 + [3] * 12
    right = torch.eye(4)[truth]
    said = crowd_of(truth, constant=constant)
    assert clear_names(lambda: [(right, said)]).tolist() == [0, 1, 2, 3]
    wrong = torch.eye(4)[[2, 1, 0, 3]][truth]
    assert clear_names(lambda: [(wrong, said)]).tolist() == [2, 1, 0, 3]


# Whole trainings


def project(seed, names, num_items=60):
    """Return items of three classes and votes of five people, two of them poor."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(3, size=num_items)
    centre = rng.normal(size=(4, 5))
    centre /= np.linalg.norm(centre, axis=1, keepdims=True)
    x = centre[truth] * 5 + rng.normal(size=(num_items, 5))
    items = {"id": list(range(num_items)), "features": x.astype("float32").tolist()}
    votes = {"item": [], "annotator": [], "annotation": []}
    said = [name for name in names if name != "bee"]
    for i, c in enumerate(truth):
        for m in rng.choice(5, size=4, replace=False):
            right = rng.random() < (0.9, 0.9, 0.9, 0.6, 0.4)[m]
            r = c if right else rng.choice([v for v in range(3) if v != c])
            for column, value in zip(votes, (i, f"w{m}", said[r]), strict=True):
                votes[column].append(value)
    dataset = add_annotations(Dataset.from_dict(items), votes, "id", classes=names)
    return dataset, [said[c] for c in truth]


def accuracy(trainer, dataset, truth):
    names = trainer.crowd_model.config.class_names
    answers = [names[c] for c in trainer.predict(dataset).predictions[2].argmax(axis=1)]
    return np.mean([a == t for a, t in zip(answers, truth, strict=True)]), answers


def trained(names, make_args, seed, **changes):
    dataset, truth = project(seed, names)
    torch.manual_seed(seed)
    head = HeadClassifier(HeadConfig(input_size=5, num_labels=len(names)))
    args = make_args(
        num_train_epochs=50,
        learning_rate=1e-3,
        seed=seed,
        per_device_train_batch_size=64,
        **changes,
    )
    trainer = MaxMIGTrainer(model=head, args=args, train_dataset=dataset)
    trainer.train()
    right, answers = accuracy(trainer, dataset, truth)
    assert "bee" not in answers
    return trainer, right


@pytest.mark.slow
def test_spare_class_takes_no_items_from_the_others(make_args):
    """With a share of the prior, a class that nobody had named took one in five of this project's items."""
    names = ["ant", "cow", "doe", "bee"]
    trainer, right = trained(names, make_args, 0, init=None, search_rate=True)
    _, without = trained(names[:3], make_args, 0, init=None, search_rate=True)
    assert right > 0.9
    assert right >= without
    assert "bee" not in trainer.relabel(trainer.train_dataset)["forecast"][:]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"divergence": "pearson"}, {"prior": "learned"}], ids=str)
def test_fourth_name_in_the_project_changes_nothing(changes, make_args):
    """An unused name must not matter, wherever it stands in the list."""
    accuracies = {4: [], 3: []}
    for seed in range(3):
        for names in (NAMES, [name for name in NAMES if name != "bee"]):
            accuracies[len(names)].append(trained(names, make_args, seed, **changes)[1])
    assert np.mean(accuracies[4]) > np.mean(accuracies[3]) - 0.03, accuracies


@pytest.mark.slow
def test_classifier_that_knows_the_class_is_outvoted(make_args):
    """A classifier that is sure of the class would outweigh all votes, because they say nothing against it."""
    dataset, truth = project(0, NAMES)
    torch.manual_seed(0)
    head = HeadClassifier(HeadConfig(input_size=5, id2label=dict(enumerate(NAMES))))
    with torch.no_grad():
        head.output.bias[UNVOTED] = 3.0
    trainer = MaxMIGTrainer(
        model=head, args=make_args(init=None, num_train_epochs=30), train_dataset=dataset
    )
    before = np.exp(trainer.predict(dataset).predictions[0][:, UNVOTED]).mean()
    assert before > 0.5
    trainer.train()
    right, answers = accuracy(trainer, dataset, truth)
    assert "bee" not in answers
    assert right > 0.9
    h = trainer.predict(dataset).predictions[0]
    assert np.exp(h[:, UNVOTED]).mean() < 0.1 * before
    assert trainer.report(dataset).counts[:, UNVOTED].sum() < 0.5
    assert math.isfinite(trainer.evaluate(dataset)["eval_gain"])


def test_collator_and_start_agree_on_what_is_voted(make_model, crowd):
    """With a crowd that uses all classes nothing is left out, and the prior is unchanged to the last bit."""
    model = make_model()
    before = model.log_prior().clone()
    model.initialize_crowd(crowd_batches(crowd, CrowdCollator(4, 3)))
    assert torch.equal(model.log_prior(), before)
    assert torch.equal(ClassPrior(3)(), torch.zeros(3).log_softmax(-1))
