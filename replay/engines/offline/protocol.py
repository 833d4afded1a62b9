"""The small protocol of an offline engine: a Python class that generates a whole batch in one call.

`--engine module:Class` names it. engine.py wraps it as an `Engine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

DOCUMENT = "docs/offline-engines.md shows a whole engine"


@dataclass(frozen=True)
class OfflineCapabilities:
    """What an offline engine supports; a claim that it does not keep ends the replay."""

    forced_tokens: bool = False
    """It puts `golden_token_ids` in place of its own choices, step by step, on the path of generation."""
    seeds: bool = False
    """A seed for each sequence chooses its draws."""
    top_logprobs: int | None = 0
    """Largest K of the distributions that it returns with every token; 0: none at all, None: no limit."""
    raw_logprobs: bool = False
    """They are those before temperature, top-p and the like."""
    one_batch: bool = False
    """All prompts of one call share every forward pass; else its scheduler decides which do."""


@dataclass(frozen=True)
class OfflineSampling:
    """How the tokens of one prompt are chosen. Everything is stated: an engine's own defaults never apply."""

    max_tokens: int
    temperature: float
    """0: greedy."""
    top_p: float
    """1: no limit."""
    top_k: int
    """0: no limit."""
    seed: int | None
    """Of this sequence alone; None where the engine has no seeds."""
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    """The model's own end tokens do not end the sequence."""
    golden_token_ids: tuple[int, ...] | None
    """Tokens to force, `max_tokens` of them; None: the engine chooses."""
    top_logprobs: int
    """K: how many of the most likely tokens are returned with every token."""


@dataclass(frozen=True)
class OfflineOutput:
    """What was generated for one prompt: G generated, P prompt tokens, at most K candidates a token."""

    token_ids: Sequence[int]
    """[G], an end token included where it was generated."""
    finish_reason: str
    """`length`, `stop`, or the engine's own name."""
    logprobs: Sequence[float | None] | None = None
    """[G] nats: the log-probability of each generated token, among the K or not."""
    top_ids: Sequence[Sequence[int]] | None = None
    """[G][≤ K]: the most likely tokens where each token was chosen, in any order."""
    top_logprobs: Sequence[Sequence[float]] | None = None
    """[G][≤ K] nats: theirs."""
    prompt_top_ids: Sequence[Sequence[int]] | None = None
    """[P − 1][≤ K]: the same for every prompt token but the first."""
    prompt_top_logprobs: Sequence[Sequence[float]] | None = None
    text: str | None = None
    """The generated text, where the engine makes one."""


class OfflineEngine(Protocol):
    """What the class of `--engine module:Class` must have.

    It may also have:

    - a classmethod `parse_settings(settings: dict[str, str]) -> dict[str, Any]` that reads the texts of
      `--set` and raises ValueError with a sentence for the user; without it the constructor gets the texts;
    - `observed: Mapping[str, Any]`, the settings that actually apply, which the trace then records;
    - `close()`.
    """

    capabilities: OfflineCapabilities
    """Of the class."""
    context_length: int
    """Most tokens of a sequence, prompt included; known once it is opened, like the next two."""
    vocab_size: int
    version: str

    def __init__(self, model: str, **settings: Any) -> None:
        """Load the model.

        Args:
            model: The folder or file that `--model` leads to.
            settings: From `--set KEY=VALUE`.
        """

    def generate(self, prompts: list[list[int]], params: list[OfflineSampling]) -> Sequence[OfflineOutput]:
        """Generate for all prompts, in one batch if `capabilities.one_batch`.

        Args:
            prompts: Token ids of each.
            params: One for each.

        Returns:
            One for each, in the same order.
        """
