"""The request files of runs: the set, in a different order or with other arrivals, and what runs beside."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

from ...schemas.errors import BadInput
from ...schemas.files import replace_file
from ...schemas.jsontext import JsonObject
from .cells import Beside, Configuration

REQUESTS = "requests.jsonl"


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def freeze_requests(source: Path, folder: Path) -> Path:
    """The requests of a set, an envelope or a trace as the frozen set of a plan.

    Raises:
        BadInput: It holds none, or they are not those that were frozen.
    """
    from ...replay.request.from_trace import answered
    from ..replay_plan.options import recorded_requests

    frozen = folder / REQUESTS
    if frozen.exists():
        return frozen
    envelopes, _ = answered(recorded_requests(source), source)
    with replace_file(frozen) as file, file.open("w", encoding="utf-8") as lines:
        for envelope in envelopes:
            lines.write(json.dumps(json.loads(envelope.to_json()), ensure_ascii=False) + "\n")
    return frozen


def request_file(configuration: Configuration, frozen: Path) -> Path:
    """The requests of a run; made where they are not there yet.

    Raises:
        BadInput: An order or an arrival that does not exist.
    """
    if configuration.order == "recorded" and configuration.arrival is None:
        return frozen
    words = [configuration.order, configuration.arrival or ""]
    name = "-".join(word.replace(":", "-") for word in words if word and word != "recorded")
    path = frozen.with_name(f"requests-{name}.jsonl")
    if not path.exists():
        order = _offsets(frozen, configuration.order)
        _write_lines(path, _with_arrivals(_lines_at(frozen, order), configuration.arrival))
    return path


def neighbour_file(beside: Beside, frozen: Path) -> Path:
    """Synthetic requests that run beside. Their tokens are drawn from those of the set.

    Raises:
        BadInput: No request of the set has token ids.
    """
    path = frozen.with_name(f"neighbours-{beside.count}-{beside.length}-{beside.seed}.jsonl")
    if path.exists():
        return path
    tokens: set[int] = set()
    for line in _lines_at(frozen, _offsets(frozen, "recorded")):
        tokens.update(json.loads(line).get("prompt_token_ids") or ())
        if len(tokens) > 4096:
            break
    if not tokens:
        raise BadInput(
            "no request of the set has prompt_token_ids, from which the tokens of others are drawn",
            "tokenize them (rip envelope create --model …), or leave the neighbour dimensions out",
        )
    draw, vocabulary = random.Random(beside.seed), sorted(tokens)
    _write_lines(
        path,
        (
            json.dumps(
                {
                    "request_id": f"beside-{index}",
                    "prompt_token_ids": draw.choices(vocabulary, k=beside.length),
                    "sampling": {"temperature": 0.0, "max_tokens": 32},
                }
            )
            for index in range(beside.count)
        ),
    )
    return path


def _offsets(path: Path, order: str) -> list[int]:
    """Where each request begins, in an order.

    Raises:
        BadInput: No such order.
    """
    starts, at = [], 0
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                starts.append(at)
            at += len(line)
    kind, _, seed = order.partition(":")
    if kind == "reversed":
        starts.reverse()
    elif kind == "shuffled" and seed.isdecimal():
        random.Random(int(seed)).shuffle(starts)
    elif order != "recorded":
        raise BadInput(f"there is no order {order!r}", "recorded, reversed or shuffled:SEED")
    return starts


def _lines_at(path: Path, starts: list[int]) -> Iterator[str]:
    with path.open("rb") as file:
        for start in starts:
            file.seek(start)
            yield file.readline().decode("utf-8").rstrip("\n")


def _with_arrivals(lines: Iterator[str], arrival: str | None) -> Iterator[str]:
    """Lines with the arrival times (ms) of a Poisson process, seeded by its rate: every run has the same."""
    if arrival is None:
        yield from lines
        return
    try:
        rate = float(arrival.partition(":")[2])
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e6:
        raise BadInput(f"{arrival!r} is no arrival", "for example poisson:4: four requests a second")
    draw, at = random.Random(arrival), 0.0
    for line in lines:
        document: JsonObject = json.loads(line)
        context = document.get("context") or {}
        yield json.dumps({**document, "context": {**context, "arrival_ms": round(at, 3)}}, ensure_ascii=False)
        at += draw.expovariate(rate) * 1000


def _write_lines(path: Path, lines: Iterator[str]) -> None:
    with replace_file(path) as file, file.open("w", encoding="utf-8") as out:
        out.writelines(f"{line}\n" for line in lines)
