"""Damage to valid input, both to bytes and to JSON values, which may have one of two outcomes.

An attack takes a valid input, damages it, and expects one of two outcomes: an error of ours (`is_ours`),
or the result of the undamaged input. Anything else is a fault: another exception, or silently fewer,
more or other votes.
"""

import dis
import os
import random
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hf_maxmig

SEED = int(os.environ.get("ATTACK_SEED", "18"))  # another seed gives other inputs

_PACKAGE = Path(hf_maxmig.__file__).parent
_OURS = (ValueError, TypeError, OSError, FileNotFoundError, ImportError, ConnectionError)
_STRANGE: tuple[Callable[[random.Random], Any], ...] = (
    lambda rng: None,
    lambda rng: True,
    lambda rng: -1,
    lambda rng: 10**30,
    lambda rng: 0.5,
    lambda rng: float("nan"),
    lambda rng: float("inf"),
    lambda rng: "",
    lambda rng: " ",
    lambda rng: "nan",
    lambda rng: "\ud800",
    lambda rng: "a\0b",
    lambda rng: "é\u200b\u202e\U0001f600",
    lambda rng: "x" * rng.choice((1_000, 100_000)),
    lambda rng: [],
    lambda rng: {},
    lambda rng: [[]],
    lambda rng: [None, "a", 1],
    lambda rng: {"a": {"b": [1]}},
    lambda rng: _nested(rng.choice((5, 50))),
)


def is_ours(error: BaseException) -> bool:
    """Return whether an error is a built-in one that a file of the package raised, with a message."""
    frames = list(traceback.walk_tb(error.__traceback__))
    raised_in = Path(frames[-1][0].f_code.co_filename)
    return type(error) in _OURS and bool(str(error)) and raised_in.is_relative_to(_PACKAGE)


def is_said(error: BaseException) -> bool:
    """Return whether an error of ours was raised on purpose: by a `raise`, not by `int("x")` in our code.

    A KeyError of a documented name counts, too.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    ours = is_ours(error) or (
        type(error) is KeyError and Path(frame.f_code.co_filename).is_relative_to(_PACKAGE)
    )
    return (
        ours
        and last is not None
        and frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    )


def check_is_said(error: Exception, what: str) -> None:
    """Fail, describing the input, if an error was not raised by us on purpose."""
    if not is_said(error):
        raise AssertionError(f"{what} raised {error!a:.300}") from error


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return damaged bytes: flipped, cut, repeated, swapped, or with foreign ones inserted."""
    kind = rng.randrange(11)
    start = rng.randrange(len(data) + 1)
    stop = min(len(data), start + rng.choice((1, 1, 2, 8, 64)))
    if kind == 0 and data:
        out = bytearray(data)
        for _ in range(rng.choice((1, 1, 3, 20))):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
        return bytes(out)
    if kind == 1:
        return data[:start]
    if kind == 2:
        return data[:start] + data[stop:]
    if kind == 3:
        return data[:stop] + data[start:stop] + data[stop:]
    if kind == 4:
        return data[:start] + rng.randbytes(stop - start) + data[stop:]
    if kind == 5:
        return data[:start] + b"\0" * rng.choice((1, 16)) + data[start:]
    if kind == 6:
        return b"\xef\xbb\xbf" + data
    if kind == 7:
        strange = rng.choice(
            (b'"', b"'", b",", b";", b"\t", b"\r", b"\n", b"{", b"]", b"\\", b"\xff")
        )
        return data[:start] + strange + data[start:]
    if kind == 8:
        return data[start:] + data[:start]
    if kind == 9:
        encoding = rng.choice(("utf-16", "utf-16-le", "utf-32", "latin-1"))
        return data.decode("utf-8", "replace").encode(encoding, "replace")
    return data[:start] + b"x" * 70_000 + data[start:]


def twisted(value: Any, rng: random.Random) -> Any:
    """Return a copy of lists, dicts and scalars with one place changed, dropped, doubled or swapped."""
    places = list(_places(value))
    if not places:
        return rng.choice(_STRANGE)(rng)
    path = rng.choice(places)
    return _changed(value, path, rng)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    keys: Any = ()
    if isinstance(value, dict):
        keys = value
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield (*path, key)
        yield from _places(value[key], (*path, key))


def _changed(value: Any, path: tuple[Any, ...], rng: random.Random) -> Any:
    key, *rest = path
    copy = value.copy()
    if rest:
        copy[key] = _changed(value[key], tuple(rest), rng)
        return copy
    kind = rng.randrange(5)
    if kind == 0:
        del copy[key]
    elif kind == 1 and isinstance(copy, list):
        copy.insert(key, copy[key])
    elif kind == 2 and isinstance(copy, dict):
        copy[rng.choice(list(copy))] = copy[key]
    elif kind == 3:
        copy[key] = [copy[key]]
    else:
        copy[key] = rng.choice(_STRANGE)(rng)
    return copy


def _nested(depth: int) -> Any:
    out: Any = "deep"
    for _ in range(depth):
        out = [out]
    return out
