"""Reading the verdict of a result folder; errors say how to fix the folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schemas.errors import BadInput, NewerVersion
from ...schemas.verdict import Verdict
from .tables import SUMMARY_FILE

if TYPE_CHECKING:
    from pathlib import Path

REPEAT_DIVERGE = "run rip diverge again: the folder is damaged"
"""How to fix any file of a result folder: nobody writes them by hand."""


def read_verdict(folder: Path) -> Verdict:
    """The verdict of a result folder.

    Raises:
        BadInput: There is none, it is damaged, or a newer rip wrote it.
    """
    summary = folder / SUMMARY_FILE
    try:
        return Verdict.from_json(summary.read_bytes(), str(summary))
    except OSError as error:
        raise BadInput(
            f"{folder} is not a result of rip diverge: {summary.name}: {error.strerror}",
            "give the folder that rip diverge wrote with -o",
        ) from None
    except NewerVersion:
        raise
    except BadInput as error:
        raise BadInput(error.message, REPEAT_DIVERGE) from None
