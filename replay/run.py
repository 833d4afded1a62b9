"""Executing envelopes on an engine: plan, run, record, check the observer, write one trace."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import __version__
from ..schemas.envelope import Envelope
from ..schemas.errors import BadInput, Interrupted, OutputFailed, RipError
from ..schemas.fingerprint import Fingerprint
from ..schemas.trace import CaptureLevel, Lane, Mode, ObserverCheck, Request, Setting, TraceHeader
from .capture.writer import TraceWriter
from .contract import (
    check_constraints,
    check_prompt,
    check_vocabulary,
    redacted_sampling,
    resolve_sampling,
    silent_defaults,
)
from .engines.base import Engine
from .findings import Findings
from .golden import Golden, golden_for
from .identity import check_identity, runtime_difference, runtime_settings, unstated_identity
from .observer import observe_again
from .plan import Batch, Beside, Requested, plan_batches
from .record import Outcome, Progress, Recorder


@dataclass(frozen=True)
class Options:
    """How the envelopes are executed.

    Attributes:
        repeat: Times that every sample runs.
        neighbours: Envelopes that run beside every batch, unrecorded.
        fill: Synthetic neighbours added to every batch.
        golden: Tokens of a golden trace, with its path; None takes them from the envelopes.
        allow_drift: Run although an identity hash differs, and record it.
        lane: Name of this way to run.
        site_filter: The pattern that observed sites had to match, for the trace.
        load_seconds: What loading the engine took, for the trace.
        force: Replace a trace, or the rest of an unfinished one, that has the name already.
    """

    mode: Mode = "free"
    capture: CaptureLevel = "sites"
    repeat: int = 1
    neighbours: Sequence[Envelope] = ()
    fill: int = 0
    golden: tuple[Golden, Path] | None = None
    allow_drift: bool = False
    lane: str = "default"
    site_filter: str = ""
    load_seconds: float | None = None
    force: bool = False


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
        envelopes: What to run, in this order; their request ids differ.
        engine: An opened engine. A seed whose scope is the worker starts with this call.
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
    findings = Findings()
    for sentence in unstated_identity(envelopes):
        findings.add(sentence)
    requests = []
    for envelope in envelopes:
        for sentence in check_identity(envelope, fingerprint, options.allow_drift):
            findings.add(sentence, envelope.request_id)
        difference = runtime_difference(envelope.runtime, engine_name, fingerprint)
        if difference:
            findings.add(difference, envelope.request_id)
        requests.append(_requested(envelope, engine, options, findings))
    for name, setting in engine.settings.items():
        if setting.source == "lane" and not _took(setting):
            findings.add(
                f"--set {name}={setting.resolved} did not take: the engine reports {setting.observed}"
            )
    neighbours = [_requested(envelope, engine, Options(), Findings()) for envelope in options.neighbours]
    beside = Beside(neighbours, options.fill, engine.vocab_size, engine.context_length)
    batch_size = int(engine.settings["batch_size"].resolved)
    batches = list(plan_batches(requests, options.repeat, batch_size, beside))
    settings = {
        **runtime_settings(envelopes[0].runtime, engine_name, fingerprint),
        **engine.settings,
        "repeat": Setting(resolved=options.repeat, source="lane"),
        "neighbours": Setting(resolved=len(neighbours) + options.fill, source="lane"),
    }
    observes = options.capture != "tokens"
    header = TraceHeader(
        tool_version=__version__,
        created=fingerprint.created,
        lane=Lane(name=options.lane, engine=engine_name, model=model, settings=settings),
        mode=options.mode,
        capture=options.capture,
        channel="eager" if observes else "",
        requests=[
            Request(
                request_id=request.envelope.request_id,
                envelope_sha256=request.envelope.sha256(),
                envelope=request.envelope.to_object(),
                sampling=dict(request.sampling),
            )
            for request in requests
        ],
        fingerprint=fingerprint,
        sites=engine.sites if observes else [],
        site_filter=options.site_filter,
        row_hash=engine.row_hash,
        sketch=engine.sketch if observes else "",
        findings=findings.sentences(),
        not_seen=engine.not_seen,
    )
    writer = TraceWriter(out, header, keeps_tensors=options.capture == "tensors", force=options.force)
    recorder = Recorder(writer, engine, batches, progress)
    try:
        final = _execute(engine, batches, options, recorder, header, started)
        writer.finish(final)
    except KeyboardInterrupt:
        raise _interrupted(writer) from None
    except OutputFailed:
        raise  # nothing more can be written; the message names what was
    except RipError as error:
        kept = writer.abandon()
        if kept is None:
            raise
        raise type(error)(
            f"{error.message}; {writer.rows_written} rows are kept in {kept}", error.fix
        ) from error
    finally:
        writer.close()
    by_id = {envelope.request_id: envelope for envelope in envelopes}
    return Result(out, final, recorder.outcomes(by_id, options.mode))


def _execute(
    engine: Engine,
    batches: Sequence[Batch],
    options: Options,
    recorder: Recorder,
    header: TraceHeader,
    started: float,
) -> TraceHeader:
    """Run every batch and the observer check → the header as it is known at the end."""
    observes = options.capture != "tokens"
    engine.reset()
    for batch in batches:
        recorder.run(batch, options.mode, observes)
    replayed = time.perf_counter()
    seconds = {} if options.load_seconds is None else {"load": round(options.load_seconds, 6)}
    seconds["replay"] = round(replayed - started, 6)
    observer = ObserverCheck(state="not run", why="no sites were captured")
    if observes:
        recorder.say("observer check: again with taps off")
        observer = observe_again(engine, batches[0], options.mode, recorder.first_hashes)
        seconds["observer"] = round(time.perf_counter() - replayed, 6)
    not_seen = header.not_seen
    if options.capture == "tensors" and not recorder.kept_tensors:
        not_seen = [
            *not_seen,
            "no row was kept: every sequence ended before the positions that were asked for",
        ]
    return header.model_copy(
        update={
            "observer": observer,
            "seconds": seconds,
            "not_seen": not_seen,
            "token_text": recorder.token_text(),
        }
    )


def _interrupted(writer: TraceWriter) -> Interrupted:
    kept = writer.abandon()
    if kept is None:
        return Interrupted("interrupted; nothing was recorded yet", "run the command again")
    return Interrupted(
        f"interrupted; {writer.rows_written} rows are kept in {kept}",
        f"rip query {kept} and rip diverge read them as they are",
    )


def _check_capabilities(engine: Engine, name: str, options: Options) -> None:
    """Refuse, before any work, what the engine cannot give."""
    if options.mode not in engine.capabilities.modes:
        raise BadInput(
            f"the engine {name} has no mode {options.mode}",
            f"choose one of: {', '.join(engine.capabilities.modes)}",
        )
    if options.capture != "tokens" and not engine.capabilities.sites:
        raise BadInput(f"the engine {name} shows no sites", "use --capture tokens")


def _requested(envelope: Envelope, engine: Engine, options: Options, findings: Findings) -> Requested:
    """One envelope with prompt, sampling and golden tokens, checked against the model."""
    name = envelope.request_id
    sampling = resolve_sampling(envelope, engine.sampling_defaults)
    forced = options.mode != "free"
    silent = None if forced else silent_defaults(sampling)
    if silent:
        findings.add(silent, name)
    removed = redacted_sampling(envelope)
    if removed and not forced:
        raise BadInput(
            f"{name}: sampling.{removed[0]} was redacted, so its tokens cannot be chosen as they were",
            "replay the envelope that was not redacted, or force its tokens with a golden mode",
        )
    unknown = envelope.unknown_fields()
    if unknown:
        findings.add(f"fields this rip does not know were kept: {', '.join(unknown)}", name)
    prompt = _prompt(envelope, engine, findings)
    has_tokenizer = engine.text_of(0) is not None
    check_constraints(name, sampling, engine.vocab_size, has_tokenizer, forced)
    golden: dict[int, tuple[int, ...]] = {}
    if not forced:
        wanted = int(sampling["max_tokens"].resolved)
        if wanted == 0:
            raise BadInput(
                f"{name}: max_tokens is 0: there is nothing to generate",
                "raise sampling.max_tokens, or score recorded tokens with --mode golden-prefill",
            )
    else:
        trace, path = options.golden if options.golden else (None, None)
        golden = golden_for(envelope, trace, path)
        wanted = max(len(tokens) for tokens in golden.values())
        for tokens in golden.values():
            check_vocabulary(name, "the golden tokens", tokens, engine.vocab_size)
    check_prompt(name, prompt, wanted, engine.vocab_size, engine.context_length)
    return Requested(envelope, tuple(prompt), sampling, golden)


def _prompt(envelope: Envelope, engine: Engine, findings: Findings) -> list[int]:
    if envelope.prompt_token_ids is not None:
        return envelope.prompt_token_ids
    if envelope.prompt_text is None and not envelope.messages:
        raise BadInput(
            f"{envelope.request_id}: the prompt was redacted, token ids included",
            "replay the envelope that was not redacted",
        )
    findings.add("token ids were made from text here; the envelope holds none", envelope.request_id)
    try:
        return engine.tokenize(envelope.prompt_text, envelope.messages, envelope.tools)
    except BadInput as error:
        raise BadInput(f"{envelope.request_id}: {error.message}", error.fix) from error


def _took(setting: Setting) -> bool:
    """False where the engine reports something else than it was given (`cuda` is reported as `cuda:0`)."""
    given, reported = str(setting.resolved), str(setting.observed)
    return setting.observed is None or reported == given or reported.startswith(f"{given}:")
