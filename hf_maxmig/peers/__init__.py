"""The rivals: every method of the paper's comparison, and more, as crowd models.

`CrowdTrainer` trains each of them like Max-MIG; they are saved, loaded and pushed in the same way. Each
method has one file, and one row of `PEERS` here. Importing this registers them with the Auto classes.
"""

from typing import Any

from torch import nn
from transformers import AutoConfig

from ..model.modeling_maxmig import CrowdModel
from ..model.wrapping import AUTO_CLASSES
from .aggnet import AggNetConfig, AggNetModel
from .aggregated import ALGORITHMS, AggregatedConfig, AggregatedModel
from .annot_mix import AnnotMixConfig, AnnotMixModel
from .coin_net import CoinNetConfig, CoinNetModel
from .conal import CoNALConfig, CoNALModel
from .confusion import ConfusionConfig, ConfusionModel
from .crowd_ar import CrowdARConfig, CrowdARModel
from .crowd_layer import CrowdLayerConfig, CrowdLayerModel
from .crowdlab import CrowdlabConfig, CrowdlabModel
from .doctor_net import DoctorNetConfig, DoctorNetModel
from .madl import MaDLConfig, MaDLModel
from .majority_vote import MajorityVoteConfig, MajorityVoteModel
from .mbem import MBEMConfig, MBEMModel
from .raykar import RaykarConfig, RaykarModel
from .soft_vote import SoftVoteConfig, SoftVoteModel
from .true_labels import TrueLabelsConfig, TrueLabelsModel
from .union_net import UnionNetConfig, UnionNetModel
from .waum import waum_filter, waum_scores

PEERS: dict[str, tuple[type[CrowdModel], dict[str, Any]]] = {
    # name: the model, and the fields of its config that make it this method
    "majority_vote": (MajorityVoteModel, {}),
    "soft_vote": (SoftVoteModel, {}),
    "crowd_layer": (CrowdLayerModel, {}),
    "crowd_layer_vote_share": (CrowdLayerModel, {"start": "vote_share"}),
    "doctor_net": (DoctorNetModel, {}),
    "doctor_net_weighted": (DoctorNetModel, {"average": "learned"}),
    "spee_lfc": (ConfusionModel, {"regulariser": "none"}),
    "trace": (ConfusionModel, {"regulariser": "trace"}),
    "geo_f": (ConfusionModel, {"regulariser": "geo_f"}),
    "geo_w": (ConfusionModel, {"regulariser": "geo_w"}),
    "coin_net": (CoinNetModel, {}),
    "union_net": (UnionNetModel, {}),
    "union_net_b": (UnionNetModel, {"normalised": "columns"}),
    "conal": (CoNALModel, {}),
    "crowd_ar": (CrowdARModel, {}),
    "annot_mix": (AnnotMixModel, {}),
    "madl": (MaDLModel, {}),
    "aggnet": (AggNetModel, {}),
    "mbem": (MBEMModel, {}),
    "raykar": (RaykarModel, {}),
    **{name: (AggregatedModel, {"algorithm": name}) for name in ALGORITHMS},
    "crowdlab": (CrowdlabModel, {}),
    "true_labels": (TrueLabelsModel, {}),
}


def peer(
    name: str,
    classifier: nn.Module,
    num_annotators: int | None = None,
    *,
    annotators: list[str] | None = None,
    **config_fields: Any,
) -> CrowdModel:
    """Make a crowd model from a classifier, by the name of a rival.

    Args:
        name: a row of `PEERS`.
        classifier: any classifier of transformers, or a timm model; its weights are kept.
        num_annotators: M, if the annotators have no names.
        annotators: M names.
        **config_fields: further fields of the method's config, see its class.

    Returns:
        The model, for `CrowdTrainer`.

    Raises:
        ValueError: if the name is unknown; otherwise as `CrowdModel.from_classifier`.

    Example:
        >>> from hf_maxmig import HeadClassifier, HeadConfig
        >>> head = HeadClassifier(HeadConfig(input_size=5, num_labels=3))
        >>> type(peer("aggnet", head, annotators=["ann", "bob"])).__name__
        'AggNetModel'
    """
    if name not in PEERS:
        raise ValueError(f"`name` must be one of {', '.join(PEERS)}, got {name!r}.")
    model_class, fields = PEERS[name]
    return model_class.from_classifier(
        classifier, num_annotators, annotators=annotators, **{**fields, **config_fields}
    )


for _model_class in dict.fromkeys(model_class for model_class, _ in PEERS.values()):
    _config_class: Any = _model_class.config_class
    AutoConfig.register(_config_class.model_type, _config_class, exist_ok=True)
    for _auto_class in AUTO_CLASSES.values():
        _auto_class.register(_config_class, _model_class, exist_ok=True)

__all__ = [
    "PEERS",
    "AggNetConfig",
    "AggNetModel",
    "AggregatedConfig",
    "AggregatedModel",
    "AnnotMixConfig",
    "AnnotMixModel",
    "CoNALConfig",
    "CoNALModel",
    "CoinNetConfig",
    "CoinNetModel",
    "ConfusionConfig",
    "ConfusionModel",
    "CrowdARConfig",
    "CrowdARModel",
    "CrowdLayerConfig",
    "CrowdLayerModel",
    "CrowdlabConfig",
    "CrowdlabModel",
    "DoctorNetConfig",
    "DoctorNetModel",
    "MBEMConfig",
    "MBEMModel",
    "MaDLConfig",
    "MaDLModel",
    "MajorityVoteConfig",
    "MajorityVoteModel",
    "RaykarConfig",
    "RaykarModel",
    "SoftVoteConfig",
    "SoftVoteModel",
    "TrueLabelsConfig",
    "TrueLabelsModel",
    "UnionNetConfig",
    "UnionNetModel",
    "peer",
    "waum_filter",
    "waum_scores",
]
