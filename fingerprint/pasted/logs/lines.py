"""What the logs of engines have in common: marks around a value, and patterns whose groups are fields."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from ..paste import Paste

NUMBER = r"\d{1,12}"


def between(text: str, opening: str, closing: str) -> str | None:
    """What stands between the first opening mark and the last closing one."""
    start, end = text.find(opening), text.rfind(closing)
    return text[start + len(opening) : end] if 0 <= start < end else None


def matched(pattern: str, *names: str, engine: str | None = None) -> Callable[[str, Paste], bool]:
    """A reader that searches a pattern and keeps each group as the field of its name."""
    compiled = re.compile(pattern)

    def read(line: str, paste: Paste) -> bool:
        match = compiled.search(line[:2000])
        if match is None:
            return False
        if engine is not None:
            paste.state("engine.name", engine)
        for name, value in zip(names, match.groups(), strict=True):
            paste.state(name, int(value) if value and re.fullmatch(NUMBER, value) else value)
        return True

    return read


def dictionary(line: str) -> dict[str, Any] | None:
    """The Python dictionary in a line, as JSON values; None where there is none that can be read."""
    text = between(line, "{", "}")
    if text is None:
        return None
    try:
        found = ast.literal_eval("{" + text + "}")
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else None
