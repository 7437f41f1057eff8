"""Recipes as modules: they import each other by name, like scripts in one folder."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDERS = [
    Path(__file__).parents[2] / "recipes",
    Path(__file__).parents[2] / "recipes" / "benchmarks",
]


@contextlib.contextmanager
def recipes() -> Iterator[Callable[[str], ModuleType]]:
    """Return a function that imports a recipe by name; each import is new and forgotten afterwards."""
    names = {path.stem for folder in FOLDERS for path in folder.glob("*.py")}
    with pytest.MonkeyPatch.context() as patch:
        for folder in FOLDERS:
            patch.syspath_prepend(str(folder))
        for name in names:
            patch.delitem(sys.modules, name, raising=False)
        yield importlib.import_module
        for name in names:
            sys.modules.pop(name, None)
