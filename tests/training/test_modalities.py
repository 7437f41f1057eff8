"""Training directly on pictures, texts and sounds: adapters and streams work with the same interface."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModel

from hf_maxmig import MaxMIGTrainer, save_classifier
from hf_maxmig.model.surgery import adapter_layers, merge_adapters
from tests.modalities import MODALITIES, TEXT
from tests.worlds import CLASSES

# peft imports a name that transformers has replaced.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]


def native(modality):
    torch.manual_seed(0)
    classifier = modality.native()
    classifier.config.id2label = dict(enumerate(CLASSES))
    return classifier


@pytest.mark.parametrize("modality", MODALITIES, ids=repr)
def test_adapted_classifier_learns_from_a_stream_and_comes_back_without_adapters(
    modality, make_args, tmp_path
):
    """Layers under an adapter's names would be loaded with random weights; a stream has neither length nor order."""
    items = modality.prepared(modality.crowd())
    adapted = LoraConfig(r=2, lora_alpha=8, target_modules=modality.adapted, modules_to_save=["classifier"])  # fmt: skip
    trainer = MaxMIGTrainer(
        get_peft_model(native(modality), adapted),
        make_args(max_steps=60, learning_rate=2e-2),
        train_dataset=items.to_iterable_dataset(),
        processing_class=modality.processor(),
    )
    trainer.train()
    assert trainer.evaluate(items)["eval_accuracy"] > 0.6
    expected = trainer.predict(items).predictions
    trainer.save_model(str(tmp_path / "whole"))
    again = AutoModel.from_pretrained(tmp_path / "whole")
    assert again.config.classifier_task == modality.task
    assert adapter_layers(trainer.crowd_model)
    assert not adapter_layers(again)
    loaded = MaxMIGTrainer(again, make_args(), train_dataset=items, processing_class=modality.processor())  # fmt: skip
    for first, second in zip(loaded.predict(items).predictions, expected, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-5)
    save_classifier(merge_adapters(trainer.crowd_model), tmp_path / "alone")
    alone = modality.auto_class.from_pretrained(tmp_path / "alone").eval()
    inputs = {n: t for n, t in trainer.data_collator(list(items)).items() if n in loaded.data_collator.input_names and n != "labels"}  # fmt: skip
    with torch.no_grad():
        log_h = alone(**inputs).logits.log_softmax(-1)
    np.testing.assert_allclose(log_h, expected[0], atol=1e-5)


def test_head_on_texts_blends_features_and_no_tokens(make_args, crowd):
    """A head reads features or tokens, and token ids must not be blended."""
    args = make_args(mixup_alpha=0.4, max_steps=2)
    head = TEXT.head(TEXT.head.config_class(input_size=5, id2label=dict(enumerate(CLASSES))))
    MaxMIGTrainer(head, args, train_dataset=crowd).train()
    trainer = MaxMIGTrainer(
        TEXT.on_encoder(), args, train_dataset=TEXT.prepared(TEXT.crowd()), processing_class=TEXT.processor()
    )  # fmt: skip
    with pytest.raises(
        ValueError, match="where the classifier reads whole numbers, got `input_ids`"
    ):
        trainer.train()
