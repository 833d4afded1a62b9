"""Where recordings go: JSONL files of envelopes and the raw answers beside them, written by one thread.

Serving never waits for the disk. Every line is whole: what could not be written to its end is taken back. The
first failure stops the recording for good, and never the serving.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ...schemas.base import exactly_representable
from ...schemas.envelope import Envelope
from ...schemas.errors import BadInput, OutputFailed
from .call import Call
from .exchange import Json

SYNC_EVERY_S = 1.0
"""Lines are handed to the operating system at once and to the disk at most so much later."""
_DIGITS = 6


@dataclass(frozen=True)
class RecordingFiles:
    """The names of a recording's files.

    Attributes:
        first: The first JSONL file.
        raw: Folder of raw answers.
    """

    first: Path
    raw: Path

    @classmethod
    def of(cls, out: Path) -> RecordingFiles:
        """The files that `-o` names: a `.jsonl` file, or a folder.

        Raises:
            OutputFailed: A file that exists already, or a folder where nothing can be written.
        """
        is_file = out.suffix == ".jsonl"
        folder = out.absolute().parent
        if is_file and out.exists():
            raise OutputFailed(
                f"{out} exists already",
                "choose a different name, or give a folder: it takes one recording after another",
            )
        if out.exists() and not out.is_dir():
            raise OutputFailed(f"{out} exists and is not a folder", "give a folder or a new .jsonl file")
        if not folder.is_dir():
            raise OutputFailed(f"{folder} is not a folder", f"create it: mkdir -p {folder}")
        if is_file:
            return cls(out, out.with_suffix(".raw"))
        try:
            out.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise OutputFailed(f"{out}: {error.strerror}", "choose a different folder") from None
        return cls(out / "requests.jsonl", out / "raw")

    def numbered(self, number: int) -> Path:
        """The file of that number: `NAME.jsonl`, `NAME.000001.jsonl`, …"""
        if number == 0:
            return self.first
        return self.first.with_name(f"{self.first.stem}.{number:0{_DIGITS}}.jsonl")

    def free_number(self) -> int:
        """The first number above all that are taken."""
        taken = [path.name.split(".")[-2] for path in self.first.parent.glob(f"{self.first.stem}.*.jsonl")]
        numbers = [int(text) for text in taken if text.isdecimal() and len(text) == _DIGITS]
        return max(numbers, default=0) + 1 if numbers or self.first.exists() else 0


@dataclass
class Written:
    """What a recording has written so far."""

    envelopes: int = 0
    calls: int = 0
    unrecordable: int = 0
    """Calls that no envelope can hold."""
    without_ids: Counter[str] = field(default_factory=Counter)
    """Envelopes of whole answers without token ids, by the reason."""
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class StoreOptions:
    """What is kept of a call, and how.

    Attributes:
        identity: Hashes of the model, for every envelope.
        is_secret: Whether a field of that name holds a secret.
        rotate_bytes: Size beyond which the next file is started; None: never.
        redact: `text` or `ids`, as `rip envelope create --redact`; None: nothing.
        keep_raw: Keep the bytes of answers.
    """

    identity: Json
    is_secret: Callable[[str], bool]
    rotate_bytes: int | None = None
    redact: str | None = None
    keep_raw: bool = True


class Store:
    """Writes calls in the order they end.

    Args:
        report: Called with a sentence when something goes wrong.
    """

    def __init__(self, files: RecordingFiles, options: StoreOptions, report: Callable[[str], None]) -> None:
        """Create the first file.

        Raises:
            OutputFailed: It cannot be created.
        """
        self.written = Written()
        self.stopped = False
        """Nothing is recorded any more, because something could not be written."""
        self._files, self._options, self._report = files, options, report
        self._keep_raw = options.keep_raw and options.redact is None
        self._ids: set[int] = set()
        self._number = self._run = files.free_number()
        self.held_bytes = 0
        """Memory taken by calls that wait for the disk."""
        self._unsynced = False
        self._synced = time.monotonic()
        self._reported_unrecordable = False
        try:
            self._file = self._created(files.numbered(self._number))
        except OSError as error:
            raise OutputFailed(
                f"{files.numbered(self._number)} could not be created: {error.strerror}",
                "choose a different one with -o",
            ) from None
        self._size = 0
        self._waiting: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="rip-record", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """The file that is being written."""
        return self._files.numbered(self._number)

    def add(self, call: Call) -> None:
        """Hand over a call that has ended; returns at once."""
        with self._lock:
            self.held_bytes += call.held_bytes
        self._waiting.put(call)

    def keep_document(self, name: str, text: str) -> None:
        """Write a document beside the recording, unless it is there already."""
        path = self._files.first.with_name(
            name if self._files.first.name == "requests.jsonl" else f"{self._files.first.stem}.{name}"
        )
        try:
            with os.fdopen(_open_new(path), "wb") as file:
                file.write(text.encode())
        except FileExistsError:
            return
        except OSError as error:
            self._report(f"{path} could not be written: {error.strerror}")

    def close(self) -> None:
        """Write everything that waits, hand it to the disk, and close."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            try:
                call = self._waiting.get(timeout=SYNC_EVERY_S if self._unsynced else None)
            except queue.Empty:
                self._guarded(self._sync)
                continue
            if call is None:
                self._guarded(self._finish)
                return
            held = call.held_bytes
            if not self.stopped:
                self._guarded(lambda call=call: self._write(call))  # type: ignore[misc]
            with self._lock:
                self.held_bytes -= held

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # a full disk, or a fault of rip: neither may stop the serving
            if not self.stopped:
                self.stopped = True
                why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
                self._report(
                    f"recording stopped: {self.path}: {why}; what was written before is kept "
                    f"(envelopes: {self.written.envelopes}), requests are still passed on"
                )

    def _write(self, call: Call) -> None:
        if self._keep_raw and call.answer_bytes:
            call.raw_name = self._write_raw(call)
        try:
            envelopes = list(call.envelopes(self._unique, self._options.identity, self._options.is_secret))
            lines = [
                json.dumps(
                    exactly_representable(self._redacted(envelope).to_object()), ensure_ascii=False
                ).encode()
                + b"\n"
                for envelope in envelopes
            ]
        except (BadInput, UnicodeEncodeError) as error:
            self.written.unrecordable += 1
            if not self._reported_unrecordable:
                self._reported_unrecordable = True
                reason = error.message if isinstance(error, BadInput) else "text with half a character"
                self._report(f"not recorded: {reason} (reported once; the summary counts them)")
            return
        if self._options.rotate_bytes is not None and self._size >= self._options.rotate_bytes:
            self._rotate()
        for envelope, line in zip(envelopes, lines, strict=True):
            self._write_line(line)
            if envelope.expected is not None and envelope.expected.token_ids is None:
                self.written.without_ids[call.why_plain or "the upstream returned none"] += 1
        self.written.calls += 1
        if time.monotonic() - self._synced >= SYNC_EVERY_S:
            self._sync()

    def _redacted(self, envelope: Envelope) -> Envelope:
        redact = self._options.redact
        return envelope if redact is None else envelope.redacted(keep_token_ids=redact == "text")

    def _write_line(self, line: bytes) -> None:
        try:
            done = 0
            while done < len(line):
                count = os.write(self._file, line[done:])
                if not count:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                done += count
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)
        self._unsynced = True
        self.written.envelopes += 1
        self.written.bytes += len(line)

    def _write_raw(self, call: Call) -> str:
        self._files.raw.mkdir(mode=0o700, exist_ok=True)
        ending = "sse" if call.streamed else "body"
        path = self._files.raw / f"{self._run:0{_DIGITS}}-{call.number:08}.{ending}.gz"
        packed = call.packed()
        descriptor = _open_new(path)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(packed)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self.written.bytes += len(packed)
        return f"{self._files.raw.name}/{path.name}"

    def _unique(self, name: str) -> str:
        """The name, or the name with a number behind it that no envelope of this recording has."""
        candidate, count = name, 1
        while hash(candidate) in self._ids:
            count += 1
            candidate = f"{name}~{count}"
        self._ids.add(hash(candidate))
        return candidate

    def _rotate(self) -> None:
        self._sync()
        os.close(self._file)
        self._number += 1
        self._file = self._created(self.path)
        self._size = 0

    def _created(self, path: Path) -> int:
        descriptor = _open_new(path)
        self.written.files += 1
        return descriptor

    def _sync(self) -> None:
        self._unsynced = False
        self._synced = time.monotonic()
        os.fsync(self._file)

    def _finish(self) -> None:
        if self._unsynced:
            self._sync()
        os.close(self._file)


def _open_new(path: Path) -> int:
    """A file that did not exist, readable by its owner only.

    Raises:
        OSError: It exists, or cannot be created.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
