"""What all server engines share: settings, sending a batch, rows as they arrive, the server that was started.

How a request is written and an answer is read is each engine's own file.
"""

from __future__ import annotations

import asyncio
import functools
from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ....schemas.envelope import Envelope
from ....schemas.errors import BadInput, EngineFailed
from ....schemas.lane import Setting
from ....schemas.trace import Mode
from ...request.batches import Batch, PlannedSequence
from ...request.resolve_request import UNKNOWN_LENGTH
from ...row_summaries.rows import Rows
from ..base import Engine, Finished, Opening, SettingSpec
from ..model_files import load_local_tokenizer
from .client import UNEXPECTED, BackgroundLoop, HttpClient, Refused, unexpected
from .request_body import RequestFields
from .sending import Answering, Sending
from .server_process import StartedServer
from .settings import CLIENT_SETTINGS, parse_settings, resolve_settings

T = TypeVar("T")

TEXTS_AT_ONCE = 32
"""Requests for the text of single tokens that run together."""
DYING_S = 2.0
"""Seconds from a broken connection to the end of the process that held it, at most: connections go first."""


class ServerEngine(Answering, Engine):
    """An inference server that is called over HTTP.

    Args:
        opening: Its `url` is called; without one, the engine starts a server where it can.

    Raises:
        EngineFailed: The server cannot be started or reached, or is another engine.
        BadInput: A setting or the model's name does not fit.
    """

    name: ClassVar[str]
    """As it is registered."""
    fields: ClassVar[RequestFields]
    """The sampling fields that its requests have, beside `n` and `max_tokens`."""
    own_settings: Mapping[str, SettingSpec] = {}
    """Settings of this engine's requests beside those of all clients."""

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        self.settings: dict[str, Setting] = resolve_settings(
            opening.settings, {**CLIENT_SETTINGS, **self.own_settings}
        )
        self.vocab_size = self.context_length = UNKNOWN_LENGTH
        self.sampling_defaults: Mapping[str, Any] | None = None
        self.started: StartedServer | None = None
        self._loop = BackgroundLoop()
        try:
            url = opening.url
            if url is None:
                self.started = self.start()
                url, self.pid = self.started.url, self.started.pid
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
        """Refuse what no server can be started with (see `base.EngineKind.check_start`).

        Raises:
            BadInput: This engine is only called by its URL.
        """
        raise _only_called(cls.name)

    @functools.cached_property
    def tokenizer(self) -> Any | None:  # type: ignore[override]
        """The tokenizer of the model's own files, where they are at hand."""
        model, digest = self.opening.model, self.opening.model_sha256
        return None if model is None or digest is None else load_local_tokenizer(model, digest)

    @property
    def unsupported_sampling(self) -> frozenset[str]:
        """Sampling fields that this engine does not support."""
        return self.fields.unsupported

    def setting(self, name: str) -> Any:
        """The value of a setting that applies."""
        return self.settings[name].resolved

    def start(self) -> StartedServer:
        """Start a server from the opening.

        Raises:
            BadInput: This engine is only called by its URL.
        """
        raise _only_called(self.name)

    @abstractmethod
    async def connect(self) -> None:
        """Find out what the server is and fill in what it reports.

        Raises:
            EngineFailed, BadInput: It is not of this kind, or does not serve that model.
        """

    async def detokenize(self, token_id: int) -> str | None:
        """The text of one token, as the server returns it; None where it does not."""
        return None

    def tokenize(self, envelope: Envelope) -> list[int]:
        """Token ids of a prompt, by the model's own files where they are at hand, else by the server.

        Raises:
            BadInput: Neither can.
        """
        if self.tokenizer is not None:
            return super().tokenize(envelope)
        return self._wait(self._tokenized(envelope))

    async def _tokenized(self, envelope: Envelope) -> list[int]:
        try:
            return await self.tokenize_remotely(envelope)
        except EngineFailed as error:
            raise BadInput(f"the server does not tokenize the prompt: {error.message}", error.fix) from error

    async def tokenize_remotely(self, envelope: Envelope) -> list[int]:
        """Token ids by the server's own tokenizer and template.

        Raises:
            EngineFailed: It refuses.
            BadInput: It has no endpoint for that.
        """
        raise BadInput(
            "the envelope has no token ids, and the server does not tokenize",
            "name the model's folder with --model",
        )

    def texts_of(self, token_ids: Iterable[int]) -> dict[int, str]:
        """The texts of single tokens, by the model's own files, else by the server (see `base.Engine`)."""
        if self.tokenizer is not None:
            return super().texts_of(token_ids)
        try:
            return self._loop.call(self.texts_by_server(list(token_ids)))
        except (EngineFailed, *UNEXPECTED):  # texts are for display only
            return {}

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
        """Stop the server that was started, and the connections (see `base.Engine.close`)."""
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
        """See `sending.Answering.explained`."""
        if isinstance(error, UNEXPECTED):
            error = unexpected(self.name, error)
        if not isinstance(error, EngineFailed):
            return error
        message, fix = f"{plan.request_id}: {error.message}", error.fix
        patience_s = 0.0 if isinstance(error, Refused) else DYING_S
        if self.started is not None and (exit_reason := self.started.exit_reason(patience_s)):
            message, fix = f"{message}; {exit_reason}", f"see {self.started.log}"
        return caused_by(error, EngineFailed(message, fix))

    async def texts_by_server(self, token_ids: Sequence[int]) -> dict[int, str]:
        """The texts of single tokens, as the server returns them; those that it does not know are left out.

        Raises:
            EngineFailed: It refuses.
        """
        limit = asyncio.Semaphore(TEXTS_AT_ONCE)

        async def text_of_one(token: int) -> tuple[int, str | None]:
            async with limit:
                return token, await self.detokenize(token)

        texts = await asyncio.gather(*(text_of_one(token) for token in token_ids))
        return {token: text for token, text in texts if text is not None}


def _only_called(name: str) -> BadInput:
    return BadInput(
        f"the engine {name} is called by its URL: rip does not start it",
        "give the address of the running server with --url",
    )


def caused_by(cause: Exception, error: EngineFailed) -> EngineFailed:
    """The error, with its cause for --debug."""
    error.__cause__ = cause
    return error
