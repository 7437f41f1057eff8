"""Files and folders of ours with the digests of what was written: a bit that has changed since is found.

A seal does not keep out whoever can write both: it finds what disks, half copies and other programs do.
"""

import json
from hashlib import file_digest
from pathlib import Path

from ..staging import staged

_SEAL = ".sha256.json"


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> _ = path.write_text("abc")
        >>> digest(path)[:8]
        'ba7816bf'
    """
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


def seal(place: Path, origin: str | None = None) -> None:
    """Write down the digests of a file, beside it, or of all files in a folder, in it.

    Args:
        place: the file or folder, which stays as it is from now on.
        origin: the digest of what it was made of.
    """
    told = {"origin": origin, "files": _digests(place)}
    with staged(_seal_of(place)) as path:
        path.write_text(json.dumps(told), encoding="utf-8")


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
