"""Tests of `hf_maxmig.data.readers`, `cells`, `values` and `tables`: one rule for cells in any container."""

import json
import logging
import unicodedata
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_maxmig.data.columns import add_annotations, crowd_names
from hf_maxmig.data.readers.cells import class_numbers, look_alike
from hf_maxmig.data.readers.read_annotations import read_annotations
from hf_maxmig.data.readers.values import MISSING

ROLES = ["item", "annotator", "annotation"]


def crowd(votes: Any, **asked: Any) -> Any:
    """Join a table of votes on items a to d and return the result, or the type of the error."""
    items = Dataset.from_dict({"name": list("abcd")})
    try:
        joined = add_annotations(items, votes, "name", **asked)
    except (ValueError, TypeError):
        return ValueError
    return crowd_names(joined), joined["annotators"][:], joined["annotations"][:]


def csv_of(tmp_path: Path, text: str, name: str = "votes.csv") -> Path:
    """Write a table."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def said(source: Any, **asked: Any) -> list[Any]:
    """Return the annotations."""
    return read_annotations(source, **asked)["annotation"][:]


def containers(records: list[dict[str, Any]], tmp_path: Path) -> dict[str, Any]:
    """Return the same votes in every container they may come in."""
    columns = {name: [record[name] for record in records] for name in ROLES}
    frame = pd.DataFrame(records)
    frame.to_csv(tmp_path / "v.csv", index=False)
    frame.to_csv(tmp_path / "v.tsv", index=False, sep="\t")
    (tmp_path / "v.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    (tmp_path / "v.json").write_text(json.dumps(records))
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")
    return {
        "dict": columns,
        "records": records,
        "objects": frame.astype(object),
        "frame": frame,
        "categories": frame.astype("category"),
        "arrow": pa.table(columns),
        "dataset": Dataset.from_dict(columns),
        **{kind: tmp_path / f"v.{kind}" for kind in ("csv", "tsv", "jsonl", "json", "parquet")},
    }


WORD = st.sampled_from(
    ["cup", "mug", "Cup", "cup ", "\u00a0mug", "mug\u200b", "1", "2", "?", "hot dog"]
)
CLASS = st.one_of(
    WORD, WORD, WORD, st.sampled_from(sorted(MISSING)), st.just("cup#mug"), st.just("-1")
)
RECORD = st.fixed_dictionaries(
    {"item": st.sampled_from("abcd"), "annotator": WORD, "annotation": CLASS}
)


@settings(
    deadline=None,
    derandomize=True,
    max_examples=20,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(records=st.lists(RECORD, min_size=1, max_size=6))
def test_same_votes_are_one_crowd_in_any_container(
    records: list[dict[str, Any]], tmp_path: Path
) -> None:
    """If the file gave one class more than the data frame, results could not be compared."""
    expected = crowd(records)
    for kind, votes in containers(records, tmp_path).items():
        try:
            read = read_annotations(votes, "long")
        except ValueError:
            assert expected is ValueError, kind
            continue
        assert crowd(read) == expected, kind
        if not isinstance(votes, Path):
            assert crowd(votes) == expected, kind


def test_text_of_pandas_is_text_of_one_kind(tmp_path: Path) -> None:
    """Large text and text cannot be concatenated with the votes of another file."""
    votes = {"item": ["a"], "annotator": ["p"], "annotation": ["cup"]}
    pd.DataFrame(votes).to_parquet(tmp_path / "v.parquet")
    assert set(map(str, pq.read_schema(tmp_path / "v.parquet").types)) <= {"string", "large_string"}
    for source in (votes, pd.DataFrame(votes), tmp_path / "v.parquet"):
        features = read_annotations(source).features
        assert all(features[role] == Value("string") for role in ROLES)


def test_pandas_reads_the_file_that_we_read(tmp_path: Path) -> None:
    """Pandas' missing markers, white space and floats used to give other classes than the file."""
    for labels in (["1", "", "0", "1"], ["cup", "NA", "mug ", "cup"], ["0.5", "1", "", "2"]):
        rows = [f"{item},{label},{labels[0]}" for item, label in zip("abcd", labels, strict=True)]
        path = csv_of(tmp_path, "item,p,q\n" + "\n".join(rows) + "\n")
        ours = crowd(read_annotations(path, "wide"))
        assert crowd(read_annotations(pd.read_csv(path), "wide")) == ours
        pd.read_csv(path).to_csv(tmp_path / "again.csv", index=False)
        assert crowd(read_annotations(tmp_path / "again.csv", "wide")) == ours


@pytest.mark.parametrize("marker", sorted(MISSING))
def test_markers_are_no_classes(
    marker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R writes NA, pandas nan and SQL NULL. Such a class would take a share of the prior."""
    path = csv_of(tmp_path, f'item,p,q\na,cup,"{marker}"\nb,mug,cup\nc,"{marker}",mug\n')
    with caplog.at_level(logging.WARNING):
        assert sorted(set(said(path))) == ["cup", "mug"]
    assert f"{marker!r} read as missing 2" in caplog.text
    assert len(said(path, missing=())) == 6
    row = csv_of(tmp_path, f'item,annotator,annotation\na,p,cup\nb,p,"{marker}"\n')
    with pytest.raises(
        ValueError, match="line 3: has no annotation, .* is read as missing"
    ) as error:
        read_annotations(row)
    assert repr(marker) in str(error.value)
    assert said(row, missing=[marker]) == ["cup"]
    assert said(row, missing=()) == ["cup", marker]
    assert said(row, classes=[marker, "cup"]) == [1, 0]


def test_rows_left_out_by_a_marker_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Votes that are dropped without a message are silently lost."""
    path = csv_of(tmp_path, "item,annotator,annotation\na,p,cup\nb,p,?\nc,p,?\n")
    with caplog.at_level(logging.WARNING):
        assert said(path, missing="?") == ["cup"]
    assert "rows whose annotation stands for none 2" in caplog.text
    votes = {"item": ["a", "b"], "annotator": ["p", "p"], "annotation": ["cup", "?"]}
    assert crowd(votes, missing="?")[2] == [[0], [], [], []]


@pytest.mark.parametrize("name", ["?", "-", "none", "na", "missing"])
def test_what_may_be_a_class_stays_and_is_told(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A project may use the class "none". Other users see in the log that it was read as one."""
    path = csv_of(tmp_path, f"item,annotator,annotation\na,p,cup\nb,p,{name}\n")
    with caplog.at_level(logging.WARNING):
        assert said(path) == ["cup", name]
    assert f"{name!r} is read as a name, not as missing" in caplog.text.replace('"', "")


def test_minus_one_is_missing_among_names_and_told_among_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ClassLabel, snorkel and dense matrices write -1 where nobody voted."""
    path = csv_of(tmp_path, "item,p,q\na,cup,-1\nb,-1,cup\nc,mug,mug\n")
    assert sorted(set(said(path))) == ["cup", "mug"]
    path = csv_of(tmp_path, "item,p,q\na,0,-1\nb,-1,0\nc,1,1\n")
    with caplog.at_level(logging.WARNING):
        assert sorted(set(said(path))) == ["-1", "0", "1"]
    assert "'-1' is read as a class, not as missing" in caplog.text
    assert sorted(set(said(path, missing=-1))) == ["0", "1"]
    records = [{"item": "a", "annotator": m, "annotation": c} for m, c in enumerate([1, -1, -2])]
    caplog.clear()
    assert said(records) == [1, -1, -2]  # a rating scale
    assert "missing" not in caplog.text


@pytest.mark.parametrize(
    "joined", ["cup#mug", "cup|mug", "cup; mug", "cup, mug", '["cup", "mug"]', "['cup', 'mug']",
               '{"choices": ["cup", "mug"]}', "cup#salt", "cup\nmug"],
)  # fmt: skip
def test_several_labels_in_a_cell_are_refused(joined: str, tmp_path: Path) -> None:
    """In a JSON list such answers are refused; as text they would become one more class."""
    quoted = joined.replace('"', '""')
    text = f'item,annotator,annotation\na,p,cup\nb,p,mug\nc,p,"{quoted}"\n'
    with pytest.raises(ValueError, match="line 4: `annotation` must be one label, got"):
        read_annotations(csv_of(tmp_path, text))
    votes = {"item": list("abc"), "annotator": ["p"] * 3, "annotation": ["cup", "mug", joined]}
    with pytest.raises(ValueError, match="row 2: must be one label"):
        add_annotations(Dataset.from_dict({"name": list("abc")}), votes, "name")
    assert said(votes, classes=["cup", "mug", joined]) == [0, 1, 2]


@pytest.mark.parametrize(
    "labels", [["C", "C#"], ["C", "C++", "C/C++"], ["1", "5", "1,5"], ["a-b", "a"]]
)
def test_signs_inside_a_name_are_part_of_it(labels: list[str]) -> None:
    """C# must not be split like several labels in a cell."""
    records = [{"item": "a", "annotator": i, "annotation": c} for i, c in enumerate(labels)]
    assert said(records) == labels


def test_a_list_of_one_label_is_that_label() -> None:
    """Doccano and checkbox forms write lists, and data frames of them contain the text of lists."""
    records = [{"item": i, "annotator": "p"} for i in "abcd"]
    for record, label in zip(records, (["cup"], "['cup']", '["mug"]', "mug"), strict=True):
        record["annotation"] = label
    assert said(records) == ["cup", "cup", "mug", "mug"]
    with pytest.raises(ValueError, match="row 1: has no annotation"):
        read_annotations([records[0], records[1] | {"annotation": []}])
    with pytest.raises(ValueError, match=r"must hold text or numbers, got \[.p.\]"):
        read_annotations([records[0] | {"annotator": ["p"]}])


NFD = unicodedata.normalize("NFD", "café")


@pytest.mark.parametrize(
    ("one", "other", "how"),
    [
        ("Cup", "cup", "letter case"),
        ("hot  dog", "hot dog", "white space"),
        ("hot\u00a0dog", "hot dog", "white space"),
        ("hot\u200bdog", "hotdog", "white space"),
        (NFD, "café", "how Unicode composes them"),
        ("007", "7", "zeros"),
    ],
)
@pytest.mark.parametrize("role", ROLES)
def test_names_that_look_alike_are_told(
    role: str, one: str, other: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two spellings of one annotator have half the votes each, two of one class half the prior."""
    records = [dict(zip(ROLES, "apx", strict=True)) | {role: name} for name in (one, other)]
    with caplog.at_level(logging.WARNING):
        votes = read_annotations(records)
    assert votes[role][:] == [one, other]
    assert f"differ by {how} only" in caplog.text


@pytest.mark.parametrize("space", [" ", "\t", "\u00a0", "\u200b", "\ufeff", "\u3000"])
def test_white_space_around_a_name_is_none_of_it(space: str) -> None:
    """The same file used to give two annotators via pandas and one via our reader."""
    votes = {
        "item": list("ab"),
        "annotator": ["ann", f"ann{space}"],
        "annotation": [f"{space}cup", "cup"],
    }
    assert crowd(votes) == ((["ann"], ["cup"]), [[0], [0], [], []], [[0], [0], [], []])
    assert crowd(pd.DataFrame(votes)) == crowd(votes) == crowd(read_annotations(votes))


def test_whole_numbers_with_a_gap_are_whole_numbers(tmp_path: Path) -> None:
    """Pandas writes 1.0 in a column with a gap and 1 in the next, which gave the classes 0, 0.0, 1 and 1.0."""
    frame = pd.DataFrame({"item": list("abc"), "p": [1, None, 0], "q": [1, 0, 0]})
    frame.to_csv(tmp_path / "v.csv", index=False)
    assert "1.0" in (tmp_path / "v.csv").read_text()
    assert sorted(set(said(tmp_path / "v.csv"))) == ["0", "1"]
    version = [{"item": "a", "annotator": c, "annotation": c} for c in ("1.0", "beta")]
    assert said(version) == ["1.0", "beta"]


@pytest.mark.parametrize("written", ["True False", "TRUE FALSE", "true false"])
def test_truth_values_are_those_of_pandas(written: str, tmp_path: Path) -> None:
    """The same file gave the classes True and False by our reader, true and false by pandas."""
    yes, no = written.split()
    file = csv_of(tmp_path, f"item,annotator,annotation\na,p,{yes}\nb,p,{no}\na,q,{yes}\n")
    assert said(file) == said(pd.read_csv(file)) == ["true", "false", "true"]
    mixed = csv_of(tmp_path, f"item,annotator,annotation\na,p,{yes}\nb,p,cup\n", "mixed.csv")
    assert said(mixed) == [yes, "cup"]
    assert said(file, classes=[yes, no]) == [0, 1, 0]  # numbers of a ClassLabel


def test_class_names_inside_lists_are_names() -> None:
    """The numbers of a ClassLabel stand for names anywhere, but -1 does not."""
    features = Features(
        {
            "id": Value("string"),
            "mood.responses": List(ClassLabel(names=["bad", "NA"])),
            "mood.responses.users": List(Value("string")),
        }
    )
    columns = {"id": ["r"], "mood.responses": [[1, 0]], "mood.responses.users": [["u", "v"]]}
    assert said(Dataset.from_dict(columns, features=features)) == ["NA", "bad"]


def test_number_beyond_its_class_label_is_refused() -> None:
    """Arrow's own error names neither column nor row."""
    features = Features(
        {
            "item": Value("string"),
            "annotator": Value("string"),
            "annotation": ClassLabel(names=["x", "y"]),
        }
    )
    table = pa.table({"item": ["a", "b"], "annotator": ["p", "p"], "annotation": [0, 7]})
    dataset = Dataset(table.cast(pa.schema(features.arrow_schema)))
    object.__setattr__(dataset.info, "features", features)
    dataset = dataset.cast(features) if dataset.features != features else dataset
    with pytest.raises(ValueError, match="row 1: `annotation` must lie in 0..1 or be -1, got 7"):
        read_annotations(dataset)


CUT = ("high", "higher", "low")


@pytest.mark.parametrize("kind", ["long", "wide", "files"])
def test_cut_last_cell_is_refused_or_told(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A truncated download turns `high` into a class `hig`."""
    if kind == "wide":
        text = "item,p,q\na,high,high\nb,low,low\nc,low,high\n"
    elif kind == "long":
        text = "item,annotator,annotation\na,p,high\nb,p,low\nc,q,high\n"
    else:
        text = "id,label\na,high\nb,low\nc,high\n"
    folder = tmp_path / "votes"
    folder.mkdir()
    path = csv_of(folder, text, "ann.csv")
    source = folder if kind == "files" else path
    whole = said(source)
    for end in range(2, 5):
        path.write_text(text[:-end])
        with pytest.raises(
            ValueError, match=f"the last cell must be whole, got '{'high'[: 5 - end]}'"
        ):
            read_annotations(source)
    path.write_text(text[:-1])
    with caplog.at_level(logging.WARNING):
        assert said(source) == whole
    assert "its last line has no end" in caplog.text
    path.write_text(
        text.replace("c,q,high\n", "c,q,odd")
        .replace("c,low,high\n", "c,low,odd")
        .replace("c,high\n", "c,odd")
    )
    said(source)
    assert "'odd' occurs only in the last cell, which may be cut" in caplog.text


def test_empty_first_row_names_no_columns(tmp_path: Path) -> None:
    """The next row, with the annotators' names, would be read as votes."""
    rest = "item,ann,bob\na,x,y\nb,y,x\n"
    with pytest.raises(ValueError, match="line 1: must name the columns, got a row of empty cells"):
        read_annotations(csv_of(tmp_path, ",,\n" + rest))
    for head in ("Survey,,\n", "item,,\n"):
        with pytest.raises(
            ValueError, match="line 2: a label must stand under an annotator's name"
        ):
            read_annotations(csv_of(tmp_path, head + rest), "wide")
    frame = pd.read_csv(csv_of(tmp_path, ",,\n" + rest))
    with pytest.raises(ValueError, match="under an annotator's name, got 'Unnamed: 1'"):
        read_annotations(frame, "wide")


def test_items_that_would_become_one_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """With numbers in the data set and both 007 and 7 in the votes, both would be item 7."""
    items = Dataset.from_dict({"name": [7, 8]})
    votes = {"item": ["007", "7"], "annotator": ["p", "q"], "annotation": ["x", "y"]}
    with pytest.raises(ValueError, match="'007' and '7', which would be one item"):
        add_annotations(items, votes, "name")
    votes["item"] = ["007", "8.0"]
    with caplog.at_level(logging.WARNING):
        assert add_annotations(items, votes, "name")["annotations"][:] == [[0], [1]]
    assert "'007' is taken for the number in 'name'" in caplog.text


def test_classes_name_the_numbers_of_a_matrix(caplog: pytest.LogCaptureFixture) -> None:
    """The class names of a 0/1 matrix are assigned by position, which must be logged."""
    items = Dataset.from_dict({"name": [0, 1]})
    for votes in (
        read_annotations(np.array([[0, 1], [1, -1]])),
        {"item": [0, 0, 1], "annotator": [0, 1, 0], "annotation": ["0", "1", "1"]},
    ):
        with caplog.at_level(logging.WARNING):
            joined = add_annotations(items, votes, "name", classes=["negative", "positive"])
        assert joined["annotations"][:] == [[0, 1], [1]]
        assert crowd_names(joined)[1] == ["negative", "positive"]
        assert "0 is 'negative', 1 is 'positive'" in caplog.text
    votes = {"item": [0, 1], "annotator": [0, 1], "annotation": [1, 2]}
    with pytest.raises(ValueError, match="votes from 1 to 2: write the names into the votes"):
        add_annotations(items, votes, "name", classes=["negative", "positive"])
    assert said(votes, classes=["2", "1"]) == [1, 0]
    assert class_numbers([3], ["a"] * 0 + ["3"]) == ([0], "")


def test_ids_of_many_types_are_names(caplog: pytest.LogCaptureFixture) -> None:
    """Arrow's errors on mixed columns and UUIDs name neither column nor row."""
    ids = [uuid.UUID(int=7), 7, "ann"]
    base = {"item": list("abc"), "annotator": ids, "annotation": ["x", "y", "x"]}
    names = sorted(map(str, ids))
    for votes in (
        base,
        pd.DataFrame(base),
        [dict(zip(base, row, strict=True)) for row in zip(*base.values(), strict=True)],
    ):
        assert crowd(votes)[0] == (names, ["x", "y"])
        assert sorted(read_annotations(votes)["annotator"]) == names
    for strange in (float("inf"), b"x", 1j, "\ud800", object(), {"a": 1}, pd.Interval(0, 1)):
        votes = base | {"annotator": ["p", "q", strange]}
        for door in (
            read_annotations,
            lambda votes: add_annotations(Dataset.from_dict({"n": ["a"]}), votes, "n"),
        ):
            with pytest.raises((ValueError, TypeError), match="annotator.* must (hold|be)"):
                door(votes)


def test_look_alike_tells_one_pair_of_many() -> None:
    """A hundred pairs would make the log line unreadable."""
    assert look_alike("label", ["a", "A", "b", "B", "c"]) == [
        "label 'A' and 'a' differ by letter case only, and 1 more such names"
    ]
