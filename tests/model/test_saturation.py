"""Saturated posteriors, small priors, half precision: loss and gradient are finite, or the input is refused."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_maxmig import MaxMIGConfig, MaxMIGTrainer, mutual_information_gain
from hf_maxmig.model.aggregators import LEAST_PRIOR, ClassPrior, check_prior
from hf_maxmig.model.divergences import DIVERGENCES
from hf_maxmig.model.functional import NO_MASS, aggregate, posterior_of, widen

SIZES = (0.0, 1.0, 10.0, 88.0, 200.0, 1e3, 6e4)
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LOG_PRIORS = (-1.0, -5.0, -15.0, -26.0, -28.0, -60.0, -86.0, -88.0, -100.0, -115.0)
CASES = list(itertools.product(SIZES, SIZES, (5, 64)))


def loss_of(logits, scores, log_p, divergence):
    """The loss of a training step from (N, C) logits and the (N, C) sums of the votes' weights."""
    log_h = widen(logits).log_softmax(dim=-1)
    log_g = (scores + log_p).log_softmax(dim=-1)
    return -mutual_information_gain(log_h, log_g, log_p, divergence)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_loss_and_gradient_are_finite_wherever_the_prior_is_taken(divergence, dtype):
    """A twelfth of such combinations used to have a loss or gradient that silently was not finite."""
    draw = torch.Generator().manual_seed(0)
    tried = refused = overflowed = 0
    for log_last, (sure, evidence, number) in itertools.product(LOG_PRIORS, CASES):
        prior = [1.0, 1.0, math.exp(log_last)]
        if log_last < -26:
            refused += 1
            with pytest.raises(ValueError, match="`prior` must give each class"):
                check_prior(prior, num_classes=3)
            continue
        tried += 1
        signs = torch.randn(2, number, 3, generator=draw).sign()
        logits = (signs[0] * sure).to(dtype).requires_grad_()
        scores = (signs[1] * evidence).requires_grad_()
        free = torch.tensor(check_prior(prior, 3)).log().requires_grad_()
        loss = loss_of(logits, scores, free.log_softmax(dim=-1), divergence)
        loss.backward()
        case = (log_last, sure, evidence, number)
        assert loss.isfinite(), case
        assert scores.grad.isfinite().all(), case
        assert free.grad.isfinite().all(), case
        if not logits.grad.isfinite().all():
            # Beyond 65,504 a gradient in fp16 is infinite; the trainer or its loss scaler notices.
            assert dtype == torch.float16, case
            overflowed += 1
    assert tried == 4 * len(CASES)
    assert refused == 6 * len(CASES)
    assert overflowed == 0 or dtype == torch.float16


def test_gradient_beyond_fp16_stops_a_training(crowd, make_model, make_args):
    """A step with an infinite gradient would make all weights NaN."""

    class Half(MaxMIGTrainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            return (loss.half() * 1).float() * 1e30

    trainer = Half(model=make_model(), args=make_args(max_grad_norm=0.0), train_dataset=crowd)
    with pytest.raises(ValueError, match="the gradient must be finite, got a norm of"):
        trainer.train()


@pytest.mark.parametrize(
    "prior",
    [[1.0, 1e-50], [0.5, 1e-40], [1.0, 1e-30], [1e300, 1.0], [1.0, float("inf")], [1.0, float("nan")],
     [1e308, 1e308], [1.0, 5e-324], [1.0, 0.0], [1.0, -1.0]],
)  # fmt: skip
def test_prior_that_float32_cannot_hold_is_refused(prior):
    """If its log is -inf or its inverse infinite, the first step makes all weights NaN."""
    for make in (
        lambda: check_prior(prior, num_classes=2),
        lambda: ClassPrior(2, prior),
        lambda: MaxMIGConfig(num_annotators=2, num_labels=2, prior=prior),
    ):
        with pytest.raises(ValueError, match="`prior` must"):
            make()


@given(st.lists(st.floats(LEAST_PRIOR * 10, 1.0), min_size=2, max_size=6))
def test_prior_that_is_taken_is_finite_in_float32(values):
    """Every other prior must be used as given, however uneven."""
    log_p = ClassPrior(len(values), values)()
    assert log_p.isfinite().all()
    torch.testing.assert_close(log_p.exp().sum(), torch.tensor(1.0))
    total = sum(values)
    expected = torch.tensor([value / total for value in values])
    torch.testing.assert_close(log_p.exp(), expected, rtol=1e-5, atol=0)


def test_widest_type_is_that_of_the_gain():
    """A float64 classifier with a float32 W used to fail with torch's error about a matrix product."""
    log_h = torch.randn(5, 3, dtype=torch.float64).log_softmax(-1)
    who, said = torch.zeros(5, 1, dtype=torch.int64), torch.arange(5)[:, None] % 3
    log_p = torch.full((3,), 1 / 3).log()
    log_g = aggregate(torch.randn(2, 3, 3), log_p, who, said)
    for divergence in DIVERGENCES:
        mixed = mutual_information_gain(log_h, log_g, log_p, divergence)
        assert mixed.dtype == torch.float64
        torch.testing.assert_close(
            mixed, mutual_information_gain(log_h, log_g.double(), log_p.double(), divergence)
        )


def test_classifier_in_float64_trains(crowd, make_model, make_args):
    """A classifier loaded with `from_pretrained(dtype="float64")` meets a float32 W in several places."""
    pair = make_model()
    pair.classifier.double()
    rows = crowd.map(lambda row: row)
    trainer = MaxMIGTrainer(model=pair, args=make_args(num_train_epochs=1), train_dataset=rows)
    inner, forward = pair.classifier, pair.classifier.forward
    inner.forward = lambda features, **rest: forward(features=features.double(), **rest)
    trainer.train()
    assert trainer.evaluate(crowd)["eval_gain"] > -1


@pytest.mark.parametrize("dtype", TYPES[:3], ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_class_without_mass_is_finite_too(divergence, dtype):
    """A class that nobody voted for has a prior far below any that a user can pass."""
    draw = torch.Generator().manual_seed(1)
    for sure, evidence, number in CASES:
        signs = torch.randn(2, number, 3, generator=draw).sign()
        logits = (signs[0] * sure).to(dtype).requires_grad_()
        scores = (signs[1] * evidence).requires_grad_()
        log_p = torch.tensor([math.log(0.5), math.log(0.5), NO_MASS])
        log_g = posterior_of(scores + log_p, log_p)
        log_h = widen(logits).log_softmax(dim=-1)
        loss = -mutual_information_gain(log_h, log_g, log_p, divergence)
        loss.backward()
        assert loss.isfinite(), (sure, evidence, number)
        assert scores.grad.isfinite().all(), (sure, evidence, number)
        assert logits.grad.isfinite().all() or dtype == torch.float16, (sure, evidence, number)


@pytest.mark.parametrize("drift", [-45.0, -60.0, -1e4, -float("inf"), float("nan")])
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_learned_prior_that_drifts_away_is_finite_or_stops(
    divergence, drift, crowd, make_model, make_args
):
    """A learned prior bypasses the checks of the arguments.

    A saved model must not contain one that is not finite.
    """
    pair = make_model(prior="learned", divergence=divergence)
    args = make_args(init="keep", num_train_epochs=1, name_classes=False)
    trainer = MaxMIGTrainer(model=pair, args=args, train_dataset=crowd)
    with torch.no_grad():
        pair.prior.logits[2] = drift
        pair.classifier.output.bias[2] = 50.0
    stopped = False
    try:
        trainer.train()
    except ValueError as error:
        stopped = "must be finite" in str(error)
    # On a CPU it stops before the step, so every finite parameter is still finite.
    lost = [name for name, t in pair.state_dict().items() if not t.isfinite().all()]
    assert lost == ([] if math.isfinite(drift) else ["prior.logits"])
    assert stopped or not lost
