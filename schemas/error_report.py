"""How a rip process that another one started reports its error as data, beside the words on its stderr."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from typing import NamedTuple

from .errors import RipError

VARIABLE = "RIP_ERROR_REPORT"
"""Environment variable with the number of the file descriptor that the report goes to."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class ErrorReport(NamedTuple):
    """The error that ended a process.

    Attributes:
        kind: Name of the error's class, such as `BadInput`.
        message: What is wrong.
        fix: How to fix it.
        disk_full: A full disk is why, wherever it was met.
    """

    kind: str
    message: str
    fix: str
    disk_full: bool


def report_error(error: Exception, message: str, fix: str) -> None:
    """Write the report, where whoever started this process wants one."""
    descriptor = os.environ.pop(VARIABLE, "")
    if not descriptor.isdecimal():
        return
    kind = type(error).__name__ if isinstance(error, RipError) else "unexpected"
    report = ErrorReport(kind, message, fix, _is_disk_full(error))
    with suppress(OSError):  # the words on stderr remain
        os.write(int(descriptor), json.dumps(report._asdict()).encode())


def read_report(content: bytes) -> ErrorReport | None:
    """The report that a process wrote; None: it wrote none, or not a whole one."""
    try:
        return ErrorReport(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _is_disk_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return True
        error = error.__cause__ or error.__context__
    return False
