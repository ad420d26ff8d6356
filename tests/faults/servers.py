"""An MLflow server on loopback that can be killed and restarted, and a proxy in front of it that injects faults."""

import http.client
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from tests.faults.fork_server import FaultServer
from tests.forking import free_port, wait_until

Fault = Literal["well", "refusing", "erring", "flaky", "hanging", "cutting", "one artifact"]
SPOILED = "spoiled.txt"
HOST = "127.0.0.1"


class Server:
    """MLflow's own application with SQLite and served artifacts, in a process that `kill` ends by SIGKILL."""

    def __init__(self, folder: Path, fork_server: FaultServer) -> None:
        self.port = free_port()
        self.folder = folder
        self._fork_server = fork_server

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        self._pid = self._fork_server.fork("serve", {}, folder=str(self.folder), port=self.port)
        wait_until(self._answers)

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=120)
        try:
            connection.request("GET", "/api/2.0/mlflow/experiments/get?experiment_id=0")  # the first request makes the tables
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


class Proxy:
    """Forwards requests to a server, except where `fault` interferes."""

    def __init__(self, upstream: int, fault: Fault) -> None:
        self.upstream = upstream
        self.fault = fault
        self.healed = threading.Event()
        self.port = free_port()
        self.seen: set[str] = set()
        self.num_requests = 0
        self._listening: ThreadingHTTPServer | None = None
        if fault != "refusing":
            self._listen()

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}"

    def heal(self) -> None:
        self.fault = "well"
        self.healed.set()
        if self._listening is None:
            self._listen()

    def close(self) -> None:
        self.healed.set()
        if self._listening:
            self._listening.shutdown()
            self._listening.server_close()

    def _listen(self) -> None:
        self._listening = ThreadingHTTPServer((HOST, self.port), type("ThisHandler", (Handler,), {"proxy": self}))
        self._listening.daemon_threads = True
        threading.Thread(target=self._listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    """Handles one request. Each proxy has its own subclass."""

    proxy: Proxy

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.proxy.num_requests += 1
        endpoint = f"{self.command} {self.path.partition('?')[0]}"
        match self.proxy.fault:
            case "hanging":
                self.proxy.healed.wait()
            case "erring":
                self.answer(500, b"out of order")
            case "flaky" if self.proxy.num_requests % 2:
                self.answer(500, b"out of order")
            case "one artifact" if self.command == "PUT" and self.path.endswith(SPOILED):
                self.answer(500, b"no room for this one")
            case "cutting" if endpoint not in self.proxy.seen:
                self.proxy.seen.add(endpoint)
                self.answer(*self.ask(body), cut=True)
            case _:
                self.answer(*self.ask(body))

    def ask(self, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self.proxy.upstream, timeout=30)
        kept = {name: value for name, value in self.headers.items() if name.lower() not in {"host", "connection", "accept-encoding"}}
        try:
            connection.request(self.command, self.path, body, kept)
            reply = connection.getresponse()
            return reply.status, reply.read()
        except OSError:
            return 502, b"no server behind this proxy"
        finally:
            connection.close()

    def answer(self, status: int, content: bytes, *, cut: bool = False) -> None:
        """Answer with the content, or with half of it and the length of the whole."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) + cut))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = forward  # noqa: N815  # the names that http.server calls
