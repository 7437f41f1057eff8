"""What recipes write into the README and the docs."""

import pytest


@pytest.fixture
def pages(load):
    return load("pages")


@pytest.fixture
def page(tmp_path):
    return tmp_path / "page.md"


def test_part_is_replaced_and_the_rest_stays(pages, page):
    """Readers would find a table that is written twice, or over its neighbours."""
    text = "# T\n<!-- a -->\nold\n<!-- end a -->\nmiddle\n<!-- b -->\nkept\n<!-- end b -->\nend\n"
    page.write_text(text, encoding="utf-8")
    for _ in range(2):
        pages.write_part("a", "\nnew ± table\n\n", page)
        assert page.read_text(encoding="utf-8") == text.replace("old", "new ± table")


def test_page_without_the_part_stays_as_it_is(pages, page):
    """At the end of another page the table would be out of place."""
    page.write_text("# T\n<!-- a -->\nold\n", encoding="utf-8")
    for name in ("a", "b"):
        with pytest.raises(ValueError, match="not enough values"):
            pages.write_part(name, "new", page)
    assert page.read_text(encoding="utf-8") == "# T\n<!-- a -->\nold\n"


def test_page_without_flags_answers_help_and_refuses_others(pages, monkeypatch, capsys):
    """A script that writes the README must not write it when asked for help."""
    for given, code in (["--help"], 0), (["--output", "x"], 2):
        monkeypatch.setattr("sys.argv", ["rows.py", *given])
        with pytest.raises(SystemExit) as ended:
            pages.takes_no_flags("What it writes.\n\nMore.")
        assert ended.value.code == code
    assert "What it writes." in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["rows.py"])
    assert pages.takes_no_flags("What it writes.") is None
