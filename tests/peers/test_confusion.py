"""The likelihood of confusion matrices and its regularisers, compared with plain loops in float64."""

import math

import numpy as np
import pytest
import torch

from hf_maxmig import CrowdTrainer
from hf_maxmig.model.votes import Votes
from hf_maxmig.peers import ConfusionConfig, peer
from hf_maxmig.peers.confusion import JITTER, REGULARISERS, minus_log_volume
from tests.networks import small_head
from tests.worlds import ANNOTATORS, random_votes

ROWS = {"spee_lfc": 0.0, "trace": 0.01, "geo_f": 0.001, "geo_w": 0.001}  # their strengths
M, C = 4, 3


def softmax(scores, axis):
    scores = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return scores / scores.sum(axis=axis, keepdims=True)


def in_loops(name, lam, scores, logits, who, said):
    """Return the loss as in the papers; row c of a matrix is the true class c.

    Args:
        name: of the rival.
        lam: the strength of its regulariser.
        scores: (M, C, C), by annotator, true and reported class.
        logits: (N, C), of the classifier.
        who: (N, K).
        said: (N, K).
    """
    matrices, h = softmax(scores, axis=2), softmax(logits, axis=1)
    terms, voting, answered = [], set(), []
    for i in range(len(who)):
        for m, r in zip(who[i].tolist(), said[i].tolist(), strict=True):
            if m >= 0 and r >= 0:
                terms.append(-math.log(sum(h[i, c] * matrices[m, c, r] for c in range(C))))
                voting.add(m)
                answered.append(i)
    loss = np.mean(terms)
    if name == "trace":
        loss += lam * np.mean([sum(matrices[m, c, c] for c in range(C)) for m in voting])
    if name == "geo_f":
        of_items = h[sorted(set(answered))]
        loss -= lam * np.linalg.slogdet(of_items.T @ of_items)[1]
    if name == "geo_w":
        stack = np.array([matrices[m, :, r] for m in voting for r in range(C)])
        loss -= lam * np.linalg.slogdet(stack.T @ stack)[1]
    return loss


def made(name, num_items=11, seed=0, **fields):
    """Return a rival with random matrices, a batch for it, and its classifier's logits."""
    who, said = random_votes(num_items)
    model = peer(name, small_head(), num_annotators=M, **fields).train()
    model.initialize_crowd([(who, said)])
    torch.manual_seed(seed)
    torch.nn.init.normal_(model.matrices.table)
    features = 2 * torch.randn(num_items, 5)
    batch = {"features": features, "annotators": who, "annotations": said}
    return model, batch


def numbers(model, batch):
    with torch.no_grad():
        logits = model.classifier(features=batch["features"]).logits.double().numpy()
    return model.matrices.table.detach().double().numpy().transpose(0, 2, 1), logits


@pytest.mark.parametrize(
    ("name", "lam"),
    [*((name, None) for name in ROWS), *((name, 0.3) for name in ROWS if name != "spee_lfc")],
)
def test_loss_is_that_of_the_paper(name, lam):
    """A transposed matrix or a softmax over the wrong axis would still learn, and a dropped term would not show."""
    model, batch = made(name, lam=lam)
    scores, logits = numbers(model, batch)
    strength = ROWS[name] if lam is None else lam
    assert model.config.strength == strength
    votes = batch["annotators"], batch["annotations"]
    expected = in_loops(name, strength, scores, logits, *votes)
    loss, empty = model.crowd_loss(model(**batch), batch)
    assert not empty
    assert loss.item() == pytest.approx(expected, abs=3e-5 * max(1, 100 * strength))
    if name != "spee_lfc":
        assert abs(expected - in_loops("spee_lfc", 0, scores, logits, *votes)) > 1e-3
    turned = in_loops(name, strength, scores.transpose(0, 2, 1), logits, *votes)
    assert abs(expected - turned) > 1e-2


@pytest.mark.parametrize("name", ["trace", "geo_w"])
def test_annotators_without_votes_have_no_part(name):
    """Matrices without votes to explain would satisfy the regulariser in place of the others."""
    model, batch = made(name, lam=0.3)
    batch["annotations"] = torch.where(batch["annotators"] == 2, -1, batch["annotations"])
    model.config.start = "authors"
    table = model.matrices.table.detach().clone()
    model.initialize_crowd([(batch["annotators"], batch["annotations"])])
    with torch.no_grad():
        model.matrices.table.copy_(table)
    assert model.matrices.active.tolist() == [1, 1, 0, 1]
    expected = in_loops(name, 0.3, *numbers(model, batch), batch["annotators"], batch["annotations"])  # fmt: skip
    loss, _ = model.crowd_loss(model(**batch), batch)
    assert loss.item() == pytest.approx(expected, abs=1e-4)
    loss.backward()
    of_annotators = model.matrices.table.grad.abs().sum(dim=(1, 2))
    assert (of_annotators > 0).tolist() == [True, True, False, True]


@pytest.mark.parametrize("num_items", [1, 2])
def test_volume_of_fewer_answers_than_classes_is_finite_and_spreads_them(num_items):
    """With log det of a singular matrix, one small batch would make every weight NaN."""
    model, batch = made("geo_f", lam=0.01)
    batch = {n: t[1 : 1 + num_items] for n, t in batch.items()}
    loss, empty = model.crowd_loss(model(**batch), batch)
    assert not empty
    plain = peer("spee_lfc", model.classifier, num_annotators=M).train()
    plain.matrices.load_state_dict(model.matrices.state_dict())
    added = loss - plain.crowd_loss(plain(**batch), batch)[0]
    # The missing directions add a constant.
    assert added.item() == pytest.approx(
        -0.01 * math.log(num_items * JITTER) * (C - num_items), abs=0.1
    )
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    scores = torch.tensor([[1.0, 0.5, 0.0], [1.0, 0.4, 0.1]], requires_grad=True)
    before = minus_log_volume(scores.softmax(dim=-1), torch.tensor(2))
    before.backward()
    assert 1e-3 < scores.grad.norm() < 1e4
    with torch.no_grad():
        scores -= 0.05 * scores.grad / scores.grad.norm()
    assert minus_log_volume(scores.softmax(dim=-1), torch.tensor(2)) < before


def test_volume_of_equal_answers_has_a_finite_gradient():
    """In an untrained network all answers are nearly the same."""
    logits = torch.zeros(9, C, requires_grad=True)
    minus_log_volume(logits.softmax(dim=-1), torch.tensor(9)).backward()
    assert logits.grad.isfinite().all()
    nothing = minus_log_volume(torch.zeros(4, C), torch.tensor(0))
    assert nothing.item() == pytest.approx(-C * math.log(JITTER))


def test_starts_of_the_authors_and_the_strengths():
    """Trace regularisation from 1 on the diagonal exchanges classes; from 6 it starts where a warm-up ends."""
    for name, least in (("spee_lfc", 0.57), ("geo_w", 0.57), ("trace", 0.99)):
        model = peer(name, small_head(), annotators=ANNOTATORS)
        confusion = model.matrices.of_active().detach()
        torch.testing.assert_close(confusion.sum(dim=1), torch.ones(4, 3))
        diagonal = confusion.diagonal(dim1=1, dim2=2)
        assert (diagonal > least).all()
        assert (diagonal < least + 0.01).all()
        assert model.method == REGULARISERS[model.config.regulariser][0]
        assert "20" in model.reference
    assert ConfusionConfig(regulariser="geo_f").strength == 0.001
    assert ConfusionConfig(regulariser="geo_f", lam=0.0).strength == 0.0
    for wrong, message in (
        ({"regulariser": "geo"}, "`regulariser` must be one of none, trace, geo_f, geo_w, got 'geo'"),
        ({"lam": -1.0}, "`lam` must be a finite number of 0 or more, got -1.0"),
        ({"lam": 0.1}, "`lam` must be left out without a regulariser, got 0.1"),
        ({"lam": math.inf}, "`lam` must be a finite number"),
        ({"start": "identity"}, "`start` must be one of authors, vote_share, got 'identity'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            ConfusionConfig(annotators=["ann"], **wrong)


@pytest.mark.parametrize("name", ROWS)
def test_matrices_move_towards_the_annotators(name, crowd, make_args):
    """With matrices that stay at their start, the method would be soft vote."""
    model = peer(name, small_head(), annotators=ANNOTATORS)
    args = make_args(num_train_epochs=15, aggregator_learning_rate=0.05)
    trainer = CrowdTrainer(model=model, args=args, train_dataset=crowd)
    trainer.train()
    gold = torch.tensor(crowd["label"])
    counts = torch.zeros(M, C, C)
    for item, (who, said) in enumerate(zip(crowd["annotators"], crowd["annotations"], strict=True)):
        for m, r in zip(who, said, strict=True):
            counts[m, r, gold[item]] += 1
    right = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    start = peer(name, small_head(), annotators=ANNOTATORS).matrices.of_active()
    before, after = ((found - right).abs().mean() for found in (start, model.matrices.of_active()))
    assert after < (0.9 if name == "trace" else 0.6) * before  # a confident start moves slowly


@pytest.mark.parametrize("name", ["trace", "geo_w"])
def test_term_of_all_matrices_reads_them_once(name):
    """A tensor of items by annotators would take gigabytes for a hundred thousand annotators."""
    who, said = random_votes(12)
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                sizes.append(out.numel())
            return out

    model = peer(name, small_head(), num_annotators=5000).train()
    batch = {"features": torch.randn(12, 5), "annotators": who, "annotations": said}
    with Watch():
        model.crowd_loss(model(**batch), batch)
    assert max(sizes) == 5000 * C * C


def test_votes_of_one_class_only_are_trained_on(make_args):
    """The volume pushes apart what the votes do not, and nothing may become infinite."""
    who = torch.tensor([[0, 1], [1, 2]] * 6)
    model = peer("geo_f", small_head(), num_annotators=M, lam=0.1).train()
    model.initialize_crowd([Votes(who, torch.zeros_like(who))])
    batch = {"features": torch.randn(12, 5), "annotators": who, "annotations": torch.zeros_like(who)}  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        loss, _ = model.crowd_loss(model(**batch), batch)
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
    assert loss.isfinite()
