"""CrowdTrainer and MaxMIGTrainer: what training, evaluation and prediction promise."""

import csv
import itertools
import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict, concatenate_datasets
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    ResNetConfig,
    ResNetForImageClassification,
    TrainerCallback,
    TrainingArguments,
)

from hf_maxmig import (
    CrowdCollator,
    MaxMIGModel,
    MaxMIGTrainer,
    align_annotators,
    crowd_features,
    mutual_information_gain,
)
from hf_maxmig.data.collator import crowd_batches
from hf_maxmig.judging.relabel import with_names
from hf_maxmig.metrics import gain_interval
from hf_maxmig.training.guards import Watch
from hf_maxmig.training.start import Start
from tests.networks import small_vit
from tests.several_processes import make_pictures
from tests.waits import Waits
from tests.weights import assert_same, state
from tests.worlds import ANNOTATORS, CLASSES, InOrder, batch_of, make_crowd


def test_loss_is_minus_the_gain_of_the_annotated_items(crowd, make_model, make_args):
    """A loss that includes unlabelled items, or has another scale, would still go down."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    torch.nn.init.normal_(trainer.crowd_model.aggregator.table)
    batch = batch_of(trainer, range(24))
    annotated = (batch["annotations"] >= 0).any(dim=1)
    assert 2 < annotated.sum() < 24
    loss, outputs = trainer.compute_loss(trainer.model, batch, return_outputs=True)
    expected = mutual_information_gain(
        outputs.logits.log_softmax(-1)[annotated],
        outputs.aggregator_logits[annotated],
        trainer.crowd_model.prior(),
    )
    torch.testing.assert_close(loss, -expected)


def test_gold_labels_change_nothing_in_training(crowd, make_model, make_args):
    """This is the one leak that would make every result worthless."""
    wrong = crowd.map(lambda row: {"label": (row["label"] + 1) % 3}, load_from_cache_file=False)
    without = crowd.remove_columns("label")
    trained = []
    for dataset in (crowd, wrong, without):
        trainer = MaxMIGTrainer(
            model=make_model(prior="learned"), args=make_args(), train_dataset=dataset
        )
        trainer.train()
        trained.append(state(trainer.model))
    assert_same(trained[0], trained[1])
    assert_same(trained[0], trained[2])


def test_training_learns_the_classes_from_the_crowd(crowd, make_model, make_args):
    """Training could run without errors and learn nothing. The vote share alone is far below this accuracy."""
    trainer = MaxMIGTrainer(
        model=make_model(),
        args=make_args(num_train_epochs=15),
        train_dataset=crowd,
        eval_dataset=make_crowd(seed=1),
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert before["eval_accuracy"] < 0.7
    assert after["eval_accuracy"] > 0.93
    assert after["eval_forecast_accuracy"] > 0.93
    assert after["eval_gain"] > before["eval_gain"] + 0.3


@pytest.mark.parametrize("divergence", ["pearson", "jensen_shannon"])
def test_other_divergences_learn_too(divergence, crowd, make_model, make_args):
    """If only KL were tested, a wrong sign in the other divergences would go unnoticed."""
    trainer = MaxMIGTrainer(
        model=make_model(divergence=divergence),
        args=make_args(num_train_epochs=15),
        train_dataset=crowd,
    )
    trainer.train()
    assert trainer.evaluate(make_crowd(seed=1))["eval_accuracy"] > 0.93


def test_accumulation_averages_the_gains_of_its_micro_batches(crowd, make_model, make_args):
    """Where a subclass computes the loss, Trainer's own scaling would give k times the gradient."""
    rows = crowd.select(range(32))
    args = make_args(
        optim="sgd", learning_rate=0.1, aggregator_learning_rate=0.1, aggregator_warmup_ratio=0.0, max_grad_norm=0.0,
        lr_scheduler_type="constant", gradient_accumulation_steps=2, max_steps=1, init="keep", name_classes=False,
    )  # fmt: skip
    trainer = InOrder(model=make_model(prior="learned"), args=args, train_dataset=rows)
    torch.nn.init.normal_(trainer.crowd_model.aggregator.table)
    before = state(trainer.model)
    losses = [
        trainer.compute_loss(trainer.model, batch_of(trainer, r))
        for r in (range(16), range(16, 32))
    ]
    named = dict(trainer.model.named_parameters())
    gradients = torch.autograd.grad(sum(losses) / 2, list(named.values()))
    trainer.train()
    expected = {name: before[name] - 0.1 * g for name, g in zip(named, gradients, strict=True)}
    moved = {name: p for name, p in state(trainer.model).items() if name in expected}
    assert any((g.abs() > 1e-4).any() for g in gradients)
    assert_same(moved, expected, atol=1e-6)


def test_resumed_run_equals_uninterrupted(crowd, make_model, make_args):
    """A resume that reinitialises the aggregator, or loses its rate, gives a different but plausible model."""
    settings = {"num_train_epochs": 4, "save_strategy": "epoch"}
    whole = MaxMIGTrainer(
        model=make_model(0.5, prior="learned"), args=make_args(**settings), train_dataset=crowd
    )
    whole.train()
    checkpoint = whole.args.output_dir + "/checkpoint-12"
    again = MaxMIGTrainer(
        model=make_model(0.5, seed=5, prior="learned"),
        args=make_args(**settings),
        train_dataset=crowd,
    )
    again.train(resume_from_checkpoint=checkpoint)
    assert_same(state(whole.model), state(again.model))


def test_resume_passes_over_a_half_written_checkpoint(crowd, make_model, make_args, caplog):
    """Otherwise a run killed while saving could not be resumed."""
    args = make_args(num_train_epochs=2, save_strategy="epoch")
    first = MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd)
    first.train()
    whole = state(first.model)
    Path(first.args.output_dir, "checkpoint-12", "trainer_state.json").unlink()
    again = MaxMIGTrainer(model=make_model(seed=3), args=args, train_dataset=crowd)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == first.state.global_step
    assert_same(whole, state(again.model))


def test_resume_without_a_checkpoint_says_so(crowd, make_model, make_args):
    """Silently starting over would lose the training that was to be resumed."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    with pytest.raises(ValueError, match="needs a whole checkpoint"):
        trainer.train(resume_from_checkpoint=True)


def test_fresh_run_starts_from_equation_2_and_keep_does_not(crowd, make_model, make_args):
    """The aggregator could be left at zero, or reset although it should be kept."""
    starts = {}

    class Spy(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **kwargs):
            starts[args.init] = model.aggregator.weight.detach().clone()

    for init in ("vote_share", "keep"):
        model = make_model()
        torch.nn.init.constant_(model.aggregator.table, 7.0)
        args = make_args(max_steps=1, init=init, init_strength=0.5)
        MaxMIGTrainer(model=model, args=args, train_dataset=crowd, callbacks=[Spy()]).train()
    reference = make_model()
    reference.initialize_crowd(crowd_batches(crowd, CrowdCollator(4, 3)))
    torch.testing.assert_close(starts["vote_share"], reference.aggregator.weight.detach() * 0.5)
    assert (starts["keep"] == 7.0).all()


@pytest.mark.parametrize("plain", [False, True])
def test_model_init_is_started_from_the_crowd_too(plain, crowd, make_model, make_args):
    """With `model_init` the model is created inside `train`, and must be wrapped, collated for and started there."""
    trainer = MaxMIGTrainer(
        model_init=lambda trial=None: make_model().classifier if plain else make_model(),
        args=make_args(num_train_epochs=15),
        train_dataset=crowd,
    )
    trainer.train()
    assert trainer.crowd_model.config.annotators == ANNOTATORS
    assert trainer.crowd_model.aggregator.table.abs().sum() > 1
    assert trainer.evaluate(make_crowd(seed=1))["eval_accuracy"] > 0.93


def test_bf16_computes_the_gain_in_float32_and_keeps_the_aggregator(crowd, make_model, make_args):
    """In bfloat16 the gain has three digits and updates of 1e-3 are lost, without any error."""
    trainer = MaxMIGTrainer(
        model=make_model(prior="learned"), args=make_args(bf16=True), train_dataset=crowd
    )
    seen = []

    class Spy(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                batch = batch_of(trainer, range(24))
                loss, outputs = trainer.compute_loss(model, batch, return_outputs=True)
            annotated = (batch["annotations"] >= 0).any(dim=1)
            exact = mutual_information_gain(
                outputs.logits.double().log_softmax(-1)[annotated],
                outputs.aggregator_logits.double()[annotated],
                model.prior().double(),
            )
            seen.append((loss.dtype, (loss + exact).item(), outputs.aggregator_logits.dtype))

    trainer.add_callback(Spy())
    trainer.train()
    assert len(seen) == 12
    assert all(
        kind == torch.float32 and abs(gap) < 1e-5 and g == torch.float32 for kind, gap, g in seen
    )
    assert {p.dtype for p in trainer.crowd_model.crowd_parameters()} == {torch.float32}


def test_evaluation_is_over_the_whole_set_whatever_the_batch(crowd, make_model, make_args):
    """A mean over batches would depend on the batch size and be another number."""
    model = make_model()
    model.initialize_crowd(crowd_batches(crowd, CrowdCollator(4, 3)))
    results = []
    for size in (7, 64):
        args = make_args(per_device_eval_batch_size=size)
        trainer = MaxMIGTrainer(model=model, args=args, train_dataset=crowd, eval_dataset=crowd)
        results.append(trainer.evaluate())
    batch = batch_of(trainer, range(len(crowd)))
    annotated = (batch["annotations"] >= 0).any(dim=1)
    assert not annotated.all()
    with torch.no_grad():
        outputs = model(
            features=batch["features"],
            annotators=batch["annotators"],
            annotations=batch["annotations"],
        )
        expected = model.gain(outputs.logits.log_softmax(-1), outputs.aggregator_logits, annotated)
    spread = gain_interval(
        outputs.logits.log_softmax(-1)[annotated],
        outputs.aggregator_logits[annotated],
        model.prior(),
    )
    assert spread[0] < float(expected) < spread[1]
    for result in results:
        assert result["eval_gain"] == pytest.approx(float(expected), abs=1e-5)
        assert result["eval_gain_ceiling"] == pytest.approx(math.log(3), abs=1e-6)
        ends = (result["eval_gain_low"], result["eval_gain_high"])
        assert ends == pytest.approx(spread, abs=1e-5)
        assert result["eval_loss"] == pytest.approx(-float(expected), abs=1e-5)
    h = outputs.logits.argmax(-1)
    assert results[0]["eval_accuracy"] == pytest.approx(
        float((h == batch["labels"]).float().mean())
    )
    for name, posterior in (
        ("aggregator", outputs.aggregator_logits),
        ("forecast", outputs.forecast_logits),
    ):
        right = (posterior.argmax(-1) == batch["labels"])[annotated].float().mean()
        assert results[0][f"eval_{name}_accuracy"] == pytest.approx(float(right))


def test_dropping_the_last_batch_keeps_every_item_of_an_evaluation(crowd, make_model, make_args):
    """Trainer's flag also cuts the evaluation set: accuracies of another set, and predictions that do not line up."""
    args = make_args(dataloader_drop_last=True, per_device_eval_batch_size=64)
    trainer = MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd)
    assert len(crowd) % 64
    assert len(trainer.predict(crowd).label_ids) == len(crowd)
    assert len(trainer.get_train_dataloader()) == len(crowd) // 16
    assert args.dataloader_drop_last


def test_evaluation_reports_what_the_data_allows(crowd, make_model, make_args):
    """Trainer silently returns nothing at all if an evaluation set lacks labels."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    accuracies = {"eval_accuracy", "eval_aggregator_accuracy", "eval_forecast_accuracy"}
    gains = {"eval_gain", "eval_gain_ceiling", "eval_gain_low", "eval_gain_high"}
    no_gold = trainer.evaluate(crowd.remove_columns("label"))
    assert gains <= no_gold.keys()
    assert not accuracies & no_gold.keys()
    no_votes = trainer.evaluate(crowd.remove_columns(["annotators", "annotations"]))
    assert not gains & no_votes.keys()
    two = [i for i, votes in enumerate(crowd["annotations"]) if votes][:2]
    assert gains & trainer.evaluate(crowd.select(two)).keys() == {"eval_gain", "eval_gain_ceiling"}
    assert accuracies & no_votes.keys() == {"eval_accuracy"}
    part = crowd.add_column("gold", [y if i % 2 else None for i, y in enumerate(crowd["label"])])
    part = part.remove_columns("label").rename_column("gold", "label")
    some_gold = trainer.evaluate(part)
    odd = crowd.select(range(1, len(crowd), 2))
    assert some_gold["eval_accuracy"] == pytest.approx(trainer.evaluate(odd)["eval_accuracy"])


def test_predict_gives_the_three_posteriors(crowd, make_model, make_args):
    """Without votes the forecast must equal the classifier's. A missing output would shift the others."""
    trainer = MaxMIGTrainer(
        model=make_model(prior=[5, 3, 2]), args=make_args(), train_dataset=crowd
    )
    torch.nn.init.normal_(trainer.crowd_model.aggregator.table)
    output = trainer.predict(crowd)
    log_h, log_g, log_forecast = output.predictions
    for posterior in output.predictions:
        np.testing.assert_allclose(np.exp(posterior).sum(-1), 1, atol=1e-5)
    np.testing.assert_array_equal(output.label_ids, crowd["label"][:])
    empty = np.array([len(votes) == 0 for votes in crowd["annotations"]])
    assert 0 < empty.sum() < len(crowd)
    np.testing.assert_allclose(log_forecast[empty], log_h[empty], atol=1e-5)
    np.testing.assert_allclose(
        log_g[empty], np.log([[0.5, 0.3, 0.2]]).repeat(empty.sum(), 0), atol=1e-5
    )
    assert np.abs(log_forecast[~empty] - log_h[~empty]).max() > 0.1
    bare = trainer.predict(crowd.select_columns(["features"]))
    np.testing.assert_allclose(bare.predictions[0], log_h, atol=1e-6)
    assert (bare.label_ids == -100).all()


def test_further_metrics_are_added(crowd, make_model, make_args):
    """A user's own metrics must be added to ours, with gold labels in the form they expect."""

    def metrics(prediction):
        assert prediction.label_ids.shape == (len(crowd),)
        return {"classes_used": len(np.unique(prediction.predictions[0].argmax(-1)))}

    trainer = MaxMIGTrainer(
        model=make_model(), args=make_args(), train_dataset=crowd, compute_metrics=metrics
    )
    result = trainer.evaluate(crowd)
    assert result["eval_classes_used"] >= 1
    assert "eval_gain" in result


def test_step_with_one_annotated_item_is_skipped_with_one_line(
    crowd, make_model, make_args, caplog
):
    """It must not crash, give NaN or take an arbitrary step. One line per step would drown the log."""
    lengths = [len(votes) for votes in crowd["annotations"]]
    empty = [i for i, n in enumerate(lengths) if n == 0]
    one = next(i for i, n in enumerate(lengths) if n > 0)
    rows = crowd.select([one, *empty[:3]] * 2)
    args = make_args(
        per_device_train_batch_size=4, optim="sgd", learning_rate=1.0, logging_strategy="steps", logging_steps=1,
        num_train_epochs=3, name_classes=False, init="keep",
    )  # fmt: skip
    trainer = InOrder(model=make_model(prior="learned"), args=args, train_dataset=rows)
    before = state(trainer.model)
    logging.getLogger("hf_maxmig").propagate = True
    with caplog.at_level("WARNING"):
        trainer.train()
    assert_same(before, state(trainer.model))
    assert sum("fewer than the 2 items" in record.message for record in caplog.records) == 1
    assert all(entry.get("loss", 0.0) == 0.0 for entry in trainer.state.log_history)


def test_best_model_is_chosen_by_the_gain(crowd, make_model, make_args):
    """Trainer's default would look for a loss, or take the lowest gain for the best."""
    args = make_args(
        num_train_epochs=4, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True,
        learning_rate=0.05, name_classes=False,
    )  # fmt: skip
    trainer = MaxMIGTrainer(
        model=make_model(), args=args, train_dataset=crowd, eval_dataset=make_crowd(seed=2),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
    )  # fmt: skip
    trainer.train()
    gains = [entry["eval_gain"] for entry in trainer.state.log_history if "eval_gain" in entry]
    assert len(set(gains)) > 1
    assert trainer.state.best_metric == max(gains)
    assert trainer.evaluate()["eval_gain"] == pytest.approx(max(gains), abs=1e-5)


def untouched(make_args, **changes):
    """Return arguments that do not mention evaluating or saving."""
    return make_args(**{"save_strategy": "steps", "name_classes": False, **changes})


def test_evaluation_set_with_votes_chooses_the_epoch(crowd, make_model, make_args):
    """A user who passes held-out votes and nothing else would end up with the last epoch, however bad."""
    args = untouched(make_args, num_train_epochs=4, learning_rate=0.05)
    held_out = make_crowd(seed=2)
    trainer = MaxMIGTrainer(
        model=make_model(), args=args, train_dataset=crowd, eval_dataset=held_out,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=4)],
    )  # fmt: skip
    trainer.train()
    *gains, at_end = (log["eval_gain"] for log in trainer.state.log_history if "eval_gain" in log)
    assert len(set(gains)) == 4
    assert trainer.state.best_metric == max(gains) != gains[-1]
    # The card describes the chosen epoch.
    assert at_end == pytest.approx(max(gains), abs=1e-5)
    assert trainer.evaluate()["eval_gain"] == pytest.approx(max(gains), abs=1e-5)
    assert len(list(Path(args.output_dir).glob("checkpoint-*"))) == 1
    # The user's own arguments are unchanged: they may be passed to another trainer.
    assert (args.eval_strategy, args.load_best_model_at_end) == ("no", False)
    MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd)


def test_gold_labels_have_no_say_in_the_choice_of_the_epoch(crowd, make_model, make_args):
    """If gold labels chose the epoch, the reported accuracy would be the best of many."""
    held_out, picks = make_crowd(seed=2), []
    flipped = held_out.map(
        lambda row: {"label": (row["label"] + 1) % 3}, load_from_cache_file=False
    )
    for dataset in (held_out, flipped, held_out.remove_columns("label")):
        args = untouched(make_args, num_train_epochs=4)
        trainer = MaxMIGTrainer(
            model=make_model(), args=args, train_dataset=crowd, eval_dataset=dataset
        )
        trainer.train()
        picks.append((trainer.state.best_global_step, trainer.predict(held_out).predictions))
        if dataset is flipped:  # by these labels another epoch would be the best
            evaluations = [entry for entry in trainer.state.log_history if "eval_gain" in entry]
            best = max(evaluations, key=lambda entry: entry["eval_accuracy"])
            assert best["step"] != trainer.state.best_global_step
    assert picks[0][0] == picks[1][0] == picks[2][0]
    for other in picks[1:]:
        for first, second in zip(picks[0][1], other[1], strict=True):
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    "changes",
    [
        {"select_by_gain": False},
        {"eval_strategy": "epoch"},
        {"save_strategy": "no"},
        {"save_steps": 100},
        {"save_total_limit": 5},
        {"metric_for_best_model": "accuracy"},
    ],
)
def test_what_the_user_has_set_is_not_changed(changes, crowd, make_model, make_args):
    """A user who has configured evaluating and saving must not get anything else."""
    args = untouched(make_args, **changes)
    trainer = MaxMIGTrainer(
        model=make_model(), args=args, train_dataset=crowd, eval_dataset=make_crowd(seed=2)
    )
    assert trainer.args is args
    assert not args.load_best_model_at_end


def test_gain_does_not_choose_where_there_is_none(crowd, make_model, make_args):
    """A dictionary does not say which set to use, and an evaluation set without votes has no gain."""
    held_out = make_crowd(seed=2)
    empty = held_out.select([i for i, votes in enumerate(held_out["annotations"]) if not votes])
    assert len(empty)
    bare = held_out.remove_columns(["annotators", "annotations"])
    for dataset in (None, bare, empty, {"crowd": held_out}, DatasetDict(crowd=held_out)):
        args = untouched(make_args)
        trainer = MaxMIGTrainer(
            model=make_model(), args=args, train_dataset=crowd, eval_dataset=dataset
        )
        assert trainer.args is args
    trainer.train()


def test_crowd_parameters_have_their_own_rate_and_no_decay(crowd, make_model, make_args):
    """At the classifier's rate LabelMe loses three points, and weight decay would pull evidence towards zero."""
    args = make_args(weight_decay=0.1, learning_rate=1e-3, aggregator_learning_rate=5e-2)
    trainer = MaxMIGTrainer(model=make_model(prior="learned"), args=args, train_dataset=crowd)
    optimizer = trainer.create_optimizer()
    *others, aggregator, prior = optimizer.param_groups
    model = trainer.crowd_model
    for group, own in ((aggregator, model.crowd_parameters()), (prior, model.prior_parameters())):
        assert [id(p) for p in group["params"]] == [id(p) for p in own]
        assert len(group["params"]) == 1
        assert (group["lr"], group["weight_decay"]) == (5e-2, 0.0)
    assert {g["lr"] for g in others} == {1e-3}
    counted = sum(p.numel() for g in optimizer.param_groups for p in g["params"])
    assert counted == sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)


def test_aggregator_rate_rises_then_follows_the_schedule(crowd, make_model, make_args):
    """The warm-up could get lost on resuming, or slow down the classifier too."""
    args = make_args(learning_rate=1e-2, aggregator_learning_rate=1e-1, aggregator_warmup_ratio=0.5)
    trainer = MaxMIGTrainer(model=make_model(prior="learned"), args=args, train_dataset=crowd)
    trainer.create_optimizer_and_scheduler(20)
    rates = []
    for _ in range(20):
        rates.append([group["lr"] for group in trainer.optimizer.param_groups])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    for step, (*others, crowd_rate, prior_rate) in enumerate(rates):
        cosine = 0.5 * (1 + math.cos(math.pi * step / 20))
        assert others == pytest.approx([1e-2 * cosine] * len(others))
        assert crowd_rate == pytest.approx(1e-1 * cosine * min(1, (step + 1) / 10) ** 2)
        assert prior_rate == crowd_rate


def test_learned_prior_is_not_as_slow_as_an_aggregator_that_must_be(crowd, make_model, make_args):
    """At a hundredth of the aggregator's rate it stays near the vote share.

    With 2 % of one class that costs two points.
    """
    args = make_args(learning_rate=1e-3, search_rate=True)
    trainer = MaxMIGTrainer(model=make_model(prior="learned"), args=args, train_dataset=crowd)
    for rate, own in ((1e-3, 1e-2), (1e-2, 1e-2), (1e-1, 1e-1)):
        trainer.start = Start("keep", rate=rate)
        trainer.optimizer = None
        *_, aggregator, prior = trainer.create_optimizer().param_groups
        assert (aggregator["lr"], prior["lr"]) == (pytest.approx(rate), pytest.approx(own))


def test_log_has_gain_and_learned_prior(crowd, make_model, make_args):
    """A negative loss means nothing to a reader."""
    args = make_args(logging_strategy="epoch")
    trainer = MaxMIGTrainer(model=make_model(prior="learned"), args=args, train_dataset=crowd)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(entries) == 2
    for entry in entries:
        assert entry["gain"] == -entry["loss"]
        p = np.array([entry[f"prior_{name}"] for name in CLASSES])
        assert p.sum() == pytest.approx(1)
        assert entry["prior_entropy"] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-5)
    assert entries[0]["prior_cat"] != entries[1]["prior_cat"]


def test_swapped_classes_are_named_by_the_votes(crowd, make_model, make_args):
    """The gain cannot see a swap. Without naming, half of the test items of two classes come out wrong."""
    trainer = MaxMIGTrainer(
        model=make_model(prior="learned"), args=make_args(num_train_epochs=15), train_dataset=crowd
    )
    trainer.train()
    right = trainer.evaluate(crowd)
    posterior = trainer.predict(crowd).predictions
    assert trainer.name_classes() is None
    batch = {"features": batch_of(trainer, range(8))["features"]}
    assert trainer.crowd_model.reorder_classes(torch.tensor([2, 0, 1]), batch)
    wrong = trainer.evaluate(crowd)
    assert wrong["eval_accuracy"] < 0.1
    assert wrong["eval_gain"] == pytest.approx(right["eval_gain"], abs=1e-5)
    assert trainer.name_classes() == ["dog", "emu", "cat"]
    after = trainer.predict(crowd).predictions
    for first, second in zip(posterior, after, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-5)


def test_classes_that_cannot_be_renamed_are_told(crowd, make_model, make_args, caplog):
    """A classifier whose output layer is hidden must not be renamed in part."""
    trainer = MaxMIGTrainer(
        model=make_model(), args=make_args(num_train_epochs=15), train_dataset=crowd
    )
    trainer.train()
    trainer.crowd_model.reorder_classes(
        torch.tensor([1, 0, 2]), {"features": batch_of(trainer, range(8))["features"]}
    )
    head = trainer.crowd_model.classifier
    head.register_forward_hook(
        lambda m, i, output: output.__setitem__("logits", output.logits * torch.arange(1.0, 4))
    )
    before = state(trainer.model)
    logging.getLogger("hf_maxmig").propagate = True
    with caplog.at_level("WARNING"):
        assert trainer.name_classes() is None
    assert "came out exchanged" in caplog.text
    assert_same(before, state(trainer.model))


def test_plain_hub_classifier_is_wrapped(make_args):
    """This is the user's whole API: names and numbers come from the data set."""
    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", num_labels=3
    )
    classifier = ResNetForImageClassification(config)
    weight = classifier.classifier[1].weight.detach().clone()
    dataset = Dataset.from_dict(
        {
            "pixel_values": np.random.default_rng(0).normal(size=(6, 3, 32, 32)).astype("float32"),
            "annotators": [[0, 1]] * 6,
            "annotations": [[0, 0], [1, 1], [2, 2]] * 2,
        },
    ).with_format("numpy")
    dataset = dataset.cast_column(
        "annotators", crowd_features(ANNOTATORS[:2], CLASSES)["annotators"]
    )
    dataset = dataset.cast_column(
        "annotations", crowd_features(ANNOTATORS[:2], CLASSES)["annotations"]
    )
    args = make_args(
        max_steps=2, per_device_train_batch_size=3, divergence="pearson", prior="0.5,0.3,0.2"
    )
    trainer = MaxMIGTrainer(model=classifier, args=args, train_dataset=dataset)
    model = trainer.crowd_model
    assert isinstance(model, MaxMIGModel)
    assert (model.config.annotators, model.config.class_names) == (ANNOTATORS[:2], CLASSES)
    assert (model.config.divergence, model.config.prior) == ("pearson", [0.5, 0.3, 0.2])
    assert model.classifier is classifier
    torch.testing.assert_close(classifier.classifier[1].weight, weight)
    trainer.train()
    assert not torch.equal(classifier.classifier[1].weight, weight)


@pytest.mark.parametrize("fields", [{"divergence": "pearson"}, {"prior": "learned"}])
def test_arguments_cannot_change_what_is_built_into_a_crowd_model(
    fields, crowd, make_model, make_args
):
    """`prior="learned"` for a model with a fixed prior would be silently ignored."""
    with pytest.raises(ValueError, match="must be that of the model"):
        MaxMIGTrainer(model=make_model(), args=make_args(**fields), train_dataset=crowd)
    MaxMIGTrainer(model=make_model(**fields), args=make_args(**fields), train_dataset=crowd)


def test_text_classifier_goes_through_the_same_door(make_args):
    """Anything in the core that assumes pictures would show here."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=3,
    )
    features = crowd_features(ANNOTATORS[:2], CLASSES)
    dataset = Dataset.from_dict(
        {
            "input_ids": [[1, 2, 3]] * 8, "attention_mask": [[1, 1, 1]] * 8,
            "annotators": [[0, 1]] * 8, "annotations": [[0, 0], [1, 1], [2, 2], [0, 1]] * 2,
        }
    )  # fmt: skip
    for name in features:
        dataset = dataset.cast_column(name, features[name])
    args = make_args(max_steps=2, per_device_train_batch_size=4)
    trainer = MaxMIGTrainer(
        model=BertForSequenceClassification(config), args=args, train_dataset=dataset
    )
    trainer.train()
    assert trainer.crowd_model.config.classifier_task == "text-classification"
    assert np.isfinite(trainer.evaluate(dataset)["eval_gain"])


def test_wrong_number_of_outputs_says_how_to_load(crowd, make_args):
    """The usual first mistake is a classifier with 1000 ImageNet outputs for three classes."""
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic", num_labels=1000
    )
    with pytest.raises(ValueError, match=r"one output per class = 3, got 1000.*num_labels=3"):
        MaxMIGTrainer(
            model=ResNetForImageClassification(config), args=make_args(), train_dataset=crowd
        )


def test_unnamed_columns_need_a_crowd_model(crowd, make_model, make_args):
    """If the number of annotators were guessed from the data, the first new one would break it."""
    bare = Dataset.from_dict({n: crowd[n][:] for n in ("features", "annotators", "annotations")})
    with pytest.raises(ValueError, match="must name annotators and classes"):
        MaxMIGTrainer(model=make_model().classifier, args=make_args(), train_dataset=bare)


def test_other_annotators_than_the_models_are_refused_until_aligned(crowd, make_model, make_args):
    """Annotator 0 of another file is another person, whose labels would be read with the wrong matrix."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    torch.nn.init.normal_(trainer.crowd_model.aggregator.table)
    renamed = crowd.select(range(20)).cast_column(
        "annotators", crowd_features(["dee", "cyd", "zoe", "ann"], CLASSES)["annotators"]
    )
    for call in (trainer.predict, trainer.evaluate):
        with pytest.raises(ValueError, match=r"1 of them unknown \(zoe\).*align_annotators"):
            call(renamed)
    aligned = align_annotators(renamed, trainer.crowd_model.config.annotators)
    log_g = trainer.predict(aligned).predictions[1]
    number = {0: 3, 1: 2, 2: -1, 3: 0}
    ids = [[number[m] for m in row] for row in renamed["annotators"]]
    expected = trainer.predict(
        renamed.remove_columns("annotators").add_column("annotators", ids)
    ).predictions[1]
    np.testing.assert_allclose(log_g, expected, atol=1e-6)


def test_other_class_order_is_refused(crowd, make_model, make_args):
    """Class numbers under another order would be a silent permutation."""
    other = crowd.cast_column(
        "annotations", crowd_features(ANNOTATORS, CLASSES[::-1])["annotations"]
    )
    with pytest.raises(ValueError, match="classes must be those of the model"):
        MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=other)


def test_training_without_crowd_columns_says_what_to_do(crowd, make_model, make_args):
    """It would silently train on nothing, or on the gold labels."""
    bare = crowd.remove_columns(["annotators", "annotations"])
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(init="keep"), train_dataset=bare)
    with pytest.raises(ValueError, match="add_annotations"):
        trainer.train()


def test_plain_training_arguments_are_refused(crowd, make_model, tmp_path):
    """Their defaults drop the columns of the votes."""
    with pytest.raises(TypeError, match="MaxMIGTrainingArguments"):
        MaxMIGTrainer(
            model=make_model(), args=TrainingArguments(str(tmp_path)), train_dataset=crowd
        )


def test_streamed_data_set_trains(crowd, make_model, make_args):
    """A stream has no length and no columns by name, and its votes must still start the aggregator."""
    args = make_args(max_steps=4)
    stream = MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd.to_iterable_dataset())
    stream.train()
    assert stream.state.global_step == 4
    fresh = make_model()
    stream.crowd_model.initialize_crowd(stream.crowd_of(stream.train_dataset))
    fresh.initialize_crowd(crowd_batches(crowd, CrowdCollator(4, 3)))
    torch.testing.assert_close(stream.crowd_model.aggregator.table, fresh.aggregator.table)


@pytest.mark.slow
def test_compiled_model_trains_like_the_plain_one(crowd, make_model, make_args):
    """A compiled wrapper that is not unwrapped hides the crowd model's methods and parameters."""
    trained = []
    for changes in ({}, {"torch_compile": True, "torch_compile_backend": "aot_eager"}):
        trainer = MaxMIGTrainer(
            model=make_model(prior="learned"),
            args=make_args(**changes),
            train_dataset=crowd.select(range(64)),
        )
        trainer.train()
        trained.append(state(trainer.crowd_model))
    assert_same(*trained, atol=1e-5)


def test_optimizer_that_was_passed_is_used(crowd, make_model, make_args):
    """`optimizers=` is part of Trainer's API."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = MaxMIGTrainer(
        model=model,
        args=make_args(name_classes=False),
        train_dataset=crowd,
        optimizers=(optimizer, schedule),
    )
    trainer.train()
    reference = make_model()
    reference.initialize_crowd(crowd_batches(crowd, CrowdCollator(4, 3)), scale=0.5)
    assert_same(state(trainer.model), state(reference))


def test_data_set_of_any_kind_trains(crowd, make_model, make_args):
    """A torch data set of dicts has neither Arrow columns nor features."""

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(crowd)

        def __getitem__(self, i):
            return crowd[i]

    trained = []
    for dataset in (crowd, Rows()):
        trainer = InOrder(model=make_model(), args=make_args(), train_dataset=dataset)
        trainer.train()
        trained.append(state(trainer.model))
    assert_same(*trained)


def test_permuted_annotators_change_nothing(crowd, make_model, make_args):
    """The order in which a table lists the annotators is arbitrary."""
    order = [2, 0, 3, 1]
    number = {old: new for new, old in enumerate(order)}
    names = [ANNOTATORS[m] for m in order]
    ids = [[number[m] for m in row] for row in crowd["annotators"]]
    column = Dataset.from_dict({"annotators": ids}).cast_column(
        "annotators", crowd_features(names, CLASSES)["annotators"]
    )
    permuted = crowd.remove_columns("annotators")
    permuted = concatenate_datasets([permuted, column], axis=1)
    results = []
    for dataset, who in ((crowd, ANNOTATORS), (permuted, names)):
        model = make_model()
        model = MaxMIGModel.from_classifier(model.classifier, annotators=who)
        trainer = MaxMIGTrainer(model=model, args=make_args(), train_dataset=dataset)
        trainer.train()
        results.append(trainer.predict(dataset).predictions)
    for first, second in itertools.zip_longest(*results):
        np.testing.assert_allclose(first, second, atol=1e-4)


# Cleaned labels


def test_relabel_writes_what_it_returns(make_model, make_args, crowd, tmp_path):
    """The file and the data set must agree, with the right items in one order."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    trainer.train()
    numbered = crowd.add_column("row", list(range(len(crowd))))
    relabelled = trainer.relabel(numbered, tmp_path / "new.parquet")
    log_h, log_g, log_forecast = trainer.predict(crowd).predictions
    rows = relabelled["row"][:]
    assert rows != sorted(rows)
    assert sorted(rows) == list(range(len(crowd)))
    best = [CLASSES[c] for c in log_forecast.argmax(axis=-1)]
    assert relabelled["forecast"][:] == [best[row] for row in rows]
    for name, posterior in (
        ("classifier", log_h),
        ("aggregator", log_g),
        ("forecast", log_forecast),
    ):
        np.testing.assert_allclose(
            relabelled[f"{name}_posterior"], np.exp(posterior)[rows], atol=1e-6
        )
    read = Dataset.from_parquet(
        str(tmp_path / "new.parquet"), cache_dir=str(tmp_path / "cache")
    )  # fmt: skip
    assert read[:] == with_names(relabelled)[:]
    assert {name for names in read["annotators"][:] for name in names} == set(ANNOTATORS)
    with (tmp_path / "new.csv").open(newline="", encoding="utf-8") as file:
        assert [row["forecast"] for row in csv.DictReader(file)] == relabelled["forecast"][:]


def test_relabel_takes_items_without_votes(make_model, make_args, crowd, tmp_path):
    """For new data the forecast is the classifier's, nothing is suspect, and the default file is written."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    relabelled = trainer.relabel(crowd.select_columns("features"))
    assert relabelled["forecast_posterior"][:] == relabelled["classifier_posterior"][:]
    assert not any(relabelled["suspect"])
    assert (tmp_path / "out" / "_report" / "relabelled.parquet").is_file()


def test_relabel_refuses_what_is_no_data_set(make_model, make_args, crowd):
    """A dict of splits would fail deep inside."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    with pytest.raises(TypeError, match=r"must be a datasets\.Dataset, got DatasetDict"):
        trainer.relabel(DatasetDict(train=crowd))


@pytest.mark.slow
def test_report_writes_three_files_that_agree(make_model, make_args, crowd, tmp_path):
    """The page, the table of annotators and the relabelled items must come from the same votes and the same model."""
    trainer = MaxMIGTrainer(
        model=make_model(), args=make_args(num_train_epochs=20), train_dataset=crowd
    )
    trainer.train()
    judged = trainer.report(crowd, tmp_path / "report", title="Animals & friends")
    names = sorted(path.name for path in (tmp_path / "report").iterdir())
    assert names == ["annotators.csv", "relabelled.csv", "relabelled.parquet", "report.html"]
    assert judged.annotators == ANNOTATORS
    given = np.bincount(np.concatenate(crowd["annotators"][:]).astype(int), minlength=4)
    assert judged.votes.tolist() == given.tolist()
    assert np.nanargmin(judged.accuracy) == 3
    assert np.nanargmax(judged.accuracy) == 0
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "Animals &amp; friends" in page
    table = Dataset.from_csv(
        str(tmp_path / "report" / "annotators.csv"), cache_dir=str(tmp_path / "cache")
    )
    assert table["annotator"][:] == ANNOTATORS
    assert table["verdict"][:] == judged.verdict
    relabelled = Dataset.from_parquet(
        str(tmp_path / "report" / "relabelled.parquet"), cache_dir=str(tmp_path / "cache")
    )
    assert len(relabelled) == len(crowd)


def test_report_needs_votes(make_model, make_args, crowd):
    """Without votes there is nobody to judge, and the page would be empty."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    with pytest.raises((KeyError, ValueError), match="annotations"):
        trainer.report(crowd.select_columns("features"))


# Checkpoints of a network whose layers have other names in a file than in memory


@pytest.fixture
def make_vit_trainer(make_args):
    pictures = make_pictures()

    def build(**changes):
        torch.manual_seed(0)
        args = make_args(learning_rate=1e-2, name_classes=False, **changes)
        return MaxMIGTrainer(
            model=small_vit(), args=args, train_dataset=pictures, eval_dataset=pictures
        )

    return build


def test_transformer_that_is_resumed_equals_the_uninterrupted_one(make_vit_trainer):
    """`Trainer` looks for layers by the file's names, finds none, warns, and continues from a random backbone."""
    whole = make_vit_trainer(save_strategy="steps", save_steps=8)
    whole.train()
    checkpoint = whole.args.output_dir + "/checkpoint-8"
    names = load_file(checkpoint + "/model.safetensors").keys()
    assert names != whole.crowd_model.state_dict().keys()  # otherwise this test would show nothing
    again = make_vit_trainer(save_strategy="steps", save_steps=8)
    again.train(resume_from_checkpoint=checkpoint)
    assert_same(state(whole.model), state(again.model))


def test_chosen_epoch_of_a_transformer_comes_back_whole(make_vit_trainer):
    """The head of one epoch with the backbone of another is a model that nobody has evaluated."""
    trainer = make_vit_trainer(
        num_train_epochs=4, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True,
        greater_is_better=False,
    )  # fmt: skip
    trainer.train()
    *gains, at_end = (log["eval_gain"] for log in trainer.state.log_history if "eval_gain" in log)
    assert gains[0] == min(gains) < gains[-1] - 0.1
    assert at_end == pytest.approx(gains[0], abs=1e-5)
    assert trainer.evaluate()["eval_gain"] == pytest.approx(gains[0], abs=1e-5)


# What a step waits for

# Torch's own statement about an operation.


@pytest.mark.parametrize("aggregator", ["weighted_average", "interaction"])
@pytest.mark.parametrize("divergence", ["kl", "pearson", "jensen_shannon"])
def test_step_does_not_wait_for_the_device(
    divergence, aggregator, crowd, make_model, make_args, monkeypatch
):
    """A single `if` on a loss would make the device wait for the host in each step."""
    trainer = MaxMIGTrainer(
        model=make_model(divergence=divergence, aggregator=aggregator, prior="learned"),
        args=make_args(guards=True, gradient_accumulation_steps=2),
        train_dataset=crowd,
    )
    trainer._watch = Watch(trainer.crowd_model, trainer.args, on=True)
    batch = batch_of(trainer, range(24))
    with Waits(monkeypatch) as waits:
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
    assert waits.seen == []
    assert trainer.crowd_model.aggregator.table.grad.abs().sum() > 0
    assert trainer._watch.guards._steps == 1


@pytest.mark.parametrize(
    "wait",
    [
        lambda t: t.sum().item(), lambda t: bool(t.sum() > 0), lambda t: float(t[0]), lambda t: int(t[0]),
        lambda t: t.tolist(), lambda t: t.numpy(), lambda t: t.cpu(), lambda t: t[t > 0], lambda t: t.nonzero(),
        lambda t: t.unique(), lambda t: 1 if t[0] else 0, lambda t: np.asarray(t), lambda t: torch.equal(t, t),
    ],
)  # fmt: skip
def test_what_waits_is_seen(wait, monkeypatch):
    """A check that sees nothing would always pass."""
    with Waits(monkeypatch) as waits:
        wait(torch.arange(3.0) + 1)
    assert waits.seen
