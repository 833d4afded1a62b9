"""What all server engines share: settings, sending a batch, rows as they arrive, the server that was started.

How a request is written and an answer is read is each engine's own file.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ....schemas.errors import BadInput, EngineFailed
from ....schemas.trace import Finding, Mode, Setting, Site
from ...request.batches import Batch, PlannedSequence
from ...request.contract import GENERATION_CONFIG
from ...request.resolve import UNKNOWN_LENGTH, Capabilities
from ...row_summaries.rows import Rows
from ..base import Finished, Known, Opening
from ..model_files import load_local_tokenizer, text_of, texts_of, tokenize
from .answer import Answer, Event
from .client import UNEXPECTED, BackgroundLoop, HttpClient, Refused, unexpected
from .request_body import RequestFields
from .sending import Sending
from .settings import CLIENT_SETTINGS, parse_settings, resolve_settings
from .started import StartedServer

T = TypeVar("T")

TEXTS_AT_ONCE = 32
"""Requests for the text of single tokens that run together."""
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

    name: ClassVar[str]
    """As it is registered."""
    capabilities: Capabilities
    fields: ClassVar[RequestFields]
    """The sampling fields that its requests have, beside `n` and `max_tokens`."""
    own_settings: Mapping[str, Known] = {}
    """Settings of this engine's requests beside those of all clients."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.topk = opening.topk
        self.settings: dict[str, Setting] = resolve_settings(
            opening.settings, {**CLIENT_SETTINGS, **self.own_settings}
        )
        self.vocab_size = self.context_length = UNKNOWN_LENGTH
        self.sampling_defaults: Mapping[str, Any] | None = None
        self.sampling_defaults_from = GENERATION_CONFIG
        self.sites: list[Site] = []
        self.not_seen: list[str] = []
        self.findings: list[Finding] = []
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
            self._wait(self.connect())
        except BaseException:
            self.close()
            raise

    @classmethod
    def parse_settings(cls, pairs: Sequence[str], starts: bool) -> dict[str, Any]:
        """Read `key=value` texts (see `settings.parse_settings`)."""
        return parse_settings(pairs, cls.own_settings, starts)

    @classmethod
    def check_start(cls, model: Path | str | None, python: str | None, settings: Mapping[str, Any]) -> None:
        """Refuse what no server can be started with (see `base.Engine.check_start`).

        Raises:
            BadInput: This engine is only called by its URL.
        """
        raise BadInput(
            f"the engine {cls.name} is called by its URL: rip does not start it",
            "give the address of the running server with --url",
        )

    @property
    def unsupported_sampling(self) -> frozenset[str]:
        """Sampling fields that this engine does not support."""
        return self.fields.unsupported

    @property
    def pid(self) -> int | None:
        """The process of the server that was started."""
        return self.started.pid if self.started else None

    def setting(self, name: str) -> Any:
        """The value of a setting that applies."""
        return self.settings[name].resolved

    def start(self) -> StartedServer:
        """Start a server from the opening.

        Raises:
            BadInput: This engine is only called by its URL.
        """
        self.check_start(self.opening.model, self.opening.python, self.opening.settings)
        raise NotImplementedError(f"{self.name} does not say how it is started")

    @abstractmethod
    async def connect(self) -> None:
        """Find out what the server is and fill in what it reports.

        Raises:
            EngineFailed, BadInput: It is not of this kind, or does not serve that model.
        """

    @abstractmethod
    def answer(self, plan: PlannedSequence, mode: Mode, observe: bool) -> AsyncIterator[Event]:
        """Send one request and yield what arrives; the last event is the `End`.

        Raises:
            EngineFailed: The server fails, or does not answer what was requested.
        """

    async def detokenize(self, token_id: int) -> str | None:
        """The text of one token, as the server returns it; None where it does not."""
        return None

    async def observed(self, answer: Answer) -> Rows | None:
        """The rows of a whole answer that were not taken yet, with what was observed inside the server.

        Raises:
            EngineFailed: What was observed cannot be read.
        """
        raise NotImplementedError(f"{self.name} does not observe sites")

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
            return tokenize(tokenizer, text, messages, tools)
        return self._wait(self._tokenized(text, messages, tools))

    async def tokenize_remotely(
        self, text: str | None, messages: list[dict[str, Any]] | None, tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """Token ids by the server's own tokenizer and template.

        Raises:
            EngineFailed: It refuses.
            BadInput: It has no endpoint for that.
        """
        raise BadInput(
            "the envelope has no token ids, and the server does not tokenize",
            "name the model's folder with --model",
        )

    async def _tokenized(
        self, text: str | None, messages: list[dict[str, Any]] | None, tools: list[dict[str, Any]] | None
    ) -> list[int]:
        try:
            return await self.tokenize_remotely(text, messages, tools)
        except EngineFailed as error:
            raise BadInput(f"the server does not tokenize the prompt: {error.message}", error.fix) from error

    def texts_of(self, token_ids: Iterable[int]) -> dict[int, str]:
        """The texts of single tokens, for display; those that are not known are left out."""
        tokenizer = self._local_tokenizer()
        if tokenizer is not None:
            return texts_of(tokenizer, token_ids)
        return self._loop.call(self._texts_by_server(list(token_ids)))

    def text_of(self, token_ids: Sequence[int]) -> str | None:
        """The text of generated tokens, by the model's own files; None where these are not at hand."""
        return text_of(self._local_tokenizer(), token_ids)

    def has_tokenizer(self) -> bool:
        """True: the server searches for stop strings and bad words itself."""
        return True

    def run(self, batch: Batch, mode: Mode, observe: bool) -> Iterator[Rows | Finished]:
        """Send all sequences of a batch and yield rows as they arrive (see `base.Engine.run`).

        Neighbours that still run when the last recorded sequence has ended are cancelled.

        Raises:
            EngineFailed: The server fails; what had arrived was yielded before.
        """
        together = self.setting("arrival") == "together"
        yield from self._loop.iterate(Sending(self, batch, mode, observe, together).events())

    def close(self) -> None:
        """Stop the server that was started, and the connections. May be called twice."""
        if hasattr(self, "client"):
            self._loop.call(self.client.close())
            del self.client
        if self.started is not None:
            self.started.stop()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one coroutine that reads what the server answers, and wait for it.

        Raises:
            EngineFailed: Also where the answer has an unexpected form.
        """
        try:
            return self._loop.call(work)
        except UNEXPECTED as error:
            raise unexpected(self.name, error) from error

    def explained(self, error: Exception, plan: PlannedSequence) -> Exception:
        """An error of a sequence, with its request and the last error in the log of a dead server."""
        if isinstance(error, UNEXPECTED):
            error = unexpected(self.name, error)
        if not isinstance(error, EngineFailed):
            return error
        message, fix = f"{plan.request_id}: {error.message}", error.fix
        patience_s = 0.0 if isinstance(error, Refused) else DYING_S
        if self.started is not None and (death := self.started.death(patience_s)):
            message, fix = f"{message}; {death}", f"see {self.started.log}"
        return caused_by(error, EngineFailed(message, fix))

    async def _texts_by_server(self, token_ids: list[int]) -> dict[int, str]:
        limit = asyncio.Semaphore(TEXTS_AT_ONCE)

        async def text_of_one(token: int) -> tuple[int, str | None]:
            async with limit:
                return token, await self.detokenize(token)

        try:
            texts = await asyncio.gather(*(text_of_one(token) for token in token_ids))
        except (EngineFailed, *UNEXPECTED):  # texts are for display only
            return {}
        return {token: text for token, text in texts if text is not None}

    def _local_tokenizer(self) -> Any | None:
        """The tokenizer of the model's own files, where they are at hand."""
        opening = self.opening
        if self._tokenizer is None and opening.model is not None and opening.model_sha256 is not None:
            self._tokenizer = load_local_tokenizer(Path(opening.model), opening.model_sha256)
        return self._tokenizer


def caused_by(cause: Exception, error: EngineFailed) -> EngineFailed:
    """The error, with its cause for --debug."""
    error.__cause__ = cause
    return error


def text_or_none(value: Any) -> str | None:
    """A text as a server returns it, else None."""
    return value if isinstance(value, str) else None
