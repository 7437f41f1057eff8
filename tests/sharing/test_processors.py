"""The processor that turns pictures into a model's inputs is saved with it."""

import json
import logging

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    BitImageProcessor,
    TimmWrapperConfig,
    TimmWrapperForImageClassification,
    TimmWrapperImageProcessor,
)

from hf_maxmig import MaxMIGTrainer
from hf_maxmig.sharing.processors import portable_processor
from tests.worlds import CLASSES


@pytest.fixture
def timm_checkpoint(tmp_path):
    """Write a timm model as on the Hub, where the image processor is in `config.json`."""
    settings = {
        "input_size": [3, 160, 160], "interpolation": "bicubic", "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.3, 0.4], "crop_pct": 0.8, "crop_mode": "center",
    }  # fmt: skip
    config = TimmWrapperConfig(architecture="test_resnet", num_labels=3, pretrained_cfg=settings)
    TimmWrapperForImageClassification(config).save_pretrained(tmp_path / "timm")
    return tmp_path / "timm"


def test_timm_processor_becomes_one_that_can_be_saved(timm_checkpoint):
    """Timm's own processor cannot be saved, so the model would come back without one and no pipeline would start."""
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


def test_model_on_a_timm_model_is_saved_with_a_processor(
    timm_checkpoint, crowd, make_model, make_args, tmp_path
):
    """The trainer must use, and save, the processor that the pipeline will use."""
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
    """A different crop would silently change the accuracy."""
    processor = AutoImageProcessor.from_pretrained(timm_checkpoint)
    processor.data_config["crop_mode"] = "border"
    logging.getLogger("hf_maxmig").propagate = True
    with caplog.at_level("WARNING"):
        assert portable_processor(processor) is processor
    assert "no equivalent that can be saved" in caplog.text
    assert portable_processor(None) is None
