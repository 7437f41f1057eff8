"""`maxmig describe`: statistics of a file of votes, or of a saved data set."""

import json

import pytest
from datasets import Dataset

from hf_maxmig import crowd_features, describe
from hf_maxmig.cli import main
from tests.written_data import write_pictures, write_votes


@pytest.fixture
def votes(tmp_path):
    rows = write_pictures(tmp_path / "photos", number=7)
    return write_votes(tmp_path / "votes.csv", rows)


def test_describe_counts_the_votes_of_a_file(votes, tmp_path, capsys):
    """The file has 28 votes by four people on seven pictures."""
    file = tmp_path / "made" / "counts.json"
    main(["describe", str(votes), "--votes_annotator", "who", "--output_file", str(file)])
    printed = capsys.readouterr().out
    assert printed.startswith("7 items, 4 annotators, 3 classes\n")
    counts = json.loads(file.read_text())
    assert (counts["votes"], counts["items_without_votes"]) == (28, 0)
    assert counts["few_votes"]["annotators"] == 4
    main(["describe", str(votes), "--votes_annotator", "who", "--min_votes", "7"])
    assert "below 7 votes" in capsys.readouterr().out


def test_describe_reads_a_saved_data_set(tmp_path, capsys):
    """Columns of votes say all that a file of votes does, and also which items have none."""
    columns = {"annotators": [[0, 1], [1], []], "annotations": [[0, 1], [2], []]}
    features = crowd_features(["ann", "bob"], ["red", "green", "blue"])
    data = Dataset.from_dict(columns, features=features)
    data.save_to_disk(tmp_path / "data")
    capsys.readouterr()
    main(["describe", str(tmp_path / "data")])
    assert capsys.readouterr().out == f"{describe(data)}\n"


def test_describe_says_in_one_line_what_is_wrong(votes, tmp_path, capsys):
    """Covers a missing file, a missing column and a value that is not a number."""
    for words, message in (
        (["/none.csv"], "must be a file or folder of votes, got '/none.csv'"),
        ([str(votes), "--votes_annotator", "name"], "'name'"),
        ([str(votes), "--votes_annotator", "who", "--min_votes", "0"], "`min_votes` must be at least 1"),
        ([str(votes), "--votes_annotator", "who", "--output_file", str(tmp_path)], "must be a file"),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as left:
            main(["describe", *words])
        assert left.value.code == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("maxmig describe: error: ")
        assert message in last
