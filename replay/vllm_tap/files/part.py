"""What a part holds: the rows of some requests, as one rank of a vLLM engine observed them.

It needs neither torch, vLLM nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ....schemas.trace import SHAPE_COLUMNS
from ...row_summaries.summaries import RowSummaries

ROW_FIELDS = ("request", "position", "token_id", "step", *SHAPE_COLUMNS)
"""Columns of a part's row table: int32[R, 9]. `request` is the rank's own number of the request, `step` the
number of the forward pass."""
REQUEST, POSITION, TOKEN_ID, STEP = range(4)
SHAPE = slice(4, None)
"""Where they stand; the shape of the forward pass comes last."""

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class TappedRequest:
    """One request as a worker saw it."""

    request_id: str
    """vLLM's own id."""
    key: str
    """What it is captured under: `rip_tap` of its extra_args, else its id."""
    prefix: tuple[int, ...] = ()
    """Token ids of the positions that came from the prefix cache when it began: they have no rows."""


@dataclass(frozen=True, eq=False)
class Distributions:
    """Next-token distributions of D rows, K ids each (K may be 0)."""

    row: Int32
    """int32[D], index into the part's rows."""
    ids: Int32
    """int32[D, K]"""
    logits: npt.NDArray[np.float32]
    """float32[D, K]"""
    logprobs: npt.NDArray[np.float32]
    """float32[D, K], nats"""
    logsumexp: npt.NDArray[np.float64]
    """float64[D], nats"""
    logits_hash: npt.NDArray[np.uint64]
    """uint64[D, 2]"""

    @classmethod
    def none(cls) -> Distributions:
        """No distribution at all."""
        return cls(
            np.zeros(0, np.int32),
            np.zeros((0, 0), np.int32),
            np.zeros((0, 0), np.float32),
            np.zeros((0, 0), np.float32),
            np.zeros(0, np.float64),
            np.zeros((0, 2), np.uint64),
        )


@dataclass(frozen=True, eq=False)
class Part:
    """R rows of some requests over S sites, and which requests ended by then.

    A site that a row was not computed for has 16 zero bytes as its hash.
    """

    requests: Mapping[int, TappedRequest]
    ended: Sequence[int]
    rows: Int32
    """int32[R, len(ROW_FIELDS)]"""
    summaries: RowSummaries
    """[R, S]"""
    distributions: Distributions

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything but the header, by name."""
        distributions = {f"next.{name}": array for name, array in vars(self.distributions).items()}
        summaries = dict(zip(SUMMARIES, self.summaries.arrays(), strict=True))
        return {"rows": self.rows, **summaries, **distributions}

    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays().values())


SUMMARIES = tuple(field.name for field in fields(RowSummaries))
DISTRIBUTIONS = tuple(field.name for field in fields(Distributions))
"""As a part names its arrays."""
