"""What a child process read of a driver (see child_protocol.py): values and refusals, by field and GPU.

It knows how to start such a process and to parse its lines, and nothing of what is read.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...schemas.fingerprint import Fact, absent_text, fact, unavailable
from ..untrusted.program import Output


@dataclass(frozen=True)
class CallError:
    """How a call failed."""

    code: int
    """The driver's; 0 where Python failed."""
    type: str
    """The exception's class; empty where the driver's message says it all."""
    message: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.type else self.message


@dataclass(frozen=True)
class Refusal:
    """Why a library gave no value, and the driver's error code (0: none)."""

    reason: str
    code: int = 0


@dataclass(frozen=True)
class DriverReadings:
    """What one library reported and refused: field → number of the GPU → value, or refusal."""

    source: str
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    refusals: Mapping[str, Mapping[str, Refusal]] = field(default_factory=dict)
    missing: str = "not asked"
    """Why there is neither a value nor a refusal."""

    @property
    def gpus(self) -> list[str]:
        """The numbers of all GPUs that the library counts."""
        return [str(index) for index in range(self.values.get("count", {}).get("", 0))]

    def of_machine(self, name: str) -> Fact:
        """One reading about the whole machine."""
        if (value := self.values.get(name, {}).get("")) is not None:
            return fact(value, self.source)
        return unavailable(self.refusal(name).reason, self.source)

    def of_gpus(self, name: str) -> Fact:
        """One reading by the number of the GPU; of a GPU that refused it, the reason as a text."""
        values = self.values.get(name, {})
        refused = {
            key: self.refusal(name, key).reason
            for key in {*self.gpus, *self.refusals.get(name, {})} - {*values}
        }
        reasons = set(refused.values())
        if values:
            known = {**values, **{key: absent_text(reason) for key, reason in refused.items()}}
            return fact({key: known[key] for key in sorted(known, key=_in_order)}, self.source)
        if len(reasons) > 1:
            each = (f"GPU {key}: {refused[key]}" for key in sorted(refused, key=_in_order))
            return unavailable("; ".join(each), self.source)
        return unavailable(reasons.pop() if reasons else self.refusal(name).reason, self.source)

    def refusal(self, name: str, key: str = "") -> Refusal:
        """Why there is no value: the reading failed, or what it depends on."""
        for field_, key_ in ((name, key), ("handle", key), ("init", ""), ("program", "")):
            if (found := self.refusals.get(field_, {}).get(key_)) is not None:
                return found
        return Refusal(self.missing)


def child_command(module: str, limit_s: float) -> list[str]:
    """The command line of a process that runs one of the `child_…` modules as this process would import it.

    It ends by itself a second after `limit_s`, should nobody be left to end it.
    """
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"from {__package__}.child_protocol import run_child; from {__package__}.{module} import main\n"
        f"run_child(main, {math.ceil(limit_s) + 1})"
    )
    return [sys.executable, "-P", "-c", code]


def parse_readings(
    source: str, library: str, output: Output, explain: Callable[[CallError], str] = str
) -> DriverReadings:
    """Read the lines, as far as they came.

    Args:
        source: Of the facts.
        library: What to call the library.
        output: Of the process.
        explain: How a call failed → the reason, with how to fix it.
    """
    values: dict[str, dict[str, Any]] = {}
    refusals: dict[str, dict[str, Refusal]] = {}
    last = "it was started"
    for line in output.text.splitlines():
        match _parse_line(line):
            case ["reading", str(name), str(key)]:
                last = f"it was asked for {name}" + (f" of GPU {key}" if key else "")
            case ["value", str(name), str(key), value] if value is not None:
                values.setdefault(name, {})[key] = value
            case ["error", str(name), str(key), int(code), str(kind), str(message)]:
                reason = explain(CallError(code, kind, message))
                refusals.setdefault(name, {})[key] = Refusal(reason, code)
    missing = f"{library}: {output.failure} when {last}" if output.failure else "the library did not say"
    return DriverReadings(source, values, refusals, missing)


def _parse_line(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # what a library prints by itself, or the last line of a program that was ended
        return None


def _in_order(key: str) -> tuple[int, ...]:
    """ "10" after "9", "0/3" after "0/1", "0-1" before "1-2"."""
    parts = key.replace("/", "-").split("-")
    return tuple(int(part) for part in parts if part.isdigit())
