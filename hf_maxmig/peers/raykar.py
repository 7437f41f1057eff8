"""Raykar et al.: EM over the annotators' confusion matrices and a logistic regression.

V. C. Raykar, S. Yu, L. H. Zhao, G. H. Valadez, C. Florin, L. Bogoni, L. Moy. Learning From Crowds.
Journal of Machine Learning Research 11, 2010. This is the maximum-likelihood method of which Appendix E
of the Max-MIG paper shows that it fails on correlated mistakes.
"""

from transformers import PreTrainedModel

from ..model.configuration_maxmig import MaxMIGConfig
from .aggnet import AggNetConfig, AggNetModel
from .output_layer import output_layer


class RaykarConfig(AggNetConfig):
    """Configuration of `RaykarModel`: nothing beyond `AggNetConfig`.

    Example:
        >>> RaykarConfig(annotators=["ann", "bob"]).model_type
        'maxmig_raykar'
    """

    model_type = "maxmig_raykar"


class RaykarModel(AggNetModel):
    """AggNet's EM with a logistic regression: only the classifier's output layer is trained.

    All other layers are frozen and stay in evaluation mode. Pass a pretrained classifier, whose
    features are the regression's input, or a single linear layer.

    Args:
        config: the model's configuration; `smoothing` replaces the Beta priors of the original.
        classifier: h, if already built; see `from_classifier`.

    Raises:
        TypeError: if the classifier does not end in a linear layer.

    References:
        V. C. Raykar et al. Learning From Crowds. Journal of Machine Learning Research 11, 2010;
        for more than two classes its Section 4. The M-step for the regression is the optimizer's,
        not Newton's.

    Relations:
        `aggnet` trains the whole network and is otherwise the same.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=2))
        >>> model = RaykarModel.from_classifier(head, num_annotators=3)
        >>> [name for name, p in model.named_parameters() if p.requires_grad]
        ['classifier.output.weight', 'classifier.output.bias']
    """

    config_class = RaykarConfig
    method = "Raykar et al."
    reference = (
        "Raykar, Yu, Zhao, Valadez, Florin, Bogoni, Moy. Learning From Crowds. Journal of Machine "
        "Learning Research 11, 2010."
    )

    def __init__(self, config: MaxMIGConfig, classifier: PreTrainedModel | None = None) -> None:
        super().__init__(config, classifier)
        self.train(self.training)

    def train(self, mode: bool = True) -> "RaykarModel":
        """Switch mode; frozen layers stay frozen, also when `from_pretrained` calls `eval()`."""
        super().train(mode)
        self.classifier.requires_grad_(False).eval()
        output_layer(self.classifier, self.config.num_labels).requires_grad_(True)
        return self
