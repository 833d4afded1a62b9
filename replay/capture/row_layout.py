"""Where the rows of a module's output lie: on which axes of the tensor the sequences and the tokens are.

Axes: B sequences in the batch, T columns of the pass, H heads, W elements of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Layout(Enum):
    """Where the token axis of an output lies. Found once, with sizes that differ for every axis."""

    BATCH_FIRST = "[B or 1, T, …]: 1 where all sequences share the rows (rotary tables)"
    HEADS_FIRST = "[B, H, T, D]: a norm of queries or keys behind the transpose"
    TIME_FIRST = "[T, B, …]: torch's recurrent and transformer modules, by default"
    CHANNELS_FIRST = "[B or 1, W, T]: convolutions"
    TABLE = "[T, W]: rows that all sequences share (learned positions)"
    FLAT = "[B·T, …]: routers and experts"

    def sequences(self, shape: torch.Size, batch: int) -> int:
        """How many sequences have rows of their own in an output of this shape: B, or 1 for all."""
        if self is Layout.TABLE:
            return 1
        return shape[0] if self in (Layout.BATCH_FIRST, Layout.CHANNELS_FIRST) else batch


def layout_of(tensor: torch.Tensor, batch: int, tokens: int) -> Layout | None:
    """The layout of an output, or None where it has no row per token.

    Args:
        tensor: Output of a module.
        batch: B, different from all other sizes in the model.
        tokens: T, likewise. An output with a second axis of this size (attention weights) has rows that
            grow with the context; they are not observed.
    """
    shape = tensor.shape
    if not tensor.numel():
        return None
    if len(shape) >= 2 and shape[0] in (batch, 1) and shape[1] == tokens and tokens not in shape[2:]:
        return Layout.BATCH_FIRST
    if len(shape) == 4 and shape[0] == batch and shape[2] == tokens and tokens not in (shape[1], shape[3]):
        return Layout.HEADS_FIRST
    if len(shape) >= 3 and shape[:2] == (tokens, batch) and (tokens == 1 or tokens not in shape[2:]):
        return Layout.TIME_FIRST
    if len(shape) == 3 and shape[0] in (batch, 1) and shape[2] == tokens != shape[1]:
        return Layout.CHANNELS_FIRST
    if len(shape) >= 1 and shape[0] == batch * tokens and (tokens == 1 or tokens not in shape[1:]):
        return Layout.FLAT
    if len(shape) == 2 and shape[0] == tokens != shape[1]:
        return Layout.TABLE
    return None


@dataclass(frozen=True)
class RowShape:
    """How the rows of one site lie in its tensor."""

    layout: Layout
    width: int
    """W."""

    def of(self, tensor: torch.Tensor, batch: int, tokens: int) -> torch.Tensor | None:
        """The rows [B or 1, T, W] of an output, as a view where possible.

        Returns:
            None where this output has other axes than the one the site was discovered with, as when only
            some tokens went through the module.
        """
        shape = tensor.shape
        turned: tuple[int, int] | None = None
        if self.layout is Layout.FLAT:
            fits = len(shape) >= 1 and shape[0] == batch * tokens
        elif self.layout is Layout.TABLE:
            fits = len(shape) == 2 and shape[0] == tokens
        elif self.layout is Layout.BATCH_FIRST:
            fits = len(shape) >= 2 and shape[1] == tokens and shape[0] in (batch, 1)
        elif self.layout is Layout.TIME_FIRST:
            fits, turned = len(shape) >= 3 and shape[:2] == (tokens, batch), (0, 1)
        elif self.layout is Layout.CHANNELS_FIRST:
            fits, turned = len(shape) == 3 and shape[0] in (batch, 1) and shape[2] == tokens, (1, 2)
        else:
            fits, turned = len(shape) == 4 and shape[0] == batch and shape[2] == tokens, (1, 2)
        if not fits:
            return None
        sequences = self.layout.sequences(shape, batch)
        if tensor.numel() != sequences * tokens * self.width:
            return None
        tensor = tensor.detach()  # a program that trains has its own use for the graph
        return (tensor.transpose(*turned) if turned else tensor).reshape(sequences, tokens, self.width)
