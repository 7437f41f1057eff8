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
    """Write down the digests of a file, beside it, or of all files in a folder, in it.

    Args:
        place: the file or folder, which stays as it is from now on.
        origin: the digest of what it was made of.
    """
    told = {"origin": origin, "files": _digests(place)}
    with staged(_seal_of(place)) as path:
        path.write_text(json.dumps(told), encoding="utf-8")


def made_once(place: Path, make: Callable[[Path], object]) -> None:
    """Make a file of a cache, unless it is there as it was made.

    Of several processes one makes it and the others wait. What a killed one has left is swept.

    Args:
        place: of the file; the folder is made if need be.
        make: writes the file to the path that it is given, and may write others beside it. If it
            writes none, none is kept.

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
            logger.warning("%s is not as it was made: it is made again.", place)
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
    """Remove what processes have left that are no longer there: nobody holds its lock."""
    for left in folder.glob(".*.making"):
        with contextlib.suppress(Timeout), _lock(left).acquire(timeout=0):
            shutil.rmtree(left, ignore_errors=True)


def is_sealed(place: Path) -> bool:
    """Whether a seal is there, right or wrong."""
    return _seal_of(place).is_file()


def is_whole(place: Path, origin: str | None = None) -> bool:
    """Whether a file or folder is as it was when it was sealed.

    Args:
        place: the file or folder.
        origin: the digest of what it must have been made of; anything by default.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> _ = path.write_text("abc")
        >>> seal(path)
        >>> is_whole(path), path.write_text("abd"), is_whole(path)
        (True, 3, False)
    """
    try:
        told = json.loads(_seal_of(place).read_text(encoding="utf-8"))
        asked = origin is None or told["origin"] == origin
        return asked and told["files"] == _digests(place)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def break_seal(place: Path) -> None:
    """Take the seal off, before what it is of is replaced."""
    _seal_of(place).unlink(missing_ok=True)


def _seal_of(place: Path) -> Path:
    return place / _SEAL if place.is_dir() else place.with_name(place.name + _SEAL)


def _digests(place: Path) -> dict[str, str]:
    if not place.is_dir():
        return {"": digest(place)}
    # What is hidden is read by nobody, and file browsers leave such behind.
    files = sorted(p for p in place.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {path.relative_to(place).as_posix(): digest(path) for path in files}
