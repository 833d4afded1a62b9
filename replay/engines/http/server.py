"""What all server engines share: settings, sending a batch, rows as they arrive, the server that was started.

How a request is written and an answer is read is each engine's own file.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ....schemas.envelope import Sampling
from ....schemas.errors import BadInput, EngineFailed
from ....schemas.trace import Mode, Setting, Site
from ...request.batches import Batch, PlannedSequence
from ...request.contract import GENERATION_CONFIG
from ...row_summaries.trace_rows import Rows
from ..base import UNKNOWN_LENGTH, Capabilities, Finished, Opening
from .answer import Answer, Event
from .background import BackgroundLoop
from .client import SURPRISES, HttpClient, Refused, surprised
from .sending import send
from .settings import CLIENT_SETTINGS, parse_settings, resolve_settings
from .started import StartedServer

T = TypeVar("T")

TEXTS_AT_ONCE = 32
"""Requests for the text of single tokens that are under way together."""
DYING_S = 2.0
"""Seconds from a broken connection to the end of the process that held it, at most: connections go first."""


class ServerEngine(ABC):
    """An inference server that is called over HTTP.

    Args:
        opening: Its `url` is called; without one, the engine starts a server where it can.

    Raises:
        EngineFailed: The server cannot be started or reached, or is another engine.
        BadInput: A setting or the model's name does not fit.
    """

    name: str
    """As it is registered."""
    capabilities: Capabilities
    sampling: tuple[str, ...]
    """Fields of an envelope's sampling that its requests have a word for, beside `n` and `max_tokens`."""
    own_settings: Mapping[str, str] = {}
    """Settings of this engine's requests beside those of all clients: name → what it does."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.topk = opening.topk
        self.settings: dict[str, Setting] = resolve_settings(opening.given, self.default_settings())
        self.vocab_size = self.context_length = UNKNOWN_LENGTH
        self.sampling_defaults: Mapping[str, Any] | None = None
        self.sampling_defaults_from = GENERATION_CONFIG
        self.sites: list[Site] = []
        self.not_seen: list[str] = []
        self.findings: list[str] = []
        self.channel = self.row_hash = self.sketch = ""
        self.started: StartedServer | None = None
        self._loop = BackgroundLoop()
        self._tokenizer: Any | None = None
        try:
            if opening.url is None:
                self.started = self.start()
            url = opening.url or self.started.url  # type: ignore[union-attr]
            self.client = HttpClient(url, opening.api_key, float(self.setting("timeout")))
            if self.started is not None:
                self.started.wait_ready()
            self._ask(self.connect())
        except BaseException:
            self.close()
            raise

    @classmethod
    def parse_settings(cls, pairs: Sequence[str], starts: bool) -> dict[str, Any]:
        """Read `key=value` texts (see `settings.parse_settings`)."""
        return parse_settings(pairs, cls.name, cls.own_settings, starts)

    @classmethod
    def check_start(cls, model: Path | str | None, python: str | None, given: Mapping[str, Any]) -> None:
        """Refuse what no server can be started with (see `base.Engine.check_start`).

        Raises:
            BadInput: This engine is only called by its URL.
        """
        raise BadInput(
            f"the engine {cls.name} is called by its URL",
            "give the address of the running server with --url",
        )

    @property
    def unsupported_sampling(self) -> frozenset[str]:
        """Sampling fields that this engine has no word for. A worker's seed is out of a client's reach."""
        return frozenset(Sampling.model_fields) - {"n", "max_tokens", *self.sampling}

    @property
    def pid(self) -> int | None:
        """The process of the server that was started."""
        return self.started.pid if self.started else None

    def setting(self, name: str) -> Any:
        """The value of a setting that applies."""
        return self.settings[name].resolved

    def default_settings(self) -> Mapping[str, Any]:
        """What applies where `--set` says nothing."""
        return CLIENT_SETTINGS

    def start(self) -> StartedServer:
        """Start a server from the opening.

        Raises:
            BadInput: This engine is only called by its URL.
        """
        raise BadInput(
            f"the engine {self.name} is called by its URL",
            "give the address of the running server with --url",
        )

    @abstractmethod
    async def connect(self) -> None:
        """See what the server is and fill in what it tells.

        Raises:
            EngineFailed, BadInput: It is none of this kind, or does not serve that model.
        """

    @abstractmethod
    def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> AsyncIterator[Event]:
        """Send one request and hand over what arrives; the last event is the `End`.

        Raises:
            EngineFailed: The server fails or gives something else than was asked for.
        """

    async def detokenize(self, token_id: int) -> str | None:
        """The text of one token, as the server tells it; None where it does not."""
        return None

    async def observed(self, answer: Answer) -> Rows | None:
        """The rows of a whole answer that were not taken yet, with what was observed inside the server.

        Raises:
            EngineFailed: What was observed cannot be read.
        """
        raise NotImplementedError(f"{self.name} observes no sites")

    async def observed_so_far(self, answer: Answer) -> Rows | None:
        """The next rows of an answer that goes on, as far as they were observed inside the server by now."""
        return None

    async def observed_at_last(self, answer: Answer) -> Rows | None:
        """The other rows of an answer that broke off, with what was observed of them. It does not fail."""
        return answer.take(whole=answer.end is not None)

    def reset(self) -> None:
        """Nothing to do: every request carries its own seed."""
        return

    def tokenize(
        self, text: str | None, messages: list[dict[str, Any]] | None, tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """Token ids of a prompt, by the model's own files where they are at hand, else by the server.

        Raises:
            BadInput: Neither can.
        """
        tokenizer = self._local_tokenizer()
        if tokenizer is not None:
            from ...request.prompt import tokenize

            return tokenize(tokenizer, text, messages, tools)
        return self._ask(self.tokenize_remotely(text, messages, tools))

    async def tokenize_remotely(
        self, text: str | None, messages: list[dict[str, Any]] | None, tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """Token ids of a prompt, as the server makes them.

        Raises:
            BadInput: It has no endpoint for that.
        """
        raise BadInput(
            "the envelope holds no token ids, and the server makes none",
            "name the model's folder with --model",
        )

    def texts_of(self, token_ids: Iterable[int]) -> dict[int, str]:
        """The texts of single tokens, for display; those that are not known are left out."""
        tokenizer = self._local_tokenizer()
        if tokenizer is not None:
            return {token: str(tokenizer.decode([token])) for token in token_ids}
        return self._loop.call(self._texts_told(list(token_ids)))

    def text_of(self, token_ids: Sequence[int]) -> str | None:
        """The text of generated tokens, by the model's own files; None where these are not at hand."""
        tokenizer = self._local_tokenizer()
        return None if tokenizer is None else str(tokenizer.decode(token_ids, skip_special_tokens=True))

    def has_tokenizer(self) -> bool:
        """True: the server looks for stop strings and bad words itself."""
        return True

    def run(self, batch: Batch, mode: Mode, observe: bool) -> Iterator[Rows | Finished]:
        """Send all sequences of a batch and hand over rows as they arrive (see `base.Engine.run`).

        Neighbours that still run when the last recorded sequence has ended are cancelled.

        Raises:
            EngineFailed: The server fails; what had arrived was handed over before.
        """
        yield from self._loop.iterate(send(self, batch, mode, observe))

    def close(self) -> None:
        """Stop the server that was started, and the connections. May be called twice."""
        if hasattr(self, "client"):
            self._loop.call(self.client.close())
            del self.client
        if self.started is not None:
            self.started.stop()
        self._loop.close()

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        """Run one coroutine that reads what the server says, and wait for it.

        Raises:
            EngineFailed: Also where the answer has another shape than the one that is read.
        """
        try:
            return self._loop.call(question)
        except SURPRISES as error:
            raise surprised(self.name, error) from error

    def explained(self, error: Exception, plan: PlannedSequence) -> Exception:
        """An error that a sequence met, with its request and what a dead server wrote last."""
        if isinstance(error, SURPRISES):
            error = surprised(self.name, error)
        if not isinstance(error, EngineFailed):
            return error
        message, fix = f"{plan.request_id}: {error.message}", error.fix
        patience_s = 0.0 if isinstance(error, Refused) else DYING_S
        if self.started is not None and (death := self.started.death(patience_s)):
            message, fix = f"{message}; {death}", f"see {self.started.log}"
        told = EngineFailed(message, fix)
        told.__cause__ = error
        return told

    async def _texts_told(self, token_ids: list[int]) -> dict[int, str]:
        limit = asyncio.Semaphore(TEXTS_AT_ONCE)

        async def ask(token: int) -> tuple[int, str | None]:
            async with limit:
                return token, await self.detokenize(token)

        try:
            told = await asyncio.gather(*(ask(token) for token in token_ids))
        except (EngineFailed, *SURPRISES):  # words are a comfort, not a need
            return {}
        return {token: text for token, text in told if text is not None}

    def _local_tokenizer(self) -> Any | None:
        """The tokenizer of the model's own files, where they are at hand."""
        opening = self.opening
        if self._tokenizer is None and opening.model is not None and opening.model_sha256 is not None:
            from ...request.prompt import load_local_tokenizer

            self._tokenizer = load_local_tokenizer(Path(opening.model), opening.model_sha256)
        return self._tokenizer
