"""A Space that shows a model: what goes up, and that its `app.py` serves the page."""

import os
import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from hf_maxmig import MaxMIGModel
from hf_maxmig.sharing.space import PACKAGE, push_space, space_folder
from tests.children import needs_fork, run
from tests.hub_server import File
from tests.networks import small_head
from tests.worlds import ANNOTATORS

NAME = "org/pair"
SALT = "not to be guessed by anybody"

# The client passes a file to its HTTP client in a deprecated way.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


def text_of(files, name):
    return files[name].content.decode()


def test_trainer_pushes_a_space_of_the_model(hub, ann, make_trainer):
    """The Space must find the model, and shows of the annotators what the model's repository shows."""
    make_trainer().push_to_hub(space=True, annotators="hashed", salt=SALT)
    assert "model.safetensors" in hub.repository(NAME).files
    files = hub.repository(NAME, "spaces").files
    header = yaml.safe_load(text_of(files, "README.md").split("---\n")[1])
    assert (header["sdk"], header["app_file"], header["models"]) == ("gradio", "app.py", [NAME])
    assert header["title"] == "pair"
    assert "model_page('org/pair', revision=None)" in text_of(files, "app.py")
    package = {f"hf_maxmig/{path.relative_to(PACKAGE).as_posix()}" for path in PACKAGE.rglob("*.py")}  # fmt: skip
    assert package <= {*files}
    assert {"hf_maxmig/demo/page.html", "hf_maxmig/demo/page.css", "hf_maxmig/judging/item.html"} <= {*files}  # fmt: skip
    assert not [name for name in files if name.endswith((".safetensors", ".pyc", ".csv", ".parquet"))]  # fmt: skip
    told = " ".join(text_of(files, name) for name in ("README.md", "app.py", "requirements.txt"))
    assert not [name for name in (*ANNOTATORS, SALT) if re.search(rf"\b{name}\b", told)]


def test_space_installs_what_the_package_needs(tmp_path, root, monkeypatch):
    """Gradio comes with the Space; a library too few, and the page does not start."""
    needed = (space_folder(tmp_path / "a", NAME) / "requirements.txt").read_text().splitlines()
    names = [re.match(r"[\w-]+", line)[0].lower() for line in needed]
    assert {"torch", "transformers", "datasets", "jinja2", "filelock"} <= {*names}
    assert not {"gradio", "pytest", "matplotlib", "soundfile"} & {*names}
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    header = yaml.safe_load((tmp_path / "a" / "README.md").read_text("utf-8").split("---\n")[1])
    assert f'requires-python = ">={header["python_version"]}"' in project
    assert f'"gradio>={header["sdk_version"].removesuffix(".0")}"' in project
    listed = ["torch>=2.9", "transformers<6,>=5.23", 'gradio>=6; extra == "demo"', "soxr>=0.5 ; extra == 'audio'"]  # fmt: skip
    monkeypatch.setattr("hf_maxmig.sharing.space.requires", lambda name: listed)
    for audio, more in ((False, []), (True, ["soxr>=0.5"])):
        text = (space_folder(tmp_path / "b", NAME, audio=audio) / "requirements.txt").read_text()
        assert text.splitlines() == [*listed[:2], *more]


def test_space_is_pushed_again(hub, ann):
    """A file of the package that is gone must not stay; the owner's own files do."""
    push_space(NAME, revision="v1")
    hub.repository(NAME, "spaces").commit(
        "main",
        {
            **hub.repository(NAME, "spaces").files,
            "hf_maxmig/old.py": File(b"x"),
            "notes.md": File(b"x"),
        },
        "by hand",
    )
    address = push_space(NAME, revision="v2", private=True)
    files = hub.repository(NAME, "spaces").files
    assert address.endswith("/spaces/org/pair")
    assert "revision='v2'" in text_of(files, "app.py")
    assert "hf_maxmig/old.py" not in files
    assert "notes.md" in files


def test_space_of_a_classifier_alone_is_refused_before_anything_goes_up(hub, ann, make_trainer):
    """The page would have nothing to show of the votes."""
    with pytest.raises(ValueError, match="`space` must be False with `annotators='dropped'`"):
        make_trainer().push_to_hub(space=True, annotators="dropped")
    assert hub.repositories == {}
    with pytest.raises(ValueError, match="no/such/name"):
        push_space("no/such/name")


def open_space(folder):
    """Run `app.py` as a Space does, beside a model of that name, up to the moment at which it would wait; for `run`."""
    os.chdir(folder)
    sys.path.insert(0, str(folder / "space"))
    import gradio

    launch, opened = gradio.Blocks.launch, []

    def launched(blocks, **options):
        opened.append(blocks.title)
        return launch(blocks, prevent_thread_lock=True, **options)

    gradio.Blocks.launch = launched
    runpy.run_path(str(folder / "space" / "app.py"), run_name="__main__")
    Path(folder, "opened").write_text(" ".join(opened))
    os._exit(0)


@needs_fork
@pytest.mark.slow
@pytest.mark.skipif(find_spec("gradio") is None, reason="the extra `demo` is not installed")
def test_app_of_the_space_opens_the_page(tmp_path):
    """An `app.py` that nobody has run is a text."""
    model = MaxMIGModel.from_classifier(small_head(), annotators=ANNOTATORS)
    model.save_pretrained(tmp_path / "org" / "pair")  # found before the Hub is asked
    space_folder(tmp_path / "space", NAME)
    code = run(tmp_path / "log", open_space, tmp_path)
    assert code == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "opened").read_text() == "pair"
