"""A wrapped classifier comes back as what it was, or is refused when it is wrapped."""

import pytest
import timm
import torch
from datasets import Dataset
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    BertForSequenceClassification,
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
    PreTrainedConfig,
    PreTrainedModel,
    TimmWrapperConfig,
    TimmWrapperForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGModel, MaxMIGTrainer, crowd_features, peer
from hf_maxmig.model import wrapping
from hf_maxmig.model.wrapping import frozen_layers
from tests.networks import come_back

SMALL = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "image_size": 32,
    "patch_size": 8, "num_labels": 5,
}  # fmt: skip


def vit(**changes):
    torch.manual_seed(0)
    return ViTForImageClassification(ViTConfig(**SMALL, **changes))


def pictures(channels=3, side=32):
    return torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(0))


def check_same_logits(model, again, **inputs):
    with torch.no_grad():
        first, second = model(**inputs).logits, again(**inputs).logits
    assert first.isfinite().all()
    torch.testing.assert_close(second, first, rtol=0, atol=0)


def test_class_that_its_auto_class_does_not_choose_comes_back(tmp_path, memory_of_nan):
    """DeiT with a teacher used to come back without one, with an untrained head."""
    model, again = come_back(DeiTForImageClassificationWithTeacher(DeiTConfig(**SMALL)), tmp_path)
    check_same_logits(model, again, pixel_values=pictures())
    assert model.config.classifier_class == "DeiTForImageClassificationWithTeacher"
    assert MaxMIGModel.from_classifier(vit(), num_annotators=2).config.classifier_class is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("test_resnet", {"global_pool": "max", "in_chans": 1}),
        ("test_resnet", {"output_stride": 8, "drop_rate": 0.3, "drop_path_rate": 0.2, "act_layer": "silu"}),
        pytest.param(
            "test_vit", {"img_size": 64, "global_pool": "avg", "class_token": False, "drop_path_rate": 0.1},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "test_convnext", {"depths": [1, 1, 1, 1], "drop_path_rate": 0.3}, marks=pytest.mark.slow
        ),
    ],
)  # fmt: skip
def test_timm_model_with_arguments_of_its_own_comes_back(name, arguments, tmp_path, memory_of_nan):
    """Rebuilt by name alone it had other logits, or no place for its weights."""
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=5, **arguments)
    network.requires_grad_(False)
    network.get_classifier().requires_grad_(True)
    state = torch.random.get_rng_state()
    model, again = come_back(network, tmp_path)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.classifier.timm_model is network
    assert model.config.classifier_config.model_args == arguments
    check_same_logits(
        model, again, pixel_values=pictures(arguments.get("in_chans", 3), arguments.get("img_size", 96))
    )  # fmt: skip
    layers = [m for m in again.modules() if type(m).__name__ == "DropPath"]
    rates = [m.drop_prob for m in network.modules() if type(m).__name__ == "DropPath"]
    assert [layer.drop_prob for layer in layers] == rates


@pytest.mark.parametrize("change", ["layer", "rate"])
def test_timm_model_that_was_changed_by_hand_is_refused(change):
    """No argument of timm describes the change, so the model would come back without it."""
    network = timm.create_model("test_resnet", num_classes=5)
    if change == "layer":
        network.fc = nn.Sequential(nn.Linear(96, 8), nn.ReLU(), nn.Linear(8, 5))
    else:
        network.layer1[0].bn1.eps = 0.1
    with pytest.raises(ValueError, match="test_resnet which would come back as another model"):
        MaxMIGModel.from_classifier(network, num_annotators=3)


def test_timm_model_without_a_head_is_refused():
    """Its features would be taken for logits."""
    with pytest.raises(TypeError, match="must have a head, got timm's test_resnet"):
        MaxMIGModel.from_classifier(timm.create_model("test_resnet", num_classes=0), 3)


def test_remedy_for_a_timm_model_works(tmp_path):
    """The remedy that the refusal names must work."""
    network = timm.create_model("test_resnet", num_classes=5, stem_width=16)
    config = TimmWrapperConfig(
        architecture="test_resnet", num_labels=5, model_args={"stem_width": 16}
    )
    wrapper = TimmWrapperForImageClassification(config)
    wrapper.timm_model.load_state_dict(network.state_dict())
    model, again = come_back(wrapper, tmp_path)
    check_same_logits(model, again, pixel_values=pictures())


@pytest.mark.parametrize("kind", ["timm", "transformers"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_type_of_the_weights_comes_back(kind, dtype, tmp_path):
    """Rebuilt in float32, a model takes twice the memory and other inputs."""
    network = timm.create_model("test_vit", num_classes=5) if kind == "timm" else vit()
    model, again = come_back(network.to(dtype), tmp_path)
    assert again.classifier.dtype == dtype
    assert again.aggregator.table.dtype == torch.float32
    check_same_logits(model, again, pixel_values=pictures(side=160 if kind == "timm" else 32))


def test_weights_of_two_types_are_refused():
    """They would all come back as one type: a float32 head rounded to bfloat16."""
    classifier = vit()
    classifier.vit.to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"one type, got bfloat16 and float32.*classifier\.float"):
        MaxMIGModel.from_classifier(classifier, num_annotators=3)
    assert MaxMIGModel.from_classifier(classifier.float(), num_annotators=3).dtype == torch.float32


@pytest.mark.parametrize("method", ["max_mig", "aggnet", "crowd_layer"])
def test_what_is_frozen_stays_so_over_saves(method, tmp_path):
    """A frozen backbone that was saved and loaded used to be trained with the rest."""
    classifier = vit()
    classifier.vit.embeddings.requires_grad_(False)
    classifier.vit.layernorm.bias.requires_grad_(False)
    model = (
        MaxMIGModel.from_classifier(classifier, num_annotators=3)
        if method == "max_mig"
        else peer(method, classifier, num_annotators=3)
    )
    for folder in (tmp_path / "first", tmp_path / "second"):
        model.save_pretrained(folder)
        model = AutoModel.from_pretrained(folder)
        assert frozen_layers(model.classifier) == ["vit.embeddings", "vit.layernorm.bias"]
        assert model.config.frozen == ["vit.embeddings", "vit.layernorm.bias"]
    model.classifier.requires_grad_(True)
    model.save_pretrained(tmp_path)
    assert frozen_layers(AutoModel.from_pretrained(tmp_path).classifier) == []


def test_layer_that_its_config_does_not_say_is_refused():
    """A custom head used to come back as the standard one, with random weights."""
    classifier = vit()
    classifier.classifier = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 5))
    with pytest.raises(ValueError, match="come back as another model .*classifier: class 'Sequ"):
        MaxMIGModel.from_classifier(classifier, num_annotators=3)
    dropout = HeadClassifier(HeadConfig(input_size=4, num_labels=3, dropout=0.5))
    dropout.dropout.p = 0.1
    with pytest.raises(ValueError, match=r"dropout: settings 'p=0\.1, inplace=False', not 'p=0\.5"):
        MaxMIGModel.from_classifier(dropout, num_annotators=3)


class OwnConfig(PreTrainedConfig):
    """The config of a user's own classifier."""

    model_type = "one_of_my_own"


class Own(PreTrainedModel):
    """A user's own classifier, as its author would write it."""

    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.out = nn.Linear(4, config.num_labels)
        self.post_init()

    def forward(self, features=None, labels=None, return_dict=None):
        """Classify (B, 4) features."""
        return ImageClassifierOutput(logits=self.out(features))


class OwnViT(ViTForImageClassification):
    """One of transformers' classes with another forward pass."""


@pytest.fixture
def forget():
    """Undo what a test registers."""
    mappings = [
        auto._model_mapping
        for auto in (
            AutoModelForImageClassification,
            AutoModelForSequenceClassification,
            AutoModelForAudioClassification,
            AutoModelForTokenClassification,
        )
    ]
    yield
    for mapping in mappings:
        mapping._extra_content.pop(OwnConfig, None)
    CONFIG_MAPPING._extra_content.pop(OwnConfig.model_type, None)


@pytest.mark.parametrize(
    "auto_class",
    [
        AutoModelForImageClassification,
        AutoModelForSequenceClassification,
        AutoModelForAudioClassification,
    ],
)
def test_classifier_of_ones_own_is_taken_once_it_is_registered(auto_class, tmp_path, forget):
    """Without registration, the model could be saved after the training but never loaded."""
    own = Own(OwnConfig(num_labels=3))
    with pytest.raises(TypeError, match="Own, which no Auto class builds: register it"):
        MaxMIGModel.from_classifier(own, num_annotators=2)
    AutoModelForTokenClassification.register(OwnConfig, Own)
    with pytest.raises(TypeError, match="which no Auto class builds: register it"):
        MaxMIGModel.from_classifier(own, num_annotators=2)
    auto_class.register(OwnConfig, Own)
    with pytest.raises(TypeError, match="config that is registered with AutoConfig"):
        MaxMIGModel.from_classifier(own, num_annotators=2)
    AutoConfig.register("one_of_my_own", OwnConfig)
    model, again = come_back(own, tmp_path)
    check_same_logits(model, again, features=torch.randn(2, 4))
    auto_class._model_mapping._extra_content.pop(OwnConfig)
    with pytest.raises(ValueError, match="must be of a model for .*-classification, got OwnConfig"):
        AutoModel.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("classifier", "message"),
    [
        (lambda: nn.Linear(3, 2), "of transformers or timm, got Linear: make it a subclass"),
        (lambda: ViTModel(ViTConfig(**SMALL)), "got ViTModel: load it with one of AutoModelForIm"),
        (lambda: OwnViT(ViTConfig(**SMALL)), "got OwnViT: it would come back as ViTForImageClass"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused(classifier, message):
    """A subclass of a transformers class used to come back as its parent, with another forward pass."""
    with pytest.raises(TypeError, match=message):
        MaxMIGModel.from_classifier(classifier(), num_annotators=2)


def crowd_of_pictures():
    rows = {
        "pixel_values": list(pictures().repeat(4, 1, 1, 1).numpy()),
        "annotators": [[0, 1]] * 8,
        "annotations": [[0, 0], [1, 1]] * 4,
    }
    return Dataset.from_dict(rows).cast_column(
        "annotators", crowd_features(["ann", "bob"], list("abcde"))["annotators"]
    ).cast_column("annotations", crowd_features(["ann", "bob"], list("abcde"))["annotations"])  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["vit", "timm", "pair"])
def test_classifier_in_half_precision_is_trained_in_float32(kind, dtype, make_args, monkeypatch):
    """Transformers loads a checkpoint in the type it was saved in.

    Training it used to fail with torch's bare error.
    """
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=5) if kind == "timm" else vit()
    network = network.to(dtype)
    if kind == "pair":
        network = MaxMIGModel.from_classifier(
            network, annotators=["ann", "bob"], id2label=dict(enumerate("abcde"))
        )
    said = []
    monkeypatch.setattr(wrapping.logger, "warning_once", lambda *words: said.append(words))
    data = crowd_of_pictures()
    trainer = MaxMIGTrainer(
        model=network, args=make_args(num_train_epochs=1, per_device_train_batch_size=8), train_dataset=data
    )  # fmt: skip
    assert str(dtype).endswith(said[0][1])
    assert len(said) == 1
    trainer.train()
    model = trainer.crowd_model
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config.dtype == torch.float32
    assert all(p.isfinite().all() for p in model.parameters())


def test_model_in_half_precision_takes_inputs_in_float32():
    """Data sets hold float32 numbers. A forward pass used to fail with torch's bare error."""
    model = MaxMIGModel.from_classifier(
        HeadClassifier(HeadConfig(input_size=4, num_labels=3)).to(torch.bfloat16), num_annotators=2
    ).eval()
    features = torch.randn(2, 4)
    with torch.no_grad():
        logits = model(features=features).logits
        expected = model(features=features.to(torch.bfloat16)).logits
    assert torch.equal(logits, expected)


def test_text_in_half_precision_is_left_alone_by_what_does_not_train(tmp_path):
    """Token ids are not fractions, and a model that only predicts keeps its type."""
    config = BertConfig(vocab_size=11, num_labels=3, **{k: v for k, v in SMALL.items() if k not in ("image_size", "patch_size", "num_labels")})  # fmt: skip
    model, again = come_back(BertForSequenceClassification(config).bfloat16(), tmp_path)
    check_same_logits(model, again, input_ids=torch.tensor([[1, 2, 3]]))
