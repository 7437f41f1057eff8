"""CROWDLAB compared with loops written from its formulas, and with cleanlab itself."""

import warnings

import numpy as np
import pytest
import torch

from hf_maxmig import CrowdTrainer
from hf_maxmig.data.flat_votes import FlatVotes
from hf_maxmig.model.votes import Votes
from hf_maxmig.peers import peer
from hf_maxmig.peers.crowdlab import best_temperature, crowdlab, majority
from hf_maxmig.training.cross_validation import unseen_posteriors
from hf_maxmig.training.start import Start, check_start
from tests.networks import small_head
from tests.weights import assert_same, state
from tests.worlds import ANNOTATORS, make_crowd

N, M, C = 60, 5, 3


def world(seed=0, alone=True):
    """Draw votes of good and bad annotators, one to four per item, and a classifier that is often right.

    Args:
        seed: of all.
        alone: whether the last annotator votes only where nobody else does.
    """
    rng = np.random.default_rng(seed)
    truth = rng.integers(C, size=N)
    who, said = np.full((N, 4), -1), np.full((N, 4), -1)
    for i in range(N):
        if alone and i % 10 == 0:
            chosen = [M - 1]
        else:
            chosen = rng.permutation(M - alone)[: 1 + i % 4]
        for k, m in enumerate(chosen):
            right = rng.random() < 0.95 - 0.15 * m
            who[i, k], said[i, k] = m, truth[i] if right else rng.integers(C)
    logits = rng.normal(size=(N, C)) + 2.0 * np.eye(C)[truth]
    log_h = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return who, said, log_h


def flat(who, said):
    return FlatVotes.read([Votes(torch.from_numpy(who), torch.from_numpy(said))])


def by_loops(who, said, p):
    """Return the posterior and the weights, vote by vote, without calibration."""
    votes = [[(m, r) for m, r in zip(who[i], said[i], strict=True) if m >= 0] for i in range(N)]
    consensus = []
    for i in range(N):
        number = [sum(r == c for _, r in votes[i]) for c in range(C)]
        tied = [c for c in range(C) if number[c] == max(number)]
        consensus.append(max(tied, key=lambda c: p[i][c]))
    several = [i for i in range(N) if len(votes[i]) > 1]
    agreeing = np.mean([np.mean([r == consensus[i] for _, r in votes[i]]) for i in several])
    often = max(range(C), key=lambda c: sum(consensus[i] == c for i in several))
    e = np.mean([consensus[i] != often for i in several])
    agreement = {}
    for m in range(M):
        pairs = [
            r == other
            for i in several
            for own, r in votes[i]
            if own == m
            for another, other in votes[i]
            if another != m
        ]
        if pairs:
            agreement[m] = np.mean(pairs)
    usual = np.mean(list(agreement.values()))
    w = [max(1e-6, 1 - (1 - agreement.get(m, usual)) / e) for m in range(M)]
    err = np.mean([np.argmax(p[i]) != consensus[i] for i in several])
    own = max(1e-6, 1 - err / e) * np.sqrt(np.mean([len(v) for v in votes]))
    posterior = []
    for i in range(N):
        row = own * p[i]
        for m, r in votes[i]:
            for c in range(C):
                row[c] += w[m] * (agreeing if r == c else (1 - agreeing) / (C - 1))
        posterior.append(row / (own + sum(w[m] for m, _ in votes[i])))
    return np.array(posterior), np.array(consensus), np.array(w), own


@pytest.mark.parametrize("seed", range(3))
def test_posterior_and_weights_are_those_of_loops(seed):
    """The weight of another annotator, or a mean over other items, would still give probabilities."""
    who, said, log_h = world(seed)
    found = crowdlab(log_h, flat(who, said), M, calibrated=False)
    posterior, consensus, weight, own = by_loops(who, said, np.exp(log_h))
    np.testing.assert_allclose(found.posterior, posterior, atol=1e-12)
    np.testing.assert_array_equal(found.consensus, consensus)
    np.testing.assert_allclose(found.annotator_weight, weight, atol=1e-12)
    assert found.classifier_weight == pytest.approx(own)
    np.testing.assert_allclose(found.posterior.sum(axis=1), 1)
    assert weight.max() > 1.5 * weight[:-1].min()  # otherwise annotators could be exchanged


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_posterior_is_cleanlabs(seed, calibrated):
    """Users of CROWDLAB know it from cleanlab.

    Cleanlab's search for a temperature (2.9.0) counts the votes for a class under another one, so it is
    given ours.
    """
    multiannotator = pytest.importorskip("cleanlab.multiannotator")
    who, said, log_h = world(seed)
    table = np.full((N, M), np.nan)
    for i in range(N):
        for m, r in zip(who[i], said[i], strict=True):
            if m >= 0:
                table[i, m] = r
    found = crowdlab(log_h, flat(who, said), M, calibrated)
    assert (found.temperature == 1.0) is not calibrated
    p = np.exp(log_h / found.temperature)
    p /= p.sum(axis=1, keepdims=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = multiannotator.get_label_quality_multiannotator(
            table, p, consensus_method="majority_vote", return_weights=True, verbose=False
        )
    assert found.classifier_weight == pytest.approx(theirs["model_weight"])
    np.testing.assert_allclose(found.annotator_weight, theirs["annotator_weight"])
    quality = theirs["label_quality"]
    np.testing.assert_array_equal(found.consensus, quality["consensus_label"])
    rows = np.arange(N)
    np.testing.assert_allclose(
        found.posterior[rows, found.consensus], quality["consensus_quality_score"]
    )
    each = theirs["detailed_label_quality"].to_numpy()
    for i in range(N):
        for m in range(M):
            if not np.isnan(table[i, m]):
                assert each[i, m] == pytest.approx(found.posterior[i, int(table[i, m])])


def test_items_without_votes_take_no_part():
    """If they counted in a mean, every weight would be smaller."""
    who, said, log_h = world()
    found = crowdlab(log_h, flat(who, said), M)
    more = crowdlab(
        np.concatenate([log_h, log_h[:7]]),
        flat(*(np.concatenate([table, np.full((7, 4), -1)]) for table in (who, said))),
        M,
    )
    np.testing.assert_allclose(more.posterior[:N], found.posterior)
    assert (more.posterior[N:] == 0).all()
    assert (more.consensus[N:] == -1).all()


def test_ties_go_to_the_classifier_then_to_the_rarer_class():
    """If the first of the tied classes won, it would always be class 0."""
    counts = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 3.0, 0.0], [2.0, 0.0, 1.0]])
    p = np.array([[0.2, 0.3, 0.5], [0.4, 0.4, 0.2], [0.9, 0.1, 0.0], [0.1, 0.1, 0.8]])
    assert majority(counts, p).tolist() == [1, 0, 1, 0]


def test_temperature_is_the_best_of_a_fine_grid():
    """An overconfident classifier would overrule the votes."""
    rng = np.random.default_rng(1)
    honest = rng.dirichlet(np.ones(C), size=500)
    votes = np.stack([rng.multinomial(4, p) for p in honest]).astype(float)
    for sharpness in (0.5, 1.0, 2.6):
        sharp = np.log(honest) * sharpness
        sharp -= np.log(np.exp(sharp).sum(axis=1, keepdims=True))
        assert best_temperature(sharp, votes) == pytest.approx(sharpness, abs=0.2)


def test_one_vote_per_item_counts_as_much_as_the_classifier():
    """There is no agreement to weigh annotators by: 0 / 0 would be the posterior."""
    who, said, log_h = world()
    found = crowdlab(log_h, flat(who[:, :1], said[:, :1]), M)
    p = np.exp(log_h)
    right = np.mean([p[i].argmax() == said[i, 0] for i in range(N)])
    assert 1 / C < right < 1
    for i in range(N):
        vote = [right if c == said[i, 0] else (1 - right) / (C - 1) for c in range(C)]
        np.testing.assert_allclose(found.posterior[i], (p[i] + vote) / 2)


def model_of(seed=0, **fields):
    return peer("crowdlab", small_head(seed=seed), annotators=ANNOTATORS, **fields)


def test_no_classifier_judges_an_item_that_it_has_learned_from(crowd, make_args):
    """A memorised vote would count twice."""
    args = make_args(num_train_epochs=2)
    trainer = CrowdTrainer(model=model_of(folds=4), args=args, train_dataset=crowd)
    training, learned, asked = trainer._training(), [], []
    plain = training.train_briefly

    def spy(model, rows, share, **options):
        assert share == 1.0
        ask = plain(model, rows, share, **options)
        learned.append(set(rows))

        def asks(part):
            asked.append({tuple(x) for x in part["features"]})
            return ask(part)

        return asks

    object.__setattr__(training, "train_briefly", spy)
    before = state(trainer.crowd_model)
    log_h = unseen_posteriors(training)
    assert len(learned) == 4
    features = [tuple(x) for x in crowd["features"]]
    voted = {i for i, row in enumerate(crowd["annotations"]) if row}
    for rows, items in zip(learned, asked, strict=True):
        assert not {features[i] for i in rows} & items
        assert rows | {i for i in voted if features[i] in items} == voted
    assert {x for items in asked for x in items} == {features[i] for i in voted}
    assert_same(before, state(trainer.crowd_model))
    torch.testing.assert_close(log_h.exp().sum(dim=1), torch.ones(len(crowd)))
    gold = torch.tensor(crowd["label"])
    assert (log_h.argmax(dim=1) == gold).float().mean() > 0.6


def test_classifier_learns_the_posterior_and_a_checkpoint_holds_it(crowd, make_args, tmp_path):
    """A new cross-validation from a trained classifier would give another posterior."""
    args = make_args(num_train_epochs=2, save_strategy="epoch")
    trainer = CrowdTrainer(model=model_of(folds=2), args=args, train_dataset=crowd)
    trainer.train()
    unseen = trainer.start.unseen
    assert unseen.shape == (len(crowd), 3)
    votes = FlatVotes.read(trainer.crowd_of(crowd))
    found = crowdlab(unseen.numpy(), votes, len(ANNOTATORS))
    batch = next(iter(trainer.get_train_dataloader()))
    row = next(
        i for i, x in enumerate(crowd["features"]) if np.allclose(x, batch["features"][0].numpy())
    )
    np.testing.assert_allclose(batch["crowd_posterior"][0], found.posterior[row], atol=1e-6)
    (first, *_) = sorted((tmp_path / "out").glob("checkpoint-*"))
    start = Start.load(first)
    torch.testing.assert_close(start.unseen, unseen, rtol=0, atol=0)
    check_start(start, crowd, None)
    with pytest.raises(ValueError, match=f"N = {len(crowd)} items, got 7"):
        check_start(start, crowd.select(range(7)), None)


def test_what_cannot_be_cross_validated_is_refused(crowd, make_args):
    """An error after the first fold would waste minutes."""
    with pytest.raises(ValueError, match="`folds` must be 2 or more, got 1"):
        model_of(folds=1)
    half = crowd.add_column(
        "annotation_weights", [[0.5] * len(row) for row in crowd["annotations"]]
    )
    trainer = CrowdTrainer(model=model_of(), args=make_args(), train_dataset=half)
    trainer._cross_validate = lambda: pytest.fail("it was cross-validated first")
    with pytest.raises(ValueError, match="left out for CROWDLAB, .* counts each vote in full"):
        trainer.train()
    few = crowd.select(range(3))
    trainer = CrowdTrainer(model=model_of(folds=9), args=make_args(), train_dataset=few)
    with pytest.raises(ValueError, match="votes on 9 items or more for CROWDLAB"):
        trainer.train()
    stream = make_crowd().to_iterable_dataset()
    trainer = CrowdTrainer(model=model_of(), args=make_args(max_steps=3), train_dataset=stream)
    with pytest.raises(TypeError, match="must be a datasets.Dataset for CROWDLAB, got Iterable"):
        trainer.train()
    with pytest.raises(ValueError, match="`unseen` must be given for CROWDLAB"):
        model_of().prepare(crowd, [])
