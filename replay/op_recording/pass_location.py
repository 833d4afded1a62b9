"""Where the positions of one sequence lie in a forward pass, read from the arguments that the model gets.

It knows token columns and the attention mask, not modules or ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class PassLocation:
    """One forward pass, as one sequence of its batch lies in it.

    Attributes:
        batch: B.
        row: The sequence's row.
        tokens: T, columns that the pass feeds.
        total: Columns that attention sees: cached ones and T.
        column_of: Position → column of T, for the positions that this pass computes.
        seen: (column of `total`, position) of every token of the sequence so far, in order.
    """

    batch: int
    row: int
    tokens: int
    total: int
    column_of: Mapping[int, int]
    seen: tuple[tuple[int, int], ...]

    def fed_up_to(self, position: int) -> tuple[int, ...]:
        """Columns of T that hold positions up to this one."""
        return tuple(column for at, column in self.column_of.items() if at <= position)

    def seen_up_to(self, position: int) -> tuple[int, ...]:
        """Columns of `total` that hold positions up to this one."""
        return tuple(column for column, at in self.seen if at <= position)


def location_in_pass(arguments: Mapping[str, Any], row: int) -> PassLocation | None:
    """Where a row's positions lie in the pass that a model is called for.

    Args:
        arguments: `input_ids` [B, T] and `attention_mask` [B, total] of the call.
        row: The row of the batch.

    Returns:
        None where the call states no tokens, as a model inside another one may be called.
    """
    ids, mask = arguments.get("input_ids"), arguments.get("attention_mask")
    if not isinstance(ids, torch.Tensor) or not isinstance(mask, torch.Tensor):
        return None
    batch, tokens = ids.shape
    total = mask.shape[1]
    filled: list[int] = mask[row].nonzero().view(-1).tolist()
    seen = tuple((column, position) for position, column in enumerate(filled))
    first = total - tokens
    column_of = {position: column - first for column, position in seen if column >= first}
    return PassLocation(batch, row, tokens, total, column_of, seen)
