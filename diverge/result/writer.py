"""Writing the result folder of `rip diverge`: whole, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Self

import pyarrow as pa
import pyarrow.parquet as pq

from ...schemas.errors import OutputFailed
from .tables import SUMMARY_FILE, TABLES, arrow_schema


class ResultWriter:
    """Writes a result folder under a temporary name and renames it when whole.

    Use as a context manager: leaving it by an error removes what was written.
    """

    _ROWS_PER_GROUP: ClassVar[dict[str, int]] = {"tokens": 1 << 14, "sites": 1 << 20}

    def __init__(self, folder: Path, force: bool) -> None:
        """Prepare to write `folder`.

        Raises:
            OutputFailed: It exists and `force` is off, or is not a result folder, or cannot be made.
        """
        if folder.is_symlink():  # what a link leads to is replaced, not the link
            folder = folder.resolve()
        if folder.name in ("", ".."):
            raise OutputFailed(f"{folder} is not a name of a folder", "choose a name, for example result")
        self._folder = folder
        self._unfinished = folder.with_name(f".{folder.name}.unfinished-{os.getpid()}")
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        if folder.exists():
            if not force:
                raise OutputFailed(
                    f"{folder} exists already", "choose a different name, or overwrite it with --force"
                )
            if not folder.is_dir() or (any(folder.iterdir()) and not (folder / SUMMARY_FILE).is_file()):
                raise OutputFailed(
                    f"{folder} is not a result of rip diverge, so it is not overwritten",
                    "choose a different name",
                )
        with self._failures():
            self._unfinished.mkdir(mode=0o700)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        for writer in self._writers.values():
            with suppress(OSError, pa.ArrowInvalid):  # a full disk fails here too
                writer.close()
        self._writers.clear()
        shutil.rmtree(self._unfinished, ignore_errors=True)

    def add(self, table: str, rows: pa.RecordBatch) -> None:
        """Append rows to one of the tables; they are written in row groups of a million rows or less."""
        waiting = self._waiting.setdefault(table, [])
        waiting.append(rows)
        if sum(batch.num_rows for batch in waiting) >= self._ROWS_PER_GROUP.get(table, 1 << 16):
            self._flush(table)

    def finish(self, summary: str) -> None:
        """Write what waits and `summary.json`, and give the folder its name."""
        for table in TABLES:
            self._flush(table)
        with self._failures():
            for writer in self._writers.values():
                writer.close()
            (self._unfinished / SUMMARY_FILE).write_text(summary, encoding="utf-8")
            if self._folder.exists():
                shutil.rmtree(self._folder)
            self._unfinished.rename(self._folder)

    def _flush(self, table: str) -> None:
        schema = arrow_schema(table)
        with self._failures():
            if table not in self._writers:
                path = self._unfinished / f"{table}.parquet"
                self._writers[table] = pq.ParquetWriter(path, schema, **_parquet_options(table))
            waiting = self._waiting.pop(table, [])
            if waiting:
                rows = pa.Table.from_batches(waiting, schema)
                self._writers[table].write_table(rows, row_group_size=max(rows.num_rows, 1))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise OutputFailed(
                f"{self._folder} cannot be written: {why}", "free space or choose a different path"
            ) from None


def _parquet_options(table: str) -> dict[str, object]:
    if table != "sites":
        named = ["request_id", "phase", "side", "cell"]
        return {"compression": "LZ4", "use_dictionary": named, "write_statistics": ["pair", "position"]}
    # Millions of rows where everything differs: plain pages cost least, statistics let readers skip groups.
    return {"compression": "NONE", "use_dictionary": False, "write_statistics": ["pair", "position"]}
