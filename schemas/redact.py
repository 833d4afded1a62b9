"""Taking secrets out of command lines, variables and what servers say, before anything is kept.

A secret is known by the name it stands under, by its form, or by being the key that the user gave.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .written_numbers import exactly_representable

HIDDEN = "[redacted]"
MAX_TEXT = 2000
"""Characters kept of one text that comes from outside."""
MAX_ITEMS = 500
"""Entries kept of one list or table that comes from outside."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS = frozenset(
    {"apikey", "key", "keys", "secret", "secrets", "password", "passwd", "passphrase", "pwd"}
    | {"credential", "credentials", "auth", "authorization", "bearer", "cookie", "jwt", "signature", "salt"}
    | {"pw", "sig"}
)
_TOKEN_OWNERS = frozenset(
    {"hf", "api", "auth", "access", "bearer", "admin", "user", "secret", "session", "refresh", "id", "hub"}
    | {"github", "gitlab", "wandb", "huggingface", "client", "security", "login", "private", "ngc"}
)
"""What stands before `token` where it is a secret; `eos_token` and `max_token` are none."""
_PASS_OWNERS = frozenset({"db", "user", "http", "proxy", "redis", "smtp", "admin", "login", "ssl"})
"""What stands before `pass` where it is a secret; `fusion_pass` is none."""
_HARMLESS_KEYS = frozenset(
    {"key cache", "num key", "key value", "kv", "cache key", "sort key", "key bits", "extra key"}
)
_FORMS = re.compile(
    r"""
    \b(?:hf|api_org)_[A-Za-z0-9]{16,}\b            # Hugging Face
    | \b(?:sk|pk|rk|nvapi|gsk|xai)-[A-Za-z0-9_-]{12,}  # OpenAI and those who follow it, NVIDIA
    | \bgh[pousr]_[A-Za-z0-9]{20,}\b | \bglpat-[A-Za-z0-9_-]{16,} | \bgithub_pat_[A-Za-z0-9_]{20,}
    | \bxox[abprs]-[A-Za-z0-9-]{10,}
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
    | (?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*
    | -----BEGIN[A-Z ]*PRIVATE[ ]KEY-----.*
    """,
    re.VERBOSE | re.DOTALL,
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)
_URL_LOGIN = re.compile(
    r"""(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,15}://)
    (?: [^\s/?#"']{1,500}@
      | [^\s/@:"']{1,200}:(?!\d{1,5}(?:[/?#]|$))[^\s@"']{1,500}@)  # a password with a slash; no port
    """,
    re.VERBOSE,
)
_BARE_LOGIN = re.compile(
    r"""(?<![^\s"'=,;([{])[^\s:/@"'=,;()\[\]{}]{1,200}:
    (?!//|\d{1,5}/)[^\s@"']{1,500}@(?=[A-Za-z0-9\[])(?!sha\d+:)  # no port, no digest of an image
    """,
    re.VERBOSE,
)
"""`user:password@host`, without a scheme."""
_URL_QUERY = re.compile(r"(?P<before>[a-z][a-z0-9+.-]{0,15}://[^\s?#\"']*)\?[^\s#\"']+", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"""(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z][A-Za-z0-9_.-]{0,100})(?P<sign>["']?\s{0,4}[=:]\s{0,4})
    (?P<value>"[^"]*"?|'[^']*'?|[^\s"',;&]+)""",
    re.VERBOSE,
)


def is_secret(name: str) -> bool:
    """Whether what stands under this name (of an option, a variable, a JSON key) is to be hidden."""
    parts = [part.lower() for part in _WORDS.findall(name)]
    if parts and parts[-1] in ("token", "tokens"):
        return parts == ["token"] or (len(parts) > 1 and parts[-2] in _TOKEN_OWNERS)
    if parts and parts[-1] == "pass":
        return len(parts) == 1 or parts[-2] in _PASS_OWNERS
    if " ".join(parts[-2:]) in _HARMLESS_KEYS or " ".join(parts[:2]) in _HARMLESS_KEYS:
        return False
    return any(part in _SECRET_WORDS or part.endswith(("apikey", "password")) for part in parts)


def hides(name: str, item: Any, named_secret: Callable[[str], bool] = is_secret) -> bool:
    """Whether a value under this name is to be hidden: any one, of whatever type, that says something."""
    return named_secret(name) and not isinstance(item, bool | type(None)) and item not in ("", [], {})


def holds_secret(value: str) -> bool:
    """Whether a text has the form of a secret, or of an address with a login, whatever its name."""
    return without_secrets(value) != value or _BARE_LOGIN.search(value) is not None


def text(value: str, secrets: tuple[str, ...] = ()) -> str:
    """A text without secrets and control characters, at most `MAX_TEXT` characters long.

    Args:
        value: From outside; nothing about it is trusted.
        secrets: Texts to hide wherever they occur.
    """
    value = value[: 4 * MAX_TEXT]
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        value = value.replace(secret, HIDDEN)
    value = _FORMS.sub(HIDDEN, value)
    value = _BEARER.sub(lambda match: f"{match[1]} {HIDDEN}", value)
    value = _URL_LOGIN.sub(lambda match: f"{match['scheme']}{HIDDEN}@", value)
    value = _BARE_LOGIN.sub(f"{HIDDEN}@", value)
    value = _URL_QUERY.sub(lambda match: f"{match['before']}?{HIDDEN}", value)
    value = _ASSIGNED.sub(_hide_assigned, value)
    value = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in value
    )
    return value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "…"


def _hide_assigned(match: re.Match[str]) -> str:
    assigned = match["value"].strip("\"'")
    if not is_secret(match["name"]) or assigned.lower() in ("", "none", "null", "true", "false", HIDDEN):
        return match[0]
    return f"{match['name']}{match['sign']}{HIDDEN}"


def value(found: Any, secrets: tuple[str, ...] = (), depth: int = 12) -> Any:
    """A JSON value without secrets: keys that name one lose their value, texts are cleaned, sizes bounded."""
    if isinstance(found, str):
        return text(found, secrets)
    if depth == 0 and isinstance(found, dict | list):
        return "…"
    if isinstance(found, dict):
        kept = {}
        for name, item in list(found.items())[:MAX_ITEMS]:
            clean = text(str(name), secrets)
            kept[clean] = HIDDEN if hides(clean, item) else value(item, secrets, depth - 1)
        return kept
    if isinstance(found, list):
        return [value(item, secrets, depth - 1) for item in found[:MAX_ITEMS]]
    return exactly_representable(found)


def without_secrets(found: Any) -> Any:
    """A JSON value of which only secrets are taken out, by the name they stand under and by their form."""
    if isinstance(found, str):
        found = _BEARER.sub(lambda match: f"{match[1]} {HIDDEN}", _FORMS.sub(HIDDEN, found))
        return _URL_LOGIN.sub(lambda match: f"{match['scheme']}{HIDDEN}@", found)
    if isinstance(found, dict):
        return {
            without_secrets(name): HIDDEN if hides(name, item) else without_secrets(item)
            for name, item in found.items()
        }
    return [without_secrets(item) for item in found] if isinstance(found, list) else found


def command_line(arguments: list[str]) -> list[str]:
    """The arguments of a program: what follows or is assigned to an option that names a secret is hidden."""
    kept = []
    hide_next = False
    for argument in arguments[:MAX_ITEMS]:
        name, assigned, _ = argument.partition("=")
        if hide_next and not (argument.startswith("--") and len(argument) > 2):
            kept.append(HIDDEN)  # and what follows it: some options take several keys
            continue
        hide_next = False
        if argument.startswith("-") and is_secret(name):
            hide_next = not assigned
            kept.append(f"{name}={HIDDEN}" if assigned else argument)
        else:
            kept.append(text(argument))
    return kept
