"""Executing envelopes on an engine: plan, run, record, check what was expected, check the observer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from .. import __version__
from ..schemas.envelope import Envelope
from ..schemas.errors import BadInput, Interrupted, RipError
from ..schemas.fingerprint import Fingerprint
from ..schemas.trace import (
    CaptureLevel,
    Lane,
    Mode,
    ObserverCheck,
    Request,
    TraceHeader,
)
from .capture.writer import SequenceInfo, TraceWriter
from .contract import check_identity, check_prompt, resolve_sampling, silent_defaults, unstated_identity
from .engines.base import Engine, Finished, Rows
from .golden import Golden, golden_for
from .plan import Batch, PlannedSequence, Requested, plan_batches

Progress = Callable[[int, int, str], None]
"""Called with (generated tokens, tokens at most, what is running)."""

OBSERVER_STEPS = 64
"""Rows that the observer check compares at most: enough for differences to show, cheap on long answers."""


@dataclass(frozen=True)
class Options:
    """How the envelopes are executed.

    Attributes:
        repeat: Times that every sample runs.
        neighbours: Envelopes that run beside every batch, unrecorded.
        fill: Synthetic neighbours added to every batch.
        golden: Tokens of a golden trace, with its path; None takes them from the envelopes.
        allow_drift: Run although an identity hash differs, and record it.
    """

    mode: Mode = "free"
    capture: CaptureLevel = "sites"
    repeat: int = 1
    neighbours: Sequence[Envelope] = ()
    fill: int = 0
    golden: tuple[Golden, Path] | None = None
    allow_drift: bool = False
    lane: str = "default"


@dataclass(frozen=True)
class Outcome:
    """How one sequence ended.

    Attributes:
        mismatch: Step at which the expected tokens were not met; None where they were, or were not stated.
        had_expected: Whether the envelope states expected tokens.
    """

    request_id: str
    sample: int
    tokens: tuple[int, ...]
    text: str | None
    reason: str
    had_expected: bool
    mismatch: int | None


@dataclass(frozen=True)
class Result:
    """A finished replay."""

    path: Path
    header: TraceHeader
    outcomes: list[Outcome] = field(repr=False)

    @property
    def expectations_met(self) -> bool:
        """True unless some envelope's expected tokens did not come again."""
        return all(outcome.mismatch is None for outcome in self.outcomes)


def replay(
    envelopes: Sequence[Envelope],
    engine: Engine,
    engine_name: str,
    model: str,
    fingerprint: Fingerprint,
    options: Options,
    out: Path,
    progress: Progress,
) -> Result:
    """Run all envelopes and write one trace.

    Args:
        envelopes: What to run, in this order.
        engine: An opened engine.
        engine_name: Its registered name.
        model: What the user called the model.
        fingerprint: The environment, model included; identity hashes are checked against it.
        options: How to run.
        out: The trace's path.
        progress: Told about every piece of work done.

    Raises:
        ContractBroken: Another model, tokenizer or template than an envelope names.
        BadInput: A request that this model cannot run.
        EngineFailed, OutputFailed: What was flushed before is kept beside `out`.
        Interrupted: Likewise.
    """
    started = time.perf_counter()
    _check_capabilities(engine, engine_name, options)
    findings = unstated_identity(envelopes)
    requests = []
    for envelope in envelopes:
        findings += check_identity(envelope, fingerprint, options.allow_drift)
        requests.append(_requested(envelope, engine, options, findings))
    neighbours = [_requested(envelope, engine, Options(), []) for envelope in options.neighbours]
    batch_size = int(str(engine.settings["batch_size"].resolved))
    batches = list(
        plan_batches(requests, options.repeat, batch_size, neighbours, options.fill, engine.vocab_size)
    )
    header = TraceHeader.model_validate(
        {
            "tool_version": __version__,
            "created": fingerprint.created,
            "lane": Lane(
                name=options.lane, engine=engine_name, model=model, settings=_lane_settings(engine, options)
            ),
            "mode": options.mode,
            "capture": options.capture,
            "channel": "eager" if options.capture != "tokens" else "",
            "requests": [
                Request(
                    request_id=request.envelope.request_id,
                    envelope_sha256=request.envelope.sha256(),
                    envelope=request.envelope.to_object(),
                    sampling=dict(request.sampling),
                )
                for request in requests
            ],
            "fingerprint": fingerprint,
            "sites": engine.sites if options.capture != "tokens" else [],
            "row_hash": engine.row_hash,
            "sketch": engine.sketch if options.capture != "tokens" else "",
            "findings": findings,
            "not_seen": engine.not_seen,
        }
    )
    writer = TraceWriter(out, header, keeps_tensors=options.capture == "tensors")
    recorder = _Recorder(writer, engine, batches, progress)
    try:
        for batch in batches:
            recorder.run(batch, options)
        observer = _observe_again(engine, batches[0], options, recorder.first_hashes)
        replayed = time.perf_counter()
        final = header.model_copy(
            update={
                "observer": observer,
                "token_text": recorder.token_text(),
                "seconds": {"replay": round(replayed - started, 6)},
            }
        )
        writer.finish(final)
    except KeyboardInterrupt:
        kept = writer.abandon()
        where = f"{writer.rows_written} rows are kept in {kept}" if kept else "nothing was recorded yet"
        raise Interrupted(
            f"interrupted; {where}",
            f"rip query {kept} and rip diverge read them as they are" if kept else "run the command again",
        ) from None
    except RipError:
        writer.abandon()
        raise
    return Result(out, final, recorder.outcomes(envelopes, options))


def _check_capabilities(engine: Engine, name: str, options: Options) -> None:
    """Refuse, before any work, what the engine cannot give."""
    if options.mode not in engine.capabilities.modes:
        raise BadInput(
            f"the engine {name} has no mode {options.mode}", f"choose one of: {', '.join(engine.capabilities.modes)}"
        )
    if options.capture != "tokens" and not engine.capabilities.sites:
        raise BadInput(f"the engine {name} shows no sites", "use --capture tokens")


def _requested(envelope: Envelope, engine: Engine, options: Options, findings: list[str]) -> Requested:
    sampling = resolve_sampling(envelope, engine.sampling_defaults)
    findings += silent_defaults(envelope.request_id, sampling)
    unknown = envelope.unknown_fields()
    if unknown:
        findings.append(f"{envelope.request_id}: fields this rip does not know were kept: {', '.join(unknown)}")
    if envelope.prompt_token_ids is not None:
        prompt = envelope.prompt_token_ids
    else:
        prompt = engine.tokenize(envelope.prompt_text, envelope.messages)
        findings.append(f"{envelope.request_id}: token ids were made from text here; the envelope holds none")
    golden: dict[int, tuple[int, ...]] = {}
    if options.mode == "free":
        wanted = int(str(sampling["max_tokens"].resolved))
        if wanted == 0:
            raise BadInput(
                f"{envelope.request_id}: max_tokens is 0: there is nothing to generate",
                "raise sampling.max_tokens, or score recorded tokens with --mode golden-prefill",
            )
    else:
        trace, path = options.golden if options.golden else (None, None)
        golden = golden_for(envelope, trace, path)
        wanted = max(len(tokens) for tokens in golden.values())
        highest = max((token for tokens in golden.values() for token in tokens), default=0)
        check_prompt(envelope.request_id, [highest], 0, engine.vocab_size, engine.context_length)
    check_prompt(envelope.request_id, prompt, wanted, engine.vocab_size, engine.context_length)
    return Requested(envelope, tuple(prompt), sampling, golden)


def _lane_settings(engine: Engine, options: Options) -> dict[str, object]:
    from ..schemas.trace import Setting

    extra = {
        "repeat": Setting(resolved=options.repeat, source="lane"),
        "neighbours": Setting(resolved=len(options.neighbours) + options.fill, source="lane"),
    }
    return {**engine.settings, **extra}


class _Recorder:
    """Writes what an engine hands over and keeps what the summary needs."""

    def __init__(self, writer: TraceWriter, engine: Engine, batches: Sequence[Batch], progress: Progress) -> None:
        self._writer = writer
        self._engine = engine
        self._progress = progress
        planned = [sequence for batch in batches for sequence in batch.sequences if sequence.recorded]
        self._planned = {sequence.sequence: sequence for sequence in planned}
        self._tokens: dict[int, list[int]] = {sequence.sequence: [] for sequence in planned}
        self._finished: dict[int, Finished] = {}
        self._ids: set[int] = set()
        self._total = sum(_most_tokens(sequence) for sequence in planned)
        self._done = 0
        self.first_hashes: list[bytes] = []

    def run(self, batch: Batch, options: Options) -> None:
        first = not self._finished
        names = [sequence.request_id for sequence in batch.sequences if sequence.recorded]
        note = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        self._progress(self._done, self._total, note)
        for event in self._engine.run(batch, options.mode, options.capture != "tokens"):
            if isinstance(event, Finished):
                self._finished[event.sequence] = event
                continue
            plan = self._planned[event.sequence]
            self._writer.append(SequenceInfo(plan.request_id, plan.sample, len(plan.prompt)), event)
            if first:
                self.first_hashes += _hashes(event)
            self._remember(event, len(plan.prompt))
            self._progress(self._done, self._total, note)

    def _remember(self, rows: Rows, prompt_tokens: int) -> None:
        ids = rows.token_ids.tolist()
        self._ids.update(ids)
        for topk in rows.topk:
            if topk is not None:
                self._ids.update(topk.ids.tolist())
        generated = ids[max(0, prompt_tokens - rows.first_position) :]
        self._tokens[rows.sequence] += generated
        self._done += len(generated)

    def token_text(self) -> dict[str, str]:
        """Text of every token id that occurs, so that a report can show words without the tokenizer."""
        texts = {str(token): self._engine.text_of(token) for token in sorted(self._ids)}
        return {token: text for token, text in texts.items() if text is not None}

    def outcomes(self, envelopes: Sequence[Envelope], options: Options) -> list[Outcome]:
        by_id = {envelope.request_id: envelope for envelope in envelopes}
        found = []
        for sequence, plan in self._planned.items():
            expected = by_id[plan.request_id].expected
            wanted = expected.token_ids if expected is not None and options.mode == "free" else None
            tokens = self._tokens[sequence]
            finished = self._finished[sequence]
            found.append(
                Outcome(
                    request_id=plan.request_id,
                    sample=plan.sample,
                    tokens=tuple(tokens),
                    text=finished.text,
                    reason=finished.reason,
                    had_expected=wanted is not None,
                    mismatch=None if wanted is None else first_difference(tokens, wanted),
                )
            )
        return found


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """First index at which two sequences differ; a strict prefix differs at its length; None: equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def _most_tokens(sequence: PlannedSequence) -> int:
    return len(sequence.golden) if sequence.golden is not None else int(str(sequence.value("max_tokens")))


def _hashes(rows: Rows) -> list[bytes]:
    return [topk.logits_hash for topk in rows.topk if topk is not None and topk.logits_hash is not None]


def _observe_again(engine: Engine, batch: Batch, options: Options, observed: list[bytes]) -> ObserverCheck:
    """Repeat the first batch with taps off: its logits must come out the same, bit for bit."""
    if options.capture == "tokens":
        return ObserverCheck(state="not run", why="no sites were captured")
    engine.reset()
    plain: list[bytes] = []
    for event in engine.run(batch, options.mode, observe=False):
        if isinstance(event, Rows):
            plain += _hashes(event)
        if len(plain) >= OBSERVER_STEPS:
            break
    count = min(len(plain), len(observed))
    same = list(islice(plain, count)) == observed[:count] and count > 0
    first = batch.sequences[0].request_id
    return ObserverCheck(
        state="equal" if same else "changed",
        compared=f"logits hashes of {count} rows of {first}, taps on and off",
        why=None if same else "observing changed the logits, or the engine is not deterministic: repeat with --repeat 2",
    )
