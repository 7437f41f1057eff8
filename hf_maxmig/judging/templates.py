"""How pages are made of templates: all that is put into one is escaped, and written as text that any page can hold."""

import functools
import math
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined

from .plots import legible, short
from .verdicts import counted


@functools.cache
def templates(*packages: str) -> Environment:
    r"""Find templates in the folders of packages, the first that has one of that name.

    Args:
        *packages: their full names.

    Returns:
        The templates, by their file names. Text is escaped, and stripped of what no page can hold; there
        are filters for shares (`percent`, `probability`), numbers of things (`counted`) and names (`short`).

    Example:
        >>> templates(__package__).from_string("{{ 0.25 | percent }} of {{ name }}").render(name="<b>")
        '25\xa0% of &lt;b&gt;'
    """

    def source(name: str) -> str | None:
        found = [files(package) / name for package in packages]
        return next((file.read_text(encoding="utf-8") for file in found if file.is_file()), None)

    environment = Environment(
        loader=FunctionLoader(source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: legible(value) if type(value) is str else value,
    )
    environment.filters |= {
        "percent": _percent,
        "probability": _probability,
        "counted": counted,
        "short": short,
    }
    return environment


def _percent(share: float, digits: int = 0) -> str:
    return "\u2013" if math.isnan(share) else f"{100 * share:.{digits}f}\u00a0%"


def _probability(p: float) -> str:
    """A percentage that never claims to be certain."""
    if p < 0.0005:
        return f"under\u00a0{_percent(0.001, 1)}"
    return f"over\u00a0{_percent(0.999, 1)}" if p > 0.9995 else _percent(p, 1)
