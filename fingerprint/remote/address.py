"""The address of a server: what of it may be used, and whether two are of one server."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ...schemas.errors import BadInput

_FIX = "give the address of the server, for example --url http://127.0.0.1:8000"


@dataclass(frozen=True)
class Server:
    """A server to ask, and the key it wants."""

    url: str
    """As the user gave it; may end in `/v1`."""
    api_key: str | None = field(default=None, repr=False)
    """Sent to this server only, never written anywhere."""
    on_request: Callable[[str], None] | None = field(default=None, repr=False)
    """Called with the path of each request, for progress."""


def checked(url: str) -> str:
    """Scheme, host, port and path of an address, without a final slash and `/v1`.

    Raises:
        BadInput: It is none, or holds a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadInput("the address is not a URL", _FIX) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"[\s\x00-\x20\x7f]", url):
        raise BadInput("the address is not an http or https URL", _FIX)
    if parts.username is not None or parts.password is not None:
        raise BadInput(
            "the address holds a user name or password", "give a key with --api-key-env NAME instead"
        )
    if parts.query or parts.fragment:
        raise BadInput("the address has a query or a fragment", _FIX)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{path}"


def origin(url: str) -> tuple[str, str | None, int | None] | None:
    """(scheme, host, port), or None where the address is none."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None


def server_of(target: str, path: str) -> str | None:
    """The server that a redirect of a question leads to, as one would give it; None where it leads to none.

    Args:
        target: Where it leads; from outside, nothing about it is trusted.
        path: The path that was asked for.
    """
    try:
        return checked(target.partition("?")[0].partition("#")[0].removesuffix(path.partition("?")[0]))
    except BadInput:
        return None
