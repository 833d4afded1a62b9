"""The batch-invariance check: random sequences one by one and together, compared bit for bit.

It is the acceptance test that DeepInfer publishes for itself, for any engine that rip can replay on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..replay.engines.base import Engine
from ..replay.record_run import Progress
from ..replay.request.capabilities import vocabulary_size
from ..replay.run import OpenedLane, Options, replay
from ..schemas.check import Check, CheckLine
from ..schemas.claim import Claim
from ..schemas.envelope import Envelope
from ..schemas.errors import BadInput
from ..schemas.fingerprint import Fingerprint
from ..schemas.trace import Lane, Mode
from .exact_comparison import compare

ALONE, BATCHED = "alone.parquet", "batched.parquet"
DEFAULT_LENGTH = 256
"""Longest prompt where nothing is said: short ones often show no drift at all."""


@dataclass(frozen=True)
class Draft:
    """What the check runs.

    Attributes:
        sequences: How many.
        tokens: Generated tokens of each.
        seed: Of prompts, golden tokens and draws.
        min_length: Shortest prompt, in tokens.
        max_length: Longest one; None: 256, or less where the context is shorter.
        batch: Sequences that run together.
        mode: `golden-decode` forces random tokens, `free` lets the engine choose.
        sampled: In `free`: at temperature 1 with a seed for each sequence, else greedy.
    """

    sequences: int
    tokens: int
    seed: int
    min_length: int
    max_length: int | None
    batch: int
    mode: Mode
    sampled: bool = False

    @property
    def required(self) -> tuple[str, ...]:
        """What must be equal."""
        return (
            ("token ids",)
            if self.sampled
            else ("token ids", "logprobs", "top token ids", "top-token logprobs")
        )


def random_requests(draft: Draft, engine: Engine, fingerprint: Fingerprint) -> list[Envelope]:
    """Envelopes with random prompts of different lengths; the same ones for the same seed and sizes.

    Every sampling field is stated, so that no default of the engine applies.

    Raises:
        BadInput: The context does not hold them, or the size of the vocabulary is not known.
    """
    vocabulary = vocabulary_size(engine.vocab_size, fingerprint)
    longest = _longest(draft, engine.context_length)
    generator = random.Random(f"batch-invariance/{draft.seed}")
    choices = range(draft.min_length, longest + 1)
    distinct = len(choices) >= draft.sequences
    lengths = (
        generator.sample(choices, draft.sequences)
        if distinct
        else generator.choices(choices, k=draft.sequences)
    )
    width = len(str(draft.sequences - 1))
    sampling: dict[str, Any] = {
        "temperature": 1.0 if draft.sampled else 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": draft.tokens,
    }
    if "ignore_eos" not in engine.unsupported_sampling:
        sampling["ignore_eos"] = True
    made = []
    for index, length in enumerate(lengths):
        raw: dict[str, Any] = {
            "request_id": f"sequence-{index:0{width}}",
            "prompt_token_ids": [generator.randrange(vocabulary) for _ in range(length)],
            "sampling": {**sampling, "seed": draft.seed + index},
        }
        golden = [generator.randrange(vocabulary) for _ in range(draft.tokens)]
        if draft.mode == "golden-decode":
            raw["expected"] = {"token_ids": golden}
        made.append(Envelope.from_object(raw, "batch-invariance"))
    return made


def check_batch_invariance(
    draft: Draft,
    requests: list[Envelope],
    engine: Engine,
    lane: Lane,
    fingerprint: Fingerprint,
    folder: Path,
    force: bool,
    progress: Progress,
) -> Check:
    """Run the requests one by one, then together, and compare.

    Args:
        draft: What is checked.
        requests: From `random_requests`.
        engine: An opened engine that has the mode.
        lane: How it was opened.
        fingerprint: The environment, model included.
        folder: Where both traces go.
        force: Replace traces that are there.
        progress: Told about every piece of work done.

    Raises:
        RipError: As `run.replay`.
    """
    for name, size in ((ALONE, 1), (BATCHED, draft.batch)):
        options = Options(
            mode=draft.mode,
            capture="tokens",
            batch_size=size,
            force=force,
        )
        named = lane.model_copy(update={"name": name.removesuffix(".parquet")})
        replay(requests, OpenedLane(engine, named, fingerprint), options, folder / name, progress)
    lines = compare(folder / ALONE, folder / BATCHED, draft.required)
    together = "as one batch" if engine.capabilities.batch == "static" else "sent together"
    return Check(
        tool_version=__version__,
        created=fingerprint.created,
        check="batch-invariance",
        engine=lane.engine,
        model=lane.model or "",
        mode=draft.mode,
        sampled=draft.sampled,
        batch=draft.batch,
        together=together,  # type: ignore[arg-type]
        claim=_claim(draft, requests, fingerprint),
        holds=all(line.state == "equal" for line in lines if line.required),
        verdict=_verdict(draft, lines, together),
        lines=lines,
        alone=ALONE,
        batched=BATCHED,
    )


def _claim(draft: Draft, requests: list[Envelope], fingerprint: Fingerprint) -> Claim:
    lengths = [len(request.prompt_token_ids or ()) for request in requests]
    return Claim(
        level="token" if draft.sampled else "bitwise",
        compared=list(draft.required),
        equality="exact",
        held={
            "sequences": draft.sequences,
            "tokens": draft.tokens,
            "seed": draft.seed,
            "prompt_lengths": [min(lengths), max(lengths)],
            "temperature": 1 if draft.sampled else 0,
        },
        varied={"batch": [1, draft.batch]},
        environment={"fingerprint": fingerprint.root_digest, **fingerprint.flat()},
        evidence="run",
    )


def _verdict(draft: Draft, lines: list[CheckLine], together: str) -> str:
    """What was found, in one sentence that claims no more than was run."""
    required = [line for line in lines if line.required]
    unequal = [line.what for line in required if line.state == "differs"]
    untold = [line.what for line in required if line.state == "not told"]
    kind = "tokens" if draft.mode == "free" else "forced tokens"
    ran = f"{draft.sequences} sequences of {draft.tokens} {kind}"
    if draft.batch == 1:
        holds, fails = "the engine repeats itself", "the engine does not repeat itself"
        how = "one by one, twice"
    else:
        holds, fails = "batch invariance holds here", "batch invariance does not hold"
        how = f"one by one and in batches of {draft.batch}"
        if together == "sent together":
            how = f"one by one and sent {draft.batch} together (the engine's scheduler chose the batches)"
        elif draft.batch >= draft.sequences:
            how = f"one by one and as one batch of {draft.sequences}"
    if unequal:
        return f"{fails}: {_listed(unequal)} of {ran} differ, {how}"
    if untold:
        return f"not shown: the engine tells no {_listed(untold)}"
    return f"{holds}: {_listed([line.what for line in required])} of {ran} are exactly equal, {how}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _longest(draft: Draft, context: int) -> int:
    """Tokens of the longest prompt.

    Raises:
        BadInput: No prompt of the lengths that were asked for leaves room for the generated tokens.
    """
    room = context - draft.tokens
    longest = (
        draft.max_length if draft.max_length is not None else min(max(DEFAULT_LENGTH, draft.min_length), room)
    )
    if longest > room or longest < draft.min_length:
        raise BadInput(
            f"prompts of {draft.min_length} to {max(longest, draft.min_length)} tokens and {draft.tokens} "
            f"generated ones do not fit the context of {context}",
            "lower --min-length, --max-length or --tokens",
        )
    return longest
