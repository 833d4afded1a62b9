"""The observer check: is a run the same, bit for bit, when nothing observes it?"""

from __future__ import annotations

from collections.abc import Sequence

from ..schemas.errors import RipError
from ..schemas.trace import Mode, ObserverCheck
from .engines.base import Engine
from .record_run import Logits, logits_of
from .request.batches import Batch
from .row_summaries.rows import Rows

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
        return ObserverCheck(state="not run", why=f"the run without taps failed: {error.message}")
    if not plain:
        return ObserverCheck(state="not run", why="the engine does not return logits or log-probabilities")
    by_hash = all(row.logits_hash is not None for row in plain)
    expected = watched[:OBSERVER_ROWS]
    if by_hash:
        same = [row.logits_hash for row in plain] == [row.logits_hash for row in expected]
    else:
        same = [row.top for row in plain] == [row.top for row in expected]
    names = dict.fromkeys(sequence.request_id for sequence in chosen.sequences if sequence.recorded)
    first = next(iter(names))
    return ObserverCheck(
        state="equal" if same else "changed",
        compared=f"{'logits hashes' if by_hash else 'top-K log-probabilities'} of {len(plain)} rows of "
        + (first if len(names) == 1 else f"{first} and {len(names) - 1} more")
        + (" alone" if alone else "")
        + ", taps on and off",
        why=None
        if same
        else "observing changed the logits, or the engine is not deterministic: check with --repeat 2",
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
