"""The command line of a verb or a recipe: flags are the fields of dataclasses; `--config file.yaml` gives defaults.

Errors in it are printed in one line, with exit code 2, before anything is read or trained.
"""

import argparse
import contextlib
import dataclasses
import difflib
import json
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

import yaml
from transformers import HfArgumentParser

from .usage import Usage

# Errors that are shown without a traceback, if a file of ours raised them: they say what to do.
_TOLD = (ValueError, TypeError, OSError, FileNotFoundError, ImportError)
_PACKAGE = Path(__file__).parents[1]
_OURS = (_PACKAGE, _PACKAGE.parent / "recipes")  # beside it in a checkout
_NULL = ("", "~", "null", "Null", "NULL")  # YAML's, unquoted
_MOST, _MOST_VALUES = 2**16, 10_000  # bytes of a config, values in it
_MOST_BRACKETS = 200
_PLAIN_TAGS = {
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map", "int", "float", "bool")
}


class _Parser(HfArgumentParser):
    """`HfArgumentParser` that takes no abbreviations and raises instead of exiting."""

    def __init__(self, dataclass_types: tuple[type, ...], usage: Usage | None = None) -> None:
        program = None if usage is None else usage.program
        super().__init__(dataclass_types, allow_abbrev=False, prog=program)
        self._usage = usage
        self.add_argument("--config", help="A YAML file of flags; those of the command line win.")

    def format_help(self) -> str:
        return super().format_help() if self._usage is None else self._usage.help(self)

    def error(self, message: str) -> NoReturn:
        if "are required" in message:
            message += ": give them as flags, or in the file of `--config`"
        raise ValueError(message)


def parse(
    *dataclass_types: type, arguments: list[str] | None = None, usage: Usage | None = None
) -> tuple[Any, ...]:
    """Read the command line; its flags win over those of `--config file.yaml`.

    Args:
        *dataclass_types: their fields are the flags.
        arguments: the command line; that of the process by default.
        usage: the layout of the help; that of argparse by default.

    Returns:
        One instance per type.

    Raises:
        ValueError: if a flag is unknown, is missing in both places, or has a value of another type; if
            the file is not YAML, or has a key that is not a flag.
        FileNotFoundError: if there is no such file.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    given = given if usage is None else usage.named(given)
    before = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    before.add_argument("--config", nargs="?", action="append")
    files = before.parse_known_args(given)[0].config or []
    if None in files or len(files) > 1:
        raise ValueError(f"`--config` must name one file, got {len([f for f in files if f])}.")
    parser = _Parser(dataclass_types, usage)
    namespace = _from_file(parser, Path(files[0])) if files else argparse.Namespace()
    try:
        namespace, unknown = parser.parse_known_args(given, namespace)
    except ValueError as error:
        # A required flag may be missing because its name is misspelt.
        words = [word for word in given if word.startswith("--") and word != "--"]
        unknown = [w for w in words if w.split("=")[0] not in parser._option_string_actions]
        if not unknown or "are required" not in str(error):
            raise
    if unknown:
        raise ValueError(_unknown(unknown, sorted({a.dest for a in parser._actions})))
    values = vars(namespace)
    for name, value in values.items():
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"`--{name}` must be a number, got nan.")
        if isinstance(value, str) and "\0" in value:
            raise ValueError(f"`--{name}` must be text without a NUL, got {value[:60]!r}.")
    place = values.get("output_dir")
    if place is not None and Path(place).exists() and not Path(place).is_dir():
        raise ValueError(f"`--output_dir` must be a folder, got {place!r}: there is a file.")
    return tuple(
        _made(kind, {f.name: values[f.name] for f in dataclasses.fields(kind) if f.init})
        for kind in dataclass_types
    )


def start(
    build: Callable[..., Any],
    run: Callable[[Any], Any] | None = None,
    *,
    arguments: list[str] | None = None,
    usage: Usage | None = None,
) -> Any:
    """Run a verb or a recipe from the command line.

    Args:
        build: reads the data; its arguments are annotated with the dataclasses of the flags. An error
            of this package in it is printed in one line, with exit code 2.
        run: takes the result of `build`, unless that is None; its errors keep their tracebacks.
        arguments: the command line; that of the process by default.
        usage: the layout of the help.

    Returns:
        The result of `run`.
    """
    kinds = [hint for name, hint in get_type_hints(build).items() if name != "return"]
    with errors_in_one_line(None if usage is None else usage.program):
        built = build(*parse(*kinds, arguments=arguments, usage=usage))
    return built if run is None or built is None else run(built)


@contextlib.contextmanager
def errors_in_one_line(program: str | None = None) -> Iterator[None]:
    """Exit with code 2 and one line instead of a traceback, for errors that `is_told` accepts.

    Args:
        program: the beginning of the line; the name of the script by default.
    """
    try:
        yield
    except _TOLD as error:
        if not is_told(error):
            raise
        print(f"{program or Path(sys.argv[0]).name}: error: {one_line(error)}", file=sys.stderr)
        raise SystemExit(2) from None


def is_told(error: BaseException) -> bool:
    """Whether an error is about the input: a built-in one that a file of this package raised."""
    raised_in = Path(list(traceback.walk_tb(error.__traceback__))[-1][0].f_code.co_filename)
    return type(error) in _TOLD and any(raised_in.is_relative_to(folder) for folder in _OURS)


def one_line(error: BaseException, most: int = 2000) -> str:
    """Put an error's message in a line."""
    text = " ".join(str(error).split())
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= most else f"{text[:most]}..."


# The file


class _Reader(yaml.SafeLoader):
    """YAML whose scalars stay as they are written, and whose mappings have each key once."""

    yaml_implicit_resolvers: dict = {}
    made = 0  # aliases of aliases can expand beyond any memory


def _text(reader: _Reader, node: yaml.Node) -> Any:
    reader.made += 1
    if node.tag not in _PLAIN_TAGS or reader.made > _MOST_VALUES:
        what = f"the tag {node.tag}" if node.tag not in _PLAIN_TAGS else "so many values"
        raise yaml.constructor.ConstructorError(None, None, f"{what} is not taken", node.start_mark)
    if isinstance(node, yaml.ScalarNode):
        if any("\ud800" <= letter <= "\udfff" for letter in node.value):
            raise yaml.constructor.ConstructorError(
                None, None, "half a surrogate pair is no text", node.start_mark
            )
        return None if node.style is None and node.value in _NULL else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_text(reader, part) for part in node.value]
    found: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value in found:
            what = "must be text" if not isinstance(key, yaml.ScalarNode) else "comes twice"
            name = getattr(key, "value", "") if what == "comes twice" else "a key"
            raise yaml.constructor.ConstructorError(None, None, f"{name} {what}", key.start_mark)
        found[key.value] = _text(reader, value)
    return found


for _tag in (None, *_PLAIN_TAGS):
    _Reader.add_constructor(_tag, _text)


def _read(path: Path) -> dict[str, Any]:
    """Read the file's mapping of flags; scalars are text, as on a command line."""
    if not path.is_file():
        what = "a folder" if path.is_dir() else "none"
        raise FileNotFoundError(
            f"`--config` must name a file of YAML, got {str(path)!r}: there is {what}."
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OSError(f"`--config` must be readable, got {path}: {error.strerror}.") from error
    if len(data) > _MOST:
        raise ValueError(
            f"`--config` must name a file of flags, got {path} of {len(data):,} bytes."
        )
    if data.count(b"[") + data.count(b"{") > _MOST_BRACKETS:  # YAML takes half a minute for 5,000
        raise ValueError(
            f"{path} must be YAML with one flag per line, got more than {_MOST_BRACKETS} brackets."
        )
    try:
        values = yaml.load(data.decode("utf-8-sig"), Loader=_Reader)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8, got {error}.") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(
            f"{path} must be YAML, got something else: {_without_the_line(error)}."
        ) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(
            f"{path} must be a mapping from flags to values, such as `seed: 1`, got "
            f"{type(values).__name__}."
        )
    return values


def _without_the_line(error: Exception) -> str:
    """Say where a file is not YAML, without quoting it: it may hold a secret."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return one_line(error, 300)
    mark, problem = error.problem_mark, one_line(ValueError(error.problem or "something else"), 200)
    return f"{problem} in line {mark.line + 1}, column {mark.column + 1}"


def _from_file(parser: _Parser, path: Path) -> argparse.Namespace:
    """Read the flags of a file as a command line is read; they are no longer required on the command line."""
    values = _read(path)
    actions = {action.dest: action for action in parser._actions if action.nargs != 0}
    if unknown := [key for key in values if key not in actions or key == "config"]:
        names = ", ".join(_hinted(key, [*actions]) for key in unknown[:5])
        raise ValueError(f"{path} must only have flags of this recipe, got {names}.")
    kinds = {
        name: _kinds(hint)
        for kind in parser.dataclass_types
        for name, hint in get_type_hints(kind).items()
    }
    required = [action for action in parser._actions if action.required]
    for action in required:
        action.required = False
    try:
        flags: list[str] = []
        for key, value in values.items():
            needed = actions[key] in required
            flags += _as_flags(parser, actions[key], value, kinds[key], needed)
        namespace, rest = parser.parse_known_args(flags)
        if rest:
            raise ValueError(f"unexpected {rest[0]!r}")
    except ValueError as error:
        raise ValueError(f"{path}: {one_line(error).rstrip('.')}.") from error
    for action in required:
        action.required = action.dest not in values
    return namespace


def _as_flags(
    parser: _Parser, action: argparse.Action, value: Any, kinds: set[Any], needed: bool
) -> list[str]:
    """Write a value as on a command line; a value that cannot be written there becomes the default."""
    name = f"--{action.dest}"
    if value is None:
        if type(None) not in kinds and (needed or action.default is not None):
            raise ValueError(f"`{action.dest}` must have a value, got none.")
        parser.set_defaults(**{action.dest: None})
        return []
    if isinstance(value, dict):
        if dict not in kinds:
            raise ValueError(f"`{action.dest}` must be a single value, got a mapping.")
        return [f"{name}={json.dumps(value)}"]
    if isinstance(value, list):
        if list not in kinds:
            raise ValueError(f"`{action.dest}` must be a single value, got a list.")
        if bad := [part for part in value if not isinstance(part, str) or part[:1] == "-"]:
            got = type(bad[0]).__name__ if not isinstance(bad[0], str) else bad[0]
            raise ValueError(f"`{action.dest}` must be a list of plain values, got {got} in it.")
        if value and action.nargs == "+":
            return [name, *value]
        parser.set_defaults(**{action.dest: value})
        return []
    if action.nargs == "+" and value[:1] != "-":
        return [name, value]
    switch = {"on": "true", "off": "false"} if bool in kinds else {}
    return [f"{name}={switch.get(value.lower(), value)}"]


def _kinds(annotation: Any) -> set[Any]:
    """The types that an annotation allows, at the outermost level."""
    parts = [annotation] if get_origin(annotation) is list else [annotation, *get_args(annotation)]
    kinds = {get_origin(part) or part for part in parts}
    return {kind for kind in kinds if isinstance(kind, type)}


# The flags


def _made(kind: type, values: dict[str, Any]) -> Any:
    """Make the arguments; errors of transformers are raised as errors of this package."""
    try:
        return kind(**values)
    except Exception as error:
        if is_told(error):
            raise
        raise ValueError(f"the arguments are refused: {one_line(error, 500)}") from error


def _hinted(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    short = name if len(name) <= 60 else f"{name[:60]}..."
    return f"{short} (did you mean {near[0]}?)" if near else short


def _unknown(strings: list[str], known: list[str]) -> str:
    flags = [s for s in strings if s.startswith("-") and not re.fullmatch(r"-[\d.].*", s)]
    if not flags:
        return f"flags must start with --, got {strings[0]!r}."
    options = [f"--{name}" for name in known]
    named = [
        _hinted(flag.split("=")[0].replace("-", "_").replace("__", "--", 1), options)
        for flag in flags[:5]
    ]
    return f"unknown flags: {', '.join(named)}. `--help` lists all."
