"""Tests of `hf_maxmig.training.strength`: how much the votes count, estimated on votes that nobody has learned."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hf_maxmig import CrowdTrainer, MaxMIGTrainer, MaxMIGTrainingArguments
from hf_maxmig.model.aggregators import AGGREGATORS
from hf_maxmig.model.divergences import DIVERGENCES
from hf_maxmig.model.functional import aggregate, confusion, forecast, mutual_information_gain
from hf_maxmig.peers import peer
from hf_maxmig.training import strength as module_under_test
from hf_maxmig.training.strength import LARGEST, best_strength, with_strength
from tests.worlds import ANNOTATORS, CLASSES, make_crowd

M, C = 4, 3
ANNOTATORS_OF = torch.tensor([[1, -1, 3], [-1, 0, 2], [3, 0, 1], [2, -1, -1], [-1, -1, -1]])
ANNOTATIONS_OF = torch.tensor([[2, 1, 0], [0, 2, -1], [1, 1, 0], [0, -1, -1], [1, 1, 0]])
LOG_P = torch.tensor([0.5, 0.3, 0.2]).log()


@pytest.mark.parametrize("kind", AGGREGATORS)
@pytest.mark.parametrize("strength", [0.0, 0.4, 1.0, 2.5])
def test_an_aggregator_with_a_strength_is_its_posterior_with_it(kind: str, strength: float) -> None:
    aggregator = AGGREGATORS[kind](M, C).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in aggregator.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    log_g = aggregator(LOG_P, ANNOTATORS_OF, ANNOTATIONS_OF)
    weight = aggregator.weight.detach().clone()
    aggregator.strengthen(strength)
    found = aggregator(LOG_P, ANNOTATORS_OF, ANNOTATIONS_OF)
    torch.testing.assert_close(found, with_strength(log_g, LOG_P, strength))
    torch.testing.assert_close(aggregator.weight.detach(), strength * weight)


# --- estimation


def draw(number: int, seed: int, right: tuple[float, ...] = (0.7, 0.6, 0.8)) -> list[Tensor]:
    """Draw items of three classes, a calibrated classifier and independent annotators.

    Returns:
        The classes; log h; W = log confusion; annotators and annotations.
    """
    generator = torch.Generator().manual_seed(seed)
    truth = torch.multinomial(LOG_P.exp().expand(number, -1), 1, generator=generator)[:, 0]
    off = (1 - torch.eye(C)) / (C - 1)
    said_by = torch.stack([p * torch.eye(C) + (1 - p) * off for p in (*right, 0.75)])
    said = [torch.multinomial(each[truth], 1, generator=generator) for each in said_by]
    # The last annotator's vote is not passed on: it stands for what the picture shows.
    log_h = (said_by[-1][:, said[-1][:, 0]].T.log() + LOG_P).log_softmax(dim=1)
    who = torch.arange(len(right)).expand(number, -1)
    return [truth, log_h, said_by[:-1].log(), who, torch.cat(said[:-1], dim=1)]


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("wrong", [3.0, 0.4])
def test_log_confusion_is_found_again(divergence: str, wrong: float) -> None:
    """Theorem 3.4 and Proposition D.3: the gain is highest at W = log confusion."""
    _, log_h, weight, *crowd = draw(4000, seed=1)
    log_g = aggregate(wrong * weight, LOG_P, *crowd)
    assert best_strength(log_h, log_g, LOG_P, divergence) == pytest.approx(1 / wrong, rel=0.15)


def test_gain_and_forecast_are_better_with_it() -> None:
    truth, log_h, weight, *crowd = draw(4000, seed=2)
    log_g = aggregate(4 * weight, LOG_P, *crowd)
    better = with_strength(log_g, LOG_P, best_strength(log_h, log_g, LOG_P))
    gains, right = zip(
        *(
            (
                mutual_information_gain(log_h, g, LOG_P),
                (forecast(log_h, g, LOG_P).argmax(dim=1) == truth).float().mean(),
            )
            for g in (log_g, better)
        ),
        strict=True,
    )
    assert gains[1] > gains[0] + 0.02
    assert right[1] > right[0] + 0.01


def test_what_is_right_is_nearly_left_alone() -> None:
    found = []
    for seed in range(20):
        _, log_h, weight, *crowd = draw(300, seed)
        found.append(math.log(best_strength(log_h, aggregate(weight, LOG_P, *crowd), LOG_P)))
    assert max(map(abs, found)) < math.log(2)
    assert abs(sum(found) / len(found)) < 0.1


def test_few_items_change_little() -> None:
    """The strength is one number chosen by few items: without a prior belief, noise would choose it."""
    few, many = (
        [
            best_strength(log_h, aggregate(3 * weight, LOG_P, *crowd), LOG_P)
            for _, log_h, weight, *crowd in (draw(number, seed) for seed in range(10))
        ]
        for number in (10, 4000)
    )
    assert sum(few) / 10 > sum(many) / 10 + 0.1
    assert all(0.2 < strength < 4.0 for strength in few)
    assert all(strength == pytest.approx(1 / 3, rel=0.15) for strength in many)


@pytest.mark.parametrize("number", [0, 1])
def test_without_pairs_of_items_there_is_no_gain(number: int) -> None:
    _, log_h, weight, who, said = draw(1, seed=0)
    log_g = aggregate(weight, LOG_P, who, said)
    assert best_strength(log_h[:number], log_g[:number], LOG_P) == 1.0


def test_of_very_many_items_some_are_enough(monkeypatch) -> None:
    """They must be sampled, as the first items may all be of one class."""
    truth, *rest = draw(4000, seed=1)
    order = truth.argsort()
    log_h, weight, who, said = rest[0][order], rest[1], rest[2][order], rest[3][order]
    log_g = aggregate(3 * weight, LOG_P, who, said)
    monkeypatch.setattr(module_under_test, "MOST_ITEMS", 1000)
    assert best_strength(log_h, log_g, LOG_P) == pytest.approx(1 / 3, rel=0.3)


def test_votes_that_tell_nothing_count_as_little_as_can_be() -> None:
    _, log_h, weight, who, said = draw(4000, seed=3)
    log_g = aggregate(weight, LOG_P, who, said[torch.randperm(len(said))])
    assert best_strength(log_h, log_g, LOG_P) == pytest.approx(1 / LARGEST, rel=0.3)


def test_a_training_that_diverged_changes_nothing() -> None:
    _, log_h, weight, *crowd = draw(100, seed=3)
    log_g = aggregate(weight, LOG_P, *crowd)
    assert best_strength(torch.full_like(log_h, math.nan), log_g, LOG_P) == 1.0


# --- after training
# ---------------------------------------------------------------------------------------------------

TIMES = 4.0  # too large
HELD_OUT = make_crowd(300, seed=1)


@pytest.fixture
def overconfident(make_model, make_args):
    """A model with a good classifier and a W of log confusion that is several times too large."""
    crowd = make_crowd(300)
    args = make_args(num_train_epochs=10)
    trainer = MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd)
    trainer.train()
    votes = (torch.cat(part) for part in zip(*trainer.crowd_of(crowd), strict=True))
    gold = torch.nn.functional.one_hot(torch.tensor(crowd["label"]), len(CLASSES)).float()
    sure = confusion(gold, *votes, len(ANNOTATORS), smoothing=1.0).log()
    trainer.crowd_model.aggregator.weight.data.copy_(TIMES * sure)
    return trainer.crowd_model


@pytest.fixture
def make_trainer(overconfident, make_args):
    """Return a trainer of that model which hardly trains it."""

    def build(eval_dataset=HELD_OUT, **changes):
        hardly = {"init": "keep", "max_steps": 1, "learning_rate": 1e-9, "search_strength": True}
        return MaxMIGTrainer(
            model=overconfident,
            args=make_args(**{**hardly, **changes}),
            train_dataset=make_crowd(300),
            eval_dataset=eval_dataset,
        )

    return build


def test_trainer_gives_w_its_strength(make_trainer):
    trainer = make_trainer()
    before = trainer.crowd_model.aggregator.table.detach().clone()
    metrics = trainer.train().metrics
    strength = metrics["aggregator_strength"]
    assert strength == trainer.found_strength == pytest.approx(1 / TIMES, rel=0.5)
    torch.testing.assert_close(
        trainer.crowd_model.aggregator.table.detach(), strength * before, rtol=1e-5, atol=1e-5
    )
    assert trainer.listed_arguments()["aggregator_strength"] == pytest.approx(strength, abs=1e-3)


def test_results_are_those_of_the_model_as_it_is(make_trainer):
    trainer = make_trainer(eval_strategy="steps", eval_steps=1)
    trainer.train()
    before, after = (
        log["eval_gain"] for log in trainer.state.log_history[-3:] if "eval_gain" in log
    )
    assert after > before + 0.01
    assert trainer.evaluate()["eval_gain"] == pytest.approx(after, abs=1e-6)


def test_results_of_before_are_not_those_of_the_model(make_trainer, monkeypatch):
    """Results measured earlier must not be attributed to the new model, also without an evaluation set."""
    trainer = make_trainer(eval_dataset=None)
    trainer.evaluate(HELD_OUT)
    monkeypatch.setattr(trainer, "name_classes", lambda: CLASSES)
    trainer.train()
    trainer.create_model_card()
    card = Path(trainer.args.output_dir, "README.md").read_text(encoding="utf-8")
    trainer.evaluate(HELD_OUT)
    trainer.create_model_card()
    assert "model-index" not in card
    assert "model-index" in Path(trainer.args.output_dir, "README.md").read_text(encoding="utf-8")


def without_votes(dataset):
    return dataset.remove_columns(["annotators", "annotations"])


def by_strangers(dataset):
    """Return votes of annotators whom the model does not know."""
    return dataset.map(lambda row: {"annotators": [-1] * len(row["annotators"])})


@pytest.mark.parametrize(
    "changes",
    [
        {"search_strength": False},
        {"eval_dataset": None},
        {"eval_dataset": without_votes(make_crowd(60))},
        {"eval_dataset": {"one": make_crowd(60)}},
    ],
    ids=["flag", "no set", "no votes", "several sets"],
)
def test_nothing_is_done_without_being_asked_or_without_votes(make_trainer, changes):
    trainer = make_trainer(**changes)
    before = trainer.crowd_model.aggregator.table.detach().clone()
    assert "aggregator_strength" not in trainer.train().metrics
    assert trainer.found_strength is None
    assert "aggregator_strength" not in trainer.listed_arguments()
    torch.testing.assert_close(
        trainer.crowd_model.aggregator.table.detach(), before, rtol=0, atol=1e-5
    )


def test_votes_by_strangers_change_nothing(make_trainer):
    trainer = make_trainer(eval_dataset=by_strangers(make_crowd(60)))
    before = trainer.crowd_model.aggregator.table.detach().clone()
    assert trainer.train().metrics["aggregator_strength"] == 1.0
    torch.testing.assert_close(
        trainer.crowd_model.aggregator.table.detach(), before, rtol=0, atol=1e-5
    )


def test_rivals_are_left_as_their_authors_have_them(make_model, make_args):
    model = peer(
        "aggnet", make_model().classifier, annotators=ANNOTATORS, id2label=dict(enumerate(CLASSES))
    )
    trainer = CrowdTrainer(
        model=model,
        args=make_args(search_strength=True),
        train_dataset=make_crowd(),
        eval_dataset=make_crowd(seed=1),
    )
    assert "aggregator_strength" not in trainer.train().metrics


def test_it_is_on_by_default_and_off_in_the_papers_protocol(tmp_path):
    assert MaxMIGTrainingArguments(str(tmp_path)).search_strength
    assert not MaxMIGTrainingArguments(str(tmp_path), preset="paper_luna16").search_strength
