"""What a replay runs and observes, read from its options: requests, neighbours, sites, positions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.choices import CaptureLevel
from ...schemas.errors import BadInput, Stated, stated_option

if TYPE_CHECKING:
    from ...schemas.envelope import Envelope

EVERY_POSITION = range(2**31 - 1)


def recorded_requests(path: Path) -> list[Envelope]:
    """The requests of an envelope, a request set or a trace.

    Raises:
        BadInput: The file holds none.
    """
    from ...schemas.envelope import load_requests

    if path.suffix != ".parquet":
        return load_requests(path)
    from ...replay.request.from_trace import requests_from_trace

    return requests_from_trace(path)


def read_sampling(texts: Sequence[str]) -> dict[str, Any]:
    """The sampling fields of `KEY=VALUE` texts, as an envelope holds them; the last one of a key applies.

    A value is JSON; what is no JSON of the field's type is text: `stop=END`, `stop=["END", "1"]`.

    Raises:
        BadInput: Not of that form, no such field, or no value that an envelope could state.
    """
    from ...replay.request.contract import ENGINE_DEFAULTS, PROGRAMS

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        about = stated_option("sampling", text)
        if name in PROGRAMS:
            raise BadInput("a program or a grammar", "state it in the envelope", about)
        if not equals or name not in ENGINE_DEFAULTS:
            raise BadInput(
                "no such sampling field", f"give KEY=VALUE with one of: {', '.join(ENGINE_DEFAULTS)}", about
            )
        found[name] = _sampling_value(name, value, about)
    return found


def _sampling_value(name: str, text: str, about: Stated) -> Any:
    """The value that an envelope would hold.

    Raises:
        BadInput: An envelope could not hold it.
    """
    from pydantic import ValidationError

    from ...schemas.base import describe_validation_error
    from ...schemas.envelope import Sampling
    from ...schemas.jsontext import parse_json_object

    candidates: list[Any] = [text]
    with suppress(BadInput):
        read = parse_json_object(f'{{"value": {text}}}', "")
        candidates = [read["value"], text] if len(read) == 1 else candidates
    reasons = []
    for value in candidates:
        try:
            found = getattr(Sampling.model_validate({name: value}), name)
        except ValidationError as error:
            reasons.append(describe_validation_error(error, names=False))
            continue
        if found is not None:
            return found
    reason = reasons[0] if reasons else "there is no value"
    raise BadInput(reason, "give a value that the sampling of an envelope can hold", about)


def site_pattern(sites: str | None, capture: CaptureLevel) -> re.Pattern[str] | None:
    """The pattern of `--sites`, which matches everything where it is not stated; None: no site is observed.

    Raises:
        BadInput: No regular expression, or sites are named though none is observed.
    """
    if capture == "tokens":
        if sites is not None:
            raise BadInput("--sites: --capture tokens observes no sites", "leave one of the two out")
        return None
    try:
        return re.compile(sites or "")
    except re.error as error:
        raise BadInput(
            f"--sites {sites!r} is not a regular expression: {error}", r"for example 'layers\.4\.'"
        ) from None


def kept_positions(text: str | None, capture: CaptureLevel) -> range | None:
    """The positions `A:B` whose rows are kept, all where `--positions` is not stated; None: no rows are.

    Raises:
        BadInput: Not a range, or stated though no rows are kept.
    """
    about = stated_option("positions", text)
    if capture != "tensors":
        if text is not None:
            raise BadInput("only --capture tensors keeps rows", "add --capture tensors", about)
        return None
    if text is None:
        return EVERY_POSITION
    match = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
    if not match or int(match[1]) >= int(match[2]):
        raise BadInput("not a range", "give A:B with A smaller than B, for example 57:58", about)
    return range(int(match[1]), int(match[2]))


def read_neighbours(text: str | None) -> tuple[list[Envelope], int]:
    """What runs beside the requests: those of a set, or a number of synthetic ones.

    Raises:
        BadInput: Neither a set nor a number.
    """
    from ...schemas.envelope import load_requests

    if text is None:
        return [], 0
    about = stated_option("neighbours", text)
    if re.fullmatch(r"[+-]?[0-9]+", text):
        if not re.fullmatch(r"[0-9]{1,4}", text):
            raise BadInput("not a number from 0 to 9999", "for example 7", about)
        return [], int(text)
    path = Path(text)
    if not path.exists():
        raise BadInput("cannot be read: no such file", "check the path, or give a number", about)
    return load_requests(path), 0
