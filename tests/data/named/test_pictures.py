"""CIFAR-10, Dogs vs. Cats and LUNA16 in every layout: what is read, and what is refused."""

import hashlib
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value

from hf_maxmig import cifar10, dogs_vs_cats, luna16
from hf_maxmig.data.named import pictures
from hf_maxmig.data.named.pictures import cifar10n
from hf_maxmig.data.simulated.experts import CIFAR10, DOGS_VS_CATS, LUNA16
from tests.written_data import write_human

CLASSES = {"cifar10": CIFAR10, "dogs_vs_cats": DOGS_VS_CATS, "luna16": LUNA16}
LOADERS: dict[str, Callable[..., DatasetDict]] = {
    "cifar10": cifar10,
    "dogs_vs_cats": dogs_vs_cats,
    "luna16": luna16,
}

every = pytest.mark.parametrize("name", list(LOADERS))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the cache of `datasets` out of the user's own."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def grey(split: str, i: int) -> int:
    """Return the grey value that encodes split and row of a small picture."""
    return 20 + 110 * (split == "test") + 4 * i


def labels_of(name: str, split: str) -> np.ndarray:
    """Return labels in an order that is not sorted, each class at least once."""
    num_classes = len(CLASSES[name])
    n = 2 * num_classes + (3 if split == "train" else 1)
    return (np.arange(n) * 7 + 1) % num_classes


def picture(value: int, mode: str = "RGB") -> PIL.Image.Image:
    """Return a small picture of one grey."""
    return PIL.Image.new(mode, (8, 8), (value,) * 3 if mode == "RGB" else value)


def table(
    name: str, split: str, order: list[str], image: str = "image", label: str = "label"
) -> Dataset:
    """Return a table whose class numbers follow `order`."""
    names = [CLASSES[name][c] for c in labels_of(name, split)]
    numbers = [[n.casefold() for n in order].index(n) for n in names]
    rows = [picture(grey(split, i)) for i in range(len(names))]
    features = Features({image: Image(), label: ClassLabel(names=order)})
    return Dataset.from_dict({image: rows, label: numbers}, features=features)


def write_parquet(folder: Path, name: str, orders: dict[str, list[str]] | None = None) -> Path:
    """Write `train.parquet` and `test.parquet`."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        order = (orders or {}).get(split, list(CLASSES[name]))
        table(name, split, order).to_parquet(folder / f"{split}.parquet")
    return folder


def write_class_folders(folder: Path, name: str) -> Path:
    """Write one folder per class; the names of the pictures follow the order of the rows."""
    for split in ("train", "test"):
        for i, c in enumerate(labels_of(name, split)):
            place = folder / split / CLASSES[name][c].upper()
            place.mkdir(parents=True, exist_ok=True)
            picture(grey(split, i), "L").save(place / f"{i:03}.png")
    return folder


def check(data: DatasetDict, name: str, in_order: bool = True) -> None:
    """Compare each picture's label with the one it was made with."""
    assert list(data) == ["train", "test"]
    for split, rows in data.items():
        assert rows.column_names == ["image", "label"]
        assert rows.features["label"].names == list(CLASSES[name])
        values = [round(np.asarray(row["image"].convert("L")).mean()) for row in rows]
        expected = labels_of(name, split)
        number = {grey(split, i): i for i in range(len(expected))}
        order = [number[value] for value in values]  # PNG keeps greys exactly
        assert sorted(order) == list(range(len(expected)))
        assert rows["label"][:] == expected[order].tolist()
        if in_order:
            assert order == sorted(order)


@every
def test_parquet_is_read(name: str, tmp_path: Path) -> None:
    """In another order than the file's, rows would get the human labels of other pictures."""
    check(LOADERS[name](write_parquet(tmp_path / "data", name)), name)


@every
def test_classes_in_another_order_are_told_by_their_names(name: str, tmp_path: Path) -> None:
    """If the numbers of a source were trusted, every dog could be a cat, and nothing would look wrong."""
    backwards = [word.upper() for word in reversed(CLASSES[name])]
    forwards = list(CLASSES[name])
    for i, orders in enumerate(
        [{"train": backwards, "test": backwards}, {"train": forwards, "test": backwards}]
    ):
        folder = write_parquet(tmp_path / str(i), name, orders)
        check(LOADERS[name](folder), name)


def test_names_as_text_are_taken_and_bare_numbers_are_not(tmp_path: Path) -> None:
    """Without a name, the class of a number would be a guess."""
    folder = write_parquet(tmp_path, "luna16")
    rows = table("luna16", "test", list(LUNA16))
    text = [LUNA16[c].title() for c in rows["label"]]
    as_text = rows.remove_columns("label").add_column("label", text)
    as_text.to_parquet(folder / "test.parquet")
    check(luna16(folder), "luna16")
    rows.cast_column("label", Value("int64")).to_parquet(folder / "test.parquet")
    with pytest.raises(ValueError, match=r"test.parquet: `label` must be a ClassLabel or text"):
        luna16(folder)


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    """The cache of `datasets` would return the old pictures."""
    folder = write_parquet(tmp_path, "luna16")
    assert len(luna16(folder)["train"]) == 7
    rows = table("luna16", "train", list(LUNA16)).select(range(5))
    rows.to_parquet(folder / "train.parquet")
    assert len(luna16(folder)["train"]) == 5


@every
def test_class_folders_are_read(name: str, tmp_path: Path) -> None:
    """Folder names may differ in case, and system files are not pictures."""
    folder = write_class_folders(tmp_path / "data", name)
    first = folder / "train" / CLASSES[name][0].upper()
    (first / "._000.png").write_bytes(b"of the system")
    (first / "Thumbs.db").write_bytes(b"of the system")
    (folder / "train" / ".ipynb_checkpoints").mkdir()
    check(LOADERS[name](folder), name, in_order=False)


@every
def test_a_missing_class_is_an_error(name: str, tmp_path: Path) -> None:
    """Without the error, later classes would take its number, or nobody would learn it."""
    folder = write_class_folders(tmp_path / "folders", name)
    last = folder / "test" / CLASSES[name][-1].upper()
    for path in last.iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=f"test, must have items of each .*{CLASSES[name][-1]}"):
        LOADERS[name](folder)
    last.rmdir()
    with pytest.raises(ValueError, match=rf"test must name the {len(CLASSES[name])} classes"):
        LOADERS[name](folder)
    folder = write_parquet(tmp_path / "parquet", name)
    renamed = ["unicorn", *CLASSES[name][1:]]
    rows = table(name, "train", list(CLASSES[name]))
    rows.cast_column("label", ClassLabel(names=renamed)).to_parquet(folder / "train.parquet")
    with pytest.raises(ValueError, match="train.parquet must name .* got unicorn"):
        LOADERS[name](folder)


def test_an_item_without_a_label_is_an_error(tmp_path: Path) -> None:
    """Kaggle's own test pictures have -1, which indexes the last class."""
    folder = write_parquet(tmp_path, "dogs_vs_cats")
    rows = table("dogs_vs_cats", "test", list(DOGS_VS_CATS)).to_dict()
    rows["label"][3] = -1
    features = Features(image=Image(), label=ClassLabel(names=list(DOGS_VS_CATS)))
    Dataset.from_dict(rows, features=features).to_parquet(folder / "test.parquet")
    with pytest.raises(ValueError, match="must have a label for each item, got none at item 3"):
        dogs_vs_cats(folder)


@every
def test_missing_data_say_where_to_get_them_and_how_they_may_lie(name: str, tmp_path: Path) -> None:
    """After a bare traceback, the user would have to guess the layout."""
    where = {"cifar10": "kriz", "dogs_vs_cats": "kaggle.com", "luna16": "prepare_luna16.py"}[name]
    with pytest.raises(FileNotFoundError, match=rf"nowhere: it does not exist.*{where}.*parquet"):
        LOADERS[name](tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="it is a file"):
        LOADERS[name](tmp_path / "file")
    (tmp_path / "some" / "train").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=rf"parquet.* got .*some with train: .*{where}"):
        LOADERS[name](tmp_path / "some")


@pytest.mark.parametrize("name", ["cifar10", "dogs_vs_cats"])
def test_offline_without_a_folder_says_what_to_do(name: str) -> None:
    """The Hub's own message does not mention `data_dir`."""
    with pytest.raises(
        ConnectionError, match=r"must come from the Hub.*HF_HUB_OFFLINE.*`data_dir`"
    ):
        LOADERS[name]()


def test_only_part_of_a_data_set_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Accuracies on a subset would be compared with the paper's."""
    folder = write_parquet(tmp_path, "luna16")
    with caplog.at_level(logging.WARNING):
        luna16(folder)
    assert "LUNA16: 7 items to train and 5 to test, the paper's has 6484 and 1622" in caplog.text


# CIFAR-10


def test_cifar10_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub calls the picture column `img`."""

    def load_dataset(name: str) -> DatasetDict:
        assert name == "uoft-cs/cifar10"
        splits = ("train", "test")
        return DatasetDict({s: table("cifar10", s, list(CIFAR10), image="img") for s in splits})

    monkeypatch.setattr(pictures, "load_dataset", load_dataset)
    check(cifar10(), "cifar10")


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def write_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write small pickles in the published layout, and give torchvision their MD5 sums."""
    from torchvision.datasets import CIFAR10 as Published  # noqa: N811

    folder.mkdir(parents=True)
    order = [*reversed(CIFAR10)]  # the names are stored in a separate file

    def write(name: str, content: dict[str, Any]) -> str:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return hashlib.md5(data).hexdigest()

    lists = {}
    for split in ("train", "test"):
        labels = [len(order) - 1 - int(c) for c in labels_of("cifar10", split)]
        values = [np.full(3 * 32 * 32, grey(split, i), np.uint8) for i in range(len(labels))]
        halves = [slice(0, 9), slice(9, None)] if split == "train" else [slice(None)]
        lists[split] = [
            [name, write(name, {"data": np.stack(values[half]), "labels": labels[half]})]
            for name, half in zip([f"{split}_1", f"{split}_2"], halves, strict=False)
        ]
    meta = {"filename": "batches.meta", "key": "label_names"}
    meta["md5"] = write("batches.meta", {"label_names": order})
    monkeypatch.setattr(Published, "train_list", lists["train"])
    monkeypatch.setattr(Published, "test_list", lists["test"])
    monkeypatch.setattr(Published, "meta", meta)
    return folder


def test_cifar10_from_the_published_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches in another order, or channels taken for rows, would still look like small pictures."""
    folder = write_batches(tmp_path / "cifar-10-batches-py", monkeypatch)
    for data_dir in (folder, tmp_path):
        data = cifar10(data_dir)
        check(data, "cifar10")
        assert data["train"][0]["image"].size == (32, 32)


def test_cifar10_opens_no_pickle_that_is_not_the_published_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpickling a file runs whatever code it contains."""
    folder = write_batches(tmp_path / "cifar-10-batches-py", monkeypatch)
    sign = tmp_path / "it ran"
    evil = pickle.dumps(Evil(sign))
    pickle.loads(evil)
    assert sign.exists()  # or the test could pass without meaning
    sign.unlink()
    for name in ("train_2", "test_1", "batches.meta"):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(evil)
        with pytest.raises(ValueError, match="whose MD5 sums are known.*none was opened"):
            cifar10(folder)
        (folder / name).write_bytes(before)
    assert not sign.exists()
    (folder / "train_1").unlink()
    with pytest.raises(ValueError, match="must hold the published files"):
        cifar10(folder)


def write_features(folder: Path, kind: str = "small", width: int = 5) -> Path:
    """Write features whose first number is the row."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        labels = labels_of("cifar10", split)
        values = np.zeros((len(labels), width), np.float16)
        values[:, 0] = np.arange(len(labels))
        np.save(folder / f"features_{kind}_{split}.npy", values)
        np.savetxt(folder / f"labels_{split}.txt", labels, fmt="%d")
    return folder


def test_cifar10_features_are_read(tmp_path: Path) -> None:
    """Half-precision features would not fit the head's weights, and ragged lists are a hundred times slower."""
    data = cifar10(write_features(tmp_path), content="features")
    for split, rows in data.items():
        assert rows.column_names == ["features", "label"]
        values = rows.with_format("numpy")["features"][:]
        assert (values.dtype, values.shape[1]) == (np.float32, 5)
        assert values[:, 0].tolist() == list(range(len(rows)))
        assert rows["label"][:] == labels_of("cifar10", split).tolist()
        assert rows.features["label"].names == list(CIFAR10)
        assert rows.features["features"].length == 5


BROKEN_FEATURES = {
    "unequal counts": (
        lambda d: np.save(d / "features_small_test.npy", np.ones((20, 5), np.float32)),
        r"a row for each line of labels_test.txt, N = 21, got float32 \(20, 5\)",
    ),
    "one axis too many": (
        lambda d: np.save(d / "features_small_test.npy", np.ones((21, 5, 1), np.float32)),
        r"must be floats \(N, D\).*got float32 \(21, 5, 1\)",
    ),
    "two widths": (
        lambda d: np.save(d / "features_small_test.npy", np.ones((21, 6), np.float32)),
        r"one length D in both splits, got .*'train': 5, 'test': 6",
    ),
    "a label that is no class": (
        lambda d: (d / "labels_test.txt").write_text("10\n" * 21),
        r"labels_test.txt must lie in 0..9, got 10 at item 0",
    ),
    "a pickle": (
        lambda d: np.save(d / "features_small_test.npy", np.array([{}] * 21), allow_pickle=True),
        r"must be a whole .npy file without objects",
    ),
}


@pytest.mark.parametrize("case", BROKEN_FEATURES)
def test_cifar10_refuses_features_that_do_not_fit(case: str, tmp_path: Path) -> None:
    """Rows off by one would be the features of other pictures."""
    damage, message = BROKEN_FEATURES[case]
    folder = write_features(tmp_path)
    cifar10(folder, content="features")  # it is intact before the damage
    damage(folder)
    with pytest.raises(ValueError, match=message):
        cifar10(folder, content="features")


def test_cifar10_does_not_choose_between_features(tmp_path: Path) -> None:
    """With two kinds in a folder, results of one would be attributed to the other."""
    folder = write_features(tmp_path)
    write_features(folder, "other")
    with pytest.raises(FileNotFoundError, match="one features_.*got .*features_other_test.npy"):
        cifar10(folder, content="features")
    for path in folder.glob("features_*_test.npy"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match="the features_.*_test.npy of the same name"):
        cifar10(folder, content="features")
    with pytest.raises(ValueError, match="`data_dir` must be a folder .* got None"):
        cifar10(content="features")
    with pytest.raises(ValueError, match="`content` must be 'images' or 'features', got 'image'"):
        cifar10(folder, content="image")  # type: ignore[arg-type]


@pytest.mark.parametrize("content", ["images", "features"])
def test_cifar10n_puts_three_labels_beside_each_item(content: str, tmp_path: Path) -> None:
    """Labels joined to the next item would look like a poor crowd."""
    write_parquet(tmp_path, "cifar10")
    data = cifar10(write_features(tmp_path), content=content)
    clean = labels_of("cifar10", "train")
    human = cifar10n(data, write_human(tmp_path / "CIFAR-10_human.pt", clean))
    train, test = human["train"], human["test"]
    assert train.features["annotators"].feature.names == [f"random_label{k}" for k in (1, 2, 3)]
    assert train.features["annotations"].feature.names == list(CIFAR10)
    for i, row in enumerate(train.select_columns(["annotators", "annotations", "label"])):
        assert row["annotators"] == [0, 1, 2]
        assert row["annotations"] == [(clean[i] + k + 1) % 10 for k in range(3)]
        assert row["label"] == clean[i]
    assert test["annotations"][:] == [[]] * len(test)
    assert train.features == test.features
    assert train.remove_columns(["annotators", "annotations"]).features == data["train"].features


def test_cifar10n_refuses_labels_of_other_items(tmp_path: Path) -> None:
    """The file identifies items by position, so in another order each gets another's labels."""
    data = cifar10(write_parquet(tmp_path, "cifar10"))
    clean = labels_of("cifar10", "train")
    shuffled = write_human(tmp_path / "a.pt", np.roll(clean, 1))
    with pytest.raises(
        ValueError, match="in their order, got others for 23 of 23, first at item 0"
    ):
        cifar10n(data, shuffled)
    one = write_human(tmp_path / "b.pt", np.r_[clean[:-1], (clean[-1] + 1) % 10])
    with pytest.raises(ValueError, match="got others for 1 of 23, first at item 22"):
        cifar10n(data, one)
    with pytest.raises(ValueError, match="N = 23, got 22"):
        cifar10n(data, write_human(tmp_path / "c.pt", clean[:-1]))
    by_class = cifar10(write_class_folders(tmp_path / "folders", "cifar10"))
    with pytest.raises(ValueError, match="load CIFAR-10 in its original order"):
        cifar10n(by_class, write_human(tmp_path / "d.pt", clean))


# Dogs vs. Cats


def write_kaggle(folder: Path, cats: int = 12, dogs: int = 9) -> Path:
    """Write Kaggle's layout: class and number in each name, with the grey encoding the number."""
    folder.mkdir(parents=True)
    for name, count in (("cat", cats), ("dog", dogs)):
        for i in range(count):
            picture(10 + 120 * (name == "dog") + 9 * i).save(folder / f"{name}.{i}.jpg")
    return folder


def said(data: DatasetDict) -> dict[str, list[tuple[int, int]]]:
    """Return label and number of each picture."""
    out = {}
    for split, rows in data.items():
        values = [np.asarray(row["image"]).mean() for row in rows]
        pairs = [(int(v > 125), round((v - 10 - 120 * (v > 125)) / 9)) for v in values]
        assert rows["label"][:] == [c for c, _ in pairs]
        out[split] = pairs
    return out


def test_dogs_vs_cats_halves_kaggles_pictures_once_for_all(tmp_path: Path) -> None:
    """If the split depended on the seed or the file system, one run would train on another's test pictures."""
    write_kaggle(tmp_path / "a" / "train")
    (tmp_path / "a" / "test1").mkdir()
    picture(3).save(tmp_path / "a" / "test1" / "1.jpg")
    first = said(dogs_vs_cats(tmp_path / "a"))
    assert [len(first[split]) for split in ("train", "test")] == [10, 11]
    everything = [(0, i) for i in range(12)] + [(1, i) for i in range(9)]
    assert sorted(first["train"] + first["test"]) == everything
    assert {c for c, _ in first["train"]} == {c for c, _ in first["test"]} == {0, 1}
    torch.manual_seed(5)
    np.random.seed(5)
    write_kaggle(tmp_path / "b" / "train" / "train")
    for folder in (tmp_path / "b", tmp_path / "b" / "train", tmp_path / "a" / "train"):
        assert said(dogs_vs_cats(folder)) == first


def test_dogs_vs_cats_halves_the_hubs_one_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub's copy has one split and a column `labels`, with the cats first: half of it would be all cats."""
    rows = [picture(10 + 120 * c + 9 * i) for c in (0, 1) for i in range(11)]
    features = Features(image=Image(), labels=ClassLabel(names=["cat", "dog"]))
    table = Dataset.from_dict({"image": rows, "labels": [0] * 11 + [1] * 11}, features=features)

    def load_dataset(name: str) -> DatasetDict:
        assert name == "microsoft/cats_vs_dogs"
        return DatasetDict(train=table)

    monkeypatch.setattr(pictures, "load_dataset", load_dataset)
    data = said(dogs_vs_cats())
    assert len(data["train"]) == len(data["test"]) == 11
    assert sorted(data["train"] + data["test"]) == [(c, i) for c in (0, 1) for i in range(11)]
    assert all(3 <= sum(c for c, _ in part) <= 8 for part in data.values())
    assert said(dogs_vs_cats()) == data


# The real files


@pytest.mark.slow
def test_real_files_are_read_whole(shared_data: Path) -> None:
    """The small files written here cannot show that the real ones look as we assume."""
    luna = luna16(shared_data / "luna16")
    assert [len(luna["train"]), sum(luna["train"]["label"])] == [6484, 1069]
    assert [len(luna["test"]), sum(luna["test"]["label"])] == [1622, 282]
    assert luna["train"][0]["image"].size == (50, 50)
    dogs = dogs_vs_cats(shared_data / "dogs_vs_cats")
    assert {split: len(rows) for split, rows in dogs.items()} == {"train": 3000, "test": 1000}
    images = cifar10(shared_data / "cifar10")
    features = cifar10(shared_data / "cifar10", content="features")
    for split in ("train", "test"):
        assert images[split]["label"][:] == features[split]["label"][:]
    human = cifar10n(features, shared_data / "cifar10n" / "CIFAR-10_human.pt")["train"]
    columns = human.select_columns(["annotations", "label"]).with_format("numpy")[:]
    right = (np.stack(columns["annotations"]) == columns["label"][:, None]).mean(axis=0)
    np.testing.assert_allclose(right, [0.8277, 0.8188, 0.8236], atol=1e-4)
