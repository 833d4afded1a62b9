"""How a worker is observed, as the environment variables RIP_TAP… say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_MAX_MB = 4096
DEFAULT_TOPK = 20


@dataclass(frozen=True)
class TapSettings:
    """How a worker is observed.

    Attributes:
        folder: RIP_TAP: where every rank makes a folder of its own.
        sites: RIP_TAP_SITES: only sites whose label matches this pattern; None: all.
        most_bytes: RIP_TAP_MAX_MB: most that this rank's folder may hold; reaching it ends the observation.
        topk: RIP_TAP_TOPK: K of the distributions; 0: only the logits' hash.
        only_keyed: RIP_TAP_ONLY_ASKED=1: requests that do not carry `rip_tap` are not observed.
    """

    folder: Path
    sites: re.Pattern[str] | None = None
    most_bytes: int = DEFAULT_MAX_MB << 20
    topk: int = DEFAULT_TOPK
    only_keyed: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> TapSettings:
        """Read the variables.

        Raises:
            ValueError: One of them does not say what it should, in a sentence.
        """
        pattern = environment.get("RIP_TAP_SITES", "")
        try:
            sites = re.compile(pattern) if pattern else None
        except re.error as error:
            raise ValueError(f"RIP_TAP_SITES={pattern!r} is no regular expression: {error}") from None
        return cls(
            folder=Path(environment["RIP_TAP"]).absolute(),
            sites=sites,
            most_bytes=_whole(environment, "RIP_TAP_MAX_MB", DEFAULT_MAX_MB, 1) << 20,
            topk=_whole(environment, "RIP_TAP_TOPK", DEFAULT_TOPK, 0),
            only_keyed=environment.get("RIP_TAP_ONLY_ASKED", "") not in ("", "0"),
        )


def _whole(environment: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ValueError(f"{name}={text!r} must be a whole number of at least {least}")
    return value
