"""MaxMIGModel: any classifier inside, one state-dict layout, float32 evidence, complete saves."""

import json
import os
import sys

import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    ConvNextConfig,
    ConvNextForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    Wav2Vec2Config,
    Wav2Vec2ForSequenceClassification,
    pipeline,
)

from hf_maxmig import (
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    MaxMIGTrainer,
    WeightedAverageAggregator,
    aggregate,
    forecast,
    mutual_information_gain,
    peer,
)
from hf_maxmig.model.aggregators import AGGREGATORS, FactoredAggregator
from tests.networks import cnn, head_on_backbone, head_on_pictures, resnet, timm_model, vgg
from tests.processes import finished
from tests.worlds import make_crowd

ANNOTATORS = torch.tensor([[0, 3], [2, -1], [1, 1], [-1, -1]])
ANNOTATIONS = torch.tensor([[1, 4], [0, -1], [2, 2], [-1, -1]])
NUM_ANNOTATORS, NUM_CLASSES = 4, 5


def vit():
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, image_size=32,
            patch_size=8, num_labels=5,
        )
    )  # fmt: skip


def convnext():
    return ConvNextForImageClassification(
        ConvNextConfig(hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], num_labels=5)
    )


CLASSIFIERS = [resnet, vit, convnext, timm_model, head_on_pictures, head_on_backbone, cnn, vgg]


def make_pair(make_classifier, **fields):
    torch.manual_seed(0)
    model = MaxMIGModel.from_classifier(
        make_classifier(), num_annotators=NUM_ANNOTATORS, **fields
    ).eval()
    with torch.no_grad():
        for parameter in model.aggregator.parameters():
            parameter.normal_()
        model.prior.logits.normal_()
    return model


def pictures(seed=0):
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def outputs(model, dtype=torch.float32):
    with torch.no_grad():
        return model(
            pixel_values=pictures().to(dtype), annotators=ANNOTATORS, annotations=ANNOTATIONS
        )


@pytest.mark.parametrize("make_classifier", CLASSIFIERS, ids=lambda f: f.__name__)
def test_wrapping_keeps_the_classifiers_weights(make_classifier):
    """Transformers initialises what it takes for new, so pretrained weights would be lost silently."""
    classifier = make_classifier()
    before = {
        name.removeprefix("timm_model."): t.clone() for name, t in classifier.state_dict().items()
    }
    attention = (
        getattr(classifier.config, "_attn_implementation", None)
        if hasattr(classifier, "config")
        else None
    )
    model = MaxMIGModel.from_classifier(classifier, num_annotators=NUM_ANNOTATORS)
    after = {
        name.removeprefix("timm_model."): t for name, t in model.classifier.state_dict().items()
    }
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=0)
    if attention is not None:
        assert model.classifier.config._attn_implementation == attention


@pytest.mark.parametrize("make_classifier", CLASSIFIERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("prior", ["uniform", "learned"])
def test_model_comes_back_through_both_auto_classes(make_classifier, prior, tmp_path):
    """With a second state-dict layout, a random classifier would load with only a printed report."""
    model = make_pair(make_classifier, prior=prior)
    first = outputs(model)
    model.save_pretrained(tmp_path)
    for auto_class in (AutoModel, AutoModelForImageClassification):
        again = auto_class.from_pretrained(tmp_path).eval()
        assert type(again) is MaxMIGModel
        second = outputs(again)
        for name in ("logits", "aggregator_logits", "forecast_logits"):
            torch.testing.assert_close(second[name], first[name], rtol=0, atol=1e-6)
        trained = {n for n, p in again.named_parameters() if p.requires_grad}
        assert trained == {n for n, p in model.named_parameters() if p.requires_grad}
        assert ("prior.logits" in trained) == (prior == "learned")


@pytest.mark.parametrize(
    "make_classifier", [resnet, vit, convnext, timm_model], ids=lambda f: f.__name__
)
def test_classifier_alone_is_a_native_checkpoint(make_classifier, tmp_path):
    """Whoever deploys the classifier alone must get a transformers model with its weights."""
    model = make_pair(make_classifier)
    model.classifier.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    again = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    assert type(again).__module__.startswith("transformers.")
    torch.testing.assert_close(
        again(pixel_values=pictures()).logits, outputs(model).logits, rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("prior", ["uniform", "learned"])
def test_model_with_interaction_comes_back_whole(prior, tmp_path):
    """If the second table were drawn anew on loading, g would be untrained."""
    model = make_pair(resnet, prior=prior, aggregator="interaction")
    first = outputs(model)
    plain = aggregate(model.aggregator.weight, model.prior(), ANNOTATORS, ANNOTATIONS)
    assert (first.aggregator_logits - plain)[0].abs().max() > 0.5
    model.save_pretrained(tmp_path)
    for auto_class in (AutoModel, AutoModelForImageClassification):
        again = auto_class.from_pretrained(tmp_path).eval()
        assert again.config.aggregator == "interaction"
        second = outputs(again)
        for name in ("logits", "aggregator_logits", "forecast_logits"):
            torch.testing.assert_close(second[name], first[name], rtol=0, atol=1e-6)
        assert set(map(id, again.crowd_parameters())) >= {
            id(p) for p in again.aggregator.parameters()
        }
    half = AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in half.aggregator.parameters()} == {torch.float32}
    torch.testing.assert_close(half.aggregator.mix, model.aggregator.mix, rtol=0, atol=0)


@pytest.mark.parametrize("prior", ["uniform", "learned"])
def test_factored_model_comes_back_whole(prior, tmp_path):
    """The class that a report stands for is not a parameter: it must be saved, also after classes were reordered."""
    model = make_pair(resnet, prior=prior, aggregator="factored")
    assert model.reorder_classes(torch.tensor([3, 0, 1, 4, 2]), {"pixel_values": pictures(1)})
    first = outputs(model)
    log_g = aggregate(model.aggregator.weight, model.prior(), ANNOTATORS, ANNOTATIONS)
    torch.testing.assert_close(first.aggregator_logits, log_g)
    model.save_pretrained(tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert {n: tuple(t.shape) for n, t in tensors.items() if n.startswith("aggregator.")} == {
        "aggregator.table": (5, 5),
        "aggregator.scale": (4,),
        "aggregator.shift": (4, 5),
        "aggregator.diagonal": (4, 5),
        "aggregator.speaks_for": (5,),
    }
    for auto_class in (AutoModel, AutoModelForImageClassification):
        again = auto_class.from_pretrained(tmp_path).eval()
        assert again.config.aggregator == "factored"
        second = outputs(again)
        for name in ("logits", "aggregator_logits", "forecast_logits"):
            torch.testing.assert_close(second[name], first[name], rtol=0, atol=1e-6)
        own = {id(parameter) for parameter in again.aggregator.parameters()}
        assert own == {id(parameter) for parameter in again.crowd_parameters()}
        assert len(own) == 4
    half = AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    assert {p.dtype for p in half.aggregator.parameters()} == {torch.float32}
    for name, tensor in model.aggregator.state_dict().items():
        torch.testing.assert_close(half.aggregator.state_dict()[name], tensor, rtol=0, atol=0)


def test_factored_model_starts_ignorant_on_any_way_to_build_it():
    """What `_init_weights` forgets is uninitialised memory: arbitrary scales and classes out of range."""
    model = MaxMIGModel.from_classifier(resnet(), num_annotators=4, aggregator="factored")
    kept = {n: t for n, t in model.state_dict().items() if not n.startswith("aggregator.")}
    again = MaxMIGModel.from_pretrained(None, config=model.config, state_dict=kept)
    for pair in (model, again):
        aggregator = pair.aggregator
        assert (aggregator.scale == 1).all()
        assert aggregator.speaks_for.tolist() == [0, 1, 2, 3, 4]
        assert aggregator.weight.abs().sum() == 0


@pytest.mark.slow
@pytest.mark.parametrize("init", [None, "vote_share"])
def test_factored_model_learns_the_classes_and_resumes(init, make_args):
    """Runs the whole way, from the aggregator's name and a searched rate to resuming from a checkpoint."""
    settings = {
        "num_train_epochs": 15, "aggregator": "factored", "init": init, "search_rate": init is None,
        "save_strategy": "steps", "save_steps": 50,
    }  # fmt: skip

    def make_trainer():
        torch.manual_seed(0)
        classifier = HeadClassifier(HeadConfig(input_size=5, hidden_size=16, num_labels=3))
        args = make_args(**settings)
        return MaxMIGTrainer(model=classifier, args=args, train_dataset=make_crowd())

    trainer = make_trainer()
    metrics = trainer.train().metrics
    aggregator = trainer.crowd_model.aggregator
    assert type(aggregator) is FactoredAggregator
    assert metrics.get("aggregator", "factored") == "factored"
    metrics = trainer.evaluate(make_crowd(seed=1))
    assert metrics["eval_accuracy"] > 0.9
    assert metrics["eval_forecast_accuracy"] > 0.9
    group = trainer.optimizer.param_groups[-1]["params"]
    assert set(map(id, group)) == {id(parameter) for parameter in aggregator.parameters()}
    if init is None:
        first = trainer.state.log_history[0]
        assert "search_gain_0.1" in first
        assert not [name for name in first if "factored" in name or "average" in name]
    again = make_trainer()
    again.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-50")
    for name, tensor in trainer.crowd_model.state_dict().items():
        torch.testing.assert_close(again.crowd_model.state_dict()[name], tensor, rtol=0, atol=0)


@pytest.mark.slow
def test_report_on_a_factored_model_judges_annotators(make_args, tmp_path):
    """A small factored model must write out W for the report."""
    pytest.importorskip("matplotlib")
    torch.manual_seed(0)
    classifier = HeadClassifier(HeadConfig(input_size=5, hidden_size=16, num_labels=3))
    args, crowd = make_args(aggregator="factored", num_train_epochs=10), make_crowd(300)
    trainer = MaxMIGTrainer(model=classifier, args=args, train_dataset=crowd)
    trainer.train()
    report = trainer.report(crowd, tmp_path / "report")
    assert set(report.verdict[:3]) <= {"expert", "ordinary"}
    assert report.votes.sum() == sum(map(len, crowd["annotators"]))


@pytest.mark.parametrize("device_map", ["cpu", "auto", {"": "cpu"}], ids=str)
def test_model_is_loaded_to_a_device(device_map, tmp_path):
    """Large classifiers are loaded straight onto the device they run on."""
    model = make_pair(resnet)
    model.save_pretrained(tmp_path)
    for auto_class in (AutoModel, AutoModelForImageClassification):
        again = auto_class.from_pretrained(tmp_path, device_map=device_map).eval()
        assert {p.device.type for p in again.parameters()} <= {"cpu", "cuda"}
        expected = outputs(model).forecast_logits
        torch.testing.assert_close(outputs(again).forecast_logits.cpu(), expected)


def test_model_saved_before_there_was_a_choice_has_the_papers_aggregator(tmp_path):
    """Old checkpoints on the Hub do not name an aggregator."""
    model = make_pair(head_on_pictures)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("aggregator", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = AutoModel.from_pretrained(tmp_path).eval()
    assert type(again.aggregator) is WeightedAverageAggregator
    torch.testing.assert_close(outputs(again).forecast_logits, outputs(model).forecast_logits)


def test_aggregator_of_another_method_is_not_exchanged():
    """If the setting were ignored, results would be published under an aggregator that did not produce them."""
    with pytest.raises(ValueError, match="`aggregator` must be weighted_average for AggNet, got"):
        peer("aggnet", head_on_pictures(), num_annotators=4, aggregator="interaction")


def test_unknown_aggregator_is_refused_by_the_config():
    """A misspelt name must not fall back to the default."""
    message = "must be one of weighted_average, interaction, factored, got 'mlp'"
    with pytest.raises(ValueError, match=message):
        MaxMIGModel.from_classifier(head_on_pictures(), num_annotators=4, aggregator="mlp")


def test_forward_is_the_papers_formulas():
    """The model must combine the library's functions, not implement the formulas a second time."""
    model = make_pair(resnet)
    out = outputs(model)
    log_p = model.prior()
    log_g = aggregate(model.aggregator.weight, log_p, ANNOTATORS, ANNOTATIONS)
    torch.testing.assert_close(out.logits, model.classifier(pixel_values=pictures()).logits)
    torch.testing.assert_close(out.aggregator_logits, log_g)
    torch.testing.assert_close(
        out.forecast_logits, forecast(out.logits.log_softmax(-1), log_g, log_p)
    )
    assert out.loss is None


def test_loss_on_request_is_minus_the_gain():
    """A training loop without a trainer needs the loss, over the annotated items only."""
    model = make_pair(resnet)
    out = model(
        pixel_values=pictures(), annotators=ANNOTATORS, annotations=ANNOTATIONS, labels=torch.tensor([1, 1, 1, 1]),
        return_loss=True,
    )  # fmt: skip
    gain = mutual_information_gain(
        out.logits.log_softmax(-1)[:3],
        out.aggregator_logits[:3],
        model.prior(),
        model.config.divergence,
    )
    torch.testing.assert_close(out.loss, -gain)
    with pytest.raises(ValueError, match="must be computed from"):
        model(pixel_values=pictures(), return_loss=True)


def test_forward_without_annotations_classifies():
    """Someone with only pictures must get the classifier's answer, and a tuple if they ask for one."""
    model = make_pair(vit)
    out = model(pixel_values=pictures())
    assert (out.aggregator_logits, out.forecast_logits) == (None, None)
    torch.testing.assert_close(out.logits, outputs(model).logits)
    assert len(model(pixel_values=pictures(), return_dict=False)) == 1


def test_forward_wants_both_columns():
    """One of the two columns is useless without the other."""
    with pytest.raises(ValueError, match="got no `annotators`"):
        make_pair(resnet)(pixel_values=pictures(), annotations=ANNOTATIONS)


@pytest.mark.parametrize("prior", ["uniform", "learned"])
def test_bfloat16_keeps_aggregator_and_prior_in_float32(prior, tmp_path):
    """Evidence is summed over labels: a bfloat16 weight of 4 cannot move by 0.01."""
    model = make_pair(resnet, prior=prior)
    exact = model.aggregator.table.clone()
    model.save_pretrained(tmp_path)
    for half in (
        AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16).eval(),
        make_pair(resnet, prior=prior).to(torch.bfloat16),
        make_pair(resnet, prior=prior).bfloat16(),
    ):
        assert half.classifier.classifier[1].weight.dtype == torch.bfloat16
        assert (half.aggregator.table.dtype, half.prior.logits.dtype) == (
            torch.float32,
            torch.float32,
        )
        torch.testing.assert_close(half.aggregator.table, exact, rtol=0, atol=0)
        assert outputs(half, torch.bfloat16).forecast_logits.dtype == torch.float32


def test_autocast_leaves_aggregator_and_forecast_exact():
    """Autocast may speed up the classifier, but the aggregator and the forecast must keep their digits."""
    model = make_pair(head_on_pictures)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = outputs(model)
    assert out.logits.dtype == torch.bfloat16
    log_g = aggregate(model.aggregator.weight, model.prior(), ANNOTATORS, ANNOTATIONS)
    torch.testing.assert_close(out.aggregator_logits, log_g, rtol=0, atol=0)
    exact = forecast(out.logits.float().log_softmax(-1), log_g, model.prior())
    torch.testing.assert_close(out.forecast_logits, exact, rtol=0, atol=1e-6)


def test_gradient_checkpointing_is_the_classifiers(make_args):
    """A flag that is set on the wrapper but reaches no layer saves no memory."""
    model = make_pair(vit)
    assert model.supports_gradient_checkpointing
    model.activation_checkpointing_enable()
    layers = [m for m in model.classifier.modules() if getattr(m, "gradient_checkpointing", False)]
    assert layers
    model.train()
    model(
        pixel_values=pictures(), annotators=ANNOTATORS, annotations=ANNOTATIONS, return_loss=True
    ).loss.backward()
    checkpointed = [p.grad.clone() for p in model.parameters()]
    model.activation_checkpointing_disable()
    model.zero_grad()
    model(
        pixel_values=pictures(), annotators=ANNOTATORS, annotations=ANNOTATIONS, return_loss=True
    ).loss.backward()
    for first, second in zip(checkpointed, model.parameters(), strict=True):
        torch.testing.assert_close(first, second.grad)
    assert not make_pair(resnet).supports_gradient_checkpointing


def test_text_and_audio_classifiers_come_back_as_what_they_are(tmp_path):
    """A model that always builds picture classifiers could save a text classifier but not load it."""
    bert = BertForSequenceClassification(
        BertConfig(
            vocab_size=11,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            num_labels=5,
        )
    )
    audio = Wav2Vec2ForSequenceClassification(
        Wav2Vec2Config(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, conv_dim=(8,),
            conv_kernel=(3,), conv_stride=(2,), num_labels=5, num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
        )
    )  # fmt: skip
    for classifier, task, auto_class in (
        (bert, "text-classification", AutoModelForSequenceClassification),
        (audio, "audio-classification", AutoModel),
    ):
        folder = tmp_path / task
        MaxMIGModel.from_classifier(classifier, num_annotators=2).save_pretrained(folder)
        again = auto_class.from_pretrained(folder)
        assert again.config.classifier_task == task
        assert type(again.classifier) is type(classifier)
        assert again.main_input_name == classifier.main_input_name


def test_foreign_module_is_refused():
    """A plain module has no config to save."""
    with pytest.raises(TypeError, match="of transformers or timm, got Linear"):
        MaxMIGModel.from_classifier(nn.Linear(3, 2), num_annotators=2)
    with pytest.raises(TypeError, match="model for one of"):
        MaxMIGModel.from_classifier(AutoModel.from_config(resnet().config), num_annotators=2)
    with pytest.raises(ValueError, match="must be given, got neither"):
        MaxMIGModel.from_classifier(resnet())


def test_interrupted_save_leaves_the_last_one_whole(tmp_path, monkeypatch):
    """After a full disk or a kill in the middle of writing the weights, the old checkpoint must still load."""
    old = make_pair(resnet)
    old.save_pretrained(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    new = make_pair(resnet)
    nn.init.zeros_(new.aggregator.table)

    def half_written(tensors, filename, metadata=None):
        with open(filename, "wb") as file:
            file.write(b"\0" * 100)
        raise OSError("No space left on device")

    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", half_written)
    with pytest.raises(OSError, match="No space left"):
        new.save_pretrained(tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]
    torch.testing.assert_close(
        outputs(AutoModel.from_pretrained(tmp_path).eval()).logits, outputs(old).logits
    )
    monkeypatch.undo()
    new.save_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path).aggregator.table.abs().sum() == 0


def test_saving_in_shards_leaves_no_stale_weights(tmp_path):
    """`from_pretrained` prefers `model.safetensors`.

    Left over from an earlier save, it would shadow the new shards.
    """
    model = make_pair(resnet)
    model.save_pretrained(tmp_path)
    nn.init.zeros_(model.aggregator.table)
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert AutoModel.from_pretrained(tmp_path).aggregator.table.abs().sum() == 0
    nn.init.ones_(model.aggregator.table)
    model.save_pretrained(tmp_path)
    assert [p.name for p in tmp_path.glob("*.safetensors*")] == ["model.safetensors"]
    assert AutoModel.from_pretrained(tmp_path).aggregator.table.mean() == 1


def test_weights_are_safetensors_with_few_kinds_of_keys(tmp_path):
    """The layout is a contract: other tools read it."""
    make_pair(resnet, prior="learned").save_pretrained(tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    ours = {
        name: tuple(t.shape) for name, t in tensors.items() if not name.startswith("classifier.")
    }
    assert ours == {"aggregator.table": (4, 5, 5), "prior.logits": (5,)}


@pytest.mark.slow
@pytest.mark.full  # `test_three_ways.py` loads other models so
def test_model_loads_as_remote_code_without_the_package(tmp_path):
    """Users who load the model from the Hub may not have this package."""
    pairs = [
        (resnet, "weighted_average"), (head_on_backbone, "interaction"), (timm_model, "weighted_average"),
        (head_on_pictures, "factored"),
    ]  # fmt: skip
    models = {
        make.__name__: make_pair(make, prior="learned", aggregator=aggregator)
        for make, aggregator in pairs
    }
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / name)
    script = (
        "import sys; sys.modules['hf_maxmig'] = None\n"
        "import torch, transformers\n"
        "out = {}\n"
        "for name in sys.argv[1:]:\n"
        "  for auto in (transformers.AutoModel, transformers.AutoModelForImageClassification):\n"
        "    model = auto.from_pretrained(name, trust_remote_code=True).eval()\n"
        "    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))\n"
        "    who = torch.tensor([[0, 3], [2, -1], [1, 1], [-1, -1]])\n"
        "    said = torch.tensor([[1, 4], [0, -1], [2, 2], [-1, -1]])\n"
        "    answer = model(pixel_values=x, annotators=who, annotations=said).forecast_logits.detach()\n"
        "    out[name, auto.__name__] = answer\n"
        "    model.save_pretrained(name + '-again')\n"
        "  transformers.AutoModel.from_pretrained(name + '-again', trust_remote_code=True)\n"
        "assert sys.modules['hf_maxmig'] is None\n"
        "torch.save(out, 'out.pt')\n"
    )
    env = {
        **os.environ,
        "HF_HOME": str(tmp_path / "home"),
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
    }
    finished([sys.executable, "-c", script, *models], cwd=tmp_path, env=env)
    answers = torch.load(tmp_path / "out.pt", weights_only=True)
    assert len(answers) == 2 * len(models)
    for (name, _), logits in answers.items():
        expected = outputs(models[name]).forecast_logits
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_pipeline_classifies_a_picture(tmp_path):
    """This is the first thing that anyone tries."""
    model = make_pair(resnet, id2label=dict(enumerate("abcde")))
    model.save_pretrained(tmp_path)
    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    processor.save_pretrained(tmp_path)
    picture = Image.effect_noise((40, 30), 90)
    answers = pipeline("image-classification", model=str(tmp_path))(picture, top_k=5)
    pixel_values = processor(picture.convert("RGB"), return_tensors="pt")["pixel_values"]
    p = model(pixel_values=pixel_values).logits.softmax(-1)[0]
    assert {a["label"]: pytest.approx(a["score"], abs=1e-5) for a in answers} == {
        name: float(p[c].detach()) for c, name in enumerate("abcde")
    }


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("make_classifier", CLASSIFIERS, ids=lambda f: f.__name__)
def test_outputs_are_reordered_in_the_last_layer(make_classifier, aggregator):
    """The reordering must be written into the classifier's own weights, for any classifier."""
    model = make_pair(make_classifier, aggregator=aggregator)
    before = outputs(model)
    order = torch.tensor([3, 0, 1, 4, 2])
    assert model.reorder_classes(order, {"pixel_values": pictures(1)})
    after = outputs(model)
    for name in ("logits", "aggregator_logits", "forecast_logits"):
        torch.testing.assert_close(after[name], before[name][:, order], rtol=0, atol=1e-5)


def test_frozen_backbone_stays_frozen(tmp_path):
    """The features were computed once.

    If the backbone were trained, or its batch norm drifted, they would no longer match.
    """
    model = make_pair(head_on_backbone)
    model.save_pretrained(tmp_path)
    for pair in (model, AutoModel.from_pretrained(tmp_path)):
        pair.train()
        assert pair.classifier.training
        assert not pair.classifier.encoder.training
        assert not any(p.requires_grad for p in pair.classifier.encoder.parameters())
        assert pair.classifier.fc.weight.requires_grad


def test_new_model_starts_like_torch_and_the_crowd_at_zero():
    """Meta-device construction leaves whatever `_init_weights` forgets uninitialised."""
    torch.manual_seed(0)
    classifier = cnn()
    for module in classifier.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            bound = 1 / module.weight[0].numel() ** 0.5
            assert 0.5 * bound < module.weight.abs().max() <= bound
            assert module.bias.abs().max() <= bound
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.running_var == 1).all()
    model = MaxMIGModel.from_classifier(classifier, num_annotators=3, prior=[1, 1, 1, 1, 4])
    assert model.aggregator.table.abs().sum() == 0
    torch.testing.assert_close(model.prior().exp(), torch.tensor([0.125, 0.125, 0.125, 0.125, 0.5]))
