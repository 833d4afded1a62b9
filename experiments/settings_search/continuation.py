"""How a search relates to the earlier one of its folder, as data: what it keeps, and what has changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...schemas.narrow import Narrow


@dataclass(frozen=True)
class Continuation:
    """What a search keeps of the earlier one of its folder.

    Attributes:
        kind: `continued`: all runs, as it is the same search. `good lane kept`: its runs, as only the bad
            lane has changed. `started over`: nothing, as no run succeeded.
        runs: How many are kept.
    """

    kind: Literal["continued", "good lane kept", "started over"]
    runs: int = 0


@dataclass(frozen=True)
class SearchChange:
    """Something in which a search differs from the earlier one.

    Attributes:
        kind: `value`: of a varied setting, on one side. `fixed setting`: one that is not varied. `options`:
            `--capture` or `--allow-drift`. `version`: of rip.
        name: Of the setting.
        side: The lane.
        before: Value, or version, of the earlier search; None: not stated.
        now: Likewise.
    """

    kind: Literal[
        "requests", "varied now", "no longer varied", "value", "fixed setting", "options", "version"
    ]
    name: str = ""
    side: Literal["good", "bad"] = "good"
    before: str | None = None
    now: str | None = None


def unchanged_parts(earlier: Narrow, new: Narrow) -> set[str]:
    """Names of the parts (`requests`, `options`, `good`, …) that both searches share."""
    before = earlier.digests or {}
    return {name for name, part in (new.digests or {}).items() if before.get(name) == part}


def changes(earlier: Narrow, new: Narrow) -> list[SearchChange]:
    """What has changed since the earlier search, the requests first."""
    same = unchanged_parts(earlier, new)
    found: list[SearchChange] = []
    if "requests" not in same:
        found.append(SearchChange("requests"))
    before, now = ({one.name: one for one in search.varied} for search in (earlier, new))
    for name in dict.fromkeys((*before, *now)):
        if name not in before:
            found.append(SearchChange("varied now", name))
        elif name not in now:
            found.append(SearchChange("no longer varied", name))
        else:
            was, is_now = before[name], now[name]
            if was.good != is_now.good:
                found.append(SearchChange("value", name, "good", was.good, is_now.good))
            if was.bad != is_now.bad:
                found.append(SearchChange("value", name, "bad", was.bad, is_now.bad))
    if not found and not {"good", "bad"} <= same:
        found.append(SearchChange("fixed setting"))
    if "options" not in same:
        found.append(SearchChange("options"))
    if earlier.tool_version != new.tool_version:
        found.append(SearchChange("version", before=earlier.tool_version, now=new.tool_version))
    return found
