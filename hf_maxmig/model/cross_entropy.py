"""Cross-entropies against targets or annotations; missing ones take no part.

The input is log-probabilities, the result the mean over all devices. The method, or the training, decides
which target or which annotator's vote they are compared with.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from .functional import widen
from .modeling_maxmig import CrowdModel
from .outputs import Gather, MaxMIGOutput
from .votes import Votes


def mean_of_given(total: Tensor, count: Tensor, gather: Gather) -> tuple[Tensor, Tensor]:
    """Divide the sum of all losses by their number, over all devices.

    Args:
        total: (B,), sum of an item's losses, in nats.
        count: (B,), the number of an item's losses.
        gather: joins a (B, ...) tensor over the devices, with gradient.

    Returns:
        The mean, and whether there are no losses; then it is zero, with zero gradient.

    Example:
        >>> total, count = torch.tensor([3.0, 0.0]), torch.tensor([2, 0])
        >>> mean_of_given(total, count, lambda tensor: tensor)
        (tensor(1.5000), tensor(False))
    """
    everything = gather(count).sum()
    empty = everything == 0
    return gather(total).sum() / torch.where(empty, 1, everything), empty


def against_targets(log_h: Tensor, targets: Tensor, gather: Gather) -> tuple[Tensor, Tensor]:
    """Compare the classifier with one distribution per item: mean_i - sum_c t_ic log h(x_i)_c.

    Args:
        log_h: (B, C), log-probabilities.
        targets: (B, C), rows summing to one; a row of zeros takes no part.
        gather: joins a (B, ...) tensor over the devices, with gradient.

    Returns:
        The mean over the items that have a target, in nats, and whether there were none.

    Example:
        >>> log_h = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
        >>> against_targets(log_h, torch.tensor([[0.2, 0.8], [0.0, 0.0]]), lambda tensor: tensor)
        (tensor(0.6931), tensor(False))
    """
    taken = (targets > 0).any(dim=1)
    total = -torch.where(targets > 0, targets * widen(log_h), 0.0).sum(dim=1)
    return mean_of_given(total, taken.to(total.dtype), gather)


def log_likelihoods(log_said: Tensor, votes: Votes) -> tuple[Tensor, Tensor]:
    """Add up how probable an item's votes were.

    Args:
        log_said: (B, K, C), log-probabilities of the vote of the annotator at each place.
        votes: of the batch.

    Returns:
        (B,) sums over an item's votes, in nats, and (B,) their number; a vote counts by its weight.

    Example:
        >>> log_said = torch.tensor([[[0.5, 0.5], [0.9, 0.1]]]).log()
        >>> log_likelihoods(log_said, Votes(torch.tensor([[3, 2]]), torch.tensor([[1, 0]])))
        (tensor([-0.7985]), tensor([2.]))
    """
    given = votes.given
    index = torch.where(given, votes.annotations, 0)[..., None]
    picked = torch.where(given, widen(log_said).gather(2, index)[..., 0], 0.0)
    each = given.to(picked.dtype)
    if votes.weights is not None:
        each = torch.where(given, votes.weights.to(each), 0.0)
        picked = picked * each
    return picked.sum(dim=1), each.sum(dim=1)


def against_annotations(log_said: Tensor, votes: Votes, gather: Gather) -> tuple[Tensor, Tensor]:
    """Compare each annotator's predicted vote with the vote they gave.

    Args:
        log_said: (B, K, C), log-probabilities of the vote of the annotator at each place.
        votes: of the batch.
        gather: joins a (B, ...) tensor over the devices, with gradient.

    Returns:
        The mean over all votes, in nats (each vote counts once, or by its weight, and an item as
        often as it has votes), and whether there were none.

    Example:
        >>> log_said = torch.tensor([[[0.5, 0.5], [0.9, 0.1]]]).log()
        >>> votes = Votes(torch.tensor([[3, -1]]), torch.tensor([[1, -1]]))
        >>> against_annotations(log_said, votes, lambda tensor: tensor)
        (tensor(0.6931), tensor(False))
    """
    log_likelihood, counts = log_likelihoods(log_said, votes)
    return mean_of_given(-log_likelihood, counts, gather)


class TargetModel(CrowdModel):
    """A method of two steps: first a target for each item, then a plain classifier.

    A method defines `targets`.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.
    """

    def targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return (B, C) probabilities, or zeros for an item to leave out."""
        raise NotImplementedError

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute the cross-entropy against the targets, see `CrowdModel.crowd_loss`."""
        log_h = outputs.log_h
        return against_targets(log_h, self.targets(batch), gather)
