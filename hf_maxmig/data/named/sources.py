"""Named data sets: one function per data set, from its published files to columns.

This module knows where a data set comes from, checks its files, and turns them into a `DatasetDict`.
General formats of votes are in `readers/`. A folder in the cache is complete or absent.
"""

import contextlib
import http.client
import ipaddress
import logging
import os
import re
import shutil
import urllib.parse
import urllib.request
from hashlib import sha256 as sha256_of
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, List, Value
from filelock import FileLock

from ...model.whole_files import digest
from .archives import BROKEN, RefusedError, unpack_tar_gz
from .sealed import is_sealed, is_whole, seal

logger = logging.getLogger(__name__)

LABELME_URL = "https://fprodrigues.com/deep_LabelMe.tar.gz"
# None has been published. The log shows the digest of a downloaded archive, which can then be pinned.
LABELME_SHA256: str | None = None
LABELME_SIZES = {"train": 1000, "validation": 500, "test": 1188, "annotators": 59, "votes": 2547}
LABELME_CLASSES = [
    "highway",
    "insidecity",
    "tallbuilding",
    "street",
    "forest",
    "coast",
    "mountain",
    "opencountry",
]

_SPLITS = {"train": "train", "validation": "valid", "test": "test"}  # ours: the archive's word
_PATIENCE = 60.0  # seconds without a byte, not seconds for the whole archive
_SHA256 = re.compile("[0-9a-f]{64}")
_MOST_DOWNLOADED = 4 << 30  # bytes
_BROKEN = (*BROKEN, http.client.HTTPException, RefusedError)


def labelme(
    data_dir: str | os.PathLike[str] | None = None,
    *,
    content: Literal["features", "images"] = "features",
    cache_dir: str | os.PathLike[str] | None = None,
    url: str = LABELME_URL,
    sha256: str | None = LABELME_SHA256,
) -> DatasetDict:
    """Load LabelMe: 2,688 photographs of scenes, 1,000 of them labelled by 59 Turk workers.

    Rodrigues and Pereira, "Deep learning from crowds", AAAI 2018; the scenes are those of Oliva and
    Torralba, "Modeling the shape of the scene", IJCV 2001. Research use; the data stay their
    owners'.

    Every split has the columns `file_name`, `label` (gold), `annotators`, `annotations` (ragged, of
    equal lengths; empty in `validation` and `test`, which nobody labelled) and either `features`
    or `image`. Annotators are the columns of `answers.txt` with at least one vote, in order; the
    table may also have columns of people who never voted.

    The features are VGG-16's last convolutional map averaged over its 4 x 4 positions: (D,)
    float32, D = 512. The paper's own h reads the 8,192 numbers unpooled; the mean has a sixteenth of
    the size and keeps what a picture shows, but not where. If the archive holds several augmented
    copies of each training image, an item is still one row: the mean over its copies.

    Args:
        data_dir: The unpacked archive (or its inner folder `LabelMe`); or a folder with
            `answers.txt`, `labels_*.txt`, `filenames_*.txt` and `features_vgg16_*.npy` or
            `images/<split>/<class>/`; or the file `deep_LabelMe.tar.gz`. None: downloaded once,
            unless `HF_HUB_OFFLINE` is set.
        content: What represents an item: `"features"`, or `"images"` (paths, decoded when read).
        cache_dir: Where archives are unpacked; None: a folder in the cache of `datasets`. The unpacked
            files are compared with their digests each time, and unpacked again if they have changed.
        url: The address of the archive; it must be https, unless `sha256` is given.
        sha256: The digest that the archive must have. Without it, only the content is checked, and the
            log shows the digest.

    Returns:
        The splits `train`, `validation` and `test`, all with the same columns.

    Raises:
        ValueError: If files disagree with each other or hold values out of range, or `url` is not
            secure.
        FileNotFoundError: If a file is missing.
        OSError: If the download fails, or the archive is incomplete, has another digest, or holds
            members that could lie outside its folder. Nothing of it is kept then.
    """
    if content not in ("features", "images"):
        raise ValueError(f"`content` must be 'features' or 'images', got {content!r}.")
    if sha256 is not None and not _SHA256.fullmatch(sha256 := sha256.lower()):
        raise ValueError(f"`sha256` must be 64 hexadecimal digits, got {sha256!r}.")
    default = Path(datasets.config.HF_DATASETS_CACHE) / "hf_maxmig" / "labelme"
    cache = (default if cache_dir is None else Path(cache_dir)).expanduser().absolute()
    if data_dir is None:
        return _read(_download(url, cache, LABELME_SIZES, sha256), content, LABELME_SIZES)
    source = Path(data_dir).expanduser().absolute()
    if not source.exists():
        raise FileNotFoundError(
            f"`data_dir` must be a folder or an archive, got {source}: it does not exist."
        )
    if sha256 is not None and not source.is_file():
        raise ValueError(f"`sha256` must be of an archive, got it with the folder {source}.")
    return _read(_unpack_once(source, cache, sha256) if source.is_file() else source, content)


# From files to columns


def _read(folder: Path, content: str, sizes: dict[str, int] | None = None) -> DatasetDict:
    """Read a folder of either layout, and compare its numbers with `sizes`, if given."""
    root = _root(folder)
    names, labels, answers = _texts(root, sizes)
    classes = ClassLabel(names=list(LABELME_CLASSES))
    schema = {
        "file_name": Value("string"),
        "label": classes,
        "annotators": List(ClassLabel(names=[f"worker_{m:02d}" for m in range(answers.shape[1])])),
        "annotations": List(classes),
    }
    things: dict[str, Any]
    if content == "images":
        column, things = "image", _images(root, names, labels)
        schema[column] = Image()
    else:
        column, things = "features", _features(root, names, labels, answers)
        # A fixed length: numpy and torch then see one block of memory, not a list of lists.
        schema[column] = List(Value("float32"), length=things["train"].shape[1])
    item, annotator = np.nonzero(answers >= 0)
    ends = np.bincount(item, minlength=len(answers)).cumsum()[:-1]
    crowd = {"annotators": annotator, "annotations": answers[item, annotator]}
    out = DatasetDict()
    for split in _SPLITS:
        nothing: list[list[int]] = [[]] * len(names[split])
        ragged = {k: np.split(v, ends) if split == "train" else nothing for k, v in crowd.items()}
        table = {"file_name": names[split], "label": labels[split], **ragged, column: things[split]}
        out[split] = Dataset.from_dict(table, features=Features(schema))
    return out


def _root(folder: Path) -> Path:
    """Return the folder with `answers.txt`: the given one, or the archive's inner folder."""
    for root in (folder, folder / "LabelMe"):
        if (root / "answers.txt").is_file():
            return root
    raise FileNotFoundError(
        f"`data_dir` must hold answers.txt, itself or in LabelMe/, got {folder} without it."
    )


def _texts(
    root: Path, sizes: dict[str, int] | None = None
) -> tuple[dict[str, list[str]], dict[str, np.ndarray], np.ndarray]:
    """Return names and gold labels (N,) by split, and votes (N, M) with -1 = missing, checked."""
    names, labels, last = {}, {}, len(LABELME_CLASSES) - 1
    for split, word in _SPLITS.items():
        lines = _present(root / f"filenames_{word}.txt").read_text(encoding="utf-8").splitlines()
        names[split] = [line.strip() for line in lines if line.strip()]
        labels[split] = whole_numbers(path := root / f"labels_{word}.txt", 0, last).ravel()
        _check_rows(path, len(labels[split]), word, len(names[split]))
    answers = whole_numbers(path := root / "answers.txt", -1, last)
    _check_rows(path, len(answers), "train", len(names["train"]))
    answers = _without_the_silent(answers)
    if not answers.size:
        raise ValueError(f"{path} must hold at least one vote, got none.")
    got = {split: len(rows) for split, rows in names.items()}
    got |= {"annotators": answers.shape[1], "votes": int((answers >= 0).sum())}
    if sizes is not None and got != sizes:
        raise ValueError(
            f"{root} must hold the published LabelMe, {sizes}, got {got}: delete the folder to "
            "download it again."
        )
    return names, labels, answers


def _features(
    root: Path, names: dict[str, list[str]], labels: dict[str, np.ndarray], answers: np.ndarray
) -> dict[str, np.ndarray]:
    """Return (N, D) float32 by split, pooled over positions if the file is not."""
    out = {}
    for split, word in _SPLITS.items():
        path = root / f"features_vgg16_{word}.npy"
        if published := not path.is_file():
            path = _present(root / "prepared" / f"data_{word}_vgg16.npy", f", or {path}")
        values = read_array(path)
        if values.ndim not in (2, 4) or values.dtype.kind != "f":
            raise ValueError(
                f"{path} must be floats (N, D) or (N, H, W, D), got {values.dtype} {values.shape}."
            )
        if values.ndim == 4:
            values = values.mean(axis=(1, 2), dtype=np.float64)
        if published:
            votes = answers if split == "train" else None
            values = _one_row_an_item(path, values, labels[split], votes)
        _check_rows(path, len(values), word, len(names[split]))
        out[split] = values.astype(np.float32)
    widths = {split: values.shape[1] for split, values in out.items()}
    if len(set(widths.values())) != 1:
        raise ValueError(f"features in {root} must have one length D in all splits, got {widths}.")
    return out


def _one_row_an_item(
    path: Path, rows: np.ndarray, labels: np.ndarray, answers: np.ndarray | None
) -> np.ndarray:
    """Return (N, D) from the prepared (k N, D): the mean over the k copies of each item.

    The folder `prepared` identifies its rows only by their labels. So the labels, and the votes if
    there are any, must agree with the text files, with the copies of an item side by side or the whole
    set repeated k times. Otherwise features could silently belong to other items. Votes are compared
    sorted within a row, because the annotators may be in another order.
    """
    copies, rest = divmod(len(rows), len(labels))
    beside = path.with_name(path.name.replace("data_", "labels_").replace("_vgg16", ""))
    if rest or not copies or (copies == 1 and not beside.is_file()):
        return rows  # There is nothing to match with; the caller compares the counts.
    ours, theirs = labels[:, None], read_array(_present(beside)).reshape(-1, 1)
    if answers is not None and path.with_name("answers.npy").is_file():
        votes = read_array(path.with_name("answers.npy"))
        votes = np.sort(_without_the_silent(votes.reshape(len(votes), -1)))
        if len(votes) == len(theirs):
            ours, theirs = np.hstack([ours, np.sort(answers)]), np.hstack([theirs, votes])
    if np.array_equal(theirs, np.repeat(ours, copies, axis=0)):
        return rows.reshape(len(labels), copies, -1).mean(axis=1)
    if np.array_equal(theirs, np.tile(ours, (copies, 1))):
        return rows.reshape(copies, len(labels), -1).mean(axis=0)
    raise ValueError(
        f"{path} must hold the items of the text files in their order, N = {len(labels)}, each "
        f"{copies} times, got others by {beside.name} and answers.npy: use `content='images'`."
    )


def _images(
    root: Path, names: dict[str, list[str]], labels: dict[str, np.ndarray]
) -> dict[str, list[str]]:
    """Return paths by split, in the folder of the gold class, or of the name's prefix without one."""
    base = root / "images" if (root / "images").is_dir() else root
    out = {}
    for split, word in _SPLITS.items():
        there = {path.relative_to(base / word).as_posix() for path in (base / word).glob("*/*")}
        pairs = zip(names[split], labels[split], strict=True)
        gold = [f"{LABELME_CLASSES[label]}/{name}" for name, label in pairs]
        prefix = [f"{name.split('_')[0]}/{name}" for name in names[split]]
        found = [a if a in there else b for a, b in zip(gold, prefix, strict=True)]
        missing = [a for a, b in zip(gold, found, strict=True) if b not in there]
        if missing:
            raise FileNotFoundError(
                f"{base / word} must hold the images in filenames_{word}.txt, N = {len(gold)}, got "
                f"{len(gold) - len(missing)}: {missing[0]} is missing."
            )
        out[split] = [str(base / word / path) for path in found]
    return out


# Files, each checked as it is read


def _present(path: Path, instead: str = "") -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"{path} must exist{instead}, got no such file.")
    return path


def _check_rows(path: Path, got: int, word: str, expected: int) -> None:
    if got != expected:
        raise ValueError(
            f"{path} must have a row for each name in filenames_{word}.txt, N = {expected}, "
            f"got {got}."
        )


def whole_numbers(path: Path, lowest: int, last: int) -> np.ndarray:
    """Return (rows, columns) int64 in lowest..last from a text file; lowest is 0, or -1 for missing."""
    try:
        table = np.loadtxt(_present(path), ndmin=2)
    except ValueError as cause:
        raise ValueError(f"{path} must be a table of whole numbers: {cause}") from cause
    wrong = np.argwhere(~np.isin(table, np.arange(lowest, last + 1)))
    if len(wrong):
        row, column = wrong[0]
        raise ValueError(
            f"{path} must lie in 0..{last}{' or be -1 for missing' * (lowest < 0)}, "
            f"got {table[row, column]:g} at item {row}, column {column}."
        )
    return table.astype(np.int64)


def _without_the_silent(answers: np.ndarray) -> np.ndarray:
    """Return the columns of (N, M) answers that hold a vote."""
    return answers[:, (answers >= 0).any(axis=0)]


def read_array(path: Path) -> np.ndarray:
    """Load an array, never a pickle: unpickling a downloaded file could run code."""
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (ValueError, EOFError) as cause:
        raise ValueError(f"{path} must be a whole .npy file without objects: {cause}") from cause


# Archives


def _download(url: str, cache: Path, sizes: dict[str, int], sha256: str | None) -> Path:
    """Return the folder of the published archive; download and check it if it is not there."""
    folder, part = cache / "published", cache / "deep_LabelMe.tar.gz.part"
    if _is_kept(folder, sha256):
        return folder
    advice = "download it elsewhere and pass its path as `data_dir`"
    _check_address(url, sha256)
    if datasets.config.HF_HUB_OFFLINE:
        raise ConnectionError(
            f"LabelMe must come from {url}, got HF_HUB_OFFLINE set: unset it, or {advice}."
        )
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / "published.lock"):  # One process downloads, the others wait.
        try:
            if not _is_kept(folder, sha256):
                _stream(url, part, sha256)
                _unpack(part, folder, sizes, sha256)
        except (*_BROKEN, ValueError) as cause:
            raise OSError(
                f"LabelMe must be downloaded whole from {url}, got '{cause}': nothing was kept; try "
                f"again, or {advice}."
            ) from cause
        finally:
            part.unlink(missing_ok=True)
    return folder


def _check_address(url: str, sha256: str | None) -> None:
    """Refuse an address without transport security, unless the archive's digest is known."""
    address = urllib.parse.urlsplit(url)
    if address.scheme == "https" or (
        address.scheme == "http" and (sha256 is not None or _is_here(address.hostname))
    ):
        return
    raise ValueError(
        f"`url` must be an https address, or http with the archive's `sha256`, got {url}: anybody on the network "
        "path could send something else."
    )


def _is_here(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect if the new address would be accepted as `url`."""

    def __init__(self, sha256: str | None) -> None:
        self.sha256 = sha256

    def redirect_request(self, *args: Any, **kwargs: Any) -> urllib.request.Request | None:
        """Check the new address, which is the last argument."""
        _check_address(args[-1], self.sha256)
        return super().redirect_request(*args, **kwargs)


def _stream(url: str, part: Path, sha256: str | None) -> None:
    """Download `url` into `part`, and check that as many bytes arrive as were announced."""
    logger.info("Downloading %s", url)
    # Some hosts refuse the default name of Python's client.
    agent = {"User-Agent": "Mozilla/5.0 (compatible; hf_maxmig)"}
    request = urllib.request.Request(url, headers=agent)
    opener = urllib.request.build_opener(_Redirects(sha256))
    with opener.open(request, timeout=_PATIENCE) as answer, part.open("wb") as file:
        announced = answer.headers.get("Content-Length")
        while piece := answer.read(1 << 20):
            file.write(piece)
            if file.tell() > _MOST_DOWNLOADED:
                raise ValueError(f"more than {_MOST_DOWNLOADED:,} bytes")
        if announced is not None and file.tell() != int(announced):
            raise EOFError(f"{file.tell()} of {announced} bytes")


def _unpack_once(archive: Path, cache: Path, sha256: str | None) -> Path:
    """Return the folder of the user's archive; unpack it into the cache if it is not there."""
    stat = archive.stat()  # Hashing its content would take as long as unpacking it.
    key = f"{archive.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
    folder = cache / f"archive-{sha256_of(key.encode()).hexdigest()[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        try:
            if not _is_kept(folder, sha256):
                _unpack(archive, folder, None, sha256)
        except _BROKEN as cause:
            raise OSError(
                f"`data_dir` must be a folder or a whole .tar.gz archive, got {archive} and "
                f"'{cause}' in it: download it again."
            ) from cause
    return folder


def _is_kept(folder: Path, sha256: str | None) -> bool:
    """Whether the folder exists, is unchanged since it was unpacked, and comes from the requested archive."""
    if not folder.is_dir():
        return False
    if not is_sealed(folder) and sha256 is None:
        with contextlib.suppress(OSError):  # made by an earlier version, and not writable
            seal(folder)
        return True
    return is_whole(folder, sha256)


def _unpack(archive: Path, folder: Path, sizes: dict[str, int] | None, sha256: str | None) -> None:
    """Unpack beside `folder`, check, rename: an interruption leaves no `folder`."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # The remains of a killed process.
    if folder.is_dir():
        logger.warning(
            "%s has changed since it was unpacked, or comes from another archive: it is made again.",
            folder,
        )
    origin = digest(archive)
    if sha256 is not None and origin != sha256:
        raise RefusedError(f"the archive must have the SHA-256 {sha256}, got {origin}")
    try:
        unpack_tar_gz(archive, part)
        _texts(_root(part), sizes)
        seal(part, origin)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    if sha256 is None:
        logger.log(
            logging.INFO if sizes is None else logging.WARNING,
            "%s has the SHA-256 %s, which could not be compared with a published one. Pass it as `sha256`, and "
            "no other archive will be accepted.", archive.name.removesuffix(".part"), origin,
        )  # fmt: skip
