"""Soft vote: the classifier learns the share of each class among an item's votes.

It is the simplest method that keeps the crowd's uncertainty. It is not in the paper's comparison; its
vote share is the Q of Appendix B.2.
"""

from collections.abc import Mapping

from torch import Tensor

from ..model.configuration_maxmig import MaxMIGConfig
from ..model.cross_entropy import TargetModel
from ..model.functional import vote_share
from ..model.votes import Votes


class SoftVoteConfig(MaxMIGConfig):
    """Configuration of `SoftVoteModel`: nothing beyond `MaxMIGConfig`.

    Example:
        >>> SoftVoteConfig(annotators=["ann", "bob"]).model_type
        'maxmig_soft_vote'
    """

    model_type = "maxmig_soft_vote"
    _auto_class = None


class SoftVoteModel(TargetModel):
    """Train on the vote share: t_ic = share of c among the votes on item i.

    An item counts once, however many votes it has. It does not matter who gave a vote.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.

    References:
        The vote share is Q of Cao, Xu, Kong, Wang, "Max-MIG: an Information Theoretic Approach for
        Joint Learning from Crowds", ICLR 2019, Appendix B.2.

    Relations:
        `majority_vote` rounds the share to its largest class; `doctor_net` keeps the annotators
        apart; `aggregated` weighs them.

    Example:
        >>> import torch
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = SoftVoteModel.from_classifier(head, num_annotators=3)
        >>> who, said = torch.tensor([[0, 1, 2]]), torch.tensor([[1, 1, 0]])
        >>> model.targets({"annotators": who, "annotations": said})
        tensor([[0.3333, 0.6667]])
    """

    config_class = SoftVoteConfig
    method = "Soft vote"
    reference = "the share of each class among an item's votes"

    def targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the (B, C) vote share."""
        votes = Votes.of(batch)
        return vote_share(votes.known, self.config.num_labels, votes.weights)
