"""Where the values of a plain Parquet page lie, so that rows can be read from the file without decoding.

It knows the page header (Thrift compact protocol), its checksum, and the level encoding (RLE / bit-packed
hybrid) of the Parquet format, as far as one PLAIN data page per column chunk needs them. Everything else is
answered with None, and the caller decodes with pyarrow.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.parquet as pq

_HEAD_BYTES = 4096  # a page header takes some dozens of bytes
_DATA_PAGE, _PLAIN, _RLE = 0, 0, 3
# Fields of PageHeader and of DataPageHeader
_PAGE_TYPE, _UNCOMPRESSED_SIZE, _COMPRESSED_SIZE, _CHECKSUM, _DATA_PAGE_HEADER = 1, 2, 3, 4, 5
_NUM_VALUES, _ENCODING, _DEFINITION_ENCODING, _REPETITION_ENCODING = 1, 2, 3, 4
_FOREIGN = (IndexError, KeyError, TypeError, ValueError, RecursionError)
"""What reading something else than a page header ends in."""


@dataclass(frozen=True)
class PlainPage:
    """The values of one column chunk: `rows × width` items, absent ones left out, one behind the other."""

    offset: int
    """Byte offset of the first value in the file."""
    absent: np.ndarray
    """int32, ascending: the items that are not there, counted row by row as if all were."""


@dataclass(frozen=True)
class PlainLists:
    """The values of one column chunk of lists, one behind the other, and where each list ends."""

    levels: bytes
    """Encoded, not decoded: two columns with equal ones have equally long lists in every row."""
    values: memoryview


def plain_page(
    descriptor: int,
    chunk: pq.ColumnChunkMetaData,
    rows: int,
    width: int,
    item_bytes: int,
    levels: tuple[int, int],
) -> PlainPage | None:
    """Find the values of a column of fixed-size lists in its chunk, or None where its layout is different.

    Args:
        descriptor: The open file.
        chunk: The column chunk's metadata.
        rows: Rows of the row group.
        width: Items in a row's list.
        item_bytes: Bytes of an item.
        levels: The column's largest definition and repetition level.
    """
    header, body = _plain_header(os.pread(descriptor, _HEAD_BYTES, chunk.data_page_offset), chunk)
    if not header or chunk.compression != "UNCOMPRESSED" or levels[1] != 1:
        return None
    cursor, end = chunk.data_page_offset + body, chunk.data_page_offset + chunk.total_compressed_size
    cursor += 4 + _uint32(descriptor, cursor)  # repetition levels: lists of fixed width need none
    definition_bytes = _uint32(descriptor, cursor)
    encoded = os.pread(descriptor, definition_bytes, cursor + 4)
    offset = cursor + 4 + definition_bytes
    try:
        absent = _absent(encoded, levels[0], chunk.num_values, rows, width)
    except (IndexError, ValueError):
        return None
    items = rows * width - len(absent)
    return PlainPage(offset, absent) if end - offset == items * item_bytes else None


def plain_lists(descriptor: int, chunk: pq.ColumnChunkMetaData) -> PlainLists | None:
    """Read a chunk of a column of lists, or None where its layout is not a single PLAIN page.

    Raises:
        ValueError: The page is not what was written.
    """
    raw = memoryview(os.pread(descriptor, chunk.total_compressed_size, chunk.data_page_offset))
    header, start = _plain_header(raw[:_HEAD_BYTES], chunk)
    if not header:
        return None
    body = raw[start:]
    _check(header, body, chunk)
    if chunk.compression != "UNCOMPRESSED":
        size = chunk.total_uncompressed_size - start
        body = memoryview(pa.Codec(chunk.compression.lower()).decompress(body, size))
    repetition = 4 + int.from_bytes(body[:4], "little")
    definition = 4 + int.from_bytes(body[repetition : repetition + 4], "little")
    return PlainLists(bytes(body[: repetition + definition]), body[repetition + definition :])


def check_chunk(descriptor: int, chunk: pq.ColumnChunkMetaData) -> None:
    """Compare the pages of a chunk with their checksums, where they have any.

    Raises:
        ValueError: A page is not what was written.
    """
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        at = min(at, chunk.dictionary_page_offset)
    end = at + chunk.total_compressed_size
    while at < end:
        try:
            header, header_bytes = _read_struct(os.pread(descriptor, _HEAD_BYTES, at), 0)
            size = max(header[_COMPRESSED_SIZE], 0)
        except _FOREIGN:
            return  # whoever decodes it will say what is wrong
        _check(header, os.pread(descriptor, size, at + header_bytes), chunk)
        at += header_bytes + size


def _check(header: dict[int, Any], page: bytes | memoryview, chunk: pq.ColumnChunkMetaData) -> None:
    if _CHECKSUM in header and zlib.crc32(page) != header[_CHECKSUM] & 0xFFFFFFFF:
        raise ValueError(f"a page of {chunk.path_in_schema} does not have its checksum")


def _plain_header(head: bytes | memoryview, chunk: pq.ColumnChunkMetaData) -> tuple[dict[int, Any], int]:
    """The page header and its bytes, where the chunk is a single PLAIN data page; else empty."""
    try:
        header, header_bytes = _read_struct(bytes(head), 0)
        page = header[_DATA_PAGE_HEADER]
        one_plain_page = (
            not chunk.has_dictionary_page
            and header[_PAGE_TYPE] == _DATA_PAGE
            and page[_ENCODING] == _PLAIN
            and page[_DEFINITION_ENCODING] == page[_REPETITION_ENCODING] == _RLE
            and page[_NUM_VALUES] == chunk.num_values
            and header[_COMPRESSED_SIZE] == chunk.total_compressed_size - header_bytes
            and header[_UNCOMPRESSED_SIZE] == chunk.total_uncompressed_size - header_bytes
        )
    except _FOREIGN:
        return {}, 0
    return (header, header_bytes) if one_plain_page else ({}, 0)


def _absent(encoded: bytes, highest: int, values: int, rows: int, width: int) -> np.ndarray:
    """Which items are not there. ValueError where lists have other widths."""
    found: list[np.ndarray] = []
    at = 0
    for level, count in level_runs(encoded, highest.bit_length(), values):
        if isinstance(level, np.ndarray):
            # Level 0 is a null list and takes one entry instead of `width`.
            items = np.repeat(level, np.where(level == 0, width, 1))
            found.append(np.flatnonzero(items != highest) + at)
            at += len(items)
        else:
            span = count * width if level == 0 else count
            if level != highest:
                found.append(np.arange(at, at + span))
            at += span
    if at != rows * width:
        raise ValueError("lists of several widths")
    return np.concatenate(found).astype(np.int32) if found else np.empty(0, np.int32)


def level_runs(encoded: bytes, bits: int, count: int) -> Iterator[tuple[int | np.ndarray, int]]:
    """Decode the RLE / bit-packed hybrid: runs of (one level, its count) or (uint8[count], count).

    Raises:
        ValueError: The data hold fewer levels than `count`.
        IndexError: The data end inside a run.
    """
    cursor = 0
    weights = 1 << np.arange(bits, dtype=np.uint8)
    while count and cursor < len(encoded):
        header, cursor = _varint(encoded, cursor)
        length = min(count, (header >> 1) * 8 if header & 1 else header >> 1)
        if header & 1:
            size = (header >> 1) * bits
            unpacked = np.unpackbits(np.frombuffer(encoded, np.uint8, size, cursor), bitorder="little")
            yield (unpacked.reshape(-1, bits) @ weights)[:length], length
            cursor += size
        else:
            yield encoded[cursor], length
            cursor += 1
        count -= length
    if count:
        raise ValueError("too few levels")


def _uint32(descriptor: int, offset: int) -> int:
    return int.from_bytes(os.pread(descriptor, 4, offset), "little")


def _varint(data: bytes, cursor: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[cursor]
        cursor += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, cursor
        shift += 7


def _read_struct(data: bytes, cursor: int) -> tuple[dict[int, Any], int]:
    """One Thrift struct as {field id: value}. ValueError for field types a page header does not have."""
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[cursor]
        cursor += 1
        if head == 0:
            return fields, cursor
        if head >> 4:
            number += head >> 4
        else:
            zigzag, cursor = _varint(data, cursor)
            number = (zigzag >> 1) ^ -(zigzag & 1)
        kind = head & 0x0F
        if kind in (1, 2):
            fields[number] = kind == 1
        elif kind in (4, 5, 6):
            zigzag, cursor = _varint(data, cursor)
            fields[number] = (zigzag >> 1) ^ -(zigzag & 1)
        elif kind == 8:
            size, cursor = _varint(data, cursor)
            fields[number] = data[cursor : cursor + size]
            cursor += size
        elif kind == 12:
            fields[number], cursor = _read_struct(data, cursor)
        else:
            raise ValueError(f"field type {kind}")
