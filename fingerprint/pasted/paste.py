"""What was read of a pasted text so far, and what a reader of its lines is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...schemas import redact
from ...schemas.fingerprint import PASTED, Fact, fact
from ..engine_arguments.meaning import fields_of


@dataclass
class Paste:
    """Facts by (section, field); the first statement of a field counts."""

    facts: dict[tuple[str, str], Fact] = field(default_factory=dict)
    tables: dict[tuple[str, str], tuple[str, dict[str, Any]]] = field(default_factory=dict)
    """Those that come line by line: source and entries."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Kind of text → lines of it that state something only it states."""
    packages: int = 0
    """Lines that name a package and its version."""
    not_understood: int = 0
    kind: str = "report"
    """Of the line at hand."""
    report: str = "report"
    """The report whose labels count, as far as one was recognised."""
    place: dict[str, Any] = field(default_factory=dict)
    """What a reader remembers from line to line."""

    @property
    def source(self) -> str:
        """Of what the line at hand states."""
        return PASTED + self.kind

    def state(self, name: str, value: object) -> None:
        """Keep a fact; `name`: `section.field`. None, and what is empty, states nothing."""
        section, _, field_name = name.partition(".")
        if value is None or value in ("", [], {}):
            return
        known = value if isinstance(value, Fact) else fact(redact.value(value), self.source)
        self.facts.setdefault((section, field_name), known)

    def enter(self, name: str, key: str, value: object) -> None:
        """Keep one entry of a table; `name`: `section.field`."""
        section, _, field_name = name.partition(".")
        _, table = self.tables.setdefault((section, field_name), (self.source, {}))
        table.setdefault(key, value)

    def state_settings(self, engine: str, settings: Mapping[str, Any]) -> None:
        """Keep what an engine's own settings mean."""
        self.state("engine.name", engine)
        for (section, field_name), value in fields_of(engine, settings).items():
            self.state(f"{section}.{field_name}", value)


@dataclass(frozen=True)
class Reader:
    """One form of line: of which kind of text it is, and what it states."""

    kind: str
    """`""`: of the report that was recognised."""
    begins: tuple[str, ...]
    """How such a line begins; `""` is any. It is looked at first, because it is cheap."""
    read: Callable[[str, Paste], bool]
    """Takes the line and keeps what it states; false: it is no such line after all."""
    is_mark: bool = True
    """Whether such a line alone shows that the text is of this kind."""
