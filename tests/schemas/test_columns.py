"""Columns as data: the Arrow types they name, and the records in memory that they must agree with."""

from dataclasses import fields

import pyarrow as pa
import pytest
from rip.replay.row_summaries.rows import ExecutionShape, SamplerRecord
from rip.schemas.column_types import Column, arrow_schema, arrow_type
from rip.schemas.trace import COLUMNS, SHAPE_COLUMNS
from rip.schemas.trace import arrow_schema as trace_schema

ELEMENT = pa.field("element", pa.int32(), nullable=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int32", pa.int32()),
        ("float64?", pa.float64()),
        ("bool", pa.bool_()),
        ("binary?", pa.binary()),
        ("binary[16]?", pa.binary(16)),
        ("dictionary<string>", pa.dictionary(pa.int32(), pa.string())),
        ("list<int32>?", pa.list_(ELEMENT)),
        ("list<int32?>[{n}]", pa.list_(ELEMENT.with_nullable(True), 3)),
        ("struct<a: int16, b: string>?", pa.struct([("a", pa.int16()), ("b", pa.string())])),
        ("list<own>", pa.list_(pa.field("element", pa.date32(), nullable=False))),
    ],
)
def test_a_type_is_read_from_its_text(text, expected):
    assert arrow_type(text, {"{n}": 3, "own": pa.date32()}) == expected


def test_a_question_mark_makes_a_column_nullable():
    schema = arrow_schema([Column("a", "int32", "", ""), Column("b", "int32?", "", "")])
    assert [field.nullable for field in schema] == [False, True]


def test_a_trace_has_site_columns_only_with_sites_and_tensors_only_where_they_are_kept():
    assert trace_schema(2, True).names == [column.name for column in COLUMNS]
    assert trace_schema(2, True).field("site_sketch").type.list_size == 32
    assert {*trace_schema(2, True).names} - {*trace_schema(0, False).names} == {
        "site_hash", "site_l2", "site_absmax", "site_sketch", "tensors",
    }  # fmt: skip


def test_records_in_memory_have_the_columns_names():
    assert tuple(field.name for field in fields(ExecutionShape)) == SHAPE_COLUMNS
    sampler = trace_schema(0, False).field("sampler").type
    assert [field.name for field in fields(SamplerRecord)] == [field.name for field in sampler]
