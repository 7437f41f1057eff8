"""The rivals compared with independent implementations, and with theory on small worlds."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from hf_maxmig.model.surgery import output_layers
from hf_maxmig.peers import (
    PEERS,
    AggNetModel,
    DoctorNetModel,
    MajorityVoteModel,
    MBEMModel,
    doctor_net,
    peer,
)
from hf_maxmig.peers.aggregated import ALGORITHMS, AggregatedConfig, aggregate_labels
from hf_maxmig.peers.annotator_matrices import AnnotatorMatrices
from hf_maxmig.peers.mbem import MBEMConfig
from hf_maxmig.peers.output_layer import output_layer
from tests import reference
from tests.networks import small_head


def simulated(num_items=300, num_annotators=6, num_classes=3, seed=0):
    """Draw votes of annotators with random confusion matrices, some of them missing, and the truth."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(
        num_classes, size=num_items, p=np.arange(1, num_classes + 1) / sum(range(num_classes + 1))
    )
    matrices = np.eye(num_classes) * 1.5 + rng.dirichlet(
        np.ones(num_classes), (num_annotators, num_classes)
    )
    matrices /= matrices.sum(axis=-1, keepdims=True)
    said = np.array(
        [[rng.choice(num_classes, p=matrices[m, c]) for m in range(num_annotators)] for c in truth]
    )
    missing = rng.random(said.shape) < 0.3
    missing[:, 0] &= ~missing[:, 1:].all(axis=1)  # each item has a label
    who = np.tile(np.arange(num_annotators), (num_items, 1))
    who[missing] = said[missing] = -1
    return torch.from_numpy(who), torch.from_numpy(said), torch.from_numpy(truth)


def as_table(who, said):
    pandas = pytest.importorskip("pandas")
    item, slot = (who >= 0).nonzero(as_tuple=True)
    return pandas.DataFrame(
        {"task": item.numpy(), "worker": who[item, slot].numpy(), "label": said[item, slot].numpy()}
    )


FEWER_ROUNDS = {
    "glad": {"n_iter": 5},
    "mace": {"n_restarts": 2, "n_iter": 5},
    "zero_based_skill": {"n_iter": 5},
}


def crowd_kit(name):
    return getattr(pytest.importorskip("crowdkit.aggregation"), name)


# AggNet


def finite_world(num_classes=3, num_annotators=2, num_features=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.1  # noqa: E731
    normal = lambda t: t / t.sum(dim=-1, keepdim=True)  # noqa: E731
    return (
        normal(draw(num_classes)),
        normal(draw(num_classes, num_features)),
        normal(draw(num_annotators, num_classes, num_classes)),
    )


def test_e_step_of_the_true_matrices_is_bayes_posterior():
    """With the prior counted twice, or a matrix read by its columns, the result would still be probabilities."""
    prior, x_given_c, matrices = finite_world()
    num_classes = len(prior)
    answers = list(itertools.product(range(num_classes), repeat=len(matrices)))
    y_given_c = torch.stack(
        [torch.stack([matrices[m, :, r] for m, r in enumerate(y)]).prod(dim=0) for y in answers], dim=1
    )  # fmt: skip
    h, g, zeta = reference.posteriors(prior, x_given_c, y_given_c)
    model = AggNetModel.from_classifier(
        small_head(num_classes), num_annotators=len(matrices), prior=prior.tolist()
    )
    model.aggregator.table.copy_(matrices.log().transpose(1, 2))
    who = torch.arange(len(matrices)).repeat(len(answers), 1)
    said = torch.tensor(answers)
    log_g = model.aggregator(model.prior(), who, said)
    torch.testing.assert_close(log_g.exp().double(), g, rtol=0, atol=1e-6)
    for x in range(len(h)):
        model.classifier.register_forward_hook(
            lambda module, i, output, x=x: output.__setitem__(
                "logits", h[x].log().float().expand(len(answers), -1)
            )
        )
        out = model(features=torch.zeros(len(answers), 5), annotators=who, annotations=said)
        torch.testing.assert_close(out.forecast_logits.exp().double(), zeta[x], rtol=0, atol=1e-6)


def aggnet_and_batch(num_items=9):
    who, said, _ = simulated(num_items)
    model = AggNetModel.from_classifier(small_head(3), num_annotators=6)
    model.initialize_crowd([(who, said)])
    model.rounds_done += 1  # past the first epoch
    features = torch.randn(num_items, 5, generator=torch.Generator().manual_seed(1))
    return model, {"features": features, "annotators": who, "annotations": said}


def test_loss_has_the_gradient_of_the_cross_entropy_against_the_posterior():
    """EM's M-step for the network: with a gradient through q, or h in place of q, it would still learn something."""
    model, batch = aggnet_and_batch()
    out = model(**batch)
    loss, _ = model.crowd_loss(out, batch)
    q = out.forecast_logits.detach().exp()
    expected = -(q * out.logits.log_softmax(-1)).sum(dim=1).mean()
    wanted = torch.autograd.grad(expected, list(model.classifier.parameters()), retain_graph=True)
    given = torch.autograd.grad(loss, list(model.classifier.parameters()))
    assert max(g.abs().max() for g in wanted) > 1e-3
    for first, second in zip(given, wanted, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-6)


def test_loss_is_minus_the_likelihood_up_to_the_crowds_own_part():
    """The log-likelihood in loops over annotators, which EM must never decrease."""
    model, batch = aggnet_and_batch()
    out = model(**batch)
    loss, _ = model.crowd_loss(out, batch)
    h = out.logits.softmax(-1).detach().double()
    matrices = model.aggregator.weight.exp().double()
    p = model.prior().exp().double()
    with_data = without = 0.0
    for i, (who, said) in enumerate(
        zip(batch["annotators"].tolist(), batch["annotations"].tolist(), strict=True)
    ):
        likelihood = torch.ones(3, dtype=torch.float64)
        for m, r in zip(who, said, strict=True):
            if m >= 0:
                likelihood = likelihood * matrices[m, :, r]
        with_data += float((h[i] * likelihood).sum().log())
        without += float((p * likelihood).sum().log())
    assert loss.item() == pytest.approx(-(with_data - without) / len(h), abs=1e-5)


def em(model, who, said, rounds):
    """Run EM with a classifier that only knows the prior; return the posterior of each item."""
    model.initialize_crowd([(who, said)], smoothing=1e-9)
    for _ in range(rounds):
        log_p = model.prior().expand(len(who), -1)
        log_g = model.aggregator(model.prior(), who, said)
        model.end_epoch([((log_p, log_g, log_g), who, said)], progress=0.5)
    return model.aggregator(model.prior(), who, said).exp()


@pytest.mark.parametrize("num_classes", [3, 7])
def test_em_without_a_classifier_is_dawid_and_skene(num_classes):
    """Compared with crowd-kit: M-step, prior and E-step at once, also with more classes than annotators."""
    who, said, truth = simulated(num_items=1500, num_classes=num_classes)
    model = AggNetModel.from_classifier(small_head(num_classes), num_annotators=6, smoothing=1e-9)
    ours = em(model, who, said, rounds=5)  # plus one more E-step
    theirs = torch.from_numpy(
        aggregate_labels_quietly("DawidSkene", who, said, num_classes, n_iter=6, tol=-1.0)
    )
    votes = MajorityVoteModel.from_classifier(small_head(num_classes), num_annotators=6).targets(
        {"annotators": who, "annotations": said}
    )
    assert (ours.argmax(1) != votes.argmax(1)).sum() > 5  # or majority vote would agree as well
    assert (ours.argmax(1) == truth).float().mean() > 0.7
    assert (ours.argmax(1) == theirs.argmax(1)).float().mean() > 0.99
    # The remaining difference is the pseudo-item of our prior.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.01)


def aggregate_labels_quietly(name, who, said, num_classes, **options):
    crowd_kit(name)
    return aggregate_labels([(who, said)], name, num_classes, **options)


def test_m_step_is_the_naive_count_and_does_not_look_at_unlabelled_items():
    """An item that nobody labelled must not move the prior."""
    who, said, _ = simulated(9)
    who[0] = said[0] = -1
    posterior = torch.rand(9, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    model = AggNetModel.from_classifier(small_head(3), num_annotators=6, smoothing=0.3)
    model.end_epoch([((posterior.log(),) * 3, who, said)], progress=0.5)
    counts = reference.confusion_counts(posterior.double(), who, said, 6)
    expected = reference.confusion(counts, 0.3)
    seen = counts.sum(dim=(1, 2)) > 0
    torch.testing.assert_close(
        model.aggregator.weight.exp().double()[seen], expected[seen], rtol=0, atol=1e-6
    )
    mass = posterior[1:].sum(dim=0) + 1 / 3
    torch.testing.assert_close(model.prior().exp(), mass / mass.sum(), rtol=0, atol=1e-6)


def test_fixed_prior_stays_and_a_learned_one_is_refused():
    """A gradient for the prior through the normaliser of g would not be that of a likelihood."""
    who, said, _ = simulated(9)
    for prior in ("uniform", [0.5, 0.3, 0.2]):
        model = AggNetModel.from_classifier(small_head(3), num_annotators=6, prior=prior)
        before = model.prior().clone()
        em(model, who, said, rounds=2)
        torch.testing.assert_close(model.prior(), before)
    with pytest.raises(ValueError, match="got 'learned'"):
        AggNetModel.from_classifier(small_head(3), num_annotators=6, prior="learned")


# MBEM and Raykar


def test_mbem_counts_with_the_classifiers_answers_once_a_round():
    """If votes were counted in each epoch, an untrained classifier would judge the annotators."""
    who, said, truth = simulated(60)
    model = MBEMModel.from_classifier(small_head(3), num_annotators=6, rounds=3, smoothing=0.1)
    model.initialize_crowd([(who, said)])
    before = model.aggregator.table.clone()
    sure = torch.nn.functional.one_hot(truth, 3).float()
    log_h = (0.6 * sure + 0.4 / 3).log()
    outputs = [((log_h, torch.zeros_like(log_h), torch.zeros_like(log_h)), who, said)]
    model.end_epoch(outputs, progress=0.2)
    torch.testing.assert_close(model.aggregator.table, before)
    model.end_epoch(outputs, progress=1 / 3)
    expected = reference.confusion(reference.confusion_counts(sure.double(), who, said, 6), 0.1)
    torch.testing.assert_close(model.aggregator.weight.exp().double(), expected, rtol=0, atol=1e-6)
    model.end_epoch([], progress=0.5)  # the round continues, so nothing is counted
    torch.testing.assert_close(model.aggregator.weight.exp().double(), expected, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="`rounds` must be at least 1"):
        MBEMConfig(rounds=0)


def test_mbem_trains_on_what_the_labels_say():
    """With the forecast in place of g, the classifier would teach itself."""
    who, said, _ = simulated(9)
    model = MBEMModel.from_classifier(small_head(3), num_annotators=6)
    model.initialize_crowd([(who, said)])
    model.rounds_done += 1
    batch = {"features": torch.randn(9, 5), "annotators": who, "annotations": said}
    out = model(**batch)
    loss, _ = model.crowd_loss(out, batch)
    g = reference.aggregate(model.aggregator.weight, model.prior().exp(), who, said)
    expected = -(g * out.logits.double().log_softmax(-1)).sum(dim=1).mean()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("model_class", [AggNetModel, MBEMModel])
def test_em_starts_from_the_vote_share(model_class):
    """Started from the first matrices' posterior, a naive majority would merge two classes for good."""
    who, said, _ = simulated(9)
    said[0, -1] = who[0, -1] = -1
    model = model_class.from_classifier(small_head(3), num_annotators=6)
    model.end_epoch([(torch.full((3, 9, 3), 1 / 3).log().unbind(), who, said)], progress=1.0)
    assert model.rounds_done == (1 if model_class is AggNetModel else 2)
    model.initialize_crowd([(who, said)])  # another run starts
    batch = {"features": torch.randn(9, 5), "annotators": who, "annotations": said}
    out = model(**batch)
    loss, _ = model.crowd_loss(out, batch)
    share = reference.vote_share(said, 3)
    expected = -(share * out.logits.double().log_softmax(-1)).sum(dim=1).mean()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)


def test_output_layer_is_the_last_linear_one_as_wide_as_the_classes():
    """A convolution has no feature vector of an item as its input, and a hidden layer is not the last."""
    last, mixer = nn.Linear(4, 3), nn.Conv2d(3, 3, 1)
    classifier = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 4), last, mixer)
    assert output_layers(classifier, 3)[-1] is mixer
    assert output_layer(classifier, 3) is last
    with pytest.raises(TypeError, match="one output per class = 3, got Sequential without one"):
        output_layer(nn.Sequential(nn.Linear(5, 4), mixer), 3)


def test_raykar_trains_the_output_layer_only(tmp_path):
    """Training the body too would make it AggNet, and `from_pretrained` gives every parameter a gradient."""
    model = peer("raykar", small_head(3), num_annotators=6)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    for each in (model, again, again.train()):
        trained = {n for n, p in each.named_parameters() if p.requires_grad}
        assert trained == {"classifier.output.weight", "classifier.output.bias"}
    assert not again.classifier.dropout.training


# Crowd Layer


def test_crowd_layer_is_crowd_kits_module():
    """A transposed matrix would still learn: the identity and its transpose are equal at first."""
    module = pytest.importorskip("crowdkit.learning").CrowdLayer(num_labels=5, n_workers=4)
    ours = AnnotatorMatrices(num_annotators=4, num_classes=5)
    who = torch.tensor([[0, 3], [2, 1], [1, 1]])
    h = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).softmax(-1)
    weight = torch.randn(4, 5, 5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(module.weight, ours.table)  # both start at the identity
        module.weight.copy_(weight)
        ours.table.copy_(weight)
    expected = torch.stack([module(h, who[:, k]) for k in range(2)], dim=1)
    torch.testing.assert_close(ours(h, who), expected)


def test_crowd_layer_at_equation_2_says_the_confusion_row_of_a_sure_classifier():
    """This follows from the log in equation 2; without it the layer knows almost nothing."""
    who, said, _ = simulated(60)
    layer = peer("crowd_layer_vote_share", small_head(3), num_annotators=6)
    layer.initialize_crowd([(who, said)])
    aggnet = peer("aggnet", small_head(3), num_annotators=6)
    aggnet.initialize_crowd([(who, said)])
    says = layer.matrices(torch.eye(3), torch.arange(6).repeat(3, 1)).softmax(-1)
    torch.testing.assert_close(says.transpose(0, 1), aggnet.aggregator.weight.exp())


def test_crowd_layer_loss_is_the_mean_over_all_labels():
    """Compared with naive loops in which each label is one term."""
    who, said, _ = simulated(9)
    model = peer("crowd_layer", small_head(3), num_annotators=6)
    torch.nn.init.normal_(model.matrices.table)
    batch = {"features": torch.randn(9, 5), "annotators": who, "annotations": said}
    out = model(**batch)
    h = out.logits.softmax(-1)
    terms = [
        -(model.matrices.table[m] @ h[i]).log_softmax(-1)[r]
        for i in range(9)
        for m, r in zip(who[i].tolist(), said[i].tolist(), strict=True)
        if m >= 0
    ]
    assert len({len([m for m in row if m >= 0]) for row in who.tolist()}) > 1
    loss, _ = model.crowd_loss(out, batch)
    torch.testing.assert_close(loss, torch.stack(terms).mean())


# Doctor Net


@pytest.mark.parametrize("few", [0, doctor_net.FEW], ids=["heads read", "all heads"])
@pytest.mark.parametrize("average", ["equal", "learned"])
def test_doctor_net_is_the_average_of_its_heads(average, few, monkeypatch):
    """Compared with loops: the average is of probabilities, not of logits, over the annotators with labels."""
    monkeypatch.setattr(doctor_net, "FEW", few)
    who, said, _ = simulated(9, num_annotators=4)
    said = torch.where(who == 2, -1, said)
    model = DoctorNetModel.from_classifier(small_head(3), num_annotators=4, average=average).train()
    torch.nn.init.normal_(model.heads.weight)
    torch.nn.init.normal_(model.heads.bias)
    if average == "learned":
        torch.nn.init.normal_(model.heads.importance)
    model.initialize_crowd([(who, said)])
    assert model.heads.active.tolist() == [1, 1, 0, 1]
    features = torch.randn(9, 5)
    hidden = model.classifier.fc(features).relu()
    says = [(hidden @ model.heads.weight[m].T + model.heads.bias[m]).softmax(-1) for m in range(4)]
    score = [1.0] * 4 if average == "equal" else model.heads.importance.exp().tolist()
    expected = sum(score[m] * says[m] for m in (0, 1, 3)) / sum(score[m] for m in (0, 1, 3))
    torch.testing.assert_close(model.eval()(features=features).logits.exp(), expected)
    batch = {"features": features, "annotators": who, "annotations": said}
    loss, _ = model.crowd_loss(model.train()(**batch), batch)
    terms = [
        -says[m][i, r].log()
        for i in range(9)
        for m, r in zip(who[i].tolist(), said[i].tolist(), strict=True)
        if m >= 0 and r >= 0
    ]
    wanted = torch.stack(terms).mean()
    if average == "learned":
        share = reference.vote_share(said, 3).float()
        voted = share.sum(dim=1) > 0
        wanted = wanted - (share * expected.log()).sum(dim=1)[voted].mean()
    torch.testing.assert_close(loss, wanted)


def test_doctor_net_has_the_same_gradients_from_all_heads_and_from_those_that_are_read(monkeypatch):
    """Which of the two is faster only depends on the size of the crowd."""
    who, said, _ = simulated(9, num_annotators=4)
    who[0, 0] = said[0, 0] = -1
    features = torch.randn(9, 5)
    batch = {"features": features, "annotators": who, "annotations": said}
    found = []
    for few in (0, doctor_net.FEW):
        monkeypatch.setattr(doctor_net, "FEW", few)
        model = DoctorNetModel.from_classifier(small_head(3), num_annotators=4).train()
        model.crowd_loss(model(**batch), batch)[0].backward()
        found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert set(found[0]) > {"heads.weight", "heads.bias"}
    torch.testing.assert_close(found[0], found[1])


def test_doctor_net_starts_as_the_classifier_and_leaves_it_its_mean_head():
    """A pretrained output layer must not be lost, and the classifier alone must predict something useful."""
    plain = small_head(3)
    features = torch.randn(4, 5)
    before = plain(features=features).logits.log_softmax(-1).detach()
    model = DoctorNetModel.from_classifier(plain, num_annotators=2).eval()
    torch.testing.assert_close(model(features=features).logits, before)
    with torch.no_grad():
        model.heads.weight[1] += 1.0
    model.end_epoch([], progress=1.0)
    torch.testing.assert_close(plain.output.weight, model.heads.weight.mean(dim=0))
    torch.testing.assert_close(plain.output.bias, model.heads.bias.mean(dim=0))


def test_doctor_net_needs_training_mode_for_its_loss():
    """In evaluation mode only the average of the heads is computed."""
    who, said, _ = simulated(9)
    model = peer("doctor_net", small_head(3), num_annotators=6).eval()
    with pytest.raises(ValueError, match="in training mode"):
        model(features=torch.randn(9, 5), annotators=who, annotations=said, return_loss=True)


# Majority vote, and the label-only methods


def test_majority_vote_shares_ties_and_does_not_count_strangers():
    """A first class that wins every tie is a bias that no accuracy shows."""
    model = peer("majority_vote", small_head(3), num_annotators=6)
    who = torch.tensor([[0, 1, 2, 3], [0, 1, 2, -1], [0, 1, -1, -1], [-1, 1, 0, 3]])
    said = torch.tensor([[2, 0, 2, 0], [1, 1, 0, -1], [-1, -1, 2, 2], [0, 1, 1, -1]])
    targets = model.targets({"annotators": who, "annotations": said})
    half = [0.5, 0.0, 0.5]
    assert targets.tolist() == [half, [0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "glad" else [])
        for name in ALGORITHMS
        if name != "kos"
    ],
)
def test_label_only_methods_give_crowd_kits_answer_to_the_right_item(name):
    """Rows could be shifted by an item without labels, or classes by one that nobody named."""
    who, said, _ = simulated(40)
    who[[0, 13]] = said[[0, 13]] = -1
    kind = crowd_kit(ALGORITHMS[name])
    options = FEWER_ROUNDS.get(name, {})
    halves = [(who[:17], said[:17]), (who[17:], said[17:])]
    ours = aggregate_labels(halves, ALGORITHMS[name], num_classes=5, **options)
    assert ours.shape == (40, 5)
    assert (ours[[0, 13]] == 0).all()
    assert (ours[:, 3:] == 0).all()
    voted = np.delete(np.arange(40), [0, 13])
    np.testing.assert_allclose(ours[voted].sum(axis=1), 1, atol=1e-5)
    if name in ("wawa", "zero_based_skill"):
        return  # their own prediction needs an older scikit-learn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = kind(**options).fit_predict(as_table(who, said))
    assert (ours[answer.index].argmax(axis=1) == answer.to_numpy()).all()


def test_kos_takes_two_classes():
    """KOS is defined only for two classes."""
    who, said, truth = simulated(60, num_classes=2)
    posterior = aggregate_labels_quietly("KOS", who, said, num_classes=2)
    assert (posterior.argmax(axis=1) == truth.numpy()).mean() > 0.75
    with pytest.raises(ValueError, match="must have two classes"):
        AggregatedConfig(algorithm="kos", num_labels=3)
    with pytest.raises(ValueError, match="must be one of dawid_skene"):
        AggregatedConfig(algorithm="gladd")


def test_missing_crowd_kit_is_told_by_the_name_of_the_extra(monkeypatch):
    """Otherwise the user gets an ImportError about an unknown module."""
    monkeypatch.setitem(__import__("sys").modules, "crowdkit.aggregation", None)
    who, said, _ = simulated(9)
    with pytest.raises(ImportError, match=r"hf_maxmig\[peers\]"):
        aggregate_labels([(who, said)], "GLAD", 3)


def test_label_only_method_needs_labels_and_a_length():
    """All labels are read before the first step."""
    model = peer("wawa", small_head(3), num_annotators=6)
    with pytest.raises(TypeError, match="must have a length"):
        model.prepare(iter([]), [])
    crowd_kit("Wawa")
    nothing = torch.full((2, 1), -1)
    with pytest.raises(ValueError, match="at least one label"):
        aggregate_labels([(nothing, nothing)], "Wawa", 3)
    with pytest.raises(ValueError, match="must have `crowd_posterior`"):
        model.targets({"annotators": nothing})


def test_every_label_only_method_of_the_table_exists():
    """A row whose class crowd-kit lacks would fail only when training starts."""
    assert {fields["algorithm"] for _, fields in PEERS.values() if "algorithm" in fields} == set(
        ALGORITHMS
    )
    for name in ALGORITHMS.values():
        assert crowd_kit(name)
