"""Reader of the arguments that Text Generation Inference prints, in Rust's form."""

from __future__ import annotations

import re
from typing import Any

from ..paste import Paste

_RUST_FIELD = re.compile(r"\s*([a-z_]{1,60}):\s{0,4}(.*)", re.DOTALL)
_RUST_SOME = re.compile(r"Some\(\s{0,40}(.*?),?\s{0,40}\)", re.DOTALL)
_MOST_PARTS = 20_000


def read_arguments(line: str, paste: Paste) -> bool:
    """`Args { model_id: "…", num_shard: Some(2), … }`, on one line or over many."""
    parts = paste.place.get("tgi")
    if parts is None:
        if not line.startswith("Args {"):
            return False
        parts = paste.place["tgi"] = []
        line = line.removeprefix("Args {")
    elif len(parts) > _MOST_PARTS:
        return False
    parts.append(line)
    if line.rstrip().endswith("}") and not line.lstrip().startswith('"'):
        paste.place["tgi"] = None
        settings = _rust_fields(" ".join(parts).rstrip().removesuffix("}"))
        paste.state_settings("tgi", settings)
    return True


def _rust_fields(text: str) -> dict[str, Any]:
    """The fields of a struct as Rust's Debug prints it; a None is left out."""
    found = {}
    for piece in _outermost(text):
        if (match := _RUST_FIELD.match(piece)) is None:
            continue
        written = match[2].strip()
        if (inner := _RUST_SOME.fullmatch(written)) is not None:
            written = inner[1].strip()
        found[match[1]] = _rust_value(written)
    return {name: value for name, value in found.items() if value is not None}


def _outermost(text: str) -> list[str]:
    """The text at its commas outside of brackets and quotes."""
    pieces, start, depth, quoted = [], 0, 0, False
    for index, character in enumerate(text):
        if character == '"' and text[index - 1 : index] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            pieces.append(text[start:index])
            start = index + 1
    return [*pieces, text[start:]]


def _rust_value(written: str) -> Any:
    if written == "None":
        return None
    if written in ("true", "false"):
        return written == "true"
    if re.fullmatch(r"-?\d{1,15}", written):
        return int(written)
    if re.fullmatch(r"-?\d{1,9}\.\d{1,12}", written):
        return float(written)
    return written.strip('"')
