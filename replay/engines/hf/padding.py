"""Prompts of unequal length in one batch: where their tokens stand, and whether a model then computes what it
computes of each alone.

A model with attention only is taken to do so, because padding is masked. One that folds tokens into a state
is measured on a few short sequences: the state must pass padding by, and last from one chunk to the next.

Axes: B sequences, T columns, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .model import Forward

TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}
"""Largest difference that rounding explains, in standard deviations of the logits. Measured over 30 families:
docs/decisions/0016-padding-and-states.md."""

_TOKENS, _LONGER, _STEPS, _CHUNK = 5, 9, 2, 3
"""Tokens of the short sequences and of the long one, decode steps after them, columns of a chunk."""
_SEQUENCES = 3
"""The one that differs least counts: rounding can send a token to another expert, hardly in all of them."""


@dataclass(frozen=True)
class Columns:
    """Prompts side by side, padded to one length."""

    first: list[int]
    """[B]: each row's first column that is no padding."""
    ids_BT: torch.Tensor
    """int64, token ids."""
    mask_BT: torch.Tensor
    """int64, 0 for padding."""
    positions_BT: torch.Tensor
    """int64, positions of the tokens in their sequences."""


def lay_out(
    inputs: Sequence[Sequence[int]], right: bool, pad: int, context_length: int, device: torch.device
) -> Columns:
    """Token ids of several prompts as one tensor.

    Args:
        right: Padding stands on the right.
        pad: The token id that it has.
        context_length: No position lies outside it: neighbours may be longer, and a table of positions has no
            entry there.
    """
    columns = max(len(ids) for ids in inputs)
    first = [0 if right else columns - len(ids) for ids in inputs]
    ids_BT = torch.full((len(inputs), columns), pad, dtype=torch.int64)
    mask_BT = torch.zeros_like(ids_BT)
    for row, ids in enumerate(inputs):
        filled = slice(first[row], first[row] + len(ids))
        ids_BT[row, filled] = torch.tensor(ids)
        mask_BT[row, filled] = 1
    positions_BT = (mask_BT.cumsum(dim=1) - 1).clamp(0, context_length - 1)
    return Columns(first, ids_BT.to(device), mask_BT.to(device), positions_BT.to(device))


class StateCheck:
    """Whether padding and chunks leave the results of a model with a state as they are, measured once each.

    Args:
        forward: Makes the forward passes of a batch, from an empty cache on.
        dtype: Of the model's weights.
    """

    def __init__(
        self,
        forward: Callable[[], Forward],
        dtype: torch.dtype,
        vocab_size: int,
        pad: int,
        device: torch.device,
    ) -> None:
        self._forward, self._pad, self._device = forward, pad, device
        self._other_pad = (pad + 1) % vocab_size
        self._tolerance = TOLERANCES.get(dtype, min(TOLERANCES.values()))
        self._rows = [
            [(7 + 31 * row + 13 * index) % vocab_size for index in range(_TOKENS)]
            for row in range(_SEQUENCES)
        ]
        self._longer = [(5 + 11 * index) % vocab_size for index in range(_LONGER)]

    @functools.cached_property
    def tolerates_padding(self) -> bool:
        """A row behind padding is computed as it is alone, and no bit depends on which token that is."""
        rows = [*self._rows, self._longer]
        padded, otherwise = (self._logits(rows, pad)[:, :_SEQUENCES] for pad in (self._pad, self._other_pad))
        return _deviation(padded, otherwise) == 0 and _deviation(self._alone, padded) <= self._tolerance

    @functools.cached_property
    def tolerates_chunks(self) -> bool:
        """A prompt in chunks is computed as it is at once."""
        return _deviation(self._alone, self._logits(self._rows, width=_CHUNK)) <= self._tolerance

    @functools.cached_property
    def _alone(self) -> torch.Tensor:
        """Sequences of equal length stand beside each other without padding."""
        return self._logits(self._rows)

    def _logits(self, rows: Sequence[Sequence[int]], pad: int = 0, width: int = _LONGER) -> torch.Tensor:
        """Logits [S, B, V] after each of the tokens that all rows have, and of a few that follow.

        What enters a state shows most in the tokens right behind it.
        """
        columns = lay_out(rows, False, pad, _LONGER + _STEPS, self._device)
        forward = self._forward()
        count = columns.ids_BT.shape[1]
        parts = [
            forward(
                columns.ids_BT[:, start : start + width],
                columns.mask_BT[:, : start + width],
                columns.positions_BT[:, start : start + width],
            )
            for start in range(0, count, width)
        ]
        logits_BTV = torch.cat(parts, dim=1)
        found = [
            torch.stack([logits_BTV[row, first + token] for row, first in enumerate(columns.first)])
            for token in range(_TOKENS)
        ]
        mask_BT = columns.mask_BT
        for step in range(_STEPS):
            mask_BT = torch.cat([mask_BT, torch.ones_like(mask_BT[:, :1])], dim=1)
            fed_B1 = torch.full_like(mask_BT[:, :1], self._longer[step])
            positions_B1 = torch.tensor([[len(row) + step] for row in rows], device=self._device)
            found.append(forward(fed_B1, mask_BT, positions_B1)[:, -1])
        return torch.stack(found)


def _deviation(a_SBV: torch.Tensor, b_SBV: torch.Tensor) -> float:
    """Largest difference of two runs, in standard deviations of the logits."""
    a_SBV, b_SBV = a_SBV.float(), b_SBV.float()
    difference_SB = (a_SBV - b_SBV).abs().amax(-1) / a_SBV.std(-1)
    return float(difference_SB.nan_to_num(torch.inf).amax(0).min())
