"""What is written into the README and the docs."""

import pytest


@pytest.fixture
def pages(load, monkeypatch, tmp_path):
    module = load("pages")
    monkeypatch.setattr(module, "README", tmp_path / "README.md")
    return module


def test_part_is_replaced_and_the_rest_stays(pages):
    """A table written twice, or over its neighbours, is found by a reader."""
    text = "# T\n<!-- a -->\nold\n<!-- end a -->\nmiddle\n<!-- b -->\nkept\n<!-- end b -->\nend\n"
    pages.README.write_text(text, encoding="utf-8")
    for _ in range(2):
        pages.write_part("a", "\nnew ± table\n\n")
        assert pages.README.read_text(encoding="utf-8") == text.replace("old", "new ± table")


def test_readme_without_the_part_stays_as_it_is(pages):
    """Written at its end, a table would say what nobody looks for there."""
    pages.README.write_text("# T\n<!-- a -->\nold\n", encoding="utf-8")
    for name in ("a", "b"):
        with pytest.raises(ValueError, match="not enough values"):
            pages.write_part(name, "new")
    assert pages.README.read_text(encoding="utf-8") == "# T\n<!-- a -->\nold\n"


def test_page_without_flags_answers_help_and_refuses_others(pages, monkeypatch, capsys):
    """Asked for help, a script that writes the README must not write it."""
    for given, code in (["--help"], 0), (["--output", "x"], 2):
        monkeypatch.setattr("sys.argv", ["rows.py", *given])
        with pytest.raises(SystemExit) as ended:
            pages.takes_no_flags("What it writes.\n\nMore.")
        assert ended.value.code == code
    assert "What it writes." in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["rows.py"])
    assert pages.takes_no_flags("What it writes.") is None
