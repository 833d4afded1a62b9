"""The engine protocol: what an engine can do, says honestly that it cannot, and hands to the recorder.

Engines are registered as `name → "module:Class"`, so that naming them imports none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ...schemas.errors import BadInput
from ...schemas.trace import Mode, Setting, Site

if TYPE_CHECKING:
    import numpy as np

    from ..capture.summarise import RowSummaries
    from ..plan import Batch

ENGINES: dict[str, str] = {"hf": "rip.replay.engines.hf:HfEngine"}


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do. A replay that asks for more is refused before it starts."""

    modes: tuple[Mode, ...]
    sites: bool
    logits_hash: bool
    seed: bool


@dataclass(frozen=True, eq=False)
class Rows:
    """Consecutive rows of one sequence, as an engine hands them over.

    Arrays share the first dimension: R rows, at positions `first_position … first_position + R − 1`.

    Attributes:
        token_ids: int32[R].
        forced: Whether the generated tokens among them were forced.
        topk: The next-token distribution of each row, None where it was not computed.
        samplers: What chose the NEXT token of each row, or None.
        shapes: The forward pass that computed each row; None for a last token never fed to the model.
        summaries: Site summaries of the R rows, or None where none were captured.
        tensors: Per row, kept rows as (site, raw bytes).
    """

    sequence: int
    first_position: int
    token_ids: np.ndarray[Any, Any]
    forced: bool
    topk: list[TopK | None]
    samplers: list[SamplerRecord | None]
    shapes: list[ExecutionShape | None]
    summaries: RowSummaries | None = None
    tensors: list[list[tuple[int, bytes]]] = field(default_factory=list)


@dataclass(frozen=True)
class TopK:
    """The raw next-token distribution at one position, cut to its K most likely ids.

    Ordered by logit, descending; equal logits by ascending id.
    """

    ids: np.ndarray[Any, Any]
    """int32[K]"""
    logits: np.ndarray[Any, Any] | None
    """float32[K]"""
    logprobs: np.ndarray[Any, Any]
    """float32[K], nats"""
    logsumexp: float | None
    """nats, over the whole vocabulary"""
    logits_hash: bytes | None


@dataclass(frozen=True)
class SamplerRecord:
    """What the sampler used to choose one token."""

    top1_id: int
    """Most likely id after all processors."""
    top1_logit: float
    draw: float | None
    """The uniform number in [0, 1); None for greedy."""
    rng_offset: int | None
    """Draws taken from this generator before."""


@dataclass(frozen=True)
class ExecutionShape:
    """The shape of the forward pass that computed a row (see schemas/trace.py for the meanings)."""

    batch_size: int
    batch_row: int
    num_tokens: int
    padded_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Finished:
    """A sequence ended."""

    sequence: int
    reason: str
    """`stop`, `length`, or `golden` when the recorded tokens ran out."""
    text: str | None


class Engine(Protocol):
    """One engine, opened by its constructor, ready to run batches."""

    capabilities: Capabilities
    settings: Mapping[str, Setting]
    """Every setting in its three readings."""
    vocab_size: int
    context_length: int
    sampling_defaults: Mapping[str, Any]
    """What the model's generation_config says."""
    sites: list[Site]
    not_seen: list[str]
    row_hash: str
    """Name of the row hash (also of the logits hash)."""
    sketch: str

    def reset(self) -> None:
        """As after opening: a seed whose scope is the worker starts again."""

    def tokenize(
        self, text: str | None, messages: list[dict[str, Any]] | None, tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """Token ids of a prompt text, or of chat messages and tools through the model's template."""

    def text_of(self, token_id: int) -> str | None:
        """The text of one token, for display; None without a tokenizer."""

    def run(self, batch: Batch, mode: Mode, observe: bool) -> Iterator[Rows | Finished]:
        """Execute one batch and hand over rows as they are computed.

        Run again, the same batch hands over the same rows in the same order: the observer check relies on it.

        Args:
            batch: What to run.
            mode: Free, golden-decode or golden-prefill.
            observe: Whether sites are captured.
        """

    def close(self) -> None:
        """Free what the engine holds."""


def engine_class(name: str) -> Any:
    """The class of a registered engine.

    Raises:
        BadInput: No engine of that name.
    """
    if name not in ENGINES:
        raise BadInput(f"unknown engine {name!r}", f"choose one of: {', '.join(sorted(ENGINES))}")
    module, _, attribute = ENGINES[name].partition(":")
    return getattr(import_module(module), attribute)
