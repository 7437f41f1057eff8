"""Damaged batches: the classifier receives what the examples hold, or there is an error of ours."""

import collections
import io
import math
import random
import warnings

import numpy as np
import pytest
import torch
from datasets import Dataset, disable_progress_bars
from datasets import Image as Picture
from PIL import Image, ImageOps
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, ViTImageProcessor

from hf_maxmig.data.collator import CrowdCollator, arrow_rows, crowd_batches
from hf_maxmig.data.numbered import NumberedCollator, NumberedItems
from tests.attacks.mutations import SEED, damaged, is_ours, twisted

M, C, ITEMS = 4, 3, 5
# Number of attacks in each run; the full suite tries all of them.
some_or_all = pytest.mark.parametrize("share", [0.3, pytest.param(1, marks=pytest.mark.full)])
INPUTS, PICTURES = 2000, 300
PROCESSOR = ViTImageProcessor(size={"height": 4, "width": 4})
TEXT = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel({"[PAD]": 0, "a": 1, "b": 2}, unk_token="[PAD]")),
    pad_token="[PAD]",
)
KEYS = (
    "",
    "\ud800",
    "a\0b",
    "x" * 10_000,
    "label",
    "labels",
    "annotators",
    "self",
    7,
    None,
    ("a",),
)
GOLD = ("labels", "label")


def examples(kind, rng):
    """Make valid examples of one kind."""
    rows = []
    for i in range(ITEMS):
        who = rng.sample(range(M), rng.randrange(M + 1))
        row = {
            "annotators": who,
            "annotations": [rng.randrange(C) for _ in who],
            "name": f"{i}.png",
        }
        if kind == "dense":
            row = {"annotations": [rng.randrange(-1, C) for _ in range(M)]}
        row["label"] = rng.choice((0, 1, 2, -1, None))
        if kind == "text":
            row["input_ids"] = [rng.randrange(3) for _ in range(rng.randrange(1, 5))]
            row["attention_mask"] = [1] * len(row["input_ids"])
        elif kind == "pictures":
            row["image"] = Image.new("RGB", (5, 6), (40 * i, 9, 90))
        else:
            row |= {"features": [rng.uniform(-2, 2) for _ in range(4)], "size": i}
            if kind == "posterior":
                row["crowd_posterior"] = [0.5, 0.25, 0.25]
        rows.append(row)
    return rows


def damaged_examples(rows, rng):
    """Change one or several places; sometimes a column's name, or the container of its lists."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rows = twisted(rows, rng)
    if not isinstance(rows, list):
        return rows
    rows = list(rows)
    if rows and rng.random() < 0.1:
        i = rng.randrange(len(rows))
        if isinstance(rows[i], dict) and rows[i]:
            row = dict(rows[i])
            row[rng.choice(KEYS)] = row.pop(rng.choice(list(row)))
            rows[i] = row
    if rng.random() < 0.3:
        made = rng.choice((np.array, torch.tensor, tuple, lambda v: np.array(v, dtype=object), lambda v: np.array(v, dtype=np.float16)))  # fmt: skip
        for i, row in enumerate(rows):
            if isinstance(row, dict) and rng.random() < 0.5:
                rows[i] = {name: remade(value, made) for name, value in row.items()}
    return rows


def remade(value, made):
    try:
        return made(value) if isinstance(value, list) else value
    except Exception:  # not with this value
        return value


# The expected result, by naive loops


class RefusedError(Exception):
    """There is no result that would be right."""


def plain(value):
    """Convert arrays and tensors to lists."""
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def leaves(value):
    if isinstance(value, list):
        for part in value:
            yield from leaves(part)
    elif value is not None:
        yield value


def shape(value):
    if not isinstance(value, list):
        return ()
    shapes = {shape(part) for part in value}
    if len(shapes) > 1:
        raise RefusedError
    return (len(value), *(shapes.pop() if shapes else ()))


def votes_of(rows):
    """Return each item's pairs."""
    dense = not any("annotators" in row for row in rows)
    votes = []
    for row in rows:
        said = plain(row.get("annotations"))
        who = list(range(M)) if dense else plain(row.get("annotators"))
        for values, number in ((who, M), (said, C)):
            if not isinstance(values, list) or not all(isinstance(v, int) for v in values):
                raise RefusedError
            if not all(-1 <= v < number for v in values):
                raise RefusedError
        if len(who) != len(said):
            raise RefusedError
        votes.append([(m, c) for m, c in zip(who, said, strict=True) if not dense or c >= 0])
    return votes


def gold_of(rows):
    column = next((name for name in GOLD if any(name in row for row in rows)), None)
    if column is None:
        return None
    labels = []
    for row in rows:
        value = plain(row.get(column))
        if value is None or (isinstance(value, float) and math.isnan(value)) or value in (-1, -100):
            labels.append(-100)
        elif isinstance(value, int | float) and value in range(C):
            labels.append(int(value))
        else:
            raise RefusedError
    return labels


def inputs_of(rows, kind, names):
    """Return each column of numbers, padded as expected."""
    inputs = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        if name in (*GOLD, "annotators", "annotations"):
            continue
        if names is not None and name not in (*names, "crowd_posterior") and kind != "pictures":
            continue
        values = [row.get(name) for row in rows]
        if any(isinstance(value, Image.Image) for value in values):
            if not all(isinstance(value, Image.Image) for value in values):
                raise RefusedError
            inputs["pixel_values"] = PROCESSOR(values, return_tensors="pt")["pixel_values"].tolist()
            continue
        if names is not None and name not in (*names, "crowd_posterior"):
            continue
        values = [plain(value) for value in values]
        first = [next(leaves(value), None) for value in values]
        if not any(isinstance(leaf, int | float) for leaf in first):
            if name in ("input_ids", "crowd_posterior"):
                raise RefusedError
            continue  # not a column of numbers
        for value in values:
            parts = list(leaves(value))
            if value is None or not all(isinstance(part, int | float) for part in parts):
                raise RefusedError
            if any(not math.isfinite(np.float32(part)) for part in parts):
                raise RefusedError
        if kind == "text" and name in ("input_ids", "attention_mask"):
            if any(len(shape(value)) != 1 for value in values):
                raise RefusedError
        elif len({shape(value) for value in values}) > 1:
            raise RefusedError
        inputs[name] = values
    if kind == "text" and {"input_ids", "attention_mask"} <= inputs.keys():
        for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
            if len(ids) != len(mask):
                raise RefusedError
    return inputs


def expected(rows, kind, names):
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RefusedError
    if not all(isinstance(name, str) for row in rows for name in row):
        raise RefusedError
    crowd = any(name in row for row in rows for name in ("annotators", "annotations"))
    inputs = inputs_of(rows, kind, names)
    if names is not None and not {*inputs} & {*names}:
        raise RefusedError
    return votes_of(rows) if crowd else None, gold_of(rows), inputs


def assert_is(batch, expectation, kind):
    """Compare a batch with the expected one."""
    votes, gold, inputs = expectation
    assert pairs_of(batch["annotators"], batch["annotations"]) == votes if votes is not None else "annotators" not in batch  # fmt: skip
    assert (batch["labels"].tolist() == gold) if gold is not None else "labels" not in batch
    rest = {*batch} - {"annotators", "annotations", "labels", "crowd_row"}
    made = {"attention_mask"} if kind == "text" and "input_ids" in inputs else set()
    assert {*inputs} <= rest <= {*inputs} | made
    for name, values in inputs.items():
        for row, value in zip(batch[name].tolist(), values, strict=True):
            np.testing.assert_allclose(np.ravel(row)[: np.size(value)], np.ravel(np.asarray(value, dtype=np.float64)), rtol=1e-3, atol=1e-6)  # fmt: skip
            assert not np.ravel(row)[np.size(value) :].any()


def pairs_of(annotators, annotations):
    rows = zip(annotators.tolist(), annotations.tolist(), strict=True)
    # Padding inside a list of the data set keeps its place.
    return [strip(list(zip(who, said, strict=True))) for who, said in rows]


def strip(pairs):
    while pairs and pairs[-1] == (-1, -1):
        pairs.pop()
    return pairs


def stripped(expectation):
    votes, *rest = expectation
    return (None if votes is None else [strip(list(row)) for row in votes], *rest)


# The attack

DOORS = ("list", "subclass", "arrow", "torch", "crowd", "crowd_arrow")


def depth(value):
    parts = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth, parts), default=0) if isinstance(value, list | tuple | dict) else 0


def read(door, rows, collate):
    """Pass examples through one of the doors, and return what they hold afterwards."""
    if door == "list":
        return rows, lambda: collate(rows)
    if door == "subclass":  # as the trainer passes them
        items = NumberedItems(rows)
        order = list(range(len(rows)))
        return rows, lambda: NumberedCollator(collate, keep=True)(items.__getitems__(order))
    if door == "crowd":
        return rows, lambda: list(crowd_batches(rows, collate, 2))
    if depth(rows) > 8:  # `datasets` takes twice as long for each level of nesting
        return None, None
    try:
        dataset = Dataset.from_list(rows)
        held = list(dataset)
    except Exception:  # Arrow cannot hold it, so it can never be a data set
        return None, None
    if door == "crowd_arrow":
        return held, lambda: list(crowd_batches(dataset, collate, 2))
    if not held:  # no item is left
        return None, None
    if door == "torch" and not any(isinstance(row.get("image"), Image.Image) for row in held):
        dataset = dataset.with_format("torch")
    items = NumberedItems(arrow_rows(dataset, collate), dataset)
    order = list(range(len(held)))
    return held, lambda: NumberedCollator(collate, keep=True)(items.__getitems__(order))


def must_be_ours(error, where, names=""):
    """Let an error pass only if it is ours and names what it should."""
    if not is_ours(error) or names not in str(error):
        raise AssertionError(f"{where}: {type(error).__name__}: {str(error)[:300]}") from error


def attempt(number):
    """Try one damaged batch and return the outcome."""
    rng = random.Random(f"{SEED} {number}")
    kind = rng.choice(("ragged", "dense", "text", "pictures", "posterior"))
    whole = examples(kind, rng)
    rows = damaged_examples(whole, rng) if number >= 0 else whole
    names = {"text": ["input_ids", "attention_mask"], "pictures": ["pixel_values"]}.get(
        kind, ["features"]
    )
    names = rng.choice((None, names))
    processor = {"text": TEXT, "pictures": PROCESSOR}.get(kind)
    collate = CrowdCollator(M, C, processor, names)
    door = rng.choice(DOORS)
    if not isinstance(rows, list) and door != "list":
        return "not a list"
    held, call = read(door, rows, collate)
    if call is None:  # Arrow has no such columns
        door = "list"
        held, call = read(door, rows, collate)
    rows = held
    try:
        if door.startswith("crowd"):
            if not all(isinstance(row, dict) for row in rows):
                raise RefusedError
            wanted = votes_of(rows), None, {}
        else:
            wanted = expected(rows, kind, names)
        wanted = stripped(wanted)
    except RefusedError:
        wanted = None
    where = f"ATTACK_SEED={SEED} number {number}, {kind} by {door}"
    try:
        batch = call()
    except Exception as error:
        must_be_ours(error, where)
        return "refused" if wanted is None else "refused though whole"
    assert wanted is not None, f"{where}: {str(rows)[:400]} came to {str(batch)[:400]}"
    try:
        if door.startswith("crowd"):
            got = [pairs for part in batch for pairs in pairs_of(*part)]
            assert got == wanted[0]
        else:
            assert_is(batch, wanted, kind)
    except AssertionError as error:
        raise AssertionError(f"{where}: {str(rows)[:400]} came to {str(batch)[:400]}") from error
    return "right"


def test_whole_batches_are_read(root):
    """A door that refuses everything would pass the attack."""
    disable_progress_bars()
    outcomes = collections.Counter(attempt(-1 - number) for number in range(60))
    assert outcomes == {"right": 60}


def stored(number):
    """Read a data set with one damaged picture file, and return the outcome."""
    rng = random.Random(f"{SEED} picture {number}")
    suffix = rng.choice(("PNG", "JPEG", "GIF", "BMP", "WEBP"))
    files = []
    for i in range(4):
        file = io.BytesIO()
        Image.new("RGB", (9, 7), (50 * i, 120, 30)).save(file, suffix)
        files.append(file.getvalue())
    files[2] = damaged(files[2], rng)
    dataset = Dataset.from_dict({"image": [{"bytes": file, "path": None} for file in files]})
    dataset = dataset.cast_column("image", Picture())
    collate = NumberedCollator(CrowdCollator(M, C, PROCESSOR), keep=True)
    try:
        with Image.open(io.BytesIO(files[2])) as picture:
            picture.load()
            opened = ImageOps.exif_transpose(picture).convert("RGB")
            opened = (
                PROCESSOR(opened, return_tensors="pt")["pixel_values"][0]
                if all(opened.size)
                else None
            )
    except Exception:  # of any type that Pillow raises
        opened = None
    where = f"ATTACK_SEED={SEED} picture {number}"
    try:
        batch = collate(NumberedItems(dataset).__getitems__([3, 2, 0]))
    except Exception as error:
        must_be_ours(error, where, "item 2")
        return "refused"
    assert opened is not None, where
    assert torch.equal(batch["pixel_values"][1], opened), where
    return "right"


@pytest.mark.slow
@some_or_all
def test_damaged_pictures_are_refused_by_item_or_read_as_pillow_does(share):
    """Truncated files cause a dozen kinds of errors, none of which says which file it was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's warnings about damaged files
        outcomes = collections.Counter(stored(number) for number in range(round(share * PICTURES)))
    assert min(outcomes["refused"], outcomes["right"]) > share * PICTURES / 10


@pytest.mark.slow
@some_or_all
def test_damaged_batches_are_refused_or_read_as_they_are(share):
    """A lost vote, another class, a dropped column, or numpy's error in the middle of an epoch would be faults."""
    disable_progress_bars()
    outcomes = collections.Counter(attempt(number) for number in range(round(share * INPUTS)))
    print(f"ATTACK_SEED={SEED}: {dict(outcomes)}")
    assert outcomes["refused"] > share * INPUTS / 5
    assert outcomes["right"] > share * INPUTS / 20
