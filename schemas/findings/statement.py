"""What every finding has beside its data: a sentence for readers, and places in the compared sequences.

`diverge/present/` fills the sentences in just before a document is written. No code reads them, except those
of the kind `sentence`: what a document of version 1 said without data.
"""

from __future__ import annotations

from typing import Any, Literal

from ..base import Record

Side = Literal["A", "B"]
SIDES: tuple[Side, Side] = "A", "B"


def other_side(side: Side) -> Side:
    """B of A, A of B."""
    return "B" if side == "A" else "A"


ModuleKind = Literal[
    "attention",
    "embeddings",
    "positions",
    "router",
    "experts",
    "norm",
    "output head",
    "linear layer",
    "activation",
    "module",
]
"""What a site is of, by its name and class; `module`: none of the others."""


class Statement(Record):
    """Something found, with its sentence beside it."""

    text: str | None = None
    """The sentence for readers."""


class Sentence(Statement):
    """A sentence without data, from a document of version 1."""

    kind: Literal["sentence"] = "sentence"


class Location(Statement):
    """A place in the compared sequences. Only `text` is there in a document of version 1."""

    request_id: str | None = None
    sample: int = 0
    cell: str | None = None
    position: int | None = None
    step: int | None = None
    """Among generated tokens."""
    character: int | None = None
    """Of a text."""
    site: str | None = None
    """Its label: `layers.4.self_attn#1:attn`."""


class SequenceName(Record):
    """One sequence, where useful with the position at which it begins to differ."""

    request_id: str
    sample: int = 0
    cell: str | None = None
    position: int | None = None


class Undone(Record):
    """One thing that an experiment has otherwise than B: as A had it, where A's value is known."""

    of: Literal["setting", "variable", "sampling", "model", "requests", "mode"]
    """`model`: A's files. `requests`: A's requests."""
    name: str
    """Of a setting, an environment variable or a sampling field; else the same as `of`."""
    value: Any = None
    """What it is in the experiment; absent: not stated, or not set."""
    was: Any = None
    """What it was in B; absent: not stated, not set, or not known."""


class Command(Statement):
    """A command that confirms or refutes something."""

    purpose: Literal["rerun", "rerun program", "show", "not known"]
    """`rerun`: it runs the requests again, then `then` compares. `rerun program`: a program of the user's own
    has to run again. `show`: it shows what was recorded, and runs nothing. `not known`: from a document of
    version 1, whose words stand in `text`."""
    argv: list[str] = []
    """Empty: there is no rip command for it (`rerun program`, `not known`)."""
    then: list[str] = []
    """The command to run after it; empty: none."""
    settings: dict[str, str] = {}
    """Of `rerun program`: what is changed in it."""
    output: str | None = None
    """The trace that it writes."""
    undoes: list[Undone] | None = None
    """Of `rerun`: what is otherwise than B; absent: it repeats B as it was, or it is not known."""
    unset: list[str] | None = None
    """Environment variables that must not be set where it runs; absent: none."""
    hidden: list[str] = []
    """Settings that have to be stated too (`--set NAME=…`): no trace holds them, as they may be secret."""

    @property
    def changes(self) -> list[Undone]:
        """What is otherwise than B."""
        return self.undoes or []

    @property
    def repeats(self) -> int:
        """Of `rerun`: how often it runs the requests."""
        return int(self.argv[self.argv.index("--repeat") + 1]) if "--repeat" in self.argv else 1
