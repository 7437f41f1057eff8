"""A Space of the Hub on which people try a shared model: its folder, and how it is pushed.

The Space holds the page alone: no data, and no copy of the model, which it loads from its repository.
"""

import re
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import yaml
from huggingface_hub import HfApi
from huggingface_hub.utils import validate_repo_id

PACKAGE = Path(__file__).parents[1]
_KINDS = ("*.py", "*.css", "*.html", "*.md", "*.txt", "py.typed")  # of the package's files
_PYTHON = "3.11"  # a Space has 3.10 otherwise
_SDK = "6.31.0"
_APP = '''\
"""The page of the model https://huggingface.co/{model}."""

from hf_maxmig.demo.app import app, launched
from hf_maxmig.demo.opening import model_page

if __name__ == "__main__":
    launched(app(model_page({model!r}, revision={revision!r})))
'''
_README = """\
---
{header}---

# {name}

Show something to the model [{model}](https://huggingface.co/{model}) and see what its classifier says. Add votes of its
annotators, and see how each of them moves the answer. What is given here is deleted after a day.

The folder `hf_maxmig` is the package that the page is made with.
"""


def space_folder(
    folder: str | Path, repo_id: str, *, revision: str | None = None, audio: bool = False
) -> Path:
    """Write the folder of a Space that shows a model.

    Args:
        folder: where to write; files of the same names are replaced.
        repo_id: the model's repository on the Hub.
        revision: its branch, tag or commit; by default that which the Hub shows.
        audio: whether the model classifies sounds, which need further libraries.

    Returns:
        The folder: `app.py`, `requirements.txt`, `README.md`, and the package.

    Raises:
        ValueError: if `repo_id` is no name of a repository, or the package is not installed.

    Example:
        >>> folder = space_folder(tempfile.mkdtemp(), "org/pets")
        >>> sorted(path.name for path in folder.iterdir())
        ['README.md', 'app.py', 'hf_maxmig', 'requirements.txt']
    """
    validate_repo_id(repo_id)
    folder, name = Path(folder), repo_id.split("/")[-1]
    header = {
        "title": name, "emoji": "\N{BALLOT BOX WITH BALLOT}", "colorFrom": "blue", "colorTo": "green", "sdk": "gradio",
        "sdk_version": _SDK, "python_version": _PYTHON, "app_file": "app.py", "pinned": False, "models": [repo_id],
        "tags": ["crowdsourcing", "noisy-labels"],
    }  # fmt: skip
    written = yaml.safe_dump(header, sort_keys=False, allow_unicode=True)
    for file in (path for kind in _KINDS for path in PACKAGE.rglob(kind)):
        place = folder / PACKAGE.name / file.relative_to(PACKAGE)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    for file_name, text in (
        ("app.py", _APP.format(model=repo_id, revision=revision)),
        ("requirements.txt", "".join(f"{line}\n" for line in _requirements(audio))),
        ("README.md", _README.format(header=written, name=name, model=repo_id)),
    ):
        (folder / file_name).write_text(text, encoding="utf-8")
    return folder


def push_space(
    repo_id: str,
    *,
    space_id: str | None = None,
    revision: str | None = None,
    audio: bool = False,
    token: str | None = None,
    private: bool | None = None,
) -> str:
    """Push a Space that shows a shared model.

    A Space of a private model also needs the secret `HF_TOKEN`, which is set on the Space's page.

    Args:
        repo_id: the model's repository on the Hub.
        space_id: the name of the Space; that of the model by default.
        revision: as in `space_folder`.
        audio: as in `space_folder`.
        token: of the user.
        private: whether only its owners see the Space.

    Returns:
        Its address.

    Raises:
        ValueError: as `space_folder`.
    """
    api, name = HfApi(token=token), space_id or repo_id
    with tempfile.TemporaryDirectory() as folder:
        space_folder(folder, repo_id, revision=revision, audio=audio)
        made = api.create_repo(
            name, repo_type="space", space_sdk="gradio", private=private, exist_ok=True
        )
        api.upload_folder(
            repo_id=name, repo_type="space", folder_path=folder, delete_patterns=[f"{PACKAGE.name}/**"],
            commit_message=f"The page of {repo_id}",
        )  # fmt: skip
    return str(made)


def _requirements(audio: bool) -> list[str]:
    """List what the package needs on a Space, which installs Gradio itself."""
    try:
        every = requires(PACKAGE.name) or []
    except PackageNotFoundError as error:
        raise ValueError(
            "the package must be installed to say what a Space needs, got a folder of its files: pip install it."
        ) from error
    needed = []
    for line in every:
        requirement, _, condition = (part.strip() for part in line.partition(";"))
        extra = re.search(r"extra == .(\w+)", condition)
        if extra is None or (audio and extra[1] == "audio"):
            needed.append(requirement)
    return needed
