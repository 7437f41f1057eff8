"""The pages on texts, sounds and tables: their commands and code work, from files to answers on raw items."""

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

from hf_maxmig.cli import main
from hf_maxmig.command import classification, describe, relabel, report
from hf_maxmig.command.flags import parse
from hf_maxmig.command.report import ReportArguments
from hf_maxmig.command.saved import SavedArguments
from tests.written_items import (
    truth_of,
    voted,
    write_flowers,
    write_rows,
    write_sound_model,
    write_text_model,
    write_texts,
    write_tones,
)

DOCS = Path(__file__).parents[2] / "docs"
NUMBER = 90  # training items; 30 more are for evaluation
# Short runs without the searches before training: each page reaches the same trainer in another way.
BRIEF = [
    "--num_train_epochs", "12", "--learning_rate", "1e-2", "--per_device_train_batch_size", "16", "--init", "vote_share",
    "--search_rate", "False", "--search_strength", "False", "--use_cpu", "--report_to", "none", "--disable_tqdm", "True",
]  # fmt: skip
KINDS = {
    "train": (
        classification.DataArguments,
        classification.ModelArguments,
        classification.ClassificationTrainingArguments,
    ),
    "describe": (describe.DescribeArguments,),
    "report": (ReportArguments,),
    "relabel": (SavedArguments,),
}
WORDS_OF = {"describe": describe.USAGE, "report": report.USAGE, "relabel": relabel.USAGE}


def commands(page):
    """Return the page's commands that begin with `maxmig`, as lists of words."""
    text = (DOCS.parent / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    inline = re.findall(r"`(maxmig [^`]*--[^`]*)`", text.replace("\n", " "))
    return [shlex.split(line) for line in [*lines, *inline] if line.startswith("maxmig ")]


ALL = [
    (page, words)
    for page in ("README.md", *(f"docs/{path.name}" for path in sorted(DOCS.glob("*.md"))))
    for words in commands(page)
    if words[1] in KINDS and "--help" not in words
]


@pytest.mark.parametrize(
    ("page", "words"), ALL, ids=[f"{Path(page).stem}-{words[1]}-{i}" for i, (page, words) in enumerate(ALL)]
)  # fmt: skip
def test_commands_of_pages_have_the_flags_of_the_command(page, words):
    """A flag that was renamed would be copied for years from pages that nobody ran."""
    words = [word for word in words if word not in ("A", "B", "C")]
    parse(*KINDS[words[1]], arguments=words[2:], usage=WORDS_OF.get(words[1]))


def test_pages_have_commands():
    """Without any command, the test above would pass without meaning."""
    assert len(ALL) > 8
    assert {words[1] for _, words in ALL} >= {"train", "describe", "relabel"}


# The names of the three classes on each page, and of its columns of votes.
CALLED = {
    "text": {"high": "positive", "low": "negative", "mid": "mixed"},
    "sound": {"high": "high", "low": "low", "mid": "mid"},
    "tables": {"high": "setosa", "low": "virginica", "mid": "versicolor"},
}
VOTES = {
    "text": ("sentence", "worker", "answer"),
    "sound": ("recording", "worker", "label"),
    "tables": ("item", "worker", "label"),
}


def write_files(page):
    """Write the example files of a page and a local model in place of the Hub's. Return that model, if any."""
    ids, here, called = range(NUMBER), Path(), CALLED[page]
    if page == "text":
        write_texts(here, NUMBER, name="sentences.csv", called=called)
        write_texts(here, 30, first=NUMBER, name="test.csv", called=called)
        names, model = [f"t{i}" for i in ids], write_text_model(here / "model")
    elif page == "sound":
        write_tones(here / "recordings", NUMBER)
        write_tones(here / "test-recordings", 30, first=NUMBER, by_class=True)
        names, model = [f"r{i:03}.wav" for i in ids], write_sound_model(here / "model")
    else:
        write_flowers(here, NUMBER, called=called)
        write_flowers(here, 30, first=NUMBER, name="test-flowers.csv", called=called)
        names, model = [f"f{i}" for i in ids], None
    truths = [truth_of(i, called) for i in ids]
    votes = voted(names, truths, people=("w1", "w2", "w3", "w4"), low=called["low"])
    write_rows(here / "votes.csv", VOTES[page], votes)
    return model


def table_of(file):
    with Path(file).open(newline="", encoding="utf-8") as lines:
        return [*csv.DictReader(lines)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "more"),
    [
        ("text", ["--num_train_epochs", "30"]),
        ("sound", []),
        ("tables", []),
        pytest.param("text", ["--freeze_backbone", "False"], marks=pytest.mark.full),
        pytest.param("sound", ["--freeze_backbone"], marks=pytest.mark.full),
    ],
)
def test_page_leads_from_files_to_answers(page, more, tmp_path, monkeypatch, caplog):
    """A new user's way leads from two files to model, results, labels and report, then to answers on raw items."""
    monkeypatch.chdir(tmp_path)
    model = write_files(page)
    train = next(words for words in commands(f"docs/{page}.md") if words[1] == "train")
    if model is not None:
        train[train.index("--model_name_or_path") + 1] = str(model)
    main([*train[1:], *BRIEF, *more])
    kinds = {"text": "texts (column 'text')", "sound": "sounds (column 'audio')", "tables": "rows of a table"}  # fmt: skip
    assert f"The items are {kinds[page]}" in caplog.text
    results = json.loads(Path("out/all_results.json").read_text())
    assert results["eval_accuracy"] > 0.9
    verdicts = {row["annotator"]: row["verdict"] for row in table_of("out/_report/annotators.csv")}
    assert verdicts["w4"] == "always says one class"
    assert Path("out/_report/report.html").stat().st_size > 10_000
    labels = table_of("out/_report/relabelled.csv")
    assert len(labels) == NUMBER
    # The saved model takes raw items, in a pipeline and with the other verbs.
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.S)
    names: dict = {}
    exec(compile(block, page, "exec"), names)
    assert names["answer"]["forecast"][0]["label"] == CALLED[page]["high"]
    assert names["answer"]["heard"]
    items = {"text": "sentences.csv", "sound": "recordings", "tables": "flowers.csv"}[page]
    main(["relabel", "out", items, "--votes", "votes.csv", "--output_dir", "again", "--use_cpu"])
    name = "file_name" if page == "sound" else "id"
    again = {row[name]: row["forecast"] for row in table_of("again/relabelled.csv")}
    assert again == {row[name]: row["forecast"] for row in labels}
