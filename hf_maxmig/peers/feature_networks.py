"""Networks beside a classifier that read its features, and the models that have them.

`conal`, `crowd_ar`, `annot_mix` and `madl` have such a network each; what it reads, how annotators and
votes enter it and how it starts is the same, and lives here.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from transformers import initialization as init

from ..model.aggregators import Float32Module
from ..model.configuration_maxmig import MaxMIGConfig
from ..model.cross_entropy import mean_of_given
from ..model.functional import widen
from ..model.kept_gradients import TableRows
from ..model.modeling_maxmig import CrowdModel
from ..model.outputs import Gather, MaxMIGOutput
from ..model.plain_classifier import draw_as_torch
from ..model.votes import Votes
from .output_layer import logits_and_features, output_layer


class FeatureNetwork(Float32Module):
    """A network beside a classifier: it starts at random, as torch starts its layers."""

    @torch.no_grad()
    def reset(self) -> None:
        """Draw the layers anew; weights that were loaded stay."""
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                draw_as_torch(layer)
            elif isinstance(layer, FeatureNetwork):
                layer.reset()


class AnnotatorEmbeddings(FeatureNetwork):
    """One vector per annotator: a linear layer on the one-hot annotator.

    Args:
        num_annotators: M.
        size: E, numbers per annotator.

    Example:
        >>> AnnotatorEmbeddings(num_annotators=3, size=2)(torch.tensor([[0, 2]])).shape
        torch.Size([1, 2, 2])
    """

    of_annotators = ("table",)

    def __init__(self, num_annotators: int, size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(num_annotators, size))
        self.bias = nn.Parameter(torch.empty(size))
        self.read = TableRows()
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Draw the vectors anew."""
        bound = 1 / math.sqrt(len(self.table))
        init.uniform_(self.table, -bound, bound)
        init.uniform_(self.bias, -bound, bound)

    def forward(self, annotators: Tensor) -> Tensor:
        """Turn (...) annotators into (..., E), meaningless at -1."""
        return self.read(annotators.clamp(min=0), self.table) + self.bias


class VoteNorm(FeatureNetwork):
    """Batch normalisation over the votes of a batch, on each device by itself.

    A batch of a single vote has no spread. It is normalised as in evaluation, by the running mean and
    variance.

    Args:
        size: H, numbers per vote.

    Example:
        >>> VoteNorm(1)(torch.tensor([[1.0], [3.0]])).detach()
        tensor([[-1.0000],
                [ 1.0000]])
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))

    @torch.no_grad()
    def reset(self) -> None:
        """Go back to the start."""
        for ones, zeros in ((self.weight, self.bias), (self.variance, self.mean)):
            init.ones_(ones)
            init.zeros_(zeros)

    def forward(self, votes: Tensor) -> Tensor:
        """Normalise (V, H)."""
        several = self.training and len(votes) > 1
        return batch_norm(votes, self.mean, self.variance, self.weight, self.bias, several)


class ConfusionOutput(FeatureNetwork):
    """The output layer of a network that gives each vote a confusion matrix of its own.

    Args:
        size: H, numbers per vote.
        num_classes: C.
        eta: at the start, about the probability that a vote is right.

    Example:
        >>> layer = ConfusionOutput(size=4, num_classes=3, eta=0.8)
        >>> layer(torch.zeros(1, 4)).exp().detach()
        tensor([[[0.8000, 0.1000, 0.1000],
                 [0.1000, 0.8000, 0.1000],
                 [0.1000, 0.1000, 0.8000]]])
    """

    def __init__(self, size: int, num_classes: int, eta: float) -> None:
        super().__init__()
        self.num_classes, self.eta = num_classes, eta
        self.linear = nn.Linear(size, num_classes**2)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Draw the weights anew; the bias is that of a vote that is right with probability eta."""
        super().reset()
        right = math.log(self.eta * (self.num_classes - 1) / (1 - self.eta))
        init.copy_(self.linear.bias, right * torch.eye(self.num_classes).flatten())

    def forward(self, votes: Tensor) -> Tensor:
        """Turn (V, H) into (V, C, C) log-probabilities: true class, reported class."""
        return self.linear(votes).unflatten(1, (self.num_classes, -1)).log_softmax(dim=-1)


def check_eta(eta: float) -> None:
    """Raise a ValueError if the probability of a right vote is not between 0 and 1."""
    if not 0 < eta < 1:
        raise ValueError(f"`eta` must lie between 0 and 1, got {eta}.")


class VoteRows(NamedTuple):
    """The votes of a batch, one per row, without padding.

    Args:
        item: (V,) int64, place in the batch.
        annotator: (V,) int64.
        annotation: (V,) int64.
        weight: (V,), how much each counts.
    """

    item: Tensor
    annotator: Tensor
    annotation: Tensor
    weight: Tensor


def vote_rows(votes: Votes) -> VoteRows:
    """List the votes of a batch item by item, and wait for the device, which has to count them.

    Padding must not reach a network that normalises over votes. A batch without votes has a row of
    weight 0 for each item, so that all layers get a gradient, of zero.

    Args:
        votes: of the batch.

    Example:
        >>> rows = vote_rows(Votes(torch.tensor([[3, 5], [4, -1]]), torch.tensor([[1, 0], [2, -1]])))
        >>> rows.item.tolist(), rows.annotator.tolist(), rows.annotation.tolist()
        ([0, 0, 1], [3, 5, 4], [1, 0, 2])
    """
    item, place = votes.given.nonzero(as_tuple=True)
    if len(item) == 0:
        item = torch.arange(len(votes.annotators), device=votes.annotators.device)
        none = torch.zeros_like(item)
        return VoteRows(item, none, none, none.float())
    who, said = votes.annotators[item, place], votes.annotations[item, place]
    weights = votes.weights
    weight = torch.ones(len(item), device=item.device) if weights is None else weights[item, place]
    return VoteRows(item, who, said, weight)


def of_items(values: Tensor, item: Tensor, num_items: int) -> Tensor:
    """Add up what votes have, item by item.

    Args:
        values: (V,).
        item: (V,) int64, place in the batch.
        num_items: B.

    Returns:
        (B,).

    Example:
        >>> of_items(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 2]), num_items=3)
        tensor([3., 0., 4.])
    """
    return values.new_zeros(num_items).index_add(0, item, values)


def mean_of_votes(
    losses: Tensor, weight: Tensor, item: Tensor, num_items: int, gather: Gather
) -> tuple[Tensor, Tensor]:
    """Divide the sum of the losses of votes by the sum of their weights, over all devices.

    Args:
        losses: (V,), in nats, already multiplied by the weights.
        weight: (V,).
        item: (V,) int64, place in the batch.
        num_items: B.
        gather: joins a (B, ...) tensor over the devices, with gradient.

    Returns:
        As `mean_of_given`.
    """
    total, count = (of_items(values, item, num_items) for values in (losses, weight))
    return mean_of_given(total, count, gather)


@dataclass
class OutputWithFeatures(MaxMIGOutput):
    """The result of a forward pass.

    Args:
        features: (B, D), what the network beside the classifier reads, without gradient; only with votes.
    """

    features: Tensor | None = None


class FeatureModel(CrowdModel):
    """A classifier and a network beside it that reads its features: what several methods share.

    The gradient of the network stops at the features: it explains the votes, and the classifier does not
    learn to be explained. A method defines `build_network` and `crowd_loss`.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.

    Raises:
        TypeError: if the classifier does not end in a linear layer.
    """

    network: FeatureNetwork
    _keep_in_fp32_modules_strict = ["network"]

    def build_crowd(self, config: MaxMIGConfig) -> None:
        """Build the network, after what the method has besides."""
        super().build_crowd(config)
        self.network = self.build_network(
            cast(int, config.num_annotators), config.num_labels, self.layer_read().in_features
        )

    def build_network(
        self, num_annotators: int, num_classes: int, num_features: int
    ) -> FeatureNetwork:
        """Build the network of M annotators and C classes that reads D features."""
        raise NotImplementedError

    def layer_read(self) -> nn.Linear:
        """Return the classifier's layer whose input the network reads: the output layer."""
        return output_layer(self.classifier, self.config.num_labels)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, FeatureNetwork):
            module.reset()
        elif not isinstance(module, nn.Linear):  # which its network draws
            super()._init_weights(module)

    def crowd_parameters(self) -> Iterator[nn.Parameter]:
        """Yield what the method has besides, and the network's parameters."""
        yield from super().crowd_parameters()
        yield from (p for p in self.network.parameters() if p.requires_grad)

    def outputs(self, votes: Votes | None, **classifier_inputs: Any) -> MaxMIGOutput:
        """Classify; with votes, also return the features."""
        if votes is None:
            return super().outputs(votes, **classifier_inputs)
        logits, features = logits_and_features(
            self.classifier, self.layer_read(), classifier_inputs, self._asked
        )
        return OutputWithFeatures(logits=logits, features=widen(features).detach())
