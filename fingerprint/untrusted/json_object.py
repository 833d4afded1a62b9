"""JSON files of a model folder, read as transformers reads them, and their digests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...schemas.base import canonical_json, sha256_of
from ...schemas.fingerprint import Fact, fact, unavailable
from .regular_file import read_small

JSON_VERIFIED = "json-sha256:verified"


def read_object(path: Path) -> dict[str, Any] | str:
    """The object in a JSON file, fit for a fingerprint, or, as text, why there is none."""
    content = read_any_object(path)
    if isinstance(content, dict):
        try:
            canonical_json(content)
        except (ValueError, RecursionError):
            return f"{path.name} has no canonical form (half a character in its text, or nested too deeply)"
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
