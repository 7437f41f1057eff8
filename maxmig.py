"""The installed command `maxmig`: `hf_maxmig/cli.py`, without waiting for the package around it.

Python imports a package before a file in it, and ours brings torch and transformers: seconds that
`maxmig --help` does not need.
"""

import importlib.util
from pathlib import Path


def main() -> None:
    """Run the command line."""
    package = importlib.util.find_spec("hf_maxmig")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).with_name("cli.py")
    spec = importlib.util.spec_from_file_location("hf_maxmig.cli", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()


if __name__ == "__main__":
    main()
