"""How Sphinx builds these pages: `make docs`.

Links on them lead from file to file, as GitHub and editors follow them. Files that stand outside of `docs/` are
included in a page each, and links to such a file lead to its page.
"""

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

from hf_maxmig.model.version import __version__

project = "hf_maxmig"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"hf_maxmig {__version__}"
myst_heading_anchors = 3

default_role = "literal"  # docstrings write code in single backticks
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False

DOCS = Path(__file__).parent
PAGES = {  # what is included, from the root: its page
    "README.md": "start.md",
    "PAPER.md": "paper.md",
    "CONTRIBUTING.md": "contributing.md",
    "hf_maxmig/crowd_metrics/README.md": "metric.md",
    "recipes/benchmarks/results/benchmark/README.md": "every_method.md",
}


def led(text: str, folder: Path) -> str:
    """Turn links of a file in a folder into links of a page of these."""

    def there(link: re.Match) -> str:
        place = Path(os.path.normpath(folder / link["place"]))
        page = PAGES.get(place.relative_to(DOCS.parent).as_posix())
        target = page if page is not None else os.path.relpath(place, DOCS)
        return f"]({target}{link['anchor'] or ''})"

    return re.sub(r"\]\((?!https?://)(?P<place>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)", there, text)


def setup(app: Sphinx) -> None:
    """Lead the links of pages and of what they include."""

    def read(app: Sphinx, name: str, content: list[str]) -> None:
        content[0] = led(content[0], DOCS)

    def included(app: Sphinx, path: Path, parent: str, content: list[str]) -> None:
        content[0] = led(content[0], (DOCS / path).parent)

    app.connect("source-read", read)
    app.connect("include-read", included)
