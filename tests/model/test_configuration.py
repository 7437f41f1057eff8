"""MaxMIGConfig: what it fills in, what it refuses, and what survives a save."""

import pytest
from transformers import AutoConfig, ResNetConfig, TimmWrapperConfig, ViTConfig

from hf_maxmig import FourLayerCNNConfig, HeadConfig, MaxMIGConfig, VGG16Config

CLASSIFIERS = [
    ResNetConfig(num_labels=3),
    ViTConfig(num_labels=3),
    TimmWrapperConfig(architecture="resnet18", num_labels=3),
    HeadConfig(input_size=7, num_labels=3),
    HeadConfig(
        input_size=7, num_labels=3, encoder_config=ResNetConfig(hidden_sizes=[4], depths=[1])
    ),
    FourLayerCNNConfig(num_labels=3, image_size=16),
    VGG16Config(num_labels=3),
]


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda c: c.model_type)
def test_config_survives_the_disk(classifier, tmp_path):
    """A timm sub-config would come back with two classes, and our own config types are in no table of transformers."""
    config = MaxMIGConfig(
        classifier_config=classifier,
        annotators=["ann", "bob"],
        id2label={0: "cat", 1: "dog", 2: "emu"},
        divergence="pearson",
        prior=[2, 1, 1],
        aggregator="factored",
    )
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert type(again) is MaxMIGConfig
    assert (again.annotators, again.num_annotators) == (["ann", "bob"], 2)
    assert again.class_names == ["cat", "dog", "emu"]
    assert (again.divergence, again.prior) == ("pearson", [0.5, 0.25, 0.25])
    assert again.aggregator == "factored"
    assert type(again.classifier_config) is type(classifier)
    assert again.classifier_config.id2label == {0: "cat", 1: "dog", 2: "emu"}
    assert again.classifier_config.label2id == {"cat": 0, "dog": 1, "emu": 2}
    assert again.classifier_config.to_dict() == config.classifier_config.to_dict()


def test_config_takes_the_classifiers_names():
    """Names known only to the classifier would be LABEL_0, LABEL_1 on the Hub."""
    config = MaxMIGConfig(
        classifier_config=ResNetConfig(id2label={0: "a", 1: "b", 2: "c"}), num_annotators=4
    )
    assert config.class_names == ["a", "b", "c"]
    assert config.num_labels == 3


def test_config_has_defaults():
    """Transformers builds a config without arguments to find out what differs from the defaults."""
    config = MaxMIGConfig()
    assert (config.num_annotators, config.divergence, config.prior) == (1, "kl", "uniform")


def test_annotators_may_be_numbers_or_unnamed():
    """Ids of a table are often integers."""
    assert MaxMIGConfig(annotators=[7, 3]).annotators == ["7", "3"]
    assert MaxMIGConfig(num_annotators=5).annotators is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"annotators": ["a", "b", "a"]}, "`annotators` must be unique names, got 'a'"),
        ({"annotators": ["a", "b"], "num_annotators": 3}, "number of `annotators` = 2, got 3"),
        ({"num_annotators": 0}, "at least 1, got 0"),
        ({"divergence": "tv"}, "`divergence` must be one of kl, pearson, jensen_shannon, got 'tv'"),
        ({"prior": "flat"}, "`prior` must be one of uniform, vote_share, learned"),
        ({"prior": [0.5, 0.5]}, "C = 3 numbers, one per class, got 2"),
        ({"prior": [1, 1, 0]}, "must be positive"),
        ({"aggregator": "low_rank"}, "`aggregator` must be one of weighted_average, .*'low_rank'"),
    ],
)
def test_config_refuses(fields, message):
    """A wrong config must fail at once, not at the first batch."""
    with pytest.raises(ValueError, match=message):
        MaxMIGConfig(classifier_config=ResNetConfig(num_labels=3), **fields)


def test_many_annotators_are_checked_quickly():
    """A look-up that is quadratic in M would take minutes for a hundred thousand names."""
    names = [f"worker_{m}" for m in range(100_000)]
    assert MaxMIGConfig(annotators=names).num_annotators == 100_000
    with pytest.raises(ValueError, match="got 'worker_0' more than once"):
        MaxMIGConfig(annotators=[*names, "worker_0"])
