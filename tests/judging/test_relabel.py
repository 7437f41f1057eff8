"""Tests of `hf_maxmig.judging.relabel`: from posteriors to labels, suspects and files."""

import csv

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import Audio, ClassLabel, Dataset, Features, Image, Value, load_dataset
from PIL import Image as Picture

from hf_maxmig import crowd_features
from hf_maxmig.data.collator import CrowdCollator
from hf_maxmig.judging.relabel import (
    Suspects,
    most_suspect_first,
    relabelled,
    save_relabelled,
    with_names,
    write_csv,
    write_parquet,
)

CLASSES = ["cat", "dog", "emu"]
# N = 5: the forecast contradicts the votes, agrees, a tie, no votes, a tie without the forecast.
VOTES = [[1, 1, 0], [0], [0, 2], [], [1, 2, 2, 1]]
FORECAST = np.array(
    [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.5, 0.1, 0.4], [0.2, 0.2, 0.6], [0.9, 0.06, 0.04]]
)

LOG_TWO = np.log([[0.3, 0.7], [0.6, 0.4]])


def items(votes=VOTES, **columns):
    who = [list(range(len(said))) for said in votes]
    return Dataset.from_dict({"annotators": who, "annotations": votes, **columns})


def relabel(dataset, forecast=FORECAST):
    log = np.log(forecast)
    uniform = np.full_like(log, -np.log(3))
    return relabelled(dataset, uniform, np.log(forecast[::-1]), log, CrowdCollator(4, 3), CLASSES)


def test_expected_precision_of_suspects_is_of_suspects_alone():
    """Over all items the forecast may be right on 90 %, but on the items it disputes only on half."""
    result = relabel(items())
    assert result["suspect"][:] == [True, False, False, False, True]
    found = Suspects.of(result)
    assert found.number == 2
    assert found.forecast == pytest.approx((0.7 + 0.9) / 2)
    assert found.crowd == pytest.approx((0.2 + (0.06 + 0.04)) / 2)  # at a tie either may be right
    assert found.take_forecasts
    unsure = np.array([[0.5, 0.3, 0.2], *FORECAST[1:4], [0.5, 0.3, 0.2]])
    assert not Suspects.of(relabel(items(), unsure)).take_forecasts  # wrong as often as right


def test_without_suspects_no_forecast_is_to_be_taken():
    """The mean of no items is NaN, with a warning, and must not count as good enough."""
    for votes in ([[0], [1]], [[], []]):
        result = relabel(items(votes), np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]]))
        found = Suspects.of(result)
        assert found.number == 0
        assert np.isnan([found.forecast, found.crowd]).all()
        assert not found.take_forecasts


def test_relabelled_names_the_likeliest_class_and_how_sure_it_is():
    """A class off by one would relabel the whole data set wrongly."""
    result = relabel(items(name=list("abcde")))
    assert result["name"][:] == list("abcde")
    assert result["forecast"][:] == ["cat", "cat", "cat", "emu", "cat"]
    assert result["confidence"][:] == pytest.approx([0.7, 0.6, 0.5, 0.6, 0.9])
    assert np.array(result["forecast_posterior"][:]) == pytest.approx(FORECAST)
    assert np.array(result["aggregator_posterior"][:]) == pytest.approx(FORECAST[::-1])
    assert np.array(result["classifier_posterior"][:]) == pytest.approx(np.full((5, 3), 1 / 3))


def test_relabelled_suspects_where_forecast_and_plurality_differ():
    """A tie that includes the forecast is no contradiction, and an item without votes has none to contradict."""
    result = relabel(items())
    assert result["plurality"][:] == ["dog", "cat", None, None, None]
    assert result["suspect"][:] == [True, False, False, False, True]
    expected = [0.8, 0.4, 0.1, None, 0.9]
    assert result["suspicion"][:] == [x if x is None else pytest.approx(x) for x in expected]


def test_label_quality_is_the_forecasts_probability_of_the_crowds_label():
    """Sorted by it, the labels to correct come first.

    The probability of the forecast's own class would hide them.
    """
    result = relabel(items())
    expected = [0.2, 0.6, 0.5, None, 0.06]  # at a tie, the likelier of the tied classes
    assert result["label_quality"][:] == [x if x is None else pytest.approx(x) for x in expected]
    for quality, confidence, suspect in zip(
        result["label_quality"], result["confidence"], result["suspect"], strict=True
    ):
        assert quality is None or (quality < confidence) == suspect


def test_difficulty_is_the_share_of_the_votes_expected_to_be_wrong():
    """Counted over classes and not over votes, an item that all voters got right would seem hard."""
    expected = []
    for votes, row in zip(VOTES, FORECAST, strict=True):
        wrong = [1 - row[said] for said in votes]
        expected.append(pytest.approx(sum(wrong) / len(wrong)) if votes else None)
    assert relabel(items())["difficulty"][:] == expected


@pytest.mark.parametrize("votes", ["without", "with", "some"])
def test_relabelled_works_with_votes_without_and_with_some(votes):
    """New data has no votes, and must come out with the same columns of the same types."""
    dataset = {
        "with": items([[0]] * 5),
        "some": items(),
        "without": Dataset.from_dict({"name": list("abcde")}),
    }[votes]
    result = relabel(dataset)
    for name in ("suspicion", "label_quality", "difficulty"):
        assert result.features[name].dtype == "float32"
    assert result.features["plurality"].dtype == "string"
    missing = {"with": 0, "some": 1, "without": 5}[votes]
    for name in ("suspicion", "label_quality", "difficulty"):
        assert result[name][:].count(None) == missing


def test_relabelled_takes_dense_votes():
    """A dense row has -1 where nobody voted, which is not a class."""
    dense = Dataset.from_dict({"annotations": [[1, -1, 1, 0], [-1, -1, -1, -1]]})
    result = relabelled(dense, *[np.log(FORECAST[:2])] * 3, CrowdCollator(4, 3), CLASSES)
    assert result["plurality"][:] == ["dog", None]


def test_relabelled_overwrites_nothing():
    """A user's column with one of our names would be lost."""
    with pytest.raises(ValueError, match="must not have a column 'confidence' yet"):
        relabel(items(confidence=[1.0] * 5))


def test_relabelled_refuses_posteriors_of_other_items():
    """Missing or shifted rows would attach labels to the wrong items."""
    with pytest.raises(ValueError, match=r"\(N, C\) = \(5, 3\), got \(4, 3\)"):
        relabel(items(), FORECAST[:4])


def test_most_suspect_first_puts_contradictions_on_top():
    """Suspects come first, by falling suspicion, then the other items, then those without votes."""
    result = most_suspect_first(relabel(items(name=list("abcde"))))
    assert result["name"][:] == ["e", "a", "b", "c", "d"]


def test_most_suspect_first_keeps_the_order_of_equals():
    """An unstable sort would shuffle a data set without suspects."""
    result = most_suspect_first(relabel(items([[]] * 5, name=list("abcde"))))
    assert result["name"][:] == list("abcde")


def test_write_parquet_holds_the_pictures_and_comes_back(tmp_path):
    """A file that only points at pictures elsewhere is not a complete data set."""
    picture = Picture.new("RGB", (4, 3), "red")
    picture.save(tmp_path / "red.png")
    dataset = Dataset.from_dict({"image": [str(tmp_path / "red.png")] * 5}).cast_column(
        "image", Image()
    )
    result = relabel(dataset.add_column("annotations", VOTES).add_column("annotators", VOTES))
    write_parquet(result, tmp_path / "new" / "new.parquet")
    (tmp_path / "red.png").unlink()
    back = load_dataset(
        "parquet", data_files=str(tmp_path / "new" / "new.parquet"), split="train",
        cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    assert back.features == result.features
    assert back["image"][0].getpixel((0, 0)) == (255, 0, 0)
    assert back["forecast"][:] == result["forecast"][:]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["new.parquet"]


def test_write_parquet_leaves_the_old_file_when_interrupted(tmp_path, monkeypatch):
    """Half a file in place of a whole one would be a loss."""
    path = tmp_path / "new.parquet"
    result = relabel(items())
    write_parquet(result, path)
    before = path.read_bytes()

    def die(table):
        raise KeyboardInterrupt

    monkeypatch.setattr("hf_maxmig.judging.relabel.embed_table_storage", die)
    with pytest.raises(KeyboardInterrupt):
        write_parquet(result.select([0]), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["new.parquet"]


def test_names_stand_where_there_were_numbers():
    """Whoever opens the file cannot know that annotator 3 is dee and class 1 a dog."""
    features = crowd_features(["ann", "bob", "cyd"], ["cat", "dog"])
    features["label"] = ClassLabel(names=["dog", "cat"])  # in another order
    dataset = Dataset.from_dict(
        {
            "annotators": [[2, 0], [], [1]],
            "annotations": [[0, 1], [], [1]],
            "label": [0, None, 1],
            "name": ["=a", "b;c", "\u00e9"],
        },
        features=Features({**features, "name": Value("string")}),
    )
    named = with_names(dataset.select([2, 0, 1]))  # in another order
    assert named["annotators"][:] == [["bob"], ["cyd", "ann"], []]
    assert named["annotations"][:] == [["dog"], ["cat", "dog"], []]
    assert named["label"][:] == ["cat", "dog", None]
    assert named.column_names == dataset.column_names


def test_dense_votes_and_unnamed_ones_are_named_too():
    """A dense column has -1 where an annotator did not vote, and not every data set carries names."""
    dataset = Dataset.from_dict({"annotations": [[0, -1], [1, 1]]})
    assert with_names(dataset, None, ["cat", "dog"])["annotations"][:] == [
        ["cat", None],
        ["dog", "dog"],
    ]
    assert with_names(dataset)["annotations"][:] == dataset["annotations"][:]
    assert with_names(Dataset.from_dict({"x": [1]})).column_names == ["x"]


def test_csv_shows_what_a_spreadsheet_can(tmp_path):
    """Pictures and posteriors do not fit into its cells, and a name may be a formula."""
    features = crowd_features(["=ann", "bob"], ["cat", "dog"])
    rows = {"annotators": [[0, 1], []], "annotations": [[0, 1], []], "name": ["=1+1", 'a "b", c']}
    dataset = Dataset.from_dict(rows, features=Features({**features, "name": Value("string")}))
    result = with_names(
        relabelled(dataset, LOG_TWO, LOG_TWO, LOG_TWO, CrowdCollator(2, 2), ["cat", "dog"])
    )
    write_csv(result, tmp_path / "new.csv")
    with (tmp_path / "new.csv").open(newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert list(first) == ["name", "votes", "forecast", "confidence", "plurality", "label_quality", "suspect", "suspicion", "difficulty"]  # fmt: skip
    assert (first["name"], first["votes"]) == ("'=1+1", "'=ann: cat; bob: dog")
    assert (second["name"], second["votes"], second["suspicion"]) == ('a "b", c', "", "")
    assert float(first["label_quality"]) == pytest.approx(0.7)  # of the two tied classes
    assert first["forecast"] == "dog"


def test_csv_shows_text_rows_and_the_paths_of_sounds(tmp_path):
    """Sounds have no readable form in a cell, and a category must appear by name, not by number."""
    sound = {"bytes": Value("binary"), "path": Value("string")}
    features = Features(
        {
            **crowd_features(["ann", "bob"], ["cat", "dog"]), "text": Value("string"),
            "=1+1": Value("float32"), "colour": ClassLabel(names=["=red", "blue"]), "clip": sound,
        }
    )  # fmt: skip
    rows = {
        "annotators": [[0, 1], []], "annotations": [[0, 1], []], "text": ["Two\nlines, \"said\" he", None],
        "=1+1": [14.38, None], "colour": [0, 1],
        "clip": [{"bytes": None, "path": "-a/b.wav"}, {"bytes": b"x", "path": None}],
    }  # fmt: skip
    dataset = Dataset.from_dict(rows, features=features).cast_column("clip", Audio())
    hidden = dataset.with_format("numpy", columns=["annotators", "annotations"])
    result = relabelled(hidden, LOG_TWO, LOG_TWO, LOG_TWO, CrowdCollator(2, 2), ["cat", "dog"])
    save_relabelled(result, None, ["cat", "dog"], tmp_path / "new.parquet")
    with (tmp_path / "new.csv").open(newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert list(first)[:5] == ["text", "'=1+1", "colour", "clip", "votes"]
    assert [*first.values()][:5] == [rows["text"][0], "14.38", "'=red", "'-a/b.wav", "ann: cat; bob: dog"]  # fmt: skip
    assert [*second.values()][:5] == ["", "", "blue", "", ""]


def test_sounds_in_files_stay_in_their_files(tmp_path):
    """Otherwise half a gigabyte of sounds is written a second time, and one missing file fails the whole export."""
    content = {"clip": [{"bytes": None, "path": "gone.wav"}, {"bytes": b"x", "path": None}]}
    features = Features({"clip": {"bytes": Value("binary"), "path": Value("string")}})
    dataset = Dataset.from_dict(content, features=features).cast_column("clip", Audio())
    write_parquet(dataset.add_column("name", ["a", "b"]), tmp_path / "new.parquet")
    back = Dataset.from_parquet(str(tmp_path / "new.parquet"), cache_dir=str(tmp_path / "cache"))
    assert back.features["clip"] == Audio()
    assert back.column_names == ["clip", "name"]
    stored = back.cast_column("clip", Audio(decode=False))["clip"][:]
    assert stored == content["clip"]


def test_files_leave_out_what_a_processor_made(tmp_path):
    """Ten minutes of sound as features take forty times the space of the recording, whose path is there."""
    made = {"input_values": [[0.5]] * 5, "input_ids": [[1, 2]] * 5, "attention_mask": [[1, 1]] * 5}
    sounds = items(**made, clip=[{"bytes": b"x", "path": None}] * 5).cast_column("clip", Audio())
    texts = items(**made, text=["Good."] * 5)
    for dataset, kept in (
        (sounds, {"input_ids", "clip"}),
        (texts, {"input_values", "text"}),
        (items(**made), {*made}),  # there is nothing else to identify the items by
    ):
        save_relabelled(relabel(dataset), None, CLASSES, tmp_path / "new.parquet")
        names = {*pq.read_schema(tmp_path / "new.parquet").names}
        assert names & {*made, "clip", "text"} == kept
