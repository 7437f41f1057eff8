"""Tests of mixup: the gain of blends against naive loops, which items are blended, and training on blends."""

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

import hf_maxmig.training.batch
import hf_maxmig.training.cross_fit
from hf_maxmig import CrowdCollator, CrowdTrainer, MaxMIGTrainer, MaxMIGTrainingArguments
from hf_maxmig.data.collator import crowd_batches
from hf_maxmig.data.numbered import ROW
from hf_maxmig.model.divergences import DIVERGENCES
from hf_maxmig.model.functional import Mixed, mutual_information_gain, reward_and_penalty
from hf_maxmig.model.mixup import blended_inputs, draw_blends
from hf_maxmig.model.votes import is_annotated
from hf_maxmig.peers import PEERS, peer
from hf_maxmig.training.cross_fit import CrossFitted
from hf_maxmig.training.start import Start
from hf_maxmig.training.training_args import PAPER_PRESETS
from tests import reference
from tests.gains import log_tables, value_and_gradients
from tests.waits import Waits
from tests.weights import assert_same, state
from tests.worlds import ANNOTATORS, CLASSES, InOrder, batch_of, make_crowd

every_row = pytest.mark.parametrize("name", DIVERGENCES)
SHARE = 0.3
# Seven items: 0 and 3 are partners of each other; 1, 4 and 6 form a cycle; 2 and 5 are their own
# partners.
PARTNER = torch.tensor([3, 4, 2, 0, 6, 5, 1])


def mixed(share: float = SHARE, partner: Tensor = PARTNER) -> Mixed:
    return Mixed(torch.tensor(share, dtype=torch.float64), partner)


# --- the gain


@every_row
@pytest.mark.parametrize("C", [3, 11])
@pytest.mark.parametrize("through", [False, True], ids=["log-probabilities", "logits"])
@pytest.mark.parametrize("some", [False, True], ids=["all", "some"])
def test_gain_of_blends_equals_the_double_loop(
    name: str, C: int, through: bool, some: bool
) -> None:
    """A blend must not be compared with either of its own two items, and only with items that have votes."""
    leaves = log_tables(7, C)
    annotated = torch.tensor([1, 1, 1, 1, 1, 1, 0]).bool() if some else None
    value, grads = value_and_gradients(
        lambda t: mutual_information_gain(*t, name, annotated, mixed()), leaves, through
    )

    def expected(tables: list[Tensor]) -> Tensor:
        h, g, p = (table.exp() for table in tables)
        row = reference.TABLE_1[name]
        return reference.gain_of_blends(h, g, p, row, SHARE, PARTNER.tolist(), annotated)

    wanted, wanted_grads = value_and_gradients(expected, leaves, through)
    plain = mutual_information_gain(*leaves, name, annotated)
    assert abs(float(wanted - plain)) > 1e-3
    assert all(grad.abs().max() > 1e-3 for grad in wanted_grads)
    torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(grads, wanted_grads, rtol=1e-10, atol=1e-10)


@every_row
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_items_have_exactly_the_gain_without_mixup(name: str, dtype: torch.dtype) -> None:
    """Blending with a share of 1 must equal no mixup to the last bit, gradients included."""
    leaves = log_tables(9, 4, dtype=dtype)
    itself = Mixed(torch.tensor(1.0), torch.arange(9))
    for annotated in (None, torch.tensor([1, 0, 1, 1, 0, 1, 1, 1, 1]).bool()):
        value, grads = value_and_gradients(
            lambda t, a=annotated: mutual_information_gain(*t, name, a, itself), leaves
        )
        plain, plain_grads = value_and_gradients(
            lambda t, a=annotated: mutual_information_gain(*t, name, a), leaves
        )
        assert value.dtype == dtype
        assert torch.equal(value, plain)
        torch.testing.assert_close(grads, plain_grads, rtol=1e-6, atol=1e-7)


@every_row
def test_gain_of_blends_does_not_see_items_without_annotations(name: str) -> None:
    """Neither their g nor the classifier's output for blends with them may reach the loss, not even as inf * 0."""
    annotated = torch.tensor([1, 1, 1, 1, 0, 1, 1]).bool()
    blends = annotated & annotated[PARTNER]
    assert blends.sum() == 5
    leaves = log_tables(7, 3, dtype=torch.float32)
    expected = mutual_information_gain(*leaves, name, annotated, mixed())
    leaves[0][~blends] = torch.tensor([1e4, 0.0, -1e4])
    leaves[1][~annotated] = torch.tensor([1e4, 0.0, -1e4])
    value, grads = value_and_gradients(
        lambda t: mutual_information_gain(*t, name, annotated, mixed()), leaves
    )
    torch.testing.assert_close(value, expected)
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[0][~blends] == 0).all()
    assert (grads[1][~annotated] == 0).all()
    assert (grads[0][blends] != 0).any()


@every_row
def test_gain_of_blends_does_not_feel_autocast(name: str) -> None:
    """A sum over pairs has only two digits in bfloat16, which happens only with `bf16=True`."""
    tables = log_tables(7, 3, dtype=torch.float32)
    outside = mutual_information_gain(*tables, name, None, mixed())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = mutual_information_gain(*tables, name, None, mixed())
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)
    half = [table.bfloat16() for table in tables]
    assert mutual_information_gain(*half, name, None, mixed()).dtype == torch.float32


def test_gain_of_blends_makes_no_table_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of a million items would not fit in memory: KL must stay linear in the batch size."""
    log_h, log_g, log_p = log_tables(1 << 20, 2, dtype=torch.float32)
    partner = torch.arange(1 << 20).roll(1)
    share = Mixed(torch.tensor(SHARE), partner)
    reward, penalty = reward_and_penalty(log_h, log_g, log_p, "kl", None, share)
    assert (reward - penalty).isfinite()


@every_row
def test_a_batch_with_nothing_to_compare_with_is_refused(name: str) -> None:
    """Each blend of a batch of two contains both items, so there is no pair to average over."""
    tables = log_tables(2, 3)
    swapped = Mixed(torch.tensor(0.5), torch.tensor([1, 0]))
    with pytest.raises(ValueError, match=r"at least 3 items with annotations .* got 2"):
        mutual_information_gain(*tables, name, None, swapped)
    assert all(part.isfinite() for part in reward_and_penalty(*tables, name, None, swapped))
    with pytest.raises(ValueError, match=r"`mixed.partner` must be a permutation of 0\.\.1"):
        mutual_information_gain(*tables, name, None, Mixed(torch.tensor(0.5), torch.tensor([1, 1])))


# --- what is blended


def test_shares_follow_the_beta_distribution_and_partners_are_drawn() -> None:
    """If all shares were one half, or partners the same in each batch, nothing else would notice."""
    torch.manual_seed(0)
    taught = torch.ones(9, dtype=torch.bool)
    for alpha in (0.4, 2.0):
        drawn = [draw_blends(taught, alpha) for _ in range(2000)]
        shares = torch.stack([one.share for one in drawn])
        assert float(shares.mean()) == pytest.approx(0.5, abs=0.03)
        assert float(shares.var()) == pytest.approx(0.25 / (2 * alpha + 1), rel=0.1)
        places = torch.stack([one.partner for one in drawn])
        counts = torch.stack([torch.bincount(column, minlength=9) for column in places.T])
        assert (counts > 150).all()
        assert (counts < 300).all()


def test_items_with_votes_are_blended_with_each_other() -> None:
    """The gain learns nothing from a blend with an unvoted item, so half of the votes would be lost."""
    torch.manual_seed(0)
    taught = torch.tensor([1, 0, 1, 1, 0, 0, 1, 1, 0]).bool()
    for _ in range(50):
        partner = draw_blends(taught, 1.0).partner
        assert torch.equal(taught[partner], taught)
        assert torch.equal(partner.sort().values, torch.arange(9))
    two = torch.tensor([0, 1, 0, 1, 0]).bool()
    assert torch.equal(draw_blends(two, 1.0).partner, torch.arange(5))


def test_inputs_are_blended_row_by_row() -> None:
    """Covers pictures, sounds with a padding mask, and inputs without a row per item."""
    blends = Mixed(torch.tensor(0.25), torch.tensor([1, 2, 0]))
    pictures = torch.arange(12.0).view(3, 1, 2, 2)
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]])
    found = blended_inputs(
        {"pixel_values": pictures, "attention_mask": mask, "bool_masked_pos": mask.bool(), "output_attentions": True},
        blends,
    )  # fmt: skip
    expected = 0.25 * pictures + 0.75 * pictures[[1, 2, 0]]
    assert torch.equal(found["pixel_values"], expected)
    either = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]])
    assert torch.equal(found["attention_mask"], either)
    assert torch.equal(found["bool_masked_pos"], either.bool())
    assert found["output_attentions"] is True
    half = blended_inputs({"features": pictures.bfloat16()}, blends)["features"]
    assert half.dtype == torch.bfloat16


def test_whole_numbers_are_refused() -> None:
    """The mean of two token ids is a third token, or none."""
    blends = Mixed(torch.tensor(0.25), torch.tensor([1, 0]))
    with pytest.raises(ValueError, match=r"must be 0 .* `input_ids` of int64"):
        blended_inputs({"input_ids": torch.tensor([[3, 4], [5, 6]])}, blends)


# --- what is learned from blends


def drawn(trainer, batch, alpha):
    """Return the blends that the next batch will have."""
    drawn = torch.get_rng_state()
    blends = draw_blends(is_annotated(batch["annotators"], batch["annotations"]), alpha)
    torch.set_rng_state(drawn)
    assert 0.02 < float(blends.share) < 0.98
    assert (blends.partner != torch.arange(len(blends.partner))).sum() > 8
    return blends


@every_row
def test_loss_is_minus_the_gain_of_the_blends(name, crowd, make_model, make_args) -> None:
    """The classifier must see the blends and the aggregator the items.

    Blending votes would be another method.
    """
    args = make_args(mixup_alpha=1.0, divergence=name)
    trainer = MaxMIGTrainer(model=make_model(divergence=name), args=args, train_dataset=crowd)
    model = trainer.crowd_model
    torch.nn.init.normal_(model.aggregator.table)
    batch = batch_of(trainer, range(24))
    annotated = is_annotated(batch["annotators"], batch["annotations"])
    assert 2 < annotated.sum() < 24
    blends = drawn(trainer, batch, 1.0)
    loss = trainer.compute_loss(trainer.model, batch)
    features, votes = batch["features"], (batch["annotators"], batch["annotations"])
    with torch.no_grad():
        log_h = model.classifier(features=blends.blend(features)).logits.log_softmax(-1)
        log_g = model.aggregator(model.prior(), *votes)
        expected = mutual_information_gain(log_h, log_g, model.prior(), name, annotated, blends)
        plain = model.classifier(features=features).logits.log_softmax(-1)
        without = mutual_information_gain(plain, log_g, model.prior(), name, annotated)
    assert abs(float(expected - without)) > 1e-3
    torch.testing.assert_close(loss.detach(), -expected)


def test_cross_fitted_targets_are_blended_as_the_inputs_are(crowd, make_model, make_args) -> None:
    """With another share or another partner's target, the classifier would learn noise."""
    args = make_args(mixup_alpha=1.0, init="cross_fit")
    trainer = MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd)
    batch = batch_of(trainer, range(24)) | {ROW: torch.arange(24)}
    targets = torch.rand(len(crowd), 3).softmax(dim=-1)
    annotated = is_annotated(batch["annotators"], batch["annotations"])
    targets[:24][~annotated] = 0.0
    found = CrossFitted(targets, targets.log(), torch.zeros(4, 3, 3), torch.zeros(3), 1.0, {})
    trainer.start = Start("cross_fit", items=found)
    blends = drawn(trainer, batch, 1.0)
    loss = trainer.compute_loss(trainer.model, batch)
    features = blends.blend(batch["features"])
    log_h = trainer.crowd_model.classifier(features=features).logits.log_softmax(-1)
    wanted = -(blends.blend(targets[:24]) * log_h).sum(dim=1)[annotated].mean()
    torch.testing.assert_close(loss, wanted)


@pytest.mark.parametrize(
    "name", [name for name in PEERS if PEERS[name][0].takes_blends and name != "kos"]
)
def test_rival_learns_of_a_blend_what_it_learns_of_both_items(name, crowd, make_model) -> None:
    """One item's votes paired with the aggregator's answer about the other belong to no item."""
    head = make_model().classifier
    model = peer(name, head, annotators=ANNOTATORS, id2label=dict(enumerate(CLASSES)))
    votes = list(crowd_batches(crowd, CrowdCollator(4, 3)))
    model.initialize_crowd(votes)
    annotators, annotations = (side[:24] for side in votes[0])
    batch = {"annotators": annotators, "annotations": annotations}
    generator = torch.Generator().manual_seed(0)
    batch["crowd_posterior"] = torch.randn(24, 3, generator=generator).softmax(dim=-1)
    batch["labels"] = torch.randint(3, (24,), generator=generator)
    features = torch.randn(24, 5, generator=generator)
    if hasattr(model, "rounds_done"):
        model.rounds_done += 1  # before that, it learns from vote shares
    annotated = is_annotated(annotators, annotations)
    torch.manual_seed(1)
    blends = draw_blends(annotated, 1.0)
    turned = {key: value[blends.partner] for key, value in batch.items()}

    def asked(of):
        return model(
            features=blends.blend(features), annotators=of["annotators"], annotations=of["annotations"]
        )  # fmt: skip

    with torch.no_grad():
        loss, empty = model.blended_loss(asked(batch), batch, blends)
        own, other = (model.crowd_loss(asked(of), of)[0] for of in (batch, turned))
    assert not empty
    assert abs(float(own - other)) > 1e-4
    torch.testing.assert_close(loss, blends.share * own + (1 - blends.share) * other)


def test_rival_whose_heads_are_the_annotators_is_refused(crowd, make_model, make_args) -> None:
    """Each of its heads answers for the annotators of one of the two items only."""
    head = make_model().classifier
    model = peer("doctor_net", head, annotators=ANNOTATORS, id2label=dict(enumerate(CLASSES)))
    with pytest.raises(ValueError, match=r"`mixup_alpha` must be 0 for Doctor Net, got 0\.4"):
        CrowdTrainer(model=model, args=make_args(mixup_alpha=0.4), train_dataset=crowd)


def test_words_are_refused_before_the_training(make_args) -> None:
    """At the first batch, the refusal would come only after the search."""
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, num_labels=3,
    )  # fmt: skip
    words = BertForSequenceClassification(config)
    crowd = make_crowd().remove_columns("features")
    crowd = crowd.add_column("input_ids", [[1, 2, 3]] * len(crowd))
    with pytest.raises(ValueError, match=r"must be 0 for BertForSequenceClassification, got 1\.0"):
        MaxMIGTrainer(model=words, args=make_args(mixup_alpha=1.0), train_dataset=crowd)
    MaxMIGTrainer(model=words, args=make_args(mixup_alpha=0.0), train_dataset=crowd)


# --- trainings


def test_training_by_blends_learns_the_classes(crowd, make_model, make_args) -> None:
    """Training on blends could run without errors and learn nothing."""
    args = make_args(num_train_epochs=15, mixup_alpha=0.4)
    trainer = MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd)
    trainer.train()
    assert trainer.evaluate(make_crowd(seed=1))["eval_accuracy"] > 0.93
    assert trainer.listed_arguments()["mixup_alpha"] == 0.4


def test_zero_is_no_mixup_to_the_bit_and_draws_nothing(crowd, make_model, make_args) -> None:
    """Mixup that is off must not even advance the random generator: dropout would differ."""
    trained = []
    for changes in ({}, {"mixup_alpha": 0.0}, {"mixup_alpha": 0.4}):
        trainer = MaxMIGTrainer(
            model=make_model(0.5), args=make_args(**changes), train_dataset=crowd
        )
        trainer.train()
        trained.append(trainer.crowd_model.aggregator.weight.clone())
    assert (
        "mixup_alpha"
        not in MaxMIGTrainer(
            model=make_model(), args=make_args(), train_dataset=crowd
        ).listed_arguments()
    )
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])


@pytest.mark.parametrize("changes", [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}])
def test_resumed_training_by_blends_equals_the_whole_one(
    changes, crowd, make_model, make_args
) -> None:
    """Shares and partners must continue from the checkpoint's generator, also in the middle of an epoch."""
    settings = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 2, **changes}
    trained = []
    for resume in (False, True):
        trainer = MaxMIGTrainer(
            model=make_model(0.5, seed=5 if resume else 0),
            args=make_args(mixup_alpha=0.4, **settings),
            train_dataset=crowd,
        )
        folder = f"{trainer.args.output_dir}/checkpoint-4"
        trainer.train(resume_from_checkpoint=folder if resume else None)
        trained.append(state(trainer.crowd_model))
    assert_same(*trained)


def test_accumulation_averages_the_gains_of_its_blended_micro_batches(
    crowd, make_model, make_args
) -> None:
    """Each micro-batch has its own blends, and the step is the mean of their gradients."""
    args = make_args(
        optim="sgd", learning_rate=0.1, aggregator_learning_rate=0.1, aggregator_warmup_ratio=0.0, max_grad_norm=0.0,
        lr_scheduler_type="constant", gradient_accumulation_steps=2, max_steps=1, init="keep", name_classes=False,
        mixup_alpha=1.0,
    )  # fmt: skip
    trainer = InOrder(model=make_model(), args=args, train_dataset=crowd.select(range(32)))
    torch.nn.init.normal_(trainer.crowd_model.aggregator.table)
    before = state(trainer.model)
    rows, states = (range(16), range(16, 32)), []
    compute_loss = trainer.compute_loss

    def noted(*args, **kwargs):
        states.append(torch.get_rng_state())
        return compute_loss(*args, **kwargs)

    trainer.compute_loss = noted
    trainer.train()
    moved = state(trainer.model)
    trainer.model.load_state_dict(before)
    losses = []
    for drawn, part in zip(states, rows, strict=True):
        torch.set_rng_state(drawn)
        losses.append(compute_loss(trainer.model, batch_of(trainer, part)))
    named = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(sum(losses) / 2, list(named.values()))
    expected = {n: before[n] - 0.1 * g for n, g in zip(named, gradients, strict=True)}
    assert any((g.abs() > 1e-4).any() for g in gradients)
    assert_same({n: moved[n] for n in expected}, expected, atol=1e-6)


@every_row
def test_step_of_blends_does_not_wait_for_the_device(
    name, crowd, make_model, make_args, monkeypatch
) -> None:
    """A single look at the share's value would make the device wait in every step."""
    trainer = MaxMIGTrainer(
        model=make_model(divergence=name), args=make_args(mixup_alpha=0.4), train_dataset=crowd
    )
    batch = batch_of(trainer, range(24))
    blends = draw_blends(is_annotated(batch["annotators"], batch["annotations"]), 1.0)
    monkeypatch.setattr(hf_maxmig.training.batch, "draw_blends", lambda *_: blends)  # on the CPU
    with Waits(monkeypatch) as waits:
        trainer.compute_loss(trainer.model, batch).backward()
    assert waits.seen == []
    assert trainer.crowd_model.aggregator.table.grad.abs().sum() > 0


@pytest.mark.slow
def test_compiled_model_learns_from_blends_like_the_plain_one(crowd, make_model, make_args) -> None:
    """Blending happens outside the compiled part of the model."""
    trained = []
    for changes in ({}, {"torch_compile": True, "torch_compile_backend": "aot_eager"}):
        trainer = MaxMIGTrainer(
            model=make_model(),
            args=make_args(mixup_alpha=0.4, **changes),
            train_dataset=crowd.select(range(64)),
        )
        trainer.train()
        trained.append(state(trainer.crowd_model))
    assert_same(*trained, atol=1e-5)


def test_papers_protocol_has_no_mixup() -> None:
    """A preset must stay the paper's, whatever the defaults become."""
    assert {preset["mixup_alpha"] for preset in PAPER_PRESETS.values()} == {0.0}
    with pytest.raises(ValueError, match="`mixup_alpha` must be finite, 0 or more, got -1"):
        MaxMIGTrainingArguments("out", mixup_alpha=-1, report_to="none", use_cpu=True)
