"""Doctor Net: one head per annotator on shared features; predictions are their average.

M. Y. Guan, V. Gulshan, A. M. Dai, G. E. Hinton. Who Said What: Modeling Individual Labelers
Improves Classification. AAAI 2018. In the comparison of the Max-MIG paper (Section 4).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from ..model.aggregators import Float32Module, check_any_label
from ..model.configuration_maxmig import MaxMIGConfig
from ..model.cross_entropy import against_annotations, against_targets
from ..model.functional import vote_share, widen
from ..model.kept_gradients import TableRows
from ..model.modeling_maxmig import CrowdModel
from ..model.outputs import Gather, MaxMIGOutput, PosteriorParts
from ..model.votes import Votes
from .annotator_matrices import annotators_with_votes
from .output_layer import logits_and_features, output_layer

AVERAGES = ("equal", "learned")
# With at most this many heads per vote of an item, computing all heads is faster than reading one per vote.
FEW = 16


class DoctorNetConfig(MaxMIGConfig):
    """Configuration of `DoctorNetModel`.

    Args:
        average: how the heads are averaged: `"equal"`, or `"learned"`, one weight per annotator.

    Raises:
        ValueError: if `average` is neither.

    Example:
        >>> DoctorNetConfig(annotators=["ann", "bob"]).average
        'equal'
    """

    model_type = "maxmig_doctor_net"
    _auto_class = None
    average: str = "equal"

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.average not in AVERAGES:
            raise ValueError(
                f"`average` must be one of {', '.join(AVERAGES)}, got {self.average!r}."
            )


@dataclass
class DoctorNetOutput(MaxMIGOutput):
    """The result of a forward pass.

    Args:
        annotator_logits: (B, K, C), of the votes of each item's annotators; only in training mode.
    """

    annotator_logits: Tensor | None = None


class AnnotatorHeads(Float32Module):
    """M output layers on the same features, and their weights in the average.

    Args:
        num_annotators: M.
        num_classes: C.
        num_features: D.
        learned: whether the weights of the average are trained.

    Example:
        >>> heads = AnnotatorHeads(num_annotators=3, num_classes=2, num_features=5)
        >>> heads(torch.zeros(4, 5), torch.tensor([[0, 2]] * 4)).shape
        torch.Size([4, 2, 2])
        >>> heads.average(torch.zeros(1, 5)).exp().tolist()
        [[0.5, 0.5]]
    """

    of_annotators = ("weight", "bias", "importance", "active")
    active: Tensor

    def __init__(
        self, num_annotators: int, num_classes: int, num_features: int, learned: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_annotators, num_classes, num_features))
        self.bias = nn.Parameter(torch.zeros(num_annotators, num_classes))
        self.importance = nn.Parameter(torch.zeros(num_annotators)) if learned else None
        # The annotators with training votes; the heads of the others take no part.
        self.register_buffer("active", torch.ones(num_annotators))
        self.read = TableRows()

    def forward(self, features: Tensor, annotators: Tensor) -> Tensor:
        """Turn (B, D) features and (B, K) annotators into (B, K, C) logits, meaningless at -1."""
        num_annotators, num_classes, num_features = self.weight.shape
        index = annotators.clamp(min=0)
        if num_annotators <= FEW * annotators.shape[1]:
            logits = self.of_all(features)
            return logits.gather(1, index[..., None].expand(-1, -1, num_classes))
        with torch.autocast(features.device.type, enabled=False):
            weight = self.read(index, self.weight.view(num_annotators, -1))
            weight = weight.view(*annotators.shape, num_classes, num_features)
            logits = (weight @ widen(features)[:, None, :, None]).squeeze(-1)
            return logits + self.read(index, self.bias)

    def of_all(self, features: Tensor) -> Tensor:
        """Turn (B, D) features into the (B, M, C) logits of all heads."""
        with torch.autocast(features.device.type, enabled=False):
            return torch.einsum("bd,mcd->bmc", widen(features), self.weight) + self.bias

    def log_weights(self) -> Tensor:
        """Return the (M,) log weights of the average."""
        scores = torch.zeros_like(self.active) if self.importance is None else self.importance
        return scores.masked_fill(self.active == 0, -torch.inf).log_softmax(dim=0)

    def average(self, features: Tensor, only_weights: bool = False) -> Tensor:
        """Average the predictions of all heads: (B, D) features to (B, C) log-probabilities.

        Args:
            features: (B, D).
            only_weights: stop the gradient to heads and features.
        """
        log_said = self.of_all(features).log_softmax(dim=-1)
        log_said = log_said.detach() if only_weights else log_said
        return (log_said + self.log_weights()[:, None]).logsumexp(dim=1)


class DoctorNetModel(CrowdModel):
    """Predict each annotator's votes, and average: h(x) = sum_m w_m softmax(V^m f(x)).

    f(x) are the features below the classifier's output layer, V^m the head of annotator m. Loss:
    mean over all votes of -log softmax(V^m f(x_i))_{y_i^m}. The weights w are equal, or learned
    from the vote share: mean_i - sum_c Q_ic log h(x_i)_c, with no gradient to heads and features.
    Annotators without a training vote are left out of the average.

    The cost of a training step grows with the number of votes; a prediction needs all M heads.
    `logits` are log h. After each epoch the classifier's own output layer is set to the weighted mean
    of the heads; by itself it predicts their geometric mean.

    Args:
        config: the model's configuration; `average` says what w is.
        classifier: f with an output layer, which is the start of all heads; see `from_classifier`.

    Raises:
        TypeError: if the classifier does not end in a linear layer.

    References:
        M. Y. Guan, V. Gulshan, A. M. Dai, G. E. Hinton. Who Said What: Modeling Individual Labelers
        Improves Classification. AAAI 2018. Learned weights are its WDN, trained here together with the
        heads and not after them. Weights that depend on the item, and bottlenecks, are not implemented.

    Relations:
        `soft_vote` trains one head on the pooled votes. `crowd_layer` also models each annotator's
        votes, but through one shared belief about the true class; the heads here are independent of
        each other.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = DoctorNetModel.from_classifier(head, num_annotators=3).eval()
        >>> [round(total, 5) for total in model(features=torch.zeros(4, 5)).logits.exp().sum(dim=1).tolist()]
        [1.0, 1.0, 1.0, 1.0]
    """

    config_class = DoctorNetConfig
    method = "Doctor Net"
    reference = (
        "Guan, Gulshan, Dai, Hinton. Who Said What: Modeling Individual Labelers Improves "
        "Classification. AAAI 2018."
    )
    classifies_alone = False
    takes_blends = False  # the logits are those of the heads of the item's own annotators
    _keep_in_fp32_modules_strict = ["heads"]
    heads: AnnotatorHeads

    def __init__(self, config: MaxMIGConfig, classifier: PreTrainedModel | None = None) -> None:
        super().__init__(config, classifier)
        self.train(self.training)

    def build_crowd(self, config: MaxMIGConfig) -> None:
        """Build the heads."""
        self.heads = AnnotatorHeads(
            cast(int, config.num_annotators),
            config.num_labels,
            self._output_layer().in_features,
            learned=getattr(config, "average", "equal") == "learned",
        )

    def _output_layer(self) -> nn.Linear:
        return output_layer(self.classifier, self.config.num_labels)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, AnnotatorHeads):
            layer = self._output_layer()
            init.copy_(module.weight, layer.weight.float().expand_as(module.weight))
            if layer.bias is None:
                init.zeros_(module.bias)
            else:
                init.copy_(module.bias, layer.bias.float().expand_as(module.bias))
            if module.importance is not None:
                init.zeros_(module.importance)
            init.ones_(module.active)

    def train(self, mode: bool = True) -> "DoctorNetModel":
        """Switch mode. The heads are trained, and the classifier's own output layer is not."""
        super().train(mode)
        self._output_layer().requires_grad_(False)
        return self

    def outputs(self, votes: Votes | None, **classifier_inputs: Any) -> DoctorNetOutput:
        """Compute the heads of each item's annotators in training, otherwise the average of all heads."""
        features = self.features(**classifier_inputs)
        if not self.training or votes is None:
            return DoctorNetOutput(logits=self.heads.average(features))
        learned = self.heads.importance is not None
        return DoctorNetOutput(
            logits=self.heads.average(features, only_weights=True) if learned else None,
            annotator_logits=self.heads(features, votes.annotators),
        )

    def features(self, **classifier_inputs: Any) -> Tensor:
        """Return (B, D), the input of the classifier's output layer."""
        return logits_and_features(
            self.classifier, self._output_layer(), classifier_inputs, self._asked
        )[1]

    def crowd_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the weights of the average, if they are learned; the heads have the classifier's rate."""
        if self.heads.importance is not None:
            yield self.heads.importance

    @torch.no_grad()
    def initialize_crowd(
        self,
        batches: Iterable[Votes],
        smoothing: float = 0.01,
        voted: Tensor | None = None,
    ) -> None:
        """Find the annotators with votes; `smoothing` is not used.

        Raises:
            ValueError: if no item has a vote.
        """
        active = annotators_with_votes(batches, len(self.heads.active))
        check_any_label(bool(active.any()))
        self.heads.active.copy_(active)

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute the cross-entropy of all votes, and that of the average if it is learned."""
        votes = Votes.of(batch)
        said = cast(DoctorNetOutput, outputs).annotator_logits
        if said is None:
            raise ValueError(
                "a loss of Doctor Net must be computed in training mode, got evaluation mode: call "
                "`train()` first."
            )
        log_said = widen(said).log_softmax(dim=-1)
        loss, empty = against_annotations(log_said, votes, gather)
        if outputs.logits is not None:
            share = vote_share(votes.known, self.config.num_labels, votes.weights)
            loss = loss + against_targets(outputs.logits, share, gather)[0]
        return loss, empty

    @torch.no_grad()
    def end_epoch(self, parts: PosteriorParts, progress: float) -> None:
        """Set the classifier's own output layer to the weighted mean of the heads."""
        layer, weights = self._output_layer(), self.heads.log_weights().exp()
        layer.weight.copy_(torch.einsum("m,mcd->cd", weights, self.heads.weight))
        if layer.bias is not None:
            layer.bias.copy_(weights @ self.heads.bias)
