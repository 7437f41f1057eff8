"""Sharing a trained model: what is uploaded, what is loaded, and what is left after a failure."""

import json
import sys

import httpx2
import pytest
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoModel, AutoModelForImageClassification

from hf_maxmig import MaxMIGModel
from hf_maxmig.model.annotator_names import SHARED_AS
from hf_maxmig.model.checked_loading import check_version, check_weights
from hf_maxmig.model.version import __version__
from tests.hub_server import Fault

NAME = "org/pair"

# The client passes a file to its HTTP client in a deprecated way.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@pytest.fixture
def saved(make_model, tmp_path):
    """Return the files of a model, by name."""
    make_model().save_pretrained(tmp_path / "saved")
    return contents(tmp_path / "saved")


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_same_weights(first, second):
    first, second = first.state_dict(), second.state_dict()
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def with_config(files, **changes):
    config = json.loads(files["config.json"]) | changes
    return files | {"config.json": json.dumps(config).encode()}


# Uploading


def test_trainer_shares_the_model_and_nothing_that_names_people(
    hub, ann, make_trainer, crowd, tmp_path
):
    """The report holds names and data, a pickle may run code, and the model must load again."""
    trainer = make_trainer()
    trainer.train()
    trainer.relabel(crowd)
    assert (tmp_path / "out" / "_report" / "relabelled.parquet").is_file()
    trainer.push_to_hub()
    files = hub.repository(NAME).files
    assert not [path for path in files if "_report" in path or path.endswith(".parquet")]
    assert {path for path in files if path.endswith((".safetensors", ".bin", ".pt", ".pth", ".pkl"))} - {
        "training_args.bin"
    } == {"model.safetensors"}  # fmt: skip
    assert {"README.md", "config.json", "modeling_maxmig.py"} < set(files)
    assert b"cao2019maxmig" in files["README.md"].content
    for auto_class in (AutoModel, AutoModelForImageClassification):
        assert_same_weights(auto_class.from_pretrained(NAME), trainer.crowd_model)


@pytest.mark.filterwarnings("ignore:It seems that you are about to commit a data file:UserWarning")
@pytest.mark.parametrize("how", SHARED_AS)
def test_upload_of_the_output_folder_leaves_out_what_names_people(
    how, hub, ann, make_trainer, crowd, tmp_path
):
    """`hf upload` does not know our rules: it used to include reports, checkpoints and their pickles."""
    salt = {"hub_salt": "a salt that is kept private"} if how == "hashed" else {}
    trainer = make_trainer(hub_annotators=how, save_strategy="epoch", **salt)
    trainer.train()
    trainer.relabel(crowd)
    trainer.save_model()
    out = tmp_path / "out"
    assert {"_report", "model.safetensors"} < {path.name for path in out.iterdir()}
    assert list(out.glob("checkpoint-*/*.pt"))
    api = HfApi()
    api.create_repo(NAME)
    api.upload_folder(repo_id=NAME, folder_path=out)
    files = hub.repository(NAME).files
    assert ("model.safetensors" in files) == (how == "names")
    assert not [path for path in files if path.startswith(("_", "checkpoint"))]
    if how != "names":
        assert not set(files) - {".gitattributes"}


def test_report_elsewhere_leaves_the_output_folder_alone(make_trainer, crowd, tmp_path):
    """A user who only inspects a model may not be allowed to write to its folder."""
    trainer = make_trainer()
    before = sorted((tmp_path / "out").iterdir())
    trainer.relabel(crowd, tmp_path / "elsewhere" / "a.parquet")
    assert sorted((tmp_path / "out").iterdir()) == before
    trainer.relabel(crowd)
    assert (tmp_path / "out" / ".gitignore").is_file()


def test_users_own_ignore_file_stays(make_trainer, tmp_path, caplog):
    """It may be about other files in the folder."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".gitignore").write_text("mine\n")
    make_trainer().save_model()
    assert (tmp_path / "out" / ".gitignore").read_text() == "mine\n"
    assert ".gitignore differs from the file that this training would write" in caplog.text


def test_no_pickle_goes_up_and_no_token(hub, ann, make_trainer, tmp_path):
    """`Trainer` pickles its arguments, which contain the token."""
    trainer = make_trainer(hub_token=ann)
    trainer.push_to_hub()
    files = {path: file.content for path, file in hub.repository(NAME).files.items()}
    assert not [path for path, content in files.items() if ann.encode() in content]
    assert "training_args.bin" not in files
    assert json.loads(files["training_args.json"])["hub_token"] == "<HUB_TOKEN>"
    assert not [path for path in (tmp_path / "out").rglob("*") if path.suffix in (".bin", ".pt")]


def test_no_pickle_goes_up_while_training(hub, ann, make_trainer):
    """Pushes in the middle of a training write the arguments to another place than the last one."""
    trainer = make_trainer(push_to_hub=True, save_strategy="epoch", hub_token=ann)
    trainer.train()
    trainer._finish_current_push()
    repository = hub.repository(NAME)
    assert "Training in progress, epoch 1" in repository.messages
    for files in repository.commits.values():
        assert not [path for path in files if path.endswith((".bin", ".pt", ".pth"))]
        assert not [path for path, file in files.items() if ann.encode() in file.content]
    assert "training_args.json" in repository.files


def test_what_a_killed_save_left_is_not_shared(
    hub, ann, make_trainer, make_model, monkeypatch, tmp_path
):
    """Half a model in a hidden folder would be uploaded with the whole one each time."""

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "tempfile.TemporaryDirectory.cleanup", lambda self: self._finalizer.detach()
    )
    model = make_model()
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            model.save_pretrained(tmp_path / "out")
    (left,) = (tmp_path / "out").iterdir()
    assert (left / "model.safetensors").is_file()
    make_trainer().push_to_hub()
    assert not [path for path in hub.repository(NAME).files if left.name in path]


def test_model_shares_itself_with_code_and_weights(hub, ann, make_model):
    """Users without a trainer share a model with its own method."""
    model = make_model(seed=3)
    model.push_to_hub(NAME)
    files = hub.repository(NAME).files
    assert {"config.json", "model.safetensors", "modeling_maxmig.py", "README.md"} < set(files)
    assert not [path for path in files if path.endswith((".bin", ".pt"))]
    assert_same_weights(AutoModel.from_pretrained(NAME), model)


@pytest.mark.parametrize("who", ["trainer", "model"])
def test_revision_and_token_reach_the_hub(who, hub, make_trainer, make_model):
    """A lost token fails only with private models, and a lost revision overwrites main."""
    token = hub.add_user("ann", organisations=["org"])  # nobody is logged in
    hub.add_repository(NAME)
    if who == "trainer":
        model = (trainer := make_trainer()).crowd_model
        trainer.push_to_hub(token=token, revision="try")
    else:
        model = make_model(seed=5)
        model.push_to_hub(NAME, token=token, revision="try")
    repository = hub.repository(NAME)
    assert set(repository.files) == {".gitattributes"}
    assert set(repository.branches) == {"main", "try"}
    sent = {used for method, path, used in hub.requests if method == "POST" and NAME in path}
    assert sent == {token}
    repository.private = True
    for revision in ("try", repository.branches["try"]):
        loaded = AutoModel.from_pretrained(NAME, revision=revision, token=token)
        assert_same_weights(loaded, model)


UPLOADS = {
    "conflict": (Fault("POST", "/commit/", status=412, message="A commit has happened since"), HfHubHTTPError, "412"),
    "busy": (Fault("POST", "/commit/", status=409, message="another commit is in progress"), HfHubHTTPError, "409"),
    "weights cut": (Fault("PUT", "/lfs/", times=None, cut_after=50), RuntimeError, "Error while uploading"),
    "commit cut": (Fault("POST", "/commit/", cut_after=50), httpx2.TransportError, None),
    "no space": (Fault("POST", "objects/batch", status=403, message="storage limit reached"), HfHubHTTPError, "storage limit"),
}  # fmt: skip


@pytest.mark.parametrize("fault", UPLOADS)
def test_failed_upload_leaves_the_files_and_can_be_made_good(
    fault, hub, ann, make_trainer, tmp_path
):
    """Hours of training must not depend on a connection of minutes."""
    trainer = make_trainer()
    trainer.save_model()
    trainer.create_model_card(model_name="pair")
    before = contents(tmp_path / "out")
    assert "model.safetensors" in before
    injected, error, message = UPLOADS[fault]
    injected = Fault(**vars(injected))  # faults count requests
    hub.faults.append(injected)
    with pytest.raises(error, match=message):
        trainer.push_to_hub()
    assert contents(tmp_path / "out") == before
    assert set(hub.repository(NAME).files) == {".gitattributes"}
    hub.faults.clear()
    trainer.push_to_hub()
    assert_same_weights(AutoModel.from_pretrained(NAME), trainer.crowd_model)


@pytest.mark.parametrize(
    ("name", "organisations", "writes", "message"),
    [
        (None, (), True, "401"),
        ("eve", (), True, "You don't have the rights to create org/pair"),
        ("eve", ("org",), False, "You don't have the rights to create org/pair"),
    ],
)
def test_who_may_not_write_is_told_and_logs_in(
    name, organisations, writes, message, hub, make_trainer, monkeypatch, tmp_path
):
    """This most common mistake shows only when the training is done."""
    if name is not None:
        hub.log_in(monkeypatch, hub.add_user(name, organisations, writes))
    trainer = make_trainer()
    trainer.save_model()
    before = contents(tmp_path / "out")
    with pytest.raises(HfHubHTTPError, match=message):
        trainer.push_to_hub()
    assert contents(tmp_path / "out") == before
    assert not hub.repositories
    trainer.push_to_hub(token=hub.add_user("ann", organisations=["org"]))
    assert "model.safetensors" in hub.repository(NAME).files


# Downloading


def test_private_model_asks_for_a_token(hub, saved):
    """To strangers a private model does not exist, so the message must mention missing access."""
    hub.add_repository(NAME, saved, private=True)
    token = hub.add_user("ann", organisations=["org"])
    for other in (False, hub.add_user("bob")):
        with pytest.raises(OSError, match="make sure to pass a token having permission"):
            AutoModel.from_pretrained(NAME, token=other)
    with pytest.raises(OSError, match="Invalid credentials"):
        AutoModel.from_pretrained(NAME, token="hf_wrong")
    assert type(AutoModel.from_pretrained(NAME, token=token)) is MaxMIGModel


def test_gated_model_says_where_to_ask(hub, saved):
    """Access to a model of people's votes may depend on agreeing to terms."""
    repository = hub.add_repository(NAME, saved, gated=True)
    token = hub.add_user("bob")
    with pytest.raises(OSError, match="gated repo.*\nMake sure to have access"):
        AutoModel.from_pretrained(NAME, token=token)
    repository.admitted.add("bob")
    assert type(AutoModel.from_pretrained(NAME, token=token)) is MaxMIGModel


def test_what_is_missing_is_named(hub, saved):
    """The message must say which of name, revision and file is wrong."""
    hub.add_repository(NAME, saved)
    hub.add_repository("org/half", {"config.json": saved["config.json"]})
    with pytest.raises(OSError, match="org/nothing is not a local folder and is not a valid model"):
        AutoModel.from_pretrained("org/nothing")
    with pytest.raises(OSError, match="v9 is not a valid git identifier"):
        AutoModel.from_pretrained(NAME, revision="v9")
    with pytest.raises(
        OSError, match=r"org/half does not appear to have a file named.*safetensors"
    ):
        AutoModel.from_pretrained("org/half")


def test_cut_download_is_made_good_at_once_or_by_the_next_try(hub, saved):
    """Otherwise half of the weights would stay in the cache for the next load."""
    hub.add_repository(NAME, saved)
    weights = Fault("GET", "model.safetensors", times=None, cut_after=100)
    hub.faults.append(weights)
    with pytest.raises((OSError, httpx2.TransportError)):
        AutoModel.from_pretrained(NAME)
    weights.times = 2
    assert type(AutoModel.from_pretrained(NAME)) is MaxMIGModel
    assert weights.times == 0


def test_hub_that_does_not_answer_is_given_up(hub, saved, monkeypatch):
    """Without a timeout a program would hang; a model in the cache needs no answer."""
    hub.add_repository(NAME, saved)
    for name in ("constants.HF_HUB_ETAG_TIMEOUT", "file_download._ETAG_RETRY_TIMEOUT"):
        monkeypatch.setattr(f"huggingface_hub.{name}", 0.05)
    hub.faults.append(slow := Fault("HEAD", times=None, delay=30))
    with pytest.raises(OSError, match="We couldn't connect to"):
        AutoModel.from_pretrained(NAME)
    slow.times = 0
    AutoModel.from_pretrained(NAME)
    slow.times = None
    assert type(AutoModel.from_pretrained(NAME)) is MaxMIGModel


# What is refused


def pickled(saved, make_model, tmp_path, file_name="pytorch_model.bin"):
    torch.save(make_model().state_dict(), tmp_path / "weights")
    rest = {name: content for name, content in saved.items() if name != "model.safetensors"}
    return rest | {file_name: (tmp_path / "weights").read_bytes()}


def test_pickled_weights_are_refused_with_a_reason(hub, saved, make_model, tmp_path):
    """Anyone who can write to a repository could run code on each machine that loads from it."""
    files = pickled(saved, make_model, tmp_path)
    hub.add_repository(NAME, files)
    folder = tmp_path / "pickled"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    for place in (NAME, folder):
        with pytest.raises(ValueError, match=r"must be safetensors, got only pytorch_model\.bin"):
            AutoModel.from_pretrained(place)
    assert not hub.asked("GET", "pytorch_model.bin")


def test_check_refuses_pickles_only_where_nothing_else_is(hub, saved, make_model, tmp_path):
    """Old repositories have both formats, and a user who asks for the pickle must not get it either."""
    files = pickled(saved, make_model, tmp_path)
    hub.add_repository("org/both", files | saved)
    check_weights("org/both")
    with pytest.raises(ValueError, match="`use_safetensors` must not be False"):
        check_weights("org/both", use_safetensors=False)
    hub.add_repository(
        "org/parts", pickled(saved, make_model, tmp_path, "pytorch_model.bin.index.json")
    )
    hub.add_repository(
        "org/variant", pickled(saved, make_model, tmp_path, "pytorch_model.fp16.bin")
    )
    with pytest.raises(ValueError, match=r"got only pytorch_model\.bin\.index\.json in org/parts"):
        check_weights("org/parts")
    with pytest.raises(ValueError, match=r"got only pytorch_model\.fp16\.bin in org/variant"):
        check_weights("org/variant", variant="fp16")
    check_weights("org/variant")  # it has no weights, which transformers reports
    private = hub.add_repository("org/private", files, private=True)
    token = hub.add_user("ann", organisations=["org"])
    with pytest.raises(ValueError, match="got only"):
        check_weights("org/private", token=token, revision=private.branches["main"])


@pytest.mark.parametrize("left", [0, 5, 60, -100])
def test_weights_that_are_not_whole_are_named(left, hub, saved):
    """`invalid header length` does not say which file to download again."""
    weights = saved["model.safetensors"][:left]
    hub.add_repository(NAME, saved | {"model.safetensors": weights})
    with pytest.raises(
        ValueError, match=rf"`model\.safetensors` must have .* bytes.*got {len(weights):,}: .*force"
    ):
        AutoModel.from_pretrained(NAME)


def test_parts_of_weights_are_each_looked_at(make_model, tmp_path):
    """Large models have many files, of which one may be damaged."""
    make_model().save_pretrained(tmp_path, max_shard_size=600)
    parts = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(parts) > 1
    check_weights(tmp_path)
    parts[-1].write_bytes(parts[-1].read_bytes()[:-8])
    with pytest.raises(ValueError, match=rf"`{parts[-1].name}` must have"):
        check_weights(tmp_path)


def test_model_of_a_newer_version_is_refused_if_it_says_more(hub, saved):
    """A field that is silently ignored would give another model under the same name."""
    hub.add_repository(NAME, with_config(saved, hf_maxmig_version="99.1", temperature_of_g=2.0))
    with pytest.raises(
        ValueError, match="or older, got one of 99.1 with temperature_of_g: `pip install -U"
    ):
        AutoModel.from_pretrained(NAME)


@pytest.mark.parametrize(
    "fields",
    [{"hf_maxmig_version": "99.1"}, {"mine": 1}, {"hf_maxmig_version": "0.0.1", "mine": 1}],
)
def test_model_that_says_nothing_new_loads(fields, hub, saved):
    """Models whose version adds nothing, or with users' own fields, must still load."""
    hub.add_repository(NAME, with_config(saved, **fields))
    assert type(AutoModel.from_pretrained(NAME, attn_implementation="eager")) is MaxMIGModel


def test_saved_model_says_which_version_saved_it(saved):
    """Without the version, a later release cannot tell what it is reading."""
    assert json.loads(saved["config.json"])["hf_maxmig_version"] == __version__


@pytest.mark.parametrize(
    ("version", "refused"),
    [("0.0.9", False), (__version__, False), ("0.10.0", True), ("1.0", True)],
)
def test_versions_are_compared_as_numbers(version, refused, monkeypatch):
    """Compared as text, 0.10 is older than 0.9."""
    monkeypatch.setattr("hf_maxmig.model.checked_loading.__version__", "0.9.0")
    monkeypatch.setattr(sys.modules[__name__], "__version__", "0.9.0")
    check_version(version, [])
    if refused:
        with pytest.raises(ValueError, match="with b, c"):
            check_version(version, ["c", "b"])
    else:
        check_version(version, ["c", "b"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"divergence": "renyi"}, "`divergence` must be one of kl, pearson, jensen_shannon, got 'renyi'"),
        ({"aggregator": "deep"}, "`aggregator` must be one of weighted_average, .*, got 'deep'"),
        ({"classifier_config": {"model_type": "maxmig_new"}}, "`classifier_config` must have the `model_type` of a model of transformers, got .maxmig_new"),
    ],
)  # fmt: skip
def test_values_from_the_future_are_named(changes, message, hub, saved):
    """A model of a later version may use values unknown to this one."""
    hub.add_repository(NAME, with_config(saved, **changes))
    with pytest.raises(ValueError, match=message):
        AutoModel.from_pretrained(NAME)


def test_broken_config_is_named(hub, saved):
    """Another program may have left half a file in the cache."""
    hub.add_repository(NAME, saved | {"config.json": saved["config.json"][:40]})
    with pytest.raises(OSError, match="is not a valid JSON file"):
        AutoModel.from_pretrained(NAME)


# Without the package
