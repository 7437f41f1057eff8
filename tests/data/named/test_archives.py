"""Untrusted archives: nothing is written outside the folder, and no amount of data without a limit."""

import gzip
import io
import os
import random
import struct
import tarfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_maxmig.data.named import archives
from hf_maxmig.data.named.archives import BROKEN, Limits, RefusedError, unpack_tar_gz
from tests.attacks.mutations import SEED

MODES = (0o644, 0o755)


def member(name, content=b"evil", **fields):
    """Return a member with any name and type, as `tarfile` would write it."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def link(name, to, kind=tarfile.SYMTYPE):
    return member(name, b"", type=kind, linkname=to)


def folder(name):
    return member(name, b"", type=tarfile.DIRTYPE, mode=0o777)


def written(path, members, form=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w:gz", format=form, errors="surrogateescape") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


def sparse(name, size):
    """Return a file of any size that is one hole and takes only a few bytes in the archive."""
    info, _ = member(name, b"")
    headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": f"{size},0",
        "GNU.sparse.size": str(size),
    }
    info.pax_headers = headers
    return info, b""


GOOD = [folder("LabelMe/"), member("LabelMe/a.txt", b"one"), member("./LabelMe/b/c.txt", b"two")]
HOSTILE = {
    "dots": [member("../evil.txt")],
    "dots inside": [member("LabelMe/../../evil.txt")],
    "dots that come back": [member("LabelMe/../LabelMe/evil.txt")],
    "absolute": [member("/tmp/evil.txt")],
    "drive": [member("C:/evil.txt")],
    "backslashes": [member("..\\evil.txt")],
    "symbolic link": [link("LabelMe/link", "a.txt")],
    "symbolic link outside": [link("LabelMe/link", "../../outside")],
    "hard link": [link("LabelMe/link", "LabelMe/a.txt", tarfile.LNKTYPE)],
    "hard link outside": [link("LabelMe/link", "../outside/kept.txt", tarfile.LNKTYPE)],
    "written through a link": [link("up", "../outside"), member("up/kept.txt")],
    "written through a chain of links": [
        link("a" * 200, "b"), *[link(f"{'d' * 200}/{n}", "..") for n in range(3)],
        link("chain", f"{'a' * 200}/../../outside"), member("chain/kept.txt"),
    ],
    "character device": [member("dev", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5)],
    "block device": [member("dev", b"", type=tarfile.BLKTYPE)],
    "pipe": [member("pipe", b"", type=tarfile.FIFOTYPE)],
    "unknown type": [member("unknown", b"", type=b"Z")],
    "hole": [sparse("hole", 1 << 40)],
    "twice": [member("LabelMe/a.txt")],
    "twice, otherwise written": [member("LabelMe//./a.txt")],
    "capital letters": [member("LabelMe/A.TXT")],
    "capital letters in a folder": [member("labelme/d.txt")],
    "accents composed and not": [member("LabelMe/\u00e9"), member("LabelMe/e\u0301")],
    "file in place of a folder": [member("LabelMe/b")],
    "folder in place of a file": [member("LabelMe/a.txt/d")],
    "NUL": [member("x", pax_headers={"path": "LabelMe/a\0b"})],
    "line break": [member("LabelMe/a\nb")],
    "half a character": [member("LabelMe/\udcff")],
    "long part": [member("LabelMe/" + "n" * 256)],
    "long name": [member("/".join(["n" * 200] * 6))],
    "deep": [member("d/" * 5000 + "x")],
    "no name": [member("."), member("./")],
    "empty": [member("")],
}  # fmt: skip


@pytest.fixture
def outside(tmp_path):
    """Create a file beside the folder that the archive is unpacked into."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept.txt").write_text("kept")
    return tmp_path / "outside"


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_plain_archive_is_unpacked(form, tmp_path, outside):
    """If plain archives were refused too, the refusals below would mean nothing."""
    names = [
        "LabelMe/" + "n" * 200,
        "LabelMe/\u00e9t\u00e9 #1 [a].jpg",
        "LabelMe/..x",
        "LabelMe/a:b",
    ]
    members = [
        *GOOD, folder("LabelMe/"), folder("./"), *(member(name, mode=0o4777) for name in names),
        member("LabelMe/late", uid=77, mtime=2**33),
    ]  # fmt: skip
    unpack_tar_gz(written(tmp_path / "a.tar.gz", members, form), tmp_path / "new")
    assert tree(tmp_path / "new") == {
        "LabelMe/a.txt": b"one", "LabelMe/b/c.txt": b"two", "LabelMe/late": b"evil",
        **dict.fromkeys(names, b"evil"),
    }  # fmt: skip
    for path in (tmp_path / "new").rglob("*"):
        assert path.stat().st_mode & 0o7777 in MODES
        assert not path.is_symlink()
        assert path.stat().st_uid == os.geteuid()


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_member_is_refused_by_name(kind, form, tmp_path, outside):
    """Nothing may be written outside the folder, and the error must name the member."""
    if form == tarfile.GNU_FORMAT and kind in ("NUL", "hole"):
        pytest.skip("only a header of the other format says this")
    archive = written(tmp_path / "a.tar.gz", [*GOOD, *HOSTILE[kind]], form)
    before = {path.name for path in tmp_path.iterdir()} | {"new"}
    with pytest.raises(RefusedError, match=r"must .*got") as raised:
        unpack_tar_gz(archive, tmp_path / "new")
    shown = str(raised.value)
    assert (
        any(ascii(info.name)[1:40].rstrip("'") in shown for info, _ in HOSTILE[kind])
        or kind == "NUL"
    )
    assert len(shown) < 500
    assert {path.name for path in tmp_path.iterdir()} == before
    assert tree(outside) == {"kept.txt": b"kept"}
    assert set(tree(tmp_path / "new")) <= {"LabelMe/a.txt", "LabelMe/b/c.txt", "LabelMe/\u00e9"}


def test_link_that_is_there_is_not_followed(tmp_path, outside):
    """The folder is always new, so whatever already lies in it is not trusted either."""
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "up").symlink_to(outside)
    with pytest.raises(FileExistsError):
        unpack_tar_gz(written(tmp_path / "a.tar.gz", [member("up/kept.txt")]), tmp_path / "new")
    assert tree(outside) == {"kept.txt": b"kept"}


def zeros(path, name, size):
    """Write a megabyte that unpacks to a gigabyte."""
    info, _ = member(name, b"")
    info.size = size
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(info.tobuf())
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return path


def test_bomb_is_stopped_early(tmp_path):
    """A full disk stops more than this program."""
    limits = Limits(leeway=3 << 20)
    archive = zeros(tmp_path / "a.tar.gz", "zeros", 64 << 20)
    assert archive.stat().st_size < 1 << 20
    with pytest.raises(
        RefusedError, match="a.tar.gz must unpack to at most .* bytes, got more, of"
    ):
        unpack_tar_gz(archive, tmp_path / "new", limits)
    most = max(limits.leeway, int(limits.ratio * archive.stat().st_size))
    assert (tmp_path / "new" / "zeros").stat().st_size <= most
    limits = Limits(bytes=5 << 20, ratio=1e9)
    with pytest.raises(RefusedError, match="at most 5,242,880 bytes"):
        unpack_tar_gz(archive, tmp_path / "newer", limits)


def test_default_limits_let_data_pass_and_no_bomb(tmp_path):
    """Float features compress to a half, not to a hundredth; zeros compress to a thousandth."""
    assert archives.LIMITS.bytes >= 4 << 30
    rows = random.Random(SEED).randbytes(1 << 16) + bytes(1 << 16)
    assert len(zlib.compress(rows)) * archives.LIMITS.ratio > 10 * len(rows)
    assert max(archives.LIMITS.leeway, archives.LIMITS.ratio * (1 << 20)) < 1 << 20 << 10


def test_too_many_members_are_refused(tmp_path):
    """A million empty files exhaust the inodes of a disk, not its space."""
    members = [member(f"f{n}", b"") for n in range(12)]
    archive = written(tmp_path / "a.tar.gz", members)
    unpack_tar_gz(archive, tmp_path / "new", Limits(members=12))
    with pytest.raises(RefusedError, match="at most 11 members, got more: 'f11'"):
        unpack_tar_gz(archive, tmp_path / "newer", Limits(members=11))


@pytest.mark.parametrize("kind", archives._HEADERS)
def test_header_that_fills_the_memory_is_refused(kind, tmp_path):
    """`tarfile` reads a long name at once, before any check can look at it."""
    info = tarfile.TarInfo("long")
    info.type, info.size = kind, 32 << 20
    with gzip.open(tmp_path / "a.tar.gz", "wb", compresslevel=1) as file:
        file.write(info.tobuf() + bytes(32 << 20))
    with pytest.raises(
        RefusedError, match="header must have at most 1,048,576 bytes, got 33,554,432"
    ):
        unpack_tar_gz(tmp_path / "a.tar.gz", tmp_path / "new")


def test_size_below_zero_does_not_loop_for_ever(tmp_path):
    """The next member would be the same one again."""
    block = bytearray(tarfile.TarInfo("x").tobuf())
    block[124:136] = struct.pack(">BxxxQ", 0xFF, 2**64 - 512)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % (256 + sum(block[:148]) + sum(block[156:512]))
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(bytes(block) + bytes(1024)))
    with pytest.raises((*BROKEN, RefusedError)):
        unpack_tar_gz(tmp_path / "a.tar.gz", tmp_path / "new")


NAMES = st.lists(
    st.sampled_from(["..", ".", "", "a", "A", "b", "up", "outside", "kept.txt", "C:", "\\", "\0", "\udcff", "\u00e9", "n" * 256]),
    max_size=5,
).map("/".join)  # fmt: skip
TYPES = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(NAMES, st.sampled_from(TYPES), NAMES), max_size=6))
def test_any_members_lie_inside_or_are_refused(tmp_path_factory, members):
    """Names and links come in any order: a chain of harmless ones may lead outside."""
    base = tmp_path_factory.mktemp("any")
    (base / "outside").mkdir()
    (base / "outside" / "kept.txt").write_text("kept")
    stored = [
        member(name.replace("\0", ""), b"evil" if kind == tarfile.REGTYPE else b"", type=kind, linkname=to.replace("\0", ""),
               pax_headers={"path": name} if "\0" in name else {})
        for name, kind, to in members
    ]  # fmt: skip
    archive = written(base / "a.tar.gz", stored)
    harmless = True
    try:
        unpack_tar_gz(archive, base / "new")
    except (RefusedError, *BROKEN):
        harmless = False
    assert {path.name for path in base.iterdir()} == {"outside", "a.tar.gz", "new"}
    assert tree(base / "outside") == {"kept.txt": b"kept"}
    assert not [path for path in (base / "new").rglob("*") if path.is_symlink()]
    if harmless:
        files = {os.path.normpath(name) for name, kind, _ in members if kind == tarfile.REGTYPE}
        assert set(tree(base / "new")) == files


@pytest.mark.slow
def test_damaged_archive_is_whole_or_not_there(tmp_path):
    """After any flipped bit or cut, gzip's checksum finds what no header shows."""
    rng = random.Random(SEED)
    whole = written(tmp_path / "whole.tar.gz", GOOD).read_bytes()
    expected = None
    for number in range(600):
        damaged = bytearray(whole)
        if number % 3 == 0:
            del damaged[rng.randrange(len(damaged)) :]
        elif number % 3 == 1:
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        else:  # a complete gzip file of a damaged tar
            plain = bytearray(gzip.decompress(whole))
            plain[rng.randrange(5 * 512)] ^= 1 << rng.randrange(8)
            damaged = bytearray(gzip.compress(bytes(plain)))
        path = tmp_path / f"{number}.tar.gz"
        path.write_bytes(damaged)
        try:
            unpack_tar_gz(path, tmp_path / str(number))
        except (RefusedError, *BROKEN):
            continue
        expected = {"LabelMe/a.txt": b"one", "LabelMe/b/c.txt": b"two"}
        found = tree(tmp_path / str(number))
        # The content of a tar has no checksum, but its headers have.
        assert found == expected if number % 3 != 2 else found.keys() == expected.keys()
    assert expected is not None
    assert not [p for p in Path(tmp_path).rglob("*") if p.is_symlink()]
