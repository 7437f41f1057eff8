"""A small Hub in this process: the parts that `huggingface_hub` uses of the real one, with faults on demand.

It keeps users and their tokens, repositories with commits, branches and tags, and the contents of
large files. It speaks the plain protocol only: clients must have `HF_HUB_DISABLE_XET=1`. It answers
unknown requests with 501, so that a test fails and does not pass by luck.
"""

import base64
import fnmatch
import hashlib
import itertools
import json
import re
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".pt", ".parquet")  # large files by `.gitattributes`
KINDS = ("models", "datasets", "spaces")
WHEN = "2020-01-01T00:00:00.000Z"


@dataclass
class User:
    """A user with a token.

    Args:
        name: also the namespace of their repositories.
        token: sent with their requests.
        organisations: further namespaces of theirs.
        writes: whether the token may write.
    """

    name: str
    token: str
    organisations: tuple[str, ...] = ()
    writes: bool = True

    def owns(self, repository: "Repository") -> bool:
        """Return whether a repository lies in one of their namespaces."""
        return repository.owner in (self.name, *self.organisations)


@dataclass(frozen=True)
class File:
    """A file of a commit."""

    content: bytes
    large: bool = False

    @property
    def git_hash(self) -> str:
        """Return the name by which git knows the file; of a large file git knows a pointer."""
        stored = self.content
        if self.large:
            stored = (
                "version https://git-lfs.github.com/spec/v1\n"
                f"oid sha256:{self.sha256}\nsize {len(self.content)}\n"
            ).encode()
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()

    @property
    def sha256(self) -> str:
        """Return the name by which the store of large files knows the file."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def tag(self) -> str:
        """Return the name by which the Hub's client knows the file."""
        return self.sha256 if self.large else self.git_hash


@dataclass
class Repository:
    """A repository: permanent commits, and the branches and tags that point at them.

    Args:
        kind: `models`, `datasets` or `spaces`.
        name: as in `org/name`.
        private: whether only its owners see it.
        gated: whether only its owners and `admitted` users may have its files.
    """

    kind: str
    name: str
    private: bool = False
    gated: bool = False
    admitted: set[str] = field(default_factory=set)
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.commit("main", {".gitattributes": File(b"")}, "initial commit")

    @property
    def owner(self) -> str:
        """The namespace it lies in."""
        return self.name.split("/")[0]

    @property
    def files(self) -> dict[str, File]:
        """Files at the head of `main`, by path."""
        return self.commits[self.branches["main"]]

    def commit(self, branch: str, files: dict[str, File], message: str) -> str:
        """Commit all files to the head of a branch; return the commit's name."""
        content = f"{self.name} {len(self.commits)} {message}"
        name = hashlib.sha1(content.encode()).hexdigest()
        self.commits[name], self.branches[branch] = files, name
        self.messages.append(message)
        return name

    def find(self, revision: str) -> str:
        """Return the commit that the name of a branch, tag or commit refers to."""
        if revision in self.commits:
            return revision
        found = self.branches.get(revision) or self.tags.get(revision)
        if found is None:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found


@dataclass
class Fault:
    """An error that the next matching requests meet.

    Args:
        method: `GET`, `HEAD`, `POST` or `PUT`; any by default.
        path: a part of the path.
        times: number of requests that meet it; None: all.
        delay: seconds before anything is read.
        status: of the answer, in place of the true one.
        message: of the answer.
        cut_after: bytes after which the connection is cut: of the request's body, if there is one, or
            else of the answer.
    """

    method: str = ""
    path: str = ""
    times: int | None = 1
    delay: float = 0.0
    status: int | None = None
    message: str = "injected"
    cut_after: int | None = None

    def fits(self, method: str, path: str) -> bool:
        """Return whether the fault applies to a request."""
        return self.times != 0 and self.method in ("", method) and self.path in path


@dataclass
class Request:
    """A request that has arrived complete."""

    method: str
    parts: list[str]  # of the path, each unquoted: a revision may contain a slash
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict:
        """The body, parsed as JSON."""
        return json.loads(self.body or b"{}")


@dataclass
class Reply:
    """The answer to a request."""

    body: bytes | list | dict = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        """The body as bytes."""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


class Refusal(Exception):  # noqa: N818 - what it does, not what it is
    """Raised to refuse a request."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(status, code, message)
        self.reply = Reply({"error": message or code}, status, {"X-Error-Message": message or code})
        if code:
            self.reply.headers["X-Error-Code"] = code


def is_ignored(path: str, rules: str) -> bool:
    """Return whether a `.gitignore` excludes a file, as far as ours go: `*` and names at the top."""
    tops = [rule.strip("/") for rule in rules.splitlines() if rule and not rule.startswith("#")]
    return any(fnmatch.fnmatch(path.split("/")[0], top) for top in tops)


class HubServer:
    """A Hub on a free port of this machine, as a context manager.

    Example:
        with HubServer() as hub:
            token = hub.add_user("ann", organisations=["org"])
            hub.point_here(monkeypatch, tmp_path, token)
            hub.faults.append(Fault("PUT", "/lfs/", cut_after=100))
    """

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.large: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, str]] = []  # method, path, token
        self.closing = threading.Event()
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def endpoint(self) -> str:
        """The address, for `HF_ENDPOINT`."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "HubServer":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join(60)
        self._server.server_close()

    # For tests

    def add_user(self, name: str, organisations: Iterable[str] = (), writes: bool = True) -> str:
        """Add a user; return their token."""
        token = f"hf_{name}_{'write' if writes else 'read'}"
        self.users[token] = User(name, token, tuple(organisations), writes)
        return token

    def add_repository(
        self, name: str, files: dict[str, bytes] | None = None, **fields: object
    ) -> Repository:
        """Add a model repository with some files on `main`."""
        found = self.repositories["models", name] = Repository("models", name, **fields)
        if files:
            content = {path: File(data, path.endswith(LARGE)) for path, data in files.items()}
            found.commit("main", found.files | content, "files")
        return found

    def repository(self, name: str, kind: str = "models") -> Repository:
        """Return an existing repository."""
        return self.repositories[kind, name]

    def asked(self, method: str = "", path: str = "") -> list[str]:
        """Return the paths that were requested, in order."""
        return [p for m, p, _ in self.requests if method in ("", m) and path in p]

    def environment(self, home: object, token: str | None = None) -> dict[str, str]:
        """Return the environment variables with which a new process talks to this Hub only."""
        variables = {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "DISABLE_SAFETENSORS_CONVERSION": "1",
        }
        return variables if token is None else variables | {"HF_TOKEN": token}

    def point_here(self, monkeypatch: object, home: object, token: str | None = None) -> None:
        """Make this process talk to this Hub only, although its libraries are already imported.

        Retries do not wait: otherwise a client waits half a minute before it gives up an upload.
        """
        for name, value in self.environment(home).items():
            monkeypatch.setenv(name, value)
        self.log_in(monkeypatch, token)
        for name, value in (
            ("ENDPOINT", self.endpoint),
            ("HUGGINGFACE_CO_URL_TEMPLATE", f"{self.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"),
            ("HF_HUB_OFFLINE", False),
            ("HF_HUB_DISABLE_XET", True),
            ("HF_HUB_DISABLE_TELEMETRY", True),
            ("HF_HOME", str(home)),
            ("HF_HUB_CACHE", f"{home}/hub"),
            ("HF_TOKEN_PATH", f"{home}/token"),
            ("HF_STORED_TOKENS_PATH", f"{home}/stored_tokens"),
        ):  # fmt: skip
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        for name, value in (
            ("HF_ENDPOINT", self.endpoint),
            ("HF_HUB_OFFLINE", False),
            ("HF_DATASETS_CACHE", f"{home}/datasets"),
        ):
            monkeypatch.setattr(f"datasets.config.{name}", value)
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", self.endpoint)
        monkeypatch.setattr("transformers.utils.hub._hf_api", None)
        at_once = SimpleNamespace(sleep=lambda seconds: None)
        monkeypatch.setattr("huggingface_hub.utils._http.time", at_once)
        monkeypatch.setattr("huggingface_hub.file_download.time", at_once)

    @staticmethod
    def log_in(monkeypatch: object, token: str | None) -> None:
        """Log in as a user, or log out."""
        if token is None:
            monkeypatch.delenv("HF_TOKEN", raising=False)
        else:
            monkeypatch.setenv("HF_TOKEN", token)

    # Answering requests

    def answer(self, request: Request) -> Reply:
        """Answer a request, one at a time."""
        with self._lock:
            try:
                return self._route(request)
            except Refusal as refusal:
                return refusal.reply

    def fault_for(self, method: str, path: str) -> Fault | None:
        """Return the first fault that applies to a request, and count it."""
        with self._lock:
            for fault in self.faults:
                if fault.fits(method, path):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def _route(self, request: Request) -> Reply:
        parts, method = request.parts, request.method
        if parts[:1] == ["lfs"] and method == "PUT":  # a signed address needs no token
            return self._keep_large(parts[1], request.body)
        user = self._user(request)
        if parts == ["api", "whoami-v2"]:
            return self._who(user)
        if parts == ["api", "validate-yaml"]:
            return Reply({"errors": [], "warnings": []})
        if parts == ["api", "repos", "create"]:
            return self._create(user, request.json)
        if parts[:1] == ["api"] and len(parts) >= 4 and parts[1] in KINDS:
            repository = self._visible(user, parts[1], f"{parts[2]}/{parts[3]}")
            return self._act(user, repository, parts[4:], request)
        kind = parts.pop(0) if parts[0] in KINDS else "models"
        if parts[2:] == ["info", "lfs", "objects", "batch"]:
            name = f"{parts[0]}/{parts[1].removesuffix('.git')}"
            self._check_may_write(user, self._visible(user, kind, name))
            return self._place_large(request.json)
        if parts[2:3] == ["resolve"] and method in ("GET", "HEAD"):
            repository = self._visible(user, kind, f"{parts[0]}/{parts[1]}")
            return self._file(user, repository, parts[3], "/".join(parts[4:]), request)
        raise Refusal(501, message=f"this Hub does not know {method} /{'/'.join(request.parts)}")

    def _act(
        self, user: User | None, repository: Repository, rest: list[str], request: Request
    ) -> Reply:
        action, arguments = (rest[0], rest[1:]) if rest else ("revision", [])
        revision = arguments[0] if arguments else "main"
        if action == "revision":
            return self._information(repository, revision)
        if action == "refs":
            return self._references(repository)
        if action == "tree":
            recursive = request.query.get("recursive", [""])[0].lower() in ("true", "1")
            return self._tree(repository, revision, "/".join(arguments[1:]), recursive)
        if action == "paths-info":
            return self._paths(repository, revision, request)
        writing: dict[str, Callable[[Repository, str, Request], Reply]] = {
            "preupload": self._preupload,
            "commit": self._commit,
            "branch": self._make_branch,
            "tag": self._make_tag,
        }
        if action in writing and request.method == "POST" and "create_pr" not in request.query:
            self._check_may_write(user, repository)
            return writing[action](repository, revision, request)
        raise Refusal(501, message=f"this Hub does not know {request.method} {action}")

    # Permissions

    def _user(self, request: Request) -> User | None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if given and given not in self.users:
            raise Refusal(401, message="Invalid credentials in Authorization header")
        return self.users.get(given)

    def _who(self, user: User | None) -> Reply:
        if user is None:
            raise Refusal(401, message="Invalid username or password.")
        role = "write" if user.writes else "read"
        return Reply(
            {
                "type": "user",
                "name": user.name,
                "orgs": [{"name": name} for name in user.organisations],
                "auth": {"accessToken": {"role": role}},
            }
        )

    def _visible(self, user: User | None, kind: str, name: str) -> Repository:
        """Return a repository; a private one does not exist for others."""
        found = self.repositories.get((kind, name))
        if found is None or (found.private and not (user and user.owns(found))):
            raise Refusal(404, "RepoNotFound", "Repository not found")
        return found

    @staticmethod
    def _check_may_write(user: User | None, repository: Repository) -> None:
        if user is None:
            raise Refusal(401, message="Invalid username or password.")
        if not (user.writes and user.owns(repository)):
            raise Refusal(403, message=f"You don't have the rights to write to {repository.name}")

    # Repositories

    def _create(self, user: User | None, given: dict) -> Reply:
        if user is None:
            raise Refusal(401, message="Invalid username or password.")
        kind = f"{given.get('type') or 'model'}s"
        name = f"{given.get('organization') or user.name}/{given['name']}"
        address = f"{self.endpoint}/{'' if kind == 'models' else kind + '/'}{name}"
        made = Repository(kind, name, private=given.get("visibility") == "private")
        if not (user.writes and user.owns(made)):
            raise Refusal(403, message=f"You don't have the rights to create {name}")
        if (kind, name) in self.repositories:
            return Reply({"error": "You already created this repo", "url": address}, 409)
        self.repositories[kind, name] = made
        return Reply({"url": address, "name": name, "id": name})

    @staticmethod
    def _information(repository: Repository, revision: str) -> Reply:
        commit = repository.find(revision)
        return Reply(
            {
                "_id": repository.name, "id": repository.name, "sha": commit,
                "private": repository.private, "gated": "manual" if repository.gated else False,
                "disabled": False, "downloads": 0, "likes": 0, "tags": [], "lastModified": WHEN,
                "createdAt": WHEN,
                "siblings": [{"rfilename": path} for path in sorted(repository.commits[commit])],
            }
        )  # fmt: skip

    @staticmethod
    def _references(repository: Repository) -> Reply:
        def described(kind: str, heads: dict[str, str]) -> list[dict[str, str]]:
            return [
                {"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": commit}
                for name, commit in heads.items()
            ]

        return Reply(
            {
                "branches": described("heads", repository.branches),
                "tags": described("tags", repository.tags),
                "converts": [],
                "pullRequests": [],
            }
        )

    @staticmethod
    def _make_branch(repository: Repository, branch: str, request: Request) -> Reply:
        if branch in repository.branches:
            raise Refusal(409, message=f"Reference already exists: {branch}")
        start = request.json.get("startingPoint", "main")
        repository.branches[branch] = repository.find(start)
        return Reply({})

    @staticmethod
    def _make_tag(repository: Repository, revision: str, request: Request) -> Reply:
        tag = request.json["tag"]
        if tag in repository.tags:
            raise Refusal(409, message=f"Tag reference exists already: {tag}")
        repository.tags[tag] = repository.find(revision)
        return Reply({})

    def _tree(self, repository: Repository, revision: str, folder: str, recursive: bool) -> Reply:
        start = f"{folder}/" if folder else ""
        files = repository.commits[repository.find(revision)]
        inside = {path: file for path, file in files.items() if path.startswith(start)}
        if folder and not inside:
            raise Refusal(404, "EntryNotFound", f"{folder} does not exist")
        entries: dict[str, dict] = {}
        for path, file in sorted(inside.items()):
            first, slash, _ = path[len(start) :].partition("/")
            if slash and not recursive:
                entries[start + first] = _folder_entry(start + first)
            else:
                entries[path] = _file_entry(path, file)
        return Reply(list(entries.values()))

    @staticmethod
    def _paths(repository: Repository, revision: str, request: Request) -> Reply:
        files = repository.commits[repository.find(revision)]
        wanted = parse_qs(request.body.decode())["paths"]
        entries = [_file_entry(path, files[path]) for path in wanted if path in files]
        folders = [w for w in wanted if any(path.startswith(f"{w}/") for path in files)]
        return Reply(entries + [_folder_entry(path) for path in folders])

    # Uploads

    @staticmethod
    def _preupload(repository: Repository, revision: str, request: Request) -> Reply:
        """Return how each file is to be sent, and what already exists."""
        commit = repository.find(revision)
        files = repository.commits[commit]
        return Reply(
            {
                "commitOid": commit,
                "files": [
                    {
                        "path": path,
                        "uploadMode": "lfs" if path.endswith(LARGE) else "regular",
                        "shouldIgnore": is_ignored(path, request.json.get("gitIgnore", "")),
                        "oid": files[path].tag if path in files else None,
                    }
                    for path in (file["path"] for file in request.json["files"])
                ],
            }
        )

    def _place_large(self, given: dict) -> Reply:
        """Return where each large file is to be sent; nowhere if it already exists."""
        objects = []
        for wanted in given["objects"]:
            oid = wanted["oid"]
            placed = {"oid": oid, "size": wanted["size"], "authenticated": True}
            if oid not in self.large:
                placed["actions"] = {"upload": {"href": f"{self.endpoint}/lfs/{oid}"}}
            objects.append(placed)
        kind = {"Content-Type": "application/vnd.git-lfs+json"}
        return Reply({"transfer": "basic", "objects": objects}, headers=kind)

    def _keep_large(self, oid: str, body: bytes) -> Reply:
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refusal(400, message="the content is not what was announced")
        self.large[oid] = body
        return Reply()

    def _commit(self, repository: Repository, branch: str, request: Request) -> Reply:
        """Commit the operations, one per line: all of them or none."""
        if branch not in repository.branches:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {branch}")
        head = repository.branches[branch]
        files, message = dict(repository.commits[head]), ""
        for line in request.body.splitlines():
            operation = json.loads(line)
            key, value = operation["key"], operation["value"]
            if key == "header":
                message = value["summary"]
                if not head.startswith(value.get("parentCommit", head)):
                    raise Refusal(
                        412, message="A commit has happened since. Please refresh and try again."
                    )
            elif key == "file":
                files[value["path"]] = File(base64.b64decode(value["content"]))
            elif key == "lfsFile":
                if value["oid"] not in self.large:
                    raise Refusal(400, message=f"large file of {value['path']} was not uploaded")
                files[value["path"]] = File(self.large[value["oid"]], large=True)
            elif key == "deletedFile":
                files.pop(value["path"], None)
            else:
                raise Refusal(501, message=f"this Hub does not know the operation {key}")
        commit = repository.commit(branch, files, message)
        address = f"{self.endpoint}/{repository.name}/commit/{commit}"
        return Reply({"success": True, "commitOid": commit, "commitUrl": address, "hookOutput": ""})

    # Downloads

    def _file(
        self, user: User | None, repository: Repository, revision: str, path: str, request: Request
    ) -> Reply:
        owns = user is not None and user.owns(repository)
        admitted = user is not None and user.name in repository.admitted
        if repository.gated and not (owns or admitted):
            raise Refusal(
                403, "GatedRepo", f"Access to model {repository.name} is restricted and you are not in the authorized list."
            )  # fmt: skip
        commit = repository.find(revision)
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        file = repository.commits[commit].get(path)
        if file is None:
            refusal = Refusal(404, "EntryNotFound", "Entry not found")
            refusal.reply.headers |= headers
            raise refusal
        headers |= {"Content-Type": "application/octet-stream", "ETag": f'"{file.tag}"'}
        if file.large:
            size = str(len(file.content))
            headers |= {"X-Linked-Etag": f'"{file.tag}"', "X-Linked-Size": size}
        part = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if part is None or request.method == "HEAD":
            return Reply(file.content, 200, headers)
        start, end = int(part[1]), int(part[2] or len(file.content) - 1)
        if start >= len(file.content):
            raise Refusal(416, message="Range not satisfiable")
        headers["Content-Range"] = f"bytes {start}-{end}/{len(file.content)}"
        return Reply(file.content[start : end + 1], 206, headers)


def _file_entry(path: str, file: File) -> dict:
    entry = {"type": "file", "path": path, "size": len(file.content), "oid": file.git_hash}
    if file.large:
        entry["lfs"] = {"oid": file.sha256, "size": len(file.content), "pointerSize": 130}
    return entry


def _folder_entry(path: str) -> dict:
    return {
        "type": "directory",
        "path": path,
        "size": 0,
        "oid": hashlib.sha1(path.encode()).hexdigest(),
    }


class _Server(ThreadingHTTPServer):
    """Threads end with their connections; connections that clients keep open do not delay the end."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing: clients that hang up are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    """Reads requests and writes replies, whose content comes from the Hub."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: HubServer

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.hub.requests.append((self.command, self.path, token))
        fault = self.hub.fault_for(self.command, self.path) or Fault()
        if self.hub.closing.wait(fault.delay):
            self._cut()
            return
        comes_in = self.command in ("POST", "PUT")
        body = self._body(fault.cut_after) if comes_in else b""
        if fault.cut_after is not None and comes_in:
            self._cut()
            return
        if fault.status is None:
            reply = self.hub.answer(self._request(body))
        else:
            reply = Refusal(fault.status, message=fault.message).reply
        self._send(reply, fault.cut_after)

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def _request(self, body: bytes) -> Request:
        address = urlsplit(self.path)
        return Request(
            method=self.command,
            parts=[unquote(part) for part in address.path.strip("/").split("/")],
            query=parse_qs(address.query),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=body,
        )

    def _body(self, most: int | None) -> bytes:
        """Return the request's body, or its first bytes."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return b"".join(itertools.takewhile(bool, iter(self._chunk, None)))
        length = int(self.headers.get("Content-Length") or 0)
        return self.rfile.read(length if most is None else min(length, most))

    def _chunk(self) -> bytes:
        content = self.rfile.read(int(self.rfile.readline(), 16))
        self.rfile.readline()
        return content

    def _send(self, reply: Reply, most: int | None) -> None:
        content = reply.content
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:most])
        if most is not None:
            self._cut()

    def _cut(self) -> None:
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True
