"""Several devices must take the same step as one process with the same global batch."""

import functools
import json
import logging
import re
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from hf_maxmig import MaxMIGModel, MaxMIGTrainer, MaxMIGTrainingArguments
from hf_maxmig.model.annotator_names import hashed_names
from hf_maxmig.training.distributed import WholeBatches, gather_with_gradient, whole_parameters
from tests import several_processes
from tests.children import together
from tests.networks import small_head, small_vit
from tests.several_processes import GLOBAL_BATCH, ITEMS, RUNS
from tests.worlds import CLASSES, make_crowd

# A launch takes seconds, so each one tests a lot; the one with four processes covers what may
# depend on their number.
INEXACT = ("bf16", "each_alone")
LAUNCHES = {2: [name for name in RUNS if name != "each"], 4: ["kl", "bf16", "stream"]}
two_or_four = pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.full)])


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """Return the outcome of each process, by number of processes."""

    @functools.cache
    def by_number(processes, fsdp=False):
        out = tmp_path_factory.mktemp("several") / "outcome"
        runs = [] if fsdp else LAUNCHES[processes]
        together(out.parent, processes, several_processes.as_one_of_several, str(out), runs, fsdp)
        outcomes = [torch.load(f"{out}.{rank}") for rank in range(processes)]
        return outcomes, out.with_name("outcome.saved")

    return by_number


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """Return the outcome of a run on one process."""

    @functools.cache
    def by_name(name):
        return several_processes.train(tmp_path_factory.mktemp("one") / "outcome", name)

    return by_name


def largest_gap(first, second):
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


def assert_same_training(several, one, parameters=1e-6, posteriors=1e-5):
    """Compare two trainings; the parameters must have moved by far more than the tolerance."""
    assert several["steps"] == one["steps"] > 0
    assert largest_gap(several["parameters"], one["parameters"]) < parameters
    start = small_head().state_dict()
    moved = {name: one["parameters"][f"classifier.{name}"] for name in start}
    assert largest_gap(start, moved) > 10 * parameters
    assert one["parameters"]["prior.logits"].std() > 1e-3
    assert_same_outcome(several, one, posteriors)


def assert_same_outcome(several, one, atol):
    """Compare losses, and the predictions of each item, none of which may come twice."""
    assert several["losses"] == pytest.approx(one["losses"], abs=atol)
    assert several["metrics"].keys() == one["metrics"].keys()
    for name in ("eval_gain", "eval_gain_low", "eval_gain_high", "eval_loss"):
        assert several["metrics"][name] == pytest.approx(one["metrics"][name], abs=atol)
    assert several["strength"] == pytest.approx(one["strength"], rel=atol)
    for first, second in zip(one["posteriors"], several["posteriors"], strict=True):
        assert first.shape == second.shape == (ITEMS, len(CLASSES))
        torch.testing.assert_close(first, second, rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "name"),
    [
        pytest.param(n, name, marks=pytest.mark.full if n == 4 else [])
        for n, names in LAUNCHES.items()
        for name in names
        if name not in INEXACT
    ],
)
def test_several_processes_take_the_step_of_one(processes, name, launched, one_process):
    """A missing gradient through the gather, a prior counted twice or a padded item would look almost right."""
    outcomes, _ = launched(processes)
    assert name != "strengthened" or 1.0 < outcomes[0][name]["strength"] < 8.0
    # The result must not depend on compilation either.
    one = one_process("each" if name == "compiled" else name)
    assert_same_training(
        outcomes[0][name], one, parameters=1e-5 if name == "strengthened" else 1e-6
    )
    assert largest_gap(outcomes[-1][name]["parameters"], outcomes[0][name]["parameters"]) == 0.0


@pytest.mark.slow
@two_or_four
def test_several_processes_take_the_step_of_one_in_bf16(processes, launched, one_process):
    """The gain is float32 all the same. What the network rounds is rounded before the average."""
    outcomes, _ = launched(processes)
    one = one_process("bf16")
    assert_same_training(outcomes[0]["bf16"], one, parameters=5e-4, posteriors=2e-2)
    # It must differ from training in float32, or nothing was in bfloat16.
    assert largest_gap(one["parameters"], one_process("each")["parameters"]) > 1e-6


@pytest.mark.slow
@two_or_four
def test_stream_is_resumed_in_its_second_pass_by_several_too(processes, launched):
    """Each process must skip the items that it has seen itself, not those of all."""
    for each in launched(processes)[0]:
        assert largest_gap(each["stream"]["resumed"], each["stream"]["parameters"]) == 0.0


@pytest.mark.slow
def test_gain_of_each_device_alone_is_another_objective(launched, one_process):
    """If both were equal, the tests above would show nothing. The flag must have an effect."""
    outcomes, _ = launched(2)
    one = one_process("kl")
    assert largest_gap(outcomes[0]["each_alone"]["parameters"], one["parameters"]) > 1e-3


@pytest.mark.slow
@two_or_four
def test_bytes_of_a_step_are_as_the_formula_says(processes, launched):
    """An N x N table, a gradient that each process already has, or an exchange of lengths would only be slow."""
    outcomes, _ = launched(processes)
    items, classes = GLOBAL_BATCH // processes, len(CLASSES)
    for each in outcomes:
        assert sum(size for _, size in each["sent"]) == items * (8 * classes + 1)
        assert {collective for collective, _ in each["sent"]} == {"all_gather"}


@pytest.mark.slow
def test_several_processes_stop_together(launched):
    """A process that stops alone leaves the others waiting until they time out."""
    first, second = (each["stopped"] for each in launched(2)[0])
    assert first == second
    assert first.keys() == {True, False}
    for message in first.values():
        assert re.search("(loss|gradient) must be finite, got .* at step [1-9]", message)


@pytest.mark.slow
@two_or_four
def test_several_processes_refuse_what_they_cannot_do(processes, launched):
    """Otherwise training would silently take no step, or count items twice."""
    for each in launched(processes)[0]:
        refused = each["refused"]
        needed = f"a batch of {GLOBAL_BATCH // processes} items on each of {processes}"
        assert needed in refused["too few items"]
        assert "lower `per_device_train_batch_size`" in refused["too few items"]
        assert f"must be evaluated on one device, got {processes}" in refused["stream"]
        assert "at most 2 items on each device" in refused["too many rows"]


@pytest.mark.slow
def test_several_processes_predict_items_in_their_order(launched):
    """Devices hold different items and the last batch is padded, so labels could end up at other items."""
    for each in launched(2)[0]:
        assert len(each["predicted"]) == 6
        for name, (predicted, joined, expected) in each["predicted"].items():
            for found in (predicted, joined):
                assert found.shape == expected.shape, name
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-5, msg=name)


@pytest.fixture(scope="module")
def cross_fitted(launched, tmp_path_factory):
    """Return the outcome of a cross-fitted start on two processes, and on one."""
    one = several_processes.cross_fitted(tmp_path_factory.mktemp("one") / "outcome")
    return [each["cross_fitted"] for each in launched(2)[0]], one


@pytest.mark.slow
def test_several_processes_train_from_one_start(cross_fitted):
    """If each process found its own start, they would train towards different targets."""
    several, one = cross_fitted
    assert [each["searched"] for each in (*several, one)] == [1, 0, 1]
    assert one["found"]["targets"].sum() == pytest.approx(50)
    for each in several:
        assert each["found"].keys() == one["found"].keys()
        for name, expected in one["found"].items():
            found = each["found"][name]
            equal = torch.equal(found, expected) if torch.is_tensor(found) else found == expected
            assert equal, name
        assert torch.equal(each["targets"], one["found"]["targets"])
        assert each["steps"] == one["steps"] > 0
        assert largest_gap(each["parameters"], one["parameters"]) < 1e-6
        assert largest_gap(each["parameters"], each["resumed"]) < 1e-6
        assert_same_outcome(each, one, 1e-5)
    start = small_head().state_dict()
    moved = {name: one["parameters"][f"classifier.{name}"] for name in start}
    assert largest_gap(start, moved) > 1e-3


@pytest.mark.slow
def test_several_processes_predict_the_training_set_out_of_fold(cross_fitted):
    """Predictions must be in order although items are shared.

    The classifier has learned the items, so it must not make them.
    """
    several, one = cross_fitted
    for each in (*several, one):
        torch.testing.assert_close(each["posteriors"][0], each["found"]["log_h"])
        gold = torch.tensor(make_crowd(num_items=ITEMS, unlabelled=20)["label"])
        right = float((each["found"]["log_h"].argmax(dim=1) == gold).float().mean())
        assert each["metrics"]["eval_accuracy"] == pytest.approx(right)
    assert one["found"]["log_h"].std(dim=0).min() > 1e-3


@pytest.mark.slow
def test_features_that_several_processes_share_are_those_of_one(cross_fitted):
    """In another order, votes would meet the features of other items."""
    (first, second), one = cross_fitted
    assert second["features"] is None
    assert one["features"].shape == (ITEMS, 8 + 8)  # what the output layer reads, and the mean
    assert torch.pdist(one["features"]).min() > 1e-3
    torch.testing.assert_close(first["features"], one["features"], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_start_that_the_first_process_cannot_find_is_refused_by_all(cross_fitted):
    """The other processes would wait for it until they time out."""
    several, one = cross_fitted
    for each in (*several, one):
        assert "the votes must name two classes or more, got 1" in each["refused"]


@pytest.mark.slow
def test_gather_takes_uneven_batches(launched):
    """Batches may differ in size. A plain all-gather would hang, or assign rows to the wrong process."""
    whole = torch.arange(10.0).reshape(5, 2) + 1
    first, second = (each["gathers"] for each in launched(2)[0])
    for size in ("None", "4", "6"):
        rows = 4 if size == "None" else int(size)
        expected = torch.zeros(2 * rows, 2)
        expected[:4], expected[rows] = whole[:4], whole[4]
        for outcome in (first, second):
            torch.testing.assert_close(outcome[size]["joined"], expected)
            assert torch.equal(outcome[size]["flags"], expected.any(dim=1))
        # Averaged over the processes, as DDP does, this is the gradient of one loss over all rows.
        torch.testing.assert_close(first[size]["gradient"], 2 * 2 * whole[:4])
        torch.testing.assert_close(second[size]["gradient"], 2 * 2 * whole[4:])


def test_stream_for_several_devices_is_refused_before_training(
    crowd, make_model, make_args, monkeypatch
):
    """Otherwise an evaluation would fail after the first epoch."""
    monkeypatch.setattr(MaxMIGTrainingArguments, "world_size", 2)
    stream = crowd.to_iterable_dataset()
    for dataset in (stream, {"one": crowd, "other": stream}):
        with pytest.raises(ValueError, match="a stream must be evaluated on one device, got 2"):
            MaxMIGTrainer(
                model=make_model(), args=make_args(), train_dataset=crowd, eval_dataset=dataset
            )


def test_devices_that_share_items_are_refused(crowd, make_model, make_args, monkeypatch):
    """Under tensor parallelism each item would come from several devices and be compared with itself."""
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    trainer._check_devices()
    ways = SimpleNamespace(non_data_parallel_size=2)
    monkeypatch.setattr(Accelerator, "parallelism_config", ways, raising=False)
    with pytest.raises(ValueError, match=r"must only divide the items among devices.*\(2 each\)"):
        trainer._check_devices()


def test_fsdp_that_does_nothing_is_told(crowd, make_model, make_args, monkeypatch, caplog):
    """Accelerate ignores the setting silently, so users would wonder why the model still does not fit."""
    monkeypatch.setattr(MaxMIGTrainingArguments, "world_size", 2)
    trainer = MaxMIGTrainer(model=make_model(), args=make_args(), train_dataset=crowd)
    trainer.args.fsdp = True
    logging.getLogger("hf_maxmig").propagate = True
    with caplog.at_level("WARNING"):
        trainer._check_devices()
    assert "`fsdp` is ignored" in caplog.text


def test_gather_in_one_process_is_the_tensor_itself():
    """A copy would take memory, and a detached tensor would lose the gradient."""
    tensor = torch.ones(3, requires_grad=True)
    assert gather_with_gradient(tensor) is tensor
    assert gather_with_gradient(tensor, size=2) is tensor


@pytest.fixture(scope="module")
def spread(launched, tmp_path_factory):
    """Return the outcomes of FSDP on two processes and of one process, with the folders of the saved models."""
    outcomes, saved = launched(2, fsdp=True)
    folder = tmp_path_factory.mktemp("whole")
    one = several_processes.spread(folder / "outcome", folder / "saved")
    return [each["spread"] for each in outcomes], one, saved, folder / "saved"


@pytest.mark.slow
def test_parameters_spread_by_fsdp_train_as_whole_ones(spread):
    """Aggregator and prior are used outside the forward pass, where FSDP holds only parts of them."""
    several, one, *_ = spread
    torch.manual_seed(0)
    start = {f"classifier.{name}": tensor for name, tensor in small_vit().state_dict().items()}
    after = {name: one["whole"]["parameters"][name] for name in start}
    assert one["whole"]["strength"] != 1.0
    assert largest_gap(start, after) > 1e-2
    assert largest_gap(several[0]["whole"]["parameters"], one["whole"]["parameters"]) < 1e-4
    for each in several:
        assert_same_outcome(each["whole"], one["whole"], 3e-4)


@pytest.mark.slow
def test_training_by_fsdp_goes_on_from_a_checkpoint(spread):
    """Optimizer moments could get lost, or parts of them be given to another parameter."""
    several, one, *_ = spread
    for each in (several[0], one):
        assert each["whole"]["steps"] == each["resumed"]["steps"] == 8
        gap = largest_gap(each["whole"]["parameters"], each["resumed"]["parameters"])
        assert gap < 1e-6


@pytest.mark.slow
def test_classes_are_named_where_parameters_are_spread(spread):
    """Rows could be exchanged in a copy that FSDP throws away, or an error could end a long training."""
    several, one, saved, whole = spread
    assert one["renamed"] == [CLASSES[c] for c in (2, 0, 1)]
    for each in several:
        assert each["renamed"] == one["renamed"]
        assert torch.equal(each["order"], one["order"])
    first, second = (MaxMIGModel.from_pretrained(folder).state_dict() for folder in (saved, whole))
    assert largest_gap(first, second) < 1e-4
    for name, rows in (
        ("prior.logits", 0),
        ("classifier.classifier.weight", 0),
        ("aggregator.table", 2),
    ):
        before = one["resumed"]["parameters"][name]
        expected = before.index_select(rows, torch.tensor([2, 0, 1]))
        assert (expected - before).abs().max() > 1e-3
        torch.testing.assert_close(second[name], expected)


@pytest.mark.slow
def test_annotators_are_hashed_where_parameters_are_spread(spread):
    """Rows left in place would reveal whose they are by the order of the names."""
    for folder in spread[2:]:
        plain, hashed, after = (
            MaxMIGModel.from_pretrained(f"{folder}{which}") for which in ("", "-hashed", "-after")
        )
        names = list(plain.config.annotators)
        hashes = hashed_names(names, several_processes.SALT)
        assert hashed.config.annotators == sorted(hashes) != hashes
        order = torch.tensor([hashes.index(one) for one in sorted(hashes)])
        assert torch.equal(hashed.aggregator.table, plain.aggregator.table[order])
        assert not torch.equal(hashed.aggregator.table, plain.aggregator.table)
        assert after.config.annotators == names
        for name, tensor in plain.state_dict().items():
            assert torch.equal(after.state_dict()[name], tensor), name


@pytest.mark.slow
def test_model_trained_by_fsdp_is_saved_as_any_other(spread):
    """FSDP replaces the model's class, so torch's source would be uploaded to the Hub."""
    _, _, saved, whole = spread
    names = [{path.name for path in folder.iterdir()} for folder in (saved, whole)]
    assert names[0] == names[1]
    assert "modeling_maxmig.py" in names[0]
    configs = [json.loads((folder / "config.json").read_text()) for folder in (saved, whole)]
    assert configs[0] == configs[1]
    assert configs[0]["auto_map"]["AutoModel"] == "modeling_maxmig.MaxMIGModel"


def test_whole_parameters_leaves_an_ordinary_model_alone():
    """Every training calls it, with FSDP or without."""
    model = nn.Linear(2, 2)
    before = model.weight
    with whole_parameters(model), torch.no_grad():
        model.weight.fill_(3.0)
    assert model.weight is before
    assert (model.weight == 3.0).all()


class Shuffled(torch.utils.data.IterableDataset):
    """A stream with another order in each epoch."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(range(7))


def test_whole_batches_are_shuffled_as_the_stream_is():
    """If the stream does not learn the epoch, each epoch has the same order."""
    stream = Shuffled()
    batches = WholeBatches(stream, size=3)
    batches.set_epoch(5)
    assert stream.epoch == 5
    assert list(batches) == list(batches) == [0, 1, 2, 3, 4, 5]
    assert not hasattr(batches, "generator")
