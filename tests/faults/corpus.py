"""Every case of the fault corpus, and the table that a run of it makes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from faults import kinds_cache, kinds_lane, kinds_modules, kinds_real, kinds_sampling
from faults.lab import Case, Seen

NO_FAULT = "no fault"


def all_cases(real_model: bool) -> Iterator[Case]:
    """Planted faults, then pairs without one.

    Args:
        real_model: Also those on SmolLM2.
    """
    for family in (kinds_modules, kinds_cache, kinds_sampling, kinds_lane):
        yield from family.cases()
    if real_model:
        yield from kinds_real.cases()
    yield from kinds_lane.no_fault()


def by_kind(real_model: bool = False) -> dict[str, list[Case]]:
    """The cases of each kind, in their order; pairs without a fault come last."""
    found: dict[str, list[Case]] = {}
    for case in all_cases(real_model):
        found.setdefault(case.kind, []).append(case)
    found[NO_FAULT] = found.pop(NO_FAULT)
    return found


def is_right(seen: Seen) -> bool:
    """What must hold in every case."""
    if not seen.case.causes:
        return seen.quiet and not seen.changed
    return seen.changed and seen.site_exact is not False and seen.label_within(3)


def table(seen: Iterable[Seen]) -> str:
    """A Markdown table of kinds: cases, exact sites, labels ranked first and among the first three."""
    rows = [
        "| kind | cases | models | site exact | label first | label in three |",
        "|---|---|---|---|---|---|",
    ]
    kinds: dict[str, list[Seen]] = {}
    for one in seen:
        kinds.setdefault(one.case.kind, []).append(one)
    faults = [one for found in kinds.values() for one in found if one.case.causes]
    for kind, found in kinds.items():
        if kind != NO_FAULT:
            rows.append(_row(kind, found))
    rows.append(_row(f"**all {len(kinds) - (NO_FAULT in kinds)} kinds**", faults))
    pairs = kinds.get(NO_FAULT, [])
    quiet = sum(is_right(one) for one in pairs)
    return "\n".join([*rows, "", f"Without a fault: {len(pairs)} pairs, {len(pairs) - quiet} alarms."])


def _row(name: str, found: list[Seen]) -> str:
    sites = [one.site_exact for one in found if one.site_exact is not None]
    exact = f"{sum(sites)} of {len(sites)}" if sites else "–"
    first, three = (sum(one.label_within(places) for one in found) for places in (1, 3))
    models = len({one.case.model for one in found})
    return (
        f"| {name} | {len(found)} | {models} | {exact} | {first} of {len(found)} | {three} of {len(found)} |"
    )
