"""The start from information: how much each annotator counts, and what is initialised from it."""

import copy

import pytest
import torch

from hf_maxmig import MaxMIGTrainer
from hf_maxmig.model.annotator_rows import shrunk_weight
from hf_maxmig.model.functional import confusion_counts, confusion_sums, initial_weight, vote_share
from hf_maxmig.model.votes import Votes
from hf_maxmig.training import informed_start as information
from hf_maxmig.training.informed_start import (
    FOLDS,
    ROUNDS,
    agreement,
    folds,
    informed_share,
    start_from_share,
    weighted_vote_share,
)
from tests.worlds import ANNOTATORS, make_crowd, random_votes

N, M, C, K = 7, 5, 3, 4


def posterior(seed=1):
    return torch.randn(N, C, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def test_agreement_is_the_covariance_of_votes_and_posterior():
    """Compared with loops.

    Unless agreement by chance is subtracted, always naming the largest class would win.
    """
    who, said = random_votes(N, M, C, K)
    q = posterior()
    found = agreement(confusion_sums([(q, who, said)], M, C))
    for m in range(M):
        places = [(i, said[i, k]) for i in range(N) for k in range(K) if who[i, k] == m]
        assert places
        agreed = sum(q[i, r] for i, r in places) / len(places)
        chance = sum(q[i, r] for i, _ in places for _, r in places) / len(places) ** 2
        assert found[m] == pytest.approx(float(agreed - chance), abs=1e-6)
    alone = q, torch.zeros(N, 1).long(), torch.ones(N, 1).long()
    constant = confusion_sums([alone], 2, C)
    torch.testing.assert_close(agreement(constant), torch.zeros(2), rtol=0, atol=1e-6)


def test_weighted_share_counts_votes_by_their_weight():
    """Compared with loops. Annotators of weight zero count only where nobody else voted."""
    who, said = random_votes(N, M, C, K)
    weights = torch.tensor([0.5, 0.0, 2.0, 1.0, 0.0])
    found = weighted_vote_share(Votes(who, said), weights, C)
    alone = 0
    for i in range(N):
        pairs = [(int(m), int(r)) for m, r in zip(who[i], said[i], strict=True) if m >= 0]
        counted = {m: float(weights[m]) for m, _ in pairs}
        if pairs and not any(counted.values()):
            counted, alone = dict.fromkeys(counted, 1.0), alone + 1
        total = sum(counted[m] for m, _ in pairs)
        for c in range(C):
            mass = sum(counted[m] for m, r in pairs if r == c)
            assert found[i, c] == pytest.approx(mass / total if pairs else 0, abs=1e-6)
    only = weighted_vote_share(Votes(torch.tensor([[1]]), torch.tensor([[2]])), weights, C)
    assert only.tolist() == [[0, 0, 1]]
    same = weighted_vote_share(Votes(who, said), torch.full((M,), 0.3), C)
    torch.testing.assert_close(same, vote_share(said, C))


def test_annotators_who_are_alike_start_alike_and_others_from_their_own():
    """With few labels an annotator's own counts are noise, but an adversary's must not be averaged away."""
    generator = torch.Generator().manual_seed(0)
    right = torch.full((C, C), 0.2) + 0.4 * torch.eye(C)
    truth = torch.randint(C, (4000,), generator=generator)

    def counts(matrices, items):
        rows = [torch.multinomial(p[truth[:items]], 1, generator=generator) for p in matrices]
        said = torch.cat(rows, dim=1)
        who = torch.arange(len(matrices)).expand(items, -1)
        return confusion_counts(
            torch.nn.functional.one_hot(truth[:items], C).float(), who, said, len(matrices)
        )

    few = counts([right] * M, 20)
    error = (shrunk_weight(few, 0.01).exp() - right).abs().mean()
    assert error < 0.5 * (initial_weight(few, 0.01).exp() - right).abs().mean()
    assert (shrunk_weight(few, 0.01)[0] - shrunk_weight(few, 0.01)[1]).abs().max() < 0.05
    unlike = counts([right, right.roll(1, dims=1), torch.full((C, C), 1 / 3)], 4000)
    torch.testing.assert_close(
        shrunk_weight(unlike, 0.01).exp(), initial_weight(unlike, 0.01).exp(), rtol=0, atol=0.02
    )


def test_each_item_is_predicted_by_those_who_have_not_seen_it():
    """On items that it has learned, a classifier repeats an annotator's vote, so a random one looks informed."""
    parts = folds(11, seed=3)
    assert len(parts) == FOLDS
    assert sorted(row for _, predicted in parts for row in predicted) == list(range(11))
    for learned, predicted in parts:
        assert sorted(learned + predicted) == list(range(11))
    assert parts == folds(11, seed=3) != folds(11, seed=4)


def test_naive_majority_loses_its_say_and_chunks_do_not_matter():
    """Five annotators who always name the first class outvote three good ones on every item."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(C, (300,), generator=generator)
    good = torch.where(
        torch.rand(300, 3, generator=generator) < 0.8, truth[:, None], (truth[:, None] + 1) % C
    )
    said = torch.cat([good, torch.zeros(300, 5).long()], dim=1)
    who = torch.arange(8).expand(300, -1)
    plain = vote_share(said, C)
    assert (plain.argmax(1) == truth).float().mean() < 0.5
    asked = []

    def predict(share):
        asked.append(share)
        posterior = 0.5 * torch.nn.functional.one_hot(truth, C) + 0.5 / C
        return posterior.log()

    share = informed_share([(who, said)], 8, C, predict)
    assert len(asked) == ROUNDS
    torch.testing.assert_close(asked[0], plain)
    assert (share.argmax(1) == truth).float().mean() > 0.8
    torch.testing.assert_close(asked[1], share)  # the same answer again, so the same weights
    chunks = [(who[:7], said[:7]), (who[7:], said[7:])]
    torch.testing.assert_close(informed_share(chunks, 8, C, predict), share)


def test_who_labelled_nothing_that_was_looked_at_counts_like_the_others():
    """A tenth of a million items is predicted, and most of a hundred thousand annotators labelled none of it."""
    truth = torch.arange(60) % C
    said = torch.stack([truth, truth, (truth + 1) % C], dim=1)
    who = torch.tensor([[0, 1, 2]] * 40 + [[3, 1, 2]] * 20)  # 3 labels only the unpredicted

    def predict(share):
        log_h = (0.9 * torch.nn.functional.one_hot(truth, C) + 0.1 / C).log()
        log_h[40:] = -torch.inf
        return log_h

    share = informed_share([(who, said)], 4, C, predict)
    assert (share[:40].argmax(1) == truth[:40]).all()
    assert 0.5 < share[40:].gather(1, truth[40:, None]).min() <= 1
    half = informed_share([(who[:40], said[:40])], 4, C, lambda share: predict(share)[:40])
    torch.testing.assert_close(share[:40], half)


def test_not_all_of_many_items_are_predicted(monkeypatch):
    """Two rounds over all items would take a third of the time of a short training."""
    monkeypatch.setattr(information, "LOOKED_AT", 4)
    parts = folds(11, seed=3)
    assert [len(predicted) for _, predicted in parts] == [2, 2]
    assert sorted(row for learned, _ in parts for row in learned) == list(range(11))


def test_start_takes_up_the_share(make_model):
    """W follows the share's counts at half strength, and the prior follows the votes."""
    model = make_model(prior="vote_share")
    num_annotators, num_classes, _ = model.aggregator.table.shape
    generator = torch.Generator().manual_seed(0)
    who = torch.stack([torch.randperm(num_annotators, generator=generator)[:2] for _ in range(9)])
    said = torch.randint(num_classes, (9, 2), generator=generator)
    share = torch.rand(9, num_classes, generator=generator).softmax(-1)
    start_from_share(model, [(who[:4], said[:4]), (who[4:], said[4:])], share, 0.3, 0.5)
    counts = confusion_counts(share, who, said, num_annotators)
    torch.testing.assert_close(model.aggregator.weight, 0.5 * shrunk_weight(counts, 0.3))
    assert model.prior().exp().sum() == pytest.approx(1, abs=1e-6)
    assert (model.prior().exp() - 1 / num_classes).abs().max() > 1e-3


def test_factored_start_takes_up_the_share(make_model):
    """An annotator's own and the whole crowd's labels say how often they are right, the whole crowd's how they err."""
    model = make_model(aggregator="factored")
    num_annotators, num_classes = model.aggregator.diagonal.shape
    generator = torch.Generator().manual_seed(0)
    who = torch.stack([torch.randperm(num_annotators, generator=generator)[:2] for _ in range(9)])
    said = torch.randint(num_classes, (9, 2), generator=generator)
    share = torch.rand(9, num_classes, generator=generator).softmax(-1)
    start_from_share(model, [(who[:4], said[:4]), (who[4:], said[4:])], share, 0.3, 0.5)
    counts = confusion_counts(share, who, said, num_annotators)
    right = counts.diagonal(dim1=1, dim2=2)
    two = torch.stack([right, counts.sum(dim=2) - right], dim=2)
    own = shrunk_weight(two, torch.tensor([0.3, 0.3 * (num_classes - 1)]))
    weight = 2 * model.aggregator.weight
    torch.testing.assert_close(weight.diagonal(dim1=1, dim2=2), own[..., 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weight.exp().sum(dim=2), torch.ones(num_annotators, num_classes))
    pooled = initial_weight(counts.sum(dim=0, keepdim=True), 0.3)
    off = ~torch.eye(num_classes, dtype=torch.bool)
    mistakes = (weight.exp() * off).div((weight.exp() * off).sum(dim=2, keepdim=True))
    expected = (pooled.exp() * off).div((pooled.exp() * off).sum(dim=2, keepdim=True))
    torch.testing.assert_close(mistakes, expected.expand_as(mistakes), rtol=1e-4, atol=1e-4)


def started(crowd, make_model, make_args, **kwargs):
    """Return a trainer just before its first step, with a rate so low that nothing is learned."""
    args = make_args(init="information", **kwargs)
    trainer = MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd)
    trainer._begin()
    return trainer


def test_trainer_starts_from_what_others_learned(crowd, make_model, make_args):
    """The classifier is already trained, W is not that of the vote share, and nothing is written."""
    before = copy.deepcopy(make_model().classifier.state_dict())
    trainer = started(crowd, make_model, make_args, num_train_epochs=3)
    model = trainer.crowd_model
    moved = [n for n, t in model.classifier.state_dict().items() if not torch.equal(t, before[n])]
    assert moved
    plain = make_model()
    plain.initialize_crowd(trainer.crowd_of(trainer.train_dataset), 0.01, scale=0.5)
    assert (plain.aggregator.table - model.aggregator.table).abs().max() > 1e-2
    assert model.aggregator.table.requires_grad
    assert trainer.state.global_step == 0
    again = started(crowd, make_model, make_args, num_train_epochs=3).crowd_model
    for first, second in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_gold_labels_do_not_reach_the_start(crowd, make_model, make_args):
    """Half of the classifiers are trained on a data set with gold labels."""
    blind = crowd.remove_columns("label")
    first = started(crowd, make_model, make_args).crowd_model
    second = started(blind, make_model, make_args).crowd_model
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_stream_is_refused_before_anything_is_trained(crowd, make_model, make_args):
    """Half of a stream cannot be predicted."""
    args = make_args(init="information", max_steps=2)
    trainer = MaxMIGTrainer(
        model=make_model(), args=args, train_dataset=crowd.to_iterable_dataset()
    )
    with pytest.raises(ValueError, match="`init` must be 'vote_share' or 'keep' unless"):
        trainer.train()


def test_items_without_labels_take_no_part(make_model, make_args):
    """Their share must be all zeros, not uniform."""
    crowd = make_crowd()
    assert [] in crowd["annotators"][:]
    trainer = started(crowd, make_model, make_args)
    for parameter in trainer.crowd_model.parameters():
        assert parameter.isfinite().all()
    assert trainer.crowd_model.aggregator.table.shape[0] == len(ANNOTATORS)
