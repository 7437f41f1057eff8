"""Majority vote: the classifier learns the class with most votes on an item (paper, Section 4)."""

from collections.abc import Mapping

from torch import Tensor

from ..model.configuration_maxmig import MaxMIGConfig
from ..model.cross_entropy import TargetModel
from ..model.functional import vote_share
from ..model.votes import Votes, plurality


class MajorityVoteConfig(MaxMIGConfig):
    """Configuration of `MajorityVoteModel`: nothing beyond `MaxMIGConfig`.

    Example:
        >>> MajorityVoteConfig(annotators=["ann", "bob"]).model_type
        'maxmig_majority_vote'
    """

    model_type = "maxmig_majority_vote"
    _auto_class = None


class MajorityVoteModel(TargetModel):
    """Train on the plurality of votes: t_ic is 1 for the class with most votes; ties share it.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.

    References:
        "Majority Vote" of Cao, Xu, Kong, Wang, "Max-MIG: an Information Theoretic Approach for
        Joint Learning from Crowds", ICLR 2019, Section 4. The paper does not say how ties are broken;
        here tied classes get equal probabilities, so that no class is preferred for its number.

    Relations:
        `soft_vote` keeps the share of the minority; `aggregated` weighs the annotators.

    Example:
        >>> import torch
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = MajorityVoteModel.from_classifier(head, num_annotators=3)
        >>> who, said = torch.tensor([[0, 1, 2], [0, 1, -1]]), torch.tensor([[1, 1, 0], [1, 0, -1]])
        >>> model.targets({"annotators": who, "annotations": said})
        tensor([[0.0000, 1.0000],
                [0.5000, 0.5000]])
    """

    config_class = MajorityVoteConfig
    method = "Majority vote"
    reference = "the class with most votes on an item"

    def targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return (B, C): one for the class with most votes, divided equally among tied classes."""
        votes = Votes.of(batch)
        return plurality(vote_share(votes.known, self.config.num_labels, votes.weights))
