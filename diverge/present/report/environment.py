"""Where the two runs ran: machine, software, model and every setting, as their traces recorded them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...causes.commands import reading
from ..format import listed, plain, shortened

if TYPE_CHECKING:
    from ....schemas.lane import Setting
    from ....schemas.trace import TraceHeader
    from .reading.traces import Source

NOT_RECORDED = "not recorded"
NOT_READ = "trace not read"
SHORT_DIGEST = 12
"""Characters of a digest that are shown; the whole one stands in the appendix."""
LONGEST = 160
"""Characters of a value."""
MAX_DIFFERING = 60
MAX_EQUAL = 80
MAX_VALUES = 4
"""Values of a sampling field that are named where requests have different ones."""

_SAMPLING = "sampling "
"""How the name of a sampling field begins among the settings."""

_ALWAYS = (
    "engine",
    "CPU",
    "CPU instructions in use",
    "GPU",
    "operating system",
    "python",
    "torch",
    "model",
    "dtype",
    "attention",
    "threads",
)
"""Rows that stand there also where they were not recorded; the others only where a side has them."""
_SHOWN_ABOVE = frozenset(
    {
        "engine",
        "engine_version",
        "torch_version",
        "cuda_version",
        "gpu_model",
        "quantization",
        "dtype",
        "attention",
        "attention_backend",
        "threads",
    }
)
"""Settings that a row of the table shows already."""


@dataclass(frozen=True)
class WhereItRan:
    """The table, and the settings that ran with equal values."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    """Name, A, B."""
    equal: list[tuple[str, str]] = field(default_factory=list)
    """Settings of the lane: name and value."""
    sampling: list[tuple[str, str]] = field(default_factory=list)
    """Sampling fields, likewise."""
    unknown: list[str] = field(default_factory=list)
    """What neither trace recorded."""
    left_out: int = 0
    """Settings that are not shown."""


def where_it_ran(sources: tuple[Source, Source]) -> WhereItRan:
    """Read it from the headers of the traces; empty where neither was read."""
    headers = [source.header for source in sources]
    if headers == [None, None]:
        return WhereItRan()
    about = [{} if header is None else _about(header) for header in headers]
    settings = [{} if header is None else _settings(header) for header in headers]
    absent = [NOT_READ if header is None else NOT_RECORDED for header in headers]
    rows = [
        (name, about[0].get(name) or absent[0], about[1].get(name) or absent[1])
        for name in {**about[0], **about[1]}
        if name in _ALWAYS or any(one.get(name) for one in about)
    ]
    names = [name for name in {**settings[0], **settings[1]} if name.replace("-", "_") not in _SHOWN_ABOVE]
    other = [name for name in names if settings[0].get(name) != settings[1].get(name)]
    equal = [(name, settings[0][name]) for name in names if name not in other]
    unknown = [name for name, left, right in rows if {left, right} <= {NOT_RECORDED, NOT_READ}]
    unknown += [name for name, value in equal if value == NOT_RECORDED]
    rows = [row for row in rows if row[0] not in unknown]
    equal = [(name, value) for name, value in equal if name not in unknown]
    lane = [(plain(name), plain(value)) for name, value in equal if not name.startswith(_SAMPLING)]
    sampling = [
        (plain(name.removeprefix(_SAMPLING)), plain(value))
        for name, value in equal
        if name.startswith(_SAMPLING)
    ]
    rows += [
        (name, settings[0].get(name, absent[0]), settings[1].get(name, absent[1]))
        for name in other[:MAX_DIFFERING]
    ]
    return WhereItRan(
        rows=[(plain(name), plain(left), plain(right)) for name, left, right in rows],
        equal=lane[:MAX_EQUAL],
        sampling=sampling[:MAX_EQUAL],
        unknown=[plain(name) for name in unknown],
        left_out=max(len(other) - MAX_DIFFERING, 0)
        + sum(max(len(one) - MAX_EQUAL, 0) for one in (lane, sampling)),
    )


def _about(header: TraceHeader) -> dict[str, str]:
    """Name → what is known of one side, empty where nothing is; the same names for every trace."""

    def fact(section: str, name: str) -> str:
        return _fact(header, section, name)

    def setting(name: str) -> str:
        return _setting(header, name)

    cores, digest = fact("cpu", "logical_cpus"), fact("model", "sha256")
    version = fact("engine", "version") or setting("engine_version")
    model = header.lane.model or ""
    return {
        "engine": f"{header.lane.engine} {version or f'(version {NOT_RECORDED})'}",
        "server": header.lane.url or "",
        "host": fact("replica", "hostname"),
        "CPU": _joined(fact("cpu", "model"), cores and f"{cores} logical CPUs"),
        "CPU instructions in use": fact("cpu", "isa_in_use"),
        "GPU": _gpu(header),
        "GPU driver": fact("driver", "version"),
        "CUDA": fact("libraries", "cuda"),
        "cuBLAS": fact("libraries", "cublas"),
        "operating system": _joined(fact("os", "distribution"), fact("os", "kernel"), fact("os", "machine")),
        "container": fact("os", "container"),
        "python": fact("frameworks", "python"),
        "torch": fact("frameworks", "torch"),
        "transformers": fact("frameworks", "transformers"),
        "model": _joined(model, f"SHA-256 {digest[:SHORT_DIGEST] + '…' if digest else NOT_RECORDED}"),
        "quantization": fact("model", "quantization_method") or setting("quantization"),
        "dtype": setting("dtype") or fact("engine", "dtype"),
        "attention": setting("attention")
        or setting("attention_backend")
        or fact("engine", "attention_backend"),
        "threads": setting("threads") or fact("cpu", "torch_threads"),
    }


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _gpu(header: TraceHeader) -> str:
    """A GPU; `none found` where the probes found none; empty where they did not run."""
    name, count = _fact(header, "gpus", "name_and_compute_capability"), _fact(header, "gpus", "count")
    if name:
        return f"{count} × {name}" if count else name
    looked = None if header.fingerprint is None else header.fingerprint.get("gpus", "name")
    return "" if looked is None else "none found"


def _fact(header: TraceHeader, section: str, name: str) -> str:
    """A reading in words; empty where there is none."""
    found = None if header.fingerprint is None else header.fingerprint.sections.get(section)
    fact = None if found is None else found.facts.get(name) or found.volatile.get(name)
    if fact is None or fact.value is None:
        return ""
    value = fact.value
    if isinstance(value, dict) and "version" in value:  # a package
        value = value["version"]
    return setting_text(value)


def _setting(header: TraceHeader, name: str) -> str:
    """A lane setting in words, however the engine spells it; empty where there is none."""
    for spelled in (name, name.replace("_", "-")):
        value = reading(header.lane.settings[spelled]) if spelled in header.lane.settings else None
        if value is not None:
            return setting_text(value)
    return ""


def _settings(header: TraceHeader) -> dict[str, str]:
    """Lane settings, then sampling fields; of one that differs between requests, some values."""
    found = {name: _shown(setting) for name, setting in header.lane.settings.items()}
    sampling: dict[str, dict[str, None]] = {}
    for request in header.requests:
        for name, setting in request.sampling.items():
            sampling.setdefault(f"{_SAMPLING}{name}", {})[_shown(setting)] = None
    for name, values in sampling.items():
        by_request = ", by request" if len(values) > 1 else ""
        found[name] = listed(list(values), MAX_VALUES) + by_request
    return found


def _shown(setting: Setting) -> str:
    value = reading(setting)
    return NOT_RECORDED if value is None else setting_text(value)


def setting_text(value: object) -> str:
    """A value of a setting, as short as a table takes it."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return shortened(text, LONGEST)
