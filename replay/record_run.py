"""Recording a run: engine events become trace rows, progress and results; and the observer check."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..schemas.envelope import Envelope
from ..schemas.errors import RipError
from ..schemas.trace import Mode, ObserverCheck, SequenceResult
from .engines.base import Engine, Finished
from .request.batches import Batch
from .request.expected_answer import Compared, Generated, compare
from .request.findings import Findings
from .row_summaries.rows import Rows
from .trace_writer import SequenceInfo, TraceWriter

Progress = Callable[[int, int, str], None]
"""Called with (generated tokens, tokens at most, stage and what is running)."""


@dataclass(frozen=True)
class Outcome:
    """How one sequence ended.

    Attributes:
        reason: `stop`, `length` or `golden`.
        expected: How it compares with the recorded answer.
    """

    request_id: str
    sample: int
    tokens: tuple[int, ...]
    text: str | None
    reason: str
    expected: Compared


@dataclass(frozen=True)
class Logits:
    """What is known of the logits of one row."""

    logits_hash: bytes | None
    top: bytes
    """Ids and log-probabilities of the top-K, as bytes."""


class Recorder:
    """Writes what an engine hands over and keeps what the summary needs."""

    def __init__(
        self, writer: TraceWriter, engine: Engine, batches: Sequence[Batch], progress: Progress
    ) -> None:
        self._writer = writer
        self.engine = engine
        self._progress = progress
        planned = [sequence for batch in batches for sequence in batch.sequences if sequence.recorded]
        self._planned = {sequence.sequence: sequence for sequence in planned}
        self._tokens: dict[int, list[int]] = {sequence.sequence: [] for sequence in planned}
        self._finished: dict[int, Finished] = {}
        self._ids: set[int] = set()
        self._total = sum(sequence.most_tokens for sequence in planned)
        self._done = 0
        self.first_logits: list[Logits] = []
        """Of the first batch, in the order they were handed over."""
        self.kept_tensors = False
        """Whether some row kept its tensors."""

    def run(self, batch: Batch, mode: Mode, observe: bool) -> None:
        """Execute one batch and record it."""
        first = not self._finished
        names = [sequence.request_id for sequence in batch.sequences if sequence.recorded]
        note = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        before = self._done
        self.show(f"prefill · {note}")
        events = self.engine.run(batch, mode, observe)
        try:
            for event in events:
                self._take(event, first)
                self.show(f"{'replaying' if self._done > before else 'prefill'} · {note}")
        except KeyboardInterrupt:
            for event in _interrupted(events):
                if not self._writer.is_torn:
                    self._take(event, first)
            raise
        finally:
            if isinstance(events, Generator):
                events.close()  # now, while what it runs on is there

    def _take(self, event: Rows | Finished, first: bool) -> None:
        """Record what the engine handed over; `first`: in the first batch."""
        if isinstance(event, Finished):
            self._finished[event.sequence] = event
            return
        plan = self._planned[event.sequence]
        self._writer.append(SequenceInfo(plan.request_id, plan.sample, len(plan.prompt)), event)
        if first:
            self.first_logits += logits_of(event)
        self._remember(event, len(plan.prompt))

    def show(self, note: str) -> None:
        """Report what is going on to the progress."""
        self._progress(self._done, self._total, note)

    def token_text(self) -> dict[str, str]:
        """Text of every token id that occurs, so that a report can show words without the tokenizer."""
        return {str(token): text for token, text in self.engine.texts_of(sorted(self._ids)).items()}

    def outcomes(self, envelopes: Mapping[str, Envelope], mode: Mode) -> list[Outcome]:
        """How every recorded sequence ended.

        Args:
            envelopes: By request id.
            mode: Only a free run can meet or miss expected tokens: the others force them.
        """
        found = []
        for sequence, plan in self._planned.items():
            tokens, finished = self._tokens[sequence], self._finished[sequence]
            # Without a tokenizer, an engine's text is empty whatever the model wrote.
            text = finished.text if self.engine.has_tokenizer() else None
            generated = Generated(tokens, text, finished.reason, self.engine.capabilities.token_ids)
            free = mode == "free"
            found.append(
                Outcome(
                    request_id=plan.request_id,
                    sample=plan.sample,
                    tokens=tuple(tokens),
                    text=finished.text,
                    reason=finished.reason,
                    expected=compare(plan, envelopes[plan.request_id], generated) if free else Compared(),
                )
            )
        return found

    def results(self) -> list[SequenceResult]:
        """How every recorded sequence that has ended did so, for the trace's header."""
        found = []
        for sequence, finished in sorted(self._finished.items()):
            plan, timing = self._planned[sequence], finished.timing
            found.append(
                SequenceResult(
                    sequence=sequence,
                    request_id=plan.request_id,
                    sample=plan.sample,
                    reason=finished.reason,
                    text=finished.text,
                    ttft_s=timing.ttft_s if timing else None,
                    itl_s=timing.itl_s if timing else None,
                    latency_s=timing.latency_s if timing else None,
                    answered_by=dict(finished.answered_by),
                )
            )
        return found

    def add_findings(self, findings: Findings) -> None:
        """Add what the engine found out about sequences while it ran them."""
        for sequence, finished in sorted(self._finished.items()):
            findings.extend(finished.findings, self._planned[sequence].request_id)

    def _remember(self, rows: Rows, prompt_tokens: int) -> None:
        ids = rows.token_ids.tolist()
        self._ids.update(ids)
        for topk in rows.topk:
            if topk is not None:
                self._ids.update(topk.ids.tolist())
        generated = ids[max(0, prompt_tokens - rows.first_position) :]
        self._tokens[rows.sequence] += generated
        self._done += len(generated)
        self.kept_tensors = self.kept_tensors or any(rows.tensors)


def _interrupted(events: Iterator[Rows | Finished]) -> Generator[Rows | Finished, None, None]:
    """What a run still hands over that is interrupted, here or there."""
    if not isinstance(events, Generator):
        return
    with suppress(KeyboardInterrupt, StopIteration):
        yield events.throw(KeyboardInterrupt())  # where it was interrupted itself, it has ended
        yield from events


def logits_of(rows: Rows) -> list[Logits]:
    """What is known of the logits of these rows, in order; rows without any are left out."""
    return [
        Logits(topk.logits_hash, topk.ids.tobytes() + topk.logprobs.tobytes())
        for topk in rows.topk
        if topk is not None
    ]


OBSERVER_ROWS = 64
"""Rows after which the check stops: enough for differences to show, cheap on long answers."""


def check_observer(engine: Engine, batch: Batch, mode: Mode, observed: Sequence[Logits]) -> ObserverCheck:
    """Repeat the first batch of a run with taps off.

    Where the engine's scheduler decides which sequences share a pass, no two runs of a batch are alike: its
    first sequence is then run alone, with taps on and off.

    Args:
        engine: The engine that ran it; it is reset, so that a worker's seed starts again.
        batch: The first batch.
        mode: As it was run.
        observed: Its logits with taps on, in the order they were handed over.
    """
    alone = engine.capabilities.batch == "concurrent" and len(batch.sequences) > 1
    chosen = Batch(batch.sequences[:1]) if alone else batch
    try:
        watched = _first_logits(engine, chosen, mode, observe=True) if alone else list(observed)
        plain = _first_logits(engine, chosen, mode, observe=False)
    except RipError as error:
        return ObserverCheck(state="not run", reason="run failed", error=error.message)
    if not plain:
        return ObserverCheck(state="not run", reason="no logits")
    by_hash = all(row.logits_hash is not None for row in plain)
    expected = watched[:OBSERVER_ROWS]
    if by_hash:
        same = [row.logits_hash for row in plain] == [row.logits_hash for row in expected]
    else:
        same = [row.top for row in plain] == [row.top for row in expected]
    names = dict.fromkeys(sequence.request_id for sequence in chosen.sequences if sequence.recorded)
    return ObserverCheck(
        state="equal" if same else "changed",
        reason=None if same else "changed",
        of="logits hashes" if by_hash else "top-K log-probabilities",
        rows=len(plain),
        requests=list(names),
        alone=alone,
    )


def _first_logits(engine: Engine, batch: Batch, mode: Mode, observe: bool) -> list[Logits]:
    """The first logits of a run from a fresh start, at most as many rows as are compared."""
    engine.reset()
    found: list[Logits] = []
    for event in engine.run(batch, mode, observe):
        if isinstance(event, Rows):
            found += logits_of(event)
        if len(found) >= OBSERVER_ROWS:
            break
    return found[:OBSERVER_ROWS]
