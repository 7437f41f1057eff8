"""Small crowds with known truth, and a trainer with known batches."""

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, List, Value, concatenate_datasets
from torch.utils.data import SequentialSampler

from hf_maxmig import MaxMIGTrainer

ANNOTATORS = ["ann", "bob", "cyd", "dee"]
CLASSES = ["cat", "dog", "emu"]


def make_crowd(num_items=90, seed=0, unlabelled=7, features=5):
    """Return items of three well separated classes.

    Each has labels by one to four annotators, the last of whom is random.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(len(CLASSES), size=num_items)
    centres = np.random.default_rng(99).normal(size=(len(CLASSES), features)) * 3
    right = [0.9, 0.8, 0.7, 1 / 3]
    annotators, annotations = [], []
    for i, label in enumerate(labels):
        who = (
            sorted(rng.choice(4, size=rng.integers(1, 5), replace=False).tolist())
            if i >= unlabelled
            else []
        )
        annotators.append(who)
        annotations.append(
            [
                int(label) if rng.random() < right[m] else int(rng.integers(len(CLASSES)))
                for m in who
            ]
        )
    order = rng.permutation(num_items)
    return Dataset.from_dict(
        {
            "features": (centres[labels] + rng.normal(size=(num_items, features)))[order].astype(
                "float32"
            ),
            "annotators": [annotators[i] for i in order],
            "annotations": [annotations[i] for i in order],
            "label": labels[order],
        },
        features=Features(
            features=List(Value("float32"), length=features),
            annotators=List(ClassLabel(names=ANNOTATORS)),
            annotations=List(ClassLabel(names=CLASSES)),
            label=ClassLabel(names=CLASSES),
        ),
    )


def make_table(num_items=90, seed=0):
    """Return the crowd of `make_crowd` on table rows: numbers, some of them missing, a text and a boolean."""
    crowd = make_crowd(num_items, seed)
    numbers = np.array(crowd["features"][:])
    columns = {
        "height": [None if i % 9 == 4 else float(x) for i, x in enumerate(numbers[:, 0])],
        "weight": numbers[:, 1].tolist(),
        "legs": np.round(numbers[:, 2]).astype(int).tolist(),
        "colour": [("brown", "grey")[int(x > 0)] for x in numbers[:, 3]],
        "tame": (numbers[:, 4] > 0).tolist(),
    }
    crowd = crowd.remove_columns("features")
    return concatenate_datasets([Dataset.from_dict(columns), crowd], axis=1)


class InOrder(MaxMIGTrainer):
    """Draw the items in their order, so that the global batches are the same however many processes share them."""

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


def batch_of(trainer, rows):
    """Return the training batch of these rows."""
    return trainer.data_collator([trainer.train_dataset[i] for i in rows])


def by_hand(trainer, dataset):
    """Return the three posteriors of the items in their order, without a loop of `Trainer`."""
    batch = trainer.data_collator([dataset[i] for i in range(len(dataset))])
    model = trainer.crowd_model.eval()
    with torch.no_grad():
        output = model(**{n: t for n, t in batch.items() if n not in ("labels", "rows")})
    return output.log_h, output.aggregator_logits, output.forecast_logits


def random_votes(num_items=7, num_annotators=4, num_classes=3, width=3, seed=0):
    """Return random annotators and labels, (N, width) each; some are missing, and all of the first item."""
    generator = torch.Generator().manual_seed(seed)
    who = torch.stack(
        [torch.randperm(num_annotators, generator=generator)[:width] for _ in range(num_items)]
    )
    said = torch.randint(num_classes, (num_items, width), generator=generator)
    missing = torch.rand(num_items, width, generator=generator) < 0.3
    missing[0] = True
    return who.masked_fill(missing, -1), said.masked_fill(missing, -1)


def items_of(crowd):
    """Return items as a pipeline takes them."""
    return [
        {
            "features": row["features"],
            "votes": [(ANNOTATORS[m], CLASSES[c]) for m, c in zip(row["annotators"], row["annotations"], strict=True)],
        }
        for row in crowd
    ]  # fmt: skip
