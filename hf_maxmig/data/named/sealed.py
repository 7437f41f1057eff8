"""Seal our files and folders with the digests of their content, so that a changed bit is found.

A seal detects damage by disks, partial copies and other programs. It does not protect against someone who can
write both file and seal.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout
from transformers.utils import logging

from ...model.whole_files import digest, staged

logger = logging.get_logger(__name__)

_SEAL = ".sha256.json"


def seal(place: Path, origin: str | None = None) -> None:
    """Write the digests of a file beside it, or those of all files of a folder into the folder.

    Args:
        place: the file or folder, which must not change any more.
        origin: the digest of its source.
    """
    written = {"origin": origin, "files": _digests(place)}
    with staged(_seal_of(place)) as path:
        path.write_text(json.dumps(written), encoding="utf-8")


def made_once(place: Path, make: Callable[[Path], object]) -> None:
    """Make a file of a cache, unless it is already there and unchanged.

    One of several processes makes it, and the others wait. The remains of a killed process are removed.

    Args:
        place: the path of the file; its folder is created if necessary.
        make: writes the file to the path that it is given, and may write others beside it. If it
            writes no file, none is kept.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> for text in ("first", "second"):
        ...     made_once(path, lambda place: place.write_text(text))
        >>> path.read_text(), path.write_text("damaged"), made_once(path, lambda p: p.write_text("third"))
        ('first', 7, None)
        >>> path.read_text()
        'third'
    """
    if is_whole(place):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with _lock(_making(place)):
        _sweep(place.parent)
        if is_whole(place):
            return
        if place.exists():
            logger.warning("%s has changed since it was made: it is made again.", place)
            break_seal(place)
            place.unlink()
        making = _making(place)
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        try:
            make(making / place.name)
            if (making / place.name).exists():
                os.replace(making / place.name, place)
                seal(place)
        finally:
            shutil.rmtree(making, ignore_errors=True)


def _making(place: Path) -> Path:
    return place.with_name(f".{place.name}.making")


def _lock(making: Path) -> FileLock:
    return FileLock(making.with_name(f"{making.name}.lock"))


def _sweep(folder: Path) -> None:
    """Remove what ended processes have left: files whose lock nobody holds."""
    for left in folder.glob(".*.making"):
        with contextlib.suppress(Timeout), _lock(left).acquire(timeout=0):
            shutil.rmtree(left, ignore_errors=True)


def is_sealed(place: Path) -> bool:
    """Whether there is a seal, valid or not."""
    return _seal_of(place).is_file()


def is_whole(place: Path, origin: str | None = None) -> bool:
    """Whether a file or folder is unchanged since it was sealed.

    Args:
        place: the file or folder.
        origin: the digest that its source must have; by default any.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> _ = path.write_text("abc")
        >>> seal(path)
        >>> is_whole(path), path.write_text("abd"), is_whole(path)
        (True, 3, False)
    """
    try:
        written = json.loads(_seal_of(place).read_text(encoding="utf-8"))
        asked = origin is None or written["origin"] == origin
        return asked and written["files"] == _digests(place)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def break_seal(place: Path) -> None:
    """Remove the seal, before the file or folder is replaced."""
    _seal_of(place).unlink(missing_ok=True)


def _seal_of(place: Path) -> Path:
    return place / _SEAL if place.is_dir() else place.with_name(place.name + _SEAL)


def _digests(place: Path) -> dict[str, str]:
    if not place.is_dir():
        return {"": digest(place)}
    # Hidden files are not read, and file browsers leave some behind.
    files = sorted(p for p in place.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {path.relative_to(place).as_posix(): digest(path) for path in files}
