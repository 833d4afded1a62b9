"""The fingerprint: sections of facts about an environment, with digests that leave volatile readings out.

A fact is a value with its source, or `unavailable` with a reason: absence is data, never null, never 0.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Self

from pydantic import model_validator

from .base import DigestMismatch, Document, Record, sha256_of

SECTIONS = (
    "model",
    "tokenizer",
    "template",
    "sampling",
    "engine",
    "frameworks",
    "libraries",
    "gpus",
    "driver",
    "parallelism",
    "kernels",
    "determinism",
    "cpu",
    "os",
    "process",
    "cache",
    "replica",
)

FLAT_KEYS: dict[str, tuple[str, str]] = {
    "model_sha256": ("model", "sha256"),
    "tokenizer_sha256": ("tokenizer", "sha256"),
    "chat_template_sha256": ("template", "sha256"),
    "engine_version": ("engine", "version"),
    "torch_version": ("frameworks", "torch"),
    "cuda_version": ("libraries", "cuda"),
    "cublas_version": ("libraries", "cublas"),
    "gpu_name_and_compute_capability": ("gpus", "name_and_compute_capability"),
    "attention_backend": ("engine", "attention_backend"),
    "quantization_method": ("model", "quantization_method"),
    "tensor_parallel_size": ("parallelism", "tensor_parallel_size"),
    "batch_invariance_flag": ("determinism", "batch_invariance"),
    "sampling_contract_version": ("sampling", "contract_version"),
}
"""The thirteen keys of the flat form and the (section, field) each is read from."""


NOT_SET = "not set"
"""The reason of a variable or option that was looked for and is not set."""
NO_PERMISSION = "no permission"
"""Stands in every reason that a lack of permission is the cause of."""
NOT_EXECUTED = "nothing of another process is executed"
"""Stands in the reason of what only the program itself could tell."""
NO_ANSWER = "no answer in time"
"""Stands in every reason that a limit of time is the cause of: what a busy machine did not get to."""
NOT_PASTED = "not in the pasted text"
TORCH_NOT_LOADED = "torch is not loaded in this process"
NO_ENGINE_RUN = "no engine has run in this process; a replay states it"
_OUT_OF_VIEW = (NOT_PASTED, TORCH_NOT_LOADED, NO_ENGINE_RUN)
PASTED = "pasted:"
"""Begins the source of every fact that was read from pasted text."""
STRENGTH = "strength:"
"""Begins the source of a digest that is missing because another strength of hashing was requested."""
CLAIMED_REMARK = "(claimed: no weight was read)"
"""Follows a claimed digest in the flat form."""
NOT_VISIBLE = "untold:"
"""Begins the source of a fact that cannot be seen from where rip reads; what follows names from where."""
NOT_VISIBLE_FROM_SERVER = f"{NOT_VISIBLE}server"
PROBE = "probe:"
"""Begins the source of the fact that a probe failed; what follows names the probe."""
_ABSENT = "unavailable: "
NO_TIME = "1970-01-01T00:00:00+00:00"
"""The time of a fingerprint from a source that does not say when it was made, such as pasted text."""


class Observed(StrEnum):
    """What a fingerprint is of: the values of `process.observed`."""

    SELF = "the process of rip itself"
    PROCESS = "another process, from outside"
    SERVER = "a server, by what it answers"


class Absence(StrEnum):
    """Why a fact has no value, as far as a comparison depends on it."""

    UNSET = "unset"
    """It was looked for and is known not to be set."""
    NOT_VISIBLE = "not visible"
    """The source cannot show it, or was not asked for it: it may have any value."""
    FORBIDDEN = "forbidden"
    """rip had no permission to read it: it may have any value."""
    PROBE_FAILED = "probe failed"
    """What reads it failed, or was given no time to: it may have any value."""
    STATED = "stated"
    """Another reason, such as `not installed`, which says something about the environment."""


def absent_text(reason: str) -> str:
    """What stands in a table of values, or in the flat form, in place of a value that could not be read."""
    return _ABSENT + reason


def is_absent_text(value: Any) -> bool:
    """Whether an entry of a table is the reason why there is no value."""
    return isinstance(value, str) and value.startswith(_ABSENT)


class Fact(Record):
    """One reading. Exactly one of `value` and `unavailable` is set."""

    value: Any = None
    unavailable: str | None = None
    """Why there is no value."""
    source: str
    """Where it was read: `nvml`, `proc-maps`, `file-sha256:verified`, `importlib.metadata`, …"""

    @model_validator(mode="after")
    def _value_or_reason(self) -> Self:
        if (self.value is None) == (self.unavailable is None):
            raise ValueError("a fact has either a value or a reason why it is unavailable")
        return self

    @property
    def absence(self) -> Absence | None:
        """Why there is no value; None where there is one.

        The document keeps the reason as text and the tag of the source, in every version alike: the kind
        follows from them here, and nowhere else.
        """
        if self.unavailable is None:
            return None
        if self.unavailable == NOT_SET:
            return Absence.UNSET
        if NO_PERMISSION in self.unavailable:
            return Absence.FORBIDDEN
        if self.source.startswith(PROBE) or NO_ANSWER in self.unavailable:
            return Absence.PROBE_FAILED
        hidden = self.unavailable in _OUT_OF_VIEW or NOT_EXECUTED in self.unavailable
        if hidden or self.source.startswith((NOT_VISIBLE, STRENGTH)):
            return Absence.NOT_VISIBLE
        return Absence.STATED

    @property
    def is_pasted(self) -> bool:
        """Whether it was read from pasted text."""
        return self.source.startswith(PASTED)

    @property
    def is_verified(self) -> bool:
        """Whether it is a digest behind which every byte was read."""
        return self.value is not None and self.source.endswith("verified")

    def text(self) -> str:
        """The value for people, or the reason in words."""
        return absent_text(self.unavailable) if self.unavailable is not None else str(self.value)


def fact(value: Any, source: str) -> Fact:
    """A reading that succeeded. `value` is plain JSON and never None."""
    return Fact(value=value, source=source)


def unavailable(reason: str, source: str) -> Fact:
    """A reading that could not be made, and why."""
    return Fact(unavailable=reason, source=source)


def fact_or(value: Any, source: str, otherwise: str) -> Fact:
    """A reading; where it came out empty (None, no text, no entry), the reason in its place."""
    return fact(value, source) if value else unavailable(otherwise, source)


class Section(Record):
    """The facts of one section. `volatile` ones (clocks, free memory, pids, times) enter no digest."""

    facts: dict[str, Fact] = {}
    volatile: dict[str, Fact] = {}
    texts: dict[str, Any] | None = None
    """Field → the small text or JSON object behind its digest, so that a change can be read. In no digest;
    None where none was kept."""
    digest: str = ""

    @model_validator(mode="after")
    def _digest_is_of_these_facts(self) -> Self:
        if self.digest and self.digest != self.computed_digest():
            raise DigestMismatch(
                "the digest is not that of the facts: they were changed after they were read"
            )
        return self

    def computed_digest(self) -> str:
        """Hex SHA-256 over the stable facts; their sources are part of what is said."""
        return sha256_of({name: item.model_dump(mode="json") for name, item in self.facts.items()})


class Fingerprint(Document):
    """What an environment is."""

    KIND: ClassVar[str] = "fingerprint"

    tool_version: str
    created: str
    """ISO 8601, UTC. Outside every digest."""
    sections: dict[str, Section]
    root_digest: str = ""

    @model_validator(mode="after")
    def _root_is_of_these_sections(self) -> Self:
        if self.root_digest and self.root_digest != _root_digest(self.sections):
            raise DigestMismatch(
                "root_digest is not that of the sections: they were changed after they were read"
            )
        return self

    @classmethod
    def build(cls, tool_version: str, created: str, sections: dict[str, Section]) -> Fingerprint:
        """A fingerprint with its digests filled in, sections in the order of `SECTIONS`."""
        ordered = sorted(
            sections, key=lambda name: SECTIONS.index(name) if name in SECTIONS else len(SECTIONS)
        )
        digested = {
            name: sections[name].model_copy(update={"digest": sections[name].computed_digest()})
            for name in ordered
        }
        return cls(
            tool_version=tool_version, created=created, sections=digested, root_digest=_root_digest(digested)
        )

    def get(self, section: str, field: str) -> Fact | None:
        """One stable fact, or None where this fingerprint has no such field."""
        found = self.sections.get(section)
        return found.facts.get(field) if found else None

    @property
    def is_claimed(self) -> bool:
        """Whether no weight was read: the digests of the weights are what a cache claims."""
        root = self.get("model", "tensors_root")
        return root is not None and root.source == f"{STRENGTH}claimed"

    def flat(self) -> dict[str, Any]:
        """The thirteen keys of the flat form; an absent value is the text `unavailable: <reason>`.

        Behind a digest of weights that were not read, it says so.
        """
        result: dict[str, Any] = {}
        for key, (section, field) in FLAT_KEYS.items():
            reading = self.get(section, field)
            if reading is None:
                result[key] = absent_text("not probed")
            else:
                result[key] = reading.text() if reading.unavailable is not None else reading.value
                if key == "model_sha256" and reading.value is not None and self.is_claimed:
                    result[key] = f"{reading.value} {CLAIMED_REMARK}"
        return result


def _root_digest(sections: dict[str, Section]) -> str:
    return sha256_of({name: section.digest for name, section in sections.items()})
