"""The files of a tapped rank: what a part holds, and how it is written whole or not at all.

A rank's folder holds `state.json`, `sites.json` and `part-00000000.rip …`. It knows bytes, numpy and JSON;
nothing here needs torch, vLLM or pyarrow, and nothing is ever unpickled.

A part is: 8 bytes magic · length and CRC-32 of the header, 8 bytes each, little-endian · the header, JSON ·
the arrays, each at a multiple of 64 bytes from the end of the header. The header names every array with its
dtype, shape and offset, and holds the sum of the 64-bit words behind it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ....schemas.files import replace_file
from ...row_summaries.summaries import RowSummaries

MAGIC = b"RIPTAP1\n"
BEGIN_BYTES = 24
"""Magic, length and CRC-32 of the header."""
ALIGNMENT = 64
STATE, SITES, PART = "state.json", "sites.json", "part-{:08d}.rip"
STATE_BYTES = 8192
"""`state.json` has this size from the start and is overwritten in place: so a full disk can be reported."""

ROW_FIELDS = (
    "request", "position", "token_id", "step",
    "batch_size", "batch_row", "num_tokens", "padded_tokens", "cached_tokens",
)  # fmt: skip
"""Columns of a part's row table: int32[R, 9]. `request` is the rank's own number of the request, `step` the
number of the forward pass."""

SUMMARIES = ("row_hash", "l2", "absmax", "sketch")
DISTRIBUTIONS = ("row", "ids", "logits", "logprobs", "logsumexp", "logits_hash")
"""Fields of the classes below, as a part names its arrays."""

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class TappedRequest:
    """One request as a worker saw it."""

    request_id: str
    """vLLM's own id."""
    key: str
    """What it is captured under: `rip_tap` of its extra_args, else its id."""
    prefix: tuple[int, ...] = ()
    """Token ids of the positions that came from the prefix cache when it began: they have no rows."""


@dataclass(frozen=True, eq=False)
class Distributions:
    """Next-token distributions of D rows, K ids each (K may be 0)."""

    row: Int32
    """int32[D], index into the part's rows."""
    ids: Int32
    """int32[D, K]"""
    logits: npt.NDArray[np.float32]
    """float32[D, K]"""
    logprobs: npt.NDArray[np.float32]
    """float32[D, K], nats"""
    logsumexp: npt.NDArray[np.float64]
    """float64[D], nats"""
    logits_hash: npt.NDArray[np.uint64]
    """uint64[D, 2]"""

    @classmethod
    def none(cls) -> Distributions:
        """No distribution at all."""
        return cls(
            np.zeros(0, np.int32),
            np.zeros((0, 0), np.int32),
            np.zeros((0, 0), np.float32),
            np.zeros((0, 0), np.float32),
            np.zeros(0, np.float64),
            np.zeros((0, 2), np.uint64),
        )


@dataclass(frozen=True, eq=False)
class Part:
    """R rows of some requests over S sites, and which requests ended by then.

    A site that a row was not computed for has 16 zero bytes as its hash.
    """

    requests: Mapping[int, TappedRequest]
    ended: Sequence[int]
    rows: Int32
    """int32[R, len(ROW_FIELDS)]"""
    summaries: RowSummaries
    """[R, S]"""
    distributions: Distributions

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything but the header, by name."""
        found: dict[str, npt.NDArray[Any]] = {"rows": self.rows}
        for name in SUMMARIES:
            found[name] = getattr(self.summaries, name)
        for name in DISTRIBUTIONS:
            found[f"next.{name}"] = getattr(self.distributions, name)
        return found

    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays().values())


def write_part(folder: Path, number: int, part: Part) -> tuple[Path, int]:
    """Write one part under its final name, or nothing.

    Returns:
        The file and its size.

    Raises:
        OSError: As the disk says.
    """
    chunks: list[npt.NDArray[np.uint8]] = []
    table = []
    size = checksum = 0
    for name, array in part.arrays().items():
        array = np.ascontiguousarray(array)
        table.append({"name": name, "dtype": array.dtype.str, "shape": list(array.shape), "at": size})
        whole = array.reshape(-1).view(np.uint8)
        tail = len(whole) % ALIGNMENT
        last = np.zeros(ALIGNMENT if tail else 0, np.uint8)
        last[:tail] = whole[len(whole) - tail :]
        for chunk in (whole[: len(whole) - tail], last):
            checksum += sum_of_words(chunk)
            chunks.append(chunk)
            size += len(chunk)
    header = json.dumps(
        {
            "requests": {
                str(own): [request.request_id, request.key, request.prefix]
                for own, request in part.requests.items()
            },
            "ended": list(part.ended),
            "arrays": table,
            "bytes": size,
            "sum": checksum % 2**64,
        }
    ).encode()
    begin = MAGIC + len(header).to_bytes(8, "little") + zlib.crc32(header).to_bytes(8, "little")
    path = folder / PART.format(number)
    with replace_file(path) as unfinished, unfinished.open("wb") as file:
        file.write(begin + header)
        for chunk in chunks:
            file.write(chunk.data)
    return path, len(begin) + len(header) + size


def sum_of_words(chunk: npt.NDArray[np.uint8]) -> int:
    """The sum of 64-bit words modulo 2^64: ten times as fast as a CRC, and told by any one that differs.

    Args:
        chunk: uint8[8·N]
    """
    return int(np.add.reduce(chunk.view(np.uint64), initial=np.uint64(0)))


def write_private(path: Path, text: str) -> None:
    """Write a small file under its final name, for its owner only.

    Raises:
        OSError: As the disk says.
    """
    with replace_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def make_private(folder: Path) -> None:
    """Make a folder, and those it lies in, for their owner only. One that is there is left as it is."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def padded_state(state: Mapping[str, Any]) -> bytes:
    """A rank's state as the bytes of `state.json`; a reason that is too long is cut."""
    text = json.dumps(state)
    if len(text) > STATE_BYTES - 1:
        text = json.dumps({**state, "why": str(state.get("why", ""))[:1000]})
    return text.encode().ljust(STATE_BYTES - 1) + b"\n"
