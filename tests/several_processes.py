"""Training runs for `test_distributed.py`: the same on one process and on several."""

import contextlib
import os
from functools import partial
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset, concatenate_datasets

from hf_maxmig import MaxMIGModel, MaxMIGTrainingArguments
from hf_maxmig.model.functional import Mixed
from hf_maxmig.training import starting as start_of_one
from hf_maxmig.training.checkpoints import swapped
from hf_maxmig.training.cross_fit import cross_fit
from hf_maxmig.training.distributed import gather_with_gradient
from tests.networks import small_head, small_vit
from tests.worlds import ANNOTATORS, CLASSES, InOrder, make_crowd

GLOBAL_BATCH = 16
# 70 items: four global batches of 16 and six items left over, with which no batch may be padded;
# processes get different numbers of labels.
ITEMS = 70
RUNS = {
    "kl": {"divergence": "kl", "gradient_accumulation_steps": 2},
    "pearson": {"divergence": "pearson"},
    "jensen_shannon": {"divergence": "jensen_shannon"},
    "each": {},
    "ddp_options": {
        "ddp_bucket_cap_mb": 1,
        "ddp_broadcast_buffers": True,
        "ddp_static_graph": True,
        "ddp_timeout": 120,
        "save_on_each_node": True,
        "log_on_each_node": False,
    },
    "strengthened": {},
    "bf16": {"bf16": True},
    "stream": {"max_steps": 10, "save_strategy": "steps", "save_steps": 6},
    "each_alone": {"gather_across_devices": False, "gradient_accumulation_steps": 2},
    "mixup": {"mixup_alpha": 1.0, "gradient_accumulation_steps": 2},
    "gold": {"use_gold_labels": True, "gradient_accumulation_steps": 2},
    "compiled": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
}


SALT = "a salt that nobody is told of"


def make_pictures(**changes):
    """Return the small crowd with a picture of 16 x 16 for each item."""
    crowd = make_crowd(features=3 * 16 * 16, **changes)
    pictures = np.asarray(crowd["features"][:], dtype="float32").reshape(-1, 3, 16, 16)
    column = Dataset.from_dict({"pixel_values": pictures})
    return concatenate_datasets([crowd.remove_columns("features"), column], axis=1)


def make_trainer(
    out, classifier, dataset, divergence="kl", start_from=None, eval_dataset=None, **changes
):
    """Return a trainer whose global batch is the same for any number of processes."""
    world = dist.get_world_size() if dist.is_initialized() else int(os.getenv("WORLD_SIZE", "1"))
    model = MaxMIGModel.from_classifier(
        classifier,
        annotators=ANNOTATORS,
        id2label=dict(enumerate(CLASSES)),
        prior=changes.pop("prior", "learned"),
        divergence=divergence,
    )
    settings = {
        "output_dir": f"{out}.run", "use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no",
        "per_device_train_batch_size": GLOBAL_BATCH // world, "per_device_eval_batch_size": 8, "num_train_epochs": 2,
        "optim": "sgd", "learning_rate": 0.05, "aggregator_learning_rate": 0.5, "max_grad_norm": 0.0,
        "logging_strategy": "epoch", "init": "vote_share",
        "dataloader_drop_last": world == 1,  # several processes drop it by themselves
    }  # fmt: skip
    args = MaxMIGTrainingArguments(**{**settings, **changes})
    return InOrder(
        model=model,
        args=args,
        train_dataset=dataset,
        eval_dataset=eval_dataset,
        start_from=start_from,
    )


def learned(trainer, crowd):
    """Return the outcome of a training."""
    metrics = trainer.evaluate(crowd)
    return {
        "parameters": {n: t.clone() for n, t in trainer.accelerator.get_state_dict(trainer.model).items()},
        "metrics": {k: v for k, v in metrics.items() if "runtime" not in k and "per_second" not in k},
        "posteriors": [torch.from_numpy(p) for p in trainer.predict(crowd).predictions],
        "steps": trainer.state.global_step,
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "strength": trainer.found_strength or 1.0,
    }  # fmt: skip


def neighbours(taught, alpha):
    """Blend each item with its predecessor in a block of four; only the first process draws the right share."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    return Mixed(
        torch.tensor(0.3 + 0.1 * rank), torch.arange(len(taught)).view(-1, 4).roll(1, 1).flatten()
    )


def train(out, name):
    """Train one of `RUNS`."""
    crowd = make_crowd(num_items=ITEMS, unlabelled=20)
    dataset, start = crowd, None
    if name == "stream":
        # With a stream, one process would use the six left-over items.
        whole = ITEMS if dist.is_initialized() else ITEMS // GLOBAL_BATCH * GLOBAL_BATCH
        dataset, start = crowd.select(range(whole)).to_iterable_dataset(), crowd
    held_out = make_crowd(seed=1) if name == "strengthened" else None
    trainer = make_trainer(
        out, small_head(), dataset, start_from=start, eval_dataset=held_out, **RUNS[name]
    )
    with mock.patch("hf_maxmig.training.batch.draw_blends", neighbours):
        trainer.train()
    outcome = learned(trainer, crowd)
    if name == "stream":
        again = make_trainer(out, small_head(), dataset, start_from=start, **RUNS[name])
        again.train(resume_from_checkpoint=f"{out}.run/checkpoint-6")
        outcome["resumed"] = again.crowd_model.state_dict()
    return outcome


def cross_fitted(out):
    """Train from a cross-fitted start, which the first process finds; return what each process has of it."""
    crowd = make_crowd(num_items=ITEMS, unlabelled=20)
    changes = {"init": "cross_fit", "name_classes": False, "prior": "uniform"}
    seen = []

    def spied(features, *args, **kwargs):
        seen.append(features)
        return cross_fit(features, *args, **kwargs)

    with (
        swapped(start_of_one, "network_steps", lambda *_: 8),
        swapped(start_of_one, "cross_fit", spied),
    ):
        saved = {"save_strategy": "steps", "save_steps": 5}
        trainer = make_trainer(out, small_head(), crowd, **changes, **saved)
        trainer.train()
        again = make_trainer(out, small_head(), crowd, **changes, **saved)
        again.train(resume_from_checkpoint=f"{out}.run/checkpoint-5")
        outcome = learned(trainer, crowd) | {
            "found": vars(trainer.start.items),
            "searched": len(seen),
        }
        outcome["resumed"] = {n: t.clone() for n, t in again.crowd_model.state_dict().items()}
        outcome["targets"] = trainer.known._moved[id(trainer.start.items.targets)][1]
        # Features that a network computes, with items shared among the processes.
        torch.manual_seed(0)
        vit = small_vit()
        vit.config.name_or_path = "loaded"
        pictures = make_pictures(num_items=ITEMS, unlabelled=20)
        make_trainer(out, vit, pictures, **changes, max_steps=1).train()
        outcome["features"] = seen[1] if seen else None
        # If no start can be found, all processes refuse.
        alike = crowd.map(lambda row: {"annotations": [0] * len(row["annotations"])})
        try:
            make_trainer(out, small_head(), alike, **changes).train()
        except ValueError as error:
            outcome["refused"] = str(error)
    return outcome


@contextlib.contextmanager
def counted(sent):
    """Record the bytes that each process passes to collectives, apart from those of DDP in C++."""
    plain = {name: getattr(dist, name) for name in ("all_gather", "all_reduce", "broadcast")}

    def note(name, *args, **kwargs):
        tensor = args[1] if name == "all_gather" else args[0]
        sent.append((name, tensor.numel() * tensor.element_size()))
        return plain[name](*args, **kwargs)

    for name in plain:
        setattr(dist, name, partial(note, name))
    try:
        yield
    finally:
        for name, collective in plain.items():
            setattr(dist, name, collective)


def bytes_of_a_step(out):
    """Return the bytes sent in the second step; the first one also sets up DDP."""
    crowd = make_crowd(num_items=ITEMS, unlabelled=20)
    trainer = make_trainer(out, small_head(), crowd, max_steps=2)
    step, sent = trainer.training_step, []

    def training_step(*args, **kwargs):
        sent.clear()
        with counted(sent):
            return step(*args, **kwargs)

    trainer.training_step = training_step
    trainer.train()
    return sent


def predictions(out):
    """Predict items in every training order, and as accelerate may share them; return log h and the expected values."""
    crowd = make_crowd(num_items=37, unlabelled=5)
    crowd = crowd.add_column("length", [(7 * i) % 37 for i in range(37)])
    ways = {
        name: {"train_sampling_strategy": name}
        for name in ("group_by_length", "batch_rebalance", "sequential")
    }
    ways |= {"dispatched": {"accelerator_config": {"dispatch_batches": True}}}
    ways |= {"split": {"accelerator_config": {"split_batches": True}}}
    ways |= {"workers": {"dataloader_num_workers": 2, "dataloader_in_order": False}}
    predicted = {}
    for name, changes in ways.items():
        trainer = make_trainer(out, small_head(), crowd, per_device_eval_batch_size=4, **changes)
        output = trainer.predict(crowd)
        parts = torch.cat([part[0][0] for part in trainer.posteriors_of(crowd)])
        model = trainer.crowd_model.classifier.eval()
        features = torch.tensor(np.array(crowd["features"][:], dtype="float32"))
        with torch.no_grad():
            expected = model(features=features).logits.log_softmax(-1)
        predicted[name] = torch.from_numpy(output.predictions[0]), parts, expected
    return predicted


def refusals(out):
    """Return the error messages of what several processes refuse."""
    crowd = make_crowd(num_items=ITEMS, unlabelled=20)
    messages = {}
    for name, call in {
        "too few items": lambda: make_trainer(out, small_head(), crowd.select(range(15))).train(),
        "stream": lambda: make_trainer(out, small_head(), crowd).evaluate(
            crowd.to_iterable_dataset()
        ),
        "too many rows": lambda: gather_with_gradient(torch.zeros(3), size=2),
    }.items():
        try:
            call()
        except ValueError as error:
            messages[name] = str(error)
    return messages


def stopped(out):
    """Return the error of a training whose items differ so much that it diverges on one device."""
    crowd = make_crowd(num_items=ITEMS, unlabelled=20)
    messages = {}
    for gather in (True, False):
        trainer = make_trainer(
            out, small_head(), crowd, learning_rate=1e30, gather_across_devices=gather
        )  # fmt: skip
        try:
            trainer.train()
        except ValueError as error:
            messages[gather] = str(error)
    return messages


def uneven_gathers():
    """Gather four rows of the first process and one of the second, with and without a known size."""
    rank = dist.get_rank()
    whole = torch.arange(10.0).reshape(5, 2) + 1
    gathered = {}
    for size in (None, 4, 6):
        mine = (whole[:4] if rank == 0 else whole[4:]).clone().requires_grad_()
        joined = gather_with_gradient(mine, size)
        joined.square().sum().backward()
        flags = gather_with_gradient(torch.tensor([True] * len(mine)), size)
        gathered[str(size)] = {"joined": joined.detach(), "gradient": mine.grad, "flags": flags}
    return gathered


def spread_on_processors():
    """Make accelerate treat CPUs as devices, because it applies FSDP to no others."""
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
        several = "gloo", DistributedType.MULTI_GPU
        PartialState._prepare_backend = lambda self, *args, **kwargs: several


def spread(out, folder):
    """Train a transformer, again from the middle, and save it renamed; by FSDP if there are several processes."""
    several = dist.is_initialized()
    crowd = make_pictures(num_items=ITEMS, unlabelled=20)
    held_out = make_pictures(seed=1)
    changes = {"learning_rate": 0.01, "optim": "adamw_torch", "max_grad_norm": 1.0}
    changes |= {"save_strategy": "steps", "save_steps": 3, "name_classes": False}
    if several:
        layers = {"transformer_layer_cls_to_wrap": ["ViTLayer"]}
        changes |= {"fsdp": True, "fsdp_config": {"version": 2, **layers}}
    outcome = {}
    for checkpoint in (None, f"{out}.run/checkpoint-3"):
        torch.manual_seed(0)
        trainer = make_trainer(out, small_vit(), crowd, eval_dataset=held_out, **changes)
        assert trainer.is_fsdp_enabled == several
        trainer.train(resume_from_checkpoint=checkpoint)
        outcome["resumed" if checkpoint else "whole"] = learned(trainer, crowd)
    outcome["order"] = trainer.class_order()
    trainer.class_order = lambda: torch.tensor([2, 0, 1])
    outcome["renamed"] = trainer.name_classes()
    trainer.save_model(folder)
    with trainer._sharing("hashed", SALT):
        trainer.save_model(f"{folder}-hashed")
    trainer.save_model(f"{folder}-after")
    return outcome


def as_one_of_several(out, names, fsdp):
    """Train by some of `RUNS`, or by FSDP; what a process tells of it goes to a file of its rank."""
    if fsdp:
        spread_on_processors()
        outcome = {"spread": spread(out, f"{out}.saved")}
    else:
        outcome = {name: train(out, name) for name in names}
        outcome |= {"sent": bytes_of_a_step(out), "refused": refusals(out)}
        if dist.get_world_size() == 2:
            outcome["gathers"] = uneven_gathers()
            outcome["stopped"] = stopped(out)
            outcome["predicted"] = predictions(out)
            outcome["cross_fitted"] = cross_fitted(out)
    torch.save(outcome, f"{out}.{dist.get_rank()}")
    # Whoever leaves at once may leave while a thread of gloo still holds a tensor, and is then aborted.
    state = PartialState()
    state.wait_for_everyone()
    state.destroy_process_group()
