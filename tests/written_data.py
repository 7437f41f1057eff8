"""Write small data sets in the layouts in which they are published, or in which users keep their own."""

import csv
from pathlib import Path

import numpy as np
import PIL.Image
import torch

from hf_maxmig.data.named.sources import LABELME_CLASSES

# The small world of items, annotators and features; sizes are pairwise distinct, so no axis passes
# for another.
ROWS = {"train": 6, "validation": 3, "test": 4}
WORDS = {"train": "train", "validation": "valid", "test": "test"}
ANSWERS = np.array(
    [
        [-1, 3, -1, -1, 7],
        [0, -1, -1, -1, -1],
        [-1, -1, -1, -1, -1],
        [2, 2, 5, -1, -1],
        [-1, -1, -1, 6, -1],
        [-1, 1, 0, -1, 4],
    ]
)
D = 7
COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (40, 40, 230)}


def small_world(split: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return names, gold labels (N,) and feature maps (N, 4, 4, D) float32."""
    n, shift = ROWS[split], list(ROWS).index(split)
    labels = (np.arange(n) * 3 + shift) % 8
    maps = np.random.default_rng(shift).normal(size=(n, 4, 4, D)).astype(np.float32)
    return [f"{LABELME_CLASSES[c]}_{split}{i}.jpg" for i, c in enumerate(labels)], labels, maps


def write_texts(folder: Path, answers: np.ndarray) -> None:
    """Write the text files that both layouts share."""
    folder.mkdir(parents=True)
    np.savetxt(folder / "answers.txt", answers, fmt="%d")
    for split, word in WORDS.items():
        names, labels, _ = small_world(split)
        (folder / f"filenames_{word}.txt").write_text("\n".join(names) + "\n")
        np.savetxt(folder / f"labels_{word}.txt", labels, fmt="%d")


def write_images(folder: Path) -> None:
    """Write one tiny picture per item, whose grey encodes split and row."""
    for shift, (split, word) in enumerate(WORDS.items()):
        names, labels, _ = small_world(split)
        for i, (name, label) in enumerate(zip(names, labels, strict=True)):
            path = folder / word / LABELME_CLASSES[label] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.new("RGB", (8, 8), (80 * shift + 10 * i,) * 3).save(path)


def write_flat(folder: Path) -> Path:
    """Write a folder with pooled features and images by split and class."""
    write_texts(folder, ANSWERS)
    write_images(folder / "images")
    for split, word in WORDS.items():
        pooled = small_world(split)[2].mean(axis=(1, 2), dtype=np.float64)
        np.save(folder / f"features_vgg16_{word}.npy", pooled.astype(np.float32))
    return folder


def write_human(path: Path, clean: np.ndarray, **arrays: np.ndarray) -> Path:
    """Write a file in the format of CIFAR-10N: column k names the class k + 1 after the right one."""
    slots = {f"random_label{k + 1}": (clean + k + 1) % 10 for k in range(3)}
    torch.save({"clean_label": clean, **slots, **arrays}, path)
    return path


def write_pictures(folder, number=30, by_class=False, ending=".png"):
    """Write squares of three colours with noise, and votes of four people, one of whom always says red."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(number):
        truth = list(COLOURS)[i % 3]
        noise = rng.integers(-30, 30, size=(12, 12, 3))
        picture = PIL.Image.fromarray(
            np.clip(np.array(COLOURS[truth]) + noise, 0, 255).astype("uint8")
        )
        place = folder / truth if by_class else folder
        place.mkdir(parents=True, exist_ok=True)
        picture.save(place / f"p{i:02}{ending}")
        name = f"{truth}/p{i:02}{ending}" if by_class else f"p{i:02}{ending}"
        for who, right in (("ann", 0.9), ("bob", 0.8), ("cyd", 0.7)):
            other = list(COLOURS)[rng.integers(3)]
            rows.append((name, who, truth if rng.random() < right else other))
        rows.append((name, "red_only", "red"))
    return rows


def write_votes(path, rows):
    """Write a long table with one vote per row."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("picture", "who", "label"), *rows])
    return path
