"""Every field of the arguments works, is refused with a reason, or has no bearing: none is silently ignored.

`docs/training_arguments.md` lists them for readers; it must agree with the tables here.
"""

import math
import re
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi
from transformers import BertConfig, BertForSequenceClassification, EvalPrediction, TrainerCallback

from hf_maxmig import MaxMIGModel, MaxMIGTrainer, MaxMIGTrainingArguments
from tests.weights import equal, state
from tests.worlds import ANNOTATORS, CLASSES, by_hand, make_crowd

NAN, INF = float("nan"), float("inf")


class Works(NamedTuple):
    """A field that works: a value, the settings that must go with it, and its effect.

    `does` is "changes" if training ends with other weights, "same" if with the same ones, else a function
    of the trainer that returns whether the field had its effect.
    """

    value: object
    does: object
    others: dict = {}


def steps(number):
    return lambda trainer: trainer.state.global_step == number


def logged(key, times=None):
    def look(trainer):
        found = sum(key in log for log in trainer.state.log_history)
        return found > 0 if times is None else found == times

    return look


def saved(*names):
    def look(trainer):
        there = {path.name for path in trainer.folder.glob("checkpoint-*")}
        return there == {f"checkpoint-{step}" for step in names}

    return look


def rate(factor):
    """Return the classifier's rate in the last logged step, as a share of the configured one."""

    def look(trainer):
        last = [
            log["learning_rate"] for log in trainer.state.log_history if "learning_rate" in log
        ][-1]
        return last == pytest.approx(factor * trainer.args.learning_rate, rel=1e-3)

    return look


def config(name, value):
    return lambda trainer: getattr(trainer.crowd_model.config, name) == value


BEST = {"load_best_model_at_end": True}

# Field -> cases. Four steps per epoch, two epochs, one evaluation each; one checkpoint each for `CHECKPOINTS`.
WORKS: dict[str, list[Works]] = {
    "output_dir": [],  # set by each test
    "per_device_train_batch_size": [Works(8, steps(16)), Works(2, steps(60)), Works(1000, steps(2))],
    "num_train_epochs": [Works(3, steps(12)), Works(0.5, steps(2)), Works(0, steps(0))],
    "max_steps": [Works(1, steps(1)), Works(5, steps(5)), Works(-1, steps(8))],
    "learning_rate": [Works(1e-3, "changes"), Works(0.0, lambda t: not t.moved)],
    "lr_scheduler_type": [
        Works("linear", rate(1 / 8)),
        Works("constant", rate(1)),
        Works("constant_with_warmup", rate(1)),
        Works("cosine_with_restarts", "same"),
        Works("polynomial", "changes"),
        Works("inverse_sqrt", "changes"),
        Works("warmup_stable_decay", "changes", {"lr_scheduler_kwargs": {"num_decay_steps": 2}}),
        Works("cosine_with_min_lr", "changes", {"lr_scheduler_kwargs": {"min_lr_rate": 0.5}}),
        Works("cosine_warmup_with_min_lr", "changes", {"lr_scheduler_kwargs": {"min_lr": 1e-3}}),
        Works("reduce_lr_on_plateau", rate(1), {"aggregator_warmup_ratio": 0.0}),
        Works("greedy", "changes", {"aggregator_warmup_ratio": 0.0}),
    ],
    "lr_scheduler_kwargs": [
        Works({"num_cycles": 2.0}, "changes"),
        Works('{"num_cycles": 2.0}', "changes"),
    ],
    "warmup_steps": [Works(2, "changes"), Works(0.5, "changes")],
    "optim": [
        Works("adamw_torch", lambda t: not t.optimizer.param_groups[0]["fused"]),
        Works("adamw_torch_fused", "same"),
        Works("sgd", "changes"),
        Works("adagrad", "changes"),
        Works("adafactor", "changes"),
        Works("rmsprop", "changes"),
    ],
    "optim_args": [Works("momentum=0.9, nesterov=true", lambda t: t.optimizer.param_groups[-1]["momentum"] == 0.9, {"optim": "sgd"})],
    "weight_decay": [Works(0.5, "changes")],
    "adam_beta1": [Works(0.5, "changes"), Works(0.0, "changes")],
    "adam_beta2": [Works(0.9, "changes")],
    "adam_epsilon": [Works(1e-3, "changes")],
    "gradient_accumulation_steps": [Works(2, steps(4)), Works(3, steps(4)), Works(100, steps(2))],
    "max_grad_norm": [Works(0.0, "changes"), Works(1e-3, "changes"), Works(INF, "changes")],
    "bf16": [Works(True, "changes")],
    "bf16_full_eval": [Works(True, lambda t: {p.dtype for p in t.model.parameters()} == {torch.float32})],
    "fp16_full_eval": [Works(True, lambda t: {p.dtype for p in t.model.parameters()} == {torch.float32})],
    "fp16": [Works(True, "same")],  # on a CPU it has no effect, and says so
    "tf32": [Works(False, "same")],
    "torch_empty_cache_steps": [Works(1, "same"), Works(3, "same")],
    "auto_find_batch_size": [Works(True, "same")],
    "logging_strategy": [Works("no", logged("loss", 0)), Works("epoch", logged("loss", 2)), Works("steps", logged("loss", 8))],
    "logging_steps": [Works(3, logged("loss", 2)), Works(0.5, logged("loss", 2))],
    "logging_first_step": [Works(True, logged("loss", 3), {"logging_steps": 4})],
    "logging_nan_inf_filter": [Works(True, "same")],
    "include_num_input_tokens_seen": [
        Works(True, lambda t: t.state.num_input_tokens_seen == 2 * 60 * 5),
        Works("all", lambda t: t.state.num_input_tokens_seen == 2 * 60 * 5),
        Works("non_padding", lambda t: t.state.num_input_tokens_seen == 2 * 60 * 5),
    ],
    "eval_strategy": [Works("no", logged("eval_gain", 0)), Works("steps", logged("eval_gain", 8), {"eval_steps": 1})],
    "eval_steps": [Works(4, logged("eval_gain", 2), {"eval_strategy": "steps"}), Works(0.25, logged("eval_gain", 4), {"eval_strategy": "steps"})],
    "eval_delay": [Works(2, logged("eval_gain", 1)), Works(100, logged("eval_gain", 0))],
    "per_device_eval_batch_size": [Works(1, "same"), Works(7, "same"), Works(1000, "same")],
    "eval_on_start": [Works(True, lambda t: t.state.log_history[0]["step"] == 0)],
    "eval_accumulation_steps": [Works(1, "same"), Works(2, "same")],
    "include_for_metrics": [Works(["inputs"], lambda t: t.metric_inputs == (33, 5))],
    "save_strategy": [Works("no", saved()), Works("steps", saved(5, 8), {"save_steps": 5}), Works("epoch", saved(4, 8)), Works("best", saved(4, 8), BEST)],
    "save_steps": [Works(3, saved(3, 6, 8), {"save_strategy": "steps"}), Works(0.5, saved(4, 8), {"save_strategy": "steps"})],
    "save_total_limit": [Works(1, saved(8)), Works(5, saved(4, 8))],
    "save_only_model": [Works(True, lambda t: not [*t.folder.glob("checkpoint-8/optimizer*")])],
    "save_on_each_node": [Works(True, "same")],
    "enable_jit_checkpoint": [Works(True, "same")],
    "load_best_model_at_end": [Works(True, lambda t: t.state.best_model_checkpoint is not None)],
    "metric_for_best_model": [
        Works("gain", lambda t: t.best() == max, BEST),
        Works("eval_gain", lambda t: t.best() == max, BEST),
        Works("loss", lambda t: t.best() == max, BEST),
        Works("eval_loss", lambda t: t.best() == max, BEST),
        Works("accuracy", lambda t: t.state.best_metric is not None, BEST),
    ],
    "greater_is_better": [Works(False, lambda t: t.best() == min, BEST), Works(True, lambda t: t.best() == max, BEST)],
    "ignore_data_skip": [Works(True, "same")],
    "restore_callback_states_from_checkpoint": [Works(True, "same")],
    "full_determinism": [Works(True, "same")],
    "seed": [Works(1, "changes"), Works(2**32 - 1, "changes")],
    "data_seed": [Works(1, "changes"), Works(42, "same")],
    "use_cpu": [Works(True, "same")],
    "accelerator_config": [
        Works({"split_batches": True}, "same"),
        Works({"dispatch_batches": True}, "same"),
        Works({"dispatch_batches": False}, "same"),
        Works({"even_batches": False}, "same"),
        Works({"use_seedable_sampler": False}, "changes"),
        Works({"non_blocking": True}, "same"),
        Works({"gradient_accumulation_kwargs": {"sync_each_batch": True}}, "same"),
        Works({"gradient_accumulation_kwargs": {"num_steps": 2}}, steps(4)),
    ],
    "dataloader_drop_last": [Works(True, steps(6))],
    "dataloader_num_workers": [Works(1, "same"), Works(2, "same")],
    "dataloader_pin_memory": [Works(True, "same")],
    "dataloader_persistent_workers": [Works(True, steps(8), {"dataloader_num_workers": 1})],
    "dataloader_prefetch_factor": [Works(3, "same", {"dataloader_num_workers": 1})],
    "dataloader_multiprocessing_context": [Works("forkserver", "same", {"dataloader_num_workers": 1})],
    "dataloader_in_order": [Works(False, "same")],
    "label_names": [Works(None, logged("eval_accuracy")), Works(["labels"], logged("eval_accuracy"))],
    "train_sampling_strategy": [
        Works("random", "same"), Works("sequential", "changes"), Works("group_by_length", "changes"), Works("batch_rebalance", "changes"),
    ],
    "length_column_name": [Works("size", "changes", {"train_sampling_strategy": "group_by_length"})],
    "debug": [Works("underflow_overflow", "same")],
    "skip_memory_metrics": [Works(False, logged("train_mem_cpu_alloc_delta"))],
    "disable_tqdm": [Works(True, "same"), Works(False, "same")],
    "report_to": [Works("none", "same"), Works([], "same")],
    "log_level": [Works("error", "same")],
    # ours
    "divergence": [Works("kl", config("divergence", "kl")), Works("pearson", config("divergence", "pearson")), Works("jensen_shannon", config("divergence", "jensen_shannon"))],
    "prior": [Works("auto", config("prior", "uniform")), Works("learned", config("prior", "learned")), Works("vote_share", config("prior", "vote_share")), Works("0.5,0.25,0.25", config("prior", [0.5, 0.25, 0.25]))],
    "aggregator": [Works("weighted_average", "same"), Works("interaction", config("aggregator", "interaction")), Works("factored", config("aggregator", "factored"))],
    "aggregator_learning_rate": [Works(0.1, "same"), Works(1e-3, "changes")],
    "search_rate": [Works(True, lambda t: len(t.start.tried) >= 3), Works(False, lambda t: not t.start.tried)],
    "aggregator_warmup_ratio": [Works(0.0, "changes"), Works(1.0, "changes")],
    "gather_across_devices": [Works(False, "same")],
    "init": [
        Works("vote_share", "same"),
        Works("keep", "changes"),
        Works("information", "changes"),
        Works(None, "changes"),
        Works("cross_fit", lambda t: t.start.items is not None and logged("search_taught")(t)),
        Works(None, lambda t: t.start.items is not None, {"search_rate": True}),
    ],
    "smoothing": [Works(1.0, "changes")],
    "init_strength": [Works(1.0, "changes")],
    "name_classes": [Works(False, "same")],
    "select_by_gain": [Works(False, "same")],
    "search_strength": [Works(True, lambda t: t.found_strength != 1.0), Works(False, lambda t: t.found_strength is None)],
    "mixup_alpha": [Works(0.4, "changes"), Works(0.0, "same")],
    "use_gold_labels": [Works(True, lambda t: t.moved and t.crowd_model.config.gold_labels_used == len(t.train_dataset))],
    "guards": [Works(False, "same")],
    "preset": [Works("paper_cifar10", lambda t: t.args.lr_scheduler_type == "constant")],
}  # fmt: skip

# Field -> where it is tested.
ELSEWHERE = {
    "activation_checkpointing": "test_text_classifier_has_its_options",
    "activation_checkpointing_kwargs": "test_text_classifier_has_its_options",
    "gradient_checkpointing": "test_text_classifier_has_its_options",
    "gradient_checkpointing_kwargs": "test_text_classifier_has_its_options",
    "neftune_noise_alpha": "test_text_classifier_has_its_options",
    "torch_compile": "test_compiled_model_trains_like_the_plain_one",
    "torch_compile_backend": "test_compiled_model_trains_like_the_plain_one",
    "fsdp": "tests/training/test_distributed.py",
    "fsdp_config": "tests/training/test_distributed.py",
    "parallelism_config": "tests/training/test_distributed.py",
    "push_to_hub": "test_options_of_the_hub_reach_it",
    "hub_token": "test_options_of_the_hub_reach_it",
    "hub_model_id": "test_options_of_the_hub_reach_it",
    **dict.fromkeys(
        ("hub_private_repo", "hub_strategy", "hub_always_push", "hub_revision"),
        "test_options_of_the_hub_reach_it",
    ),
    **dict.fromkeys(
        ("ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph", "ddp_timeout"),
        "tests/training/test_distributed.py",
    ),
    "hub_annotators": "tests/sharing/test_sharing_of_people.py",
    "hub_salt": "tests/sharing/test_sharing_of_people.py",
}

# Field -> values that are refused, with part of the message.
REFUSED: dict[str, list[tuple[dict, str]]] = {
    "remove_unused_columns": [({"remove_unused_columns": True}, "must be False")],
    "prediction_loss_only": [({"prediction_loss_only": True}, "must be False")],
    "batch_eval_metrics": [({"batch_eval_metrics": True}, "must be False")],
    "eval_do_concat_batches": [({"eval_do_concat_batches": False}, "must be True")],
    "eval_use_gather_object": [({"eval_use_gather_object": True}, "must be False")],
    "label_smoothing_factor": [({"label_smoothing_factor": 0.1}, "must be 0.0")],
    "optim_target_modules": [({"optim_target_modules": "all-linear"}, "only GaLore reads it")],
    "use_liger_kernel": [({"use_liger_kernel": True}, "must be False")],
    "liger_kernel_config": [({"liger_kernel_config": {"rope": True}}, "must be None")],
}

# Some values of working fields are refused too: they would be ignored, or fail after the search.
ALSO_REFUSED = [
    ({"learning_rate": -1.0}, "`learning_rate` must be finite, 0 or more"),
    ({"learning_rate": INF}, "`learning_rate` must be finite"),
    ({"learning_rate": NAN}, "`learning_rate` must be finite"),
    ({"weight_decay": NAN}, "`weight_decay` must be finite"),
    ({"weight_decay": -1.0}, "`weight_decay` must be finite, 0 or more"),
    ({"adam_beta1": 1.0}, "`adam_beta1` must be in 0..1"),
    ({"adam_beta2": 2.0}, "`adam_beta2` must be in 0..1"),
    ({"adam_epsilon": 0.0}, "`adam_epsilon` must be positive"),
    ({"max_grad_norm": NAN}, "`max_grad_norm` must be 0, for none, or more"),
    ({"max_grad_norm": -1.0}, "`max_grad_norm` must be 0"),
    ({"num_train_epochs": -1}, "`num_train_epochs` must be finite, 0 or more"),
    ({"num_train_epochs": NAN}, "`num_train_epochs` must be finite"),
    ({"max_steps": 0}, "`max_steps` must be 1 or more, or -1"),
    ({"per_device_train_batch_size": 0}, "`per_device_train_batch_size` must be a whole number, 1 or more"),
    ({"per_device_eval_batch_size": 0}, "`per_device_eval_batch_size` must be a whole number, 1 or more"),
    ({"gradient_accumulation_steps": 0}, "`gradient_accumulation_steps` must be a whole number"),
    ({"eval_accumulation_steps": 0}, "`eval_accumulation_steps` must be a whole number"),
    ({"seed": -1}, "`seed` must be a whole number in 0..4294967295"),
    ({"neftune_noise_alpha": -1.0}, "`neftune_noise_alpha` must be positive and finite"),
    ({"smoothing": INF}, "`smoothing` must be positive and finite"),
    ({"init_strength": INF}, "`init_strength` must be positive and finite"),
    ({"aggregator_learning_rate": INF}, "`aggregator_learning_rate` must be positive and finite"),
    ({"lr_scheduler_type": "warmup_stable_decay"}, "must have 'num_decay_steps'"),
    ({"lr_scheduler_type": "cosine_with_min_lr"}, "must have 'min_lr' or 'min_lr_rate'"),
    ({"lr_scheduler_kwargs": "num_cycles=2"}, "`lr_scheduler_kwargs` must be a dictionary"),
    ({"optim": "lomo"}, "it has one rate for all"),
    ({"optim": "galore_adamw_layerwise", "optim_target_modules": "all-linear"}, "it has one rate for all"),
    ({"optim_args": "betas=(0.5,0.9)"}, "`optim_args` must be `name=value`"),
    ({"optim_args": "momentum=0.9"}, "`optim_args` must be of nothing with optim='adamw_torch_fused'"),
    ({"optim": "sgd", "optim_args": "foo=1"}, "got foo: it would not be read"),
    ({"train_sampling_strategy": "by_length"}, "`train_sampling_strategy` must be one of random"),
    ({"label_names": ["gold"]}, "`label_names` must be"),
    ({"dataloader_persistent_workers": True}, "must be False without `dataloader_num_workers`"),
    ({"ddp_backend": "gloo"}, "`ddp_backend` must be left out for a single process"),
    ({"debug": "tpu_metrics_debug"}, "`debug` must not contain 'tpu_metrics_debug'"),
    ({"include_for_metrics": ["loss"]}, "`include_for_metrics` must not contain 'loss'"),
]  # fmt: skip

# These are passed on unchanged, and votes make no difference to them.
NO_BEARING: dict[str, object] = {
    "use_cache": True, "average_tokens_across_devices": False, "log_on_each_node": False, "log_level_replica": "error",
    "run_name": "a run", "project": "a project", "trackio_space_id": "org/space", "trackio_bucket_id": "org/bucket",
    "trackio_static_space_id": "org/static", "do_train": True, "do_eval": True, "do_predict": True,
    "resume_from_checkpoint": "anywhere", "local_rank": 0,
    "torch_compile_mode": None, "ddp_find_unused_parameters": True,
}  # fmt: skip

# Fields for which the tests lack packages or machines.
NOT_TRIED = {"deepspeed", "ddp_backend"}


def names_of(table):
    return set(table)


def test_every_field_is_in_one_of_the_tables():
    """A field that a new version of transformers adds would be silently ignored."""
    tables = [names_of(t) for t in (WORKS, ELSEWHERE, REFUSED, NO_BEARING, NOT_TRIED)]
    together = set().union(*tables)
    assert sum(map(len, tables)) == len(together)
    assert together == {field.name for field in fields(MaxMIGTrainingArguments)}


def test_page_says_what_the_tests_do(root):
    """The page for readers must not promise what no test covers."""
    page = (root / "docs" / "training_arguments.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([a-z ]+) \|", page, flags=re.M)
    assert len(rows) == len({name for name, _ in rows})
    by_table = {
        "works": {*WORKS, *ELSEWHERE},
        "refused": {*REFUSED},
        "no bearing": {*NO_BEARING},
        "not tried": {*NOT_TRIED},
    }
    for verdict, names in by_table.items():
        assert {name for name, said in rows if said == verdict} == names, verdict


def test_tests_elsewhere_are_there(root):
    """A renamed test would no longer cover its field."""
    text = "".join(path.read_text(encoding="utf-8") for path in (root / "tests").rglob("*.py"))
    for place in ELSEWHERE.values():
        found = (root / place).is_file() if place.startswith("tests/") else f"def {place}(" in text
        assert found, place


@pytest.mark.parametrize(
    ("settings", "message"),
    [case for cases in REFUSED.values() for case in cases] + ALSO_REFUSED,
    ids=lambda value: None if isinstance(value, str) else str(value)[:60],
)
def test_value_is_refused_where_it_is_set(settings, message, make_args):
    """An error after the search for a rate wastes its time, and one that never comes spoils the result."""
    with pytest.raises(ValueError, match=re.escape(message)):
        make_args(**settings)


class Tried(MaxMIGTrainer):
    """A trainer that the tables can query for what it did."""

    metric_inputs = None

    def best(self):
        gains = [log["eval_gain"] for log in self.state.log_history if "eval_gain" in log]
        own = self.evaluate()["eval_gain"]
        return max if own == pytest.approx(max(gains[:2])) else min


def crowd_of(items, seed):
    lengths = np.random.default_rng(seed).integers(1, 9, items).tolist()
    crowd = make_crowd(items, seed=seed, unlabelled=2)
    return crowd.add_column("size", lengths).add_column("length", lengths[::-1])


@pytest.fixture(scope="module")
def sets():
    return crowd_of(60, seed=0), crowd_of(33, seed=1)


@pytest.fixture
def trial(make_args, make_model, sets, tmp_path, request):
    def build(**settings):
        if "dataloader_num_workers" in settings:
            request.getfixturevalue("clean_workers")
        usual = {
            "eval_strategy": "epoch", "save_strategy": "epoch" if CHECKPOINTS & settings.keys() else "no", "logging_strategy": "steps", "logging_steps": 1,
            "output_dir": str(tmp_path / f"out{len(list(tmp_path.iterdir()))}"), "per_device_eval_batch_size": 16,
            "select_by_gain": False,
        }  # fmt: skip
        args = make_args(**{**usual, **settings})
        built_in = {"divergence", "prior", "aggregator"} & settings.keys()
        pair = make_model()
        model = pair.classifier if built_in or settings.get("search_rate") else pair
        trainer = Tried(model=model, args=args, train_dataset=sets[0], eval_dataset=sets[1])

        def inputs(prediction: EvalPrediction):
            trainer.metric_inputs = None if prediction.inputs is None else prediction.inputs.shape
            return {}

        if "include_for_metrics" in settings:
            trainer._user_metrics = inputs
        trainer.folder = Path(args.output_dir)
        return trainer

    return build


# Fields whose cases need checkpoints. Writing them takes half the time of a training this short.
CHECKPOINTS = {
    "save_strategy", "save_steps", "save_total_limit", "save_only_model", "save_on_each_node", "enable_jit_checkpoint",
    "load_best_model_at_end", "restore_callback_states_from_checkpoint", "ignore_data_skip", "full_determinism",
    "auto_find_batch_size", "select_by_gain",
}  # fmt: skip
CASES = [(name, case) for name, cases in WORKS.items() for case in cases]


@pytest.fixture(scope="module")
def usual_weights():
    return {}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{n}={c.value}" for n, c in CASES])
def test_value_does_what_it_says(name, case, trial, sets, usual_weights, recwarn):
    """The same promises must hold for every option: training, evaluation, saving, loading."""
    trainer = trial(**{name: case.value, **case.others})
    start = state(trainer)
    trainer.train()
    trainer.moved = not equal(
        {n: t for n, t in start.items() if "classifier" in n},
        {n: t for n, t in state(trainer).items() if "classifier" in n},
    )
    if not callable(case.does):
        if not usual_weights:
            usual = trial()
            usual.train()
            usual_weights.update(state(usual))
        assert equal(state(trainer), usual_weights) == (case.does == "same")
    else:
        assert case.does(trainer)
    # In the order of the data set, for all items, finite.
    predictions = trainer.predict(sets[1]).predictions
    half = trainer.args.bf16_full_eval or trainer.args.fp16_full_eval
    tolerance = 0.1 if half or trainer.args.bf16 else 1e-4
    for array, expected in zip(predictions, by_hand(trainer, sets[1]), strict=True):
        np.testing.assert_allclose(array.astype("float64"), expected.numpy(), atol=tolerance)
    numbers = [v for log in trainer.state.log_history for v in log.values() if isinstance(v, float)]
    assert all(math.isfinite(value) for value in numbers)
    trainer.save_model(str(trainer.folder / "pair"))
    loaded = MaxMIGModel.from_pretrained(trainer.folder / "pair").state_dict()
    assert equal(state(trainer), loaded)


RESUMED = {
    "lr_scheduler_type", "optim", "optim_args", "gradient_accumulation_steps", "bf16", "max_steps", "full_determinism",
    "train_sampling_strategy", "accelerator_config", "divergence", "prior", "aggregator", "load_best_model_at_end",
    "auto_find_batch_size", "data_seed", "dataloader_drop_last", "dataloader_num_workers", "dataloader_persistent_workers",
    "init",
}  # fmt: skip
# Their state is that of another one of `RESUMED`: a schedule, an optimizer, workers, a configured network.
ALIKE_RESUMED = {
    "lr_scheduler_type",
    "optim_args",
    "dataloader_num_workers",
    "divergence",
    "prior",
    "full_determinism",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, marks=[] if case is WORKS[name][0] and name not in ALIKE_RESUMED else pytest.mark.full, id=f"{name}={case.value}")
        for name, case in CASES
        if name in RESUMED
    ],
)  # fmt: skip
def test_resumed_run_equals_the_whole_one_with_any_value(name, case, trial):
    """State that an option adds is easily left out of a checkpoint."""
    settings = {"save_strategy": "epoch", name: case.value, **case.others}
    whole = trial(**settings)
    whole.train()
    checkpoints = sorted(whole.folder.glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
    again = trial(**{**settings, "output_dir": str(whole.folder)})
    again.train(resume_from_checkpoint=str(checkpoints[0]))
    assert equal(state(whole), state(again))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), NO_BEARING.items())
def test_what_has_no_bearing_changes_nothing(name, value, trial, usual_weights):
    """An option for trackers, scripts or several processes must not affect a training in one process."""
    if not usual_weights:
        usual = trial()
        usual.train()
        usual_weights.update(state(usual))
    trainer = trial(**{name: value})
    trainer.train()
    assert equal(state(trainer), usual_weights)


def text_trainer(make_args, **settings):
    torch.manual_seed(0)
    small = BertConfig(
        vocab_size=40, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16, num_labels=len(CLASSES), hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, classifier_dropout=0.0,
    )  # fmt: skip
    pair = MaxMIGModel.from_classifier(
        BertForSequenceClassification(small),
        annotators=ANNOTATORS,
        id2label=dict(enumerate(CLASSES)),
    )
    rng = np.random.default_rng(0)
    crowd = make_crowd(48)
    words = [rng.integers(40, size=rng.integers(3, 9)).tolist() for _ in range(len(crowd))]
    crowd = crowd.remove_columns("features").add_column("input_ids", words)
    args = make_args(num_train_epochs=1, init="keep", name_classes=False, **settings)
    return MaxMIGTrainer(model=pair, args=args, train_dataset=crowd, data_collator=padded(pair))


def padded(pair):
    """Pad the words as a tokenizer does."""

    def collate(rows):
        width = max(len(row["input_ids"]) for row in rows)
        votes = max(len(row["annotators"]) for row in rows)

        def table(name, width, value):
            return torch.tensor([row[name] + [value] * (width - len(row[name])) for row in rows])

        words = table("input_ids", width, -1)
        return {
            "input_ids": words.clamp(min=0),
            "attention_mask": (words >= 0).long(),
            "annotators": table("annotators", votes, -1),
            "annotations": table("annotations", votes, -1),
        }

    return collate


@pytest.mark.slow
def test_text_classifier_has_its_options(make_args, make_model, crowd):
    """These options reach into the classifier, which may silently not be found inside a model."""
    usual = text_trainer(make_args)
    usual.train()
    again = text_trainer(
        make_args,
        activation_checkpointing=True,
        activation_checkpointing_kwargs={"use_reentrant": False},
    )
    again.train()
    assert again.crowd_model.classifier.is_activation_checkpointing
    for name, tensor in state(again).items():
        torch.testing.assert_close(tensor, state(usual)[name], atol=1e-6, rtol=0)
    with pytest.warns(FutureWarning, match="is deprecated"):
        old = make_args(
            gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    assert (old.activation_checkpointing, old.activation_checkpointing_kwargs) == (
        True,
        {"use_reentrant": False},
    )
    noisy = text_trainer(make_args, neftune_noise_alpha=5.0)
    noisy.train()
    assert not equal(state(noisy), state(usual))
    counted = text_trainer(make_args, include_num_input_tokens_seen="non_padding")
    counted.train()
    words = sum(map(len, counted.train_dataset["input_ids"]))
    assert counted.state.num_input_tokens_seen == words
    # Other models have no words, and cannot recompute their activations.
    for name, value in (("neftune_noise_alpha", 5.0), ("activation_checkpointing", True)):
        with pytest.raises(ValueError, match=f"`{name}` must be left out for HeadClassifier"):
            MaxMIGTrainer(model=make_model(), args=make_args(**{name: value}), train_dataset=crowd)


@pytest.mark.slow
def test_noise_is_added_once_in_short_trainings_too(make_args):
    """A short training copies the model, including the noise that was already added."""
    seen = []

    class Looks(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **kwargs):
            seen.append(len(model.get_input_embeddings()._forward_hooks))

    class Short(MaxMIGTrainer):
        def short_trainer(self, *args, **kwargs):
            short = super().short_trainer(*args, **kwargs)
            short.add_callback(Looks())
            return short

    plain = text_trainer(make_args, neftune_noise_alpha=5.0)
    own = plain.data_collator

    def collate(rows):
        shares = [row["crowd_posterior"] for row in rows if "crowd_posterior" in row]
        return own(rows) | (
            {"crowd_posterior": torch.from_numpy(np.array(shares))} if shares else {}
        )

    args = make_args(neftune_noise_alpha=5.0, init=None, search_rate=True, num_train_epochs=1)
    settings = {"model": plain.crowd_model, "args": args, "train_dataset": plain.train_dataset}
    trainer = Short(**settings, data_collator=collate, callbacks=[Looks()])
    trainer.train()
    assert len(seen) >= 2  # the warm-up, and the training
    assert set(seen) == {1}


def test_collator_that_drops_what_the_start_learns_from_is_told(make_args):
    """A KeyError in a short training does not say what to do."""
    plain = text_trainer(make_args)
    trainer = MaxMIGTrainer(
        model=plain.crowd_model,
        args=make_args(init=None, num_train_epochs=1),
        train_dataset=plain.train_dataset,
        data_collator=plain.data_collator,
    )
    with pytest.raises(ValueError, match="`data_collator` must pass on `crowd_posterior`"):
        trainer.train()


@pytest.mark.slow
def test_smaller_batch_that_fits_goes_on_from_the_start_that_there_is(crowd, make_model, make_args):
    """A batch that does not fit restarts the training.

    Finding the start a second time would give another start.
    """
    starts = []

    class Large(MaxMIGTrainer):
        def _begin(self):
            starts.append(self._train_batch_size)
            super()._begin()

        def compute_loss(self, model, inputs, *args, **kwargs):
            if len(inputs["annotations"]) > 8:
                raise RuntimeError("CUDA out of memory.")
            return super().compute_loss(model, inputs, *args, **kwargs)

    trainer = Large(
        model=make_model(), args=make_args(auto_find_batch_size=True), train_dataset=crowd
    )
    trainer.train()
    assert starts == [16]
    assert trainer.state.global_step == 2 * math.ceil(len(crowd) / trainer._train_batch_size)


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({}, "min"),
        ({"metric_for_best_model": "loss"}, "min"),
        ({"metric_for_best_model": "gain"}, "max"),
        ({"metric_for_best_model": "gain", "lr_scheduler_kwargs": {"mode": "min"}}, "min"),
    ],
)
def test_schedule_by_a_metric_knows_which_way_is_better(
    settings, mode, crowd, make_model, make_args
):
    """PyTorch takes lower for better by default, so a rising gain lowered the rate each epoch."""
    args = make_args(
        lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="epoch", aggregator_warmup_ratio=0.0, **settings
    )  # fmt: skip
    given = args.lr_scheduler_kwargs
    trainer = MaxMIGTrainer(model=make_model(), args=args, train_dataset=crowd, eval_dataset=crowd)
    trainer.create_optimizer()
    scheduler = trainer.create_scheduler(8)
    assert (scheduler.mode, scheduler.threshold_mode) == (mode, "abs")
    assert args.lr_scheduler_kwargs == given


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"per_device_train_batch_size": 1}, "must be 2 or more for Max-MIG, got 1"),
        ({"metric_for_best_model": "acuracy"}, "`metric_for_best_model` must be one of gain"),
        (
            {"train_sampling_strategy": "group_by_length", "length_column_name": "lenght"},
            "`length_column_name` must be a column of the training set",
        ),
    ],
)
def test_what_data_and_model_do_not_allow_is_refused_before_the_search(
    settings, message, crowd, make_model, make_args, monkeypatch
):
    """Otherwise the error would come at the first evaluation, or never."""
    monkeypatch.setattr(MaxMIGTrainer, "_begin", lambda self: pytest.fail("too late"))
    trainer = MaxMIGTrainer(
        model=make_model(),
        args=make_args(eval_strategy="epoch", **settings),
        train_dataset=crowd,
        eval_dataset=crowd,
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer.train()


def test_metric_that_the_data_do_not_have_is_told(crowd, make_model, make_args):
    """Without gold labels there is no accuracy, which a KeyError does not explain."""
    blind = crowd.remove_columns("label")
    args = make_args(eval_strategy="epoch", metric_for_best_model="accuracy")
    trainer = MaxMIGTrainer(model=make_model(), args=args, train_dataset=blind, eval_dataset=blind)
    with pytest.raises(
        ValueError, match="must be a metric of the evaluation, got 'accuracy': it has gain"
    ):
        trainer.train()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
def test_options_of_the_hub_reach_it(hub, ann, crowd, make_model, make_args):
    """They only matter when pushing. If one got lost on the way, a private model would be public."""
    trainer = MaxMIGTrainer(
        model=make_model(),
        args=make_args(
            push_to_hub=True, hub_model_id="org/pair", hub_token=ann, hub_private_repo=True,
            hub_strategy="every_save", hub_always_push=True, hub_revision="trial", save_strategy="epoch",
        ),
        train_dataset=crowd,
    )  # fmt: skip
    trainer.train()
    trainer.push_to_hub()
    api = HfApi(endpoint=hub.endpoint, token=ann)
    assert api.repo_info("org/pair").private
    assert "model.safetensors" in api.list_repo_files("org/pair", revision="trial")
    assert "model.safetensors" not in api.list_repo_files("org/pair")
