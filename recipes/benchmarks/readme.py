"""Writes a part of the project's README, or of another page, anew. Not a recipe itself."""

from pathlib import Path

from hf_maxmig.model.whole_files import staged

README = Path(__file__).parents[2] / "README.md"


def write_part(name: str, text: str, page: Path | None = None) -> None:
    """Put a text between the two comments of this name on a page, the README by default."""
    page = README if page is None else page
    before, rest = page.read_text(encoding="utf-8").split(f"<!-- {name} -->\n")
    _, after = rest.split(f"<!-- end {name} -->")
    marked = f"<!-- {name} -->\n{text.strip()}\n<!-- end {name} -->"
    with staged(page) as place:
        place.write_text(f"{before}{marked}{after}", encoding="utf-8")
