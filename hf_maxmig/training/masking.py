"""Secrets: they are used where needed, and never shown or written."""

import re
from collections.abc import Callable, Iterable
from typing import Any

_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{8,}")
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@\"'<>]+(?=@)")
_ASKED_FOR = re.compile(
    r"([?&](?:access_|api_|auth_)?(?:token|key|password|secret|sig|signature)=)[^&#\s\"'<>]+",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?:^|[_-])(?:token|salt|secret|password|passwd|api_?key)$", re.IGNORECASE)
HIDDEN = "<HIDDEN>"


def is_secret(name: str) -> bool:
    """Whether a name is that of a secret.

    Example:
        >>> [is_secret(name) for name in ("hub_token", "--hub-salt", "num_tokens", "keyboard")]
        [True, True, False, False]
    """
    return _NAME.search(name) is not None


def masked(value: Any) -> Any:
    """Replace recognisable secrets: tokens of the Hub, passwords in addresses.

    Args:
        value: a string, or lists, tuples and dictionaries of strings; a string whose key names a
            secret is hidden completely. Anything else stays.

    Returns:
        The same, masked.

    Example:
        >>> masked("https://ann:pass@example.org/a?token=abc&page=2")
        'https://<HIDDEN>@example.org/a?token=<HIDDEN>&page=2'
        >>> masked({"api_key": "abc", "steps": [3, "hf_abcdefghijkl"]})
        {'api_key': '<API_KEY>', 'steps': [3, '<HF_TOKEN>']}
    """
    if isinstance(value, Secret):
        return repr(value)
    if isinstance(value, str):
        text = _TOKEN.sub("<HF_TOKEN>", _IN_ADDRESS.sub(HIDDEN, value))
        return _ASKED_FOR.sub(rf"\1{HIDDEN}", text)
    if isinstance(value, dict):
        return {
            key: f"<{key.upper()}>"
            if isinstance(key, str) and isinstance(part, str) and part and is_secret(key)
            else masked(part)
            for key, part in value.items()
        }
    if type(value) in (list, tuple):
        return type(value)(masked(part) for part in value)
    return value


def masked_flags(flags: Iterable[str]) -> list[str]:
    """Mask a command line, including the value after a flag that names a secret, or begins such a name.

    Example:
        >>> masked_flags(["--hub_token", "abc", "--hub_salt=def", "--seed", "3", "--hub_sal", "ghi"])
        ['--hub_token', '<HIDDEN>', '--hub_salt=<HIDDEN>', '--seed', '3', '--hub_sal', '<HIDDEN>']
    """
    shown, hide = [], False
    for flag in flags:
        name, equals, _ = flag.partition("=")
        named = name.startswith("--") and (is_secret(name) or _begins_secret(name))
        if named:
            shown.append(f"{name}={HIDDEN}" if equals else flag)
        else:
            shown.append(HIDDEN if hide and not flag.startswith("--") else masked(flag))
        hide = named and not equals
    return shown


def _begins_secret(flag: str) -> bool:
    # argparse may accept the beginning of a flag for the whole.
    flag = flag.replace("-", "_")
    return any(
        len(flag) >= len("__hub_t") and whole.startswith(flag)
        for whole in ("__hub_token", "__hub_salt", "__push_to_hub_token")
    )


class Secret(str):
    """A string that can be used as any other, but is not shown.

    `repr` and `str` return the mask. A deep copy or a pickle is the mask: `dataclasses.asdict` and the code
    that writes results copy deeply. Only a formatted string holds the secret; the Hub's client makes
    its header that way.

    Args:
        text: the secret.
        mask: what is shown.

    Example:
        >>> import copy
        >>> token = Secret("abc", "<TOKEN>")
        >>> token == "abc", f"Bearer {token}", [token], str(token), copy.deepcopy({"token": token})
        (True, 'Bearer abc', [<TOKEN>], '<TOKEN>', {'token': '<TOKEN>'})
    """

    _mask: str

    def __new__(cls, text: str, mask: str = HIDDEN) -> "Secret":
        """Make one of a text."""
        secret = super().__new__(cls, text)
        secret._mask = mask
        return secret

    def __repr__(self) -> str:
        return self._mask

    def __str__(self) -> str:
        return self._mask

    def __format__(self, spec: str) -> str:
        return format(str.__str__(self), spec)

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, memo: Any) -> str:
        return self._mask

    def __reduce_ex__(self, protocol: Any) -> tuple[type, tuple[str]]:
        return str, (self._mask,)


class Vault:
    """The secrets of one object. It can only be replaced, not changed, and its pickle is empty.

    Args:
        **secrets: by name.
    """

    __slots__ = ("_secrets",)

    def __init__(self, **secrets: Secret) -> None:
        self._secrets = secrets

    def get(self, name: str) -> Secret | None:
        """Return one of the secrets; None if it is not there."""
        return self._secrets.get(name)

    def put(self, name: str, value: Secret | None) -> "Vault":
        """Return a vault with this secret added, or without it if the value is None."""
        rest = {n: secret for n, secret in self._secrets.items() if n != name}
        return Vault(**rest) if value is None else Vault(**rest, **{name: value})

    def __repr__(self) -> str:
        return HIDDEN

    def __deepcopy__(self, memo: Any) -> "Vault":
        return self

    def __reduce_ex__(self, protocol: Any) -> tuple[type, tuple[()]]:
        return Vault, ()


def hides(*names: str) -> Callable[[type], type]:
    """Decorate a dataclass so that fields with secrets are kept in a vault and read as `Secret`s.

    Args:
        *names: of the fields.

    Example:
        >>> import copy, dataclasses
        >>> @hides("token")
        ... @dataclasses.dataclass
        ... class Arguments:
        ...     token: str | None = None
        >>> given = Arguments("abc")
        >>> given.token == "abc", given, vars(given), dataclasses.asdict(given)
        (True, Arguments(token=<TOKEN>), {'_vault': <HIDDEN>}, {'token': '<TOKEN>'})
        >>> copy.deepcopy(given).token == "abc", dataclasses.replace(given).token == "abc"
        (True, True)
    """

    def decorate(kind: type) -> type:
        for name in names:
            setattr(kind, name, _hidden(name))
        return kind

    return decorate


def _hidden(name: str) -> property:
    mask = f"<{name.upper()}>"

    def get(self: Any) -> Any:
        return vars(self).get("_vault", Vault()).get(name)

    def put(self: Any, value: Any) -> None:
        secret = Secret(str.__str__(value), mask) if isinstance(value, str) else value
        vars(self)["_vault"] = vars(self).get("_vault", Vault()).put(name, secret)

    return property(get, put)
