"""CoNAL: votes by a confusion of the whole crowd, or by the annotator's own.

Z. Chu, J. Ma, H. Wang. Learning from Crowds by Modeling Common Confusions. AAAI 2021. It is not in the
Max-MIG paper's comparison.
"""

from collections.abc import Iterable, Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import initialization as init

from ..model.aggregators import WeightedAverageAggregator
from ..model.cross_entropy import against_annotations
from ..model.functional import widen
from ..model.heads import FeatureHead
from ..model.outputs import Gather, MaxMIGOutput
from ..model.votes import Votes
from .annotator_matrices import MatricesConfig, MatricesModel, check_strength
from .feature_networks import (
    AnnotatorEmbeddings,
    FeatureModel,
    FeatureNetwork,
    OutputWithFeatures,
)


class CoNALConfig(MatricesConfig):
    """Configuration of `CoNALModel`.

    Args:
        start: how the matrices start: `"authors"`, all at 2 I, or `"vote_share"`, equation 2 of the Max-MIG
            paper: W^m from the votes of annotator m, G from those of all.
        lam: strength of the term that keeps each W^m away from G.
        hidden_size: units between the features and the item's vector.
        embedding_size: length of the vectors of items and annotators.

    Raises:
        ValueError: if `start` is neither, or `lam` is negative or not finite.

    Example:
        >>> CoNALConfig(annotators=["ann", "bob"]).lam
        1e-05
    """

    model_type = "maxmig_conal"
    lam: float = 1e-5
    hidden_size: int = 128
    embedding_size: int = 20

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        check_strength("lam", self.lam)


class CommonConfusion(FeatureNetwork):
    """The matrix of the whole crowd, and how much each vote follows it.

    Args:
        num_annotators: M.
        num_classes: C.
        num_features: D.
        hidden_size: units between the features and the item's vector.
        embedding_size: length of the vectors of items and annotators.

    Example:
        >>> common = CommonConfusion(3, num_classes=2, num_features=5, hidden_size=4, embedding_size=6)
        >>> common(torch.zeros(1, 5), torch.tensor([[0, 2]])).shape
        torch.Size([1, 2])
    """

    def __init__(
        self,
        num_annotators: int,
        num_classes: int,
        num_features: int,
        hidden_size: int,
        embedding_size: int,
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(num_features, hidden_size)
        self.item = nn.Linear(hidden_size, embedding_size)
        self.annotator = AnnotatorEmbeddings(num_annotators, embedding_size)
        self.matrix = nn.Parameter(torch.empty(num_classes, num_classes))  # reported, true
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Draw the layers anew, and set the matrix to 2 I."""
        super().reset()
        init.copy_(self.matrix, 2 * torch.eye(len(self.matrix)))

    def forward(self, features: Tensor, annotators: Tensor) -> Tensor:
        """Turn (B, D) features and (B, K) annotators into (B, K) shares, meaningless at -1."""
        item = normalize(self.item(self.hidden(features)), dim=-1)
        annotator = normalize(self.annotator(annotators), dim=-1)
        return (annotator @ item[:, :, None]).squeeze(-1).sigmoid()


class CoNALModel(FeatureModel, MatricesModel):
    """Explain each vote by the common confusion of the crowd or by its annotator's own.

    Scores of the vote of annotator m on item i: s = w_im G'h(x_i) + (1 - w_im) W^m'h(x_i), with h(x) the
    probabilities of the classifier and unconstrained matrices (true class in rows). The share is
    w_im = sigmoid(<a_i, b_m>): a_i is the normalised V_2 V_1 x_i, two linear layers, and b_m the normalised
    vector of the annotator. Loss: the mean over all votes of -log softmax(s)_{y_i^m}, minus
    lam sum_m |W^m - G|, Frobenius norms, over all annotators.

    The authors' network for w reads what their classifier reads, given features. So it does here beside a
    `HeadClassifier` and the like. Beside any other classifier it reads the features below the output
    layer. Its gradient stops there, as the authors' inputs have none.

    The cost of a step grows with the number of votes; the norms also read the M C^2 numbers of the
    matrices once, as the optimizer does.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.

    Raises:
        TypeError: if the classifier does not end in a linear layer.

    References:
        Z. Chu, J. Ma, H. Wang. Learning from Crowds by Modeling Common Confusions. AAAI 2021. The authors'
        program makes a new Adam for each epoch, which loses its averages; here one optimizer trains
        throughout. It keeps the epoch with the best gold validation accuracy; here no gold label is used.

    Relations:
        With w = 0 it is `crowd_layer`, at another start. Scores are mixed, not probabilities: `spee_lfc`
        mixes the latter. `lam` is too weak to matter in most trainings.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = CoNALModel.from_classifier(head, num_annotators=3)
        >>> model.network.matrix.detach()
        tensor([[2., 0.],
                [0., 2.]])
    """

    config_class = CoNALConfig
    method = "CoNAL"
    reference = "Chu, Ma, Wang. Learning from Crowds by Modeling Common Confusions. AAAI 2021."
    network: CommonConfusion
    _keep_in_fp32_modules_strict = ["matrices", "network"]

    def authors_start(self) -> Tensor:
        """Return the scores that every annotator has at the authors' start."""
        return 2 * super().authors_start()

    def build_network(
        self, num_annotators: int, num_classes: int, num_features: int
    ) -> CommonConfusion:
        """Build the common matrix and the network for w."""
        config = cast(CoNALConfig, self.config)
        sizes = config.hidden_size, config.embedding_size
        return CommonConfusion(num_annotators, num_classes, num_features, *sizes)

    def layer_read(self) -> nn.Linear:
        """Return the first layer of a head on features, else the output layer."""
        if isinstance(self.classifier, FeatureHead):
            return self.classifier.fc
        return super().layer_read()

    @torch.no_grad()
    def initialize_crowd(
        self,
        batches: Iterable[Votes],
        smoothing: float = 0.01,
        voted: Tensor | None = None,
    ) -> None:
        """Initialise the matrices as the config says; the other layers stay as they are."""
        common = self.network.matrix
        if self.config.start == "authors":
            super().initialize_crowd(batches, smoothing, voted)
            common.copy_(self.authors_start())
            return
        parts = [Votes(*part) for part in batches]
        super().initialize_crowd(parts, smoothing, voted)
        everybody = WeightedAverageAggregator(1, len(common))
        everybody.initialize(
            (Votes(part.annotators.clamp(max=0), *part[1:]) for part in parts), smoothing
        )
        common.copy_(everybody.table[0])

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute the cross-entropy of all votes minus the norms, see `CrowdModel.crowd_loss`."""
        votes = Votes.of(batch)
        log_said = self.scores(cast(OutputWithFeatures, outputs), votes).log_softmax(dim=-1)
        loss, empty = against_annotations(log_said, votes, gather)
        apart = (widen(self.matrices.table) - self.network.matrix).flatten(1).norm(dim=1).sum()
        return loss - cast(CoNALConfig, self.config).lam * apart * ~empty, empty

    @torch.no_grad()
    def confusion(self) -> Tensor:
        """Return (M, C, C): what each annotator says where h is sure of a class, and w is 1/2.

        That is where the vector of the item says nothing; w always lies between 0.27 and 0.73.
        """
        halfway = (widen(self.matrices.table) + self.network.matrix) / 2
        return halfway.softmax(dim=1).transpose(1, 2)

    def shares(self, outputs: OutputWithFeatures, votes: Votes) -> Tensor:
        """Return w, how much each vote follows the common confusion.

        Args:
            outputs: of `forward` with these votes.
            votes: of the batch.

        Returns:
            (B, K), meaningless where there is no vote.
        """
        features = cast(Tensor, outputs.features)
        with torch.autocast(features.device.type, enabled=False):
            return self.network(features, votes.annotators)

    def scores(self, outputs: OutputWithFeatures, votes: Votes) -> Tensor:
        """Return the (B, K, C) scores of the votes, see the class."""
        h, shares = outputs.log_h.exp(), self.shares(outputs, votes)[..., None]
        with torch.autocast(h.device.type, enabled=False):
            common = (h @ self.network.matrix.T)[:, None]
            return shares * common + (1 - shares) * self.matrices(h, votes.annotators)
