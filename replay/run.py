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
from ..schemas.trace import (
    CaptureLevel,
    EngineAbilities,
    Lane,
    Mode,
    ObserverCheck,
    Request,
    Setting,
    TraceHeader,
)
from .engines.base import Engine
from .engines.capabilities import refuse_mode, refuse_sites
from .observer import observe_again
from .record_run import Outcome, Progress, Recorder
from .request.batches import Batch, Beside, plan_batches
from .request.contract import known_vocabulary
from .request.findings import Findings
from .request.golden import Golden
from .request.identity import check_identity, runtime_difference, runtime_settings, unstated_identity
from .request.resolve import requested
from .trace_file.writer import TraceWriter


@dataclass(frozen=True)
class Options:
    """How the envelopes are executed.

    Attributes:
        repeat: Times that every sample runs.
        neighbours: Envelopes that run beside every batch, unrecorded.
        fill: Synthetic neighbours added to every batch.
        golden: Tokens of a golden trace, with its path; None takes them from the envelopes.
        allow_drift: Run although an identity hash differs, and record it.
        site_filter: The pattern that observed sites had to match, for the trace.
        load_seconds: What loading the engine took, for the trace.
        force: Replace a trace, or the rest of an unfinished one, that has the name already.
        batch_size: Recorded sequences of a batch; None: as the engine's setting says.
    """

    mode: Mode = "free"
    capture: CaptureLevel = "sites"
    repeat: int = 1
    neighbours: Sequence[Envelope] = ()
    fill: int = 0
    golden: tuple[Golden, Path] | None = None
    allow_drift: bool = False
    site_filter: str = ""
    load_seconds: float | None = None
    force: bool = False
    batch_size: int | None = None


@dataclass(frozen=True)
class Result:
    """A finished replay."""

    path: Path
    header: TraceHeader
    outcomes: list[Outcome] = field(repr=False)

    @property
    def expectations_met(self) -> bool:
        """True unless some recorded answer was compared and did not come again."""
        return all(outcome.expected.mismatch is None for outcome in self.outcomes)

    @property
    def compared_none(self) -> bool:
        """True where recorded answers should come again, and none of them could be compared."""
        compared = [outcome.expected for outcome in self.outcomes]
        return any(one.why_not for one in compared) and not any(one.by for one in compared)


def replay(
    envelopes: Sequence[Envelope],
    engine: Engine,
    lane: Lane,
    fingerprint: Fingerprint,
    options: Options,
    out: Path,
    progress: Progress,
) -> Result:
    """Run all envelopes and write one trace.

    Args:
        envelopes: What to run, in this order; their request ids differ.
        engine: An opened engine. A seed whose scope is the worker starts with this call.
        lane: What it is called and how it was opened; its settings are filled in here.
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
    _check_capabilities(engine, lane.engine, options)
    findings = Findings()
    for sentence in unstated_identity(envelopes):
        findings.add(sentence)
    requests = []
    for envelope in envelopes:
        for sentence in check_identity(envelope, fingerprint, options.allow_drift):
            findings.add(sentence, envelope.request_id)
        difference = runtime_difference(envelope.runtime, lane.engine, fingerprint)
        if difference:
            findings.add(difference, envelope.request_id)
        requests.append(requested(envelope, engine, options.mode, options.golden, findings))
    for sentence in engine.findings:
        findings.add(sentence)
    for name, setting in engine.settings.items():
        if setting.source == "lane" and not _took(setting):
            findings.add(
                f"--set {name}={setting.resolved} did not take: the engine reports {setting.observed}"
            )
    neighbours = [requested(envelope, engine, "free", None, Findings()) for envelope in options.neighbours]
    vocabulary = _vocabulary(engine, fingerprint) if options.fill else engine.vocab_size
    beside = Beside(neighbours, options.fill, vocabulary, engine.context_length)
    batched = engine.settings["batch_size"]
    if options.batch_size is not None:
        batched = Setting(requested=options.batch_size, resolved=options.batch_size, source="lane")
    batches = list(plan_batches(requests, options.repeat, int(batched.resolved), beside))
    settings = {
        **runtime_settings(envelopes[0].runtime, lane.engine, fingerprint),
        **engine.settings,
        "batch_size": batched,
        "repeat": Setting(resolved=options.repeat, source="lane"),
        "neighbours": Setting(resolved=len(neighbours) + options.fill, source="lane"),
    }
    observes = options.capture != "tokens"
    header = TraceHeader(
        tool_version=__version__,
        created=fingerprint.created,
        lane=lane.model_copy(update={"settings": settings}),
        abilities=EngineAbilities(
            modes=list(engine.capabilities.modes),
            seed=engine.capabilities.seed,
            token_ids=engine.capabilities.token_ids,
            logprobs=engine.capabilities.logprobs,
        ),
        mode=options.mode,
        capture=options.capture,
        channel=engine.channel if observes else "",
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
        final = _execute(engine, batches, options, recorder, header, started, findings)
        writer.finish(final)
    except KeyboardInterrupt:
        raise _interrupted(writer, recorder, header) from None
    except OutputFailed:
        raise  # nothing more can be written; the message names what was
    except RipError as error:
        kept = _kept(writer, recorder, header)
        if kept is None:
            raise
        raise type(error)(f"{error.message}; {kept[0]}", error.fix) from error
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
    findings: Findings,
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
        observer = observe_again(engine, batches[0], options.mode, recorder.first_logits)
        seconds["observer"] = round(time.perf_counter() - replayed, 6)
    recorder.add_findings(findings)
    for sentence in engine.findings:  # some are made while it runs
        findings.add(sentence)
    not_seen = engine.not_seen
    if options.capture == "tensors" and not recorder.kept_tensors:
        not_seen = [
            *not_seen,
            "no row was kept: every sequence ended before the positions that were asked for",
        ]
    return header.model_copy(
        update={
            "observer": observer,
            "seconds": seconds,
            "findings": findings.sentences(),
            "not_seen": not_seen,
            "results": recorder.results(),
            "token_text": recorder.token_text(),
        }
    )


def _interrupted(writer: TraceWriter, recorder: Recorder, header: TraceHeader) -> Interrupted:
    kept = _kept(writer, recorder, header)
    if kept is None:
        return Interrupted("interrupted; nothing was recorded yet", "run the command again")
    return Interrupted(
        f"interrupted; {kept[0]}", f"rip query {kept[1]} and rip diverge read them as they are"
    )


def _kept(writer: TraceWriter, recorder: Recorder, header: TraceHeader) -> tuple[str, Path] | None:
    """What a run that ends early leaves, in words, and where; None: nothing."""
    results = recorder.results()
    if results:
        writer.update(header.model_copy(update={"results": results}))
    folder = writer.abandon()
    if folder is None:
        return None
    rows = writer.rows_written
    what = f"{rows} rows are" if rows else f"{len(results)} {'texts are' if len(results) > 1 else 'text is'}"
    return f"{what} kept in {folder}", folder


def _check_capabilities(engine: Engine, name: str, options: Options) -> None:
    """Refuse, before any work, what the engine cannot give."""
    refuse_mode(name, engine.capabilities, options.mode)
    if options.capture != "tokens":
        refuse_sites(name, engine.capabilities)
    if options.fill and not engine.capabilities.token_ids:
        raise BadInput(
            f"synthetic neighbours are token ids, and the engine {name} takes text",
            "give --neighbours a request set in place of a number",
        )


def _vocabulary(engine: Engine, fingerprint: Fingerprint) -> int:
    """How many token ids synthetic neighbours are drawn from.

    Raises:
        BadInput: Neither the engine nor the model's files tell.
    """
    known = known_vocabulary(engine.vocab_size, fingerprint)
    if known is None:
        raise BadInput(
            "synthetic neighbours are random token ids, and the size of the vocabulary is not known here",
            "name the model's files with --model, or give a request set with --neighbours SET.jsonl",
        )
    return known


def _took(setting: Setting) -> bool:
    """False where the engine reports something else than it was given (`cuda` is reported as `cuda:0`)."""
    given, reported = str(setting.resolved), str(setting.observed)
    return setting.observed is None or reported == given or reported.startswith(f"{given}:")
