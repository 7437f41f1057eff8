"""The start of a training, found without a trainer."""

import copy
import dataclasses

import pytest
import torch

from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGTrainer
from hf_maxmig.data.collator import CrowdCollator, crowd_batches, padded
from hf_maxmig.training import item_features, starting


def batches(collator, dataset, size=16):
    for start in range(0, len(dataset), size):
        rows = range(start, min(start + size, len(dataset)))
        yield collator([dataset[i] for i in rows]) | {"crowd_row": torch.tensor(rows)}


def test_start_without_a_trainer_is_the_trainers(make_model, make_args, crowd, brief):
    """The trainer only passes model, arguments and data, and uses the result."""
    args = make_args(init="cross_fit", max_steps=1)
    trainer = MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd)
    trainer.train()
    model, collator = make_model(), CrowdCollator(4, 3)
    before = copy.deepcopy(model.state_dict())
    assert starting.missing_for_start(model, args, crowd) is None
    features = item_features.features_of(
        model.classifier, batches(collator, crowd), 3, len(crowd), 0
    )
    model.prior.initialize(torch.ones(3), torch.ones(3, dtype=torch.bool))
    votes = padded(crowd_batches(crowd, collator))
    found = starting.cross_fitted(model, args, features, votes, model.log_prior().detach())
    for field in dataclasses.fields(found):
        one, other = getattr(found, field.name), getattr(trainer.start.items, field.name)
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def numbered(x, rows):
    return {"features": x[list(rows)], "crowd_row": torch.tensor(rows)}


def test_features_are_in_the_order_of_the_items_or_refused():
    """A collator may reorder its examples, so votes would meet the features of other items."""
    x = torch.randn(10, 4)
    head = HeadClassifier(HeadConfig(input_size=4, num_labels=3))
    parts = [numbered(x, [3, 9, 5, 0, 1]), numbered(x, [8, 2, 7, 6, 4])]
    assert torch.equal(item_features.features_of(head, parts, 3, 10, 0), x)
    with pytest.raises(ValueError, match="for each of 10 items, got 5"):
        item_features.features_of(head, parts[:1], 3, 10, 0)
    with pytest.raises(ValueError, match="must have the row of its item"):
        item_features.features_of(head, [{"features": x}], 3, 10, 0)


def test_very_many_features_are_projected(monkeypatch):
    """They would take a gigabyte. Distances between items must survive the projection up to a common factor."""
    x = torch.randn(40, 700, generator=torch.Generator().manual_seed(0))
    x[20:] *= 3
    head = HeadClassifier(HeadConfig(input_size=700, num_labels=3))
    parts = [numbered(x, range(15, 40)), numbered(x, range(20))]  # an accelerator pads a batch
    assert torch.equal(item_features.features_of(head, parts, 3, len(x), 0), x)
    monkeypatch.setattr(item_features, "MOST_NUMBERS", x.numel() - 1)
    less = item_features.features_of(head, parts, 3, len(x), 0)
    assert less.shape == (len(x), 2 * item_features.MOST_FEATURES)
    one, other = torch.pdist(x), torch.pdist(less)
    assert one.max() > 2.5 * one.min()
    torch.testing.assert_close(one / one.mean(), other / other.mean(), rtol=0.2, atol=0)
    monkeypatch.setattr(item_features, "MOST_NUMBERS", 0)
    few = item_features.features_of(head, [numbered(x[:, :5], range(40))], 3, len(x), 0)
    assert torch.equal(few, x[:, :5])
