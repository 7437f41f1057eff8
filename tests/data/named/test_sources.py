"""The named data sets: what is read, what is refused, and what a broken download leaves behind."""

import csv
import gzip
import io
import shutil
import tarfile
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from hf_maxmig.data.named import sources
from hf_maxmig.data.named.sources import LABELME_CLASSES, LABELME_SIZES, LABELME_URL, labelme
from tests.written_data import (
    ANSWERS,
    ROWS,
    WORDS,
    D,
    small_world,
    write_flat,
    write_images,
    write_texts,
)

# The small world of items, annotators and features; sizes are pairwise distinct, so no axis passes
# for another.


VOTES = 10
SIZES = ROWS | {"annotators": 5, "votes": VOTES}


REAL = Path(__file__).parents[4] / "shared" / "data" / "labelme"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the LabelMe data are not at hand")


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    return write_flat(tmp_path / "flat")


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Return a folder in the archive's layout, with a column for an annotator who never voted."""
    folder = tmp_path / "published"
    root = folder / "LabelMe"
    write_texts(root, np.insert(ANSWERS, 2, -1, axis=1))
    write_images(root)
    (root / "prepared").mkdir()
    for split, word in WORDS.items():
        _, labels, maps = small_world(split)
        np.save(root / "prepared" / f"data_{word}_vgg16.npy", maps)
        np.save(root / "prepared" / f"labels_{word}.npy", labels)
    np.save(root / "prepared" / "answers.npy", ANSWERS.astype(np.float64))
    return folder


@pytest.fixture
def archive(published: Path, tmp_path: Path) -> Path:
    """Return the small world as the published archive."""
    path = tmp_path / "deep_LabelMe.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(published / "LabelMe", "LabelMe")
    return path


class Server(ThreadingHTTPServer):
    """Serve one body, failing in several ways, and count the requests."""

    daemon_threads = True
    body = b""
    mode = "whole"
    requests = 0

    @property
    def url(self) -> str:
        """Return the address of the archive."""
        return f"http://127.0.0.1:{self.server_port}/deep_LabelMe.tar.gz"


class Handler(BaseHTTPRequestHandler):
    """Answer a GET in the server's mode."""

    server: Server

    def do_GET(self) -> None:
        """Send the body whole, cut, late, or not at all."""
        server, body = self.server, self.server.body
        server.requests += 1
        if server.mode.isdigit():
            return self.send_error(int(server.mode))
        if server.mode.startswith("to "):
            self.send_response(302)
            self.send_header("Location", server.mode.removeprefix("to "))
            return self.end_headers()
        self.send_response(200)
        if server.mode != "cut, length unknown":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        half = len(body) // 2
        self.wfile.write(body[:half])
        if server.mode in ("slow", "stalled"):
            self.wfile.flush()
            time.sleep(0.2 if server.mode == "slow" else 1.0)
        if server.mode in ("whole", "slow"):
            self.wfile.write(body[half:])
        return None

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def server(archive: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Serve the small archive as if it were the published one, and let the library believe it is online."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(sources, "LABELME_SIZES", SIZES)
    monkeypatch.setattr(sources, "_PATIENCE", 0.5)
    monkeypatch.setenv("no_proxy", "*")
    with Server(("127.0.0.1", 0), Handler) as server:
        server.body = archive.read_bytes()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


def left(cache: Path) -> list[str]:
    """Return the content of a cache, without locks."""
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def tables(dataset: datasets.DatasetDict) -> dict[str, dict[str, list[Any]]]:
    """Return every split as plain Python."""
    return {split: rows.to_dict() for split, rows in dataset.items()}


def test_labelme_reads_votes_labels_and_names(flat: Path) -> None:
    """Transposed answers, or votes joined to the next item, would still look like a crowd."""
    dataset = labelme(flat)
    assert {split: rows.num_rows for split, rows in dataset.items()} == ROWS
    train = dataset["train"]
    rebuilt = np.full(ANSWERS.shape, -1)
    for i, row in enumerate(train):
        assert len(row["annotators"]) == len(row["annotations"])
        rebuilt[i, row["annotators"]] = row["annotations"]
    np.testing.assert_array_equal(rebuilt, ANSWERS)
    assert sum(map(len, train["annotations"])) == VOTES
    assert train[2]["annotations"] == []
    assert train.features["annotators"].feature.names == [f"worker_0{m}" for m in range(5)]
    assert train.features["annotations"].feature.names == LABELME_CLASSES
    for split, rows in dataset.items():
        names, labels, maps = small_world(split)
        assert rows["file_name"][:] == names
        assert rows["label"][:] == labels.tolist()
        features = rows.with_format("numpy")["features"][:]
        assert features.shape == (ROWS[split], D)
        assert features.dtype == np.float32
        np.testing.assert_allclose(features, maps.mean(axis=(1, 2)), rtol=1e-5, atol=1e-6)
    assert dataset["train"].features == dataset["validation"].features == dataset["test"].features
    assert dataset["test"]["annotators"][:] == [[]] * ROWS["test"]


def test_labelme_both_layouts_and_the_archive_give_equal_tables(
    flat: Path, published: Path, archive: Path, tmp_path: Path
) -> None:
    """Otherwise users of the archive would train on other numbers than those of the pooled files."""
    first = labelme(flat)
    cache = tmp_path / "cache"
    for source in (published, published / "LabelMe", str(archive)):
        other = labelme(source, cache_dir=cache)
        assert tables(other) == tables(first)
        assert other["train"].features == first["train"].features
    (unpacked,) = left(cache)
    before = (cache / unpacked).stat().st_mtime_ns
    labelme(archive, cache_dir=cache)
    assert left(cache) == [unpacked]
    assert (cache / unpacked).stat().st_mtime_ns == before


def test_labelme_images_are_the_items_own(flat: Path, published: Path) -> None:
    """Pictures in another order than the votes would train without an error."""
    for folder in (flat, published):
        dataset = labelme(folder, content="images")
        assert "features" not in dataset["train"].column_names
        for shift, rows in enumerate(dataset.values()):
            paths = rows.cast_column("image", datasets.Image(decode=False))["image"][:]
            assert all(path["bytes"] is None for path in paths)
            for i, row in enumerate(rows):
                grey = np.asarray(row["image"])
                assert grey.shape == (8, 8, 3)
                assert abs(grey.mean() - (80 * shift + 10 * i)) < 3


def test_labelme_finds_an_image_under_the_class_of_its_name(flat: Path) -> None:
    """A gold label may have been corrected after the pictures were sorted into folders."""
    _names, labels, _ = small_world("train")
    np.savetxt(flat / "labels_train.txt", np.r_[labels[1], labels[1:]], fmt="%d")
    assert labels[0] != labels[1]
    train = labelme(flat, content="images")["train"]
    assert train[0]["label"] == labels[1]
    assert np.asarray(train[0]["image"]).mean() < 3


@pytest.mark.parametrize("order", ["repeat", "tile"])
def test_labelme_averages_augmented_copies_of_an_item(
    flat: Path, published: Path, order: str
) -> None:
    """Copies taken in the wrong order would give most items the features of others."""
    prepared = published / "LabelMe" / "prepared"
    _, labels, maps = small_world("train")

    def copied(rows: np.ndarray) -> np.ndarray:
        return np.repeat(rows, 3, axis=0) if order == "repeat" else np.concatenate([rows] * 3)

    noise = np.random.default_rng(0).normal(size=(18, 1, 1, 1))
    np.save(prepared / "data_train_vgg16.npy", (copied(maps) + noise).astype(np.float32))
    np.save(prepared / "labels_train.npy", copied(labels))
    np.save(prepared / "answers.npy", copied(ANSWERS[:, ::-1]))  # the order is free
    whose = copied(np.arange(6))
    means = np.array([noise[whose == i].mean() for i in range(6)])
    expected = np.array(labelme(flat)["train"]["features"][:]) + means[:, None]
    np.testing.assert_allclose(
        labelme(published)["train"]["features"][:], expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", ["labels_test.npy", "answers.npy"])
def test_labelme_refuses_features_of_items_in_another_order(published: Path, name: str) -> None:
    """The number of rows agrees, so features of other items would go unnoticed."""
    path = published / "LabelMe" / "prepared" / name
    np.save(path, np.load(path)[::-1])
    with pytest.raises(ValueError, match="in their order.*use `content='images'`"):
        labelme(published)
    assert labelme(published, content="images")["test"].num_rows == ROWS["test"]


def drop_last_line(path: Path) -> None:
    """Shorten a text file by a row."""
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")


def replace_first(path: Path, old: str, new: str) -> None:
    """Change one entry of a text file."""
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


BROKEN = {
    "votes of 5 items": (
        lambda d: drop_last_line(d / "answers.txt"),
        r"answers.txt must have a row .* filenames_train.txt, N = 6, got 5",
    ),
    "labels of 2 items": (
        lambda d: drop_last_line(d / "labels_valid.txt"),
        r"labels_valid.txt must have a row .* filenames_valid.txt, N = 3, got 2",
    ),
    "features of 3 items": (
        lambda d: np.save(d / "features_vgg16_test.npy", np.ones((3, D), np.float32)),
        r"features_vgg16_test.npy must have a row .* filenames_test.txt, N = 4, got 3",
    ),
    "features of another length": (
        lambda d: np.save(d / "features_vgg16_test.npy", np.ones((4, D + 1), np.float32)),
        r"one length D in all splits, got .*'train': 7.*'test': 8",
    ),
    "features of three axes": (
        lambda d: np.save(d / "features_vgg16_test.npy", np.ones((4, D, 1), np.float32)),
        r"features_vgg16_test.npy must be floats \(N, D\).*got float32 \(4, 7, 1\)",
    ),
    "a pickle": (
        lambda d: np.save(d / "features_vgg16_test.npy", np.array([{}] * 4), allow_pickle=True),
        r"features_vgg16_test.npy must be a whole .npy file without objects",
    ),
    "a cut array": (
        lambda d: (d / "features_vgg16_test.npy").write_bytes(
            (d / "features_vgg16_test.npy").read_bytes()[:-1]
        ),
        r"features_vgg16_test.npy must be a whole .npy file",
    ),
    "a vote too high": (
        lambda d: replace_first(d / "answers.txt", "7", "8"),
        r"answers.txt must lie in 0..7 or be -1 for missing, got 8 at item 0, column 4",
    ),
    "a vote too low": (
        lambda d: replace_first(d / "answers.txt", "0", "-2"),
        r"answers.txt must lie in 0..7 or be -1 for missing, got -2 at item 1, column 0",
    ),
    "half a vote": (
        lambda d: replace_first(d / "answers.txt", "3", "3.5"),
        r"got 3.5 at item 0, column 1",
    ),
    "a row cut short": (
        lambda d: replace_first(d / "answers.txt", "-1 3 -1 -1 7", "-1 3 -1 -1"),
        r"answers.txt must be a table of whole numbers",
    ),
    "no votes at all": (
        lambda d: np.savetxt(d / "answers.txt", np.full((6, 5), -1), fmt="%d"),
        r"answers.txt must hold at least one vote",
    ),
    "a missing gold label": (
        lambda d: replace_first(d / "labels_train.txt", "0", "-1"),
        r"labels_train.txt must lie in 0..7, got -1 at item 0",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_labelme_refuses_files_that_disagree(flat: Path, case: str) -> None:
    """Rows off by one, or a stray value, would be learned as the crowd's opinion."""
    damage, message = BROKEN[case]
    labelme(flat)  # it is intact before the damage
    damage(flat)
    with pytest.raises(ValueError, match=message):
        labelme(flat)


@pytest.mark.parametrize(
    "name",
    ["answers.txt", "labels_test.txt", "filenames_valid.txt", "features_vgg16_train.npy"],
)
def test_labelme_names_the_missing_file(flat: Path, name: str) -> None:
    """A bare traceback would not say which of a dozen files is missing."""
    (flat / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        labelme(flat)


def test_labelme_names_the_missing_image(flat: Path) -> None:
    """Paths are decoded late, so the missing file would only show after hours of training."""
    name = small_world("validation")[0][1]
    (path,) = flat.glob(f"images/valid/*/{name}")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"filenames_valid.txt, N = 3, got 2: .*{name}"):
        labelme(flat, content="images")


def test_labelme_refuses_wrong_arguments(flat: Path, tmp_path: Path) -> None:
    """A misspelt `content` must not fall back to the default."""
    with pytest.raises(ValueError, match="`content` must be 'features' or 'images', got 'image'"):
        labelme(flat, content="image")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="`data_dir` must be .*nowhere"):
        labelme(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="`data_dir` must hold answers.txt"):
        labelme(flat / "images")


def test_labelme_downloads_once(server: Server, flat: Path, tmp_path: Path, monkeypatch) -> None:
    """A second download would need the network again, and take hours on a slow one."""
    cache = tmp_path / "deep" / "cache"
    first = labelme(cache_dir=cache, url=server.url)
    assert tables(first) == tables(labelme(flat))
    assert server.requests == 1
    assert left(cache) == ["published"]
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    images = labelme(cache_dir=cache, url=server.url, content="images")
    assert server.requests == 1
    assert images["train"][0]["image"].size == (8, 8)


def test_labelme_waits_for_a_slow_server(server: Server, tmp_path: Path, monkeypatch) -> None:
    """The timeout applies to silence, not to the whole archive: otherwise slow connections never finish."""
    server.mode = "slow"
    monkeypatch.setattr(sources, "_PATIENCE", 5.0)
    assert labelme(cache_dir=tmp_path / "cache", url=server.url)["train"].num_rows == 6


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("cut, length known", r"\d+ of \d+ bytes|IncompleteRead"),
        ("cut, length unknown", "end-of-stream"),
        ("stalled", "timed out"),
        ("404", "404"),
        ("500", "500"),
    ],
)
def test_labelme_keeps_nothing_of_a_failed_download(
    server: Server, tmp_path: Path, mode: str, reason: str
) -> None:
    """Half an archive taken for the whole would silently be a smaller data set."""
    server.mode, cache = mode, tmp_path / "cache"
    with pytest.raises(OSError, match=f"(?s)({reason}).*nothing was kept; try again.*`data_dir`"):
        labelme(cache_dir=cache, url=server.url)
    assert server.requests == 1
    assert left(cache) == []
    server.mode = "whole"
    assert labelme(cache_dir=cache, url=server.url)["train"].num_rows == 6


def test_labelme_keeps_nothing_of_a_damaged_archive(server: Server, tmp_path: Path) -> None:
    """Equal length says nothing about the bytes; only the checksum at the end does."""
    plain = gzip.decompress(server.body)
    checksum = server.body[-8:-4]
    damaged = {
        "CRC": server.body[:-8] + bytes(255 - b for b in checksum) + server.body[-4:],
        "end-of-stream": server.body[:-4],
        "Not a gzipped file": b"<html>This site has moved.</html>",
        "answers.txt": gzip.compress(plain[:1536]),
    }
    for reason, body in damaged.items():
        server.body = body
        with pytest.raises(OSError, match=f"(?s){reason}.*nothing was kept"):
            labelme(cache_dir=tmp_path / "cache", url=server.url)
        assert left(tmp_path / "cache") == []
    assert server.requests == len(damaged)


def test_labelme_expects_the_published_numbers(server: Server, tmp_path: Path, monkeypatch) -> None:
    """Results on another archive at the same address would be reported as LabelMe's."""
    monkeypatch.setattr(sources, "LABELME_SIZES", SIZES | {"votes": VOTES + 1})
    with pytest.raises(OSError, match=r"'votes': 11.*got .*'votes': 10.*nothing was kept"):
        labelme(cache_dir=tmp_path / "cache", url=server.url)
    assert left(tmp_path / "cache") == []
    assert LABELME_SIZES == {
        **{"train": 1000, "validation": 500, "test": 1188},
        **{"annotators": 59, "votes": 2547},
    }


@pytest.mark.parametrize("way", ["url", "archive"])
def test_labelme_does_not_take_an_interrupted_extraction_for_whole(
    server: Server, archive: Path, tmp_path: Path, monkeypatch, way: str
) -> None:
    """After Control-C during the unpacking, the folder would hold only some of the files for ever."""
    cache = tmp_path / "cache"
    arguments = {"url": server.url} if way == "url" else {"data_dir": archive}

    def interrupted(tar: tarfile.TarFile, path: Path, **_: Any) -> None:
        (path / "LabelMe").mkdir(parents=True)
        (path / "LabelMe" / "answers.txt").write_text("-1 3")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extractall", interrupted)
        with pytest.raises(KeyboardInterrupt):
            labelme(cache_dir=cache, **arguments)
    assert left(cache) == []
    # A killed process cannot clean up, so the next one removes its remains.
    dataset = labelme(cache_dir=cache, **arguments)
    (name,) = left(cache)
    (cache / name / "LabelMe" / "labels_test.txt").unlink()
    (cache / name / "LabelMe" / "stray.txt").write_text("of another archive")
    shutil.move(cache / name, cache / f"{name}.part")
    if way == "url":
        (cache / "deep_LabelMe.tar.gz.part").write_bytes(b"some")
    assert tables(labelme(cache_dir=cache, **arguments)) == tables(dataset)
    assert left(cache) == [name]
    assert not (cache / name / "LabelMe" / "stray.txt").exists()


def test_labelme_refuses_a_broken_archive_of_the_users(archive: Path, tmp_path: Path) -> None:
    """The same holds for a file downloaded by hand with a browser that gave up."""
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(OSError, match="`data_dir` must be .*deep_LabelMe.*download it again"):
        labelme(archive, cache_dir=tmp_path / "cache")
    assert left(tmp_path / "cache") == []


def test_labelme_does_not_unpack_outside_its_folder(tmp_path: Path) -> None:
    """An archive from the net could overwrite the user's files."""
    archive = tmp_path / "evil.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("../../evil.txt")
        member.size = 4
        tar.addfile(member, io.BytesIO(b"evil"))
    with pytest.raises(OSError, match="evil.txt.*outside"):
        labelme(archive, cache_dir=tmp_path / "deep" / "cache")
    assert not list(tmp_path.rglob("evil.txt"))


def test_labelme_names_what_it_does_not_unpack(
    server: Server, archive: Path, tmp_path: Path
) -> None:
    """A link in an archive led out of the cache, so a file outside was overwritten."""
    evil = tmp_path / "evil.tar.gz"
    with tarfile.open(archive) as good, tarfile.open(evil, "w:gz") as tar:
        for member in good:
            tar.addfile(member, good.extractfile(member))
        member = tarfile.TarInfo("LabelMe/link")
        member.type, member.linkname = tarfile.SYMTYPE, "answers.txt"
        tar.addfile(member)
    message = "got a symbolic link: 'LabelMe/link' -> 'answers.txt'"
    with pytest.raises(OSError, match=f"`data_dir` must be.*{message}"):
        labelme(evil, cache_dir=tmp_path / "cache")
    server.body = evil.read_bytes()
    with pytest.raises(OSError, match=f"{message}.*nothing was kept"):
        labelme(cache_dir=tmp_path / "cache", url=server.url)
    assert left(tmp_path / "cache") == []


@pytest.mark.parametrize("way", ["url", "archive"])
def test_labelme_takes_no_archive_for_another(
    server: Server, archive: Path, tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another archive with as many items and votes would pass for the published one."""
    cache, digest = tmp_path / "cache", sha256(server.body).hexdigest()
    arguments: dict[str, Any] = {"url": server.url} if way == "url" else {"data_dir": archive}
    with caplog.at_level("INFO"):
        first = labelme(cache_dir=cache, **arguments)
    assert f"has the SHA-256 {digest}" in caplog.text
    again = labelme(cache_dir=cache, sha256=digest.upper(), **arguments)
    assert tables(again) == tables(first)
    assert server.requests == (way == "url")
    with pytest.raises(OSError, match=f"must have the SHA-256 {'0' * 64}, got {digest}"):
        labelme(cache_dir=cache, sha256="0" * 64, **arguments)
    assert tables(labelme(cache_dir=cache, **arguments)) == tables(first)
    with pytest.raises(ValueError, match="`sha256` must be 64 hexadecimal digits, got 'abc'"):
        labelme(cache_dir=cache, sha256="abc", **arguments)


@pytest.mark.parametrize("way", ["url", "archive"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "more", "seal"])
def test_labelme_unpacks_again_what_has_changed(
    server: Server, archive: Path, tmp_path: Path, way: str, damage: str
) -> None:
    """One flipped bit in a cached feature would affect every later training."""
    cache = tmp_path / "cache"
    arguments: dict[str, Any] = {"url": server.url} if way == "url" else {"data_dir": archive}
    first = tables(labelme(cache_dir=cache, **arguments))
    (root,) = (path / "LabelMe" for path in cache.iterdir() if path.is_dir())
    path = root / "prepared" / "data_train_vgg16.npy"
    if damage == "flipped":
        path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-4])
    elif damage == "gone":
        path.unlink()
    elif damage == "more":
        np.save(root / "features_vgg16_train.npy", np.zeros((6, D), np.float32))
    else:
        (root.parent / ".sha256.json").write_text("{")
    assert tables(labelme(cache_dir=cache, **arguments)) == first
    assert server.requests == 2 * (way == "url")
    assert tables(labelme(cache_dir=cache, **arguments)) == first
    assert server.requests == 2 * (way == "url")


def test_labelme_takes_a_cache_of_an_earlier_version(server: Server, tmp_path: Path) -> None:
    """Such a cache has no digests. Offline, refusing it would mean losing the data."""
    first = tables(labelme(cache_dir=tmp_path / "cache", url=server.url))
    (tmp_path / "cache" / "published" / ".sha256.json").unlink()
    assert tables(labelme(cache_dir=tmp_path / "cache", url=server.url)) == first
    assert server.requests == 1
    assert (tmp_path / "cache" / "published" / ".sha256.json").is_file()


@pytest.mark.parametrize(
    "url", ["http://example.org/a", "ftp://example.org/a", "file:///etc/passwd", "nothing"]
)
def test_labelme_takes_no_address_that_anybody_could_answer(
    url: str, server: Server, tmp_path: Path
) -> None:
    """Anyone between the user and the server could send another archive, and LabelMe's own address allowed it."""
    assert LABELME_URL.startswith("https://")
    with pytest.raises(
        ValueError, match="`url` must be an https address, or http with the archive's"
    ):
        labelme(cache_dir=tmp_path / "cache", url=url)
    assert not (tmp_path / "cache").exists()


def test_labelme_follows_no_redirect_to_such_an_address(server: Server, tmp_path: Path) -> None:
    """An https address that redirects to plain http is no safer than plain http."""
    server.mode = "to http://example.org/a"
    with pytest.raises(
        OSError, match="`url` must be an https address.*example.org/a.*nothing was kept"
    ):
        labelme(cache_dir=tmp_path / "cache", url=server.url)
    assert left(tmp_path / "cache") == []


def test_labelme_stops_an_endless_download(server: Server, tmp_path: Path, monkeypatch) -> None:
    """A server that never stops sending would fill the disk."""
    monkeypatch.setattr(sources, "_MOST_DOWNLOADED", len(server.body) - 1)
    with pytest.raises(OSError, match="more than .* bytes.*nothing was kept"):
        labelme(cache_dir=tmp_path / "cache", url=server.url)
    assert left(tmp_path / "cache") == []


def test_labelme_offline_says_what_to_do(server: Server, tmp_path: Path, monkeypatch) -> None:
    """Without the check, an offline machine waits for a timeout and then shows a socket error."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE.*unset it.*`data_dir`"):
        labelme(cache_dir=tmp_path / "cache", url=server.url)
    assert server.requests == 0
    assert not (tmp_path / "cache").exists()


@needs_real
def test_labelme_real_crowd_has_the_published_numbers() -> None:
    """All results on LabelMe rest on these votes."""
    dataset = labelme(REAL)
    train = dataset["train"]
    assert {split: rows.num_rows for split, rows in dataset.items()} == {
        **{"train": 1000, "validation": 500, "test": 1188}
    }
    assert len(train.features["annotators"].feature.names) == 59
    annotations = train["annotations"][:]
    gold = np.repeat(train["label"][:], [len(row) for row in annotations])
    said = np.concatenate(annotations)
    assert len(said) == 2547
    assert (said == gold).mean() == pytest.approx(0.7405, abs=5e-5)
    features = train.with_format("numpy")["features"][:]
    assert features.shape == (1000, 512)
    assert features.dtype == np.float32


@needs_real
def test_labelme_real_votes_are_those_of_the_long_table() -> None:
    """The same votes in another format must give the same items, annotators and classes."""
    train = labelme(REAL)["train"]
    who, what = (train.features[c].feature.names for c in ("annotators", "annotations"))
    ours = {
        (row["file_name"], who[a], what[b])
        for row in train.remove_columns("features")
        for a, b in zip(row["annotators"], row["annotations"], strict=True)
    }
    with (REAL / "votes.csv").open() as file:
        theirs = [(row["file_name"], row["worker"], row["label"]) for row in csv.DictReader(file)]
    assert len(theirs) == 2547
    assert ours == set(theirs)


@needs_real
def test_labelme_real_images_are_there() -> None:
    """Each of the 2,688 names must lead to a picture."""
    dataset = labelme(REAL, content="images")
    assert dataset["test"].num_rows == 1188
    assert dataset["test"][0]["image"].size == (224, 224)
