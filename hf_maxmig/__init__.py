"""Max-MIG for Hugging Face: learn from many people's labels when nobody knows the truth.

Importing this registers the models with the Auto classes of transformers. What needs `Trainer` or
`datasets`, slow to import, is loaded when first asked for.
"""

from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoFeatureExtractor, AutoModel
from transformers.pipelines import PIPELINE_REGISTRY

from .model.aggregators import ClassPrior, WeightedAverageAggregator
from .model.asking import (
    Questions,
    choose_questions,
    expected_accuracy,
    expected_information,
)
from .model.classifiers import CLASSIFIERS, VGG16, FourLayerCNN, FourLayerCNNConfig, VGG16Config
from .model.configuration_maxmig import MaxMIGConfig
from .model.functional import aggregate, confusion, forecast, mutual_information_gain, vote_share
from .model.heads import (
    AudioHeadClassifier,
    AudioHeadConfig,
    HeadClassifier,
    HeadConfig,
    TableClassifier,
    TableConfig,
    TextHeadClassifier,
    TextHeadConfig,
)
from .model.modeling_maxmig import CrowdModel, MaxMIGModel
from .model.outputs import MaxMIGOutput
from .model.table_processor import TableProcessor
from .model.version import __version__ as __version__
from .model.wrapping import AUTO_CLASSES
from .peers import peer

if TYPE_CHECKING:
    from .data.collator import CrowdCollator
    from .data.columns import (
        add_annotations,
        align_annotators,
        crowd_features,
        hash_annotators,
    )
    from .data.describe import Description, describe
    from .data.features import frozen_features
    from .data.named.pictures import cifar10, dogs_vs_cats, luna16
    from .data.named.sources import labelme
    from .data.readers.read_annotations import read_annotations
    from .data.readers.weights import soft_votes
    from .data.simulated.experts import Experts, experts
    from .data.simulated.simulation import simulate_crowd
    from .data.tables import fitted_table_processor
    from .data.thinning import thin_votes
    from .judging.annotators import AnnotatorReport, judge_annotators
    from .judging.report import write_report
    from .sharing.export import export_onnx, save_classifier
    from .sharing.questions import write_questions
    from .training.maxmig_trainer import MaxMIGTrainer
    from .training.trainer import CrowdTrainer
    from .training.training_args import MaxMIGTrainingArguments

_LAZY = {
    "AnnotatorReport": ".judging.annotators",
    "CrowdCollator": ".data.collator",
    "CrowdTrainer": ".training.trainer",
    "Description": ".data.describe",
    "Experts": ".data.simulated.experts",
    "MaxMIGTrainer": ".training.maxmig_trainer",
    "MaxMIGTrainingArguments": ".training.training_args",
    "add_annotations": ".data.columns",
    "align_annotators": ".data.columns",
    "cifar10": ".data.named.pictures",
    "crowd_features": ".data.columns",
    "describe": ".data.describe",
    "dogs_vs_cats": ".data.named.pictures",
    "experts": ".data.simulated.experts",
    "export_onnx": ".sharing.export",
    "fitted_table_processor": ".data.tables",
    "frozen_features": ".data.features",
    "hash_annotators": ".data.columns",
    "judge_annotators": ".judging.annotators",
    "labelme": ".data.named.sources",
    "luna16": ".data.named.pictures",
    "read_annotations": ".data.readers.read_annotations",
    "save_classifier": ".sharing.export",
    "soft_votes": ".data.readers.weights",
    "simulate_crowd": ".data.simulated.simulation",
    "thin_votes": ".data.thinning",
    "write_questions": ".sharing.questions",
    "write_report": ".judging.report",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_PAIRS: list[tuple[Any, Any]] = [*CLASSIFIERS.values(), (MaxMIGConfig, MaxMIGModel)]
for _config_class, _model_class in _PAIRS:
    AutoConfig.register(_config_class.model_type, _config_class, exist_ok=True)
    _tasks = [_model_class.task] if _config_class is not MaxMIGConfig else AUTO_CLASSES
    for _task in _tasks:
        AUTO_CLASSES[_task].register(_config_class, _model_class, exist_ok=True)
    _config_class.register_for_auto_class()
MaxMIGModel.register_for_auto_class("AutoModel")
AutoFeatureExtractor.register(TableConfig, TableProcessor, exist_ok=True)
TableProcessor.register_for_auto_class("AutoFeatureExtractor")


def _pushed_with_card(model: CrowdModel, annotators: str) -> AbstractContextManager[None]:
    return import_module(".sharing.model_card", __name__).pushed_with_card(model, annotators)


CrowdModel.pushed_with_card = _pushed_with_card
# By its path: the pipeline is imported when first asked for.
PIPELINE_REGISTRY.supported_tasks["crowd-forecast"] = {
    "impl": f"{__name__}.model.pipelines.ForecastPipeline",
    "pt": (AutoModel,),
    "type": "multimodal",
}

__all__ = [
    "VGG16",
    "AnnotatorReport",
    "AudioHeadClassifier",
    "AudioHeadConfig",
    "ClassPrior",
    "CrowdCollator",
    "CrowdModel",
    "CrowdTrainer",
    "Description",
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
    "Questions",
    "TableClassifier",
    "TableConfig",
    "TableProcessor",
    "TextHeadClassifier",
    "TextHeadConfig",
    "VGG16Config",
    "WeightedAverageAggregator",
    "add_annotations",
    "aggregate",
    "align_annotators",
    "choose_questions",
    "cifar10",
    "confusion",
    "crowd_features",
    "describe",
    "dogs_vs_cats",
    "expected_accuracy",
    "expected_information",
    "experts",
    "export_onnx",
    "fitted_table_processor",
    "forecast",
    "frozen_features",
    "hash_annotators",
    "judge_annotators",
    "labelme",
    "luna16",
    "mutual_information_gain",
    "peer",
    "read_annotations",
    "save_classifier",
    "simulate_crowd",
    "soft_votes",
    "thin_votes",
    "vote_share",
    "write_questions",
    "write_report",
]
