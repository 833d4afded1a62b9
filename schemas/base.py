"""What all documents share: the `schema` field, strict loading, writing and identity.

It does not know any document; each names its own kind and version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from .errors import BadInput, NewerVersion
from .jsontext import (
    JsonObject,
    canonical_json,
    parse_json_object,
    sha256_of,
)
from .written_numbers import exactly_representable, from_written_float, from_written_integer

__all__ = [
    "BigInteger",
    "DigestMismatch",
    "Document",
    "JsonObject",
    "Real",
    "Record",
    "canonical_json",
    "describe_validation_error",
    "exactly_representable",
    "parse_json_object",
    "sha256_of",
]


class DigestMismatch(ValueError):
    """A digest in a document is not that of what it covers: the content was changed after it was recorded."""


Upgrade = Callable[[JsonObject], JsonObject]

Real = Annotated[
    float,
    AllowInfNan(True),
    BeforeValidator(from_written_float),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}),
]
"""A float that may be non-finite: those are written as the strings "NaN", "Infinity", "-Infinity"."""

BigInteger = Annotated[
    int,
    BeforeValidator(from_written_integer),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^-?[1-9][0-9]{15,}$"}]}),
]
"""An integer that may lie beyond 2^53, where it is written as a decimal string."""

_UNION_MEMBERS = ("list[str]", "str")
_SCHEMA_NAME = re.compile(r"rip\.([a-z-]+)/([1-9][0-9]{0,5})", re.ASCII)


class Record(BaseModel):
    """A frozen part of a document. Unknown fields are kept; floats are finite unless declared `Real`."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="allow", allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    def unknown_fields(self, prefix: str = "") -> list[str]:
        """Dotted names of the fields that this version of rip does not know, nested ones included."""
        names = [prefix + name for name in (self.model_extra or {})]
        for name in type(self).model_fields:
            for location, record in _records_in(getattr(self, name), prefix + name):
                names += record.unknown_fields(f"{location}.")
        return names

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A field with a default reads the same absent and null. A required one must be written even when
        # null, and an unknown one is not ours to drop.
        fields = type(self).model_fields
        return {
            name: value
            for name, value in write(self).items()
            if value is not None or name not in fields or fields[name].is_required()
        }


def _records_in(value: Any, location: str) -> Iterator[tuple[str, Record]]:
    if isinstance(value, Record):
        yield location, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _records_in(item, f"{location}.{key}")
    elif isinstance(value, list) and value and isinstance(value[0], Record):
        for index, item in enumerate(value):
            yield from _records_in(item, f"{location}.{index}")


class Document(Record):
    """A record with a `schema` field of the form `rip.<kind>/<version>`, wherever it stands.

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
        try:
            # Through JSON again: only then are all values treated as JSON, nested documents included.
            return cls.model_validate_json(json.dumps(raw), context={"where": where})
        except ValidationError as error:
            edited = any(
                isinstance(fault.get("ctx", {}).get("error"), DigestMismatch)
                for fault in error.errors(include_url=False, include_input=False)
            )
            raise BadInput(
                f"{where}: {describe_validation_error(error)}",
                "take the original file, or record it again"
                if edited
                else f"correct the field; docs/formats.md describes {cls.schema_name()}",
            ) from None

    @model_validator(mode="before")
    @classmethod
    def _read_schema_field(cls, raw: Any, info: ValidationInfo) -> Any:
        # Values that Python code passes to the constructor carry no schema field and are of this version.
        if info.mode == "json" and isinstance(raw, dict):
            return cls._at_this_version(raw, (info.context or {}).get("where", cls.KIND))
        return raw

    @classmethod
    def _at_this_version(cls, raw: JsonObject, where: str) -> JsonObject:
        fields = dict(raw)
        name = fields.pop("schema", cls.schema_name() if cls.SCHEMA_OPTIONAL else None)
        match = _SCHEMA_NAME.fullmatch(name) if isinstance(name, str) else None
        if match is None or match[1] != cls.KIND:
            found = (
                "it has no schema field"
                if "schema" not in raw
                else f"its schema field is {json.dumps(name)[:80]}"
            )
            raise BadInput(
                f"{where}: not a {cls.schema_name()} document ({found})",
                f'give a file with "schema": "{cls.schema_name()}"',
            )
        version = int(match[2])
        if version > cls.VERSION:
            raise NewerVersion(
                f"{where}: written by a newer rip ({name}; this one reads up to {cls.schema_name()})",
                "upgrade rip: pip install --upgrade rip-forensics",
            )
        for old in range(version, cls.VERSION):
            if old not in cls.UPGRADES:
                raise BadInput(
                    f"{where}: {name} is no longer readable", "create the file again with this rip"
                )
            try:
                fields = cls.UPGRADES[old](fields)
            except (AttributeError, KeyError, TypeError, ValueError):
                raise BadInput(
                    f"{where}: fields of {name} are missing or of a wrong type",
                    "take the original file, or create it again",
                ) from None
        return fields

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"schema": self.schema_name(), **super()._write(write)}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core))
        schema["properties"] = {"schema": {"const": cls.schema_name()}, **schema.get("properties", {})}
        if not cls.SCHEMA_OPTIONAL:
            schema["required"] = ["schema", *schema.get("required", [])]
        return schema

    def to_object(self) -> JsonObject:
        """The document in JSON values that every reader holds exactly, without optional None fields."""
        written: JsonObject = exactly_representable(self.model_dump(mode="json"))
        return written

    def to_json(self) -> str:
        """Readable JSON, two spaces deep, with a final newline."""
        return json.dumps(self.to_object(), indent=2, ensure_ascii=False) + "\n"

    def sha256(self) -> str:
        """Hex SHA-256 of the canonical JSON of `to_object()`: the document's identity."""
        return sha256_of(self.to_object())


def describe_validation_error(error: ValidationError, names: bool = True) -> str:
    """The first faults of a pydantic error in one line, with dotted field names or not, without values."""
    messages: dict[str, list[str]] = {}
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        # Where a field takes several types, pydantic puts each type's name into the location.
        location = ".".join(str(part) for part in fault["loc"] if part not in _UNION_MEMBERS) or "document"
        messages.setdefault(location, []).append(fault["msg"].removeprefix("Value error, "))
    lines = [f"{location}: " * names + ", or ".join(texts) for location, texts in messages.items()]
    more = f" (and {len(lines) - 3} more)" if len(lines) > 3 else ""
    return "; ".join(lines[:3]) + more
