"""A hub of Hugging Face on loopback: the requests that the library huggingface_hub makes for a model's files."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves the models in `root/OWNER/NAME/`. `lies` are bytes that are served in place of the end of each weights file."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.root, self.lies, self.hangs, self.served = root, b"", False, list[str]()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Requests(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.served.append(path)
        while self.server.hangs:
            time.sleep(0.1)
        if path.startswith("/api/models/"):
            owner, name, *revision = path.removeprefix("/api/models/").split("/")
            folder = self.server.root / owner / name
            known = not revision or revision[1:] in (["main"], [COMMIT])
            return self.send_json(description(folder), folder.is_dir() and known)
        if path.count("/") < 5:
            return self.send_json({}, found=False)
        owner, name, _, _, file = path.removeprefix("/").split("/", 4)
        content = (self.server.root / owner / name / file).read_bytes()
        if self.server.lies and file.endswith(".safetensors"):
            content = content[: -len(self.server.lies)] + self.server.lies
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT, "Content-Type": "application/octet-stream"}
        return self.send(200, content, headers)

    def send_json(self, content: object, found: bool) -> None:
        headers = {"Content-Type": "application/json"} | ({} if found else {"X-Error-Code": "RepoNotFound"})
        self.send(200 if found else 404, json.dumps(content).encode(), headers)

    def send(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        with suppress(BrokenPipeError):  # the client has given up
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def description(folder: Path) -> dict[str, object]:
    if not folder.is_dir():
        return {"error": "Repository not found"}
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    siblings = [
        {"rfilename": path.name, "size": path.stat().st_size}
        | (
            {"lfs": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "size": path.stat().st_size, "pointerSize": 134}}
            if large(path)
            else {}
        )
        for path in files
    ]
    return {"id": f"{folder.parent.name}/{folder.name}", "modelId": folder.name, "sha": COMMIT, "siblings": siblings}


def large(path: Path) -> bool:
    return path.suffix == ".safetensors"


@contextmanager
def served(root: Path) -> Iterator[Hub]:
    hub = Hub(root)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
