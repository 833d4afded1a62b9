"""Collecting what a server tells into sections of facts, cleaned of secrets before anything is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ...schemas.fingerprint import Fact, Section, fact, unavailable
from ..engine_arguments.meaning import fields_of
from ..untrusted import redact

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


class Told:
    """The facts of one server so far. What is said first counts."""

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        self._secrets = secrets
        self._facts: dict[str, dict[str, Fact]] = {}
        self._volatile: dict[str, dict[str, Fact]] = {}

    def say(self, section: str, field: str, value: Any, source: str) -> None:
        """A reading; nothing where the server says null or an empty text."""
        if value is not None and value != "":
            self._facts.setdefault(section, {}).setdefault(
                field, fact(redact.value(value, self._secrets), source)
            )

    def say_all(self, engine: str, arguments: Mapping[str, Any], source: str) -> None:
        """The fields that an engine's own names for its settings stand for."""
        for (section, field), value in fields_of(engine, arguments).items():
            self.say(section, field, value, source)

    def lacks(self, section: str, field: str, reason: str, source: str) -> None:
        """Why there is no reading, unless there is one."""
        self._facts.setdefault(section, {}).setdefault(field, unavailable(reason, source))

    def now(self, section: str, field: str, value: Any, source: str) -> None:
        """A volatile reading."""
        if value is not None:
            self._volatile.setdefault(section, {})[field] = fact(redact.value(value, self._secrets), source)

    def knows(self, section: str, field: str) -> bool:
        """Whether there is a value."""
        reading = self._facts.get(section, {}).get(field)
        return reading is not None and reading.unavailable is None

    def tokens(self, token_ids: Any, source: str) -> None:
        """What the tokenizer made of `PROBE_TEXT`."""
        self._probe("tokenizer", "probe", TOKENIZER_PROBE, token_ids, source)

    def prompt_tokens(self, token_ids: Any, source: str) -> None:
        """What template and tokenizer made of `PROBE_MESSAGES`."""
        self._probe("template", "probe_tokens", TEMPLATE_PROBE, token_ids, source)

    def _probe(self, section: str, field: str, probe: str, token_ids: Any, source: str) -> None:
        if isinstance(token_ids, list) and all(type(token) is int for token in token_ids):
            digest = hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()
            value = {"probe": probe, "tokens": len(token_ids), "sha256": digest}
            self.say(section, field, value, source)
        else:
            self.lacks(section, field, "its answer has no list of token ids", source)

    def text_digest(self, section: str, field: str, text: Any, source: str) -> None:
        """The SHA-256 of a text as UTF-8: comparable with that of the model's files."""
        if not isinstance(text, str) or not text:
            self.lacks(section, field, "the server does not tell", source)
            return
        try:
            self.say(section, field, hashlib.sha256(text.encode()).hexdigest(), source)
        except UnicodeEncodeError:
            self.lacks(section, field, "its answer has half a character (a lone surrogate)", source)

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


def words(value: Any) -> str:
    """The same if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def table(value: Any) -> dict[str, Any]:
    """The same if it is a table, else an empty one."""
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> list[dict[str, Any]]:
    """The tables in a list; nothing of anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
