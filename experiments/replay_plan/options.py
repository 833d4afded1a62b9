"""What a replay runs and observes, read from its options: requests, neighbours, sites, positions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.choices import CaptureLevel
from ...schemas.errors import BadInput, stated_option

if TYPE_CHECKING:
    from ...schemas.envelope import Envelope

EVERY_POSITION = range(2**31 - 1)


def recorded_requests(path: Path) -> list[Envelope]:
    """The requests of an envelope, a request set or a trace.

    Raises:
        BadInput: The file holds none.
    """
    from ...schemas.envelope import load_requests

    if path.suffix != ".parquet":
        return load_requests(path)
    from ...replay.request.from_trace import requests_from_trace

    return requests_from_trace(path)


def site_pattern(sites: str | None, capture: CaptureLevel) -> re.Pattern[str] | None:
    """The pattern of `--sites`, which matches everything where it is not stated; None: no site is observed.

    Raises:
        BadInput: No regular expression, or sites are named though none is observed.
    """
    if capture == "tokens":
        if sites is not None:
            raise BadInput("--sites: --capture tokens observes no sites", "leave one of the two out")
        return None
    try:
        return re.compile(sites or "")
    except re.error as error:
        raise BadInput(
            f"--sites {sites!r} is not a regular expression: {error}", r"for example 'layers\.4\.'"
        ) from None


def kept_positions(text: str | None, capture: CaptureLevel) -> range | None:
    """The positions `A:B` whose rows are kept, all where `--positions` is not stated; None: no rows are.

    Raises:
        BadInput: Not a range, or stated though no rows are kept.
    """
    about = stated_option("positions", text)
    if capture != "tensors":
        if text is not None:
            raise BadInput("only --capture tensors keeps rows", "add --capture tensors", about)
        return None
    if text is None:
        return EVERY_POSITION
    match = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
    if not match or int(match[1]) >= int(match[2]):
        raise BadInput("not a range", "give A:B with A smaller than B, for example 57:58", about)
    return range(int(match[1]), int(match[2]))


def read_neighbours(text: str | None) -> tuple[list[Envelope], int]:
    """What runs beside the requests: those of a set, or a number of synthetic ones.

    Raises:
        BadInput: Neither a set nor a number.
    """
    from ...schemas.envelope import load_requests

    if text is None:
        return [], 0
    about = stated_option("neighbours", text)
    if re.fullmatch(r"[+-]?[0-9]+", text):
        if not re.fullmatch(r"[0-9]{1,4}", text):
            raise BadInput("not a number from 0 to 9999", "for example 7", about)
        return [], int(text)
    path = Path(text)
    if not path.exists():
        raise BadInput("cannot be read: no such file", "check the path, or give a number", about)
    return load_requests(path), 0
