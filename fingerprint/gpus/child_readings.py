"""What a process that asks a driver told (see telling.py): its answers and refusals, by field and GPU.

It knows how to start such a process and to read its lines, and nothing of what is asked.
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
class Answers:
    """What one library told and refused: field → number of the GPU → value, or reason."""

    source: str
    told: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    silence: str = "not asked"
    """Why there is neither a value nor a refusal."""

    @property
    def gpus(self) -> list[str]:
        """The numbers of all GPUs that the library counts."""
        return [str(index) for index in range(self.told.get("count", {}).get("", 0))]

    def of_machine(self, name: str) -> Fact:
        """One reading about the whole machine."""
        if (value := self.told.get(name, {}).get("")) is not None:
            return fact(value, self.source)
        return unavailable(self._reason(name, ""), self.source)

    def of_gpus(self, name: str) -> Fact:
        """One reading by the number of the GPU; of a GPU that refused it, the reason as a text."""
        told = self.told.get(name, {})
        refused = {
            key: self._reason(name, key) for key in {*self.gpus, *self.refused.get(name, {})} - {*told}
        }
        reasons = set(refused.values())
        if told:
            values = {**told, **{key: absent_text(reason) for key, reason in refused.items()}}
            return fact({key: values[key] for key in sorted(values, key=_in_order)}, self.source)
        if len(reasons) > 1:
            each = (f"GPU {key}: {refused[key]}" for key in sorted(refused, key=_in_order))
            return unavailable("; ".join(each), self.source)
        return unavailable(reasons.pop() if reasons else self._reason(name, ""), self.source)

    def _reason(self, name: str, key: str) -> str:
        places = ((name, key), ("handle", key), ("init", ""), ("program", ""))
        said = (self.refused.get(field_, {}).get(key_) for field_, key_ in places)
        return next((reason for reason in said if reason is not None), self.silence)


def program(module: str, limit_s: float) -> list[str]:
    """The command line of a process that runs one of the `ask_…` modules as this process would import it.

    It ends by itself a second after `limit_s`, should nobody be left to end it.
    """
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"from {__package__}.child_protocol import answer; from {__package__}.{module} import main\n"
        f"answer(main, {math.ceil(limit_s) + 1})"
    )
    return [sys.executable, "-P", "-c", code]


def heard(source: str, asked: str, output: Output, meaning: Callable[[int, str], str]) -> Answers:
    """Read the lines, as far as they came.

    Args:
        source: Of the facts.
        asked: Who was asked, for people: the library.
        output: Of the process.
        meaning: An error code and its words → the reason, with its mend.
    """
    told: dict[str, dict[str, Any]] = {}
    refused: dict[str, dict[str, str]] = {}
    asking = "it was started"
    for line in output.text.splitlines():
        match _parsed(line):
            case ["asking", str(name), str(key)]:
                asking = f"it was asked for {name}" + (f" of GPU {key}" if key else "")
            case ["told", str(name), str(key), value] if value is not None:
                told.setdefault(name, {})[key] = value
            case ["failed", str(name), str(key), int(code), str(words)]:
                refused.setdefault(name, {})[key] = meaning(code, words)
    silence = f"{asked}: {output.trouble} when {asking}" if output.trouble else "the library did not say"
    return Answers(source, told, refused, silence)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # what a library prints by itself, or the last line of a program that was ended
        return None


def _in_order(key: str) -> tuple[int, ...]:
    """ "10" after "9", "0/3" after "0/1", "0-1" before "1-2"."""
    parts = key.replace("/", "-").split("-")
    return tuple(int(part) for part in parts if part.isdigit())
