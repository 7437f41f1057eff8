"""Questions among a million items: within a minute on two cores, and without a table of all pairs."""

import json
import sys

import pytest

from tests.children import needs_fork, page, run
from tests.processes import finished

SCRIPT = "recipes/benchmarks/speed_questions.py"


@pytest.mark.slow
@needs_fork
def test_script_measures_a_small_world(root, tmp_path):
    """A figure of another size than the flags say would be published."""
    log, flags = tmp_path / "log", "--items 3000 --annotators 20 --budget 50 --threads 1"
    assert run(log, page, root / SCRIPT, *flags.split()) == 0, log.read_text()
    found = json.loads(log.read_text().splitlines()[-1])
    assert (found["questions"], found["items"]) == (50, 3000)
    assert found["nats"] > 20
    assert found["processor_seconds"] > 0


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("limit", [(), ("--most_per_annotator", "20")], ids=["free", "limited"])
def test_million_items_take_a_minute_and_two_gibibytes(limit, root):
    """A dense table of items and annotators alone would take 4 GB."""
    output, _ = finished([sys.executable, SCRIPT, *limit], seconds=600, cwd=root)
    found = json.loads(output)
    assert found["questions"] == 10_000
    assert found["processor_seconds"] < 2 * 60
    assert found["peak_mib"] < 2048
