"""The words of the batch-invariance check: its verdict, and a line for everything that was compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...schemas.check import Check, CheckLine
from ...schemas.command_line import DivergeCommand, shell_line


def verdict_sentence(result: Check) -> str:
    """What was found, in one sentence that claims no more than was run."""
    required = [line for line in result.lines if line.required]
    unequal = [line.what for line in required if line.state == "differs"]
    missing = [line.what for line in required if line.state == "not returned"]
    kind = "tokens" if result.mode == "free" else "forced tokens"
    ran = f"{result.sequences} sequences of {result.tokens} {kind}"
    if result.batch == 1:
        holds, fails = "the engine repeats itself", "the engine does not repeat itself"
        how = "one by one, twice"
    else:
        holds, fails = "batch invariance holds here", "batch invariance does not hold"
        how = f"one by one and in batches of {result.batch}"
        if result.together == "sent together":
            how = f"one by one and sent {result.batch} together (the engine's scheduler chose the batches)"
        elif result.batch >= result.sequences:
            how = f"one by one and as one batch of {result.sequences}"
    if unequal:
        return f"{fails}: {_listed(unequal)} of {ran} differ, {how}"
    if missing:
        return f"not shown: the engine does not return {_listed(missing)}"
    return f"{holds}: {_listed([line.what for line in required])} of {ran} are exactly equal, {how}"


def next_steps(result: Check, folder: Path) -> list[str]:
    """What to run where the check fails; nothing where it holds."""
    if result.holds:
        return []
    control = "to see whether the engine repeats itself at all: the same check with --batch 1"
    compare = DivergeCommand(str(folder / result.alone), str(folder / result.batched))
    find = f"to find the first difference: {shell_line(compare.arguments())}"
    return [control, find] if result.batch > 1 else [find]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def run_sentence(result: Check) -> str:
    """What ran."""
    shortest, longest = result.prompt_lengths
    if result.mode == "golden-decode":
        tokens = "random tokens forced"
    elif result.sampled:
        tokens = "drawn at temperature 1, a seed for each sequence"
    else:
        tokens = "greedy, no tokens forced"
    return (
        f"{result.sequences} random sequences of {shortest} to {longest} tokens, {result.tokens} "
        f"generated tokens each, {tokens}; engine {result.engine}"
    )


def line_sentence(line: CheckLine, result: Check) -> str:
    """One line of the result: `logprobs            differ first at sequence-03, step 0: …`."""
    name = f"{line.what:<19}"
    note = "" if line.required else " (not required)"
    if line.state == "not returned":
        return f"{name} not returned by this engine{note}"
    if line.first is None:
        forced = " (forced)" if line.what == "token ids" and result.mode == "golden-decode" else ""
        missing = f", not returned in {line.not_returned:,}" if line.not_returned else ""
        return f"{name} equal in {line.compared:,} steps{forced}{missing}{note}"
    first = line.first
    rank = "" if first.rank is None else f", rank {first.rank}"
    extent = f"; {line.differing:,} of {line.compared:,} steps"
    if line.largest is not None:
        extent += f", by at most {line.largest:.3g} nats"
    values = f"{_value(first.alone)} alone, {_value(first.batched)} batched"
    return f"{name} differ first at {first.request_id}, step {first.step}{rank}: {values}{extent}{note}"


def _value(value: int | float | None) -> str:
    """A token id, or a float32 with all its digits."""
    if value is None:
        return "nothing"
    return str(value) if isinstance(value, int) else f"{value:.9g}"
