"""Executing envelopes on an engine: plan, run, record, check the observer, write one trace."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import __version__
from ..schemas.envelope import Envelope
from ..schemas.errors import BadInput, Interrupted, OutputFailed, RipError
from ..schemas.fingerprint import Fingerprint
from ..schemas.lane import Lane, Setting
from ..schemas.trace import CaptureLevel, EngineAbilities, Mode, ObserverCheck, Request, TraceHeader
from .engines.base import Engine
from .record_run import Outcome, Progress, Recorder, check_observer
from .request.batches import Batch, Neighbours, ResolvedRequest, plan_batches
from .request.findings import Findings, finding, observer_in_words, sentence
from .request.identity import check_identity, runtime_difference, runtime_settings, unstated_identity
from .request.resolve_request import (
    Golden,
    check_capabilities,
    known_vocabulary,
    resolve_request,
    vocabulary_size,
)
from .trace_writer import TraceWriter


@dataclass(frozen=True)
class Options:
    """How the envelopes are executed.

    Attributes:
        repeat: Times that every sample runs.
        neighbours: Envelopes that run beside every batch, unrecorded.
        fill: Synthetic neighbours added to every batch.
        golden: Tokens of a golden trace, with its path; None takes them from the envelopes.
        sampling: Sampling fields, by name, that apply in place of every envelope's.
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
    sampling: Mapping[str, Any] = field(default_factory=dict)
    allow_drift: bool = False
    site_filter: str = ""
    load_seconds: float | None = None
    force: bool = False
    batch_size: int | None = None

    @property
    def observes(self) -> bool:
        """Whether sites are captured."""
        return self.capture != "tokens"


@dataclass(frozen=True)
class OpenedLane:
    """An opened engine, and what the trace says of it.

    Attributes:
        engine: A seed whose scope is the worker starts with the replay.
        lane: What it is called and how it was opened; its settings are filled in by the replay.
        fingerprint: The environment, model included; identity hashes are checked against it.
    """

    engine: Engine
    lane: Lane
    fingerprint: Fingerprint


@dataclass(frozen=True)
class Result:
    """A finished replay."""

    path: Path
    header: TraceHeader
    outcomes: list[Outcome] = field(repr=False)

    @property
    def expectations_met(self) -> bool:
        """True unless some recorded answer was compared and was not reproduced."""
        return all(outcome.expected.mismatch is None for outcome in self.outcomes)

    @property
    def compared_none(self) -> bool:
        """True where recorded answers should be reproduced, and none of them could be compared."""
        compared = [outcome.expected for outcome in self.outcomes]
        return any(one.obstacle for one in compared) and not any(one.by for one in compared)


def replay(
    envelopes: Sequence[Envelope], opened: OpenedLane, options: Options, out: Path, progress: Progress
) -> Result:
    """Run all envelopes and write one trace.

    Args:
        envelopes: What to run, in this order; their request ids differ.
        progress: Called after every piece of work.

    Raises:
        ContractBroken: Another model, tokenizer or template than an envelope names.
        BadInput: A request that this model cannot run.
        EngineFailed, OutputFailed: What was flushed before is kept beside `out`.
        Interrupted: Likewise.
    """
    started = time.perf_counter()
    engine = opened.engine
    check_capabilities(opened.lane.engine, engine.capabilities, options.mode, options.observes)
    engine.vocab_size = known_vocabulary(engine.vocab_size, opened.fingerprint)
    findings = Findings()
    requests = _resolve(envelopes, opened, options, findings)
    batches, settings = _plan(requests, opened, options)
    header = _header(envelopes, requests, opened, options, settings, findings)
    writer = TraceWriter(out, header, keeps_tensors=options.capture == "tensors", force=options.force)
    recorder = Recorder(writer, engine, batches, progress)
    try:
        final = _execute(recorder, batches, options, findings, header, started)
        writer.finish(final)
    except KeyboardInterrupt:
        raise _interrupted(writer, recorder, header) from None
    except OutputFailed:
        raise  # nothing more can be written; the message names what was
    except RipError as error:
        kept = _keep(writer, recorder, header)
        if kept is None:
            raise
        raise type(error)(f"{error.message}; {kept[1]}", error.fix) from error
    finally:
        writer.close()
    by_id = {envelope.request_id: envelope for envelope in envelopes}
    return Result(out, final, recorder.outcomes(by_id, options.mode))


def _resolve(
    envelopes: Sequence[Envelope], opened: OpenedLane, options: Options, findings: Findings
) -> list[ResolvedRequest]:
    """The requests, checked against model and environment."""
    engine, fingerprint = opened.engine, opened.fingerprint
    findings.extend(unstated_identity(envelopes))
    requests = []
    for envelope in envelopes:
        findings.extend(check_identity(envelope, fingerprint, options.allow_drift), envelope.request_id)
        if difference := runtime_difference(envelope.runtime, opened.lane.engine, fingerprint):
            findings.add(difference, envelope.request_id)
        requests.append(_resolved(envelope, engine, options, findings))
    findings.extend(engine.findings)
    for name, setting in engine.settings.items():
        if setting.source == "lane" and not _has_effect(setting):
            requested, observed = setting.resolved, setting.observed
            findings.add(finding("setting-without-effect", name=name, requested=requested, observed=observed))
    return requests


def _resolved(envelope: Envelope, engine: Engine, options: Options, findings: Findings) -> ResolvedRequest:
    return resolve_request(envelope, engine, options.mode, options.golden, findings, options.sampling)


def _plan(
    requests: Sequence[ResolvedRequest], opened: OpenedLane, options: Options
) -> tuple[list[Batch], dict[str, Setting]]:
    """The batches, and the settings of the run for the trace."""
    engine = opened.engine
    neighbours = [resolve_request(other, engine, "free", None, Findings()) for other in options.neighbours]
    beside = Neighbours(neighbours, options.fill, _vocabulary(engine, opened, options), engine.context_length)
    batch_size = engine.settings["batch_size"]
    if options.batch_size is not None:
        batch_size = Setting(requested=options.batch_size, resolved=options.batch_size, source="lane")
    batches = list(plan_batches(requests, options.repeat, int(batch_size.resolved), beside))
    runtime = requests[0].envelope.runtime
    return batches, {
        **runtime_settings(runtime, opened.lane.engine, opened.fingerprint),
        **engine.settings,
        "batch_size": batch_size,
        "repeat": Setting(resolved=options.repeat, source="lane"),
        "neighbours": Setting(resolved=len(neighbours) + options.fill, source="lane"),
    }


def _vocabulary(engine: Engine, opened: OpenedLane, options: Options) -> int:
    """How many token ids synthetic neighbours are drawn from.

    Raises:
        BadInput: It is not known, or the engine takes no token ids.
    """
    if not options.fill:
        return engine.vocab_size
    if not engine.capabilities.token_ids:
        raise BadInput(
            f"synthetic neighbours are token ids, and the engine {opened.lane.engine} takes text",
            "name a request set with --neighbours SET.jsonl in place of a number",
        )
    return vocabulary_size(
        engine.vocab_size, opened.fingerprint, "or name a request set with --neighbours SET.jsonl"
    )


def _header(
    envelopes: Sequence[Envelope],
    requests: Sequence[ResolvedRequest],
    opened: OpenedLane,
    options: Options,
    settings: dict[str, Setting],
    findings: Findings,
) -> TraceHeader:
    """The header as it is known before anything runs."""
    engine, can = opened.engine, opened.engine.capabilities
    return TraceHeader(
        tool_version=__version__,
        created=opened.fingerprint.created,
        lane=opened.lane.model_copy(update={"settings": settings}),
        abilities=EngineAbilities(
            modes=list(can.modes), seed=can.seed, token_ids=can.token_ids, logprobs=can.logprobs
        ),
        mode=options.mode,
        capture=options.capture,
        channel=engine.channel if options.observes else "",
        requests=[
            Request.of(recorded, request.sampling)
            for recorded, request in zip(envelopes, requests, strict=True)
        ],
        fingerprint=opened.fingerprint,
        sites=engine.sites if options.observes else [],
        site_filter=options.site_filter,
        row_hash=engine.row_hash,
        sketch=engine.sketch if options.observes else "",
        not_seen=engine.not_seen,
        **_stated(findings),
    )


def _stated(findings: Findings) -> dict[str, Any]:
    """The findings as a header holds them: as sentences and as data."""
    found = findings.all()
    return {"findings": [sentence(one) for one in found], "findings_data": found}


def _execute(
    recorder: Recorder,
    batches: Sequence[Batch],
    options: Options,
    findings: Findings,
    header: TraceHeader,
    started: float,
) -> TraceHeader:
    """Run every batch and the observer check → the header as it is known at the end.

    Args:
        started: When the replay did, by `time.perf_counter`.
    """
    engine = recorder.engine
    engine.reset()
    for batch in batches:
        recorder.run(batch, options.mode, options.observes)
    replayed = time.perf_counter()
    seconds = {} if options.load_seconds is None else {"load": round(options.load_seconds, 6)}
    seconds["replay"] = round(replayed - started, 6)
    observer = ObserverCheck(state="not run", reason="no sites captured")
    if options.observes:
        recorder.show("observer check: the first batch with taps off")
        observer = check_observer(engine, batches[0], options.mode, recorder.first_logits)
        seconds["observer"] = round(time.perf_counter() - replayed, 6)
    recorder.add_findings(findings)
    findings.extend(engine.findings)  # some are made while it runs
    not_seen = engine.not_seen
    if options.capture == "tensors" and not recorder.kept_tensors:
        not_seen = [*not_seen, "no row was kept: every sequence ended before the positions of --positions"]
    return header.model_copy(
        update={
            "observer": observer_in_words(observer),
            "seconds": seconds,
            "not_seen": not_seen,
            "results": recorder.results(),
            "token_text": recorder.token_text(),
            **_stated(findings),
        }
    )


def _interrupted(writer: TraceWriter, recorder: Recorder, header: TraceHeader) -> Interrupted:
    kept = _keep(writer, recorder, header)
    if kept is None:
        return Interrupted("interrupted; nothing was recorded yet", "run the command again")
    folder, what = kept
    return Interrupted(f"interrupted; {what}", f"rip query {folder} and rip diverge read them as they are")


def _keep(writer: TraceWriter, recorder: Recorder, header: TraceHeader) -> tuple[Path, str] | None:
    """Keep what a run that ends early has recorded: where, and what, in words; None: nothing."""
    results = recorder.results()
    if results:
        writer.update(header.model_copy(update={"results": results}))
    folder = writer.abandon()
    if folder is None:
        return None
    texts = f"{len(results)} texts are" if len(results) > 1 else "1 text is"
    rows = f"{writer.rows_written} rows are" if writer.rows_written else texts
    return folder, f"{rows} kept in {folder}"


def _has_effect(setting: Setting) -> bool:
    """False where the engine reports a different value than it was given (`cuda` is reported as `cuda:0`)."""
    requested, reported = str(setting.resolved), str(setting.observed)
    return setting.observed is None or reported == requested or reported.startswith(f"{requested}:")
