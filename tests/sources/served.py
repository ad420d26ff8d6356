"""A web server on loopback that serves a folder and counts what it was asked for."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name that the base class gives it
        self.server.asked.append(self.path)  # type: ignore[attr-defined]


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The server's address, and the paths asked for so far."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        server.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", server.asked  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()
