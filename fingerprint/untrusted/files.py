"""Opening files of folders that anybody may have written: regular files only, so that nothing can block."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

from ...schemas.base import canonical_json, sha256_of
from ...schemas.fingerprint import Fact, fact, unavailable
from ...schemas.jsontext import MAX_DEPTH, is_deeper
from ...schemas.open_files import open_regular

SMALL_BYTES = 256 * 1024 * 1024
"""The largest tokenizer files have some tens of megabytes; what is beyond is not read into memory."""
JSON_VERIFIED = "json-sha256:verified"


def read_small(path: Path) -> bytes:
    """All bytes of a configuration, template or tokenizer file.

    Raises:
        OSError: As `open_regular`, or larger than `SMALL_BYTES`.
    """
    with open_regular(path) as file:
        content = file.read(SMALL_BYTES + 1)  # a raw read may return less than there is
        while content and len(content) <= SMALL_BYTES and (more := file.read(SMALL_BYTES + 1 - len(content))):
            content += more
    if len(content) > SMALL_BYTES:
        raise OSError(errno.EFBIG, f"larger than {SMALL_BYTES >> 20} MiB", str(path))
    return content


def read_object(path: Path) -> dict[str, Any] | str:
    """The object in a JSON file, fit for a fingerprint, or, as text, why there is none."""
    content = read_any_object(path)
    if isinstance(content, dict):
        # How deep Python itself can go depends on what else the process does, so the bound is rip's own.
        if is_deeper(content, MAX_DEPTH):
            return f"{path.name} has no canonical form: nested more than {MAX_DEPTH} deep"
        try:
            canonical_json(content)
        except ValueError:
            return f"{path.name} has no canonical form: half a character in its text"
    return content


def read_any_object(path: Path) -> dict[str, Any] | str:
    """The object in a JSON file (NaN allowed, a later key wins), or, as text, why there is none."""
    try:
        content = json.loads(read_small(path))
    except FileNotFoundError:
        return f"the folder has no {path.name}"
    except OSError as error:
        return f"{path.name} could not be read: {error.strerror}"
    except (ValueError, RecursionError):
        return f"{path.name} is not JSON"
    return content if isinstance(content, dict) else f"{path.name} is not a JSON object"


def digest_of(content: dict[str, Any] | str, name: str) -> Fact:
    """The SHA-256 of the canonical JSON of what `read_object` read; where it read nothing, why."""
    return unavailable(content, name) if isinstance(content, str) else fact(sha256_of(content), JSON_VERIFIED)
