"""Querying one server and collecting its answers as facts, cleaned of secrets before anything is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ...schemas import redact
from ...schemas.fingerprint import Fact, Section, fact, unavailable
from ..engine_arguments.command_line import is_uninteresting
from ..engine_arguments.meaning import fields_of
from .client import Client, NoAnswer

TOKENIZER_PROBE = "rip.tokenizer-probe/1"
PROBE_TEXT = "Hello, world!  Ünïcödé 東京 🦙\n\tdef f(x): return x**2 - 3.14159e-10 # 0123456789 <|end|> </s>"
"""Where tokenizers part: spaces, accents, CJK, an emoji, digits, code, what looks like special tokens."""
TEMPLATE_PROBE = "rip.template-probe/1"
PROBE_MESSAGES = (
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Say hi.\n"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Again, please."},
)
"""A conversation with every role that all templates know."""
Path = str | tuple[str | int, ...]
"""A key, or a path of keys and indices."""
NOT_REPORTED = "the server does not tell"


class ServerReading:
    """The facts of one server so far, by `section.field`. What is added first counts."""

    def __init__(self, client: Client, secrets: tuple[str, ...] = ()) -> None:
        self.client = client
        self._secrets = secrets
        self._facts: dict[str, dict[str, Fact]] = {}
        self._volatile: dict[str, dict[str, Fact]] = {}

    def ask(
        self,
        path: str,
        *names: str,
        body: Any = None,
        older: str | None = None,
        if_absent: str | None = None,
        source: str | None = None,
    ) -> Any:
        """The JSON that the server answers; None where it gives none, and each named field then says why.

        Args:
            path: Asked with GET, or with POST where there is a body: of routes that change nothing.
            names: `section.field` of what only this answer could state.
            body: JSON.
            older: The path of older releases, asked where there is no such endpoint.
            if_absent: The reason where there is no such endpoint.
            source: Of that reason; None: the path.
        """
        try:
            return self._answer(path, body, older)
        except NoAnswer as reason:
            why = if_absent if if_absent is not None and reason.absent else str(reason)
            self.add_absent(names, why, source or path)
            return None

    def _answer(self, path: str, body: Any, older: str | None) -> Any:
        if body is not None:
            return self.client.post(path, body).json()
        try:
            return self.client.get(path).json()
        except NoAnswer as reason:
            if older is None or not reason.absent:
                raise
        return self.client.get(older).json()

    def ask_version(self, path: str = "/version") -> None:
        """The engine's version, where a route answers `{"version": …}`."""
        self.add("engine.version", part(self.ask(path, "engine.version"), "version"), path)

    def add(self, name: str, value: Any, source: str) -> None:
        """A reading; nothing where the server states null or an empty text."""
        if value is not None and value != "":
            section, _, field = name.partition(".")
            reading = fact(redact.value(value, self._secrets), source)
            self._facts.setdefault(section, {}).setdefault(field, reading)

    def add_parts(self, answer: Any, parts: Iterable[tuple[str, Path]], source: str) -> None:
        """Readings out of one answer: (`section.field`, where in the answer)."""
        for name, path in parts:
            self.add(name, part(answer, *((path,) if isinstance(path, str) else path)), source)

    def add_settings(self, engine: str, arguments: Mapping[str, Any], source: str) -> None:
        """The fields that an engine's own names for its settings stand for."""
        for (section, field), value in fields_of(engine, arguments).items():
            self.add(f"{section}.{field}", value, source)

    def add_arguments(
        self, arguments: Mapping[str, Any], source: str, left_out: Collection[str] = ()
    ) -> None:
        """All arguments that may change numbers; null ones are as good as not set."""
        kept = {
            name: value
            for name, value in sorted(arguments.items())
            if value is not None and name not in left_out and not is_uninteresting(name)
        }
        self.add("engine.arguments", kept or None, source)

    def add_absent(self, names: Iterable[str], reason: str, source: str) -> None:
        """Why there is no reading of some fields, unless there is one."""
        for name in names:
            section, _, field = name.partition(".")
            self._facts.setdefault(section, {}).setdefault(field, unavailable(reason, source))

    def add_volatile(self, name: str, value: Any, source: str) -> None:
        """A reading outside of every digest."""
        if value is not None:
            section, _, field = name.partition(".")
            self._volatile.setdefault(section, {})[field] = fact(redact.value(value, self._secrets), source)

    def add_tokens(self, token_ids: Any, source: str) -> None:
        """What the tokenizer made of `PROBE_TEXT`."""
        self._add_probe("tokenizer.probe", TOKENIZER_PROBE, token_ids, source)

    def add_prompt_tokens(self, token_ids: Any, source: str) -> None:
        """What template and tokenizer made of `PROBE_MESSAGES`."""
        self._add_probe("template.probe_tokens", TEMPLATE_PROBE, token_ids, source)

    def _add_probe(self, name: str, probe: str, token_ids: Any, source: str) -> None:
        if isinstance(token_ids, list) and all(type(token) is int for token in token_ids):
            digest = hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()
            self.add(name, {"probe": probe, "tokens": len(token_ids), "sha256": digest}, source)
        else:
            self.add_absent([name], "its answer has no list of token ids", source)

    def add_text_digest(self, name: str, text: Any, source: str) -> None:
        """The SHA-256 of a text as UTF-8: comparable with that of the model's files."""
        if not isinstance(text, str) or not text:
            self.add_absent([name], NOT_REPORTED, source)
            return
        try:
            self.add(name, hashlib.sha256(text.encode()).hexdigest(), source)
        except UnicodeEncodeError:
            self.add_absent([name], "its answer has half a character (a lone surrogate)", source)

    def sections(self) -> dict[str, Section]:
        """All of it."""
        return {
            name: Section(facts=self._facts.get(name, {}), volatile=self._volatile.get(name, {}))
            for name in {**self._facts, **self._volatile}
        }


def part(value: Any, *path: str | int) -> Any:
    """What lies at a path of keys and indices in untrusted JSON; None where it does not lead anywhere."""
    for step in path:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def text_or_empty(value: Any) -> str:
    """The same if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def table(value: Any) -> dict[str, Any]:
    """The same if it is a table, else an empty one."""
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> list[dict[str, Any]]:
    """The tables in a list; nothing of anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
