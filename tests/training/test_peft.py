"""Adapters: a classifier of which only a small part is trained, with the same interface as any other."""

import logging

import numpy as np
import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model, inject_adapter_in_model
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    BertConfig,
    BertForSequenceClassification,
)

from hf_maxmig import MaxMIGModel, MaxMIGTrainer, save_classifier
from hf_maxmig.model.surgery import (
    adapter_layers,
    merge_adapters,
    penultimate_features,
    without_peft_model,
)
from tests.networks import small_vit
from tests.several_processes import make_pictures
from tests.weights import state
from tests.worlds import ANNOTATORS, CLASSES

# peft imports a name that transformers has replaced.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

LORA = {
    "r": 2, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["classifier"],
}  # fmt: skip


@pytest.fixture(scope="module")
def pictures():
    return make_pictures()


def adapted_vit(**changes):
    torch.manual_seed(0)
    return get_peft_model(small_vit(), LoraConfig(**{**LORA, **changes}))


def changed(before, after):
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.fixture
def trainer(pictures, make_args):
    return MaxMIGTrainer(
        model=adapted_vit(),
        args=make_args(num_train_epochs=4, learning_rate=1e-2),
        train_dataset=pictures,
    )


def test_model_saved_by_hand_loads_without_peft(trainer, pictures, tmp_path):
    """Layers under PEFT's names would be loaded with random weights, with a report that few read."""
    trainer.train()
    pair = trainer.crowd_model.eval()
    pair.save_pretrained(tmp_path / "by_hand")
    again = AutoModel.from_pretrained(tmp_path / "by_hand").eval()
    assert all(
        p.requires_grad for p in again.classifier.parameters()
    )  # frozen by PEFT, not by the user
    assert not adapter_layers(again)
    pixels = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        assert torch.allclose(again(pixel_values=pixels).logits, pair(pixel_values=pixels).logits, atol=1e-5)  # fmt: skip
    assert adapter_layers(pair)  # the original keeps its adapters for further training


def test_adapters_head_and_aggregator_train_and_nothing_else(trainer, pictures, make_args):
    """Adapters exist so that the backbone stays frozen, and a frozen head would learn nothing."""
    pair = trainer.crowd_model
    before = state(pair)
    trainer.train()
    moved = changed(before, state(pair))
    trained = {name for name, p in pair.named_parameters() if p.requires_grad}
    assert moved == trained
    assert {
        name.split(".")[-1] for name in moved if "vit" not in name and "classifier" not in name
    } == {"table"}
    assert sum("lora_" in name for name in moved) == 4
    assert sum("modules_to_save" in name for name in moved) == 2
    assert len(moved) == 4 + 2 + 1
    held = sum(p.numel() for group in trainer.optimizer.param_groups for p in group["params"])
    assert held == sum(p.numel() for p in pair.parameters() if p.requires_grad)
    assert len(trainer.optimizer.state) == len(trained)


def test_saved_model_has_its_adapters_merged(trainer, pictures, make_args, tmp_path):
    """Layers under an adapter's names would be loaded with random weights, and only a long report says so."""
    trainer.train()
    expected = trainer.predict(pictures).predictions
    trainer.save_model(str(tmp_path / "pair"))
    pair = AutoModel.from_pretrained(tmp_path / "pair")
    assert isinstance(pair, MaxMIGModel)
    assert not adapter_layers(pair)
    again = MaxMIGTrainer(model=pair, args=make_args(), train_dataset=pictures)
    for first, second in zip(again.predict(pictures).predictions, expected, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-5)
    plain = state(small_vit()).keys()
    assert {f"classifier.{name}" for name in plain} == {
        name for name in pair.state_dict() if name.startswith("classifier.")
    }
    # The trainer still has them and continues.
    assert adapter_layers(trainer.crowd_model)
    trainer.train()


def test_classifier_alone_is_saved_merged(trainer, pictures, tmp_path):
    """It must load where neither this package nor peft is installed."""
    trainer.train()
    expected = trainer.predict(pictures).predictions[0]
    pair = merge_adapters(trainer.crowd_model)
    save_classifier(pair, tmp_path / "alone")
    alone = AutoModelForImageClassification.from_pretrained(tmp_path / "alone")
    batch = trainer.data_collator(list(pictures))
    with torch.no_grad():
        log_h = alone(pixel_values=batch["pixel_values"]).logits.log_softmax(-1)
    np.testing.assert_allclose(log_h, expected, atol=1e-5)
    assert "peft" not in (tmp_path / "alone" / "config.json").read_text()


def test_merging_leaves_the_adapted_one_as_it_is(trainer, pictures):
    """If training continued from merged layers, the adapters would be added twice."""
    trainer.train()
    before = state(trainer.crowd_model)
    merged = merge_adapters(trainer.crowd_model)
    assert not changed(before, state(trainer.crowd_model))
    batch = trainer.data_collator(list(pictures.select(range(5))))
    with torch.no_grad():
        inputs = {"pixel_values": batch["pixel_values"]}
        first = trainer.crowd_model.eval()(**inputs).logits
        torch.testing.assert_close(merged.eval()(**inputs).logits, first, rtol=0, atol=1e-5)
        # The adapters must have an effect, or merging them would show nothing.
        start = small_vit()
        start.load_state_dict(merged.classifier.state_dict())
        for name, tensor in before.items():
            if name.endswith("base_layer.weight"):
                plain = name.removeprefix("classifier.").replace(".base_layer", "")
                start.get_parameter(plain).copy_(tensor)
        assert (start.eval()(**inputs).logits - first).abs().max() > 1e-2


@pytest.mark.slow
def test_resumed_training_with_adapters_equals_uninterrupted(pictures, make_args, tmp_path):
    """From merged weights alone, the adapters would be trained anew on top."""
    args = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 5}
    whole = MaxMIGTrainer(
        model=adapted_vit(lora_dropout=0.3), args=make_args(**args), train_dataset=pictures
    )
    whole.train()
    checkpoint = whole.args.output_dir + "/checkpoint-5"
    again = MaxMIGTrainer(
        model=adapted_vit(lora_dropout=0.3), args=make_args(**args), train_dataset=pictures
    )
    again.train(resume_from_checkpoint=checkpoint)
    assert not changed(state(whole.crowd_model), state(again.crowd_model))
    # Frozen weights are not written again, but each checkpoint is also a model that loads.
    frozen = [n for n, p in whole.crowd_model.named_parameters() if not p.requires_grad]
    assert not {*load_file(checkpoint + "/adapted.safetensors")} & {*frozen}
    assert not adapter_layers(MaxMIGModel.from_pretrained(checkpoint))


@pytest.mark.slow
def test_chosen_epoch_comes_back_with_its_adapters(pictures, make_args):
    """The head of one epoch with the adapters of another is a model that nobody has evaluated."""
    args = make_args(
        num_train_epochs=4, learning_rate=3e-2, eval_strategy="epoch", save_strategy="epoch", name_classes=False,
        load_best_model_at_end=True, greater_is_better=False,
    )  # fmt: skip
    trainer = MaxMIGTrainer(
        model=adapted_vit(), args=args, train_dataset=pictures, eval_dataset=pictures
    )
    trainer.train()
    *gains, at_end = (log["eval_gain"] for log in trainer.state.log_history if "eval_gain" in log)
    assert gains[0] == min(gains) < gains[-1] - 0.1
    assert at_end == pytest.approx(gains[0], abs=1e-5)
    assert trainer.evaluate()["eval_gain"] == pytest.approx(gains[0], abs=1e-5)


def test_checkpoint_without_adapters_is_refused(pictures, make_args, tmp_path):
    """Otherwise only the aggregator would silently be loaded from it."""
    args = make_args(max_steps=2, save_strategy="steps", save_steps=2)
    MaxMIGTrainer(model=small_vit(), args=args, train_dataset=pictures).train()
    trainer = MaxMIGTrainer(model=adapted_vit(), args=args, train_dataset=pictures)
    with pytest.raises(ValueError, match="must have adapted.safetensors"):
        trainer.train(resume_from_checkpoint=args.output_dir + "/checkpoint-2")


def test_swapped_classes_are_named_in_the_copy_that_is_trained(trainer, pictures):
    """The head exists twice, and the frozen copy has no effect."""
    trainer.train()
    before = trainer.predict(pictures).predictions[0]
    trainer.class_order = lambda: torch.tensor([2, 0, 1])
    assert trainer.name_classes() == [CLASSES[c] for c in (2, 0, 1)]
    after = trainer.predict(pictures).predictions[0]
    np.testing.assert_allclose(after, before[:, [2, 0, 1]], atol=1e-5)


@pytest.mark.slow
def test_search_and_start_keep_the_backbone_frozen(pictures, make_args):
    """Both train copies of the classifier, one of which is then used."""
    args = make_args(init=None, search_rate=True, num_train_epochs=3)
    trainer = MaxMIGTrainer(model=adapted_vit(), args=args, train_dataset=pictures)
    before = state(trainer.crowd_model.classifier)
    trainer.train()
    frozen = {
        n for n, p in trainer.crowd_model.classifier.named_parameters() if not p.requires_grad
    }
    assert len(frozen) > 10
    assert not changed(before, state(trainer.crowd_model.classifier)) & frozen
    assert trainer.start.rate is not None


def test_adapters_without_a_peft_model_around_are_the_same(pictures, make_args, tmp_path):
    """`classifier.add_adapter` of transformers adds the same layers and marks the classifier."""
    torch.manual_seed(0)
    classifier = inject_adapter_in_model(LoraConfig(**LORA), small_vit())
    classifier._hf_peft_config_loaded = True
    trainer = MaxMIGTrainer(
        model=classifier, args=make_args(num_train_epochs=1), train_dataset=pictures
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "pair"))
    expected = trainer.predict(pictures).predictions[0]
    pair = MaxMIGModel.from_pretrained(tmp_path / "pair")
    again = MaxMIGTrainer(model=pair, args=make_args(), train_dataset=pictures)
    np.testing.assert_allclose(again.predict(pictures).predictions[0], expected, atol=1e-5)
    save_classifier(merge_adapters(trainer.crowd_model), tmp_path / "alone")
    names = [{p.name for p in (tmp_path / f).iterdir()} for f in ("pair", "alone")]
    assert all("model.safetensors" in each for each in names)
    assert not any("adapter" in name for each in names for name in each)


def test_frozen_head_is_told(pictures, make_args, caplog):
    """LoRA freezes what it does not adapt, so a new head would keep its random weights."""
    logging.getLogger("hf_maxmig").propagate = True
    with caplog.at_level("WARNING"):
        MaxMIGTrainer(
            model=adapted_vit(modules_to_save=None), args=make_args(), train_dataset=pictures
        )
    assert "output layer is frozen: name it in `modules_to_save`" in caplog.text
    caplog.clear()
    with caplog.at_level("WARNING"):
        MaxMIGTrainer(model=adapted_vit(), args=make_args(), train_dataset=pictures)
    assert not caplog.text


def test_adapters_around_a_whole_model_are_refused(pictures, make_args):
    """They would freeze the aggregator, and the gain would stay that of the start."""
    pair = MaxMIGModel.from_classifier(
        small_vit(), annotators=ANNOTATORS, id2label=dict(enumerate(CLASSES))
    )
    model = get_peft_model(pair, LoraConfig(**LORA | {"modules_to_save": None}))
    with pytest.raises(TypeError, match="adapters must be put around the classifier"):
        MaxMIGTrainer(model=model, args=make_args(), train_dataset=pictures)


def test_adapters_that_are_spread_over_devices_are_refused(trainer):
    """They could not be merged when the model is saved at the end of the training."""
    trainer.is_fsdp_enabled = True
    with pytest.raises(ValueError, match="adapters must be whole on each device"):
        trainer._check_devices()


def test_prompts_are_refused():
    """They change no layer and could not be merged into one."""
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
    )
    prompts = PromptTuningConfig(num_virtual_tokens=2, task_type="SEQ_CLS")
    model = get_peft_model(BertForSequenceClassification(config), prompts)
    with pytest.raises(TypeError, match="must be inside the classifier's layers.*PROMPT_TUNING"):
        without_peft_model(model)


# Frozen without adapters


@pytest.mark.slow
def test_frozen_backbone_stays_frozen_and_has_no_moments(pictures, make_args, tmp_path):
    """Copies trained by the start and the search, or a loaded checkpoint, could each unfreeze it."""
    torch.manual_seed(0)
    classifier = small_vit()
    classifier.vit.requires_grad_(False)
    before = state(classifier)
    args = make_args(init=None, search_rate=True, num_train_epochs=3, save_strategy="epoch")
    trainer = MaxMIGTrainer(model=classifier, args=args, train_dataset=pictures)
    trainer.train()
    again = MaxMIGTrainer(model=trainer.crowd_model, args=args, train_dataset=pictures)
    again.train(resume_from_checkpoint=args.output_dir + "/checkpoint-6")
    for one in (trainer, again):
        assert changed(before, state(classifier)) == {"classifier.weight", "classifier.bias"}
        trained = {n for n, p in one.crowd_model.named_parameters() if p.requires_grad}
        assert not [name for name in trained if ".vit." in name]
        assert len(one.optimizer.state) == len(trained)
        held = [p for group in one.optimizer.param_groups for p in group["params"]]
        assert all(p.requires_grad for p in held)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize(
    "adapted",
    [
        {"target_modules": ["q_proj"]},
        {"target_modules": ["q_proj", "classifier"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["classifier"]},
    ],
    ids=["inside", "the output layer", "a copy of the output layer"],
)
def test_features_are_not_those_of_an_adapter(adapted, rank):
    """An adapter layer is small and random, and may have one output per class like the output layer."""
    torch.manual_seed(0)
    model, inputs = small_vit(), {"pixel_values": torch.randn(4, 3, 16, 16)}
    expected = penultimate_features(model, inputs, 3)
    adapted = get_peft_model(model, LoraConfig(r=rank, **adapted)).get_base_model()
    torch.testing.assert_close(penultimate_features(adapted, inputs, 3), expected)
