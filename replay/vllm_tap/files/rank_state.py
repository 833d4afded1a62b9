"""`state.json` of a rank: who writes into its folder, and whether it still does.

A rank's folder holds `state.json`, `sites.json` and `part-00000000.rip …` (see part_file.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATE, SITES = "state.json", "sites.json"
STATE_BYTES = 8192
"""`state.json` has this size from the start and is overwritten in place: so a full disk can be reported."""

COORDINATES = ("tp_rank", "tp_size", "pp_rank", "pp_size", "dp_rank", "dp_size")
"""Which rank of tensor, pipeline and data parallelism it is, and of how many."""

_NEEDED = (*COORDINATES, "instance", "started", "channel", "row_hash", "sketch", "state", "why")


def read_state(folder: Path) -> dict[str, Any] | None:
    """What a rank's `state.json` says; None for another folder, or one that is just being made."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) and all(name in state for name in _NEEDED) else None


def padded_state(state: Mapping[str, Any]) -> bytes:
    """A rank's state as the bytes of `state.json`; a reason that is too long is cut."""
    text = json.dumps(state)
    if len(text) > STATE_BYTES - 1:
        text = json.dumps({**state, "why": str(state.get("why", ""))[:1000]})
    return text.encode().ljust(STATE_BYTES - 1) + b"\n"


def boot_id() -> str:
    """Tells process ids of one machine's runs apart; short, since it is part of a folder's name."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
    return "unknown"


def is_alive(state: Mapping[str, Any]) -> bool | None:
    """Whether the process that wrote this state still runs; None where that cannot be known from here."""
    pid = state.get("pid")
    if state.get("boot_id") != boot_id() or not isinstance(pid, int) or pid <= 0:
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
