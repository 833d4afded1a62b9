"""Numbers that JSON cannot hold exactly, as strings: how they are written and read."""

from __future__ import annotations

import math
import re
from typing import Any

MAX_SAFE_INTEGER = 2**53 - 1  # beyond it, JSON numbers are not exact in every reader (RFC 8785, 3.2.2.3)
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_WRITTEN_INTEGER = re.compile(r"-?[1-9][0-9]{15,30}", re.ASCII)


def exactly_representable(value: Any) -> Any:
    """The same value with integers beyond 2^53 and non-finite floats written as strings.

    A JSON reader may round the former and has no form for the latter, so both are a decision of the
    schema: decimal strings, and "NaN", "Infinity", "-Infinity".
    """
    if isinstance(value, dict):
        return {str(key): exactly_representable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [exactly_representable(item) for item in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def from_written_float(value: Any) -> Any:
    """The float that one of the three strings stands for; any other value unchanged."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def from_written_integer(value: Any) -> Any:
    """The integer that a decimal string beyond 2^53 stands for; any other value unchanged."""
    if isinstance(value, str) and _WRITTEN_INTEGER.fullmatch(value) and abs(int(value)) > MAX_SAFE_INTEGER:
        return int(value)
    return value
