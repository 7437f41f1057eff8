"""The command line: flags, a file of defaults, and one line per error."""

import pytest

from hf_maxmig.command.classification import (
    ClassificationTrainingArguments,
    DataArguments,
    ModelArguments,
    recipe,
)
from hf_maxmig.command.flags import errors_in_one_line, is_told, one_line, parse
from tests.children import needs_fork, page, run
from tests.written_data import write_pictures, write_votes

KINDS = (DataArguments, ModelArguments, ClassificationTrainingArguments)


@pytest.fixture
def digits(load, tmp_path):
    """Parse as `digits.py` does, from a file's text and flags."""
    page, file = load("digits"), tmp_path / "digits.yaml"

    def parsed(text, *flags):
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return parse(
            page.DigitsArguments, page.DigitsTrainingArguments, arguments=["--config", str(file), *flags]
        )  # fmt: skip

    return parsed


def test_file_gives_what_is_required(tmp_path):
    """Otherwise required flags would have to be given twice."""
    file = tmp_path / "mine.yaml"
    file.write_text("votes: votes.csv\ntrain_dir: photos\nseed: 3\nfeature_columns: [a, b]\n")
    flags = ["--config", str(file), "--model_name_or_path", "maxmig_vgg16", "--seed", "4"]
    data, model, training = parse(*KINDS, arguments=flags)
    assert (data.votes, model.model_name_or_path, training.seed) == ("votes.csv", "maxmig_vgg16", 4)
    assert data.feature_columns == ["a", "b"]
    with pytest.raises(ValueError, match="required: --votes.*in the file of `--config`"):
        parse(*KINDS, arguments=flags[2:])


def test_file_is_read_as_the_command_line_is(digits):
    """YAML's own types turn 1e-4 into a text, 0123 into an octal number and 12:30 into minutes."""
    arguments, training = digits(
        "case: independent\nlearning_rate: 1e-4\nrun_name: 012:30\nuse_cpu: on\nreport_to: [none]\n"
        "lr_scheduler_kwargs: {num_cycles: 2}\ninclude_for_metrics: [inputs]\nwrite_files: null\n"
        "max_steps: -1\nhub_salt:\n"
    )
    assert (arguments.case, arguments.write_files) == ("independent", None)
    assert (training.learning_rate, training.run_name, training.use_cpu) == (1e-4, "012:30", True)
    assert (training.lr_scheduler_kwargs, training.include_for_metrics) == ({"num_cycles": 2}, ["inputs"])  # fmt: skip
    assert training.hub_salt is None


def test_stray_word_is_not_taken_into_a_list_of_the_file(digits):
    """If the file's flags were put in front of the command line, a list at its end would absorb the next word."""
    with pytest.raises(ValueError, match="flags must start with --, got 'stray'"):
        digits("include_for_metrics: [inputs]\n", "stray")


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("", ["--learning_rat", "1"], r"unknown flags: --learning_rat \(did you mean --learning_rate\?\)"),
        ("", ["--learning-rat=1"], r"did you mean --learning_rate\?"),
        ("", ["--xyzzy"], "unknown flags: --xyzzy. `--help` lists all"),
        ("", ["--seed", "1e3"], "argument --seed: invalid int value: '1e3'"),
        ("", ["--learning_rate", "nan"], "`--learning_rate` must be a number, got nan"),
        ("", ["--config", "other.yaml"], "`--config` must name one file, got 2"),
        ("", ["--output_dir", __file__], "`--output_dir` must be a folder, got .*: there is a file"),
        ("", ["--lr_scheduler_kwargs", "{bad"], "the arguments are refused: Expecting property name"),
        ("learning_rat: 1", [], r"digits.yaml must only have flags .*, got learning_rat \(did you mean learning_rate\?\)"),
        ("config: other.yaml", [], "must only have flags"),
        ("seed: x", [], "digits.yaml: argument --seed: invalid int value: 'x'"),
        ("seed: [1]", [], "`seed` must be a single value, got a list"),
        ("seed: {a: 1}", [], "`seed` must be a single value, got a mapping"),
        ("seed:", [], "`seed` must have a value, got none"),
        ("output_dir: x\ncase:", [], "`case` must have a value, got none"),
        ("include_for_metrics: [[a]]", [], "must be a list of plain values, got list in it"),
        ("seed: 1\nseed: 2", [], "seed comes twice"),
        ("[1]: 2", [], "a key must be text"),
        ("- seed", [], "must be a mapping from flags to values, such as `seed: 1`, got list"),
        ("a: b: c", [], "digits.yaml must be YAML, got something else: mapping values are not allowed"),
        (b"\xff\xfe\x00", [], "digits.yaml must be UTF-8"),
        ("[" * 5000, [], "must be YAML with one flag per line, got more than 200 brackets"),
        ("a: &a {b: *a}", [], "must be YAML"),
        ("a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(
            f"{chr(98 + i)}{i}: &{chr(99 + i)} [*{chr(98 + i)}, *{chr(98 + i)}]\n" for i in range(20)
        ), [], "so many values is not taken"),
        ("seed: !!python/object/apply:os.getcwd []", [], "the tag .*getcwd is not taken"),
        ('run_name: "\\ud800"', [], "half a surrogate pair"),
        ('run_name: "a\\0b"', [], "must be text without a NUL"),
        ("run_name: " + "x" * 2**16, [], "must name a file of flags, got .* bytes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_our_words(digits, text, flags, message):
    """A traceback of argparse or YAML does not name the flag, and `--learning_rat` used to be accepted."""
    with pytest.raises(ValueError, match=message) as caught:
        digits(text, *flags)
    assert is_told(caught.value)
    assert "\n" not in one_line(caught.value)


def test_missing_file_is_named(tmp_path):
    """Covers a folder in place of a file, and a misspelt name."""
    for name in (tmp_path, tmp_path / "none.yaml"):
        with pytest.raises(FileNotFoundError, match="`--config` must name a file of YAML, got"):
            parse(arguments=["--config", str(name)])


def test_only_errors_of_ours_lose_their_traceback(capsys):
    """A bug reported in a single line could not be located."""

    def build() -> None:
        raise ValueError("`x` must be small,\n got 7.")

    with pytest.raises(ValueError, match="small"), errors_in_one_line():
        build()  # from a test, which is not a file of ours
    with pytest.raises(SystemExit) as left, errors_in_one_line():
        parse(arguments=["--nothing"])
    assert left.value.code == 2
    assert capsys.readouterr().err.endswith(
        "error: unknown flags: --nothing. `--help` lists all.\n"
    )


@pytest.fixture
def refused(tmp_path):
    """Return the error of `classification.py` for flags that it refuses before training."""
    rows = write_pictures(tmp_path / "photos", number=6)
    votes = write_votes(tmp_path / "votes.csv", rows)
    usual = {"votes": votes, "train_dir": tmp_path / "photos", "model_name_or_path": "maxmig_vgg16", "output_dir": tmp_path / "out", "votes_annotator": "who"}  # fmt: skip

    def by(**changes):
        flags = [f"--{k}={v}" for k, v in {**usual, **changes}.items() if v is not None]
        with pytest.raises((ValueError, FileNotFoundError)) as caught:
            recipe(*parse(*KINDS, arguments=[*flags, "--use_cpu=yes"]))
        assert is_told(caught.value)
        return str(caught.value)

    return by


def test_places_and_names_that_are_not_there_are_refused(refused, tmp_path):
    """`load_dataset` would search for minutes, or mention a data file of its own."""
    (tmp_path / "empty").mkdir()
    for changes, message in (
        ({"train_dir": "/nowhere"}, "`--train_dir` must be a folder of pictures or sounds, got '/nowhere': there is none."),
        ({"train_dir": tmp_path / "votes.csv"}, "there is a file."),
        ({"train_dir": None}, "`--train_dir`, `--train_file` and `--dataset_name`, got none of them."),
        ({"dataset_name": "org/x"}, "got `--train_dir` and `--dataset_name`."),
        ({"test_dir": "/nowhere"}, "`--test_dir` must be a folder of pictures or sounds"),
        ({"test_split": "test"}, "`--test_split` must come with `--dataset_name`"),
        ({"votes": "/no.csv"}, "`--votes` must be a file or folder of votes, got '/no.csv'"),
        ({"train_dir": tmp_path / "empty"}, "empty must be a data set of pictures or sounds"),
        ({"train_dir": None, "dataset_name": "org/none"}, "org/none, split 'train' must be a data set"),
        ({"model_name_or_path": "resnet51"}, "must be a model, got 'resnet51' (did you mean resnet"),
        ({"model_name_or_path": tmp_path}, "must be a model"),
        ({"image_size": "0"}, "`--image_size` must be at least 1"),
        ({"model_name_or_path": "resnet18", "image_size": "32"}, "`--image_size` must only be given for"),
        ({"freeze_backbone": "yes"}, "must come with a pretrained model, got maxmig_vgg16"),
        ({"model_name_or_path": None}, "`--model_name_or_path` must be given for pictures, got none."),
        ({"pooling": "mean"}, "`--pooling` must come with `--freeze_backbone`"),
        ({"train_file": tmp_path / "votes.csv"}, "got `--train_dir` and `--train_file`."),
        ({"train_dir": None, "train_file": "/no.csv"}, "`--train_file` must be a file with an item per row, got '/no.csv': there is none."),
        ({"train_dir": None, "train_file": tmp_path}, "there is a folder."),
        ({"test_file": "/no.csv"}, "`--test_file` must be a file"),
        ({"test_file": tmp_path / "votes.csv", "test_dir": tmp_path}, "test items must be given once, got `--test_dir` and `--test_file`."),
        ({"max_unknown_share": "2"}, "max_unknown_share"),
    ):  # fmt: skip
        assert message in refused(**changes), changes
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@needs_fork
def test_recipe_leaves_with_a_line_and_code_2(root, tmp_path):
    """A user who mistypes a flag should see one line, not a page."""
    for name, *flags in (
        ("digits.py", "--learning_rat", "1"),
        ("luna16.py", "--data_dir", str(tmp_path / "nowhere"), "--use_cpu"),
        ("benchmarks/benchmark_speed.py", "--quik"),
        ("benchmarks/repeat.py", "--output_file", str(tmp_path / "r.json"), "none.py"),
    ):
        script = root / "recipes" / name
        log = tmp_path / f"{script.stem}.log"
        code, printed = run(log, page, script, *flags), log.read_text()
        assert code == 2, printed
        assert "Traceback" not in printed
        assert f"{script.name}: error: " in printed
