"""Opening a trace: one Parquet file, or the parts that a run which died has flushed.

It checks that the input is a trace this version can read and numbers its rows; it decodes no values.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.errors import BadInput
from ...schemas.findings.unseen import PartIgnored, UnfinishedRun, Unread
from ...schemas.jsontext import parse_json_object
from ...schemas.open_files import check_regular
from ...schemas.trace import (
    COLUMNS,
    HEADER_KEY,
    LATER_COLUMNS,
    PARTS_SUFFIX,
    SITE_COLUMNS,
    Site,
    TraceHeader,
    arrow_schema,
)

HEADER_FILE = "header.json"

DAMAGE = (pa.ArrowException, OSError, ValueError, IndexError)
"""What pyarrow raises where a file is not what was written."""

SiteKey = tuple[str, int, str]


def site_key(site: Site) -> SiteKey:
    """What identifies a site across traces."""
    return site.name, site.occurrence, site.part


@dataclass(frozen=True)
class Part:
    """One Parquet file of a trace."""

    path: Path
    file: pq.ParquetFile
    columns_of: np.ndarray
    """int64[sites of the trace]: the site's index in this file's site columns, −1 where it has none."""
    width: int
    """Sites in this file's site columns; 0 where it has none."""
    leaves: dict[str, tuple[int, tuple[int, int]]]
    """Column → index of its (last) leaf, and that leaf's largest definition and repetition level."""


@dataclass(frozen=True)
class Group:
    """One row group, with the number that its first row has in the whole trace."""

    part: Part
    index: int
    first_row: int
    rows: int


@dataclass
class Trace:
    """An opened trace. Rows are numbered through all parts and row groups, in file order."""

    path: Path
    header: TraceHeader
    files: list[Part]
    groups: list[Group]
    """Empty where the engine returned text only: then the header's results are all there is."""
    header_sha256: str = ""
    """Over the header's JSON as it is stored."""
    unread: list[Unread] = field(default_factory=list)
    """What could not be read."""
    unfinished: bool = False
    """It holds what an interrupted run had flushed, so its sequences may end early."""
    kept: dict[tuple[str, ...], Any] = field(default_factory=dict, repr=False, compare=False)
    """Decoded row groups by their columns: what readers of the same columns share."""

    def __post_init__(self) -> None:
        self._starts = [group.first_row for group in self.groups]

    @property
    def rows(self) -> int:
        """All rows of the trace."""
        return self.groups[-1].first_row + self.groups[-1].rows if self.groups else 0

    def group_of(self, row: int) -> int:
        """Index of the row group that holds a row."""
        return bisect_right(self._starts, row) - 1


def read_header(path: Path) -> TraceHeader:
    """The header of a trace. Raises as `open_trace`."""
    return open_trace(path).header


def open_trace(path: Path) -> Trace:
    """Open `T.parquet`, or a folder `T.parquet.parts` left by a run that died.

    Raises:
        BadInput: Missing, unreadable, truncated or foreign, written by a newer rip, or with neither rows nor
            results.
    """
    if path.is_dir():
        return _open_parts(path)
    if not path.exists():
        left = path.with_name(path.name + PARTS_SUFFIX)
        if left.is_dir():
            raise BadInput(
                f"{path} was never finished: the run that wrote it died or still runs",
                f"read what it flushed: give {left} instead",
            )
        raise BadInput(
            f"{path} does not exist", "check the path, or make a trace: rip replay ENVELOPE.json -o T.parquet"
        )
    file = open_parquet(path)
    text = _header_text(file, path)
    header = _header(text, path)
    return _assemble(path, text, header, [_part(path, file, header, header)], [])


def _open_parts(folder: Path) -> Trace:
    about = folder / HEADER_FILE
    if not about.is_file():
        raise BadInput(
            f"{folder} has no {HEADER_FILE}, so it is not the parts of a trace",
            "give a trace file, or the folder T.parquet.parts that an interrupted rip replay left",
        )
    try:
        text = about.read_bytes()
    except OSError as error:
        raise BadInput(f"{about}: cannot be read: {error.strerror}", "check its permissions") from None
    header = _header(text, about)
    parts: list[Part] = []
    unread: list[Unread] = [UnfinishedRun(trace=str(folder))]
    for path in sorted(folder.glob("part-*.parquet")):
        try:
            file = open_parquet(path)
        except BadInput as error:
            unread.append(PartIgnored(error=error.message))
            continue
        own = _header(_header_text(file, path), path)
        parts.append(_part(path, file, header, own))
    trace = _assemble(folder, text, header, parts, unread)
    trace.unfinished = True
    return trace


def _assemble(path: Path, text: bytes, header: TraceHeader, parts: list[Part], unread: list[Unread]) -> Trace:
    groups: list[Group] = []
    first_row = 0
    for part in parts:
        for index in range(part.file.metadata.num_row_groups):
            rows = part.file.metadata.row_group(index).num_rows
            if rows:
                groups.append(Group(part, index, first_row, rows))
                first_row += rows
    if not groups and not (parts and header.results):
        raise BadInput(f"{path} has no rows", "repeat the replay: nothing was recorded")
    return Trace(path, header, parts, groups, hashlib.sha256(text).hexdigest(), unread)


def open_parquet(path: Path, **how: object) -> pq.ParquetFile:
    """Open a file of a trace: pages are checked, memory stays bounded. Raises as `open_trace`."""
    try:
        check_regular(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}", "give a file that rip wrote") from None
    try:
        # No pre-buffering and no whole-file map: rows are read in pieces.
        return pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True, **how)
    except DAMAGE as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> BadInput:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as denied:
        return BadInput(f"{path}: cannot be read: {denied.strerror}", "check its permissions")
    if magic == b"PAR1":
        left = path.with_name(path.name + PARTS_SUFFIX)
        instead = f"give {left} instead" if left.is_dir() else "copy it again, or repeat the replay"
        return BadInput(f"{path} is truncated or damaged: its Parquet footer cannot be read", instead)
    if not magic:
        return BadInput(f"{path} is empty", "repeat the replay, or copy the file again")
    return BadInput(f"{path} is not a Parquet file", "give a trace that rip replay wrote")


def damaged(path: Path, error: Exception) -> BadInput:
    """The error for a file whose footer is whole and whose data are not."""
    return BadInput(f"{path} is damaged: {str(error).splitlines()[0]}", "copy it again, or repeat the replay")


def _header_text(file: pq.ParquetFile, path: Path) -> bytes:
    text: bytes | None = (file.metadata.metadata or {}).get(HEADER_KEY)
    if text is None:
        raise BadInput(
            f"{path} is a Parquet file, but not a trace: it has no {HEADER_KEY.decode()} metadata",
            "give a trace that rip replay wrote (tools that rewrite one must keep its key-value metadata)",
        )
    return text


def _header(text: bytes, path: Path) -> TraceHeader:
    try:
        raw = parse_json_object(text, str(path))
    except BadInput as error:
        raise BadInput(
            f"{error.message}: its header is damaged", "copy it again, or repeat the replay"
        ) from None
    return TraceHeader.from_object(raw, str(path))


def _kind(kind: pa.DataType) -> str:
    """What a column holds, named alike for all widths and encodings of it."""
    if pa.types.is_dictionary(kind):
        return _kind(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"lists of {_kind(kind.value_type)}"
    if pa.types.is_integer(kind):
        return "integers"
    if pa.types.is_floating(kind):
        return "floats"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    return "records" if pa.types.is_struct(kind) else str(kind)


def _part(path: Path, file: pq.ParquetFile, header: TraceHeader, own: TraceHeader) -> Part:
    schema = file.schema_arrow  # made anew at every access
    names = set(schema.names)
    optional = {"tensors"} if names & SITE_COLUMNS else {"tensors", *SITE_COLUMNS}
    missing = [column.name for column in COLUMNS if column.name not in names | optional | LATER_COLUMNS]
    if missing:
        raise BadInput(
            f"{path} is not a whole trace: the column {missing[0]!r} is missing",
            "give a trace that rip replay wrote",
        )
    for field_ in arrow_schema(len(own.sites), keeps_tensors=True):
        found = _kind(schema.field(field_.name).type) if field_.name in names else None
        if found not in (None, _kind(field_.type)):
            raise BadInput(
                f"{path} is not a trace: its column {field_.name!r} holds {found}, not {_kind(field_.type)}",
                "give a trace that rip replay wrote",
            )
    columns = [file.schema.column(index) for index in range(len(file.schema))]
    leaves = {
        column.path.partition(".")[0]: (index, (column.max_definition_level, column.max_repetition_level))
        for index, column in enumerate(columns)
    }
    if not names & SITE_COLUMNS:
        return Part(path, file, np.full(len(header.sites), -1), 0, leaves)
    stored = schema.field("site_hash").type
    if pa.types.is_fixed_size_list(stored) and stored.list_size != len(own.sites):
        raise BadInput(
            f"{path} is not a whole trace: its header names {len(own.sites)} sites, its columns hold "
            f"{stored.list_size}",
            "give a trace that rip replay wrote",
        )
    index_of = {site_key(site): index for index, site in enumerate(own.sites)}
    columns_of = np.array([index_of.get(site_key(site), -1) for site in header.sites], dtype=np.int64)
    return Part(path, file, columns_of, len(own.sites), leaves)


Lists = tuple[np.ndarray, np.ndarray]
"""int64[N] lengths (0: no list), and the items of all lists, one behind the other."""
NO_TOKEN = -1


@dataclass(frozen=True)
class Candidates:
    """The top-K of N rows, best first."""

    ids: np.ndarray  # int32[N, K]; NO_TOKEN where a row has fewer
    logits: np.ndarray  # float32[N, K]
    logprobs: np.ndarray  # float32[N, K]
    has_ids: np.ndarray  # bool[N]
    has_logits: np.ndarray  # bool[N]
    has_logprobs: np.ndarray  # bool[N]

    @classmethod
    def of_lists(cls, ids: Lists, logits: Lists, logprobs: Lists) -> Candidates:
        """From lists as Parquet has them: the length of each row's list, and all items."""
        width = int(ids[0].max(initial=0))
        matrices = [
            _padded(lists, fill, dtype, width)
            for lists, fill, dtype in (
                (ids, NO_TOKEN, np.int32),
                (logits, np.nan, np.float32),
                (logprobs, np.nan, np.float32),
            )
        ]
        has = [lists[0] > 0 for lists in (ids, logits, logprobs)]
        return cls(matrices[0], matrices[1], matrices[2], has[0], has[1] & has[0], has[2] & has[0])

    @classmethod
    def none(cls, count: int) -> Candidates:
        """Rows without candidates."""
        nothing = np.zeros(count, np.int64), np.empty(0, np.float32)
        return cls.of_lists(nothing, nothing, nothing)

    @classmethod
    def joined(cls, pieces: list[Candidates]) -> Candidates:
        """Rows one after the other; narrower pieces are filled up."""
        if len(pieces) < 2:
            return pieces[0] if pieces else cls.none(0)
        width = max(piece.ids.shape[1] for piece in pieces)
        fills = {"ids": NO_TOKEN, "logits": np.nan, "logprobs": np.nan}
        columns: dict[str, np.ndarray] = {}
        for name in cls.__dataclass_fields__:
            parts = [getattr(piece, name) for piece in pieces]
            if name in fills:
                parts = [
                    part
                    if part.shape[1] == width
                    else np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=fills[name])
                    for part in parts
                ]
            columns[name] = np.concatenate(parts)
        return cls(**columns)

    def rows(self, first: int, stop: int) -> Candidates:
        """Some of the rows."""
        return Candidates(*(getattr(self, name)[first:stop] for name in self.__dataclass_fields__))

    def margins(self) -> np.ndarray:
        """float32[N]: top-1 minus top-2 raw logit, of logprobs where there are no logits."""
        if self.ids.shape[1] < 2:
            return np.full(len(self.ids), np.nan, np.float32)
        values = np.where(self.has_logits[:, None], self.logits[:, :2], self.logprobs[:, :2])
        with np.errstate(invalid="ignore"):
            return np.where(self.ids[:, 1] == NO_TOKEN, np.float32(np.nan), values[:, 0] - values[:, 1])

    def logprob_of(self, tokens: np.ndarray) -> np.ndarray:
        """float32[N]: log-probability of one token a row; NaN where it is not among the candidates."""
        if not self.ids.size:
            return np.full(len(tokens), np.nan, np.float32)
        known = self.has_ids & (tokens != NO_TOKEN)
        first = known & (self.ids[:, 0] == tokens)  # mostly: the likeliest candidate is next
        found = np.where(first, self.logprobs[:, 0], np.float32(np.nan))
        rows = np.flatnonzero(known & ~first)
        if len(rows):
            hit = self.ids[rows] == tokens[rows, None]
            rank = hit.argmax(axis=1)
            found[rows] = np.where(hit.any(axis=1), self.logprobs[rows, rank], np.float32(np.nan))
        return found


def _padded(lists: Lists, fill: float, dtype: type, width: int) -> np.ndarray:
    """Lists as a matrix [N, width], filled up at the right."""
    lengths, items = lists
    items = items.astype(dtype, copy=False)
    if len(items) == len(lengths) * width and np.all(lengths == width):
        return items.reshape(len(lengths), width)
    matrix: np.ndarray = np.full((len(lengths), width), fill, dtype)
    filled = lengths > 0
    if np.all(lengths[filled] == width):
        matrix[filled] = items.reshape(-1, width)
    else:
        longest = int(lengths.max(initial=0))
        wide: np.ndarray = np.full((len(lengths), longest), fill, dtype)
        wide[np.arange(longest) < lengths[:, None]] = items
        matrix[:, : min(longest, width)] = wide[:, :width]
    return matrix
