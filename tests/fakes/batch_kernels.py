"""Linear layers that sum in a different order where several sequences share a pass, as many kernels do.

Which kernels a CPU picks for a shape is not known beforehand: some give the same bits alone and in a batch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn


def sum_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Square linear layers add the two halves of their sums at the end, in batches of two and more."""
    whole = nn.functional.linear

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        if x.shape[0] == 1 or weight.shape[0] != weight.shape[1]:
            return whole(x, weight, bias)
        half = weight.shape[1] // 2
        return whole(x[..., :half], weight[:, :half], bias) + whole(x[..., half:], weight[:, half:])

    monkeypatch.setattr(nn.functional, "linear", linear)
