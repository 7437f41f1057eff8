"""Tests of `hf_maxmig.data.collator`: batches of votes, gold labels and inputs."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from datasets import (
    Array2D,
    ClassLabel,
    Dataset,
    Features,
    IterableDataset,
    LargeList,
    List,
    Value,
    concatenate_datasets,
)
from datasets import (
    Image as ImageFeature,
)
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast, ViTImageProcessor, Wav2Vec2FeatureExtractor

from hf_maxmig.data import collator
from hf_maxmig.data.collator import ArrowRows, CrowdCollator, arrow_rows, crowd_batches
from hf_maxmig.data.columns import crowd_features

# N = 6 items, M = 4 annotators, C = 3 classes, K = 5: item 4 has two labels by one annotator.
ANNOTATORS = [[3, 0], [], [1], [2, -1], [0, 0, 3, 2, 1], []]
ANNOTATIONS = [[2, 1], [], [0], [-1, 2], [1, 2, 0, 0, 1], []]
DENSE = [[1, -1, -1, 2], [-1, -1, -1, -1], [0, 2, 1, -1]]

COLLATE = CrowdCollator(num_annotators=4, num_classes=3)


def padded(rows: list[list[int]]) -> Tensor:
    """Pad lists with -1 in a naive loop."""
    width = max(1, *map(len, rows))
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows])


def crowd(kind: Callable[[list[int]], Any] = list) -> list[dict[str, Any]]:
    """Return the items as examples, with each list converted by `kind`."""
    return [
        {"x": float(i), "annotators": kind(m), "annotations": kind(c)}
        for i, (m, c) in enumerate(zip(ANNOTATORS, ANNOTATIONS, strict=True))
    ]


def data(rows: list[dict[str, Any]] | None = None) -> Dataset:
    """Return the items as a data set with names."""
    names = crowd_features(["a", "b", "c", "d"], ["u", "v", "w"])
    return Dataset.from_list(
        crowd() if rows is None else rows, features=Features(x=Value("float32"), **names)
    )


def ints(row: list[int]) -> np.ndarray:
    """Return an array as NumPy's format gives it."""
    return np.array(row, dtype=np.int32)


# Votes in a batch


@pytest.mark.parametrize(
    "kind",
    [list, tuple, ints, np.array, torch.tensor, lambda row: torch.tensor(row, dtype=torch.int32)],
    ids=["lists", "tuples", "int32", "arrays", "tensors", "int32_tensors"],
)
def test_collator_pads_ragged_pairs(kind: Callable[[list[int]], Any]) -> None:
    """A label moved to another place of its item would belong to another annotator."""
    batch = COLLATE(crowd(kind))
    assert torch.equal(batch["annotators"], padded(ANNOTATORS))
    assert torch.equal(batch["annotations"], padded(ANNOTATIONS))
    assert batch["annotators"].dtype == batch["annotations"].dtype == torch.int64
    assert torch.equal(batch["x"], torch.arange(6.0))


@pytest.mark.parametrize("form", [None, "numpy", "torch"])
@pytest.mark.parametrize("batched", [False, True])
def test_collator_takes_every_format(form: str | None, batched: bool) -> None:
    """Formats give lists, arrays of arrays or tensors, and another dtype for empty lists."""
    rows = data().with_format(form)
    examples = rows.__getitems__(list(range(6))) if batched else [rows[i] for i in range(6)]
    batch = COLLATE(examples)
    assert torch.equal(batch["annotators"], padded(ANNOTATORS))
    assert torch.equal(batch["annotations"], padded(ANNOTATIONS))
    assert torch.equal(batch["x"], torch.arange(6.0))


def test_collator_gives_one_empty_place_to_a_batch_without_labels() -> None:
    """K = 0 would lead to reductions over an empty dimension."""
    batch = COLLATE([{"annotators": [], "annotations": []} for _ in range(2)])
    assert torch.equal(batch["annotators"], torch.full((2, 1), -1))
    assert torch.equal(batch["annotations"], torch.full((2, 1), -1))


@pytest.mark.parametrize("kind", [list, ints, torch.tensor], ids=["lists", "arrays", "tensors"])
def test_collator_takes_dense_annotations(kind: Callable[[list[int]], Any]) -> None:
    """A label could be read as another annotator's, or a row of -1 shift its neighbours."""
    batch = COLLATE([{"annotations": kind(row)} for row in DENSE])
    assert torch.equal(batch["annotators"], torch.tensor([[0, 3, -1], [-1, -1, -1], [0, 1, 2]]))
    assert torch.equal(batch["annotations"], torch.tensor([[1, 2, -1], [-1, -1, -1], [0, 2, 1]]))
    nobody = COLLATE([{"annotations": kind(DENSE[1])}] * 2)
    assert torch.equal(nobody["annotators"], torch.full((2, 1), -1))


def test_collator_refuses_dense_annotations_of_another_length() -> None:
    """Ragged labels without the column `annotators` must not be read as dense ones."""
    with pytest.raises(
        ValueError, match=r"one place per annotator, M = 4, got 3 at item 1: ragged ones need"
    ):
        COLLATE([{"annotations": DENSE[0]}, {"annotations": [0, 1, 2]}])


def test_collator_without_crowd_columns_gives_none() -> None:
    """A held-out set may have only gold labels."""
    assert set(COLLATE([{"x": 1.0, "label": 2}, {"x": 2.0, "label": 0}])) == {"x", "labels"}


@pytest.mark.parametrize("name", ["annotators", "annotations"])
@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        ([9, 0], "in 0..{last} or be -1 for padding, got 9 at item 2."),
        ([0, -2], "in 0..{last} or be -1 for padding, got -2 at item 2."),
        (np.array([2**64 - 1, 0], dtype=np.uint64), "padding, got 1844674407370955161"),
        (None, "be a list, got None at item 2: an item without votes has an empty list."),
        ([0, None], "be a flat list of integers, got [0, None] at item 2"),
        ([0.0, 1.0], "be a flat list of integers, got [0.0, 1.0] at item 2"),
        ([True, False], "be a flat list of integers, got [True, False] at item 2"),
        (["0", "1"], "be a flat list of integers, got ['0', '1'] at item 2"),
        ([[0, 1]], "be a flat list of integers, got [[0, 1]] at item 2"),
        ([[0], [1, 1]], "be a flat list of integers, got [[0], [1, 1]] at item 2"),
        (1, "be a flat list of integers, got 1 at item 2"),
        ("10", "be a flat list of integers, got '10' at item 2"),
        (torch.tensor([0.0, float("nan")]), "got tensor([0., nan]) at item 2: None and NaN"),
    ],
    ids=str,
)
def test_collator_refuses_what_are_no_labels(name: str, wrong: Any, shown: str) -> None:
    """Each of these would silently be cast, or index another annotator or class."""
    examples = crowd()[:3]
    examples[2] = {"annotators": [0, 1], "annotations": [0, 1]} | {"x": 2.0, name: wrong}
    with pytest.raises(ValueError, match=f"`{name}`") as caught:
        COLLATE(examples)
    assert shown.format(last={"annotators": 3, "annotations": 2}[name]) in str(caught.value)


def test_collator_error_is_worded_as_documented() -> None:
    """Users search for this exact text."""
    with pytest.raises(ValueError, match="annotations") as caught:
        CrowdCollator(5, 8)(
            [{"annotators": [0] * (i + 1), "annotations": [i + 5] * (i + 1)} for i in range(4)]
        )
    assert (
        str(caught.value) == "`annotations` must lie in 0..7 or be -1 for padding, got 8 at item 3."
    )


def test_collator_names_the_item_with_none_in_torch_format() -> None:
    """Beside a None, the torch format turns the other items' labels into floats as well."""
    rows = [{"annotators": [0], "annotations": [1]}, {"annotators": [1], "annotations": [None]}]
    examples = Dataset.from_list(rows).with_format("torch").__getitems__([0, 1])
    assert examples[0]["annotations"].is_floating_point()  # otherwise the test would be vacuous
    with pytest.raises(ValueError, match=r"`annotations` .* got tensor\(\[nan\]\) at item 1"):
        COLLATE(examples)


def test_collator_refuses_pairs_of_unequal_length() -> None:
    """If lists were cut to the shorter one, or padded, labels would lose their annotator."""
    examples = crowd()
    examples[4]["annotations"].pop()
    with pytest.raises(ValueError, match="must have the same length, got 5 and 4 at item 4"):
        COLLATE(examples)
    # Equal in total, so that only a comparison per item notices it.
    examples[0]["annotations"].append(0)
    with pytest.raises(ValueError, match="must have the same length, got 2 and 3 at item 0"):
        COLLATE(examples)


@pytest.mark.parametrize("lacking", [0, 3])
@pytest.mark.parametrize(
    "names", [("annotators",), ("annotations",), ("annotators", "annotations")]
)
def test_collator_refuses_crowd_columns_in_part_of_the_examples(
    lacking: int, names: tuple[str, ...]
) -> None:
    """If only the first example were checked, the votes of the others would be lost."""
    examples = crowd()
    for name in names:
        del examples[lacking][name]
    with pytest.raises(ValueError, match=rf"must be a list, got None at item {lacking}"):
        COLLATE(examples)


def test_collator_refuses_annotators_without_annotations() -> None:
    """Annotators without their labels are no votes, and must not pass for a data set without any."""
    with pytest.raises(ValueError, match="`annotations` must be a list, got None at item 0"):
        COLLATE([{"annotators": [0]}])


# Gold labels


@pytest.mark.parametrize("column", ["label", "labels"])
def test_collator_passes_gold_labels(column: str) -> None:
    """An item without a gold label must not count as one of class -1, 0 or NaN."""
    given = [2, None, -1, -100, np.int64(1), torch.tensor(0), float("nan"), torch.tensor(2.0), True]
    examples = [{"x": 1.0, column: label} for label in given]
    batch = COLLATE(examples)
    assert batch["labels"].tolist() == [2, -100, -100, -100, 1, 0, -100, 2, 1]
    assert batch["labels"].dtype == torch.int64
    assert set(batch) == {"x", "labels"}
    # Absent equals None, in the first example as in any other.
    assert COLLATE([{"x": 1.0}, *examples])["labels"].tolist()[:3] == [-100, 2, -100]
    assert COLLATE([{column: None}] * 2)["labels"].tolist() == [-100, -100]


def test_collator_takes_gold_labels_of_torch_format() -> None:
    """A single None turns the whole column of the batch into floats."""
    rows = Dataset.from_dict({"label": [2, None, 1]}).with_format("torch")
    assert COLLATE(rows.__getitems__([0, 1, 2]))["labels"].tolist() == [2, -100, 1]
    assert COLLATE([rows[i] for i in range(3)])["labels"].tolist() == [2, -100, 1]


def test_collator_takes_labels_before_label() -> None:
    """Two columns of gold labels must not be mixed."""
    assert COLLATE([{"label": 0, "labels": 2}, {"label": 1, "labels": None}])[
        "labels"
    ].tolist() == [2, -100]


@pytest.mark.parametrize(
    "wrong", [3, -2, 0.5, float("inf"), "1", [1], torch.tensor([1, 0])], ids=str
)
def test_collator_refuses_gold_labels_that_are_no_class(wrong: Any) -> None:
    """A gold label of another set of classes would merely lower the accuracy."""
    with pytest.raises(
        ValueError, match=r"`label` must lie in 0..2, or be None, -1 or -100 .* got .* at item 1\."
    ) as caught:
        COLLATE([{"label": 0}, {"label": wrong}])
    assert f"got {wrong!r} at" in str(caught.value)


# Pictures

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8))
PROCESSOR = ViTImageProcessor(size={"height": 8, "width": 8})
TEXT = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel({"[PAD]": 0, "a": 1, "b": 2}, unk_token="[PAD]")),
    pad_token="[PAD]",
)


def test_collator_processes_pictures_of_every_mode() -> None:
    """Real folders mix grey pictures, palettes and alpha channels."""
    palette = PICTURE.convert("P")
    palette.info["transparency"] = bytes([0, 0, 0])
    pictures = [PICTURE, *(PICTURE.convert(mode) for mode in ("L", "RGBA", "P", "1")), palette]
    assert len({picture.mode for picture in pictures}) == 5
    batch = CrowdCollator(4, 3, PROCESSOR)([{"image": picture} for picture in pictures])
    assert set(batch) == {"pixel_values"}
    assert batch["pixel_values"].shape == (6, 3, 8, 8)
    for values, picture in zip(batch["pixel_values"], pictures, strict=True):
        expected = PROCESSOR(picture.convert("RGBA").convert("RGB"), return_tensors="pt")
        assert torch.equal(values, expected["pixel_values"][0])
    assert not torch.equal(batch["pixel_values"][0], batch["pixel_values"][1])


def test_collator_names_what_pictures_lack() -> None:
    """If pictures were skipped because the first example has none, batches would lack inputs."""
    process = CrowdCollator(4, 3, PROCESSOR)
    with pytest.raises(ValueError, match="one column of pictures, got photo, mask"):
        process([{"photo": PICTURE, "mask": PICTURE}])
    for pictures, item in ([None, PICTURE], 0), ([PICTURE, None], 1), ([PICTURE, "a.jpg"], 1):
        with pytest.raises(ValueError, match=f"'photo' must hold a picture .* at item {item}"):
            process([{"photo": picture} for picture in pictures])
    with pytest.raises(
        ValueError, match=r"\(column 'photo'\) must come with an image processor, got none"
    ):
        COLLATE([{"photo": PICTURE}])
    with pytest.raises(ValueError, match=f"image processor, got {type(TEXT).__name__}:"):
        CrowdCollator(4, 3, TEXT)([{"photo": PICTURE}])


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_collator_refuses_pictures_that_rgb_would_cut_off(mode: str) -> None:
    """Pillow clips 16 bits at 255, so a scan would turn white."""
    deep = Image.new(mode, (5, 6))
    with pytest.raises(ValueError, match=f"8 bits per channel, got mode '{mode}' at item 1"):
        CrowdCollator(4, 3, PROCESSOR)([{"image": PICTURE}, {"image": deep}])


def test_collator_leaves_pictures_alone_where_pixel_values_are_given() -> None:
    """A data set that keeps its pictures beside their pixel values needs no processor."""
    given = torch.rand(2, 3, 4, 4)
    batch = COLLATE([{"image": PICTURE, "pixel_values": values} for values in given])
    assert set(batch) == {"pixel_values"}
    assert torch.equal(batch["pixel_values"], given)


def test_collator_stacks_pixel_values_where_the_processor_can_pad() -> None:
    """In some image processors `pad` means something else than in a tokenizer."""

    class Padding:
        model_input_names = ("pixel_values",)

        def pad(self, *args: Any, **kwargs: Any) -> None:
            raise AssertionError("not for pictures that are computed already")

    given = torch.rand(2, 3, 4, 5)
    batch = CrowdCollator(4, 3, Padding())([{"pixel_values": values} for values in given])
    assert torch.equal(batch["pixel_values"], given)


def test_collator_leaves_pictures_alone_where_the_classifier_takes_none() -> None:
    """A classifier of features would be given `pixel_values`."""
    collate = CrowdCollator(4, 3, input_names=["features"])
    assert set(collate([{"image": PICTURE, "features": [1.0, 2.0]}])) == {"features"}


def test_collator_passes_all_that_the_processor_gives() -> None:
    """Processors of patches return a mask with the pixels; without it padding would count as picture."""

    def processor(pictures: list[Image.Image], return_tensors: str) -> dict[str, Tensor]:
        assert return_tensors == "pt"
        return {
            "pixel_values": torch.zeros(len(pictures), 3),
            "pixel_mask": torch.ones(len(pictures)),
        }

    assert set(CrowdCollator(4, 3, processor)([{"image": PICTURE}])) == {
        "pixel_values",
        "pixel_mask",
    }
    named = CrowdCollator(4, 3, processor, input_names=["pixel_values"])
    assert set(named([{"image": PICTURE}])) == {"pixel_values"}


# Text and sound


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor], ids=["lists", "arrays", "tensors"])
@pytest.mark.parametrize("first", ["input_ids", "attention_mask"])
def test_collator_pads_text(kind: Callable[[list[int]], Any], first: str) -> None:
    """Padding must be masked, and must not depend on which column comes first."""
    rows = [{"input_ids": kind([1, 2, 1]), "attention_mask": kind([1, 0, 1])}]
    rows += [{"input_ids": kind([2]), "attention_mask": kind([1])}]
    rows = [{"text": "a", first: row[first], "n": 5} | row for row in rows]
    batch = CrowdCollator(4, 3, TEXT)(rows)
    assert batch["input_ids"].tolist() == [[1, 2, 1], [2, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 0, 1], [1, 0, 0]]
    assert batch["n"].tolist() == [5, 5]
    assert len(batch) == 3


def test_collator_makes_the_mask_that_text_lacks() -> None:
    """Without a mask the padding is read as text; a classifier that takes no mask must get none."""
    rows = [{"input_ids": [1, 2, 1]}, {"input_ids": [2]}]
    assert CrowdCollator(4, 3, TEXT)(rows)["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    bare = CrowdCollator(4, 3, TEXT, input_names=["input_ids"])
    assert set(bare(rows)) == {"input_ids"}


def test_collator_pads_sound() -> None:
    """A feature extractor pads like a tokenizer."""
    rows = [{"input_values": [1.0, 2.0, 3.0]}, {"input_values": [4.0]}]
    batch = CrowdCollator(4, 3, Wav2Vec2FeatureExtractor())(rows)
    assert batch["input_values"].tolist() == [[1, 2, 3], [4, 0, 0]]


def test_collator_names_what_text_lacks() -> None:
    """The tokenizer's own error is about nesting."""
    with pytest.raises(
        ValueError, match="'input_ids' must have a value in every example, got none at item 1"
    ):
        CrowdCollator(4, 3, TEXT)([{"input_ids": [1]}, {"input_ids": None}])
    with pytest.raises(
        ValueError, match=r"'input_ids' must hold numbers of one shape .*a tokenizer"
    ):
        COLLATE([{"input_ids": [1, 2]}, {"input_ids": [1]}])


# Numbers


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0.5, 1], torch.float32),
        ([np.float64(0.5), np.float64(1)], torch.float32),
        (
            [torch.tensor(0.5, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)],
            torch.float32,
        ),
        ([torch.tensor(0.5, dtype=torch.bfloat16)] * 2, torch.bfloat16),
        ([np.float16(0.5), np.float16(1)], torch.float16),
        ([3, -4], torch.int64),
        ([np.uint8(3), np.uint8(4)], torch.uint8),
        ([True, False], torch.bool),
        ([[0.5, 1.5, 2.5], [3, 4, 5]], torch.float32),
        ([[[1, 2, 3]], [[4, 5, 6]]], torch.int64),
        ([np.ones((2, 3)), np.zeros((2, 3))], torch.float32),
        ([torch.ones(2, 3), np.zeros((2, 3), dtype=np.float32)], torch.float32),
        ([torch.ones(2, 3), [[0, 1, 2], [3, 4, 5]]], torch.float32),
    ],
    ids=str,
)
def test_collator_stacks_numbers(values: list[Any], dtype: torch.dtype) -> None:
    """float64 would not fit a classifier's weights, and integers turned to floats would not fit an embedding."""
    stacked = COLLATE([{"x": value} for value in values])["x"]
    assert stacked.dtype == dtype
    for row, value in zip(stacked, values, strict=True):
        assert torch.equal(row.double(), torch.as_tensor(value).double())


def test_collator_stacks_arrays_that_cannot_be_written() -> None:
    """Arrow's memory is read-only. Torch warns about tensors on it, and warnings are errors here."""
    array = np.arange(3.0)
    array.flags.writeable = False
    assert COLLATE([{"x": array}, {"x": array}])["x"].tolist() == [[0, 1, 2], [0, 1, 2]]


def test_collator_leaves_out_what_are_no_numbers() -> None:
    """File names, dates and structures cannot become tensors."""
    example = {
        "x": 1.0,
        "file": "a.jpg",
        "blob": b"ab",
        "when": np.datetime64("2020-01-01"),
        "where": {"lat": 1.0},
        "tags": ["a", "b"],
        "boxes": [{"x": 1}],
        "words": np.array(["a"]),
        "nothing": None,
        "empty": [],
        "gaps": [None, None],
    }
    assert set(COLLATE([example, example | {"tags": ["c"], "file": None, "empty": ["a"]}])) == {"x"}


def test_collator_takes_only_what_the_classifier_does() -> None:
    """A file number passed to a classifier as an input would be an error or, worse, accepted."""
    collate = CrowdCollator(4, 3, input_names=["x", "mask"])
    batch = collate([{"x": 1.0, "id": 7, "ragged": [1]}, {"x": 2.0, "id": 8, "ragged": [1, 2]}])
    assert set(batch) == {"x"}
    with pytest.raises(ValueError, match="one of x, mask, got features, label: rename your column"):
        collate([{"features": 1.0, "label": 0}])


RAGGED: list[list[Any]] = [
    [[1.0, 2.0], [3.0]],
    [[[1.0], [2.0, 3.0]], [[1.0], [2.0]]],
    [torch.ones(2), torch.ones(3)],
    [np.ones(2), np.ones(3)],
    [1.0, [1.0]],
    [[1.0, None], [2.0, 3.0]],
    [1, "one"],
]


@pytest.mark.parametrize("values", RAGGED, ids=str)
def test_collator_names_a_ragged_column(values: list[Any]) -> None:
    """NumPy's own error does not say which of forty columns it was."""
    with pytest.raises(
        ValueError, match="column 'boxes' must hold numbers of one shape in all examples"
    ):
        COLLATE([{"x": 1.0, "boxes": value} for value in values])


@pytest.mark.parametrize(
    "examples", [[{"x": 1.0, "y": 2}, {"x": 1.0}], [{"x": 1.0}, {"x": 1.0, "y": 2}]]
)
def test_collator_refuses_inputs_in_part_of_the_examples(examples: list[dict[str, Any]]) -> None:
    """A column that only the first example lacks would silently be dropped."""
    item = 0 if "y" not in examples[0] else 1
    with pytest.raises(
        ValueError, match=f"'y' must have a value in every example, got none at item {item}"
    ):
        COLLATE(examples)
    with pytest.raises(ValueError, match=f"got none at item {item}"):
        COLLATE([{"y": None} | example for example in examples])


# crowd_batches


class Rows(torch.utils.data.Dataset):
    """A data set that does not depend on Hugging Face's."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.rows[i]


class Flow(torch.utils.data.IterableDataset):
    """A stream as in torch."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(crowd())


def generate() -> Iterator[dict[str, Any]]:
    """Yield the items for a stream without features."""
    yield from crowd()


def fail(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Stand in for a transform that decodes pictures."""
    raise AssertionError("reading the crowd must not read the items")


SETS: dict[str, Callable[[], Any]] = {
    "dataset": data,
    "torch_format": lambda: data().with_format("torch"),
    "other_columns_shown": lambda: data().with_format("numpy", columns=["x"]),
    "transform": lambda: data().with_transform(fail),
    "transform_makes_the_crowd": lambda: Dataset.from_dict({"i": range(6)}).with_transform(
        lambda batch: {name: [crowd()[i][name] for i in batch["i"]] for name in crowd()[0]}
    ),
    "selected": lambda: data(crowd()[::-1]).select([5, 4, 3, 2, 1, 0]),
    "sliced": lambda: data(crowd() * 2).select(range(6, 12)),
    "chunks": lambda: concatenate_datasets([data(crowd()[:1]), data(crowd()[1:])]),
    "no_names": lambda: Dataset.from_list(crowd()),
    "stream": lambda: data().to_iterable_dataset(),
    "stream_of_shards": lambda: data().to_iterable_dataset(num_shards=2),
    "stream_in_torch_format": lambda: data().to_iterable_dataset().with_format("torch"),
    "stream_without_features": lambda: IterableDataset.from_generator(generate),
    "torch_dataset": lambda: Rows(crowd()),
    "torch_tensors": lambda: Rows(crowd(torch.tensor)),
    "torch_stream": Flow,
    "list": crowd,
}


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("size", [1, 4, 99])
def test_crowd_batches_reads_every_kind_of_set(kind: str, size: int) -> None:
    """Rows in another order, lost between chunks or read twice, would start another aggregator."""
    batches = list(crowd_batches(SETS[kind](), COLLATE, batch_size=size))
    assert [len(annotators) for annotators, _ in batches] == {1: [1] * 6, 4: [4, 2], 99: [6]}[size]
    starts = range(0, 6, size)
    for start, (annotators, annotations) in zip(starts, batches, strict=True):
        assert torch.equal(annotators, padded([[], *ANNOTATORS[start : start + size]])[1:])
        assert torch.equal(annotations, padded([[], *ANNOTATIONS[start : start + size]])[1:])


@pytest.mark.parametrize("known", [True, False])
def test_crowd_batches_reads_a_resumed_stream_from_its_start(known: bool) -> None:
    """After a resume, only the rest of the epoch would be read; and the epoch must still continue."""
    stream = data().to_iterable_dataset() if known else IterableDataset.from_generator(generate)
    assert (stream.features is not None) == known
    running = iter(stream)
    for _ in range(4):
        next(running)
    stream.load_state_dict(stream.state_dict())
    assert len(list(stream)) == 2  # it was resumed
    ((annotators, _),) = crowd_batches(stream, COLLATE)
    assert torch.equal(annotators, padded(ANNOTATORS))
    assert len(list(stream)) == 2


@pytest.mark.parametrize("length", [4, -1])
@pytest.mark.parametrize("stream", [False, True])
def test_crowd_batches_reads_dense_annotations(length: int, stream: bool) -> None:
    """Arrow's fixed-length lists have no offsets, and slices of them start elsewhere."""
    features = Features(annotations=List(ClassLabel(names=["u", "v", "w"]), length=length))
    rows: Any = Dataset.from_dict({"annotations": [DENSE[2], *DENSE]}, features=features)
    rows = rows.select([1, 2, 3])
    if stream:
        rows = rows.to_iterable_dataset()
    chunks = list(crowd_batches(rows, COLLATE, batch_size=2))
    assert [annotators.tolist() for annotators, _ in chunks] == [[[0, 3], [-1, -1]], [[0, 1, 2]]]
    assert [annotations.tolist() for _, annotations in chunks] == [[[1, 2], [-1, -1]], [[0, 2, 1]]]


def test_crowd_batches_reads_a_dense_stream_without_features() -> None:
    """Only its first item shows that such a stream has no annotators."""
    stream = IterableDataset.from_generator(lambda: iter([{"annotations": row} for row in DENSE]))
    assert stream.column_names is None
    ((annotators, _),) = crowd_batches(stream, COLLATE)
    assert annotators.tolist() == [[0, 3, -1], [-1, -1, -1], [0, 1, 2]]


@pytest.mark.parametrize("cells", [4, 9])  # below and above the five labels of item 4
@pytest.mark.parametrize("kind", ["dataset", "list"])
def test_crowd_batches_cuts_chunks_that_one_item_makes_wide(
    kind: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One item that everyone labelled, among a million with ten labels, would fill the memory."""
    monkeypatch.setattr(collator, "_CELLS", cells)
    rows = data() if kind == "dataset" else crowd()
    batches = list(crowd_batches(rows, COLLATE))
    assert len(batches) > 1
    assert all(len(m) == 1 or m.numel() <= cells for m, _ in batches)
    assert [[m for m in row if m >= 0] for b, _ in batches for row in b.tolist()] == [
        [m for m in row if m >= 0] for row in ANNOTATORS
    ]
    assert [row for _, b in batches for row in b.tolist()][3][:2] == ANNOTATIONS[3]
    wrong = crowd()
    wrong[5] |= {"annotators": [7], "annotations": [0]}
    wrong_rows = Dataset.from_list(wrong) if kind == "dataset" else wrong
    with pytest.raises(ValueError, match=r"`annotators` must lie in 0..3 .* got 7 at item 5"):
        list(crowd_batches(wrong_rows, COLLATE))


@pytest.mark.parametrize("kind", ["dataset", "stream", "list"])
def test_crowd_batches_checks_what_it_reads(kind: str) -> None:
    """Errors must name the item's position in the data set, not in the chunk."""

    def read(rows: list[dict[str, Any]]) -> None:
        whole: Any = rows
        if kind != "list":
            whole = Dataset.from_list(rows)
            whole = whole.to_iterable_dataset() if kind == "stream" else whole
        list(crowd_batches(whole, COLLATE, batch_size=2))

    def with_five(**wrong: Any) -> list[dict[str, Any]]:
        return [*crowd()[:5], crowd()[5] | wrong]

    with pytest.raises(ValueError, match=r"`annotations` must lie in 0..2 .* got 3 at item 5"):
        read(with_five(annotators=[0], annotations=[3]))
    with pytest.raises(ValueError, match="same length, got 2 and 1 at item 5"):
        read(with_five(annotators=[0, 1], annotations=[2]))
    with pytest.raises(ValueError, match="`annotators` must be a list, got None at item 5"):
        read(with_five(annotators=None))
    with pytest.raises(ValueError, match=r"`annotations` must .* got .*None.* at item 5"):
        read(with_five(annotators=[0], annotations=[None]))
    with pytest.raises(ValueError, match="`annotations` must be a list, got None at item 0"):
        read([{"x": 1.0}] * 3)


def test_crowd_batches_of_nothing_are_none() -> None:
    """An empty data set has no first item to inspect."""
    empty = data().select([])
    streams = data().to_iterable_dataset().take(0), IterableDataset.from_generator(lambda: iter([]))
    for rows in (empty, *streams, []):
        assert list(crowd_batches(rows, COLLATE)) == []
    lists = Dataset.from_dict({"annotators": [[], []], "annotations": [[], []]})
    ((annotators, annotations),) = crowd_batches(lists, COLLATE)
    assert annotators.tolist() == annotations.tolist() == [[-1], [-1]]


# Batches as tables

KINDS: dict[str, tuple[Any, list[Any]]] = {
    "float32": (Value("float32"), [0.5, 1.5, 2.5]),
    "float64": (Value("float64"), [0.5, 1.5, 2.5]),
    "int32": (Value("int32"), [3, 4, 5]),
    "bool": (Value("bool"), [True, False, True]),
    "lists": (List(Value("float64")), [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
    "large_lists": (LargeList(Value("int64")), [[1, 2], [3, 4], [5, 6]]),
    "fixed_lists": (List(Value("float32"), length=2), [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
    "nested": (List(List(Value("int64"))), [[[1, 2]], [[3, 4]], [[5, 6]]]),
    "array2d": (Array2D((1, 2), "float32"), [[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]]),
    "text": (Value("string"), ["a", "b", "c"]),
    "structures": ({"a": Value("int64")}, [{"a": 1}, {"a": 2}, {"a": 3}]),
    "lists_of_structures": (List({"a": Value("int64")}), [[{"a": 1}], [], [{"a": 3}]]),
    "nothing": (Value("string"), [None, None, None]),
}


def typed(kind: Any, values: list[Any], gold: list[int | None] | None = None) -> Dataset:
    columns = {
        "x": [1.0, 2.0, 3.0], "y": values, "label": gold or [0, 2, 1],
        "annotators": [[3, 0], [], [2]], "annotations": [[1, 2], [], [0]],
    }  # fmt: skip
    features = Features(
        x=Value("float32"), y=kind, label=Value("int64"),
        annotators=List(Value("int64")), annotations=List(Value("int8")),
    )  # fmt: skip
    return Dataset.from_dict(columns, features=features)


@pytest.mark.parametrize("chosen", [[0, 1, 2], [2, 0, 2], [1]], ids=str)
@pytest.mark.parametrize("selected", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_tables_give_the_batches_that_examples_do(
    kind: str, selected: bool, chosen: list[int]
) -> None:
    """The faster way must give the same tensors."""
    dataset = typed(*KINDS[kind], gold=[0, None, -1])
    dataset = dataset.select([2, 0, 1]) if selected else dataset
    rows = arrow_rows(dataset, COLLATE)
    assert isinstance(rows, ArrowRows)
    assert len(rows) == len(dataset)
    fast, slow = COLLATE(rows.__getitems__(chosen)), COLLATE(dataset.__getitems__(chosen))
    assert fast.keys() == slow.keys()
    for name, tensor in slow.items():
        assert fast[name].dtype == tensor.dtype
        assert torch.equal(fast[name], tensor)
    one, two = COLLATE(rows[chosen[0]]), COLLATE([dataset[chosen[0]]])
    assert all(torch.equal(one[name], two[name]) for name in two)


@pytest.mark.parametrize(
    "gold", [[0, 2, -1], [-100, 1, 0], [None, 1, 0], [None, None, None]], ids=str
)
def test_tables_have_the_gold_labels_that_examples_have(gold: list[int | None]) -> None:
    dataset = typed(Value("int64"), [1, 2, 3], gold=gold)
    fast = COLLATE(arrow_rows(dataset, COLLATE).__getitems__([2, 0, 1]))["labels"]
    assert torch.equal(fast, COLLATE(dataset.__getitems__([2, 0, 1]))["labels"])
    expected = [-100 if label is None or label < 0 else label for label in gold]
    assert fast.tolist() == [expected[i] for i in (2, 0, 1)]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (List(Value("float64")), [[1.0, 2.0], [3.0], [4.0, 5.0]]),
        (Value("float64"), [1.0, None, 2.0]),
        (List(Value("float64")), [[1.0, None], [3.0, 4.0], [5.0, 6.0]]),
        (List(Value("int64")), [[1], None, [2]]),
    ],
    ids=["ragged", "none", "none_inside", "no_list"],
)
def test_tables_with_a_ragged_column_are_refused_as_examples_are(
    kind: Any, values: list[Any]
) -> None:
    dataset = typed(kind, values)
    with pytest.raises(ValueError, match="column 'y' must ") as fast:
        COLLATE(arrow_rows(dataset, COLLATE).__getitems__([0, 1, 2]))
    with pytest.raises(ValueError, match="column 'y' must ") as slow:
        COLLATE(dataset.__getitems__([0, 1, 2]))
    assert str(fast.value) == str(slow.value)


@pytest.mark.parametrize(
    ("num_annotators", "num_classes", "name"),
    [(3, 3, "annotators"), (4, 2, "annotations"), (4, 3, "label")],
)
def test_tables_with_labels_out_of_range_are_refused(
    num_annotators: int, num_classes: int, name: str
) -> None:
    """The faster way must do the same checks."""
    dataset = typed(Value("int64"), [1, 2, 3], gold=[0, 7 if name == "label" else 1, 1])
    small = CrowdCollator(num_annotators, num_classes)
    rows = arrow_rows(dataset, small).__getitems__([0, 1])
    with pytest.raises(ValueError, match=f"^`{name}` must lie in 0") as fast:
        small(rows)
    with pytest.raises(ValueError, match=f"^`{name}` must lie in 0") as slow:
        small(dataset.__getitems__([0, 1]))
    assert str(fast.value) == str(slow.value)


def test_tables_are_read_only_where_nothing_must_see_each_item() -> None:
    """With transforms, pictures to decode, other collators or other types, items must be read one by one."""
    dataset = typed(Value("int64"), [1, 2, 3])
    plain = CrowdCollator(4, 3, input_names=["x"])
    pictures = dataset.add_column("image", [{"bytes": b"", "path": None}] * 3)
    pictures = pictures.cast_column("image", ImageFeature())
    for other in (
        dataset.with_transform(lambda rows: rows),
        dataset.with_format("torch", dtype=torch.float64),
        dataset.with_format("pandas"),
        dataset.with_format("numpy", columns=["label"]),
        pictures,
        [{"x": 1.0}],
    ):
        assert arrow_rows(other, COLLATE) is other
    assert arrow_rows(dataset, lambda examples: examples) is dataset
    assert arrow_rows(dataset, CrowdCollator(4, 3, input_names=["z"])) is dataset
    kept = arrow_rows(pictures, plain)
    assert kept.rows[:].column_names == ["x", "label", "annotators", "annotations"]


def test_parts_of_a_crowd_are_joined_to_the_widest():
    """Each batch of votes is only as wide as its own item with the most votes."""
    parts = [(torch.tensor([[0, 2]]), torch.tensor([[1, 0]])), (torch.tensor([[3]]), torch.tensor([[1]]))]  # fmt: skip
    who, said = collator.padded(iter(parts))
    assert who.tolist() == [[0, 2], [3, -1]]
    assert said.tolist() == [[1, 0], [1, -1]]
    empty = collator.padded([])
    assert empty[0].shape == empty[1].shape == (0, 0)


def test_votes_of_unknown_annotators_leave_no_place_in_the_table():
    """A vote by an unknown annotator would otherwise be counted."""
    parts = [(torch.tensor([[-1, 2, 1]]), torch.tensor([[2, 0, 1]])), (torch.tensor([[3]]), torch.tensor([[-1]]))]  # fmt: skip
    assert collator.padded_annotations(iter(parts))[0].tolist() == [[0, 1], [-1, -1]]
