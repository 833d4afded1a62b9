"""Columns of a Parquet file, as data: the Arrow schema and the tables of the documents are made from them.

pyarrow is imported only by the functions that need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


_TYPE = re.compile(r"(?P<kind>\w+)(<(?P<inner>.*)>)?(\[(?P<size>.+)\])?\??")


@dataclass(frozen=True)
class Column:
    """One column, or one field of a struct.

    Attributes:
        name: Its name.
        type: An Arrow type (see `arrow_type`); `?` behind it: may be null.
        unit: Of its values; empty where there is none.
        meaning: One line, for readers.
    """

    name: str
    type: str
    unit: str
    meaning: str

    def markdown(self) -> str:
        """Its row in the table of a document."""
        return f"| `{self.name}` | {self.type} | {self.unit} | {self.meaning} |".replace("|  |", "| |")


Names = Mapping[str, "int | pa.DataType"]


def arrow_schema(columns: Iterable[Column], names: Names = MappingProxyType({})) -> pa.Schema:
    """The Arrow schema of some columns.

    Args:
        columns: In order.
        names: As `arrow_type` takes them.
    """
    import pyarrow as pa

    return pa.schema(
        pa.field(column.name, arrow_type(column.type, names), nullable=column.type.endswith("?"))
        for column in columns
    )


def arrow_type(text: str, names: Names = MappingProxyType({})) -> pa.DataType:
    """The Arrow type that a column's `type` names.

    Args:
        text: `int32` and the like; `binary[16]`; `dictionary<T>`; `list<T>`, or `list<T>[n]` of fixed size,
            whose elements may be null where `?` stands behind T; `struct<name: T, …>` of plain types, which
            may be null.
        names: Sizes and types of the caller's own that the text may use.
    """
    import pyarrow as pa

    match = _TYPE.fullmatch(text)
    assert match is not None, text
    kind, inner, size = match["kind"], match["inner"], match["size"]
    count = -1 if size is None else int(names.get(size, size))
    if kind in names:
        return names[kind]
    if kind == "list":
        element = pa.field("element", arrow_type(inner, names), nullable=inner.endswith("?"))
        return pa.list_(element, count)
    if kind == "dictionary":
        return pa.dictionary(pa.int32(), arrow_type(inner, names))
    if kind == "struct":
        fields = (field.split(": ") for field in inner.split(", "))
        return pa.struct([(name, arrow_type(type_, names)) for name, type_ in fields])
    return pa.binary(count) if kind == "binary" else pa.type_for_alias(kind)
