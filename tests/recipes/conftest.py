"""Fixtures for the tests of several recipes."""

from typing import get_type_hints

import pytest

from hf_maxmig.command.flags import parse


@pytest.fixture
def parsed(load, tmp_path):
    """Load a page and parse flags for it."""

    def by_name(name, *flags):
        page = load(name)
        kinds = get_type_hints(page.recipe)
        quiet = ["--output_dir", tmp_path / "out", "--use_cpu", "--report_to", "none"]
        arguments = [str(flag) for flag in (*quiet, "--disable_tqdm", "True", *flags)]
        return page, *parse(kinds["arguments"], kinds["training"], arguments=arguments)

    return by_name
