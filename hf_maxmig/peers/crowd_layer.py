"""Crowd Layer: one matrix per annotator behind the classifier, all trained together.

F. Rodrigues, F. C. Pereira. Deep Learning from Crowds. AAAI 2018. This is the variant "MW" of that paper
(a full matrix per annotator), which the Max-MIG paper compares with (Section 4).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ..model.configuration_maxmig import MaxMIGConfig
from ..model.cross_entropy import against_annotations
from ..model.functional import widen
from ..model.modeling_maxmig import CrowdModel
from ..model.outputs import Gather, MaxMIGOutput
from ..model.votes import Votes
from .annotator_matrices import AnnotatorMatrices

STARTS = ("identity", "vote_share")


class CrowdLayerConfig(MaxMIGConfig):
    """Configuration of `CrowdLayerModel`.

    Args:
        start: how the matrices start: `"identity"`, as Rodrigues & Pereira do, or `"vote_share"`,
            equation 2 of the Max-MIG paper, which it uses on CIFAR-10 because the identity fails
            there (Appendix B.2).

    Raises:
        ValueError: if `start` is neither.

    Example:
        >>> CrowdLayerConfig(annotators=["ann", "bob"]).start
        'identity'
    """

    model_type = "maxmig_crowd_layer"
    _auto_class = None
    start: str = "identity"

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.start not in STARTS:
            raise ValueError(f"`start` must be one of {', '.join(STARTS)}, got {self.start!r}.")


class CrowdLayerModel(CrowdModel):
    """Fit each annotator's votes with their own matrix on top of the classifier.

    Loss: mean over all votes of -log softmax(W^m h(x_i))_{y_i^m}, with h(x) the probabilities of
    the classifier, as in the authors' network, whose crowd layer follows the softmax. Matrices and
    classifier are trained together; missing votes have no gradient. The cost of a step grows with the
    number of votes, not of annotators.

    Args:
        config: the model's configuration; `start` says how the matrices start.
        classifier: h, if already built; see `from_classifier`.

    References:
        F. Rodrigues, F. C. Pereira. Deep Learning from Crowds. AAAI 2018, variant "MW". The Max-MIG
        paper's remark on the start is in its Appendix B.2.

    Relations:
        `aggnet` has matrices too, but of probabilities, estimated in closed form. With
        `start="vote_share"` both start the same: softmax(W^m e_c) is the annotator's confusion row c.
        `spee_lfc` reads the matrices as confusion matrices: softmax(W^m h(x)) here is no mixture of
        the rows of one. `doctor_net` gives each annotator a head on the features instead. There is
        no g: the layer predicts the annotators' votes, not the class of an item.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = CrowdLayerModel.from_classifier(head, num_annotators=3, start="vote_share")
        >>> who, said = torch.tensor([[0, 1], [0, 2]]), torch.tensor([[1, 1], [0, 0]])
        >>> model.initialize_crowd([(who, said)], smoothing=1.0)
        >>> model.crowd_layer.table[0].T.softmax(dim=1).detach()  # one vote per class, both right
        tensor([[0.6667, 0.3333],
                [0.3333, 0.6667]])
    """

    config_class = CrowdLayerConfig
    method = "Crowd Layer"
    reference = "Rodrigues, Pereira. Deep Learning from Crowds. AAAI 2018."
    _keep_in_fp32_modules_strict = ["crowd_layer"]

    def build_crowd(self, config: MaxMIGConfig) -> None:
        """Build the matrices."""
        self.crowd_layer = AnnotatorMatrices(cast(int, config.num_annotators), config.num_labels)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, AnnotatorMatrices):
            init.copy_(module.table, torch.eye(self.config.num_labels).expand_as(module.table))

    def crowd_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the matrices."""
        yield from (p for p in self.crowd_layer.parameters() if p.requires_grad)

    @torch.no_grad()
    def initialize_crowd(
        self,
        batches: Iterable[Votes],
        smoothing: float = 0.01,
        voted: Tensor | None = None,
    ) -> None:
        """Initialise the matrices as the config says."""
        table = self.crowd_layer.table
        if self.config.start == "identity":
            table.copy_(torch.eye(self.config.num_labels).expand_as(table))
            return
        self.crowd_layer.start_from_votes(batches, smoothing)

    def confusion(self) -> Tensor:
        """Return (M, C, C): what each annotator says where the classifier is sure of a class."""
        return self.crowd_layer.where_sure()

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute the cross-entropy of all votes, see `CrowdModel.crowd_loss`."""
        h, votes = widen(cast(Tensor, outputs.logits)).softmax(dim=-1), Votes.of(batch)
        log_said = self.crowd_layer(h, votes.annotators).log_softmax(dim=-1)
        return against_annotations(log_said, votes, gather)
