"""What an engine can do, and the refusal of a replay that needs more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...schemas.errors import BadInput
from ...schemas.fingerprint import Fingerprint
from ...schemas.trace import Mode

UNKNOWN_LENGTH = 2**31 - 1
"""Vocabulary or context of a server that does not report its own."""


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do. A replay that needs more is refused before it starts."""

    modes: tuple[Mode, ...] = ("free",)
    sites: bool = False
    """Layers can be observed."""
    logits_hash: bool = False
    """Equal logits can be proved; else only log-probabilities can be compared."""
    seed: bool = True
    """A seed chooses the draws."""
    token_ids: bool = True
    """Takes a prompt as token ids, and returns the ids that it generated. Else there is only text."""
    most_topk: int | None = None
    """Largest K of the distributions that it returns; 0: none at all, None: no limit."""
    logprobs: Literal["raw", "processed", "unknown", "none"] = "raw"
    """Whether they are those before the logits processors and the temperature."""
    batch: Literal["static", "concurrent"] = "static"
    """`static`: the sequences of a batch share every forward pass. `concurrent`: they are sent together, and
    the engine's scheduler decides."""
    starts: bool = True
    """rip can start it, and so start it again; else it is only called by its URL."""
    taps: bool = False
    """A server that runs already shows its sites only through the folder that taps in it write to."""
    cancels: bool = True
    """A request that nobody waits for any more is stopped."""


def check_capabilities(engine: str, can: Capabilities, mode: str, sites: bool) -> None:
    """Refuse, before any work, what an engine does not support.

    Args:
        engine: Its name.
        can: What it supports.
        mode: What will be run.
        sites: Whether sites are to be captured.

    Raises:
        BadInput: It does not support the mode, or the capture of sites.
    """
    if mode not in can.modes:
        raise BadInput(
            f"the engine {engine} does not support mode {mode}", f"choose one of: {', '.join(can.modes)}"
        )
    if sites and not can.sites:
        raise BadInput(
            f"the engine {engine} does not support the capture of sites",
            "use --capture tokens, without --sites",
        )


def vocabulary_size(engine_size: int, fingerprint: Fingerprint, otherwise: str = "") -> int:
    """How many token ids there are to draw from: as the engine reports, else as the model's files say.

    Args:
        engine_size: As the engine reports it.
        fingerprint: Of the environment, model included.
        otherwise: What else fixes it where neither is known.

    Raises:
        BadInput: Neither is known.
    """
    if engine_size < UNKNOWN_LENGTH:
        return engine_size
    known = fingerprint.get("model", "vocab_size")
    if known is not None and isinstance(known.value, int):
        return known.value
    raise BadInput(
        "the size of the vocabulary is not known: the server does not report it",
        f"name the model's files with --model{', ' if otherwise else ''}{otherwise}",
    )
