"""Lets what measures import the recipes, one folder up. To be imported first; not a recipe itself."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
