"""What every engine is: its settings, what it is opened with, and what it hands to the recorder."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from ...schemas.envelope import Envelope, Runtime
from ...schemas.errors import BadInput, stated_setting
from ...schemas.lane import Setting
from ...schemas.trace import Finding, Mode, Site
from ..request.batches import PlannedSequence
from ..request.client_fields import template_arguments
from ..request.contract import GENERATION_CONFIG
from ..request.expected_answer import first_difference
from ..request.resolve_request import Capabilities, Target
from ..row_summaries.rows import TopK
from .model_files import tokenize

if TYPE_CHECKING:
    from ..request.batches import Batch
    from ..row_summaries.rows import Rows

MOST = 10**6
"""Largest whole number that a setting takes."""
MOST_SEQUENCES = 10_000
"""Largest batch."""


@dataclass(frozen=True)
class SettingSpec:
    """One setting: how its text is read, what it does, and what applies where it is not stated."""

    kind: Literal["choice", "number", "text"]
    meaning: str
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = MOST
    default: Any = None

    def read(self, name: str, text: str) -> Any:
        """The value of a text.

        Raises:
            BadInput: It does not fit.
        """
        option = stated_setting(f"{name}={text}")
        if self.kind == "number":
            digits = len(str(self.most))
            if not re.fullmatch(rf"[0-9]{{1,{digits}}}", text) or not self.least <= int(text) <= self.most:
                raise BadInput(
                    f"not a whole number from {self.least} to {self.most}",
                    f"for example --set {name}={max(self.least, 2)}",
                    option,
                )
            return int(text)
        if self.choices and text not in self.choices:
            raise BadInput(f"not a value of {name}", f"choose one of: {', '.join(self.choices)}", option)
        if not text:
            raise BadInput(f"not a value of {name}", f"give a {self.meaning}", option)
        return text


BATCH_SIZE = SettingSpec(
    "number", "requests of the set that are sent together", least=1, most=MOST_SEQUENCES, default=1
)


def split_pair(pair: str, form: str = r"\w+", example: str = "batch_size=8") -> tuple[str, str]:
    """Key and text of a `KEY=VALUE`.

    Args:
        pair: As `--set` has it.
        form: Pattern of the keys that there can be.
        example: What a fix shows.

    Raises:
        BadInput: Not of that form.
    """
    key, equals, text = pair.partition("=")
    if not equals or not re.fullmatch(form, key):
        raise BadInput("not of the form KEY=VALUE", f"for example --set {example}", stated_setting(pair))
    return key, text


def defaults(known: Mapping[str, SettingSpec]) -> dict[str, Any]:
    """What applies where nothing is stated, of those settings that have a default."""
    return {name: one.default for name, one in known.items() if one.default is not None}


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
        settings: Parsed `--set` values.
        runtime: The runtime of the (first) envelope.
        topk: K of the recorded distributions.
        sites: Which sites to observe: None for none, else a pattern for their labels.
        keep_positions: Positions whose rows are kept whole, or None to keep none.
        mode: What will be run.
        tap: The folder that a running server's taps write to (see vllm_tap).
        log: Where a started server's output goes.
        say: Called with what is being waited for.
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
    settings: Mapping[str, Any] = field(default_factory=dict)
    keep_positions: range | None = None
    mode: Mode = "free"
    tap: Path | None = None
    log: Path | None = None
    say: Callable[[str], None] | None = None


def refuse_server(engine: str, opening: Opening) -> None:
    """Refuse a URL and an interpreter for an engine that runs in this process.

    Raises:
        BadInput: One was stated.
    """
    if opening.url is not None or opening.python is not None:
        raise BadInput(
            f"the engine {engine} runs in this process and does not support --url or --python",
            "run rip in the environment of the engine, or choose a different one with --engine",
        )


def no_such_site(wanted: re.Pattern[str]) -> BadInput:
    """The error for a pattern of `--sites` that no site of a model matches."""
    return BadInput(
        f"--sites {wanted.pattern!r} matches no site", "see the labels with --sites '.' and rip query"
    )


@dataclass(frozen=True)
class Timing:
    """How long a client waited, in seconds."""

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
    """`stop`, `length`, `golden` when the recorded tokens ran out, or as a server calls it."""
    text: str | None
    timing: Timing | None = None
    answered_by: Mapping[str, str] = field(default_factory=dict)
    """What the server reported of itself with the answer: `model`, `system_fingerprint`."""
    findings: tuple[Finding, ...] = ()
    """What a reader of the trace should know of this sequence."""


class EngineKind(Protocol):
    """What a name of the registry stands for: usually the class of an `Engine`."""

    capabilities: Capabilities

    def __call__(self, opening: Opening) -> Engine:
        """The opened engine."""

    def parse_settings(self, pairs: Sequence[str], starts: bool) -> dict[str, Any]:
        """Read `key=value` texts.

        Args:
            pairs: As `--set` has them; the last one of a key applies.
            starts: Whether the engine will be started, so that its own settings can be chosen.

        Raises:
            BadInput: An unknown key or a value that does not fit.
        """

    def check_start(self, model: Path | str | None, python: str | None, settings: Mapping[str, Any]) -> None:
        """Refuse, before anything is loaded or started, what is known to be wrong without it.

        Args:
            model: A folder or GGUF file, or a server's name for it.
            python: Interpreter of the engine's own environment.
            settings: Parsed settings.

        Raises:
            BadInput: A value that the engine does not know, or an interpreter without the engine.
            EngineFailed: The interpreter cannot be run.
        """


class Engine(Target):
    """One engine, opened by its constructor from an `Opening`, ready to run batches."""

    sampling_defaults_from = GENERATION_CONFIG
    sends_client_fields = False
    settings: dict[str, Setting]
    """Every setting in its three readings; `batch_size` is always among them."""
    tokenizer: Any | None = None
    """That of the model's own files; None where they hold none or are not at hand."""
    channel = ""
    """How sites are observed: `eager`, `graph`, `compiled`; empty without sites."""
    row_hash = ""
    """Name of the row hash (also of the logits hash); empty where nothing is hashed."""
    sketch = ""
    pid: int | None = None
    """The process of a server that was started; None: in this process, or elsewhere."""

    def __init__(self, opening: Opening) -> None:
        self.opening, self.topk = opening, opening.topk
        self.sites: list[Site] = []
        self.not_seen: list[str] = []
        self.findings: list[Finding] = []
        """What a reader should know of how it was opened."""

    def reset(self) -> None:
        """As after opening: a seed whose scope is the worker starts again."""

    def tokenize(self, envelope: Envelope) -> list[int]:
        """Token ids of a prompt, by the model's own tokenizer (see `request.resolve.Target`)."""
        return tokenize(
            self.tokenizer,
            envelope.prompt_text,
            envelope.messages,
            {"tools": envelope.tools, **template_arguments(envelope)},
        )

    def texts_of(self, token_ids: Iterable[int]) -> dict[int, str]:
        """The texts of single tokens, for display; those that are not known are left out."""
        if self.tokenizer is None:
            return {}
        return {token: str(self.tokenizer.decode([token])) for token in token_ids}

    def text_of(self, token_ids: Sequence[int]) -> str | None:
        """Text of generated tokens as servers return it: without special ones, such as that of the end."""
        if self.tokenizer is None:
            return None
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))

    def has_tokenizer(self) -> bool:
        """Whether stop strings and bad words can be searched for."""
        return self.tokenizer is not None

    @abstractmethod
    def run(self, batch: Batch, mode: Mode, observe: bool) -> Iterator[Rows | Finished]:
        """Execute one batch and hand over rows as they are computed.

        Run again, a static batch hands over the same rows in the same order; a concurrent one the same rows
        of every sequence in the same order.

        Args:
            observe: Whether sites are captured.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the engine holds, and stop the server that it started. May be called twice."""


def sorted_topk(logprobs: Mapping[int, float], k: int, next_logprob: float | None = None) -> TopK:
    """A distribution in the order of a trace and cut to K: servers add the chosen token where it is not among
    the K most likely.

    Args:
        logprobs: Token id → nats, in any order.
        k: K.
        next_logprob: Of the token that was chosen from it or forced, nats; None where it is not known.
    """
    ids = np.array(list(logprobs), np.int32)
    values = np.array(list(logprobs.values()), np.float32)
    order = np.lexsort((ids, -values))[:k]
    return TopK(ids[order], None, values[order], None, None, next_logprob)


def unforced_tokens(plan: PlannedSequence, generated: Sequence[Any]) -> str | None:
    """How generated tokens differ from those that were to be forced; None: they are those."""
    golden = plan.golden or ()
    step = first_difference(golden, generated)
    if step is None:
        return None
    if step < min(len(golden), len(generated)):
        return f"step {step} generated token {generated[step]} where {golden[step]} was to be forced"
    return f"{len(generated)} tokens were generated where {len(golden)} were to be forced"
