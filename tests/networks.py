"""Small networks of each kind, alone and in a model, and a model that is saved and loaded."""

import timm
import torch
from transformers import (
    AutoModel,
    BertConfig,
    BertForSequenceClassification,
    ResNetConfig,
    ResNetForImageClassification,
    TimmWrapperConfig,
    TimmWrapperForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from hf_maxmig import (
    VGG16,
    FourLayerCNN,
    FourLayerCNNConfig,
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    TableClassifier,
    TableConfig,
    VGG16Config,
)
from tests.worlds import ANNOTATORS, CLASSES


def small_head(classes=CLASSES, seed=0, dropout=0.0, hidden_size=16):
    """Return a head for the features of `make_crowd`; `classes` are their names, or how many there are."""
    torch.manual_seed(seed)
    fields = {"num_labels": classes} if isinstance(classes, int) else {"id2label": dict(enumerate(classes))}  # fmt: skip
    config = HeadConfig(input_size=5, hidden_size=hidden_size, dropout=dropout, **fields)
    return HeadClassifier(config)


def table_classifier(processor):
    """Return a classifier of three classes for the features of a table processor."""
    torch.manual_seed(0)
    return TableClassifier(TableConfig(input_size=processor.size, num_labels=3))


def small_vit(num_labels=3):
    """Return a transformers network for pictures of 16 x 16."""
    config = ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=16,
        patch_size=8, num_labels=num_labels,
    )  # fmt: skip
    return ViTForImageClassification(config)


def small_timm(num_labels=3):
    """Return a timm network for pictures of 16 x 16."""
    settings = {
        "input_size": [3, 16, 16], "crop_pct": 1.0, "crop_mode": "center", "interpolation": "bicubic",
        "mean": [0.5] * 3, "std": [0.5] * 3,
    }  # fmt: skip
    config = TimmWrapperConfig(
        architecture="test_resnet", num_labels=num_labels, pretrained_cfg=settings
    )
    return TimmWrapperForImageClassification(config)


def resnet():
    return ResNetForImageClassification(
        ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", num_labels=5
        )
    )


def timm_model():
    return timm.create_model("test_resnet", num_classes=5)


def head_on_pictures():
    return HeadClassifier(HeadConfig(input_size=3 * 32 * 32, num_labels=5))


def head_on_backbone():
    encoder = AutoModel.from_config(resnet().config)
    return HeadClassifier.from_encoder(encoder, input_size=12, num_labels=5)


def cnn():
    return FourLayerCNN(FourLayerCNNConfig(image_size=32, num_labels=5))


def vgg():
    return VGG16(VGG16Config(num_labels=5))


def draw_crowd(model):
    """Draw W and a prior of three classes."""
    with torch.no_grad():
        model.aggregator.table.normal_(generator=torch.Generator().manual_seed(1))
        model.prior.logits.copy_(torch.tensor([0.3, -0.5, 0.1]))
    return model


def text_pair():
    """Return a model around a text classifier."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9, num_labels=3,
        max_position_embeddings=12,
    )  # fmt: skip
    names = dict(enumerate(CLASSES))
    model = MaxMIGModel.from_classifier(
        BertForSequenceClassification(config), annotators=ANNOTATORS, id2label=names
    )
    return draw_crowd(model).eval()


def come_back(classifier, folder):
    """Wrap, save and load; the loaded classifier must have the same class, and the same layers frozen."""
    model = MaxMIGModel.from_classifier(classifier, num_annotators=3).eval()
    model.save_pretrained(folder)
    again = AutoModel.from_pretrained(folder).eval()
    assert type(again.classifier) is type(model.classifier)
    assert again.classifier.dtype == model.classifier.dtype
    for (name, old), (other, new) in zip(
        model.named_parameters(), again.named_parameters(), strict=True
    ):
        assert (name, old.requires_grad) == (other, new.requires_grad)
    return model, again
