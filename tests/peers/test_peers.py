"""The contract of every crowd method: what the trainer and the Hub rely on, whichever it is."""

import copy
import math

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    TrainerCallback,
)

from hf_maxmig import CrowdCollator, CrowdTrainer, thin_votes
from hf_maxmig.data.collator import crowd_batches
from hf_maxmig.peers import PEERS, AggregatedModel, ConfusionModel, DoctorNetModel, peer
from hf_maxmig.peers.annotator_matrices import MatricesModel
from tests.networks import small_head
from tests.weights import assert_same, state
from tests.worlds import ANNOTATORS, CLASSES, InOrder, make_crowd, random_votes

METHODS = [name for name in PEERS if name != "kos"]  # KOS needs two classes, see test_agreement
NEEDS_CROWD_KIT = {
    name for name, (_, fields) in PEERS.items() if "algorithm" in fields
}  # the optional extra
JOINT = [name for name in METHODS if name not in NEEDS_CROWD_KIT]


# Of the rows that share a class, the ones that represent it in CI: by default the first.
STAND_IN = {
    AggregatedModel: ["dawid_skene", "mace"],  # one of them starts at random
    ConfusionModel: ["geo_f", "geo_w"],  # one adds a term of the batch, one of all matrices
    DoctorNetModel: ["doctor_net_weighted"],  # it covers everything that the other has
}
FURTHER = {
    name
    for name, (kind, _) in PEERS.items()
    if name not in STAND_IN.get(kind, [next(n for n in PEERS if PEERS[n][0] is kind)])
}
# `conal` stands for those with matrices and a network on the features, `annot_mix` for those that
# normalise over votes.
FURTHER |= {"crowd_ar", "madl"}
# Their loss has a term over the whole batch, normalises over it, or draws partners in it, so the
# mean of two halves differs.
OF_A_BATCH = {"geo_f", "coin_net", "annot_mix", "madl"}
# Its matrices depend on the item: on 90 items they explain part of what the classifier should.
LEAST_ACCURACY = {"madl": 0.8}


def methods(names=METHODS, further_in_full=False):
    """Parametrise over rivals; the label-only ones run for seconds and need crowd-kit.

    Args:
        names: of the rivals.
        further_in_full: of the rows that share a class, mark all `full` but those that stand for it.
    """
    absent = pytest.mark.skipif(not has_crowd_kit(), reason="no crowd-kit")
    extra = {name: [absent] if name in NEEDS_CROWD_KIT else [] for name in names}
    for name in NEEDS_CROWD_KIT & extra.keys() - {"wawa", "mmsr"}:
        extra[name].append(pytest.mark.slow)
    for name in FURTHER & extra.keys() if further_in_full else ():
        extra[name].append(pytest.mark.full)
    return pytest.mark.parametrize("name", [pytest.param(n, marks=extra[n]) for n in names])


def has_crowd_kit():
    try:
        import crowdkit  # noqa: F401
    except ImportError:
        return False
    return True


FEWER_ROUNDS = {
    "mace": {"n_restarts": 2, "n_iter": 8},
    "glad": {"n_iter": 2, "m_step_max_iter": 3},
    "dawid_skene": {"n_iter": 5},
    "one_coin_dawid_skene": {"n_iter": 5},
    "zero_based_skill": {"n_iter": 5},
}


def make_peer(name, dropout=0.0, seed=0, **fields):
    if name in FEWER_ROUNDS:
        fields["algorithm_options"] = FEWER_ROUNDS[name]
    if name == "crowdlab":
        fields["folds"] = 2
    return peer(name, small_head(dropout=dropout, seed=seed), annotators=ANNOTATORS, **fields)


def train(name, dataset, args, trainer_class=CrowdTrainer, **kwargs):
    trainer = trainer_class(
        model=make_peer(name, **kwargs), args=args, train_dataset=dataset, eval_dataset=dataset
    )
    trainer.train()
    return trainer


def started(name, who, said, num_annotators=4, num_classes=3, seed=0):
    """Return a model in training mode that is initialised on these votes, and the batch for its loss."""
    head = small_head(seed=seed, classes=[f"class {c}" for c in range(num_classes)])
    model = peer(name, head, num_annotators=num_annotators).train()
    model.initialize_crowd([(who, said)])
    return model


def batch_of_votes(who, said, num_classes=3):
    features = torch.randn(len(who), 5, generator=torch.Generator().manual_seed(3))
    share = torch.rand(len(who), num_classes, generator=torch.Generator().manual_seed(4))
    labelled = ((who >= 0) & (said >= 0)).any(dim=1, keepdim=True)
    return {
        "features": features,
        "annotators": who,
        "annotations": said,
        # Added by `prepare` for the methods that need it; zeros where there are no labels.
        "crowd_posterior": share / share.sum(dim=1, keepdim=True) * labelled,
        "labels": torch.where(labelled[:, 0], torch.arange(len(who)) % num_classes, -100),
    }


def loss_of(model, batch):
    torch.manual_seed(0)  # of dropout, and of partners that a method draws
    outputs = model(**{n: t for n, t in batch.items() if n != "crowd_posterior"})
    return model.crowd_loss(outputs, batch)


def gradients(model, batch):
    loss, empty = loss_of(model, batch)
    assert not empty
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return loss.detach(), dict(zip(trained, grads, strict=True))


def test_every_row_is_tested_and_says_what_it_is():
    """A rival without a name or a publication cannot appear in a table."""
    kinds = {model_class for model_class, _ in PEERS.values()}
    assert len({c.config_class.model_type for c in kinds}) == len(kinds)
    for name in METHODS:
        model = make_peer(name)
        assert model.method
        assert model.reference
        assert model.config.model_type.startswith("maxmig_")


def test_unknown_rival_is_refused_with_the_list():
    """A misspelt name must not fall back to another method."""
    with pytest.raises(ValueError, match=r"must be one of majority_vote.*got 'aggnett'"):
        peer("aggnett", small_head(), num_annotators=4)


@methods()
def test_training_learns_the_classes_from_the_crowd(name, crowd, make_args):
    """Training could run without errors and learn nothing."""
    logged = make_args(num_train_epochs=15, logging_strategy="epoch")
    trainer = CrowdTrainer(model=make_peer(name), args=logged, train_dataset=crowd)
    held_out = make_crowd(seed=1)
    before = trainer.evaluate(held_out)["eval_accuracy"]
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert before < 0.7
    assert trainer.evaluate(held_out)["eval_accuracy"] > LEAST_ACCURACY.get(name, 0.9)
    assert losses[-1] < losses[0]
    assert all("gain" not in entry for entry in trainer.state.log_history if "loss" in entry)


@methods(further_in_full=True)
def test_saved_model_comes_back_through_both_auto_classes(name, crowd, make_args, tmp_path):
    """A method whose state is not in the checkpoint would predict something else after loading."""
    trainer = train(name, crowd, make_args(num_train_epochs=2))
    batch = trainer.data_collator([crowd[i] for i in range(20)])
    batch.pop("labels")
    model = trainer.crowd_model.eval()
    first = model(**batch)
    model.save_pretrained(tmp_path / "saved")
    assert not list((tmp_path / "saved").glob("*.py"))
    for auto_class in (AutoModel, AutoModelForImageClassification):
        again = auto_class.from_pretrained(tmp_path / "saved")
        assert type(again) is type(model)
        assert_same(state(again), state(model))
        trained = {n for n, p in again.named_parameters() if p.requires_grad}
        assert trained == {n for n, p in model.named_parameters() if p.requires_grad}
        second = again(**batch)
        assert first.keys() == second.keys()
        for key in first:
            torch.testing.assert_close(second[key], first[key], rtol=0, atol=1e-6)


@methods(further_in_full=True)
def test_without_annotations_it_still_classifies(name, crowd, make_args):
    """New pictures come without votes, so the prediction must be the classifier's."""
    trainer = train(name, crowd, make_args(num_train_epochs=2))
    posteriors = trainer.predict(crowd).predictions
    bare = trainer.predict(crowd.select_columns("features")).predictions
    np.testing.assert_allclose(bare[0], posteriors[0], atol=1e-6)
    np.testing.assert_allclose(bare[2], bare[0], atol=1e-6)
    assert all(posterior.shape == (len(crowd), 3) for posterior in (*posteriors, *bare))
    metrics = trainer.evaluate(crowd)
    has_g = hasattr(trainer.crowd_model, "aggregator")
    assert ("eval_gain" in metrics) == has_g == ("eval_forecast_accuracy" in metrics)
    assert "eval_accuracy" in metrics


@pytest.mark.slow
@methods(further_in_full=True)
def test_gold_labels_change_training_only_of_true_labels(name, crowd, make_args):
    """This is the one leak that would make every comparison worthless; only the ceiling may use gold labels."""
    wrong = crowd.map(lambda row: {"label": (row["label"] + 1) % 3}, load_from_cache_file=False)
    first, second = (
        state(train(name, dataset, make_args(num_train_epochs=2)).crowd_model)
        for dataset in (crowd, wrong)
    )
    if name == "true_labels":
        assert any(not torch.equal(first[n], second[n]) for n in first)
        with pytest.raises(ValueError, match="must have `labels`"):
            train(name, crowd.remove_columns("label"), make_args(max_steps=1))
    else:
        assert_same(first, second)
        without = train(name, crowd.remove_columns("label"), make_args(num_train_epochs=2))
        assert_same(first, state(without.crowd_model))


@methods(further_in_full=True)
@pytest.mark.parametrize(
    "votes",
    [{"votes_per_item": 1}, pytest.param({"annotators": 1}, marks=pytest.mark.full)],
    ids=str,
)
def test_one_vote_per_item_and_items_without_votes_are_enough_to_train(name, votes, make_args):
    """Two votes that agree or not are what most methods begin with; with one each, nothing shows who errs."""
    everyone = make_crowd()
    silent = [
        {"annotators": [], "annotations": []} if i % 3 == 0 else {} for i in range(len(everyone))
    ]
    some = everyone.map(lambda row, i: silent[i], with_indices=True, load_from_cache_file=False)
    thin = thin_votes(some, **votes)
    given = [len(row) for row in thin["annotations"]]
    assert (min(given), max(given)) == (0, 1)
    names = thin.features["annotators"].feature.names
    fields = {"algorithm_options": FEWER_ROUNDS[name]} if name in FEWER_ROUNDS else {}
    model = peer(name, small_head(), annotators=names, **fields)
    trainer = CrowdTrainer(model=model, args=make_args(num_train_epochs=2), train_dataset=thin)
    before = state(trainer.crowd_model)
    trainer.train()
    after = state(trainer.crowd_model)
    assert all(torch.isfinite(tensor).all() for tensor in after.values())
    assert any(not torch.equal(before[key], after[key]) for key in before)
    for log_posterior in trainer.predict(thin).predictions:
        assert np.allclose(np.exp(log_posterior).sum(axis=1), 1, atol=1e-4)


@methods()
@pytest.mark.parametrize(("num_items", "num_annotators", "num_classes"), [(7, 4, 3), (5, 3, 6)])
def test_padding_and_unlabelled_items_change_nothing(name, num_items, num_annotators, num_classes):
    """Padding read as annotator or class -1 would be the last one; an unlabelled item must not count."""
    who, said = random_votes(num_items, num_annotators, num_classes)
    assert (said[0] == -1).all()
    model = started(name, who, said, num_annotators, num_classes)
    batch = batch_of_votes(who, said, num_classes)
    loss, grads = gradients(model, batch)
    assert torch.isfinite(loss)
    wider = {**batch}
    wider["annotators"] = torch.cat([who, torch.full((num_items, 2), -1)], dim=1)
    # An annotator without an annotation, and an annotation without a known annotator.
    wider["annotations"] = torch.cat([said, torch.tensor([[-1, 1]] * num_items)], dim=1)
    wider["annotators"][:, -2] = 0
    fewer = {n: t[1:] for n, t in batch.items()}
    for other in (wider, fewer):
        other_loss, other_grads = gradients(model, other)
        torch.testing.assert_close(other_loss, loss, rtol=0, atol=1e-6)
        for key, grad in grads.items():
            assert (grad is None) == (other_grads[key] is None)
            if grad is not None:
                torch.testing.assert_close(other_grads[key], grad, rtol=0, atol=1e-6)


@methods(
    [
        "aggnet",
        "mbem",
        "raykar",
        "crowd_layer_vote_share",
        "trace",
        "geo_w",
        "union_net",
        "conal",
        "crowd_ar",
    ]
)
def test_confusion_matrices_are_distributions_over_votes(name):
    """A transposed matrix, or one of logs, also has the shape (M, C, C)."""
    who, said = random_votes(40, 4, 3)
    model = started(name, who, said, 4, 3)
    matrices = model.confusion()
    assert matrices.shape == (4, 3, 3)
    torch.testing.assert_close(matrices.sum(dim=2), torch.ones(4, 3))
    assert not matrices.requires_grad


@methods()
def test_every_trained_parameter_gets_a_gradient(name):
    """DDP fails at the second step if a parameter gets none."""
    who, said = random_votes(12)
    model = started(name, who, said)
    _, grads = gradients(model, batch_of_votes(who, said))
    assert grads
    assert [key for key, grad in grads.items() if grad is None] == []


@methods()
def test_batch_without_labels_is_empty_with_zero_gradient(name):
    """Zero divided by zero would make everything NaN from then on."""
    who, said = random_votes(12)
    model = started(name, who, said)
    batch = {n: t[:1] for n, t in batch_of_votes(who, said).items()}
    loss, empty = loss_of(model, batch)
    assert empty
    assert loss == 0
    loss.backward()
    assert all((p.grad is None) or (p.grad == 0).all() for p in model.parameters())


@methods(further_in_full=True)
def test_permuted_annotators_change_nothing(name, crowd, make_args):
    """The order in which a table lists the annotators is arbitrary."""
    order = torch.tensor([2, 0, 3, 1])
    number = torch.argsort(order).tolist()
    bare = crowd.remove_columns("annotators").cast_column(
        "annotations", crowd.features["annotations"]
    )
    permuted = bare.add_column(
        "annotators", [[number[m] for m in row] for row in crowd["annotators"]]
    )
    plain = bare.add_column("annotators", [list(row) for row in crowd["annotators"]])
    results = []
    for dataset in (plain, permuted):
        options = {"algorithm_options": FEWER_ROUNDS[name]} if name in FEWER_ROUNDS else {}
        model = peer(
            name, small_head(), num_annotators=4, id2label=dict(enumerate(CLASSES)), **options
        )
        if dataset is permuted:  # annotators' random initial vectors move with them
            model.reorder_annotators(order)
        trainer = InOrder(model=model, args=make_args(num_train_epochs=2), train_dataset=dataset)
        trainer.train()
        results.append(trainer.predict(dataset).predictions)
    # MACE and MMSR start at random, annotator by annotator.
    atol = 0.05 if name in ("mace", "mmsr") else 1e-4
    for first, second in zip(*results, strict=True):
        np.testing.assert_allclose(np.exp(first), np.exp(second), atol=atol)


@methods([name for name in JOINT if name != "crowdlab"])  # it needs prepared items
def test_bf16_computes_the_loss_in_float32(name, crowd, make_args):
    """In bfloat16 a loss has three digits, without any error."""
    trainer = train(name, crowd, make_args(bf16=True, max_steps=4))
    model = trainer.crowd_model.train()
    batch = trainer.data_collator([crowd[i] for i in range(24)])
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = trainer.compute_loss(model, batch, return_outputs=True)
    torch.manual_seed(0)
    exact, _ = trainer.compute_loss(model, batch, return_outputs=True)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.02)
    half = make_peer(name).to(torch.bfloat16)
    kept = {n for n, p in half.state_dict().items() if p.dtype == torch.float32}
    crowds_own = half._keep_in_fp32_modules_strict or ()
    assert kept == {n for n in half.state_dict() if n.split(".")[0] in crowds_own}


@pytest.mark.slow
@methods(JOINT, further_in_full=True)
def test_resumed_run_equals_uninterrupted(name, crowd, make_args, tmp_path):
    """State could be kept outside the checkpoint, or a step between epochs be taken twice or never."""
    whole = train(
        name, crowd, make_args(num_train_epochs=4, save_strategy="steps", save_steps=3), dropout=0.5
    )
    assert len(whole.get_train_dataloader()) == 6
    for step in (9, 12):  # in the middle of an epoch, and at its end
        again = CrowdTrainer(
            model=make_peer(name, dropout=0.5, seed=5),
            args=make_args(num_train_epochs=4),
            train_dataset=crowd,
        )
        again.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-{step}")
        assert_same(state(whole.crowd_model), state(again.crowd_model))


@methods([name for name in JOINT if name not in OF_A_BATCH])
def test_accumulated_steps_take_the_mean_of_their_losses(name, crowd, make_args):
    """Trainer could scale the loss again, or a state be counted once per micro-batch."""
    rows = crowd.filter(lambda row: len(row["annotations"]) == 2).select(range(16))
    settings = {
        "optim": "sgd", "learning_rate": 0.1, "aggregator_learning_rate": 0.1, "aggregator_warmup_ratio": 0.0,
        "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "max_steps": 2,
    }  # fmt: skip
    states = [
        state(
            train(
                name,
                rows,
                make_args(
                    per_device_train_batch_size=16 // parts,
                    gradient_accumulation_steps=parts,
                    **settings,
                ),
                trainer_class=InOrder,
            ).crowd_model
        )
        for parts in (1, 2)
    ]
    assert_same(*states, atol=1e-5)


@methods(["aggnet", "crowd_layer", "doctor_net", "majority_vote"])
def test_loss_on_request_is_the_crowd_loss(name):
    """A training loop without a trainer must train the method, not Max-MIG."""
    who, said = random_votes(12)
    model = started(name, who, said)
    batch = batch_of_votes(who, said)
    expected, _ = loss_of(model, batch)
    batch.pop("crowd_posterior")
    torch.testing.assert_close(model(**batch, return_loss=True).loss, expected)
    with pytest.raises(ValueError, match="must be computed from"):
        model(features=batch["features"], return_loss=True)
    with pytest.raises(ValueError, match="at least 1 item"):
        model(**{n: t[:1] for n, t in batch.items()}, return_loss=True)


@methods(["aggnet", "mbem", "crowd_layer", "majority_vote", "doctor_net"])
def test_streamed_data_set_trains(name, crowd, make_args):
    """A stream has no length, but the end of an epoch must still be noticed."""
    trainer = train(name, crowd.to_iterable_dataset(), make_args(max_steps=18))
    assert trainer.state.global_step == 18
    assert trainer.evaluate(make_crowd(seed=1))["eval_accuracy"] > 0.6


@methods(["aggnet", "doctor_net", "crowd_layer", "spee_lfc", "geo_f", "coin_net"])
def test_cost_of_a_step_does_not_grow_with_the_annotators(name):
    """A dense tensor over a hundred thousand annotators would take hours and gigabytes."""
    who, said = random_votes(12)
    shapes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and "view" not in str(func):
                shapes.append((math.prod(out.shape), str(func)))
            return out

    for num_annotators in (50, 5000):
        model = started(name, who, said, num_annotators=num_annotators)
        shapes.clear()
        with Watch():
            loss_of(model, batch_of_votes(who, said))
        # Views of the table (transposed, detached) are free; computed tensors must be small.
        made = [size for size, func in shapes if not any(f in func for f in FREE)]
        assert made
        assert max(made) < 12 * 3 * 3 * 17 + 1, num_annotators


FREE = ("transpose", "detach", "reshape", "alias", "clone")


@pytest.mark.parametrize("name", ["crowd_layer", "true_labels"])
def test_card_says_which_method_it_was(name, crowd, make_args, tmp_path):
    """A rival's card must not claim Max-MIG, nor the ceiling's card that no gold label was used."""
    trainer = train(name, crowd, make_args(max_steps=2))
    trainer.create_model_card(model_name="org/rival")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert "trained together by Max-MIG" not in card.text
    assert "import hf_maxmig.peers" in card.text
    assert trainer.crowd_model.method in card.text
    assert "{{" not in card.content
    assert "{%" not in card.content
    assert ("no gold\nlabel reached the training" in card.text) == (name == "crowd_layer")


def test_epoch_ends_once_and_before_anything_is_saved(crowd, make_args):
    """A checkpoint without the M-step of its own epoch would resume to another run."""
    calls = []

    class Spy(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            calls.append(("saved", state.global_step))

    trainer = CrowdTrainer(
        model=make_peer("aggnet"),
        args=make_args(num_train_epochs=2, save_strategy="steps", save_steps=6),
        train_dataset=crowd,
        callbacks=[Spy()],
    )
    trainer.crowd_model.end_epoch = lambda outputs, progress: calls.append(("ended", progress))
    trainer.train()
    assert calls == [("ended", 0.5), ("saved", 6), ("ended", 1.0), ("saved", 12)]


@pytest.mark.slow
@methods(["aggnet", "crowd_layer", "doctor_net"])
def test_hub_classifiers_go_in(name):
    """Anything that assumes our own heads would show here."""
    torch.manual_seed(0)
    resnet = ResNetForImageClassification(
        ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", num_labels=3)
    )  # fmt: skip
    before = copy.deepcopy(resnet.state_dict())
    model = peer(name, resnet, num_annotators=4).train()
    assert_same(before, model.classifier.state_dict())
    who, said = random_votes(6)
    model.initialize_crowd([(who, said)])
    pictures = torch.randn(6, 3, 32, 32)
    model(pixel_values=pictures, annotators=who, annotations=said, return_loss=True).loss.backward()
    assert model.eval()(pixel_values=pictures).logits.shape == (6, 3)


@methods(JOINT)
def test_each_starts_as_its_authors_start_it(name, crowd, make_args):
    """Max-MIG's own start, and the search for its rate, are no part of another method."""
    args = make_args(init=None, search_rate=True)
    trainer = CrowdTrainer(model=make_peer(name), args=args, train_dataset=crowd)
    trainer._begin()
    expected = make_peer(name)
    expected.initialize_crowd(trainer.crowd_of(crowd), args.smoothing)
    assert_same(state(expected), state(trainer.crowd_model))
    assert not trainer.start.tried
    listed = trainer.listed_arguments()
    assert listed["init"] == "vote_share"
    trained = any(True for _ in trainer.crowd_model.crowd_parameters())
    assert ("aggregator_learning_rate" in listed) == trained
    assert not {"init_strength", "aggregator_warmup_ratio"} & listed.keys()


@methods(JOINT)
def test_one_rate_for_all_unless_another_is_given(name, crowd, make_args):
    """Max-MIG's tenfold rate with its warm-up costs Crowd Layer two points on digits of low expertise."""
    for given in (None, 0.5):
        args = make_args(
            aggregator_learning_rate=given, learning_rate=0.02, aggregator_warmup_ratio=0.3
        )
        trainer = CrowdTrainer(model=make_peer(name), args=args, train_dataset=crowd)
        trainer.create_optimizer_and_scheduler(num_training_steps=50)
        own = {id(p) for p in trainer.crowd_model.crowd_parameters()}
        for group in trainer.optimizer.param_groups:
            for parameter in group["params"]:
                expected = 0.02 if given is None or id(parameter) not in own else given
                assert group["lr"] == pytest.approx(expected), given


@methods(JOINT)
def test_start_from_information_is_refused(name, crowd, make_args):
    """It would be ignored, or start an EM whose matrices are not probabilities."""
    model = make_peer(name)
    trainer = CrowdTrainer(model=model, args=make_args(init="information"), train_dataset=crowd)
    with pytest.raises(ValueError, match=f"'vote_share' or 'keep' for {model.method}, got"):
        trainer.train()


def test_methods_with_a_matrix_start_from_equation_2(crowd):
    """Starting from zero, an EM learns nothing from the votes for a whole epoch."""
    reference = make_peer("aggnet")
    reference.initialize_crowd(crowd_batches(crowd, CrowdCollator(4, 3)), scale=0.5)
    torch.testing.assert_close(reference.aggregator.weight.exp().sum(dim=2), torch.ones(4, 3))
    for name in ("mbem", "raykar"):
        model = make_peer(name)
        model.initialize_crowd(crowd_batches(crowd, CrowdCollator(4, 3)))
        torch.testing.assert_close(model.aggregator.table, reference.aggregator.table)
    layer = make_peer("crowd_layer_vote_share")
    layer.initialize_crowd(crowd_batches(crowd, CrowdCollator(4, 3)))
    torch.testing.assert_close(layer.confusion(), reference.confusion())
    torch.testing.assert_close(layer.matrices.table.detach(), reference.aggregator.table)
    for name in JOINT:
        if issubclass(PEERS[name][0], MatricesModel):
            model = make_peer(name, start="vote_share")
            model.initialize_crowd(crowd_batches(crowd, CrowdCollator(4, 3)))
            torch.testing.assert_close(model.matrices.table.detach(), reference.aggregator.table)
