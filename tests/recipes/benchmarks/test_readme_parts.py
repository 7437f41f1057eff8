"""What recipes write into the README."""

import pytest


@pytest.fixture
def readme(load, monkeypatch, tmp_path):
    module = load("readme")
    monkeypatch.setattr(module, "README", tmp_path / "README.md")
    return module


def test_part_is_replaced_and_the_rest_stays(readme):
    """A table written twice, or over its neighbours, is found by a reader."""
    text = "# T\n<!-- a -->\nold\n<!-- end a -->\nmiddle\n<!-- b -->\nkept\n<!-- end b -->\nend\n"
    readme.README.write_text(text, encoding="utf-8")
    for _ in range(2):
        readme.write_part("a", "\nnew ± table\n\n")
        assert readme.README.read_text(encoding="utf-8") == text.replace("old", "new ± table")


def test_readme_without_the_part_stays_as_it_is(readme):
    """Written at its end, a table would say what nobody looks for there."""
    readme.README.write_text("# T\n<!-- a -->\nold\n", encoding="utf-8")
    for name in ("a", "b"):
        with pytest.raises(ValueError, match="not enough values"):
            readme.write_part(name, "new")
    assert readme.README.read_text(encoding="utf-8") == "# T\n<!-- a -->\nold\n"
