"""The engine protocol: what an engine can do, says honestly that it cannot, and hands to the recorder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ...schemas.envelope import Runtime
from ...schemas.trace import Mode, Setting, Site

if TYPE_CHECKING:
    from ..request.batches import Batch
    from ..row_summaries.trace_rows import Rows

UNKNOWN_LENGTH = 2**31 - 1
"""Vocabulary or context of a server that does not tell its own."""


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do. A replay that asks for more is refused before it starts."""

    modes: tuple[Mode, ...]
    sites: bool
    """Layers can be observed."""
    logits_hash: bool
    """Equal logits can be proved; else only log-probabilities can be compared."""
    seed: bool
    """A seed chooses the draws."""
    token_ids: bool = True
    """Takes a prompt as token ids, and tells the ids that it generated. Else there is only text."""
    most_topk: int | None = None
    """Largest K of the distributions it tells; 0: none at all, None: no limit."""
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


@dataclass(frozen=True)
class Opening:
    """Everything an engine may need to open.

    Attributes:
        model: A model folder or GGUF file; None where only a server's name for it is known.
        model_name: What the user called the model; None: what the server serves.
        model_sha256: Digest of its weights; None without `model`.
        url: The server to call; None: the engine runs in this process or is started.
        api_key: For the server, never written anywhere.
        python: Interpreter of the engine's own environment.
        given: Parsed `--set` values.
        runtime: The runtime of the (first) envelope.
        topk: K of the recorded distributions.
        sites: Which sites to observe: None for none, else a pattern for their labels.
        keep_positions: Positions whose rows are kept whole, or None to keep none.
        mode: What will be run.
        tap: The folder that a running server's taps write to (see vllm_tap).
        log: Where a started server's output goes.
        say: Told what is being waited for.
    """

    runtime: Runtime
    topk: int
    sites: re.Pattern[str] | None = None
    model: Path | None = None
    model_name: str | None = None
    model_sha256: str | None = None
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    python: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    keep_positions: range | None = None
    mode: Mode = "free"
    tap: Path | None = None
    log: Path | None = None
    say: Callable[[str], None] | None = None


@dataclass(frozen=True)
class Timing:
    """What a client waited, in seconds."""

    ttft_s: float | None
    """From sending the request to the first token."""
    itl_s: float | None
    """Mean time between tokens."""
    latency_s: float
    """From sending the request to the end of the answer."""


@dataclass(frozen=True)
class Finished:
    """A sequence ended."""

    sequence: int
    reason: str
    """`stop`, `length`, `golden` when the recorded tokens ran out, or what a server calls it."""
    text: str | None
    timing: Timing | None = None
    answered_by: Mapping[str, str] = field(default_factory=dict)
    """What the server said of itself with the answer: `model`, `system_fingerprint`."""
    findings: tuple[str, ...] = ()
    """What a reader of the trace should know of this sequence."""


class Engine(Protocol):
    """One engine, opened by its constructor from an `Opening`, ready to run batches."""

    capabilities: Capabilities
    """Of the class: at most this. Of the opened engine: this."""
    settings: Mapping[str, Setting]
    """Every setting in its three readings; `batch_size` is always among them."""
    vocab_size: int
    """2^31 − 1 where it is not known."""
    context_length: int
    """Likewise."""
    sampling_defaults: Mapping[str, Any] | None
    """What applies where the envelope is silent, in the words of generation_config.json; None: the server
    has defaults of its own and does not tell them."""
    sampling_defaults_from: str
    """Where they come from, as a source of settings."""
    unsupported_sampling: frozenset[str]
    """Sampling fields that this engine has no word for."""
    sites: list[Site]
    not_seen: list[str]
    findings: list[str]
    """What a reader should know of how it was opened."""
    channel: str
    """How sites are observed: `eager`, `graph`, `compiled`; empty without sites."""
    row_hash: str
    """Name of the row hash (also of the logits hash); empty where nothing is hashed."""
    sketch: str
    pid: int | None
    """The process of a server that was started; None: in this process, or elsewhere."""

    @staticmethod
    def parse_settings(pairs: Sequence[str], starts: bool) -> dict[str, Any]:
        """Read `key=value` texts.

        Args:
            pairs: As `--set` gives them; the last one of a key applies.
            starts: Whether the engine will be started, so that its own settings can be chosen.

        Raises:
            BadInput: An unknown key or a value that does not fit.
        """

    @staticmethod
    def check_start(model: Path | str | None, python: str | None, given: Mapping[str, Any]) -> None:
        """Refuse, before anything is loaded or started, what can be told to be wrong without it.

        Args:
            model: A folder or GGUF file, or a server's name for it.
            python: Interpreter of the engine's own environment.
            given: Parsed settings.

        Raises:
            BadInput: A value that the engine does not know, or an interpreter without the engine.
            EngineFailed: The interpreter cannot be run.
        """

    def reset(self) -> None:
        """As after opening: a seed whose scope is the worker starts again."""

    def tokenize(
        self, text: str | None, messages: list[dict[str, Any]] | None, tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """Token ids of a prompt text, or of chat messages and tools through the model's template."""

    def texts_of(self, token_ids: Iterable[int]) -> dict[int, str]:
        """The texts of single tokens, for display; those that are not known are left out."""

    def has_tokenizer(self) -> bool:
        """Whether stop strings and bad words can be looked for."""

    def run(self, batch: Batch, mode: Mode, observe: bool) -> Iterator[Rows | Finished]:
        """Execute one batch and hand over rows as they are computed.

        Run again, a static batch hands over the same rows in the same order; a concurrent one the same rows
        of every sequence in the same order.

        Args:
            batch: What to run.
            mode: Free, golden-decode or golden-prefill.
            observe: Whether sites are captured.
        """

    def close(self) -> None:
        """Free what the engine holds, and stop the server that it started."""
