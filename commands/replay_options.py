"""What the options of `rip replay` ask for: read, and checked one by one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..schemas.errors import BadInput

if TYPE_CHECKING:
    from ..schemas.envelope import Envelope

EVERY_POSITION = range(2**31 - 1)


def recorded_requests(path: Path) -> list[Envelope]:
    """The requests of an envelope, a request set or a trace.

    Raises:
        BadInput: The file holds none.
    """
    from ..schemas.envelope import load_requests

    if path.suffix != ".parquet":
        return load_requests(path)
    from ..replay.request.from_trace import requests_from_trace

    return requests_from_trace(path)


def check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise BadInput(f"{option} {value}: no such choice", f"choose one of: {', '.join(choices)}")


def site_pattern(sites: str | None, level: str) -> re.Pattern[str] | None:
    if level == "tokens":
        if sites is not None:
            raise BadInput("--sites: --capture tokens observes no sites", "leave one of the two out")
        return None
    try:
        return re.compile(sites or "")
    except re.error as error:
        raise BadInput(
            f"--sites {sites!r} is not a regular expression: {error}", r"for example 'layers\.4\.'"
        ) from None


def kept_positions(text: str | None, level: str) -> range | None:
    if level != "tensors":
        if text is not None:
            raise BadInput("--positions: only --capture tensors keeps rows", "add --capture tensors")
        return None
    if text is None:
        return EVERY_POSITION
    match = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
    if not match or int(match[1]) >= int(match[2]):
        raise BadInput(
            f"--positions {text}: not a range", "give A:B with A smaller than B, for example 57:58"
        )
    return range(int(match[1]), int(match[2]))


def read_neighbours(text: str | None) -> tuple[list[Envelope], int]:
    """What runs beside the requests: those of a set, or a number of synthetic ones.

    Raises:
        BadInput: Neither a set nor a number.
    """
    from ..schemas.envelope import load_requests

    if text is None:
        return [], 0
    if re.fullmatch(r"[+-]?[0-9]+", text):
        if not re.fullmatch(r"[0-9]{1,4}", text):
            raise BadInput(f"--neighbours {text}: not a number from 0 to 9999", "for example --neighbours 7")
        return [], int(text)
    return load_requests(Path(text)), 0
