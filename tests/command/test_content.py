"""What the items are: found from the columns if that is certain, else asked for."""

import re

import pytest
from datasets import Audio, Dataset, Features, Image, Value
from PIL import Image as Picture

from hf_maxmig.command.content import Content, content_of, same_content
from hf_maxmig.command.items import ItemColumns
from tests.written_data import write_pictures
from tests.written_items import write_tones

SENTENCES = ["It was a good film.", "It was no good film at all.", "I do not know this one."]


def found(columns, modality=None, item=None, folder=None, **flags):
    dataset = Dataset.from_dict(columns) if isinstance(columns, dict) else columns
    return content_of(dataset, ItemColumns(**flags), modality, folder, item)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"id": ["a", "b", "c"], "text": ["x", "y", "z"]}, ("text", ("text",))),
        ({"Sentence": ["x", "y", "z"], "remark": SENTENCES}, ("text", ("Sentence",))),
        ({"id": ["a", "b", "c"], "said": SENTENCES, "label": ["good", "bad", "bad"]}, ("text", ("said",))),
        ({"said": SENTENCES, "year": [1990, 1991, 1992]}, ("text", ("said",))),
        ({"size": [1.5, None, 2.0], "age": [3, 4, 5], "label": [0, 1, 1]}, ("table", ("size", "age"))),
    ],
)  # fmt: skip
def test_kind_of_items_is_found_where_it_is_certain(columns, expected):
    """A user with two columns should not have to name one of them."""
    _, content = found(columns)
    assert (content.modality, content.columns) == expected


def test_item_column_describes_no_row():
    """With the items' numbers as a feature, a network would memorise the items."""
    columns = {"number": [1, 2, 3], "size": [1.5, 2.5, 2.0]}
    assert found(columns, item="number")[1].columns == ("size",)
    assert Content("table", ("number", "size")).without("number").columns == ("size",)
    assert Content("text", ("text",)).without("text").columns == ("text",)  # votes may quote it


@pytest.mark.parametrize(
    ("columns", "modality", "message"),
    [
        ({"id": ["a"], "size": [1.5]}, None, "got the columns id (string), size (float64): name the column by `--text_column`"),
        ({"id": ["a", "b"]}, None, "it must be clear what the items are, got the columns id (string)"),
        ({"premise": SENTENCES, "claim": SENTENCES}, None, "`--text_column`, `--image_column` or `--audio_column`"),
        ({"premise": SENTENCES, "claim": SENTENCES}, "text", "got several of them, premise, claim: name it by `--text_column` (and the second one"),
        ({"size": [1.5]}, "text", "must have one column of texts, got size (float64): name it by `--text_column`"),
        ({"size": [1.5]}, "audio", "must have one column of sounds, got size (float64): name it by `--audio_column`"),
        ({"label": ["x"]}, "table", "a table must have columns that describe its rows, got label (string)"),
    ],
)  # fmt: skip
def test_what_is_not_certain_is_asked_for(columns, modality, message):
    """A wrong guess would train for an hour on the names of the items."""
    with pytest.raises(ValueError, match=re.escape(message)):
        found(columns, modality)


def test_item_column_alone_leaves_one_text():
    """Of two columns of short texts, the votes show which one holds the names."""
    columns = {"id": ["a", "b"], "said": ["yes", "no"]}
    assert found(columns, "text", item="id")[1].columns == ("said",)


@pytest.mark.parametrize(
    ("flags", "modality", "message"),
    [
        ({"text_column": "txt"}, None, "must have a column 'txt', got id, text"),
        ({"text_column": "text", "text_pair_column": "more"}, None, "must have a column 'more'"),
        ({"feature_columns": ["text", "age"]}, None, "must have a column 'age'"),
        ({"text_column": "text"}, "audio", "`--text_column` must not be given for sounds"),
        ({"text_column": "id"}, None, "column 'id' must hold text, got int64"),
        ({"audio_column": "id"}, None, "column 'id' must hold sounds or their paths, got int64"),
    ],
)  # fmt: skip
def test_flags_must_fit_the_columns(flags, modality, message):
    """A misspelt name must be reported before training."""
    with pytest.raises(ValueError, match=re.escape(message)):
        found({"id": [1, 2, 3], "text": SENTENCES}, modality, **flags)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["Good.", None, "Bad."], "must hold a text in every row, got none at item 1: leave"),
        (["Good.", "", "  \u200b"], "got '' at item 1 and at 1 more"),
    ],
)
def test_empty_texts_are_refused(texts, message):
    """With nothing to read, the classifier's answer would be noise."""
    with pytest.raises(ValueError, match=re.escape(message)):
        found({"text": texts})
    with pytest.raises(ValueError, match=re.escape(message)):
        found({"first": SENTENCES, "text": texts}, text_column="first", text_pair_column="text")


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_paths_are_opened_from_the_folder_of_the_table(kind, tmp_path):
    """Users write the paths in a table relative to its folder."""
    ending = ".png" if kind == "image" else ".wav"
    if kind == "image":
        write_pictures(tmp_path / "files", number=3)
        names = [f"p{i:02}.png" for i in range(3)]
    else:
        write_tones(tmp_path / "files", 3)
        names = [f"r{i:03}.wav" for i in range(3)]
    paths = [f"files/{name}" for name in names]
    dataset, content = found({"clip": paths, "id": [1, 2, 3]}, folder=str(tmp_path))
    assert content == Content(kind, (kind,))
    assert isinstance(dataset.features[kind], Image if kind == "image" else Audio)
    assert dataset["clip"][:] == paths  # the votes may use these names
    bare = dataset.cast_column(kind, type(dataset.features[kind])(decode=False))
    assert [row[kind]["path"] for row in bare] == [str((tmp_path / p).resolve()) for p in paths]
    # The column may already have the usual name.
    same, content = found({kind: paths}, folder=str(tmp_path))
    assert content.columns == (kind,)
    assert same["file_name"][:] == paths
    with pytest.raises(
        FileNotFoundError,
        match=re.escape(
            f"column 'clip' must name files that are there, got 'files/none{ending}' at item 1"
        ),
    ):
        found({"clip": [paths[0], f"files/none{ending}"]}, folder=str(tmp_path))
    with pytest.raises(ValueError, match="must name a file in every row, got none at item 1"):
        found({"clip": [paths[0], None]}, folder=str(tmp_path))


def test_only_column_of_pictures_is_taken_whatever_it_is_called():
    """Many data sets on the Hub call it `img`."""
    features = Features(img=Image(), note=Value("string"))
    rows = {"img": [Picture.new("RGB", (4, 4))], "note": ["A long remark on this picture."]}
    one = Dataset.from_dict(rows, features=features)
    assert found(one)[1] == Content("image", ("img",))
    two = one.add_column("mask", one.with_format("arrow")[:]["img"].combine_chunks(), feature=Image())  # fmt: skip
    with pytest.raises(ValueError, match="got several of them, img, mask: name it by `--image_column`"):  # fmt: skip
        found(two)
    assert found(two, image_column="mask")[1].columns == ("mask",)


def test_other_items_hold_the_same_columns(tmp_path):
    """Test items must be read like the training items, whatever else their file holds."""
    texts = Content("text", ("said",))
    both = Dataset.from_dict({"text": SENTENCES, "said": SENTENCES})
    assert same_content(both, ItemColumns(), texts) is both
    with pytest.raises(ValueError, match="must have a column 'said', got text"):
        same_content(both.remove_columns("said"), ItemColumns(), texts)
    write_tones(tmp_path, 2)
    sounds = Dataset.from_dict({"clip": ["r000.wav", "r001.wav"]})
    asked, content = ItemColumns(), Content("audio", ("recording",))
    renamed = same_content(sounds, asked, content, str(tmp_path))
    assert renamed.features["recording"] == Audio(decode=False)
