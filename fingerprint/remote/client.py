"""Requests to a server that is not trusted: bounded in time, size and depth, and never led to another host.

What the answers mean is known elsewhere. The standard library's client is enough for this, and its socket can
be cut off at a deadline, which a time limit for each read cannot do: a server may send a byte a second.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from ... import __version__
from ...schemas import redact
from ...schemas.jsontext import is_deeper
from .address import Server, checked, origin, server_of

MAX_BYTES = 4 * 1024 * 1024
"""Of one answer. What engines say of themselves has tens of kilobytes, metrics of many models a megabyte."""
MAX_DEPTH = 64
REQUEST_S = 5.0
TOTAL_S = 15.0
"""Seconds for one question and for all of them."""
TLS_S = 1.0
"""Seconds to see whether a port speaks TLS, when nothing else was understood."""
MAX_SILENT = 2
"""A server that lets so many questions in a row run out of time is asked no more."""
_MAX_REDIRECTS = 3
WANTS_KEY = "it wants an API key"
KEY_FIX = "put the key into a variable and name that one with --api-key-env NAME"
_ADDRESS_FIX = "give the address of the inference server itself with --url"
_START_FIX = "start the server, or correct the address of --url"
_UP_FIX = "see whether the server is up and not overloaded"
_NO_ENDPOINT = frozenset({404, 405, 410, 501})


class NoAnswer(Exception):
    """A request without a usable answer; the text says why and, where only that helps, what to do."""

    def __init__(
        self,
        reason: str,
        fix: str = _ADDRESS_FIX,
        *,
        absent: bool = False,
        refused: bool = False,
        with_fix: bool = False,
    ) -> None:
        super().__init__(f"{reason}: {fix}" if with_fix else reason)
        self.reason = reason
        self.fix = fix
        """What to do where no other request is answered either."""
        self.absent = absent
        """The server has no such endpoint."""
        self.refused = refused
        """The server wants a key, or another one."""


class Unreachable(NoAnswer):
    """No connection, or nothing that speaks HTTP."""


@dataclass(frozen=True)
class Reply:
    """A whole answer with status 200."""

    body: bytes
    headers: Mapping[str, str]
    """Names in lower case."""

    def text(self) -> str:
        """As UTF-8, whatever is not replaced."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The value, with NaN and infinities as words.

        Raises:
            NoAnswer: Not UTF-8, not JSON, or nested too deep.
        """
        return _parse(self.body)


class Client:
    """Asks one server. Not for several threads."""

    def __init__(self, server: Server, stop: threading.Event | None = None) -> None:
        """Check the address; nothing is sent.

        Raises:
            BadInput: The address is none, or holds a password.
        """
        self.url = checked(server.url)
        self._server, self._stop = server, stop or threading.Event()
        self._deadline = time.monotonic() + TOTAL_S
        self._silent = 0
        self._known: dict[str, Reply | NoAnswer] = {}
        self.refused: dict[str, str] = {}
        """Path → why, of the questions for which it wants a key or another one."""

    def get(self, path: str) -> Reply:
        """Ask without changing anything, each path once.

        Raises:
            NoAnswer: With the reason in words.
        """
        if path not in self._known:
            try:
                self._known[path] = self._ask("GET", path, None)
            except NoAnswer as reason:
                self._known[path] = reason
        known = self._known[path]
        if isinstance(known, NoAnswer):
            raise known
        return known

    def post(self, path: str, body: Any) -> Reply:
        """Ask a question that needs a JSON body. Only for routes that are known to change nothing.

        Raises:
            NoAnswer: With the reason in words.
        """
        return self._ask("POST", path, json.dumps(body).encode())

    def uses_tls(self) -> bool:
        """Whether a port that was to be asked in plain HTTP greets as TLS does; nothing is asked."""
        parts = urlsplit(self.url)
        if parts.scheme != "http" or not parts.port or self._silent or self._stop.is_set():
            return False
        try:
            with _connection(f"https{self.url.removeprefix('http')}", time.monotonic() + TLS_S):
                return True
        except ssl.SSLCertVerificationError:
            return True
        except OSError:
            return False

    def _ask(self, method: str, path: str, body: bytes | None) -> Reply:
        try:
            return self._answer(method, path, body)
        except NoAnswer as reason:
            if reason.refused:
                self.refused[path.partition("?")[0]] = reason.reason
            raise

    def _answer(self, method: str, path: str, body: bytes | None) -> Reply:
        url = self.url + path
        for _ in range(_MAX_REDIRECTS + 1):
            status, headers, content = self._once(method, url, body)
            if status not in (301, 302, 303, 307, 308):
                break
            url = self._redirected(url, headers, method, path)
        else:
            raise NoAnswer("it redirects in a circle")
        if status in (401, 403):
            raise self.refusal()
        if status in _NO_ENDPOINT:
            raise NoAnswer("the server has no such endpoint", absent=True)
        if status != 200:
            raise NoAnswer(f"it answers with status {status}", "see what its log says, and whether it is up")
        return Reply(content, headers)

    def refusal(self) -> NoAnswer:
        """What it means that it refuses a question."""
        if self._server.api_key:
            fix = "see whether the variable of --api-key-env holds the key of this server"
            return NoAnswer("it refuses the API key", fix, refused=True)
        return NoAnswer(WANTS_KEY, KEY_FIX, refused=True, with_fix=True)

    def _redirected(self, url: str, headers: Mapping[str, str], method: str, path: str) -> str:
        try:
            target = urljoin(url, headers.get("location", ""))
        except ValueError:
            raise NoAnswer("it redirects to an address that is none") from None
        if origin(target) == origin(url) and method == "GET":
            return target
        other = server_of(target, path)
        if other is None:
            raise NoAnswer("it redirects to an address that is none")
        other = redact.text(other)
        raise NoAnswer(
            f"it redirects to {other}: give that address with --url", f"give that address: --url {other}"
        )

    def _once(self, method: str, url: str, body: bytes | None) -> tuple[int, Mapping[str, str], bytes]:
        """(status, headers, body) of one exchange."""
        self._may_ask()
        if self._server.on_request is not None:
            self._server.on_request(urlsplit(url).path)
        until = min(time.monotonic() + REQUEST_S, self._deadline)
        try:
            with _connection(url, until) as connection:
                found = self._exchange(connection, method, url, body)
        except TimeoutError:
            self._silent += 1
            raise NoAnswer(f"no whole answer within {REQUEST_S:g} s", _UP_FIX) from None
        except http.client.RemoteDisconnected:
            raise Unreachable("it closes the connection without an answer", _START_FIX) from None
        except OSError as error:
            raise Unreachable(_why(error), _START_FIX) from None
        except http.client.BadStatusLine:
            raise Unreachable("what answers there does not speak HTTP") from None
        except (http.client.HTTPException, ValueError) as error:
            raise NoAnswer(f"its answer is no proper HTTP ({type(error).__name__})") from None
        self._silent = 0
        return found

    def _may_ask(self) -> None:
        if self._stop.is_set():
            raise NoAnswer("not asked: the command was ended")
        if self._silent >= MAX_SILENT:
            raise NoAnswer(f"not asked: the last {MAX_SILENT} questions were not answered in time")
        if time.monotonic() >= self._deadline:
            raise NoAnswer(f"not asked: the {TOTAL_S:g} s for all questions were used up")

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, url: str, body: bytes | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        parts = urlsplit(url)
        headers = {"User-Agent": f"rip/{__version__}", "Accept": "*/*", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._server.api_key:
            headers["Authorization"] = f"Bearer {self._server.api_key}"
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target or "/", body, headers)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        if found.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise NoAnswer("it compresses its answer though not asked to")
        if response.status != 200:
            return response.status, found, b""  # an error's text is not used, so it is not read
        try:
            content = response.read(MAX_BYTES + 1)
        except http.client.IncompleteRead:
            raise NoAnswer("it ended its answer early") from None
        if len(content) > MAX_BYTES:
            raise NoAnswer(f"its answer is larger than {MAX_BYTES >> 20} MiB")
        if response.length:
            raise NoAnswer("it ended its answer early")
        return response.status, found, content


@contextmanager
def _connection(url: str, until: float) -> Iterator[http.client.HTTPConnection]:
    """Open one connection, which is cut off at a time of the monotonic clock, whatever it is doing.

    Raises:
        TimeoutError: The time was up.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    plain = socket.create_connection((host, port), timeout=max(0.05, until - time.monotonic()))
    cut = plain.dup()  # wrapping into TLS takes the first one away
    expired = threading.Event()

    def cut_off() -> None:
        expired.set()
        try:
            cut.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended by itself

    watchdog = threading.Timer(max(0.05, until - time.monotonic()), cut_off)
    watchdog.daemon = True
    watchdog.start()
    connection = http.client.HTTPConnection(host, port)
    connection.sock = plain
    try:
        if parts.scheme == "https":
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        yield connection
        if expired.is_set():  # an answer that states no length ends where it is cut off
            raise TimeoutError
    except Exception:
        if expired.is_set():
            raise TimeoutError from None
        raise
    finally:
        watchdog.cancel()
        connection.close()
        plain.close()
        cut.close()


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        message = error.verify_message
        return f"its certificate is not trusted ({message}): name that of its issuer in SSL_CERT_FILE"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection ({error.reason or 'failed'}): is it http?"
    if isinstance(error, socket.gaierror):
        return "there is no host of that name"
    return f"no connection: {error.strerror or type(error).__name__}"


def _parse(body: bytes) -> Any:
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=str)
        if is_deeper(value, MAX_DEPTH):
            raise RecursionError
    except UnicodeDecodeError:
        raise NoAnswer("its answer is not UTF-8 text") from None
    except RecursionError:
        raise NoAnswer(f"its answer is nested more than {MAX_DEPTH} deep") from None
    except ValueError:
        raise NoAnswer("its answer is not JSON") from None
    return value
