"""Reading the key-value metadata of a GGUF file (versions 2 and 3) from its first bytes.

Own code because the `gguf` package needs two seconds for a 49,000-token vocabulary, flattens nested arrays,
and belongs to an extra that a fingerprint must do without. It does not read tensors.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Any

from ..schemas.errors import BadInput
from .model_ref import GGUF_MAGIC

if TYPE_CHECKING:
    from pathlib import Path

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF value type → struct code."""
_STRING, _ARRAY = 8, 9
_MAX_DEPTH = 8
_READABLE_VERSIONS = (2, 3)


def read_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of a GGUF file, as plain JSON values.

    A string that is not UTF-8 becomes `{"bytes": <hex>}`.

    Raises:
        BadInput: Not a GGUF file, a version rip does not know, or truncated or contradictory metadata.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).metadata()
    except OSError as error:
        raise BadInput(
            f"{path} could not be read: {error.strerror}", "check the file and its permissions"
        ) from None
    except _Corrupt as fault:
        raise BadInput(f"{path}: {fault}", "fetch or convert the file again") from None
    except ValueError:
        raise BadInput(f"{path}: the file is empty", "fetch or convert the file again") from None


class _Corrupt(Exception):
    """What is wrong with the bytes, in words."""


class _Reader:
    """A cursor over the bytes. Every length is checked against what is left before it is believed."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._offset, self._order = data, 0, "<"

    def metadata(self) -> dict[str, Any]:
        if self._take(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise _Corrupt("not a GGUF file")
        version = self._number("I")
        if version & 0xFFFF == 0:  # a small number whose bytes are in the other order
            self._order, self._offset = ">", len(GGUF_MAGIC)
            version = self._number("I")
        if version not in _READABLE_VERSIONS:
            raise _Corrupt(f"GGUF version {version}; rip reads 2 and 3")
        _tensors, pairs = self._number("Q"), self._number("Q")
        found: dict[str, Any] = {}
        for _ in range(pairs):  # a wrong count runs into the end of the file, which is reported
            key = self._string()
            if not isinstance(key, str) or key in found:
                raise _Corrupt("a metadata key is not text or stands twice")
            found[key] = self._value(self._number("I"), depth=0)
        return found

    def _take(self, count: int) -> bytes:
        end = self._offset + count
        if end > len(self._data):
            raise _Corrupt("the metadata is truncated or corrupt")
        taken = self._data[self._offset : end]
        self._offset = end
        return taken

    def _number(self, code: str) -> Any:
        return struct.unpack(self._order + code, self._take(struct.calcsize("<" + code)))[0]

    def _string(self) -> str | dict[str, str]:
        raw = self._take(self._number("Q"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return {"bytes": raw.hex()}

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind != _ARRAY or depth >= _MAX_DEPTH:
            raise _Corrupt(
                f"unknown metadata type {kind}" if kind != _ARRAY else "metadata nested too deeply"
            )
        item_kind, count = self._number("I"), self._number("Q")
        if item_kind in _SCALARS:
            code = _SCALARS[item_kind]
            raw = self._take(count * struct.calcsize("<" + code))
            return list(struct.unpack(f"{self._order}{count}{code}", raw))
        return [self._value(item_kind, depth + 1) for _ in range(count)]
