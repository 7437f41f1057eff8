"""Weights of votes, in everything that reads votes.

Two votes of weight 1/2 by one annotator for one class are one vote. Weights of 1 equal no weights. A
soft vote is the mean of the votes that it may stand for.
"""

import copy

import pytest
import torch
from datasets import List, Value

from hf_maxmig import CrowdTrainer, MaxMIGModel, MaxMIGTrainer, judge_annotators
from hf_maxmig.data.flat_votes import FlatVotes
from hf_maxmig.judging.copies import copies_among
from hf_maxmig.judging.evidence import Evidence, fit_confusions
from hf_maxmig.model.aggregators import AGGREGATORS
from hf_maxmig.model.cross_entropy import against_annotations
from hf_maxmig.model.functional import (
    aggregate,
    confusion,
    confusion_counts,
    confusion_sums,
    label_pairs,
    vote_share,
)
from hf_maxmig.model.votes import Votes
from hf_maxmig.peers import PEERS, peer
from hf_maxmig.training.class_names import clear_names
from hf_maxmig.training.cross_fit import constant, cross_fit, votes_digest
from hf_maxmig.training.guards import merged_classes
from hf_maxmig.training.informed_start import weighted_vote_share
from hf_maxmig.training.left_out import LeftOutVotes
from hf_maxmig.training.raced import race
from tests.networks import small_head
from tests.training.drawn_crowds import features_of, make_world
from tests.weights import assert_same, state
from tests.worlds import make_crowd, random_votes

N, M, C, K = 60, 5, 3, 4
TRUTH, WHO, SAID, LOG_H = make_world(items=N, annotators=M, classes=C, votes=K)
WHO, SAID = WHO.clone(), SAID.clone()
WHO[0], SAID[0, 1] = -1, -1  # an item without votes
WHO[1, 2:] = -1
PLAIN = Votes(WHO, SAID)
GENERATOR = torch.Generator().manual_seed(7)
W = torch.randn(M, C, C, generator=GENERATOR)
LOG_P = torch.tensor([0.5, 0.3, 0.2]).log()
LOG_H[0] = LOG_P
FEATURES = features_of(TRUTH, torch.Generator().manual_seed(8))
SCORES = torch.rand(N, C, generator=GENERATOR).softmax(dim=1)


def halved(votes: Votes) -> Votes:
    """Return each vote twice, at half its weight."""
    who, said = (table.repeat_interleave(2, dim=1) for table in votes[:2])
    return Votes(who, said, torch.where(said >= 0, 0.5, 0.0))


def in_full(votes: Votes) -> Votes:
    """Return the same votes with weights of 1."""
    return Votes(*votes, (votes.annotations >= 0).float())


def soft(votes: Votes, seed: int = 0) -> Votes:
    """Return each vote with a probability per class, highest for the named one."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.rand(*votes[0].shape, C, generator=generator)
    q = (q + 2 * torch.eye(C)[votes.annotations.clamp(min=0)]).flatten(0, 1)
    q = (q / q.sum(dim=1, keepdim=True)).view(*votes[0].shape, C)
    who = votes.annotators.repeat_interleave(C, dim=1)
    said = torch.arange(C).repeat(len(who), votes[0].shape[1])
    there = votes.given.repeat_interleave(C, dim=1)
    return Votes(torch.where(there, who, -1), torch.where(there, said, -1), q.flatten(1) * there)


def started(kind: str):
    torch.manual_seed(0)
    aggregator = AGGREGATORS[kind](M, C).eval()
    aggregator.initialize([PLAIN], smoothing=0.1)
    return aggregator


# In theory


@pytest.mark.parametrize("kind", ["weighted_average", "factored"])
def test_soft_vote_says_the_mean_of_what_it_may_stand_for(kind) -> None:
    """G with W q must be the expectation of the scores over votes drawn from q, independently per annotator."""
    aggregator, votes = started(kind), soft(PLAIN)
    expected = LOG_P.expand(N, C).clone()
    for k in range(K):
        for c in range(C):
            place = k * C + c
            hard = Votes(votes.annotators[:, [place]], votes.annotations[:, [place]])
            said = aggregator(LOG_P, *hard) - LOG_P  # up to a constant per item, the column of W
            expected += votes.weights[:, [place]] * said
    torch.testing.assert_close(aggregator(LOG_P, *votes), expected.log_softmax(dim=1))
    alone = aggregator(LOG_P, *votes[:2])
    assert not torch.allclose(alone, aggregator(LOG_P, *votes), atol=0.1)


def test_weighted_aggregate_equals_the_loops() -> None:
    """Item by item and vote by vote, in float64."""
    votes = soft(PLAIN)
    found = aggregate(W, LOG_P, *votes)
    for i in range(N):
        scores = LOG_P.double().clone()
        for m, r, q in zip(*(table[i].tolist() for table in votes), strict=True):
            if m >= 0 and r >= 0:
                scores += q * W[m, :, r].double()
        torch.testing.assert_close(found[i].double(), scores.log_softmax(dim=0), atol=1e-5, rtol=0)


def test_pairs_of_weighted_votes_count_by_the_product() -> None:
    table = torch.randn(M, C, 2, generator=torch.Generator().manual_seed(3))
    votes = soft(PLAIN)
    found = label_pairs(table, *votes)
    for i in range(0, N, 7):
        rows = [
            q * table[m, r]
            for m, r, q in zip(*(t[i].tolist() for t in votes), strict=True)
            if m >= 0
        ]
        pairs = [a * b for j, a in enumerate(rows) for b in rows[:j]]
        expected = torch.stack(pairs).sum(dim=0) if pairs else torch.zeros(2)
        torch.testing.assert_close(found[i], expected, atol=1e-5, rtol=1e-4)


def test_gradient_of_a_weight_is_the_gradient_of_its_share() -> None:
    """W must learn from half a vote half as fast."""
    gradients = []
    for weight in (1.0, 0.5):
        table = torch.zeros(M, C, C, requires_grad=True)
        votes = torch.tensor([[1]]), torch.tensor([[2]]), torch.tensor([[weight]])
        aggregate(table, LOG_P, *votes)[0, 0].backward()
        gradients.append(table.grad)
    assert gradients[0].abs().sum() > 0
    torch.testing.assert_close(gradients[1], 0.5 * gradients[0])


def test_vote_share_and_counts_equal_the_loops() -> None:
    votes = soft(PLAIN)
    share, counts = torch.zeros(N, C), torch.zeros(M, C, C)
    for i in range(N):
        for m, r, q in zip(*(table[i].tolist() for table in votes), strict=True):
            if m >= 0:
                share[i, r] += q
                counts[m, :, r] += q * SCORES[i]
        share[i] /= share[i].sum().clamp(min=1e-9)
    torch.testing.assert_close(vote_share(votes.known, C, votes.weights), share)
    torch.testing.assert_close(confusion_counts(SCORES, *votes[:2], M, votes.weights), counts)
    assert not torch.allclose(share, vote_share(SAID, C), atol=0.01)


# Two half votes are one, and weights of one change nothing, wherever votes are read


def _confusion(votes):
    return confusion(SCORES, votes[0], votes[1], M, 0.1, votes.weights)


def _start(kind):
    def start(votes):
        torch.manual_seed(0)
        aggregator = AGGREGATORS[kind](M, C)
        shares = aggregator.initialize([votes], smoothing=0.1, scale=0.5)
        own = aggregator.weight.detach()
        return shares, own, aggregator.weight if kind == "factored" else own

    return start


def _left_out(way):
    def judge(votes):
        groups = torch.tensor([0, 0, 2, 3, 4])
        votes = LeftOutVotes(votes, M, C, groups)
        one, other = votes.best(LOG_H, LOG_P, LOG_H[votes.item].exp()), votes.alike(LOG_H)
        best = one if way == "best" else other
        clear = torch.tensor([votes.clearly_better(one, other, errors) for errors in (0.0, 1.0)])
        return best.weight, best.log_forecast, torch.tensor([best.score, best.votes]), clear

    return judge


def _confusions(votes):
    evidence = Evidence(LOG_H, W, FlatVotes.read([votes]))
    fitted = fit_confusions(evidence, torch.arange(M))
    return fitted.counts, fitted.confusion, torch.tensor(fitted.strength)


def _verdicts(votes):
    report = judge_annotators(LOG_H, W, [votes], [f"a{m}" for m in range(M)], ["x", "y", "z"])
    arrays = report.counts, report.accuracy, report.accuracy_low, report.accuracy_high, report.votes
    verdicts = torch.tensor([hash(text) for text in (*report.verdict, *report.reason)])
    return *(torch.as_tensor(array) for array in arrays), verdicts


def _copies(votes):
    who = torch.cat([votes[0], torch.full_like(votes[0][:, :1], 5)], dim=1)
    said = torch.cat([votes[1], votes[1][:, :1]], dim=1)
    rest = [torch.cat([table, table[:, :1]], dim=1) for table in votes[2:]]
    evidence = Evidence(LOG_H, torch.zeros(6, C, C), FlatVotes.read([Votes(who, said, *rest)]))
    return (copies_among(evidence)[1],)


def _cross_fit(votes):
    found = cross_fit(FEATURES, votes, M, C, steps=12)
    return found.targets, found.log_h, found.weight, found.log_p, torch.tensor(found.classifier)


def _race(votes):
    held_out, priors = torch.arange(N) < 12, {False: LOG_P, True: None}
    voted = torch.ones(C, dtype=torch.bool)
    found = race(FEATURES, votes, held_out, M, priors, voted, 0.01, 0.5, steps=12)
    return [table for one in found for table in (one.weight, one.log_p, one.log_g)]


READERS = {
    "aggregate": lambda votes: aggregate(W, LOG_P, *votes),
    "factored": lambda votes: started("factored")(LOG_P, *votes),
    "vote_share": lambda votes: vote_share(votes.annotations, C, votes.weights),
    "confusion": _confusion,
    "confusion_sums": lambda votes: tuple(confusion_sums([(SCORES, *votes)], M, C)),
    "start of the weighted average": _start("weighted_average"),
    "start of the factored": _start("factored"),
    "start with pairs": _start("interaction"),
    "informed share": lambda v: weighted_vote_share(v, torch.tensor([1.0, 0.5, 0, 2, 0.1]), C),
    "left-out votes": _left_out("best"),
    "left-out votes, alike": _left_out("alike"),
    "confusions": _confusions,
    "verdicts": _verdicts,
    "copies": _copies,
    "constant": lambda votes: constant(votes, M, C),
    "names": lambda v: clear_names(lambda: [(SCORES[:, [1, 0, 2]], v.known, *v[2:])]),
    "cross-entropy": lambda votes: against_annotations(
        W[votes.annotators.clamp(min=0), 0].log_softmax(dim=-1), votes, lambda tensor: tensor
    )[0],
    "cross-fitting": _cross_fit,
    "race": _race,
}  # fmt: skip
SLOW = {"cross-fitting", "race", "verdicts"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in READERS]
)
def test_two_halves_are_one_vote_and_ones_are_none(name) -> None:
    """A reader that drops the weights would count each half vote in full."""
    read = READERS[name]
    plain, halves, ones = (_tensors(read(v)) for v in (PLAIN, halved(PLAIN), in_full(PLAIN)))
    assert len(plain) > 0
    for usual, half, one in zip(plain, halves, ones, strict=True):
        for found in (half, one):
            torch.testing.assert_close(
                found.double(), usual.double(), atol=2e-4, rtol=2e-3, equal_nan=True
            )
    if name not in ("copies", "names", "constant"):  # these return a few whole numbers
        unsure = Votes(*PLAIN, torch.where(PLAIN.annotations > 0, 0.3, 1.0) * PLAIN.given)
        other = _tensors(read(unsure))
        assert any(a.shape != b.shape or not torch.allclose(a.double(), b.double(), atol=1e-3) for a, b in zip(plain, other, strict=True))  # fmt: skip


def _tensors(found) -> list:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def test_messages_count_votes_by_their_weights() -> None:
    """A class that only low-weight votes name is not expected to appear."""
    said = torch.tensor([[0, 1]]).repeat(40, 1)
    sure = torch.tensor([[0.98, 0.01, 0.01]]).repeat(40, 1)
    assert "dog" in merged_classes("classifier", sure, said, ["cat", "dog", "emu"])
    faint = torch.tensor([[1.0, 0.02]]).repeat(40, 1)
    assert merged_classes("classifier", sure, said, ["cat", "dog", "emu"], weights=faint) is None


def test_digest_of_votes_knows_their_weights() -> None:
    """A training must not be resumed with the same votes at other weights."""
    assert votes_digest(PLAIN) == votes_digest(tuple(PLAIN))
    assert len({votes_digest(v) for v in (PLAIN, in_full(PLAIN), soft(PLAIN))}) == 3


# Every method


# Methods that estimate classes before the training count each vote in full, and refuse weights.
KINDS = [n for n, (_, fields) in PEERS.items() if "algorithm" not in fields and n != "crowdlab"]


@pytest.mark.parametrize(  # annot_mix draws a partner for each vote, and two halves have two
    "name", ["max_mig", "factored", *(name for name in KINDS if name != "annot_mix")]
)
def test_every_method_counts_two_halves_as_one_vote(name) -> None:
    """Compares the loss and its gradient, from the model's own forward pass."""
    who, said = random_votes(num_items=9)
    plain = Votes(who, torch.where(who < 0, -1, said))
    features = torch.randn(9, 5, generator=torch.Generator().manual_seed(3))
    losses = []
    for votes in (plain, halved(plain), in_full(plain)):
        head = small_head()
        if name in ("max_mig", "factored"):
            kind = "weighted_average" if name == "max_mig" else name
            model = MaxMIGModel.from_classifier(head, num_annotators=4, aggregator=kind)
        else:
            model = peer(name, head, num_annotators=4)
        model.train().initialize_crowd([votes])
        model.to(torch.float32)
        torch.manual_seed(0)
        gold = torch.arange(9) % 3
        out = model(features=features, labels=gold, return_loss=True, **votes.as_batch())
        out.loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        losses.append((out.loss.detach(), torch.cat([grad.flatten() for grad in grads])))
    for found in losses[1:]:
        for a, b in zip(found, losses[0], strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)
    assert losses[0][1].abs().sum() > 0


@pytest.mark.parametrize("name", ["wawa", "dawid_skene", "crowdlab"])
def test_methods_that_count_in_full_refuse_weights_by_name(name, make_args) -> None:
    pytest.importorskip("crowdkit")
    crowd = with_weights(make_crowd(), 0.5)
    model = peer(name, small_head(), num_annotators=4)
    with pytest.raises(
        ValueError, match="`annotation_weights` must be left out for .*Remove the column"
    ):
        CrowdTrainer(model=model, args=make_args(), train_dataset=crowd).train()
    CrowdTrainer(
        model=model, args=make_args(), train_dataset=with_weights(make_crowd(), 1.0)
    ).train()


def with_weights(crowd, weight, twice=False):
    """Return the same crowd with a column of weights; each vote twice if asked."""
    times = 2 if twice else 1
    columns = {
        name: [[v for v in row for _ in range(times)] for row in crowd[name][:]]
        for name in ("annotators", "annotations")
    }
    features = {name: crowd.features[name] for name in columns}
    columns["annotation_weights"] = [[weight] * len(row) for row in columns["annotations"]]
    features["annotation_weights"] = List(Value("float32"))
    rest = crowd.remove_columns(["annotators", "annotations"])
    for name, column in columns.items():
        rest = rest.add_column(name, column, feature=features[name])
    return rest


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cross_fit", "information", "vote_share", "aggnet", "doctor_net", "mbem"]
)
def test_training_on_halves_is_the_training_on_whole_votes(name, make_args, tmp_path) -> None:
    """Covers everything from the data set to the last step, and the trainer's later results on items and annotators."""
    found = []
    ways = {"init": name, "search_rate": name == "information"} if name in ("cross_fit", "information", "vote_share") else {}  # fmt: skip
    for crowd in (make_crowd(), with_weights(make_crowd(), 0.5, twice=True)):
        torch.manual_seed(0)
        args = make_args(**ways, output_dir=str(tmp_path / str(len(found))))
        if ways:
            model = MaxMIGModel.from_classifier(
                small_head(), annotators=["ann", "bob", "cyd", "dee"]
            )
            trainer = MaxMIGTrainer(model=model, args=args, train_dataset=crowd)
        else:
            model = peer(name, small_head(), annotators=["ann", "bob", "cyd", "dee"])
            trainer = CrowdTrainer(model=model, args=args, train_dataset=crowd)
        trainer.train()
        output = trainer.predict(crowd)
        relabelled = trainer.relabel(crowd)
        found.append(
            (state(trainer), output.predictions, output.metrics, relabelled["suspicion"][:])
        )
    (one, first, metrics, suspicion), (other, second, others, again) = found
    assert_same(one, other, atol=5e-3)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(torch.from_numpy(a), torch.from_numpy(b), atol=2e-2, rtol=1e-2)
    assert metrics.get("test_gain") == pytest.approx(others.get("test_gain"), abs=1e-2)
    assert [s for s in suspicion if s is not None] == pytest.approx([s for s in again if s is not None], abs=1e-2)  # fmt: skip


def test_model_reads_weights_as_a_pipeline_and_alone() -> None:
    """An uncertain vote must move the forecast less, whichever way it is passed."""
    from transformers import pipeline

    model = MaxMIGModel.from_classifier(small_head(), annotators=["ann", "bob"])
    said = (torch.arange(18) % 3)[:, None].repeat(1, 2)
    model.initialize_crowd([(torch.tensor([[0, 1]] * 18), said)], smoothing=1.0)
    forecast = pipeline("crowd-forecast", model=copy.deepcopy(model))
    item = {"features": [0.0] * 5}
    sure, unsure, split = (
        forecast({**item, "votes": {"ann": votes}})
        for votes in ("cat", ("cat", 0.4), {"cat": 0.4, "dog": 0.1, "emu": 0.0})
    )
    score = [
        {s["label"]: s["score"] for s in answer["forecast"]}["cat"] for answer in (sure, unsure)
    ]
    assert score[0] > score[1] + 0.05
    assert unsure["heard"] == [("ann", "cat", 0.4)]
    assert split["heard"] == [("ann", "cat", 0.4), ("ann", "dog", 0.1)]
    assert sure["heard"] == [("ann", "cat")]
    for votes, message in (
        ({"ann": ("cat", 1.5)}, r"must have weights in 0\.\.1, got 1.5 by 'ann' at item 0"),
        ({"ann": ("cat", "much")}, r"must have weights in 0\.\.1"),
        ({"ann": {"cat": 0.9, "dog": 0.9}}, "sum to one or less"),
        ({"ann": ("cat", 0.5, 1)}, "mapping from annotator to class"),
        ({"ann": {}}, "mapping from annotator to class"),
        ({"ann": []}, "mapping from annotator to class"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            forecast({**item, "votes": votes})


def test_report_and_spreadsheet_show_weights(make_args, tmp_path) -> None:
    """Readers of the page must see that a vote had a low weight."""
    crowd = with_weights(make_crowd(), 0.5)
    model = MaxMIGModel.from_classifier(small_head(), annotators=["ann", "bob", "cyd", "dee"])
    trainer = MaxMIGTrainer(model=model, args=make_args(num_train_epochs=1), train_dataset=crowd)
    trainer.train()
    trainer.report(crowd)
    (page,) = (tmp_path / "out").rglob("*.html")
    votes = sum(len(row) for row in crowd["annotations"][:])
    assert f"{votes} votes count by a weight below 1" in page.read_text(encoding="utf-8")
    (table,) = (tmp_path / "out").rglob("relabelled.csv")
    assert ": cat (0.50)" in table.read_text(encoding="utf-8")
