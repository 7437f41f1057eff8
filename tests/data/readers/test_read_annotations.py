"""Tests of `hf_maxmig.data.readers.read_annotations` and `exports`: reading neither loses nor changes a vote."""

import csv
import json
import logging
import pickle
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hf_maxmig.data.columns import add_annotations, crowd_names
from hf_maxmig.data.readers.read_annotations import FORMATS, read_annotations
from hf_maxmig.data.readers.values import SPACE
from tests.children import needs_fork, run

EXPORTS = Path(__file__).parent / "exports"
ANN, ZOE = "6f1e9a52-0c55-4c0e-9a8e-3d6d1f5b7a01", "b0b9d9e4-71b6-4a0c-8a33-5f7f5d2c9e02"
ROLES = ["item", "annotator", "annotation"]


def rows(votes: Dataset, *names: str) -> list[tuple[Any, ...]]:
    """Return the roles of each row, and the requested columns."""
    return [tuple(row[name] for name in [*ROLES, *names]) for row in votes]


def read(tmp_path: Path, name: str, content: str | bytes, **asked: Any) -> Dataset:
    """Write a file and read it."""
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_annotations(path, **asked)


VOTES = [("a.jpg", "ann", "cat"), ("a.jpg", "bob", "dog"), ("b.jpg", "ann", "cat")]
LONG = "image,worker,label\na.jpg,ann,cat\na.jpg,bob,dog\nb.jpg,ann,cat\n"


# Exports, one file each


def test_label_studio_keeps_votes_and_tells_gold_from_them() -> None:
    """A cancelled row or the reviewer's ground truth must not count as a vote."""
    votes = read_annotations(EXPORTS / "label_studio.json")
    assert rows(votes, "gold") == [
        ("été.jpg", "ann@example.org", "coast", None),
        ("été.jpg", "zoë@example.org", "forêt", None),
        ("b,2.jpg", "3", "coast", None),
        ("c.jpg", None, None, "coast"),  # only a gold label
        ("d.jpg", "ann@example.org", "forêt", "forêt"),
    ]
    assert votes.column_names == [*ROLES, "gold", "town"]
    assert set(votes["town"]) == {"Zürich"}


def test_label_studio_counts_what_it_leaves_out(caplog: pytest.LogCaptureFixture) -> None:
    """Half a crowd that is silently dropped looks like a small crowd."""
    with caplog.at_level(logging.WARNING):
        read_annotations(EXPORTS / "label_studio.json")
    (record,) = caplog.records
    assert record.getMessage() == (
        "label_studio.json: label_studio, 4 votes on 4 items by 3 annotators, item=data.image, "
        "annotation=scene; 1 rows hold a gold label only; left out: results that are not choices "
        "1, cancelled 1, without a choice 1, tasks without a vote 2, gold-only rows of items that "
        "have another row 1"
    )


def test_label_studio_joins_with_its_gold_labels() -> None:
    """`add_annotations` relies on the reader's rows with only a gold label."""
    images = Dataset.from_dict({"image": ["été.jpg", "b,2.jpg", "c.jpg", "d.jpg", "e.jpg"]})
    joined = add_annotations(images, read_annotations(EXPORTS / "label_studio.json"), "image")
    assert joined["annotations"][:] == [[0, 1], [0], [], [1], []]
    assert joined["label"][:] == [None, None, 0, 1, None]


def label_studio(*annotations: dict[str, Any], **data: Any) -> str:
    """Return an export with one task."""
    return json.dumps([{"id": 5, "data": data or {"image": "a"}, "annotations": annotations}])


def choice(who: Any, *choices: str, name: str = "scene", **more: Any) -> dict[str, Any]:
    """Return a Label Studio annotation with one answer."""
    result = [{"from_name": name, "type": "choices", "value": {"choices": [*choices]}}]
    return {"completed_by": who, "result": result, **more}


def test_label_studio_numbers_annotators_without_names(tmp_path: Path) -> None:
    """Community exports identify annotators only by number."""
    votes = read(tmp_path, "x.json", label_studio(choice(1, "a"), choice(12, "b")))
    assert rows(votes) == [("a", 1, "a"), ("a", 12, "b")]


@pytest.mark.parametrize(
    ("data", "asked", "expected"),
    [
        ({"text": "hi"}, {}, "hi"),  # the only key
        ({"image": "a", "town": "b"}, {}, "a"),  # the one that looks like an item
        ({"town": "a", "river": "b"}, {}, 5),  # none does: the task
        ({"image": "a", "file": "b"}, {}, 5),  # two do
        ({"image": "a", "file": "b"}, {"item": "file"}, "b"),
        ({"image": "a"}, {"item": "id"}, 5),
    ],
)
def test_label_studio_finds_the_item(
    data: dict[str, str], asked: dict[str, str], expected: Any, tmp_path: Path
) -> None:
    """Votes under the wrong key would refer to no item."""
    votes = read(tmp_path, "x.json", label_studio(choice(1, "a"), **data), **asked)
    assert votes["item"][:] == [expected]


def test_label_studio_asks_which_of_several_questions(tmp_path: Path) -> None:
    """Answers to two questions in one column would mix the classes of both."""
    both = label_studio(choice(1, "a"), choice(2, "b", name="mood"))
    with pytest.raises(ValueError, match="several questions, mood, scene: name one by `annotation"):
        read(tmp_path, "x.json", both)
    votes = read(tmp_path, "x.json", both, annotation="mood")
    assert rows(votes) == [("a", 2, "b")]
    with pytest.raises(ValueError, match="must be one of mood, scene, got 'nonsense'"):
        read(tmp_path, "x.json", both, annotation="nonsense")


def test_label_studio_takes_gold_from_data(tmp_path: Path) -> None:
    """Gold labels are often imported as a column of the tasks."""
    text = label_studio(choice(1, "a"), image="x", truth="b")
    assert rows(read(tmp_path, "x.json", text, gold="truth"), "gold") == [("x", 1, "a", "b")]
    with pytest.raises(ValueError, match="`gold` must be one of truth, got 'nonsense'"):
        read(tmp_path, "x.json", text, gold="nonsense")


def test_label_studio_min_is_a_long_table() -> None:
    """Its question is a column of its own, which only the user can name."""
    with pytest.raises(ValueError, match="annotation=none"):
        read_annotations(EXPORTS / "label_studio_min.json")
    votes = read_annotations(EXPORTS / "label_studio_min.json", annotation="scene")
    assert rows(votes, "lead_time") == [("été.jpg", 1, "coast", 4.2), ("b.jpg", 2, "forêt", 1.5)]


ARGILLA = [("r-1", ANN, "good"), ("r-2", ZOE, "bad")]


@pytest.mark.parametrize(
    ("name", "left_out"),
    [("argilla_1.json", "draft 1, records"), ("argilla_2.json", "draft 1, discarded 1, records")],
)
def test_argilla_counts_submitted_responses(
    name: str, left_out: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A draft is not yet the annotator's answer."""
    with caplog.at_level(logging.WARNING):
        votes = read_annotations(EXPORTS / name)
    assert rows(votes, "text") == [(*ARGILLA[0], "Schön!"), (*ARGILLA[1], "Naja")]
    assert f"left out: {left_out} without a vote 1" in caplog.text


def hub_columns() -> dict[str, list[Any]]:
    """Return the records of `argilla_2.json` as Argilla pushes them to the Hub."""
    return {
        "id": ["r-1", "r-2", "r-3"],
        "status": ["completed", "completed", "pending"],
        "text": ["Schön!", "Naja", "?"],
        "mood.suggestion": ["good", None, None],
        "mood.responses": [["good", "bad"], ["bad", "good"], None],
        "mood.responses.users": [[ANN, ZOE], [ZOE, ANN], None],
        "mood.responses.status": [["submitted", "draft"], ["submitted", "discarded"], None],
    }


def test_argilla_reads_the_columns_of_the_hub(tmp_path: Path) -> None:
    """In three ragged columns side by side, status and users must stay with their values."""
    dataset = Dataset.from_dict(hub_columns())
    expected = [(*ARGILLA[0], "Schön!"), (*ARGILLA[1], "Naja")]
    assert rows(read_annotations(dataset), "text") == expected
    dataset.to_parquet(tmp_path / "hub.parquet")
    assert rows(read_annotations(tmp_path / "hub.parquet"), "text") == expected
    votes = read_annotations(dataset, item="text")
    assert votes["item"][:] == ["Schön!", "Naja"]
    assert "text" not in votes.column_names


def test_argilla_reads_version_1_from_the_hub(caplog: pytest.LogCaptureFixture) -> None:
    """Old data sets on the Hub have one column of responses per question."""
    response = {"user_id": ANN, "value": "good", "status": "submitted"}
    draft = {"user_id": ZOE, "value": "bad", "status": "draft"}
    records = [{"external_id": "r-1", "text": "x", "mood": [response, draft]}]
    records.append({"external_id": "r-2", "text": "y", "mood": []})
    assert rows(read_annotations(Dataset.from_list(records))) == ARGILLA[:1]
    assert rows(read_annotations(records)) == ARGILLA[:1]
    lists = {key: [response[key], draft[key]] for key in response}
    assert rows(read_annotations([records[0] | {"mood": lists}])) == ARGILLA[:1]
    del response["status"]
    with caplog.at_level(logging.WARNING):
        assert rows(read_annotations(records)) == ARGILLA[:1]
    assert "without status: all responses count" in caplog.text


def test_argilla_asks_which_of_several_questions() -> None:
    """Answers to two questions in one column would mix the classes of both."""
    columns = hub_columns()
    columns |= {f"tone{end}": columns[f"mood{end}"] for end in (".responses", ".responses.users")}
    dataset = Dataset.from_dict(columns)
    with pytest.raises(ValueError, match="several questions, mood, tone"):
        read_annotations(dataset)
    assert len(read_annotations(dataset, annotation="tone")) == 4
    assert rows(read_annotations(dataset, annotation="mood")) == ARGILLA


def test_doccano_names_annotators_by_their_files(caplog: pytest.LogCaptureFixture) -> None:
    """Doccano writes the annotator only into the file name."""
    expected = [(7, "alice", "good"), (8, "alice", "bad"), (7, "zoë", "bad")]
    with caplog.at_level(logging.WARNING):
        assert rows(read_annotations(EXPORTS / "doccano")) == expected
    assert "rows without a vote 2" in caplog.text
    assert rows(read_annotations(f"{EXPORTS}/doccano/*.jsonl")) == expected
    paths = [EXPORTS / "doccano" / f"{name}.jsonl" for name in ("zoë", "alice")]
    assert rows(read_annotations(paths)) == [expected[2], *expected[:2]]
    assert rows(read_annotations(paths[1], "annotator_files")) == expected[:2]


def test_annotator_files_may_be_tables(tmp_path: Path) -> None:
    """Many crowds begin as three spreadsheets."""
    (tmp_path / "votes").mkdir()
    read_as = {"ann": "file,label,truth\na,cat,cat\nb,,dog\n", "Zoë": "file,label,truth\na, dog,\n"}
    for name, text in read_as.items():
        (tmp_path / "votes" / f"{name}.csv").write_text(text, encoding="utf-8")
    votes = read_annotations(tmp_path / "votes")
    expected = [("a", "Zoë", "dog", "cat"), ("a", "ann", "cat", "cat"), ("b", None, None, "dog")]
    assert rows(votes, "gold") == expected


def test_peerannot_keeps_keys_as_text_and_labels_as_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """JSON keys are text, so turning them into numbers would be a change."""
    with caplog.at_level(logging.WARNING):
        votes = read_annotations(EXPORTS / "answers.json")
    assert rows(votes) == [("été.jpg", "w 1", 3), ("été.jpg", "w,2", 0), ("b.jpg", "w 1", 0)]
    assert votes.features["annotation"] == Value("int64")
    assert "tasks without a vote 1" in caplog.text
    answers = json.loads((EXPORTS / "answers.json").read_text(encoding="utf-8"))
    assert rows(read_annotations(answers)) == rows(votes)


def test_mturk_is_a_long_table() -> None:
    """Its last two columns are empty, and 007 must not become a number."""
    votes = read_annotations(EXPORTS / "mturk.csv")
    assert rows(votes, "WorkTimeInSeconds") == [
        ("https://x.org/été, 1.jpg", "A1", "coast", "007"),
        ("https://x.org/été, 1.jpg", "A2", "forest", "12"),
        ("https://x.org/b.jpg", "A1", "coast", "3"),
    ]
    assert "Approve" not in votes.column_names


def test_toloka_takes_the_gold_label_of_the_same_question() -> None:
    """Rows of control tasks are votes too, and their known answer is the gold label."""
    with pytest.raises(ValueError, match="OUTPUT:result, OUTPUT:sure could each be the annotation"):
        read_annotations(EXPORTS / "toloka.tsv")
    votes = read_annotations(EXPORTS / "toloka.tsv", annotation="OUTPUT:result")
    assert rows(votes, "gold") == [
        ("/кот.jpg", "w1", "cat", None),
        ("/кот.jpg", "w2", "dog", None),
        ("/b.jpg", "w1", "dog", "dog"),
        ("/b.jpg", "w2", "cat", "dog"),
    ]


def test_wide_table_with_mark_and_windows_line_ends() -> None:
    """A byte order mark before the first name would hide the item column; a line end would join the last label."""
    votes = read_annotations(EXPORTS / "wide.csv")
    assert rows(votes, "gold") == [
        ("été.jpg", "Ann", "coast", "coast"),
        ("été.jpg", "de la Cruz, Jo", "forest", "coast"),
        ("b\n2.jpg", "Ann", "forest", None),
        ("b\n2.jpg", "Zoë", "coast", None),
        ("c.jpg", None, None, "forest"),
    ]


def test_wide_table_keeps_other_columns_if_annotators_are_named(tmp_path: Path) -> None:
    """A column of widths must not become an annotator."""
    text = "image,width,ann,bob\na,224,cat,dog\nb,320,cat,\n"
    with pytest.raises(ValueError, match="no format fits"):
        read(tmp_path, "x.csv", text)
    votes = read(tmp_path, "x.csv", text, annotator=["ann", "bob"])
    assert rows(votes, "width") == [
        ("a", "ann", "cat", "224"),
        ("a", "bob", "dog", "224"),
        ("b", "ann", "cat", "320"),
    ]


def test_wide_table_takes_a_first_column_without_a_name_for_the_item(tmp_path: Path) -> None:
    """Pandas writes an index this way."""
    frame = pd.DataFrame({"ann": ["cat", None], "bob": ["dog", "cat"]}, index=["a", "b"])
    frame.to_csv(tmp_path / "x.csv")
    expected = [("a", "ann", "cat"), ("a", "bob", "dog"), ("b", "bob", "cat")]
    assert rows(read_annotations(tmp_path / "x.csv")) == expected


def test_dense_matrix_is_read_from_text_and_npy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With rows and columns exchanged, annotators would become items."""
    with caplog.at_level(logging.WARNING):
        votes = read_annotations(EXPORTS / "answers.txt")
    assert rows(votes) == [(0, 0, 0), (0, 2, 2), (2, 0, 1), (2, 1, 1), (3, 0, 2), (3, 2, 0)]
    assert "items without a vote 1" in caplog.text
    matrix = np.loadtxt(EXPORTS / "answers.txt", dtype=np.int64)
    np.save(tmp_path / "answers.npy", matrix)
    assert rows(read_annotations(tmp_path / "answers.npy")) == rows(votes)
    assert rows(read_annotations(matrix)) == rows(votes)
    np.savetxt(tmp_path / "answers.csv", matrix, "%d", ",")
    assert rows(read_annotations(tmp_path / "answers.csv", "dense")) == rows(votes)


def cifar(tmp_path: Path, name: str, **arrays: Any) -> Path:
    """Write arrays as the authors of CIFAR-10N do."""
    path = tmp_path / name
    torch.save(arrays, path)
    return path


def test_cifar_n_places_are_annotators(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """CIFAR-10N's worker ids do not belong to its labels, so naming the workers would be wrong."""
    clean = np.array([3, 1, 2, 0])
    labels = {f"random_label{k}": (clean + k) % 4 for k in (1, 2, 3)}
    path = cifar(
        tmp_path, "CIFAR-10_human.pt", clean_label=clean, worse_label=clean[::-1], **labels
    )
    (tmp_path / "side_info_cifar10N.csv").write_text("Image-batch,Worker1-id\n0--9,198\n")
    with caplog.at_level(logging.WARNING):
        votes = read_annotations(path)
    assert rows(votes, "gold") == [
        (i, f"random_label{k}", (int(clean[i]) + k) % 4, int(clean[i]))
        for k in (1, 2, 3)
        for i in range(4)
    ]
    assert "worker ids do not belong to its labels" in caplog.text
    worse = read_annotations(path, annotation="worse_label")
    assert rows(worse) == [(i, "worse_label", int(c)) for i, c in enumerate(clean[::-1])]
    with pytest.raises(ValueError, match="leave `annotator` out"):
        read_annotations(path, annotator=tmp_path / "side_info_cifar10N.csv")


def test_cifar_100n_reads_workers_by_batches(tmp_path: Path) -> None:
    """A batch shifted by one image gives labels to the wrong worker."""
    noisy, clean = np.array([5, 6, 7, 8, 9]), np.array([5, 6, 0, 8, 1])
    path = cifar(tmp_path, "CIFAR-100_human.pt", noisy_label=noisy, clean_label=clean)
    with pytest.raises(FileNotFoundError, match="side_info_cifar100N.csv must hold the worker"):
        read_annotations(path)
    beside = tmp_path / "side_info_cifar100N.csv"
    beside.write_text("Image-batch,Worker-id,Work-time-in-seconds\n0--2,514,113\n3--4,239,41\n")
    expected = [(0, 514, 5, 5), (1, 514, 6, 6), (2, 514, 7, 0), (3, 239, 8, 8), (4, 239, 9, 1)]
    assert rows(read_annotations(path), "gold") == expected
    beside.rename(tmp_path / "workers.csv")
    assert rows(read_annotations(path, annotator=tmp_path / "workers.csv"), "gold") == expected
    (tmp_path / "workers.csv").write_text("Image-batch,Worker-id\n0--2,514\n")
    with pytest.raises(ValueError, match="all N = 5 images, got none for image 3"):
        read_annotations(path, annotator=tmp_path / "workers.csv")
    (tmp_path / "workers.csv").write_text("Image-batch,Worker-id\n0-2,514\n")
    with pytest.raises(ValueError, match="workers.csv, line 2: must be first--last image"):
        read_annotations(path, annotator=tmp_path / "workers.csv")


def test_cifar_n_needs_all_its_places(tmp_path: Path) -> None:
    """If one column were renamed, a third of the votes would silently be lost."""
    clean = np.arange(20) % 10
    arrays = {f"random_label{k}": clean for k in (1, 2)} | {"clean_label": clean}
    with pytest.raises(ValueError, match="must hold `random_label3`, got random_label1, random"):
        read_annotations(cifar(tmp_path, "x.pt", **arrays, random_lable3=clean))
    for wrong in (-1, 10):
        labels = np.where(np.arange(20) == 7, wrong, clean)
        path = cifar(tmp_path, "x.pt", **arrays, random_label3=labels)
        with pytest.raises(ValueError, match=rf"must lie in 0\.\.9, got {wrong} at item 7"):
            read_annotations(path)


def test_damaged_arrays_are_refused(tmp_path: Path) -> None:
    """Torch does not verify its files' checksums, and numpy ignores what follows an array."""
    clean = np.arange(200) % 10
    path = cifar(
        tmp_path, "x.pt", clean_label=clean, **{f"random_label{k}": clean for k in (1, 2, 3)}
    )
    data = bytearray(path.read_bytes())
    data[data.index(clean.tobytes()) + 8] ^= 2  # one label
    path.write_bytes(data)
    assert torch.load(path, weights_only=False)["clean_label"].sum() != clean.sum()
    with pytest.raises(ValueError, match="got another checksum for .*: load it down again"):
        read_annotations(path)
    matrix = np.array([[0, -1], [1, 0]])
    np.save(tmp_path / "x.npy", matrix)
    whole = (tmp_path / "x.npy").read_bytes()
    for broken in (whole + b"\0", whole[:-1]):
        (tmp_path / "x.npy").write_bytes(broken)
        with pytest.raises(ValueError, match=f"it must have {len(whole)} bytes, got {len(broken)}"):
            read_annotations(tmp_path / "x.npy")
    with pytest.raises(
        ValueError, match="numbers of classes below 65536, got 65536 of annotator 1"
    ):
        read_annotations(np.array([[0, 1 << 16], [-1, 0]]))


def test_parquet_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    """Parquet has checksums only on request, so its statistics must serve."""
    path = tmp_path / "x.parquet"
    FRAME.to_parquet(path, compression=None)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"dog", b"dot", 1))
    with pytest.raises(ValueError, match=r"column label says it lies in 'cat'..'dog' and lies in"):
        read_annotations(path)


def test_relations_of_label_studio_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A relation has no value: it is a result that is not a choice."""
    answer = choice(1, "a")
    answer["result"].append({"type": "relation", "from_id": "r1", "to_id": "r2", "labels": ["on"]})
    with caplog.at_level(logging.WARNING):
        assert rows(read(tmp_path, "x.json", label_studio(answer))) == [("a", 1, "a")]
    assert "results that are not choices 1" in caplog.text


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('the pickle ran')",))


def test_pickles_never_run(tmp_path: Path) -> None:
    """Unpickling a downloaded file would run whatever code it contains."""
    path = cifar(tmp_path, "x.pt", clean_label=Evil())
    with pytest.raises(ValueError, match="x.pt: must hold numpy arrays only, got .*exec"):
        read_annotations(path)
    (tmp_path / "old.pt").write_bytes(pickle.dumps({"clean_label": Evil()}))
    with pytest.raises(ValueError, match="old.pt: must be a file of `torch.save`"):
        read_annotations(tmp_path / "old.pt")
    np.save(tmp_path / "x.npy", np.array([[Evil()]], dtype=object))
    with pytest.raises(ValueError, match="x.npy: must be a .npy file without objects"):
        read_annotations(tmp_path / "x.npy")


# Tables


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", LONG),
        ("x.csv", LONG.replace(",", ";")),
        ("x.csv", LONG.replace(",", "\t")),
        ("x.csv", LONG.replace("\n", "\r\n").encode("utf-8-sig")),
        ("x.csv", LONG.replace("\n", "\r")),
        ("x.csv", LONG.encode("utf-16")),
        ("x.csv", "\n" + LONG.replace("\n", "\n\n").rstrip("\n")),
        ("x.csv", LONG.replace("ann", " ann\t").replace("image", ' "image" '.replace('"', ""))),
        ("x.csv", LONG.replace("ann", '"ann"')),
        ("x.tsv", LONG.replace(",", "\t")),
        ("x.txt", LONG.replace(",", "\t")),
        ("x.csv", LONG.replace("image,worker,label", "Task ID,Labeller,ANSWER")),
        ("x.csv", LONG.replace("image,worker,label", "File-Name,User_Id,response")),
        ("x.json", json.dumps([dict(zip(ROLES, vote, strict=True)) for vote in VOTES])),
        ("x.json", "\n".join(json.dumps(dict(zip(ROLES, v, strict=True))) for v in VOTES)),
        ("x.jsonl", "\n\n".join(json.dumps(dict(zip(ROLES, v, strict=True))) for v in VOTES)),
        ("x.json", json.dumps({r: [v[i] for v in VOTES] for i, r in enumerate(ROLES)})),
    ],
)
def test_long_tables_of_many_looks_are_one(name: str, content: str | bytes, tmp_path: Path) -> None:
    """Everybody's export looks slightly different."""
    assert rows(read(tmp_path, name, content)) == VOTES


FRAME = pd.DataFrame(VOTES, columns=["image", "worker", "label"])


@pytest.mark.parametrize(
    "source",
    [
        FRAME,
        FRAME.astype(object),
        FRAME.astype("category"),
        pa.Table.from_pandas(FRAME),
        Dataset.from_pandas(FRAME),
        FRAME.to_dict("records"),
        FRAME.to_dict("list"),
    ],
    ids=["frame", "objects", "categories", "arrow", "dataset", "records", "lists"],
)
def test_tables_in_memory_are_read(source: Any) -> None:
    """A user with votes in memory should not have to write a file first."""
    assert rows(read_annotations(source)) == VOTES


def test_columns_may_be_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No list of usual column names is complete."""
    text = LONG.replace("image,worker,label", "a,b,c")
    names = {"item": "a", "annotator": "b", "annotation": "c"}
    with caplog.at_level(logging.WARNING):
        assert rows(read(tmp_path, "x.csv", text, format="long", **names)) == VOTES
        assert not caplog.text  # nothing was guessed
        read(tmp_path, "x.csv", text, **names)
    assert (
        "x.csv: long table, 3 votes on 2 items by 2 annotators, item=a, annotator=b, annotation=c"
        in caplog.text
    )


def test_class_names_are_those_of_the_features(tmp_path: Path) -> None:
    """A ClassLabel is a number in the file and a name to its owner."""
    features = Features(
        image=Value("string"), worker=Value("int64"), label=ClassLabel(names=["cat", "dog"])
    )
    data = {"image": ["a", "a"], "worker": [4, 5], "label": [1, 0]}
    dataset = Dataset.from_dict(data, features=features)
    expected = [("a", 4, "dog"), ("a", 5, "cat")]
    assert rows(read_annotations(dataset)) == expected
    dataset.to_parquet(tmp_path / "x.parquet")
    assert rows(read_annotations(tmp_path / "x.parquet")) == expected


def test_extra_columns_stay_and_never_take_our_names(tmp_path: Path) -> None:
    """A second column `item` would be an error in Arrow, or hide ours."""
    text = "item,file,worker,label,seconds\n1,a,ann,cat,007\n"
    votes = read(tmp_path, "x.csv", text, item="file")
    assert votes.column_names == [*ROLES, "original_item", "seconds"]
    assert votes[0]["original_item"] == "1"
    assert votes[0]["seconds"] == "007"
    records = [{"file": "a", "worker": 1, "label": 2, "x": [1, {"y": 2}]}]
    records.append({"file": "b", "worker": 1, "label": 2, "x": "z", "w": 1.5})
    votes = read_annotations(records)
    assert votes["x"][:] == ['[1, {"y": 2}]', "z"]
    assert votes["w"][:] == [None, 1.5]


def test_own_table_comes_back(tmp_path: Path) -> None:
    """Our own output must be readable, although `label` beside `annotation` would be ambiguous."""
    text = "item,annotator,annotation,gold,label\na,ann,cat,cat,x\nb,,,dog,y\n"
    votes = read(tmp_path, "x.csv", text)
    votes.to_csv(tmp_path / "again.csv")
    again = read_annotations(tmp_path / "again.csv")
    assert again[:] == votes[:]
    assert rows(again, "gold", "label") == [
        ("a", "ann", "cat", "cat", "x"),
        ("b", None, None, "dog", "y"),
    ]


# Names


@pytest.mark.parametrize(
    ("values", "expected", "kind"),
    [
        ([1, 12], [1, 12], "int64"),
        (["1", "012"], ["1", "012"], "string"),
        ([1, "a"], ["1", "a"], "string"),
        ([1, "1"], ["1", '"1"'], "string"),
        ([1, "1", '"1"'], ["1", '"1"', '"\\"1\\""'], "string"),
        ([1.0, 2], [1, 2], "int64"),
        ([1.5, 2], ["1.5", "2"], "string"),
        ([True, False], ["true", "false"], "string"),
        ([2**70, 1], [str(2**70), "1"], "string"),
        ([-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1], "int64"),
    ],
)
def test_values_of_json_keep_their_kind(
    values: list[Any], expected: list[Any], kind: str, tmp_path: Path
) -> None:
    """1 and "1" are two names in JSON, and one Arrow column must keep them apart."""
    records = [{"item": "a", "annotator": v, "annotation": v} for v in values]
    votes = read(tmp_path, "x.json", json.dumps(records))
    for role in ("annotator", "annotation"):
        assert votes[role][:] == expected
        assert votes.features[role] == Value(kind)


def test_numbers_and_text_that_collide_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Usually they are the same worker, written in two ways."""
    records = [{"item": "a", "annotator": v, "annotation": "x"} for v in (7, "7")]
    with caplog.at_level(logging.WARNING):
        read(tmp_path, "x.json", json.dumps(records))
    assert "in doubt: annotator holds both numbers and text for 7" in caplog.text


def test_gold_labels_are_named_as_annotations() -> None:
    """A gold label written as text would match no vote, as those are numbers."""
    records = [{"item": "a", "annotator": "m", "annotation": 1, "gold": "1"}]
    assert rows(read_annotations(records), "gold") == [("a", "m", "1", "1")]
    table = pa.table({"item": ["a"], "annotator": ["m"], "annotation": [1], "gold": ["1"]})
    assert rows(read_annotations(table), "gold") == [("a", "m", "1", "1")]


@pytest.mark.parametrize("mixed", [False, True])
def test_whole_floats_of_pandas_are_whole_numbers(mixed: bool, tmp_path: Path) -> None:
    """A missing value turns a pandas column into floats, and class 3 into "3.0"."""
    frame = pd.DataFrame({"item": [1, 2, 3], "annotator": [5, 6, None], "annotation": [3, 0, None]})
    frame["gold"] = [3, None, 2]
    assert frame["annotation"].dtype == float
    if mixed:
        frame = frame.astype(object)
    expected = [(1, 5, 3, 3), (2, 6, 0, None), (3, None, None, 2)]
    assert rows(read_annotations(frame), "gold") == expected
    if not mixed:
        frame.to_parquet(tmp_path / "x.parquet")
        assert rows(read_annotations(tmp_path / "x.parquet"), "gold") == expected


# Missing votes and gold labels


def test_gold_labels_reach_every_row_of_their_item(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A gold label given in one of three rows belongs to the item."""
    text = (
        "item,annotator,annotation,gold\n"
        "a,ann,cat,\na,bob,dog,dog\nb,,,cat\nb,,,cat\nc,ann,cat,\nc,,,dog\nd,,,\n,,,\n"
    )
    with caplog.at_level(logging.WARNING):
        votes = read(tmp_path, "x.csv", text)
    assert rows(votes, "gold") == [
        ("a", "ann", "cat", "dog"),
        ("a", "bob", "dog", "dog"),
        ("b", None, None, "cat"),
        ("c", "ann", "cat", "dog"),
    ]
    assert (
        "1 rows hold a gold label only; left out: blank rows 1, rows without a vote 1, "
        "gold-only rows of items that have another row 2" in caplog.text
    )


# Malformed files

HEAD = "item,annotator,annotation\n"
MALFORMED = {
    "empty": ("x.csv", "", "x.csv: is empty"),
    "blank": ("x.csv", " \n", "x.csv: is empty"),
    "only a mark": ("x.csv", b"\xef\xbb\xbf", "x.csv: is empty"),
    "only a header": ("x.csv", HEAD, "holds no rows, only the columns item, annotator"),
    "only blanks": ("x.csv", HEAD + ",,\n", "at least one vote, got none; left out: blank rows 1"),
    "short row": ("x.csv", HEAD + "a,b,c\n\nd,e\n", "line 4: must have 3 fields, got 2: 'd', 'e'"),
    "long row": ("x.csv", HEAD + '"a\n",b,c\nd,e,f,g\n', "line 4: must have 3 fields, got 4"),
    "open quote": ("x.csv", HEAD + 'a,b,c\nd,e,"f\ng,h,i\n', "line 3: a quote in the row that begins"),
    "broken quote": ("x.csv", HEAD + 'a,b,c\nd,e,"f"g\n', "line 3: a quote in the row that begins"),
    "latin-1": ("x.csv", HEAD.encode() + b"a,b,\xe9\n", "line 2: must be text in UTF-8, got byte 0xe9"),
    "nul": ("x.csv", HEAD + "a,b,c\0\n", "line 2: must be text, got a NUL"),
    "twice": ("x.csv", "item,annotator, item\na,b,c\n", "names must differ, got 'item' more than"),
    "no annotator": ("x.csv", "image,label\na,b\n", "annotator=none"),
    "two items": ("x.csv", "image,file,worker,label\na,b,c,d\n", "image, file could each be the item"),
    "two labels": ("x.csv", "image,worker,label,answer\na,b,c,d\n", "label, answer could each be the"),
    "two golds": ("x.csv", "image,worker,label,gold,truth\na,b,c,d,e\n", "name it by `gold=...`"),
    "no label": ("x.csv", HEAD + 'a,b,c\n"d\n",e,\n', "line 3: has no annotation, only item=d"),
    "space": ("x.csv", HEAD + "a,b, \n", "line 2: has no annotation, only item=a, annotator=b"),
    "nobody": ("x.csv", HEAD + "\r\na,,c\n", "line 3: has no annotator, only item=a, annotation=c"),
    "no item": ("x.csv", HEAD + "a,b,c\n,b,c\n", "line 3: has no item, only annotator=b"),
    "two truths": (
        "x.csv",
        "item,annotator,annotation,gold\na,b,c,x\na,,,y\n",
        "line 3: item 'a' must have one gold label, got 'y' here and 'x' at line 2",
    ),
    "no json": ("x.json", '[{"a": 1},\n {"a" 2}]', "line 2: broken JSON at column 7: Expecting ':'"),
    "cut json": ("x.json", '[{"a": 1},', "line 1: broken JSON at column 11"),
    "number": ("x.json", "3", "must hold a list of records or an object, got int"),
    "empty list": ("x.json", "[]", "got nothing in it"),
    "key twice": ("x.json", '{"a": {"w": 1,\n"w": 2}}', "x.json: broken JSON: key 'w' occurs twice"),
    "deep": ("x.json", "[" * 100_000, "x.json, line 1: broken JSON: "),
    "json lines": ("x.jsonl", '{"a": 1}\n\n{"a": }\n', "line 3: broken JSON at column 7"),
    "key twice in line": ("x.jsonl", '{"a": 1}\n{"a": 1, "a": 2}\n', "line 2: broken JSON: key 'a'"),
    "nan": (
        "x.json",
        '[{"item": 1, "annotator": 2, "annotation": NaN}]',
        "record 1: has no annotation, only item=1, annotator=2",
    ),
    "list of labels": (
        "x.jsonl",
        '{"item": 1, "annotator": 2, "annotation": ["x", "y"]}',
        "line 1: `annotation` must be one label, got 2: x, y",
    ),
    "no record": (
        "x.json",
        '[{"item": 1, "annotator": 2, "annotation": 3}, 4]',
        "record 2: must be an object with names, got int",
    ),
    "no worker": ("x.json", '{"t1": {"w": 1}, "t2": 3}', "task 't2' must be a dict of workers'"),
    "no vote": ("x.json", '{"t1": {"w": null}}', "task 't1': worker 'w' must have a label, got None"),
    "votes": ("x.json", '{"t1": {"w": [1, 2]}}', "task 't1', worker 'w' must be one label, got 2"),
    "silence": ("x.json", '{"t1": {}}', "at least one vote, got none; left out: tasks without a vote 1"),
    "ragged": ("x.txt", "0 -1\n\n1\n", "line 3: must have M = 2 labels as line 1 has, got 1"),
    "half": ("x.txt", "0 -1\n0.5 1\n", "line 2: labels must be whole numbers from 0, or -1"),
    "word": ("x.txt", "0 -1\n1 x\n", "line 2: labels must be whole numbers, got 'x'"),
    "below": ("x.txt", "0 -1\n1 -2\n", "line 2: labels must be whole numbers from 0, or -1 for none, got -2.0 of annotator 1"),
    "infinite": ("x.txt", "0 -1\n1 inf\n", "line 2: labels must be whole numbers from 0"),
    "counts": ("x.txt", "0 1\n", "no format fits, got a matrix (1, 2) without -1"),
    "npy": ("x.npy", b"\x93NUMPY", "x.npy: must be a .npy file without objects"),
    "parquet": ("x.parquet", b"PAR1", "x.parquet: must be a whole Parquet file"),
    "pt": ("x.pt", b"PK", "x.pt: must be a whole file of `torch.save`"),
    "excel": ("x.xlsx", b"PK", "must end in one of .csv, .tsv, .txt"),
    "tasks": (
        "x.json",
        '[{"data": {"image": 1}, "annotations": "none"}]',
        "record 1: `annotations` must be a list, got str",
    ),
    "data": ("x.json", '[{"annotations": [], "data": 3}]', "record 1: `data` must be a dict, got int"),
    "mixed": (
        "x.json",
        '[{"annotations": [], "data": {}}, {"id": 3}]',
        "record 2: `data` must be a dict, got only id",
    ),
    "several choices": (
        "x.json",
        label_studio(choice(1, "a", "b")),
        "record 1: an answer must be one label, got 2: a, b",
    ),
    "several regions": (
        "x.json",
        label_studio({"completed_by": 1, "result": 2 * choice(1, "a")["result"]}),
        "record 1: an answer must be one label, got 2",
    ),
    "unsigned": ("x.json", label_studio(choice(None, "a")), "record 1: `completed_by` must say who"),
    "two ground truths": (
        "x.json",
        label_studio(choice(1, "a", ground_truth=True), choice(1, "b", ground_truth=True), choice(2, "a")),
        "record 1: item 'a' must have one gold label, got 'b' here and 'a' at record 1",
    ),
    "no question": ("x.json", label_studio({"completed_by": 1, "result": []}), "no answer to a question"),
    "no result": ("x.json", label_studio({"completed_by": 1}), "`result` must be a list, got only"),
    "responses": ("x.json", '[{"id": 1, "responses": "x"}]', "record 1: `responses` must be a list or"),
    "no value": ("x.json", '[{"id": 1, "responses": {"q": [{"v": 1}]}}]', "must have a `value`"),
    "no user": ("x.json", '[{"id": 1, "responses": {"q": [{"value": 1}]}}]', "must have a `user_id`"),
    "ranking": (
        "x.json",
        '[{"id": 1, "responses": {"q": [{"user_id": 1, "value": [{"value": "a", "rank": 1}]}]}}]',
        'record 1: an answer must be one label, got {"value": "a", "rank": 1}',
    ),
    "no id": (
        "x.json",
        '[{"fields": {"text": 1}, "responses": {"q": [{"user_id": 1, "value": 1}]}}]',
        "records have no complete id, external_id, _server_id: name what identifies them by `item`, one of text",
    ),
    "hub": (
        "x.json",
        '[{"id": 1, "q.responses": ["a", "b"], "q.responses.users": ["u"]}]',
        "record 1: `q.responses`, `.users` and `.status` must be of one length, got 2, 1 and 2",
    ),
    "unknown": ("x.json", '[{"a": 1}]', "no format fits, got 1 records with keys a."),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_errors_that_say_where(case: str, tmp_path: Path) -> None:
    """A file that is only half understood trains a model on the other half."""
    name, content, message = MALFORMED[case]
    with pytest.raises(ValueError) as error:  # noqa: PT011
        read(tmp_path, name, content)
    assert str(error.value).startswith(name)
    assert message in str(error.value)


def test_unknown_formats_are_shown_all_formats(tmp_path: Path) -> None:
    """If the error says what was seen and what can be read, the user needs no manual."""
    with pytest.raises(ValueError) as error:  # noqa: PT011
        read(tmp_path, "x.csv", "stimulus,who,label\na,b,c\n")
    text = str(error.value)
    assert "got a table with columns stimulus, who, label" in text
    assert "item=none, annotator=none, annotation=label" in text
    assert all(f"'{name}': " in text for name in FORMATS)


def test_a_format_that_is_named_must_fit(tmp_path: Path) -> None:
    """Naming a format must not make the reader accept nonsense."""
    with pytest.raises(
        ValueError, match="must be JSON {task.* for `format='peerannot'`, got a table"
    ):
        read(tmp_path, "x.csv", LONG, format="peerannot")
    with pytest.raises(ValueError, match="`format` must be one of long, wide, .* got 'csv'"):
        read_annotations(tmp_path / "x.csv", "csv")
    with pytest.raises(ValueError, match="`gold` must be left out for dense"):
        read_annotations(EXPORTS / "answers.txt", gold="truth")
    with pytest.raises(ValueError, match="`item` must be one of image, worker, label, got 'x'"):
        read(tmp_path, "x.csv", LONG, item="x")
    with pytest.raises(ValueError, match="each role must have its own column"):
        read(tmp_path, "x.csv", LONG, item="label")


def test_annotator_files_must_be_one_an_annotator(tmp_path: Path) -> None:
    """Parts of one long table would each count as one annotator, and the real ones would be lost."""
    (tmp_path / "part1.csv").write_text(LONG)
    expected = "part1.csv: must hold the votes of one annotator, got a column of annotators, worker"
    with pytest.raises(ValueError, match=expected):
        read_annotations(tmp_path)
    one = {"id": 1, "text": "x", "label": ["a", "b"]}
    (tmp_path / "part1.csv").unlink()
    (tmp_path / "ann.jsonl").write_text(json.dumps(one))
    with pytest.raises(ValueError, match="ann.jsonl, line 1: an answer must be one label, got 2"):
        read_annotations(tmp_path)
    (tmp_path / "ann.jsonl").write_text(json.dumps(one | {"label": [[0, 3, "PER"]]}))
    with pytest.raises(ValueError, match="line 1: an answer must be one label, got"):
        read_annotations(tmp_path)
    (tmp_path / "ann.jsonl").write_text(json.dumps({"text": "x", "label": "a"}))
    (tmp_path / "bob.jsonl").write_text(json.dumps({"id": 3, "label": "a"}))
    with pytest.raises(ValueError, match="bob.jsonl: item must have the same name in all files"):
        read_annotations(tmp_path)
    (tmp_path / "bob.jsonl").unlink()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "ann.csv").write_text("text,label\nx,a\n")
    with pytest.raises(ValueError, match="two files belong to the same annotator, ann"):
        read_annotations([tmp_path / "ann.jsonl", tmp_path / "b" / "ann.csv"])


def test_sources_of_other_kinds_are_refused(tmp_path: Path) -> None:
    """A DatasetDict has several splits, and a missing file has none."""
    split = Dataset.from_pandas(FRAME)
    with pytest.raises(TypeError, match="one of its splits, train"):
        read_annotations(DatasetDict(train=split))
    for source in (split.to_iterable_dataset(), 3, None, [1, 2]):
        with pytest.raises(TypeError, match="`source` must be a path, .* got"):
            read_annotations(source)
    for source in ([], {}):
        with pytest.raises(ValueError, match="`source` must hold votes, got nothing"):
            read_annotations(source)
    for name in ("none.csv", "*.csv"):
        with pytest.raises(FileNotFoundError, match="no such file"):
            read_annotations(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_annotations([tmp_path / "none.csv"])
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="none: holds no file of votes"):
        read_annotations(tmp_path / "none")
    with pytest.raises(ValueError, match="the data frame, row 1: has no annotation, only item=a"):
        read_annotations(FRAME.assign(label=["cat", None, "cat"]))
    with pytest.raises(ValueError, match="the table, row 0: `worker` must hold text or numbers"):
        read_annotations(pa.table({"image": ["a"], "worker": [[1]], "label": ["x"]}))
    with pytest.raises(ValueError, match="columns must be of one length"):
        read_annotations({"image": ["a"], "worker": [], "label": ["x"]})


def test_cifar_n_arrays_must_fit(tmp_path: Path) -> None:
    """Labels of another length belong to other images."""
    labels = np.arange(4)
    for arrays, message in [
        ({"noisy_label": labels}, "must hold `clean_label`, got noisy_label"),
        ({"clean_label": labels}, "must hold `noisy_label`, got clean_label"),
        ({"clean_label": labels, "noisy_label": labels[1:]}, "must have N = 4 labels, got 3"),
        ({"clean_label": labels, "noisy_label": labels / 2}, "must be a row of whole numbers"),
        ({"clean_label": labels, "noisy_label": "text"}, "must be a row of whole numbers"),
    ]:
        with pytest.raises(ValueError, match=message):
            read_annotations(cifar(tmp_path, "x.pt", **arrays))


# Properties: written in any format and read back, no vote is lost or changed

# No lone surrogates (not valid text) and no NUL (refused by the reader).
ANY = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
AWKWARD = st.sampled_from(
    ['"', ",", "\n", "\r\n", ";", "\t", "a", "é", " a", "1", "01", "NaN", "-1"]
)
NAME = st.one_of(ANY, st.lists(AWKWARD, min_size=1, max_size=4).map("".join))
TRIMMED = NAME.map(lambda name: name.strip(SPACE)).filter(bool)
VOTE = st.tuples(NAME, TRIMMED, TRIMMED)
TABLE = st.lists(VOTE, min_size=1, max_size=9)
ONE_EACH = st.lists(VOTE, min_size=1, max_size=9, unique_by=lambda vote: vote[:2])
PROPERTY = settings(
    deadline=None,
    derandomize=True,
    max_examples=40,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def labels_of(votes: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Return arguments under which every string is a name: neither a missing marker nor several labels in one."""
    return {"missing": (), "classes": sorted({label for *_, label in votes})}


def check_round_trip(votes: list[tuple[Any, ...]], back: Dataset) -> None:
    """Check that the votes come back, also after joining them to items and extracting them again."""
    names = back.features["annotation"].names
    votes_read = [(item, annotator, names[c]) for item, annotator, c in rows(back)]
    assert Counter(votes_read) == Counter(votes)
    items = list(dict.fromkeys(str(item) for item, *_ in votes))
    joined = add_annotations(Dataset.from_dict({"name": items}), back, "name", missing=())
    annotators, classes = crowd_names(joined)
    assert annotators is not None
    assert classes is not None
    apart = [
        (row["name"], annotators[m], classes[c])
        for row in joined
        for m, c in zip(row["annotators"], row["annotations"], strict=True)
    ]
    assert Counter(apart) == Counter(tuple(map(str, vote)) for vote in votes)


@PROPERTY
@example(votes=[("a", "b", "c,"), ('"', "'", "\n"), ("=1", "\u2028", "\x85")][:1])
@given(votes=TABLE)
@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl", "x.json", "x.parquet"])
def test_long_tables_come_back(
    name: str, votes: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    """A comma, a quote or a line end in a name would shift the rest of the table."""
    path = tmp_path / name
    records = [dict(zip(ROLES, vote, strict=True)) for vote in votes]
    if name.endswith("sv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            delimiter = "," if name == "x.csv" else "\t"
            csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows([ROLES, *votes])
    elif name == "x.jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif name == "x.json":
        path.write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8", newline="")
    else:
        pq.write_table(pa.Table.from_pylist(records), path)
    check_round_trip(votes, read_annotations(path, "long", **labels_of(votes)))


@PROPERTY
@given(votes=ONE_EACH)
def test_wide_tables_come_back(votes: list[tuple[str, str, str]], tmp_path: Path) -> None:
    """A label in the neighbouring column would belong to another annotator."""
    votes = [(item, f"m{annotator}", label) for item, annotator, label in votes]
    said = {vote[:2]: vote[2] for vote in votes}
    items = list(dict.fromkeys(item for item, *_ in votes))
    who = list(dict.fromkeys(annotator for _, annotator, _ in votes))
    table = [["the item", *who], *([i, *(said.get((i, m), "") for m in who)] for i in items)]
    with (tmp_path / "x.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(table)
    back = read_annotations(
        tmp_path / "x.csv", "wide", item="the item", annotator=who, **labels_of(votes)
    )
    check_round_trip(votes, back)


LABEL = st.one_of(st.integers(-(2**70), 2**70), TRIMMED)


@PROPERTY
@given(
    votes=st.lists(
        st.tuples(NAME, TRIMMED, TRIMMED), min_size=1, max_size=9, unique_by=lambda v: v[:2]
    )
)
def test_peerannot_comes_back(votes: list[tuple[str, str, str]], tmp_path: Path) -> None:
    """White space in an item and digits in a key belong to them."""
    answers: dict[str, dict[str, str]] = {}
    for item, annotator, label in votes:
        answers.setdefault(item, {})[annotator] = label
    (tmp_path / "x.json").write_text(json.dumps(answers))
    check_round_trip(votes, read_annotations(tmp_path / "x.json", **labels_of(votes)))


@PROPERTY
@given(votes=st.lists(st.tuples(NAME, st.integers(0, 9), TRIMMED), min_size=1, max_size=9))
def test_label_studio_comes_back(votes: list[tuple[str, int, str]], tmp_path: Path) -> None:
    """A task must be read exactly once per annotation."""
    tasks: dict[str, Any] = {}
    for item, annotator, label in votes:
        task = tasks.setdefault(item, {"id": len(tasks), "data": {"x": item}, "annotations": []})
        task["annotations"].append(choice(annotator, label))
    (tmp_path / "x.json").write_text(json.dumps(list(tasks.values())))
    check_round_trip(votes, read_annotations(tmp_path / "x.json", **labels_of(votes)))


@PROPERTY
@example(labels=[1, "1", '"1"', '"\\"1\\""'])
@given(labels=st.lists(LABEL, min_size=1, max_size=6, unique_by=lambda x: (type(x), x)))
def test_names_of_json_never_merge(labels: list[Any]) -> None:
    """Merging two names would merge two classes or two people."""
    records = [{"item": i, "annotator": 0, "annotation": label} for i, label in enumerate(labels)]
    try:
        votes = read_annotations(records, missing=())
    except ValueError as error:
        assert "is a class by itself" in str(error)  # noqa: PT017
    else:
        assert len(set(votes["annotation"])) == len(labels)


# Size


def peak() -> int:
    status = Path("/proc/self/status")
    if status.exists():  # there `ru_maxrss` of a new process starts at its parent's
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def count_votes(path: Path) -> None:
    before = peak()
    votes = read_annotations(path)
    print(json.dumps([len(votes), votes[-1], peak() - before]))


@pytest.mark.slow
@needs_fork
@pytest.mark.full
@pytest.mark.parametrize("quote", ['"', ""])
def test_a_million_votes_fit(quote: str, tmp_path: Path) -> None:
    """One Python object per cell would take gigabytes."""
    number = 1_000_000
    rng = np.random.default_rng(0)
    with (tmp_path / "x.csv").open("w") as file:
        file.write("image,worker,label,seconds\n")
        who, label = rng.integers(5000, size=number), rng.integers(10, size=number)
        for i in range(number):
            file.write(f"{quote}image_{i // 3}.jpg{quote},worker_{who[i]},{label[i]},{i}\n")
    # In a separate process, as this one may already have reached its peak.
    log = tmp_path / "log"
    assert run(log, count_votes, tmp_path / "x.csv") == 0, log.read_text()
    count, last, grown = json.loads(log.read_text().splitlines()[-1])
    assert count == number
    assert last == {
        "item": f"image_{(number - 1) // 3}.jpg",
        "annotator": f"worker_{who[-1]}",
        "annotation": str(label[-1]),
        "seconds": str(number - 1),
    }
    assert 1 << 20 < grown < 1 << 30


# Real crowds


def test_labelme_votes_and_matrix_are_one_crowd(shared_data: Path) -> None:
    """Two formats of the same votes, read by different code, must agree."""
    long = read_annotations(shared_data / "labelme" / "votes.csv")
    dense = read_annotations(shared_data / "labelme" / "answers.txt")
    files = (shared_data / "labelme" / "filenames_train.txt").read_text().split()
    names = (shared_data / "labelme" / "class_names.txt").read_text().split()
    said = Counter((files[i], f"worker_{m:02d}", names[c]) for i, m, c in rows(dense))
    assert len(long) == 2547
    assert said == Counter(rows(long))


def test_real_crowds_are_recognised(shared_data: Path) -> None:
    """Counts and accuracies must be those that the owners publish."""
    cifar10h = read_annotations(shared_data / "cifar10h" / "answers_valid.json")
    assert len(cifar10h) == 25752
    assert len(set(cifar10h["annotator"])) == 2571
    dogs = read_annotations(shared_data / "dogs_labels" / "answer.csv")
    assert [len(set(dogs[role])) for role in ROLES] == [807, 109, 4]
    music = read_annotations(shared_data / "music" / "mturk_answers.csv")
    assert len(music) == 2945
    assert np.mean(np.array(music["annotation"]) == np.array(music["gold"])) == pytest.approx(
        0.560, abs=5e-4
    )


def test_real_cifar_n_is_read(shared_data: Path) -> None:
    """The published pickles hold arrays of an older numpy."""
    ten = read_annotations(shared_data / "cifar10n" / "CIFAR-10_human.pt").with_format("numpy")[:]
    right = (ten["annotation"] == ten["gold"]).reshape(3, -1)
    assert right.mean(1) == pytest.approx([0.828, 0.819, 0.824], abs=5e-4)
    hundred = read_annotations(shared_data / "cifar100n" / "CIFAR-100_human.pt")
    assert len(hundred) == 50_000
    assert len(hundred.unique("annotator")) == 519
