"""Writes a part of the project's README anew. Not a recipe itself."""

from pathlib import Path

from hf_maxmig.staging import staged

README = Path(__file__).parents[1] / "README.md"


def write_part(name: str, text: str) -> None:
    """Put a text between the README's two comments of this name."""
    before, rest = README.read_text(encoding="utf-8").split(f"<!-- {name} -->\n")
    _, after = rest.split(f"<!-- end {name} -->")
    marked = f"<!-- {name} -->\n{text.strip()}\n<!-- end {name} -->"
    with staged(README) as place:
        place.write_text(f"{before}{marked}{after}", encoding="utf-8")
