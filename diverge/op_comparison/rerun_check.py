"""What a trace recorded of one sequence, tokens and row hashes: does a re-run repeat them?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.errors import BadInput
from ...schemas.findings.statement import Location
from ...schemas.zoom import SideCheck, SideRun
from ..reading.load import DAMAGE, Group, SiteKey, damaged, open_trace, site_key


@dataclass(frozen=True)
class Recorded:
    """One sequence of a trace, by position."""

    tokens: dict[int, int] = field(repr=False)
    hashes: dict[int, tuple[bytes, ...]] = field(repr=False)
    """Row hash of each site; empty bytes where the row was not computed."""
    sites: tuple[SiteKey, ...]


def read_recorded(path: Path, request_id: str, sample: int) -> Recorded:
    """Read one sequence of a trace.

    Raises:
        BadInput: The trace cannot be read, or does not hold the sequence.
    """
    trace = open_trace(path)
    tokens: dict[int, int] = {}
    hashes: dict[int, tuple[bytes, ...]] = {}
    try:
        for group in trace.groups:
            for position, token, digests in _rows(group, request_id, sample):
                tokens[position] = token
                hashes[position] = tuple(digest or b"" for digest in digests)
    except DAMAGE as error:
        raise damaged(path, error) from None
    if not tokens:
        raise BadInput(f"{path} has no sample {sample} of {request_id}", "compare traces that have it")
    return Recorded(tokens, hashes, tuple(site_key(site) for site in trace.header.sites))


def _rows(group: Group, request_id: str, sample: int) -> Iterator[tuple[int, int, Sequence[bytes | None]]]:
    """Position, token and row hashes of the rows of one sequence."""
    file = group.part.file
    table = file.read_row_group(group.index, columns=["request_id", "sample", "position", "token_id"])
    of_request = pc.equal(table["request_id"].cast(pa.string()), request_id)
    rows = np.flatnonzero(pc.and_(of_request, pc.equal(table["sample"], sample)).to_numpy())
    if not len(rows):
        return
    hashes: list[Sequence[bytes | None] | None] = [None] * len(rows)
    if group.part.width:
        hashes = file.read_row_group(group.index, columns=["site_hash"])["site_hash"].take(rows).to_pylist()
    chosen = table.take(rows)
    for position, token, digests in zip(
        chosen["position"].to_pylist(), chosen["token_id"].to_pylist(), hashes, strict=True
    ):
        yield position, token, digests or ()


def check(run: SideRun, known: Recorded | None) -> SideCheck:
    """Whether a re-run repeats the recorded rows, as far as the tokens are those that were recorded."""
    if known is None or not any(any(row) for row in known.hashes.values()):
        return SideCheck(state="not recorded")
    index = {site_key(site): number for number, site in enumerate(run.sites)}
    columns = [index.get(key) for key in known.sites]
    labels = [site.label() for site in run.sites]
    compared = 0
    for position, token in enumerate(run.tokens):
        if known.tokens.get(position) != token:
            break
        for digest, column in zip(known.hashes.get(position, ()), columns, strict=False):
            if column is None or not digest or not run.row_hashes[position][column]:
                continue
            compared += 1
            if run.row_hashes[position][column] != digest:
                where = Location(position=position, site=labels[column])
                return SideCheck(state="not repeated", rows=compared, where=where)
    return SideCheck(state="repeated" if compared else "not recorded", rows=compared)
