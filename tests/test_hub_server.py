"""The Hub used by the tests of sharing, queried with the client that everybody uses."""

import os
import time

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.hub_server import Fault

WEIGHTS = bytes(range(256)) * 40
NAME = "org/thing"

# The client passes a file to its HTTP client in a deprecated way.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@pytest.fixture
def ann(hub):
    """A member of the organisation, whose answers are not taken from the cache."""
    return HfApi(endpoint=hub.endpoint, token=hub.add_user("ann", organisations=["org"]))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "up" / "sub").mkdir(parents=True)
    (tmp_path / "up" / "config.json").write_bytes(b'{"a": 1}')
    (tmp_path / "up" / "sub" / "note.txt").write_bytes(b"note")
    (tmp_path / "up" / "model.safetensors").write_bytes(WEIGHTS)
    return tmp_path / "up"


def read(path):
    with open(path, "rb") as file:
        return file.read()


def status(raised):
    return raised.value.response.status_code


def test_what_goes_up_comes_down(hub, ann, folder):
    """Small files travel inside the commit, large ones separately."""
    assert ann.create_repo(NAME).repo_id == NAME
    ann.upload_folder(repo_id=NAME, folder_path=folder, commit_message="all of it")
    assert hub.asked("PUT") == [f"/lfs/{hub.repository(NAME).files['model.safetensors'].sha256}"]
    for path in ("config.json", "sub/note.txt", "model.safetensors"):
        assert read(hf_hub_download(NAME, path)) == read(folder / path)
    assert hub.repository(NAME).messages == ["initial commit", "all of it"]


def test_what_is_there_already_is_not_sent_again(hub, ann, folder):
    """A second attempt after a failure must not take as long as the first."""
    ann.create_repo(NAME)
    first = ann.upload_folder(repo_id=NAME, folder_path=folder)
    before = len(hub.asked("PUT")), len(hub.asked("POST", "/commit/"))
    second = ann.upload_folder(repo_id=NAME, folder_path=folder)
    assert second.oid == first.oid
    assert (len(hub.asked("PUT")), len(hub.asked("POST", "/commit/"))) == before


def test_tree_paths_and_information_tell_the_same(hub, ann, folder):
    """Clients look for weights in any of the three."""
    ann.create_repo(NAME)
    ann.upload_folder(repo_id=NAME, folder_path=folder)
    every = [".gitattributes", "config.json", "model.safetensors", "sub/note.txt"]
    assert ann.list_repo_files(NAME) == every
    assert [entry.path for entry in ann.list_repo_tree(NAME, recursive=True)] == every
    top = list(ann.list_repo_tree(NAME))
    assert [entry.path for entry in top] == [*every[:3], "sub"]
    assert not hasattr(top[-1], "size")
    assert [entry.path for entry in ann.list_repo_tree(NAME, "sub")] == ["sub/note.txt"]
    large, small = ann.get_paths_info(NAME, ["model.safetensors", "config.json", "nothing"])
    assert (large.size, large.lfs.size) == (len(WEIGHTS), len(WEIGHTS))
    assert (small.size, small.lfs) == (8, None)
    with pytest.raises(RemoteEntryNotFoundError):
        list(ann.list_repo_tree(NAME, "nothing"))


def test_branches_tags_and_commits_stay_what_they_were(hub, ann):
    """If `revision=` always gave the newest files, most tests would still pass."""
    ann.create_repo(NAME)
    oids = {}
    for content in (b"first", b"second"):
        oids[content] = ann.upload_file(
            path_or_fileobj=content, path_in_repo="a.txt", repo_id=NAME
        ).oid
    ann.create_tag(NAME, tag="v1", revision=oids[b"first"])
    ann.create_branch(NAME, branch="try/this", revision="v1")
    ann.upload_file(
        path_or_fileobj=b"third", path_in_repo="a.txt", repo_id=NAME, revision="try/this"
    )
    found = {
        revision: read(hf_hub_download(NAME, "a.txt", revision=revision))
        for revision in ("main", "v1", "try/this", *oids.values())
    }
    assert list(found.values()) == [b"second", b"first", b"third", b"first", b"second"]
    refs = ann.list_repo_refs(NAME)
    assert {branch.name for branch in refs.branches} == {"main", "try/this"}
    assert [(tag.name, tag.target_commit) for tag in refs.tags] == [("v1", oids[b"first"])]
    assert ann.model_info(NAME, revision="v1").sha == oids[b"first"]
    with pytest.raises(HfHubHTTPError) as again:
        ann.create_tag(NAME, tag="v1")
    assert status(again) == 409
    ann.create_branch(NAME, branch="try/this", exist_ok=True)


def test_part_of_a_file_is_a_part(hub):
    """A resumed download is complete only if partial requests give the right bytes."""
    hub.add_repository(NAME, {"model.safetensors": WEIGHTS})
    url = f"{hub.endpoint}/{NAME}/resolve/main/model.safetensors"
    part = httpx2.get(url, headers={"Range": "bytes=100-199"})
    assert (part.status_code, part.content) == (206, WEIGHTS[100:200])
    assert part.headers["Content-Range"] == f"bytes 100-199/{len(WEIGHTS)}"
    assert httpx2.get(url, headers={"Range": "bytes=10000-"}).content == WEIGHTS[10000:]
    assert httpx2.get(url, headers={"Range": "bytes=99999-"}).status_code == 416
    head = httpx2.head(url)
    assert (head.content, head.headers["Content-Length"]) == (b"", str(len(WEIGHTS)))


def test_users_are_who_their_token_says(hub, ann):
    """If tokens were ignored, every test of permissions would pass."""
    user = ann.whoami()
    assert (user["name"], [org["name"] for org in user["orgs"]]) == ("ann", ["org"])
    with pytest.raises(HfHubHTTPError) as wrong:
        HfApi(endpoint=hub.endpoint, token="hf_wrong").whoami()
    assert status(wrong) == 401
    hub.add_repository(NAME, {"a.txt": b"a"})
    with pytest.raises(HfHubHTTPError, match="Invalid credentials"):
        hf_hub_download(NAME, "a.txt", token="hf_wrong")


def test_only_owners_write(hub, ann):
    """Readers, strangers and anonymous users get different answers, as from the real Hub."""
    hub.add_repository(NAME)
    reader, stranger = hub.add_user("ann", ["org"], writes=False), hub.add_user("bob")
    for token, expected in ((reader, 403), (stranger, 403), (False, 401)):
        api = HfApi(endpoint=hub.endpoint, token=token)
        for write in (
            lambda api=api: api.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=NAME),
            lambda api=api: api.create_repo("org/other"),
        ):
            with pytest.raises(HfHubHTTPError) as refused:
                write()
            assert status(refused) == expected
    assert set(hub.repository(NAME).files) == {".gitattributes"}
    with pytest.raises(HfHubHTTPError) as exists:
        ann.create_repo(NAME)
    assert status(exists) == 409
    assert ann.create_repo(NAME, exist_ok=True).repo_id == NAME


def test_private_repository_is_not_there_for_others(hub, ann):
    """Answering that it exists but is private would reveal its name."""
    ann.create_repo(NAME, private=True)
    ann.upload_file(path_or_fileobj=b"a", path_in_repo="a.txt", repo_id=NAME)
    for token in (False, hub.add_user("bob")):
        with pytest.raises(RepositoryNotFoundError) as missing:
            hf_hub_download(NAME, "a.txt", token=token)
        assert status(missing) == 404
    assert read(hf_hub_download(NAME, "a.txt", token=ann.token)) == b"a"
    assert ann.model_info(NAME).private


def test_gated_repository_is_seen_but_not_read(hub):
    """The card of a gated model is public, its files are for admitted users."""
    repository = hub.add_repository(NAME, {"a.txt": b"a"}, gated=True)
    token = hub.add_user("bob")
    api = HfApi(endpoint=hub.endpoint, token=token)
    assert api.model_info(NAME).gated == "manual"
    with pytest.raises(GatedRepoError) as refused:
        hf_hub_download(NAME, "a.txt", token=token)
    assert status(refused) == 403
    repository.admitted.add("bob")
    assert read(hf_hub_download(NAME, "a.txt", token=token)) == b"a"


def test_what_is_missing_is_told_by_name(hub):
    """A wrong file, revision or repository are three different mistakes."""
    hub.add_repository(NAME, {"a.txt": b"a"})
    with pytest.raises(RemoteEntryNotFoundError):
        hf_hub_download(NAME, "b.txt")
    with pytest.raises(RevisionNotFoundError):
        hf_hub_download(NAME, "a.txt", revision="v9")
    with pytest.raises(RepositoryNotFoundError):
        hf_hub_download("org/nothing", "a.txt")


def test_commit_on_an_old_state_is_refused_whole(hub, ann):
    """When two people push at once, the second must not undo the first."""
    ann.create_repo(NAME)
    start = ann.model_info(NAME).sha
    ann.upload_file(path_or_fileobj=b"1", path_in_repo="a.txt", repo_id=NAME)
    operations = [CommitOperationAdd("b.txt", b"2")]
    for fault, expected in ((None, 412), (Fault("POST", "/commit/", status=409), 409)):
        if fault:
            hub.faults.append(fault)
        with pytest.raises(HfHubHTTPError) as refused:
            ann.create_commit(NAME, operations, commit_message="late", parent_commit=start)
        assert status(refused) == expected
    assert set(hub.repository(NAME).files) == {".gitattributes", "a.txt"}
    with pytest.raises(RevisionNotFoundError):
        ann.create_commit(NAME, operations, commit_message="x", revision="nothing")


def test_cut_upload_leaves_nothing_and_can_be_made_good(hub, ann, folder):
    """A commit without its large file would be a repository that nobody can load."""
    ann.create_repo(NAME)
    hub.faults.append(Fault("PUT", "/lfs/", times=None, cut_after=100))
    with pytest.raises(RuntimeError, match=r"Error while uploading 'model\.safetensors'") as broken:
        ann.upload_folder(repo_id=NAME, folder_path=folder)
    assert isinstance(broken.value.__cause__, httpx2.TransportError)
    assert len(hub.asked("PUT")) == 6  # as often as the client tries
    assert (set(hub.repository(NAME).files), hub.large) == ({".gitattributes"}, {})
    hub.faults.clear()
    ann.upload_folder(repo_id=NAME, folder_path=folder)
    assert hub.repository(NAME).files["model.safetensors"].content == WEIGHTS


@pytest.mark.parametrize("chunk", [None, 1000])
def test_cut_download_goes_on(chunk, hub, monkeypatch):
    """The client requests the rest after the complete pieces that it has."""
    if chunk:
        monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", chunk)
    hub.add_repository(NAME, {"model.safetensors": WEIGHTS})
    hub.faults.append(Fault("GET", "model.safetensors", cut_after=5000))
    assert read(hf_hub_download(NAME, "model.safetensors")) == WEIGHTS
    assert len(hub.asked("GET", "model.safetensors")) == 2


def test_download_that_is_always_cut_leaves_nothing(hub, tmp_path):
    """Half a file under its right name would be loaded the next time."""
    hub.add_repository(NAME, {"model.safetensors": WEIGHTS})
    hub.faults.append(Fault("GET", "model.safetensors", times=None, cut_after=5000))
    with pytest.raises(httpx2.RemoteProtocolError):
        hf_hub_download(NAME, "model.safetensors")
    left = [name for _, _, names in os.walk(tmp_path / "home" / "hub") for name in names]
    assert not [name for name in left if "incomplete" in name or "safetensors" in name]
    hub.faults.clear()
    assert read(hf_hub_download(NAME, "model.safetensors")) == WEIGHTS


def test_slow_answer_is_slow(hub, monkeypatch):
    """A client with a timeout must give up and say so."""
    hub.add_repository(NAME, {"a.txt": b"a", "b.txt": b"b"})
    hub.faults.append(Fault("HEAD", "a.txt", delay=0.2))
    began = time.monotonic()
    assert read(hf_hub_download(NAME, "a.txt")) == b"a"
    assert time.monotonic() - began >= 0.2
    hub.faults.append(Fault("HEAD", "b.txt", times=None, delay=30))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.05)
    monkeypatch.setattr("huggingface_hub.file_download._ETAG_RETRY_TIMEOUT", 0.05)
    with pytest.raises(LocalEntryNotFoundError, match="Please check your connection"):
        hf_hub_download(NAME, "b.txt")


def test_what_it_does_not_know_it_refuses(hub, ann):
    """An invented answer could let a test pass by luck."""
    ann.create_repo(NAME)
    with pytest.raises(HfHubHTTPError) as unknown:
        ann.get_repo_discussions(NAME).__next__()
    assert status(unknown) == 501
