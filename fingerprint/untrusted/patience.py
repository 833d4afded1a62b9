"""How long to wait on a machine that is busy: a limit is for what hangs, not for what gets no processor."""

from __future__ import annotations

import os

MOST = 8.0
"""The longest wait, in limits: whatever the load, a command ends."""


def crowding() -> float:
    """How many programs share a processor, at least 1 and at most `MOST`."""
    try:
        load = os.getloadavg()[0]
        processors = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):  # not on this system: nothing is known of its load
        return 1.0
    return min(max(load / max(processors, 1), 1.0), MOST)


def patience(limit_s: float) -> float:
    """Seconds to wait for what takes at most `limit_s` on an idle machine."""
    return limit_s * crowding()
