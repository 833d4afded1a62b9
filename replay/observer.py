"""The observer check: does a run come out the same, bit for bit, when nobody observes it?"""

from __future__ import annotations

from collections.abc import Sequence

from ..schemas.errors import RipError
from ..schemas.trace import Mode, ObserverCheck
from .engines.base import Engine, Rows
from .plan import Batch
from .record import logits_hashes

OBSERVER_ROWS = 64
"""Rows after which the check stops: enough for differences to show, cheap on long answers."""


def observe_again(engine: Engine, batch: Batch, mode: Mode, observed: Sequence[bytes]) -> ObserverCheck:
    """Repeat the first batch of a run with taps off.

    Args:
        engine: The engine that ran it; it is reset, so that a worker's seed starts again.
        batch: The first batch.
        mode: As it was run.
        observed: Its logits hashes with taps on, in the order they were handed over.
    """
    engine.reset()
    plain: list[bytes] = []
    whole = True
    try:
        for event in engine.run(batch, mode, observe=False):
            if isinstance(event, Rows):
                plain += logits_hashes(event)
            if len(plain) >= OBSERVER_ROWS:
                whole = False
                break
    except RipError as error:
        return ObserverCheck(state="not run", why=f"the run without taps failed: {error.message}")
    if not plain:
        return ObserverCheck(state="not run", why="the engine gives no logits hashes")
    same = plain == list(observed if whole else observed[: len(plain)])
    names = dict.fromkeys(sequence.request_id for sequence in batch.sequences if sequence.recorded)
    first = next(iter(names))
    return ObserverCheck(
        state="equal" if same else "changed",
        compared=f"logits hashes of {len(plain)} rows of "
        + (first if len(names) == 1 else f"{first} and {len(names) - 1} more")
        + ", taps on and off",
        why=None
        if same
        else "observing changed the logits, or the engine does not repeat itself: --repeat 2 tells",
    )
