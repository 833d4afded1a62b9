"""What all documents share: the `schema` field, strict loading, canonical JSON (RFC 8785) and digests.

It does not know any document; each names its own kind and version.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import rfc8785
from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import BadInput

MAX_SAFE_INTEGER = 2**53 - 1  # beyond it, JSON numbers are not exact in every reader (RFC 8785, 3.2.2.3)

JsonObject = dict[str, Any]
Upgrade = Callable[[JsonObject], JsonObject]


class Record(BaseModel):
    """A frozen part of a document. Unknown fields are kept, never dropped."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    def unknown_fields(self, prefix: str = "") -> list[str]:
        """Dotted names of the fields that this version of rip does not know, nested ones included."""
        names = [prefix + name for name in (self.model_extra or {})]
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Record):
                names += value.unknown_fields(f"{prefix}{name}.")
        return names


class Document(Record):
    """A record with a `schema` field of the form `rip.<kind>/<version>`.

    Subclasses set `KIND`, `VERSION` and, once a version 2 exists, `UPGRADES`: a function per older
    version that turns a document of that version into one of the next.
    """

    KIND: ClassVar[str]
    VERSION: ClassVar[int] = 1
    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {}
    SCHEMA_OPTIONAL: ClassVar[bool] = False

    @classmethod
    def schema_name(cls) -> str:
        """The `schema` value that this version writes, for example `rip.envelope/1`."""
        return f"rip.{cls.KIND}/{cls.VERSION}"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Self:
        """Load one document from JSON text.

        Args:
            text: One JSON object.
            where: What to call the source in an error (a path, or `path:line`).

        Raises:
            BadInput: Not JSON, another kind of document, a newer version, or fields of a wrong type.
        """
        return cls.from_object(parse_json_object(text, where), where)

    @classmethod
    def from_object(cls, raw: JsonObject, where: str) -> Self:
        """Load one document from an already parsed JSON object. Raises as `from_json`."""
        upgraded = cls._at_this_version(raw, where)
        try:
            # Through JSON again: pydantic's strict mode reads tuples and enums only from JSON.
            return cls.model_validate_json(json.dumps(upgraded))
        except ValidationError as error:
            raise BadInput(
                f"{where}: {describe_validation_error(error)}",
                f"correct the field; docs/formats.md describes {cls.schema_name()}",
            ) from None

    @classmethod
    def _at_this_version(cls, raw: JsonObject, where: str) -> JsonObject:
        name = raw.get("schema")
        if name is None and cls.SCHEMA_OPTIONAL:
            return {**raw, "schema": cls.schema_name()}
        kind, _, version_text = str(name).partition("/")
        if kind != f"rip.{cls.KIND}" or not version_text.isdigit():
            raise BadInput(
                f"{where}: not a {cls.schema_name()} document (its schema field is {name!r})",
                f"give a file whose schema field is {cls.schema_name()!r}",
            )
        version = int(version_text)
        if version > cls.VERSION:
            raise BadInput(
                f"{where}: written by a newer rip ({name}; this one reads up to {cls.schema_name()})",
                "upgrade rip: pip install --upgrade rip-forensics",
            )
        upgraded = dict(raw)
        for old in range(version, cls.VERSION):
            if old not in cls.UPGRADES:
                raise BadInput(f"{where}: {name} is no longer readable", "re-create the file")
            upgraded = cls.UPGRADES[old](upgraded)
        return {**upgraded, "schema": cls.schema_name()}

    def to_object(self) -> JsonObject:
        """The document as plain JSON values, absent fields left out."""
        dumped: JsonObject = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {"schema": self.schema_name(), **dumped}

    def to_json(self) -> str:
        """Readable JSON, two spaces deep, with a final newline."""
        return json.dumps(exactly_representable(self.to_object()), indent=2, ensure_ascii=False) + "\n"

    def sha256(self) -> str:
        """Hex SHA-256 of the canonical JSON: the document's identity."""
        return sha256_of(self.to_object())


def parse_json_object(text: str | bytes, where: str) -> JsonObject:
    """Parse one JSON object; refuse duplicate keys and everything that is not an object.

    Raises:
        BadInput: With the line and column of the fault.
    """

    def unique(pairs: list[tuple[str, Any]]) -> JsonObject:
        result: JsonObject = {}
        for key, value in pairs:
            if key in result:
                raise BadInput(f"{where}: the key {key!r} stands twice", "keep one of the two")
            result[key] = value
        return result

    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = json.loads(text, object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise BadInput(f"{where}: not UTF-8 text (byte {error.start})", "give a JSON file") from None
    except json.JSONDecodeError as error:
        raise BadInput(
            f"{where}: not JSON: {error.msg} (line {error.lineno}, column {error.colno})",
            "correct the file at that place",
        ) from None
    except RecursionError:
        raise BadInput(f"{where}: JSON nested too deeply", "give a flatter document") from None
    if not isinstance(value, dict):
        raise BadInput(f"{where}: a JSON object was expected, not a {type(value).__name__}", "wrap it in {…}")
    return value


def exactly_representable(value: Any) -> Any:
    """The same value with integers beyond 2^53 and non-finite floats written as strings.

    A JSON reader may round the former and has no form for the latter, so both are a decision of the
    schema: decimal strings, and "NaN", "Infinity", "-Infinity".
    """
    if isinstance(value, dict):
        return {str(key): exactly_representable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [exactly_representable(item) for item in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def canonical_json(value: Any) -> bytes:
    """RFC 8785 canonical form, after `exactly_representable`."""
    return rfc8785.dumps(exactly_representable(value))


def sha256_of(value: Any) -> str:
    """Hex SHA-256 of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def describe_validation_error(error: ValidationError) -> str:
    """The first faults of a pydantic error in one line, with dotted field names."""
    faults = error.errors(include_url=False, include_input=False)
    lines = [f"{'.'.join(str(part) for part in fault['loc']) or 'document'}: {fault['msg']}" for fault in faults[:3]]
    more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
    return "; ".join(lines) + more
