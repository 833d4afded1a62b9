"""The settings of a vLLM server where it writes them as text (`model='m', tensor_parallel_size=4, …`).

Only what stands there in full is taken: a text whose quotes or brackets do not match states nothing, and
neither does a name that is given twice.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_WORD = re.compile(r"[A-Za-z][\w.:/+-]{0,255}")
_OBJECT = re.compile(r"[A-Za-z_][\w.]*\(.*\)", re.DOTALL)
_WORDS = {"None": None, "True": True, "False": False}
_AS_SETTINGS = {"max_seq_len": "max_model_len", "device_config": "device"}
"""What the text calls otherwise than the settings."""
_MAX_LITERAL = 1 << 16
_UNREADABLE = object()


def settings_of(text: str) -> dict[str, Any] | None:
    """Name → value of the outermost pairs; None where the text cannot be taken apart."""
    pieces = _pieces(text)
    if pieces is None:
        return None
    found: dict[str, Any] = {}
    twice = set()
    for piece in pieces:
        name, sign, written = (part.strip() for part in piece.partition("="))
        name = _AS_SETTINGS.get(name, name)
        value = _value(written)
        if not sign or not _NAME.fullmatch(name) or value is _UNREADABLE:
            continue
        if name in found:
            twice.add(name)
        found[name] = value
    return {name: value for name, value in found.items() if name not in twice}


def _pieces(text: str) -> list[str] | None:
    """The text at its outermost commas."""
    pieces, start = [], 0
    awaited: list[str] = []
    quote, escaped = "", False
    for index, character in enumerate(text):
        if quote:
            if not escaped and character == quote:
                quote = ""
            escaped = not escaped and character == "\\"
        elif character in "'\"":
            quote = character
        elif character in _CLOSING:
            awaited.append(_CLOSING[character])
        elif character in _CLOSING.values():
            if not awaited or awaited.pop() != character:
                return None
        elif character == "," and not awaited:
            pieces.append(text[start:index])
            start = index + 1
    return None if quote or awaited else [*pieces, text[start:]]


def _value(written: str) -> Any:
    """A literal as its value; a bare word and an object of a class as they are written."""
    if written in _WORDS:
        return _WORDS[written]
    if _WORD.fullmatch(written) or _OBJECT.fullmatch(written):
        return written
    if len(written) > _MAX_LITERAL:
        return _UNREADABLE
    try:
        return json.loads(json.dumps(ast.literal_eval(written), allow_nan=False))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _UNREADABLE
