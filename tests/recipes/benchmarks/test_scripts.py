"""The measuring scripts as they are typed: each must work on its own."""

from pathlib import Path

import pytest

from tests.children import needs_fork, page, run

FOLDER = Path(__file__).parents[3] / "recipes" / "benchmarks"
SCRIPTS = sorted(
    path.name
    for path in FOLDER.glob("*.py")
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
)
MOST_LINES = 700


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("script", SCRIPTS)
def test_script_answers_help_and_writes_nothing(script, root, tmp_path):
    """A script might not find the recipes one folder up, or write the README when asked for help."""
    pages = [*root.glob("*.md"), *(root / "docs").glob("*.md"), *FOLDER.rglob("results/**/*.*")]
    before = {path: path.stat().st_mtime_ns for path in pages}
    log = tmp_path / "log"
    code, printed = run(log, page, FOLDER / script, "--help"), log.read_text(encoding="utf-8")
    assert code == 0, printed
    assert f"usage: {script} " in printed
    assert {path: path.stat().st_mtime_ns for path in pages} == before


def test_scripts_are_those_that_the_pages_name():
    """README and docs state what is measured, and by which script."""
    assert len(SCRIPTS) >= 14
    for name in ("benchmark.py", "benchmark_tables.py", "speed_rows.py", "untouched_rows.py"):
        assert name in SCRIPTS


def test_no_recipe_is_longer_than_one_reads():
    """Nobody mends a file that they cannot keep in mind."""
    paths = [*FOLDER.glob("*.py"), *FOLDER.parent.glob("*.py")]
    assert len(paths) > 30
    for path in paths:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES, path.name
