"""Recorded fingerprints: a file that holds a document or pasted text, or what it is instead."""

from __future__ import annotations

import json
import sys
from io import BufferedReader
from pathlib import Path
from typing import NoReturn

from ..schemas.base import JsonObject, parse_json_object
from ..schemas.errors import BadInput
from ..schemas.fingerprint import FLAT_KEYS, Fingerprint
from ..schemas.open_files import open_stream
from .pasted.lines import is_json_log
from .probes.pasted_text import KINDS, from_text

STANDARD_INPUT = Path("-")
MAX_BYTES = 64 << 20
"""Longest fingerprint that is read: a thousand tensors take a tenth of a megabyte."""
_MARK = b"\xef\xbb\xbf"
"""Of UTF-8, as some editors put it before a text."""
_GIVE = "give the fingerprint itself, as `rip fingerprint -o FILE` writes it"
_BINARY: dict[bytes, tuple[str, str]] = {
    b"PAR1": (
        "a Parquet file, such as a trace",
        "two traces are compared by `rip diverge A.parquet B.parquet`",
    ),
    b"GGUF": ("a model", "record its fingerprint first: `rip fingerprint --model FILE.gguf -o base.json`"),
}
_DOCUMENTS: dict[str, tuple[str, str]] = {
    "envelope": ("a request (rip.envelope)", f"run it with `rip replay`; for a comparison {_GIVE}"),
    "drift": ("the result of a comparison (rip.drift)", f"{_GIVE}: the two that were compared"),
    "verdict": ("the result of `rip diverge` (rip.verdict)", "compare its traces again with `rip diverge`"),
}


def from_bytes(content: bytes, where: str) -> Fingerprint:
    """The fingerprint in a file: a document of rip, or pasted text about an environment.

    Args:
        content: All bytes of the file.
        where: What to call it in an error.

    Raises:
        BadInput: Neither of the two, edited after it was recorded, or written by a newer rip.
    """
    for magic, (what, fix) in _BINARY.items():
        if content.startswith(magic):
            raise BadInput(f"{where} is {what}, not a fingerprint", fix)
    if not content.strip():
        raise BadInput(f"{where} is empty", _GIVE)
    if content.removeprefix(_MARK).lstrip()[:1] == b"{" and not is_json_log(content):
        raw = parse_json_object(content, where)
        if not str(raw.get("schema")).startswith(f"rip.{Fingerprint.KIND}/"):
            _refuse(raw, where)
        return Fingerprint.from_object(raw, where)
    pasted = from_text(content)
    if pasted is None:
        if not _is_plain_text(content):
            parse_json_object(content, where)  # says what is wrong with it
        raise BadInput(
            f"{where}: no report or log of an environment was recognised in it",
            f"paste the whole output of one of {KINDS}; or give a file that rip fingerprint -o wrote",
        )
    return pasted


def _is_plain_text(content: bytes) -> bool:
    """Whether it is text, and not a JSON value of another kind than an object."""
    try:
        json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return False
    except (ValueError, RecursionError):
        return True
    return False


def _refuse(raw: JsonObject, where: str) -> NoReturn:
    """Say what a JSON object is that is no fingerprint.

    Raises:
        BadInput: Always.
    """
    kind = str(raw.get("schema")).removeprefix("rip.").partition("/")[0]
    if kind in _DOCUMENTS:
        what, fix = _DOCUMENTS[kind]
    elif "bomFormat" in raw:
        what, fix = "a CycloneDX BOM, which keeps only a part", _GIVE
    elif "predicateType" in raw:
        what, fix = "an in-toto statement", f"{_GIVE}: the statement names it"
    elif set(raw) == set(FLAT_KEYS):
        what, fix = "the flat form, which has no sources and digests", f"{_GIVE} without --flat"
    elif "prompt_token_ids" in raw or "messages" in raw:
        what, fix = _DOCUMENTS["envelope"]
    else:
        Fingerprint.from_object(raw, where)  # says which schema field it found
        raise AssertionError("a document without the schema of a fingerprint was read as one")
    raise BadInput(f"{where} is {what}, not a fingerprint", fix)


def read_fingerprint(path: Path) -> Fingerprint:
    """Read a fingerprint document, or pasted text that describes an environment.

    Raises:
        BadInput: Unreadable, neither of the two, or written by a newer rip.
    """
    return from_bytes(read_input(path), input_name(path))


def input_name(path: Path) -> str:
    """What to call an input."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def read_input(path: Path) -> bytes:
    """The bytes of a fingerprint file, or of standard input where `path` is `-`.

    Raises:
        BadInput: Unreadable, no file or pipe, or too long to be one.
    """
    try:
        content = sys.stdin.buffer.read(MAX_BYTES + 1) if path == STANDARD_INPUT else _read_stream(path)
    except OSError as error:
        raise BadInput(
            f"{path} could not be read: {error.strerror}", "give a file that rip fingerprint -o wrote"
        ) from None
    if len(content) > MAX_BYTES:
        raise BadInput(
            f"{input_name(path)} is longer than any fingerprint ({MAX_BYTES >> 20} MiB)",
            "give a file that rip fingerprint -o wrote",
        )
    return content


def _read_stream(path: Path) -> bytes:
    try:
        file = BufferedReader(open_stream(path))
    except IsADirectoryError:
        raise BadInput(f"{path} is a directory", "give a file that rip fingerprint -o wrote") from None
    with file:
        return file.read(MAX_BYTES + 1)
