"""CrowdAR: a reliability for each vote, which softens what the vote says.

Z. Cao, E. Chen, Y. Huang, S. Shen, Z. Huang. Learning from Crowds with Annotation Reliability. SIGIR 2023.
It is not in the Max-MIG paper's comparison.
"""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot
from transformers import initialization as init

from ..model.cross_entropy import mean_of_given
from ..model.kept_gradients import TableRows
from ..model.outputs import Gather, MaxMIGOutput
from ..model.votes import Votes
from .annotator_matrices import MatricesConfig, MatricesModel
from .feature_networks import FeatureModel, FeatureNetwork, OutputWithFeatures


class CrowdARConfig(MatricesConfig):
    """Configuration of `CrowdARModel`.

    Args:
        start: how the matrices start: `"authors"`, at the identity, or `"vote_share"`, equation 2 of the
            Max-MIG paper.
        lam: share of the votes' cross-entropy in the loss; the rest is that of the reliabilities.
        hidden_size: units between the features and the item's difficulties.

    Raises:
        ValueError: if `start` is neither, or `lam` is not between 0 and 1.

    Example:
        >>> CrowdARConfig(annotators=["ann", "bob"]).lam
        0.9
    """

    model_type = "maxmig_crowd_ar"
    lam: float = 0.9
    hidden_size: int = 128

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if not 0 < self.lam < 1:
            raise ValueError(f"`lam` must lie between 0 and 1, got {self.lam}.")


class ReliabilityNetwork(FeatureNetwork):
    """How reliable a vote is, by its item's difficulty and its annotator's expertise in each class.

    Args:
        num_annotators: M.
        num_classes: C.
        num_features: D.
        hidden_size: units between the features and the difficulties.

    Example:
        >>> network = ReliabilityNetwork(3, num_classes=2, num_features=5, hidden_size=4)
        >>> half = torch.tensor([[0.5, 0.5]])
        >>> network(torch.zeros(1, 5), torch.tensor([[0, 2]]), half).shape
        torch.Size([1, 2])
    """

    of_annotators = ("expertise",)

    def __init__(
        self, num_annotators: int, num_classes: int, num_features: int, hidden_size: int
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(num_features, hidden_size)
        self.difficulty = nn.Linear(hidden_size, num_classes)
        self.output = nn.Linear(num_classes, 1)
        self.expertise = nn.Parameter(torch.empty(num_annotators, num_classes))
        self.read = TableRows()
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Draw the layers and the expertise anew."""
        super().reset()
        init.xavier_normal_(self.expertise)

    def forward(self, features: Tensor, annotators: Tensor, h: Tensor) -> Tensor:
        """Turn (B, D) features, (B, K) annotators and (B, C) probabilities into (B, K) logits."""
        difficulty = self.difficulty(self.hidden(features).sigmoid()).sigmoid()
        expertise = self.read(annotators.clamp(min=0), self.expertise).sigmoid()
        ahead = (expertise - difficulty[:, None]) * h[:, None]
        return ahead @ self.output.weight[0].abs() + self.output.bias


class CrowdARModel(FeatureModel, MatricesModel):
    """Fit each vote with its annotator's matrix, as far as the vote is reliable.

    The vote y of annotator m on item i is reliable with probability
    r = sigmoid(w_3 . ((sigma(E_m) - sigma(W_2 sigma(W_1 e_i))) * h(x_i)) + b): the annotator's expertise E_m
    against the item's difficulty, in the classes that the classifier sees. e are the features below its
    output layer, without gradient. The vote's target is t = r onehot(y) + (1 - r) / C. Loss: the mean over
    all votes of lam CE(t, softmax(W^m'h(x_i))) + (1 - lam) BCE(r, [argmax h(x_i) = y]).

    Each entry of w_3 must be 0 or more, so that expertise counts for a vote and difficulty against it. The
    authors clip it after each step. Here w_3 is the absolute value of what is trained: it is never
    negative, wherever the optimizer steps, and keeps a gradient at 0.

    The cost of a step grows with the number of votes, not of annotators.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.

    Raises:
        TypeError: if the classifier does not end in a linear layer.

    References:
        Z. Cao, E. Chen, Y. Huang, S. Shen, Z. Huang. Learning from Crowds with Annotation Reliability. SIGIR
        2023. The published program of maml, github.com/ies-research/multi-annotator-machine-learning, has
        the sizes and starts; matrices and expertise are trained here, as the paper says.

    Relations:
        With r = 1 it is `crowd_layer`. A reliability of its own for each vote is what the other rivals do
        not give: see `reliability`. It is judged by the classifier that learns from it.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = CrowdARModel.from_classifier(head, num_annotators=3)
        >>> who, said = torch.tensor([[0, 1], [0, 2]]), torch.tensor([[1, 1], [0, 0]])
        >>> out = model(features=torch.zeros(2, 5), annotators=who, annotations=said)
        >>> model.reliability(out, Votes(who, said)).sigmoid().shape
        torch.Size([2, 2])
    """

    config_class = CrowdARConfig
    method = "CrowdAR"
    reference = "Cao, Chen, Huang, Shen, Huang. Learning from Crowds with Annotation Reliability. SIGIR 2023."
    network: ReliabilityNetwork
    _keep_in_fp32_modules_strict = ["matrices", "network"]

    def build_network(
        self, num_annotators: int, num_classes: int, num_features: int
    ) -> ReliabilityNetwork:
        """Build the network for r."""
        hidden_size = cast(CrowdARConfig, self.config).hidden_size
        return ReliabilityNetwork(num_annotators, num_classes, num_features, hidden_size)

    def reliability(self, outputs: MaxMIGOutput, votes: Votes) -> Tensor:
        """Say how reliable each vote is.

        Args:
            outputs: of `forward` with these votes.
            votes: of the batch.

        Returns:
            (B, K), logits of r, meaningless where there is no vote.
        """
        features = cast(Tensor, cast(OutputWithFeatures, outputs).features)
        with torch.autocast(features.device.type, enabled=False):
            return self.network(features, votes.annotators, outputs.log_h.exp())

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute both cross-entropies of all votes, see `CrowdModel.crowd_loss`."""
        votes, h = Votes.of(batch), outputs.log_h.exp()
        given = votes.given
        said = torch.where(given, votes.annotations, 0)
        log_said = self.matrices(h, votes.annotators).log_softmax(dim=-1)
        reliability = self.reliability(outputs, votes)
        r, num_classes = reliability.sigmoid()[..., None], h.shape[1]
        targets = r * one_hot(said, num_classes) + (1 - r) / num_classes
        agrees = (h.argmax(dim=1, keepdim=True) == said).to(reliability.dtype)
        judged = binary_cross_entropy_with_logits(reliability, agrees, reduction="none")
        lam = cast(CrowdARConfig, self.config).lam
        losses = -lam * (targets * log_said).sum(dim=-1) + (1 - lam) * judged
        weight = given.to(losses.dtype)
        if votes.weights is not None:
            weight = torch.where(given, votes.weights.to(weight), 0.0)
        total = torch.where(given, losses, 0.0) * weight
        return mean_of_given(total.sum(dim=1), weight.sum(dim=1), gather)
