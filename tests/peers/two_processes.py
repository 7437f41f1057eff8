"""One training run of a rival for `test_distributed.py`, on one process or under torchrun.

Usage: python two_processes.py OUT PER_DEVICE_BATCH NAME
"""

import sys

import torch

from hf_maxmig import HeadClassifier, HeadConfig, MaxMIGTrainingArguments
from hf_maxmig.peers import peer
from tests.worlds import ANNOTATORS, CLASSES, InOrder, make_crowd


def main(out: str, batch_size: int, name: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    head = HeadConfig(input_size=5, hidden_size=16, dropout=0.0, id2label=dict(enumerate(CLASSES)))
    args = MaxMIGTrainingArguments(
        output_dir=out + ".run", use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=batch_size, per_device_eval_batch_size=8, num_train_epochs=3, optim="sgd",
        learning_rate=0.05, aggregator_learning_rate=0.5, max_grad_norm=0.0, dataloader_drop_last=True,
        logging_strategy="epoch",
    )  # fmt: skip
    trainer = InOrder(
        model=peer(name, HeadClassifier(head), annotators=ANNOTATORS),
        args=args,
        # Four global batches and six items over, which no batch may be filled up with; devices get
        # unlike numbers of labels.
        train_dataset=make_crowd(num_items=70, unlabelled=20),
    )
    trainer.train()
    if trainer.is_world_process_zero():
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        torch.save({"parameters": trainer.crowd_model.state_dict(), "losses": losses}, out)
    # Whoever leaves at once may leave while a thread of gloo still holds a tensor, and is aborted.
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
