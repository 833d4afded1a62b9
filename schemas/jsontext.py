"""JSON that every reader reads alike: strict parsing, exact values, canonical form (RFC 8785), digests.

It does not know documents or their fields.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, NoReturn

from .errors import BadInput
from .open_files import open_regular
from .written_numbers import exactly_representable

JsonObject = dict[str, Any]

MAX_DEPTH = 100
"""Deepest nesting read. JSON parsers give up somewhere between 200 and 1000; real requests stay below 20."""


def parse_json_object(text: str | bytes, where: str) -> JsonObject:
    """Parse one JSON object, and refuse what readers disagree about.

    Duplicate keys, NaN and Infinity (not JSON), numbers too large for a float, lone surrogates and nesting
    beyond `MAX_DEPTH` are refused. A byte order mark is skipped.

    Raises:
        BadInput: With the line and column of the fault where there is one.
    """

    def unique(pairs: list[tuple[str, Any]]) -> JsonObject:
        result: JsonObject = {}
        for key, value in pairs:
            if key in result:
                raise BadInput(f"{where}: the key {key!r} stands twice", "keep one of the two")
            result[key] = value
        return result

    def not_json(word: str) -> NoReturn:
        raise BadInput(
            f"{where}: {word} is not JSON", f'write it as the string "{word}" where the field allows it'
        )

    def finite(digits: str) -> float:
        number = float(digits)
        if math.isinf(number):
            raise BadInput(
                f"{where}: the number {digits[:40]} is too large", "correct it: it does not fit a float64"
            )
        return number

    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = json.loads(
            text.removeprefix("\ufeff"), object_pairs_hook=unique, parse_constant=not_json, parse_float=finite
        )
        if is_deeper(value, MAX_DEPTH):
            raise _too_deep(where)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{where}: not UTF-8 text (byte {error.start})", "give a JSON file saved as UTF-8"
        ) from None
    except UnicodeEncodeError:
        raise BadInput(
            f"{where}: text with half a character (a lone surrogate)", "write the text as UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        raise _syntax_error(error, where) from None
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError:  # Python's limit on the digits of an integer
        raise BadInput(f"{where}: a number with thousands of digits", "correct the number") from None
    if not isinstance(value, dict):
        raise BadInput(
            f"{where}: a JSON object was expected, not {_KINDS[type(value)]}",
            "give one object {…} per document",
        )
    return value


_KINDS = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _syntax_error(error: json.JSONDecodeError, where: str) -> BadInput:
    if not error.doc.strip():
        return BadInput(f"{where}: empty", "give a file that holds a JSON object")
    one_line = "\n" not in error.doc.strip("\r\n")
    column = min(error.pos, len(error.doc.rstrip())) + 1
    location = f"column {column}" if one_line else f"line {error.lineno}, column {error.colno}"
    fix = (
        "give one JSON object; a request set (one object a line) ends in .jsonl"
        if error.msg == "Extra data"
        else "correct the text at that place"
    )
    return BadInput(f"{where}: not JSON: {error.msg} ({location})", fix)


def whole_document(path: Path, line: bytes, most_bytes: int) -> JsonObject | list[Any] | None:
    """The one JSON object or array that a file is, where it was taken for one object a line.

    Args:
        path: The file.
        line: The line that could not be read. One that is JSON by itself has another fault.
        most_bytes: Longer files are not looked at.
    """
    try:
        with open_regular(path) as file:
            text = file.read(most_bytes + 1)
        if not isinstance(_json_or_none(line), dict) and len(text) <= most_bytes:
            value = _json_or_none(text)
            return value if isinstance(value, dict | list) else None
    except OSError:
        pass
    return None


def list_of_lines(path: Path) -> BadInput:
    """What is wrong with a file that is one JSON array, where one object a line was expected."""
    return BadInput(
        f"{path}: one JSON array, and not one object a line",
        f"write one element a line: jq -c '.[]' {path.name}",
    )


def _json_or_none(text: bytes) -> Any:
    try:
        return json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None


def _too_deep(where: str) -> BadInput:
    return BadInput(f"{where}: JSON nested more than {MAX_DEPTH} deep", "give a flatter document")


def is_deeper(value: Any, depth: int) -> bool:
    """Whether objects and arrays are nested more than `depth` deep."""
    kinds = (dict, list)
    holders = [value] if isinstance(value, kinds) else []
    for _ in range(depth):
        holders = [
            child
            for holder in holders
            for child in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(child, kinds)
        ]
    return bool(holders)


def canonical_json(value: Any) -> bytes:
    """RFC 8785 canonical form, after `exactly_representable`."""
    import rfc8785  # here: taps in another engine's environment write no canonical JSON and may lack it

    return rfc8785.dumps(exactly_representable(value))


def sha256_of(value: Any) -> str:
    """Hex SHA-256 of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
