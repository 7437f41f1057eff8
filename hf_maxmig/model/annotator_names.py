"""Names of annotators in a shared model: plain, as salted hashes, or dropped.

Names may be personal data.
"""

import contextlib
import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

SHARED_AS = ("names", "hashed", "dropped")
LEAST_SALT = 16  # characters: names are few and can be guessed, if the salt can
_HASH = 16  # hexadecimal digits


def hashed_names(names: Sequence[str], salt: str) -> list[str]:
    """Replace names by salted hashes; only someone with names and salt can match them.

    Args:
        names: unique.
        salt: a secret of 16 characters or more; the same one gives the same hashes.

    Returns:
        As many hexadecimal numbers of 16 digits, HMAC-SHA-256.

    Raises:
        TypeError: if the salt is not text.
        ValueError: if the salt is shorter.

    Example:
        >>> hashed_names(["bob", "ann"], salt="not this one, please")
        ['b16455290235576f', '65dc3a238ad4869d']
    """
    key = check_salt(salt).encode("utf-8", "surrogatepass")
    encoded = (str(name).encode("utf-8", "surrogatepass") for name in names)
    return [hmac.new(key, name, hashlib.sha256).hexdigest()[:_HASH] for name in encoded]


def check_salt(salt: str, name: str = "salt") -> str:
    """Check a salt, and return it. The error does not show its characters.

    Args:
        salt: the salt.
        name: of the argument, for the error.

    Raises:
        TypeError: if the salt is not text.
        ValueError: if the salt is too short.
    """
    if not isinstance(salt, str):
        raise TypeError(f"`{name}` must be a string, got {type(salt).__name__}.")
    if len(salt) < LEAST_SALT:
        raise ValueError(
            f"`{name}` must have at least {LEAST_SALT} characters, got {len(salt)}: names are few, and "
            "a short salt can be guessed with them. `secrets.token_hex()` makes one."
        )
    return salt


def hashed_order(names: Sequence[str], salt: str) -> tuple[list[str], list[int]]:
    """Sort the hashes of names; in the order of the names they would reveal who is who.

    Args:
        names: unique.
        salt: as in `hashed_names`.

    Returns:
        The sorted hashes, and for each the place of its name in `names`.

    Raises:
        TypeError: if the salt is not text.
        ValueError: if the salt is too short, or two names have the same hash.

    Example:
        >>> hashed_order(["bob", "ann"], salt="not this one, please")
        (['65dc3a238ad4869d', 'b16455290235576f'], [1, 0])
    """
    hashes = hashed_names(names, salt)
    if len(set(hashes)) != len(hashes):
        raise ValueError(
            f"`annotators` must be unique names, and so must be their hashes, got {len(set(hashes))} hashes of "
            f"{len(hashes)} names: take another salt."
        )
    order = sorted(range(len(hashes)), key=hashes.__getitem__)
    return [hashes[place] for place in order], order


def check_shared_as(annotators: str, salt: str | None) -> None:
    """Check in which form the annotators are shared.

    Args:
        annotators: one of `SHARED_AS`.
        salt: needed for `hashed`, and only for it.

    Raises:
        ValueError: if `annotators` is none of the three, or the salt is missing or not needed.

    Example:
        >>> check_shared_as("dropped", None)
    """
    if annotators not in SHARED_AS:
        raise ValueError(f"`annotators` must be one of {', '.join(SHARED_AS)}, got {annotators!r}.")
    if (annotators == "hashed") != (salt is not None):
        raise ValueError(
            "`salt` must be given with `annotators='hashed'`, and only with it, got "
            f"{'none' if salt is None else 'one'} with {annotators!r}: `secrets.token_hex()` makes one."
        )


def hash_names(model: Any, salt: str) -> None:
    """Replace a model's annotator names by hashes, and sort its annotators by hash.

    Args:
        model: a crowd model.
        salt: as in `hashed_names`.

    Raises:
        ValueError: as `hashed_order`, or if the annotators have no names.
    """
    if model.config.annotators is None:
        raise ValueError(
            f"the annotators must have names to be hashed, got only their number, {model.config.num_annotators}: "
            "share the model with `annotators='dropped'`, or give it their names (`config.annotators`)."
        )
    hashes, order = hashed_order(model.config.annotators, salt)
    model.reorder_annotators(torch.tensor(order))
    model.config.annotators = hashes


@contextlib.contextmanager
def names_hashed(
    model: Any, salt: str, whole: Callable[[], contextlib.AbstractContextManager[None]]
) -> Iterator[None]:
    """Hash a model's annotator names within this context; names and order are restored afterwards.

    Args:
        model: a crowd model.
        salt: as in `hashed_names`.
        whole: a context that gathers parameters which are sharded over devices.

    Raises:
        ValueError: as `hash_names`.
    """
    names = model.config.annotators
    with whole():
        model.hash_annotators(salt)
    try:
        yield
    finally:
        place = {name: m for m, name in enumerate(model.config.annotators)}
        model.config.annotators = names
        back = torch.tensor([place[name] for name in hashed_names(names, salt)])
        with whole():
            model.reorder_annotators(back)
