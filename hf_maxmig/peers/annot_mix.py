"""annot-mix: votes are blended, with their items and annotators.

M. Herde, L. Lührs, D. Huseljic, B. Sick. annot-mix: Learning with Noisy Class Labels from Multiple Annotators
via a Mixup Extension. ECAI 2024. It is not in the Max-MIG paper's comparison.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, one_hot

from ..model.configuration_maxmig import MaxMIGConfig
from ..model.cross_entropy import mean_of_given
from ..model.functional import Mixed, widen
from ..model.mixup import blended_inputs
from ..model.outputs import Gather, MaxMIGOutput
from ..model.votes import Votes
from .annotator_matrices import log_said
from .feature_networks import (
    AnnotatorEmbeddings,
    ConfusionOutput,
    FeatureModel,
    FeatureNetwork,
    VoteNorm,
    check_eta,
    of_items,
    vote_rows,
)
from .output_layer import logits_and_features


class AnnotMixConfig(MaxMIGConfig):
    """Configuration of `AnnotMixModel`.

    Args:
        alpha: parameter of the symmetric Beta distribution of the shares of two blended votes.
        eta: at the start, about the probability that a vote is right.
        embedding_size: length of the vectors of items and annotators, and units of the network on both.
        dropout: share dropped of both vectors.

    Raises:
        ValueError: if `alpha` is not positive and finite, `eta` is not between 0 and 1, or `dropout` not
            in 0..1.

    Example:
        >>> AnnotMixConfig(annotators=["ann", "bob"]).alpha
        1.0
    """

    model_type = "maxmig_annot_mix"
    _auto_class = None
    alpha: float = 1.0
    eta: float = 0.9
    embedding_size: int = 128
    dropout: float = 0.5

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_eta(self.eta)
        if not 0 < self.alpha < float("inf"):
            raise ValueError(f"`alpha` must be positive and finite, got {self.alpha}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"`dropout` must be 0 or more and below 1, got {self.dropout}.")


class BlendedPerformance(FeatureNetwork):
    """The confusion matrix of each blend of two votes, by its annotators and features.

    Args:
        num_annotators: M.
        num_classes: C.
        num_features: D.
        config: sizes, dropout and eta.

    Example:
        >>> network = BlendedPerformance(3, num_classes=2, num_features=5, config=AnnotMixConfig())
        >>> same = Mixed(torch.ones(2), torch.tensor([1, 0]))
        >>> network(torch.zeros(2, 5), torch.tensor([0, 2]), same).shape
        torch.Size([2, 2, 2])
    """

    def __init__(
        self, num_annotators: int, num_classes: int, num_features: int, config: AnnotMixConfig
    ) -> None:
        super().__init__()
        size, self.dropout = config.embedding_size, config.dropout
        self.annotator = AnnotatorEmbeddings(num_annotators, size)
        self.item = nn.Linear(num_features, size)
        self.hidden = nn.Linear(2 * size, size)
        self.norm = VoteNorm(size)
        self.confusion = ConfusionOutput(size, num_classes, config.eta)
        self.reset()

    def forward(self, features: Tensor, annotators: Tensor, mixed: Mixed) -> Tensor:
        """Turn (V, D) features of blends and (V,) annotators of votes into (V, C, C) log-probabilities."""
        # The layer of the one-hot annotator is linear: a blend of its outputs is that of a blend.
        both = torch.cat([self.item(features), mixed.blend(self.annotator(annotators))], dim=1)
        hidden = self.hidden(dropout(both, self.dropout, self.training))
        return self.confusion(self.norm(hidden).relu())


@dataclass
class AnnotMixOutput(MaxMIGOutput):
    """The result of a forward pass in training.

    Args:
        votes_loss: (B,), sum of the losses of the blends of an item's votes, in nats; only in training mode.
        votes_weight: (B,), sum of their weights; likewise.
    """

    votes_loss: Tensor | None = None
    votes_weight: Tensor | None = None


class AnnotMixModel(FeatureModel):
    """Explain blends of two votes by a class and a confusion matrix that depends on annotator and item.

    In each batch every vote (x, m, y) gets another as its partner, at random, and a share s from
    Beta(alpha, alpha). Input, one-hot annotator and one-hot class are blended with this share:
    x~ = s x + (1 - s) x', and so on. P(r | x~, m~) = sum_c h(x~)_c A_cr(x~, m~), where A is the softmax
    over the reported class of a network on the blended annotator and the features e~ of x~ below the
    classifier's output layer. It starts near matrices of eta on the diagonal. Loss: the mean over the
    blends of - sum_r y~_r log P(r | x~, m~). In evaluation nothing is blended.

    The gradient of the network stops at e~. Votes are blended, not items: two votes on an item get two
    partners and two shares. So the classifier runs once per vote in training, not once per item. Inputs
    are blended as `mixup_alpha` of the trainer blends those of items, which must be 0 here. Whole numbers,
    such as those of words, cannot be blended; the features of a frozen encoder can.

    A weighted vote counts in both blends by its weight. The network normalises over the votes of a batch,
    on each device by itself; a vote's partner is on the same device.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.

    Raises:
        TypeError: if the classifier does not end in a linear layer.

    References:
        M. Herde, L. Lührs, D. Huseljic, B. Sick. annot-mix: Learning with Noisy Class Labels from Multiple
        Annotators via a Mixup Extension. ECAI 2024; github.com/ies-research/multi-annotator-machine-learning.

    Relations:
        `madl` is by the same authors, has such a network with weights of annotators, and blends nothing.
        Mixup of the trainer (`mixup_alpha`) with `spee_lfc` blends items, keeps the votes apart, and has
        one matrix per annotator.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = AnnotMixModel.from_classifier(head, num_annotators=3)
        >>> who, said = torch.tensor([[0, 1], [0, -1]]), torch.tensor([[1, 1], [0, -1]])
        >>> out = model(features=torch.zeros(2, 5), annotators=who, annotations=said)
        >>> out.votes_weight
        tensor([2., 1.])
    """

    config_class = AnnotMixConfig
    method = "annot-mix"
    reference = (
        "Herde, Lührs, Huseljic, Sick. annot-mix: Learning with Noisy Class Labels from Multiple "
        "Annotators via a Mixup Extension. ECAI 2024."
    )
    takes_blends = False  # it blends votes itself
    network: BlendedPerformance

    def build_network(
        self, num_annotators: int, num_classes: int, num_features: int
    ) -> BlendedPerformance:
        """Build the network for A."""
        config = cast(AnnotMixConfig, self.config)
        return BlendedPerformance(num_annotators, num_classes, num_features, config)

    def draw(self, votes: int, device: torch.device) -> Mixed:
        """Draw a share and a partner for each vote, from torch's CPU generator."""
        alpha = cast(AnnotMixConfig, self.config).alpha
        shares = torch.distributions.Beta(alpha, alpha).sample((votes,))
        return Mixed(shares.to(device), torch.randperm(votes).to(device))

    def outputs(self, votes: Votes | None, **classifier_inputs: Any) -> MaxMIGOutput:
        """Classify; in training compute the losses of blended votes instead."""
        if not self.training or votes is None:
            return super().outputs(None, **classifier_inputs)
        rows, num_items = vote_rows(votes), len(votes.annotators)
        mixed = self.draw(len(rows.item), rows.item.device)
        of_votes = {
            name: value[rows.item]
            if isinstance(value, Tensor) and len(value) == num_items
            else value
            for name, value in classifier_inputs.items()
        }
        logits, features = logits_and_features(
            self.classifier, self.layer_read(), blended_inputs(of_votes, mixed), self._asked
        )
        with torch.autocast(logits.device.type, enabled=False):
            log_confusion = self.network(widen(features).detach(), rows.annotator, mixed)
            said = log_said(widen(logits).log_softmax(dim=-1), log_confusion)
            targets = one_hot(rows.annotation, said.shape[1]) * rows.weight[:, None]
            losses = -(mixed.blend(targets) * said).sum(dim=1)
        return AnnotMixOutput(
            votes_loss=of_items(losses, rows.item, num_items),
            votes_weight=of_items(mixed.blend(rows.weight), rows.item, num_items),
        )

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute the mean loss of all blends, see the class and `CrowdModel.crowd_loss`.

        Raises:
            ValueError: if the outputs are not those of training mode.
        """
        blends = cast(AnnotMixOutput, outputs)
        if getattr(blends, "votes_loss", None) is None:
            raise ValueError(
                "a loss of annot-mix must be computed in training mode, got evaluation mode: call "
                "`train()` first."
            )
        total, count = cast(Tensor, blends.votes_loss), cast(Tensor, blends.votes_weight)
        return mean_of_given(total, count, gather)
