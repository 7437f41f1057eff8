"""Learn from many people's labels of the same data when nobody knows the truth: Max-MIG for Hugging Face.

Importing this registers the models with the Auto classes of transformers. What needs `Trainer` or `datasets`, slow to
import, is loaded when first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoModel

from .aggregator import ClassPrior, WeightedAverageAggregator
from .classifiers import (
    CLASSIFIERS,
    FourLayerCNN,
    FourLayerCNNConfig,
    HeadClassifier,
    HeadConfig,
    VGG16,
    VGG16Config,
)
from .configuration_maxmig import MaxMIGConfig
from .functional import aggregate, confusion, forecast, mutual_information_gain, vote_share
from .modeling_maxmig import AUTO_CLASSES, MaxMIGModel, MaxMIGOutput

if TYPE_CHECKING:
    from .data.collator import CrowdCollator
    from .data.columns import add_annotations, align_annotators, crowd_features
    from .data.experts import Experts, experts
    from .data.simulation import simulate_crowd
    from .data.sources import labelme
    from .trainer import CrowdTrainer, MaxMIGTrainer
    from .training_args import MaxMIGTrainingArguments

__version__ = "0.1.0"

_LAZY = {
    "CrowdCollator": ".data.collator",
    "CrowdTrainer": ".trainer",
    "Experts": ".data.experts",
    "MaxMIGTrainer": ".trainer",
    "MaxMIGTrainingArguments": ".training_args",
    "add_annotations": ".data.columns",
    "align_annotators": ".data.columns",
    "crowd_features": ".data.columns",
    "experts": ".data.experts",
    "labelme": ".data.sources",
    "simulate_crowd": ".data.simulation",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


for _model_class in (MaxMIGModel, *(model for _, model in CLASSIFIERS.values())):
    AutoConfig.register(
        _model_class.config_class.model_type, _model_class.config_class, exist_ok=True
    )
    _model_class.config_class.register_for_auto_class()
    for _auto_class in (
        AUTO_CLASSES.values()
        if _model_class is MaxMIGModel
        else [AUTO_CLASSES["image-classification"]]
    ):
        _auto_class.register(_model_class.config_class, _model_class, exist_ok=True)
AutoModel.register(MaxMIGConfig, MaxMIGModel, exist_ok=True)
MaxMIGModel.register_for_auto_class("AutoModel")

__all__ = [
    "ClassPrior",
    "CrowdCollator",
    "CrowdTrainer",
    "Experts",
    "FourLayerCNN",
    "FourLayerCNNConfig",
    "HeadClassifier",
    "HeadConfig",
    "MaxMIGConfig",
    "MaxMIGModel",
    "MaxMIGOutput",
    "MaxMIGTrainer",
    "MaxMIGTrainingArguments",
    "VGG16",
    "VGG16Config",
    "WeightedAverageAggregator",
    "add_annotations",
    "aggregate",
    "align_annotators",
    "confusion",
    "crowd_features",
    "experts",
    "forecast",
    "labelme",
    "mutual_information_gain",
    "simulate_crowd",
    "vote_share",
]
