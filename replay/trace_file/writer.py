"""The trace writer: bounded memory while a run goes on, one whole Parquet file at its end.

Rows of several sequences arrive interleaved. They are buffered per sequence; when the buffer is full,
or some seconds have passed, everything buffered is written as one part into `OUT.parquet.parts/`. The
end of the run puts the parts in order under the final name. A run that dies leaves the parts, which
`rip query` and `rip diverge` read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.errors import OutputFailed
from ...schemas.trace import HEADER_KEY, PARTS_SUFFIX, TraceHeader, arrow_schema, parquet_options
from ..row_summaries.trace_rows import Rows
from .lock import OutputLock
from .rows_table import SequenceInfo, table_of

__all__ = ["SequenceInfo", "TraceWriter"]

FLUSH_BYTES = 64 << 20
"""Buffered site summaries at which a part is written."""
FLUSH_SECONDS = 8.0
"""Longest time that a row waits here before the next one that arrives takes it to disk. Engines hand
rows over every second or two: together that stays within the ten seconds that the README promises."""
ROW_GROUP_BYTES = 64 << 20


class TraceWriter:
    """Writes one trace, and is the only one to do so until `finish`, `abandon` or `close`.

    Args:
        path: Final name. It appears only when the trace is whole.
        header: The header as far as it is known; `finish` takes the final one.
        keeps_tensors: Whether rows carry kept tensors.
        force: Replace a trace of that name, and remove at once the parts that an earlier run left.

    Raises:
        OutputFailed: At once, where another writer has that name or parts are there without `force`. On any
            write, when the disk is full or the folder is not writable.
    """

    def __init__(
        self, path: Path, header: TraceHeader, keeps_tensors: bool = False, force: bool = False
    ) -> None:
        self.path = path
        self._force = force
        self.parts = path.with_name(path.name + PARTS_SUFFIX)
        self._header = header
        self._told: TraceHeader | None = None
        """The header that the parts folder holds."""
        self._schema = arrow_schema(len(header.sites), keeps_tensors)
        self._options = parquet_options(self._schema)
        self._buffered: dict[int, list[pa.Table]] = defaultdict(list)
        self._buffered_rows = 0
        self._bytes = 0
        self._part_count = 0
        self._places: list[tuple[int, int, int, int]] = []
        """(sequence, first position, part, row group) of everything flushed."""
        self._flushed_at = time.monotonic()
        self.rows_written = 0
        """Rows that are in a file by now."""
        self.is_torn = False
        """Rows are being taken over: interrupted here, they may be missing, and none may follow them."""
        self._lock = OutputLock(path, force)
        try:
            if self.parts.exists():
                shutil.rmtree(self.parts)
        except OSError as error:
            raise self._write_failed(error) from None

    def update(self, header: TraceHeader) -> None:
        """What is known by now, its sites unchanged: parts that are flushed from here on say so."""
        self._header = header

    def append(self, info: SequenceInfo, rows: Rows) -> None:
        """Take over consecutive rows of one sequence."""
        self.is_torn = True
        table = table_of(self._schema, info, rows)
        self._buffered[rows.sequence].append(table)
        self._buffered_rows += table.num_rows
        self._bytes += table.nbytes
        self.is_torn = False
        if self._bytes > FLUSH_BYTES or time.monotonic() - self._flushed_at > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write everything buffered as one part."""
        self._flushed_at = time.monotonic()
        news = self._header is not self._told and bool(self._header.results)
        if not self._buffered and not news:
            return
        part = self._part(self._part_count)
        unfinished = self.parts / f".{part.name}.unfinished"
        try:
            if not self._part_count:
                self.parts.mkdir(mode=0o700, exist_ok=True)
            if self._header is not self._told:
                about = self.parts / "header.json"
                _write_private(about.with_name(".header.json"), self._header.to_json())
                about.with_name(".header.json").rename(about)
                self._told = self._header
            with _parquet_writer(unfinished, self._schema, self._options, self._header) as writer:
                places: list[tuple[int, int, int, int]] = []
                for sequence in sorted(self._buffered):
                    for group in _row_groups(iter(self._buffered[sequence])):
                        places.append((sequence, group["position"][0].as_py(), self._part_count, len(places)))
                        writer.write_table(group, row_group_size=group.num_rows)
            unfinished.rename(part)
        except OSError as error:
            raise self._write_failed(error) from None
        finally:
            _discard(unfinished)  # there only if this was interrupted or failed
            if not self._part(0).exists():
                shutil.rmtree(self.parts, ignore_errors=True)
                self._told = None
        self._places += places
        self._part_count += 1
        self._settle()

    def finish(self, header: TraceHeader) -> Path:
        """Write the whole trace under its final name and remove the parts."""
        unfinished = self.path.with_name(f".{self.path.name}.unfinished")
        if self._part_count:
            self.flush()
        try:
            with _parquet_writer(unfinished, self._schema, self._options, header) as writer:
                for group in _row_groups(self._pieces()):
                    writer.write_table(group, row_group_size=group.num_rows)
            if self._force:
                unfinished.replace(self.path)
            else:
                _publish(unfinished, self.path)
        except FileExistsError:
            raise self._taken() from None
        except OSError as error:
            raise self._write_failed(error) from None
        finally:
            _discard(unfinished)
        self._settle()
        if self._part_count:
            shutil.rmtree(self.parts, ignore_errors=True)
        self.close()
        return self.path

    def abandon(self) -> Path | None:
        """Keep what there is after an interruption: the parts folder, or None where no row was made.

        Where even that cannot be written, the parts written before stay.
        """
        with contextlib.suppress(OutputFailed):
            self.flush()
        self.close()
        return self.parts if self._kept_parts() else None

    def close(self) -> None:
        """Let others write under this name. Nothing is written after that."""
        self._lock.release()

    def _settle(self) -> None:
        """What was buffered is in a file."""
        self.rows_written += self._buffered_rows
        self._buffered.clear()
        self._buffered_rows = self._bytes = 0

    def _part(self, index: int) -> Path:
        return self.parts / f"part-{index:05d}.parquet"

    def _pieces(self) -> Iterator[pa.Table]:
        """All rows in the order of the trace: by sequence, then position."""
        if not self._part_count:
            for sequence in sorted(self._buffered):
                yield from self._buffered[sequence]
            return
        for _, _, index, group in sorted(self._places):
            # Opened one at a time: a run of some hours leaves more parts than a process may have open.
            with pq.ParquetFile(self._part(index), page_checksum_verification=True) as file:
                yield file.read_row_group(group).cast(self._schema)

    def _write_failed(self, error: OSError) -> OutputFailed:
        kept = self._kept_parts()
        said = f"; {kept} whole parts are kept in {self.parts}" if kept else ""
        fix = "free disk space, or write the trace to another folder"
        if kept < self._part_count:
            said = f"; {self._part_count - kept} parts vanished from {self.parts}{said}"
            fix = "leave that folder alone while a run goes on, and run the command again"
        return OutputFailed(f"{self.path} could not be written: {error.strerror or error}{said}", fix)

    def _taken(self) -> OutputFailed:
        kept = self.abandon()
        return OutputFailed(
            f"{self.path} appeared while this run was recording, and was left alone"
            + (f"; {self.rows_written} rows are kept in {kept}" if kept else ""),
            "choose another name, or overwrite it with --force",
        )

    def _kept_parts(self) -> int:
        """Parts that are really there: another hand may have removed them."""
        return sum(self._part(index).exists() for index in range(self._part_count))


def _row_groups(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Gather pieces, or cut them, into tables of about ROW_GROUP_BYTES."""
    gathered: list[pa.Table] = []
    size = 0
    for whole in pieces:
        most = max(1, ROW_GROUP_BYTES * whole.num_rows // max(whole.nbytes, 1))
        for start in range(0, whole.num_rows, most):
            piece = whole.slice(start, most)
            gathered.append(piece)
            size += piece.nbytes
            if size >= ROW_GROUP_BYTES:
                yield pa.concat_tables(gathered).unify_dictionaries()
                gathered, size = [], 0
    if gathered:
        yield pa.concat_tables(gathered).unify_dictionaries()


@contextlib.contextmanager
def _parquet_writer(
    path: Path, schema: pa.Schema, options: dict[str, Any], header: TraceHeader
) -> Iterator[pq.ParquetWriter]:
    """A writer whose file is whole, header included, when the context ends without an error."""
    _discard(path)
    # Created with its permissions before anything private is in it: a trace holds the prompts.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with pq.ParquetWriter(path, schema, **options) as writer:
        yield writer
        writer.add_key_value_metadata({HEADER_KEY: header.to_json().encode()})


def _publish(unfinished: Path, path: Path) -> None:
    """Give a file its final name. FileExistsError: another one has it."""
    try:
        os.link(unfinished, path)  # unlike a rename, it never replaces a file
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError from None
        unfinished.rename(path)


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(text)


def _discard(path: Path) -> None:
    """Remove what is left of a file that will not become whole."""
    with contextlib.suppress(OSError):  # it may not even exist; the error that led here is the one to report
        path.unlink(missing_ok=True)
