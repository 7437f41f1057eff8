"""Crowd Layer: one matrix per annotator behind the classifier, all trained together.

F. Rodrigues, F. C. Pereira. Deep Learning from Crowds. AAAI 2018. This is the variant "MW" of that paper
(a full matrix per annotator), which the Max-MIG paper compares with (Section 4).
"""

from collections.abc import Mapping
from typing import cast

from torch import Tensor

from ..model.cross_entropy import against_annotations
from ..model.functional import widen
from ..model.outputs import Gather, MaxMIGOutput
from ..model.votes import Votes
from .annotator_matrices import MatricesConfig, MatricesModel


class CrowdLayerConfig(MatricesConfig):
    """Configuration of `CrowdLayerModel`.

    Args:
        start: how the matrices start: `"authors"`, at the identity, as Rodrigues & Pereira do, or
            `"vote_share"`, equation 2 of the Max-MIG paper, which it uses on CIFAR-10 because the
            identity fails there (Appendix B.2).

    Raises:
        ValueError: if `start` is neither.

    Example:
        >>> CrowdLayerConfig(annotators=["ann", "bob"]).start
        'authors'
    """

    model_type = "maxmig_crowd_layer"
    _auto_class = None


class CrowdLayerModel(MatricesModel):
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
        >>> import torch
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = CrowdLayerModel.from_classifier(head, num_annotators=3, start="vote_share")
        >>> who, said = torch.tensor([[0, 1], [0, 2]]), torch.tensor([[1, 1], [0, 0]])
        >>> model.initialize_crowd([(who, said)], smoothing=1.0)
        >>> model.matrices.table[0].T.softmax(dim=1).detach()  # one vote per class, both right
        tensor([[0.6667, 0.3333],
                [0.3333, 0.6667]])
    """

    config_class = CrowdLayerConfig
    method = "Crowd Layer"
    reference = "Rodrigues, Pereira. Deep Learning from Crowds. AAAI 2018."

    def crowd_loss(
        self,
        outputs: MaxMIGOutput,
        batch: Mapping[str, Tensor],
        gather: Gather = lambda tensor: tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute the cross-entropy of all votes, see `CrowdModel.crowd_loss`."""
        h, votes = widen(cast(Tensor, outputs.logits)).softmax(dim=-1), Votes.of(batch)
        log_said = self.matrices(h, votes.annotators).log_softmax(dim=-1)
        return against_annotations(log_said, votes, gather)
