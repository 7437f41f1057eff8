"""Tests of `hf_maxmig.data.features`: what is cached, and when it is computed anew."""

import torch
from transformers import ViTImageProcessor

from hf_maxmig import HeadClassifier, frozen_features, labelme
from tests.data.test_sources import write_flat


def test_features_are_computed_once_and_anew_when_something_changed(
    backbone, tmp_path, monkeypatch
):
    """Features of other weights or other pictures would pass for these; votes must not be cached."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    calls = []
    encode = HeadClassifier.encode
    monkeypatch.setattr(
        HeadClassifier,
        "encode",
        staticmethod(lambda *args: (calls.append(1), encode(*args))[1]),
    )
    data_dir, folder = write_flat(tmp_path / "data"), str(tmp_path / "backbone")
    data = labelme(data_dir, content="images")
    processor = ViTImageProcessor.from_pretrained(folder)
    first, encoder = frozen_features(data, folder, processor)
    assert len(calls) == len(data)
    picture = data["test"][1]["image"].convert("RGB")
    expected = encode(encoder, processor(picture, return_tensors="pt")["pixel_values"])
    torch.testing.assert_close(torch.tensor([first["test"][1]["features"]]), expected)
    assert "image" not in first["test"][1]  # or each step of the training would decode it
    assert first["test"].with_format(None)[1]["image"].size == picture.size

    answers = (data_dir / "answers.txt").read_text().replace("3", "4", 1)
    (data_dir / "answers.txt").write_text(answers)
    data = labelme(data_dir, content="images")
    again, _ = frozen_features(data, folder, processor)
    assert len(calls) == len(data)
    assert again["train"]["annotations"][:] == data["train"]["annotations"][:]
    assert again["train"]["annotations"][:] != first["train"]["annotations"][:]

    torch.nn.init.normal_(backbone.resnet.embedder.embedder.convolution.weight)
    backbone.save_pretrained(folder)
    other, _ = frozen_features(data, folder, processor)
    assert len(calls) == 2 * len(data)
    assert other["test"][1]["features"] != first["test"][1]["features"]

    smaller = ViTImageProcessor(size={"height": 24, "width": 24})
    resized, _ = frozen_features(data, folder, smaller)
    assert len(calls) == 3 * len(data)
    assert resized["test"][1]["features"] != other["test"][1]["features"]
