"""MaxMIGTrainingArguments: defaults, presets, and what cannot be combined with votes."""

import pytest
from transformers import HfArgumentParser

from hf_maxmig import MaxMIGTrainingArguments
from hf_maxmig.model.aggregators import AGGREGATORS
from hf_maxmig.training.training_args import PAPER_PRESETS


def make(tmp_path, **fields):
    return MaxMIGTrainingArguments(
        output_dir=str(tmp_path), **{"report_to": "none", "use_cpu": True, **fields}
    )


def test_aggregator_rate_is_searched_for_unless_given(tmp_path):
    """This is the setting that every user of the method had to tune."""
    assert make(tmp_path).searches_rate
    assert not make(tmp_path, search_rate=False).searches_rate
    assert not make(tmp_path, aggregator_learning_rate=7e-2).searches_rate
    for preset in PAPER_PRESETS:
        assert not make(tmp_path, preset=preset).searches_rate


@pytest.mark.parametrize(
    ("items", "epochs"), [(10, 100), (1000, 96), (4800, 20), (20_000, 5), (1_000_000, 3), (None, 3)]
)
def test_few_items_are_seen_more_often(tmp_path, items, epochs):
    """Three epochs of a thousand items are 48 steps, in which no class forms; a hundred of a million take months."""
    assert make(tmp_path).epochs_for(items) == epochs


def test_epochs_count_the_whole_batch(tmp_path):
    """Accumulated batches form one step."""
    args = make(tmp_path, per_device_train_batch_size=16, gradient_accumulation_steps=8)
    assert args.epochs_for(19_200) == 10


def test_defaults_are_those_that_training_from_crowds_needs(tmp_path):
    """Trainer's own defaults would drop the columns, hide NaN and select by a loss."""
    args = make(tmp_path, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True)
    assert (args.remove_unused_columns, args.label_names, args.logging_nan_inf_filter) == (
        False,
        ["labels"],
        False,
    )
    assert (args.metric_for_best_model, args.greater_is_better) == ("gain", True)


@pytest.mark.parametrize("preset", PAPER_PRESETS)
def test_preset_is_the_papers_protocol(preset, tmp_path):
    """Adam at the paper's rates, from equation 2 at full strength, without schedule, clipping or decay."""
    args = make(tmp_path, preset=preset)
    rate, batch = {"paper_cifar10": (1e-3, 64), "paper_labelme": (1e-4, 64)}.get(preset, (1e-4, 16))
    assert (args.learning_rate, args.aggregator_learning_rate) == (rate, 1e-4)
    assert args.per_device_train_batch_size == batch
    assert (args.init, args.init_strength, args.aggregator_warmup_ratio) == ("vote_share", 1.0, 0.0)
    assert (args.weight_decay, args.max_grad_norm, args.lr_scheduler_type) == (0.0, 0.0, "constant")
    assert not args.select_by_gain
    assert args.prior == (
        "learned" if preset in ("paper_dogs_vs_cats", "paper_luna16") else "uniform"
    )


def test_preset_gives_way_to_what_is_given(tmp_path):
    """A number that the user sets must take precedence."""
    args = make(tmp_path, preset="paper_labelme", num_train_epochs=2, learning_rate=5e-4)
    assert (args.num_train_epochs, args.learning_rate, args.aggregator_learning_rate) == (
        2,
        5e-4,
        1e-4,
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"preset": "paper"}, "`preset` must be one of paper_labelme"),
        (
            {"aggregator_learning_rate": 0.0},
            "`aggregator_learning_rate` must be positive and finite, got 0.0",
        ),
        ({"smoothing": -1.0}, "`smoothing` must be positive"),
        ({"init_strength": 0.0}, "`init_strength` must be positive"),
        ({"aggregator_warmup_ratio": 1.5}, "must lie in 0..1, got 1.5"),
        ({"remove_unused_columns": True}, "`remove_unused_columns` must be False"),
        ({"prediction_loss_only": True}, "`prediction_loss_only` must be False"),
        ({"batch_eval_metrics": True}, "`batch_eval_metrics` must be False"),
        ({"label_smoothing_factor": 0.1}, "`label_smoothing_factor` must be 0.0"),
    ],
)
def test_arguments_refuse(fields, message, tmp_path):
    """An option that cannot take effect must not be ignored."""
    with pytest.raises(ValueError, match=message):
        make(tmp_path, **fields)


def test_prior_reads_names_and_numbers(tmp_path):
    """The command line passes only strings."""
    assert make(tmp_path, prior="learned").prior_value == "learned"
    assert make(tmp_path, prior="0.8,0.2").prior_value == [0.8, 0.2]
    with pytest.raises(ValueError, match="numbers separated by commas, got '0.8,x'"):
        assert make(tmp_path, prior="0.8,x").prior_value


@pytest.mark.parametrize("name", AGGREGATORS)
def test_every_aggregator_can_be_asked_for_on_the_command_line(name, tmp_path):
    """An aggregator that the config knows but the flag does not could not be used from the recipes."""
    parser = HfArgumentParser(MaxMIGTrainingArguments)
    given = ["--output_dir", str(tmp_path), "--use_cpu", "True", "--report_to", "none"]
    (args,) = parser.parse_args_into_dataclasses([*given, "--aggregator", name])
    assert args.aggregator == name
    with pytest.raises(SystemExit):
        parser.parse_args_into_dataclasses([*given, "--aggregator", "low_rank"])


def test_every_field_of_ours_has_help_and_parses(tmp_path):
    """Flags are made from the fields.

    One without help, or of a type that argparse cannot read, breaks the recipes.
    """
    parser = HfArgumentParser(MaxMIGTrainingArguments)
    (args,) = parser.parse_args_into_dataclasses(
        ["--output_dir", str(tmp_path), "--divergence", "pearson", "--aggregator_learning_rate", "1e-2",
         "--no_gather_across_devices", "--init", "keep", "--use_cpu", "True", "--report_to", "none"]
    )  # fmt: skip
    assert (args.divergence, args.aggregator_learning_rate, args.gather_across_devices) == (
        "pearson",
        0.01,
        False,
    )
    for name, field in MaxMIGTrainingArguments.__dataclass_fields__.items():
        if name in MaxMIGTrainingArguments.__annotations__:
            assert field.metadata.get("help"), name
