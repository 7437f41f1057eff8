"""One training run for `test_distributed.py`: the same script on one process or several.

Usage: python two_processes.py OUT PER_DEVICE_BATCH [--local-gain]; or under torchrun.
"""

import sys

import torch

from hf_maxmig import (
    HeadClassifier,
    HeadConfig,
    MaxMIGModel,
    MaxMIGTrainingArguments,
)
from tests.worlds import ANNOTATORS, CLASSES, InOrder, make_crowd


def main(out: str, batch_size: int, gather: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # 70 items: four global batches of 16 and six items over, which no batch may be filled up with.
    crowd = make_crowd(num_items=70, unlabelled=20)
    head = HeadConfig(input_size=5, hidden_size=16, dropout=0.0, id2label=dict(enumerate(CLASSES)))
    model = MaxMIGModel.from_classifier(
        HeadClassifier(head), annotators=ANNOTATORS, prior="learned"
    )
    args = MaxMIGTrainingArguments(
        output_dir=out + ".run", use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=batch_size, per_device_eval_batch_size=8, num_train_epochs=2, optim="sgd",
        learning_rate=0.05, aggregator_learning_rate=0.5, max_grad_norm=0.0, dataloader_drop_last=True,
        gather_across_devices=gather, logging_strategy="epoch", gradient_accumulation_steps=2,
    )  # fmt: skip
    trainer = InOrder(model=model, args=args, train_dataset=crowd)
    trainer.train()
    metrics = trainer.evaluate(crowd)
    posteriors = trainer.predict(crowd).predictions
    if trainer.is_world_process_zero():
        torch.save(
            {
                "parameters": trainer.crowd_model.state_dict(),
                "metrics": {
                    k: v for k, v in metrics.items() if "runtime" not in k and "per_second" not in k
                },
                "posteriors": [torch.from_numpy(p) for p in posteriors],
                "steps": trainer.state.global_step,
                "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
            },
            out,
        )
    # Whoever leaves at once may leave while a thread of gloo still holds a tensor, and is then aborted.
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), "--local-gain" not in sys.argv)
