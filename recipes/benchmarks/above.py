"""Make the recipes, one folder up, importable for the measuring scripts.

To be imported first; not a recipe itself.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
