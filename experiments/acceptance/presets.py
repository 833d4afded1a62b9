"""Plans to start from: the three rounds of an acceptance, and the acceptance test of an offline engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ...schemas.choices import Level
from ...schemas.errors import BadInput
from .dimensions import DIMENSIONS


@dataclass(frozen=True)
class _Part:
    """A claim of a preset, with the dimensions that it varies."""

    claim: str
    level: Level
    varied: Sequence[str]
    note: str


PRESETS: dict[str, Sequence[_Part]] = {
    "round-1": (
        _Part("repeats", "bitwise", ("repeat",), "the same process gives the same bits again"),
        _Part("restarts", "bitwise", ("restart",), "so does a new one"),
    ),
    "round-2": (
        _Part(
            "batch-invariant",
            "bitwise",
            ("batch_size", "order", "neighbours", "neighbour_length", "neighbour_content", "arrival"),
            "no answer depends on what shares the machine with it",
        ),
        _Part(
            "cache-invariant",
            "bitwise",
            ("cache", "chunked_prefill"),
            "no answer depends on what was computed before, nor in which pieces",
        ),
    ),
    "round-3": (_Part("upgrade", "token", ("lane",), "the candidate gives the tokens of what serves now"),),
    "vendor": (
        _Part("alone-and-batched", "bitwise", ("batch_size",), "64 sequences alone and as one batch"),
    ),
}
"""Name → its claims."""

_CONTROL = {"hf": "dtype", "vllm": "dtype", "sglang": "dtype", "llama.cpp": "threads"}
"""Engine → what a negative control varies: something that must change bits."""


@dataclass(frozen=True)
class Start:
    """What a new plan is made of.

    Attributes:
        requests: As the plan will name it.
        lane: TOML lines of the lane, or of both lanes for `round-3`, by name.
    """

    preset: str
    requests: str
    engine: str
    lanes: dict[str, dict[str, object]]


def write_plan(start: Start) -> str:
    """A commented plan, as TOML.

    Raises:
        BadInput: No such preset, or one that needs a second lane.
    """
    parts = PRESETS.get(start.preset)
    if parts is None:
        raise BadInput(f"there is no preset {start.preset!r}", f"choose one of: {', '.join(PRESETS)}")
    if start.preset == "round-3" and len(start.lanes) < 2:
        raise BadInput(
            "round-3 compares two lanes", "give what serves now and the candidate: --lane A --lane B"
        )
    lines = [
        f"# An acceptance plan, from the preset {start.preset}. rip matrix plan FILE shows its cells;",
        "# rip matrix run FILE -o FOLDER runs them. Paths start from the folder of this file.",
        f"requests = {json.dumps(start.requests)}",
        "rounds = 2                # A1 B1 A2 B2: a lane that does not repeat itself shows as noise",
    ]
    if start.preset == "vendor":
        lines.append(
            'mode = "golden-decode"    # recorded tokens are forced, so that every step stays comparable'
        )
    for name, lane in start.lanes.items():
        lines += ["", f"[lanes.{_key(name)}]", *_table(lane)]
    varied = dict.fromkeys(
        name for part in parts for name in part.varied if DIMENSIONS[name].fits(start.engine)
    )
    for name in varied:
        lines += ["", "[[vary]]", *_variation(name, start)]
    control = _CONTROL.get(start.engine)
    first = next(iter(start.lanes))
    if control is not None and control not in varied:
        lines += [
            "",
            "[[vary]]                  # of the negative control",
            *_variation(control, start, first),
        ]
    for part in parts:
        names = [name for name in part.varied if name in varied]
        if names:
            lines += ["", "[[claims]]", f"id = {json.dumps(part.claim)}", f"level = {json.dumps(part.level)}"]
            lines += [f"varied = {json.dumps(names)}", f"note = {json.dumps(part.note)}"]
    if control is not None:
        lines += ["", "[[claims]]                # it must fail: else the plan could not see a difference"]
        lines += ['id = "control"', 'level = "bitwise"', f"varied = [{json.dumps(control)}]"]
        lines += [f"lanes = [{json.dumps(first)}]", "control = true"]
    return "\n".join(lines) + "\n"


def _variation(name: str, start: Start, lane: str | None = None) -> list[str]:
    dimension = DIMENSIONS[name]
    values = list(start.lanes) if dimension.how == "lane" else dimension.default(start.engine)
    if start.preset == "vendor" and name == "batch_size":
        values = (1, 64)
    lines = [f"dimension = {json.dumps(name)}".ljust(26) + f"# {dimension.about}"]
    if values is not None:
        lines.append(f"values = {json.dumps(list(values))}")
    return [*lines, *([f"lanes = [{json.dumps(lane)}]"] if lane else [])]


def _table(lane: dict[str, object]) -> list[str]:
    """Fields of a lane as TOML."""
    return [f"{_key(name)} = {_toml(value)}" for name, value in lane.items() if value is not None]


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {_toml(one)}" for name, one in value.items()) + " }"
    return json.dumps(value)


def _key(name: str) -> str:
    plain = name.replace("-", "").replace("_", "").isalnum() and name.isascii()
    return name if plain else json.dumps(name)
