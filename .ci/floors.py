"""Print the lowest versions that pyproject.toml allows, one requirement a line, for `pip install -r`."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
EXTRAS = ("peers", "plots")  # what the tests of the package itself use beside it


def floors(text: str) -> list[str]:
    r"""Pin each requirement of a pyproject.toml to its floor.

    Example:
        >>> floors('[project]\ndependencies = ["torch>=2.9", "transformers>=5.23,<6"]')
        ['torch==2.9', 'transformers==5.23']
    """
    project = tomllib.loads(text)["project"]
    wanted = list(project["dependencies"])
    for extra in EXTRAS:
        wanted += project.get("optional-dependencies", {}).get(extra, [])
    pinned = []
    for requirement in wanted:
        found = re.fullmatch(r"([\w.-]+)>=([\w.]+)(,<[\w.]+)?", requirement)
        if found is None:
            raise ValueError(
                f"a requirement must have a floor, such as `torch>=2.9`, got {requirement!r}."
            )
        pinned.append(f"{found[1]}=={found[2]}")
    return pinned


if __name__ == "__main__":
    print("\n".join(floors(PROJECT.read_text(encoding="utf-8"))))
