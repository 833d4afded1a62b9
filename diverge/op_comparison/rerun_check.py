"""What a trace recorded of one sequence, tokens and row hashes: does a re-run show them again?"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.errors import BadInput
from ...schemas.rerun import SideRun
from ...schemas.zoom import SideCheck
from ..reading.load import DAMAGE, SiteKey, open_trace, site_key


@dataclass(frozen=True)
class Recorded:
    """One sequence of a trace, by position."""

    tokens: dict[int, int] = field(repr=False)
    hashes: dict[int, tuple[bytes, ...]] = field(repr=False)
    """Row hash of each site; empty bytes where the row was not computed."""
    sites: tuple[SiteKey, ...]


def recorded(path: Path, request_id: str, sample: int) -> Recorded:
    """Read one sequence of a trace.

    Raises:
        BadInput: The trace cannot be read, or does not hold the sequence.
    """
    trace = open_trace(path)
    tokens: dict[int, int] = {}
    hashes: dict[int, tuple[bytes, ...]] = {}
    try:
        for group in trace.groups:
            _read_group(group.part.file, group.index, request_id, sample, tokens, hashes)
    except DAMAGE as error:
        raise BadInput(f"{path}: cannot be read: {error}", "copy it again, or replay again") from None
    if not tokens:
        raise BadInput(f"{path} holds no sample {sample} of {request_id}", "compare traces that hold it")
    return Recorded(tokens, hashes, tuple(site_key(site) for site in trace.header.sites))


def _read_group(
    file: pa.parquet.ParquetFile,
    index: int,
    request_id: str,
    sample: int,
    tokens: dict[int, int],
    hashes: dict[int, tuple[bytes, ...]],
) -> None:
    names = [name for name in ("request_id", "sample", "position", "token_id", "site_hash")
             if name in file.schema_arrow.names]  # fmt: skip
    table = file.read_row_group(index, columns=names[:4])
    wanted = pc.and_(
        pc.equal(table["request_id"].cast(pa.string()), request_id), pc.equal(table["sample"], sample)
    )
    rows = np.flatnonzero(wanted.to_numpy())
    if not len(rows):
        return
    chosen = table.take(rows)
    positions = chosen["position"].to_pylist()
    tokens.update(zip(positions, chosen["token_id"].to_pylist(), strict=True))
    if "site_hash" in names:
        column = file.read_row_group(index, columns=["site_hash"])["site_hash"].take(rows)
        for position, digests in zip(positions, column.to_pylist(), strict=True):
            hashes[position] = tuple(digest or b"" for digest in digests or ())


def check(run: SideRun, known: Recorded | None) -> SideCheck:
    """Whether a re-run shows the recorded rows again, as far as the tokens are those that were recorded."""
    if known is None or not any(any(row) for row in known.hashes.values()):
        return SideCheck(state="not recorded")
    place = {site_key(site): index for index, site in enumerate(run.sites)}
    columns = [place.get(key) for key in known.sites]
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
                return SideCheck(
                    state="not repeated", rows=compared, where=f"position {position} site {labels[column]}"
                )
    return SideCheck(state="repeated" if compared else "not recorded", rows=compared)
