"""One change between two fingerprints (drift is a list of them)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from .base import Document, Record
from .claim import Level
from .fingerprint import Fact

NO_RULE = "no rule, replay to know"
ABSENT = "absent"
"""The value of what one of two records does not have."""


class KeyChange(Record):
    """One entry of a JSON text that reads differently, such as `rope_theta` of a config."""

    key: str
    """Dotted: `rope_parameters.rope_theta`; a place in a list in brackets."""
    before: str | None = None
    """As JSON text, long ones shortened. None: the entry was not there."""
    after: str | None = None
    """Likewise."""


class TensorMatch(Record):
    """How the tensors of a GGUF file and of a model folder fit together, by the names of both."""

    gguf: Literal["base", "now"]
    """The side that is the GGUF."""
    matched: int
    """Tensors of the folder that the GGUF has too, under its own name."""
    of_gguf: int
    """Tensors of the GGUF."""
    of_folder: int
    """Tensors of the folder."""
    equal: int
    """Matched tensors of equal content."""
    retyped: dict[str, int] = {}
    """Matched tensors of another type, whose contents are not comparable: `Q4_1 of F32` → how many."""
    permuted: list[str] = []
    """Names in the folder of q and k projections whose bytes differ: a conversion permutes their rows, so
    this is no evidence of other values."""
    differing: list[str] = []
    """Names in the folder of tensors of one type with other content."""
    only_gguf: list[str] = []
    """Tensors of the GGUF that the folder lacks."""
    only_folder: list[str] = []
    """Tensors of the folder that the GGUF lacks."""

    def count_of(self, side: Literal["base", "now"]) -> str:
        """The tensors of a side, in words."""
        is_gguf = side == self.gguf
        count = self.of_gguf if is_gguf else self.of_folder
        return f"{count} tensors of a {'GGUF' if is_gguf else 'folder'}, {self.matched} matched by name"


class Change(Record):
    """A field that reads differently in two fingerprints."""

    section: str
    field: str
    before: Fact | None = None
    """None: the field is not in the base fingerprint."""
    after: Fact | None = None
    """None: the field is not in the present fingerprint."""
    risk: Level | None = None
    """The weakest promise that this change puts in doubt, with every stronger one: bitwise, then numeric,
    token, semantic. None where the rule sees none at risk, or where there is no rule."""
    rule: str = NO_RULE
    """Why, with its source."""
    replay: str | None = None
    """What to replay to know."""
    sources: list[str] | None = None
    """Where the documents of the rule are."""
    keys: list[KeyChange] | None = None
    """Of a digest behind which both fingerprints keep a JSON text: the entries that differ."""
    tensors: TensorMatch | None = None
    """Of `model.tensors` of a GGUF and a folder: how they fit together."""
    diff: list[str] | None = None
    """Of a digest behind which both keep a text: the lines that differ, `-` before, `+` after."""

    @property
    def name(self) -> str:
        """`section.field`."""
        return f"{self.section}.{self.field}"

    @property
    def before_text(self) -> str:
        """What it was, in words."""
        if self.tensors:
            return self.tensors.count_of("base")
        if self.keys:
            return _entries((change.key, change.before) for change in self.keys)
        return ABSENT if self.before is None else self.before.text()

    @property
    def after_text(self) -> str:
        """What it is now, in words."""
        if self.tensors:
            return self.tensors.count_of("now")
        if self.keys:
            return _entries((change.key, change.after) for change in self.keys)
        return ABSENT if self.after is None else self.after.text()

    @property
    def has_rule(self) -> bool:
        """Whether a rule says what is at risk. Without one nobody knows: never read it as harmless."""
        return self.rule != NO_RULE


def _entries(entries: Iterable[tuple[str, str | None]]) -> str:
    return ", ".join(f"{key}: {ABSENT if value is None else value}" for key, value in entries)


class SourceChange(Record):
    """A field of equal value that was read from a different source: other evidence, not drift."""

    section: str
    field: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.section}.{self.field}: {self.before} → {self.after}"


class Drift(Document):
    """The result of `rip drift`: no changes means that both fingerprints read the same."""

    KIND: ClassVar[str] = "drift"

    base_root_digest: str
    now_root_digest: str
    changes: list[Change]
    """The thirteen flat keys first."""
    source_changes: list[str] = []
    """`other_sources` as text, for readers."""
    other_sources: list[SourceChange] | None = None
    """Readings of equal value whose source differs. Documents of rip 0.1 have only the text."""
    ignored: list[Change] | None = None
    """Changes that the user asked to leave out of the result."""
    compared: int | None = None
    """Fields that both sides report."""
    claimed: list[Literal["base", "now"]] | None = None
    """The sides of which no weight was read: what is equal or different of them is what a cache claims."""
    not_compared: list[str] | None = None
    """`section.field` of what a partial fingerprint (pasted text, a server) cannot show, so that nothing is
    known of it."""
