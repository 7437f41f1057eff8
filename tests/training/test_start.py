"""The start of a training is a value: found without a trainer, and stored whole in each checkpoint."""

import copy
import dataclasses
import json

import pytest
import torch

from hf_maxmig import MaxMIGTrainer
from hf_maxmig.training.prechecks import short_arguments
from hf_maxmig.training.search import chosen, search_rate
from hf_maxmig.training.start import Start, check_start
from hf_maxmig.training.starting import find_start, initialize_from_votes, way
from hf_maxmig.training.training import Training
from tests.weights import assert_same
from tests.worlds import make_crowd


class Predicted:
    """The predictions of a short training."""

    def __init__(self, posteriors, gain):
        self.predictions, self.metrics = posteriors, {"test_gain": gain}


def ahead(model, args, dataset, **changes):
    """Return a training whose short runs give more confident posteriors the nearer their rate is to 1."""

    def train_briefly(model, rows, share, rate=None, seed=None):
        trained.append((rate, len(rows), share))

        def predict(data):
            sure = 3.0 if rate is None else 3.0 - abs(rate - 1.0)
            gold = torch.tensor(data["label"])
            scores = sure * torch.nn.functional.one_hot(gold, 3).float()
            log_h = scores.log_softmax(dim=1).numpy()
            return Predicted((log_h, log_h, log_h), sure)

        return predict

    trained = []
    fields = {
        "model": model, "args": args, "train_dataset": dataset, "eval_dataset": None, "start_from": None,
        "gold": lambda: None, "is_ours": False, "own_optimizer": False, "train_briefly": train_briefly,
        "features_of": lambda model, data: torch.tensor(data["features"][:]), "collate": None,
    }  # fmt: skip
    return Training(**{**fields, **changes}), trained


def test_search_needs_no_trainer(make_model, make_args, crowd):
    """It must depend only on model, arguments, data and a function that trains briefly."""
    args = make_args(init="information", search_rate=True, learning_rate=1e-2)
    training, trained = ahead(make_model(), args, crowd)
    tries = search_rate(training)
    assert [rate for rate, *_ in trained] == [0.1, 1.0]
    assert chosen(tries).rate == 1.0


@pytest.mark.parametrize("init", ["information", "vote_share", "cross_fit"])
def test_model_stays_as_it_is_until_the_start_is_applied(init, make_model, make_args, crowd):
    """Finding a start must return a value and change nothing else."""
    args = make_args(init=init, search_rate=True, num_train_epochs=1)
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    training, _ = ahead(model, args, crowd)
    assert way(training) == init
    start = find_start(training)
    assert_same(model.state_dict(), before)
    assert (start.init, start.aggregator) == (init, "weighted_average")
    assert start.tried
    changed = {n for n, tensor in start.state.items() if not torch.equal(tensor, before[n])}
    assert "aggregator.table" in changed
    with pytest.raises(dataclasses.FrozenInstanceError):
        start.rate = 1.0


def test_start_from_votes_is_that_of_the_model_itself(make_model, make_args, crowd):
    """Without a search nothing is copied: there may be no memory for two large models."""
    args = make_args(init="vote_share")
    training, trained = ahead(make_model(), args, crowd)
    start = find_start(training)
    assert not trained
    assert not start.state
    model, expected = make_model(), make_model()
    initialize_from_votes(training, model)
    expected.initialize_crowd(training.crowd_of(crowd), args.smoothing, scale=args.init_strength)
    assert_same(model.state_dict(), expected.state_dict())


def test_checkpoint_has_all_that_was_found_but_parameters(tmp_path, make_trainer, brief):
    """A resumed training must neither parse the log nor search again."""
    trainer = make_trainer(
        init="cross_fit", search_rate=True, max_steps=2, save_strategy="steps", save_steps=2
    )
    trainer.train()
    folder = tmp_path / "out" / "checkpoint-2"
    stored = json.loads((folder / "start.json").read_text())
    assert stored == {
        "init": "cross_fit", "rate": None, "prior": trainer.crowd_model.config.prior,
        "aggregator": "weighted_average", "tried": trainer.start.items.likelihoods, "gold_labels": 0,
    }  # fmt: skip
    again = Start.load(folder)
    assert again.tried == trainer.start.tried
    for field in ("targets", "log_h", "weight", "log_p"):
        assert torch.equal(getattr(again.items, field), getattr(trainer.start.items, field))
    assert not again.state


def test_training_that_keeps_its_start_goes_on_with_its_gold_labels(tmp_path, make_trainer):
    """No start was found, but the checkpoint still belongs to a training with gold labels."""
    settings = {"init": "keep", "use_gold_labels": True, "max_steps": 4}
    trainer = make_trainer(**settings, save_strategy="steps", save_steps=2)
    trainer.train()
    assert Start.load(tmp_path / "out" / "checkpoint-2").gold_labels > 0
    resumed = make_trainer(**settings, save_strategy="no")
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert_same(resumed.crowd_model.state_dict(), trainer.crowd_model.state_dict())


def test_evaluation_before_a_training_without_steps(make_model, make_args, crowd):
    """The share of the training that is done would be 0 / 0."""
    args = make_args(num_train_epochs=0, eval_on_start=True, eval_strategy="epoch")
    trainer = MaxMIGTrainer(
        model=make_model(), args=args, train_dataset=crowd, eval_dataset=crowd.select(range(30))
    )
    trainer.train()
    assert trainer.state.global_step == 0


def test_start_of_nothing_is_to_keep_what_there_is(tmp_path):
    """This is the checkpoint of a training that searched for nothing."""
    assert Start.load(tmp_path) == Start("keep")


def test_other_gold_labels_than_the_starts_are_refused():
    """Half of a training with them and half without would equal neither."""
    start = Start("information", rate=0.1, gold_labels=2)
    check_start(start, make_crowd(), torch.tensor([1, -1, 0]))
    for gold in (None, torch.tensor([1, -1, -1])):
        with pytest.raises(ValueError, match="must be those of the checkpoint, 2 of them, got"):
            check_start(start, make_crowd(), gold)


def test_short_training_is_of_the_same_arguments_but_silent(make_args):
    """Reporting, saving and asking for gold labels happen once, in the training itself."""
    args = make_args(use_gold_labels=True, logging_strategy="steps", report_to="none", seed=3)
    short = short_arguments(args, num_items=80, share=0.5)
    assert (short.use_gold_labels, short.init, short.seed) == (False, "keep", 3)
    assert short_arguments(args, 80, 0.5, seed=7).seed == 7
    assert str(short.save_strategy) == str(short.logging_strategy) == "no"
    assert args.use_gold_labels
