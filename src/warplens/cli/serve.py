"""One file for https://ui.perfetto.dev, which can fetch it from this machine and from nowhere else.

In: a file. Out: a server on 127.0.0.1 that gives that file to that page, and ends once it has. Opens no browser,
reads no other file, and answers nobody who came under another name than 127.0.0.1 or localhost.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from warplens.errors import UsageError

UI: Final = "https://ui.perfetto.dev"
PORT: Final = 9001
"""The one port of 127.0.0.1 from which that page may fetch: its content security policy says so."""
_WAIT_S: Final = 0.2
"""Ctrl-C is noticed this late on Windows, where it does not end a wait."""


class TraceServer(ThreadingHTTPServer):
    """Gives `path` away once. As a context it holds the port; UsageError when another program has it."""

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # on Windows two programs could then have the port

    def __init__(self, path: Path, *, port: int = PORT) -> None:
        self.path, self.fetched = path, threading.Event()
        self.name = "/" + re.sub(r"[^A-Za-z0-9._-]", "_", path.name)
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise UsageError(
                f"cannot serve {path}: port {port} of 127.0.0.1, the only one that ui.perfetto.dev fetches from, is "
                f"taken ({error.strerror or error}). The file is written: stop what listens there (another --open?), "
                f"or open {UI} and drop the file on it"
            ) from error

    @property
    def here(self) -> str:
        """Where the file is."""
        return f"http://127.0.0.1:{self.server_address[1]}{self.name}"

    @property
    def url(self) -> str:
        """The page that shows it."""
        return f"{UI}/#!/?url={self.here}"

    def serve_once(self) -> None:
        """Answer until the whole file was fetched once."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": _WAIT_S}, daemon=True)
        thread.start()
        try:
            while not self.fetched.wait(_WAIT_S):
                pass
        finally:
            self.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: TraceServer

    def do_GET(self) -> None:
        """The file, or 404."""
        if self._refused():
            return
        with self.server.path.open("rb") as stream:
            self._head(HTTPStatus.OK, self.server.path.stat().st_size)
            shutil.copyfileobj(stream, self.wfile, 1 << 20)
        self.wfile.flush()
        self.server.fetched.set()

    def do_HEAD(self) -> None:
        """The length alone, which does not count as a fetch."""
        if not self._refused():
            self._head(HTTPStatus.OK, self.server.path.stat().st_size)

    def do_OPTIONS(self) -> None:
        """Chrome asks before a page of the internet fetches from this machine."""
        if not self._refused():
            self._head(HTTPStatus.NO_CONTENT, 0)

    def _refused(self) -> bool:
        # another name that leads here is a page that wants to read the file as its own (DNS rebinding)
        known = self.headers.get("Host", "").rpartition(":")[0] in ("127.0.0.1", "localhost")
        if known and self.path.partition("?")[0] == self.server.name:
            return False
        self._head(HTTPStatus.NOT_FOUND, 0)
        return True

    def _head(self, status: HTTPStatus, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Access-Control-Allow-Origin", UI)
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: the command says what it does."""
