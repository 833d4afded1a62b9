"""Linear layers that sum in a different order where several sequences share a pass, as many kernels do.

Which kernels a CPU picks for a shape is not known beforehand: some give the same bits alone and in a batch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn


def sum_by_batch(monkeypatch: pytest.MonkeyPatch, *, dtype: torch.dtype | None = None) -> None:
    """Square linear layers add the two halves of their sums at the end, in batches of two and more.

    Args:
        monkeypatch: Undoes it.
        dtype: Of the two halves; their sum is rounded once. [default: that of the layer]
    """
    whole = nn.functional.linear

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        if x.shape[0] == 1 or weight.shape[0] != weight.shape[1]:
            return whole(x, weight, bias)
        half, halves = weight.shape[1] // 2, dtype or x.dtype
        first, last = x.to(halves).split([half, weight.shape[1] - half], -1)
        of_first, of_last = weight.to(halves).split([half, weight.shape[1] - half], -1)
        summed = whole(first, of_first) + whole(last, of_last)
        return (summed if bias is None else summed + bias.to(halves)).to(x.dtype)

    monkeypatch.setattr(nn.functional, "linear", linear)
