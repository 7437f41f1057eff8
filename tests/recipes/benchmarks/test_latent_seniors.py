"""The recipe on latent seniors: how it names classes, and the failure and the cure it claims."""

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_maxmig import MaxMIGModel, MaxMIGTrainer, judge_annotators
from hf_maxmig.data.collator import crowd_batches
from tests.networks import small_head
from tests.recipes.imported import recipes
from tests.worlds import ANNOTATORS, make_crowd


@pytest.fixture(scope="module")
def recipe():
    with recipes() as load:
        yield load("latent_seniors")


def test_names_by_gold_undo_an_exchange_of_the_classes(recipe):
    """Read backwards it would undo every swap of two classes, and no cycle of three."""
    gold = np.array([0, 0, 1, 1, 2, 2, 2])
    log_h = np.log(np.eye(3) * 0.7 + 0.1)[gold][:, [2, 0, 1]]
    order = recipe.names_by_gold(log_h, gold)
    assert (log_h.argmax(1) == gold).mean() < 0.5
    assert (log_h[:, order].argmax(1) == gold).all()


def test_latent_crowd_keeps_digits_and_votes_of_the_same_item_together(recipe):
    """Votes drawn for one item and put beside another are noise, and failing on them proves nothing."""
    digits = torch.arange(40) % 10
    pictures = np.arange(40, dtype="float32")[:, None].repeat(3, axis=1)
    rows = Dataset.from_dict({"features": pictures.tolist(), "label": digits.tolist()})
    made = recipe.latent(rows, torch.Generator().manual_seed(0))
    assert made.column_names == ["features", "label", "annotators", "annotations"]
    np.testing.assert_array_equal(made["features"][:], pictures)
    np.testing.assert_array_equal(made["label"][:], digits.numpy() % 2)
    assert len(made.features["annotators"].feature.names) == 10
    again = recipe.simulate_latent_seniors(
        digits % 2,
        recipe.experts("dogs_vs_cats", "high"),
        generator=torch.Generator().manual_seed(0),
    )
    np.testing.assert_array_equal(made["annotations"][:], again.annotations.numpy())


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("seed", [11, 102])
def test_weighted_average_fails_on_latent_seniors_and_interaction_does_not(seed, recipe):
    """The whole claim, with its own seeds: the cure must be needed, and must work."""
    paper, ours = (recipe.measure("latent", name, seed=seed) for name in recipe.COMPARED)
    assert paper["accuracy"] < 0.7
    assert paper["gain"] < 0.02
    assert paper["kept"] == "weighted_average"
    assert ours["kept"] == "interaction"
    assert ours["accuracy"] > 0.9
    assert ours["gain"] > 0.1
    assert ours["forecast_accuracy"] > 0.85


def train(dataset, make_args, **fields):
    trainer = MaxMIGTrainer(
        model=small_head(3, dropout=0.5),
        args=make_args(**{"num_train_epochs": 15, "aggregator": "interaction", **fields}),
        train_dataset=dataset,
    )
    trainer.train()
    return trainer


@pytest.mark.slow
def test_trainer_builds_trains_and_resumes_the_interaction_aggregator(make_args):
    """The argument must reach the model, and a checkpoint must hold the pairs and their optimizer state."""
    crowd, settings = make_crowd(), {"save_strategy": "steps", "save_steps": 50}
    whole = train(crowd, make_args, **settings)
    assert whole.crowd_model.config.aggregator == "interaction"
    assert whole.evaluate(make_crowd(seed=1))["eval_accuracy"] > 0.9
    group = whole.optimizer.param_groups[-1]
    assert {id(p) for p in whole.crowd_model.aggregator.parameters()} == set(
        map(id, group["params"])
    )
    again = MaxMIGTrainer(
        model=small_head(3, dropout=0.5),
        args=make_args(num_train_epochs=15, aggregator="interaction", **settings),
        train_dataset=crowd,
    )
    again.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-50")
    first, second = (trainer.crowd_model.state_dict() for trainer in (whole, again))
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=0, atol=0)


def test_names_of_classes_are_found_without_dropout(make_args):
    """In training mode g differs from call to call, and so might the names."""
    head = small_head(3, dropout=0.5)
    args = make_args(aggregator="interaction")
    trainer = MaxMIGTrainer(model=head, args=args, train_dataset=make_crowd())
    aggregator = trainer.crowd_model.aggregator.train()
    with torch.no_grad():
        aggregator.embedding.mul_(5)
    asked = []
    aggregator.register_forward_hook(lambda *call: asked.append(call[0].training))
    trainer.class_order()
    assert asked
    assert not any(asked)
    assert aggregator.training


def test_model_built_with_one_aggregator_is_not_trained_as_the_other(make_args, make_model):
    """The argument is for classifiers that the trainer wraps; elsewhere it would be ignored."""
    args = make_args(aggregator="interaction")
    with pytest.raises(
        ValueError, match="`aggregator` must be that of the model, 'weighted_average'"
    ):
        MaxMIGTrainer(model=make_model(), args=args, train_dataset=make_crowd())
    model = make_model(aggregator="interaction")
    assert isinstance(model, MaxMIGModel)
    MaxMIGTrainer(model=model, args=args, train_dataset=make_crowd())


@pytest.mark.slow
@pytest.mark.full
def test_annotators_are_judged_by_single_labels_whatever_the_aggregator(make_args, recipe):
    """Judged by W alone, ordinary annotators must get the same verdicts as without pairs.

    A junior of a latent senior is random to anybody who looks at one label at a time, and must not be
    called adversarial or a copy.
    """
    crowd = make_crowd(400)
    names = [*ANNOTATORS], crowd.features["annotations"].feature.names
    verdicts = []
    for aggregator in recipe.COMPARED:
        trainer = train(crowd, make_args, aggregator=aggregator)
        log_h = torch.from_numpy(trainer.predict(crowd).predictions[0])
        weight = trainer.crowd_model.aggregator.weight.detach()
        votes = crowd_batches(crowd, trainer.data_collator)
        report = judge_annotators(log_h, weight, votes, *names)
        assert report.copies == []
        verdicts.append(report.verdict)
    assert verdicts[0] == verdicts[1]
    assert set(verdicts[0]) == {"expert", "ordinary"}

    truth = torch.arange(600) % 2
    seniors = recipe.experts("dogs_vs_cats", "high")
    hidden = recipe.simulate_latent_seniors(
        truth, seniors, generator=torch.Generator().manual_seed(0)
    )
    sure = torch.nn.functional.one_hot(truth, 2).mul(0.9).add(0.05).log()
    weight = torch.zeros(len(hidden.names), 2, 2)
    pairs = [(hidden.annotators, hidden.annotations)]
    report = judge_annotators(sure, weight, pairs, hidden.names, ["even", "odd"])
    assert set(report.verdict) <= {"random", "too few votes"}
