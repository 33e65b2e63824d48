"""A server of files on loopback that can cut connections and lie: what a download has to stand."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FileServer(ThreadingHTTPServer):
    """Serves `files` by the last part of their path, as its attributes say."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.paths: list[str] = []
        self.cuts: list[int] = []
        """How many bytes the next answers send before their connection is cut."""
        self.no_lengths = False
        self.status: int | None = None
        """Answered to every request, with `headers`."""
        self.headers: dict[str, str] = {}
        self.hold: threading.Event | None = None
        """Waited for in the middle of a file."""
        self.raw: bytes | None = None
        """Sent in place of any answer."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/files/"


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        server.paths.append(self.path)
        if server.raw is not None:
            self.wfile.write(server.raw)
            return
        content = server.files.get(self.path.rpartition("/")[2])
        if server.status is not None or content is None:
            self._head(server.status or 404, {"Content-Length": "0", **server.headers})
            return
        self._head(200, {} if server.no_lengths else {"Content-Length": str(len(content))})
        self._body(content)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _body(self, body: bytes) -> None:
        if self.server.cuts:
            body = body[: self.server.cuts.pop(0)]
        middle = len(body) // 2
        self.wfile.write(body[:middle])
        if self.server.hold is not None:
            self.wfile.flush()
            self.server.hold.wait(30)
        self.wfile.write(body[middle:])


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[FileServer]:
    """A server of these files, stopped at the end."""
    server = FileServer()
    server.files = files
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        if server.hold is not None:
            server.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
