"""Unpack untrusted archives safely.

Only regular files and folders are unpacked, each at its own place inside the folder, and only up to a
plausible number of bytes and members. Anything else makes the whole archive refused, with an error that
names the member. The filters of `tarfile` are not relied on: Python 3.11.0 has none, and some later ones
could be tricked into writing outside the folder.
"""

import os
import re
import tarfile
import time
import unicodedata
import zlib
from collections.abc import Iterator
from gzip import GzipFile
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, cast

BROKEN = (OSError, EOFError, tarfile.TarError, zlib.error)
_NO_HEADER = (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError)  # type: ignore[attr-defined]
_LONGEST_NAME, _LONGEST_PART = 1000, 255  # bytes, as most file systems have it
_LONGEST_HEADER = 1 << 20  # bytes of metadata of a member, which are all read at once
_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_USER = (os.geteuid(), os.getegid()) if hasattr(os, "geteuid") else (0, 0)
_DRIVE = re.compile(r"[A-Za-z]:")
_CHUNK = 1 << 20


class RefusedError(ValueError):
    """Raised for a member that must not be unpacked; the text names it and the cause."""


class Limits(NamedTuple):
    """How much an archive may hold.

    Args:
        bytes: maximum number of unpacked bytes.
        members: maximum number of files and folders.
        ratio: maximum of unpacked bytes per packed byte. Float features, text and pictures stay far
            below it; a bomb of zeros reaches 1,000.
        leeway: bytes that are allowed whatever the ratio.
    """

    bytes: int = 16 << 30
    members: int = 200_000
    ratio: float = 100.0
    leeway: int = 64 << 20


LIMITS = Limits()


def unpack_tar_gz(archive: Path, folder: Path, limits: Limits = LIMITS) -> None:
    """Unpack a `.tar.gz` archive into a new folder.

    Args:
        archive: the file.
        folder: the folder to create; it must not exist. If a member is refused, what was unpacked
            before it stays there.
        limits: how much the archive may hold.

    Raises:
        RefusedError: if a member is neither a file nor a folder, its name leads outside the folder, is
            not plain text or is taken, or the archive exceeds `limits`.
        OSError, EOFError, tarfile.TarError, zlib.error: if the archive is damaged (`BROKEN`).
    """
    most = min(limits.bytes, max(limits.leeway, int(limits.ratio * archive.stat().st_size)))
    folder.mkdir(parents=True)
    with GzipFile(archive) as packed:
        stream: Any = _Limited(packed, most, archive)
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as tar:
            # No filter is needed: each member has been checked.
            tar.extraction_filter = lambda member, path: member
            tar.extractall(folder, members=_checked(tar, folder.resolve(), limits))
        while stream.read(_CHUNK):  # to the end, where the checksum of gzip is
            pass


def _checked(tar: tarfile.TarFile, folder: Path, limits: Limits) -> Iterator[tarfile.TarInfo]:
    """Yield each member once it has been checked."""
    taken: dict[str, tuple[str, bool]] = {}
    for number, member in enumerate(_members(tar)):
        if number >= limits.members:
            raise RefusedError(
                f"an archive must have at most {limits.members:,} members, got more: {_shown(member.name)}."
            )
        plain = member.isdir() or member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
        if not plain or member.issparse():
            where = f" -> {_shown(member.linkname)}" * bool(member.linkname)
            raise RefusedError(
                f"an archive must hold only files and folders, got {_kind(member)}: {_shown(member.name)}{where}."
            )
        parts = _parts(member.name)
        if not parts and not member.isdir():
            raise RefusedError(f"a file must have a name, got {_shown(member.name)}.")
        _take(taken, member.name, parts, member.isdir())
        if not folder.joinpath(*parts).resolve().is_relative_to(folder):
            raise RefusedError(f"a member must lie inside the folder, got {_shown(member.name)}.")
        member.name = "/".join(parts) or "."
        # The file belongs to the user and is not executable.
        member.mode, member.mtime = 0o755 if member.isdir() else 0o644, int(time.time())
        member.uid, member.gid = _USER
        member.uname = member.gname = ""
        yield member


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members. Any other error that `tarfile` raises for a header means a broken archive."""
    while True:
        try:
            member = tar.next()
        except RefusedError:
            raise
        except (ValueError, LookupError, ArithmeticError, AttributeError, TypeError) as cause:
            raise tarfile.ReadError(f"an invalid header: {cause}") from cause
        tar.members = []  # type: ignore[attr-defined]  # otherwise it keeps them all
        if member is None:
            return
        yield member


def _take(taken: dict[str, tuple[str, bool]], name: str, parts: list[str], is_folder: bool) -> None:
    """Assign each place only once, also on file systems that ignore letter case.

    Raises:
        RefusedError: if the place is taken.
    """
    for end in range(1, len(parts) + 1):
        path, folder = "/".join(parts[:end]), is_folder or end < len(parts)
        # Names that are equal on some file systems count as equal here.
        key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
        known = taken.get(key)
        if known is not None and (known != (path, folder) or not folder):
            raise RefusedError(
                f"members must have distinct names, got {_shown(name)} after {_shown(known[0])}."
            )
        taken[key] = path, folder


def _parts(name: str) -> list[str]:
    """Split a member's name into its parts, if it stays inside the folder.

    Raises:
        RefusedError: if it leads outside, or is not plain text.
    """
    why = None
    try:
        written = name.encode("utf-8")
    except UnicodeEncodeError:
        why, written = "is not text", b""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if any(unicodedata.category(letter) == "Cc" for letter in name):
        why = "has control characters"
    elif PurePosixPath(name).is_absolute() or _DRIVE.match(name) or "\\" in name:
        why = "is absolute, at least on some systems"
    elif ".." in parts:
        why = "lies outside the folder"
    elif len(written) > _LONGEST_NAME or any(
        len(part.encode("utf-8", "replace")) > _LONGEST_PART for part in parts
    ):
        why = f"is longer than {_LONGEST_NAME} bytes, or has a part longer than {_LONGEST_PART}"
    if why is not None:
        raise RefusedError(f"a member must have a plain name, got {_shown(name)}, which {why}.")
    return parts


def _kind(member: tarfile.TarInfo) -> str:
    for asked, kind in (
        (member.issym, "a symbolic link"),
        (member.islnk, "a hard link"),
        (member.isdev, "a device"),  # and pipes
        (member.issparse, "a file with holes"),
    ):
        if asked():
            return kind
    return f"a member of type {member.type!r}"


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 100 else f"{name[:97]}...")


class _Member(tarfile.TarInfo):
    """A member whose headers are refused if they are large: `tarfile` would read them whole."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Member":
        """Read the next member. An invalid header would otherwise pass for the end of the archive."""
        try:
            return cast("_Member", super().fromtarfile(tarfile_))
        except _NO_HEADER as cause:
            raise tarfile.ReadError(f"a member's header is invalid ({cause})") from cause

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.size < 0:
            raise tarfile.ReadError("a member of negative size")
        if self.type in _HEADERS and self.size > _LONGEST_HEADER:
            raise RefusedError(
                f"a member's header must have at most {_LONGEST_HEADER:,} bytes, got {self.size:,}."
            )
        return super()._proc_member(tar)  # type: ignore[misc]


class _Limited:
    """A stream that refuses to be read beyond a number of bytes."""

    def __init__(self, stream: GzipFile, most: int, archive: Path) -> None:
        self.stream, self.most, self.archive = stream, most, archive
        self.seen = 0

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes."""
        part = self.stream.read(size)
        self.seen += len(part)
        if self.seen > self.most:
            raise RefusedError(
                f"{self.archive.name} must unpack to at most {self.most:,} bytes, got more, of "
                f"{self.archive.stat().st_size:,} packed."
            )
        return part
