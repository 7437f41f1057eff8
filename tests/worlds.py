"""Small crowds whose truth is known, and a trainer whose batches are."""

import numpy as np
from datasets import ClassLabel, Dataset, Features, List, Value
from torch.utils.data import SequentialSampler
from transformers import (
    TimmWrapperConfig,
    TimmWrapperForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from hf_maxmig import MaxMIGTrainer

ANNOTATORS = ["ann", "bob", "cyd", "dee"]
CLASSES = ["cat", "dog", "emu"]


def make_crowd(num_items=90, seed=0, unlabelled=7, features=5):
    """Three well separated classes; four annotators, the last of them random; one to four labels an item."""
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


class InOrder(MaxMIGTrainer):
    """Draws the items in their order: the global batches are the same however many share them."""

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


def small_vit(num_labels=3):
    """A network of transformers for pictures of 16 x 16."""
    config = ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=16,
        patch_size=8, num_labels=num_labels,
    )  # fmt: skip
    return ViTForImageClassification(config)


def small_timm(num_labels=3):
    """A network of timm for pictures of 16 x 16."""
    settings = {
        "input_size": [3, 16, 16], "crop_pct": 1.0, "crop_mode": "center", "interpolation": "bicubic",
        "mean": [0.5] * 3, "std": [0.5] * 3,
    }  # fmt: skip
    config = TimmWrapperConfig(
        architecture="test_resnet", num_labels=num_labels, pretrained_cfg=settings
    )
    return TimmWrapperForImageClassification(config)
