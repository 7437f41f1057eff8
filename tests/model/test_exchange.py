"""Exchanging parts of a model: what was learned stays, or the exchange is refused."""

import pytest
import torch

from hf_maxmig import MaxMIGModel, WeightedAverageAggregator
from hf_maxmig.model.aggregators import ClassPrior
from hf_maxmig.model.exchange import prior_at
from tests.networks import head_on_pictures


def drawn(aggregator):
    """Return a model whose aggregator has random parameters."""
    torch.manual_seed(0)
    model = MaxMIGModel.from_classifier(head_on_pictures(), num_annotators=4, aggregator=aggregator)
    with torch.no_grad():
        for parameter in model.aggregator.parameters():
            parameter.normal_()
    return model


@pytest.mark.parametrize("names", [("factored", "weighted_average"), ("interaction", "factored")])
def test_factors_and_matrices_are_not_taken_for_each_other(names):
    """A model resumed under another aggregator's name would continue from an untrained W."""
    model = drawn(names[0])
    before = model.aggregator
    with pytest.raises(
        ValueError, match=f"`aggregator` must be '{names[0]}', that of the model, got '{names[1]}'"
    ):
        model.use_aggregator(names[1])
    assert model.config.aggregator == names[0]
    model.use_aggregator(names[0])
    assert model.aggregator is before


def test_interaction_is_given_up_with_its_w():
    """Dropping the pairs must keep the W learned from single labels."""
    model = drawn("interaction")
    table = model.aggregator.table.detach().clone()
    model.use_aggregator("weighted_average")
    assert type(model.aggregator) is WeightedAverageAggregator
    assert model.config.aggregator == "weighted_average"
    assert torch.equal(model.aggregator.table, table)


@pytest.mark.parametrize("kind", ["vote_share", [0.2, 0.3, 0.5]], ids=str)
def test_prior_with_room_for_the_numbers_stays_of_its_kind(kind):
    """If the kind changed, the config would call a user's own prior the crowd's."""
    prior, found = ClassPrior(3, kind), torch.tensor([0.5, 0.1, 0.4])
    assert prior_at(prior, found.log()) is prior
    assert prior.prior == kind
    torch.testing.assert_close(prior().exp(), found)


@pytest.mark.parametrize("kind", ["uniform", "learned"])
def test_prior_without_room_for_the_numbers_is_exchanged(kind):
    """Called uniform, the prior would be uniform again after loading; called learned, it would be trained further."""
    prior, found = ClassPrior(3, kind), torch.tensor([0.5, 0.1, 0.4])
    other = prior_at(prior, found.log())
    assert other.prior == "vote_share"
    torch.testing.assert_close(other().exp(), found)
    torch.testing.assert_close(prior().exp(), torch.full((3,), 1 / 3))
