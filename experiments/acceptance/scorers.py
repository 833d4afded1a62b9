"""Scorers: what an output says, as a value, so that two outputs agree where their values do.

An output that cannot be scored (no JSON, no number, two choices at once) agrees with nothing: not even with
another one that cannot be.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...schemas.errors import BadInput
from ...schemas.jsontext import canonical_json
from ...schemas.plan import ScorerUse

Value = Any
_LONGEST = 1 << 20
"""Characters of an output that are looked at."""


class Unscored(Exception):
    """The output has no value."""


@dataclass(frozen=True)
class Scorer:
    """One scorer, ready.

    Attributes:
        version: Of rip's own: a number; of one's own: of its package, or the digest of its source.
        score: The value of (output, request); raises `Unscored`.
        agree: Whether two values are the same.
    """

    use: ScorerUse
    version: str
    score: Callable[[str, Mapping[str, Any]], Value]
    agree: Callable[[Value, Value], bool]


def make_scorer(use: ScorerUse) -> Scorer:
    """A scorer with its parameters.

    Raises:
        BadInput: There is no such scorer, or its parameters do not fit.
    """
    if ":" in use.scorer:
        return _own(use)
    make = _MAKERS.get(use.scorer)
    if make is None:
        raise BadInput(
            f"there is no scorer {use.scorer!r}",
            f"choose one of: {', '.join(_MAKERS)}, or give module:function of your own",
        )
    try:
        return make(use, **use.parameters)
    except TypeError as error:
        raise BadInput(f"scorer {use.scorer}: {error}", "see docs/matrix.md for its parameters") from None


def _equal(one: Value, other: Value) -> bool:
    return bool(one == other)


def _exact(use: ScorerUse, ignore_space: bool = False, ignore_case: bool = False) -> Scorer:
    def score(output: str, request: Mapping[str, Any]) -> Value:
        output = " ".join(output.split()) if ignore_space else output
        return output.casefold() if ignore_case else output

    return Scorer(use, "1", score, _equal)


def _json(use: ScorerUse, ignore: list[str] | None = None) -> Scorer:
    def score(output: str, request: Mapping[str, Any]) -> Value:
        found = _parse(output)
        if isinstance(found, dict):
            found = {name: value for name, value in found.items() if name not in (ignore or [])}
        return canonical_json(found).decode()

    return Scorer(use, "1", score, _equal)


def _json_schema(use: ScorerUse, schema: dict[str, Any]) -> Scorer:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    try:
        kind = validator_for(schema)
        kind.check_schema(schema)
    except SchemaError as error:
        raise BadInput(f"scorer json-schema: {error.message}", "give a valid JSON Schema") from None
    validator = kind(schema)

    def score(output: str, request: Mapping[str, Any]) -> Value:
        if not validator.is_valid(_parse(output)):
            raise Unscored
        return True

    return Scorer(use, "1", score, _equal)


def _regex(use: ScorerUse, pattern: str, group: int | str = 0) -> Scorer:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise BadInput(f"scorer regex: {error}", "give a regular expression") from None
    if isinstance(group, int) and not 0 <= group <= compiled.groups:
        raise BadInput(f"scorer regex: the pattern has no group {group}", "give one that it has")

    def score(output: str, request: Mapping[str, Any]) -> Value:
        found = compiled.search(output[:_LONGEST])
        if found is None or found[group] is None:
            raise Unscored
        return found[group]

    return Scorer(use, "1", score, _equal)


_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def _number(use: ScorerUse, absolute: float = 0.0, relative: float = 0.0, take: str = "last") -> Scorer:
    if take not in ("first", "last"):
        raise BadInput(f"scorer number: take is {take!r}", "give first or last")

    def score(output: str, request: Mapping[str, Any]) -> Value:
        found = _NUMBER.findall(output[:_LONGEST])
        if not found:
            raise Unscored
        return float(found[0 if take == "first" else -1].replace(",", ""))

    def agree(one: Value, other: Value) -> bool:
        return math.isclose(one, other, abs_tol=absolute, rel_tol=relative)

    return Scorer(use, "1", score, agree)


def _choice(use: ScorerUse, choices: list[str], ignore_case: bool = True) -> Scorer:
    flags = re.IGNORECASE if ignore_case else 0
    patterns = {choice: re.compile(rf"(?<!\w){re.escape(choice)}(?!\w)", flags) for choice in choices}

    def score(output: str, request: Mapping[str, Any]) -> Value:
        found = [choice for choice, pattern in patterns.items() if pattern.search(output[:_LONGEST])]
        if len(found) != 1:
            raise Unscored
        return found[0]

    return Scorer(use, "1", score, _equal)


def _parse(output: str) -> Any:
    """The JSON of an output; alone, or in one fenced block.

    Raises:
        Unscored: There is none.
    """
    output = output.strip()
    if output.startswith("```") and output.endswith("```") and "\n" in output:
        output = output[output.index("\n") : -3]
    try:
        return json.loads(output)
    except (ValueError, RecursionError):
        raise Unscored from None


def _own(use: ScorerUse) -> Scorer:
    """A function of one's own: (output, request, **parameters) → a JSON value; None: unscored.

    Raises:
        BadInput: It cannot be imported.
    """
    module_name, _, attribute = use.scorer.partition(":")
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, attribute)
    except (ImportError, AttributeError) as error:
        raise BadInput(
            f"scorer {use.scorer} cannot be imported: {error}", "check the name, and PYTHONPATH"
        ) from None

    def score(output: str, request: Mapping[str, Any]) -> Value:
        found = function(output, request, **use.parameters)
        if found is None:
            raise Unscored
        return found

    return Scorer(use, _version(module, function), score, _equal)


def _version(module: Any, function: Callable[..., Any]) -> str:
    version = getattr(module, "__version__", None)
    if isinstance(version, str):
        return version
    try:
        source = inspect.getsource(inspect.getmodule(function) or function)
    except (OSError, TypeError):
        return "unknown"
    return f"source:{hashlib.sha256(source.encode()).hexdigest()[:12]}"


_MAKERS: dict[str, Callable[..., Scorer]] = {
    "exact": _exact,
    "json": _json,
    "json-schema": _json_schema,
    "regex": _regex,
    "number": _number,
    "choice": _choice,
}
