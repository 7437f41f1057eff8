"""Files written whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Give a place to write a file; it takes its own place only once it is whole.

    Args:
        path: where the file goes; folders on the way are made.

    Yields:
        A path of the same name beside it. If writing fails, what stood at `path` still stands.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> with staged(folder / "a.txt") as place:
        ...     _ = place.write_text("whole")
        >>> (folder / "a.txt").read_text()
        'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".saving-") as folder:
        place = Path(folder, path.name)
        yield place
        os.replace(place, path)
