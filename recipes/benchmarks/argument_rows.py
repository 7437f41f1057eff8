"""The effect of each of our training arguments, from its help. Not a recipe itself.

Run as `python recipes/benchmarks/argument_rows.py` it writes the list in `docs/training_arguments.md` anew.
"""

import textwrap
from dataclasses import MISSING, Field, fields

from pages import DOCS, takes_no_flags, write_part

from hf_maxmig import MaxMIGTrainingArguments

PAGE = DOCS / "training_arguments.md"
WIDTH = 120
OWN = [name for name in MaxMIGTrainingArguments.__annotations__ if not name.startswith("_")]


def default_of(field: Field) -> str:
    """Write a field's default; nothing if it depends on the machine.

    Example:
        >>> from dataclasses import make_dataclass
        >>> [default_of(one) for one in fields(make_dataclass("A", [("b", int, 3)]))]
        [', 3 by default']
    """
    value = field.default
    if value is MISSING or value is None:
        return ""
    return f", {value!r} by default" if not isinstance(value, str) else f", `{value}` by default"


def lines() -> str:
    """List the fields that `MaxMIGTrainingArguments` adds or whose default it changes, with their help."""
    own = {one.name: one for one in fields(MaxMIGTrainingArguments)}
    return "\n".join(
        textwrap.fill(
            f"- **{one.name}**{default_of(one)}. {one.metadata['help']}",
            WIDTH,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for one in (own[name] for name in OWN)
    )


def main() -> None:
    takes_no_flags(__doc__)
    write_part("arguments", lines(), PAGE)


if __name__ == "__main__":
    main()
