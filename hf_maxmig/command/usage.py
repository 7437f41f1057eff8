"""The `--help` of a verb: the flags that matter come first, in groups, and the others under a last heading.

`flags.py` defines the flags themselves.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_CHOICES = 6  # that stand behind a flag


@dataclass(frozen=True)
class Usage:
    r"""The layout of a verb's help.

    Args:
        program: the words typed before the flags.
        call: the flags of a usual call.
        description: what the verb does.
        sections: headings, each with its flags, in this order.
        rest: heading of all other flags.
        words: flags that may also be given without their names, as the first words.

    Example:
        >>> usage = Usage("maxmig count", "--low 1", "Count.", [("where to begin", ["low"])], "others")
        >>> parser = argparse.ArgumentParser(add_help=False)
        >>> for flag in ("--high", "--low"):
        ...     _ = parser.add_argument(flag, help="A number.")
        >>> print("\n".join(usage.help(parser).splitlines()[4:]))
        where to begin:
          --low LOW    A number.
        <BLANKLINE>
        others:
          --high HIGH  A number.
    """

    program: str
    call: str
    description: str
    sections: Sequence[tuple[str, Sequence[str]]]
    rest: str
    words: Sequence[str] = ()

    def named(self, arguments: list[str]) -> list[str]:
        """Put the names of the flags before the first words.

        Example:
            >>> Usage("maxmig count", "LOW", "Count.", [], "flags", words=("low",)).named(["1", "--all"])
            ['--low=1', '--all']
        """
        bare = 0
        while bare < min(len(self.words), len(arguments)) and arguments[bare][:1] != "-":
            bare += 1
        named = [f"--{w}={a}" for w, a in zip(self.words, arguments[:bare], strict=False)]
        return named + arguments[bare:]

    def help(self, parser: argparse.ArgumentParser) -> str:
        """Write the help of a parser's flags.

        Args:
            parser: it must have a flag for each name in `sections`.

        Returns:
            The text.

        Raises:
            KeyError: if a section names a flag that the parser does not have.
        """
        flags: dict[str, argparse.Action] = {}
        for action in parser._actions:
            flags.setdefault(action.dest, action)  # without the `--no_` twin of a switch
        formatter = _Formatter(self.program, max_help_position=28, width=100)
        formatter.words = self.words
        formatter.add_usage(f"{self.program} {self.call}", [], [])
        formatter.add_text(self.description)
        shown = {"help"}
        for heading, names in self.sections:
            _section(formatter, heading, [flags[name] for name in names])
            shown.update(names)
        _section(formatter, self.rest, [flags[name] for name in flags if name not in shown])
        return formatter.format_help()


def _section(formatter: argparse.HelpFormatter, heading: str, flags: list[argparse.Action]) -> None:
    formatter.start_section(heading)
    formatter.add_arguments(flags)
    formatter.end_section()


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows each flag in one spelling, and its default unless that is empty."""

    words: Sequence[str] = ()

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        if action.dest in self.words:
            return action.dest.upper()
        name = action.option_strings[0]
        if action.nargs == 0 or action.nargs == "?":  # a switch
            return name
        word = action.dest.upper()
        many = action.choices is not None and len([*action.choices]) > _MOST_CHOICES
        return f"{name} {word if many else self._format_args(action, word)}"

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default in ("", []):
            return action.help
        return super()._get_help_string(action)
