"""A search over hyperparameters: each trial starts from nothing and is judged by the gain, whatever came before."""

import logging

import pytest

from hf_maxmig import MaxMIGTrainer
from hf_maxmig.peers import peer
from hf_maxmig.training.trainer import CrowdTrainer
from tests.networks import small_head
from tests.worlds import ANNOTATORS, CLASSES, make_crowd

optuna = pytest.importorskip("optuna")
optuna.logging.set_verbosity(optuna.logging.ERROR)


def head(trial=None):
    return small_head(len(CLASSES), dropout=0.5)


@pytest.fixture
def make_tuned(make_args, crowd):
    def build(model_init=head, trainer=MaxMIGTrainer, eval_dataset=None, **changes):
        args = make_args(eval_strategy="epoch", **changes)
        held_out = make_crowd(40, seed=1) if eval_dataset is None else eval_dataset
        return trainer(model_init=model_init, args=args, train_dataset=crowd, eval_dataset=held_out)

    return build


def search(trainer, grid, **settings):
    """Try a grid in the order of its names, and return the best run."""

    def space(trial):
        return {name: trial.suggest_categorical(name, values) for name, values in grid.items()}

    trials = 1
    for values in grid.values():
        trials *= len(values)
    return trainer.hyperparameter_search(
        space,
        n_trials=trials,
        backend="optuna",
        sampler=optuna.samplers.GridSampler(grid, seed=0),
        **settings,
    )


@pytest.mark.parametrize("settings", [{}, {"direction": "maximize"}])
def test_model_with_the_highest_gain_wins_by_default(settings, make_tuned):
    """By default all metrics are summed and minimised: as they grow with the gain, the worst trial won."""
    trainer = make_tuned(search_strength=True)
    rates = [3e-2, 1e-7]
    best = search(trainer, {"learning_rate": rates}, **settings)
    assert best.hyperparameters == {"learning_rate": 3e-2}
    trainer.args.learning_rate = 3e-2
    trainer.train()
    gain = trainer.evaluate()["eval_gain"]
    assert gain > 0.1
    # The objective is that of the final model with the strength that was found, not that of the
    # last epoch.
    assert abs(best.objective) == pytest.approx(gain, abs=1e-6)
    assert best.objective > 0 if settings else best.objective < 0


@pytest.mark.slow
def test_trial_equals_a_training_by_itself(make_tuned):
    """Anything that an earlier trial found, set or left behind would become part of a later one."""
    grid = {"learning_rate": [1e-2, 3e-2], "prior": ["uniform", "learned"]}
    seen = []
    trainer = make_tuned()

    def gain(metrics):
        seen.append((trainer.args.learning_rate, trainer.args.prior, metrics["eval_gain"]))
        return metrics["eval_gain"]

    search(trainer, grid, compute_objective=gain, direction="maximize")
    last = {(rate, prior): value for rate, prior, value in seen}  # of each trial
    assert len(last) == 4
    for (rate, prior), value in last.items():
        alone = make_tuned(learning_rate=rate, prior=prior)
        alone.train()
        assert alone.crowd_model.config.prior == prior
        assert alone.evaluate()["eval_gain"] == pytest.approx(value, abs=1e-6)


def test_argument_of_one_trial_is_not_that_of_the_next(make_tuned):
    """With conditional parameters, one trial sets what another leaves open: it must be open again."""
    trainer, used = make_tuned(num_train_epochs=1), []

    def space(trial):
        rate = trial.suggest_categorical("learning_rate", [1e-2, 2e-2])
        return {"learning_rate": rate} | ({"weight_decay": 0.5} if trial.number == 0 else {})

    def objective(metrics):
        used.append(trainer.args.weight_decay)
        return metrics["eval_gain"]

    trainer.hyperparameter_search(
        space, objective, n_trials=2, direction="maximize", backend="optuna"
    )
    assert used[0] == 0.5
    assert used[-1] == 0.0
    assert (trainer.args.weight_decay, trainer.args.learning_rate) == (0.0, 1e-2)


@pytest.mark.slow
def test_trial_that_searches_and_starts_does_so_anew(make_tuned):
    """Rate, start and strength belong to a trial."""
    trainer = make_tuned(init="information", search_rate=True, search_strength=True)
    rates = []

    def objective(metrics):
        rates.append((trainer.start.rate, len(trainer.start.tried), trainer.found_strength))
        return metrics["eval_gain"]

    search(trainer, {"learning_rate": [1e-3, 2e-2]}, compute_objective=objective)
    ends = [entry for entry in rates if entry[2] is not None]
    assert len(ends) == 2
    assert ends[0][0] != ends[1][0]
    assert all(tries >= 3 for _, tries, _ in ends)


def test_model_of_a_trial_is_made_by_what_the_trial_says(make_tuned):
    """`model_init` may take the trial, and divergence and prior are read when the model is created."""
    sizes = []

    def sized(trial):
        size = 8 if trial is None else trial.suggest_categorical("hidden_size", [8, 24])
        sizes.append(size)
        return small_head(len(CLASSES), dropout=0.5, hidden_size=size)

    trainer, made = make_tuned(model_init=sized, num_train_epochs=1), []

    def objective(metrics):
        config = trainer.crowd_model.config
        made.append((config.divergence, config.classifier_config.hidden_size))
        return metrics["eval_gain"]

    best = search(
        trainer,
        {"divergence": ["pearson", "kl"], "hidden_size": [8, 24]},
        compute_objective=objective,
    )
    assert {*made} == {(d, s) for d in ("pearson", "kl") for s in (8, 24)}
    assert best.hyperparameters.keys() == {"divergence", "hidden_size"}


def test_trial_that_diverges_is_left_out_with_a_word(make_tuned, caplog):
    """A single rate that is too high would end the whole search, or win with NaN."""
    with caplog.at_level(logging.WARNING, logger="hf_maxmig"):
        logging.getLogger("hf_maxmig").addHandler(caplog.handler)
        best = search(make_tuned(), {"learning_rate": [1e30, 1e-2]})
        logging.getLogger("hf_maxmig").removeHandler(caplog.handler)
    assert best.hyperparameters == {"learning_rate": 1e-2}
    assert "is left out: the loss must be finite" in caplog.text
    with pytest.raises(ValueError, match="at least one of the 1 trials must end with a finite"):
        search(make_tuned(), {"learning_rate": [1e30]})


def test_value_out_of_range_is_refused_in_a_trial_too(make_tuned):
    """A trial sets attributes directly, bypassing the checks of the arguments."""
    with pytest.raises(ValueError, match="`label_smoothing_factor` must be 0.0, got 0.1"):
        search(make_tuned(), {"label_smoothing_factor": [0.1]})


def test_search_says_at_once_what_it_needs(make_model, make_tuned, make_args, crowd):
    """Otherwise the first trial's time is wasted, or a sum of unrelated metrics decides."""
    given = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    with pytest.raises(ValueError, match="`model_init` must be given"):
        given.hyperparameter_search(backend="optuna")
    two = {"a": make_crowd(20, seed=1), "b": make_crowd(20, seed=2)}
    with pytest.raises(ValueError, match="`eval_dataset` must be one data set with votes, got 2"):
        make_tuned(eval_dataset=two).hyperparameter_search(backend="optuna")
    with pytest.raises(
        ValueError, match="`compute_objective` must be given for several directions"
    ):
        make_tuned().hyperparameter_search(backend="optuna", direction=["minimize", "maximize"])
    with pytest.raises(ValueError, match="`n_jobs` must be 1, got 2"):
        make_tuned().hyperparameter_search(backend="optuna", n_jobs=2)
    with pytest.raises(
        ValueError, match="`backend` must be one of optuna, ray, wandb, got 'sigopt'"
    ):
        make_tuned().hyperparameter_search(backend="sigopt")
    with pytest.raises(ImportError, match="`backend` must be installed, got 'ray'"):
        make_tuned().hyperparameter_search(backend="ray")
    without = make_crowd(20, seed=1).remove_columns(["annotators", "annotations"])
    with pytest.raises(ValueError, match="must have a gain for trials"):
        search(make_tuned(eval_dataset=without), {"learning_rate": [1e-2]})


def test_rival_is_judged_by_what_its_evaluation_has(make_tuned):
    """A rival without an aggregator has no gain, and the sum of its metrics would use gold labels."""

    def soft(trial=None):
        names = dict(enumerate(CLASSES))
        return peer("soft_vote", head(), annotators=ANNOTATORS, id2label=names)

    settings = {"model_init": soft, "trainer": CrowdTrainer, "num_train_epochs": 1}
    grid = {"learning_rate": [1e-7, 3e-2]}
    with pytest.raises(ValueError, match="must have a gain.*Give `compute_objective`"):
        search(make_tuned(**settings), grid)
    chosen = {"compute_objective": lambda m: m["eval_accuracy"], "direction": "maximize"}
    assert search(make_tuned(**settings), grid, **chosen).hyperparameters == {"learning_rate": 3e-2}


def test_pruned_trial_leaves_nothing_behind(make_tuned):
    """A pruned trial ends in the middle of a training, and the next one begins another."""

    class Prunes(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return trial.number == 0

    best = search(
        make_tuned(search_strength=True), {"learning_rate": [1e-2, 3e-2]}, pruner=Prunes()
    )
    assert best.run_id == "1"


def test_trials_that_save_keep_theirs_apart(make_args, crowd, tmp_path):
    """Each trial has its own folder, and ends with its own best epoch."""
    args = make_args(save_strategy="epoch", eval_strategy="epoch", load_best_model_at_end=True)
    trainer = MaxMIGTrainer(
        model_init=head, args=args, train_dataset=crowd, eval_dataset=make_crowd(40, seed=1)
    )
    ended = {}

    def objective(metrics):
        ended[trainer.state.trial_name or trainer.args.learning_rate] = metrics["eval_gain"]
        return metrics["eval_gain"]

    best = search(
        trainer, {"learning_rate": [1e-2, 3e-2]}, compute_objective=objective, direction="maximize"
    )
    runs = sorted(path.name for path in (tmp_path / "out").iterdir() if path.name.startswith("run"))
    assert runs == ["run-0", "run-1"]
    assert all(list((tmp_path / "out" / run).glob("checkpoint-*")) for run in runs)
    assert best.objective == pytest.approx(max(ended.values()))
