"""The README runs as it stands."""

import re

import pytest


def blocks(root, language):
    return re.findall(
        rf"```{language}\n(.*?)```", (root / "README.md").read_text(encoding="utf-8"), re.S
    )


def test_readme_has_two_commands_to_set_up(root):
    """The first two bash blocks of "Install" are what CI types."""
    text = (root / "README.md").read_text(encoding="utf-8").split("## Install")[1].split("\n## ")[0]
    first, second = re.findall(r"```bash\n(.*?)```", text, re.S)
    assert (
        first.strip()
        == "pip install -e . && accelerate launch recipes/digits.py --output_dir out/digits"
    )
    assert second.strip() == 'pip install -e ".[test,peers,plots]" && python -m pytest'


def test_readme_python_runs(root, tmp_path, monkeypatch):
    """A snippet that does not run is the first thing a user meets."""
    snippets = blocks(root, "python")
    assert len(snippets) >= 3
    monkeypatch.chdir(tmp_path)
    names = {}
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), names)
    assert names["trainer"].state.global_step > 0
    assert (tmp_path / "scenes" / "model.safetensors").is_file()
    assert names["model"].config.class_names == ["cat", "dog"]


@pytest.mark.parametrize("page", ["README.md", "PAPER.md", "CONTRIBUTING.md"])
def test_links_and_files_that_pages_name_exist(page, root):
    """A link to a file that was renamed."""
    text = (root / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http|#)([^)#]+)\)", text):
        assert (root / target).exists(), target
    for path in re.findall(r"`((?:recipes|hf_maxmig|tests|model_cards)/[\w./]+\.\w+)`", text):
        assert (root / path).exists(), path


def test_results_in_the_readme_are_those_of_the_files(root):
    """A table typed by hand drifts from what was measured."""
    import json

    text = (root / "README.md").read_text(encoding="utf-8")
    for file in sorted((root / "recipes" / "results").glob("*.json")):
        result = json.loads(file.read_text())
        if "last_epoch_mean" not in result:
            continue
        mean, deviation = (
            result["last_epoch_mean"]["accuracy"],
            result["last_epoch_deviation"]["accuracy"],
        )
        assert f"{100 * mean:.1f} ± {100 * deviation:.1f}" in text, file.name
