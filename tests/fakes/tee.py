"""A server in between that passes everything on and keeps what was asked and answered: a witness to rip."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Exchange:
    """One question and its whole answer."""

    path: str
    asked: Any
    answered: bytes

    def events(self) -> list[Any]:
        """The JSON of every event of a stream."""
        lines = [line.removeprefix("data: ") for line in self.answered.decode().splitlines()]
        return [json.loads(line) for line in lines if line and line != "[DONE]"]


@dataclass
class Tee:
    """Where to ask, and what passed."""

    url: str
    exchanges: list[Exchange] = field(default_factory=list)


@contextmanager
def tee(upstream: str) -> Iterator[Tee]:
    """Stand before a server while a test runs."""
    host = urlsplit(upstream).netloc

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            self._pass_on(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def _pass_on(self, body: bytes | None) -> None:
            connection = http.client.HTTPConnection(host, timeout=600)
            headers = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type", ""))
            self.end_headers()  # HTTP/1.0: the body ends with the connection
            kept = b""
            with suppress(BrokenPipeError, ConnectionResetError):
                while piece := answer.read1(65536):
                    kept += piece
                    self.wfile.write(piece)
                    self.wfile.flush()
            connection.close()
            seen.exchanges.append(Exchange(self.path, json.loads(body) if body else None, kept))

        def log_message(self, *arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    seen = Tee(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
