"""Part files: the rows of some requests as one rank observed them, written whole and read with checksums.

It needs neither torch, vLLM nor pyarrow.

A part file is: 8 bytes magic · length and CRC-32 of the header, 8 bytes each, little-endian · the header,
JSON · the arrays, each at a multiple of 64 bytes from the end of the header. The header names every array
with its dtype, shape and offset, and holds the sum of the 64-bit words behind it. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ...schemas.files import replace_file
from ...schemas.trace import SHAPE_COLUMNS, SKETCH_SIZE
from ..row_summaries.rows import RowSummaries

ROW_FIELDS = ("request", "position", "token_id", "step", *SHAPE_COLUMNS)
"""Columns of a part's row table: int32[R, 9]. `request` is the rank's own number of the request, `step` the
number of the forward pass."""
REQUEST, POSITION, TOKEN_ID, STEP = range(4)
SHAPE = slice(4, None)
"""Where they stand; the shape of the forward pass comes last."""

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
        distributions = {f"next.{name}": array for name, array in vars(self.distributions).items()}
        summaries = dict(zip(SUMMARIES, self.summaries.arrays(), strict=True))
        return {"rows": self.rows, **summaries, **distributions}

    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays().values())


SUMMARIES = tuple(field.name for field in fields(RowSummaries))
DISTRIBUTIONS = tuple(field.name for field in fields(Distributions))
"""As a part names its arrays."""


MAGIC = b"RIPTAP1\n"
BEGIN_BYTES = 24
"""Magic, length and CRC-32 of the header."""
ALIGNMENT = 64
PART = "part-{:08d}.rip"
MOST_HEADER_BYTES = 64 << 20
"""A longer header is not one of ours."""


class BrokenPart(Exception):
    """A file that is no whole part, with the reason."""


@dataclass(frozen=True, eq=False)
class PartIndex:
    """What a part holds, without its summaries."""

    requests: Mapping[int, TappedRequest]
    ended: Sequence[int]
    counts: Mapping[int, int]
    """Rows of each request."""
    last: Mapping[int, int]
    """The last position of each request among them."""


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
            checksum += _sum_of_words(chunk)
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
    with replace_file(path, synced=False) as unfinished, unfinished.open("wb") as file:
        file.write(begin + header)
        for chunk in chunks:
            file.write(chunk.data)
    return path, len(begin) + len(header) + size


def _sum_of_words(chunk: npt.NDArray[np.uint8]) -> int:
    """The sum of 64-bit words modulo 2^64: ten times as fast as a CRC; any one word that differs changes it.

    Args:
        chunk: uint8[8·N]
    """
    return int(np.add.reduce(chunk.view(np.uint64), initial=np.uint64(0)))


def read_index(path: Path) -> PartIndex:
    """Read what a part holds. Its bytes are checked by `read_part` only.

    Raises:
        BrokenPart: The file is torn, was changed, or never was a part.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        header, start = _header(file)
        with _header_errors():
            item = next(item for item in header["arrays"] if item["name"] == "rows")
            count = int(np.prod(item["shape"], dtype=np.int64))
            file.seek(start + int(item["at"]))
            raw = np.frombuffer(file.read(4 * count), np.int32)
            rows = raw.reshape(-1, len(ROW_FIELDS))
            numbers, counts = np.unique(rows[:, REQUEST], return_counts=True)
            return PartIndex(
                _requests(header),
                _ended(header),
                dict(zip(numbers.tolist(), counts.tolist(), strict=True)),
                {
                    number: int(rows[rows[:, REQUEST] == number, POSITION].max())
                    for number in numbers.tolist()
                },
            )


def read_part(path: Path) -> Part:
    """Read one part and check it.

    Raises:
        BrokenPart: The file is torn, was changed, or never was a part.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        header, _ = _header(file)
        body = memoryview(file.read())
    with _header_errors():
        if len(body) != header["bytes"]:
            raise BrokenPart(f"{header['bytes']} bytes should follow its header, {len(body)} do")
        if len(body) % 8 or _sum_of_words(np.frombuffer(body, np.uint8)) != header["sum"]:
            raise BrokenPart("its checksum does not fit its bytes")
        arrays = {item["name"]: _array(body, item) for item in header["arrays"]}
        part = Part(
            _requests(header),
            _ended(header),
            arrays["rows"],
            RowSummaries(*(arrays[name] for name in SUMMARIES)),
            Distributions(*(arrays[f"next.{name}"] for name in DISTRIBUTIONS)),
        )
    _check_shapes(part)
    return part


@contextmanager
def _header_errors() -> Iterator[None]:
    """BrokenPart for whatever reading a header of another form raises."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise BrokenPart(f"its header is invalid: {error}") from None


def _header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The header of a part, and where its arrays begin."""
    begin = file.read(BEGIN_BYTES)
    if not begin.startswith(MAGIC) or len(begin) < BEGIN_BYTES:
        raise BrokenPart("it does not begin like a part")
    length, checksum = (int.from_bytes(begin[at : at + 8], "little") for at in (8, 16))
    raw = file.read(length) if length <= MOST_HEADER_BYTES else b""
    if len(raw) < length or zlib.crc32(raw) != checksum:
        raise BrokenPart("its header is cut off, or its checksum does not fit")
    with _header_errors():
        header = json.loads(raw)
    if not isinstance(header, dict):
        raise BrokenPart("its header is invalid")
    return header, len(begin) + length


def _ended(header: Mapping[str, Any]) -> list[int]:
    return [int(number) for number in header["ended"]]


def _requests(header: Mapping[str, Any]) -> dict[int, TappedRequest]:
    return {
        int(number): TappedRequest(str(request_id), str(key), tuple(int(token) for token in prefix))
        for number, (request_id, key, prefix) in header["requests"].items()
    }


def _array(body: memoryview, item: Mapping[str, Any]) -> npt.NDArray[Any]:
    dtype = np.dtype(str(item["dtype"]))
    if dtype.kind not in "iuf":
        raise BrokenPart(f"an array of {dtype} is not expected")
    shape = tuple(int(length) for length in item["shape"])
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(body, dtype, count, int(item["at"])).reshape(shape)


def _check_shapes(part: Part) -> None:
    """BrokenPart unless the arrays have the shapes and dtypes that readers rely on."""
    count, sites = part.summaries.l2.shape if part.summaries.l2.ndim == 2 else (-1, -1)
    many = len(part.distributions.row)
    topk = part.distributions.ids.shape[-1] if part.distributions.ids.ndim == 2 else -1
    expected = {
        "rows": ((count, len(ROW_FIELDS)), np.int32),
        "row_hash": ((count, sites, 2), np.uint64),
        "l2": ((count, sites), np.float32),
        "absmax": ((count, sites), np.float32),
        "sketch": ((count, sites, SKETCH_SIZE), np.float32),
        "next.row": ((many,), np.int32),
        "next.ids": ((many, topk), np.int32),
        "next.logits": ((many, topk), np.float32),
        "next.logprobs": ((many, topk), np.float32),
        "next.logsumexp": ((many,), np.float64),
        "next.logits_hash": ((many, 2), np.uint64),
    }
    for name, array in part.arrays().items():
        shape, dtype = expected[name]
        if array.shape != shape or array.dtype != np.dtype(dtype):
            raise BrokenPart(f"its {name} is {array.dtype}{list(array.shape)}")
    at = part.distributions.row
    if many and (at.min() < 0 or at.max() >= count):
        raise BrokenPart("a distribution belongs to no row")
    if not set(part.rows[:, REQUEST].tolist()) <= set(part.requests):
        raise BrokenPart("a row belongs to no request")


def part_names(names: Iterable[str]) -> list[str]:
    """The parts among file names, in the order they were written."""
    numbers = {name: name.removeprefix("part-").removesuffix(".rip") for name in names}
    parts = [name for name, text in numbers.items() if text.isdecimal() and name == PART.format(int(text))]
    return sorted(parts, key=lambda name: int(numbers[name]))
