"""A trace out of a tap folder alone: what vLLM's taps saw of requests that rip did not send.

The workers know tokens, logits and sites; not what was asked for, nor the last token of an answer, which is
never fed to the model.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from .. import __version__
from ..schemas.envelope import Envelope, Runtime
from ..schemas.errors import BadInput, EngineFailed
from ..schemas.fingerprint import Fingerprint
from ..schemas.lane import Lane
from ..schemas.trace import ObserverCheck, Request, TraceHeader
from .request.findings import observer_in_words
from .row_summaries.rows import ExecutionShape, Rows, RowSummaries, TopK
from .trace_writer import SequenceInfo, TraceWriter
from .vllm_tap.tap_folder import TapFolder, TappedRows

ENDED_S = 2.0
"""Seconds that a request has to end; of one that has not, what is there is taken."""
RANDOM_END = re.compile(r"-[0-9a-f]{8}$")
"""What vLLM puts behind every request's id to keep ids apart; without it, runs of one program align."""
LAST_TOKEN = "the last token of every answer, which is never fed to the model: the taps do not see it"


def trace_from_tap(
    folder: Path, out: Path, lane: str, fingerprint: Fingerprint | None, force: bool = False
) -> TraceHeader:
    """Write everything that a tap folder holds as one trace, a sequence for each request.

    Requests of one id are its samples. A prompt is taken to end where logits were first computed.

    Args:
        folder: RIP_TAP of the engine.
        lane: Name of this way to run.
        fingerprint: The environment, where it is known.
        force: Replace a trace of that name.

    Raises:
        BadInput: The folder holds no request.
        EngineFailed: It is no tap folder, or its taps failed.
        OutputFailed: The trace cannot be written.
    """
    taps = TapFolder(folder)
    taps.wait_ready(0.0)  # what it observed is there by now
    keys = taps.keys()
    if not keys:
        raise BadInput(
            f"{folder} holds no request yet",
            "send one, or see whether RIP_TAP_ONLY_ASKED hides those that were sent",
        )
    header = _header(taps, Lane(name=lane, engine="vllm", tap=str(folder)), fingerprint)
    writer = TraceWriter(out, header, force=force)
    requests: list[Request] = []
    findings: list[str] = []
    samples: Counter[str] = Counter()
    try:
        for sequence, key in enumerate(keys):
            tapped = taps.rows(key, ENDED_S, partial=True)
            if len(tapped.prefix) < tapped.positions[0]:
                raise EngineFailed(
                    f"{folder}: the first {tapped.positions[0]} positions of {key} are not known",
                    "run the program without prefix caching, or with prompts of token ids",
                )
            rows = _rows(sequence, tapped, len(taps.sites))
            prompt = _prompt_length(rows.topk)
            name = RANDOM_END.sub("", key)
            if name not in samples:
                requests.append(_request(name, rows.token_ids[:prompt].tolist()))
            findings += [f"{key}: {sentence}" for sentence in tapped.findings]
            if tapped.prefix:
                findings.append(f"{key}: its first {len(tapped.prefix)} positions came from the prefix cache")
            writer.append(SequenceInfo(name, samples[name], prompt), rows)
            samples[name] += 1
        final = header.model_copy(update={"requests": requests, "findings": findings})
        writer.finish(final)
    except BaseException:
        writer.abandon()
        raise
    finally:
        writer.close()
    return final


def _header(taps: TapFolder, lane: Lane, fingerprint: Fingerprint | None) -> TraceHeader:
    """The header before any request is read."""
    return TraceHeader(
        tool_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        lane=lane,
        mode="free",
        capture="sites",
        channel=taps.channel,
        requests=[],
        fingerprint=fingerprint,
        sites=taps.sites,
        row_hash=taps.row_hash,
        sketch=taps.sketch,
        observer=observer_in_words(ObserverCheck(state="not run", reason="requests not sent")),
        not_seen=[*taps.not_seen, LAST_TOKEN],
    )


def _request(name: str, prompt: list[int]) -> Request:
    envelope = Envelope(request_id=name, prompt_token_ids=prompt, runtime=Runtime(engine="vllm"))
    return Request.of(envelope)


def _rows(sequence: int, tapped: TappedRows, n_sites: int) -> Rows:
    """The rows of one request from position 0 on. Those of a cached prefix hold their token ids only."""
    count = int(tapped.positions[-1]) + 1
    tokens = np.zeros(count, np.int32)
    tokens[: len(tapped.prefix)] = tapped.prefix[:count]
    tokens[tapped.positions] = tapped.token_ids
    summaries = RowSummaries.empty(count, n_sites)
    for mine, theirs in zip(summaries.arrays(), tapped.summaries.arrays(), strict=True):
        mine[tapped.positions] = theirs
    shapes: list[ExecutionShape | None] = [None] * count
    topk: list[TopK | None] = [None] * count
    for row, position in enumerate(tapped.positions.tolist()):
        shapes[position], topk[position] = tapped.shapes[row], tapped.topk[row]
    return Rows(
        sequence=sequence,
        first_position=0,
        token_ids=tokens,
        forced=False,
        topk=topk,
        samplers=[None] * count,
        shapes=shapes,
        summaries=summaries,
    )


def _prompt_length(topk: list[TopK | None]) -> int:
    """Positions of the prompt: the first logits are computed at its last one."""
    return next((position + 1 for position, row in enumerate(topk) if row is not None), len(topk))
