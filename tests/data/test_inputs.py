"""What reaches a classifier is complete, or refused with the number of the item."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Audio, Dataset, Features, Image, List, Value
from PIL import Image as Picture
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, ViTImageProcessor, Wav2Vec2FeatureExtractor

from hf_maxmig import CrowdCollator, HeadClassifier, HeadConfig, MaxMIGTrainer
from hf_maxmig.data.collator import arrow_rows
from hf_maxmig.data.inputs import remedy
from hf_maxmig.data.numbered import NumberedCollator, NumberedItems, check_first
from hf_maxmig.model.opening import short
from tests.worlds import make_crowd

PROCESSOR = ViTImageProcessor(size={"height": 8, "width": 8})
TEXT = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel({"[PAD]": 0, "a": 1}, unk_token="[PAD]")),
    pad_token="[PAD]",
)
BAD = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def read(dataset: Any, rows: list[int], collate: CrowdCollator) -> Any:
    """Collate items as the trainer does."""
    items = NumberedItems(arrow_rows(dataset, collate), dataset)
    return NumberedCollator(collate, keep=True)(items.__getitems__(rows))


# Numbers that are not finite


@pytest.mark.parametrize("wrong", BAD.values(), ids=BAD)
@pytest.mark.parametrize(
    "form", ["lists", "arrow", "numpy", "torch", "transform", "array", "tensor"]
)
def test_inputs_that_are_not_finite_are_refused_by_item(form: str, wrong: float) -> None:
    """One such item in 200 turned all weights into NaN, which were saved as the final model."""
    crowd = make_crowd(30)
    values = np.array(crowd["features"][:], dtype=np.float32)
    collate = CrowdCollator(4, 3, input_names=["features"])

    def refused(values: np.ndarray) -> None:
        column = Dataset.from_dict(
            {"features": values.tolist()}, Features(features=List(Value("float32"), 5))
        )
        dataset: Any = crowd.remove_columns("features").add_column(
            "features", column.data["features"]
        )
        if form in ("numpy", "torch"):
            dataset = dataset.with_format(form)
        elif form == "transform":
            dataset = dataset.with_transform(lambda batch: batch)
        elif form == "lists":
            dataset = list(dataset)
        elif form in ("array", "tensor"):
            kind: Any = np.float64 if form == "array" else torch.tensor
            dataset = [
                row
                | {
                    "features": kind(row["features"])
                    if form == "tensor"
                    else np.array(row["features"])
                }
                for row in dataset
            ]
        read(dataset, [3, 17, 8, 21], collate)

    refused(values)
    values[8, 2] = wrong
    with pytest.raises(ValueError, match=rf"`features` must be finite, got {wrong} at item 8: "):
        refused(values)


@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_a_none_among_numbers_is_refused_by_item(form: str | None) -> None:
    """Formats turn None into NaN, lists keep it."""
    dataset = Dataset.from_dict({"x": [[0.0, 1.0], [2.0, 3.0], [4.0, None], [5.0, 6.0]]})
    with pytest.raises(ValueError, match=r"x.* at item 2"):
        read(dataset.with_format(form), [1, 3, 2, 0], CrowdCollator(4, 3))


def test_other_inputs_must_be_finite_too() -> None:
    """Covers pictures that were processed before, sounds, posteriors, and numbers beyond float32."""
    collate = CrowdCollator(4, 3, Wav2Vec2FeatureExtractor())
    pixels = torch.zeros(2, 3, 4, 4)
    pixels[1, 2, 3, 0] = float("nan")
    for name, rows in {
        "pixel_values": list(pixels),
        "input_values": [[0.0, 1.0, 2.0], [0.0, float("inf")]],
        "crowd_posterior": [[0.5, 0.5, 0.0], [float("nan"), 0.5, 0.5]],
        "x": [0.0, 1e300],
    }.items():
        with pytest.raises(ValueError, match=rf"`{name}` must be finite, got (nan|inf) at item 1"):
            collate([{name: row} for row in rows])
    wide = Dataset.from_dict({"x": [0.0, 1.0, 1e300]})
    with pytest.raises(ValueError, match="`x` must be finite, got inf at item 2"):
        read(wide, [0, 2], CrowdCollator(4, 3))


def test_large_and_tiny_numbers_are_no_infinities() -> None:
    """Their sum overflows float32 or float16, but each of them is finite."""
    largest = torch.finfo(torch.float32).max
    rows = [{"x": [largest, largest]}, {"x": [-largest, 1e-45]}]
    assert CrowdCollator(4, 3)(rows)["x"].tolist() == [
        [largest, largest],
        [-largest, pytest.approx(0)],
    ]
    half = [{"x": torch.full((9,), 60_000.0, dtype=torch.float16)}] * 3
    assert CrowdCollator(4, 3)(half)["x"].dtype == torch.float16


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 10**30])
@pytest.mark.parametrize("form", ["list", "arrow"])
def test_integers_beyond_64_bits_are_refused(value: int, form: str) -> None:
    """They would come out negative, or as floats."""
    if form == "arrow" and value > 2**64:
        pytest.skip("Arrow holds none")
    rows: Any = [{"x": 1}, {"x": value}]
    if form == "arrow":
        rows = Dataset.from_dict({"x": np.array([1, value], dtype=np.uint64)})
    with pytest.raises(ValueError, match=r"column 'x' must .* at item 1"):
        read(rows, [0, 1], CrowdCollator(4, 3))


@pytest.mark.parametrize("where", range(3))
def test_numbers_in_part_of_the_examples_are_refused(where: int) -> None:
    """A column used to be dropped if the first example held text, and refused if the second did."""
    rows = [{"x": [0.5, 1.0], "y": 2.0} for _ in range(3)]
    rows[where]["x"] = "half"
    with pytest.raises(ValueError, match=rf"column 'x' must hold numbers .* at item {where}"):
        CrowdCollator(4, 3)(rows)


def test_examples_that_are_no_dicts_are_refused() -> None:
    """Torch data sets often yield tuples."""
    with pytest.raises(
        TypeError, match=r"examples must be dicts of columns, got \(0\.5, 1\) at item 1"
    ):
        CrowdCollator(4, 3)([{"x": 0.5}, (0.5, 1)])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="columns must have names, got 7"):
        CrowdCollator(4, 3)([{7: 0.5}])  # type: ignore[dict-item]


# What is not an input


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Write picture files of one colour each."""
    paths = [str(tmp_path / f"{i}.png") for i in range(6)]
    for i, path in enumerate(paths):
        Picture.new("RGB", (12, 10), (40 * i, 0, 90)).save(path)
    return paths


def test_unopened_pictures_are_refused_with_the_remedy(files: list[str]) -> None:
    """The old advice to rename the column does not open the pictures."""
    blobs = [Path(path).read_bytes() for path in files]
    unopened = Dataset.from_dict({"image": files}).cast_column("image", Image(decode=False))
    collate = CrowdCollator(4, 3, PROCESSOR, ["pixel_values"])
    for rows in (
        Dataset.from_dict({"id": ["a"] * 6, "image": files}), Dataset.from_dict({"image": blobs}), unopened,
        [{"image": Path(path)} for path in files], [{"image": path.removesuffix(".png")} for path in files],
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"cast_column\('image', Image\(\)\)"):
            read(rows, [0, 1], collate)
    opened = unopened.cast_column("image", Image())
    assert read(opened, [0, 1], collate)["pixel_values"].shape == (2, 3, 8, 8)
    for form in ("numpy", "torch"):
        with pytest.raises(ValueError, match=r"'image' holds arrays.*with_format\(None\)"):
            read(opened.with_format(form), [0, 1], collate)


def test_raw_text_and_sound_are_refused_with_the_remedy(tmp_path: Path) -> None:
    """A tokenizer passed as `processing_class` pads texts but does not tokenise them."""
    collate = CrowdCollator(4, 3, TEXT, ["input_ids", "attention_mask"])
    with pytest.raises(
        ValueError,
        match=r"'review' holds text that is not tokenised: .*tokenizer\(batch\['review'\]",
    ):
        collate([{"id": "7", "review": "All was well."}])
    sound = CrowdCollator(4, 3, Wav2Vec2FeatureExtractor(), ["input_values"])
    unopened = Dataset.from_dict({"a": [{"bytes": b"RIFF", "path": "1.wav"}]}).cast_column(
        "a", Audio(decode=False)
    )
    for value in ("a/1.wav", b"RIFF", unopened[0]["a"]):
        with pytest.raises(ValueError, match=r"cast_column\('a', Audio\(\)\).*feature extractor"):
            sound([{"a": value}])
    with pytest.raises(
        ValueError, match="'a' holds sound as it was recorded: let the feature extractor"
    ):
        sound([{"a": {"array": np.zeros(9), "sampling_rate": 16_000}}])


def test_what_nobody_knows_how_to_turn_into_an_input_is_named() -> None:
    """The columns that are present say most about the right remedy."""
    assert remedy({"x": [1.0]}, ["features"]) == "rename your column."
    # A head on texts also takes features; numbers beside a text are not its inputs.
    beside = {"year": [1999], "stars": [3.5], "review": ["Good."]}
    message = remedy(beside, ["input_ids", "features"])
    assert message.startswith("column 'review' holds text that is not tokenised")
    assert "or `frozen_features` with `column='review'`" in message
    with pytest.raises(ValueError, match="one of features, got none: rename your column"):
        CrowdCollator(4, 3, input_names=["features"])([{}, {}])


def test_errors_show_little_of_what_is_large() -> None:
    """The bytes of a picture, or a table in one cell, would fill the screen."""
    for value in (
        b"\0" * 10**7,
        "x" * 10**7,
        list(range(10**6)),
        {i: i for i in range(10**5)},
        "\ud800",
    ):
        text = short(value)
        assert len(text) <= 80
        text.encode()
    assert short(np.int64(3)) == "3"


# Broken pictures


def broken(path: str, how: str) -> None:
    data = Path(path).read_bytes()
    if how == "cut":
        Path(path).write_bytes(data[: len(data) // 2])
    elif how == "empty":
        Path(path).write_bytes(b"")
    elif how == "text":
        Path(path).write_text("<html>not found</html>")
    elif how == "gone":
        Path(path).unlink()
    elif how == "header":
        Path(path).write_bytes(data[:8] + b"\0" * 40)
    else:
        assert how == "bomb"
        Picture.new("RGB", (40, 40)).save(path)


@pytest.mark.parametrize(
    ("how", "workers"),
    [
        *((how, 0) for how in ("cut", "empty", "text", "gone", "header", "bomb")),
        pytest.param("cut", 1, marks=pytest.mark.slow),
    ],
)
def test_broken_pictures_are_named(
    files: list[str],
    how: str,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """In a shuffled batch of a million files nobody would find the truncated one."""
    monkeypatch.setattr(Picture, "MAX_IMAGE_PIXELS", 500)  # twice as many are a decompression bomb
    broken(files[4], how)
    if workers:
        request.getfixturevalue("clean_workers")
    dataset = Dataset.from_dict({"image": files}).cast_column("image", Image())
    items = NumberedItems(dataset)
    collate = NumberedCollator(CrowdCollator(4, 3, PROCESSOR), keep=True)
    loader = torch.utils.data.DataLoader(
        items, batch_sampler=[[1, 0], [2, 4, 5]], collate_fn=collate, num_workers=workers
    )
    batches = iter(loader)
    assert next(batches)["crowd_row"].tolist() == [1, 0]
    kind = FileNotFoundError if how == "gone" else (OSError, ValueError)
    with pytest.raises(
        kind, match=r"column 'image' must hold files .*/4\.png at item 4 "
    ) as caught:
        next(batches)
    assert how == "bomb" or isinstance(caught.value, OSError | ValueError)


def test_broken_bytes_and_other_data_sets_are_named(files: list[str]) -> None:
    """Pictures stored in the data set have no file, so the error must give their position."""
    blobs = [{"bytes": Path(path).read_bytes(), "path": None} for path in files]
    blobs[3]["bytes"] = blobs[3]["bytes"][:50]
    dataset = Dataset.from_dict({"image": blobs}).cast_column("image", Image())
    with pytest.raises((OSError, ValueError), match="'image' must .*one without a name at item 3 "):
        NumberedItems(dataset).__getitems__([0, 3])
    subset = torch.utils.data.Subset(dataset, [5, 3, 1])  # type: ignore[arg-type]
    with pytest.raises((OSError, ValueError), match="'image' must .*one without a name at item 1 "):
        NumberedItems(subset).__getitems__([0, 1])

    class Own(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"x": {0: 1.0, 1: 2.0}[i]}

    with pytest.raises(ValueError, match=r"must be readable, got at item 2 KeyError: 2"):
        NumberedItems(Own()).__getitems__([1, 2])


@pytest.mark.parametrize("mode", ["I;16", "F", "La"])
def test_pictures_of_odd_modes_are_read_or_named(mode: str) -> None:
    """Pillow's own error for a mode that cannot become RGB names no item."""
    with pytest.raises(ValueError, match=rf"'image' must hold pictures .*'{mode}' at item 1"):
        CrowdCollator(4, 3, PROCESSOR)([{"image": Picture.new(m, (5, 6))} for m in ("L", mode)])


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0)])
def test_pictures_without_pixels_are_named(size: tuple[int, int]) -> None:
    """A processor would divide by their width."""
    with pytest.raises(ValueError, match=r"pictures with pixels, got \d x \d at item 1"):
        CrowdCollator(4, 3, PROCESSOR)([{"image": Picture.new("RGB", s)} for s in ((4, 4), size)])


def test_pictures_that_the_processor_refuses_are_named() -> None:
    """The processor's own error is about the whole batch."""

    def processor(pictures: list[Any], return_tensors: str) -> dict[str, Any]:
        if any(picture.size[0] < 3 for picture in pictures):
            raise ZeroDivisionError("division by zero")
        return {"pixel_values": torch.zeros(len(pictures), 3)}

    rows = [{"image": Picture.new("RGB", size)} for size in ((4, 4), (4, 4), (2, 4))]
    with pytest.raises(ValueError, match=r"got item 2, \(2, 4\) pixels \(ZeroDivisionError"):
        CrowdCollator(4, 3, processor)(rows)


def test_animated_pictures_are_told_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Training on first frames may not be what was meant, but it is no error."""
    frames = [Picture.new("L", (6, 6), value) for value in (10, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    collate = CrowdCollator(4, 3, PROCESSOR)
    with caplog.at_level("WARNING"):
        for _ in range(2):
            with Picture.open(tmp_path / "a.gif") as moving:
                batch = collate([{"image": frames[0]}, {"image": moving}])
    assert torch.equal(batch["pixel_values"][0], batch["pixel_values"][1])


def test_text_that_the_tokenizer_did_not_make_is_named() -> None:
    """The tokenizer's own error only mentions tensors."""
    collate = CrowdCollator(4, 3, TEXT)
    rows = [{"input_ids": [1, 0], "attention_mask": [1, 1]} for _ in range(3)]
    for wrong in (["a"], [1, None], [[1]], {"a": 1}, 10**30, "text"):
        with pytest.raises(ValueError, match="input_ids.* at item 1"):
            collate([rows[0], rows[1] | {"input_ids": wrong}, rows[2]])
    with pytest.raises(
        ValueError, match=r"input_ids, attention_mask must be as TokenizersBackend makes them"
    ):
        collate([rows[0], rows[1] | {"attention_mask": [1]}, rows[2]])


# In a training


def test_a_training_names_the_item_of_the_whole_data_set(make_args: Any, files: list[str]) -> None:
    """Short trainings use half of the items, where the item has another number."""
    from transformers import ResNetConfig, ResNetForImageClassification

    from hf_maxmig import add_annotations

    broken(files[4], "cut")
    votes = {
        "item": list("abcdef") * 2,
        "annotator": ["p"] * 6 + ["q"] * 6,
        "annotation": list("uvuvuv") * 2,
    }
    images = Dataset.from_dict({"id": list("abcdef"), "image": files}).cast_column("image", Image())
    config = ResNetConfig(
        embedding_size=4, hidden_sizes=[4], depths=[1], num_labels=2, layer_type="basic"
    )
    for changes in (
        {"init": None},
        {"init": "vote_share", "train_sampling_strategy": "sequential"},
    ):
        trainer = MaxMIGTrainer(
            model=ResNetForImageClassification(config), processing_class=PROCESSOR,
            args=make_args(per_device_train_batch_size=2, **changes), train_dataset=add_annotations(images, votes, "id"),
        )  # fmt: skip
        with pytest.raises((OSError, ValueError), match=r"/4\.png at item 4 "):
            trainer.train()


@pytest.mark.parametrize("fault", ["unopened", "gone"])
@pytest.mark.parametrize("where", ["train_dataset", "eval_dataset"])
def test_unusable_items_are_refused_before_a_training(
    make_args: Any, files: list[str], where: str, fault: str
) -> None:
    """The held-out set used to be read only after the first epoch, and its last picture at the end of it."""
    from transformers import ResNetConfig, ResNetForImageClassification

    from hf_maxmig import add_annotations

    votes = {"item": list("abcdef"), "annotator": ["p"] * 6, "annotation": list("uvuvuv")}
    whole = add_annotations(Dataset.from_dict({"id": list("abcdef"), "image": files}), votes, "id")
    bad = whole if fault == "unopened" else whole.cast_column("image", Image())
    other = [path.replace(".png", ".copy.png") for path in files]
    for path, copy in zip(files, other, strict=True):
        Path(copy).write_bytes(Path(path).read_bytes())
    good = Dataset.from_dict({"id": list("abcdef"), "image": other}).cast_column("image", Image())
    good = add_annotations(good, votes, "id")
    if fault == "gone":
        Path(files[5]).unlink()
    config = ResNetConfig(
        embedding_size=4, hidden_sizes=[4], depths=[1], num_labels=2, layer_type="basic"
    )
    trainer = MaxMIGTrainer(
        model=ResNetForImageClassification(config), processing_class=PROCESSOR,
        args=make_args(per_device_train_batch_size=2), **{"train_dataset": good, "eval_dataset": good, where: bad},
    )  # fmt: skip
    shown = r"cast_column\('image', Image\(\)\)" if fault == "unopened" else r"5\.png at item 5: "
    with pytest.raises((FileNotFoundError, ValueError), match=shown):
        trainer.train()
    assert trainer.state.global_step == 0


def test_looking_at_the_first_item_draws_nothing() -> None:
    """If it advanced the random generator, the same seed would give another training."""

    class Noisy(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, i: int) -> dict[str, Any]:
            noise = torch.rand(1).item() + np.random.rand() + random.random()
            return {"x": noise, "annotations": [0] * 4}

    def draws() -> tuple[float, ...]:
        return torch.rand(1).item(), np.random.rand(), random.random()

    for _ in range(2):
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        expected = draws()
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        check_first(Noisy(), CrowdCollator(4, 3))
        assert draws() == expected


def test_looking_at_the_first_item_leaves_alone_what_it_cannot_know(files: list[str]) -> None:
    """Streams, transforms, other collators, pictures that nobody opens, and empty data sets must be left alone."""
    Path(files[3]).unlink()
    images = Dataset.from_dict({"x": [0.0] * 6, "image": files}).cast_column("image", Image())
    numbers = CrowdCollator(4, 3, input_names=["x"])
    check_first(images, numbers)  # numbers only
    check_first(
        images.with_format(columns=["x"]), CrowdCollator(4, 3, PROCESSOR, ["pixel_values", "x"])
    )
    pictures = CrowdCollator(4, 3, PROCESSOR, ["pixel_values"])
    for dataset in (
        images.to_iterable_dataset(), images.with_transform(lambda batch: batch), images.select([]), None,
        images.cast_column("image", Image(decode=False)).select([]),
    ):  # fmt: skip
        check_first(dataset, pictures)
    check_first(images, lambda examples: examples)
    with pytest.raises(FileNotFoundError, match=r"3\.png at item 3: "):
        check_first(images, pictures)


def test_numbers_in_columns_of_their_own_are_to_be_put_into_one():
    """A table of 124 columns needs more than renaming one of them."""
    columns = {f"c{i}": [0.5, 1.5] for i in range(4)}
    rows = [{name: values[i] for name, values in columns.items()} for i in range(2)]
    collate = CrowdCollator(4, 3, input_names=["features", "labels", "return_dict"])
    with pytest.raises(
        ValueError, match=r"one of features, got c0, c1, c2, c3, .*: let .*, put them into one list"
    ):
        collate([{**row, "annotators": [0], "annotations": [1]} for row in rows])


@pytest.mark.parametrize("padded", [False, True])
def test_tokens_that_the_classifier_does_not_know_name_the_item(padded):
    """On an accelerator they cause a device assertion long afterwards, without an item."""
    rows = [{"input_ids": ids} for ids in ([1, 2], [3, 9], [8, 8])]
    if padded:
        rows = [{"input_ids": torch.tensor(row["input_ids"])} for row in rows]
    collate = CrowdCollator(4, 3, input_names=["input_ids"], vocabulary=9)
    with pytest.raises(ValueError, match=r"from 0 to 8, got 9 at item 1"):
        collate(rows)
    assert collate(rows[::2])["input_ids"].tolist() == [[1, 2], [8, 8]]


def test_features_of_another_length_are_refused_by_the_head():
    """Torch only says that two matrices cannot be multiplied."""
    head = HeadClassifier(HeadConfig(input_size=6, num_labels=3))
    with pytest.raises(ValueError, match=r"`input_size` = 6 .* got the shape \(2, 5\)"):
        head(features=torch.zeros(2, 5))
