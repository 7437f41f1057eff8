"""Training runs of rivals for `test_distributed.py`: the same on one process and on two."""

import os
from pathlib import Path

import torch

from hf_maxmig import MaxMIGTrainingArguments
from hf_maxmig.peers import peer
from tests.networks import small_head
from tests.worlds import ANNOTATORS, InOrder, make_crowd

GLOBAL_BATCH = 16


def train(out: Path, name: str) -> InOrder:
    """Train a rival; write its parameters and the losses of the epochs to a file named after it."""
    args = MaxMIGTrainingArguments(
        output_dir=str(out / f"{name}.run"), use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=GLOBAL_BATCH // int(os.getenv("WORLD_SIZE", "1")), per_device_eval_batch_size=8,
        num_train_epochs=3, optim="sgd", learning_rate=0.05, aggregator_learning_rate=0.5, max_grad_norm=0.0,
        dataloader_drop_last=True, logging_strategy="epoch",
    )  # fmt: skip
    trainer = InOrder(
        model=peer(name, small_head(), annotators=ANNOTATORS),
        args=args,
        # Four global batches and six items left over, with which no batch may be padded; devices
        # get different numbers of labels.
        train_dataset=make_crowd(num_items=70, unlabelled=20),
    )
    trainer.train()
    if trainer.is_world_process_zero():
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        learned = {"parameters": trainer.crowd_model.state_dict(), "losses": losses}
        torch.save(learned, out / f"{name}.pt")
    # A process that leaves at once may do so while a thread of gloo still holds a tensor, and is
    # aborted.
    trainer.accelerator.wait_for_everyone()
    return trainer


def train_all(out: Path, names: list[str]) -> None:
    """Train rivals one after the other."""
    for name in names:
        last = train(out, name)
    last.accelerator.end_training()
