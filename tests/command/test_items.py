"""Reading items: folders of pictures and sounds, tables in files, gold labels by their column."""

import logging
import re

import pytest
from datasets import Audio, Dataset, Image, Value

from hf_maxmig.command.items import ItemColumns, VotesForm, read_folder, read_table, with_label
from tests.written_data import write_pictures
from tests.written_items import write_json_lines, write_tones


def written(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return str(path)


def test_cells_of_a_text_file_become_numbers_where_all_of_them_are(tmp_path):
    """Ages read as texts would be a hundred categories; 007 read as a number would be item 7."""
    file = written(
        tmp_path / "a.csv",
        'code,age,share,job,note\n007,41,0.5,cook,"a, b"\n012,NA,1e-3,,x\n013, 7 ,,NA,3\n',
    )
    table = read_table(file)
    kinds = {name: feature.dtype for name, feature in table.features.items()}
    assert kinds == {
        "code": "string", "age": "int64", "share": "float64", "job": "string", "note": "string",
    }  # fmt: skip
    assert table["age"][:] == [41, None, 7]
    assert table["share"][:] == [0.5, 0.001, None]
    assert table["job"][:] == ["cook", None, "NA"]  # "NA" may be a category, as in `note`
    assert table["note"][:] == ["a, b", "x", "3"]


@pytest.mark.parametrize("ending", [".tsv", ".json", ".jsonl", ".parquet"])
def test_each_kind_of_file_gives_the_same_items(ending, tmp_path):
    """The ending says how a file is read; the content is the same."""
    file = tmp_path / f"a{ending}"
    if ending == ".tsv":
        written(file, "id\ttext\tage\nx1\tSo, so.\t3\nx2\tGood.\t4\n")
    elif ending == ".json":
        written(
            file,
            '[{"id": "x1", "text": "So, so.", "age": 3}, {"id": "x2", "text": "Good.", "age": 4}]',
        )
    elif ending == ".jsonl":
        write_json_lines(
            file,
            [{"id": "x1", "text": "So, so.", "age": 3}, {"id": "x2", "text": "Good.", "age": 4}],
        )
    else:
        Dataset.from_dict({"id": ["x1", "x2"], "text": ["So, so.", "Good."], "age": [3, 4]}).to_parquet(file)  # fmt: skip
    assert read_table(str(file))[:] == {
        "id": ["x1", "x2"], "text": ["So, so.", "Good."], "age": [3, 4],
    }  # fmt: skip


def test_columns_that_mix_kinds_are_texts_or_left_out(tmp_path, caplog):
    """Records may hold different types under one name, for which Arrow would refuse the whole file."""
    records = [{"id": 1, "mix": "a", "odd": [1]}, {"id": 2, "mix": 3, "odd": "x"}]
    with caplog.at_level(logging.WARNING):
        table = read_table(str(write_json_lines(tmp_path / "a.jsonl", records)))
    assert table[:] == {"id": [1, 2], "mix": ["a", "3"]}
    assert "columns of mixed types are left out: odd." in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "id,text\nx1,Good.\nx2,So, so.\n", "a.csv, line 3: must have 2 fields, got 3"),
        ("a.csv", "id,id\nx1,x2\n", "column names must differ, got 'id'"),
        ("a.csv", "id,text\n", "holds no rows, only the columns id, text"),
        ("a.csv", "", "is empty"),
        ("a.csv", 'id,text\nx1,"Good.\n', "line 2: a quote in the row that begins here is broken"),
        ("a.json", '{"x1": {"ann": "cat"}}', "must be a table with an item per row, got a mapping"),
        ("a.jsonl", '{"id": 1}\n{"id": \n', "a.jsonl, line 3: broken JSON"),
        ("a.xlsx", "PK", "a file of items must end in one of .arrow, .csv, "),
        ("a.parquet", "PAR1", "a.parquet must be a data set, got"),
        ("a.jsonl", '{"odd": 1}\n{"odd": [2]}\n', "must have columns of one type, got only mixed ones"),
    ],
)  # fmt: skip
def test_broken_files_are_said_with_their_line(name, text, message, tmp_path):
    """A parser's traceback does not say which line to fix."""
    file = written(tmp_path / name, text)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_table(file)


def test_text_of_another_encoding_is_refused_with_its_line(tmp_path):
    """Under another encoding, names with accents would match no vote."""
    file = written(tmp_path / "a.csv", "id,text\nx1,Café.\n", "latin-1")
    with pytest.raises(ValueError, match=r"a.csv, line 2: must be text in UTF-8"):
        read_table(file)


def test_folder_of_sounds_is_read_without_a_decoder(tmp_path):
    """`audiofolder` of `datasets` needs torchcodec even to list files."""
    sounds, modality = read_folder(str(write_tones(tmp_path / "tones", 7, by_class=True)))
    assert modality == "audio"
    assert sounds.features["audio"] == Audio(decode=False)
    assert sounds.features["label"].names == ["high", "low", "mid"]
    names = [row["audio"]["path"].rsplit("/", 2)[1:] for row in sounds]
    assert names == sorted(names)
    classes = sounds.features["label"].names
    assert [folder for folder, _ in names] == [classes[c] for c in sounds["label"]]
    flat, _ = read_folder(str(write_tones(tmp_path / "flat", 5)))
    assert flat.column_names == ["audio"]
    assert len(flat) == 5


def test_folder_of_both_kinds_needs_a_word(tmp_path):
    """Otherwise half of the items would silently be missing."""
    write_tones(tmp_path / "both", 3)
    write_pictures(tmp_path / "both", number=4)
    folder = str(tmp_path / "both")
    with pytest.raises(ValueError, match="must hold pictures or sounds, got 4 and 3 of them"):
        read_folder(folder)
    assert len(read_folder(folder, "audio")[0]) == 3
    pictures, modality = read_folder(folder, "image")
    assert (len(pictures), modality) == (4, "image")
    assert isinstance(pictures.features["image"], Image)


@pytest.mark.parametrize("modality", ["text", "table"])
def test_folder_holds_no_texts_and_no_rows(modality, tmp_path):
    """A folder of text files is not a table, and would look like one without items."""
    with pytest.raises(ValueError, match="must be given by `--train_file` or `--dataset_name`"):
        read_folder(str(tmp_path), modality)


def test_gold_labels_are_found_under_their_name():
    """Otherwise a column called `labels` or `label` would be taken for the gold labels."""
    table = Dataset.from_dict({"truth": ["x"], "label": ["y"], "text": ["z"]})
    assert with_label(table, "truth")[0] == {"label": "x", "text": "z"}
    assert with_label(table, "label")[0]["label"] == "y"
    plural = Dataset.from_dict({"labels": ["x"]})
    assert with_label(plural, "label").column_names == ["label"]
    assert with_label(plural, "truth") is plural


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"text_column": "a", "audio_column": "b"}, "of one kind, got `--text_column` and `--audio_column`"),
        ({"text_pair_column": "a"}, "`--text_pair_column` must come with `--text_column`"),
        ({"max_seconds": 0.0}, "`--max_seconds` must be above 0, got 0.0"),
        ({"max_unknown_share": 2.0}, "`--max_unknown_share` must lie in 0..1"),
    ],
)  # fmt: skip
def test_flags_that_contradict_each_other_are_refused(flags, message):
    """Otherwise one of the two would silently be ignored."""
    with pytest.raises(ValueError, match=re.escape(message)):
        ItemColumns(**flags)


def test_types_of_arrow_stay(tmp_path):
    """A Parquet file of `datasets` knows pictures and classes, which text cells would lose."""
    items = Dataset.from_dict({"n": [1, 2], "s": ["07", "x"]})
    items.to_parquet(tmp_path / "a.parquet")
    assert read_table(str(tmp_path / "a.parquet")).features["s"] == Value("string")


def test_columns_of_votes_are_asked_for_by_their_flags(tmp_path):
    """`item=` is Python, but a user of the command needs the name of the flag."""
    votes = written(tmp_path / "votes.csv", "thing,person,said\nx1,ann,yes\nx2,bob,no\n")
    with pytest.raises(ValueError, match="name them by `--votes_item`, `--votes_annotator`"):
        VotesForm().read(votes)
    assert VotesForm(votes_item="thing", votes_annotator="person", votes_annotation="said").read(votes).num_rows == 2  # fmt: skip


def test_column_of_weights_is_named_or_left_out_by_its_flag(tmp_path):
    """An unusually named column would not be read, or votes that should count in full would count less."""
    votes = written(
        tmp_path / "votes.csv", "thing,person,said,sure,confidence\nx1,ann,yes,0.5,0.2\nx2,bob,no,1,0.4\n"
    )  # fmt: skip
    columns = {"votes_item": "thing", "votes_annotator": "person", "votes_annotation": "said"}
    for name, expected in (("sure", [0.5, 1.0]), (None, [0.2, 0.4]), ("none", None)):
        read = VotesForm(**columns, votes_weight=name).read(votes)
        assert ("weight" in read.column_names) == (expected is not None)
        if expected is not None:
            assert read["weight"][:] == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="`--votes_weight`"):
        VotesForm(**columns, votes_weight="said").read(votes)
