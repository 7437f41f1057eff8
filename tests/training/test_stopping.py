"""A training whose numbers are no longer finite stops, and no such model is saved."""

import logging
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from hf_maxmig import MaxMIGModel, MaxMIGTrainer, save_classifier
from hf_maxmig.model.finite import FirstNonFinite, non_finite_weight
from tests.worlds import make_crowd


class Breaks(TrainerCallback):
    """Change one number of the model when a step begins."""

    def __init__(self, step, value=float("nan")):
        self.step, self.value = step, value

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step + 1 == self.step:
            with torch.no_grad():
                next(model.classifier.parameters()).view(-1)[0] = self.value


class OnADevice(MaxMIGTrainer):
    """Look at numbers only where the host waits anyway, as with an accelerator."""

    def _get_grad_norm(self, model, grad_norm=None):
        waits, self.check_numbers = self.check_numbers, lambda: None
        try:
            return super()._get_grad_norm(model, grad_norm)
        finally:
            self.check_numbers = waits


def weights(folder):
    return MaxMIGModel.from_pretrained(folder).state_dict().values()


@pytest.mark.parametrize("kind", [MaxMIGTrainer, OnADevice])
def test_training_stops_with_the_step_and_the_last_good_checkpoint(
    kind, crowd, make_model, make_args
):
    """Training used to continue to the end with NaN for all weights, and save them as the model."""
    args = make_args(save_strategy="epoch", num_train_epochs=3, logging_strategy="no")
    trainer = kind(model=make_model(), args=args, train_dataset=crowd, callbacks=[Breaks(step=9)])
    with pytest.raises(
        ValueError, match="the loss must be finite, got nan at step 9 of 18"
    ) as stopped:
        trainer.train()
    assert str(Path(args.output_dir, "checkpoint-6")) in str(stopped.value)
    assert [path.name for path in Path(args.output_dir).glob("checkpoint-*")] == ["checkpoint-6"]
    assert all(t.isfinite().all() for t in weights(Path(args.output_dir, "checkpoint-6")))
    with pytest.raises(ValueError, match="the weights must be finite"):
        trainer.save_model(args.output_dir)
    assert not Path(args.output_dir, "model.safetensors").exists()
    # Training can continue from there.
    again = kind(model=make_model(), args=args, train_dataset=crowd)
    again.train(resume_from_checkpoint=str(Path(args.output_dir, "checkpoint-6")))
    assert again.state.global_step == 18


@pytest.mark.parametrize(
    "strategies",
    [
        {"save_strategy": "steps", "save_steps": 1}, {"logging_strategy": "steps", "logging_steps": 1},
        {"eval_strategy": "steps", "eval_steps": 1}, {},
    ],
)  # fmt: skip
def test_step_is_looked_at_before_anything_is_saved_logged_or_evaluated(
    strategies, crowd, make_model, make_args
):
    """A NaN makes the log invalid JSON, and in a checkpoint it leaves no good one."""
    args = make_args(num_train_epochs=1, **strategies)
    trainer = OnADevice(
        model=make_model(),
        args=args,
        train_dataset=crowd,
        eval_dataset=crowd,
        callbacks=[Breaks(step=3)],
    )
    with pytest.raises(ValueError, match="got nan at step 3 of 6"):
        trainer.train()
    assert trainer.state.global_step == (3 if strategies else 6)
    saved = sorted(path.name for path in Path(args.output_dir).glob("checkpoint-*"))
    assert saved == (["checkpoint-1", "checkpoint-2"] if "save_steps" in strategies else [])
    logged = [value for log in trainer.state.log_history for value in log.values()]
    assert all(torch.tensor(float(value)).isfinite() for value in logged)


def test_gradient_alone_stops_too(crowd, make_model, make_args):
    """A step's loss can be finite while its gradient is not, which only the next loss would show."""

    class Steep(MaxMIGTrainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            if self.state.global_step == 2:
                loss = loss + (loss - loss.detach()).sqrt()
            return loss

    trainer = Steep(model=make_model(), args=make_args(), train_dataset=crowd)
    before = {name: t.clone() for name, t in trainer.model.state_dict().items()}
    with pytest.raises(
        ValueError, match="the gradient must be finite, got a norm of (inf|nan) at step 3"
    ):
        trainer.train()
    assert all(t.isfinite().all() for t in trainer.model.state_dict().values())
    assert any((t != before[name]).any() for name, t in trainer.model.state_dict().items())


def test_scaled_loss_may_overflow_now_and_then(crowd, make_model, make_args):
    """With `fp16`, a step whose gradients are too large is skipped and the scale lowered, which is no error."""

    class Scaler:
        scale = 2.0**16

        def is_enabled(self):
            return True

        def get_scale(self):
            return self.scale

    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    trainer.accelerator.scaler = Scaler()
    trainer._get_grad_norm(trainer.model, torch.tensor(float("inf")))
    trainer.check_numbers()
    Scaler.scale = 2.0**-30
    with pytest.raises(ValueError, match="got none that is at a loss scale of 9"):
        trainer.check_numbers()


def test_last_step_is_looked_at_as_well(crowd, make_model, make_args):
    """No later loss shows what the last step did to the weights."""

    class Ends(TrainerCallback):
        def on_optimizer_step(self, args, state, control, model=None, **kwargs):
            if state.global_step + 1 == state.max_steps:
                torch.nn.init.constant_(model.aggregator.table, float("inf"))

    trainer = MaxMIGTrainer(
        model=make_model(), args=make_args(), train_dataset=crowd, callbacks=[Ends()]
    )
    with pytest.raises(ValueError, match=r"the weights must be finite, got .* aggregator.table"):
        trainer.train()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_door_saves_a_weight_that_is_not_finite(value, make_model, tmp_path):
    """`save_pretrained`, `push_to_hub` and saving the classifier alone run without a trainer."""
    pair = make_model()
    next(pair.classifier.parameters()).data.view(-1)[3] = value
    for save in (pair.save_pretrained, lambda folder: save_classifier(pair, folder)):
        with pytest.raises(ValueError, match="what is saved must be finite"):
            save(tmp_path / "pair")
    assert not list(tmp_path.rglob("*.safetensors"))


def test_mask_of_minus_infinity_is_no_fault():
    """Networks mask with minus infinity; a mean or variance that overflowed is plus infinity."""
    layer = torch.nn.BatchNorm1d(3)
    layer.register_buffer("mask", torch.tensor([0.0, -float("inf")]))
    assert non_finite_weight(layer) is None
    layer.running_var[1] = float("inf")
    assert non_finite_weight(layer) == "running_var"


def test_first_number_is_what_is_told():
    """All later steps are NaN and say nothing."""
    noted = FirstNonFinite(torch.device("cpu"))
    assert noted.found() is None
    for step, value in enumerate([1.0, float("-inf"), float("nan")], start=1):
        noted.note(torch.tensor(value), step)
    assert noted.found() == (2, float("-inf"))


def test_try_that_diverges_is_left_out_with_a_word(crowd, make_model, make_args, caplog):
    """Scipy's error used to end the training, or NaN was compared and anything could be chosen."""
    args = make_args(search_rate=True, learning_rate=1e-2)

    class Fragile(MaxMIGTrainer):
        def short_trainer(self, *args, **kwargs):
            short = super().short_trainer(*args, **kwargs)
            short.add_callback(Fails(short))
            return short

    class Fails(TrainerCallback):
        def __init__(self, trainer):
            self.trainer = trainer

        def on_step_begin(self, args, state, control, model=None, **kwargs):
            if self.trainer.aggregator_rate == pytest.approx(1.0):
                torch.nn.init.constant_(model.aggregator.table, float("nan"))

    trainer = Fragile(model=make_model(), args=args, train_dataset=crowd)
    logging.getLogger("hf_maxmig").addHandler(caplog.handler)
    trainer.train()
    logging.getLogger("hf_maxmig").removeHandler(caplog.handler)
    assert "A rate of 1 is left out: the loss must be finite, got nan at step 1" in caplog.text
    assert "short training before the training" in caplog.text
    assert round(trainer.aggregator_rate, 6) in (0.1, 0.01)
    logged = trainer.state.log_history[0]
    assert all(value == value for value in logged.values())


def test_rate_at_which_everything_diverges_stops_the_training(make_model, make_args):
    """If all tries diverge, the error must not be one of scipy's."""
    trainer = MaxMIGTrainer(
        model=make_model(),
        args=make_args(search_rate=True, learning_rate=1e30, init=None, num_train_epochs=3),
        train_dataset=make_crowd(60),
        eval_dataset=make_crowd(30, seed=1),
    )
    with pytest.raises(ValueError, match="(loss|gradient|weights) must be finite"):
        trainer.train()


def test_evaluation_that_is_not_finite_names_the_item(crowd, make_model, make_args):
    """A NaN gain is never the best, so no epoch was kept, and the log was not valid JSON."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    first = next(i for i, row in enumerate(crowd) if row["annotators"] and i > 20)
    inner = trainer.crowd_model.classifier.forward
    value = torch.tensor(crowd[first]["features"])

    def overflows(features, **rest):
        output = inner(features=features, **rest)
        lost = (features == value.to(features)).all(dim=1)
        output.logits = torch.where(lost[:, None], float("nan"), output.logits)
        return output

    trainer.crowd_model.classifier.forward = overflows
    with pytest.raises(ValueError, match=f"what the classifier predicts .* for item {first}:"):
        trainer.evaluate(crowd)
