"""CrowdAR compared with plain loops in float64, and its reliabilities."""

import numpy as np
import pytest
import torch

from hf_maxmig import CrowdTrainer
from hf_maxmig.model.votes import Votes
from hf_maxmig.peers import CrowdARConfig, peer
from tests.networks import small_head
from tests.peers.drawn_models import (
    C,
    drawn,
    given,
    hidden_and_logits,
    linear,
    loss_of,
    sigmoid,
    softmax,
    weights,
)
from tests.worlds import ANNOTATORS


def reliability(w, hidden, p, m):
    difficulty = sigmoid(
        linear(w, "network.difficulty", sigmoid(linear(w, "network.hidden", hidden)))
    )
    ahead = (sigmoid(w["network.expertise"][m]) - difficulty) * p
    return sigmoid(np.abs(w["network.output.weight"][0]) @ ahead + w["network.output.bias"][0])


def in_loops(model, batch, lam):
    """Return the loss as in the paper; row c of a matrix is the true class c."""
    w, terms = weights(model), []
    hidden, logits = hidden_and_logits(model, batch["features"])
    for i, m, y in given(batch):
        p = softmax(logits[i])
        r = reliability(w, hidden[i], p, m)
        target = r * np.eye(C)[y] + (1 - r) / C
        said = softmax(p @ w["matrices.table"][m].T)
        agrees = float(p.argmax() == y)
        judged = -agrees * np.log(r) - (1 - agrees) * np.log(1 - r)
        terms.append(-lam * (target * np.log(said)).sum() + (1 - lam) * judged)
    return np.mean(terms)


@pytest.mark.parametrize("lam", [0.9, 0.4])
def test_loss_is_that_of_the_paper(lam):
    """A target that is not softened, or a missing term, would still learn."""
    model, batch = drawn("crowd_ar", lam=lam)
    loss, empty = loss_of(model, batch)
    assert not empty
    assert loss.item() == pytest.approx(in_loops(model, batch, lam), abs=2e-6)
    assert abs(loss.item() - in_loops(model, batch, 0.6)) > 0.01


def test_more_expertise_never_makes_a_vote_less_reliable():
    """The weights of the last layer must not be negative, whatever the optimizer does to them."""
    model, batch = drawn("crowd_ar")
    assert (model.network.output.weight < 0).any()
    votes, out = Votes.of(batch), model(**batch)
    before = model.reliability(out, votes)
    with torch.no_grad():
        model.network.expertise += 1.0
    after = model.reliability(out, votes)
    assert (after[votes.given] > before[votes.given]).all()


def test_reliability_network_does_not_train_the_features():
    """Otherwise the classifier could make its items look easy."""
    model, batch = drawn("crowd_ar")
    features = model(**batch).features
    assert features.shape == (11, 16)
    assert not features.requires_grad


@pytest.mark.slow
def test_reliability_tells_the_annotator_who_answers_at_random(crowd, make_args):
    """This is the purpose of the method; after training the reliability must not be constant."""
    model = peer("crowd_ar", small_head(), annotators=ANNOTATORS)
    start = model.network.expertise.detach().clone()
    args = make_args(num_train_epochs=20, aggregator_learning_rate=0.2)
    trainer = CrowdTrainer(model=model, args=args, train_dataset=crowd)
    trainer.train()
    batch = trainer.data_collator([crowd[i] for i in range(len(crowd))])
    votes = Votes.of(batch)
    with torch.no_grad():
        out = model.eval()(**batch)
        r = model.reliability(out, votes).sigmoid()
    mean = [r[votes.given & (votes.annotators == m)].mean().item() for m in range(4)]
    assert min(mean[:3]) > mean[3] + 0.05  # the last is the random one
    assert (model.network.expertise - start).abs().min() > 0


def test_impossible_settings_are_refused():
    """At 0 or 1 one of the two losses vanishes, and parameters get no gradient."""
    for lam in (0.0, 1.0):
        with pytest.raises(ValueError, match=f"`lam` must lie between 0 and 1, got {lam}"):
            CrowdARConfig(lam=lam)
