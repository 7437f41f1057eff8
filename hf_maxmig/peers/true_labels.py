"""True labels: the ceiling, which the same classifier reaches if the truth is known.

It is the only method of the package that always trains on gold labels. For Max-MIG a user may hand some
over (`gold.py`).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..model.configuration_maxmig import MaxMIGConfig
from ..model.cross_entropy import TargetModel


class TrueLabelsConfig(MaxMIGConfig):
    """Configuration of `TrueLabelsModel`: nothing beyond `MaxMIGConfig`.

    Example:
        >>> TrueLabelsConfig(annotators=["ann", "bob"]).model_type
        'maxmig_true_labels'
    """

    model_type = "maxmig_true_labels"
    _auto_class = None


class TrueLabelsModel(TargetModel):
    """Train on gold labels: t_ic is 1 for the true class. It is the ceiling of all crowd methods.

    Items without a gold label (-1 or -100) take no part.

    Args:
        config: the model's configuration.
        classifier: h, if already built; see `from_classifier`.

    References:
        The usual cross-entropy. Optimizer, schedule, batches and evaluation are those of the crowd
        methods.

    Relations:
        Every other method is trained without `labels`; its distance from this one is the price of
        learning from a crowd.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = TrueLabelsModel.from_classifier(head, num_annotators=3)
        >>> model.targets({"labels": torch.tensor([1, -100])})
        tensor([[0., 1.],
                [0., 0.]])
    """

    config_class = TrueLabelsConfig
    method = "True labels"
    reference = "no crowd method: trained on gold labels"
    learns_from_gold_labels = True

    def targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the (B, C) gold labels, one-hot.

        Raises:
            ValueError: if the batch has none.
        """
        if "labels" not in batch:
            raise ValueError(
                f"a training batch must have `labels`, got {', '.join(batch) or 'nothing'}: "
                "`true_labels` learns from gold labels only."
            )
        classes = torch.arange(self.config.num_labels, device=batch["labels"].device)
        return (batch["labels"][:, None] == classes).float()
