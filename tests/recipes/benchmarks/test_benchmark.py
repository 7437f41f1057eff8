"""The benchmark: which cells there are, what each one measures, and that no finished cell is lost."""

import contextlib
import importlib.util
import json
import os
import select
import sys
import time
from concurrent.futures import Future

import numpy as np
import pytest
import torch

from hf_maxmig import CrowdTrainer, MaxMIGTrainer, MaxMIGTrainingArguments, confusion
from hf_maxmig.data.collator import crowd_batches
from hf_maxmig.peers import PEERS
from tests import children, reference
from tests.recipes.imported import recipes
from tests.written_data import write_flat

SHORT = ["--num_train_epochs", "2"]


@pytest.fixture(scope="module")
def benchmark():
    with recipes() as load:
        yield load("benchmark")


def digits(benchmark, method, case="correlated", expertise="high", seed=0):
    return benchmark.Cell("digits", method, case, expertise, seed)


def test_every_method_meets_every_crowd_and_the_ceiling_none(benchmark):
    """Otherwise a method could be missing in one case, or the ceiling be trained six times over."""
    cells = list(
        benchmark.cells(
            "digits", list(benchmark.METHODS), list(benchmark.CASES), ["high", "low"], 2
        )
    )
    assert len(set(cells)) == len(cells)
    compared = set(benchmark.METHODS) - {"kos", "true_labels"}  # KOS needs two classes
    ours = {"max_mig", "max_mig_vote_share", "max_mig_factored", "max_mig_cross_fit"}
    assert {*ours, *PEERS} - {"kos", "true_labels"} == compared
    for seed in (0, 1):
        of_seed = [cell for cell in cells if cell.seed == seed]
        assert len(of_seed) == 6 * len(compared) + 1
        assert {c.method for c in of_seed if c.case is None} == {"true_labels"}
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
    assert "kos" in {
        cell.method for cell in benchmark.cells("luna16", ["kos"], ["correlated"], ["low"], 1)
    }
    real = list(
        benchmark.cells(
            "labelme", list(benchmark.METHODS), list(benchmark.CASES), ["high", "low"], 3
        )
    )
    assert {(cell.case, cell.expertise) for cell in real} == {(None, None)}
    assert len(real) == 3 * (len(benchmark.METHODS) - 1)


def test_every_data_set_has_its_page(benchmark):
    """A row without a recipe would fail only after an hour of other cells."""
    for source in benchmark.DATASETS.values():
        page = importlib.import_module(source.recipe)
        assert callable(page.recipe), source.recipe


@pytest.fixture(scope="module")
def results(benchmark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    methods = ("max_mig", "majority_vote", "aggnet")
    return folder, {
        m: benchmark.run_cell(digits(benchmark, m), SHORT, 0.1, folder) for m in methods
    }


def test_a_cell_says_what_was_measured_and_how(benchmark, results):
    """A cell holds three picks side by side, and the command to reproduce them."""
    folder, found = results
    result = found["max_mig"]
    assert json.loads((folder / "digits/max_mig-correlated-high-seed0.json").read_text()) == result
    certain = {f"{of}{name}" for of in ("", "forecast_") for name in ("nll", "brier", "ece")}
    names = {"epoch", "accuracy", "aggregator_accuracy", "forecast_accuracy", "gain", *certain}
    for pick in ("last", "label_free", "best_on_test"):
        assert set(result[pick]) == names | ({"strength"} if pick == "label_free" else set()), pick
    assert result["last"]["epoch"] == 2
    assert result["best_on_test"]["accuracy"] >= result["last"]["accuracy"]
    assert result["label_free"]["gain"] >= result["last"]["gain"]
    assert (result["case"], result["expertise"], result["seed"]) == ("correlated", "high", 0)
    assert result["forecast_items"] == "test"
    assert result["held_out_items"] == 108
    assert 0 < result["confusion_error"] < 1
    known = result["annotators"]
    assert set(known) == {"accuracy", "auroc", "brier", "ece", "confusion_error", "matrices"}
    assert known["matrices"] == "counted"
    assert known["confusion_error"] == result["confusion_error"]
    assert known["auroc"] > 0.55  # seniors and juniors can be distinguished
    assert result["seconds"] > 0
    assert result["peak_memory_mib"] > 100
    assert result["versions"]["torch"] == torch.__version__
    assert result["command"] == (
        "python recipes/benchmarks/benchmark.py --dataset digits --methods max_mig --cases correlated "
        "--expertise high --seeds 1 --num_train_epochs 2"
    )


def test_a_method_without_aggregator_claims_none(results):
    """Majority vote has no g, so an accuracy of the prior, or a pick by its gain, would belong to nothing."""
    _, found = results
    assert set(found["majority_vote"]["last"]) == {"epoch", "accuracy", "nll", "brier", "ece"}
    assert found["majority_vote"]["label_free"] is None
    assert "forecast_accuracy" in found["aggnet"]["last"]
    assert set(found["aggnet"]["label_free"]) == set(found["aggnet"]["last"])


def test_a_cell_of_a_sparse_crowd_has_its_votes(benchmark, tmp_path):
    """The crowd has one vote per item and 300 annotators, some of them without votes."""
    cell = digits(benchmark, "aggnet", "sparse_one", "high")
    recipe = benchmark.build(cell, SHORT, 0.1)
    assert {len(votes) for votes in recipe.train["annotations"]} == {1}
    assert len({m for row in recipe.train["annotators"] for m in row}) < 300
    result = benchmark.run_cell(cell, SHORT, 0.1, tmp_path)
    assert result["case"] == "sparse_one"
    assert benchmark.read_cells(tmp_path) == [result]


def test_photographs_that_a_backbone_has_read_are_not_read_again(benchmark, backbone, tmp_path):
    """The columns of the pictures are still there, hidden by the format: looking into them failed every cell."""
    cell = benchmark.Cell("labelme_images", "majority_vote", None, None, 0)
    flags = [
        "--data_dir",
        str(write_flat(tmp_path / "data")),
        "--backbone",
        str(tmp_path / "backbone"),
    ]
    recipe = benchmark.build(cell, flags, 0.1)
    assert set(recipe.train[0]) >= {"features", "annotations"}
    assert recipe.classifier.config.input_size == len(recipe.test[0]["features"])


def test_matrices_are_the_methods_own_where_it_has_some(results):
    """Matrices counted with the forecast would be those of another step."""
    _, found = results
    assert found["aggnet"]["annotators"]["matrices"] == "own"
    assert found["majority_vote"]["annotators"]["matrices"] == "counted"


def test_a_cell_after_waum_is_a_row_of_its_own(benchmark, monkeypatch, tmp_path):
    """Filtered and unfiltered cells share a folder, and the ceiling is never filtered."""
    plain, *others = benchmark.cells(
        "digits", ["aggnet", "true_labels"], ["correlated"], ["high"], 1, waum=0.1
    )
    assert not others
    asked = []

    def keep_half(dataset, classifier, alpha, args):
        asked.append((alpha, len(dataset), args.seed))
        return dataset.select(range(len(dataset) // 2))

    monkeypatch.setattr(benchmark, "waum_filter", keep_half)
    result = benchmark.run_cell(plain, SHORT, 0.1, tmp_path)
    assert asked == [(0.1, 970, 0)]
    assert result["method"] == "aggnet_waum"
    assert "--waum 0.1 " in result["command"]
    assert (tmp_path / "digits/aggnet_waum-correlated-high-seed0.json").is_file()
    assert "| AggNet + WAUM  " in benchmark.markdown([result])


def test_flags_that_say_where_things_lie_are_not_written(benchmark):
    """A results file is public."""
    cell = benchmark.Cell("labelme", "aggnet", None, None, 3)
    assert cell.command(["--data_dir", "/home/me/labelme", "--num_train_epochs", "5"], 0.2) == (
        "python recipes/benchmarks/benchmark.py --dataset labelme --methods aggnet --seeds 4 --held_out 0.2 "
        "--data_dir DIR --num_train_epochs 5"
    )


def train(benchmark, method, looking, flags=SHORT):
    recipe = benchmark.build(digits(benchmark, method), flags, 0.1)
    looks = benchmark.Looks(recipe)
    trainer = benchmark.make_trainer(method, recipe, [looks] if looking else [])
    looks.trainer = trainer
    trainer.train()
    return recipe, looks, trainer


@pytest.mark.slow
def test_looking_does_not_change_the_training(benchmark):
    """A seed must give the same result with and without the benchmark's evaluations."""
    _, looks, watched = train(benchmark, "max_mig", looking=True)
    _, _, alone = train(benchmark, "max_mig", looking=False)
    assert len(looks.rows) == 2
    for (name, first), second in zip(
        watched.model.state_dict().items(), alone.model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(first, second, rtol=0, atol=0, msg=name)


@pytest.mark.slow
def test_a_look_works_out_what_a_training_with_held_out_votes_would_end_with(benchmark, tmp_path):
    """The cell's trainer gets no held-out votes, so that all methods are trained alike."""
    cell = digits(benchmark, "max_mig_vote_share", "independent", "low")
    recipe = benchmark.build(cell, ["--num_train_epochs", "3", "--learning_rate", "0.01"], 0.3)
    looks = benchmark.Looks(recipe)
    looks.trainer = benchmark.make_trainer(cell.method, recipe, [looks])
    looks.trainer.train()
    look = looks.rows[-1] | looks.strengthened[-1]
    assert look["strength"] != 1.0
    assert look["forecast_accuracy"] != looks.rows[-1]["forecast_accuracy"]
    hardly = MaxMIGTrainingArguments(
        str(tmp_path), init="keep", max_steps=1, learning_rate=1e-12, save_strategy="no", use_cpu=True,
        per_device_eval_batch_size=512, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = MaxMIGTrainer(
        model=looks.trainer.model,
        args=hardly,
        train_dataset=recipe.train,
        eval_dataset=recipe.held_out,
    )
    metrics = trainer.train().metrics
    assert metrics["aggregator_strength"] == pytest.approx(look["strength"], rel=1e-3)
    found = trainer.predict(recipe.test).metrics
    for name in ("accuracy", "aggregator_accuracy", "forecast_accuracy"):
        assert found[f"test_{name}"] == pytest.approx(look[name], abs=3e-3), name


def test_few_looks_in_a_long_training_and_always_the_last(benchmark):
    """The headline is the last epoch, whatever the number of epochs."""
    for epochs in (1, 7, 26, 100, 103):
        taken = [e for e in range(1, epochs + 1) if benchmark.looks_at(e, epochs)]
        assert taken[-1] == epochs
        assert len(taken) <= benchmark.LOOKS
        assert epochs > benchmark.LOOKS or len(taken) == epochs


@pytest.mark.slow
def test_accuracies_are_of_the_names_that_the_votes_give(benchmark):
    """Before the classes are named, two swapped ones would look like mistakes."""
    flags = ["--num_train_epochs", "8", "--learning_rate", "0.01"]
    recipe, _, trainer = train(benchmark, "max_mig", looking=False, flags=flags)
    straight = benchmark.measured(trainer, trainer.predict(recipe.test), torch.arange(10))
    assert straight["aggregator_accuracy"] > 0.8  # two merged classes have no names to find
    order = torch.arange(10).roll(1)
    inputs = torch.tensor(np.stack(recipe.test["features"][:8]))
    assert trainer.crowd_model.reorder_classes(order, {"features": inputs})
    swapped = benchmark.measured(trainer, trainer.predict(recipe.test), torch.arange(10))
    assert swapped["accuracy"] != straight["accuracy"]
    again = benchmark.measured(trainer, trainer.predict(recipe.test), torch.argsort(order))
    assert again == pytest.approx(straight, abs=1e-6)
    certain = {f"{of}{name}" for of in ("", "forecast_") for name in ("nll", "brier", "ece")}
    assert set(straight) == {"accuracy", "aggregator_accuracy", "forecast_accuracy", *certain}
    torch.testing.assert_close(trainer.class_order(), torch.argsort(order))


@pytest.mark.slow
def test_confusion_error_is_the_labels_mean_of_total_variations(benchmark):
    """Compared with loops. Only the gold labels themselves have no error."""
    recipe, _, trainer = train(benchmark, "aggnet", looking=False)
    log_posterior = torch.from_numpy(trainer.predict(recipe.train).predictions[2])
    gold = torch.tensor(recipe.train["label"][:])
    who, said = next(iter(crowd_batches(recipe.train, trainer.data_collator)))
    found = confusion(log_posterior.exp(), who, said, 10)
    truth = torch.nn.functional.one_hot(gold, 10).double()
    right = reference.confusion(reference.confusion_counts(truth, who, said, 10), 0)
    total = sum(
        float((found[m, c] - right[m, c]).abs().sum()) / 2
        for row, c in zip(who.tolist(), gold.tolist(), strict=True)
        for m in row
    )
    judged = benchmark.judged(trainer, recipe.train)
    error = benchmark.confusion_distance(*judged, 10)
    assert error == pytest.approx(total / who.numel(), abs=1e-5)
    assert benchmark.confusion_distance(truth.float(), gold, who, said, 10) == 0
    own = trainer.crowd_model.confusion()
    voted = benchmark.judged(trainer, recipe.test)
    known = benchmark.of_annotators(trainer, judged, voted)
    squares = [
        float(((voted.posterior[i] * own[m].diagonal()).sum() - int(said == voted.gold[i])) ** 2)
        for i, row in enumerate(zip(voted.annotators, voted.annotations, strict=True))
        for m, said in zip(*row, strict=True)
    ]
    assert len(squares) > 1000
    assert known["brier"] == pytest.approx(sum(squares) / len(squares), abs=1e-5)
    assert known["confusion_error"] == pytest.approx(
        benchmark.matrices_distance(own, gold, who, said), abs=1e-5
    )


@pytest.mark.slow
def test_gold_labels_do_not_reach_the_training(benchmark):
    """Every recipe's training items have gold labels; a run without them must be the same."""
    _, _, trainer = train(benchmark, "aggnet", looking=False)
    blind = benchmark.build(digits(benchmark, "aggnet"), SHORT, 0.1)
    blind.train = blind.train.remove_columns("label")
    other = benchmark.make_trainer("aggnet", blind, [])
    other.train()
    for first, second in zip(trainer.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_finished_cells_are_passed_over_and_other_flags_refused(benchmark, results):
    """Cells of two protocols in one table would not be comparable."""
    folder, _ = results
    wanted = [digits(benchmark, "max_mig"), digits(benchmark, "soft_vote")]
    assert benchmark.unfinished(wanted, SHORT, 0.1, folder) == wanted[1:]
    with pytest.raises(ValueError, match="must be of the same flags as this run, got 'python"):
        benchmark.unfinished(wanted, ["--num_train_epochs", "3"], 0.1, folder)


def test_collected_cells_are_read_back(benchmark, results, tmp_path):
    """Each data set's cells are committed as one file."""
    folder, found = results
    cells = benchmark.read_cells(folder)
    benchmark.collect(cells, tmp_path / "all.json")
    again = benchmark.read_cells(tmp_path / "all.json")
    assert {cell["method"]: cell for cell in again} == found


@pytest.mark.slow
def test_a_cell_that_fails_does_not_stop_the_others(benchmark, monkeypatch, tmp_path):
    """A run overnight must not end at its first broken cell, nor where its workers have had their fill of cells."""
    children.come_with_libraries(monkeypatch)
    monkeypatch.setattr(benchmark, "CELLS_OF_A_WORKER", 2)
    bad = [digits(benchmark, f"no_such_method_{k}") for k in range(5)]
    good = digits(benchmark, "majority_vote")
    failed = benchmark.run_cells([*bad, good], SHORT, 0.1, tmp_path, jobs=1)
    assert list(failed) == bad
    assert "`name` must be one of" in failed[bad[0]]
    assert good.file(tmp_path).is_file()
    assert not bad[0].file(tmp_path).exists()


def test_workers_keep_their_memory_and_share_the_cores(benchmark, monkeypatch, tmp_path):
    """Large allocations make prediction half as fast. The caller's own environment must not change."""
    seen = {}

    class Pool(contextlib.nullcontext):
        def __init__(self, *arguments, **options):
            super().__init__(self)

        def submit(self, *arguments):
            seen.update(os.environ)
            done = Future()
            done.set_result({"last": {"accuracy": 1.0}})
            return done

    monkeypatch.setattr(benchmark, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "3")
    before = dict(os.environ)
    cell = benchmark.Cell("digits", "max_mig", "independent", "high", 0)
    assert benchmark.run_cells([cell], [], 0.1, tmp_path, jobs=2) == {}
    assert os.environ == before
    added = {name: value for name, value in seen.items() if before.get(name) != value}
    expected = {**benchmark.KEEPS, "OMP_NUM_THREADS": "3"}
    del expected["MALLOC_ARENA_MAX"]  # set by the user
    assert added == expected


@pytest.mark.slow
@children.needs_fork
def test_a_killed_run_leaves_whole_cells_no_workers_and_goes_on(
    benchmark, root, monkeypatch, capsys, tmp_path
):
    """Whenever it is killed, all written cells must be complete and must not run again."""
    script = root / "recipes" / "benchmarks" / "benchmark.py"
    flags = [
        "--dataset", "digits", "--output_dir", str(tmp_path), "--methods", "majority_vote", "soft_vote", "--cases",
        "correlated", "--expertise", "high", "--seeds", "1", "--jobs", "1", "--num_train_epochs", "2",
    ]  # fmt: skip
    log = tmp_path / "log"
    os.mkfifo(log)
    heard = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    deadline = time.monotonic() + 200
    with children.started(log, children.page, script, *flags) as run:
        while not (written := list(tmp_path.glob("digits/*.json"))):
            assert run.is_alive(), os.read(heard, 2**16).decode()
            assert time.monotonic() < deadline
            time.sleep(0.05)
    # The output is closed only when the last worker is gone, as workers hold it too.
    while select.select([heard], [], [], 60)[0]:
        if not os.read(heard, 2**16):
            break
    else:
        pytest.fail("a minute after the run was killed a worker of it is there")
    os.close(heard)
    written = list(tmp_path.glob("digits/*.json"))
    assert len(written) == 1
    before = {path: (path.stat().st_mtime_ns, json.loads(path.read_text())) for path in written}
    children.come_with_libraries(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *flags])
    benchmark.main()
    printed = capsys.readouterr().out
    assert "2 cells, 1 of them are there" in printed
    assert "4.3(H)" in printed  # the table follows
    assert len(list(tmp_path.glob("digits/*.json"))) == 2
    for path, (when, result) in before.items():
        assert (path.stat().st_mtime_ns, json.loads(path.read_text())) == (when, result)


@pytest.mark.slow
def test_data_that_is_not_there_ends_with_an_error(benchmark, monkeypatch, capsys, tmp_path):
    """An exit status of zero without a cell would look like a finished run."""
    flags = [
        "--dataset", "labelme", "--methods", "soft_vote", "--seeds", "1", "--jobs", "1",
        "--data_dir", str(tmp_path / "nowhere"), "--output_dir", str(tmp_path / "out"),
    ]  # fmt: skip
    children.come_with_libraries(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *flags])
    with pytest.raises(SystemExit, match="1 of 1 cells failed") as ended:
        benchmark.main()
    assert isinstance(ended.value.code, str)  # which Python prints, with a status of 1
    assert "it does not exist" in capsys.readouterr().err


def test_our_variants_differ_by_their_arguments_alone(benchmark):
    """If a variant's arguments did not reach the trainer, it would be Max-MIG under another name."""
    recipe = benchmark.build(digits(benchmark, "max_mig_vote_share"), SHORT, 0.1)
    variant = benchmark.make_trainer("max_mig_vote_share", recipe, [])
    plain = benchmark.make_trainer("max_mig", recipe, [])
    assert (variant.args.init, plain.args.init) == ("vote_share", "information")
    assert (variant.args.search_rate, plain.args.search_rate) == (False, True)
    assert variant.args.learning_rate == plain.args.learning_rate


def test_trainer_is_the_one_of_the_method(benchmark):
    """A rival wrapped in Max-MIG's model would be Max-MIG."""
    recipe = benchmark.build(digits(benchmark, "crowd_layer"), SHORT, 0.1)
    trainer = benchmark.make_trainer("crowd_layer", recipe, [])
    assert type(trainer) is CrowdTrainer
    assert trainer.crowd_model.method == "Crowd Layer"
    assert trainer.crowd_model.config.annotators[0] == "senior_A"
