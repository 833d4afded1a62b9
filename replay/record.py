"""Recording a run: engine events become trace rows, progress, and how each sequence ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..schemas.envelope import Envelope, Expected
from ..schemas.trace import Mode, SequenceResult
from .capture.writer import SequenceInfo, TraceWriter
from .contract import is_repeatable
from .engines.base import Engine, Finished, Rows
from .findings import Findings
from .plan import Batch
from .tool_calls import with_calls

Progress = Callable[[int, int, str], None]
"""Called with (generated tokens, tokens at most, stage and what is running)."""


@dataclass(frozen=True)
class Outcome:
    """How one sequence ended.

    Attributes:
        reason: `stop`, `length` or `golden`.
        had_expected: Whether the envelope states tokens (of an engine that tells only text: a text) that this
            sequence should bring again.
        mismatch: Step at which they were left, or character where there is only text; None where they came
            again, or were not stated.
    """

    request_id: str
    sample: int
    tokens: tuple[int, ...]
    text: str | None
    reason: str
    had_expected: bool
    mismatch: int | None


@dataclass(frozen=True)
class Logits:
    """What is known of the logits of one row."""

    logits_hash: bytes | None
    told: bytes
    """Ids and log-probabilities of the top-K, as bytes."""


def sample_of(expected: Expected | None, index: int) -> Expected | None:
    """What is expected of one of the n samples of a request; None: nothing is stated."""
    if expected is None or index == 0:
        return expected
    others = expected.samples or []
    return others[index - 1] if index <= len(others) else None


class Recorder:
    """Writes what an engine hands over and keeps what the summary needs.

    Args:
        writer: Where rows go.
        engine: An opened engine.
        batches: Everything that will be run.
        progress: Told about every piece of work done.
    """

    def __init__(
        self, writer: TraceWriter, engine: Engine, batches: Sequence[Batch], progress: Progress
    ) -> None:
        self._writer = writer
        self._engine = engine
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
        self.say(f"prefill · {note}")
        for event in self._engine.run(batch, mode, observe):
            if isinstance(event, Finished):
                self._finished[event.sequence] = event
                continue
            plan = self._planned[event.sequence]
            self._writer.append(SequenceInfo(plan.request_id, plan.sample, len(plan.prompt)), event)
            if first:
                self.first_logits += logits_of(event)
            self._remember(event, len(plan.prompt))
            self.say(f"{'replaying' if self._done > before else 'prefill'} · {note}")

    def say(self, note: str) -> None:
        """Tell the progress what is going on."""
        self._progress(self._done, self._total, note)

    def token_text(self) -> dict[str, str]:
        """Text of every token id that occurs, so that a report can show words without the tokenizer."""
        return {str(token): text for token, text in self._engine.texts_of(sorted(self._ids)).items()}

    def outcomes(self, envelopes: Mapping[str, Envelope], mode: Mode) -> list[Outcome]:
        """How every recorded sequence ended.

        Args:
            envelopes: By request id.
            mode: Only a free run can meet or miss expected tokens: the others force them.
        """
        found = []
        for sequence, plan in self._planned.items():
            envelope = envelopes[plan.request_id]
            # Only what a seed can bring again, or greedy decoding, is expected to come again.
            expected = sample_of(envelope.expected, plan.seed_offset)
            stated = expected is not None and mode == "free" and is_repeatable(plan.sampling)
            tokens, finished = self._tokens[sequence], self._finished[sequence]
            wanted: Sequence[object] | None = None
            came: Sequence[object] = tokens
            if expected is not None and stated and self._engine.capabilities.token_ids:
                wanted = expected.token_ids
            elif expected is not None and stated:
                wanted, came = _expected_text(expected), finished.text or ""
            found.append(
                Outcome(
                    request_id=plan.request_id,
                    sample=plan.sample,
                    tokens=tuple(tokens),
                    text=finished.text,
                    reason=finished.reason,
                    had_expected=wanted is not None,
                    mismatch=None if wanted is None else first_difference(came, wanted),
                )
            )
        return found

    def results(self) -> list[SequenceResult]:
        """How every recorded sequence that came to its end did so, for the trace's header."""
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
        """What the engine found out about sequences while it ran them."""
        for sequence, finished in sorted(self._finished.items()):
            for sentence in finished.findings:
                findings.add(sentence, self._planned[sequence].request_id)

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


def _expected_text(expected: Expected) -> str | None:
    """The recorded answer as an engine that tells only text tells it: calls of tools stand in it."""
    if expected.text is None and not expected.tool_calls:
        return None
    return with_calls(expected.text or "", expected.tool_calls or ())


def logits_of(rows: Rows) -> list[Logits]:
    """What is known of the logits of these rows, in order; rows without any are left out."""
    return [
        Logits(topk.logits_hash, topk.ids.tobytes() + topk.logprobs.tobytes())
        for topk in rows.topk
        if topk is not None
    ]


def first_difference(a: Sequence[object], b: Sequence[object]) -> int | None:
    """First index at which two sequences differ; a strict prefix differs at its length; None: equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))
