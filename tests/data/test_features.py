"""Tests of `hf_maxmig.data.features`: what is cached, and when it is computed again."""

import random
import threading
import time

import pytest
import torch
from datasets import Dataset, DatasetDict
from datasets import Image as Pictures
from PIL import Image
from transformers import ViTImageProcessor

from hf_maxmig import HeadClassifier, MaxMIGModel, frozen_features, labelme
from hf_maxmig.data.named.sealed import is_whole, made_once
from tests.attacks.mutations import SEED
from tests.children import needs_fork, started
from tests.written_data import write_flat


def test_features_are_computed_once_and_anew_when_something_changed(
    backbone, tmp_path, monkeypatch
):
    """Features of other weights or pictures must not be reused, and votes must not be cached."""
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
    assert "image" not in first["test"][1]  # otherwise each training step would decode it
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


@pytest.fixture
def encoded(backbone, tmp_path, monkeypatch):
    """Compute features of three pictures.

    Return how many pictures the backbone saw, and the features' folder.
    """
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    calls, encode = [], HeadClassifier.encode
    monkeypatch.setattr(
        HeadClassifier,
        "encode",
        staticmethod(lambda *args: (calls.append(1), encode(*args))[1]),
    )
    pictures = {"image": [Image.new("RGB", (9, 9), (80 * n, 0, 9)) for n in range(3)]}
    data = DatasetDict(train=Dataset.from_dict(pictures).cast_column("image", Pictures()))
    processor = ViTImageProcessor.from_pretrained(tmp_path / "backbone")

    def compute():
        computed, _ = frozen_features(data, tmp_path / "backbone", processor)
        return computed["train"].with_format("numpy")["features"][:].tolist()

    return compute, calls, tmp_path / "cache" / "hf_maxmig" / "features"


def kept(folder):
    """Return the files in a cache, without locks."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_damaged_features_are_computed_again(encoded):
    """A truncated file failed on every run, and one flipped bit trained another classifier."""
    compute, calls, folder = encoded
    first = compute()
    assert len(calls) == 1
    (path,) = folder.glob("*.arrow")
    names, whole, rng = kept(folder), path.read_bytes(), random.Random(SEED)
    flipped = bytearray(whole)
    flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    seal = folder / f"{path.name}.sha256.json"
    for n, (place, damaged) in enumerate(
        [(path, whole[: len(whole) // 2]), (path, bytes(flipped)), (path, b""), (path, whole + b"0"),
         (seal, b"{"), (seal, b"[]"), (seal, None), (path, None)]
    ):  # fmt: skip
        if damaged is None:
            place.unlink()
        else:
            place.write_bytes(damaged)
        assert compute() == first
        assert len(calls) == n + 2
        assert compute() == first
        assert len(calls) == n + 2
        assert kept(folder) == names == [path.name, seal.name]


def test_features_that_fail_leave_nothing(encoded, monkeypatch):
    """Half a file, or a temporary one, would lie in the cache for ever."""
    compute, _, folder = encoded

    def fails(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(HeadClassifier, "encode", staticmethod(fails))
        with pytest.raises(KeyboardInterrupt):
            compute()
    assert kept(folder) == []
    assert compute()


def make_half(path):
    made_once(path, lambda path: (path.write_text("half"), time.sleep(250)))


@pytest.mark.slow
@needs_fork
def test_what_a_killed_process_left_is_swept(tmp_path):
    """A killed process runs no clean-up, and the next run uses another temporary name."""
    half = tmp_path / ".first.making" / "first"
    with started(tmp_path.with_suffix(".log"), make_half, tmp_path / "first") as child:
        while not half.exists():
            assert child.is_alive()
            time.sleep(0.01)
        made_once(tmp_path / "second", lambda path: path.write_text("whole"))
        assert half.exists()  # it is being written
    made_once(tmp_path / "third", lambda path: path.write_text("whole"))
    assert not half.parent.exists()
    assert [name for name in kept(tmp_path) if not name.endswith(".json")] == ["second", "third"]


def test_of_several_one_makes_it(tmp_path):
    """Two trainings started together would both encode all pictures, into one file."""
    made = []

    def make(path):
        made.append(1)
        time.sleep(0.2)
        path.write_text("whole")

    threads = [threading.Thread(target=made_once, args=(tmp_path / "a", make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 1
    assert is_whole(tmp_path / "a")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_features_of_a_backbone_in_half_precision_are_float32(
    dtype, backbone, tmp_path, monkeypatch
):
    """Transformers loads a half-precision checkpoint as such, which used to end in torch's bare error."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = str(tmp_path / "half")
    backbone.to(dtype).save_pretrained(folder)
    processor = ViTImageProcessor.from_pretrained(str(tmp_path / "backbone"))
    data = labelme(write_flat(tmp_path / "data"), content="images")
    features, encoder = frozen_features(data, folder, processor)
    assert {p.dtype for p in encoder.parameters()} == {torch.float32}
    assert features["test"].features["features"].feature.dtype == "float32"
    picture = data["test"][1]["image"].convert("RGB")
    pixel_values = processor(picture, return_tensors="pt")["pixel_values"]
    expected = HeadClassifier.encode(encoder, pixel_values)
    torch.testing.assert_close(torch.tensor([features["test"][1]["features"]]), expected)
    head = HeadClassifier.from_encoder(encoder, input_size=expected.shape[1], num_labels=3)
    model = MaxMIGModel.from_classifier(head, num_annotators=2)
    assert model(pixel_values=pixel_values).logits.dtype == torch.float32


@pytest.mark.parametrize("fault", ["cut", "gone", "none", "deep"])
def test_pictures_that_cannot_be_read_are_named(backbone, tmp_path, monkeypatch, fault):
    """After an hour's work, an error must say which file could not be read."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    paths = [str(tmp_path / f"{i}.png") for i in range(5)]
    for path in paths:
        Image.new("RGB", (40, 30), "olive").save(path)
    if fault == "cut":
        data = (tmp_path / "3.png").read_bytes()
        paths[3] = {"bytes": data[: len(data) // 2], "path": "3.png"}
    elif fault == "gone":
        (tmp_path / "3.png").unlink()
    elif fault == "none":
        paths[3] = None
    else:
        Image.new("I;16", (40, 30)).save(paths[3])
    files = [{"bytes": None, "path": p} if isinstance(p, str) else p for p in paths]
    pictures = Dataset.from_dict({"image": files}).cast_column("image", Pictures())
    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    with pytest.raises((OSError, ValueError), match="column 'image' must .* at item 3") as caught:
        frozen_features(DatasetDict(train=pictures), tmp_path / "backbone", processor, batch_size=2)
    assert fault in ("none", "deep") or "3.png" in str(caught.value)
    assert not list((tmp_path / "cache").rglob("*.arrow"))
