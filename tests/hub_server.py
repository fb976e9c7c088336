"""A stand-in for the Hugging Face hub: repositories of models, uploads by LFS, commits."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator

import yaml

TOKEN = "hf_of-this-test"
_LARGE = 20_000  # bytes; the hub's is 10 MB
_PART = 16_384


class HubServer(http.server.ThreadingHTTPServer):
    """The hub's state.

    Attributes:
        repositories: Name -> branch -> (commit, path -> content).
        objects: SHA-256 -> content of a large file.
        private: Names of the repositories that were made so.
        requests: Method and path of each request, with the size of its body.
        writable: Users whose repositories the token may write.
        on_object: Called with the number of large objects that have arrived, after each.
        refuse_objects_after: So many large objects arrive, and no more.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, tuple[str, dict[str, bytes]]]] = {}
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.private: set[str] = set()
        self.requests: list[tuple[str, str, int]] = []
        self.writable = {"me"}
        self.on_object: Callable[[int], None] = lambda number: None
        self.refuse_objects_after = 1 << 30
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def sent(self, method: str, beginning: str) -> list[str]:
        return [path for verb, path, _ in self.requests if verb == method and path.startswith(beginning)]

    def content(self, repository: str, branch: str = "main") -> dict[str, bytes]:
        return self.repositories[repository][branch][1]


@contextlib.contextmanager
def hub_server() -> Iterator[HubServer]:
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Refused(Exception):
    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class _Handler(http.server.BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one packet: the second of two would wait for the client's acknowledgement

    def log_message(self, *_: object) -> None:
        pass

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        self.server.requests.append((self.command, path, len(body)))
        try:
            headers, answer = {}, None
            with self.server.lock:
                for method, pattern, function in _ROUTES:
                    if method == self.command and (found := re.fullmatch(pattern, path)):
                        answer = function(self, *found.groups(), body)
                        break
                else:
                    raise _Refused(404, "no such page")
            if isinstance(answer, tuple):
                headers, answer = answer
            self._answer(200, answer, headers)
        except _Refused as error:
            named = {"X-Error-Message": error.message} | ({"X-Error-Code": error.code} if error.code else {})
            self._answer(error.status, {"error": error.message}, named)

    do_GET = do_POST = do_PUT = do_HEAD = _do

    def _answer(self, status: int, tree: object, headers: dict[str, str]) -> None:
        content = json.dumps(tree).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _authorize(self, user: str | None = None) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise _Refused(401, "Invalid credentials in Authorization header")
        if user is not None and user not in self.server.writable:
            raise _Refused(403, f"You don't have the rights to create a model under the namespace {user!r}")

    def _branch(self, name: str, branch: str) -> tuple[str, dict[str, bytes]]:
        self._authorize()
        if name not in self.server.repositories:
            raise _Refused(404, "Repository not found", "RepoNotFound")
        if branch not in self.server.repositories[name]:
            raise _Refused(404, f"Invalid rev id: {branch}", "RevisionNotFound")
        return self.server.repositories[name][branch]

    def info(self, name: str, branch: str | None, _: bytes) -> object:
        commit, files = self._branch(name, branch or "main")
        return {"id": name, "sha": commit, "siblings": [{"rfilename": path} for path in files]}

    def tree(self, name: str, branch: str, _: bytes) -> object:
        _, files = self._branch(name, branch)
        return [
            {"type": "file", "path": path, "size": len(content), "oid": _git_hash(content)}
            for path, content in files.items()
        ]

    def create(self, body: bytes) -> object:
        asked = json.loads(body)
        self._authorize(asked["organization"])
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.server.repositories:
            raise _Refused(409, "You already created this model repo")
        self.server.repositories[name] = {"main": (_git_hash(name.encode()), {".gitattributes": b"x"})}
        if asked.get("private") or asked.get("visibility") == "private":
            self.server.private.add(name)
        return {"url": f"{self.server.url}/{name}"}

    def branch(self, name: str, branch: str, _: bytes) -> object:
        commit, files = self._branch(name, "main")
        self.server.repositories[name][branch] = commit, dict(files)
        return {}

    def validate(self, body: bytes) -> object:
        head = json.loads(body)["content"].split("---\n")[1]
        metadata = yaml.safe_load(head)
        if not re.fullmatch(r"[a-z0-9.-]+", metadata.get("license", "x")):
            raise _Refused(400, "license is not valid")
        return {"errors": [], "warnings": []}

    def preupload(self, name: str, branch: str, body: bytes) -> object:
        _, files = self._branch(name, branch)
        return {"files": [_mode(one, files) for one in json.loads(body)["files"]]}

    def batch(self, name: str, body: bytes) -> object:
        self._branch(name, "main")
        objects = []
        for one in json.loads(body)["objects"]:
            if one["oid"] not in self.server.objects:
                href = f"{self.server.url}/lfs/{one['oid']}"
                upload: dict[str, object] = {"href": href}
                if one["size"] > _PART:
                    count = -(-one["size"] // _PART)
                    parts = {f"{number:05}": f"{href}/{number}" for number in range(1, count + 1)}
                    upload = {"href": f"{href}/all", "header": {"chunk_size": str(_PART), **parts}}
                one = {**one, "actions": {"upload": upload, "verify": {"href": f"{href}/verify"}}}
            objects.append(one)
        return {"transfer": "multipart", "objects": objects}

    def put(self, oid: str, body: bytes) -> object:
        server = self.server
        if len(server.objects) >= server.refuse_objects_after:
            raise _Refused(403, "storage is full")
        if hashlib.sha256(body).hexdigest() != oid:
            raise _Refused(400, "another content")
        server.objects[oid] = body
        server.on_object(len(server.objects))
        return {}

    def put_part(self, oid: str, number: str, body: bytes) -> object:
        self.server.parts.setdefault(oid, {})[int(number)] = body
        return {"ETag": f'"{number}"'}, {}

    def join_parts(self, oid: str, body: bytes) -> object:
        asked = [part["partNumber"] for part in json.loads(body)["parts"]]
        arrived = self.server.parts.pop(oid)
        return self.put(oid, b"".join(arrived[number] for number in asked))

    def verify(self, oid: str, body: bytes) -> object:
        if len(self.server.objects[oid]) != json.loads(body)["size"]:
            raise _Refused(400, "another size")
        return {}

    def commit(self, name: str, branch: str, body: bytes) -> object:
        before, files = self._branch(name, branch)
        self._authorize(name.partition("/")[0])
        files = dict(files)
        for line in body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            match operation["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.server.objects[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        commit = _git_hash(before.encode() + body)
        self.server.repositories[name][branch] = commit, files
        return {"commitUrl": f"{self.server.url}/{name}/commit/{commit}", "commitOid": commit}


def _mode(asked: dict, files: dict[str, bytes]) -> dict:
    large = asked["size"] > _LARGE or asked["path"].endswith(".safetensors")
    found = {"path": asked["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
    if (content := files.get(asked["path"])) is not None:
        found["oid"] = hashlib.sha256(content).hexdigest() if large else _git_hash(content)
    return found


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


_NAME = r"([^/]+/[^/]+)"
_ROUTES = (
    ("POST", "/api/repos/create", _Handler.create),
    ("POST", "/api/validate-yaml", _Handler.validate),
    ("GET", rf"/api/models/{_NAME}(?:/revision/(.+))?", _Handler.info),
    ("GET", rf"/api/models/{_NAME}/tree/(.+)", _Handler.tree),
    ("POST", rf"/api/models/{_NAME}/branch/(.+)", _Handler.branch),
    ("POST", rf"/api/models/{_NAME}/preupload/(.+)", _Handler.preupload),
    ("POST", rf"/api/models/{_NAME}/commit/(.+)", _Handler.commit),
    ("POST", rf"/{_NAME}\.git/info/lfs/objects/batch", _Handler.batch),
    ("PUT", r"/lfs/(\w+)", _Handler.put),
    ("PUT", r"/lfs/(\w+)/(\d+)", _Handler.put_part),
    ("POST", r"/lfs/(\w+)/all", _Handler.join_parts),
    ("POST", r"/lfs/(\w+)/verify", _Handler.verify),
)
