"""Write a file, or a saved model, completely or not at all; a manifest lists what a folder must hold.

The manifest has the size and the digest of each file. It is written last and read first. A folder that was
not saved completely has none; a folder that was damaged later does not match it.
"""

import contextlib
import errno
import filecmp
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

MANIFEST = "_manifest.json"  # the underscore keeps it out of what `push_to_hub` uploads
CONFIG = "config.json"
# Unfinished files and folders begin with one of these.
_SAVING, _SWITCHING = "_saving-", "_switching-"
_UNFINISHED = (_SAVING, _SWITCHING, ".saving-")
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES)
_checked: set[Path] = set()

Entry = dict[str, Any]  # size in bytes and SHA-256 of a file


def write_manifest(
    folder: Path, files: Iterable[str] | None = None, known: Mapping[str, Entry] | None = None, **facts: Any
) -> None:  # fmt: skip
    """List what a folder holds, once all of it is on the disk.

    Args:
        folder: the folder.
        files: paths inside it; all files by default.
        known: entries of files that need not be read again.
        **facts: further entries, as JSON.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.bin").write_bytes(b"abc")
        >>> write_manifest(folder, step=3)
        >>> check_whole(folder)["step"]
        3
        >>> _ = (folder / "a.bin").write_bytes(b"abd")
        >>> check_whole(folder)
        Traceback (most recent call last):
        ...
        ValueError: `a.bin` must be as it was saved, got other content in ...
    """
    known = known or {}
    names = _files_of(folder) if files is None else sorted(files)
    entries = {**known, **entries_of(folder, [n for n in names if n not in known])}
    content = {**facts, "files": {name: entries[name] for name in names}}
    text = json.dumps({"digest": _digest_of(content), **content}, indent=1) + "\n"
    _write_at_once(folder / MANIFEST, text)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read what a folder must hold.

    Args:
        folder: the folder.

    Returns:
        The facts, and `files`: an entry for each path inside; None if there is no manifest.

    Raises:
        ValueError: if the manifest itself was damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        whole = content.pop("digest") == _digest_of(content) and isinstance(content["files"], dict)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(
            f"`{MANIFEST}` must be as it was saved, got other content in {folder}: the folder was damaged. If you know "
            "that its files are right, delete this one."
        )
    return content


def check_whole(folder: Path, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Check that files are there and are unchanged since they were saved.

    Args:
        folder: the folder.
        names: which files; by default all that the manifest lists. Files that it does not list are ignored.

    Returns:
        The manifest; empty if there is none.

    Raises:
        ValueError: if the manifest, or one of the files, is missing or was changed.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        return {}
    if folder.resolve() in _checked:
        return manifest
    saved = manifest["files"]
    chosen = sorted(saved if names is None else {*names} & {*saved})
    for name in chosen:
        size = (folder / name).stat().st_size if (folder / name).is_file() else None
        if size is None or (size != saved[name]["size"] and name != CONFIG):
            found_size = (
                "none" if size is None else f"{size:,} bytes instead of {saved[name]['size']:,}"
            )
            raise _changed(name, found_size, folder)
    for name, found in entries_of(folder, chosen).items():
        if found["sha256"] != saved[name]["sha256"]:
            raise _changed(name, "other content", folder)
    return manifest


def check_model(folder: Path) -> None:
    """Check the files of a saved model, if there is a manifest: its weights, and the fields of its config.

    A config may gain or lose fields, because a user edited it or an older version wrote it. A field that it
    had must keep its value.

    Args:
        folder: the folder.

    Raises:
        ValueError: if a file is missing or was changed.
    """
    weights = [path.name for path in folder.iterdir() if _is_weights(path.name)]
    saved = check_whole(folder, weights).get("files", {})
    missing = [name for name in saved if _is_weights(name) and name not in weights]
    if missing or (CONFIG in saved and not (folder / CONFIG).is_file()):
        raise _changed((*missing, CONFIG)[0], "none", folder)
    if CONFIG in saved and folder.resolve() not in _checked:
        before, now = saved[CONFIG].get("fields", {}), _fields_of(folder / CONFIG)
        changed = [name for name in before if now.get(name, before[name]) != before[name]]
        renamed = [name for name in before if name not in now] if {*now} - {*before} else []
        if changed or renamed:
            raise _changed(CONFIG, f"another `{(changed or renamed)[0]}`", folder)


def _changed(name: str, found: str, folder: Path) -> ValueError:
    return ValueError(
        f"`{name}` must be as it was saved, got {found} in {folder}: it was damaged, or belongs to another save. If it "
        f"was changed on purpose, delete `{MANIFEST}`."
    )


@contextlib.contextmanager
def already_checked(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Within this context, read the files of a folder without computing their digests again."""
    added = set() if folder is None else {Path(folder).resolve()} - _checked
    _checked.update(added)
    try:
        yield
    finally:
        _checked.difference_update(added)


def entries_of(folder: Path, names: Iterable[str]) -> dict[str, Entry]:
    """Return size and digest of files, once they are on the disk; for a config, of its content."""
    names = list(names)
    # In parallel, so that the disk is synchronised once and not for each file.
    with ThreadPoolExecutor(max_workers=8) as pool:
        return dict(zip(names, pool.map(_entry_of, (folder / n for n in names)), strict=True))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits.

    Example:
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> _ = path.write_text("abc")
        >>> digest(path)[:8]
        'ba7816bf'
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _entry_of(path: Path) -> Entry:
    with path.open("rb") as file:
        with contextlib.suppress(
            OSError
        ):  # not every system allows it for a file opened for reading
            os.fsync(file.fileno())
        entry: Entry = {"size": os.fstat(file.fileno()).st_size}
        if path.name == CONFIG:
            with contextlib.suppress(ValueError, RecursionError):  # spaces and order do not matter
                content = json.loads(file.read())
                return {**entry, "sha256": _digest_of(content), "fields": _fields_of(path)}
    return {**entry, "sha256": digest(path)}


def _fields_of(config: Path) -> dict[str, str]:
    content = json.loads(config.read_text(encoding="utf-8"))
    fields = content.items() if isinstance(content, dict) else ()
    return {str(name): _digest_of(value)[:16] for name, value in fields}


@contextlib.contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Write a file beside its path, and move it there only when it is complete.

    Args:
        path: where the file goes; missing folders are made.

    Yields:
        A path of the same name beside it. If writing fails, the old file at `path` remains.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> with staged(folder / "a.txt") as place:
        ...     _ = place.write_text("whole")
        >>> (folder / "a.txt").read_text()
        'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".saving-") as folder:
        place = Path(folder, path.name)
        yield place
        os.replace(place, path)


@contextlib.contextmanager
def written_whole(target: Path) -> Iterator[str]:
    """Write a model to a folder inside the target first, then put it in the place of the old one.

    If the process is killed at any moment, the target holds the old model or the new one: see `_switch`.
    The inner folder has a name that `push_to_hub` leaves out.

    Args:
        target: the folder, made if absent.

    Yields:
        Where to write.

    Raises:
        OSError: if the disk is full or not writable; the old model is still there.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target, prefix=_SAVING) as staging:
            yield staging
            _take_place(Path(staging), target)
    except Exception as error:
        number = getattr(error, "errno", None)
        if number in _NOT_WRITTEN or type(error).__name__ == "SafetensorError":
            raise OSError(
                f"a model must be written whole, got an error in {target}: {error}. The old files are still there: free "
                "disk space, or choose a writable folder."
            ) from error
        raise


def _take_place(staging: Path, target: Path) -> None:
    names = _files_of(staging)
    weights = [name for name in names if _is_weights(name)]
    model = [*weights, *(n for n in names if n == CONFIG)]
    known = (read_manifest(staging) or {}).get("files", {})  # of the model just saved there
    entries = {**entries_of(staging, [name for name in model if name not in known]), **known}
    if model:
        (target / MANIFEST).unlink(missing_ok=True)
    for name in names:
        if name not in model and not _equal(staging / name, target / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / name, target / name)
    if CONFIG in model and weights and (target / CONFIG).is_file():
        _switch(staging, target, weights)
    else:
        for name in model:  # the config last
            os.replace(staging / name, target / name)
    if weights:
        for stale in list(target.iterdir()):
            if _is_weights(stale.name) and stale.name not in weights:
                stale.unlink()
    if model:
        write_manifest(target, model, entries)


def _switch(staging: Path, target: Path, weights: list[str]) -> None:
    """Exchange config and weights, which are several files, by replacing a single one: the config.

    A config may name the file of the weights (`transformers_weights`). At first the new config names the
    place where they were written, and transformers reads them there. Then they are linked to their usual
    names, and the config as it was saved replaces the first.
    """
    held = target / staging.name.replace(_SAVING, _SWITCHING)
    os.rename(staging, held)
    main = weights[0]
    if len(weights) > 1:
        main = "held.safetensors.index.json"
        (index,) = (held / name for name in weights if name.endswith(".index.json"))
        content = json.loads(index.read_text(encoding="utf-8"))
        content["weight_map"] = {
            tensor: f"{held.name}/{part}" for tensor, part in content["weight_map"].items()
        }
        (held / main).write_text(json.dumps(content), encoding="utf-8")
    config = json.loads((held / CONFIG).read_text(encoding="utf-8"))
    config["transformers_weights"] = f"{held.name}/{main}"
    _write_at_once(target / CONFIG, json.dumps(config, indent=2) + "\n")
    # From here on the target holds the new model.
    for name in weights:
        link = held / f"link-{name}"
        try:
            os.link(held / name, link)
        except OSError:  # not every file system has links
            shutil.copyfile(held / name, link)
        os.replace(link, target / name)
    os.replace(held / CONFIG, target / CONFIG)
    for left in target.glob(f"{_SWITCHING}*"):  # also those of saves that were killed
        shutil.rmtree(left, ignore_errors=True)


def _files_of(folder: Path) -> list[str]:
    """List the files of a folder and its subfolders, except unfinished ones."""
    paths = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return sorted(
        p.as_posix() for p in paths if p.name != MANIFEST and not p.parts[0].startswith(_UNFINISHED)
    )


def _is_weights(name: str) -> bool:
    return fnmatch(name, "model*.safetensors*") and "/" not in name


def _equal(first: Path, second: Path) -> bool:
    return second.is_file() and filecmp.cmp(first, second, shallow=False)


def _digest_of(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _write_at_once(path: Path, text: str) -> None:
    """Write a file beside its place, sync it to the disk, and only then replace the old one."""
    place = path.with_name(f"{_SAVING}{path.name}")
    with place.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(place, path)
