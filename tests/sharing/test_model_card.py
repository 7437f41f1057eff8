"""The model card says what is inside, with the numbers that were measured."""

import json
import logging
import re

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image
from transformers import (
    AutoImageProcessor,
    BitImageProcessor,
    TimmWrapperConfig,
    TimmWrapperForImageClassification,
    TimmWrapperImageProcessor,
)

from hf_maxmig import MaxMIGTrainer
from hf_maxmig.model.aggregators import PRIORS
from hf_maxmig.sharing.model_card import model_card, portable_processor
from tests.worlds import ANNOTATORS, CLASSES


def test_card_has_the_results_and_says_that_names_are_inside(
    crowd, make_model, make_args, tmp_path
):
    """Names of annotators may be personal data; a card with a number nobody measured is worse than none."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    trainer.train()
    metrics = trainer.evaluate(crowd)
    trainer.create_model_card(model_name="org/scenes", license="apache-2.0", dataset="org/crowd")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    results = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert results["accuracy of classifier h"] == pytest.approx(metrics["eval_accuracy"], abs=1e-4)
    assert results["gain of h and g, on the crowd's labels alone"] == pytest.approx(
        metrics["eval_gain"], abs=1e-4
    )
    assert (card.data.license, card.data.datasets, card.data.library_name) == (
        "apache-2.0", "org/crowd", "transformers",
    )  # fmt: skip
    for text in (
        "cat, dog, emu",
        "their names are in `config.json`",
        'from_pretrained("org/scenes")',
        "cao2019maxmig",
    ):
        assert text in card.text
    assert "| learning_rate | 0.01 |" in card.text
    assert f"of at most {metrics['eval_gain_ceiling']:.4f}; 95 %: " in card.text
    assert "90 items, 4 annotators, 3 classes" in card.text
    assert "Krippendorff's alpha" in card.text
    assert "{{" not in card.content


def test_card_sums_up_the_annotators_and_names_none(crowd, make_model, make_args, tmp_path):
    """What is said of a person is for the owner of the data, not for everybody who finds the model."""
    pytest.importorskip("matplotlib")
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    trainer.train()
    judged = trainer.report(crowd)
    trainer.create_model_card()
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "| accuracy, as far as the pair can tell | " in text
    for verdict in set(judged.verdict):
        assert f"{judged.verdict.count(verdict)} {verdict}" in text
    for name in ANNOTATORS:
        assert not re.search(rf"\b{name}\b", text), name


@pytest.mark.parametrize("prior", PRIORS)
def test_card_without_results_says_so(prior, make_model):
    """An empty table looks like a mistake of the reader's; and a learned prior has a gradient."""
    card = model_card(make_model(prior=prior), {}, {}, "pair")
    assert "Nothing was measured." in card.text
    assert card.data.eval_results is None


@pytest.fixture
def timm_checkpoint(tmp_path):
    """A timm model as it lies on the Hub: its image processor is in `config.json`."""
    settings = {
        "input_size": [3, 160, 160], "interpolation": "bicubic", "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.3, 0.4], "crop_pct": 0.8, "crop_mode": "center",
    }  # fmt: skip
    config = TimmWrapperConfig(architecture="test_resnet", num_labels=3, pretrained_cfg=settings)
    TimmWrapperForImageClassification(config).save_pretrained(tmp_path / "timm")
    return tmp_path / "timm"


def test_timm_processor_becomes_one_that_can_be_saved(timm_checkpoint):
    """The one of timm saves nothing: the pair would come back without, and a pipeline would not start."""
    processor = AutoImageProcessor.from_pretrained(timm_checkpoint)
    assert type(processor) is TimmWrapperImageProcessor
    portable = portable_processor(processor)
    assert type(portable) is BitImageProcessor
    x, y = np.meshgrid(np.linspace(0, 255, 300), np.linspace(0, 255, 240))
    picture = Image.fromarray(np.stack([x, y, (x + y) / 2], axis=-1).astype("uint8"))
    first = processor([picture], return_tensors="pt")["pixel_values"]
    second = portable([picture], return_tensors="pt")["pixel_values"]
    assert first.shape == second.shape == (1, 3, 160, 160)
    assert first.std() > 0.5
    torch.testing.assert_close(first, second, rtol=0, atol=0.05)


def test_pair_on_a_timm_model_is_saved_with_a_processor(
    timm_checkpoint, crowd, make_model, make_args, tmp_path
):
    """The trainer must train with, and save, the processor that the pipeline will use."""
    trainer = MaxMIGTrainer(
        model=TimmWrapperForImageClassification.from_pretrained(timm_checkpoint),
        args=make_args(),
        train_dataset=crowd,
        processing_class=AutoImageProcessor.from_pretrained(timm_checkpoint),
    )
    assert trainer.data_collator.processor is trainer.processing_class
    trainer.save_model(tmp_path / "pair")
    saved = json.loads((tmp_path / "pair" / "preprocessor_config.json").read_text())
    assert saved["size"] == {"shortest_edge": 200}
    assert trainer.crowd_model.config.class_names == CLASSES
    assert type(AutoImageProcessor.from_pretrained(tmp_path / "pair")) is BitImageProcessor


def test_processor_without_an_equal_is_kept_and_told(timm_checkpoint, caplog):
    """A crop that is done otherwise would move the accuracy without a word."""
    processor = AutoImageProcessor.from_pretrained(timm_checkpoint)
    processor.data_config["crop_mode"] = "border"
    logging.getLogger("hf_maxmig").propagate = True
    with caplog.at_level("WARNING"):
        assert portable_processor(processor) is processor
    assert "no equal that can be saved" in caplog.text
    assert portable_processor(None) is None
