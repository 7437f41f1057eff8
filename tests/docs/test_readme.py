"""The code in the README and in the pages of docs/ runs as written."""

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
MOST_BYTES = 12_000  # two screens of README


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


OWN = {"text.md", "sound.md", "tables.md"}  # `test_modalities.py` writes their files first
PAGES = [page for page in sorted(DOCS.glob("*.md")) if blocks(page) and page.name not in OWN]


@pytest.fixture(scope="module")
def after_the_readme(root, tmp_path_factory):
    """Return the folder in which the README's blocks ran, and the names that they defined."""
    folder, names = tmp_path_factory.mktemp("readme"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in blocks(root / "README.md"):
            exec(compile(block, "README.md", "exec"), names)
    return folder, names


def test_readme_is_two_screens(root):
    """A README that grows by a paragraph at a time ends up unread."""
    assert (root / "README.md").stat().st_size <= MOST_BYTES


def test_readme_has_two_commands_to_set_up(root):
    """CI types the first two bash blocks of "Install"."""
    text = (root / "README.md").read_text(encoding="utf-8").split("## Install")[1].split("\n## ")[0]
    first, second = re.findall(r"```bash\n(.*?)```", text, re.S)
    assert (
        first.strip()
        == "pip install -e . && accelerate launch recipes/digits.py --output_dir out/digits"
    )
    assert second.strip() == (
        'pip install -e ".[test,peers,plots]" && python -m pytest -n auto --dist loadfile --no-loadscope-reorder'
    )


def test_readme_python_runs(root, after_the_readme):
    """A snippet that does not run is the first thing that a user meets."""
    folder, names = after_the_readme
    assert len(blocks(root / "README.md")) >= 3
    assert names["trainer"].state.global_step > 0
    assert (folder / "scenes" / "model.safetensors").is_file()
    assert names["model"].config.class_names == ["cat", "dog"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_of_a_page_runs(page, after_the_readme, monkeypatch):
    """Pages continue from the README. Otherwise only users who copy a broken example would find it."""
    folder, names = after_the_readme
    monkeypatch.chdir(folder)
    names = dict(names)
    for block in blocks(page):
        exec(compile(block, page.name, "exec"), names)


def test_pages_have_examples_that_run():
    """Without any example, the test above would pass without meaning."""
    assert len(PAGES) >= 6


def test_rival_of_the_example_is_one_file_and_one_row(
    root, crowd, make_args, make_model, monkeypatch, tmp_path
):
    """This is a contributor's first step in CONTRIBUTING, which must need nothing more."""
    from transformers import AutoConfig, AutoModel

    import hf_maxmig
    from hf_maxmig.peers import PEERS, peer

    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (file,) = re.findall(r"```python\n(.*?)```", text, re.S)
    assert '`"first_vote": (FirstVoteModel, {}),`' in text
    names = {"__package__": "hf_maxmig.peers", "__name__": "hf_maxmig.peers.first_vote"}
    exec(compile(file, "CONTRIBUTING.md", "exec"), names)
    model_class = names["FirstVoteModel"]
    monkeypatch.setitem(PEERS, "first_vote", (model_class, {}))
    annotators = crowd.features["annotators"].feature.names
    model = peer("first_vote", make_model().classifier, annotators=annotators)
    trainer = hf_maxmig.CrowdTrainer(model=model, args=make_args(), train_dataset=crowd)
    assert trainer.train().training_loss < 2
    trainer.save_model(tmp_path / "saved")
    # The end of `peers/__init__.py` does this for every row.
    AutoConfig.register("maxmig_first_vote", model_class.config_class, exist_ok=True)
    AutoModel.register(model_class.config_class, model_class, exist_ok=True)
    assert type(AutoModel.from_pretrained(tmp_path / "saved")) is model_class
    who, said = torch.tensor([[2, 0], [-1, -1]]), torch.tensor([[1, 0], [-1, -1]])
    targets = model.targets({"annotators": who, "annotations": said})
    assert targets.tolist() == [[0, 1, 0], [0, 0, 0]]


def test_results_on_their_page_are_those_of_the_files(root):
    """A table typed by hand drifts away from the measurements."""
    import json

    text = (root / "docs" / "results.md").read_text(encoding="utf-8")
    for file in sorted((root / "recipes" / "benchmarks" / "results").glob("*.json")):
        result = json.loads(file.read_text())
        if "last_epoch_mean" not in result:
            continue
        mean, deviation = (
            result["last_epoch_mean"]["accuracy"],
            result["last_epoch_deviation"]["accuracy"],
        )
        assert f"{100 * mean:.1f} ± {100 * deviation:.1f}" in text, file.name
