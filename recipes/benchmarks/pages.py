"""Tables in Markdown, and the parts of the project's pages that are written from results. Not a recipe itself."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from hf_maxmig.model.whole_files import staged

README = Path(__file__).parents[2] / "README.md"
DOCS = README.parent / "docs"


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Render a table whose first column is text; columns without content are left out.

    Example:
        >>> print(markdown(["job", "time", "memory"], [["gain", "2 s", ""]]))
        | job  | time |
        |------|-----:|
        | gain |  2 s |
    """
    kept = [i for i in range(len(header)) if any(line[i] for line in lines)]
    cells = [[line[i] for i in kept] for line in (header, *lines)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(kept))]
    rule = ["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]
    rows = [
        [f" {line[0].ljust(widths[0])} "]
        + [f" {text.rjust(width)} " for text, width in zip(line[1:], widths[1:], strict=True)]
        for line in cells
    ]
    return "\n".join("|" + "|".join(line) + "|" for line in (rows[0], rule, *rows[1:]))


def write_part(name: str, text: str, page: Path) -> None:
    """Put a text between the two comments of this name on a page."""
    before, rest = page.read_text(encoding="utf-8").split(f"<!-- {name} -->\n")
    _, after = rest.split(f"<!-- end {name} -->")
    marked = f"<!-- {name} -->\n{text.strip()}\n<!-- end {name} -->"
    with staged(page) as place:
        place.write_text(f"{before}{marked}{after}", encoding="utf-8")


def takes_no_flags(doc: str) -> None:
    """Answer `--help` with the first line of a docstring, and refuse flags, as scripts that write pages have none."""
    argparse.ArgumentParser(description=doc.split("\n")[0], allow_abbrev=False).parse_args()
