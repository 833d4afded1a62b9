"""docs/formats.md lists exactly the columns that traces and results have."""

from pathlib import Path

import pytest
from rip.diverge.result_folder import TABLES
from rip.schemas.trace import COLUMNS

TEXT = (Path(__file__).parents[1] / "docs" / "formats.md").read_text(encoding="utf-8")


def _section(title: str) -> str:
    start = TEXT.index(title)
    ends = [TEXT.find(mark, start + len(title)) for mark in ("\n## ", "\n### ")]
    return TEXT[start : min(end for end in ends if end > 0)]


def test_every_trace_column_is_documented_with_its_type_and_meaning() -> None:
    rows = [line for line in _section("## Trace").splitlines() if line.startswith("| `")]
    assert rows[: len(COLUMNS)] == [column.markdown() for column in COLUMNS]


@pytest.mark.parametrize("table", TABLES)
def test_every_result_column_is_documented_with_its_type_and_meaning(table: str) -> None:
    rows = [line for line in _section(f"### `{table}.parquet`").splitlines() if line.startswith("| `")]
    assert [row.split("|")[1].strip().strip("`") for row in rows] == [column.name for column in TABLES[table]]
    for row, column in zip(rows, TABLES[table], strict=True):
        assert column.type in row
        assert column.meaning.replace("|", "∣") in row
