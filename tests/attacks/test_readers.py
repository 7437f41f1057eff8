"""Damaged files of votes: an error of ours, the undamaged votes, or what the damaged file says.

A damaged file may still be valid but say something else, such as a class with another letter. Such a
file is read a second time by plain Python (`csv`, `json`, numpy, pyarrow), and both must agree vote for
vote. Files with checksums (.pt, Parquet with page checksums) must give the undamaged votes or an error.
"""

import csv
import io
import json
import logging
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hf_maxmig.data.readers.read_annotations import read_annotations
from hf_maxmig.data.readers.values import MISSING, SPACE
from tests.attacks.mutations import SEED, check_is_said, damaged, twisted

EXPORTS = Path(__file__).parents[1] / "data" / "readers" / "exports"
VOTES = [
    ("a.jpg", "ann", "cat"),
    ("a.jpg", "bob", "dog"),
    ("b.jpg", "ann", "cat"),
    ("c.jpg", "bob", "cat"),
]
ROLES = ["item", "annotator", "annotation"]

pytestmark = pytest.mark.slow


class Heard(logging.Handler):
    """The log messages about the last file."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


@pytest.fixture
def heard() -> Any:
    """Capture the log, and keep a thousand lines off the screen."""
    handler = Heard()
    logger = logging.getLogger("hf_maxmig.data.readers.read_annotations")
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.propagate = before


def votes_of(path: Path, **asked: Any) -> Counter[tuple[str, ...]]:
    """Return the votes that our reader finds, as text."""
    table = read_annotations(path, **asked).with_format(None)[:]
    rows = zip(*(table[role] for role in ROLES), strict=True)
    return Counter(tuple(map(str, row)) for row in rows if row[1] is not None)


# What a file says, according to plain Python


def text_of(data: bytes) -> str:
    utf_16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    return data.decode("utf-16" if utf_16 else "utf-8-sig")


def label_of(value: Any) -> Any:
    """Return one label, or None."""
    if isinstance(value, list):
        (value,) = value or [None]
    if value is None or value != value or value == "":
        return None
    text = name_of(value)
    return None if text == "" or (isinstance(value, str) and text in MISSING) else text


def name_of(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.strip(SPACE) if isinstance(value, str) else str(value)


Found = dict[str, str]  # which column has which role, according to the log


def found_in(text: str) -> Found:
    """Parse the roles from the log line."""
    return dict(re.findall(r"\b(item|annotator|annotation|gold)=(.*?)(?=, \w+=|;| \(|$)", text))


def said_by_table(data: bytes, found: Found) -> list[Any]:
    text = text_of(data)
    head = text.lstrip("\r\n").splitlines()[0]
    delimiter = max("\t,;|" if "\t" in head else ",;\t|", key=head.count)
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]
    names = [name.strip(SPACE) for name in rows[0]]
    if len(rows[1]) == len(names) - 2:
        names = names[:-2]
    where = [names.index(found[role]) for role in ROLES]
    cells = [[row[i] for i in where] for row in rows[1:]]
    return [(i, name_of(m), label_of(c)) for i, m, c in cells if label_of(c)]


def said_by_wide(data: bytes, found: Found) -> list[Any]:
    rows = [row for row in csv.reader(io.StringIO(text_of(data), newline="")) if row]
    names = [name.strip(SPACE) for name in rows[0]]
    gold = [i for i, name in enumerate(names) if name == "truth"]
    return [
        (row[0], names[i], label_of(row[i]))
        for row in rows[1:]
        for i in range(1, len(names))
        if i not in gold and label_of(row[i])
    ]


def said_by_records(data: bytes, found: Found) -> list[Any]:
    text = text_of(data)
    try:
        records = json.loads(text)
    except json.JSONDecodeError:
        records = [json.loads(line) for line in re.split("[\r\n]+", text) if line.strip()]
    if isinstance(records, dict):
        records = [records]
    each = [[record.get(found[role]) for role in ROLES] for record in records]
    return [
        (name_of_item(i), name_of(m), label_of(c))
        for i, m, c in each
        if label_of(m) is not None or label_of(c) is not None  # otherwise a row without a vote
    ]


def name_of_item(value: Any) -> str:
    return value if isinstance(value, str) else name_of(value)


def said_by_alice(data: bytes, found: Found) -> list[Any]:
    records = [json.loads(line) for line in re.split("[\r\n]+", text_of(data)) if line.strip()]
    labels = [
        (record[found["item"]], label_of(record.get(found["annotation"]))) for record in records
    ]
    return [(name_of_item(item), "alice", label) for item, label in labels if label is not None]


def said_by_label_studio(data: bytes, found: Found) -> list[Any]:
    out = []
    tasks = json.loads(text_of(data))
    by_image = found["item"] == "data.image"
    for task in tasks:
        for one in task["annotations"]:
            if one.get("was_cancelled") or one.get("ground_truth"):
                continue
            who = one["completed_by"]
            who = (who.get("email") or who.get("id")) if isinstance(who, dict) else who
            for result in one["result"]:
                label = label_of(result.get("value", {}).get("choices"))
                if label is not None:
                    item = task["data"]["image"] if by_image else task["id"]
                    out.append((name_of_item(item), name_of(who), label))
    return out


def said_by_argilla(data: bytes, found: Found) -> list[Any]:
    out = []
    records = json.loads(text_of(data))
    key = found["item"]
    for record in records:
        responses = record.get("responses")
        if isinstance(responses, dict):
            each = [
                (r.get("user_id"), r["value"], r.get("status"))
                for rs in responses.values()
                for r in rs
            ]
        else:
            each = [
                (r.get("user_id"), v.get("value"), r.get("status"))
                for r in responses or ()
                for v in (r.get("values") or {}).values()
            ]
        for who, value, status in each:
            counts = status is None or str(status).lower().endswith("submitted")
            if counts and (label := label_of(value)) is not None:
                out.append((name_of_item(record[key]), name_of(who), label))
    return out


def said_by_peerannot(data: bytes, found: Found) -> list[Any]:
    answers = json.loads(text_of(data))
    return [(task, name_of(w), label_of(c)) for task, of in answers.items() for w, c in of.items()]


def said_by_matrix(data: bytes, found: Found) -> list[Any]:
    rows = [line.split() for line in text_of(data).splitlines() if line.strip()]
    return [
        (str(i), str(m), str(int(float(c))))
        for i, row in enumerate(rows)
        for m, c in enumerate(row)
        if float(c) >= 0
    ]


def said_by_npy(data: bytes, found: Found) -> list[Any]:
    matrix = np.load(io.BytesIO(data), allow_pickle=False)
    return [(str(i), str(m), str(int(matrix[i, m]))) for i, m in np.argwhere(matrix >= 0)]


def said_by_parquet(data: bytes, found: Found) -> list[Any]:
    rows = pq.read_table(io.BytesIO(data)).to_pylist()
    return [tuple(name_of(row[role]) for role in ROLES) for row in rows]


def long_text(delimiter: str = ",", end: str = "\n") -> bytes:
    return end.join(delimiter.join(row) for row in [ROLES, *VOTES, ()]).encode()


def of_bytes(write: Callable[[io.BytesIO], Any]) -> bytes:
    out = io.BytesIO()
    write(out)
    return out.getvalue()


def small_table() -> pa.Table:
    return pa.table({role: [vote[i] for vote in VOTES] for i, role in enumerate(ROLES)})


def samples() -> dict[
    str, tuple[bytes, dict[str, Any], Callable[[bytes, Found], list[Any]] | None]
]:
    """Return each file with its arguments, and its reader in plain Python; None if it has checksums."""
    records = [dict(zip(ROLES, vote, strict=True)) for vote in VOTES]
    matrix = np.loadtxt(EXPORTS / "answers.txt", dtype=np.int64)
    clean = np.arange(40) % 10
    arrays = {f"random_label{k}": (clean + k) % 10 for k in (1, 2, 3)} | {"clean_label": clean}

    def file(name: str) -> bytes:
        return (EXPORTS / name).read_bytes()

    return {
        "mturk.csv": (file("mturk.csv"), {}, said_by_table),
        "toloka.tsv": (
            file("toloka.tsv"),
            {"annotation": "OUTPUT:result"},
            said_by_table,
        ),
        "wide.csv": (file("wide.csv"), {}, said_by_wide),
        "long.csv": (long_text(), {}, said_by_table),
        "long.tsv": (long_text("\t", "\r\n"), {}, said_by_table),
        "label_studio.json": (file("label_studio.json"), {}, said_by_label_studio),
        "label_studio_min.json": (
            file("label_studio_min.json"), {"annotation": "scene"}, said_by_records
        ),
        "argilla_1.json": (file("argilla_1.json"), {}, said_by_argilla),
        "argilla_2.json": (file("argilla_2.json"), {}, said_by_argilla),
        "alice.jsonl": (
            file("doccano/alice.jsonl"),
            {"format": "annotator_files"},
            said_by_alice,
        ),
        "records.json": (json.dumps(records, indent=1).encode(), {}, said_by_records),
        "records.jsonl": ("".join(json.dumps(r) + "\n" for r in records).encode(), {}, said_by_records),
        "answers.json": (file("answers.json"), {}, said_by_peerannot),
        "answers.txt": (file("answers.txt"), {}, said_by_matrix),
        "answers.npy": (of_bytes(lambda out: np.save(out, matrix)), {}, said_by_npy),
        "plain.parquet": (of_bytes(lambda out: pq.write_table(small_table(), out)), {}, said_by_parquet),
        "checked.parquet": (
            of_bytes(lambda out: pq.write_table(small_table(), out, write_page_checksum=True)), {}, None
        ),
        "cifar.pt": (of_bytes(lambda out: torch.save(arrays, out)), {}, None),
    }  # fmt: skip


SAMPLES = samples()
PER_SAMPLE = 100


@pytest.mark.parametrize("name", SAMPLES)
def test_damaged_files_are_refused_or_read_as_they_say(
    name: str, tmp_path: Path, heard: Heard
) -> None:
    """A vote that is silently lost, changed or invented was never cast by anyone."""
    data, asked, plain = SAMPLES[name]
    path = tmp_path / name
    path.write_bytes(data)
    whole = votes_of(path, **asked)
    assert (
        plain is None or Counter(plain(data, found_in(heard.text))) == whole
    )  # or the test would compare nothing
    rng = random.Random(f"{SEED} {name}")
    refused = 0
    for number in range(PER_SAMPLE):
        broken = damaged(data, rng)
        path.write_bytes(broken)
        heard.text = ""
        try:
            votes = votes_of(path, **asked)
        except Exception as error:
            check_is_said(error, f"{name}, {number}: {broken!a:.600}")
            refused += 1
            continue
        assert f"{votes.total()} votes on" in heard.text, (number, heard.text)
        if votes == whole:
            continue
        # Compared outside the assert: pytest takes minutes to diff long texts.
        fine = plain is not None and votes == Counter(plain(broken, found_in(heard.text)))
        assert fine, f"{name}, {number}: {broken!a:.600} was read as {votes!a:.600}, {heard.text!a}"
    assert refused > 0


def test_twisted_json_is_refused_or_read_as_it_says(tmp_path: Path, heard: Heard) -> None:
    """A field that is missing or of another type must not take votes along."""
    for name, (data, asked, plain) in SAMPLES.items():
        if not name.endswith(".json"):
            continue
        rng = random.Random(f"{SEED} twisted {name}")
        path = tmp_path / name
        for number in range(90):
            content = twisted(json.loads(data), rng)
            path.write_text(json.dumps(content))
            try:
                votes = votes_of(path, **asked)
            except Exception as error:
                check_is_said(error, f"{name}, {number}: {content!a:.600}")
                continue
            assert f"{votes.total()} votes on" in heard.text
            fine = plain is not None and votes == Counter(
                plain(path.read_bytes(), found_in(heard.text))
            )
            assert fine, f"{name}, {number}: {content!a:.600} was read as {votes!a:.600}"
