"""A model that is pushed without a trainer: its card, and what its users read."""

import os
import re
import sys

import pytest
from huggingface_hub import ModelCard

from hf_maxmig.model.annotator_names import SHARED_AS
from tests.processes import finished

NAME = "org/pair"
SALT = "not this one, please"
INSTALL = (
    "The package is `hf_maxmig` on the Python Package Index:\n\n```bash\npip install hf_maxmig\n```"
)

# The client passes a file to its HTTP client in a deprecated way.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

PULL = """
import sys
from transformers import AutoModel

for name, *pinned in (["org/pair"], ["org/pinned", sys.argv[1]]):
    known = {"revision": commit for commit in pinned}
    print(type(AutoModel.from_pretrained(name, trust_remote_code=True, **known)).__name__)
    print("the end of", name, file=sys.stderr)
"""


def card_of(hub, name=NAME):
    return ModelCard(hub.repository(name).files["README.md"].content.decode())


@pytest.mark.parametrize("shared", SHARED_AS)
def test_own_push_of_a_model_writes_our_card(shared, hub, ann, make_model):
    """Transformers' card is empty except for "[More Information Needed]"."""
    make_model().push_to_hub(
        NAME, annotators=shared, salt=SALT if shared == "hashed" else None, tags=["birds"]
    )
    card = card_of(hub)
    assert INSTALL in card.text
    assert ("trust_remote_code=True" in card.text) == (shared != "dropped")
    assert "Nothing was measured." in card.text
    assert "| argument | value |" not in card.text
    assert "\n\n\n" not in card.content
    assert {"max-mig", "birds"} < set(card.data.tags)
    assert "More Information Needed" not in card.text


def test_saving_with_a_push_writes_our_card_too(hub, ann, make_model, tmp_path):
    """`save_pretrained(push_to_hub=True)` uses another code path."""
    make_model().save_pretrained(tmp_path / "pair", push_to_hub=True, repo_id=NAME)
    assert INSTALL in card_of(hub).text


def test_card_that_somebody_wrote_stays(hub, ann, make_model):
    """Pushing new weights must not undo what a person wrote, or the trainer measured."""
    make_model().push_to_hub(NAME)
    content = card_of(hub).content.replace("## Limits", "## Limits\n\nOf birds only.")
    hub.add_repository("org/own", {"README.md": content.encode()})
    empty = (
        "---\nlibrary_name: transformers\n---\nThis model card has been automatically generated."
    )
    hub.add_repository("org/empty", {"README.md": empty.encode()})
    for name in ("org/own", "org/empty"):
        make_model().push_to_hub(name)
    assert "Of birds only." in card_of(hub, "org/own").text
    assert INSTALL in card_of(hub, "org/empty").text


@pytest.mark.slow
def test_a_pinned_revision_is_pulled_without_notices(hub, ann, make_model, tmp_path):
    """Without the package, each code file on the Hub causes a notice; the card says how to avoid them."""
    for name in (NAME, "org/pinned"):
        make_model().push_to_hub(name)
    commit = hub.repository("org/pinned").branches["main"]
    env = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0", "PYTHONPATH": ""}
    home = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    output, errors = finished([sys.executable, "-c", PULL, commit], env=env | home, cwd=tmp_path)
    assert output == "MaxMIGModel\n" * 2, errors
    first, second, _ = re.split("the end of .*\n", errors)
    notice = "A new version of the following files was downloaded"
    assert notice in first
    assert notice not in second, second
