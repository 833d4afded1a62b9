"""What A and B of an investigation are: traces, lanes, or fingerprints from which lanes are made."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...schemas.errors import BadInput, stated_option
from ...schemas.fingerprint import Absence
from ...schemas.lane import load_lane
from ...schemas.trace import PARTS_SUFFIX
from ..lanes.request import LANE_SUFFIX

if TYPE_CHECKING:
    from ...schemas.fingerprint import Fingerprint

Kind = Literal["trace", "lane", "fingerprint"]
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True)
class Sides:
    """A and B as the user named them, both of one kind.

    Attributes:
        fingerprints: Of the kind `fingerprint`.
    """

    kind: Kind
    paths: tuple[Path, Path]
    fingerprints: tuple[Fingerprint, Fingerprint] | None = None


def read_sides(a: Path, b: Path, requests: Path | None) -> Sides:
    """What A and B are, checked as far as it shows before anything runs.

    Raises:
        BadInput: They are of two kinds, cannot be read, or lack requests to run.
    """
    from ...fingerprint.load import read_fingerprint

    kinds = _kind(a), _kind(b)
    if kinds[0] != kinds[1]:
        raise BadInput(
            f"A is a {kinds[0]} and B a {kinds[1]}", "give two traces, two lane files or two fingerprints"
        )
    kind = kinds[0]
    if kind == "trace":
        if requests is not None:
            raise BadInput(
                "traces hold their requests", "leave {option} out", stated_option("requests", requests)
            )
        return Sides(kind, (a, b))
    if requests is None:
        raise BadInput(f"two {kind}s run nothing by themselves", "name what to run with --requests SET.jsonl")
    if kind == "lane":
        for path in (a, b):
            load_lane(path)
        return Sides(kind, (a, b))
    return Sides(kind, (a, b), (read_fingerprint(a), read_fingerprint(b)))


def _kind(path: Path) -> Kind:
    if path.name.endswith((".parquet", f".parquet{PARTS_SUFFIX}")):
        return "trace"
    return "lane" if path.name.endswith(LANE_SUFFIX) else "fingerprint"


def lane_texts(fingerprints: tuple[Fingerprint, Fingerprint], model: str | None) -> tuple[str, str]:
    """Two lane files (TOML) with what the fingerprints differ in and a replay here can set: the folder of the
    model, and environment variables.

    Args:
        model: Named by the user for both; None: each one's own.

    Raises:
        BadInput: A model is not here.
    """
    variables = [_variables(one) for one in fingerprints]
    names = [
        name for name in variables[0] if name in variables[1] and variables[0][name] != variables[1][name]
    ]
    texts = []
    for side, one, known in zip("AB", fingerprints, variables, strict=True):
        lines = []
        if model is None:
            section = one.sections.get("model")
            fact = None if section is None else section.volatile.get("path")
            path = None if fact is None else fact.value
            if not isinstance(path, str) or not Path(path).exists():
                where = f" at {path}" if isinstance(path, str) else ""
                raise BadInput(
                    f"the model of fingerprint {side} is not here{where}", "name one for both with --model"
                )
            lines.append(f"model = {json.dumps(path)}")
        lines.append("[env]")
        lines += [f"{name} = {json.dumps(value)}" for name in names if (value := known[name]) is not None]
        texts.append("\n".join(lines) + "\n")
    return texts[0], texts[1]


def _variables(fingerprint: Fingerprint) -> dict[str, str | None]:
    """Environment variables that a fingerprint knows, None: not set."""
    section = fingerprint.sections.get("determinism")
    return {
        name: None if fact.absence is not None else str(fact.value)
        for name, fact in ({} if section is None else section.facts).items()
        if _VARIABLE.fullmatch(name) and fact.absence in (None, Absence.UNSET)
    }
