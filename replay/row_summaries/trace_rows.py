"""Rows of a trace as engines hand them over: tokens, distributions, sampler, execution shapes, summaries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from .reference import RowSummaries


@dataclass(frozen=True, eq=False)
class Rows:
    """Consecutive rows of one sequence, as an engine hands them over.

    Arrays share the first dimension: R rows, at positions `first_position … first_position + R − 1`.

    Attributes:
        token_ids: int32[R].
        forced: Whether the generated tokens among them were forced.
        topk: The next-token distribution of each row, None where it was not computed.
        samplers: What chose the NEXT token of each row, or None.
        shapes: The forward pass that computed each row; None where it is not known, and for a last token,
            which is never fed to the model.
        summaries: Site summaries of the R rows, or None where none were captured.
        tensors: Per row, kept rows as (site, raw bytes).
        elapsed_s: Seconds from sending the request to receiving each token; None where it was not measured.
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
    elapsed_s: list[float | None] | None = None


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
    next_logprob: float | None = None
    """Of the token that followed, chosen or forced, whether it is among the K or not; nats."""


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
